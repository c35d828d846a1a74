//! The types through which a connection and its caller communicate: states, events, reasons of failure,
//! counters, and the memory for received data.

/// The memory into which received data is written: the application's receive ring.
pub trait ReceiveBuffer {
    /// Copies the received `bytes` into the receive ring. `index` is the offset of the first byte in the
    /// peer's stream. The bytes always fit: they end at most `receive_capacity` bytes after the first byte
    /// that the application has not consumed.
    fn write(&mut self, index: u64, bytes: &[u8]);
}

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A SYN was or will be sent.
    SynSent,
    /// Both sides have sent a SYN. This side waits for the acknowledgment of its own SYN.
    SynReceived,
    /// Data flows both ways.
    Established,
    /// This side has closed and its FIN is not acknowledged.
    FinWait1,
    /// This side's FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer has closed; this side may still send.
    CloseWait,
    /// Both sides have closed at once; this side's FIN is not acknowledged.
    Closing,
    /// The peer has closed first; this side's FIN is not acknowledged.
    LastAck,
    /// Both sides have closed. The connection waits until its old segments can no longer be in the network.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// Why a connection ended other than by FINs from both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The peer reset the connection.
    Reset,
    /// The peer answered the SYN with a reset, or with an ICMP message which says that it has no such port.
    Refused,
    /// The peer did not answer.
    TimedOut,
    /// The network reported that the peer cannot be reached.
    Unreachable,
    /// This side aborted the connection.
    Aborted,
}

/// A set of flags that tell the application what a received segment or a timer has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u8);

impl Events {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The handshake is complete.
    pub const CONNECTED: Self = Self(1);
    /// [`crate::Connection::received`] has advanced.
    pub const READABLE: Self = Self(2);
    /// [`crate::Connection::acknowledged`] has advanced.
    pub const WRITABLE: Self = Self(4);
    /// The peer has closed its direction, and all its data was received.
    pub const PEER_CLOSED: Self = Self(8);
    /// The connection has ended: it is in state TIME-WAIT or CLOSED.
    pub const ENDED: Self = Self(16);
    /// The segment has data, but another transport carries the data: the peer has returned to TCP. Nothing else has
    /// changed. Call [`crate::Connection::end_carried`], and then hand the segment over again.
    pub const RETURNED: Self = Self(32);

    /// Returns true if all flags of `other` are set.
    #[inline]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if no flag is set.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Events {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Counters of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments received.
    pub segments_in: u64,
    /// The number of segments sent. A [`crate::Transmit`] that is divided into several segments counts as
    /// several.
    pub segments_out: u64,
    /// Payload bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u32,
    /// Fast recoveries.
    pub recoveries: u32,
    /// Tail loss probes sent.
    pub loss_probes: u32,
    /// Reductions of the congestion window that were undone, because the retransmission was spurious.
    pub undone: u32,
    /// Window probes sent.
    pub window_probes: u32,
    /// Reductions of the congestion window because of a congestion mark.
    pub congestion_marks: u32,
    /// Segments received out of order.
    pub out_of_order: u64,
    /// Segments received that held no new data.
    pub duplicates: u64,
    /// Segments discarded because their timestamp was old or missing.
    pub bad_timestamps: u32,
    /// Segments outside the window, and segments whose flags or acknowledgment number do not fit the state.
    pub unacceptable: u32,
    /// Challenge ACKs sent (RFC 5961).
    pub challenge_acks: u32,
    /// Challenge ACKs withheld by the rate limit.
    pub challenge_acks_limited: u32,
    /// Black holes detected: the path dropped large segments without a message.
    pub black_holes: u32,
}
