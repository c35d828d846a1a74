//! The offsets of a frame's layers, and the 5-tuple of its flow.

use crate::{Result, ethernet, ipv4, ipv6};
use std::net::IpAddr;

/// The layers of an Ethernet frame that carries IP. Offsets count from the frame's first byte and lie within
/// the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// The offset of the IP header.
    pub network: usize,
    /// [`ethernet::IPV4`] or [`ethernet::IPV6`].
    pub ethertype: u16,
    /// The offset of the upper layer's header, for example TCP's, after IP options and extension headers.
    pub transport: usize,
    /// The IP protocol number of the upper layer, for example 6 for TCP.
    pub protocol: u8,
    /// The offset at which the IP packet ends. Padding may follow. If the capture has cut the packet short,
    /// this is the end of the frame.
    pub end: usize,
    /// True for an IP fragment other than the first one of its packet. The data at `transport` then has no
    /// upper-layer header. False for all other packets.
    pub later_fragment: bool,
}

impl Layers {
    /// Finds the layers of `frame`. Returns `None` if the frame does not carry IP.
    ///
    /// # Errors
    /// If the frame ends within a header, or a field has an impossible value.
    pub fn of(frame: &[u8]) -> Result<Option<Self>> {
        let frame = ethernet::Frame::new(frame)?;
        let network = frame.payload_offset();
        let ethertype = frame.payload_ethertype();
        let payload = &frame.bytes()[network..];
        Ok(match ethertype {
            ethernet::IPV4 => {
                let packet = ipv4::Packet::new(payload)?;
                Some(Self {
                    network,
                    ethertype,
                    transport: network + packet.header_len(),
                    protocol: packet.protocol(),
                    end: network + packet.end(),
                    later_fragment: packet.fragment_offset() > 0,
                })
            }
            ethernet::IPV6 => {
                let packet = ipv6::Packet::new(payload)?;
                let upper = packet.upper()?;
                Some(Self {
                    network,
                    ethertype,
                    transport: network + upper.offset,
                    protocol: upper.protocol,
                    end: network + packet.end(),
                    later_fragment: upper.fragment_offset.is_some_and(|offset| offset > 0),
                })
            }
            _ => None,
        })
    }
}

/// The addresses, protocol and ports that identify a flow. Ports are 0 if the protocol has none, and in later
/// fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiveTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// The IP protocol number of SCTP. The ports are at the same offsets as in TCP and UDP.
const SCTP: u8 = 132;

impl FiveTuple {
    /// Returns the 5-tuple of a frame, or `None` if the frame does not carry IP. The ports are 0 for
    /// fragments other than the first, and for protocols other than TCP, UDP and SCTP.
    ///
    /// # Errors
    /// If the frame ends within a header, or if a field has an impossible value.
    pub fn of(frame: &[u8]) -> Result<Option<Self>> {
        let Some(layers) = Layers::of(frame)? else { return Ok(None) };
        let packet = &frame[layers.network..];
        let (source, destination) = if layers.ethertype == ethernet::IPV4 {
            let packet = ipv4::Packet::new(packet)?;
            (IpAddr::V4(packet.source()), IpAddr::V4(packet.destination()))
        } else {
            let packet = ipv6::Packet::new(packet)?;
            (IpAddr::V6(packet.source()), IpAddr::V6(packet.destination()))
        };
        let mut tuple =
            Self { source, destination, protocol: layers.protocol, source_port: 0, destination_port: 0 };
        if matches!(layers.protocol, ipv4::TCP | ipv4::UDP | SCTP) && !layers.later_fragment {
            let upper = &frame[layers.transport..layers.end];
            crate::view::require("ports", upper, 4)?;
            tuple.source_port = u16::from_be_bytes([upper[0], upper[1]]);
            tuple.destination_port = u16::from_be_bytes([upper[2], upper[3]]);
        }
        Ok(Some(tuple))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    fn built(v6: bool, tcp: bool, vlan: bool, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let ether = PacketBuilder::ethernet2([1; 6], [2; 6]);
        let mut out = Vec::new();
        macro_rules! upper {
            ($builder:expr) => {
                match tcp {
                    true => $builder.tcp(ports.0, ports.1, 7, 100).write(&mut out, payload).unwrap(),
                    false => $builder.udp(ports.0, ports.1).write(&mut out, payload).unwrap(),
                }
            };
        }
        match (v6, vlan) {
            (false, false) => upper!(ether.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9)),
            (false, true) => {
                upper!(ether.single_vlan(5.try_into().unwrap()).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9))
            }
            (true, false) => upper!(ether.ipv6([1; 16], [2; 16], 9)),
            (true, true) => upper!(ether.single_vlan(5.try_into().unwrap()).ipv6([1; 16], [2; 16], 9)),
        }
        out
    }

    proptest! {
        #[test]
        fn finds_the_layers_that_etherparse_wrote(v6: bool, tcp: bool, vlan: bool, ports: (u16, u16),
                                       payload in proptest::collection::vec(any::<u8>(), 0..64), padding in 0usize..20) {
            let mut frame = built(v6, tcp, vlan, ports, &payload);
            let end = frame.len();
            frame.resize(end + padding, 0xee);
            let layers = Layers::of(&frame).unwrap().unwrap();
            prop_assert_eq!(layers.end, end);
            prop_assert_eq!(layers.protocol, if tcp { 6 } else { 17 });
            prop_assert_eq!(layers.network, if vlan { 18 } else { 14 });
            let tuple = FiveTuple::of(&frame).unwrap().unwrap();
            prop_assert_eq!((tuple.source_port, tuple.destination_port), ports);
            prop_assert_eq!(tuple.source.is_ipv6(), v6);
        }

        #[test]
        fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..128), kind in 0usize..4) {
            let mut bytes = bytes;
            if bytes.len() > 15 {
                let ethertype = [[8u8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8]][kind];
                bytes[12..14].copy_from_slice(&ethertype);
                bytes[14] = [0x45, 0x60, 0, 0][kind];
            }
            if let Ok(Some(layers)) = Layers::of(&bytes) {
                prop_assert!(layers.network <= layers.transport && layers.transport <= layers.end);
                prop_assert!(layers.end <= bytes.len());
            }
            let _ = FiveTuple::of(&bytes);
        }
    }
}
