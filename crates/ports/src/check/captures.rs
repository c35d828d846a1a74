//! Compares a written capture with the capture that was read. The written capture must contain every packet
//! that was read, in the same order. Each packet must keep its timestamp and its length on the wire. Its
//! bytes must be those that the packet function produces.

use super::reference::ReferenceFunction;
use crate::pcap::reader::{CaptureReader, Resolution};
use inlane_core::verification::Verification;
use inlane_core::{Error, Result};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// The compared properties of a packet. A packet matches if they are equal in both captures.
#[derive(PartialEq, Eq, Hash)]
struct Entry {
    time_ns: u64,
    wire_length: u32,
    bytes: Vec<u8>,
}

impl Entry {
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// How many recent packets are remembered to recognise duplicates. An older duplicate counts as altered.
const REMEMBERED: usize = 1 << 16;

/// Compares the capture `output` with the expected packets. `reference` produces the expected packets from
/// the packets of the capture `input`.
///
/// # Errors
/// If one of the captures cannot be read to its end.
pub fn compare(input: &Path, output: &Path, reference: &dyn ReferenceFunction) -> Result<Verification> {
    let open = |path: &Path| -> Result<CaptureReader> {
        let name = format!("pcap:{}", path.display());
        let file = File::open(path)
            .map_err(|error| Error::port_environment(&name, format!("cannot read it again: {error}")))?;
        let mut reader = CaptureReader::new(&name, Box::new(file));
        reader.read_header()?;
        Ok(reader)
    };
    let (input, mut output) = (open(input)?, open(output)?);
    let mut expected = Expected { input, reference, count: 0 };
    let mut verification = Verification {
        method: format!("every packet of the capture against the reference function {}", reference.name()),
        ..Verification::default()
    };
    let mut recent = VecDeque::new();
    loop {
        let found = next(&mut output)?;
        let wanted = expected.next(&output)?;
        verification.checked += found.is_some() as u64;
        match (wanted, found) {
            (None, None) => break,
            (Some(wanted), Some(found)) if wanted == found => {
                if recent.len() == REMEMBERED {
                    recent.pop_front();
                }
                recent.push_back(found.digest());
            }
            (wanted, found) => {
                compare_rest(wanted, found, &mut expected, &mut output, recent, &mut verification)?;
                break;
            }
        }
    }
    verification.expected = Some(expected.count);
    Ok(verification)
}

/// Compares the two captures from their first difference to their ends.
fn compare_rest(
    mut wanted: Option<Entry>,
    mut found: Option<Entry>,
    expected: &mut Expected,
    output: &mut CaptureReader,
    recent: VecDeque<u64>,
    verification: &mut Verification,
) -> Result<()> {
    // Collect, by digest, the positions of the expected packets that were not found yet.
    let mut missing: HashMap<u64, VecDeque<u64>> = HashMap::new();
    let mut known: HashSet<u64> = recent.into_iter().collect();
    let mut position = 0u64;
    while let Some(entry) = wanted {
        missing.entry(entry.digest()).or_default().push_back(position);
        known.insert(entry.digest());
        position += 1;
        wanted = expected.next(output)?;
    }
    let mut furthest = None;
    while let Some(entry) = found {
        let digest = entry.digest();
        match missing.get_mut(&digest).and_then(VecDeque::pop_front) {
            Some(position) => {
                verification.reordered += (Some(position) < furthest) as u64;
                furthest = furthest.max(Some(position));
            }
            None if known.contains(&digest) => verification.duplicated += 1,
            None => verification.altered += 1,
        }
        found = next(output)?;
        verification.checked += found.is_some() as u64;
    }
    let missing: u64 = missing.values().map(|positions| positions.len() as u64).sum();
    // An altered packet is missing in its expected form, but is not lost. So subtract the altered packets
    // from the missing ones.
    verification.lost = missing.saturating_sub(verification.altered);
    Ok(())
}

fn next(reader: &mut CaptureReader) -> Result<Option<Entry>> {
    let Some(record) = reader.peek()? else { return Ok(None) };
    let entry = Entry {
        time_ns: record.time_ns,
        wire_length: record.wire_length,
        bytes: reader.data(&record).to_vec(),
    };
    reader.consume();
    Ok(Some(entry))
}

/// The packets that the output must contain, computed from the input capture by the reference function.
struct Expected<'a> {
    input: CaptureReader,
    reference: &'a dyn ReferenceFunction,
    /// The number of packets that `next` has returned.
    count: u64,
}

impl Expected<'_> {
    /// Returns the next packet expected in `output`, with its timestamp rounded down to the resolution of
    /// `output`. Skips packets that the reference does not send to port 0.
    fn next(&mut self, output: &CaptureReader) -> Result<Option<Entry>> {
        let unit_ns = match output.resolution() {
            Resolution::Micro => 1000,
            Resolution::Nano => 1,
        };
        while let Some(mut entry) = next(&mut self.input)? {
            if self.reference.apply(&mut entry.bytes).arrives_at(0) {
                entry.time_ns = entry.time_ns / unit_ns * unit_ns;
                self.count += 1;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
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
    fn differences_are_classified() {
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
        assert!(compared(&[1, 2], &[1, 2], "macswap").passed(), "all bytes are equal");
        let dropped = compared(&[1, 2], &[], "drop-rule:all");
        assert!(dropped.passed() && dropped.expected == Some(0), "{dropped:?}");
        assert_eq!(compared(&[1, 2], &[1], "io").expected, Some(2));
    }
}
