//! Binds threads to cores, and raises the limit of open files.

use crate::field::CORES;
use crate::{Error, Result};

/// Binds the calling thread to a core.
pub(super) fn bind(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    // SAFETY: the set is a local variable that the call only reads. `core` lies within it.
    let outcome = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core >= 8 * size_of::<libc::cpu_set_t>() {
            -1
        } else {
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
        }
    };
    if outcome == 0 {
        return Ok(());
    }
    let allowed = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let why = match allowed {
        Some(list) => format!("this process may use only the cores {}; choose among them", list.trim()),
        None => "this process may not use it; choose another".into(),
    };
    Err(Error::Invalid { what: format!("{CORES}: core {core}"), why })
}

/// Raises the limit of open files as far as allowed. Returns the limit.
pub(super) fn raise_descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the calls read and write the structure only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                limit = raised;
            }
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}
