//! From errors to exit statuses.

use inlane_core::error::{Class, Error};
use std::process::ExitCode;

/// The statuses, as `--help` tells them.
pub const STATUSES: &str = "\
Exit status: 0 done; 1 ran but failed (verification, threshold); 2 usage or configuration;
             3 the environment is not ready ('inlane doctor' says what to do).";

/// The machine lacks what was required.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// The error, and what caused it. Some say that in their own words: it is not said twice.
pub fn text(error: &anyhow::Error) -> String {
    let texts = error.chain().map(ToString::to_string);
    let whole = texts.reduce(|text, cause| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    });
    whole.unwrap_or_default()
}

/// Prints the error on stderr and gives its exit status.
pub fn report(error: &anyhow::Error) -> u8 {
    crate::say(format_args!("inlane: {}", text(error)));
    let class = error.chain().find_map(|cause| {
        if cause.is::<NotReady>() {
            return Some(Class::Environment);
        }
        let core = || cause.downcast_ref::<Error>().map(Error::class);
        let forward = || cause.downcast_ref::<inlane_forward::Error>().map(inlane_forward::Error::class);
        let pci = || cause.downcast_ref::<inlane_pci::Error>().map(inlane_pci::Error::class);
        let ntb = || cause.downcast_ref::<inlane_ntb::error::Error>().map(inlane_ntb::error::Error::class);
        let pgas = || cause.downcast_ref::<inlane_pgas::error::Error>().map(inlane_pgas::error::Error::class);
        let report = || cause.downcast_ref::<inlane_report::Error>().map(inlane_report::Error::class);
        core().or_else(forward).or_else(pci).or_else(ntb).or_else(pgas).or_else(report)
    });
    match class {
        Some(Class::Usage) => 2,
        Some(Class::Environment) => 3,
        Some(Class::Failed) | None => 1,
    }
}

/// Ends `main`; or the process at once, when a GPU was given up: exit handlers of the CUDA library would wait for a kernel
/// that never ends, and the system ends it with the process. What had to be written was flushed by who wrote it.
pub fn with(status: u8) -> ExitCode {
    if inlane_cuda::any_abandoned() {
        // SAFETY: ends the process without running anything of it.
        unsafe { libc::_exit(status.into()) };
    }
    ExitCode::from(status)
}
