//! Tests a card with frames and a clock: an engine, its card, and a peer on a network that may lose frames.

use super::filter::{BOTH, CARD, ENGINE, NOBODY};
use super::*;
use crate::stack::card::Trouble;
use crate::stack::tests::{Frames, Machine, Setup};
use inlane_offload_protocol::rules::Prefix;
use inlane_wire::ethernet::Mac;
use inlane_wire::{ethernet, ipv4, udp};
use proptest::prelude::*;

const BUFFER: usize = 65536;

/// An engine with address 10.0.0.1, its card, and a peer with address 10.0.0.2.
struct World {
    engine: Machine,
    card: CardStack,
    /// The frames that the card has sent to the network and to the engine.
    sent: [Frames; 2],
    peer: Machine,
    in_place: bool,
    now: u64,
}

impl World {
    /// `capacity` is the most frames that wait on the link between engine and card.
    fn new(capacity: usize, in_place: bool) -> Self {
        Self::with_mtus(capacity, in_place, [4000, 4000])
    }

    /// `mtus` are the largest IP packets on the link, as the engine and as the card accept them.
    fn with_mtus(capacity: usize, in_place: bool, mtus: [u16; 2]) -> Self {
        let [near, far] = mtus.map(|segment_mtu| Setup {
            capacity,
            in_place,
            segment_mtu,
            buffer: BUFFER,
            ..Setup::default()
        });
        let mut engine = Machine::new(1, near);
        let mut peer = Machine::new(2, Setup::default());
        let (network, to_engine) = (Machine::new(1, Setup::default()), Machine::new(9, far));
        let sent = [network.sent.clone(), to_engine.sent.clone()];
        let secrets = Secrets::new([3; 16]);
        let mut card = CardStack::new(1, network.stack.network, to_engine.stack.network, secrets, 3);
        let macs = [peer.stack.network.mac(), card.stack.network.mac()];
        card.stack.network.learn(1, "10.0.0.2".parse().unwrap(), macs[0], true);
        peer.stack.network.learn(1, "10.0.0.1".parse().unwrap(), macs[1], true);
        let addresses = vec![Prefix::parse("10.0.0.1/24").unwrap()];
        let hello = Hello { addresses, gateways: Vec::new(), loopback: true, buffer: BUFFER as u32 };
        engine.stack.use_card(1, &hello);
        Self { engine, card, sent, peer, in_place, now: 1 }
    }

    /// Advances the clock by 1 ms, or to the next timer if no frame was sent. `fate` returns how often a frame on the network
    /// arrives.
    fn step(&mut self, fate: &mut impl FnMut(&mut Vec<u8>) -> usize) {
        self.now += 1_000_000;
        let take = |frames: &Frames| std::mem::take(&mut *frames.lock().unwrap());
        self.engine.serve(self.now);
        let to_card = take(&self.engine.sent);
        let mut idle = to_card.iter().all(|frame| frame[14] == Kind::Hello as u8);
        for frame in &to_card {
            // SAFETY: the frame is a slice.
            let in_place = self.in_place
                && unsafe { self.card.on_engine_frame_in_place(self.now, frame.as_ptr(), frame.len()) };
            if !in_place {
                self.card.on_engine_frame(self.now, frame);
            }
        }
        self.card.serve_all(self.now);
        let [to_network, to_engine] = self.sent.each_ref().map(take);
        idle &= to_network.is_empty() && to_engine.iter().all(|frame| frame[14] == Kind::Welcome as u8);
        to_engine.iter().for_each(|frame| self.engine.receive(self.now, frame));
        for mut frame in to_network {
            (0..fate(&mut frame)).for_each(|_| self.peer.receive(self.now, &frame));
        }
        self.peer.serve(self.now);
        let from_peer = take(&self.peer.sent);
        idle &= from_peer.is_empty();
        for mut frame in from_peer {
            (0..fate(&mut frame)).for_each(|_| self.card.on_frame(self.now, &frame));
        }
        let stacks =
            [self.engine.stack.next_timer(), self.card.stack.next_timer(), self.peer.stack.next_timer()];
        if let Some(next) = stacks.into_iter().flatten().min().filter(|_| idle) {
            self.now = self.now.max(next);
        }
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step(&mut |_| 1));
    }

    /// Opens a connection, by the engine or by the peer. Returns the keys of its ends, the engine's first.
    fn connect(&mut self, by_engine: bool, fate: &mut impl FnMut(&mut Vec<u8>) -> usize) -> [Key; 2] {
        let to = if by_engine { &mut self.peer } else { &mut self.engine };
        let listener = to.listen(80);
        to.stack.tell_listener(listener);
        let remote = SocketAddr::new(to.address(), 80);
        if !by_engine {
            self.steps(2); // The card must listen before the SYN.
        }
        let from = if by_engine { &mut self.engine } else { &mut self.peer };
        let client = from.connect(self.now, remote);
        for _ in 0..1000 {
            self.step(fate);
            let to = if by_engine { &mut self.peer } else { &mut self.engine };
            if let Some(server) = to.accepted.pop() {
                to.stack.remove(listener);
                return if by_engine { [client, server] } else { [server, client] };
            }
        }
        panic!("no connection");
    }

    /// Sends `data` both ways and closes both ends. `first` says which end closes first.
    fn exchange(
        &mut self,
        [near, far]: [Key; 2],
        data: [&[u8]; 2],
        first: usize,
        fate: &mut impl FnMut(&mut Vec<u8>) -> usize,
    ) {
        let (mut sent, mut received) = ([0, 0], [Vec::new(), Vec::new()]);
        let mut closed = [false; 2];
        for _ in 0..20_000 {
            for (end, machine) in [&mut self.engine, &mut self.peer].into_iter().enumerate() {
                let key = [near, far][end];
                sent[end] += machine.write(key, &data[end][sent[end]..]);
                received[end].extend(machine.read(key));
                let all = sent[end] == data[end].len() && received[end].len() == data[1 - end].len();
                if all && !closed[end] && (end == first || closed[first]) {
                    machine.close(self.now, key);
                    closed[end] = true;
                }
            }
            self.step(fate);
            let [near, far] = [self.engine.stack.sockets.get(near), self.peer.stack.sockets.get(far)];
            if closed == [true; 2] && near.is_none() && far.is_none() {
                assert!(received[0] == data[1] && received[1] == data[0], "bytes were altered");
                return;
            }
        }
        let lengths = received.map(|received| received.len());
        panic!("{sent:?} bytes were sent and {lengths:?} received, closed: {closed:?}");
    }

    fn assert_empty(&mut self) {
        self.steps(10);
        let left =
            |stack: &crate::stack::Stack<()>| (stack.sockets.len(), stack.flows.len(), stack.ports.len());
        assert_eq!(left(&self.engine.stack), (0, 0, 0));
        // The end that closed first is in TIME-WAIT, until its time has passed.
        self.now += 61_000_000_000;
        self.engine.stack.expire(self.now, &mut Vec::new());
        self.card.stack.expire(self.now, &mut Vec::new());
        assert_eq!((self.engine.stack.time_waits.len(), self.card.stack.time_waits.len()), (0, 0));
        let card = &self.card;
        let left =
            (card.stack.sockets.len(), card.stack.flows.len(), card.stack.ports.len(), card.by_id.len());
        assert_eq!(left, (0, 0, 0, 0));
        assert_eq!((card.counters.broken, card.counters.sessions), (0, 1));
    }
}

fn bytes(count: u32) -> Vec<u8> {
    (0..count).map(|number| (number % 251) as u8).collect()
}

/// Returns numbers that are often valid, and extreme ones.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..3, 1 => prop::sample::select(vec![u64::MAX, u64::MAX - 64, 1 << 63, 1 << 32])]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_intact_whatever_the_network_loses(
        seed: u64, loss in 0u64..8, by_engine: bool, in_place: bool, first in 0usize..2,
        capacity in prop::sample::select(vec![2usize, 5, 1000]),
        sizes in (0u32..300_000, 0u32..300_000),
    ) {
        let mut world = World::new(capacity, in_place);
        let mut state = seed | 1;
        let mut fate = |_: &mut Vec<u8>| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match state % 100 {
                number if number < loss => 0,
                number if number >= 98 => 2,
                _ => 1,
            }
        };
        let ends = world.connect(by_engine, &mut fate);
        world.exchange(ends, [&bytes(sizes.0), &bytes(sizes.1)], first, &mut fate);
        world.steps(10);
        world.assert_empty();
    }

    #[test]
    fn messages_are_read_as_they_were_written(
        kind in 0usize..11, numbers: [u64; 4], small: [u8; 4], number: u32, length in 0usize..100,
    ) {
        let kinds = [Kind::Hello, Kind::Connect, Kind::Listen, Kind::Options, Kind::Stream, Kind::Forget,
            Kind::Waiting, Kind::Welcome, Kind::Accepted, Kind::Count, Kind::Lost];
        let message = Message {
            kind: kinds[kind], sequence: number ^ 77, length: length as u32, session: numbers[0], id: numbers[1],
            position: numbers[2], progress: numbers[3], flags: small[0], state: small[1], reason: small[2],
            scale: small[3], number,
        };
        let bytes = message.encode(Mac([2; 6]));
        prop_assert_eq!(Message::decode(&bytes, HEADER + length), Some(message));
        prop_assert_eq!(Message::decode(&bytes, HEADER + length + 50), Some(message));
        if length > 0 {
            prop_assert_eq!(Message::decode(&bytes, HEADER + length - 1), None);
        }
        prop_assert_eq!(Message::decode(&bytes[..HEADER - 1], HEADER - 1), None);
    }

    #[test]
    fn options_and_addresses_are_read_as_they_were_written(
        flags: [bool; 5], v6: bool, buffers: [Option<u16>; 2], times: [Option<u16>; 3], user_timeout: u32, max_segment: u16,
        ports: (u16, u16),
    ) {
        let options = SocketOptions {
            no_delay: flags[0], cork: flags[1], keepalive: flags[2], v6_only: flags[3], reuse_port: flags[4],
            send_buffer: buffers[0].map(i32::from), receive_buffer: buffers[1].map(i32::from), user_timeout, max_segment,
            keepalive_times: times.map(|time| time.map(u32::from)), ..SocketOptions::default()
        };
        let address = |port| match v6 {
            true => SocketAddr::new("fd00::7".parse().unwrap(), port),
            false => SocketAddr::new("10.1.2.3".parse().unwrap(), port),
        };
        let flow = inlane_tcp::Flow { local: address(ports.0), remote: address(ports.1) };
        let mut writer = Writer::default();
        writer.flow(&flow);
        writer.options(v6, &options);
        let mut reader = Reader(&writer.0);
        prop_assert_eq!(reader.flow(), Some(flow));
        let (family, read) = reader.options().unwrap();
        prop_assert_eq!((family, format!("{read:?}")), (v6, format!("{options:?}")));
        prop_assert!(reader.0.is_empty());
    }

    /// A broken engine ends its session. The next one works.
    #[test]
    fn any_message_of_an_engine_leaves_the_card_usable(
        messages in proptest::collection::vec(
            (0u8..13, prop::sample::select(vec![0, 1, 2, OF_CARD | 1, u64::MAX]), extreme(), extreme(), any::<u8>(),
             proptest::collection::vec(any::<u8>(), 0..120)), 1..30),
    ) {
        let mut world = World::new(1000, true);
        world.connect(true, &mut |_| 1);
        world.connect(false, &mut |_| 1);
        for (kind, id, position, progress, flags, payload) in messages {
            let Some(channel) = &world.engine.stack.network.channel else { unreachable!() };
            let mut message = Message::new(Kind::Stream, id);
            (message.session, message.length) = (channel.session, payload.len() as u32);
            (message.position, message.progress, message.flags) = (position, progress, flags);
            message.sequence = world.card.channel().received_count();
            let mut frame = message.encode(Mac([2; 6])).to_vec();
            frame[14] = kind;
            frame.extend_from_slice(&payload);
            world.card.on_engine_frame(world.now, &frame);
            world.card.serve_all(world.now);
        }
        // The card has seen numbers that the engine did not send.
        world.engine.stack.lose_card(world.now);
        world.steps(100);
        world.engine.accepted.clear();
        let ends = world.connect(true, &mut |_| 1);
        world.exchange(ends, [&bytes(1000), &bytes(1000)], 0, &mut |_| 1);
    }

    /// A broken card cannot harm the engine.
    #[test]
    fn any_message_of_a_card_leaves_the_engine_usable(
        messages in proptest::collection::vec(
            (0u8..13, any::<bool>(), extreme(), extreme(), any::<[u8; 4]>(), proptest::collection::vec(any::<u8>(), 0..120)), 1..30),
        in_place: bool,
    ) {
        let mut world = World::new(1000, in_place);
        let [near, _] = world.connect(true, &mut |_| 1);
        for (kind, is_known, position, progress, small, payload) in messages {
            let Some(channel) = &world.engine.stack.network.channel else { unreachable!() };
            let mut message = Message::new(Kind::Stream, if is_known { near.to_u64() } else { OF_CARD | 9 });
            (message.session, message.length) = (channel.session, payload.len() as u32);
            (message.position, message.progress, message.number) = (position, progress, 1460);
            (message.flags, message.state, message.reason, message.scale) =
                (small[0], small[1] % 12, small[2] % 8, small[3]);
            message.sequence = channel.received_count();
            let mut frame = message.encode(Mac([2; 6])).to_vec();
            frame[14] = if kind == Kind::Accepted as u8 { 0 } else { kind };
            frame.extend_from_slice(&payload);
            world.engine.receive(world.now, &frame);
            world.engine.read(near);
            world.engine.serve(world.now);
        }
        world.engine.stack.lose_card(world.now);
        world.steps(100);
        let ends = world.connect(true, &mut |_| 1);
        world.exchange(ends, [&bytes(1000), &bytes(1000)], 0, &mut |_| 1);
    }
}

#[test]
fn a_lost_message_ends_the_session_and_the_next_one_begins() {
    let mut world = World::new(1000, true);
    let [near, far] = world.connect(true, &mut |_| 1);
    world.engine.write(near, b"lost");
    world.engine.serve(world.now);
    let lost = std::mem::take(&mut *world.engine.sent.lock().unwrap());
    assert_eq!(lost.len(), 1);
    world.engine.write(near, b"after it");
    world.steps(3);
    assert_eq!(world.card.counters.broken, 1);
    // The engine's end was removed when the card said so, and the peer got a reset.
    assert!(world.engine.stack.sockets.get(near).is_none());
    assert!(world.peer.stack.sockets.get(far).is_none());
    world.steps(3);
    assert_eq!(world.card.counters.sessions, 2);
    let ends = world.connect(false, &mut |_| 1);
    world.exchange(ends, [&bytes(5000), &bytes(70_000)], 1, &mut |_| 1);
}

#[test]
fn listeners_return_with_the_card_and_connections_are_reset() {
    let mut world = World::new(1000, false);
    let listener = world.engine.listen(443);
    world.engine.stack.tell_listener(listener);
    let [near, _] = world.connect(true, &mut |_| 1);
    // The card starts again: it knows nothing.
    world.card.end_session(world.now);
    world.engine.write(near, b"x");
    world.steps(5);
    assert!(world.engine.stack.sockets.get(near).is_none(), "the connection was not reset");
    let remote = SocketAddr::new(world.engine.address(), 443);
    world.peer.connect(world.now, remote);
    world.steps(20);
    assert_eq!(world.engine.accepted.len(), 1);
}

#[test]
fn an_idle_engine_notices_that_its_card_has_started_again() {
    let mut world = World::new(1000, true);
    let [near, _] = world.connect(true, &mut |_| 1);
    world.steps(10);
    world.card.end_session(world.now);
    world.steps(10);
    assert!(world.engine.stack.sockets.get(near).is_none(), "the connection was not reset");
    assert_eq!(world.card.counters.sessions, 2);
    let ends = world.connect(false, &mut |_| 1);
    world.exchange(ends, [&bytes(1000), &bytes(1000)], 0, &mut |_| 1);
}

#[test]
fn a_silent_card_and_a_silent_engine_are_noticed() {
    let mut world = World::new(1000, true);
    let [near, far] = world.connect(true, &mut |_| 1);
    let seconds = |world: &World, count: u64| world.now + count * 1_000_000_000;
    // Only the engine runs.
    let until = seconds(&world, 6);
    for now in (world.now..until).step_by(100_000_000) {
        world.engine.serve(now);
        world.engine.sent.lock().unwrap().clear();
    }
    assert!(world.engine.stack.sockets.get(near).is_none(), "the connection is not reset");
    // A connect waits for the card, and then gives up.
    let client = world.engine.connect(until, SocketAddr::new(world.peer.address(), 80));
    for now in (until..until + 4_000_000_000).step_by(100_000_000) {
        world.engine.serve(now);
    }
    assert!(world.engine.stack.sockets.get(client).is_none(), "the connect does not end");
    // Only the card and the peer run.
    world.card.serve_all(until);
    let reset = std::mem::take(&mut *world.sent[0].lock().unwrap());
    reset.iter().for_each(|frame| world.peer.receive(until, frame));
    world.peer.serve(until);
    assert!(world.peer.stack.sockets.get(far).is_none(), "the peer got no reset");
    assert!(world.card.by_id.is_empty());
}

#[test]
fn an_engine_reports_a_missing_card_once_until_one_answers() {
    let mut world = World::new(1000, true);
    let seconds = |world: &mut World, count: u64| {
        let until = world.now + count * 1_000_000_000;
        for now in (world.now..until).step_by(100_000_000) {
            world.engine.serve(now);
            world.engine.sent.lock().unwrap().clear();
        }
        world.now = until;
    };
    seconds(&mut world, 4);
    assert_eq!(world.engine.stack.card_trouble(), None);
    seconds(&mut world, 2);
    assert_eq!(world.engine.stack.card_trouble(), Some(Trouble::Silent));
    world.steps(10);
    assert_eq!((world.engine.stack.card_trouble(), world.card.counters.sessions), (None, 1));
}

#[test]
fn an_engine_and_a_card_of_other_versions_report_it() {
    let mut world = World::new(1000, true);
    let version = 15;
    world.engine.serve(world.now);
    let mut hello = world.engine.sent.lock().unwrap().pop_front().unwrap();
    hello[version] += 1;
    world.card.on_engine_frame(world.now, &hello);
    assert_eq!(world.card.reported, Some(VERSION + 1));
    let mut answer = world.sent[1].lock().unwrap().pop_front().unwrap();
    world.engine.receive(world.now, &answer);
    assert_eq!(world.engine.stack.card_trouble(), None, "an answer to another session is no other version");
    answer[version] += 1;
    world.engine.receive(world.now, &answer);
    assert_eq!(world.engine.stack.card_trouble(), Some(Trouble::OtherVersion(VERSION + 1)));
}

#[test]
fn messages_are_no_longer_than_either_side_accepts() {
    for mtus in [[1500, 9000], [9000, 1500], [4000, 65_000]] {
        for in_place in [false, true] {
            let mut world = World::with_mtus(1000, in_place, mtus);
            let ends = world.connect(false, &mut |_| 1);
            world.exchange(ends, [&bytes(100_000), &bytes(100_000)], 0, &mut |_| 1);
            assert_eq!((world.card.counters.broken, world.card.counters.sessions), (0, 1), "{mtus:?}");
        }
    }
}

#[test]
fn options_that_a_listener_gets_later_reach_the_card() {
    let mut world = World::new(1000, true);
    let listener = world.engine.listen(80);
    world.engine.stack.tell_listener(listener);
    world.steps(2);
    if let Some(socket) = world.engine.stack.sockets.get_mut(listener) {
        socket.options.no_delay = true;
    }
    world.engine.stack.tell_listener(listener);
    world.steps(2);
    assert!(world.card.stack.sockets.iter().any(|(_, socket)| socket.options.no_delay));
}

#[test]
fn a_card_asks_once_how_many_connections_wait() {
    let mut world = World::new(1000, true);
    let listener = world.engine.listen(80);
    world.engine.stack.tell_listener(listener);
    world.steps(2);
    let [(key, _)] = world.card.stack.sockets.iter().collect::<Vec<_>>()[..] else { panic!("no listener") };
    if let Some(Socket { role: Role::Listening(listening), attachment, .. }) =
        world.card.stack.sockets.get_mut(key)
    {
        attachment.waiting = 100;
        listening.waiting.recount(100);
    }
    for _ in 0..50 {
        world.peer.connect(world.now, SocketAddr::new(world.engine.address(), 80));
    }
    world.peer.serve(world.now);
    for frame in std::mem::take(&mut *world.peer.sent.lock().unwrap()) {
        world.card.on_frame(world.now, &frame);
    }
    world.card.serve_all(world.now);
    let asked = world.sent[1].lock().unwrap().iter().filter(|frame| frame[14] == Kind::Count as u8).count();
    assert_eq!(asked, 1);
}

#[test]
fn data_before_a_reset_reaches_the_peer() {
    let mut world = World::new(1000, true);
    let [near, far] = world.connect(true, &mut |_| 1);
    world.engine.write(near, b"last words");
    if let Some(Socket { role: Role::Stream(stream), .. }) = world.engine.stack.sockets.get_mut(near) {
        // As the host does: it sends what it has, and then aborts.
        stream.transmit(world.now, &mut world.engine.stack.network);
        stream.connection.abort();
    }
    world.engine.stack.touch(near);
    world.engine.serve(world.now);
    for frame in std::mem::take(&mut *world.engine.sent.lock().unwrap()) {
        world.card.on_engine_frame(world.now, &frame);
    }
    world.card.serve_all(world.now);
    for frame in std::mem::take(&mut *world.sent[0].lock().unwrap()) {
        world.peer.receive(world.now, &frame);
    }
    assert_eq!(world.peer.read(far), b"last words");
    world.peer.serve(world.now);
    assert!(world.peer.stack.sockets.get(far).is_none());
}

#[test]
fn a_full_backlog_is_the_engines_and_room_lets_the_next_one_in() {
    let mut world = World::new(1000, true);
    let listener = world.engine.listen(80);
    world.engine.stack.tell_listener(listener);
    world.steps(2);
    let remote = SocketAddr::new(world.engine.address(), 80);
    // A backlog of 8 holds 9 connections.
    for _ in 0..12 {
        // The peer repeats these bytes. Those whose SYN,ACK had a cookie would wait for ever without them.
        let client = world.peer.connect(world.now, remote);
        world.peer.write(client, b"x");
    }
    if let Some(Socket { role: Role::Listening(listening), .. }) = world.engine.stack.sockets.get(listener) {
        (0..9).for_each(|_| listening.waiting.queue());
    }
    world.steps(20);
    assert_eq!(world.engine.accepted.len(), 9);
    if let Some(Socket { role: Role::Listening(listening), .. }) = world.engine.stack.sockets.get(listener) {
        (0..9).for_each(|_| listening.waiting.hand_over());
        listening.waiting.recount(0);
    }
    world.steps(200);
    assert_eq!(world.engine.accepted.len(), 12);
}

#[test]
fn other_packets_pass_between_engine_and_network() {
    let mut world = World::new(1000, false);
    world.steps(2);
    let [local, remote]: [SocketAddr; 2] = ["10.0.0.1:53".parse().unwrap(), "10.0.0.2:53".parse().unwrap()];
    let key = world.engine.insert(local, Role::Datagram(Default::default()));
    let peer = world.peer.insert(remote, Role::Datagram(Default::default()));
    for (machine, key, to) in [(&mut world.engine, key, remote), (&mut world.peer, peer, local)] {
        let outgoing = crate::stack::datagram::Outgoing {
            source: None,
            remote: to,
            class: 0,
            hops: 64,
            data: b"question",
        };
        assert!(machine.stack.send_datagram(world.now, key, &outgoing).unwrap());
        world.now += 1;
    }
    world.steps(10);
    assert_eq!((world.engine.datagrams.len(), world.peer.datagrams.len()), (1, 1));
    assert!(world.card.counters.passed >= 2);
}

#[test]
fn the_filter_knows_who_gets_a_frame() {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let frame = |ethertype: u16, payload: &[u8]| {
        let mut frame = mac.0.to_vec();
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame.extend_from_slice(&ethertype.to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    };
    let v4 = |protocol: u8, payload: &[u8]| {
        let mut packet = vec![0; ipv4::HEADER + payload.len()];
        let mut view = ipv4::Packet::init(&mut packet[..]).unwrap();
        view.set_total_length((ipv4::HEADER + payload.len()) as u16);
        view.set_protocol(protocol);
        view.payload_mut().copy_from_slice(payload);
        frame(ethernet::IPV4, &packet)
    };
    assert_eq!(receiver(&v4(ipv4::TCP, &[0; 20]), mac), CARD);
    assert_eq!(receiver(&v4(ipv4::UDP, &[0; udp::HEADER]), mac), ENGINE);
    let mut error = vec![3, 4, 0, 0, 0, 0, 0, 0];
    let mut quoted = [0; 28];
    (quoted[0], quoted[9]) = (0x45, ipv4::TCP);
    error.extend_from_slice(&quoted);
    assert_eq!(receiver(&v4(ipv4::ICMP, &error), mac), CARD);
    error[8 + 9] = ipv4::UDP;
    assert_eq!(receiver(&v4(ipv4::ICMP, &error), mac), ENGINE);
    assert_eq!(receiver(&v4(ipv4::ICMP, &[8, 0, 0, 0]), mac), ENGINE);
    let mut arp = [0; 28];
    arp[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    assert_eq!(receiver(&frame(ethernet::ARP, &arp), mac), CARD);
    arp[7] = 2;
    assert_eq!(receiver(&frame(ethernet::ARP, &arp), mac), BOTH);
    let mut other = v4(ipv4::TCP, &[0; 20]);
    other[5] = 9;
    assert_eq!(receiver(&other, mac), NOBODY);
}
