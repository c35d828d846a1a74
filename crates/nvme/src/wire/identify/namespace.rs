//! Identify Namespace (NVM section 4.1.5.1) and the Namespace Identification Descriptors (Base section
//! 5.17.2.3).

use zerocopy::little_endian::{U16, U64};

wire! {
    /// Identify Namespace for the NVM command set, 4096 bytes, with the fields that either side uses.
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
        /// Not used.
        pub reserved: [u8; 3],
        /// NMIC: bit 0 is set if several controllers may share the namespace.
        pub nmic: u8,
        /// Not used.
        pub reserved2: [u8; 2],
        /// DLFEAT. Bits 2:0: 1 if deallocated blocks read as zero. Bit 3: Write Zeroes may deallocate.
        pub dlfeat: u8,
        /// Not used.
        pub reserved3: [u8; 14],
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
        /// Not used.
        pub reserved4: [u8; 25],
        /// NSATTR: bit 0 is set if the namespace is write protected.
        pub nsattr: u8,
        /// Not used.
        pub reserved5: [u8; 4],
        /// NGUID.
        pub nguid: [u8; 16],
        /// EUI64.
        pub eui64: [u8; 8],
        /// LBAF0 to LBAF63.
        pub lbaf: [LbaFormat; 64],
        /// Not used.
        pub reserved6: [u8; 3712],
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

/// The types of Namespace Identification Descriptors (NIDT).
pub mod descriptor_type {
    /// An IEEE Extended Unique Identifier, 8 bytes.
    pub const EUI64: u8 = 1;
    /// A Namespace Globally Unique Identifier, 16 bytes.
    pub const NGUID: u8 = 2;
    /// A UUID, 16 bytes.
    pub const UUID: u8 = 3;
}

/// Returns the Namespace Identification Descriptors in the list that Identify with CNS 03h returns: the type of each
/// and its identifier. Stops at a malformed descriptor.
pub fn descriptors(mut list: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind @ 1..=255, length @ 1..=255, _, _, rest @ ..] = list else { return None };
        let (id, rest) = rest.split_at_checked((*length).into())?;
        list = rest;
        Some((*kind, id))
    })
}
