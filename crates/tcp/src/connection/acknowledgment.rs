//! Processes acknowledgments. Determines which data they acknowledge, which losses they reveal, and how the
//! congestion window reacts.

use super::*;
use crate::congestion::Ack;
use crate::scoreboard::{AckContext, Delivered};
use crate::segment::Segment;
use crate::sequence::{before, extend};
use inlane_wire::tcp::{ECE, FIN, SYN};

/// The number of duplicate acknowledgments that reveal a loss if the peer has no SACK (RFC 5681).
const DUPLICATE_THRESHOLD: u32 = 3;

impl Connection {
    /// Processes an acknowledgment. The caller has checked RFC 5961's range: from SND.UNA minus the largest
    /// window to SND.NXT.
    #[inline]
    pub(super) fn on_acknowledgment(
        &mut self,
        now: u64,
        segment: &Segment<'_>,
        seq: Sequence,
        ack: Sequence,
    ) -> Events {
        if ack < self.snd.una {
            return Events::NONE; // an old one that was delayed
        }
        let header = &segment.header;
        let advanced = ack > self.snd.una;
        let window_before = self.snd.window;
        let edge_before = self.snd.edge();
        let context = AckContext {
            now,
            min_rtt: self.rtt.minimum().unwrap_or(0),
            echo: header
                .options
                .timestamps
                .filter(|_| self.flags.timestamps)
                .map(|t| (t.echo, self.timestamp_offset)),
        };
        let mut delivered = Delivered::default();
        if advanced {
            self.scoreboard.acknowledge(ack, &context, &mut delivered);
            self.snd.una = ack;
            self.recovery.backoff = 0;
            self.flags.retransmission_forced = false;
            self.flags.unreachable = false;
            self.timers.last_progress = now;
            (self.timers.rto_base, self.timers.probe_base) = (now, now);
            self.on_path_probe_acknowledged(now);
        }
        let mut dsack = false;
        if self.flags.sack && !header.options.sack.is_empty() {
            dsack = self.on_sack(segment, &context, &mut delivered);
        }
        // Set the peer's window. Ignore the window of a segment that is older than the segment that last set
        // it (SND.WL1, SND.WL2; RFC 9293, section 3.10.7.4).
        // The window in a SYN, here of a simultaneous open, is never scaled (RFC 7323, section 2.2).
        let scale = if header.has(SYN) { 0 } else { self.snd.scale };
        let announced = (header.window as u32) << scale;
        if self.snd.wl1 < seq || (self.snd.wl1 == seq && self.snd.wl2 <= ack) {
            self.snd.set_window(announced);
            (self.snd.wl1, self.snd.wl2) = (seq, ack);
        }
        if self.snd.window > 0 {
            self.timers.window_probes = 0;
        } else {
            // Restart the user timeout, because the peer answers although its window is closed.
            self.timers.last_progress = now;
            self.recovery.backoff = self.recovery.backoff.min(super::timer::MAX_PROBE_BACKOFF);
        }

        if self.scoreboard.is_empty() && !advanced {
            return Events::NONE;
        }
        self.sample_rtt(now, &context, &delivered, advanced);
        let duplicate = !advanced
            && seq >= self.rcv.last_ack
            && segment.payload.is_empty()
            && !header.has(FIN)
            && announced == window_before
            && !self.scoreboard.is_empty();
        if self.recovery.probe.is_some() {
            self.on_probe_acknowledged(ack, duplicate, dsack, header.options.sack.is_empty());
        }
        if self.flags.ecn && header.has(ECE) {
            self.flags.cwnd_limited = false; // the window does not grow
            if ack > self.recovery.ecn_point {
                self.on_congestion_echo();
            }
        }
        self.recover(now, advanced, duplicate, &mut delivered, &context);
        // Window probes sent bytes beyond the closed window, and the peer dropped them. The window is open
        // now, so these bytes are sent again.
        if edge_before <= ack
            && self.snd.edge() > ack
            && self.recovery.phase == Phase::Open
            && !self.scoreboard.is_empty()
        {
            self.scoreboard.mark_timed_out(now, 0);
        }
        self.arm_loss_timer(now);
        if advanced { self.on_advance(now) } else { Events::NONE }
    }

    /// Processes SACK blocks. Returns true if the first one is a DSACK (RFC 2883, section 4).
    fn on_sack(&mut self, segment: &Segment<'_>, context: &AckContext, delivered: &mut Delivered) -> bool {
        let mut dsack = false;
        let blocks = segment.header.options.sack.as_slice();
        for (n, &(left, right)) in blocks.iter().enumerate() {
            let (left, right) = (extend(self.snd.una, left), extend(self.snd.una, right));
            if left >= right || right > self.snd.next {
                continue;
            }
            let inside_next = || {
                blocks.get(1).is_some_and(|&(l, r)| {
                    extend(self.snd.una, l) <= left && right <= extend(self.snd.una, r)
                })
            };
            if n == 0 && (right <= self.snd.una || inside_next()) {
                if left >= self.snd.start && right + self.snd.max_window as u64 >= self.snd.una {
                    dsack = true;
                    self.on_dsack(left, right - left);
                }
                continue;
            }
            if left >= self.snd.una {
                self.scoreboard.sack(left, right, self.snd.mss as u32, context, delivered);
            }
        }
        dsack
    }

    fn on_dsack(&mut self, start: Sequence, len: u64) {
        self.scoreboard.on_dsack(self.snd.una, self.snd.next);
        // If the peer reports every retransmission of this recovery as a duplicate, no segment was lost.
        // Restore the window in this case (RFC 3708).
        if self.recovery.undo_bytes > 0 && start >= self.recovery.undo_start {
            self.recovery.undo_bytes = self.recovery.undo_bytes.saturating_sub(len);
            if self.recovery.undo_bytes == 0 {
                self.undo();
            }
        }
    }

    fn sample_rtt(&mut self, now: u64, context: &AckContext, delivered: &Delivered, advanced: bool) {
        let (least, most) = (self.config.min_rto, self.config.max_rto);
        if let (Some(oldest), Some(newest)) = (delivered.oldest, delivered.newest) {
            self.rtt.sample_min(now, now.saturating_sub(newest));
            self.rtt.sample(now, now.saturating_sub(oldest), least, most);
        } else if advanced
            && delivered.bytes > 0
            && let Some((echo, offset)) = context.echo
            && echo != 0
        {
            // Only retransmitted segments were acknowledged. The echoed timestamp shows which of the
            // transmissions the acknowledgment answers. So compute the RTT from the timestamp (RFC 7323,
            // section 4).
            let elapsed = crate::timestamp(now, offset).wrapping_sub(echo) as u64;
            if elapsed < 600_000 {
                self.rtt.sample(now, (elapsed + 1) * crate::MILLISECOND, least, most);
            }
        }
    }

    /// Ends the episode of a loss probe once the probe is acknowledged. If the probe itself repaired the
    /// loss, reduces the window as fast recovery would have (RFC 8985, section 7.4).
    fn on_probe_acknowledged(&mut self, ack: Sequence, duplicate: bool, dsack: bool, no_sack: bool) {
        let Some((end, retransmission)) = self.recovery.probe else { return };
        if ack < end {
            return;
        }
        if !retransmission || dsack {
            self.recovery.probe = None;
        } else if ack > end {
            // The probe repaired a loss that nothing else revealed, so the loss must still reduce the window.
            self.recovery.probe = None;
            if self.recovery.phase == Phase::Open {
                self.congestion.on_congestion(self.snd.mss as u32);
                self.congestion.set_window(self.congestion.threshold(), self.snd.mss as u32);
            }
        } else if duplicate && no_sack {
            self.recovery.probe = None;
        }
    }

    /// Detects losses and runs the phases of loss recovery.
    fn recover(
        &mut self,
        now: u64,
        advanced: bool,
        duplicate: bool,
        delivered: &mut Delivered,
        context: &AckContext,
    ) {
        let phase_before = self.recovery.phase;
        if advanced && phase_before != Phase::Open {
            if let (Eifel::Sent(stamp), Some((echo, _))) = (self.recovery.eifel, context.echo)
                && before(echo, stamp)
            {
                // The acknowledgment answers the original transmission, so the retransmission was spurious.
                self.undo();
            }
            self.recovery.eifel = Eifel::Decided;
            if self.snd.una >= self.recovery.point {
                self.end_recovery();
            }
        }
        let lost = if self.flags.sack {
            self.detect_loss(now)
        } else {
            self.detect_loss_by_duplicates(advanced, duplicate, delivered)
        };
        match self.recovery.phase {
            Phase::Open if lost > 0 => self.on_losses(now, delivered.bytes, lost),
            Phase::Recovery if delivered.bytes > 0 => self.reduce_rate(delivered.bytes, advanced, lost),
            // Do not grow the congestion window, because the end of fast recovery has just set it.
            Phase::Open if phase_before == Phase::Recovery => {}
            _ if delivered.bytes > 0 => {
                let ack = Ack {
                    now,
                    bytes: delivered.bytes,
                    srtt: self.rtt.smoothed().unwrap_or(0),
                    rtt: delivered.newest.map(|sent| now.saturating_sub(sent)),
                    una: self.snd.una,
                    next: self.snd.next,
                    limited: self.flags.cwnd_limited,
                };
                self.congestion.on_ack(&ack, self.snd.mss as u32);
            }
            _ => {}
        }
    }

    /// Marks losses by RACK (RFC 8985, section 6.2). Returns the number of bytes marked. If further segments
    /// may soon count as lost, sets the reordering deadline.
    pub(super) fn detect_loss(&mut self, now: u64) -> u64 {
        if self.scoreboard.is_empty() {
            return 0;
        }
        let (srtt, min_rtt) = (self.rtt.smoothed().unwrap_or(0), self.rtt.minimum().unwrap_or(0));
        let recovering = self.recovery.phase != Phase::Open;
        let window = self.scoreboard.reordering_window(srtt, min_rtt, recovering, self.snd.mss as u32);
        let (lost, deadline) = self.scoreboard.detect_loss(now, window);
        self.timers.reordering_at = deadline.unwrap_or(NEVER);
        lost
    }

    /// Marks segments as lost after duplicate acknowledgments, as NewReno does, for peers without SACK (RFC
    /// 6582). Returns the number of bytes marked.
    fn detect_loss_by_duplicates(
        &mut self,
        advanced: bool,
        duplicate: bool,
        delivered: &mut Delivered,
    ) -> u64 {
        let mss = self.snd.mss as u32;
        let recovery = &mut self.recovery;
        if advanced {
            let segments = (delivered.bytes / mss as u64).max(1) as u32;
            let partial = recovery.phase == Phase::Recovery;
            recovery.duplicate_acks =
                if partial { (recovery.duplicate_acks + 1).saturating_sub(segments) } else { 0 };
            return if partial { self.scoreboard.mark_first_lost(mss) } else { 0 };
        }
        if !duplicate {
            return 0;
        }
        recovery.duplicate_acks = recovery.duplicate_acks.saturating_add(1);
        delivered.bytes += mss as u64;
        if recovery.phase == Phase::Open
            && recovery.duplicate_acks == DUPLICATE_THRESHOLD
            && self.snd.una >= recovery.point
        {
            return self.scoreboard.mark_first_lost(mss);
        }
        0
    }

    /// Handles lost segments. Begins fast recovery, unless the only lost segment is a probe of the path's
    /// MTU. The loss of such a probe is no sign of congestion.
    pub(super) fn on_losses(&mut self, now: u64, delivered: u64, lost: u64) {
        if !self.path_probe_lost(now) {
            self.begin_recovery(delivered, lost);
        }
    }

    fn begin_recovery(&mut self, delivered: u64, lost: u64) {
        self.counters.recoveries += 1;
        self.save_for_undo();
        self.congestion.on_congestion(self.snd.mss as u32);
        self.flags.cwr = self.flags.ecn;
        let recovery = &mut self.recovery;
        recovery.phase = Phase::Recovery;
        recovery.point = self.snd.next;
        recovery.ecn_point = self.snd.next;
        recovery.probe = None;
        recovery.prr_delivered = 0;
        recovery.prr_out = 0;
        recovery.prr_flight = (self.snd.next - self.snd.una + delivered).max(1);
        self.reduce_rate(delivered, false, lost);
    }

    /// Remembers the congestion window in case the recovery that begins proves spurious.
    pub(super) fn save_for_undo(&mut self) {
        self.recovery.saved = Some(self.congestion.save());
        self.recovery.undo_bytes = 0;
        self.recovery.undo_start = self.snd.una;
        self.recovery.eifel = if self.flags.timestamps { Eifel::Waiting } else { Eifel::Decided };
    }

    /// Sets the window to what may be in flight now, by proportional rate reduction (RFC 6937).
    fn reduce_rate(&mut self, delivered: u64, advanced: bool, lost: u64) {
        let flight = self.in_flight();
        let mss = self.snd.mss as u64;
        let threshold = self.congestion.threshold();
        let recovery = &mut self.recovery;
        recovery.prr_delivered += delivered;
        let mut quota = if flight > threshold {
            (recovery.prr_delivered * threshold)
                .div_ceil(recovery.prr_flight)
                .saturating_sub(recovery.prr_out)
        } else {
            let mut limit = recovery.prr_delivered.saturating_sub(recovery.prr_out).max(delivered);
            if advanced && lost == 0 {
                limit += mss; // slow start, because the acknowledgment shows progress
            }
            limit.min(threshold - flight)
        };
        if recovery.prr_out == 0 {
            quota = quota.max(mss); // the fast retransmit
        }
        self.congestion.set_window(flight + quota, self.snd.mss as u32);
    }

    fn end_recovery(&mut self) {
        if self.recovery.phase == Phase::Recovery {
            self.congestion.set_window(self.congestion.threshold(), self.snd.mss as u32);
        }
        self.recovery.phase = Phase::Open;
        self.recovery.duplicate_acks = 0;
        self.scoreboard.on_recovery_end();
    }

    /// Restores the congestion window from before the recovery, because the retransmissions were spurious
    /// (RFC 4015).
    fn undo(&mut self) {
        if let Some(saved) = self.recovery.saved.take() {
            self.counters.undone += 1;
            self.congestion.restore(&saved);
            self.scoreboard.clear_lost();
            self.recovery.undo_bytes = 0;
            self.recovery.phase = Phase::Open;
            self.recovery.duplicate_acks = 0;
        }
    }

    /// Reduces the window because the peer echoed a congestion mark, once for each window of data (RFC 3168,
    /// section 6.1.2).
    fn on_congestion_echo(&mut self) {
        self.recovery.ecn_point = self.snd.next;
        if self.recovery.phase == Phase::Open {
            self.counters.congestion_marks += 1;
            self.congestion.on_congestion(self.snd.mss as u32);
            self.congestion.set_window(self.congestion.threshold(), self.snd.mss as u32);
            self.flags.cwr = true;
        }
    }

    /// Processes the acknowledgment of new data or of the FIN.
    fn on_advance(&mut self, now: u64) -> Events {
        let mut events = Events::WRITABLE;
        if self.snd.fin && self.snd.una > self.snd.limit {
            match self.state {
                State::FinWait1 => {
                    self.state = State::FinWait2;
                    if self.flags.orphan {
                        self.timers.close_at = now.saturating_add(self.config.fin_timeout);
                    }
                }
                State::Closing => {
                    self.enter_time_wait(now);
                    events |= Events::ENDED;
                }
                State::LastAck => {
                    self.state = State::Closed;
                    self.stop_timers();
                    events |= Events::ENDED;
                }
                _ => {}
            }
        }
        events
    }
}
