//! `inlane topo`: shows the PCI devices and memory nodes of this machine, the tree of bridges, and links that
//! are slower than their devices support.

mod picture;

use crate::output::Output;
use inlane_core::units;
use inlane_pci::link::Shortfall;
use inlane_pci::numa::{self, Node};
use inlane_pci::topology::FunctionKind;
use inlane_pci::{Device, Names, Sysfs};
use inlane_result::Document;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

/// The payload size of PCIe packets, in bytes, that the ceilings assume. Most machines use this size.
const PAYLOAD_BYTES: u32 = 256;

const EXAMPLES: &str = "\
Examples:
  inlane topo                                   GPUs, NICs, NVMe drives and the bridges above them
  inlane topo --all --bars                      every PCI function with its BARs
  inlane topo --svg tree.svg                    a picture of the tree
  inlane topo --json - | jq '.results[0].devices[] | select(.shortfall)'

Columns:
  link      PCIe generation and number of lanes; '!' marks a link slower than the device supports
  ceiling   payload rate of the slowest link between the device and the root, one way, for
            packets with 256 bytes of payload
  node      NUMA node
  group     IOMMU group

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights).";

/// Shows the PCI devices, links and memory nodes of this machine
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show every PCI function, not only GPUs, NICs, NVMe drives and the bridges above them
    #[arg(long)]
    all: bool,
    /// Show the BARs of each device
    #[arg(long)]
    bars: bool,
    /// Write the result as JSON to a file, or to standard output for -. The JSON has every PCI function and
    /// its BARs
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Draw the tree to an SVG file, with links as thick as they are wide, and those slower than their devices marked
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The document that `--json` writes. It has one row.
type TopologyReport = Document<Topology>;

/// The NUMA nodes and PCI functions of a machine.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Topology {
    /// The NUMA nodes, with their CPUs and the size of their memory.
    nodes: Vec<Node>,
    /// All PCI functions, each bridge before the functions below it.
    devices: Vec<Entry>,
}

/// A PCI function and its place in the tree.
#[derive(Debug, Serialize, JsonSchema)]
struct Entry {
    #[serde(flatten)]
    device: Device,
    /// The name from the system's list of PCI identifiers. Null if the list is missing or lacks the function.
    name: Option<String>,
    /// The number of bridges between the function and the root of its PCI tree.
    depth: usize,
    /// The payload bytes per second, one way, that the slowest link between the function and the root allows.
    ceiling_payload_bytes_per_second: Option<f64>,
    /// How far the link is below what the device supports. Null if the link is as fast as the device.
    shortfall: Option<Shortfall>,
}

impl Entry {
    /// Returns true for GPUs, NICs and NVMe drives, the devices that are sources or destinations of data.
    fn is_endpoint(&self) -> bool {
        matches!(self.device.kind, FunctionKind::Gpu | FunctionKind::Nic | FunctionKind::Nvme)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// If the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let output = Output::open(args.json.as_deref(), None, args.svg.as_deref())?;
    let mut report = TopologyReport::new("topo");
    report.results.push(read(&Sysfs::system(), &Names::system()));
    output.write(
        &mut report,
        |out, report| show(out, &report.results[0], args),
        |report| {
            let topology = &report.results[0];
            picture::picture(topology, &shown(topology, args.all), &report.source())
        },
    )
}

fn read(sysfs: &Sysfs, names: &Names) -> Topology {
    let topology = inlane_pci::Topology::read(sysfs);
    let entry = |(depth, device): (usize, &Device)| {
        let narrowest = topology.narrowest(device.address);
        Entry {
            name: names.name(device.vendor, device.device),
            depth,
            ceiling_payload_bytes_per_second: narrowest
                .map(|(_, rate)| rate.payload_bytes_per_second(PAYLOAD_BYTES)),
            shortfall: topology.shortfall(device),
            device: device.clone(),
        }
    };
    Topology { nodes: numa::nodes(sysfs), devices: topology.walk().into_iter().map(entry).collect() }
}

const HEADER: [&str; 8] = ["device", "what", "link", "ceiling", "node", "group", "driver", "name"];

fn show(out: &mut dyn Write, topology: &Topology, args: &Args) -> io::Result<()> {
    for node in &topology.nodes {
        writeln!(out, "{}", memory_node(node))?;
    }
    let shown = shown(topology, args.all);
    if !shown.is_empty() {
        let rows: Vec<[String; 8]> = shown.iter().map(|entry| row(entry)).collect();
        let width = |n: usize| {
            rows.iter().map(|row| row[n].chars().count()).chain([HEADER[n].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            cells.join("  ").trim_end().to_string()
        };
        writeln!(out, "\n{}", line(&HEADER.map(String::from)))?;
        for (entry, row) in shown.iter().zip(&rows) {
            writeln!(out, "{}", line(row))?;
            for bar in entry.device.bars.iter().filter(|_| args.bars) {
                let kind = if bar.memory { "memory" } else { "I/O ports" };
                let prefetchable = if bar.prefetchable { ", prefetchable" } else { "" };
                let indent = entry.depth * 2 + 2;
                writeln!(
                    out,
                    "{:indent$}bar{}  {} of {kind}{prefetchable}",
                    "",
                    bar.index,
                    units::bytes(bar.size_bytes)
                )?;
            }
        }
    }
    let short: Vec<_> =
        topology.devices.iter().filter_map(|entry| Some((entry, entry.shortfall.as_ref()?))).collect();
    if !short.is_empty() {
        writeln!(out)?;
    }
    for (entry, shortfall) in short {
        writeln!(out, "! {} {}: {shortfall}", entry.device.address, what(&entry.device))?;
    }
    match topology.devices.len() - shown.len() {
        0 if shown.is_empty() => writeln!(out, "\nno PCI devices"),
        0 => Ok(()),
        hidden => writeln!(out, "\n{hidden} other PCI functions; --all shows them"),
    }
}

fn memory_node(node: &Node) -> String {
    let memory = node.memory_bytes.map_or("memory unknown".into(), units::bytes);
    let cpus = if node.cpus.is_empty() { "no CPUs".into() } else { format!("CPUs {}", node.cpus) };
    format!("NUMA node {}: {cpus}, {memory}", node.node)
}

/// Returns the functions to show: all functions, or only the endpoints and the bridges above them.
fn shown(topology: &Topology, all: bool) -> Vec<&Entry> {
    let endpoints = topology.devices.iter().filter(|entry| all || entry.is_endpoint());
    let mut wanted: BTreeSet<_> = endpoints.map(|entry| entry.device.address).collect();
    loop {
        let parents: Vec<_> = topology
            .devices
            .iter()
            .filter(|entry| wanted.contains(&entry.device.address))
            .filter_map(|entry| entry.device.parent)
            .collect();
        let before = wanted.len();
        wanted.extend(parents);
        if wanted.len() == before {
            break;
        }
    }
    topology.devices.iter().filter(|entry| wanted.contains(&entry.device.address)).collect()
}

fn row(entry: &Entry) -> [String; 8] {
    let device = &entry.device;
    let number = |number: Option<u32>| number.map_or("-".into(), |n| n.to_string());
    let mark = if entry.shortfall.is_some() { " !" } else { "" };
    let identifiers = format!("{:04x}:{:04x}", device.vendor, device.device);
    let mut name = entry.name.clone().unwrap_or(identifiers);
    if !device.names.is_empty() {
        name = format!("{} ({name})", device.names.join(" "));
    }
    [
        format!("{:indent$}{}", "", device.address, indent = entry.depth * 2),
        what(device),
        device.link.map_or("-".into(), |link| format!("{}{mark}", link.current)),
        entry.ceiling_payload_bytes_per_second.map_or("-".into(), units::bytes_per_second),
        number(device.numa_node),
        number(device.iommu_group),
        device.driver.clone().unwrap_or("-".into()),
        name,
    ]
}

fn what(device: &Device) -> String {
    match device.kind {
        FunctionKind::Gpu => "GPU".into(),
        FunctionKind::Nic => "NIC".into(),
        FunctionKind::Nvme => "NVMe".into(),
        FunctionKind::Bridge => "bridge".into(),
        FunctionKind::Other => format!("class {:04x}", device.class >> 8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Creates a fake machine. It has a bridge, a GPU below the bridge, and an audio device. The GPU's link
    /// uses half of its lanes.
    fn machine() -> (tempfile::TempDir, Sysfs) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        let device = |path: &str, class: &str, lanes: &str, most: &str| {
            let home = root.join("devices/pci0000:00").join(path);
            fs::create_dir_all(&home).unwrap();
            symlink(&home, root.join("bus/pci/devices").join(home.file_name().unwrap())).unwrap();
            for (name, text) in [
                ("class", class),
                ("vendor", "0x10de"),
                ("device", "0x2330"),
                ("numa_node", "0"),
                ("current_link_speed", "16.0 GT/s PCIe"),
                ("max_link_speed", "16.0 GT/s PCIe"),
                ("current_link_width", lanes),
                ("max_link_width", most),
                ("resource", "0x1000 0x1fff 0x200\n"),
            ] {
                fs::write(home.join(name), text).unwrap();
            }
        };
        device("0000:00:01.0", "0x060400", "8", "16");
        device("0000:00:01.0/0000:01:00.0", "0x030200", "8", "16");
        device("0000:00:1b.0", "0x040300", "0", "0");
        fs::create_dir_all(root.join("devices/system/node/node0")).unwrap();
        fs::write(root.join("devices/system/node/node0/cpulist"), "0-7\n").unwrap();
        let sysfs = Sysfs::at(root);
        (directory, sysfs)
    }

    fn text(topology: &Topology, all: bool) -> String {
        let mut out = Vec::new();
        show(&mut out, topology, &Args { all, bars: true, json: None, svg: None }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_tree_is_shown_with_slow_links_marked() {
        let (_directory, sysfs) = machine();
        let report = read(&sysfs, &Names::default());
        let text = text(&report, false);
        assert!(text.contains("NUMA node 0: CPUs 0-7, memory unknown"), "{text}");
        assert!(text.contains("\n  0000:01:00.0  GPU     Gen4 x8 !  14.40 GB/s"), "{text}");
        assert!(text.contains("! 0000:01:00.0 GPU: x8 of x16 (both ends have x16"), "{text}");
        assert!(text.contains("bar0  4 KiB of memory"), "{text}");
        assert!(text.contains("1 other PCI functions"), "{text}");
        assert!(!text.contains("0000:00:1b.0"), "{text}");
    }

    #[test]
    fn the_picture_marks_the_slow_link_and_escapes_names() {
        let (_directory, sysfs) = machine();
        let mut report = read(&sysfs, &Names::default());
        report.devices[1].name = Some("<script>".into());
        let drawn = picture::picture(&report, &shown(&report, true), "a machine & more").unwrap();
        for part in [
            "NUMA node 0: CPUs 0-7",
            "0000:01:00.0  GPU, &lt;script&gt;",
            "Gen4 x8 !",
            "a machine &amp; more",
        ] {
            assert!(drawn.contains(part), "{part}: {drawn}");
        }
        assert_eq!(
            drawn.matches("class=\"link short\"").count(),
            1,
            "the bridge's link is not marked: {drawn}"
        );
        assert!(drawn.contains("x8 of x16 (both ends have x16"), "{drawn}");
        assert!(!drawn.contains("<script"), "{drawn}");
        assert!(picture::picture(&report, &[], "").is_none());
    }

    #[test]
    fn all_functions_are_shown_and_in_the_json() {
        let (_directory, sysfs) = machine();
        let report = read(&sysfs, &Names::default());
        assert!(text(&report, true).contains("0000:00:1b.0    class 0403"), "{}", text(&report, true));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["devices"][1]["address"], "0000:01:00.0");
        assert_eq!(json["devices"][1]["kind"], "gpu");
        assert_eq!(json["devices"][1]["shortfall"]["current"]["lanes"], 8);
        assert!(json["devices"][2]["link"].is_null());
    }

    #[test]
    fn a_machine_without_pci_devices_shows_so() {
        let report = read(&Sysfs::at("/nonexistent"), &Names::default());
        assert!(text(&report, false).contains("no PCI devices"));
    }
}
