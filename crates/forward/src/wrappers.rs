//! What a run puts around its queues.

use crate::config::Config;
use crate::error::Result;
use crate::open;
use inlane_core::clock::Clock;
use inlane_core::units::Rate;
use inlane_core::{Pool, Rx, Tx};
use inlane_ports::pcap::Stamps;
use inlane_ports::wrap::capture::Capture;
use inlane_ports::wrap::fault::{self, Faults};
use inlane_ports::wrap::pace::PacedRx;
use std::sync::Arc;

/// What is put around queues, as asked for: pacing, faults, a capture. Without them queues are driven as they are.
pub struct Wrappers {
    rate: Option<Rate>,
    faults: Option<Faults>,
    capture: Option<Capture>,
    clock: Clock,
}

impl Wrappers {
    /// Of a run between ports of these names, the first of which is received from.
    ///
    /// # Errors
    /// When the faults make no sense or the capture cannot be created.
    pub fn new(config: &Config, names: &[String], clock: &Clock) -> Result<Self> {
        let received_from = |wanted: &str| names.first().is_some_and(|name| open::kind(name) == wanted);
        let stamps = if received_from("pcap") { Stamps::Noted } else { Stamps::Sent };
        Ok(Self {
            // A generator keeps to the rate by itself, with due times.
            rate: config.rate.filter(|_| !received_from("gen")),
            faults: config.faults.as_deref().map(Faults::parse).transpose()?,
            capture: config.capture.as_ref().map(|path| Capture::create(path, stamps)).transpose()?,
            clock: clock.clone(),
        })
    }

    /// Around a receive queue that has `share` of the run's rate; what faults did is put into `done`.
    ///
    /// # Errors
    /// When faults are asked for and the CPU cannot write the packets.
    pub fn rx(
        &self,
        mut rx: Box<dyn Rx>,
        pool: &Arc<dyn Pool>,
        share: f64,
        done: &mut Vec<Arc<fault::Done>>,
    ) -> Result<Box<dyn Rx>> {
        if let Some(rate) = self.rate {
            rx = Box::new(PacedRx::new(rx, rate, share, &self.clock));
        }
        if let Some(faults) = &self.faults {
            // Each queue is disturbed by a sequence of its own.
            let seed = faults.seed.wrapping_add(done.len() as u64);
            let faulty = Faults { seed, ..*faults }.rx(rx, pool, &self.clock)?;
            done.push(faulty.done());
            rx = Box::new(faulty);
        }
        Ok(rx)
    }

    /// Around a send queue.
    ///
    /// # Errors
    /// When a capture is asked for and the CPU cannot read the packets.
    pub fn tx(&self, tx: Box<dyn Tx>, pool: &Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Ok(match &self.capture {
            Some(capture) => capture.tx(tx, pool)?,
            None => tx,
        })
    }
}

/// What faults did, in a line.
pub fn faults_note(done: &[Arc<fault::Done>]) -> Option<String> {
    let sum = done.iter().map(|done| done.counts()).reduce(|a, b| std::array::from_fn(|i| a[i] + b[i]))?;
    let [dropped, duplicated, reordered, corrupted, delayed] = sum;
    Some(format!(
        "faults: {dropped} packets dropped, {duplicated} duplicated, {reordered} reordered, {corrupted} corrupted, \
         {delayed} delayed"
    ))
}
