//! The allocator of the symmetric heap. It allocates the first free span that is large enough. Its records
//! lie in private memory, so no peer can damage them.
//!
//! All PEs make the same calls in the same order and therefore get the same offsets without communicating.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// The size of an allocation is a multiple of this size in bytes. Objects with different writers then share
/// no cache line.
const GRANULE: usize = 64;

/// The free and the allocated spans of a heap.
#[derive(Debug)]
pub struct Heap {
    size: usize,
    /// The heap's address modulo the largest supported alignment. It is equal on all PEs.
    origin: usize,
    free: BTreeMap<usize, usize>,
    used: BTreeMap<usize, usize>,
}

impl Heap {
    /// Makes an empty heap of `size` bytes. `origin` is the heap's address modulo the largest supported
    /// alignment.
    pub fn new(size: usize, origin: usize) -> Self {
        let size = size / GRANULE * GRANULE;
        let free = if size > 0 { BTreeMap::from([(0, size)]) } else { BTreeMap::new() };
        Self { size, origin, free, used: BTreeMap::new() }
    }

    /// Allocates `bytes` (at least one granule) aligned to `align`, a power of two. Returns the offset.
    ///
    /// # Errors
    /// [`Error::Heap`] if the heap is full, [`Error::Invalid`] for an invalid alignment.
    pub fn allocate(&mut self, bytes: usize, align: usize) -> Result<usize> {
        self.allocate_behind(bytes, align, 0)
    }

    /// Allocates like [`Heap::allocate`], but at an address that is `behind` bytes after a multiple of
    /// `align`. Memory for copies needs this to avoid 4K aliasing. `behind` is a multiple of the granule of
    /// 64 bytes.
    ///
    /// # Errors
    /// As for [`Heap::allocate`].
    pub fn allocate_behind(&mut self, bytes: usize, align: usize, behind: usize) -> Result<usize> {
        if !align.is_power_of_two() {
            return Err(Error::invalid(format!("alignment {align}"), "not a power of two; give one"));
        }
        let full = || Error::Heap { bytes, size: self.size };
        let align = align.max(GRANULE);
        let wanted = bytes.max(1).checked_next_multiple_of(GRANULE).ok_or_else(full)?;
        let fit = self.free.iter().find_map(|(&start, &length)| {
            let before = (self.origin + start).saturating_sub(behind);
            let aligned =
                before.checked_next_multiple_of(align)?.checked_add(behind)?.checked_sub(self.origin)?;
            (aligned - start <= length && length - (aligned - start) >= wanted)
                .then_some((start, length, aligned))
        });
        let (start, length, aligned) = fit.ok_or_else(full)?;
        self.free.remove(&start);
        if aligned > start {
            self.free.insert(start, aligned - start);
        }
        if start + length > aligned + wanted {
            self.free.insert(aligned + wanted, start + length - aligned - wanted);
        }
        self.used.insert(aligned, wanted);
        Ok(aligned)
    }

    /// Returns the size of the allocation at `offset`, if there is one.
    pub fn allocated(&self, offset: usize) -> Option<usize> {
        self.used.get(&offset).copied()
    }

    /// Returns the start and the size of the allocation that contains `offset`, if there is one.
    pub fn block_of(&self, offset: usize) -> Option<(usize, usize)> {
        let (&start, &size) = self.used.range(..=offset).next_back()?;
        (offset - start < size).then_some((start, size))
    }

    /// Returns the size of the heap in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Shrinks the allocation at `offset` to `bytes` bytes, rounded up to whole granules. Frees the rest of
    /// the allocation. Returns false if there is no such allocation, or if it is smaller than the new size.
    pub fn shrink(&mut self, offset: usize, bytes: usize) -> bool {
        let Some(wanted) = bytes.max(1).checked_next_multiple_of(GRANULE) else { return false };
        match self.used.get(&offset).copied() {
            Some(length) if wanted < length => {
                self.used.insert(offset, wanted);
                self.used.insert(offset + wanted, length - wanted);
                self.release(offset + wanted)
            }
            length => length == Some(wanted),
        }
    }

    /// Frees the allocation at `offset`. Returns false if there is none.
    pub fn release(&mut self, offset: usize) -> bool {
        let Some(mut length) = self.used.remove(&offset) else { return false };
        let mut start = offset;
        if let Some(next) = self.free.remove(&(offset + length)) {
            length += next;
        }
        if let Some((&before, &span)) = self.free.range(..offset).next_back()
            && before + span == offset
        {
            self.free.remove(&before);
            (start, length) = (before, length + span);
        }
        self.free.insert(start, length);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_never_overlap(steps in prop::collection::vec((0usize..5000, 0u32..13, any::<bool>()), 0..200)) {
            let origin = 3 * GRANULE;
            let mut heap = Heap::new(64 << 10, origin);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (bytes, align, release) in steps {
                if release && !live.is_empty() {
                    let (offset, _) = live.swap_remove(bytes % live.len());
                    prop_assert!(heap.release(offset));
                    prop_assert!(!heap.release(offset));
                } else if align == 12 && !live.is_empty() {
                    let index = bytes % live.len();
                    let (offset, length) = live[index];
                    let fits = bytes <= length.max(1).next_multiple_of(GRANULE);
                    prop_assert_eq!(heap.shrink(offset, bytes), fits);
                    if fits {
                        live[index].1 = bytes;
                    }
                } else if let Ok(offset) = heap.allocate_behind(bytes, 1 << align, (1 << align) / 128 * 64) {
                    let behind = if align > 6 { (1 << align) / 128 * 64 } else { 0 };
                    prop_assert_eq!((origin + offset) % (1 << align), behind);
                    prop_assert!(offset + bytes <= 64 << 10);
                    prop_assert!(live.iter().all(|(o, b)| offset + bytes.max(1) <= *o || o + b.max(&1) <= offset));
                    live.push((offset, bytes));
                }
            }
            for (offset, _) in live {
                prop_assert!(heap.release(offset));
            }
            prop_assert_eq!(heap.allocate(64 << 10, 1).ok(), Some(0), "freed spans join to one");
        }
    }

    #[test]
    fn invalid_allocations_are_refused() {
        let mut heap = Heap::new(4096, 0);
        assert!(heap.allocate(usize::MAX, 1).is_err());
        assert!(heap.allocate(1, 3).is_err());
        assert!(heap.allocate(4097, 1).is_err());
        assert!(Heap::new(0, 0).allocate(1, 1).is_err());
    }
}
