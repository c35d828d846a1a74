//! Reference implementations of the built-in packet functions, written from the RFCs with [`inlane_wire`].
//!
//! They share no code with the packet functions, so a checker also finds mistakes in these functions.

use inlane_core::{Error, Result};
use inlane_wire::{FiveTuple, Layers, checksum, ethernet, icmp, ipv4, ipv6, tcp, udp};
use std::net::IpAddr;
use std::sync::Arc;

/// The verdict that a packet function must give on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedVerdict {
    /// Send the frame to port 0.
    Forward,
    /// Send the frame to the port with this number.
    Port(u16),
    /// Drop the frame.
    Drop,
}

impl ExpectedVerdict {
    /// Returns true if the frame must arrive at the port with this number.
    pub fn arrives_at(self, number: u16) -> bool {
        match self {
            ExpectedVerdict::Forward => number == 0,
            ExpectedVerdict::Port(port) => port == number,
            ExpectedVerdict::Drop => false,
        }
    }
}

/// A second, independent implementation of a packet function. A checker uses it to compute the expected
/// packets.
pub trait ReferenceFunction: Send + Sync {
    /// Returns the name under which results list the function.
    fn name(&self) -> &str;

    /// Changes `frame` as the packet function must, and returns the expected verdict.
    fn apply(&self, frame: &mut Vec<u8>) -> ExpectedVerdict;

    /// Returns true if [`ReferenceFunction::apply`] can be called. A function of the user's is compiled after the ports have
    /// been opened.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns true if the result depends on the payload or the transport checksum. The checker then builds
    /// every expected packet, which is slower than templates.
    fn depends_on_payload(&self) -> bool {
        false
    }
}

/// Returns the reference implementation of a built-in function. `function` is its name with its settings,
/// such as `drop-rule:udp:53`.
///
/// # Errors
/// If the function is not built in or has no reference, or if its settings are wrong.
pub fn find(function: &str) -> Result<Arc<dyn ReferenceFunction>> {
    let (name, settings) = function.split_once(':').unwrap_or((function, ""));
    Ok(match name {
        "io" | "flow-count" => Arc::new(Simple("io", |_| ExpectedVerdict::Forward)),
        "macswap" => Arc::new(Simple("macswap", macswap)),
        "l3-decrement" => Arc::new(Simple("l3-decrement", l3_decrement)),
        "checksum" => Arc::new(Checksum),
        "drop-rule" => Arc::new(DropRule::parse(settings)?),
        _ => {
            return Err(Error::Invalid {
                what: format!("check of function {function}").into(),
                why: "there is no reference for it; use io, macswap, l3-decrement, flow-count, checksum or drop-rule".into(),
            });
        }
    })
}

struct Simple(&'static str, fn(&mut [u8]) -> ExpectedVerdict);

impl ReferenceFunction for Simple {
    fn name(&self) -> &str {
        self.0
    }

    fn apply(&self, frame: &mut Vec<u8>) -> ExpectedVerdict {
        self.1(frame)
    }
}

fn macswap(frame: &mut [u8]) -> ExpectedVerdict {
    // Frames of 12 and 13 bytes have two addresses and no ethertype. So the addresses are swapped without
    // reading a whole Ethernet header.
    if let Some((destination, rest)) = frame.split_first_chunk_mut::<6>()
        && let Some(source) = rest.first_chunk_mut::<6>()
    {
        std::mem::swap(destination, source);
    }
    ExpectedVerdict::Forward
}

fn l3_decrement(frame: &mut [u8]) -> ExpectedVerdict {
    let Ok(mut frame) = ethernet::Frame::new(frame) else { return ExpectedVerdict::Forward };
    match frame.payload_ethertype() {
        ethernet::IPV4 => match ipv4::Packet::new(frame.payload_mut()) {
            Ok(packet) if packet.ttl() <= 1 => ExpectedVerdict::Drop,
            Ok(mut packet) => {
                packet.decrement_ttl();
                ExpectedVerdict::Forward
            }
            Err(_) => ExpectedVerdict::Forward,
        },
        ethernet::IPV6 => match ipv6::Packet::new(frame.payload_mut()) {
            Ok(packet) if is_neighbour_discovery(&packet) => ExpectedVerdict::Forward,
            Ok(packet) if packet.hop_limit() <= 1 => ExpectedVerdict::Drop,
            Ok(mut packet) => {
                packet.set_hop_limit(packet.hop_limit() - 1);
                ExpectedVerdict::Forward
            }
            Err(_) => ExpectedVerdict::Forward,
        },
        _ => ExpectedVerdict::Forward,
    }
}

/// Returns true for neighbour discovery (RFC 4861): ICMPv6 types 133 to 137 with hop limit 255. Routers do
/// not forward it.
fn is_neighbour_discovery<T: AsRef<[u8]>>(packet: &ipv6::Packet<T>) -> bool {
    packet.hop_limit() == 255
        && packet.next_header() == 58
        && packet.payload().first().is_some_and(|kind| (133..=137).contains(kind))
}

/// Drops frames with a wrong checksum of IPv4, TCP, UDP or ICMP.
struct Checksum;

impl ReferenceFunction for Checksum {
    fn name(&self) -> &str {
        "checksum"
    }

    fn apply(&self, frame: &mut Vec<u8>) -> ExpectedVerdict {
        match checksums_ok(frame) {
            Some(false) => ExpectedVerdict::Drop,
            _ => ExpectedVerdict::Forward,
        }
    }

    fn depends_on_payload(&self) -> bool {
        true
    }
}

/// Returns true if all checksums of a frame are right. Returns `None` if there is no checksum to check.
fn checksums_ok(frame: &[u8]) -> Option<bool> {
    let layers = Layers::of(frame).ok()??;
    let network = &frame[layers.network..];
    let bytes = &frame[layers.transport..layers.end];
    let length = bytes.len() as u32;
    let pseudo = if layers.ethertype == ethernet::IPV4 {
        let packet = ipv4::Packet::new(network).ok()?;
        if !packet.checksum_ok() || packet.total_length() as usize > network.len() {
            return Some(false);
        }
        if packet.is_fragment() {
            return None;
        }
        packet.pseudo_sum()
    } else {
        let packet = ipv6::Packet::new(network).ok()?;
        if packet.payload_length() as usize > network.len() - ipv6::HEADER {
            return Some(false);
        }
        if packet.upper().ok()?.fragment_offset.is_some() {
            return None;
        }
        packet.pseudo_sum(layers.protocol, length)
    };
    let v4 = layers.ethertype == ethernet::IPV4;
    match layers.protocol {
        ipv4::UDP => {
            let Ok(datagram) = udp::Datagram::new(bytes) else { return Some(false) };
            let length = datagram.length() as usize;
            if !(udp::HEADER..=bytes.len()).contains(&length) {
                return Some(false);
            }
            if datagram.checksum() == 0 {
                return if v4 { None } else { Some(false) };
            }
            Some(datagram.checksum_ok(pseudo))
        }
        ipv4::TCP if bytes.len() < tcp::HEADER => Some(false),
        ipv4::TCP => Some(pseudo.add_bytes(bytes).finish() == 0),
        ipv4::ICMP if v4 => Some(bytes.len() >= icmp::HEADER / 2 && checksum::of(bytes) == 0),
        ipv6::ICMP if !v4 => Some(bytes.len() >= icmp::HEADER / 2 && pseudo.add_bytes(bytes).finish() == 0),
        _ => None,
    }
}

/// Gives a frame the verdict of the first rule that matches. Without a match, forwards the frame.
struct DropRule {
    rules: Vec<(Condition, ExpectedVerdict)>,
}

enum Condition {
    All,
    Ethertype(u16),
    Version(u16),
    Protocol(u8),
    Ports { protocol: u8, source: bool, first: u16, last: u16 },
    Net { source: bool, address: IpAddr, prefix: u32 },
}

impl DropRule {
    fn parse(text: &str) -> Result<Self> {
        let rules = text.split(',').map(|rule| {
            Self::rule(rule).ok_or_else(|| Error::Invalid {
                what: format!("drop-rule:{text}").into(),
                why: format!("'{rule}' is not a rule; give for example udp:53 or src:10.0.0.0/8"),
            })
        });
        Ok(Self { rules: rules.collect::<Result<_>>()? })
    }

    fn rule(text: &str) -> Option<(Condition, ExpectedVerdict)> {
        let (condition, verdict) = match text.split_once('@') {
            None => (text, ExpectedVerdict::Drop),
            Some((condition, port)) => (condition, ExpectedVerdict::Port(port.parse().ok()?)),
        };
        let (kind, value) =
            condition.split_once(':').map_or((condition, None), |(kind, value)| (kind, Some(value)));
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        let matched = match (kind, value) {
            ("all", None) => Condition::All,
            ("arp", None) => Condition::Ethertype(ethernet::ARP),
            ("ip", None) => Condition::Version(ethernet::IPV4),
            ("ip6", None) => Condition::Version(ethernet::IPV6),
            ("icmp", None) => Condition::Protocol(ipv4::ICMP),
            ("icmp6", None) => Condition::Protocol(ipv6::ICMP),
            ("type", Some(value)) => Condition::Ethertype(number(value)?),
            ("proto", Some(value)) => Condition::Protocol(number(value)?.try_into().ok()?),
            ("udp" | "tcp" | "sctp", value) => {
                let protocol = match kind {
                    "udp" => ipv4::UDP,
                    "tcp" => ipv4::TCP,
                    _ => 132,
                };
                match value {
                    None => Condition::Protocol(protocol),
                    Some(ports) => {
                        let (source, ports) = match ports.strip_prefix("from:") {
                            Some(ports) => (true, ports),
                            None => (false, ports),
                        };
                        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                        Condition::Ports {
                            protocol,
                            source,
                            first: first.parse().ok()?,
                            last: last.parse().ok()?,
                        }
                    }
                }
            }
            ("src" | "dst", Some(net)) => {
                let (address, prefix) = net.split_once('/').map_or((net, None), |(a, p)| (a, Some(p)));
                let address: IpAddr = address.parse().ok()?;
                let most = if address.is_ipv4() { 32 } else { 128 };
                let prefix = prefix.map_or(Some(most), |prefix| prefix.parse().ok())?;
                (prefix <= most).then_some(Condition::Net { source: kind == "src", address, prefix })?
            }
            _ => return None,
        };
        Some((matched, verdict))
    }
}

impl Condition {
    fn matches(&self, frame: &[u8], layers: Option<&Layers>, tuple: Option<&FiveTuple>) -> bool {
        match self {
            Condition::All => true,
            Condition::Ethertype(wanted) => {
                ethernet::Frame::new(frame).is_ok_and(|frame| frame.payload_ethertype() == *wanted)
            }
            Condition::Version(wanted) => layers.is_some_and(|layers| layers.ethertype == *wanted),
            Condition::Protocol(wanted) => layers.is_some_and(|layers| layers.protocol == *wanted),
            Condition::Ports { protocol, source, first, last } => tuple.is_some_and(|tuple| {
                let port = if *source { tuple.source_port } else { tuple.destination_port };
                // Behave as the packet function does. A rule with ports never matches a later fragment,
                // because later fragments have no ports. It matches the first fragment of an IPv6 datagram,
                // but not the first fragment of an IPv4 datagram.
                tuple.protocol == *protocol && !is_fragment(frame, layers) && (*first..=*last).contains(&port)
            }),
            Condition::Net { source, address, prefix } => tuple.is_some_and(|tuple| {
                is_in_net(if *source { tuple.source } else { tuple.destination }, *address, *prefix)
            }),
        }
    }
}

fn is_fragment(frame: &[u8], layers: Option<&Layers>) -> bool {
    let Some(layers) = layers else { return false };
    let network = &frame[layers.network..];
    if layers.ethertype == ethernet::IPV4 {
        ipv4::Packet::new(network).is_ok_and(|packet| packet.is_fragment())
    } else {
        layers.later_fragment
    }
}

fn is_in_net(address: IpAddr, net: IpAddr, prefix: u32) -> bool {
    let shifted = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits().checked_shr(32 - prefix).unwrap_or(0) as u128,
        IpAddr::V6(address) => address.to_bits().checked_shr(128 - prefix).unwrap_or(0),
    };
    address.is_ipv4() == net.is_ipv4() && shifted(address) == shifted(net)
}

impl ReferenceFunction for DropRule {
    fn name(&self) -> &str {
        "drop-rule"
    }

    fn apply(&self, frame: &mut Vec<u8>) -> ExpectedVerdict {
        let layers = Layers::of(frame).ok().flatten();
        let tuple = FiveTuple::of(frame).ok().flatten();
        self.rules
            .iter()
            .find(|(matched, _)| matched.matches(frame, layers.as_ref(), tuple.as_ref()))
            .map_or(ExpectedVerdict::Forward, |(_, verdict)| *verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Traffic;
    use crate::generate::stamp::Stamp;

    fn frame(text: &str) -> Vec<u8> {
        let (traffic, _) = Traffic::parse(text).unwrap();
        traffic.frame(traffic.sizes[0], Stamp { flow: 0, sequence: 0, due_ns: 0 }, &traffic.body())
    }

    #[test]
    fn macswap_swaps_complete_addresses_only() {
        let reference = find("macswap").unwrap();
        let before = frame("gen:64");
        let mut after = before.clone();
        reference.apply(&mut after);
        assert_eq!((&after[..6], &after[6..12], &after[12..]), (&before[6..12], &before[..6], &before[12..]));
        for length in 0..12 {
            let mut short = before[..length].to_vec();
            reference.apply(&mut short);
            assert_eq!(short, before[..length]);
        }
    }

    #[test]
    fn l3_decrement_drops_a_frame_whose_time_to_live_ends() {
        let reference = find("l3-decrement").unwrap();
        for text in ["gen:64", "gen:128,v6,tcp", "gen:90,vlan=5"] {
            let mut frame = frame(text);
            for _ in 0..63 {
                assert_eq!(reference.apply(&mut frame), ExpectedVerdict::Forward);
                assert_eq!(checksums_ok(&frame), Some(true), "{text}");
            }
            assert_eq!(reference.apply(&mut frame), ExpectedVerdict::Drop);
        }
        assert_eq!(reference.apply(&mut vec![0; 60]), ExpectedVerdict::Forward);
        assert_eq!(reference.apply(&mut vec![0; 3]), ExpectedVerdict::Forward);
    }

    #[test]
    fn checksum_drops_frames_with_wrong_checksums() {
        let reference = find("checksum").unwrap();
        for text in ["gen:64", "gen:128,v6,tcp", "gen:90,vlan=5,v6", "gen:91,tcp"] {
            let frame = frame(text);
            assert_eq!(reference.apply(&mut frame.clone()), ExpectedVerdict::Forward, "{text}");
            let last = frame.len() - 1;
            let mut broken = frame.clone();
            broken[last] ^= 1;
            assert_eq!(reference.apply(&mut broken), ExpectedVerdict::Drop, "{text}");
            assert_eq!(reference.apply(&mut frame[..last].to_vec()), ExpectedVerdict::Drop, "{text} cut");
        }
    }

    #[test]
    fn drop_rule_follows_the_first_matching_rule() {
        let verdict =
            |rules: &str, text: &str| find(&format!("drop-rule:{rules}")).unwrap().apply(&mut frame(text));
        assert_eq!(verdict("tcp", "gen:64"), ExpectedVerdict::Forward);
        assert_eq!(verdict("tcp,udp@3", "gen:64"), ExpectedVerdict::Port(3));
        assert_eq!(verdict("udp:1-65535", "gen:64"), ExpectedVerdict::Drop);
        assert_eq!(verdict("udp:from:80", "gen:64"), ExpectedVerdict::Forward);
        assert_eq!(verdict("src:198.18.0.0/16", "gen:64"), ExpectedVerdict::Drop);
        assert_eq!(verdict("dst:198.18.0.0/16", "gen:64"), ExpectedVerdict::Forward);
        assert_eq!(verdict("dst:2001:2::/48", "gen:100,v6"), ExpectedVerdict::Drop);
        assert_eq!(verdict("src:0.0.0.0/0", "gen:100,v6"), ExpectedVerdict::Forward);
        assert_eq!(verdict("ip6", "gen:100,v6"), ExpectedVerdict::Drop);
        assert_eq!(verdict("type:0x0800", "gen:64,vlan=9"), ExpectedVerdict::Drop);
        assert!(find("drop-rule:nonsense").is_err() && find("drop-rule:").is_err());
        assert!(find("mine.cu:f").is_err());
    }
}
