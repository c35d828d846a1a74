//! Statistics of a session: medians with intervals, changes within blocks, and equal phases that differ.
//!
//! Void observations never count. Rates drift during a session, so two phases are compared within each block, and the
//! changes of all blocks give an interval.

use crate::observation::{Level, Measured, Observation, Phase};
use inlane_core::stats::Summary;
use schemars::JsonSchema;
use serde::Serialize;

/// The least number of blocks after which a session can end.
pub const LEAST_BLOCKS: usize = 3;
/// Equal phases differ if their rates differ by more than this fraction.
const EQUAL: f64 = 0.03;
/// Differences below this fraction do not matter, even if repeats show that they exist.
const SMALL: f64 = 0.01;
/// Student's t for a 95 % interval, by degrees of freedom from 1 to 4.
const STUDENT: [f64; 4] = [12.706, 4.303, 3.182, 2.776];

/// A median with the interval that contains the true one in about 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Estimate {
    /// The median of the values.
    pub median: f64,
    /// The lower end of the interval. Minus infinity for a single value, written as `null`.
    #[schemars(with = "Option<f64>")]
    pub low: f64,
    /// The upper end of the interval. Infinity for a single value, written as `null`.
    #[schemars(with = "Option<f64>")]
    pub high: f64,
    /// The number of values.
    #[serde(rename = "repeats")]
    pub count: usize,
}

impl Estimate {
    /// Estimates the median of `values`. The interval lies between two of the values, or follows from Student's t if
    /// there are less than six. Returns `None` if there are no values, or if one of them is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        let Summary { median, .. } = Summary::of(values)?;
        let count = values.len();
        let (low, high) = match count {
            1 => (f64::NEG_INFINITY, f64::INFINITY),
            2..6 => {
                let mean = values.iter().sum::<f64>() / count as f64;
                let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
                let half = STUDENT[count - 2] * (squares / (count - 1) as f64 / count as f64).sqrt();
                ((mean - half).min(median), (mean + half).max(median))
            }
            _ => {
                let mut sorted = values.to_vec();
                sorted.sort_by(f64::total_cmp);
                let outside = outside(count);
                (sorted[outside], sorted[count - 1 - outside])
            }
        };
        Some(Self { median, low, high, count })
    }

    /// Returns half of the interval's width, as a fraction of the median.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.median.abs()
    }

    /// Returns true if the interval does not contain zero.
    pub fn is_significant(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Returns how many of `count` sorted values can be left out at each end, so that the others enclose the median in 95 % of
/// all cases: fewer than that many values are below the median with a probability of at most 2.5 %.
fn outside(count: usize) -> usize {
    let (mut probability, mut below) = (0.5f64.powi(count as i32), 0.0);
    for out in 0..count / 2 {
        below += probability;
        if below > 0.025 {
            return out.saturating_sub(1);
        }
        probability *= (count - out) as f64 / (out + 1) as f64;
    }
    0
}

/// Returns the observations of `phase` that count.
pub fn of_phase(observations: &[Observation], phase: Phase) -> impl Iterator<Item = &Observation> {
    observations.iter().filter(move |observation| observation.phase == phase && observation.void.is_none())
}

/// Returns the distinct phases of `observations`, in the order of their first appearance.
pub fn phases(observations: &[Observation]) -> Vec<Phase> {
    let mut phases = Vec::new();
    for observation in observations {
        if !phases.contains(&observation.phase) {
            phases.push(observation.phase);
        }
    }
    phases
}

/// Estimates the median of a figure in `phase`. `of` returns `None` where the figure is missing. Returns `None` if it is
/// missing everywhere.
pub fn estimate(
    observations: &[Observation],
    phase: Phase,
    of: impl Fn(&Observation) -> Option<f64>,
) -> Option<Estimate> {
    Estimate::of(&of_phase(observations, phase).filter_map(of).collect::<Vec<_>>())
}

/// Estimates the rate of `load` in `phase`: see [`crate::observation::LoadRate::amount`].
pub fn rate(observations: &[Observation], phase: Phase, load: usize) -> Option<Estimate> {
    estimate(observations, phase, |observation| Some(observation.loads.get(load)?.amount()))
}

/// Estimates how the rate of `load` changes from one phase to another, as a fraction of the first. Compares within each
/// block. Returns `None` if no block has both phases.
pub fn change(observations: &[Observation], from: Phase, to: Phase, load: usize) -> Option<Estimate> {
    let mean = |phase: Phase, block: usize| {
        let of_block = of_phase(observations, phase).filter(|observation| observation.block == block);
        let rates: Vec<f64> =
            of_block.filter_map(|observation| Some(observation.loads.get(load)?.amount())).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    };
    let of_block = |block| Some(mean(to, block)? / mean(from, block).filter(|rate| *rate > 0.0)? - 1.0);
    Estimate::of(&blocks(observations).filter_map(of_block).collect::<Vec<_>>())
}

fn blocks(observations: &[Observation]) -> impl Iterator<Item = usize> + use<> {
    0..observations.iter().map(|observation| observation.block + 1).max().unwrap_or(0)
}

/// A phase that was measured several times in each block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EqualPhases {
    /// The phase.
    pub phase: Phase,
    /// The load.
    pub load: usize,
    /// The change of its rate from the first to the second time, as a fraction.
    pub change: Estimate,
    /// True if the change is larger than 3 %, or surely larger than 0 and at least 1 %. Other changes of the session are
    /// then as doubtful.
    pub differ: bool,
}

/// Compares phases that each block has twice: for every phase and load of the user that runs in it.
pub fn equal_phases(measured: &Measured) -> Vec<EqualPhases> {
    let mut found = Vec::new();
    for phase in phases(&measured.observations) {
        for load in running(measured, phase) {
            let of_block = |block| {
                let of_block =
                    of_phase(&measured.observations, phase).filter(|observation| observation.block == block);
                let mut rates = of_block.map(|observation| observation.loads[load].amount());
                Some(1.0 / rates.next().filter(|rate| *rate > 0.0)? * rates.next()? - 1.0)
            };
            let changes: Vec<f64> = blocks(&measured.observations).filter_map(of_block).collect();
            if let Some(change) = Estimate::of(&changes) {
                let size = change.median.abs();
                let differ = size > EQUAL || size > SMALL && change.is_significant();
                found.push(EqualPhases { phase, load, change, differ });
            }
        }
    }
    found
}

/// Returns the loads of the user that run in `phase`.
fn running(measured: &Measured, phase: Phase) -> impl Iterator<Item = usize> {
    (0..measured.users).filter(move |load| phase.level(*load, measured.users) != Level::Parked)
}

/// Returns the widest interval of all rates: half of its width, as a fraction of the median. Infinity if a phase has
/// less than two observations that count.
pub fn widest(measured: &Measured) -> f64 {
    let rates = phases(&measured.observations).into_iter().flat_map(|phase| {
        running(measured, phase).map(move |load| rate(&measured.observations, phase, load))
    });
    let widths = rates.map(|rate| match rate {
        Some(rate) if rate.low == rate.high => 0.0,
        Some(rate) => rate.half_width(),
        None => f64::INFINITY,
    });
    widths.fold(0.0, f64::max)
}

/// Returns true if the session should measure another block: it has less than [`LEAST_BLOCKS`], or the interval of a rate
/// is wider than `width` to each side, as a fraction of the median.
pub fn more_repeats_needed(measured: &Measured, width: f64) -> bool {
    blocks(&measured.observations).count() < LEAST_BLOCKS || widest(measured) > width
}

#[cfg(test)]
mod tests;
