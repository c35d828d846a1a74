//! Decides which observations were disturbed from outside and do not count.

use crate::observation::{Observation, Phase, Signals, Void};
use inlane_core::load::Sample;

/// The most of the processor time that the hypervisor may take away. On a shared host some is always gone, and loads from which
/// it was taken are found by their drift.
const MOST_STOLEN: f64 = 0.05;
/// The parts of an observation at whose ends meters are read.
pub(super) const PARTS: usize = 10;
/// The least parts that count together. Less is not an observation of the phase any more.
const LEAST_PARTS: usize = 5;
/// The most by which a load's rates in both halves of an observation may differ.
const MOST_DRIFT: f64 = 0.1;
/// The most processor time of other processes above that in the quietest observation of the same phase. A difference, and
/// no bound on the time itself, because the other process may be the server of a load.
const MOST_OTHERS: f64 = 0.1;
/// The least operations in which the halves must differ, because a few operations more or less are no drift.
const LEAST_OPERATIONS: f64 = 8.0;

/// Returns the first and the last sample of the part of an observation that counts: all of it, or the longest part within which
/// the rates are steady. On a shared host, threads are often paused for some tens of milliseconds. An observation would seldom
/// count if it had to be free of pauses. `samples` are those at the ends of all parts.
///
/// # Errors
/// What disturbed the observation if no part counts.
pub(super) fn steady(signals: &Signals, samples: &[Sample]) -> Result<(usize, usize), Void> {
    if let Some(stolen) = signals.stolen.filter(|stolen| *stolen > MOST_STOLEN) {
        return Err(Void::Stolen(stolen));
    }
    // A quota stops and releases the process every 100 ms, so rates within a phase always differ.
    if signals.throttled.is_some_and(|throttled| throttled > 0.0) {
        return Ok((0, PARTS));
    }
    let lengths = (LEAST_PARTS..=PARTS).rev();
    let mut parts = lengths.flat_map(|length| (0..=PARTS - length).map(move |from| (from, from + length)));
    let drift = |(from, to): (usize, usize)| drift([from, (from + to) / 2, to].map(|at| &samples[at]));
    parts.find(|part| drift(*part) <= MOST_DRIFT).ok_or_else(|| Void::Drift(drift((0, PARTS))))
}

/// Returns the largest difference between the rates of a load before and after the middle, as a fraction.
fn drift([first, middle, last]: [&Sample; 3]) -> f64 {
    let drift = (0..first.loads.len()).filter_map(|load| {
        let before = middle.operations_per_second(first, load)?;
        let after = last.operations_per_second(middle, load)?;
        let mean = (before + after) / 2.0;
        let operations = (before - after).abs() * (last.at_ns - middle.at_ns) as f64 / 1e9;
        (mean > 0.0 && operations > LEAST_OPERATIONS).then_some((before - after).abs() / mean)
    });
    drift.fold(0.0, f64::max)
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

    /// Returns samples every 20 ms with so many operations between each two of them.
    fn samples(operations: [u64; PARTS]) -> Vec<Sample> {
        let sample = |at: usize| Sample {
            at_ns: at as u64 * 20_000_000,
            loads: vec![Counts { operations: operations[..at].iter().sum(), ..Counts::default() }],
        };
        (0..=PARTS).map(sample).collect()
    }

    fn part(signals: Signals, operations: [u64; PARTS]) -> Result<(usize, usize), Void> {
        steady(&signals, &samples(operations))
    }

    const WHOLE: Result<(usize, usize), Void> = Ok((0, PARTS));

    fn halves(before: u64, after: u64) -> [u64; PARTS] {
        std::array::from_fn(|at| if at < PARTS / 2 { before } else { after })
    }

    #[test]
    fn a_pause_is_left_out() {
        let quiet = Signals::default();
        let pause =
            |from: usize, to: usize| std::array::from_fn(|at| if (from..to).contains(&at) { 0 } else { 100 });
        assert_eq!(part(quiet, pause(0, 3)), Ok((3, 10)));
        assert_eq!(part(quiet, pause(8, 10)), Ok((0, 8)));
        assert!(matches!(part(quiet, pause(3, 6)), Err(Void::Drift(_))), "less than half is steady");
    }

    #[test]
    fn rates_under_a_quota_may_differ_within_a_phase() {
        let quota = |throttled| Signals { throttled: Some(throttled), ..Signals::default() };
        let growing = std::array::from_fn(|at| 1_000 + 500 * at as u64);
        assert_eq!(part(quota(0.6), growing), WHOLE);
        assert!(matches!(part(quota(0.0), growing), Err(Void::Drift(_))));
    }

    #[test]
    fn steal_and_drift_are_found() {
        let quiet = Signals::default();
        assert_eq!(part(quiet, halves(1000, 1040)), WHOLE);
        let growing = std::array::from_fn(|at| 1_000 + 100 * at as u64);
        assert!(matches!(part(quiet, growing), Err(Void::Drift(drift)) if (0.3..0.4).contains(&drift)));
        assert_eq!(part(quiet, [2, 2, 2, 2, 2, 3, 3, 3, 3, 2]), WHOLE, "four operations are no drift");
        assert_eq!(part(quiet, [0; PARTS]), WHOLE, "a parked load");
        let stolen = Signals { stolen: Some(0.06), ..quiet };
        assert_eq!(part(stolen, halves(1000, 1000)), Err(Void::Stolen(0.06)));
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
