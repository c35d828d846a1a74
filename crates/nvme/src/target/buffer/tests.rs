//! Tests of the buffers' budget, and of huge pages.

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
    assert!(pool.allocate(1).is_none());
    drop(small);
    // The eight free buffers of 4 KiB use the rest of the budget. The pool must free their memory to allocate
    // a buffer of another size.
    let other = pool.allocate(20_000).unwrap();
    assert_eq!(other.capacity(), 32 << 10);
    assert!(pool.allocate(1).is_none());
    drop((large, other));
    assert!(pool.allocate(64 << 10).is_some());
    assert_eq!(pool.0.memory.borrow().returned, 11);
}

#[test]
fn unused_huge_pages_make_room_for_other_sizes() {
    let pool = All::new(2 * HUGE_PAGE);
    let page_of = |buffer: &Buffer| (buffer.memory.page.is_some(), buffer.address() as usize / HUGE_PAGE);
    let first = pool.allocate(128 << 10).unwrap();
    let second = pool.allocate(128 << 10).unwrap();
    assert_eq!((page_of(&first), page_of(&first).0), (page_of(&second), true));
    assert!(second.iter().all(|byte| *byte == 0));
    drop(first);
    // The buffer `second` keeps its huge page in use. The budget has two huge pages, so only one of them can
    // be freed and used for another size.
    assert!(pool.allocate(2 * HUGE_PAGE).is_none());
    let whole = pool.allocate(HUGE_PAGE).unwrap();
    assert!(pool.allocate(4096).is_none());
    drop((second, whole));
    let both = pool.allocate(2 * HUGE_PAGE).unwrap();
    assert!(pool.allocate(4096).is_none());
    drop(both);
    // The free buffer `both` still uses the whole budget. The pool must free it to map a new huge page for
    // the small buffer.
    assert!(page_of(&pool.allocate(4096).unwrap()).0);
}

#[test]
fn huge_pages_of_one_size_are_divided_anew_for_another() {
    let pool = All::new(8 * HUGE_PAGE);
    let in_pages = |buffers: &[Buffer]| buffers.iter().filter(|it| it.memory.page.is_some()).count();
    let fill = |count: usize, bytes: usize| -> Vec<Buffer> {
        (0..count).map(|_| pool.allocate(bytes).unwrap()).collect()
    };
    let small = fill(64, 128 << 10);
    let alone = fill(3, 1 << 20);
    assert_eq!((in_pages(&small), in_pages(&alone)), (64, 0));
    drop((small, alone));
    // The 64 small buffers are free, so their huge pages are unused. The three free buffers of 1 MiB lie
    // outside huge pages. The pool must divide the huge pages again before it reuses the buffers of 1 MiB.
    let large = fill(4, 1 << 20);
    assert_eq!(in_pages(&large), 4);
    assert_eq!(in_pages(&fill(32, 128 << 10)), 32);
    drop(large);
    let large = fill(12, 1 << 20);
    assert_eq!(in_pages(&large), 8);
    assert!(pool.allocate(1).is_some());
    let shared = pool.0.memory.borrow();
    assert_eq!((shared.huge_bytes, shared.idle_pages), (4 * HUGE_PAGE, 0));
}

#[test]
fn large_buffers_do_not_count_as_huge_pages() {
    let pool = All::new(8 * HUGE_PAGE);
    let large = pool.allocate(4 * HUGE_PAGE).unwrap();
    let small: Vec<_> = (0..64).map(|_| pool.allocate(128 << 10).unwrap()).collect();
    assert!(small.iter().all(|buffer| buffer.memory.page.is_some()));
    assert!(pool.allocate(1).is_none());
    drop(large);
}

#[test]
fn a_failed_allocation_frees_nothing() {
    let pool = All::new(64 << 10);
    let (held, free) = (pool.allocate(32 << 10).unwrap(), pool.allocate(16 << 10).unwrap());
    drop(free);
    assert!(pool.allocate(64 << 10).is_none());
    assert_eq!(pool.0.memory.borrow().allocated_bytes, 48 << 10);
    drop(held);
}

#[test]
fn the_counts_of_unused_memory_are_exact_after_any_sequence() {
    let pool = All::new(6 * HUGE_PAGE);
    let (mut buffers, mut random) = (Vec::new(), 1_u64);
    for _ in 0..4000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = (random >> 33) as usize;
        if number % 5 < 3 {
            buffers.extend(pool.allocate(UNIT << (number / 5 % 11)));
        } else if !buffers.is_empty() {
            buffers.swap_remove(number % buffers.len());
        }
        let shared = pool.0.memory.borrow();
        let pages: Vec<_> = shared.huge_pages.iter().flatten().collect();
        let alone = shared.free_alone.iter().enumerate();
        let alone: usize = alone.map(|(class, free)| free.len() * layout(class).size()).sum();
        let used: usize = buffers.iter().filter(|it| it.memory.page.is_none()).map(Buffer::capacity).sum();
        assert_eq!(shared.idle_pages, pages.iter().filter(|page| page.used == 0).count());
        assert_eq!((shared.huge_bytes, shared.free_alone_bytes), (pages.len() * HUGE_PAGE, alone));
        assert_eq!(shared.allocated_bytes, shared.huge_bytes + alone + used);
        assert!(shared.allocated_bytes <= shared.budget_bytes);
        assert!(shared.huge_bytes <= shared.budget_bytes / 2);
    }
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
