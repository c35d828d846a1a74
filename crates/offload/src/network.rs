//! The engine's network: its port, its own addresses, its routes, and its neighbours.

mod datagram;
mod interface;
mod neighbours;
mod reassembly;
mod send;

pub use datagram::Datagram;
use interface::kernel_addresses;
pub use interface::{InterfaceState, WatchedInterface};
pub use reassembly::{Outcome, Reassembly};
pub use send::{Heard, Payload};

use crate::error::{Error, Result};
use crate::field;
use crate::settings::Settings;
use inlane_core::clock::Clock;
use inlane_core::packet::{Packet, Pool};
use inlane_core::port;
use inlane_core::port::{Port, Rx, Tx};
use inlane_core::secret::without_secret;
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::open::OpenRequest;
use inlane_ports::pcap::Playback;
use inlane_ports::spec::{Kind, PortSpec};
use inlane_wire::ethernet::{self, Mac};
use inlane_wire::ndp;
use neighbours::Neighbours;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
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

/// The share of one engine thread in the engine's network link: a receive queue and a transmit queue of the
/// port.
pub struct Network {
    /// The port. Only the first thread's part of the link has it; it is `None` in the other threads' parts.
    port: Option<Box<dyn Port>>,
    info: port::PortInfo,
    wait_descriptors: Vec<RawFd>,
    pub(crate) rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
    pub(crate) pool: Arc<dyn Pool>,
    /// Buffers that were allocated from the pool in advance, for later packets to send.
    spare: Vec<Packet>,
    /// Packets that the transmit queue has not accepted yet.
    waiting: Vec<Packet>,
    mac: Mac,
    mtu: u16,
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
    /// The identification of the last packet that was sent in fragments.
    last_fragment_id: u32,
    /// Memory for a packet that is being cut into fragments.
    scratch: Vec<u8>,
    /// True if packets may arrive with incomplete checksums. On a veth interface, for example, Linux on the
    /// same machine leaves the checksums to a network card, but there is no card.
    partial_checksums: bool,
    /// The received fragments of IP packets that are not complete yet.
    pub(crate) reassembly: Reassembly,
    pub(crate) counters: LinkCounters,
}

impl Network {
    /// Opens the port that `settings` names, with one queue for each thread. Creates a pool of `buffers`
    /// packet buffers for each queue. Returns one part of the link for each thread. The first part holds the
    /// port.
    ///
    /// # Errors
    /// Errors of the port and its pools, and an error if the port has fewer queues than there are threads.
    pub fn open(settings: &Settings, clock: &Clock, buffers: usize) -> Result<Vec<Self>> {
        let ports = std::slice::from_ref(&settings.port);
        let queues = settings.threads;
        let request = OpenRequest {
            ports,
            rx: None,
            tx: &[],
            function: "io",
            rate: None,
            playback: Playback::default(),
            queues,
            room: room(settings.mtu.into()),
        };
        let mut opened = inlane_ports::open::ports(&request, clock)?;
        let mut port = opened.ports.remove(0);
        let most = port.info().max_queues;
        if queues > most {
            return Err(Error::Setting {
                what: field::THREADS.with(queues).into(),
                why: too_few_queues(settings, most),
            });
        }
        let pools = (0..queues).map(|_| inlane_ports::open::pool(ports, buffers, opened.room));
        let pools = pools.collect::<Result<Vec<_>, _>>()?;
        port.configure(&pools, queues)?;
        let ends = (0..queues).zip(&pools).map(|(queue, pool)| {
            let rx = port.take_rx(queue)?;
            let tx = port.take_tx(queue, pool.clone())?;
            Ok(match settings.faults == inlane_ports::wrap::fault::Faults::default() {
                true => (rx, tx),
                false => (Box::new(settings.faults.rx(rx, pool, clock)?) as Box<dyn Rx>, tx),
            })
        });
        let ends = ends.collect::<Result<Vec<_>>>()?;
        port.start()?;
        let descriptors = port.wait_descriptors();
        let parts = ends.into_iter().zip(pools).enumerate().map(|(index, ((rx, tx), pool))| {
            // A port has either one wait descriptor for each queue, in the queues' order, or none.
            let wait_descriptors = match descriptors.len() == usize::from(queues) {
                true => vec![descriptors[index]],
                false => descriptors.clone(),
            };
            Self::new(settings, port.info().clone(), wait_descriptors, (rx, tx), pool)
        });
        let mut parts: Vec<Self> = parts.collect();
        parts[0].port = Some(port);
        Ok(parts)
    }

    fn new(
        settings: &Settings,
        info: port::PortInfo,
        wait_descriptors: Vec<RawFd>,
        (rx, tx): (Box<dyn Rx>, Box<dyn Tx>),
        pool: Arc<dyn Pool>,
    ) -> Self {
        let interface = settings.port.interface();
        let mac =
            settings.mac.or_else(|| mac_of(interface?)).unwrap_or(Mac([2, 0x69, 0x6e, 0x6c, 0x61, 0x6e]));
        let mut addresses = settings.addresses.clone();
        if addresses.iter().any(|prefix| prefix.address.is_ipv6()) {
            addresses.push(Prefix { address: ndp::link_local(mac).into(), length: 64 });
        }
        Self {
            port: None,
            info,
            wait_descriptors,
            rx,
            tx,
            pool,
            spare: Vec::new(),
            waiting: Vec::new(),
            mac,
            mtu: settings.mtu,
            addresses,
            gateways: settings.gateways.clone(),
            loopback: settings.loopback,
            neighbours: Neighbours::default(),
            own: VecDeque::new(),
            spare_own: Vec::new(),
            // Begin at an unpredictable number, because attackers exploit predictable identifications (RFC
            // 7739).
            last_fragment_id: std::hash::RandomState::new().build_hasher().finish() as u32,
            scratch: Vec::new(),
            path_mtus: HashMap::new(),
            partial_checksums: interface.is_some_and(is_virtual),
            reassembly: Reassembly::default(),
            counters: LinkCounters::default(),
        }
    }

    /// Replaces the transmit queue. Packets that the former queue has accepted stay with its port.
    pub fn set_tx(&mut self, tx: Box<dyn Tx>) {
        self.tx = tx;
    }

    /// Returns the port's properties.
    pub fn info(&self) -> &port::PortInfo {
        &self.info
    }

    /// Returns the descriptors that become readable when packets arrive. If there are none, the port must be
    /// polled.
    pub fn wait_descriptors(&self) -> &[RawFd] {
        &self.wait_descriptors
    }

    /// Takes the pending errors of the port's descriptors, for example because its interface is down.
    #[cold]
    pub fn clear_errors(&self) {
        self.wait_descriptors.iter().for_each(|&fd| interface::clear_error(fd));
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

    /// Stops the port, if this thread's part of the network owns the port. This frees the buffers that the
    /// port holds.
    pub fn stop_port(&mut self) {
        if let Some(port) = &mut self.port {
            port.stop();
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
        let mtu = if route == Route::Own { OWN_MTU } else { self.mtu };
        mtu - if v6 { 60 } else { 40 }
    }

    /// Returns true if the engine accepts packets whose checksum field holds only the sum of the pseudo
    /// header. Senders on the same machine write only this sum, because they leave the rest to a network
    /// card. This applies to TCP segments and UDP datagrams.
    pub fn accepts_partial_checksums(&self) -> bool {
        self.partial_checksums
    }
}

/// Explains why an engine cannot have as many threads as `settings` ask for, and what the user can do. `most`
/// is the number of queues of the port.
fn too_few_queues(settings: &Settings, most: u16) -> String {
    let has = match most {
        1 => format!("the port has 1 queue; leave {} out", field::THREADS),
        most => format!("the port has {most} queues; give {} or less", field::THREADS.with(most)),
    };
    match settings.port.interface() {
        Some(name) => {
            let queues = settings.threads;
            format!(
                "{has}, or give {name} more queues: 'ethtool -L {name} rx {queues}' (veth) or 'combined {queues}' (card)"
            )
        }
        None => has,
    }
}

fn mac_of(interface: &str) -> Option<Mac> {
    std::fs::read_to_string(format!("/sys/class/net/{interface}/address")).ok()?.trim().parse().ok()
}

/// Returns true for interfaces without a device: veth, bridges and the like.
fn is_virtual(interface: &str) -> bool {
    !std::path::Path::new(&format!("/sys/class/net/{interface}/device")).exists()
}

/// Returns the multicast address of all nodes of a link.
pub fn all_nodes() -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
}

/// Parses the specification of an engine's port. Checks its kind first, because that error is clearer than an error
/// of the other kinds' options.
///
/// # Errors
/// [`Error::Setting`] if the port cannot be the engine's, and the errors of [`PortSpec::parse`].
pub fn parse_port(text: &str) -> Result<PortSpec> {
    let why = match Kind::of(text) {
        Some(kind) if kind.properties().is_network => return Ok(PortSpec::parse(text)?),
        Some(_) => "it does not both receive and send frames of a network",
        None => "there is no such kind of port",
    };
    let why = format!("{why}; give af_xdp:IFACE, af_packet:IFACE, tap:NAME, memif:SOCKET or pci:ADDRESS");
    Err(Error::Setting { what: field::PORT.with(without_secret(text)).into(), why })
}

/// Returns the name of the port's interface, and the engine's addresses that the kernel has on it, too. Use it to warn:
/// engine and kernel would both answer for such an address, and connections to the kernel would break.
pub fn shared_addresses(settings: &Settings) -> Option<(String, Vec<Prefix>)> {
    let name = settings.port.interface()?;
    let kernel = kernel_addresses(name);
    let shared = settings.addresses.iter().filter(|prefix| kernel.contains(&prefix.address)).copied();
    Some((name.to_owned(), shared.collect()))
}

/// Returns the size of packet buffers for packets of `mtu` bytes.
fn room(mtu: usize) -> usize {
    (mtu + ethernet::HEADER + 2 * ethernet::TAG).next_multiple_of(64).max(2048)
}

/// Checks that the engine can use its port's interface. Called before the port is opened, because the port's
/// own errors name flags that the engine lacks.
///
/// # Errors
/// [`Error::Setting`] for the loopback interface, or if packets are larger than the engine's buffers or than the
/// interface allows.
pub fn check_interface(settings: &Settings) -> Result<()> {
    /// ARPHRD_LOOPBACK of Linux's include/uapi/linux/if_arp.h.
    const LOOPBACK: usize = 772;
    let Some(name) = settings.port.interface() else { return Ok(()) };
    let number = |file| {
        let text = std::fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let wrong = |why| Err(Error::Setting { what: field::PORT.with(&settings.port).into(), why });
    if number("type") == Some(LOOPBACK) {
        return wrong(format!(
            "{name} is the kernel's loopback interface and reaches no other host; choose another interface, and add {} \
             for connections within this machine",
            field::LOOPBACK
        ));
    }
    match number("mtu") {
        Some(mtu) if settings.port.kind() == Kind::AfPacket && room(mtu) > room(settings.mtu.into()) => {
            wrong(format!(
                "the MTU of {name} is {mtu}, and the engine's is {}; add {}, or lower the interface's: ip link set {name} mtu {}",
                settings.mtu,
                field::MTU.with(mtu),
                settings.mtu
            ))
        }
        Some(mtu) if mtu < settings.mtu.into() => {
            let what = field::MTU.with(settings.mtu).into();
            let why = format!(
                "{name} carries packets of at most {mtu} bytes; give {}, or raise its limit: ip link set {name} mtu {}",
                field::MTU.with(mtu),
                settings.mtu
            );
            Err(Error::Setting { what, why })
        }
        _ => Ok(()),
    }
}
