//! Templates: a flow's packets of one size, without the [`stamp`]. Only the stamp differs between these
//! packets.

use super::stamp::{self, Stamp};
use super::traffic::{checksum_and_payload, transport_checksum};
use inlane_wire::checksum::Sum;
use inlane_wire::{Layers, ethernet, ipv4, ipv6};

/// The longest headers in bytes that a template can hold. The generator always copies this many bytes,
/// because a copy of constant length is fast.
pub const HEADER_ROOM: usize = 112;

/// The constant part of all packets of one flow and one size: the headers, and the checksums of all bytes
/// except the [`stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Template {
    /// The headers, with a transport checksum of zero.
    pub header: [u8; HEADER_ROOM],
    /// Length of the frame, in bytes.
    pub length: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
    /// The one's complement sum (RFC 1071) of all bytes that the transport checksum covers, without the
    /// [`stamp`]. The sum is not inverted.
    base: u16,
    /// Length of the headers, in bytes.
    pub header_len: u8,
    /// Offset of the transport checksum in the frame, in bytes.
    pub checksum_at: u8,
    flags: u8,
}

/// Bit of `Template::flags`: the transport protocol is UDP.
const UDP: u8 = 1;
/// Bit of `Template::flags`: the stamp begins at an odd offset of the payload. The two bytes of the stamp's
/// sum are then swapped before they are added to the checksum.
const ODD: u8 = 2;
/// Bit of `Template::flags`: the packet must not arrive at the checker.
const DROPPED: u8 = 4;

const _: () = assert!(size_of::<Template>() == 128);

impl Template {
    /// Creates the template for a frame that ends with a [`stamp`].
    ///
    /// Returns `None` in these cases:
    /// - The frame is neither TCP nor UDP.
    /// - Its headers are longer than [`HEADER_ROOM`], or padding follows its IP packet.
    /// - Its transport checksum is wrong.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let layers = Layers::of(frame).ok()??;
        let (checksum_at, payload) = checksum_and_payload(frame, &layers)?;
        let stamp_at = frame.len().checked_sub(stamp::BYTES).filter(|&at| at >= payload)?;
        if payload > HEADER_ROOM || layers.end != frame.len() {
            return None;
        }
        let mut header = [0; HEADER_ROOM];
        header[..payload].copy_from_slice(&frame[..payload]);
        header[checksum_at..checksum_at + 2].fill(0);
        let length = (layers.end - layers.transport) as u32;
        let network = &frame[layers.network..];
        let pseudo = if layers.ethertype == ethernet::IPV4 {
            ipv4::Packet::new(network).ok()?.pseudo_sum()
        } else {
            ipv6::Packet::new(network).ok()?.pseudo_sum(layers.protocol, length)
        };
        let base = pseudo
            .add_bytes(&header[layers.transport..payload])
            .add_bytes(&frame[payload..stamp_at])
            .folded();
        let odd = (stamp_at - payload) % 2 == 1;
        let udp = layers.protocol == ipv4::UDP;
        let template = Self {
            header,
            length: frame.len() as u32,
            body_crc: crc_fast::crc32_iscsi(&frame[payload..stamp_at]),
            base,
            header_len: payload as u8,
            checksum_at: checksum_at as u8,
            flags: if udp { UDP } else { 0 } | if odd { ODD } else { 0 },
        };
        let stamp = frame[stamp_at..].first_chunk()?;
        (template.checksum(stamp) == frame[checksum_at..checksum_at + 2]).then_some(template)
    }

    /// Marks the packet as one that must not arrive at the checker.
    pub fn into_dropped(self) -> Self {
        Self { flags: self.flags | DROPPED, ..self }
    }

    /// Returns true if the packet must not arrive at the checker.
    pub fn is_dropped(&self) -> bool {
        self.flags & DROPPED != 0
    }

    /// Returns the transport checksum of the packet with this stamp, in network byte order.
    #[inline(always)]
    pub fn checksum(&self, stamp: &[u8; stamp::BYTES]) -> [u8; 2] {
        let sum = Sum::new().add(self.base).add(stamp::sum(stamp, self.flags & ODD != 0));
        transport_checksum(sum, self.flags & UDP != 0).to_be_bytes()
    }

    /// Writes the packet into `bytes`, which must hold [`HEADER_ROOM`] bytes and the packet.
    #[inline(always)]
    pub fn write(&self, bytes: &mut [u8], body: &[u8], stamp: Stamp) {
        let (header, length) = (self.header_len as usize, self.length as usize);
        let stamp_at = length - stamp::BYTES;
        bytes[..HEADER_ROOM].copy_from_slice(&self.header);
        bytes[header..stamp_at].copy_from_slice(&body[..stamp_at - header]);
        let stamp = stamp.to_bytes(self.body_crc);
        bytes[stamp_at..length].copy_from_slice(&stamp);
        let at = self.checksum_at as usize;
        bytes[at..at + 2].copy_from_slice(&self.checksum(&stamp));
    }

    /// Returns true if `bytes` is the packet with `stamp`: the same headers and body, and right checksums.
    /// The caller has read `stamp` from the end of `bytes`.
    #[inline(always)]
    pub fn matches(&self, bytes: &[u8], body: &[u8], stamp: Stamp) -> bool {
        let (header, at) = (self.header_len as usize, self.checksum_at as usize);
        if bytes.len() != self.length as usize {
            return false;
        }
        let stamp_at = bytes.len() - stamp::BYTES;
        // Use the stored CRC of the expected body, because computing the CRC of `bytes` would be slower. This
        // is correct because the bodies are compared below.
        let stamp = stamp.to_bytes(self.body_crc);
        bytes[..at] == self.header[..at]
            && bytes[at..at + 2] == self.checksum(&stamp)
            && bytes[at + 2..header] == self.header[at + 2..header]
            && bytes[stamp_at..] == stamp
            && bytes[header..stamp_at] == body[..stamp_at - header]
    }
}
