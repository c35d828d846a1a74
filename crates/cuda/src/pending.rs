//! Work in flight on streams: an event a ticket, the regions it touches, and waiting for it.

use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{Flight, Ticket};
use inlane_core::{Completion, Region, Result};
use std::collections::VecDeque;

struct Entry {
    event: Event,
    // Memory that queued work touches must not be freed, whatever the caller does.
    _regions: [Region; 2],
}

/// Tickets whose events pass in order.
pub struct Pending {
    flight: Flight,
    entries: VecDeque<Entry>,
    free: Vec<Event>,
}

impl Pending {
    /// Nothing in flight.
    #[expect(clippy::new_without_default, reason = "a flight's start is no default value")]
    pub fn new() -> Self {
        Self { flight: Flight::new(), entries: VecDeque::new(), free: Vec::new() }
    }

    /// True when nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Has `stream` wait for the newest ticket, without the CPU.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn order_after_newest(&self, stream: &Stream) -> Result<()> {
        if let Some(newest) = self.entries.back() {
            stream.wait_for(&newest.event)?;
        }
        Ok(())
    }

    /// A ticket for what `stream` has queued so far, which copies between `regions`.
    ///
    /// # Errors
    /// When the driver refuses; the stream is empty then.
    pub fn push(&mut self, stream: &Stream, regions: [Region; 2]) -> Result<Ticket> {
        let event = self.free.pop().map_or_else(|| Event::new(stream.gpu(), EventKind::Completion), Ok);
        let recorded = event.and_then(|event| stream.record(&event).map(|()| event));
        let event = recorded.inspect_err(|_| {
            // Nothing would tell of the end: it must be over before the regions may go.
            let _ = stream.synchronize();
        })?;
        let bytes = regions[0].len();
        self.entries.push_back(Entry { event, _regions: regions });
        Ok(self.flight.submit(bytes))
    }

    /// The newest ticket that is done.
    ///
    /// # Errors
    /// When work before it failed.
    pub fn done(&mut self) -> Result<Ticket> {
        let mut done = self.flight.done();
        for entry in &self.entries {
            if !entry.event.is_passed()? {
                break;
            }
            done.0 += 1;
        }
        self.flight.complete(done, false);
        self.retire();
        Ok(done)
    }

    /// Waits for `ticket`.
    ///
    /// # Errors
    /// When work before it failed, or nothing ends for too long.
    pub fn wait(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        completion: Completion,
    ) -> Result<()> {
        self.flight.check(ticket)?;
        let first = self.flight.done();
        let Some(index) = ticket.0.checked_sub(first.0 + 1) else { return Ok(()) };
        let event = &self.entries[index as usize].event;
        let poll = || {
            // The driver's lock is one a context: another thread shall get it between two looks.
            (0..8).for_each(|_| std::hint::spin_loop());
            Ok(if event.is_passed()? { ticket } else { first })
        };
        match completion {
            Completion::Interrupt => {
                event.synchronize()?;
                self.flight.complete(ticket, false);
            }
            Completion::Poll => self.flight.wait_polling(device, ticket, poll)?,
            Completion::Adaptive => self.flight.wait_adaptive(device, ticket, poll)?,
        }
        self.retire();
        Ok(())
    }

    fn retire(&mut self) {
        while self.entries.len() > self.flight.in_flight() {
            if let Some(Entry { event, .. }) = self.entries.pop_front() {
                self.free.push(event);
            }
        }
    }
}

/// Waits for streams before what they copy to and from may be freed; errors are logged, for drops have no other way.
pub fn drain(streams: &[&Stream]) {
    for stream in streams {
        if stream.gpu().is_abandoned() {
            continue;
        }
        if let Err(error) = stream.synchronize() {
            tracing::warn!("copies given up: {error}");
        }
    }
}
