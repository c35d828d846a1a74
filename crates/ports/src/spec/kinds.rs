//! The table of all kinds of ports. All code that depends on the kind of a port reads it.

use inlane_core::port::spec::SpecText;

/// The kinds of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `null`: makes packets without touching their bytes, and discards packets.
    Null,
    /// `gen:SIZE|imix`: a generator of known flows.
    Generator,
    /// `gen:oran`: a generator of an O-RAN radio's packets.
    Radio,
    /// `check`: a checker of a generator's packets.
    Checker,
    /// `pcap`: a capture that is read or written.
    Capture,
    /// `ntb`: memory windows of a PCIe bridge to another process or virtual machine.
    Ntb,
    /// `net_null`: DPDK's null driver.
    NetNull,
    /// `ring`: a ring in this process that returns the packets that are sent to it.
    Ring,
    /// `af_xdp`: a network interface by AF_XDP sockets.
    AfXdp,
    /// `af_packet`: a network interface by packet sockets.
    AfPacket,
    /// `tap`: a network interface that the port creates.
    Tap,
    /// `memif`: shared memory with another process.
    Memif,
    /// `pci`: a network card bound to vfio-pci.
    Pci,
    /// A port of the library's user. The last kind.
    Own,
}

// A kind that the list lacks could not be named.
const _: () = assert!(Kind::NAMED.len() == Kind::Own as usize);

/// What a run can use a port for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only to receive from it.
    Receive,
    /// Only to send to it.
    Send,
    /// To receive from it or to send to it, but not both with one open port.
    Either,
    /// To receive from it and to send to it with one open port.
    Both,
}

/// Where a port's packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The port makes them. If it is opened again, it makes packets of the same kind.
    Made,
    /// They are read from a file or a pipe.
    File,
    /// They come from outside: from a network, another process, or the sender of this process.
    Outside,
    /// The port receives no packets.
    None,
}

/// The packet buffers that a port accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Buffers of any pool.
    Any,
    /// DPDK's mbufs.
    Mbufs,
}

/// The properties of a kind of port. A run needs them before it opens the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The text before the first colon or comma of a specification.
    pub name: &'static str,
    /// The syntax of a specification without options, such as `ring:NAME`.
    pub syntax: &'static str,
    /// What the port does, and its options, in lines for help texts.
    pub about: &'static [&'static str],
    /// What a run can use the port for.
    pub role: Role,
    /// Where received packets come from.
    pub source: Source,
    /// True if the port itself keeps a rate that is set. Other ports need a wrapper that receives late.
    pub paces_itself: bool,
    /// True if the port reads or writes all bytes of its packets.
    pub moves_payload: bool,
    /// True if the size of received packets is the specification's argument.
    pub is_sized: bool,
    /// True if a network stack can use the port: it carries frames of a network, or is a driver's stand-in for one.
    pub is_network: bool,
    /// True if only a privileged user can open the port.
    pub needs_privileges: bool,
    /// The packet buffers that the port accepts.
    pub pool: PoolKind,
}

impl Properties {
    /// A port that neither makes packets nor connects to anything. Other rows state how they differ.
    pub const PLAIN: Properties = Properties {
        name: "",
        syntax: "",
        about: &[],
        role: Role::Either,
        source: Source::None,
        paces_itself: false,
        moves_payload: true,
        is_sized: false,
        is_network: false,
        needs_privileges: false,
        pool: PoolKind::Any,
    };
}

impl Kind {
    /// All kinds that a specification can name, in the order in which messages list them.
    pub const NAMED: [Kind; 13] = [
        Kind::Null,
        Kind::Generator,
        Kind::Radio,
        Kind::Checker,
        Kind::Capture,
        Kind::Ntb,
        Kind::NetNull,
        Kind::Ring,
        Kind::AfXdp,
        Kind::AfPacket,
        Kind::Tap,
        Kind::Memif,
        Kind::Pci,
    ];

    /// Returns the kind's row of the table.
    pub const fn properties(self) -> &'static Properties {
        const PLAIN: Properties = Properties::PLAIN;
        /// A port of DPDK that connects to a network.
        const NETWORK: Properties = Properties {
            role: Role::Both,
            source: Source::Outside,
            is_network: true,
            pool: PoolKind::Mbufs,
            ..PLAIN
        };
        const PRIVILEGED: Properties = Properties { needs_privileges: true, ..NETWORK };
        match self {
            Kind::Null => &Properties {
                name: "null",
                syntax: "null[:SIZE]",
                about: &["makes packets of SIZE bytes or discards packets, without touching their bytes"],
                role: Role::Both,
                source: Source::Made,
                paces_itself: true,
                moves_payload: false,
                is_sized: true,
                ..PLAIN
            },
            Kind::Generator => &Properties {
                name: "gen",
                syntax: "gen:SIZE|imix",
                about: &[
                    "generates flows with sequence numbers and checksums: flows=N (64), seed=N,",
                    "v4, v6, udp, tcp, vlan=N, smac=MAC, dmac=MAC, rate=RATE, packets=N; with fcs,",
                    "SIZE includes the 4 bytes of the FCS, as in RFC 2544 (gen:64,fcs)",
                ],
                role: Role::Receive,
                source: Source::Made,
                paces_itself: true,
                is_sized: true,
                ..PLAIN
            },
            Kind::Radio => &Properties {
                name: "gen",
                syntax: "gen:oran",
                about: &[
                    "generates the packets of an O-RAN radio: eaxc=0+1, prbs=N, scs=15|30|60|120,",
                    "mtu=N, shuffle=N, loss=N%, slots=N, realtime, downlink; seed, vlan, smac,",
                    "dmac, rate",
                ],
                role: Role::Receive,
                source: Source::Made,
                paces_itself: true,
                ..PLAIN
            },
            Kind::Checker => &Properties {
                name: "check",
                syntax: "check",
                about: &[
                    "verifies the packets that this run's gen made; check:SIZE,OPTIONS verifies the",
                    "packets of another run's gen, which has the same options",
                ],
                role: Role::Send,
                ..PLAIN
            },
            Kind::Capture => &Properties {
                name: "pcap",
                syntax: "pcap:FILE",
                about: &["reads or writes a capture; pcap:- is standard input or output"],
                source: Source::File,
                ..PLAIN
            },
            Kind::Ntb => &Properties {
                name: "ntb",
                syntax: "ntb:SOCKET|ADDRESS",
                about: &[
                    "memory windows to another process (twin): role=server|client (client); or to",
                    "another virtual machine, by an ivshmem device; wait=SECONDS (10)",
                ],
                role: Role::Both,
                source: Source::Outside,
                is_network: true,
                ..PLAIN
            },
            Kind::NetNull => &Properties {
                name: "net_null",
                syntax: "net_null[:SIZE]",
                about: &["DPDK's null driver makes or discards packets: copy=on touches the bytes"],
                source: Source::Made,
                moves_payload: false,
                is_sized: true,
                ..NETWORK
            },
            Kind::Ring => &Properties {
                name: "ring",
                syntax: "ring:NAME",
                about: &[
                    "returns the packets that are sent to it: prime=N packets at the start,",
                    "size=BYTES each",
                ],
                moves_payload: false,
                ..NETWORK
            },
            Kind::AfXdp => &Properties {
                name: "af_xdp",
                syntax: "af_xdp:IFACE",
                about: &[
                    "a network interface by AF_XDP sockets: queue=N is the first queue (0),",
                    "busy=N packets per busy poll, copy=on forces copy mode",
                ],
                ..PRIVILEGED
            },
            Kind::AfPacket => &Properties {
                name: "af_packet",
                syntax: "af_packet:IFACE",
                about: &[
                    "a network interface by packet sockets: queues=N (one per pipeline),",
                    "frame=BYTES of a slot, bypass=on skips the queueing discipline",
                ],
                ..PRIVILEGED
            },
            Kind::Tap => &Properties {
                name: "tap",
                syntax: "tap:NAME",
                about: &["creates the interface NAME: mac=fixed gives it the same address each time"],
                ..PRIVILEGED
            },
            Kind::Memif => &Properties {
                name: "memif",
                syntax: "memif:SOCKET",
                about: &[
                    "shared memory with another process: role=server|client (client), id=N (0),",
                    "wait=SECONDS (10), secret=TEXT",
                ],
                ..NETWORK
            },
            Kind::Pci => &Properties {
                name: "pci",
                syntax: "pci:ADDRESS",
                about: &["a network card bound to vfio-pci"],
                ..PRIVILEGED
            },
            Kind::Own => &PLAIN,
        }
    }

    /// Returns the names of all kinds, each once.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = Self::NAMED.iter().map(|kind| kind.properties().name).collect();
        names.dedup();
        names
    }

    /// Returns the names of the kinds whose properties fulfil `condition`, as a list for messages: `null, gen and net_null`.
    pub fn list(condition: impl Fn(&Properties) -> bool) -> String {
        let rows = Self::NAMED.iter().map(|kind| kind.properties());
        let mut names: Vec<_> = rows.filter(|row| condition(row)).map(|row| row.name).collect();
        names.dedup();
        match &names[..] {
            [] => String::new(),
            [name] => (*name).into(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        }
    }

    /// Returns the kind that the specification `text` names. Does not check the rest of `text`. `None` if there is
    /// no such kind.
    pub fn of(text: &str) -> Option<Self> {
        let name = SpecText::kind_of(text);
        let kind = Self::NAMED.into_iter().find(|kind| kind.properties().name == name)?;
        let argument = text[name.len()..].strip_prefix(':').and_then(|rest| rest.split(',').next());
        Some(match (kind, argument) {
            (Kind::Generator, Some("oran")) => Kind::Radio,
            _ => kind,
        })
    }
}
