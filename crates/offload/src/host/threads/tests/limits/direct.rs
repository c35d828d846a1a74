//! Tests of connections that end while received bytes are in shared memory. The test code plays the program.

use super::super::*;
use crate::host::area::Polled;
use crate::host::area::SharedArea;
use crate::host::direct::Direct;
use crate::host::socket::{Pair, Socket};
use crate::stack::socket::Role;
use inlane_offload_protocol::name::{Asking, End};
use inlane_offload_protocol::slots::Slot;
use std::sync::Arc;

/// The ports of the peer and of the listener.
const PORTS: (u16, u16) = (4000, 8080);

/// A connection with a slot of shared memory. The program has asked for the receive ring.
struct Connection {
    trio: Trio,
    _listener: OwnedFd,
    end: OwnedFd,
    slot: Slot,
    /// The acknowledgment number of the peer's segments.
    acknowledgment: u32,
    /// The sequence number of the peer's next segment.
    sequence: u32,
}

impl Connection {
    fn new() -> Self {
        let mut trio = Trio::new();
        let program = trio.program();
        let listener = trio.listening(&program, PORTS.1);
        trio.segment(0, &header(1000, 0, tcp::SYN), PORTS, &[]);
        let acknowledgment = trio.sent()[0].0.sequence.wrapping_add(1);
        trio.segment(0, &header(1001, acknowledgment, tcp::ACK), PORTS, &[]);
        let end = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
        let sockets = &mut trio.engine.parts_mut().engines_mut()[0].stack.sockets;
        let key = sockets.iter().find(|(_, socket)| socket.stream().is_some()).unwrap().0;
        let Socket { role: Role::Stream(stream), attachment, .. } = sockets.get_mut(key).unwrap() else {
            unreachable!()
        };
        let Pair::Stream(pair) = &mut attachment.pair else { unreachable!() };
        let area = SharedArea::new(1, 0, stream.send.capacity()).unwrap().0;
        let direct =
            Direct::new(0, Polled::new(&Arc::new(area), 0), (key, 1), (7, 8), stream.written, false, None)
                .unwrap();
        stream.replace_rings(direct.rings());
        let slot = direct.slot();
        pair.direct = Some(Box::new(direct));
        assert!(slot.receive().ask());
        Self { trio, _listener: listener, end, slot, acknowledgment, sequence: 1001 }
    }

    /// Passes a segment from the peer to the engine. The engine reports it to the program only at the next
    /// `settle`, so a test can receive data and a reset in one round.
    fn receive(&mut self, flags: u8, payload: &[u8]) {
        let header = header(self.sequence, self.acknowledgment, flags);
        self.trio.engine.receive_on(0, self.trio.now, &frame(&header, PORTS, payload));
        self.sequence += payload.len() as u32;
    }
}

#[test]
fn bytes_behind_those_of_the_ring_reach_the_program_before_a_reset() {
    let mut connection = Connection::new();
    connection.receive(tcp::ACK, b"first");
    connection.trio.settle();
    let bytes = connection.slot.received().unwrap();
    assert!(connection.slot.receive().take(bytes, 5) && connection.slot.receive().stop());
    connection.receive(tcp::ACK, b"second");
    connection.receive(tcp::RST, &[]);
    connection.trio.settle();
    assert_eq!(received(&connection.end), b"second");
    let name =
        End::of(connection.end.as_raw_fd(), Asking { own: libc::getsockname, peer: libc::getpeername });
    assert_eq!(name, End::Failed(libc::ECONNRESET));
}

#[test]
fn bytes_of_the_ring_reach_the_program_before_a_reset() {
    let mut connection = Connection::new();
    connection.receive(tcp::ACK, b"first");
    connection.trio.settle();
    let bytes = connection.slot.received().unwrap();
    assert!(connection.slot.receive().take(bytes, 2));
    connection.receive(tcp::ACK, b"second");
    connection.receive(tcp::RST, &[]);
    connection.trio.engine.step(connection.trio.now).unwrap();
    assert_eq!(received(&connection.end), b"rstsecond");
}

/// The program closes its end of the socket pair while bytes in shared memory are still unread. In
/// the round in which the engine detects the close, it closes the old ring. It must then reset the connection.
#[test]
fn a_close_with_unread_old_bytes_resets_the_connection() {
    for half_closed in [false, true] {
        let mut connection = Connection::new();
        if half_closed {
            // SAFETY: has no preconditions.
            assert_eq!(unsafe { libc::shutdown(connection.end.as_raw_fd(), libc::SHUT_WR) }, 0);
            connection.trio.settle();
        }
        connection.receive(tcp::ACK, b"unread");
        connection.trio.settle();
        assert!(connection.slot.received().is_some());
        connection.trio.sent();
        let Connection { mut trio, end, .. } = connection;
        drop(end);
        trio.settle();
        let flags: Vec<_> = trio.sent().iter().map(|(header, _)| header.flags).collect();
        // The reset is the last segment. The acknowledgment of the unread bytes may be sent before it.
        let (last, others) = flags.split_last().unwrap();
        let resets = last & tcp::RST != 0 && others.iter().all(|&flags| flags == tcp::ACK);
        assert!(resets, "half closed: {half_closed}, {flags:?}");
        assert_eq!(trio.flows(), [0, 0, 0]);
    }
}

/// The program has finished sending, so it cannot commit bytes any more.
#[test]
fn a_word_that_moves_after_the_end_of_sending_sends_nothing() {
    let connection = Connection::new();
    let Connection { mut trio, end, slot, .. } = connection;
    // SAFETY: has no preconditions.
    assert_eq!(unsafe { libc::shutdown(end.as_raw_fd(), libc::SHUT_WR) }, 0);
    trio.settle();
    trio.sent();
    assert!(slot.send().claim().is_none(), "the engine has closed the ring");
    slot.header().send.ring.store(5, std::sync::atomic::Ordering::Relaxed);
    let engine = &mut trio.engine.parts_mut().engines_mut()[0];
    let key = engine.stack.sockets.iter().find(|(_, socket)| socket.stream().is_some()).unwrap().0;
    engine.stack.touch(key);
    trio.settle();
    assert!(trio.sent().is_empty());
}

/// A connection gets a slot while its rings hold bytes in both directions.
#[test]
fn bytes_move_with_the_rings_into_a_slot() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, PORTS.1);
    trio.segment(0, &header(1000, 0, tcp::SYN), PORTS, &[]);
    let acknowledgment = trio.sent()[0].0.sequence.wrapping_add(1);
    trio.segment(0, &header(1001, acknowledgment, tcp::ACK), PORTS, &[]);
    let end = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
    trio.sent();
    pair::send(end.as_raw_fd(), b"to the peer", &[]).unwrap();
    trio.settle();
    let engine = &mut trio.engine.parts_mut().engines_mut()[0];
    let key = engine.stack.sockets.iter().find(|(_, socket)| socket.stream().is_some()).unwrap().0;
    let Some(Socket { role: Role::Stream(stream), .. }) = engine.stack.sockets.get_mut(key) else {
        unreachable!()
    };
    let area = Arc::new(SharedArea::new(1, 0, stream.send.capacity()).unwrap().0);
    let mut direct =
        Direct::new(0, Polled::new(&area, 0), (key, 1), (7, 8), stream.written, false, None).unwrap();
    stream.replace_rings(direct.rings());
    direct.publish(stream.connection.acknowledged(), stream.send.capacity() as u64);
    assert_eq!(direct.slot().room(direct.slot().send().next().unwrap()), stream.send.capacity() - 11);
    let mut bytes = [0; 11];
    stream.send.read(0..11, &mut bytes);
    assert_eq!(&bytes, b"to the peer");
    drop((end, listener));
}
