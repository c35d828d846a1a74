//! The parts of a connection's state: sender, receiver, acknowledgments, loss recovery, timers and flags.

use crate::congestion::Saved;
use crate::sequence::Sequence;

/// The state of the send direction: what this side has sent, and what the peer has acknowledged and permits.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// SND.UNA, the first unacknowledged sequence number.
    pub(super) una: Sequence,
    /// SND.NXT, the next new sequence number. Retransmissions do not change it.
    pub(super) next: Sequence,
    /// The sequence number after the last byte of the application's data. It is also the sequence number of
    /// the FIN.
    pub(super) limit: Sequence,
    /// The sequence number of byte 0 of the stream to the peer.
    pub(super) start: Sequence,
    /// SND.WND: the peer's receive window in bytes.
    pub(super) window: u32,
    /// SND.WL1: the sequence number of the last segment that set SND.WND.
    pub(super) wl1: Sequence,
    /// SND.WL2: the acknowledgment number of the last segment that set SND.WND.
    pub(super) wl2: Sequence,
    /// The largest window that the peer has announced, in bytes.
    pub(super) max_window: u32,
    /// The greatest right edge that the peer has announced. An edge that is less than a unit of the window scale before it does not
    /// count, because the peer rounds its window down.
    pub(super) promised: Sequence,
    /// The most bytes that the application keeps in the send ring.
    pub(super) capacity: u32,
    /// The greatest payload of a segment without options, in bytes. It is less than `max_mss` if the path
    /// carries less.
    pub(super) mss: u16,
    /// The smaller of two values: the MSS that the peer announced, and this side's MSS.
    pub(super) max_mss: u16,
    pub(super) scale: u8,
    /// True if the application has closed the direction to the peer, so a FIN follows the data.
    pub(super) fin: bool,
    /// The end of the last sent segment that was smaller than the MSS (Minshall's variant of Nagle's
    /// algorithm).
    pub(super) small_end: Sequence,
    pub(super) last_sent: u64,
}

impl Sender {
    /// Sets the peer's window.
    #[inline]
    pub(super) fn set_window(&mut self, window: u32) {
        self.window = window;
        self.max_window = self.max_window.max(window);
        let edge = self.edge();
        // A scaled window is announced rounded down, so its edge can move back by less than a unit (RFC 7323, section 2.4).
        let rounded = self.promised < edge + (1 << self.scale);
        self.promised = if rounded { edge.max(self.promised) } else { edge };
    }

    /// Returns the right edge of the peer's window.
    #[inline]
    pub(super) fn edge(&self) -> Sequence {
        self.una + self.window as u64
    }

    /// Returns the sequence number behind the FIN, or behind the data if there is no FIN.
    #[inline]
    pub(super) fn end(&self) -> Sequence {
        self.limit + self.fin as u64
    }
}

/// The state of the direction from the peer.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// RCV.NXT: the sequence number that is expected next from the peer.
    pub(super) next: Sequence,
    /// The sequence number of the first byte that the application has not consumed.
    pub(super) consumed: Sequence,
    /// The right edge of the receive window last advertised to the peer, as a sequence number.
    pub(super) advertised: Sequence,
    /// The acknowledgment number sent last.
    pub(super) last_ack: Sequence,
    /// The sequence number of byte 0 of the stream from the peer.
    pub(super) start: Sequence,
    pub(super) capacity: u32,
    pub(super) scale: u8,
    /// The longest payload received in one segment, up to this side's MSS: an estimate of the peer's segment
    /// size.
    pub(super) mss: u16,
    /// The sequence number of the peer's FIN, if received.
    pub(super) fin: Option<Sequence>,
    /// TS.Recent: the peer's timestamp that the next segment echoes (RFC 7323).
    pub(super) ts_recent: u32,
    /// When `ts_recent` was updated, in nanoseconds.
    pub(super) ts_recent_at: u64,
}

impl Receiver {
    /// Returns the right edge of the receive window: the sequence number after the free part of the receive
    /// buffer. The edge never moves back behind the last advertised edge, even if the capacity was reduced.
    #[inline]
    pub(super) fn edge(&self) -> Sequence {
        (self.consumed + self.capacity as u64).max(self.advertised)
    }
}

/// Acknowledgments to send.
#[derive(Clone, Debug, Default)]
pub(super) struct AckState {
    /// Bytes received and not acknowledged yet.
    pub(super) pending: u32,
    /// True if an acknowledgment must be sent immediately.
    pub(super) now: bool,
    /// True if the acknowledgment of several segments waits for further ones.
    pub(super) held: bool,
    /// The number of acknowledgments to send in addition to the one of `now`, for segments received out of
    /// order. A peer without SACK counts these duplicate acknowledgments to detect losses.
    pub(super) duplicates: u8,
    /// The number of further segments to acknowledge soon. It starts at `QUICK_ACKS`, because the peer is
    /// probably in slow start. It becomes 0 when this side sends data with an acknowledgment.
    pub(super) quick: u8,
    /// The range of a duplicate segment that the next acknowledgment must report (DSACK, RFC 2883).
    pub(super) dsack: Option<(u32, u32)>,
    /// The second in which the last challenge ACK was due. The rate limit of challenge ACKs is per second, so
    /// `challenges` counts only those of this second.
    pub(super) challenge_second: u64,
    /// The number of challenge ACKs that were sent in `challenge_second`.
    pub(super) challenges: u8,
}

/// The phase of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing is being recovered.
    Open,
    /// Fast recovery (RFC 6675), with proportional rate reduction.
    Recovery,
    /// Recovery after a retransmission timeout.
    Loss,
}

/// The state of the Eifel test (RFC 3522). The test finds out by timestamps whether a retransmission was
/// spurious. It is decided by the first acknowledgment that advances SND.UNA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eifel {
    /// The loss recovery has begun, and no segment was retransmitted yet.
    Waiting,
    /// The first segment was retransmitted with this timestamp (TSval). If an acknowledgment echoes an
    /// earlier timestamp, the retransmission was spurious.
    Sent(u32),
    /// No Eifel test is pending, for one of these reasons:
    ///
    /// * The test was made.
    /// * The connection has no timestamps.
    /// * The retransmitted segment was not the first unacknowledged one.
    Decided,
}

/// The state of loss recovery, and the earlier state that is restored if the recovery was spurious.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// SND.NXT when the current phase of loss recovery began. The phase ends when this number is
    /// acknowledged.
    pub(super) point: Sequence,
    pub(super) prr_delivered: u64,
    pub(super) prr_out: u64,
    pub(super) prr_flight: u64,
    /// The congestion state before the recovery, which is restored if the recovery was spurious. `None`
    /// before the first recovery and after an undo.
    pub(super) saved: Option<Saved>,
    /// The bytes retransmitted since loss recovery began, less the bytes that the peer has reported as
    /// duplicates (DSACK).
    pub(super) undo_bytes: u64,
    /// SND.UNA when the current phase of loss recovery began.
    pub(super) undo_start: Sequence,
    pub(super) eifel: Eifel,
    /// Duplicate acknowledgments, counted if the peer has no SACK.
    pub(super) duplicate_acks: u32,
    /// The loss probe in flight (RFC 8985, section 7): the sequence number of its end, and true if the probe
    /// was a retransmission.
    pub(super) probe: Option<(Sequence, bool)>,
    pub(super) probe_pending: bool,
    /// Consecutive timeouts without progress: the exponent of the backoff.
    pub(super) backoff: u8,
    /// SND.NXT when the window was last reduced. Until this number is acknowledged, echoed congestion marks
    /// do not reduce the window again (RFC 3168, section 6.1.2).
    pub(super) ecn_point: Sequence,
}

/// What the timer of the sender's side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossTimer {
    Retransmission,
    LossProbe,
    Reordering,
    WindowProbe,
}

/// A deadline that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// The deadlines of a connection's timers, and the times at which their timeouts started.
#[derive(Clone, Debug)]
pub(super) struct Timers {
    pub(super) loss_at: u64,
    pub(super) loss: LossTimer,
    /// The time at which the retransmission timeout started, in nanoseconds.
    pub(super) rto_base: u64,
    /// The time at which the loss probe's timeout started, in nanoseconds (RFC 8985, section 7.2).
    pub(super) probe_base: u64,
    /// The time, in nanoseconds, at which further segments will count as lost unless they are acknowledged
    /// before (RFC 8985, section 6.2).
    pub(super) reordering_at: u64,
    pub(super) ack_at: u64,
    pub(super) keepalive_at: u64,
    pub(super) cork_at: u64,
    pub(super) close_at: u64,
    pub(super) last_received: u64,
    /// The time of the last event that restarted the user timeout: data was acknowledged, the peer announced
    /// a closed window, or data was sent while none was unacknowledged.
    pub(super) last_progress: u64,
    pub(super) keepalive_probes: u8,
    pub(super) window_probes: u8,
}

/// The flags of a connection's state: which TCP options were negotiated, which segments must be sent, and
/// others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionFlags {
    pub(super) timestamps: bool,
    pub(super) sack: bool,
    pub(super) ecn: bool,
    /// A SYN or SYN,ACK must be sent.
    pub(super) syn_pending: bool,
    pub(super) reset_pending: bool,
    pub(super) keepalive_pending: bool,
    pub(super) window_probe_pending: bool,
    /// True if one segment must be sent whatever the congestion window is: the retransmission timer has
    /// expired, or an ICMP message has reduced the MSS.
    pub(super) retransmission_forced: bool,
    /// True if the congestion window limits what is sent. The window grows only while this is true.
    pub(super) cwnd_limited: bool,
    /// True while the application has set the cork, which holds segments smaller than the MSS back.
    pub(super) cork: bool,
    /// True once the cork has held data back for 200 ms. The next small segment may then be sent in spite of
    /// the cork.
    pub(super) cork_expired: bool,
    /// True if acknowledgments carry the flag ECE. It is set when a congestion mark arrives, and cleared when
    /// the peer reports that it has reduced its congestion window.
    pub(super) ece: bool,
    /// True if the next segment with new data must carry the flag CWR, because the congestion window was
    /// reduced.
    pub(super) cwr: bool,
    /// True while another transport carries the data.
    pub(super) carried: bool,
    /// True once the application has closed the connection: nothing is read or written any more.
    pub(super) orphan: bool,
    /// True if the network has reported that the peer cannot be reached, and the peer has acknowledged
    /// nothing since.
    pub(super) unreachable: bool,
}
