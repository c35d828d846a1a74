//! A connection: its state, its settings and what an engine may ask of it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`mod@self`] | opening and closing, the application's indices, queries |
//! | `input` | received segments (RFC 9293, section 3.10.7) |
//! | `acknowledgment` | acknowledgments, loss recovery, RTT and window updates |
//! | `output` | segments to send |
//! | `path` | path MTU and ICMP messages |
//! | `timer` | timers |

use crate::config::{Config, EcnMode};
use crate::congestion::{Congestion, Saved};
use crate::listener::Handshake;
use crate::options::SackBlocks;
use crate::reassembly::Reassembly;
use crate::rtt::Rtt;
use crate::scoreboard::Scoreboard;
use crate::secrets::Start;
use crate::sequence::{self, Sequence};
use crate::{Error, Result, TimeWait};

mod acknowledgment;
mod input;
mod output;
mod path;
mod timer;

/// The memory into which received data is written: the application's receive ring.
pub trait ReceiveBuffer {
    /// Copies `bytes` to `index` of the stream. The bytes always fit: they end at most `receive_capacity` bytes behind the application's
    /// `consumed` index.
    fn write(&mut self, index: u64, bytes: &[u8]);
}

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A SYN was or will be sent.
    SynSent,
    /// Both sides have sent a SYN, and this side waits for the acknowledgment of its own.
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
    /// Both sides have closed. Old segments are awaited.
    TimeWait,
    /// There is no connection.
    Closed,
}

/// Why a connection ended other than by FINs from both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer reset the connection.
    Reset,
    /// The peer answered the SYN with a reset.
    Refused,
    /// The peer did not answer.
    TimedOut,
    /// The network reported that the peer cannot be reached.
    Unreachable,
    /// This side aborted the connection.
    Aborted,
}

/// What changed for the application: a set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u8);

impl Events {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The handshake is complete.
    pub const CONNECTED: Self = Self(1);
    /// [`Connection::received`] has advanced.
    pub const READABLE: Self = Self(2);
    /// [`Connection::acknowledged`] has advanced.
    pub const WRITABLE: Self = Self(4);
    /// The peer has closed its direction, and all its data was received.
    pub const PEER_CLOSED: Self = Self(8);
    /// The connection has ended: it is in state TIME-WAIT or CLOSED.
    pub const ENDED: Self = Self(16);

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
    /// Segments sent. One [`crate::Transmit`] counts as many as it is divided into.
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

/// The direction to the peer.
#[derive(Clone, Debug)]
struct Sender {
    /// SND.UNA, SND.NXT. `next` is the highest number ever sent.
    una: Sequence,
    next: Sequence,
    /// The end of the application's data. The FIN has this number.
    limit: Sequence,
    /// The sequence number of index 0.
    start: Sequence,
    /// SND.WND, SND.WL1, SND.WL2.
    window: u32,
    wl1: Sequence,
    wl2: Sequence,
    max_window: u32,
    /// The greatest payload without options.
    mss: u16,
    /// The MSS that the peer announced, or this side's, whichever is less.
    max_mss: u16,
    scale: u8,
    /// The application has closed this direction.
    fin: bool,
    /// The end of the last segment that was smaller than the MSS (Minshall's variant of Nagle's algorithm).
    small_end: Sequence,
    last_sent: u64,
}

impl Sender {
    /// The right edge of the peer's window.
    #[inline]
    fn edge(&self) -> Sequence {
        self.una + self.window as u64
    }

    /// The sequence number behind the FIN, or behind the data if there is none.
    #[inline]
    fn end(&self) -> Sequence {
        self.limit + self.fin as u64
    }
}

/// The direction from the peer.
#[derive(Clone, Debug)]
struct Receiver {
    /// RCV.NXT.
    next: Sequence,
    /// The first byte that the application has not consumed.
    consumed: Sequence,
    /// The right edge of the window that was announced.
    advertised: Sequence,
    /// The acknowledgment number sent last.
    last_ack: Sequence,
    /// The sequence number of index 0.
    start: Sequence,
    capacity: u32,
    scale: u8,
    /// The largest segment received, up to this side's MSS.
    mss: u16,
    /// The sequence number of the peer's FIN, if received.
    fin: Option<Sequence>,
    /// TS.Recent and when it was updated.
    ts_recent: u32,
    ts_recent_at: u64,
}

impl Receiver {
    /// The right edge of the free buffer.
    #[inline]
    fn edge(&self) -> Sequence {
        self.consumed + self.capacity as u64
    }
}

/// Acknowledgments to send.
#[derive(Clone, Debug, Default)]
struct AckState {
    /// Bytes received and not acknowledged yet.
    pending: u32,
    /// Send an acknowledgment at once.
    now: bool,
    /// Duplicate acknowledgments to send in addition; a peer without SACK counts them.
    duplicates: u8,
    /// The number of segments that are still acknowledged at once, because the peer is probably in slow start.
    quick: u8,
    /// A duplicate segment to report (RFC 2883).
    dsack: Option<(u32, u32)>,
    /// When the last challenge ACK was due, in whole seconds. Their rate limit counts per second.
    challenge_second: u64,
    /// The number of challenge ACKs that were sent in `challenge_second`.
    challenges: u8,
}

/// The phase of loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is being recovered.
    Open,
    /// Fast recovery (RFC 6675), with proportional rate reduction.
    Recovery,
    /// Recovery after a retransmission timeout.
    Loss,
}

/// The detection of a spurious retransmission by timestamps (RFC 3522). The first acknowledgment that advances SND.UNA decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Eifel {
    /// Waits for the first retransmission of this phase.
    Waiting,
    /// The timestamp of the first retransmission.
    Sent(u32),
    /// The retransmission was judged, or cannot be, because there are no timestamps.
    Decided,
}

#[derive(Clone, Debug)]
struct Recovery {
    phase: Phase,
    /// SND.NXT when the phase began. The phase ends when it is acknowledged.
    point: Sequence,
    prr_delivered: u64,
    prr_out: u64,
    prr_flight: u64,
    /// The congestion state to which a spurious recovery returns.
    saved: Option<Saved>,
    /// Bytes retransmitted in this phase, less those reported as duplicates.
    undo_bytes: u64,
    /// SND.UNA when the phase began.
    undo_start: Sequence,
    eifel: Eifel,
    /// Duplicate acknowledgments, counted if the peer has no SACK.
    duplicate_acks: u32,
    /// A loss probe in flight: its end, and whether it was a retransmission (RFC 8985, section 7).
    probe: Option<(Sequence, bool)>,
    probe_pending: bool,
    /// Consecutive timeouts without progress: the exponent of the backoff.
    backoff: u8,
    /// Until this number is acknowledged, further congestion marks have no effect.
    ecn_point: Sequence,
}

/// What the timer of the sender's side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LossTimer {
    Retransmission,
    LossProbe,
    Reordering,
    WindowProbe,
}

/// A deadline that never comes.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Timers {
    loss_at: u64,
    loss: LossTimer,
    /// From when the retransmission timeout and the loss probe's timeout count.
    rto_base: u64,
    probe_base: u64,
    /// When segments are lost if no acknowledgment arrives until then (RFC 8985, section 6.2).
    reordering_at: u64,
    ack_at: u64,
    keepalive_at: u64,
    cork_at: u64,
    close_at: u64,
    last_received: u64,
    /// When data was acknowledged last, or when the oldest unacknowledged data was sent.
    last_progress: u64,
    keepalive_probes: u8,
    window_probes: u8,
}

/// What was negotiated, and what waits to be sent.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    timestamps: bool,
    sack: bool,
    ecn: bool,
    /// A SYN or SYN,ACK is to be sent.
    syn_pending: bool,
    reset_pending: bool,
    keepalive_pending: bool,
    window_probe_pending: bool,
    /// The retransmission timer expired: one segment is sent whatever the congestion window is.
    retransmission_forced: bool,
    /// The congestion window stopped the last transmission.
    cwnd_limited: bool,
    /// The application holds small segments back.
    cork: bool,
    /// Small segments are sent once, because the cork was held for too long.
    cork_expired: bool,
    /// Echo a congestion mark until the peer reports that it has reduced its window.
    ece: bool,
    /// Report that the window was reduced.
    cwr: bool,
    /// No application reads or writes any more.
    orphan: bool,
}

/// A TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    state: State,
    flags: Flags,
    snd: Sender,
    rcv: Receiver,
    ack: AckState,
    timers: Timers,
    scoreboard: Scoreboard,
    congestion: Congestion,
    recovery: Recovery,
    rtt: Rtt,
    path: path::PathMtu,
    counters: Counters,
    reassembly: Reassembly,
    reason: Option<Reason>,
    /// The number of a reset to send during the handshake; the connection itself goes on.
    stray_reset: Option<u32>,
    timestamp_offset: u32,
    syn_sent_at: u64,
    config: Config,
}

// A host holds tens of thousands of connections, and each segment loads the state from memory.
const _: () = assert!(size_of::<Connection>() <= 1152);

/// The number of segments that are acknowledged at once at the start of a connection.
const QUICK_ACKS: u8 = 16;
/// The MSS of a peer that does not announce one (RFC 9293, section 3.7.1).
pub(crate) const DEFAULT_MSS: u16 = 536;

impl Connection {
    /// Opens a connection: the first [`Connection::poll_transmit`] returns the SYN. `start` comes from [`crate::Secrets::start`].
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is out of range.
    pub fn connect(now: u64, config: &Config, start: Start) -> Result<Self> {
        config.check()?;
        let mut connection = Self::new(now, config, start, State::SynSent);
        connection.flags.syn_pending = true;
        Ok(connection)
    }

    /// Creates the established connection of a completed handshake. `config` may differ from the listener's: a smaller MSS limits what is sent, and
    /// the announced window scale stays. The segment that completed it must then be handed to
    /// [`Connection::on_segment`], because it may carry data.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is out of range.
    pub fn accept(now: u64, config: &Config, handshake: &Handshake) -> Result<Self> {
        config.check()?;
        let start = Start { sequence: handshake.sequence, timestamp_offset: handshake.timestamp_offset };
        let mut connection = Self::new(now, config, start, State::Established);
        connection.set_peer(now, sequence::initial(handshake.peer_sequence), &handshake.options, config);
        connection.flags.ecn = handshake.ecn;
        if handshake.options.window_scale.is_some() && config.window_scaling {
            connection.rcv.scale = handshake.receive_scale;
        }
        let first = connection.snd.start;
        (connection.snd.una, connection.snd.next) = (first, first);
        connection.snd.window = (handshake.window as u32) << connection.snd.scale;
        connection.snd.max_window = connection.snd.window.max(1);
        (connection.snd.wl1, connection.snd.wl2) = (connection.rcv.next, first);
        connection.rcv.advertised = connection.rcv.next + connection.rcv.capacity.min(u16::MAX as u32) as u64;
        connection.on_established(now, handshake.rtt, handshake.syn_retransmissions);
        Ok(connection)
    }

    fn new(now: u64, config: &Config, start: Start, state: State) -> Self {
        let iss = sequence::initial(start.sequence);
        Self {
            state,
            flags: Flags::default(),
            snd: Sender {
                una: iss,
                next: iss,
                limit: iss + 1,
                start: iss + 1,
                window: 0,
                wl1: 0,
                wl2: 0,
                max_window: 1,
                mss: DEFAULT_MSS.min(config.mss),
                max_mss: config.mss,
                scale: 0,
                fin: false,
                small_end: iss,
                last_sent: now,
            },
            rcv: Receiver {
                next: 0,
                consumed: 0,
                advertised: 0,
                last_ack: 0,
                start: 0,
                capacity: config.receive_capacity,
                scale: config.window_scale(),
                mss: DEFAULT_MSS.min(config.mss),
                fin: None,
                ts_recent: 0,
                ts_recent_at: now,
            },
            ack: AckState { quick: QUICK_ACKS, ..AckState::default() },
            timers: Timers {
                loss_at: NEVER,
                loss: LossTimer::Retransmission,
                rto_base: now,
                probe_base: now,
                reordering_at: NEVER,
                ack_at: NEVER,
                keepalive_at: NEVER,
                cork_at: NEVER,
                close_at: NEVER,
                last_received: now,
                last_progress: now,
                keepalive_probes: 0,
                window_probes: 0,
            },
            scoreboard: Scoreboard::default(),
            congestion: Congestion::new(config.initial_window as u64 * config.mss as u64),
            recovery: Recovery {
                phase: Phase::Open,
                point: iss,
                prr_delivered: 0,
                prr_out: 0,
                prr_flight: 1,
                saved: None,
                undo_bytes: 0,
                undo_start: iss,
                eifel: Eifel::Decided,
                duplicate_acks: 0,
                probe: None,
                probe_pending: false,
                backoff: 0,
                ecn_point: iss,
            },
            rtt: Rtt::new(config.initial_rto),
            path: path::PathMtu::new(),
            counters: Counters::default(),
            reassembly: Reassembly::default(),
            reason: None,
            stray_reset: None,
            timestamp_offset: start.timestamp_offset,
            syn_sent_at: now,
            config: config.clone(),
        }
    }

    /// Takes over what the peer's SYN announced. `irs` is its sequence number.
    fn set_peer(&mut self, now: u64, irs: Sequence, options: &crate::Options, config: &Config) {
        self.rcv.start = irs + 1;
        self.rcv.next = irs + 1;
        self.rcv.consumed = irs + 1;
        self.rcv.last_ack = irs + 1;
        self.snd.max_mss = options.mss.unwrap_or(DEFAULT_MSS).clamp(Config::MIN_MSS, config.mss);
        self.snd.mss = self.snd.max_mss;
        match options.window_scale.filter(|_| config.window_scaling) {
            Some(shift) => self.snd.scale = shift,
            None => (self.snd.scale, self.rcv.scale) = (0, 0),
        }
        self.flags.sack = config.sack && options.sack_permitted;
        if let Some(timestamps) = options.timestamps.filter(|_| config.timestamps) {
            self.flags.timestamps = true;
            self.rcv.ts_recent = timestamps.value;
            self.rcv.ts_recent_at = now;
        }
    }

    /// Enters ESTABLISHED, or the state that a close before the handshake's end leads to.
    fn on_established(&mut self, now: u64, rtt: Option<u64>, syn_retransmissions: u8) {
        self.state = if self.snd.fin { State::FinWait1 } else { State::Established };
        if let Some(rtt) = rtt {
            self.rtt.sample(now, rtt, self.config.min_rto, self.config.max_rto);
        } else if syn_retransmissions > 0 {
            self.rtt.set_timeout(3 * crate::SECOND.min(self.config.max_rto / 3)); // RFC 6298, rule 5.7
        }
        // RFC 6928, section 2: one segment if more than one SYN was lost.
        let segments = if syn_retransmissions > 1 { 1 } else { self.config.initial_window as u64 };
        self.congestion = Congestion::new(segments * self.effective_mss() as u64);
        self.recovery.backoff = 0;
        self.recovery.point = self.snd.una;
        self.timers.loss_at = NEVER;
        (self.timers.last_progress, self.timers.last_received) = (now, now);
        self.arm_keepalive(now);
    }

    /// The payload of a full segment with the usual options.
    #[inline]
    fn effective_mss(&self) -> u32 {
        let options = if self.flags.timestamps { crate::options::TIMESTAMPS_LEN as u32 } else { 0 };
        self.snd.mss as u32 - options
    }

    /// Publishes that the application has written up to `index` into the send ring.
    ///
    /// # Errors
    /// [`Error::Index`] if the index decreases, exceeds the ring, or advances after the application closed.
    #[inline]
    pub fn set_written(&mut self, index: u64) -> Result<()> {
        let least = self.snd.limit - self.snd.start;
        let most = if self.snd.fin { least } else { self.acknowledged() + self.config.send_capacity as u64 };
        if !(least..=most).contains(&index) {
            return Err(Error::Index { index: "written", value: index, least, most });
        }
        self.snd.limit = self.snd.start + index;
        Ok(())
    }

    /// Publishes that the application has consumed the receive ring up to `index`. This may open the window, so poll for transmission.
    ///
    /// # Errors
    /// [`Error::Index`] if the index decreases or exceeds [`Connection::received`].
    #[inline]
    pub fn set_consumed(&mut self, index: u64) -> Result<()> {
        let (least, most) = (self.rcv.consumed - self.rcv.start, self.received());
        if !(least..=most).contains(&index) {
            return Err(Error::Index { index: "consumed", value: index, least, most });
        }
        if index > least {
            self.rcv.consumed = self.rcv.start + index;
            self.update_window();
        }
        Ok(())
    }

    /// Returns the index up to which the peer has acknowledged data. The application may reuse the send ring below it.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.snd.una.clamp(self.snd.start, self.snd.limit) - self.snd.start
    }

    /// Returns the index up to which data was received in order. The application may read the receive ring below it.
    #[inline]
    pub fn received(&self) -> u64 {
        // The peer's FIN takes a sequence number, but no byte of the ring.
        self.rcv.next - self.rcv.start - self.peer_closed() as u64
    }

    /// Returns true if the peer has closed its direction and all its data was received.
    #[inline]
    pub fn peer_closed(&self) -> bool {
        self.rcv.fin.is_some_and(|fin| self.rcv.next > fin)
    }

    /// Closes the direction to the peer after all written data. Data can still be received.
    pub fn shutdown_write(&mut self) {
        if self.snd.fin || matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }
        self.snd.fin = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => {} // Before the handshake's end the FIN waits.
        }
    }

    /// Closes both directions: the application neither reads nor writes any more. Written data is still sent. If received data was not
    /// consumed, or more arrives, the connection is reset, because that data is lost (RFC 9293, section 3.6.1; RFC 2525, section 2.17).
    pub fn close(&mut self, now: u64) {
        if self.state == State::SynSent {
            self.end(Reason::Aborted);
            return;
        }
        if self.received() > self.rcv.consumed - self.rcv.start || !self.reassembly.is_empty() {
            self.abort();
            return;
        }
        self.flags.orphan = true;
        self.flags.cork = false;
        self.shutdown_write();
        if self.state == State::FinWait2 {
            self.timers.close_at = now + self.config.fin_timeout;
        }
    }

    /// Aborts the connection. The peer gets a reset, which [`Connection::poll_transmit`] returns.
    pub fn abort(&mut self) {
        self.abort_for(Reason::Aborted);
    }

    fn abort_for(&mut self, reason: Reason) {
        let reset = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.end(reason);
        self.flags.reset_pending |= reset;
    }

    /// Enters CLOSED and stops all timers.
    fn end(&mut self, reason: Reason) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.reason = Some(reason);
            self.stop_timers();
        }
    }

    fn stop_timers(&mut self) {
        let timers = &mut self.timers;
        timers.loss_at = NEVER;
        timers.reordering_at = NEVER;
        timers.ack_at = NEVER;
        timers.keepalive_at = NEVER;
        timers.cork_at = NEVER;
        timers.close_at = NEVER;
    }

    fn enter_time_wait(&mut self, now: u64) {
        self.state = State::TimeWait;
        self.stop_timers();
        self.timers.close_at = now + self.config.time_wait;
    }

    /// Returns the table entry that replaces a connection in state TIME-WAIT, or `None` in other states. Take it when
    /// [`Connection::poll_transmit`] has nothing left to send and the application has closed.
    pub fn time_wait(&self) -> Option<TimeWait> {
        (self.state == State::TimeWait).then(|| TimeWait {
            sequence: self.snd.next as u32,
            acknowledgment: self.rcv.next as u32,
            window: self.window_field(),
            timestamps: self.flags.timestamps.then_some((self.rcv.ts_recent, self.timestamp_offset)),
            until: self.timers.close_at,
        })
    }

    /// Switches Nagle's algorithm off or on.
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.config.no_delay = no_delay;
    }

    /// Holds segments smaller than the MSS back until the cork is removed, for at most 200 ms.
    pub fn set_cork(&mut self, cork: bool) {
        self.flags.cork = cork;
        self.flags.cork_expired = false;
        self.timers.cork_at = NEVER;
    }

    /// Sets the probing of the idle connection.
    pub fn set_keepalive(&mut self, now: u64, keepalive: Option<crate::Keepalive>) {
        self.config.keepalive = keepalive;
        self.arm_keepalive(now);
    }

    /// Sets how long data may stay unacknowledged, in nanoseconds.
    pub fn set_user_timeout(&mut self, timeout: Option<u64>) {
        self.config.user_timeout = timeout;
    }

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns why the connection ended, or `None` if it did not or both sides closed it.
    pub fn reason(&self) -> Option<Reason> {
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

    /// Returns the least RTT of the last seconds in nanoseconds.
    pub fn minimum_rtt(&self) -> Option<u64> {
        self.rtt.minimum()
    }

    /// Returns the retransmission timeout in nanoseconds, without backoff.
    pub fn retransmission_timeout(&self) -> u64 {
        self.rtt.timeout()
    }

    /// Returns the bytes sent and neither acknowledged nor lost.
    pub fn in_flight(&self) -> u64 {
        if self.scoreboard.is_empty() {
            return 0;
        }
        // Each duplicate acknowledgment of a peer without SACK reports that a segment has left the network.
        let left = self.recovery.duplicate_acks as u64 * self.snd.mss as u64;
        self.scoreboard.in_flight().saturating_sub(left)
    }

    /// Returns the payload of the largest segment that is sent, in bytes.
    pub fn segment_size(&self) -> u32 {
        self.effective_mss()
    }

    /// Returns true if the peer accepts selective acknowledgments.
    pub fn sack(&self) -> bool {
        self.flags.sack
    }

    /// Returns true if ECN was negotiated.
    pub fn ecn(&self) -> bool {
        self.flags.ecn
    }

    fn requests_ecn(&self) -> bool {
        self.config.ecn == EcnMode::Request
    }

    /// The SACK option of the next segment, with at most `room` blocks.
    fn sack_blocks(&self, room: usize) -> SackBlocks {
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
