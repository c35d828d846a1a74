//! Predictions beside measurements.

use super::Prediction;
use crate::observation::{Measured, Phase};
use crate::statistics::{self, Estimate};

/// A mix counts as degraded if one of its loads loses at least this fraction of its rate alone.
const DEGRADED: f64 = 0.1;

/// The predicted and the measured rate of a load in a mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// The mix.
    pub phase: Phase,
    /// The load.
    pub load: usize,
    /// The measured rate.
    pub measured: Estimate,
    /// The prediction divided by the measured rate, minus 1.
    pub predicted: f64,
    /// The same for the rate without interference.
    pub alone: f64,
    /// The same for the equal split.
    pub equal_split: f64,
    /// True if a load of the mix lost at least 10 % of its rate alone.
    pub degraded: bool,
}

/// Compares a prediction with the mixes that were measured.
pub fn residuals(prediction: &Prediction, measured: &Measured) -> Vec<Residual> {
    let mut residuals = Vec::new();
    for mix in &prediction.mixes {
        let rate = |load| statistics::rate(&measured.observations, mix.phase, load);
        let lost = |of: &super::Predicted| {
            rate(of.load).is_some_and(|rate| rate.median <= (1.0 - DEGRADED) * of.alone)
        };
        let degraded = mix.rates.iter().any(lost);
        for of in &mix.rates {
            if let Some(measured) = rate(of.load).filter(|rate| rate.median > 0.0) {
                let residual = |predicted: f64| predicted / measured.median - 1.0;
                residuals.push(Residual {
                    phase: mix.phase,
                    load: of.load,
                    measured,
                    predicted: residual(of.rate),
                    alone: residual(of.alone),
                    equal_split: residual(of.equal_split),
                    degraded,
                });
            }
        }
    }
    residuals
}

/// The medians of the errors over degraded mixes. The error of a mix is the mean of the sizes of its loads' residuals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// The number of degraded mixes.
    pub mixes: usize,
    /// The error of the prediction.
    pub predicted: f64,
    /// The error without interference.
    pub alone: f64,
    /// The error of the equal split.
    pub equal_split: f64,
}

/// Summarises residuals of one or several sessions. The residuals of a mix must follow each other. Mixes in which no load
/// lost at least 10 % of its rate do not count, because every prediction is right there. Returns `None` if none is left.
pub fn accuracy(residuals: &[Residual]) -> Option<Accuracy> {
    let degraded: Vec<&Residual> = residuals.iter().filter(|residual| residual.degraded).collect();
    // The loads of a mix are in ascending order, so a mix ends where the next load is not above.
    let mixes: Vec<&[&Residual]> =
        degraded.chunk_by(|one, other| one.phase == other.phase && one.load < other.load).collect();
    let median = |of: fn(&Residual) -> f64| {
        let error = |mix: &&[&Residual]| {
            mix.iter().map(|residual| of(residual).abs()).sum::<f64>() / mix.len() as f64
        };
        Some(Estimate::of(&mixes.iter().map(error).collect::<Vec<_>>())?.median)
    };
    Some(Accuracy {
        mixes: mixes.len(),
        predicted: median(|residual| residual.predicted)?,
        alone: median(|residual| residual.alone)?,
        equal_split: median(|residual| residual.equal_split)?,
    })
}
