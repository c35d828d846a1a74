//! Wakes a thread of the program that sleeps in epoll_wait although receive rings are open.

use super::{Direct, Hostile};

impl Direct {
    /// Looks whether a thread of the program sleeps until the connection has events. Call this when the receive ring has got something.
    pub(super) fn look_for_sleepers(&mut self, now: u64) {
        if self.wakes.is_none()
            && let Some(number) = self.area.area().sleepers().claim_wake(self.index)
        {
            self.wakes = Some(number);
            self.area.note_wake(now);
        }
        self.must_end |= self.wakes.is_some() && self.published;
    }

    /// Returns true if the contents of the receive ring must go to the pair, because that wakes a thread of the program. If the peer's engine
    /// publishes bytes in the ring, first call [`Direct::end_publishing`]. Then call [`Direct::leave_to_wake`].
    pub fn must_wake(&self) -> bool {
        self.wakes.is_some()
    }

    /// Returns true if bytes or the end of the stream that were left in the receive ring must still go to the pair.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// Closes the receive ring, to wake a thread of the program. Returns `None` if the peer's engine publishes bytes in the ring. Otherwise returns how many
    /// further bytes the program has taken. The others must go to the pair.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn leave_to_wake(&mut self) -> Result<Option<u64>, Hostile> {
        if self.published {
            return Ok(None);
        }
        let taken = self.leave()?;
        self.return_wake();
        Ok(Some(taken))
    }

    /// Lets other bytes wake the thread, because nothing of this connection does.
    pub(super) fn return_wake(&mut self) {
        if let Some(number) = self.wakes.take() {
            self.area.area().sleepers().return_wake(number);
        }
    }
}
