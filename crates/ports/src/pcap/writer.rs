//! Writes classic captures: little-endian, with micro- or nanoseconds.
//!
//! Records are buffered. After an error, the file is truncated behind the last whole record, and the other
//! records count as lost.

use super::output::{Output, refused};
use super::reader::{ETHERNET, Resolution};
use inlane_core::error::Class;
use inlane_core::packet::PacketMeta;
use inlane_core::setting::Subject;
use inlane_core::{Error, Result, units};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The size of the write buffer in bytes. A full buffer is written to the output.
const BUFFER: usize = 1 << 18;
const HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// libpcap's snap length for captures of whole packets, in bytes.
const SNAP_LENGTH: u32 = 262_144;
/// The latest time that a classic capture can represent (year 2106), in nanoseconds since the epoch.
pub const MAX_TIME_NS: u64 = (u32::MAX as u64 + 1) * 1_000_000_000 - 1;

/// A resolution that becomes known when the header of a piped source has arrived.
pub type SharedResolution = Arc<OnceLock<Resolution>>;

/// Counts the lost packets of one queue: packets that the writer accepted but could not write.
#[derive(Debug, Default)]
pub struct LostPackets {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl LostPackets {
    /// Returns the number of lost packets.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes in the lost packets.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A record in the buffer.
struct Buffered {
    /// The offset in the buffer at which the record ends.
    end: u32,
    /// The queue that the record's packet came from.
    queue: u32,
}

/// Writes packets to a capture.
///
/// Opening the writer changes no file. The first packet, [`CaptureWriter::begin`] or [`CaptureWriter::flush`]
/// replaces the file's content.
pub struct CaptureWriter {
    name: Subject,
    output: Output,
    begun: bool,
    resolution: SharedResolution,
    /// The resolution in the capture's header. `None` until the header is in the buffer.
    header: Option<Resolution>,
    buffer: Vec<u8>,
    /// The number of bytes at the start of the buffer that have already been written to the output.
    written: usize,
    /// The offset of the first record in the buffer: after the header, or 0 if the header was written.
    first_record: usize,
    records: Vec<Buffered>,
    /// The number of bytes written to the output so far, without the bytes still in the buffer. It is
    /// therefore the offset of the buffer in the capture.
    written_before: u64,
    written_packets: u64,
    queues: Vec<Arc<LostPackets>>,
    /// Why the capture ended after an error, and true if its reader closed the pipe.
    broken: Option<(String, bool)>,
}

impl CaptureWriter {
    /// Opens the capture at `path`, or standard output for `-`. Error messages call the capture `name`.
    ///
    /// # Errors
    /// If the path can be neither opened nor created.
    pub fn open(name: impl Into<Subject>, path: &str, resolution: SharedResolution) -> Result<Self> {
        let name = name.into();
        Ok(Self {
            output: Output::open(&name, path)?,
            name,
            begun: false,
            resolution,
            header: None,
            buffer: Vec::with_capacity(BUFFER),
            written: 0,
            first_record: 0,
            records: Vec::with_capacity(BUFFER / 64),
            written_before: 0,
            written_packets: 0,
            queues: Vec::new(),
            broken: None,
        })
    }

    /// Opens the capture at `path` with a known resolution.
    ///
    /// # Errors
    /// As for [`CaptureWriter::open`].
    pub fn create(name: impl Into<Subject>, path: &str, resolution: Resolution) -> Result<Self> {
        Self::open(name, path, Arc::new(OnceLock::from(resolution)))
    }

    /// Adds a queue. Returns its number for [`CaptureWriter::record`], and the count of its lost packets.
    pub fn add_queue(&mut self) -> (u32, Arc<LostPackets>) {
        let lost = Arc::<LostPackets>::default();
        self.queues.push(lost.clone());
        (self.queues.len() as u32 - 1, lost)
    }

    /// Empties the output, and writes the capture's header if the resolution of its timestamps is known. Does
    /// nothing if called again.
    ///
    /// # Errors
    /// If the output cannot be emptied or written, for example because the disk is full.
    pub fn begin(&mut self) -> Result<()> {
        if self.begun {
            return Ok(());
        }
        self.begun = true;
        if let Err(error) = self.output.begin() {
            return Err(self.give_up(error.into()));
        }
        if self.resolution.get().is_some() {
            self.flush()?;
        }
        Ok(())
    }

    /// Returns true once writing has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Returns true once [`CaptureWriter::begin`] was called. The file may then have lost its earlier
    /// content.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Simulates a disk that is full after `bytes` more bytes.
    #[cfg(test)]
    pub(super) fn fail_after(&mut self, bytes: usize) {
        self.output.fail_after(bytes);
    }

    /// Makes room in the buffer for a packet of `length` bytes. Writes the buffered records first if
    /// necessary.
    ///
    /// Returns false if the output's reader must take bytes first. An empty buffer has room for any packet.
    ///
    /// # Errors
    /// If the output refuses the records.
    pub fn reserve(&mut self, length: usize) -> Result<bool> {
        self.check()?;
        if !self.begun {
            self.begin()?;
        }
        if self.buffer.len() + RECORD_HEADER + length <= BUFFER || self.buffer.is_empty() {
            return Ok(true);
        }
        self.write_buffer()
    }

    /// Buffers a packet of queue `queue`. `fill` appends its `length` bytes.
    ///
    /// # Errors
    /// If the packet's time exceeds [`MAX_TIME_NS`].
    pub fn record(
        &mut self,
        queue: u32,
        meta: PacketMeta,
        length: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<()> {
        let seconds = u32::try_from(meta.time_ns / 1_000_000_000).map_err(|_| {
            let why = format!(
                "a packet has time {} ns after 1970, and the format ends in 2106; shift the timestamps: editcap -t",
                meta.time_ns
            );
            refused(&self.name, Class::Failed, why)
        })?;
        let nanoseconds = (meta.time_ns % 1_000_000_000) as u32;
        let fraction = match self.header() {
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
        self.records.push(Buffered { end: self.buffer.len() as u32, queue });
        Ok(())
    }

    /// Returns the resolution of this capture. The first call puts the header into the buffer.
    #[inline]
    fn header(&mut self) -> Resolution {
        match self.header {
            Some(resolution) => resolution,
            None => self.write_header(),
        }
    }

    #[cold]
    fn write_header(&mut self) -> Resolution {
        let resolution = self.resolution.get().copied().unwrap_or(Resolution::Nano);
        let magic: u32 = match resolution {
            Resolution::Micro => 0xa1b2_c3d4,
            Resolution::Nano => 0xa1b2_3c4d,
        };
        self.buffer.extend(magic.to_le_bytes());
        self.buffer.extend([2, 0, 4, 0]);
        self.buffer.extend([0; 8]);
        self.buffer.extend(SNAP_LENGTH.to_le_bytes());
        self.buffer.extend(ETHERNET.to_le_bytes());
        self.first_record = HEADER;
        self.header = Some(resolution);
        resolution
    }

    /// Returns the number of buffered records.
    pub fn buffered(&self) -> usize {
        self.records.len()
    }

    /// Keeps the first `records` buffered records and removes all later ones. The removed records must have
    /// been buffered since the last [`CaptureWriter::reserve`].
    pub fn remove_after(&mut self, records: usize) {
        let end = match records.checked_sub(1).and_then(|last| self.records.get(last)) {
            Some(record) => record.end as usize,
            None if records == 0 => self.first_record,
            None => return,
        };
        self.buffer.truncate(end);
        self.records.truncate(records);
    }

    /// Writes the header and the buffered records. Returns false if records remain because the output is a
    /// pipe that is full or has no reader yet.
    ///
    /// # Errors
    /// If the output refuses the bytes. Every later call returns the error again.
    pub fn flush(&mut self) -> Result<bool> {
        self.check()?;
        self.begin()?;
        self.header();
        self.write_buffer()
    }

    /// Writes the buffered records. Waits for a slow reader as long as `keep_waiting` returns true.
    ///
    /// # Errors
    /// If the output refuses the records, or if records remain when the wait ends. The remaining records are
    /// lost.
    pub fn finish(&mut self, keep_waiting: &mut dyn FnMut() -> bool) -> Result<()> {
        while !self.flush()? {
            if !keep_waiting() {
                return self.abandon();
            }
            self.output.wait(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Gives up the buffered records: counts their packets as lost and returns an error.
    fn abandon(&mut self) -> Result<()> {
        let packets = self.records.len();
        let error = self.give_up(match self.output.awaits_reader() {
            true => Stopped::NoReader,
            false => Stopped::StalledReader,
        });
        if packets == 0 { Ok(()) } else { Err(error) }
    }

    /// Writes as much of the buffer as the output accepts. Returns true if nothing remains.
    fn write_buffer(&mut self) -> Result<bool> {
        while self.written < self.buffer.len() {
            match self.output.write(&self.buffer[self.written..]) {
                Ok(0) => return Err(self.give_up(Stopped::Full(ErrorKind::StorageFull.into()))),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(self.give_up(error.into())),
            }
        }
        self.written_packets += self.records.len() as u64;
        self.clear();
        Ok(true)
    }

    fn clear(&mut self) {
        self.written_before += self.written as u64;
        self.written = 0;
        self.first_record = 0;
        self.buffer.clear();
        self.records.clear();
    }

    /// Ends the capture after an error. Counts buffered records that were not written whole as lost, and
    /// refuses all further packets.
    fn give_up(&mut self, stopped: Stopped) -> Error {
        let whole = self.records.partition_point(|record| record.end as usize <= self.written);
        self.written_packets += whole as u64;
        let mut start = match whole.checked_sub(1) {
            Some(last) => self.records[last].end as usize,
            None => self.first_record,
        };
        let kept = start.min(self.written);
        for record in &self.records[whole..] {
            if let Some(lost) = self.queues.get(record.queue as usize) {
                lost.packets.fetch_add(1, Ordering::Relaxed);
                lost.bytes.fetch_add((record.end as usize - start - RECORD_HEADER) as u64, Ordering::Relaxed);
            }
            start = record.end as usize;
        }
        self.output.cut(self.written_before + kept as u64);
        self.clear();
        let why = match self.written_packets {
            0 => format!("cannot be written: {stopped}"),
            packets => {
                let packets = units::counted(packets, "packet");
                format!("writing failed after {packets}: {stopped}; the packets written can be read")
            }
        };
        let error = refused(&self.name, Class::Failed, why.clone());
        self.broken = Some((why, matches!(stopped, Stopped::Closed)));
        error.caused_by(stopped)
    }

    fn check(&self) -> Result<()> {
        match &self.broken {
            None => Ok(()),
            Some((why, is_closed)) => {
                let error = refused(&self.name, Class::Failed, why.clone());
                Err(if *is_closed { error.caused_by(Stopped::Closed) } else { error })
            }
        }
    }
}

/// Why an output accepts no more bytes, with the remedy.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error("no process opened it for reading")]
    NoReader,
    #[error("its reader stopped reading")]
    StalledReader,
    #[error("its reader closed the pipe")]
    Closed,
    #[error("{0}; free some space or write elsewhere")]
    Full(#[source] std::io::Error),
    #[error("{0}; name another file")]
    Refused(#[source] std::io::Error),
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Stopped::Closed,
            ErrorKind::StorageFull => Stopped::Full(error),
            _ => Stopped::Refused(error),
        }
    }
}

/// Returns true for the error of a capture whose reader closed the pipe.
pub fn is_closed_by_reader(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(Stopped::Closed))
}

impl Drop for CaptureWriter {
    fn drop(&mut self) {
        // Write as many of the buffered packets as the output accepts now. Only log an error, because `drop`
        // cannot return it. Callers that need the error call `finish` before.
        if self.begun
            && self.broken.is_none()
            && let Err(error) = self.finish(&mut || false)
        {
            tracing::error!("{error}");
        }
    }
}
