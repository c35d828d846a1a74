//! Uses and capacities that were fitted to solo runs.

use super::SoloRuns;
use crate::observation::{Observation, Phase};
use crate::statistics::{self, Estimate};
use inlane_core::load::{Resource, UseSource};
use inlane_model::fit::{Ladder, use_below_share};

/// A ladder counts only if its capacity differs from the antagonist's best rate by at most this fraction. Otherwise the load
/// lost for another reason than a full resource.
const SAME_CAPACITY: f64 = 0.2;
/// An antagonist that runs at this share of its rate alone, or above, runs as fast as it can.
const UNPACED: f64 = 0.95;
/// A fitted use and the one that the load states agree if they differ by at most this factor.
const AGREE: f64 = 1.35;
/// A load that keeps less than this share of its rate is starved: the antagonist does not share the resource with it, as a
/// copy engine that serves one queue until that is empty.
const STARVED: f64 = 0.2;
/// A load that keeps at least this share of its rate beside an unpaced antagonist is not slowed down.
pub(crate) const SLOWED: f64 = 0.95;
/// Below this share of the capacity, a loss beside an antagonist does not come from a full resource.
const NOT_FULL: f64 = 0.93;

/// What is known of the use of one resource by one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The units for each byte, or for each operation of a load that moves no bytes. Zero if it takes nothing.
    pub per_byte: f64,
    /// How the figure is known.
    pub source: UseSource,
    /// True if the load states a use that measurements contradict. The figure is then that of the measurements.
    pub disputed: bool,
    /// The units that the load gets for each unit of the antagonist when both run as fast as they can. `None` if the
    /// antagonist never slowed it down, so that it may get more.
    pub weight: Option<f64>,
}

/// Uses and capacities.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The resources that loads state or antagonists take.
    pub resources: Vec<Resource>,
    /// The most that was measured of each resource, in units per second: the antagonist's own best rate, or that of another
    /// load if it is higher. `None` if there is no antagonist of the resource.
    pub capacities: Vec<Option<f64>>,
    /// The uses by load, and then by resource. `None` if nothing is known.
    pub uses: Vec<Vec<Option<Known>>>,
    /// How a load slows down before a resource is full, by load and resource: the amount that others take, and the load's
    /// rate then as a fraction of its rate alone. In ascending order.
    pub early: Vec<Vec<Vec<(f64, f64)>>>,
    /// The runs beside antagonists, by load of the user, and then by load of the session.
    pub steps: Vec<Vec<Vec<Step>>>,
}

/// A load beside an antagonist: medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The fraction of its own rate alone at which the antagonist ran.
    pub share: f64,
    /// The rate that the antagonist reached.
    pub antagonist: f64,
    /// The rate of the load.
    pub rate: f64,
}

impl Step {
    /// Returns true if the antagonist ran as fast as it could.
    pub fn is_unpaced(&self) -> bool {
        self.share >= UNPACED && self.antagonist > 0.0
    }
}

impl Fitted {
    /// Returns the index of `resource`.
    pub fn index(&self, resource: &Resource) -> Option<usize> {
        self.resources.iter().position(|known| known == resource)
    }

    /// Returns the units of a resource for each byte of a load. `None` if nothing is known.
    pub fn per_byte(&self, load: usize, resource: usize) -> Option<f64> {
        self.uses[load][resource].map(|known| known.per_byte)
    }
}

pub(super) fn fit(runs: &SoloRuns) -> Fitted {
    let mut resources: Vec<Resource> = Vec::new();
    for load in runs.loads() {
        for resource in load.uses.iter().map(|used| &used.resource).chain(&load.antagonist_of) {
            if !resources.contains(resource) {
                resources.push(resource.clone());
            }
        }
    }
    let stated: Vec<Vec<Option<Known>>> = (0..runs.loads().len())
        .map(|load| resources.iter().map(|of| stated(runs, load, of)).collect())
        .collect();
    let capacities: Vec<Option<f64>> =
        (0..resources.len()).map(|at| capacity(runs, &resources, &stated, at)).collect();
    let mut fitted = Fitted {
        early: vec![vec![Vec::new(); resources.len()]; runs.users()],
        steps: (0..runs.users())
            .map(|load| (0..runs.loads().len()).map(|antagonist| steps(runs, load, antagonist)).collect())
            .collect(),
        uses: stated,
        resources,
        capacities,
    };
    // Antagonists that take only one resource come first, because they explain some effects of the others.
    let mut order: Vec<usize> = (0..fitted.resources.len()).collect();
    let takes = |at: &usize| {
        let takes =
            antagonists(runs, &fitted.resources[*at]).map(|antagonist| runs.loads()[antagonist].uses.len());
        takes.max()
    };
    order.sort_by_key(takes);
    for load in 0..runs.users() {
        let states = |at: &usize| {
            let uses = &runs.loads()[load].uses;
            !uses.iter().any(|used| used.resource == fitted.resources[*at])
        };
        let mut order = order.clone();
        order.sort_by_key(states);
        for &at in &order {
            if can_tell(runs, &fitted, load, at) {
                fit_use(runs, &mut fitted, load, at);
            }
        }
    }
    fitted
}

/// Returns true if an antagonist shows the use of a resource. It does not if it slows the load for another reason: because
/// it also takes a resource that the load fills, or because both directions of a link share something.
fn can_tell(runs: &SoloRuns, fitted: &Fitted, load: usize, at: usize) -> bool {
    let uses = &runs.loads()[load].uses;
    let crosses = super::crossings(&runs.loads()[load]);
    let states = |resource: &Resource| match resource {
        Resource::LinkToDevice(_) | Resource::LinkFromDevice(_) => {
            crosses.iter().any(|crossing| crossing.resource() == *resource)
        }
        _ => uses.iter().any(|used| used.resource == *resource),
    };
    let resource = &fitted.resources[at];
    if states(resource) {
        return true;
    }
    // A load that states which resources it uses, and leaves out the opposite direction, sends nothing or only descriptors that way. Otherwise
    // its statement is wrong.
    let opposite = match resource {
        Resource::LinkToDevice(device) => Some(Resource::LinkFromDevice(device.clone())),
        Resource::LinkFromDevice(device) => Some(Resource::LinkToDevice(device.clone())),
        _ => None,
    };
    let most = if uses.is_empty() { 0.75 } else { 0.05 };
    let fills = |other: usize| {
        Some(fitted.per_byte(load, other)? * runs.alone(load)? > most * fitted.capacities[other]?)
    };
    let right = |resource: &Resource| {
        let known = fitted.index(resource).and_then(|at| fitted.uses[load][at]);
        known.is_some_and(|known| !known.disputed)
    };
    let wrong = uses.iter().any(|used| !right(&used.resource));
    let also = |antagonist: usize| {
        let others = (0..fitted.resources.len()).filter(move |other| *other != at);
        others.filter(move |other| fitted.per_byte(antagonist, *other) > Some(0.0))
    };
    if let Some(opposite) = opposite.filter(states) {
        return !right(&opposite);
    }
    wrong || !antagonists(runs, resource).flat_map(also).any(|other| fills(other) == Some(true))
}

/// Returns what the load itself states about its use of a resource. Time of cores is counted if the load does not state how
/// much it takes.
fn stated(runs: &SoloRuns, load: usize, resource: &Resource) -> Option<Known> {
    let of = &runs.loads()[load];
    let known = |per_byte, source| Some(Known { per_byte, source, disputed: false, weight: None });
    let is_time = matches!(resource, Resource::Core(_) | Resource::Processors);
    let used = of.uses.iter().find(|used| used.resource == *resource);
    let amount = used.and_then(|used| Some((used.per_byte.filter(|per_byte| *per_byte > 0.0)?, used.source)));
    match used {
        _ if amount.is_some() => amount.and_then(|(per_byte, source)| known(per_byte, source)),
        None if *resource != Resource::Processors => {
            (of.antagonist_of.as_ref() == Some(resource)).then(|| known(1.0, UseSource::Computed)).flatten()
        }
        _ if is_time => {
            let phase = Phase::Alone { load };
            let counted = |observation: &Observation| {
                let rate = &observation.loads[load];
                let time = rate.on_processor? * of.threads.max(1) as f64;
                (rate.amount() > 0.0).then(|| time / rate.amount())
            };
            known(statistics::estimate(runs.observations(), phase, counted)?.median, UseSource::Counted)
        }
        _ => None,
    }
}

/// Returns the indexes of the antagonists of a resource.
fn antagonists<'a>(runs: &'a SoloRuns, resource: &'a Resource) -> impl Iterator<Item = usize> + 'a {
    (runs.users()..runs.loads().len())
        .filter(move |load| runs.loads()[*load].antagonist_of.as_ref() == Some(resource))
}

fn capacity(
    runs: &SoloRuns,
    resources: &[Resource],
    stated: &[Vec<Option<Known>>],
    at: usize,
) -> Option<f64> {
    let taken = |load: usize| Some(stated[load][at]?.per_byte * runs.alone(load)?);
    let best = antagonists(runs, &resources[at]).filter_map(taken).fold(f64::NAN, f64::max);
    // A load that takes a little more than the antagonist does so with larger or fewer transfers. One that takes much more
    // states a wrong use.
    let others = (0..runs.users()).filter_map(taken).filter(|taken| *taken < best * (1.0 + SAME_CAPACITY));
    // A core has a second of time for each second, however fast the antagonist was.
    let least = if matches!(resources[at], Resource::Core(_)) { 1.0 } else { 0.0 };
    let best = others.fold(best, f64::max);
    (best > 0.0).then_some(best.max(least))
}

/// Replaces what a load states about its use of a resource with what its runs beside the antagonist show.
fn fit_use(runs: &SoloRuns, fitted: &mut Fitted, load: usize, at: usize) {
    let (Some(capacity), Some(alone)) = (fitted.capacities[at], runs.alone(load)) else { return };
    let resource = fitted.resources[at].clone();
    let is_time = matches!(resource, Resource::Core(_) | Resource::Processors);
    // An antagonist that starves the load, or is starved by it, shows the least.
    let balance = |antagonist: &usize| {
        let unpaced = fitted.steps[load][*antagonist].iter().find(|step| step.is_unpaced());
        unpaced.map_or(0.0, |step| step.rate.min(step.antagonist))
    };
    let Some(antagonist) = antagonists(runs, &resource)
        .filter(|antagonist| !fitted.steps[load][*antagonist].is_empty())
        .max_by(|one, other| balance(one).total_cmp(&balance(other)))
    else {
        return;
    };
    let unit = fitted.per_byte(antagonist, at).unwrap_or(1.0);
    let steps: Vec<(f64, f64)> =
        fitted.steps[load][antagonist].iter().map(|step| (step.antagonist * unit, step.rate)).collect();
    let unpaced = fitted.steps[load][antagonist].iter().rev().find(|step| step.is_unpaced());
    let unpaced = unpaced.map(|step| (step.antagonist * unit, step.rate));
    let mut points: Vec<(f64, f64)> = Vec::new();
    for observation in runs.observations() {
        let beside = match observation.phase {
            Phase::Alone { load: other } if other == load => 0.0,
            Phase::Beside { load: other, antagonist: beside, .. }
                if other == load && beside == antagonist =>
            {
                observation.loads[antagonist].amount() * unit
            }
            _ => continue,
        };
        points.push((beside, observation.loads[load].amount()));
    }
    let ladder = Ladder::fit(&points).ok().filter(|ladder| {
        (ladder.capacity / capacity - 1.0).abs() <= SAME_CAPACITY && ladder.interval.1 < 1.5 * ladder.per_byte
    });
    let own = fitted.uses[load][at];
    // Two unpaced loads fill the resource. A small difference to the antagonist's rate alone is noise. A starved load does not
    // show what it takes.
    let below = unpaced.filter(|(_, rate)| *rate >= STARVED * alone).map(|(beside, rate)| {
        if beside > NOT_FULL * capacity {
            0.0
        } else {
            use_below_share(capacity, beside, rate).unwrap_or(0.0)
        }
    });
    // The capacity of a link is known better than the slope of a ladder with few steps.
    let is_link = matches!(resource, Resource::LinkToDevice(_) | Resource::LinkFromDevice(_));
    let full =
        |(beside, rate): &&(f64, f64)| (STARVED * alone..SLOWED * alone).contains(rate) && *beside < capacity;
    let of_link: Vec<f64> =
        steps.iter().filter(full).map(|(beside, rate)| (capacity - beside) / rate).collect();
    let of_link = Estimate::of(&of_link).filter(|_| is_link && ladder.is_some()).map(|it| it.median);
    let measured = of_link.or(ladder.map(|ladder| ladder.per_byte)).or(below);
    // Amounts of the load, which its use turns into units below.
    let weight = unpaced.filter(|(_, rate)| *rate < SLOWED * alone).map(|(beside, rate)| rate / beside);
    // Time that a thread polls is no use: what the antagonist leaves is enough for the rate that it had then.
    let left = steps.iter().filter(|(beside, rate)| *beside < capacity && *rate > 0.0);
    let most = left.map(|(beside, rate)| (capacity - beside) / rate).fold(f64::INFINITY, f64::min);
    fitted.uses[load][at] = match (own, measured) {
        // The time that threads ran was counted, and a ladder is less exact.
        (Some(own), _) if is_time => {
            let disputed = most.is_finite() && own.per_byte > AGREE * most;
            Some(Known { per_byte: own.per_byte.min(most), weight, disputed, ..own })
        }
        (own, None) => own,
        (Some(own), Some(0.0)) => {
            // A load that takes little is seen only if that is more than the noise.
            let visible = own.per_byte * alone > 2.0 * (1.0 - NOT_FULL) * capacity;
            Some(Known {
                disputed: visible,
                per_byte: if visible { 0.0 } else { own.per_byte },
                weight,
                ..own
            })
        }
        (own, Some(per_byte)) => {
            let disputed = own.is_some_and(|own| {
                !(1.0 / AGREE..=AGREE).contains(&(own.per_byte / per_byte))
                    && own.per_byte * alone > 0.1 * capacity
            });
            Some(Known { per_byte, source: UseSource::Fitted, disputed, weight })
        }
    };
    let per_byte = fitted.per_byte(load, at).unwrap_or(0.0);
    if let Some(known) = &mut fitted.uses[load][at] {
        known.weight = known.weight.map(|weight| weight * per_byte);
    }
    // A link slows nothing before it is full, and neither does a core that the load fills alone.
    let is_sudden = is_link || is_time && per_byte * alone > 0.9 * capacity;
    let early =
        steps.iter().filter(|(beside, rate)| !is_sudden && beside + per_byte * rate < NOT_FULL * capacity);
    fitted.early[load][at] = early.map(|(beside, rate)| (*beside, (rate / alone).min(1.0))).collect();
}

/// Returns the runs of `load` beside `antagonist`, with the share of the antagonist in ascending order.
fn steps(runs: &SoloRuns, load: usize, antagonist: usize) -> Vec<Step> {
    // Predictions fit a hundred selections of a session, so look only once at the observations of other runs.
    let mut shares: Vec<(f64, Vec<&Observation>)> = Vec::new();
    for observation in runs.observations() {
        match observation.phase {
            Phase::Beside { load: of, antagonist: beside, share } if of == load && beside == antagonist => {
                match shares.iter_mut().find(|(known, _)| *known == share) {
                    Some((_, found)) => found.push(observation),
                    None => shares.push((share, vec![observation])),
                }
            }
            _ => {}
        }
    }
    let step = |(share, found): (f64, Vec<&Observation>)| {
        let median = |of: usize| {
            let amounts = found.iter().filter_map(|observation| Some(observation.loads.get(of)?.amount()));
            Some(Estimate::of(&amounts.collect::<Vec<_>>())?.median)
        };
        Some(Step { share, antagonist: median(antagonist)?, rate: median(load)? })
    };
    let mut steps: Vec<Step> = shares.into_iter().filter_map(step).collect();
    steps.sort_by(|one, other| one.share.total_cmp(&other.share));
    steps
}
