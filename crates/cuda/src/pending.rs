//! Copies in flight on streams. Each copy has a ticket, the regions that it uses, and an event that completes
//! with the copy.
//!
//! Every wait has a timeout. If nothing completes before the timeout, all GPUs of this process are abandoned
//! ([`abandon_all`](crate::abandon_all)). Their resources are then not freed before the process ends.

use crate::device::abandon_all;
use crate::event_waiter::EventWaiter;
use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{InFlight, Ticket};
use inlane_core::{CompletionMode, Error, Region, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default timeout. If no copy completes for this long, this process abandons its GPUs.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of polls of a copy's event after which a wait checks the streams on which the copy depends. The
/// check finds out whether a stream has failed. This number of polls takes about 10 ms.
const POLLS: u32 = 1 << 13;
/// The longest sleep of a wait for a copy. After each sleep, the wait checks whether a stream that the copy
/// depends on has failed.
const SLEEP: Duration = Duration::from_millis(250);

/// One copy in flight.
struct Entry {
    event: Arc<Event>,
    // Keeps the memory allocated until the copy has run, whatever the caller does.
    _regions: [Region; 2],
}

/// The copies that a mover has in flight. Their tickets complete in order.
pub struct PendingCopies {
    flight: InFlight,
    entries: VecDeque<Entry>,
    free: Vec<Arc<Event>>,
    waiter: Option<EventWaiter>,
}

impl PendingCopies {
    /// Creates an empty list.
    #[expect(
        clippy::new_without_default,
        reason = "the list records its creation time, so it has no default value"
    )]
    pub fn new() -> Self {
        Self { flight: InFlight::new(), entries: VecDeque::new(), free: Vec::new(), waiter: None }
    }

    /// Sets the timeout of waits. If no copy completes for this long, a wait abandons all GPUs of this
    /// process. The default is 10 s.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.flight.timeout = timeout;
    }

    /// Returns true if nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes `stream` wait until the newest copy in flight has completed. The GPU waits, not the CPU.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn order_after_newest(&self, stream: &Stream) -> Result<()> {
        if let Some(newest) = self.entries.back() {
            stream.wait_for(&newest.event)?;
        }
        Ok(())
    }

    /// Returns a ticket for the work queued on `stream` so far. It completes when this work has run. Until
    /// then, keeps `regions` alive, the source and the destination of the copy.
    ///
    /// # Errors
    /// If the driver call fails. The stream's work has run by then, or its GPU was abandoned.
    pub fn push(&mut self, stream: &Stream, regions: [Region; 2]) -> Result<Ticket> {
        let new = || Event::new(stream.gpu(), EventKind::Completion).map(Arc::new);
        let event = self.free.pop().map_or_else(new, Ok);
        let recorded = event.and_then(|event| stream.record(&event).map(|()| event));
        let event = recorded.inspect_err(|_| {
            // Without a recorded event, nothing shows the end of the copy. The caller may free the regions
            // after this error. So wait until the stream is idle.
            drain(&[stream]);
        })?;
        let bytes = regions[0].len();
        self.entries.push_back(Entry { event, _regions: regions });
        Ok(self.flight.submit(bytes))
    }

    /// Returns the newest completed ticket.
    ///
    /// # Errors
    /// If a copy failed.
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

    /// Waits until `ticket` completes. `others` are further streams on which the ticket depends. Meanwhile,
    /// checks them for failures, because a ticket never completes if a stream that it depends on failed.
    ///
    /// # Errors
    /// If a copy failed, or nothing completes within the timeout. In both cases, the GPUs of this process are
    /// abandoned if the ticket is still in flight.
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
            return Err(abandoned(&device()));
        }
        let mut polls = 0u32;
        let poll = || {
            // Pause before each poll. A poll takes the driver's lock, of which each context has one. During
            // the pause, other threads can take the lock.
            (0..8).for_each(|_| std::hint::spin_loop());
            if event.has_completed()? {
                return Ok(ticket);
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                healthy(others)?;
            }
            Ok(first)
        };
        let outcome = match completion {
            CompletionMode::Interrupt => self.sleep(device, ticket, &event, others),
            CompletionMode::Poll => self.flight.wait_polling(device, ticket, poll),
            CompletionMode::Adaptive => self.flight.wait_adaptive(device, ticket, poll),
        };
        // If the wait failed and the event is still in flight, the event may never complete. The GPUs are
        // then abandoned, so that nothing waits for the event's stream.
        if outcome.is_err() && matches!(event.has_completed(), Ok(false)) {
            abandon_all();
        }
        outcome?;
        self.retire();
        Ok(())
    }

    /// Sleeps until the ticket's event completes.
    ///
    /// This is not a core [`Wait`](inlane_core::completion::Wait), because this thread has nothing to poll.
    /// The driver blocks another thread until the event completes, and that thread then answers once. The
    /// timeout also restarts when an earlier ticket completes.
    fn sleep(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        event: &Arc<Event>,
        others: &[Stream],
    ) -> Result<()> {
        if !event.has_completed()? {
            // Take the waiter out of `self`. Put it back only after it has answered. If this function returns
            // an error earlier, the waiter may still sleep, so it must not be used again.
            let waiter = self.waiter.take().map_or_else(EventWaiter::start, Ok)?;
            waiter.request(event);
            let (mut done, mut progress) = (self.flight.done(), Instant::now());
            loop {
                if let Some(outcome) = waiter.outcome(SLEEP) {
                    self.waiter = Some(waiter);
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

    /// Removes the entries of completed tickets.
    fn retire(&mut self) {
        while self.entries.len() > self.flight.in_flight() {
            if let Some(Entry { event, .. }) = self.entries.pop_front() {
                self.free.push(event);
            }
        }
    }
}

/// Returns an error if work failed on a stream: the error of the first such stream.
fn healthy<'a>(streams: impl IntoIterator<Item = &'a Stream>) -> Result<()> {
    streams.into_iter().try_for_each(|stream| stream.is_idle().map(drop)).map_err(Error::from)
}

fn abandoned(device: &str) -> Error {
    Error::device_failed(
        device,
        "a GPU of this process did not answer and was abandoned; start another process",
    )
}

/// Waits until all queued work of `stream` has run, for at most 10 s. If the work has not ended by then,
/// abandons the GPUs of this process.
///
/// # Errors
/// If some of the work failed or did not end in time. Also if the stream's GPU was already abandoned.
pub fn finish(stream: &Stream) -> Result<()> {
    finish_within(stream, TIMEOUT)
}

fn finish_within(stream: &Stream, timeout: Duration) -> Result<()> {
    if stream.gpu().is_abandoned() {
        return Err(abandoned(&stream.gpu().to_string()));
    }
    if stream.is_idle_within(timeout)? {
        return Ok(());
    }
    abandon_all();
    Err(Error::device_failed(
        stream.gpu().to_string(),
        format!(
            "queued work has not ended within {timeout:?}, so the device is lost or stuck; end this process"
        ),
    ))
}

/// Waits until the work of the streams has run. The memory that the work uses may then be freed. Logs errors
/// instead of returning them, so it can be called in `drop`. Skips streams of abandoned GPUs, because their
/// memory is never freed. Takes at most 10 s per stream.
pub fn drain(streams: &[&Stream]) {
    // If a stream failed, other streams that wait for it may never end. So wait for 6 s only. This is enough
    // for a staging kernel that waits for the failed stream, because it gives up after 5 s.
    let failed = healthy(streams.iter().copied().filter(|stream| !stream.gpu().is_abandoned())).is_err();
    let timeout = if failed { Duration::from_secs(6) } else { TIMEOUT };
    for stream in streams {
        if stream.gpu().is_abandoned() {
            continue;
        }
        if let Err(error) = finish_within(stream, timeout) {
            tracing::warn!("copies were abandoned: {error}");
        }
    }
}
