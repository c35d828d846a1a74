//! RDMA as the transport of a connection's data: RoCEv2 packets between two engines.
//!
//! Both engines offer RDMA in the SYN and the SYN,ACK. TCP keeps the handshake, the close and the sequence numbers, so
//! a connection whose peer does not answer over RDMA returns to TCP without loss; see [`inlane_tcp::Connection::begin_carried`].

mod input;
mod packet;
mod store;

use super::Stack;
use super::arena::Key;
use super::card::CardStream;
use super::network::{Network, Route};
use super::options::ACK_GAP_NS;
use super::ring::ByteRing;
use super::socket::{Role, Socket};
use super::stream::Stream;
use inlane_rdma::{Connection, Counters, EndReason, Endpoint, MAX_HEADERS, Memory};
use inlane_tcp::EndReason::{Aborted, TimedOut};
use inlane_tcp::{Events, Flow, Offer, ReceiveBuffer, State};
use inlane_wire::{roce, udp};
pub(super) use input::is_roce;
use packet::Outgoing;
use std::collections::HashMap;
pub use store::{OwnRing, PeerRing};

/// The bytes that a peer may write before it has memory information. Each receive ring has more.
const FIRST_GRANT: u32 = 2048;
/// How many bytes fewer than a TCP segment without options an RDMA packet can carry.
const MORE_HEADERS: u16 =
    (udp::HEADER + roce::BTH + roce::RETH + roce::IMMDT + roce::ICRC - inlane_wire::tcp::HEADER) as u16;
/// A connection returns to TCP after this number of timeouts in a row without an answer.
const RETRIES: u32 = 6;
/// The first of the UDP source ports. The ports of the TCP connection choose one of the rest, so that switches spread the
/// connections over their links.
const FIRST_SOURCE_PORT: u16 = 0xc000;

/// What carries the data of a connection.
pub enum Transport {
    /// TCP carries the data, for this reason.
    Tcp(Reason),
    /// RDMA carries the data.
    Rdma(Box<Carrier>),
    /// TCP of the engine's card carries the data.
    Card(Box<CardStream>),
}

/// Why TCP carries the data of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The engine does not use RDMA.
    Disabled,
    /// Both ends of the connection are at this engine.
    Own,
    /// The handshake has not ended.
    Connecting,
    /// The peer has not offered RDMA.
    NotOffered,
    /// The number of the queue pair is in use.
    Busy,
    /// The peer has not answered over RDMA.
    Unanswered,
    /// The peer has returned to TCP.
    Returned,
}

impl Reason {
    /// Returns the reason as the status shows it. `None` if the engine does not use RDMA.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Disabled => None,
            Self::Own => Some("both ends are at this engine"),
            Self::Connecting => Some("the handshake has not ended"),
            Self::NotOffered => Some("the peer does not offer RDMA"),
            Self::Busy => Some("the queue pair's number is in use"),
            Self::Unanswered => Some("the peer does not answer over RDMA"),
            Self::Returned => Some("the peer has returned to TCP"),
        }
    }
}

impl Transport {
    /// Returns `tcp`, `rdma` or `card`, and why TCP carries the data although the engine offers RDMA.
    pub fn describe(&self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Tcp(reason) => ("tcp", reason.text()),
            Self::Rdma(_) => ("rdma", None),
            Self::Card(_) => ("card", None),
        }
    }
}

/// The RDMA connection that carries the data of a TCP connection.
pub struct Carrier {
    /// The state machine.
    pub connection: Connection,
    /// Memory for the headers of the next packet.
    headers: [u8; MAX_HEADERS],
    /// The slot into whose receive ring the peer's engine may store.
    own: Option<OwnRing>,
    /// The memory of the peer's receive ring, into which data is stored.
    peer: Option<PeerRing>,
    /// True if the connection is in the list of those whose peers have shared their receive rings.
    listed: bool,
}

/// Counters of RDMA since the engine started.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct RdmaCounters {
    /// Connections whose data RDMA has carried.
    pub connections: u64,
    /// Connections that have returned to TCP.
    pub returned: u64,
    /// Bytes that RDMA packets have placed into receive rings and buffers of programs.
    pub placed_bytes: u64,
    /// Bytes that the peer's engine on the same host has stored into receive rings.
    pub stored_bytes: u64,
    /// Data packets sent again.
    pub retransmitted: u64,
    /// Bytes in data packets sent again.
    pub retransmitted_bytes: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Received data packets that had arrived before.
    pub duplicates: u64,
    /// Received packets whose checksum (ICRC) is wrong.
    pub refused_icrc: u64,
    /// Received packets for an unknown queue pair, or from another host than the queue pair's peer.
    pub refused_queue_pair: u64,
    /// Received packets whose sequence number is outside the window.
    pub refused_psn: u64,
    /// Received packets whose key is not valid, or not any more.
    pub refused_key: u64,
    /// Received packets for bytes that their key does not cover, and wrong words of memory that two engines share.
    pub refused_range: u64,
    /// Received control messages with a wrong token or impossible contents.
    pub refused_control: u64,
    /// Received packets with malformed headers.
    pub malformed: u64,
}

impl RdmaCounters {
    /// Returns the number of packets that were refused.
    pub fn refused(&self) -> u64 {
        let Self { refused_icrc, refused_queue_pair, refused_psn, refused_key, refused_range, .. } = self;
        let data = refused_icrc + refused_queue_pair + refused_psn + refused_key + refused_range;
        data + self.refused_control + self.malformed
    }

    /// Adds the counters of a connection.
    pub fn add(&mut self, counters: &Counters) {
        self.placed_bytes += counters.placed_ring;
        self.stored_bytes += counters.stored;
        self.retransmitted += counters.retransmitted;
        self.retransmitted_bytes += counters.retransmitted_bytes;
        self.timeouts += counters.timeouts;
        self.duplicates += counters.duplicates;
        self.refused_queue_pair += counters.refused_queue_pair;
        self.refused_psn += counters.refused_psn;
        self.refused_key += counters.refused_key;
        self.refused_range += counters.refused_range;
        self.refused_control += counters.refused_control;
        self.malformed += counters.malformed;
    }
}

impl std::ops::AddAssign for RdmaCounters {
    fn add_assign(&mut self, other: Self) {
        self.connections += other.connections;
        self.returned += other.returned;
        self.refused_icrc += other.refused_icrc;
        self.add(&Counters {
            placed_ring: other.placed_bytes,
            stored: other.stored_bytes,
            retransmitted: other.retransmitted,
            retransmitted_bytes: other.retransmitted_bytes,
            timeouts: other.timeouts,
            duplicates: other.duplicates,
            refused_queue_pair: other.refused_queue_pair,
            refused_psn: other.refused_psn,
            refused_key: other.refused_key,
            refused_range: other.refused_range,
            refused_control: other.refused_control,
            malformed: other.malformed,
        });
    }
}

/// The queue pairs of a stack.
#[derive(Default)]
pub struct QueuePairs {
    keys: HashMap<u32, Key>,
    /// True if the engine can store into a peer's memory.
    pub stores: bool,
    /// The connections whose peers have shared their receive rings, each once.
    shared: Vec<Key>,
    /// The counters of removed connections, and those of the stack.
    pub counters: RdmaCounters,
}

/// Returns what an offer says about its sender's side.
fn endpoint(Offer(bytes): Offer) -> Endpoint {
    let number = |at: usize| u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
    let token = bytes[6..].try_into().map_or(0, u64::from_be_bytes);
    // Numbers 0 and 1 are reserved for management.
    Endpoint { queue_pair: number(0).max(2), psn: number(3), token }
}

impl Memory for ByteRing {
    #[inline]
    fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        self.write(index, bytes);
    }
}

impl Stream {
    /// Lets RDMA carry the data, because both sides have offered it.
    fn carry(&mut self, offers: (Offer, Offer), secret: [u8; 16]) {
        let (local, remote) = (endpoint(offers.0), endpoint(offers.1));
        let config = inlane_rdma::Config {
            send_capacity: self.send.capacity() as u32,
            receive_capacity: self.receive.capacity() as u32,
            payload: (self.connection.max_segment().saturating_sub(MORE_HEADERS) / 4 * 4).max(64),
            first_grant: FIRST_GRANT,
            // The first data of the side that opens the connection arrives with the end of the handshake, so the other side can
            // wait for it. Its answer often carries the acknowledgment, and the first bytes suffice for many requests.
            announce: self.connected,
            rtt: self.connection.smoothed_rtt(),
            retries: RETRIES,
            ack_gap: ACK_GAP_NS,
            ..inlane_rdma::Config::default()
        };
        let Ok(mut connection) = Connection::new(&config, local, remote, secret) else { return };
        connection.set_receive_capacity(self.window.bytes());
        self.connection.begin_carried();
        self.transport = Transport::Rdma(Box::new(Carrier {
            connection,
            headers: [0; MAX_HEADERS],
            own: None,
            peer: None,
            listed: false,
        }));
    }

    /// Returns the RDMA connection, if RDMA carries the data.
    pub fn carrier(&self) -> Option<&Carrier> {
        match &self.transport {
            Transport::Rdma(carrier) => Some(carrier),
            Transport::Tcp(_) | Transport::Card(_) => None,
        }
    }

    /// Returns what RDMA has counted for the connection.
    pub fn rdma_counters(&self) -> RdmaCounters {
        let mut counters = self.carried;
        if let Some(carrier) = self.carrier() {
            counters.add(&carrier.connection.counters());
        }
        counters
    }

    /// Returns the congestion window in bytes.
    pub fn congestion_window(&self) -> u64 {
        let tcp = || self.connection.congestion_window();
        self.carrier().map_or_else(tcp, |carrier| carrier.connection.congestion_window())
    }

    /// Returns the smoothed round-trip time in nanoseconds, if there is one.
    pub fn smoothed_rtt(&self) -> Option<u64> {
        let tcp = || self.connection.smoothed_rtt();
        self.carrier().map_or_else(tcp, |carrier| carrier.connection.smoothed_rtt())
    }

    /// Returns the number of payload bytes that TCP or RDMA has sent again.
    pub fn retransmitted_bytes(&self) -> u64 {
        self.connection.counters().retransmitted_bytes + self.rdma_counters().retransmitted_bytes
    }

    /// Lets TCP carry the data again. Does nothing if it does already.
    fn return_to_tcp(&mut self, now: u64, reason: Reason) {
        if !self.close_stores(now) {
            // The peer may have been stopped during a store, whose bytes would be lost.
            self.connection.abort();
        }
        if let Transport::Rdma(carrier) = &self.transport {
            self.carried.add(&carrier.connection.counters());
            self.carried.returned += 1;
            self.transport = Transport::Tcp(reason);
            self.connection.end_carried(now);
        }
    }

    /// Runs the timers of TCP and of RDMA.
    pub(super) fn on_timer(&mut self, now: u64) -> Events {
        let events = self.connection.on_timer(now);
        let Transport::Rdma(carrier) = &mut self.transport else { return events };
        carrier.look_at_noted(now);
        let timeouts = carrier.connection.counters().timeouts;
        carrier.connection.on_timer(now);
        if carrier.connection.counters().timeouts > timeouts && !carrier.connection.is_answered() {
            // The peer may have no queue pair yet, because the segment that ends the handshake was lost.
            self.connection.acknowledge();
        }
        if self.connection.is_abandoned() && carrier.connection.timeouts_in_a_row() > RETRIES {
            // The peer never makes room for the last data, and TCP limits how long that may last.
            self.return_to_tcp(now, Reason::Unanswered);
        }
        events | self.follow(now)
    }

    /// Tells TCP what RDMA has carried since the last call.
    fn follow(&mut self, now: u64) -> Events {
        let Transport::Rdma(carrier) = &mut self.transport else { return Events::NONE };
        let rdma = &mut carrier.connection;
        if self.connection.is_end_acknowledged() {
            rdma.acknowledge_all(now);
        }
        let received = self.connection.carry_received(now, rdma.received(), rdma.granted());
        let sent = self.connection.carry_sent(now, rdma.sent(), rdma.acknowledged());
        let ended = match rdma.ended() {
            // TCP, too, ignores resets in this state (RFC 1337).
            Some(EndReason::Reset) if self.connection.state() == State::TimeWait => Events::NONE,
            Some(EndReason::Reset) => {
                self.connection.fail(inlane_tcp::EndReason::Reset);
                Events::ENDED
            }
            Some(EndReason::Violation) => {
                self.connection.abort();
                Events::ENDED
            }
            Some(EndReason::TimedOut) => {
                self.return_to_tcp(now, Reason::Unanswered);
                Events::NONE
            }
            Some(EndReason::Aborted) | None => Events::NONE,
        };
        received | sent | ended
    }

    /// Sends RDMA packets until there are none or the link is congested. Returns true if the link was congested.
    pub(super) fn transmit_carried(&mut self, now: u64, network: &mut Network) -> bool {
        let Transport::Rdma(carrier) = &mut self.transport else { return false };
        let mut busy = false;
        let rdma = &mut carrier.connection;
        if self.connection.state() == State::Closed {
            // After a reset by the peer, it has nothing to be told.
            if !matches!(self.connection.reason(), Some(Aborted | TimedOut)) {
                return false;
            }
            rdma.abort();
        } else {
            let written = rdma.set_written(now, self.written.max(rdma.acknowledged()));
            let consumed = rdma.set_consumed(self.delivered.min(rdma.received()));
            debug_assert!(written.is_ok() && consumed.is_ok(), "{written:?}, {consumed:?}");
            busy = carrier.store(now, &self.send);
        }
        let Carrier { connection: rdma, headers, .. } = &mut **carrier;
        let (local, remote) = (self.flow.local, self.flow.remote);
        let source_port = FIRST_SOURCE_PORT | local.port() ^ remote.port();
        while !network.is_congested() {
            let Some(transmit) = rdma.poll_transmit(now, headers) else {
                self.follow(now);
                return busy;
            };
            let headers = &headers[..transmit.headers];
            let (payload, padding) = (transmit.payload, transmit.padding);
            let has_icrc = !network.leaves_out_icrc();
            let packet = Outgoing { source_port, headers, ring: &self.send, payload, padding, has_icrc };
            network.send(now, self.route, local.ip(), remote.ip(), 0, &packet);
        }
        true
    }
}

impl<A> Stack<A> {
    /// Lets RDMA carry the data of a connection whose handshake has ended, if both sides have offered it.
    pub(super) fn agree(&mut self, stream: &mut Stream, offers: Option<(Offer, Offer)>) {
        let Some(pairs) = &self.queue_pairs else { return };
        if stream.route == Route::Own {
            return;
        }
        let Some(offers) = offers else {
            stream.transport = Transport::Tcp(Reason::NotOffered);
            return;
        };
        let number = endpoint(offers.0).queue_pair;
        let claimed = self.owners.as_ref().is_none_or(|owners| owners.claim_queue_pair(number, self.thread));
        if !claimed || pairs.keys.contains_key(&number) {
            stream.transport = Transport::Tcp(Reason::Busy);
            return;
        }
        stream.queue_pair = Some(number);
        stream.carried.connections = 1;
        stream.carry(offers, self.secrets.carrier(&stream.flow, &offers.0));
    }

    /// Lets RDMA carry the data of a connection that this side has opened, once it is established.
    pub(super) fn on_connected(&mut self, key: Key) {
        let Some(Socket { role, .. }) = self.sockets.get_mut(key).filter(|_| self.queue_pairs.is_some())
        else {
            return;
        };
        // Take the connection out of the table while the stack's other parts are in use.
        let Role::Stream(mut stream) = std::mem::replace(role, Role::Bound) else { return };
        let offers = stream.connection.offers();
        self.agree(&mut stream, offers);
        if let Some(socket) = self.sockets.get_mut(key) {
            socket.role = Role::Stream(stream);
        }
        self.list_queue_pair(key);
    }

    /// Returns the offer of RDMA to a peer, if the engine uses RDMA and the peer is another host.
    pub(super) fn offer(&self, flow: &Flow, sequence: u32) -> Option<Offer> {
        (self.queue_pairs.is_some() && !self.network.is_own(flow.remote.ip()))
            .then(|| self.secrets.offer(flow, sequence))
    }

    /// Makes `key` the connection of its queue pair, if it has one.
    pub(super) fn list_queue_pair(&mut self, key: Key) {
        let number = self.sockets.get(key).and_then(Socket::stream).and_then(|stream| stream.queue_pair);
        if let (Some(pairs), Some(number)) = (&mut self.queue_pairs, number) {
            pairs.keys.insert(number, key);
        }
    }

    /// Frees the queue pair of a connection that is being removed, and adds its counters to those of the stack.
    pub(super) fn forget_carried(&mut self, stream: &Stream) {
        let (Some(pairs), Some(number)) = (&mut self.queue_pairs, stream.queue_pair) else { return };
        pairs.counters += stream.rdma_counters();
        pairs.keys.remove(&number);
        if let Some(owners) = &self.owners {
            owners.release_queue_pair(number, self.thread);
        }
    }

    /// Returns the counters of RDMA, with those of current connections. `None` if the engine does not use RDMA.
    pub fn rdma_counters(&self) -> Option<RdmaCounters> {
        let mut sum = self.queue_pairs.as_ref()?.counters;
        for stream in self.sockets.iter().filter_map(|(_, socket)| socket.stream()) {
            sum += stream.rdma_counters();
        }
        Some(sum)
    }

    /// Handles the return of the peer to TCP, and then its segment.
    pub(super) fn on_returned(&mut self, now: u64, key: Key, segment: &inlane_tcp::Segment<'_>) {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        stream.return_to_tcp(now, Reason::Returned);
        let events = stream.connection.on_segment(now, segment, &mut stream.receive);
        self.after_events(now, key, events);
    }
}
