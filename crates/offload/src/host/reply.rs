//! The replies to requests of programs.

use crate::stack::stream::Unopened;
use inlane_offload_protocol::message::Message;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The reply to a request and the descriptor to send with it, or why the request fails.
pub(super) type Reply = Result<(Message, Option<Arc<OwnedFd>>), Refusal>;

/// Why a request fails: an errno, or the reason why the socket stays with the kernel.
pub(super) enum Refusal {
    Errno(i32),
    Kernel(&'static str),
}

impl From<i32> for Refusal {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<inlane_tcp::Error> for Refusal {
    fn from(_: inlane_tcp::Error) -> Self {
        Self::Errno(libc::EINVAL)
    }
}

impl From<Unopened> for Refusal {
    fn from(why: Unopened) -> Self {
        Self::Errno(match why {
            Unopened::Option => libc::EINVAL,
            Unopened::Memory => libc::ENOBUFS,
        })
    }
}
