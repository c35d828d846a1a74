//! A load that takes processor time and nothing else.

use super::workers::Workers;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::load::{Load, LoadError, Meter, Pace, Resource, Running, Use, UseSource};
use std::hint::black_box;
use std::sync::Arc;

/// The dependent multiplications of an operation. They take about 20 us on a core of 3 GHz, and fit into registers, so
/// the rate of the operations is the time that the load got from its cores.
const STEPS: u64 = 16_384;

/// A load that computes on cores. Each operation is the same piece of work.
pub struct CpuLoad {
    workers: Workers,
    /// The processor time of an operation.
    seconds: f64,
}

impl CpuLoad {
    /// Creates a load with `threads` threads on `cores`, or on any core if the list is empty.
    pub fn new(name: &str, threads: usize, cores: &[usize]) -> Self {
        let timed = |_| {
            let start_ns = thread_cpu_ns();
            compute(1);
            thread_cpu_ns() - start_ns
        };
        // The shortest of several operations is the one that nothing has disturbed.
        let shortest_ns = (0..10).map(timed).min().unwrap_or(0);
        Self { workers: Workers::new(name.into(), threads, cores), seconds: shortest_ns as f64 / 1e9 }
    }
}

/// Does the work of an operation.
fn compute(mut value: u64) -> u64 {
    for step in 0..STEPS {
        value = black_box(value).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
    }
    black_box(value)
}

impl Load for CpuLoad {
    fn name(&self) -> String {
        "computing".into()
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        self.workers.meters.clone()
    }

    fn pace(&self) -> Arc<Pace> {
        self.workers.pace.clone()
    }

    fn uses(&self) -> Vec<Use> {
        let cores = &self.workers.cores;
        let on = |resource, cores: usize| Use {
            resource,
            per_byte: Some(self.seconds / cores as f64),
            source: UseSource::Counted,
        };
        match cores.is_empty() {
            true => vec![on(Resource::Processors, 1)],
            false => cores.iter().map(|core| on(Resource::Core(*core), cores.len())).collect(),
        }
    }

    fn threads(&self) -> usize {
        self.workers.threads
    }

    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        self.workers.run(run, |thread| {
            let mut value = thread as u64 | 1;
            Ok(move || {
                value = compute(value);
                0
            })
        })
    }
}
