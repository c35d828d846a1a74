//! The source of captures: a port that plays a capture.

use super::file::FileId;
use super::reader::{CaptureReader, Record, Resolution};
use super::writer::{MAX_TIME_NS, SharedResolution};
use super::{CaptureSpec, CaptureSummary, Pace, Playback, info};
use crate::field::ROOM;
use crate::generate::require_cpu_memory;
use inlane_core::clock::Clock;
use inlane_core::packet::PacketMeta;
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// The longest frame expected from a pipe, in bytes. For longer frames, the user must set the room of packets.
const JUMBO: usize = 9216;
/// The time in nanoseconds from the last packet of a lap to the first packet of the next lap, if a capture
/// repeats.
const LAP_GAP_NS: u64 = 1000;

/// A port that plays a capture: its packets are received from the port.
pub struct CaptureSource {
    info: PortInfo,
    /// The file of the capture. The reader has a duplicate of this descriptor, so both share one file
    /// position. `None` if the capture is a pipe or standard input.
    file: Option<File>,
    file_id: Option<FileId>,
    summary: Option<CaptureSummary>,
    resolution: SharedResolution,
    reader: Option<CaptureReader>,
    playback: Playback,
    queue: Option<CaptureRx>,
}

impl CaptureSource {
    /// Opens the capture `text`. See [`CaptureSource::new`].
    ///
    /// # Errors
    /// As for [`CaptureSpec::parse`] and [`CaptureSource::new`].
    pub fn open(text: &str, playback: Playback) -> Result<Self> {
        Self::new(&CaptureSpec::parse(text)?, playback)
    }

    /// Opens a capture to play it. If it is a regular file, reads it once to summarize it. If it is a named pipe,
    /// does not wait for a writer to open it.
    ///
    /// # Errors
    /// If the file does not exist or is not a capture of Ethernet packets, or if `playback` demands that a
    /// pipe repeats.
    pub fn new(spec: &CaptureSpec, playback: Playback) -> Result<Self> {
        let CaptureSpec { text, path } = spec;
        let refused = |error: std::io::Error| {
            let why = format!("cannot read {path}: {error}; name a capture that you may read");
            Error::port_environment(text, why).caused_by(error)
        };
        let file: File = if spec.is_standard() {
            std::io::stdin().as_fd().try_clone_to_owned().map_err(refused)?.into()
        } else {
            // Set NONBLOCK. Without it, opening a named pipe blocks until a writer opens the pipe.
            let flags = OFlags::NONBLOCK.bits() as i32;
            OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(refused)?
        };
        let kind = file.metadata().map_err(refused)?;
        if kind.is_dir() {
            return Err(Error::port_usage(text, "it is a directory; name a capture in it"));
        }
        let mut source = Self {
            info: info(text, 1),
            file_id: FileId::of_file(&file),
            file: None,
            summary: None,
            resolution: SharedResolution::default(),
            reader: None,
            playback,
            queue: None,
        };
        if !spec.is_standard() && kind.is_file() {
            source.scan(file)?;
        } else if playback.repeat {
            return Err(Error::port_usage(text, "standard input and pipes cannot be repeated; give a file"));
        } else {
            source.reader = Some(CaptureReader::new(text, Box::new(Pipe { file })));
        }
        Ok(source)
    }

    /// Reads the whole file to set `summary`, then rewinds the file.
    fn scan(&mut self, mut file: File) -> Result<()> {
        let text = &self.info.name;
        let input = file
            .try_clone()
            .map_err(|source| Error::Os { what: format!("cannot open {text} a second time"), source })?;
        let mut reader = CaptureReader::new(text, Box::new(input));
        reader.read_header()?;
        let (mut longest, mut latest_ns) = (0, 0);
        // Damage ends the scan. It is reported when the packets before it have been played.
        while let Ok(Some(record)) = reader.peek() {
            longest = longest.max(record.length());
            latest_ns = latest_ns.max(record.time_ns);
            reader.consume();
        }
        let resolution = reader.resolution();
        self.summary = Some(CaptureSummary { packets: reader.packets(), longest, latest_ns, resolution });
        let _ = self.resolution.set(resolution);
        reader.restart(&mut file)?;
        self.reader = Some(reader);
        self.file = Some(file);
        Ok(())
    }

    /// Returns the bytes that buffers must hold: the file's longest packet, or a jumbo frame for a pipe.
    pub fn longest(&self) -> usize {
        self.summary.map_or(JUMBO, |summary| summary.longest)
    }

    /// Returns what scanning the file found, or `None` for a pipe.
    #[cfg(test)]
    pub(super) fn summary(&self) -> Option<CaptureSummary> {
        self.summary
    }

    /// Returns the resolution of the timestamps. For pcapng it is nanoseconds. If the source is a pipe, the
    /// resolution is set when the capture's header has arrived.
    pub fn resolution(&self) -> &SharedResolution {
        &self.resolution
    }

    /// Returns the identity of the file, even if the file is standard input. Returns `None` for a pipe.
    pub fn file_id(&self) -> Option<FileId> {
        self.file_id
    }
}

/// A pipe, whose writer may pause. Reading it never blocks.
struct Pipe {
    file: File,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // Poll first. If no writer has opened the named pipe yet, a read would look like the end of the
        // input.
        if poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&Timespec::default()))? == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.file.read(buffer)
    }
}

impl Port for CaptureSource {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if tx_queues > 0 {
            let why = "this run reads the capture; name another file to send to";
            return Err(Error::port_usage(&self.info.name, why));
        }
        let [pool] = pools else {
            return Err(Error::port_usage(&self.info.name, "a capture has one queue; use one pipeline"));
        };
        require_cpu_memory(&self.info.name, pool)?;
        if let Some(summary) = self.summary.filter(|summary| summary.longest > pool.room()) {
            return Err(Error::port_usage(&self.info.name, too_long(summary.longest, pool.room())));
        }
        let Some(reader) = self.reader.take() else {
            return Err(Error::port_usage(&self.info.name, "it is already configured"));
        };
        self.queue = Some(CaptureRx {
            name: self.info.name.clone(),
            reader,
            repeated: match self.playback.repeat {
                true => self.file.take(),
                false => None,
            },
            latest_ns: self.summary.map_or(0, |summary| summary.latest_ns),
            resolution: self.resolution.clone(),
            pace: self.playback.pace,
            pool: pool.clone(),
            clock: Clock::new(),
            started: None,
            shift_ns: 0,
            last_ns: 0,
            pending_error: None,
            ended: false,
            counters: Counters::default(),
        });
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        match self.queue.take() {
            Some(queue) => Ok(Box::new(queue)),
            None => Err(Error::port_usage(&self.info.name, "its only receive queue is taken")),
        }
    }

    fn take_tx(&mut self, _queue: u16, _pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        let why = "this run reads the capture; name another file to send to";
        Err(Error::port_usage(&self.info.name, why))
    }
}

fn too_long(length: usize, room: usize) -> String {
    let remedy = ROOM.with(length);
    format!("a packet of {length} bytes exceeds the buffers' {room} bytes; give {remedy} or more")
}

/// The receive queue of a capture.
struct CaptureRx {
    name: String,
    reader: CaptureReader,
    /// The reader's file if the capture is repeated. The reader rewinds it after each lap.
    repeated: Option<File>,
    /// The latest timestamp in the file, in nanoseconds since the epoch.
    latest_ns: u64,
    /// The resolution of the capture's timestamps. It is set when the header has been read.
    resolution: SharedResolution,
    pace: Pace,
    pool: Arc<dyn Pool>,
    clock: Clock,
    /// The start of playing: the time of the clock when the first packet was played, and the timestamp of
    /// that packet. Both are in nanoseconds.
    started: Option<(u64, u64)>,
    /// The time that the current lap adds to the timestamps in the file, in nanoseconds.
    shift_ns: u64,
    /// Timestamp of the packet that was played last, including `shift_ns`.
    last_ns: u64,
    /// An error that occurred after packets were read. The next call returns it.
    pending_error: Option<Error>,
    ended: bool,
    counters: Counters,
}

impl CaptureRx {
    /// Returns the next record and its timestamp, if it is due at `now_ns`.
    fn next(&mut self, now_ns: u64) -> Result<Option<(Record, u64)>> {
        loop {
            if let Some(record) = self.reader.peek()? {
                let time_ns = record.time_ns.saturating_add(self.shift_ns);
                if self.pace == Pace::Original {
                    let (clock, capture) = *self.started.get_or_insert((now_ns, time_ns));
                    if time_ns.saturating_sub(capture) > now_ns - clock {
                        return Ok(None);
                    }
                }
                return Ok(Some((record, time_ns)));
            }
            if self.reader.waiting() {
                return Ok(None);
            }
            match &mut self.repeated {
                Some(file) if self.reader.packets() > 0 => {
                    self.reader.restart(file)?;
                    self.begin_lap()?;
                }
                _ => {
                    self.ended = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Publishes the resolution of the timestamps to sinks. Does nothing if the header has not been read yet.
    fn publish_resolution(&self) {
        if self.reader.has_header() {
            self.resolution.get_or_init(|| self.reader.classic_resolution().unwrap_or(Resolution::Nano));
        }
    }

    /// Sets `shift_ns` so that the next lap's timestamps follow the timestamps of this lap. Sets it to 0 if a
    /// capture could not represent the new timestamps.
    fn begin_lap(&mut self) -> Result<()> {
        let first = self.reader.peek()?.map_or(0, |record| record.time_ns);
        self.shift_ns = self.last_ns.saturating_add(LAP_GAP_NS).saturating_sub(first);
        if self.shift_ns.saturating_add(self.latest_ns) > MAX_TIME_NS {
            self.shift_ns = 0;
            self.started = None;
        }
        Ok(())
    }

    fn fill(&mut self, packet: &mut Packet, record: &Record, time_ns: u64) -> Result<()> {
        let length = record.length();
        if length > self.pool.room() {
            let position = format!("at offset {} ", self.reader.offset());
            return Err(Error::port_usage(&self.name, position + &too_long(length, self.pool.room())));
        }
        packet.length = length as u32;
        // SAFETY: the packet was just allocated and has room for `length` bytes. `configure` checked that the
        // CPU maps the pool.
        unsafe { packet.bytes_mut() }.copy_from_slice(self.reader.data(record));
        let meta = PacketMeta { time_ns, wire_length: record.wire_length, interface: record.interface };
        // SAFETY: the packet was just allocated from this pool.
        unsafe { self.pool.set_meta(packet, meta) };
        self.last_ns = time_ns;
        self.counters.bytes += length as u64;
        self.reader.consume();
        Ok(())
    }
}

// SAFETY: the packets are newly allocated, and `fill` keeps each within its data room.
unsafe impl Rx for CaptureRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        if let Some(error) = self.pending_error.take() {
            self.ended = true;
            return Err(error);
        }
        if self.ended {
            return Ok(0);
        }
        let now_ns = self.clock.now_ns();
        // At original pace, most calls find no packet due. Check before allocating packets.
        if self.pace == Pace::Original {
            match self.next(now_ns) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.publish_resolution();
                    return Ok(0);
                }
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
        let allocated = self.pool.allocate(packets);
        let mut filled = 0;
        while filled < allocated {
            let outcome = match self.next(now_ns) {
                Ok(Some((record, time_ns))) => self.fill(&mut packets[filled], &record, time_ns),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                self.pending_error = Some(error);
                break;
            }
            filled += 1;
        }
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { self.pool.free(&packets[filled..allocated]) };
        if self.counters.packets == 0 {
            self.publish_resolution();
        }
        self.counters.packets += filled as u64;
        match self.pending_error.take() {
            Some(error) if filled == 0 => {
                self.ended = true;
                Err(error)
            }
            // Return the packets that were read before the error. The next call returns the error.
            pending => {
                self.pending_error = pending;
                Ok(filled)
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.ended && self.pending_error.is_none()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
