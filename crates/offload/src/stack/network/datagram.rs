//! Sends UDP datagrams, in IP fragments if they are larger than the MTU.

use super::{Network, Route};
use inlane_wire::ethernet::{self, Frame};
use inlane_wire::{ipv4, ipv6, udp};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};

/// IPv4's flag "more fragments": set in all fragments of a packet but the last.
const MORE_V4: u16 = 0x2000;
/// The flag "more fragments" in IPv6's fragment header: set in all fragments of a packet but the last.
const MORE_V6: u16 = 1;
/// The flag of IPv4 packets that forbids routers to fragment them.
const DONT_FRAGMENT: u16 = 0x4000;
/// The length of IPv6's fragment header in bytes (RFC 8200, section 4.5).
const FRAGMENT_HEADER: usize = 8;
/// The Next Header value of IPv6's fragment header.
const FRAGMENT: u8 = 44;

/// The most hosts whose path MTU is stored. The number is limited because an attacker can forge ICMP errors
/// about any number of hosts.
const MOST_PATHS: usize = 1024;
/// How long a path MTU is used before the link's MTU is tried again, in nanoseconds.
const PATH_MTU_NS: u64 = 600_000_000_000;
/// The least path MTU over IPv4, the default of Linux's `min_pmtu`.
const LEAST_PATH_MTU_V4: u16 = 552;
/// The least path MTU over IPv6: every link carries packets of this size (RFC 8200, section 5).
const LEAST_PATH_MTU_V6: u16 = 1280;

/// A UDP datagram to send. Both addresses are of the same family.
pub struct Datagram<'a> {
    /// The source.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
    /// The traffic class.
    pub class: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The payload: at most 65507 bytes over IPv4 and 65527 over IPv6.
    pub data: &'a [u8],
}

/// The fields that tell which packet a fragment belongs to, and where in the packet it lies.
#[derive(Clone, Copy)]
struct Fragment {
    id: u32,
    /// The offset of the fragment in the packet's payload, in bytes; a multiple of 8.
    offset: u16,
    /// True if others follow.
    more: bool,
}

/// The number of sequences of identifications. Destinations share a sequence by a secret hash.
const SEQUENCES: usize = 1024;

/// The identifications of packets that are sent in fragments. They begin at unpredictable numbers and count the packets to a
/// few destinations only, because attackers exploit identifications that they can predict (RFC 7739).
pub struct FragmentIds {
    secret: RandomState,
    /// How many packets each sequence had.
    counts: Vec<u32>,
}

impl Default for FragmentIds {
    fn default() -> Self {
        Self { secret: RandomState::new(), counts: vec![0; SEQUENCES] }
    }
}

impl FragmentIds {
    /// Returns the identification of the next packet from `source` to `destination`.
    fn next(&mut self, source: IpAddr, destination: IpAddr) -> u32 {
        let hash = self.secret.hash_one((source, destination));
        let count = &mut self.counts[hash as usize % SEQUENCES];
        *count = count.wrapping_add(1);
        count.wrapping_add((hash >> 32) as u32)
    }
}

impl Datagram<'_> {
    fn len(&self) -> usize {
        udp::HEADER + self.data.len()
    }

    /// Returns the length of the IP header without extensions.
    fn header(&self) -> usize {
        if self.source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER }
    }

    /// Writes an IP header in front of the payload. The payload is already in `bytes`. It is a whole UDP
    /// datagram or a fragment of one.
    fn write_ip(&self, bytes: &mut [u8], fragment: Option<Fragment>) {
        const FITS: &str = "the packet has room for its header and at most 65535 bytes";
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut packet = ipv4::Packet::init(bytes).expect(FITS);
                packet.set_tos(self.class);
                packet.set_ttl(self.hops);
                packet.set_flags_and_offset(match fragment {
                    None => DONT_FRAGMENT,
                    Some(fragment) => (fragment.offset / 8) | if fragment.more { MORE_V4 } else { 0 },
                });
                packet.set_id(fragment.map_or(0, |fragment| fragment.id as u16));
                packet.set_protocol(ipv4::UDP);
                packet.set_source(source);
                packet.set_destination(destination);
                packet.fill_checksum();
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut packet = ipv6::Packet::init(bytes).expect(FITS);
                packet.set_traffic_class(self.class);
                packet.set_hop_limit(self.hops);
                packet.set_next_header(ipv4::UDP);
                packet.set_source(source);
                packet.set_destination(destination);
                if let Some(fragment) = fragment {
                    packet.set_next_header(FRAGMENT);
                    let header = &mut packet.payload_mut()[..FRAGMENT_HEADER];
                    let place = fragment.offset | if fragment.more { MORE_V6 } else { 0 };
                    header[..2].copy_from_slice(&[ipv4::UDP, 0]);
                    header[2..4].copy_from_slice(&place.to_be_bytes());
                    header[4..].copy_from_slice(&fragment.id.to_be_bytes());
                }
            }
            _ => unreachable!("both addresses of a datagram have one family"),
        }
    }

    /// Writes the UDP datagram, with its checksum if `checked` is set.
    fn write_udp(&self, bytes: &mut [u8], checked: bool) {
        use inlane_wire::checksum::Sum;
        bytes[udp::HEADER..].copy_from_slice(self.data);
        let len = bytes.len();
        let mut datagram = udp::Datagram::new(bytes).expect("the buffer has the datagram's length");
        datagram.set_source_port(self.source.port());
        datagram.set_destination_port(self.destination.port());
        datagram.set_length(len as u16);
        datagram.set_checksum(0);
        if checked {
            let pseudo = match (self.source.ip(), self.destination.ip()) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    Sum::new().add_pseudo_v4(source, destination, ipv4::UDP, len as u32)
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    Sum::new().add_pseudo_v6(source, destination, ipv4::UDP, len as u32)
                }
                _ => unreachable!("both addresses of a datagram have one family"),
            };
            datagram.fill_checksum(pseudo);
        }
    }
}

impl Network {
    /// Returns the path MTU to a host in bytes: the link's MTU, or a smaller one that a router reported less
    /// than 10 minutes ago.
    fn path_mtu(&self, now: u64, host: IpAddr) -> usize {
        let known = self.path_mtus.get(&host).filter(|&&(_, since)| now < since + PATH_MTU_NS);
        known.map_or(self.mtu, |&(mtu, _)| mtu.min(self.mtu)).into()
    }

    /// Records that the path to `host` carries packets of at most `mtu` bytes. Raises a smaller `mtu` to the
    /// least MTU of the host's IP version, because the ICMP message may be forged (RFC 1191, RFC 8201).
    pub fn set_path_mtu(&mut self, now: u64, host: IpAddr, mtu: u32) {
        if self.path_mtus.len() >= MOST_PATHS && !self.path_mtus.contains_key(&host) {
            self.path_mtus.clear();
        }
        let least = if host.is_ipv4() { LEAST_PATH_MTU_V4 } else { LEAST_PATH_MTU_V6 };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(least);
        self.path_mtus.insert(host, (mtu, now));
    }

    /// Sends a UDP datagram. Returns false if it was dropped.
    pub fn send_datagram(&mut self, now: u64, route: Route, datagram: &Datagram<'_>) -> bool {
        let header = datagram.header();
        let len = header + datagram.len();
        match route {
            Route::Own => {
                let mut bytes = self.spare_own.pop().unwrap_or_default();
                bytes.resize(len, 0);
                datagram.write_udp(&mut bytes[header..], false);
                datagram.write_ip(&mut bytes, None);
                self.own.push_back(bytes);
                self.counters.own_packets += 1;
                true
            }
            Route::Port(hop) if len <= self.path_mtu(now, datagram.destination.ip()) => {
                self.send_packet(now, hop, datagram, len, |ip| {
                    datagram.write_udp(&mut ip[header..], true);
                    datagram.write_ip(ip, None);
                })
            }
            Route::Port(hop) => self.send_fragments(now, hop, datagram),
        }
    }

    fn send_fragments(&mut self, now: u64, hop: IpAddr, datagram: &Datagram<'_>) -> bool {
        let id = self.fragment_ids.next(datagram.source.ip(), datagram.destination.ip());
        let mut whole = std::mem::take(&mut self.scratch);
        whole.resize(datagram.len(), 0);
        datagram.write_udp(&mut whole, true);
        let extension = if datagram.source.is_ipv4() { 0 } else { FRAGMENT_HEADER };
        let header = datagram.header() + extension;
        let room = (self.path_mtu(now, datagram.destination.ip()) - header) & !7;
        let mut sent = true;
        for (index, part) in whole.chunks(room).enumerate() {
            let offset = index * room;
            let fragment = Fragment { id, offset: offset as u16, more: offset + part.len() < whole.len() };
            sent = sent
                && self.send_packet(now, hop, datagram, header + part.len(), |ip| {
                    ip[header..].copy_from_slice(part);
                    datagram.write_ip(ip, Some(fragment));
                });
        }
        self.scratch = whole;
        sent
    }

    /// Sends an IP packet of `len` bytes that `write` writes.
    fn send_packet(
        &mut self,
        now: u64,
        hop: IpAddr,
        datagram: &Datagram<'_>,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        let Some(mut packet) = self.allocate(ethernet::HEADER + len) else { return false };
        // SAFETY: the packet was just allocated, so nothing else uses it. Its length is at most the length of
        // its buffer, and the CPU maps the buffer.
        let bytes = unsafe { packet.bytes_mut() };
        let mut frame = Frame::new(&mut *bytes).expect("the packet has room for the header");
        frame.set_source(self.mac);
        frame.set_ethertype(if datagram.source.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 });
        write(&mut bytes[ethernet::HEADER..]);
        self.send_to(now, hop, &mut packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifications_of_one_destination_tell_nothing_of_those_of_others() {
        let mut ids = FragmentIds::default();
        let source = "10.0.0.1".parse().unwrap();
        let destinations: Vec<IpAddr> = (0..64).map(|n| IpAddr::from([10, 0, 1, n])).collect();
        let first: Vec<u32> = destinations.iter().map(|&one| ids.next(source, one)).collect();
        let second: Vec<u32> = destinations.iter().map(|&one| ids.next(source, one)).collect();
        // Few of 64 destinations share one of 1024 sequences.
        let alone =
            first.iter().zip(&second).filter(|(first, second)| first.wrapping_add(1) == **second).count();
        let successive = first.windows(2).filter(|pair| pair[0].wrapping_add(1) == pair[1]).count();
        assert!(alone > 48 && successive < 4, "{alone} {successive}");
    }
}
