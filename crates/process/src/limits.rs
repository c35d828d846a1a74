//! Limits of this process's resources, and the memory of the machine.

/// Raises the limit of open descriptors to `count`, or to the highest allowed value if that is lower. Never lowers it.
/// Returns the limit in effect: if the system refuses, opening a descriptor may fail later.
pub fn allow_descriptors(count: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the calls read and write the structure only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < count {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max.min(count), ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                limit = raised;
            }
        }
    }
    limit.rlim_cur
}

/// Returns a value of /proc/meminfo in bytes, such as that of `MemAvailable`. `None` if the kernel does not report it.
pub fn memory(name: &str) -> Option<u64> {
    value_of(&std::fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn value_of(information: &str, name: &str) -> Option<u64> {
    let value = information.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.parse().ok().and_then(|kib: u64| kib.checked_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_memory_are_bytes() {
        let information = "MemTotal:       2048 kB\nMemAvailable: 1 kB\nHugePages_Total:       3\nMem: kB\n";
        assert_eq!(value_of(information, "MemTotal"), Some(2 << 20));
        assert_eq!(value_of(information, "MemAvailable"), Some(1024));
        for absent in ["HugePages_Total", "Mem", "Total", ""] {
            assert_eq!(value_of(information, absent), None, "{absent}");
        }
        assert_eq!(value_of(&format!("Mem: {} kB", u64::MAX), "Mem"), None, "too large");
        assert!(memory("MemAvailable") <= memory("MemTotal") && memory("MemTotal") > Some(1 << 20));
    }

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = allow_descriptors(0);
        assert!(before > 0);
        let raised = allow_descriptors(u64::MAX);
        assert!(raised >= before);
        assert_eq!(allow_descriptors(before), raised, "a lower count changes nothing");
    }
}
