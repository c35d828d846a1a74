//! Decides which observations were disturbed from outside and do not count.

use crate::observation::{Observation, Phase, Signals, Void};
use inlane_core::load::Sample;

/// The most of the processor time that the hypervisor may take away.
const MOST_STOLEN: f64 = 0.02;
/// The most by which a load's rates in both halves of an observation may differ.
const MOST_DRIFT: f64 = 0.1;
/// The most processor time of other processes above that in the quietest observation of the same phase. A difference, and
/// no bound on the time itself, because the other process may be the server of a load.
const MOST_OTHERS: f64 = 0.1;
/// The least operations in which the halves must differ, because a few operations more or less are no drift.
const LEAST_OPERATIONS: f64 = 8.0;

/// Returns what disturbed an observation with samples at its start, middle and end.
pub(super) fn of(signals: &Signals, [first, middle, last]: [&Sample; 3]) -> Option<Void> {
    if let Some(stolen) = signals.stolen.filter(|stolen| *stolen > MOST_STOLEN) {
        return Some(Void::Stolen(stolen));
    }
    // A quota stops and releases the process every 100 ms, so rates within a phase always differ.
    if signals.throttled.is_some_and(|throttled| throttled > 0.0) {
        return None;
    }
    let drift = (0..first.loads.len()).filter_map(|load| {
        let before = middle.operations_per_second(first, load)?;
        let after = last.operations_per_second(middle, load)?;
        let mean = (before + after) / 2.0;
        let operations = (before - after).abs() * (last.at_ns - middle.at_ns) as f64 / 1e9;
        (mean > 0.0 && operations > LEAST_OPERATIONS).then_some((before - after).abs() / mean)
    });
    drift.max_by(f64::total_cmp).filter(|drift| *drift > MOST_DRIFT).map(Void::Drift)
}

/// Marks observations in which other processes used much more processor time than in the quietest one of the phase.
pub(super) fn mark_others(observations: &mut [Observation]) {
    let mut quietest: Vec<(Phase, f64)> = Vec::new();
    for observation in observations.iter() {
        let Some(others) = observation.signals.others else { continue };
        match quietest.iter_mut().find(|(phase, _)| *phase == observation.phase) {
            Some((_, least)) => *least = least.min(others),
            None => quietest.push((observation.phase, others)),
        }
    }
    for observation in observations.iter_mut().filter(|observation| observation.void.is_none()) {
        let Some(others) = observation.signals.others else { continue };
        let least = quietest.iter().find(|(phase, _)| *phase == observation.phase);
        if least.is_some_and(|(_, least)| others > least + MOST_OTHERS) {
            observation.void = Some(Void::Others(others));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::load::Counts;

    fn sample(at_ms: u64, operations: u64) -> Sample {
        Sample { at_ns: at_ms * 1_000_000, loads: vec![Counts { operations, ..Counts::default() }] }
    }

    fn of_samples(signals: Signals, operations: [u64; 2]) -> Option<Void> {
        let samples = [sample(0, 0), sample(100, operations[0]), sample(200, operations[0] + operations[1])];
        let [first, middle, last] = &samples;
        of(&signals, [first, middle, last])
    }

    #[test]
    fn rates_under_a_quota_may_differ_within_a_phase() {
        let quota = |throttled| Signals { throttled: Some(throttled), ..Signals::default() };
        assert_eq!(of_samples(quota(0.6), [10_000, 5_000]), None);
        assert!(matches!(of_samples(quota(0.0), [10_000, 5_000]), Some(Void::Drift(_))));
    }

    #[test]
    fn steal_and_drift_are_found() {
        let quiet = Signals::default();
        assert_eq!(of_samples(quiet, [1000, 1040]), None);
        assert!(
            matches!(of_samples(quiet, [1000, 1300]), Some(Void::Drift(drift)) if (0.2..0.3).contains(&drift))
        );
        assert_eq!(of_samples(quiet, [10, 14]), None, "four operations are no drift");
        assert_eq!(of_samples(quiet, [0, 0]), None, "a parked load");
        let stolen = Signals { stolen: Some(0.05), ..quiet };
        assert_eq!(of_samples(stolen, [1000, 1000]), Some(Void::Stolen(0.05)));
    }

    #[test]
    fn others_are_compared_with_the_quietest_observation_of_the_phase() {
        let observation = |phase, others| Observation {
            phase,
            block: 0,
            at_ns: 0,
            duration_ns: 1,
            loads: Vec::new(),
            signals: Signals { others: Some(others), ..Signals::default() },
            void: None,
        };
        let alone = Phase::Alone { load: 0 };
        let mut all = [
            observation(alone, 0.40),
            observation(alone, 0.45),
            observation(alone, 0.70),
            observation(Phase::Together, 0.70),
        ];
        mark_others(&mut all);
        let void: Vec<_> = all.iter().map(|observation| observation.void).collect();
        assert_eq!(void, [None, None, Some(Void::Others(0.70)), None]);
    }
}
