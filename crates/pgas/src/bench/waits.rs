//! Measurements that end by waiting: what is delivered, exchanged, streamed, pulled or moved, each for every way of waiting.
//!
//! The ways take turns within a repeat, so that what else the machine does meets all of them.

use super::series::{SAMPLES, Series};
use super::{ANSWER, Bench, DONE, Operation, Point, SIGNAL};
use crate::error::Result;
use crate::transport::wait::{FailureScope, WaitOptions};
use crate::transport::wakeup::Interest;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::Mover;
use inlane_core::region::Region;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Every way of waiting.
pub(super) const WAYS: [CompletionMode; 3] =
    [CompletionMode::Poll, CompletionMode::Adaptive, CompletionMode::Interrupt];
/// Messages on their way before one is answered.
const TRAIN: u64 = 64;
/// How long an idle wait is watched.
const IDLE: Duration = Duration::from_millis(250);

impl Bench {
    /// Waits until a word of this side has come to `value`, which the peer's put of `size` bytes is followed by.
    pub(super) fn await_word(
        &self,
        index: usize,
        value: u64,
        size: usize,
        completion: CompletionMode,
    ) -> Result<()> {
        let word = self.word(index);
        let offset = self.world.offset_of(word.as_ptr() as usize, 8)?;
        let options = WaitOptions {
            mode: completion,
            bytes: size as u64,
            interest: Interest::Word(offset),
            timeout: Some(Duration::from_secs(30)),
            what: "a put",
        };
        self.world
            .transport()
            .wait_with(options, FailureScope::Peer(self.other), || word.load(Ordering::Acquire) >= value)
    }

    /// Puts `size` bytes and, behind them, `value` into a word of the peer.
    fn put_and_say(&self, size: usize, index: usize, value: u64) -> Result<()> {
        // SAFETY: the source has `size` bytes.
        unsafe {
            self.world.put_bytes(self.inbox.as_ptr() as usize, self.source.as_ptr(), size, self.other)?
        };
        self.world.fence()?;
        self.world.put(self.words, index, &[value], self.other)
    }

    /// Runs `body`, which both PEs go through, for every way of waiting in turn; it does values `base + 1` to `base + count`.
    fn in_turn(
        &self,
        operation: Operation,
        path: &str,
        size: usize,
        each: u64,
        body: impl Fn(CompletionMode, u64, u64) -> Result<()>,
    ) -> Result<Vec<Point>> {
        const WARM: u64 = 8;
        self.reset_words()?;
        let mut base = 0;
        let mut counts = [0; WAYS.len()];
        for (count, way) in counts.iter_mut().zip(WAYS) {
            body(way, base, WARM)?;
            let start = Instant::now();
            body(way, base + WARM, WARM)?;
            base += 2 * WARM;
            *count = self.agree(self.count(start.elapsed().as_nanos() as f64 / WARM as f64))?;
        }
        let mut series: [Series; WAYS.len()] = Default::default();
        for _ in 0..self.plan.repeats {
            for ((series, way), count) in series.iter_mut().zip(WAYS).zip(counts) {
                // Together, or who is ahead waits for who is behind and times that.
                self.world.barrier_all()?;
                let elapsed = series.timed(|| body(way, base, count))?;
                series.add(count * each, size, elapsed);
                base += count;
            }
        }
        for ((series, way), count) in series.iter_mut().zip(WAYS).zip(counts) {
            self.world.barrier_all()?;
            for _ in 0..count.min(SAMPLES) {
                series.sample(size * each as usize, || body(way, base, 1))?;
                base += 1;
            }
        }
        let verified = self.verify(size)?;
        let point = |(series, way): (Series, _)| series.point(operation, path, size, way, verified);
        Ok(series.into_iter().zip(WAYS).map(point).collect())
    }

    /// One put at a time, each answered before the next.
    pub(super) fn delivered(&self, size: usize) -> Result<Vec<Point>> {
        self.in_turn(Operation::PutDelivered, "stores", size, 1, |way, base, count| {
            for value in base + 1..=base + count {
                if self.driver {
                    self.put_and_say(size, SIGNAL, value)?;
                    self.await_word(ANSWER, value, size, way)?;
                } else {
                    self.await_word(SIGNAL, value, size, way)?;
                    self.world.put(self.words, ANSWER, &[value], self.other)?;
                }
            }
            Ok(())
        })
    }

    /// Both put, then wait for the other's.
    pub(super) fn exchanged(&self, size: usize) -> Result<Vec<Point>> {
        self.in_turn(Operation::Exchange, "stores", size, 2, |way, base, count| {
            for value in base + 1..=base + count {
                self.put_and_say(size, SIGNAL, value)?;
                self.await_word(SIGNAL, value, size, way)?;
            }
            Ok(())
        })
    }

    /// Trains of puts, each with a word behind it; the last of a train is answered.
    pub(super) fn messages(&self, size: usize) -> Result<Vec<Point>> {
        self.in_turn(Operation::Messages, "stores", size, TRAIN, |way, base, count| {
            for train in base + 1..=base + count {
                let last = train * TRAIN;
                if self.driver {
                    (last - TRAIN + 1..=last).try_for_each(|value| self.put_and_say(size, SIGNAL, value))?;
                    self.await_word(ANSWER, train, size, way)?;
                } else {
                    self.await_word(SIGNAL, last, size, way)?;
                    self.world.put(self.words, ANSWER, &[train], self.other)?;
                }
            }
            Ok(())
        })
    }

    /// Gets that ask the owner to push, who waits for the end in the same way and serves meanwhile.
    pub(super) fn pushed(&self, size: usize) -> Result<Vec<Point>> {
        let inbox = self.inbox.as_ptr() as usize;
        let offset = self.world.offset_of(inbox, size)?;
        if !self.driver {
            self.world.put(self.inbox, 0, &self.source[..size], self.world.me())?;
        }
        let mut into = vec![0u8; size];
        let into_address = into.as_mut_ptr() as usize;
        let points = self.in_turn(Operation::GetPushed, "owner's stores", size, 1, |way, base, count| {
            if !self.driver {
                return self.await_word(DONE, base + count, 0, way);
            }
            for _ in 0..count {
                // SAFETY: a private buffer of `size` bytes, which outlives this.
                unsafe {
                    let transport = self.world.transport();
                    transport.get_pushed(self.other, offset, into_address as *mut u8, size, Some(way))?;
                }
            }
            self.world.put(self.words, DONE, &[base + count], self.other)
        })?;
        self.compare(&into, size)?;
        Ok(points)
    }

    /// One transfer at a time by PE 0's mover.
    pub(super) fn by_mover(&self, mover: &mut Option<Moving>, size: usize) -> Result<Vec<Point>> {
        let mut series: [Series; WAYS.len()] = Default::default();
        if let Some(mover) = mover {
            let source = mover.source.slice(0, size)?;
            let destination = mover.destination.slice(0, size)?;
            let mut moving = |way, count| -> Result<()> {
                for _ in 0..count {
                    let ticket = mover.mover.submit(&source, &destination)?;
                    mover.mover.wait(ticket, way)?;
                }
                Ok(())
            };
            // Adaptive waits learn their time and lead in some tens of runs.
            for way in WAYS {
                moving(way, if size <= 4 << 20 { 40 } else { 12 })?;
            }
            let mut counts = [0; WAYS.len()];
            for (count, way) in counts.iter_mut().zip(WAYS) {
                *count = self.trial(|count| moving(way, count))?;
            }
            for _ in 0..self.plan.repeats {
                for ((series, way), count) in series.iter_mut().zip(WAYS).zip(counts) {
                    let elapsed = series.timed(|| moving(way, count))?;
                    series.add(count, size, elapsed);
                }
            }
            for ((series, way), count) in series.iter_mut().zip(WAYS).zip(counts) {
                for _ in 0..count.min(SAMPLES) {
                    series.sample(size, || moving(way, 1))?;
                }
            }
        }
        let verified = self.verify(size)?;
        let name = mover.as_ref().map_or_else(String::new, |mover| mover.mover.name());
        let point =
            |(series, way): (Series, _)| series.point(Operation::PutByMover, &name, size, way, verified);
        Ok(series.into_iter().zip(WAYS).map(point).collect())
    }

    /// What a wait costs while nothing arrives: PE 1 waits, PE 0 sleeps, then ends it.
    pub(super) fn idle(&self) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        self.reset_words()?;
        for (round, way) in (1u64..).zip(WAYS) {
            self.world.barrier_all()?;
            if self.driver {
                std::thread::sleep(IDLE);
                self.world.put(self.words, SIGNAL, &[round], self.other)?;
            } else {
                let (start, cpu) = (Instant::now(), thread_cpu_ns());
                self.await_word(SIGNAL, round, 0, way)?;
                let share = (thread_cpu_ns() - cpu) * 1_000_000 / start.elapsed().as_nanos().max(1) as u64;
                self.world.put(self.words, ANSWER, &[share + 1], 0)?;
            }
            self.world.barrier_all()?;
            if self.driver {
                let share = (self.word(ANSWER).load(Ordering::Acquire) - 1) as f64 / 1e6;
                let point = Series::default().point(Operation::Idle, "no transfer", 0, way, 0);
                points.push(Point { busy: Some(share), ..point });
            }
        }
        Ok(points)
    }
}

/// A mover, and memory that it reaches: as many bytes as the largest size, holding what is sent; and the peer's inbox.
pub(super) struct Moving {
    pub mover: Box<dyn Mover>,
    pub source: Region,
    pub destination: Region,
}
