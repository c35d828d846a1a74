//! Model checks of the ring with loom. They explore how the threads of a small ring interleave, up to a
//! number of preemptions, and the outcomes of weak memory order. loom's cells detect data races. The
//! assertions detect lost and duplicated items.

use crate::ring::protocol::{
    ConsumerCursor, DispatcherCursor, Polled, Word, Words, belongs, describe, lap_of,
};
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
    /// For each slot: the payload that the dispatcher writes.
    requests: Vec<UnsafeCell<u64>>,
    /// For each slot: the payload that a consumer writes.
    answers: Vec<UnsafeCell<u64>>,
}

impl Small {
    /// Creates a ring that starts at position `start`, with the words that earlier items would have left.
    fn new(slots: u32, start: u64) -> Arc<Self> {
        let stale = |slot: u32| {
            // The position of the last item before `start` in this slot. `None` if `start` is 0.
            let before = start.checked_sub(1).map(|last| last - ((last - slot as u64) % slots as u64));
            AtomicU64::new(before.filter(|_| start > 0).map_or(0, |position| lap_of(position, slots) as u64))
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
    // SAFETY: loom fails the test if another side may be writing.
    cell.with(|cell| unsafe { *cell })
}

fn write(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: loom fails the test if another side may be reading or writing.
    cell.with_mut(|cell| unsafe { *cell = value });
}

/// One side of the ring (the dispatcher or a consumer) as a state machine that takes single steps. Its thread
/// takes a fixed number of steps, because a model checker cannot follow unbounded spinning. The main thread
/// takes the remaining steps.
trait Side: 'static {
    /// Takes one step. Returns true if this side has finished.
    fn step(&mut self, ring: &Small) -> bool;
}

struct Dispatch {
    cursor: DispatcherCursor,
    next: u64,
    taken_back: u64,
    items: u64,
    closed: bool,
}

impl Side for Dispatch {
    fn step(&mut self, ring: &Small) -> bool {
        if let Some((slot, info)) = self.cursor.poll(ring) {
            assert_eq!(info as u64, self.taken_back + 100);
            assert_eq!(read(&ring.answers[slot as usize]), self.taken_back * 10);
            assert_eq!(read(&ring.requests[slot as usize]), self.taken_back);
            self.taken_back += 1;
            self.cursor.free(ring);
        } else if self.next == self.items {
            if !self.closed {
                self.cursor.close(ring);
                self.closed = true;
            }
        } else if let Some(slot) = self.cursor.claim(ring) {
            write(&ring.requests[slot as usize], self.next);
            self.cursor.publish(ring, self.next as u32);
            self.next += 1;
        }
        self.closed && self.taken_back == self.items
    }
}

struct Consume {
    cursor: ConsumerCursor,
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

/// Runs the dispatcher and the consumers for `steps` steps each, in every interleaving with at most
/// `preemptions` preemptions. Then runs the remaining steps of all in turn.
fn run(slots: u32, start: u64, items: u64, consumers: u32, steps: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let ring = Small::new(slots, start);
        let sides: Vec<Box<dyn Side>> = (0..consumers)
            .map(|index| {
                let cursor = ConsumerCursor::new(start, index, consumers);
                let (index, consumers) = (index as u64, consumers as u64);
                Box::new(Consume { cursor, index, consumers }) as Box<dyn Side>
            })
            .collect();
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
        let cursor = DispatcherCursor::new(&*ring, start);
        let dispatcher = Dispatch { cursor, next: 0, taken_back: 0, items, closed: false };
        let mut rest = vec![take(Box::new(dispatcher), ring.clone())];
        rest.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        // Let the sides take turns on this thread until both have finished. The other threads are joined, so
        // all their stores are visible. Each round makes progress, so the number of rounds is limited.
        for round in 0.. {
            assert!(round <= 4 * items + 4, "no progress");
            for (side, done) in &mut rest {
                *done = *done || side.step(&ring);
            }
            if rest.iter().all(|(_, done)| *done) {
                break;
            }
        }
    });
}

/// A function that writes a descriptor: either [`describe`], or a wrong function that the model must detect.
/// The arguments are the descriptor's two words, the address, the length and the lap.
type Describe = fn([&AtomicU64; 2], u64, u32, u32);

/// Runs a ring of one slot. The consumer reads the descriptor before the word. It uses the descriptor only if
/// the descriptor belongs to the word's lap.
fn read_early(start: u64, items: u64, describe: Describe) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ring = Small::new(1, start);
        // Fill the descriptor with the lap before the first item, as if an earlier item had left it. A
        // consumer may read this stale descriptor before the word. It must recognise the descriptor as stale
        // by its lap.
        let old = lap_of(start, 1).wrapping_sub(1);
        let words = Arc::new([AtomicU64::new(old as u64), AtomicU64::new((old as u64) << 32)]);
        let consumer = {
            let (ring, words) = (ring.clone(), words.clone());
            loom::thread::spawn(move || {
                let mut cursor = ConsumerCursor::new(start, 0, 1);
                let mut position = start;
                for _ in 0..items + 1 {
                    let lap = lap_of(position, 1);
                    // A device reads both words of the descriptor in one access. Two loads in this order
                    // allow every outcome of that access, and more outcomes.
                    let second = Word::load(&words[1]);
                    let early = Word::load(&words[0]);
                    let Polled::Item { slot, info } = cursor.poll(&*ring) else { continue };
                    let address = if belongs(second, lap) { early } else { Word::load(&words[0]) };
                    assert_eq!(address, lap as u64, "another lap's address");
                    assert_eq!(read(&ring.requests[slot as usize]), lap as u64, "the packet's bytes");
                    cursor.complete(&*ring, info);
                    position += 1;
                }
            })
        };
        let mut cursor = DispatcherCursor::new(&*ring, start);
        let mut position = start;
        for _ in 0..2 * items + 1 {
            if cursor.poll(&*ring).is_some() {
                cursor.free(&*ring);
            } else if position < start + items
                && let Some(slot) = cursor.claim(&*ring)
            {
                let lap = lap_of(position, 1);
                write(&ring.requests[slot as usize], lap as u64);
                describe([&words[0], &words[1]], lap as u64, 64, lap);
                cursor.publish(&*ring, 1);
                position += 1;
            }
        }
        consumer.join().unwrap();
    });
}

#[test]
fn descriptors_read_before_the_word_are_of_its_lap() {
    read_early(5, 2, describe);
}

#[test]
fn descriptors_are_read_again_where_the_lap_wraps() {
    read_early(u32::MAX as u64, 2, describe);
}

#[test]
#[should_panic(expected = "another lap's address")]
fn descriptors_whose_lap_is_written_first_are_not_of_its_lap() {
    read_early(5, 2, |words, address, length, lap| {
        Word::store(words[1], length as u64 | (lap as u64) << 32);
        Word::store(words[0], address);
    });
}

#[test]
fn slots_are_reused_with_one_consumer() {
    run(2, 0, 4, 1, 8, 2);
}

#[test]
fn two_consumers_share_by_position() {
    run(2, 0, 3, 2, 4, 2);
}

#[test]
fn an_empty_ring_closes() {
    run(2, 0, 0, 2, 2, 3);
}

#[test]
fn laps_wrap() {
    // Items 1 and 2 have the largest 32-bit lap, and items 3 and 4 have lap 0.
    let start = (u32::MAX as u64 - 1) * 2;
    assert_eq!((lap_of(start, 2), lap_of(start + 2, 2)), (u32::MAX, 0));
    run(2, start, 4, 1, 6, 2);
}
