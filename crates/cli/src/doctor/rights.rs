//! Checks what this process may do: whether it has the capabilities that ports need, and how much memory it
//! may lock.

use super::Machine;
use super::check::{Check, Name};
use inlane_core::units;

/// The bit number of CAP_NET_ADMIN in a capability set (`linux/capability.h`).
pub const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;
const BPF: u32 = 39;

/// Enough locked memory, in bytes, for a few packet pools and their DMA mappings. A lower RLIMIT_MEMLOCK is
/// reported as degraded.
const ENOUGH_LOCKED: u64 = 1 << 28;

/// Returns the effective capabilities of this process as a bit set.
fn effective(machine: &Machine) -> u64 {
    let set = machine.files.field("/proc/self/status", "CapEff").unwrap_or_default();
    u64::from_str_radix(&set, 16).unwrap_or(0)
}

/// Returns true if the process has the capability with this bit number.
pub fn has(machine: &Machine, capability: u32) -> bool {
    effective(machine) >> capability & 1 == 1
}

/// Returns true if the process may load XDP programs. That needs CAP_NET_ADMIN, and CAP_BPF or CAP_SYS_ADMIN.
pub fn can_load_bpf(machine: &Machine) -> bool {
    has(machine, NET_ADMIN) && (has(machine, BPF) || has(machine, SYS_ADMIN))
}

/// Returns a `setcap` command for this program's file. The command adds the capabilities that ports need.
pub fn setcap(machine: &Machine) -> String {
    inlane_process::privileges::setcap(&machine.trials.program)
}

pub fn privileges(machine: &Machine) -> Check {
    let matters =
        "ports on network interfaces need capabilities to open; a run drops them before it loads user code";
    let wanted = [
        (NET_RAW, "CAP_NET_RAW (af_packet, af_xdp)"),
        (NET_ADMIN, "CAP_NET_ADMIN (tap, af_packet, af_xdp)"),
        (BPF, "CAP_BPF (af_xdp)"),
        (IPC_LOCK, "CAP_IPC_LOCK (locked memory)"),
    ];
    let covered = |bit| has(machine, bit) || (bit == BPF && has(machine, SYS_ADMIN));
    let lacking: Vec<&str> = wanted.iter().filter(|(bit, _)| !covered(*bit)).map(|(_, name)| *name).collect();
    let user = machine.files.field("/proc/self/status", "Uid").unwrap_or_default();
    let who = match user.split_whitespace().nth(1) {
        Some("0") => "root".to_string(),
        Some(id) => format!("user {id}"),
        None => "unknown user".to_string(),
    };
    if lacking.is_empty() {
        return Check::ok(Name::Privileges, matters, format!("{who}, with all capabilities that ports need"));
    }
    let check = Check::ok(Name::Privileges, matters, format!("{who}, without {}", lacking.join(", ")));
    let remedy = setcap(machine);
    if lacking.len() < wanted.len() { check.degraded(remedy) } else { check.missing(remedy) }
}

pub fn memory_lock(machine: &Machine) -> Check {
    let matters = "memory that devices access must be locked: packet buffers of af_xdp, GPUs and vfio";
    let check = |evidence: String| Check::ok(Name::MemoryLock, matters, evidence);
    let limits = machine.files.text("/proc/self/limits").unwrap_or_default();
    let limit =
        limits.lines().find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    if has(machine, IPC_LOCK) {
        return check("no limit, because this process has CAP_IPC_LOCK".into());
    }
    match limit {
        Some("unlimited") => check("no limit".into()),
        Some(text) => match text.parse::<u64>() {
            Ok(bytes) if bytes >= ENOUGH_LOCKED => check(format!("up to {}", units::bytes(bytes))),
            Ok(bytes) => check(format!("only {}", units::bytes(bytes))).degraded(
                "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/inlane.conf; log in again",
            ),
            Err(_) => {
                check(format!("the limit is '{text}', which is no number")).degraded("ulimit -l unlimited")
            }
        },
        None => check("cannot read the limit in /proc/self/limits".into()).degraded("ulimit -l unlimited"),
    }
}
