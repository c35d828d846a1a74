//! `inlane offload`: runs the engine, which has its own network stack. Starts programs that use the engine's
//! sockets, and shows the state of the engine.

mod card;
pub mod program;
mod run;
mod serve;
mod status;
mod trace;

use clap::{Args, Subcommand};

pub use trace::TraceResult;

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
