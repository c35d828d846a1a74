//! The values that flags of `inlane forward` accept.

use clap::ValueEnum;
use inlane_core::units;
use inlane_forward::config::Method;
use std::time::Duration;

/// The value of `--method`: a method, or `auto`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    Auto,
    Method(Method),
}

impl std::str::FromStr for Choice {
    type Err = inlane_forward::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Choice::Auto);
        }
        text.parse().map(Choice::Method).map_err(|_| {
            let why = "choose single or split, or on a GPU also persistent, stream or graph, or auto";
            inlane_forward::Error::config(format!("--method {text}"), why)
        })
    }
}

/// What `--method auto` optimises.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Goal {
    /// The most packets per second
    Throughput,
}

/// The priority of inlane's kernels on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Priority {
    /// Before kernels of other jobs
    High,
    /// In the order of arrival
    Normal,
}

/// The competing job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Compete {
    /// No job
    None,
    /// Endless arithmetic on every multiprocessor of the GPU, or on every core of the pipelines
    Compute,
    /// On a GPU: the same in blocks that fill a multiprocessor each, as matrix products do
    Large,
}

/// The pace at which a capture is played.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PlayPace {
    /// As fast as possible
    Full,
    /// As the timestamps say
    Original,
}

/// The policy for a full ring or transmit port.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum OnOverload {
    /// Wait. The receive port fills and counts missed packets
    Wait,
    /// Drop and count the newest packets
    Drop,
    /// Receive smaller bursts until there is room
    Shrink,
}

/// Parses a list of core numbers and ranges, such as `0,2,4-7`.
pub(super) fn cores(list: &str) -> inlane_core::Result<Vec<usize>> {
    let bad = || {
        let why = "write numbers and ranges, for example 2,3 or 4-7, or none";
        inlane_core::Error::invalid(format!("--cores {list}"), why)
    };
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) =
            (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        if last < first || last >= libc::CPU_SETSIZE as usize {
            return Err(bad());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// Parses a value of `--load`: a percentage of the highest rate without loss.
pub(super) fn percent(text: &str) -> Result<f64, &'static str> {
    text.parse()
        .ok()
        .filter(|share| (0.01..=100.0).contains(share))
        .ok_or("give percentages from 0.01 to 100")
}

/// Parses the value of `--duration`, which is above zero.
pub(super) fn duration(text: &str) -> inlane_core::Result<Duration> {
    match units::parse_time(text)? {
        time if time.is_zero() => {
            Err(inlane_core::Error::invalid(format!("'{text}'"), "give a time above zero"))
        }
        time => Ok(time),
    }
}

/// Parses the value of `--interval`, the time between progress lines.
pub(super) fn interval(text: &str) -> inlane_core::Result<Duration> {
    match units::parse_time(text)? {
        time if time >= Duration::from_secs(1) => Ok(time),
        _ => Err(inlane_core::Error::invalid(format!("'{text}'"), "must be 1s or more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists_are_numbers_and_ranges() {
        assert_eq!(cores("0,2,4-6").unwrap(), [0, 2, 4, 5, 6]);
        for bad in ["", "a", "3-1", "1,", "0-99999999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }

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
