//! Answers requests with bytes of a file. One io_uring reads the file with O_DIRECT, receives and sends.

use super::HEADER;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of bytes in a response that precede its data.
const RESPONSE_HEADER: usize = 24;
/// The alignment in bytes that O_DIRECT needs for memory and offsets.
const ALIGNMENT: usize = 4096;
/// The size of a huge page. Large data lies in one, as in the target's buffers.
const HUGE_PAGE: usize = 2 << 20;
/// The number of completed small reads after which the server sends their responses. The client then works on
/// these responses while the server continues.
const BATCH: usize = 8;
/// The least size in bytes of a large read. A large read is answered as soon as it completes. Small reads are
/// answered in batches.
const LARGE: usize = 64 << 10;

const RECEIVE: u64 = u64::MAX;
const SEND: u64 = u64::MAX - 1;

/// Opens a file for [`answer`].
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// A buffer for one response: a header of `RESPONSE_HEADER` bytes, then the data. The data's address is a
/// multiple of [`ALIGNMENT`]. For large data it is a multiple of [`HUGE_PAGE`].
struct Slot {
    memory: Vec<u8>,
    /// The index of the first data byte in `memory`.
    data: usize,
    length: usize,
}

impl Slot {
    fn prepare(&mut self, length: usize) -> *mut u8 {
        if self.length != length {
            let alignment = if length < LARGE { ALIGNMENT } else { HUGE_PAGE };
            let bytes = length.next_multiple_of(alignment) + 2 * alignment;
            self.memory = Vec::with_capacity(bytes);
            let start = self.memory.as_ptr() as usize;
            self.data = (start + ALIGNMENT).next_multiple_of(alignment) - start;
            if length >= LARGE {
                let data = self.memory.as_mut_ptr().wrapping_add(self.data);
                // SAFETY: the range lies within the vector's memory. The advice changes no contents.
                unsafe {
                    libc::madvise(data.cast(), length.next_multiple_of(HUGE_PAGE), libc::MADV_HUGEPAGE)
                };
            }
            self.memory.resize(bytes, 0);
            self.length = length;
        }
        self.memory[self.data..].as_mut_ptr()
    }

    fn vector(&self) -> libc::iovec {
        let start = self.memory[self.data - RESPONSE_HEADER..].as_ptr();
        libc::iovec { iov_base: start.cast_mut().cast(), iov_len: RESPONSE_HEADER + self.length }
    }
}

/// Answers requests until the connection ends. Each wait polls for up to `spin`, then sleeps.
pub fn answer(stream: &TcpStream, file: &File, spin: Duration) -> io::Result<()> {
    let mut ring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(1024)?;
    let bytes = file.metadata()?.len() as usize;
    let (socket, fd) = (Fd(stream.as_raw_fd()), Fd(file.as_raw_fd()));
    let mut buffer = vec![0_u8; 128 << 10];
    let mut filled = 0;
    let (mut slots, mut free): (Vec<Slot>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut ready: VecDeque<usize> = VecDeque::new();
    let mut sending: Vec<usize> = Vec::new();
    let mut reads: VecDeque<(u64, i32)> = VecDeque::new();
    let mut vectors: Vec<libc::iovec> = Vec::new();
    // SAFETY: a `msghdr` of zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    let push = |ring: &mut IoUring, entry: io_uring::squeue::Entry| {
        // SAFETY: `answer` keeps the memory of a request until the request has completed or the ring fails.
        while unsafe { ring.submission().push(&entry) }.is_err() {
            ring.submit()?;
        }
        io::Result::Ok(())
    };
    let receive = |buffer: &mut [u8]| {
        opcode::Recv::new(socket, buffer.as_mut_ptr(), buffer.len() as u32).build().user_data(RECEIVE)
    };
    push(&mut ring, receive(&mut buffer))?;
    let (mut in_flight, mut ended) = (1, false);
    // Continue until no request is in flight, because the kernel may use the buffers until then.
    while in_flight > 0 {
        wait(&mut ring, spin)?;
        loop {
            // Handle completed receives and sends before results of reads, even if a result has waited
            // longer. Receives bring new requests, which keep the disk busy.
            let completed = ring.completion().map(|entry| (entry.user_data(), entry.result()));
            let (mut part, results): (Vec<_>, Vec<_>) = completed.partition(|(tag, _)| *tag >= SEND);
            reads.extend(results);
            let large = slots.first().is_some_and(|slot| slot.length >= LARGE);
            part.extend(reads.drain(..reads.len().min(if large { 1 } else { BATCH })));
            for (tag, result) in &part {
                in_flight -= 1;
                if *result <= 0 {
                    ended = true;
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
                if ended {
                    continue;
                }
                match *tag {
                    RECEIVE => {
                        filled += *result as usize;
                        let mut at = 0;
                        while filled - at >= HEADER {
                            let number = |from: usize| {
                                let bytes = buffer[at + from..at + from + 4].try_into().expect("4 bytes");
                                u32::from_le_bytes(bytes) as usize
                            };
                            let (request, length) = (number(0), number(4) - RESPONSE_HEADER);
                            if filled - at < request {
                                break;
                            }
                            let offset = number(8) / length * length % (bytes / length * length);
                            let index = free.pop().unwrap_or_else(|| {
                                slots.push(Slot { memory: Vec::new(), data: 0, length: 0 });
                                slots.len() - 1
                            });
                            let address = slots[index].prepare(length);
                            let read = opcode::Read::new(fd, address, length as u32).offset(offset as u64);
                            push(&mut ring, read.build().user_data(index as u64))?;
                            in_flight += 1;
                            at += request;
                            if length < LARGE {
                                ring.submit()?;
                            }
                        }
                        buffer.copy_within(at..filled, 0);
                        filled -= at;
                        push(&mut ring, receive(&mut buffer[filled..]))?;
                        in_flight += 1;
                    }
                    SEND => free.append(&mut sending),
                    index => ready.push_back(index as usize),
                }
            }
            if !ended && sending.is_empty() && !ready.is_empty() {
                sending.extend(ready.drain(..));
                vectors.clear();
                vectors.extend(sending.iter().map(|index| slots[*index].vector()));
                message.msg_iov = vectors.as_mut_ptr();
                message.msg_iovlen = vectors.len();
                let send = opcode::SendMsg::new(socket, &message)
                    .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32);
                push(&mut ring, send.build().user_data(SEND))?;
                in_flight += 1;
                ring.submit()?;
            }
            if reads.is_empty() {
                break;
            }
        }
    }
    Ok(())
}

/// Submits all requests and waits for a completion: polls for up to `spin`, then sleeps.
fn wait(ring: &mut IoUring, spin: Duration) -> io::Result<()> {
    if !spin.is_zero() {
        ring.submit()?;
        let start = Instant::now();
        while start.elapsed() < spin {
            if !ring.completion().is_empty() {
                return Ok(());
            }
            if ring.submission().taskrun() {
                ring.submit()?;
            }
        }
    }
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(|_| ()),
        }
    }
}
