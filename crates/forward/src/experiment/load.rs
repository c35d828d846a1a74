//! The highest rate without loss, and latency at shares of it.

use super::ceiling::Ceilings;
use super::limit::limit;
use crate::config::{Config, Route};
use crate::control::{Control, ProgressSnapshot};
use crate::error::{Error, Result};
use crate::result::{PacketResult, Quantity};
use crate::run::{RunOutcome, run};
use inlane_core::result::{Document, Path};
use inlane_core::units::Rate;
use std::sync::Arc;
use std::time::Duration;

/// The name of the parameter with the offered rate: the rate at which packets were due.
pub const OFFERED: &str = "offered";

/// True when nothing was lost, missed or altered, and what was offered went through: a generator that is asked late does not
/// lose packets but sends them late, so that the rate achieved falls short of the rate offered.
fn lossless(outcome: &RunOutcome, offered: f64) -> bool {
    let result = &outcome.result;
    let counted = result.rx.missed
        + result.rx.errors
        + result.tx.errors
        + result.dropped_overload
        + result.dropped_invalid
        + result.dropped_unsent;
    let achieved = result.tx.packets_per_second >= offered * 0.998;
    achieved
        && counted == 0
        && outcome.errors.is_empty()
        && result.verification.as_ref().is_none_or(|v| v.passed())
}

/// The highest rate without loss by bisection (RFC 2544 section 26.1), to within half a per cent, and the latency at each of
/// `loads` per cent of it; each trial lasts as long as the run was to last.
///
/// # Errors
/// When a trial cannot start, or nothing passes without loss at any rate.
pub fn against_load(
    config: &Config,
    loads: &[f64],
    control: &Arc<Control>,
    ceilings: &mut Ceilings,
    watch: &mut dyn FnMut(Duration, ProgressSnapshot),
) -> Result<(Document<PacketResult>, Option<Error>)> {
    if !matches!(&config.route, Route::OneWay { rx, .. } if rx.starts_with("gen:") || rx.starts_with("null"))
    {
        return Err(Error::config(
            "--zero-loss",
            "needs a source that can be paced: --rx gen:SIZE or null:SIZE",
        ));
    }
    let mut trial = |rate: Option<f64>| -> Result<(Config, RunOutcome)> {
        let mut paced = config.clone();
        paced.rate = rate.map(Rate::Packets);
        paced.duration = Some(config.duration.unwrap_or(Duration::from_secs(2)));
        let mut outcome = run(&paced, &Control::child_of(control), watch)?;
        if let Some(rate) = rate {
            outcome.result.parameters.set(OFFERED, Quantity::Rate(Rate::Packets(rate)));
        }
        Ok((paced, outcome))
    };
    let (_, flat_out) = trial(None)?;
    let ceiling = ceilings.of(config, flat_out.link_bits_per_second, &flat_out.result);
    let explained = |(paced, mut outcome): (Config, RunOutcome)| -> PacketResult {
        outcome.result.ceiling = ceiling.clone();
        outcome.result.limit = limit(&paced, &outcome);
        outcome.result
    };
    let mut document = Document::new("forward", Path::default());
    document.twin = flat_out.twin;
    document.devices = flat_out.devices.clone();
    let fastest = flat_out.result.tx.packets_per_second;
    let (mut low, mut high) = (0.0, fastest);
    let mut best: Option<PacketResult> = None;
    let mut last_lossy: Option<String> = None;
    while high - low > fastest * 0.005 && !control.stopping() {
        let rate = if best.is_none() && low == 0.0 && high == fastest { fastest } else { (low + high) / 2.0 };
        let (paced, outcome) = trial(Some(rate))?;
        if lossless(&outcome, rate) {
            low = rate;
            best = Some(explained((paced, outcome)));
            if rate >= fastest {
                break;
            }
        } else {
            last_lossy = Some(format!(
                "at {rate:.0} packets/s offered {:.0} went through, {} lost",
                outcome.result.tx.packets_per_second,
                outcome.result.rx.missed + outcome.result.dropped_overload,
            ));
            high = rate * if rate >= fastest { 0.999 } else { 1.0 };
        }
        if high < fastest * 0.01 {
            break;
        }
    }
    let Some(best) = best else {
        if control.stopping() {
            document.notes.push("the search was ended before a rate passed: this is the run flat out".into());
            document.results.push(explained((config.clone(), flat_out)));
            return Ok((document, None));
        }
        let why = last_lossy.unwrap_or_default();
        let failure = Error::Verification(format!("no rate passed without loss: {why}"));
        return Ok((document, Some(failure)));
    };
    document.notes.push(format!(
        "highest rate without loss: {} ({} flat out, lossy rates above: {})",
        inlane_core::units::packets_per_second(low),
        inlane_core::units::packets_per_second(fastest),
        last_lossy.unwrap_or_else(|| "none".into())
    ));
    if loads.is_empty() {
        document.results.push(best);
    }
    for load in loads {
        if control.stopping() {
            break;
        }
        let mut result = explained(trial(Some(low * load / 100.0))?);
        result.parameters.set("load", Quantity::Percent(*load));
        document.results.push(result);
    }
    Ok((document, None))
}
