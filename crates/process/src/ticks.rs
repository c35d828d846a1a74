//! How the kernel has counted the time of processors.

use std::time::Duration;

/// Clock ticks of some cores since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks in which processes or the kernel ran.
    pub busy: u64,
    /// Ticks that the hypervisor took away.
    pub stolen: u64,
    /// All ticks, also idle ones.
    pub total: u64,
    /// The number of cores.
    pub cores: u64,
}

impl Ticks {
    /// Reads the ticks of `cores`, added up. `None` if the kernel reports none of them.
    pub fn read(cores: &[usize]) -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?, cores)
    }

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

    /// Returns the time in which the cores did not idle. Includes that in which the hypervisor had them.
    pub fn used(&self) -> Duration {
        // SAFETY: the call only reads a constant of the system.
        let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        Duration::from_secs_f64((self.busy + self.stolen) as f64 / hertz)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_the_cores_are_added() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 10 0 0 90 0 0 0 0 0 0\nintr 5\n";
        let both = Ticks::parse(stat, &[0, 1]).unwrap();
        assert_eq!(both, Ticks { busy: 29, stolen: 8, total: 136, cores: 2 });
        assert_eq!(Ticks::parse(stat, &[1]).unwrap(), Ticks { busy: 10, stolen: 0, total: 100, cores: 1 });
        assert_eq!(Ticks::parse(stat, &[7]), None);
        assert_eq!(Ticks::parse("", &[0]), None);
    }
}
