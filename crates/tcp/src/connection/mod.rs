//! A TCP connection: its state, and the methods that process segments, timers and calls by the application.
//!
//! | module | contents |
//! | --- | --- |
//! | [`mod@self`] | opening |
//! | `control` | the calls by the application: advance the ring indices, close, abort, set options |
//! | `query`, `events` | state, events and counters, which an engine reads |
//! | `carried` | connections whose data another transport carries |
//! | `parts` | the parts of the state |
//! | `input` | received segments (RFC 9293, section 3.10.7) |
//! | `acknowledgment` | acknowledgments, loss recovery, RTT and window updates |
//! | `output` | segments to send |
//! | `path` | path MTU and ICMP messages |
//! | `timer` | timers |

use crate::config::{Config, EcnMode};
use crate::congestion::Congestion;
use crate::listener::Handshake;
use crate::options::{DEFAULT_MSS, Offer, SackBlocks};
use crate::reassembly::Reassembly;
use crate::rtt::Rtt;
use crate::scoreboard::Scoreboard;
use crate::secrets::InitialNumbers;
use crate::sequence::{self, Sequence};
use crate::{Error, Result, TimeWait};

mod acknowledgment;
mod carried;
mod control;
mod events;
mod input;
mod output;
mod parts;
mod path;
mod query;
mod timer;

pub use carried::Report;
pub use events::{Counters, EndReason, Events, ReceiveBuffer, State};
use parts::*;

/// A TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    state: State,
    flags: ConnectionFlags,
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
    reason: Option<EndReason>,
    /// The sequence number of a reset to send during the handshake, if any. The reset answers a segment of an
    /// old connection, so this connection continues.
    stray_reset: Option<u32>,
    timestamp_offset: u32,
    syn_sent_at: u64,
    /// The peer's offer of another transport.
    peer_offer: Option<Offer>,
    config: Config,
}

// Keep the state small. A host holds tens of thousands of connections, and each segment loads the state of
// its connection from memory.
const _: () = assert!(size_of::<Connection>() <= 1152);

/// The number of segments at the start of a connection for which acknowledgments are sent soon. The peer is
/// probably in slow start then.
const QUICK_ACKS: u8 = 16;

impl Connection {
    /// Opens a connection. The first [`Connection::poll_transmit`] returns the SYN. `start` comes from
    /// [`crate::Secrets::start`].
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is out of range.
    pub fn connect(now: u64, config: &Config, start: InitialNumbers) -> Result<Self> {
        config.check()?;
        let mut connection = Self::new(now, config, start, State::SynSent);
        connection.flags.syn_pending = true;
        Ok(connection)
    }

    /// Creates the established connection of a completed handshake. Afterwards, pass the segment that
    /// completed the handshake to [`Connection::on_segment`], because it may carry data.
    ///
    /// `config` may differ from the listener's configuration. Its MSS limits the segments that are sent. The
    /// window scale stays as announced in the handshake.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is out of range.
    pub fn accept(now: u64, config: &Config, handshake: &Handshake) -> Result<Self> {
        config.check()?;
        let start =
            InitialNumbers { sequence: handshake.sequence, timestamp_offset: handshake.timestamp_offset };
        let mut connection = Self::new(now, config, start, State::Established);
        connection.set_peer(now, sequence::initial(handshake.peer_sequence), &handshake.options, config);
        connection.flags.ecn = handshake.ecn;
        if handshake.options.window_scale.is_some() && config.window_scaling {
            connection.rcv.scale = handshake.receive_scale;
        }
        let first = connection.snd.start;
        (connection.snd.una, connection.snd.next) = (first, first);
        connection.snd.set_window((handshake.window as u32) << connection.snd.scale);
        (connection.snd.wl1, connection.snd.wl2) = (connection.rcv.next, first);
        connection.rcv.advertised = connection.rcv.next + connection.rcv.capacity.min(u16::MAX as u32) as u64;
        connection.on_established(now, handshake.rtt, handshake.syn_retransmissions);
        Ok(connection)
    }

    fn new(now: u64, config: &Config, start: InitialNumbers, state: State) -> Self {
        let iss = sequence::initial(start.sequence);
        Self {
            state,
            flags: ConnectionFlags::default(),
            snd: Sender {
                una: iss,
                next: iss,
                limit: iss + 1,
                start: iss + 1,
                window: 0,
                wl1: 0,
                wl2: 0,
                max_window: 1,
                promised: iss,
                capacity: config.send_capacity,
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
            peer_offer: None,
            config: config.clone(),
        }
    }

    /// Sets the state that follows from the peer's SYN: its initial sequence number `irs` and its options.
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
        self.peer_offer = options.offer;
        self.flags.sack = config.sack && options.sack_permitted;
        if let Some(timestamps) = options.timestamps.filter(|_| config.timestamps) {
            self.flags.timestamps = true;
            self.rcv.ts_recent = timestamps.value;
            self.rcv.ts_recent_at = now;
        }
    }

    /// Enters ESTABLISHED, or FIN-WAIT-1 if the application closed during the handshake.
    fn on_established(&mut self, now: u64, rtt: Option<u64>, syn_retransmissions: u8) {
        self.state = if self.snd.fin { State::FinWait1 } else { State::Established };
        if let Some(rtt) = rtt {
            self.rtt.sample(now, rtt, self.config.min_rto, self.config.max_rto);
        } else if syn_retransmissions > 0 {
            self.rtt.set_timeout(3 * crate::SECOND.min(self.config.max_rto / 3)); // RFC 6298, rule 5.7
        }
        // If more than one SYN was lost, begin with a congestion window of one segment (RFC 6928, section 2).
        let segments = if syn_retransmissions > 1 { 1 } else { self.config.initial_window as u64 };
        self.congestion = Congestion::new(segments * self.effective_mss() as u64);
        self.recovery.backoff = 0;
        self.recovery.point = self.snd.una;
        self.timers.loss_at = NEVER;
        (self.timers.last_progress, self.timers.last_received) = (now, now);
        self.arm_keepalive(now);
    }

    /// Returns the payload of a full segment in bytes: the MSS less the timestamps option, if the connection
    /// uses timestamps.
    #[inline]
    fn effective_mss(&self) -> u32 {
        let options = if self.flags.timestamps { crate::options::TIMESTAMPS_LEN as u32 } else { 0 };
        self.snd.mss as u32 - options
    }

    /// Returns the greatest payload of a segment now, in bytes: the effective MSS, or less if two such segments do not
    /// fit into the peer's window or into this side's send buffer. Two must fit because the peer may delay the
    /// acknowledgment of a single segment.
    #[inline]
    fn payload_limit(&self) -> u32 {
        // If the window is at most the default MSS, let one segment fill it, as Linux does.
        let window = match self.snd.max_window {
            most if most > DEFAULT_MSS as u32 => most / 2,
            most => most,
        };
        self.effective_mss().min(window).min(self.snd.capacity / 2).max(1)
    }
}
