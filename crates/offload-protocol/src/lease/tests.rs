//! Checks the lease protocol with the model checker loom and with random words. Also checks that the bytes
//! read from a slot are the bytes that were written to it.

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
}

/// The size of the send ring in the model, in bytes. The tests send fewer bytes, so the ring never wraps.
const RING: usize = 8;

/// A connection for tests. The program sends through the send ring or through the socket pair.
struct Sending {
    word: Modelled,
    base: Modelled,
    ring: Vec<UnsafeCell<u8>>,
    pair: Mutex<Vec<u8>>,
}

impl Sending {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: Modelled::new(0),
            base: Modelled::new(0),
            ring: (0..RING).map(|_| UnsafeCell::new(0)).collect(),
            pair: Mutex::new(Vec::new()),
        })
    }

    /// Sends a byte as the preloaded library does. If `checks` is false, omits the check that the pair is
    /// empty. The model checker must find this error.
    fn send(&self, byte: u8, checks: bool) {
        let lease = SendLease(&self.word);
        if let Some(claim) = lease.claim() {
            let empty = !checks || self.pair.lock().unwrap().is_empty();
            let at = (claim.position + self.base.load(Ordering::Acquire)) as usize;
            if empty {
                // SAFETY: loom fails the test if another thread accesses the byte.
                self.ring[at].with_mut(|to| unsafe { *to = byte });
            }
            if lease.commit(claim, empty.into()) && empty {
                return;
            }
        }
        self.write(byte);
    }

    /// Writes a byte directly to the socket pair, like a system call that bypasses the preloaded library.
    fn write(&self, byte: u8) {
        self.pair.lock().unwrap().push(byte);
    }

    /// Sends the bytes of the send ring up to `position`, as the engine does.
    fn copy(&self, position: u64, sent: &mut Sent) {
        while sent.bytes.len() < (position + sent.base) as usize {
            // SAFETY: loom fails the test if another thread writes the byte.
            sent.bytes.push(self.ring[sent.bytes.len()].with(|byte| unsafe { *byte }));
        }
    }

    /// Reads the bytes of the pair into the ring behind the others, and sends them.
    fn read_pair(&self, sent: &mut Sent) {
        for byte in std::mem::take(&mut *self.pair.lock().unwrap()) {
            // SAFETY: loom fails the test if another thread accesses the byte.
            self.ring[sent.bytes.len()].with_mut(|to| unsafe { *to = byte });
            sent.bytes.push(byte);
            sent.base += 1;
        }
        self.base.store(sent.base, Ordering::Release);
    }

    /// Runs one round of the engine. Takes the program's bytes from the ring and the socket pair. Grants or
    /// ends the lease.
    fn serve(&self, sent: &mut Sent) {
        let lease = SendLease(&self.word);
        if self.pair.lock().unwrap().is_empty() {
            self.copy(lease.committed(), sent);
            return lease.grant();
        }
        if let Ok(position) = lease.revoke() {
            self.copy(position, sent);
            self.read_pair(sent);
        }
    }
}

/// The bytes that the engine has taken from the ring and the socket pair, in order.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    /// The number of bytes that went through the pair.
    base: u64,
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
        let program = {
            let sending = sending.clone();
            loom::thread::spawn(move || {
                for byte in 1..=3 {
                    if byte == raw { sending.write(byte) } else { sending.send(byte, checks) }
                }
            })
        };
        let mut sent = Sent::default();
        for _ in 0..3 {
            sending.serve(&mut sent);
        }
        program.join().unwrap();
        sending.serve(&mut sent);
        sending.serve(&mut sent);
        assert_eq!(sent.bytes, [1, 2, 3]);
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
        SendLease(&sending.word).grant();
        let other = {
            let sending = sending.clone();
            loom::thread::spawn(move || sending.send(9, true))
        };
        sending.send(1, true);
        sending.send(2, true);
        other.join().unwrap();
        let mut sent = Sent::default();
        sending.serve(&mut sent);
        sending.serve(&mut sent);
        let own: Vec<u8> = sent.bytes.iter().copied().filter(|&byte| byte != 9).collect();
        assert_eq!((own, sent.bytes.len()), (vec![1, 2], 3));
    });
}

#[test]
fn model_an_abandoned_claim_sends_its_bytes_through_the_pair_once() {
    model(3, || {
        let sending = Sending::new();
        SendLease(&sending.word).grant();
        let program = {
            let sending = sending.clone();
            loom::thread::spawn(move || {
                sending.send(1, true);
                sending.send(2, true);
            })
        };
        let mut sent = Sent::default();
        let position = SendLease(&sending.word).abandon().unwrap();
        sending.copy(position, &mut sent);
        program.join().unwrap();
        assert_eq!(SendLease(&sending.word).revoke(), Ok(position));
        sent.bytes.append(&mut sending.pair.lock().unwrap());
        assert_eq!(sent.bytes, [1, 2]);
    });
}

/// A connection that has received the byte 7. The program has not got this byte yet.
struct Receiving {
    word: Modelled,
    offered: Modelled,
    pair: Mutex<Vec<u8>>,
}

#[test]
fn model_a_byte_is_received_exactly_once() {
    model(4, move || {
        let connection = Arc::new(Receiving {
            word: Modelled::new(0),
            offered: Modelled::new(0),
            pair: Mutex::new(Vec::new()),
        });
        let program = {
            let connection = connection.clone();
            loom::thread::spawn(move || {
                let receive = PostedReceive(&connection.word);
                assert!(receive.post());
                let taken = take(&connection);
                if taken.is_none() {
                    receive.ask();
                }
                taken
            })
        };
        let receive = PostedReceive(&connection.word);
        let mut delivered = false;
        let mut offer = None;
        for _ in 0..2 {
            if let (None, Some((post, RECEIVE_BYTES))) = (offer, receive.posted()) {
                connection.offered.store(7, Ordering::Relaxed);
                offer = receive.offer(post, 1);
            }
        }
        if let Some(offer) = offer {
            delivered = receive.withdraw(offer).is_none() && receive.settle(offer) == Answer::Taken;
        }
        if !delivered {
            connection.pair.lock().unwrap().push(7);
            receive.end_move();
        }
        let taken = program.join().unwrap();
        assert_eq!(taken, delivered.then_some(7));
        assert_eq!(connection.pair.lock().unwrap().len(), usize::from(!delivered));
    });
}

/// Takes the next offered byte and keeps the receive posted.
fn take(connection: &Receiving) -> Option<u64> {
    let receive = PostedReceive(&connection.word);
    let offer = receive.offered()?;
    let byte = connection.offered.load(Ordering::Relaxed);
    receive.take(offer, 1).then_some(byte)
}

#[test]
fn model_a_receive_that_stays_posted_gets_each_byte_once_and_in_order() {
    model(3, || {
        let connection = Arc::new(Receiving {
            word: Modelled::new(0),
            offered: Modelled::new(0),
            pair: Mutex::new(Vec::new()),
        });
        let program = {
            let connection = connection.clone();
            loom::thread::spawn(move || {
                let receive = PostedReceive(&connection.word);
                assert!(receive.post());
                let mut taken: Vec<u64> = take(&connection).into_iter().collect();
                // Stop the receive, like a thread that is about to sleep. Stopping fails while an offer is in
                // the slot, so take the offer first.
                while !receive.stop() {
                    taken.extend(take(&connection));
                }
                taken
            })
        };
        let receive = PostedReceive(&connection.word);
        let (mut direct, mut byte, mut offer) = (Vec::new(), 1, None);
        for _ in 0..3 {
            if let Some(offered) = offer {
                match receive.settle(offered) {
                    Answer::Pending => continue,
                    Answer::Taken => {
                        direct.push(byte);
                        byte += 1;
                    }
                    other => panic!("{other:?}"),
                }
                offer = None;
            }
            if let Some((post, RECEIVE_BYTES)) = receive.posted().filter(|_| byte <= 2) {
                connection.offered.store(byte, Ordering::Relaxed);
                offer = receive.offer(post, 1);
            }
        }
        let taken = program.join().unwrap();
        if let Some(offered) = offer
            && receive.settle(offered) == Answer::Taken
        {
            direct.push(byte);
        }
        assert_eq!(taken, direct);
        assert_eq!(taken, (1..=taken.len() as u64).collect::<Vec<_>>());
        assert!(receive.offered().is_none() && receive.posted().is_none());
    });
}

/// [`RECEIVE`] as `u64`, because [`PostedReceive::posted`] returns the length of the receive as `u64`.
const RECEIVE_BYTES: u64 = RECEIVE as u64;

#[test]
fn an_offer_is_taken_in_parts_and_the_rest_can_be_moved_to_the_pair() {
    let word = AtomicU64::new(0);
    let receive = PostedReceive(&word);
    assert!(receive.post() && !receive.post());
    let (post, room) = receive.posted().unwrap();
    assert_eq!(room, RECEIVE_BYTES);
    let offer = receive.offer(post, 10).unwrap();
    let seen = receive.offered().unwrap();
    assert_eq!((seen, seen.len), (offer, 10));
    assert!(receive.take(seen, 4) && !receive.take(seen, 4) && receive.is_pending(offer));
    assert_eq!((receive.settle(offer), receive.offered().unwrap().len), (Answer::Pending, 6));
    assert!(receive.take(receive.offered().unwrap(), 6) && receive.is_renewed(offer));
    assert_eq!(receive.settle(offer), Answer::Taken);
    let (post, _) = receive.posted().unwrap();
    let offer = receive.offer(post, 6).unwrap();
    assert!(receive.take(offer, 1) && !receive.stop() && receive.ask());
    assert_eq!((receive.settle(offer), receive.offered()), (Answer::Asked, None));
    assert_eq!((receive.withdraw(offer), receive.is_moving()), (Some(5), true));
    assert!(!receive.post());
    receive.end_move();
    assert!(receive.post());
    let offer = receive.posted().and_then(|(post, _)| receive.offer(post, 6)).unwrap();
    assert!(receive.take(offer, 6) && receive.stop() && !receive.is_renewed(offer));
    assert_eq!((receive.settle(offer), receive.posted()), (Answer::Taken, None));
}

#[test]
fn a_late_take_fails() {
    let word = AtomicU64::new(0);
    let receive = PostedReceive(&word);
    assert!(receive.post());
    let (post, _) = receive.posted().unwrap();
    let first = receive.offer(post, 4).unwrap();
    assert_eq!(receive.settle(first), Answer::Pending);
    assert_eq!(receive.withdraw(first), Some(4));
    receive.end_move();
    assert!(receive.post());
    let (post, _) = receive.posted().unwrap();
    let second = receive.offer(post, 4).unwrap();
    assert!(!receive.take(first, 4), "an offer that was withdrawn");
    assert!(receive.take(second, 4));
    assert_eq!((receive.withdraw(second), receive.settle(second)), (None, Answer::Taken));
    receive.close();
    assert!(!receive.post());
}

proptest! {
    #[test]
    fn any_words_are_refused_or_bounded(send: u64, receive: u64, next: u64) {
        let word = AtomicU64::new(send);
        let lease = SendLease(&word);
        lease.grant();
        let committed = lease.committed();
        prop_assert!(committed <= POSITION);
        prop_assert_eq!(lease.revoke().unwrap_or(committed), committed);
        prop_assert_eq!(lease.abandon(), Ok(committed));
        prop_assert!(lease.claim().is_none());
        let word = AtomicU64::new(receive);
        let posted = PostedReceive(&word);
        if let Some((post, len)) = posted.posted() {
            prop_assert!(len <= RECEIVE as u64);
            let offer = posted.offer(post, len).unwrap();
            word.store(next, Ordering::Relaxed);
            let _ = posted.settle(offer);
            let _ = posted.withdraw(offer);
        }
    }

    #[test]
    fn a_slot_returns_the_bytes_that_were_written(position in 0u64..1 << 40, base in 0u64..1 << 40, received in 0u64..1 << 40, bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
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
            header.ring.store(RING as u64, Ordering::Relaxed);
            header.base.store(base, Ordering::Relaxed);
            header.room.acknowledged.store(position + base, Ordering::Relaxed);
            header.room.limit.store(1000, Ordering::Relaxed);
            prop_assert_eq!((slot.room(position), slot.room(position + 1001)), (1000, 0));
            header.room.limit.store(RING as u64, Ordering::Relaxed);
            prop_assert_eq!(slot.room(position), RING);
            prop_assert_eq!(slot.room(position + bytes.len() as u64), RING - bytes.len());
            slot.write_send(position, bytes.as_ptr(), bytes.len());
            for (index, byte) in bytes.iter().enumerate() {
                let at = (position + base) as usize + index;
                prop_assert_eq!(slot.rings().add(at % RING).read(), *byte);
                slot.rings().add(RING + (received as usize + index) % RING).write(*byte);
            }
            header.offered.store(received + bytes.len() as u64, Ordering::Relaxed);
            let word = AtomicU64::new(0);
            let receive = PostedReceive(&word);
            prop_assert!(receive.post());
            let offer = receive.posted().and_then(|(post, _)| receive.offer(post, bytes.len() as u64)).unwrap();
            let mut read = vec![0; bytes.len()];
            let half = bytes.len() / 2;
            slot.read_offered(offer, half, read.as_mut_ptr().add(half), bytes.len() - half);
            slot.read_offered(offer, 0, read.as_mut_ptr(), half);
            prop_assert_eq!(&read, &bytes);
            std::alloc::dealloc(start, layout);
        }
    }
}
