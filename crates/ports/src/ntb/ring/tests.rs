//! Tests of positions, with any values of a hostile peer, and of the order of loads and stores with a model checker.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use proptest::prelude::*;

/// Positions whose next unit is `at`.
fn positions(units: u32, at: u32) -> (SendPosition, ReceivePosition) {
    (
        SendPosition { units, next: at, shown: at, read: at },
        ReceivePosition { units, next: at, sent: at, returned: at },
    )
}

/// A ring of headers only, and how far each end has come.
struct Model {
    headers: Vec<u64>,
    sent: u32,
    read: u32,
}

impl Model {
    fn send(&mut self, position: &mut SendPosition, length: usize) -> bool {
        let Some(place) = position.place(length, |_| self.read).unwrap() else { return false };
        let mask = position.units - 1;
        if let Some(skip) = place.skip {
            self.headers[(skip & mask) as usize] = SKIP;
        }
        assert!((place.at & mask) + units(length) <= position.units, "a record is contiguous");
        self.headers[(place.at & mask) as usize] = length as u64;
        position.add(place);
        self.sent = position.show().unwrap();
        true
    }

    fn receive(&mut self, position: &mut ReceivePosition) -> Option<usize> {
        while position.has_record(|_| self.sent).unwrap() {
            let header = self.headers[(position.next() & (position.units - 1)) as usize];
            if let Record::Frame(length) = position.record(header).unwrap() {
                position.skip(length);
                self.read = position.give_back().unwrap();
                return Some(length);
            }
        }
        None
    }
}

proptest! {
    #[test]
    fn lengths_arrive_in_order_wherever_positions_begin(
        start in prop_oneof![Just(0u32), Just(u32::MAX - 3), any::<u32>()],
        lengths in proptest::collection::vec(1..=2000usize, 1..200),
        batch in 1..8usize,
    ) {
        let (mut sender, mut receiver) = positions(64, start);
        let mut model = Model { headers: vec![0; 64], sent: start, read: start };
        let (mut sent, mut received) = (0, 0);
        while received < lengths.len() {
            while sent < lengths.len() && sent < received + batch && model.send(&mut sender, lengths[sent]) {
                sent += 1;
            }
            prop_assert!(sent > received, "an empty ring has room for each frame");
            prop_assert_eq!(model.receive(&mut receiver), Some(lengths[received]));
            received += 1;
        }
        prop_assert_eq!(model.receive(&mut receiver), None);
    }

    #[test]
    fn no_word_of_the_peer_leads_outside_the_ring(
        start in any::<u32>(),
        sent in prop_oneof![any::<u32>(), (0..40u32).prop_map(|n| n.wrapping_sub(20))],
        headers in proptest::collection::vec(prop_oneof![0..3000u64, Just(SKIP), any::<u64>()], 1..50),
    ) {
        let (_, mut position) = positions(16, start);
        let sent = start.wrapping_add(sent);
        for header in headers {
            match position.has_record(|_| sent) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return Ok(()),
            }
            match position.record(header) {
                Ok(Record::Frame(length)) => {
                    prop_assert!(length > 0 && (position.next() & 15) + units(length) <= 16);
                    prop_assert!(units(length) <= sent.wrapping_sub(position.next()));
                    position.skip(length);
                }
                Ok(Record::Skipped) => prop_assert_eq!(position.next() & 15, 0),
                Err(_) => break,
            }
        }
        prop_assert!(position.next().wrapping_sub(start) <= 16);
    }

    #[test]
    fn a_reader_that_is_ahead_of_the_sender_is_refused(start in any::<u32>(), read in any::<u32>()) {
        let (mut sender, _) = positions(16, start);
        for _ in 0..16 {
            let place = sender.place(8, |read| read).unwrap().unwrap();
            sender.add(place);
        }
        sender.show();
        let outcome = sender.place(8, |_| start.wrapping_add(read));
        match read {
            0 => prop_assert_eq!(outcome, Ok(None)),
            1..=16 => prop_assert!(outcome.unwrap().is_some()),
            _ => prop_assert!(outcome.is_err()),
        }
    }
}

/// The words and the frames of a ring, as both ends see them.
struct Shared {
    frames: Vec<UnsafeCell<u64>>,
    sent: AtomicU64,
    read: AtomicU64,
    asleep: AtomicU64,
    doorbell: AtomicU64,
}

impl Shared {
    fn new(units: usize) -> Self {
        Self {
            frames: (0..units).map(|_| UnsafeCell::new(0)).collect(),
            sent: AtomicU64::new(0),
            read: AtomicU64::new(0),
            asleep: AtomicU64::new(0),
            doorbell: AtomicU64::new(0),
        }
    }
}

/// Sends three frames through a ring of two units. The model checker reports a frame that one end writes while the other reads.
#[test]
fn loom_a_frame_is_not_overwritten_while_it_is_read() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new(Shared::new(2));
        let theirs = shared.clone();
        let sender = loom::thread::spawn(move || {
            let mut position = SendPosition::new(2);
            for number in 1..=3 {
                let place = loop {
                    let load = |_| theirs.read.load(Ordering::Acquire) as u32;
                    match position.place(8, load).unwrap() {
                        Some(place) => break place,
                        None => loom::thread::yield_now(),
                    }
                };
                // SAFETY: the model checker verifies that nothing else accesses the frame.
                theirs.frames[(place.at & 1) as usize].with_mut(|frame| unsafe { *frame = number });
                position.add(place);
                theirs.sent.store(position.show().unwrap().into(), Ordering::Release);
            }
        });
        let mut position = ReceivePosition::new(2);
        for number in 1..=3 {
            while !position.has_record(|_| shared.sent.load(Ordering::Acquire) as u32).unwrap() {
                loom::thread::yield_now();
            }
            assert_eq!(position.record(8), Ok(Record::Frame(8)));
            // SAFETY: as above.
            let frame = shared.frames[(position.next() & 1) as usize].with(|frame| unsafe { *frame });
            assert_eq!(frame, number);
            position.skip(8);
            shared.read.store(position.give_back().unwrap().into(), Ordering::Release);
        }
        sender.join().unwrap();
    });
}

/// Lets a sender send two frames while a receiver falls asleep. Both execute a full barrier if `fenced` is true. Panics if the
/// receiver sleeps although there is a frame.
fn sleep(fenced: bool) {
    loom::model(move || {
        let shared = Arc::new(Shared::new(4));
        let theirs = shared.clone();
        let sender = loom::thread::spawn(move || {
            let mut position = SendPosition::new(4);
            for _ in 0..2 {
                let place = position.place(8, |read| read).unwrap().unwrap();
                position.add(place);
                theirs.sent.store(position.show().unwrap().into(), Ordering::Release);
                if fenced {
                    fence(Ordering::SeqCst);
                }
                if theirs.asleep.load(Ordering::Acquire) != 0 {
                    theirs.doorbell.store(1, Ordering::SeqCst);
                }
            }
        });
        let mut position = ReceivePosition::new(4);
        let mut has_record = || position.has_record(|_| shared.sent.load(Ordering::Acquire) as u32).unwrap();
        let mut sleeps = false;
        if !has_record() {
            shared.asleep.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            sleeps = !has_record();
        }
        sender.join().unwrap();
        assert!(!sleeps || shared.doorbell.load(Ordering::SeqCst) == 1, "a lost wake-up");
    });
}

#[test]
fn loom_a_sleeper_is_woken() {
    sleep(true);
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn loom_without_the_senders_barrier_a_wake_up_is_lost() {
    sleep(false);
}
