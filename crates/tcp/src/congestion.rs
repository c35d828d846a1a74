//! The congestion window: slow start with HyStart++ (RFC 9406), and CUBIC (RFC 9438).

use crate::SECOND;
use crate::sequence::Sequence;

/// The factor by which CUBIC reduces the window at a loss.
const BETA: f64 = 0.7;
/// CUBIC's constant C, in segments per second cubed.
const C: f64 = 0.4;
/// The growth of CUBIC's estimate of Reno's window in one round trip, in segments (RFC 9438, section 4.3,
/// alpha_cubic).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The congestion window of one connection, in bytes.
#[derive(Clone, Debug)]
pub struct Congestion {
    window: u64,
    threshold: u64,
    cubic: Cubic,
    hystart: HyStart,
}

/// The properties of an acknowledgment that the congestion control uses to compute the congestion window.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// The time.
    pub now: u64,
    /// Bytes acknowledged for the first time.
    pub bytes: u64,
    /// The smoothed RTT.
    pub srtt: u64,
    /// The RTT sample of this acknowledgment, in nanoseconds.
    pub rtt: Option<u64>,
    /// SND.UNA after this acknowledgment: the oldest unacknowledged sequence number.
    pub una: Sequence,
    /// SND.NXT after this acknowledgment: the sequence number of the next new byte.
    pub next: Sequence,
    /// True if the window limits what is sent. Otherwise the window does not grow (RFC 9293, section 3.8.2;
    /// RFC 7661).
    pub limited: bool,
}

/// The window before a reduction. It is restored if the reduction proves unfounded.
#[derive(Clone, Debug)]
pub struct Saved {
    window: u64,
    threshold: u64,
    cubic: Cubic,
}

impl Congestion {
    /// Creates the window of a new connection.
    pub fn new(initial: u64) -> Self {
        Self { window: initial, threshold: u64::MAX, cubic: Cubic::default(), hystart: HyStart::default() }
    }

    /// Returns the congestion window in bytes.
    #[inline]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Returns the slow start threshold in bytes; `u64::MAX` before the first loss.
    #[inline]
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Returns true in slow start.
    #[inline]
    pub fn slow_start(&self) -> bool {
        self.window < self.threshold
    }

    /// Sets the window to the size that loss recovery has computed, but to at least one segment.
    pub fn set_window(&mut self, window: u64, mss: u32) {
        self.window = window.max(mss as u64);
    }

    /// Grows the window.
    pub fn on_ack(&mut self, ack: &Ack, mss: u32) {
        if self.slow_start() {
            let divisor = self.hystart.on_ack(ack);
            if self.hystart.finished() {
                self.threshold = self.window;
            } else if ack.limited {
                self.window = (self.window + ack.bytes / divisor).min(self.threshold.max(self.window));
            }
        } else if ack.limited {
            self.window = self.cubic.grow(self.window, ack, mss);
        } else {
            self.cubic.pause(ack.now);
        }
    }

    /// Returns a copy of the state, for [`Congestion::restore`].
    pub fn save(&self) -> Saved {
        Saved { window: self.window, threshold: self.threshold, cubic: self.cubic.clone() }
    }

    /// Undoes a reduction of the window that proved unnecessary (RFC 4015; RFC 9438, section 4.9).
    pub fn restore(&mut self, saved: &Saved) {
        self.window = self.window.max(saved.window);
        self.threshold = saved.threshold;
        self.cubic = saved.cubic.clone();
        self.cubic.epoch = None;
    }

    /// Sets the threshold, but not the window, after a loss or a congestion mark (RFC 9438, sections 4.6 and
    /// 4.7).
    pub fn on_congestion(&mut self, mss: u32) {
        self.threshold = ((self.window as f64 * BETA) as u64).max(2 * mss as u64);
        self.cubic.on_congestion(self.window);
        self.hystart = HyStart::default();
    }

    /// Reduces the window to one segment after a retransmission timeout. If `first` is set, also reduces the
    /// threshold. `first` is false if the same loss has already reduced the threshold.
    pub fn on_timeout(&mut self, mss: u32, first: bool) {
        if first {
            self.on_congestion(mss);
        }
        self.window = mss as u64;
    }

    /// Reduces the window to at most `initial` bytes after an idle period, because its value is outdated (RFC
    /// 5681, section 4.1).
    pub fn on_idle(&mut self, initial: u64) {
        if self.window > initial {
            self.threshold = self.threshold.max(self.window / 4 * 3);
            self.window = initial;
        }
        self.cubic.epoch = None;
        self.hystart = HyStart::default();
    }
}

#[derive(Clone, Debug, Default)]
struct Cubic {
    /// The window before the last reduction, in bytes; less if another flow needs the bandwidth (fast convergence).
    w_max: f64,
    /// The time that the cubic function needs to reach `w_max` again, in seconds.
    k: f64,
    /// The time at which CUBIC's current growth of the window began, in nanoseconds. `None` after a reduction
    /// of the window, until the next acknowledgment.
    epoch: Option<u64>,
    /// W_est of RFC 9438: the window that Reno would have now, in bytes.
    w_est: f64,
    last_ack: u64,
}

impl Cubic {
    fn on_congestion(&mut self, window: u64) {
        let window = window as f64;
        self.w_max = if window < self.w_max { window * (1.0 + BETA) / 2.0 } else { window };
        self.epoch = None;
    }

    /// Excludes the time since the last acknowledgment from CUBIC's growth, because the sender did not use
    /// its whole window.
    fn pause(&mut self, now: u64) {
        if let Some(epoch) = &mut self.epoch {
            *epoch += now.saturating_sub(self.last_ack);
        }
        self.last_ack = now;
    }

    fn grow(&mut self, window: u64, ack: &Ack, mss: u32) -> u64 {
        let (cwnd, mss, bytes) = (window as f64, mss as f64, ack.bytes as f64);
        self.last_ack = ack.now;
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.w_est = cwnd;
            if cwnd < self.w_max {
                self.k = ((self.w_max - cwnd) / mss / C).cbrt();
            } else {
                self.k = 0.0;
                self.w_max = cwnd;
            }
            ack.now
        });
        let t = (ack.now.saturating_sub(epoch) + ack.srtt) as f64 / SECOND as f64 - self.k;
        let target = (C * t * t * t * mss + self.w_max).clamp(cwnd, 1.5 * cwnd);
        let alpha = if self.w_est < self.w_max { ALPHA } else { 1.0 };
        self.w_est += alpha * mss * bytes / cwnd;
        let next = (cwnd + (target - cwnd) * bytes / cwnd).max(self.w_est.min(cwnd + bytes));
        next as u64
    }
}

const MIN_RTT_THRESHOLD: u64 = 4_000_000;
const MAX_RTT_THRESHOLD: u64 = 16_000_000;
const RTT_SAMPLES: u8 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u8 = 5;

/// HyStart++: leaves slow start when the RTT rises, before losses occur.
#[derive(Clone, Debug)]
struct HyStart {
    round_end: Sequence,
    last_min: u64,
    current_min: u64,
    samples: u8,
    /// The minimum RTT, measured in the round trip in which conservative slow start (CSS) began. `None`
    /// outside CSS.
    css_baseline: Option<u64>,
    /// The number of round trips since conservative slow start (CSS, RFC 9406) began.
    css_rounds: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            round_end: 0,
            last_min: u64::MAX,
            current_min: u64::MAX,
            samples: 0,
            css_baseline: None,
            css_rounds: 0,
        }
    }
}

impl HyStart {
    /// Processes an acknowledgment in slow start. Returns the number by which the window's growth is divided.
    fn on_ack(&mut self, ack: &Ack) -> u64 {
        if ack.una >= self.round_end {
            self.round_end = ack.next;
            self.last_min = self.current_min;
            self.current_min = u64::MAX;
            self.samples = 0;
            if self.css_baseline.is_some() {
                self.css_rounds += 1;
            }
        }
        if let Some(rtt) = ack.rtt {
            self.current_min = self.current_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
        }
        let known = self.samples >= RTT_SAMPLES && self.current_min != u64::MAX;
        match self.css_baseline {
            None if known && self.last_min != u64::MAX => {
                let threshold = (self.last_min / 8).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
                if self.current_min >= self.last_min + threshold {
                    self.css_baseline = Some(self.current_min);
                    self.css_rounds = 0;
                }
            }
            Some(baseline) if known && self.current_min < baseline => self.css_baseline = None,
            _ => {}
        }
        if self.css_baseline.is_some() { CSS_GROWTH_DIVISOR } else { 1 }
    }

    fn finished(&self) -> bool {
        self.css_baseline.is_some() && self.css_rounds >= CSS_ROUNDS
    }
}

#[cfg(test)]
mod tests;
