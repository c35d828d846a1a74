//! Series: workloads that differ in block size and depth, each measured several times in turns.

use super::result::{IoResult, merge};
use super::{Bench, BenchCounts, Workload, measure};
use crate::Error;
use crate::initiator::SessionOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A workload for each combination of block size and depth.
#[derive(Clone, Debug)]
pub struct Series {
    /// The workload, whose block size and depth are replaced by those of each combination.
    pub workload: Workload,
    /// The sizes of operations in bytes.
    pub block_bytes: Vec<u64>,
    /// The numbers of operations that each job keeps in flight.
    pub depths: Vec<u32>,
    /// How often each combination is measured, at least once.
    pub repeats: u32,
    /// How long each run takes. `None`: once through the range.
    pub duration: Option<Duration>,
}

/// What a series reports while it runs.
pub enum SeriesEvent<'a> {
    /// A run goes on: its workload, the elapsed time, and a function that counts.
    Running(&'a Workload, Duration, &'a dyn Fn() -> BenchCounts),
    /// A run of several has ended: its number from 1, the number of all runs, its workload and its rows.
    Ended(usize, usize, &'a Workload, &'a [IoResult]),
}

impl Series {
    /// Measures every combination once, then every combination again, until all repeats are done. Opens new connections for each
    /// run. `begin` is called when a run has connected, and returns the flag that ends the series. `watch` is called about 50 times a
    /// second.
    ///
    /// Returns the rows of each combination, and the error that ended the series early. A run that the flag has interrupted is left
    /// out, unless nothing else was measured.
    pub fn measure<'a>(
        &self,
        options: &SessionOptions,
        begin: impl Fn() -> &'a AtomicBool,
        mut watch: impl FnMut(SeriesEvent<'_>),
    ) -> (Vec<IoResult>, Option<Error>) {
        let workloads = self.workloads();
        let total = workloads.len() * self.repeats as usize;
        let mut runs: Vec<Vec<Vec<IoResult>>> = workloads.iter().map(|_| Vec::new()).collect();
        let mut failure = None;
        for number in 0..total {
            let index = number % workloads.len();
            let workload = &workloads[index];
            let mut options = options.clone();
            options.connect.queue.entries = workload.depth + 1;
            let mut bench = match Bench::open(workload, &options) {
                Ok(bench) => bench,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            let stop = begin();
            let rows = measure(&mut bench, self.duration, stop, |elapsed, counts| {
                watch(SeriesEvent::Running(workload, elapsed, counts));
            });
            let failed = rows.iter().any(|row| row.error.is_some());
            let stopped = stop.load(Ordering::Relaxed);
            if stopped && !failed && number > 0 {
                break;
            }
            if total > 1 {
                watch(SeriesEvent::Ended(number + 1, total, workload, &rows));
            }
            runs[index].push(rows);
            if stopped || failed {
                break;
            }
        }
        (runs.into_iter().flat_map(by_operation).map(merge).collect(), failure)
    }

    fn workloads(&self) -> Vec<Workload> {
        let sizes = self.block_bytes.iter();
        let points = sizes.flat_map(|size| self.depths.iter().map(move |depth| (*size, *depth)));
        points.map(|(block_bytes, depth)| Workload { block_bytes, depth, ..self.workload.clone() }).collect()
    }
}

/// Sorts the rows of the repeats of a workload: first those of its reads, then those of its writes. A workload without a run has none.
fn by_operation(repeats: Vec<Vec<IoResult>>) -> Vec<Vec<IoResult>> {
    let mut operations: Vec<Vec<IoResult>> = Vec::new();
    for rows in repeats {
        operations.resize_with(operations.len().max(rows.len()), Vec::new);
        operations.iter_mut().zip(rows).for_each(|(operation, row)| operation.push(row));
    }
    operations
}
