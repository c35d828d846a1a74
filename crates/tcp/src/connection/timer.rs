//! Sets and handles the timers: retransmission, loss probe, reordering, window probe, delayed acknowledgment,
//! keepalive, cork, and the end of a connection.

use super::*;
use crate::SECOND;

/// The greatest backoff exponent of window probes. It limits the time between two probes. If a window update
/// of the peer was lost, only a probe finds out that the window is open again.
pub(super) const MAX_PROBE_BACKOFF: u8 = 8;
/// If the application has closed the connection, it is aborted after this number of retransmissions or window
/// probes.
const ORPHAN_RETRIES: u8 = 8;
/// The longest time by which a peer is expected to delay an acknowledgment. If only one segment is in flight,
/// the timeout of the loss probe is longer by this time (RFC 8985, section 7.2, TLP.max_ack_delay).
const MAX_ACK_DELAY: u64 = 200 * crate::MILLISECOND;

impl Connection {
    /// Returns the time, in nanoseconds, at which the caller must call [`Connection::on_timer`]. Returns
    /// `None` if no timer runs.
    ///
    /// If the deadline becomes later, a timer wheel need not move its entry, because an early call has no
    /// effect.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        let timers = &self.timers;
        let at = timers
            .loss_at
            .min(timers.ack_at)
            .min(timers.keepalive_at)
            .min(timers.cork_at)
            .min(timers.close_at);
        (at != NEVER).then_some(at)
    }

    /// Handles the timers whose deadline has passed. Call [`Connection::poll_transmit`] afterwards, because a
    /// timer may cause segments to send.
    pub fn on_timer(&mut self, now: u64) -> Events {
        let mut events = Events::NONE;
        if now >= self.timers.ack_at {
            self.timers.ack_at = NEVER;
            self.ack.held = false;
            self.ack.now = true;
        }
        if now >= self.timers.cork_at {
            self.timers.cork_at = NEVER;
            self.flags.cork_expired = true;
        }
        if now >= self.timers.loss_at {
            self.timers.loss_at = NEVER;
            events |= self.on_loss_timer(now);
        }
        if now >= self.timers.keepalive_at {
            self.timers.keepalive_at = NEVER;
            events |= self.on_keepalive_timer(now);
        }
        if now >= self.timers.close_at {
            self.timers.close_at = NEVER;
            // TIME-WAIT has ended. Or the application has closed the connection, and the peer's FIN has not
            // come in time.
            self.state = State::Closed;
            self.stop_timers();
            events |= Events::ENDED;
        }
        events
    }

    fn on_loss_timer(&mut self, now: u64) -> Events {
        match self.timers.loss {
            LossTimer::Retransmission if matches!(self.state, State::SynSent | State::SynReceived) => {
                self.on_syn_timeout()
            }
            LossTimer::Retransmission => self.on_retransmission_timeout(now),
            LossTimer::LossProbe => {
                self.recovery.probe_pending = true;
                Events::NONE
            }
            LossTimer::Reordering => {
                let lost = self.detect_loss(now);
                if lost > 0 && self.recovery.phase == Phase::Open {
                    self.on_losses(now, 0, lost);
                }
                self.arm_loss_timer(now);
                Events::NONE
            }
            LossTimer::WindowProbe => {
                self.flags.window_probe_pending = true;
                Events::NONE
            }
        }
    }

    fn on_syn_timeout(&mut self) -> Events {
        if self.recovery.backoff >= self.config.syn_retries {
            self.end(EndReason::TimedOut);
            return Events::ENDED;
        }
        self.recovery.backoff += 1;
        self.flags.syn_pending = true;
        Events::NONE
    }

    /// Handles the retransmission timeout (RFC 6298, section 5). Marks lost segments as RFC 8985, section 6.3
    /// does.
    fn on_retransmission_timeout(&mut self, now: u64) -> Events {
        if self.scoreboard.is_empty() {
            return Events::NONE;
        }
        let overdue = |timeout| now.saturating_sub(self.timers.last_progress) >= timeout;
        // After `ORPHAN_RETRIES` retries, abort a connection that the application has closed. Otherwise a
        // peer that never opens its window would keep the connection in memory forever.
        let orphan =
            self.flags.orphan && self.recovery.backoff.max(self.timers.window_probes) >= ORPHAN_RETRIES;
        if orphan
            || self.recovery.backoff >= self.config.retries
            || self.config.user_timeout.is_some_and(overdue)
        {
            self.abort_for(if self.flags.unreachable { EndReason::Unreachable } else { EndReason::TimedOut });
            return Events::ENDED;
        }
        self.counters.timeouts += 1;
        let age = if self.snd.window == 0 {
            // The peer's window is closed, so the retransmission is a window probe and tells nothing about
            // congestion.
            self.timers.window_probes = self.timers.window_probes.saturating_add(1);
            self.counters.window_probes += 1;
            0
        } else {
            // Reduce the slow-start threshold only once for each loss. Do not reduce it if an earlier timeout
            // or fast recovery has already done so (RFC 6675, section 5.1).
            let first = match self.recovery.phase {
                Phase::Open => true,
                Phase::Recovery => false,
                Phase::Loss => self.recovery.backoff == 0,
            };
            if self.recovery.phase == Phase::Open {
                self.save_for_undo();
            }
            self.congestion.on_timeout(self.snd.mss as u32, first);
            self.flags.cwr = self.flags.ecn;
            self.recovery.phase = Phase::Loss;
            self.recovery.point = self.snd.next;
            self.recovery.ecn_point = self.snd.next;
            self.rtt.smoothed().unwrap_or(0)
        };
        self.fail_path_probe(now);
        self.check_black_hole(now);
        self.recovery.backoff += 1;
        self.recovery.duplicate_acks = 0;
        self.recovery.probe = None;
        self.scoreboard.mark_timed_out(now, age);
        self.flags.retransmission_forced = true;
        self.timers.rto_base = now;
        self.timers.reordering_at = NEVER;
        self.arm_loss_timer(now);
        Events::NONE
    }

    fn on_keepalive_timer(&mut self, now: u64) -> Events {
        let Some(keepalive) = self.config.keepalive else { return Events::NONE };
        let idle_end = self.timers.last_received.saturating_add(keepalive.idle);
        if now < idle_end || !self.scoreboard.is_empty() {
            // Send no keepalive probe: the connection was not idle for long enough, or data is in flight. In
            // the second case the retransmission timer finds out whether the peer is alive.
            self.timers.keepalive_probes = 0;
            self.timers.keepalive_at =
                idle_end.max(now.saturating_add(keepalive.interval.min(keepalive.idle)));
            return Events::NONE;
        }
        if self.timers.keepalive_probes >= keepalive.probes {
            self.abort_for(EndReason::TimedOut);
            return Events::ENDED;
        }
        self.timers.keepalive_probes += 1;
        self.flags.keepalive_pending = true;
        self.timers.keepalive_at = now.saturating_add(keepalive.interval);
        Events::NONE
    }

    pub(super) fn arm_keepalive(&mut self, now: u64) {
        let open =
            !matches!(self.state, State::SynSent | State::SynReceived | State::TimeWait | State::Closed);
        self.timers.keepalive_probes = 0;
        self.timers.keepalive_at = match self.config.keepalive {
            Some(keepalive) if open => now.max(self.timers.last_received.saturating_add(keepalive.idle)),
            _ => NEVER,
        };
    }

    /// Returns the retransmission timeout with backoff.
    pub(super) fn backed_off(&self, backoff: u8) -> u64 {
        self.rtt.timeout().saturating_mul(1 << backoff.min(32)).min(self.config.max_rto)
    }

    /// Sets the deadline of the sender's timer to the earliest deadline of reordering, loss probe and
    /// retransmission. If nothing is in flight, only a window probe can have a deadline.
    #[inline]
    pub(super) fn arm_loss_timer(&mut self, now: u64) {
        if self.scoreboard.is_empty() {
            self.timers.reordering_at = NEVER;
            if self.timers.loss != LossTimer::WindowProbe {
                self.timers.loss_at = NEVER;
            }
            return;
        }
        let mut rto_at = self.timers.rto_base + self.backed_off(self.recovery.backoff);
        if let Some(timeout) = self.config.user_timeout {
            rto_at = rto_at.min(self.timers.last_progress.saturating_add(timeout)).max(now + 1);
        }
        self.timers.loss = LossTimer::Retransmission;
        self.timers.loss_at = rto_at;
        if self.timers.reordering_at < rto_at {
            self.timers.loss = LossTimer::Reordering;
            self.timers.loss_at = self.timers.reordering_at;
        } else if let Some(probe_at) = self.loss_probe_at() {
            // If the loss probe is due later than the retransmission timeout, do not retransmit when the
            // timeout expires. Send the probe then (RFC 8985, section 7.2). The probe restarts the timeout.
            self.timers.loss = LossTimer::LossProbe;
            self.timers.loss_at = probe_at.min(rto_at);
        }
    }

    /// Returns the time at which a loss probe is due, in nanoseconds. Returns `None` if no loss probe may be
    /// sent (RFC 8985, section 7.2).
    fn loss_probe_at(&self) -> Option<u64> {
        let srtt = self.rtt.smoothed()?;
        let allowed = self.flags.sack
            && self.recovery.phase == Phase::Open
            && self.recovery.probe.is_none()
            && self.recovery.backoff == 0
            && self.scoreboard.sacked() == 0
            && self.snd.window > 0;
        if !allowed {
            return None;
        }
        let one_segment = self.snd.next - self.snd.una <= self.snd.mss as u64;
        let delay = if one_segment { MAX_ACK_DELAY } else { 2 * crate::MILLISECOND };
        Some(self.timers.probe_base + (2 * srtt).max(1) + delay)
    }

    /// Starts the timer of a window probe. Does nothing if this timer already runs (RFC 9293, section
    /// 3.8.6.1).
    pub(super) fn arm_window_probe(&mut self, now: u64) {
        if self.timers.loss_at == NEVER || self.timers.loss != LossTimer::WindowProbe {
            self.timers.loss = LossTimer::WindowProbe;
            let backoff = self.timers.window_probes.min(MAX_PROBE_BACKOFF);
            self.timers.loss_at = now + self.backed_off(backoff).min(60 * SECOND);
        }
    }
}
