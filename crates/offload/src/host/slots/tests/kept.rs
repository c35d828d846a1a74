//! Tests of pairs that outlive their connections.

use super::*;
use inlane_offload_protocol::name::{Asking, End};

/// Returns how a client's connection has ended. `client` is the program's end.
fn end_of(client: &OwnedFd) -> End {
    End::of(client.as_raw_fd(), Asking { own: libc::getsockname, peer: libc::getpeername })
}

impl Server {
    /// Lets a program keep pairs. Returns the program's end of an accepted connection, its slot, and the client's end.
    fn accept_first(&mut self) -> (OwnedFd, Slot, OwnedFd) {
        self.area.area().keeps().store(1, Ordering::Relaxed);
        let client = self.connect();
        self.turn();
        let (end, slot) = self.accept();
        let slot = slot.expect("the connection has a slot");
        assert!(slot.life().accept(self.accepted));
        (end, slot, client)
    }

    /// Takes the client's byte, and closes the connection in its slot.
    fn close_in_slot(&mut self, slot: Slot) {
        if let Some(received) = slot.received() {
            assert!(slot.receive().take(received, received.len));
        }
        let claim = slot.send().claim().expect("no thread sends");
        assert!(slot.send().end(claim) && slot.life().close());
        slot.ring_doorbell();
        self.turn();
    }

    /// Returns the record of the next connection: the tag, and the slot of its kept pair. The record has no descriptor.
    fn record(&mut self) -> Option<u8> {
        let mut record = [0; SOCKET_LEN];
        let (len, end) = pair::receive_descriptor(self.listener.as_raw_fd(), &mut record).unwrap();
        let (name, tag, kept) = SocketName::from_record(record).unwrap();
        self.accepted = name.socket;
        assert!(
            len == SOCKET_LEN && tag == self.area.area().records().tag && end.is_none() == kept.is_some()
        );
        kept
    }

    /// Lets the client close its end, so that the connection ends.
    fn end(&mut self, client: OwnedFd) {
        drop(client);
        for _ in 0..4 {
            self.turn();
        }
    }
}

#[test]
fn a_connection_gets_the_pair_of_one_that_the_program_closed_in_its_slot() {
    let mut server = Server::new();
    let (_end, slot, client) = server.accept_first();
    server.close_in_slot(slot);
    assert!(
        pair::receive(client.as_raw_fd(), &mut [0; 8]).is_ok_and(|len| len == 0),
        "the client sees the end"
    );
    server.end(client);
    let client = server.connect();
    server.turn();
    assert_eq!(server.record(), Some(slot.header().number.load(Ordering::Relaxed) as u8));
    assert!(!slot.life().is_accepted());
    assert!(slot.life().accept(server.accepted));
    assert_eq!(slot.received().expect("the byte is in the ring").len, 1);
    server.close_in_slot(slot);
    server.end(client);
    // Without the program's consent, the next connection has a new pair.
    server.area.area().keeps().store(0, Ordering::Relaxed);
    let _client = server.connect();
    server.turn();
    assert_eq!(server.record(), None);
}

#[test]
fn unread_bytes_reset_a_connection_that_is_closed_in_its_slot() {
    let mut server = Server::new();
    let (end, slot, client) = server.accept_first();
    let claim = slot.send().claim().expect("no thread sends");
    assert!(slot.received().is_some() && slot.send().end(claim) && slot.life().close());
    slot.ring_doorbell();
    server.turn();
    assert_eq!(end_of(&client), End::Failed(libc::ECONNRESET));
    assert!(pair::hung_up(end.as_raw_fd()), "the pair is closed");
}

#[test]
fn a_pair_whose_end_the_program_closes_gets_no_connection() {
    let mut server = Server::new();
    let (_end, slot, client) = server.accept_first();
    server.close_in_slot(slot);
    server.end(client);
    assert!(slot.life().end(), "the engine keeps the pair, and no connection has it");
    let _client = server.connect();
    server.turn();
    assert_eq!(server.record(), None);
}

#[test]
fn a_closed_listener_resets_connections_over_kept_pairs() {
    let mut server = Server::new();
    let (_end, slot, client) = server.accept_first();
    server.close_in_slot(slot);
    server.end(client);
    let client = server.connect();
    server.turn();
    let (unused, _) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut server.listener, unused.into()));
    for _ in 0..4 {
        server.turn();
    }
    assert_eq!(end_of(&client), End::Failed(libc::ECONNRESET));
}

/// For example, another thread forks while the program closes the connection.
#[test]
fn a_kept_end_that_is_closed_at_once_ends_its_connection_and_frees_the_slot() {
    let mut server = Server::new();
    let (end, slot, client) = server.accept_first();
    let received = slot.received().expect("the byte is in the ring");
    assert!(slot.receive().take(received, received.len));
    let claim = slot.send().claim().expect("no thread sends");
    assert!(slot.send().end(claim) && slot.life().close() && slot.life().end());
    drop(end);
    server.turn();
    assert!(
        pair::receive(client.as_raw_fd(), &mut [0; 8]).is_ok_and(|len| len == 0),
        "the client sees the end"
    );
    server.end(client);
    let _client = server.connect();
    server.turn();
    let (_end, next) = server.accept();
    assert_eq!(next.expect("the connection has a slot").as_ptr(), slot.as_ptr());
}
