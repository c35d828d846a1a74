//! Waits until words of this PE's symmetric memory satisfy a condition, and tests whether words satisfy a
//! condition.
//!
//! Functions on several words skip each word whose `status` is not 0. If `status` is null, they skip no word.

use crate::world::{check, invalid, world};
use inlane_pgas::transport::Transport;
use inlane_pgas::world::Compare;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// SHMEM_CMP_NE.
pub const NOT_EQUAL: c_int = 1;

/// The values that words are compared with.
#[derive(Clone, Copy)]
pub enum Operands<T> {
    /// All words are compared with the same value.
    One(T),
    /// A pointer to an array with one value for each word.
    Each(*const T),
}

/// Converts a constant SHMEM_CMP_* of the C header to a comparison.
fn compare(how: c_int) -> Compare {
    use Compare::*;
    match [Eq, Ne, Gt, Ge, Lt, Le].get(how as usize) {
        Some(compare) => *compare,
        None => invalid(
            format!("comparison {how}"),
            "no such comparison; give one of SHMEM_CMP_EQ to SHMEM_CMP_LE",
        ),
    }
}

/// Loads a word of this PE's memory. If another PE has put its value, later loads also return the data that
/// was delivered before the word.
pub unsafe fn load<T: Copy>(word: *const T) -> T {
    // SAFETY: the caller passes an aligned word, as the specification demands.
    let value = unsafe { word.read_volatile() };
    fence(Ordering::Acquire);
    value
}

/// Returns the value of a signal of this PE. Lets other PEs run if PEs share processors and the program polls
/// the signal.
pub unsafe fn signal_fetch(signal: *const u64) -> u64 {
    // SAFETY: the caller passes an aligned word.
    let value = unsafe { load(signal) };
    world().loaded(signal as usize, value);
    value
}

/// Words that are compared.
struct Words<T> {
    words: *const T,
    count: usize,
    status: *const c_int,
    how: Compare,
    operands: Operands<T>,
}

impl<T: Copy + PartialOrd> Words<T> {
    unsafe fn new(
        words: *const T,
        count: usize,
        status: *const c_int,
        how: c_int,
        operands: Operands<T>,
    ) -> Self {
        Self { words, count, status, how: compare(how), operands }
    }

    /// Returns the indices of the words that are not skipped.
    fn included(&self) -> impl Iterator<Item = usize> {
        // SAFETY: `status` has `count` elements unless it is null.
        (0..self.count).filter(|index| self.status.is_null() || unsafe { *self.status.add(*index) } == 0)
    }

    fn holds(&self, index: usize) -> bool {
        // SAFETY: the arrays have `count` elements.
        let (word, operand) = unsafe {
            let operand = match self.operands {
                Operands::One(value) => value,
                Operands::Each(values) => *values.add(index),
            };
            (load(self.words.add(index)), operand)
        };
        self.how.holds(word, operand)
    }

    fn all(&self) -> bool {
        self.included().all(|index| self.holds(index))
    }

    /// Returns the index of a word whose comparison is true, or `usize::MAX` if there is none. Each call
    /// starts the search at another word. Otherwise, the last words could be overlooked forever.
    fn any(&self) -> usize {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let first = CALLS.fetch_add(1, Ordering::Relaxed) % self.count.max(1);
        let (before, after) = (self.included(), self.included());
        let mut order = after.filter(|index| *index >= first).chain(before.filter(|index| *index < first));
        order.find(|index| self.holds(*index)).unwrap_or(usize::MAX)
    }

    /// Stores into `indices` the indices of all words whose comparison holds. Returns the number of these
    /// words.
    unsafe fn some(&self, indices: *mut usize) -> usize {
        let mut found = 0;
        for index in self.included().filter(|index| self.holds(*index)) {
            // SAFETY: `indices` has room for `count` elements, and `found` is below that.
            unsafe { indices.add(found).write(index) };
            found += 1;
        }
        found
    }
}

/// Blocks until the comparison `how` of the word with `value` is true. Returns the value of the word for
/// which it became true.
pub unsafe fn wait_until<T: Copy + PartialOrd>(word: *const T, how: c_int, value: T) -> T {
    let how = compare(how);
    let mut seen = value;
    check(world().wait_word((word as usize, size_of::<T>()), None, || {
        // SAFETY: the caller passes an aligned word.
        seen = unsafe { load(word) };
        how.holds(seen, value)
    }));
    seen
}

/// Blocks until all words satisfy their comparisons, except the words that `status` excludes.
pub unsafe fn wait_until_all<T: Copy + PartialOrd>(
    words: *const T,
    count: usize,
    status: *const c_int,
    how: c_int,
    operands: Operands<T>,
) {
    // SAFETY: the caller's arrays are valid.
    let words = unsafe { Words::new(words, count, status, how, operands) };
    check(world().wait(|| words.all()));
}

/// Blocks until at least one word satisfies its comparison, and returns the index of such a word. If `status`
/// excludes all words, returns `usize::MAX` at once.
pub unsafe fn wait_until_any<T: Copy + PartialOrd>(
    words: *const T,
    count: usize,
    status: *const c_int,
    how: c_int,
    operands: Operands<T>,
) -> usize {
    // SAFETY: the caller's arrays are valid.
    let words = unsafe { Words::new(words, count, status, how, operands) };
    let mut index = usize::MAX;
    if words.included().next().is_some() {
        check(world().wait(|| {
            index = words.any();
            index != usize::MAX
        }));
    }
    index
}

/// Blocks until the comparison of at least one word is true. Stores the indices of all words whose comparison
/// is true, and returns their number. Returns 0 at once if all words are skipped.
pub unsafe fn wait_until_some<T: Copy + PartialOrd>(
    words: *const T,
    count: usize,
    indices: *mut usize,
    status: *const c_int,
    how: c_int,
    operands: Operands<T>,
) -> usize {
    // SAFETY: the caller's arrays are valid.
    let words = unsafe { Words::new(words, count, status, how, operands) };
    let mut found = 0;
    if words.included().next().is_some() {
        check(world().wait(|| {
            // SAFETY: the caller's arrays are valid.
            found = unsafe { words.some(indices) };
            found > 0
        }));
    }
    found
}

/// Lets other PEs run if a test found nothing and PEs share processors, because programs test in loops.
fn found(any: bool) {
    if !any {
        world().found_nothing();
    }
}

/// Returns 1 if every word satisfies its comparison, else 0. Ignores the words that `status` excludes. Also
/// serves pending requests of other PEs.
pub unsafe fn test_all<T: Copy + PartialOrd>(
    words: *const T,
    count: usize,
    status: *const c_int,
    how: c_int,
    operands: Operands<T>,
) -> c_int {
    world().transport().progress();
    // SAFETY: the caller's arrays are valid.
    let all = unsafe { Words::new(words, count, status, how, operands) }.all();
    found(all);
    all as c_int
}

/// Returns the index of a word whose comparison is true, or `usize::MAX` if there is none.
pub unsafe fn test_any<T: Copy + PartialOrd>(
    words: *const T,
    count: usize,
    status: *const c_int,
    how: c_int,
    operands: Operands<T>,
) -> usize {
    world().transport().progress();
    // SAFETY: the caller's arrays are valid.
    let index = unsafe { Words::new(words, count, status, how, operands) }.any();
    found(index != usize::MAX);
    index
}

/// Stores the indices of all words whose comparison holds. Returns their number.
pub unsafe fn test_some<T: Copy + PartialOrd>(
    words: *const T,
    count: usize,
    indices: *mut usize,
    status: *const c_int,
    how: c_int,
    operands: Operands<T>,
) -> usize {
    world().transport().progress();
    // SAFETY: the caller's arrays are valid.
    let count = unsafe { Words::new(words, count, status, how, operands).some(indices) };
    found(count > 0);
    count
}
