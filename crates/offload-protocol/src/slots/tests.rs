//! Checks the protocol of slots with the model checker loom and with random words. Also checks that the bytes
//! read from a slot are the bytes that were written to it.

mod life;
mod records;
mod sleepers;

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64 as Modelled, Ordering};
use loom::sync::{Arc, Mutex};
use proptest::prelude::*;

impl Word for Modelled {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.store(value, Ordering::Release)
    }

    fn exchange(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::AcqRel);
    }

    fn take(&self) -> u64 {
        self.swap(0, Ordering::AcqRel)
    }

    fn add(&self, number: u64) {
        self.fetch_add(number, Ordering::AcqRel);
    }

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The size of the send ring in the model, in bytes. The tests send fewer bytes, so the ring never wraps.
const RING: usize = 8;

/// A connection for tests. The program sends through the send ring or through the socket pair.
struct Sending {
    word: Modelled,
    marks: Modelled,
    rung: Modelled,
    alive_ns: Modelled,
    ring: Vec<UnsafeCell<u8>>,
    pair: Mutex<Vec<u8>>,
}

impl Sending {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: Modelled::new(0),
            marks: Modelled::new(0),
            rung: Modelled::new(0),
            alive_ns: Modelled::new(1),
            ring: (0..RING).map(|_| UnsafeCell::new(0)).collect(),
            pair: Mutex::new(Vec::new()),
        })
    }

    fn doorbell(&self) -> Doorbell<'_, Modelled> {
        Doorbell { rung: &self.rung, alive_ns: &self.alive_ns }
    }

    /// Sends a byte as the preloaded library does. If `checks` is false, omits the check that the pair is
    /// empty. The model checker must find this error.
    fn send(&self, byte: u8, checks: bool) {
        let ring = SendRing(&self.word);
        if let Some(claim) = ring.claim() {
            let awake = self.doorbell().ring(1) != 0;
            let empty = || self.pair.lock().unwrap().is_empty();
            let writes = awake && (!checks || PairMarks(&self.marks).is_empty(true, empty));
            if writes {
                // SAFETY: loom fails the test if another thread accesses the byte.
                self.ring[claim.index as usize].with_mut(|to| unsafe { *to = byte });
            }
            if ring.commit(claim, writes.into()) && writes {
                return;
            }
        }
        PairMarks(&self.marks).note_sent();
        self.write(byte);
        PairMarks(&self.marks).note_sent();
    }

    /// Writes a byte directly to the socket pair, like a system call that bypasses the preloaded library.
    fn write(&self, byte: u8) {
        self.pair.lock().unwrap().push(byte);
    }

    /// Sends the bytes of the send ring up to `index`, as the engine does.
    fn collect(&self, index: u64, sent: &mut Vec<u8>) {
        while sent.len() < index as usize {
            // SAFETY: loom fails the test if another thread writes the byte.
            sent.push(self.ring[sent.len()].with(|byte| unsafe { *byte }));
        }
    }

    /// Runs one round of the engine, which reads the pair if it holds bytes. Returns true if another round must follow.
    fn serve(&self, sent: &mut Vec<u8>) -> bool {
        let ring = SendRing(&self.word);
        // Look at the state first: bytes of a claim that has ended are then found.
        let writing = ring.is_claimed();
        self.collect(ring.committed(), sent);
        if self.pair.lock().unwrap().is_empty() {
            return writing;
        }
        let Some(claim) = ring.claim() else { return true };
        self.collect(claim.index, sent);
        let bytes = std::mem::take(&mut *self.pair.lock().unwrap());
        PairMarks(&self.marks).note_found();
        let len = bytes.len() as u64;
        for byte in bytes {
            // SAFETY: loom fails the test if another thread accesses the byte.
            self.ring[sent.len()].with_mut(|to| unsafe { *to = byte });
            sent.push(byte);
        }
        assert!(ring.commit(claim, len));
        false
    }
}

fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

/// Runs the engine beside a program that sends the bytes 1, 2 and 3, and checks their order. The program
/// writes the byte `raw` directly to the socket pair; 0 means none. If `checks` is false, the program does
/// not check that the pair is empty.
fn sends_in_order(raw: u8, checks: bool) {
    model(3, move || {
        let sending = Sending::new();
        if raw > 0 {
            PairMarks(&sending.marks).note_unseen();
        }
        let program = {
            let sending = sending.clone();
            loom::thread::spawn(move || {
                for byte in 1..=3 {
                    if byte == raw { sending.write(byte) } else { sending.send(byte, checks) }
                }
            })
        };
        let mut sent = Vec::new();
        for _ in 0..3 {
            sending.serve(&mut sent);
        }
        program.join().unwrap();
        sending.serve(&mut sent);
        assert_eq!(sent, [1, 2, 3]);
    });
}

#[test]
fn model_bytes_keep_their_order_through_ring_and_pair() {
    sends_in_order(0, true);
}

#[test]
fn model_bytes_written_directly_to_the_pair_keep_their_order() {
    sends_in_order(1, true);
    sends_in_order(2, true);
}

#[test]
#[should_panic(expected = "assertion")]
fn model_finds_the_error_of_a_library_that_does_not_check_the_pair() {
    sends_in_order(2, false);
}

#[test]
fn model_two_threads_do_not_write_the_same_bytes() {
    model(2, || {
        let sending = Sending::new();
        let other = {
            let sending = sending.clone();
            loom::thread::spawn(move || sending.send(9, true))
        };
        sending.send(1, true);
        sending.send(2, true);
        other.join().unwrap();
        let mut sent = Vec::new();
        sending.serve(&mut sent);
        let own: Vec<u8> = sent.iter().copied().filter(|&byte| byte != 9).collect();
        assert_eq!((own, sent.len()), (vec![1, 2], 3));
    });
}

/// A thread sends through the pair, because the other one has the claim. It later finds the mark of this send, although the
/// other thread looks at the pair at the same time.
#[test]
fn model_marks_outlast_looks_at_the_pair_before_the_send() {
    model(3, || {
        let sending = Sending::new();
        PairMarks(&sending.marks).note_sent();
        let other = {
            let sending = sending.clone();
            loom::thread::spawn(move || {
                PairMarks(&sending.marks).note_sent();
                sending.write(1);
                PairMarks(&sending.marks).note_sent();
                sending.send(2, true);
            })
        };
        sending.send(9, true);
        other.join().unwrap();
        let mut sent = Vec::new();
        sending.serve(&mut sent);
        sent.retain(|&byte| byte != 9);
        assert_eq!(sent, [1, 2]);
    });
}

#[test]
fn only_bytes_of_the_library_leave_the_pair_without_further_checks() {
    let word = AtomicU64::new(0);
    let marks = PairMarks(&word);
    assert!(marks.is_empty(true, || false), "nothing is marked");
    marks.note_sent();
    assert!(
        !marks.is_empty(true, || false) && marks.is_empty(false, || true) && !marks.is_empty(true, || false)
    );
    marks.note_found();
    assert!(marks.is_empty(true, || true) && marks.is_empty(true, || false));
    marks.note_found();
    assert!(
        marks.is_empty(true, || true) && !marks.is_empty(true, || false),
        "the library has not sent these bytes"
    );
    marks.reset(false);
    assert!(marks.is_empty(true, || true) && marks.is_empty(true, || false));
}

#[test]
fn model_a_thread_whose_ring_is_closed_sends_its_bytes_through_the_pair_once() {
    model(3, || {
        let sending = Sending::new();
        let program = {
            let sending = sending.clone();
            loom::thread::spawn(move || {
                sending.send(1, true);
                sending.send(2, true);
            })
        };
        let mut sent = Vec::new();
        let index = SendRing(&sending.word).close_by_force().unwrap();
        sending.collect(index, &mut sent);
        program.join().unwrap();
        assert_eq!(SendRing(&sending.word).close(), Ok(index));
        sent.append(&mut sending.pair.lock().unwrap());
        assert_eq!(sent, [1, 2]);
    });
}

/// A second engine stores bytes into the receive ring, and sends those that it cannot store in packets. The engine of the slot
/// processes stored bytes before each packet, and closes the ring meanwhile, unless a store is under way.
#[test]
fn model_a_second_engine_stores_each_byte_or_sends_it_in_a_packet() {
    model(3, || {
        let sending = Sending::new();
        let second = {
            let sending = sending.clone();
            loom::thread::spawn(move || {
                let mut closed = false;
                for byte in 1..=2 {
                    let stores = SendRing(&sending.word);
                    if let Some(claim) = stores.claim().filter(|_| !closed) {
                        // SAFETY: loom fails the test if another thread accesses the byte.
                        sending.ring[claim.index as usize].with_mut(|to| unsafe { *to = byte });
                        assert!(stores.commit(claim, 1), "a ring is not closed during a store");
                    } else {
                        closed = true;
                        sending.write(byte);
                    }
                }
            })
        };
        let mut received = Vec::new();
        let stores = SendRing(&sending.word);
        sending.collect(stores.committed(), &mut received);
        let closed = stores.close();
        if let Ok(index) = closed {
            sending.collect(index, &mut received);
            // SAFETY: loom fails the test if the second engine still writes here.
            sending.ring[index as usize].with_mut(|reused| unsafe { *reused = 9 });
        }
        second.join().unwrap();
        if closed.is_err() {
            sending.collect(stores.committed(), &mut received);
        }
        received.append(&mut sending.pair.lock().unwrap());
        assert_eq!(received, [1, 2]);
    });
}

/// The engine falls asleep while the program sends. From then on, only bytes in the pair wake it.
#[test]
fn model_no_byte_waits_in_the_ring_of_an_engine_that_sleeps() {
    model(3, || {
        let sending = Sending::new();
        let program = {
            let sending = sending.clone();
            loom::thread::spawn(move || sending.send(1, true))
        };
        let mut sent = Vec::new();
        let falls_asleep = sending.doorbell().falls_asleep();
        if !falls_asleep {
            sending.doorbell().beat(1);
            assert_eq!(sending.doorbell().answer(), 1);
            while sending.serve(&mut sent) {
                loom::thread::yield_now();
            }
            // The program may still send through the pair, which wakes the engine later.
        }
        program.join().unwrap();
        let in_pair = sending.pair.lock().unwrap().len();
        assert_eq!(sent.len() + in_pair, 1, "falls asleep: {falls_asleep}");
    });
}

/// A connection that receives bytes through the receive ring or the socket pair.
struct Receiving {
    word: Modelled,
    filled: Modelled,
    received: Modelled,
    ring: Vec<UnsafeCell<u8>>,
    pair: Mutex<Vec<u8>>,
}

impl Receiving {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: Modelled::new(0),
            filled: Modelled::new(0),
            received: Modelled::new(0),
            ring: (0..RING).map(|_| UnsafeCell::new(0)).collect(),
            pair: Mutex::new(Vec::new()),
        })
    }

    fn receive(&self) -> ReceiveRing<'_, Modelled> {
        ReceiveRing { word: &self.word, filled: &self.filled }
    }

    /// Takes a byte of the ring, as the preloaded library does.
    fn take(&self) -> Option<u8> {
        let received = self.receive().received(RING as u64)?;
        let at = received.position().wrapping_add(self.received.load(Ordering::Relaxed)) as usize;
        // SAFETY: loom fails the test if the engine writes the byte meanwhile.
        let byte = self.ring[at].with(|byte| unsafe { *byte });
        self.receive().take(received, 1).then_some(byte)
    }

    /// Takes a byte of the pair, as the kernel does for a program.
    fn take_from_pair(&self) -> Option<u8> {
        let mut pair = self.pair.lock().unwrap();
        (!pair.is_empty()).then(|| pair.remove(0))
    }
}

/// The engine's side of a connection that receives the bytes 1, 2, and so on.
#[derive(Default)]
struct Delivering {
    /// The number of bytes that the program has taken of the ring, or that are in the pair.
    delivered: u64,
    /// The number of received bytes.
    received: u64,
    /// The index of the byte at position 0 while the ring is open.
    base: Option<u64>,
    /// True once the pair has the end of the stream.
    end_in_pair: bool,
}

impl Delivering {
    /// Receives `count` bytes and delivers all of them. If `ends` is true, first ends the mode RING.
    fn serve(&mut self, connection: &Receiving, count: u64, ends: bool) {
        let receive = connection.receive();
        for _ in 0..count {
            self.received += 1;
            let byte = self.received as u8;
            // SAFETY: loom fails the test if the program reads the byte meanwhile.
            connection.ring[self.received as usize - 1].with_mut(|to| unsafe { *to = byte });
        }
        if let Some(base) = self.base {
            let (open, mut taken) = receive.taken();
            if ends {
                taken = receive.end();
            }
            self.delivered = base.wrapping_add(taken);
            if ends || !open {
                self.base = None;
            }
        }
        let empty = connection.pair.lock().unwrap().is_empty();
        if self.base.is_none() && !ends && receive.is_asked() && empty {
            let taken = receive.taken().1;
            let base = self.delivered.wrapping_sub(taken + 1);
            connection.received.store(base, Ordering::Relaxed);
            self.base = receive.open(taken).then_some(base);
        }
        match self.base {
            Some(base) => receive.fill(self.received.wrapping_sub(base)),
            None => {
                let mut pair = connection.pair.lock().unwrap();
                pair.extend(self.delivered as u8 + 1..=self.received as u8);
                drop(pair);
                self.delivered = self.received;
                receive.fill(receive.taken().1);
            }
        }
    }
}

impl Delivering {
    /// Passes the end of the stream, as byte 0 in the pair.
    fn end_stream(&mut self, connection: &Receiving) {
        let receive = connection.receive();
        if let Some(base) = self.base {
            let (open, taken) = receive.taken();
            self.delivered = base.wrapping_add(taken);
            self.base = open.then_some(base);
        }
        match self.base {
            Some(base) => receive.end_stream(self.received.wrapping_sub(base)),
            None if self.end_in_pair => {}
            None => {
                let mut pair = connection.pair.lock().unwrap();
                pair.extend(self.delivered as u8 + 1..=self.received as u8);
                pair.push(0);
                drop(pair);
                (self.delivered, self.end_in_pair) = (self.received, true);
                receive.fill(receive.taken().1);
            }
        }
    }
}

/// A program takes a byte and then finds the end of the stream in the ring, or it leaves the ring and finds the rest in the pair.
#[test]
fn model_the_end_of_the_stream_is_in_the_ring_or_in_the_pair() {
    model(3, || {
        let connection = Receiving::new();
        let program = {
            let connection = connection.clone();
            loom::thread::spawn(move || {
                let receive = connection.receive();
                let mut taken = Vec::new();
                assert!(receive.ask());
                taken.extend(connection.take());
                while !receive.stop() {
                    match connection.take() {
                        Some(byte) => taken.push(byte),
                        None if receive.is_at_end() => {
                            assert!(receive.is_at_end() && receive.has_end(), "the end stays");
                            return ([taken, vec![0]].concat(), true);
                        }
                        // The engine moves the rest to the pair.
                        None => break,
                    }
                }
                (taken, false)
            })
        };
        let mut engine = Delivering::default();
        engine.serve(&connection, 1, false);
        engine.end_stream(&connection);
        engine.end_stream(&connection);
        let (mut taken, at_end) = program.join().unwrap();
        // A program that has seen the end in the ring may ask the kernel nevertheless.
        if at_end {
            assert!(connection.pair.lock().unwrap().is_empty() && connection.receive().leave());
            taken.pop();
        }
        engine.end_stream(&connection);
        taken.extend(std::iter::from_fn(|| connection.take_from_pair()));
        assert_eq!(taken, [1, 0]);
        assert!(!connection.receive().is_moving() && !connection.receive().has_end());
    });
}

/// Runs a program that asks for the ring, takes what it finds there, leaves the ring, and receives the rest through
/// the pair. The engine ends the mode RING itself if `ends` is true.
fn receives_in_order(ends: bool) {
    model(3, move || {
        let connection = Receiving::new();
        let program = {
            let connection = connection.clone();
            loom::thread::spawn(move || {
                let receive = connection.receive();
                let mut taken = Vec::new();
                assert!(receive.ask());
                taken.extend(connection.take());
                while !receive.stop() {
                    match connection.take() {
                        Some(byte) => taken.push(byte),
                        // The engine moves the bytes to the pair.
                        None => break,
                    }
                }
                taken
            })
        };
        let mut engine = Delivering::default();
        engine.serve(&connection, 1, false);
        engine.serve(&connection, 1, false);
        engine.serve(&connection, 0, ends);
        let mut taken = program.join().unwrap();
        // The program has left the ring. It asks for it again and sleeps in the kernel.
        engine.serve(&connection, 0, false);
        taken.extend(std::iter::from_fn(|| connection.take_from_pair()));
        assert_eq!(taken, [1, 2]);
        assert!(!connection.receive().is_moving() && connection.receive().ask());
    });
}

/// A second engine stores a byte, and publishes it unless the engine of the slot has taken that right away. Meanwhile the program
/// leaves the ring, and the engine moves what is left there to the pair. The engine ends the mode RING itself if `ends` is true.
fn receives_stores_in_order(ends: bool) {
    model(2, move || {
        let connection = Receiving::new();
        let words = Arc::new([Modelled::new(0), Modelled::new(0)]);
        let receive = connection.receive();
        assert!(receive.ask());
        let mut engine = Delivering::default();
        engine.serve(&connection, 1, false);
        let stores = Stores { ring: SendRing(&words[0]), base: &words[1], filled: &connection.filled };
        stores.set_base(engine.base);
        let second = {
            let (connection, words) = (connection.clone(), words.clone());
            loom::thread::spawn(move || {
                let stores =
                    Stores { ring: SendRing(&words[0]), base: &words[1], filled: &connection.filled };
                let Some(claim) = stores.ring.claim() else { return };
                // SAFETY: loom fails the test if the program or the engine reads the byte meanwhile.
                connection.ring[1].with_mut(|to| unsafe { *to = 2 });
                assert!(stores.commit(claim, 1, 2).is_some());
            })
        };
        let program = {
            let connection = connection.clone();
            loom::thread::spawn(move || {
                let mut taken: Vec<u8> = connection.take().into_iter().collect();
                if !connection.receive().stop() {
                    taken.extend(connection.take());
                }
                taken
            })
        };
        let hold = |engine: &mut Delivering, ends| {
            let Some(claim) = stores.ring.claim() else { return false };
            engine.received = 1 + claim.index;
            stores.set_base(None);
            engine.serve(&connection, 0, ends);
            assert!(stores.ring.commit(claim, 0));
            true
        };
        let mut held = (ends || !receive.taken().0) && hold(&mut engine, ends);
        while ends && !held {
            loom::thread::yield_now();
            held = hold(&mut engine, true);
        }
        second.join().unwrap();
        let mut taken = program.join().unwrap();
        assert!(!held || !ends || !receive.is_moving(), "a published byte is left in the ring");
        assert!(hold(&mut engine, true));
        taken.extend(std::iter::from_fn(|| connection.take_from_pair()));
        assert_eq!(taken, (1..=1 + stores.ring.committed() as u8).collect::<Vec<_>>());
        assert!(!receive.is_moving());
    });
}

/// A word of which loom checks that stores do not race.
struct Guarded(Modelled, UnsafeCell<()>);

impl Word for Guarded {
    fn load(&self) -> u64 {
        Word::load(&self.0)
    }

    fn store(&self, value: u64) {
        self.1.with_mut(|_| ());
        Word::store(&self.0, value);
    }

    fn exchange(&self, current: u64, new: u64) -> bool {
        self.0.exchange(current, new)
    }

    fn set(&self, _: u64) {
        unreachable!("neither engine does this")
    }

    fn take(&self) -> u64 {
        unreachable!("neither engine does this")
    }

    fn add(&self, _: u64) {
        unreachable!("neither engine does this")
    }

    fn fence() {
        Modelled::fence();
    }
}

#[test]
fn model_only_the_engine_that_has_the_claim_publishes() {
    loom::model(|| {
        let words = Arc::new([(); 3].map(|()| Guarded(Modelled::new(0), UnsafeCell::new(()))));
        let second = {
            let words = words.clone();
            loom::thread::spawn(move || {
                let stores = Stores { ring: SendRing(&words[0]), base: &words[1], filled: &words[2] };
                if let Some(claim) = stores.ring.claim() {
                    assert!(stores.commit(claim, 1, 1).is_some());
                }
            })
        };
        let claim = loop {
            match SendRing(&words[0]).claim() {
                Some(claim) => break claim,
                None => loom::thread::yield_now(),
            }
        };
        words[1].store(UNPUBLISHED);
        words[2].store(7);
        assert!(SendRing(&words[0]).commit(claim, 0));
        // Only this engine publishes from now on.
        words[2].store(8);
        second.join().unwrap();
    });
}

#[test]
fn model_a_second_engine_publishes_while_the_program_leaves_the_ring() {
    receives_stores_in_order(false);
}

#[test]
fn model_a_second_engine_publishes_nothing_after_the_ring_is_held() {
    receives_stores_in_order(true);
}

#[test]
fn model_each_byte_is_received_once_and_in_order_through_ring_and_pair() {
    receives_in_order(false);
}

#[test]
fn model_bytes_of_a_ring_that_the_engine_ends_come_through_the_pair() {
    receives_in_order(true);
}

#[test]
fn model_two_threads_share_the_received_bytes() {
    model(2, || {
        let connection = Receiving::new();
        assert!(connection.receive().ask());
        let mut engine = Delivering::default();
        engine.serve(&connection, 2, false);
        let other = {
            let connection = connection.clone();
            loom::thread::spawn(move || connection.take())
        };
        let mut taken: Vec<u8> = connection.take().into_iter().collect();
        engine.serve(&connection, 1, false);
        taken.extend(other.join().unwrap());
        taken.extend(std::iter::from_fn(|| connection.take()));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3]);
    });
}

#[test]
fn model_a_ring_that_is_just_being_opened_shows_no_bytes() {
    model(3, || {
        let connection = Receiving::new();
        assert!(connection.receive().ask());
        let program = {
            let connection = connection.clone();
            loom::thread::spawn(move || {
                let receive = connection.receive();
                assert!(receive.stop() && !receive.is_moving() && receive.received(RING as u64).is_none());
            })
        };
        connection.receive().open(0);
        program.join().unwrap();
        connection.receive().fill(connection.receive().taken().1);
        assert!(connection.receive().ask());
    });
}

#[test]
fn bytes_are_taken_in_parts_and_the_rest_is_moved_to_the_pair() {
    let (word, filled) = (AtomicU64::new(0), AtomicU64::new(0));
    let receive = ReceiveRing { word: &word, filled: &filled };
    assert!(receive.ask() && !receive.ask() && receive.is_asked() && !receive.is_idle());
    assert!(receive.open(0) && !receive.open(0) && receive.received(100).is_none());
    receive.fill(11);
    let received = receive.received(100).unwrap();
    assert_eq!((received.position(), received.len, receive.received(9)), (1, 10, None));
    assert!(receive.take(received, 4) && !receive.take(received, 4));
    assert_eq!((receive.received(100).unwrap().len, receive.taken()), (6, (true, 5)));
    assert!(!receive.stop() && receive.leave() && receive.is_moving() && !receive.ask());
    assert_eq!((receive.end(), receive.received(100)), (5, None));
    receive.fill(5);
    assert!(!receive.is_moving() && receive.ask() && receive.stop() && receive.is_idle());
    assert!(!receive.open(5) && !receive.is_moving(), "the request was taken back");
    assert!(receive.ask() && receive.open(5) && receive.stop());
}

#[test]
fn a_late_take_fails() {
    let (word, filled) = (AtomicU64::new(0), AtomicU64::new(0));
    let receive = ReceiveRing { word: &word, filled: &filled };
    assert!(receive.ask() && receive.open(0));
    receive.fill(2);
    let first = receive.received(100).unwrap();
    receive.end();
    receive.fill(1);
    assert!(receive.ask() && receive.open(1));
    receive.fill(3);
    assert!(!receive.take(first, 1), "the ring was opened again");
    let second = receive.received(100).unwrap();
    receive.close();
    assert!(!receive.ask() && !receive.take(second, 1) && receive.stop());
    let start = receive.reset(false);
    assert!(receive.ask() && receive.open(start));
    receive.fill(start + 2);
    assert!(!receive.take(second, 1), "the slot belongs to another connection");
    assert!(receive.take(receive.received(100).unwrap(), 1));
}

proptest! {
    #[test]
    fn any_words_are_refused_or_bounded(send: u64, receive: u64, next: u64) {
        let word = AtomicU64::new(send);
        let ring = SendRing(&word);
        let committed = ring.committed();
        prop_assert!(committed <= POSITION);
        prop_assert_eq!(ring.next(), ring.claim().map(|claim| claim.index));
        prop_assert_eq!(ring.close().unwrap_or(committed), committed);
        prop_assert_eq!(ring.close_by_force(), Ok(committed));
        prop_assert!(ring.claim().is_none());
        let (word, filled) = (AtomicU64::new(receive), AtomicU64::new(next));
        let ring = ReceiveRing { word: &word, filled: &filled };
        prop_assert!(ring.received(4096).is_none_or(|received| received.len <= 4096 && received.position() <= POSITION));
        prop_assert!(ring.end() <= POSITION && !ring.is_asked());
        let start = ring.reset(false);
        prop_assert!(ring.ask() && ring.open(start));
    }

    #[test]
    fn a_slot_returns_the_bytes_that_were_written(index in 0u64..1 << 40, received in 0u64..1 << 40, bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        const RING: usize = 4096;
        let layout = std::alloc::Layout::from_size_align(Area::len(RING).unwrap(), 4096).unwrap();
        // SAFETY: the layout is not empty, the copies stay within `bytes` and `read`, and the memory is freed
        // after its last use.
        unsafe {
            let start = std::alloc::alloc_zeroed(layout);
            let area = Area::new(std::ptr::NonNull::new(start).unwrap(), RING);
            prop_assert!(area.slot(SLOTS).is_none());
            let slot = area.slot(SLOTS - 1).unwrap();
            prop_assert_eq!((0..SLOTS).map(|index| area.index_of(area.slot(index).unwrap())).position(|index| index.is_none()), None);
            prop_assert_eq!(area.index_of(slot), Some(SLOTS - 1));
            prop_assert_eq!(area.ready().load(Ordering::Relaxed), 0);
            let header = slot.header();
            header.ring.store(RING as u32, Ordering::Relaxed);
            header.doorbell.store(area.distance_to_doorbell(slot, MOST_THREADS - 1) as u64, Ordering::Relaxed);
            header.number.store(SLOTS as u32 - 1, Ordering::Relaxed);
            area.doorbell(MOST_THREADS - 1).beat(7);
            prop_assert_eq!((slot.ring_doorbell(), area.doorbell(MOST_THREADS - 1).answer()), (7, 1 << (SLOTS - 1)));
            prop_assert_eq!((area.doorbell(0).answer(), area.doorbell(0).ring(0)), (0, 0));
            header.room.acknowledged.store(index, Ordering::Relaxed);
            header.room.limit.store(1000, Ordering::Relaxed);
            prop_assert_eq!((slot.room(index), slot.room(index + 1001)), (1000, 0));
            header.room.limit.store(RING as u64, Ordering::Relaxed);
            prop_assert_eq!(slot.room(index), RING);
            prop_assert_eq!(slot.room(index + bytes.len() as u64), RING - bytes.len());
            slot.write_send(index, bytes.as_ptr(), bytes.len());
            for (offset, byte) in bytes.iter().enumerate() {
                prop_assert_eq!(slot.rings().add((index as usize + offset) % RING).read(), *byte);
                slot.rings().add(RING + (received as usize + offset) % RING).write(*byte);
            }
            let receive = slot.receive();
            prop_assert!(receive.ask() && receive.open(0));
            header.received.store(received.wrapping_sub(1), Ordering::Relaxed);
            receive.fill(1 + bytes.len() as u64);
            prop_assert_eq!(slot.received().map_or(0, |received| received.len), bytes.len() as u64);
            let mut read = vec![0; bytes.len()];
            let half = bytes.len() / 2;
            if let Some(received) = slot.received() {
                slot.read_received(received, half, read.as_mut_ptr().add(half), bytes.len() - half);
                slot.read_received(received, 0, read.as_mut_ptr(), half);
            }
            prop_assert_eq!(&read, &bytes);
            std::alloc::dealloc(start, layout);
        }
    }
}
