//! The settings of an engine, and their check: port, addresses and gateways, control socket, and limits.

use crate::error::{Error, Result};
use crate::field;
use crate::stack::card::message::Hello;
use inlane_core::setting::Subject;
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::spec::PortSpec;
use inlane_ports::wrap::fault::Faults;
use inlane_wire::ethernet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the engine's port, such as `af_xdp:veth0`.
    pub port: PortSpec,
    /// The number of threads that run sockets. Each has a receive queue and a transmit queue of the port.
    pub threads: u16,
    /// The cores to which the threads are pinned, in order. Empty if they are not pinned.
    pub cores: Vec<usize>,
    /// The engine's addresses, each with the length of its network's prefix.
    pub addresses: Vec<Prefix>,
    /// The routers for destinations outside the networks of `addresses`, at most one for each address family.
    pub gateways: Vec<IpAddr>,
    /// True if the engine also runs connections to 127.0.0.0/8 and ::1.
    pub loopback: bool,
    /// The control socket's path.
    pub socket: PathBuf,
    /// The control socket's permissions.
    pub mode: u32,
    /// The control socket's group. `None` leaves that of the engine's process.
    pub group: Option<u32>,
    /// Rules that keep sockets of all programs with the kernel, in the form that [`crate::rules::read`] returns. Empty if there
    /// are none.
    pub rules: String,
    /// The largest IP packet on the port, in bytes. `None` chooses it by the port; see [`Settings::mtu`] and
    /// [`Settings::segment_mtu`].
    pub mtu: Option<u16>,
    /// The engine's MAC address; `None` takes that of the port's interface.
    pub mac: Option<Mac>,
    /// The size in bytes of each ring of a connection. A connection has one ring for each direction. A power
    /// of two.
    pub buffer: usize,
    /// The most sockets that one process may have.
    pub sockets_per_program: usize,
    /// What carries the data of connections to other engines.
    pub transport: Transport,
    /// True if a card runs TCP for the engine: [`crate::Card`]. The port leads to the card.
    pub card: bool,
    /// The time for which the engine continues to poll after its last work, before it sleeps.
    pub spin: Duration,
    /// Faults to inject into received packets.
    pub faults: Faults,
}

/// What carries the data of connections to other engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// RDMA (RoCEv2), if the peer's engine uses RDMA, too. Otherwise TCP. An engine that shares memory with the peer's engine
    /// stores data there in place of packets.
    Rdma,
    /// As `Rdma`, but all data is sent in packets.
    RdmaPackets,
}

impl Settings {
    /// The smallest MTU. IPv6 requires it of every link.
    pub const MIN_MTU: u16 = 1280;
    /// The most sockets of a process: the kernel's default limit of descriptors, `fs.nr_open`.
    pub const MAX_SOCKETS: usize = 1 << 20;
    /// The most threads.
    pub const MAX_THREADS: u16 = 64;

    /// Returns true if data may be stored into the memory of the peer's engine. Faults need packets.
    pub(crate) fn stores(&self) -> bool {
        self.transport == Transport::Rdma && self.faults.are_none()
    }
    /// The largest IP packet if the settings name none: that of an Ethernet link.
    const DEFAULT_MTU: u16 = 1500;
    /// The largest IP packet with a TCP segment on a port that carries frames of any size, if the settings name none. Larger segments
    /// are hardly faster, and their buffers take more memory.
    const LARGE_SEGMENT_MTU: u16 = 9000;

    /// Returns the largest IP packet on the port, in bytes, apart from TCP segments.
    pub fn mtu(&self) -> u16 {
        self.mtu.unwrap_or(Self::DEFAULT_MTU)
    }

    /// Returns the largest IP packet with a TCP segment, in bytes. It can be larger than [`Settings::mtu`] because both ends of
    /// a connection announce the segments that they accept: a peer with another MTU gets segments that it accepts. Datagrams
    /// have no such negotiation.
    pub fn segment_mtu(&self) -> u16 {
        match self.mtu {
            None if self.port.has_free_buffers() => Self::LARGE_SEGMENT_MTU,
            _ => self.mtu(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Setting`] names the first setting that is wrong.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: Subject, why: String| Err(Error::Setting { what, why });
        let most = Self::MAX_THREADS;
        if self.cores.len() > most.into() {
            let why = format!("it names {} cores; name at most {most}", self.cores.len());
            return wrong(field::CORES.into(), why);
        }
        if !(1..=most).contains(&self.threads) {
            return wrong(field::THREADS.with(self.threads).into(), format!("give 1 to {most}"));
        }
        if self.card && (self.threads > 1 || self.transport != Transport::Tcp) {
            let why = "the card runs all connections over TCP; give one thread, and the transport TCP";
            return wrong(field::CARD.into(), why.into());
        }
        if self.card && self.addresses.len() > Hello::MOST {
            let why = format!("an engine with a card has at most {} addresses; leave some out", Hello::MOST);
            return wrong(field::ADDRESS.into(), why);
        }
        if let Some((core, why)) = inlane_core::cores::refused(&self.cores) {
            return wrong(format!("{}: core {core}", field::CORES).into(), why);
        }
        if self.addresses.is_empty() {
            return wrong(field::ADDRESS.into(), "give at least one, such as 10.0.0.1/24".into());
        }
        for (index, prefix) in self.addresses.iter().enumerate() {
            let ip = prefix.address;
            let what = || field::ADDRESS.with(prefix).into();
            if ip.is_loopback() {
                let why = format!(
                    "it cannot be an interface's address; for connections within the machine add {}",
                    field::LOOPBACK
                );
                return wrong(what(), why);
            }
            if ip.is_unspecified() || ip.is_multicast() {
                return wrong(
                    what(),
                    "it cannot be an interface's address; give for example 10.0.0.1/24".into(),
                );
            }
            if self.addresses[..index].iter().any(|other| other.address == ip) {
                return wrong(what(), format!("{ip} is given twice; give each address once"));
            }
            if let Some(why) = reserved(prefix) {
                return wrong(
                    what(),
                    format!("{why}; give the address of a host in it, for example {}", host(prefix)),
                );
            }
        }
        for (index, gateway) in self.gateways.iter().enumerate() {
            if self.gateways[..index].iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
                return wrong(
                    field::GATEWAY.with(gateway).into(),
                    "it is the second of its family; give one for IPv4 and one for IPv6".into(),
                );
            }
            if !self.addresses.iter().any(|prefix| prefix.contains(*gateway)) {
                let why = format!(
                    "no {} has a network that contains it; choose a router in one of these networks",
                    field::ADDRESS
                );
                return wrong(field::GATEWAY.with(gateway).into(), why);
            }
            if self.addresses.iter().any(|prefix| prefix.address == *gateway) {
                let why = "it is an address of the engine itself; give the address of a router";
                return wrong(field::GATEWAY.with(gateway).into(), why.into());
            }
            // Routers of an IPv6 network may have the network's own address (RFC 4291), so allow it.
            let near = self.addresses.iter().filter(|it| it.contains(*gateway) && gateway.is_ipv4());
            let mut as_host = near.map(|prefix| Prefix { address: *gateway, ..*prefix });
            if let Some(why) = as_host.find_map(|prefix| reserved(&prefix)) {
                return wrong(
                    field::GATEWAY.with(gateway).into(),
                    format!("{why}; give the address of a router"),
                );
            }
        }
        if let Some(mtu) = self.mtu.filter(|&mtu| mtu < Self::MIN_MTU) {
            return wrong(field::MTU.with(mtu).into(), format!("give {} to {}", Self::MIN_MTU, u16::MAX));
        }
        if !self.buffer.is_power_of_two() || !(4096..=1 << 30).contains(&self.buffer) {
            return wrong(field::BUFFER.with(self.buffer).into(), "give a power of two from 4K to 1G".into());
        }
        if !(1..=Self::MAX_SOCKETS).contains(&self.sockets_per_program) {
            let what = field::SOCKETS.with(self.sockets_per_program);
            return wrong(what.into(), format!("give 1 to {}", Self::MAX_SOCKETS));
        }
        if let Some(mac) = self.mac.filter(|mac| mac.is_multicast() || *mac == Mac::default()) {
            let why = if mac.is_multicast() {
                "it is the address of a group; give one whose first byte is even, such as 02:00:00:00:00:01"
            } else {
                "no interface has this address; give another, such as 02:00:00:00:00:01"
            };
            return wrong(field::MAC.with(mac).into(), why.into());
        }
        Ok(())
    }
}

/// Returns why a host cannot have this address: it is the address of the network, or the network's broadcast
/// address. Returns `None` if the address is usable.
fn reserved(prefix: &Prefix) -> Option<String> {
    let (bits, family) = bits(prefix.address);
    // Networks of one or two addresses reserve none of them (RFC 3021, RFC 6164).
    let host_bits = family.checked_sub(prefix.length.into()).filter(|&host_bits| host_bits > 1)?;
    let hosts = u128::MAX >> (128 - host_bits);
    match bits & hosts {
        0 => Some(format!("{} is the address of the network itself", prefix.address)),
        host if host == hosts && prefix.address.is_ipv4() => {
            Some(format!("{} is the broadcast address of its network", prefix.address))
        }
        _ => None,
    }
}

/// Returns the first host of a network of three or more addresses, with the length of its prefix.
fn host(prefix: &Prefix) -> Prefix {
    let (bits, family) = bits(prefix.address);
    let hosts = u128::MAX >> (128 - (family - u32::from(prefix.length)));
    let first = (bits & !hosts) + 1;
    let address = match prefix.address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(first as u32)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(first)),
    };
    Prefix { address, ..*prefix }
}

/// Returns an address as a number, and how many bits its family has.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(ip) => (ip.to_bits().into(), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            port: "null".parse().unwrap(),
            threads: 1,
            cores: Vec::new(),
            addresses: vec![Prefix::parse("10.0.0.1/24").unwrap()],
            gateways: Vec::new(),
            loopback: false,
            socket: PathBuf::new(),
            mode: 0o600,
            group: None,
            rules: String::new(),
            mtu: None,
            mac: None,
            buffer: 65536,
            sockets_per_program: 1,
            transport: Transport::Tcp,
            card: false,
            spin: Duration::ZERO,
            faults: Faults::default(),
        }
    }

    #[test]
    fn addresses_that_no_interface_can_have_are_refused() {
        let check = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| Prefix::parse(text).unwrap()).collect();
            let checked = Settings { addresses, ..settings() }.check();
            checked.map_err(|error| error.to_string())
        };
        for good in [
            "10.0.0.0/31",
            "10.0.0.255/31",
            "10.0.0.1/32",
            "10.0.1.0/23",
            "1.2.3.4/0",
            "fd00::1/64",
            "fd00::/127",
        ] {
            assert_eq!(check(&[good]), Ok(()), "{good}");
        }
        for bad in ["10.0.0.0/24", "10.0.0.255/24", "127.0.0.1/8", "0.0.0.0/24", "224.0.0.1/4", "fd00::/64"] {
            assert!(check(&[bad]).is_err_and(|why| why.contains(bad)), "{bad}");
        }
        assert!(check(&["10.0.0.0/24"]).is_err_and(|why| why.ends_with("for example 10.0.0.1/24")));
        assert!(check(&["fd00::/64"]).is_err_and(|why| why.ends_with("for example fd00::1/64")));
        assert!(check(&["10.0.0.1/24", "10.0.0.1/24"]).is_err_and(|why| why.contains("twice")));
    }

    #[test]
    fn a_gateway_is_another_host_of_a_network_of_the_engine() {
        let check = |gateway: &str| {
            let gateways = vec![gateway.parse().unwrap()];
            Settings { gateways, ..settings() }.check().map_err(|error| error.to_string())
        };
        assert_eq!(check("10.0.0.254"), Ok(()));
        for bad in ["10.0.0.0", "10.0.0.1", "10.0.0.255", "10.0.1.1"] {
            assert!(check(bad).is_err_and(|why| why.contains(&format!("gateway={bad}: "))), "{bad}");
        }
    }

    #[test]
    fn too_many_cores_and_cores_that_are_not_allowed_are_refused_before_the_port_opens() {
        let check = |cores: Vec<usize>| {
            let settings = Settings { threads: cores.len() as u16, cores, ..settings() };
            settings.check().unwrap_err().to_string()
        };
        assert_eq!(check((0..65).collect()), "cores: it names 65 cores; name at most 64");
        assert!(check(vec![100_000]).starts_with("cores: core 100000: this process may use only the core"));
    }

    #[test]
    fn a_group_address_and_a_limit_of_zero_sockets_are_refused() {
        let mac = Some(Mac::BROADCAST);
        assert!(
            Settings { mac, ..settings() }.check().is_err_and(|error| error.to_string().contains("mac="))
        );
        let sockets_per_program = 0;
        let checked = Settings { sockets_per_program, ..settings() }.check();
        assert!(checked.is_err_and(|error| error.to_string().contains("sockets=0: give 1 to")));
    }
}
