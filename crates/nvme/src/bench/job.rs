//! A job of a bench: a thread that keeps a set number of commands in flight. It measures the commands and
//! verifies their data.

use super::Meters;
use super::block::{self, WrongBlock};
use super::workload::Workload;
use crate::initiator::{Buffer, Done, Session, Submission};
use crate::wire::command::io;
use crate::{Error, Result};
use inlane_core::clock::thread_cpu_ns;
use inlane_core::load::{Member, Pace, Pacer, Running};
use inlane_core::stats::LatencyHistogram;
use inlane_result::{ByteVerification, RowError};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a job that must end at once waits for the commands in flight, and then for the controller's shutdown.
const GRACE: Duration = Duration::from_millis(50);
/// How often a job stores in its meter how long it has worked and waited.
const TIMES: Duration = Duration::from_millis(10);
/// A paced job polls instead of sleeping if the next operation is due within this time.
const POLL: Duration = Duration::from_micros(50);

/// Tells the jobs of a bench when to end.
pub(super) struct Control<'a> {
    run: &'a Running,
    /// See [`Bench::interrupt`](super::Bench).
    interrupt: &'a AtomicBool,
    checking: &'a AtomicBool,
    /// True once a job has failed.
    failed: AtomicBool,
}

impl<'a> Control<'a> {
    pub(super) fn new(run: &'a Running, interrupt: &'a AtomicBool, checking: &'a AtomicBool) -> Self {
        Self { run, interrupt, checking, failed: AtomicBool::new(false) }
    }

    /// Ends the other jobs of this bench.
    pub(super) fn fail(&self) {
        self.failed.store(true, Relaxed);
    }

    /// Returns true if the jobs submit no further operations.
    fn is_over(&self) -> bool {
        self.run.stopping() || self.failed.load(Relaxed)
    }

    /// Returns true if the jobs must end at once.
    fn must_end(&self) -> bool {
        self.is_over() && self.interrupt.load(Relaxed)
    }
}

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
#[derive(Default)]
pub(super) struct JobResult {
    pub(super) reads: Tally,
    pub(super) writes: Tally,
    pub(super) duration: Duration,
    pub(super) cpu: Duration,
    pub(super) path: String,
    pub(super) io_queues: u32,
    pub(super) failovers: u64,
    pub(super) error: Option<RowError>,
}

/// An operation in flight.
#[derive(Clone, Copy)]
struct Operation {
    started: Instant,
    block: u64,
    write: bool,
}

pub(super) struct Job {
    session: Session,
    workload: Arc<Workload>,
    part: Range<u64>,
    pacer: Pacer,
    meters: Meters,
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
    /// The first block with wrong contents. `None` if no block was wrong.
    wrong: Option<WrongBlock>,
    /// How long the job has waited because of its pace.
    paced: Duration,
}

/// Marks a block with an operation in flight. The block's next operation must wait, because the target may
/// execute two operations in any order.
const BUSY: u32 = 1 << 31;

impl Job {
    pub(super) fn new(
        session: Session,
        workload: Arc<Workload>,
        part: Range<u64>,
        index: usize,
        meters: Meters,
        pace: Arc<Pace>,
    ) -> Result<Self> {
        let mut random = workload.seed ^ (index as u64 + 1) << 32;
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
            part,
            pacer: Pacer::new(pace, 1.0 / f64::from(workload.jobs)),
            meters,
            buffers,
            operations: vec![idle; workload.depth as usize],
            random,
            next: 0,
            written: vec![0; if workload.verify && workload.pattern.writes() { blocks as usize } else { 0 }],
            workload,
            submitted: 0,
            reads: Tally::default(),
            writes: Tally::default(),
            wrong: None,
            paced: Duration::ZERO,
        })
    }

    /// Waits for the start of all jobs and runs.
    pub(super) fn run(mut self, member: Member<'_>, control: &Control<'_>) -> JobResult {
        let io_queues = self.session.io_queues() as u32;
        let started = member.ready();
        let (begun, cpu) = (started.unwrap_or_else(Instant::now), thread_cpu_ns());
        let mut error = started.and_then(|started| self.measure(started, control).err());
        let duration = if started.is_some() { begun.elapsed() } else { Duration::ZERO };
        let cpu = Duration::from_nanos(thread_cpu_ns().saturating_sub(cpu));
        if error.is_none() && started.is_some() && !self.written.is_empty() {
            control.checking.store(true, Relaxed);
            error = self.read_back(control).err();
        }
        if error.is_some() {
            self.meters.reads.add_error();
        }
        let result = JobResult {
            reads: self.reads,
            writes: self.writes,
            duration,
            cpu,
            path: self.session.path().to_string(),
            io_queues,
            failovers: self.session.failovers(),
            error: error.map(RowError::new).or(self.wrong.map(RowError::new)),
        };
        match result.error {
            None if self.session.in_flight() == 0 && control.must_end() => self.session.close_within(GRACE),
            None if self.session.in_flight() == 0 => self.session.close(),
            None => {}
            Some(_) => control.fail(),
        }
        result
    }

    fn measure(&mut self, started: Instant, control: &Control<'_>) -> Result<()> {
        let blocks = (self.part.end - self.part.start) / self.workload.block_bytes;
        let most = if self.workload.once { blocks } else { u64::MAX };
        let (mut times_at, cpu) = (started, thread_cpu_ns());
        loop {
            let now = Instant::now();
            let completed = self.collect(now)?;
            let bytes = |operations| operations * self.workload.block_bytes;
            let (reads, writes) = (self.reads.operations, self.writes.operations);
            self.meters.reads.set(reads, bytes(reads));
            self.meters.writes.set(writes, bytes(writes));
            if now >= times_at {
                times_at = now + TIMES;
                let busy = thread_cpu_ns().saturating_sub(cpu);
                let blocked = (now - started).saturating_sub(self.paced).as_nanos() as u64;
                self.meters.reads.set_times(busy, blocked.saturating_sub(busy));
            }
            if control.is_over() || self.wrong.is_some() || self.submitted >= most {
                return self.drain(control);
            }
            let is_unlimited = self.pacer.is_unlimited();
            let now_ns = if is_unlimited { 0 } else { (now - started).as_nanos() as u64 };
            let free = (self.buffers.len() as u64).min(most - self.submitted) as usize;
            let due = self.pacer.due(now_ns, free);
            let mut begun = 0;
            while begun < due && self.session.available() > 0 && self.submit_next(now) {
                begun += 1;
            }
            self.pacer.did(begun);
            if is_unlimited {
                self.session.progress(true)?;
                continue;
            }
            self.session.progress(false)?;
            // Commands that have completed by now need no wait: nothing would wake the thread any more.
            if completed + begun == 0 && self.collect(now)? == 0 {
                self.wait_for_pace(now_ns, free);
            }
        }
    }

    /// Sleeps until a command completes or the next operation is due.
    fn wait_for_pace(&mut self, now_ns: u64, free: usize) {
        if free == 0 {
            return self.session.sleep(GRACE);
        }
        let time = Duration::from_nanos(self.pacer.wait_ns(now_ns));
        if time > POLL {
            let before = Instant::now();
            self.session.sleep(time);
            self.paced += before.elapsed();
        }
    }

    /// Takes the completed operations. Returns their number.
    fn collect(&mut self, now: Instant) -> Result<usize> {
        let mut completed = 0;
        while let Some(done) = self.session.next_done() {
            self.completed(done, now)?;
            completed += 1;
        }
        Ok(completed)
    }

    /// Waits for the commands in flight, or for at most [`GRACE`] if the job must end at once.
    fn drain(&mut self, control: &Control<'_>) -> Result<()> {
        let mut ending = None;
        loop {
            let now = Instant::now();
            self.collect(now)?;
            if self.session.in_flight() == 0 {
                return Ok(());
            }
            if !control.must_end() {
                self.session.progress(true)?;
                continue;
            }
            let left = GRACE.saturating_sub(now - *ending.get_or_insert(now));
            if left.is_zero() {
                return Ok(());
            }
            self.session.progress(false)?;
            self.session.sleep(left.min(Duration::from_millis(1)));
        }
    }

    /// Submits the next operation of the workload. Returns false if no buffer or no block is free.
    fn submit_next(&mut self, now: Instant) -> bool {
        let workload = &self.workload;
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
        let at = self.part.start + index * self.workload.block_bytes;
        let opcode = if write { io::WRITE } else { io::READ };
        let command = self.session.namespace().command(opcode, at, self.workload.block_bytes);
        self.operations[token as usize] = Operation { started: now, block: index, write };
        self.submitted += 1;
        let request = Submission { token, command, buffer: Some(buffer) };
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
            self.wrong.get_or_insert(WrongBlock { offset: at, wrong });
        }
    }

    /// Reads all written blocks and checks them. These reads do not count in the measurement.
    ///
    /// # Errors
    /// If a read fails, or the job had to end before all blocks were read.
    fn read_back(&mut self, control: &Control<'_>) -> Result<()> {
        let measured = std::mem::take(&mut self.reads);
        let read = self.read_written(control);
        let checked = std::mem::replace(&mut self.reads, measured);
        let verification = &mut self.writes.verification;
        verification.verified_bytes += checked.verification.verified_bytes;
        verification.altered_bytes += checked.verification.altered_bytes;
        read?;
        let written = self.written.iter().filter(|count| **count & !BUSY > 0).count() as u64;
        match checked.operations {
            operations if operations < written && control.must_end() => Err(Error::incomplete(
                "the verification",
                format!("it was interrupted when {operations} of {written} written blocks were read back"),
            )),
            _ => Ok(()),
        }
    }

    /// Reads all written blocks once, and checks them.
    fn read_written(&mut self, control: &Control<'_>) -> Result<()> {
        let mut next = 0;
        loop {
            let now = Instant::now();
            self.collect(now)?;
            let stopped = control.must_end() || control.failed.load(Relaxed) || self.wrong.is_some();
            while !stopped && self.session.available() > 0 && !self.buffers.is_empty() {
                while self.written.get(next) == Some(&0) {
                    next += 1;
                }
                if next == self.written.len() {
                    break;
                }
                let (token, buffer) = self.buffers.pop().expect("checked before");
                self.submit(token, buffer, next as u64, false, now);
                next += 1;
            }
            if stopped || next == self.written.len() && self.session.in_flight() == 0 {
                return self.drain(control);
            }
            self.session.progress(true)?;
        }
    }
}
