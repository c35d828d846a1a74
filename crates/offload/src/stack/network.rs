//! The network of one thread: its transmit queue, the engine's addresses, its routes, and its neighbours.

mod datagram;
mod neighbours;
mod payload;
mod raw;
mod reassembly;
mod send;

pub use datagram::Datagram;
pub use payload::{Checksum, Payload};
pub use reassembly::{Outcome, Reassembly};

use super::card::Channel;
use inlane_core::packet::{Packet, Pool};
use inlane_core::port::Tx;
use inlane_offload_protocol::rules::Prefix;
use inlane_wire::ethernet::Mac;
use inlane_wire::ndp;
use neighbours::Neighbours;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The number of packet buffers of an engine that runs on a real port.
pub const BUFFERS: usize = 16384;
/// The largest IP packet that the engine sends to itself, in bytes.
pub const OWN_MTU: u16 = 65535;
/// The most packets that wait for room in the transmit queue. Further ones are dropped.
const MOST_WAITING: usize = 1024;

/// Where packets for a destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// To the engine itself.
    Own,
    /// The packets go through the port to the neighbour with this address.
    Port(IpAddr),
}

/// Counters of the link.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct LinkCounters {
    /// The number of frames received.
    pub received_packets: u64,
    /// Bytes of received frames.
    pub received_bytes: u64,
    /// The number of frames sent.
    pub sent_packets: u64,
    /// Bytes of sent frames.
    pub sent_bytes: u64,
    /// Received frames that are for other hosts, or have other protocols than the engine's.
    pub ignored: u64,
    /// Received packets with a malformed header or a wrong checksum.
    pub malformed: u64,
    /// Received fragments of IP packets.
    pub fragments: u64,
    /// Packets that were reassembled from fragments.
    pub reassembled: u64,
    /// Packets whose fragments overlapped, did not all arrive in time, or did not fit into memory.
    pub unassembled: u64,
    /// Packets to send that were dropped: no free buffer, a full transmit queue, or a neighbour that did not answer.
    pub dropped: u64,
    /// Packets that the engine sent to itself.
    pub own_packets: u64,
    /// The number of packets that one thread of the engine received and passed to another thread.
    pub passed: u64,
}

impl std::ops::AddAssign for LinkCounters {
    fn add_assign(&mut self, other: Self) {
        self.received_packets += other.received_packets;
        self.received_bytes += other.received_bytes;
        self.sent_packets += other.sent_packets;
        self.sent_bytes += other.sent_bytes;
        self.ignored += other.ignored;
        self.malformed += other.malformed;
        self.fragments += other.fragments;
        self.reassembled += other.reassembled;
        self.unassembled += other.unassembled;
        self.dropped += other.dropped;
        self.own_packets += other.own_packets;
        self.passed += other.passed;
    }
}

/// What a network is created from.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// The engine's MAC address.
    pub mac: Mac,
    /// The largest IP packet on the port, in bytes, apart from TCP segments.
    pub mtu: u16,
    /// The largest IP packet with a TCP segment, in bytes. At least `mtu`.
    pub segment_mtu: u16,
    /// The engine's addresses, each with the length of its network's prefix.
    pub addresses: Vec<Prefix>,
    /// The routers for other destinations.
    pub gateways: Vec<IpAddr>,
    /// True if the engine also runs connections to loopback addresses.
    pub loopback: bool,
    /// See [`Network::accepts_partial_checksums`].
    pub partial_checksums: bool,
    /// True if the other end of the port's link accepts partial checksums.
    pub peer_accepts_partial_checksums: bool,
    /// See [`Network::accepts_missing_icrc`].
    pub missing_icrc: bool,
}

/// The network as one thread of the engine uses it. Each thread has a transmit queue of the port.
pub struct Network {
    tx: Box<dyn Tx>,
    pub(crate) pool: Arc<dyn Pool>,
    /// Buffers that were allocated from the pool in advance, for later packets to send.
    spare: Vec<Packet>,
    /// Packets that the transmit queue has not accepted yet.
    waiting: Vec<Packet>,
    /// True if the memory of the transmit queue, to which packets are written in place, was full since the last flush.
    full: bool,
    mac: Mac,
    mtu: u16,
    segment_mtu: u16,
    addresses: Vec<Prefix>,
    gateways: Vec<IpAddr>,
    loopback: bool,
    neighbours: Neighbours,
    /// IP packets that the engine has sent to itself and not processed yet.
    pub(crate) own: VecDeque<Vec<u8>>,
    /// Free buffers for IP packets that the engine sends to itself.
    spare_own: Vec<Vec<u8>>,
    /// The path MTU to each host for which an ICMP error reported one, and the time of this error in
    /// nanoseconds. The link's MTU applies to other hosts.
    path_mtus: HashMap<IpAddr, (u16, u64)>,
    /// The identifications of packets that are sent in fragments.
    fragment_ids: datagram::FragmentIds,
    /// Memory for a packet that is being cut into fragments.
    scratch: Vec<u8>,
    /// True if packets may arrive with incomplete checksums. On a veth interface, for example, Linux on the
    /// same machine leaves the checksums to a network card, but there is no card.
    partial_checksums: bool,
    /// True if TCP segments may leave with partial checksums: the other end of the link has announced that it accepts them.
    peer_accepts_partial_checksums: bool,
    /// See [`Network::accepts_missing_icrc`].
    missing_icrc: bool,
    /// The received fragments of IP packets that are not complete yet.
    pub(crate) reassembly: Reassembly,
    pub(crate) counters: LinkCounters,
    /// The link to the card, if one runs the engine's connections.
    pub(crate) channel: Option<Box<Channel>>,
}

impl Network {
    /// Creates a network that sends through `tx`. `pool` is the pool of the queue's packets.
    pub fn new(config: &NetworkConfig, tx: Box<dyn Tx>, pool: Arc<dyn Pool>) -> Self {
        let mac = config.mac;
        let mut addresses = config.addresses.clone();
        if addresses.iter().any(|prefix| prefix.address.is_ipv6()) {
            addresses.push(Prefix { address: ndp::link_local(mac).into(), length: 64 });
        }
        Self {
            tx,
            pool,
            spare: Vec::new(),
            waiting: Vec::new(),
            full: false,
            mac,
            mtu: config.mtu,
            segment_mtu: config.segment_mtu,
            addresses,
            gateways: config.gateways.clone(),
            loopback: config.loopback,
            neighbours: Neighbours::default(),
            own: VecDeque::new(),
            spare_own: Vec::new(),
            fragment_ids: datagram::FragmentIds::default(),
            scratch: Vec::new(),
            path_mtus: HashMap::new(),
            partial_checksums: config.partial_checksums,
            peer_accepts_partial_checksums: config.peer_accepts_partial_checksums,
            missing_icrc: config.missing_icrc,
            reassembly: Reassembly::default(),
            counters: LinkCounters::default(),
            channel: None,
        }
    }

    /// Replaces the transmit queue. Packets that the former queue has accepted stay with its port.
    pub fn set_tx(&mut self, tx: Box<dyn Tx>) {
        self.tx = tx;
    }

    /// Frees the packets that wait for the transmit queue, and those allocated in advance.
    pub fn free_packets(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let spare = std::mem::take(&mut self.spare);
        // SAFETY: both lists hold packets of this pool. Nobody else uses these packets.
        unsafe {
            self.pool.free(&waiting);
            self.pool.free(&spare);
        }
    }

    /// Returns the engine's MAC address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns the engine's addresses, with the link-local one.
    pub fn addresses(&self) -> &[Prefix] {
        &self.addresses
    }

    /// Returns true if `address` is the engine's own.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|prefix| prefix.address == address)
            || (self.loopback && address.is_loopback())
    }

    /// Returns the route to a destination, or `None` if there is none.
    pub fn route(&self, destination: IpAddr) -> Option<Route> {
        if self.is_own(destination) {
            return Some(Route::Own);
        }
        if destination.is_loopback() || destination.is_unspecified() || destination.is_multicast() {
            return None;
        }
        if destination == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return None;
        }
        if self.addresses.iter().any(|prefix| prefix.contains(destination)) {
            return Some(Route::Port(destination));
        }
        let gateway = self.gateways.iter().find(|gateway| gateway.is_ipv4() == destination.is_ipv4());
        gateway.map(|&gateway| Route::Port(gateway))
    }

    /// Returns the local address for connections to a destination.
    pub fn source(&self, destination: IpAddr) -> Option<IpAddr> {
        match self.route(destination)? {
            // Linux, too, chooses 127.0.0.1 for each address of 127.0.0.0/8.
            Route::Own if destination.is_loopback() && destination.is_ipv4() => {
                Some(Ipv4Addr::LOCALHOST.into())
            }
            Route::Own => Some(destination),
            Route::Port(hop) => {
                let family =
                    self.addresses.iter().filter(|prefix| prefix.address.is_ipv4() == destination.is_ipv4());
                let near = family.clone().find(|prefix| prefix.contains(hop));
                near.or_else(|| family.clone().next()).map(|prefix| prefix.address)
            }
        }
    }

    /// Returns true for addresses that stand for several hosts: groups, and the broadcast addresses of the
    /// engine's networks.
    pub fn is_group(&self, address: IpAddr) -> bool {
        let IpAddr::V4(ip) = address else { return address.is_multicast() };
        ip.is_multicast()
            || ip.is_broadcast()
            || self.addresses.iter().any(|prefix| {
                let hosts = u32::MAX.checked_shr(prefix.length.into()).unwrap_or(0);
                prefix.contains(address) && prefix.length < 31 && ip.to_bits() & hosts == hosts
            })
    }

    /// Returns the largest payload, in bytes, of a TCP segment without options on a route. `v6` is true for
    /// IPv6 and false for IPv4.
    pub fn mss(&self, route: Route, v6: bool) -> u16 {
        let mtu = if route == Route::Own { OWN_MTU } else { self.segment_mtu };
        mtu - if v6 { 60 } else { 40 }
    }

    /// Returns true if the engine accepts packets with partial checksums: their checksum field holds only the sum of the
    /// pseudo header. Senders on the same machine write only this sum, because they leave the rest to a network
    /// card. Over memory that two engines share, nothing damages a packet, so no sum is needed. This applies to TCP segments
    /// and UDP datagrams.
    pub fn accepts_partial_checksums(&self) -> bool {
        self.partial_checksums
    }

    /// Returns true if the engine accepts RoCEv2 packets without an ICRC: the field is 0. This applies only to memory that two
    /// engines share, in which nothing damages a packet. The announcement of partial checksums includes it.
    pub fn accepts_missing_icrc(&self) -> bool {
        self.missing_icrc
    }

    /// Returns true if RoCEv2 packets leave without an ICRC, because the other end of the link accepts that.
    pub fn leaves_out_icrc(&self) -> bool {
        self.peer_accepts_partial_checksums
    }
}

/// Returns the multicast address of all nodes of a link.
pub fn all_nodes() -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
}
