//! The namespaces of a controller.

use super::{Association, UNLIMITED_TRANSFER};
use crate::field::NAMESPACE;
use crate::initiator::Buffer;
use crate::wire::command::{Command, Sgl, admin};
use crate::wire::identify::{self, IdentifyNamespace, cns, descriptor_type, oncs};
use crate::{Error, Result};
use zerocopy::FromBytes;

/// The properties of a namespace that an initiator uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// The namespace's identifier.
    pub nsid: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// The size of a block, in bytes.
    pub block_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Write Zeroes is supported.
    pub write_zeroes: bool,
    /// True if the controller supports Dataset Management, so blocks can be deallocated. False otherwise.
    pub deallocate: bool,
    /// True if there is a volatile write cache, so a flush is needed to make data durable.
    pub volatile_cache: bool,
    /// The most data of one command, in bytes. A multiple of the block size.
    pub max_transfer: u32,
    /// The most bytes of one Write Zeroes command. A multiple of the block size.
    pub max_write_zeroes: u64,
    /// The identifiers by which the namespace is recognized after a reconnect.
    pub identity: NamespaceIdentity,
}

/// The identifiers of a namespace. Two namespaces with different identifiers have different contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// The UUID.
    pub uuid: Option<[u8; 16]>,
    /// The NGUID.
    pub nguid: Option<[u8; 16]>,
    /// The EUI-64.
    pub eui64: Option<[u8; 8]>,
}

impl NamespaceInfo {
    /// Returns the command `opcode` for `bytes` bytes from `offset`, both multiples of the block size.
    pub fn command(&self, opcode: u8, offset: u64, bytes: u64) -> Command {
        let unit = u64::from(self.block_bytes);
        Command::blocks(opcode, self.nsid, offset / unit, (bytes / unit) as u32, Sgl::NONE)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }

    /// Checks that `now`, which was found over another connection, is the same namespace. It may have grown. Call this
    /// after a reconnect, because writes to another namespace would destroy its data.
    ///
    /// # Errors
    /// What differs, or that the namespace has no identity.
    pub fn check_is_same(&self, now: &NamespaceInfo) -> Result<(), String> {
        self.check_identity()?;
        self.check_is_unchanged(now)
    }

    /// Checks that the namespace has an identifier by which it can be told from others.
    ///
    /// # Errors
    /// If it has none.
    pub fn check_identity(&self) -> Result<(), String> {
        match self.identity == NamespaceIdentity::default() {
            false => Ok(()),
            true => Err(format!(
                "namespace {} has no UUID, NGUID or EUI-64, so it cannot be told from another one; give it one at the \
                 target",
                self.nsid
            )),
        }
    }

    /// Checks that `now`, which the same connection has given later, differs in nothing that a client relies on.
    ///
    /// # Errors
    /// What differs.
    pub fn check_is_unchanged(&self, now: &NamespaceInfo) -> Result<(), String> {
        let id = now.nsid;
        if now.identity != self.identity {
            Err(format!(
                "namespace {id} is another one than before: its UUID, NGUID or EUI-64 has changed. A target with a \
                 namespace in memory loses its data when it restarts"
            ))
        } else if now.block_bytes != self.block_bytes {
            Err(format!("namespace {id} has another block size than before"))
        } else if now.blocks < self.blocks {
            Err(format!("namespace {id} is smaller than before"))
        } else {
            Ok(())
        }
    }
}

impl Association {
    pub(super) fn identify_page(&mut self, cns: u8, nsid: u32) -> Result<Buffer> {
        let mut command = Command::new(admin::IDENTIFY, nsid);
        command.cdw10 = u32::from(cns).into();
        let buffer = Buffer::new(identify::IDENTIFY_BYTES)?;
        let done = self.admin(command, Some(buffer), &format!("Identify {cns:02x}h of namespace {nsid}"))?;
        Ok(done.buffer.expect("the command had a buffer"))
    }

    /// Reads an Identify page that controllers may lack. Returns `None` if this one does.
    fn optional_page(&mut self, cns: u8, nsid: u32) -> Result<Option<Buffer>> {
        match self.identify_page(cns, nsid) {
            Err(Error::Status { .. }) => Ok(None),
            page => page.map(Some),
        }
    }

    /// Returns the identifiers of the active namespaces, in ascending order.
    ///
    /// # Errors
    /// If the controller refuses or the connection fails.
    pub fn namespace_ids(&mut self) -> Result<Vec<u32>> {
        let mut ids: Vec<u32> = Vec::new();
        loop {
            let after = ids.last().copied().unwrap_or(0);
            let page = self.identify_page(cns::ACTIVE_NAMESPACES, after)?;
            let words = page.bytes().chunks_exact(4);
            let list = words.map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
            let before = ids.len();
            for id in list.take_while(|id| *id != 0) {
                if id <= ids.last().copied().unwrap_or(0) {
                    return Err(self.unusable("its list of namespaces is not in ascending order"));
                }
                ids.push(id);
            }
            if ids.len() - before < identify::IDENTIFY_BYTES / 4 {
                return Ok(ids);
            }
        }
    }

    /// Identifies a namespace.
    ///
    /// # Errors
    /// If the namespace does not exist or its format is unsupported, or the connection fails.
    pub fn namespace(&mut self, nsid: u32) -> Result<NamespaceInfo> {
        let page = self.identify_page(cns::NAMESPACE, nsid)?;
        let namespace = IdentifyNamespace::ref_from_bytes(page.bytes()).expect("4096 bytes");
        let what = || format!("namespace {nsid} of {}", self.admin.peer());
        let blocks = namespace.nsze.get();
        if blocks == 0 {
            let why = format!("it does not exist or is inactive; choose another with {NAMESPACE}");
            return Err(Error::invalid(what(), why));
        }
        let block_bytes = namespace.block_bytes().filter(|bytes| {
            blocks.checked_mul((*bytes).into()).is_some() && u64::from(*bytes) <= UNLIMITED_TRANSFER
        });
        let Some(block_bytes) = block_bytes else {
            let why = "its format is unsupported: metadata, or an impossible block size or capacity";
            return Err(Error::invalid(what(), why));
        };
        let limit = self.identify.max_transfer_bytes().unwrap_or(u64::MAX);
        // A command has at most 65,536 blocks.
        let limit = limit.min(UNLIMITED_TRANSFER).min(u64::from(block_bytes) << 16) as u32;
        let optional = self.identify.oncs.get();
        let identity = self.identity(nsid, namespace)?;
        let write_zeroes = optional & oncs::WRITE_ZEROES != 0;
        let zeroed = if write_zeroes { self.max_write_zeroes()? } else { 0 };
        let unit = u64::from(block_bytes);
        Ok(NamespaceInfo {
            nsid,
            blocks,
            block_bytes,
            read_only: namespace.nsattr & 1 != 0,
            write_zeroes,
            deallocate: optional & oncs::DATASET_MANAGEMENT != 0,
            volatile_cache: self.identify.vwc & 1 != 0,
            max_transfer: (limit / block_bytes).max(1) * block_bytes,
            // A command has at most 65,536 blocks.
            max_write_zeroes: (zeroed.min(unit << 16) / unit).max(1) * unit,
            identity,
        })
    }

    /// Returns the most bytes of one Write Zeroes command: WZSL in Identify Controller of the NVM command set
    /// (NVM Command Set section 4.1.5). Returns `u64::MAX` if the controller reports no limit.
    fn max_write_zeroes(&mut self) -> Result<u64> {
        // Controllers of NVMe 1.4 and older do not have this page, and report no limit. WZSL is a power of two of pages of
        // 4096 bytes.
        let page = self.optional_page(cns::COMMAND_SET_CONTROLLER, 0)?;
        let shift = page.map_or(0, |page| page.bytes()[1]);
        Ok(if (1..52).contains(&shift) { 4096 << shift } else { u64::MAX })
    }

    fn identity(&mut self, nsid: u32, namespace: &IdentifyNamespace) -> Result<NamespaceIdentity> {
        let page = self.optional_page(cns::NAMESPACE_DESCRIPTORS, nsid)?;
        let mut identity = NamespaceIdentity {
            uuid: None,
            nguid: Some(namespace.nguid).filter(|id| *id != [0; 16]),
            eui64: Some(namespace.eui64).filter(|id| *id != [0; 8]),
        };
        for (kind, id) in page.iter().flat_map(|page| identify::descriptors(page.bytes())) {
            match (kind, id.try_into(), id.try_into()) {
                _ if id.iter().all(|byte| *byte == 0) => {}
                (descriptor_type::UUID, Ok(id), _) => identity.uuid = Some(id),
                (descriptor_type::NGUID, Ok(id), _) => identity.nguid = Some(id),
                (descriptor_type::EUI64, _, Ok(id)) => identity.eui64 = Some(id),
                _ => {}
            }
        }
        Ok(identity)
    }
}
