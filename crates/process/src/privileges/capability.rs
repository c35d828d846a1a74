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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_found_by_its_whole_name() {
        let status =
            "Name:\tx\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000003000\n";
        assert_eq!(set(status, "CapInh"), Some(0));
        assert_eq!(set(status, "CapPrm"), Some(0x1ff_ffff_ffff));
        assert_eq!(
            set(status, "CapEff"),
            Some(1 << Capability::NetAdmin as u32 | 1 << Capability::NetRaw as u32)
        );
        for absent in ["Cap", "CapBnd", "Name"] {
            assert_eq!(set(status, absent), None, "{absent}");
        }
    }
}
