//! Collects the results of one case of the bench over its repeats: times, rates and processor time.

use super::{MeasuredOperation, Point};
use crate::error::Result;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::completion::CompletionMode;
use std::time::{Duration, Instant};

/// The number of operations that are timed one by one, for the percentiles. This happens after the repeats.
pub(super) const SAMPLES: u64 = 500;
/// The fewest samples from which percentiles are computed.
pub(super) const FEWEST_SAMPLES: usize = 20;

fn process_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only to `time`, which is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The times and rates of one case of the bench: one value for each repeat, and the times of single
/// operations.
#[derive(Default)]
pub(super) struct Series {
    latency: Vec<f64>,
    bytes: Vec<f64>,
    operations: Vec<f64>,
    samples: Vec<u64>,
    thread_cpu: u64,
    process_cpu: u64,
    elapsed: u64,
    moved: u64,
}

impl Series {
    /// Adds a repeat: `count` operations of `size` bytes took `elapsed`.
    pub fn add(&mut self, count: u64, size: usize, elapsed: Duration) {
        let nanoseconds = elapsed.as_nanos().max(1) as f64;
        self.latency.push(nanoseconds / count as f64);
        self.bytes.push(count as f64 * size as f64 * 1e9 / nanoseconds);
        self.operations.push(count as f64 * 1e9 / nanoseconds);
        self.moved += count * size as u64;
    }

    /// Runs `body` and adds its processor time to that of the case. Returns the elapsed time.
    pub fn timed(&mut self, body: impl FnOnce() -> Result<()>) -> Result<Duration> {
        let (thread, process) = (thread_cpu_ns(), process_cpu_ns());
        let start = Instant::now();
        body()?;
        let elapsed = start.elapsed();
        self.thread_cpu += thread_cpu_ns() - thread;
        self.process_cpu += process_cpu_ns() - process;
        self.elapsed += elapsed.as_nanos() as u64;
        Ok(elapsed)
    }

    /// Runs `body`, which performs one operation of `size` bytes. Keeps the time of the operation for the
    /// percentiles.
    pub fn sample(&mut self, size: usize, body: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        body()?;
        self.samples.push(start.elapsed().as_nanos() as u64);
        self.moved += size as u64;
        Ok(())
    }

    /// Halves the sampled times. Use it if each sample is a round trip but the result is the time of one way.
    pub fn halve_samples(&mut self) {
        self.samples.iter_mut().for_each(|sample| *sample /= 2);
    }

    /// Returns the `Point` with the times and rates of this case. `verified` is the number of bytes that the
    /// receiver compared.
    pub fn point(
        self,
        operation: MeasuredOperation,
        path: &str,
        size: usize,
        mode: CompletionMode,
        verified: u64,
    ) -> Point {
        // Nanoseconds per byte equal seconds per 10^9 bytes, so no conversion is needed.
        let per_gigabyte = |cpu: u64| (self.moved > 0).then(|| cpu as f64 / self.moved as f64);
        Point {
            operation,
            path: path.into(),
            size_bytes: size as u64,
            completion: mode.to_string(),
            cpu_seconds_per_gigabyte: per_gigabyte(self.thread_cpu),
            mover_cpu_seconds_per_gigabyte: per_gigabyte(self.process_cpu.saturating_sub(self.thread_cpu)),
            latency_ns: self.latency,
            samples_ns: self.samples,
            bytes_per_second: self.bytes,
            operations_per_second: self.operations,
            busy: (self.elapsed > 0).then(|| self.thread_cpu as f64 / self.elapsed as f64),
            transferred_bytes: self.moved,
            verified_bytes: verified,
        }
    }
}
