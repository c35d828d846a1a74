//! A flow's packet of one size, ready but for its stamp: what the generator copies and the checker compares with.

use super::stamp::{self, Stamp};
use super::traffic::{checksum_and_payload, transport_checksum};
use inlane_wire::checksum::Sum;
use inlane_wire::{Layers, ethernet, ipv4, ipv6};

/// Most bytes in front of a payload. The generator copies all of them, whatever the header's length: a copy of constant
/// length is a few vector moves.
pub const HEADER_ROOM: usize = 112;

/// Headers and what follows from them. Two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Template {
    /// The headers, transport checksum zero.
    pub header: [u8; HEADER_ROOM],
    /// Bytes of the whole frame.
    pub length: u32,
    /// CRC of the body.
    pub body_crc: u32,
    /// Sum of all that the transport checksum covers but the stamp.
    base: u16,
    /// Bytes of the headers.
    pub header_len: u8,
    /// Where the transport checksum lies.
    pub checksum_at: u8,
    flags: u8,
}

const UDP: u8 = 1;
const ODD: u8 = 2;
const DROPPED: u8 = 4;

impl Template {
    /// From a whole frame; `None` when it is no TCP or UDP frame that ends with a stamp, has longer headers than there is
    /// room for, or a transport checksum that is not right (none at all, say).
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
            body_crc: crc32c::crc32c(&frame[payload..stamp_at]),
            base,
            header_len: payload as u8,
            checksum_at: checksum_at as u8,
            flags: if udp { UDP } else { 0 } | if odd { ODD } else { 0 },
        };
        let stamp = frame[stamp_at..].first_chunk()?;
        (template.checksum(stamp) == frame[checksum_at..checksum_at + 2]).then_some(template)
    }

    /// What stands for a flow that is not to arrive at all.
    pub fn dropped(self) -> Self {
        Self { flags: self.flags | DROPPED, ..self }
    }

    /// This flow is not to arrive at all.
    pub fn is_dropped(&self) -> bool {
        self.flags & DROPPED != 0
    }

    /// The transport checksum of a packet with this stamp, as it lies.
    #[inline(always)]
    pub fn checksum(&self, stamp: &[u8; stamp::BYTES]) -> [u8; 2] {
        let sum = Sum::new().add(self.base).add(stamp::sum(stamp, self.flags & ODD != 0));
        transport_checksum(sum, self.flags & UDP != 0).to_be_bytes()
    }

    /// Writes the packet into `bytes`: at least [`HEADER_ROOM`] and at least its length.
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

    /// Whether `bytes` is the packet of `stamp`, which stands at its end: headers with the right checksum, `body`, and the
    /// stamp's CRC.
    #[inline(always)]
    pub fn matches(&self, bytes: &[u8], body: &[u8], stamp: Stamp) -> bool {
        let (header, at) = (self.header_len as usize, self.checksum_at as usize);
        if bytes.len() != self.length as usize {
            return false;
        }
        let stamp_at = bytes.len() - stamp::BYTES;
        // The body is known: comparing it is faster than its CRC, and the stamp's own goes on from there.
        let stamp = stamp.to_bytes(self.body_crc);
        bytes[..at] == self.header[..at]
            && bytes[at..at + 2] == self.checksum(&stamp)
            && bytes[at + 2..header] == self.header[at + 2..header]
            && bytes[stamp_at..] == stamp
            && bytes[header..stamp_at] == body[..stamp_at - header]
    }
}
