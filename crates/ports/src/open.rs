//! Opens the ports of a run from their specifications.

use crate::check::{Checker, reference};
use crate::error::Result;
use crate::generate::Generator;
use crate::null::Null;
use crate::oran::Radio;
use crate::pcap::{CaptureSink, CaptureSource, Playback};
use inlane_core::clock::Clock;
use inlane_core::port::spec::PortSpec;
use inlane_core::units::Rate;
use inlane_core::{Error, Port};
use std::path::Path;

/// The kinds of ports that DPDK provides.
pub const DPDK_KINDS: &[&str] = &["net_null", "ring", "af_xdp", "af_packet", "tap", "memif", "pci"];

/// Returns true if DPDK provides ports of this kind. The rest of the specification may be malformed.
pub fn is_dpdk(name: &str) -> bool {
    DPDK_KINDS.contains(&kind(name))
}

/// Returns the kind of a port: the text before its first colon or comma.
pub fn kind(name: &str) -> &str {
    PortSpec::kind_of(name)
}

/// Returns true if one port can both receive and send in a run.
pub fn is_shared(name: &str) -> bool {
    kind(name) == "null" || is_dpdk(name)
}

/// Returns true if only a privileged user can open ports of the kind in `name`.
pub fn takes_privileges(name: &str) -> bool {
    ["af_xdp", "af_packet", "tap", "pci"].contains(&kind(name))
}

/// The ports to open. Also the settings of the run that these ports need.
#[derive(Clone, Copy)]
pub struct OpenRequest<'a> {
    /// The names of the ports, without duplicates. Ports that only send are in the order of `tx`.
    pub names: &'a [String],
    /// The port to receive from. `None` if packets flow in both directions.
    pub rx: Option<&'a str>,
    /// The ports to send to, in the order of their numbers in verdicts. Empty if packets flow both ways.
    pub tx: &'a [String],
    /// The packet function with its settings, as given to --function. Checkers expect its verdicts and
    /// changes.
    pub function: &'a str,
    /// The rate at which inlane's own ports create packets. `None` means as fast as possible.
    pub rate: Option<Rate>,
    /// How a capture is played: at which pace, and whether it is repeated.
    pub playback: Playback,
    /// The number of queues of each port.
    pub queues: u16,
    /// The smallest acceptable data room of a packet buffer, in bytes.
    pub room: usize,
}

/// The opened ports, and the data room that packet buffers need.
pub struct OpenPorts {
    /// The ports, in the order of [`OpenRequest::names`].
    pub ports: Vec<Box<dyn Port>>,
    /// The required data room in bytes: the requested room or the longest packet, whichever is more.
    pub room: usize,
}

/// The port that the run receives from, if it is one of inlane's own ports. Checkers derive the expected
/// packets from it.
enum Received {
    Generator(Box<Generator>),
    Radio(Box<Radio>),
    Capture(Box<CaptureSource>),
    Other,
}

impl Received {
    fn open(request: &OpenRequest, clock: &Clock) -> Result<Self> {
        let Some(name) = request.rx else { return Ok(Self::Other) };
        Ok(match kind(name) {
            "gen" if Radio::is(name) => {
                let mut radio = Radio::open(name, clock)?;
                if request.rate.is_some() {
                    radio.set_rate(request.rate);
                }
                Self::Radio(Box::new(radio))
            }
            "gen" => {
                let mut generator = Generator::open(name, clock)?;
                if request.rate.is_some() {
                    generator.set_rate(request.rate);
                }
                Self::Generator(Box::new(generator))
            }
            "pcap" => Self::Capture(Box::new(CaptureSource::open(name, request.playback)?)),
            _ => Self::Other,
        })
    }

    fn longest(&self) -> usize {
        match self {
            Self::Generator(generator) => generator.traffic().longest(),
            Self::Radio(radio) => radio.plan().longest(),
            Self::Capture(source) => source.longest(),
            Self::Other => 0,
        }
    }

    fn into_port(self) -> Option<Box<dyn Port>> {
        match self {
            Self::Generator(generator) => Some(generator),
            Self::Radio(radio) => Some(radio),
            Self::Capture(source) => Some(source),
            Self::Other => None,
        }
    }
}

/// Opens every port. No existing file is changed before [`Port::start`].
///
/// # Errors
/// If a port cannot be opened, its kind is unknown, or two ports use one file.
pub fn ports(request: &OpenRequest, clock: &Clock) -> Result<OpenPorts> {
    CaptureSink::require_distinct(request.names)?;
    let received = Received::open(request, clock)?;
    let mut room = request.room.max(received.longest());
    let mut ports: Vec<Option<Box<dyn Port>>> = Vec::new();
    let mut rx_index = None;
    let mut numbers = request.tx.iter().zip(0u16..);
    for (index, name) in request.names.iter().enumerate() {
        let is_rx = rx_index.is_none() && Some(name.as_str()) == request.rx;
        let port: Box<dyn Port> = match kind(name) {
            // The receive port's entry in `ports` stays `None` until this loop has ended. The port itself
            // stays in `received`, because the loop needs it to create capture sinks and checkers.
            "gen" | "pcap" if is_rx => {
                rx_index = Some(index);
                ports.push(None);
                continue;
            }
            "gen" => {
                return Err(Error::port_usage(name, "a generator only receives; name it after --rx").into());
            }
            "pcap" => {
                let source = match &received {
                    Received::Capture(source) => Some(&**source),
                    _ => None,
                };
                Box::new(CaptureSink::open(name, source)?)
            }
            "check" if is_rx => {
                return Err(Error::port_usage(name, "a checker only sends; name it after --tx").into());
            }
            "check" => {
                let generator = match &received {
                    Received::Generator(generator) => Some(&**generator),
                    Received::Radio(_) if name == "check" => {
                        let why = "a checker verifies the packets of gen:SIZE, not those of gen:oran; send them to pcap:FILE or \
                                   null, and let the function oran-reorder count what is missing";
                        return Err(Error::port_usage(name, why).into());
                    }
                    _ => None,
                };
                let number = numbers.find(|(tx, _)| *tx == name).map_or(0, |(_, number)| number);
                let reference = reference::find(request.function)?;
                Box::new(Checker::open(name, clock, generator, reference, number)?)
            }
            "null" => {
                let mut null = Null::open(name, clock)?;
                if request.rate.is_some() {
                    null.set_rate(request.rate);
                }
                room = room.max(null.size());
                Box::new(null)
            }
            #[cfg(feature = "dpdk")]
            _ if is_dpdk(name) => inlane_dpdk::open_for(name, request.queues)?,
            #[cfg(not(feature = "dpdk"))]
            _ if is_dpdk(name) => {
                let why =
                    "this program was built without the cargo feature dpdk; build it with --features dpdk";
                return Err(Error::port_environment(name, why).into());
            }
            kind => {
                let kinds = [&["null", "gen", "check", "pcap"], DPDK_KINDS].concat().join(", ");
                let meant = meant(name).map(|meant| format!("did you mean {meant}? ")).unwrap_or_default();
                let why = format!("'{kind}' is not a kind of port; {meant}choose one of {kinds}");
                return Err(Error::port_usage(name, why).into());
            }
        };
        ports.push(Some(port));
    }
    if let Some(index) = rx_index {
        ports[index] = received.into_port();
    }
    let ports = ports.into_iter().collect::<Option<_>>().expect("every name was opened above");
    Ok(OpenPorts { ports, room })
}

/// Suggests port names to replace `name`, whose kind of port is unknown. `name` may be a network interface, a
/// PCI address or a misspelt kind. Returns `None` for other names.
fn meant(name: &str) -> Option<String> {
    let (port, options) = name.split_at(name.find(',').unwrap_or(name.len()));
    let is_hex =
        |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_slot = |text: &str| {
        text.split_once('.').is_some_and(|(device, function)| is_hex(device, 2) && is_hex(function, 1))
    };
    match port.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, slot] if is_hex(domain, 4) && is_hex(bus, 2) && is_slot(slot) => {
            Some(format!("pci:{port}{options}"))
        }
        [bus, slot] if is_hex(bus, 2) && is_slot(slot) => Some(format!("pci:0000:{port}{options}")),
        [interface] if looks_like_interface(interface) => {
            Some(format!("af_xdp:{interface}{options} or af_packet:{interface}{options}"))
        }
        [kind, ..] => {
            let kinds = ["null", "gen", "check", "pcap"].iter().chain(DPDK_KINDS);
            let near = kinds.filter(|known| strsim::osa_distance(kind, known) <= (known.len() / 3).max(1));
            near.min_by_key(|known| strsim::osa_distance(kind, known))
                .map(|known| format!("{known}{}", &name[kind.len()..]))
        }
        [] => None,
    }
}

/// Returns true if this machine has a network interface with this name. Also returns true if the name looks
/// like that of a Linux interface.
fn looks_like_interface(name: &str) -> bool {
    let prefixes = ["eth", "en", "veth", "br", "bond", "wl", "ib", "virbr", "docker", "vlan", "dummy"];
    let numbered = name.ends_with(|last: char| last.is_ascii_digit());
    let is_name =
        name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/') && (1..16).contains(&name.len());
    is_name
        && (numbered && prefixes.iter().any(|prefix| name.starts_with(prefix))
            || Path::new("/sys/class/net").join(name).is_dir() && ![".", ".."].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(rx: &str, tx: &[&str]) -> Result<OpenPorts> {
        let tx: Vec<String> = tx.iter().map(|&name| name.into()).collect();
        let names = [&[rx.to_owned()][..], &tx].concat();
        let request = OpenRequest {
            names: &names,
            rx: Some(rx),
            tx: &tx,
            function: "io",
            rate: None,
            playback: Playback::default(),
            queues: 1,
            room: 64,
        };
        ports(&request, &Clock::new())
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn every_kind_of_dpdk_is_listed() {
        assert_eq!(DPDK_KINDS, inlane_dpdk::spec::EthSpec::KINDS);
    }

    #[test]
    fn ports_are_opened_in_order() {
        let opened = open("gen:1000", &["check", "null:2000", "check"]).unwrap();
        let names: Vec<_> = opened.ports.iter().map(|port| port.info().name.clone()).collect();
        assert_eq!(names, ["gen:1000", "check", "null:2000", "check"]);
        assert_eq!(opened.room, 2000);
    }

    #[test]
    fn refused_ports_are_named_with_a_remedy() {
        for (rx, tx, expected) in [
            ("gen:64", "gen:64", "name it after --rx"),
            (
                "gen:64",
                "nul",
                "'nul' is not a kind of port; did you mean null? choose one of null, gen, check, pcap",
            ),
            ("gen:64", "eth9", "did you mean af_xdp:eth9 or af_packet:eth9?"),
            ("gen:64", "lo,queue=1", "did you mean af_xdp:lo,queue=1 or af_packet:lo,queue=1?"),
            ("gen:64", "0000:3b:00.0", "did you mean pci:0000:3b:00.0?"),
            ("gen:64", "3b:00.0", "did you mean pci:0000:3b:00.0?"),
            ("gen:64", "nulll", "'nulll' is not a kind of port; did you mean null?"),
            ("gen:64", "null,foo=bar", "unknown option 'foo'"),
            ("gen:64", "check,foo=1", "check,foo=1"),
            ("null", "check", "check:64,flows=8"),
            ("gen:oran", "check", "not those of gen:oran"),
        ] {
            let error = open(rx, &[tx]).err().expect(tx).to_string();
            assert!(error.contains(expected), "{rx} {tx}: {error}");
        }
    }

    #[test]
    fn a_refused_run_leaves_files_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| format!("pcap:{}", folder.path().join(name).display());
        std::fs::write(folder.path().join("old"), "precious").unwrap();
        assert!(open("gen:64", &[&name("old"), &name("new"), "nul"]).is_err());
        assert!(open("gen:64", &[&name("new"), &name("new")]).is_err(), "two writers of one file");
        assert_eq!(std::fs::read(folder.path().join("old")).unwrap(), b"precious");
        assert!(!folder.path().join("new").exists());
    }
}
