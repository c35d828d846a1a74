//! TCP segments (RFC 9293): the fields of the header, and the options as bytes.

use crate::checksum::Sum;
use crate::{Error, Result};

/// The length of a header without options, in bytes.
pub const HEADER: usize = 20;
/// The greatest length of a header with options, in bytes.
pub const MAX_HEADER: usize = 60;

/// Flag: the sender sends no more data.
pub const FIN: u8 = 0x01;
/// Flag: synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Flag: reset the connection.
pub const RST: u8 = 0x04;
/// Flag: deliver the data to the receiver's program at once.
pub const PSH: u8 = 0x08;
/// Flag: the acknowledgment number is valid.
pub const ACK: u8 = 0x10;
/// Flag: the urgent pointer is valid.
pub const URG: u8 = 0x20;
/// Flag: the receiver of data echoes a congestion mark (RFC 3168).
pub const ECE: u8 = 0x40;
/// Flag: the sender of data has reduced its congestion window (RFC 3168).
pub const CWR: u8 = 0x80;

view! {
    /// A TCP segment.
    Segment("TCP", 20) check = check {
        /// Source port.
        source_port / set_source_port: u16 = 0,
        /// Destination port.
        destination_port / set_destination_port: u16 = 2,
        /// Sequence number.
        sequence / set_sequence: u32 = 4,
        /// Acknowledgment number.
        acknowledgment / set_acknowledgment: u32 = 8,
        /// The flags, from [`FIN`] in bit 0 to [`CWR`] in bit 7.
        flags / set_flags: u8 = 13,
        /// The window field, not scaled.
        window / set_window: u16 = 14,
        /// Checksum.
        checksum / set_checksum: u16 = 16,
        /// Urgent pointer.
        urgent / set_urgent: u16 = 18,
    }
}

fn check(bytes: &[u8]) -> Result<()> {
    let header = (bytes[12] >> 4) as usize * 4;
    if header < HEADER {
        return Err(Error::Malformed { header: "TCP", field: "data offset", value: header as u64 });
    }
    crate::view::require("TCP", bytes, header)
}

impl<T: AsRef<[u8]>> Segment<T> {
    /// Returns the length of the header with its options, in bytes.
    pub fn header_len(&self) -> usize {
        (self.bytes()[12] >> 4) as usize * 4
    }

    /// Returns the options' bytes.
    pub fn options(&self) -> &[u8] {
        &self.bytes()[HEADER..self.header_len()]
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[self.header_len()..]
    }

    /// Returns true if the checksum is right. `pseudo` is the sum of the IP pseudo header. The segment must
    /// fill the buffer.
    pub fn checksum_ok(&self, pseudo: Sum) -> bool {
        pseudo.add_bytes(self.bytes()).finish() == 0
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Segment<T> {
    /// Makes `buffer` one segment without options. Sets all other fields to 0 and keeps the payload.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the header does not fit.
    pub fn init(mut buffer: T) -> Result<Self> {
        let bytes = buffer.as_mut();
        crate::view::require("TCP", bytes, HEADER)?;
        bytes[..HEADER].fill(0);
        bytes[12] = (HEADER as u8 / 4) << 4;
        Ok(Self(buffer))
    }

    /// Makes `buffer` one segment with `options`, padded with zeros to whole 32-bit words. Sets all other
    /// fields to 0 and keeps the payload.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the header does not fit, [`Error::Malformed`] if the options are longer than
    /// 40 bytes.
    #[inline]
    pub fn init_with_options(mut buffer: T, options: &[u8]) -> Result<Self> {
        let header = HEADER + options.len().next_multiple_of(4);
        if header > MAX_HEADER {
            return Err(Error::Malformed { header: "TCP", field: "data offset", value: header as u64 });
        }
        let bytes = buffer.as_mut();
        crate::view::require("TCP", bytes, header)?;
        bytes[..header].fill(0);
        bytes[12] = (header as u8 / 4) << 4;
        bytes[HEADER..HEADER + options.len()].copy_from_slice(options);
        Ok(Self(buffer))
    }

    /// Returns the payload for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let at = self.header_len();
        &mut self.0.as_mut()[at..]
    }

    /// Computes and sets the checksum. `pseudo` is the sum of the IP pseudo header. The segment must fill the
    /// buffer.
    pub fn fill_checksum(&mut self, pseudo: Sum) {
        self.set_checksum(0);
        let checksum = pseudo.add_bytes(self.bytes()).finish();
        self.set_checksum(checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_etherparse(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let ours = Segment::new(&bytes);
            let theirs = etherparse::TcpSlice::from_slice(&bytes);
            prop_assert_eq!(ours.is_ok(), theirs.is_ok());
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                prop_assert_eq!(ours.source_port(), theirs.source_port());
                prop_assert_eq!(ours.destination_port(), theirs.destination_port());
                prop_assert_eq!(ours.sequence(), theirs.sequence_number());
                prop_assert_eq!(ours.acknowledgment(), theirs.acknowledgment_number());
                prop_assert_eq!(ours.window(), theirs.window_size());
                prop_assert_eq!(ours.options(), theirs.options());
                prop_assert_eq!(ours.payload(), theirs.payload());
                prop_assert_eq!(ours.flags() & SYN != 0, theirs.syn());
                prop_assert_eq!(ours.flags() & FIN != 0, theirs.fin());
            }
        }

        #[test]
        fn options_read_back_as_written(options in proptest::collection::vec(any::<u8>(), 0..48)) {
            let segment = Segment::init_with_options(vec![0xff; 64], &options);
            prop_assert_eq!(segment.is_ok(), options.len() <= 40);
            if let Ok(segment) = segment {
                prop_assert_eq!(&segment.options()[..options.len()], &options);
                prop_assert!(segment.options()[options.len()..].iter().all(|&byte| byte == 0));
                prop_assert!(segment.payload().iter().all(|&byte| byte == 0xff));
            }
        }

        #[test]
        fn checksums_agree_with_etherparse(payload in proptest::collection::vec(any::<u8>(), 0..100),
                                           source: [u8; 16], destination: [u8; 16], sequence: u32) {
            let mut packet = crate::ipv6::Packet::init([vec![0; 60], payload.clone()].concat()).unwrap();
            packet.set_source(source.into());
            packet.set_destination(destination.into());
            let pseudo = packet.pseudo_sum(6, 20 + payload.len() as u32);
            let mut segment = Segment::init(packet.payload_mut()).unwrap();
            segment.set_sequence(sequence);
            segment.fill_checksum(pseudo);
            let mut theirs = etherparse::TcpHeader::new(0, 0, sequence, 0);
            theirs.checksum = theirs.calc_checksum_ipv6_raw(source, destination, &payload).unwrap();
            prop_assert_eq!(segment.checksum(), theirs.checksum);
            prop_assert!(segment.checksum_ok(pseudo));
        }
    }
}
