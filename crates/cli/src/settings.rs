//! Reads flags from a settings file and from environment variables.
//!
//! A TOML file (`--config FILE` or `INLANE_CONFIG`) has a table per subcommand (`[forward]`, `[ntb.bench]`).
//! Its keys are the names of long flags. Environment variables are named `INLANE_<SUBCOMMAND>_<FLAG>`. A flag
//! on the command line overrides a variable, and a variable overrides the file. If a flag on the command line
//! excludes other flags, it overrides those flags too, except [`SECRETS_FILE`]. An unknown key in the file is
//! an error. An unknown variable causes only a warning, because another program may use it.
//!
//! clap checks which flags exclude or require each other, and parses their values, while it reads a list of arguments.
//! So [`read`] gives it one list of all flags that apply. What the command line itself sets is read from clap's matches.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use inlane_core::Error;
use inlane_core::names::{did_you_mean, similar};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The variable that names the settings file. The flag `--config` wins over the variable.
pub const CONFIG_VARIABLE: &str = "INLANE_CONFIG";

/// Variables named `INLANE_*` that correspond to no flag of the command. Other parts of inlane read these
/// variables.
const OTHER_VARIABLES: [&str; 20] = [
    CONFIG_VARIABLE,
    "INLANE_LOG",
    "INLANE_CACHE",
    "INLANE_NVRTC",
    "INLANE_COPY_TRACE",
    "INLANE_BLESS",
    "INLANE_NTB_JOB",
    "INLANE_NTB_TRANSPORT",
    "INLANE_NTB_MEETING",
    "INLANE_NTB_PE",
    "INLANE_NTB_ADDRESS",
    "INLANE_NTB_HEAP",
    "INLANE_NTB_COMPLETION",
    "INLANE_NTB_FAULTS",
    "INLANE_NTB_MOVER",
    "INLANE_NTB_YIELD",
    "INLANE_NTB_MOVER_FROM",
    "INLANE_SHMEM_CHECK",
    "INLANE_SHMEM_CONNECT_TIMEOUT",
    "INLANE_SHMEM_ANSWER_TIMEOUT",
];

/// The flag of `nvme target` that names the file with the hosts' secrets. No other flag overrides it.
/// Otherwise, the target could run without the authentication that its settings file demands.
const SECRETS_FILE: &str = "secrets-file";

/// Returns a warning for each variable named `INLANE_*` that no part of inlane reads. The name is probably
/// misspelt, so the warning suggests similar names.
pub fn unknown_variables(command: &Command, environment: &[(String, String)]) -> Vec<String> {
    let mut known: Vec<String> = OTHER_VARIABLES.map(String::from).into();
    collect_variables(command, "", &mut known);
    let unknown = |name: &&str| !known.iter().any(|known| known == name) && !name.starts_with("INLANE_TEST_");
    let warning = |name: &str| {
        let near = did_you_mean(&similar(name, known.iter().map(String::as_str)));
        format!("the environment variable {name} is ignored; {near}names have the form INLANE_COMMAND_FLAG")
    };
    environment.iter().map(|(name, _)| name.as_str()).filter(unknown).map(warning).collect()
}

fn collect_variables(command: &Command, table: &str, known: &mut Vec<String>) {
    for subcommand in command.get_subcommands() {
        let dot = if table.is_empty() { "" } else { "." };
        let table = format!("{table}{dot}{}", subcommand.get_name());
        known.extend(
            subcommand.get_arguments().filter_map(Arg::get_long).map(|long| variable_of(&table, long)),
        );
        collect_variables(subcommand, &table, known);
    }
}

/// Returns the name of the variable that sets a flag: `INLANE_NTB_BENCH_SIZES` for `--sizes` of `ntb bench`.
fn variable_of(table: &str, long: &str) -> String {
    format!("INLANE_{table}_{long}").to_uppercase().replace(['-', '.'], "_")
}

/// A flag that the settings file or an environment variable has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The flag, such as `--burst`.
    pub flag: String,
    /// Its values. Empty for a flag without a value.
    pub values: Vec<String>,
    /// The variable, or the file with the line.
    pub place: String,
}

/// The flags that apply to one run of a subcommand, and where they come from.
#[derive(Default)]
pub struct Settings {
    /// The command line, with the flags of the settings file and of the environment after the subcommand.
    pub arguments: Vec<OsString>,
    /// The subcommand's name as a table of the settings file: `ntb.bench`. Empty if there is no subcommand.
    pub table: String,
    /// The long names of all flags that are set.
    pub given: Vec<String>,
    /// The flags that the settings file and the environment have set.
    pub origins: Vec<Origin>,
    /// The settings file.
    pub file: Option<PathBuf>,
    /// Messages for the user: one for each flag of the settings file or the environment that was left out.
    /// Such a flag is left out if a flag on the command line excludes it.
    pub left_out: Vec<String>,
}

/// Reads the settings that apply to the command line `arguments`. If clap refuses these arguments anyway, or they
/// request help, reads neither the file nor the environment.
///
/// # Errors
/// If the file cannot be read or parsed, or has a key that is not a flag.
pub fn read(
    command: &Command,
    arguments: Vec<OsString>,
    environment: &[(String, String)],
) -> Result<Settings, Error> {
    let mut settings = Settings { arguments, ..Settings::default() };
    let mut lenient = command.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from_mut(&settings.arguments) else { return Ok(settings) };
    let (path, matches) = innermost(&matches);
    settings.table = path.join(".");
    let parsed = command.clone().try_get_matches_from(&settings.arguments);
    // The settings file and the environment may set the flags that are missing on the command line.
    let is_valid = parsed.map_or_else(|error| error.kind() == ErrorKind::MissingRequiredArgument, |_| true);
    if !is_valid || path.is_empty() {
        return Ok(settings);
    }
    let subcommand = path.iter().try_fold(command, |command, name| command.find_subcommand(name));
    let subcommand = subcommand.expect("clap found these subcommands");
    let on_line =
        |argument: &&Arg| matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
    let line: Vec<&Arg> = subcommand.get_arguments().filter(on_line).collect();
    let mut set: Vec<_> = line.iter().map(|argument| argument.get_id().clone()).collect();
    let variable =
        |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let mut inserted = Vec::new();
    let mut insert = |Setting { argument, key, value, .. }: &Setting, place: String| {
        if set.contains(argument.get_id()) {
            return Ok(());
        }
        set.push(argument.get_id().clone());
        let flag = Flag::new(argument, key, value)?;
        if flag.arguments.is_empty() {
            return Ok(());
        }
        match excluder(subcommand, argument, &line) {
            Some(by) => {
                let line = format!("--{key} of {place} is left out, because --{by} excludes it");
                settings.left_out.push(line);
            }
            None => {
                inserted.extend(flag.arguments);
                settings.given.push(key.clone());
                settings.origins.push(Origin { flag: format!("--{key}"), values: flag.values, place });
            }
        }
        Ok::<(), &'static str>(())
    };
    for argument in subcommand.get_arguments() {
        let Some(long) = argument.get_long() else { continue };
        let name = variable_of(&settings.table, long);
        let Some(value) = variable(&name) else { continue };
        let setting = Setting {
            table: String::new(),
            argument,
            key: long.into(),
            value: DeValue::String(value.into()),
            at: 0,
        };
        insert(&setting, format!("the environment variable {name}"))
            .map_err(|why| Error::invalid(format!("{name}={value}"), why))?;
    }
    let named = matches.try_get_one::<PathBuf>("config").ok().flatten().cloned();
    let variable = variable(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.or(variable) {
        let text = text_of(&path)?;
        let place = |line: usize| format!("settings file {}:{line}", path.display());
        let refused = |line: usize, why: String| Error::invalid(place(line), why);
        let file = DeTable::parse(&text).map_err(|error| {
            let (line, why) = explain(&error, &text);
            refused(line, why)
        })?;
        let mut found = Vec::new();
        collect(command, "", file.get_ref(), &mut found)
            .map_err(|(at, why)| refused(line_of(&text, at), why))?;
        for setting in found.iter().filter(|setting| setting.table == settings.table) {
            let line = line_of(&text, setting.at);
            insert(setting, format!("the {}", place(line))).map_err(|why| {
                // Show only the beginning of a long value.
                let shown = text[setting.at..].lines().next().unwrap_or_default().trim();
                let shown: String = shown.chars().take(80).collect();
                refused(line, format!("{shown}: {why}"))
            })?;
        }
        settings.file = Some(path);
    }
    settings.given.extend(line.iter().filter_map(|argument| argument.get_long()).map(String::from));
    if !inserted.is_empty() {
        // Find the argument that names the subcommand: the first with which clap finds it.
        let finds_it = |count: &usize| {
            let found = lenient.try_get_matches_from_mut(&settings.arguments[..*count]);
            found.is_ok_and(|found| innermost(&found).0.len() == path.len())
        };
        let at = (1..settings.arguments.len()).find(finds_it).unwrap_or(settings.arguments.len());
        settings.arguments.splice(at..at, inserted);
    }
    Ok(settings)
}

/// Returns the number of the faulty line of `text`, and why the line is not TOML.
pub fn explain(error: &toml::de::Error, text: &str) -> (usize, String) {
    (line_of(text, error.span().map_or(0, |span| span.start)), error.message().replace('\n', ", "))
}

/// Returns the number of the line that contains the byte at `at`.
fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns the names of the subcommands on a command line, and the matches of the last.
fn innermost(mut matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let mut path = Vec::new();
    while let Some((name, inner)) = matches.subcommand() {
        path.push(name);
        matches = inner;
    }
    (path, matches)
}

/// Reads a settings file.
fn text_of(path: &Path) -> Result<String, Error> {
    let what = || format!("settings file {}", path.display());
    std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::IsADirectory => {
            Error::invalid(what(), "it is a directory; name a TOML file in it")
        }
        std::io::ErrorKind::InvalidData => {
            Error::invalid(what(), "it is not text in UTF-8; give a TOML file")
        }
        _ => Error::device_environment(
            what(),
            format!("cannot be read: {error}; give --config or INLANE_CONFIG a file that you may read"),
        ),
    })
}

/// Returns the name of the flag in `given` that conflicts with `argument`. The given flag then overrides
/// `argument`. `None` if no flag conflicts.
fn excluder<'a>(subcommand: &Command, argument: &Arg, given: &[&'a Arg]) -> Option<&'a str> {
    if argument.get_long() == Some(SECRETS_FILE) {
        return None;
    }
    let by = given.iter().find(|flag| conflict(subcommand, flag, argument));
    by.and_then(|flag| flag.get_long())
}

/// Returns true if two flags exclude each other.
pub fn conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let excludes = |one: &Arg, other: &Arg| command.get_arg_conflicts_with(one).contains(&other);
    excludes(one, other) || excludes(other, one)
}

/// A setting from the settings file or from a variable: its table, the flag that it sets, its key, its value, and where
/// it begins in the file.
struct Setting<'a> {
    table: String,
    argument: &'a Arg,
    key: String,
    value: DeValue<'a>,
    at: usize,
}

/// Appends the settings of the table `name` and of its subtables to `settings`. The error is the place of a key that
/// cannot be used, and why.
fn collect<'a>(
    command: &'a Command,
    name: &str,
    table: &DeTable<'a>,
    settings: &mut Vec<Setting<'a>>,
) -> Result<(), (usize, String)> {
    for (key, value) in table {
        let at = key.span().start;
        let key = key.get_ref().as_ref();
        if let Some(subcommand) = command.find_subcommand(key) {
            let dot = if name.is_empty() { "" } else { "." };
            let name = format!("{name}{dot}{key}");
            let Some(content) = value.get_ref().as_table() else {
                return Err((at, format!("'{key}' must be a table; write [{name}] and its keys below")));
            };
            collect(subcommand, &name, content, settings)?;
            continue;
        }
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(key));
        if let Some(argument) = argument.filter(|_| !name.is_empty() && key != "config") {
            let value = value.get_ref().clone();
            settings.push(Setting { table: name.into(), argument, key: key.into(), value, at });
            continue;
        }
        let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
        let flags = command.get_arguments().filter_map(Arg::get_long).filter(|flag| *flag != "config");
        return Err((
            at,
            match name {
                "" if !value.get_ref().is_table() => {
                    let has_flag = |subcommand: &&Command| {
                        subcommand.get_arguments().any(|argument| argument.get_long() == Some(key))
                    };
                    let owner = command.get_subcommands().find(has_flag).map_or("forward", Command::get_name);
                    format!(
                        "'{key}' is not in a table; move it below the name of its subcommand, such as [{owner}]"
                    )
                }
                "" => {
                    let near = did_you_mean(&similar(key, command.get_subcommands().map(Command::get_name)));
                    let tables: Vec<_> =
                        subcommands.map(|command| format!("[{}]", command.get_name())).collect();
                    format!("there is no subcommand '{key}'; {near}the tables are {}", tables.join(", "))
                }
                name => {
                    let near = did_you_mean(&similar(key, flags.chain(subcommands.map(Command::get_name))));
                    let subcommand = name.replace('.', " ");
                    format!(
                        "[{name}] has the unknown key '{key}'; {near}'inlane {subcommand} --help' lists the flags"
                    )
                }
            },
        ));
    }
    Ok(())
}

/// A flag with its values.
struct Flag {
    /// Its arguments for clap. Empty for a flag that is off.
    arguments: Vec<OsString>,
    values: Vec<String>,
}

impl Flag {
    /// Sets the flag `name` to `value`. If the value has a wrong type, the error says which type is expected.
    fn new(argument: &Arg, name: &str, value: &DeValue) -> Result<Self, &'static str> {
        if !argument.get_action().takes_values() {
            let on = match value {
                DeValue::Boolean(on) => *on,
                DeValue::String(text) if ["0", "false", "no"].contains(&text.as_ref()) => false,
                DeValue::String(text) if ["1", "true", "yes"].contains(&text.as_ref()) => true,
                _ => return Err("give true or false"),
            };
            let arguments = on.then(|| format!("--{name}").into()).into_iter().collect();
            return Ok(Self { arguments, values: Vec::new() });
        }
        let values: Option<Vec<String>> = match value {
            DeValue::Array(values) => values.iter().map(|value| text(value.get_ref())).collect(),
            value => text(value).map(|value| vec![value]),
        };
        let values = values.ok_or("the flag takes a value; give a text, a number, or a list of them")?;
        let together = argument.get_num_args().is_some_and(|range| range.min_values() > 1);
        let arguments = match together && value.is_array() {
            true => std::iter::once(format!("--{name}")).chain(values.clone()).map(OsString::from).collect(),
            false => values.iter().map(|value| format!("--{name}={value}").into()).collect(),
        };
        Ok(Self { arguments, values })
    }
}

/// Returns a text or a number as it is written on the command line. `None` for other values.
fn text(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        DeValue::Float(number) => number.as_str().parse::<f64>().ok().map(|number| number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{ArgAction, CommandFactory, Parser, value_parser};

    fn command() -> Command {
        let bench = Command::new("bench").arg(Arg::new("repeats").long("repeats"));
        let config = Arg::new("config").long("config").global(true).value_parser(value_parser!(PathBuf));
        let command = Command::new("inlane").arg(config).subcommand(Command::new("ntb").subcommand(bench));
        command.subcommand(
            Command::new("forward")
                .arg(Arg::new("burst").long("burst"))
                .arg(Arg::new("tx").long("tx").action(ArgAction::Append))
                .arg(Arg::new("between").long("between").num_args(2).conflicts_with("tx"))
                .arg(Arg::new("number").long("number").short('n'))
                .arg(Arg::new("in-flight").long("in-flight").alias("window"))
                .arg(
                    Arg::new("stages").long("stages").action(ArgAction::SetTrue).conflicts_with("in-flight"),
                ),
        )
    }

    fn expanded(file: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Result<Vec<String>, Error> {
        of(&["forward"], file, environment, arguments)
    }

    fn of(
        subcommand: &[&str],
        file: &str,
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<Vec<String>, Error> {
        let all = texts(&with_file(&command(), subcommand, file, environment, arguments)?);
        let is_other = |text: &String| !text.starts_with("--config");
        Ok(all.into_iter().filter(is_other).skip(1 + subcommand.len()).collect())
    }

    /// Expands the command line with a settings file that contains `file`.
    fn with_file(
        command: &Command,
        subcommand: &[&str],
        file: &str,
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<Settings, Error> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inlane.toml");
        std::fs::write(&path, file).unwrap();
        let mut all: Vec<OsString> = vec!["inlane".into(), format!("--config={}", path.display()).into()];
        all.extend(subcommand.iter().chain(arguments).map(OsString::from));
        let environment: Vec<_> = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        read(command, all, &environment)
    }

    fn texts(expanded: &Settings) -> Vec<String> {
        expanded.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
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
    fn a_flag_of_the_command_line_wins_over_the_flags_that_it_excludes() {
        let file = "[forward]\nburst = 16\ntx = ['a', 'b']\n";
        assert_eq!(
            expanded(file, &[], &["--between", "c", "d"]).unwrap(),
            ["--burst=16", "--between", "c", "d"]
        );
        assert_eq!(
            expanded("", &[("INLANE_FORWARD_TX", "c")], &["--between", "a", "b"]).unwrap(),
            ["--between", "a", "b"]
        );
    }

    #[test]
    fn a_variable_wins_over_no_other_flag_than_its_own() {
        let file = "[forward]\nbetween = ['a', 'b']\n";
        let both = ["--tx=c", "--between", "a", "b"];
        assert_eq!(expanded(file, &[("INLANE_FORWARD_TX", "c")], &[]).unwrap(), both);
        let off = [("INLANE_FORWARD_STAGES", "false")];
        assert_eq!(expanded("[forward]\nin-flight = 8\n", &off, &[]).unwrap(), ["--in-flight=8"]);
        assert!(expanded("[forward]\nstages = true\n", &off, &[]).unwrap().is_empty());
    }

    #[test]
    fn each_flag_that_is_left_out_has_a_line() {
        let left_out = |file: &str, variables: &[(&str, &str)], arguments: &[&str]| {
            with_file(&command(), &["forward"], file, variables, arguments).unwrap().left_out
        };
        let file = "[forward]\nburst = 16\ntx = ['a', 'b']\n";
        let lines = left_out(file, &[], &["--between", "c", "d"]);
        assert!(lines[0].starts_with("--tx of the settings file "), "{lines:?}");
        assert!(lines[0].ends_with(" is left out, because --between excludes it"), "{lines:?}");
        assert_eq!(lines.len(), 1);
        let variable = [("INLANE_FORWARD_TX", "c")];
        let line =
            "--tx of the environment variable INLANE_FORWARD_TX is left out, because --between excludes it";
        assert_eq!(left_out("", &variable, &["--between", "c", "d"]), [line]);
        // In the next two cases, no flag is left out, so there is no line about it. `stages = false`
        // conflicts with no flag. `--tx=c` replaces the value of the same flag in the file.
        assert!(left_out("[forward]\nstages = false\n", &[], &["--in-flight=4"]).is_empty());
        assert!(left_out(file, &[], &["--tx=c"]).is_empty());
    }

    #[test]
    fn no_flag_turns_off_authentication() {
        let target = ["nvme", "target"];
        let host = ["--namespace=memory:1M", "--host=nqn.2026-11.example:a"];
        let cli = crate::Cli::command();
        let file = "[nvme.target]\nsecrets-file = 'secrets'\n";
        let demanded = with_file(&cli, &target, file, &[], &host).unwrap();
        assert!(texts(&demanded).contains(&"--secrets-file=secrets".to_string()));
        assert!(demanded.left_out.is_empty());
        let variable = [("INLANE_NVME_TARGET_SECRETS_FILE", "secrets")];
        let by_variable = with_file(&cli, &target, "", &variable, &host).unwrap();
        for expanded in [demanded, by_variable] {
            let error = crate::Cli::try_parse_from(expanded.arguments).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{error}");
        }
    }

    #[test]
    fn a_hash_or_group_without_secrets_is_refused() {
        for hosts in ["--host=nqn.2026-11.example:a", "--hosts-file=hosts"] {
            for without_effect in ["--dhchap-hash=sha512", "--dhchap-dhgroup=ffdhe2048"] {
                let line = ["inlane", "nvme", "target", "--namespace=memory:1M", hosts, without_effect];
                assert!(crate::Cli::try_parse_from(line).is_err(), "{line:?}");
            }
        }
    }

    #[test]
    fn an_alias_of_a_flag_wins_too() {
        let file = "[forward]\nin-flight = 8\n";
        for arguments in [&["--window", "4"][..], &["--window=4"]] {
            assert_eq!(expanded(file, &[], arguments).unwrap(), arguments);
        }
        let arguments = ["--window", "4"];
        assert_eq!(expanded("[forward]\nstages = true\n", &[], &arguments).unwrap(), arguments);
    }

    #[test]
    fn the_short_form_of_a_flag_wins_too() {
        for arguments in [&["-n", "2"][..], &["-n2"]] {
            assert_eq!(expanded("[forward]\nnumber = 1\n", &[], arguments).unwrap(), arguments);
        }
    }

    #[test]
    fn subcommands_of_subcommands_have_tables_too() {
        let file = "[ntb.bench]\nrepeats = 1\n";
        assert_eq!(of(&["ntb", "bench"], file, &[], &[]).unwrap(), ["--repeats=1"]);
        assert_eq!(
            of(&["ntb", "bench"], file, &[("INLANE_NTB_BENCH_REPEATS", "2")], &[]).unwrap(),
            ["--repeats=2"]
        );
        assert!(expanded(file, &[], &[]).unwrap().is_empty());
        assert!(of(&["help", "forward"], "", &[("INLANE_FORWARD_BURST", "2")], &[]).unwrap().is_empty());
    }

    #[test]
    fn the_arguments_of_a_started_program_are_not_inlanes() {
        let run = ["ntb", "run"];
        let command = crate::Cli::command();
        for (line, wins) in [
            ("-n 4 ./program --heap 1M", false),
            ("--pes=4 ./program --config x", false),
            ("--heap 1M -- ./program", true),
            ("--heap 1M ./program", true),
        ] {
            let line: Vec<_> = line.split(' ').collect();
            let settings = with_file(&command, &run, "[ntb.run]\nheap = '2M'\n", &[], &line).unwrap();
            assert_eq!(settings.origins.is_empty(), wins, "{line:?}");
            let (begin, end) = settings.arguments.split_at(settings.arguments.len() - line.len());
            assert!(end.iter().zip(&line).all(|(one, other)| one == other), "{begin:?} {end:?}");
        }
    }

    #[test]
    fn a_value_that_names_a_subcommand_is_no_subcommand() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("forward"), "[forward]\nburst = 4\n").unwrap();
        let path = directory.path().join("forward");
        let line = ["inlane".into(), "--config".into(), path.clone().into(), "forward".into(), "-n1".into()];
        let settings = read(&command(), line.into(), &[]).unwrap();
        let expected = ["inlane", "--config", path.to_str().unwrap(), "forward", "--burst=4", "-n1"];
        assert_eq!(texts(&settings), expected);
        assert_eq!((settings.file, settings.table), (Some(path), "forward".to_string()));
    }

    #[test]
    fn similar_keys_are_suggested() {
        for (file, suggestion) in [
            ("[forward]\nbrust = 1\n", "did you mean burst?"),
            ("[forwrad]\n", "did you mean forward?"),
            ("[ntb.bnch]\n", "did you mean bench?"),
        ] {
            let error = expanded(file, &[], &[]).unwrap_err().to_string();
            assert!(error.contains(suggestion), "{error}");
        }
    }

    #[test]
    fn inserted_flags_have_an_origin() {
        let environment = [("INLANE_FORWARD_BURST".to_string(), "x".to_string())];
        let all = read(&command(), vec!["inlane".into(), "forward".into()], &environment).unwrap();
        let place = "the environment variable INLANE_FORWARD_BURST".into();
        assert_eq!(all.origins, [Origin { flag: "--burst".into(), values: vec!["x".into()], place }]);
    }

    #[test]
    fn a_key_that_is_set_twice_is_named() {
        let error = expanded("[forward]\nburst = 1\nburst = 2\n", &[], &[]).unwrap_err().to_string();
        assert!(error.ends_with("inlane.toml:3: duplicate key"), "{error}");
    }

    #[test]
    fn messages_name_the_line_of_a_wrong_key() {
        for (file, expected) in [
            (
                "[ntb.bench]\nrepeats = 1\n[forward]\nbrust = 1\n",
                "inlane.toml:4: [forward] has the unknown key 'brust'",
            ),
            (
                "\nburst = 1\n",
                "inlane.toml:2: 'burst' is not in a table; move it below the name of its subcommand, such as [forward]",
            ),
            ("[forward]\n\nburst = true\n", "inlane.toml:3: burst = true: the flag takes a value"),
            ("[x\n", "inlane.toml:1: unclosed table, expected `]`"),
        ] {
            let error = expanded(file, &[], &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let set = with_file(&command(), &["forward"], "[forward]\nburst = 'x'\n", &[], &[]).unwrap();
        assert!(set.origins[0].place.ends_with("inlane.toml:2"), "{:?}", set.origins);
    }

    #[test]
    fn a_long_line_of_the_file_is_not_repeated() {
        let error =
            expanded(&format!("[forward]\ntx = {}", "[".repeat(20_000)), &[], &[]).unwrap_err().to_string();
        assert!(error.contains("inlane.toml:2: ") && error.len() < 300, "{error}");
    }

    #[test]
    fn unknown_keys_are_refused() {
        for bad in [
            "[forward]\nbrust = 1\n",
            "[forwrad]\n",
            "forward = 1\n",
            "[ntb]\nrepeats = 1\n",
            "[ntb.bnch]\n",
            "[forward]\nstages = 'maybe'\n",
            "[",
        ] {
            assert!(expanded(bad, &[], &[]).is_err(), "{bad}");
        }
    }

    #[test]
    fn documented_variables_are_known() {
        let pages = [include_str!("../../../docs/configuration.md"), include_str!("../../../docs/ntb.md")];
        let rows = pages.iter().flat_map(|page| page.lines()).filter_map(|line| line.strip_prefix("| `"));
        let names = rows.filter_map(|row| row.split('`').next()).filter(|name| name.starts_with("INLANE_"));
        let environment: Vec<_> = names.map(|name| (name.to_string(), "1".to_string())).collect();
        assert!(environment.len() > 8, "the tables were not found: {environment:?}");
        assert_eq!(unknown_variables(&crate::Cli::command(), &environment), [""; 0]);
    }

    #[test]
    fn variables_that_set_no_flag_are_unknown() {
        let environment: Vec<_> =
            ["INLANE_FORWARD_BURST", "INLANE_FORWARD_BURTS", "INLANE_LOG", "INLANE_NTB_JOB"]
                .map(|name| (name.to_string(), "1".to_string()))
                .into();
        let warnings = unknown_variables(&command(), &environment);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let expected = "INLANE_FORWARD_BURTS is ignored; did you mean INLANE_FORWARD_BURST";
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
}
