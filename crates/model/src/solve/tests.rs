//! Tests of the rates. Linear programs are the reference for max-min allocations, and the conditions of fairness and
//! of closed loops are checked directly.

use super::*;
use crate::network::{Flow, Resource};
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem as Program, Variable};
use proptest::prelude::*;

#[path = "large.rs"]
mod large;

const CLOSE: f64 = 1e-6;

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= CLOSE * one.abs().max(other.abs()).max(1e-9)
}

fn rates(solution: &Solution) -> Vec<f64> {
    solution.flows.iter().map(|flow| flow.rate).collect()
}

fn network(capacities: &[f64], sharing: Sharing) -> (Network, Vec<ResourceId>) {
    let mut network = Network::new();
    let add = |&capacity: &f64| network.add_resource(Resource { capacity, sharing }).unwrap();
    let ids = capacities.iter().map(add).collect();
    (network, ids)
}

#[test]
fn flows_share_a_link_equally_unless_they_need_less() {
    let (mut network, ids) = network(&[90.0], Sharing::Requester);
    for demand in [None, Some(10.0), None] {
        network.add_flow(Flow { demand, ..Flow::default().using(ids[0], 1.0) }).unwrap();
    }
    let solution = network.solve().unwrap();
    assert_eq!(rates(&solution), [40.0, 10.0, 40.0]);
    assert_eq!(solution.flows[0].limit, Limit::Resource(ids[0]));
    assert_eq!(solution.flows[1].limit, Limit::Demand);
    assert!(solution.resources[0].full && solution.settled);
    let margins = network.margins(&solution);
    assert_eq!(margins[0], Margin { rate: None, next: None });
    assert_eq!(margins[1], Margin { rate: Some(30.0), next: Some(Limit::Resource(ids[0])) });
}

#[test]
fn weights_and_requesters_divide_what_is_full() {
    for sharing in [Sharing::Requester, Sharing::Scheduler] {
        let (mut network, ids) = network(&[80.0], sharing);
        let one = Flow { requesters: 3.0, weight: 7.0, ..Flow::default().using(ids[0], 1.0) };
        network.add_flow(one).unwrap();
        network.add_flow(Flow::default().using(ids[0], 1.0)).unwrap();
        let expected = if sharing == Sharing::Requester { [60.0, 20.0] } else { [70.0, 10.0] };
        assert_eq!(rates(&network.solve().unwrap()), expected);
    }
}

#[test]
fn a_joint_ceiling_limits_both_directions_of_a_link() {
    let (mut network, ids) = network(&[55.0, 55.0, 101.6], Sharing::Requester);
    for direction in [0, 1] {
        let flow = Flow::default().using(ids[direction], 1.0).using(ids[2], 1.0);
        network.add_flow(flow).unwrap();
    }
    let solution = network.solve().unwrap();
    assert_eq!(rates(&solution), [50.8, 50.8]);
    assert_eq!(solution.flows[0].limit, Limit::Resource(ids[2]));
    let margin = network.margins(&solution)[0];
    assert_eq!(margin, Margin { rate: Some(55.0), next: Some(Limit::Resource(ids[0])) });
}

#[test]
fn a_closed_loop_has_its_window_in_each_round_trip() {
    let (mut network, ids) = network(&[1e9], Sharing::Fifo);
    network.add_flow(Flow::default().using(ids[0], 1.0).in_flight(4096.0, 10e-6)).unwrap();
    let solution = network.solve().unwrap();
    assert!(is_close(rates(&solution)[0], 409.6e6));
    assert_eq!(solution.flows[0].limit, Limit::Window);
    let margin = network.margins(&solution)[0];
    assert!(is_close(margin.rate.unwrap(), 1e9) && margin.next == Some(Limit::Resource(ids[0])));
}

#[test]
fn a_queue_is_shared_by_bytes_in_flight() {
    let (mut network, ids) = network(&[1e9], Sharing::Fifo);
    for bytes in [300e3, 100e3] {
        network.add_flow(Flow::default().using(ids[0], 1.0).in_flight(bytes, 0.0)).unwrap();
    }
    let solution = network.solve().unwrap();
    assert!(is_close(rates(&solution)[0], 750e6) && is_close(rates(&solution)[1], 250e6), "{solution:?}");
    // Little's law: 400 kB wait in a queue of 1 GB/s.
    assert!(is_close(solution.resources[0].delay, 400e-6));
    assert_eq!(solution.flows[0].limit, Limit::Resource(ids[0]));
}

#[test]
fn a_follower_has_the_rate_of_its_leader() {
    let (mut network, ids) = network(&[100.0, 30.0], Sharing::Requester);
    let leader = network.add_flow(Flow::default().using(ids[0], 1.0)).unwrap();
    let sends = Flow { follows: Some((leader, 0.5)), ..Flow::default().using(ids[1], 1.0) };
    let follower = network.add_flow(sends).unwrap();
    let last = Flow { follows: Some((follower, 2.0)), ..Flow::default().using(ids[0], 1.0) };
    network.add_flow(last).unwrap();
    let solution = network.solve().unwrap();
    assert_eq!(rates(&solution), [50.0, 25.0, 50.0]);
    assert_eq!(solution.flows[1].limit, Limit::Resource(ids[0]));
    assert_eq!(solution.resources[1].used, 25.0);
}

#[test]
fn contradicting_weights_still_fill_the_resources() {
    let mut network = Network::new();
    let one = network.add_resource(Resource { capacity: 3.0, sharing: Sharing::Requester }).unwrap();
    let other = network.add_resource(Resource { capacity: 3.0, sharing: Sharing::Scheduler }).unwrap();
    for (requesters, weight) in [(2.0, 1.0), (1.0, 2.0)] {
        let flow = Flow { requesters, weight, ..Flow::default().using(one, 1.0).using(other, 1.0) };
        network.add_flow(flow).unwrap();
    }
    assert_eq!(rates(&network.solve().unwrap()), [1.5, 1.5]);
}

#[test]
fn unusable_numbers_are_refused() {
    let mut network = Network::new();
    for capacity in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e31, 1e-31] {
        assert!(network.add_resource(Resource::new(capacity)).is_err(), "{capacity}");
    }
    let link = network.add_resource(Resource::new(1.0)).unwrap();
    let base = || Flow::default().using(link, 1.0);
    let bad = [
        Flow::default().using(link, -1.0),
        Flow::default().using(link, f64::NAN),
        Flow::default().using(ResourceId(7), 1.0),
        base().at_most(0.0),
        base().at_most(f64::INFINITY),
        base().in_flight(0.0, 1.0),
        base().in_flight(1.0, -1.0),
        Flow { weight: 0.0, ..base() },
        Flow { requesters: f64::NAN, ..base() },
        Flow { follows: Some((FlowId(0), 1.0)), ..base() },
    ];
    for flow in bad {
        assert!(network.add_flow(flow.clone()).is_err(), "{flow:?}");
    }
    network.add_flow(Flow::default()).unwrap();
    assert!(matches!(network.solve(), Err(Error::Unlimited { flow: FlowId(0) })));
    let (mut network, ids) = self::network(&[1.0], Sharing::Fifo);
    network.add_flow(Flow::default().using(ids[0], 1.0)).unwrap();
    assert!(network.solve().is_ok(), "a flow that is alone at a queue needs no window");
    network.add_flow(Flow::default().using(ids[0], 1.0).in_flight(1.0, 0.0)).unwrap();
    assert!(matches!(network.solve(), Err(Error::NoWindow { flow: FlowId(0), .. })));
}

/// The uses, weight and demand of a flow.
type FlowOf = (Vec<(usize, f64)>, f64, Option<f64>);

/// A random network.
#[derive(Clone, Debug)]
struct Instance {
    capacities: Vec<f64>,
    flows: Vec<FlowOf>,
}

fn instances(resources: usize, flows: usize) -> impl Strategy<Value = Instance> {
    let capacities = prop::collection::vec(0.5..20.0f64, 1..=resources);
    capacities.prop_flat_map(move |capacities| {
        let uses = prop::collection::vec((0..capacities.len(), 0.1..3.0f64), 1..4);
        let flow = (uses, 0.2..5.0f64, prop::option::of(0.1..10.0f64));
        let capacities = Just(capacities);
        (capacities, prop::collection::vec(flow, 1..=flows))
            .prop_map(|(capacities, flows)| Instance { capacities, flows })
    })
}

impl Instance {
    fn network(&self) -> Network {
        let (mut network, ids) = network(&self.capacities, Sharing::Scheduler);
        for (uses, weight, demand) in &self.flows {
            let uses = uses.iter().map(|(resource, per_byte)| (ids[*resource], *per_byte)).collect();
            network.add_flow(Flow { uses, weight: *weight, demand: *demand, ..Flow::default() }).unwrap();
        }
        network
    }

    /// A linear program whose variables are the rates and, last, the common level. `fixed` flows keep their
    /// rate. All other flows have at least their weight times the level.
    fn program(&self, fixed: &[Option<f64>], goal: Option<usize>, level: f64) -> (Program, Vec<Variable>) {
        let mut program = Program::new(OptimizationDirection::Maximize);
        let rates: Vec<Variable> = (self.flows.iter().enumerate())
            .map(|(flow, (_, _, demand))| {
                let most = demand.unwrap_or(f64::INFINITY);
                let range = fixed[flow].map_or((0.0, most), |rate| (rate, rate));
                program.add_var(f64::from(u8::from(goal == Some(flow))), range)
            })
            .collect();
        let common = program.add_var(f64::from(u8::from(goal.is_none())), (0.0, f64::INFINITY));
        for (flow, (_, weight, _)) in self.flows.iter().enumerate().filter(|(flow, _)| fixed[*flow].is_none())
        {
            if goal.is_none() {
                program.add_constraint([(rates[flow], 1.0), (common, -weight)], ComparisonOp::Ge, 0.0);
            } else {
                program.add_constraint([(rates[flow], 1.0)], ComparisonOp::Ge, weight * level * (1.0 - 1e-9));
            }
        }
        for (resource, capacity) in self.capacities.iter().enumerate() {
            let mut sum = LinearExpr::empty();
            let mut any = false;
            for (flow, (uses, ..)) in self.flows.iter().enumerate() {
                let per_byte: f64 = uses.iter().filter(|used| used.0 == resource).map(|used| used.1).sum();
                if per_byte > 0.0 {
                    sum.add(rates[flow], per_byte);
                    any = true;
                }
            }
            if any {
                program.add_constraint(sum, ComparisonOp::Le, *capacity * (1.0 + 1e-9));
            }
        }
        (program, [rates, vec![common]].concat())
    }

    /// Computes the max-min allocation by linear programs: raises the common level as far as possible, fixes
    /// the flows that cannot exceed it, and goes on with the others.
    fn oracle(&self) -> Vec<f64> {
        let mut fixed: Vec<Option<f64>> = vec![None; self.flows.len()];
        while fixed.iter().any(Option::is_none) {
            let (program, variables) = self.program(&fixed, None, 0.0);
            let solved = program.solve().expect("the level has a maximum");
            let level = solved.solution().unwrap().var_value(variables[self.flows.len()]);
            let mut next = fixed.clone();
            for flow in (0..self.flows.len()).filter(|flow| fixed[*flow].is_none()) {
                let (program, variables) = self.program(&fixed, Some(flow), level);
                let solved = program.solve().expect("the rate has a maximum");
                let most = solved.solution().unwrap().var_value(variables[flow]);
                let share = self.flows[flow].1 * level;
                if most <= share * (1.0 + 1e-6) {
                    next[flow] = Some(share);
                }
            }
            assert_ne!(next, fixed, "a level has at least one flow that cannot exceed it");
            fixed = next;
        }
        fixed.into_iter().flatten().collect()
    }
}

proptest! {
    #[test]
    fn rates_are_those_of_linear_programs(instance in instances(4, 6)) {
        let (solved, expected) = (rates(&instance.network().solve().unwrap()), instance.oracle());
        for (one, other) in solved.iter().zip(&expected) {
            prop_assert!((one - other).abs() <= 1e-4 * other.max(1e-3), "{solved:?} and not {expected:?}");
        }
    }

    /// A flow below its demand has a full resource at which no flow has more for its weight. It can
    /// therefore grow only if a flow that has no more shrinks.
    #[test]
    fn no_flow_can_grow_unless_a_smaller_one_shrinks(instance in instances(12, 40)) {
        let solution = instance.network().solve().unwrap();
        for (index, capacity) in instance.capacities.iter().enumerate() {
            prop_assert!(solution.resources[index].used <= capacity * (1.0 + 1e-9));
        }
        for (flow, (uses, weight, demand)) in solution.flows.iter().zip(&instance.flows) {
            if demand.is_some_and(|demand| is_close(demand, flow.rate)) {
                continue;
            }
            prop_assert!(demand.is_none_or(|demand| flow.rate < demand));
            let Limit::Resource(resource) = flow.limit else { panic!("{flow:?}") };
            prop_assert!(uses.iter().any(|used| used.0 == resource.0) && solution.resources[resource.0].full);
            for (other, (uses, other_weight, _)) in solution.flows.iter().zip(&instance.flows) {
                if uses.iter().any(|used| used.0 == resource.0) {
                    let (this, that) = (flow.rate / weight, other.rate / other_weight);
                    prop_assert!(that <= this * (1.0 + CLOSE), "{that} > {this}");
                }
            }
        }
    }

    /// Lifting a limit never makes the flow slower, in networks with one resource.
    #[test]
    fn margins_are_gains(instance in instances(1, 8)) {
        let network = instance.network();
        let solution = network.solve().unwrap();
        for (flow, margin) in solution.flows.iter().zip(network.margins(&solution)) {
            prop_assert!(margin.rate.is_none_or(|rate| rate >= flow.rate * (1.0 - CLOSE)));
        }
    }

    /// Closed loops have the rate of their round trip, and only full queues delay.
    #[test]
    fn closed_loops_wait_in_full_queues_only(
        capacities in prop::collection::vec(0.5..20.0f64, 1..5),
        flows in prop::collection::vec(
            (prop::collection::btree_set(0usize..5, 1..3), 0.1..20.0f64, 0.0..2.0f64, prop::option::of(0.1..9.0f64)),
            1..10
        ),
    ) {
        let (mut network, ids) = network(&capacities, Sharing::Fifo);
        let used = |resources: &std::collections::BTreeSet<usize>| -> Vec<_> {
            resources.iter().map(|resource| (ids[resource % ids.len()], 1.0)).collect()
        };
        for (resources, bytes, latency, demand) in &flows {
            let flow = Flow { uses: used(resources), demand: *demand, ..Flow::default() };
            network.add_flow(flow.in_flight(*bytes, *latency)).unwrap();
        }
        let solution = network.solve().unwrap();
        prop_assert!(solution.settled);
        for (resource, capacity) in solution.resources.iter().zip(&capacities) {
            prop_assert!(resource.used <= capacity * (1.0 + 1e-9));
            prop_assert!(resource.delay == 0.0 || resource.full, "{resource:?} of {capacity}");
        }
        for (flow, (resources, bytes, latency, demand)) in solution.flows.iter().zip(&flows) {
            let distinct: std::collections::BTreeSet<_> = used(resources).into_iter().map(|used| used.0).collect();
            let wait: f64 = distinct.iter().map(|resource| solution.resources[resource.0].delay).sum();
            let expected = (bytes / (latency + wait)).min(demand.unwrap_or(f64::INFINITY));
            // A loop without latency is limited by the filling if no queue delays it.
            prop_assert!(
                is_close(flow.rate, expected) || (flow.rate < expected && wait == 0.0),
                "{flow:?} and not {expected}"
            );
        }
    }
}

/// 10,000 flows over 1,000 resources take less than a second of processor time in a release build. The bound is
/// generous, because tests run without optimization.
#[test]
fn large_networks_are_solved_in_time() {
    let mixed = |index: usize| {
        [Sharing::Requester, Sharing::Scheduler, Sharing::Fifo][usize::from(index.is_multiple_of(50)) * 2]
    };
    for sharing in [&(|_| Sharing::Scheduler) as &dyn Fn(usize) -> Sharing, &mixed, &|_| Sharing::Fifo] {
        let network = large::network(10_000, 1_000, 7, sharing);
        let began = large::processor_seconds();
        let solution = network.solve().unwrap();
        let took = large::processor_seconds() - began;
        eprintln!("solved in {took:.2} s, settled: {}", solution.settled);
        assert!(took < 15.0, "{took} s");
    }
}

proptest! {
    /// Queues and other resources together: nothing exceeds its capacity, and each flow has a limit.
    #[test]
    fn queues_and_other_resources_fit_together(
        seed in any::<u64>(),
        flows in 1..40usize,
        resources in 1..12usize,
        kinds in prop::collection::vec(0..3usize, 12),
    ) {
        let sharing = |index: usize| [Sharing::Requester, Sharing::Scheduler, Sharing::Fifo][kinds[index]];
        let network = large::network(flows, resources, seed, sharing);
        let solution = network.solve().unwrap();
        for (used, resource) in solution.resources.iter().zip(&network.resources) {
            prop_assert!(used.used <= resource.capacity * (1.0 + 1e-9));
        }
        for (rate, flow) in solution.flows.iter().zip(&network.flows) {
            prop_assert!(rate.rate > 0.0);
            let limited = match rate.limit {
                Limit::Resource(resource) => solution.resources[resource.0].full,
                Limit::Demand => flow.demand.is_some_and(|demand| is_close(demand, rate.rate)),
                Limit::Window => flow.window.is_some_and(|window| window.bytes / rate.rate >= window.latency * 0.999),
            };
            prop_assert!(limited || !solution.settled, "{rate:?} {flow:?}");
        }
    }
}

#[test]
fn the_most_rounds_are_done_in_time() {
    let network = large::rounds(3_000);
    let began = large::processor_seconds();
    network.solve().unwrap();
    let took = large::processor_seconds() - began;
    assert!(took < 15.0, "{took} s");
}
