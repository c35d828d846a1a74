//! Views of packet headers over plain bytes. They read and write fields in place.
//!
//! A view wraps a buffer: `&[u8]`, `&mut [u8]` or `Vec<u8>`. The view's `new` checks the buffer's length
//! once. After that, no accessor fails, whatever the bytes are. A payload ends at the end that the header
//! gives or at the end of the buffer, whichever comes first, because captures cut packets short. Views do not
//! allocate.
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
//! | [`ndp`] | neighbour solicitations and advertisements | RFC 4861 |
//! | [`ecpri`], [`oran`] | eCPRI common header, O-RAN user plane sections | eCPRI 2.0, O-RAN WG4 CUS |
//! | [`roce`] | RoCEv2: BTH, RETH, AETH, ImmDt, ICRC | InfiniBand specification 1.4, annex A17 |
//! | [`checksum`] | internet checksum, complete and incremental | RFC 1071, RFC 1624 |
//! | [`flow`] | offsets of a frame's layers; its 5-tuple | |
//!
//! Reassembly, the values of options, and state machines are left to other crates.

// Only the vector instructions of `checksum` are an exception.
#![deny(unsafe_code)]

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
pub mod ndp;
pub mod oran;
pub mod roce;
pub mod tcp;
pub mod udp;

pub use ethernet::Mac;
pub use flow::{FiveTuple, Layers};

/// The reason why a buffer does not begin with the expected header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The buffer ends before the header does.
    #[error("{header} header needs {needed} bytes, but only {present} are left")]
    Truncated {
        /// The name of the header that the buffer truncates, for example `ARP`.
        header: &'static str,
        /// Bytes that the header needs.
        needed: usize,
        /// Bytes in the buffer.
        present: usize,
    },
    /// A field has an impossible value.
    #[error("{header} header: {field} is {value}")]
    Malformed {
        /// The header.
        header: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text is not a MAC address.
    #[error("it is not a MAC address; give six bytes, for example 02:00:00:00:00:01")]
    NotMac,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
