//! Submission and completion queue entries, and the codes in them.

use super::Status;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

wire! {
    /// A submission queue entry (Base section 3.3.3.1).
    pub struct Command {
        /// OPC: the opcode. Its meaning depends on the queue: see [`admin`] and [`io`].
        pub opcode: u8,
        /// FUSE and PSDT: whether the command is fused, and how its data is described. 0x40 in commands over
        /// fabrics, because SGLs describe their data.
        pub flags: u8,
        /// CID: the identifier that the completion repeats.
        pub cid: U16,
        /// NSID: the namespace. In commands of the Fabrics opcode, the lowest byte is the FCTYPE.
        pub nsid: U32,
        /// Command dword 2.
        pub cdw2: U32,
        /// Command dword 3.
        pub cdw3: U32,
        /// MPTR: the metadata pointer.
        pub mptr: U64,
        /// DPTR: the data pointer, an SGL descriptor of the command's data.
        pub sgl: Sgl,
        /// Command dword 10.
        pub cdw10: U32,
        /// Command dword 11.
        pub cdw11: U32,
        /// Command dword 12.
        pub cdw12: U32,
        /// Command dword 13.
        pub cdw13: U32,
        /// Command dword 14.
        pub cdw14: U32,
        /// Command dword 15.
        pub cdw15: U32,
    }

    /// An SGL descriptor (Base section 4.1.2.1).
    pub struct Sgl {
        /// The address of the data. For in-capsule data over TCP, the offset in the capsule's data.
        pub address: U64,
        /// The length in bytes.
        pub length: U32,
        /// Reserved.
        pub reserved: [u8; 3],
        /// The descriptor's type in the upper four bits, its subtype in the lower four.
        pub identifier: u8,
    }

    /// A completion queue entry (Base section 3.3.3.2).
    pub struct Completion {
        /// Dword 0: the low 32 bits of the command's result.
        pub dw0: U32,
        /// Dword 1: the high 32 bits of the command's result.
        pub dw1: U32,
        /// SQHD: the head of the submission queue.
        pub sqhd: U16,
        /// SQID. Reserved over fabrics.
        pub sqid: U16,
        /// CID: the identifier of the command.
        pub cid: U16,
        /// The status in bits 15:1. Bit 0 is the phase tag, which is reserved over fabrics.
        pub status_and_phase: U16,
    }
}

/// The flags of a command whose data an SGL describes (PSDT 01b).
const PSDT_SGL: u8 = 0x40;

impl Sgl {
    /// The value of `identifier` if the data lies in the capsule, at the offset `address`.
    pub const IN_CAPSULE: u8 = 0x01;
    /// The value of `identifier` if the transport sends the data in separate PDUs.
    pub const TRANSPORT: u8 = 0x5A;
    /// The descriptor of a command without data.
    pub const NONE: Sgl = Sgl::transport(0);

    /// Creates the SGL descriptor for `length` bytes of data that follow the command in its capsule.
    pub const fn in_capsule(length: u32) -> Self {
        Self { address: U64::ZERO, length: U32::new(length), reserved: [0; 3], identifier: Self::IN_CAPSULE }
    }

    /// Creates the SGL descriptor for `length` bytes of data that are transferred in C2HData or H2CData PDUs.
    pub const fn transport(length: u32) -> Self {
        Self { address: U64::ZERO, length: U32::new(length), reserved: [0; 3], identifier: Self::TRANSPORT }
    }
}

impl Command {
    /// Creates a command without data. Its command identifier and all further dwords are 0.
    #[inline]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, flags: PSDT_SGL, nsid: nsid.into(), sgl: Sgl::NONE, ..Self::new_zeroed() }
    }

    /// Creates a read, write, write zeroes or compare of `blocks` blocks from `lba`.
    ///
    /// # Panics
    /// If `blocks` is not 1 to 65,536.
    #[inline]
    pub fn blocks(opcode: u8, nsid: u32, lba: u64, blocks: u32, sgl: Sgl) -> Self {
        assert!((1..=65_536).contains(&blocks), "{blocks} blocks");
        let mut command = Self { sgl, ..Self::new(opcode, nsid) };
        command.cdw10 = (lba as u32).into();
        command.cdw11 = ((lba >> 32) as u32).into();
        command.cdw12 = (blocks - 1).into();
        command
    }

    /// Returns the first block of a command on a range of blocks.
    #[inline]
    pub fn lba(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// Returns the number of blocks, 1 to 65,536, on which a command operates.
    #[inline]
    pub fn block_count(&self) -> u32 {
        (self.cdw12.get() & 0xFFFF) + 1
    }

    /// Returns true if the command may transfer data to the controller: bit 0 of the opcode, or of FCTYPE.
    pub fn sends_data(&self) -> bool {
        self.direction() & 1 != 0
    }

    /// Returns true if the command may transfer data to the host: bit 1 of the opcode, or of FCTYPE.
    pub fn receives_data(&self) -> bool {
        self.direction() & 2 != 0
    }

    /// Returns true if the controller may send less data than the command asks for: the length in
    /// Authentication Receive is only a limit.
    pub fn may_receive_less(&self) -> bool {
        self.opcode == FABRICS && self.nsid.get() as u8 == fabrics::AUTHENTICATION_RECEIVE
    }

    fn direction(&self) -> u8 {
        if self.opcode == FABRICS { self.nsid.get() as u8 } else { self.opcode }
    }
}

impl Completion {
    /// Creates a completion.
    #[inline]
    pub fn new(cid: u16, status: Status, sqhd: u16, dw0: u32, dw1: u32) -> Self {
        Self {
            dw0: dw0.into(),
            dw1: dw1.into(),
            sqhd: sqhd.into(),
            sqid: U16::ZERO,
            cid: cid.into(),
            status_and_phase: (status.0 << 1).into(),
        }
    }

    /// Returns the status.
    #[inline]
    pub fn status(&self) -> Status {
        Status(self.status_and_phase.get() >> 1)
    }

    /// Returns the 64-bit result: dword 0 and dword 1.
    pub fn result(&self) -> u64 {
        u64::from(self.dw0.get()) | u64::from(self.dw1.get()) << 32
    }
}

/// The opcode of Fabrics commands, on all queues. The FCTYPE in byte 4 selects the command.
pub const FABRICS: u8 = 0x7F;

/// The values of FCTYPE (Base section 6).
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// SECP, SPSP0 and SPSP1 of DH-HMAC-CHAP, at their places in dword 10 of Authentication Send and Receive (Base
    /// sections 6.1 and 6.2).
    pub const DH_HMAC_CHAP: u32 = 0xE9 << 24 | 1 << 16 | 1 << 8;
}

/// Opcodes on the admin queue (Base section 5).
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0A;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes on I/O queues (NVM section 3; Base section 7).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Bits of command dword 12 of commands on blocks (NVM section 3.2).
pub mod io_flags {
    /// FUA: the data is durable before the command completes.
    pub const FUA: u32 = 1 << 30;
    /// DEAC in Write Zeroes: the controller may deallocate the blocks.
    pub const DEALLOCATE: u32 = 1 << 25;
}

/// Dataset Management (NVM section 3.2.3). The data is a list of 16-byte ranges. Dword 10 holds their number
/// less one.
pub mod dsm {
    use zerocopy::little_endian::{U32, U64};

    /// Bit of dword 11: deallocate the ranges.
    pub const DEALLOCATE: u32 = 1 << 2;

    wire! {
        /// A range of blocks.
        pub struct Range {
            /// Context attributes.
            pub attributes: U32,
            /// The number of blocks. Unlike most counts in commands, the field holds the count itself, not
            /// the count minus 1.
            pub blocks: U32,
            /// The first block.
            pub lba: U64,
        }
    }
}

/// Feature identifiers of Get Features and Set Features (Base section 5.27.1).
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues. Dword 11 and the result contain two numbers, each minus one: submission queues in
    /// bits 15:0, and completion queues in bits 31:16.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0A;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0B;
    /// Keep Alive Timer, in milliseconds.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
}

/// Log page identifiers of Get Log Page (Base section 5.16.1).
pub mod log {
    /// Error Information.
    pub const ERROR_INFORMATION: u8 = 0x01;
    /// SMART / Health Information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: u8 = 0x03;
    /// Changed Namespace List.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects.
    pub const COMMANDS_SUPPORTED: u8 = 0x05;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Asynchronous events (Base section 5.2.1). Dword 0 of the completion:
///
/// | bits | contents |
/// | --- | --- |
/// | 2:0 | type |
/// | 15:8 | information |
/// | 23:16 | log page |
pub mod async_event {
    /// Dword 0 of the event "Namespace Attribute Changed". Its log page is the Changed Namespace List.
    pub const NAMESPACE_CHANGED: u32 = 0x02 | (super::log::CHANGED_NAMESPACES as u32) << 16;
    /// Dword 0 of the completion that reports "Discovery Log Page Change".
    pub const DISCOVERY_CHANGED: u32 = 0x02 | 0xF0 << 8 | (super::log::DISCOVERY as u32) << 16;
    /// Bit of Asynchronous Event Configuration and of OAES: namespace attribute notices.
    pub const NAMESPACE_NOTICES: u32 = 1 << 8;
    /// Bit of Asynchronous Event Configuration and of OAES: discovery log page change notices.
    pub const DISCOVERY_NOTICES: u32 = 1 << 31;
}
