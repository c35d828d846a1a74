//! Discovery: asks a target for its subsystems (Base section 4.5, log page 70h).

use super::association::{Association, ConnectOptions, SHUTDOWN};
use super::{Address, Buffer, HostIdentity, QueueOptions};
use crate::field::{HOST_NQN, SUBSYSTEM};
use crate::wire::command::log;
use crate::wire::identify::{DiscoveryEntry, DiscoveryHeader, subsystem_type, text};
use crate::wire::nqn;
use crate::{Error, Result};
use inlane_result::{Cell, Row};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use zerocopy::FromBytes;

/// The most entries of a discovery log that are read. A log with more is refused, because a hostile target
/// could announce any number.
const MAX_ENTRIES: u64 = 16_384;
/// The number of entries that one command reads from the discovery log.
const CHUNK: u64 = 4;
const ENTRY: usize = size_of::<DiscoveryEntry>();

/// An entry of the discovery log: one address at which a subsystem can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DiscoveredSubsystem {
    /// The NVMe qualified name (NQN) of the subsystem.
    pub subsystem: String,
    /// `nvm` for a subsystem with namespaces, `discovery` for the discovery service that sent the log,
    /// `referral` for another discovery service.
    pub kind: String,
    /// The transport: `tcp`, `rdma`, `fc` or `loop`. For other transports, the number of the type (TRTYPE).
    pub transport: String,
    /// The IP address, or the address in the form of the transport.
    pub address: String,
    /// The TCP port, or the service identifier of the transport.
    pub port: String,
    /// The identifier of the subsystem's port at this address (PORTID).
    pub port_id: u16,
}

impl Row for DiscoveredSubsystem {
    fn parameters(&self) -> Vec<Cell> {
        vec![Cell::new("subsystem", &self.subsystem)]
    }

    fn figures(&self) -> Vec<Cell> {
        vec![
            Cell::new("kind", &self.kind),
            Cell::new("transport", &self.transport),
            Cell::new("address", &self.address),
            Cell::new("port", &self.port),
            Cell::new("port id", u32::from(self.port_id)),
        ]
    }
}

/// Reads the discovery log of the target at `address`.
///
/// # Errors
/// If the target cannot be reached or has no discovery service. Also if the log changes faster than it can be
/// read.
pub fn discover(
    address: &Address,
    host: &HostIdentity,
    queue: &QueueOptions,
) -> Result<Vec<DiscoveredSubsystem>> {
    let options = ConnectOptions {
        subsystem: nqn::DISCOVERY.into(),
        host: host.clone(),
        queue: *queue,
        keep_alive: Duration::ZERO,
    };
    let mut association = Association::connect(address, &options)?;
    for _ in 0..5 {
        let header = header(&mut association)?;
        let (generation, entries) = (header.genctr.get(), header.numrec.get());
        let unusable = |why: String| Error::disconnected(address.to_string(), why);
        if entries > MAX_ENTRIES {
            let why =
                format!("its discovery log announces {entries} entries; at most {MAX_ENTRIES} are read");
            return Err(unusable(why));
        }
        if header.recfmt.get() != 0 {
            let why = format!("its discovery log has the unknown format {}", header.recfmt);
            return Err(unusable(why));
        }
        let mut found = Vec::new();
        while (found.len() as u64) < entries {
            let count = (entries - found.len() as u64).min(CHUNK) as usize;
            let offset = size_of::<DiscoveryHeader>() + found.len() * ENTRY;
            let page = association.log_page(log::DISCOVERY, offset as u64, Buffer::new(count * ENTRY)?)?;
            let entries = <[DiscoveryEntry]>::ref_from_bytes(page.bytes()).expect("whole entries");
            found.extend(entries.iter().map(decode));
        }
        if self::header(&mut association)?.genctr.get() == generation {
            association.shut_down(SHUTDOWN);
            return Ok(found);
        }
    }
    let why = "its discovery log changed each time while it was read; try again";
    Err(Error::disconnected(address.to_string(), why))
}

fn header(association: &mut Association) -> Result<DiscoveryHeader> {
    let page = association.log_page(log::DISCOVERY, 0, Buffer::new(size_of::<DiscoveryHeader>())?)?;
    Ok(DiscoveryHeader::read_from_bytes(page.bytes()).expect("1024 bytes"))
}

fn decode(entry: &DiscoveryEntry) -> DiscoveredSubsystem {
    let number = |code: u8, names: &[(u8, &str)]| {
        let name = names.iter().find(|(known, _)| *known == code);
        name.map_or_else(|| code.to_string(), |(_, name)| (*name).to_string())
    };
    let transports = [(1, "rdma"), (2, "fc"), (DiscoveryEntry::TCP, "tcp"), (254, "loop")];
    let kinds = [
        (subsystem_type::REFERRAL, "referral"),
        (subsystem_type::NVM, "nvm"),
        (subsystem_type::CURRENT_DISCOVERY, "discovery"),
    ];
    DiscoveredSubsystem {
        transport: number(entry.trtype, &transports),
        address: text(&entry.traddr),
        port: text(&entry.trsvcid),
        subsystem: text(&entry.subnqn),
        kind: number(entry.subtype, &kinds),
        port_id: entry.portid.get(),
    }
}

/// Returns the NQN of the only subsystem with namespaces at a target.
///
/// # Errors
/// If there is none or more than one, or discovery fails.
pub fn resolve_subsystem(address: &Address, host: &HostIdentity, queue: &QueueOptions) -> Result<String> {
    let entries = discover(address, host, queue)?;
    let names: BTreeSet<_> = entries
        .into_iter()
        .filter(|entry| entry.kind == "nvm" && entry.transport == "tcp")
        .map(|entry| entry.subsystem)
        .collect();
    let mut names = names.into_iter();
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        (None, _) => Err(Error::Refused {
            peer: address.to_string(),
            why: format!(
                "it offers this host no subsystem over TCP; let {} connect there (for inlane's target: in its list of \
                 hosts or its file of secrets), or give {HOST_NQN}",
                host.nqn
            ),
            source: None,
        }),
        (Some(first), Some(second)) => {
            let all: Vec<_> = [first, second].into_iter().chain(names).collect();
            let why = format!("it has several subsystems; choose one with {SUBSYSTEM}: {}", all.join(", "));
            Err(Error::invalid(address.to_string(), why))
        }
    }
}
