//! Plays a capture.

use super::reader::{self, Reader, Resolution};
use super::{Pace, Playback, Summary, info, path_of};
use crate::generate::cpu_memory;
use inlane_core::clock::Clock;
use inlane_core::packet::PacketMeta;
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// What a frame has at most where nobody knows: links beyond are rare, and then the user says so.
const JUMBO: usize = 9216;

/// A capture to receive from.
pub struct Source {
    info: PortInfo,
    /// The file, where it is one that can be read again.
    file: Option<File>,
    summary: Option<Summary>,
    reader: Option<Reader>,
    playback: Playback,
    queue: Option<Queue>,
}

impl Source {
    /// Opens `pcap:FILE`; `-` is standard input.
    ///
    /// # Errors
    /// When there is no such file or it is no capture of Ethernet.
    pub fn open(text: &str, playback: Playback) -> Result<Self> {
        let path = path_of(text)?;
        if path == "-" {
            if playback.repeat {
                return Err(Error::port_usage(text, "standard input cannot be repeated: give a file"));
            }
            let input = std::io::stdin().as_fd().try_clone_to_owned();
            let input = input.map_err(|source| Error::Os { what: "standard input".into(), source })?;
            let reader = Reader::new(text, Box::new(Pipe { file: input.into(), read: 0 }))?;
            return Ok(Self::new(text, None, None, reader, playback));
        }
        let unreadable =
            |error| Error::port_environment(text, format!("{path} cannot be read: {error}; name a capture"));
        let file = File::open(path).map_err(unreadable)?;
        let kind = file.metadata().map_err(unreadable)?;
        if kind.is_dir() {
            return Err(Error::port_usage(text, "it is a directory: name a capture in it"));
        }
        if !kind.is_file() {
            // A named pipe, say.
            if playback.repeat {
                return Err(Error::port_usage(text, "what is no plain file cannot be repeated"));
            }
            let reader = Reader::new(text, Box::new(Pipe { file, read: 0 }))?;
            return Ok(Self::new(text, None, None, reader, playback));
        }
        let summary = Self::look_through(text, &file)?;
        let reader = rewound(text, &file)?;
        Ok(Self::new(text, Some(file), Some(summary), reader, playback))
    }

    fn new(
        text: &str,
        file: Option<File>,
        summary: Option<Summary>,
        reader: Reader,
        playback: Playback,
    ) -> Self {
        let info = info(text, "capture file".into(), 1);
        Self { info, file, summary, reader: Some(reader), playback, queue: None }
    }

    fn look_through(text: &str, file: &File) -> Result<Summary> {
        let mut reader = rewound(text, file)?;
        let mut longest = 0;
        // Damage is reported when the packets before it have been played.
        while let Ok(Some(record)) = reader.peek() {
            longest = longest.max(record.length());
            reader.consume();
        }
        Ok(Summary { packets: reader.packets(), longest, resolution: reader.resolution() })
    }

    /// Bytes that buffers must hold: of its longest packet, or for a pipe of a jumbo frame.
    pub fn longest(&self) -> usize {
        self.summary.map_or(JUMBO, |summary| summary.longest)
    }

    /// What was seen when it was looked through; `None` for a pipe.
    pub fn summary(&self) -> Option<Summary> {
        self.summary
    }

    /// The resolution of its timestamps: of a pipe, nanoseconds, unless it is classic and says otherwise.
    pub fn resolution(&self) -> Resolution {
        match (&self.summary, &self.reader) {
            (Some(summary), _) => summary.resolution,
            (None, Some(reader)) if reader.offset() > 0 => reader.resolution(),
            _ => Resolution::Nano,
        }
    }

    pub(super) fn is(&self, path: &str) -> bool {
        let same = |a: std::fs::Metadata, b: std::fs::Metadata| a.dev() == b.dev() && a.ino() == b.ino();
        let (Some(file), Ok(other)) = (&self.file, std::fs::metadata(path)) else { return false };
        file.metadata().is_ok_and(|own| same(own, other))
    }
}

/// An input that fills while it is read. It waits for a capture's header, which says what it is; whoever plays the packets
/// behind it is not held up by one that is still to come.
struct Pipe {
    file: File,
    /// Bytes so far.
    read: usize,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let at_once = Timespec::default();
        let patience = if self.read < reader::HEADER { None } else { Some(&at_once) };
        if poll(&mut [PollFd::new(&self.file, PollFlags::IN)], patience)? == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.file.read(buffer)?;
        self.read += count;
        Ok(count)
    }
}

/// A reader of `file` from its front.
fn rewound(text: &str, file: &File) -> Result<Reader> {
    let mut again = file
        .try_clone()
        .map_err(|source| Error::Os { what: format!("opening {text} a second time"), source })?;
    again
        .seek(SeekFrom::Start(0))
        .map_err(|source| Error::Os { what: format!("rewinding {text}"), source })?;
    Reader::new(text, Box::new(again))
}

impl Port for Source {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if tx_queues > 0 {
            let why = "a capture is either read or written: name another file to send to";
            return Err(Error::port_usage(&self.info.name, why));
        }
        let [pool] = pools else {
            return Err(Error::port_usage(&self.info.name, "a capture has one queue: use one pipeline"));
        };
        cpu_memory(&self.info.name, pool)?;
        if let Some(summary) = self.summary.filter(|summary| summary.longest > pool.room()) {
            return Err(Error::port_usage(&self.info.name, too_long(summary.longest, pool.room())));
        }
        let Some(reader) = self.reader.take() else {
            return Err(Error::port_usage(&self.info.name, "it is in use already"));
        };
        self.queue = Some(Queue {
            name: self.info.name.clone(),
            reader,
            again: if self.playback.repeat { self.file.take() } else { None },
            pace: self.playback.pace,
            pool: pool.clone(),
            clock: Clock::new(),
            started: None,
            shift_ns: 0,
            last_ns: 0,
            failed: None,
            ended: false,
            counters: Counters::default(),
        });
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        match self.queue.take() {
            Some(queue) => Ok(Box::new(queue)),
            None => Err(Error::port_usage(&self.info.name, "its one receive queue is taken")),
        }
    }

    fn take_tx(&mut self, _queue: u16, _pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Err(Error::port_usage(&self.info.name, "this capture is read: name another file to send to"))
    }
}

fn too_long(length: usize, room: usize) -> String {
    format!("a packet of {length} bytes does not fit into buffers of {room}: give --room {length} or more")
}

/// The queue of a source.
struct Queue {
    name: String,
    reader: Reader,
    /// To begin again with.
    again: Option<File>,
    pace: Pace,
    pool: Arc<dyn Pool>,
    clock: Clock,
    /// The clock's time and the capture's when the first packet was played.
    started: Option<(u64, u64)>,
    /// What repeats add to timestamps.
    shift_ns: u64,
    last_ns: u64,
    /// An error found behind packets that had to be handed out first.
    failed: Option<Error>,
    ended: bool,
    counters: Counters,
}

impl Queue {
    /// The next record, if one is due at `now_ns`.
    fn next(&mut self, now_ns: u64) -> Result<Option<(reader::Record, u64)>> {
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
            if self.reader.waits() {
                return Ok(None);
            }
            match &self.again {
                Some(file) if self.reader.packets() > 0 => {
                    self.reader = rewound(&self.name, file)?;
                    let first = self.reader.peek()?.map_or(0, |record| record.time_ns);
                    // The first of the next lap comes a microsecond behind the last of this.
                    self.shift_ns = self.last_ns.saturating_add(1000).saturating_sub(first);
                }
                _ => {
                    self.ended = true;
                    return Ok(None);
                }
            }
        }
    }

    fn fill(&mut self, packet: &mut Packet, record: &reader::Record, time_ns: u64) -> Result<()> {
        let length = record.length();
        if length > self.pool.room() {
            let at = format!("at offset {} ", self.reader.offset());
            return Err(Error::port_usage(&self.name, at + &too_long(length, self.pool.room())));
        }
        packet.length = length as u32;
        // SAFETY: just taken from the pool, in memory that the CPU maps (checked at set-up), and it has room for so many.
        unsafe { packet.bytes_mut() }.copy_from_slice(self.reader.data(record));
        let meta = PacketMeta { time_ns, wire_length: record.wire_length, interface: record.interface };
        // SAFETY: the packet is held here and of this pool.
        unsafe { self.pool.set_meta(packet, meta) };
        self.last_ns = time_ns;
        self.counters.bytes += length as u64;
        self.reader.consume();
        Ok(())
    }
}

// SAFETY: the packets are just allocated, and `fill` keeps each within its data room.
unsafe impl Rx for Queue {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            self.ended = true;
            return Err(error);
        }
        if self.ended {
            return Ok(0);
        }
        let now_ns = self.clock.now_ns();
        // Nothing due, nothing taken from the pool.
        if self.pace == Pace::Original && self.next(now_ns)?.is_none() {
            return Ok(0);
        }
        let taken = self.pool.allocate(packets);
        let mut given = 0;
        while given < taken {
            let next = match self.next(now_ns) {
                Ok(Some((record, time_ns))) => self.fill(&mut packets[given], &record, time_ns),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = next {
                self.failed = Some(error);
                break;
            }
            given += 1;
        }
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { self.pool.free(&packets[given..taken]) };
        self.counters.packets += given as u64;
        match self.failed.take() {
            // What was received is handed out; the error comes with the next call.
            Some(error) if given == 0 => {
                self.ended = true;
                Err(error)
            }
            failed => {
                self.failed = failed;
                Ok(given)
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.ended && self.failed.is_none()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
