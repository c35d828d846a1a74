//! Specifications of ethdev ports: `KIND[:ARGUMENT][,KEY=VALUE...]`. Defaults are in parentheses.
//!
//! | kind | argument | options |
//! | --- | --- | --- |
//! | `net_null` | frame size in bytes (64) | `copy=on` writes the bytes of received frames and reads those of sent frames |
//! | `ring` | a name | `prime=N` packets in each queue at the start (0), `size=BYTES` of each (64) |
//! | `af_xdp` | interface | `queue=N` first queue (0), `busy=N` busy-poll budget (0: off), `copy=on` forces copy mode |
//! | `af_packet` | interface | `queues=N` sockets (one per pipeline), `frame=BYTES` of a slot of their rings (by the MTU), `bypass=on` sends past the queueing discipline |
//! | `tap` | name of the new interface | `mac=fixed` gives it the same MAC address each time |
//! | `memif` | socket path | `role=server` or `client` (client), `id=N` (0), `wait=SECONDS` for the peer (10), `secret=TEXT`; `mtu` for frames over 2 KiB |
//! | `pci` | address as `lspci -D` prints it | |
//!
//! All take `descriptors=N`, the length of each receive and transmit queue. All but `net_null` and `ring` take
//! `mtu=BYTES`.

use crate::error::{Error, Result};
use inlane_core::port::spec::SpecText;
use inlane_core::secret::without_secret;

/// Bytes of an Ethernet header with a VLAN tag.
pub(crate) const LINK_HEADERS: u32 = 18;

/// The parsed specification of a port.
#[derive(Clone, Debug, PartialEq)]
pub struct EthSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// The kind of port, with the options that this kind has.
    pub kind: PortKind,
    /// The number of descriptors of each receive and transmit queue. `None` for the default number.
    pub descriptors: Option<u16>,
    /// The largest payload of a frame in bytes. `None` if the user gave none.
    pub mtu: Option<u16>,
}

/// The kinds of ports.
#[derive(Clone, Debug, PartialEq)]
pub enum PortKind {
    /// Generates and discards packets.
    Null {
        /// Bytes of a frame.
        size: u16,
        /// If set, the driver copies the data of each frame. If not, it leaves the data in packet buffers
        /// untouched.
        copy: bool,
    },
    /// Rings in this process: what is sent to a ring is received from it.
    Ring {
        /// The name of the ring.
        name: String,
        /// The number of packets that each queue of the ring holds at the start.
        prime: u32,
        /// The length in bytes of the packets that each queue of the ring holds at the start.
        size: u16,
    },
    /// AF_XDP sockets on a kernel interface.
    AfXdp {
        /// The interface.
        interface: String,
        /// The number of the first interface queue that the port uses. `None` if the user did not choose it.
        queue: Option<u16>,
        /// Busy-poll budget in packets; 0 switches busy polling off.
        busy: u32,
        /// If set, the port's sockets use copy mode. If not, they use zero-copy mode if possible.
        copy: bool,
    },
    /// Packet sockets on a kernel interface.
    AfPacket {
        /// The interface.
        interface: String,
        /// The number of sockets over which the kernel spreads flows. If absent, one socket for each
        /// pipeline.
        queues: Option<u16>,
        /// The size of a slot in the sockets' packet rings, in bytes. It is rounded up to a multiple of 16.
        /// `None`: chosen from the interface's MTU.
        frame: Option<u32>,
        /// If set, sent packets bypass the interface's queueing discipline. Otherwise they pass through it.
        bypass: bool,
    },
    /// A kernel interface that this port creates.
    Tap {
        /// The name of the new interface.
        interface: String,
        /// If set, the new interface gets the same MAC address each time. Otherwise its address is random.
        fixed_mac: bool,
    },
    /// Shared memory with another process.
    Memif {
        /// The socket's path.
        socket: String,
        /// True for the server, which listens at the socket. False for the client, which connects.
        server: bool,
        /// The number of the connection. Both ends must use the same number.
        id: u32,
        /// How long the port waits for its peer, in seconds.
        wait_s: f64,
        /// The secret that both processes must give to connect. `None` for a connection without a secret.
        secret: Option<String>,
    },
    /// A network card.
    Pci {
        /// The card's PCI address: domain, bus, device, function.
        address: String,
    },
}

impl EthSpec {
    /// The kinds of ports that this crate opens.
    pub const KINDS: &[&str] = &["net_null", "ring", "af_xdp", "af_packet", "tap", "memif", "pci"];

    /// Parses a specification.
    ///
    /// # Errors
    /// [`Error::Spec`], which says what is expected.
    pub fn parse(text: &str) -> Result<Self> {
        read(text).map_err(refused)
    }

    /// Returns this memif specification with shared buffers for frames of up to `room` bytes, unless the user has given
    /// an MTU.
    pub fn with_buffers(mut self, room: usize) -> Self {
        let mtu = room.saturating_sub(LINK_HEADERS as usize);
        self.mtu = self.mtu.or(Some(u16::try_from(mtu).unwrap_or(u16::MAX)));
        self
    }

    /// Returns this AF_XDP specification for another queue: the one at distance `further` behind the first
    /// queue. Use it to open one device for each queue.
    pub(crate) fn of_queue(&self, further: u16) -> Self {
        let mut spec = self.clone();
        if let PortKind::AfXdp { queue, .. } = &mut spec.kind {
            *queue = Some(queue.unwrap_or(0) + further);
        }
        spec
    }

    /// Checks that a run reads all `existing` queues over which the interface spreads flows. Otherwise,
    /// packets of the other queues would go to the kernel or be lost. Skips the check if the user named the
    /// first queue, because the user then wants exactly that queue.
    ///
    /// # Errors
    /// [`Error::Usage`], which says what number of queues to give.
    pub(crate) fn check_all_are_read(&self, read: usize, existing: u16) -> Result<()> {
        let remedy = match &self.kind {
            PortKind::AfXdp { interface, queue: None, .. } => {
                format!(
                    "reduce the queues with 'ethtool -L {interface} rx {read}' (on a card: 'combined {read}'), or give queue=0 \
                     to read that queue alone"
                )
            }
            PortKind::AfPacket { queues: Some(_), .. } => format!("give queues={read}"),
            _ => return Ok(()),
        };
        if read == 0 || read >= existing.into() {
            return Ok(());
        }
        let why = format!(
            "flows are spread over {existing} queues, and this run reads {read}; give {}, or {remedy}",
            crate::field::QUEUES.with(existing)
        );
        Err(Error::Usage { port: self.text.clone(), why })
    }
}

fn refused(error: inlane_core::Error) -> Error {
    match error {
        inlane_core::Error::Port { port, why, .. } => Error::Spec { spec: port, why },
        error => Error::Spec { spec: String::new(), why: error.to_string() },
    }
}

fn read(text: &str) -> inlane_core::Result<EthSpec> {
    let mut spec = SpecText::parse(text)?;
    let kind = kind(&mut spec)?;
    let descriptors = spec.number("descriptors", 16..=32768)?;
    let mtu = match kind {
        PortKind::Null { .. } | PortKind::Ring { .. } => None,
        _ => spec.number("mtu", 68..=65000)?,
    };
    spec.finish()?;
    Ok(EthSpec { text: without_secret(text).into_owned(), kind, descriptors, mtu })
}

fn kind(spec: &mut SpecText) -> inlane_core::Result<PortKind> {
    Ok(match spec.kind() {
        "net_null" => PortKind::Null {
            size: spec.argument_number("frame size", 64, 14..=65000)?,
            copy: spec.switch("copy")?,
        },
        "ring" => {
            if spec.argument().is_empty() {
                return Err(spec.error("a ring needs a name, as in ring:a"));
            }
            PortKind::Ring {
                name: spec.argument().to_owned(),
                prime: spec.number("prime", 0..=1024)?.unwrap_or(0),
                size: spec.number("size", 14..=65000)?.unwrap_or(64),
            }
        }
        "af_xdp" => PortKind::AfXdp {
            interface: interface(spec)?,
            queue: spec.number("queue", 0..=1023)?,
            busy: spec.number("busy", 0..=65535)?.unwrap_or(0),
            copy: spec.switch("copy")?,
        },
        "af_packet" => PortKind::AfPacket {
            interface: interface(spec)?,
            queues: spec.number("queues", 1..=16)?,
            frame: spec.number("frame", 256..=1 << 17)?,
            bypass: spec.switch("bypass")?,
        },
        "tap" => PortKind::Tap {
            interface: interface(spec)?,
            fixed_mac: spec
                .option("mac", |value| match value {
                    "fixed" => Ok(true),
                    _ => Err("only mac=fixed is supported".into()),
                })?
                .unwrap_or(false),
        },
        "memif" => memif(spec)?,
        "pci" => PortKind::Pci { address: pci_address(spec)? },
        kind => {
            return Err(spec.error(format!(
                "'{kind}' is not a kind of port here; choose one of {}",
                EthSpec::KINDS.join(", ")
            )));
        }
    })
}

/// Returns the argument of the port's specification. Fails if the kernel would not accept it as the name of
/// an interface.
fn interface(spec: &SpecText) -> inlane_core::Result<String> {
    let name = spec.argument();
    let valid = (1..16).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if valid {
        return Ok(name.to_owned());
    }
    let what = if name.is_empty() {
        "the interface is missing".into()
    } else {
        format!("'{name}' is not a valid interface name")
    };
    Err(spec.error(format!(
        "{what}; give {}:NAME with 1 to 15 characters ('ip link' lists the interfaces)",
        spec.kind()
    )))
}

fn memif(spec: &mut SpecText) -> inlane_core::Result<PortKind> {
    // The kernel limits a socket's path to 108 bytes, with the terminating zero.
    if !(1..108).contains(&spec.argument().len()) {
        return Err(spec.error("give the socket's path, 1 to 107 characters, as in memif:/run/memif.sock"));
    }
    let server = spec.option("role", |value| match value {
        "client" => Ok(false),
        "server" => Ok(true),
        _ => Err("choose one of server, client".into()),
    })?;
    let wait_s = spec.option("wait", |value| {
        let seconds = value.strip_suffix('s').unwrap_or(value).parse::<f64>().ok();
        seconds
            .filter(|seconds| (0.0..=86400.0).contains(seconds))
            .ok_or_else(|| "give a time in seconds from 0 to 86400".into())
    })?;
    let secret = spec.option("secret", |value| match value.len() {
        1..24 => Ok(value.to_owned()),
        _ => Err("give a secret of 1 to 23 characters".into()),
    })?;
    Ok(PortKind::Memif {
        socket: spec.argument().to_owned(),
        server: server.unwrap_or(false),
        id: spec.number("id", 0..=u32::MAX.into())?.unwrap_or(0),
        wait_s: wait_s.unwrap_or(10.0),
        secret,
    })
}

/// Returns the PCI address in full length and lower case. The user may omit the domain, as in `b5:00.0`.
fn pci_address(spec: &SpecText) -> inlane_core::Result<String> {
    let full = match spec.argument().matches(':').count() {
        1 => format!("0000:{}", spec.argument()),
        _ => spec.argument().to_owned(),
    };
    let hex = |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let mut fields = full.split(':');
    let (domain, bus, rest) = (fields.next(), fields.next(), fields.next());
    let valid = fields.next().is_none()
        && domain.is_some_and(|domain| hex(domain, 4))
        && bus.is_some_and(|bus| hex(bus, 2))
        && rest
            .and_then(|rest| rest.split_once('.'))
            .is_some_and(|(device, function)| hex(device, 2) && hex(function, 1));
    if valid {
        return Ok(full.to_ascii_lowercase());
    }
    let why = format!(
        "'{}' is not a PCI address; give it as 'lspci -D' prints it: pci:0000:b5:00.0",
        spec.argument()
    );
    Err(spec.error(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_parsed() {
        assert_eq!(EthSpec::parse("net_null").unwrap().kind, PortKind::Null { size: 64, copy: false });
        assert_eq!(
            EthSpec::parse("net_null:1024,copy=on").unwrap().kind,
            PortKind::Null { size: 1024, copy: true }
        );
        let ring = EthSpec::parse("ring:a,prime=32,descriptors=512").unwrap();
        assert_eq!(ring.kind, PortKind::Ring { name: "a".into(), prime: 32, size: 64 });
        assert_eq!(ring.descriptors, Some(512));
        let xdp = EthSpec::parse("af_xdp:veth0,queue=1,mtu=1500").unwrap();
        assert_eq!(
            xdp.kind,
            PortKind::AfXdp { interface: "veth0".into(), queue: Some(1), busy: 0, copy: false }
        );
        assert_eq!(xdp.mtu, Some(1500));
        assert!(matches!(
            EthSpec::parse("af_packet:eth0.100,bypass=on").unwrap().kind,
            PortKind::AfPacket { .. }
        ));
        assert!(matches!(
            EthSpec::parse("tap:t0,mac=fixed").unwrap().kind,
            PortKind::Tap { fixed_mac: true, .. }
        ));
        let memif = EthSpec::parse("memif:/run/a.sock,role=server,id=7,wait=2.5s").unwrap().kind;
        assert!(matches!(memif, PortKind::Memif { server: true, id: 7, wait_s: 2.5, .. }));
        for text in ["pci:0000:b5:00.0", "pci:B5:00.0"] {
            assert_eq!(EthSpec::parse(text).unwrap().kind, PortKind::Pci { address: "0000:b5:00.0".into() });
        }
    }

    #[test]
    fn invalid_specifications_are_refused_with_a_reason() {
        for text in [
            "",
            "nul",
            "net_null:13",
            "net_null:1e3",
            "net_null:64,size=3",
            "net_null:64,copy",
            "net_null:64,copy=on,copy=on",
            "net_null,mtu=1500",
            "ring",
            "ring:a,prime=-1",
            "af_xdp:",
            "af_xdp:a/b",
            "af_xdp:abcdefghijklmnop",
            "af_packet:e,queues=0",
            "tap:..",
            "tap:a b",
            "memif:",
            "memif:/a,role=master",
            "memif:/a,wait=-1",
            "memif:/a,wait=nan",
            "pci:",
            "pci:b5",
            "pci:0000:b5:00",
            "pci:0000:b5:00.0:1",
            "af_xdp:e,descriptors=99999999999999999999",
        ] {
            let error = EthSpec::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("port {text}: ")), "{error}");
        }
        let error = EthSpec::parse("tap:t,frame=1").unwrap_err().to_string();
        assert!(error.ends_with("unknown option 'frame'; tap ports have: mac, descriptors, mtu"), "{error}");
    }
}
