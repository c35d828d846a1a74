//! Neighbour discovery for IPv6 over Ethernet: solicitations and advertisements (RFC 4861).
//!
//! ```text
//! 0      1      2          4       8                24
//! | type | code | checksum | flags | target address | options: type, length in units of 8 bytes, value ...
//! ```

use crate::ethernet::Mac;
use crate::{Error, Result};
use std::net::Ipv6Addr;

/// The length of a message without options, in bytes.
pub const HEADER: usize = 24;
/// The length of a link-layer address option for Ethernet, in bytes.
pub const LINK_ADDRESS: usize = 8;
/// ICMPv6 type: neighbour solicitation.
pub const SOLICITATION: u8 = 135;
/// ICMPv6 type: neighbour advertisement.
pub const ADVERTISEMENT: u8 = 136;
/// Flag of an advertisement: it answers a solicitation.
pub const SOLICITED: u32 = 1 << 30;
/// Flag of an advertisement: the receiver must replace its stored link-layer address of the target.
pub const OVERRIDE: u32 = 1 << 29;
/// Option: the sender's link-layer address.
pub const SOURCE_LINK_ADDRESS: u8 = 1;
/// Option: the target's link-layer address.
pub const TARGET_LINK_ADDRESS: u8 = 2;
/// The hop limit of valid neighbour discovery messages. Routers decrement the hop limit, so this value shows
/// that the message comes from the same link.
pub const HOP_LIMIT: u8 = 255;

view! {
    /// A neighbour solicitation or advertisement.
    Message("neighbour discovery", 24) check = check {
        /// [`SOLICITATION`] or [`ADVERTISEMENT`].
        kind / set_kind: u8 = 0,
        /// The checksum over the message and the pseudo header.
        checksum / set_checksum: u16 = 2,
        /// [`SOLICITED`], [`OVERRIDE`] and others.
        flags / set_flags: u32 = 4,
        /// The address that is asked for or advertised.
        target / set_target: Ipv6Addr = 8,
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    match (bytes[0], bytes[1]) {
        (SOLICITATION | ADVERTISEMENT, 0) => Ok(()),
        (kind, _) => {
            Err(Error::Malformed { header: "neighbour discovery", field: "type or code", value: kind as u64 })
        }
    }
}

impl<T: AsRef<[u8]>> Message<T> {
    /// Returns the link-layer address in the first option of type `kind`. Returns `None` if there is no such
    /// option. The search ends at a malformed option.
    pub fn link_address(&self, kind: u8) -> Option<Mac> {
        let mut options = &self.bytes()[HEADER..];
        loop {
            let len = usize::from(*options.get(1)?) * 8;
            let option = options.get(..len).filter(|option| !option.is_empty())?;
            if option[0] == kind && len == LINK_ADDRESS {
                return Some(crate::view::Field::get(option, 2));
            }
            options = &options[len..];
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Message<T> {
    /// Writes a message of type `kind` to the start of `buffer`. The message has one option of type `option`,
    /// which holds the link-layer address `mac`. Sets flags, target and checksum to 0.
    ///
    /// # Errors
    /// [`Error::Truncated`] if message and option do not fit.
    pub fn init(mut buffer: T, kind: u8, option: u8, mac: Mac) -> Result<Self> {
        crate::view::require("neighbour discovery", buffer.as_ref(), HEADER + LINK_ADDRESS)?;
        let bytes = buffer.as_mut();
        bytes[..HEADER].fill(0);
        bytes[0] = kind;
        bytes[HEADER] = option;
        bytes[HEADER + 1] = 1;
        crate::view::Field::put(mac, bytes, HEADER + 2);
        Ok(Self(buffer))
    }
}

/// Returns the multicast address to which solicitations for `target` are sent (RFC 4291, section 2.7.1).
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    let mut octets = [0; 16];
    (octets[0], octets[1], octets[11], octets[12]) = (0xff, 2, 1, 0xff);
    (octets[13], octets[14], octets[15]) = (a, b, c);
    octets.into()
}

/// Returns the Ethernet address of an IPv6 multicast address (RFC 2464, section 7).
pub fn multicast_mac(address: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = address.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// Returns the link-local address that an interface derives from its MAC address (RFC 4291, appendix A).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 134u8..138) {
            let mut bytes = bytes;
            if bytes.len() > 1 {
                (bytes[0], bytes[1]) = (kind, 0);
            }
            if let Ok(message) = Message::new(&bytes) {
                let _ = message.link_address(SOURCE_LINK_ADDRESS);
            }
        }
    }

    #[test]
    fn fields_are_read_as_written() {
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let mut message = Message::init(vec![0xff; 32], ADVERTISEMENT, TARGET_LINK_ADDRESS, mac).unwrap();
        message.set_target("fd00::1".parse().unwrap());
        message.set_flags(SOLICITED | OVERRIDE);
        let bytes = message.into_inner();
        let message = Message::new(&bytes).unwrap();
        assert_eq!(message.link_address(TARGET_LINK_ADDRESS), Some(mac));
        assert_eq!(message.link_address(SOURCE_LINK_ADDRESS), None);
        assert_eq!((message.flags(), message.target()), (SOLICITED | OVERRIDE, "fd00::1".parse().unwrap()));
        assert!(Message::init(vec![0; 31], ADVERTISEMENT, 1, mac).is_err());
        assert!(Message::new([1; 24]).is_err());
    }

    #[test]
    fn the_examples_of_the_standards() {
        let address: Ipv6Addr = "4037::01:800:200E:8C6C".parse().unwrap();
        assert_eq!(solicited_node(address), "FF02::1:FF0E:8C6C".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac("ff02::1:ff00:1".parse().unwrap()).to_string(), "33:33:ff:00:00:01");
        let mac = Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(link_local(mac), "fe80::3656:78ff:fe9a:bcde".parse::<Ipv6Addr>().unwrap());
    }
}
