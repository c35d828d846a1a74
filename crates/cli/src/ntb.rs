//! `inlane ntb`: starts jobs of processing elements (PEs). Also measures and checks their transports.

mod bench;
mod check;
mod info;
mod info_network;
mod sizes;
mod transport;

pub use info::TransportInfo;

use crate::fields::flag;
use crate::signal;
use crate::values::{choice, count};
use anyhow::Context;
use clap::{Args, Subcommand};
use inlane_core::Error;
use inlane_core::completion::CompletionMode;
use inlane_core::units;
use inlane_pgas::launch::{HEAP, Job};
use inlane_pgas::transport::rendezvous::MAX_PES;
use inlane_pgas::transport::select::TransportKind;
use inlane_pgas::transport::windows::MoverChoice;
use inlane_pgas::transport::windows::options::Options;
use inlane_pgas::variables;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

const FAULTS: &str = "\
Faults (P is a probability from 0 to 1):
  delay=TIME    each piece of a store arrives later by up to this time
  reorder       pieces of stores between two fences arrive in random order
  torn          stores arrive in pieces of 8 bytes instead of 64
  lose=P        a doorbell is lost
  duplicate=P   a doorbell rings twice
  early=P       a doorbell overtakes the stores before it
  stale=P       a scratchpad keeps its old value for 3 ms after a write
  flap=TIME     the link fails for 2 ms at a time, on average once in this time
  die=STEP      the PE is killed at a step: attach, hello, ready, connected, request, reply,
                notify, quiet or sleep
  seed=N        seed of the random choices (1)

Examples:
  # four PEs over the twin, a software model of a PCIe bridge
  inlane ntb run -n 4 ./program

  # two PEs with a faulty link
  inlane ntb run -n 2 --faults delay=20us,reorder,torn ./program";

/// Runs OpenSHMEM programs over PCIe windows or UCX, and measures and checks these transports
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane ntb run -n 4 ./program           four PEs over the twin, a software model of a bridge
  inlane ntb run -n 2 --faults delay=20us,reorder,torn ./program
                                          the same with a faulty link
  inlane ntb info                         the back-end, its capabilities and thresholds
  inlane ntb info --transport ucx         which of UCX's transports are taken, and why
  inlane ntb bench --svg figure.svg       bandwidth against size by completion mode
  inlane ntb bench --ucx $(which ucx_perftest)
                                          beside UCX's shared-memory put
  inlane ntb check --ivshmem 0000:00:01.0
                                          in each of two virtual machines that share the device

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights).
'ntb run' exits as its program does; Ctrl-C ends all PEs. It ends a measurement without a
result.")]
pub struct Ntb {
    #[command(subcommand)]
    command: NtbCommand,
}

#[derive(Subcommand)]
enum NtbCommand {
    Run(Run),
    Info(info::Info),
    Bench(bench::Bench),
    Check(check::Check),
    #[command(hide = true)]
    BenchPe(bench::BenchPe),
    #[command(hide = true)]
    InfoPe(info_network::InfoPe),
}

/// Starts a program as several PEs that access each other's symmetric memory
///
/// Exits with the status of the first PE that fails, or 128 + n if signal n killed it. If a PE fails, inlane
/// ends the other PEs.
#[derive(Args)]
#[command(after_help = FAULTS)]
struct Run {
    /// Number of processing elements (PEs), 1 to 1024
    #[arg(short = 'n', long = "pes", value_name = "N", default_value_t = 2, value_parser = count::<u32>(1, MAX_PES.into()))]
    pes: u32,
    /// Size of each PE's symmetric heap, up to 1020G. Unused pages of the heap take no memory [default:
    /// SHMEM_SYMMETRIC_SIZE, else 1G]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    heap: Option<u64>,
    /// How the PEs communicate [default: INLANE_NTB_TRANSPORT, else windows]
    #[arg(long, value_name = "TRANSPORT", value_parser = choice::<TransportKind>())]
    transport: Option<TransportKind>,
    /// The address of this machine at which the PEs meet. Windows need none [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    address: Option<IpAddr>,
    /// How waits end: poll, interrupt (sleep until woken) or adaptive (sleep for most of the expected time, then
    /// poll)
    #[arg(long, value_name = "MODE", default_value_t = CompletionMode::Adaptive)]
    completion: CompletionMode,
    /// Faults to inject, joined by commas, such as delay=50us,reorder; the list is below
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true)]
    faults: String,
    /// Inject the faults at this PE only, 0 to N-1 [default: at all PEs]
    #[arg(long, value_name = "PE", value_parser = count::<u32>(0, u64::from(MAX_PES) - 1))]
    faulty: Option<u32>,
    /// Copy bulk data by a mover: twin (a software DMA engine, as fast as one core), or twin:RATE (the same with
    /// at most RATE bits per second, twin:30G) [default: no mover]
    #[arg(long, value_name = "MOVER")]
    mover: Option<MoverChoice>,
    /// The mover copies data of at least this size [default: the measured size from which it is faster than
    /// stores]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    mover_from: Option<u64>,
    /// Do not pin each PE to cores of its own
    #[arg(long)]
    no_bind: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Parses the IP address at which PEs meet.
fn address(text: &str) -> Result<IpAddr, Error> {
    let why = "give an IP address of this machine, for example 10.0.0.1";
    text.parse().map_err(|_| Error::invalid(format!("'{text}'"), why))
}

impl Ntb {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the subcommand fails.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            NtbCommand::Run(run) => run.run(),
            NtbCommand::Info(info) => info.run(),
            NtbCommand::Bench(bench) => bench.run(),
            NtbCommand::Check(check) => check.run(),
            NtbCommand::BenchPe(pe) => pe.run(),
            NtbCommand::InfoPe(pe) => pe.run(),
        }
    }
}

impl Run {
    fn run(self) -> anyhow::Result<()> {
        let transport = transport::chosen(self.transport)?;
        if let Some(address) = self.address.filter(|_| transport.has_windows()) {
            let flags = transport::flags(|kind| !kind.has_windows());
            let why = format!("it applies to {flags} only; add {flags}, or leave --address out");
            return Err(Error::invalid(flag("address").with(address), why).into());
        }
        let job = Job {
            pes: self.pes,
            heap_bytes: match self.heap {
                Some(bytes) => bytes,
                None => variables::heap_bytes()?.unwrap_or(HEAP),
            },
            transport,
            address: self.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            completion: self.completion,
            windows: Options {
                faults: self.faults,
                faulty: self.faulty,
                mover: self.mover,
                mover_from: self.mover_from,
            },
            bind: !self.no_bind,
        };
        let (program, arguments) = self.program.split_first().context("no program given")?;
        // After a signal, end all PEs and remove what they leave, before the signal ends this process, too.
        let signalled = Arc::new(AtomicI32::new(0));
        let (stop, stopped) = std::sync::mpsc::channel();
        let first = signalled.clone();
        signal::on_signal(move |signal, before| {
            if before > 0 {
                signal::end_by(signal);
            }
            first.store(signal, Ordering::Release);
            let _ = stop.send(128 + signal);
        })
        .context("cannot watch for Ctrl-C")?;
        let (status, why) = job.run_until(stopped, program, arguments)?;
        match signalled.load(Ordering::Acquire) {
            0 => {}
            signal => signal::end_by(signal),
        }
        if let Some(why) = why {
            crate::print_to_stderr(format_args!("inlane: {why}"));
        }
        // The command exits with the status of the program that it started.
        std::process::exit(status)
    }
}
