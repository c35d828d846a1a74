//! Settings from a file and from the environment, as if they had been given as flags in front of those that were.
//!
//! A TOML file (`--config FILE` or `INLANE_CONFIG`) has a table for each subcommand with its long flags as keys; the environment
//! has `INLANE_<SUBCOMMAND>_<FLAG>`. A flag on the command line beats the environment, which beats the file. Keys that no
//! flag has are refused.

use clap::Command;
use inlane_core::Error;
use std::ffi::OsString;

/// Where the name of the settings file may come from beside `--config`.
pub const CONFIG_VARIABLE: &str = "INLANE_CONFIG";

/// The arguments with those from file and environment added.
///
/// # Errors
/// When the file cannot be read or understood, or holds a key that no flag has.
pub fn expand(
    command: &Command,
    arguments: Vec<OsString>,
    environment: &[(String, String)],
) -> Result<Vec<OsString>, Error> {
    let texts: Vec<String> = arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let Some(at) = texts.iter().skip(1).position(|text| command.find_subcommand(text).is_some()) else {
        return Ok(arguments);
    };
    let at = at + 1;
    let Some(subcommand) = command.find_subcommand(&texts[at]) else { return Ok(arguments) };
    // Nothing after a `--` is a flag of ours.
    let flags: Vec<&str> =
        texts[at + 1..].iter().map(String::as_str).take_while(|text| *text != "--").collect();
    let given = |name: &str| {
        flags
            .iter()
            .any(|flag| flag.strip_prefix("--").is_some_and(|flag| flag.split('=').next() == Some(name)))
    };
    let variable =
        |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let mut extra: Vec<OsString> = Vec::new();
    // `--config` may also stand in front of the subcommand.
    let flags: Vec<&str> = texts[1..at].iter().map(String::as_str).chain(flags.iter().copied()).collect();
    let mut set: Vec<String> = Vec::new();

    let prefix = format!("INLANE_{}_", subcommand.get_name().to_uppercase().replace('-', "_"));
    for argument in subcommand.get_arguments() {
        let Some(long) = argument.get_long() else { continue };
        if let Some(value) = variable(&format!("{prefix}{}", long.to_uppercase().replace('-', "_"))) {
            set.push(long.to_string());
            if !given(long) {
                push(&mut extra, argument, long, &toml::Value::String(value))?;
            }
        }
    }
    let named = flags.iter().enumerate().find_map(|(i, flag)| {
        flag.strip_prefix("--config=").map(str::to_string).or_else(|| {
            (*flag == "--config").then(|| flags.get(i + 1).map(|path| path.to_string())).flatten()
        })
    });
    if let Some(path) = named.or_else(|| variable(CONFIG_VARIABLE)) {
        let invalid = |why: String| Error::Invalid { what: format!("settings file {path}"), why };
        let text =
            std::fs::read_to_string(&path).map_err(|error| invalid(format!("cannot be read: {error}")))?;
        let file: toml::Table = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        for (table, content) in &file {
            let Some(described) = command.find_subcommand(table) else {
                let known: Vec<_> = command.get_subcommands().map(|c| c.get_name()).collect();
                return Err(invalid(format!("no subcommand '{table}'; there are {}", known.join(", "))));
            };
            let toml::Value::Table(content) = content else {
                return Err(invalid(format!("'{table}' must be a table: [{table}]")));
            };
            for (key, value) in content {
                let argument = described.get_arguments().find(|argument| argument.get_long() == Some(key));
                let Some(argument) = argument.filter(|_| key != "config") else {
                    return Err(invalid(format!(
                        "[{table}] has no setting '{key}'; see inlane {table} --help"
                    )));
                };
                if table == subcommand.get_name() && !given(key) && !set.contains(key) {
                    push(&mut extra, argument, key, value)?;
                }
            }
        }
    }
    let mut all = arguments;
    all.splice(at + 1..at + 1, extra);
    Ok(all)
}

fn push(
    arguments: &mut Vec<OsString>,
    argument: &clap::Arg,
    name: &str,
    value: &toml::Value,
) -> Result<(), Error> {
    let text = |value: &toml::Value| match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err(Error::Invalid {
            what: format!("setting '{name}'"),
            why: "must be a text, a number, true or false, or a list of them".into(),
        }),
    };
    if !argument.get_action().takes_values() {
        return match value {
            toml::Value::Boolean(false) => Ok(()),
            toml::Value::Boolean(true) => {
                arguments.push(format!("--{name}").into());
                Ok(())
            }
            toml::Value::String(text) if ["0", "false", "no"].contains(&text.as_str()) => Ok(()),
            toml::Value::String(text) if ["1", "true", "yes"].contains(&text.as_str()) => {
                arguments.push(format!("--{name}").into());
                Ok(())
            }
            _ => {
                Err(Error::Invalid { what: format!("setting '{name}'"), why: "must be true or false".into() })
            }
        };
    }
    let several = argument.get_num_args().is_some_and(|range| range.min_values() > 1);
    match value {
        toml::Value::Array(values) if several => {
            arguments.push(format!("--{name}").into());
            for value in values {
                arguments.push(text(value)?.into());
            }
        }
        toml::Value::Array(values) => {
            for value in values {
                arguments.push(format!("--{name}={}", text(value)?).into());
            }
        }
        value => arguments.push(format!("--{name}={}", text(value)?).into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction};

    fn command() -> Command {
        Command::new("inlane").subcommand(
            Command::new("forward")
                .arg(Arg::new("config").long("config"))
                .arg(Arg::new("burst").long("burst"))
                .arg(Arg::new("tx").long("tx").action(ArgAction::Append))
                .arg(Arg::new("between").long("between").num_args(2))
                .arg(Arg::new("stages").long("stages").action(ArgAction::SetTrue)),
        )
    }

    fn expanded(file: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Result<Vec<String>, Error> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inlane.toml");
        std::fs::write(&path, file).unwrap();
        let mut all: Vec<OsString> = vec!["inlane".into(), "forward".into()];
        all.push(format!("--config={}", path.display()).into());
        all.extend(arguments.iter().map(OsString::from));
        let environment: Vec<_> = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let all = expand(&command(), all, &environment)?;
        let texts = all.into_iter().map(|argument| argument.into_string().unwrap());
        Ok(texts.filter(|text| !text.starts_with("--config")).skip(2).collect())
    }

    #[test]
    fn flags_beat_the_environment_which_beats_the_file() {
        let file = "[forward]\nburst = 16\ntx = ['a', 'b']\nstages = true\n";
        assert_eq!(expanded(file, &[], &[]).unwrap(), ["--burst=16", "--stages", "--tx=a", "--tx=b"]);
        assert_eq!(
            expanded(file, &[("INLANE_FORWARD_BURST", "32")], &["--tx", "c"]).unwrap(),
            ["--burst=32", "--stages", "--tx", "c"]
        );
        assert_eq!(
            expanded(file, &[("INLANE_FORWARD_BURST", "32")], &["--burst=8", "--tx=c"]).unwrap(),
            ["--stages", "--burst=8", "--tx=c"]
        );
        assert_eq!(expanded("[forward]\nbetween = ['a', 'b']\n", &[], &[]).unwrap(), ["--between", "a", "b"]);
    }

    #[test]
    fn unknown_keys_are_refused() {
        for bad in
            ["[forward]\nbrust = 1\n", "[forwrad]\n", "forward = 1\n", "[forward]\nstages = 'maybe'\n", "["]
        {
            assert!(expanded(bad, &[], &[]).is_err(), "{bad}");
        }
    }
}
