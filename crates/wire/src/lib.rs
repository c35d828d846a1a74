//! Views of packet headers over plain bytes: read a field where it lies, write it where it lies.
//!
//! A view is a buffer (`&[u8]`, `&mut [u8]`, `Vec<u8>`) whose length was checked once, by `new`; after that no accessor
//! can fail, whatever the bytes are. Views never allocate, never follow a length that the buffer does not hold, and
//! keep the payload that they give within what the header says *and* what is there (captures cut packets short).
//!
//! ```
//! use inlane_wire::{ethernet, ipv4, udp};
//!
//! let mut bytes = vec![0u8; 60];
//! let mut frame = ethernet::Frame::new(&mut bytes[..]).unwrap();
//! frame.set_ethertype(ethernet::IPV4);
//! let mut packet = ipv4::Packet::init(frame.payload_mut()).unwrap();
//! packet.set_protocol(ipv4::UDP);
//! packet.fill_checksum();
//! let datagram = udp::Datagram::new(packet.payload_mut()).unwrap();
//! assert_eq!(datagram.source_port(), 0);
//! ```
//!
//! | module | headers | source |
//! | --- | --- | --- |
//! | [`ethernet`] | Ethernet II, 802.1Q and 802.1ad tags | IEEE 802.3, 802.1Q |
//! | [`arp`] | ARP for IPv4 over Ethernet | RFC 826 |
//! | [`ipv4`], [`ipv6`] | with options; with a bounded walk over extension headers | RFC 791, RFC 8200 |
//! | [`udp`], [`tcp`], [`icmp`] | fixed part, TCP options as bytes | RFC 768, 9293, 792, 4443 |
//! | [`ecpri`], [`oran`] | eCPRI common header, O-RAN user plane sections | eCPRI 2.0, O-RAN WG4 CUS |
//! | [`roce`] | RoCEv2: BTH, RETH, AETH, immediate | IBTA volume 1, annex A17 |
//! | [`nvme_tcp`] | NVMe/TCP PDU headers | NVMe TCP transport 1.0 |
//! | [`checksum`] | internet checksum, whole and incremental | RFC 1071, RFC 1624 |
//! | [`flow`] | where the layers of a frame begin; its 5-tuple | |
//!
//! What is not here: reassembly, options parsed into values, state machines. Those belong to who needs them.

#![forbid(unsafe_code)]

#[macro_use]
mod view;

pub mod arp;
pub mod checksum;
pub mod ecpri;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod nvme_tcp;
pub mod oran;
pub mod roce;
pub mod tcp;
pub mod udp;

pub use ethernet::Mac;
pub use flow::{FiveTuple, Layers};

/// Why bytes are not the header they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The buffer ends before the header does.
    #[error("{header} header needs {needed} bytes, there are {present}")]
    Truncated {
        /// Which header.
        header: &'static str,
        /// Bytes it needs.
        needed: usize,
        /// Bytes there were.
        present: usize,
    },
    /// A field has a value that the header cannot have.
    #[error("{header} header: {field} is {value}")]
    Malformed {
        /// Which header.
        header: &'static str,
        /// Which field.
        field: &'static str,
        /// What it was.
        value: u64,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
