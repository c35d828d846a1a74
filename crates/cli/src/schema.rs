//! `inlane report`: for now, the schemas of the documents that commands write.

use clap::{Args, ValueEnum};
use inlane_core::result::{TransferResult, schema};
use inlane_forward::result::PacketResult;

/// Prints the JSON schema of result documents
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane report --schema packets         what `inlane forward --json` writes
  inlane report --schema doctor          what `inlane doctor --json` writes
  inlane report --schema transfers       what `inlane copy --json` and `inlane ntb bench --json` write")]
pub struct Report {
    /// Which document
    #[arg(long, value_enum)]
    schema: Kind,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Of `inlane forward`
    Packets,
    /// Of `inlane copy` and `inlane ntb bench`
    Transfers,
    /// Of `inlane doctor`
    Doctor,
    /// Of `inlane topo`
    Topo,
}

impl Report {
    /// Prints it.
    pub fn run(&self) -> anyhow::Result<()> {
        let schema = match self.schema {
            Kind::Packets => schema::<PacketResult>(),
            Kind::Transfers => schema::<TransferResult>(),
            Kind::Doctor => schemars::schema_for!(crate::doctor::Report).to_value(),
            Kind::Topo => schemars::schema_for!(crate::topo::Report).to_value(),
        };
        inlane_report::Target::open("-")?.json(&schema)?;
        Ok(())
    }
}
