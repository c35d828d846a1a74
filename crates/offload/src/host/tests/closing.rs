//! Programs send descriptors to the engine whose close blocks. The engine must not wait for it.

use super::*;
use crate::host::closer::Closer;
use crate::host::permits::Kind;
use inlane_offload_protocol::message;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, RawFd};
use std::time::Instant;

/// A TCP connection of the kernel whose close blocks until the peer is dropped, and its peer.
struct Lingering {
    socket: Option<OwnedFd>,
    _peer: TcpStream,
}

impl Lingering {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut socket, &[0; 65536]).is_ok() {}
        let linger = Duration::from_secs(30);
        rustix::net::sockopt::set_socket_linger(&socket, Some(linger)).unwrap();
        Self { socket: Some(socket.into()), _peer: peer }
    }

    fn fd(&self) -> RawFd {
        self.socket.as_ref().unwrap().as_raw_fd()
    }

    /// Sends a message with `count` descriptors. The last one is that of the socket.
    fn send(&self, to: &OwnedFd, bytes: &[u8], count: usize) {
        let null = std::fs::File::open("/dev/null").unwrap();
        let mut descriptors = vec![null.as_fd(); count - 1];
        descriptors.push(self.socket.as_ref().unwrap().as_fd());
        let mut space = vec![std::mem::MaybeUninit::uninit(); 2048];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let part = [std::io::IoSlice::new(bytes)];
        rustix::net::sendmsg(to, &part, &mut control, SendFlags::DONTWAIT).unwrap();
    }

    /// Closes the descriptor, so that only the descriptors in flight are left.
    fn leave(&mut self) {
        self.socket = None;
    }
}

/// Runs `act` and the engine. Checks that this does not block although something is closed whose close blocks. The close
/// ends when `act` has returned and its result is dropped.
fn check(bench: &mut Bench, what: &str, act: impl FnOnce(&mut Bench) -> Lingering) {
    bench.wait_until_closed();
    let start = Instant::now();
    let lingering = act(bench);
    bench.turn();
    assert!(start.elapsed() < Duration::from_secs(5), "{what}: the engine waited {:?}", start.elapsed());
    assert!(bench.engine.closer.unclosed() > 0, "{what}: the descriptor was not received");
    drop(lingering);
    bench.wait_until_closed();
}

/// Returns both ends of a connection within the engine: that of the client, and that of the server.
fn connection(bench: &mut Bench, listener: &OwnedFd) -> (OwnedFd, OwnedFd) {
    let client = bench.connecting("127.0.0.1:8080").1.unwrap();
    bench.turn();
    let server = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
    (client, server)
}

#[test]
fn descriptors_with_requests_are_closed_elsewhere() {
    let mut bench = Bench::new(100);
    let mut request = Message::new(Operation::Kernel);
    request.local = Some("10.0.0.1:80".parse().unwrap());
    for (what, bytes, count, disconnected) in [
        ("request", &request.encode()[..], 1, false),
        ("request with two descriptors", &request.encode(), 2, false),
        ("request with many descriptors", &request.encode(), 253, true),
        ("no request", b"x", 1, true),
        ("long message", &[0; 1000], 2, true),
        ("another version", &[1; message::LEN], 1, true),
    ] {
        let client = client(&mut bench);
        check(&mut bench, what, |_| {
            let mut lingering = Lingering::new();
            lingering.send(&client, bytes, count);
            lingering.leave();
            lingering
        });
        assert_eq!(pair::hung_up(client.as_raw_fd()), disconnected, "{what}");
    }
    // The engine disconnects a client before it reads the client's second message.
    let client = client(&mut bench);
    check(&mut bench, "unread message", |_| {
        let mut lingering = Lingering::new();
        pair::send(client.as_raw_fd(), b"no request", &[]).unwrap();
        lingering.send(&client, b"", 1);
        lingering.leave();
        lingering
    });
}

#[test]
fn messages_without_descriptors_need_no_other_thread() {
    let mut bench = Bench::new(100);
    bench.wait_until_closed();
    // The engine disconnects the client after its first message, and drops the others.
    let client = client(&mut bench);
    for bytes in [&b"no request"[..], b"", b"third message"] {
        pair::send(client.as_raw_fd(), bytes, &[]).unwrap();
    }
    bench.turn();
    assert_eq!((bench.engine.control.clients(), bench.engine.closer.unclosed()), (0, 0));
    // A request about a connection that has ended.
    let ended = Message::new(Operation::Addresses);
    let (own, other) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(other);
    let client = self::client(&mut bench);
    pair::send_descriptor(client.as_raw_fd(), &ended.encode(), Some(own.as_raw_fd())).unwrap();
    bench.turn();
    let mut bytes = [0; message::LEN];
    pair::receive(client.as_raw_fd(), &mut bytes).unwrap();
    let reply = Message::decode(&bytes).unwrap();
    assert_eq!((reply.status, bench.engine.closer.unclosed()), (libc::EBADF, 0));
}

#[test]
fn a_client_counts_until_it_is_closed() {
    let mut bench = Bench::new(100);
    let process = std::process::id() as i32;
    let client = client(&mut bench);
    let mut lingering = Lingering::new();
    pair::send(client.as_raw_fd(), b"no request", &[]).unwrap();
    lingering.send(&client, b"second message", 1);
    lingering.leave();
    bench.turn();
    let table = bench.engine.control.permits.clone();
    let admit = || table.admit(Kind::Client, process, 1000, 1 << 20);
    let permits: Vec<_> = std::iter::from_fn(admit).collect();
    assert_eq!((permits.len(), bench.engine.control.clients()), (1023, 0));
    drop(lingering);
    bench.wait_until_closed();
    // The thread drops the permit after it has closed the descriptor.
    let start = Instant::now();
    while admit().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn descriptors_in_pairs_of_connections_are_closed_elsewhere() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("127.0.0.1:8080");
    let (client, server) = connection(&mut bench, &listener);
    let mut bytes = [0; 64];
    check(&mut bench, "bytes of a connection", |_| {
        let mut lingering = Lingering::new();
        lingering.send(&client, b"bytes", 253);
        lingering.leave();
        lingering
    });
    bench.turn();
    assert_eq!(pair::receive(server.as_raw_fd(), &mut bytes).unwrap(), 5);
    // The server does not read, so the client's bytes stay in its pair. Then the server resets the connection.
    check(&mut bench, "unread bytes of a reset connection", |bench| {
        let mut lingering = Lingering::new();
        for _ in 0..100 {
            while pair::send_descriptor(client.as_raw_fd(), &[7; 10_000], Some(lingering.fd())).is_ok() {}
            bench.turn();
        }
        bench.wait_until_closed();
        lingering.leave();
        drop(server);
        lingering
    });
    // A program writes into the pair of a connection that is being established.
    check(&mut bench, "bytes before the connection is established", |bench| {
        let client = bench.connecting("127.0.0.1:8080").1.unwrap();
        pair::set_option(&client, libc::SO_SNDBUF, 100_000).unwrap();
        let mut lingering = Lingering::new();
        lingering.send(&client, b"bytes", 1);
        lingering.leave();
        lingering
    });
}

#[test]
fn descriptors_in_other_pairs_are_closed_elsewhere() {
    let mut bench = Bench::new(100);
    let bound = bench.bound("127.0.0.1:0").1.unwrap();
    let listeners = ["127.0.0.1:8080", "127.0.0.1:8081"].map(|address| bench.listening(address));
    for listener in &listeners {
        // The pair of a listener is full. A hostile program can change that.
        pair::set_option(listener, libc::SO_SNDBUF, 200_000).unwrap();
    }
    for (what, end) in [("bound socket", &bound), ("listener", &listeners[0])] {
        check(&mut bench, what, |_| {
            let mut lingering = Lingering::new();
            lingering.send(end, b"bytes", 1);
            lingering.leave();
            lingering
        });
    }
    assert_eq!(bench.engine.stack.sockets.len(), 2, "the listener is removed");
    let [_, listener] = listeners;
    for end in [bound, listener] {
        check(&mut bench, "unread bytes of a closed socket", |_| {
            let mut lingering = Lingering::new();
            for _ in 0..100 {
                pair::send(end.as_raw_fd(), b"x", &[]).unwrap();
            }
            lingering.send(&end, b"bytes", 1);
            lingering.leave();
            drop(end);
            lingering
        });
    }
    let mut bind = Message::new(Operation::Bind);
    (bind.local, bind.datagrams) = (Some("127.0.0.1:0".parse().unwrap()), true);
    let end = bench.ask(bind, None).1.unwrap();
    check(&mut bench, "UDP socket", |_| {
        let mut lingering = Lingering::new();
        lingering.send(&end, b"bytes", 1);
        lingering.leave();
        lingering
    });
    check(&mut bench, "unread messages of a closed UDP socket", |_| {
        let mut lingering = Lingering::new();
        rustix::net::send(&end, b"", SendFlags::empty()).unwrap();
        lingering.send(&end, b"", 1);
        lingering.leave();
        drop(end);
        lingering
    });
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 0);
}

/// The engine then takes no further descriptors, except those that its requests need.
#[test]
fn a_full_closer_costs_only_those_who_send_descriptors() {
    let mut bench = Bench::new(100);
    bench.engine.closer = Closer::with_room(0, 1 << 20);
    let listener = bench.listening("127.0.0.1:8080");
    let (client_end, server_end) = connection(&mut bench, &listener);
    let (other_client, other_server) = connection(&mut bench, &listener);
    let (friend, enemy) = (client(&mut bench), client(&mut bench));
    let mut lingering = Lingering::new();
    check(&mut bench, "bytes of a connection", |_| {
        lingering.send(&client_end, b"bytes", 1);
        lingering.leave();
        lingering
    });
    let asking = Asking { own: libc::getsockname, peer: libc::getpeername };
    assert_eq!(End::of(server_end.as_raw_fd(), asking), End::Failed(libc::ECONNRESET));
    for (count, enemy) in [(1, enemy), (2, client(&mut bench)), (253, client(&mut bench))] {
        let mut lingering = Lingering::new();
        check(&mut bench, "request", |_| {
            lingering.send(&enemy, &Message::new(Operation::Kernel).encode(), count);
            lingering.leave();
            lingering
        });
        assert!(pair::hung_up(enemy.as_raw_fd()), "{count} descriptors");
    }
    // Other programs notice nothing.
    let mut question = Message::new(Operation::Addresses);
    question.name = 7;
    let fd = Some(other_client.as_raw_fd());
    pair::send_descriptor(friend.as_raw_fd(), &question.encode(), fd).unwrap();
    pair::send(other_client.as_raw_fd(), b"bytes", &[]).unwrap();
    bench.turn();
    let mut bytes = [0; 600];
    let len = pair::receive(friend.as_raw_fd(), &mut bytes).unwrap();
    assert!(Message::decode(&bytes[..len]).unwrap().local.is_some());
    assert_eq!(pair::receive(other_server.as_raw_fd(), &mut bytes).unwrap(), 5);
}

/// A user whose use of the engine is limited. The test's own process may run as root, which has no limit.
const USER: u32 = 70_001;

/// Waits until the peer of `end` is closed.
fn wait_for_close(end: &std::os::unix::net::UnixStream) {
    let start = Instant::now();
    while !pair::hung_up(end.as_raw_fd()) {
        assert!(start.elapsed() < Duration::from_secs(20), "the descriptor is not closed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until only `count` descriptors are left that are not closed.
fn wait_until_left(closer: &Closer, count: usize) {
    let start = Instant::now();
    while closer.unclosed() != count {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{} descriptors are not closed",
            closer.unclosed()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn closes_of_one_user_that_block_do_not_delay_those_of_others() {
    let closer = Closer::with_room(1000, 1 << 20);
    let hostile = closer.of_user(USER);
    // Far more than there are threads.
    let mut lingering: Vec<_> = (0..100).map(|_| Lingering::new()).collect();
    for lingering in &mut lingering {
        hostile.close(lingering.socket.take().into_iter().collect(), None);
    }
    for user in [USER + 1, USER + 2, 0] {
        for _ in 0..3 {
            let (own, other) = std::os::unix::net::UnixStream::pair().unwrap();
            closer.of_user(user).close(vec![other.into()], None);
            wait_for_close(&own);
        }
    }
    wait_until_left(&closer, 100);
    // The next batches of the same user are closed when those before them are.
    let (own, other) = std::os::unix::net::UnixStream::pair().unwrap();
    hostile.close(vec![other.into()], None);
    drop(lingering);
    wait_for_close(&own);
}

#[test]
fn a_user_cannot_fill_the_closer_for_others() {
    let mut bench = Bench::new(100);
    bench.engine.closer = Closer::with_room(8, 1 << 20);
    let (mut connections, mut lingering) = (Vec::new(), Vec::new());
    for (user, address) in [(USER, "127.0.0.1:8080"), (USER + 1, "127.0.0.1:8081")] {
        bench.user = user;
        let listener = bench.listening(address);
        let client = bench.connecting(address).1.unwrap();
        bench.turn();
        let server = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
        connections.push((listener, client, server));
    }
    bench.wait_until_closed();
    let mut send = |bench: &mut Bench, index: usize| {
        lingering.push(Lingering::new());
        let last = lingering.last_mut().unwrap();
        let (_, client, server): &(OwnedFd, OwnedFd, OwnedFd) = &connections[index];
        last.send(client, b"bytes", 1);
        last.leave();
        bench.turn();
        pair::receive(server.as_raw_fd(), &mut [0; 64]).ok()
    };
    for _ in 0..4 {
        assert_eq!(send(&mut bench, 0), Some(5));
    }
    // The first user holds half of the room. The others get as much as is left.
    assert!(bench.engine.closer.of_user(USER).is_full() && !bench.engine.closer.of_user(USER + 1).is_full());
    assert_eq!(send(&mut bench, 0), Some(0), "the connection is reset");
    assert_eq!(send(&mut bench, 1), Some(5));
    wait_until_left(&bench.engine.closer, 6);
    drop(lingering);
    bench.wait_until_closed();
    assert!(!bench.engine.closer.of_user(USER).is_full());
}

/// A program could otherwise keep the socket for as long as the closer is full: its own end waits in the pair.
#[test]
fn bound_sockets_and_listeners_end_if_the_closer_is_full() {
    let mut bench = Bench::new(100);
    bench.engine.closer = Closer::with_room(0, 1 << 20);
    let bound = bench.bound("127.0.0.1:0").1.unwrap();
    let listener = bench.listening("127.0.0.1:8080");
    pair::set_option(&listener, libc::SO_SNDBUF, 200_000).unwrap();
    for end in [bound, listener] {
        pair::send_descriptor(end.as_raw_fd(), b"x", Some(end.as_raw_fd())).unwrap();
    }
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 0);
    bench.wait_until_closed();
    assert_eq!(bench.bound("127.0.0.1:8080").0.status, 0);
}

#[test]
fn a_user_cannot_use_up_the_descriptors_of_the_engine() {
    let mut bench = Bench::new(100_000);
    let permits = bench.engine.control.permits.clone();
    let mut held = Vec::new();
    let mut open = |user| {
        let before = held.len();
        for process in 0.. {
            // Each process may have more sockets than there are descriptors. A socket takes two.
            let room = 3000usize.saturating_sub(2 * held.len());
            match permits.admit(Kind::Socket, process / 100, user, room) {
                Some(permit) => held.push(permit),
                None => break,
            }
        }
        held.len() - before
    };
    let counts = [USER, USER + 1, USER + 2, 0, USER + 3, 0].map(&mut open);
    assert_eq!(counts, [1000, 334, 111, 55, 0, 0], "root gets the rest");
    drop(held);
    // Descriptors with numbers that are reserved for the closer are refused to everybody.
    bench.engine.closer = Closer::with_room(100, 0);
    for user in [USER, 0] {
        bench.user = user;
        assert_eq!(bench.bound("10.0.0.1:0").0.status, libc::ENFILE);
    }
    bench.engine.closer = Closer::with_room(100, 1 << 20);
    assert_eq!(bench.bound("10.0.0.1:0").0.status, 0);
}

#[test]
fn a_bound_socket_that_connects_counts_its_duplicate() {
    let mut bench = Bench::new(100_000);
    bench.engine.closer = Closer::with_room(100, 5000);
    let connect = |bench: &mut Bench, end: &OwnedFd| {
        let mut message = Message::new(Operation::Connect);
        message.remote = Some("10.0.0.2:80".parse().unwrap());
        bench.ask(message, Some(end.try_clone().unwrap())).0.status
    };
    let ends = [USER, USER, USER + 1].map(|user| {
        bench.user = user;
        bench.bound("10.0.0.1:0").1.unwrap()
    });
    let permits = bench.engine.control.permits.clone();
    let admit = || permits.admit(Kind::Duplicate, 1, USER, 5000);
    // With the two sockets and one more descriptor, the user has its share.
    let mut held: Vec<_> = std::iter::from_fn(admit).collect();
    held.truncate(4998 - 1);
    bench.user = USER;
    assert_eq!(connect(&mut bench, &ends[0]), libc::ENFILE);
    // The socket stays bound, and other users notice nothing.
    bench.user = USER + 1;
    assert_eq!(connect(&mut bench, &ends[2]), 0);
    bench.user = USER;
    drop(held);
    assert_eq!(connect(&mut bench, &ends[0]), 0);
    // The duplicate counts while the connection is being established.
    let held: Vec<_> = std::iter::from_fn(admit).collect();
    assert_eq!(held.len(), 5000 - 3);
}

#[test]
fn a_user_cannot_use_up_the_clients() {
    let bench = Bench::new(100);
    let permits = bench.engine.control.permits.clone();
    let admit = |process, user| permits.admit(Kind::Client, process, user, 1 << 20);
    let hostile: Vec<_> =
        (0..40).flat_map(|process| std::iter::from_fn(move || admit(process, USER))).collect();
    assert_eq!(hostile.len(), 8192);
    let second: Vec<_> =
        (100..140).flat_map(|process| std::iter::from_fn(move || admit(process, USER + 1))).collect();
    assert_eq!(second.len(), 4096);
    assert!(admit(200, USER + 2).is_some() && admit(201, 0).is_some());
}

#[test]
fn a_connection_counts_until_its_end_is_closed() {
    let mut bench = Bench::new(3);
    bench.engine.closer = Closer::with_room(0, 1 << 20);
    let listener = bench.listening("127.0.0.1:8080");
    let (client, server) = connection(&mut bench, &listener);
    let mut lingering = Lingering::new();
    lingering.send(&client, b"bytes", 1);
    lingering.leave();
    drop((client, server));
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 1);
    // The end of the server may also pass through the closer, but its close does not block.
    let start = Instant::now();
    while bench.engine.closer.unclosed() > 1 {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    let _second = bench.bound("127.0.0.1:0").1.unwrap();
    assert_eq!(bench.bound("127.0.0.1:0").0.status, libc::ENFILE);
    drop(lingering);
    bench.wait_until_closed();
    // The thread drops the permit after it has closed the descriptor.
    let start = Instant::now();
    while bench.bound("127.0.0.1:0").0.status != 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
