//! Verifies a run from one capture to another. After the run, compares the written capture with the capture
//! that was read.

use crate::config::{Config, Route};
use crate::error::Result;
use crate::reference::Reference;
use inlane_core::verification::Verification;
use inlane_ports::check::captures;
use inlane_ports::spec::PortSpec;

/// Compares the packets and timestamps of the written capture with the expected ones. The expected packets
/// come from the capture that was read and the packet function's reference.
///
/// Returns `None` in these cases:
///
/// - The run was not from one capture file to another, or did not cover the whole capture.
/// - It had several pipelines or injected faults.
/// - The function has no reference.
///
/// # Errors
/// When one of the files cannot be read again.
pub fn captures(config: &Config) -> Result<Option<Verification>> {
    let Route::OneWay { rx, tx } = &config.route else { return Ok(None) };
    let [tx] = tx.as_slice() else { return Ok(None) };
    let whole =
        config.per_pipeline.packets == u64::MAX && config.duration.is_none() && !config.playback.repeat;
    if !whole || config.pipelines > 1 || config.faults.is_some() {
        return Ok(None);
    }
    // Compare regular files only, because a pipe cannot be read twice.
    let file = |port: &'_ PortSpec| port.file().filter(|path| path.is_file()).map(ToOwned::to_owned);
    let (Some(read), Some(written)) = (file(rx), file(tx)) else { return Ok(None) };
    let Some(reference) = Reference::of(config)? else { return Ok(None) };
    if let Some(own) = &reference.own {
        own.load()?;
    }
    Ok(Some(captures::compare(&read, &written, &*reference.function)?))
}
