//! The sink of captures: a port that writes sent packets to a capture.

use super::file::{FileId, same_file};
use super::reader::Resolution;
use super::source::CaptureSource;
use super::writer::{CaptureWriter, LostPackets, SharedResolution};
use super::{CaptureSpec, info};
use crate::generate::require_cpu_memory;
use inlane_core::packet::PacketMeta;
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the timestamps in a written capture come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampSource {
    /// The packet's metadata, for packets that were read from a capture.
    Metadata,
    /// The system's clock when the packet is sent.
    SendTime,
}

/// A port that writes packets to a capture file. The port's queues write in turn, one burst at a time.
pub struct CaptureSink {
    info: PortInfo,
    writer: Arc<Mutex<CaptureWriter>>,
    timestamps: TimestampSource,
    /// For each queue: true until [`Port::take_tx`] has returned it.
    free: Vec<bool>,
}

impl CaptureSink {
    /// Opens the capture `text` for writing. See [`CaptureSink::new`].
    ///
    /// # Errors
    /// As for [`CaptureSpec::parse`] and [`CaptureSink::new`].
    pub fn open(text: &str, source: Option<&CaptureSource>) -> Result<Self> {
        Self::new(&CaptureSpec::parse(text)?, source)
    }

    /// Opens a capture for writing.
    ///
    /// With `source`, packets keep the timestamps of the source. Without it, a packet's timestamp is the time
    /// at which it is sent, in nanoseconds. An existing file keeps its content until [`Port::start`] or until
    /// the first packet is sent.
    ///
    /// # Errors
    /// If the file cannot be created, or if it is the file that `source` reads.
    pub fn new(spec: &CaptureSpec, source: Option<&CaptureSource>) -> Result<Self> {
        let CaptureSpec { text, path } = spec;
        if source
            .and_then(CaptureSource::file_id)
            .is_some_and(|id| FileId::of_path(path.as_ref()) == Some(id))
        {
            return Err(Error::port_usage(text, "this run reads the same file; name another one to write"));
        }
        let resolution = match source {
            Some(source) => source.resolution().clone(),
            None => SharedResolution::new(OnceLock::from(Resolution::Nano)),
        };
        Ok(Self {
            info: info(text, u16::MAX),
            writer: Arc::new(Mutex::new(CaptureWriter::open(text, path, resolution)?)),
            timestamps: match source {
                Some(_) => TimestampSource::Metadata,
                None => TimestampSource::SendTime,
            },
            free: Vec::new(),
        })
    }

    /// Checks that no two of `captures` are the same file.
    ///
    /// # Errors
    /// If two ports name the same file.
    pub(crate) fn require_distinct<'a>(captures: impl Iterator<Item = &'a CaptureSpec>) -> Result<()> {
        let mut files: Vec<&Path> = Vec::new();
        for capture in captures {
            let Some(path) = capture.file() else { continue };
            if files.iter().any(|other| same_file(other, path)) {
                return Err(Error::port_usage(
                    &capture.text,
                    "another port of this run uses the same file; name two files",
                ));
            }
            files.push(path);
        }
        Ok(())
    }
}

impl Port for CaptureSink {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if !pools.is_empty() {
            let why = "this run writes the capture; name another file to receive from";
            return Err(Error::port_usage(&self.info.name, why));
        }
        self.free = vec![true; tx_queues as usize];
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        let why = "this run writes the capture; name another file to receive from";
        Err(Error::port_usage(&self.info.name, why))
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        require_cpu_memory(&self.info.name, &pool)?;
        match self.free.get_mut(queue as usize) {
            Some(free) if *free => *free = false,
            _ => {
                let why = format!("transmit queue {queue} does not exist or is taken");
                return Err(Error::port_usage(&self.info.name, why));
            }
        }
        let writer = QueueWriter::new(self.writer.clone(), self.timestamps, pool.clone())?;
        Ok(Box::new(CaptureTx::new(writer, pool)))
    }

    fn start(&mut self) -> Result<()> {
        self.writer.lock().map_err(|_| poisoned())?.begin()
    }
}

/// Writes the packets of one queue to a shared capture. Does not free the packets.
pub(crate) struct QueueWriter {
    writer: Arc<Mutex<CaptureWriter>>,
    queue: u32,
    lost: Arc<LostPackets>,
    timestamps: TimestampSource,
    pool: Arc<dyn Pool>,
}

impl QueueWriter {
    pub(crate) fn new(
        writer: Arc<Mutex<CaptureWriter>>,
        timestamps: TimestampSource,
        pool: Arc<dyn Pool>,
    ) -> Result<Self> {
        let (queue, lost) = writer.lock().map_err(|_| poisoned())?.add_queue();
        Ok(Self { writer, queue, lost, timestamps, pool })
    }

    /// Writes packets from the front of `packets`. Returns the number of packets that the capture accepted,
    /// and any error.
    ///
    /// # Safety
    /// All packets are from this queue's pool, and the caller holds them.
    pub(crate) unsafe fn write(&self, packets: &[Packet]) -> (usize, Result<()>) {
        let mut writer = match self.lock() {
            Ok(writer) => writer,
            Err(error) => return (0, Err(error)),
        };
        let send_ns = self.send_ns();
        for (index, packet) in packets.iter().enumerate() {
            // SAFETY: the caller holds the packet, which is from this pool.
            let length = unsafe { self.pool.length(packet) };
            let outcome = writer.reserve(length).and_then(|has_room| match has_room {
                // SAFETY: as above.
                true => unsafe { self.record(&mut writer, packet, length, send_ns) }.map(|()| true),
                false => Ok(false),
            });
            match outcome {
                Ok(true) => {}
                Ok(false) => return (index, Ok(())),
                Err(error) => return (index, Err(error)),
            }
        }
        (packets.len(), Ok(()))
    }

    /// Sends packets by `send`, and writes the packets that `send` has accepted to the capture. Sends nothing
    /// while the reader of the capture pauses.
    ///
    /// # Safety
    /// The caller holds the packets, which are from this queue's pool. `send` frees or keeps only as many
    /// packets as it returns.
    pub(crate) unsafe fn write_sent(
        &self,
        packets: &[Packet],
        send: impl FnOnce(&[Packet]) -> Result<usize>,
    ) -> Result<usize> {
        let mut writer = self.lock()?;
        let send_ns = self.send_ns();
        // SAFETY: the caller holds the packets, which are from this pool.
        let length = packets.iter().map(|packet| unsafe { self.pool.length(packet) }).sum();
        if !writer.reserve(length)? {
            return Ok(0);
        }
        let before = writer.buffered();
        let mut outcome = Ok(());
        for packet in packets {
            // SAFETY: the caller holds the packet, which is from this pool.
            outcome = outcome.and_then(|()| unsafe {
                let length = self.pool.length(packet);
                self.record(&mut writer, packet, length, send_ns)
            });
        }
        let sent = outcome.and_then(|()| send(packets));
        writer.remove_after(before + sent.as_ref().map_or(0, |&sent| sent));
        sent
    }

    fn lock(&self) -> Result<MutexGuard<'_, CaptureWriter>> {
        self.writer.lock().map_err(|_| poisoned())
    }

    fn send_ns(&self) -> u64 {
        match self.timestamps {
            TimestampSource::Metadata => 0,
            TimestampSource::SendTime => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
            }
        }
    }

    /// Appends a packet of `length` bytes and its timestamp to the buffer of `writer`.
    ///
    /// # Safety
    /// The packet is from this queue's pool, and the caller holds it.
    unsafe fn record(
        &self,
        writer: &mut CaptureWriter,
        packet: &Packet,
        length: usize,
        send_ns: u64,
    ) -> Result<()> {
        let meta = match self.timestamps {
            // SAFETY: the caller upholds the pool's safety contract.
            TimestampSource::Metadata => unsafe { self.pool.meta(packet) },
            TimestampSource::SendTime => PacketMeta { time_ns: send_ns, ..PacketMeta::default() },
        };
        writer.record(self.queue, meta, length, |buffer| {
            // SAFETY: the caller holds the packet, so nothing writes it. Ports refuse pools that the CPU does
            // not map.
            unsafe { self.pool.for_each_part(packet, &mut |part| buffer.extend_from_slice(part)) };
        })
    }

    /// Writes buffered records until the output accepts no more.
    pub(crate) fn flush(&self) -> Result<()> {
        self.lock()?.flush().map(|_| ())
    }

    /// Writes the buffered records, unless the capture has not begun. If that fails, logs the error. It
    /// cannot be returned, because the queue is being dropped.
    fn flush_at_end(&self) {
        let Ok(mut writer) = self.lock() else { return };
        // Skip a broken capture. An earlier call has already returned its error, so do not log the error
        // again.
        if writer.has_begun()
            && !writer.is_broken()
            && let Err(error) = writer.flush()
        {
            tracing::error!("{error}");
        }
    }

    /// Writes the buffered records; see [`CaptureWriter::finish`].
    pub(crate) fn finish(&self, keep_waiting: &mut dyn FnMut() -> bool) -> Result<()> {
        self.lock()?.finish(keep_waiting)
    }

    /// Returns the counts of lost packets: those that the writer accepted from this queue but could not
    /// write.
    pub(crate) fn lost(&self) -> &LostPackets {
        &self.lost
    }
}

fn poisoned() -> Error {
    Error::port_failed("capture", "another of its queues panicked")
}

/// A transmit queue of a capture.
pub(super) struct CaptureTx {
    writer: QueueWriter,
    pool: Arc<dyn Pool>,
    /// Counters of the packets that the writer accepted. Some of these packets may be lost later, if the
    /// writer cannot write them.
    accepted: Counters,
}

impl CaptureTx {
    pub(super) fn new(writer: QueueWriter, pool: Arc<dyn Pool>) -> Self {
        Self { writer, pool, accepted: Counters::default() }
    }
}

// SAFETY: `send` frees exactly the packets that it returns as sent, as the trait requires.
unsafe impl Tx for CaptureTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        // SAFETY: the caller holds the packets, which are from this pool.
        let (written, outcome) = unsafe { self.writer.write(packets) };
        for packet in &packets[..written] {
            // SAFETY: as above.
            self.accepted.bytes += unsafe { self.writer.pool.length(packet) } as u64;
        }
        self.accepted.packets += written as u64;
        // SAFETY: the caller guarantees that it holds these packets of this pool, and that it does not use
        // packets after they are sent.
        unsafe { self.pool.free(&packets[..written]) };
        match outcome {
            // Return the number of written packets now if there are any. The next call returns the error.
            Err(_) if written > 0 => Ok(written),
            outcome => outcome.map(|()| written),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.writer.flush()
    }

    fn finish(&mut self, keep_waiting: &mut dyn FnMut() -> bool) -> Result<()> {
        self.writer.finish(keep_waiting)
    }

    fn counters(&self) -> Counters {
        let lost = self.writer.lost();
        Counters {
            packets: self.accepted.packets - lost.packets(),
            bytes: self.accepted.bytes - lost.bytes(),
            errors: lost.packets(),
            missed: 0,
        }
    }
}

impl Drop for CaptureTx {
    fn drop(&mut self) {
        self.writer.flush_at_end();
    }
}
