//! Keeps values on cache lines of their own, so that threads do not slow each other down (false sharing).

/// A value alone on a pair of cache lines, to avoid false sharing. One line is not enough, because Intel's
/// adjacent-line prefetcher fetches lines in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct CacheAligned<T>(pub(crate) T);
