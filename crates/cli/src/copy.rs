//! `inlane copy`: its flags, its runs, its result.

mod run;

use clap::{Args, ValueEnum};
use inlane_copy::gpu::{staged, staged_sm};
use inlane_copy::{Choice, Endpoint, Options, Path};
use inlane_core::mover::Access;
use inlane_core::{Completion, Error, units};
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
    #[arg(long, default_value = "auto", value_name = "PATH,...", value_delimiter = ',')]
    path: Vec<String>,
    /// This path, or an error
    #[arg(long, value_name = "PATH", conflicts_with = "path")]
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
    completion: Vec<Completion>,
    /// Transfers in flight when streaming [default: 64 MiB of them, 2 to 32]
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Repeats of each measurement
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeats: usize,
    /// How long a repeat lasts
    #[arg(long, default_value = "100ms", value_name = "TIME", value_parser = units::parse_time)]
    time: Duration,
    /// How long to run before, unmeasured
    #[arg(long, default_value = "20ms", value_name = "TIME", value_parser = units::parse_time)]
    warm_up: Duration,
    /// Bytes of buffers that transfers rotate over at each end, at least two transfers
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = units::parse_size)]
    rotate: u64,
    /// From every device to every other
    #[arg(long, conflicts_with_all = ["from", "to"])]
    matrix: bool,
    /// The devices of the matrix [default: host and all GPUs; without a GPU, host and two twins]
    #[arg(long, value_name = "ENDPOINT,...", value_delimiter = ',', requires = "matrix")]
    devices: Vec<Endpoint>,
    /// The published experiment, on models of its accelerators
    #[arg(long, conflicts_with_all = ["from", "to", "matrix"])]
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
    /// Staging by copy engines: bytes of the largest chunk
    #[arg(long, default_value = "8M", value_name = "SIZE", value_parser = units::parse_size)]
    chunk: u64,
    /// Staging by copy engines: chunks in the ring
    #[arg(long, default_value_t = 8, value_name = "N")]
    slots: usize,
    /// Staging by copy engines: streams each side
    #[arg(long, default_value_t = 2, value_name = "N")]
    streams: usize,
    /// Staging by SMs: blocks each side
    #[arg(long, default_value_t = staged_sm::Tuning::default().lanes, value_name = "N")]
    sm_lanes: u32,
    /// Staging by SMs: threads a block
    #[arg(long, default_value_t = staged_sm::Tuning::default().threads, value_name = "N")]
    sm_threads: u32,
    /// Staging by SMs: bytes of the largest chunk
    #[arg(long, default_value = "64K", value_name = "SIZE", value_parser = units::parse_size)]
    sm_chunk: u64,
    /// Staging by SMs: chunks in each block's ring
    #[arg(long, default_value_t = staged_sm::Tuning::default().slots, value_name = "N")]
    sm_slots: usize,
    /// Staging by SMs: turns of each block for a transfer of moderate size that is alone
    #[arg(long, default_value_t = staged_sm::Tuning::default().turns, value_name = "N")]
    sm_turns: usize,
    /// Staging by SMs: the largest transfer that goes without fences, data and laps together
    #[arg(long, default_value = "256K", value_name = "SIZE", value_parser = units::parse_size)]
    sm_lines: u64,
    /// Staging by SMs: launch kernels for each transfer instead of keeping them running
    #[arg(long)]
    sm_launch: bool,
    /// Copies by SMs: blocks at most
    #[arg(long, default_value_t = 16, value_name = "N")]
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

/// Reads `1M`, `4K,1M` and `4K..256M`.
fn parse_sizes(text: &str) -> Result<Sizes, Error> {
    let invalid =
        |why: &str| Error::invalid(format!("sizes '{text}'"), format!("{why}; write 1M, 4K,1M or 4K..256M"));
    let size = |text: &str| match units::parse_size(text)? {
        0 => Err(invalid("a transfer has a byte at least")),
        bytes => usize::try_from(bytes).map_err(|_| invalid("too large")),
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
    fn choices(&self) -> Result<Vec<Choice>, Error> {
        if let Some(path) = self.require {
            return Ok(vec![Choice::Require(path)]);
        }
        self.path
            .iter()
            .map(|path| match path.as_str() {
                "auto" => Ok(Choice::Auto),
                path => path.parse().map(Choice::Prefer),
            })
            .collect()
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

    fn options(&self) -> Result<Options, Error> {
        let largest = self.sizes.0.iter().copied().max().unwrap_or(1);
        let (chunk, sm_chunk) = (self.chunk as usize, self.sm_chunk as usize);
        if chunk == 0 || sm_chunk < 16 || self.repeats == 0 || self.window == Some(0) {
            return Err(Error::invalid(
                "--chunk, --sm-chunk, --repeats or --window",
                "give at least 1 (--sm-chunk: 16)",
            ));
        }
        Ok(Options {
            largest,
            access: self.access,
            engines: staged::Tuning { chunk, slots: self.slots, lanes: self.streams },
            sms: staged_sm::Tuning {
                lanes: self.sm_lanes,
                threads: self.sm_threads,
                chunk: sm_chunk,
                slots: self.sm_slots,
                turns: self.sm_turns,
                lines: self.sm_lines as usize,
            },
            resident: !self.sm_launch,
            blocks: self.sm_blocks,
            without: self.without.clone(),
            ..Options::default()
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
