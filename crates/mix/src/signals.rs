//! What the kernel reports about the machine. Each signal is optional.

use crate::observation::Signals;
use inlane_core::clock::process_cpu_ns;
use inlane_core::cores;
use inlane_process::cgroup::CpuQuota;
use inlane_process::ticks::Ticks;
use std::time::Instant;

/// Reads the signals.
pub(crate) struct SignalReader {
    /// The cores that this process may use. The work of other processes on other cores does not matter.
    cores: Vec<usize>,
}

/// The counters of the signals at one moment.
pub(crate) struct Reading {
    at: Instant,
    machine: Option<Ticks>,
    own_ns: u64,
    quota: Option<CpuQuota>,
}

impl SignalReader {
    pub fn new() -> Self {
        Self { cores: cores::allowed() }
    }

    pub fn read(&self) -> Reading {
        Reading {
            at: Instant::now(),
            machine: Ticks::read(&self.cores),
            own_ns: process_cpu_ns(),
            quota: CpuQuota::of_this_process(),
        }
    }
}

impl Reading {
    /// Returns the signals since the reading `earlier`.
    pub fn since(&self, earlier: &Self) -> Signals {
        let passed = self.at.duration_since(earlier.at).as_nanos().max(1) as f64;
        let mut signals = Signals::default();
        if let (Some(now), Some(then)) = (self.machine, earlier.machine) {
            let total = now.total.saturating_sub(then.total).max(1) as f64;
            let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / total;
            let own = self.own_ns.saturating_sub(earlier.own_ns) as f64 / (passed * now.cores as f64);
            signals.stolen = Some(share(now.stolen, then.stolen));
            signals.others = Some((share(now.busy, then.busy) - own).max(0.0));
        }
        if let (Some(now), Some(then)) = (self.quota, earlier.quota) {
            let since = now.since(then);
            signals.throttled = Some(since.throttled_periods as f64 / since.periods.max(1) as f64);
        }
        signals
    }

    /// Returns true if the control group's quota is another one than in the reading `earlier`.
    pub fn quota_changed(&self, earlier: &Self) -> bool {
        self.quota.map(|quota| quota.cores) != earlier.quota.map(|quota| quota.cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_read() {
        let reader = SignalReader::new();
        let before = reader.read();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let after = reader.read();
        let signals = after.since(&before);
        assert!((0.0..=1.0).contains(&signals.others.unwrap()), "{signals:?}");
        assert!((0.0..=1.0).contains(&signals.stolen.unwrap()), "{signals:?}");
        assert!(!after.quota_changed(&before));
    }
}
