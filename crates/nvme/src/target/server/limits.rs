//! Binds threads to cores.

use crate::field::CORES;
use crate::{Error, Result};

/// Binds the calling thread to a core.
pub(super) fn bind(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    inlane_core::cores::bind(&[core]).map_err(|_| {
        let allowed = inlane_core::cores::refused(&[core]).map(|(_, why)| why);
        let why = allowed.unwrap_or_else(|| "this process may not use it; choose another".into());
        Error::invalid(format!("{CORES}: core {core}"), why)
    })
}
