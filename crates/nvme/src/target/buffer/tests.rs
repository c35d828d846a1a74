//! Tests of the buffers' budget and of the arena.

use super::memory::HUGE_PAGE;
use super::*;

/// Buffers without limits for hosts.
struct All(Rc<Part>);

impl All {
    fn new(budget_bytes: usize) -> Self {
        Self(Part::new(budget_bytes))
    }

    fn allocate(&self, bytes: usize) -> Option<Buffer> {
        self.0.allocate(bytes, &self.0.budget)
    }
}

#[test]
fn the_budget_bounds_all_sizes_together() {
    let pool = All::new(64 << 10);
    let large = pool.allocate(32 << 10).unwrap();
    let small: Vec<_> = (0..8).map(|_| pool.allocate(100).unwrap()).collect();
    assert_eq!(small.iter().filter(|buffer| buffer.memory.outside).count(), 4, "a quarter of the budget");
    assert!(pool.allocate(1).is_none());
    drop(small);
    // The memory of the small buffers in the arena becomes one block again.
    let other = pool.allocate(10_000).unwrap();
    assert_eq!((other.capacity(), other.memory.outside), (16 << 10, false));
    assert!(pool.allocate(16 << 10).unwrap().memory.outside);
    drop((large, other));
    assert!(!pool.allocate(32 << 10).unwrap().memory.outside);
    assert_eq!(pool.0.memory.borrow().returned, 12);
}

#[test]
fn buffers_lie_in_huge_pages_until_the_arena_is_full() {
    let pool = All::new(8 * HUGE_PAGE);
    let outside = |buffers: &[Buffer]| buffers.iter().filter(|it| it.memory.outside).count();
    let fill = |count: usize, bytes: usize| -> Vec<Buffer> {
        (0..count).map(|_| pool.allocate(bytes).unwrap()).collect()
    };
    let small = fill(48, 128 << 10);
    let more = fill(10, 1 << 20);
    assert_eq!((outside(&small), outside(&more)), (0, 4));
    assert!(small[47].iter().all(|byte| *byte == 0));
    assert!((small[0].address() as usize).is_multiple_of(HUGE_PAGE));
    drop((small, more));
    let large = fill(12, 1 << 20);
    assert_eq!(outside(&large), 0);
    drop(large);
    assert_eq!(outside(&[pool.allocate(8 << 20).unwrap(), pool.allocate(4 << 20).unwrap()]), 0);
}

#[test]
fn small_buffers_in_all_places_leave_room_for_large_ones() {
    let pool = All::new(8 * HUGE_PAGE);
    let small = std::iter::from_fn(|| pool.allocate(1)).collect::<Vec<_>>();
    assert_eq!(small.len(), (6 << 20) / UNIT + (4 << 20) / UNIT, "half of the arena, and the memory outside");
    let _kept: Vec<_> = small.into_iter().step_by(200).collect();
    let large = std::iter::from_fn(|| pool.allocate(1 << 20)).collect::<Vec<_>>();
    assert_eq!(large.iter().filter(|buffer| !buffer.memory.outside).count(), 6);
}

#[test]
fn buffers_never_overlap_and_no_memory_is_lost() {
    let pool = All::new(6 * HUGE_PAGE);
    let (mut buffers, mut random) = (Vec::<Buffer>::new(), 1_u64);
    for _ in 0..4000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = (random >> 33) as usize;
        if number % 5 < 3 {
            buffers.extend(pool.allocate(UNIT << (number / 5 % 11)));
        } else if !buffers.is_empty() {
            buffers.swap_remove(number % buffers.len());
        }
        let mut ranges: Vec<_> = buffers.iter().map(|it| (it.address().addr(), it.capacity())).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranges:?}");
        assert!(ranges.iter().map(|(_, bytes)| bytes).sum::<usize>() <= 6 * HUGE_PAGE);
    }
    drop(buffers);
    let all = [8, 1, 2, 1].map(|size| pool.allocate(size << 20).unwrap());
    assert_eq!(all.each_ref().map(|buffer| buffer.memory.outside), [false, false, true, true]);
    assert!(pool.allocate(1).is_none() && pool.0.memory.borrow().outside_bytes == 0);
}

#[test]
fn one_kind_of_data_cannot_take_the_buffers_of_another() {
    let pool = Pool::new(1 << 20);
    let mut share = pool.share([127, 0, 0, 1].into(), 64 << 10);
    share.join(1);
    let fill = |allocate: &dyn Fn() -> Option<Buffer>| std::iter::from_fn(allocate).collect::<Vec<_>>();
    let data = fill(&|| share.allocate(4096));
    assert_eq!(data.len(), 16);
    let capsules = fill(&|| share.allocate_for_capsule(8192));
    assert!((8..16).contains(&capsules.len()), "{}", capsules.len());
    let admin: Vec<_> = (0..100).map(|_| share.allocate_always(8192)).collect();
    let mut other = pool.share([127, 0, 0, 1].into(), 64 << 10);
    other.join(2);
    assert!(other.allocate(4096).is_some() && other.allocate_for_capsule(4096).is_some());
    drop((data, capsules, admin));
    assert_eq!(share.allocate(64 << 10).unwrap().capacity(), 64 << 10);
}

#[test]
fn buffers_are_aligned_for_direct_io() {
    let pool = All::new(1 << 20);
    for bytes in [1, 4096, 5000, 100_000] {
        let buffer = pool.allocate(bytes).unwrap();
        assert!(buffer.len() >= bytes && (buffer.address() as usize).is_multiple_of(4096));
    }
}
