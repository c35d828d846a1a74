//! Opens ports from their specifications.

use crate::check::{Checker, reference};
use crate::error::Result;
use crate::generate::Generator;
use crate::null::Null;
use crate::oran::Radio;
use crate::pcap::{Playback, Sink, Source};
use inlane_core::clock::Clock;
use inlane_core::port::spec::PortSpec;
use inlane_core::units::Rate;
use inlane_core::{Error, Port};
#[cfg(feature = "dpdk")]
use inlane_dpdk::spec::EthSpec;

/// The kinds of ports that DPDK provides.
#[cfg(feature = "dpdk")]
pub const DPDK_KINDS: &[&str] = EthSpec::KINDS;
/// The kinds of ports that DPDK provides: none in this build.
#[cfg(not(feature = "dpdk"))]
pub const DPDK_KINDS: &[&str] = &[];

/// Returns true if DPDK provides ports of this kind. Looks at the kind only; the rest of the name may be malformed.
pub fn is_dpdk(name: &str) -> bool {
    DPDK_KINDS.contains(&kind(name))
}

/// The kind of a port: what stands before its first colon or comma.
pub fn kind(name: &str) -> &str {
    PortSpec::kind_of(name)
}

/// True for ports that may stand on both sides of a run under one name; captures, generators and checkers are one each.
pub fn is_shared(name: &str) -> bool {
    kind(name) == "null" || is_dpdk(name)
}

/// True for ports that an ordinary user cannot open.
pub fn takes_privileges(name: &str) -> bool {
    ["af_xdp", "af_packet", "tap", "pci"].contains(&kind(name))
}

/// What was opened.
pub struct Opened {
    /// The ports, as named.
    pub ports: Vec<Box<dyn Port>>,
    /// Bytes that buffers must hold at least.
    pub room: usize,
}

/// What ports are opened for.
pub struct Opening<'a> {
    /// The ports, as the user wrote them.
    pub names: &'a [String],
    /// The port that packets are received from, if they flow in one direction only.
    pub received: Option<&'a str>,
    /// The function that packets go through on their way to a checker.
    pub function: &'a str,
    /// Packets or bits per second at which inlane's own ports create packets, if limited.
    pub rate: Option<Rate>,
    /// How a capture is played.
    pub playback: Playback,
    /// Queues of each port.
    pub queues: u16,
    /// Bytes that packet buffers hold at least.
    pub room: usize,
}

/// Opens every port. What is received from is opened first: a checker and a capture that is written learn from it.
///
/// # Errors
/// When one of them cannot be opened, or is of no kind that there is.
pub fn ports(opening: &Opening, clock: &Clock) -> Result<Opened> {
    let (mut generator, mut radio, mut source) = (None, None, None);
    let mut room = opening.room;
    match opening.received.map(|name| (name, kind(name))) {
        Some((name, "gen")) if Radio::is(name) => {
            let mut opened = Radio::open(name, clock)?;
            if opening.rate.is_some() {
                opened.set_rate(opening.rate);
            }
            room = room.max(opened.plan().longest());
            radio = Some(opened);
        }
        Some((name, "gen")) => {
            let mut opened = Generator::open(name, clock)?;
            if opening.rate.is_some() {
                opened.set_rate(opening.rate);
            }
            room = room.max(opened.traffic().longest());
            generator = Some(opened);
        }
        Some((name, "pcap")) => {
            let opened = Source::open(name, opening.playback)?;
            room = room.max(opened.longest());
            source = Some(opened);
        }
        _ => {}
    }
    let mut ports: Vec<Option<Box<dyn Port>>> = Vec::new();
    let mut receiver = None;
    for (index, name) in opening.names.iter().enumerate() {
        let is_receiver = receiver.is_none() && Some(name.as_str()) == opening.received;
        ports.push(match kind(name) {
            "gen" | "pcap" if is_receiver => {
                receiver = Some(index);
                None
            }
            "pcap" => Some(Box::new(Sink::create(name, source.as_ref())?)),
            "check" => {
                let reference = reference::find(opening.function)?;
                Some(Box::new(Checker::open(name, clock, generator.as_ref(), reference)?))
            }
            "gen" => {
                return Err(Error::port_usage(name, "a generator only receives: write it behind --rx").into());
            }
            "null" => {
                let mut opened = Null::open(name, clock)?;
                if opening.rate.is_some() {
                    opened.set_rate(opening.rate);
                }
                room = room.max(opened.size());
                Some(Box::new(opened))
            }
            #[cfg(feature = "dpdk")]
            _ if is_dpdk(name) => Some(inlane_dpdk::open_for(name, opening.queues.into())?),
            kind => {
                let why = format!(
                    "no port of kind '{kind}'; there are null, gen, check, pcap, {}",
                    DPDK_KINDS.join(", ")
                );
                return Err(Error::port_usage(name, why).into());
            }
        });
    }
    let opened = generator.map(|port| Box::new(port) as Box<dyn Port>);
    let opened = opened.or(radio.map(|port| Box::new(port) as Box<dyn Port>));
    let mut opened = opened.or(source.map(|port| Box::new(port) as Box<dyn Port>));
    let ports = ports.into_iter().map(|port| port.or_else(|| opened.take()));
    Ok(Opened {
        ports: ports.collect::<Option<_>>().expect("all but the receiver are open, and it is too"),
        room,
    })
}
