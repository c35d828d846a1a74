//! `check`: verifies the packets of a generator. Finds packets that were lost, duplicated or reordered within
//! their flow. Also finds packets with changes that the packet function does not make.
//!
//! The expected packets follow from the generator's specification and a [`mod@reference`] of the function.
//! If the function has no reference, only its packets' [stamps](crate::generate::stamp) are checked: loss, duplication,
//! order and latency, but not the bytes of headers.
//!
//! Each packet has a [stamp] with its flow and number. Packets that the generator did not send count as
//! foreign.
//!
//! A packet whose stamp is damaged counts as altered, and not as lost.
//!
//! [stamp]: crate::generate::stamp

pub mod captures;
mod expect;
pub mod reference;
mod tracker;

#[cfg(test)]
mod tests;

use crate::field::{REFERENCE, RX};
use crate::generate::{Generator, SentCounts, Traffic, require_cpu_memory};
use expect::{Classification, ExpectedPackets};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::stats::LatencyHistogram;
use inlane_core::verification::Verification;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use reference::ReferenceFunction;
use std::sync::{Arc, Mutex, MutexGuard};
use tracker::{Counts, Tracker};

/// The specification of a checker: `check`, or `check:SIZE|imix` with the options of a generator.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// The traffic of a generator in another process. `None` for the generator of the same run.
    pub traffic: Option<Traffic>,
}

impl CheckSpec {
    /// Parses the specification.
    ///
    /// # Errors
    /// As for [`Traffic::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        let traffic = match text.contains([':', ',']) {
            true => Some(Traffic::parse(text)?.0),
            false => None,
        };
        Ok(Self { text: text.into(), traffic })
    }
}

/// The `check` port, which verifies the packets that are sent to it. It has transmit queues only.
pub struct Checker {
    info: PortInfo,
    clock: Clock,
    expectation: Arc<ExpectedPackets>,
    /// The counts of sent packets, if the generator is in this process.
    sent: Option<Arc<SentCounts>>,
    taken: Vec<bool>,
    findings: Arc<Mutex<Findings>>,
}

/// The results of all queues of a checker. A queue adds its results when it is dropped.
#[derive(Default)]
struct Findings {
    counts: Counts,
    altered: u64,
    /// The first altered packet of a queue, and its first difference.
    altered_example: Option<String>,
    unidentified: u64,
    foreign: u64,
    /// One more than the largest sequence number received, for each flow.
    reached: Vec<u64>,
    latency: LatencyHistogram,
}

impl Checker {
    /// Opens the checker that `text` names. See [`Checker::new`].
    ///
    /// # Errors
    /// As for [`CheckSpec::parse`] and [`Checker::new`].
    pub fn open(
        text: &str,
        clock: &Clock,
        source: Option<&Generator>,
        reference: impl Into<Option<Arc<dyn ReferenceFunction>>>,
        number: u16,
    ) -> Result<Self> {
        Self::new(CheckSpec::parse(text)?, clock, source, reference, number)
    }

    /// Opens the checker that `spec` describes. `check` expects the packets of the generator `source`.
    /// `check:SIZE,...` expects the packets of a generator in another process, and repeats that generator's
    /// options. `reference` models the packet function between generator and checker. The checker expects the
    /// packets that this function sends to port `number`.
    ///
    /// Without a reference, the checker reads only stamps, and expects every packet of `source`. The caller must then subtract
    /// the packets that the function drops.
    ///
    /// Latency is measured against due times of `clock`, which `source` must use too.
    ///
    /// # Errors
    /// If neither `spec` nor `source` tells which packets are sent, or if they differ. Also if there is neither a reference nor
    /// a generator in this process.
    pub fn new(
        spec: CheckSpec,
        clock: &Clock,
        source: Option<&Generator>,
        reference: impl Into<Option<Arc<dyn ReferenceFunction>>>,
        number: u16,
    ) -> Result<Self> {
        let CheckSpec { text, traffic: own } = spec;
        let reference = reference.into();
        if reference.is_none() && source.is_none() {
            let why = format!(
                "the generator is in another process, and the packet function has no reference, so the checker cannot know which \
                 packets it drops; give {REFERENCE} a function that does the same"
            );
            return Err(Error::port_usage(text, why));
        }
        let (traffic, sent) = match (own, source) {
            (Some(own), Some(source)) if own != **source.traffic() => {
                let why = format!(
                    "the generator of this run, {}, sends other packets, so every packet would count as lost; give check \
                     without options, or the generator's own",
                    source.info().name
                );
                return Err(Error::port_usage(text, why));
            }
            (Some(traffic), None) => (Arc::new(traffic), None),
            (Some(_), Some(source)) if reference.is_none() => {
                (source.traffic().clone(), Some(source.sent().clone()))
            }
            (Some(traffic), Some(_)) => (Arc::new(traffic), None),
            (None, Some(source)) => (source.traffic().clone(), Some(source.sent().clone())),
            (None, None) => {
                let why = format!(
                    "there is nothing to compare with, because {RX} is no generator; receive from gen:SIZE, or give the \
                     options of another run's generator: check:64,flows=8"
                );
                return Err(Error::port_usage(text, why));
            }
        };
        Ok(Self {
            info: PortInfo {
                name: text,
                path: "inlane checker".into(),
                touches_payload: true,
                max_queues: u16::MAX,
                spreads_flows: true,
                link_bits_per_second: None,
                twin: false,
            },
            clock: clock.clone(),
            findings: Arc::new(Mutex::new(Findings {
                reached: vec![0; traffic.flows as usize],
                ..Findings::default()
            })),
            expectation: Arc::new(ExpectedPackets::new(traffic, reference, number)),
            sent,
            taken: Vec::new(),
        })
    }

    /// Returns the number of packets from elsewhere than the generator. Valid once the queues are dropped.
    #[cfg(test)]
    pub(crate) fn foreign(&self) -> u64 {
        self.findings().foreign
    }

    /// Returns how many packets the function correctly dropped or sent to other ports. Valid once the queues
    /// are dropped.
    #[cfg(test)]
    pub(crate) fn dropped_as_expected(&self) -> u64 {
        let sent = self.sent_by_flow(&self.findings());
        sent.iter().zip(0..).map(|(&sent, flow)| self.expectation.dropped_of(flow, sent)).sum()
    }

    fn findings(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().expect("no code panics while it holds this lock")
    }

    /// Returns how many packets of each flow were sent. If the generator runs in another process, counts up
    /// to the last received packet.
    fn sent_by_flow(&self, findings: &Findings) -> Vec<u64> {
        self.sent.as_ref().map_or_else(|| findings.reached.clone(), |sent| sent.by_flow())
    }
}

impl Port for Checker {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if !pools.is_empty() {
            let why = "a checker cannot be received from; receive from gen:SIZE";
            return Err(Error::port_usage(&self.info.name, why));
        }
        self.taken = vec![false; tx_queues as usize];
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        let why = "a checker cannot be received from; receive from gen:SIZE";
        Err(Error::port_usage(&self.info.name, why))
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        require_cpu_memory(&self.info.name, &pool)?;
        match self.taken.get_mut(queue as usize) {
            Some(taken @ false) => *taken = true,
            _ => {
                let why = format!("transmit queue {queue} does not exist or is taken");
                return Err(Error::port_usage(&self.info.name, why));
            }
        }
        Ok(Box::new(CheckerTx {
            pool,
            clock: self.clock.clone(),
            timed: self.sent.is_some(),
            tracker: Tracker::new(self.expectation.traffic().flows),
            expectation: self.expectation.clone(),
            found: Findings::default(),
            scratch: Vec::new(),
            counters: Counters::default(),
            findings: self.findings.clone(),
        }))
    }

    fn verification(&self) -> Option<Verification> {
        let findings = self.findings();
        let sent = self.sent_by_flow(&findings);
        let expected: u64 =
            sent.iter().zip(0..).map(|(&sent, flow)| sent - self.expectation.dropped_of(flow, sent)).sum();
        let arrived = findings.counts.unique + findings.unidentified;
        Some(Verification {
            method: self.expectation.method(),
            // Leave the number out if the generator runs in another process, because it is then unknown. Also
            // leave it out if the generator sent nothing. With 0 expected packets, the check would pass.
            expected: self.sent.as_ref().filter(|sent| sent.total() > 0).map(|_| expected),
            checked: arrived + findings.counts.duplicated,
            lost: expected.saturating_sub(arrived),
            duplicated: findings.counts.duplicated,
            reordered: findings.counts.reordered,
            altered: findings.altered + findings.unidentified,
            altered_example: findings.altered_example.clone(),
        })
    }

    fn latency(&self) -> Option<LatencyHistogram> {
        // Return no latency if the generator runs in another process, because that process has another clock.
        self.sent.as_ref()?;
        Some(self.findings().latency.clone())
    }
}

/// A transmit queue of a checker.
struct CheckerTx {
    pool: Arc<dyn Pool>,
    clock: Clock,
    /// True if the generator uses the same clock, so latency can be measured.
    timed: bool,
    expectation: Arc<ExpectedPackets>,
    tracker: Tracker,
    found: Findings,
    scratch: Vec<u8>,
    counters: Counters,
    findings: Arc<Mutex<Findings>>,
}

impl CheckerTx {
    /// Classifies and counts a packet that does not match its template. Returns its length.
    ///
    /// # Safety
    /// The packet is from this queue's pool, and the caller holds it.
    #[cold]
    unsafe fn examine(&mut self, packet: &Packet, now_ns: u64) -> usize {
        self.scratch.clear();
        let scratch = &mut self.scratch;
        // SAFETY: the caller upholds the pool's safety contract. `take_tx` checked that the CPU maps the
        // memory.
        unsafe { self.pool.for_each_part(packet, &mut |part| scratch.extend_from_slice(part)) };
        match self.expectation.examine(&self.scratch) {
            Classification::Correct(stamp) => {
                self.tracker.record(stamp.flow, stamp.sequence);
                if self.timed {
                    self.found.latency.record(stamp.age_ns(now_ns), 1);
                }
            }
            Classification::Altered(stamp) => {
                self.found.altered += 1;
                if self.found.altered_example.is_none() {
                    self.found.altered_example = Some(self.expectation.difference(&self.scratch, stamp));
                }
                // Record only expected packets, because other packets cannot be lost or duplicated.
                if !self.expectation.is_dropped(stamp) {
                    self.tracker.record(stamp.flow, stamp.sequence);
                }
            }
            Classification::Unidentified => self.found.unidentified += 1,
            Classification::Foreign => self.found.foreign += 1,
        }
        self.scratch.len()
    }
}

// SAFETY: `send` frees all packets and returns their number.
unsafe impl Tx for CheckerTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        let now_ns = self.clock.now_ns();
        let expectation = self.expectation.clone();
        let cases = expectation.cases();
        for packet in packets {
            // SAFETY: the caller holds the packet. `take_tx` checked that the CPU maps the pool's memory.
            let bytes = unsafe { packet.bytes() };
            if let Some(stamp) = expectation.matches_template(cases, bytes) {
                self.tracker.record(stamp.flow, stamp.sequence);
                if self.timed {
                    self.found.latency.record(stamp.age_ns(now_ns), 1);
                }
                self.counters.bytes += bytes.len() as u64;
            } else {
                // SAFETY: the caller guarantees that it holds the packet, which is from this pool.
                self.counters.bytes += unsafe { self.examine(packet, now_ns) } as u64;
            }
        }
        self.counters.packets += packets.len() as u64;
        // SAFETY: the caller guarantees that it holds the packets, that they are from this pool, and that
        // nobody uses them afterwards.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for CheckerTx {
    fn drop(&mut self) {
        // Do nothing if the lock is poisoned, because another queue has then panicked, and the run has failed
        // anyway.
        let Ok(mut findings) = self.findings.lock() else { return };
        findings.counts += self.tracker.counts();
        findings.altered += self.found.altered;
        if findings.altered_example.is_none() {
            findings.altered_example = self.found.altered_example.take();
        }
        findings.unidentified += self.found.unidentified;
        findings.foreign += self.found.foreign;
        findings.latency.add(&self.found.latency);
        for (reached, &own) in findings.reached.iter_mut().zip(self.tracker.reached()) {
            *reached = own.max(*reached);
        }
    }
}
