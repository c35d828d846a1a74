//! `inlane nvme`: NVMe over TCP.

mod target;

use clap::{Args, Subcommand};

/// Serves drives over NVMe/TCP
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme target --listen 127.0.0.1:4420 --namespace memory:1G
                                          serve a drive in memory")]
pub struct Nvme {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Subcommand)]
enum NvmeCommand {
    Target(target::Target),
}

impl Nvme {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the subcommand fails.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            NvmeCommand::Target(target) => target.run(),
        }
    }
}
