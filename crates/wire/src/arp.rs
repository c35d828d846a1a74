//! ARP for IPv4 over Ethernet (RFC 826).

use crate::ethernet::Mac;
use crate::{Error, Result};
use std::net::Ipv4Addr;

/// The length of a packet, in bytes.
pub const HEADER: usize = 28;
/// Operation: asks who has the target address.
pub const REQUEST: u16 = 1;
/// Operation: tells the MAC address of the sender's IPv4 address.
pub const REPLY: u16 = 2;

view! {
    /// An ARP packet for IPv4 over Ethernet. `new` returns an error if the packet's addresses have other
    /// types.
    Packet("ARP", 28) check = check {
        /// [`REQUEST`] or [`REPLY`].
        operation / set_operation: u16 = 6,
        /// The sender's MAC address.
        sender_mac / set_sender_mac: Mac = 8,
        /// The sender's IPv4 address.
        sender / set_sender: Ipv4Addr = 14,
        /// The target's MAC address; zero in a request.
        target_mac / set_target_mac: Mac = 18,
        /// The target's IPv4 address.
        target / set_target: Ipv4Addr = 24,
    }
}

/// The first six bytes of every ARP packet for IPv4 over Ethernet: hardware type Ethernet, protocol type
/// IPv4, address lengths 6 and 4.
const KIND: [u8; 6] = [0, 1, 8, 0, 6, 4];

fn check(bytes: &[u8]) -> Result<()> {
    if bytes[..6] != KIND {
        let value = u64::from_be_bytes([0, 0, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]]);
        return Err(Error::Malformed { header: "ARP", field: "address types", value });
    }
    Ok(())
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Makes `buffer` begin with an ARP packet whose operation and addresses are 0.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the packet does not fit.
    pub fn init(mut buffer: T) -> Result<Self> {
        crate::view::require("ARP", buffer.as_ref(), HEADER)?;
        let bytes = buffer.as_mut();
        bytes[..HEADER].fill(0);
        bytes[..6].copy_from_slice(&KIND);
        Ok(Self(buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        let mut packet = Packet::init(vec![0xff; 30]).unwrap();
        packet.set_operation(REQUEST);
        packet.set_sender(Ipv4Addr::new(198, 18, 0, 1));
        let bytes = packet.into_inner();
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!((packet.operation(), packet.sender()), (REQUEST, Ipv4Addr::new(198, 18, 0, 1)));
        assert_eq!(packet.target_mac(), Mac::default());
    }

    #[test]
    fn other_address_types_are_refused() {
        assert!(Packet::new([0u8; 28]).is_err());
        assert!(Packet::init([0u8; 27]).is_err());
    }
}
