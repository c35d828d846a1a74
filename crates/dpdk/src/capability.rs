//! Linux capabilities of this process.

/// A capability, by its bit in the kernel's sets (`linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
    SysAdmin = 21,
    Bpf = 39,
}

impl Capability {
    /// Returns true if this capability is in the calling thread's effective set.
    pub(crate) fn is_held(self) -> bool {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        set(&status, "CapEff").is_some_and(|set| set & (1 << self as u32) != 0)
    }
}

/// Returns the capability set `name`, such as `CapEff`, from the text of a `status` file of `/proc`.
pub(crate) fn set(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
