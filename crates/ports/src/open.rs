//! Opens the ports of a run from their specifications.

use crate::check::Checker;
use crate::check::reference::ReferenceFunction;
use crate::error::Result;
use crate::field;
use crate::generate::Generator;
use crate::ntb::NtbPort;
use crate::null::Null;
use crate::oran::Radio;
use crate::pcap::{CaptureSink, CaptureSource, Playback};
use crate::spec::{PoolKind, PortSpec};
use inlane_core::clock::Clock;
use inlane_core::units::Rate;
use inlane_core::{Error, HeapPool, Pool, Port};
use std::sync::Arc;

/// The ports to open. Also the settings of the run that these ports need.
#[derive(Clone, Copy)]
pub struct OpenRequest<'a> {
    /// The ports, without duplicates. Ports that only send are in the order of `tx`.
    pub ports: &'a [PortSpec],
    /// The port to receive from. `None` if packets flow in both directions.
    pub rx: Option<&'a PortSpec>,
    /// The ports to send to, in the order of their numbers in verdicts. Empty if packets flow both ways.
    pub tx: &'a [PortSpec],
    /// The reference whose verdicts and changes checkers expect. `None` if the packet function has none: checkers then read
    /// only the stamps of packets.
    pub reference: Option<&'a Arc<dyn ReferenceFunction>>,
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
    /// The ports, in the order of [`OpenRequest::ports`].
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
        Ok(match request.rx {
            Some(PortSpec::Radio(spec)) => {
                let mut radio = Radio::new(spec.clone(), clock);
                if request.rate.is_some() {
                    radio.set_rate(request.rate);
                }
                Self::Radio(Box::new(radio))
            }
            Some(PortSpec::Generator(spec)) => {
                let mut generator = Generator::new(spec.clone(), clock);
                if request.rate.is_some() {
                    generator.set_rate(request.rate);
                }
                Self::Generator(Box::new(generator))
            }
            Some(PortSpec::Capture(spec)) => {
                Self::Capture(Box::new(CaptureSource::new(spec, request.playback)?))
            }
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
/// If a port cannot be opened, cannot be used in its direction, or uses the same file as another port.
pub fn ports(request: &OpenRequest, clock: &Clock) -> Result<OpenPorts> {
    CaptureSink::require_distinct(request.ports.iter().filter_map(|port| match port {
        PortSpec::Capture(spec) => Some(spec),
        _ => None,
    }))?;
    let received = Received::open(request, clock)?;
    let mut room = request.room.max(received.longest());
    let mut ports: Vec<Option<Box<dyn Port>>> = Vec::new();
    let mut rx_index = None;
    let mut numbers = request.tx.iter().zip(0u16..);
    for (index, spec) in request.ports.iter().enumerate() {
        let is_rx = rx_index.is_none() && Some(spec) == request.rx;
        let refused = |why: String| Err(Error::port_usage(spec.text(), why).into());
        let port: Box<dyn Port> = match spec {
            // The receive port's entry in `ports` stays `None` until this loop has ended. The port itself
            // stays in `received`, because the loop needs it to create capture sinks and checkers.
            PortSpec::Generator(_) | PortSpec::Radio(_) | PortSpec::Capture(_) if is_rx => {
                rx_index = Some(index);
                ports.push(None);
                continue;
            }
            PortSpec::Generator(_) | PortSpec::Radio(_) => {
                return refused(format!("a generator only receives; name it after {}", field::RX));
            }
            PortSpec::Capture(spec) => {
                let source = match &received {
                    Received::Capture(source) => Some(&**source),
                    _ => None,
                };
                Box::new(CaptureSink::new(spec, source)?)
            }
            PortSpec::Checker(_) if is_rx => {
                return refused(format!("a checker only sends; name it after {}", field::TX));
            }
            PortSpec::Checker(check) => {
                let generator = match &received {
                    Received::Generator(generator) => Some(&**generator),
                    Received::Radio(_) if check.traffic.is_none() => {
                        let why = "a checker verifies the packets of gen:SIZE, not those of gen:oran; send them to pcap:FILE or \
                                   null, and let the function oran-reorder count what is missing";
                        return refused(why.into());
                    }
                    _ => None,
                };
                let number = numbers.find(|(tx, _)| *tx == spec).map_or(0, |(_, number)| number);
                if request.reference.is_none()
                    && let Some(other) = request.tx.iter().find(|tx| !matches!(tx, PortSpec::Checker(_)))
                {
                    return refused(format!(
                        "the packet function has no reference, and some of its packets go to {other}, so the checker cannot know \
                         which packets it must get; send to checkers only, or give {} a function that does the same",
                        field::REFERENCE
                    ));
                }
                Box::new(Checker::new(check.clone(), clock, generator, request.reference.cloned(), number)?)
            }
            PortSpec::Null(spec) => {
                let mut null = Null::new(spec.clone(), clock);
                if request.rate.is_some() {
                    null.set_rate(request.rate);
                }
                room = room.max(null.size());
                Box::new(null)
            }
            PortSpec::Ntb(spec) => Box::new(NtbPort::new(spec.clone())),
            #[cfg(feature = "dpdk")]
            PortSpec::Dpdk(spec) => inlane_dpdk::open_for(spec.clone(), request.queues)?,
            PortSpec::Own(own) => (own.open)(clock)?,
        };
        ports.push(Some(port));
    }
    if let Some(index) = rx_index {
        ports[index] = received.into_port();
    }
    let ports = ports.into_iter().collect::<Option<_>>().expect("every port was opened above");
    Ok(OpenPorts { ports, room })
}

/// Opens a memif port that writes and reads frames in place and accepts packets of any pool. Returns `None` if `spec` describes
/// another kind of port. [`ports`] opens DPDK's memif ports. `room` is the length of the longest frame. Set
/// `partial_checksums` if its user accepts TCP segments with partial checksums.
///
/// # Errors
/// If there cannot be a socket at the specification's path, or its shared buffers are shorter than `room`.
#[cfg(feature = "dpdk")]
pub fn memif_in_place(
    spec: &PortSpec,
    room: usize,
    partial_checksums: bool,
) -> Result<Option<crate::memif::Memif>> {
    use inlane_dpdk::spec::{EthSpec, PortKind};
    let PortSpec::Dpdk(spec) = spec else { return Ok(None) };
    let (EthSpec { kind: PortKind::Memif { server, id, wait_s, secret, .. }, .. }, Some((socket, buffer))) =
        (spec, inlane_dpdk::memif_socket(spec)?)
    else {
        return Ok(None);
    };
    if room > buffer as usize {
        // DPDK's driver, which the peer may have, loses parts of longer frames.
        let why = format!(
            "frames may have up to {room} bytes, and its buffers hold {buffer}; leave mtu= out, or give more"
        );
        return Err(Error::port_usage(&spec.text, why).into());
    }
    Ok(Some(crate::memif::Memif::new(crate::memif::MemifSettings {
        name: spec.text.clone(),
        socket,
        server: *server,
        id: *id,
        secret: secret.clone(),
        wait: std::time::Duration::from_secs_f64(*wait_s),
        buffer,
        partial_checksums,
    })))
}

/// Returns `None`, because this program was built without DPDK, which parses the specifications of memif ports.
///
/// # Errors
/// None.
#[cfg(not(feature = "dpdk"))]
pub fn memif_in_place(_: &PortSpec, _: usize, _: bool) -> Result<Option<crate::memif::Memif>> {
    Ok(None)
}

/// Creates a pool in host memory whose packets all of `ports` accept: mbufs if one of the ports sends only mbufs.
///
/// # Errors
/// If memory is short, or a packet of `room` bytes does not fit into a buffer of this kind.
pub fn pool(ports: &[PortSpec], buffers: usize, room: usize) -> Result<Arc<dyn Pool>> {
    match needs_mbufs(ports) {
        Some(port) => mbufs(port, buffers, room),
        None => Ok(Arc::new(HeapPool::new(buffers, room)?)),
    }
}

/// Returns the first port that accepts only mbufs.
pub fn needs_mbufs(ports: &[PortSpec]) -> Option<&PortSpec> {
    ports.iter().find(|port| port.properties().pool == PoolKind::Mbufs)
}

/// Checks that packets of `room` bytes fit into the mbufs that `port` needs.
///
/// # Errors
/// If they do not fit, or if the program was built without DPDK.
#[cfg(feature = "dpdk")]
pub fn check_mbuf_room(port: &PortSpec, room: usize) -> Result<()> {
    let most = inlane_dpdk::MAX_ROOM;
    if room <= most {
        return Ok(());
    }
    let why = format!(
        "packets of {room} bytes do not fit into DPDK's buffers of at most {most} bytes; use shorter packets, or \
         inlane's own ports (pcap:FILE, null, check)"
    );
    Err(Error::port_usage(port.text(), why).into())
}

/// Returns an error, because this program was built without DPDK.
#[cfg(not(feature = "dpdk"))]
pub fn check_mbuf_room(port: &PortSpec, _: usize) -> Result<()> {
    Err(no_mbufs(port).into())
}

#[cfg(feature = "dpdk")]
fn mbufs(port: &PortSpec, buffers: usize, room: usize) -> Result<Arc<dyn Pool>> {
    check_mbuf_room(port, room)?;
    Ok(inlane_dpdk::MbufPool::new(buffers, room)?)
}

#[cfg(not(feature = "dpdk"))]
fn mbufs(port: &PortSpec, _: usize, _: usize) -> Result<Arc<dyn Pool>> {
    Err(no_mbufs(port).into())
}

/// Only a port of the library's user can need mbufs in a program without DPDK.
#[cfg(not(feature = "dpdk"))]
fn no_mbufs(port: &PortSpec) -> Error {
    Error::port_environment(port.text(), "it needs mbufs, and this program was built without DPDK")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::reference;

    fn open(rx: &str, tx: &[&str]) -> Result<OpenPorts> {
        let rx = PortSpec::parse(rx)?;
        let tx = tx.iter().map(|text| PortSpec::parse(text)).collect::<Result<Vec<_>>>()?;
        let all = [&[rx.clone()][..], &tx].concat();
        let io = reference::find("io").unwrap();
        let request = OpenRequest {
            ports: &all,
            rx: Some(&rx),
            tx: &tx,
            reference: Some(&io),
            rate: None,
            playback: Playback::default(),
            queues: 1,
            room: 64,
        };
        ports(&request, &Clock::new())
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
            ("gen:64", "gen:64", "name it after rx"),
            ("check", "null", "name it after tx"),
            ("null", "check", "check:64,flows=8"),
            ("gen:oran", "check", "not those of gen:oran"),
        ] {
            let error = open(rx, &[tx]).err().expect(tx).to_string();
            assert!(error.contains(expected), "{rx} {tx}: {error}");
        }
    }

    #[test]
    fn a_port_of_the_users_is_opened() {
        use crate::spec::{Kind, OwnPort};
        let own = PortSpec::Own(OwnPort {
            name: "mine".into(),
            properties: *Kind::Null.properties(),
            open: Arc::new(|clock| Ok(Box::new(Null::open("null:100", clock)?))),
        });
        let io = reference::find("io").unwrap();
        let request = OpenRequest {
            ports: std::slice::from_ref(&own),
            rx: Some(&own),
            tx: &[],
            reference: Some(&io),
            rate: None,
            playback: Playback::default(),
            queues: 1,
            room: 64,
        };
        assert_eq!(ports(&request, &Clock::new()).unwrap().ports[0].info().max_queues, 64);
        assert!(own.can_reopen() && own.is_endless(Playback::default()));
    }

    #[test]
    fn a_refused_run_leaves_files_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| format!("pcap:{}", folder.path().join(name).display());
        std::fs::write(folder.path().join("old"), "precious").unwrap();
        assert!(open("gen:64", &[&name("old"), &name("new"), "gen:64"]).is_err());
        assert!(open("gen:64", &[&name("new"), &name("new")]).is_err(), "two writers of one file");
        assert_eq!(std::fs::read(folder.path().join("old")).unwrap(), b"precious");
        assert!(!folder.path().join("new").exists());
    }
}
