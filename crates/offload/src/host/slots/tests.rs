mod kept;

use super::super::pair;
use super::super::tests::Bench;
use super::*;
use inlane_offload_protocol::name::{SOCKET_LEN, SocketName};
use inlane_offload_protocol::slots::{SLOTS, Slot};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

#[test]
fn each_user_gets_a_share() {
    let (first, second) = (70_001, 70_002);
    let most_of = |user, others| (0..).find(|&own| !has_share(user, own, own + others, 128)).unwrap();
    assert_eq!((most_of(first, 0), most_of(second, 64)), (64, 32));
    assert_eq!((most_of(0, 0), most_of(0, 100)), (128, 28));
}

/// A program has more connections than slots, and the first ones are idle.
#[test]
fn an_idle_connection_gives_its_slot_to_a_busy_one() {
    let mut bench = Bench::polling(400);
    bench.user = 0;
    let listener = bench.listening("127.0.0.1:8080");
    let program = bench.client(1);
    let mut ends = Vec::new();
    let mut adopt = |bench: &mut Bench, has_area| {
        let client = bench.connecting("127.0.0.1:8080").1.unwrap();
        bench.turn();
        let mut record = [0; SOCKET_LEN];
        let server = pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap().1.unwrap();
        let mut message = Message::new(Operation::Adopt);
        message.number = i32::from(has_area);
        let reply = bench.ask_over(&program, message, client.try_clone().unwrap());
        // Each use of a connection prolongs the time for which it keeps its slot.
        ends.push((client, server));
        for (client, _) in &ends {
            pair::send(client.as_raw_fd(), b"x", &[]).unwrap();
        }
        bench.turn();
        reply.status
    };
    for index in 0..SLOTS {
        assert_eq!(adopt(&mut bench, index > 0), 0);
    }
    assert_eq!(adopt(&mut bench, true), libc::ENOBUFS, "all connections have just got their slots");
    bench.now += 2 * UNUSED_NS;
    assert_eq!(adopt(&mut bench, true), 0);
    let slots = |bench: &Bench| {
        let pairs = bench.engine.stack.sockets.iter().map(|(_, socket)| &socket.attachment.pair);
        pairs.filter(|pair| matches!(pair, Pair::Stream(pair) if pair.direct.is_some())).count()
    };
    assert_eq!(slots(&bench), SLOTS);
    // All connections still carry data.
    for (client, server) in &ends {
        pair::send(client.as_raw_fd(), b"there", &[]).unwrap();
        pair::send(server.as_raw_fd(), b"back", &[]).unwrap();
    }
    bench.turn();
    for (client, server) in &ends {
        let mut bytes = [0; 256];
        let len = pair::receive(server.as_raw_fd(), &mut bytes).unwrap();
        assert!(bytes[..len].ends_with(b"xthere"), "{:?}", &bytes[..len]);
        assert_eq!(pair::receive(client.as_raw_fd(), &mut bytes).unwrap(), 4);
    }
}

/// A program with shared memory that wants slots for new connections, and its listener.
struct Server {
    bench: Bench,
    area: Arc<SharedArea>,
    listener: OwnedFd,
    /// The number of the connection that was accepted last, or whose record was read last.
    accepted: u64,
    _client: Arc<Client>,
}

impl Server {
    fn new() -> Self {
        let mut bench = Bench::polling(400);
        // Only trusted users may open connections over pairs of their own.
        bench.user = 0;
        let client = bench.client(1);
        let mut ask = |operation, attached: Option<&OwnedFd>| {
            let mut message = Message::new(operation);
            message.local = Some("127.0.0.1:8080".parse().unwrap());
            message.number = if operation == Operation::Listen { 64 } else { 0 };
            let attached = attached.map(|end| end.try_clone().unwrap());
            let (reply, end) =
                bench.engine.process(bench.now, &mut Request::new(message, [attached, None], &client));
            assert_eq!(reply.status, 0, "{operation:?}");
            end
        };
        assert!(ask(Operation::Adopt, None).is_some(), "the first reply has the memory");
        let listener = ask(Operation::Bind, None).unwrap().try_clone().unwrap();
        ask(Operation::Listen, Some(&listener));
        let area = lock(&client.area).clone().unwrap();
        area.area().from_start().store(1, Ordering::Relaxed);
        Self { bench, area, listener, accepted: 0, _client: client }
    }

    /// Returns the program's end of a client's connection, which has sent "x".
    fn connect(&mut self) -> OwnedFd {
        let client = self.bench.connecting("127.0.0.1:8080").1.unwrap();
        self.bench.turn();
        pair::send(client.as_raw_fd(), b"x", &[]).unwrap();
        self.bench.turn();
        client
    }

    /// Accepts a connection. Returns the program's end, and the slot that the connection has from the start.
    fn accept(&mut self) -> (OwnedFd, Option<Slot>) {
        let mut record = [0; SOCKET_LEN];
        let end = pair::receive_descriptor(self.listener.as_raw_fd(), &mut record).unwrap().1.unwrap();
        let name = SocketName::from_record(record).unwrap().0;
        pair::set_name(&end, &name).unwrap();
        self.accepted = name.socket;
        let slot = self.area.area().find(rustix::fs::fstat(&end).unwrap().st_ino);
        (end, slot)
    }

    fn turn(&mut self) {
        let now = self.bench.now;
        self.bench.engine.poll_slots(now);
        self.bench.turn();
    }
}

#[test]
fn the_first_bytes_of_a_connection_go_through_its_slot() {
    let mut server = Server::new();
    let client = server.connect();
    // The program cannot take the byte before it has accepted the connection, even if that takes long.
    server.turn();
    let (end, slot) = server.accept();
    let slot = slot.expect("the connection has a slot");
    let mut bytes = [0; 16];
    assert!(pair::receive(end.as_raw_fd(), &mut bytes).is_err(), "the byte went through the pair");
    let received = slot.received().expect("the byte is in the ring");
    // SAFETY: there is one received byte, and room for it.
    unsafe { slot.read_received(received, 0, bytes.as_mut_ptr(), 1) };
    assert!(bytes[0] == b'x' && slot.receive().take(received, 1));
    assert!(slot.pair().is_empty(true, || false), "the kernel need not be asked whether the pair is empty");
    let claim = slot.send().claim().unwrap();
    // SAFETY: the ring is claimed and empty.
    unsafe { slot.write_send(claim.index, b"back".as_ptr(), 4) };
    assert!(slot.send().commit(claim, 4));
    slot.ring_doorbell();
    server.turn();
    assert_eq!((pair::receive(client.as_raw_fd(), &mut bytes).unwrap(), &bytes[..4]), (4, &b"back"[..]));
    drop(end);
    server.turn();
    assert_eq!(pair::receive(client.as_raw_fd(), &mut bytes).unwrap(), 0, "the connection has ended");
}

/// Bytes in a ring keep the engine awake.
#[test]
fn a_program_that_never_accepts_does_not_keep_the_engine_awake() {
    let mut server = Server::new();
    let _client = server.connect();
    assert!(!server.bench.engine.falls_asleep_beside_programs(), "the byte waits in the ring");
    for _ in 0..8 {
        server.turn();
    }
    assert!(server.bench.engine.falls_asleep_beside_programs());
    let (end, slot) = server.accept();
    assert!(slot.is_some_and(|slot| slot.received().is_none()));
    assert_eq!(
        pair::receive(end.as_raw_fd(), &mut [0; 16]).unwrap(),
        1,
        "the byte has come through the pair"
    );
}

/// The program waits in ways that do not look at slots, such as raw system calls.
#[test]
fn slots_that_programs_do_not_use_are_given_no_longer() {
    let mut server = Server::new();
    for connection in 0.. {
        let _client = server.connect();
        let (end, slot) = server.accept();
        let Some(slot) = slot else {
            assert_eq!(connection, 8);
            break;
        };
        server.turn();
        server.turn();
        assert!(slot.received().is_none());
        assert_eq!(
            pair::receive(end.as_raw_fd(), &mut [0; 16]).unwrap(),
            1,
            "the byte comes through the pair"
        );
    }
    // The program lets the engine try again.
    server.area.area().from_start().store(1, Ordering::Relaxed);
    let _client = server.connect();
    assert!(server.accept().1.is_some());
}

#[test]
fn connections_beyond_the_slots_use_their_pairs() {
    let mut server = Server::new();
    let mut connections = Vec::new();
    for _ in 0..SLOTS {
        let client = server.connect();
        let (end, slot) = server.accept();
        connections.push((client, end, slot.expect("there is a free slot")));
    }
    let _client = server.connect();
    let (end, slot) = server.accept();
    assert!(slot.is_none());
    assert_eq!(pair::receive(end.as_raw_fd(), &mut [0; 16]).unwrap(), 1);
    connections.truncate(1);
    server.turn();
    // None of these connections has used its slot.
    server.area.area().from_start().store(1, Ordering::Relaxed);
    let _client = server.connect();
    assert!(server.accept().1.is_some(), "an ended connection frees its slot");
}

#[test]
fn connections_that_wait_in_a_listener_are_counted() {
    let mut server = Server::new();
    let area = server.area.area();
    let records = area.records();
    let waiting = || records.sent.load(Ordering::Relaxed) - records.received.load(Ordering::Relaxed);
    assert!(records.tag != 0 && records.is_empty());
    let _clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    assert_eq!(waiting(), 3);
    for left in (0..3).rev() {
        let mut record = [0; SOCKET_LEN];
        let (len, end) = pair::receive_descriptor(server.listener.as_raw_fd(), &mut record).unwrap();
        assert!(len == SOCKET_LEN && end.is_some());
        let (name, tag, kept) = SocketName::from_record(record).unwrap();
        assert_eq!(name.local, "127.0.0.1:8080".parse().unwrap());
        assert!(records.note_received(tag) && kept.is_none());
        assert_eq!((waiting(), records.is_empty()), (left, left == 0));
    }
}
