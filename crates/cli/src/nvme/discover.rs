//! `inlane nvme discover`: lists the subsystems of a target.

use super::connect::HostFlags;
use crate::output::Output;
use clap::Args;
use inlane_nvme::initiator::{Address, DiscoveredSubsystem, discover};
use inlane_result::Document;
use std::path::PathBuf;

/// Lists the subsystems that a target offers to this host
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane nvme discover 10.0.0.2           ask the discovery service at port 8009
  inlane nvme discover 10.0.0.2:4420 --json -
                                          ask at another port, result as JSON")]
pub struct Discover {
    /// Address of the discovery service: HOST:PORT, port 8009 by default
    #[arg(value_name = "ADDRESS")]
    address: Address,
    #[command(flatten)]
    host: HostFlags,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Write the result as CSV to a file, or to standard output for -, one line per row
    #[arg(long, value_name = "FILE|-")]
    csv: Option<PathBuf>,
}

impl Discover {
    /// Reads the discovery log and prints it.
    ///
    /// # Errors
    /// If the target cannot be asked, or the output cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), None)?;
        let address = self.address.with_default_port(Address::DISCOVERY_PORT);
        let found = discover(&address, &self.host.identity()?, &self.host.queue(31));
        let found = match found {
            Err(inlane_nvme::Error::Unreachable { peer, why, source }) if address != self.address => {
                let other = self.address.with_default_port(Address::IO_PORT);
                let why = format!(
                    "{why}; some targets, such as inlane's, answer discovery at their I/O port: give {other}"
                );
                return Err(inlane_nvme::Error::Unreachable { peer, why, source }.into());
            }
            found => found?,
        };
        let mut document = Document::<DiscoveredSubsystem>::new("nvme discover");
        if found.is_empty() {
            document.notes.push(
                "the target offers this host no subsystem; check at the target which hosts are allowed"
                    .into(),
            );
        }
        document.results = found;
        output.write(
            &mut document,
            |out, document| {
                let header = ["subsystem", "kind", "transport", "address", "port"];
                let rows: Vec<Vec<String>> = document
                    .results
                    .iter()
                    .map(|row| {
                        [&row.subsystem, &row.kind, &row.transport, &row.address, &row.port]
                            .map(Clone::clone)
                            .to_vec()
                    })
                    .collect();
                for note in &document.notes {
                    writeln!(out, "{note}")?;
                }
                match rows.is_empty() {
                    true => Ok(()),
                    false => writeln!(out, "{}", inlane_report::grid(&header, &rows).trim_end()),
                }
            },
            |_| None,
        )
    }
}
