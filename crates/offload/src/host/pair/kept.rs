//! The pairs of closed connections that later ones get.

use super::super::closer::UserCloser;
use super::super::permits::Permit;
use super::has_no_descriptors;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A pair without a connection. The program keeps the other end.
pub struct KeptPair {
    /// The engine's end. `None` only while it is dropped.
    pub(in crate::host) end: Option<OwnedFd>,
    pub(in crate::host) cookie: u64,
    /// The inode and the device of the program's end.
    pub(in crate::host) inode: (u64, u64),
    /// True for family AF_INET6.
    pub(in crate::host) v6: bool,
    /// True if the program opens connections over the pair.
    pub(in crate::host) opened: bool,
    /// The epoll instance that watches the end.
    pub(in crate::host) epoll: Arc<OwnedFd>,
    /// Counts the pair as a socket of its process.
    pub(in crate::host) permit: Arc<Permit>,
    pub(in crate::host) closer: Arc<UserCloser>,
}

impl KeptPair {
    /// Returns the inode of the program's end.
    pub fn inode(&self) -> u64 {
        self.inode.0
    }
}

impl fmt::Debug for KeptPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeptPair").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Drop for KeptPair {
    /// Closes the end: on another thread if descriptors may wait there, because their close could block.
    fn drop(&mut self) {
        if let Some(end) = self.end.take()
            && !has_no_descriptors(&end, true)
        {
            crate::host::stop_watching(&self.epoll, &end);
            self.closer.close(vec![end], Some(Box::new(self.permit.clone())));
        }
    }
}
