//! Compares a capture that was written with the one that was read: every packet, in order, as the packet function has to make
//! it, with its timestamp and its length on the wire.

use super::reference::Reference;
use crate::pcap::reader::{CaptureReader, Resolution};
use inlane_core::result::Verification;
use inlane_core::{Error, Result};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// What has to be equal of a packet.
#[derive(PartialEq, Eq, Hash)]
struct Seen {
    time_ns: u64,
    wire_length: u32,
    bytes: Vec<u8>,
}

impl Seen {
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Packets behind which one that comes again is still known, while nothing else was wrong; later it counts as altered.
const REMEMBERED: usize = 1 << 16;

/// Compares `output` with what `reference` makes of `input`.
///
/// While packets are equal only the digests of the last of them are kept. From the first that differs on, every packet still to
/// come is known by its digest, which tells what is missing from what came twice, late, or changed.
///
/// # Errors
/// When one of the two cannot be read to its end.
pub fn compare(input: &Path, output: &Path, reference: &dyn Reference) -> Result<Verification> {
    let open = |path: &Path| -> Result<CaptureReader> {
        let name = format!("pcap:{}", path.display());
        let file = File::open(path)
            .map_err(|error| Error::port_environment(&name, format!("it cannot be read again: {error}")))?;
        Ok(CaptureReader::new(&name, Box::new(file)))
    };
    let (mut input, mut output) = (open(input)?, open(output)?);
    let mut verification = Verification {
        method: format!("every packet of the capture against a reference {}", reference.name()),
        ..Verification::default()
    };
    let unit = move |output: &CaptureReader| if output.resolution() == Resolution::Micro { 1000 } else { 1 };
    let mut expect = |unit: u64| expected(&mut input, reference, unit);
    let mut recent = VecDeque::new();
    loop {
        let found = next(&mut output)?;
        // What microseconds cannot say need not come back.
        let expected = expect(unit(&output))?;
        verification.checked += found.is_some() as u64;
        match (expected, found) {
            (None, None) => return Ok(verification),
            (Some(expected), Some(found)) if expected == found => {
                if recent.len() == REMEMBERED {
                    recent.pop_front();
                }
                recent.push_back(found.digest());
            }
            (expected, found) => {
                let mut missing: HashMap<u64, VecDeque<u64>> = HashMap::new();
                let mut known: HashSet<u64> = recent.into_iter().collect();
                let mut position = 0u64;
                let mut expected = expected;
                while let Some(seen) = expected {
                    missing.entry(seen.digest()).or_default().push_back(position);
                    known.insert(seen.digest());
                    position += 1;
                    expected = expect(unit(&output))?;
                }
                let (mut found, mut furthest, mut altered) = (found, None, 0u64);
                while let Some(seen) = found {
                    let digest = seen.digest();
                    match missing.get_mut(&digest).and_then(VecDeque::pop_front) {
                        Some(at) => {
                            verification.reordered += (Some(at) < furthest) as u64;
                            furthest = furthest.max(Some(at));
                        }
                        None if known.contains(&digest) => verification.duplicated += 1,
                        None => altered += 1,
                    }
                    found = next(&mut output)?;
                    verification.checked += found.is_some() as u64;
                }
                let left: u64 = missing.values().map(|positions| positions.len() as u64).sum();
                verification.altered = altered;
                // One that came changed is not missing too.
                verification.lost = left.saturating_sub(altered);
                return Ok(verification);
            }
        }
    }
}

fn next(reader: &mut CaptureReader) -> Result<Option<Seen>> {
    let Some(record) = reader.peek()? else { return Ok(None) };
    let seen = Seen {
        time_ns: record.time_ns,
        wire_length: record.wire_length,
        bytes: reader.data(&record).to_vec(),
    };
    reader.consume();
    Ok(Some(seen))
}

/// The next packet that has to come.
fn expected(input: &mut CaptureReader, reference: &dyn Reference, unit: u64) -> Result<Option<Seen>> {
    while let Some(mut seen) = next(input)? {
        if reference.apply(&mut seen.bytes).arrives_at(0) {
            seen.time_ns = seen.time_ns / unit * unit;
            return Ok(Some(seen));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::reference;
    use super::*;
    use crate::pcap::writer::CaptureWriter;
    use inlane_core::packet::PacketMeta;

    fn compared(before: &[u8], after: &[u8], function: &str) -> Verification {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["in", "out"].map(|name| folder.path().join(name));
        for (path, packets) in paths.iter().zip([before, after]) {
            let mut writer =
                CaptureWriter::create("pcap:x", path.to_str().unwrap(), Resolution::Micro).unwrap();
            writer.begin().unwrap();
            for &value in packets {
                let meta = PacketMeta { time_ns: value as u64 * 1000, ..PacketMeta::default() };
                writer.record(0, meta, 60, |buffer| buffer.extend([value; 60])).unwrap();
            }
        }
        compare(&paths[0], &paths[1], &*reference::find(function).unwrap()).unwrap()
    }

    #[test]
    fn what_became_of_packets() {
        let counts = |after: &[u8]| {
            let found = compared(&[1, 2, 3, 4, 5, 6], after, "io");
            (found.checked, found.lost, found.duplicated, found.reordered, found.altered)
        };
        assert_eq!(counts(&[1, 2, 3, 4, 5, 6]), (6, 0, 0, 0, 0));
        assert_eq!(counts(&[1, 2, 4, 5]), (4, 2, 0, 0, 0));
        assert_eq!(counts(&[1, 2, 2, 3, 4, 5, 6]), (7, 0, 1, 0, 0));
        assert_eq!(counts(&[1, 3, 2, 4, 5, 6]), (6, 0, 0, 1, 0));
        assert_eq!(counts(&[1, 9, 3, 4, 5, 6]), (6, 0, 0, 0, 1));
        assert_eq!(counts(&[]), (0, 6, 0, 0, 0));
        assert!(compared(&[1, 2], &[1, 2], "macswap").passed(), "all bytes are alike");
        assert_eq!(compared(&[1, 2], &[], "drop-rule:all").lost, 0);
    }
}
