//! `gen:SIZE|imix`: packets of known flows, each with its flow, number, due time and checksum inside, as fast as they are
//! asked for or by a schedule.
//!
//! What stays the same in a flow is made once ([`template`]); a packet costs a copy of its headers and body, a stamp, and
//! the checksum's change by it. With a rate, packets are due by the schedule alone: when nobody asked for them in time
//! they come late with the due time that they had, and the checker sees how late (no coordinated omission).

pub mod pace;
pub mod stamp;
pub mod template;
pub mod traffic;

#[cfg(test)]
mod tests;

use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use pace::Schedule;
use stamp::Stamp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use template::{HEADER_ROOM, Template};
pub use traffic::{Offer, Traffic};

/// The `gen:` port. It only receives.
pub struct Generator {
    info: PortInfo,
    traffic: Arc<Traffic>,
    offer: Offer,
    clock: Clock,
    ledger: Arc<Ledger>,
    queues: Vec<Option<Queue>>,
}

/// How many packets each queue of a generator has handed out, and so how many each flow sent.
pub struct Ledger {
    flows: u32,
    queues: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Ledger {
    fn new(flows: u32) -> Self {
        Self { flows, queues: Mutex::default() }
    }

    /// Packets handed out in all.
    pub fn total(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Packets handed out by each flow.
    pub fn by_flow(&self) -> Vec<u64> {
        let counts = self.counts();
        let queues = counts.len() as u64;
        (0..self.flows as u64)
            .map(|flow| {
                let Some(&total) = counts.get((flow % queues.max(1)) as usize) else { return 0 };
                // The queue's flows take turns: those in front have sent one more.
                let (queue, turn) = (flow % queues, flow / queues);
                let of_queue = flows_of(self.flows, queue as u32, queues as u32) as u64;
                total / of_queue + (turn < total % of_queue) as u64
            })
            .collect()
    }

    fn counts(&self) -> Vec<u64> {
        let queues = self.queues.lock().expect("no panic while it is held");
        queues.iter().map(|count| count.load(Ordering::Acquire)).collect()
    }
}

/// How many of `flows` queue `queue` of `queues` sends: every `queues`-th, from its own number on.
fn flows_of(flows: u32, queue: u32, queues: u32) -> u32 {
    (flows - queue).div_ceil(queues)
}

impl Generator {
    /// Opens what `text` says ([`Traffic::parse`]); due times are those of `clock`, which the checker must share.
    ///
    /// # Errors
    /// As for [`Traffic::parse`].
    pub fn open(text: &str, clock: &Clock) -> Result<Self> {
        let (traffic, offer) = Traffic::parse(text)?;
        Ok(Self {
            info: PortInfo {
                name: text.into(),
                path: "inlane generator".into(),
                touches_payload: true,
                max_queues: traffic.flows.min(u16::MAX as u32) as u16,
                spreads_flows: true,
                link_bits_per_second: None,
                twin: false,
            },
            ledger: Arc::new(Ledger::new(traffic.flows)),
            traffic: Arc::new(traffic),
            offer,
            clock: clock.clone(),
            queues: Vec::new(),
        })
    }

    /// What it sends: for the checker.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// How much it has sent: for the checker.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// How fast it is to send in all, `None` for as fast as it is asked. Counts from the next [`Port::configure`] on.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.offer.rate = rate;
    }

    /// How fast, and how many.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    fn queue(&self, pool: &Arc<dyn Pool>, queue: u32, queues: u32, sent: Arc<AtomicU64>) -> Result<Queue> {
        require_cpu_memory(&self.info.name, pool)?;
        let needed = self.traffic.longest().max(HEADER_ROOM);
        if pool.room() < needed {
            return Err(Error::port_usage(
                &self.info.name,
                format!("frames need buffers of {needed} bytes, they have {}: give larger ones", pool.room()),
            ));
        }
        let body = self.traffic.body();
        let mut templates = Vec::new();
        for flow in (queue..self.traffic.flows).step_by(queues as usize) {
            for &size in &self.traffic.sizes {
                let frame = self.traffic.frame(size, Stamp { flow, number: 0, due_ns: 0 }, &body);
                templates.push(Template::of(&frame).expect("frames of our own have right checksums"));
            }
        }
        let share = 1.0 / queues as f64;
        let limit =
            self.offer.packets.map(|all| all / queues as u64 + ((queue as u64) < all % queues as u64) as u64);
        Ok(Queue {
            pool: pool.clone(),
            clock: self.clock.clone(),
            traffic: self.traffic.clone(),
            schedule: self.offer.rate.map(|rate| Schedule::new(rate, share)),
            limit: limit.unwrap_or(u64::MAX),
            templates,
            body,
            first_flow: queue,
            stride: queues,
            turn: 0,
            number: 0,
            counters: Counters::default(),
            sent,
        })
    }
}

/// Fails unless the CPU can write the pool's packets.
pub(crate) fn require_cpu_memory(port: &str, pool: &Arc<dyn Pool>) -> Result<()> {
    let location = pool.region().location();
    if location.is_cpu_memory() {
        return Ok(());
    }
    Err(Error::port_usage(
        port,
        format!("it touches payload, and packets lie in {location}: keep them in host or pinned memory"),
    ))
}

impl Port for Generator {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], _tx_queues: u16) -> Result<()> {
        let queues = pools.len() as u32;
        if queues > self.info.max_queues as u32 {
            let why = format!("{} flows cannot be spread over {queues} queues", self.traffic.flows);
            return Err(Error::port_usage(&self.info.name, format!("{why}: give flows={queues} or more")));
        }
        let counts: Vec<Arc<AtomicU64>> = pools.iter().map(|_| Arc::default()).collect();
        self.queues.clear();
        for (index, (pool, sent)) in pools.iter().zip(&counts).enumerate() {
            self.queues.push(Some(self.queue(pool, index as u32, queues, sent.clone())?));
        }
        *self.ledger.queues.lock().expect("no panic while it is held") = counts;
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>> {
        match self.queues.get_mut(queue as usize).and_then(Option::take) {
            Some(queue) => Ok(Box::new(queue)),
            None => Err(Error::port_usage(
                &self.info.name,
                format!("there is no receive queue {queue}, or it is taken"),
            )),
        }
    }

    fn take_tx(&mut self, _queue: u16, _pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Err(Error::port_usage(&self.info.name, "a generator only receives: send to check, pcap:FILE or null"))
    }
}

/// One receive queue: its flows take turns.
struct Queue {
    pool: Arc<dyn Pool>,
    clock: Clock,
    traffic: Arc<Traffic>,
    schedule: Option<Schedule>,
    limit: u64,
    /// By turn, then by size.
    templates: Vec<Template>,
    body: Vec<u8>,
    first_flow: u32,
    stride: u32,
    /// Whose turn it is.
    turn: u32,
    /// How many turns each flow has had, modulo 2^32: the number of the next packet.
    number: u32,
    counters: Counters,
    sent: Arc<AtomicU64>,
}

impl Queue {
    #[inline(always)]
    fn template(&self) -> &Template {
        let sizes = self.traffic.sizes.len();
        &self.templates[self.turn as usize * sizes + self.traffic.size_index(self.number)]
    }

    #[inline(always)]
    fn next_turn(&mut self) {
        self.turn += 1;
        if self.turn as usize * self.traffic.sizes.len() == self.templates.len() {
            self.turn = 0;
            self.number = self.number.wrapping_add(1);
        }
    }
}

// SAFETY: the packets are just allocated, and their lengths are checked against the data room.
unsafe impl Rx for Queue {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now = self.clock.now_ns();
        let wanted =
            packets.len().min(usize::try_from(self.limit - self.counters.packets).unwrap_or(usize::MAX));
        let wanted = match &mut self.schedule {
            None => wanted,
            Some(schedule) => schedule.due_at_most(now, wanted, self.traffic.mean()),
        };
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.pool.allocate(&mut packets[..wanted]);
        let mut given = 0;
        for packet in &mut packets[..count] {
            let mut due_ns = now;
            let length = self.template().length;
            if let Some(schedule) = &mut self.schedule {
                due_ns = schedule.due_ns();
                if due_ns > now {
                    break;
                }
                schedule.advance(length as usize);
            }
            // Headers are written in one piece of constant length, which a short packet does not fill.
            packet.length = (HEADER_ROOM as u32).max(length);
            let stamp =
                Stamp { flow: self.first_flow + self.turn * self.stride, number: self.number, due_ns };
            // SAFETY: just taken from the pool, in memory that the CPU maps (checked at set-up), whose buffers hold the
            // longest frame and HEADER_ROOM (checked there too).
            let bytes = unsafe { packet.bytes_mut() };
            self.template().write(bytes, &self.body, stamp);
            packet.length = length;
            self.counters.bytes += length as u64;
            given += 1;
            self.next_turn();
        }
        if given < count {
            // SAFETY: these packets are held here, are of this pool, and are not used again.
            unsafe { self.pool.free(&packets[given..count]) };
        }
        self.counters.packets += given as u64;
        self.sent.store(self.counters.packets, Ordering::Release);
        Ok(given)
    }

    fn exhausted(&self) -> bool {
        self.counters.packets == self.limit
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
