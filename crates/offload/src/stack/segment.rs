//! TCP segments to send.

use super::Stack;
use super::network::{Checksum, Payload};
use super::ring::ByteRing;
use inlane_tcp::{Flow, Header};
use inlane_wire::checksum::Sum;
use inlane_wire::{ipv4, tcp};
use std::ops::Range;

/// A TCP segment to send.
pub struct Outgoing<'a> {
    /// The addresses and ports.
    pub flow: &'a Flow,
    /// The TCP header without ports.
    pub header: Header,
    /// The ring with the payload. `None` for a segment without payload.
    pub ring: Option<&'a ByteRing>,
    /// The payload's indices in the ring.
    pub payload: Range<u64>,
}

impl Payload for Outgoing<'_> {
    const PROTOCOL: u8 = ipv4::TCP;

    #[inline]
    fn len(&self) -> usize {
        self.header.wire_len() + (self.payload.end - self.payload.start) as usize
    }

    #[inline]
    fn body(&self) -> Option<(&ByteRing, Range<u64>)> {
        self.ring.filter(|_| !self.payload.is_empty()).map(|ring| (ring, self.payload.clone()))
    }

    #[inline]
    fn write_head(&self, head: &mut [u8], checksum: Checksum) {
        let ports = (self.flow.local.port(), self.flow.remote.port());
        self.header.write(ports.0, ports.1, head).expect("the head has the header's length");
        let checksum = match checksum {
            Checksum::Whole(sum) => sum.add_bytes(head).finish(),
            Checksum::Partial(sum) => sum.folded(),
        };
        tcp::Segment::new(head).expect("just written").set_checksum(checksum);
    }

    #[inline]
    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>) {
        let ports = (self.flow.local.port(), self.flow.remote.port());
        let header =
            self.header.write(ports.0, ports.1, buffer).expect("the buffer has the segment's length");
        let (front, payload) = buffer.split_at_mut(header);
        match (self.ring, pseudo) {
            (Some(ring), Some(pseudo)) => {
                // Add the header after the payload. The CPU would stall if it read the fields of the header
                // right after it has written them, because it reads several fields at once.
                let sum = ring.read_summed(self.payload.clone(), payload, pseudo);
                let checksum = sum.add_bytes(front).finish();
                tcp::Segment::new(buffer).expect("just written").set_checksum(checksum);
            }
            (Some(ring), None) => ring.read(self.payload.clone(), payload),
            (None, Some(pseudo)) => {
                tcp::Segment::new(buffer).expect("just written").fill_checksum(pseudo);
            }
            (None, None) => {}
        }
    }
}

impl<A> Stack<A> {
    /// Sends a segment without payload on a flow that has no connection.
    pub fn send_header(&mut self, now: u64, flow: &Flow, header: &Header) {
        let Some(route) = self.network.route(flow.remote.ip()) else { return };
        let segment = Outgoing { flow, header: *header, ring: None, payload: 0..0 };
        self.network.send(now, route, flow.local.ip(), flow.remote.ip(), 0, &segment);
    }
}
