//! Tests that a hostile program, a hostile link and a busy thread have only limited effects on the other
//! threads of an engine.

use super::*;
use crate::host::closer::Closer;
use crate::host::control::MOST_PASSED;
use crate::host::permits::Kind;
use crate::stack::arena::Key;
use crate::stack::socket::{Listening, Role};

mod direct;

impl Trio {
    fn tasks(&self, thread: usize) -> usize {
        self.threads().engines()[0].shared.as_ref().unwrap().inboxes[thread].tasks()
    }

    /// Runs only one thread of the engine. The other threads process nothing, as if they were busy.
    pub(super) fn run_alone(&mut self, thread: usize) {
        for _ in 0..100 {
            self.now += 1_000_000;
            let now = self.now;
            self.engine.parts_mut().engines_mut()[thread].round(now).unwrap();
        }
    }

    /// Sends requests of a client and runs only thread 0, which serves this client. The other threads do not
    /// run.
    fn flood(&mut self, program: &Program, message: Message, attached: Option<&OwnedFd>) {
        for _ in 0..10 {
            let attached = attached.map(AsRawFd::as_raw_fd);
            while pair::send_descriptor(program.0.as_raw_fd(), &message.encode(), attached).is_ok() {}
            self.run_alone(0);
        }
    }

    /// Returns the number of connections that a thread's listener has queued, because its pair is full.
    fn queued(&self, thread: usize) -> usize {
        let (key, _) = self.listener(thread);
        match &self.threads().engines()[thread].stack.sockets.get(key).unwrap().attachment.pair {
            crate::host::socket::Pair::Listening(pair) => pair.queue.len(),
            _ => 0,
        }
    }

    fn listener(&self, thread: usize) -> (Key, &Listening) {
        let mut sockets = self.threads().engines()[thread].stack.sockets.iter();
        let listener = sockets.find_map(|(key, socket)| match &socket.role {
            Role::Listening(listening) => Some((key, &**listening)),
            _ => None,
        });
        listener.unwrap()
    }

    /// Completes the handshake of a connection from `port` to 8080 on one queue. Returns false if the engine does
    /// not answer the SYN.
    fn handshake(&mut self, queue: usize, port: u16) -> bool {
        self.segment(queue, &header(1000, 0, tcp::SYN), (port, 8080), &[]);
        let Some(&(syn_ack, _)) = self.sent().first() else { return false };
        let acknowledgment = syn_ack.sequence.wrapping_add(1);
        self.segment(queue, &header(1001, acknowledgment, tcp::ACK), (port, 8080), &[]);
        self.sent();
        true
    }
}

/// Accepts the next connection as a program does. Returns the connection's remote port and the program's end.
fn accepted(listener: &OwnedFd) -> Option<(u16, OwnedFd)> {
    let mut record = [0; inlane_offload_protocol::name::SOCKET_LEN];
    let (len, end) = pair::receive_descriptor(listener.as_raw_fd(), &mut record).ok()?;
    let (name, end) =
        (inlane_offload_protocol::name::SocketName::decode(&record[..len]).unwrap(), end.unwrap());
    pair::set_name(&end, &name).unwrap();
    Some((name.remote.unwrap().port(), end))
}

#[test]
fn one_client_cannot_fill_the_inboxes_of_busy_threads() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8079);
    let mut option = Message::new(Operation::SetOptionNow);
    (option.level, option.name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    option.set_value(&1i32.to_ne_bytes());
    trio.flood(&program, option, Some(&listener));
    assert_eq!((trio.tasks(1), trio.tasks(2)), (MOST_PASSED, MOST_PASSED));
    trio.settle();
    assert_eq!((trio.tasks(1), trio.tasks(2)), (0, 0));

    let mut trio = Trio::new();
    let reporter = trio.program();
    trio.flood(&reporter, Message::new(Operation::Status), None);
    assert_eq!((trio.tasks(1), trio.tasks(2)), (1, 1));
    trio.settle();
    let mut bytes = [0; message::LEN];
    assert!(pair::receive_descriptor(reporter.0.as_raw_fd(), &mut bytes).unwrap().1.is_some());
}

/// One client sends status requests without a pause, so epoll reports this client in every round. The thread
/// must still serve another client, and must answer all status requests.
#[test]
fn a_client_that_asks_for_reports_holds_up_no_other_client_of_its_thread() {
    let mut trio = Trio::new();
    let programs: [_; 4] = std::array::from_fn(|_| trio.program());
    let [flooder, _, _, other] = &programs;
    let status = Message::new(Operation::Status).encode();
    let mut requests = 0;
    while pair::send_descriptor(flooder.0.as_raw_fd(), &status, None).is_ok() {
        requests += 1;
    }
    trio.engine.step(trio.now).unwrap();
    let mut bind = Message::new(Operation::Bind);
    bind.local = Some(SocketAddr::new(OURS.into(), 8079));
    pair::send_descriptor(other.0.as_raw_fd(), &bind.encode(), None).unwrap();
    trio.engine.step(trio.now).unwrap();
    let mut bytes = [0; message::LEN];
    assert!(pair::receive_descriptor(other.0.as_raw_fd(), &mut bytes).unwrap().1.is_some());
    let mut reports = 0;
    while reports < requests && trio.engine.step(trio.now).unwrap() {
        while pair::receive_descriptor(flooder.0.as_raw_fd(), &mut bytes).is_ok() {
            reports += 1;
        }
    }
    assert!(requests > 10 && reports == requests, "{requests} requests, {reports} reports");
}

/// Each copy of a listener needs a descriptor. Without a free one, the socket must not listen on some threads only.
#[test]
fn a_listener_without_descriptors_for_its_copies_stays_bound() {
    let mut trio = Trio::new();
    let program = trio.program();
    let fd = trio.bound(&program, false, 8080).1.unwrap();
    let mut message = Message::new(Operation::Listen);
    message.number = 16;
    let closer = trio.threads().engines()[0].closer.clone();
    let thread = 8080 % THREADS;
    trio.engine.parts_mut().engines_mut()[thread].closer = Closer::with_room(100, 0);
    assert_eq!(trio.ask(&program, message, Some(&fd)).0.status, libc::ENFILE);
    let listeners = |trio: &Trio| {
        let sockets = trio.threads().engines().iter().flat_map(|engine| engine.stack.sockets.iter());
        sockets.filter(|(_, socket)| matches!(socket.role, Role::Listening(_))).count()
    };
    assert_eq!(listeners(&trio), 0);
    trio.engine.parts_mut().engines_mut()[thread].closer = closer;
    let process = std::process::id() as i32;
    let permits = trio.threads().engines()[0].control.permits.clone();
    // The counts of this process: the socket, its client, and from now on the two copies.
    for _ in 0..2 {
        assert_eq!(trio.ask(&program, message, Some(&fd)).0.status, 0);
        assert_eq!((listeners(&trio), permits.of_process(process)), (THREADS, 1 + 1 + 2));
    }
    drop((fd, program));
    trio.assert_empty();
    assert_eq!(permits.of_process(process), 0);
}

#[test]
fn a_process_has_a_limited_number_of_clients() {
    let trio = Trio::new();
    let engines = trio.threads().engines();
    let admit =
        |thread: usize, process| engines[thread].control.permits.admit(Kind::Client, process, 1000, 1 << 20);
    let mut admitted: Vec<_> =
        (0..THREADS).flat_map(|thread| (0..2000).filter_map(move |_| admit(thread, 7))).collect();
    assert_eq!(admitted.len(), 1024);
    assert!(admit(1, 7).is_none() && admit(1, 8).is_some());
    admitted.pop();
    assert!(admit(1, 7).is_some());
}

/// Programs must be distributed evenly over the threads, although `inlane offload run` also connects to the
/// control socket, and disconnects, before each program connects.
#[test]
fn programs_spread_over_the_threads_whatever_connects_in_between() {
    let mut trio = Trio::new();
    let mut programs = Vec::new();
    for expected in [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1]] {
        drop(trio.program());
        trio.settle();
        programs.push(trio.program());
        let counts: Vec<_> = trio.threads().engines().iter().map(|engine| engine.control.clients()).collect();
        assert_eq!(counts, expected);
    }
    programs.clear();
    trio.settle();
    let shared = trio.threads().engines()[0].shared.clone().unwrap();
    assert!(shared.clients.iter().all(|count| count.load(std::sync::atomic::Ordering::Relaxed) == 0));
}

#[test]
fn an_error_of_the_system_does_not_end_a_listener() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8080);
    let (key, _) = trio.listener(0);
    let replace = |trio: &mut Trio, end: OwnedFd| {
        let socket = trio.engine.parts_mut().engines_mut()[0].stack.sockets.get_mut(key).unwrap();
        socket.attachment.end.replace(end).unwrap()
    };
    // Replace the engine's end of the listener's socket pair by a file. Sending to the file fails. Sending to
    // the pair fails in the same way while the system has too many descriptors in flight.
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let end = replace(&mut trio, file);
    assert!(trio.handshake(0, 4000));
    assert!(accepted(&listener).is_none());
    replace(&mut trio, end);
    let port = (0..1000).find_map(|_| {
        trio.settle();
        accepted(&listener)
    });
    assert_eq!(port.unwrap().0, 4000);
    assert!(trio.handshake(0, 4001) && accepted(&listener).unwrap().0 == 4001);
}

#[test]
fn a_thread_gets_room_in_a_pair_that_another_thread_keeps_part_full() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8080);
    // The pair keeps the size that it got for the first, smaller backlog.
    let mut larger = Message::new(Operation::Listen);
    larger.number = 4096;
    assert_eq!(trio.ask(&program, larger, Some(&listener)).0.status, 0);
    let waiting = (4000..5000).find(|&port| {
        assert!(trio.handshake(0, port));
        trio.queued(0) > 0
    });
    let waiting = waiting.expect("the pair becomes full");
    let mut ends = Vec::new();
    // The program frees places in the socket pair. For each free place, a new connection on thread 2 competes
    // with the waiting connection of thread 0. That connection must still arrive. Allow 500 extra
    // connections, because thread 0 retries at random times.
    let found = (0..waiting - 4000 + 500).any(|index| {
        let Some((port, end)) = accepted(&listener) else { return false };
        ends.push(end);
        trio.handshake(2, 5000 + index);
        port == waiting
    });
    assert!(found, "the connection of thread 0 never came");
}

#[test]
fn the_backlog_limits_the_accept_queues_of_all_threads_together() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8080);
    let mut refused = 0;
    for port in 4000..4200 {
        refused += usize::from(!trio.handshake(usize::from(port) % THREADS, port));
    }
    // As on Linux, one more than the backlog.
    assert_eq!(200 - refused, 17);
    // Each place that the program frees is used once, by whichever thread.
    let mut ends = Vec::new();
    for port in 5000..5040 {
        ends.push(accepted(&listener).unwrap());
        assert!(trio.handshake(usize::from(port) % THREADS, port));
        assert!(!trio.handshake(usize::from(port + 1) % THREADS, port + 1000));
    }
    // Every established connection reaches the program.
    let count = (0..1000).filter(|_| accepted(&listener).is_some()).count();
    assert_eq!(count, 17);
}

fn arp_reply(sender: std::net::Ipv4Addr, mac: ethernet::Mac, target: std::net::Ipv4Addr) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER + arp::HEADER];
    let mut frame = Frame::new(&mut bytes[..]).unwrap();
    frame.set_destination(MAC);
    frame.set_ethertype(ethernet::ARP);
    let mut packet = arp::Packet::init(frame.payload_mut()).unwrap();
    packet.set_operation(arp::REPLY);
    packet.set_sender_mac(mac);
    packet.set_sender(sender);
    packet.set_target(target);
    bytes
}

#[test]
fn other_threads_hear_of_neighbours_when_they_change_and_not_too_often() {
    let mut trio = Trio::new();
    let host = std::net::Ipv4Addr::new(10, 0, 0, 77);
    let other_mac = ethernet::Mac([2, 0, 0, 0, 0, 9]);
    for mac in [MAC, other_mac] {
        for _ in 0..1000 {
            trio.engine.receive_on(1, trio.now, &arp_reply(host, mac, OURS));
        }
        assert_eq!((trio.tasks(0), trio.tasks(2)), (1, 1));
        trio.settle();
    }
    // One second later, the receiving thread must pass on even an unchanged MAC address. Another thread may
    // have sent a new ARP request meanwhile.
    trio.now += 1_000_000_000;
    trio.engine.receive_on(1, trio.now, &arp_reply(host, other_mac, OURS));
    assert_eq!(trio.tasks(0), 1);
    trio.settle();
    // Let many hosts announce themselves, which uses up the budget of 256 messages to other threads. The
    // engine must still pass on an answer to its own request, because such answers have a separate budget.
    for n in 0..10_000 {
        let host = std::net::Ipv4Addr::from(0x0a00_1000 + n);
        trio.engine.receive_on(1, trio.now, &arp_reply(host, MAC, host));
    }
    assert_eq!(trio.tasks(0), 256);
    trio.engine.receive_on(1, trio.now, &arp_reply(PEER, other_mac, OURS));
    assert_eq!(trio.tasks(0), 257);
}

#[test]
fn a_failed_connect_leaves_the_time_wait_of_its_flow_as_it_was() {
    let mut trio = Trio::new();
    let program = trio.program();
    let listener = trio.listening(&program, 8080);
    // The program closes a connection of thread 0 before the peer does. So thread 0 gets a TIME-WAIT entry.
    assert!(trio.handshake(0, 4000));
    drop(accepted(&listener));
    trio.settle();
    let fin = trio.sent().iter().find(|(header, _)| header.flags & tcp::FIN != 0).unwrap().0;
    let acknowledgment = fin.sequence.wrapping_add(1);
    trio.segment(0, &header(1001, acknowledgment, tcp::FIN | tcp::ACK), (4000, 8080), &[]);
    let remote = SocketAddr::new(PEER.into(), 80);
    let now = trio.now;
    let engine = &mut trio.engine.parts_mut().engines_mut()[0];
    let entry = *engine.stack.time_waits.iter().next().unwrap().1;
    // Leave no way to connect. Put every port that thread 0 could choose into TIME-WAIT, and use up the
    // process's limit of sockets. The connect below must then fail.
    for port in (32768..=60999).filter(|&port| usize::from(port) % THREADS == 0) {
        let flow = inlane_tcp::Flow { local: SocketAddr::new(OURS.into(), port), remote };
        engine.stack.time_waits.insert(flow, entry);
        engine.stack.note_time_wait(flow);
    }
    let process = std::process::id() as i32;
    let permits = engine.control.permits.clone();
    let admit = || permits.admit(Kind::Socket, process, 0, 1 << 20);
    let _admitted: Vec<_> = std::iter::from_fn(admit).collect();
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(remote);
    assert_eq!(trio.ask(&program, message, None).0.status, libc::ENFILE);
    assert_shared_matches(trio.threads().engines());
    // Let 120 s pass. All TIME-WAIT entries must expire, in this thread's table and in the table that the
    // threads share.
    trio.now = now + 120_000_000_000;
    trio.settle();
    assert_eq!(trio.engine.held().time_waits, 0);
    assert_shared_matches(trio.threads().engines());
}
