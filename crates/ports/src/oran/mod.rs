//! `gen:oran`: sends the user plane of an O-RAN radio as eCPRI over Ethernet (O-RAN.WG4.CUS). It consists of
//! the IQ samples of several antenna-carriers, symbol by symbol.
//!
//! The [`Plan`] determines every packet, and which packets are shuffled or lost on purpose.

mod plan;

#[cfg(test)]
mod tests;

use crate::field::ROOM;
use crate::generate::require_cpu_memory;
use inlane_core::clock::Clock;
use inlane_core::load::Schedule;
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
pub use plan::{Plan, PlannedPacket, RadioLoad, SymbolTime};
use std::sync::Arc;

/// The most positions of the packet plan that one call of [`RadioRx::position`] skips.
const MAX_SKIPPED: usize = 4096;

/// The specification of a radio: `gen:oran` with its options.
#[derive(Clone, Debug, PartialEq)]
pub struct RadioSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// The packets that the radio sends.
    pub plan: Arc<Plan>,
    /// How fast it sends, and how much.
    pub load: RadioLoad,
}

impl RadioSpec {
    /// Parses the specification. [`Plan::parse`] lists the options.
    ///
    /// # Errors
    /// As for [`Plan::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        let (plan, load) = Plan::parse(text)?;
        Ok(Self { text: text.into(), plan: Arc::new(plan), load })
    }
}

/// The `gen:oran` port, which creates the packets of a radio. It has receive queues only.
pub struct Radio {
    info: PortInfo,
    plan: Arc<Plan>,
    load: RadioLoad,
    clock: Clock,
    queue: Option<RadioRx>,
}

impl Radio {
    /// Opens the radio that `text` specifies. See [`Radio::new`].
    ///
    /// # Errors
    /// As for [`Plan::parse`].
    pub fn open(text: &str, clock: &Clock) -> Result<Self> {
        Ok(Self::new(RadioSpec::parse(text)?, clock))
    }

    /// Opens the radio that `spec` describes. `clock` provides the packets' due times.
    pub fn new(spec: RadioSpec, clock: &Clock) -> Self {
        let RadioSpec { text, plan, load } = spec;
        let info = PortInfo {
            name: text,
            path: "inlane O-RAN radio".into(),
            touches_payload: true,
            max_queues: 1,
            spreads_flows: false,
            link_bits_per_second: None,
            twin: false,
        };
        Self { info, plan, load, clock: clock.clone(), queue: None }
    }

    /// Returns the plan of all packets. The plan includes which packets are shuffled or lost.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Sets the rate from the next [`Port::configure`]. `None` means real time if the specification has
    /// `realtime`. If not, it means as fast as packets are received.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.load.rate = rate;
    }
}

impl Port for Radio {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], _tx_queues: u16) -> Result<()> {
        let [pool] = pools else {
            return Err(Error::port_usage(&self.info.name, "a radio has one queue; use one pipeline"));
        };
        require_cpu_memory(&self.info.name, pool)?;
        if pool.room() < self.plan.longest() {
            let (needed, room) = (self.plan.longest(), pool.room());
            let why = format!(
                "frames need buffers of {needed} bytes, and the pool's have {room}; give {}",
                ROOM.with(needed)
            );
            return Err(Error::port_usage(&self.info.name, why));
        }
        let pacing = match (self.load.rate, self.load.realtime) {
            (Some(rate), _) => Pacing::Rate(Schedule::new(rate, 1.0)),
            (None, true) => Pacing::Realtime { start_ns: None },
            (None, false) => Pacing::Unlimited,
        };
        self.queue = Some(RadioRx {
            pool: pool.clone(),
            plan: self.plan.clone(),
            clock: self.clock.clone(),
            pacing,
            end: self.load.positions.unwrap_or(u64::MAX),
            last_block_end: self
                .load
                .positions
                .map_or(u64::MAX, |end| end.next_multiple_of(self.plan.shuffle as u64)),
            next: 0,
            order: Vec::with_capacity(self.plan.shuffle),
            counters: Counters::default(),
        });
        Ok(())
    }

    fn take_rx(&mut self, _queue: u16) -> Result<Box<dyn Rx>> {
        match self.queue.take() {
            Some(queue) => Ok(Box::new(queue)),
            None => Err(Error::port_usage(&self.info.name, "its only receive queue is taken")),
        }
    }

    fn take_tx(&mut self, _queue: u16, _pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Err(Error::port_usage(&self.info.name, "a generator cannot be sent to; send to pcap:FILE or null"))
    }
}

/// Decides when a radio's packets become due.
enum Pacing {
    Unlimited,
    Rate(Schedule),
    Realtime { start_ns: Option<u64> },
}

/// The receive queue of a radio.
struct RadioRx {
    pool: Arc<dyn Pool>,
    plan: Arc<Plan>,
    clock: Clock,
    pacing: Pacing,
    /// The number of packets in the plan. Packets that are lost on purpose count too.
    end: u64,
    /// The next position, counted in sending order: all earlier positions were sent, lost or skipped.
    next: u64,
    /// The number of packets in the plan, rounded up to whole blocks. The packets of a block are shuffled
    /// together.
    last_block_end: u64,
    /// The packets of the current block in sending order. Each entry is a packet's position in the plan.
    order: Vec<u64>,
    counters: Counters,
}

impl RadioRx {
    /// Returns the position of the next packet to send. Skips packets that are to be lost on purpose. Also
    /// skips positions of the last block that lie beyond the end.
    ///
    /// Returns `None` at the end. Also returns `None` after [`MAX_SKIPPED`] skipped positions, so that a call
    /// takes bounded time even if most packets are lost.
    fn position(&mut self) -> Option<u64> {
        let shuffle = self.plan.shuffle as u64;
        for _ in 0..MAX_SKIPPED {
            if self.next >= self.last_block_end {
                return None;
            }
            if self.next.is_multiple_of(shuffle) {
                self.plan.order(self.next / shuffle, &mut self.order);
            }
            let position = self.order[(self.next % shuffle) as usize];
            if position < self.end && !self.plan.is_lost(position) {
                return Some(position);
            }
            self.next += 1;
        }
        None
    }

    fn is_due(&mut self, now_ns: u64) -> bool {
        match &mut self.pacing {
            Pacing::Unlimited => true,
            Pacing::Rate(schedule) => schedule.due_at_most(now_ns, 1, 0.0) > 0,
            Pacing::Realtime { start_ns } => {
                let symbol = self.next / self.plan.packets_per_symbol();
                let due = (symbol as f64 * self.plan.symbol_ns()) as u64;
                now_ns - *start_ns.get_or_insert(now_ns) >= due
            }
        }
    }
}

// SAFETY: the packets are newly allocated. `configure` checked that the longest frame fits into a buffer.
unsafe impl Rx for RadioRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = self.clock.now_ns();
        if self.position().is_none() || !self.is_due(now_ns) {
            return Ok(0);
        }
        let allocated = self.pool.allocate(packets);
        let mut filled = 0;
        for packet in &mut packets[..allocated] {
            let Some(position) = self.position() else { break };
            if !self.is_due(now_ns) {
                break;
            }
            packet.length = self.plan.longest() as u32;
            // SAFETY: the packet was just allocated. `configure` checked that the CPU maps the pool, and that
            // a buffer holds the longest frame.
            let length = self.plan.write(position, unsafe { packet.bytes_mut() });
            packet.length = length as u32;
            if let Pacing::Rate(schedule) = &mut self.pacing {
                schedule.advance(length);
            }
            self.counters.bytes += length as u64;
            self.next += 1;
            filled += 1;
        }
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { self.pool.free(&packets[filled..allocated]) };
        self.counters.packets += filled as u64;
        Ok(filled)
    }

    fn exhausted(&self) -> bool {
        self.next >= self.last_block_end
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
