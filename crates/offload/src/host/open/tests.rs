//! Tests connections over socket pairs that a program has created. The program may be hostile.

use super::super::control::{Client, Request};
use super::super::tests::{Bench, client};
use super::*;
use crate::host::area::SharedArea;
use crate::lock;
use crate::stack::arena::Key;
use inlane_offload_protocol::name::{Asking, SocketKind, SocketName};
use inlane_offload_protocol::slots::SLOTS;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

const ASKING: Asking = Asking { own: libc::getsockname, peer: libc::getpeername };
const ADDRESS: &str = "127.0.0.1:8080";

/// A socket pair as the preloaded library prepares it. The library fills its send buffer: `filled` is the
/// number of these bytes.
pub(in crate::host) struct Pair {
    engine: OwnedFd,
    pub program: OwnedFd,
    filled: i32,
}

impl Pair {
    pub fn new() -> Self {
        let name = SocketName {
            engine: u64::from(std::process::id()),
            socket: super::super::random_bytes().map(u64::from_ne_bytes).unwrap(),
            kind: SocketKind::StreamV4,
            local: "0.0.0.0:0".parse().unwrap(),
            remote: Some(ADDRESS.parse().unwrap()),
        };
        let (engine, program) = pair::create(&name).unwrap();
        pair::set_option(&program, libc::SO_SNDBUF, 1).unwrap();
        let mut filled = 0;
        while let Ok(sent) = pair::send(program.as_raw_fd(), &[7; 8192], &[]) {
            filled += sent as i32;
        }
        Self { engine, program, filled }
    }

    /// Asks the engine over the control connection `client` to connect the socket pair.
    pub fn send(&self, client: &OwnedFd, remote: SocketAddr) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let mut open = Message::new(Operation::Open);
        (open.remote, open.number) = (Some(remote), self.filled);
        let mut space = [std::mem::MaybeUninit::uninit(); 64];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let ends = [self.engine.as_fd(), self.program.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&ends)));
        let bytes = open.encode();
        rustix::net::sendmsg(client, &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::DONTWAIT)
            .unwrap();
    }

    /// Asks the engine to connect the socket pair. Returns the program's end.
    fn open(self, bench: &mut Bench, user: u32, remote: &str) -> OwnedFd {
        let kept = self.program.try_clone().unwrap();
        request(bench, user, remote, self.filled, (Some(self.engine), Some(self.program)));
        kept
    }
}

fn request(
    bench: &mut Bench,
    user: u32,
    remote: &str,
    filled: i32,
    ends: (Option<OwnedFd>, Option<OwnedFd>),
) {
    let (fd, _) = UnixStream::pair().unwrap();
    let client = Arc::new(Client::new(fd.into(), 1, bench.engine.closer.of_user(user), None));
    let mut message = Message::new(Operation::Open);
    (message.remote, message.number) = (Some(remote.parse().unwrap()), filled);
    let mut request = Request::new(message, [ends.0, ends.1], &client);
    bench.engine.process(bench.now, &mut request);
}

/// Returns true if `fd` has exactly these events now.
fn ready(fd: &OwnedFd, events: i16) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents == events }
}

/// Runs the engine until `done` returns true, but for at most a minute of simulated time.
fn turn_until(bench: &mut Bench, mut done: impl FnMut() -> bool) {
    while !done() {
        assert!(bench.now < 60_000_000_000, "the engine does not get there");
        bench.turn();
    }
}

/// Runs the engine until it holds no sockets. Checks that no other state of the sockets is left.
fn ends_empty(bench: &mut Bench) {
    while bench.engine.stack.sockets.len() > 0 {
        assert!(bench.now < 60_000_000_000, "sockets are left");
        bench.turn();
    }
    assert_eq!(
        bench.engine.by_cookie.len() + bench.engine.stack.flows.len() + bench.engine.stack.ports.len(),
        0
    );
}

/// A hostile program asks for kept pairs of slots that have none, or that do not exist.
#[test]
fn a_request_for_a_kept_pair_that_does_not_exist_is_refused() {
    let mut bench = Bench::new(8);
    let (fd, _peer) = UnixStream::pair().unwrap();
    let client = Arc::new(Client::new(fd.into(), 1, bench.engine.closer.of_user(0), None));
    let area = Arc::new(SharedArea::new(1, 0, 4096).unwrap().0);
    for has_area in [false, true] {
        *lock(&client.area) = has_area.then(|| area.clone());
        for level in [1, 2, SLOTS as i32, SLOTS as i32 + 1, -1, i32::MAX, i32::MIN] {
            let life = usize::try_from(level.wrapping_sub(1)).ok().and_then(|index| area.area().slot(index));
            life.iter().for_each(|slot| slot.life().begin(1));
            let kept = life.is_some_and(|slot| slot.life().accept(1) && slot.life().close());
            assert!(!kept || life.is_some_and(|slot| slot.life().keep() && slot.life().ask()));
            let mut message = Message::new(Operation::Open);
            (message.remote, message.number, message.level) = (Some(ADDRESS.parse().unwrap()), 8, level);
            let mut request = Request::new(message, [None, None], &client);
            let (reply, _) = bench.engine.process(bench.now, &mut request);
            assert_eq!((reply.status, area.is_full()), (libc::EBADF, false), "{level}");
        }
    }
    assert_eq!(bench.engine.stack.sockets.len(), 0);
    let reserved = (0..SLOTS).map_while(|_| area.reserve(Key::from_u64(1)));
    assert_eq!(reserved.count(), SLOTS, "a request has left a slot reserved");
}

#[test]
fn a_pair_of_the_program_becomes_a_connection() {
    let mut bench = Bench::new(8);
    let listener = bench.listening(ADDRESS);
    let client = Pair::new().open(&mut bench, 0, ADDRESS);
    assert!(!ready(&client, libc::POLLOUT), "the connection is not established yet");
    let mut question = Message::new(Operation::Addresses);
    question.remote = None;
    let (reply, _) = bench.ask(question, Some(client.try_clone().unwrap()));
    let local = reply.local.unwrap();
    assert_eq!((local.ip().to_string(), reply.remote), ("127.0.0.1".into(), Some(ADDRESS.parse().unwrap())));
    assert_ne!(local.port(), 0);
    turn_until(&mut bench, || ready(&client, libc::POLLOUT) && ready(&listener, libc::POLLIN));
    let server = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
    // The peer must receive none of the filler bytes. The send buffer of the socket pair has its usual size
    // again, so one send accepts all of `data`.
    let data = [1; 30_000];
    assert_eq!(pair::send(client.as_raw_fd(), &data, &[]).unwrap(), data.len());
    let (mut received, mut buffer) = (Vec::new(), [0; 40_000]);
    turn_until(&mut bench, || {
        let len = pair::receive(server.as_raw_fd(), &mut buffer).unwrap_or(0);
        received.extend_from_slice(&buffer[..len]);
        received.len() >= data.len()
    });
    assert!(received == data);
    // Close the server's socket while one byte is unread. This resets the connection and removes it from the
    // engine. The engine's end of the socket pair must then have a name with the error and the connection's
    // local address.
    pair::send(client.as_raw_fd(), &[2], &[]).unwrap();
    turn_until(&mut bench, || ready(&server, libc::POLLIN));
    drop(server);
    turn_until(&mut bench, || End::of(client.as_raw_fd(), ASKING) != End::Unnamed);
    assert_eq!(End::of(client.as_raw_fd(), ASKING), End::Failed(libc::ECONNRESET));
    assert_eq!(End::local_address(client.as_raw_fd(), ASKING), Some(local));
    drop((client, listener));
    ends_empty(&mut bench);
}

#[test]
fn a_program_that_closes_its_end_at_once_leaves_nothing() {
    let mut bench = Bench::new(8);
    let listener = bench.listening(ADDRESS);
    drop(Pair::new().open(&mut bench, 0, ADDRESS));
    bench.turn();
    drop(listener);
    ends_empty(&mut bench);
}

#[test]
fn failures_reach_the_program_through_its_end() {
    let mut bench = Bench::new(2);
    let listener = bench.listening(ADDRESS);
    for (remote, error) in [("192.0.2.1:80", libc::ENETUNREACH), ("127.0.0.1:0", libc::ECONNREFUSED)] {
        // Open two sockets for each error. The engine's ends of both pairs contain the same errno in their
        // names. The names must still differ.
        for end in [(); 2].map(|()| Pair::new().open(&mut bench, 0, remote)).iter() {
            assert!(pair::hung_up(end.as_raw_fd()), "{remote}");
            assert_eq!(End::of(end.as_raw_fd(), ASKING), End::Failed(error), "{remote}");
        }
    }
    let refused = Pair::new().open(&mut bench, 0, "127.0.0.1:9");
    turn_until(&mut bench, || End::of(refused.as_raw_fd(), ASKING) != End::Unnamed);
    assert_eq!(End::of(refused.as_raw_fd(), ASKING), End::Failed(libc::ECONNREFUSED));
    let first = Pair::new().open(&mut bench, 0, ADDRESS);
    let second = Pair::new().open(&mut bench, 0, ADDRESS);
    assert_eq!(End::of(first.as_raw_fd(), ASKING), End::Unnamed);
    assert_eq!(End::of(second.as_raw_fd(), ASKING), End::Failed(libc::ENFILE));
    drop((first, second, refused, listener));
    ends_empty(&mut bench);
}

#[test]
fn ends_of_other_users_and_wrong_ends_are_refused() {
    let mut bench = Bench::new(8);
    let listener = bench.listening(ADDRESS);
    let sockets = bench.engine.stack.sockets.len();
    // The engine must refuse the ends of a socket pair that another user has created. That user's program
    // could keep a descriptor of the engine's end and block the engine.
    // SAFETY: the call has no preconditions.
    let other = unsafe { libc::geteuid() } + 1;
    let end = Pair::new().open(&mut bench, other, ADDRESS);
    bench.wait_until_closed();
    assert!(pair::hung_up(end.as_raw_fd()));
    assert!(!is_trusted(super::super::permits::OVERFLOW_USER) && is_trusted(0));
    // Descriptors that are not the ends of a socket pair. The engine must refuse them.
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let tcp = || OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let good = Pair::new();
    for (end, program) in [
        (None, None),
        (Some(file()), None),
        (Some(file()), Some(file())),
        (Some(tcp()), Some(tcp())),
        (Some(good.engine.try_clone().unwrap()), None),
        (Some(good.engine.try_clone().unwrap()), Some(file())),
    ] {
        request(&mut bench, 0, ADDRESS, good.filled, (end, program));
        assert_eq!(bench.engine.stack.sockets.len(), sockets);
    }
    for filled in [-1, i32::MAX] {
        let pair = Pair { filled, ..Pair::new() };
        let end = pair.open(&mut bench, 0, ADDRESS);
        assert!(pair::hung_up(end.as_raw_fd()));
    }
    // Ends that do not form a pair: the same end twice, the ends in the wrong order, and ends of two socket
    // pairs. In the last two cases, one end is the program's end of another connection.
    let copy = |end: &OwnedFd| Some(end.try_clone().unwrap());
    let open = Pair::new().open(&mut bench, 0, ADDRESS);
    let again = Pair::new();
    for ends in [
        (copy(&good.engine), copy(&good.engine)),
        (copy(&good.program), copy(&good.program)),
        (copy(&good.program), copy(&good.engine)),
        (copy(&again.engine), copy(&good.program)),
        (copy(&again.engine), copy(&open)),
        (copy(&open), copy(&good.program)),
    ] {
        request(&mut bench, 0, ADDRESS, good.filled, ends);
        assert_eq!(bench.engine.stack.sockets.len(), sockets + 1);
    }
    // The engine must accept a pair once and refuse the repetition.
    for _ in 0..2 {
        request(&mut bench, 0, ADDRESS, good.filled, (copy(&good.engine), copy(&good.program)));
        assert_eq!(bench.engine.stack.sockets.len(), sockets + 2);
    }
    bench.turn();
    drop((open, good, again, listener));
    ends_empty(&mut bench);
}

/// A program opens a connection and passes it to another program, whose client the engine serves first.
#[test]
fn a_request_of_another_client_waits_until_the_socket_is_opened() {
    let mut bench = Bench::new(8);
    let listener = bench.listening(ADDRESS);
    let (opener, other) = (client(&mut bench), client(&mut bench));
    let pair = Pair::new();
    let end = pair.program.try_clone().unwrap();
    pair::send(other.as_raw_fd(), &Message::new(Operation::Kernel).encode(), &[]).unwrap();
    // A request that ends the turn of its client.
    pair::send(opener.as_raw_fd(), &Message::new(Operation::Start).encode(), &[]).unwrap();
    pair.send(&opener, ADDRESS.parse().unwrap());
    drop(pair);
    let mut option = Message::new(Operation::SetOption);
    (option.level, option.name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    option.set_value(&1i32.to_ne_bytes());
    let addresses = Message::new(Operation::Addresses);
    for message in [option, addresses] {
        pair::send_descriptor(other.as_raw_fd(), &message.encode(), Some(end.as_raw_fd())).unwrap();
    }
    let mut bytes = [0; 600];
    let mut rounds = 0;
    let len = loop {
        bench.engine.round(bench.now).unwrap();
        rounds += 1;
        match pair::receive(other.as_raw_fd(), &mut bytes) {
            Ok(len) => break len,
            Err(_) => assert!(rounds < 10),
        }
    };
    let reply = Message::decode(&bytes[..len]).unwrap();
    assert_eq!((reply.status, reply.remote), (0, Some(ADDRESS.parse().unwrap())));
    let mut question = Message::new(Operation::GetOption);
    (question.level, question.name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let (reply, _) = bench.ask(question, Some(end.try_clone().unwrap()));
    assert_eq!(reply.value(), 1i32.to_ne_bytes());
    // The engine answers soon if nobody opens the socket, and then does not wait any more.
    let never = Pair::new();
    pair::send_descriptor(other.as_raw_fd(), &addresses.encode(), Some(never.program.as_raw_fd())).unwrap();
    for _ in 0..4 {
        bench.engine.round(bench.now).unwrap();
        bench.now += 5_000_000;
    }
    let len = pair::receive(other.as_raw_fd(), &mut bytes).unwrap();
    assert_eq!(Message::decode(&bytes[..len]).unwrap().status, libc::EBADF);
    assert!(!bench.engine.owes_reply());
    drop((listener, end));
}
