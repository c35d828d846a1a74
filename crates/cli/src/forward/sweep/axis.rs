//! The axes of a sweep. An axis is a flag with a list of values. This module forms the combinations of all
//! axes, and sets the flags of each combination.

use super::Forward;
use crate::fields::flag;
use crate::forward::options::SweepAxis;
use crate::settings::conflict;
use clap::{Arg, ArgAction, Args, FromArgMatches};
use inlane_core::names::{did_you_mean, similar};
use inlane_core::{Error, units};
use inlane_forward::config::Method;
use inlane_result::{Quantity, Value};

/// Flags that take a value but cannot be swept. The values of `faults` and `cores` contain commas, which
/// separate the values of a sweep. The other flags must have the same value for all points.
const REFUSED: [&str; 12] = [
    "config", "json", "csv", "svg", "interval", "metrics", "capture", "repeats", "warm-up", "faults",
    "cores", "goal",
];

/// The most points that a sweep may have. A sweep with more points is refused, because it is probably a
/// typing error.
const MOST_POINTS: usize = 10_000;

/// Returns all combinations of the axes' values. The last axis changes fastest.
pub(super) fn combinations(axes: &[SweepAxis]) -> Result<Vec<Vec<(String, String)>>, Error> {
    let mut combinations = vec![Vec::new()];
    for axis in axes {
        let values = expand(axis)?;
        if combinations.len() * values.len() > MOST_POINTS {
            return Err(Error::invalid(
                flag("sweep"),
                format!("more than {MOST_POINTS} points; give fewer values"),
            ));
        }
        let longer = |so_far: &Vec<(String, String)>, value: &String| {
            let mut longer = so_far.clone();
            longer.push((axis.key.clone(), value.clone()));
            longer
        };
        combinations =
            combinations.iter().flat_map(|one| values.iter().map(move |value| longer(one, value))).collect();
    }
    Ok(combinations)
}

/// Returns the values of an axis. Replaces `all` by every value that the flag accepts.
fn expand(axis: &SweepAxis) -> Result<Vec<String>, Error> {
    let mut forward = definition();
    forward.build();
    let single = |argument: &&Arg| {
        matches!(argument.get_action(), ArgAction::Set)
            && argument.get_num_args().is_some_and(|range| range.max_values() == 1)
            && argument.get_long().is_some_and(|long| !REFUSED.contains(&long))
    };
    let found = forward.get_arguments().filter(single).find(|it| it.get_long() == Some(&axis.key));
    let Some(argument) = found else {
        let mut known: Vec<_> = forward.get_arguments().filter(single).filter_map(Arg::get_long).collect();
        known.sort_unstable();
        let near = did_you_mean(&similar(&axis.key, known.iter().copied()));
        let why = format!("this flag cannot be swept; {near}choose one of {}", known.join(", "));
        return Err(Error::invalid(flag("sweep").with(&axis.key), why));
    };
    if axis.values != ["all"] {
        return Ok(axis.values.clone());
    }
    let listed: Vec<String> = match axis.key.as_str() {
        "method" => Method::ALL.iter().map(Method::to_string).collect(),
        "memory" => ["pinned", "gpu", "gpu-pool"].map(String::from).into(),
        _ => argument.get_possible_values().iter().map(|value| value.get_name().to_string()).collect(),
    };
    if listed.is_empty() {
        let why = format!("this flag has no list of all values; give the values: {}=1,2,4", axis.key);
        return Err(Error::invalid(flag("sweep").with(format!("{}=all", axis.key)), why));
    }
    Ok(listed)
}

/// Converts a flag's value to a quantity with a unit, or to a text. The unit comes from the placeholder in the flag's
/// help, such as TIME.
pub(super) fn value(flag: &str, text: &str) -> Value {
    let mut forward = definition();
    forward.build();
    let argument = forward.get_arguments().find(|argument| argument.get_long() == Some(flag));
    let names = argument.and_then(|argument| argument.get_value_names());
    value_of_flag(names.and_then(|names| names.first()).map_or("", |name| name.as_str()), text)
}

/// Converts the value of a flag whose placeholder is `kind`.
fn value_of_flag(kind: &str, text: &str) -> Value {
    let parsed = match kind {
        "TIME" => units::parse_time(text).ok().map(|time| Quantity::Time(time.as_nanos() as f64)),
        "SIZE" | "BYTES" => units::parse_size(text).ok().map(Quantity::Bytes),
        "RATE" => units::parse_rate(text).ok().map(Quantity::Rate),
        "PERCENT" => text.parse().ok().map(Quantity::Percent),
        _ => text.parse().ok().map(Quantity::Number),
    };
    parsed.map_or_else(|| text.into(), Value::from)
}

/// Returns `forward` with the flags `values` set. The definition of each flag parses its value. `given` are the names of
/// the flags that `forward` was parsed from.
pub(super) fn with(
    forward: &Forward,
    values: &[(String, String)],
    given: &[String],
) -> Result<Forward, Error> {
    let refused = |why: String| Error::invalid(flag("sweep").with(name(values)), why);
    let is_set = |argument: &Arg| values.iter().any(|(key, _)| argument.get_long() == Some(key));
    let command = definition();
    let others = command.get_arguments().filter(|other| {
        !is_set(other) && other.get_long().is_some_and(|long| given.iter().any(|flag| flag == long))
    });
    for other in others {
        if let Some(set) = command.get_arguments().find(|it| is_set(it) && conflict(&command, it, other)) {
            let (flag, other) = (set.get_long().unwrap_or_default(), other.get_long().unwrap_or_default());
            let why = format!("--{other}: it excludes --{flag}; give either --{other} or --{flag}");
            return Err(refused(why));
        }
    }
    // Leave only the names of all other flags, because their defaults would replace the values of `forward`.
    let only_set = command.no_binary_name(true).mut_args(|argument| match is_set(&argument) {
        true => argument,
        false => Arg::new(argument.get_id().clone()),
    });
    let arguments = values.iter().map(|(key, value)| format!("--{key}={value}"));
    let mut changed = forward.clone();
    let parsed = only_set
        .try_get_matches_from(arguments)
        .and_then(|matches| changed.update_from_arg_matches(&matches));
    parsed.map_err(|error| refused(crate::misuse::message(&error)))?;
    Ok(changed)
}

/// Returns the definition of the flags of `inlane forward`.
fn definition() -> clap::Command {
    Forward::augment_args_for_update(clap::Command::new("forward"))
}

/// Returns the name of a point: its flags and values.
pub(super) fn name(values: &[(String, String)]) -> String {
    let values: Vec<_> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
    values.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_quantities_with_the_unit_of_their_placeholder() {
        assert_eq!(value_of_flag("TIME", "50ns"), Quantity::Time(50.0).into());
        assert_eq!(value_of_flag("RATE", "2Mpps"), Quantity::packets_per_second(2e6).into());
        assert_eq!(value_of_flag("SIZE", "4K"), Quantity::Bytes(4096).into());
        assert_eq!(value("burst", "64"), Quantity::Number(64.0).into());
        assert_eq!(value_of_flag("METHOD|auto", "split"), "split".into());
    }

    #[test]
    fn an_axis_is_a_list_a_range_or_all() {
        let values = |text: &str| text.parse::<SweepAxis>().unwrap().values;
        assert_eq!(values("burst=16,32"), ["16", "32"]);
        assert_eq!(values("size=64..1500"), ["64", "128", "256", "512", "1024", "1500"]);
        assert_eq!(values("--burst=1,16..16"), ["1", "16"]);
        assert_eq!(expand(&"memory=all".parse().unwrap()).unwrap(), ["pinned", "gpu", "gpu-pool"]);
        assert_eq!(expand(&"compete=all".parse().unwrap()).unwrap(), ["none", "compute", "large"]);
        for bad in ["burst", "burst=", "burst=1,,2", "burst=9..1", "burst=0..4", "work=1us..4us"] {
            assert!(bad.parse::<SweepAxis>().is_err(), "{bad}");
        }
        for bad in
            ["brust=1", "json=a", "stages=true", "tx=null", "burst=all", "sweep=a", "metrics=a", "warm-up=1s"]
        {
            assert!(expand(&bad.parse().unwrap()).is_err(), "{bad}");
        }
        let misspelt = expand(&"brust=1".parse().unwrap()).unwrap_err().to_string();
        assert!(misspelt.contains("did you mean burst?"), "{misspelt}");
    }
}
