//! Tests which events of a pair wake the engine.

use super::Bench;
use crate::host::pair;
use inlane_offload_protocol::name::SOCKET_LEN;
use std::os::fd::{AsRawFd, OwnedFd};

/// The address of the listener.
const SERVER: &str = "127.0.0.1:8080";

/// Accepts a connection, or returns `None` if none waits.
fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let mut record = [0; SOCKET_LEN];
    pair::receive_descriptor(listener.as_raw_fd(), &mut record).ok()?.1
}

/// Returns true if epoll reports events to the engine.
fn has_events(bench: &mut Bench) -> bool {
    bench.engine.wait(bench.now, 0, &mut Vec::with_capacity(64)).unwrap()
}

#[test]
fn a_program_that_accepts_and_receives_does_not_wake_the_engine() {
    let mut bench = Bench::new(8);
    let listener = bench.listening(SERVER);
    let client = bench.connecting(SERVER).1.unwrap();
    bench.turn();
    let server = accept(&listener).unwrap();
    assert!(!has_events(&mut bench), "an accept");
    for len in 1..100 {
        pair::send(client.as_raw_fd(), &vec![7; len], &[]).unwrap();
        assert!(has_events(&mut bench), "a send");
        // Delayed acknowledgments let short segments wait for several turns.
        let received = (0..100).find_map(|_| {
            bench.turn();
            pair::receive(server.as_raw_fd(), &mut [0; 200]).ok()
        });
        assert_eq!(received, Some(len));
        assert!(!has_events(&mut bench), "a receive");
    }
}

#[test]
fn a_program_that_receives_from_a_full_pair_gets_all_bytes() {
    const BYTES: usize = 4 << 20;
    let mut bench = Bench::new(8);
    let listener = bench.listening(SERVER);
    let client = bench.connecting(SERVER).1.unwrap();
    bench.turn();
    let server = accept(&listener).unwrap();
    let pattern: Vec<u8> = (0..251).cycle().take(BYTES).collect();
    let (mut sent, mut received) = (0, Vec::new());
    let mut bytes = vec![0; 300_000];
    let mut vain = 0;
    while received.len() < BYTES {
        assert!(vain < 1000, "{sent} bytes sent, {} received", received.len());
        vain += 1;
        // Fill all buffers before the program receives.
        while sent < BYTES
            && let Ok(len) = pair::send(client.as_raw_fd(), &pattern[sent..], &[])
        {
            sent += len;
            bench.turn();
        }
        bench.turn();
        while let Ok(len @ 1..) = pair::receive(server.as_raw_fd(), &mut bytes) {
            received.extend_from_slice(&bytes[..len]);
            vain = 0;
        }
    }
    assert!(received == pattern);
    // Without a full pair, receives do not wake the engine any more.
    bench.turn();
    pair::send(client.as_raw_fd(), b"end", &[]).unwrap();
    bench.turn();
    assert_eq!(pair::receive(server.as_raw_fd(), &mut bytes).unwrap(), 3);
    assert!(!has_events(&mut bench));
}

#[test]
fn connections_that_wait_behind_a_full_listener_are_accepted() {
    let mut bench = Bench::new(400);
    let listener = bench.listening(SERVER);
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let client = bench.connecting(SERVER).1.unwrap();
            bench.turn();
            client
        })
        .collect();
    let mut servers: Vec<_> = std::iter::from_fn(|| accept(&listener)).collect();
    assert!(servers.len() < clients.len(), "the pair was never full");
    // Connections beyond the backlog are established when their SYN is repeated.
    for _ in 0..2000 {
        bench.turn();
        servers.extend(std::iter::from_fn(|| accept(&listener)));
    }
    assert_eq!(servers.len(), clients.len());
    bench.turn();
    assert!(!has_events(&mut bench));
}
