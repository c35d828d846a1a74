//! `check`: takes what a generator sent, and verifies it: nothing lost, duplicated, reordered within its flow, or changed
//! beyond what the packet function does.
//!
//! What every packet must look like follows from the generator's text and a [`mod@reference`] of the function. Headers, lengths and
//! checksums are compared with a template of the flow, the payload by the CRC that it carries; a packet that differs in
//! anything is looked at again, slowly, to say how. Packets of others (the kernel's own on a veth) are told apart and
//! counted as foreign.
//!
//! A packet so broken that it cannot say which it is counts as altered, and not as lost too.

pub mod captures;
mod expect;
pub mod reference;
mod tracker;

#[cfg(test)]
mod tests;

use super::generate::{Generator, Ledger, Traffic, require_cpu_memory};
use expect::{Expectation, Found};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::result::Verification;
use inlane_core::stats::LatencyHistogram;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use reference::Reference;
use std::sync::{Arc, Mutex};
use tracker::{Counts, Tracker};

/// The `check` port. It only sends.
pub struct Checker {
    info: PortInfo,
    clock: Clock,
    expectation: Arc<Expectation>,
    /// Of the generator, where it is in this process.
    ledger: Option<Arc<Ledger>>,
    queues: u16,
    taken: Vec<bool>,
    findings: Arc<Mutex<Findings>>,
}

/// What queues found, once they are dropped.
#[derive(Default)]
struct Findings {
    counts: Counts,
    altered: u64,
    unreadable: u64,
    foreign: u64,
    /// One more than the largest number seen of each flow.
    reached: Vec<u64>,
    latency: LatencyHistogram,
}

impl Checker {
    /// Opens `check` for what `source` sends, or `check:SIZE,...` for what a generator elsewhere sends that was given the same
    /// options. Due times are those of `clock`, which the generator must share.
    ///
    /// # Errors
    /// When neither says what is sent, or the options make no sense.
    pub fn open(
        text: &str,
        clock: &Clock,
        source: Option<&Generator>,
        reference: Box<dyn Reference>,
        number: u16,
    ) -> Result<Self> {
        let own = (text != "check").then(|| Traffic::parse(text)).transpose()?;
        let (traffic, ledger) = match (own, source) {
            (Some((traffic, _)), _) => (Arc::new(traffic), None),
            (None, Some(source)) => (source.traffic().clone(), Some(source.ledger().clone())),
            (None, None) => {
                let why = "it must know what is sent: receive from gen:..., or give it the options of the generator \
                           elsewhere (check:64,flows=8)";
                return Err(Error::port_usage(text, why));
            }
        };
        Ok(Self {
            info: PortInfo {
                name: text.into(),
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
            expectation: Arc::new(Expectation::new(traffic, reference, number)),
            ledger,
            queues: 0,
            taken: Vec::new(),
        })
    }

    /// Packets that came and were none of the generator's; once the queues are dropped.
    pub fn foreign(&self) -> u64 {
        self.findings.lock().expect("no panic while it is held").foreign
    }

    /// Packets that the function dropped as it should; once the queues are dropped.
    pub fn dropped_as_expected(&self) -> u64 {
        let findings = self.findings.lock().expect("no panic while it is held");
        let sent = self.sent(&findings);
        sent.iter().zip(0..).map(|(&sent, flow)| self.expectation.dropped_of(flow, sent)).sum()
    }

    /// Packets of each flow that were sent, as far as is known: where the generator is elsewhere, those up to the last that
    /// came.
    fn sent(&self, findings: &Findings) -> Vec<u64> {
        self.ledger.as_ref().map_or_else(|| findings.reached.clone(), |ledger| ledger.by_flow())
    }
}

impl Port for Checker {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if !pools.is_empty() {
            return Err(Error::port_usage(&self.info.name, "a checker only sends: receive from gen:SIZE"));
        }
        self.queues = tx_queues;
        self.taken = vec![false; tx_queues as usize];
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        Err(Error::port_usage(&self.info.name, "a checker only sends: receive from gen:SIZE"))
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        require_cpu_memory(&self.info.name, &pool)?;
        match self.taken.get_mut(queue as usize) {
            Some(taken @ false) => *taken = true,
            _ => {
                let why = format!("there is no send queue {queue}, or it is taken");
                return Err(Error::port_usage(&self.info.name, why));
            }
        }
        Ok(Box::new(Queue {
            pool,
            clock: self.clock.clone(),
            timed: self.ledger.is_some(),
            tracker: Tracker::new(self.expectation.traffic().flows),
            expectation: self.expectation.clone(),
            found: Findings::default(),
            scratch: Vec::new(),
            counters: Counters::default(),
            findings: self.findings.clone(),
        }))
    }

    fn verification(&self) -> Option<Verification> {
        let findings = self.findings.lock().expect("no panic while it is held");
        let sent = self.sent(&findings);
        let wanted = sent.iter().zip(0..).map(|(&sent, flow)| sent - self.expectation.dropped_of(flow, sent));
        let arrived = findings.counts.unique + findings.unreadable;
        Some(Verification {
            method: self.expectation.method(),
            checked: arrived + findings.counts.duplicated,
            lost: wanted.sum::<u64>().saturating_sub(arrived),
            duplicated: findings.counts.duplicated,
            reordered: findings.counts.reordered,
            altered: findings.altered + findings.unreadable,
        })
    }

    fn latency(&self) -> Option<LatencyHistogram> {
        // Another process has another clock.
        self.ledger.as_ref()?;
        Some(self.findings.lock().expect("no panic while it is held").latency.clone())
    }
}

/// One send queue.
struct Queue {
    pool: Arc<dyn Pool>,
    clock: Clock,
    timed: bool,
    expectation: Arc<Expectation>,
    tracker: Tracker,
    found: Findings,
    scratch: Vec<u8>,
    counters: Counters,
    findings: Arc<Mutex<Findings>>,
}

impl Queue {
    /// Looks at a packet that is not plainly right; returns its length.
    #[cold]
    fn look_closely(&mut self, packet: &Packet, now_ns: u64) -> usize {
        self.scratch.clear();
        let scratch = &mut self.scratch;
        // SAFETY: the packet is held here and of this pool; each segment lies in memory that the CPU maps (checked at set-up).
        unsafe {
            self.pool.for_each_segment(packet, &mut |address, length| {
                scratch.extend_from_slice(std::slice::from_raw_parts(address as *const u8, length as usize));
            });
        }
        match self.expectation.look_closely(&self.scratch) {
            Found::Right(stamp) => {
                self.tracker.note(stamp.flow, stamp.number);
                self.found.latency.record(stamp.age_ns(now_ns), 1);
            }
            Found::Altered(stamp) => {
                self.found.altered += 1;
                // What should have been dropped is not missed either.
                if !self.expectation.is_dropped(stamp) {
                    self.tracker.note(stamp.flow, stamp.number);
                }
            }
            Found::Unreadable => self.found.unreadable += 1,
            Found::Foreign => self.found.foreign += 1,
        }
        self.scratch.len()
    }
}

// SAFETY: it frees all packets and returns their number.
unsafe impl Tx for Queue {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        let now_ns = self.clock.now_ns();
        for packet in packets {
            // SAFETY: the caller handed it over; in memory that the CPU maps (checked at set-up).
            let bytes = unsafe { packet.bytes() };
            if let Some(Found::Right(stamp)) = self.expectation.look(bytes) {
                self.tracker.note(stamp.flow, stamp.number);
                if self.timed {
                    self.found.latency.record(stamp.age_ns(now_ns), 1);
                }
                self.counters.bytes += bytes.len() as u64;
            } else {
                self.counters.bytes += self.look_closely(packet, now_ns) as u64;
            }
        }
        self.counters.packets += packets.len() as u64;
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A poisoned lock means that another queue panicked: its run has failed anyway.
        let Ok(mut findings) = self.findings.lock() else { return };
        findings.counts += self.tracker.counts();
        findings.altered += self.found.altered;
        findings.unreadable += self.found.unreadable;
        findings.foreign += self.found.foreign;
        findings.latency.add(&self.found.latency);
        for (reached, &own) in findings.reached.iter_mut().zip(self.tracker.reached()) {
            *reached = own.max(*reached);
        }
    }
}
