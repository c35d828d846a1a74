//! Predicts the rates of loads in mixes from solo runs, and compares them with measurements.
//!
//! The input is [`SoloRuns`], which contains no observation of a mix. So a prediction can be written before the mixes run.
//!
//! Uses and capacities come from ladders of antagonists. [`inlane_model`] computes the rates: weighted max-min fairness. The
//! weights are those with which the loads competed with the antagonist of each resource: in time of a core, not in bytes. A
//! thread that polls has its part of the core whatever its load moves. The directions of a link have a ceiling together, and are
//! divided as the module `link` says. Before a resource is full, the model slows no load. So each load's demand is first reduced
//! by what it lost beside an antagonist that took as much as the other loads of the mix do.

mod link;
mod residual;

use link::{Joint, Links};
pub use residual::{Accuracy, Residual, accuracy, residuals};

use crate::observation::{Observation, Phase};
use crate::solo::{Fitted, SoloRuns};
use crate::statistics;
use crate::verdict::Bottleneck;
use inlane_core::load::Resource;
use inlane_model::{Flow, Limit, Network};

/// The number of random selections of blocks from which an interval follows.
const SELECTIONS: usize = 100;
/// The seed of the selections. It is fixed so that a prediction can be computed again.
const SEED: u64 = 0x1f83_d9ab;
/// The least weight of a load at a resource. The largest one is 1.
const LEAST_WEIGHT: f64 = 1e-9;
/// Threads that are on a processor for this share of the time, beyond the time in which they have work, poll.
const POLLS: f64 = 0.5;
/// Turns in which demands and rates adapt to each other.
const TURNS: usize = 8;

/// What loads will reach in mixes.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Each pair of the user's loads, and all of them if there are more than two. Mixes with a load whose rate alone is
    /// unknown are left out.
    pub mixes: Vec<Mix>,
    /// The uses and capacities behind it.
    pub fitted: Fitted,
}

/// A predicted mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The phase that will measure it.
    pub phase: Phase,
    /// One entry for each load of the mix.
    pub rates: Vec<Predicted>,
}

/// The predicted rate of a load in a mix, in bytes per second, or in operations per second if it moves no bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Predicted {
    /// The load.
    pub load: usize,
    /// The predicted rate.
    pub rate: f64,
    /// The interval of the rate from the spread of the solo runs: about 95 of 100 selections of their blocks lie in it. It
    /// does not contain errors of the model itself.
    pub interval: (f64, f64),
    /// What will limit the load. `None` if it runs as fast as alone, or slows down before a resource is full.
    pub limit: Option<Bottleneck>,
    /// The rate without interference: that of the load alone.
    pub alone: f64,
    /// The rate if each resource were divided into equal parts among the loads that use it.
    pub equal_split: f64,
}

/// Predicts all mixes of the user's loads.
///
/// # Errors
/// [`inlane_model::Error`] if a measured number is outside the model's range.
pub fn predict(runs: &SoloRuns) -> inlane_model::Result<Prediction> {
    let fitted = runs.fit();
    let mut random = SEED;
    let blocks = runs.blocks();
    let selections: Vec<(SoloRuns, Fitted)> = (0..if blocks > 1 { SELECTIONS } else { 0 })
        .map(|_| {
            let selected: Vec<usize> = (0..blocks).map(|_| below(&mut random, blocks)).collect();
            let runs = runs.with_blocks(&selected);
            let fitted = runs.fit();
            (runs, fitted)
        })
        .collect();
    let mut mixes = Vec::new();
    for (phase, loads) in mixes_of(runs.users()) {
        if loads.iter().any(|load| runs.alone(*load).is_none()) {
            continue;
        }
        let rates = rates(runs, &fitted, &loads)?;
        let mut spread: Vec<Vec<f64>> = vec![Vec::new(); loads.len()];
        for (runs, fitted) in &selections {
            // A selection can lack the only block in which a load ran.
            if loads.iter().all(|load| runs.alone(*load).is_some()) {
                let rates = self::rates(runs, fitted, &loads)?;
                spread.iter_mut().zip(rates).for_each(|(spread, (rate, _))| spread.push(rate));
            }
        }
        let predicted =
            loads.iter().zip(rates).zip(spread).map(|((&load, (rate, limit)), spread)| Predicted {
                load,
                rate,
                interval: if spread.is_empty() { (0.0, f64::INFINITY) } else { middle(spread) },
                limit,
                alone: runs.alone(load).unwrap_or(0.0),
                equal_split: equal_split(runs, &fitted, &loads, load),
            });
        mixes.push(Mix { phase, rates: predicted.collect() });
    }
    Ok(Prediction { mixes, fitted })
}

/// Returns the mixes of `users` loads with the phases that measure them.
fn mixes_of(users: usize) -> Vec<(Phase, Vec<usize>)> {
    let pairs = (0..users).flat_map(|one| (one + 1..users).map(move |other| (one, other)));
    let mut mixes: Vec<_> = match users {
        0..3 => Vec::new(),
        _ => pairs.map(|(one, other)| (Phase::Pair { one, other }, vec![one, other])).collect(),
    };
    if users > 1 {
        mixes.push((Phase::Together, (0..users).collect()));
    }
    mixes
}

/// Something that the loads of a mix share. Its vectors have an entry for each load of the mix.
struct Shared {
    name: Bottleneck,
    capacity: f64,
    /// Units for each byte.
    uses: Vec<f64>,
    /// The units that a load gets, in relation to the others, while all compete.
    weights: Vec<f64>,
    /// How each load slows down before the resource is full: see [`Fitted::early`].
    early: Vec<Vec<(f64, f64)>>,
    /// True for a load that holds its part of the resource, a core, also without work, because its threads poll.
    polls: Vec<bool>,
}

/// Returns what the loads of a mix share.
fn shared(runs: &SoloRuns, fitted: &Fitted, loads: &[usize], alone: &[f64]) -> Vec<Shared> {
    let of_users: Vec<f64> = (0..runs.users()).map(|load| runs.alone(load).unwrap_or(0.0)).collect();
    let links = Links { loaded: runs.loads(), users: runs.users(), fitted, alone: &of_users };
    let mut shared = Vec::new();
    for (at, resource) in fitted.resources.iter().enumerate() {
        let Some(capacity) = fitted.capacities[at] else { continue };
        let uses: Vec<f64> = loads.iter().map(|load| fitted.per_byte(*load, at).unwrap_or(0.0)).collect();
        let weights = match resource {
            Resource::LinkToDevice(device) | Resource::LinkFromDevice(device) => {
                let bytes = links.weights(loads, device);
                bytes.iter().zip(&uses).map(|(bytes, per_byte)| bytes * per_byte).collect()
            }
            _ => loads
                .iter()
                .map(|load| fitted.uses[*load][at].and_then(|of| of.weight).unwrap_or(1.0))
                .collect(),
        };
        let early = loads.iter().map(|load| fitted.early[*load][at].clone()).collect();
        let is_core = matches!(resource, Resource::Core(_));
        let polls = loads.iter().zip(&uses).map(|(load, uses)| is_core && *uses > 0.0 && polls(runs, *load));
        let (name, polls) = (Bottleneck::Resource(resource.clone()), polls.collect());
        shared.push(Shared { name, capacity, uses, weights, early, polls });
    }
    for device in links.devices(loads) {
        if let Some(Joint { capacity, uses }) = links.joint(loads, &device) {
            let bytes = links.weights(loads, &device);
            let weights = bytes.iter().zip(&uses).map(|(bytes, per_byte)| bytes * per_byte).collect();
            let name = Bottleneck::BothDirections(device);
            let (early, polls) = (vec![Vec::new(); alone.len()], vec![false; alone.len()]);
            shared.push(Shared { name, capacity, uses, weights, early, polls });
        }
    }
    shared
}

/// Returns true if the threads of a load have a processor for much of the time in which they have no work.
fn polls(runs: &SoloRuns, load: usize) -> bool {
    let idle = |observation: &Observation| {
        let rate = &observation.loads[load];
        Some(rate.on_processor? - rate.busy?)
    };
    let idle = statistics::estimate(runs.observations(), Phase::Alone { load }, idle);
    idle.is_some_and(|idle| idle.median > POLLS)
}

/// Returns the rate of each of `loads` together, and what limits it.
fn rates(
    runs: &SoloRuns,
    fitted: &Fitted,
    loads: &[usize],
) -> inlane_model::Result<Vec<(f64, Option<Bottleneck>)>> {
    let alone: Vec<f64> = loads.iter().map(|load| runs.alone(*load).unwrap_or(0.0)).collect();
    let shared = shared(runs, fitted, loads, &alone);
    let mut demands = alone.clone();
    let mut solved: Vec<(f64, Option<Bottleneck>)> = alone.iter().map(|rate| (*rate, None)).collect();
    for _ in 0..TURNS {
        let (network, held) = network(&shared, &demands)?;
        let solution = network.solve()?;
        let limit = |limit| match limit {
            Limit::Resource(id) => Some(shared[id.index()].name.clone()),
            Limit::Demand | Limit::Window => None,
        };
        solved = solution.flows[..loads.len()].iter().map(|flow| (flow.rate, limit(flow.limit))).collect();
        // What the others take slows each load down before a resource is full.
        let slowed = |load: usize, of: &Shared| {
            let others = (0..loads.len()).filter(|other| *other != load);
            factor(&of.early[load], others.map(|other| of.uses[other] * solved[other].0).sum())
        };
        for (load, demand) in demands.iter_mut().enumerate() {
            let next = alone[load] * shared.iter().map(|of| slowed(load, of)).product::<f64>();
            // Half a step, because demands of loads that slow each other down would alternate otherwise.
            *demand = (*demand + next) / 2.0;
        }
        // A load that polls is as fast as the time of its core allows.
        for (&(load, at), most) in held.iter().zip(&solution.flows[loads.len()..]) {
            if most.rate < solved[load].0 {
                solved[load] = (most.rate, Some(shared[at].name.clone()));
            }
            demands[load] = demands[load].min(most.rate);
        }
    }
    Ok(solved)
}

/// Creates the network of a mix: a flow for each load, and then one for each core that a load holds while it polls. Returns these
/// loads and cores, too.
fn network(shared: &[Shared], demands: &[f64]) -> inlane_model::Result<(Network, Vec<(usize, usize)>)> {
    let mut network = Network::new();
    let ids: Vec<_> = shared
        .iter()
        .map(|of| network.add_resource(inlane_model::Resource::new(of.capacity)))
        .collect::<Result<_, _>>()?;
    // The network divides bytes, and a resource such as a core divides units.
    let bytes = |of: &Shared, load: usize| of.weights[load] / of.uses[load];
    let weight = |of: &Shared, load: usize| {
        let users = (0..demands.len()).filter(|load| of.uses[*load] > 0.0);
        let largest = users.map(|load| bytes(of, load)).fold(0.0, f64::max);
        (bytes(of, load) / largest).max(LEAST_WEIGHT)
    };
    let mut held = Vec::new();
    for (load, &demand) in demands.iter().enumerate() {
        let mut flow = Flow { demand: Some(demand), ..Flow::default() };
        for (at, of) in shared.iter().enumerate().filter(|(_, of)| of.uses[load] > 0.0) {
            if of.polls[load] {
                held.push((load, at));
                continue;
            }
            flow = flow.using(ids[at], of.uses[load]);
            flow.weights.push((ids[at], weight(of, load)));
        }
        network.add_flow(flow)?;
    }
    for &(load, at) in &held {
        let (of, id) = (&shared[at], ids[at]);
        let demand = of.capacity / of.uses[load];
        let mut flow = Flow { demand: Some(demand), ..Flow::default() }.using(id, of.uses[load]);
        flow.weights.push((id, weight(of, load)));
        network.add_flow(flow)?;
    }
    Ok((network, held))
}

/// Returns the factor of a load's rate while others take `taken`. Interpolates between the steps, which start at (0, 1).
fn factor(steps: &[(f64, f64)], taken: f64) -> f64 {
    let mut before = (0.0, 1.0);
    for &step in steps {
        if taken <= step.0 {
            let share = if step.0 > before.0 { (taken - before.0) / (step.0 - before.0) } else { 1.0 };
            return before.1 + share * (step.1 - before.1);
        }
        before = step;
    }
    before.1
}

/// Returns the rate of `load` if it gets an equal part of each resource that it uses.
fn equal_split(runs: &SoloRuns, fitted: &Fitted, loads: &[usize], load: usize) -> f64 {
    let uses = |load: usize, at: usize| fitted.per_byte(load, at).filter(|per_byte| *per_byte > 0.0);
    let part = |(at, capacity): (usize, &Option<f64>)| {
        let users = loads.iter().filter(|other| uses(**other, at).is_some()).count();
        Some((*capacity)? / users as f64 / uses(load, at)?)
    };
    let parts = fitted.capacities.iter().enumerate().filter_map(part);
    parts.fold(runs.alone(load).unwrap_or(0.0), f64::min)
}

/// Returns a pseudo-random number below `end`.
fn below(state: &mut u64, end: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 33) as usize) % end
}

/// Returns the interval that contains the middle 95 % of `values`.
fn middle(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let out = (values.len() as f64 * 0.025) as usize;
    (values[out], values[values.len() - 1 - out])
}

#[cfg(test)]
mod tests;
