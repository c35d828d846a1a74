//! The data structure Identify Controller: what a controller supports (Base section 5.17.2.1).

use zerocopy::little_endian::{U16, U32};

wire! {
    /// Identify Controller, 4096 bytes, with the fields that either side uses.
    pub struct IdentifyController {
        /// Not used.
        pub reserved: [u8; 4],
        /// SN: the serial number, filled with spaces.
        pub sn: [u8; 20],
        /// MN: the model, filled with spaces.
        pub mn: [u8; 40],
        /// FR: the firmware revision, filled with spaces.
        pub fr: [u8; 8],
        /// Not used.
        pub reserved2: [u8; 4],
        /// CMIC: what the subsystem can have. Bit 0: several ports. Bit 1: several controllers. Bit 3:
        /// asymmetric namespace access.
        pub cmic: u8,
        /// MDTS: the most data of a command is 4096 bytes times 2 to the power of this number. 0: no limit.
        pub mdts: u8,
        /// CNTLID: the controller's identifier.
        pub cntlid: U16,
        /// VER: the version; 20000h is 2.0.
        pub ver: U32,
        /// Not used.
        pub reserved3: [u8; 8],
        /// OAES: the asynchronous events that the controller sends.
        pub oaes: U32,
        /// CTRATT: controller attributes; bit 0 is set for 128-bit host identifiers.
        pub ctratt: U32,
        /// Not used.
        pub reserved4: [u8; 11],
        /// CNTRLTYPE: see [`controller_type`].
        pub cntrltype: u8,
        /// Not used.
        pub reserved5: [u8; 146],
        /// ACL: the Aborts that may be in flight, less one.
        pub acl: u8,
        /// AERL: the Asynchronous Event Requests that may be in flight, less one.
        pub aerl: u8,
        /// FRMW. Bit 0: slot 1 is read-only. Bits 3:1: the number of firmware slots.
        pub frmw: u8,
        /// LPA: log page attributes; bit 2 is set for extended data (offsets and lengths beyond 12 bits).
        pub lpa: u8,
        /// ELPE: the entries of the error log, less one.
        pub elpe: u8,
        /// Not used.
        pub reserved6: [u8; 57],
        /// KAS: the granularity of the keep-alive timer, in units of 100 ms. 0 if the controller has no such
        /// timer.
        pub kas: U16,
        /// Not used.
        pub reserved7: [u8; 190],
        /// SQES: the sizes of submission queue entries as powers of two. Bits 3:0: required. Bits 7:4:
        /// largest. 66h is 64 bytes.
        pub sqes: u8,
        /// CQES: the sizes of completion queue entries as powers of two. Bits 3:0: required. Bits 7:4:
        /// largest. 44h is 16 bytes.
        pub cqes: u8,
        /// MAXCMD: the most commands in flight on a queue.
        pub maxcmd: U16,
        /// NN: the largest NSID.
        pub nn: U32,
        /// ONCS: optional I/O commands; see [`oncs`].
        pub oncs: U16,
        /// Not used.
        pub reserved8: [u8; 3],
        /// VWC. Bit 0: a volatile write cache is present. Bits 2:1: 3 if Flush accepts NSID FFFFFFFFh.
        pub vwc: u8,
        /// Not used.
        pub reserved9: [u8; 10],
        /// SGLS: the supported features of SGLs. Bits 1:0: SGLs are supported at all. Bit 20: an SGL's
        /// address may be an offset in the capsule. Bit 21: an SGL may describe data outside the capsule.
        pub sgls: U32,
        /// Not used.
        pub reserved10: [u8; 228],
        /// SUBNQN.
        pub subnqn: [u8; 256],
        /// Not used.
        pub reserved11: [u8; 768],
        /// IOCCSZ: the largest command capsule of I/O queues, in units of 16 bytes; at least 4.
        pub ioccsz: U32,
        /// IORCSZ: the largest response capsule of I/O queues, in units of 16 bytes; at least 1.
        pub iorcsz: U32,
        /// ICDOFF: where in-capsule data starts, in units of 16 bytes after the command.
        pub icdoff: U16,
        /// Not used.
        pub reserved12: [u8; 1],
        /// MSDBD: the most SGL descriptors of a capsule.
        pub msdbd: u8,
        /// Not used.
        pub reserved13: [u8; 2292],
    }
}

/// The values of CNTRLTYPE.
pub mod controller_type {
    /// An I/O controller.
    pub const IO: u8 = 1;
    /// A discovery controller.
    pub const DISCOVERY: u8 = 2;
}

/// Bits of ONCS.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
}

impl IdentifyController {
    /// Returns the largest data transfer of a command in bytes, or `None` if there is no limit.
    pub fn max_transfer_bytes(&self) -> Option<u64> {
        let bytes = if self.mdts < 52 { 4096 << self.mdts } else { u64::MAX };
        (self.mdts != 0).then_some(bytes)
    }

    /// Returns the most in-capsule data of a command on an I/O queue, in bytes.
    pub fn max_capsule_data(&self) -> u32 {
        let capsule = u64::from(self.ioccsz.get()) * 16;
        let before = 64 + u64::from(self.icdoff.get()) * 16;
        u32::try_from(capsule.saturating_sub(before)).unwrap_or(u32::MAX)
    }
}
