//! The phases of a block, and their random order.

use crate::observation::{Loaded, Phase};
use inlane_core::load::Resource;

/// How loads are slowed, and how strong antagonists are.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// The fraction of its rate to which a load is slowed.
    pub throttled: f64,
    /// The fractions of its own rate at which an antagonist runs, in ascending order.
    pub ladder: Vec<f64>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { throttled: 0.85, ladder: vec![0.25, 0.5, 1.0] }
    }
}

/// Returns the phases of a block. For more than two loads, each pair is a phase, too. Phases that occur twice show how much equal phases differ.
///
/// `beside[i]` are the user's loads beside which load `i`, an antagonist, runs.
pub(crate) fn of_block(
    loaded: &[Loaded],
    users: usize,
    beside: &[Vec<usize>],
    shares: &Shares,
) -> Vec<Phase> {
    let mut phases = Vec::new();
    for load in 0..users {
        phases.extend([Phase::Alone { load }; 2]);
        phases.push(Phase::ThrottledAlone { load, share: shares.throttled });
    }
    if users > 2 {
        let pairs = (0..users).flat_map(|one| (one + 1..users).map(move |other| Phase::Pair { one, other }));
        phases.extend(pairs);
    }
    if users > 1 {
        phases.extend([Phase::Together; 2]);
        phases.extend((0..users).map(|load| Phase::Throttled { load, share: shares.throttled }));
    }
    for (antagonist, beside) in beside.iter().enumerate().take(loaded.len()).skip(users) {
        phases.push(Phase::Alone { load: antagonist });
        let of = &loaded[antagonist].antagonist_of;
        let is_core = matches!(of, Some(Resource::Core(_) | Resource::Processors));
        let takes = |user: &&Loaded| {
            loaded[antagonist].uses.iter().any(|of| user.uses.iter().any(|used| used.resource == of.resource))
        };
        let is_shared = loaded[..users].iter().filter(takes).count() > 1;
        // Cores of one load: a mix does not change what it gets of them, so one step shows whether they limit it.
        let middle = shares.ladder.get(shares.ladder.len() / 2..shares.ladder.len() / 2 + 1);
        let ladder = middle.filter(|_| is_core && !is_shared).unwrap_or(&shares.ladder);
        for &load in beside {
            phases.extend(ladder.iter().map(|&share| Phase::Beside { load, antagonist, share }));
        }
        // Shows whether the resource is full while all run. Cores of one load are as full as while it runs alone.
        let is_first = loaded[users..antagonist].iter().all(|earlier| earlier.antagonist_of != *of);
        if let Some(&share) =
            shares.ladder.first().filter(|_| users > 1 && (is_shared || !is_core) && is_first)
        {
            phases.push(Phase::TogetherBeside { antagonist, share });
        }
    }
    phases
}

/// Returns the phases whose rates the others depend on: each load and each antagonist alone, and all loads together.
pub(crate) fn of_reference(loads: usize, users: usize) -> Vec<Phase> {
    let alone = (0..loads).map(|load| Phase::Alone { load });
    alone.chain((users > 1).then_some(Phase::Together)).collect()
}

/// Puts `phases` into an order that depends on `seed` and `block`.
pub(crate) fn shuffle(phases: &mut [Phase], seed: u64, block: usize) {
    let mut state = seed ^ (block as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for last in (1..phases.len()).rev() {
        phases.swap(last, (next(&mut state) % (last as u64 + 1)) as usize);
    }
}

/// Returns the next number of SplitMix64, and advances its state.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::load::{Use, UseSource};

    #[test]
    fn a_block_has_each_phase_and_the_equal_ones_twice() {
        let loaded = |name: &str| Loaded {
            name: name.into(),
            uses: Vec::new(),
            asked: None,
            fed: false,
            in_flight: None,
            antagonist_of: None,
            cores: Vec::new(),
            threads: 1,
        };
        let loads = [loaded("a"), loaded("b"), loaded("on b")];
        let beside = [vec![], vec![], vec![1]];
        let phases = of_block(&loads, 2, &beside, &Shares::default());
        let count = |phase: Phase| phases.iter().filter(|other| **other == phase).count();
        assert_eq!(count(Phase::Together), 2);
        assert_eq!((count(Phase::Alone { load: 0 }), count(Phase::Alone { load: 2 })), (2, 1));
        assert_eq!(count(Phase::Throttled { load: 1, share: 0.85 }), 1);
        assert_eq!(count(Phase::Beside { load: 1, antagonist: 2, share: 0.5 }), 1);
        assert_eq!(phases.len(), 4 + 2 + 2 + 2 + 1 + 3 + 1);
        let one = of_block(&loads[..1], 1, &beside[..1], &Shares::default());
        let slowed = Phase::ThrottledAlone { load: 0, share: 0.85 };
        assert_eq!(
            one,
            [Phase::Alone { load: 0 }, Phase::Alone { load: 0 }, slowed],
            "a single load has no mix"
        );
        let loads = [loaded("a"), loaded("b"), loaded("c")];
        let core = |antagonist_of| Loaded {
            uses: vec![Use { resource: Resource::Core(3), per_byte: None, source: UseSource::Computed }],
            antagonist_of,
            ..loaded("on core 3")
        };
        let beside = [vec![], vec![], vec![1]];
        let count = |first: Loaded| {
            let loads = [first, core(None), core(Some(Resource::Core(3)))];
            let phases = of_block(&loads, 2, &beside, &Shares::default());
            let steps = phases.iter().filter(|phase| matches!(phase, Phase::Beside { .. })).count();
            (steps, phases.contains(&Phase::TogetherBeside { antagonist: 2, share: 0.25 }))
        };
        assert_eq!(count(core(None)), (3, true), "a shared core");
        assert_eq!(count(loaded("elsewhere")), (1, false), "a core of one load");
        let three = of_block(&loads, 3, &vec![Vec::new(); 3], &Shares::default());
        assert_eq!(three.iter().filter(|phase| matches!(phase, Phase::Pair { .. })).count(), 3);
    }

    #[test]
    fn the_order_depends_on_seed_and_block_only() {
        let ordered: Vec<Phase> = (0..20).map(|load| Phase::Alone { load }).collect();
        let shuffled = |seed, block| {
            let mut phases = ordered.clone();
            shuffle(&mut phases, seed, block);
            phases
        };
        assert_eq!(shuffled(1, 0), shuffled(1, 0));
        assert_ne!(shuffled(1, 0), shuffled(1, 1));
        assert_ne!(shuffled(1, 0), shuffled(2, 0));
        let mut sorted = shuffled(3, 5);
        sorted.sort_by_key(|phase| match phase {
            Phase::Alone { load } => *load,
            _ => usize::MAX,
        });
        assert_eq!(sorted, ordered);
    }
}
