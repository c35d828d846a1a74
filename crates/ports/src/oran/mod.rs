//! `gen:oran`: the user plane of an O-RAN radio, as eCPRI over Ethernet: IQ samples of several antenna-carriers, symbol after
//! symbol, in order or shuffled, whole or with losses, by a seed. What every packet holds, and which are missing, follows from
//! its [`Plan`].

mod plan;

#[cfg(test)]
mod tests;

use super::generate::pace::Schedule;
use super::generate::require_cpu_memory;
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
pub use plan::{Offer, Place, Plan, Time};
use std::sync::Arc;

/// The `gen:oran` port. It only receives.
pub struct Radio {
    info: PortInfo,
    plan: Arc<Plan>,
    offer: Offer,
    clock: Clock,
    queue: Option<Queue>,
}

impl Radio {
    /// True for a port's text that means this one.
    pub fn is(text: &str) -> bool {
        text.strip_prefix("gen:").is_some_and(|rest| rest.split(',').next() == Some("oran"))
    }

    /// Opens what `text` says ([`Plan::parse`]).
    ///
    /// # Errors
    /// As for [`Plan::parse`].
    pub fn open(text: &str, clock: &Clock) -> Result<Self> {
        let (plan, offer) = Plan::parse(text)?;
        let info = PortInfo {
            name: text.into(),
            path: "inlane O-RAN radio".into(),
            touches_payload: true,
            max_queues: 1,
            spreads_flows: false,
            link_bits_per_second: None,
            twin: false,
        };
        Ok(Self { info, plan: Arc::new(plan), offer, clock: clock.clone(), queue: None })
    }

    /// What it sends.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// How fast it is to send, `None` for as fast as it is asked or in real time. Counts from the next [`Port::configure`] on.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.offer.rate = rate;
    }
}

impl Port for Radio {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], _tx_queues: u16) -> Result<()> {
        let [pool] = pools else {
            return Err(Error::port_usage(&self.info.name, "a radio has one queue: use one pipeline"));
        };
        require_cpu_memory(&self.info.name, pool)?;
        if pool.room() < self.plan.longest() {
            let (needed, room) = (self.plan.longest(), pool.room());
            let why = format!("frames need buffers of {needed} bytes, they have {room}: give larger ones");
            return Err(Error::port_usage(&self.info.name, why));
        }
        let pace = match (self.offer.rate, self.offer.realtime) {
            (Some(rate), _) => Pace::Rate(Schedule::new(rate, 1.0)),
            (None, true) => Pace::Realtime { start_ns: None },
            (None, false) => Pace::Full,
        };
        self.queue = Some(Queue {
            pool: pool.clone(),
            plan: self.plan.clone(),
            clock: self.clock.clone(),
            pace,
            end: self.offer.positions.unwrap_or(u64::MAX),
            last_block_end: self
                .offer
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
            None => Err(Error::port_usage(&self.info.name, "its one receive queue is taken")),
        }
    }

    fn take_tx(&mut self, _queue: u16, _pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        Err(Error::port_usage(&self.info.name, "a generator only receives: send to pcap:FILE or null"))
    }
}

/// When packets are due.
enum Pace {
    Full,
    Rate(Schedule),
    Realtime { start_ns: Option<u64> },
}

struct Queue {
    pool: Arc<dyn Pool>,
    plan: Arc<Plan>,
    clock: Clock,
    pace: Pace,
    /// Positions in all, and how many are behind.
    end: u64,
    next: u64,
    /// Where the last block ends that begins in front of `end`.
    last_block_end: u64,
    /// The block that `next` is in, as it is sent.
    order: Vec<u64>,
    counters: Counters,
}

impl Queue {
    /// The position that is sent next; steps over those that are lost, and those behind the end.
    fn position(&mut self) -> Option<u64> {
        let shuffle = self.plan.shuffle as u64;
        // The last block may reach beyond the end: what is there is not sent.
        while self.next < self.last_block_end {
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
        match &mut self.pace {
            Pace::Full => true,
            Pace::Rate(schedule) => schedule.due_at_most(now_ns, 1, 0.0) > 0,
            Pace::Realtime { start_ns } => {
                let symbol = self.next / self.plan.packets_per_symbol();
                let due = (symbol as f64 * self.plan.symbol_ns()) as u64;
                now_ns - *start_ns.get_or_insert(now_ns) >= due
            }
        }
    }
}

// SAFETY: the packets are just allocated, and their lengths are checked against the data room.
unsafe impl Rx for Queue {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = self.clock.now_ns();
        if self.position().is_none() || !self.is_due(now_ns) {
            return Ok(0);
        }
        let taken = self.pool.allocate(packets);
        let mut given = 0;
        for packet in &mut packets[..taken] {
            let Some(position) = self.position() else { break };
            if !self.is_due(now_ns) {
                break;
            }
            packet.length = self.plan.longest() as u32;
            // SAFETY: just taken from the pool, in memory that the CPU maps, whose buffers hold the longest frame (both
            // checked at set-up).
            let length = self.plan.write(position, unsafe { packet.bytes_mut() });
            packet.length = length as u32;
            if let Pace::Rate(schedule) = &mut self.pace {
                schedule.advance(length);
            }
            self.counters.bytes += length as u64;
            self.next += 1;
            given += 1;
        }
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { self.pool.free(&packets[given..taken]) };
        self.counters.packets += given as u64;
        Ok(given)
    }

    fn exhausted(&self) -> bool {
        // Asked after nothing came: then `next` stands behind all that could.
        self.next >= self.last_block_end
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
