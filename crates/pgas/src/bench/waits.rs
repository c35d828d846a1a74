//! Cases that end with a wait: delivered puts, exchanges, series of messages, pushed gets, and puts by a
//! mover. Each case is measured in all completion modes.
//!
//! The modes take turns within a repeat. Other load on the machine then affects all modes equally.

use super::measured::{MODES, Measured};
use super::series::{SAMPLES, Series};
use super::{ANSWER, Bench, DONE, MeasuredOperation, Point, SIGNAL};
use crate::error::Result;
use crate::transport::Reuse::AtReturn;
use crate::transport::windows::Windows;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::Mover;
use inlane_core::region::Region;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of messages in a series. The peer answers only the last one.
const SERIES: u64 = 64;
/// How long PE 1 waits while nothing arrives, to measure the processor time of waiting.
const IDLE: Duration = Duration::from_millis(250);

impl<T: Measured> Bench<T> {
    /// Blocks until this PE's word `index` is at least `value`. The peer first puts `size` bytes and then
    /// stores this word. Returns an error after 30 s.
    pub(super) fn await_word(
        &self,
        index: usize,
        value: u64,
        size: usize,
        completion: CompletionMode,
    ) -> Result<()> {
        let word = self.word(index);
        let offset = self.world.offset_of(word.as_ptr() as usize, 8)?;
        let done = || word.load(Ordering::Acquire) >= value;
        self.world.transport().wait_in_mode(completion, self.other, offset, size as u64, done)
    }

    /// Puts `size` bytes at the peer, then puts `value` into the peer's word `index`.
    fn put_and_signal(&self, size: usize, index: usize, value: u64) -> Result<()> {
        // SAFETY: the source has `size` bytes.
        unsafe {
            self.world.put_bytes(
                self.inbox.as_ptr() as usize,
                self.source.as_ptr(),
                size,
                self.other,
                AtReturn,
            )?
        };
        self.world.fence()?;
        self.world.put(self.words, index, &[value], self.other)
    }

    /// Measures a case at both PEs, in all completion modes in turn. `body(mode, base, count)` must run
    /// `count` operations. It signals the end of operation i, counted from 1, with the value `base + i`. Each
    /// operation consists of `each` transfers of `size` bytes.
    fn in_turn(
        &self,
        operation: MeasuredOperation,
        path: &str,
        size: usize,
        each: u64,
        body: impl Fn(CompletionMode, u64, u64) -> Result<()>,
    ) -> Result<Vec<Point>> {
        const WARM: u64 = 8;
        self.reset_words()?;
        let mut base = 0;
        let mut counts = [0; MODES.len()];
        for (count, mode) in counts.iter_mut().zip(MODES) {
            body(mode, base, WARM)?;
            let start = Instant::now();
            body(mode, base + WARM, WARM)?;
            base += 2 * WARM;
            *count = self.agree(self.count(start.elapsed().as_nanos() as f64 / WARM as f64))?;
        }
        let mut series: [Series; MODES.len()] = Default::default();
        for _ in 0..self.plan.repeats {
            for ((series, mode), count) in series.iter_mut().zip(MODES).zip(counts) {
                // Let both sides begin together. Otherwise the faster side's time would include a wait for
                // the slower side.
                self.world.barrier_all()?;
                let elapsed = series.timed(|| body(mode, base, count))?;
                series.add(count * each, size, elapsed);
                base += count;
            }
        }
        for ((series, mode), count) in series.iter_mut().zip(MODES).zip(counts) {
            self.world.barrier_all()?;
            for _ in 0..count.min(SAMPLES) {
                series.sample(size * each as usize, || body(mode, base, 1))?;
                base += 1;
            }
        }
        let verified = self.verify(size)?;
        let point = |(series, mode): (Series, _)| series.point(operation, path, size, mode, verified);
        Ok(series.into_iter().zip(MODES).map(point).collect())
    }

    /// Measures delivered puts, one at a time: PE 0 puts, and waits until PE 1 has seen the put and answered.
    pub(super) fn delivered(&self, size: usize) -> Result<Vec<Point>> {
        self.in_turn(MeasuredOperation::PutDelivered, &self.puts_by, size, 1, |mode, base, count| {
            for value in base + 1..=base + count {
                if self.driver {
                    self.put_and_signal(size, SIGNAL, value)?;
                    self.await_word(ANSWER, value, size, mode)?;
                } else {
                    self.await_word(SIGNAL, value, size, mode)?;
                    self.world.put(self.words, ANSWER, &[value], self.other)?;
                }
            }
            Ok(())
        })
    }

    /// Measures exchanges: both PEs put, then each waits for the other PE's put.
    pub(super) fn exchanged(&self, size: usize) -> Result<Vec<Point>> {
        self.in_turn(MeasuredOperation::Exchange, &self.puts_by, size, 2, |mode, base, count| {
            for value in base + 1..=base + count {
                self.put_and_signal(size, SIGNAL, value)?;
                self.await_word(SIGNAL, value, size, mode)?;
            }
            Ok(())
        })
    }

    /// Measures the message rate. PE 0 sends series of messages. A message is a put, and then the put of a
    /// word. PE 1 answers only the last message of a series.
    pub(super) fn messages(&self, size: usize) -> Result<Vec<Point>> {
        self.in_turn(MeasuredOperation::Messages, &self.puts_by, size, SERIES, |mode, base, count| {
            for series_number in base + 1..=base + count {
                let last = series_number * SERIES;
                if self.driver {
                    (last - SERIES + 1..=last)
                        .try_for_each(|value| self.put_and_signal(size, SIGNAL, value))?;
                    self.await_word(ANSWER, series_number, size, mode)?;
                } else {
                    self.await_word(SIGNAL, last, size, mode)?;
                    self.world.put(self.words, ANSWER, &[series_number], self.other)?;
                }
            }
            Ok(())
        })
    }

    /// Measures the processor time that a wait takes while nothing arrives. PE 1 waits, while PE 0 sleeps for
    /// a fixed time and then ends the wait.
    pub(super) fn idle(&self) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        self.reset_words()?;
        for (round, mode) in (1u64..).zip(MODES) {
            self.world.barrier_all()?;
            if self.driver {
                std::thread::sleep(IDLE);
                self.world.put(self.words, SIGNAL, &[round], self.other)?;
            } else {
                let (start, cpu) = (Instant::now(), thread_cpu_ns());
                self.await_word(SIGNAL, round, 0, mode)?;
                let share = (thread_cpu_ns() - cpu) * 1_000_000 / start.elapsed().as_nanos().max(1) as u64;
                self.world.put(self.words, ANSWER, &[share + 1], 0)?;
            }
            self.world.barrier_all()?;
            if self.driver {
                let share = (self.word(ANSWER).load(Ordering::Acquire) - 1) as f64 / 1e6;
                let point = Series::default().point(MeasuredOperation::Idle, "no transfer", 0, mode, 0);
                points.push(Point { busy: Some(share), ..point });
            }
        }
        Ok(points)
    }
}

impl Bench<Windows> {
    /// Measures pushed gets. In a pushed get, PE 0 asks PE 1 to put bytes of PE 1's memory into PE 0's
    /// memory. PE 1 serves these gets while it waits for the end of the batch, in the same completion mode.
    pub(super) fn pushed(&self, size: usize) -> Result<Vec<Point>> {
        let inbox = self.inbox.as_ptr() as usize;
        let offset = self.world.offset_of(inbox, size)?;
        let fill = || match self.driver {
            true => Ok(()),
            false => self.world.put(self.inbox, 0, &self.source[..size], self.world.me()),
        };
        fill()?;
        let mut into = vec![0u8; size];
        let into_address = into.as_mut_ptr() as usize;
        let get = |mode| {
            // SAFETY: the destination is a private buffer of `size` bytes. It outlives the call.
            unsafe {
                let transport = self.world.transport();
                transport.get_pushed(self.other, offset, into_address as *mut u8, size, Some(mode))
            }
        };
        let ended = Cell::new(0);
        let mut points =
            self.in_turn(MeasuredOperation::GetPushed, "owner's stores", size, 1, |mode, base, count| {
                ended.set(base + count);
                if !self.driver {
                    return self.await_word(DONE, base + count, 0, mode);
                }
                (0..count).try_for_each(|_| get(mode))?;
                self.world.put(self.words, DONE, &[base + count], self.other)
            })?;
        self.compare(&into, size)?;
        // `in_turn` ends with a check that overwrites the inbox, so fill the inbox again.
        fill()?;
        // Take the samples from one long batch of gets, and drop those that `in_turn` took one at a time. There, the
        // other PE had just begun to wait at each get. So it still polled, even in modes that sleep after a while.
        for (point, mode) in points.iter_mut().zip(MODES) {
            ended.set(ended.get() + 1);
            self.world.barrier_all()?;
            if !self.driver {
                self.await_word(DONE, ended.get(), 0, mode)?;
                continue;
            }
            for sample in &mut point.samples_ns {
                let start = Instant::now();
                get(mode)?;
                *sample = start.elapsed().as_nanos() as u64;
            }
            point.transferred_bytes += (point.samples_ns.len() * size) as u64;
            self.world.put(self.words, DONE, &[ended.get()], self.other)?;
        }
        self.compare(&into, size)?;
        Ok(points)
    }

    /// Measures transfers by PE 0's mover, one at a time.
    pub(super) fn by_mover(&self, mover: &mut Option<Moving>, size: usize) -> Result<Vec<Point>> {
        let mut series: [Series; MODES.len()] = Default::default();
        if let Some(mover) = mover {
            let source = mover.source.slice(0, size)?;
            let destination = mover.destination.slice(0, size)?;
            let mut moving = |mode, count| -> Result<()> {
                for _ in 0..count {
                    let ticket = mover.mover.submit(&source, &destination)?;
                    mover.mover.wait(ticket, mode)?;
                }
                Ok(())
            };
            // First run some tens of operations. An adaptive wait predicts the duration of an operation from
            // earlier ones.
            for mode in MODES {
                moving(mode, if size <= 4 << 20 { 40 } else { 12 })?;
            }
            let mut counts = [0; MODES.len()];
            for (count, mode) in counts.iter_mut().zip(MODES) {
                *count = self.trial(|count| moving(mode, count))?;
            }
            for _ in 0..self.plan.repeats {
                for ((series, mode), count) in series.iter_mut().zip(MODES).zip(counts) {
                    let elapsed = series.timed(|| moving(mode, count))?;
                    series.add(count, size, elapsed);
                }
            }
            for ((series, mode), count) in series.iter_mut().zip(MODES).zip(counts) {
                for _ in 0..count.min(SAMPLES) {
                    series.sample(size, || moving(mode, 1))?;
                }
            }
        }
        let verified = self.verify(size)?;
        let name = mover.as_ref().map_or_else(String::new, |mover| mover.mover.name());
        let point = |(series, mode): (Series, _)| {
            series.point(MeasuredOperation::PutByMover, &name, size, mode, verified)
        };
        Ok(series.into_iter().zip(MODES).map(point).collect())
    }
}

/// A mover, the source that holds the pattern, and the destination in the peer's inbox. Source and
/// destination are as long as the largest size.
pub(super) struct Moving {
    pub mover: Box<dyn Mover>,
    pub source: Region,
    pub destination: Region,
}
