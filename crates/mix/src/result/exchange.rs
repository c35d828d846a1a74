//! What loads gain when another one is slowed. Compares phases of the same block, so that slow changes of the machine cancel
//! out.

use crate::observation::{LoadRate, Measured, Phase};
use crate::statistics::{Estimate, phases};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// One load slowed, while all others run as before.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ExchangeResult {
    /// The slowed load.
    pub slowed: String,
    /// The fraction of its rate to which it was slowed.
    pub share: f64,
    /// What it freed: its rate together less its slowed rate, in bytes per second. Operations per second if it moves no
    /// bytes.
    pub freed_per_second: Estimate,
    /// True if the rates of the slowed load count operations, because it moves no bytes.
    pub freed_operations: bool,
    /// What each other load gained.
    pub gains: Vec<GainResult>,
}

/// What a load gained while another one was slowed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GainResult {
    /// The load that gained.
    pub load: String,
    /// Its rate less its rate in the phase in which nobody is slowed, in bytes per second. Operations per second if it
    /// moves no bytes.
    pub gain_per_second: Estimate,
    /// True if the gain counts operations, because the load moves no bytes.
    pub operations: bool,
    /// The gain divided by what was freed. `null` if nothing was freed.
    pub per_freed: Option<f64>,
}

/// The loads' rates of the observations that count, by block.
fn by_block(measured: &Measured, phase: Phase) -> BTreeMap<usize, Vec<&[LoadRate]>> {
    let mut blocks: BTreeMap<usize, Vec<&[LoadRate]>> = BTreeMap::new();
    for observation in measured.counted(phase) {
        blocks.entry(observation.block).or_default().push(&observation.loads);
    }
    blocks
}

/// Returns the mean rate of a load.
fn mean(rates: &[&[LoadRate]], load: usize) -> f64 {
    rates.iter().map(|loads| loads[load].amount()).sum::<f64>() / rates.len() as f64
}

/// Returns for each slowed load what it freed, and what the others gained.
pub(super) fn exchange(measured: &Measured) -> Vec<ExchangeResult> {
    let together = by_block(measured, Phase::Together);
    let phases = phases(&measured.observations);
    let throttled = phases.iter().filter_map(|phase| match *phase {
        Phase::Throttled { load, share } => Some((load, share)),
        _ => None,
    });
    let mut throttled: Vec<(usize, f64)> = throttled.collect();
    throttled.sort_by_key(|(load, _)| *load);
    let row = |(slowed, share): (usize, f64)| {
        let blocks = by_block(measured, Phase::Throttled { load: slowed, share });
        // The rate of a load in the slowed phase less that in the other one, for each block that has both.
        let changes = |load: usize| -> Vec<f64> {
            let pairs = blocks.iter().filter_map(|(block, rates)| Some((rates, together.get(block)?)));
            pairs.map(|(rates, before)| mean(rates, load) - mean(before, load)).collect()
        };
        let freed: Vec<f64> = changes(slowed).into_iter().map(|change| -change).collect();
        let freed = Estimate::of(&freed)?;
        let others = (0..measured.users).filter(|load| *load != slowed);
        let gains = others.filter_map(|load| {
            let gain = Estimate::of(&changes(load))?;
            Some(GainResult {
                load: measured.loads[load].name.clone(),
                gain_per_second: gain,
                operations: measured.counts_operations(load),
                per_freed: (freed.median > 0.0).then(|| gain.median / freed.median),
            })
        });
        Some(ExchangeResult {
            slowed: measured.loads[slowed].name.clone(),
            share,
            freed_per_second: freed,
            freed_operations: measured.counts_operations(slowed),
            gains: gains.collect(),
        })
    };
    throttled.into_iter().filter_map(row).collect()
}
