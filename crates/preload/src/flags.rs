//! Facts about an offloaded TCP socket that the kernel keeps for the library.

use crate::direct::kept;
use crate::{errno, parked, real, set_errno};
use inlane_offload_protocol::filler;
use inlane_offload_protocol::name::End;
use libc::c_int;
use std::os::fd::RawFd;

/// Facts about an offloaded socket. The kernel keeps them with the program's end of the socket pair, as the
/// option SO_PRIORITY. This option has no other effect on a UNIX socket, and every process may set these
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(c_int);

impl Flags {
    /// Flag: the program has read the error of the connection.
    pub const ERROR_READ: c_int = 1;
    /// Flag: the program has shut down reading.
    pub const READ_SHUT: c_int = 2;
    /// Flag: the connection is being established. The engine sets and clears this flag.
    pub const CONNECTING: c_int = filler::CONNECTING;

    /// Returns the facts about the offloaded socket `fd`.
    pub fn of(fd: RawFd) -> Self {
        let flags = real::option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap_or(0);
        let stale = flags & Self::CONNECTING != 0 && kept::opened::has_stale_mark(fd);
        Self(if stale { flags & !Self::CONNECTING } else { flags })
    }

    /// Returns true if `flag` is set.
    pub fn has(self, flag: c_int) -> bool {
        self.0 & flag != 0
    }

    /// Sets `flag` in the socket's SO_PRIORITY. If all three flags would then be set, stores 6, without
    /// `ERROR_READ`, because the kernel reserves priority 7 for privileged processes.
    pub fn set(fd: RawFd, flag: c_int) {
        parked::forbid(fd);
        let value = (Self::of(fd).0 | flag).min(6);
        real::set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, value);
    }
}

/// Returns true if the connection `fd` has failed and the program has not read its error yet. Leaves errno unchanged.
pub fn has_unread_error(fd: RawFd) -> bool {
    let before = errno();
    let unread = matches!(End::of(fd, real::ASKING), End::Failed(_)) && !Flags::of(fd).has(Flags::ERROR_READ);
    set_errno(before);
    unread
}
