//! Writes the packets that a run sends to a capture file.
//!
//! If the capture cannot be written, the run ends with an error.

use crate::field::CAPTURE;
use crate::generate::require_cpu_memory;
use crate::pcap::reader::Resolution;
use crate::pcap::writer::CaptureWriter;
use crate::pcap::{QueueWriter, TimestampSource, same_file};
use crate::spec::PortSpec;
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Result, Tx};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A capture file to which all transmit queues of a run write.
#[derive(Clone)]
pub struct Capture {
    writer: Arc<Mutex<CaptureWriter>>,
    timestamps: TimestampSource,
}

impl Capture {
    /// Opens the capture file at `path`. Its timestamps are in nanoseconds.
    ///
    /// An existing file keeps its content until the first packet is sent.
    ///
    /// # Errors
    /// If the file cannot be created, or if one of `ports` reads or writes it.
    pub fn open(path: &Path, timestamps: TimestampSource, ports: &[PortSpec]) -> Result<Self> {
        let name = CAPTURE.with(path.display());
        let uses = |port: &&PortSpec| port.file().is_some_and(|file| same_file(file, path));
        if let Some(port) = ports.iter().find(uses) {
            return Err(Error::invalid(name, format!("port {port} uses the same file; name another one")));
        }
        let text =
            path.to_str().ok_or_else(|| Error::invalid(name.clone(), "its name is not UTF-8; rename it"))?;
        let writer = CaptureWriter::create(name, text, Resolution::Nano)?;
        Ok(Self { writer: Arc::new(Mutex::new(writer)), timestamps })
    }

    /// Wraps the transmit queue `inner`, whose packets come from `pool`, to capture its sent packets.
    ///
    /// # Errors
    /// If the CPU cannot read the packets.
    pub fn tx(&self, inner: Box<dyn Tx>, pool: &Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        require_cpu_memory("capture", pool)?;
        let writer = QueueWriter::new(self.writer.clone(), self.timestamps, pool.clone())?;
        Ok(Box::new(CapturedTx { inner, writer }))
    }
}

struct CapturedTx {
    inner: Box<dyn Tx>,
    writer: QueueWriter,
}

// SAFETY: the inner queue sends the packets. The wrapper returns the inner queue's count.
unsafe impl Tx for CapturedTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        let Self { inner, writer } = self;
        // SAFETY: the caller owns the packets, which are from this queue's pool. The inner queue keeps or
        // frees only the packets that it counts as sent.
        unsafe { writer.write_sent(packets, |packets| inner.send(packets)) }
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()?;
        self.writer.flush()
    }

    fn idle(&mut self) {
        self.inner.idle();
    }

    fn finish(&mut self, keep_waiting: &mut dyn FnMut() -> bool) -> Result<()> {
        self.inner.finish(keep_waiting)?;
        self.writer.finish(keep_waiting)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
