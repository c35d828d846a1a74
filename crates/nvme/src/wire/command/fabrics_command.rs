//! Fabrics commands and controller properties (Base sections 3.1.3 and 6).

use super::{Command, FABRICS, Sgl, fabrics};
use crate::wire::identify::terminated;
use crate::wire::nqn;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

/// Offsets of controller properties (Base section 3.1.3).
pub mod property {
    /// CAP: controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// VS: the version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// CC: controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// CSTS: controller status, 4 bytes.
    pub const CSTS: u32 = 0x1C;
}

/// Bits and fields of CC.
pub mod cc {
    /// EN: the controller processes commands.
    pub const ENABLE: u32 = 1 << 0;
    /// Mask of SHN, the shutdown notification.
    pub const SHUTDOWN_MASK: u32 = 3 << 14;
    /// SHN: normal shutdown.
    pub const SHUTDOWN_NORMAL: u32 = 1 << 14;
    /// The required entry sizes as powers of two: IOSQES 6 (64 bytes) and IOCQES 4 (16 bytes).
    pub const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
}

/// Bits and fields of CSTS.
pub mod csts {
    /// RDY: the controller is ready for commands.
    pub const READY: u32 = 1 << 0;
    /// CFS: a fatal error occurred.
    pub const FATAL: u32 = 1 << 1;
    /// SHST: shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
    /// Mask of SHST, the shutdown status.
    pub const SHUTDOWN_MASK: u32 = 3 << 2;
}

/// The value of the property CAP (Base section 3.1.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Creates the capabilities of a controller for the NVM command set. Queues are contiguous and have at
    /// most `max_entries` entries (2 to 65,536). The controller becomes ready within `timeout_500ms` units
    /// of 500 ms.
    pub fn new(max_entries: u32, timeout_500ms: u8) -> Self {
        Self(u64::from(max_entries - 1) & 0xFFFF | 1 << 16 | u64::from(timeout_500ms) << 24 | 1 << 37)
    }

    /// Returns MQES as a count: the most entries of a queue.
    pub fn max_entries(self) -> u32 {
        (self.0 as u32 & 0xFFFF) + 1
    }

    /// Returns TO: the longest time until the controller is ready, in units of 500 ms.
    pub fn timeout_500ms(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

/// Values of fields of the command Connect and of its data (Base section 6.3).
pub mod connect {
    /// CATTR: the host does not use submission queue flow control.
    pub const DISABLE_FLOW_CONTROL: u8 = 1 << 2;
    /// The controller identifier that asks for any controller.
    pub const ANY_CONTROLLER: u16 = 0xFFFF;
    /// ATR in dword 0 of the completion: the host must authenticate itself on this queue.
    pub const AUTHENTICATION_REQUIRED: u32 = 1 << 17;
    /// ASCR in dword 0 of the completion: the host must authenticate itself and then set up a secure channel.
    pub const SECURE_CHANNEL_REQUIRED: u32 = 1 << 18;
}

/// Returns dword 0 of the completion of a refused Connect (Base section 6.3): the invalid parameter's
/// offset, in the Connect's data if `in_data` is set, else in the command.
pub const fn connect_error(in_data: bool, offset: usize) -> u32 {
    offset as u32 | (in_data as u32) << 16
}

wire! {
    /// The data of Connect, 1024 bytes (Base section 6.3).
    pub struct ConnectData {
        /// HOSTID: a UUID.
        pub host_id: [u8; 16],
        /// CNTLID: the controller, or [`connect::ANY_CONTROLLER`].
        pub controller: U16,
        /// Reserved.
        pub reserved: [u8; 238],
        /// SUBNQN, ended by a zero byte.
        pub subsystem_nqn: [u8; 256],
        /// HOSTNQN, ended by a zero byte.
        pub host_nqn: [u8; 256],
        /// Reserved.
        pub reserved2: [u8; 256],
    }
}

impl ConnectData {
    /// Creates the data of a Connect.
    ///
    /// # Panics
    /// If an NQN has more than 223 bytes.
    pub fn new(host_id: [u8; 16], controller: u16, subsystem_nqn: &str, host_nqn: &str) -> Self {
        let field = |nqn: &str| {
            assert!(nqn.len() <= nqn::MOST_BYTES, "an NQN of {} bytes", nqn.len());
            terminated(nqn)
        };
        Self {
            host_id,
            controller: controller.into(),
            subsystem_nqn: field(subsystem_nqn),
            host_nqn: field(host_nqn),
            ..Self::new_zeroed()
        }
    }
}

impl Command {
    /// Creates a Fabrics command.
    pub fn fabrics(fctype: u8, sgl: Sgl) -> Self {
        Self { sgl, ..Self::new(FABRICS, fctype.into()) }
    }

    /// Creates a Connect for queue `qid` with `entries` entries. A keep-alive timeout of 0 turns keep-alive
    /// off. The capsule must hold the [`ConnectData`].
    ///
    /// # Panics
    /// If `entries` is not 2 to 65,536.
    pub fn connect(qid: u16, entries: u32, attributes: u8, keep_alive_ms: u32) -> Self {
        assert!((2..=65_536).contains(&entries), "{entries} entries");
        let sgl = Sgl::in_capsule(size_of::<ConnectData>() as u32);
        let mut command = Self::fabrics(fabrics::CONNECT, sgl);
        command.cdw10 = (u32::from(qid) << 16).into();
        command.cdw11 = ((entries - 1) | u32::from(attributes) << 16).into();
        command.cdw12 = keep_alive_ms.into();
        command
    }

    /// Creates an Authentication Send or an Authentication Receive of `length` bytes for DH-HMAC-CHAP. `fctype`
    /// says which. The connection sets the SGL.
    pub fn authentication(fctype: u8, length: u32) -> Self {
        let mut command = Self::fabrics(fctype, Sgl::NONE);
        command.cdw10 = fabrics::DH_HMAC_CHAP.into();
        command.cdw11 = length.into();
        command
    }

    /// Creates a Property Get for the property at `offset`. It has 8 bytes if `wide` is set, else 4.
    pub fn property_get(offset: u32, wide: bool) -> Self {
        let mut command = Self::fabrics(fabrics::PROPERTY_GET, Sgl::NONE);
        command.cdw10 = u32::from(wide).into();
        command.cdw11 = offset.into();
        command
    }

    /// Creates a Property Set that writes `value` to the 4-byte property at `offset`.
    pub fn property_set(offset: u32, value: u32) -> Self {
        let mut command = Self::fabrics(fabrics::PROPERTY_SET, Sgl::NONE);
        command.cdw11 = offset.into();
        command.cdw12 = U32::new(value);
        command
    }
}
