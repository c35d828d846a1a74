//! Work in flight on streams: an event a ticket, the regions it touches, and waiting for it.
//!
//! No wait lasts for ever: when nothing ends for as long as a device may take, the GPUs of this process are given up
//! ([`abandon_all`](crate::abandon_all)), and what would wait for them is left alone until the process ends.

use crate::device::abandon_all;
use crate::event_waiter::EventWaiter;
use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{InFlight, Ticket};
use inlane_core::{CompletionMode, Error, Region, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long what was queued may take before its GPU counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Looks at an event between two at what else may have failed: about ten milliseconds.
const LOOKS: u32 = 1 << 13;
/// The same for a wait that sleeps.
const NAP: Duration = Duration::from_millis(250);

struct Entry {
    event: Arc<Event>,
    // Memory that queued work touches must not be freed, whatever the caller does.
    _regions: [Region; 2],
}

/// Tickets whose events pass in order.
pub struct Pending {
    flight: InFlight,
    entries: VecDeque<Entry>,
    free: Vec<Arc<Event>>,
    sleeper: Option<EventWaiter>,
}

impl Pending {
    /// Nothing in flight.
    #[expect(clippy::new_without_default, reason = "a flight's start is no default value")]
    pub fn new() -> Self {
        Self { flight: InFlight::new(), entries: VecDeque::new(), free: Vec::new(), sleeper: None }
    }

    /// How long to wait while nothing ends, before the GPUs count as lost.
    pub fn set_timeout(&mut self, patience: Duration) {
        self.flight.timeout = patience;
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
        let new = || Event::new(stream.gpu(), EventKind::Completion).map(Arc::new);
        let event = self.free.pop().map_or_else(new, Ok);
        let recorded = event.and_then(|event| stream.record(&event).map(|()| event));
        let event = recorded.inspect_err(|_| {
            // Nothing would tell of the end: it must be over before the regions may go.
            drain(&[stream]);
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
            if !entry.event.has_completed()? {
                break;
            }
            done.0 += 1;
        }
        self.flight.complete(done, false);
        self.retire();
        Ok(done)
    }

    /// Waits for `ticket`. `others` are streams that its end depends on beside its own, which would wait for ever for one of a GPU
    /// that failed: they are asked now and then.
    ///
    /// # Errors
    /// When work before it failed, or nothing ends for too long: then the GPUs of this process are given up.
    pub fn wait(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        completion: CompletionMode,
        others: &[Stream],
    ) -> Result<()> {
        self.flight.check(ticket)?;
        let first = self.flight.done();
        let Some(index) = ticket.0.checked_sub(first.0 + 1) else { return Ok(()) };
        let event = self.entries[index as usize].event.clone();
        if event.gpu().is_abandoned() {
            return Err(given_up(&device()));
        }
        let mut looks = 0u32;
        let poll = || {
            // The driver's lock is one a context: another thread shall get it between two looks.
            (0..8).for_each(|_| std::hint::spin_loop());
            if event.has_completed()? {
                return Ok(ticket);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                healthy(others)?;
            }
            Ok(first)
        };
        let outcome = match completion {
            CompletionMode::Interrupt => self.sleep(device, ticket, &event, others),
            CompletionMode::Poll => self.flight.wait_polling(device, ticket, poll),
            CompletionMode::Adaptive => self.flight.wait_adaptive(device, ticket, poll),
        };
        // The driver says nothing of its stream, which will never end: what would wait for it must not.
        if outcome.is_err() && matches!(event.has_completed(), Ok(false)) {
            abandon_all();
        }
        outcome?;
        self.retire();
        Ok(())
    }

    /// Sleeps until `event`, the ticket's, has passed.
    fn sleep(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        event: &Arc<Event>,
        others: &[Stream],
    ) -> Result<()> {
        if !event.has_completed()? {
            // Taken out: one that is still asleep when this ends is not asked again.
            let sleeper = self.sleeper.take().map_or_else(EventWaiter::start, Ok)?;
            sleeper.ask(event);
            let (mut done, mut progress) = (self.flight.done(), Instant::now());
            loop {
                if let Some(outcome) = sleeper.outcome(NAP) {
                    self.sleeper = Some(sleeper);
                    outcome?;
                    break;
                }
                healthy(others)?;
                let seen = self.done()?;
                if seen > done {
                    (done, progress) = (seen, Instant::now());
                }
                if progress.elapsed() > self.flight.timeout {
                    return Err(self.flight.lost(&device()));
                }
            }
        }
        self.flight.complete(ticket, false);
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

/// That what was queued on them has not failed so far.
fn healthy<'a>(streams: impl IntoIterator<Item = &'a Stream>) -> Result<()> {
    streams.into_iter().try_for_each(|stream| stream.is_idle().map(drop)).map_err(Error::from)
}

fn given_up(device: &str) -> Error {
    Error::device_failed(
        device,
        "a GPU was given up in this process, after it did not answer; start another process",
    )
}

/// Waits until all that `stream` has queued has run; not for ever, after which the GPUs of this process are given up.
///
/// # Errors
/// When some of it failed, or does not end.
pub fn finish(stream: &Stream) -> Result<()> {
    finish_within(stream, PATIENCE)
}

fn finish_within(stream: &Stream, patience: Duration) -> Result<()> {
    if stream.gpu().is_abandoned() {
        return Err(given_up(&stream.gpu().to_string()));
    }
    if stream.is_idle_within(patience)? {
        return Ok(());
    }
    abandon_all();
    Err(Error::device_failed(
        stream.gpu().to_string(),
        format!(
            "what was queued has not ended in {patience:?}; the device is lost or stuck; end this process"
        ),
    ))
}

/// Waits for streams before what they copy to and from may be freed; errors are logged, for drops have no other way. Of a GPU that
/// was given up nothing is freed.
pub fn drain(streams: &[&Stream]) {
    // What waits for one that failed will not end; kernels that gave it up themselves (after five seconds) will.
    let failed = healthy(streams.iter().copied().filter(|stream| !stream.gpu().is_abandoned())).is_err();
    let patience = if failed { Duration::from_secs(6) } else { PATIENCE };
    for stream in streams {
        if stream.gpu().is_abandoned() {
            continue;
        }
        if let Err(error) = finish_within(stream, patience) {
            tracing::warn!("copies given up: {error}");
        }
    }
}
