//! Tests the stack with bytes and a clock: two stacks on a link in memory, which may lose, double and reorder frames.

mod cost;
mod fairness;
pub(crate) mod rdma;

use super::arena::Key;
use super::network::{Network, NetworkConfig};
use super::options::SocketOptions;
use super::outcome::{Established, Outcome};
use super::packet::Arrival;
use super::socket::{Datagram, Role, Socket};
use super::{Stack, StackConfig, datagram};
use inlane_core::packet::HeapPool;
use inlane_core::port::{Counters, Reservation, Tx};
use inlane_core::region::Region;
use inlane_core::{Packet, Pool};
use inlane_offload_protocol::rules::Prefix;
use inlane_tcp::{Flow, Header, ReceiveBuffer, Secrets, State};
use inlane_wire::ethernet::Mac;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

pub(crate) type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A transmit queue that appends the frames to a list, which holds at most `capacity` of them.
struct Wire {
    pool: Arc<dyn Pool>,
    frames: Frames,
    capacity: usize,
    /// Memory for a frame that is written in place. `None` if this queue accepts only packets.
    in_place: Option<Vec<u8>>,
}

// SAFETY: `send` frees the packets that it reports as sent to their pool, and no other ones.
unsafe impl Tx for Wire {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        let mut frames = self.frames.lock().unwrap();
        let packets = &packets[..packets.len().min(self.capacity - frames.len())];
        for packet in packets {
            // SAFETY: the caller of `send` owns the packet, and no other thread writes to it.
            frames.push_back(unsafe { packet.bytes() }.to_vec());
        }
        // SAFETY: the packets are of this pool. The caller guarantees not to use them any more.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn reserve(&mut self, len: usize) -> Reservation {
        let is_full = self.frames.lock().unwrap().len() >= self.capacity;
        match &mut self.in_place {
            Some(_) if is_full => Reservation::Full,
            Some(memory) => {
                *memory = vec![0xee; len];
                Reservation::Memory(NonNull::new(memory.as_mut_ptr()).unwrap())
            }
            None => Reservation::Unsupported,
        }
    }

    fn commit(&mut self) {
        self.frames.lock().unwrap().extend(self.in_place.clone());
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// What a machine of the tests is created from.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// The largest IP packet with a TCP segment, in bytes.
    pub(crate) segment_mtu: u16,
    /// The most frames that wait on the link.
    pub(crate) capacity: usize,
    /// True if frames are written and read in place where possible.
    pub(crate) in_place: bool,
    pub(crate) rdma: bool,
    /// True if the machine accepts partial checksums.
    pub(crate) accepts_partial: bool,
    /// True if its peer accepts them.
    pub(crate) peer_accepts_partial: bool,
    /// The size in bytes of each ring of a connection.
    pub(crate) buffer: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            segment_mtu: 1500,
            capacity: usize::MAX,
            in_place: false,
            rdma: false,
            accepts_partial: false,
            peer_accepts_partial: false,
            buffer: 65536,
        }
    }
}

/// A stack and the frames that it has sent.
pub(crate) struct Machine {
    pub(crate) stack: Stack<()>,
    pub(crate) sent: Frames,
    /// The connections that its listener has accepted.
    pub(crate) accepted: Vec<Key>,
    /// The payloads of received datagrams.
    pub(crate) datagrams: Vec<Vec<u8>>,
    /// True if frames are written and read in place where possible.
    in_place: bool,
    /// The number of frames that were read in place.
    read_in_place: usize,
}

impl Machine {
    pub(crate) fn new(number: u8, setup: Setup) -> Self {
        let Setup { segment_mtu, capacity, in_place, rdma, buffer, .. } = setup;
        let sent = Frames::default();
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4096, usize::from(segment_mtu) + 64).unwrap());
        let config = NetworkConfig {
            mac: Mac([2, 0, 0, 0, 0, number]),
            mtu: 1500,
            segment_mtu,
            addresses: vec![Prefix::parse(&format!("10.0.0.{number}/24")).unwrap()],
            gateways: Vec::new(),
            loopback: true,
            partial_checksums: setup.accepts_partial,
            peer_accepts_partial_checksums: setup.peer_accepts_partial,
            missing_icrc: setup.accepts_partial,
        };
        let memory = in_place.then(Vec::new);
        let tx = Box::new(Wire { pool: pool.clone(), frames: sent.clone(), capacity, in_place: memory });
        let network = Network::new(&config, tx, pool);
        let config = StackConfig {
            thread: 0,
            owners: None,
            buffer,
            allocate: |len| Region::host(len).ok(),
            secrets: Secrets::new([number; 16]),
            seed: u64::from(number),
            rdma,
        };
        Self {
            stack: Stack::new(0, config, network),
            sent,
            accepted: Vec::new(),
            datagrams: Vec::new(),
            in_place,
            read_in_place: 0,
        }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.stack.network.addresses()[0].address
    }

    pub(crate) fn insert(&mut self, local: SocketAddr, role: Role) -> Key {
        let key = self.stack.insert(Socket::new(local, false, SocketOptions::default(), role, ()));
        self.stack.hold_port(key, local.port());
        key
    }

    pub(crate) fn listen(&mut self, port: u16) -> Key {
        let local = SocketAddr::new(self.address(), port);
        let listening = self.stack.new_listening(local, &SocketOptions::default(), 8).unwrap();
        self.insert(local, Role::Listening(Box::new(listening)))
    }

    pub(crate) fn connect(&mut self, now: u64, remote: SocketAddr) -> Key {
        let source = self.stack.network.source(remote.ip()).unwrap();
        let local = self.stack.ephemeral(source, remote).unwrap();
        let flow = Flow { local, remote };
        let route = self.stack.network.route(remote.ip()).unwrap();
        let options = SocketOptions::default();
        let stream = self.stack.open_stream(now, flow, route, &options).unwrap();
        let key = self.stack.insert(Socket::new(local, false, options, Role::Stream(Box::new(stream)), ()));
        assert_eq!(self.stack.claim_flow(flow, key), super::owners::Claim::Free);
        self.stack.touch(key);
        key
    }

    pub(crate) fn receive(&mut self, now: u64, frame: &[u8]) {
        // SAFETY: the frame is a slice.
        if self.in_place && unsafe { self.stack.on_frame_in_place(now, frame.as_ptr(), frame.len()) } {
            self.read_in_place += 1;
            return;
        }
        let outcome = self.stack.on_frame(now, frame);
        self.on_outcome(now, outcome);
    }

    pub(crate) fn on_outcome(&mut self, now: u64, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Established(Established { flow, segment, handshake, reopens, .. }) => {
                let options = SocketOptions::default();
                let stream = self.stack.accept_stream(now, flow, &handshake, &options).unwrap();
                let role = Role::Stream(Box::new(stream));
                let key = self.stack.insert(Socket::new(flow.local, false, options, role, ()));
                assert_eq!(self.stack.claim_flow(flow, key), super::owners::Claim::Free);
                self.stack.on_stream_segment(now, key, &segment);
                if reopens {
                    self.stack.end_time_wait(&flow);
                }
                self.accepted.push(key);
            }
            Outcome::Accepted { flow, id, segment_size, .. } => {
                let options = SocketOptions::default();
                let stream =
                    self.stack.accepted_card_stream(now, flow, (id, segment_size), &options).unwrap();
                let role = Role::Stream(Box::new(stream));
                let key = self.stack.insert(Socket::new(flow.local, false, options, role, ()));
                assert_eq!(self.stack.claim_flow(flow, key), super::owners::Claim::Free);
                self.accepted.push(key);
            }
            Outcome::CountForCard { listener } => self.stack.tell_waiting(listener),
            Outcome::Datagram(received) => {
                match self.stack.datagram_socket(received.local, received.remote) {
                    Some(_) => self.datagrams.push(received.data.to_vec()),
                    None => self.stack.refuse(now, &received.packet),
                }
            }
            Outcome::Reassembled(packet) => {
                let outcome = self.stack.on_reassembled(now, &packet);
                self.on_outcome(now, outcome);
            }
            _ => {}
        }
    }

    /// Runs the timers, and sends what the changed connections have to send. Removes connections that have ended.
    pub(crate) fn serve(&mut self, now: u64) {
        self.stack.expire(now, &mut Vec::new());
        while let Some(packet) = self.stack.network.own.pop_front() {
            let outcome = self.stack.on_ip(now, &packet, Arrival::OWN);
            self.on_outcome(now, outcome);
        }
        let mut keys = self.stack.take_changed();
        for key in keys.drain(..) {
            if self.stack.begin_service(key) {
                let Stack { sockets, network, .. } = &mut self.stack;
                let Some(Socket { role: Role::Stream(stream), .. }) = sockets.get_mut(key) else { continue };
                let again = stream.transmit(now, network);
                let (deadline, state) = (stream.next_deadline(), stream.connection.state());
                match state {
                    State::Closed | State::TimeWait if stream.undelivered() == 0 => {
                        self.stack.enter_time_wait(key);
                        self.stack.remove(key);
                    }
                    _ => {
                        if let Some(deadline) = deadline {
                            self.stack.arm(key, deadline);
                            self.stack.watch_acknowledgment(key);
                        }
                    }
                }
                if again {
                    self.stack.touch(key);
                }
            }
        }
        self.stack.reuse_changed(keys);
        self.stack.network.flush();
    }

    /// Writes as many of `bytes` as fit into a connection's send ring. Returns their number.
    pub(crate) fn write(&mut self, key: Key, bytes: &[u8]) -> usize {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.stack.sockets.get_mut(key) else {
            return 0;
        };
        let len = stream.room(stream.send.capacity() as u64).min(bytes.len() as u64);
        stream.send.write(stream.written, &bytes[..len as usize]);
        stream.add_written(len);
        self.stack.touch(key);
        len as usize
    }

    /// Takes the received bytes of a connection.
    pub(crate) fn read(&mut self, key: Key) -> Vec<u8> {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.stack.sockets.get_mut(key) else {
            return Vec::new();
        };
        let mut bytes = vec![0; stream.undelivered() as usize];
        stream.receive.read(stream.delivered..stream.connection.received(), &mut bytes);
        stream.delivered += bytes.len() as u64;
        stream.publish_delivered();
        self.stack.touch(key);
        bytes
    }

    pub(crate) fn close(&mut self, now: u64, key: Key) {
        if let Some(Socket { role: Role::Stream(stream), .. }) = self.stack.sockets.get_mut(key) {
            stream.connection.close(now);
        }
        self.stack.touch(key);
    }
}

/// Two machines on a link, and the clock.
pub(crate) struct World {
    machines: [Machine; 2],
    now: u64,
    /// The length in bytes of the longest frame so far.
    longest: usize,
    /// All frames so far, if they are recorded.
    recorded: Option<Vec<Vec<u8>>>,
}

impl World {
    fn new() -> Self {
        Self::of([Setup::default(); 2])
    }

    /// Creates two machines of which some use RDMA.
    fn with_rdma(rdma: [bool; 2]) -> Self {
        Self::of(rdma.map(|rdma| Setup { rdma, ..Setup::default() }))
    }

    /// Creates two machines that accept packets with TCP segments of these sizes. Each step moves at most `capacity` frames
    /// in each direction. If `in_place` is set, frames are written and read in place where possible.
    fn with(segment_mtus: [u16; 2], capacity: usize, in_place: bool) -> Self {
        Self::of(segment_mtus.map(|segment_mtu| Setup {
            segment_mtu,
            capacity,
            in_place,
            ..Setup::default()
        }))
    }

    fn of(setups: [Setup; 2]) -> Self {
        let mut machines = [0, 1].map(|at| Machine::new(at as u8 + 1, setups[at]));
        // A lossy link can lose all requests for a neighbour's address, and the connection then ends.
        for (machine, other) in [(0, 1), (1, 0)] {
            let (address, mac) = (machines[other].address(), machines[other].stack.network.mac());
            machines[machine].stack.network.learn(1, address, mac, true);
        }
        Self { machines, now: 1, longest: 0, recorded: None }
    }

    /// Advances the clock by 1 ms, and moves all frames. `fate` may change a frame, and returns how often it arrives. If no frame was sent,
    /// advances the clock to the next timer.
    fn step(&mut self, fate: &mut impl FnMut(&mut Vec<u8>) -> usize) {
        self.now += 1_000_000;
        let mut idle = true;
        for machine in &mut self.machines {
            machine.serve(self.now);
        }
        for from in 0..2 {
            let frames = std::mem::take(&mut *self.machines[from].sent.lock().unwrap());
            idle &= frames.is_empty();
            for mut frame in frames {
                self.longest = self.longest.max(frame.len());
                self.recorded.iter_mut().for_each(|recorded| recorded.push(frame.clone()));
                for _ in 0..fate(&mut frame) {
                    self.machines[1 - from].receive(self.now, &frame);
                }
            }
        }
        let timers = self.machines.iter().flat_map(|machine| {
            machine.stack.next_timer().into_iter().chain(machine.stack.network.next_timer())
        });
        if let Some(next) = timers.min().filter(|_| idle) {
            self.now = self.now.max(next);
        }
    }

    /// Sends `data` from machine 0 to the listener of machine 1, and closes both ends. Returns the received bytes.
    fn transfer(&mut self, data: &[u8], mut fate: impl FnMut(&mut Vec<u8>) -> usize) -> Vec<u8> {
        let listener = self.machines[1].listen(80);
        let remote = SocketAddr::new(self.machines[1].address(), 80);
        let client = self.machines[0].connect(self.now, remote);
        let (mut sent, mut received) = (0, Vec::new());
        let mut closed = false;
        for _ in 0..20_000 {
            let connected = self.machines[0].stack.sockets.get(client).and_then(Socket::stream);
            let connected = connected.is_some_and(|stream| stream.connected);
            sent += self.machines[0].write(client, &data[sent..]);
            // A close before would abort the attempt.
            if connected && sent == data.len() && !closed {
                closed = true;
                self.machines[0].close(self.now, client);
            }
            self.step(&mut fate);
            if let Some(&server) = self.machines[1].accepted.first() {
                received.extend(self.machines[1].read(server));
                if received.len() == data.len() {
                    self.machines[1].close(self.now, server);
                }
            }
            let streams = |machine: &Machine| machine.stack.flows.len();
            if closed && received.len() == data.len() && self.machines.iter().all(|one| streams(one) == 0) {
                self.machines[1].stack.remove(listener);
                return received;
            }
        }
        panic!("{sent} bytes were sent and {} received", received.len());
    }

    fn assert_empty(&mut self) {
        self.now += 300_000_000_000;
        self.step(&mut |_| 1);
        for machine in &self.machines {
            let stack = &machine.stack;
            let left = stack.sockets.len() + stack.flows.len() + stack.ports.len() + stack.time_waits.len();
            assert_eq!((left, stack.next_timer()), (0, None));
        }
    }
}

#[test]
fn a_connection_carries_data_and_leaves_nothing() {
    let data: Vec<u8> = (0..500_000u32).map(|number| (number % 251) as u8).collect();
    let mut world = World::new();
    assert!(world.transfer(&data, |_| 1) == data);
    world.assert_empty();
}

#[test]
fn frames_in_place_are_those_of_packets() {
    let data: Vec<u8> = (0..500_001u32).map(|number| (number % 251) as u8).collect();
    let mut worlds = [false, true].map(|in_place| World::with([9000, 9000], usize::MAX, in_place));
    let recorded = worlds.each_mut().map(|world| {
        world.recorded = Some(Vec::new());
        assert!(world.transfer(&data, |_| 1) == data);
        world.recorded.take().unwrap()
    });
    assert!(recorded[0] == recorded[1]);
    assert!(worlds[1].machines.iter().all(|machine| machine.read_in_place > 3));
}

/// Returns the checksum field of a frame's TCP segment over IPv4, and the sum of the pseudo header.
fn checksums(frame: &[u8]) -> (u16, u16) {
    let packet = inlane_wire::ipv4::Packet::new(&frame[14..]).unwrap();
    (inlane_wire::tcp::Segment::new(packet.payload()).unwrap().checksum(), packet.pseudo_sum().folded())
}

#[test]
fn checksums_are_left_out_only_where_the_peer_accepts_that() {
    let data: Vec<u8> = (0..300_001u32).map(|number| (number % 251) as u8).collect();
    for peer_accepts_partial in [false, true] {
        let setup = Setup { in_place: true, ..Setup::default() };
        let mut world = World::of([
            Setup { peer_accepts_partial, ..setup },
            Setup { accepts_partial: peer_accepts_partial, ..setup },
        ]);
        world.recorded = Some(Vec::new());
        assert!(world.transfer(&data, |_| 1) == data);
        let frames = world.recorded.take().unwrap();
        let left_out: Vec<_> = frames.iter().map(|frame| checksums(frame)).collect();
        let left_out = left_out.iter().filter(|(field, pseudo)| field == pseudo).count();
        assert_eq!(left_out >= 200, peer_accepts_partial, "{left_out} of {} frames", frames.len());
        assert_eq!(left_out > 0, peer_accepts_partial, "{left_out} of {} frames", frames.len());
        if peer_accepts_partial {
            // A machine that does not accept partial checksums drops such segments.
            let mut other = Machine::new(2, setup);
            let frame = frames.iter().max_by_key(|frame| frame.len()).unwrap();
            other.receive(1, frame);
            assert_eq!(other.stack.network.counters.malformed, 1);
        }
    }
}

#[test]
fn only_whole_and_intact_segments_of_connections_are_read_in_place() {
    let mut world = World::with([9000, 9000], usize::MAX, true);
    world.machines[1].listen(80);
    let remote = SocketAddr::new(world.machines[1].address(), 80);
    let client = world.machines[0].connect(world.now, remote);
    for _ in 0..10 {
        world.step(&mut |_| 1);
    }
    world.machines[0].write(client, &[7; 9000]);
    world.machines[0].serve(world.now);
    let frame = world.machines[0].sent.lock().unwrap().pop_front().unwrap();
    assert_eq!(frame.len(), 9014);
    let stack = &mut world.machines[1].stack;
    // SAFETY: the frame is a slice.
    let mut reads = |frame: &[u8]| unsafe { stack.on_frame_in_place(world.now, frame.as_ptr(), frame.len()) };
    for damaged in [0, 12, 14, 16, 20, 23, 26, 30, 34, 36, 38, 46, 47, 50, 65, 66, 4000, 9013] {
        let mut frame = frame.clone();
        frame[damaged] ^= 0x10;
        assert!(!reads(&frame), "byte {damaged}");
    }
    for len in [0, 1, 13, 14, 33, 34, 53, 54, 65, 66, 128, 9013] {
        assert!(!reads(&frame[..len]), "{len} bytes");
    }
    assert!(reads(&frame) && reads(&[&frame[..], &[0; 3]].concat()), "padding is allowed");
}

#[test]
fn segments_are_as_large_as_both_ends_accept() {
    for (segment_mtus, longest) in [([9000, 9000], 9014), ([9000, 1500], 1514), ([1500, 9000], 1514)] {
        let mut world = World::with(segment_mtus, usize::MAX, false);
        let data = vec![7; 200_000];
        assert!(world.transfer(&data, |_| 1) == data);
        assert_eq!(world.longest, longest, "{segment_mtus:?}");
        world.assert_empty();
    }
}

#[test]
fn sixty_four_streams_share_a_full_transmit_queue_and_lose_nothing() {
    for in_place in [false, true] {
        share_a_full_queue(World::with([1500, 1500], 128, in_place));
    }
}

fn share_a_full_queue(mut world: World) {
    const STREAMS: usize = 64;
    const BYTES: usize = 1 << 20;
    world.machines[1].listen(80);
    let remote = SocketAddr::new(world.machines[1].address(), 80);
    let clients: Vec<Key> = (0..STREAMS).map(|_| world.machines[0].connect(world.now, remote)).collect();
    let mut received: Vec<usize> = Vec::new();
    while received.iter().max().is_none_or(|&most| most < BYTES) {
        for &client in &clients {
            world.machines[0].write(client, &[7; 65536]);
        }
        world.step(&mut |_| 1);
        let server = &mut world.machines[1];
        received.resize(server.accepted.len(), 0);
        for (received, key) in received.iter_mut().zip(server.accepted.clone()) {
            *received += server.read(key).len();
        }
    }
    assert!(received.len() == STREAMS && received.iter().all(|&bytes| bytes > BYTES / 2), "{received:?}");
    let stack = &world.machines[0].stack;
    assert_eq!(stack.network.counters.dropped, 0);
    let streams = clients.iter().filter_map(|&client| stack.sockets.get(client)?.stream());
    assert_eq!(streams.map(|stream| stream.connection.counters().retransmitted_bytes).sum::<u64>(), 0);
}

#[test]
fn a_connection_that_reuses_a_flow_in_time_wait_begins_above_the_earlier_one() {
    let mut world = World::new();
    // So many bytes in few milliseconds exceed the clock of the initial sequence numbers.
    world.transfer(&vec![7; 500_000], |_| 1);
    let machine = &mut world.machines[0];
    let stack = &mut machine.stack;
    let (&flow, &entry) = stack.time_waits.iter().next().unwrap();
    let route = stack.network.route(flow.remote.ip()).unwrap();
    let options = SocketOptions::default();
    let stream = stack.open_stream(world.now, flow, route, &options).unwrap();
    let socket = Socket::new(flow.local, false, options, Role::Stream(Box::new(stream)), ());
    let key = stack.insert(socket);
    stack.touch(key);
    machine.serve(world.now);
    let frame = machine.sent.lock().unwrap().pop_back().unwrap();
    let syn = inlane_wire::tcp::Segment::new(&frame[34..]).unwrap().sequence();
    assert_eq!(entry.sequence_after(syn), syn);
}

#[test]
fn a_connect_examines_few_ports_that_are_in_time_wait() {
    let mut world = World::new();
    world.transfer(b"data", |_| 1);
    let stack = &mut world.machines[0].stack;
    let (&flow, &entry) = stack.time_waits.iter().next().unwrap();
    let free = 32768;
    for port in free + 1..=60999 {
        let local = SocketAddr::new(flow.local.ip(), port);
        stack.time_waits.insert(Flow { local, ..flow }, entry);
    }
    stack.time_waits.remove(&Flow { local: SocketAddr::new(flow.local.ip(), free), ..flow });
    // An examination of all ports would find the free one each time.
    let found = (0..10).filter(|_| stack.ephemeral(flow.local.ip(), flow.remote).unwrap().port() == free);
    assert!(found.count() < 10);
}

#[test]
fn a_connection_to_the_own_address_needs_no_frame() {
    let mut world = World::new();
    let remote = SocketAddr::new(world.machines[0].address(), 80);
    let listener = world.machines[0].listen(80);
    let client = world.machines[0].connect(world.now, remote);
    for _ in 0..10 {
        world.machines[0].write(client, b"x");
        world.step(&mut |_| panic!("a frame was sent"));
    }
    let server = world.machines[0].accepted[0];
    let connected = world.machines[0].stack.sockets.get(client).unwrap().stream().unwrap().connected;
    assert!(connected && world.machines[0].read(server).len() >= 5);
    assert!(world.machines[0].stack.remove(listener).is_some());
}

#[test]
fn a_neighbour_that_does_not_answer_ends_the_connection() {
    let mut world = World::new();
    let client = world.machines[0].connect(world.now, "10.0.0.77:80".parse().unwrap());
    for _ in 0..10_000 {
        world.step(&mut |_| 1);
    }
    assert!(world.machines[0].stack.sockets.get(client).is_none(), "ARP gives up after three seconds");
    world.assert_empty();
}

#[test]
fn datagrams_larger_than_the_mtu_arrive_whole() {
    let mut world = World::new();
    let remote: SocketAddr = "10.0.0.2:53".parse().unwrap();
    let server = world.machines[1].insert(remote, Role::Datagram(Datagram::default()));
    let client =
        world.machines[0].insert("0.0.0.0:5000".parse().unwrap(), Role::Datagram(Datagram::default()));
    let now = world.now;
    for len in [0, 1, 1472, 1473, 65_507] {
        let data = vec![7; len];
        let outgoing = datagram::Outgoing { source: None, remote, class: 0, hops: 64, data: &data };
        assert_eq!(world.machines[0].stack.send_datagram(now, client, &outgoing), Ok(true));
        for _ in 0..4 {
            world.step(&mut |_| 1);
        }
        assert_eq!(world.machines[1].datagrams.pop(), Some(data));
    }
    let data = vec![7; 65_508];
    let outgoing = datagram::Outgoing { source: None, remote, class: 0, hops: 64, data: &data };
    let stack = &mut world.machines[0].stack;
    assert_eq!(stack.send_datagram(now, client, &outgoing), Err(datagram::Unsendable::Length));
    assert!(stack.remove(client).is_some() && world.machines[1].stack.remove(server).is_some());
    world.assert_empty();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Frames are lost and doubled. Every byte still arrives once and in order.
    #[test]
    fn a_connection_survives_a_bad_link(seed in any::<u64>(), len in 0usize..30_000, lost in 0u64..15, doubled in 0u64..10, in_place: bool) {
        let data: Vec<u8> = (0..len).map(|number| (number % 253) as u8).collect();
        let mut world = World::with([1500, 1500], usize::MAX, in_place);
        let mut random = seed;
        let fate = |_: &mut Vec<u8>| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match random >> 33 {
                number if number % 100 < lost => 0,
                number if number % 100 < lost + doubled => 2,
                _ => 1,
            }
        };
        prop_assert!(world.transfer(&data, fate) == data);
        world.assert_empty();
    }

    /// Any frames, many of them near those of the protocols, leave a stack that still serves others.
    #[test]
    fn hostile_frames_do_no_harm(frames in proptest::collection::vec(
        (proptest::collection::vec(any::<u8>(), 0..120), 0usize..4, any::<[u32; 2]>(), any::<u8>()), 1..40), in_place: bool) {
        let mut world = World::with([1500, 1500], usize::MAX, in_place);
        let listener = world.machines[1].listen(8080);
        for (bytes, kind, [sequence, acknowledgment], flags) in frames {
            let header = Header { sequence, acknowledgment, window: 1000, flags, ..Header::default() };
            let now = world.now;
            match kind {
                0 => world.machines[1].receive(now, &bytes),
                1 => {
                    // A segment with a correct checksum, sent by the other stack.
                    let flow = Flow { local: "10.0.0.1:4000".parse().unwrap(), remote: "10.0.0.2:8080".parse().unwrap() };
                    world.machines[0].stack.send_header(now, &flow, &header);
                }
                _ => {
                    let mut frame = vec![0; 14];
                    frame[..6].copy_from_slice(&world.machines[1].stack.network.mac().0);
                    let kinds: [u16; 2] = [inlane_wire::ethernet::IPV4, inlane_wire::ethernet::ARP];
                    frame[12..].copy_from_slice(&kinds[kind - 2].to_be_bytes());
                    frame.extend_from_slice(&bytes);
                    world.machines[1].receive(now, &frame);
                }
            }
            world.step(&mut |_| 1);
        }
        let data: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        for key in std::mem::take(&mut world.machines[1].accepted) {
            world.machines[1].stack.remove(key);
        }
        prop_assert!(world.transfer(&data, |_| 1) == data);
        prop_assert!(world.machines[1].stack.remove(listener).is_some());
        world.assert_empty();
    }
}
