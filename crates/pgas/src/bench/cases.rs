//! Bench cases in which no thread sleeps: puts (compared with a plain copy and with UCX's put), gets, atomic
//! fetch-and-add, doorbells, and a word that two PEs pass back and forth.

use super::measured::Measured;
use super::series::{SAMPLES, Series};
use super::{ANSWER, Bench, COUNTER, MeasuredOperation, NANOSECONDS, Point, SIGNAL, peer};
use crate::error::{Error, Lost, Result};
use crate::transport::Operation as Atomic;
use crate::transport::Reuse::AtReturn;
use crate::transport::windows::Windows;
use inlane_core::completion::{CompletionMode, Wait, WaitPlan};
use inlane_ntb::device::{Event, Ntb};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The doorbell bit that the bench rings.
const DOORBELL: u64 = 1 << 40;

impl<T: Measured> Bench<T> {
    pub(super) fn putting(&self, count: u64, size: usize) -> Result<()> {
        let at = self.inbox.as_ptr() as usize;
        for _ in 0..count {
            // SAFETY: the source is private memory of `size` bytes.
            unsafe { self.world.put_bytes(at, self.source.as_ptr(), size, self.other, AtReturn)? };
        }
        self.world.quiet()
    }

    fn copying(&self, count: u64, size: usize) -> Result<()> {
        let to = self.world.direct(self.inbox.as_ptr() as usize, self.other);
        let to = std::hint::black_box(to.unwrap_or(std::ptr::null_mut()));
        for _ in 0..if to.is_null() { 0 } else { count } {
            // SAFETY: the peer's copy of the array is mapped in this process. No other thread uses this copy
            // now.
            unsafe { std::ptr::copy_nonoverlapping(std::hint::black_box(self.source.as_ptr()), to, size) };
        }
        Ok(())
    }

    pub(super) fn trial(&self, mut body: impl FnMut(u64) -> Result<()>) -> Result<u64> {
        body(1)?;
        let (mut count, mut nanoseconds) = (1, 0.0);
        // Repeat with more operations until the time is long enough for the clock. The first runs also warm
        // caches and page tables.
        while nanoseconds < 200e3 && count < 1 << 20 {
            let start = Instant::now();
            body(count)?;
            nanoseconds = start.elapsed().as_nanos() as f64;
            count *= 4;
        }
        Ok(self.count(nanoseconds / (count / 4) as f64))
    }

    /// Measures the put, a plain copy and UCX's put in turn. Load from other programs then affects all three
    /// alike.
    pub(super) fn put_and_plain_copy(&self, size: usize) -> Result<Vec<Point>> {
        let (mut put, mut plain) = (Series::default(), Series::default());
        let mut theirs = Vec::new();
        let mut plain_verified = 0;
        // The plain copy is only possible if the window can be used as ordinary memory.
        let mapped = self.world.direct(self.inbox.as_ptr() as usize, self.other).is_some();
        if self.driver {
            let puts = self.trial(|count| self.putting(count, size))?;
            let copies = self.trial(|count| self.copying(count, size))?;
            for repeat in 0..self.plan.repeats {
                if mapped {
                    let elapsed = plain.timed(|| self.copying(copies, size))?;
                    plain.add(copies, size, elapsed);
                    if repeat + 1 == self.plan.repeats {
                        plain_verified = self.verify(size)?;
                    }
                }
                let elapsed = put.timed(|| self.putting(puts, size))?;
                put.add(puts, size, elapsed);
                if let Some(ucx) = self.plan.ucx.as_ref().filter(|ucx| repeat < ucx.repeats && size >= 8) {
                    theirs.push(peer::ucx_put(ucx, &self.pair, size as u64, self.plan.batch_us)?);
                    // Warm the caches up again, because UCX's processes have displaced this case's data.
                    self.copying(1, size)?;
                    self.putting(1, size)?;
                }
            }
        }
        if !self.driver && mapped {
            plain_verified = self.verify(size)?;
        }
        let verified = self.verify(size)?;
        let mut points =
            vec![put.point(MeasuredOperation::Put, &self.puts_by, size, CompletionMode::Poll, verified)];
        if mapped {
            points.push(plain.point(
                MeasuredOperation::PlainCopy,
                "memcpy",
                size,
                CompletionMode::Poll,
                plain_verified,
            ));
        }
        points.extend((!theirs.is_empty()).then(|| {
            let by_environment = self.plan.ucx.as_ref().is_some_and(|ucx| ucx.by_environment);
            peer::point(size as u64, theirs, by_environment)
        }));
        Ok(points)
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
                    // SAFETY: `into` is a private buffer of `size` bytes.
                    unsafe { self.world.get_bytes(into.as_mut_ptr(), from, size, self.other, AtReturn)? };
                }
                Ok(())
            };
            let count = self.trial(&mut getting)?;
            for _ in 0..self.plan.repeats {
                let elapsed = series.timed(|| getting(count))?;
                series.add(count, size, elapsed);
            }
            for _ in 0..count.min(SAMPLES) {
                series.sample(size, || getting(1))?;
            }
            self.compare(&into, size)?;
        }
        self.verify(size)?;
        Ok(vec![series.point(MeasuredOperation::Get, &self.gets_by, size, CompletionMode::Poll, size as u64)])
    }

    /// Measures atomic fetch-and-add operations on a word of PE 1.
    pub(super) fn fetch_add(&self) -> Result<Vec<Point>> {
        let mut series = Series::default();
        // Read the word before the barrier, because PE 0 starts to change it after the barrier.
        let before = self.world.load(self.words, COUNTER)?;
        self.world.barrier_all()?;
        let mut expected = 0;
        if self.driver {
            let mut adding = |count| {
                expected += count;
                for _ in 0..count {
                    self.world.fetch(Atomic::Add, self.words, COUNTER, 1, 0, self.other)?;
                }
                Ok(())
            };
            let count = self.trial(&mut adding)?;
            for _ in 0..self.plan.repeats {
                let elapsed = series.timed(|| adding(count))?;
                series.add(count, 8, elapsed);
            }
            for _ in 0..count.min(SAMPLES) {
                series.sample(8, || adding(1))?;
            }
        }
        let expected = self.agree(expected)?;
        let found = self.world.load(self.words, COUNTER)?.wrapping_sub(before);
        if !self.driver && found != expected {
            let what = format!("{expected} fetching additions");
            return Err(Error::invalid(what, format!("the word grew by {found}; do not trust this path")));
        }
        let verified = if self.driver { 8 * expected } else { 0 };
        Ok(vec![series.point(MeasuredOperation::FetchAdd, &self.gets_by, 8, CompletionMode::Poll, verified)])
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
            // Use the longer time of the two sides, because the slower side determines the rate of both.
            let slower = nanoseconds.max(self.world.load(self.words, NANOSECONDS)?);
            series.add(2 * count, size, Duration::from_nanos(slower));
            self.world.barrier_all()?;
        }
        let verified = self.verify(size)?;
        Ok(vec![series.point(
            MeasuredOperation::PutBothWays,
            &self.puts_by,
            size,
            CompletionMode::Poll,
            verified,
        )])
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the word is aligned and inside the array. Both this PE and the peer access it only as an
        // atomic.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(index)) }
    }

    pub(super) fn reset_words(&self) -> Result<()> {
        self.world.barrier_all()?;
        for index in [SIGNAL, ANSWER] {
            self.word(index).store(0, Ordering::Release);
        }
        self.world.barrier_all()
    }

    pub(super) fn one_way(&self) -> Result<Vec<Point>> {
        let (mut puts, mut floor) = (Series::default(), Series::default());
        let to = self.world.direct(self.words.as_ptr() as usize, self.other);
        let theirs = to.map(|to| to.cast::<u64>());
        let mut base = 0;
        self.reset_words()?;
        let put = |index: usize, value: u64| self.world.put(self.words, index, &[value], self.other);
        const WARM: u64 = 32;
        let start = Instant::now();
        self.passing(base, WARM, put)?;
        base += WARM;
        let count = self.agree(self.count(start.elapsed().as_nanos() as f64 / WARM as f64))?;
        for repeat in 0..=self.plan.repeats {
            let elapsed = puts.timed(|| self.passing(base, count, put))?;
            let raw = |index: usize, value: u64| {
                if let Some(theirs) = theirs {
                    // SAFETY: the peer's words are mapped here.
                    unsafe { AtomicU64::from_ptr(theirs.add(index)) }.store(value, Ordering::Release);
                }
                Ok(())
            };
            let bare = match theirs {
                Some(_) => Some(floor.timed(|| self.passing(base + count, count, raw))?),
                None => None,
            };
            base += 2 * count;
            // The first repeat only warms up, so its time is not counted.
            if repeat > 0 {
                puts.add(2 * count, 8, elapsed);
                if let Some(bare) = bare {
                    floor.add(2 * count, 8, bare);
                }
            }
        }
        for _ in 0..SAMPLES.min(count) {
            puts.sample(16, || self.passing(base, 1, put))?;
            base += 1;
        }
        self.world.barrier_all()?;
        puts.halve_samples();
        // Each of the two PEs has compared every word that it received. So the words of both PEs count as
        // verified.
        let words = |repeats: u64| 8 * 2 * count * repeats;
        let verified = words(u64::from(self.plan.repeats)) + 16 * SAMPLES.min(count);
        let mut points =
            vec![puts.point(MeasuredOperation::OneWay, &self.puts_by, 8, CompletionMode::Poll, verified)];
        if theirs.is_some() {
            let verified = words(u64::from(self.plan.repeats));
            points.push(floor.point(
                MeasuredOperation::CacheToCache,
                "plain stores",
                8,
                CompletionMode::Poll,
                verified,
            ));
        }
        Ok(points)
    }

    /// Sends the numbers `base + 1` to `base + count` to PE 1 and back, one after another. Both sides poll.
    fn passing(&self, base: u64, count: u64, put: impl Fn(usize, u64) -> Result<()>) -> Result<()> {
        let (mine, theirs) = if self.driver { (ANSWER, SIGNAL) } else { (SIGNAL, ANSWER) };
        let word = self.word(mine);
        for value in base + 1..=base + count {
            if self.driver {
                put(theirs, value)?;
            }
            let mut looks = 0u64;
            let mut seen = word.load(Ordering::Acquire);
            while seen < value {
                std::hint::spin_loop();
                if T::NEEDS_PROGRESS {
                    self.world.transport().progress();
                }
                looks += 1;
                if looks.is_multiple_of(1 << 24) {
                    // After a long wait, wait in the transport, which reports an error if the peer has
                    // ended.
                    self.await_word(mine, value, 8, CompletionMode::Poll)?;
                }
                seen = word.load(Ordering::Acquire);
            }
            if seen != value {
                return Err(Error::invalid(
                    format!("word {value} of a round trip"),
                    format!("{seen} arrived; do not trust this path"),
                ));
            }
            if !self.driver {
                put(theirs, value)?;
            }
        }
        Ok(())
    }
}

impl Bench<Windows> {
    pub(super) fn doorbell(&self, completion: CompletionMode) -> Result<Vec<Point>> {
        let ntb = self.world.transport().ntb().clone();
        let vector = if ntb.vector_bits(1) & DOORBELL != 0 { 1 } else { 0 };
        let round = || -> Result<()> {
            if self.driver {
                ntb.peer_doorbell_set(self.other, DOORBELL)?;
            }
            DoorbellWait { ntb: &*ntb, vector, mode: completion }.run()?;
            if !self.driver {
                ntb.peer_doorbell_set(self.other, DOORBELL)?;
            }
            Ok(())
        };
        // Wait at a barrier, so that no thread sleeps on the doorbell while the doorbell is measured.
        self.world.barrier_all()?;
        ntb.doorbell_clear(DOORBELL);
        if completion == CompletionMode::Poll {
            ntb.doorbell_mask_set(DOORBELL);
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
        for _ in 0..count.min(SAMPLES) {
            series.sample(0, round)?;
        }
        self.world.barrier_all()?;
        ntb.doorbell_mask_clear(DOORBELL);
        Ok(vec![series.point(MeasuredOperation::Doorbell, "doorbell", 0, completion, 0)])
    }
}

/// A wait until the peer has rung the bench's doorbell bit, `DOORBELL`.
struct DoorbellWait<'a> {
    ntb: &'a dyn Ntb,
    vector: u32,
    mode: CompletionMode,
}

impl Wait for DoorbellWait<'_> {
    type Error = Error;
    const FIRST_POLLS: u32 = 64;
    const POLLS: u32 = 64;

    fn poll(&mut self, _watched: bool) -> Result<bool> {
        let rung = self.ntb.doorbell_read() & DOORBELL != 0;
        if rung {
            self.ntb.doorbell_clear(DOORBELL);
        }
        Ok(rung)
    }

    fn plan(&mut self) -> WaitPlan {
        match self.mode {
            CompletionMode::Poll => WaitPlan::POLL,
            CompletionMode::Interrupt => WaitPlan::BLOCK,
            CompletionMode::Adaptive => WaitPlan { poll_for: Duration::from_micros(50), ..WaitPlan::BLOCK },
        }
    }

    fn check(&mut self, waited: Duration) -> Result<()> {
        if waited > Duration::from_secs(20) {
            let peer = 1 - self.ntb.port();
            return Err(Error::Timeout { peer, what: "a doorbell", waited, lost: Lost::default() });
        }
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        let event = self.ntb.event(Event::Doorbell(self.vector))?;
        let mut fds = [PollFd::new(&event, PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })), Ok(1)) {
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
        Ok(())
    }
}
