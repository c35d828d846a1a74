//! Tests with a hostile peer that writes garbage into handshakes, requests, replies and inboxes. Also tests
//! timeouts, wake-ups and lost links.

use super::layout::{HEADER_WORDS, Layout, MAGIC, SLOTS};
use super::record::CONTENTS;
use super::requests::sequence;
use super::{Settings, Windows};
use crate::error::{Error, Result};
use crate::transport::Reuse::{AtQuiet, AtReturn};
use crate::transport::{Atomic, Awaited, Operation, Transport, no_check};
use inlane_core::completion::CompletionMode;
use inlane_core::mover::Mover;
use inlane_ntb::device::Ntb;
use inlane_ntb::error::Error as Bridge;
use inlane_ntb::fault::{Faults, Random};
use inlane_ntb::handshake::protocol::{ROW, ScratchpadRow, VERSION};
use inlane_ntb::handshake::{self, Offer};
use inlane_ntb::twin::{Hub, Twin};
use inlane_ntb::window::Window;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 2 << 20;

fn settings(timeout_ms: u64) -> Settings {
    Settings {
        connect_timeout: Duration::from_millis(timeout_ms),
        request_timeout: Some(LONG),
        // Let owners carry out the atomics, because these tests exercise requests to the owner.
        atomics_by_owner: true,
        yields: true,
        ..Settings::default()
    }
}

fn pair(bytes: u64) -> (Hub, Twin, Twin) {
    let hub = Hub::new(2, bytes).unwrap();
    let attach = |port| Twin::attach(hub.admit(port).unwrap(), &Faults::default()).unwrap();
    let (a, b) = (attach(0), attach(1));
    (hub, a, b)
}

fn write_row(hostile: &Twin, words: &[u32; ROW]) {
    for (index, word) in words.iter().enumerate() {
        hostile.peer_scratchpad_write(0, (ROW + index) as u32, *word).unwrap();
    }
}

fn refused(outcome: Result<Windows>) -> Error {
    outcome.err().expect("must not connect")
}

#[test]
fn garbage_in_the_handshake_connects_nobody() {
    let mut random = Random::new(5);
    for _ in 0..5 {
        let (_hub, a, hostile) = pair(BYTES as u64);
        hostile.link_enable(true);
        write_row(&hostile, &std::array::from_fn(|_| random.next_u64() as u32));
        let error = refused(Windows::connect(Arc::new(a), BYTES, settings(60)));
        assert!(
            matches!(&error, Error::Ntb(Bridge::Handshake { why, .. }) if why.contains("garbage")),
            "{error}"
        );
    }
}

#[test]
fn silence_and_staleness_are_told_apart() {
    let (_hub, a, stale) = pair(BYTES as u64);
    let a: Arc<dyn Ntb> = Arc::new(a);
    let error = refused(Windows::connect(a.clone(), BYTES, settings(60)));
    assert!(error.to_string().contains("no answer"), "{error}");
    write_row(
        &stale,
        &ScratchpadRow { version: VERSION, epoch: 77, seen: 1, ready: true, ..ScratchpadRow::default() }
            .encode(),
    );
    let error = refused(Windows::connect(a, BYTES, settings(60)));
    assert!(error.to_string().contains("another epoch"), "{error}");
}

/// Acts as a hostile peer in the handshake. Answers each handshake record of the other port with a record
/// that has epoch 9 and the given version and sizes. Returns once another thread has set `over`.
fn answer(hostile: &Twin, version: u16, limit_pages: u32, inbound_pages: u32, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        let words: [u32; ROW] = std::array::from_fn(|index| hostile.scratchpad_read(index as u32));
        if let Some(row) = ScratchpadRow::decode(&words) {
            let row =
                ScratchpadRow { version, epoch: 9, seen: row.epoch, limit_pages, inbound_pages, ready: true };
            write_row(hostile, &row.encode());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn other_versions_and_sizes_are_refused() {
    let connect = |version, limit, inbound| {
        let (_hub, a, hostile) = pair(BYTES as u64);
        hostile.link_enable(true);
        let (hostile, over) = (&hostile, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(move || answer(hostile, version, limit, inbound, over));
            let outcome = Windows::connect(Arc::new(a), BYTES, settings(60_000));
            over.store(true, Ordering::Release);
            refused(outcome)
        })
    };
    let pages = (BYTES / 4096) as u32;
    assert!(
        matches!(connect(VERSION + 1, pages, pages), Error::Ntb(Bridge::Version { theirs, .. }) if theirs == VERSION + 1)
    );
    for (limit, inbound, what) in
        [(1, pages, "peer's window takes 1"), (pages, u32::MAX, "this side's window takes")]
    {
        let error = connect(VERSION, limit, inbound);
        assert!(matches!(&error, Error::Ntb(Bridge::Window { why, .. }) if why.contains(what)), "{error}");
    }
    // The sizes fit, but the peer never sets its address translation. So mapping the memory window of the
    // peer must fail.
    let error = connect(VERSION, pages, pages);
    assert!(matches!(error, Error::Ntb(Bridge::Window { .. })), "{error}");
}

#[test]
fn too_little_memory_is_refused_at_once() {
    let (_hub, a, _b) = pair(4096);
    assert!(matches!(refused(Windows::connect(Arc::new(a), 4096, settings(60))), Error::Invalid { .. }));
    let (_hub, a, _b) = pair(BYTES as u64);
    assert!(
        refused(Windows::connect(Arc::new(a), 2 * BYTES, settings(60))).to_string().contains("ends before")
    );
}

/// Completes a handshake as a peer that later breaks the protocol. Returns the peer's window onto the other
/// side, and the connection's tag.
fn hostile_peer(hostile: &Twin) -> (Window, u32) {
    let layout = Layout::new(2, BYTES).unwrap();
    let inbound = hostile.inbound().slice(0, BYTES).unwrap();
    let header: [u64; HEADER_WORDS] = [MAGIC, 2, layout.symmetric_bytes() as u64, 0, 4096];
    for (index, word) in header.iter().enumerate() {
        // SAFETY: the header's words lie in this side's own memory.
        unsafe { inbound.as_ptr().cast::<u64>().add(index).write_volatile(*word) };
    }
    hostile.link_enable(true);
    let offer = Offer { inbound: &inbound, epoch: 4242, timeout: Duration::from_secs(5) };
    let connection = handshake::connect(hostile, 0, &offer, &Faults::default()).unwrap();
    (hostile.peer_window(0, 0).unwrap(), connection.tag())
}

fn against_a_hostile_peer(body: impl FnOnce(&Windows, &Twin, &Window, u32)) {
    let (_hub, a, hostile) = pair(BYTES as u64);
    std::thread::scope(|scope| {
        let impatient = Settings { request_timeout: Some(Duration::from_millis(500)), ..settings(5000) };
        let honest = scope.spawn(|| Windows::connect(Arc::new(a), BYTES, impatient).unwrap());
        let (window, tag) = hostile_peer(&hostile);
        body(&honest.join().unwrap(), &hostile, &window, tag);
    });
}

#[test]
fn hostile_requests_are_refused_and_touch_nothing() {
    against_a_hostile_peer(|honest, hostile, window, tag| {
        let layout = *honest.layout();
        let (symmetric, length) = honest.symmetric();
        // SAFETY: the bytes are this PE's own symmetric memory.
        unsafe { std::ptr::write_bytes(symmetric, 0x5A, length) };
        let mut random = Random::new(11);
        let edges = [0, 1, 3, 8, length as u64 - 8, length as u64, 1 << 20, u64::MAX - 7, u64::MAX];
        for number in 1..=20 * SLOTS {
            let mut contents: [u64; CONTENTS] =
                std::array::from_fn(|_| edges[random.next_u64() as usize % edges.len()]);
            // Use a known operation in every second request. Only then do the requests reach the checks of
            // offset and length.
            contents[0] = if number % 2 == 0 {
                (number / 2 % 3) | ((number % 9) << 8) | (8 << 16)
            } else {
                random.next_u64()
            };
            // Make the offset odd, so that the atomic is invalid. A valid atomic would change the memory that
            // is compared below.
            contents[1] |= 1;
            let at = layout.request(1, number);
            for (index, word) in contents.iter().enumerate() {
                window.store_word(at + 8 + index * 8, *word).unwrap();
            }
            window.store_word(at + 56, sequence(tag, number)).unwrap();
            window.store_word(at, sequence(tag, number)).unwrap();
            if number % SLOTS == 0 {
                hostile.peer_doorbell_set(0, u64::MAX).unwrap();
                honest.progress();
            }
        }
        honest.progress();
        // The memory must be unchanged. Only requests with valid spans were carried out, and these requests
        // only read the memory. SAFETY: the bytes are this PE's own symmetric memory. No PE writes them any
        // more.
        let memory = unsafe { std::slice::from_raw_parts(symmetric, length) };
        assert!(memory.iter().all(|byte| *byte == 0x5A));
    });
}

#[test]
fn every_word_of_the_inbox_may_be_garbage() {
    against_a_hostile_peer(|honest, hostile, window, _tag| {
        let layout = *honest.layout();
        let mut random = Random::new(3);
        let (from, to) = (layout.notifications(1), layout.landing());
        for round in 0..200 {
            for offset in (from..to).step_by(8) {
                window.store_word(offset, random.next_u64() >> (random.next_u64() % 64)).unwrap();
            }
            hostile.peer_doorbell_set(0, random.next_u64()).unwrap();
            let word = [round as u8; 8];
            // SAFETY: the source is 8 bytes.
            unsafe { honest.put(1, 0, word.as_ptr(), 8, AtReturn) }.unwrap();
            honest.progress();
            honest.fence().unwrap();
            honest.quiet().unwrap();
        }
    });
}

#[test]
fn a_peer_that_never_answers_is_a_timeout() {
    against_a_hostile_peer(|honest, _hostile, _window, _tag| {
        let atomic = Atomic { operation: Operation::Add, offset: 0, width: 8, operand: 1, comparand: 0 };
        // SAFETY: the source has as many bytes as are put.
        unsafe { honest.put(1, 0, [1u8; 24].as_ptr(), 24, AtReturn) }.unwrap();
        honest.quiet().unwrap();
        let error = honest.atomic(1, atomic).unwrap_err();
        let Error::Timeout { peer: 1, lost, .. } = error else { panic!("{error}") };
        assert_eq!((lost.issued_bytes, lost.delivered_bytes, lost.unanswered), (24, 24, 1));
        // Fill the other slots with requests that nobody waits for. Posting one more request must then time
        // out.
        let error =
            (0..SLOTS).find_map(|_| honest.atomic_nbi(1, atomic).err()).or_else(|| honest.quiet().err());
        assert!(matches!(error, Some(Error::Timeout { .. })), "{error:?}");
    });
}

/// Plays the owner that answers a request: writes the reply to request `number`, with the result `value`.
fn reply(window: &Window, layout: &Layout, tag: u32, number: u64, value: u64) {
    let at = layout.reply(1, number);
    for (index, word) in [super::requests::DONE, value, 0, sequence(tag, number)].into_iter().enumerate() {
        window.store_word(at + index * 8, word).unwrap();
    }
}

#[test]
fn a_late_answer_frees_the_slot_of_a_timed_out_request() {
    let (_hub, a, hostile) = pair(BYTES as u64);
    std::thread::scope(|scope| {
        let settings = Settings { request_timeout: Some(Duration::from_millis(5)), ..settings(5000) };
        let honest = scope.spawn(|| Windows::connect(Arc::new(a), BYTES, settings).unwrap());
        let (window, tag) = hostile_peer(&hostile);
        let honest = honest.join().unwrap();
        let atomic = Atomic { operation: Operation::Add, offset: 0, width: 8, operand: 1, comparand: 0 };
        // Post more requests than there are slots for requests. Each request times out. The late answer to a
        // request must free its slot.
        for number in 1..=3 * SLOTS {
            let error = honest.atomic(1, atomic).unwrap_err();
            let Error::Timeout { what: "an atomic", lost, .. } = error else { panic!("{number}: {error}") };
            assert!(lost.unanswered <= SLOTS, "{number}: {lost}");
            reply(&window, honest.layout(), tag, number, 0);
        }
        // No thread waits for abandoned requests, so quiet must succeed.
        honest.quiet().unwrap();
    });
}

#[test]
fn a_storm_of_doorbells_stops_no_pe() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let hub = Hub::new(3, BYTES as u64).unwrap();
        let attach = |port| Arc::new(Twin::attach(hub.admit(port).unwrap(), &Faults::default()).unwrap());
        let over = AtomicBool::new(false);
        let side = |port| {
            let ntb = attach(port);
            let windows =
                Windows::connect(ntb.clone(), BYTES, Settings { completion, ..settings(10_000) }).unwrap();
            // The hostile port 2 rings all doorbells of the other two ports until these ports have completed
            // their rounds.
            while port == 2 && !over.load(Ordering::Acquire) {
                (0..2).for_each(|peer| ntb.peer_doorbell_set(peer, u64::MAX).unwrap());
            }
            for round in 0..200 * u64::from(port != 2) {
                let add = Atomic { operation: Operation::Add, offset: 0, width: 8, operand: 1, comparand: 0 };
                assert_eq!(windows.atomic(1 - port, add).unwrap(), round);
                windows.notify(1 - port).unwrap();
                windows.take_notification(1 - port, &mut no_check).unwrap();
            }
            windows
        };
        std::thread::scope(|scope| {
            let hostile = scope.spawn(|| side(2));
            let both = [scope.spawn(|| side(0)), scope.spawn(|| side(1))].map(|one| one.join().is_ok());
            over.store(true, Ordering::Release);
            let _ = hostile.join();
            assert_eq!(both, [true; 2], "{completion}");
        });
    }
}

/// The longest sleep of the waits in [`two`] if no doorbell wakes them. It is long enough that a lost wake-up
/// fails the test.
const LONG: Duration = Duration::from_secs(60);

/// Connects two PEs that wait by interrupt, and runs `body` on the first and `other` on the second.
fn two(body: impl FnOnce(&Windows, &Twin) + Send, other: impl FnOnce(&Windows) + Send) {
    two_with(None, body, other);
}

/// Runs [`two`] with a mover at the first PE. The mover copies everything that this PE puts.
fn two_with(
    mover: Option<Box<dyn Mover>>,
    body: impl FnOnce(&Windows, &Twin) + Send,
    other: impl FnOnce(&Windows) + Send,
) {
    let (_hub, a, b) = pair(BYTES as u64);
    let b = Arc::new(b);
    let connect = |ntb: Arc<Twin>, mover: Option<Box<dyn Mover>>| {
        let mover = mover.map(|mover| (mover, Some(0)));
        let settings = Settings {
            completion: CompletionMode::Interrupt,
            mover,
            backstop: (LONG, LONG),
            ..settings(5000)
        };
        Windows::connect(ntb, BYTES, settings).unwrap()
    };
    std::thread::scope(|scope| {
        let theirs = b.clone();
        let second = scope.spawn(move || {
            let windows = connect(theirs, None);
            other(&windows);
            windows
        });
        let first = connect(Arc::new(a), mover);
        body(&first, &b);
        let _ = second.join().unwrap();
    });
}

#[test]
fn puts_do_not_ring_a_waiter_for_another_word() {
    const WAKE: u64 = super::WAKE;
    let second = |windows: &Windows| {
        windows.take_notification(0, &mut no_check).unwrap();
        let word = windows.symmetric().0.wrapping_add(64) as usize;
        // SAFETY: `word` is aligned and lies in this PE's own symmetric memory.
        let mut set = || unsafe { (word as *const u64).read_volatile() } == 1;
        windows.wait(Awaited { word: Some((64, 8)), ..Awaited::default() }, &mut set, &mut no_check).unwrap();
    };
    two(
        |first, theirs| {
            let put = |offset: usize, value: u64| {
                // SAFETY: the source is a local variable of 8 bytes.
                unsafe { first.put(1, offset, (&raw const value).cast(), 8, AtReturn) }.unwrap();
            };
            let mut rung = [0; 2];
            for (rung, end) in rung.iter_mut().zip([0, 1]) {
                // Wait long enough for the other side to fall asleep.
                std::thread::sleep(Duration::from_millis(150));
                for _ in 0..200 {
                    put(512, 7);
                    *rung += u32::from(theirs.doorbell_read() & WAKE != 0);
                    std::thread::sleep(Duration::from_micros(100));
                }
                if end == 0 { first.notify(1).unwrap() } else { put(64, 1) }
            }
            assert_eq!(
                rung, [0; 2],
                "doorbells rung for a waiter for a notification, and for a waiter for another word"
            );
        },
        second,
    );
}

/// Makes the second PE sleep three times until the word at offset 64 in its memory changes. The first PE
/// changes this word with `grow`. The argument of `grow` is the number of the round. If no doorbell ends a
/// sleep, the sleep lasts [`LONG`] and the test fails.
fn wakes_by_doorbell(mover: Option<Box<dyn Mover>>, grow: impl Fn(&Windows, u64) + Send + Sync) {
    const ROUNDS: u64 = 3;
    let start = Instant::now();
    two_with(
        mover,
        |first, _| {
            for round in 1..=ROUNDS {
                // Give the second PE time to fall asleep.
                std::thread::sleep(Duration::from_millis(100));
                grow(first, round);
                first.take_notification(1, &mut no_check).unwrap();
            }
            first.quiet().unwrap();
        },
        |second| {
            let word = second.symmetric().0.wrapping_add(64) as usize;
            for round in 1..=ROUNDS {
                // SAFETY: `word` is the address of an aligned word in this PE's own symmetric memory.
                let mut set = || unsafe { (word as *const u64).read_volatile() } >= round;
                second
                    .wait(Awaited { word: Some((64, 8)), ..Awaited::default() }, &mut set, &mut no_check)
                    .unwrap();
                second.notify(0).unwrap();
            }
        },
    );
    assert!(start.elapsed() < LONG, "a wake-up was lost");
}

#[test]
fn an_atomic_at_the_owner_wakes_a_waiter_for_the_word() {
    let add = Atomic { operation: Operation::Add, offset: 64, width: 8, operand: 1, comparand: 0 };
    wakes_by_doorbell(None, |first, _| first.atomic_nbi(1, add).unwrap());
}

#[test]
fn quiet_wakes_a_waiter_for_bytes_that_a_mover_copied() {
    let mover = inlane_twin::DmaEngine::new("dma twin", inlane_twin::DmaCosts::unlimited()).unwrap();
    wakes_by_doorbell(Some(Box::new(mover)), |first, round| {
        // SAFETY: the source is a local variable of 8 bytes. The variable lives until quiet has returned.
        unsafe { first.put(1, 64, (&raw const round).cast(), 8, AtQuiet) }.unwrap();
        first.quiet().unwrap();
    });
}

/// Lets two PEs in turn `send` to each other, and `receive` the same. Each send arrives just when the other PE
/// begins to sleep. The last argument of both is the number of the round.
fn meets_the_sleep(send: impl Fn(&Windows, u64) + Sync, receive: impl Fn(&Windows, u64) + Sync) {
    const ROUNDS: u64 = 3000;
    let other = |windows: &Windows, turn: u64| {
        for round in 1..=ROUNDS {
            let send = || {
                // The pause grows with each round. So in some round, the store hits the moment at which the
                // other PE announces its sleep.
                (0..round % 400).for_each(|_| std::hint::spin_loop());
                send(windows, round);
            };
            if turn == 0 {
                send();
            }
            receive(windows, round);
            if turn == 1 {
                send();
            }
        }
    };
    let start = Instant::now();
    two(|first, _| other(first, 0), |second| other(second, 1));
    assert!(start.elapsed() < LONG, "a wake-up was lost");
}

/// A doorbell, or a look at the word, must end each of these sleeps.
#[test]
fn no_put_is_lost_between_announcement_and_sleep() {
    meets_the_sleep(
        |windows, round| {
            // SAFETY: the source is a local variable of 8 bytes.
            unsafe { windows.put(1 - windows.me(), 64, (&raw const round).cast(), 8, AtReturn) }.unwrap();
        },
        |windows, round| {
            let word = windows.symmetric().0.wrapping_add(64) as usize;
            // SAFETY: `word` is the address of an aligned word in this PE's own symmetric memory.
            let mut set = || unsafe { (word as *const u64).read_volatile() } >= round;
            let awaited = Awaited { word: Some((64, 8)), ..Awaited::default() };
            windows.wait(awaited, &mut set, &mut no_check).unwrap();
        },
    );
}

/// A doorbell must end each of these sleeps, because a waiter for a notification does not look for it meanwhile.
#[test]
fn no_notification_is_lost_between_announcement_and_sleep() {
    meets_the_sleep(
        |windows, _| windows.notify(1 - windows.me()).unwrap(),
        |windows, _| windows.take_notification(1 - windows.me(), &mut no_check).unwrap(),
    );
}

#[test]
fn a_mover_puts_any_bytes_anywhere() {
    let mover = inlane_twin::DmaEngine::new("dma twin", inlane_twin::DmaCosts::unlimited()).unwrap();
    let source: Vec<u8> = (0..100).collect();
    let spans = [(0, 0), (1, 1), (3, 5), (6, 2), (63, 70), (200, 4)];
    let sent = source.clone();
    two_with(
        Some(Box::new(mover)),
        move |first, _| {
            for (index, (offset, length)) in spans.into_iter().enumerate() {
                // SAFETY: the source lives until quiet has returned, and has `length` bytes behind its first
                // byte.
                unsafe {
                    first.put(1, index * 512 + offset, sent.as_ptr().add(1), length, AtReturn).unwrap();
                    first.put(1, index * 512 + 256 + offset, sent.as_ptr().add(1), length, AtQuiet).unwrap();
                }
            }
            first.quiet().unwrap();
            first.notify(1).unwrap();
        },
        |second| {
            second.take_notification(0, &mut no_check).unwrap();
            for (index, (offset, length)) in spans.into_iter().enumerate() {
                // SAFETY: the bytes are this PE's own symmetric memory. No PE writes them any more.
                let at = |offset| unsafe { second.symmetric().0.add(offset) };
                for begin in [index * 512 + offset, index * 512 + 256 + offset] {
                    // SAFETY: the bytes are this PE's own symmetric memory. No PE writes them any more.
                    let there = unsafe { std::slice::from_raw_parts(at(begin), length + 1) };
                    assert_eq!(
                        (&there[..length], there[length]),
                        (&source[1..=length], 0),
                        "{begin} {length}"
                    );
                }
            }
        },
    );
}

#[test]
fn atomics_before_a_fence_come_before_puts_behind_it() {
    let add = Atomic { operation: Operation::Add, offset: 64, width: 8, operand: 1, comparand: 0 };
    two(
        |first, _| {
            for round in 1..=100u64 {
                first.atomic_nbi(1, add).unwrap();
                first.fence().unwrap();
                // SAFETY: the source is a local variable of 8 bytes.
                unsafe { first.put(1, 512, (&raw const round).cast(), 8, AtReturn) }.unwrap();
                first.take_notification(1, &mut no_check).unwrap();
            }
        },
        |second| {
            let word = |offset: usize| second.symmetric().0.wrapping_add(offset).cast::<u64>();
            let mut early = 0;
            for round in 1..=100 {
                // SAFETY: both words are aligned and lie in this PE's own symmetric memory.
                unsafe {
                    while word(512).read_volatile() < round {
                        std::thread::yield_now();
                    }
                    early += u32::from(word(64).read_volatile() < round);
                }
                second.notify(0).unwrap();
            }
            assert_eq!(early, 0, "puts overtook atomics");
        },
    );
}

#[test]
fn a_link_that_goes_down_ends_waits_and_says_what_is_lost() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let (_hub, a, hostile) = pair(BYTES as u64);
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| {
                let settings = Settings { completion, ..settings(5000) };
                Windows::connect(Arc::new(a), BYTES, settings).unwrap()
            });
            let _peer = hostile_peer(&hostile);
            let honest = honest.join().unwrap();
            let bytes = [7u8; 1000];
            // SAFETY: the source has as many bytes as are put.
            unsafe { honest.put(1, 0, bytes.as_ptr(), 1000, AtReturn) }.unwrap();
            honest.quiet().unwrap();
            // SAFETY: the source has as many bytes as are put.
            unsafe { honest.put(1, 0, bytes.as_ptr(), 500, AtReturn) }.unwrap();
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                hostile.link_enable(false);
            });
            let error = honest.wait(Awaited::default(), &mut || false, &mut no_check).unwrap_err();
            let Error::LinkLost { peer: 1, lost } = error else { panic!("{error}") };
            assert_eq!((lost.issued_bytes, lost.delivered_bytes), (1500, 1000));
            assert!(matches!(honest.quiet(), Err(Error::LinkLost { .. })));
            assert!(matches!(honest.take_notification(1, &mut no_check), Err(Error::LinkLost { .. })));
        });
    }
}

#[test]
fn a_flap_during_transfers_is_an_error_and_both_connect_again() {
    let hub = Hub::new(2, BYTES as u64).unwrap();
    // True once one side has left its loop. The other side has no peer left to connect to, so it leaves its
    // loop too.
    let over = AtomicBool::new(false);
    let side = |port: u32| {
        let faults: Faults =
            if port == 0 { "flap=30ms,delay=5us,reorder,torn,seed=2" } else { "" }.parse().unwrap();
        let ntb = Arc::new(Twin::attach(hub.admit(port).unwrap(), &faults).unwrap());
        let windows = Windows::connect(ntb, BYTES, settings(10_000)).unwrap();
        let (mut losses, mut rounds) = (0, 0);
        let start = Instant::now();
        while losses < 3 && !over.load(Ordering::Acquire) && start.elapsed() < LONG {
            let outcome = (|| {
                let bytes = [rounds as u8; 4000];
                // SAFETY: the source has as many bytes as are put.
                unsafe { windows.put(1 - port, 0, bytes.as_ptr(), bytes.len(), AtReturn)? };
                windows.quiet()?;
                windows.notify(1 - port)?;
                windows.take_notification(1 - port, &mut no_check)
            })();
            match outcome {
                Ok(()) => rounds += 1,
                Err(Error::LinkLost { lost, .. }) => {
                    assert!(lost.delivered_bytes <= lost.issued_bytes);
                    losses += 1;
                    // Reconnect until a handshake succeeds, because the link may fail during a handshake,
                    // too.
                    while losses < 3
                        && !over.load(Ordering::Acquire)
                        && windows.reconnect(1 - port, Duration::from_millis(500)).is_err()
                    {
                        assert!(start.elapsed() < LONG, "never connected again");
                    }
                }
                Err(other) => panic!("{other}"),
            }
        }
        over.store(true, Ordering::Release);
        (losses, rounds)
    };
    let (a, b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| side(1));
        (side(0), b.join().unwrap())
    });
    assert!(a.0 > 0 && b.0 > 0, "{a:?} {b:?}");
}

#[test]
fn a_row_is_ready_only_after_its_translation_is_set() {
    for _ in 0..50 {
        let (_hub, a, hostile) = pair(BYTES as u64);
        hostile.link_enable(true);
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| Windows::connect(Arc::new(a), BYTES, settings(60_000)).err());
            let pages = (BYTES / 4096) as u32;
            let (ready, seen) = loop {
                assert!(!honest.is_finished(), "it never became ready");
                let words: [u32; ROW] = std::array::from_fn(|index| hostile.scratchpad_read(index as u32));
                let Some(row) = ScratchpadRow::decode(&words) else { continue };
                let answer = ScratchpadRow {
                    version: VERSION,
                    epoch: 9,
                    seen: row.epoch,
                    limit_pages: pages,
                    ..ScratchpadRow::default()
                };
                write_row(&hostile, &ScratchpadRow { inbound_pages: pages, ..answer }.encode());
                if row.ready {
                    break (hostile.peer_window(0, 0), row.epoch);
                }
            };
            // Write a scratchpad row with another protocol version. The handshake of the honest side then
            // fails at once.
            write_row(
                &hostile,
                &ScratchpadRow { version: VERSION + 1, epoch: 9, seen, ..ScratchpadRow::default() }.encode(),
            );
            assert!(ready.is_ok(), "ready without a translation: {ready:?}");
            let error = honest.join().unwrap();
            assert!(matches!(error, Some(Error::Ntb(Bridge::Version { .. }))), "{error:?}");
        });
    }
}
