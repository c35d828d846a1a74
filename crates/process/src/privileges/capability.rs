//! Linux capabilities: reads which capabilities this process holds.

/// A capability, by its bit in the kernel's sets (`linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Permits configuring network interfaces.
    NetAdmin = 12,
    /// Permits opening raw sockets and packet sockets.
    NetRaw = 13,
    /// Permits locking memory without a limit.
    IpcLock = 14,
    /// Permits most of what root may do.
    SysAdmin = 21,
    /// Permits loading BPF programs.
    Bpf = 39,
}

impl Capability {
    /// Returns true if this capability is in the calling thread's effective set.
    pub fn is_held(self) -> bool {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        set(&status, "CapEff").is_some_and(|set| set & (1 << self as u32) != 0)
    }
}

/// Returns the capability set `name`, such as `CapEff`. `status` is the text of a process's `status` file in
/// `/proc`.
pub(super) fn set(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
