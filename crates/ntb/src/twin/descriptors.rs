//! Creates and maps memory that processes share by file descriptors, and passes the descriptors over a UNIX
//! socket (SCM_RIGHTS).

use super::ANSWER_TIMEOUT;
use crate::error::{Error, Result};
use inlane_core::mapping::Mapping;
use inlane_core::region::{Location, Region};
use inlane_core::units;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The most file descriptors that are sent in one message. The kernel accepts at most 253.
const BATCH: usize = 64;
/// How long to wait for a process to receive its descriptors.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptors are moved to numbers from this one on. The smaller numbers are left to the program, because select(2)
/// accepts only descriptors below 1024.
const HIGH: i32 = 1024;
/// More received descriptors than this are moved to large numbers. Fewer leave the program enough small numbers.
const MOST_LOW: usize = 512;

/// Raises the soft limit of descriptors so that this process can open `count` more, or to the hard limit if that is
/// lower. In the second case, opening a descriptor may fail later.
pub(crate) fn allow(count: usize) {
    inlane_process::limits::allow_descriptors((count + HIGH as usize) as u64);
}

/// Makes a sealed memfd of `bytes` bytes: shared memory of fixed size. If a peer could shrink the memory,
/// accesses beyond its new end would raise SIGBUS.
///
/// # Errors
/// [`Error::Os`] if the system refuses.
pub(crate) fn sealed_memory(name: &str, bytes: u64) -> Result<OwnedFd> {
    let os = |error| Error::os(format!("shared memory '{name}' of {bytes} bytes"), error);
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(os)?;
    rustix::fs::ftruncate(&fd, bytes).map_err(os)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(os)?;
    Ok(fd)
}

/// Checks that shared memory cannot be shrunk and has at least `bytes`.
///
/// # Errors
/// [`Error::Invalid`] otherwise.
pub(crate) fn check_sealed(fd: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    let refuse = |why: &str| Err(Error::invalid("shared memory received from the fabric", why));
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK | SealFlags::SEAL) => {}
        _ => return refuse("it is not sealed against shrinking; check that the other side is inlane"),
    }
    match rustix::fs::fstat(fd) {
        Ok(stat) if stat.st_size as u64 >= bytes => Ok(()),
        _ => refuse("it is shorter than announced; check that the other side is inlane"),
    }
}

const PAGE: usize = 4096;

/// Maps `bytes` of `fd` from `offset`, a multiple of the page size.
///
/// # Errors
/// [`Error::Os`] if the system refuses.
pub(crate) fn map(fd: BorrowedFd<'_>, offset: u64, bytes: usize, location: Location) -> Result<Region> {
    let mapping = Mapping::shared(fd, offset, bytes, true, true)
        .map_err(|error| Error::os(format!("mapping {bytes} bytes of {location}"), error))?;
    Ok(mapping.into_region(location))
}

/// Maps the first `bytes` bytes of `fd` to an address that is a multiple of `align`. `align` is a power of
/// two and at least the page size.
///
/// # Errors
/// [`Error::Os`] if the system refuses.
pub(crate) fn map_aligned(
    fd: BorrowedFd<'_>,
    bytes: usize,
    align: usize,
    location: Location,
) -> Result<Region> {
    // Reserve `align` bytes more than needed, so that an aligned span lies within the reservation.
    let reserved = bytes.saturating_add(align);
    // SAFETY: the kernel chooses the address of the new mapping.
    let start = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE)
    }
    .map_err(|error| {
        Error::os(
            format!("cannot reserve {} of addresses for the window", units::bytes(reserved as u64)),
            error,
        )
    })? as usize;
    let address = start.next_multiple_of(align);
    let end = address + bytes.next_multiple_of(PAGE);
    for (from, to) in [(start, address), (end, start + reserved.next_multiple_of(PAGE))] {
        if from < to {
            // SAFETY: this function made the reservation, and nothing uses this part of it.
            let _ = unsafe { rustix::mm::munmap(from as *mut _, to - from) };
        }
    }
    // SAFETY: this function made the reservation, of which this span remains.
    let mapping = unsafe { Mapping::from_raw(address, bytes) };
    // SAFETY: the mapping owns the span, and nothing uses it yet.
    unsafe { map_at(fd, 0, bytes, address as *mut u8) }?;
    Ok(mapping.into_region(location))
}

/// Maps `bytes` bytes of `fd`, starting at `offset`, to `address`. Replaces the previous mapping there.
/// `offset`, `bytes` and `address` are multiples of the page size.
///
/// # Errors
/// [`Error::Os`] if the system refuses.
///
/// # Safety
/// The caller owns the `bytes` bytes at `address`. No thread accesses them during the call.
pub(crate) unsafe fn map_at(fd: BorrowedFd<'_>, offset: u64, bytes: usize, address: *mut u8) -> Result<()> {
    // SAFETY: the caller owns the bytes at `address`, so the new mapping may replace them.
    let mapped = unsafe {
        rustix::mm::mmap(
            address.cast(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
            fd,
            offset,
        )
    };
    mapped.map(|_| ()).map_err(|error| Error::os(format!("mapping {bytes} bytes at {address:p}"), error))
}

/// Sends `fds` in batches. Each batch carries one byte, its number of descriptors. The kernel limits how many
/// descriptors of a user are in flight (ETOOMANYREFS): at that limit, retries for up to [`RECEIVE_TIMEOUT`].
///
/// # Errors
/// [`Error::Os`] if the socket fails or no process receives in time.
pub(crate) fn send_descriptors(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let begun = Instant::now();
    let mut batches = fds.chunks(BATCH).peekable();
    while let Some(batch) = batches.peek() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(batch));
        let count = [batch.len() as u8];
        match rustix::net::sendmsg(socket, &[IoSlice::new(&count)], &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => drop(batches.next()),
            Err(Errno::TOOMANYREFS) if begun.elapsed() < RECEIVE_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(Error::os("sending descriptors to a port's process", error)),
        }
    }
    Ok(())
}

/// Repeats a receive with a timeout of [`ANSWER_TIMEOUT`] after each signal. Gives up at the second signal after that time,
/// because a program may get signals without end. Such a receive is interrupted whenever the process is stopped and continued,
/// for example in a shell, and the answer may have arrived while the process was stopped.
pub(crate) fn despite_signals<T>(
    mut receive: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let (begun, mut late) = (Instant::now(), false);
    loop {
        match receive() {
            Err(Errno::INTR) if late => return Err(Errno::AGAIN),
            Err(Errno::INTR) => late = begun.elapsed() >= ANSWER_TIMEOUT,
            received => return received,
        }
    }
}

/// Receives `count` descriptors that [`send_descriptors`] sent.
///
/// # Errors
/// [`Error::Os`] if the socket fails, [`Error::Invalid`] if the batches are not as announced.
pub(crate) fn receive_descriptors(socket: BorrowedFd<'_>, count: usize) -> Result<Vec<OwnedFd>> {
    let os = |error| {
        Error::os(
            format!("receiving {count} descriptors of the fabric, which need a limit (ulimit -n) above that"),
            error,
        )
    };
    let mut all = Vec::with_capacity(count);
    allow(count);
    while all.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8];
        let got = despite_signals(|| {
            let bytes = &mut [IoSliceMut::new(&mut byte)];
            rustix::net::recvmsg(socket.as_fd(), bytes, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
        .map_err(os)?;
        let before = all.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    all.push(if count <= MOST_LOW {
                        fd
                    } else {
                        fcntl_dupfd_cloexec(fd, HIGH).map_err(os)?
                    });
                }
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(os(Errno::MFILE));
        }
        if got.bytes == 0 || all.len() == before || all.len() - before != byte[0] as usize {
            return Err(Error::invalid(
                "the fabric's socket",
                "it closed or sent other data than descriptors; start the program with `inlane ntb run`",
            ));
        }
    }
    if all.len() > count {
        return Err(Error::invalid(
            "the fabric's socket",
            "it sent more descriptors than announced; start the program with `inlane ntb run`",
        ));
    }
    Ok(all)
}
