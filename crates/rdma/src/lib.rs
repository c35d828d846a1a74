//! A reliable RDMA connection as a state machine without I/O: a byte stream in each direction over RoCEv2.
//!
//! The receiver sends *memory information*: which range of the stream the sender may write, and a key. The
//! sender answers with RDMA WRITE ONLY packets. Each has its own RETH, so the receiver places each packet at
//! once, in whatever order packets arrive. The crate opens no socket, reads no clock, and allocates no memory
//! for a packet.
//!
//! ```
//! use inlane_rdma::{Config, Connection, Endpoint, MAX_HEADERS};
//!
//! let local = Endpoint { queue_pair: 17, psn: 100, token: 1 };
//! let remote = Endpoint { queue_pair: 18, psn: 200, token: 2 };
//! let mut connection = Connection::new(&Config::default(), local, remote, [7; 16]).unwrap();
//! let mut headers = [0; MAX_HEADERS];
//! let first = connection.poll_transmit(0, &mut headers).unwrap();
//! assert!(first.payload.is_empty(), "the first packet carries memory information");
//! assert!(connection.poll_transmit(0, &mut headers).is_none());
//! ```
//!
//! # Use
//!
//! * The two peers agree on an [`Endpoint`] each by other means, before the connection is created.
//! * Hand each received packet whose ICRC is right to [`Connection::on_packet`]. Call
//!   [`Connection::on_timer`] when [`Connection::next_deadline`] has passed. After each of these calls, and
//!   after each change by the application, call [`Connection::poll_transmit`] until it returns `None`.
//! * Publish the application's indices with [`Connection::set_written`] and [`Connection::set_consumed`].
//!   [`Connection::acknowledged`] and [`Connection::received`] return the indices for the application.
//!
//! # Packets
//!
//! Data packets are RDMA WRITE ONLY. The address in the RETH is the index of the first byte in the stream, so
//! the memory region is zero-based. The receiver translates the address into its receive ring. Data packets have
//! consecutive packet sequence numbers (PSNs). A retransmission has the PSN of the original.
//!
//! A data packet that also acknowledges is an RDMA WRITE ONLY WITH IMMEDIATE. Its immediate data is the next PSN that its sender
//! expects. So traffic in both directions needs no packets for acknowledgments. Such a packet without data is the end of
//! the stream.
//!
//! Control messages have the opcode [`CONTROL`], which the standard leaves to manufacturers. They need no
//! PSN, because each one carries the complete state of the receiver: the next expected PSN, a bitmap of the
//! PSNs received after it, and the memory information that is valid now. A lost control message is therefore
//! replaced by the next one. They are sent if memory information is new or a packet is missing, and to acknowledge
//! packets if there is no data to send for a while.
//!
//! # Reliability
//!
//! Losses are detected by time, as RACK-TLP (RFC 8985) does: a packet is lost if a later sent one has arrived
//! and the reordering window has passed. Only lost packets are sent again. The retransmission timeout follows
//! RFC 6298. The congestion window grows as in RFC 5681 and shrinks to 0.7 of its size once a round trip with
//! losses.
//!
//! # Hostile peers
//!
//! A key is random, valid for one range of the stream, and revoked when the range has been received. Wrong
//! keys, PSNs, ranges and tokens are counted in [`Counters`] and change nothing.

#![forbid(unsafe_code)]

mod acknowledgment;
mod config;
mod connection;
mod control;
mod counters;
mod receiver;
mod sender;
mod store;

pub use config::{Config, Endpoint};
pub use connection::{Connection, EndReason, Transmit, data_headers};
pub use control::{CONTROL, MAX_HEADERS};
pub use counters::Counters;
pub use receiver::Memory;

/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000 * MILLISECOND;

/// The reason why a call was refused. The connection is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is out of range.
    #[error("RDMA setting {setting} is {value}; it must be from {least} to {most}")]
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
    /// An application's index is out of range.
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

/// Returns the earlier one of two deadlines.
pub(crate) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}

/// Returns the PSN nearest to `near` whose low 24 bits are `number`.
pub(crate) fn extend(near: u64, number: u32) -> u64 {
    let distance = (number.wrapping_sub(near as u32) << 8) as i32 >> 8;
    near.wrapping_add_signed(distance as i64)
}
