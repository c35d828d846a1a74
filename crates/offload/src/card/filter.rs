//! Decides whether a frame from the network is for the card or for its engine.

use inlane_wire::ethernet::{self, Frame, Mac};
use inlane_wire::{arp, ipv4, ipv6, ndp};

/// Who gets a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The card: TCP, errors about it, and what is asked about addresses.
    pub card: bool,
    /// The engine: all other packets, and what is answered about addresses, because both keep neighbours.
    pub engine: bool,
}

pub const CARD: Receiver = Receiver { card: true, engine: false };
pub const ENGINE: Receiver = Receiver { card: false, engine: true };
pub const BOTH: Receiver = Receiver { card: true, engine: true };
pub const NOBODY: Receiver = Receiver { card: false, engine: false };

/// Returns who processes a frame. `mac` is the MAC address that engine and card share. A malformed packet, or one of an unknown
/// protocol, goes to the engine, which counts it.
pub fn receiver(frame: &[u8], mac: Mac) -> Receiver {
    let Ok(header) = Frame::new(frame) else { return CARD };
    if header.destination() != mac && !header.destination().is_multicast() {
        return NOBODY;
    }
    let bytes = &frame[ethernet::HEADER..];
    match header.ethertype() {
        ethernet::ARP => match arp::Packet::new(bytes) {
            Ok(packet) if packet.operation() == arp::REQUEST => CARD,
            _ => BOTH,
        },
        ethernet::IPV4 => of_v4(bytes),
        ethernet::IPV6 => of_v6(bytes),
        _ => ENGINE,
    }
}

/// The offset of the protocol in an IPv4 header.
const PROTOCOL: usize = 9;
/// The offset of the next header in an IPv6 header.
const NEXT_HEADER: usize = 6;

fn of_v4(bytes: &[u8]) -> Receiver {
    let Ok(packet) = ipv4::Packet::new(bytes) else { return ENGINE };
    let payload = packet.payload();
    match packet.protocol() {
        ipv4::TCP => CARD,
        // Destination unreachable, time exceeded and parameter problem quote a packet after 8 bytes (RFC 792).
        ipv4::ICMP if payload.first().is_some_and(|kind| matches!(kind, 3 | 11 | 12)) => {
            let quoted = payload.get(8 + PROTOCOL);
            if quoted == Some(&ipv4::TCP) { CARD } else { ENGINE }
        }
        _ => ENGINE,
    }
}

fn of_v6(bytes: &[u8]) -> Receiver {
    let Ok(Ok(upper)) = ipv6::Packet::new(bytes).map(|packet| packet.upper()) else { return ENGINE };
    let payload = bytes.get(upper.offset..).unwrap_or_default();
    match upper.protocol {
        ipv4::TCP => CARD,
        ipv6::ICMP => match payload.first() {
            Some(&ndp::SOLICITATION) => CARD,
            Some(&ndp::ADVERTISEMENT) => BOTH,
            // Errors have types below 128, and quote a packet after 8 bytes (RFC 4443, section 3).
            Some(0..128) if payload.get(8 + NEXT_HEADER) == Some(&ipv4::TCP) => CARD,
            _ => ENGINE,
        },
        _ => ENGINE,
    }
}
