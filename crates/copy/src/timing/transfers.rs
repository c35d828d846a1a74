//! The loop of all streams of transfers: keeps up to a number of transfers in flight until it is told to end.

use super::buffers::{Buffers, Rotation};
use inlane_core::clock::Clock;
use inlane_core::load::Meter;
use inlane_core::mover::{Mover, Ticket};
use inlane_core::{CompletionMode, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// What the loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Submits a transfer.
    Submit,
    /// Submits nothing for this time.
    Wait(Duration),
    /// Submits nothing any more, and waits for the transfers in flight.
    End,
}

/// A stream of transfers of one size.
pub(crate) struct Transfers<'a> {
    pub(crate) mover: &'a mut dyn Mover,
    pub(crate) buffers: &'a Buffers,
    pub(crate) rotation: Rotation,
    pub(crate) in_flight: usize,
    pub(crate) completion: CompletionMode,
    /// Counts the completed transfers while they run.
    pub(crate) account: Option<Account<'a>>,
}

/// Publishes the completed transfers and the times of a stream's thread.
pub(crate) struct Account<'a> {
    meter: &'a Meter,
    clock: Clock,
    /// Readings of the raw clock, and durations in its ticks.
    begun: u64,
    idle: u64,
    blocked: u64,
}

impl<'a> Account<'a> {
    /// Begins to account for the calling thread's time.
    pub(crate) fn new(meter: &'a Meter) -> Self {
        let clock = Clock::new();
        let begun = clock.raw();
        Self { meter, clock, begun, idle: 0, blocked: 0 }
    }

    fn now(account: &Option<Self>) -> u64 {
        account.as_ref().map_or(0, |account| account.clock.raw())
    }

    fn publish(&self, now: u64) {
        let spent = now.saturating_sub(self.begun);
        let ns = |ticks| self.clock.between_ns(0, ticks);
        self.meter.set_times(ns(spent.saturating_sub(self.idle + self.blocked)), ns(self.blocked));
    }
}

impl Transfers<'_> {
    /// Runs the stream. Before each transfer, asks `next` what to do, with the number of transfers submitted so far.
    /// Returns the number of submitted transfers. If that is an error, the transfers before `submitted` have completed.
    ///
    /// # Errors
    /// Errors of the mover and of `next`, and [`inlane_core::Error::Altered`] if a sampled byte is wrong.
    pub(crate) fn run(
        mut self,
        submitted: &mut usize,
        mut next: impl FnMut(usize) -> Result<Next>,
    ) -> Result<()> {
        let mut tickets: VecDeque<Ticket> = VecDeque::with_capacity(self.in_flight);
        loop {
            if tickets.len() == self.in_flight {
                self.complete_oldest(&mut tickets, *submitted)?;
            }
            match next(*submitted)? {
                Next::Submit => {
                    let (source, destination) = self.buffers.regions(self.rotation, *submitted)?;
                    tickets.push_back(self.mover.submit(&source, &destination)?);
                    *submitted += 1;
                    if let Some(account) = &self.account {
                        account.meter.set_begun(*submitted as u64);
                    }
                }
                Next::Wait(time) => self.pause(&mut tickets, *submitted, time)?,
                Next::End => break,
            }
        }
        while !tickets.is_empty() {
            self.complete_oldest(&mut tickets, *submitted)?;
        }
        Ok(())
    }

    /// Waits for the oldest transfer in flight.
    #[inline]
    fn complete_oldest(&mut self, tickets: &mut VecDeque<Ticket>, submitted: usize) -> Result<()> {
        let transfer = submitted - tickets.len();
        let Some(oldest) = tickets.pop_front() else { return Ok(()) };
        let before = Account::now(&self.account);
        self.mover.wait(oldest, self.completion)?;
        if let Some(account) = &mut self.account {
            let now = account.clock.raw();
            if !self.mover.is_synchronous() {
                account.blocked += now.saturating_sub(before);
            }
            account.meter.add(1, self.rotation.size as u64);
            account.publish(now);
        }
        self.buffers.sample(self.rotation, transfer)
    }

    /// Completes the transfers that are done. If there are none, sleeps for about `time`, or yields if it is short.
    fn pause(&mut self, tickets: &mut VecDeque<Ticket>, submitted: usize, time: Duration) -> Result<()> {
        /// Sleeping may last this much longer than it should.
        const OVERSLEEP: Duration = Duration::from_micros(80);
        let newest_done = self.mover.done()?;
        if tickets.front().is_some_and(|oldest| *oldest <= newest_done) {
            return self.complete_oldest(tickets, submitted);
        }
        let before = Account::now(&self.account);
        match time.checked_sub(OVERSLEEP) {
            // Transfers in flight end meanwhile, and are counted soon after.
            Some(time) if tickets.is_empty() => std::thread::sleep(time),
            Some(time) => std::thread::sleep(time.min(OVERSLEEP)),
            None => std::hint::spin_loop(),
        }
        if let Some(account) = &mut self.account {
            let now = account.clock.raw();
            account.idle += now.saturating_sub(before);
            account.publish(now);
        }
        Ok(())
    }
}
