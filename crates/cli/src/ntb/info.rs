//! `inlane ntb info`: describes how the PEs of a job would communicate.
//!
//! For memory windows, shows the back-end (twin or ivshmem), why it was chosen, its capabilities, and two
//! threshold sizes. For a get of the first size or more, the PE that owns the data puts it to the caller. The data of a
//! put of the second size or more is copied by the mover that `--mover` names. For other transports, connects two PEs and shows
//! what carries their bytes ([`info_network`](super::info_network)).

use super::info_network::NetworkInfo;
use super::transport;
use crate::output::Output;
use crate::values::{choice, count};
use clap::Args;
use inlane_ntb::device::{Capabilities, Ntb, Ordering};
use inlane_ntb::discover::{Bridge, BridgeKind, bridges, why_twin};
use inlane_ntb::fault::Faults;
use inlane_ntb::ivshmem::Ivshmem;
use inlane_ntb::twin::{Hub, Twin};
use inlane_pci::{Address, Sysfs};
use inlane_pgas::launch::HEAP;
use inlane_pgas::transport::select::TransportKind;
use inlane_pgas::transport::windows::layout::Layout;
use inlane_pgas::transport::windows::wakeup::BACKSTOP;
use inlane_pgas::transport::windows::{MoverChoice, Settings, Thresholds, Windows};
use inlane_pgas::variables;
use inlane_result::{Cell, Document, NotTaken, PathExplanation, Quantity, Reason, Row, phrase};
use std::sync::Arc;

/// Shows how PEs would communicate, and why
///
/// For windows: the back-end (twin or ivshmem), why it was chosen, its capabilities, and the sizes from which
/// gets and puts take another method. For UCX: the transports that UCX chose.
#[derive(Args)]
#[command(after_help = "\
Examples:
  # the twin, a software model of a PCIe bridge
  inlane ntb info

  # the transports that UCX chooses between two PEs on this machine
  inlane ntb info --transport ucx

  # a device that virtual machines share
  inlane ntb info --ivshmem 0000:00:01.0")]
pub struct Info {
    /// The transport to describe. For all but windows, inlane starts two PEs on this machine [default:
    /// INLANE_NTB_TRANSPORT, else windows]
    #[arg(long, value_name = "TRANSPORT", value_parser = choice::<TransportKind>(), conflicts_with_all = ["ivshmem", "mover"])]
    transport: Option<TransportKind>,
    /// Show this ivshmem device, given by its PCI address and bound to vfio-pci [default: the twin, a
    /// software model of a PCIe bridge]
    #[arg(long, value_name = "ADDRESS")]
    ivshmem: Option<Address>,
    /// Number of virtual machines that share the ivshmem device, 2 to 64
    #[arg(long, value_name = "N", default_value_t = 2, requires = "ivshmem", value_parser = count::<u32>(2, 64))]
    machines: u32,
    /// Measure from which size this mover is faster than stores: twin (a DMA engine as fast as a core copies)
    /// or twin:RATE in bits per second (twin:30G)
    #[arg(long, value_name = "MOVER", conflicts_with = "ivshmem")]
    mover: Option<MoverChoice>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

/// The result of `inlane ntb info`: describes the PCIe bridge that windows use, or a transport through a network.
#[derive(Clone, Debug, serde::Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum TransportInfo {
    /// For windows.
    Windows(Box<BridgeInfo>),
    /// For a transport through a network, such as UCX.
    Network(Box<NetworkInfo>),
}

impl Row for TransportInfo {
    fn parameters(&self) -> Vec<Cell> {
        Vec::new()
    }

    fn figures(&self) -> Vec<Cell> {
        Vec::new()
    }

    fn lines(&self) -> Vec<Cell> {
        match self {
            TransportInfo::Windows(bridge) => bridge.lines(),
            TransportInfo::Network(network) => network.lines(),
        }
    }
}

/// Information on NTB: the back-end that `inlane ntb` would use, its capabilities, and this machine's
/// bridges.
#[derive(Clone, Debug, serde::Serialize, schemars::JsonSchema)]
pub struct BridgeInfo {
    /// The back-end, and why it was chosen.
    pub path: PathExplanation,
    /// The bridges that were found in this machine.
    pub bridges: Vec<Bridge>,
    /// What the back-end can do.
    pub capabilities: Capabilities,
    /// The thresholds of the transport; `null` if they are known only after connecting to a peer.
    pub thresholds: Option<Thresholds>,
}

/// Describes how two PEs reach each other: by the twin, or by the given ivshmem device. Also says why the
/// machine's other bridges are not used.
pub fn path(ivshmem: Option<Address>, bridges: &[Bridge]) -> PathExplanation {
    let (name, hop, reason) = match ivshmem {
        None => ("twin", "twin window (coherent shared memory)", why_twin(bridges)),
        Some(_) => ("ivshmem", "ivshmem window (a BAR under vfio-pci)", "requested by --ivshmem".into()),
    };
    let not_taken = bridges.iter().filter_map(|bridge| {
        let why = match bridge.kind {
            BridgeKind::Hardware => "hardware bridges are not supported yet",
            BridgeKind::Ivshmem if ivshmem.is_none() => "not requested; give --ivshmem with its address",
            _ => return None,
        };
        Some(NotTaken { path: bridge.address.clone(), why: Reason::unavailable(why) })
    });
    let not_taken = not_taken.chain(transport::not_taken(TransportKind::Windows)).collect();
    PathExplanation {
        name: name.into(),
        hops: vec![vec!["PE 0".into(), hop.into(), "PE 1".into()]],
        reason,
        not_taken,
    }
}

impl Info {
    /// Prints what jobs would use to communicate: the back-end of windows, or what carries the bytes of another transport. Also prints
    /// the reason and the capabilities.
    ///
    /// # Errors
    /// If the bridge or the transport cannot be used, or an output cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), None, None)?;
        let mut document = Document::new("ntb info");
        let by_variable =
            if self.ivshmem.is_none() && self.mover.is_none() { TransportKind::asked_for()? } else { None };
        let kind = self.transport.or(by_variable).unwrap_or_default();
        let asks = if self.transport.is_some() { "--transport" } else { variables::TRANSPORT };
        document.results = vec![match (kind, &*format!("{asks} asks for it")) {
            (kind, _) if kind.has_windows() => {
                let bridge = self.bridge()?;
                document.twin = bridge.capabilities.is_twin;
                TransportInfo::Windows(Box::new(bridge))
            }
            (kind, reason) => TransportInfo::Network(Box::new(NetworkInfo::find(kind, reason)?)),
        }];
        let text = |out: &mut dyn std::io::Write, document: &Document<TransportInfo>| {
            out.write_all(inlane_report::text(document).as_bytes())
        };
        output.write(&mut document, text, |_| None)
    }

    /// Returns the description of the bridge that jobs over windows would use.
    fn bridge(&self) -> anyhow::Result<BridgeInfo> {
        let bridges = bridges(&Sysfs::system());
        let (capabilities, thresholds) = match self.ivshmem {
            Some(address) => (Ivshmem::open(address, self.machines)?.capabilities().clone(), None),
            None => {
                let (capabilities, thresholds) = twin(self.mover.as_ref())?;
                (capabilities, Some(thresholds))
            }
        };
        Ok(BridgeInfo { path: path(self.ivshmem, &bridges), bridges, capabilities, thresholds })
    }
}

/// Connects two NTB ports of a twin bridge within this process. Returns the capabilities of the twin and the
/// thresholds of the transport.
fn twin(mover: Option<&MoverChoice>) -> anyhow::Result<(Capabilities, Thresholds)> {
    let mover = mover.map(MoverChoice::start_twin).transpose()?.map(|mover| (mover, None));
    let bytes = Layout::overhead(2) + (1 << 20);
    let hub = Hub::new(2, HEAP)?;
    let attach = |port| -> anyhow::Result<Arc<Twin>> {
        Ok(Arc::new(Twin::attach(hub.admit(port)?, &Faults::default())?))
    };
    let (first, second) = (attach(0)?, attach(1)?);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| Windows::connect(second, bytes, Settings::default()));
        let windows = Windows::connect(first, bytes, Settings { mover, ..Settings::default() })?;
        let _other = other.join();
        Ok((windows.ntb().capabilities().clone(), windows.thresholds()))
    })
}

impl BridgeInfo {
    fn lines(&self) -> Vec<Cell> {
        let capabilities = &self.capabilities;
        let window = &capabilities.window;
        let from = |bytes: Option<u64>, what: &str, never: &str| match bytes {
            Some(bytes) => phrase!["from ", Quantity::Bytes(bytes), ": ", what],
            None => never.into(),
        };
        let mut cells = vec![
            Cell::new("back-end", format!("windows, {}: {}", capabilities.name, self.path.reason)),
            Cell::new(
                "windows",
                phrase![
                    capabilities.windows,
                    " onto each peer, up to ",
                    Quantity::Bytes(window.size_max_bytes),
                    ", in steps of ",
                    Quantity::Bytes(window.size_align)
                ],
            ),
            Cell::new(
                "stores",
                match capabilities.ordering {
                    Ordering::Coherent => "coherent: delivered once they have left the store buffer",
                    Ordering::Posted => "posted: delivered after a read-back",
                },
            ),
            Cell::new(
                "doorbells",
                phrase![capabilities.doorbells.count_ones(), " bits, ", capabilities.vectors, " vectors"],
            ),
            Cell::new("scratchpads", capabilities.scratchpads),
        ];
        match &self.thresholds {
            Some(thresholds) => cells.extend([
                Cell::new(
                    "gets",
                    from(
                        thresholds.push_from_bytes,
                        "the owner of the memory stores the bytes",
                        "loads at all sizes",
                    ),
                ),
                Cell::new(
                    "puts",
                    from(thresholds.mover_from_bytes, "the mover copies", "stores at all sizes"),
                ),
            ]),
            None => cells.push(Cell::new("thresholds", "known after connecting to a peer")),
        }
        cells.push(Cell::new(
            "longest sleep",
            format!("{:?} without a doorbell, doubling up to {:?}", BACKSTOP.0, BACKSTOP.1),
        ));
        if capabilities.is_memory_modelled {
            cells.push(Cell::new("model", "host memory lies behind the windows: bandwidths are a model's"));
        }
        cells.extend(self.bridges.iter().map(|bridge| {
            let kind = match bridge.kind {
                BridgeKind::Hardware => "NTB, not supported yet",
                BridgeKind::OtherBridge => "class 0680 without an NTB driver",
                BridgeKind::Ivshmem => "ivshmem",
            };
            let driver = bridge.driver.as_deref().unwrap_or("no driver");
            Cell::new("found", format!("{} {kind} ({driver})", bridge.address))
        }));
        cells
    }
}
