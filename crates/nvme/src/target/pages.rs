//! Builds the data structures that Identify returns (Base section 5.17, NVM section 4.1.5).

use super::controller::{Controller, KEEP_ALIVE_UNIT_MS};
use super::error_log;
use super::fabrics::VERSION;
use super::subsystem::Subsystem;
use crate::namespace::Namespace;
use crate::wire::identify::{
    self, IDENTIFY_BYTES, LbaFormat, controller_type, descriptor_type, oncs, padded, terminated,
};
use crate::wire::nqn;
use zerocopy::{FromZeros, IntoBytes};

/// The model name.
const MODEL: &str = "inlane NVMe/TCP target";

/// The granularity at which writes perform best, in bytes.
const PREFERRED_BYTES: u32 = 4096;

/// The number of Asynchronous Event Requests that a host may keep in flight.
pub const MAX_EVENT_REQUESTS: usize = 4;

/// Returns true if any namespace of the subsystem has a volatile write cache.
pub fn has_volatile_cache(subsystem: &Subsystem) -> bool {
    subsystem.namespaces.iter().any(Namespace::has_volatile_cache)
}

/// Returns Identify Controller.
pub fn controller(subsystem: &Subsystem, controller: &Controller) -> Vec<u8> {
    let limits = &subsystem.limits;
    let mut page = identify::IdentifyController::new_zeroed();
    page.sn = padded(&subsystem.serial);
    page.mn = padded(MODEL);
    page.fr = padded(env!("CARGO_PKG_VERSION"));
    page.mdts = limits.transfer_shift;
    page.cntlid = controller.id.into();
    page.ver = VERSION.into();
    page.oaes = controller.notices().into();
    // Bit 0: host identifiers have 128 bits. Bit 6: every command restarts the keep-alive timer.
    page.ctratt = (1_u32 | 1 << 6).into();
    page.aerl = (MAX_EVENT_REQUESTS - 1) as u8;
    // One firmware slot, read-only.
    page.frmw = 1 | 1 << 1;
    // LPA, the supported log page features. Bit 0: a health log for each namespace. Bit 1: the log of
    // supported commands and their effects. Bit 2: Get Log Page with an offset.
    page.lpa = 1 | 1 << 1 | 1 << 2;
    page.elpe = (error_log::ENTRIES - 1) as u8;
    // KAS is in units of 100 ms.
    page.kas = ((KEEP_ALIVE_UNIT_MS / 100) as u16).into();
    page.maxcmd = limits.queue_entries.into();
    // The supported SGLs. Bit 0: SGLs at all. Bit 20: offsets in the capsule. Bit 21: descriptors of data
    // outside the capsule.
    page.sgls = (1_u32 | 1 << 20 | 1 << 21).into();
    page.ioccsz = ((64 + limits.capsule_data_bytes) / 16).into();
    page.iorcsz = 1.into();
    page.msdbd = 1;
    if controller.discovery {
        page.cntrltype = controller_type::DISCOVERY;
        page.subnqn = terminated(nqn::DISCOVERY);
    } else {
        page.cntrltype = controller_type::IO;
        page.subnqn = terminated(&subsystem.nqn);
        // The subsystem has several ports and several controllers.
        page.cmic = 3;
        page.acl = 3;
        page.sqes = 0x66;
        page.cqes = 0x44;
        page.nn = (subsystem.namespaces.len() as u32).into();
        page.oncs = (oncs::COMPARE | oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES).into();
        // Bits 2:1 are 2: a Flush of all namespaces (NSID FFFFFFFFh) is not supported.
        page.vwc = u8::from(has_volatile_cache(subsystem)) | 2 << 1;
    }
    page.as_bytes().to_vec()
}

/// Returns Identify Controller for the NVM command set (NVM section 4.1.5.2).
pub fn nvm_controller() -> Vec<u8> {
    // WZSL: the most blocks of a Write Zeroes command, as a power of two of pages. 13 stands for 32 MiB,
    // which is 65,536 blocks of 512 bytes. Without this field, Linux limits a Write Zeroes to the size of a
    // data transfer.
    const WRITE_ZEROES_SHIFT: u8 = 13;
    let mut page = vec![0; IDENTIFY_BYTES];
    page[1] = WRITE_ZEROES_SHIFT;
    page
}

/// Returns Identify Namespace.
pub fn namespace(namespace: &Namespace) -> Vec<u8> {
    let mut page = identify::IdentifyNamespace::new_zeroed();
    let blocks = namespace.blocks();
    (page.nsze, page.ncap, page.nuse) = (blocks.into(), blocks.into(), blocks.into());
    // Bit 4: the preferred sizes below are valid.
    page.nsfeat = 1 << 4;
    // Several controllers may use the namespace.
    page.nmic = 1;
    // Deallocated blocks read as zero, and Write Zeroes may deallocate.
    page.dlfeat = 1 | 1 << 3;
    page.nvmcap = u128::from(namespace.bytes()).to_le_bytes();
    let preferred = (PREFERRED_BYTES / namespace.block_bytes()) as u16 - 1;
    for field in [&mut page.npwg, &mut page.npwa, &mut page.npdg, &mut page.npda, &mut page.nows] {
        *field = preferred.into();
    }
    page.nsattr = namespace.read_only.into();
    page.nguid = namespace.uuid;
    page.lbaf[0] = LbaFormat { ms: 0.into(), lbads: namespace.block_shift, rp: 0 };
    page.as_bytes().to_vec()
}

/// Returns the list of namespaces whose identifiers are greater than `after`.
pub fn active_namespaces(subsystem: &Subsystem, after: u32) -> Vec<u8> {
    let ids = subsystem.namespaces.iter().map(|namespace| namespace.id).filter(|id| *id > after);
    let mut page: Vec<u8> = ids.take(IDENTIFY_BYTES / 4).flat_map(u32::to_le_bytes).collect();
    page.resize(IDENTIFY_BYTES, 0);
    page
}

/// Returns the Namespace Identification Descriptors.
pub fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut page = Vec::new();
    for kind in [descriptor_type::NGUID, descriptor_type::UUID] {
        page.extend([kind, namespace.uuid.len() as u8, 0, 0]);
        page.extend(namespace.uuid);
    }
    page.resize(IDENTIFY_BYTES, 0);
    page
}
