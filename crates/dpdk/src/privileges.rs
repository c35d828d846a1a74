//! Giving up privileges once ports are open.
//!
//! | port | needs to open | needs afterwards |
//! | --- | --- | --- |
//! | null, ring, memif | nothing (memif: its socket's folder) | nothing |
//! | af_packet | CAP_NET_RAW | nothing |
//! | tap | CAP_NET_ADMIN, /dev/net/tun | nothing: the interface goes with its descriptor |
//! | af_xdp | CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF | CAP_NET_ADMIN and CAP_BPF, to take its program off the interface at the end |
//! | pci | root, or access to /dev/vfio and locked memory | nothing: maps and interrupts are set up when it starts |
//!
//! So every port works on after [`drop_privileges`]. Open and start all ports first; what is opened later is opened as
//! the ordinary user.

use crate::error::{Error, Result};
use crate::interface::{Capability, effective_capabilities};
use crate::spec::{Kind, Spec};
use std::io;

/// Who the process became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Its user id now.
    pub user: u32,
    /// Its group id now.
    pub group: u32,
    /// Some capability was kept for a port that is open.
    pub kept: bool,
}

/// The user and group `nobody` of every distribution.
const NOBODY: u32 = 65534;

/// Makes the process an ordinary user: who called sudo, or nobody. Keeps, on this thread alone, the capabilities that the ports
/// in `specs` need to close: call it on the thread that will stop them. Threads started from it later have them too,
/// those that run already do not. `None` when the process is no root: there is nothing to give up.
///
/// # Errors
/// [`Error::Privileges`] with the step that failed. The process must end then: it may have some and not others.
pub fn drop_privileges<'a>(specs: impl IntoIterator<Item = &'a str>) -> Result<Option<Dropped>> {
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    let needed =
        specs.into_iter().filter_map(|spec| Spec::parse(spec).ok()).fold(0, |all, spec| all | needs(&spec));
    let keep = needed & effective_capabilities();
    let user = number_of("SUDO_UID").unwrap_or(NOBODY);
    let group = number_of("SUDO_GID").unwrap_or(NOBODY);
    step("keeping capabilities", || {
        // SAFETY: a flag of this thread.
        unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, libc::c_ulong::from(keep != 0), 0, 0, 0) }
    })?;
    // Groups first: the user may not change them any more. The C library does it on every thread.
    // SAFETY: no group is read.
    step("leaving all groups", || unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: numbers.
    step("changing the group", || unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: numbers.
    step("changing the user", || unsafe { libc::setresuid(user, user, user) })?;
    step("giving capabilities up", || set_capabilities(keep))?;
    // SAFETY: a flag of this thread; programs started later gain nothing by being set-uid.
    step("forbidding new privileges", || unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // A change of user makes the process's own /proc entries root's; AF_XDP's clean-up looks at its descriptors there.
    // SAFETY: a flag of the process.
    step("staying observable", || unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) })?;
    Ok(Some(Dropped { user, group, kept: keep != 0 }))
}

fn needs(spec: &Spec) -> u64 {
    match spec.kind {
        Kind::AfXdp { .. } => 1 << Capability::NetAdmin as u32 | 1 << Capability::Bpf as u32,
        _ => 0,
    }
}

/// A user or group that sudo names; root itself is nobody's gain.
fn number_of(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok().filter(|&number| number != 0)
}

fn step(doing: &str, call: impl FnOnce() -> i32) -> Result<()> {
    match call() {
        0 => Ok(()),
        _ => Err(Error::Privileges { doing: doing.into(), source: io::Error::last_os_error() }),
    }
}

/// `capset(2)`, version 3: effective and permitted are `set`, inheritable is empty.
fn set_capabilities(set: u64) -> i32 {
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        thread: i32,
    }
    #[repr(C)]
    struct Half {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let header = Header { version: VERSION_3, thread: 0 };
    let half = |bits: u32| Half { effective: bits, permitted: bits, inheritable: 0 };
    let halves = [half(set as u32), half((set >> 32) as u32)];
    // SAFETY: both live through the call, in the layout of version 3: two halves.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) as i32 }
}
