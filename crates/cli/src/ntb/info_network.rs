//! The part of `inlane ntb info` for transports through a network: connects two PEs on this machine. PE 0 then describes the
//! connection.

use super::transport;
use crate::exit::NotReady;
use anyhow::Context;
use clap::Args;
use inlane_core::setting::Choice;
use inlane_pgas::launch::{Job, Session};
use inlane_pgas::transport::select::TransportKind;
use inlane_pgas::transport::{Capabilities, Transport};
use inlane_pgas::world::World;
use inlane_result::{Cell, PathExplanation};
use std::path::PathBuf;

/// Describes the connection of a transport such as UCX between two PEs on this machine.
#[derive(Clone, Debug, serde::Serialize, schemars::JsonSchema)]
pub struct NetworkInfo {
    /// How two PEs reach each other, and why over this transport.
    pub path: PathExplanation,
    /// The version of the transport's library.
    pub version: String,
    /// What the transport can do, and what carries its bytes.
    pub capabilities: Capabilities,
    /// The environment variables with which the user restricts the transport's choice, such as `UCX_TLS=tcp,self`.
    pub variables: Vec<String>,
}

/// Describes the path between two PEs over `kind`, which is not windows. `carrier` names what carries the bytes, `reason` says
/// why `kind` is used.
pub fn network_path(kind: TransportKind, carrier: &str, reason: &str) -> PathExplanation {
    PathExplanation {
        name: kind.to_string(),
        hops: vec![vec!["PE 0".into(), carrier.into(), "PE 1".into()]],
        reason: format!("over {kind}, because {reason}"),
        not_taken: transport::not_taken(kind).collect(),
    }
}

/// Runs one of the two PEs of 'inlane ntb info' over a network
#[derive(Args)]
pub struct InfoPe {
    #[arg(long)]
    out: PathBuf,
}

impl InfoPe {
    /// Connects to the other PE. PE 0 writes the transport's capabilities to the file `out`, as JSON.
    ///
    /// # Errors
    /// If the PEs cannot connect, or the file cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let session = Session::from_environment(0)?;
        let membership = session.membership();
        // SAFETY: there are no static objects.
        let world = World::new(unsafe { session.connect(1 << 20, None)? }, 0, 0)?;
        // Communicate with the other PE first, because UCX chooses what carries bytes only then.
        world.barrier_all()?;
        if world.me() == 0 {
            let found = serde_json::to_vec(&world.transport().capabilities())?;
            std::fs::write(&self.out, found).with_context(|| format!("writing {}", self.out.display()))?;
        }
        world.leave()?;
        membership.finish();
        Ok(())
    }
}

impl NetworkInfo {
    /// Starts two PEs that connect over `kind`, and returns what PE 0 found. `reason` says why `kind` is used.
    ///
    /// # Errors
    /// If a library of the transport is missing, or if it does not connect the PEs.
    pub fn find(kind: TransportKind, reason: &str) -> anyhow::Result<Self> {
        let version = kind.version()?;
        let out = std::env::temp_dir().join(format!("inlane-ntb-info-{}.json", std::process::id()));
        let arguments = ["ntb", "info-pe", "--out"].map(Into::into);
        let arguments: Vec<_> = arguments.into_iter().chain([out.clone().into_os_string()]).collect();
        let job = Job { pes: 2, heap_bytes: 1 << 20, transport: kind, ..Job::default() };
        let this = std::env::current_exe().context("finding this program")?;
        let (status, why) = job.run(&this.into_os_string(), &arguments)?;
        let found = std::fs::read(&out);
        let _ = std::fs::remove_file(&out);
        if status != 0 {
            // Each process has already printed its error, so this error only adds how the job ended.
            let why = format!("two PEs do not connect over {kind}: {}", why.unwrap_or_default());
            return Err(NotReady(why).into());
        }
        let found = found.context("reading what PE 0 found")?;
        let capabilities: Capabilities = serde_json::from_slice(&found)?;
        let carrier = format!("{kind} ({})", capabilities.methods.join(", "));
        let mut variables: Vec<_> = std::env::vars()
            .filter(|(name, _)| kind.restricted_by().contains(&name.as_str()))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        variables.sort();
        Ok(Self { path: network_path(kind, &carrier, reason), version, capabilities, variables })
    }

    /// Returns the lines to print. Each has a label and a value.
    pub fn lines(&self) -> Vec<Cell> {
        let Self { path, version, capabilities, variables } = self;
        let mapped = match capabilities.mapped_pes {
            0 | 1 => format!("operations of {} carry all bytes", path.name),
            pes => format!("loads and stores reach the memory of all {pes} PEs"),
        };
        let kind = TransportKind::named(&path.name);
        let unset = kind.map_or(&[][..], TransportKind::restricted_by).join(" and ");
        vec![
            Cell::new("transport", format!("{} {version}: {}", path.name, path.reason)),
            Cell::new("carried by", capabilities.methods.join(", ")),
            Cell::new(
                "restricted by",
                match variables.is_empty() {
                    true => format!("nothing; {unset} are not set"),
                    false => variables.join(" "),
                },
            ),
            Cell::new("puts and gets", mapped),
            Cell::new("atomics", &capabilities.atomics),
            Cell::new(
                "measured on",
                format!("two PEs of this machine; {} may choose others between machines", path.name),
            ),
        ]
    }
}
