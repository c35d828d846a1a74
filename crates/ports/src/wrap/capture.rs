//! Writes what goes through a queue to a capture.
//!
//! The capture is part of the run: when its disk is full the run ends with that error, rather than with a capture that lacks
//! packets.

use crate::pcap::reader::Resolution;
use crate::pcap::writer::Writer;
use crate::pcap::{Stamps, Tap};
use inlane_core::port::Counters;
use inlane_core::{Error, Packet, Pool, Result, Rx, Tx};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A capture that queues share.
#[derive(Clone)]
pub struct Capture {
    writer: Arc<Mutex<Writer>>,
    stamps: Stamps,
}

impl Capture {
    /// Creates the capture `path`, in nanoseconds. [`Stamps::Noted`] is for packets that come from a capture.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path, stamps: Stamps) -> Result<Self> {
        let name = format!("capture {}", path.display());
        let text =
            path.to_str().ok_or_else(|| Error::port_usage(&name, "its name is no UTF-8: choose another"))?;
        let writer = Writer::create(&name, text, Resolution::Nano)?;
        Ok(Self { writer: Arc::new(Mutex::new(writer)), stamps })
    }

    fn tap(&self, port: &str, pool: &Arc<dyn Pool>) -> Result<Tap> {
        crate::generate::cpu_memory(port, pool)?;
        Ok(Tap::new(self.writer.clone(), self.stamps, pool.clone()))
    }

    /// `inner`, whose packets are of `pool`, with what it receives captured.
    ///
    /// # Errors
    /// When the CPU cannot read those packets.
    pub fn rx(&self, inner: Box<dyn Rx>, pool: &Arc<dyn Pool>) -> Result<Box<dyn Rx>> {
        Ok(Box::new(CapturedRx { inner, tap: self.tap("capture", pool)?, failed: None }))
    }

    /// `inner`, whose packets are of `pool`, with what it sends captured.
    ///
    /// # Errors
    /// When the CPU cannot read those packets.
    pub fn tx(&self, inner: Box<dyn Tx>, pool: &Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Ok(Box::new(CapturedTx { inner, tap: self.tap("capture", pool)? }))
    }
}

struct CapturedRx {
    inner: Box<dyn Rx>,
    tap: Tap,
    failed: Option<Error>,
}

// SAFETY: the packets are the inner port's, unchanged.
unsafe impl Rx for CapturedRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let count = self.inner.receive(packets)?;
        // They are the caller's by now: the error comes with the next call.
        self.failed = self.tap.write(&packets[..count]).1.err();
        Ok(count)
    }

    fn exhausted(&self) -> bool {
        self.failed.is_none() && self.inner.exhausted()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

struct CapturedTx {
    inner: Box<dyn Tx>,
    tap: Tap,
}

// SAFETY: the inner port sends, and its count is returned.
unsafe impl Tx for CapturedTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        let Self { inner, tap } = self;
        // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
        tap.write_sent(packets, |packets| unsafe { inner.send(packets) })
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()?;
        self.tap.flush()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
