//! The limits of the control groups that this process belongs to, in cgroup v2 and v1.

use std::path::{Path, PathBuf};

/// A quota of processor time, and how often it was used up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuQuota {
    /// The processors that the quota allows: 0.2 for 20 ms in each 100 ms.
    pub cores: f64,
    /// The quota periods so far in which the group had something to run.
    pub periods: u64,
    /// The periods in which the group used up its quota.
    pub throttled_periods: u64,
}

impl CpuQuota {
    /// Returns the tightest quota of this process, from its own group or a group above.
    /// `None` if there is no quota.
    pub fn of_this_process() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let quotas = groups.lines().flat_map(|line| {
            let (root, own) = hierarchy(line)?;
            let own = root.join(own.trim_start_matches('/'));
            let above: Vec<PathBuf> =
                own.ancestors().take_while(|group| group.starts_with(&root)).map(PathBuf::from).collect();
            above.iter().filter_map(|group| Self::of_group(group)).min_by(|a, b| a.cores.total_cmp(&b.cores))
        });
        quotas.min_by(|a, b| a.cores.total_cmp(&b.cores))
    }

    fn of_group(group: &Path) -> Option<Self> {
        let text = |file| std::fs::read_to_string(group.join(file)).ok();
        let max = match text("cpu.max") {
            Some(max) => max,
            None => format!("{} {}", text("cpu.cfs_quota_us")?.trim(), text("cpu.cfs_period_us")?),
        };
        Self::parse(&max, &text("cpu.stat")?)
    }

    /// Parses a quota, as `cpu.max` has it, and the content of `cpu.stat`. `None` if the group has no quota.
    fn parse(max: &str, stat: &str) -> Option<Self> {
        let (quota, period) = max.trim().split_once(' ')?;
        let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
        let count = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
                .unwrap_or(0)
        };
        (quota > 0.0 && period > 0.0).then(|| Self {
            cores: quota / period,
            periods: count("nr_periods"),
            throttled_periods: count("nr_throttled"),
        })
    }

    /// Returns this quota with the periods since `earlier`, an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            periods: self.periods.saturating_sub(earlier.periods),
            throttled_periods: self.throttled_periods.saturating_sub(earlier.throttled_periods),
            ..self
        }
    }
}

/// Returns the control group that a line of /proc/self/cgroup names: the mounted root of its hierarchy, and the path
/// below it. `None` for a hierarchy that does not control processors.
fn hierarchy(line: &str) -> Option<(PathBuf, &str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, own) = (fields.next()?, fields.next()?);
    let mounted = Path::new("/sys/fs/cgroup");
    let root = match controllers {
        "" if mounted.join("unified").is_dir() => mounted.join("unified"),
        "" => mounted.into(),
        list if list.split(',').any(|one| one == "cpu") => mounted.join(list),
        _ => return None,
    };
    Some((root, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_and_its_throttled_periods_are_read() {
        let stat = "usage_usec 5\nnr_periods 40\nnr_throttled 32\nthrottled_usec 9\n";
        let quota = CpuQuota::parse("20000 100000\n", stat).unwrap();
        assert_eq!(quota, CpuQuota { cores: 0.2, periods: 40, throttled_periods: 32 });
        let later = CpuQuota { periods: 50, throttled_periods: 42, ..quota };
        assert_eq!(later.since(quota), CpuQuota { cores: 0.2, periods: 10, throttled_periods: 10 });
        assert_eq!(CpuQuota::parse("max 100000\n", stat), None);
        assert_eq!(CpuQuota::parse("-1 100000\n", stat), None, "cgroup v1 without a quota");
        assert_eq!(CpuQuota::parse("", ""), None);
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let at = |line| hierarchy(line).map(|(root, own)| (root.display().to_string(), own));
        assert_eq!(at("1:cpu,cpuacct:/a/b"), Some(("/sys/fs/cgroup/cpu,cpuacct".into(), "/a/b")));
        assert_eq!(at("3:cpuset:/a"), None);
        assert_eq!(at("0::/user.slice").map(|(_, own)| own), Some("/user.slice"));
    }
}
