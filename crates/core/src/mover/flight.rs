//! The copies a mover has in flight: their tickets, and when each can be expected to end.
//!
//! ```text
//!  submitted: 3 4 5 6      begins = the later of its own submission and the end of the one before
//!  done:      2            ends   = begins + what copies of its size took
//! ```

use super::{Ticket, check_ticket};
use crate::completion::{Expectation, sleep_precisely};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Entry {
    bytes: u64,
    submitted: Instant,
}

/// Keeps tickets in order, learns how long copies take, and waits adaptively.
#[derive(Debug)]
pub struct InFlight {
    next: u64,
    done: u64,
    entries: VecDeque<Entry>,
    /// When the newest completion was seen.
    ended: Instant,
    expectation: Expectation,
    /// How long to wait for a copy before the device counts as lost.
    pub patience: Duration,
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            next: 0,
            done: 0,
            entries: VecDeque::with_capacity(256),
            ended: Instant::now(),
            // With a timer slack of 1 ns; what a real machine costs beyond is learnt.
            expectation: Expectation::with_overshoot(Duration::from_micros(10)),
            patience: Duration::from_secs(10),
        }
    }
}

impl InFlight {
    /// Nothing in flight, nothing learnt.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a copy that was handed to the device, and gives its ticket.
    pub fn submit(&mut self, bytes: usize) -> Ticket {
        self.entries.push_back(Entry { bytes: bytes as u64, submitted: Instant::now() });
        self.next += 1;
        Ticket(self.next)
    }

    /// The newest ticket given out.
    pub fn newest(&self) -> Ticket {
        Ticket(self.next)
    }

    /// The newest ticket known to be done.
    pub fn done(&self) -> Ticket {
        Ticket(self.done)
    }

    /// Copies submitted and not known to be done.
    pub fn in_flight(&self) -> usize {
        self.entries.len()
    }

    /// Notes that all up to `ticket` are done. `seen_at_once` when it was being polled as it ended, so that the time is
    /// worth learning.
    pub fn complete(&mut self, ticket: Ticket, seen_at_once: bool) {
        if ticket.0 <= self.done {
            return;
        }
        let mut finished = 0;
        let now = Instant::now();
        while self.done < ticket.0 {
            let Some(entry) = self.entries.pop_front() else { break };
            self.done += 1;
            finished += 1;
            let began = entry.submitted.max(self.ended);
            // Several that end between two looks cannot be told apart; one can.
            if seen_at_once && finished == 1 && self.done == ticket.0 {
                self.expectation.learn(entry.bytes, now.duration_since(began).as_nanos() as u64);
            }
        }
        if finished > 0 {
            self.ended = now;
        }
    }

    /// Checks that `ticket` was given out.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it was not.
    pub fn check(&self, ticket: Ticket) -> Result<()> {
        check_ticket(ticket, self.next)
    }

    /// Polls until `ticket` is done; `poll` gives the newest that is.
    ///
    /// # Errors
    /// What `poll` says; [`Error::Device`] when nothing ends for as long as [`InFlight::patience`].
    pub fn wait_polling(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        mut poll: impl FnMut() -> Result<Ticket>,
    ) -> Result<()> {
        self.check(ticket)?;
        let began = Instant::now();
        let mut turns = 0u32;
        let mut first = true;
        while self.done < ticket.0 {
            let seen = poll()?;
            self.complete(seen, !first);
            first = false;
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1024) && began.max(self.ended).elapsed() > self.patience {
                return Err(self.lost(&device()));
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Sleeps for most of the time that `ticket` is expected to take, then polls.
    ///
    /// # Errors
    /// As [`InFlight::wait_polling`].
    pub fn wait_adaptive(
        &mut self,
        device: &dyn Fn() -> String,
        ticket: Ticket,
        mut poll: impl FnMut() -> Result<Ticket>,
    ) -> Result<()> {
        self.check(ticket)?;
        let seen = poll()?;
        self.complete(seen, false);
        if self.done >= ticket.0 {
            return Ok(());
        }
        let (sleep, bytes) = self.until_nearly(ticket);
        let slept = !sleep.is_zero();
        if slept {
            let began = Instant::now();
            sleep_precisely(sleep);
            self.expectation.learn_overshoot(began.elapsed().saturating_sub(sleep));
            let seen = poll()?;
            let late = seen >= ticket;
            self.expectation.woke(bytes, late);
            self.complete(seen, false);
        }
        self.wait_polling(device, ticket, poll)
    }

    /// How long to sleep for `ticket`, from now, and the size of its copy.
    fn until_nearly(&self, ticket: Ticket) -> (Duration, u64) {
        let ahead = (ticket.0 - self.done) as usize;
        let Some(last) = self.entries.get(ahead - 1) else { return (Duration::ZERO, 0) };
        let mut free = self.ended;
        for entry in self.entries.iter().take(ahead - 1) {
            match self.expectation.expected(entry.bytes) {
                Some(expected) => free = free.max(entry.submitted) + expected,
                // A copy nobody has timed: poll, and learn.
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

    /// The error of a device that does not answer.
    pub fn lost(&self, device: &str) -> Error {
        Error::device_failed(
            device,
            format!(
                "copy {} of {} has not ended in {:?}; the device is lost or stuck, and its bytes count as not moved",
                self.done + 1,
                self.next,
                self.patience
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_once_it_knows_the_time() {
        let mut flight = InFlight::new();
        let took = Duration::from_millis(4);
        let mut polls = 0u64;
        let mut round = |flight: &mut InFlight| {
            let ticket = flight.submit(1 << 20);
            let began = Instant::now();
            let unknown = flight.until_nearly(ticket).0.is_zero();
            let poll = || {
                polls += 1;
                Ok(if began.elapsed() >= took { ticket } else { Ticket(ticket.0 - 1) })
            };
            flight.wait_adaptive(&|| "test".into(), ticket, poll).unwrap();
            assert!(began.elapsed() >= took);
            unknown
        };
        assert!(round(&mut flight), "nothing is known of the first");
        assert!(!round(&mut flight), "the second sleeps, however busy this machine is");
        assert!(polls > 2);
        assert_eq!(flight.done(), flight.newest());
        // One behind another that was timed: it begins when the other ends.
        flight.submit(1 << 20);
        let second = flight.submit(1 << 20);
        assert!(flight.until_nearly(second).0 > took);
    }

    #[test]
    fn a_device_that_never_answers_is_lost() {
        let mut flight = InFlight { patience: Duration::from_millis(5), ..InFlight::default() };
        let ticket = flight.submit(64);
        let error = flight.wait_polling(&|| "twin:0 dma".into(), ticket, || Ok(Ticket(0))).unwrap_err();
        assert!(
            error.to_string().contains("twin:0 dma") && error.to_string().contains("not ended"),
            "{error}"
        );
        assert!(flight.wait_polling(&|| String::new(), Ticket(7), || Ok(Ticket(0))).is_err());
    }
}
