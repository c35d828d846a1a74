//! Tests of the handshake with arbitrary rows (a row is the scratchpads of one writer) and with arbitrary
//! interleavings. Some tests use loom.

use super::protocol::*;
use super::{FIRST_PAUSE, next_pause};
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #[test]
    fn rows_decode_to_what_was_encoded(version: u16, epoch in 1u32.., seen: u32, limit_pages: u32, inbound_pages: u32, ready: bool) {
        let row = ScratchpadRow { version, epoch, seen, limit_pages, inbound_pages, ready };
        prop_assert_eq!(ScratchpadRow::decode(&row.encode()), Some(row));
    }

    #[test]
    fn torn_rows_do_not_decode(a in 1u32.., b in 1u32.., seen: u32, cut in 1usize..7) {
        prop_assume!(a != b);
        let row = |epoch| ScratchpadRow { version: VERSION, epoch, seen, limit_pages: 4, inbound_pages: 4, ready: true };
        let (old, new) = (row(a).encode(), row(b).encode());
        let mut words = old;
        words[..cut].copy_from_slice(&new[..cut]);
        let decoded = ScratchpadRow::decode(&words);
        prop_assert!(decoded.is_none_or(|r| r == row(a) || r == row(b)), "{:?}", decoded);
    }

    #[test]
    fn garbage_never_connects(rows in prop::collection::vec(any::<[u32; ROW]>(), 0..50)) {
        let mut side = Handshake::new(7, 1, 1, true);
        for words in rows {
            prop_assert!(!matches!(side.read(&words), NextStep::Connected(_)));
        }
    }

    // Lets two sides write rows, read rows and restart in random order, so rows can be read late. If each
    // side is connected to the other side's current epoch, their tags must agree.
    #[test]
    fn connected_sides_agree(steps in prop::collection::vec(0u8..6, 0..60)) {
        let mut epochs = 1u32;
        let mut fresh = || { epochs += 1; Handshake::new(epochs, 16, 16, true) };
        let mut sides = [fresh(), fresh()];
        let mut rows = [[0u32; ROW]; 2]; // rows[i]: what side i reads
        let mut connected = [None, None];
        for step in steps {
            let me = (step & 1) as usize;
            match step >> 1 {
                0 => rows[1 - me] = sides[me].row().encode(),
                1 => if let NextStep::Connected(connection) = sides[me].read(&rows[me]) {
                    connected[me] = Some(connection);
                },
                _ => { sides[me] = fresh(); connected[me] = None; }
            }
            if let [Some(a), Some(b)] = connected
                && a.theirs == b.ours && b.theirs == a.ours {
                prop_assert_eq!(a.tag(), b.tag());
            }
            for me in 0..2 {
                if let Some(connection) = connected[me] {
                    prop_assert_eq!(connection.ours, sides[me].row().epoch);
                }
            }
        }
        // From here on, no side restarts, and each row is read as soon as it is written. Both sides must then
        // be connected after three rounds.
        for _ in 0..3 {
            for me in 0..2 {
                rows[1 - me] = sides[me].row().encode();
                if let NextStep::Connected(connection) = sides[1 - me].read(&rows[1 - me]) {
                    connected[1 - me] = Some(connection);
                }
            }
        }
        let [Some(a), Some(b)] = connected else { panic!("not connected") };
        prop_assert_eq!((a.ours, a.theirs, a.tag()), (b.theirs, b.ours, b.tag()));
    }
}

#[test]
fn another_version_is_reported_only_for_a_current_row() {
    let mut side = Handshake::new(9, 1, 1, true);
    let stale = ScratchpadRow { version: 2, epoch: 5, seen: 3, ..ScratchpadRow::default() };
    assert_eq!(side.read(&stale.encode()), NextStep::Write, "left by an earlier process");
    let current = ScratchpadRow { seen: 9, ..stale };
    assert_eq!(side.read(&current.encode()), NextStep::OtherVersion(2));
}

/// Checks that a handshake never accepts the epoch of a process that has ended. One side has restarted, and
/// the scratchpads still hold the row of its earlier process. Tries all interleavings with at most two
/// preemptions.
#[test]
fn loom_agreement() {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    // The registers of both sides: words 1, 2 and 7 of each row. Word 7 is the check over all words. The
    // other words are left out, because they are the same in all rows of this test.
    struct Registers([[AtomicU32; 3]; 2]);

    fn write(registers: &Registers, to: usize, row: &ScratchpadRow) {
        let words = row.encode();
        for (register, index) in registers.0[to].iter().zip([1usize, 2, 7]) {
            register.store(words[index], Ordering::Release);
        }
    }

    fn read(registers: &Registers, me: usize, like: &ScratchpadRow) -> [u32; ROW] {
        let mut words = like.encode();
        for (register, index) in registers.0[me].iter().zip([1usize, 2, 7]) {
            words[index] = register.load(Ordering::Acquire);
        }
        words
    }

    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let registers = Arc::new(Registers(Default::default()));
        // Write the row that an earlier process of the peer left, with epoch 30. No connection may use that
        // epoch.
        write(&registers, 0, &Handshake::new(30, 1, 1, true).row());
        let theirs = registers.clone();
        let other = loom::thread::spawn(move || {
            let mut side = Handshake::new(40, 1, 1, true);
            write(&theirs, 0, &side.row());
            let mut connected = None;
            for _ in 0..2 {
                match side.read(&read(
                    &theirs,
                    1,
                    &ScratchpadRow {
                        version: VERSION,
                        limit_pages: 1,
                        inbound_pages: 1,
                        ready: true,
                        ..ScratchpadRow::default()
                    },
                )) {
                    NextStep::Connected(connection) => connected = Some(connection),
                    NextStep::Write => write(&theirs, 0, &side.row()),
                    _ => {}
                }
            }
            connected
        });
        let mut side = Handshake::new(10, 1, 1, true);
        write(&registers, 1, &side.row());
        let mut connected = None;
        for _ in 0..2 {
            match side.read(&read(
                &registers,
                0,
                &ScratchpadRow {
                    version: VERSION,
                    limit_pages: 1,
                    inbound_pages: 1,
                    ready: true,
                    ..ScratchpadRow::default()
                },
            )) {
                NextStep::Connected(connection) => connected = Some(connection),
                NextStep::Write => write(&registers, 1, &side.row()),
                _ => {}
            }
        }
        let other = other.join().unwrap();
        if let Some(connection) = connected {
            assert_eq!(connection.ours, 10);
            assert_eq!(connection.theirs, 40, "the old process never answered");
        }
        if let (Some(a), Some(b)) = (connected, other) {
            assert_eq!((a.ours, a.theirs, a.tag()), (b.theirs, b.ours, b.tag()));
        }
    });
}

/// Returns how often a port reads its rows if one of `peers` peers connects every 10 ms. Also returns when it finds all
/// connected, as a multiple of the time at which the last peer connects.
fn reads_of_rows(peers: u32) -> (u32, f64) {
    const EVERY: Duration = Duration::from_millis(10);
    let (mut now, mut pause, mut rows, mut reads) = (Duration::ZERO, FIRST_PAUSE, peers, 0);
    while rows > 0 {
        now += pause;
        let left = peers.saturating_sub((now.as_nanos() / EVERY.as_nanos()) as u32);
        reads += 1;
        pause = next_pause((left, peers), pause, left < rows, now);
        rows = left;
    }
    (reads, now.as_secs_f64() / (EVERY * peers).as_secs_f64())
}

/// All PEs of a large job read the rows of all, so they must not read them more often in a larger job.
#[test]
fn peers_that_start_one_after_another_cost_few_reads() {
    for peers in [64, 256, 1023] {
        let (reads, end) = reads_of_rows(peers);
        assert!(reads <= 300 && end < 1.05, "{peers} peers: {reads} reads, end at {end}");
    }
}
