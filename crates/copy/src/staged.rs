//! Staging through host memory, driven by the CPU. One mover copies from the source to host memory, another one from
//! there to the destination.
//!
//! ```text
//!  overlapping, path staged:  fill   0 1 2 3 4 ...        a ring of chunks: while one is filled, another is emptied
//!                             empty    0 1 2 3 ...
//!  in turn, path hybrid:      DMA -> first buffer, copy by the CPU -> second buffer, DMA -> destination
//! ```
//!
//! The published experiment ([`crate::published`]) uses path `hybrid`.

use crate::stop::check_stop;
use inlane_core::mover::{CpuMover, Mover, Ticket, TicketCounter, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Error, Region, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Copies with two movers through host memory. `submit` returns when the bytes are in place.
pub struct Staged {
    out: Box<dyn Mover>,
    into: Box<dyn Mover>,
    memory: HostMemory,
    completion: CompletionMode,
    stop: Arc<AtomicBool>,
    tickets: TicketCounter,
}

/// The host memory between the two movers.
enum HostMemory {
    /// A ring of chunks. Both movers work at the same time.
    Ring(Vec<Region>),
    /// Two buffers of the same length. The movers work one after the other, and the CPU copies between them.
    Buffers([Region; 2], CpuMover),
}

impl Staged {
    /// Joins two movers by `ring`, cut into `slots` chunks. The movers work at the same time. `completion` says how
    /// the CPU waits for either mover; [`Mover::set_completion_mode`] changes it. Transfers end early, with an error,
    /// when `stop` is set, after their chunks in flight.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are fewer than 2 chunks, or the ring has fewer bytes than chunks.
    pub fn overlapping(
        out: Box<dyn Mover>,
        into: Box<dyn Mover>,
        ring: &Region,
        slots: usize,
        completion: CompletionMode,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let chunk = ring.len() / slots.max(1);
        if chunk == 0 || slots < 2 {
            return Err(Error::invalid(
                format!("a staging ring of {slots} chunks in {ring:?}"),
                "give at least two chunks of at least one byte",
            ));
        }
        let ring = (0..slots).map(|slot| ring.slice(slot * chunk, chunk)).collect::<Result<_>>()?;
        Ok(Self::new(out, into, HostMemory::Ring(ring), completion, stop))
    }

    /// Joins two movers by two host buffers. The movers work one after the other. Transfers longer than a buffer are
    /// split into pieces of the buffer's length. For the other arguments, see [`Staged::overlapping`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the buffers differ in length.
    pub fn in_turn(
        out: Box<dyn Mover>,
        into: Box<dyn Mover>,
        buffers: [Region; 2],
        completion: CompletionMode,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        if buffers[0].len() != buffers[1].len() {
            return Err(Error::invalid(
                "the host buffers of path hybrid",
                "they differ in length; give two of the same length",
            ));
        }
        Ok(Self::new(out, into, HostMemory::Buffers(buffers, CpuMover::widest()), completion, stop))
    }

    fn new(
        out: Box<dyn Mover>,
        into: Box<dyn Mover>,
        memory: HostMemory,
        completion: CompletionMode,
        stop: &Arc<AtomicBool>,
    ) -> Self {
        Self { out, into, memory, completion, stop: stop.clone(), tickets: TicketCounter::default() }
    }

    fn run(&mut self, source: &Region, destination: &Region) -> Result<()> {
        let Self { out, into, memory, completion, stop, .. } = self;
        match memory {
            HostMemory::Ring(ring) => {
                overlap(&mut **out, &mut **into, ring, source, destination, *completion, stop)
            }
            HostMemory::Buffers([first, second], cpu) => {
                let step = first.len();
                for offset in (0..source.len()).step_by(step) {
                    check_stop(stop)?;
                    let length = step.min(source.len() - offset);
                    let (first, second) = (first.slice(0, length)?, second.slice(0, length)?);
                    let ticket = out.submit(&source.slice(offset, length)?, &first)?;
                    out.wait(ticket, *completion)?;
                    cpu.submit(&first, &second)?;
                    let ticket = into.submit(&second, &destination.slice(offset, length)?)?;
                    into.wait(ticket, *completion)?;
                }
                Ok(())
            }
        }
    }
}

/// Copies `source` through `ring` to `destination`: `out` fills chunks while `into` empties others.
fn overlap(
    out: &mut dyn Mover,
    into: &mut dyn Mover,
    ring: &[Region],
    source: &Region,
    destination: &Region,
    completion: CompletionMode,
    stop: &AtomicBool,
) -> Result<()> {
    let chunk = ring[0].len();
    let mut count = source.len().div_ceil(chunk);
    let span = |index: usize| (index * chunk, chunk.min(source.len() - index * chunk));
    let (mut filling, mut emptying) = (VecDeque::new(), VecDeque::new());
    let (mut sent, mut emptied) = (0, 0);
    let mut stopped = Ok(());
    while emptied < count {
        let mut progress = false;
        if stopped.is_ok() {
            stopped = check_stop(stop);
            if stopped.is_err() {
                count = sent;
            }
        }
        while sent < count && sent - emptied < ring.len() {
            let (offset, length) = span(sent);
            let slot = ring[sent % ring.len()].slice(0, length)?;
            filling.push_back((sent, out.submit(&source.slice(offset, length)?, &slot)?));
            sent += 1;
            progress = true;
        }
        let filled = out.done()?;
        while let Some((index, _)) = filling.front().filter(|(_, ticket)| *ticket <= filled).copied() {
            filling.pop_front();
            let (offset, length) = span(index);
            let slot = ring[index % ring.len()].slice(0, length)?;
            emptying.push_back(into.submit(&slot, &destination.slice(offset, length)?)?);
            progress = true;
        }
        let ended = into.done()?;
        while emptying.front().is_some_and(|ticket| *ticket <= ended) {
            emptying.pop_front();
            emptied += 1;
            progress = true;
        }
        if !progress && emptied < count {
            // Wait for the oldest chunk that is being filled, because the second mover needs filled
            // chunks. If none is being filled, wait for the oldest that is being emptied.
            match (filling.front(), emptying.front()) {
                (Some((_, ticket)), _) => out.wait(*ticket, completion)?,
                (None, Some(ticket)) => into.wait(*ticket, completion)?,
                (None, None) => unreachable!("a chunk that was sent is being filled or emptied"),
            }
        }
    }
    stopped
}

impl Mover for Staged {
    fn name(&self) -> String {
        self.hops().join(" -> ")
    }

    fn hops(&self) -> Vec<String> {
        let between = match &self.memory {
            HostMemory::Ring(ring) => {
                let chunk = inlane_core::units::bytes(ring[0].len() as u64);
                vec![format!("{} host chunks of {chunk}", ring.len())]
            }
            HostMemory::Buffers(_, cpu) => cpu.hops(),
        };
        [self.out.hops(), between, self.into.hops()].concat()
    }

    fn is_twin(&self) -> bool {
        self.out.is_twin() || self.into.is_twin()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let (first, last) = match &self.memory {
            HostMemory::Ring(ring) => (&ring[0], &ring[0]),
            HostMemory::Buffers([first, second], _) => (first, second),
        };
        self.out.reaches(source, first) && self.into.reaches(last, destination)
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

    /// Sets the completion mode of both movers. Returns `completion` if at least one of them supports it, because
    /// waits for that mover then use it. Otherwise returns `Poll`.
    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        self.completion = completion;
        let modes = [&mut self.out, &mut self.into].map(|mover| mover.set_completion_mode(completion));
        if modes.contains(&completion) { completion } else { CompletionMode::Poll }
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(self.tickets.newest())
    }

    fn wait(&mut self, ticket: Ticket, _: CompletionMode) -> Result<()> {
        self.tickets.check(ticket)
    }
}
