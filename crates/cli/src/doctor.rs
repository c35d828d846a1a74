//! `inlane doctor`: what each part of inlane needs, whether this machine has it, and what mends it.
//!
//! The checks read `/proc`, `/sys` and `/dev` ([`files`]) and try a few system calls ([`trials`]); they change nothing.

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

use crate::exit::NotReady;
use crate::output::Output;
use check::{Check, Name, State};
use files::Files;
use inlane_core::result::{Host, SCHEMA_VERSION};
use inlane_core::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use trials::Trials;

const EXAMPLES: &str = "\
Examples:
  inlane doctor                                what is there, what is not, and what mends it
  inlane doctor gpu nvrtc                      these parts alone
  inlane doctor --require af-xdp hugepages     exit status 3 when one of them is missing
  inlane doctor --json - | jq '.checks[] | select(.state != \"ok\")'";

/// Shows what this machine has of what inlane can use, why it matters, and the command that mends what is missing
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only these checks
    #[arg(value_name = "CHECK")]
    only: Vec<Name>,
    /// Exit with status 3 when one of these is missing
    #[arg(long, value_name = "CHECK", num_args = 1.., hide_possible_values = true)]
    require: Vec<Name>,
    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

/// What the checks look at.
struct Machine {
    files: Files,
    trials: Trials,
}

/// The document that `--json` writes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// Version of the document's shape.
    schema_version: u32,
    /// Where.
    host: Host,
    /// How each part stands.
    checks: Vec<Check>,
}

/// Checks this machine, prints, and fails when a required part is missing.
///
/// # Errors
/// [`NotReady`] for a required part, and when the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let output = Output::open(args.json.as_deref(), None)?;
    let machine = Machine { files: Files::under("/"), trials: Trials::run() };
    let wanted =
        |name: Name| args.only.is_empty() || args.only.contains(&name) || args.require.contains(&name);
    let checks = CHECKS.iter().filter(|(name, _)| wanted(*name)).map(|(_, check)| check(&machine)).collect();
    let report = Report { schema_version: SCHEMA_VERSION, host: Host::this(), checks };
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    output.write(|out| show(out, &report, colour), &report, || None)?;
    Ok(demand(&report.checks, &args.require)?)
}

/// Fails when a part that is required is missing.
fn demand(checks: &[Check], required: &[Name]) -> Result<(), NotReady> {
    let missing = |name: &&Name| checks.iter().any(|c| c.name == **name && c.state == State::Missing);
    let missing: Vec<String> = required.iter().filter(missing).map(|name| name.text()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (listed, typed) = (missing.join(", "), missing.join(" "));
    Err(NotReady(format!("missing: {listed}; 'inlane doctor {typed}' says what mends it")))
}

/// Looks at one part.
type Look = fn(&Machine) -> Check;

/// Every check, in the order of [`Name`].
const CHECKS: [(Name, Look); 19] = [
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
    (Name::IsolatedCores, processor::isolated_cores),
    (Name::ClockSource, processor::clock_source),
    (Name::Lab, lab::lab),
];

/// The report for people: parts that are well in a line; the others with what they cost and what mends them.
fn show(out: &mut dyn Write, report: &Report, colour: bool) -> io::Result<()> {
    let host = &report.host;
    let memory = units::bytes(host.memory_bytes);
    writeln!(out, "Linux {}; {}; {} cores; {memory}\n", host.kernel, host.cpu, host.cores)?;
    for check in &report.checks {
        let state = format!("{:8}", check.state.text());
        let state = match (colour, check.state) {
            (false, _) => state,
            (true, State::Ok) => format!("\x1b[32m{state}\x1b[0m"),
            (true, State::Degraded) => format!("\x1b[33m{state}\x1b[0m"),
            (true, State::Missing) => format!("\x1b[31m{state}\x1b[0m"),
        };
        writeln!(out, "{state}  {:14}  {}", check.name.text(), check.evidence)?;
        if check.state != State::Ok {
            writeln!(out, "{:26}why:  {}", "", check.matters)?;
            for remedy in &check.remedy {
                writeln!(out, "{:26}mend: {remedy}", "")?;
            }
        }
    }
    let count = |state| report.checks.iter().filter(|check| check.state == state).count();
    let (ok, degraded, missing) = (count(State::Ok), count(State::Degraded), count(State::Missing));
    writeln!(out, "\n{ok} ok, {degraded} degraded, {missing} missing")
}
