//! Staging through a ring in host memory, driven by the CPU. One mover fills chunks while another mover
//! empties chunks that are already full.
//!
//! ```text
//!  fill:   0 1 2 3 4 ...        at most `slots` chunks are full or being filled or emptied
//!  empty:    0 1 2 3 ...        a chunk is emptied after it is filled
//! ```

use crate::open_path::set_stages_completion_mode;
use crate::stop::check_stop;
use inlane_core::mover::{Mover, Ticket, TicketCounter, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Error, Region, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Copies with two movers at the same time. One mover fills a ring of chunks, the other mover empties the
/// ring. `submit` returns when the bytes are in place.
pub struct Staged {
    out: Box<dyn Mover>,
    into: Box<dyn Mover>,
    ring: Vec<Region>,
    completion: CompletionMode,
    stop: Arc<AtomicBool>,
    tickets: TicketCounter,
}

impl Staged {
    /// Joins two movers by `ring`, cut into `slots` chunks. `completion` says how the CPU waits for either
    /// mover; [`Mover::set_completion_mode`] changes it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are fewer than 2 chunks, or the ring has fewer bytes than chunks.
    pub fn new(
        out: Box<dyn Mover>,
        into: Box<dyn Mover>,
        ring: &Region,
        slots: usize,
        completion: CompletionMode,
    ) -> Result<Self> {
        let chunk = ring.len() / slots.max(1);
        if chunk == 0 || slots < 2 {
            return Err(Error::invalid(
                format!("a staging ring of {slots} chunks in {ring:?}"),
                "give at least two chunks of at least one byte",
            ));
        }
        let ring = (0..slots).map(|slot| ring.slice(slot * chunk, chunk)).collect::<Result<_>>()?;
        Ok(Self { out, into, ring, completion, stop: Arc::default(), tickets: TicketCounter::default() })
    }

    /// Makes transfers end early, with an error, when `stop` is set. Such a transfer still waits for its
    /// chunks in flight.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = stop.clone();
        self
    }

    fn run(&mut self, source: &Region, destination: &Region) -> Result<()> {
        let chunk = self.ring[0].len();
        let mut count = source.len().div_ceil(chunk);
        let span = |index: usize| (index * chunk, chunk.min(source.len() - index * chunk));
        let (mut filling, mut emptying) = (VecDeque::new(), VecDeque::new());
        let (mut sent, mut emptied) = (0, 0);
        let mut stopped = Ok(());
        while emptied < count {
            let mut progress = false;
            if stopped.is_ok() {
                stopped = check_stop(&self.stop);
                if stopped.is_err() {
                    count = sent;
                }
            }
            while sent < count && sent - emptied < self.ring.len() {
                let (offset, length) = span(sent);
                let slot = self.ring[sent % self.ring.len()].slice(0, length)?;
                filling.push_back((sent, self.out.submit(&source.slice(offset, length)?, &slot)?));
                sent += 1;
                progress = true;
            }
            let filled = self.out.done()?;
            while let Some((index, _)) = filling.front().filter(|(_, ticket)| *ticket <= filled).copied() {
                filling.pop_front();
                let (offset, length) = span(index);
                let slot = self.ring[index % self.ring.len()].slice(0, length)?;
                emptying.push_back(self.into.submit(&slot, &destination.slice(offset, length)?)?);
                progress = true;
            }
            let ended = self.into.done()?;
            while emptying.front().is_some_and(|ticket| *ticket <= ended) {
                emptying.pop_front();
                emptied += 1;
                progress = true;
            }
            if !progress && emptied < count {
                // Wait for the oldest chunk that is being filled, because the second mover needs filled
                // chunks. If none is being filled, wait for the oldest that is being emptied.
                match (filling.front(), emptying.front()) {
                    (Some((_, ticket)), _) => self.out.wait(*ticket, self.completion)?,
                    (None, Some(ticket)) => self.into.wait(*ticket, self.completion)?,
                    (None, None) => unreachable!("a chunk that was sent is being filled or emptied"),
                }
            }
        }
        stopped
    }
}

impl Mover for Staged {
    fn name(&self) -> String {
        self.hops().join(" -> ")
    }

    fn hops(&self) -> Vec<String> {
        let chunk = inlane_core::units::bytes(self.ring[0].len() as u64);
        let ring = format!("{} host chunks of {chunk}", self.ring.len());
        [self.out.hops(), vec![ring], self.into.hops()].concat()
    }

    fn is_twin(&self) -> bool {
        self.out.is_twin() || self.into.is_twin()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.out.reaches(source, &self.ring[0]) && self.into.reaches(&self.ring[0], destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        self.run(source, destination)?;
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
