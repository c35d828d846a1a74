//! A run of pipelines between ports, in five steps:
//!
//! ```text
//! open      opens the ports and allocates the buffers
//! connect   splits the ports into queues and makes the pipelines
//! start     starts the ports and prepares the executors
//! join      runs the pipelines' threads until the end
//! stop      stops the ports and adds up the results
//! ```
//!
//! Each step consumes the value that the previous step returned. [`run`] does all steps.

mod open;
mod outcome;
#[cfg(test)]
mod tests;
mod wiring;
mod wrappers;

use crate::competing::CompetingJob;
use crate::config::{Config, CpuMethod, Executor};
use crate::control::{Control, Progress, ProgressSnapshot};
use crate::error::{Error, Result};
use crate::field;
use crate::gpu::{self, Gpu, LinkMeter, LinkSamples};
use crate::pipeline::{self, Pipeline, PipelineContext, Tally};
use crate::result::Competitor;
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::{Pool, Port};
use inlane_function::PacketFunction;
use inlane_ports::spec::PortSpec;
use inlane_ports::wrap::fault;
use inlane_process::cgroup::CpuQuota;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wiring::Direction;
use wrappers::Wrappers;

pub(crate) use open::ports;
pub use outcome::RunOutcome;

/// The time between two calls of `watch` in [`run`].
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// The longest time until the run notices a signal or the end of a pipeline.
const NOTICE_WITHIN: Duration = Duration::from_millis(100);

/// Executes a run. The run ends when the source is exhausted, or when the requested time or number of packets
/// is reached. The caller can stop or abort it through `control`.
///
/// Calls `watch` about once a second with the time since the start and the counters of packets.
///
/// # Errors
/// When the run cannot start because of its settings, a port, a device or memory. Later errors are in
/// [`RunOutcome::errors`].
pub fn run(
    config: &Config,
    control: &Control,
    watch: &mut dyn FnMut(Duration, ProgressSnapshot),
) -> Result<RunOutcome> {
    Ok(Run::open(config)?.connect()?.start()?.join(control, watch).stop())
}

/// A run whose ports are open.
pub struct Run<'a> {
    // Keep the order of these fields, because Rust drops them in this order. The pools must be dropped before
    // the GPU, which may hold their memory. Both must be dropped before the ports.
    pools: Vec<Vec<Arc<dyn Pool>>>,
    gpu: Option<Arc<Gpu>>,
    ports: Vec<Box<dyn Port>>,
    config: &'a Config,
    function: PacketFunction,
    specs: Vec<PortSpec>,
    directions: Vec<Direction>,
    clock: Clock,
}

/// A run whose ports are connected by pipelines.
pub struct ConnectedRun<'a> {
    pipelines: Vec<Pipeline>,
    faults: Vec<Arc<fault::FaultCounts>>,
    run: Run<'a>,
}

/// A run whose ports receive and whose executors are ready.
pub struct StartedRun<'a> {
    pipelines: Vec<ReadyPipeline>,
    competing: Option<CompetingJob>,
    cores: Vec<usize>,
    faults: Vec<Arc<fault::FaultCounts>>,
    run: Run<'a>,
}

/// A run whose pipelines have ended.
pub struct Joined<'a> {
    /// The tally of each pipeline. Also the report of the pipeline's lane, if the pipeline ran on a GPU
    /// without errors.
    tallies: Vec<(Tally, Option<gpu::LaneReport>)>,
    /// How long packets flowed.
    elapsed: Duration,
    progress: Vec<Progress>,
    competitor: Option<Result<Competitor>>,
    link: Option<Result<LinkSamples>>,
    /// The quota of processor time, with the periods of the run.
    quota: Option<CpuQuota>,
    faults: Vec<Arc<fault::FaultCounts>>,
    run: Run<'a>,
}

impl<'a> Run<'a> {
    /// Opens the ports and the GPU, and allocates packet buffers.
    ///
    /// # Errors
    /// When settings contradict each other, or a port, the GPU or memory is not available.
    pub fn open(config: &'a Config) -> Result<Self> {
        config.check()?;
        let function = PacketFunction::parse(&config.function)?;
        let (specs, directions) = wiring::directions(&config.route)?;
        let clock = Clock::new();
        let open::OpenPorts { ports, room } = open::ports(&specs, config, &clock)?;
        let gpu = match config.executor {
            Executor::Cpu(_) => None,
            Executor::Gpu { index, .. } => Some(gpu::open(index)?),
        };
        let pools = open::pools(&specs, config, room, directions.len(), gpu.as_ref())?;
        let location = pools.iter().flatten().map(|pool| pool.region().location());
        if let Some(location) = location.into_iter().find(|location| !location.is_cpu_memory())
            && let Some(port) = ports.iter().find(|port| port.info().touches_payload)
        {
            let why = format!(
                "the CPU accesses the packets of port {}, and cannot reach memory of {location}; use {}",
                port.info().name,
                field::MEMORY.with("pinned")
            );
            return Err(Error::config(field::MEMORY, why));
        }
        Ok(Self { pools, gpu, ports, config, function, specs, directions, clock })
    }

    /// Splits the ports into queues and connects them by pipelines.
    ///
    /// # Errors
    /// When a port lacks queues, a fault specification is wrong, or a capture file cannot be created.
    pub fn connect(mut self) -> Result<ConnectedRun<'a>> {
        let wrappers = Wrappers::new(self.config, &self.specs, &self.clock)?;
        let (pipelines, faults) =
            wiring::connect(self.config, &mut self.ports, &self.pools, &self.directions, &wrappers)?;
        Ok(ConnectedRun { pipelines, faults, run: self })
    }

    fn start_ports(&mut self) -> Result<()> {
        Ok(self.ports.iter_mut().try_for_each(|port| port.start())?)
    }
}

impl<'a> ConnectedRun<'a> {
    /// Starts the ports and prepares the executors. If the settings ask for it, drops privileges between
    /// these steps. Keeps the privileges if no port needed them and no user code will be loaded.
    ///
    /// # Errors
    /// If a port does not start, if the packet function does not load, or if the GPU has too little memory
    /// for it.
    pub fn start(self) -> Result<StartedRun<'a>> {
        let ConnectedRun { pipelines, faults, mut run } = self;
        let config = run.config;
        let cores = config.cores_for(config.executor.threads() * pipelines.len());
        let drops = config.drops_needed_privileges()
            || config.drop_privileges && gpu::runs_user_code(run.gpu.is_some(), &run.function);
        if drops {
            run.start_ports()?;
            open::drop_privileges()?;
        }
        // Create the competing job before the ports start. Creating it takes time: it compiles kernels for a
        // GPU and measures the job alone. The queues of started ports would overflow meanwhile. Ports that
        // need privileges are already started, because the code above drops the privileges.
        let competing = CompetingJob::new(config, run.gpu.as_ref(), pipelines.len(), &cores)?;
        let pipelines = ready(config, &run.function, pipelines, run.gpu.as_ref())?;
        if !drops {
            run.start_ports()?;
        }
        Ok(StartedRun { pipelines, competing, cores, faults, run })
    }
}

impl<'a> StartedRun<'a> {
    /// Runs the pipelines on their own threads until all have ended. Stops them when the run's duration is
    /// over.
    pub fn join(self, control: &Control, watch: &mut dyn FnMut(Duration, ProgressSnapshot)) -> Joined<'a> {
        let StartedRun { pipelines, competing, cores, faults, run } = self;
        let progress: Vec<_> = pipelines.iter().map(|_| Progress::default()).collect();
        let meter: Option<Result<LinkMeter>> = match (&run.gpu, &run.config.executor) {
            (Some(gpu), Executor::Gpu { settings, .. }) if settings.measure_pcie => {
                Some(LinkMeter::start(gpu).map_err(Into::into))
            }
            _ => None,
        };
        let quota_before = CpuQuota::of_this_process();
        let started = Instant::now();
        let flow = || run_threads(&run, control, pipelines, &progress, &cores, watch, started);
        let (tallies, competitor) = match &competing {
            Some(job) => {
                let (tallies, competitor) = job.run_beside(flow);
                (tallies, Some(competitor))
            }
            None => (flow(), None),
        };
        let link = meter.map(|meter| meter.map(LinkMeter::stop));
        let quota = CpuQuota::of_this_process().zip(quota_before).map(|(after, before)| after.since(before));
        let flowed: Option<Vec<_>> = tallies.iter().map(|(tally, _)| tally.flowed).collect();
        let flowed = flowed.unwrap_or_default();
        let begun = flowed.iter().map(|(begun, _)| *begun).min().unwrap_or(started);
        let ended = flowed.iter().map(|(_, ended)| *ended).max().unwrap_or_else(Instant::now);
        Joined { tallies, elapsed: ended - begun, progress, competitor, link, quota, faults, run }
    }
}

impl Joined<'_> {
    /// Stops the ports and adds up the results of the pipelines.
    pub fn stop(mut self) -> RunOutcome {
        let mut device = Counters::default();
        for port in &mut self.run.ports {
            device += port.device_counters();
            port.stop();
        }
        RunOutcome::new(self, device)
    }
}

/// A pipeline, and its executor.
enum ReadyPipeline {
    Cpu(CpuMethod, Pipeline),
    Gpu(Pipeline, Box<gpu::Lane>),
}

/// Gives each pipeline its executor. For a GPU, loads the packet function and allocates all lanes. Call it
/// before any kernel runs, because allocation blocks while kernels run.
fn ready(
    config: &Config,
    function: &PacketFunction,
    pipelines: Vec<Pipeline>,
    gpu: Option<&Arc<Gpu>>,
) -> Result<Vec<ReadyPipeline>> {
    let mut ready = Vec::new();
    match (&config.executor, gpu) {
        (Executor::Gpu { settings, .. }, Some(gpu)) => {
            let program = gpu::LoadedFunction::new(gpu, function, settings.memory)?;
            let lanes = pipelines.len() as u32;
            for pipeline in pipelines {
                let lane = gpu::Lane::new(&program, settings, &config.per_pipeline, &*pipeline.pool, lanes)?;
                ready.push(ReadyPipeline::Gpu(pipeline, Box::new(lane)));
            }
            gpu::Lane::check_residence(ready.iter().filter_map(|pipeline| match pipeline {
                ReadyPipeline::Gpu(_, lane) => Some(&**lane),
                ReadyPipeline::Cpu(..) => None,
            }))?;
        }
        (Executor::Gpu { .. }, None) => unreachable!("a run on a GPU has opened it"),
        (Executor::Cpu(method), _) => {
            for mut pipeline in pipelines {
                for _ in 0..config.executor.workers() {
                    let mut instance = function.instance()?;
                    instance.set_room(pipeline.pool.room() as u32);
                    pipeline.instances.push(instance);
                }
                ready.push(ReadyPipeline::Cpu(*method, pipeline));
            }
        }
    }
    Ok(ready)
}

impl ReadyPipeline {
    /// Runs the pipeline on new threads until the pipeline ends.
    fn run(self, config: &Config, context: &PipelineContext<'_>) -> (Tally, Option<gpu::LaneReport>) {
        let settings = &config.per_pipeline;
        match self {
            ReadyPipeline::Gpu(pipeline, lane) => gpu::run(pipeline, *lane, settings, context),
            ReadyPipeline::Cpu(CpuMethod::Single, pipeline) => {
                (pipeline::run_single(pipeline, settings, context), None)
            }
            ReadyPipeline::Cpu(CpuMethod::Split { .. }, pipeline) => {
                let tally = pipeline::run_split(pipeline, settings, context);
                (tally.unwrap_or_else(|error| Tally { errors: vec![error], ..Tally::default() }), None)
            }
        }
    }
}

/// Stops the run if its thread panics, because the other pipelines would go on receiving.
struct StopOnPanic<'a>(&'a Control);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// Runs the pipelines until all have ended. Stops all when the run's duration is over or one has failed.
fn run_threads(
    run: &Run<'_>,
    control: &Control,
    pipelines: Vec<ReadyPipeline>,
    progress: &[Progress],
    cores: &[usize],
    watch: &mut dyn FnMut(Duration, ProgressSnapshot),
    started: Instant,
) -> Vec<(Tally, Option<gpu::LaneReport>)> {
    let Run { config, clock, .. } = run;
    let threads = config.executor.threads();
    // Returns the time since packets began to flow. The duration counts from then, because threads and lanes
    // take time to start.
    let flowing =
        || progress.iter().filter_map(Progress::begun).min().map_or(Duration::ZERO, |begun| begun.elapsed());
    let mut tallies: Vec<Option<_>> = pipelines.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        let (finished, finishes) = mpsc::channel();
        for (index, pipeline) in pipelines.into_iter().enumerate() {
            let finished = finished.clone();
            let cores = cores.chunks(threads).nth(index).unwrap_or(&[]);
            let context = PipelineContext { control, progress: &progress[index], clock, index, cores };
            scope.spawn(move || {
                let _stop = StopOnPanic(control);
                let ended = pipeline.run(config, &context);
                // If this pipeline failed, stop all pipelines. Each pipeline then drains and ends.
                if !ended.0.errors.is_empty() {
                    control.stop();
                }
                let _ = finished.send((index, ended));
            });
        }
        // Drop this sender, because the thread of each pipeline has its own sender. The channel then closes
        // when all these threads have ended, even if they ended by a panic.
        drop(finished);
        let mut next_watch = WATCH_EVERY;
        while tallies.iter().any(Option::is_none) {
            let flowed = flowing();
            if config.duration.is_some_and(|duration| flowed >= duration) {
                control.stop();
            }
            control.follow_parent();
            let mut wait = next_watch.saturating_sub(started.elapsed());
            if let Some(duration) = config.duration.filter(|_| !control.stopping()) {
                wait = wait.min(duration.saturating_sub(flowed));
            }
            match finishes.recv_timeout(wait.clamp(Duration::from_micros(100), NOTICE_WITHIN)) {
                Ok((index, ended)) => tallies[index] = Some(ended),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if started.elapsed() >= next_watch {
                let mut sum = ProgressSnapshot::default();
                progress.iter().for_each(|each| sum += each.read());
                watch(started.elapsed(), sum);
                next_watch += WATCH_EVERY;
            }
        }
    });
    tallies.into_iter().flatten().collect()
}
