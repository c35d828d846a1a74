//! Weighted max-min allocation by progressive filling.
//!
//! A round computes for each resource the level at which it would be full, and for each flow the lowest share
//! that its resources offer. All flows of a resource whose flows have no lower offer elsewhere get their
//! shares, and the resource is full. Their use is subtracted before the next round. With one weight for each flow,
//! the result is the only max-min fair allocation.
//!
//! If the weights of a flow differ between resources, every resource can wait for another. The round then raises
//! all offers by one factor until a resource is full. The result still gives each flow a full resource.

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

/// The uses of all flows, one flow after the other.
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

    /// Returns the uses of a flow for changes of weights.
    pub fn of_mut(&mut self, flow: usize) -> &mut [Use] {
        let range = self.range(flow);
        &mut self.all[range]
    }

    fn range(&self, flow: usize) -> std::ops::Range<usize> {
        self.starts[flow]..self.starts.get(flow + 1).copied().unwrap_or(self.all.len())
    }
}

/// Allocates `capacities` to flows. No flow exceeds its cap, which may be infinite or zero.
pub(crate) fn fill(capacities: &[f64], uses: &Uses, caps: &[f64]) -> Filled {
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
