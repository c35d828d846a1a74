//! A job of a bench: a thread that keeps a set number of commands in flight. It measures the commands and
//! verifies their data.

use super::workload::Workload;
use super::{Counters, block};
use crate::command::{Command, Sgl, io};
use crate::initiator::{Buffer, Done, Request, Session};
use crate::{Error, Result};
use inlane_core::stats::LatencyHistogram;
use inlane_result::ByteVerification;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The counts and latencies of one kind of a job's operations: reads or writes.
#[derive(Clone, Default)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) latency: LatencyHistogram,
    pub(super) verification: ByteVerification,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.latency.add(&other.latency);
        self.verification.transferred_bytes += other.verification.transferred_bytes;
        self.verification.verified_bytes += other.verification.verified_bytes;
        self.verification.altered_bytes += other.verification.altered_bytes;
    }
}

/// The result of a job.
pub(super) struct JobResult {
    pub(super) reads: Tally,
    pub(super) writes: Tally,
    pub(super) duration: Duration,
    pub(super) cpu: Duration,
    pub(super) path: String,
    pub(super) io_queues: u32,
    pub(super) failovers: u64,
    pub(super) error: Option<String>,
}

/// An operation in flight.
#[derive(Clone, Copy)]
struct Operation {
    started: Instant,
    block: u64,
    write: bool,
}

pub(super) struct Job<'a> {
    session: Session,
    workload: &'a Workload,
    part: Range<u64>,
    /// The free buffers, each with its token. An operation takes a buffer and is stored in `operations` at
    /// the index that is the buffer's token.
    buffers: Vec<(u64, Buffer)>,
    /// The operations by token.
    operations: Vec<Operation>,
    random: u64,
    /// The next block of a sequential workload, as an index from the start of this job's part of the
    /// namespace.
    next: u64,
    /// For each block, the number of writes to it. [`BUSY`] is added while an operation on the block is in
    /// flight. Empty if writes are not verified.
    written: Vec<u32>,
    submitted: u64,
    reads: Tally,
    writes: Tally,
    /// Describes the first block with wrong contents. `None` if no block was wrong.
    wrong: Option<String>,
}

/// Marks a block with an operation in flight. The block's next operation must wait, because the target may
/// execute two operations in any order.
const BUSY: u32 = 1 << 31;

impl<'a> Job<'a> {
    pub(super) fn new(
        session: Session,
        workload: &'a Workload,
        part: Range<u64>,
        index: u64,
    ) -> Result<Self> {
        let mut random = workload.seed ^ (index + 1) << 32;
        let blocks = (part.end - part.start) / workload.block_bytes;
        let mut buffers = Vec::new();
        for token in 0..u64::from(workload.depth) {
            let mut buffer = Buffer::new(workload.block_bytes as usize)?;
            if workload.pattern.writes() {
                block::fill(buffer.bytes_mut(), &mut random);
            }
            buffers.push((token, buffer));
        }
        let idle = Operation { started: Instant::now(), block: 0, write: false };
        Ok(Self {
            session,
            workload,
            part,
            buffers,
            operations: vec![idle; workload.depth as usize],
            random,
            next: 0,
            written: match workload.verify && workload.pattern.writes() {
                true => vec![0; blocks as usize],
                false => Vec::new(),
            },
            submitted: 0,
            reads: Tally::default(),
            writes: Tally::default(),
            wrong: None,
        })
    }

    pub(super) fn run(mut self, counters: &Counters, stop: &AtomicBool) -> JobResult {
        let io_queues = self.session.io_queues() as u32;
        let (started, cpu) = (Instant::now(), cpu_time());
        let mut error = self.measure(started, counters, stop).err();
        let (duration, cpu) = (started.elapsed(), cpu_time().saturating_sub(cpu));
        if error.is_none() && !self.written.is_empty() && !stop.load(Ordering::Relaxed) {
            counters.checking.store(true, Ordering::Relaxed);
            error = self.read_back(stop).err();
        }
        let outcome = JobResult {
            reads: self.reads,
            writes: self.writes,
            duration,
            cpu,
            path: self.session.path().to_string(),
            io_queues,
            failovers: self.session.failovers(),
            error: error.map(|error| error.to_string()).or(self.wrong),
        };
        match outcome.error {
            None => self.session.close(),
            // Stop the other jobs.
            Some(_) => stop.store(true, Ordering::Relaxed),
        }
        outcome
    }

    fn measure(&mut self, started: Instant, counters: &Counters, stop: &AtomicBool) -> Result<()> {
        let deadline = self.workload.duration.map(|duration| started + duration);
        let blocks = (self.part.end - self.part.start) / self.workload.block_bytes;
        loop {
            let now = Instant::now();
            let (reads, writes) = (self.reads.operations, self.writes.operations);
            while let Some(done) = self.session.next_done() {
                self.completed(done, now)?;
            }
            counters.reads.fetch_add(self.reads.operations - reads, Ordering::Relaxed);
            counters.writes.fetch_add(self.writes.operations - writes, Ordering::Relaxed);
            let over = stop.load(Ordering::Relaxed)
                || self.wrong.is_some()
                || match deadline {
                    Some(deadline) => now >= deadline,
                    None => self.submitted >= blocks,
                };
            if !over {
                let most = if deadline.is_some() { u64::MAX } else { blocks };
                while self.submitted < most && self.session.available() > 0 && self.submit_next(now) {}
            } else if self.session.in_flight() == 0 {
                return Ok(());
            }
            self.session.progress(true)?;
        }
    }

    /// Submits the next operation of the workload. Returns false if no buffer or no block is free.
    fn submit_next(&mut self, now: Instant) -> bool {
        let workload = self.workload;
        let blocks = (self.part.end - self.part.start) / workload.block_bytes;
        let write = match (workload.pattern.reads(), workload.pattern.writes()) {
            (true, true) => block::random(&mut self.random) % 100 >= u64::from(workload.read_percent),
            (_, writes) => writes,
        };
        let mut index = if workload.pattern.is_random() {
            // Choose a block at random: multiply-shift maps 64 random bits to a nearly uniform index in
            // 0..blocks without a division.
            ((u128::from(block::random(&mut self.random)) * u128::from(blocks)) >> 64) as u64
        } else {
            self.next
        };
        if !self.written.is_empty() {
            // Take the next block that is not busy. If all are busy, the caller tries again after a
            // completion.
            let free = (0..blocks)
                .map(|n| (index + n) % blocks)
                .find(|index| self.written[*index as usize] & BUSY == 0);
            let Some(free) = free else { return false };
            index = free;
        }
        self.next = (index + 1) % blocks;
        let Some((token, mut buffer)) = self.buffers.pop() else { return false };
        if let Some(count) = self.written.get_mut(index as usize) {
            *count |= BUSY;
            if write {
                let at = self.part.start + index * workload.block_bytes;
                block::write(buffer.bytes_mut(), at, u64::from((*count & !BUSY) + 1));
            }
        }
        self.submit(token, buffer, index, write, now);
        true
    }

    fn submit(&mut self, token: u64, buffer: Buffer, index: u64, write: bool, now: Instant) {
        let unit = u64::from(self.session.namespace().block_bytes);
        let at = self.part.start + index * self.workload.block_bytes;
        let blocks = (self.workload.block_bytes / unit) as u32;
        let opcode = if write { io::WRITE } else { io::READ };
        let command = Command::blocks(opcode, self.session.namespace().nsid, at / unit, blocks, Sgl::NONE);
        self.operations[token as usize] = Operation { started: now, block: index, write };
        self.submitted += 1;
        let request = Request { token, command, buffer: Some(buffer) };
        self.session.submit(request).unwrap_or_else(|_| unreachable!("checked before"));
    }

    fn completed(&mut self, done: Done, now: Instant) -> Result<()> {
        let operation = self.operations[done.token as usize];
        let at = self.part.start + operation.block * self.workload.block_bytes;
        if !done.status().is_success() {
            let what = if operation.write { "write" } else { "read" };
            let what = format!("{what} of {} bytes at offset {at}", self.workload.block_bytes);
            return Err(Error::Status { what, status: done.status() });
        }
        let tally = if operation.write { &mut self.writes } else { &mut self.reads };
        tally.operations += 1;
        tally.latency.record((now - operation.started).as_nanos() as u64, 1);
        tally.verification.transferred_bytes += self.workload.block_bytes;
        let buffer = done.buffer.expect("each operation has a buffer");
        match self.written.get_mut(operation.block as usize) {
            Some(count) => {
                *count &= !BUSY;
                if operation.write {
                    *count += 1;
                } else if *count > 0 {
                    let count = u64::from(*count);
                    self.check(&buffer, at, Some(count));
                }
            }
            None if self.workload.verify => self.check(&buffer, at, None),
            None => {}
        }
        self.buffers.push((done.token, buffer));
        Ok(())
    }

    fn check(&mut self, buffer: &Buffer, at: u64, sequence: Option<u64>) {
        let verification = &mut self.reads.verification;
        verification.verified_bytes += self.workload.block_bytes;
        if let Err(wrong) = block::check(buffer.bytes(), at, sequence) {
            verification.altered_bytes += self.workload.block_bytes;
            let message = || format!("verification failed: the block at offset {at} is wrong: {wrong}");
            self.wrong.get_or_insert_with(message);
        }
    }

    /// Reads all written blocks and checks them. These reads do not count in the measurement.
    fn read_back(&mut self, stop: &AtomicBool) -> Result<()> {
        let measured = std::mem::take(&mut self.reads);
        let mut next = 0;
        loop {
            let now = Instant::now();
            while let Some(done) = self.session.next_done() {
                self.completed(done, now)?;
            }
            let mut over = stop.load(Ordering::Relaxed) || self.wrong.is_some();
            while !over && self.session.available() > 0 && !self.buffers.is_empty() {
                while next < self.written.len() && self.written[next] == 0 {
                    next += 1;
                }
                over = next == self.written.len();
                if !over {
                    let (token, buffer) = self.buffers.pop().expect("checked before");
                    self.submit(token, buffer, next as u64, false, now);
                    next += 1;
                }
            }
            if over && self.session.in_flight() == 0 {
                let checked = std::mem::replace(&mut self.reads, measured);
                let verification = &mut self.writes.verification;
                verification.verified_bytes += checked.verification.verified_bytes;
                verification.altered_bytes += checked.verification.altered_bytes;
                return Ok(());
            }
            self.session.progress(true)?;
        }
    }
}

/// Returns the CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
