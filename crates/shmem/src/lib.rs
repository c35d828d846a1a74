//! OpenSHMEM's C functions over inlane's windows: this library and its header `include/shmem.h`.
//!
//! The header's typed functions are inline and call the functions of this crate, which work on bytes. As in
//! the specification, most functions return no error. If one fails, the library prints the error and ends the
//! job.
#![allow(clippy::missing_safety_doc)] // Each function's contract is the specification's; see the header.

mod collectives;
mod locks;
mod statics;
mod world;

use inlane_pgas::transport::{Operation, Transport};
use inlane_pgas::world::{Compare, Signal};
use std::ffi::{c_char, c_int, c_void};
use world::{check, world};

/// Starts the library. All PEs must call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_init() {
    world::start();
}

/// Ends the library. All PEs must call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_finalize() {
    world::finish();
}

/// Ends all processes of the job with `status`.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_global_exit(status: c_int) {
    world::exit_all(status);
}

/// Returns the number of the calling PE.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_my_pe() -> c_int {
    world().me() as c_int
}

/// Returns the number of PEs.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_n_pes() -> c_int {
    world().pes() as c_int
}

fn pe(number: c_int) -> u32 {
    // A negative number becomes a very large one. No such PE exists, so the library refuses it.
    number as u32
}

/// Allocates aligned symmetric memory. Returns null if the heap is full. All PEs must call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_align(alignment: usize, size: usize) -> *mut c_void {
    if size == 0 {
        check(world().barrier_all());
        return std::ptr::null_mut();
    }
    match world().allocate(size, alignment) {
        Ok(address) => address.cast(),
        Err(inlane_pgas::error::Error::Heap { .. } | inlane_pgas::error::Error::Invalid { .. }) => {
            std::ptr::null_mut()
        }
        Err(error) => world::fail(&error),
    }
}

/// Allocates symmetric memory. Returns null if the heap is full. All PEs must call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_malloc(size: usize) -> *mut c_void {
    shmem_align(16, size)
}

/// Allocates symmetric memory of zeros. Returns null if the heap is full. All PEs must call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return std::ptr::null_mut() };
    let address = shmem_align(16, bytes);
    if !address.is_null() {
        // SAFETY: the memory was just allocated with `bytes` bytes.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        check(world().barrier_all());
    }
    address
}

/// Frees symmetric memory. All PEs must call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_free(address: *mut c_void) {
    match address.is_null() {
        true => check(world().barrier_all()),
        false => check(world().release(address.cast())),
    }
}

/// Moves symmetric memory to an allocation of another size. Returns null if the heap is full. All PEs must
/// call it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_realloc(address: *mut c_void, size: usize) -> *mut c_void {
    if address.is_null() {
        return shmem_malloc(size);
    }
    if size == 0 {
        shmem_free(address);
        return std::ptr::null_mut();
    }
    let Some(old) = world().allocated(address.cast()) else {
        check::<()>(world().release(address.cast()));
        return std::ptr::null_mut();
    };
    let fresh = shmem_malloc(size);
    if !fresh.is_null() {
        // SAFETY: the old allocation has `old` bytes, and the new one has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), fresh.cast(), old.min(size)) };
        shmem_free(address);
    }
    fresh
}

/// Returns the address at which loads and stores reach `pe`'s copy of the object, or null if they cannot
/// reach it.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_ptr(address: *const c_void, number: c_int) -> *mut c_void {
    world().direct(address as usize, pe(number)).map_or(std::ptr::null_mut(), |address| address.cast())
}

/// Returns 1 if the PE exists, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_pe_accessible(number: c_int) -> c_int {
    (pe(number) < world().pes()) as c_int
}

/// Returns 1 if the address lies in symmetric memory and the PE exists, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_addr_accessible(address: *const c_void, number: c_int) -> c_int {
    (pe(number) < world().pes() && world().offset_of(address as usize, 1).is_ok()) as c_int
}

/// Copies to a PE. The source may be reused after the return.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_putmem(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    number: c_int,
) {
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe { world().put_bytes(destination as usize, source.cast(), bytes, pe(number)) });
}

/// Starts a copy to a PE. The source stays in use until the next quiet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_putmem_nbi(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    number: c_int,
) {
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe { world().put_bytes_nbi(destination as usize, source.cast(), bytes, pe(number)) });
}

/// Copies from a PE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_getmem(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    number: c_int,
) {
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe { world().get_bytes(destination.cast(), source as usize, bytes, pe(number)) });
}

/// Copies from a PE. The specification allows the bytes to arrive later, but here they have arrived on
/// return.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_getmem_nbi(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    number: c_int,
) {
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    unsafe { shmem_getmem(destination, source, bytes, number) }
}

/// Copies to a PE, then changes a signal there: operation 0 sets the signal, operation 1 adds to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_putmem_signal(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    signal_address: *mut u64,
    signal: u64,
    operation: c_int,
    number: c_int,
) {
    let how = if operation == 1 { Signal::Add } else { Signal::Set };
    let signal = (signal_address as usize, how, signal);
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe {
        world().put_signal_bytes(destination as usize, source.cast(), bytes, signal, pe(number))
    });
}

/// Makes a PE carry out an atomic on a word of 4 or 8 bytes, and returns the previous value. Operations: 0
/// fetch, 1 swap, 2 compare and swap, 3 add, 4 and, 5 or, 6 exclusive or.
#[unsafe(no_mangle)]
pub extern "C" fn inlane_shmem_atomic(
    operation: c_int,
    target: *const c_void,
    width: usize,
    operand: u64,
    comparand: u64,
    number: c_int,
) -> u64 {
    check(world().atomic(decode(operation), target as usize, width, operand, comparand, pe(number)))
}

/// Starts an atomic whose result is not needed. It is complete after the next quiet.
#[unsafe(no_mangle)]
pub extern "C" fn inlane_shmem_atomic_nbi(
    operation: c_int,
    target: *mut c_void,
    width: usize,
    operand: u64,
    number: c_int,
) {
    check(world().atomic_nbi(decode(operation), target as usize, width, operand, pe(number)));
}

fn decode(operation: c_int) -> Operation {
    use Operation::*;
    [Fetch, Swap, CompareSwap, Add, And, Or, Xor].get(operation as usize).copied().unwrap_or(Fetch)
}

/// Orders puts and atomics. Those before this call arrive at each PE before all later ones to that PE.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_fence() {
    check(world().fence());
}

/// Blocks until all earlier puts and atomics of this PE are delivered.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_quiet() {
    check(world().quiet());
}

fn compare(how: c_int) -> Compare {
    use Compare::*;
    [Eq, Ne, Gt, Ge, Lt, Le].get(how as usize).copied().unwrap_or(Eq)
}

/// Returns the word's value if its comparison with `value` holds, else `None`.
unsafe fn satisfying(word: *const c_void, width: usize, signed: bool, how: c_int, value: u64) -> Option<u64> {
    macro_rules! load {
        ($type:ty) => {{
            // SAFETY: the caller passes an aligned word of this type.
            let now = unsafe { word.cast::<$type>().read_volatile() };
            (compare(how).holds(now, value as $type), now as u64)
        }};
    }
    let (holds, now) = match (width, signed) {
        (2, true) => load!(i16),
        (2, false) => load!(u16),
        (4, true) => load!(i32),
        (4, false) => load!(u32),
        (_, true) => load!(i64),
        (_, false) => load!(u64),
    };
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    holds.then_some(now)
}

/// Blocks until comparison `how` of an integer of `width` bytes with `value` is true. Returns the integer.
/// The comparisons: 0 equal, 1 not equal, 2 greater, 3 greater or equal, 4 less, 5 less or equal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_shmem_wait(
    word: *const c_void,
    width: usize,
    signed: c_int,
    how: c_int,
    value: u64,
) -> u64 {
    let mut seen = value;
    check(world().wait_word(word as usize, width, || {
        // SAFETY: the caller passes an aligned word of `width` bytes, as the OpenSHMEM specification demands.
        let now = unsafe { satisfying(word, width, signed != 0, how, value) };
        seen = now.unwrap_or(seen);
        now.is_some()
    }));
    seen
}

/// Returns 1 if comparison `how` of the integer with `value` is true, else 0. Also carries out other PEs'
/// pending requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_shmem_test(
    word: *const c_void,
    width: usize,
    signed: c_int,
    how: c_int,
    value: u64,
) -> c_int {
    world().transport().progress();
    // SAFETY: the caller passes an aligned word of `width` bytes, as the OpenSHMEM specification demands.
    unsafe { satisfying(word, width, signed != 0, how, value).is_some() as c_int }
}

/// Stores the version of the specification.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_info_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: the caller's pointers are valid.
    unsafe {
        *major = 1;
        *minor = 5;
    }
}

/// Stores the library's name, which is SHMEM_VENDOR_STRING.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmem_info_get_name(name: *mut c_char) {
    let text = "inlane\0";
    // SAFETY: the caller's buffer holds SHMEM_MAX_NAME_LEN (256) characters.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
}
