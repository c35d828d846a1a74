//! What the processing of a received packet leaves to the caller of the stack.

use super::arena::Key;
use super::packet::{Arrival, ReceivedPacket};
use inlane_tcp::{Flow, Handshake, Segment};
use inlane_wire::ethernet::Mac;
use std::net::{IpAddr, SocketAddr};

/// What the stack's caller must do after a packet was received.
pub enum Outcome<'a> {
    /// Nothing.
    Done,
    /// Pass the IP packet to the thread `to`.
    Pass { to: usize, bytes: &'a [u8], arrival: Arrival },
    /// Move the connection `key` to the thread `to`, on which its packets arrive. Then pass the IP packet to that thread.
    Move { key: Key, to: usize, bytes: &'a [u8], arrival: Arrival },
    /// Take the connections that were moved to this thread, because the packet's connection may be among them. Then
    /// process the IP packet again, with [`Arrival::awaited`] set.
    Await { bytes: &'a [u8], arrival: Arrival },
    /// Count the connections of the listener `listener` that wait to be accepted, because they seem to fill its backlog. Then
    /// process the IP packet again, with [`Arrival::counted`] set.
    Count { listener: Key, bytes: &'a [u8], arrival: Arrival },
    /// Process this IP packet, which was reassembled from fragments.
    Reassembled(Vec<u8>),
    /// Create the connection of a completed handshake, or answer its segment with a reset.
    Established(Established<'a>),
    /// Create a connection that the card has accepted, or refuse it with [`Stack::refuse_card_stream`].
    Accepted { listener: Key, flow: Flow, id: u64, segment_size: u16 },
    /// Count the connections of a listener that wait to be accepted, and call [`Stack::tell_waiting`].
    CountForCard { listener: Key },
    /// Deliver a datagram to a UDP socket.
    Datagram(ReceivedDatagram<'a>),
    /// Report to the program of the connected UDP socket `key` that a datagram was refused.
    Unreachable { key: Key, refusal: Refusal },
    /// Tell the other threads a neighbour's MAC address.
    Heard(Heard),
}

/// A handshake that a listener has completed.
pub struct Established<'a> {
    /// The listener.
    pub listener: Key,
    /// The addresses of the connection.
    pub flow: Flow,
    /// The segment that completed the handshake. It may carry data.
    pub segment: Segment<'a>,
    /// What both sides agreed on.
    pub handshake: Handshake,
    /// True if the flow was in TIME-WAIT. Call [`Stack::end_time_wait`] afterwards.
    pub reopens: bool,
}

/// A received UDP datagram for a port of this thread.
pub struct ReceivedDatagram<'a> {
    /// The destination.
    pub local: SocketAddr,
    /// The sender.
    pub remote: SocketAddr,
    /// The payload.
    pub data: &'a [u8],
    /// The packet.
    pub packet: ReceivedPacket<'a>,
}

/// Why a datagram was refused, as an ICMP error reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The destination has no socket at the port.
    Port,
    /// The destination has no such protocol.
    Protocol,
    /// A firewall prohibits it.
    Prohibited,
}

/// A neighbour's MAC address that this thread has received. The engine's other threads must learn it.
pub struct Heard {
    /// The neighbour's IP address.
    pub address: IpAddr,
    /// The neighbour's MAC address.
    pub mac: Mac,
    /// True if a thread that has no entry for the neighbour must create one. If false, the threads only
    /// update existing entries.
    pub add: bool,
    /// True if the neighbour sent the message to this host. False if the neighbour announced itself to all hosts.
    pub asked: bool,
}
