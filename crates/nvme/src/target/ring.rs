//! The io_uring of a worker thread: queues the worker's requests, and waits for their completions.

use super::storage::Call;
use crate::{Error, Result};
use io_uring::types::{Fd, FsyncFlags, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The number of entries of the submission queue. A full queue is submitted to the kernel, which makes room
/// for further requests.
const SUBMISSIONS: u32 = 256;
/// The number of entries of the completion queue. If it is full, the kernel keeps further completions until
/// there is space.
const COMPLETIONS: u32 = 4096;

/// `IORING_RECVSEND_POLL_FIRST`: wait for data instead of trying to receive at once.
const POLL_FIRST: u16 = 1;

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// The tag with which the request was submitted.
    pub tag: u64,
    /// The result of the system call. If it failed, a negative error number.
    pub result: i32,
    /// Flags of the completion.
    pub flags: u32,
}

impl Completed {
    /// Returns true if a receive left data in the socket.
    pub fn more_to_receive(&self) -> bool {
        io_uring::cqueue::sock_nonempty(self.flags)
    }
}

/// An io_uring that one thread uses.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// Creates the io_uring. Only the calling thread may use it.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or does not let this process use it.
    pub fn new() -> Result<Self> {
        // Try again with fewer flags, because old kernels refuse flags that they do not support.
        let newest = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSIONS);
        let ring = newest
            .or_else(|_| {
                let mut builder = IoUring::builder();
                builder.setup_cqsize(COMPLETIONS).setup_coop_taskrun().setup_taskrun_flag().build(SUBMISSIONS)
            })
            .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS));
        let ring = ring.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::Environment {
                what: "io_uring".into(),
                why: "the kernel does not let this process use it; set the sysctl kernel.io_uring_disabled to 0, \
                      or allow io_uring_setup in the seccomp profile of the container"
                    .into(),
            },
            Some(libc::ENOSYS) => Error::environment("io_uring", "this kernel does not have it; Linux 5.19 or newer is needed"),
            _ => Error::Os { what: "cannot create an io_uring".into(), source },
        })?;
        Ok(Self { ring })
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the callers guarantee that the memory of a request stays valid until the request has
            // completed.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // The submission queue is full. Submitting its requests makes room for this one.
            let _ = self.ring.submit();
        }
    }

    /// Receives bytes into memory. With `wait`, the kernel first waits until the socket is readable.
    ///
    /// # Safety
    /// The memory must stay valid, and nothing else may use it, until the request has completed.
    pub unsafe fn receive(&mut self, socket: RawFd, address: *mut u8, length: usize, wait: bool, tag: u64) {
        let length = length.min(1 << 30) as u32;
        let priority = if wait { POLL_FIRST } else { 0 };
        self.push(&opcode::Recv::new(Fd(socket), address, length).ioprio(priority).build().user_data(tag));
    }

    /// Receives bytes into the memory that `message` describes. With `wait`, the kernel first waits until the socket
    /// is readable.
    ///
    /// # Safety
    /// The message, its vectors and the memory must stay valid, and nothing else may use them, until the request has
    /// completed.
    pub unsafe fn receive_message(
        &mut self,
        socket: RawFd,
        message: *mut libc::msghdr,
        wait: bool,
        tag: u64,
    ) {
        let priority = if wait { POLL_FIRST } else { 0 };
        self.push(&opcode::RecvMsg::new(Fd(socket), message).ioprio(priority).build().user_data(tag));
    }

    /// Submits a system call of a file operation.
    ///
    /// # Safety
    /// The memory of the call must stay valid until the request has completed. Nothing else may use it.
    pub unsafe fn call(&mut self, descriptor: RawFd, call: Call, tag: u64) {
        let fd = Fd(descriptor);
        let entry = match call {
            Call::Read { address, length, offset } => {
                opcode::Read::new(fd, address, length).offset(offset).build()
            }
            Call::Write { address, length, offset, durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, address, length).offset(offset).rw_flags(flags).build()
            }
            Call::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Call::Allocate { mode, offset, length } => {
                opcode::Fallocate::new(fd, length).offset(offset).mode(mode).build()
            }
        };
        self.push(&entry.user_data(tag));
    }

    /// Submits all requests and polls for a completion. Returns true once a completion exists. Returns false
    /// if none exists after `time`.
    fn poll_for(&mut self, time: Duration) -> std::io::Result<bool> {
        self.enter(0)?;
        let start = Instant::now();
        loop {
            if !self.ring.completion().is_empty() {
                return Ok(true);
            }
            // The flag IORING_SQ_TASKRUN is set: the kernel posts completions only when this thread makes a
            // system call.
            if self.ring.submission().taskrun() {
                self.enter(0)?;
            } else if start.elapsed() >= time {
                return Ok(false);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Submits all requests. Ignores an error, because the next [`Ring::wait`] will fail with it, too.
    pub fn submit(&mut self) {
        let _ = self.enter(0);
    }

    /// Submits all requests and sleeps until the ring holds at least `want` completions. May return earlier,
    /// for example because of a signal.
    fn enter(&mut self, want: usize) -> std::io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            // EINTR: a signal arrived. EBUSY and EAGAIN: the kernel accepts no more requests until
            // completions were taken from the ring.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Submits a request that completes when the descriptor is readable (`POLLIN`) or writable (`POLLOUT`).
    pub fn poll(&mut self, descriptor: RawFd, events: libc::c_short, tag: u64) {
        self.push(&opcode::PollAdd::new(Fd(descriptor), events as u32).build().user_data(tag));
    }

    /// Submits a request that completes after `time`.
    pub fn timeout(&mut self, time: &'static Timespec, tag: u64) {
        self.push(&opcode::Timeout::new(time).build().user_data(tag));
    }

    /// Submits all requests and waits for at least one completion: polls for up to `spin`, then sleeps.
    /// Appends the completions to `completed`. A signal can end the wait early, without a completion.
    ///
    /// # Errors
    /// If the ring fails. Later calls would fail, too.
    pub fn wait(&mut self, completed: &mut Vec<Completed>, spin: Duration) -> std::io::Result<()> {
        if spin.is_zero() || !self.poll_for(spin)? {
            self.enter(1)?;
        }
        self.take(completed);
        Ok(())
    }

    /// Appends the completions that the ring holds to `completed`. Makes no system call.
    pub fn take(&mut self, completed: &mut Vec<Completed>) {
        completed.extend(self.ring.completion().map(|entry| Completed {
            tag: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
    }
}
