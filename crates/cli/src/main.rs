//! The `inlane` command: a subcommand a module, each of which parses its flags, calls its crate and prints the result.

mod copy;
mod doctor;
mod exit;
mod forward;
mod manual;
mod ntb;
mod output;
mod schema;
mod settings;
mod signal;
mod topo;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// Moves bytes between network, host memory, accelerators and other machines over the fastest path this machine has, and
/// shows why it is the fastest.
#[derive(Parser)]
#[command(name = "inlane", version, max_term_width = 110, after_help = exit::STATUSES)]
struct Cli {
    /// Read settings from this TOML file: a table for each subcommand ([forward], [ntb.bench]), its long flags as keys. A flag may
    /// also be set in the environment: INLANE_FORWARD_BURST, INLANE_NTB_BENCH_TO [env: INLANE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Each subcommand's arguments live in its module.
#[derive(Subcommand)]
enum Command {
    Doctor(doctor::Args),
    Topo(topo::Args),
    Completion(manual::CompletionArgs),
    Man(manual::ManArgs),
    Forward(Box<forward::Forward>),
    Copy(Box<copy::Copy>),
    Ntb(ntb::Ntb),
    Report(schema::ReportArgs),
}

fn main() -> ExitCode {
    say_warnings();
    let environment: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("INLANE_"))
        .collect();
    let arguments = match settings::expand(&Cli::command(), std::env::args_os().collect(), &environment) {
        Ok(arguments) => arguments,
        Err(error) => return exit::with(exit::report(&error.into())),
    };
    let cli = Cli::parse_from(&arguments);
    let outcome: anyhow::Result<()> = match cli.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Completion(args) => manual::completion(&args),
        Command::Man(args) => manual::man(&args),
        Command::Forward(forward) => forward.run(&arguments),
        Command::Copy(copy) => copy.run(),
        Command::Ntb(ntb) => ntb.run(),
        Command::Report(report) => report.run(),
    };
    exit::with(match outcome {
        Ok(()) => 0,
        Err(error) => exit::report(&error),
    })
}

/// What falls back, or cannot be done as asked, is said on stderr; `INLANE_LOG=debug` says more (DPDK's own messages).
fn say_warnings() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("INLANE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .init();
}

/// Writes to stdout.
fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    write(&mut text)?;
    Ok(inlane_report::stdout(&text)?)
}

/// Says something on stderr. That nobody reads there any more ends nothing.
fn say(what: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{what}");
}
