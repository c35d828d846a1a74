//! The clock, and the timeouts of waits in nanoseconds.

use inlane_offload_protocol::address::is_possible;
use libc::{c_int, timespec};

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the nanoseconds of a timeout in milliseconds. A negative timeout has no limit.
pub fn of_milliseconds(timeout: c_int) -> u64 {
    u64::try_from(timeout).map_or(u64::MAX, |timeout| timeout * 1_000_000)
}

/// Returns the nanoseconds of `seconds` and `nanoseconds`, or `None` if the kernel refuses such a timeout.
pub fn of_parts(seconds: i64, nanoseconds: i64) -> Option<u64> {
    let nanoseconds = u64::try_from(nanoseconds).ok().filter(|&part| part < 1_000_000_000)?;
    Some(u64::try_from(seconds).ok()?.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// Converts a timeout to nanoseconds. Returns `u64::MAX` for a null pointer, which means no limit. Returns
/// `None` if the kernel would refuse the timeout.
///
/// # Safety
/// `timeout` is the argument of a program's call.
pub unsafe fn of_timespec(timeout: *const timespec) -> Option<u64> {
    if timeout.is_null() {
        return Some(u64::MAX);
    }
    if !is_possible(timeout, size_of::<timespec>()) {
        return None;
    }
    // SAFETY: the program's pointer, which is not null.
    let timeout = unsafe { timeout.read_unaligned() };
    of_parts(timeout.tv_sec, timeout.tv_nsec)
}

/// Returns the timeout of a number of nanoseconds.
pub fn to_timespec(nanoseconds: u64) -> timespec {
    timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_convert_as_the_kernel_reads_them() {
        assert_eq!((of_milliseconds(-1), of_milliseconds(0), of_milliseconds(7)), (u64::MAX, 0, 7_000_000));
        assert_eq!(of_parts(2, 5), Some(2_000_000_005));
        assert_eq!(of_parts(i64::MAX, 0), Some(u64::MAX));
        assert_eq!([of_parts(-1, 0), of_parts(0, -1), of_parts(0, 1_000_000_000)], [None; 3]);
        let wrong = 16 as *const timespec;
        // SAFETY: null, an address without memory, and a structure.
        unsafe {
            assert_eq!((of_timespec(std::ptr::null()), of_timespec(wrong)), (Some(u64::MAX), None));
            assert_eq!(of_timespec(&to_timespec(3_000_000_007)), Some(3_000_000_007));
        }
    }
}
