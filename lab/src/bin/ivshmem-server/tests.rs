use crate::server::{Event, Server};
use rustix::io::{read, write};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const VECTORS: u16 = 3;

struct Lab {
    server: Server,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl Lab {
    fn new(most: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let server = Server::new(UnixListener::bind(&path).unwrap(), 8192, VECTORS, most).unwrap();
        Self { server, path, _directory: directory }
    }

    fn connect(&mut self) -> (UnixStream, Vec<Event>) {
        let stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (stream, self.step())
    }

    fn step(&mut self) -> Vec<Event> {
        self.server.step(Some(Duration::from_millis(200)), None).unwrap()
    }
}

fn receive(stream: &UnixStream) -> io::Result<(i64, Option<OwnedFd>)> {
    let mut bytes = [0u8; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty())?;
    if got.bytes != 8 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((i64::from_le_bytes(bytes), descriptor))
}

/// Reads the messages that the server sends to a new peer. Returns the shared memory, the interrupts of the
/// other peers, and the interrupts of the new peer.
fn greeting(stream: &UnixStream, number: i64, others: &[i64]) -> (OwnedFd, Vec<OwnedFd>, Vec<OwnedFd>) {
    assert!(matches!(receive(stream).unwrap(), (0, None)), "version");
    let (own, none) = receive(stream).unwrap();
    assert_eq!((own, none.is_none()), (number, true));
    let (minus_one, memory) = receive(stream).unwrap();
    assert_eq!(minus_one, -1);
    let interrupts = |from: i64| -> Vec<OwnedFd> {
        (0..VECTORS)
            .map(|_| {
                let (n, descriptor) = receive(stream).unwrap();
                assert_eq!(n, from);
                descriptor.expect("an eventfd")
            })
            .collect()
    };
    let theirs = others.iter().flat_map(|&other| interrupts(other)).collect();
    (memory.expect("memory"), theirs, interrupts(number))
}

#[test]
fn peers_are_announced_and_interrupt_each_other() {
    let mut lab = Lab::new(4);
    let (a, events) = lab.connect();
    assert_eq!(events, [Event::Joined(0)]);
    let (memory, _, a_own) = greeting(&a, 0, &[]);
    assert_eq!(rustix::fs::fstat(&memory).unwrap().st_size, 8192);

    let (b, _) = lab.connect();
    let (_, to_a, _) = greeting(&b, 1, &[0]);
    for _ in 0..VECTORS {
        assert!(matches!(receive(&a).unwrap(), (1, Some(_))), "the new peer is announced");
    }
    // Peer b has an eventfd for each vector of peer a. A write to the one for vector 2 must interrupt that
    // vector and no other.
    write(&to_a[2], &1u64.to_ne_bytes()).unwrap();
    assert!(read(&a_own[1], &mut [0u8; 8]).is_err());
    assert_eq!(read(&a_own[2], &mut [0u8; 8]).unwrap(), 8);

    drop(b);
    assert!(matches!(&lab.step()[..], [Event::Left(1, _)]));
    assert!(matches!(receive(&a).unwrap(), (1, None)), "its leaving is announced");
    let (c, _) = lab.connect();
    greeting(&c, 1, &[0]);
}

#[test]
fn a_peer_that_sends_is_disconnected() {
    let mut lab = Lab::new(4);
    let (mut a, _) = lab.connect();
    greeting(&a, 0, &[]);
    a.write_all(b"hello").unwrap();
    assert!(matches!(&lab.step()[..], [Event::Left(0, why)] if why.contains("sent")));
    assert!(receive(&a).is_err());
}

#[test]
fn surplus_peers_are_refused_and_the_others_stay() {
    let mut lab = Lab::new(2);
    let (a, _) = lab.connect();
    let (_b, _) = lab.connect();
    let (c, events) = lab.connect();
    assert!(matches!(&events[..], [Event::Refused(_)]));
    assert!(receive(&c).is_err());
    assert_eq!(lab.server.peers(), 2);
    greeting(&a, 0, &[]);
}

#[test]
fn joining_and_leaving_leaks_nothing_and_a_peer_that_does_not_read_is_disconnected() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut lab = Lab::new(8);
    let (unread, _) = lab.connect();
    // Make peers join and leave until the server disconnects the peer that does not read. Count the open
    // descriptors only afterwards, because descriptors sent to that peer stay open until it is disconnected.
    let mut dropped = false;
    let mut after = 0;
    for n in 0..2000 {
        let (peer, joined) = lab.connect();
        drop(peer);
        let left = lab.step();
        dropped |= joined
            .iter()
            .chain(&left)
            .any(|event| matches!(event, Event::Left(0, why) if why.contains("read")));
        if dropped {
            after = n;
            break;
        }
    }
    assert!(dropped, "the peer that does not read was never disconnected");
    drop(unread);
    let before = open();
    for _ in 0..50 {
        let (peer, events) = lab.connect();
        assert!(events.contains(&Event::Joined(0)), "after {after}: {events:?}");
        drop(peer);
        lab.step();
    }
    // Allow up to 40 more descriptors, because other tests run in this process at the same time.
    assert!(open() < before + 40, "{} descriptors, {before} before", open());
}
