//! Port specifications: `KIND[:ARGUMENT][,KEY=VALUE...]`.
//!
//! | kind | argument | options |
//! | --- | --- | --- |
//! | `net_null` | frame size in bytes (64) | `copy=on` writes and reads the bytes |
//! | `ring` | a name | `prime=N` packets put into each queue at the start, `size=BYTES` of each |
//! | `af_xdp` | interface | `queue=N` first queue (0), `busy=N` busy-poll budget, `copy=on` forces copy mode |
//! | `af_packet` | interface | `queues=N` (one a pipeline), `frame=BYTES` a slot of its rings, `bypass=on` skips the queueing discipline |
//! | `tap` | interface to make | `mac=fixed` |
//! | `memif` | socket path | `role=server` or `client` (client), `id=N` (0), `wait=SECONDS` (10), `secret=TEXT`; `mtu` for frames over 2 KiB |
//! | `pci` | address as `lspci -D` prints it | |
//!
//! All take `descriptors=N` (receive and send) and all but `net_null` and `ring` take `mtu=BYTES`.

use crate::error::{Error, Result};

/// A port specification, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// As it was written.
    pub text: String,
    /// Which kind of port, with its own options.
    pub kind: Kind,
    /// Descriptors of each receive and send queue, when asked for.
    pub descriptors: Option<u16>,
    /// Largest frame payload, when asked for.
    pub mtu: Option<u16>,
}

/// The kinds of ports.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Makes and swallows packets.
    Null {
        /// Bytes of a frame.
        size: u16,
        /// Touches the bytes.
        copy: bool,
    },
    /// Rings in this process: what is sent comes back.
    Ring {
        /// The user's name for it.
        name: String,
        /// Packets put in at the start.
        prime: u32,
        /// Bytes of each.
        size: u16,
    },
    /// AF_XDP sockets on a kernel interface.
    AfXdp {
        /// The interface.
        interface: String,
        /// First queue, where one was named.
        queue: Option<u16>,
        /// Busy-poll budget; 0 leaves busy polling off.
        busy: u32,
        /// Copy mode even where zero-copy is possible.
        copy: bool,
    },
    /// Packet sockets on a kernel interface.
    AfPacket {
        /// The interface.
        interface: String,
        /// Sockets, that the kernel spreads flows over; as many as there are pipelines when absent.
        queues: Option<u16>,
        /// Bytes of a slot in the shared rings; chosen by the interface's MTU when absent.
        frame: Option<u32>,
        /// Sends past the queueing discipline.
        bypass: bool,
    },
    /// A kernel interface made here.
    Tap {
        /// Its name.
        interface: String,
        /// A MAC address that is the same each time.
        fixed_mac: bool,
    },
    /// Shared memory with another process.
    Memif {
        /// The socket's path.
        socket: String,
        /// Listens and owns the socket; the other end connects.
        server: bool,
        /// Interface id, the same at both ends.
        id: u32,
        /// How long to wait for the peer.
        wait_s: f64,
        /// Shared word of both ends.
        secret: Option<String>,
    },
    /// A network card.
    Pci {
        /// Domain, bus, device, function.
        address: String,
    },
}

impl Spec {
    /// Kinds that [`Spec::parse`] takes, for messages and for who decides which crate opens a port.
    pub const KINDS: &[&str] = &["net_null", "ring", "af_xdp", "af_packet", "tap", "memif", "pci"];

    /// True when `text` names a kind of this crate, well-formed or not.
    pub fn is_ours(text: &str) -> bool {
        let kind = text.split([':', ',']).next().unwrap_or_default();
        Self::KINDS.contains(&kind)
    }

    /// Reads a specification.
    ///
    /// # Errors
    /// [`Error::Spec`] that says what was expected.
    pub fn parse(text: &str) -> Result<Self> {
        Reader::new(text)?.finish()
    }

    /// The same AF_XDP port, `further` queues on.
    pub(crate) fn of_queue(&self, further: u16) -> Self {
        let mut spec = self.clone();
        if let Kind::AfXdp { queue, .. } = &mut spec.kind {
            *queue = Some(queue.unwrap_or(0) + further);
        }
        spec
    }

    /// Packets of a queue that nobody reads go to the kernel, or nowhere: refuses to receive from `read` queues of `there` unless
    /// the user named the first.
    ///
    /// # Errors
    /// [`Error::Usage`] with what to give.
    pub(crate) fn check_all_are_read(&self, read: usize, there: u16) -> Result<()> {
        let remedy = match &self.kind {
            Kind::AfXdp { interface, queue: None, .. } => {
                format!(
                    "'ethtool -L {interface} rx {read}' or 'combined {read}', or queue=0 to mean that one alone"
                )
            }
            Kind::AfPacket { queues: Some(_), .. } => format!("queues={read}"),
            _ => return Ok(()),
        };
        if read == 0 || read >= there.into() {
            return Ok(());
        }
        let why = format!(
            "flows are spread over {there} queues, and this run reads {read}; give --pipelines {there}, or {remedy}"
        );
        Err(Error::Usage { port: self.text.clone(), why })
    }
}

/// Takes a specification apart; each option may be taken once, and none may be left over.
struct Reader<'a> {
    text: &'a str,
    kind: &'a str,
    argument: &'a str,
    options: Vec<(&'a str, &'a str)>,
    /// Those that this kind has, as they are asked for.
    known: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Result<Self> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let (kind, argument) = first.split_once(':').unwrap_or((first, ""));
        let mut reader = Self { text, kind, argument, options: Vec::new(), known: Vec::new() };
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                return Err(reader.refuse(format!("'{part}' is not an option; write KEY=VALUE")));
            };
            if reader.options.iter().any(|&(other, _)| other == key) {
                return Err(reader.refuse(format!("option '{key}' is given twice")));
            }
            reader.options.push((key, value));
        }
        Ok(reader)
    }

    fn refuse(&self, why: impl Into<String>) -> Error {
        Error::Spec { spec: self.text.to_owned(), why: why.into() }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let index = self.options.iter().position(|&(other, _)| other == key)?;
        Some(self.options.swap_remove(index).1)
    }

    fn number<T: TryFrom<u64>>(&mut self, key: &'static str, least: u64, most: u64) -> Result<Option<T>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        self.read_number(key, value, least, most).map(Some)
    }

    fn read_number<T: TryFrom<u64>>(&self, key: &str, value: &str, least: u64, most: u64) -> Result<T> {
        let number = value.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| self.refuse(format!("{key}={value} is not a whole number from {least} to {most}")))
    }

    fn switch(&mut self, key: &'static str) -> Result<bool> {
        match self.take(key) {
            None | Some("off") => Ok(false),
            Some("on") => Ok(true),
            Some(value) => Err(self.refuse(format!("{key}={value}: write {key}=on or {key}=off"))),
        }
    }

    /// The argument, where it must be an interface's name as the kernel takes them.
    fn interface(&self) -> Result<String> {
        let name = self.argument;
        let sound = (1..16).contains(&name.len())
            && name != "."
            && name != ".."
            && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
        if sound {
            Ok(name.to_owned())
        } else {
            Err(self.refuse(format!(
                "'{name}' cannot name an interface; write {}:NAME with 1 to 15 characters (ip link lists them)",
                self.kind
            )))
        }
    }

    fn finish(mut self) -> Result<Spec> {
        let kind = self.kind()?;
        let descriptors = self.number("descriptors", 16, 32768)?;
        let mtu = match kind {
            Kind::Null { .. } | Kind::Ring { .. } => None,
            _ => self.number("mtu", 68, 65000)?,
        };
        if let Some((key, _)) = self.options.first() {
            let (kind, known) = (self.kind, self.known.join(", "));
            return Err(self.refuse(format!("{kind} ports have no option '{key}'; there are: {known}")));
        }
        Ok(Spec { text: self.text.to_owned(), kind, descriptors, mtu })
    }

    fn kind(&mut self) -> Result<Kind> {
        Ok(match self.kind {
            "net_null" => {
                let size = if self.argument.is_empty() { "64" } else { self.argument };
                let size = self.read_number("size", size, 14, 65000)?;
                Kind::Null { size, copy: self.switch("copy")? }
            }
            "ring" => {
                if self.argument.is_empty() {
                    return Err(self.refuse("give it a name, as in ring:a"));
                }
                Kind::Ring {
                    name: self.argument.to_owned(),
                    prime: self.number("prime", 0, 1024)?.unwrap_or(0),
                    size: self.number("size", 14, 65000)?.unwrap_or(64),
                }
            }
            "af_xdp" => Kind::AfXdp {
                interface: self.interface()?,
                queue: self.number("queue", 0, 1023)?,
                busy: self.number("busy", 0, 65535)?.unwrap_or(0),
                copy: self.switch("copy")?,
            },
            "af_packet" => Kind::AfPacket {
                interface: self.interface()?,
                queues: self.number("queues", 1, 16)?,
                frame: self.number("frame", 256, 1 << 17)?,
                bypass: self.switch("bypass")?,
            },
            "tap" => Kind::Tap {
                interface: self.interface()?,
                fixed_mac: match self.take("mac") {
                    None => false,
                    Some("fixed") => true,
                    Some(value) => return Err(self.refuse(format!("mac={value}: only mac=fixed is known"))),
                },
            },
            "memif" => self.memif()?,
            "pci" => Kind::Pci { address: self.pci_address()? },
            kind => {
                return Err(self.refuse(format!(
                    "'{kind}' is not a kind of port here; choose from {}",
                    Spec::KINDS.join(", ")
                )));
            }
        })
    }

    fn memif(&mut self) -> Result<Kind> {
        // The kernel's limit for a socket's path, with its zero.
        if !(1..108).contains(&self.argument.len()) {
            return Err(
                self.refuse("give the socket's path, up to 107 characters, as in memif:/run/memif.sock")
            );
        }
        let server = match self.take("role") {
            None | Some("client") => false,
            Some("server") => true,
            Some(role) => return Err(self.refuse(format!("role={role}: choose server or client"))),
        };
        let wait_s = match self.take("wait") {
            None => 10.0,
            Some(text) => {
                let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
                seconds.filter(|seconds| (0.0..=86400.0).contains(seconds)).ok_or_else(|| {
                    self.refuse(format!("wait={text} is not a time in seconds from 0 to 86400"))
                })?
            }
        };
        let secret = self.take("secret").map(str::to_owned);
        if secret.as_ref().is_some_and(|secret| !(1..24).contains(&secret.len())) {
            return Err(self.refuse("a memif secret has 1 to 23 characters"));
        }
        let id = self.number("id", 0, u32::MAX as u64)?.unwrap_or(0);
        Ok(Kind::Memif { socket: self.argument.to_owned(), server, id, wait_s, secret })
    }

    /// `0000:b5:00.0`, or without the domain.
    fn pci_address(&self) -> Result<String> {
        let full = match self.argument.matches(':').count() {
            1 => format!("0000:{}", self.argument),
            _ => self.argument.to_owned(),
        };
        let hex =
            |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
        let mut fields = full.split(':');
        let (domain, bus, rest) = (fields.next(), fields.next(), fields.next());
        let sound = fields.next().is_none()
            && domain.is_some_and(|domain| hex(domain, 4))
            && bus.is_some_and(|bus| hex(bus, 2))
            && rest
                .and_then(|rest| rest.split_once('.'))
                .is_some_and(|(device, function)| hex(device, 2) && hex(function, 1));
        if sound {
            Ok(full.to_ascii_lowercase())
        } else {
            Err(self.refuse(format!(
                "'{}' is not a PCI address; write it as lspci -D does, pci:0000:b5:00.0",
                self.argument
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read() {
        assert_eq!(Spec::parse("net_null").unwrap().kind, Kind::Null { size: 64, copy: false });
        assert_eq!(Spec::parse("net_null:1024,copy=on").unwrap().kind, Kind::Null { size: 1024, copy: true });
        let ring = Spec::parse("ring:a,prime=32,descriptors=512").unwrap();
        assert_eq!(ring.kind, Kind::Ring { name: "a".into(), prime: 32, size: 64 });
        assert_eq!(ring.descriptors, Some(512));
        let xdp = Spec::parse("af_xdp:veth0,queue=1,mtu=1500").unwrap();
        assert_eq!(xdp.kind, Kind::AfXdp { interface: "veth0".into(), queue: Some(1), busy: 0, copy: false });
        assert_eq!(xdp.mtu, Some(1500));
        assert!(matches!(Spec::parse("af_packet:eth0.100,bypass=on").unwrap().kind, Kind::AfPacket { .. }));
        assert!(matches!(Spec::parse("tap:t0,mac=fixed").unwrap().kind, Kind::Tap { fixed_mac: true, .. }));
        let memif = Spec::parse("memif:/run/a.sock,role=server,id=7,wait=2.5s").unwrap().kind;
        assert!(matches!(memif, Kind::Memif { server: true, id: 7, wait_s: 2.5, .. }));
        for text in ["pci:0000:b5:00.0", "pci:B5:00.0"] {
            assert_eq!(Spec::parse(text).unwrap().kind, Kind::Pci { address: "0000:b5:00.0".into() });
        }
    }

    #[test]
    fn what_means_nothing_is_refused_with_a_reason() {
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
            let error = Spec::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("port {text}: ")), "{error}");
        }
        let error = Spec::parse("tap:t,frame=1").unwrap_err().to_string();
        assert!(error.ends_with("no option 'frame'; there are: mac, descriptors, mtu"), "{error}");
    }
}
