//! One load in one situation: what runs, which bottlenecks are possible, and what was observed without changing anything.

use super::{Bottleneck, Evidence, Fact, Says, When};
use crate::observation::{Level, LoadRate, Measured, Observation, Phase};
use crate::solo::{Crossing, Fitted, crossings};
use crate::statistics::{self, EqualPhases};
use inlane_core::load::Resource;

/// The quota stops the process for at least this share of the time, or it does not matter.
pub(super) const THROTTLED: f64 = 0.05;
/// Changes of a rate below this fraction are not told apart from noise, however often they repeat.
const NOISE: f64 = 0.02;
/// A load that lost more to others than this fraction of its rate does not just compute as fast as its cores allow.
const LOST: f64 = 0.08;
/// A load whose threads wait for a processor for more of the time shares it with another program.
const QUEUED: f64 = 0.1;
/// A resource of which at least this share is used is full.
const FULL: f64 = 0.93;
/// A resource of which at most this share is used is not full. Capacities differ with the mixture of reads, writes and sizes,
/// so the shares between both limits say nothing.
const NOT_FULL: f64 = 0.8;
/// A load that reaches at least this share of its pace may be limited by it. Another resource can keep it just below.
const REACHED: f64 = 0.985;
/// A mixture of loads differs from another one if at least this share of the resource is taken by different loads.
const OTHER_MIXTURE: f64 = 0.2;

pub(super) struct Case<'a> {
    pub measured: &'a Measured,
    pub fitted: &'a Fitted,
    pub load: usize,
    pub when: When,
    /// The phase in which the load is judged.
    pub base: Phase,
    /// The median rates of all loads in that phase. Zero for parked ones.
    pub rates: Vec<f64>,
    /// Changes below this fraction are noise.
    pub noise: f64,
    /// The largest change between equal phases, if they differ.
    pub unequal: Option<f64>,
}

impl<'a> Case<'a> {
    pub fn new(
        measured: &'a Measured,
        fitted: &'a Fitted,
        equal: &[EqualPhases],
        load: usize,
        when: When,
    ) -> Self {
        let base = when.phase(load);
        let rate =
            |of: usize| statistics::rate(&measured.observations, base, of).map_or(0.0, |rate| rate.median);
        let runs = |of: usize| base.level(of, measured.users) != Level::Parked;
        let rates = (0..measured.loads.len()).map(|of| if runs(of) { rate(of) } else { 0.0 }).collect();
        let differ = equal.iter().filter(|equal| equal.load == load && equal.differ);
        let unequal = differ.map(|equal| equal.change.median.abs()).max_by(f64::total_cmp);
        let noise = NOISE.max(unequal.unwrap_or(0.0));
        Self { measured, fitted, load, when, base, rates, noise, unequal }
    }

    /// Returns the indexes of the resources that a bottleneck consists of. Empty for bottlenecks of the load itself.
    pub fn parts(&self, bottleneck: &Bottleneck) -> Vec<usize> {
        let resources: Vec<Resource> = match bottleneck {
            Bottleneck::Resource(resource) => vec![resource.clone()],
            Bottleneck::BothDirections(device) => {
                vec![Resource::LinkToDevice(device.clone()), Resource::LinkFromDevice(device.clone())]
            }
            Bottleneck::Quota => vec![Resource::Processors],
            Bottleneck::OwnCores => {
                let uses = self.measured.loads[self.load].uses.iter().map(|used| used.resource.clone());
                uses.filter(|resource| matches!(resource, Resource::Core(_))).collect()
            }
            Bottleneck::Pace | Bottleneck::Source | Bottleneck::ClosedLoop => Vec::new(),
        };
        resources.iter().filter_map(|resource| self.fitted.index(resource)).collect()
    }

    /// Returns the units of the resources `parts` together for each byte of `load`. `None` if nothing is known.
    pub fn per_byte(&self, load: usize, parts: &[usize]) -> Option<f64> {
        let known = parts.iter().filter_map(|at| self.fitted.per_byte(load, *at));
        known.fold(None, |sum, per_byte| Some(sum.unwrap_or(0.0) + per_byte))
    }

    /// Returns the seconds of processor time for each byte of `load`. `None` if the kernel does not report it.
    pub fn time_per_byte(&self, load: usize) -> Option<f64> {
        let on_processor = self.signal(self.base, |observation| observation.loads[load].on_processor)?;
        let time = on_processor * self.measured.loads[load].threads.max(1) as f64;
        (self.rates[load] > 0.0).then(|| time / self.rates[load])
    }

    /// Returns the other loads that run.
    pub fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.rates.len()).filter(|other| *other != self.load && self.rates[*other] > 0.0)
    }

    /// Returns everything that may limit the load.
    pub fn possible(&self) -> Vec<Bottleneck> {
        let load = &self.measured.loads[self.load];
        let mut possible = Vec::new();
        if load.asked.is_some() {
            possible.push(Bottleneck::Pace);
        }
        possible.push(Bottleneck::OwnCores);
        if self
            .signal(self.base, |observation| observation.signals.throttled)
            .is_some_and(|share| share > 0.0)
        {
            possible.push(Bottleneck::Quota);
        }
        if load.fed {
            possible.push(Bottleneck::Source);
        }
        if load.in_flight.is_some() {
            possible.push(Bottleneck::ClosedLoop);
        }
        for (at, resource) in self.fitted.resources.iter().enumerate() {
            let used = self.fitted.per_byte(self.load, at);
            let stated = load.uses.iter().any(|used| used.resource == *resource);
            let shared = self
                .others()
                .any(|other| self.measured.loads[other].uses.iter().any(|used| used.resource == *resource));
            let is_possible = match resource {
                // A core that neither another load nor another program uses is not a shared core.
                Resource::Core(_) => stated && (shared || self.waits_for_processors()),
                // Antagonists show uses that the load does not state.
                _ => used.map_or(stated || self.ran_beside(resource), |per_byte| per_byte > 0.0),
            };
            if is_possible {
                possible.push(Bottleneck::Resource(resource.clone()));
            }
            if let Resource::LinkToDevice(device) = resource {
                let both = Bottleneck::BothDirections(device.clone());
                let parts = self.parts(&both);
                let taken = |at: &usize| {
                    (0..self.rates.len())
                        .any(|of| self.rates[of] > 0.0 && self.fitted.per_byte(of, *at) > Some(0.0))
                };
                if parts.len() == 2 && parts.iter().all(taken) && self.per_byte(self.load, &parts) > Some(0.0)
                {
                    possible.push(both);
                }
            }
        }
        possible
    }

    fn is_core(&self, bottleneck: &Bottleneck) -> bool {
        matches!(bottleneck, Bottleneck::Resource(Resource::Core(_)))
    }

    /// Returns true if other programs use the cores of the load, because its threads wait for them.
    fn waits_for_processors(&self) -> bool {
        self.of_load(self.base, |rate| rate.queued).is_some_and(|queued| queued > QUEUED)
    }

    /// Returns true if the load ran beside an antagonist that may show a use of `resource`. A load that crosses only the other
    /// direction of a link takes nothing of this one: see [`Bottleneck::BothDirections`].
    fn ran_beside(&self, resource: &Resource) -> bool {
        let opposite = |of: &Crossing| match (of.resource(), resource) {
            (Resource::LinkToDevice(one), Resource::LinkFromDevice(other))
            | (Resource::LinkFromDevice(one), Resource::LinkToDevice(other)) => one == *other,
            _ => false,
        };
        if crossings(&self.measured.loads[self.load]).iter().any(opposite) {
            return false;
        }
        let steps = self.fitted.steps[self.load].iter().zip(&self.measured.loads);
        steps.into_iter().any(|(steps, of)| of.antagonist_of.as_ref() == Some(resource) && !steps.is_empty())
    }

    /// Returns the median of a figure in `phase`.
    pub fn signal(&self, phase: Phase, of: impl Fn(&Observation) -> Option<f64>) -> Option<f64> {
        Some(statistics::estimate(&self.measured.observations, phase, of)?.median)
    }

    /// Returns the median of a figure of the load in `phase`.
    pub fn of_load(&self, phase: Phase, of: fn(&LoadRate) -> Option<f64>) -> Option<f64> {
        self.signal(phase, |observation| of(&observation.loads[self.load]))
    }

    /// Compares what the running loads take of a bottleneck with the most that was ever taken of it. That must have been
    /// by another mixture of loads. Otherwise a load that uses a resource alone would always count as filling it.
    pub fn ceiling(&self, bottleneck: &Bottleneck) -> Option<Evidence> {
        let parts = self.parts(bottleneck);
        let counts = matches!(bottleneck, Bottleneck::Resource(_) | Bottleneck::BothDirections(_));
        let own = self.per_byte(self.load, &parts).filter(|per_byte| *per_byte > 0.0 && counts)?;
        let taken = |rates: &[f64]| -> Vec<f64> {
            let taken = |(of, rate): (usize, &f64)| self.per_byte(of, &parts).unwrap_or(0.0) * rate;
            rates.iter().enumerate().map(taken).collect()
        };
        let here = taken(&self.rates);
        let used: f64 = here.iter().sum();
        let mut capacity: f64 = 0.0;
        for phase in statistics::phases(&self.measured.observations) {
            // Phases with a slowed load are evidence of another kind.
            if matches!(phase, Phase::Throttled { .. } | Phase::ThrottledAlone { .. }) {
                continue;
            }
            let rate = |of: usize| match phase.level(of, self.measured.users) {
                Level::Parked => 0.0,
                _ => statistics::rate(&self.measured.observations, phase, of).map_or(0.0, |rate| rate.median),
            };
            let there = taken(&(0..self.rates.len()).map(rate).collect::<Vec<_>>());
            let sum: f64 = there.iter().sum();
            let apart =
                here.iter().zip(&there).map(|(here, there)| (here / used - there / sum).abs()).sum::<f64>();
            if sum > 0.0 && apart / 2.0 >= OTHER_MIXTURE {
                capacity = capacity.max(sum);
            }
        }
        if capacity <= 0.0 || used > 1.1 * capacity || own * self.rates[self.load] <= 0.0 {
            return None;
        }
        let disputed =
            parts.iter().any(|at| self.fitted.uses[self.load][*at].is_some_and(|known| known.disputed));
        let says = match used / capacity {
            share if share >= FULL => Says::For,
            // Other loads may state as wrong uses as this one. Other programs may take the rest of a core.
            _ if disputed || self.is_core(bottleneck) && self.waits_for_processors() => Says::Neither,
            share if share < NOT_FULL => Says::Against,
            _ => Says::Neither,
        };
        Some(Evidence { fact: Fact::Ceiling { used, capacity: capacity.max(used) }, says })
    }

    /// Returns the case of the load alone, if the other loads do not slow it down. It then has the same limit there.
    pub fn alone(&self) -> Option<Self> {
        let alone = Phase::Alone { load: self.load };
        let change = statistics::change(&self.measured.observations, alone, Phase::Together, self.load)?;
        let same = change.median > -0.03 && change.low > -0.1;
        (self.when == When::Together && same).then(|| {
            let case = Self::new(self.measured, self.fitted, &[], self.load, When::Alone);
            Self { noise: self.noise, ..case }
        })
    }

    /// Returns true if the load is slower beside the other loads than alone.
    pub fn lost_to_others(&self) -> bool {
        let alone = Phase::Alone { load: self.load };
        let change = statistics::change(&self.measured.observations, alone, Phase::Together, self.load);
        let lost = change.is_some_and(|change| -change.median > LOST.max(self.noise));
        self.when == When::Together && lost
    }

    /// Compares the load's rate with the pace that the user asked for.
    pub fn pace(&self, bottleneck: &Bottleneck) -> Option<Evidence> {
        let asked = self.measured.loads[self.load].asked.filter(|asked| *asked > 0.0)?;
        let reached = self.of_load(self.base, |rate| Some(rate.operations_per_second))?;
        let says = match (bottleneck, reached / asked) {
            (Bottleneck::Pace, share) if share >= REACHED => Says::For,
            (Bottleneck::Pace, share) if share < 0.95 => Says::Against,
            (Bottleneck::Pace, _) => Says::Neither,
            (_, share) if share >= 0.97 => Says::Against,
            _ => Says::Neither,
        };
        Some(Evidence { fact: Fact::Pace { asked, reached }, says })
    }
}
