//! The settings of a connection: buffer sizes, MSS, options, timeouts and retries.

use crate::{Error, MILLISECOND, Result, SECOND};

/// The use of explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// ECN is never used.
    Off,
    /// ECN is used if the peer requests it.
    #[default]
    Accept,
    /// ECN is requested in the SYN, and used if the peer agrees or requests it.
    Request,
}

/// The probing of an idle connection (RFC 9293, section 3.8.4). Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long the connection must be idle before the first keep-alive probe, in nanoseconds.
    pub idle: u64,
    /// The time between two keep-alive probes, in nanoseconds.
    pub interval: u64,
    /// The number of unanswered keep-alive probes after which the connection is aborted.
    pub probes: u8,
}

impl Default for Keepalive {
    /// Returns the keepalive settings of most systems: the first probe after two idle hours, then one probe
    /// every 75 seconds, and at most nine probes.
    fn default() -> Self {
        Self { idle: 7200 * SECOND, interval: 75 * SECOND, probes: 9 }
    }
}

/// Settings of a connection. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The size of the application's send buffer in bytes.
    pub send_capacity: u32,
    /// The size of the application's receive buffer in bytes.
    pub receive_capacity: u32,
    /// The largest payload, in bytes, of a segment without options that fits into the interface's MTU: the
    /// MTU minus the IP header and the 20 bytes of the TCP header. Also the value of the MSS option.
    pub mss: u16,
    /// The segment payload in bytes that is used after a black hole was detected. Every path is expected to
    /// carry it (RFC 8899, BASE_PLPMTU).
    pub base_mss: u16,
    /// The greatest payload of one [`crate::Transmit`], in bytes. A value of at most `mss` disables
    /// segmentation offload.
    pub gso_bytes: u32,
    /// Offers timestamps (RFC 7323).
    pub timestamps: bool,
    /// True to offer selective acknowledgments to the peer (RFC 2018); false to refuse them.
    pub sack: bool,
    /// True to offer window scaling to the peer (RFC 7323); false to announce at most 65,535 bytes.
    pub window_scaling: bool,
    /// Use of ECN.
    pub ecn: EcnMode,
    /// The initial congestion window in segments (RFC 6928).
    pub initial_window: u8,
    /// The retransmission timeout before the first RTT sample (RFC 6298), in nanoseconds.
    pub initial_rto: u64,
    /// The least retransmission timeout, in nanoseconds.
    pub min_rto: u64,
    /// The greatest retransmission timeout, and the greatest time between window probes, in nanoseconds.
    pub max_rto: u64,
    /// How long an acknowledgment may be delayed, in nanoseconds. RFC 9293, section 3.8.6.3, demands less
    /// than 500 ms.
    pub delayed_ack: u64,
    /// How long the acknowledgment of a short segment may be delayed while the connection is new, in
    /// nanoseconds. A short segment (less than half of the MSS) often is a request. The answer to it can then
    /// carry the acknowledgment. 0 acknowledges such segments at once.
    pub quick_ack: u64,
    /// How long the acknowledgment of two or more full segments may wait for further ones, in nanoseconds since the last of them.
    /// It waits for at most [`Connection::MOST_HELD`](crate::Connection::MOST_HELD) segments, and for an eighth of the receive
    /// buffer. So a run of segments gets one acknowledgment, as with receive offload. 0 acknowledges every second full segment
    /// at once (RFC 9293, section 3.8.6.3).
    pub ack_gap: u64,
    /// The number of SYN retransmissions after which a connection attempt fails.
    pub syn_retries: u8,
    /// The number of retransmissions of a segment after which the connection is aborted.
    pub retries: u8,
    /// The time, in nanoseconds, after which unacknowledged data aborts the connection (RFC 9293, section
    /// 3.8.3). `None` for no limit.
    pub user_timeout: Option<u64>,
    /// How to probe the peer while the connection is idle. `None` for no probes.
    pub keepalive: Option<Keepalive>,
    /// True to send small segments at once. False to use Nagle's algorithm: a small segment waits while an
    /// earlier small one is unacknowledged.
    pub no_delay: bool,
    /// The offer of another transport in the SYN. A listener answers offers if this is set, with an offer of
    /// [`crate::Secrets::offer`].
    pub offer: Option<crate::Offer>,
    /// How long a connection that the application has closed waits in FIN-WAIT-2 for the peer's FIN, in
    /// nanoseconds.
    pub fin_timeout: u64,
    /// The duration of TIME-WAIT, in nanoseconds: twice the maximum segment lifetime.
    pub time_wait: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_capacity: 1 << 20,
            receive_capacity: 1 << 20,
            mss: 1460,
            base_mss: 1160,
            gso_bytes: 65_000,
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: EcnMode::default(),
            initial_window: 10,
            initial_rto: SECOND,
            min_rto: 200 * MILLISECOND,
            max_rto: 120 * SECOND,
            delayed_ack: 40 * MILLISECOND,
            quick_ack: 0,
            ack_gap: 0,
            syn_retries: 6,
            retries: 15,
            user_timeout: None,
            keepalive: None,
            no_delay: false,
            offer: None,
            fin_timeout: 60 * SECOND,
            time_wait: 60 * SECOND,
        }
    }
}

impl Config {
    /// The least MSS that is used, whatever a peer or an ICMP message says.
    pub const MIN_MSS: u16 = 88;
    /// The greatest size of a buffer, in bytes: the largest window that RFC 7323 can express.
    pub const MAX_CAPACITY: u32 = 1 << 30;

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Config`] names the first setting that is out of range.
    pub fn check(&self) -> Result<()> {
        let range = |setting, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(Error::Config { setting, value, least, most })
            }
        };
        range("send_capacity", self.send_capacity as u64, 1, Self::MAX_CAPACITY as u64)?;
        range("receive_capacity", self.receive_capacity as u64, 1, Self::MAX_CAPACITY as u64)?;
        range("mss", self.mss as u64, Self::MIN_MSS as u64, u16::MAX as u64)?;
        range("base_mss", self.base_mss as u64, Self::MIN_MSS as u64, u16::MAX as u64)?;
        range("initial_window", self.initial_window as u64, 1, u8::MAX as u64)?;
        range("max_rto", self.max_rto, MILLISECOND, 3600 * SECOND)?;
        range("initial_rto", self.initial_rto, MILLISECOND, self.max_rto)?;
        range("min_rto", self.min_rto, MILLISECOND, self.max_rto)?;
        range("quick_ack", self.quick_ack, 0, 500 * MILLISECOND)?;
        range("ack_gap", self.ack_gap, 0, MILLISECOND)?;
        range("delayed_ack", self.delayed_ack, 0, 500 * MILLISECOND)
    }

    /// Returns the window scale for the receive buffer: the least shift with which the 16-bit window field
    /// can express the whole buffer.
    pub(crate) fn window_scale(&self) -> u8 {
        if !self.window_scaling {
            return 0;
        }
        (0..crate::options::MAX_WINDOW_SCALE)
            .find(|&shift| self.receive_capacity >> shift <= u16::MAX as u32)
            .unwrap_or(crate::options::MAX_WINDOW_SCALE)
    }
}
