//! Writes the error messages for command lines that cannot be parsed. They have the form of inlane's other
//! messages.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use std::ffi::OsString;

/// Returns why the command line was refused and what to do. `arguments` is the command line, and `command` is
/// its definition.
pub fn message(error: &clap::Error, mut command: Command, arguments: &[OsString]) -> String {
    // Let clap complete its definitions. The error names an argument with its placeholder, such as `--burst
    // <N>`, and incomplete definitions lack placeholders.
    command.build();
    let (subcommand, name) = subcommand(&command, arguments);
    let one = |kind| texts(error, kind).into_iter().next().unwrap_or_default();
    let argument = one(ContextKind::InvalidArg);
    let value = one(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            without_repeats(&bare(&argument), &value, &why)
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            let flag = bare(&argument);
            let example = example(&argument).map(|value| format!(", for example {flag} {value}"));
            format!("{flag}: the value is missing; give {argument}{}", example.unwrap_or_default())
        }
        ErrorKind::InvalidValue => {
            let definition = subcommand.get_arguments().find(|it| it.to_string() == argument);
            let near = suggestions(definition, &value);
            let choices = texts(error, ContextKind::ValidValue);
            let choose = if choices.len() == 1 { "give" } else { "choose one of" };
            let (name, choices) = (bare(&argument), choices.join(", "));
            format!("{name} {value}: {}{choose} {choices}", did_you_mean(&near))
        }
        ErrorKind::UnknownArgument => {
            if let Some(flag) = needs_equals(subcommand, &argument, arguments) {
                return format!("{flag} {argument}: the equals sign is missing; give {flag}={argument}");
            }
            let near = did_you_mean(&texts(error, ContextKind::SuggestedArg));
            let what = match argument.starts_with('-') {
                true => "there is no such flag",
                false => "this argument is not expected",
            };
            format!("{argument}: {what}; {near}'{name} --help' lists the flags")
        }
        ErrorKind::InvalidSubcommand => {
            let found = one(ContextKind::InvalidSubcommand);
            let near = did_you_mean(&similar(&found, subcommand.get_subcommands().map(Command::get_name)));
            format!("{found}: there is no such subcommand; {near}'{name} --help' lists the subcommands")
        }
        ErrorKind::MissingSubcommand => {
            format!("{name}: a subcommand is missing; '{name} --help' lists the subcommands")
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = texts(error, ContextKind::InvalidArg);
            let names: Vec<String> = missing.iter().map(|missing| bare(missing)).collect();
            let verb = if missing.len() == 1 { "is" } else { "are" };
            let required = |name: &String| {
                let definition = subcommand.get_arguments().find(|it| it.to_string() == *name);
                definition.is_none_or(Arg::is_required_set)
            };
            let needed_by = match missing.iter().all(required) {
                true => None,
                false => flag_that_needs(arguments, &names),
            };
            let (names, missing) = (names.join(" and "), missing.join(" "));
            match needed_by {
                Some(flag) => {
                    format!("{names} {verb} missing, which {flag} needs; give {missing}\n{}", usage(error))
                }
                None => format!("{names} {verb} missing; give {missing}\n{}", usage(error)),
            }
        }
        ErrorKind::ArgumentConflict => {
            let others = texts(error, ContextKind::PriorArg);
            match others.iter().all(|other| *other == argument) {
                true => format!("{}: it is given twice; give it once", bare(&argument)),
                false => {
                    let others: Vec<String> = others.iter().map(|other| bare(other)).collect();
                    let flag = bare(&argument);
                    let others = others.join(" and ");
                    format!("{flag}: it excludes {others}; give either {flag} or {others}")
                }
            }
        }
        ErrorKind::TooManyValues => {
            format!("{}: it takes no value; leave out '{value}'", bare(&argument))
        }
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            format!("{}: values are missing; give {argument}", bare(&argument))
        }
        ErrorKind::NoEquals => format!("{}: the equals sign is missing; give {argument}", bare(&argument)),
        ErrorKind::InvalidUtf8 => {
            let found = arguments.iter().find(|argument| argument.to_str().is_none());
            let found = found.map(|found| found.to_string_lossy()).unwrap_or_default();
            format!("the argument '{found}' is not text in UTF-8; give text in UTF-8")
        }
        _ => error.to_string().trim_start_matches("error: ").trim_end().into(),
    }
}

/// Returns the flag on the command line that requires the `missing` flags. The function exists because clap
/// does not name this flag. It parses the command line again without each flag, alone or with the next
/// argument. If clap then no longer reports the missing flags, the flag is found.
fn flag_that_needs(arguments: &[OsString], missing: &[String]) -> Option<String> {
    let complains = |arguments: Vec<&OsString>| {
        let Err(error) = <crate::Cli as clap::CommandFactory>::command().try_get_matches_from(arguments)
        else {
            return false;
        };
        error.kind() != ErrorKind::MissingRequiredArgument
            || texts(&error, ContextKind::InvalidArg).iter().any(|name| missing.contains(&bare(name)))
    };
    arguments.iter().enumerate().skip(1).find_map(|(at, argument)| {
        let flag = argument.to_str().filter(|text| text.starts_with('-'))?;
        let without = |count: usize| {
            let rest = arguments[(at + count).min(arguments.len())..].iter();
            arguments[..at].iter().chain(rest).collect::<Vec<_>>()
        };
        (!complains(without(1)) || !complains(without(2))).then(|| bare(flag))
    })
}

/// Returns the arguments in a form that clap understands, if the error `error` is about one of two forms that it does not
/// understand: a negative number behind a flag, as in `--rate -1`, and `inlane help --help`. Otherwise, returns the
/// arguments as they are.
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

/// Returns up to three names that the user may have meant by `name`, the most similar first. A name is
/// similar if one letter differs, or at most a third of the letters. It is also similar if one name begins
/// with the other.
pub fn similar<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let is_near = |other: &&str| {
        let most = name.chars().count().max(other.chars().count()) / 3;
        strsim::osa_distance(name, other) <= most.max(1)
            || (name.len() > 1 && (other.starts_with(name) || name.starts_with(other)))
    };
    let mut near: Vec<&str> = names.into_iter().filter(is_near).collect();
    near.sort_by_key(|other| strsim::osa_distance(name, other));
    // Leave out names that are much less similar than the first.
    let most = near.first().map_or(0, |first| strsim::osa_distance(name, first) + 1);
    let begins = |other: &str| other.starts_with(name) || name.starts_with(other);
    near.retain(|other| strsim::osa_distance(name, other) <= most || begins(other));
    near.into_iter().take(3).map(str::to_string).collect()
}

/// Returns an example of the value of a flag, by the placeholder in `argument`, such as `--rate <RATE>`.
fn example(argument: &str) -> Option<&'static str> {
    let (_, placeholder) = argument.split_once('<')?;
    Some(match placeholder.split('>').next()? {
        "FLAG=VALUE,..." => "burst=16,32,64",
        "TIME" => "5s",
        "SIZE" => "1M",
        "SIZES" => "4K..1M",
        "RATE" => "10G",
        "LIST" => "2,4-7",
        "ADDRESS/LENGTH" => "10.0.0.1/24",
        "ADDRESS:PORT" => "127.0.0.1:4420",
        "NAMESPACE" => "memory:1G",
        "ENDPOINT" => "gpu:0",
        "PORT" => "af_xdp:eth1",
        _ => return None,
    })
}

/// Returns the flag before `value` if the flag requires an equals sign. For example, returns `--compete` for
/// `--compete compute`, which must be written `--compete=compute`.
fn needs_equals(command: &Command, value: &str, arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().position(|argument| *argument == *value)?;
    let flag = arguments.get(at.checked_sub(1)?)?.to_str()?.strip_prefix("--")?;
    let definition = command.get_arguments().find(|it| it.get_long() == Some(flag))?;
    definition.is_require_equals_set().then(|| format!("--{flag}"))
}

/// Returns `did you mean a or b? `, or an empty string if there is no name to suggest.
pub fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!("did you mean {}? ", names.join(" or ")),
    }
}

/// Returns the innermost subcommand in `arguments` and its full name, such as `inlane ntb run`.
fn subcommand<'a>(command: &'a Command, arguments: &[OsString]) -> (&'a Command, String) {
    let (mut found, mut name) = (command, command.get_name().to_string());
    let texts = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    for text in texts.filter(|text| *text != "help") {
        if let Some(subcommand) = found.find_subcommand(text) {
            (found, name) = (subcommand, format!("{name} {}", subcommand.get_name()));
        }
    }
    (found, name)
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

fn usage(error: &clap::Error) -> String {
    match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
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

/// Returns values that are similar to the refused value. If no value is similar, returns the values whose
/// help contains the refused value as the name of a command. For example, `--schema copy` suggests
/// `transfers`, because the help of that value names `inlane copy`.
fn suggestions(definition: Option<&Arg>, value: &str) -> Vec<String> {
    let choices = definition.map(Arg::get_possible_values).unwrap_or_default();
    let near = similar(value, choices.iter().map(|choice| choice.get_name()));
    if !near.is_empty() {
        return near;
    }
    let names = |help: String| {
        let code = help.split('`').skip(1).step_by(2);
        code.flat_map(|code| code.split(' ')).any(|word| word == value)
    };
    let named = choices.iter().filter(|choice| choice.get_help().is_some_and(|help| names(help.to_string())));
    named.map(|choice| choice.get_name().to_string()).collect()
}

/// Returns a message that contains the flag, the refused value and the reason `why`, but nothing twice. The
/// reason often contains the flag or the value already, or begins with a word for the value, such as "path".
fn without_repeats(flag: &str, value: &str, why: &str) -> String {
    let shown = if value.is_empty() { "''" } else { value };
    let given = format!("{flag} {shown}");
    let quoted = format!("'{value}'");
    if why.starts_with(&format!("{given}: ")) {
        return why.into();
    }
    match why.split_once(&quoted) {
        // "path 'nvlink': choose one of bar, dma" becomes "--path nvlink: choose one of bar, dma".
        Some((kind, rest)) if rest.starts_with(": ") && !kind.contains(':') => format!("{given}{rest}"),
        // "endpoint: 'pci:x' is not a PCI BAR" becomes "--to: 'pci:x' is not a PCI BAR".
        Some((kind, rest)) if kind.is_empty() || kind.ends_with(": ") => format!("{flag}: {quoted}{rest}"),
        Some(_) => format!("{flag}: {why}"),
        // If the reason quotes only a part of the value pci:x/bar0, show the whole value: "endpoint: 'x' is
        // not the address of a PCI device" becomes "--to pci:x/bar0: 'x' is not the address of a PCI device".
        None => match why.split_once(": '") {
            Some((kind, rest)) if kind.chars().all(char::is_alphabetic) => format!("{given}: '{rest}"),
            _ => format!("{given}: {why}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_is_named_once() {
        for (flag, value, why, text) in [
            ("--on", "fpga", "--on fpga: choose cpu", "--on fpga: choose cpu"),
            ("--path", "foo", "path 'foo': choose bar", "--path foo: choose bar"),
            ("--to", "pci:x", "endpoint: 'pci:x' is not a BAR", "--to: 'pci:x' is not a BAR"),
            ("--rate", "x", "'x' is not a rate: give 10G", "--rate: 'x' is not a rate: give 10G"),
            ("--to", "pci:x/bar0", "endpoint: 'x' is no address", "--to pci:x/bar0: 'x' is no address"),
            ("--load", "0", "give percentages", "--load 0: give percentages"),
            ("--sizes", "4K,z", "'z' is not a size", "--sizes 4K,z: 'z' is not a size"),
            ("--burst", "", "'': give 1 to 1024", "--burst '': give 1 to 1024"),
        ] {
            assert_eq!(without_repeats(flag, value, why), text);
        }
    }

    #[test]
    fn a_missing_value_has_an_example() {
        assert_eq!(example("--sweep <FLAG=VALUE,...>"), Some("burst=16,32,64"));
        assert_eq!(example("--config <FILE>"), None);
        assert_eq!(example("--between <PORT> <PORT>"), Some("af_xdp:eth1"));
        assert_eq!(example("--list"), None);
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

    #[test]
    fn similar_names_are_suggested_in_order() {
        assert_eq!(similar("brust", ["burst", "slots", "rate"]), ["burst"]);
        assert!(similar("xyz", ["burst", "slots"]).is_empty());
        assert!(similar("all", ["none", "header", "data", "both"]).is_empty());
        assert_eq!(similar("packet", ["packets", "paths"]), ["packets"]);
        let variables = ["INLANE_FORWARD_PAUSE", "INLANE_FORWARD_BURST"];
        assert_eq!(similar("INLANE_FORWARD_BRUST", variables), ["INLANE_FORWARD_BURST"]);
        assert_eq!(did_you_mean(&["a".into(), "b".into()]), "did you mean a or b? ");
    }
}
