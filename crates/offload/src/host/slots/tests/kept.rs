//! Tests of pairs that outlive their connections.

use super::*;
use inlane_offload_protocol::name::{Asking, End, SocketKind};

const ADDRESS: &str = "127.0.0.1:9090";

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

    /// Asks the engine to open a connection to [`ADDRESS`] over `ends`, or over the kept pair of `slot`. `program` is its end.
    fn open(&mut self, program: &OwnedFd, ends: [Option<OwnedFd>; 2], slot: Option<Slot>) {
        pair::set_option(program, libc::SO_SNDBUF, 1).unwrap();
        let mut filled = 0;
        while let Ok(sent) = pair::send(program.as_raw_fd(), &[7; 8192], &[]) {
            filled += sent as i32;
        }
        let mut message = Message::new(Operation::Open);
        (message.remote, message.number) = (Some(ADDRESS.parse().unwrap()), filled);
        message.level = slot.map_or(0, |slot| slot.header().number.load(Ordering::Relaxed) as i32 + 1);
        let mut request = Request::new(message, ends, &self._client);
        assert_eq!(self.bench.engine.process(self.bench.now, &mut request).0.status, 0);
        self.turn();
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

/// 64 such connections would otherwise keep all slots of a program.
#[test]
fn an_idle_connection_over_a_kept_pair_gives_its_slot_to_a_busy_one() {
    let mut server = Server::new();
    server.area.area().keeps().store(1, Ordering::Relaxed);
    let peer = server.bench.listening(ADDRESS);
    let accept = || {
        let mut record = [0; SOCKET_LEN];
        pair::receive_descriptor(peer.as_raw_fd(), &mut record).unwrap().1.expect("the peer keeps no pairs")
    };
    let (local, remote) = ("0.0.0.0:0".parse().unwrap(), Some(ADDRESS.parse().unwrap()));
    let name = SocketName { engine: 1, socket: 7, kind: SocketKind::StreamV4, local, remote };
    let (engine, program) = pair::create(&name).unwrap();
    let inode = rustix::fs::fstat(&program).unwrap().st_ino;
    server.open(&program, [Some(engine), Some(program.try_clone().unwrap())], None);
    let find = |server: &Server| server.area.area().find(inode);
    let slot = find(&server).expect("the connection has a slot");
    server.close_in_slot(slot);
    server.end(accept());
    assert!(slot.life().ask(), "the pair is kept");
    server.open(&program, [None, None], Some(slot));
    assert!(
        find(&server).is_some_and(|slot| !slot.life().is_connecting()),
        "the connection has the kept pair"
    );
    let accepted = accept();
    while server.area.reserve(Key::from_u64(u64::MAX)).is_some() {}
    let _client = server.connect();
    let (busy, none) = server.accept();
    assert!(none.is_none(), "no slot is free");
    let adopt = |server: &mut Server| {
        let mut message = Message::new(Operation::Adopt);
        message.number = 1;
        let client = server._client.clone();
        let status = server.bench.ask_over(&client, message, busy.try_clone().unwrap()).status;
        server.turn();
        status
    };
    assert_eq!(adopt(&mut server), libc::ENOBUFS, "the connection has just got its slot");
    server.bench.now += 2 * UNUSED_NS;
    assert_eq!(adopt(&mut server), 0);
    assert!(find(&server).is_none());
    // The connection still carries data.
    pair::send(program.as_raw_fd(), b"there", &[]).unwrap();
    pair::send(accepted.as_raw_fd(), b"back", &[]).unwrap();
    server.turn();
    let mut bytes = [0; 16];
    assert_eq!(pair::receive(accepted.as_raw_fd(), &mut bytes).unwrap(), 5);
    assert_eq!(pair::receive(program.as_raw_fd(), &mut bytes).unwrap(), 4);
}
