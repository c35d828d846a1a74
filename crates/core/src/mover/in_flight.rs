//! The copies of a mover that are in flight: their tickets, and when each copy is expected to complete. A
//! copy is assumed to begin at its submission. If the previous copy completes later than that, the copy
//! begins then.

use super::{Ticket, TicketCounter};
use crate::completion::{ExpectedDurations, Slept, Wait, WaitPlan};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Entry {
    bytes: u64,
    submitted: Instant,
}

/// The copies in flight of one mover. Issues tickets in order, measures copies, and waits for tickets.
#[derive(Debug)]
pub struct InFlight {
    tickets: TicketCounter,
    done: Ticket,
    entries: VecDeque<Entry>,
    /// The time at which the last completion was seen. The oldest copy in flight is assumed to have begun
    /// then. If that copy was submitted later, it began at its submission.
    ended: Instant,
    expectation: ExpectedDurations,
    /// If a wait lasts this long without any completion, it reports the device as lost.
    pub timeout: Duration,
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            tickets: TicketCounter::default(),
            done: Ticket(0),
            entries: VecDeque::with_capacity(256),
            ended: Instant::now(),
            // A first guess of how late the system wakes a sleeping thread. Each sleep corrects it.
            expectation: ExpectedDurations::with_overshoot(Duration::from_micros(10)),
            timeout: Duration::from_secs(10),
        }
    }
}

impl InFlight {
    /// Creates an `InFlight` without copies and without expected durations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a copy that was handed to the device, and issues its ticket.
    pub fn submit(&mut self, bytes: usize) -> Ticket {
        self.entries.push_back(Entry { bytes: bytes as u64, submitted: Instant::now() });
        self.tickets.issue()
    }

    /// Returns the newest ticket issued.
    pub fn newest(&self) -> Ticket {
        self.tickets.newest()
    }

    /// Returns the newest ticket recorded as done.
    pub fn done(&self) -> Ticket {
        self.done
    }

    /// Returns the number of copies submitted and not recorded as done.
    pub fn in_flight(&self) -> usize {
        self.entries.len()
    }

    /// Records that all copies up to `ticket` are done. Set `watched` if the previous poll, a moment ago,
    /// found `ticket` not done. The copy then ended between the two polls, so this records its duration.
    pub fn complete(&mut self, ticket: Ticket, watched: bool) {
        if ticket <= self.done {
            return;
        }
        let mut finished = 0;
        let now = Instant::now();
        while self.done < ticket {
            let Some(entry) = self.entries.pop_front() else { break };
            self.done.0 += 1;
            finished += 1;
            let began = entry.submitted.max(self.ended);
            // If several copies completed between two polls, the duration of each is unknown. Record a
            // duration only if exactly one copy completed.
            if watched && finished == 1 && self.done == ticket {
                self.expectation.learn(entry.bytes, now.duration_since(began).as_nanos() as u64);
            }
        }
        if finished > 0 {
            self.ended = now;
        }
    }

    /// Checks that `ticket` was issued.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was not.
    pub fn check(&self, ticket: Ticket) -> Result<()> {
        self.tickets.check(ticket)
    }

    /// Polls until `ticket` is done. `poll` returns the newest done ticket, and `device` names the device in
    /// errors.
    ///
    /// # Errors
    /// Errors of `poll`, and [`Error::Device`] if nothing completes for [`InFlight::timeout`].
    pub fn wait_polling(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        poll: impl FnMut() -> Result<Ticket>,
    ) -> Result<()> {
        self.wait(device, ticket, poll, false)
    }

    /// Waits until `ticket` has completed. Sleeps for most of its expected duration, then polls.
    ///
    /// # Errors
    /// As for [`InFlight::wait_polling`].
    pub fn wait_adaptive(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        poll: impl FnMut() -> Result<Ticket>,
    ) -> Result<()> {
        self.wait(device, ticket, poll, true)
    }

    fn wait(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        poll: impl FnMut() -> Result<Ticket>,
        adaptive: bool,
    ) -> Result<()> {
        self.check(ticket)?;
        if self.done >= ticket {
            return Ok(());
        }
        CopyWait { copies: self, device, ticket, poll, adaptive, bytes: 0 }.run().map(drop)
    }

    /// Returns how long a wait for `ticket` should sleep from now on, and its copy's size in bytes.
    fn sleep_for(&self, ticket: Ticket) -> (Duration, u64) {
        let ahead = (ticket.0 - self.done.0) as usize;
        let Some(last) = self.entries.get(ahead - 1) else { return (Duration::ZERO, 0) };
        let mut free = self.ended;
        for entry in self.entries.iter().take(ahead - 1) {
            match self.expectation.expected(entry.bytes) {
                Some(expected) => free = free.max(entry.submitted) + expected,
                // No copy of this earlier copy's size was timed yet, so its end cannot be predicted. Only
                // poll in this wait. Polling also times the earlier copy.
                None => return (Duration::ZERO, last.bytes),
            }
        }
        let sleep = self.expectation.sleep(last.bytes);
        if sleep.is_zero() && ahead == 1 {
            return (Duration::ZERO, last.bytes);
        }
        let wake = free.max(last.submitted) + sleep;
        (wake.saturating_duration_since(Instant::now()), last.bytes)
    }

    /// Returns the error of a device that does not answer.
    pub fn lost(&self, device: &str) -> Error {
        Error::device_failed(
            device,
            format!(
                "copy {} of {} has not completed in {:?}; the device is lost or stuck, and its bytes count as not moved",
                self.done.0 + 1,
                self.newest().0,
                self.timeout
            ),
        )
    }
}

/// A wait for the end of the copy `ticket`. If `adaptive` is set, the wait may sleep after its first poll.
/// Otherwise it only polls.
struct CopyWait<'a, P> {
    copies: &'a mut InFlight,
    device: &'a dyn Fn() -> String,
    ticket: Ticket,
    poll: P,
    adaptive: bool,
    bytes: u64,
}

impl<P: FnMut() -> Result<Ticket>> Wait for CopyWait<'_, P> {
    type Error = Error;
    // Poll only once before the first sleep, because a poll may be a slow call of a driver.
    const FIRST_POLLS: u32 = 1;
    const POLLS: u32 = 1024;

    #[inline]
    fn poll(&mut self, watched: bool) -> Result<bool> {
        let seen = (self.poll)()?;
        self.copies.complete(seen, watched);
        Ok(self.copies.done >= self.ticket)
    }

    fn plan(&mut self) -> WaitPlan {
        if !self.adaptive {
            return WaitPlan::POLL;
        }
        let (sleep, bytes) = self.copies.sleep_for(self.ticket);
        self.bytes = bytes;
        WaitPlan { sleep, ..WaitPlan::POLL }
    }

    fn slept(&mut self, slept: &Slept) {
        self.copies.expectation.slept(self.bytes, slept);
    }

    fn check(&mut self, waited: Duration) -> Result<()> {
        if waited.min(self.copies.ended.elapsed()) > self.copies.timeout {
            return Err(self.copies.lost(&(self.device)()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_copy_is_slept_for_and_an_unknown_one_is_not() {
        let mut copies = InFlight::new();
        let took = Duration::from_millis(4);
        let mut polls = 0u64;
        let mut round = |copies: &mut InFlight| {
            let ticket = copies.submit(1 << 20);
            let began = Instant::now();
            let unknown = copies.expectation.sleep(1 << 20).is_zero();
            let poll = || {
                polls += 1;
                Ok(if began.elapsed() >= took { ticket } else { Ticket(ticket.0 - 1) })
            };
            copies.wait_adaptive(&|| "test".into(), ticket, poll).unwrap();
            assert!(began.elapsed() >= took);
            unknown
        };
        assert!(round(&mut copies), "the first copy has no expected time");
        assert!(!round(&mut copies), "the second copy has an expected time");
        assert!(polls > 2);
        assert_eq!(copies.done(), copies.newest());
        // The second copy begins when the first completes. So the wait for it sleeps longer, by at least the
        // time of one copy.
        let first = copies.submit(1 << 20);
        let second = copies.submit(1 << 20);
        // The sleep is zero if other jobs delay this thread until both copies should already have ended.
        let both = copies.sleep_for(second).0;
        assert!(both.is_zero() || both >= copies.sleep_for(first).0 + took);
    }

    #[test]
    fn a_device_that_never_answers_is_lost() {
        let mut copies = InFlight { timeout: Duration::from_millis(5), ..InFlight::default() };
        let ticket = copies.submit(64);
        let error = copies.wait_polling(&|| "twin:0 dma".into(), ticket, || Ok(Ticket(0))).unwrap_err();
        assert!(
            error.to_string().contains("twin:0 dma") && error.to_string().contains("not completed"),
            "{error}"
        );
        let error = copies.wait_polling(&String::new, Ticket(7), || Ok(Ticket(0))).unwrap_err();
        assert!(error.to_string().contains("ticket 7"), "{error}");
    }
}
