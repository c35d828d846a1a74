//! Verification after the run: the capture that was written against the one that was read and a reference of the function.

use crate::config::{Config, Route};
use crate::error::Result;
use crate::open::kind;
use crate::ports::check::reference::{self, Fate};
use crate::ports::pcap::reader::Reader;
use inlane_core::Error;
use inlane_core::result::Verification;
use std::fs::File;

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
    let (Some(mut read), Some(mut written)) = (reopen(rx)?, reopen(tx)?) else { return Ok(None) };
    let Ok(reference) = reference::find(&config.function) else { return Ok(None) };
    let mut found = Verification {
        method: format!("every packet and timestamp of {tx} against a reference {}", reference.name()),
        ..Verification::default()
    };
    while let Some(record) = read.peek()? {
        let mut expected = read.data(&record).to_vec();
        let fate = reference.apply(&mut expected);
        read.consume();
        found.checked += 1;
        if fate != Fate::Forwarded {
            continue;
        }
        match written.peek()? {
            None => found.lost += 1,
            Some(found_record) => {
                let same = written.data(&found_record) == expected && found_record.time_ns == record.time_ns;
                found.altered += !same as u64;
                written.consume();
            }
        }
    }
    while written.peek()?.is_some() {
        found.duplicated += 1;
        written.consume();
    }
    Ok(Some(found))
}

fn reopen(name: &str) -> Result<Option<Reader>> {
    let path = name.split_once(':').map_or("", |(_, path)| path);
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        // A pipe cannot be read twice.
        _ => return Ok(None),
    }
    let file = File::open(path)
        .map_err(|source| Error::Os { what: format!("open {path} again to verify it"), source })?;
    Ok(Some(Reader::new(name, Box::new(file))?))
}
