//! Builds frames of all kinds and passes them to the engine: TCP segments of its flows, datagrams, fragments,
//! ICMP, ARP and neighbour discovery.

use super::input::Input;
use super::world::{Flow, World};
use super::{MAC, OURS, PEER, PEER_MAC};
use inlane_wire::checksum::{self, Sum};
use inlane_wire::ethernet::{self, Frame, Mac};
use inlane_wire::{arp, icmp, ipv4, ipv6, ndp, tcp, udp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl World {
    /// Hands an IP packet with `payload` and correct checksums to the engine. The input may choose other
    /// addresses, change a byte, cut the packet short or fragment it.
    pub(crate) fn deliver(&mut self, input: &mut Input<'_>, v6: bool, protocol: u8, payload: Vec<u8>) {
        let source = if input.byte() == 1 { random_address(input, v6) } else { PEER[usize::from(v6)] };
        let destination = if input.byte() == 1 { random_address(input, v6) } else { OURS[usize::from(v6)] };
        let mut frame = ip(source, destination, protocol, payload);
        if let Some((at, value)) = (input.byte() == 1).then(|| (usize::from(input.byte()), input.byte()))
            && let Some(byte) = frame.get_mut(at)
        {
            *byte = value;
            repair(&mut frame);
        }
        match input.byte() {
            1 => self.fragments(input, v6, &frame),
            2 => self.receive(&frame[..usize::from(input.byte()).min(frame.len())]),
            _ => self.receive(&frame),
        }
    }

    /// Cuts an IP packet into fragments, and hands them to the engine. The input chooses their size and
    /// order, and may leave out, repeat or shift fragments.
    pub(crate) fn fragments(&mut self, input: &mut Input<'_>, v6: bool, frame: &[u8]) {
        let header = ethernet::HEADER + if v6 { ipv6::HEADER } else { ipv4::HEADER };
        if frame.len() <= header {
            return;
        }
        let data = &frame[header..];
        let size = (usize::from(input.byte()) & !7).max(8);
        let id = u16::from(input.byte());
        let (skip, repeat, odd) = (usize::from(input.byte()), usize::from(input.byte()), input.byte());
        let parts: Vec<(usize, &[u8])> =
            data.chunks(size).enumerate().map(|(index, part)| (index * size, part)).collect();
        for index in 0..parts.len() {
            let (offset, part) = parts[if odd & 1 == 1 { parts.len() - 1 - index } else { index }];
            if skip % 16 == 15 && skip / 16 == index {
                continue;
            }
            let more = offset + part.len() < data.len();
            let offset = if odd & 2 == 2 { offset + 8 * (odd as usize >> 4) } else { offset };
            let mut bytes = frame[..header].to_vec();
            if v6 {
                let next = bytes[ethernet::HEADER + 6];
                bytes[ethernet::HEADER + 6] = 44;
                let offset = (offset as u16) & !7 | u16::from(more);
                bytes.extend_from_slice(&[next, 0]);
                bytes.extend_from_slice(&offset.to_be_bytes());
                bytes.extend_from_slice(&[0, 0, 0, id as u8]);
            }
            bytes.extend_from_slice(part);
            let ip = &mut bytes[ethernet::HEADER..];
            let len = ip.len();
            if v6 {
                ipv6::Packet::new(ip).unwrap().set_payload_length((len - ipv6::HEADER) as u16);
            } else if let Ok(mut packet) = ipv4::Packet::new(ip) {
                packet.set_total_length(len as u16);
                packet.set_id(id);
                packet.set_flags_and_offset((offset / 8) as u16 & 0x1fff | if more { 0x2000 } else { 0 });
                packet.fill_checksum();
            }
            for _ in 0..1 + usize::from(repeat % 16 == 15) {
                self.receive(&bytes);
            }
        }
    }

    /// Passes a TCP segment to the engine. The segment belongs to an existing flow, or comes from a new peer
    /// port and goes to a port that may have a listener.
    pub(crate) fn segment(&mut self, input: &mut Input<'_>) {
        let choice = usize::from(input.byte());
        let mut flow = match self.flows.len() {
            0 => Flow { local: 8080, remote: 4000, ..Flow::default() },
            count if choice < 224 => self.flows[choice % count],
            _ => Flow {
                v6: choice & 1 == 1,
                local: 8080 + (choice as u16 >> 1 & 3),
                remote: 4000 + u16::from(input.byte()),
                sequence: input.number(),
                ..Flow::default()
            },
        };
        let kinds = input.byte();
        let new = flow.acknowledgment == 0;
        let mut options = inlane_tcp::Options::default();
        if kinds & 1 == 0 {
            flow.timestamp = flow.timestamp.wrapping_add(1);
            options.timestamps =
                Some(inlane_tcp::Timestamps { value: input.near(1000), echo: flow.timestamp });
        }
        if kinds & 2 != 0 {
            for _ in 0..input.byte() & 3 {
                let left = input.near(flow.acknowledgment);
                options.sack.push(left, left.wrapping_add(input.short().into()));
            }
        }
        if kinds & 4 != 0 || new {
            options.mss = Some(input.choose(&[1460, 536, 0, 1, 88, 65535]));
            options.window_scale = Some(input.choose(&[7, 0, 14, 15, 255]));
            options.sack_permitted = kinds & 8 == 0;
        }
        let flags = match input.byte() {
            0..=99 if new => tcp::SYN,
            0..=99 => tcp::ACK,
            100..=149 => tcp::ACK | tcp::FIN,
            150..=169 => tcp::SYN | tcp::ACK,
            170..=189 => tcp::SYN,
            190..=199 => tcp::RST,
            200..=209 => tcp::RST | tcp::ACK,
            flags => flags.wrapping_mul(31),
        };
        let payload = vec![b'x'; if kinds & 16 != 0 { usize::from(input.short()) % 1400 } else { 0 }];
        let header = inlane_tcp::Header {
            sequence: if kinds & 32 != 0 { input.near(flow.sequence) } else { flow.sequence },
            acknowledgment: if kinds & 64 != 0 {
                input.near(flow.acknowledgment)
            } else {
                flow.acknowledgment
            },
            window: if kinds & 128 != 0 { input.short() } else { 60_000 },
            flags,
            options,
        };
        let mut bytes = vec![0; header.wire_len() + payload.len()];
        let at = header.write(flow.remote, flow.local, &mut bytes).unwrap();
        bytes.truncate(at);
        bytes.extend_from_slice(&payload);
        self.deliver(input, flow.v6, ipv4::TCP, bytes);
    }

    pub(crate) fn datagram(&mut self, input: &mut Input<'_>) {
        let v6 = input.byte() & 1 == 1;
        let data = match input.byte() {
            0..=9 => vec![7; usize::from(input.short()) % 40_000],
            _ => input.bytes().to_vec(),
        };
        let mut bytes = vec![0; udp::HEADER + data.len()];
        bytes[udp::HEADER..].copy_from_slice(&data);
        let mut view = udp::Datagram::new(&mut bytes[..]).unwrap();
        view.set_source_port(5000 + u16::from(input.byte() & 3));
        view.set_destination_port(9000 + u16::from(input.byte() & 7));
        view.set_length(if input.byte() == 1 { input.short() } else { (udp::HEADER + data.len()) as u16 });
        self.deliver(input, v6, ipv4::UDP, bytes);
    }

    pub(crate) fn control_message(&mut self, input: &mut Input<'_>) {
        let v6 = input.byte() & 1 == 1;
        let kind = input.choose(&[
            icmp::UNREACHABLE,
            icmp::ECHO_REQUEST,
            icmp::UNREACHABLE_V6,
            icmp::TOO_BIG_V6,
            icmp::ECHO_REQUEST_V6,
            ndp::SOLICITATION,
            ndp::ADVERTISEMENT,
        ]);
        let code = input.choose(&[icmp::FRAGMENTATION_NEEDED, 0, 1, 2, 3, 255]);
        let mut bytes = vec![0; icmp::HEADER];
        let mut message = icmp::Message::new(&mut bytes[..]).unwrap();
        message.set_kind(kind);
        message.set_code(code);
        message.set_mtu_v6(input.choose(&[1400, 576, 68, 0, 1280, 65535, u32::MAX]));
        if kind == ndp::SOLICITATION || kind == ndp::ADVERTISEMENT {
            let IpAddr::V6(target) = (if input.byte() & 1 == 0 { OURS[1] } else { PEER[1] }) else { return };
            bytes.extend_from_slice(&target.octets());
            bytes.extend_from_slice(input.bytes());
        } else {
            bytes.extend_from_slice(&self.quoted);
            if input.byte() == 1 {
                let at = icmp::HEADER + usize::from(input.byte());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = input.byte();
                }
            }
        }
        let mut frame =
            ip(PEER[usize::from(v6)], OURS[usize::from(v6)], if v6 { ipv6::ICMP } else { ipv4::ICMP }, bytes);
        if v6 {
            ipv6::Packet::new(&mut frame[ethernet::HEADER..]).unwrap().set_hop_limit(ndp::HOP_LIMIT);
        }
        self.receive(&frame);
    }

    pub(crate) fn address_resolution(&mut self, input: &mut Input<'_>) {
        let mut frame = vec![0; ethernet::HEADER + arp::HEADER];
        let mut view = Frame::new(&mut frame[..]).unwrap();
        view.set_destination(Mac::BROADCAST);
        view.set_ethertype(ethernet::ARP);
        let mut message = arp::Packet::init(&mut frame[ethernet::HEADER..]).unwrap();
        message.set_operation(input.choose(&[arp::REQUEST, arp::REPLY, 3, 0]));
        message.set_sender_mac(input.choose(&[PEER_MAC, Mac::BROADCAST, MAC, Mac([0; 6])]));
        message.set_sender(Ipv4Addr::new(10, 0, 0, input.byte()));
        message.set_target(Ipv4Addr::new(10, 0, 0, input.choose(&[1, 2, 0, 255])));
        if input.byte() == 1 {
            let at = usize::from(input.byte()) % frame.len();
            frame[at] = input.byte();
        }
        self.receive(&frame);
    }
}

pub(crate) fn random_address(input: &mut Input<'_>, v6: bool) -> IpAddr {
    match v6 {
        false => Ipv4Addr::from(input.number()).into(),
        true => Ipv6Addr::from(u128::from(input.number()) << 96 | u128::from(input.byte())).into(),
    }
}

/// Makes an IP packet with correct checksums, in an Ethernet frame that is addressed to the engine.
pub(crate) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let header = if source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER };
    let mut bytes = vec![0; ethernet::HEADER + header + payload.len()];
    let mut frame = Frame::new(&mut bytes[..]).unwrap();
    frame.set_destination(MAC);
    frame.set_source(PEER_MAC);
    frame.set_ethertype(if source.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 });
    let packet = &mut bytes[ethernet::HEADER..];
    packet[header..].copy_from_slice(&payload);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = ipv4::Packet::init(packet).unwrap();
            packet.set_protocol(protocol);
            packet.set_source(source);
            packet.set_destination(destination);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = ipv6::Packet::init(packet).unwrap();
            packet.set_next_header(protocol);
            packet.set_source(source);
            packet.set_destination(destination);
        }
        _ => unreachable!("both addresses have one family"),
    }
    repair(&mut bytes);
    bytes
}

/// Corrects the IP checksum and the TCP, UDP or ICMP checksum of a frame.
pub(crate) fn repair(frame: &mut [u8]) {
    let Some(bytes) = frame.get_mut(ethernet::HEADER..) else { return };
    let (protocol, pseudo, range) = if bytes.first().map_or(0, |byte| byte >> 4) == 4 {
        let Ok(mut packet) = ipv4::Packet::new(&mut bytes[..]) else { return };
        packet.fill_checksum();
        (packet.protocol(), packet.pseudo_sum(), packet.header_len()..packet.end())
    } else {
        let Ok(packet) = ipv6::Packet::new(&mut bytes[..]) else { return };
        let Ok(upper) = packet.upper() else { return };
        let range = upper.offset.min(packet.end())..packet.end();
        (upper.protocol, packet.pseudo_sum(upper.protocol, range.len() as u32), range)
    };
    let payload = &mut bytes[range];
    match protocol {
        ipv4::TCP => drop(tcp::Segment::new(payload).map(|mut segment| segment.fill_checksum(pseudo))),
        ipv4::UDP => drop(udp::Datagram::new(payload).map(|mut datagram| datagram.fill_checksum(pseudo))),
        ipv4::ICMP | ipv6::ICMP if payload.len() >= icmp::HEADER => {
            payload[2..4].fill(0);
            let start = if protocol == ipv6::ICMP { pseudo } else { Sum::new() };
            let sum = start.add_bytes(payload).finish();
            payload[2..4].copy_from_slice(&sum.to_be_bytes());
            let _ = checksum::of(payload);
        }
        _ => {}
    }
}
