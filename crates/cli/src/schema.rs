//! `inlane schema`: prints the JSON schemas of the result documents.

use crate::doctor::Check;
use crate::ntb::TransportInfo;
use crate::nvme::NvmeTransfer;
use crate::offload::TraceResult;
use crate::topo::Topology;
use clap::{Args, ValueEnum};
use inlane_copy::result::{ListedPath, TransferResult};
use inlane_forward::result::PacketResult;
use inlane_mix::result::MixResult;
use inlane_model::result::ModelResult;
use inlane_nbd::ExportResult;
use inlane_nvme::bench::IoResult;
use inlane_nvme::initiator::DiscoveredSubsystem;
use inlane_nvme::target::TargetResult;
use inlane_offload::status::EngineStatus;
use inlane_pgas::bench::WindowResult;
use inlane_report::compare::Comparison;
use inlane_result::schema;

/// Prints the JSON schema of a result document
///
/// Every command that has --json writes such a document.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane schema packets                       the schema of what 'inlane forward --json FILE' writes; also 'inlane schema forward'
  inlane schema transfers > transfers.json    the schema of 'inlane copy', in a file")]
pub struct SchemaArgs {
    /// Print the schema of this document
    #[arg(value_enum, value_name = "DOCUMENT")]
    schema: Schema,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Schema {
    /// Written by `inlane forward`
    #[value(alias = "forward")]
    Packets,
    /// Written by `inlane copy`
    #[value(alias = "copy")]
    Transfers,
    /// Written by `inlane copy --list`
    Paths,
    /// Written by `inlane ntb bench`
    #[value(alias = "ntb-bench")]
    Windows,
    /// Written by `inlane ntb info`
    #[value(alias = "ntb-info")]
    Bridges,
    /// Written by `inlane nvme target`
    NvmeTarget,
    /// Written by `inlane nvme bench`
    NvmeBench,
    /// Written by `inlane nvme read` and `inlane nvme write`
    NvmeTransfer,
    /// Written by `inlane nvme export nbd`
    NvmeExport,
    /// Written by `inlane nvme discover`
    #[value(alias = "nvme-discover")]
    NvmeSubsystems,
    /// Written by `inlane offload status`
    #[value(alias = "offload-status")]
    Engine,
    /// Written by `inlane offload trace`
    #[value(alias = "offload-trace")]
    Stages,
    /// Written by `inlane mix`
    Mix,
    /// Written by `inlane model`
    Model,
    /// Written by `inlane doctor`
    Doctor,
    /// Written by `inlane topo`
    Topo,
    /// Written by `inlane compare`
    #[value(alias = "compare")]
    Comparison,
}

impl Schema {
    fn json(self) -> serde_json::Value {
        match self {
            Schema::Packets => schema::<PacketResult>(),
            Schema::Transfers => schema::<TransferResult>(),
            Schema::Paths => schema::<ListedPath>(),
            Schema::Windows => schema::<WindowResult>(),
            Schema::Bridges => schema::<TransportInfo>(),
            Schema::NvmeTarget => schema::<TargetResult>(),
            Schema::NvmeBench => schema::<IoResult>(),
            Schema::NvmeTransfer => schema::<NvmeTransfer>(),
            Schema::NvmeExport => schema::<ExportResult>(),
            Schema::NvmeSubsystems => schema::<DiscoveredSubsystem>(),
            Schema::Engine => schema::<EngineStatus>(),
            Schema::Stages => schema::<TraceResult>(),
            Schema::Mix => schema::<MixResult>(),
            Schema::Model => schema::<ModelResult>(),
            Schema::Doctor => schema::<Check>(),
            Schema::Topo => schema::<Topology>(),
            Schema::Comparison => schema::<Comparison>(),
        }
    }
}

impl From<Schema> for SchemaArgs {
    fn from(schema: Schema) -> Self {
        Self { schema }
    }
}

impl SchemaArgs {
    /// Prints the schema.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        inlane_report::OutputTarget::open("-")?.json(&self.schema.json())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the schemas in docs/schema with those of the result types. To accept an intended change:
    /// `INLANE_BLESS=1 cargo test -p inlane schema`.
    #[test]
    fn the_published_schemas_are_those_of_the_types() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
        for schema in Schema::value_variants() {
            let name = schema.to_possible_value().expect("no schema is skipped");
            let path = folder.join(format!("{}.json", name.get_name()));
            let made = serde_json::to_string_pretty(&schema.json()).unwrap() + "\n";
            if std::env::var_os("INLANE_BLESS").is_some() {
                std::fs::write(&path, &made).unwrap();
            }
            let published = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(published == made, "{} differs from the type's schema", path.display());
        }
    }
}
