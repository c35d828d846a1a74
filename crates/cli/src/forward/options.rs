//! The types and parsers of flag values that only `inlane forward` has, such as the value of `--method`.

use crate::fields::flag;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use inlane_core::ring::layout::MAX_SLOTS;
use inlane_core::units;
use inlane_forward::config::Method;
use std::time::Duration;

/// The value of `--method`: a method, or `auto`.
#[derive(Clone, Copy, Debug)]
pub(super) enum MethodChoice {
    Auto,
    Method(Method),
}

impl std::str::FromStr for MethodChoice {
    type Err = inlane_forward::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(MethodChoice::Auto);
        }
        text.parse().map(MethodChoice::Method).map_err(|_| {
            let why = "choose one of single, split, auto; on a GPU also persistent, stream, graph";
            inlane_forward::Error::config(flag("method").with(text), why)
        })
    }
}

/// Returns the parser of `--goal`, what `--method auto` optimises.
pub(super) fn goal() -> PossibleValuesParser {
    [PossibleValue::new("throughput").help("The most packets per second")].into()
}

/// Returns the parser of `--priority`, the priority of inlane's kernels on a GPU. Its value is true if the priority is
/// high.
pub(super) fn high_priority() -> impl TypedValueParser<Value = bool> {
    let high = PossibleValue::new("high").help("Before kernels of other jobs");
    let normal = PossibleValue::new("normal").help("In the order of arrival");
    PossibleValuesParser::from([high, normal]).map(|name| name == "high")
}

/// Parses a value of `--load`: a percentage of the highest rate without loss.
pub(super) fn percent(text: &str) -> Result<f64, &'static str> {
    text.parse()
        .ok()
        .filter(|share| (0.01..=100.0).contains(share))
        .ok_or("give percentages from 0.01 to 100")
}

/// Parses the value of `--slots`, a power of two.
pub(super) fn slots(text: &str) -> inlane_core::Result<usize> {
    let slots = text.parse().ok().filter(|slots| (2..=MAX_SLOTS).contains(slots) && slots.is_power_of_two());
    let why = || format!("give a power of two from 2 to {MAX_SLOTS}");
    slots.ok_or_else(|| inlane_core::Error::invalid(format!("'{text}'"), why()))
}

/// Parses the value of `--interval`, the time between progress lines.
pub(super) fn interval(text: &str) -> inlane_core::Result<Duration> {
    match units::parse_time(text)? {
        time if time >= Duration::from_secs(1) => Ok(time),
        _ => Err(inlane_core::Error::invalid(format!("'{text}'"), "give 1s or more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_above_the_lossless_rate_are_refused() {
        assert_eq!(percent("100"), Ok(100.0));
        for bad in ["101", "0", "-1", "NaN", "x"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn intervals_are_a_second_or_more() {
        assert_eq!(interval("2s").unwrap(), Duration::from_secs(2));
        assert!(interval("100ms").is_err());
    }
}
