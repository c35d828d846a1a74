//! The loop of a wait for an operation: poll, sleep for the expected time, poll again, then block.
//!
//! ```text
//!  first polls | timed sleep (adaptive) | polls, with a check after each round | block between rounds
//!              ^ start                                                         ^ start + poll_for
//! ```
//!
//! The loop reads the clock only after the first polls, because most waits have ended by then.

use std::time::{Duration, Instant};

/// The plan of a wait after its first polls: how long to sleep, and how long to poll before it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPlan {
    /// How long to sleep before polling again; zero to poll at once.
    pub sleep: Duration,
    /// The total time for which the wait sleeps and polls after its first polls. Then it blocks.
    pub poll_for: Duration,
}

impl WaitPlan {
    /// Polls until the end, as [`Poll`](super::CompletionMode::Poll) does.
    pub const POLL: Self = Self { sleep: Duration::ZERO, poll_for: Duration::MAX };
    /// Blocks after each round of polls, as [`Interrupt`](super::CompletionMode::Interrupt) does.
    pub const BLOCK: Self = Self { sleep: Duration::ZERO, poll_for: Duration::ZERO };
}

/// How a wait's timed sleep ended.
#[derive(Clone, Copy, Debug)]
pub struct Slept {
    /// How much longer the sleep lasted than asked.
    pub overshoot: Duration,
    /// How long the sleep lasted.
    pub took: Duration,
    /// True if the operation had already completed when the thread woke. The sleep was then too long.
    pub late: bool,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    start: Option<Instant>,
}

impl Waited {
    /// Returns the time since the first polls of the wait. Call it right after the wait. Returns `None` if
    /// the operation's duration is unknown. This is so if the first polls found the operation completed, or
    /// if the thread slept past its end.
    pub fn took(&self) -> Option<Duration> {
        self.start.map(|start| start.elapsed())
    }
}

/// One wait for an operation. [`Wait::run`] calls the other methods in a loop.
pub trait Wait {
    /// The error of a failed wait.
    type Error;
    /// How often [`Wait::run`] polls before it reads the clock and asks for the plan; at least 1.
    const FIRST_POLLS: u32;
    /// The number of polls that [`Wait::run`] makes between two calls of [`Wait::check`].
    const POLLS: u32;

    /// Polls once. Returns true if the operation has completed. `watched` is true if the previous poll was a
    /// moment ago. If this poll then finds the operation complete, the operation ended between the two polls.
    /// Its duration is then known.
    ///
    /// # Errors
    /// If the operation failed.
    fn poll(&mut self, watched: bool) -> Result<bool, Self::Error>;

    /// Returns how long the wait sleeps, and how long it polls afterwards before it blocks. Called once, and
    /// only if the first polls found the operation incomplete.
    fn plan(&mut self) -> WaitPlan;

    /// Records how the timed sleep ended. Called after the first poll that follows the sleep.
    fn slept(&mut self, slept: &Slept) {
        let _ = slept;
    }

    /// Checks for reasons to end the wait, and does work that must continue during it. `waited` is the time
    /// since the end of the first polls.
    ///
    /// # Errors
    /// If the wait should end. If one more poll finds the operation completed, the wait still succeeds.
    fn check(&mut self, waited: Duration) -> Result<(), Self::Error>;

    /// Sleeps until an event that may have ended the operation, or for a limited time.
    ///
    /// # Errors
    /// If the thread cannot sleep.
    fn block(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Waits until the operation has completed.
    ///
    /// # Errors
    /// Errors of `poll`, `check` and `block`.
    #[inline]
    fn run(&mut self) -> Result<Waited, Self::Error> {
        let mut watched = false;
        for _ in 0..Self::FIRST_POLLS {
            if self.poll(watched)? {
                return Ok(Waited { start: None });
            }
            watched = true;
            std::hint::spin_loop();
        }
        run_after_first_polls(self)
    }
}

/// Continues a wait whose first polls found the operation incomplete: sleeps, polls, then blocks between
/// polls.
fn run_after_first_polls<W: Wait + ?Sized>(wait: &mut W) -> Result<Waited, W::Error> {
    let start = Instant::now();
    let plan = wait.plan();
    let mut watched = true;
    if !plan.sleep.is_zero() {
        let slept_from = Instant::now();
        sleep_precisely(plan.sleep);
        let took = slept_from.elapsed();
        let late = wait.poll(false)?;
        wait.slept(&Slept { overshoot: took.saturating_sub(plan.sleep), took, late });
        if late {
            return Ok(Waited { start: None });
        }
    }
    loop {
        for _ in 0..W::POLLS {
            if wait.poll(watched)? {
                return Ok(Waited { start: Some(start) });
            }
            watched = true;
            std::hint::spin_loop();
        }
        let waited = start.elapsed();
        if let Err(error) = wait.check(waited) {
            return if wait.poll(false)? { Ok(Waited { start: Some(start) }) } else { Err(error) };
        }
        if waited >= plan.poll_for {
            wait.block()?;
            watched = false;
        }
    }
}

/// Sleeps for `time`, more precisely than by default: the timer slack is 1 ns, whereas Linux's default is 50
/// us.
pub fn sleep_precisely(time: Duration) {
    #[cfg(target_os = "linux")]
    {
        thread_local! { static PRECISE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }; }
        PRECISE.with(|precise| {
            if !precise.replace(true) {
                // SAFETY: sets a property of the calling thread and passes no pointer.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
            }
        });
    }
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait that records its calls. Its operation completes at poll number `ends`.
    struct Scripted {
        ends: u32,
        polls: u32,
        plan: WaitPlan,
        fails_at_check: u32,
        checks: u32,
        calls: Vec<&'static str>,
    }

    fn scripted(ends: u32, plan: WaitPlan) -> Scripted {
        Scripted { ends, polls: 0, plan, fails_at_check: u32::MAX, checks: 0, calls: Vec::new() }
    }

    impl Wait for Scripted {
        type Error = &'static str;
        const FIRST_POLLS: u32 = 3;
        const POLLS: u32 = 4;

        fn poll(&mut self, watched: bool) -> Result<bool, &'static str> {
            self.polls += 1;
            if !watched {
                self.calls.push("unwatched poll");
            }
            Ok(self.polls >= self.ends)
        }

        fn plan(&mut self) -> WaitPlan {
            self.calls.push("plan");
            self.plan
        }

        fn slept(&mut self, slept: &Slept) {
            assert!(slept.took >= self.plan.sleep && slept.overshoot <= slept.took);
            self.calls.push(if slept.late { "slept late" } else { "slept" });
        }

        fn check(&mut self, _: Duration) -> Result<(), &'static str> {
            self.checks += 1;
            if self.checks == self.fails_at_check { Err("gave up") } else { Ok(()) }
        }

        fn block(&mut self) -> Result<(), &'static str> {
            self.calls.push("block");
            Ok(())
        }
    }

    #[test]
    fn a_completed_operation_costs_no_plan() {
        let mut wait = scripted(3, WaitPlan::POLL);
        assert!(wait.run().unwrap().took().is_none());
        assert_eq!((wait.polls, wait.calls), (3, vec!["unwatched poll"]));
    }

    #[test]
    fn polling_never_blocks() {
        let mut wait = scripted(100, WaitPlan::POLL);
        assert!(wait.run().unwrap().took().is_some());
        assert_eq!((wait.polls, wait.checks), (100, 24));
        assert_eq!(wait.calls, ["unwatched poll", "plan"]);
    }

    #[test]
    fn interrupts_block_after_each_round() {
        let mut wait = scripted(12, WaitPlan::BLOCK);
        wait.run().unwrap();
        let round = ["block", "unwatched poll"];
        assert_eq!(wait.calls, [&["unwatched poll", "plan"][..], &round, &round].concat());
    }

    #[test]
    fn an_adaptive_wait_sleeps_then_polls_then_blocks() {
        let plan = WaitPlan { sleep: Duration::from_micros(50), poll_for: Duration::from_micros(50) };
        let mut wait = scripted(9, plan);
        assert!(wait.run().unwrap().took().unwrap() >= plan.sleep);
        let calls = ["unwatched poll", "plan", "unwatched poll", "slept", "block", "unwatched poll"];
        assert_eq!(wait.calls, calls);
        // The operation completes during the sleep, so its duration is unknown.
        let mut wait = scripted(4, plan);
        assert!(wait.run().unwrap().took().is_none());
        assert_eq!(wait.calls, ["unwatched poll", "plan", "unwatched poll", "slept late"]);
    }

    #[test]
    fn a_failed_check_ends_the_wait_unless_the_operation_has_completed() {
        let mut wait = Scripted { fails_at_check: 2, ..scripted(100, WaitPlan::POLL) };
        assert_eq!(wait.run().unwrap_err(), "gave up");
        // The script completes the operation at the twelfth poll and fails the second check. The wait must
        // poll once more after the failed check, and so find the operation completed.
        let mut wait = Scripted { fails_at_check: 2, ..scripted(12, WaitPlan::POLL) };
        assert!(wait.run().is_ok());
    }
}
