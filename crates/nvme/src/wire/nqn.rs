//! NVMe qualified names (Base section 4.5).

/// The NQN of the discovery service.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The longest name in bytes.
pub const MOST_BYTES: usize = 223;

/// A text that is no NQN, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NQN '{nqn}': {why}")]
pub struct InvalidNqn {
    /// The text.
    pub nqn: String,
    /// Why it is no NQN, and what to give instead.
    pub why: &'static str,
}

/// Checks the name of a host, or of a subsystem with namespaces.
///
/// # Errors
/// What is wrong.
pub fn check(nqn: &str) -> Result<(), InvalidNqn> {
    match nqn {
        DISCOVERY => Err(invalid(nqn, "this NQN is that of the discovery service; choose another")),
        _ => check_or_discovery(nqn),
    }
}

/// Checks the name of any subsystem. It may be that of the discovery service.
///
/// # Errors
/// As for [`check`].
pub fn check_or_discovery(nqn: &str) -> Result<(), InvalidNqn> {
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

/// Returns the name in the zero-terminated field of a Connect. Returns `None` if it is empty, too long or not
/// printable. Other names are accepted, because some hosts use names that are no NQNs.
pub fn in_field(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&field[..end]).ok()?;
    let printable = !text.chars().any(char::is_control);
    ((1..=MOST_BYTES).contains(&end) && printable).then_some(text)
}

fn invalid(nqn: &str, why: &'static str) -> InvalidNqn {
    InvalidNqn { nqn: nqn.into(), why }
}
