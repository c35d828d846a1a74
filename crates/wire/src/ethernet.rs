//! Ethernet II frames, with 802.1Q and 802.1ad tags.
//!
//! ```text
//! 0            6        12          14
//! | destination | source | ethertype | payload ...
//!                        | 8100 or 88a8 | tag control | ethertype | payload ...     each tag adds 4 bytes
//! ```

use std::fmt;
use std::str::FromStr;

/// The length of a header without tags, in bytes.
pub const HEADER: usize = 14;
/// The length of a tag, in bytes.
pub const TAG: usize = 4;
/// The largest number of VLAN tags in a frame that this crate skips. The tags lie between the addresses and
/// the payload.
pub const MAX_TAGS: usize = 2;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad (service) tag.
pub const QINQ: u16 = 0x88a8;
/// EtherType of eCPRI.
pub const ECPRI: u16 = 0xaefe;

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Returns true for a group address, including broadcast.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let digits = |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let part = parts.next().filter(digits).ok_or(crate::Error::NotMac)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| crate::Error::NotMac)?;
        }
        parts.next().map_or(Ok(Mac(mac)), |_| Err(crate::Error::NotMac))
    }
}

impl crate::view::Field for Mac {
    #[inline(always)]
    fn get(bytes: &[u8], at: usize) -> Self {
        Mac(crate::view::Field::get(bytes, at))
    }

    #[inline(always)]
    fn put(self, bytes: &mut [u8], at: usize) {
        self.0.put(bytes, at);
    }
}

view! {
    /// An Ethernet frame without preamble and FCS.
    Frame("Ethernet", 14) {
        /// Destination address.
        destination / set_destination: Mac = 0,
        /// Source address.
        source / set_source: Mac = 6,
        /// The EtherType of the payload, or of the first tag.
        ethertype / set_ethertype: u16 = 12,
    }
}

impl<T: AsRef<[u8]>> Frame<T> {
    /// Returns the tags in order, at most [`MAX_TAGS`].
    pub fn tags(&self) -> impl Iterator<Item = Tag> + '_ {
        let bytes = self.bytes();
        (0..MAX_TAGS).map_while(move |index| {
            let at = HEADER - 2 + index * TAG;
            let kind = u16_at(bytes, at)?;
            let control = u16_at(bytes, at + 2).filter(|_| is_tag(kind))?;
            // Leave out a tag if the frame ends before the EtherType that follows the tag.
            u16_at(bytes, at + 4)?;
            Some(Tag { kind, control })
        })
    }

    /// Returns the offset of the payload, after the tags.
    #[inline]
    pub fn payload_offset(&self) -> usize {
        if is_tag(self.ethertype()) { HEADER + self.tags().count() * TAG } else { HEADER }
    }

    /// Returns the EtherType of the payload, after the tags.
    #[inline]
    pub fn payload_ethertype(&self) -> u16 {
        u16_at(self.bytes(), self.payload_offset() - 2)
            .expect("the EtherType of a counted tag is in the frame")
    }

    /// Returns the payload after the tags, including padding.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[self.payload_offset()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Frame<T> {
    /// Returns the payload after the tags for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let at = self.payload_offset();
        &mut self.0.as_mut()[at..]
    }
}

fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, VLAN | QINQ)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// One 802.1Q or 802.1ad tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// [`VLAN`] or [`QINQ`].
    pub kind: u16,
    /// Priority (3 bits), drop eligibility (1 bit) and VLAN number (12 bits).
    pub control: u16,
}

impl Tag {
    /// Returns the VLAN number, 0 to 4095.
    pub fn vlan(self) -> u16 {
        self.control & 0xfff
    }

    /// Returns the priority, 0 to 7.
    pub fn priority(self) -> u8 {
        (self.control >> 13) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_walked() {
        let mut bytes = vec![0u8; 12];
        bytes.extend([0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x10, 0x07, 0x08, 0x00, 0xaa, 0xbb]);
        let frame = Frame::new(&bytes).unwrap();
        let tags: Vec<_> = frame.tags().collect();
        assert_eq!(tags.len(), 2);
        assert_eq!((tags[0].kind, tags[0].vlan(), tags[0].priority()), (QINQ, 100, 1));
        assert_eq!((tags[1].vlan(), tags[1].priority()), (7, 0), "neither contains the drop eligible bit");
        assert_eq!(frame.payload_ethertype(), IPV4);
        assert_eq!(frame.payload(), [0xaa, 0xbb]);
    }

    #[test]
    fn a_truncated_tag_is_payload() {
        let mut bytes = vec![0u8; 12];
        bytes.extend([0x81, 0x00, 0x00, 0x07, 0x08]);
        let frame = Frame::new(&bytes).unwrap();
        assert_eq!(frame.payload_ethertype(), VLAN);
        assert_eq!(frame.payload().len(), 3);
        assert!(Frame::new(&bytes[..13]).is_err());
    }

    #[test]
    fn at_most_two_tags_are_followed() {
        let bytes: Vec<u8> = [0x81, 0x00].repeat(100);
        let frame = Frame::new(&bytes).unwrap();
        assert_eq!(frame.tags().count(), MAX_TAGS);
        assert_eq!(frame.payload_ethertype(), VLAN);
    }

    #[test]
    fn mac_addresses_are_parsed_and_printed() {
        let mac: Mac = "02:00:5e:10:00:ff".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        assert!(!mac.is_multicast() && Mac::BROADCAST.is_multicast());
        for bad in ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "02:00:5e:10:00:f", "xx:00:5e:10:00:ff"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
