//! Predictions of mixes on constructed machines. Whole mixes are held out from the fit, because a prediction follows from solo
//! runs only.

use crate::cases;
use crate::machine::Random;
use inlane_mix::observation::{Measured, Phase};
use inlane_mix::predict::{Residual, accuracy, predict, residuals};
use inlane_mix::solo::SoloRuns;

/// Predicts from solo runs, before the mixes are known, and compares with the mixes then. Prints all residuals.
fn check(name: &str, seed: u64, measured: &Measured) -> Vec<Residual> {
    // The observations of mixes are not even there.
    let is_solo = |phase: &Phase| matches!(phase, Phase::Alone { .. } | Phase::Beside { .. });
    let mut before = measured.clone();
    before.observations.retain(|observation| is_solo(&observation.phase));
    let runs = SoloRuns::of(&before);
    assert_eq!(runs, SoloRuns::of(measured), "mixes enter the prediction");
    let prediction = predict(&runs).unwrap();
    let found = residuals(&prediction, measured);
    for of in &found {
        let mix = prediction.mixes.iter().find(|mix| mix.phase == of.phase).unwrap();
        let predicted = mix.rates.iter().find(|rate| rate.load == of.load).unwrap();
        eprintln!(
            "{name:32} {seed:5} {:24} {:8} measured {:7.3} GB/s, predicted {:7.3} ({:6.3} to {:6.3}): {:+6.1} %, alone {:+7.1} %, equal split {:+7.1} %{}",
            format!("{:?}", of.phase),
            measured.loads[of.load].name,
            of.measured.median / 1e9,
            predicted.rate / 1e9,
            predicted.interval.0 / 1e9,
            predicted.interval.1 / 1e9,
            of.predicted * 100.0,
            of.alone * 100.0,
            of.equal_split * 100.0,
            if of.degraded { "" } else { " (not degraded)" },
        );
    }
    found
}

#[test]
fn held_out_mixes_are_predicted() {
    let mut found = Vec::new();
    for (kind, build) in cases::KINDS {
        for round in 0..2 {
            let seed = 1000 * round + 11;
            let case = build(&mut Random(seed ^ (kind.len() as u64 * 77)), seed);
            found.extend(check(kind, seed, &case.measure()));
        }
    }
    let accuracy = accuracy(&found).unwrap();
    eprintln!("{accuracy:?}");
    assert!(accuracy.mixes >= 30, "{accuracy:?}");
    assert!(accuracy.predicted <= 0.1 && accuracy.predicted <= 0.5 * accuracy.alone, "{accuracy:?}");
}

#[test]
fn mixes_of_random_machines_are_predicted() {
    // Fewer machines have too few mixes.
    let found: Vec<Residual> = (0..cases::random_count().max(64) / 2)
        .flat_map(|seed| check("random", seed, &cases::random(seed).measure()))
        .collect();
    let accuracy = accuracy(&found).unwrap();
    eprintln!("random machines: {accuracy:?}");
    assert!(accuracy.mixes >= 20, "{accuracy:?}");
    // A fifth of these machines have a resource of which solo runs show nothing.
    assert!(accuracy.predicted <= 0.15 && accuracy.predicted <= 0.5 * accuracy.alone, "{accuracy:?}");
}
