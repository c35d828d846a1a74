//! `inlane ntb`: jobs over PCIe windows, and what the windows carry.

mod bench;
mod check;

use anyhow::Context;
use clap::{Args, Subcommand};
use inlane_core::completion::CompletionMode;
use inlane_core::units;
use inlane_pgas::launch::{BulkMover, Job};
use std::ffi::OsString;

/// Node to node over PCIe windows: run OpenSHMEM programs, measure windows
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane ntb run -n 4 -- ./program        four processes over the twin fabric
  inlane ntb run -n 2 --faults delay=20us,reorder,torn -- ./program
                                          the same over a bad wire
  inlane ntb bench --svg figure.svg       bandwidth against size by completion
  inlane ntb bench --ucx $(which ucx_perftest)
                                          beside UCX's shared-memory put
  inlane ntb check --ivshmem 0000:00:01.0 in each of two virtual machines that share the device")]
pub struct Ntb {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Run(Run),
    Bench(bench::Bench),
    Check(check::Check),
    #[command(hide = true)]
    BenchPe(bench::BenchPe),
}

/// Start a program as several processing elements that reach each other's symmetric memory
///
/// The exit status is that of the first processing element that fails, 128 + n for one killed by signal n; the others are
/// ended then.
#[derive(Args)]
struct Run {
    /// Number of processing elements
    #[arg(short = 'n', long = "pes", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pes: u32,
    /// Symmetric heap of each; only what is touched takes memory
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::parse_size)]
    heap: u64,
    /// How waits end: poll, interrupt or adaptive
    #[arg(long, value_name = "HOW", default_value_t = CompletionMode::Adaptive)]
    completion: CompletionMode,
    /// Faults to inject: delay=50us,reorder,torn,lose=0.1,duplicate=0.1,early=0.1,stale=0.1,flap=20ms,die=STEP,seed=1
    #[arg(long, value_name = "LIST", default_value = "")]
    faults: String,
    /// Give the faults to this processing element alone
    #[arg(long, value_name = "PE")]
    faulty: Option<u32>,
    /// Let a DMA engine's twin copy bulk: twin (from where it beats stores) or twin:SIZE
    #[arg(long, value_name = "MOVER")]
    mover: Option<BulkMover>,
    /// Leave processing elements where the system puts them, instead of one processor each
    #[arg(long)]
    no_bind: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Ntb {
    /// Runs it.
    pub fn run(self) -> anyhow::Result<()> {
        match self.what {
            What::Run(run) => run.run(),
            What::Bench(bench) => bench.run(),
            What::Check(check) => check.run(),
            What::BenchPe(pe) => pe.run(),
        }
    }
}

impl Run {
    fn run(self) -> anyhow::Result<()> {
        let job = Job {
            pes: self.pes,
            heap_bytes: self.heap,
            completion: self.completion,
            faults: self.faults,
            faulty: self.faulty,
            mover: self.mover,
            bind: !self.no_bind,
        };
        let (program, arguments) = self.program.split_first().context("no program given")?;
        let (status, why) = job.run(program, arguments)?;
        if let Some(why) = why {
            crate::say(format_args!("inlane: {why}"));
        }
        // The program's status, not ours.
        std::process::exit(status)
    }
}
