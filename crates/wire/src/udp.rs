//! UDP datagrams (RFC 768): the header, the payload and the checksum.

use crate::checksum::{self, Sum};

/// Bytes of the header.
pub const HEADER: usize = 8;

view! {
    /// A UDP datagram.
    Datagram("UDP", 8) {
        /// Source port.
        source_port / set_source_port: u16 = 0,
        /// Destination port.
        destination_port / set_destination_port: u16 = 2,
        /// The length field: bytes of header and payload. 0 in a jumbogram.
        length / set_length: u16 = 4,
        /// The checksum. 0 means that there is no checksum. Only IPv4 allows that.
        checksum / set_checksum: u16 = 6,
    }
}

impl<T: AsRef<[u8]>> Datagram<T> {
    /// Returns the offset of the datagram's end. This is the value of the length field, but at least the
    /// header's length and at most the buffer's length.
    pub fn end(&self) -> usize {
        (self.length() as usize).clamp(HEADER, self.bytes().len())
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[HEADER..self.end()]
    }

    /// Returns true if the checksum is right or absent. `pseudo` is the sum of the IP pseudo header.
    pub fn checksum_ok(&self, pseudo: Sum) -> bool {
        self.checksum() == 0 || pseudo.add_bytes(&self.bytes()[..self.end()]).finish() == 0
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Datagram<T> {
    /// Returns the payload for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.end();
        &mut self.0.as_mut()[HEADER..end]
    }

    /// Computes and sets the checksum. `pseudo` is the sum of the IP pseudo header.
    pub fn fill_checksum(&mut self, pseudo: Sum) {
        self.set_checksum(0);
        let checksum = pseudo.add_bytes(&self.bytes()[..self.end()]).finish();
        self.set_checksum(checksum::udp(checksum));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipv4;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn checksums_agree_with_etherparse(payload in proptest::collection::vec(any::<u8>(), 0..100),
                                           source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) {
            let mut packet = ipv4::Packet::init([vec![0; 28], payload.clone()].concat()).unwrap();
            packet.set_protocol(ipv4::UDP);
            packet.set_source(source.into());
            packet.set_destination(destination.into());
            let pseudo = packet.pseudo_sum();
            let mut datagram = Datagram::new(packet.payload_mut()).unwrap();
            datagram.set_source_port(ports.0);
            datagram.set_destination_port(ports.1);
            datagram.set_length(8 + payload.len() as u16);
            datagram.fill_checksum(pseudo);
            prop_assert!(datagram.checksum_ok(pseudo));
            prop_assert_eq!(datagram.payload(), &payload[..]);
            let ip = etherparse::Ipv4Header::new(8 + payload.len() as u16, 64, etherparse::IpNumber::UDP, source, destination).unwrap();
            let theirs = etherparse::UdpHeader::with_ipv4_checksum(ports.0, ports.1, &ip, &payload).unwrap();
            prop_assert_eq!(datagram.checksum(), theirs.checksum);
        }
    }

    #[test]
    fn wrong_lengths_stay_inside() {
        let mut bytes = [0u8; 12];
        assert_eq!(Datagram::new(&bytes).unwrap().payload().len(), 0);
        bytes[4] = 0xff;
        assert_eq!(Datagram::new(&bytes).unwrap().payload().len(), 4);
        assert!(Datagram::new(&bytes[..7]).is_err());
    }
}
