//! Verification after the run: the capture that was written against the one that was read and a reference of the function.

use crate::config::{Config, Route};
use crate::error::Result;
use crate::open::kind;
use inlane_core::result::Verification;
use inlane_ports::check::{captures, reference};
use std::path::PathBuf;

/// Compares every packet of the capture that was written, with its timestamp, with what the function had to make of the
/// capture that was read. `None` where the run was not from one file to one other, ended early, or the function has no
/// reference.
///
/// # Errors
/// When one of the files cannot be read again.
pub fn captures(config: &Config) -> Result<Option<Verification>> {
    let Route::OneWay { rx, tx } = &config.route else { return Ok(None) };
    let [tx] = tx.as_slice() else { return Ok(None) };
    let whole = config.drive.packets == u64::MAX && config.duration.is_none() && !config.playback.repeat;
    if kind(rx) != "pcap" || kind(tx) != "pcap" || !whole || config.pipelines > 1 || config.faults.is_some() {
        return Ok(None);
    }
    // A pipe cannot be read twice.
    let file =
        |name: &str| name.split_once(':').map(|(_, path)| PathBuf::from(path)).filter(|path| path.is_file());
    let (Some(read), Some(written)) = (file(rx), file(tx)) else { return Ok(None) };
    let Ok(reference) = reference::find(&config.function) else { return Ok(None) };
    Ok(Some(captures::compare(&read, &written, &*reference)?))
}
