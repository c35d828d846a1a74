//! The discovery log page. It lists subsystems and their addresses (Base section 5.16.1.23).

use zerocopy::little_endian::{U16, U64};

wire! {
    /// The header of the discovery log. The entries follow, 1024 bytes each.
    pub struct DiscoveryHeader {
        /// GENCTR: grows when the log changes.
        pub genctr: U64,
        /// NUMREC: the number of entries.
        pub numrec: U64,
        /// RECFMT: the format of the entries, 0.
        pub recfmt: U16,
        /// Reserved.
        pub reserved: [u8; 1006],
    }

    /// An entry of the discovery log: an address of a subsystem.
    pub struct DiscoveryEntry {
        /// TRTYPE: the transport type; 3 is TCP.
        pub trtype: u8,
        /// ADRFAM: the address family; 1 is IPv4, 2 is IPv6.
        pub adrfam: u8,
        /// SUBTYPE: see [`subsystem_type`].
        pub subtype: u8,
        /// TREQ: requirements of the transport; bits 1:0 are 2 if TLS is not required.
        pub treq: u8,
        /// PORTID: the number of the subsystem's port, which is not its TCP port.
        pub portid: U16,
        /// CNTLID: the controller to connect to; FFFFh for any.
        pub cntlid: U16,
        /// ASQSZ: the most entries of an admin queue.
        pub asqsz: U16,
        /// EFLAGS.
        pub eflags: U16,
        /// Reserved.
        pub reserved: [u8; 20],
        /// TRSVCID: the TCP port in decimal digits.
        pub trsvcid: [u8; 32],
        /// Reserved.
        pub reserved2: [u8; 192],
        /// SUBNQN.
        pub subnqn: [u8; 256],
        /// TRADDR: the address as text.
        pub traddr: [u8; 256],
        /// TSAS: settings of the transport. For TCP, byte 0 is SECTYPE; 0 is no security.
        pub tsas: [u8; 256],
    }
}

/// The values of SUBTYPE: the kind of subsystem that an entry of the discovery log points to.
pub mod subsystem_type {
    /// The entry leads to another discovery service.
    pub const REFERRAL: u8 = 1;
    /// The entry leads to a subsystem with namespaces.
    pub const NVM: u8 = 2;
    /// The entry leads to the discovery service that sends this log.
    pub const CURRENT_DISCOVERY: u8 = 3;
}

impl DiscoveryEntry {
    /// TRTYPE of TCP.
    pub const TCP: u8 = 3;
    /// ADRFAM of IPv4.
    pub const IPV4: u8 = 1;
    /// ADRFAM of IPv6.
    pub const IPV6: u8 = 2;
}
