//! The methods that report a connection's state, counters and settings.

use super::*;

impl Connection {
    /// Returns true if segments were received out of order, so the receive ring has bytes behind [`Connection::received`].
    pub fn is_reassembling(&self) -> bool {
        !self.reassembly.is_empty()
    }

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns why the connection ended. Returns `None` if it has not ended, or if both sides closed it
    /// normally.
    pub fn reason(&self) -> Option<EndReason> {
        self.reason
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the congestion window in bytes.
    pub fn congestion_window(&self) -> u64 {
        self.congestion.window()
    }

    /// Returns the slow start threshold in bytes; `u64::MAX` before the first loss.
    pub fn slow_start_threshold(&self) -> u64 {
        self.congestion.threshold()
    }

    /// Returns the peer's receive window in bytes.
    pub fn send_window(&self) -> u32 {
        self.snd.window
    }

    /// Returns the smoothed RTT in nanoseconds.
    pub fn smoothed_rtt(&self) -> Option<u64> {
        self.rtt.smoothed()
    }

    /// Returns the variation of the RTT in nanoseconds.
    pub fn rtt_variation(&self) -> u64 {
        self.rtt.variation()
    }

    /// Returns the retransmission timeout in nanoseconds, without backoff.
    pub fn retransmission_timeout(&self) -> u64 {
        self.rtt.timeout()
    }

    /// Returns the number of bytes that were sent and are neither acknowledged nor marked lost.
    pub fn in_flight(&self) -> u64 {
        if self.scoreboard.is_empty() {
            return 0;
        }
        // Without SACK, each duplicate acknowledgment shows that one segment has left the network. So
        // subtract one segment for each duplicate.
        let left = self.recovery.duplicate_acks as u64 * self.snd.mss as u64;
        self.scoreboard.in_flight().saturating_sub(left)
    }

    /// Returns the effective MSS in bytes. Segments are smaller if the peer's window or the send buffer is small.
    pub fn segment_size(&self) -> u32 {
        self.effective_mss()
    }

    /// The number of segments whose acknowledgment is not held back any longer; see [`Config::ack_gap`].
    pub const MOST_HELD: u32 = 16;

    /// Returns true if the acknowledgment of several segments waits for further ones. [`Connection::next_deadline`] then is only
    /// microseconds away.
    pub fn holds_acknowledgment(&self) -> bool {
        self.ack.held
    }

    /// Sends the acknowledgment that is held back with the next segment. Call [`Connection::poll_transmit`] afterwards.
    pub fn release_acknowledgment(&mut self) {
        self.ack.now |= self.ack.held;
    }

    /// Returns true if the peer accepts selective acknowledgments.
    pub fn sack(&self) -> bool {
        self.flags.sack
    }

    /// Returns true if ECN was negotiated.
    pub fn ecn(&self) -> bool {
        self.flags.ecn
    }

    pub(super) fn requests_ecn(&self) -> bool {
        self.config.ecn == EcnMode::Request
    }

    /// Returns the SACK option of the next segment, with at most `room` blocks.
    pub(super) fn sack_blocks(&self, room: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if self.flags.sack && (self.ack.dsack.is_some() || !self.reassembly.is_empty()) {
            if let Some((left, right)) = self.ack.dsack {
                blocks.push(left, right);
            }
            let room = room.saturating_sub(blocks.len());
            self.reassembly.report(&mut blocks, room);
        }
        blocks
    }
}
