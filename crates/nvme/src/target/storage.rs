//! Operations on files and block devices, as sequences of system calls.
//!
//! [`OngoingOperation`] returns a system call, takes its result, and returns the next call or the final
//! status. It makes no calls itself: a worker submits them to its io_uring, and tests make them directly.

use super::io::{IoRequest, Operation};
use crate::namespace::Namespace;
use crate::wire::command::Status;
use std::os::fd::RawFd;

/// A system call on a file. The memory stays valid until the call has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `pread`
    Read {
        /// The memory to which the bytes are read.
        address: *mut u8,
        /// The number of bytes.
        length: u32,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// `pwritev2`
    Write {
        /// The memory that holds the bytes to write.
        address: *const u8,
        /// The number of bytes.
        length: u32,
        /// The offset in the file, in bytes.
        offset: u64,
        /// True if the call has the flag `RWF_DSYNC`: the data is then durable when the call completes.
        durable: bool,
    },
    /// `fdatasync`
    Sync,
    /// `fallocate` with this mode
    Allocate {
        /// The flags.
        mode: i32,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
}

impl Call {
    /// Returns the length of a read or write in bytes. Returns 0 for other calls.
    pub fn bytes(&self) -> u64 {
        match self {
            Call::Read { length, .. } | Call::Write { length, .. } => u64::from(*length),
            Call::Sync | Call::Allocate { .. } => 0,
        }
    }
}

/// The mode of `fallocate` that zeroes a range and keeps its blocks allocated.
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
/// The mode of `fallocate` that deallocates the blocks of a range. They then read as zero.
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

const ZEROS_BYTES: usize = 128 << 10;
/// Zeros to write to files whose file system can neither zero nor deallocate a range.
#[repr(C, align(4096))]
struct Zeros([u8; ZEROS_BYTES]);
static ZEROS: Zeros = Zeros([0; ZEROS_BYTES]);

/// An operation in progress.
#[derive(Debug)]
pub struct OngoingOperation {
    request: IoRequest,
    address: *mut u8,
    /// The number of bytes of the request's range that were already read, written or zeroed. Not used for
    /// deallocation.
    done: u64,
    /// The ranges still to deallocate, the current one last.
    ranges: Vec<(u64, u64)>,
    /// The mode of `fallocate` with which zeros are written: `ZERO_RANGE` or `PUNCH_HOLE`. `None` if the file system
    /// has refused both, so zeros are written as data.
    zero: Option<i32>,
    /// True if the data of a durable write bypasses the page cache. The write itself then makes it durable.
    direct: bool,
    syncing: bool,
}

impl OngoingOperation {
    /// Starts an operation. `address` is the destination of a read or compare, or the source of a write. A
    /// deallocation frees `ranges`, each with an offset and a length in bytes. Set `direct` if requests bypass the page
    /// cache.
    pub fn new(request: IoRequest, address: *mut u8, mut ranges: Vec<(u64, u64)>, direct: bool) -> Self {
        ranges.reverse();
        let zero = match request.operation {
            Operation::Zero { deallocate: true, .. } => Some(PUNCH_HOLE),
            _ => Some(ZERO_RANGE),
        };
        let syncing = request.operation == Operation::Flush;
        Self { request, address, done: 0, ranges, zero, direct, syncing }
    }

    /// Returns true if the operation is a deallocation without ranges. Such an operation completes without a
    /// system call.
    pub fn is_empty(&self) -> bool {
        matches!(self.request.operation, Operation::Deallocate { .. }) && self.ranges.is_empty()
    }

    /// Returns the next system call. After a signal has interrupted a call, returns the same call again.
    pub fn call(&self) -> Call {
        let IoRequest { operation, offset, length, .. } = self.request;
        if self.syncing {
            return Call::Sync;
        }
        let (at, left) = (offset + self.done, length - self.done);
        let address = self.address.wrapping_add(self.done as usize);
        match operation {
            Operation::Read | Operation::Compare => Call::Read { address, length: left as u32, offset: at },
            Operation::Write { durable } => {
                Call::Write { address, length: left as u32, offset: at, durable: durable && self.direct }
            }
            Operation::Zero { .. } => match self.zero {
                Some(mode) => Call::Allocate { mode, offset, length },
                None => {
                    let length = left.min(ZEROS_BYTES as u64) as u32;
                    Call::Write { address: ZEROS.0.as_ptr(), length, offset: at, durable: false }
                }
            },
            Operation::Deallocate { .. } => {
                let (offset, length) =
                    *self.ranges.last().expect("a range, because the operation is not empty");
                Call::Allocate { mode: PUNCH_HOLE, offset, length }
            }
            Operation::Flush => Call::Sync,
        }
    }

    /// Processes the result of a call: the number of bytes, or a negative error number. Returns the status of the operation
    /// if it has ended, or `None` if a further call follows.
    pub fn returned(&mut self, result: i32, namespace: &Namespace) -> Option<Status> {
        let operation = self.request.operation;
        if result < 0 {
            return self.failed(-result, namespace);
        }
        if self.syncing {
            // An earlier flush may have failed while this one waited. The kernel does not report its loss again.
            let lost = namespace.flush_failed();
            return Some(if lost { Status::WRITE_FAULT.dnr() } else { Status::SUCCESS });
        }
        match operation {
            Operation::Read | Operation::Compare | Operation::Write { .. } => {
                if result == 0 {
                    // Complete with an error, because the file was truncated after the range was checked.
                    return Some(Status::LBA_OUT_OF_RANGE.dnr());
                }
                self.done += result as u64;
            }
            Operation::Zero { .. } => {
                self.done += if self.zero.is_none() { result as u64 } else { self.request.length };
            }
            Operation::Deallocate { .. } => {
                self.ranges.pop();
                return if self.ranges.is_empty() { Some(Status::SUCCESS) } else { None };
            }
            Operation::Flush => {}
        }
        self.syncing = self.done >= self.request.length && self.needs_sync();
        if self.done >= self.request.length && !self.syncing { Some(Status::SUCCESS) } else { None }
    }

    /// Returns true if `fdatasync` must follow the operation. A durable write through the page cache needs it: of
    /// several such writes at a time, the kernel would report lost data to only one.
    fn needs_sync(&self) -> bool {
        match self.request.operation {
            Operation::Write { durable } => durable && !self.direct,
            Operation::Zero { durable, .. } => durable,
            _ => false,
        }
    }

    fn failed(&mut self, error: i32, namespace: &Namespace) -> Option<Status> {
        let operation = self.request.operation;
        if matches!(error, libc::EINTR | libc::EAGAIN) {
            return None;
        }
        // A full disk refuses a durable write before it takes any data. Everything else that fails may have lost data.
        let is_full = matches!(error, libc::ENOSPC | libc::EDQUOT | libc::EFBIG);
        let direct = operation == (Operation::Write { durable: true }) && self.direct;
        if self.syncing || direct && !is_full {
            if namespace.record_failed_flush() {
                tracing::error!(
                    "{}: cannot make data durable: {}; further writes are refused until the target restarts",
                    namespace.name,
                    std::io::Error::from_raw_os_error(error)
                );
            }
            return Some(Status::WRITE_FAULT.dnr());
        }
        if error == libc::EOPNOTSUPP {
            match (operation, self.zero) {
                // Deallocation is a hint.
                (Operation::Deallocate { .. }, _) => return Some(Status::SUCCESS),
                (Operation::Zero { deallocate, .. }, Some(mode)) => {
                    self.zero = (mode == ZERO_RANGE && !deallocate).then_some(PUNCH_HOLE);
                    return None;
                }
                _ => {}
            }
        }
        Some(match (error, operation) {
            _ if is_full => Status::CAPACITY_EXCEEDED.dnr(),
            (libc::EROFS | libc::EPERM | libc::EBADF, _) => Status::WRITE_PROTECTED.dnr(),
            (libc::ENODEV | libc::ENXIO, _) => Status::NAMESPACE_NOT_READY.dnr(),
            (libc::EIO, Operation::Read | Operation::Compare) => Status::UNRECOVERED_READ_ERROR,
            (libc::EIO, _) => Status::WRITE_FAULT,
            _ => Status::INTERNAL_ERROR,
        })
    }
}

/// Makes the system call `call` and blocks until it has returned. Returns its result in the form of io_uring.
/// Used by tests and fuzzing, which have no worker thread.
pub fn make(call: Call, descriptor: RawFd) -> i32 {
    // SAFETY: the user of `OngoingOperation` guarantees that the memory of its calls is valid.
    let result = unsafe {
        match call {
            Call::Read { address, length, offset } => {
                libc::pread(descriptor, address.cast(), length as usize, offset as i64)
            }
            Call::Write { address, length, offset, durable } => {
                let vector = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: length as usize };
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                libc::pwritev2(descriptor, &vector, 1, offset as i64, flags)
            }
            Call::Sync => libc::fdatasync(descriptor) as isize,
            Call::Allocate { mode, offset, length } => {
                libc::fallocate(descriptor, mode, offset as i64, length as i64) as isize
            }
        }
    };
    match result {
        -1 => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        result => result as i32,
    }
}
