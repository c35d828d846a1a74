//! Checks NVMe qualified names (Base section 4.5).

use crate::command::DISCOVERY_NQN;
use crate::{Error, Result};

/// The longest name in bytes.
const MOST_BYTES: usize = 223;

/// Checks the name of a host, or of a subsystem with namespaces.
///
/// # Errors
/// [`Error::Invalid`] that says what is wrong.
pub fn check(nqn: &str) -> Result<()> {
    match nqn {
        DISCOVERY_NQN => Err(invalid(nqn, "this NQN is that of the discovery service; choose another")),
        _ => check_or_discovery(nqn),
    }
}

/// Checks the name of any subsystem. It may be that of the discovery service.
///
/// # Errors
/// As for [`check`].
pub fn check_or_discovery(nqn: &str) -> Result<()> {
    if !nqn.starts_with("nqn.") {
        Err(invalid(nqn, "an NQN starts with 'nqn.', for example nqn.2026-11.org.example:disk"))
    } else if nqn.len() > MOST_BYTES {
        Err(invalid(nqn, "an NQN has at most 223 bytes"))
    } else if nqn.chars().any(|c| c.is_control() || c.is_whitespace()) {
        Err(invalid(nqn, "an NQN contains no spaces or control characters"))
    } else {
        Ok(())
    }
}

fn invalid(nqn: &str, why: &str) -> Error {
    Error::Invalid { what: format!("NQN '{nqn}'"), why: why.into() }
}
