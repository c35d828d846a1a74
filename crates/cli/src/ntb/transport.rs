//! The choice of the transport by flags, and what the subcommands say about the transports that they do not use.

use inlane_core::setting::Choice;
use inlane_pgas::error::Result;
use inlane_pgas::transport::select::TransportKind;
use inlane_result::{NotTaken, Reason};

/// Returns the transport that `flag` or else the environment asks for, or the default one.
///
/// # Errors
/// If the environment variable names no transport.
pub fn chosen(flag: Option<TransportKind>) -> Result<TransportKind> {
    match flag {
        Some(kind) => Ok(kind),
        None => Ok(TransportKind::asked_for()?.unwrap_or_default()),
    }
}

/// Returns all transports that satisfy `condition`.
fn all(condition: impl Fn(TransportKind) -> bool) -> impl Iterator<Item = TransportKind> {
    TransportKind::CHOICES.iter().map(|(kind, ..)| *kind).filter(move |kind| condition(*kind))
}

/// Returns the flags that choose the transports which satisfy `condition`, as text: `--transport ucx`.
pub fn flags(condition: impl Fn(TransportKind) -> bool) -> String {
    let flags: Vec<_> = all(condition).map(|kind| format!("--transport {kind}")).collect();
    flags.join(" or ")
}

/// Returns the transports other than `used`, each with the reason why it is not used.
pub fn not_taken(used: TransportKind) -> impl Iterator<Item = NotTaken> {
    all(move |kind| kind != used).map(|kind| {
        let why = match kind.has_windows() {
            true => format!("it joins the PEs of one machine only; for them, choose --transport {kind}"),
            false => format!("not requested; PEs on several machines need it: --transport {kind}"),
        };
        NotTaken { path: kind.to_string(), why: Reason::unavailable(why) }
    })
}
