use super::*;
use crate::observation::{LoadRate, Loaded, Signals, Void};

fn observed(phase: Phase, block: usize, rates: &[f64]) -> Observation {
    let loads = rates.iter().map(|rate| LoadRate { bytes_per_second: *rate, ..LoadRate::default() });
    Observation {
        phase,
        block,
        at_ns: 0,
        duration_ns: 1,
        loads: loads.collect(),
        signals: Signals::default(),
        void: None,
    }
}

fn session(observations: Vec<Observation>) -> Measured {
    let load = Loaded { name: "dma".to_owned(), ..Loaded::default() };
    Measured { loads: vec![load], users: 1, observations, ..Measured::default() }
}

/// A generator of pseudo-random numbers from 0 to 1.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as f64 / (1u64 << 31) as f64
}

#[test]
fn intervals_contain_the_true_median() {
    let mut state = 7;
    for (count, least) in [(3, 930), (4, 930), (6, 950), (9, 950), (20, 950)] {
        let mut inside = 0;
        for _ in 0..1000 {
            let values: Vec<f64> =
                (0..count).map(|_| (0..6).map(|_| random(&mut state)).sum::<f64>()).collect();
            let estimate = Estimate::of(&values).unwrap();
            inside += usize::from(estimate.low <= 3.0 && 3.0 <= estimate.high);
        }
        assert!(inside >= least, "{count} values: {inside} of 1000");
    }
    assert_eq!([6, 8, 9, 12, 20].map(outside), [0, 0, 1, 2, 5]);
    assert_eq!(Estimate::of(&[]), None);
    assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    assert!(!Estimate::of(&[5.0]).unwrap().is_significant());
}

#[test]
fn changes_are_compared_within_blocks() {
    // The rate halves from block to block, and the second phase is always a tenth slower.
    let phase = Phase::Alone { load: 0 };
    let mut observations = Vec::new();
    for block in 0..4 {
        let rate = 100.0 / f64::from(1 << block);
        observations.push(observed(phase, block, &[rate]));
        observations.push(observed(Phase::Together, block, &[rate * 0.9]));
    }
    let mut void = observed(Phase::Together, 4, &[1.0]);
    void.void = Some(Void::Stolen(0.5));
    observations.extend([observed(phase, 4, &[100.0]), void]);
    let change = change(&observations, phase, Phase::Together, 0).unwrap();
    assert!((change.median + 0.1).abs() < 1e-9 && change.count == 4 && change.is_significant(), "{change:?}");
    assert_eq!(super::change(&observations, Phase::Together, Phase::Pair { one: 0, other: 1 }, 0), None);
}

#[test]
fn equal_phases_that_differ_are_found() {
    let phase = Phase::Alone { load: 0 };
    let with = |second: f64| {
        let twice = |block| [observed(phase, block, &[100.0]), observed(phase, block, &[second])];
        equal_phases(&session((0..5).flat_map(twice).collect()))
    };
    assert_eq!(with(104.0).iter().map(|equal| equal.differ).collect::<Vec<_>>(), [true]);
    assert!(with(101.5)[0].differ, "small, but in each block");
    assert!(!with(100.5)[0].differ);
}

#[test]
fn sessions_repeat_until_intervals_are_narrow() {
    let phase = Phase::Alone { load: 0 };
    let with = |rates: &[f64]| {
        let rates = rates.iter().enumerate();
        session(rates.map(|(block, rate)| observed(phase, block, &[*rate])).collect())
    };
    assert!(more_repeats_needed(&with(&[100.0, 100.0]), 0.03), "too few blocks");
    assert!(more_repeats_needed(&with(&[100.0, 110.0, 90.0]), 0.03));
    assert!(!more_repeats_needed(&with(&[100.0, 101.0, 99.5, 100.5]), 0.03));
    assert!(!more_repeats_needed(&with(&[0.0, 0.0, 0.0]), 0.03), "a load that never moves anything");
}
