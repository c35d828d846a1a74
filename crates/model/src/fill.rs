//! Weighted max-min allocation by progressive filling.
//!
//! If each flow has the same weight at all its resources, all flows grow together: each has the rate *weight times
//! level*, and the level rises. When a resource becomes full, its flows stop growing. A heap orders these events by
//! level. The result is the only max-min fair allocation.
//!
//! If the weights of a flow differ between resources, there is no common level, and the allocation is made in rounds.
//! A round computes the offer to each flow: the lowest share that any of its resources gives it. If the offers fill a
//! resource, its flows get their offers and stop. It is possible that the offers fill no resource, because each
//! resource has flows with lower offers elsewhere. The round then raises all offers by one factor until a resource is
//! full. Therefore each flow that has not reached its cap uses a full resource in the end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The relative difference below which two rates count as equal.
const EPSILON: f64 = 1e-12;

/// A flow's use of one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// The index of the resource.
    pub resource: usize,
    /// Units for each byte.
    pub per_byte: f64,
    /// The flow's weight at the resource.
    pub weight: f64,
}

/// What limits a flow in an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limiter {
    /// The resource with this index.
    Resource(usize),
    /// The flow's own highest rate.
    Cap,
}

/// The rates of flows.
#[derive(Clone, Debug)]
pub(crate) struct Filled {
    /// The rate of each flow. Infinite if nothing limits the flow.
    pub rates: Vec<f64>,
    /// What limits each flow.
    pub limiters: Vec<Limiter>,
}

/// The uses of all flows, one flow after the other. A flow uses each resource once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    all: Vec<Use>,
    starts: Vec<usize>,
}

impl Uses {
    /// Adds a flow.
    pub fn push(&mut self, uses: impl IntoIterator<Item = Use>) {
        self.starts.push(self.all.len());
        self.all.extend(uses);
    }

    /// Returns the uses of a flow.
    pub fn of(&self, flow: usize) -> &[Use] {
        &self.all[self.range(flow)]
    }

    fn range(&self, flow: usize) -> std::ops::Range<usize> {
        self.starts[flow]..self.starts.get(flow + 1).copied().unwrap_or(self.all.len())
    }
}

/// Allocates `capacities` to flows. No flow exceeds its cap, which may be infinite or zero.
pub(crate) fn fill(capacities: &[f64], uses: &Uses, caps: &[f64]) -> Filled {
    let has_one_weight = |flow: usize| uses.of(flow).windows(2).all(|pair| pair[0].weight == pair[1].weight);
    match (0..caps.len()).all(has_one_weight) {
        true => by_level(capacities, uses, caps),
        false => by_rounds(capacities, uses, caps),
    }
}

/// A positive number that can be ordered.
#[derive(Clone, Copy, PartialEq)]
struct Level(f64);

impl Eq for Level {}

impl PartialOrd for Level {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Level {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Allocates to flows that each have the same weight at all their resources.
fn by_level(capacities: &[f64], uses: &Uses, caps: &[f64]) -> Filled {
    let weight = |flow: usize| uses.of(flow).first().map_or(1.0, |used| used.weight);
    let mut filled = Filled { rates: vec![f64::NAN; caps.len()], limiters: vec![Limiter::Cap; caps.len()] };
    let mut left = capacities.to_vec();
    // For each resource, the flows that still grow, with the units that each takes when the level rises by 1.
    let mut active: Vec<Vec<(usize, f64)>> = vec![Vec::new(); left.len()];
    for flow in 0..caps.len() {
        for used in uses.of(flow) {
            active[used.resource].push((flow, used.per_byte * used.weight));
        }
    }
    // The level at which a resource is full may have risen since its entry was pushed. The entry is then pushed again
    // with the new level. At the same level, caps come before resources.
    let mut events: BinaryHeap<Reverse<(Level, Result<usize, usize>)>> = BinaryHeap::new();
    events.extend((0..caps.len()).map(|flow| Reverse((Level(caps[flow] / weight(flow)), Ok(flow)))));
    // Add up the units again each time, because subtracting would accumulate rounding errors.
    let level_of =
        |left: f64, active: &[(usize, f64)]| Level(left / active.iter().map(|flow| flow.1).sum::<f64>());
    let used = (0..left.len()).filter(|at| !active[*at].is_empty());
    events.extend(used.map(|at| Reverse((level_of(left[at], &active[at]), Err(at)))));
    while let Some(Reverse((level, event))) = events.pop() {
        let stopped: Vec<usize> = match event {
            Ok(flow) if filled.rates[flow].is_nan() => {
                filled.rates[flow] = caps[flow];
                vec![flow]
            }
            Ok(_) => continue,
            Err(resource) => {
                active[resource].retain(|(flow, _)| filled.rates[*flow].is_nan());
                if active[resource].is_empty() {
                    continue;
                }
                let now = level_of(left[resource], &active[resource]);
                if now > level {
                    events.push(Reverse((now, Err(resource))));
                    continue;
                }
                let stopped: Vec<usize> = active[resource].iter().map(|(flow, _)| *flow).collect();
                for &flow in &stopped {
                    filled.rates[flow] = (weight(flow) * now.0).min(caps[flow]);
                    filled.limiters[flow] = Limiter::Resource(resource);
                }
                stopped
            }
        };
        for (used, flow) in each_use(uses, &stopped) {
            let left = &mut left[used.resource];
            *left = (*left - used.per_byte * filled.rates[flow]).max(0.0);
        }
    }
    filled
}

/// Allocates to flows whose weights differ between resources.
fn by_rounds(capacities: &[f64], uses: &Uses, caps: &[f64]) -> Filled {
    let mut filled = Filled { rates: vec![0.0; caps.len()], limiters: vec![Limiter::Cap; caps.len()] };
    let mut left = capacities.to_vec();
    let mut active: Vec<usize> = (0..caps.len()).collect();
    let mut offers = vec![0.0; caps.len()];
    let (mut weights, mut totals) = (vec![0.0; left.len()], vec![0.0; left.len()]);
    while !active.is_empty() {
        weights.fill(0.0);
        totals.fill(0.0);
        for (used, _) in each_use(uses, &active) {
            weights[used.resource] += used.per_byte * used.weight;
        }
        for &flow in &active {
            let offer = |used: &Use| used.weight * (left[used.resource] / weights[used.resource]);
            offers[flow] = uses.of(flow).iter().map(offer).fold(caps[flow], f64::min);
        }
        for (used, flow) in each_use(uses, &active) {
            totals[used.resource] += used.per_byte * offers[flow];
        }
        // The factor by which all offers can grow until a resource is full or a flow reaches its cap. It is 1
        // unless weights differ between resources.
        let by_resource = totals.iter().zip(&left).map(|(total, left)| left / total);
        let by_cap = active.iter().map(|&flow| caps[flow] / offers[flow]);
        let growth =
            by_resource.chain(by_cap).filter(|growth| !growth.is_nan()).fold(f64::INFINITY, f64::min);
        let growth = if growth.is_finite() { growth.max(1.0) } else { 1.0 };
        let is_full = |resource: usize| {
            left[resource].is_finite() && totals[resource] * growth * (1.0 + EPSILON) >= left[resource]
        };
        let before = active.len();
        let mut taken = Vec::new();
        active.retain(|&flow| {
            let rate = offers[flow] * growth;
            let share = |used: &&Use| used.weight * (left[used.resource] / weights[used.resource]);
            let full = uses.of(flow).iter().filter(|used| is_full(used.resource));
            let tightest = full.min_by(|one, other| share(one).total_cmp(&share(other)));
            if rate * (1.0 + EPSILON) >= caps[flow] {
                (filled.rates[flow], filled.limiters[flow]) = (caps[flow], Limiter::Cap);
            } else if let Some(used) = tightest {
                (filled.rates[flow], filled.limiters[flow]) = (rate, Limiter::Resource(used.resource));
            } else {
                return true;
            }
            taken.push(flow);
            false
        });
        // A round ends at least one flow, because the factor is that of the first full resource or cap.
        debug_assert!(active.len() < before, "no progress");
        if active.len() == before {
            break;
        }
        for (used, flow) in each_use(uses, &taken) {
            let left = &mut left[used.resource];
            *left = (*left - used.per_byte * filled.rates[flow]).max(0.0);
        }
    }
    filled
}

/// Iterates over the uses of `flows`, each with its flow.
fn each_use<'a>(uses: &'a Uses, flows: &'a [usize]) -> impl Iterator<Item = (&'a Use, usize)> {
    flows.iter().flat_map(|&flow| uses.of(flow).iter().map(move |used| (used, flow)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Both ways to fill give the same rates if each flow has one weight.
        #[test]
        fn levels_and_rounds_agree(
            capacities in prop::collection::vec(0.5..20.0f64, 1..8),
            flows in prop::collection::vec(
                (prop::collection::btree_map(0usize..8, 0.1..3.0f64, 0..4), 0.2..5.0f64, prop::option::of(0.0..10.0f64)),
                1..30
            ),
        ) {
            let mut uses = Uses::default();
            for (used, weight, _) in &flows {
                let used = used.iter().filter(|(at, _)| **at < capacities.len()).map(|(at, per_byte)| (*at, *per_byte));
                uses.push(used.map(|(resource, per_byte)| Use { resource, per_byte, weight: *weight }));
            }
            let caps: Vec<f64> = flows.iter().map(|flow| flow.2.unwrap_or(f64::INFINITY)).collect();
            let (one, other) = (by_level(&capacities, &uses, &caps), by_rounds(&capacities, &uses, &caps));
            for (one, other) in one.rates.iter().zip(&other.rates) {
                prop_assert!(one == other || (one - other).abs() <= 1e-9 * one.max(1e-3), "{one} and {other}");
            }
        }
    }
}
