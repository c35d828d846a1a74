//! A run as a load:
//!
//! ```text
//! open      opens the ports, allocates the buffers, makes the pipelines
//! prepare   compiles or loads the packet function, gives each pipeline its executor
//! run       runs the pipelines' threads until the end, stops the ports, adds up the results
//! ```

mod outcome;
mod uses;

pub use outcome::RunOutcome;

use super::open;
use super::wiring::{self, Direction};
use super::wrappers::Wrappers;
use crate::competing::CompetingJob;
use crate::config::{Config, CpuMethod, Executor};
use crate::control::Control;
use crate::counters::RunCounters;
use crate::error::{Error, Result};
use crate::field;
use crate::gpu::{self, Gpu, LinkMeter, LinkSamples};
use crate::pipeline::{self, Pipeline, PipelineContext, Tally, panicked};
use crate::reference::{OwnReference, Reference};
use crate::result::Competitor;
use inlane_core::clock::Clock;
use inlane_core::load::{Load, LoadError, Member, Meter, Pace, Running, Use};
use inlane_core::port::Counters;
use inlane_core::{Pool, Port};
use inlane_function::{Calls, Instance, PacketFunction};
use inlane_ports::spec::PortSpec;
use inlane_ports::wrap::fault;
use inlane_process::cgroup::CpuQuota;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Packet processing as a load: pipelines between ports.
pub struct ForwardLoad {
    // Keep the order of these fields, because Rust drops them in this order: the pipelines, then the lanes, whose
    // memory includes that of the pools; the pools before the GPU, which may hold their memory; all before the ports.
    pub(super) pipelines: Vec<Pipeline>,
    /// The lane of each pipeline, if a GPU runs the packet function.
    lanes: Vec<gpu::Lane>,
    competing: Option<CompetingJob>,
    pub(super) pools: Vec<Vec<Arc<dyn Pool>>>,
    pub(super) gpu: Option<Arc<Gpu>>,
    pub(super) ports: Vec<Box<dyn Port>>,
    pub(super) config: Config,
    pub(super) function: PacketFunction,
    pub(super) reference: Option<Reference>,
    pub(super) specs: Vec<PortSpec>,
    pub(super) directions: Vec<Direction>,
    pub(super) clock: Clock,
    pub(super) faults: Vec<Arc<fault::FaultCounts>>,
    /// The cores of all threads, pipeline by pipeline. Empty if threads are not bound.
    pub(super) cores: Vec<usize>,
    /// The meters of all threads, pipeline by pipeline.
    pub(super) meters: Vec<Arc<Meter>>,
    pub(super) counters: Arc<RunCounters>,
    pace: Arc<Pace>,
    control: Arc<Control>,
    ports_started: bool,
    outcome: Option<RunOutcome>,
}

/// What the pipelines of a load have left when they have ended.
pub(super) struct Joined {
    /// The tally of each pipeline. Also the report of the pipeline's lane, if the pipeline ran on a GPU
    /// without errors.
    pub(super) tallies: Vec<(Tally, Option<gpu::LaneReport>)>,
    /// How long packets flowed.
    pub(super) elapsed: Duration,
    pub(super) competitor: Option<Result<Competitor>>,
    pub(super) link: Option<Result<LinkSamples>>,
    /// The quota of processor time, with the periods of the run.
    pub(super) quota: Option<CpuQuota>,
}

impl ForwardLoad {
    /// Opens the ports and the GPU, allocates packet buffers, and connects the ports by pipelines. No packet flows yet.
    ///
    /// The load follows `pace` if there is one. Without it, no queue is wrapped, and the load runs as fast as its ports.
    /// `config.duration` has no effect.
    ///
    /// # Errors
    /// When settings contradict each other, or a port, the GPU or memory is not available.
    pub fn open(config: &Config, pace: Option<Arc<Pace>>) -> Result<Self> {
        config.check()?;
        let function = PacketFunction::new(&config.function)?;
        let (specs, directions) = wiring::directions(&config.route)?;
        let clock = Clock::new();
        let reference = Reference::of(config)?;
        let expected = reference.as_ref().map(|reference| &reference.function);
        let open::OpenPorts { mut ports, room } = open::ports(&specs, config, expected, &clock)?;
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
        let wrappers = Wrappers::new(config, &specs, &clock, pace.clone())?;
        let (pipelines, faults) = wiring::connect(config, &mut ports, &pools, &directions, &wrappers)?;
        let threads = config.executor.threads() * pipelines.len();
        let names = specs.iter().map(|spec| spec.text().to_owned()).collect();
        let queues = directions
            .iter()
            .flat_map(|direction| (0..config.pipelines).map(|_| (direction.rx, direction.tx.clone())));
        let counters = Arc::new(RunCounters::new(names, queues));
        let mut load = Self {
            counters,
            pipelines,
            lanes: Vec::new(),
            competing: None,
            pools,
            gpu,
            ports,
            config: config.clone(),
            function,
            reference,
            specs,
            directions,
            clock,
            faults,
            cores: config.cores_for(threads),
            meters: (0..threads).map(|_| Arc::default()).collect(),
            pace: pace.unwrap_or_default(),
            control: Arc::default(),
            ports_started: false,
            outcome: None,
        };
        // Ports that need privileges must be started before the privileges are dropped.
        if load.drops_privileges() {
            load.start_ports()?;
        }
        Ok(load)
    }

    /// The flags that end this load. Use them to abort it. To stop it, stop its run.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// The outcome of the run up to its end or failure. `None` before it has run. If the run failed, the first error is
    /// the one that [`Load::run`] returned, and [`RunOutcome::errors`] has the others.
    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.outcome.as_ref()
    }

    /// Frees all resources of the load. Returns its outcome: see [`ForwardLoad::outcome`].
    pub fn into_outcome(self) -> Option<RunOutcome> {
        self.outcome
    }

    /// Returns the reference that is loaded after the privileges are dropped.
    fn own_reference(&self) -> Option<&OwnReference> {
        self.reference.as_ref().and_then(|reference| reference.own.as_deref())
    }

    /// Returns the calls of the packet function on the CPU. Empty before the load is prepared.
    pub(super) fn calls(&self) -> Vec<Arc<Calls>> {
        self.pipelines.iter().flat_map(|pipeline| &pipeline.instances).map(Instance::calls).collect()
    }

    fn start_ports(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.ports_started, true) {
            self.ports.iter_mut().try_for_each(|port| port.start())?;
        }
        Ok(())
    }

    /// Prepares the executors, then starts the ports unless they have been started.
    fn make_ready(&mut self) -> Result<()> {
        // Create the competing job before the ports start. Creating it takes time: it compiles kernels for a
        // GPU and measures the job alone. The queues of started ports would overflow meanwhile.
        self.competing =
            CompetingJob::new(&self.config, self.gpu.as_ref(), self.pipelines.len(), &self.cores)?;
        self.prepare_executors()?;
        if let Some(own) = self.own_reference() {
            own.load()?;
        }
        self.start_ports()
    }

    /// Gives each pipeline its executor. For a GPU, loads the packet function and allocates all lanes.
    fn prepare_executors(&mut self) -> Result<()> {
        let Self { config, function, pipelines, .. } = self;
        match (&config.executor, &self.gpu) {
            (Executor::Gpu { settings, .. }, Some(gpu)) => {
                let program = gpu::LoadedFunction::new(gpu, function, settings.memory)?;
                let count = pipelines.len() as u32;
                for pipeline in pipelines {
                    let pool = &*pipeline.pool;
                    let lane = gpu::Lane::new(&program, settings, &config.per_pipeline, pool, count)?;
                    self.lanes.push(lane);
                }
                gpu::Lane::check_residence(&self.lanes)
            }
            (Executor::Gpu { .. }, None) => unreachable!("a load on a GPU has opened it"),
            (Executor::Cpu(_), _) => {
                for pipeline in pipelines {
                    for _ in 0..config.executor.workers() {
                        let mut instance = function.instance()?;
                        instance.set_room(pipeline.pool.room() as u32);
                        pipeline.instances.push(instance);
                    }
                }
                Ok(())
            }
        }
    }

    /// Runs the pipelines on their own threads until all have ended.
    fn run_pipelines(&mut self, run: &Running) -> Joined {
        let members = run.start.members(self.pipelines.len());
        let control = self.control.clone();
        run.at_stop(move || control.stop());
        let meter: Option<Result<LinkMeter>> = match (&self.gpu, &self.config.executor) {
            (Some(gpu), Executor::Gpu { settings, .. }) if settings.measure_pcie => {
                Some(LinkMeter::start(gpu).map_err(Into::into))
            }
            _ => None,
        };
        let quota_before = CpuQuota::of_this_process();
        let competing = self.competing.take();
        let flow = || self.run_threads(members);
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
        let begun = flowed.iter().map(|(begun, _)| *begun).min();
        let ended = flowed.iter().map(|(_, ended)| *ended).max();
        let elapsed = begun.zip(ended).map(|(begun, ended)| ended - begun);
        let since_start = || run.start.started().map_or(Duration::ZERO, |started| started.elapsed());
        Joined { tallies, elapsed: elapsed.unwrap_or_else(since_start), competitor, link, quota }
    }

    fn run_threads(&mut self, members: Vec<Member<'_>>) -> Vec<(Tally, Option<gpu::LaneReport>)> {
        let Self { pipelines, lanes, ports, config, clock, control, meters, counters, cores, pace, .. } =
            self;
        let counters = &**counters;
        let (config, clock, control, pace) = (&*config, &*clock, &**control, &**pace);
        let threads = config.executor.threads();
        let pipelines = std::mem::take(pipelines).into_iter();
        let mut lanes = lanes.iter_mut();
        std::thread::scope(|scope| {
            let (asking, ended) = mpsc::channel();
            // A port can be used by one thread at a time, so this thread alone has them until the pipelines have ended.
            let ask = move || counters.ask_devices(ports, &ended);
            let asked = std::thread::Builder::new().name("inlane-counters".into()).spawn_scoped(scope, ask);
            if let Err(error) = &asked {
                tracing::warn!("what devices have missed is shown at the end only: {error}");
            }
            let mut running = Vec::new();
            for (index, (pipeline, member)) in pipelines.zip(members).enumerate() {
                let lane = lanes.next();
                let cores = cores.chunks(threads).nth(index).unwrap_or(&[]);
                let meters = &meters[index * threads..][..threads];
                let context = PipelineContext::new(control, meters, clock, index, cores)
                    .starting_with(member)
                    .parked_by(pace)
                    .counted_by(counters.of_pipeline(index));
                running.push(scope.spawn(move || {
                    let _stop = StopOnPanic(control);
                    let ended = run_pipeline(pipeline, lane, config, &context);
                    // If this pipeline failed, stop all pipelines of this load. Each then drains and ends.
                    if !ended.0.errors.is_empty() {
                        control.stop();
                    }
                    ended
                }));
            }
            let join = |(index, thread): (usize, std::thread::ScopedJoinHandle<'_, _>)| {
                thread
                    .join()
                    .unwrap_or_else(|panic| (Tally::failed(panicked(index, "supervising", panic)), None))
            };
            let tallies = running.into_iter().enumerate().map(join).collect();
            drop(asking);
            // The scope would wait only until the thread's closure has returned, not until the thread has ended.
            if let Ok(Err(panic)) = asked.map(|thread| thread.join()) {
                std::panic::resume_unwind(panic);
            }
            tallies
        })
    }

    /// Stops the ports. Returns the counters of packets that are in no queue's counters.
    fn stop_ports(&mut self) -> Counters {
        let mut device = Counters::default();
        for port in &mut self.ports {
            device += port.device_counters();
            port.stop();
        }
        device
    }
}

impl Load for ForwardLoad {
    fn name(&self) -> String {
        let directions = self.directions.iter().map(|direction| {
            let to: Vec<_> = direction.tx.iter().map(|&tx| self.specs[tx].text()).collect();
            format!("{} to {}", self.specs[direction.rx].text(), to.join(" or "))
        });
        format!("forward {}", directions.collect::<Vec<_>>().join(" and "))
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        self.meters.clone()
    }

    fn pace(&self) -> Arc<Pace> {
        self.pace.clone()
    }

    fn uses(&self) -> Vec<Use> {
        uses::uses(self)
    }

    fn threads(&self) -> usize {
        self.directions.len() * usize::from(self.config.pipelines)
    }

    /// Returns true if the settings ask for it, and a port needed privileges or code of the user will be loaded.
    fn drops_privileges(&self) -> bool {
        self.config.drops_needed_privileges()
            || self.config.drop_privileges
                && (gpu::runs_user_code(self.gpu.is_some(), &self.function)
                    || self.own_reference().is_some_and(OwnReference::is_user_code))
    }

    fn prepare(&mut self) -> Result<(), LoadError> {
        Ok(self.make_ready()?)
    }

    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        let joined = self.run_pipelines(run);
        let device = self.stop_ports();
        let mut outcome = RunOutcome::new(self, joined, device);
        let failed = match outcome.errors.is_empty() {
            false => Some(outcome.errors.remove(0)),
            true => {
                let wrong = outcome.result.verification.as_ref().filter(|found| found.failed());
                wrong.map(|found| Error::Verification(Box::new(found.clone())))
            }
        };
        self.outcome = Some(outcome);
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Runs a pipeline on new threads until it ends.
fn run_pipeline(
    pipeline: Pipeline,
    lane: Option<&mut gpu::Lane>,
    config: &Config,
    context: &PipelineContext<'_>,
) -> (Tally, Option<gpu::LaneReport>) {
    let settings = &config.per_pipeline;
    match (&config.executor, lane) {
        (_, Some(lane)) => gpu::run(pipeline, lane, settings, context),
        (Executor::Cpu(CpuMethod::Split { .. }), None) => {
            (pipeline::run_split(pipeline, settings, context).unwrap_or_else(Tally::failed), None)
        }
        (_, None) => (pipeline::run_single(pipeline, settings, context), None),
    }
}

/// Stops the load if a thread panics, because the other pipelines would go on receiving.
struct StopOnPanic<'a>(&'a Control);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

#[cfg(test)]
mod tests;
