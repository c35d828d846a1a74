//! The measurements themselves.

use super::{ANSWER, Bench, NANOSECONDS, Operation, Point, SIGNAL};
use crate::device::{Event, Ntb};
use crate::error::Result;
use crate::transport::wait::{Manner, Watch};
use inlane_core::clock::thread_cpu_ns;
use inlane_core::completion::Completion;
use inlane_core::mover::Mover;
use inlane_core::region::Region;
use inlane_twin::DmaEngine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The doorbell bit that the bench rings.
const BELL: u64 = 1 << 40;

fn process_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the struct given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times and rates of one case, a value a repeat.
#[derive(Default)]
struct Series {
    latency: Vec<f64>,
    bytes: Vec<f64>,
    operations: Vec<f64>,
    thread_cpu: u64,
    process_cpu: u64,
    moved: u64,
}

impl Series {
    /// Adds `count` operations of `size` bytes that took `elapsed`.
    fn add(&mut self, count: u64, size: usize, elapsed: Duration) {
        let nanoseconds = elapsed.as_nanos().max(1) as f64;
        self.latency.push(nanoseconds / count as f64);
        self.bytes.push(count as f64 * size as f64 * 1e9 / nanoseconds);
        self.operations.push(count as f64 * 1e9 / nanoseconds);
        self.moved += count * size as u64;
    }

    /// Runs `body`, counting the processor time it takes.
    fn timed(&mut self, body: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let (thread, process) = (thread_cpu_ns(), process_cpu_ns());
        let start = Instant::now();
        body()?;
        let elapsed = start.elapsed();
        self.thread_cpu += thread_cpu_ns() - thread;
        self.process_cpu += process_cpu_ns() - process;
        Ok(elapsed)
    }

    fn point(
        self,
        operation: Operation,
        path: &str,
        size: usize,
        completion: Completion,
        verified: u64,
    ) -> Point {
        // Nanoseconds a byte are seconds for each 10^9 bytes.
        let per_gigabyte = |cpu: u64| (self.moved > 0).then(|| cpu as f64 / self.moved as f64);
        Point {
            operation,
            path: path.into(),
            size_bytes: size as u64,
            completion: completion.to_string(),
            cpu_seconds_per_gigabyte: per_gigabyte(self.thread_cpu),
            mover_cpu_seconds_per_gigabyte: per_gigabyte(self.process_cpu.saturating_sub(self.thread_cpu)),
            latency_ns: self.latency,
            bytes_per_second: self.bytes,
            operations_per_second: self.operations,
            verified_bytes: verified,
        }
    }
}

impl Bench {
    fn putting(&self, count: u64, size: usize) -> Result<()> {
        let at = self.inbox.as_ptr() as usize;
        for _ in 0..count {
            // SAFETY: the source has `size` bytes, and is private memory.
            unsafe { self.world.put_bytes(at, self.source.as_ptr(), size, self.other)? };
        }
        self.world.quiet()
    }

    fn copying(&self, count: u64, size: usize) -> Result<()> {
        let to = self.world.direct(self.inbox.as_ptr() as usize, self.other);
        let to = std::hint::black_box(to.unwrap_or(std::ptr::null_mut()));
        for _ in 0..if to.is_null() { 0 } else { count } {
            // SAFETY: the peer's copy of the array, mapped here; nobody else touches it now.
            unsafe { std::ptr::copy_nonoverlapping(std::hint::black_box(self.source.as_ptr()), to, size) };
        }
        Ok(())
    }

    fn trial(&self, mut body: impl FnMut(u64) -> Result<()>) -> Result<u64> {
        body(1)?;
        let (mut count, mut nanoseconds) = (1, 0.0);
        // Enough to see it in the clock; also warms caches and page tables.
        while nanoseconds < 200e3 && count < 1 << 20 {
            let start = Instant::now();
            body(count)?;
            nanoseconds = start.elapsed().as_nanos() as f64;
            count *= 4;
        }
        Ok(self.count(nanoseconds / (count / 4) as f64))
    }

    pub(super) fn put_and_plain_copy(&self, size: usize) -> Result<Vec<Point>> {
        let (mut put, mut plain) = (Series::default(), Series::default());
        if self.driver {
            let puts = self.trial(|count| self.putting(count, size))?;
            let copies = self.trial(|count| self.copying(count, size))?;
            for _ in 0..self.plan.repeats {
                let elapsed = plain.timed(|| self.copying(copies, size))?;
                plain.add(copies, size, elapsed);
                let elapsed = put.timed(|| self.putting(puts, size))?;
                put.add(puts, size, elapsed);
            }
        }
        let verified = self.verify(size)?;
        Ok(vec![
            put.point(Operation::Put, "stores", size, Completion::Poll, verified),
            plain.point(Operation::PlainCopy, "memcpy", size, Completion::Poll, verified),
        ])
    }

    pub(super) fn get(&self, size: usize) -> Result<Vec<Point>> {
        let mut series = Series::default();
        let mut into = vec![0u8; size];
        if !self.driver {
            self.world.put(self.inbox, 0, &self.source[..size], self.world.me())?;
        }
        self.world.barrier_all()?;
        if self.driver {
            let from = self.inbox.as_ptr() as usize;
            let mut getting = |count| {
                for _ in 0..count {
                    // SAFETY: a private buffer of `size` bytes.
                    unsafe { self.world.get_bytes(into.as_mut_ptr(), from, size, self.other)? };
                }
                Ok(())
            };
            let count = self.trial(&mut getting)?;
            for _ in 0..self.plan.repeats {
                let elapsed = series.timed(|| getting(count))?;
                series.add(count, size, elapsed);
            }
            if into != self.source[..size] {
                return Err(crate::error::Error::invalid(
                    format!("a get of {size} bytes"),
                    "they arrived altered",
                ));
            }
        }
        self.verify(size)?;
        Ok(vec![series.point(Operation::Get, "loads", size, Completion::Poll, size as u64)])
    }

    pub(super) fn both_ways(&self, size: usize) -> Result<Vec<Point>> {
        let mut series = Series::default();
        let trial = if self.driver { self.trial(|count| self.putting(count, size))? } else { 0 };
        let count = self.agree(trial)?;
        for _ in 0..self.plan.repeats {
            self.world.barrier_all()?;
            let elapsed = series.timed(|| self.putting(count, size))?;
            let nanoseconds = elapsed.as_nanos() as u64;
            self.world.put(self.words, NANOSECONDS, &[nanoseconds], self.other)?;
            self.world.barrier_all()?;
            // The slower one bounds both.
            let slower = nanoseconds.max(self.world.load(self.words, NANOSECONDS)?);
            series.add(2 * count, size, Duration::from_nanos(slower));
            self.world.barrier_all()?;
        }
        let verified = self.verify(size)?;
        Ok(vec![series.point(Operation::PutBothWays, "stores", size, Completion::Poll, verified)])
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside the array of 128 words, aligned; shared with the peer as an atomic.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(index)) }
    }

    fn await_word(&self, index: usize, value: u64, size: usize, completion: Completion) -> Result<()> {
        let manner =
            Manner { completion, bytes: size as u64, timeout: Some(Duration::from_secs(30)), what: "a put" };
        let word = self.word(index);
        self.world
            .transport()
            .wait_in(manner, Watch::Peer(self.other), || word.load(Ordering::Acquire) >= value)
    }

    /// `count` puts, each answered before the next; words count up from `base`.
    fn ping_pong(&self, base: u64, count: u64, size: usize, completion: Completion) -> Result<()> {
        let at = self.inbox.as_ptr() as usize;
        for value in base + 1..=base + count {
            if self.driver {
                // SAFETY: the source has `size` bytes.
                unsafe { self.world.put_bytes(at, self.source.as_ptr(), size, self.other)? };
                self.world.fence()?;
                self.world.put(self.words, SIGNAL, &[value], self.other)?;
                self.await_word(ANSWER, value, size, completion)?;
            } else {
                self.await_word(SIGNAL, value, size, completion)?;
                self.world.put(self.words, ANSWER, &[value], self.other)?;
            }
        }
        Ok(())
    }

    fn reset_words(&self) -> Result<()> {
        self.world.barrier_all()?;
        for index in [SIGNAL, ANSWER] {
            self.word(index).store(0, Ordering::Release);
        }
        self.world.barrier_all()
    }

    pub(super) fn delivered(&self, size: usize, completion: Completion) -> Result<Vec<Point>> {
        self.reset_words()?;
        const WARM: u64 = 8;
        self.ping_pong(0, WARM, size, completion)?;
        let start = Instant::now();
        self.ping_pong(WARM, WARM, size, completion)?;
        let count = self.agree(self.count(start.elapsed().as_nanos() as f64 / WARM as f64))?;
        let mut series = Series::default();
        let mut base = 2 * WARM;
        for _ in 0..self.plan.repeats {
            let elapsed = series.timed(|| self.ping_pong(base, count, size, completion))?;
            series.add(count, size, elapsed);
            base += count;
        }
        let verified = self.verify(size)?;
        Ok(vec![series.point(Operation::PutDelivered, "stores", size, completion, verified)])
    }

    pub(super) fn one_way(&self) -> Result<Vec<Point>> {
        let (mut puts, mut floor) = (Series::default(), Series::default());
        let to = self.world.direct(self.words.as_ptr() as usize, self.other);
        let theirs = to.map(|to| to.cast::<u64>());
        let mut base = 0;
        self.reset_words()?;
        let count = self.agree(self.count(300.0))?;
        for repeat in 0..=self.plan.repeats {
            let put = |index: usize, value: u64| self.world.put(self.words, index, &[value], self.other);
            let elapsed = puts.timed(|| self.passing(base, count, put))?;
            let raw = |index: usize, value: u64| {
                if let Some(theirs) = theirs {
                    // SAFETY: the peer's words, mapped here.
                    unsafe { AtomicU64::from_ptr(theirs.add(index)) }.store(value, Ordering::Release);
                }
                Ok(())
            };
            let bare = match theirs {
                Some(_) => Some(floor.timed(|| self.passing(base + count, count, raw))?),
                None => None,
            };
            base += 2 * count;
            // The first of each warms up.
            if repeat > 0 {
                puts.add(2 * count, 8, elapsed);
                if let Some(bare) = bare {
                    floor.add(2 * count, 8, bare);
                }
            }
        }
        self.world.barrier_all()?;
        let verified = base;
        Ok(vec![
            puts.point(Operation::OneWay, "stores", 8, Completion::Poll, verified),
            floor.point(Operation::CacheToCache, "plain stores", 8, Completion::Poll, verified),
        ])
    }

    /// Passes a growing word there and back, polling without anything else in the loop.
    fn passing(&self, base: u64, count: u64, put: impl Fn(usize, u64) -> Result<()>) -> Result<()> {
        let (mine, theirs) = if self.driver { (ANSWER, SIGNAL) } else { (SIGNAL, ANSWER) };
        let word = self.word(mine);
        for value in base + 1..=base + count {
            if self.driver {
                put(theirs, value)?;
            }
            let mut looks = 0u64;
            while word.load(Ordering::Acquire) < value {
                std::hint::spin_loop();
                looks += 1;
                if looks.is_multiple_of(1 << 24) {
                    self.world.wait(|| true)?;
                    self.await_word(mine, value, 8, Completion::Poll)?;
                }
            }
            if !self.driver {
                put(theirs, value)?;
            }
        }
        Ok(())
    }

    pub(super) fn doorbell(&self, completion: Completion) -> Result<Vec<Point>> {
        let ntb = self.world.transport().ntb().clone();
        let vector = if ntb.vector_bits(1) & BELL != 0 { 1 } else { 0 };
        let round = || -> Result<()> {
            if self.driver {
                ntb.peer_doorbell_set(self.other, BELL)?;
            }
            await_bell(&*ntb, vector, completion)?;
            if !self.driver {
                ntb.peer_doorbell_set(self.other, BELL)?;
            }
            Ok(())
        };
        // Nobody sleeps on the doorbell while it is measured.
        self.world.barrier_all()?;
        ntb.doorbell_clear(BELL);
        if completion == Completion::Poll {
            ntb.doorbell_mask_set(BELL);
        }
        self.world.barrier_all()?;
        let start = Instant::now();
        for _ in 0..8 {
            round()?;
        }
        let count = self.agree(self.count(start.elapsed().as_nanos() as f64 / 8.0))?;
        let mut series = Series::default();
        for _ in 0..self.plan.repeats {
            let elapsed = series.timed(|| (0..count).try_for_each(|_| round()))?;
            series.add(count, 0, elapsed);
        }
        self.world.barrier_all()?;
        ntb.doorbell_mask_clear(BELL);
        Ok(vec![series.point(Operation::Doorbell, "doorbell", 0, completion, 0)])
    }

    pub(super) fn by_mover(&self, engine: &mut DmaEngine, completions: &[Completion]) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for &size in self.plan.sizes.iter().filter(|size| **size >= 512) {
            let size = size as usize;
            for &completion in completions {
                let mut series = Series::default();
                if self.driver {
                    self.moving(engine, size, completion, &mut series)?;
                }
                let verified = self.verify(size)?;
                points.push(series.point(Operation::PutByMover, "dma twin", size, completion, verified));
            }
        }
        Ok(points)
    }

    fn moving(
        &self,
        engine: &mut DmaEngine,
        size: usize,
        completion: Completion,
        series: &mut Series,
    ) -> Result<()> {
        let transport = self.world.transport();
        let at = transport.layout().symmetric() + self.world.offset_of(self.inbox.as_ptr() as usize, size)?;
        let destination = transport.window(self.other)?.region().slice(at, size)?;
        let source = Region::host(size)?;
        // SAFETY: a fresh region of `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.source.as_ptr(), source.as_ptr(), size) };
        let mut moving = |count| {
            for _ in 0..count {
                let ticket = engine.submit(&source, &destination)?;
                engine.wait(ticket, completion)?;
            }
            Ok(())
        };
        let count = self.trial(&mut moving)?;
        for _ in 0..self.plan.repeats {
            let elapsed = series.timed(|| moving(count))?;
            series.add(count, size, elapsed);
        }
        Ok(())
    }
}

/// Waits for the bench's doorbell and clears it.
fn await_bell(ntb: &dyn Ntb, vector: u32, completion: Completion) -> Result<()> {
    let start = Instant::now();
    let mut looks = 0u32;
    loop {
        if ntb.doorbell_read() & BELL != 0 {
            ntb.doorbell_clear(BELL);
            return Ok(());
        }
        looks += 1;
        std::hint::spin_loop();
        let spin = match completion {
            Completion::Poll => true,
            Completion::Adaptive => !looks.is_multiple_of(64) || start.elapsed() < Duration::from_micros(50),
            Completion::Interrupt => false,
        };
        if !spin {
            let event = ntb.event(Event::Doorbell(vector))?;
            let mut fds = [PollFd::new(&event, PollFlags::IN)];
            if matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })), Ok(1)) {
                let _ = rustix::io::read(event, &mut [0u8; 8]);
            }
        }
        if looks.is_multiple_of(1 << 20) && start.elapsed() > Duration::from_secs(20) {
            return Err(crate::error::Error::Timeout { peer: 1, what: "a doorbell", seconds: 20 });
        }
    }
}
