//! The control groups that this process belongs to, in cgroup v2 and v1, and their quota of processor time.

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
        let quotas = of_this_process("cpu").into_iter().filter_map(|group| Self::of_group(&group.folder));
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

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The folder with the group's files.
    pub folder: PathBuf,
    /// The version, which decides the names of the files.
    pub version: Version,
}

/// A version of Linux's control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Each controller has a hierarchy of its own.
    One,
    /// One hierarchy has all controllers.
    Two,
}

/// Returns the control groups of this process that can limit a resource: its own and those around it. `controller` is
/// the resource's name, such as `memory`.
pub fn of_this_process(controller: &str) -> Vec<Group> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    groups(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"), controller)
}

/// Returns the control groups of a process that can limit a resource. `own` is the text of /proc/PID/cgroup, and
/// `mounts` that of /proc/PID/mountinfo.
fn groups(own: &str, mounts: &str, controller: &str) -> Vec<Group> {
    let names = |list: &str| list.split(',').any(|one| one == controller);
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (kind, version) = match controllers {
            "" => ("cgroup2", Version::Two),
            list if names(list) => ("cgroup", Version::One),
            _ => continue,
        };
        // The line of a mount: four fields, the mounted folder, the mount point, options, `-`, the kind, the
        // source, and the options of the kind.
        let mount = mounts.lines().find_map(|line| {
            let (place, rest) = line.split_once(" - ")?;
            let (place, rest): (Vec<_>, Vec<_>) = (place.split(' ').collect(), rest.split(' ').collect());
            let has_controller = version == Version::Two || names(rest.get(2)?);
            (rest.first() == Some(&kind) && has_controller).then_some((*place.get(3)?, *place.get(4)?))
        });
        let Some((root, point)) = mount else { continue };
        // In a container, the path may begin outside the mounted folder. The mount point is then the group.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let point = Path::new(point);
        let folders = below.ancestors().map(|folder| point.join(folder));
        found.extend(folders.map(|folder| Group { folder, version }));
    }
    found
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

    fn folders(own: &str, mounts: &str) -> Vec<String> {
        groups(own, mounts, "memory").iter().map(|group| group.folder.display().to_string()).collect()
    }

    #[test]
    fn control_groups_of_both_versions_are_found() {
        let old = "35 30 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                   36 30 0:32 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n";
        let new = "40 30 0:40 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        assert_eq!(
            folders("5:cpu:/x\n4:memory:/a/b\n0::/\n", old),
            ["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory/"]
        );
        assert_eq!(
            folders("0::/user.slice/s\n", new)[..2],
            ["/sys/fs/cgroup/user.slice/s", "/sys/fs/cgroup/user.slice"]
        );
        let container = "35 30 0:31 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(folders("4:memory:/docker/1\n", container), ["/sys/fs/cgroup/memory/"]);
        assert_eq!(folders("4:memory:/outside\n", container), ["/sys/fs/cgroup/memory/"]);
        for (own, mounts) in
            [("", ""), ("4:memory", old), ("nonsense", "nonsense"), ("0::/", "1 2 3 - cgroup2")]
        {
            assert!(folders(own, mounts).is_empty(), "{own} {mounts}");
        }
    }
}
