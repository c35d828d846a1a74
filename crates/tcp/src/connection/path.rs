//! The path's MTU: ICMP messages (RFC 1191, RFC 8201), black holes, and probing with data segments (RFC 4821,
//! RFC 8899).
//!
//! A connection starts with the MSS that both ends announced. If the path's MTU is smaller, an ICMP message
//! or repeated timeouts (a black hole) show this, and the MSS is reduced. Afterwards, the connection tries a
//! larger segment from time to time (a probe). A probe is a data segment, so its loss costs one
//! retransmission. The loss is no sign of congestion.

use super::*;
use crate::SECOND;
use crate::segment::Transmit;

/// The least MSS that an ICMP message can set. It limits the harm of forged messages.
const LEAST_MSS: u16 = 512;
/// If large segments time out this many times in a row, the path counts as a black hole.
const BLACK_HOLE_TIMEOUTS: u8 = 2;
/// How long after a reduction of the MSS the search for a larger one starts (RFC 8899, PMTU_RAISE_TIMER).
const RAISE_AFTER: u64 = 600 * SECOND;
/// If this number of probes of one size were lost, only smaller sizes are tested afterwards (RFC 8899,
/// MAX_PROBES).
const MAX_PROBES: u8 = 3;
/// The search for the MSS ends when its upper end exceeds the MSS in use by less than this many bytes. The
/// upper end is the greatest MSS that may work.
const PRECISION: u16 = 32;

/// The search for the path's MTU.
#[derive(Clone, Debug)]
pub(super) struct PathMtu {
    /// The upper end of the search: the greatest MSS that the path may carry.
    high: u16,
    /// The MSS that the next probe tests.
    candidate: u16,
    /// The probe in flight: its start, its end, and the MSS that it tests.
    probe: Option<(Sequence, Sequence, u16)>,
    failures: u8,
    /// The time from which the next probe may be sent, in nanoseconds.
    probe_at: u64,
}

impl PathMtu {
    pub(super) fn new() -> Self {
        Self { high: 0, candidate: 0, probe: None, failures: 0, probe_at: 0 }
    }
}

impl Connection {
    /// Processes an ICMP message "packet too big" or "fragmentation needed". `sequence` is the sequence
    /// number in the TCP header that the message quotes. `mss` is the reported MTU less the IP and TCP
    /// headers. Ignores a message that quotes no segment in flight, because it may be forged.
    pub fn on_packet_too_big(&mut self, now: u64, sequence: u32, mss: u16) {
        let sequence = sequence::extend(self.snd.una, sequence);
        let in_flight = self.snd.una <= sequence && sequence < self.snd.next;
        let mss = mss.max(LEAST_MSS.min(self.snd.max_mss));
        if !in_flight || mss >= self.snd.mss || self.scoreboard.is_empty() {
            return;
        }
        self.limit_mss(now, mss);
        // The segments were lost because they were too big. Their loss is no sign of congestion, so send
        // everything in flight again at once.
        self.scoreboard.mark_timed_out(now, 0);
        self.flags.retransmission_forced = true;
    }

    /// Processes an ICMP message "destination unreachable". `sequence` is the sequence number in the TCP
    /// header that the message quotes. Set `hard` if the message comes from the destination host, which has
    /// no such protocol or port. Other messages come from routers, and their reason may be temporary (RFC
    /// 1122, section 4.2.3.9).
    ///
    /// If the connection is still being established, it ends. An established connection continues, because
    /// the message may be forged (RFC 5927, section 5). If it then times out before the peer acknowledges
    /// more data, the reason of its end is [`EndReason::Unreachable`].
    pub fn on_unreachable(&mut self, sequence: u32, hard: bool) -> Events {
        let sequence = sequence::extend(self.snd.una, sequence);
        if sequence < self.snd.una || sequence >= self.snd.next {
            return Events::NONE;
        }
        if !matches!(self.state, State::SynSent | State::SynReceived) {
            self.flags.unreachable = true;
            return Events::NONE;
        }
        self.end(if hard { EndReason::Refused } else { EndReason::Unreachable });
        Events::ENDED
    }

    fn limit_mss(&mut self, now: u64, mss: u16) {
        self.snd.mss = mss;
        let high = self.snd.max_mss;
        self.path = PathMtu { high, candidate: high, probe: None, failures: 0, probe_at: now + RAISE_AFTER };
    }

    /// Reduces the MSS to the base MSS after repeated timeouts while more than one base MSS is in flight.
    /// Routers may drop large segments without an ICMP message. Smaller segments may then still pass.
    pub(super) fn check_black_hole(&mut self, now: u64) {
        let base = self.config.base_mss.min(self.snd.max_mss);
        let large = self.snd.next - self.snd.una > base as u64;
        if self.recovery.backoff >= BLACK_HOLE_TIMEOUTS && self.snd.mss > base && large && self.snd.window > 0
        {
            self.counters.black_holes += 1;
            self.limit_mss(now, base);
        }
    }

    /// Sends a larger segment to test whether the path carries it. Returns `None` if it is too early, or if
    /// there is not enough data or room.
    pub(super) fn transmit_path_probe(&mut self, now: u64) -> Option<Transmit> {
        if now < self.path.probe_at || self.path.probe.is_some() || self.recovery.phase != Phase::Open {
            return None;
        }
        let size = self.path.candidate;
        let payload = size as u64 - (self.snd.mss as u64 - self.effective_mss() as u64);
        let room = self.snd.edge().min(self.snd.limit).saturating_sub(self.snd.next);
        // Send a probe only if more data can follow it. Acknowledgments of that data reveal the probe's loss
        // without a timeout.
        if room < 2 * payload || self.congestion.window() < self.in_flight() + 2 * payload {
            return None;
        }
        self.path.probe = Some((self.snd.next, self.snd.next + payload, size));
        Some(self.send_new(now, payload as u32, payload as u32))
    }

    /// Raises the MSS if the probe was acknowledged.
    pub(super) fn on_path_probe_acknowledged(&mut self, now: u64) {
        if let Some((_, end, size)) = self.path.probe
            && self.snd.una >= end
        {
            self.path.probe = None;
            self.snd.mss = size;
            self.choose_candidate(now);
        }
    }

    /// If the path probe is the only lost segment, ends the probe as failed and returns true. Such a loss
    /// means that the probe exceeds the path MTU. It does not count as congestion.
    pub(super) fn path_probe_lost(&mut self, now: u64) -> bool {
        let Some((start, end, _)) = self.path.probe else { return false };
        let only = self.scoreboard.lost() == end - start
            && self.scoreboard.next_lost() == Some((start, (end - start) as u32));
        if only {
            self.fail_path_probe(now);
        }
        only
    }

    /// Gives up the lost probe of the path's MTU that was in flight. After the third loss of a probe of this
    /// size, only smaller sizes are tested.
    pub(super) fn fail_path_probe(&mut self, now: u64) {
        let Some((_, _, size)) = self.path.probe.take() else { return };
        self.path.failures += 1;
        if self.path.failures >= MAX_PROBES {
            self.path.high = size - 1;
            self.choose_candidate(now);
        }
    }

    /// Forgets the probe of the path's MTU if the bytes of the probe are retransmitted in other segments. An
    /// acknowledgment of these segments would not show that the path carries the probe.
    #[inline]
    pub(super) fn forget_path_probe(&mut self, start: Sequence, len: u32) {
        if self.path.probe.is_some_and(|probe| start < probe.1 && probe.0 < start + len as u64) {
            self.path.probe = None;
        }
    }

    fn choose_candidate(&mut self, now: u64) {
        self.path.failures = 0;
        if self.snd.mss.saturating_add(PRECISION) > self.path.high {
            self.path.high = self.snd.max_mss;
            self.path.candidate = self.path.high;
            self.path.probe_at = now + RAISE_AFTER;
        } else {
            self.path.candidate = self.snd.mss + (self.path.high - self.snd.mss).div_ceil(2);
        }
    }
}
