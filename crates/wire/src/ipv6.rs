//! IPv6 (RFC 8200), with a bounded walk over extension headers.
//!
//! ```text
//! 0                            4        6             7           8        24            40
//! | version, class, flow label | length | next header | hop limit | source | destination | extensions, payload ...
//! ```

use crate::checksum::Sum;
use crate::{Error, Result};
use std::net::Ipv6Addr;

/// The length of the fixed header, in bytes.
pub const HEADER: usize = 40;
/// The most extension headers that [`Packet::upper`] accepts.
pub const MAX_EXTENSIONS: usize = 8;
/// Next header: ICMPv6.
pub const ICMP: u8 = 58;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;

view! {
    /// An IPv6 packet.
    Packet("IPv6", 40) check = check {
        /// The payload length: the number of bytes after the fixed header. The buffer may hold fewer or more.
        payload_length / set_payload_length: u16 = 4,
        /// The type of the header after the fixed one: an extension or the upper layer.
        next_header / set_next_header: u8 = 6,
        /// Hop limit.
        hop_limit / set_hop_limit: u8 = 7,
        /// Source address.
        source / set_source: Ipv6Addr = 8,
        /// Destination address.
        destination / set_destination: Ipv6Addr = 24,
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    match bytes[0] >> 4 {
        6 => Ok(()),
        version => Err(Error::Malformed { header: "IPv6", field: "version", value: version as u64 }),
    }
}

/// The fragment header of a packet (RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The type of the first header in the original packet's fragmented part: an extension header or the
    /// upper layer. Only the first fragment's value counts.
    pub next_header: u8,
    /// The fragment's offset in the original packet's fragmented part, in bytes.
    pub offset: u16,
    /// True if other fragments follow.
    pub more: bool,
    /// The identification. All fragments of a packet have the same one.
    pub id: u32,
    /// The offset of the fragment's data in the packet's buffer.
    pub data: usize,
}

/// The upper-layer packet after the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// The IP protocol number of the upper layer, for example 6 for TCP.
    pub protocol: u8,
    /// The offset of the upper-layer packet in the IPv6 packet's buffer, in bytes.
    pub offset: usize,
    /// The offset of this fragment in the original packet, in bytes. `None` without a fragment header.
    pub fragment_offset: Option<u16>,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the offset of the packet's end. The length field determines it, but it is at most the buffer's
    /// length.
    #[inline(always)]
    pub fn end(&self) -> usize {
        (HEADER + self.payload_length() as usize).min(self.bytes().len())
    }

    /// Returns the bytes after the fixed header: extensions and upper layer, without padding.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[HEADER..self.end()]
    }

    /// Returns the traffic class: differentiated services and ECN.
    pub fn traffic_class(&self) -> u8 {
        self.bytes()[0] << 4 | self.bytes()[1] >> 4
    }

    /// Returns the flow label, of 20 bits.
    pub fn flow_label(&self) -> u32 {
        let bytes = self.bytes();
        u32::from_be_bytes([0, bytes[1] & 0xf, bytes[2], bytes[3]])
    }

    /// Walks over the extension headers to the upper layer. A fragment other than the first has no
    /// upper-layer header. The returned offset is then that of the fragment's data.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the packet ends within an extension, [`Error::Malformed`] beyond
    /// [`MAX_EXTENSIONS`].
    pub fn upper(&self) -> Result<Upper> {
        Ok(self.walk()?.0)
    }

    /// Returns the fragment header, or `None` if the packet has none.
    ///
    /// # Errors
    /// As [`Packet::upper`].
    pub fn fragment(&self) -> Result<Option<Fragment>> {
        Ok(self.walk()?.1)
    }

    /// Walks over the extension headers. Returns the upper layer and the first fragment header.
    fn walk(&self) -> Result<(Upper, Option<Fragment>)> {
        let mut found = None;
        let bytes = &self.bytes()[..self.end()];
        let mut upper = Upper { protocol: self.next_header(), offset: HEADER, fragment_offset: None };
        for _ in 0..=MAX_EXTENSIONS {
            let at = upper.offset;
            if !matches!(
                upper.protocol,
                HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION | MOBILITY
            ) {
                return Ok((upper, found));
            }
            crate::view::require("IPv6 extension", bytes, at + 8)?;
            let length = match upper.protocol {
                FRAGMENT => 8,
                AUTHENTICATION => (bytes[at + 1] as usize + 2) * 4,
                _ => (bytes[at + 1] as usize + 1) * 8,
            };
            crate::view::require("IPv6 extension", bytes, at + length)?;
            let fragment = upper.protocol == FRAGMENT;
            upper.protocol = bytes[at];
            upper.offset = at + length;
            if fragment {
                let place = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
                let offset = place & !7;
                upper.fragment_offset = Some(offset);
                found = found.or(Some(Fragment {
                    next_header: upper.protocol,
                    offset,
                    more: place & 1 != 0,
                    id: u32::from_be_bytes([bytes[at + 4], bytes[at + 5], bytes[at + 6], bytes[at + 7]]),
                    data: upper.offset,
                }));
                if offset > 0 {
                    return Ok((upper, found));
                }
            }
        }
        Err(Error::Malformed {
            header: "IPv6",
            field: "number of extension headers",
            value: MAX_EXTENSIONS as u64 + 1,
        })
    }

    /// Returns the sum of the pseudo header of an upper-layer packet of `length` bytes. The checksum of the
    /// upper-layer packet starts with this sum.
    pub fn pseudo_sum(&self, protocol: u8, length: u32) -> Sum {
        Sum::new().add_pseudo_v6(self.source(), self.destination(), protocol, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Makes `buffer` one IPv6 packet with hop limit 64 and the buffer's length. Sets all other fields to 0
    /// and keeps the payload.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the header does not fit, [`Error::Malformed`] beyond 65535 bytes of payload.
    pub fn init(mut buffer: T) -> Result<Self> {
        let bytes = buffer.as_mut();
        crate::view::require("IPv6", bytes, HEADER)?;
        let value = (bytes.len() - HEADER) as u64;
        let length = u16::try_from(value).map_err(|_| Error::Malformed {
            header: "IPv6",
            field: "payload length",
            value,
        })?;
        bytes[..HEADER].fill(0);
        bytes[0] = 0x60;
        let mut packet = Self(buffer);
        packet.set_payload_length(length);
        packet.set_hop_limit(64);
        Ok(packet)
    }

    /// Returns the bytes after the fixed header for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.end();
        &mut self.0.as_mut()[HEADER..end]
    }

    /// Sets the traffic class: differentiated services and ECN.
    pub fn set_traffic_class(&mut self, class: u8) {
        let bytes = self.0.as_mut();
        bytes[0] = bytes[0] & 0xf0 | class >> 4;
        bytes[1] = bytes[1] & 0xf | class << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet_with(extensions: &[(u8, Vec<u8>)], last: u8) -> Vec<u8> {
        let mut body = Vec::new();
        let kinds: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).chain([last]).collect();
        for (i, (_, rest)) in extensions.iter().enumerate() {
            body.push(kinds[i + 1]);
            body.extend(rest);
        }
        body.extend([7; 8]);
        let mut packet = Packet::init([vec![0; HEADER], body].concat()).unwrap();
        packet.set_next_header(kinds[0]);
        packet.into_inner()
    }

    #[test]
    fn extensions_are_walked() {
        let options = [&[1][..], &[0; 14]].concat();
        let fragment = vec![0, 0, 0, 0, 0, 0, 9];
        let bytes = packet_with(&[(HOP_BY_HOP, options), (FRAGMENT, fragment)], 17);
        let upper = Packet::new(&bytes).unwrap().upper().unwrap();
        assert_eq!(upper, Upper { protocol: 17, offset: 40 + 16 + 8, fragment_offset: Some(0) });
        let fragment = Packet::new(&bytes).unwrap().fragment().unwrap();
        let expected = Fragment { next_header: 17, offset: 0, more: false, id: 9, data: 64 };
        assert_eq!(fragment, Some(expected));
    }

    #[test]
    fn a_later_fragment_ends_the_walk() {
        // In a later fragment, the bytes after the fragment header are data, although the header names an
        // extension. So the walk must stop at these bytes, at offset 48.
        let bytes = packet_with(&[(FRAGMENT, vec![0, 0x05, 0xa9, 0, 0, 0, 9])], HOP_BY_HOP);
        let upper = Packet::new(&bytes).unwrap().upper().unwrap();
        assert_eq!(upper, Upper { protocol: HOP_BY_HOP, offset: 48, fragment_offset: Some(0x5a8) });
    }

    #[test]
    fn endless_and_short_extensions_are_refused() {
        let one = (DESTINATION, vec![0; 7]);
        let most = packet_with(&vec![one.clone(); MAX_EXTENSIONS], 17);
        assert!(Packet::new(&most).unwrap().upper().is_ok());
        let too_many = packet_with(&vec![one; MAX_EXTENSIONS + 1], 17);
        assert!(matches!(Packet::new(&too_many).unwrap().upper(), Err(Error::Malformed { .. })));
        let short = packet_with(&[(ROUTING, vec![200, 0, 0, 0, 0, 0, 0])], 17);
        assert!(matches!(Packet::new(&short).unwrap().upper(), Err(Error::Truncated { .. })));
    }

    proptest! {
        #[test]
        fn agrees_with_etherparse(mut bytes in proptest::collection::vec(any::<u8>(), 40..80)) {
            bytes[0] = bytes[0] & 0xf | 0x60;
            let ours = Packet::new(&bytes).unwrap();
            let theirs = etherparse::Ipv6HeaderSlice::from_slice(&bytes).unwrap();
            prop_assert_eq!(ours.traffic_class(), theirs.traffic_class());
            prop_assert_eq!(ours.flow_label(), theirs.flow_label().value());
            prop_assert_eq!(ours.payload_length(), theirs.payload_length());
            prop_assert_eq!(ours.next_header(), theirs.next_header().0);
            prop_assert_eq!(ours.hop_limit(), theirs.hop_limit());
            prop_assert_eq!(ours.source(), theirs.source_addr());
            prop_assert_eq!(ours.destination(), theirs.destination_addr());
        }

        #[test]
        fn the_walk_stays_inside(body in proptest::collection::vec(0u8..61, 0..64), next in 0u8..61) {
            let mut packet = Packet::init([vec![0; HEADER], body].concat()).unwrap();
            packet.set_next_header(next);
            if let Ok(upper) = packet.upper() {
                prop_assert!(upper.offset <= packet.bytes().len());
            }
        }

        #[test]
        fn flow_labels_are_read_as_written(label in 0u32..1 << 20) {
            let mut bytes = Packet::init(vec![0; HEADER]).unwrap().into_inner();
            bytes[..4].copy_from_slice(&(6 << 28 | 0xff << 20 | label).to_be_bytes());
            prop_assert_eq!(Packet::new(bytes).unwrap().flow_label(), label);
        }
    }
}
