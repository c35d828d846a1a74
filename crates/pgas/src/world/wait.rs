//! Waits for words of this PE's memory, and how PEs leave the job.
//!
//! A PE that leaves sets a word in its own workspace, and then waits until all PEs leave. A wait of another PE that lasts
//! long looks at this word. It fails if it waits for a PE that leaves: such a PE makes no call that could end the wait.
//!
//! ```text
//! workspace, at 128 bytes * p + 64: nonzero once PE p leaves. PE p writes it in its own workspace, and then in those
//!                                   of the PEs at distance 1, 2, 4 and so on (a dissemination barrier)
//! ```

use super::channel::Entered;
use super::{WORD, World};
use crate::error::{Error, Result};
use crate::transport::Reuse::AtReturn;
use crate::transport::{Awaited, Transport, no_check};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a wait lasts before it looks whether PEs leave, and how often it looks then.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Returns the offset of the word that is nonzero once `pe` leaves.
fn leaving(pe: u32) -> usize {
    pe as usize * WORD + 64
}

/// Returns a check that calls `check` each time that a wait has lasted another [`LOOK_EVERY`].
fn seldom(mut check: impl FnMut() -> Result<()>) -> impl FnMut(Duration) -> Result<()> {
    let mut next = LOOK_EVERY;
    move |waited| {
        if waited < next {
            return Ok(());
        }
        check()?;
        next = waited + LOOK_EVERY;
        Ok(())
    }
}

impl<T: Transport> World<T> {
    /// Lets waits for words fail once all other PEs leave. `is_alone` returns true if no thread of this PE can change the
    /// words: if the waiting thread is the only one that the program has.
    pub fn fail_waits_if(&mut self, is_alone: fn() -> bool) {
        self.is_alone = Some(is_alone);
    }

    /// Forgets which PEs have left, because memory that virtual machines share keeps the words of an earlier job.
    pub(super) fn clear_leaving(&self) {
        (0..self.pes()).for_each(|pe| self.word(leaving(pe)).store(0, Ordering::Release));
    }

    /// Returns true if `pe` leaves.
    fn is_leaving(&self, pe: u32) -> Result<bool> {
        let mut word = 0u64;
        // SAFETY: the destination is a local variable of 8 bytes.
        unsafe { self.transport.get(pe, leaving(pe), (&raw mut word).cast(), 8, AtReturn)? };
        Ok(word != 0)
    }

    /// Returns a check that fails once `pe` leaves.
    fn unless_left(&self, peer: u32) -> impl FnMut(Duration) -> Result<()> {
        seldom(move || if self.is_leaving(peer)? { Err(Error::Left { peer }) } else { Ok(()) })
    }

    /// Returns a check that fails once all other PEs leave, if this PE has only one thread.
    fn unless_all_left(&self) -> impl FnMut(Duration) -> Result<()> {
        let mut others = (1..self.pes()).map(|distance| (self.me() + distance) % self.pes()).peekable();
        seldom(move || {
            if !self.is_alone.is_some_and(|is_alone| is_alone()) {
                return Ok(());
            }
            // Look again only at the first PE that did not leave, because the PEs before it have left for good.
            while let Some(pe) = others.peek() {
                if !self.is_leaving(*pe)? {
                    return Ok(());
                }
                others.next();
            }
            Err(Error::AllLeft)
        })
    }

    /// Blocks until `done` returns true. `done` may read all of this PE's symmetric memory.
    ///
    /// # Errors
    /// As for [`Transport::wait`]; [`Error::AllLeft`] as [`World::fail_waits_if`] describes.
    pub fn wait(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        self.transport.wait(Awaited::default(), &mut done, &mut self.unless_all_left())
    }

    /// Blocks until `done` returns true. `done` may read only the `bytes` (at most 8) at symmetric address `word`. If only
    /// `pe` can change the word, pass its number.
    ///
    /// # Errors
    /// As for [`Transport::wait`]. [`Error::Left`] if `pe` leaves; without it, errors of [`World::wait`].
    pub fn wait_word(
        &self,
        (word, bytes): (usize, usize),
        pe: Option<u32>,
        mut done: impl FnMut() -> bool,
    ) -> Result<()> {
        // A word outside symmetric memory works too: the offset is then `None`, and every wake-up calls
        // `done`.
        let word = self.offset_of(word, bytes).ok().map(|offset| (offset, bytes));
        let awaited = Awaited { word, pe, mode: None };
        match pe {
            Some(pe) => self.transport.wait(awaited, &mut done, &mut self.unless_left(pe)),
            None => self.transport.wait(awaited, &mut done, &mut self.unless_all_left()),
        }
    }

    /// Blocks until a notification from `pe` has arrived, and consumes it.
    pub(super) fn take_notification(&self, entered: &Entered<'_>, pe: u32) -> Result<()> {
        let check = &mut self.unless_left(pe);
        let Some(channel) = entered.channel else { return self.transport.take_notification(pe, check) };
        let expected = channel.link(pe)?.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let at = channel.ours(pe)?;
        let count = self.word(at);
        let done = &mut || count.load(Ordering::Acquire) >= expected;
        self.transport.wait(Awaited { word: Some((at, 8)), pe: Some(pe), mode: None }, done, check)
    }

    /// Waits until all PEs have called this function. When it returns, the other PEs have received everything that they
    /// need from this process. It may then end at once.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn leave(&self) -> Result<()> {
        let (me, pes) = (self.me(), self.pes());
        // Complete all operations first, because a wait of another PE fails if it finds the word set and its condition
        // false.
        self.transport.quiet_all()?;
        self.word(leaving(me)).store(1, Ordering::Release);
        // Do not use notifications, because those of another collective could be mistaken for them.
        let mut distance = 1;
        while distance < pes {
            let (to, from) = ((me + distance) % pes, (me + pes - distance) % pes);
            // SAFETY: the source lives during the call. The destination is a word of the workspace.
            unsafe { self.transport.put(to, leaving(me), (&raw const ONE).cast(), 8, AtReturn)? };
            let word = self.word(leaving(from));
            let awaited = Awaited { word: Some((leaving(from), 8)), pe: Some(from), mode: None };
            self.transport.wait(awaited, &mut || word.load(Ordering::Acquire) != 0, &mut no_check)?;
            distance *= 2;
        }
        self.transport.leave()
    }
}

/// The value of a word of a PE that leaves.
static ONE: u64 = 1;
