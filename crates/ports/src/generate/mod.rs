//! `gen:SIZE|imix`: creates packets of known flows, either as fast as the receiver takes them or by a
//! schedule.
//!
//! Each packet is a copy of a prepared [`template`] with a [`stamp`]: flow, sequence number, due time and
//! CRC.
//!
//! With a rate, only the schedule determines due times. A packet that is received late keeps its due time, so
//! a checker measures its delay. This prevents coordinated omission.

pub mod stamp;
pub mod template;
pub mod traffic;

#[cfg(test)]
mod tests;

use crate::field::{MEMORY, ROOM};
use inlane_core::clock::Clock;
use inlane_core::load::Schedule;
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use stamp::Stamp;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use template::{HEADER_ROOM, Template};
pub use traffic::{OfferedLoad, Traffic};

/// The specification of a generator: `gen:SIZE|imix` with its options.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratorSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// What the generator sends.
    pub traffic: Traffic,
    /// How fast it sends, and how much.
    pub load: OfferedLoad,
}

impl GeneratorSpec {
    /// Parses the specification. [`Traffic::parse`] lists the options.
    ///
    /// # Errors
    /// As for [`Traffic::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        let (traffic, load) = Traffic::parse(text)?;
        Ok(Self { text: text.into(), traffic, load })
    }
}

/// The `gen` port, a generator: receiving from it creates packets. It has receive queues only.
pub struct Generator {
    info: PortInfo,
    traffic: Arc<Traffic>,
    load: OfferedLoad,
    clock: Clock,
    sent: Arc<SentCounts>,
    queues: Vec<Option<GeneratorRx>>,
}

/// Counts the packets that each queue of a generator has sent. Computes the count of each flow from these
/// numbers.
pub struct SentCounts {
    flows: u32,
    queues: Mutex<Vec<Arc<AtomicU64>>>,
}

impl SentCounts {
    fn new(flows: u32) -> Self {
        Self { flows, queues: Mutex::default() }
    }

    /// Returns the number of packets that all queues have sent.
    pub(crate) fn total(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Returns the number of packets that each flow has sent.
    pub fn by_flow(&self) -> Vec<u64> {
        let counts = self.counts();
        let queues = counts.len() as u64;
        (0..self.flows as u64)
            .map(|flow| {
                let Some(&total) = counts.get((flow % queues.max(1)) as usize) else { return 0 };
                // A round of a queue sends one packet of each of the queue's flows. In an incomplete round,
                // the first flows have sent one packet more than the others.
                let (queue, turn) = (flow % queues, flow / queues);
                let of_queue = flows_of(self.flows, queue as u32, queues as u32) as u64;
                total / of_queue + (turn < total % of_queue) as u64
            })
            .collect()
    }

    fn counts(&self) -> Vec<u64> {
        let queues = self.queues.lock().expect("no code panics while it holds this lock");
        queues.iter().map(|count| count.load(Ordering::Acquire)).collect()
    }
}

/// Returns the number of flows that queue `queue` of `queues` sends. Queue q of n sends the flows q, q + n, q
/// + 2n, and so on.
fn flows_of(flows: u32, queue: u32, queues: u32) -> u32 {
    (flows - queue).div_ceil(queues)
}

impl Generator {
    /// Opens the generator that `text` specifies. See [`Generator::new`].
    ///
    /// # Errors
    /// As for [`Traffic::parse`].
    pub fn open(text: &str, clock: &Clock) -> Result<Self> {
        Ok(Self::new(GeneratorSpec::parse(text)?, clock))
    }

    /// Opens the generator that `spec` describes. `clock` provides the packets' due times. The checker must use the
    /// same clock.
    pub fn new(spec: GeneratorSpec, clock: &Clock) -> Self {
        let GeneratorSpec { text, traffic, load } = spec;
        Self {
            info: PortInfo {
                name: text,
                path: "inlane generator".into(),
                touches_payload: true,
                max_queues: traffic.flows.min(u16::MAX as u32) as u16,
                spreads_flows: true,
                link_bits_per_second: None,
                twin: false,
            },
            sent: Arc::new(SentCounts::new(traffic.flows)),
            traffic: Arc::new(traffic),
            load,
            clock: clock.clone(),
            queues: Vec::new(),
        }
    }

    /// Returns the traffic that the generator sends.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Returns the counts of sent packets.
    pub fn sent(&self) -> &Arc<SentCounts> {
        &self.sent
    }

    /// Sets the total rate of all queues from the next [`Port::configure`]. `None` sends as fast as packets
    /// are received.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.load.rate = rate;
    }

    fn queue(
        &self,
        pool: &Arc<dyn Pool>,
        queue: u32,
        queues: u32,
        sent: Arc<AtomicU64>,
    ) -> Result<GeneratorRx> {
        require_cpu_memory(&self.info.name, pool)?;
        let needed = self.traffic.longest().max(HEADER_ROOM);
        if pool.room() < needed {
            return Err(Error::port_usage(
                &self.info.name,
                format!(
                    "frames need buffers of {needed} bytes, and the pool's have {}; give {}",
                    pool.room(),
                    ROOM.with(needed)
                ),
            ));
        }
        let body = self.traffic.body();
        let mut templates = Vec::new();
        for flow in (queue..self.traffic.flows).step_by(queues as usize) {
            for &size in &self.traffic.sizes {
                let frame = self.traffic.frame(size, Stamp { flow, sequence: 0, due_ns: 0 }, &body);
                templates.push(Template::of(&frame).expect("Traffic::frame writes right checksums"));
            }
        }
        let share = 1.0 / queues as f64;
        let limit =
            self.load.packets.map(|all| all / queues as u64 + ((queue as u64) < all % queues as u64) as u64);
        Ok(GeneratorRx {
            pool: pool.clone(),
            clock: self.clock.clone(),
            traffic: self.traffic.clone(),
            schedule: self.load.rate.map(|rate| Schedule::new(rate, share)),
            limit: limit.unwrap_or(u64::MAX),
            templates,
            body,
            first_flow: queue,
            stride: queues,
            turn: 0,
            sequence: 0,
            counters: Counters::default(),
            sent,
        })
    }
}

/// Checks that the CPU maps the memory of `pool`.
///
/// # Errors
/// If the CPU does not map the memory. The error names `port`.
pub(crate) fn require_cpu_memory(port: &str, pool: &Arc<dyn Pool>) -> Result<()> {
    let location = pool.region().location();
    if location.is_cpu_memory() {
        return Ok(());
    }
    Err(Error::port_usage(
        port,
        format!(
            "the CPU accesses its packets, which lie in {location}; choose host or pinned memory with {MEMORY}"
        ),
    ))
}

impl Port for Generator {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], _tx_queues: u16) -> Result<()> {
        let queues = pools.len() as u32;
        if queues > self.info.max_queues as u32 {
            let flows = self.traffic.flows;
            let why = format!("{flows} flows are too few for {queues} queues; give flows={queues} or more");
            return Err(Error::port_usage(&self.info.name, why));
        }
        let counts: Vec<Arc<AtomicU64>> = pools.iter().map(|_| Arc::default()).collect();
        self.queues.clear();
        for (index, (pool, sent)) in pools.iter().zip(&counts).enumerate() {
            self.queues.push(Some(self.queue(pool, index as u32, queues, sent.clone())?));
        }
        *self.sent.queues.lock().expect("no code panics while it holds this lock") = counts;
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>> {
        match self.queues.get_mut(queue as usize).and_then(Option::take) {
            Some(queue) => Ok(Box::new(queue)),
            None => Err(Error::port_usage(
                &self.info.name,
                format!("receive queue {queue} does not exist or is taken"),
            )),
        }
    }

    fn take_tx(&mut self, _queue: u16, _pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Err(Error::port_usage(
            &self.info.name,
            "a generator cannot be sent to; send to check, pcap:FILE or null",
        ))
    }
}

/// A receive queue of a generator. Its packets belong to several flows, and the flows take turns.
struct GeneratorRx {
    pool: Arc<dyn Pool>,
    clock: Clock,
    traffic: Arc<Traffic>,
    schedule: Option<Schedule>,
    limit: u64,
    /// One packet template for each flow of this queue and each size. The templates of one flow are adjacent.
    /// The flows are in the order of their turns.
    templates: Vec<Template>,
    body: Vec<u8>,
    first_flow: u32,
    stride: u32,
    /// The index of the next flow to send, among the flows of this queue.
    turn: u32,
    /// The sequence number of the next packet, modulo 2^32. Equal for all flows of the queue.
    sequence: u32,
    counters: Counters,
    sent: Arc<AtomicU64>,
}

impl GeneratorRx {
    #[inline(always)]
    fn template(&self) -> &Template {
        let sizes = self.traffic.sizes.len();
        &self.templates[self.turn as usize * sizes + self.traffic.size_index(self.sequence)]
    }

    #[inline(always)]
    fn next_turn(&mut self) {
        self.turn += 1;
        if self.turn as usize * self.traffic.sizes.len() == self.templates.len() {
            self.turn = 0;
            self.sequence = self.sequence.wrapping_add(1);
        }
    }
}

// SAFETY: the packets are newly allocated. `queue` checked that the longest frame fits into a buffer.
unsafe impl Rx for GeneratorRx {
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
        let mut filled = 0;
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
            // Reserve at least HEADER_ROOM bytes, because `Template::write` needs them even for a shorter
            // packet. The true length is set below.
            packet.length = (HEADER_ROOM as u32).max(length);
            let stamp =
                Stamp { flow: self.first_flow + self.turn * self.stride, sequence: self.sequence, due_ns };
            // SAFETY: the packet was just allocated. `queue` checked that the CPU maps the pool, and that a
            // buffer holds the longest frame and HEADER_ROOM bytes.
            let bytes = unsafe { packet.bytes_mut() };
            self.template().write(bytes, &self.body, stamp);
            packet.length = length;
            self.counters.bytes += length as u64;
            filled += 1;
            self.next_turn();
        }
        if filled < count {
            // SAFETY: the packets are from this pool, and are not used again.
            unsafe { self.pool.free(&packets[filled..count]) };
        }
        self.counters.packets += filled as u64;
        self.sent.store(self.counters.packets, Ordering::Release);
        Ok(filled)
    }

    fn exhausted(&self) -> bool {
        self.counters.packets == self.limit
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
