//! `inlane copy`: its flags, its runs, its result.

mod bench;
mod rows;
mod run;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use inlane_copy::tuning::{EngineTuning, SmTuning};
use inlane_copy::{Endpoint, Path, PathChoice, PathOptions};
use inlane_core::mover::Access;
use inlane_core::{CompletionMode, Error, units};
use inlane_pci::{Address, Permission};
use std::time::Duration;

const EXAMPLES: &str = "\
Endpoints:
  host                                     memory of this host, pinned where a GPU takes part
  gpu:N                                    memory of a GPU
  pci:ADDRESS/barN[@START+LENGTH][:wc]     a BAR of a PCI device bound to vfio-pci, or of one without a driver and named
                                           by --allow-device; reads and writes each need their flag
  twin:N                                   a model of an accelerator; its figures are a model's

Paths:
  bar        the CPU copies between mapped memories
  dma        one DMA engine, or a GPU's copy engine
  sm         a GPU's SMs push to or pull from pinned memory
  hybrid     DMA to a host buffer, CPU copy to another, DMA on; one after the other
  staged     DMA out and in at once through a ring of pinned chunks
  staged-sm  the same by SMs at both ends; no CPU in the loop
  p2p        directly, over NVLink or PCIe
  cuda       the CUDA driver's own copy without peer access, to compare with

Examples:
  # how fast, by which path, and why not a faster one
  inlane copy --from gpu:0 --to gpu:1 --sizes 4K..256M

  # through the host, both directions at once, as JSON
  inlane copy --from gpu:0 --to gpu:1 --require staged --direction all --json result.json

  # what does sleeping cost: each kind of completion, one transfer at a time
  inlane copy --from host --to gpu:0 --completion poll,interrupt,adaptive --window 1

  # every device to every other
  inlane copy --matrix --sizes 64M

  # on a machine without any accelerator: models of one
  inlane copy --from twin:0 --to twin:1 --sizes 64K..1M

  # a BAR, by 8-byte stores, issued and delivered
  inlane copy --from host --to pci:0000:00:04.0/bar2@0+1M --allow-bar-write --allow-bar-read --sizes 64..64K

  # the published experiment, on models of its accelerators
  inlane copy --published

Exit status: 0 done, 1 ran but failed (verification), 2 usage, 3 the environment is not ready (try inlane doctor).";

/// Moves data between accelerators, host memory and BARs; measures, verifies and explains it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Copy {
    /// Where from
    #[arg(long, value_name = "ENDPOINT", requires = "to", required_unless_present_any = ["matrix", "published"])]
    from: Option<Endpoint>,
    /// Where to
    #[arg(long, value_name = "ENDPOINT", requires = "from")]
    to: Option<Endpoint>,
    /// Sizes of a transfer: 1M, a list 4K,1M, or a range 4K..256M (each four times the one before)
    #[arg(long, default_value = "4K..256M", value_name = "SIZES", value_parser = parse_sizes)]
    sizes: Sizes,
    /// The path to take where it can be had, or auto: the one that costs least for the size; give several to compare them
    #[arg(long, default_value = "auto", value_name = "PATH,...", value_delimiter = ',', value_parser = parse_choice)]
    path: Vec<PathChoice>,
    /// This path, or an error
    #[arg(long, value_name = "PATH", conflicts_with_all = ["path", "without", "calibrate"])]
    require: Option<Path>,
    /// Paths that auto leaves out: with --without p2p, what a machine without peer access would do
    #[arg(long, value_name = "PATH,...", value_delimiter = ',')]
    without: Vec<Path>,
    /// forward, backward, both at once, or all three one after another
    #[arg(long, value_enum, default_value_t = Direction::Forward)]
    direction: Direction,
    /// What to measure: latency (one transfer at a time), stream (one behind the other), or all
    #[arg(long, value_enum, default_value_t = What::All)]
    measure: What,
    /// How ends are learnt: poll, interrupt, adaptive; give several to compare them
    #[arg(long, default_value = "poll", value_name = "HOW,...", value_delimiter = ',')]
    completion: Vec<CompletionMode>,
    /// Transfers in flight when streaming [default: 64 MiB of them, 2 to 32]
    #[arg(long, value_name = "N", value_parser = count(1, 4096))]
    window: Option<usize>,
    /// Repeats of each measurement
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = count(1, 1000))]
    repeats: usize,
    /// How long a repeat lasts; one transfer at least
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = parse_duration)]
    time: Duration,
    /// How long to run before, unmeasured
    #[arg(long, default_value = "20ms", value_name = "TIME", value_parser = parse_duration)]
    warm_up: Duration,
    /// Bytes of buffers that transfers rotate over at each end, at least two transfers
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = |text: &str| size(text, 0, LARGEST))]
    rotate: usize,
    /// From every device to every other
    #[arg(long, conflicts_with_all = ["from", "to"])]
    matrix: bool,
    /// The devices of the matrix [default: host and all GPUs; without a GPU, host and two twins]
    #[arg(long, value_name = "ENDPOINT,...", value_delimiter = ',', requires = "matrix", conflicts_with_all = ["from", "to"])]
    devices: Vec<Endpoint>,
    /// The published experiment, on models of its accelerators: its sizes, paths and directions
    #[arg(long, conflicts_with_all = NOT_PUBLISHED)]
    published: bool,
    /// Measure the paths' costs again, instead of using what is kept of this machine
    #[arg(long)]
    calibrate: bool,
    /// CPU loads and stores: 4, 8, 16, 32, 64 bytes, nt (non-temporal) or movdir64b [default: by the memory]
    #[arg(long, value_name = "WIDTH")]
    access: Option<Access>,
    /// BARs may be read: their devices do not act upon it
    #[arg(long)]
    allow_bar_read: bool,
    /// BARs may be written, in ranges that are explicit
    #[arg(long)]
    allow_bar_write: bool,
    /// This PCI device's BARs may be mapped though it is not bound to vfio-pci
    #[arg(long, value_name = "ADDRESS")]
    allow_device: Vec<Address>,
    /// Staging by copy engines: bytes of the largest chunk [default: 8M, both directions at once 4M]
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| size(text, 1, LARGEST_CHUNK))]
    chunk: Option<usize>,
    /// Staging by copy engines: chunks in the ring, two a stream at least [default: 8, both directions at once 4]
    #[arg(long, value_name = "N", value_parser = count(2, 1024))]
    slots: Option<usize>,
    /// Staging by copy engines: streams each side [default: 2]
    #[arg(long, value_name = "N", value_parser = count(1, 4))]
    streams: Option<usize>,
    /// Staging by SMs: blocks each side
    #[arg(long, default_value_t = SmTuning::default().channels, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    sm_channels: u32,
    /// Staging by SMs: threads a block, a multiple of 32
    #[arg(long, default_value_t = SmTuning::default().threads, value_name = "N", value_parser = clap::value_parser!(u32).range(32..=1024))]
    sm_threads: u32,
    /// Staging by SMs: bytes of the largest chunk, a multiple of 16
    #[arg(long, default_value = "64K", value_name = "SIZE", value_parser = |text: &str| size(text, 16, LARGEST_CHUNK))]
    sm_chunk: usize,
    /// Staging by SMs: chunks in each block's ring
    #[arg(long, default_value_t = SmTuning::default().slots, value_name = "N", value_parser = count(1, 1024))]
    sm_slots: usize,
    /// Staging by SMs: turns of each block for a transfer of moderate size that is alone
    #[arg(long, default_value_t = SmTuning::default().turns, value_name = "N", value_parser = count(1, 1024))]
    sm_turns: usize,
    /// Staging by SMs: the largest transfer that goes without fences, data and laps together; 0 for none
    #[arg(long, default_value = "256K", value_name = "SIZE", value_parser = |text: &str| size(text, 0, LARGEST_CHUNK))]
    sm_lines: usize,
    /// Staging by SMs: launch kernels for each transfer instead of keeping them running
    #[arg(long)]
    sm_launch: bool,
    /// Copies by SMs: blocks at most
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65535))]
    sm_blocks: u32,
    /// Do not measure the links' ceilings first
    #[arg(long)]
    no_ceiling: bool,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Draw bandwidth against size to an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<std::path::PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// From --from to --to
    Forward,
    /// From --to to --from
    Backward,
    /// At once
    Both,
    /// Each alone, then both at once
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// One transfer at a time
    Latency,
    /// One behind the other
    Stream,
    /// Both
    All,
}

#[derive(Clone, Debug)]
struct Sizes(Vec<usize>);

/// Bytes that a transfer, or all that rotate, can have: more than any memory that this moves between.
const LARGEST: usize = 1 << 40;
/// Bytes that a chunk can have.
const LARGEST_CHUNK: usize = 1 << 30;
/// What the published experiment has of its own.
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
    "window",
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

/// A number of something.
fn count(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}

/// A number of bytes from `least` to `most`.
fn size(text: &str, least: usize, most: usize) -> Result<usize, Error> {
    let bytes = units::parse_size(text)?;
    usize::try_from(bytes).ok().filter(|bytes| (least..=most).contains(bytes)).ok_or_else(|| {
        let (least, most) = (units::bytes(least as u64), units::bytes(most as u64));
        Error::invalid(format!("'{text}'"), format!("give {least} to {most}"))
    })
}

/// How long something runs: an hour at most.
fn parse_duration(text: &str) -> Result<Duration, Error> {
    let most = Duration::from_secs(3600);
    match units::parse_time(text)? {
        time if time <= most => Ok(time),
        _ => Err(Error::invalid(format!("'{text}'"), "give an hour at most")),
    }
}

/// A path, or `auto`.
fn parse_choice(text: &str) -> Result<PathChoice, Error> {
    if text == "auto" {
        return Ok(PathChoice::Auto);
    }
    text.parse().map(PathChoice::Prefer).map_err(|error: Error| match error {
        Error::Invalid { what, why } => Error::Invalid { what, why: format!("{why}, or auto") },
        other => other,
    })
}

/// Reads `1M`, `4K,1M` and `4K..256M`.
fn parse_sizes(text: &str) -> Result<Sizes, Error> {
    let invalid =
        |why: &str| Error::invalid(format!("sizes '{text}'"), format!("{why}; write 1M, 4K,1M or 4K..256M"));
    let size = |text: &str| match units::parse_size(text)? {
        0 => Err(invalid("a transfer has a byte at least")),
        bytes => match usize::try_from(bytes) {
            Ok(bytes) if bytes <= LARGEST => Ok(bytes),
            _ => Err(invalid("a transfer has 1 TiB at most")),
        },
    };
    if let Some((first, last)) = text.split_once("..") {
        let (first, last) = (size(first)?, size(last)?);
        if first > last {
            return Err(invalid("the range ends before it begins"));
        }
        let mut sizes: Vec<usize> = std::iter::successors(Some(first), |size| size.checked_mul(4))
            .take_while(|size| *size < last)
            .collect();
        sizes.push(last);
        return Ok(Sizes(sizes));
    }
    text.split(',').map(size).collect::<Result<Vec<_>, _>>().map(Sizes)
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
            let why =
                format!("a stream needs two chunks; give --slots {} or fewer --streams", 2 * engines.streams);
            return Err(Error::invalid(format!("--slots {}", engines.slots), why));
        }
        Ok(PathOptions {
            largest,
            access: self.access,
            engines: given.then_some(engines),
            sms: SmTuning {
                channels: self.sm_channels,
                threads: self.sm_threads,
                chunk: self.sm_chunk,
                slots: self.sm_slots,
                turns: self.sm_turns,
                lines: self.sm_lines,
            },
            resident: !self.sm_launch,
            blocks: self.sm_blocks,
            without: self.without.clone(),
            ..PathOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_one_a_list_or_a_range() {
        assert_eq!(parse_sizes("1M").unwrap().0, [1 << 20]);
        assert_eq!(parse_sizes("4K,1M,7").unwrap().0, [4096, 1 << 20, 7]);
        assert_eq!(parse_sizes("4K..100K").unwrap().0, [4096, 16384, 65536, 102400]);
        assert_eq!(parse_sizes("64..64").unwrap().0, [64]);
        for bad in ["", "0", "1M..4K", "4K,", "x", "..", "-1"] {
            assert!(parse_sizes(bad).is_err(), "{bad}");
        }
    }
}
