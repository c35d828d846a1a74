//! Predicts the rates of loads in mixes from solo runs, and compares them with measurements.
//!
//! The input is [`SoloRuns`], which contains no observation of a mix. So a prediction can be written before the mixes run.
//!
//! Uses and capacities come from ladders of antagonists. [`inlane_model`] computes the rates: weighted max-min fairness. The
//! weights are those with which the loads competed with the antagonist of the resource that the mix needs most. Before a
//! resource is full, the model slows no load. So each load's demand is first reduced by what it lost beside an
//! antagonist that took as much as the other loads of the mix do.

mod residual;

pub use residual::{Accuracy, Residual, accuracy, residuals};

use crate::observation::Phase;
use crate::solo::{Fitted, SoloRuns};
use inlane_core::load::Resource;
use inlane_model::{Flow, Limit, Network};

/// The number of random selections of blocks from which an interval follows.
const SELECTIONS: usize = 100;
/// The seed of the selections. It is fixed so that a prediction can be computed again.
const SEED: u64 = 0x1f83_d9ab;
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
    /// The resource that will limit the load. `None` if it runs as fast as alone, or slows down before a resource is full.
    pub limit: Option<Resource>,
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
                limit: limit.map(|at| fitted.resources[at].clone()),
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

/// Returns the rate of each of `loads` together, and the index of the resource that limits it.
fn rates(
    runs: &SoloRuns,
    fitted: &Fitted,
    loads: &[usize],
) -> inlane_model::Result<Vec<(f64, Option<usize>)>> {
    let alone: Vec<f64> = loads.iter().map(|load| runs.alone(*load).unwrap_or(0.0)).collect();
    let uses = |load: usize, at: usize| fitted.per_byte(load, at).unwrap_or(0.0);
    let known: Vec<(usize, f64)> =
        fitted.capacities.iter().enumerate().filter_map(|(at, of)| Some((at, (*of)?))).collect();
    let needed = |(at, capacity): &(usize, f64)| {
        loads.iter().zip(&alone).map(|(load, alone)| uses(*load, *at) * alone).sum::<f64>() / capacity
    };
    let most = known.iter().max_by(|one, other| needed(one).total_cmp(&needed(other))).map(|(at, _)| *at);
    let weight = |load: usize| {
        let known = fitted.uses[load][most?]?;
        Some(known.weight?.clamp(0.01, 100.0))
    };
    let mut demands = alone.clone();
    let mut solved: Vec<(f64, Option<usize>)> = alone.iter().map(|rate| (*rate, None)).collect();
    for _ in 0..TURNS {
        let mut network = Network::new();
        let mut ids = Vec::new();
        for (_, capacity) in &known {
            ids.push(network.add_resource(inlane_model::Resource::new(*capacity))?);
        }
        for (&load, &demand) in loads.iter().zip(&demands) {
            let used = known.iter().zip(&ids).map(|((at, _), id)| (*id, uses(load, *at)));
            network.add_flow(Flow {
                uses: used.filter(|(_, per_byte)| *per_byte > 0.0).collect(),
                demand: Some(demand),
                requesters: weight(load).unwrap_or(1.0),
                ..Flow::default()
            })?;
        }
        let solution = network.solve()?;
        solved = solution
            .flows
            .iter()
            .map(|flow| {
                let limit = match flow.limit {
                    Limit::Resource(id) => Some(known[id.index()].0),
                    Limit::Demand | Limit::Window => None,
                };
                (flow.rate, limit)
            })
            .collect();
        // What the others take slows each load down before a resource is full.
        let others = |at: usize, but: usize| {
            let taken = loads.iter().zip(&solved).filter(|(load, _)| **load != but);
            taken.map(|(load, (rate, _))| uses(*load, at) * rate).sum::<f64>()
        };
        let slowed = |load: usize| {
            known.iter().map(|(at, _)| factor(&fitted.early[load][*at], others(*at, load))).product::<f64>()
        };
        let next: Vec<f64> = loads.iter().zip(&alone).map(|(load, alone)| alone * slowed(*load)).collect();
        // Half a step, because demands of loads that slow each other down would alternate otherwise.
        demands.iter_mut().zip(next).for_each(|(demand, next)| *demand = (*demand + next) / 2.0);
    }
    Ok(solved)
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
