//! Maps errors to exit statuses.

use inlane_core::error::{Class, Error};
use std::process::ExitCode;

/// The exit statuses, for `--help`.
pub const STATUSES: &str = "\
Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 the machine is not ready
(run 'inlane doctor' to see how to fix it).";

/// The error of a machine that lacks something that the run requires.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// Returns the error and its causes in one line. A cause that the text already contains is not repeated.
pub fn text(error: &anyhow::Error) -> String {
    let texts = error.chain().map(ToString::to_string);
    let whole = texts.reduce(|text, cause| match text.contains(&cause) {
        true => text,
        false => format!("{text}: {cause}"),
    });
    whole.unwrap_or_default()
}

/// Prints the error to standard error. Returns its exit status.
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

/// Ends `main` with a status.
///
/// If a GPU was abandoned, ends the process at once instead, because the CUDA library's exit handlers would wait for a kernel
/// that never ends. The system ends the kernel with the process. All outputs are flushed before.
pub fn with(status: u8) -> ExitCode {
    if inlane_cuda::any_abandoned() {
        // SAFETY: _exit runs no code of this process.
        unsafe { libc::_exit(status.into()) };
    }
    ExitCode::from(status)
}
