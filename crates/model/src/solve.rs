//! The rates of a network: progressive filling, with the delays of queues for closed loops.
//!
//! A closed loop with `W` bytes in flight has the rate `W / (L + D)`. `L` is its latency, and `D` is the sum of the
//! delays of the full [`Sharing::Fifo`] resources on its way. The delays are the smallest that keep these resources
//! within their capacity. Shares of other resources depend on the rates of closed loops, and the other way
//! round, so both are computed in turns until the rates no longer change. The last step is always a
//! filling, so no resource exceeds its capacity.

use crate::error::{Error, Result};
use crate::fill::{Filled, Limiter, Use, Uses, fill};
use crate::id::{FlowId, ResourceId};
use crate::network::{Network, Sharing, Window};

/// The relative change of rates at which the computation ends.
const SETTLED: f64 = 1e-7;
/// The most turns between delays and filling, and the most passes over all delays in a turn.
const TURNS: usize = 30;
const PASSES: usize = 100;
/// The relative accuracy of the delay of one queue.
const ACCURATE: f64 = 1e-11;
/// A resource counts as full if at least this share of its capacity is used.
const FULL: f64 = 1.0 - 1e-6;
/// The factor by which [`Network::margins`] raises a window to see what limits the flow next.
const WIDER: f64 = 1e6;

/// What limits the rate of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// A full resource.
    Resource(ResourceId),
    /// The flow's own highest rate, or that of a flow that follows it or that it follows.
    Demand,
    /// The bytes in flight: most of a round trip is latency and not delay in full queues.
    Window,
}

/// The rate of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowRate {
    /// Bytes per second.
    pub rate: f64,
    /// What limits the rate.
    pub limit: Limit,
}

/// The use of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceUse {
    /// Units per second that the flows take.
    pub used: f64,
    /// True if nothing is left of the capacity.
    pub full: bool,
    /// The seconds that an operation waits in the queue of a full [`Sharing::Fifo`] resource. Zero for others.
    pub delay: f64,
}

/// The rates of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// One entry for each flow, in the order in which the flows were added.
    pub flows: Vec<FlowRate>,
    /// One entry for each resource, in the order in which the resources were added.
    pub resources: Vec<ResourceUse>,
    /// False if the delays of queues still changed when the computation ended. The rates then fit into all
    /// resources, but closed loops may have a somewhat different share.
    pub settled: bool,
}

/// The rate of a flow if its limit were lifted, while all other flows adapt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// Bytes per second. `None` if nothing else limits the flow.
    pub rate: Option<f64>,
    /// What would limit the flow next. `None` if nothing else limits it.
    pub next: Option<Limit>,
}

/// A limit that is lifted.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Lifted {
    Nothing,
    Resource(usize),
    Demand(usize),
    Window(usize),
}

impl Network {
    /// Computes the rate of each flow and the use of each resource.
    ///
    /// # Errors
    /// [`Error::Unlimited`] if a flow has neither a resource nor a limit. [`Error::NoWindow`] if flows share a
    /// [`Sharing::Fifo`] resource and one of them has no window.
    pub fn solve(&self) -> Result<Solution> {
        let problem = Problem::new(self, Lifted::Nothing);
        problem.check_windows()?;
        let solution = problem.solve();
        match solution.flows.iter().position(|flow| flow.rate.is_infinite()) {
            Some(flow) => Err(Error::Unlimited { flow: FlowId(flow) }),
            None => Ok(solution),
        }
    }

    /// Computes the margin of each flow of `solution`: its rate if the resource, demand or window that limits it
    /// had no end. Solves the network once for each distinct limit.
    pub fn margins(&self, solution: &Solution) -> Vec<Margin> {
        let leaders = self.leaders();
        let mut solved = std::collections::HashMap::new();
        let flows = solution.flows.iter().enumerate();
        let margin = |(flow, FlowRate { limit, .. }): (usize, &FlowRate)| {
            let lifted = match limit {
                Limit::Resource(resource) => Lifted::Resource(resource.0),
                Limit::Demand => Lifted::Demand(leaders[flow].0),
                Limit::Window => Lifted::Window(leaders[flow].0),
            };
            let without = solved.entry(lifted).or_insert_with(|| Problem::new(self, lifted).solve());
            let FlowRate { rate, limit } = without.flows[flow];
            let limited = rate.is_finite();
            Margin { rate: limited.then_some(rate), next: limited.then_some(limit) }
        };
        flows.map(margin).collect()
    }

    /// Returns the leader of each flow, and the flow's bytes for each byte of the leader. The leader is the end of the
    /// chain of followed flows. A flow that follows none is its own leader.
    fn leaders(&self) -> Vec<(usize, f64)> {
        let mut leaders: Vec<(usize, f64)> = Vec::with_capacity(self.flows.len());
        for (index, flow) in self.flows.iter().enumerate() {
            leaders.push(match flow.follows {
                Some((leader, ratio)) => {
                    let (first, earlier) = leaders[leader.0];
                    (first, earlier * ratio)
                }
                None => (index, 1.0),
            });
        }
        leaders
    }
}

/// A network whose followers are merged into the flows that they follow.
struct Problem<'a> {
    network: &'a Network,
    leaders: Vec<(usize, f64)>,
    capacities: Vec<f64>,
    /// The units of each flow and of its followers for each byte of the flow. Followers have none.
    uses: Uses,
    /// The highest rate of each flow. Zero for followers.
    caps: Vec<f64>,
    windows: Vec<Option<Window>>,
    /// The flows at each [`Sharing::Fifo`] resource with their units for each byte. Empty for other resources.
    queues: Vec<Vec<(usize, f64)>>,
}

impl<'a> Problem<'a> {
    fn new(network: &'a Network, lifted: Lifted) -> Self {
        let leaders = network.leaders();
        let count = network.flows.len();
        let mut merged: Vec<Vec<(usize, f64)>> = vec![Vec::new(); count];
        let mut caps = vec![f64::INFINITY; count];
        for (index, flow) in network.flows.iter().enumerate() {
            let (leader, ratio) = leaders[index];
            let used = flow.uses.iter().filter(|(_, per_byte)| *per_byte > 0.0);
            merged[leader].extend(used.map(|(resource, per_byte)| (resource.0, per_byte * ratio)));
            if lifted != Lifted::Demand(leader) {
                caps[leader] = caps[leader].min(flow.demand.unwrap_or(f64::INFINITY) / ratio);
            }
            if leader != index {
                caps[index] = 0.0;
            }
        }
        let mut uses = Uses::default();
        let mut queues = vec![Vec::new(); network.resources.len()];
        for (index, (flow, merged)) in network.flows.iter().zip(&mut merged).enumerate() {
            merged.sort_by_key(|(resource, _)| *resource);
            merged.dedup_by(|next, first| {
                let same = next.0 == first.0;
                first.1 += if same { next.1 } else { 0.0 };
                same
            });
            uses.push(merged.iter().map(|&(resource, per_byte)| {
                let sharing = network.resources[resource].sharing;
                if sharing == Sharing::Fifo {
                    queues[resource].push((index, per_byte));
                }
                Use { resource, per_byte, weight: flow.weight_at(resource, sharing) }
            }));
        }
        let widened = |(index, window): (usize, Option<Window>)| {
            let factor = if lifted == Lifted::Window(index) { WIDER } else { 1.0 };
            window.map(|Window { bytes, latency }| Window { bytes: bytes * factor, latency })
        };
        let windows = network.flows.iter().map(|flow| flow.window).enumerate().map(widened).collect();
        let mut capacities: Vec<f64> = network.resources.iter().map(|resource| resource.capacity).collect();
        if let Lifted::Resource(resource) = lifted {
            capacities[resource] = f64::INFINITY;
        }
        Self { network, leaders, capacities, uses, caps, windows, queues }
    }

    fn check_windows(&self) -> Result<()> {
        for (resource, flows) in self.queues.iter().enumerate().filter(|(_, flows)| flows.len() > 1) {
            if let Some((flow, _)) = flows.iter().find(|(flow, _)| self.windows[*flow].is_none()) {
                return Err(Error::NoWindow { flow: FlowId(*flow), resource: ResourceId(resource) });
            }
        }
        Ok(())
    }

    fn solve(self) -> Solution {
        let mut delays = vec![0.0; self.capacities.len()];
        // The most that resources other than queues offer to each flow.
        let mut offered = vec![f64::INFINITY; self.caps.len()];
        let has_queues = self.queues.iter().any(|flows| !flows.is_empty());
        let mut settled = !has_queues;
        let mut filled = self.fill(&delays);
        let (mut last, mut damp) = (f64::INFINITY, false);
        for turn in 0..if has_queues { TURNS } else { 0 } {
            let quiet = self.find_delays(&mut delays, &offered);
            let next = self.fill(&delays);
            let pairs = next.rates.iter().zip(&filled.rates).filter(|(now, before)| now != before);
            let change =
                pairs.map(|(now, before)| (now - before).abs() / now.max(*before)).fold(0.0, f64::max);
            settled = quiet && turn > 0 && change <= SETTLED;
            filled = next;
            if settled {
                break;
            }
            // Offers and delays depend on each other and can oscillate. If the rates do not converge, damp the offers.
            damp |= turn > 2 && change > last / 2.0;
            last = change;
            self.offer(&filled, &mut offered, damp);
        }
        self.solution(&filled, &delays, settled)
    }

    /// Computes the highest rate that resources without queues offer to each flow. If such a resource limits the flow,
    /// this is the flow's rate. Otherwise each resource offers the larger of two rates: the flow's rate plus the unused
    /// capacity, and the highest rate for a unit of weight at this resource times the flow's weight. The lowest of
    /// these offers counts. If `damp` is set, takes the mean of the new and the last offer, because offers and delays
    /// can oscillate.
    fn offer(&self, Filled { rates, limiters }: &Filled, offered: &mut [f64], damp: bool) {
        let (mut left, mut levels) = (self.capacities.clone(), vec![0.0f64; self.capacities.len()]);
        for (flow, rate) in rates.iter().enumerate() {
            for used in self.uses.of(flow) {
                left[used.resource] -= used.per_byte * rate;
                levels[used.resource] = levels[used.resource].max(rate / used.weight);
            }
        }
        for (flow, offered) in offered.iter_mut().enumerate() {
            let others = self.uses.of(flow).iter().filter(|used| self.queues[used.resource].is_empty());
            let offer = |used: &Use| {
                let rest = rates[flow] + left[used.resource].max(0.0) / used.per_byte;
                rest.max(used.weight * levels[used.resource])
            };
            let now = match limiters[flow] {
                Limiter::Resource(resource) if self.queues[resource].is_empty() => rates[flow],
                _ => others.map(offer).fold(f64::INFINITY, f64::min),
            };
            let mean = damp && now.is_finite() && offered.is_finite();
            *offered = if mean { (*offered + now) / 2.0 } else { now };
        }
    }

    /// Returns the rate of a closed loop with these delays. Infinite for other flows.
    fn loop_rate(&self, flow: usize, delays: &[f64]) -> f64 {
        let Some(window) = self.windows[flow] else { return f64::INFINITY };
        let waits = self.uses.of(flow).iter().map(|used| delays[used.resource]);
        window.bytes / waits.fold(window.latency, |sum, delay| sum + delay)
    }

    fn fill(&self, delays: &[f64]) -> Filled {
        let caps: Vec<f64> =
            (0..self.caps.len()).map(|flow| self.caps[flow].min(self.loop_rate(flow, delays))).collect();
        fill(&self.capacities, &self.uses, &caps)
    }

    /// Finds the delays with which no queue exceeds its capacity. Each pass adapts one queue after the other. Returns
    /// false if the delays still changed in the last pass.
    fn find_delays(&self, delays: &mut [f64], offered: &[f64]) -> bool {
        let wait = |flow: usize, delays: &[f64]| {
            let waits = self.uses.of(flow).iter().map(|used| delays[used.resource]);
            waits.fold(self.windows[flow].map_or(0.0, |window| window.latency), |sum, delay| sum + delay)
        };
        let mut waits: Vec<f64> = (0..self.caps.len()).map(|flow| wait(flow, delays)).collect();
        // The queues to adapt again, because the delays of their flows at other queues have changed.
        let mut stale = vec![true; delays.len()];
        for _ in 0..PASSES {
            let mut quiet = true;
            for (resource, flows) in self.queues.iter().enumerate() {
                if !std::mem::take(&mut stale[resource]) {
                    continue;
                }
                // A flow without a window is alone at its queue, and needs no delay.
                let loops = flows.iter().filter_map(|&(flow, per_byte)| {
                    let others = (waits[flow] - delays[resource]).max(0.0);
                    let most = self.caps[flow].min(offered[flow]);
                    Some((per_byte, self.windows[flow]?.bytes, others, most))
                });
                let delay =
                    queue_delay(self.capacities[resource], &loops.collect::<Vec<_>>(), delays[resource]);
                let change = delay - delays[resource];
                if change.abs() > SETTLED * 0.1 * delay.max(delays[resource]) {
                    quiet = false;
                    for &(flow, _) in flows {
                        waits[flow] = (waits[flow] + change).max(0.0);
                        let elsewhere = self.uses.of(flow).iter().filter(|used| used.resource != resource);
                        elsewhere.for_each(|used| stale[used.resource] = true);
                    }
                    delays[resource] = delay;
                }
            }
            if quiet {
                return true;
            }
        }
        false
    }

    fn solution(self, filled: &Filled, delays: &[f64], settled: bool) -> Solution {
        let limit = |flow: usize| match filled.limiters[flow] {
            Limiter::Resource(resource) => Limit::Resource(ResourceId(resource)),
            Limiter::Cap if self.loop_rate(flow, delays) <= self.caps[flow] => {
                let used = self.uses.of(flow).iter().map(|used| (used.resource, delays[used.resource]));
                let longest = used.max_by(|one, other| one.1.total_cmp(&other.1));
                let latency = self.windows[flow].map_or(0.0, |window| window.latency);
                match longest.filter(|(_, delay)| *delay > 0.0 && *delay >= latency) {
                    Some((resource, _)) => Limit::Resource(ResourceId(resource)),
                    None => Limit::Window,
                }
            }
            Limiter::Cap => Limit::Demand,
        };
        let flows: Vec<FlowRate> = (self.leaders.iter())
            .map(|&(leader, ratio)| FlowRate { rate: filled.rates[leader] * ratio, limit: limit(leader) })
            .collect();
        let mut used = vec![0.0; self.capacities.len()];
        for flow in 0..self.caps.len() {
            for Use { resource, per_byte, .. } in self.uses.of(flow) {
                used[*resource] += per_byte * filled.rates[flow];
            }
        }
        let of_resource = |(index, used): (usize, f64)| {
            let capacity = self.network.resources[index].capacity;
            ResourceUse { used, full: used >= capacity * FULL, delay: delays[index] }
        };
        Solution { flows, resources: used.into_iter().enumerate().map(of_resource).collect(), settled }
    }
}

/// Returns the smallest delay with which the queue of a resource takes no more than `capacity`. Each of `loops` has
/// units for each byte, bytes in flight, seconds of the round trip outside this queue, and a highest rate.
fn queue_delay(capacity: f64, loops: &[(f64, f64, f64, f64)], guess: f64) -> f64 {
    // The units taken with a delay, and the derivative.
    let taken = |delay: f64| {
        let mut sums = (0.0, 0.0);
        for &(per_byte, bytes, others, most) in loops {
            let rate = bytes / (others + delay);
            if rate < most {
                sums.1 -= per_byte * rate / (others + delay);
            }
            sums.0 += per_byte * rate.min(most);
        }
        sums
    };
    if taken(0.0).0 <= capacity {
        return 0.0;
    }
    // `high` is an upper bound: with this delay, the loops stay within the capacity even if their round trips take no
    // other time.
    let (mut low, mut high) =
        (0.0, loops.iter().map(|(per_byte, bytes, ..)| per_byte * bytes / capacity).sum::<f64>());
    let mut delay = if guess > low && guess < high { guess } else { high };
    for _ in 0..200 {
        let (units, slope) = taken(delay);
        if units > capacity {
            low = delay
        } else {
            high = delay
        }
        if high - low <= high * ACCURATE {
            break;
        }
        let newton = delay + (capacity - units) / slope;
        let next = if newton > low && newton < high { newton } else { (low + high) / 2.0 };
        if (next - delay).abs() <= delay * ACCURATE {
            break;
        }
        delay = next;
    }
    delay
}

#[cfg(test)]
mod tests;
