//! Random numbers of the system, for secrets and identifiers.

/// Fills `bytes`, at most 256, with random numbers of the system.
///
/// # Panics
/// If the system has none. Linux always has, because this call waits until it has collected enough of them.
pub fn fill(bytes: &mut [u8]) {
    // SAFETY: the call writes at most the slice's bytes. The system fills up to 256 bytes completely.
    let written = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(written, bytes.len() as isize, "random numbers: {}", std::io::Error::last_os_error());
}
