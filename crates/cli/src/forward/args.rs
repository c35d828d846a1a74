//! The flags of `inlane forward`.

use super::options::{MethodChoice, SweepAxis, goal, high_priority, interval, percent, slots};
use crate::values::{choice, count, size, socket_address, time_above_zero, time_to_an_hour};
use clap::{ArgAction, Args};
use inlane_core::ring::layout::{MAX_BURST, MAX_SLOTS};
use inlane_core::setting::Choice;
use inlane_core::units;
use inlane_forward::config::{Compete, Device};
use inlane_forward::gpu::Memory;
use inlane_forward::pipeline::Overload;
use inlane_ports::pcap::Pace;
use inlane_ports::spec::{Kind, Properties};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "\
inlane forward --rx <PORT> --tx <PORT>... [OPTIONS]
       inlane forward --between <PORT> <PORT> [OPTIONS]";

/// Returns the help below the flags: the kinds of ports, then units and examples.
fn after_help() -> String {
    let mut help =
        "Ports, with their options after a comma (af_packet:eth1,frame=4096). Defaults are in parentheses:\n"
            .to_string();
    for kind in Kind::NAMED {
        let Properties { mut syntax, about, .. } = *kind.properties();
        for line in about {
            help += &format!("  {syntax:16} {line}\n");
            syntax = "";
        }
    }
    help + EXAMPLES
}

const EXAMPLES: &str = "\
  net_null and all ports below it in this list also take descriptors=N, the length of their queues.
  af_xdp and all ports below it also take mtu=BYTES.

Units:
  sizes  binary: 4K = 4096 bytes
  rates  decimal: 10G = 10^10 bits/s of frames; 10GbE = the line rate of Ethernet, with FCS,
         preamble and gap; 1.5Mpps = 1.5 million packets/s
  times  with a unit: 200ns, 50us, 5s, 2m

Examples:
  # swap the MAC addresses of every packet in a capture, in order, with timestamps kept
  inlane forward --rx pcap:in.pcap --tx pcap:out.pcap --function macswap --packets all \\
      --json result.json

  # measure the pipeline of this machine without a network
  inlane forward --rx null:64 --tx null:64 --function macswap --duration 5s

  # verify that no generated packet is lost, duplicated, reordered or altered
  inlane forward --rx gen:imix,flows=64 --tx check --function macswap --method split \\
      --packets 10000000

  # forward between two interfaces, both ways
  inlane forward --between af_xdp:eth1 af_xdp:eth2 --function l3-decrement

  # find the highest rate without loss, in trials of 2 s
  inlane forward --rx gen:64 --tx check --zero-loss --duration 2s

  # compare all methods at four burst sizes, three runs each, and draw rate against burst
  inlane forward --rx null:1024 --tx null --on gpu:0 --function macswap --duration 1s \\
      --sweep burst=16,32,64,128 --sweep method=all --repeats 3 --svg figure.svg

  # measure latency against offered load, beside a job on the same GPU
  inlane forward --rx gen:1024 --tx check --on gpu:0 --sweep method=persistent,stream \\
      --load --compete --svg figure.svg

INLANE_LOG=debug shows DPDK's own messages.

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights). Ctrl-C
ends the run with its result and status 0.";

/// Receives packets, runs a packet function on them, and sends them
#[derive(Args, Clone, Debug)]
#[command(after_help = after_help(), override_usage = USAGE)]
pub struct Forward {
    #[command(flatten)]
    pub(super) ports: PortArgs,
    #[command(flatten)]
    pub(super) function: FunctionArgs,
    #[command(flatten)]
    pub(super) gpu: GpuArgs,
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) experiment: ExperimentArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Where packets come from and go to.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Ports")]
pub(super) struct PortArgs {
    /// Receive from this port
    #[arg(long, value_name = "PORT", conflicts_with = "between")]
    pub(super) rx: Option<String>,
    /// Send to this port. Repeat the flag for more ports, which verdicts can choose by number
    #[arg(long, value_name = "PORT", conflicts_with = "between")]
    pub(super) tx: Vec<String>,
    /// Forward between two ports, both ways
    #[arg(long, num_args = 2, value_names = ["PORT", "PORT"])]
    pub(super) between: Option<Vec<String>>,
    /// Size of the packets that the port of --rx makes, 14 to 65535 bytes. Overrides the size in the port's name
    #[arg(long, value_name = "BYTES", value_parser = size::<u64>(14, 65535))]
    pub(super) size: Option<u64>,
    /// Offer packets at this rate, in bits/s of frames (10G), line rate (10GbE) or packets/s (1.5Mpps). A
    /// generator that falls behind sends its packets late and drops none [default: as fast as possible]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, value_parser = units::parse_rate)]
    pub(super) rate: Option<units::Rate>,
    /// Play a capture at this pace
    #[arg(long, default_value = Pace::default().name(), value_name = "PACE", value_parser = choice::<Pace>())]
    pub(super) pace: Pace,
    /// Play a capture again and again
    #[arg(long = "loop")]
    pub(super) repeat: bool,
    /// Also write the sent packets to this capture file
    #[arg(long, value_name = "FILE")]
    pub(super) capture: Option<PathBuf>,
    /// Faults to inject into received packets, joined by commas: drop=P:N (N in a row), duplicate=P, corrupt=P,
    /// reorder=P:N (N later packets overtake the packet), delay=P:TIME, seed=N. P is a probability such as 1%
    #[arg(long, value_name = "FAULTS")]
    pub(super) faults: Option<String>,
}

/// What runs on the packets, and on which device.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Packet function")]
pub(super) struct FunctionArgs {
    /// Run this packet function: a built-in one, or your own as FILE.cu:NAME
    #[arg(long, default_value = "io", value_name = "FUNCTION")]
    pub(super) function: String,
    /// Compare packets with this packet function's: a built-in one, or your own as FILE.cu:NAME, which then runs on the
    /// CPU. For --tx check, and from one capture to another [default: a reference for built-in functions]
    #[arg(long, value_name = "FUNCTION")]
    pub(super) reference: Option<String>,
    /// End the run with an error if the packet function does not finish a burst, or the GPU an item, in this time
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = units::parse_time)]
    pub(super) watchdog: Duration,
    /// List the built-in packet functions and exit
    #[arg(long)]
    pub(super) list_functions: bool,
    /// Run the packet function on this device: cpu, or gpu:0 for the first GPU
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(super) on: Device,
    /// Choose which threads or kernels run the packet function. single: the thread that receives and sends.
    /// split: other threads; on a GPU, one kernel launch per burst. GPUs have three more. persistent: a
    /// kernel that runs for the whole run. stream: kernels posted to CUDA streams before packets arrive.
    /// graph: the same, launched as CUDA graphs. auto tries all methods of the device and takes the one with
    /// the best --goal
    #[arg(long, default_value = "single", value_name = "METHOD|auto")]
    pub(super) method: MethodChoice,
    /// What --method auto optimises [default: throughput]
    #[arg(long, conflicts_with = "max_latency", value_name = "GOAL", value_parser = goal())]
    pub(super) goal: Option<String>,
    /// Limit latency: 99 % of packets may take at most this time from receive to send. Use it with --method
    /// auto, which then takes the method, burst and flush time with the highest rate within the limit
    /// [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    pub(super) max_latency: Option<Duration>,
    /// The number of worker threads, 1 to 64, for --method split on the CPU. 0 means 1
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<usize>(0, 64))]
    pub(super) workers: usize,
    /// Spend this extra time on each packet, at most 1ms
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = units::parse_time)]
    pub(super) work: Duration,
}

/// How a GPU is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "GPU, with --on gpu:N (0 chooses a value)")]
pub(super) struct GpuArgs {
    /// Where packets lie: pinned (host memory, used in place), gpu (copied to GPU memory, changes copied
    /// back) or gpu-pool (GPU memory from the start; for ports null, net_null and ring) [default: pinned]
    #[arg(long, value_name = "WHERE")]
    pub(super) memory: Option<Memory>,
    /// Copy only this many bytes of each packet to GPU memory, 1 to 128K. The rest stays in host memory
    #[arg(long, value_name = "BYTES", value_parser = size::<u32>(1, 1 << 17))]
    pub(super) header_split: Option<u32>,
    /// Blocks of a persistent kernel, up to 65535. 0 lets inlane choose
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<u32>(0, 65535))]
    pub(super) blocks: u32,
    /// Threads in each block of a kernel, up to 1024. 0 lets inlane choose
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<u32>(0, 1024))]
    pub(super) threads: u32,
    /// CUDA streams in which kernels are launched or posted, up to 1024. 0 lets inlane choose
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<u32>(0, 1024))]
    pub(super) streams: u32,
    /// Items (bursts) that one launch of a CUDA graph processes, up to 65536. 0 lets inlane choose
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<u32>(0, MAX_SLOTS as u64))]
    pub(super) graph_items: u32,
    /// Branches of a CUDA graph that run in parallel, up to 1024. 0 lets inlane choose
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<u32>(0, 1024))]
    pub(super) graph_branches: u32,
    /// Let each block of a persistent kernel pause this long between two polls of the ring. A longer pause
    /// reads the ring less often and adds latency
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = units::parse_time)]
    pub(super) pause: Duration,
    /// The order in which the GPU starts waiting kernels of inlane and of other jobs
    #[arg(long = "priority", action = ArgAction::Set, default_value = "high", value_name = "PRIORITY", value_parser = high_priority())]
    pub(super) high_priority: bool,
    /// Measure the traffic on the GPU's PCIe link with the GPU's own counter (NVML)
    #[arg(long)]
    pub(super) measure_pcie: bool,
}

/// How pipelines are built.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Pipeline")]
pub(super) struct PipelineArgs {
    /// The largest number of packets in a burst, 1 to 1024
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = count::<usize>(1, MAX_BURST as u64))]
    pub(super) burst: usize,
    /// Let a burst that is not full wait this long for more packets. 0 sends it at once
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = units::parse_time)]
    pub(super) flush: Duration,
    /// Slots of the burst ring, a power of two from 2 to 65536
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = slots)]
    pub(super) slots: usize,
    /// The number of pipelines, 1 to 64. Each has a receive queue and threads of its own
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count::<u16>(1, 64))]
    pub(super) pipelines: u16,
    /// What to do if the ring or the transmit port is full
    #[arg(long, default_value = Overload::default().name(), value_name = "POLICY", value_parser = choice::<Overload>())]
    pub(super) overload: Overload,
    /// Pin threads to these cores, for example 2,4-7. For each pipeline: first the threads that receive and
    /// send, then the workers. 'none' pins no thread [default: chosen by inlane]
    #[arg(long, value_name = "LIST|none")]
    pub(super) cores: Option<String>,
    /// Packet buffers per pipeline, from four bursts to 4194304; 0 lets inlane choose
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<usize>(0, 1 << 22))]
    pub(super) buffers: usize,
    /// Data room: the bytes that a packet buffer can hold, 64 to 128K
    #[arg(long, default_value = "2K", value_name = "SIZE", value_parser = size::<u64>(64, 128 << 10))]
    pub(super) room: u64,
    /// Keep root's privileges. By default, a run that needed root for its ports continues as the user who
    /// called sudo, or nobody
    #[arg(long)]
    pub(super) keep_privileges: bool,
}

/// When the run ends.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "End of the run")]
pub(super) struct RunArgs {
    /// End after this time [default: 5s; a capture runs to its end, --between until a signal]
    #[arg(long, value_name = "TIME", value_parser = time_above_zero)]
    pub(super) duration: Option<Duration>,
    /// End after this many packets per pipeline, or after 'all' packets of a capture or of a generator that
    /// ends
    #[arg(long, value_name = "N|all", allow_negative_numbers = true)]
    pub(super) packets: Option<String>,
}

/// The flags for series of runs, competing jobs and latency measurements.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Experiments")]
pub(super) struct ExperimentArgs {
    /// Find the highest rate without loss. Each trial takes --duration; RFC 2544 asks for 60s
    #[arg(long, conflicts_with_all = ["rate", "load", "packets"])]
    pub(super) zero_loss: bool,
    /// Measure latency at these percentages of the highest rate without loss. Without a value:
    /// 10,30,50,70,80,90,95,100
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,...", num_args = 0.., value_parser = percent, default_missing_value = "10,30,50,70,80,90,95,100")]
    pub(super) load: Option<Vec<f64>>,
    /// Run once for each value of a flag: burst=16,32,64 or burst=16..64 (doubling) or method=all. Repeat the
    /// flag to run all combinations
    #[arg(long, value_name = "FLAG=VALUE,...")]
    pub(super) sweep: Vec<SweepAxis>,
    /// Run each point this many times, in turns, and report median, minimum and maximum
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count::<u32>(1, 1000))]
    pub(super) repeats: u32,
    /// Before the measured runs, run each point once for this time without measuring it, at most one hour
    #[arg(long, alias = "warmup", default_value = "0s", value_name = "TIME", value_parser = time_to_an_hour)]
    pub(super) warm_up: Duration,
    /// Run a competing job on the same GPU, or with --on cpu on the same cores, and report which share
    /// of its speed the job keeps. --compete alone means --compete=compute
    #[arg(long, value_parser = choice::<Compete>(), default_value_t = Compete::None, default_missing_value = "compute", num_args = 0..=1, require_equals = true, value_name = "JOB")]
    pub(super) compete: Compete,
    /// Measure the latency of each stage of a pipeline (queue, process, send) and in total
    #[arg(long)]
    pub(super) stages: bool,
    /// Skip the baseline: a short run from the same source without the packet function. Sweeps and repeats
    /// always skip it
    #[arg(long)]
    pub(super) no_baseline: bool,
}

/// Where results go.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    pub(super) json: Option<String>,
    /// Write the result as CSV to a file, or to standard output for -, one line per run
    #[arg(long, value_name = "FILE|-")]
    pub(super) csv: Option<PathBuf>,
    /// Draw rate and latency to an SVG file, against the first swept number or the offered load
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Print a line with the current rates to standard error at this interval, 1s or more. With --json, the line is a
    /// JSON object with the counters of each port. On a terminal, the rates are shown without this flag
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(super) interval: Option<Duration>,
    /// Serve the counters of each port for Prometheus at http://ADDRESS:PORT/metrics while the run lasts
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address(9400))]
    pub(super) metrics: Option<SocketAddr>,
}
