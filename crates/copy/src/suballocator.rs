//! Allocates disjoint parts of one memory region, such as the range of a BAR.

use crate::field::SIZES;
use inlane_core::{Error, Region, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The alignment of allocated parts within the region: one cache line, which suits the widest accesses.
const ALIGNMENT: usize = 64;

/// A region that is divided into parts. `used` has the ranges of the region that are in use.
pub(crate) struct Suballocator {
    whole: Region,
    used: Arc<Mutex<Vec<Range<usize>>>>,
}

/// A part of the region that is in use. Dropping this value frees the part.
struct Part {
    range: Range<usize>,
    used: Arc<Mutex<Vec<Range<usize>>>>,
    _whole: Region,
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|range| *range != self.range);
    }
}

impl Suballocator {
    /// Creates an allocator that owns all of `whole`.
    pub(crate) fn new(whole: Region) -> Self {
        Self { whole, used: Arc::default() }
    }

    /// Returns the whole region.
    pub(crate) fn whole(&self) -> &Region {
        &self.whole
    }

    /// Allocates `bytes` contiguous bytes, first fit. They are free again when the region and all its slices
    /// are dropped. `name` names the memory in errors.
    ///
    /// # Errors
    /// [`Error::Memory`] if no gap is large enough; [`Error::Invalid`] for 0 bytes.
    pub(crate) fn allocate(&self, bytes: usize, name: &dyn Fn() -> String) -> Result<Region> {
        if bytes == 0 {
            return Err(Error::invalid(format!("0 bytes of {}", name()), "ask for at least one byte"));
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // Search for the first gap that is large enough. `used` is sorted by start. A gap can lie before each
        // range in use, and after the last range.
        let (mut start, mut largest, mut at) = (0, 0, used.len());
        for (index, end) in used.iter().map(|range| range.start).chain([self.whole.len()]).enumerate() {
            let gap = end.saturating_sub(start);
            if gap >= bytes {
                at = index;
                largest = gap;
                break;
            }
            largest = largest.max(gap);
            start = used.get(index).map_or(start, |range| range.end.next_multiple_of(ALIGNMENT));
        }
        if largest < bytes {
            let total = self.whole.len();
            let why = match used.is_empty() {
                true => format!(
                    "the permitted range of the BAR has {total} bytes; give smaller {SIZES}, or a longer range"
                ),
                false => format!(
                    "the largest free gap is {largest} of {total} permitted bytes. Both directions at once, and two \
                     endpoints in one BAR, need separate memory. Request smaller sizes or give a larger range"
                ),
            };
            return Err(Error::Memory { bytes, what: name(), why });
        }
        let range = start..start + bytes;
        used.insert(at, range.clone());
        let part = Part { range, used: self.used.clone(), _whole: self.whole.clone() };
        let slice = self.whole.slice(start, bytes)?;
        // SAFETY: the slice lies in `whole`, which `part` keeps alive.
        Ok(unsafe { Region::from_raw(slice.address(), bytes, slice.location().clone(), Arc::new(part)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 4096;

    fn name() -> String {
        "pci:0000:00:04.0/bar2".into()
    }

    #[test]
    fn too_large_a_request_is_refused_with_what_is_free() {
        let allocator = Suballocator::new(Region::host(16 * PAGE).unwrap());
        let error = |bytes| allocator.allocate(bytes, &name).unwrap_err().to_string();
        assert!(error(16 * PAGE + 1).contains("has 65536 bytes"), "{}", error(16 * PAGE + 1));
        assert!(error(0).contains("at least one byte"));
        let first = allocator.allocate(10 * PAGE, &name).unwrap();
        let text = error(7 * PAGE);
        assert!(text.contains("24576 of 65536") && text.contains("larger range"), "{text}");
        let slice = first.slice(PAGE, 8).unwrap();
        drop(first);
        assert!(allocator.allocate(7 * PAGE, &name).is_err(), "the slice keeps its part in use");
        drop(slice);
        assert_eq!(allocator.allocate(16 * PAGE, &name).unwrap().address(), allocator.whole().address());
    }

    proptest! {
        #[test]
        fn parts_are_disjoint_and_become_free_again(steps in prop::collection::vec((1usize..40_000, 0usize..8, any::<bool>()), 1..60)) {
            let allocator = Suballocator::new(Region::host(64 * PAGE).unwrap());
            let mut held: Vec<Region> = Vec::new();
            for (bytes, which, free) in steps {
                if free && !held.is_empty() {
                    held.remove(which % held.len());
                } else if let Ok(part) = allocator.allocate(bytes, &name) {
                    prop_assert_eq!(part.len(), bytes);
                    prop_assert!(part.address().is_multiple_of(ALIGNMENT as u64));
                    let end = allocator.whole().address() + allocator.whole().len() as u64;
                    prop_assert!(part.address() >= allocator.whole().address() && part.address() + bytes as u64 <= end);
                    prop_assert!(held.iter().all(|other| !other.overlaps(&part)));
                    held.push(part);
                }
            }
            held.clear();
            prop_assert!(allocator.allocate(64 * PAGE, &name).is_ok(), "all of it is free again");
        }
    }
}
