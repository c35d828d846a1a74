//! Drops the privileges of the process once its ports have been started.
//!
//! | port | needs to open | needs afterwards |
//! | --- | --- | --- |
//! | net_null, ring, memif | nothing; memif: write access to its socket's directory | nothing |
//! | af_packet | CAP_NET_ADMIN, CAP_NET_RAW | nothing |
//! | tap | CAP_NET_ADMIN, /dev/net/tun | nothing: closing its descriptor removes the interface |
//! | af_xdp | CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF; CAP_IPC_LOCK if little memory may be locked | nothing: closing the link's descriptor detaches the XDP program |
//! | pci | root, or access to /dev/vfio and locked memory | nothing: mappings and interrupts are set up when the port starts |
//!
//! Open, configure and start all ports, if any. Then call [`drop_privileges`]. Compile and load the user's
//! code only after that.

mod capability;

pub use capability::Capability;
use inlane_core::error::{Error, Result};
use inlane_core::setting::{Field, Subject};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The user and group IDs of the process after it gave up its privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The user id of the process.
    pub user: u32,
    /// The group id of the process.
    pub group: u32,
}

/// The setting that names the user of the process.
pub const USER: Field = Field::new("user");

/// The capabilities that ports on network interfaces need, in the notation of `setcap`.
const OF_PORTS: &str = "cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep";

/// Returns the `setcap` command that gives a program's file all capabilities that ports on network interfaces
/// need.
pub fn setcap(program: &Path) -> String {
    format!("sudo setcap {OF_PORTS} {}", program.display())
}

/// The ID of the user `nobody` and of its group. It is the same in every distribution.
const NOBODY: u32 = 65534;

/// The longest wait for other threads to give up their capabilities.
const OTHER_THREADS: Duration = Duration::from_secs(1);

/// The user as which a root process continues after it has given up its privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// The user who called sudo. The user `nobody` if sudo did not start the process.
    Caller,
    /// Root without capabilities: it still owns root's files.
    Root,
    /// This user and group.
    User(Dropped),
}

impl Successor {
    /// Looks up a user by name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such user.
    pub fn named(name: &str) -> Result<Self> {
        let unknown = || {
            let what = USER.with(name);
            Error::invalid(
                what,
                "there is no such user on this machine; choose one that 'getent passwd' lists",
            )
        };
        let text = std::ffi::CString::new(name).map_err(|_| unknown())?;
        let mut buffer = vec![0; 16384];
        let mut found = std::ptr::null_mut();
        // SAFETY: an all-zero passwd is valid. Name, structure and buffer outlive the call, which writes
        // `found`.
        let entry = unsafe {
            let mut entry: libc::passwd = std::mem::zeroed();
            libc::getpwnam_r(text.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found);
            entry
        };
        match found.is_null() {
            true => Err(unknown()),
            false => Ok(Self::User(Dropped { user: entry.pw_uid, group: entry.pw_gid })),
        }
    }
}

/// Returns the number of a group.
///
/// # Errors
/// [`Error::Invalid`] if there is no such group. `what` names the setting.
pub fn group_named(what: impl Into<Subject>, name: &str) -> Result<u32> {
    let mut buffer = vec![0; 16384];
    let mut found = std::ptr::null_mut();
    let text = std::ffi::CString::new(name).unwrap_or_default();
    // SAFETY: an all-zero group is valid. Name, structure and buffer outlive the call, which writes `found`.
    let entry = unsafe {
        let mut entry: libc::group = std::mem::zeroed();
        libc::getgrnam_r(text.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found);
        entry
    };
    match found.is_null() {
        false => Ok(entry.gr_gid),
        true => Err(Error::invalid(
            what,
            "there is no such group on this machine; choose one that 'getent group' lists",
        )),
    }
}

/// Returns the name of a user, or the number if no user of this machine has it.
pub fn user_name(user: u32) -> String {
    let mut buffer = vec![0; 16384];
    let mut found = std::ptr::null_mut();
    // SAFETY: an all-zero passwd is valid. Structure and buffer outlive the call, which writes `found`, and the
    // name, which lies in the buffer.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        libc::getpwuid_r(user, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found);
        match found.is_null() {
            true => user.to_string(),
            false => std::ffi::CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned(),
        }
    }
}

/// Gives up all privileges of the process permanently. A process that runs as root continues as the user who
/// called sudo, or as `nobody`. See [`drop_privileges_to`].
///
/// # Errors
/// As for [`drop_privileges_to`].
pub fn drop_privileges() -> Result<Option<Dropped>> {
    drop_privileges_to(Successor::Caller)
}

/// Permanently drops all privileges of the process and its threads. If the process runs as root, its user
/// becomes `successor`. Returns `None` if the process had no privileges.
///
/// Other threads drop their capabilities in a signal handler, unless the change of user has removed them. A
/// thread that blocks signals keeps its capabilities, and a warning names it.
///
/// # Errors
/// [`Error::Os`] with the name of the failed step. End the process then, because it may still have
/// privileges.
pub fn drop_privileges_to(successor: Successor) -> Result<Option<Dropped>> {
    // SAFETY: reads numbers.
    let (root, user, group) = unsafe { (libc::geteuid() == 0, libc::geteuid(), libc::getegid()) };
    if !root && threads_with_capabilities().is_empty() {
        return Ok(None);
    }
    let mut dropped = Dropped { user, group };
    if root {
        match successor {
            Successor::Root => {}
            Successor::User(user) => dropped = user,
            Successor::Caller => {
                dropped = Dropped {
                    user: number_of("SUDO_UID").unwrap_or(NOBODY),
                    group: number_of("SUDO_GID").unwrap_or(NOBODY),
                };
            }
        }
        if successor != Successor::Root {
            become_user(dropped)?;
        }
    }
    step("clearing ambient capabilities", || {
        // SAFETY: the call gets only numbers.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) }
    })?;
    step("dropping capabilities", drop_capabilities_of_this_thread)?;
    drop_capabilities_of_other_threads()?;
    // Forbid new privileges. Otherwise, programs that this process starts could regain privileges from
    // set-uid bits or file capabilities. SAFETY: the call sets a flag of this thread, which later threads
    // inherit.
    step("forbidding new privileges", || unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // Make the process dumpable again, because the change of user has cleared this flag. Without the flag,
    // the files of the process in /proc would belong to root.
    // SAFETY: the call only sets a flag of the process.
    step("keeping access to its files in /proc", || unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0)
    })?;
    Ok(Some(dropped))
}

/// Leaves all groups, and changes the user and group of every thread. The kernel drops the capabilities of
/// threads whose user was root.
fn become_user(Dropped { user, group }: Dropped) -> Result<()> {
    // Leave the groups first, because an ordinary user may not change groups.
    // SAFETY: the list has length 0, so nothing is read from the null pointer.
    step("leaving all groups", || unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: the call gets only numbers.
    step("changing the group", || unsafe { libc::setresgid(group, group, group) })?;
    // SAFETY: the call gets only numbers.
    step("changing the user", || unsafe { libc::setresuid(user, user, user) })
}

/// Reads a user or group number from an environment variable that sudo sets. Ignores 0, which is root.
fn number_of(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok().filter(|&number| number != 0)
}

fn step(doing: &str, call: impl FnOnce() -> i32) -> Result<()> {
    match call() {
        0 => Ok(()),
        _ => {
            let what = format!("cannot give up privileges ({doing})");
            Err(Error::Os { what, source: io::Error::last_os_error() })
        }
    }
}

/// Empties the calling thread's capability sets. Safe to call in a signal handler.
fn drop_capabilities_of_this_thread() -> i32 {
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        thread: i32,
    }
    let header = Header { version: VERSION_3, thread: 0 };
    // Version 3 of capset(2) takes 64-bit sets as two halves. Each half holds the three sets: effective,
    // permitted and inheritable.
    let sets = [[0u32; 3]; 2];
    // SAFETY: header and sets outlive the call, in the layout of version 3 of capset(2).
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) as i32 }
}

/// Makes every other thread drop its capabilities in a signal handler. capset(2) affects only the calling
/// thread.
fn drop_capabilities_of_other_threads() -> Result<()> {
    extern "C" fn handler(_: libc::c_int) {
        drop_capabilities_of_this_thread();
    }
    if threads_with_capabilities().is_empty() {
        return Ok(());
    }
    let signal = libc::SIGRTMAX();
    // SAFETY: an all-zero sigaction is valid and has no flags.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: both structures outlive the call. The handler makes one system call.
    step("preparing other threads", || unsafe { libc::sigaction(signal, &action, &mut before) })?;
    let start = Instant::now();
    let mut signalled = Vec::new();
    let left = loop {
        let threads = threads_with_capabilities();
        if threads.is_empty() || start.elapsed() > OTHER_THREADS {
            break threads;
        }
        for thread in threads.into_iter().filter(|(id, _)| !signalled.contains(id)).collect::<Vec<_>>() {
            signalled.push(thread.0);
            // SAFETY: the call names a thread of this process by its id. If the thread has ended, the call
            // fails.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread.0, signal) };
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    if !left.is_empty() {
        let names: Vec<String> = left.into_iter().map(|(_, name)| name).collect();
        tracing::warn!(
            "these threads of libraries keep the program's capabilities: {}. Threads that run user code have none",
            names.join(", ")
        );
        // Keep the signal handler. Some thread may not have handled the signal yet, and without a handler the
        // signal would end the process.
        return Ok(());
    }
    // SAFETY: as above.
    step("restoring a signal", || unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) })
}

/// Returns the ids and names of the threads that hold capabilities.
fn threads_with_capabilities() -> Vec<(i32, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let held =
                ["CapPrm", "CapEff", "CapInh"].iter().any(|name| capability::set(&status, name) != Some(0));
            let name = status.lines().next()?.strip_prefix("Name:")?.trim().to_owned();
            held.then_some((task.file_name().to_str()?.parse().ok()?, name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn users_and_groups_are_found_by_name() {
        let root = Dropped { user: 0, group: 0 };
        assert_eq!(Successor::named("root").unwrap(), Successor::User(root));
        assert_eq!((user_name(0), user_name(3_999_999_999)), ("root".into(), "3999999999".into()));
        assert_eq!(group_named(USER, "root").unwrap(), 0);
        for absent in ["no such name", "ro\0ot"] {
            let user = Successor::named(absent).unwrap_err().to_string();
            assert!(user.contains("there is no such user on this machine"), "{user}");
            let group = group_named(Field::new("group").with(absent), absent).unwrap_err().to_string();
            assert!(group.starts_with("group=") && group.contains("there is no such group"), "{group}");
        }
    }

    #[test]
    fn every_thread_gives_up_its_capabilities() {
        if threads_with_capabilities().is_empty() {
            eprintln!("SKIPPED every_thread_gives_up_its_capabilities: the tests have no capabilities");
            return;
        }
        // SAFETY: the call has no preconditions.
        let of_root = if unsafe { libc::geteuid() } == 0 { "to_root" } else { "as_is" };
        for successor in ["to_the_caller", of_root] {
            let output = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "privileges::tests::this_process_gives_up_its_capabilities"])
                .args(["--ignored", "--nocapture"])
                .envs([("SUDO_UID", "4321"), ("SUDO_GID", "0"), ("SUCCESSOR", successor)])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{successor}: {text}");
        }
    }

    #[test]
    #[ignore = "run by the test above in a process of its own"]
    fn this_process_gives_up_its_capabilities() {
        // SAFETY: reads a number.
        let root = unsafe { libc::geteuid() } == 0;
        let to_root = std::env::var("SUCCESSOR").unwrap() == "to_root";
        let (ask, asked) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            asked.recv().unwrap();
            Capability::NetAdmin.is_held()
        });
        let dropped = drop_privileges_to(if to_root { Successor::Root } else { Successor::Caller });
        let dropped = dropped.unwrap().expect("the process had capabilities");
        if root {
            // A group of 0 would be that of root, so it does not count.
            let caller = Dropped { user: 4321, group: NOBODY };
            assert_eq!(dropped, if to_root { Dropped { user: 0, group: 0 } } else { caller });
            // SAFETY: reads numbers.
            assert_eq!(unsafe { (libc::getuid(), libc::getegid()) }, (dropped.user, dropped.group));
        }
        ask.send(()).unwrap();
        assert!(!other.join().unwrap(), "the other thread has none either");
        assert_eq!(threads_with_capabilities(), []);
        assert!(std::fs::read("/proc/self/environ").is_ok(), "the process still owns its files in /proc");
        // SAFETY: reads a flag.
        assert_eq!(unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) }, 1);
        if !to_root {
            assert_eq!(drop_privileges().unwrap(), None, "nothing is left");
        }
    }
}
