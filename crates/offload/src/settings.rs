//! The settings of an engine.

use crate::error::{Error, Result};
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::wrap::fault::Faults;
use inlane_wire::ethernet::Mac;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port, as `af_xdp:veth0`.
    pub port: String,
    /// The engine's addresses, each with the length of its network's prefix.
    pub addresses: Vec<Prefix>,
    /// The routers for destinations outside these networks, at most one a family.
    pub gateways: Vec<IpAddr>,
    /// Runs connections to 127.0.0.0/8 and ::1, too.
    pub loopback: bool,
    /// The control socket's path.
    pub socket: PathBuf,
    /// The control socket's permissions.
    pub mode: u32,
    /// The largest IP packet on the port, in bytes.
    pub mtu: u16,
    /// The engine's MAC address; `None` takes that of the port's interface.
    pub mac: Option<Mac>,
    /// The ring of each direction of a connection, in bytes: a power of two.
    pub buffer: usize,
    /// The most sockets that the programs of one process ID may have.
    pub sockets_per_program: usize,
    /// How long the engine polls after its last work before it sleeps.
    pub spin: Duration,
    /// Faults to inject into received packets.
    pub faults: Faults,
}

impl Settings {
    /// The least MTU, which IPv6 requires of every link.
    pub const MIN_MTU: u16 = 1280;

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Setting`] names the first setting that is wrong.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, why: String| Err(Error::Setting { what: what.into(), why });
        if self.addresses.is_empty() {
            return wrong("--address", "give at least one, such as 10.0.0.1/24".into());
        }
        for prefix in &self.addresses {
            let ip = prefix.address;
            if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
                return wrong("--address", format!("{ip} cannot be an interface's address"));
            }
        }
        for (index, gateway) in self.gateways.iter().enumerate() {
            if self.gateways[..index].iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
                return wrong("--gateway", format!("{gateway} is the second of its family; give one"));
            }
            if !self.addresses.iter().any(|prefix| prefix.contains(*gateway)) {
                return wrong("--gateway", format!("{gateway} is in the network of no --address"));
            }
        }
        if self.mtu < Self::MIN_MTU {
            return wrong("--mtu", format!("{} is less than {}", self.mtu, Self::MIN_MTU));
        }
        if !self.buffer.is_power_of_two() || !(4096..=1 << 30).contains(&self.buffer) {
            return wrong("--buffer", format!("{} is not a power of two from 4K to 1G", self.buffer));
        }
        Ok(())
    }
}
