//! Connections whose data RDMA carries.

mod in_place;
mod posted;
mod stores;

use super::*;
use crate::host::memory::allocate_ring;
use crate::stack::rdma::RdmaCounters;
use inlane_offload_protocol::slots::Area;
use inlane_tcp::EndReason;
use inlane_wire::{ethernet, ipv4, roce, tcp, udp};

const IP: usize = ethernet::HEADER;
const UPPER: usize = IP + ipv4::HEADER;
const BTH: usize = UPPER + udp::HEADER;

fn counters(world: &World) -> [RdmaCounters; 2] {
    world.machines.each_ref().map(|machine| machine.stack.rdma_counters().unwrap_or_default())
}

fn data(len: u32) -> Vec<u8> {
    (0..len).map(|number| (number % 251) as u8).collect()
}

/// Returns the memory of an area whose rings have `len` bytes, and the area. Keep the memory while the area is used.
fn new_area(len: usize) -> (Region, Area) {
    let memory = allocate_ring(Area::len(len).unwrap()).unwrap();
    // SAFETY: the caller keeps the memory.
    let area = unsafe { Area::new(NonNull::new(memory.as_ptr()).unwrap(), len) };
    area.initialise(1);
    (memory, area)
}

/// Returns true if a frame is an RDMA packet.
fn is_rdma(frame: &[u8]) -> bool {
    frame[IP + 9] == ipv4::UDP && frame[UPPER + 2..UPPER + 4] == roce::PORT.to_be_bytes()
}

/// Returns true if a frame is an RDMA packet with data.
fn is_write(frame: &[u8]) -> bool {
    is_rdma(frame) && frame[BTH] == roce::opcode::WRITE_ONLY
}

/// A connection of machine 0 to a listener of machine 1, with the bytes to send and to receive.
pub(crate) struct Link {
    world: World,
    client: Key,
    server: Option<Key>,
    /// What is still to be sent by each machine.
    to_send: [Vec<u8>; 2],
    received: [Vec<u8>; 2],
}

impl Link {
    pub(crate) fn new(rdma: [bool; 2], to_send: [Vec<u8>; 2]) -> Self {
        Self::of(rdma.map(|rdma| Setup { rdma, ..Setup::default() }), to_send)
    }

    fn of(setups: [Setup; 2], to_send: [Vec<u8>; 2]) -> Self {
        let mut world = World::of(setups);
        world.machines[1].listen(80);
        let remote = SocketAddr::new(world.machines[1].address(), 80);
        let client = world.machines[0].connect(world.now, remote);
        Self { world, client, server: None, to_send, received: Default::default() }
    }

    fn step(&mut self, fate: &mut impl FnMut(&mut Vec<u8>) -> usize) {
        self.server = self.server.or(self.world.machines[1].accepted.first().copied());
        for (at, key) in [(0, Some(self.client)), (1, self.server)] {
            let Some(key) = key else { continue };
            let sent = self.world.machines[at].write(key, &self.to_send[at]);
            self.to_send[at].drain(..sent);
            self.received[at].extend(self.world.machines[at].read(key));
        }
        self.world.step(fate);
    }

    /// Runs until each machine has received what the other one sends. Returns the time that this took, in milliseconds.
    pub(crate) fn run(&mut self, mut fate: impl FnMut(&mut Vec<u8>) -> usize) -> u64 {
        let expected = [self.to_send[1].clone(), self.to_send[0].clone()];
        for _ in 0..50_000 {
            self.step(&mut fate);
            if self.received.each_ref().map(Vec::len) == expected.each_ref().map(Vec::len) {
                assert!(self.received == expected);
                return self.world.now / 1_000_000;
            }
        }
        panic!("{:?} bytes were received", self.received.each_ref().map(Vec::len));
    }

    fn stream(&self, machine: usize) -> &crate::stack::stream::Stream {
        let key = [Some(self.client), self.server][machine].unwrap();
        self.world.machines[machine].stack.sockets.get(key).unwrap().stream().unwrap()
    }

    pub(crate) fn stream_mut(&mut self, machine: usize) -> &mut crate::stack::stream::Stream {
        let key = [Some(self.client), self.server][machine].unwrap();
        match &mut self.world.machines[machine].stack.sockets.get_mut(key).unwrap().role {
            Role::Stream(stream) => stream,
            _ => unreachable!("the connection's role does not change"),
        }
    }

    fn transports(&self) -> [(&'static str, Option<&'static str>); 2] {
        [0, 1].map(|machine| self.stream(machine).transport.describe())
    }

    /// Closes both ends, and checks that nothing is left.
    fn close(mut self, mut fate: impl FnMut(&mut Vec<u8>) -> usize) {
        self.world.machines[0].close(self.world.now, self.client);
        for _ in 0..2000 {
            self.world.step(&mut fate);
            if self.stream_is_gone(0) && self.stream_is_gone(1) {
                break;
            }
            let server = self.server.unwrap();
            if self.world.machines[1]
                .stack
                .sockets
                .get(server)
                .is_some_and(|socket| socket.stream().is_some_and(|stream| stream.connection.peer_closed()))
            {
                self.world.machines[1].close(self.world.now, server);
            }
        }
        assert!(self.stream_is_gone(0) && self.stream_is_gone(1));
        self.world.assert_only_listener();
    }

    fn stream_is_gone(&self, machine: usize) -> bool {
        self.world.machines[machine].stack.flows.len() == 0
    }
}

impl World {
    /// Checks that only the listener is left after a long time.
    fn assert_only_listener(&mut self) {
        self.now += 300_000_000_000;
        self.step(&mut |_| 1);
        for machine in &self.machines {
            let stack = &machine.stack;
            let left = stack.flows.len() + stack.time_waits.len();
            assert_eq!((left, stack.next_timer()), (0, None));
        }
    }
}

#[test]
fn rdma_carries_the_data_and_leaves_nothing() {
    let data = data(500_000);
    let mut world = World::with_rdma([true; 2]);
    let mut tcp_bytes = 0;
    let fate = |frame: &mut Vec<u8>| {
        if frame[IP + 9] == ipv4::TCP {
            let segment = tcp::Segment::new(&frame[UPPER..]).unwrap();
            tcp_bytes += frame.len() - UPPER - segment.header_len();
        }
        1
    };
    assert!(world.transfer(&data, fate) == data);
    assert_eq!(tcp_bytes, 0, "TCP carries no data");
    let [client, server] = counters(&world);
    assert_eq!((client.connections, server.connections), (1, 1));
    assert_eq!(server, RdmaCounters { connections: 1, placed_bytes: 500_000, ..RdmaCounters::default() });
    world.assert_empty();
}

#[test]
fn a_peer_without_rdma_gets_tcp() {
    for rdma in [[true, false], [false, true]] {
        let mut link = Link::new(rdma, [data(100_000), data(50_000)]);
        link.run(|frame| {
            assert!(!is_rdma(frame));
            1
        });
        let reason = Some("the peer does not offer RDMA");
        assert_eq!(link.transports(), rdma.map(|rdma| ("tcp", reason.filter(|_| rdma))));
        link.close(|_| 1);
    }
}

#[test]
fn a_connection_whose_rdma_packets_are_lost_returns_to_tcp() {
    // All packets, those to one side, and those after the connection has carried data for a while.
    for (to, after) in [(None, 0), (Some(1), 0), (Some(2), 0), (None, 60), (Some(1), 60), (Some(2), 60)] {
        let mut link = Link::new([true; 2], [data(300_000), data(200_000)]);
        let mut seen = 0;
        let time = link.run(|frame| {
            seen += usize::from(is_rdma(frame));
            usize::from(!is_rdma(frame) || seen <= after || to.is_some_and(|to| frame[5] != to))
        });
        assert!(time < 5000, "{to:?}, {after}: {time} ms");
        assert!(
            link.transports().iter().all(|(transport, _)| *transport == "tcp"),
            "{:?}",
            link.transports()
        );
        assert_eq!(counters(&link.world).map(|counters| counters.returned), [1, 1]);
        link.close(|_| 1);
    }
}

#[test]
fn a_server_that_waits_for_an_answer_returns_to_tcp_too() {
    // Only the server has data, so it is the only one to notice.
    let mut link = Link::new([true; 2], [Vec::new(), data(100_000)]);
    link.run(|frame| usize::from(!is_rdma(frame)));
    assert_eq!(link.transports()[1], ("tcp", Some("the peer does not answer over RDMA")));
    link.close(|_| 1);
}

#[test]
fn a_middlebox_that_removes_the_answer_costs_only_rdma() {
    let mut link = Link::new([true; 2], [data(100_000), data(50_000)]);
    link.run(|frame| {
        let is_syn_ack = frame[IP + 9] == ipv4::TCP && frame[UPPER + 13] & 0x12 == 0x12;
        if is_syn_ack {
            let option = frame.windows(4).position(|bytes| bytes == [254, 18, b'I', b'L']).unwrap();
            frame[option..option + 18].fill(1);
            let pseudo = ipv4::Packet::new(&frame[IP..]).unwrap().pseudo_sum();
            frame[UPPER + 16..UPPER + 18].fill(0);
            tcp::Segment::new(&mut frame[UPPER..]).unwrap().fill_checksum(pseudo);
        }
        1
    });
    let expected = ["the peer does not offer RDMA", "the peer has returned to TCP"];
    assert_eq!(link.transports(), expected.map(|reason| ("tcp", Some(reason))));
    link.close(|_| 1);
}

/// Faults of a link: probabilities in tenths of a percent.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lost: u64,
    burst: u64,
    doubled: u64,
    corrupted: u64,
    reordered: u64,
}

/// Returns the fate of frames on a link with these faults.
fn faulty(faults: Faults, seed: u64) -> impl FnMut(&mut Vec<u8>) -> usize {
    let (mut state, mut left) = (seed, [0, 0]);
    let mut held: [Option<Vec<u8>>; 2] = [None, None];
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    move |frame| {
        let to = usize::from(frame[5] == 1);
        if left[to] > 0 {
            left[to] -= 1;
            return 0;
        }
        if random(1000) < faults.lost {
            left[to] = faults.burst.saturating_sub(1);
            return 0;
        }
        if random(1000) < faults.corrupted {
            let at = ethernet::HEADER + random((frame.len() - ethernet::HEADER) as u64) as usize;
            frame[at] ^= 1 << random(8);
        }
        if random(1000) < faults.reordered {
            match &mut held[to] {
                Some(held) => std::mem::swap(held, frame),
                none => {
                    *none = Some(frame.clone());
                    return 0;
                }
            }
        }
        1 + usize::from(random(1000) < faults.doubled)
    }
}

#[test]
fn every_byte_is_right_on_a_bad_link() {
    let mut returned = 0;
    let mut total = RdmaCounters::default();
    for (lost, burst) in [(0, 1), (1, 1), (10, 1), (50, 1), (1, 8), (3, 8), (1, 32), (2, 32)] {
        for (doubled, corrupted, reordered) in [(0, 0, 0), (20, 0, 0), (0, 10, 0), (0, 0, 100), (20, 10, 50)]
        {
            let faults = Faults { lost, burst, doubled, corrupted, reordered };
            let mut link = Link::new([true; 2], [data(150_000), data(100_000)]);
            link.run(faulty(faults, lost * 1000 + burst * 100 + doubled + corrupted + reordered));
            for counters in counters(&link.world) {
                assert_eq!(counters.connections, 1, "{faults:?}");
                assert_eq!(counters.refused_control, 0, "{faults:?}");
                returned += counters.returned;
                total += counters;
            }
            link.close(|_| 1);
        }
    }
    assert!(returned < 8, "{returned} of 80 ends have returned to TCP");
    assert!(total.retransmitted > 0 && total.duplicates > 0 && total.refused_icrc > 0, "{total:?}");
}

#[test]
fn goodput_at_one_percent_of_loss_is_at_least_that_of_tcp() {
    let time = |rdma: bool| {
        let faults = Faults { lost: 10, burst: 1, ..Faults::default() };
        (0..4)
            .map(|seed| Link::new([rdma; 2], [data(1_500_000), Vec::new()]).run(faulty(faults, seed)))
            .sum::<u64>()
    };
    let (rdma, tcp) = (time(true), time(false));
    println!("RDMA {rdma} ms, TCP {tcp} ms");
    assert!(rdma <= tcp, "RDMA {rdma} ms, TCP {tcp} ms");
}

#[test]
fn a_reset_in_the_middle_of_a_transfer_reaches_the_peer() {
    // The reset of TCP, that of RDMA, or both arrive.
    for kept in [[true, true], [true, false], [false, true]] {
        let mut link = Link::new([true; 2], [data(1_000_000), Vec::new()]);
        for _ in 0..30 {
            link.step(&mut |_| 1);
        }
        let server = link.server.unwrap();
        let machine = &mut link.world.machines[1];
        if let Some(Socket { role: Role::Stream(stream), .. }) = machine.stack.sockets.get_mut(server) {
            stream.connection.abort();
        }
        machine.stack.touch(server);
        let mut fate = |frame: &mut Vec<u8>| usize::from(kept[usize::from(is_rdma(frame))]);
        machine.serve(link.world.now);
        let mut reason = None;
        for _ in 0..1000 {
            link.world.step(&mut fate);
            let socket = link.world.machines[0].stack.sockets.get(link.client);
            reason = reason.or(socket.and_then(|socket| socket.stream()?.connection.reason()));
            if socket.is_none() || reason.is_some() {
                break;
            }
        }
        assert!(reason.is_none_or(|reason| reason == EndReason::Reset), "{kept:?}: {reason:?}");
        assert!(link.world.machines[0].stack.flows.len() == 0 || reason.is_some(), "{kept:?}");
        assert!(link.world.machines[1].stack.flows.len() == 0, "{kept:?}");
    }
}

#[test]
fn a_peer_that_dies_ends_the_connection() {
    let mut link = Link::new([true; 2], [data(1_000_000), Vec::new()]);
    for _ in 0..30 {
        link.step(&mut |_| 1);
    }
    for _ in 0..10_000 {
        link.world.step(&mut |_| 0);
    }
    assert!(link.stream_is_gone(0), "TCP's retransmissions end it");
}

/// Changes an RDMA packet, and makes its ICRC right again.
fn forged(frame: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = frame.to_vec();
    change(&mut frame);
    roce::fill_icrc(&mut frame[IP..]).unwrap();
    frame
}

#[test]
fn forged_packets_are_counted_and_refused() {
    let mut link = Link::new([true; 2], [data(400_000), Vec::new()]);
    let (mut packets, mut valid): (Vec<Vec<u8>>, [u8; 4]) = Default::default();
    for _ in 0..20 {
        link.step(&mut |frame| {
            packets.extend(Some(frame.clone()).filter(|frame| is_write(frame)));
            if is_rdma(frame) && frame[5] == 1 && frame[BTH] == inlane_rdma::CONTROL {
                // The last range of the server's memory information.
                valid.copy_from_slice(&frame[frame.len() - roce::ICRC - 16..][..4]);
            }
            1
        });
    }
    let (first, last) = (packets[0].clone(), packets.last().unwrap().clone());
    let now = link.world.now;
    let mut check = |what: &str, frame: Vec<u8>, counter: fn(&RdmaCounters) -> u64| {
        let [_, before] = counters(&link.world);
        link.world.machines[1].receive(now, &frame);
        let [_, after] = counters(&link.world);
        assert_eq!(counter(&after), counter(&before) + 1, "{what}");
        assert_eq!(after.placed_bytes, before.placed_bytes, "{what}");
        assert_eq!(after.returned, 0, "{what}");
    };
    check("a replay", first.clone(), |it| it.duplicates);
    check("a replay of the last packet", last.clone(), |it| it.duplicates);
    let psn = |frame: &mut [u8], more: u32| {
        let at = BTH + 8;
        let number = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        frame[at..at + 4].copy_from_slice(&(number.wrapping_add(more) & roce::MASK).to_be_bytes());
    };
    let reth = BTH + roce::BTH;
    check("a used key", forged(&first, |frame| psn(frame, packets.len() as u32 + 8)), |it| it.refused_key);
    check(
        "a wrong key",
        forged(&last, |frame| {
            psn(frame, 8);
            frame[reth + 11] ^= 1;
        }),
        |it| it.refused_key,
    );
    check("a PSN far ahead", forged(&last, |frame| psn(frame, 1 << 22)), |it| it.refused_psn);
    check(
        "an address outside the key's range",
        forged(&last, |frame| {
            psn(frame, 8);
            frame[reth + 8..reth + 12].copy_from_slice(&valid);
            frame[reth] = 0x80;
        }),
        |it| it.refused_range,
    );
    check(
        "another length",
        forged(&last, |frame| {
            psn(frame, 8);
            frame[reth + 8..reth + 12].copy_from_slice(&valid);
            frame[reth + 15] ^= 1;
        }),
        |it| it.refused_range,
    );
    check("another queue pair", forged(&last, |frame| frame[BTH + 6] ^= 1), |it| it.refused_queue_pair);
    check(
        "another source address",
        forged(&last, |frame| {
            frame[IP + 15] = 77;
            ipv4::Packet::new(&mut frame[IP..]).unwrap().fill_checksum();
        }),
        |it| it.refused_queue_pair,
    );
    check("an unknown opcode", forged(&last, |frame| frame[BTH] = 0x33), |it| it.malformed);
    let mut corrupt = last.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    check("a wrong ICRC", corrupt, |it| it.refused_icrc);
    for end in [BTH, BTH + 5, BTH + roce::BTH + 3] {
        let mut short = last[..end].to_vec();
        ipv4::Packet::new(&mut short[IP..]).unwrap().set_total_length((end - IP) as u16);
        ipv4::Packet::new(&mut short[IP..]).unwrap().fill_checksum();
        udp::Datagram::new(&mut short[UPPER..]).unwrap().set_length((end - UPPER) as u16);
        check("a packet cut short", short, |it| it.refused());
    }
    link.run_rest();
    let server_packets = counters(&link.world)[1];
    assert_eq!(server_packets.returned, 0);
    link.close(|_| 1);
}

impl Link {
    /// Runs until machine 1 has received everything.
    fn run_rest(&mut self) {
        let len = self.to_send[0].len() + self.received[1].len() + self.stream(0).send.capacity();
        for _ in 0..5000 {
            self.step(&mut |_| 1);
        }
        assert!(
            self.received[1] == data(self.received[1].len() as u32) && self.received[1].len() + 65_536 >= len
        );
        assert!(self.to_send[0].is_empty());
    }
}

#[test]
fn packets_after_the_close_are_refused() {
    let mut link = Link::new([true; 2], [data(10_000), Vec::new()]);
    let mut packets: Vec<Vec<u8>> = Vec::new();
    link.run(|frame| {
        packets.extend(Some(frame.clone()).filter(|frame| is_write(frame)));
        1
    });
    link.world.machines[0].close(link.world.now, link.client);
    link.world.machines[1].close(link.world.now, link.server.unwrap());
    for _ in 0..100 {
        link.world.step(&mut |_| 1);
    }
    assert!(link.stream_is_gone(1));
    for packet in &packets {
        link.world.machines[1].receive(link.world.now, packet);
    }
    let [_, server] = counters(&link.world);
    assert_eq!(server.refused_queue_pair, packets.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any RDMA packets with a right ICRC, sent to a connection, do no harm.
    #[test]
    fn hostile_packets_do_no_harm(changes in proptest::collection::vec((0usize..64, any::<u8>(), 0usize..4), 1..40)) {
        let mut link = Link::new([true; 2], [data(60_000), data(60_000)]);
        let mut at = 0;
        let forge = |frame: &mut Vec<u8>| {
            // The original arrives, too.
            if is_rdma(frame) && at < changes.len() {
                let (offset, value, copies) = changes[at];
                at += 1;
                if copies == 0 {
                    let index = BTH + offset % (frame.len() - BTH - roce::ICRC);
                    frame[index] = value;
                    roce::fill_icrc(&mut frame[IP..]).unwrap();
                }
                return copies.max(1);
            }
            1
        };
        // The changed packets come from the peer itself, so its data may be wrong, or the connection ends.
        let mut forge = forge;
        for _ in 0..400 {
            link.step(&mut forge);
        }
        prop_assert!(link.received.iter().all(|bytes| bytes.len() <= 60_000));
    }
}
