//! The ring against a queue model (any interleaving of single steps), under threads, and under loom.

use super::layout::{DROP, Descriptor, FORWARD, PacketVerdict, UNCHANGED, VERDICTS};
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

fn packet(id: u64) -> Packet {
    Packet { address: 0x1000 + id, cookie: id, length: 64 + (id % 1000) as u32, port: 0 }
}

/// What the test's consumer does to packet `id`: every third dropped, every fifth cut by 4 bytes.
fn outcome(id: u64, length: u32) -> PacketVerdict {
    match id {
        id if id % 3 == 1 => PacketVerdict { length, verdict: DROP },
        id if id % 5 == 1 => PacketVerdict { length: length - 4, verdict: FORWARD },
        _ => PacketVerdict { length, verdict: FORWARD },
    }
}

fn consume(work: &mut Work<'_>, change: bool) -> u32 {
    let (descriptors, outcomes) = work.parts();
    for (descriptor, place) in descriptors.iter().zip(outcomes) {
        let id = descriptor.address - 0x1000;
        let lap = descriptors[0].lap;
        assert_eq!(*descriptor, Descriptor { address: 0x1000 + id, length: packet(id).length, lap });
        *place = outcome(id, descriptor.length);
    }
    if change { VERDICTS } else { UNCHANGED }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize),
    Consume(u32, bool),
    Send,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..5).prop_map(Step::Submit),
        (0u32..3, any::<bool>()).prop_map(|(index, change)| Step::Consume(index, change)),
        Just(Step::Send),
    ]
}

/// Who submits items and takes them back: two ends, or one.
enum Ends {
    Apart(Producer, Sender),
    Joined(Dispatcher, VecDeque<Vec<Packet>>),
}

impl Ends {
    fn new(joined: bool, slots: usize, consumers: u32) -> (Self, Vec<Consumer>) {
        let ring = Ring::new(slots, 4).unwrap();
        if joined {
            let (dispatcher, consumers) = ring.dispatch(consumers);
            return (Self::Joined(dispatcher, VecDeque::new()), consumers);
        }
        let (producer, consumers, sender) = ring.split(consumers);
        (Self::Apart(producer, sender), consumers)
    }

    fn submit(&mut self, burst: &[Packet]) -> bool {
        match self {
            Self::Apart(producer, _) => producer.submit(burst, Stamps::default()),
            Self::Joined(dispatcher, out) => {
                let room = dispatcher.has_room();
                assert_eq!(dispatcher.submit(burst), room);
                if room {
                    out.push_back(burst.to_vec());
                }
                room
            }
        }
    }

    fn in_flight(&mut self) -> u64 {
        match self {
            Self::Apart(producer, _) => producer.in_flight(),
            Self::Joined(dispatcher, _) => dispatcher.in_flight(),
        }
    }

    /// The next item's packets, those forwarded first, if it is complete.
    fn take_back(&mut self, packets: &mut [Packet]) -> Option<Done> {
        match self {
            Self::Apart(_, sender) => match sender.poll(packets, 2048) {
                Next::Item(done) => Some(done),
                Next::Empty => None,
                Next::Closed => panic!("not closed"),
            },
            Self::Joined(dispatcher, out) => {
                let back = dispatcher.poll()?;
                let item = out.pop_front().expect("submitted");
                let packets = &mut packets[..item.len()];
                packets.copy_from_slice(&item);
                let done = match back.changed() {
                    true => sort_out(packets, |i| back.verdict(i), 2048),
                    false => Done { forwarded: item.len(), ..Done::default() },
                };
                back.free();
                Some(done)
            }
        }
    }
}

/// An item of the model: its packets, whether consumed, and how.
struct Item {
    ids: Vec<u64>,
    consumed: Option<bool>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

    #[test]
    fn behaves_as_a_queue(joined in any::<bool>(), consumers in 1u32..4, slots_log in 1u32..4, steps in prop::collection::vec(step(), 0..if cfg!(miri) { 60 } else { 400 })) {
        let slots = 1usize << slots_log;
        let (mut ends, mut consuming) = Ends::new(joined, slots, consumers);
        let mut model: VecDeque<Item> = VecDeque::new();
        let (mut next_id, mut freed) = (0u64, 0u64);
        let mut taken = vec![0u64; consumers as usize];
        let mut packets = [Packet::EMPTY; 4];
        for step in steps {
            match step {
                Step::Submit(count) => {
                    let burst: Vec<_> = (next_id..next_id + count as u64).map(packet).collect();
                    let accepted = ends.submit(&burst);
                    prop_assert_eq!(accepted, model.len() < slots);
                    if accepted {
                        next_id += count as u64;
                        model.push_back(Item { ids: burst.iter().map(|p| p.cookie).collect(), consumed: None });
                    }
                    prop_assert_eq!(ends.in_flight(), model.len() as u64);
                }
                Step::Consume(index, change) => {
                    let index = index % consumers;
                    let position = taken[index as usize] * consumers as u64 + index as u64;
                    let there = position < freed + model.len() as u64;
                    match consuming[index as usize].poll() {
                        Next::Item(mut work) => {
                            prop_assert!(there);
                            let info = consume(&mut work, change);
                            work.complete(info);
                            model[(position - freed) as usize].consumed = Some(change);
                            taken[index as usize] += 1;
                        }
                        Next::Empty => prop_assert!(!there),
                        Next::Closed => prop_assert!(false, "not closed"),
                    }
                }
                Step::Send => match ends.take_back(&mut packets) {
                    Some(done) => {
                        let item = model.pop_front().unwrap();
                        freed += 1;
                        let change = item.consumed.expect("only what was consumed is sent");
                        let kept: Vec<_> = item.ids.iter().copied().filter(|id| !change || id % 3 != 1).collect();
                        prop_assert_eq!(done.forwarded, kept.len());
                        prop_assert_eq!(done.dropped, item.ids.len() - kept.len());
                        for (packet, id) in packets.iter().zip(&kept) {
                            prop_assert_eq!(packet.cookie, *id);
                            let length = super::tests::packet(*id).length;
                            prop_assert_eq!(packet.length, if change { outcome(*id, length).length } else { length });
                        }
                        let mut all: Vec<_> = packets[..item.ids.len()].iter().map(|p| p.cookie).collect();
                        all.sort_unstable();
                        prop_assert_eq!(all, item.ids, "every packet comes back once");
                    }
                    None => prop_assert!(model.front().is_none_or(|item| item.consumed.is_none())),
                },
            }
        }
        if let Ends::Apart(producer, sender) = &mut ends {
            producer.close();
            prop_assert!(matches!(sender.poll(&mut packets, 2048), Next::Closed) == model.is_empty() || !model.is_empty());
        }
    }
}

#[test]
fn one_thread_hands_out_and_takes_back_in_order() {
    const ITEMS: u64 = if cfg!(miri) { 40 } else { 20_000 };
    let (mut dispatcher, consumers) = Ring::new(8, 4).unwrap().dispatch(3);
    std::thread::scope(|scope| {
        for mut consumer in consumers {
            scope.spawn(move || {
                loop {
                    match consumer.poll() {
                        Next::Item(mut work) => {
                            let info = consume(&mut work, true);
                            work.complete(info);
                        }
                        Next::Empty => std::thread::yield_now(),
                        Next::Closed => return,
                    }
                }
            });
        }
        let (mut submitted, mut taken_back) = (0, 0);
        while taken_back < ITEMS {
            let burst: Vec<_> = (submitted * 4..submitted * 4 + 4).map(packet).collect();
            if submitted < ITEMS && dispatcher.submit(&burst) {
                submitted += 1;
            } else if let Some(back) = dispatcher.poll() {
                for i in 0..4 {
                    let id = taken_back * 4 + i;
                    assert_eq!(back.verdict(i as usize), outcome(id, packet(id).length));
                }
                back.free();
                taken_back += 1;
            } else {
                std::thread::yield_now();
            }
        }
        assert_eq!((dispatcher.in_flight(), dispatcher.poll().is_none()), (0, true));
        // Its drop closes the ring, and the consumers end.
        drop(dispatcher);
    });
}

#[test]
fn a_mad_consumer_completes_nothing_that_is_not_out() {
    let ring = Ring::new(2, 4).unwrap();
    let word = protocol::Words::completed(&*ring, 0);
    protocol::Word::store(word, 1);
    let (mut dispatcher, _consumers) = ring.clone().dispatch(1);
    assert!(dispatcher.poll().is_none());
}

#[test]
fn threads_pass_everything_in_order() {
    const ITEMS: u64 = if cfg!(miri) { 40 } else { 20_000 };
    let (mut producer, ends, mut sender) = Ring::new(8, 4).unwrap().split(2);
    std::thread::scope(|scope| {
        for mut end in ends {
            scope.spawn(move || {
                loop {
                    match end.poll() {
                        Next::Item(mut work) => {
                            let info = consume(&mut work, true);
                            work.complete(info);
                        }
                        Next::Empty => std::thread::yield_now(),
                        Next::Closed => return,
                    }
                }
            });
        }
        scope.spawn(move || {
            for item in 0..ITEMS {
                let burst: Vec<_> = (item * 4..item * 4 + 4).map(packet).collect();
                while !producer.submit(&burst, Stamps::default()) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut packets, mut expected) = ([Packet::EMPTY; 4], 0u64);
        loop {
            match sender.poll(&mut packets, 2048) {
                Next::Item(done) => {
                    for packet in &packets[..done.forwarded] {
                        while expected % 3 == 1 {
                            expected += 1;
                        }
                        assert_eq!(packet.cookie, expected);
                        expected += 1;
                    }
                    assert_eq!(done.forwarded + done.dropped, 4);
                }
                Next::Empty => std::thread::yield_now(),
                Next::Closed => break,
            }
        }
        assert!(expected >= ITEMS * 4 - 1);
    });
}

#[test]
fn mad_outcomes_are_dropped_as_invalid() {
    let (mut producer, mut ends, mut sender) = Ring::new(2, 4).unwrap().split(1);
    assert!(producer.submit(&[packet(0), packet(2), packet(3)], Stamps::default()));
    let Next::Item(mut work) = ends[0].poll() else { panic!("submitted") };
    let mad = [
        PacketVerdict { length: u32::MAX, verdict: FORWARD },
        PacketVerdict { length: 0, verdict: FORWARD },
        PacketVerdict { length: 64, verdict: u32::MAX },
    ];
    work.parts().1.copy_from_slice(&mad);
    work.complete(VERDICTS);
    let mut packets = [Packet::EMPTY; 4];
    let Next::Item(done) = sender.poll(&mut packets, 2048) else { panic!("completed") };
    assert_eq!((done.forwarded, done.dropped, done.invalid), (0, 3, 3));
}

#[test]
fn what_a_dead_consumer_held_is_taken_back() {
    let (mut producer, ends, mut sender) = Ring::new(4, 2).unwrap().split(1);
    for item in 0..3u64 {
        assert!(producer.submit(&[packet(item * 2), packet(item * 2 + 1)], Stamps::default()));
    }
    let mut consumer = ends.into_iter().next().unwrap();
    let Next::Item(work) = consumer.poll() else { panic!("submitted") };
    work.complete(UNCHANGED);
    let mut packets = [Packet::EMPTY; 2];
    assert!(matches!(sender.poll(&mut packets, 2048), Next::Item(_)));
    drop((consumer, sender));
    let rest: Vec<_> = reclaim(producer).iter().map(|packet| packet.cookie).collect();
    assert_eq!(rest, [2, 3, 4, 5]);
}

/// Words and descriptors as another process or a GPU sees them.
fn laps(ring: &Ring, slot: u32) -> (u32, Vec<u32>) {
    let word = protocol::Word::load(protocol::Words::submitted(ring, slot));
    // SAFETY: nobody writes meanwhile, and the slot has so many.
    let descriptor = |i| unsafe { ring.descriptors(slot).add(i).read() };
    (word as u32, (0..ring.burst).map(|i| descriptor(i).lap).collect())
}

#[test]
fn descriptors_say_their_lap_and_never_one_of_2_32_laps_ago() {
    let burst = layout::TOGETHER;
    for joined in [false, true] {
        let ring = Ring::new(2, burst).unwrap();
        // The last laps before the count wraps, and the first after.
        let mut position = (u32::MAX as u64 - 1) * 2;
        let mut submit = |count: usize| {
            let burst: Vec<_> = (0..count as u64).map(packet).collect();
            // As if all before had been freed.
            let cursor = protocol::Producer::starting_at(position);
            if joined {
                let sender = protocol::Sender::starting_at(position);
                assert!(Dispatcher { ring: ring.clone(), producer: cursor, sender }.submit(&burst));
            } else {
                assert!(Producer { ring: ring.clone(), cursor }.submit(&burst, Stamps::default()));
            }
            position += 2;
            laps(&ring, 0)
        };
        assert_eq!(submit(burst), (u32::MAX, vec![u32::MAX; burst]));
        assert_eq!(submit(1), (0, vec![0; burst]));
        assert_eq!(submit(2).1[..3], [1, 1, 0]);
        assert_eq!(submit(1).1[..3], [2, 1, 0], "what an item has no packet for stays");
    }
    assert!(!protocol::belongs(0, 0), "fresh memory");
}

#[test]
fn senseless_rings_are_refused() {
    for (slots, burst) in [(0, 32), (1, 32), (3, 32), (1 << 17, 32), (8, 0), (8, 1025)] {
        assert!(Ring::new(slots, burst).is_err(), "{slots} slots of {burst}");
    }
    let small = Region::host(128).unwrap();
    let large = Region::host(1 << 20).unwrap();
    assert!(Ring::over(8, 32, small, large.clone()).is_err());
    assert!(Ring::over(8, 32, large.clone(), large.clone()).is_err());
    assert!(Ring::over(8, 32, large.slice(8, 65536).unwrap(), large.slice(131072, 65536).unwrap()).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "starts a compiler")]
fn the_c_header_compiles_and_agrees() {
    let directory = std::env::temp_dir().join(format!("inlane-ring-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("ring.h"), layout::c_header()).unwrap();
    let strides = [1usize, 7, 8, 16, 32, 64, 128, 1024]
        .map(|b| {
            format!(
                "static_assert(INLANE_SUBMIT_STRIDE({b}u) == {} && INLANE_COMPLETE_STRIDE({b}u) == {}, \"\");",
                layout::submit_stride(b),
                layout::complete_stride(b)
            )
        })
        .join("\n");
    std::fs::write(directory.join("check.cpp"), format!("#include \"ring.h\"\n{strides}\n")).unwrap();
    let status = std::process::Command::new("c++")
        .args(["-std=c++17", "-fsyntax-only", "check.cpp"])
        .current_dir(&directory)
        .status();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(status.expect("a C++ compiler (apt-get install g++)").success());
}

/// Every interleaving of small rings, with every weak-memory outcome: data races on a slot's payload are found by
/// loom's cells, lost or duplicated items by the checks.
#[cfg(not(miri))]
mod model {
    use crate::ring::protocol::{Consumer, Polled, Producer, Sender, Word, Words, belongs, describe, lap_of};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    impl Word for AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Ordering::Acquire)
        }

        fn store(&self, value: u64) {
            self.store(value, Ordering::Release)
        }
    }

    struct Small {
        submitted: Vec<AtomicU64>,
        completed: Vec<AtomicU64>,
        freed: AtomicU64,
        end: AtomicU64,
        /// The producer's half of the payload, and the consumer's.
        requests: Vec<UnsafeCell<u64>>,
        answers: Vec<UnsafeCell<u64>>,
    }

    impl Small {
        /// A ring whose sides start at `start`, with the words that earlier laps would have left.
        fn new(slots: u32, start: u64) -> Arc<Self> {
            let stale = |slot: u32| {
                // The last position below `start` that used this slot, if there was one.
                let before = start.checked_sub(1).map(|last| last - ((last - slot as u64) % slots as u64));
                AtomicU64::new(
                    before.filter(|_| start > 0).map_or(0, |position| lap_of(position, slots) as u64),
                )
            };
            Arc::new(Self {
                submitted: (0..slots).map(stale).collect(),
                completed: (0..slots).map(stale).collect(),
                freed: AtomicU64::new(start),
                end: AtomicU64::new(0),
                requests: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
                answers: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
            })
        }
    }

    impl Words for Small {
        type Word = AtomicU64;
        fn slots(&self) -> u32 {
            self.submitted.len() as u32
        }
        fn submitted(&self, slot: u32) -> &AtomicU64 {
            &self.submitted[slot as usize]
        }
        fn completed(&self, slot: u32) -> &AtomicU64 {
            &self.completed[slot as usize]
        }
        fn freed(&self) -> &AtomicU64 {
            &self.freed
        }
        fn end(&self) -> &AtomicU64 {
            &self.end
        }
    }

    fn read(cell: &UnsafeCell<u64>) -> u64 {
        // SAFETY: loom fails the test when another side may be writing.
        cell.with(|cell| unsafe { *cell })
    }

    fn write(cell: &UnsafeCell<u64>, value: u64) {
        // SAFETY: loom fails the test when another side may be reading or writing.
        cell.with_mut(|cell| unsafe { *cell = value });
    }

    /// One side of the ring as a machine of single steps, so that a thread can take a bounded number of them (a model
    /// checker cannot follow unbounded spinning) and another can finish the rest.
    trait Side: 'static {
        /// Tries one step; true when this side is done for good.
        fn step(&mut self, ring: &Small) -> bool;
    }

    struct Produce {
        cursor: Producer,
        next: u64,
        items: u64,
    }

    impl Side for Produce {
        fn step(&mut self, ring: &Small) -> bool {
            if self.next == self.items {
                self.cursor.close(ring);
                return true;
            }
            if let Some(slot) = self.cursor.claim(ring) {
                write(&ring.requests[slot as usize], self.next);
                self.cursor.publish(ring, self.next as u32);
                self.next += 1;
            }
            false
        }
    }

    struct Consume {
        cursor: Consumer,
        index: u64,
        consumers: u64,
    }

    impl Side for Consume {
        fn step(&mut self, ring: &Small) -> bool {
            match self.cursor.poll(ring) {
                Polled::Item { slot, info } => {
                    let request = read(&ring.requests[slot as usize]);
                    assert_eq!(request, info as u64);
                    assert_eq!(request % self.consumers, self.index);
                    write(&ring.answers[slot as usize], request * 10);
                    self.cursor.complete(ring, request as u32 + 100);
                    false
                }
                Polled::Empty => false,
                Polled::Closed => true,
            }
        }
    }

    struct Send {
        cursor: Sender,
        next: u64,
        items: u64,
    }

    impl Side for Send {
        fn step(&mut self, ring: &Small) -> bool {
            match self.cursor.poll(ring) {
                Polled::Item { slot, info } => {
                    assert_eq!(info as u64, self.next + 100);
                    let answer = read(&ring.answers[slot as usize]);
                    assert_eq!(answer, self.next * 10);
                    let request = read(&ring.requests[slot as usize]);
                    assert_eq!(request, self.next);
                    self.next += 1;
                    self.cursor.free(ring);
                    false
                }
                Polled::Empty => false,
                Polled::Closed => {
                    assert_eq!(self.next, self.items, "nothing lost, nothing twice");
                    true
                }
            }
        }
    }

    /// Runs every interleaving of `steps` steps of each side, then the rest one after the other.
    fn run(slots: u32, start: u64, items: u64, consumers: u32, steps: usize, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            let ring = Small::new(slots, start);
            let mut sides: Vec<Box<dyn Side>> = (0..consumers)
                .map(|index| {
                    let cursor = Consumer::new(start, index, consumers);
                    let (index, consumers) = (index as u64, consumers as u64);
                    Box::new(Consume { cursor, index, consumers }) as Box<dyn Side>
                })
                .collect();
            sides.push(Box::new(Send { cursor: Sender::starting_at(start), next: 0, items }));
            let take = move |mut side: Box<dyn Side>, ring: Arc<Small>| {
                let done = (0..steps).any(|_| side.step(&ring));
                (side, done)
            };
            let threads: Vec<_> = sides
                .into_iter()
                .map(|side| {
                    let ring = ring.clone();
                    loom::thread::spawn(move || take(side, ring))
                })
                .collect();
            let producer = Produce { cursor: Producer::starting_at(start), next: 0, items };
            let mut rest = vec![take(Box::new(producer), ring.clone())];
            rest.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
            // After the joins everything is visible, so each round makes progress.
            for round in 0.. {
                assert!(round <= 4 * items + 4, "stuck");
                for (side, done) in &mut rest {
                    *done = *done || side.step(&ring);
                }
                if rest.iter().all(|(_, done)| *done) {
                    break;
                }
            }
        });
    }

    /// How a producer writes a descriptor.
    type Describe = fn([&AtomicU64; 2], u64, u32, u32);

    /// A ring of one slot whose consumer reads the descriptor before the word, and believes it if it belongs to the word's lap.
    fn read_early(start: u64, items: u64, describe: Describe) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let ring = Small::new(1, start);
            // As the lap before left it.
            let old = lap_of(start, 1).wrapping_sub(1);
            let words = Arc::new([AtomicU64::new(old as u64), AtomicU64::new((old as u64) << 32)]);
            let consumer = {
                let (ring, words) = (ring.clone(), words.clone());
                loom::thread::spawn(move || {
                    let mut cursor = Consumer::new(start, 0, 1);
                    let mut sender = Sender::starting_at(start);
                    for _ in 0..items + 1 {
                        let lap = sender.lap(&*ring);
                        // Both at once show nothing that the second before the first does not.
                        let second = Word::load(&words[1]);
                        let early = Word::load(&words[0]);
                        let Polled::Item { slot, info } = cursor.poll(&*ring) else { continue };
                        let address = if belongs(second, lap) { early } else { Word::load(&words[0]) };
                        assert_eq!(address, lap as u64, "another lap's address");
                        assert_eq!(read(&ring.requests[slot as usize]), lap as u64, "the packet's bytes");
                        cursor.complete(&*ring, info);
                        sender.free(&*ring);
                    }
                })
            };
            let mut producer = Producer::starting_at(start);
            for _ in 0..items + 1 {
                if producer.position() < start + items
                    && let Some(slot) = producer.claim(&*ring)
                {
                    let lap = lap_of(producer.position(), 1);
                    write(&ring.requests[slot as usize], lap as u64);
                    describe([&words[0], &words[1]], lap as u64, 64, lap);
                    producer.publish(&*ring, 1);
                }
            }
            consumer.join().unwrap();
        });
    }

    #[test]
    fn descriptors_read_before_the_word_are_its_laps() {
        read_early(5, 2, describe);
    }

    #[test]
    fn or_are_read_again_where_the_lap_wraps() {
        read_early(u32::MAX as u64, 2, describe);
    }

    #[test]
    #[should_panic(expected = "another lap's address")]
    fn descriptors_whose_lap_is_written_first_are_not() {
        read_early(5, 2, |words, address, length, lap| {
            Word::store(words[1], length as u64 | (lap as u64) << 32);
            Word::store(words[0], address);
        });
    }

    #[test]
    fn reuse_with_one_consumer() {
        run(2, 0, 4, 1, 5, 2);
    }

    #[test]
    fn two_consumers_share_by_position() {
        run(2, 0, 3, 2, 3, 2);
    }

    #[test]
    fn shutdown_of_an_empty_ring() {
        run(2, 0, 0, 2, 2, 3);
    }

    #[test]
    fn laps_may_wrap() {
        // Of four items the first two have the last 32-bit lap, the others the lap that wrapped to 0.
        let start = (u32::MAX as u64 - 1) * 2;
        assert_eq!((lap_of(start, 2), lap_of(start + 2, 2)), (u32::MAX, 0));
        run(2, start, 4, 1, 4, 2);
    }
}
