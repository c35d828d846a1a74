//! A session: loads that are opened once and measured in many phases.
//!
//! ```text
//!   open       all loads and antagonists; then the process drops privileges that only opening needed
//!   start      all threads at one instant, parked
//!   reference  each load alone, then all together: the rates that slowed loads and antagonists relate to
//!   block 0    every phase once, in random order; disturbed observations once more
//!   block 1    ...
//! ```
//!
//! Blocks repeat until the intervals of all medians are narrow, or the time limit is reached. The first block is always
//! completed.

mod disturbance;

use crate::observation::{Cut, Level, LoadRate, Loaded, Measured, Observation, Phase, Void};
use crate::open::{self, Opened};
use crate::phases::{self, Shares};
use crate::running::{End, RunningLoads, Woken};
use crate::scenario::Scenario;
use crate::statistics::{self, Estimate};
use disturbance::PARTS;
use inlane_core::Error;
use inlane_core::load::Sample;
use inlane_process::privileges;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The most observations of a reference.
const REFERENCES: usize = 3;

/// The least operations of a load at its pace in a phase, and the longest phase that they may need.
const LEAST_PACED: f64 = 4.0;
const LONGEST: Duration = Duration::from_secs(5);

/// How a session measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How long a phase is measured. Phases of a load with a slow pace are longer, up to 5 s, so that it does 4 operations.
    pub duration: Duration,
    /// How long the rates of a phase may settle before it is measured.
    pub settle: Duration,
    /// The width of a median's 95 % interval, as a fraction of the median, at which the session is done.
    pub precision: f64,
    /// The time after which no further phase begins, except in the first block.
    pub limit: Duration,
    /// The seed of the order of the phases.
    pub seed: u64,
    /// How loads are slowed, and how strong antagonists are.
    pub shares: Shares,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            duration: Duration::from_millis(250),
            settle: Duration::from_millis(100),
            precision: 0.02,
            limit: Duration::from_secs(60),
            seed: 1,
            shares: Shares::default(),
        }
    }
}

/// What a session reports while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The loads.
    pub loads: &'a [Loaded],
    /// The current block, from 0. `None` while the reference rates are measured.
    pub block: Option<usize>,
    /// The number of the phase in its block, from 0.
    pub index: usize,
    /// The number of phases in the block.
    pub phases: usize,
    /// The phase that begins.
    pub phase: Phase,
    /// The latest observation.
    pub last: Option<&'a Observation>,
    /// The time since the session began.
    pub elapsed: Duration,
}

/// Opened loads that have not started.
pub struct Session {
    opened: Vec<Opened>,
    users: usize,
}

impl Session {
    /// Opens the loads of a scenario and their antagonists, and prepares them. Before the latter, drops the privileges of
    /// the process if a load asks for it: its ports needed them, or it runs code of the user. `keep_privileges` prevents that.
    ///
    /// # Errors
    /// The first load that cannot be opened or prepared. If the privileges cannot be dropped.
    pub fn open(scenario: &Scenario, keep_privileges: bool) -> Result<Self, Error> {
        let mut opened = open::all(scenario)?;
        if !keep_privileges && opened.iter().any(|one| one.load.drops_privileges()) {
            privileges::drop_privileges()?;
        }
        for Opened { load, loaded, .. } in &mut opened {
            load.prepare().map_err(|error| failed(&loaded.name, error.to_string()))?;
        }
        Ok(Self { opened, users: scenario.loads.len() })
    }

    /// Returns the loads of the user, and then the antagonists.
    pub fn loads(&self) -> Vec<Loaded> {
        self.opened.iter().map(|one| one.loaded.clone()).collect()
    }

    /// Returns the phases of a block. The observations of a session that this one can continue have no others.
    pub fn phases(&self, plan: &Plan) -> Vec<Phase> {
        let beside: Vec<Vec<usize>> = self.opened.iter().map(|one| one.beside.clone()).collect();
        phases::of_block(&self.loads(), self.users, &beside, &plan.shares)
    }

    /// Measures. `earlier` are the observations of a session with the same loads and phases that this one continues, or none.
    /// If they are precise enough already, none are added. `interrupted` ends the session when it becomes true. `watch` is called
    /// before each phase.
    ///
    /// # Errors
    /// If a load fails before all have started. Later failures are in the result, with what was measured before.
    pub fn measure(
        self,
        plan: &Plan,
        earlier: Vec<Observation>,
        interrupted: &AtomicBool,
        watch: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Measured, Error> {
        let began = Instant::now();
        let phases = self.phases(plan);
        let mut loads = RunningLoads::start(self.opened)?;
        let mut measured = Measured {
            loads: loads.loaded.clone(),
            users: self.users,
            observations: earlier,
            ..Measured::default()
        };
        match loads.wait_for_start(interrupted) {
            Ok(()) => {}
            Err(Woken::Interrupted) => {
                loads.stop();
                measured.cut = Some(Cut::Interrupted);
                return Ok(measured);
            }
            Err(Woken::Ended(end)) => {
                loads.stop();
                let why = end.error.unwrap_or_else(|| "it ended before the start".into());
                return Err(failed(&measured.loads[end.load].name, why));
            }
        }
        let ends = measured.observations.iter().map(|it| it.at_ns.saturating_add(it.duration_ns));
        let earlier_ns = ends.max().unwrap_or(0);
        let mut run = Run {
            plan,
            interrupted,
            watch,
            began,
            earlier_ns,
            loads,
            alone: Vec::new(),
            together: Vec::new(),
            dead: Vec::new(),
            measured,
        };
        run.measured.cut = run.all(phases).err();
        let Run { loads, mut measured, .. } = run;
        for (load, error) in loads.stop() {
            measured.cut.get_or_insert(Cut::LoadFailed { load, error });
        }
        Ok(measured)
    }
}

fn failed(load: &str, why: String) -> Error {
    Error::device_failed(format!("load {load}"), why)
}

/// A session while its loads run.
struct Run<'a> {
    plan: &'a Plan,
    interrupted: &'a AtomicBool,
    watch: &'a mut dyn FnMut(Progress<'_>),
    began: Instant,
    /// When the last observation of the earlier session ended. The times of this one's observations continue from there.
    earlier_ns: u64,
    loads: RunningLoads,
    /// Operations per second of each load alone, before the first block.
    alone: Vec<f64>,
    /// Operations per second of each load together with all others, before the first block.
    together: Vec<f64>,
    /// The antagonists that have failed.
    dead: Vec<usize>,
    measured: Measured,
}

impl Run<'_> {
    fn all(&mut self, mut phases: Vec<Phase>) -> Result<(), Cut> {
        self.measured.idle = self.idle()?;
        let seen = statistics::phases(&self.measured.observations);
        if phases.iter().all(|phase| seen.contains(phase)) && !self.needs_more() {
            return Ok(());
        }
        self.find_references()?;
        let first = self.measured.observations.iter().map(|it| it.block + 1).max().unwrap_or(0);
        for block in first.. {
            phases::shuffle(&mut phases, self.plan.seed, block);
            let mut disturbed = Vec::new();
            for (index, &phase) in phases.iter().enumerate() {
                if block > first && self.is_over() {
                    return Err(Cut::TimeLimit);
                }
                self.show(Some(block), index, phases.len(), phase);
                let Some(observation) = self.observe(phase, block)? else { continue };
                if observation.void.is_some() {
                    disturbed.push(phase);
                }
                self.measured.observations.push(observation);
            }
            for phase in disturbed {
                if self.is_over() {
                    break;
                }
                self.show(Some(block), phases.len(), phases.len(), phase);
                let again = self.observe(phase, block)?;
                self.measured.observations.extend(again);
            }
            disturbance::mark_others(&mut self.measured.observations);
            let runs = |phase: &Phase| {
                self.dead.iter().all(|dead| phase.level(*dead, self.measured.users) == Level::Parked)
            };
            phases.retain(runs);
            if !self.needs_more() {
                return Ok(());
            }
            if self.is_over() {
                return Err(Cut::TimeLimit);
            }
        }
        Ok(())
    }

    fn needs_more(&self) -> bool {
        statistics::more_repeats_needed(&self.measured, self.plan.precision / 2.0)
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() + self.plan.settle + self.plan.duration > self.plan.limit
    }

    fn show(&mut self, block: Option<usize>, index: usize, phases: usize, phase: Phase) {
        (self.watch)(Progress {
            loads: &self.measured.loads,
            block,
            index,
            phases,
            phase,
            last: self.measured.observations.last(),
            elapsed: self.began.elapsed(),
        });
    }

    /// Observes the machine while all loads are parked.
    fn idle(&mut self) -> Result<crate::observation::Signals, Cut> {
        let before = self.loads.signals.read();
        if let Err(woken) = self.loads.wait(self.plan.duration, self.interrupted) {
            self.survive(woken)?;
        }
        Ok(self.loads.signals.read().since(&before))
    }

    /// Measures the rates to which slowed loads and antagonists relate in the first block, unless earlier observations show
    /// them. A disturbed one, or one in which the load did not move yet, is repeated.
    fn find_references(&mut self) -> Result<(), Cut> {
        let loads = self.measured.loads.len();
        (self.alone, self.together) = (vec![0.0; loads], vec![0.0; loads]);
        let phases = phases::of_reference(loads, self.measured.users);
        for (index, &phase) in phases.iter().enumerate() {
            let runs = |load: &usize| phase.level(*load, self.measured.users) != Level::Parked;
            let moved = |load| {
                let rates = self.measured.operations(phase, load);
                Estimate::of(&rates).is_some_and(|rate| rate.median > 0.0)
            };
            if (0..loads).filter(runs).all(moved) {
                continue;
            }
            for _ in 0..REFERENCES {
                self.show(None, index, phases.len(), phase);
                let Some(observation) = self.observe(phase, 0)? else { break };
                let rates = observation.loads.iter().map(|rate| rate.operations_per_second);
                match phase {
                    Phase::Alone { load } => self.alone[load] = observation.loads[load].operations_per_second,
                    _ => self.together = rates.collect(),
                }
                let moved = |load: usize| {
                    phase.level(load, self.measured.users) == Level::Parked
                        || observation.loads[load].operations_per_second > 0.0
                };
                if observation.void.is_none() && (0..loads).all(moved) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the rate to which the pace of a slowed load or antagonist relates: what was measured so far, or the reference.
    fn reference(&self, phase: Phase, load: usize) -> f64 {
        let together = matches!(phase, Phase::Throttled { .. });
        let phase = if together { Phase::Together } else { Phase::Alone { load } };
        let measured = Estimate::of(&self.measured.operations(phase, load)).map(|it| it.median);
        let first = if together { self.together[load] } else { self.alone[load] };
        measured.filter(|rate| *rate > 0.0).unwrap_or(first)
    }

    /// Measures one phase. `None` if it needs an antagonist that has failed.
    fn observe(&mut self, phase: Phase, block: usize) -> Result<Option<Observation>, Cut> {
        let users = self.measured.users;
        loop {
            if self.dead.iter().any(|dead| phase.level(*dead, users) != Level::Parked) {
                return Ok(None);
            }
            for (load, pace) in self.loads.paces.iter().enumerate() {
                pace.set(match phase.level(load, users) {
                    Level::Parked => 0.0,
                    Level::Full => self.measured.loads[load].asked.unwrap_or(f64::INFINITY),
                    Level::Share(share) => share * self.reference(phase, load),
                });
            }
            match self.measure(phase, block) {
                Ok(observation) => return Ok(Some(observation)),
                Err(woken) => self.survive(woken)?,
            }
        }
    }

    /// Returns how long `phase` is measured.
    fn duration(&self, phase: Phase) -> Duration {
        let runs = |load: &usize| phase.level(*load, self.measured.users) != Level::Parked;
        let loads = (0..self.measured.loads.len()).filter(runs);
        let paces = loads.filter_map(|load| self.measured.loads[load].asked).filter(|asked| *asked > 0.0);
        let needed = paces.map(|asked| LEAST_PACED / asked).fold(0.0, f64::max);
        self.plan.duration.max(Duration::from_secs_f64(needed.min(LONGEST.as_secs_f64())))
    }

    /// Waits until the rates have settled, and measures them.
    fn measure(&mut self, phase: Phase, block: usize) -> Result<Observation, Woken> {
        self.loads.wait(self.plan.settle, self.interrupted)?;
        let before = self.loads.signals.read();
        let (began, duration) = (Instant::now(), self.duration(phase));
        let mut samples = vec![self.loads.sampler.take()];
        for part in 1..=PARTS as u32 {
            let due = began + duration * part / PARTS as u32;
            self.loads.wait(due.saturating_duration_since(Instant::now()), self.interrupted)?;
            samples.push(self.loads.sampler.take());
        }
        let after = self.loads.signals.read();
        let signals = after.since(&before);
        let counts = match after.quota_changed(&before) {
            true => Err(Void::QuotaChanged),
            false => disturbance::steady(&signals, &samples),
        };
        let (from, to) = counts.unwrap_or((0, PARTS));
        let (first, last) = (&samples[from], &samples[to]);
        let of_load = |(load, loaded)| rate(loaded, first, last, load);
        let loads: Vec<LoadRate> = self.measured.loads.iter().enumerate().map(of_load).collect();
        let (duration_ns, void) = (last.at_ns - first.at_ns, counts.err());
        let at_ns = first.at_ns.saturating_add(self.earlier_ns);
        Ok(Observation { phase, block, at_ns, duration_ns, loads, signals, void })
    }

    /// Decides whether the session goes on: if an antagonist has ended, it does.
    fn survive(&mut self, woken: Woken) -> Result<(), Cut> {
        let End { load, error } = match woken {
            Woken::Interrupted => return Err(Cut::Interrupted),
            Woken::Ended(end) => end,
        };
        let why = || "its source has ended; give one that lasts as long as the session".into();
        let error = error.unwrap_or_else(why);
        if load < self.measured.users {
            return Err(Cut::LoadFailed { load, error });
        }
        tracing::warn!("{} failed, so its phases are left out: {error}", self.measured.loads[load].name);
        self.dead.push(load);
        Ok(())
    }
}

/// Returns what a load did between two samples.
fn rate(loaded: &Loaded, first: &Sample, last: &Sample, load: usize) -> LoadRate {
    let counts = last.loads[load] - first.loads[load];
    let thread_ns = (last.at_ns - first.at_ns).max(1) as f64 * loaded.threads.max(1) as f64;
    let share = |ns: u64| (ns as f64 / thread_ns).min(1.0);
    let measures_time = last.loads[load].busy_ns > 0;
    let is_known = last.loads[load].on_cpu_ns > 0;
    let on_processor = is_known.then(|| share(counts.on_cpu_ns));
    let queued = is_known.then(|| share(counts.queued_ns));
    // A thread that neither runs nor waits for a processor, but has work, waits in a system call.
    let asleep =
        on_processor.zip(queued).map_or(0.0, |(on, queued)| (share(counts.busy_ns) - on - queued).max(0.0));
    LoadRate {
        operations_per_second: last.operations_per_second(first, load).unwrap_or(0.0),
        bytes_per_second: last.bytes_per_second(first, load).unwrap_or(0.0),
        errors: counts.errors,
        busy: measures_time.then(|| share(counts.busy_ns) - asleep),
        blocked: measures_time.then(|| (share(counts.blocked_ns + counts.device_ns) + asleep).min(1.0)),
        on_processor,
        queued,
    }
}

#[cfg(test)]
mod tests;
