//! Writes a capture.

use super::reader::Resolution;
use super::source::Source;
use super::writer::Writer;
use super::{info, path_of};
use crate::generate::cpu_memory;
use inlane_core::packet::PacketMeta;
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a sink writes as a packet's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// What its source noted.
    Noted,
    /// When it was sent.
    Sent,
}

/// A capture to send to. Queues share it, a burst at a time.
pub struct Sink {
    info: PortInfo,
    writer: Arc<Mutex<Writer>>,
    stamps: Stamps,
    queues: Vec<bool>,
}

impl Sink {
    /// Creates `pcap:FILE` (`-` is standard output). What comes from `source` keeps its timestamps, and their resolution;
    /// what comes from elsewhere is stamped when it is sent.
    ///
    /// # Errors
    /// When it cannot be created, or is the file of `source`.
    pub fn create(text: &str, source: Option<&Source>) -> Result<Self> {
        let path = path_of(text)?;
        if source.is_some_and(|source| source.is(path)) {
            return Err(Error::port_usage(text, "it is the capture that is read: name another file"));
        }
        let resolution = source.map_or(Resolution::Nano, Source::resolution);
        Ok(Self {
            info: info(text, "capture file".into(), u16::MAX),
            writer: Arc::new(Mutex::new(Writer::create(text, path, resolution)?)),
            stamps: if source.is_some() { Stamps::Noted } else { Stamps::Sent },
            queues: Vec::new(),
        })
    }
}

impl Port for Sink {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if !pools.is_empty() {
            let why = "this capture is written: name another file to receive from";
            return Err(Error::port_usage(&self.info.name, why));
        }
        self.queues = vec![true; tx_queues as usize];
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        Err(Error::port_usage(&self.info.name, "this capture is written: name another file to receive from"))
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        cpu_memory(&self.info.name, &pool)?;
        match self.queues.get_mut(queue as usize) {
            Some(free) if *free => *free = false,
            _ => {
                let why = format!("there is no send queue {queue}, or it is taken");
                return Err(Error::port_usage(&self.info.name, why));
            }
        }
        Ok(Box::new(SinkQueue {
            name: self.info.name.clone(),
            tap: Tap::new(self.writer.clone(), self.stamps, pool.clone()),
            pool,
            counters: Counters::default(),
        }))
    }
}

/// Writes packets to a capture that several may share, and leaves them to their holder.
pub(crate) struct Tap {
    writer: Arc<Mutex<Writer>>,
    stamps: Stamps,
    pool: Arc<dyn Pool>,
}

impl Tap {
    pub(crate) fn new(writer: Arc<Mutex<Writer>>, stamps: Stamps, pool: Arc<dyn Pool>) -> Self {
        Self { writer, stamps, pool }
    }

    /// Writes the front of `packets`: returns how many, and the error that came behind them.
    pub(crate) fn write(&self, packets: &[Packet]) -> (usize, Result<()>) {
        let Ok(mut writer) = self.writer.lock() else { return (0, Err(poisoned())) };
        let sent_ns = self.sent_ns();
        for (index, packet) in packets.iter().enumerate() {
            let length = self.length(packet);
            let outcome =
                writer.reserve(length).and_then(|()| self.record(&mut writer, packet, length, sent_ns));
            if let Err(error) = outcome {
                return (index, Err(error));
            }
        }
        (packets.len(), Ok(()))
    }

    /// Sends packets by `send`, and writes those that it takes. They are written down before, while they can be read.
    pub(crate) fn write_sent(
        &self,
        packets: &[Packet],
        send: impl FnOnce(&[Packet]) -> Result<usize>,
    ) -> Result<usize> {
        let mut writer = self.writer.lock().map_err(|_| poisoned())?;
        let sent_ns = self.sent_ns();
        writer.reserve(packets.iter().map(|packet| self.length(packet)).sum())?;
        let before = writer.buffered();
        let mut outcome = Ok(());
        for packet in packets {
            outcome = outcome.and_then(|()| self.record(&mut writer, packet, self.length(packet), sent_ns));
        }
        let sent = outcome.and_then(|()| send(packets));
        writer.unwrite(before + sent.as_ref().map_or(0, |&sent| sent));
        sent
    }

    fn sent_ns(&self) -> u64 {
        match self.stamps {
            Stamps::Noted => 0,
            Stamps::Sent => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
            }
        }
    }

    fn length(&self, packet: &Packet) -> usize {
        let mut length = 0;
        // SAFETY: the packet is held here and of this pool.
        unsafe { self.pool.for_each_segment(packet, &mut |_, bytes| length += bytes as usize) };
        length
    }

    fn record(&self, writer: &mut Writer, packet: &Packet, length: usize, sent_ns: u64) -> Result<()> {
        let meta = match self.stamps {
            // SAFETY: the packet is held here and of this pool.
            Stamps::Noted => unsafe { self.pool.meta(packet) },
            Stamps::Sent => PacketMeta { time_ns: sent_ns, ..PacketMeta::default() },
        };
        writer.record(meta, length, |buffer| {
            // SAFETY: the packet is held here and of this pool; each segment lies in memory that the CPU maps (checked at set-up).
            unsafe {
                self.pool.for_each_segment(packet, &mut |address, bytes| {
                    buffer
                        .extend_from_slice(std::slice::from_raw_parts(address as *const u8, bytes as usize));
                });
            }
        })
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.writer.lock().map_or(Ok(()), |mut writer| writer.flush())
    }

    pub(crate) fn lost_packets(&self) -> u64 {
        self.writer.lock().map_or(0, |writer| writer.lost_packets())
    }
}

fn poisoned() -> Error {
    Error::port_failed("capture", "another of its queues panicked")
}

/// A send queue of a sink.
struct SinkQueue {
    name: String,
    tap: Tap,
    pool: Arc<dyn Pool>,
    counters: Counters,
}

// SAFETY: it frees exactly the packets that it returns as sent.
unsafe impl Tx for SinkQueue {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        let (written, outcome) = self.tap.write(packets);
        for packet in &packets[..written] {
            // SAFETY: the packet is held here and of this pool.
            unsafe {
                self.pool.for_each_segment(packet, &mut |_, bytes| self.counters.bytes += bytes as u64)
            };
        }
        self.counters.packets += written as u64;
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { self.pool.free(&packets[..written]) };
        match outcome {
            // Those before the error are taken; it comes again with the next call.
            Err(_) if written > 0 => Ok(written),
            outcome => outcome.map(|()| written),
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.tap.flush()
    }

    fn counters(&self) -> Counters {
        Counters { errors: self.tap.lost_packets(), ..self.counters }
    }
}

impl Drop for SinkQueue {
    fn drop(&mut self) {
        if let Err(error) = self.tap.flush() {
            tracing::error!("{}: {error}", self.name);
        }
    }
}
