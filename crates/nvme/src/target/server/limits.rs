//! Binds threads to cores, and raises the limit of open files.

use crate::field::CORES;
use crate::{Error, Result};

/// Binds the calling thread to a core.
pub(super) fn bind(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    inlane_core::cores::bind(&[core]).map_err(|_| {
        let allowed = inlane_core::cores::refused(&[core]).map(|(_, why)| why);
        let why = allowed.unwrap_or_else(|| "this process may not use it; choose another".into());
        Error::Invalid { what: format!("{CORES}: core {core}"), why }
    })
}

/// Raises the limit of open files as far as allowed. Returns the limit.
pub(super) fn raise_descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the calls read and write the structure only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                limit = raised;
            }
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}
