//! AF_XDP sockets that DPDK's driver leaves open when it closes a device (22.11.11 does: a reference count of its never
//! falls to the value it compares with). An open socket keeps its queue taken and pool memory pinned, so a port notes
//! which sockets came while it was configured, and closes those that are still there after its device is gone.

use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held while a port is configured, so that a new socket is surely its own.
static CONFIGURING: Mutex<()> = Mutex::new(());

/// A socket of this process: its descriptor, and the inode that tells it from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    descriptor: RawFd,
    inode: u64,
}

impl Socket {
    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor
    }
}

/// Notes which sockets come while it lives.
pub(crate) struct Watch {
    before: Vec<Socket>,
    _alone: MutexGuard<'static, ()>,
}

impl Watch {
    pub(crate) fn begin() -> Self {
        let alone = CONFIGURING.lock().unwrap_or_else(PoisonError::into_inner);
        Self { before: open_sockets(), _alone: alone }
    }

    /// Those that came since.
    pub(crate) fn end(self) -> Vec<Socket> {
        let mut now = open_sockets();
        now.retain(|socket| !self.before.contains(socket));
        now
    }
}

/// Closes those of `sockets` that are still open; returns how many.
pub(crate) fn close_leftovers(sockets: &[Socket]) -> usize {
    let _alone = CONFIGURING.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open_sockets();
    let left: Vec<_> = sockets.iter().filter(|socket| open.contains(socket)).collect();
    for socket in &left {
        // SAFETY: the driver that opened it closed its device and forgot it; the inode says that it is the same.
        unsafe { libc::close(socket.descriptor) };
    }
    left.len()
}

fn open_sockets() -> Vec<Socket> {
    descriptors().filter_map(xdp_socket).collect()
}

/// All descriptors that this process has open.
pub(crate) fn descriptors() -> impl Iterator<Item = RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let all: Vec<RawFd> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.into_iter()
}

fn xdp_socket(descriptor: RawFd) -> Option<Socket> {
    let (mut domain, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: both are written during the calls; a descriptor that is no socket, or closed by now, is refused.
    unsafe {
        let value = (&raw mut domain).cast();
        let code = libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &mut length);
        let mut status: libc::stat = std::mem::zeroed();
        let found = code == 0 && domain == libc::AF_XDP && libc::fstat(descriptor, &mut status) == 0;
        found.then_some(Socket { descriptor, inode: status.st_ino })
    }
}
