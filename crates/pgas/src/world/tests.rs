//! Tests of the library, with and without faults. Each thread is a PE of one twin.

use super::channel::Group;
use super::collective::SCATTERED_FROM;
use super::*;
use crate::transport::Operation;
use crate::transport::Reuse::AtReturn;
use crate::transport::windows::layout::Layout;
use crate::transport::windows::{Settings, Windows};
use inlane_core::completion::CompletionMode;
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::twin::{Hub, Twin};
use std::sync::Arc;

type Pe = World<Windows>;

pub(crate) fn run(
    pes: u32,
    faults: &str,
    completion: CompletionMode,
    push_from: Option<usize>,
    body: impl Fn(&Pe) + Sync,
) {
    run_scattered(pes, faults, completion, push_from, SCATTERED_FROM, body)
}

pub(super) fn run_scattered(
    pes: u32,
    faults: &str,
    completion: CompletionMode,
    push_from: Option<usize>,
    scattered_from: (usize, u32),
    body: impl Fn(&Pe) + Sync,
) {
    let heap = 8 << 20;
    let bytes = Layout::overhead(pes) + Pe::symmetric_bytes(pes, 0, heap);
    let hub = Hub::new(pes, bytes as u64).unwrap();
    let faults: Faults = faults.parse().unwrap();
    std::thread::scope(|scope| {
        for pe in 0..pes {
            let socket = hub.admit(pe).unwrap();
            let (body, faults) = (&body, faults.clone());
            scope.spawn(move || {
                let ntb: Arc<dyn Ntb> = Arc::new(Twin::attach(socket, &faults).unwrap());
                let settings = Settings { completion, push_from, yields: true, ..Settings::default() };
                let windows = Windows::connect(ntb, bytes, settings).unwrap();
                let mut world = World::new(windows, 0, 0).unwrap();
                world.scattered_from = scattered_from;
                world.barrier_all().unwrap();
                body(&world);
                world.leave().unwrap();
            });
        }
    });
}

fn everything(world: &Pe) {
    let (me, pes) = (world.me(), world.pes());
    let (right, left) = ((me + 1) % pes, (me + pes - 1) % pes);
    let data = world.array::<u32>(5000).unwrap();
    let flag = world.array::<u64>(4).unwrap();
    let mine: Vec<u32> = (0..5000).map(|i| me * 100_000 + i).collect();
    world.put_signal(data, 0, &mine, (flag, 0, Signal::Set, 7), right).unwrap();
    world.wait_until(flag, 0, Compare::Eq, 7).unwrap();
    for index in [0, 1, 2499, 4999] {
        assert_eq!(world.load(data, index).unwrap(), left * 100_000 + index as u32);
    }
    world.barrier_all().unwrap();
    let mut back = vec![0u32; 5000];
    world.get(data, 0, &mut back, right).unwrap();
    assert_eq!(back, mine);
    for round in 0..10 {
        let before = world.fetch(Operation::Add, flag, 1, 1, 0, 0).unwrap();
        assert!(before < 10 * pes as u64, "{round}");
        world.put_signal(data, 0, &mine[..1], (flag, 2, Signal::Add, 2), right).unwrap();
    }
    world.wait_until(flag, 2, Compare::Ge, 20).unwrap();
    world.barrier_all().unwrap();
    assert_eq!(world.fetch(Operation::Fetch, flag, 1, 0, 0, 0).unwrap(), 10 * pes as u64);
    let won = world.fetch(Operation::CompareSwap, flag, 3, me as u64 + 1, 0, 0).unwrap() == 0;
    let wins = world.array::<u64>(1).unwrap();
    // SAFETY: the bytes are this PE's own memory. Other PEs access them only in the sum below.
    unsafe { wins.as_ptr().write_volatile(won as u64) };
    world.barrier_all().unwrap();
    let total = world.array::<u64>(1).unwrap();
    world.sum(world.all(), total, wins).unwrap();
    assert_eq!(world.load(total, 0).unwrap(), 1, "exactly one PE won");

    let values = world.array::<u32>(20_000).unwrap();
    for index in 0..20_000 {
        // SAFETY: the element lies in this PE's own copy of the array.
        unsafe { values.as_ptr().add(index).write_volatile(me + index as u32) };
    }
    world.barrier_all().unwrap();
    let sums = world.array::<u32>(20_000).unwrap();
    world.sum(world.all(), sums, values).unwrap();
    for index in [0usize, 8191, 8192, 19_999] {
        assert_eq!(world.load(sums, index).unwrap(), pes * index as u32 + pes * (pes - 1) / 2);
    }
    let gathered = world.array::<u32>(pes as usize * 64).unwrap();
    let own = vec![me; me as usize + 1];
    // SAFETY: `own` has `own.len()` elements of 4 bytes.
    unsafe {
        world.collect(world.all(), gathered.as_ptr() as usize, own.as_ptr().cast(), own.len() * 4).unwrap()
    };
    let expected: Vec<u32> = (0..pes).flat_map(|pe| vec![pe; pe as usize + 1]).collect();
    for (index, value) in expected.iter().enumerate() {
        assert_eq!(world.load(gathered, index).unwrap(), *value);
    }
    world.barrier_all().unwrap();
    let blocks: Vec<u32> = (0..pes).map(|to| me * 1000 + to).collect();
    // SAFETY: `blocks` has a block of 4 bytes for each PE.
    unsafe { world.all_to_all(world.all(), gathered.as_ptr() as usize, blocks.as_ptr().cast(), 4).unwrap() };
    for from in 0..pes {
        assert_eq!(world.load(gathered, from as usize).unwrap(), from * 1000 + me);
    }
    world.barrier_all().unwrap();
    for root in 0..pes {
        let word = [root * 77 + 1; 16];
        // SAFETY: source and destination have 64 bytes at every PE.
        unsafe {
            world.broadcast(world.all(), root, gathered.as_ptr() as usize, word.as_ptr().cast(), 64).unwrap()
        };
        if me != root {
            assert_eq!(world.load(gathered, 15).unwrap(), root * 77 + 1);
        }
        world.barrier_all().unwrap();
    }
    world.release(data.as_ptr().cast()).unwrap();
    assert!(world.release(data.as_ptr().cast()).is_err());
}

#[test]
fn everything_works_for_any_number_of_pes() {
    for pes in [1, 2, 3, 5] {
        run(pes, "", CompletionMode::Adaptive, None, everything);
    }
}

#[test]
fn everything_works_in_every_completion_mode() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt] {
        run(2, "", completion, Some(1), everything);
    }
}

#[test]
fn everything_works_with_faults() {
    for seed in 1..4 {
        let faults =
            format!("delay=30us,reorder,torn,lose=0.3,duplicate=0.3,early=0.3,stale=0.2,seed={seed}");
        run(2, &faults, CompletionMode::Adaptive, Some(64), everything);
    }
    run(3, "reorder,torn,delay=5us,lose=0.9,seed=9", CompletionMode::Interrupt, None, everything);
}

/// Checks the guarantee of `leave`: a process may end as soon as `leave` returns. The PEs of this test drop
/// their memory and links at once, in any order.
#[test]
fn a_pe_may_end_as_soon_as_leave_returns() {
    for mode in [CompletionMode::Poll, CompletionMode::Adaptive, CompletionMode::Interrupt] {
        for round in 0..8u64 {
            let faults = if round % 2 == 0 { "" } else { "delay=100us,reorder,torn" };
            run(4, faults, mode, Some(64), |world| {
                let words = world.array::<u64>(8).unwrap();
                let peer = (world.me() + 1) % 4;
                world.put(words, 0, &[round + 1], peer).unwrap();
                world.fetch(Operation::Add, words, 1, 1, 0, peer).unwrap();
                if u64::from(world.me()) == round % 4 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
        }
    }
}

#[test]
fn threads_share_a_pe() {
    run(2, "", CompletionMode::Adaptive, None, |world| {
        let counts = world.array::<u64>(4).unwrap();
        let peer = 1 - world.me();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        world.fetch(Operation::Add, counts, thread, 1, 0, peer).unwrap();
                        world.fetch(Operation::Add, counts, 0, 1 << 32, 0, peer).unwrap();
                    }
                });
            }
        });
        world.barrier_all().unwrap();
        for thread in 1..4 {
            assert_eq!(world.load(counts, thread).unwrap(), 200);
        }
        assert_eq!(world.load(counts, 0).unwrap(), 200 + (800 << 32));
    });
}

#[test]
fn addresses_outside_symmetric_memory_are_refused() {
    run(2, "", CompletionMode::Poll, None, |world| {
        let array = world.array::<u8>(64).unwrap();
        let local = [0u8; 8];
        // SAFETY: the 8 bytes of the source are readable. Each call is refused before it accesses memory, or
        // copies 0 bytes.
        unsafe {
            let at = array.as_ptr() as usize;
            assert!(world.put_bytes(local.as_ptr() as usize, local.as_ptr(), 8, 1, AtReturn).is_err());
            assert!(world.put_bytes(at, local.as_ptr(), usize::MAX, 1, AtReturn).is_err());
            assert!(world.put_bytes(at, local.as_ptr(), 8, 2, AtReturn).is_err());
            assert!(
                world.put_bytes(0, local.as_ptr(), 0, 1, AtReturn).is_ok(),
                "0 bytes may have any address"
            );
        }
        let misaligned = world.atomic(Operation::Add, array.as_ptr() as usize + 3, 8, 1, 0, 1).unwrap_err();
        assert!(misaligned.to_string().contains("be aligned to its width"), "{misaligned}");
        let nobody =
            world.atomic(Operation::Add, array.as_ptr() as usize, 8, 1, 0, -1i32 as u32).unwrap_err();
        assert!(nobody.to_string().contains("PE -1 does not exist: the job has PEs 0 to 1"), "{nobody}");
        assert!(world.sync(Set { start: 0, stride: 1, size: 9 }).is_err());
        assert!(world.sync(Set { start: 1 - world.me(), stride: 1, size: 1 }).is_err(), "not a member");
        assert!(world.allocate(1 << 40, 8).is_err());
        let page = world.allocate(64, 4096).unwrap();
        assert!((page as usize).is_multiple_of(4096));
        let large = world.allocate(64, 65536).unwrap();
        assert!((large as usize).is_multiple_of(65536));
        assert!(world.allocate(64, 1 << 40).is_err(), "larger than the alignment of the PEs' memory");
    });
    run(1, "", CompletionMode::Poll, None, |one| {
        let array = one.array::<u64>(8).unwrap();
        run(1, "", CompletionMode::Poll, None, |other| {
            assert!(other.load(array, 0).is_err() && other.wait_until(array, 0, Compare::Eq, 0).is_err());
            let sums = other.array::<u64>(8).unwrap();
            assert!(other.sum(other.all(), sums, array).is_err(), "memory of another world");
        });
    });
}

#[test]
fn large_broadcasts_are_cut_into_slices() {
    let (bytes, pes) = SCATTERED_FROM;
    for (pes, faults) in [(pes, ""), (pes + 1, "reorder")] {
        run(pes, faults, CompletionMode::Adaptive, None, move |world| {
            let length = bytes / 8 + 11;
            let values = world.array::<u64>(length).unwrap();
            for root in [0, pes - 2] {
                let value = |pe: u32, index: usize| (pe + 1) as u64 * 1_000_000 + index as u64 + root as u64;
                for index in 0..length {
                    // SAFETY: the element is in this PE's own copy of the array. Other PEs read this copy
                    // only after the barrier.
                    unsafe { values.as_ptr().add(index).write(value(world.me(), index)) };
                }
                world.barrier_all().unwrap();
                let at = values.as_ptr();
                // SAFETY: the source is this PE's own copy of the array.
                unsafe { world.broadcast(world.all(), root, at as usize, at.cast(), length * 8).unwrap() };
                world.barrier_all().unwrap();
                for index in 0..length {
                    assert_eq!(world.load(values, index).unwrap(), value(root, index), "{root} {index}");
                }
                world.barrier_all().unwrap();
            }
        });
    }
}

/// The threshold for tests of broadcasts in slices: a number of bytes and a number of PEs. A broadcast is cut
/// into slices if it has at least so many bytes and goes to at least so many PEs.
pub(crate) const FEW: (usize, u32) = (64, 3);

/// Broadcasts over sets of PEs and over channels. The world has at least 3 PEs and the threshold [`FEW`].
pub(crate) fn broadcasts_in_slices<T: Transport>(world: &World<T>) {
    let (me, pes) = (world.me(), world.pes());
    let strided = Set { start: pes - 1, stride: -(i32::from(pes > 4) + 1), size: 3 };
    // In both sizes, the last slice is shorter than the others. 65 bytes make only two slices, so further PEs
    // get none.
    for bytes in [65, 4096 + 13] {
        let values = world.array::<u8>(bytes).unwrap();
        for set in [world.all(), strided] {
            if set.index(me).is_some() {
                let channel = world.open_channel(set, set).unwrap().expect("a place is free");
                for root in 0..set.size {
                    broadcast_from(world, set, root, values);
                    broadcast_from(world, &channel, root, values);
                }
            }
            world.barrier_all().unwrap();
        }
    }
}

/// Broadcasts one array and checks the bytes at every PE of the group. `root` is a position in the group.
fn broadcast_from<'a, T: Transport>(
    world: &'a World<T>,
    group: impl Into<Group<'a>>,
    root: u32,
    values: Symmetric<u8>,
) {
    let (group, at, bytes) = (group.into(), values.as_ptr(), values.len());
    let value = |pe: u32, index: usize| (pe as usize * 50 + index) as u8;
    for index in 0..bytes {
        // SAFETY: the byte lies in this PE's own copy, and all PEs of the group wait before the broadcast.
        unsafe { at.add(index).write_volatile(value(world.me(), index)) };
    }
    world.barrier(group).unwrap();
    // SAFETY: the source is this PE's own copy of the array.
    unsafe { world.broadcast(group, root, at as usize, at, bytes).unwrap() };
    world.barrier(group).unwrap();
    for index in 0..bytes {
        // SAFETY: the byte lies in this PE's own copy. All PEs of the group have ended the broadcast, so no
        // PE writes to the byte.
        let seen = unsafe { at.add(index).read_volatile() };
        assert_eq!(seen, value(group.set().pe(root), index), "root {root}, byte {index} of {bytes}");
    }
    world.barrier(group).unwrap();
}

#[test]
fn broadcasts_over_subsets_and_teams_are_cut_into_slices() {
    for (pes, faults) in [(3, ""), (5, "reorder"), (6, "")] {
        run_scattered(pes, faults, CompletionMode::Adaptive, None, FEW, broadcasts_in_slices);
    }
}

#[test]
fn large_reductions_are_cut_into_slices() {
    let cases =
        [(1, "", 4096), (2, "", 65536), (3, "", 4096), (3, "", 65536), (3, "delay=5us,reorder", 65536)];
    for (pes, faults, bytes) in cases {
        run(pes, faults, CompletionMode::Adaptive, None, move |world| {
            // The sum must be large enough to be cut into slices. The length is not a multiple of the number
            // of PEs, so that the slices have different lengths.
            assert!(bytes >= world.transport.slices_from());
            let length = bytes / 8 + 11;
            let (terms, sums) = (world.array::<u64>(length).unwrap(), world.array::<u64>(length).unwrap());
            for round in 0..2u64 {
                for index in 0..length {
                    // SAFETY: the element is in this PE's own copy of the array. Other PEs read the copy only
                    // during the sum, and there is a barrier before the sum.
                    unsafe { terms.as_ptr().add(index).write(world.me() as u64 + index as u64 + round) };
                }
                world.barrier_all().unwrap();
                // In the second round, store the sums in the array of the terms: source and destination may
                // be the same.
                let into = if round == 0 { sums } else { terms };
                world.sum(world.all(), into, terms).unwrap();
                let (n, others) = (pes as u64, (0..pes as u64).sum::<u64>());
                for index in 0..length {
                    let expected = others + n * (index as u64 + round);
                    assert_eq!(world.load(into, index).unwrap(), expected, "{pes} {round} {index}");
                }
                world.barrier_all().unwrap();
            }
        });
    }
}

#[test]
fn atomics_of_all_pes_on_one_word_are_atomic() {
    // Repeat with fault injection. Each atomic is then executed by the PE that owns the word, not by the
    // calling PE.
    for faults in ["", "delay=1us"] {
        run(3, faults, CompletionMode::Adaptive, None, |world| {
            let words = world.array::<u64>(2).unwrap();
            for _ in 0..300 {
                world.fetch(Operation::Add, words, 0, 1, 0, 0).unwrap();
                world.atomic_nbi(Operation::Xor, words.as_ptr() as usize + 8, 8, 1 << world.me(), 0).unwrap();
            }
            world.barrier_all().unwrap();
            assert_eq!(world.fetch(Operation::Fetch, words, 0, 0, 0, 0).unwrap(), 900);
            assert_eq!(world.fetch(Operation::Fetch, words, 1, 0, 0, 0).unwrap(), 0);
            match world.me() {
                0 => drop(world.fetch(Operation::Swap, words, 1, 7, 0, 1).unwrap()),
                1 => drop(world.wait_until(words, 1, Compare::Eq, 7).unwrap()),
                _ => {}
            }
            world.barrier_all().unwrap();
        });
    }
}

#[test]
fn irregular_numbers_are_divided_into_regular_sets() {
    for (pes, parts) in [
        (&[0u32, 1, 2, 3][..], &[(0u32, 1, 4u32)][..]),
        (&[1, 4, 7], &[(1, 3, 3)]),
        (&[0, 1, 5, 6, 7], &[(0, 1, 2), (5, 1, 3)]),
        (&[0, 2, 3, 4, 9], &[(0, 2, 2), (3, 1, 2), (9, 1, 1)]),
        (&[5], &[(5, 1, 1)]),
    ] {
        let sets: Vec<_> = parts.iter().map(|&(start, stride, size)| Set { start, stride, size }).collect();
        for pe in pes {
            let part = Set::regular_part(pes, *pe);
            assert!(part.index(*pe).is_some() && sets.contains(&part), "{pes:?}: {part:?}");
        }
    }
    assert_eq!(Set::regular_part(&[1, 2], 7), Set { start: 7, stride: 1, size: 1 });
}
