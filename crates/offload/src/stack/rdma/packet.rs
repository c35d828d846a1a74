//! RDMA packets to send.

use crate::stack::network::{Checksum, Payload};
use crate::stack::ring::ByteRing;
use inlane_wire::checksum::Sum;
use inlane_wire::{ipv4, roce, udp};
use std::ops::Range;

/// An RDMA packet to send, from its UDP header on.
pub(super) struct Outgoing<'a> {
    pub source_port: u16,
    pub headers: &'a [u8],
    pub ring: &'a ByteRing,
    pub payload: Range<u64>,
    pub padding: usize,
    /// False if the field of the ICRC stays 0.
    pub has_icrc: bool,
}

impl Payload for Outgoing<'_> {
    const PROTOCOL: u8 = ipv4::UDP;

    #[inline]
    fn len(&self) -> usize {
        let data = (self.payload.end - self.payload.start) as usize;
        udp::HEADER + self.headers.len() + data + self.padding + roce::ICRC
    }

    #[inline]
    fn body(&self) -> Option<(&ByteRing, Range<u64>)> {
        // An ICRC would follow the body, whose bytes the peer can already change.
        (!self.has_icrc && !self.payload.is_empty()).then(|| (self.ring, self.payload.clone()))
    }

    #[inline]
    fn tail(&self) -> usize {
        self.padding + roce::ICRC
    }

    #[inline]
    fn write_head(&self, head: &mut [u8], _: Checksum) {
        let (header, headers) = head.split_at_mut(udp::HEADER);
        header.fill(0); // The checksum stays 0, because the ICRC protects the packet if it needs protection.
        let mut datagram = udp::Datagram::new(header).expect("the head has the header's length");
        datagram.set_source_port(self.source_port);
        datagram.set_destination_port(roce::PORT);
        datagram.set_length(self.len() as u16);
        headers.copy_from_slice(self.headers);
    }

    fn write(&self, buffer: &mut [u8], _: Option<Sum>) {
        let (head, rest) = buffer.split_at_mut(udp::HEADER + self.headers.len());
        self.write_head(head, Checksum::Partial(Sum::new()));
        let (data, rest) = rest.split_at_mut((self.payload.end - self.payload.start) as usize);
        self.ring.read(self.payload.clone(), data);
        rest.fill(0);
    }

    fn finish(&self, packet: &mut [u8]) {
        if self.has_icrc {
            roce::fill_icrc(packet).expect("the packet was just written");
        }
    }
}
