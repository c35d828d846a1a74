//! Reads flags from a settings file and from environment variables, and inserts them into the command line
//! before it is parsed.
//!
//! A TOML file (`--config FILE` or `INLANE_CONFIG`) has a table per subcommand (`[forward]`, `[ntb.bench]`).
//! Its keys are the names of long flags. Environment variables are named `INLANE_<SUBCOMMAND>_<FLAG>`. A flag
//! on the command line overrides a variable, and a variable overrides the file. If a flag on the command line
//! excludes other flags, it overrides those flags too, except [`SECRETS_FILE`]. An unknown key in the file is
//! an error. An unknown variable causes only a warning, because another program may use it.

mod lines;

use crate::misuse::{did_you_mean, similar};
use clap::{Arg, Command};
use inlane_core::Error;
use inlane_offload::toml_error;
use std::ffi::OsString;

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
    "INLANE_NTB_FD",
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

/// A command line with the inserted flags of the settings file and of environment variables.
#[derive(Default)]
pub struct Expanded {
    /// The command line.
    pub arguments: Vec<OsString>,
    /// The subcommand's name as a table of the settings file: `ntb.bench`. Empty if there is no subcommand.
    pub table: String,
    /// The inserted flags, each with the variable or the file that set it.
    pub origins: Vec<(String, String)>,
    /// Messages for the user: one for each flag of the settings file or the environment that was left out.
    /// Such a flag is left out if a flag on the command line excludes it.
    pub left_out: Vec<String>,
}

/// Returns the command line with the flags of the settings file and of the environment. These flags are
/// inserted after the subcommand.
///
/// # Errors
/// If the file cannot be read or parsed, or has a key that is not a flag.
pub fn expand(
    command: &Command,
    arguments: Vec<OsString>,
    environment: &[(String, String)],
) -> Result<Expanded, Error> {
    let texts: Vec<String> = arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let Line { subcommand, table, at, own, flags } = read_line(command, &texts);
    let texts = &texts[..own];
    if at == 0 {
        return Ok(Expanded { arguments, table, ..Expanded::default() });
    }
    let variable =
        |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let mut inserted = Expanded::default();
    let mut set = flags.clone();
    for argument in subcommand.get_arguments() {
        let Some(long) = argument.get_long() else { continue };
        let name = variable_of(&table, long);
        let Some(value) = variable(&name).filter(|_| !set.contains(&argument)) else { continue };
        set.push(argument);
        let setting =
            Setting { table: table.clone(), argument, key: long.into(), value: value.clone().into() };
        let origin = format!("the environment variable {name}");
        insert(&mut inserted, subcommand, &setting, origin, &flags)
            .map_err(|why| invalid(format!("{name}={value}"), why))?;
    }
    let named = texts.iter().enumerate().find_map(|(i, flag)| {
        flag.strip_prefix("--config=").map(str::to_string).or_else(|| {
            (*flag == "--config").then(|| texts.get(i + 1).map(|path| path.to_string())).flatten()
        })
    });
    let named = named.or_else(|| variable(CONFIG_VARIABLE).filter(|path| !path.is_empty()));
    if let Some(path) = named {
        let at = |line| format!("settings file {}", lines::place(&path, line));
        let refused = |why: String| invalid(at(None), why);
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::IsADirectory => refused("it is a directory; name a TOML file in it".into()),
            std::io::ErrorKind::InvalidData => refused("it is not text in UTF-8; give a TOML file".into()),
            _ => Error::device_environment(
                format!("settings file {path}"),
                format!("cannot be read: {error}; give --config or INLANE_CONFIG a file that you may read"),
            ),
        })?;
        let file: toml::Table = toml::from_str(&text).map_err(|error| {
            let (line, why) = toml_error::explain(&error, &text);
            invalid(at(Some(line)), why)
        })?;
        let mut settings = Vec::new();
        let line_of = |table: &str, key: &str| lines::line_of(&text, table, key);
        read(command, "", &file, &mut settings)
            .map_err(|Refused { table, key, why }| invalid(at(line_of(&table, &key)), why))?;
        let here =
            settings.iter().filter(|setting| setting.table == table && !set.contains(&setting.argument));
        for setting in here {
            let line = line_of(&table, &setting.key);
            insert(&mut inserted, subcommand, setting, format!("the {}", at(line)), &flags).map_err(
                |why| {
                    let (key, value) = (&setting.key, &setting.value);
                    let shown = if value.is_table() { String::new() } else { format!(" = {value}") };
                    invalid(at(line), format!("{key}{shown}: {why}"))
                },
            )?;
        }
    }
    let mut all = arguments;
    all.splice(at + 1..at + 1, inserted.arguments);
    Ok(Expanded { arguments: all, table, ..inserted })
}

/// Appends the flag that the setting `key` sets. `origin` is the place of the setting: a variable or the
/// settings file. Leaves the flag out if its value is off, or if a flag in `given` (the command line)
/// excludes it.
fn insert(
    inserted: &mut Expanded,
    subcommand: &Command,
    Setting { argument, key, value, .. }: &Setting,
    origin: String,
    given: &[&Arg],
) -> Result<(), &'static str> {
    let flag = arguments_of(argument, key, value)?;
    if flag.is_empty() {
        return Ok(());
    }
    match excluder(subcommand, argument, given) {
        Some(by) => {
            inserted.left_out.push(format!("--{key} of {origin} is left out, because --{by} excludes it"));
        }
        None => {
            inserted.arguments.extend(flag);
            inserted.origins.push((format!("--{key}"), origin));
        }
    }
    Ok(())
}

/// Returns the name of the flag in `given` that conflicts with `argument`. The given flag then overrides
/// `argument`. `None` if no flag conflicts.
fn excluder<'a>(subcommand: &Command, argument: &Arg, given: &[&'a Arg]) -> Option<&'a str> {
    if argument.get_long() == Some(SECRETS_FILE) {
        return None;
    }
    let excludes = |one: &Arg, other: &Arg| subcommand.get_arg_conflicts_with(one).contains(&other);
    let by = given.iter().find(|flag| excludes(flag, argument) || excludes(argument, flag));
    by.and_then(|flag| flag.get_long())
}

/// The parts of a command line that decide which settings apply to it.
struct Line<'a> {
    /// The innermost subcommand.
    subcommand: &'a Command,
    /// The name of the subcommand's table in the settings file.
    table: String,
    /// The index of the argument that names the subcommand. 0 if there is none, or if help is requested.
    at: usize,
    /// The number of arguments that belong to inlane. These are all arguments, or those before `--`, or those
    /// before the program that the subcommand starts. The program's arguments may look like flags of inlane.
    own: usize,
    /// The flags on the command line. A flag may be given by its name, by an alias or in its short form.
    flags: Vec<&'a Arg>,
}

/// Reads a command line without parsing the values of its flags.
fn read_line<'a>(command: &'a Command, texts: &[&str]) -> Line<'a> {
    let mut line =
        Line { subcommand: command, table: String::new(), at: 0, own: texts.len(), flags: Vec::new() };
    // The number of following arguments that belong to the last flag as its values.
    let mut values = 0;
    for (index, &text) in texts.iter().enumerate().skip(1) {
        if text == "--" {
            return Line { own: index, ..line };
        } else if values > 0 {
            values -= 1;
        } else if text == "help" && line.subcommand.has_subcommands() {
            return Line { at: 0, ..line };
        } else if let Some(found) = line.subcommand.find_subcommand(text) {
            let dot = if line.table.is_empty() { "" } else { "." };
            line = Line { subcommand: found, table: format!("{}{dot}{text}", line.table), at: index, ..line };
        } else if let Some(flag) = text.strip_prefix("--") {
            let name = flag.split('=').next().unwrap_or(flag);
            if let Some(argument) = known(command, line.subcommand, |argument| has_long(argument, name)) {
                line.flags.push(argument);
                values = if flag.contains('=') { 0 } else { values_behind(argument) };
            }
        } else if let Some(letters) = text.strip_prefix('-') {
            for (at, letter) in letters.char_indices() {
                let has_short = |argument: &Arg| argument.get_short() == Some(letter);
                let Some(argument) = known(command, line.subcommand, has_short) else { break };
                line.flags.push(argument);
                if argument.get_action().takes_values() {
                    let is_last = at + letter.len_utf8() == letters.len();
                    values = if is_last { values_behind(argument) } else { 0 };
                    break;
                }
            }
        } else if line.subcommand.get_positionals().any(Arg::is_trailing_var_arg_set) {
            return Line { own: index, ..line };
        }
    }
    line
}

/// Returns the first flag that `matches` accepts. Searches the flags of `subcommand` first, then those of
/// `command`.
fn known<'a>(
    command: &'a Command,
    subcommand: &'a Command,
    matches: impl Fn(&Arg) -> bool,
) -> Option<&'a Arg> {
    subcommand.get_arguments().chain(command.get_arguments()).find(|argument| matches(argument))
}

/// Returns true if `name` is the long name of the flag, or an alias of it.
fn has_long(argument: &Arg, name: &str) -> bool {
    argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
}

/// Returns the least number of separate arguments that the flag takes as values. They follow the flag on the
/// command line.
fn values_behind(argument: &Arg) -> usize {
    match argument.get_num_args() {
        _ if !argument.get_action().takes_values() || argument.is_require_equals_set() => 0,
        Some(range) => range.min_values(),
        None => 1,
    }
}

fn invalid(what: String, why: impl Into<String>) -> Error {
    Error::Invalid { what, why: why.into() }
}

/// A key of the settings file that cannot be used.
struct Refused {
    /// The name of the table that contains the key. Empty if the key is in no table.
    table: String,
    key: String,
    /// What is wrong and what to write instead.
    why: String,
}

/// A setting from the settings file or from a variable: its table, the flag that it sets, its key, and its
/// value.
struct Setting<'a> {
    table: String,
    argument: &'a Arg,
    key: String,
    value: toml::Value,
}

/// Appends the settings of the table `name` and of its subtables to `settings`.
fn read<'a>(
    command: &'a Command,
    name: &str,
    table: &toml::Table,
    settings: &mut Vec<Setting<'a>>,
) -> Result<(), Refused> {
    for (key, value) in table {
        let refused = |why: String| Refused { table: name.into(), key: key.clone(), why };
        if let Some(subcommand) = command.find_subcommand(key) {
            let dot = if name.is_empty() { "" } else { "." };
            let name = format!("{name}{dot}{key}");
            let toml::Value::Table(content) = value else {
                return Err(refused(format!("'{key}' must be a table; write [{name}] and its keys below")));
            };
            read(subcommand, &name, content, settings)?;
            continue;
        }
        let tables: Vec<_> = command
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
            .map(|c| format!("[{}]", c.get_name()))
            .collect();
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(key));
        match argument.filter(|_| !name.is_empty() && key != "config") {
            Some(argument) => {
                settings.push(Setting {
                    table: name.into(),
                    argument,
                    key: key.clone(),
                    value: value.clone(),
                });
            }
            None if name.is_empty() && !value.is_table() => {
                let has_flag = |subcommand: &&Command| {
                    subcommand.get_arguments().any(|argument| argument.get_long() == Some(key))
                };
                let owner = command.get_subcommands().find(has_flag).map_or("forward", Command::get_name);
                let why = format!(
                    "'{key}' is not in a table; move it below the name of its subcommand, such as [{owner}]"
                );
                return Err(refused(why));
            }
            None if name.is_empty() => {
                let near = did_you_mean(&similar(key, command.get_subcommands().map(Command::get_name)));
                let tables = tables.join(", ");
                let why = format!("there is no subcommand '{key}'; {near}the tables are {tables}");
                return Err(refused(why));
            }
            None => {
                let flags = command.get_arguments().filter_map(Arg::get_long);
                let names = flags
                    .filter(|flag| *flag != "config")
                    .chain(command.get_subcommands().map(Command::get_name));
                let near = did_you_mean(&similar(key, names));
                let subcommand = name.replace('.', " ");
                return Err(refused(format!(
                    "[{name}] has the unknown key '{key}'; {near}'inlane {subcommand} --help' lists the flags"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the arguments that set the flag `name` to `value`. Returns no arguments for a flag that is off. If
/// the value has a wrong type, the error says which type is expected.
fn arguments_of(argument: &Arg, name: &str, value: &toml::Value) -> Result<Vec<OsString>, &'static str> {
    let text = |value: &toml::Value| match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err("the flag takes a value; give a text, a number, or a list of them"),
    };
    if !argument.get_action().takes_values() {
        let on = match value {
            toml::Value::Boolean(on) => *on,
            toml::Value::String(text) if ["0", "false", "no"].contains(&text.as_str()) => false,
            toml::Value::String(text) if ["1", "true", "yes"].contains(&text.as_str()) => true,
            _ => return Err("give true or false"),
        };
        return Ok(on.then(|| format!("--{name}").into()).into_iter().collect());
    }
    let several = argument.get_num_args().is_some_and(|range| range.min_values() > 1);
    match value {
        toml::Value::Array(values) if several => {
            let values = values.iter().map(|value| Ok(text(value)?.into()));
            std::iter::once(Ok(format!("--{name}").into())).chain(values).collect()
        }
        toml::Value::Array(values) => {
            values.iter().map(|value| Ok(format!("--{name}={}", text(value)?).into())).collect()
        }
        value => Ok(vec![format!("--{name}={}", text(value)?).into()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{ArgAction, CommandFactory, Parser};

    fn command() -> Command {
        let bench = Command::new("bench").arg(Arg::new("repeats").long("repeats"));
        Command::new("inlane").subcommand(Command::new("ntb").subcommand(bench)).subcommand(
            Command::new("forward")
                .arg(Arg::new("config").long("config"))
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
    ) -> Result<Expanded, Error> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inlane.toml");
        std::fs::write(&path, file).unwrap();
        let mut all: Vec<OsString> = vec!["inlane".into(), format!("--config={}", path.display()).into()];
        all.extend(subcommand.iter().chain(arguments).map(OsString::from));
        let environment: Vec<_> = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        expand(command, all, &environment)
    }

    fn texts(expanded: &Expanded) -> Vec<String> {
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
    fn the_value_of_another_flag_is_not_a_flag() {
        for value in ["-n2", "--number"] {
            let arguments = ["--burst", value];
            let expected = ["--number=1", "--burst", value];
            assert_eq!(expanded("[forward]\nnumber = 1\n", &[], &arguments).unwrap(), expected);
        }
        let line = ["inlane", "--config", "ntb", "forward"];
        let command = crate::Cli::command();
        assert_eq!(read_line(&command, &line).table, "forward");
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
        let number = Arg::new("pes").short('n').long("pes");
        let program = Arg::new("program").num_args(1..).trailing_var_arg(true);
        let run = Command::new("run").arg(number).arg(Arg::new("heap").long("heap")).arg(program);
        let command = Command::new("inlane")
            .arg(Arg::new("config").long("config").global(true))
            .subcommand(Command::new("ntb").subcommand(run));
        for (line, count) in [
            ("inlane ntb run -n 4 ./program --heap 1M", 5),
            ("inlane ntb run --pes=4 ./program --config x", 4),
            ("inlane --config x ntb run ./program", 5),
            ("inlane ntb run --heap 1M -- ./program", 5),
            ("inlane ntb run --heap 1M", 5),
        ] {
            assert_eq!(read_line(&command, &line.split(' ').collect::<Vec<_>>()).own, count, "{line}");
        }
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
        let all = expand(&command(), vec!["inlane".into(), "forward".into()], &environment).unwrap();
        let origin = ("--burst".into(), "the environment variable INLANE_FORWARD_BURST".into());
        assert_eq!(all.origins, [origin]);
    }

    #[test]
    fn a_key_that_is_set_twice_is_named() {
        let error = expanded("[forward]\nburst = 1\nburst = 2\n", &[], &[]).unwrap_err().to_string();
        assert!(error.ends_with("inlane.toml:3: 'burst' is set twice; set it once"), "{error}");
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
            ("[x\n", "inlane.toml:1: the name of a table has no closing bracket"),
        ] {
            let error = expanded(file, &[], &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let set = with_file(&command(), &["forward"], "[forward]\nburst = 'x'\n", &[], &[]).unwrap();
        assert!(set.origins[0].1.ends_with("inlane.toml:2"), "{:?}", set.origins);
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
