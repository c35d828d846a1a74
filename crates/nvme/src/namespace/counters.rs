//! Counts of the operations on a namespace.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of operations that are counted. All but `Error` count successful operations.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// A Read command.
    Read,
    /// A Write command.
    Write,
    /// A Flush command.
    Flush,
    /// A Compare command.
    Compare,
    /// A command of another kind: Write Zeroes or Dataset Management.
    Other,
    /// A command that ended with an error status.
    Error,
}

/// The number of operations of each kind, and the number of their bytes. A [`Counted`] is the index.
pub type Counts = [[u64; 2]; 6];

/// Counts of operations that several threads add to.
#[derive(Debug, Default)]
pub struct Counters([[AtomicU64; 2]; 6]);

impl Counters {
    /// Adds counts.
    #[inline]
    pub fn add(&self, counts: &Counts) {
        for (counter, count) in self.0.iter().flatten().zip(counts.iter().flatten()) {
            if *count > 0 {
                counter.fetch_add(*count, Relaxed);
            }
        }
    }

    /// Returns the number of operations of one kind, and the number of their bytes.
    pub fn get(&self, counted: Counted) -> [u64; 2] {
        self.0[counted as usize].each_ref().map(|counter| counter.load(Relaxed))
    }
}
