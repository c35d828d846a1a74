//! A TCP connection as a state machine without I/O (RFC 9293).
//!
//! Segments and times go in; segments and events come out. The data stays in rings that an application shares
//! with its engine. A received payload is copied once. A segment to send is a range of indices. The crate
//! opens no socket, reads no clock, and allocates no memory for a segment.
//!
//! ```
//! use inlane_tcp::{Config, Connection, Secrets, Flow};
//!
//! let secrets = Secrets::new([7; 16]);
//! let flow = Flow { local: "10.0.0.1:40000".parse().unwrap(), remote: "10.0.0.2:80".parse().unwrap() };
//! let now = 0;
//! let mut connection = Connection::connect(now, &Config::default(), secrets.start(now, &flow)).unwrap();
//! let syn = connection.poll_transmit(now).unwrap();
//! assert_eq!(syn.header.flags, inlane_wire::tcp::SYN);
//! assert!(connection.poll_transmit(now).is_none());
//! assert_eq!(connection.next_deadline(), Some(1_000_000_000));
//! ```
//!
//! # Use
//!
//! * [`Connection::connect`] opens a connection. A [`Listener`] accepts connections: it holds half-open
//!   connections in a SYN queue.
//! * Hand each received segment to [`Connection::on_segment`]. Call [`Connection::on_timer`] when
//!   [`Connection::next_deadline`] has passed. After each of these calls, and after each change by the
//!   application, call [`Connection::poll_transmit`] until it returns `None`.
//! * Publish the application's indices with [`Connection::set_written`] and [`Connection::set_consumed`].
//!   These functions check the indices, because the application may be hostile. [`Connection::acknowledged`]
//!   and [`Connection::received`] return the indices for the application.
//! * When the state is [`State::TimeWait`], replace the connection by the smaller [`TimeWait`].
//!
//! # Time and indices
//!
//! Times are nanoseconds since any fixed moment, as `u64`. They must not decrease. Indices of the rings count
//! bytes from 0, as `u64`, and never wrap.
//!
//! # What is implemented
//!
//! | subject | source |
//! | --- | --- |
//! | states, sequence numbers, window management, silly window avoidance, keepalive | RFC 9293 |
//! | window scaling, timestamps, PAWS | RFC 7323 |
//! | SACK, DSACK | RFC 2018, 2883, 6675 |
//! | loss detection: RACK-TLP; NewReno for peers without SACK | RFC 8985, 6582 |
//! | retransmission timeout | RFC 6298 |
//! | undo of spurious retransmissions: Eifel, DSACK | RFC 3522, 4015, 3708 |
//! | congestion control: CUBIC, HyStart++, initial window, proportional rate reduction | RFC 9438, 9406, 6928, 6937 |
//! | ECN | RFC 3168 |
//! | blind attacks, initial sequence numbers, SYN cookies | RFC 5961, 6528, 4987 |
//! | path MTU: ICMP, black holes, probing | RFC 1191, 8201, 8899 |
//! | TIME-WAIT | RFC 9293, 6191, 1337 |
//!
//! Segments are not paced: a window that opens is used at once.
//!
//! Urgent data is delivered inline, as if URG were not set.

#![forbid(unsafe_code)]

mod config;
mod congestion;
mod connection;
mod listener;
mod options;
mod reassembly;
mod rtt;
mod scoreboard;
mod secrets;
mod segment;
mod sequence;
mod time_wait;

pub use config::{Config, EcnMode, Keepalive};
pub use connection::{Connection, Counters, EndReason, Events, ReceiveBuffer, Report, State};
pub use listener::{Handshake, Listener, ListenerCounters, Verdict};
pub use options::{Offer, Options, SackBlocks, Timestamps};
pub use secrets::{Flow, InitialNumbers, Secrets};
pub use segment::{Ecn, Header, Segment, Transmit, reset_for};
pub use time_wait::{TimeWait, TimeWaitAction};

/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000 * MILLISECOND;

/// The reason why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is out of range.
    #[error("TCP setting {setting} is {value}; it must be from {least} to {most}")]
    Config {
        /// The setting.
        setting: &'static str,
        /// The setting's value.
        value: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
    /// An application's index is out of range. The connection is unchanged.
    #[error("the application's {index} index is {value}; it must be from {least} to {most}")]
    Index {
        /// The name of the index: `written` or `consumed`.
        index: &'static str,
        /// Its value.
        value: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the value of the timestamps option at `now`: milliseconds plus the connection's offset.
#[inline]
pub(crate) fn timestamp(now: u64, offset: u32) -> u32 {
    ((now / MILLISECOND) as u32).wrapping_add(offset)
}
