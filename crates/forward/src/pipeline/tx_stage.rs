//! The sending side of a pipeline: hands packets to the ports that their verdicts name.

use super::burst_buffer::BurstBuffer;
use super::{Overload, PipelineSettings, Tally};
use crate::control::{Control, Idle, Progress};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::{Packet, Pool, Tx};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a port that takes nothing is tried once the run is stopping.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sends packets to one or several queues.
pub struct TxStage {
    txs: Vec<Box<dyn Tx>>,
    sorted: Vec<BurstBuffer>,
    overload: Overload,
    dropped_overload: u64,
    dropped_invalid: u64,
    dropped_unsent: u64,
    /// A port took nothing for [`PATIENCE`] while the run was stopping: what is still in flight does not wait as long again.
    gave_up: bool,
    error: Option<inlane_core::Error>,
}

impl TxStage {
    /// Over the queues of a pipeline.
    pub fn new(txs: Vec<Box<dyn Tx>>, pool: &Arc<dyn Pool>, drive: &PipelineSettings) -> Self {
        let sorted = if txs.len() > 1 { txs.len() } else { 0 };
        Self {
            txs,
            sorted: (0..sorted).map(|_| BurstBuffer::new(pool.clone(), drive.burst)).collect(),
            overload: drive.overload,
            dropped_overload: 0,
            dropped_invalid: 0,
            dropped_unsent: 0,
            gave_up: false,
            error: None,
        }
    }

    /// Sends all that is held, packets that nobody changed since they were received; see [`TxStage::send`].
    #[inline]
    pub fn send_as_received(&mut self, held: &mut BurstBuffer, control: &Control, clock: &Clock) -> bool {
        self.send_to(0, true, held, control, clock)
    }

    /// Sends all that is held, or drops and counts it; true when nothing had to wait.
    #[inline]
    pub fn send(&mut self, held: &mut BurstBuffer, control: &Control, clock: &Clock) -> bool {
        if self.txs.len() == 1 {
            // The quick way: one port, all taken at once. A verdict that names another port finds none.
            if held.as_slice().iter().all(|packet| packet.port == 0) {
                return self.send_to(0, false, held, control, clock);
            }
        }
        self.send_sorted(held, control, clock)
    }

    fn send_to(
        &mut self,
        port: usize,
        as_received: bool,
        held: &mut BurstBuffer,
        control: &Control,
        clock: &Clock,
    ) -> bool {
        if held.is_empty() {
            return true;
        }
        // Nearly always all at once.
        match self.hand_over(port, as_received, held) {
            Ok(_) if held.is_empty() => true,
            outcome => self.send_rest(outcome, port, as_received, held, control, clock),
        }
    }

    /// One call of the port.
    #[inline]
    fn hand_over(
        &mut self,
        port: usize,
        as_received: bool,
        held: &mut BurstBuffer,
    ) -> inlane_core::Result<usize> {
        let (tx, packets) = (&mut self.txs[port], held.as_slice());
        // SAFETY: the buffer holds these packets, they are of this queue's pool, and it releases those that are sent.
        let sent = unsafe { if as_received { tx.send_as_received(packets) } else { tx.send(packets) } }?;
        held.release_front(sent);
        Ok(sent)
    }

    /// Goes on after a call that came out so.
    #[cold]
    fn send_rest(
        &mut self,
        mut outcome: inlane_core::Result<usize>,
        port: usize,
        as_received: bool,
        held: &mut BurstBuffer,
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
                        self.dropped_overload += held.give_back_from(0) as u64;
                        break;
                    }
                    let (since, idle) = waiting.get_or_insert_with(|| (clock.raw(), Idle::default()));
                    let waited = clock.between_ns(*since, clock.raw()) > PATIENCE.as_nanos() as u64;
                    if control.stopping() && (self.gave_up || waited) || control.aborting() {
                        self.gave_up = true;
                        self.dropped_unsent += held.give_back_from(0) as u64;
                        break;
                    }
                    idle.wait();
                }
                Ok(_) => {
                    if held.is_empty() {
                        break;
                    }
                    if let Some((since, idle)) = &mut waiting {
                        *since = clock.raw();
                        idle.busy();
                    }
                }
                Err(error) => {
                    self.error.get_or_insert(error);
                    self.dropped_unsent += held.give_back_from(0) as u64;
                    control.stop();
                    return false;
                }
            }
            outcome = self.hand_over(port, as_received, held);
        }
        at_once
    }

    #[cold]
    fn send_sorted(&mut self, held: &mut BurstBuffer, control: &Control, clock: &Clock) -> bool {
        let mut invalid = Vec::new();
        let mut queues = std::mem::take(&mut self.sorted);
        for packet in held.as_slice() {
            match queues.get_mut(packet.port as usize) {
                Some(queue) => {
                    queue.free_places(usize::MAX / 2)[0] = *packet;
                    queue.hold(1);
                }
                None => invalid.push(*packet),
            }
        }
        let pool = held.pool().clone();
        held.release_all();
        let mut at_once = true;
        if queues.is_empty() {
            // One port only: those for it go there, the others name a port that does not exist.
            let (good, bad): (Vec<Packet>, Vec<Packet>) =
                invalid.into_iter().partition(|packet| packet.port == 0);
            let mut queue = BurstBuffer::new(pool.clone(), good.len().max(1));
            queue.free_places(good.len())[..good.len()].copy_from_slice(&good);
            queue.hold(good.len());
            at_once &= self.send_to(0, false, &mut queue, control, clock);
            invalid = bad;
        }
        for (port, queue) in queues.iter_mut().enumerate() {
            at_once &= self.send_to(port, false, queue, control, clock);
        }
        self.sorted = queues;
        self.dropped_invalid += invalid.len() as u64;
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { pool.free(&invalid) };
        at_once
    }

    /// Pushes out what ports buffer.
    pub fn flush(&mut self, control: &Control) {
        for tx in &mut self.txs {
            if let Err(error) = tx.flush() {
                self.error.get_or_insert(error);
                control.stop();
            }
        }
    }

    /// Writes out what the ports buffer. Waits for slow readers until the run is stopped, and for [`PATIENCE`] after that.
    fn finish_ports(&mut self, control: &Control) {
        let mut stopped: Option<Instant> = None;
        let gave_up = self.gave_up;
        let mut keep_waiting = || {
            if control.stopping() {
                let stopped = *stopped.get_or_insert_with(Instant::now);
                return !control.aborting() && !gave_up && stopped.elapsed() < PATIENCE;
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

    /// Tells whoever looks what was sent; `dropped` is what others than the tx_stage dropped.
    pub fn publish(&self, progress: &Progress, dropped: u64) {
        let counters = self.counters();
        let own = self.dropped_overload + self.dropped_invalid + self.dropped_unsent;
        progress.sent(counters.packets, counters.bytes, dropped + own);
    }

    /// Ends it, adding what it counted to the tally.
    pub fn finish(mut self, control: &Control, tally: &mut Tally) {
        self.finish_ports(control);
        tally.tx = self.counters();
        tally.dropped_overload += self.dropped_overload;
        tally.refused_packets += self.dropped_overload;
        tally.dropped_invalid += self.dropped_invalid;
        tally.dropped_unsent += self.dropped_unsent;
        tally.errors.extend(self.error.map(Into::into));
    }
}
