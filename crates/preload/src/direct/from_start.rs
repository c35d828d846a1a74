//! Finds the slots that connections have from the start. If the process wants it, the engine gives a slot to each connection that
//! it establishes, as long as there are free ones. No request is necessary: the library finds the slot by the inode of the
//! program's end.

use super::{UNAVAILABLE, slot};
use crate::descriptor::identity;
use crate::epoll::ready;
use crate::slots::{CLOSED_RANGES, Entry, SEEN, entry};
use crate::{control, errno, set_errno};
use inlane_offload_protocol::slots::Slot;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of connections after which a process without shared memory asks for it.
const MANY: u32 = 16;
/// If the engine has stopped giving slots from the start, because they were not used, the library lets it try again after this
/// many connections.
const RETRY: u32 = 4096;
/// How often the library looks for the slot of a connection that it has connected. It may look before the connection is
/// established, and then finds none.
const LOOKUPS: u32 = 4;

/// The number of connections of this process.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// Looks for the slot of the connection `fd` when the program uses it. Call this when the program connects a socket.
pub fn expect_slot(fd: RawFd) {
    if count_connection()
        && let Some(entry) = entry(fd)
    {
        entry.lookups.store(LOOKUPS, Ordering::Relaxed);
    }
}

/// Finds the slot of the connection `fd`, which the program has just accepted.
pub fn expect_slot_of_accepted(fd: RawFd) {
    if count_connection()
        && let Some(entry) = entry(fd)
    {
        entry.lookups.store(1, Ordering::Relaxed);
        slot(fd);
    }
}

/// Finds the slot of the connection `fd`, which has one.
pub fn find_slot(fd: RawFd) {
    if let Some(entry) = entry(fd) {
        entry.lookups.store(1, Ordering::Relaxed);
        slot(fd);
    }
}

/// Counts a new connection. Asks for shared memory if there are many. Returns true if the connection may have a slot from the
/// start.
fn count_connection() -> bool {
    if UNAVAILABLE.load(Ordering::Relaxed) {
        return false;
    }
    let count = CONNECTIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    if count.is_multiple_of(MANY) && !control::has_present_area() {
        if control::share() == Err(libc::EOPNOTSUPP) {
            UNAVAILABLE.store(true, Ordering::Relaxed);
        }
        return false;
    }
    let Some(area) = control::area() else { return false };
    let wanted = area.from_start();
    if count.is_multiple_of(RETRY) && wanted.load(Ordering::Relaxed) == 0 {
        wanted.store(1, Ordering::Relaxed);
    }
    wanted.load(Ordering::Relaxed) != 0
}

/// Looks for the slot that the connection `fd` has from the start, and stores it in `entry`. Returns `None` if it has none.
/// Leaves errno unchanged.
#[cold]
pub(super) fn find(fd: RawFd, entry: &Entry) -> Option<Slot> {
    let left = entry.lookups.load(Ordering::Relaxed);
    let area = control::area()?;
    let before = errno();
    let changes = entry.changes.load(Ordering::SeqCst);
    let identity = identity(fd);
    set_errno(before);
    let slot_of = |(inode, device)| {
        area.find(inode).filter(|slot| slot.header().device.load(Ordering::Relaxed) == device)
    };
    let slot = identity.and_then(slot_of);
    // A connection over a kept pair has its slot before it is established, and must find it then.
    if slot.is_some_and(|slot| slot.life().is_connecting()) {
        return None;
    }
    entry.lookups.store(left.saturating_sub(1), Ordering::Relaxed);
    let (slot, (inode, _)) = (slot?, identity?);
    entry.lookups.store(0, Ordering::Relaxed);
    ready::forget_outdated(slot);
    entry.slot.store(slot.as_ptr(), Ordering::Release);
    if u32::try_from(inode).is_ok() {
        let ranges = u64::from(CLOSED_RANGES.load(Ordering::SeqCst));
        entry.known.store(ranges << 32 | inode, Ordering::SeqCst);
        // Another thread may have closed the descriptor after the kernel's answer.
        if entry.changes.load(Ordering::SeqCst) != changes {
            entry.known.store(0, Ordering::SeqCst);
        }
    }
    // Look last, because another thread may change this meanwhile.
    if entry.sight.load(Ordering::SeqCst) != SEEN {
        slot.pair().note_unseen();
    }
    ready::note_found(fd, slot);
    Some(slot)
}
