//! Random numbers of the system, for secrets and identifiers.

use crate::{Error, Result};

/// Fills `bytes`, at most 256, with random numbers of the system.
///
/// # Errors
/// If the system has none.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    // SAFETY: the call writes at most the slice's bytes. The system fills up to 256 bytes completely.
    let written = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if written == bytes.len() as isize {
        return Ok(());
    }
    let source = std::io::Error::last_os_error();
    Err(Error::Os { what: "cannot read random numbers".into(), source })
}
