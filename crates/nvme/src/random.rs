//! Random numbers of the system, for secrets and identifiers.

use std::io::{Error, ErrorKind};

/// Fills `bytes`, at most 256, with random numbers of the system. While the machine boots, blocks until the kernel has
/// collected enough of them.
///
/// # Panics
/// If the kernel refuses the system call, which only a seccomp profile can cause.
pub fn fill(bytes: &mut [u8]) {
    fill_by(bytes, |bytes| {
        // SAFETY: the call writes at most the slice's bytes. The system fills up to 256 bytes completely.
        let written = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if written == bytes.len() as isize { Ok(()) } else { Err(Error::last_os_error()) }
    });
}

/// Calls `getrandom` again if a signal has interrupted it.
fn fill_by(bytes: &mut [u8], mut getrandom: impl FnMut(&mut [u8]) -> std::io::Result<()>) {
    while let Err(error) = getrandom(bytes) {
        let interrupted = error.kind() == ErrorKind::Interrupted;
        assert!(
            interrupted,
            "cannot read random numbers: {error}; allow getrandom in the seccomp profile of the container"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_call_is_repeated() {
        let (mut bytes, mut calls) = ([0; 4], 0);
        fill_by(&mut bytes, |bytes| {
            calls += 1;
            bytes.fill(calls);
            if calls < 3 { Err(Error::from_raw_os_error(libc::EINTR)) } else { Ok(()) }
        });
        assert_eq!(bytes, [3; 4]);
    }

    #[test]
    #[should_panic = "allow getrandom in the seccomp profile"]
    fn a_refused_call_names_the_remedy() {
        fill_by(&mut [0; 4], |_| Err(Error::from_raw_os_error(libc::EPERM)));
    }
}
