//! IPv4 (RFC 791).
//!
//! ```text
//! 0       1     2        4    6               8     9          10         12       16            20
//! | ver,ihl | tos | length | id | flags,fragment | ttl | protocol | checksum | source | destination | options ...
//! ```

use crate::checksum::{self, Sum};
use crate::{Error, Result};
use std::net::Ipv4Addr;

/// The length of a header without options, in bytes.
pub const HEADER: usize = 20;
/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

view! {
    /// An IPv4 packet.
    Packet("IPv4", 20) check = check {
        /// Differentiated services and ECN.
        tos / set_tos: u8 = 1,
        /// The total length: the number of bytes of header and payload. The buffer may hold fewer or more.
        total_length / set_total_length: u16 = 2,
        /// Identification.
        id / set_id: u16 = 4,
        /// Flags (3 bits) and fragment offset (13 bits).
        flags_and_offset / set_flags_and_offset: u16 = 6,
        /// Time to live.
        ttl / set_ttl: u8 = 8,
        /// The protocol of the payload.
        protocol / set_protocol: u8 = 9,
        /// Header checksum.
        checksum / set_checksum: u16 = 10,
        /// Source address.
        source / set_source: Ipv4Addr = 12,
        /// Destination address.
        destination / set_destination: Ipv4Addr = 16,
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    let malformed = |field, value| Err(Error::Malformed { header: "IPv4", field, value });
    let header = (bytes[0] & 0xf) as usize * 4;
    let total = u16::from_be_bytes([bytes[2], bytes[3]]) as usize;
    if bytes[0] >> 4 != 4 {
        return malformed("version", (bytes[0] >> 4) as u64);
    }
    if header < HEADER {
        return malformed("header length", header as u64);
    }
    if total < header {
        return malformed("total length", total as u64);
    }
    crate::view::require("IPv4", bytes, header)
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the length of the header with its options, in bytes.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        (self.bytes()[0] & 0xf) as usize * 4
    }

    /// Returns the options' bytes.
    pub fn options(&self) -> &[u8] {
        &self.bytes()[HEADER..self.header_len()]
    }

    /// Returns the offset of the packet's end, as given by its length field. Returns at most the buffer's
    /// length.
    #[inline(always)]
    pub fn end(&self) -> usize {
        // Return at least the header's length, because the length field may have changed since `new` checked
        // it.
        (self.total_length() as usize).max(self.header_len()).min(self.bytes().len())
    }

    /// Returns the payload, without padding.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[self.header_len()..self.end()]
    }

    /// Returns the offset of this fragment in bytes; 0 for the first one and for complete packets.
    pub fn fragment_offset(&self) -> u16 {
        (self.flags_and_offset() & 0x1fff) * 8
    }

    /// Returns true if this is a fragment of a larger packet.
    pub fn is_fragment(&self) -> bool {
        self.flags_and_offset() & 0x3fff != 0
    }

    /// Returns true if the header checksum is right.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        self.header_checksum() == 0
    }

    /// Returns the checksum of the header with its options.
    #[inline]
    fn header_checksum(&self) -> u16 {
        // A length that is known when this is compiled takes no loop. Most headers have no options.
        match self.bytes().first_chunk::<HEADER>() {
            Some(header) if self.header_len() == HEADER => checksum::of(header),
            _ => checksum::of(&self.bytes()[..self.header_len()]),
        }
    }

    /// Returns the sum of the pseudo header, for the payload's checksum.
    #[inline]
    pub fn pseudo_sum(&self) -> Sum {
        let length = (self.total_length() as usize).saturating_sub(self.header_len()) as u32;
        Sum::new().add_pseudo_v4(self.source(), self.destination(), self.protocol(), length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Makes `buffer` one IPv4 packet without options, with TTL 64 and the buffer's length. Sets all other
    /// fields to 0 and keeps the payload. Set the checksum by [`Packet::fill_checksum`].
    ///
    /// # Errors
    /// [`Error::Truncated`] if the header does not fit, [`Error::Malformed`] beyond 65535 bytes.
    pub fn init(mut buffer: T) -> Result<Self> {
        let bytes = buffer.as_mut();
        crate::view::require("IPv4", bytes, HEADER)?;
        let value = bytes.len() as u64;
        let length = u16::try_from(bytes.len()).map_err(|_| Error::Malformed {
            header: "IPv4",
            field: "total length",
            value,
        })?;
        bytes[..HEADER].fill(0);
        bytes[0] = 0x45;
        let mut packet = Self(buffer);
        packet.set_total_length(length);
        packet.set_ttl(64);
        Ok(packet)
    }

    /// Returns the payload for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.header_len(), self.end());
        &mut self.0.as_mut()[start..end]
    }

    /// Computes and sets the header checksum.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = self.header_checksum();
        self.set_checksum(checksum);
    }

    /// Decrements the TTL and updates the checksum incrementally. Returns false, and changes nothing, if the
    /// TTL is 0.
    pub fn decrement_ttl(&mut self) -> bool {
        let Some(ttl) = self.ttl().checked_sub(1) else { return false };
        let old = u16::from_be_bytes([self.ttl(), self.protocol()]);
        let new = u16::from_be_bytes([ttl, self.protocol()]);
        let checksum = checksum::update(self.checksum(), old, new);
        self.set_ttl(ttl);
        self.set_checksum(checksum);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_etherparse(bytes in proptest::collection::vec(any::<u8>(), 0..80), ihl in 4u8..16) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = 0x40 | ihl;
            }
            let ours = Packet::new(&bytes);
            let theirs = etherparse::Ipv4HeaderSlice::from_slice(&bytes);
            if let Ok(ours) = &ours {
                let theirs = theirs.expect("etherparse accepts what this view accepts");
                prop_assert_eq!(ours.header_len(), theirs.slice().len());
                prop_assert_eq!(ours.total_length(), theirs.total_len());
                prop_assert_eq!(ours.id(), theirs.identification());
                prop_assert_eq!(ours.fragment_offset(), theirs.fragments_offset().byte_offset());
                prop_assert_eq!(ours.is_fragment(), theirs.is_fragmenting_payload());
                prop_assert_eq!(ours.ttl(), theirs.ttl());
                prop_assert_eq!(ours.protocol(), theirs.protocol().0);
                prop_assert_eq!(ours.checksum(), theirs.header_checksum());
                prop_assert_eq!(ours.source(), theirs.source_addr());
                prop_assert_eq!(ours.destination(), theirs.destination_addr());
                prop_assert_eq!(ours.options(), theirs.options());
                prop_assert_eq!(
                    ours.checksum_ok(),
                    theirs.to_header().calc_header_checksum() == ours.checksum()
                        // Accept the checksum 0xffff where etherparse computes 0, because one's complement
                        // has two zeros.
                        || (ours.checksum() == 0xffff && theirs.to_header().calc_header_checksum() == 0)
                );
            } else if let Ok(theirs) = theirs {
                prop_assert!((theirs.total_len() as usize) < theirs.slice().len());
            }
        }

        #[test]
        fn ttl_decrement_keeps_the_checksum_right(source: [u8; 4], destination: [u8; 4], ttl in 1u8.., id: u16) {
            let mut packet = Packet::init(vec![0; 28]).unwrap();
            packet.set_source(source.into());
            packet.set_destination(destination.into());
            packet.set_ttl(ttl);
            packet.set_id(id);
            packet.fill_checksum();
            prop_assert!(packet.decrement_ttl());
            prop_assert_eq!(packet.ttl(), ttl - 1);
            prop_assert!(packet.checksum_ok());
        }
    }

    #[test]
    fn wrong_lengths_stay_inside() {
        let mut bytes = vec![0u8; 40];
        bytes[0] = 0x45;
        bytes[3] = 19;
        assert!(Packet::new(&bytes).is_err(), "the length is less than the header's");
        bytes[2] = 0xff;
        assert_eq!(
            Packet::new(&bytes).unwrap().payload().len(),
            20,
            "the buffer is shorter, as in a cut capture"
        );
        bytes[2] = 0;
        bytes[3] = 25;
        assert_eq!(
            Packet::new(&bytes).unwrap().payload().len(),
            5,
            "the buffer is longer, as with Ethernet padding"
        );
        bytes[0] = 0x4f;
        bytes[3] = 60;
        assert!(Packet::new(&bytes).is_err(), "the buffer ends within the options");
        assert!(Packet::init(vec![0; 65536]).is_err());
        let mut packet = Packet::init(vec![0; 20]).unwrap();
        packet.set_ttl(0);
        assert!(!packet.decrement_ttl());
    }
}
