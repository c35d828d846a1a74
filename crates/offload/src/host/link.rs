//! The port of an engine: opens it with a queue for each thread, and checks the kernel's interface before.

use super::interface::{self, kernel_addresses};
use crate::error::{Error, Result};
use crate::field;
use crate::settings::Settings;
use crate::stack::network::{Network, NetworkConfig};
use crate::trace::{Recorder, TracedRx, TracedTx};
use inlane_core::clock::Clock;
use inlane_core::port::{PeerChannel, Port, PortInfo, Rx, Tx};
use inlane_core::secret::without_secret;
use inlane_offload_protocol::rules::Prefix;
use inlane_ports::open::OpenRequest;
use inlane_ports::pcap::Playback;
use inlane_ports::spec::{Kind, PortSpec};
use inlane_wire::ethernet::{self, Mac};
use std::os::fd::RawFd;
use std::sync::Arc;

/// The memory in bytes for the packet buffers of each queue. Large buffers are therefore fewer.
const POOL_BYTES: usize = 64 << 20;
/// The least number of packet buffers of each queue. The queues of a port, and the packets that wait for it, hold fewer.
const LEAST_BUFFERS: usize = 4096;

/// The share of one thread in the engine's port: a receive queue, and the descriptors that announce packets.
pub struct Link {
    /// The port. Only the first thread's link has it.
    port: Option<Box<dyn Port>>,
    info: PortInfo,
    wait_descriptors: Vec<RawFd>,
    /// The receive queue.
    pub rx: Box<dyn Rx>,
}

impl Link {
    /// Opens the port that `settings` names, with one queue for each thread. Creates a pool of `buffers`
    /// packet buffers for each queue. Returns a link and a network for each thread. The first link holds the
    /// port. If there is a recorder, the queues record messages.
    ///
    /// # Errors
    /// Errors of the port and its pools, and an error if the port has fewer queues than there are threads.
    pub fn open(
        settings: &Settings,
        clock: &Clock,
        buffers: usize,
        recorder: Option<&Arc<Recorder>>,
    ) -> Result<Vec<(Self, Network)>> {
        let room = room(settings.segment_mtu().into());
        let spec = settings.port.clone().with_buffers(room);
        let ports = std::slice::from_ref(&spec);
        let buffers = buffers.min((POOL_BYTES / room).max(LEAST_BUFFERS));
        let queues = settings.threads;
        // Faults may damage packets, which only complete checksums reveal.
        let in_place = inlane_ports::open::memif_in_place(&spec, room, settings.faults.are_none())?;
        let accepts_partial = in_place.is_some() && settings.faults.are_none();
        // DPDK's ports need pools of their own kind.
        let pooled: &[PortSpec] = if in_place.is_some() { &[] } else { ports };
        let (mut port, room): (Box<dyn Port>, _) = match in_place {
            Some(memif) => (Box::new(memif), room),
            None => {
                let request = OpenRequest {
                    ports,
                    rx: None,
                    tx: &[],
                    reference: None,
                    rate: None,
                    playback: Playback::default(),
                    queues,
                    room,
                };
                let mut opened = inlane_ports::open::ports(&request, clock)?;
                (opened.ports.remove(0), opened.room)
            }
        };
        let most = port.info().max_queues;
        if queues > most {
            return Err(Error::Setting {
                what: field::THREADS.with(queues).into(),
                why: too_few_queues(settings, most),
            });
        }
        let pools = (0..queues).map(|_| inlane_ports::open::pool(pooled, buffers, room));
        let pools = pools.collect::<Result<Vec<_>, _>>()?;
        port.configure(&pools, queues)?;
        let ends = (0..queues).zip(&pools).map(|(queue, pool)| {
            let rx = port.take_rx(queue)?;
            let tx = port.take_tx(queue, pool.clone())?;
            let rx = match settings.faults.are_none() {
                true => rx,
                false => Box::new(settings.faults.rx(rx, pool, clock)?) as Box<dyn Rx>,
            };
            Ok(match recorder {
                None => (rx, tx),
                Some(recorder) => (
                    Box::new(TracedRx::new(rx, recorder.clone())) as Box<dyn Rx>,
                    Box::new(TracedTx::new(tx, recorder.clone())) as Box<dyn Tx>,
                ),
            })
        });
        let ends = ends.collect::<Result<Vec<_>>>()?;
        port.start()?;
        let descriptors = port.wait_descriptors();
        let interface = settings.port.interface();
        let mac =
            settings.mac.or_else(|| mac_of(interface?)).unwrap_or(Mac([2, 0x69, 0x6e, 0x6c, 0x61, 0x6e]));
        let config = NetworkConfig {
            mac,
            mtu: settings.mtu(),
            segment_mtu: settings.segment_mtu(),
            addresses: settings.addresses.clone(),
            gateways: settings.gateways.clone(),
            loopback: settings.loopback,
            partial_checksums: accepts_partial || interface.is_some_and(is_virtual),
            peer_accepts_partial_checksums: port.peer_accepts_partial_checksums(),
            missing_icrc: accepts_partial,
        };
        let parts = ends.into_iter().zip(pools).enumerate().map(|(index, ((rx, tx), pool))| {
            // A port has either one wait descriptor for each queue, in the queues' order, or none.
            let wait_descriptors = match descriptors.len() == usize::from(queues) {
                true => vec![descriptors[index]],
                false => descriptors.clone(),
            };
            let link = Self { port: None, info: port.info().clone(), wait_descriptors, rx };
            (link, Network::new(&config, tx, pool))
        });
        let mut parts: Vec<_> = parts.collect();
        parts[0].0.port = Some(port);
        Ok(parts)
    }

    /// Returns the port's properties.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns the channel to the engine at the other end of the port's link. Only the first thread's link has it.
    pub fn peer_channel(&self) -> Option<Arc<dyn PeerChannel>> {
        self.port.as_ref()?.peer_channel()
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

    /// Stops the port, if this link holds it. This frees the buffers that the port holds.
    pub fn stop_port(&mut self) {
        if let Some(port) = &mut self.port {
            port.stop();
        }
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
    // A driver's stand-in for a network moves no bytes. Such ports are for tests.
    let named = Kind::NAMED.map(Kind::properties).into_iter();
    let networks = named.filter(|kind| kind.is_network && kind.moves_payload).map(|kind| kind.syntax);
    let networks: Vec<_> = networks.collect();
    let why = format!("{why}; give one of {}", networks.join(", "));
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
        Some(mtu) if settings.port.kind() == Kind::AfPacket && room(mtu) > room(settings.mtu().into()) => {
            wrong(format!(
                "the MTU of {name} is {mtu}, and the engine's is {}; add {}, or lower the interface's: ip link set {name} mtu {}",
                settings.mtu(),
                field::MTU.with(mtu),
                settings.mtu()
            ))
        }
        Some(mtu) if mtu < settings.mtu().into() => {
            let what = field::MTU.with(settings.mtu()).into();
            let why = format!(
                "{name} carries packets of at most {mtu} bytes; give {}, or raise its limit: ip link set {name} mtu {}",
                field::MTU.with(mtu),
                settings.mtu()
            );
            Err(Error::Setting { what, why })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_port_lists_the_ports_of_networks() {
        for text in ["null", "nul"] {
            let why = parse_port(text).unwrap_err().to_string();
            let ports =
                "ntb:SOCKET|ADDRESS, af_xdp:IFACE, af_packet:IFACE, tap:NAME, memif:SOCKET, pci:ADDRESS";
            assert!(why.ends_with(&format!("give one of {ports}")), "{why}");
        }
    }
}
