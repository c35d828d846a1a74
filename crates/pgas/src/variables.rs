//! The environment variables that users set for OpenSHMEM programs (OpenSHMEM 1.5, section 8.1, and inlane's
//! own).

use crate::error::{Error, Result};
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// Size of each PE's symmetric heap.
pub const HEAP: &str = "SHMEM_SYMMETRIC_SIZE";
/// Prints the library's version at the start.
pub const VERSION: &str = "SHMEM_VERSION";
/// If set, a program prints the list of these variables ([`crate::launch::help()`]) at the start.
pub const INFO: &str = "SHMEM_INFO";
/// Prints which path each PE takes, and why.
pub const DEBUG: &str = "SHMEM_DEBUG";
/// Checks calls of the symmetric heap, and accesses to it. All PEs must have the same value.
pub const CHECK: &str = "INLANE_SHMEM_CHECK";
/// Names the transport over which the PEs communicate. The transport that the launcher was given has priority.
pub const TRANSPORT: &str = "INLANE_NTB_TRANSPORT";
/// The IP address of PE 0's machine for jobs through a network that a process manager such as `mpirun` started. The PEs
/// connect to PE 0 at this address.
pub const ADDRESS: &str = "INLANE_NTB_ADDRESS";
/// Chooses whether waiting PEs leave their processor to others: `1` or `0`.
pub const YIELD: &str = "INLANE_NTB_YIELD";
/// How long to wait for the other PEs to start.
pub const CONNECT_TIMEOUT: &str = "INLANE_SHMEM_CONNECT_TIMEOUT";
/// How long another PE may take to answer a request.
pub const ANSWER_TIMEOUT: &str = "INLANE_SHMEM_ANSWER_TIMEOUT";

/// The standard library's error for a text that is not a whole number.
const NO_NUMBER: &str = "invalid digit found in string";

/// A size of a symmetric heap, in bytes. OpenSHMEM allows fractions and small letters: `1.5g`, `0.3M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapSize(pub u64);

impl FromStr for HeapSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let power = match unit.trim_end_matches('B').trim_end_matches('I') {
            "" => 0,
            "K" => 1,
            "M" => 2,
            "G" => 3,
            "T" => 4,
            _ => return Err("it is not a size; give a number with K, M, G or T, such as 512M".into()),
        };
        // Accept only digits and a point: `f64` would also accept signs and exponents.
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let number = digits.parse::<f64>().ok().filter(|_| plain);
        let bytes = number.ok_or("it is not a size; give a number with K, M, G or T, such as 512M")?
            * 1024f64.powi(power);
        match bytes {
            bytes if bytes < 1.0 => Err("the heap needs at least a byte; give a larger size".into()),
            bytes if bytes > (1u64 << 40) as f64 => {
                Err("a window has at most 1 TiB; give a smaller size".into())
            }
            bytes => Ok(Self(bytes as u64)),
        }
    }
}

/// The value of a variable with a time limit for a wait, such as `30s`. `0` means no limit, stored as `None`.
struct Limit(Option<Duration>);

impl FromStr for Limit {
    type Err = inlane_core::error::Error;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let limit = inlane_core::units::parse_time(text)?;
        Ok(Self((!limit.is_zero()).then_some(limit)))
    }
}

/// Returns the value of a variable, or `None` if it is not set.
///
/// # Errors
/// [`Error::Invalid`] if the value cannot be parsed. The message ends with `remedy`.
pub(crate) fn parsed<T: FromStr>(name: &str, remedy: &str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let Some(text) = std::env::var_os(name) else { return Ok(None) };
    let text = text.to_string_lossy();
    text.parse().map(Some).map_err(|error: T::Err| {
        let error = error.to_string();
        // Leave out the value, which many errors repeat, and the name of the flag that takes the same values.
        let why = error.split_once(&format!("{text}: ")).map_or(error.as_str(), |(_, why)| why);
        let why = if why == NO_NUMBER { "it is not a whole number" } else { why };
        Error::invalid(format!("{name}={text}"), format!("{why}{remedy}"))
    })
}

/// Returns the value of a variable that the launcher sets, or `None` if it is not set.
///
/// # Errors
/// [`Error::Invalid`] if the value cannot be parsed.
pub(crate) fn of_launcher<T: FromStr>(name: &str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    parsed(name, "; unset it, or start the program with `inlane ntb run`")
}

/// Returns the heap's size in bytes that the user asks for by [`HEAP`].
///
/// # Errors
/// [`Error::Invalid`] for a value that is no size.
pub fn heap_bytes() -> Result<Option<u64>> {
    Ok(parsed::<HeapSize>(HEAP, "")?.map(|size| size.0))
}

/// Returns the IP address in the variable [`ADDRESS`], or `None` if the variable is not set.
///
/// # Errors
/// [`Error::Invalid`] for a value that is no IP address.
pub fn address() -> Result<Option<IpAddr>> {
    parsed(ADDRESS, "; give an IP address without a port, such as 10.0.0.1")
}

/// Returns the two time limits: for the start of the other PEs, and for answers. `None` means no limit.
///
/// # Errors
/// [`Error::Invalid`] for a value that is no time.
pub fn timeouts() -> Result<(Option<Duration>, Option<Duration>)> {
    let limit =
        |name| parsed::<Limit>(name, "; 0 means no limit").map(|limit| limit.and_then(|limit| limit.0));
    Ok((limit(CONNECT_TIMEOUT)?, limit(ANSWER_TIMEOUT)?))
}

/// Returns true if the variable is set and not empty.
pub fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_have_fractions_and_units_of_both_cases() {
        let sizes = [("4096", 4096), ("1.5G", 3 << 29), ("64m", 64 << 20), ("0.5kb", 512), ("1T", 1 << 40)];
        for (text, bytes) in sizes {
            assert_eq!(text.parse::<HeapSize>().unwrap().0, bytes, "{text}");
        }
        assert_eq!(".25M".parse::<HeapSize>().unwrap().0, 1 << 18);
        assert_eq!("2GiB".parse::<HeapSize>().unwrap().0, 2 << 30);
        for bad in ["", "M", "-5M", "0", "1e3", "nan", "inf", "nonsense", "5Q", "1..5", "2T", "1 G", "0.0001"]
        {
            assert!(bad.parse::<HeapSize>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_refused(text in ".{0,16}") {
            let _ = text.parse::<HeapSize>();
        }
    }
}
