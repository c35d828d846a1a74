//! Copies arguments between the program's memory and the library.
//!
//! If a pointer points to memory that the program may not access, the kernel returns EFAULT. The functions of
//! this library must do the same, but a plain access would end the program with SIGSEGV. So the kernel does
//! the copy, by process_vm_readv(2) on the own process. Once a page was accessible, later accesses to the
//! page make no system call.

use crate::{errno, set_errno};
use inlane_offload_protocol::address::{is_possible, read_sockaddr, write_sockaddr};
use libc::{c_int, c_void, iovec, sockaddr, socklen_t, ssize_t};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
/// The number of pages in a table of accessible pages. Their next access needs no system call for the check.
const REMEMBERED: usize = 64;

/// A table of pages that were accessible at their last use. Stores each page's address divided by [`PAGE`]. A
/// page has a fixed place in this table, and replaces any other page that has the same place.
struct Pages([AtomicUsize; REMEMBERED]);

static READABLE: Pages = Pages::new();
static WRITABLE: Pages = Pages::new();

impl Pages {
    const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; REMEMBERED])
    }

    /// Returns true if the table still has the first and the last page of the `len` bytes at `start`.
    fn contain(&self, start: usize, len: usize) -> bool {
        let known = |page: usize| self.0[page % REMEMBERED].load(Ordering::Relaxed) == page;
        known(start / PAGE) && known((start + len - 1) / PAGE)
    }

    fn add(&self, start: usize, len: usize) {
        for page in [start / PAGE, (start + len - 1) / PAGE] {
            self.0[page % REMEMBERED].store(page, Ordering::Relaxed);
        }
    }
}

type Copy = unsafe extern "C" fn(
    libc::pid_t,
    *const iovec,
    libc::c_ulong,
    *const iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> ssize_t;

/// Calls `call` to copy `len` bytes between `own` (memory of this library) and `start` (memory of the
/// program). The bytes lie in at most two pages. Returns `Some(false)` if the program may not access its
/// bytes, and `None` if the kernel refuses the call, for example in a sandbox. Leaves errno unchanged.
fn copy_by(call: Copy, own: *mut c_void, start: *mut c_void, len: usize) -> Option<bool> {
    let before = errno();
    let (own, program) = (iovec { iov_base: own, iov_len: len }, iovec { iov_base: start, iov_len: len });
    // SAFETY: `own` has `len` bytes, and the kernel checks the address of the program's bytes.
    let copied = unsafe { call(libc::getpid(), &own, 1, &program, 1, 0) };
    let refused = copied < 0 && errno() != libc::EFAULT;
    set_errno(before);
    (!refused).then_some(copied == len as ssize_t)
}

/// Copies `into.len()` bytes, at most a page, from `from`. Returns false if the program may not read all of
/// them.
///
/// # Safety
/// If an earlier call read from a page, the page must still be readable, because it is not checked again. If
/// a sandbox refuses the check, all bytes must be readable.
pub unsafe fn read_bytes(from: *const u8, into: &mut [u8]) -> bool {
    let (start, len) = (from as usize, into.len());
    debug_assert!(len <= PAGE);
    if len == 0 {
        return true;
    }
    if !is_possible(from, len) {
        return false;
    }
    if !READABLE.contain(start, len)
        && let Some(read) =
            copy_by(libc::process_vm_readv, into.as_mut_ptr().cast(), from.cast_mut().cast(), len)
    {
        if read {
            READABLE.add(start, len);
        }
        return read;
    }
    // SAFETY: the pages are readable, by the check or by the caller's promise.
    unsafe { into.as_mut_ptr().copy_from(from, len) };
    true
}

/// Copies `bytes` to `to`. The length of `bytes` is at most a page. Returns false if the program may not
/// write at `to`.
///
/// # Safety
/// A page to which an earlier call wrote is still writable, because it is not checked again. If a sandbox
/// refuses the check, all the bytes are writable. `to` points to memory of the program only.
pub unsafe fn write_bytes(to: *mut u8, bytes: &[u8]) -> bool {
    let (start, len) = (to as usize, bytes.len());
    debug_assert!(len <= PAGE);
    if len == 0 {
        return true;
    }
    if !is_possible(to, len) {
        return false;
    }
    if !WRITABLE.contain(start, len)
        && let Some(written) =
            copy_by(libc::process_vm_writev, bytes.as_ptr().cast_mut().cast(), to.cast(), len)
    {
        if written {
            WRITABLE.add(start, len);
        }
        return written;
    }
    // SAFETY: the pages are writable, by the check or by the caller's promise.
    unsafe { to.copy_from(bytes.as_ptr(), len) };
    true
}

/// Returns the value at `from`, or `None` if the program may not read it.
///
/// # Safety
/// As for [`read_bytes`]. Every pattern of bits is a valid `T`.
pub unsafe fn read<T: std::marker::Copy>(from: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the value's bytes are initialised, by zeros. Any bytes are a valid value.
    unsafe {
        let bytes = std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>());
        read_bytes(from.cast(), bytes).then(|| value.assume_init())
    }
}

/// Returns the total length of the `count` buffers in `parts`. Returns `None` if the program may not read all elements of
/// the array, or if a length is above `isize::MAX`.
///
/// # Safety
/// As for [`read_bytes`].
pub unsafe fn readable_total(parts: *const libc::iovec, count: usize) -> Option<usize> {
    (0..count).try_fold(0usize, |total, index| {
        // SAFETY: the caller's promise.
        let part = unsafe { read(parts.wrapping_add(index)) }?;
        isize::try_from(part.iov_len).ok()?;
        Some(total.saturating_add(part.iov_len))
    })
}

/// Returns the total length of the `count` buffers in `parts`. Stops at the first element of the array that
/// the program may not read.
///
/// # Safety
/// As for [`read_bytes`].
pub unsafe fn total(parts: *const libc::iovec, count: usize) -> usize {
    // SAFETY: the caller's promise.
    let parts = (0..count).map_while(|index| unsafe { read(parts.wrapping_add(index)) });
    parts.fold(0, |total, part| total.saturating_add(part.iov_len))
}

/// Returns true if the program may read the value at `from`.
///
/// # Safety
/// As for [`read`].
pub unsafe fn is_readable<T: std::marker::Copy>(from: *const T) -> bool {
    // SAFETY: the caller's promise.
    unsafe { read(from) }.is_some()
}

/// Returns the internet address at `address`. Returns `None` for other families and for lengths that are too
/// short. Fails with EFAULT if the address is not readable, and with EINVAL if `len` exceeds the size of any
/// socket address.
///
/// # Safety
/// As for [`read_bytes`].
pub unsafe fn read_address(address: *const sockaddr, len: socklen_t) -> Result<Option<SocketAddr>, c_int> {
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(libc::EINVAL);
    }
    let len = (len as usize).min(bytes.len());
    // SAFETY: the caller promises what `read_bytes` requires. `bytes` lives through the calls.
    unsafe {
        match read_bytes(address.cast(), &mut bytes[..len]) {
            true => Ok(read_sockaddr(bytes.as_ptr().cast(), len as socklen_t)),
            false => Err(libc::EFAULT),
        }
    }
}

/// Stores `value` as accept(2) and getsockname(2) do: at most `*len` bytes, and the full length in `*len`. If `v6` is
/// set, stores an IPv4 address as an IPv4-mapped IPv6 address. Fails with EFAULT or EINVAL as the kernel.
///
/// # Safety
/// As for [`write_bytes`].
pub unsafe fn write_address(
    value: SocketAddr,
    v6: bool,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), c_int> {
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut full = bytes.len() as socklen_t;
    // SAFETY: the bytes and the length live through the call.
    unsafe { write_sockaddr(value, v6, bytes.as_mut_ptr().cast(), &mut full) };
    // SAFETY: the caller's promise.
    unsafe { write_value(&bytes[..full as usize], address.cast(), len) }
}

/// Stores at most `*len` bytes of `bytes` at `to`, and then the full length of `bytes` in `*len`. Fails with
/// EFAULT or EINVAL in the same cases as the kernel.
///
/// # Safety
/// As for [`write_bytes`].
pub unsafe fn write_value(bytes: &[u8], to: *mut u8, len: *mut socklen_t) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let room = read_length(len)?;
        let written = write_bytes(to, &bytes[..room.min(bytes.len())])
            && write_bytes(len.cast(), &(bytes.len() as socklen_t).to_ne_bytes());
        if written { Ok(()) } else { Err(libc::EFAULT) }
    }
}

/// Gives the program the value of an option, cut to the program's buffer, as getsockopt(2) does. Returns 0, or -1 with
/// errno EFAULT or EINVAL.
///
/// # Safety
/// As for [`write_bytes`].
pub unsafe fn put_option(value: *mut c_void, len: *mut socklen_t, bytes: &[u8]) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let count = match read_length(len) {
            Ok(room) => room.min(bytes.len()),
            Err(error) => return crate::fail(error),
        };
        let written = write_bytes(value.cast(), &bytes[..count])
            && write_bytes(len.cast(), &(count as socklen_t).to_ne_bytes());
        if written { 0 } else { crate::fail(libc::EFAULT) }
    }
}

/// Reads the length at `len`, which the program passes together with a buffer. Fails with EFAULT if the
/// program may not read `len`, and with EINVAL if the length is negative.
///
/// # Safety
/// As for [`read_bytes`].
pub unsafe fn read_length(len: *const socklen_t) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    let len = unsafe { read(len.cast::<c_int>()) }.ok_or(libc::EFAULT)?;
    usize::try_from(len).map_err(|_| libc::EINVAL)
}

/// The value of a socket option: its first bytes, and how many there are.
pub struct OptionValue {
    bytes: [u8; OptionValue::MOST],
    len: usize,
}

impl OptionValue {
    /// The most bytes of a value that are kept. No option of the engine has more.
    const MOST: usize = 64;

    /// Reads the `len` bytes at `value` that a program passes to setsockopt(2) for option `name` of `level`.
    /// As in Linux, an option of IPv4 may have fewer than four bytes. Fails with the kernel's error: EFAULT
    /// or EINVAL.
    ///
    /// # Safety
    /// As for [`read_bytes`].
    pub unsafe fn read(
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> Result<Self, c_int> {
        let is_text = (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
        let len = usize::try_from(len as c_int).map_err(|_| libc::EINVAL)?;
        if len < 4 && level != libc::IPPROTO_IP && !(is_text && len > 0) {
            return Err(libc::EINVAL);
        }
        let mut read = Self { bytes: [0; Self::MOST], len: len.min(Self::MOST) };
        // SAFETY: the caller's promise.
        match unsafe { read_bytes(value.cast(), &mut read.bytes[..read.len]) } {
            // The program passed no value. The kernel then reads the integer 0, so keep four zero bytes.
            true if len == 0 => Ok(Self { len: 4, ..read }),
            true => Ok(read),
            false => Err(libc::EFAULT),
        }
    }

    /// Returns the bytes of the value.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    /// Maps two pages, of which the second one is inaccessible. Returns the address of the second one.
    fn edge() -> *mut u8 {
        // SAFETY: the system chooses the address. The pages are never unmapped.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(null_mut(), 2 * PAGE, access, private, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let second = start.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(second.cast(), PAGE, libc::PROT_NONE), 0);
            second
        }
    }

    #[test]
    fn copies_stop_at_inaccessible_memory_without_a_signal() {
        let edge = edge();
        let mut bytes = [1; 8];
        set_errno(77);
        // SAFETY: the accessible page stays accessible.
        unsafe {
            assert!(write_bytes(edge.sub(8), &[7; 8]) && read_bytes(edge.sub(8), &mut bytes));
            assert_eq!(bytes, [7; 8]);
            for start in [edge.sub(4), edge, 16 as *mut u8, null_mut()] {
                assert!(!read_bytes(start, &mut bytes) && !write_bytes(start, &bytes), "{start:?}");
            }
            // Nothing is accessed.
            assert!(read_bytes(null(), &mut []) && write_bytes(null_mut(), &[]));
        }
        assert_eq!(errno(), 77);
    }

    #[test]
    fn options_are_read_as_the_kernel_reads_them() {
        let value = 0x0102_0304_i32.to_ne_bytes();
        let read = |level, name, value: *const u8, len| {
            // SAFETY: the value has four bytes, or no program can have memory there.
            unsafe { OptionValue::read(level, name, value.cast(), len) }.map(|value| value.bytes().to_vec())
        };
        let tcp = |value, len| read(libc::IPPROTO_TCP, libc::TCP_NODELAY, value, len);
        assert_eq!(tcp(value.as_ptr(), 4), Ok(value.to_vec()));
        assert_eq!(
            (tcp(value.as_ptr(), 3), tcp(value.as_ptr(), -1i32 as u32)),
            (Err(libc::EINVAL), Err(libc::EINVAL))
        );
        assert_eq!((tcp(null(), 4), tcp(16 as *const u8, 4)), (Err(libc::EFAULT), Err(libc::EFAULT)));
        assert_eq!(read(libc::IPPROTO_IP, libc::IP_TOS, value.as_ptr(), 1), Ok(value[..1].to_vec()));
        assert_eq!(read(libc::IPPROTO_IP, libc::IP_TOS, null(), 0), Ok(vec![0; 4]));
        assert_eq!(read(libc::IPPROTO_TCP, libc::TCP_CONGESTION, value.as_ptr(), 2), Ok(value[..2].to_vec()));
    }
}
