//! Explains why a command line cannot be parsed.

use crate::settings::Settings;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error;
use std::ffi::OsString;

/// Returns why the command line was refused and what to do: for a value that its parser refuses, the parser's reason,
/// and otherwise clap's own text.
pub fn message(error: &clap::Error) -> String {
    let one = |kind| texts(error, kind).into_iter().next().unwrap_or_default();
    if let (ErrorKind::ValueValidation, Some(source)) = (error.kind(), error.source()) {
        return refused(&bare(&one(ContextKind::InvalidArg)), &one(ContextKind::InvalidValue), source);
    }
    error.to_string().trim_start_matches("error: ").trim_end().into()
}

/// Returns why `value` was refused for `flag`.
fn refused(flag: &str, value: &str, error: &(dyn Error + 'static)) -> String {
    let why = reason(error).map_or_else(|| error.to_string(), String::from);
    match value {
        "" => format!("{flag} '': {why}"),
        value if why.starts_with(&format!("'{value}'")) => format!("{flag}: {why}"),
        value => format!("{flag} {value}: {why}"),
    }
}

/// Returns the reason of an error without its object, because the object is the value.
fn reason<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a str> {
    macro_rules! why_of {
        ($($variant:path),*) => { $(if let Some($variant { why, .. }) = error.downcast_ref() { return Some(why) })* };
    }
    why_of!(
        inlane_core::Error::Invalid,
        inlane_forward::Error::Config,
        inlane_ntb::error::Error::Invalid,
        inlane_nvme::Error::Invalid,
        inlane_pgas::error::Error::Invalid
    );
    None
}

/// Returns what to do if the command line lacks the equals sign that a flag requires. For example, `--compete compute`
/// must be written `--compete=compute`, and clap only says that it does not expect `compute`.
pub fn without_equals(error: &clap::Error, command: &Command, settings: &Settings) -> Option<String> {
    let value = texts(error, ContextKind::InvalidArg).into_iter().next()?;
    let at = settings.arguments.iter().position(|argument| *argument == *value)?;
    let flag = settings.arguments.get(at.checked_sub(1)?)?.to_str()?;
    let subcommand =
        settings.table.split('.').try_fold(command, |command, name| command.find_subcommand(name))?;
    let definition = subcommand.get_arguments().find(|it| it.get_long() == flag.strip_prefix("--"))?;
    let why = || format!("{flag} {value}: the equals sign is missing; give {flag}={value}");
    (error.kind() == ErrorKind::UnknownArgument && definition.is_require_equals_set()).then(why)
}

/// Rewrites two forms of arguments that clap refuses with `error`, although their meaning is clear: a negative number
/// after a flag, as in `--rate -1`, and `inlane help --help`. Returns all other arguments unchanged.
pub fn corrected(error: &clap::Error, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let found = |kind| texts(error, kind).into_iter().next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument if begins_negative(&found(ContextKind::InvalidArg)) => {
            join_negative_numbers(&arguments)
        }
        ErrorKind::InvalidSubcommand => {
            let found = found(ContextKind::InvalidSubcommand);
            let asks_for_help = ["--help", "-h"].contains(&found.as_str());
            arguments.retain(|argument| !(asks_for_help && *argument == *found));
            arguments
        }
        _ => arguments,
    }
}

fn begins_negative(argument: &str) -> bool {
    argument.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Joins each flag with a negative number behind it: `--rate -1` becomes `--rate=-1`. The number is the
/// flag's value, because no flag of inlane begins with a digit.
fn join_negative_numbers(arguments: &[OsString]) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for argument in arguments {
        let flag = joined.last_mut().filter(|last| {
            last.to_str().is_some_and(|last| {
                let name = last.strip_prefix("--").or(last.strip_prefix('-')).unwrap_or_default();
                name.starts_with(|first: char| first.is_ascii_alphabetic()) && !name.contains('=')
            })
        });
        match flag {
            Some(flag) if argument.to_str().is_some_and(begins_negative) => {
                flag.push("=");
                flag.push(argument);
            }
            _ => joined.push(argument.clone()),
        }
    }
    joined
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Returns the name of a flag or an argument, without the rest: `--burst` for `--burst <N>`, and `CHECK` for
/// `[CHECK]...`.
fn bare(argument: &str) -> String {
    let name = argument.split([' ', '=']).next().unwrap_or_default();
    match name.starts_with('-') {
        true => name.split('[').next().unwrap_or_default().into(),
        false => {
            let name = name.trim_start_matches(['<', '[']);
            name.split(['[', '>', ']']).next().unwrap_or_default().trim_end_matches('.').into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_is_named_once() {
        let shown = |value: &str, error: &(dyn Error + 'static)| refused("--to", value, error);
        let invalid = |what: &str, why: &str| inlane_core::Error::invalid(what, why);
        assert_eq!(shown("foo", &invalid("path 'foo'", "choose bar")), "--to foo: choose bar");
        assert_eq!(shown("pci:x", &invalid("endpoint", "'pci:x' is no BAR")), "--to: 'pci:x' is no BAR");
        assert_eq!(shown("4,z", &invalid("sizes '4,z'", "'z' is no size")), "--to 4,z: 'z' is no size");
        assert_eq!(shown("", &invalid("''", "give 1 to 1024")), "--to '': give 1 to 1024");
        let rate = inlane_core::units::parse_rate("x").unwrap_err();
        assert!(shown("x", &rate).starts_with("--to: 'x' is not a rate: "));
        let method = inlane_forward::Error::config("--to x", "choose one");
        assert_eq!(shown("x", &method), "--to x: choose one");
    }

    #[test]
    fn names_have_no_placeholders() {
        for (argument, name) in [
            ("--burst <N>", "--burst"),
            ("--compete[=<JOB>]", "--compete"),
            ("[CHECK]...", "CHECK"),
            ("<SHELL>", "SHELL"),
            ("--list", "--list"),
        ] {
            assert_eq!(bare(argument), name);
        }
    }

    #[test]
    fn a_negative_number_belongs_to_the_flag_before_it() {
        let joined = |texts: &[&str]| {
            let arguments: Vec<OsString> = texts.iter().map(OsString::from).collect();
            let joined = join_negative_numbers(&arguments);
            joined.into_iter().map(|text| text.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(joined(&["x", "--rate", "-1G"]), ["x", "--rate=-1G"]);
        assert_eq!(joined(&["x", "--rate=1", "-1", "--"]), ["x", "--rate=1", "-1", "--"]);
        assert_eq!(joined(&["--", "-5"]), ["--", "-5"]);
        assert_eq!(joined(&["x", "-n", "-1", "-2"]), ["x", "-n=-1", "-2"]);
    }
}
