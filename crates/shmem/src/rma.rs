//! Put, get, put with signal, fence and quiet, on bytes. Put and get are `extern "C"`, so they cannot unwind.
//! The typed functions then need no clean-up after the call, and end with a jump to put or get (a tail call).
//!
//! The callers of the unsafe functions pass valid pointers, as the OpenSHMEM specification demands.

use crate::contexts::Remote;
use crate::world::{check, invalid, world};
use inlane_pgas::transport::Reuse::{AtQuiet, AtReturn};
use inlane_pgas::world::Signal;
use std::ffi::{c_int, c_void};

/// Returns the length of `count` elements in bytes. If the product overflows, returns `usize::MAX`. No memory
/// is that long, so the copy fails.
#[inline(always)]
pub fn bytes(count: usize, width: usize) -> usize {
    count.saturating_mul(width)
}

/// Copies `bytes` bytes to `destination` on the remote PE. The source may be reused once this returns.
pub unsafe extern "C" fn put(destination: *mut c_void, source: *const c_void, bytes: usize, remote: Remote) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe {
        remote.context.put_bytes(destination as usize, source.cast(), bytes, remote.pe, AtReturn)
    });
}

/// Copies one value to a PE.
#[inline]
pub unsafe fn put_value<T>(destination: *mut T, value: T, remote: Remote) {
    // SAFETY: the source is a local variable.
    unsafe { put(destination.cast(), (&raw const value).cast(), size_of::<T>(), remote) };
}

/// Starts to copy `bytes` bytes to `destination` on the remote PE. The source must not change until the next quiet.
pub unsafe extern "C" fn put_nbi(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    remote: Remote,
) {
    // SAFETY: the caller's pointers are valid until the next quiet.
    check(unsafe {
        remote.context.put_bytes(destination as usize, source.cast(), bytes, remote.pe, AtQuiet)
    });
}

/// Copies `bytes` bytes from the symmetric address `source` of the remote PE to `destination`. Blocks until all
/// bytes have arrived.
pub unsafe extern "C" fn get(destination: *mut c_void, source: *const c_void, bytes: usize, remote: Remote) {
    // SAFETY: the caller's pointers are valid.
    check(unsafe {
        remote.context.get_bytes(destination.cast(), source as usize, bytes, remote.pe, AtReturn)
    });
}

/// Starts to copy `bytes` bytes from `source` on the remote PE. They have arrived after the next quiet.
pub unsafe extern "C" fn get_nbi(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    remote: Remote,
) {
    // SAFETY: the caller's pointers are valid until the next quiet.
    check(unsafe {
        remote.context.get_bytes(destination.cast(), source as usize, bytes, remote.pe, AtQuiet)
    });
}

/// Copies one value from a PE.
#[inline]
pub unsafe fn get_value<T>(source: *const T, remote: Remote) -> T {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: `get` fills the destination, a local variable. T is a plain number.
    unsafe {
        get(value.as_mut_ptr().cast(), source.cast(), size_of::<T>(), remote);
        value.assume_init()
    }
}

/// Returns the offset in bytes of element number `element` from the start of a strided array.
fn at(element: usize, stride: isize, width: usize) -> isize {
    (element as isize).wrapping_mul(stride).wrapping_mul(width as isize)
}

/// Calls `copy(destination, source, bytes)` for each of `count` elements of `width` bytes. If the elements
/// are contiguous in both arrays, calls it once for all of them.
#[inline(always)]
fn strided(
    destination: *mut c_void,
    source: *const c_void,
    (to, from): (isize, isize),
    (count, width): (usize, usize),
    copy: impl Fn(*mut c_void, *const c_void, usize),
) {
    if to == 1 && from == 1 {
        return copy(destination, source, bytes(count, width));
    }
    for i in 0..count {
        let (to, from) = (at(i, to, width), at(i, from, width));
        copy(destination.wrapping_byte_offset(to), source.wrapping_byte_offset(from), width);
    }
}

/// Copies `count` elements of `width` bytes to a PE. The strides are distances in elements, at the
/// destination and at the source.
pub unsafe fn put_strided(
    destination: *mut c_void,
    source: *const c_void,
    (to, from): (isize, isize),
    (count, width): (usize, usize),
    remote: Remote,
) {
    // SAFETY: the caller's pointers are valid for all elements.
    strided(destination, source, (to, from), (count, width), |to, from, bytes| unsafe {
        put(to, from, bytes, remote)
    });
}

/// Copies `count` elements of `width` bytes from a PE. The strides are distances in elements, at the
/// destination and at the source.
pub unsafe fn get_strided(
    destination: *mut c_void,
    source: *const c_void,
    (to, from): (isize, isize),
    (count, width): (usize, usize),
    remote: Remote,
) {
    // SAFETY: the caller's pointers are valid for all elements.
    strided(destination, source, (to, from), (count, width), |to, from, bytes| unsafe {
        get(to, from, bytes, remote)
    });
}

/// Copies to a PE, then updates a signal word there. The signal is the word's address, a value, and
/// SHMEM_SIGNAL_SET (0) or SHMEM_SIGNAL_ADD (1).
pub unsafe fn put_signal(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    (address, value, operation): (*mut u64, u64, c_int),
    remote: Remote,
) {
    let how = match operation {
        0 => Signal::Set,
        1 => Signal::Add,
        _ => invalid(
            format!("signal operation {operation}"),
            "no such operation; give SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD",
        ),
    };
    let signal = (address as usize, how, value);
    // SAFETY: the caller's pointers are valid.
    check(unsafe {
        remote.context.put_signal_bytes(destination as usize, source.cast(), bytes, signal, remote.pe)
    });
}

/// Orders puts and atomics: at each PE, those before this call arrive before all later ones.
pub fn fence() {
    check(world().fence());
}

/// Blocks until all earlier puts and atomics of this PE are delivered.
pub fn quiet() {
    check(world().quiet());
}
