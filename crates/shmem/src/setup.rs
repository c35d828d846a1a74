//! The functions that set up the library, and the queries: a PE's number, the number of PEs, whether a PE or
//! an address is accessible, and the library's version and name.

use crate::world::{self, world};
use inlane_pgas::transport::Transport;
use std::ffi::{c_char, c_int, c_void};

const THREAD_MULTIPLE: c_int = 3;

/// Converts a PE's number in the job from C's `int` to `u32`. A negative number becomes a very large one. The
/// library refuses it because no such PE exists.
#[inline(always)]
pub fn pe(number: c_int) -> u32 {
    number as u32
}

/// Starts the library. Provides SHMEM_THREAD_MULTIPLE, whatever level the program requests: any thread may
/// call the library.
pub fn init_thread(_requested: c_int, provided: *mut c_int) -> c_int {
    world::start();
    query_thread(provided);
    0
}

/// Stores the thread level.
pub fn query_thread(provided: *mut c_int) {
    if !provided.is_null() {
        // SAFETY: the caller's pointer is valid, as the specification demands.
        unsafe { provided.write(THREAD_MULTIPLE) };
    }
}

/// Returns the number of this PE.
pub fn my_pe() -> c_int {
    world().me() as c_int
}

/// Returns the number of PEs.
pub fn n_pes() -> c_int {
    world().pes() as c_int
}

/// Returns 1 if the PE exists, else 0.
pub fn pe_accessible(number: c_int) -> c_int {
    (pe(number) < world().pes()) as c_int
}

/// Returns 1 if the address lies in symmetric memory and the PE exists, else 0.
pub fn addr_accessible(address: *const c_void, number: c_int) -> c_int {
    (pe(number) < world().pes() && world().offset_of(address as usize, 1).is_ok()) as c_int
}

/// Returns the address at which this PE can load and store PE `number`'s copy of the symmetric object at
/// `address`. Returns null if loads and stores cannot reach that copy.
pub fn ptr(address: *const c_void, number: c_int) -> *mut c_void {
    world().direct(address as usize, pe(number)).map_or(std::ptr::null_mut(), |address| address.cast())
}

/// Returns the PEs whose memory this PE can access by loads and stores, this PE included.
pub fn reachable() -> Vec<u32> {
    let is_reached = |pe: &u32| *pe == world().me() || world().transport().direct(*pe, 0).is_some();
    (0..world().pes()).filter(is_reached).collect()
}

/// Stores the version of the specification.
pub unsafe fn version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: the caller's pointers are valid, as the specification demands.
    unsafe {
        major.write(1);
        minor.write(5);
    }
}

/// Stores the library's name, which is SHMEM_VENDOR_STRING.
pub unsafe fn name(name: *mut c_char) {
    let text = "inlane\0";
    // SAFETY: the caller's buffer holds SHMEM_MAX_NAME_LEN (256) characters.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
}

/// Accepts the program's hints to a profiling tool. The library itself has no profiling to control.
pub fn pcontrol(_level: c_int) {}
