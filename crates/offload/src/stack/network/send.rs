//! Sends IP packets in frames to the neighbour's MAC address. Keeps a frame while the address is unknown or
//! the transmit queue is full. Also processes ARP and neighbour discovery.

use super::neighbours::{Ask, Lookup};
use super::payload::{Checksum, Payload};
use super::{MOST_WAITING, Network, Route, all_nodes};
use crate::stack::outcome::Heard;
use crate::stack::packet::MOST_HEAD;
use inlane_core::packet::Packet;
use inlane_core::port::Reservation;
use inlane_rdma::MAX_HEADERS;
use inlane_wire::checksum::Sum;
use inlane_wire::ethernet::{self, Frame, Mac};
use inlane_wire::{arp, ipv4, ipv6, ndp};
use std::net::{IpAddr, Ipv4Addr};

impl Network {
    /// Sends an IP packet from `source` to `destination`. Returns false if it was dropped.
    #[inline]
    pub fn send<P: Payload>(
        &mut self,
        now: u64,
        route: Route,
        source: IpAddr,
        destination: IpAddr,
        class: u8,
        payload: &P,
    ) -> bool {
        let header = if source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER };
        let len = header + payload.len();
        match route {
            Route::Own => {
                let mut bytes = self.spare_own.pop().unwrap_or_default();
                bytes.resize(len, 0);
                write_ip(&mut bytes, 0, source, destination, class, P::PROTOCOL, false, |buffer, _| {
                    payload.write(buffer, None);
                });
                self.own.push_back(bytes);
                self.counters.own_packets += 1;
                true
            }
            Route::Port(hop) => {
                if self.waiting.is_empty()
                    && self.write_in_place(now, hop, (source, destination), class, header, payload)
                {
                    return true;
                }
                let Some(mut packet) = self.allocate(ethernet::HEADER + len) else { return false };
                // SAFETY: the packet was just allocated, so nothing else uses it. Its length is at most the
                // length of its buffer, and the CPU maps the buffer.
                let bytes = unsafe { packet.bytes_mut() };
                let ethertype = if source.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
                write_ethernet(bytes, self.mac, ethertype);
                let packet_bytes = &mut bytes[ethernet::HEADER..];
                write_ip(
                    &mut *packet_bytes,
                    0,
                    source,
                    destination,
                    class,
                    P::PROTOCOL,
                    true,
                    |buffer, pseudo| {
                        payload.write(buffer, Some(pseudo));
                    },
                );
                payload.finish(packet_bytes);
                self.send_to(now, hop, &mut packet)
            }
        }
    }

    /// Writes an IP packet directly to the memory of the transmit queue, if the queue has such memory and the MAC address of
    /// the neighbour `hop` is known. `ip` is the length of the IP header. Returns false if it wrote nothing.
    #[inline]
    fn write_in_place<P: Payload>(
        &mut self,
        now: u64,
        hop: IpAddr,
        (source, destination): (IpAddr, IpAddr),
        class: u8,
        ip: usize,
        payload: &P,
    ) -> bool {
        let body = payload.body();
        let body_len = body.as_ref().map_or(0, |(_, range)| (range.end - range.start) as usize);
        let tail = if body_len > 0 { payload.tail() } else { 0 };
        let head_len = ethernet::HEADER + ip + payload.len() - body_len - tail;
        if head_len > MOST_LONG_HEAD {
            return false;
        }
        let Some(mac) = self.neighbours.recent(now, hop) else { return false };
        let memory = match self.tx.reserve(head_len + body_len + tail) {
            Reservation::Memory(memory) => memory.as_ptr(),
            Reservation::Full => {
                self.full = true;
                return false;
            }
            Reservation::Unsupported => return false,
        };
        // The headers are complete before they are copied, because the peer may change the queue's memory at any time.
        let (mut head, mut long_head);
        let head = if head_len <= MOST_HEAD {
            head = [0; MOST_HEAD];
            &mut head[..head_len]
        } else {
            long_head = [0; MOST_LONG_HEAD];
            &mut long_head[..head_len]
        };
        let ethertype = if source.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        write_ethernet(head, self.mac, ethertype);
        head[..6].copy_from_slice(&mac.0);
        let partial = self.peer_accepts_partial_checksums;
        let sum = body.map(|(ring, range)| {
            // SAFETY: the queue has reserved the memory. The bytes are written and summed, and nothing else depends on them,
            // so a peer that changes them only harms its own data.
            let to = unsafe { std::slice::from_raw_parts_mut(memory.add(head_len), body_len) };
            if partial {
                ring.read(range, to);
                return Sum::new();
            }
            ring.read_summed(range, to, Sum::new())
        });
        let packet = &mut head[ethernet::HEADER..];
        write_ip(
            &mut *packet,
            body_len + tail,
            source,
            destination,
            class,
            P::PROTOCOL,
            true,
            |buffer, pseudo| match sum {
                Some(_) if partial => payload.write_head(buffer, Checksum::Partial(pseudo)),
                Some(sum) => payload.write_head(buffer, Checksum::Whole(pseudo.add(sum.folded()))),
                None => payload.write(buffer, Some(pseudo)),
            },
        );
        if sum.is_none() {
            payload.finish(packet);
        }
        // SAFETY: the queue has reserved the memory, outside of `head`.
        unsafe {
            memory.copy_from_nonoverlapping(head.as_ptr(), head_len);
            memory.add(head_len + body_len).write_bytes(0, tail);
        }
        self.tx.commit();
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += (head_len + body_len + tail) as u64;
        true
    }

    /// Keeps the buffer of a packet that the engine sent to itself, so that later packets can use the buffer.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare_own.len() < 64 {
            self.spare_own.push(buffer);
        }
    }

    /// Allocates a packet of `len` bytes.
    #[inline]
    pub(super) fn allocate(&mut self, len: usize) -> Option<Packet> {
        if self.spare.is_empty() {
            let mut packets = [Packet::EMPTY; 64];
            let count = self.pool.allocate(&mut packets);
            self.spare.extend_from_slice(&packets[..count]);
        }
        if len > self.pool.room() || self.waiting.len() >= MOST_WAITING {
            self.counters.dropped += 1;
            return None;
        }
        match self.spare.pop() {
            Some(packet) => Some(Packet { length: len as u32, ..packet }),
            None => {
                self.counters.dropped += 1;
                None
            }
        }
    }

    pub(super) fn send_to(&mut self, now: u64, hop: IpAddr, packet: &mut Packet) -> bool {
        match self.neighbours.look_up(now, hop, *packet) {
            Lookup::Send(mac, ask) => {
                self.send_frame(mac, packet);
                match ask {
                    Ask::Nobody => {}
                    Ask::Neighbour => self.ask(hop, Some(mac)),
                    Ask::All => self.ask(hop, None),
                }
                true
            }
            Lookup::Waits(ask) => {
                if ask {
                    self.ask(hop, None);
                }
                true
            }
            Lookup::Drop => {
                self.counters.dropped += 1;
                // SAFETY: the packet is from this pool, and the table did not keep it.
                unsafe { self.pool.free(&[*packet]) };
                false
            }
        }
    }

    #[inline]
    fn send_frame(&mut self, to: Mac, packet: &Packet) {
        // SAFETY: this link owns the packet, which begins with an Ethernet header of more than 6 bytes.
        unsafe { packet.bytes_mut()[..6].copy_from_slice(&to.0) };
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += u64::from(packet.length);
        self.waiting.push(*packet);
        if self.waiting.len() >= 64 {
            self.flush();
        }
    }

    /// Sends as many of the waiting packets as the transmit queue accepts. Returns true if none is left.
    pub fn flush(&mut self) -> bool {
        while !self.waiting.is_empty() {
            // SAFETY: the packets are from the queue's pool, each is in the list once, and sent ones are
            // removed.
            match unsafe { self.tx.send(&self.waiting) } {
                Ok(0) => return false,
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(error) => {
                    tracing::warn!("sending: {error}");
                    let lost = std::mem::take(&mut self.waiting);
                    self.counters.dropped += lost.len() as u64;
                    // SAFETY: after an error, this link still holds every packet.
                    unsafe { self.pool.free(&lost) };
                }
            }
        }
        self.full = false;
        if let Err(error) = self.tx.flush() {
            tracing::warn!("sending: {error}");
        }
        true
    }

    /// Returns true if so many packets wait for the transmit queue that connections must pause.
    pub fn is_congested(&self) -> bool {
        self.full || self.waiting.len() >= MOST_WAITING / 2
    }

    /// Asks for the MAC address of the neighbour `hop`. An IPv4 request (ARP) goes to the MAC address
    /// `known`, or to all hosts if `known` is `None`. An IPv6 request is always multicast.
    fn ask(&mut self, hop: IpAddr, known: Option<Mac>) {
        match hop {
            IpAddr::V4(target) => {
                let Some(IpAddr::V4(sender)) = self.source(hop) else { return };
                self.send_arp(arp::REQUEST, known.unwrap_or(Mac::BROADCAST), sender, Mac::default(), target);
            }
            IpAddr::V6(target) => {
                let Some(source) = self.source(hop) else { return };
                let group = ndp::solicited_node(target);
                let message = Discovery {
                    kind: ndp::SOLICITATION,
                    option: ndp::SOURCE_LINK_ADDRESS,
                    flags: 0,
                    target,
                    mac: self.mac,
                };
                self.send_discovery(ndp::multicast_mac(group), source, group.into(), &message);
            }
        }
    }

    fn send_arp(&mut self, operation: u16, to: Mac, sender: Ipv4Addr, target_mac: Mac, target: Ipv4Addr) {
        let Some(packet) = self.allocate(ethernet::HEADER + arp::HEADER) else { return };
        // SAFETY: as in `send`.
        let bytes = unsafe { packet.bytes_mut() };
        write_ethernet(bytes, self.mac, ethernet::ARP);
        let mut message =
            arp::Packet::init(&mut bytes[ethernet::HEADER..]).expect("the packet has this length");
        message.set_operation(operation);
        message.set_sender_mac(self.mac);
        message.set_sender(sender);
        message.set_target_mac(target_mac);
        message.set_target(target);
        self.send_frame(to, &packet);
    }

    fn send_discovery(&mut self, to: Mac, source: IpAddr, destination: IpAddr, message: &Discovery) {
        let len = ipv6::HEADER + message.len();
        let Some(packet) = self.allocate(ethernet::HEADER + len) else { return };
        // SAFETY: as in `send`.
        let bytes = unsafe { packet.bytes_mut() };
        write_ethernet(bytes, self.mac, ethernet::IPV6);
        let ip = &mut bytes[ethernet::HEADER..];
        write_ip(ip, 0, source, destination, 0, Discovery::PROTOCOL, true, |buffer, pseudo| {
            message.write(buffer, Some(pseudo));
        });
        let ip = &mut bytes[ethernet::HEADER..];
        ipv6::Packet::new(ip).expect("just written").set_hop_limit(ndp::HOP_LIMIT);
        self.send_frame(to, &packet);
    }

    /// Processes an ARP packet. Returns the sender's MAC address if the other threads must learn it.
    pub fn on_arp(&mut self, now: u64, bytes: &[u8]) -> Option<Heard> {
        let Ok(packet) = arp::Packet::new(bytes) else {
            self.counters.malformed += 1;
            return None;
        };
        let for_us = self.addresses.iter().any(|prefix| prefix.address == IpAddr::V4(packet.target()));
        let heard = self.hear(now, packet.sender().into(), packet.sender_mac(), for_us, for_us);
        if for_us && packet.operation() == arp::REQUEST {
            let (mac, sender) = (packet.sender_mac(), packet.sender());
            self.send_arp(arp::REPLY, mac, packet.target(), mac, sender);
        }
        heard
    }

    /// Processes a message of neighbour discovery. The caller has verified the checksum. Returns a
    /// neighbour's MAC address if the other threads must learn it.
    pub fn on_discovery(
        &mut self,
        now: u64,
        (source, destination): (IpAddr, IpAddr),
        hop_limit: u8,
        bytes: &[u8],
    ) -> Option<Heard> {
        let message = ndp::Message::new(bytes).ok().filter(|_| hop_limit == ndp::HOP_LIMIT);
        let (Some(message), IpAddr::V6(asker)) = (message, source) else {
            self.counters.malformed += 1;
            return None;
        };
        let target = IpAddr::V6(message.target());
        if message.kind() == ndp::ADVERTISEMENT {
            let mac = message.link_address(ndp::TARGET_LINK_ADDRESS)?;
            return self.hear(now, target, mac, false, self.is_own(destination));
        }
        if !self.addresses.iter().any(|prefix| prefix.address == target) {
            return None;
        }
        let mac = message.link_address(ndp::SOURCE_LINK_ADDRESS);
        let asking = mac.filter(|_| !asker.is_unspecified());
        let heard = asking.and_then(|mac| self.hear(now, source, mac, true, true));
        // If the asker has the unspecified address, multicast the answer to all nodes. Such a host checks
        // whether a new address is in use, and no answer can be sent to the unspecified address (RFC 4862).
        let (destination, flags) = match asker.is_unspecified() {
            true => (all_nodes(), ndp::OVERRIDE),
            false => (asker, ndp::OVERRIDE | ndp::SOLICITED),
        };
        let to = mac.filter(|_| !asker.is_unspecified()).unwrap_or_else(|| ndp::multicast_mac(destination));
        let answer = Discovery {
            kind: ndp::ADVERTISEMENT,
            option: ndp::TARGET_LINK_ADDRESS,
            flags,
            target: message.target(),
            mac: self.mac,
        };
        self.send_discovery(to, target, destination.into(), &answer);
        heard
    }

    /// Records a neighbour's MAC address; see [`Network::learn`] for `add`. Returns what the other threads
    /// must be told, or `None` if they already know it. `asked` is true if the neighbour sent the message to
    /// this host.
    fn hear(&mut self, now: u64, address: IpAddr, mac: Mac, add: bool, asked: bool) -> Option<Heard> {
        if !self.is_neighbour(address) || mac.is_multicast() {
            return None;
        }
        let is_news = self.neighbours.is_news(now, address, mac);
        self.learn(now, address, mac, add);
        // If this thread's table has the neighbour, ask the other threads to add it too. While the
        // neighbour's address stays the same, they would get no later report.
        is_news.then(|| Heard { address, mac, add: self.neighbours.note_told(now, address), asked })
    }

    fn is_neighbour(&self, address: IpAddr) -> bool {
        !self.is_own(address) && !address.is_unspecified() && !address.is_multicast()
    }

    /// Records a neighbour's MAC address, and sends the packets that wait for it. If the neighbour is unknown,
    /// adds it only if `add` is set.
    pub(crate) fn learn(&mut self, now: u64, address: IpAddr, mac: Mac, add: bool) {
        if !self.is_neighbour(address) {
            return;
        }
        for packet in self.neighbours.learn(now, address, mac, add) {
            self.send_frame(mac, &packet);
        }
    }

    /// Asks the neighbours again that have not answered. Gives up neighbours that were asked too often. Drops
    /// the packets for these neighbours, and returns their addresses.
    pub fn on_timer(&mut self, now: u64) -> Vec<IpAddr> {
        let (ask, silent) = self.neighbours.on_timer(now);
        for address in ask {
            self.ask(address, None);
        }
        silent
            .into_iter()
            .map(|(address, packets)| {
                self.counters.dropped += packets.len() as u64;
                // SAFETY: the packets are from this pool. The table of neighbours no longer holds them.
                unsafe { self.pool.free(&packets) };
                address
            })
            .collect()
    }

    /// Returns the time, in nanoseconds, at which [`Network::on_timer`] should be called. Returns `None` if
    /// no neighbour's answer is awaited.
    pub fn next_timer(&self) -> Option<u64> {
        self.neighbours.next_timer()
    }

    /// Returns true while a neighbour's answer is awaited, so that [`Network::on_timer`] must be called.
    pub fn has_timer(&self) -> bool {
        self.neighbours.is_asking()
    }
}

fn write_ethernet(bytes: &mut [u8], source: Mac, ethertype: u16) {
    let mut frame = Frame::new(bytes).expect("the packet has room for the header");
    frame.set_source(source);
    frame.set_ethertype(ethertype);
}

/// Writes an IP packet to `bytes`, which hold all of it but its last `further` bytes. `write` writes the payload and its
/// checksum; it gets the sum of the pseudo header. Computes the checksum of the IP header only if `checked` is set.
#[inline]
#[expect(clippy::too_many_arguments, reason = "these are the fields of an IP header")]
fn write_ip(
    bytes: &mut [u8],
    further: usize,
    source: IpAddr,
    destination: IpAddr,
    class: u8,
    protocol: u8,
    checked: bool,
    write: impl FnOnce(&mut [u8], Sum),
) {
    const FITS: &str = "the packet has this length";
    let len = bytes.len() + further;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = ipv4::Packet::init(bytes).expect(FITS);
            packet.set_total_length(len as u16);
            packet.set_tos(class);
            packet.set_flags_and_offset(DONT_FRAGMENT);
            packet.set_protocol(protocol);
            packet.set_source(source);
            packet.set_destination(destination);
            let pseudo = packet.pseudo_sum();
            write(packet.payload_mut(), pseudo);
            if checked {
                // Do this after the payload. The CPU would stall if it read the fields of the header right after
                // it has written them, because it reads several fields at once.
                packet.fill_checksum();
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = ipv6::Packet::init(bytes).expect(FITS);
            packet.set_payload_length((len - ipv6::HEADER) as u16);
            packet.set_traffic_class(class);
            packet.set_next_header(protocol);
            packet.set_source(source);
            packet.set_destination(destination);
            let pseudo = packet.pseudo_sum(protocol, (len - ipv6::HEADER) as u32);
            write(packet.payload_mut(), pseudo);
        }
        _ => unreachable!("both addresses of a flow have one family"),
    }
}

/// The longest packet without a body that is written in place: one with the longest control message of RDMA.
const MOST_LONG_HEAD: usize = MOST_HEAD + MAX_HEADERS;

/// The flag of IPv4 headers that forbids fragmentation.
const DONT_FRAGMENT: u16 = 0x4000;

/// A message of neighbour discovery.
struct Discovery {
    kind: u8,
    option: u8,
    flags: u32,
    target: std::net::Ipv6Addr,
    mac: Mac,
}

impl Payload for Discovery {
    const PROTOCOL: u8 = ipv6::ICMP;

    fn len(&self) -> usize {
        ndp::HEADER + ndp::LINK_ADDRESS
    }

    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>) {
        let mut message =
            ndp::Message::init(buffer, self.kind, self.option, self.mac).expect("the buffer has this length");
        message.set_flags(self.flags);
        message.set_target(self.target);
        if let Some(pseudo) = pseudo {
            let checksum = pseudo.add_bytes(message.bytes()).finish();
            message.set_checksum(checksum);
        }
    }
}
