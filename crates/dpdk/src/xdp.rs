//! The XDP program and the sockets of AF_XDP ports. DPDK's driver opens the sockets. inlane's own XDP program
//! (`sys/xdp.c`) gives the frames of each receive queue to the queue's socket:
//!
//! * A BPF link attaches the program, unless the interface already has another program. The kernel detaches
//!   the program when the last descriptor of the link is closed, even if the process is killed.
//! * All ports of an interface share one program. A process opens the link of another inlane process by the
//!   link's number, which needs CAP_SYS_ADMIN.
//!
//! The driver of DPDK 22.11 leaves its sockets open when it closes a device. An open socket keeps its queue
//! in use and pool memory pinned. So a port records the sockets that are opened while it is configured. After
//! the device was closed, the port closes those sockets that are still open.

use crate::interface::Interface;
use crate::sys;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The most queues that an XDP program can serve. No network interface has as many.
const QUEUES: u32 = 1024;

/// How long an XDP program that its last user has closed may stay attached. Until the kernel has detached it, nobody can share it or
/// attach another one. The kernel waits for a lock that changes of other interfaces hold, too.
const LONGEST_DETACHING: Duration = Duration::from_secs(5);

/// Identifies an interface by two numbers: the inode of its network namespace, and its number in that
/// namespace.
type Key = (u64, u32);

/// The XDP programs that ports of this process use.
static PROGRAMS: Mutex<Vec<(Key, Weak<Program>)>> = Mutex::new(Vec::new());

thread_local! {
    /// The AF_XDP sockets that the driver has opened on this thread since [`record_sockets`] was called.
    static OPENED: RefCell<Vec<Socket>> = const { RefCell::new(Vec::new()) };
    /// The kernel's error if this thread's last attempt to open a socket failed; 0 if it succeeded.
    static FAILURE: Cell<i32> = const { Cell::new(0) };
}

/// inlane's XDP program on an interface. It stays attached while any process has a value of this type for the
/// interface.
#[derive(Debug)]
pub(crate) struct Program {
    _link: OwnedFd,
    /// The BPF map from queue numbers to AF_XDP sockets.
    map: OwnedFd,
}

/// The reason why inlane has no XDP program on an interface.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The interface has an XDP program that is not inlane's. `name` is empty if this process may not read
    /// it.
    Taken { program: u32, name: String },
    /// Another inlane process uses the interface. This process cannot share the other process's XDP program,
    /// because it lacks CAP_SYS_ADMIN.
    NotShared,
    /// The kernel refused to load or attach inlane's XDP program, for this reason.
    Failed(io::Error),
}

impl Program {
    /// Attaches inlane's XDP program to an interface of the calling thread's network namespace, or shares an
    /// attached one.
    pub(crate) fn attach(interface: &Interface) -> Result<Arc<Self>, Refusal> {
        // SAFETY: the function pointer lives for the process.
        unsafe { sys::inlane_xdp_on_socket(Some(socket_opened)) };
        let key = key(interface.index()).map_err(Refusal::Failed)?;
        let mut programs = programs();
        programs.retain(|(_, program)| program.strong_count() > 0);
        let found =
            programs.iter().find(|(other, _)| *other == key).and_then(|(_, program)| program.upgrade());
        if let Some(program) = found {
            return Ok(program);
        }
        let program = Arc::new(Self::attach_or_share(interface.index() as i32)?);
        programs.push((key, Arc::downgrade(&program)));
        Ok(program)
    }

    fn attach_or_share(interface: i32) -> Result<Self, Refusal> {
        let (mut link, mut map) = (-1, -1);
        let start = Instant::now();
        loop {
            // SAFETY: both descriptors are written during the call.
            let mut code = unsafe { sys::inlane_xdp_attach(interface, QUEUES, &mut link, &mut map) };
            if [-libc::EBUSY, -libc::EEXIST].contains(&code) {
                // SAFETY: as above.
                code = unsafe { sys::inlane_xdp_share(interface, &mut link, &mut map) };
            }
            match -code {
                0 => {
                    // SAFETY: the call has just opened both descriptors. No other code owns them.
                    let [link, map] =
                        [link, map].map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
                    return Ok(Self { _link: link, map });
                }
                // The last user has closed the attached program. Try again.
                libc::ENOENT if start.elapsed() < LONGEST_DETACHING => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                libc::EBUSY | libc::EPERM => return Err(refusal(interface, -code)),
                error => return Err(Refusal::Failed(io::Error::from_raw_os_error(error))),
            }
        }
    }
}

/// Returns why inlane's program could not be attached or shared. `error` is the kernel's error.
fn refusal(interface: i32, error: i32) -> Refusal {
    let (mut program, mut name) = (0, [0 as c_char; sys::INLANE_XDP_NAME_BYTES as usize]);
    // SAFETY: number and name are written during the call; the name is terminated.
    let name = unsafe {
        sys::inlane_xdp_query(interface, &mut program, name.as_mut_ptr());
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    match (program, error) {
        // The query found no program on the interface (number 0), so the kernel itself refused to load or
        // attach inlane's program.
        (0, _) => Refusal::Failed(io::Error::from_raw_os_error(error)),
        (_, libc::EPERM) => Refusal::NotShared,
        _ => Refusal::Taken { program, name },
    }
}

/// An AF_XDP socket of this process. A later socket may have the same descriptor, but it has another inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    descriptor: RawFd,
    inode: u64,
}

impl Socket {
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn of(descriptor: RawFd) -> Option<Self> {
        // SAFETY: an all-zero stat is valid. The call writes it, and fails on closed descriptors.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (libc::fstat(descriptor, &mut status) == 0).then_some(Self { descriptor, inode: status.st_ino })
        }
    }
}

/// Runs `configure`. Returns its result, and the sockets that the driver has opened on this thread during the
/// call. Pass these sockets to [`close_leftovers`] later, which closes those that the driver has left open.
pub(crate) fn record_sockets<T>(configure: impl FnOnce() -> T) -> (T, Vec<Socket>) {
    OPENED.take();
    FAILURE.set(0);
    let outcome = configure();
    (outcome, OPENED.take())
}

/// Returns the kernel's errno of this thread's last attempt to open an AF_XDP socket. 0 if the attempt
/// succeeded.
pub(crate) fn last_failure() -> i32 {
    FAILURE.get()
}

/// Closes the sockets in `sockets` that are still open. Returns the number of closed sockets.
pub(crate) fn close_leftovers(sockets: &[Socket]) -> usize {
    let mut closed = 0;
    for socket in sockets {
        if Socket::of(socket.descriptor).as_ref() == Some(socket) {
            // SAFETY: the driver has closed the device and no longer uses the socket. The inode was compared,
            // so the descriptor number was not reused for another file.
            unsafe { libc::close(socket.descriptor) };
            closed += 1;
        }
    }
    closed
}

/// Adds a socket to the XDP program of the interface. The driver has opened the socket for a queue. If the
/// driver could not open one, records the reason. `xdp.c` calls this function on the thread that configures a
/// port.
unsafe extern "C" fn socket_opened(interface: *const c_char, queue: u32, result: c_int) -> c_int {
    if result < 0 {
        FAILURE.set(-result);
        return 0;
    }
    // SAFETY: `interface` is the driver's terminated copy of the interface's name.
    let index = unsafe { libc::if_nametoindex(interface) };
    let Ok(key) = key(index) else { return -libc::EIO };
    let program =
        programs().iter().find(|(other, _)| *other == key).and_then(|(_, program)| program.upgrade());
    let (Some(program), Some(socket)) = (program, Socket::of(result)) else { return -libc::ENODEV };
    OPENED.with_borrow_mut(|opened| opened.push(socket));
    // SAFETY: the calls get no pointers to memory of this program. FD_CLOEXEC keeps started programs from
    // inheriting the socket. They would keep its queue in use.
    unsafe {
        libc::fcntl(result, libc::F_SETFD, libc::FD_CLOEXEC);
        sys::inlane_xdp_set_socket(program.map.as_raw_fd(), queue, result)
    }
}

fn key(index: u32) -> io::Result<Key> {
    Ok((std::fs::metadata("/proc/thread-self/ns/net")?.ino(), index))
}

fn programs() -> MutexGuard<'static, Vec<(Key, Weak<Program>)>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}
