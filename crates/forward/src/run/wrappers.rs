//! The wrappers around a run's queues: they limit the rate, inject faults, and write sent packets to a
//! capture.

use crate::config::Config;
use crate::error::Result;
use crate::result::InjectedFaults;
use inlane_core::clock::Clock;
use inlane_core::load::{Pace, Pacer};
use inlane_core::units::Rate;
use inlane_core::{Pool, Rx, Tx};
use inlane_ports::pcap::TimestampSource;
use inlane_ports::spec::PortSpec;
use inlane_ports::wrap::capture::Capture;
use inlane_ports::wrap::fault::{self, Faults};
use inlane_ports::wrap::pace::{PaceFollower, PacedRx};
use std::sync::Arc;

/// The settings of the wrappers around a run's queues. A queue that needs none stays unwrapped.
pub(super) struct Wrappers {
    rate: Option<Rate>,
    pace: Option<Arc<Pace>>,
    faults: Option<Faults>,
    capture: Option<Capture>,
    clock: Clock,
}

impl Wrappers {
    /// Prepares the wrappers of a run. `ports` are the run's ports; the first is the one to receive from. If there is a
    /// `pace`, all receive queues follow it.
    ///
    /// # Errors
    /// When the fault specification is wrong, or the capture file cannot be created.
    pub(super) fn new(
        config: &Config,
        ports: &[PortSpec],
        clock: &Clock,
        pace: Option<Arc<Pace>>,
    ) -> Result<Self> {
        let timestamps = match ports.first() {
            Some(PortSpec::Capture(_)) => TimestampSource::Metadata,
            _ => TimestampSource::SendTime,
        };
        let capture = config.capture.as_ref().map(|path| Capture::open(path, timestamps, ports));
        // Put no pacing wrapper around a port that paces itself. A generator, for example, records when each packet
        // was due.
        let paces_itself = ports.first().is_some_and(|rx| rx.properties().paces_itself);
        Ok(Self {
            rate: config.rate.filter(|_| !paces_itself),
            pace,
            faults: config.faults.as_deref().map(Faults::parse).transpose()?,
            capture: capture.transpose()?,
            clock: clock.clone(),
        })
    }

    /// Wraps a receive queue, whose part of the rate of its direction is the fraction `share`, and whose part of the
    /// whole run's pace is the fraction `of_all`. Appends the queue's fault
    /// counters to `faults` if faults are injected.
    ///
    /// # Errors
    /// When faults are asked for and the CPU cannot write the packets.
    pub(super) fn rx(
        &self,
        mut rx: Box<dyn Rx>,
        pool: &Arc<dyn Pool>,
        [share, of_all]: [f64; 2],
        faults: &mut Vec<Arc<fault::FaultCounts>>,
    ) -> Result<Box<dyn Rx>> {
        if let Some(rate) = self.rate {
            rx = Box::new(PacedRx::new(rx, rate, share, &self.clock));
        }
        if let Some(pace) = &self.pace {
            rx = Box::new(PaceFollower::new(rx, Pacer::new(pace.clone(), of_all), &self.clock));
        }
        if let Some(settings) = &self.faults {
            // Give each queue a different seed, so that the faults do not hit the same packets in every
            // queue.
            let seed = settings.seed.wrapping_add(faults.len() as u64);
            let faulty = Faults { seed, ..*settings }.rx(rx, pool, &self.clock)?;
            faults.push(faulty.fault_counts());
            rx = Box::new(faulty);
        }
        Ok(rx)
    }

    /// Wraps a transmit queue.
    ///
    /// # Errors
    /// When a capture is asked for and the CPU cannot read the packets.
    pub(super) fn tx(&self, tx: Box<dyn Tx>, pool: &Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Ok(match &self.capture {
            Some(capture) => capture.tx(tx, pool)?,
            None => tx,
        })
    }
}

/// Returns the numbers of injected faults; `None` without fault injection.
pub(super) fn faults(counters: &[Arc<fault::FaultCounts>]) -> Option<InjectedFaults> {
    let sum =
        counters.iter().map(|counts| counts.read()).reduce(|a, b| std::array::from_fn(|i| a[i] + b[i]))?;
    let [dropped, duplicated, reordered, corrupted, delayed] = sum;
    Some(InjectedFaults { dropped, duplicated, reordered, corrupted, delayed })
}
