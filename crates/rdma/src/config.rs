//! Settings of a connection, and what two peers agree on.

use crate::{Error, MILLISECOND, Result, SECOND};
use inlane_wire::roce;

/// One side of a connection. Each peer tells the other one its own before the connection is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The number of this side's queue pair, 24 bits. Packets to this side carry it.
    pub queue_pair: u32,
    /// The sequence number of the first packet that this side sends, 24 bits.
    pub psn: u32,
    /// A random number. Control messages to this side carry it, so only the peer can send them.
    pub token: u64,
}

/// Settings of a [`crate::Connection`]. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the send ring.
    pub send_capacity: u32,
    /// Bytes of the receive ring.
    pub receive_capacity: u32,
    /// The most bytes of data in a packet.
    pub payload: u16,
    /// Bytes at the beginning of the stream that the peer may write before it has memory information. Their key
    /// follows from [`Endpoint::token`]. Both peers must use the same value.
    pub first_grant: u32,
    /// True to send memory information at once. Otherwise the first acknowledgment that no data carries has it, or it is sent when
    /// the peer has used half of `first_grant`. Without `first_grant`, it is always sent at once.
    pub announce: bool,
    /// A sample of the round-trip time from the handshake of the two peers, if there is one. Without it, a loss
    /// at the beginning costs `initial_rto`.
    pub rtt: Option<u64>,
    /// The retransmission timeout before the first sample of the round-trip time.
    pub initial_rto: u64,
    /// The least retransmission timeout.
    pub min_rto: u64,
    /// The greatest retransmission timeout.
    pub max_rto: u64,
    /// The connection ends after this number of timeouts in a row without a control message from the peer.
    pub retries: u32,
    /// How long the acknowledgment of a single packet waits for data that can carry it.
    pub ack_delay: u64,
    /// How long the acknowledgment of two or more packets waits for further ones, since the last of them. At most 16 packets and
    /// an eighth of the bytes that the peer may send wait. 0 acknowledges every second packet at once.
    pub ack_gap: u64,
    /// The most bytes of the congestion window.
    pub max_window: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_capacity: 1 << 20,
            receive_capacity: 1 << 20,
            payload: 1408,
            first_grant: 0,
            announce: true,
            rtt: None,
            initial_rto: 200 * MILLISECOND,
            min_rto: 20 * MILLISECOND,
            max_rto: 10 * SECOND,
            retries: 12,
            ack_delay: MILLISECOND,
            ack_gap: 0,
            max_window: 64 << 20,
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<()> {
        let range = |setting, value: u64, least, most| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::Config { setting, value, least, most })
        };
        range("send_capacity", self.send_capacity as u64, 1, 1 << 30)?;
        range("receive_capacity", self.receive_capacity as u64, 1, 1 << 30)?;
        range("first_grant", self.first_grant as u64, 0, self.receive_capacity as u64)?;
        range("payload", self.payload as u64, 64, 65_000)?;
        range("max_rto", self.max_rto, MILLISECOND, 3600 * SECOND)?;
        range("initial_rto", self.initial_rto, MILLISECOND, self.max_rto)?;
        range("min_rto", self.min_rto, MILLISECOND, self.max_rto)?;
        range("ack_delay", self.ack_delay, 0, self.min_rto)?;
        range("ack_gap", self.ack_gap, 0, MILLISECOND)?;
        range("retries", self.retries as u64, 1, 255)?;
        range("max_window", self.max_window as u64, 2 * self.payload as u64, 1 << 30)
    }

    /// Returns the number of PSNs from the first missing one on that the receiver accepts.
    pub(crate) fn slots(&self) -> u64 {
        let packets = 2 * self.receive_capacity as u64 / self.payload as u64;
        packets.next_power_of_two().clamp(INITIAL_SLOTS, MAX_SLOTS)
    }
}

impl Endpoint {
    pub(crate) fn check(&self) -> Result<()> {
        for (setting, value) in [("queue_pair", self.queue_pair), ("psn", self.psn)] {
            if value > roce::MASK {
                let (value, most) = (value as u64, roce::MASK as u64);
                return Err(Error::Config { setting, value, least: 0, most });
            }
        }
        Ok(())
    }
}

/// The number of PSNs that a sender may use before the peer has announced its number of slots. Every receiver
/// has at least this number.
pub(crate) const INITIAL_SLOTS: u64 = 64;
/// The greatest number of slots.
pub(crate) const MAX_SLOTS: u64 = 4096;
