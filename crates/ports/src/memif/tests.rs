//! Tests of two ends in one process, each on a thread of its own, and of hostile peers.

use super::*;
use inlane_core::port::{PEER_MESSAGE, Reservation};
use inlane_core::{HeapPool, Packet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

fn port(folder: &Path, server: bool, buffer: u32) -> Memif {
    Memif::new(MemifSettings {
        name: "memif:test".into(),
        socket: folder.join("m.sock"),
        server,
        id: 7,
        secret: Some("word".into()),
        wait: Duration::from_secs(20),
        buffer,
        partial_checksums: server,
    })
}

struct Opened {
    pool: Arc<dyn Pool>,
    rx: Vec<Box<dyn Rx>>,
    tx: Vec<Box<dyn Tx>>,
    doorbells: Vec<Arc<Doorbell>>,
    peer_accepts_partial_checksums: bool,
    peer: Option<Arc<Peer>>,
}

fn open(mut port: Memif, queues: u16) -> Result<Opened> {
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(512, 9100).unwrap());
    port.configure(&vec![pool.clone(); queues.into()], queues)?;
    let rx = (0..queues).map(|queue| port.take_rx(queue).unwrap()).collect();
    let tx = (0..queues).map(|queue| port.take_tx(queue, pool.clone()).unwrap()).collect();
    assert!(port.take_rx(0).is_err() && port.take_tx(0, pool.clone()).is_err());
    assert_eq!(port.wait_descriptors().len(), usize::from(queues));
    let peer_accepts_partial_checksums = port.peer_accepts_partial_checksums();
    let (doorbells, peer) = (port.doorbells, port.peer);
    Ok(Opened { pool, rx, tx, doorbells, peer_accepts_partial_checksums, peer })
}

/// Connects a server, the first result, and a client.
fn pair(buffer: u32, queues: u16) -> (Opened, Opened) {
    let folder = tempfile::tempdir().unwrap();
    let server = port(folder.path(), true, buffer);
    let server = std::thread::spawn(move || open(server, queues).unwrap());
    let client = open(port(folder.path(), false, buffer), queues).unwrap();
    let server = server.join().unwrap();
    assert!(!folder.path().join("m.sock").exists());
    (server, client)
}

fn content(index: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (index * 31 + n * 7 + n / 256) as u8).collect()
}

/// Sends a frame as a packet. Returns false if the queue is full.
fn send(end: &mut Opened, queue: usize, frame: &[u8]) -> bool {
    let mut packet = [Packet::EMPTY];
    assert_eq!(end.pool.allocate(&mut packet), 1);
    packet[0].length = frame.len() as u32;
    // SAFETY: the packet was just allocated, and is sent or freed once.
    unsafe {
        packet[0].bytes_mut().copy_from_slice(frame);
        match end.tx[queue].send(&packet).unwrap() {
            0 => {
                end.pool.free(&packet);
                false
            }
            _ => true,
        }
    }
}

fn receive(end: &mut Opened, queue: usize) -> Vec<Vec<u8>> {
    let mut packets = [Packet::EMPTY; 32];
    let count = end.rx[queue].receive(&mut packets).unwrap();
    // SAFETY: the packets were just received, and are freed once.
    let frames = packets[..count].iter().map(|packet| unsafe { packet.bytes() }.to_vec()).collect();
    // SAFETY: as above.
    unsafe { end.pool.free(&packets[..count]) };
    frames
}

fn receive_in_place(end: &mut Opened, queue: usize, most: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let count = end.rx[queue].receive_in_place(most, &mut |address, len| {
        // SAFETY: the frame is valid during the call, and the other end of this test does not change it.
        frames.push(unsafe { std::slice::from_raw_parts(address, len) }.to_vec());
        true
    });
    assert_eq!(count.unwrap(), Some(frames.len()));
    frames
}

/// Reserves memory and writes a frame there. Returns false if the queue is full.
fn write_in_place(end: &mut Opened, queue: usize, frame: &[u8]) -> bool {
    match end.tx[queue].reserve(frame.len()) {
        Reservation::Memory(address) => {
            // SAFETY: the memory was reserved for a frame of this length.
            unsafe { address.as_ptr().copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
            end.tx[queue].commit();
            true
        }
        Reservation::Full => false,
        Reservation::Unsupported => panic!("the buffers have {} bytes", frame.len()),
    }
}

#[test]
fn frames_arrive_once_and_in_order_whichever_way_they_are_sent() {
    let (mut server, mut client) = pair(4096, 2);
    for to_server in [true, false] {
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        for queue in 0..2 {
            let (mut sent, mut received) = (0, 0);
            while received < 3000 {
                while sent < 3000 {
                    let frame = content(sent, 1 + sent * 13 % 4000);
                    let done = match sent % 3 {
                        0 => write_in_place(from, queue, &frame),
                        _ => send(from, queue, &frame),
                    };
                    if !done {
                        break;
                    }
                    sent += 1;
                }
                from.tx[queue].flush().unwrap();
                let frames = match received % 2 {
                    0 => receive(to, queue),
                    _ => receive_in_place(to, queue, 5),
                };
                assert!(!frames.is_empty());
                for frame in frames {
                    assert!(frame == content(received, 1 + received * 13 % 4000), "frame {received}");
                    received += 1;
                }
            }
            assert_eq!(from.tx[queue].counters().packets, 3000);
            assert_eq!(to.rx[queue].counters().packets, 3000);
            assert_eq!(from.tx[queue].counters().bytes, to.rx[queue].counters().bytes);
        }
    }
    assert_eq!((server.pool.outstanding(), client.pool.outstanding()), (0, 0));
}

#[test]
fn a_frame_that_is_not_taken_stays_the_next_one() {
    let (mut server, mut client) = pair(2048, 1);
    for to_server in [true, false] {
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        (0..4).for_each(|n| assert!(send(from, 0, &content(n, 100))));
        let mut left = 2;
        let visited = to.rx[0].receive_in_place(10, &mut |_, _| {
            left -= 1;
            left >= 0
        });
        assert_eq!(visited.unwrap(), Some(2));
        assert_eq!(receive(to, 0), [content(2, 100), content(3, 100)]);
        assert!(receive_in_place(to, 0, 10).is_empty());
    }
}

#[test]
fn a_frame_longer_than_a_buffer_spans_several() {
    let (mut server, mut client) = pair(2048, 1);
    for to_server in [true, false] {
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        assert_eq!(from.tx[0].reserve(2049), Reservation::Unsupported);
        let mut sent = 0;
        while send(from, 0, &content(sent, 9000)) {
            sent += 1;
        }
        assert!(sent > 10);
        let mut frames = Vec::new();
        while frames.len() < sent {
            frames.extend(match frames.len() % 2 {
                0 => receive(to, 0),
                _ => receive_in_place(to, 0, 3),
            });
        }
        assert!(frames.iter().enumerate().all(|(index, frame)| *frame == content(index, 9000)));
        assert!(send(from, 0, &content(1, 9000)), "a refused frame took no buffer");
        assert_eq!(receive(to, 0), [content(1, 9000)]);
    }
}

#[test]
fn a_sleeping_reader_is_woken_and_a_polling_one_is_not() {
    let (mut server, mut client) = pair(2048, 1);
    for to_server in [true, false] {
        let (from, to) = if to_server { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let doorbell = to.doorbells[0].clone();
        let is_rung = || {
            let mut poll = [rustix::event::PollFd::new(&*doorbell, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut poll, Some(&rustix::event::Timespec::default())).unwrap() == 1
        };
        assert!(send(from, 0, b"polled") && !is_rung());
        assert!(!to.rx[0].begin_sleep(), "a packet is there");
        to.rx[0].end_sleep();
        assert_eq!(receive(to, 0), [b"polled"]);
        assert!(to.rx[0].begin_sleep() && !is_rung());
        assert!(send(from, 0, b"wakes") && is_rung());
        to.rx[0].end_sleep();
        assert!(!is_rung());
        assert!(send(from, 0, b"polled") && !is_rung());
        assert_eq!(receive(to, 0), [&b"wakes"[..], b"polled"]);
    }
}

#[test]
fn an_end_leaves_checksums_out_only_if_its_peer_has_announced_that() {
    let (server, client) = pair(2048, 1);
    // Only the server of these tests announces it.
    assert!(client.peer_accepts_partial_checksums && !server.peer_accepts_partial_checksums);
}

#[test]
fn a_peer_that_ends_is_noticed() {
    let (server, mut client) = pair(2048, 1);
    drop(server);
    let error = loop {
        let mut packets = [Packet::EMPTY; 4];
        match client.rx[0].receive(&mut packets) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.starts_with("port memif:test: the peer disappeared"), "{error}");
    assert!(matches!(client.tx[0].reserve(64), Reservation::Memory(_) | Reservation::Full));
}

#[test]
fn messages_are_kept_only_for_a_caller_that_takes_them() {
    let (server, client) = pair(2048, 1);
    let (server, client) = (server.peer.unwrap(), client.peer.unwrap());
    let (sent, mut other_end) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(client.send(&[1; PEER_MESSAGE], sent.as_fd()));
    drop(sent);
    assert!(server.receive().is_none());
    // The descriptor was closed, too.
    assert_eq!(std::io::Read::read(&mut other_end, &mut [0]).unwrap(), 0);

    server.channel.keep_messages();
    for message in 2..4 {
        assert!(client.send(&[message; PEER_MESSAGE], other_end.as_fd()));
    }
    client.channel.disconnect("the end");
    for message in 2..4 {
        assert_eq!(server.receive().unwrap().0, [message; PEER_MESSAGE]);
    }
    assert!(server.receive().is_none() && !server.channel.is_open(), "the disconnect is remembered");
}

#[test]
fn ends_that_do_not_agree_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (change, queues, expected) in [
        ((|settings| settings.secret = None) as fn(&mut MemifSettings), 1, "the secrets differ"),
        (|settings| settings.id = 8, 1, "id=7, not id=8"),
        (|_| {}, 2, "it has 1 queues"),
    ] {
        let mut server = port(folder.path(), true, 2048);
        server.settings.wait = Duration::from_millis(400);
        let server = std::thread::spawn(move || open(server, 1).err().unwrap().to_string());
        let mut client = port(folder.path(), false, 2048);
        change(&mut client.settings);
        client.settings.wait = Duration::from_millis(300);
        let error = open(client, queues).err().unwrap().to_string();
        assert!(error.contains("no peer connected within 0.3 s"), "{error}");
        let server = server.join().unwrap();
        assert!(error.contains(expected) || server.contains(expected), "{error}; {server}");
    }
    let client = port(folder.path(), false, 2048);
    let lonely = Memif::new(MemifSettings { wait: Duration::ZERO, ..client.settings });
    assert!(open(lonely, 1).err().unwrap().to_string().contains("role=server"));
}

/// Returns a server's port, its socket, and the socket of a hostile client.
fn attacked() -> (Memif, OwnedFd, OwnedFd) {
    let folder = tempfile::tempdir().unwrap();
    let kind = SocketType::SEQPACKET;
    let (server, client) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    (port(folder.path(), true, 2048), server, client)
}

/// Sends a message of memif whose first bytes are given, with a descriptor. Returns false if the peer is gone.
fn say(socket: &OwnedFd, kind: u16, fields: &[(usize, &[u8])], descriptor: Option<BorrowedFd<'_>>) -> bool {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut bytes = [0; 128];
    for (at, field) in [(0, &kind.to_ne_bytes()[..])].iter().chain(fields) {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if descriptor.is_some() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    sent.is_ok()
}

/// Sends the messages INIT and ADD_REGION. Returns the region.
fn begin_handshake(client: &OwnedFd) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags};
    say(client, 3, &[(2, &0x200u16.to_ne_bytes()), (4, &7u32.to_ne_bytes()), (9, b"word")], None);
    let memory =
        rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, 65536).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    say(client, 4, &[(4, &65536u64.to_ne_bytes())], Some(memory.as_fd()));
    memory
}

fn pools() -> [Arc<dyn Pool>; 1] {
    [Arc::new(HeapPool::new(16, 2048).unwrap())]
}

#[test]
fn a_client_that_never_completes_its_handshake_is_given_up() {
    let (mut port, server, client) = attacked();
    let hostile = std::thread::spawn(move || {
        let _memory = begin_handshake(&client);
        let doorbell = Doorbell::new().unwrap();
        while say(&client, 5, &[(2, &1u16.to_ne_bytes()), (12, &[3])], Some(doorbell.as_fd())) {
            let mut answer = [0; 128];
            let _ = rustix::net::recv(&client, &mut answer, rustix::net::RecvFlags::DONTWAIT);
        }
    });
    let why = port.configure_over(server, &pools(), Duration::from_millis(200)).unwrap_err();
    assert!(why.contains("in time") || why.contains("no message"), "{why}");
    hostile.join().unwrap();
}

#[test]
fn a_doorbell_that_could_block_is_refused() {
    let (mut port, server, client) = attacked();
    let _memory = begin_handshake(&client);
    let (pipe, _writer) = std::io::pipe().unwrap();
    say(&client, 5, &[(2, &1u16.to_ne_bytes()), (12, &[3])], Some(pipe.as_fd()));
    let why = port.configure_over(server, &pools(), Duration::from_secs(20)).unwrap_err();
    assert_eq!(why, "a ring's descriptor is no eventfd");
}

#[test]
fn a_doorbell_whose_peer_makes_it_block_is_not_awaited() {
    let shared = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let doorbell = Doorbell::received(shared.try_clone().unwrap()).unwrap();
    doorbell.clear();
    let full = u64::MAX - 1;
    assert_eq!(rustix::io::write(&shared, &full.to_ne_bytes()), Ok(8));
    doorbell.ring();
    doorbell.clear();
    doorbell.ring();
    let mut counter = [0; 8];
    assert_eq!(rustix::io::read(&shared, &mut counter), Ok(8));
    assert_eq!(u64::from_ne_bytes(counter), 1);
}
