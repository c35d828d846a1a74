//! Placement of values on cache lines.

/// A value on its own pair of cache lines. A pair, because Intel CPUs prefetch the neighbour of a missed line.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct CacheAligned<T>(pub(crate) T);
