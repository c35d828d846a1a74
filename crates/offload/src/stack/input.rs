//! Processes received packets: reassembles fragments, checks checksums, and hands each packet to its socket.

use super::Stack;
use super::arena::Key;
use super::card::message::is_message;
use super::network::{Outcome as Reassembled, Route};
use super::outcome::{Established, Outcome};
use super::packet::{Arrival, Headers, MOST_HEAD, ReceivedPacket, Refused, parse};
use super::rdma::is_roce;
use super::socket::{Role, Socket};
use inlane_tcp::{Ecn, Flow, Segment, State, TimeWaitAction, Verdict, reset_for};
use inlane_wire::ethernet::{self, Frame};
use inlane_wire::tcp::RST;
use inlane_wire::{ipv4, ipv6, tcp};
use std::net::{IpAddr, SocketAddr};

impl<A> Stack<A> {
    /// Processes a frame from the port.
    #[inline]
    pub fn on_frame<'a>(&mut self, now: u64, bytes: &'a [u8]) -> Outcome<'a> {
        let counters = &mut self.network.counters;
        counters.received_packets += 1;
        counters.received_bytes += bytes.len() as u64;
        if self.card.is_some() && is_message(bytes) {
            return self.on_card_message(now, bytes);
        }
        let Ok(frame) = Frame::new(bytes) else {
            counters.malformed += 1;
            return Outcome::Done;
        };
        let destination = frame.destination();
        if destination != self.network.mac() && !destination.is_multicast() {
            self.network.counters.ignored += 1;
            return Outcome::Done;
        }
        match frame.ethertype() {
            ethernet::IPV4 | ethernet::IPV6 => {
                self.on_ip(now, &bytes[ethernet::HEADER..], Arrival::default())
            }
            ethernet::ARP => match self.network.on_arp(now, &bytes[ethernet::HEADER..]) {
                Some(heard) => Outcome::Heard(heard),
                None => Outcome::Done,
            },
            _ => {
                self.network.counters.ignored += 1;
                Outcome::Done
            }
        }
    }

    /// Processes a frame in memory that its sender may change at any time, if the frame is an intact TCP segment or RDMA packet of
    /// a connection of this thread. Copies the payload only once, to the connection's ring. Returns false, and does nothing, for
    /// other frames: copy them and call [`Stack::on_frame`].
    ///
    /// # Safety
    /// The memory of `len` bytes at `address` is readable during the call.
    #[inline]
    pub unsafe fn on_frame_in_place(&mut self, now: u64, address: *const u8, len: usize) -> bool {
        // The headers are checked in a copy, because they must not change between a check and a use.
        let mut head = [0; MOST_HEAD];
        let head = &mut head[..len.min(MOST_HEAD)];
        // SAFETY: the caller promises the bytes at `address`. The copy is a variable of this function.
        unsafe { head.as_mut_ptr().copy_from_nonoverlapping(address, head.len()) };
        let Some(Headers { flow, segment, sum, is_partial, payload }) = Headers::parse(head) else {
            if self.card.is_some() && is_message(head) {
                // SAFETY: the caller promises the same.
                return unsafe { self.on_card_in_place(now, head, address, len) };
            }
            // SAFETY: the caller promises the same.
            return unsafe { self.on_roce_in_place(now, head, address, len) };
        };
        let is_complete = payload.end <= len && head[..6] == self.network.mac().0;
        let Some(key) = self.flows.find(&flow).filter(|_| is_complete) else { return false };
        // SAFETY: the range lies within the frame. The sender may change these bytes meanwhile. They are only summed and
        // copied, so that has the effect of sending other bytes.
        let bytes = unsafe { std::slice::from_raw_parts(address.add(payload.start), payload.len()) };
        let needs_no_sum = is_partial && self.network.accepts_partial_checksums();
        if !needs_no_sum && sum.add_bytes(bytes).finish() != 0 {
            return false;
        }
        let counters = &mut self.network.counters;
        counters.received_packets += 1;
        counters.received_bytes += len as u64;
        self.on_stream_segment(now, key, &Segment { payload: bytes, ..segment });
        true
    }

    /// Processes an IP packet.
    #[inline]
    pub fn on_ip<'a>(&mut self, now: u64, bytes: &'a [u8], arrival: Arrival) -> Outcome<'a> {
        match parse(bytes, arrival) {
            Ok(packet) => self.on_whole(now, packet),
            Err(Refused::Malformed) => {
                self.network.counters.malformed += 1;
                Outcome::Done
            }
            Err(Refused::Fragment) => self.on_fragment(now, bytes, arrival),
        }
    }

    /// Processes an IP packet that was reassembled from fragments. If it is itself a fragment, counts it as malformed: only
    /// an attacker nests fragments, to cost the engine time.
    pub fn on_reassembled<'a>(&mut self, now: u64, bytes: &'a [u8]) -> Outcome<'a> {
        match parse(bytes, Arrival::default()) {
            Ok(packet) => self.on_whole(now, packet),
            Err(_) => {
                self.network.counters.malformed += 1;
                Outcome::Done
            }
        }
    }

    /// Processes an IP packet that is not a fragment.
    fn on_whole<'a>(&mut self, now: u64, packet: ReceivedPacket<'a>) -> Outcome<'a> {
        let own = self.network.is_own(packet.destination);
        if packet.source.is_loopback() && !packet.arrival.trusted {
            self.network.counters.malformed += 1;
            return Outcome::Done;
        }
        match packet.protocol {
            ipv4::TCP if own => self.on_tcp(now, packet),
            ipv4::UDP if own && self.queue_pairs.is_some() && is_roce(packet.payload) => {
                self.on_roce(now, &packet)
            }
            ipv4::UDP if own => self.on_datagram(packet),
            ipv4::ICMP if own && packet.source.is_ipv4() => self.on_icmp(now, packet),
            ipv6::ICMP if packet.source.is_ipv6() && (own || packet.destination.is_multicast()) => {
                self.on_icmp(now, packet)
            }
            _ => {
                self.network.counters.ignored += 1;
                Outcome::Done
            }
        }
    }

    /// Keeps a fragment of an IP packet, or returns the packet that the fragment completes.
    fn on_fragment<'a>(&mut self, now: u64, bytes: &'a [u8], arrival: Arrival) -> Outcome<'a> {
        let addresses: Option<(IpAddr, IpAddr)> = match bytes.first().map_or(0, |byte| byte >> 4) {
            4 => ipv4::Packet::new(bytes)
                .ok()
                .map(|packet| (packet.source().into(), packet.destination().into())),
            _ => ipv6::Packet::new(bytes)
                .ok()
                .map(|packet| (packet.source().into(), packet.destination().into())),
        };
        let Some((source, destination)) =
            addresses.filter(|&(_, destination)| self.network.is_own(destination))
        else {
            self.network.counters.ignored += 1;
            return Outcome::Done;
        };
        let to = self.owners.as_ref().map(|owners| owners.thread_of_fragments(source, destination));
        if let Some(to) = to.filter(|&to| to != self.thread) {
            return Outcome::Pass { to, bytes, arrival };
        }
        let network = &mut self.network;
        network.counters.fragments += 1;
        let (outcome, given_up) = network.reassembly.add(now, bytes);
        network.counters.unassembled += given_up;
        match outcome {
            Reassembled::Waits => Outcome::Done,
            Reassembled::Refused => {
                network.counters.unassembled += 1;
                Outcome::Done
            }
            Reassembled::Whole(packet) => {
                network.counters.reassembled += 1;
                Outcome::Reassembled(packet)
            }
        }
    }

    /// Returns true if the checksum of a TCP segment is correct or not needed. It is not needed for the
    /// engine's own segments. It is also not needed if a sender on the same machine left the checksum to a
    /// network card.
    fn is_intact(&self, packet: &ReceivedPacket<'_>) -> bool {
        packet.arrival.trusted
            || (self.network.accepts_partial_checksums()
                && tcp::Segment::new(packet.payload)
                    .is_ok_and(|segment| segment.checksum() == packet.pseudo.folded()))
            || packet.pseudo.add_bytes(packet.payload).finish() == 0
    }

    #[inline]
    fn on_tcp<'a>(&mut self, now: u64, packet: ReceivedPacket<'a>) -> Outcome<'a> {
        let ports =
            tcp::Segment::new(packet.payload).map(|view| (view.source_port(), view.destination_port()));
        let segment = Segment::parse(packet.payload, Ecn::of(packet.class));
        let (Ok((source_port, destination_port)), Ok(segment), true) =
            (ports, segment, self.is_intact(&packet))
        else {
            self.network.counters.malformed += 1;
            return Outcome::Done;
        };
        if packet.source.is_multicast() || packet.source.is_unspecified() {
            self.network.counters.malformed += 1;
            return Outcome::Done;
        }
        let flow = Flow {
            local: SocketAddr::new(packet.destination, destination_port),
            remote: SocketAddr::new(packet.source, source_port),
        };
        let Some(key) = self.flows.find(&flow) else {
            return self.on_other_segment(now, flow, segment, packet);
        };
        if let Some(to) = packet.arrival.from.filter(|&from| from != self.thread && self.may_move(key)) {
            return Outcome::Move { key, to, bytes: packet.whole, arrival: packet.arrival };
        }
        self.on_stream_segment(now, key, &segment);
        Outcome::Done
    }

    /// Returns true if a connection moves to the thread on which its packets arrive: if it is in SYN-SENT. It stays if its
    /// SYN is held back, because the timer that sends the SYN runs on this thread, or if it leads to the engine's own
    /// address. A connection of a bound socket also stays, because this thread checks its port for conflicts.
    fn may_move(&self, key: Key) -> bool {
        self.sockets.get(key).is_some_and(|socket| {
            !socket.holds_port
                && socket.stream().is_some_and(|stream| {
                    stream.connection.state() == State::SynSent
                        && stream.route != Route::Own
                        && stream.held_until.is_none()
                })
        })
    }

    /// Processes a TCP segment whose flow has no connection: by another thread, by its TIME-WAIT entry, by a listener, or by
    /// a reset.
    fn on_other_segment<'a>(
        &mut self,
        now: u64,
        flow: Flow,
        segment: Segment<'a>,
        packet: ReceivedPacket<'a>,
    ) -> Outcome<'a> {
        let (bytes, arrival) = (packet.whole, packet.arrival);
        if let Some(owner) = self.owner(&flow) {
            if owner.thread != self.thread {
                return Outcome::Pass { to: owner.thread, bytes, arrival };
            }
            if !owner.waits && !arrival.awaited {
                return Outcome::Await { bytes, arrival };
            }
        }
        let mut previous = None;
        if let Some(entry) = self.time_waits.get_mut(&flow) {
            match entry.on_segment(now, inlane_tcp::Config::default().time_wait, &segment) {
                TimeWaitAction::Drop => return Outcome::Done,
                TimeWaitAction::Reply(header) => {
                    self.send_header(now, &flow, &header);
                    return Outcome::Done;
                }
                TimeWaitAction::Reopen => previous = Some(*entry),
            }
        }
        let hash = u64::from(flow.remote.port()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let Some(listener) = self.listener(flow.local, hash) else {
            if let Some(header) = reset_for(&segment) {
                self.counters.resets_sent += 1;
                self.send_header(now, &flow, &header);
            }
            return Outcome::Done;
        };
        let Some(Socket { role: Role::Listening(listening), .. }) = self.sockets.get_mut(listener) else {
            return Outcome::Done;
        };
        if listening.is_full() && !arrival.counted {
            return Outcome::Count { listener, bytes, arrival };
        }
        let verdict = listening.listener.on_segment(now, &flow, &segment, previous.as_ref());
        if let Some(deadline) = listening.listener.next_deadline() {
            self.arm(listener, deadline);
        }
        match verdict {
            Verdict::Drop => Outcome::Done,
            // The listener on this thread has no handshake for the segment, so it replies with a reset. But
            // the SYN may have arrived on another queue. So pass the segment to the next thread instead of
            // sending the reset, until all threads have received it.
            Verdict::Reply(header) if header.has(RST) && arrival.hops + 1 < self.threads() => {
                Outcome::Pass { to: (self.thread + 1) % self.threads(), bytes, arrival }
            }
            Verdict::Reply(header) => {
                self.send_header(now, &flow, &header);
                if previous.is_some() {
                    self.end_time_wait(&flow);
                }
                Outcome::Done
            }
            Verdict::Established(handshake) => Outcome::Established(Established {
                listener,
                flow,
                segment,
                handshake,
                reopens: previous.is_some(),
            }),
        }
    }
}
