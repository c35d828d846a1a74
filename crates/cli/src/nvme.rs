//! `inlane nvme`: serves, discovers, reads, writes, measures and exports namespaces over NVMe/TCP. Each
//! subcommand has a module.

mod bench;
mod connect;
mod device;
mod discover;
mod export;
mod secret;
mod target;
mod timed_stream;
mod transfer;
mod transfer_result;

pub use transfer_result::NvmeTransfer;

use clap::{Args, Subcommand};

/// Serves, reads, writes, measures and exports namespaces (drives) over NVMe/TCP
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme target --listen 127.0.0.1:4420 --namespace memory:1G
                                          serve a namespace in memory
  inlane nvme discover 10.0.0.2:4420      the subsystems that this target offers
  inlane nvme read 10.0.0.2 --length 1M copy.img
                                          copy the first MiB of a namespace
  inlane nvme bench 10.0.0.2 --rw randread --bs 4k --iodepth 32 --numjobs 4 --duration 10s
                                          measure random reads
  inlane nvme export nbd 10.0.0.2 --listen unix:/tmp/disk.sock
                                          give any program a block device

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights).")]
pub struct Nvme {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Subcommand)]
enum NvmeCommand {
    Target(target::Target),
    Discover(discover::Discover),
    Read(transfer::Read),
    Write(transfer::Write),
    Bench(bench::Bench),
    Export(export::Export),
    #[command(name = "gen-dhchap-key")]
    GenerateKey(secret::GenerateKey),
}

impl Nvme {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the subcommand fails.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            NvmeCommand::Target(target) => target.run(),
            NvmeCommand::Discover(discover) => discover.run(),
            NvmeCommand::Read(read) => read.run(),
            NvmeCommand::Write(write) => write.run(),
            NvmeCommand::Bench(bench) => bench.run(),
            NvmeCommand::Export(export) => export.run(),
            NvmeCommand::GenerateKey(generate) => generate.run(),
        }
    }
}
