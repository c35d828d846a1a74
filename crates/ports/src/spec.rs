//! Port specifications: which port a run opens, and what it can do. [`PortSpec`] is parsed once, from text such as
//! `gen:64,flows=8`. [`Kind::properties`] is the table of all kinds.

mod kinds;
mod suggest;

pub use kinds::{Kind, PoolKind, Properties, Role, Source};

use crate::check::CheckSpec;
use crate::generate::GeneratorSpec;
use crate::ntb::NtbSpec;
use crate::null::NullSpec;
use crate::oran::RadioSpec;
use crate::pcap::{CaptureSpec, Pace, Playback};
use inlane_core::clock::Clock;
use inlane_core::{Port, Result};
#[cfg(feature = "dpdk")]
use inlane_dpdk::spec::{EthSpec, PortKind};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// The specification of a port. Parse it from text with [`PortSpec::parse`], or create a variant.
#[derive(Clone, PartialEq)]
pub enum PortSpec {
    /// A null port.
    Null(NullSpec),
    /// A generator.
    Generator(GeneratorSpec),
    /// A generator of a radio's packets.
    Radio(RadioSpec),
    /// A checker.
    Checker(CheckSpec),
    /// A capture.
    Capture(CaptureSpec),
    /// A port over an NTB.
    Ntb(NtbSpec),
    /// A port of DPDK.
    #[cfg(feature = "dpdk")]
    Dpdk(EthSpec),
    /// A port of the library's user.
    Own(OwnPort),
}

/// A function that opens a port. The clock is that of the run.
pub type OpenPort = Arc<dyn Fn(&Clock) -> Result<Box<dyn Port>> + Send + Sync>;

/// A port of the library's user: a name, the port's properties, and a function that opens it.
#[derive(Clone)]
pub struct OwnPort {
    /// The name that results show.
    pub name: String,
    /// The properties that a run needs before it opens the port. Their field `name` has no effect.
    pub properties: Properties,
    /// Opens the port. A run calls it once. The experiments around a run call it again if `properties.source` is
    /// [`Source::Made`].
    pub open: OpenPort,
}

impl PartialEq for OwnPort {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.open, &other.open)
    }
}

impl PortSpec {
    /// Parses a specification: `KIND[:ARGUMENT][,OPTION]...`.
    ///
    /// # Errors
    /// - The kind does not exist. The message suggests similar kinds.
    /// - The argument or an option is wrong.
    /// - The kind needs DPDK, and the program was built without it.
    pub fn parse(text: &str) -> crate::Result<Self> {
        let Some(kind) = Kind::of(text) else { return Err(suggest::unknown(text).into()) };
        Ok(match kind {
            Kind::Null => Self::Null(NullSpec::parse(text)?),
            Kind::Generator => Self::Generator(GeneratorSpec::parse(text)?),
            Kind::Radio => Self::Radio(RadioSpec::parse(text)?),
            Kind::Checker => Self::Checker(CheckSpec::parse(text)?),
            Kind::Capture => Self::Capture(CaptureSpec::parse(text)?),
            Kind::Ntb => Self::Ntb(NtbSpec::parse(text)?),
            Kind::NetNull
            | Kind::Ring
            | Kind::AfXdp
            | Kind::AfPacket
            | Kind::Tap
            | Kind::Memif
            | Kind::Pci => Self::parse_dpdk(text)?,
            Kind::Own => unreachable!("no specification names it"),
        })
    }

    /// Returns the specification of a generator of frames with `size` bytes.
    ///
    /// # Errors
    /// If a generator cannot make frames of this size.
    pub fn generator(size: u64) -> crate::Result<Self> {
        Self::parse(&format!("{}:{size}", Kind::Generator.properties().name))
    }

    #[cfg(feature = "dpdk")]
    fn parse_dpdk(text: &str) -> crate::Result<Self> {
        Ok(Self::Dpdk(EthSpec::parse(text)?))
    }

    #[cfg(not(feature = "dpdk"))]
    fn parse_dpdk(text: &str) -> crate::Result<Self> {
        let why = "this program was built without the cargo feature dpdk; build it with --features dpdk";
        Err(inlane_core::Error::port_environment(text, why).into())
    }

    /// Returns the kind of port.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Null(_) => Kind::Null,
            Self::Generator(_) => Kind::Generator,
            Self::Radio(_) => Kind::Radio,
            Self::Checker(_) => Kind::Checker,
            Self::Capture(_) => Kind::Capture,
            Self::Ntb(_) => Kind::Ntb,
            #[cfg(feature = "dpdk")]
            Self::Dpdk(spec) => match spec.kind {
                PortKind::Null { .. } => Kind::NetNull,
                PortKind::Ring { .. } => Kind::Ring,
                PortKind::AfXdp { .. } => Kind::AfXdp,
                PortKind::AfPacket { .. } => Kind::AfPacket,
                PortKind::Tap { .. } => Kind::Tap,
                PortKind::Memif { .. } => Kind::Memif,
                PortKind::Pci { .. } => Kind::Pci,
            },
            Self::Own(_) => Kind::Own,
        }
    }

    /// Returns the properties that a run needs before it opens the port.
    pub fn properties(&self) -> &Properties {
        match self {
            Self::Own(own) => &own.properties,
            _ => self.kind().properties(),
        }
    }

    /// Returns the specification's text as the user wrote it, with `***` in place of a secret.
    pub fn text(&self) -> &str {
        match self {
            Self::Null(NullSpec { text, .. })
            | Self::Generator(GeneratorSpec { text, .. })
            | Self::Radio(RadioSpec { text, .. })
            | Self::Checker(CheckSpec { text, .. })
            | Self::Ntb(NtbSpec { text, .. })
            | Self::Capture(CaptureSpec { text, .. }) => text,
            #[cfg(feature = "dpdk")]
            Self::Dpdk(spec) => &spec.text,
            Self::Own(own) => &own.name,
        }
    }

    /// Returns the specification's text without its options: the kind and the argument.
    pub fn without_options(&self) -> &str {
        match self {
            // The name of a capture may contain commas.
            Self::Capture(spec) => &spec.text,
            _ => self.text().split(',').next().unwrap_or_default(),
        }
    }

    /// Returns the size of received packets if the specification chooses one for all of them.
    pub fn packet_size(&self) -> Option<usize> {
        match self {
            Self::Null(spec) => Some(spec.size as usize),
            Self::Generator(spec) => <[usize; 1]>::try_from(&spec.traffic.sizes[..]).ok().map(|[size]| size),
            #[cfg(feature = "dpdk")]
            Self::Dpdk(EthSpec { kind: PortKind::Null { size, .. }, .. }) => Some(usize::from(*size)),
            #[cfg(feature = "dpdk")]
            Self::Dpdk(_) => None,
            // Each kind is named, so that the compiler asks about a new one.
            Self::Radio(_) | Self::Checker(_) | Self::Capture(_) | Self::Ntb(_) | Self::Own(_) => None,
        }
    }

    /// Returns the PCI address of a network card.
    pub fn card(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "dpdk")]
            Self::Dpdk(EthSpec { kind: PortKind::Pci { address }, .. }) => Some(address),
            _ => None,
        }
    }

    /// Returns true if the port carries frames of any size: an NTB port, and a memif port whose specification names no MTU, if its
    /// shared buffers get the size that [`PortSpec::with_buffers`] asks for.
    pub fn has_free_buffers(&self) -> bool {
        match self {
            Self::Ntb(_) => true,
            #[cfg(feature = "dpdk")]
            Self::Dpdk(spec) => matches!(spec.kind, PortKind::Memif { .. }) && spec.mtu.is_none(),
            _ => false,
        }
    }

    /// Returns the specification with shared buffers for frames of up to `room` bytes. Changes nothing if the port has no such
    /// buffers, or the specification names their size.
    #[cfg_attr(
        not(feature = "dpdk"),
        expect(unused_variables, reason = "only a port of DPDK has shared buffers")
    )]
    pub fn with_buffers(self, room: usize) -> Self {
        match self {
            #[cfg(feature = "dpdk")]
            Self::Dpdk(spec) if matches!(spec.kind, PortKind::Memif { .. }) => {
                Self::Dpdk(spec.with_buffers(room))
            }
            other => other,
        }
    }

    /// Returns true if one open port can both receive and send in a run.
    pub fn is_shared(&self) -> bool {
        self.properties().role == Role::Both
    }

    /// Returns the file of a capture. Returns `None` for other kinds of ports, and for standard input and output.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Capture(spec) => spec.file(),
            _ => None,
        }
    }

    /// Returns true for a capture on standard input or output.
    pub fn is_standard_stream(&self) -> bool {
        matches!(self, Self::Capture(spec) if spec.is_standard())
    }

    /// Returns the kernel's network interface that the port uses. `None` if it uses none or creates it.
    pub fn interface(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "dpdk")]
            Self::Dpdk(EthSpec {
                kind: PortKind::AfXdp { interface, .. } | PortKind::AfPacket { interface, .. },
                ..
            }) => Some(interface),
            _ => None,
        }
    }

    /// Returns true for a ring that holds packets when it is opened.
    pub fn starts_with_packets(&self) -> bool {
        match self {
            #[cfg(feature = "dpdk")]
            Self::Dpdk(EthSpec { kind: PortKind::Ring { prime, .. }, .. }) => *prime > 0,
            _ => false,
        }
    }

    /// Returns true if the port gives packets of the same kind when it is opened again. A pipe does not.
    pub fn can_reopen(&self) -> bool {
        match (self, self.properties().source) {
            (Self::Capture(spec), _) => spec.is_regular_file(),
            (_, source) => source == Source::Made,
        }
    }

    /// Returns true if the port never runs out of packets. A run from it ends only for another reason.
    pub fn is_endless(&self, playback: Playback) -> bool {
        match self {
            Self::Generator(spec) => spec.load.packets.is_none(),
            Self::Radio(spec) => spec.load.positions.is_none(),
            Self::Capture(_) => playback.repeat,
            _ => self.properties().source == Source::Made,
        }
    }

    /// Returns true if the next packet is ready whenever the run receives, until the port has run out of packets.
    /// Returns false for a port with a rate of its own, a network and a pipe, because these have pauses.
    pub fn is_always_ready(&self, playback: Playback) -> bool {
        match self {
            Self::Generator(spec) => spec.load.rate.is_none(),
            Self::Radio(spec) => spec.load.rate.is_none() && !spec.load.realtime,
            Self::Capture(spec) => spec.is_regular_file() && playback.pace == Pace::Full,
            _ => self.properties().source == Source::Made,
        }
    }

    /// Returns this specification with packets of `size` bytes. `None` if the port cannot make packets of a chosen
    /// size.
    ///
    /// # Errors
    /// If the size is out of the port's range.
    pub fn with_size(&self, size: u64) -> Option<crate::Result<Self>> {
        let Properties { name, is_sized, .. } = *self.properties();
        let options = &self.text()[self.without_options().len()..];
        is_sized.then(|| Self::parse(&format!("{name}:{size}{options}")))
    }
}

impl From<NullSpec> for PortSpec {
    fn from(spec: NullSpec) -> Self {
        Self::Null(spec)
    }
}

impl FromStr for PortSpec {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Shows the text alone, because a parsed specification can hold a secret and large tables.
impl fmt::Debug for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortSpec({})", self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> PortSpec {
        PortSpec::parse(text).unwrap()
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn every_kind_of_dpdk_is_named() {
        let mbufs = |kind: &Kind| kind.properties().pool == PoolKind::Mbufs;
        let of_dpdk: Vec<_> =
            Kind::NAMED.into_iter().filter(mbufs).map(|kind| kind.properties().name).collect();
        assert_eq!(of_dpdk, EthSpec::KINDS);
    }

    #[test]
    fn every_named_kind_is_parsed_as_itself() {
        for (text, kind) in [
            ("null:64", Kind::Null),
            ("gen:64,flows=2", Kind::Generator),
            ("gen:oran", Kind::Radio),
            ("gen:oran,prbs=3", Kind::Radio),
            ("check", Kind::Checker),
            ("check:64,flows=2", Kind::Checker),
            ("pcap:a,b", Kind::Capture),
            ("ntb:/a,role=server", Kind::Ntb),
            ("ntb:0000:00:05.0", Kind::Ntb),
            ("net_null", Kind::NetNull),
            ("ring:a,prime=3", Kind::Ring),
            ("af_xdp:v0", Kind::AfXdp),
            ("af_packet:v0", Kind::AfPacket),
            ("tap:t", Kind::Tap),
            ("memif:/a", Kind::Memif),
            ("pci:b5:00.0", Kind::Pci),
        ] {
            assert_eq!(Kind::of(text), Some(kind), "{text}");
            if cfg!(feature = "dpdk") || kind.properties().pool == PoolKind::Any {
                assert_eq!(spec(text).kind(), kind, "{text}");
                assert_eq!(spec(text).text(), text);
            }
        }
        assert_eq!(Kind::of("gen:64,oran"), Some(Kind::Generator));
        assert_eq!(Kind::of("nul"), None);
    }

    #[test]
    fn the_page_about_ports_has_a_row_for_each_kind() {
        let page = include_str!("../../../docs/ports.md");
        for kind in Kind::NAMED {
            let row = format!("\n| `{}` |", kind.properties().syntax.replace('|', "\\|"));
            assert!(page.contains(&row), "docs/ports.md lacks{row}");
        }
    }

    #[test]
    fn options_decide_whether_a_source_ends_and_pauses() {
        let once = Playback::default();
        for (text, endless, ready) in [
            ("null", true, true),
            ("gen:64", true, true),
            ("gen:64,packets=9", false, true),
            ("gen:64,rate=1Mpps", true, false),
            ("gen:oran", true, true),
            ("gen:oran,slots=3", false, true),
            ("gen:oran,realtime", true, false),
            ("pcap:-", false, false),
        ] {
            let spec = spec(text);
            assert_eq!((spec.is_endless(once), spec.is_always_ready(once)), (endless, ready), "{text}");
        }
        assert!(spec("pcap:x").is_endless(Playback { repeat: true, ..once }));
    }

    #[test]
    fn kinds_with_a_property_are_listed() {
        assert_eq!(Kind::list(|row| row.source == Source::File), "pcap");
        assert_eq!(Kind::list(|row| row.is_sized), "null, gen and net_null");
    }

    #[test]
    fn pipes_are_not_read_twice() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
        let (file, pipe) = (path("file"), path("pipe"));
        std::fs::write(&file, []).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(spec(&format!("pcap:{file}")).can_reopen() && spec("gen:64").can_reopen());
        for text in [format!("pcap:{pipe}"), "pcap:-".into(), "check".into()] {
            assert!(!spec(&text).can_reopen(), "{text}");
        }
    }

    #[test]
    fn unknown_kinds_are_refused_with_a_suggestion() {
        for (text, expected) in [
            ("nul", "'nul' is not a kind of port; did you mean null? choose one of null, gen, check, pcap"),
            ("eth9", "did you mean af_xdp:eth9 or af_packet:eth9?"),
            ("lo,queue=1", "did you mean af_xdp:lo,queue=1 or af_packet:lo,queue=1?"),
            ("0000:3b:00.0", "did you mean pci:0000:3b:00.0?"),
            ("3b:00.0", "did you mean pci:0000:3b:00.0?"),
            ("nulll", "'nulll' is not a kind of port; did you mean null?"),
            ("null,foo=bar", "unknown option 'foo'"),
            ("check,foo=1", "check,foo=1"),
        ] {
            let error = PortSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn no_text_shows_a_secret() {
        let spec = spec("memif:/a,secret=hidden");
        assert_eq!(format!("{spec} {spec:?}").matches("hidden").count(), 0);
    }
}
