//! SYN cookies (RFC 4987, appendix A). The initial sequence number of a SYN,ACK encodes the handshake. The
//! peer's ACK returns this number. So a listener with a full SYN queue needs no entry for the handshake.
//!
//! ```text
//!  31       27 26      24 23                                            0
//!  | period   | MSS index | hash of flow, peer's number, period and MSS |
//! ```
//!
//! The hash is keyed with a secret. The peer's number is the initial sequence number of its SYN. The other
//! options go into the low six bits of the timestamp, which the peer echoes. Four of these bits hold the
//! window scale (15: none), the other two SACK and ECN.

use super::{Handshake, Listener, Verdict};
use crate::options::{Options, Timestamps};
use crate::secrets::Flow;
use crate::segment::{Header, Segment, reset_for};
use crate::sequence::before;
use crate::{Config, SECOND};
use inlane_wire::tcp::ACK;

/// The values of the MSS that a cookie can hold.
const MSS: [u16; 8] = [Config::MIN_MSS, 536, 1024, 1220, 1360, 1440, 1460, 8900];
/// The length of a cookie's period in nanoseconds. A cookie contains the number of its period, which shows
/// when it has expired.
const PERIOD: u64 = 64 * SECOND;
/// How long a cookie is valid at most: its own period and the next one.
pub(super) const VALID: u64 = 2 * PERIOD;

const NO_SCALE: u32 = 15;
const SACK: u32 = 16;
const ECN: u32 = 32;
const OPTION_BITS: u32 = 63;

impl Listener {
    fn cookie(&self, flow: &Flow, peer_sequence: u32, period: u64, mss: usize) -> u32 {
        let period = (period & 31) as u32;
        let hash = self.secrets.hash(1, &(flow, peer_sequence, period, mss)) as u32;
        period << 27 | (mss as u32) << 24 | hash & 0xff_ffff
    }

    /// Returns the SYN,ACK whose sequence number is a cookie.
    pub(super) fn cookie_reply(&self, now: u64, flow: &Flow, handshake: &Handshake) -> Header {
        let announced = handshake.options.mss.unwrap_or(crate::options::DEFAULT_MSS);
        let mss = MSS.iter().rposition(|&mss| mss <= announced).unwrap_or(0);
        let mut options = handshake.options;
        if options.timestamps.is_none() || !self.config.timestamps {
            // Nothing echoes these.
            (options.window_scale, options.sack_permitted) = (None, false);
        }
        let ecn = handshake.ecn && options.timestamps.is_some();
        let sequence = self.cookie(flow, handshake.peer_sequence, now / PERIOD, mss);
        let mut header = self.syn_ack(now, &Handshake { sequence, options, ecn, ..*handshake });
        if let Some(timestamps) = &mut header.options.timestamps {
            let scale =
                options.window_scale.filter(|_| self.config.window_scaling).map_or(NO_SCALE, u32::from);
            let bits = scale | if options.sack_permitted { SACK } else { 0 } | if ecn { ECN } else { 0 };
            // Store the options in the low six bits of the timestamp. If this raises the timestamp above the
            // clock, subtract 64. The connection's next timestamp comes from the clock and must not be
            // smaller.
            let value = timestamps.value & !OPTION_BITS | bits;
            timestamps.value =
                if before(timestamps.value, value) { value.wrapping_sub(OPTION_BITS + 1) } else { value };
        }
        header
    }

    /// Completes a handshake if the segment acknowledges a valid cookie and the accept queue has room. Drops
    /// the segment if the queue is full. Answers with a reset if the cookie is not valid, unless the segment
    /// is a reset itself.
    pub(super) fn on_cookie(&mut self, now: u64, flow: &Flow, segment: &Segment<'_>) -> Verdict {
        let header = &segment.header;
        let reset = || reset_for(segment).map_or(Verdict::Drop, Verdict::Reply);
        if now >= self.cookies_until || header.flags & (ACK | inlane_wire::tcp::SYN) != ACK {
            return reset();
        }
        let (sequence, peer_sequence) =
            (header.acknowledgment.wrapping_sub(1), header.sequence.wrapping_sub(1));
        let mss = (sequence >> 24 & 7) as usize;
        let period = now / PERIOD;
        let valid = [period, period.wrapping_sub(1)]
            .iter()
            .any(|&p| self.cookie(flow, peer_sequence, p, mss) == sequence);
        if !valid {
            self.counters.cookies_invalid += 1;
            return reset();
        }
        if self.is_full() {
            self.counters.accept_queue_full += 1;
            return Verdict::Drop;
        }
        self.counters.cookies_valid += 1;
        self.counters.established += 1;
        let timestamps = header.options.timestamps.filter(|_| self.config.timestamps);
        let bits = timestamps.map_or(NO_SCALE, |timestamps| timestamps.echo & OPTION_BITS);
        let scale = bits & 15;
        let options = Options {
            mss: Some(MSS[mss]),
            window_scale: (scale != NO_SCALE).then_some((scale as u8).min(crate::options::MAX_WINDOW_SCALE)),
            sack_permitted: bits & SACK != 0,
            timestamps: timestamps.map(|timestamps| Timestamps { value: timestamps.value, echo: 0 }),
            ..Options::default()
        };
        Verdict::Established(Handshake {
            sequence,
            peer_sequence,
            options,
            timestamp_offset: self.secrets.start(now, flow).timestamp_offset,
            window: header.window,
            ecn: bits & ECN != 0,
            receive_scale: self.config.window_scale(),
            rtt: None,
            syn_retransmissions: 0,
            offer: None,
        })
    }
}
