//! Reads flags from a settings file and from environment variables, and inserts them into the command line
//! before it is parsed.
//!
//! A TOML file (`--config FILE` or `INLANE_CONFIG`) has a table per subcommand (`[forward]`, `[ntb.bench]`).
//! Its keys are the names of long flags. Environment variables are named `INLANE_<SUBCOMMAND>_<FLAG>`. A flag
//! on the command line wins over a variable, and a variable wins over the file. A flag also wins over the flags
//! that it excludes. An unknown key in the file is an error. An unknown variable is a warning, because another program may use it.

use crate::misuse::{did_you_mean, similar};
use clap::{Arg, Command};
use inlane_core::Error;
use std::ffi::OsString;

/// The variable that names the settings file. The flag `--config` wins over the variable.
pub const CONFIG_VARIABLE: &str = "INLANE_CONFIG";

/// Variables named `INLANE_*` that set no flag of the command. Other parts of inlane read these variables.
const OTHER_VARIABLES: [&str; 23] = [
    CONFIG_VARIABLE,
    "INLANE_LOG",
    "INLANE_CACHE",
    "INLANE_NVRTC",
    "INLANE_COPY_TRACE",
    "INLANE_BLESS",
    "INLANE_NTB_ADDRESS",
    "INLANE_NTB_FD",
    "INLANE_NTB_JOB",
    "INLANE_NTB_TRANSPORT",
    "INLANE_NTB_MEETING",
    "INLANE_NTB_PE",
    "INLANE_NTB_HEAP",
    "INLANE_NTB_COMPLETION",
    "INLANE_NTB_FAULTS",
    "INLANE_NTB_MOVER",
    "INLANE_NTB_YIELD",
    "INLANE_NTB_MOVER_FROM",
    "INLANE_SHMEM_CONNECT_TIMEOUT",
    "INLANE_SHMEM_ANSWER_TIMEOUT",
    "INLANE_OFFLOAD_SOCKET",
    "INLANE_OFFLOAD_RULES",
    "INLANE_OFFLOAD_REQUIRE",
];

/// Returns a warning for each `INLANE_*` variable that no part of inlane reads. Such a name is probably
/// misspelt, so the warning suggests similar names.
pub fn unknown_variables(command: &Command, environment: &[(String, String)]) -> Vec<String> {
    let mut known: Vec<String> = OTHER_VARIABLES.map(String::from).into();
    collect_variables(command, "", &mut known);
    let unknown = |name: &&str| !known.iter().any(|known| known == name) && !name.starts_with("INLANE_TEST_");
    let warning = |name: &str| {
        let near = did_you_mean(&similar(name, known.iter().map(String::as_str)));
        format!("the environment variable {name} is ignored; {near}names are INLANE_COMMAND_FLAG")
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

/// A command line into which the flags of the file and of the environment were inserted.
#[derive(Default)]
pub struct Expanded {
    /// The command line.
    pub arguments: Vec<OsString>,
    /// The inserted flags, each with the variable or the file that set it.
    pub origins: Vec<(String, String)>,
}

/// Returns the command line with the flags of the file and of the environment inserted behind the subcommand.
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
    // Leave out the arguments of the program that a subcommand such as `inlane ntb run` starts, because they
    // may look like flags of inlane.
    let texts = &texts[..own(command, &texts)];
    // Find the innermost subcommand, the name of its table in the settings file, and the index of the
    // argument that names the subcommand.
    let (mut subcommand, mut table, mut at) = (command, String::new(), 0);
    for (index, text) in texts.iter().enumerate().skip(1) {
        if *text == "help" && subcommand.has_subcommands() {
            return Ok(Expanded { arguments, ..Expanded::default() });
        }
        if let Some(found) = subcommand.find_subcommand(text) {
            let dot = if table.is_empty() { "" } else { "." };
            (subcommand, table, at) = (found, format!("{table}{dot}{text}"), index);
        }
    }
    if at == 0 {
        return Ok(Expanded { arguments, ..Expanded::default() });
    }
    let is_given = |argument: &&Arg| {
        texts[at..].iter().any(|text| match text.strip_prefix("--") {
            Some(flag) => flag.split('=').next().is_some_and(|name| is_named(argument, name)),
            None => argument.get_short().is_some_and(|short| text.starts_with(&format!("-{short}"))),
        })
    };
    let given: Vec<&Arg> = subcommand.get_arguments().filter(is_given).collect();
    let variable =
        |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let mut extra: Vec<OsString> = Vec::new();
    let mut set: Vec<&Arg> = Vec::new();
    let mut origins = Vec::new();
    for argument in subcommand.get_arguments() {
        let Some(long) = argument.get_long() else { continue };
        let name = variable_of(&table, long);
        if let Some(value) = variable(&name) {
            set.push(argument);
            if !is_overridden(subcommand, argument, &given) {
                push(&mut extra, argument, long, &toml::Value::String(value.clone()))
                    .map_err(|why| invalid(format!("{name}={value}"), why))?;
                origins.push((format!("--{long}"), format!("the environment variable {name}")));
            }
        }
    }
    let named = texts.iter().enumerate().find_map(|(i, flag)| {
        flag.strip_prefix("--config=").map(str::to_string).or_else(|| {
            (*flag == "--config").then(|| texts.get(i + 1).map(|path| path.to_string())).flatten()
        })
    });
    let named = named.or_else(|| variable(CONFIG_VARIABLE).filter(|path| !path.is_empty()));
    if let Some(path) = named {
        let refused = |why: String| invalid(format!("settings file {path}"), why);
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::IsADirectory => refused("it is a directory; name a TOML file in it".into()),
            std::io::ErrorKind::InvalidData => refused("it is not text in UTF-8; give a TOML file".into()),
            _ => Error::device_environment(
                format!("settings file {path}"),
                format!("cannot be read: {error}; give --config or INLANE_CONFIG a file that you may read"),
            ),
        })?;
        let file: toml::Table = toml::from_str(&text).map_err(|error| refused(one_line(&error, &text)))?;
        let mut settings = Vec::new();
        read(command, "", &file, &mut settings).map_err(refused)?;
        for Setting { argument, key, value, .. } in settings.iter().filter(|setting| setting.table == table) {
            let in_variable = set.iter().any(|flag| flag.get_id() == argument.get_id());
            if !in_variable && !is_overridden(subcommand, argument, &given) {
                push(&mut extra, argument, key, value)
                    .map_err(|why| refused(format!("[{table}] {key}: {why}")))?;
                origins.push((format!("--{key}"), format!("the settings file {path}")));
            }
        }
    }
    let mut all = arguments;
    all.splice(at + 1..at + 1, extra);
    Ok(Expanded { arguments: all, origins })
}

/// The flag of `nvme target` with the secrets of hosts. No other flag overrides it, because the target would
/// then run without the authentication that its settings file demands.
const SECRETS_FILE: &str = "secrets-file";

/// Returns true if one of the flags `given` on the command line is the flag `argument`, or excludes it.
fn is_overridden(subcommand: &Command, argument: &Arg, given: &[&Arg]) -> bool {
    let excludes = |one: &Arg, other: &Arg| {
        subcommand.get_arg_conflicts_with(one).iter().any(|excluded| excluded.get_id() == other.get_id())
    };
    let may_be_excluded = argument.get_long() != Some(SECRETS_FILE);
    given.iter().any(|flag| {
        flag.get_id() == argument.get_id()
            || may_be_excluded && (excludes(flag, argument) || excludes(argument, flag))
    })
}

/// Returns true if `--name` is the flag `argument`, by its name or an alias.
fn is_named(argument: &Arg, name: &str) -> bool {
    argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
}

/// Returns the number of arguments that are inlane's own: all, or those before `--` or before the program
/// that the subcommand starts.
fn own(command: &Command, texts: &[&str]) -> usize {
    let mut subcommand = command;
    let mut is_value = false;
    for (index, text) in texts.iter().enumerate().skip(1) {
        if *text == "--" {
            return index;
        }
        if std::mem::take(&mut is_value) {
            continue;
        }
        if let Some(found) = subcommand.find_subcommand(text) {
            subcommand = found;
        } else if text.starts_with('-') {
            let named = |argument: &&Arg| {
                let short = argument.get_short().is_some_and(|short| *text == format!("-{short}"));
                short || text.strip_prefix("--").is_some_and(|name| is_named(argument, name))
            };
            let argument = command.get_arguments().chain(subcommand.get_arguments()).find(named);
            is_value = argument.is_some_and(|argument| argument.get_action().takes_values());
        } else if subcommand.get_positionals().any(Arg::is_trailing_var_arg_set) {
            return index;
        }
    }
    texts.len()
}

/// Returns an error of the TOML parser as one line. The parser's text would repeat the faulty line of the
/// file, which may be very long.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    match error.span().and_then(|span| text.get(span)) {
        Some(key) if error.message() == "duplicate key" && key.len() < 80 => {
            format!("line {line}: '{key}' is set twice")
        }
        _ => format!("line {line}: {}; write lines such as burst = 32", error.message().replace('\n', ", ")),
    }
}

fn invalid(what: String, why: impl Into<String>) -> Error {
    Error::Invalid { what, why: why.into() }
}

/// A key of the settings file, the table that contains it, the flag that it sets, and its value.
struct Setting<'a> {
    table: String,
    argument: &'a Arg,
    key: String,
    value: &'a toml::Value,
}

/// Collects the keys of the table `name` and of its subtables.
fn read<'a>(
    command: &'a Command,
    name: &str,
    table: &'a toml::Table,
    settings: &mut Vec<Setting<'a>>,
) -> Result<(), String> {
    for (key, value) in table {
        if let Some(subcommand) = command.find_subcommand(key) {
            let dot = if name.is_empty() { "" } else { "." };
            let name = format!("{name}{dot}{key}");
            let toml::Value::Table(content) = value else {
                return Err(format!("'{key}' must be a table: [{name}]"));
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
                settings.push(Setting { table: name.into(), argument, key: key.clone(), value });
            }
            None if name.is_empty() && !value.is_table() => {
                return Err(format!("'{key}' must be in the table of its subcommand, such as [forward]"));
            }
            None if name.is_empty() => {
                let near = did_you_mean(&similar(key, command.get_subcommands().map(Command::get_name)));
                let tables = tables.join(", ");
                return Err(format!("there is no subcommand '{key}'; {near}the tables are {tables}"));
            }
            None => {
                let flags = command.get_arguments().filter_map(Arg::get_long);
                let names = flags
                    .filter(|flag| *flag != "config")
                    .chain(command.get_subcommands().map(Command::get_name));
                let near = did_you_mean(&similar(key, names));
                let subcommand = name.replace('.', " ");
                return Err(format!(
                    "[{name}] has the unknown key '{key}'; {near}'inlane {subcommand} --help' lists the flags"
                ));
            }
        }
    }
    Ok(())
}

/// Appends the flag `name` with its value to the arguments. If the value has a wrong type, the error says
/// which type is expected.
fn push(
    arguments: &mut Vec<OsString>,
    argument: &Arg,
    name: &str,
    value: &toml::Value,
) -> Result<(), &'static str> {
    let text = |value: &toml::Value| match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Float(number) => Ok(number.to_string()),
        _ => Err("give a text, a number, or a list of them"),
    };
    if !argument.get_action().takes_values() {
        let on = match value {
            toml::Value::Boolean(on) => *on,
            toml::Value::String(text) if ["0", "false", "no"].contains(&text.as_str()) => false,
            toml::Value::String(text) if ["1", "true", "yes"].contains(&text.as_str()) => true,
            _ => return Err("give true or false"),
        };
        arguments.extend(on.then(|| format!("--{name}").into()));
        return Ok(());
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
    use clap::ArgAction;

    fn command() -> Command {
        let bench = Command::new("bench").arg(Arg::new("repeats").long("repeats"));
        let target = Command::new("target")
            .arg(Arg::new("host").long("host").action(ArgAction::Append))
            .arg(Arg::new("secrets_file").long("secrets-file").conflicts_with("host"));
        let nvme = Command::new("nvme").subcommand(target);
        Command::new("inlane").subcommand(Command::new("ntb").subcommand(bench)).subcommand(nvme).subcommand(
            Command::new("forward")
                .arg(Arg::new("rate").long("rate").alias("load"))
                .arg(
                    Arg::new("zero-loss").long("zero-loss").action(ArgAction::SetTrue).conflicts_with("rate"),
                )
                .arg(Arg::new("config").long("config"))
                .arg(Arg::new("burst").long("burst"))
                .arg(Arg::new("tx").long("tx").action(ArgAction::Append))
                .arg(Arg::new("between").long("between").num_args(2).conflicts_with("tx"))
                .arg(Arg::new("number").long("number").short('n'))
                .arg(Arg::new("stages").long("stages").action(ArgAction::SetTrue)),
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
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("inlane.toml");
        std::fs::write(&path, file).unwrap();
        let mut all: Vec<OsString> = vec!["inlane".into()];
        all.extend(subcommand.iter().map(OsString::from));
        all.push(format!("--config={}", path.display()).into());
        all.extend(arguments.iter().map(OsString::from));
        let environment: Vec<_> = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let all = expand(&command(), all, &environment)?.arguments;
        let texts = all.into_iter().map(|argument| argument.into_string().unwrap());
        Ok(texts.filter(|text| !text.starts_with("--config")).skip(1 + subcommand.len()).collect())
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
        let off = [("INLANE_FORWARD_ZERO_LOSS", "false")];
        assert_eq!(expanded("[forward]\nrate = '1M'\n", &off, &[]).unwrap(), ["--rate=1M"]);
    }

    #[test]
    fn no_flag_wins_over_the_file_of_secrets() {
        let target = ["nvme", "target"];
        let file = "[nvme.target]\nsecrets-file = 's'\n";
        let host = ["--host", "h"];
        assert_eq!(of(&target, file, &[], &host).unwrap(), ["--secrets-file=s", "--host", "h"]);
        assert_eq!(of(&target, file, &[], &["--secrets-file=t"]).unwrap(), ["--secrets-file=t"]);
    }

    #[test]
    fn the_alias_of_a_flag_wins_too() {
        assert_eq!(
            of(&["copy"], "[copy]\nin-flight = 8\n", &[], &["--window", "4"]).unwrap(),
            ["--window", "4"]
        );
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
            assert_eq!(own(&command, &line.split(' ').collect::<Vec<_>>()), count, "{line}");
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
        assert!(error.ends_with("line 3: 'burst' is set twice"), "{error}");
    }

    #[test]
    fn a_long_line_of_the_file_is_not_repeated() {
        let error =
            expanded(&format!("[forward]\ntx = {}", "[".repeat(20_000)), &[], &[]).unwrap_err().to_string();
        assert!(error.contains("line 2: ") && error.len() < 300, "{error}");
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
