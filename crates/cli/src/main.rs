//! The `inlane` command: a subcommand a module, each of which parses its flags, calls its crate and prints the result.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Moves bytes between network, host memory, accelerators and other machines over the fastest path this machine has, and
/// shows why it is the fastest.
#[derive(Parser)]
#[command(name = "inlane", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Each subcommand's arguments live in its module.
#[derive(Subcommand)]
enum Command {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome: anyhow::Result<()> = match cli.command {};
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// From errors to exit statuses: 0 done, 1 ran but failed, 2 usage or configuration, 3 the environment is not ready.
mod exit {
    use inlane_core::error::{Class, Error};
    use std::process::ExitCode;

    /// Prints the error on stderr and gives its exit status.
    pub fn report(error: &anyhow::Error) -> ExitCode {
        eprintln!("inlane: {error:#}");
        let class = error.chain().find_map(|cause| cause.downcast_ref::<Error>().map(Error::class));
        ExitCode::from(match class {
            Some(Class::Usage) => 2,
            Some(Class::Environment) => 3,
            Some(Class::Failed) | None => 1,
        })
    }
}
