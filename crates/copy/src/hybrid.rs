//! The hybrid path of the published experiment ([`crate::published`]). Its three stages run one after the
//! other: DMA from one device to a host buffer, a CPU copy to another buffer, and DMA to the other device.

use crate::open_path::set_stages_completion_mode;
use crate::stop::check_stop;
use inlane_core::mover::{CpuMover, Mover, Ticket, TicketCounter, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Error, Region, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A mover with three stages, one after the other: DMA, a copy by the CPU, and DMA. `submit` returns only
/// when the transfer is complete.
pub struct Hybrid {
    out: Box<dyn Mover>,
    cpu: CpuMover,
    into: Box<dyn Mover>,
    buffers: [Region; 2],
    completion: CompletionMode,
    stop: Arc<AtomicBool>,
    tickets: TicketCounter,
}

impl Hybrid {
    /// Joins two movers by two host buffers. Transfers longer than a buffer are split into pieces of the
    /// buffer's length. `completion` is the completion mode of both DMA stages;
    /// [`Mover::set_completion_mode`] changes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the buffers differ in length.
    pub fn new(
        out: Box<dyn Mover>,
        into: Box<dyn Mover>,
        buffers: [Region; 2],
        completion: CompletionMode,
    ) -> Result<Self> {
        if buffers[0].len() != buffers[1].len() {
            return Err(Error::invalid(
                "the host buffers of path hybrid",
                "they differ in length; give two of the same length",
            ));
        }
        let stop = Arc::default();
        Ok(Self {
            out,
            cpu: CpuMover::widest(),
            into,
            buffers,
            completion,
            stop,
            tickets: TicketCounter::default(),
        })
    }

    /// Makes transfers end early, with an error, when `stop` is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = stop.clone();
        self
    }

    fn piece(&mut self, source: &Region, destination: &Region) -> Result<()> {
        let [first, second] =
            [self.buffers[0].slice(0, source.len())?, self.buffers[1].slice(0, source.len())?];
        let ticket = self.out.submit(source, &first)?;
        self.out.wait(ticket, self.completion)?;
        self.cpu.submit(&first, &second)?;
        let ticket = self.into.submit(&second, destination)?;
        self.into.wait(ticket, self.completion)
    }
}

impl Mover for Hybrid {
    fn name(&self) -> String {
        self.hops().join(" -> ")
    }

    fn hops(&self) -> Vec<String> {
        [self.out.hops(), self.cpu.hops(), self.into.hops()].concat()
    }

    fn is_twin(&self) -> bool {
        self.out.is_twin() || self.into.is_twin()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.out.reaches(source, &self.buffers[0]) && self.into.reaches(&self.buffers[1], destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        let step = self.buffers[0].len();
        let mut offset = 0;
        while offset < source.len() {
            check_stop(&self.stop)?;
            let length = step.min(source.len() - offset);
            self.piece(&source.slice(offset, length)?, &destination.slice(offset, length)?)?;
            offset += length;
        }
        Ok(self.tickets.issue())
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        self.completion = completion;
        set_stages_completion_mode([&mut *self.out, &mut *self.into], completion)
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(self.tickets.newest())
    }

    fn wait(&mut self, ticket: Ticket, _: CompletionMode) -> Result<()> {
        self.tickets.check(ticket)
    }
}
