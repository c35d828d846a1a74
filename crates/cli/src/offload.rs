//! `inlane offload`: runs the engine, which has its own network stack. Starts programs that use the engine's
//! sockets, and shows the state of the engine.

mod card;
pub mod program;
mod run;
mod serve;
mod status;
mod trace;

use clap::{Args, Subcommand};

use crate::fields::flag;
use inlane_process::privileges::Successor;
use std::time::Duration;

pub use trace::TraceResult;

/// Returns how long a command polls after its last work if the user does not say: not at all if a polling thread would take a
/// large part of the machine.
fn usual_spin() -> Duration {
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    if cores >= 4 { Duration::from_micros(50) } else { Duration::ZERO }
}

/// Returns the user that a command becomes once its ports are open. `name` is the value of `--user`.
///
/// # Errors
/// If there is no such user, or this process may not become it.
fn successor(name: Option<&str>) -> anyhow::Result<Successor> {
    let Some(name) = name else { return Ok(Successor::Root) };
    let successor = Successor::named(name)?;
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        let why = "only root can become another user; start the engine or card as that user, or with sudo";
        return Err(inlane_core::Error::invalid(flag("user").with(name).to_string(), why).into());
    }
    Ok(successor)
}

/// Runs the TCP and UDP sockets of unmodified programs on an engine with its own network stack
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane offload serve --port af_xdp:veth0 --address 10.0.0.1/24
                                          the engine, on a kernel interface
  inlane offload run redis-server --bind 10.0.0.1
                                          a program whose sockets the engine runs
  inlane offload card --port af_xdp:eth1 --engine ntb:/run/inlane/card,role=server
                                          TCP for an engine on another machine
  inlane offload status                   sockets, rates, retransmissions
  inlane offload status --watch 1s        the same, every second
  inlane offload trace                    where the time of a short message goes

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights).
'offload run' exits as its program does.")]
pub struct Offload {
    #[command(subcommand)]
    command: OffloadCommand,
}

#[derive(Subcommand)]
enum OffloadCommand {
    Serve(Box<serve::Serve>),
    Run(run::Run),
    Card(card::Card),
    Status(status::Status),
    Trace(trace::Trace),
    #[command(hide = true)]
    MessageEnd(trace::MessageEnd),
}

impl Offload {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the subcommand fails.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            OffloadCommand::Serve(serve) => serve.run(),
            OffloadCommand::Run(run) => run.run(),
            OffloadCommand::Card(card) => card.run(),
            OffloadCommand::Status(status) => status.run(),
            OffloadCommand::Trace(trace) => trace.run(),
            OffloadCommand::MessageEnd(end) => end.run(),
        }
    }
}
