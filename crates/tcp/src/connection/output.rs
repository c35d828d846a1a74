//! Chooses and builds the next segment to send: a retransmission, new data, a probe, an acknowledgment or a
//! reset.

use super::*;
use crate::options::{MAX_SACK_BLOCKS, Options, Timestamps};
use crate::segment::{Ecn, Header, Transmit};
use inlane_wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN};

/// The longest time for which a cork holds back segments smaller than the MSS, in nanoseconds.
const CORK: u64 = 200 * crate::MILLISECOND;

impl Connection {
    /// Returns the next segment to send, or `None` if there is nothing to send now. The caller must send
    /// every returned segment. A segment that the port drops counts as lost.
    #[inline]
    pub fn poll_transmit(&mut self, now: u64) -> Option<Transmit> {
        let transmit = self.next_transmit(now)?;
        self.counters.segments_out +=
            (transmit.len().div_ceil(transmit.segment_size.max(1) as usize)).max(1) as u64;
        Some(transmit)
    }

    fn next_transmit(&mut self, now: u64) -> Option<Transmit> {
        match self.state {
            State::Closed => return self.transmit_reset(),
            State::SynSent | State::SynReceived => return self.transmit_syn(now),
            _ => {}
        }
        if self.ack.now && self.flags.sack && (self.ack.dsack.is_some() || !self.reassembly.is_empty()) {
            // Send the acknowledgment in a segment without data, because a full data segment has no room for
            // SACK blocks.
            return Some(Transmit::bare(self.header(now, self.acceptable_sequence(), ACK, MAX_SACK_BLOCKS)));
        }
        if self.scoreboard.lost() > 0
            && let Some(transmit) = self.retransmit(now)
        {
            return Some(transmit);
        }
        if self.recovery.probe_pending {
            self.recovery.probe_pending = false;
            if let Some(transmit) = self.transmit_loss_probe(now) {
                return Some(transmit);
            }
        }
        // If another transport carries the data, only the FIN is left to TCP.
        if self.snd.next < self.snd.end()
            && (!self.flags.carried || self.snd.next == self.snd.limit)
            && let Some(transmit) = self.transmit_new(now)
        {
            return Some(transmit);
        }
        if self.flags.keepalive_pending {
            self.flags.keepalive_pending = false;
            // The probe carries a number that was acknowledged already, so the peer must answer (RFC 9293,
            // section 3.8.4).
            return Some(Transmit::bare(self.header(now, self.snd.una - 1, ACK, MAX_SACK_BLOCKS)));
        }
        if self.ack.now || self.ack.duplicates > 0 {
            if self.ack.now {
                self.ack.now = false;
            } else {
                self.ack.duplicates -= 1;
            }
            return Some(Transmit::bare(self.header(now, self.acceptable_sequence(), ACK, MAX_SACK_BLOCKS)));
        }
        None
    }

    /// Returns the sequence number for a segment without data. This is SND.NXT, or the end of the peer's
    /// window if SND.NXT is beyond it, as after a window probe. Peers drop segments that begin beyond their
    /// window.
    fn acceptable_sequence(&self) -> Sequence {
        if self.flags.carried {
            return self.snd.next;
        }
        // The peer drops an older number if it has acknowledged the bytes behind it.
        self.snd.next.min(self.snd.promised.max(self.snd.edge()))
    }

    fn transmit_reset(&mut self) -> Option<Transmit> {
        if !std::mem::take(&mut self.flags.reset_pending) {
            return None;
        }
        Some(Transmit::bare(Header {
            sequence: self.acceptable_sequence() as u32,
            acknowledgment: self.rcv.next as u32,
            flags: RST | ACK,
            ..Header::default()
        }))
    }

    fn transmit_syn(&mut self, now: u64) -> Option<Transmit> {
        if let Some(sequence) = self.stray_reset.take() {
            return Some(Transmit::bare(Header { sequence, flags: RST, ..Header::default() }));
        }
        if !std::mem::take(&mut self.flags.syn_pending) {
            return None;
        }
        let active = self.state == State::SynSent;
        let timestamps = if active { self.config.timestamps } else { self.flags.timestamps };
        let scaling = self.config.window_scaling && (active || self.snd.scale > 0 || self.rcv.scale > 0);
        let options = Options {
            mss: Some(self.config.mss),
            window_scale: scaling.then_some(self.rcv.scale),
            sack_permitted: if active { self.config.sack } else { self.flags.sack },
            timestamps: timestamps.then(|| Timestamps {
                value: crate::timestamp(now, self.timestamp_offset),
                echo: if active { 0 } else { self.rcv.ts_recent },
            }),
            sack: SackBlocks::default(),
            // A middlebox may drop SYNs with unknown options, so a SYN that was lost twice comes without.
            offer: self
                .config
                .offer
                .filter(|_| if active { self.recovery.backoff < 2 } else { self.peer_offer.is_some() }),
        };
        // RFC 3168, section 6.1.1.1: a retransmitted SYN does not request ECN, because a middlebox may have
        // dropped the first SYN for its ECN flags.
        let ecn = match (active, self.recovery.backoff) {
            (true, 0) if self.requests_ecn() => ECE | CWR,
            (false, 0) if self.flags.ecn => ECE,
            _ => 0,
        };
        self.syn_sent_at = now;
        self.snd.next = self.snd.una + 1;
        self.timers.loss = LossTimer::Retransmission;
        self.timers.loss_at = now + self.backed_off(self.recovery.backoff);
        Some(Transmit::bare(Header {
            sequence: self.snd.una as u32,
            acknowledgment: if active { 0 } else { self.rcv.next as u32 },
            window: self.rcv.capacity.min(u16::MAX as u32) as u16,
            flags: if active { SYN | ecn } else { SYN | ACK | ecn },
            options,
        }))
    }

    /// Returns the window field of the next segment.
    pub(super) fn window_field(&self) -> u16 {
        ((self.rcv.advertised.saturating_sub(self.rcv.next)) >> self.rcv.scale).min(u16::MAX as u64) as u16
    }

    /// Moves the right edge of the announced window forward. Moves it only by at least one segment or half of
    /// the buffer, whichever is less. This avoids silly windows (RFC 9293, section 3.8.6.2.2).
    #[inline]
    fn advance_window(&mut self) {
        let edge = self.rcv.edge();
        let least = (self.rcv.capacity / 2).min(self.rcv.mss as u32).max(1) as u64;
        // RCV.NXT may lie beyond the announced right edge of the window, because data beyond the edge is
        // accepted if there is room. Move the edge up to RCV.NXT.
        self.rcv.advertised = self.rcv.advertised.max(self.rcv.next);
        if edge >= self.rcv.advertised + least {
            let most = self.rcv.next + ((u16::MAX as u64) << self.rcv.scale);
            self.rcv.advertised = edge.min(most).max(self.rcv.advertised);
        }
    }

    /// Returns a header that acknowledges everything received. Counts this acknowledgment as sent.
    #[inline]
    fn header(&mut self, now: u64, sequence: Sequence, flags: u8, sack_room: usize) -> Header {
        self.advance_window();
        let timestamps = self.flags.timestamps.then(|| Timestamps {
            value: crate::timestamp(now, self.timestamp_offset),
            echo: self.rcv.ts_recent,
        });
        let room = if timestamps.is_some() { sack_room.min(3) } else { sack_room };
        let options = Options { timestamps, sack: self.sack_blocks(room), ..Options::default() };
        if room > 0 {
            self.ack.dsack = None;
        }
        self.ack.pending = 0;
        self.ack.now = false;
        self.ack.held = false;
        self.timers.ack_at = NEVER;
        self.rcv.last_ack = self.rcv.next;
        Header {
            sequence: sequence as u32,
            acknowledgment: self.rcv.next as u32,
            window: self.window_field(),
            flags: flags | if self.flags.ece { ECE } else { 0 },
            options,
        }
    }

    /// Returns a segment with the sequence numbers `start..start + len`. They may include the FIN.
    fn segment(
        &mut self,
        now: u64,
        start: Sequence,
        len: u32,
        mut flags: u8,
        ecn: Ecn,
        size: u32,
    ) -> Transmit {
        let end = start + len as u64;
        let data_end = end.min(self.snd.limit);
        if end > self.snd.limit {
            flags |= FIN;
        }
        if data_end == self.snd.limit && data_end > start {
            flags |= PSH;
        }
        // Data segments carry SACK blocks only if their payload leaves enough room.
        let room =
            (self.effective_mss().saturating_sub(size.min((data_end - start) as u32)) / 8).saturating_sub(1);
        let header = self.header(now, start, ACK | flags, room as usize);
        Transmit {
            header,
            payload: start - self.snd.start..data_end - self.snd.start,
            segment_size: size as u16,
            ecn,
        }
    }

    /// Returns the next retransmission, which begins at the first lost range. The congestion window (in whole
    /// segments), the peer's window and the size of one transmission limit its length.
    fn retransmit(&mut self, now: u64) -> Option<Transmit> {
        let (start, lost) = self.scoreboard.next_lost()?;
        let mss = self.payload_limit();
        // Retransmit one byte or the FIN even if the peer's window is closed. The segment then acts as a
        // window probe.
        let edge = self.snd.edge().max(self.snd.una + 1).max(self.fin_edge());
        if start >= edge {
            return None;
        }
        let allowed = self.congestion.window().saturating_sub(self.in_flight());
        let forced = std::mem::take(&mut self.flags.retransmission_forced);
        let least = (lost.min(mss)) as u64;
        if allowed < least && !forced {
            self.flags.cwnd_limited = true;
            return None;
        }
        let most = if forced { mss as u64 } else { (allowed - allowed % mss as u64).max(least) };
        let burst = (self.config.gso_bytes / mss).max(1) * mss;
        let len = (lost.min(burst) as u64).min(most).min(edge - start) as u32;
        if start == self.snd.una {
            self.timers.rto_base = now;
        }
        self.forget_path_probe(start, len);
        self.scoreboard.retransmitted(start, len, now);
        let recovery = &mut self.recovery;
        recovery.prr_out += len as u64;
        if recovery.phase != Phase::Open {
            recovery.undo_bytes += len as u64;
            if recovery.eifel == Eifel::Waiting {
                let stamp = crate::timestamp(now, self.timestamp_offset);
                // Test by timestamps only whether a retransmission of the first unacknowledged segment was
                // spurious. For later segments, an acknowledgment may echo the timestamp of another segment.
                recovery.eifel = if start == self.snd.una { Eifel::Sent(stamp) } else { Eifel::Decided };
            }
        }
        let transmit = self.segment(now, start, len, 0, Ecn::NotEct, mss);
        self.counters.retransmitted_bytes += transmit.len() as u64;
        self.snd.last_sent = now;
        self.arm_loss_timer(now);
        Some(transmit)
    }

    /// Returns the sequence number up to which a FIN may be sent, even if the peer's window is closed. A FIN
    /// needs no room in the window. Returns 0 while data before the FIN is not acknowledged, unless
    /// another transport carries the data.
    fn fin_edge(&self) -> Sequence {
        let ready = self.snd.una == self.snd.limit || self.flags.carried;
        if self.snd.fin && ready { self.snd.end() } else { 0 }
    }

    /// Sends new data if possible, else the last segment again (RFC 8985, section 7.3).
    fn transmit_loss_probe(&mut self, now: u64) -> Option<Transmit> {
        self.counters.loss_probes += 1;
        self.timers.rto_base = now;
        let mss = self.payload_limit();
        let new = (self.snd.end() - self.snd.next)
            .min(self.snd.edge().saturating_sub(self.snd.next))
            .min(mss as u64);
        if new > 0 {
            self.recovery.probe = Some((self.snd.next + new, false));
            return Some(self.send_new(now, new as u32, mss));
        }
        let Some((start, len)) = self.scoreboard.last(mss) else {
            self.arm_loss_timer(now);
            return None;
        };
        self.recovery.probe = Some((start + len as u64, true));
        self.forget_path_probe(start, len);
        self.scoreboard.retransmitted(start, len, now);
        let transmit = self.segment(now, start, len, 0, Ecn::NotEct, mss);
        self.counters.retransmitted_bytes += transmit.len() as u64;
        self.arm_loss_timer(now);
        Some(transmit)
    }

    /// Sends new data within the windows, unless small segments wait (RFC 9293, sections 3.7.4 and 3.8.6.2.1).
    #[inline]
    fn transmit_new(&mut self, now: u64) -> Option<Transmit> {
        let idle = self.scoreboard.is_empty();
        if idle && now.saturating_sub(self.snd.last_sent) > self.rtt.timeout() {
            self.congestion.on_idle(self.config.initial_window as u64 * self.effective_mss() as u64);
        }
        if self.snd.mss < self.snd.max_mss
            && let Some(transmit) = self.transmit_path_probe(now)
        {
            return Some(transmit);
        }
        let mss = self.payload_limit() as u64;
        let pending = self.snd.end() - self.snd.next;
        let window = self.snd.edge().max(self.fin_edge()).saturating_sub(self.snd.next);
        let flight = self.in_flight();
        let congestion = self.congestion.window().saturating_sub(flight);
        let burst = (self.config.gso_bytes as u64 / mss).max(1) * mss;
        let mut len = pending.min(window).min(burst);
        if congestion < len {
            self.flags.cwnd_limited = true;
            len = congestion - congestion % mss;
            if len == 0 {
                return None;
            }
        } else if len == pending {
            self.flags.cwnd_limited =
                self.congestion.slow_start() && self.congestion.window() < 2 * (flight + len);
        }
        let tail = len % mss;
        if tail > 0 && !self.small_segment_allowed(now, len, tail, pending, window) {
            len -= tail;
        }
        if len == 0 {
            if idle && std::mem::take(&mut self.flags.window_probe_pending) {
                return Some(self.transmit_window_probe(now, window.min(pending).min(mss).max(1) as u32));
            }
            if idle && window < pending {
                self.arm_window_probe(now);
            }
            return None;
        }
        self.flags.window_probe_pending = false;
        Some(self.send_new(now, len as u32, mss as u32))
    }

    /// Returns true if the last `tail` of `len` bytes may be sent now, although they do not fill a segment.
    /// Returns false if the bytes must wait. The time limit of a cork starts when the cork first makes bytes
    /// wait.
    fn small_segment_allowed(&mut self, now: u64, len: u64, tail: u64, pending: u64, window: u64) -> bool {
        if len < pending {
            // The peer's window ends inside a segment, although more data is queued. Avoid a silly window
            // (RFC 9293, section 3.8.6.2.1): send the partial segment only if two conditions hold. The window
            // has no room for a full segment. The segment fills at least half of the largest window that the
            // peer has announced so far.
            return len == tail && window == len && tail >= (self.snd.max_window as u64 / 2).max(1);
        }
        if self.snd.fin {
            return true;
        }
        if self.flags.cork && !self.flags.cork_expired {
            if self.timers.cork_at == NEVER {
                self.timers.cork_at = now + CORK;
            }
            return false;
        }
        // Minshall's variant of Nagle's algorithm: only one small segment may be unacknowledged.
        self.config.no_delay || self.snd.small_end <= self.snd.una
    }

    /// Sends `len` new bytes, which may include the FIN, in segments of `size` bytes.
    pub(super) fn send_new(&mut self, now: u64, len: u32, size: u32) -> Transmit {
        let start = self.snd.next;
        if self.scoreboard.is_empty() {
            self.timers.rto_base = now;
            self.timers.last_progress = now;
        }
        self.timers.probe_base = now;
        self.scoreboard.push(start, len, now);
        self.snd.next = start + len as u64;
        self.snd.last_sent = now;
        self.recovery.prr_out += len as u64;
        let small = !len.is_multiple_of(size);
        if small {
            self.snd.small_end = self.snd.next;
        }
        if small || self.snd.next == self.snd.end() {
            // This segment leaves no data behind that TCP_CORK held back. So the next small segment may be
            // held back again for the full time.
            self.flags.cork_expired = false;
            self.timers.cork_at = NEVER;
        }
        if self.ack.pending > 0 {
            self.ack.quick = 0; // data answers data, so acknowledgments can wait for it
        }
        let flags = if std::mem::take(&mut self.flags.cwr) { CWR } else { 0 };
        let ecn = if self.flags.ecn { Ecn::Ect0 } else { Ecn::NotEct };
        let transmit = self.segment(now, start, len, flags, ecn, size);
        self.arm_loss_timer(now);
        transmit
    }

    /// Sends a window probe (RFC 9293, section 3.8.6.1). The probe has one byte if the peer's window is
    /// closed. If the window is smaller than a segment, the probe fills the window.
    fn transmit_window_probe(&mut self, now: u64, len: u32) -> Transmit {
        self.counters.window_probes += 1;
        self.timers.window_probes = self.timers.window_probes.saturating_add(1);
        let small_end = self.snd.small_end;
        let transmit = self.send_new(now, len, self.payload_limit());
        if self.snd.window == 0 {
            // Do not count the probe as a small segment. Nagle's algorithm would otherwise hold the remaining
            // data back when the window opens.
            self.snd.small_end = small_end;
        }
        self.recovery.backoff =
            self.recovery.backoff.max(self.timers.window_probes.min(super::timer::MAX_PROBE_BACKOFF));
        self.arm_loss_timer(now);
        transmit
    }
}
