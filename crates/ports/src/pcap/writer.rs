//! Writes classic captures, little-endian, in micro- or nanoseconds.
//!
//! Records gather in a buffer. When the disk refuses them, those that did not get there whole are counted, and the file is
//! cut behind the last whole one, so that what is there can be read.

use super::reader::{ETHERNET, Resolution};
use inlane_core::error::Class;
use inlane_core::packet::PacketMeta;
use inlane_core::{Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Write};

/// Bytes gathered before they are written.
const BUFFER: usize = 1 << 18;
const RECORD_HEADER: usize = 16;
/// What libpcap takes for 'nothing is cut'.
const SNAP_LENGTH: u32 = 262_144;

enum Output {
    File(File),
    Stdout(std::io::Stdout),
    /// A disk with room for so many bytes.
    #[cfg(test)]
    Full(File, usize),
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Output::File(file) => file.write(bytes),
            #[cfg(test)]
            Output::Full(_, 0) => Err(ErrorKind::StorageFull.into()),
            #[cfg(test)]
            Output::Full(file, room) => {
                let count = file.write(&bytes[..bytes.len().min(*room)])?;
                *room -= count;
                Ok(count)
            }
            Output::Stdout(stdout) => stdout.write(bytes).and_then(|count| stdout.flush().map(|()| count)),
        }
    }
}

/// A capture that is written.
pub struct Writer {
    name: String,
    output: Output,
    resolution: Resolution,
    buffer: Vec<u8>,
    /// Where each record in the buffer ends.
    ends: Vec<u32>,
    /// Bytes and packets that are out.
    written_bytes: u64,
    written_packets: u64,
    lost_packets: u64,
    broken: Option<String>,
}

impl Writer {
    /// Creates `path` (or overwrites it; `-` is standard output) and writes the header; `name` is what errors call it.
    ///
    /// # Errors
    /// When it cannot be created or written.
    pub fn create(name: &str, path: &str, resolution: Resolution) -> Result<Self> {
        let output = if path == "-" {
            Output::Stdout(std::io::stdout())
        } else {
            Output::File(File::create(path).map_err(|error| {
                Error::port_environment(
                    name,
                    format!(
                        "{path} cannot be created: {error}; name a file in a directory that you may write"
                    ),
                )
            })?)
        };
        let mut writer = Self {
            name: name.into(),
            output,
            resolution,
            buffer: Vec::with_capacity(BUFFER),
            ends: Vec::with_capacity(BUFFER / 64),
            written_bytes: 0,
            written_packets: 0,
            lost_packets: 0,
            broken: None,
        };
        let magic: u32 = match resolution {
            Resolution::Micro => 0xa1b2_c3d4,
            Resolution::Nano => 0xa1b2_3c4d,
        };
        writer.buffer.extend(magic.to_le_bytes());
        writer.buffer.extend([2, 0, 4, 0]);
        writer.buffer.extend([0; 8]);
        writer.buffer.extend(SNAP_LENGTH.to_le_bytes());
        writer.buffer.extend(ETHERNET.to_le_bytes());
        writer.flush()?;
        Ok(writer)
    }

    /// Packets taken that did not get to the disk.
    pub fn lost_packets(&self) -> u64 {
        self.lost_packets
    }

    /// From now on the disk has room for `bytes` more.
    #[cfg(test)]
    pub fn fail_with(&mut self, bytes: usize) {
        let Output::File(file) = &self.output else { unreachable!("asked of files only") };
        self.output = Output::Full(file.try_clone().unwrap(), bytes);
    }

    /// Makes room for a packet of `length` bytes: writes what is buffered when there is none.
    ///
    /// # Errors
    /// When the disk refuses what is buffered.
    pub fn reserve(&mut self, length: usize) -> Result<()> {
        self.check()?;
        if self.buffer.len() + RECORD_HEADER + length > BUFFER && !self.buffer.is_empty() {
            self.flush()?;
        }
        Ok(())
    }

    /// Takes a packet, whose `length` bytes `fill` appends.
    ///
    /// # Errors
    /// For a time that the format cannot say: beyond 2106.
    pub fn record(&mut self, meta: PacketMeta, length: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let seconds = u32::try_from(meta.time_ns / 1_000_000_000).map_err(|_| Error::Port {
            port: self.name.clone(),
            why: format!(
                "a packet's time, {} ns since 1970, is beyond what the format holds (2106)",
                meta.time_ns
            ),
            class: Class::Failed,
        })?;
        let nanoseconds = (meta.time_ns % 1_000_000_000) as u32;
        let fraction = match self.resolution {
            Resolution::Micro => nanoseconds / 1000,
            Resolution::Nano => nanoseconds,
        };
        let original = if meta.wire_length != 0 { meta.wire_length } else { length as u32 };
        for word in [seconds, fraction, length as u32, original] {
            self.buffer.extend(word.to_le_bytes());
        }
        let start = self.buffer.len();
        fill(&mut self.buffer);
        debug_assert_eq!(self.buffer.len() - start, length);
        self.ends.push(self.buffer.len() as u32);
        Ok(())
    }

    /// Records that are buffered.
    pub fn buffered(&self) -> usize {
        self.ends.len()
    }

    /// Forgets what is buffered behind the first `records`.
    pub fn unwrite(&mut self, records: usize) {
        if let Some(&end) = records.checked_sub(1).and_then(|last| self.ends.get(last)) {
            self.buffer.truncate(end as usize);
        } else if records == 0 {
            self.buffer.clear();
        }
        self.ends.truncate(records);
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// When the disk refuses it, then and from then on.
    pub fn flush(&mut self) -> Result<()> {
        self.check()?;
        let mut done = 0;
        while done < self.buffer.len() {
            match self.output.write(&self.buffer[done..]) {
                Ok(0) => return Err(self.give_up(done, "it takes no more")),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.give_up(done, &error.to_string())),
            }
        }
        self.written_bytes += done as u64;
        self.written_packets += self.ends.len() as u64;
        self.buffer.clear();
        self.ends.clear();
        Ok(())
    }

    /// Notes that only `done` bytes of the buffer could be written.
    fn give_up(&mut self, done: usize, why: &str) -> Error {
        let whole = self.ends.partition_point(|&end| end as usize <= done);
        self.lost_packets += (self.ends.len() - whole) as u64;
        self.written_packets += whole as u64;
        let kept = whole.checked_sub(1).map_or(0, |last| self.ends[last] as u64);
        let file = match &self.output {
            Output::File(file) => Some(file),
            #[cfg(test)]
            Output::Full(file, _) => Some(file),
            Output::Stdout(_) => None,
        };
        if let Some(file) = file {
            // What cannot be cut off stays: a reader will name it.
            let _ = file.set_len(self.written_bytes + kept);
        }
        self.buffer.clear();
        self.ends.clear();
        let why = format!(
            "writing failed after {} packets: {why}; what is there can be read; free some space or write elsewhere",
            self.written_packets
        );
        self.broken = Some(why.clone());
        Error::port_failed(&self.name, why)
    }

    fn check(&self) -> Result<()> {
        match &self.broken {
            None => Ok(()),
            Some(why) => Err(Error::port_failed(&self.name, why)),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.broken.is_none()
            && let Err(error) = self.flush()
        {
            tracing::error!("{error}");
        }
    }
}
