//! A run: opens the ports, joins them by pipelines, waits for the end, and says what became of every packet.

use crate::compete;
use crate::config::{Config, Device, Method, Route};
use crate::control::{Control, Progress, ProgressSnapshot};
use crate::error::{Error, Result};
use crate::gpu;
use crate::open;
use crate::outcome::{Ended, measured, outcome};
use crate::pipeline::{self, Pipeline, PipelineContext, Tally};
use crate::wrappers::{Wrappers, faults_note};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::{Pool, Port};
use inlane_cuda::LinkMeter;
use inlane_function::PacketFunction;
use inlane_ports::wrap::fault;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub use crate::outcome::RunOutcome;

/// One direction of a run: from which port to which, by their index.
pub(crate) struct Direction {
    pub(crate) rx: usize,
    pub(crate) tx: Vec<usize>,
}

/// Runs until the source is exhausted, the packets or the time asked for are over, or `control` says so. `watch` is called
/// about each second with the time since the start and what was counted so far.
///
/// # Errors
/// When it could not start: settings, ports, memory. What goes wrong later is in [`RunOutcome::errors`].
pub fn run(
    config: &Config,
    control: &Control,
    watch: &mut dyn FnMut(Duration, ProgressSnapshot),
) -> Result<RunOutcome> {
    config.check()?;
    let function = PacketFunction::parse(&config.function)?;
    let (names, directions) = directions(&config.route)?;
    let clock = Clock::new();
    let open::Opened { mut ports, room } = open::ports(&names, config, &clock)?;
    let touched = ports.iter().any(|port| port.info().touches_payload);
    let gpu = match config.on {
        Device::Cpu => None,
        Device::Gpu(index) => {
            let gpu = inlane_cuda::Gpu::open(index)?;
            // The compiler is loaded while its folder can be read: it compiles once privileges are dropped.
            inlane_cuda::compiler_version()?;
            Some(gpu)
        }
    };
    let pools = open::pools(&names, config, room, directions.len(), gpu.as_ref())?;
    if let Some(pool) = pools.iter().flatten().find(|pool| !pool.region().location().is_cpu_memory())
        && touched
    {
        let location = pool.region().location();
        return Err(Error::config(
            "--memory",
            format!("packets in {location} cannot be reached by the CPU, and this run reads them there"),
        ));
    }
    let wrappers = Wrappers::new(config, &names, &clock)?;
    let (pipelines, faults) = join(config, &mut ports, &pools, &directions, &wrappers)?;
    let cores = config.cores_for(config.threads() * pipelines.len());
    // It is measured alone first: before ports start, which nobody would read meanwhile.
    let rival = compete::rival(config, gpu.as_ref(), pipelines.len(), &cores)?;
    let start = |ports: &mut [Box<dyn Port>]| ports.iter_mut().try_for_each(|port| port.start());
    let executors = if config.drop_privileges && names.iter().any(|name| open::takes_privileges(name)) {
        // A user's own function is compiled and loaded without the privileges that ports needed.
        start(&mut ports)?;
        inlane_dpdk::privileges::drop_privileges(names.iter().map(String::as_str))?;
        executors(config, &function, pipelines, gpu.as_ref())?
    } else {
        let executors = executors(config, &function, pipelines, gpu.as_ref())?;
        start(&mut ports)?;
        executors
    };
    let progress: Vec<_> = executors.iter().map(|_| Progress::default()).collect();
    let meter = gpu.as_ref().filter(|_| config.measure_pcie).map(|gpu| LinkMeter::start(gpu));
    let flow = || {
        let started = Instant::now();
        let tallies = drive(config, control, executors, &clock, &progress, &cores, watch, started);
        let flowed: Option<Vec<_>> = tallies.iter().map(|(tally, _)| tally.flowed).collect();
        let flowed = flowed.unwrap_or_default();
        let begun = flowed.iter().map(|(begun, _)| *begun).min().unwrap_or(started);
        let ended = flowed.iter().map(|(_, ended)| *ended).max().unwrap_or_else(Instant::now);
        (tallies, ended - begun)
    };
    let ((tallies, elapsed), competitor) = match &rival {
        Some(rival) => {
            let (flowed, competitor) = rival.beside(flow);
            (flowed, Some(competitor))
        }
        None => (flow(), None),
    };
    let link = meter.map(|meter| meter.map(LinkMeter::stop));
    let mut device = Counters::default();
    for port in &mut ports {
        device += port.device_counters();
        port.stop();
    }
    let nanoseconds = elapsed.as_nanos() as u64;
    let ended = Ended {
        tallies,
        function: &function,
        ports: &ports,
        directions: &directions,
        elapsed,
        spent: progress.iter().map(|each| each.spent(&clock, nanoseconds)).collect(),
        device,
        leaked_buffers: pools.iter().flatten().map(|pool| pool.outstanding() as u64).sum(),
    };
    let mut outcome = outcome(config, ended);
    outcome.result.ports = names;
    match competitor {
        Some(Ok(competitor)) => outcome.result.competitor = Some(competitor),
        Some(Err(error)) => outcome.errors.push(error),
        None => {}
    }
    match (link, &mut outcome.result.pcie) {
        (Some(Ok(samples)), Some(pcie)) => pcie.measured = measured(&samples),
        (Some(Err(error)), _) => outcome.notes.push(format!("what crosses PCIe was not measured: {error}")),
        _ => {}
    }
    outcome.notes.extend(faults_note(&faults));
    outcome.devices.extend(gpu.map(|gpu| gpu.to_string()));
    Ok(outcome)
}

/// What runs a pipeline.
enum Executor {
    Cpu(Pipeline),
    Gpu(Pipeline, Box<gpu::Lane>),
}

/// Gives each pipeline its executor; on a GPU, everything is allocated and loaded here, before a kernel runs.
fn executors(
    config: &Config,
    function: &PacketFunction,
    pipelines: Vec<Pipeline>,
    gpu: Option<&Arc<inlane_cuda::Gpu>>,
) -> Result<Vec<Executor>> {
    let Some(gpu) = gpu else {
        let mut executors = Vec::new();
        for mut pipeline in pipelines {
            for _ in 0..config.workers.max(1) {
                let mut instance = function.instance()?;
                instance.set_room(pipeline.pool.room() as u32);
                pipeline.instances.push(instance);
            }
            executors.push(Executor::Cpu(pipeline));
        }
        return Ok(executors);
    };
    let program = gpu::LoadedFunction::new(gpu, function, config.gpu.memory)?;
    let settings = gpu::Settings { method: config.method, ..config.gpu.clone() };
    let mut executors = Vec::new();
    let lanes = pipelines.len() as u32;
    for pipeline in pipelines {
        let lane = gpu::Lane::new(&program, &settings, &config.drive, &*pipeline.pool, lanes)?;
        executors.push(Executor::Gpu(pipeline, Box::new(lane)));
    }
    gpu::Lane::check_residence(executors.iter().filter_map(|executor| match executor {
        Executor::Gpu(_, lane) => Some(&**lane),
        Executor::Cpu(_) => None,
    }))?;
    Ok(executors)
}

/// The ports' names, each once where ports can be shared, and who sends to whom.
fn directions(route: &Route) -> Result<(Vec<String>, Vec<Direction>)> {
    let mut names: Vec<String> = Vec::new();
    // What is sent to a ring comes back from it: its name says which one, and options need only be said once.
    let is_ring = |name: &str| open::kind(name) == "ring";
    let bare = |name: &str| name.split(',').next().unwrap_or_default().to_string();
    let same = |a: &str, b: &str| a == b || (is_ring(a) && bare(a) == bare(b));
    let mut index = |name: &String| {
        if open::is_shared(name)
            && let Some(found) = names.iter().position(|known| same(known, name))
        {
            if names[found] == bare(name) {
                names[found] = name.clone();
            }
            return found;
        }
        names.push(name.clone());
        names.len() - 1
    };
    let directions = match route {
        Route::OneWay { rx, tx } => {
            vec![Direction { rx: index(rx), tx: tx.iter().map(&mut index).collect() }]
        }
        Route::Between(a, b) => {
            let (a, b) = (index(a), index(b));
            vec![Direction { rx: a, tx: vec![b] }, Direction { rx: b, tx: vec![a] }]
        }
    };
    let written = match route {
        Route::OneWay { rx, tx } => std::iter::once(rx).chain(tx).collect(),
        Route::Between(a, b) => vec![a, b],
    };
    for name in written.into_iter().filter(|name| is_ring(name) && name.contains(',')) {
        if let Some(other) = names.iter().find(|known| known != &name && bare(known) == bare(name)) {
            let why = format!("and {other} are one ring with different options; give options once");
            return Err(Error::config(format!("port {name}"), why));
        }
    }
    Ok((names, directions))
}

/// Configures every port with the queues that its directions need, and makes the pipelines: those of the first direction, then
/// those of the second.
fn join(
    config: &Config,
    ports: &mut [Box<dyn Port>],
    pools: &[Vec<Arc<dyn Pool>>],
    directions: &[Direction],
    wrappers: &Wrappers,
) -> Result<(Vec<Pipeline>, Vec<Arc<fault::Done>>)> {
    let queues = config.pipelines;
    for (index, port) in ports.iter_mut().enumerate() {
        let receives = directions.iter().position(|direction| direction.rx == index);
        let sends: usize = directions.iter().map(|d| d.tx.iter().filter(|&&tx| tx == index).count()).sum();
        if queues > port.info().max_queues {
            return Err(Error::config(
                format!("--pipelines {queues}"),
                format!("port {} has {} queues at most", port.info().name, port.info().max_queues),
            ));
        }
        if queues > 1 && receives.is_some() && !port.info().spreads_flows {
            tracing::warn!("port {} does not spread flows over queues", port.info().name);
        }
        let pools: &[_] = receives.map_or(&[], |direction| &pools[direction]);
        port.configure(pools, queues * sends as u16)?;
    }
    let (mut pipelines, mut faults) = (Vec::new(), Vec::new());
    let mut next_tx = vec![0u16; ports.len()];
    for (direction, pools) in directions.iter().zip(pools) {
        for (queue, pool) in pools.iter().enumerate() {
            let rx = ports[direction.rx].take_rx(queue as u16)?;
            let rx = wrappers.rx(rx, pool, 1.0 / queues as f64, &mut faults)?;
            let mut txs = Vec::new();
            for &tx in &direction.tx {
                txs.push(wrappers.tx(ports[tx].take_tx(next_tx[tx], pool.clone())?, pool)?);
                next_tx[tx] += 1;
            }
            pipelines.push(Pipeline { rx, txs, pool: pool.clone(), instances: Vec::new() });
        }
    }
    Ok((pipelines, faults))
}

/// Ends the run when a thread of it panics: who waits for all of them would wait for what the others still receive.
struct StopOnPanic<'a>(&'a Control);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "called once, from `run`, whose parts these are")]
fn drive(
    config: &Config,
    control: &Control,
    executors: Vec<Executor>,
    clock: &Clock,
    progress: &[Progress],
    cores: &[usize],
    watch: &mut dyn FnMut(Duration, ProgressSnapshot),
    started: Instant,
) -> Vec<(Tally, Option<gpu::LaneReport>)> {
    std::thread::scope(|scope| {
        let (finished, finishes) = mpsc::channel();
        let count = executors.len();
        // Lanes of a GPU get ready for some time, which is none of the run's.
        let program = executors.iter().find_map(|executor| match executor {
            Executor::Gpu(_, lane) => Some(lane.program().clone()),
            Executor::Cpu(_) => None,
        });
        let flowing = || match &program {
            Some(program) => program.began().map_or(Duration::ZERO, |began| began.elapsed()),
            None => started.elapsed(),
        };
        for (index, executor) in executors.into_iter().enumerate() {
            let finished = finished.clone();
            let threads = config.threads();
            let cores = cores.chunks(threads).nth(index).unwrap_or(&[]);
            let shared = PipelineContext { control, progress: &progress[index], clock, index, cores };
            scope.spawn(move || {
                let _stop = StopOnPanic(control);
                let ended = match executor {
                    Executor::Gpu(pipeline, lane) => gpu::run(pipeline, *lane, &config.drive, &shared),
                    Executor::Cpu(pipeline) if config.method == Method::Single => {
                        (pipeline::run_single(pipeline, &config.drive, &shared), None)
                    }
                    Executor::Cpu(pipeline) => {
                        let tally = pipeline::run_split(pipeline, &config.drive, &shared)
                            .unwrap_or_else(|error| Tally { errors: vec![error], ..Tally::default() });
                        (tally, None)
                    }
                };
                // One that broke ends the others, in order.
                if !ended.0.errors.is_empty() {
                    shared.control.stop();
                }
                let _ = finished.send((index, ended));
            });
        }
        // Where a thread panics, its end is the channel's.
        drop(finished);
        let mut tallies: Vec<Option<(Tally, Option<gpu::LaneReport>)>> = (0..count).map(|_| None).collect();
        let mut next_watch = Duration::from_secs(1);
        while tallies.iter().any(Option::is_none) {
            let elapsed = started.elapsed();
            let flowed = flowing();
            if config.duration.is_some_and(|duration| flowed >= duration) {
                control.stop();
            }
            control.heed();
            let mut wait = next_watch.saturating_sub(elapsed);
            if let Some(duration) = config.duration.filter(|_| !control.stopping()) {
                wait = wait.min(duration.saturating_sub(flowed));
            }
            // Short enough to notice a signal soon.
            match finishes.recv_timeout(wait.clamp(Duration::from_micros(100), Duration::from_millis(100))) {
                Ok((index, ended)) => tallies[index] = Some(ended),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if started.elapsed() >= next_watch {
                let mut sum = ProgressSnapshot::default();
                for each in progress {
                    sum += each.read();
                }
                watch(started.elapsed(), sum);
                next_watch += Duration::from_secs(1);
            }
        }
        tallies.into_iter().flatten().collect()
    })
}
