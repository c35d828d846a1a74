//! `inlane copy`: measures transfers between devices. This module defines and parses the flags. Its
//! submodules show measurements and list the paths.

mod effects;
mod list;
mod run;

use crate::fields::flag;
use crate::values::{choice, count, size, time_to_an_hour, time_within_an_hour};
use clap::Args;
use inlane_copy::measure::{Config, Direction, Figures, Transfers};
use inlane_copy::timing::Plan;
use inlane_copy::tuning::{EngineTuning, SmTuning};
use inlane_copy::{Endpoint, Path, PathChoice, PathOptions};
use inlane_core::mover::Access;
use inlane_core::setting::Choice;
use inlane_core::{CompletionMode, Error};
use inlane_pci::{Address, Permission};
use std::time::Duration;

const USAGE: &str = "\
inlane copy --from <ENDPOINT> --to <ENDPOINT> [OPTIONS]
       inlane copy --matrix [OPTIONS]
       inlane copy --published [OPTIONS]";

const EXAMPLES: &str = "\
Endpoints:
  host                                  host memory, pinned if a GPU takes part
  gpu:N                                 memory of GPU N
  pci:ADDRESS/barN[@START+LENGTH][:wc]  a BAR of a PCI device; :wc maps it write-combining. The
                                        device is bound to vfio-pci, or has no driver and is
                                        named by --allow-device
  twin:N                                a model of an accelerator; results say so

Paths:
  cpu        the CPU loads and stores mapped memory
  dma        one DMA engine, such as a GPU's copy engine
  sm         a GPU's SMs copy to or from pinned host memory
  hybrid     DMA to a host buffer, then a CPU copy to another buffer, then DMA to the destination
  staged     DMA from the source and DMA to the destination at the same time, through a ring of
             chunks in host memory
  staged-sm  as staged, but the SMs of both GPUs copy, without the CPU
  p2p        directly between two GPUs, over NVLink or PCIe
  cuda       the CUDA driver's own copy without peer access, for comparison

Examples:
  # Bandwidth and latency by size, over the fastest path, with the reason for it
  inlane copy --from gpu:0 --to gpu:1 --sizes 4K..256M

  # Which paths exist between two GPUs, and why others do not
  inlane copy --list --from gpu:0 --to gpu:1

  # Through the host, both directions at once, as JSON
  inlane copy --from gpu:0 --to gpu:1 --require staged --direction all --json result.json

  # The cost of sleeping: every completion mode, one transfer at a time
  inlane copy --from host --to gpu:0 --completion poll,interrupt,adaptive --in-flight 1

  # From every device to every other
  inlane copy --matrix --sizes 64M

  # On a machine without an accelerator: between two models
  inlane copy --from twin:0 --to twin:1 --sizes 64K..1M

  # To a BAR, with stores counted as issued and as delivered
  inlane copy --from host --to pci:0000:00:04.0/bar2@0+1M --allow-bar-write \\
      --allow-bar-read --sizes 64..64K

  # The experiment of a paper, on models of its accelerators
  inlane copy --published

Exit status: 0 done; 1 a measurement or a check failed; 2 wrong usage or settings; 3 a device, file
or right is missing or in use ('inlane doctor' checks devices and rights). Ctrl-C ends the run after
the transfers in flight. inlane then writes the results so far, and exits with status 1.";

/// Measures transfers between accelerators, host memory and BARs, checks the bytes, and explains the path
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct Copy {
    /// The source endpoint
    #[arg(long, value_name = "ENDPOINT", requires = "to")]
    from: Option<Endpoint>,
    /// The destination endpoint
    #[arg(long, value_name = "ENDPOINT", requires = "from")]
    to: Option<Endpoint>,
    /// List the paths between --from and --to, and why each is available or not. Transfers nothing
    #[arg(long, conflicts_with_all = NOT_LISTED)]
    list: bool,
    /// Measure from every device to every other
    #[arg(long, conflicts_with_all = ["from", "to"])]
    matrix: bool,
    /// The devices of the matrix [default: host and all GPUs; without a GPU, host and two twins]
    #[arg(long, value_name = "ENDPOINT,...", value_delimiter = ',', requires = "matrix", conflicts_with_all = ["from", "to"])]
    devices: Vec<Endpoint>,
    /// Repeat the experiment of the paper "PCIe-Based Multi-NPU Data Transmission Optimization" on models of
    /// its accelerators
    #[arg(long, conflicts_with_all = NOT_PUBLISHED)]
    published: bool,

    /// Transfer sizes: 1M, a list 4K,1M, or a range 4K..256M, each size four times the previous one
    /// (4K..256M,x2: two times)
    #[arg(long, default_value = "4K..256M", value_name = "SIZES", value_parser = parse_sizes, help_heading = "Measurement")]
    sizes: Sizes,
    /// Which direction to measure
    #[arg(long, default_value = Direction::default().name(), value_name = "DIRECTION", value_parser = choice::<Direction>(), help_heading = "Measurement")]
    direction: Direction,
    /// What to measure
    #[arg(long, default_value = Figures::default().name(), value_name = "MEASURE", value_parser = choice::<Figures>(), help_heading = "Measurement")]
    measure: Figures,
    /// How to detect the end of a transfer: poll, interrupt (sleep until woken) or adaptive (sleep for most of
    /// the expected time, then poll). Give several to compare them
    #[arg(
        long,
        default_value = "poll",
        value_name = "MODE,...",
        value_delimiter = ',',
        help_heading = "Measurement"
    )]
    completion: Vec<CompletionMode>,
    /// The most transfers in flight at the same time while streaming, 1 to 4096 [default: as many as hold 64
    /// MiB, from 2 to 32]
    #[arg(long, alias = "window", value_name = "N", value_parser = count::<usize>(1, 4096), help_heading = "Measurement")]
    in_flight: Option<usize>,
    /// Repeats of each measurement, 1 to 1000
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = count::<usize>(1, 1000), help_heading = "Measurement")]
    repeats: usize,
    /// The duration of each repeat, at most one hour. A repeat makes at least one transfer
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = time_within_an_hour, help_heading = "Measurement")]
    duration: Duration,
    /// The duration of the unmeasured warm-up, at most one hour
    #[arg(long, alias = "warmup", default_value = "20ms", value_name = "TIME", value_parser = time_to_an_hour, help_heading = "Measurement")]
    warm_up: Duration,
    /// Size of the memory at each end. Transfers use its parts in turns, so that caches do not hold the data.
    /// The memory holds at least two of the largest transfers, but takes at most a third of a device's memory
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = size::<usize>(0, LARGEST), help_heading = "Measurement")]
    rotate: usize,
    /// Do not measure the ceilings of the links
    #[arg(long, help_heading = "Measurement")]
    no_ceiling: bool,

    /// Take this path. If it is unavailable, inlane takes the fastest other path and says why. auto takes the
    /// path with the least calibrated time. Give several paths to compare them
    #[arg(long, default_value = "auto", value_name = "PATH,...", value_delimiter = ',', value_parser = parse_choice, help_heading = "Path")]
    path: Vec<PathChoice>,
    /// Take this path. If it is unavailable, the run fails
    #[arg(long, value_name = "PATH", conflicts_with_all = ["path", "without", "calibrate"], help_heading = "Path")]
    require: Option<Path>,
    /// Exclude these paths from auto. For example, --without p2p shows what a machine without peer access does
    #[arg(long, value_name = "PATH,...", value_delimiter = ',', help_heading = "Path")]
    without: Vec<Path>,
    /// Calibrate the paths again instead of using the stored calibration of this machine
    #[arg(long, help_heading = "Path")]
    calibrate: bool,

    /// The width of CPU loads and stores: 4, 8, 16, 32 or 64 bytes, nt (non-temporal) or movdir64b [default:
    /// 8 for uncached BARs, otherwise the widest of this CPU]
    #[arg(long, value_name = "WIDTH", help_heading = "BARs")]
    access: Option<Access>,
    /// Allow reads from BARs. Only safe for devices whose registers have no read side effects
    #[arg(long, help_heading = "BARs")]
    allow_bar_read: bool,
    /// Allow writes to BARs, within the range that the endpoint names as @START+LENGTH
    #[arg(long, help_heading = "BARs")]
    allow_bar_write: bool,
    /// Allow mapping the BARs of this PCI device although it is not bound to vfio-pci
    #[arg(long, value_name = "ADDRESS", help_heading = "BARs")]
    allow_device: Vec<Address>,

    /// Largest chunk of path 'staged' between two GPUs, 1 byte to 1G [default: 8M; 4M for both directions at
    /// once]. Other staged paths use 8 chunks of 1 MiB
    #[arg(long, value_name = "SIZE", value_parser = size::<usize>(1, LARGEST_CHUNK), help_heading = "Staging by copy engines")]
    chunk: Option<usize>,
    /// Number of chunks in the staging ring of path 'staged' between two GPUs, at least two per stream and at
    /// most 1024 [default: 8; 4 for both directions at once]
    #[arg(long, value_name = "N", value_parser = count::<usize>(2, 1024), help_heading = "Staging by copy engines")]
    slots: Option<usize>,
    /// Number of CUDA streams on each side of path 'staged' between two GPUs, 1 to 4 [default: 2]
    #[arg(long, value_name = "N", value_parser = count::<usize>(1, 4), help_heading = "Staging by copy engines")]
    streams: Option<usize>,

    /// How many channels copy at the same time, 1 to 1024. A channel is a thread block on each side with a
    /// ring of its own. More channels copy faster, and leave less of the GPUs to other work
    #[arg(long, default_value_t = SmTuning::default().channels, value_name = "N", value_parser = count::<u32>(1, 1024), help_heading = "Copies and staging by SMs")]
    sm_channels: u32,
    /// Threads per block, a multiple of 32 from 32 to 1024
    #[arg(long, default_value_t = SmTuning::default().threads, value_name = "N", value_parser = threads, help_heading = "Copies and staging by SMs")]
    sm_threads: u32,
    /// The largest chunk, a multiple of 16 bytes up to 1G
    #[arg(long, default_value = "64K", value_name = "SIZE", value_parser = sm_chunk, help_heading = "Copies and staging by SMs")]
    sm_chunk: usize,
    /// Chunks in each channel's ring, 1 to 1024
    #[arg(long, default_value_t = SmTuning::default().slots, value_name = "N", value_parser = count::<usize>(1, 1024), help_heading = "Copies and staging by SMs")]
    sm_slots: usize,
    /// Lower the latency of a single transfer: each channel splits its part into this many chunks, 1 to 1024,
    /// so that copying in overlaps copying out. Each chunk costs a fence. No chunk exceeds --sm-chunk.
    /// While other transfers are in flight, a channel aims at no more than two chunks
    #[arg(long, default_value_t = SmTuning::default().turns, value_name = "N", value_parser = count::<usize>(1, 1024), help_heading = "Copies and staging by SMs")]
    sm_turns: usize,
    /// Lower the latency of small transfers: send transfers of up to this size, 0 to 1G, without fences. Such
    /// a transfer reaches only three quarters of the link's bandwidth, because every 16 bytes sent hold 12
    /// bytes of data and a 4-byte transfer number. 0 sends no transfer this way
    #[arg(long, default_value = "256K", value_name = "SIZE", value_parser = size::<usize>(0, LARGEST_CHUNK), help_heading = "Copies and staging by SMs")]
    sm_lines: usize,
    /// Launch the staging kernels for each transfer instead of keeping them resident
    #[arg(long, help_heading = "Copies and staging by SMs")]
    sm_launch: bool,
    /// The most thread blocks that path sm uses, 1 to 65535
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = count::<u32>(1, 65535), help_heading = "Copies and staging by SMs")]
    sm_blocks: u32,

    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<String>,
    /// Write the result as CSV to a file, or to standard output for -, one line per row
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    csv: Option<std::path::PathBuf>,
    /// Draw bandwidth by size to an SVG file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<std::path::PathBuf>,
}

#[derive(Clone, Debug)]
struct Sizes(Vec<usize>);

/// The most bytes that the flags allow for a transfer and for the buffers of `--rotate`.
const LARGEST: u64 = 1 << 40;
/// The most bytes that the flags allow for a chunk of a staged path.
const LARGEST_CHUNK: u64 = 1 << 30;
/// Flags that `--list` refuses, because they would have no effect.
const NOT_LISTED: [&str; 9] =
    ["matrix", "published", "direction", "measure", "completion", "path", "require", "without", "calibrate"];
/// Flags that `--published` refuses, because the published experiment has its own endpoints, paths
/// and sizes.
const NOT_PUBLISHED: [&str; 29] = [
    "from",
    "to",
    "matrix",
    "sizes",
    "path",
    "require",
    "without",
    "direction",
    "measure",
    "completion",
    "in_flight",
    "rotate",
    "calibrate",
    "access",
    "allow_bar_read",
    "allow_bar_write",
    "allow_device",
    "chunk",
    "slots",
    "streams",
    "sm_channels",
    "sm_threads",
    "sm_chunk",
    "sm_slots",
    "sm_turns",
    "sm_lines",
    "sm_launch",
    "sm_blocks",
    "no_ceiling",
];

/// Parses the number of threads in a block. It must be a multiple of 32.
fn threads(text: &str) -> Result<u32, Error> {
    let threads = text.parse().ok().filter(|threads| (32..=1024).contains(threads) && threads % 32 == 0);
    threads.ok_or_else(|| Error::invalid(format!("'{text}'"), "give a multiple of 32 from 32 to 1024"))
}

/// Parses the size of a chunk that SMs copy. The size must be a multiple of 16 bytes.
fn sm_chunk(text: &str) -> Result<usize, Error> {
    match size::<usize>(16, LARGEST_CHUNK)(text)? {
        bytes if bytes % 16 == 0 => Ok(bytes),
        _ => Err(Error::invalid(format!("'{text}'"), "give a multiple of 16 bytes")),
    }
}

/// Parses the value of `--path`: the name of a path, or `auto`.
fn parse_choice(text: &str) -> Result<PathChoice, Error> {
    if text == "auto" {
        return Ok(PathChoice::Auto);
    }
    text.parse().map(PathChoice::Prefer).map_err(|error: Error| match error {
        Error::Invalid { what, why } => Error::Invalid { what, why: format!("{why}, or auto") },
        other => other,
    })
}

/// Parses `1M`, `4K,1M` and `4K..256M`.
fn parse_sizes(text: &str) -> Result<Sizes, Error> {
    let sizes = crate::sizes::parse(text, LARGEST)?;
    // The cast is lossless, because no size exceeds LARGEST (1 TiB) and usize has 64 bits.
    Ok(Sizes(sizes.into_iter().map(|size| size as usize).collect()))
}

impl Copy {
    fn choices(&self) -> Vec<PathChoice> {
        self.require.map_or_else(|| self.path.clone(), |path| vec![PathChoice::Require(path)])
    }

    fn permission(&self) -> Permission {
        let mut permission = Permission::default();
        if self.allow_bar_read {
            permission = permission.read();
        }
        if self.allow_bar_write {
            permission = permission.write();
        }
        self.allow_device.iter().fold(permission, |permission, address| permission.device(*address))
    }

    fn sms(&self) -> SmTuning {
        SmTuning {
            channels: self.sm_channels,
            threads: self.sm_threads,
            chunk: self.sm_chunk,
            slots: self.sm_slots,
            turns: self.sm_turns,
            lines: self.sm_lines,
        }
    }

    /// Returns the configuration of a measurement of `transfers`.
    fn config(&self, transfers: Transfers) -> Result<Config, Error> {
        Ok(Config {
            permission: self.permission(),
            direction: self.direction,
            figures: self.measure,
            completion: self.completion.clone(),
            rotate: self.rotate,
            ceilings: !self.no_ceiling,
            choices: self.choices(),
            calibrate: self.calibrate,
            options: self.options()?,
            plan: Plan {
                repeats: self.repeats,
                time: self.duration,
                warm_up: self.warm_up,
                in_flight: self.in_flight,
                ..Plan::default()
            },
            ..Config::new(transfers, self.sizes.0.clone())
        })
    }

    fn options(&self) -> Result<PathOptions, Error> {
        let largest = self.sizes.0.iter().copied().max().unwrap_or(1);
        let given = self.chunk.is_some() || self.slots.is_some() || self.streams.is_some();
        let usual = EngineTuning::suited(matches!(self.direction, Direction::Both));
        let engines = EngineTuning {
            chunk: self.chunk.unwrap_or(usual.chunk),
            slots: self.slots.unwrap_or(usual.slots),
            streams: self.streams.unwrap_or(usual.streams),
        };
        if engines.slots < 2 * engines.streams {
            let why = format!(
                "each stream needs two chunks; give --slots {} or fewer --streams",
                2 * engines.streams
            );
            return Err(Error::invalid(flag("slots").with(engines.slots), why));
        }
        Ok(PathOptions {
            largest,
            access: self.access,
            engines: given.then_some(engines),
            sms: self.sms(),
            resident: !self.sm_launch,
            blocks: self.sm_blocks,
            without: self.without.clone(),
            ..PathOptions::default()
        })
    }
}
