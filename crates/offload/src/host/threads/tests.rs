//! Tests an engine with three threads, which the tests run round by round. Frames arrive on any queue.

use crate::host::area::SharedArea;
use crate::host::open::tests::Pair;
use crate::host::pair;
use crate::host::socket::{Pair as PairOf, Socket};
use crate::host::tests::{MAC, OURS, PEER, frame, repair, settings};
use crate::host::{Engine, Threads};
use crate::settings::Settings;
use crate::stepped::Stepped;
use inlane_offload_protocol::filler;
use inlane_offload_protocol::message::{self, Message, Operation};
use inlane_offload_protocol::slots::{Area, Slot};
use inlane_tcp::Header;
use inlane_wire::ethernet::{self, Frame};
use inlane_wire::{arp, ipv4, tcp};
use proptest::prelude::*;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

mod limits;

const THREADS: usize = 3;
/// More rounds than any step of these tests needs.
const MOST_ROUNDS: usize = 1000;

/// An engine with three threads, and the folder of its control socket.
struct Trio {
    engine: Stepped,
    now: u64,
    socket: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

/// A program's connection to the control socket.
struct Program(OwnedFd);

impl Trio {
    fn new() -> Self {
        Self::polling(Duration::ZERO)
    }

    /// Starts an engine that polls for this time, so it shares memory with programs.
    fn polling(spin: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { threads: THREADS as u16, spin, ..settings(&folder, 100) };
        let socket = settings.socket.clone();
        let mut engine = Stepped::open(settings).unwrap();
        engine.set_neighbour(0, PEER.into(), MAC);
        Self { engine, now: 0, socket, _folder: folder }
    }

    /// Runs rounds until no thread has work.
    fn settle(&mut self) {
        self.now += 1_000_000;
        for engine in self.engine.parts_mut().engines_mut() {
            engine.poll_slots(self.now);
        }
        assert!(self.engine.settle(self.now, MOST_ROUNDS).unwrap());
    }

    fn threads(&self) -> &Threads {
        self.engine.parts()
    }

    /// Connects to the control socket. The thread with the fewest programs serves it: thread 0 the first, thread 1
    /// the second, and so on.
    fn program(&mut self) -> Program {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        net::connect(&fd, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        self.settle();
        Program(fd)
    }

    /// Sends a request and returns the reply.
    fn ask(
        &mut self,
        program: &Program,
        message: Message,
        attached: Option<&OwnedFd>,
    ) -> (Message, Option<OwnedFd>) {
        let fd = program.0.as_raw_fd();
        pair::send_descriptor(fd, &message.encode(), attached.map(AsRawFd::as_raw_fd)).unwrap();
        self.settle();
        if !message.operation.has_reply() {
            return (message, None);
        }
        let mut bytes = [0; message::LEN];
        let (len, descriptor) = pair::receive_descriptor(fd, &mut bytes).unwrap();
        (Message::decode(&bytes[..len]).unwrap(), descriptor)
    }

    /// Lets a new connection send its SYN. `reply` is the reply to the request that created it.
    fn start(&mut self, program: &Program, reply: &Message) {
        let mut message = Message::new(Operation::Start);
        message.set_handle(reply.handle().unwrap());
        self.ask(program, message, None);
    }

    fn bound(&mut self, program: &Program, datagrams: bool, port: u16) -> (Message, Option<OwnedFd>) {
        let mut message = Message::new(Operation::Bind);
        message.datagrams = datagrams;
        message.local = Some(SocketAddr::new(OURS.into(), port));
        self.ask(program, message, None)
    }

    fn listening(&mut self, program: &Program, port: u16) -> OwnedFd {
        let (reply, fd) = self.bound(program, false, port);
        assert_eq!(reply.status, 0);
        let fd = fd.unwrap();
        let mut message = Message::new(Operation::Listen);
        message.number = 16;
        assert_eq!(self.ask(program, message, Some(&fd)).0.status, 0);
        fd
    }

    /// Hands a segment of the peer to the engine on one queue. `ports` are the peer's and the engine's.
    fn segment(&mut self, queue: usize, header: &Header, ports: (u16, u16), payload: &[u8]) {
        self.engine.receive_on(queue, self.now, &frame(header, ports, payload));
        self.settle();
    }

    /// Returns the headers of the TCP segments that the engine has sent, and the engine's port of each.
    /// Checks that the engine sent nothing else.
    fn sent(&mut self) -> Vec<(Header, u16)> {
        let mut headers = Vec::new();
        while let Some(mut bytes) = self.engine.sent() {
            let frame = Frame::new(&mut bytes[..]).unwrap();
            assert_eq!(frame.ethertype(), ethernet::IPV4);
            let packet = ipv4::Packet::new(&bytes[ethernet::HEADER..]).unwrap();
            assert_eq!(packet.protocol(), ipv4::TCP);
            let view = tcp::Segment::new(packet.payload()).unwrap();
            let header = Header {
                sequence: view.sequence(),
                acknowledgment: view.acknowledgment(),
                flags: view.flags(),
                ..Header::default()
            };
            headers.push((header, view.source_port()));
        }
        headers
    }

    /// Returns how many connections each thread runs.
    fn flows(&self) -> Vec<usize> {
        self.threads().engines().iter().map(|engine| engine.stack.flows.len()).collect()
    }

    /// Checks that the threads and what they share hold nothing any more.
    fn assert_empty(&mut self) {
        self.settle();
        let held = self.engine.held();
        assert_eq!((held.sockets, held.flows, held.ports, held.ends, held.processes), (0, 0, 0, 0, 0));
        assert_shared_matches(self.threads().engines());
    }
}

/// Checks that the shared tables list what the threads run, and nothing else.
fn assert_shared_matches(engines: &[Engine]) {
    let shared = engines[0].shared.clone().unwrap();
    let (mut flows, mut ends) = (0, 0);
    for engine in engines {
        for flow in engine.stack.flows.keys() {
            let owner = shared.owners.flows.get(flow).unwrap();
            assert!(owner.thread == engine.stack.thread && !owner.waits);
        }
        for (flow, _) in engine.stack.time_waits.iter() {
            let owner = shared.owners.flows.get(flow).unwrap();
            assert!(owner.thread == engine.stack.thread && owner.waits);
        }
        assert!(
            engine.by_cookie.keys().all(|cookie| shared.by_cookie.get(cookie) == Some(engine.stack.thread))
        );
        flows += engine.stack.flows.len() + engine.stack.time_waits.len();
        ends += engine.by_cookie.len();
    }
    assert_eq!((shared.owners.flows.len(), shared.by_cookie.len()), (flows, ends));
}

fn header(sequence: u32, acknowledgment: u32, flags: u8) -> Header {
    Header { sequence, acknowledgment, window: 60_000, flags, ..Header::default() }
}

fn received(fd: &OwnedFd) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let len = pair::receive(fd.as_raw_fd(), &mut buffer).unwrap_or(0);
    buffer[..len].to_vec()
}

#[test]
fn a_connection_that_a_program_opens_moves_to_the_queue_of_its_packets() {
    let mut trio = Trio::new();
    let program = trio.program();
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(SocketAddr::new(PEER.into(), 80));
    let (reply, end) = trio.ask(&program, message, None);
    assert_eq!(reply.status, 0);
    let end = end.unwrap();
    trio.start(&program, &reply);
    let (syn, port) = trio.sent()[0];
    assert_eq!(syn.flags & tcp::SYN, tcp::SYN);
    assert_eq!((usize::from(port) % THREADS, trio.flows()), (0, vec![1, 0, 0]));

    trio.segment(2, &header(1000, syn.sequence.wrapping_add(1), tcp::SYN | tcp::ACK), (80, port), &[]);
    assert_eq!(trio.flows(), [0, 0, 1]);
    let acknowledgment = syn.sequence.wrapping_add(1);
    assert_eq!(trio.sent(), [(Header { window: 0, ..header(acknowledgment, 1001, tcp::ACK) }, port)]);
    // The connection has moved to thread 2. Data on the queues of other threads must also reach it, without
    // moving the connection again.
    for (queue, sequence, data) in [(2, 1001, b"one"), (0, 1004, b"two"), (1, 1007, b"six")] {
        trio.segment(queue, &header(sequence, acknowledgment, tcp::ACK), (80, port), data);
        assert_eq!(received(&end), data);
    }
    assert_eq!(trio.flows(), [0, 0, 1]);
    // The connection is now on thread 2, but its program asks thread 0. The program must still get an answer
    // about the connection. So must another program that has received the program's end of the socket pair.
    let other = trio.program();
    for program in [&program, &other] {
        let (reply, _) = trio.ask(program, Message::new(Operation::Addresses), Some(&end));
        assert_eq!((reply.status, reply.remote), (0, message.remote));
    }
    assert_shared_matches(trio.threads().engines());
    trio.segment(1, &header(1010, acknowledgment, tcp::RST | tcp::ACK), (80, port), &[]);
    drop(end);
    trio.assert_empty();
}

/// A connection that a program opens over a socket pair of its own, and its slot.
struct Opened {
    program: Program,
    end: OwnedFd,
    area: Area,
    slot: Slot,
    /// The port of the engine, and the next sequence number of each direction: of the engine and of the peer.
    port: u16,
    next: u32,
    peer: u32,
}

impl Opened {
    /// Opens a connection whose packets arrive on queue 2, and gets a slot for it.
    fn new(trio: &mut Trio) -> Self {
        let program = trio.program();
        let pair = Pair::new();
        pair.send(&program.0, SocketAddr::new(PEER.into(), 80));
        let end = pair.program.try_clone().unwrap();
        drop(pair);
        trio.settle();
        let (port, next) = Self::establish(trio, 2);
        let (reply, file) = trio.ask(&program, Message::new(Operation::Adopt), Some(&end));
        assert_eq!(reply.status, 0);
        let ring = reply.level as usize;
        let (access, len) = (libc::PROT_READ | libc::PROT_WRITE, Area::len(ring).unwrap());
        // SAFETY: the system chooses the address. The mapping stays for the whole test.
        let area = unsafe {
            let fd = file.unwrap();
            let start = libc::mmap(null_mut(), len, access, libc::MAP_SHARED, fd.as_raw_fd(), 0);
            assert_ne!(start, libc::MAP_FAILED);
            Area::new(NonNull::new(start.cast()).unwrap(), ring)
        };
        area.keeps().store(1, Ordering::Relaxed);
        let slot = area.slot(reply.number as usize).unwrap();
        Self { program, end, area, slot, port, next, peer: 1001 }
    }

    /// Returns the engine's side of the memory.
    fn area(&self, trio: &Trio) -> Arc<SharedArea> {
        let sockets = trio.threads().engines().iter().flat_map(|engine| engine.stack.sockets.iter());
        let area = |(_, socket): (_, &Socket)| {
            let PairOf::Stream(pair) = &socket.attachment.pair else { return None };
            Some(pair.direct.as_ref()?.location().0.clone())
        };
        sockets.into_iter().find_map(area).expect("a connection has a slot")
    }

    /// Answers the SYN on a queue. Returns the engine's port and its next sequence number.
    fn establish(trio: &mut Trio, queue: usize) -> (u16, u32) {
        let (syn, port) = trio.sent()[0];
        assert_eq!(syn.flags & tcp::SYN, tcp::SYN);
        let next = syn.sequence.wrapping_add(1);
        trio.segment(queue, &header(1000, next, tcp::SYN | tcp::ACK), (80, port), &[]);
        assert_eq!(trio.sent().len(), 1, "the SYN,ACK is acknowledged");
        (port, next)
    }

    /// Sends one byte through the ring. Returns its sequence number.
    fn send(&mut self, trio: &mut Trio) {
        let claim = self.slot.send().claim().expect("no other thread sends");
        // SAFETY: the claim allows to write into the ring, which has room.
        unsafe { self.slot.write_send(claim.index, b"x".as_ptr(), 1) };
        assert!(self.slot.send().commit(claim, 1));
        self.slot.ring_doorbell();
        trio.settle();
        let (sent, port) = trio.sent()[0];
        assert_eq!((sent.sequence, port), (self.next, self.port));
        self.next = self.next.wrapping_add(1);
    }

    /// Closes the connection in its slot, and lets the peer close it on a queue.
    fn close(&mut self, trio: &mut Trio, queue: usize) {
        let claim = self.slot.send().claim().expect("no other thread sends");
        assert!(self.slot.send().end(claim) && self.slot.life().close());
        self.slot.ring_doorbell();
        trio.settle();
        self.next = self.next.wrapping_add(1);
        let header = header(self.peer, self.next, tcp::FIN | tcp::ACK);
        trio.segment(queue, &header, (80, self.port), &[]);
        trio.sent();
    }

    /// Opens another connection over the kept pair, whose packets arrive on a queue.
    fn open_again(&mut self, trio: &mut Trio, queue: usize) {
        self.send_open();
        trio.settle();
        assert!(self.slot.life().is_connecting());
        (self.port, self.next) = Self::establish(trio, queue);
        assert!(
            !self.slot.life().is_connecting(),
            "the program does not learn that the connection is established"
        );
        self.peer = 1001;
    }

    /// Asks for another connection over the kept pair.
    fn send_open(&self) {
        assert!(self.slot.life().is_kept() && self.slot.life().ask());
        let filled = filler::fill(
            |name, value| pair::set_option(&self.end, name, value).map_err(|_| ()),
            |bytes| Ok(pair::send(self.end.as_raw_fd(), bytes, &[]).ok()),
        );
        let mut message = Message::new(Operation::Open);
        message.remote = Some(SocketAddr::new(PEER.into(), 80));
        (message.number, message.level) =
            (filled.unwrap() as i32, 1 + self.slot.header().number.load(Ordering::Relaxed) as i32);
        pair::send(self.program.0.as_raw_fd(), &message.encode(), &[]).unwrap();
    }
}

/// The connection and its pair move between threads. The program sends and receives through the slot on each of them.
#[test]
fn a_connection_over_a_kept_pair_moves_with_its_slot() {
    let mut trio = Trio::polling(Duration::from_micros(400));
    let mut opened = Opened::new(&mut trio);
    assert_eq!(trio.flows(), [0, 0, 1]);
    opened.send(&mut trio);
    for queue in [0, 1, 2, 2, 1, 0] {
        opened.close(&mut trio, queue);
        opened.open_again(&mut trio, queue);
        let mut flows = [0; THREADS];
        flows[queue] = 1;
        assert_eq!(trio.flows(), flows);
        opened.send(&mut trio);
        trio.segment(queue, &header(1001, opened.next, tcp::ACK), (80, opened.port), b"yes");
        opened.peer = 1004;
        let received = opened.slot.received().expect("the bytes are in the ring");
        assert_eq!(received.len, 3);
        assert!(opened.slot.receive().take(received, 3));
    }
    assert!(opened.area.ready().load(Ordering::Relaxed) != 0);
}

/// The thread on which the last connection ended frees its slot late.
#[test]
fn a_connection_over_a_kept_pair_waits_until_its_slot_is_free() {
    let mut trio = Trio::polling(Duration::from_micros(400));
    let mut opened = Opened::new(&mut trio);
    let area = opened.area(&trio);
    opened.close(&mut trio, 2);
    let index = opened.slot.header().number.load(Ordering::Relaxed) as usize;
    area.hold(index);
    opened.send_open();
    trio.run_alone(0);
    assert!(opened.slot.life().is_asked() && trio.sent().is_empty());
    area.release(index, false);
    trio.settle();
    (opened.port, opened.next) = Opened::establish(&mut trio, 1);
    opened.send(&mut trio);
}

/// Two programs ask for connections over the same pair. The second one's thread knows of the first connection.
#[test]
fn two_threads_open_no_connections_over_the_same_pair() {
    let mut trio = Trio::new();
    let (first, second) = (trio.program(), trio.program());
    let pair = Pair::new();
    for program in [&first, &second] {
        pair.send(&program.0, SocketAddr::new(PEER.into(), 80));
        trio.settle();
    }
    assert_eq!(trio.flows(), [1, 0, 0]);
    assert_eq!(trio.sent().len(), 1);
    drop(pair);
    trio.settle();
}

/// A program opens a connection and passes it to another one, whose thread of the engine is the first to work.
#[test]
fn a_request_waits_until_another_thread_has_opened_the_socket() {
    let mut trio = Trio::new();
    let (opener, other) = (trio.program(), trio.program());
    let pair = Pair::new();
    let end = pair.program.try_clone().unwrap();
    let remote = SocketAddr::new(PEER.into(), 80);
    pair.send(&opener.0, remote);
    let question = Message::new(Operation::Addresses).encode();
    pair::send_descriptor(other.0.as_raw_fd(), &question, Some(end.as_raw_fd())).unwrap();
    drop(pair);
    for _ in 0..3 {
        trio.engine.parts_mut().engines_mut()[1].round(trio.now).unwrap();
    }
    trio.settle();
    let mut bytes = [0; message::LEN];
    let len = pair::receive(other.0.as_raw_fd(), &mut bytes).unwrap();
    let reply = Message::decode(&bytes[..len]).unwrap();
    assert_eq!((reply.status, reply.remote), (0, Some(remote)));
    drop(end);
    trio.settle();
}

/// A new connection holds its SYN back until the program's request Start. The timer that limits this delay
/// runs on the connection's thread. So the connection must stay on its thread until then.
#[test]
fn a_connection_whose_syn_is_held_does_not_move() {
    let mut trio = Trio::new();
    let program = trio.program();
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(SocketAddr::new(PEER.into(), 80));
    let (reply, end) = trio.ask(&program, message, None);
    let end = end.unwrap();
    let (port, before) = (reply.local.unwrap().port(), trio.flows());
    for queue in 0..THREADS {
        trio.segment(queue, &header(1000, 0, tcp::ACK), (80, port), &[]);
    }
    assert_eq!(trio.flows(), before);
    trio.sent();
    trio.start(&program, &reply);
    assert_eq!(trio.flows(), before);
    let sent = trio.sent();
    let (syn, _) = sent.iter().find(|(header, _)| header.flags == tcp::SYN).unwrap();
    trio.segment(0, &header(0, syn.sequence.wrapping_add(1), tcp::RST | tcp::ACK), (80, port), &[]);
    drop(end);
    trio.assert_empty();
}

#[test]
fn a_bound_connection_stays_and_its_packets_are_passed() {
    let mut trio = Trio::new();
    let program = trio.program();
    let (reply, end) = trio.bound(&program, false, 7001);
    assert_eq!(reply.status, 0);
    let end = end.unwrap();
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(SocketAddr::new(PEER.into(), 80));
    assert_eq!(trio.ask(&program, message, Some(&end)).0.status, 0);
    let (syn, port) = trio.sent()[0];
    let home = 7001 % THREADS;
    assert_eq!((port, trio.flows()[home]), (7001, 1));
    let acknowledgment = syn.sequence.wrapping_add(1);
    let queue = (home + 1) % THREADS;
    trio.segment(queue, &header(1000, acknowledgment, tcp::SYN | tcp::ACK), (80, port), &[]);
    trio.segment(queue, &header(1001, acknowledgment, tcp::ACK), (80, port), b"data");
    assert_eq!((received(&end), trio.flows()[home]), (b"data".to_vec(), 1));
    assert_eq!(trio.bound(&program, false, 7001).0.status, libc::EADDRINUSE);
    trio.segment(queue, &header(1005, acknowledgment, tcp::RST | tcp::ACK), (80, port), &[]);
    drop(end);
    trio.assert_empty();
}

/// Every queue may carry the SYN, the final acknowledgment, and the data.
#[test]
fn a_listener_accepts_whatever_queue_a_segment_arrives_on() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8080);
    let mut accepted = Vec::new();
    for (index, queues) in [[0, 0, 0], [1, 2, 0], [2, 1, 1], [0, 2, 2]].into_iter().enumerate() {
        let port = 4000 + index as u16;
        trio.segment(queues[0], &header(1000, 0, tcp::SYN), (port, 8080), &[]);
        // The sent segments may include a late acknowledgment of the previous connection's data.
        let sent = trio.sent();
        let &(syn_ack, _) = sent.iter().find(|(header, _)| header.flags == tcp::SYN | tcp::ACK).unwrap();
        let acknowledgment = syn_ack.sequence.wrapping_add(1);
        trio.segment(queues[1], &header(1001, acknowledgment, tcp::ACK), (port, 8080), &[]);
        let mut record = [0; 64];
        let end = pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap().1.unwrap();
        assert!(trio.flows()[queues[0]] > 0, "the connection is on the thread of its SYN");
        trio.segment(queues[2], &header(1001, acknowledgment, tcp::ACK), (port, 8080), b"data");
        assert_eq!(received(&end), b"data");
        trio.sent();
        accepted.push((port, acknowledgment, end));
    }
    assert_shared_matches(trio.threads().engines());
    // An acknowledgment for a connection that no thread has is answered by one reset.
    trio.segment(1, &header(1001, 5, tcp::ACK), (5000, 8080), &[]);
    let sent = trio.sent();
    let (resets, others): (Vec<_>, Vec<_>) =
        sent.iter().partition(|(header, _)| header.flags & tcp::RST != 0);
    assert!(resets.len() == 1 && others.iter().all(|(header, _)| header.flags == tcp::ACK), "{sent:?}");
    for (port, acknowledgment, end) in accepted {
        trio.segment(0, &header(1005, acknowledgment, tcp::RST | tcp::ACK), (port, 8080), &[]);
        drop(end);
    }
    drop(listener);
    trio.assert_empty();
}

#[test]
fn options_of_a_listener_reach_the_connections_of_all_threads() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8080);
    let mut message = Message::new(Operation::SetOptionNow);
    (message.level, message.name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    message.set_value(&1i32.to_ne_bytes());
    assert_eq!(trio.ask(&program, message, Some(&listener)).0.status, 0);
    for engine in trio.threads().engines() {
        let sockets: Vec<_> =
            engine.stack.sockets.iter().map(|(_, socket)| socket.options.no_delay).collect();
        assert_eq!(sockets, [true]);
    }
    drop(listener);
    trio.assert_empty();
    // Closing a listener must free its port on all threads, so listen on the port twice more. While a
    // listener exists, another bind must fail.
    let listener = trio.listening(&program, 8080);
    drop(listener);
    let listener = trio.listening(&program, 8080);
    assert_eq!(trio.bound(&program, false, 8080).0.status, libc::EADDRINUSE);
    drop(listener);
    trio.assert_empty();
}

#[test]
fn a_flow_in_time_wait_is_reused_by_another_thread() {
    let mut trio = Trio::new();
    let program = trio.program();
    let (_, end) = trio.bound(&program, false, 7000);
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(SocketAddr::new(PEER.into(), 80));
    let flow = inlane_tcp::Flow {
        local: SocketAddr::new(OURS.into(), 7000),
        remote: SocketAddr::new(PEER.into(), 80),
    };
    // Thread `home` serves local port 7000, but another thread has the flow in TIME-WAIT.
    let home = 7000 % THREADS;
    let other = (home + 1) % THREADS;
    trio.threads().engines()[other].stack.note_time_wait(flow);
    assert!(trio.threads().engines()[home].stack.is_waiting(&flow));
    assert_eq!(trio.ask(&program, message, end.as_ref()).0.status, 0);
    assert_eq!(trio.flows()[home], 1);
    assert!(!trio.threads().engines()[home].stack.is_waiting(&flow));
    // Port 7000 now has a connection, so no second socket can bind it.
    assert_eq!(trio.bound(&program, false, 7000).0.status, libc::EADDRINUSE);
    drop(end);
}

#[test]
fn a_neighbours_answer_on_one_queue_reaches_all_threads() {
    let mut trio = Trio::new();
    let host = std::net::Ipv4Addr::new(10, 0, 0, 77);
    let mut bytes = vec![0; ethernet::HEADER + arp::HEADER];
    let mut frame = Frame::new(&mut bytes[..]).unwrap();
    frame.set_destination(MAC);
    frame.set_ethertype(ethernet::ARP);
    let mut packet = arp::Packet::init(frame.payload_mut()).unwrap();
    packet.set_operation(arp::REPLY);
    packet.set_sender_mac(MAC);
    packet.set_sender(host);
    packet.set_target(OURS);
    for _ in 0..THREADS {
        let program = trio.program();
        let mut message = Message::new(Operation::Connect);
        message.remote = Some(SocketAddr::new(host.into(), 80));
        let (reply, end) = trio.ask(&program, message, None);
        trio.start(&program, &reply);
        std::mem::forget((program, end));
    }
    while trio.engine.sent().is_some() {}
    trio.engine.receive_on(1, trio.now, &bytes);
    trio.settle();
    assert_eq!(trio.sent().len(), THREADS, "each thread sends its SYN");
}

#[test]
fn a_report_covers_all_threads() {
    let mut trio = Trio::new();
    let programs = [trio.program(), trio.program()];
    let _listener = trio.listening(&programs[0], 8080);
    let _bound = trio.bound(&programs[1], true, 0);
    for program in &programs {
        let (reply, file) = trio.ask(program, Message::new(Operation::Status), None);
        assert_eq!(reply.status, 0);
        let mut file = std::fs::File::from(file.unwrap());
        std::io::Seek::rewind(&mut file).unwrap();
        let status: crate::status::EngineStatus = serde_json::from_reader(file).unwrap();
        assert_eq!(status.threads.iter().map(|thread| thread.thread).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(status.sockets.len(), 2, "copies of listeners are not listed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_frames_on_any_queue_do_no_harm(frames in proptest::collection::vec(
        (0..THREADS, proptest::collection::vec(any::<u8>(), 0..100), any::<u8>(), any::<[u32; 2]>(), 4000u16..4004, proptest::collection::vec((14usize..90, any::<u8>()), 0..4)), 1..30)) {
        let mut trio = Trio::new();
        let program = trio.program();
        let listener = trio.listening(&program, 8080);
        for (queue, payload, flags, [sequence, acknowledgment], port, damage) in frames {
            let mut bytes = frame(&header(sequence, acknowledgment, flags), (port, 8080), &payload);
            for (at, value) in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            repair(&mut bytes);
            trio.engine.receive_on(queue, trio.now, &bytes);
            trio.settle();
        }
        assert_shared_matches(trio.threads().engines());
        drop(listener);
    }
}

/// A receive queue that panics.
struct Broken;

// SAFETY: it returns no packets.
unsafe impl inlane_core::port::Rx for Broken {
    fn receive(&mut self, _: &mut [inlane_core::Packet]) -> inlane_core::Result<usize> {
        panic!("a test panics here on purpose");
    }

    fn counters(&self) -> inlane_core::port::Counters {
        inlane_core::port::Counters::default()
    }
}

#[test]
fn the_engine_ends_if_one_of_its_threads_fails() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { threads: THREADS as u16, ..settings(&folder, 100) };
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut threads = Threads::open_on(settings.clone(), 1024, None).unwrap();
    threads.engines_mut()[1].link.rx = Box::new(Broken);
    let error = threads.run(&stop).unwrap_err().to_string();
    assert!(error.contains("thread 1 of the engine has panicked"), "{error}");
    threads.close();

    stop.store(false, std::sync::atomic::Ordering::Relaxed);
    let mut threads = Threads::open_on(settings, 1024, None).unwrap();
    let (file, _) = std::os::unix::net::UnixStream::pair().unwrap();
    threads.engines_mut()[2].epoll = std::sync::Arc::new(file.into());
    let error = threads.run(&stop).unwrap_err().to_string();
    assert!(error.contains("epoll_wait"), "{error}");
    threads.close();
}
