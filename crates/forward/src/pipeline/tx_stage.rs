//! The sending stage of a pipeline: sends packets to the ports that their verdicts name.

use super::burst_buffer::BurstBuffer;
use super::{Overload, PipelineContext, PipelineSettings, Tally};
use crate::control::{Control, Idle};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::{Pool, Tx};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a run that is stopping waits for a port that accepts no packets.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends packets to the transmit queues of a pipeline.
pub struct TxStage {
    txs: Vec<Box<dyn Tx>>,
    /// One buffer per transmit port. If a burst has packets for several ports, the packets are sorted into
    /// these buffers.
    by_port: Vec<BurstBuffer>,
    /// Holds packets whose verdict names a port that does not exist, until these packets are freed.
    invalid: BurstBuffer,
    overload: Overload,
    /// The number of packets dropped because a port was full.
    refused: u64,
    dropped_invalid: u64,
    dropped_unsent: u64,
    /// True once a port accepted no packets for [`STOP_TIMEOUT`] while the run was stopping. From then on,
    /// packets that a port does not take at once are dropped.
    timed_out: bool,
    error: Option<inlane_core::Error>,
}

impl TxStage {
    /// Creates the stage for the queues `txs`, which send packets of `pool`.
    pub fn new(txs: Vec<Box<dyn Tx>>, pool: &Arc<dyn Pool>, settings: &PipelineSettings) -> Self {
        let buffer = || BurstBuffer::new(pool.clone(), settings.burst);
        Self {
            by_port: txs.iter().map(|_| buffer()).collect(),
            invalid: buffer(),
            txs,
            overload: settings.overload,
            refused: 0,
            dropped_invalid: 0,
            dropped_unsent: 0,
            timed_out: false,
            error: None,
        }
    }

    /// Sends a burst to the first port, with fewer checks than [`TxStage::send`]. Call it only if no address
    /// or length was changed since the burst was received.
    // Always inlined, because a call would save and restore registers in each burst.
    #[inline(always)]
    pub fn send_as_received(&mut self, burst: &mut BurstBuffer, control: &Control, clock: &Clock) -> bool {
        self.send_to(0, true, burst, control, clock)
    }

    /// Sends each packet of a burst to the port in the packet's `port` field. Drops and counts packets for
    /// missing ports. If a port is full, waits or drops, as [`Overload`] says. Returns true if the first call
    /// to every port sent all packets.
    #[inline]
    pub fn send(&mut self, burst: &mut BurstBuffer, control: &Control, clock: &Clock) -> bool {
        let Some(first) = burst.as_slice().first() else { return true };
        let port = first.port as usize;
        if port < self.txs.len() && burst.as_slice().iter().all(|packet| packet.port as usize == port) {
            return self.send_to(port, false, burst, control, clock);
        }
        self.send_by_port(burst, control, clock)
    }

    #[inline(always)]
    fn send_to(
        &mut self,
        port: usize,
        as_received: bool,
        burst: &mut BurstBuffer,
        control: &Control,
        clock: &Clock,
    ) -> bool {
        if burst.is_empty() {
            return true;
        }
        match self.send_once(port, as_received, burst) {
            Ok(_) if burst.is_empty() => true,
            outcome => self.send_rest(outcome, port, as_received, burst, control, clock),
        }
    }

    /// Offers the burst to the port in one call. Removes the accepted packets from the burst, and returns
    /// their number.
    #[inline(always)]
    fn send_once(
        &mut self,
        port: usize,
        as_received: bool,
        burst: &mut BurstBuffer,
    ) -> inlane_core::Result<usize> {
        let (tx, packets) = (&mut self.txs[port], burst.as_slice());
        // SAFETY: the buffer owns these packets, and they are from this queue's pool. The sent packets are
        // removed from the buffer below.
        let sent = unsafe { if as_received { tx.send_as_received(packets) } else { tx.send(packets) } }?;
        burst.release_front(sent);
        Ok(sent)
    }

    /// Handles the packets that the port did not accept in the first call. `outcome` is the result of that
    /// call. Offers the packets to the port again, waits, or drops them.
    #[cold]
    fn send_rest(
        &mut self,
        mut outcome: inlane_core::Result<usize>,
        port: usize,
        as_received: bool,
        burst: &mut BurstBuffer,
        control: &Control,
        clock: &Clock,
    ) -> bool {
        let mut at_once = true;
        let mut waiting: Option<(u64, Idle)> = None;
        loop {
            match outcome {
                Ok(0) => {
                    at_once = false;
                    if self.overload == Overload::Drop {
                        self.refused += burst.free_all() as u64;
                        break;
                    }
                    let (since, idle) = waiting.get_or_insert_with(|| (clock.raw(), Idle::default()));
                    let waited = clock.between_ns(*since, clock.raw()) > STOP_TIMEOUT.as_nanos() as u64;
                    if control.stopping() && (self.timed_out || waited) || control.aborting() {
                        self.timed_out = true;
                        self.dropped_unsent += burst.free_all() as u64;
                        break;
                    }
                    idle.wait();
                }
                Ok(_) => {
                    if burst.is_empty() {
                        break;
                    }
                    if let Some((since, idle)) = &mut waiting {
                        *since = clock.raw();
                        idle.found_work();
                    }
                }
                Err(error) => {
                    self.error.get_or_insert(error);
                    self.dropped_unsent += burst.free_all() as u64;
                    control.stop();
                    return false;
                }
            }
            outcome = self.send_once(port, as_received, burst);
        }
        at_once
    }

    /// Sends a burst to several ports, and drops packets for missing ports. Returns true if every port took
    /// its packets in the first call. Allocates nothing.
    #[inline(never)]
    fn send_by_port(&mut self, burst: &mut BurstBuffer, control: &Control, clock: &Clock) -> bool {
        for packet in burst.as_slice() {
            let buffer = self.by_port.get_mut(packet.port as usize).unwrap_or(&mut self.invalid);
            // SAFETY: the packet is from the same pool, and the burst releases it below.
            unsafe { buffer.push(*packet) };
        }
        burst.release_all();
        self.dropped_invalid += self.invalid.free_all() as u64;
        let mut at_once = true;
        let mut buffers = std::mem::take(&mut self.by_port);
        for (port, packets) in buffers.iter_mut().enumerate() {
            at_once &= self.send_to(port, false, packets, control, clock);
        }
        self.by_port = buffers;
        at_once
    }

    /// Flushes the ports.
    pub fn flush(&mut self, control: &Control) {
        for tx in &mut self.txs {
            if let Err(error) = tx.flush() {
                self.error.get_or_insert(error);
                control.stop();
            }
        }
    }

    /// Tells the ports that there have been no packets for some time.
    pub fn idle(&mut self) {
        self.txs.iter_mut().for_each(|tx| tx.idle());
    }

    /// Waits until each port has sent its buffered packets. After the run is stopped, waits at most
    /// [`STOP_TIMEOUT`].
    fn finish_ports(&mut self, control: &Control) {
        let mut stopped: Option<Instant> = None;
        let timed_out = self.timed_out;
        let mut keep_waiting = || {
            if control.stopping() {
                let stopped = *stopped.get_or_insert_with(Instant::now);
                return !control.aborting() && !timed_out && stopped.elapsed() < STOP_TIMEOUT;
            }
            true
        };
        for tx in &mut self.txs {
            if let Err(error) = tx.finish(&mut keep_waiting) {
                self.error.get_or_insert(error);
                control.stop();
            }
        }
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for tx in &self.txs {
            sum += tx.counters();
        }
        sum
    }

    /// Publishes the counts of sent and dropped packets. `dropped` is the number that other stages dropped.
    pub fn publish(&self, context: &PipelineContext<'_>, dropped: u64) {
        let (meter, counters) = (context.meter(), self.counters());
        if let Some(queues) = context.counters {
            queues.txs.iter().zip(&self.txs).for_each(|(queue, tx)| queue.set(tx.counters()));
        }
        meter.set(counters.packets, counters.bytes);
        meter.set_dropped(dropped + self.refused + self.dropped_invalid + self.dropped_unsent);
    }

    /// Ends the stage, and adds its counts to the tally.
    pub fn finish(mut self, control: &Control, tally: &mut Tally) {
        self.finish_ports(control);
        tally.tx = self.counters();
        tally.dropped_overload += self.refused;
        tally.refused_packets += self.refused;
        tally.dropped_invalid += self.dropped_invalid;
        tally.dropped_unsent += self.dropped_unsent;
        tally.errors.extend(self.error.map(Into::into));
    }
}
