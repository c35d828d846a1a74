//! Reassembly of IP fragments (RFC 791, RFC 8200 section 4.5) in bounded memory.
//!
//! If fragments overlap, the whole packet is invalid (RFC 5722). Like Linux, this applies the rule to IPv4,
//! too. A repeated fragment is ignored.

use inlane_wire::{ipv4, ipv6};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How long the fragments of a packet are kept, in nanoseconds (RFC 1122 section 3.3.2, RFC 8200 section
/// 4.5).
const LIFETIME_NS: u64 = 60_000_000_000;
/// The most bytes of fragments that are kept. If there are more, the oldest incomplete packets are removed.
const MOST_BYTES: usize = 4 << 20;
/// The overhead in bytes that each fragment and each packet adds towards `MOST_BYTES`, beyond the data.
const COST: usize = 128;

/// `Reassembly::order` may keep this many more entries of complete packets than of incomplete packets. Beyond
/// this limit, all entries of complete packets are removed at once.
const SLACK: usize = 64;

/// The fields that are equal in all fragments of a packet. They identify the packet that a fragment belongs
/// to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Id {
    source: IpAddr,
    destination: IpAddr,
    /// The protocol in IPv4. 0 in IPv6, where the protocol is not among the fields that identify a packet.
    protocol: u8,
    id: u32,
}

/// An incomplete packet: some of its fragments have been received.
#[derive(Default)]
struct Partial {
    /// When the packet is given up, in nanoseconds.
    deadline: u64,
    /// The fragments' data by their offsets. They do not overlap.
    parts: BTreeMap<usize, Vec<u8>>,
    /// The length of the whole payload in bytes. `None` until the last fragment has arrived.
    total: Option<usize>,
    /// From the headers of the fragment with offset 0: the payload's protocol, the traffic class, and the TTL
    /// or hop limit.
    first: Option<(u8, u8, u8)>,
    /// True if the packet is invalid. Its later fragments are dropped.
    refused: bool,
    /// The number of bytes that this packet contributes to the total that `MOST_BYTES` limits.
    cost: usize,
}

/// A fragment.
struct Fragment<'a> {
    id: Id,
    offset: usize,
    more: bool,
    first: (u8, u8, u8),
    data: &'a [u8],
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The fragment completed this IP packet.
    Whole(Vec<u8>),
    /// Other fragments are missing.
    Waits,
    /// The fragment is malformed or contradicts other fragments of the same IP packet.
    Refused,
}

/// The incomplete packets: packets of which some fragments have not arrived yet.
#[derive(Default)]
pub struct Reassembly {
    packets: HashMap<Id, Partial>,
    /// The identities of the packets, in the order in which their first fragments arrived. Each has the
    /// deadline of its packet in nanoseconds. Entries of completed packets may remain here.
    order: VecDeque<(u64, Id)>,
    cost: usize,
}

/// Reads a fragment. Returns `None` if it is malformed.
fn parse(bytes: &[u8]) -> Option<Fragment<'_>> {
    if bytes.first()? >> 4 == 4 {
        let packet = ipv4::Packet::new(bytes).ok()?;
        let (source, destination) = (packet.source().into(), packet.destination().into());
        let (protocol, id) = (packet.protocol(), packet.id().into());
        Some(Fragment {
            id: Id { source, destination, protocol, id },
            offset: packet.fragment_offset().into(),
            more: packet.flags_and_offset() & 0x2000 != 0,
            first: (protocol, packet.tos(), packet.ttl()),
            data: &bytes[packet.header_len()..packet.end()],
        })
    } else {
        let packet = ipv6::Packet::new(bytes).ok()?;
        let fragment = packet.fragment().ok()??;
        let id = Id {
            source: packet.source().into(),
            destination: packet.destination().into(),
            protocol: 0,
            id: fragment.id,
        };
        Some(Fragment {
            id,
            offset: fragment.offset.into(),
            more: fragment.more,
            first: (fragment.next_header, packet.traffic_class(), packet.hop_limit()),
            data: &bytes[fragment.data..packet.end()],
        })
    }
}

impl Partial {
    /// Adds a fragment. Returns false if the fragment overlaps other fragments of its packet, or contradicts
    /// the length of the packet.
    fn add(&mut self, fragment: &Fragment<'_>) -> bool {
        let (start, end) = (fragment.offset, fragment.offset + fragment.data.len());
        if self.parts.get(&start).is_some_and(|part| part.len() == fragment.data.len()) {
            return true;
        }
        let before = self.parts.range(..start).next_back();
        let overlaps = before.is_some_and(|(at, part)| at + part.len() > start)
            || self.parts.range(start..).next().is_some_and(|(&at, _)| at < end);
        let last_end = self.parts.last_key_value().map_or(0, |(at, part)| at + part.len());
        let contradicts = match (self.total, fragment.more) {
            (Some(total), true) => end > total,
            (Some(total), false) => end != total,
            (None, true) => false,
            (None, false) => end < last_end,
        };
        if overlaps || contradicts {
            return false;
        }
        if !fragment.more {
            self.total = Some(end);
        }
        if start == 0 {
            self.first = Some(fragment.first);
        }
        self.parts.insert(start, fragment.data.to_vec());
        true
    }

    /// Returns the packet if no fragment is missing.
    fn whole(&self, id: &Id) -> Option<Vec<u8>> {
        let (total, first) = (self.total?, self.first?);
        let present: usize = self.parts.values().map(Vec::len).sum();
        (present == total).then(|| build(id.source, id.destination, first, self.parts.values(), total))?
    }
}

/// Builds an IP packet without options and extension headers. Returns `None` if the packet would be too long.
fn build<'a>(
    source: IpAddr,
    destination: IpAddr,
    (protocol, class, hops): (u8, u8, u8),
    parts: impl Iterator<Item = &'a Vec<u8>>,
    total: usize,
) -> Option<Vec<u8>> {
    let header = if source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER };
    let mut bytes = Vec::with_capacity(header + total);
    bytes.resize(header, 0);
    parts.for_each(|part| bytes.extend_from_slice(part));
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            write_v4(&mut bytes, source, destination, (protocol, class, hops))?;
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            write_v6(&mut bytes, source, destination, (protocol, class, hops))?;
        }
        _ => return None,
    }
    Some(bytes)
}

fn write_v4(
    bytes: &mut [u8],
    source: Ipv4Addr,
    destination: Ipv4Addr,
    (protocol, class, hops): (u8, u8, u8),
) -> Option<()> {
    let mut packet = ipv4::Packet::init(bytes).ok()?;
    packet.set_protocol(protocol);
    packet.set_tos(class);
    packet.set_ttl(hops);
    packet.set_source(source);
    packet.set_destination(destination);
    packet.fill_checksum();
    Some(())
}

fn write_v6(
    bytes: &mut [u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    (next, class, hops): (u8, u8, u8),
) -> Option<()> {
    let mut packet = ipv6::Packet::init(bytes).ok()?;
    packet.set_next_header(next);
    packet.set_traffic_class(class);
    packet.set_hop_limit(hops);
    packet.set_source(source);
    packet.set_destination(destination);
    Some(())
}

impl Reassembly {
    /// Takes a fragment of an IP packet for the engine. Returns what became of the fragment, and how many
    /// incomplete packets were given up.
    pub fn add(&mut self, now: u64, bytes: &[u8]) -> (Outcome, u64) {
        let given_up = self.expire(now);
        let Some(fragment) = parse(bytes) else { return (Outcome::Refused, given_up) };
        let end = fragment.offset + fragment.data.len();
        // All fragments but the last have a multiple of 8 bytes.
        if fragment.data.is_empty() || end > 65535 || fragment.more && fragment.data.len() % 8 != 0 {
            return (Outcome::Refused, given_up);
        }
        let id = fragment.id;
        if fragment.offset == 0 && !fragment.more {
            // A fragment with offset 0 and no "more fragments" flag is a whole packet. Return it at once,
            // even if other fragments have the same identification (RFC 6946).
            let data = fragment.data.to_vec();
            let parts = std::iter::once(&data);
            let whole = build(id.source, id.destination, fragment.first, parts, data.len());
            return (whole.map_or(Outcome::Refused, Outcome::Whole), given_up);
        }
        let given_up = given_up + self.make_room(fragment.data.len() + 2 * COST);
        let partial = self.packets.entry(id).or_insert_with(|| {
            self.order.push_back((now + LIFETIME_NS, id));
            self.cost += COST;
            Partial { deadline: now + LIFETIME_NS, cost: COST, ..Partial::default() }
        });
        if partial.refused {
            return (Outcome::Refused, given_up);
        }
        let before = partial.parts.len();
        if !partial.add(&fragment) {
            self.cost -= partial.cost - COST;
            *partial =
                Partial { refused: true, deadline: partial.deadline, cost: COST, ..Partial::default() };
            return (Outcome::Refused, given_up);
        }
        if partial.parts.len() > before {
            let cost = fragment.data.len() + COST;
            (partial.cost, self.cost) = (partial.cost + cost, self.cost + cost);
        }
        match partial.whole(&id) {
            Some(bytes) => {
                self.remove(&id);
                (Outcome::Whole(bytes), given_up)
            }
            None => (Outcome::Waits, given_up),
        }
    }

    /// Removes incomplete packets whose deadline has passed. Returns how many packets it removed.
    fn expire(&mut self, now: u64) -> u64 {
        let mut given_up = 0;
        while let Some(&(deadline, id)) = self.order.front()
            && deadline <= now
        {
            given_up += u64::from(self.remove_oldest(deadline, id));
        }
        given_up
    }

    /// Removes the oldest incomplete packets until `more` bytes fit. Returns how many packets it removed.
    fn make_room(&mut self, more: usize) -> u64 {
        let mut given_up = 0;
        while self.cost + more > MOST_BYTES
            && let Some(&(deadline, id)) = self.order.front()
        {
            given_up += u64::from(self.remove_oldest(deadline, id));
        }
        given_up
    }

    /// Removes the oldest entry of `order`, and its packet if that is still incomplete. Returns true if a
    /// packet was removed, and false if the packet was completed before.
    fn remove_oldest(&mut self, deadline: u64, id: Id) -> bool {
        self.order.pop_front();
        // If the entry's packet was completed, a later packet may have the same identification. The deadline
        // tells the two packets apart.
        let same = self.packets.get(&id).is_some_and(|partial| partial.deadline == deadline);
        if same {
            self.remove(&id);
        }
        same
    }

    fn remove(&mut self, id: &Id) {
        if let Some(partial) = self.packets.remove(id) {
            self.cost -= partial.cost;
        }
        // The entries of completed packets stay in `order` until there are many of them. Removing many
        // entries together keeps the cost per packet constant.
        if self.order.len() > 2 * self.packets.len() + SLACK {
            let packets = &self.packets;
            self.order.retain(|(deadline, id)| {
                packets.get(id).is_some_and(|partial| partial.deadline == *deadline)
            });
        }
    }
}

#[cfg(test)]
mod tests;
