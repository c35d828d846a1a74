//! Atomic operations on symmetric words of 4 and 8 bytes.

use crate::contexts::Remote;
use crate::world::check;
use inlane_pgas::transport::Operation;
use std::ffi::c_void;

/// A type of 4 or 8 bytes that the library's atomics support.
pub trait Word: Copy {
    /// Returns the bits of the value, in the low bytes of the result.
    fn bits(self) -> u64;
    /// Converts the low bytes of `bits` back to a value. It is the inverse of [`Word::bits`].
    fn value(bits: u64) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl Word for $type {
            fn bits(self) -> u64 {
                self as u64
            }
            fn value(bits: u64) -> Self {
                bits as Self
            }
        })*
    };
}
integers!(i32 u32 i64 u64 isize usize);

impl Word for f32 {
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
    fn value(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
}

impl Word for f64 {
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn value(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

/// Applies an atomic operation to a word of the remote PE. Blocks until it is done. Returns the previous value.
#[inline]
pub fn fetch<T: Word>(
    operation: Operation,
    target: *const T,
    operand: u64,
    comparand: u64,
    remote: Remote,
) -> T {
    T::value(check(remote.context.atomic(
        operation,
        target as usize,
        size_of::<T>(),
        operand,
        comparand,
        remote.pe,
    )))
}

/// Starts an atomic operation on the word `target` of the remote PE. Its previous value is stored at `result` before
/// the next quiet ends.
pub unsafe fn fetch_nbi<T: Word>(
    operation: Operation,
    result: *mut T,
    target: *const T,
    operand: u64,
    comparand: u64,
    remote: Remote,
) {
    let (word, operands) = ((target as usize, size_of::<T>()), (operand, comparand));
    // SAFETY: the caller's result is writable until the next quiet, as the specification demands.
    check(unsafe { remote.context.atomic_fetch_nbi(operation, word, operands, result.cast(), remote.pe) });
}

/// Starts an atomic operation without a result on a word of the remote PE. The operation is complete after the next
/// quiet.
pub fn post(operation: Operation, target: *mut c_void, width: usize, operand: u64, remote: Remote) {
    check(remote.context.atomic_nbi(operation, target as usize, width, operand, remote.pe));
}
