//! Threads of a load that repeat one operation at the load's pace.

use inlane_core::clock::Clock;
use inlane_core::error::NotStarted;
use inlane_core::load::{LoadError, Meter, Pace, Pacer, Running, spawn};
use std::sync::Arc;
use std::time::Duration;

/// The least time for which a thread without a due operation sleeps. The time that a slowed load does not need must be free
/// for others on its core, and short sleeps would spend it on switches between threads.
const SLEEP_NS: u64 = 1_000_000;

/// The threads of a load before they run.
pub(crate) struct Workers {
    pub name: String,
    pub threads: usize,
    /// Thread i runs on core `cores[i % cores.len()]`. Empty if the threads may run on any core.
    pub cores: Vec<usize>,
    pub pace: Arc<Pace>,
    pub meters: Vec<Arc<Meter>>,
}

impl Workers {
    pub fn new(name: String, threads: usize, cores: &[usize]) -> Self {
        let meters = (0..threads).map(|_| Arc::default()).collect();
        Self { name, threads, cores: cores.to_vec(), pace: Arc::default(), meters }
    }

    /// Runs the threads until `run` is stopped. `prepare` is called by each thread before it waits at the start line,
    /// with the thread's number. It returns the operation, which returns its number of bytes.
    ///
    /// # Errors
    /// If a thread cannot be started, or `prepare` fails.
    pub fn run<O: FnMut() -> u64>(
        &self,
        run: &Running,
        prepare: impl Fn(usize) -> Result<O, LoadError> + Sync,
    ) -> Result<(), LoadError> {
        let members: Vec<_> = (0..self.threads).map(|_| run.start.member()).collect();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, member) in members.into_iter().enumerate() {
                let prepare = &prepare;
                let core = (!self.cores.is_empty()).then(|| self.cores[index % self.cores.len()]);
                let meter = &self.meters[index];
                let work = move || -> Result<(), LoadError> {
                    let operation = prepare(index)?;
                    if member.ready().is_some() {
                        self.repeat(meter, operation, run);
                    }
                    Ok(())
                };
                let name = format!("mix-{}", self.name);
                threads.push(spawn(scope, name, core, meter, work).map_err(NotStarted::of)?);
            }
            let mut ended = threads.into_iter().map(|thread| thread.join());
            ended.try_for_each(|end| end.unwrap_or_else(|_| Err("a thread of the load panicked".into())))
        })
    }

    fn repeat(&self, meter: &Meter, mut operation: impl FnMut() -> u64, run: &Running) {
        let clock = Clock::new();
        let mut pacer = Pacer::new(self.pace.clone(), 1.0 / self.threads as f64);
        let mut busy_ns = 0;
        while !run.stopping() {
            let start_ns = clock.now_ns();
            if pacer.due(start_ns, 1) == 0 {
                std::thread::sleep(Duration::from_nanos(pacer.wait_ns(start_ns).max(SLEEP_NS)));
                continue;
            }
            let bytes = operation();
            pacer.did(1);
            meter.add(1, bytes);
            busy_ns += clock.now_ns().saturating_sub(start_ns);
            meter.set_times(busy_ns, 0);
        }
    }
}
