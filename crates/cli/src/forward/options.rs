//! The types and parsers of flag values that only `inlane forward` has, such as the value of `--method`.

use crate::fields::flag;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use inlane_core::ring::layout::MAX_SLOTS;
use inlane_core::{Error, units};
use inlane_forward::config::Method;
use std::str::FromStr;
use std::time::Duration;

/// The value of `--method`: a method, or `auto`.
#[derive(Clone, Copy, Debug)]
pub(super) enum MethodChoice {
    Auto,
    Method(Method),
}

impl FromStr for MethodChoice {
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

/// The value of one `--sweep`: a flag and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepAxis {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

impl FromStr for SweepAxis {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::invalid(flag("sweep").with(text), why);
        let example = "give a flag and its values: burst=16,32,64, size=64..1024 or method=all";
        let (key, list) = text.split_once('=').ok_or_else(|| bad(example))?;
        let mut values = Vec::new();
        for value in list.split(',') {
            match value.split_once("..") {
                Some((first, last)) => {
                    let number = |text: &str| text.parse().ok().filter(|&number: &u64| number > 0);
                    let (Some(first), Some(last)) = (number(first), number(last)) else {
                        return Err(bad("a range must be whole numbers above zero: 16..128"));
                    };
                    if first > last {
                        return Err(bad("the range ends before it starts; give the smaller number first"));
                    }
                    let doubled = std::iter::successors(Some(first), |number| number.checked_mul(2));
                    values.extend(doubled.take_while(|&number| number < last).map(|n| n.to_string()));
                    values.push(last.to_string());
                }
                None if value.is_empty() => return Err(bad(example)),
                None => values.push(value.to_string()),
            }
        }
        Ok(Self { key: key.trim_start_matches("--").into(), values })
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
