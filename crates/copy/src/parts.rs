//! A span of memory that is there once (a BAR's range), handed out in parts that share no byte, and given back.

use inlane_core::{Error, Region, Result};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Where parts begin: what the widest accesses like, counted from the start of the span.
const LINE: usize = 64;

/// A span, and which parts of it are in use.
pub(crate) struct Parts {
    whole: Region,
    taken: Arc<Mutex<Vec<Range<usize>>>>,
}

/// A part in use, until it is dropped.
struct Part {
    range: Range<usize>,
    taken: Arc<Mutex<Vec<Range<usize>>>>,
    _whole: Region,
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|range| *range != self.range);
    }
}

impl Parts {
    /// All of `whole`, none of it in use.
    pub(crate) fn of(whole: Region) -> Self {
        Self { whole, taken: Arc::default() }
    }

    /// The span.
    pub(crate) fn whole(&self) -> &Region {
        &self.whole
    }

    /// The first `bytes` that follow each other and are not in use; they are until the region and its slices are dropped.
    ///
    /// # Errors
    /// [`Error::Memory`] that says how many there are, when it is `name`'s; [`Error::Invalid`] for no bytes.
    pub(crate) fn take(&self, bytes: usize, name: &dyn Fn() -> String) -> Result<Region> {
        if bytes == 0 {
            return Err(Error::invalid(format!("no bytes of {}", name()), "ask for one at least"));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Ascending, so that the gaps are between neighbours.
        let (mut start, mut largest, mut at) = (0, 0, taken.len());
        for (index, end) in taken.iter().map(|range| range.start).chain([self.whole.len()]).enumerate() {
            let gap = end.saturating_sub(start);
            if gap >= bytes {
                at = index;
                largest = gap;
                break;
            }
            largest = largest.max(gap);
            start = taken.get(index).map_or(start, |range| range.end.next_multiple_of(LINE));
        }
        if largest < bytes {
            let total = self.whole.len();
            let why = match taken.is_empty() {
                true => format!(
                    "the BAR, or the range of it that may be touched, has {total} bytes; ask for smaller sizes"
                ),
                false => format!(
                    "{largest} of the {total} bytes that may be touched are free in one piece, for both directions at once and \
                     both ends within one BAR need memory of their own; ask for smaller sizes, or give a larger range"
                ),
            };
            return Err(Error::Memory { bytes, what: name(), why });
        }
        let range = start..start + bytes;
        taken.insert(at, range.clone());
        let part = Part { range, taken: self.taken.clone(), _whole: self.whole.clone() };
        let slice = self.whole.slice(start, bytes)?;
        // SAFETY: the part keeps the whole, which keeps the memory.
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
    fn too_much_is_refused_with_what_is_free() {
        let parts = Parts::of(Region::host(16 * PAGE).unwrap());
        let error = |bytes| parts.take(bytes, &name).unwrap_err().to_string();
        assert!(error(16 * PAGE + 1).contains("has 65536 bytes"), "{}", error(16 * PAGE + 1));
        assert!(error(0).contains("one at least"));
        let first = parts.take(10 * PAGE, &name).unwrap();
        let text = error(7 * PAGE);
        assert!(text.contains("24576 of the 65536 bytes") && text.contains("larger range"), "{text}");
        // A slice keeps its part, as the region did.
        let slice = first.slice(PAGE, 8).unwrap();
        drop(first);
        assert!(parts.take(7 * PAGE, &name).is_err());
        drop(slice);
        assert_eq!(parts.take(16 * PAGE, &name).unwrap().address(), parts.whole().address());
    }

    proptest! {
        #[test]
        fn parts_share_no_byte_and_come_back(steps in prop::collection::vec((1usize..40_000, 0usize..8, any::<bool>()), 1..60)) {
            let parts = Parts::of(Region::host(64 * PAGE).unwrap());
            let mut held: Vec<Region> = Vec::new();
            for (bytes, which, give_back) in steps {
                if give_back && !held.is_empty() {
                    held.remove(which % held.len());
                } else if let Ok(part) = parts.take(bytes, &name) {
                    prop_assert_eq!(part.len(), bytes);
                    prop_assert!(part.address().is_multiple_of(LINE as u64));
                    let end = parts.whole().address() + parts.whole().len() as u64;
                    prop_assert!(part.address() >= parts.whole().address() && part.address() + bytes as u64 <= end);
                    prop_assert!(held.iter().all(|other| !other.overlaps(&part)));
                    held.push(part);
                }
            }
            held.clear();
            prop_assert!(parts.take(64 * PAGE, &name).is_ok(), "all of it is free again");
        }
    }
}
