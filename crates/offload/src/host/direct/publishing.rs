//! The peer's engine stores bytes into the receive ring, and shows them to the program itself.

use super::{Direct, Hostile, LEAST_AGE_NS, STORE_LIMIT_NS};
use crate::stack::stream::Stream;
use inlane_offload_protocol::slots::POSITION;

impl Direct {
    /// Returns true if the receive ring should be shared with the peer's engine now, and has not been.
    pub fn may_offer(&self, now: u64) -> bool {
        !self.offered && now >= self.since + LEAST_AGE_NS
    }

    /// Returns true if the peer's engine could publish the bytes that it stores: the receive ring is open.
    pub fn may_publish(&self) -> bool {
        self.offered && self.open && !self.published && !self.has_end
    }

    /// Begins that the peer's engine publishes. All bytes in the receive ring are filled. Returns the index of the byte at position 0.
    pub fn begin_publishing(&mut self) -> u64 {
        self.published = true;
        self.base
    }

    /// Ends that the peer's engine publishes, if the receive ring must be left or bytes of `stream` arrive in other ways. Returns
    /// `None` if a store is under way: try again in the next round. Otherwise returns whether it has ended that.
    #[inline]
    pub fn end_publishing(&mut self, now: u64, stream: &mut Stream) -> Option<bool> {
        if !self.published || !self.must_end && stream.arrives_by_stores() {
            return Some(false);
        }
        self.stop_publishing(now, stream).then_some(true)
    }

    /// Returns how many further bytes the program has taken, which has closed its end of the pair. Ends that the peer's engine
    /// publishes, because the program may have taken bytes that this engine has not processed. Returns `None` if a store is under
    /// way: try again in the next round.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn settle_last(&mut self, now: u64, stream: &mut Stream) -> Result<Option<u64>, Hostile> {
        if !self.open {
            return Ok(Some(0));
        }
        if self.published && !self.stop_publishing(now, stream) {
            return Ok(None);
        }
        let (_, position) = self.slot.receive().taken();
        self.advance(position).map(Some)
    }

    /// Ends that the peer's engine stores and publishes, so that a later request can take the slot from the connection. Returns false if
    /// the peer's engine did not publish.
    pub fn forbid_publishing(&mut self, now: u64, stream: &mut Stream) -> bool {
        let published = self.published;
        if published && stream.close_stores(now) {
            self.stop_publishing(now, stream);
        }
        published
    }

    /// Ends that the peer's engine publishes. Returns false if a store is under way. Aborts the connection if that store takes longer
    /// than [`STORE_LIMIT_NS`].
    #[cold]
    fn stop_publishing(&mut self, now: u64, stream: &mut Stream) -> bool {
        // A ring that is closed for stores needs no claim.
        let claim = if stream.has_stores() { stream.hold_stores(now) } else { None };
        if claim.is_none() && stream.has_stores() {
            if now < *self.stored_since.get_or_insert(now) + STORE_LIMIT_NS {
                return false;
            }
            stream.connection.abort();
        }
        (self.published, self.must_end, self.stored_since) = (false, false, None);
        self.filled = stream.connection.received().wrapping_sub(self.base) & POSITION;
        self.slot.receive().fill(self.filled);
        self.area.announce(self.index);
        self.look_for_sleepers(now);
        if let Some(claim) = claim {
            stream.release_stores(claim, None);
        }
        true
    }
}
