//! Measures a constructed machine as a session does, with noise, and without what a session may lack.

use crate::machine::{Done, Machine, Random};
use inlane_core::load::{Resource, Use, UseSource};
use inlane_mix::observation::{Level, LoadRate, Loaded, Measured, Observation, Phase, Signals, Void};
use inlane_mix::verdict::Bottleneck;

const OPERATION: f64 = 4096.0;

/// How a machine is measured.
#[derive(Clone, Debug)]
pub struct Method {
    pub blocks: usize,
    /// The standard deviation of a rate, as a fraction.
    pub noise: f64,
    /// The part of the noise that all loads of an observation share.
    pub common: f64,
    /// The change of all rates from the first to the last block.
    pub drift: f64,
    /// The share of observations in which one load stutters.
    pub bursts: f64,
    /// The share of observations with stolen time, which are void.
    pub stolen: f64,
    /// The change of every second of two equal phases.
    pub unequal: f64,
    pub threads_known: bool,
    pub shares: Vec<f64>,
    pub slowed: f64,
}

impl Default for Method {
    fn default() -> Self {
        Self {
            blocks: 6,
            noise: 0.015,
            common: 0.5,
            drift: 0.0,
            bursts: 0.0,
            stolen: 0.0,
            unequal: 0.0,
            threads_known: true,
            shares: vec![0.25, 0.5, 0.75, 1.0],
            slowed: 0.82,
        }
    }
}

/// A machine, how it is measured, and what its loads state about themselves.
#[derive(Clone, Debug)]
pub struct Case {
    pub kind: &'static str,
    pub machine: Machine,
    pub users: usize,
    /// The resource of each antagonist, which follow the user's loads.
    pub antagonists: Vec<Resource>,
    /// What each load states about its uses. The truth without the pools that have no resource as their name.
    pub stated: Vec<Vec<Use>>,
    pub method: Method,
    pub seed: u64,
}

impl Case {
    /// Creates a case in which all loads state the truth.
    pub fn new(kind: &'static str, machine: Machine, antagonists: Vec<Resource>, seed: u64) -> Self {
        let stated = |worker: &crate::machine::Worker| {
            let used = worker.takes.iter().filter_map(|(pool, units)| match &machine.pools[*pool].name {
                Some(Bottleneck::Resource(resource)) => {
                    // How much time of a core a load takes cannot be known before it runs.
                    let per_byte = (!matches!(resource, Resource::Core(_))).then_some(*units);
                    Some(Use { resource: resource.clone(), per_byte, source: UseSource::Computed })
                }
                _ => None,
            });
            used.collect()
        };
        let stated = machine.workers.iter().map(stated).collect();
        let users = machine.workers.len() - antagonists.len();
        Self { kind, machine, users, antagonists, stated, method: Method::default(), seed }
    }

    pub fn phases(&self) -> Vec<Phase> {
        let all = 0..self.machine.workers.len();
        let (users, antagonists) = (0..self.users, self.users..self.machine.workers.len());
        let share = self.method.slowed;
        let mut phases: Vec<Phase> = all.map(|load| Phase::Alone { load }).collect();
        phases.extend(users.clone().map(|load| Phase::ThrottledAlone { load, share }));
        if self.users > 1 {
            phases.extend([Phase::Together, Phase::Together]);
            phases.extend(users.clone().map(|load| Phase::Throttled { load, share }));
        }
        if self.users > 2 {
            let pairs = users
                .clone()
                .flat_map(|one| (one + 1..self.users).map(move |other| Phase::Pair { one, other }));
            phases.extend(pairs);
        }
        for antagonist in antagonists {
            for load in users.clone() {
                phases.extend(self.method.shares.iter().map(|&share| Phase::Beside {
                    load,
                    antagonist,
                    share,
                }));
            }
            phases.push(Phase::TogetherBeside { antagonist, share: 0.25 });
        }
        phases
    }

    /// Returns the highest rate of each worker in `phase`.
    pub fn paces(&self, phase: Phase) -> Vec<f64> {
        let reference = |load: usize| match phase {
            Phase::Throttled { .. } => self.machine.run(&self.paces(Phase::Together)).0[load].rate,
            _ => self.machine.run(&self.paces(Phase::Alone { load })).0[load].rate,
        };
        let pace = |load: usize| match phase.level(load, self.users) {
            Level::Parked => 0.0,
            Level::Full => f64::INFINITY,
            Level::Share(share) => share * reference(load),
        };
        (0..self.machine.workers.len()).map(pace).collect()
    }

    /// Measures all phases.
    pub fn measure(&self) -> Measured {
        let mut random = Random(self.seed);
        let method = &self.method;
        let loaded = self.machine.workers.iter().enumerate().map(|(at, worker)| Loaded {
            name: worker.name.to_owned(),
            uses: self.stated[at].clone(),
            asked: worker.pace.map(|pace| pace / OPERATION),
            fed: worker.source.is_some(),
            in_flight: worker.window.map(|(bytes, _)| bytes / OPERATION),
            antagonist_of: at.checked_sub(self.users).map(|at| self.antagonists[at].clone()),
            cores: Vec::new(),
            threads: worker.threads as usize,
        });
        let loads = loaded.collect();
        let phases = self.phases();
        let mut known: Vec<(Phase, (Vec<Done>, f64))> = Vec::new();
        for phase in &phases {
            if !known.iter().any(|(of, _)| of == phase) {
                known.push((*phase, self.machine.run(&self.paces(*phase))));
            }
        }
        let mut observations = Vec::new();
        for block in 0..method.blocks {
            let mut order = phases.clone();
            for at in (1..order.len()).rev() {
                order.swap(at, (random.next() * (at + 1) as f64) as usize);
            }
            let mut seen = Vec::new();
            for phase in order {
                let (done, throttled) = &known.iter().find(|(of, _)| *of == phase).unwrap().1;
                let common = method.common.sqrt() * random.normal();
                let stolen = random.chance(method.stolen);
                let stutters =
                    random.chance(method.bursts).then(|| (random.next() * done.len() as f64) as usize);
                let again = if seen.contains(&phase) { 1.0 + method.unequal } else { 1.0 };
                seen.push(phase);
                let mut rate = |(at, done): (usize, &Done)| {
                    let own = (1.0 - method.common).sqrt() * random.normal();
                    let mut factor = (method.noise * (common + own)).exp() * again;
                    factor *= 1.0 + method.drift * block as f64 / method.blocks as f64;
                    factor *= if stutters == Some(at) { 0.8 } else { 1.0 };
                    factor *= if stolen { 0.6 } else { 1.0 };
                    // A pace holds whatever the machine does.
                    let pace = self.machine.workers[at].pace.filter(|pace| done.rate > 0.99 * pace);
                    factor = if pace.is_some() && !stolen { 1.0 + 0.002 * own } else { factor };
                    let bytes = done.rate * factor;
                    let mut share = |value: f64| {
                        method.threads_known.then(|| (value + 0.01 * random.normal()).clamp(0.0, 1.0))
                    };
                    let (busy, blocked, queued) = (share(done.busy), share(done.blocked), share(done.queued));
                    LoadRate {
                        operations_per_second: bytes / OPERATION,
                        bytes_per_second: bytes,
                        errors: 0,
                        busy,
                        blocked,
                        // Threads poll while they wait. Under a quota they sleep.
                        on_processor: busy.zip(blocked).map(|(busy, blocked)| {
                            let polled = if self.machine.quota.is_some() { 0.0 } else { blocked };
                            (busy + polled).min(1.0)
                        }),
                        queued,
                    }
                };
                let loads = done.iter().enumerate().map(&mut rate).collect();
                observations.push(Observation {
                    phase,
                    block,
                    at_ns: observations.len() as u64 * 1_000_000_000,
                    duration_ns: 900_000_000,
                    loads,
                    signals: Signals {
                        stolen: Some(if stolen { 0.3 } else { 0.0 }),
                        throttled: self.machine.quota.map(|_| *throttled),
                        others: Some(0.01),
                    },
                    void: stolen.then_some(Void::Stolen(0.3)),
                });
            }
        }
        Measured { loads, users: self.users, observations, ..Measured::default() }
    }
}
