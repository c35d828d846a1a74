//! `null[:SIZE]`: receives newly created packets of one size, and discards all sent packets.
//!
//! The port accesses no byte of a packet, so it works with any pool, including pools in GPU memory. A run
//! between null ports measures the pipeline alone. DPDK's own null port is `net_null`.

use crate::field::ROOM;
use inlane_core::clock::Clock;
use inlane_core::load::Schedule;
use inlane_core::port::Counters;
use inlane_core::port::spec::SpecText;
use inlane_core::units::Rate;
use inlane_core::{Error, Packet, Pool, Port, PortInfo, Result, Rx, Tx};
use std::sync::Arc;

/// The largest number of queues of a null port.
const MAX_QUEUES: u16 = 64;

/// The specification of a null port: `null` or `null:SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// The length of received packets in bytes.
    pub size: u32,
}

/// `null`, with packets of 64 bytes.
impl Default for NullSpec {
    fn default() -> Self {
        Self { text: "null".into(), size: 64 }
    }
}

impl NullSpec {
    /// Parses `null` or `null:SIZE`.
    ///
    /// # Errors
    /// If SIZE, the packets' length, is not 14 to 65,535 bytes, or if `text` has options: this port has none.
    pub fn parse(text: &str) -> Result<Self> {
        let spec = SpecText::parse(text)?;
        let size = spec.argument_number("frame size", Self::default().size, 14..=65535)?;
        spec.finish()?;
        Ok(Self { text: text.into(), size })
    }
}

/// The `null` port.
pub struct Null {
    info: PortInfo,
    size: u32,
    rate: Option<Rate>,
    clock: Clock,
    rx: Vec<Option<NullRx>>,
    /// For each transmit queue: true if it was taken.
    tx: Vec<bool>,
}

impl Null {
    /// Opens the port `text`. See [`Null::new`].
    ///
    /// # Errors
    /// As for [`NullSpec::parse`].
    pub fn open(text: &str, clock: &Clock) -> Result<Self> {
        Ok(Self::new(NullSpec::parse(text)?, clock))
    }

    /// Opens the port that `spec` describes. `clock` tells when packets are due if [`Null::set_rate`] sets a rate.
    pub fn new(spec: NullSpec, clock: &Clock) -> Self {
        let NullSpec { text, size } = spec;
        let info = PortInfo {
            name: text,
            path: "null (no bytes touched)".into(),
            touches_payload: false,
            max_queues: MAX_QUEUES,
            spreads_flows: true,
            link_bits_per_second: None,
            twin: false,
        };
        Self { info, size, rate: None, clock: clock.clone(), rx: Vec::new(), tx: Vec::new() }
    }

    /// Returns the size of this port's packets in bytes.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Sets the rate of all queues together. `None` means as fast as packets are received.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        self.rate = rate;
    }

    fn taken(&self, direction: &str, queue: u16) -> Error {
        Error::port_failed(&self.info.name, format!("{direction} queue {queue} does not exist or is taken"))
    }
}

impl Port for Null {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if let Some(pool) = pools.iter().find(|pool| pool.room() < self.size()) {
            return Err(Error::port_usage(
                &self.info.name,
                format!(
                    "frames need buffers of {} bytes, and the pool's have {}; give {}",
                    self.size,
                    pool.room(),
                    ROOM.with(self.size)
                ),
            ));
        }
        let share = 1.0 / pools.len().max(1) as f64;
        self.rx = pools
            .iter()
            .map(|pool| {
                Some(NullRx {
                    pool: pool.clone(),
                    size: self.size,
                    schedule: self.rate.map(|rate| (Schedule::new(rate, share), self.clock.clone())),
                    packets: 0,
                })
            })
            .collect();
        self.tx = vec![false; tx_queues as usize];
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>> {
        match self.rx.get_mut(queue as usize).and_then(Option::take) {
            Some(source) => Ok(Box::new(source)),
            None => Err(self.taken("receive", queue)),
        }
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        match self.tx.get_mut(queue as usize) {
            Some(taken @ false) => {
                *taken = true;
                Ok(Box::new(NullTx { pool, counters: Counters::default() }))
            }
            _ => Err(self.taken("send", queue)),
        }
    }
}

/// A receive queue of a null port.
struct NullRx {
    pool: Arc<dyn Pool>,
    size: u32,
    schedule: Option<(Schedule, Clock)>,
    packets: u64,
}

// SAFETY: the packets are newly allocated. `configure` checked that their size fits into a buffer.
unsafe impl Rx for NullRx {
    #[inline]
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let mut want = packets.len();
        if let Some((schedule, clock)) = &mut self.schedule {
            want = schedule.due_at_most(clock.now_ns(), want, self.size as f64);
        }
        let got = self.pool.allocate(&mut packets[..want]);
        for packet in &mut packets[..got] {
            packet.length = self.size;
        }
        if let Some((schedule, _)) = &mut self.schedule {
            (0..got).for_each(|_| schedule.advance(self.size as usize));
        }
        self.packets += got as u64;
        Ok(got)
    }

    fn counters(&self) -> Counters {
        Counters { packets: self.packets, bytes: self.packets * self.size as u64, ..Counters::default() }
    }
}

/// A transmit queue of a null port.
struct NullTx {
    pool: Arc<dyn Pool>,
    counters: Counters,
}

// SAFETY: `send` frees all packets and returns their number.
unsafe impl Tx for NullTx {
    #[inline]
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        self.counters.packets += packets.len() as u64;
        self.counters.bytes += packets.iter().map(|packet| packet.length as u64).sum::<u64>();
        // SAFETY: the caller owns the packets, which are from this pool. Nobody uses them afterwards.
        unsafe { self.pool.free(packets) };
        Ok(packets.len())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::HeapPool;

    #[test]
    fn packets_are_created_and_discarded() {
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 2048).unwrap());
        let mut port = Null::open("null:1024", &Clock::new()).unwrap();
        port.configure(std::slice::from_ref(&pool), 1).unwrap();
        let mut rx = port.take_rx(0).unwrap();
        let mut tx = port.take_tx(0, pool.clone()).unwrap();
        assert!(port.take_rx(0).is_err() && port.take_tx(0, pool.clone()).is_err());
        let mut packets = [Packet::EMPTY; 16];
        let got = rx.receive(&mut packets).unwrap();
        assert_eq!((got, packets[0].length), (8, 1024));
        assert_eq!(rx.receive(&mut packets[8..]).unwrap(), 0, "the pool is empty");
        // SAFETY: the packets are from this queue's pool, and are not used again.
        assert_eq!(unsafe { tx.send(&packets[..got]) }.unwrap(), 8);
        assert_eq!(tx.counters().bytes, 8 * 1024);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn wrong_sizes_and_options_are_refused() {
        let clock = Clock::new();
        for text in ["null:0", "null:x", "null:70000", "null:64,copy=on", "null,foo=bar"] {
            assert!(Null::open(text, &clock).is_err(), "{text}");
        }
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 256).unwrap());
        let mut port = Null::open("null:1024", &clock).unwrap();
        assert!(port.configure(&[pool], 1).unwrap_err().to_string().contains("give room=1024"));
    }

    #[test]
    fn a_rate_spaces_packets() {
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 64).unwrap());
        let mut port = Null::open("null", &Clock::new()).unwrap();
        port.set_rate(Some(Rate::Packets(0.001)));
        port.configure(&[pool], 0).unwrap();
        let mut rx = port.take_rx(0).unwrap();
        let mut packets = [Packet::EMPTY; 32];
        assert_eq!(rx.receive(&mut packets).unwrap(), 1, "the first packet is due at once");
        assert_eq!(rx.receive(&mut packets[1..]).unwrap(), 0, "the next packet is due in 1000 s");
    }
}
