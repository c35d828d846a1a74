//! Builds the log pages that hosts read with Get Log Page (Base section 5.16.1).

use super::controller::Controller;
use super::subsystem::Subsystem;
use crate::namespace::{Counted, Namespace};
use crate::wire::command::{Status, admin, io, log};
use crate::wire::identify::{DiscoveryEntry, DiscoveryHeader, padded, subsystem_type, terminated};
use crate::wire::nqn;
use std::net::{IpAddr, SocketAddr};
use zerocopy::{FromZeros, IntoBytes};

/// Returns a whole log page. `nsid` is the namespace in the command. `local` is the address at which the host
/// reached the target. If `retain_events` (RAE) is not set, the controller may report the next event about
/// this page afterwards.
///
/// # Errors
/// The status of the command, if the controller does not have the page.
pub fn page(
    subsystem: &Subsystem,
    controller: &Controller,
    local: SocketAddr,
    id: u8,
    nsid: u32,
    retain_events: bool,
) -> Result<Vec<u8>, Status> {
    Ok(match id {
        log::DISCOVERY if controller.discovery => {
            let page = discovery(subsystem, &controller.host.nqn, local);
            if !retain_events {
                controller.unmask();
            }
            page
        }
        log::ERROR_INFORMATION => controller.errors().page(),
        _ if controller.discovery => return Err(Status::INVALID_LOG_PAGE.dnr()),
        log::HEALTH => health(subsystem, controller, nsid)?,
        log::FIRMWARE_SLOT => firmware(),
        log::CHANGED_NAMESPACES => {
            let changed = controller.changed_namespaces(!retain_events);
            if !retain_events {
                controller.unmask();
            }
            let mut page: Vec<u8> = changed.into_iter().take(1024).flat_map(u32::to_le_bytes).collect();
            page.resize(4096, 0);
            page
        }
        log::COMMANDS_SUPPORTED => commands(),
        _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
    })
}

/// Returns the discovery log for a host: the addresses of the discovery service and, if the host may use it,
/// of the subsystem.
fn discovery(subsystem: &Subsystem, host_nqn: &str, local: SocketAddr) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut add = |port: usize, address: SocketAddr, nqn: &str, kind: u8| {
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.trtype = DiscoveryEntry::TCP;
        let ip = match address.ip() {
            ip if ip.is_unspecified() => local.ip().to_canonical(),
            ip => ip,
        };
        entry.adrfam = match ip {
            IpAddr::V4(_) => DiscoveryEntry::IPV4,
            IpAddr::V6(_) => DiscoveryEntry::IPV6,
        };
        entry.subtype = kind;
        // Set bit 2 of TREQ, because hosts may disable flow control of submission queues.
        entry.treq = 1 << 2;
        entry.portid = (port as u16 + 1).into();
        entry.cntlid = u16::MAX.into();
        entry.asqsz = subsystem.limits.queue_entries.min(128).into();
        if kind == subsystem_type::CURRENT_DISCOVERY {
            // Bit 0: all ports return the same entries. Bit 1: persistent connections are supported.
            entry.eflags = 3.into();
        }
        entry.trsvcid = padded(&address.port().to_string());
        entry.subnqn = terminated(nqn);
        entry.traddr = padded(&ip.to_string());
        entries.push(entry);
    };
    for (port, address) in subsystem.listeners.iter().enumerate() {
        add(port, *address, nqn::DISCOVERY, subsystem_type::CURRENT_DISCOVERY);
        if subsystem.allows(host_nqn) {
            add(port, *address, &subsystem.nqn, subsystem_type::NVM);
        }
    }
    let mut header = DiscoveryHeader::new_zeroed();
    header.genctr = subsystem.generation().into();
    header.numrec = (entries.len() as u64).into();
    let mut page = header.as_bytes().to_vec();
    entries.iter().for_each(|entry| page.extend_from_slice(entry.as_bytes()));
    page
}

/// Returns the SMART / Health Information (Base section 5.16.1.3) of a namespace. If `nsid` is 0 or
/// FFFFFFFFh, returns the sums over all namespaces.
///
/// # Errors
/// The status of the command, if there is no such namespace.
fn health(subsystem: &Subsystem, controller: &Controller, nsid: u32) -> Result<Vec<u8>, Status> {
    let namespaces = match nsid {
        0 | u32::MAX => &subsystem.namespaces[..],
        id => std::slice::from_ref(subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE.dnr())?),
    };
    let mut page = vec![0; 512];
    let sum = |counted: Counted| {
        let counts = namespaces.iter().map(|namespace| namespace.counters.get(counted));
        counts.fold([0, 0], |[operations, bytes], [more, moved]| [operations + more, bytes + moved])
    };
    let [[reads, read_bytes], [writes, written_bytes], [compares, compared_bytes]] =
        [Counted::Read, Counted::Write, Counted::Compare].map(sum);
    let mut set = |offset: usize, value: u64| page[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    // A data unit is 1000 * 512 bytes; counts of units are rounded up. The NVM command set counts a Compare
    // as a read.
    set(32, (read_bytes + compared_bytes).div_ceil(512_000));
    set(48, written_bytes.div_ceil(512_000));
    set(64, reads + compares);
    set(80, writes);
    set(128, subsystem.now_ms() / 3_600_000);
    set(176, controller.errors().count());
    // Critical warning, bit 3: the medium is read-only, because a flush failed.
    page[0] = u8::from(namespaces.iter().any(Namespace::flush_failed)) << 3;
    // The temperature is 0 K (not reported). All spare capacity is available; the threshold is 10 %.
    (page[3], page[4]) = (100, 10);
    Ok(page)
}

/// Returns the Firmware Slot Information.
fn firmware() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1;
    page[8..16].copy_from_slice(&padded::<8>(env!("CARGO_PKG_VERSION")));
    page
}

/// Returns the Commands Supported and Effects log page. In each dword, bit 0 is set if the command is
/// supported, bit 1 if the command changes blocks.
fn commands() -> Vec<u8> {
    const SUPPORTED: u32 = 1;
    const CHANGES_BLOCKS: u32 = 1 << 1;
    let mut page = vec![0; 4096];
    let mut set = |table: usize, opcode: u8, value: u32| {
        let at = table + usize::from(opcode) * 4;
        page[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
    ] {
        set(0, opcode, SUPPORTED);
    }
    for opcode in [io::READ, io::COMPARE, io::FLUSH] {
        set(1024, opcode, SUPPORTED);
    }
    for opcode in [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT] {
        set(1024, opcode, SUPPORTED | CHANGES_BLOCKS);
    }
    page
}
