//! Atomic operations on memory that is mapped in this process. The processor of the calling thread executes
//! them.

use super::{Atomic, Operation};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Executes an atomic operation on the word at `address` with one instruction of this processor. Returns the
/// previous value. Returns `None` if the width is not 4 or 8 bytes, or if the address is not a multiple of
/// the width.
///
/// # Safety
/// The word is valid memory. All processes and threads access it only with atomics.
pub(super) unsafe fn apply(address: *mut u8, atomic: &Atomic) -> Option<u64> {
    let Atomic { operation, width, operand, comparand, .. } = *atomic;
    if !matches!(width, 4 | 8) || !(address as usize).is_multiple_of(width) {
        return None;
    }
    use Ordering::{AcqRel, Acquire, SeqCst};
    macro_rules! apply {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: the word is aligned, and the caller promises the rest.
            let word = unsafe { <$atomic>::from_ptr(address.cast()) };
            let operand = operand as $word;
            (match operation {
                Operation::Fetch => word.load(Acquire),
                Operation::Swap => word.swap(operand, AcqRel),
                Operation::CompareSwap => word
                    .compare_exchange(comparand as $word, operand, SeqCst, Acquire)
                    .unwrap_or_else(|now| now),
                Operation::Add => word.fetch_add(operand, AcqRel),
                Operation::And => word.fetch_and(operand, AcqRel),
                Operation::Or => word.fetch_or(operand, AcqRel),
                Operation::Xor => word.fetch_xor(operand, AcqRel),
            }) as u64
        }};
    }
    Some(if width == 4 { apply!(AtomicU32, u32) } else { apply!(AtomicU64, u64) })
}
