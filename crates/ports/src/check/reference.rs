//! What packet functions are to make of a frame, written down a second time: in Rust, from the RFCs, with [`inlane_wire`], and not
//! from the functions' own source.

use inlane_core::{Error, Result};
use inlane_wire::{FiveTuple, Layers, checksum, ethernet, icmp, ipv4, ipv6, tcp, udp};
use std::net::IpAddr;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sent on.
    Forwarded,
    /// Sent to the port of this number.
    Port(u16),
    /// Not sent.
    Dropped,
}

impl Fate {
    /// Returns true if the frame arrives at the port of this number. Frames without a port in their verdict go to port 0.
    pub fn arrives_at(self, number: u16) -> bool {
        match self {
            Fate::Forwarded => number == 0,
            Fate::Port(port) => port == number,
            Fate::Dropped => false,
        }
    }
}

/// An expectation.
pub trait Reference: Send + Sync {
    /// What results call it.
    fn name(&self) -> &str;

    /// Does to `frame` what the function has to do.
    fn apply(&self, frame: &mut Vec<u8>) -> Fate;

    /// The outcome depends on more than a packet's headers without their transport checksum: payload, say, or packets
    /// before. Checking takes longer then.
    fn sees_payload(&self) -> bool {
        false
    }
}

/// The reference of the function that the command line names so (`macswap`, `drop-rule:udp:53`).
///
/// # Errors
/// For a function that has none: a user's own, say.
pub fn find(function: &str) -> Result<Box<dyn Reference>> {
    let (name, settings) = function.split_once(':').unwrap_or((function, ""));
    Ok(match name {
        "io" | "flow-count" => Box::new(Simple("io", |_| Fate::Forwarded)),
        "macswap" => Box::new(Simple("macswap", macswap)),
        "l3-decrement" => Box::new(Simple("l3-decrement", l3_decrement)),
        "checksum" => Box::new(Checksum),
        "drop-rule" => Box::new(DropRule::parse(settings)?),
        _ => {
            return Err(Error::Invalid {
                what: format!("check of function {function}"),
                why: "there is no reference of it to check against; check io, macswap, l3-decrement, flow-count, \
                      checksum or drop-rule, or send to another port"
                    .into(),
            });
        }
    })
}

struct Simple(&'static str, fn(&mut [u8]) -> Fate);

impl Reference for Simple {
    fn name(&self) -> &str {
        self.0
    }

    fn apply(&self, frame: &mut Vec<u8>) -> Fate {
        self.1(frame)
    }
}

fn macswap(frame: &mut [u8]) -> Fate {
    // Two addresses are there in frames too short for an ethertype too.
    if let Some((destination, rest)) = frame.split_first_chunk_mut::<6>()
        && let Some(source) = rest.first_chunk_mut::<6>()
    {
        std::mem::swap(destination, source);
    }
    Fate::Forwarded
}

fn l3_decrement(frame: &mut [u8]) -> Fate {
    let Ok(mut frame) = ethernet::Frame::new(frame) else { return Fate::Forwarded };
    match frame.payload_ethertype() {
        ethernet::IPV4 => match ipv4::Packet::new(frame.payload_mut()) {
            Ok(packet) if packet.ttl() <= 1 => Fate::Dropped,
            Ok(mut packet) => {
                packet.decrement_ttl();
                Fate::Forwarded
            }
            Err(_) => Fate::Forwarded,
        },
        ethernet::IPV6 => match ipv6::Packet::new(frame.payload_mut()) {
            Ok(packet) if packet.hop_limit() <= 1 => Fate::Dropped,
            Ok(mut packet) => {
                packet.set_hop_limit(packet.hop_limit() - 1);
                Fate::Forwarded
            }
            Err(_) => Fate::Forwarded,
        },
        _ => Fate::Forwarded,
    }
}

/// Drops what has a wrong checksum of IPv4, TCP, UDP or ICMP.
struct Checksum;

impl Reference for Checksum {
    fn name(&self) -> &str {
        "checksum"
    }

    fn apply(&self, frame: &mut Vec<u8>) -> Fate {
        match checksum_right(frame) {
            Some(false) => Fate::Dropped,
            _ => Fate::Forwarded,
        }
    }

    fn sees_payload(&self) -> bool {
        true
    }
}

/// Whether the checksums of a frame are right; `None` when there is nothing to check.
fn checksum_right(frame: &[u8]) -> Option<bool> {
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

/// Drops, or sends to a port, what the first matching rule says.
struct DropRule {
    rules: Vec<(Match, Fate)>,
}

enum Match {
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
                what: format!("drop-rule:{text}"),
                why: format!(
                    "the checker cannot read rule '{rule}'; write for example udp:53 or src:10.0.0.0/8"
                ),
            })
        });
        Ok(Self { rules: rules.collect::<Result<_>>()? })
    }

    fn rule(text: &str) -> Option<(Match, Fate)> {
        let (what, fate) = match text.split_once('@') {
            None => (text, Fate::Dropped),
            Some((what, port)) => (what, Fate::Port(port.parse().ok()?)),
        };
        let (kind, value) = what.split_once(':').map_or((what, None), |(kind, value)| (kind, Some(value)));
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        let matched = match (kind, value) {
            ("all", None) => Match::All,
            ("arp", None) => Match::Ethertype(ethernet::ARP),
            ("ip", None) => Match::Version(ethernet::IPV4),
            ("ip6", None) => Match::Version(ethernet::IPV6),
            ("icmp", None) => Match::Protocol(ipv4::ICMP),
            ("icmp6", None) => Match::Protocol(ipv6::ICMP),
            ("type", Some(value)) => Match::Ethertype(number(value)?),
            ("proto", Some(value)) => Match::Protocol(number(value)?.try_into().ok()?),
            ("udp" | "tcp" | "sctp", value) => {
                let protocol = match kind {
                    "udp" => ipv4::UDP,
                    "tcp" => ipv4::TCP,
                    _ => 132,
                };
                match value {
                    None => Match::Protocol(protocol),
                    Some(ports) => {
                        let (source, ports) = match ports.strip_prefix("from:") {
                            Some(ports) => (true, ports),
                            None => (false, ports),
                        };
                        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                        Match::Ports {
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
                (prefix <= most).then_some(Match::Net { source: kind == "src", address, prefix })?
            }
            _ => return None,
        };
        Some((matched, fate))
    }
}

impl Match {
    fn matches(&self, frame: &[u8], layers: Option<&Layers>, tuple: Option<&FiveTuple>) -> bool {
        match self {
            Match::All => true,
            Match::Ethertype(wanted) => {
                ethernet::Frame::new(frame).is_ok_and(|frame| frame.payload_ethertype() == *wanted)
            }
            Match::Version(wanted) => layers.is_some_and(|layers| layers.ethertype == *wanted),
            Match::Protocol(wanted) => layers.is_some_and(|layers| layers.protocol == *wanted),
            Match::Ports { protocol, source, first, last } => tuple.is_some_and(|tuple| {
                let port = if *source { tuple.source_port } else { tuple.destination_port };
                // A fragment carries no ports, whatever its bytes say.
                tuple.protocol == *protocol && !is_fragment(frame, layers) && (*first..=*last).contains(&port)
            }),
            Match::Net { source, address, prefix } => tuple.is_some_and(|tuple| {
                inside(if *source { tuple.source } else { tuple.destination }, *address, *prefix)
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

fn inside(address: IpAddr, net: IpAddr, prefix: u32) -> bool {
    let shifted = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits().checked_shr(32 - prefix).unwrap_or(0) as u128,
        IpAddr::V6(address) => address.to_bits().checked_shr(128 - prefix).unwrap_or(0),
    };
    address.is_ipv4() == net.is_ipv4() && shifted(address) == shifted(net)
}

impl Reference for DropRule {
    fn name(&self) -> &str {
        "drop-rule"
    }

    fn apply(&self, frame: &mut Vec<u8>) -> Fate {
        let layers = Layers::of(frame).ok().flatten();
        let tuple = FiveTuple::of(frame).ok().flatten();
        self.rules
            .iter()
            .find(|(matched, _)| matched.matches(frame, layers.as_ref(), tuple.as_ref()))
            .map_or(Fate::Forwarded, |(_, fate)| *fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Traffic;
    use crate::generate::stamp::Stamp;

    fn frame(text: &str) -> Vec<u8> {
        let (traffic, _) = Traffic::parse(text).unwrap();
        traffic.frame(traffic.sizes[0], Stamp { flow: 0, number: 0, due_ns: 0 }, &traffic.body())
    }

    #[test]
    fn macs_are_swapped_where_there_are_two() {
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
    fn time_to_live_falls_and_ends() {
        let reference = find("l3-decrement").unwrap();
        for text in ["gen:64", "gen:128,v6,tcp", "gen:90,vlan=5"] {
            let mut frame = frame(text);
            for _ in 0..63 {
                assert_eq!(reference.apply(&mut frame), Fate::Forwarded);
                assert_eq!(checksum_right(&frame), Some(true), "{text}");
            }
            assert_eq!(reference.apply(&mut frame), Fate::Dropped);
        }
        assert_eq!(reference.apply(&mut vec![0; 60]), Fate::Forwarded);
        assert_eq!(reference.apply(&mut vec![0; 3]), Fate::Forwarded);
    }

    #[test]
    fn wrong_checksums_are_dropped() {
        let reference = find("checksum").unwrap();
        for text in ["gen:64", "gen:128,v6,tcp", "gen:90,vlan=5,v6", "gen:91,tcp"] {
            let frame = frame(text);
            assert_eq!(reference.apply(&mut frame.clone()), Fate::Forwarded, "{text}");
            let last = frame.len() - 1;
            let mut broken = frame.clone();
            broken[last] ^= 1;
            assert_eq!(reference.apply(&mut broken), Fate::Dropped, "{text}");
            assert_eq!(reference.apply(&mut frame[..last].to_vec()), Fate::Dropped, "{text} cut");
        }
    }

    #[test]
    fn rules_drop() {
        let fate =
            |rules: &str, text: &str| find(&format!("drop-rule:{rules}")).unwrap().apply(&mut frame(text));
        assert_eq!(fate("tcp", "gen:64"), Fate::Forwarded);
        assert_eq!(fate("tcp,udp@3", "gen:64"), Fate::Port(3));
        assert_eq!(fate("udp:1-65535", "gen:64"), Fate::Dropped);
        assert_eq!(fate("udp:from:80", "gen:64"), Fate::Forwarded);
        assert_eq!(fate("src:198.18.0.0/16", "gen:64"), Fate::Dropped);
        assert_eq!(fate("dst:198.18.0.0/16", "gen:64"), Fate::Forwarded);
        assert_eq!(fate("dst:2001:2::/48", "gen:100,v6"), Fate::Dropped);
        assert_eq!(fate("src:0.0.0.0/0", "gen:100,v6"), Fate::Forwarded);
        assert_eq!(fate("ip6", "gen:100,v6"), Fate::Dropped);
        assert_eq!(fate("type:0x0800", "gen:64,vlan=9"), Fate::Dropped);
        assert!(find("drop-rule:nonsense").is_err() && find("drop-rule:").is_err());
        assert!(find("mine.cu:f").is_err());
    }
}
