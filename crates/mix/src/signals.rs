//! What the kernel reports about the machine. Each signal is optional.

use crate::observation::Signals;
use inlane_core::clock::process_cpu_ns;
use inlane_core::cores;
use inlane_process::cgroup::CpuQuota;
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

/// Clock ticks of the cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    busy: u64,
    stolen: u64,
    total: u64,
    cores: u64,
}

impl SignalReader {
    pub fn new() -> Self {
        Self { cores: cores::allowed() }
    }

    pub fn read(&self) -> Reading {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Reading {
            at: Instant::now(),
            machine: Ticks::parse(&stat, &self.cores),
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

impl Ticks {
    /// Parses /proc/stat and adds up the ticks of `cores`. `None` if it has none of them.
    fn parse(stat: &str, cores: &[usize]) -> Option<Self> {
        let mut sum = Self::default();
        for line in stat.lines() {
            let mut fields = line.split_ascii_whitespace();
            let core = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse::<usize>().ok());
            if !core.is_some_and(|core| cores.contains(&core)) {
                continue;
            }
            // user nice system idle iowait irq softirq steal; the guests' time is part of user and nice.
            let ticks: Vec<u64> = fields.take(8).filter_map(|field| field.parse().ok()).collect();
            let [user, nice, system, _, _, irq, softirq, steal] = ticks[..] else { continue };
            sum.busy += user + nice + system + irq + softirq;
            sum.stolen += steal;
            sum.total += ticks.iter().sum::<u64>();
            sum.cores += 1;
        }
        (sum.cores > 0).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_allowed_cores_are_added() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 10 0 0 90 0 0 0 0 0 0\nintr 5\n";
        let both = Ticks::parse(stat, &[0, 1]).unwrap();
        assert_eq!(both, Ticks { busy: 29, stolen: 8, total: 136, cores: 2 });
        assert_eq!(Ticks::parse(stat, &[1]).unwrap(), Ticks { busy: 10, stolen: 0, total: 100, cores: 1 });
        assert_eq!(Ticks::parse(stat, &[7]), None);
        assert_eq!(Ticks::parse("", &[0]), None);
    }

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
