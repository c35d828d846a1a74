//! `inlane doctor`: checks which parts of inlane can run on this machine. For each part that cannot run,
//! names the command that fixes this.
//!
//! The checks read `/proc`, `/sys` and `/dev` ([`files`]) and try a few system calls ([`trials`]). They
//! change nothing.

mod check;
mod devices;
mod files;
mod lab;
mod memory;
mod ports;
mod processor;
mod rights;
#[cfg(test)]
mod tests;
mod trials;

pub use check::Check;

use crate::exit::NotReady;
use crate::output::Output;
use check::{Name, State};
use files::Files;
use inlane_core::units;
use inlane_result::Document;
use std::io::{self, IsTerminal, Write};
use trials::Trials;

const EXAMPLES: &str = "\
Examples:
  inlane doctor                                every check, with commands that fix what is missing
  inlane doctor gpu nvrtc                      these checks only
  inlane doctor --require af-xdp hugepages     exit status 3 if one of them is missing
  inlane doctor --json - | jq '.results[] | select(.state != \"ok\")'

States:
  ok         works
  degraded   works, but slower than it could or without some feature
  missing    features that need it cannot run; everything else can

Exit status: 0 done, also if parts are missing; 2 wrong usage or settings; 3 a part that --require
names is missing, or the result cannot be written.";

/// Checks what inlane can use on this machine, and shows how to fix the rest
///
/// Each line shows a part, its state and the evidence. A part that is not ok has two more lines: why it
/// matters, and the command that fixes it. The checks change nothing.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run these checks only, separated by blanks or commas [default: all]
    #[arg(value_name = "CHECK", value_delimiter = ',')]
    only: Vec<Name>,
    /// Exit with status 3 if one of these parts is missing. Separate them by blanks or commas
    #[arg(long, value_name = "CHECK", num_args = 1.., value_delimiter = ',', hide_possible_values = true)]
    require: Vec<Name>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

/// The inputs of the checks: kernel files, and the outcomes of system calls. Tests replace both.
struct Machine {
    files: Files,
    trials: Trials,
}

/// The document that `--json` writes.
type DoctorReport = Document<Check>;

/// Runs the subcommand.
///
/// # Errors
/// [`NotReady`] if a required part is missing; an error of the output if the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let output = Output::open(args.json.as_deref(), None, None)?;
    let machine = Machine { files: Files::under("/"), trials: Trials::run() };
    let wanted =
        |name: Name| args.only.is_empty() || args.only.contains(&name) || args.require.contains(&name);
    let mut report = DoctorReport::new("doctor");
    report.results =
        CHECKS.iter().filter(|(name, _)| wanted(*name)).map(|(_, check)| check(&machine)).collect();
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    output.write(&mut report, |out, report| show(out, report, colour), |_| None)?;
    Ok(fail_if_missing(&report.results, &args.require)?)
}

/// Fails if one of the parts in `required` is missing. A degraded part does not count as missing.
fn fail_if_missing(checks: &[Check], required: &[Name]) -> Result<(), NotReady> {
    let missing = |name: &&Name| checks.iter().any(|c| c.name == **name && c.state == State::Missing);
    let missing: Vec<String> = required.iter().filter(missing).map(|name| name.text()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (listed, typed) = (missing.join(", "), missing.join(" "));
    Err(NotReady(format!("missing: {listed}; run 'inlane doctor {typed}' to see how to fix it")))
}

/// A function that checks one part of the machine.
type CheckFunction = fn(&Machine) -> Check;

/// All checks, in the order of [`Name`].
const CHECKS: [(Name, CheckFunction); 20] = [
    (Name::Dpdk, ports::dpdk),
    (Name::Hugepages, memory::hugepages),
    (Name::Privileges, rights::privileges),
    (Name::MemoryLock, rights::memory_lock),
    (Name::AfXdp, ports::af_xdp),
    (Name::AfPacket, ports::af_packet),
    (Name::Tun, ports::tun),
    (Name::Memif, ports::memif),
    (Name::Gpu, devices::gpu),
    (Name::Nvrtc, devices::nvrtc),
    (Name::Gdrcopy, devices::gdrcopy),
    (Name::Iommu, devices::iommu),
    (Name::Vfio, devices::vfio),
    (Name::PcieLinks, devices::pcie_links),
    (Name::Numa, memory::numa),
    (Name::CpuGovernor, processor::cpu_governor),
    (Name::CpuQuota, processor::cpu_quota),
    (Name::IsolatedCores, processor::isolated_cores),
    (Name::ClockSource, processor::clock_source),
    (Name::Lab, lab::lab),
];

/// Prints one line for each check. If a check is not ok, also prints the purpose of the checked part, and the
/// fixes.
fn show(out: &mut dyn Write, report: &DoctorReport, colour: bool) -> io::Result<()> {
    let host = &report.host;
    let memory = units::bytes(host.memory_bytes);
    let cores = units::counted(host.cores as u64, "core");
    writeln!(out, "Linux {}; {}; {cores}; {memory}\n", host.kernel, host.cpu)?;
    for check in &report.results {
        let state = format!("{:8}", check.state.text());
        let state = match (colour, check.state) {
            (false, _) => state,
            (true, State::Ok) => format!("\x1b[32m{state}\x1b[0m"),
            (true, State::Degraded) => format!("\x1b[33m{state}\x1b[0m"),
            (true, State::Missing) => format!("\x1b[31m{state}\x1b[0m"),
        };
        writeln!(out, "{state}  {:14}  {}", check.name.text(), check.evidence)?;
        if check.state != State::Ok {
            writeln!(out, "{:26}why:  {}", "", check.purpose)?;
            for fix in &check.fixes {
                writeln!(out, "{:26}fix:  {fix}", "")?;
            }
        }
    }
    let count = |state| report.results.iter().filter(|check| check.state == state).count();
    let (ok, degraded, missing) = (count(State::Ok), count(State::Degraded), count(State::Missing));
    writeln!(out, "\n{ok} ok, {degraded} degraded, {missing} missing")
}
