//! Identify Namespace (NVM section 4.1.5.1) and the Namespace Identification Descriptors (Base section
//! 5.17.2.3).

use zerocopy::little_endian::{U16, U32, U64};

wire! {
    /// Identify Namespace for the NVM command set, 4096 bytes.
    pub struct IdentifyNamespace {
        /// NSZE: the size, in blocks.
        pub nsze: U64,
        /// NCAP: the capacity, in blocks.
        pub ncap: U64,
        /// NUSE: the allocated blocks.
        pub nuse: U64,
        /// NSFEAT. Bit 0: thin provisioning. Bit 4: the fields NPWG to NOWS are valid.
        pub nsfeat: u8,
        /// NLBAF: the number of LBA formats, less one.
        pub nlbaf: u8,
        /// FLBAS: the LBA format in use, in bits 3:0.
        pub flbas: u8,
        /// MC: metadata capabilities.
        pub mc: u8,
        /// DPC: protection capabilities.
        pub dpc: u8,
        /// DPS: protection settings.
        pub dps: u8,
        /// NMIC: bit 0 is set if several controllers may share the namespace.
        pub nmic: u8,
        /// RESCAP: reservation capabilities.
        pub rescap: u8,
        /// FPI: format progress.
        pub fpi: u8,
        /// DLFEAT. Bits 2:0: 1 if deallocated blocks read as zero. Bit 3: Write Zeroes may deallocate.
        pub dlfeat: u8,
        /// NAWUN.
        pub nawun: U16,
        /// NAWUPF.
        pub nawupf: U16,
        /// NACWU.
        pub nacwu: U16,
        /// NABSN.
        pub nabsn: U16,
        /// NABO.
        pub nabo: U16,
        /// NABSPF.
        pub nabspf: U16,
        /// NOIOB.
        pub noiob: U16,
        /// NVMCAP: the size, in bytes.
        pub nvmcap: [u8; 16],
        /// NPWG: preferred write granularity, in blocks, less one.
        pub npwg: U16,
        /// NPWA: preferred write alignment, in blocks, less one.
        pub npwa: U16,
        /// NPDG: preferred deallocate granularity, in blocks, less one.
        pub npdg: U16,
        /// NPDA: preferred deallocate alignment, in blocks, less one.
        pub npda: U16,
        /// NOWS: optimal write size, in blocks, less one.
        pub nows: U16,
        /// MSSRL, MCL and MSRC, the limits of the Copy command, and reserved bytes.
        pub copy: [u8; 18],
        /// ANAGRPID.
        pub anagrpid: U32,
        /// Reserved.
        pub reserved: [u8; 3],
        /// NSATTR: bit 0 is set if the namespace is write protected.
        pub nsattr: u8,
        /// NVMSETID.
        pub nvmsetid: U16,
        /// ENDGID.
        pub endgid: U16,
        /// NGUID.
        pub nguid: [u8; 16],
        /// EUI64.
        pub eui64: [u8; 8],
        /// LBAF0 to LBAF63.
        pub lbaf: [LbaFormat; 64],
        /// Vendor specific.
        pub vendor: [u8; 3712],
    }

    /// An LBA format.
    pub struct LbaFormat {
        /// MS: metadata bytes per block.
        pub ms: U16,
        /// LBADS: the block size as a power of two; 9 is 512 bytes.
        pub lbads: u8,
        /// RP: relative performance.
        pub rp: u8,
    }
}

impl IdentifyNamespace {
    /// Returns the block size in bytes. Returns `None` if the format in use is unsupported. Such a format has
    /// metadata, or its blocks have less than 512 bytes or at least 4 GiB.
    pub fn block_bytes(&self) -> Option<u32> {
        let index = usize::from(self.flbas & 0x0F | (self.flbas >> 1 & 0x30));
        let format = self.lbaf.get(index)?;
        (index <= usize::from(self.nlbaf) && format.ms.get() == 0 && (9..32).contains(&format.lbads))
            .then(|| 1 << format.lbads)
    }
}

/// An identifier of a namespace in the list that Identify with CNS 03h returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor {
    /// NIDT 1: an IEEE Extended Unique Identifier.
    Eui64([u8; 8]),
    /// NIDT 2: a Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// NIDT 3: a UUID.
    Uuid([u8; 16]),
    /// NIDT 4: the command set; 0 is the NVM command set.
    CommandSet(u8),
}

impl NamespaceDescriptor {
    /// Writes the descriptor into `out`. Returns the number of bytes written.
    ///
    /// # Panics
    /// If `out` is too short; 20 bytes suffice.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let (kind, id): (u8, &[u8]) = match self {
            Self::Eui64(id) => (1, id),
            Self::Nguid(id) => (2, id),
            Self::Uuid(id) => (3, id),
            Self::CommandSet(code) => (4, std::slice::from_ref(code)),
        };
        out[..4].copy_from_slice(&[kind, id.len() as u8, 0, 0]);
        out[4..4 + id.len()].copy_from_slice(id);
        4 + id.len()
    }

    /// Decodes the list. Skips descriptors of unknown type. Stops at a malformed descriptor.
    pub fn decode_all(mut list: &[u8]) -> Vec<Self> {
        let mut found = Vec::new();
        while let [kind, len, _, _, rest @ ..] = list {
            let Some((id, rest)) = rest.split_at_checked((*len).into()) else { break };
            match (kind, id) {
                (0, _) | (_, []) => break,
                (1, id) if id.len() == 8 => found.push(Self::Eui64(id.try_into().expect("8 bytes"))),
                (2, id) if id.len() == 16 => found.push(Self::Nguid(id.try_into().expect("16 bytes"))),
                (3, id) if id.len() == 16 => found.push(Self::Uuid(id.try_into().expect("16 bytes"))),
                (4, [code]) => found.push(Self::CommandSet(*code)),
                _ => {}
            }
            list = rest;
        }
        found
    }
}
