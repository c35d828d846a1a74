//! The `inlane` command. Each subcommand has a module, which parses the flags, calls the crate that does the
//! work, and prints the result.

mod compare;
mod copy;
mod devices;
mod doctor;
mod exit;
mod fields;
mod forward;
mod manual;
mod metrics;
mod misuse;
mod mix;
mod model;
mod ntb;
mod nvme;
mod offload;
mod output;
mod report;
mod schema;
mod settings;
mod signal;
mod sizes;
mod stored;
mod systemd;
mod text_file;
mod topo;
mod values;

use clap::{CommandFactory, Parser, Subcommand};
use settings::Settings;
use std::io::{self, Write};
use std::process::ExitCode;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The text at the end of `inlane --help`: how to set flags without the command line, and what the exit
/// statuses mean.
const SETTINGS: &str = "\
Settings:
  A TOML file (--config FILE or INLANE_CONFIG) can set every flag. It has a table for each
  subcommand. An environment variable can set every flag except --between, because a variable
  holds one value. The command line wins over variables, and variables win over the file. A flag
  of the command line also wins over flags of variables and of the file that it excludes.
    [forward]                  INLANE_FORWARD_BURST=32
    burst = 32                 INLANE_NTB_BENCH_REPEATS=9

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights).";

/// Moves bytes between network, host memory, accelerators and other machines over the fastest path of this
/// machine, and shows why that path is the fastest.
#[derive(Parser)]
#[command(name = "inlane", version, max_term_width = 110, after_help = SETTINGS)]
struct Cli {
    /// Read flags from this TOML file; 'inlane --help' describes it [env: INLANE_CONFIG]
    #[arg(long, global = true, value_name = "FILE", display_order = 2000)]
    config: Option<std::path::PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// The subcommands. The arguments of each are defined in its module.
#[derive(Subcommand)]
enum Command {
    Forward(Box<forward::Forward>),
    Copy(Box<copy::Copy>),
    Ntb(ntb::Ntb),
    Nvme(Box<nvme::Nvme>),
    Offload(offload::Offload),
    Mix(Box<mix::Mix>),
    Model(model::ModelArgs),
    Doctor(doctor::Args),
    Topo(topo::Args),
    Compare(compare::CompareArgs),
    Schema(schema::SchemaArgs),
    Report(report::ReportArgs),
    Completion(manual::CompletionArgs),
    Man(manual::ManArgs),
}

fn main() -> ExitCode {
    show_warnings();
    let environment: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("INLANE_"))
        .collect();
    for warning in settings::unknown_variables(&Cli::command(), &environment) {
        print_to_stderr(format_args!("inlane: warning: {warning}"));
    }
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if let Err(error) = Cli::command().try_get_matches_from(&arguments) {
        arguments = misuse::corrected(&error, arguments);
    }
    let settings = match settings::read(&Cli::command(), arguments, &environment) {
        Ok(settings) => settings,
        Err(error) => return exit::with(exit::report(&error.into(), &Settings::default())),
    };
    fields::show_as_flags(&Cli::command(), &settings.table);
    for line in &settings.left_out {
        print_to_stderr(format_args!("inlane: {line}"));
    }
    let cli = match Cli::try_parse_from(&settings.arguments) {
        Ok(cli) => cli,
        Err(error) => return exit::with(exit::unparsed(&error, &settings)),
    };
    let outcome: anyhow::Result<()> = match cli.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Completion(args) => manual::completion(&args),
        Command::Man(args) => manual::man(&args),
        Command::Forward(forward) => forward.run(&settings),
        Command::Copy(copy) => copy.run(&settings.origins),
        Command::Ntb(ntb) => ntb.run(),
        Command::Nvme(nvme) => nvme.run(),
        Command::Offload(offload) => offload.run(),
        Command::Mix(mix) => mix.run(),
        Command::Model(model) => model.run(),
        Command::Compare(compare) => compare.run(),
        Command::Schema(schema) => schema.run(),
        Command::Report(report) => report.run(),
    };
    exit::with(match outcome {
        Ok(()) => 0,
        Err(error) => exit::report(&error, &settings),
    })
}

/// Sends warnings to standard error. `INLANE_LOG=debug` shows more, such as DPDK's own messages.
fn show_warnings() {
    let given = std::env::var("INLANE_LOG").unwrap_or_default();
    // If the value is a single word that is not a level, ignore it and print a warning. The logging library
    // would treat the word as the name of a module, and hide the warnings of all other modules.
    let known = ["off", "error", "warn", "info", "debug", "trace"].contains(&given.to_lowercase().as_str());
    let filter = tracing_subscriber::EnvFilter::builder();
    let parsed = match given.as_str() {
        "" => Some("warn"),
        directives => (known || directives.contains('=')).then_some(directives),
    };
    let filter = parsed.and_then(|directives| filter.parse(directives).ok()).unwrap_or_else(|| {
        print_to_stderr(format_args!(
            "inlane: warning: INLANE_LOG={given} is ignored; choose one of off, error, warn, info, debug, trace"
        ));
        tracing_subscriber::EnvFilter::new("warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .event_format(LogLine)
        .init();
}

/// The format of log lines. They have the form of the command's own messages, such as `inlane: warning: the
/// link is down`.
struct LogLine;

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let level = match *event.metadata().level() {
            tracing::Level::WARN => "warning".into(),
            level => level.to_string().to_lowercase(),
        };
        write!(writer, "inlane: {level}: ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Writes the text that `write` produces to standard output.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    write(&mut text)?;
    Ok(inlane_report::stdout(&text)?)
}

/// Writes a line to standard error. A closed standard error is ignored.
fn print_to_stderr(what: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{what}");
}
