//! `inlane forward`: its flags, its live line, its result.

mod figure;
mod live;
mod options;
mod sweep;

use crate::output::Output;
use anyhow::Context;
use clap::Args;
use inlane_core::result::{Document, Verification};
use inlane_core::units;
use inlane_forward::config::{self, Config, Device, Executor, Method, Route};
use inlane_forward::control::{Control, ProgressSnapshot};
use inlane_forward::experiment::{self, Ceilings, Goal};
use inlane_forward::pipeline::{Overload, PipelineSettings};
use inlane_forward::result::{PacketResult, Quantity};
use inlane_forward::{run, verify};
use inlane_ports::pcap::{Pace, Playback};
use live::Live;
use options::{Aim, Choice, Compete, OnGpu, OnOverload, PlayPace, cores};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Ports, with their options (af_packet:eth1,frame=4096):
  null[:SIZE]      makes and swallows packets, touching none
  gen:SIZE|imix    makes flows with sequence numbers and checksums: flows=N (64), seed=N, v4, v6,
                   udp, tcp, vlan=N, smac=MAC, dmac=MAC, rate=RATE, packets=N
  gen:oran         makes what an O-RAN radio sends: eaxc=0+1, prbs=N, scs=15|30|60|120, mtu=N,
                   shuffle=N, loss=N%, slots=N, realtime, downlink; seed, vlan, smac, dmac, rate
  check            swallows and verifies what gen made; check:SIZE,... what a gen elsewhere made
                   that was given the same options
  pcap:FILE        reads or writes a capture; pcap:- standard input or output
  net_null[:SIZE]  DPDK's null: copy=on touches the bytes
  ring:NAME        what is sent comes back: prime=N packets in it at the start, size=BYTES of each
  af_xdp:IFACE     queue=N the first (0), busy=N packets a busy poll, copy=on
  af_packet:IFACE  queues=N (one a pipeline), frame=BYTES a slot holds, bypass=on past the qdisc
  tap:NAME         makes the interface: mac=fixed
  memif:SOCKET     role=server|client (client), id=N (0), wait=SECONDS (10), secret=TEXT
  pci:ADDRESS      a network card under vfio-pci
  The last seven take descriptors=N, the last five mtu=BYTES.

Examples:
  # every packet of a capture, in order, MACs swapped, timestamps kept
  inlane forward --rx pcap:in.pcap --tx pcap:out.pcap --function macswap --packets all --json result.json

  # how fast is this machine without a network
  inlane forward --rx null:64 --tx null:64 --function macswap --duration 5s

  # everything made is checked: nothing lost, duplicated, reordered or altered
  inlane forward --rx gen:imix,flows=64 --tx check --function macswap --method split --packets 10000000

  # a bump in the wire between two interfaces
  inlane forward --between af_xdp:eth1 af_xdp:eth2 --function l3-decrement

  # the highest rate without loss (RFC 2544)
  inlane forward --rx gen:64 --tx check --zero-loss --duration 2s

  # every method at four bursts, three times each: a table, and a plot of rate against burst
  inlane forward --rx null:1024 --tx null --on gpu:0 --function macswap --duration 1s \
      --sweep burst=16,32,64,128 --sweep method=all --repeats 3 --svg figure.svg

  # latency against offered load, beside a job that wants the same GPU
  inlane forward --rx gen:1024 --tx check --on gpu:0 --sweep method=persistent,stream --load --compete --svg figure.svg

INLANE_LOG=debug shows what DPDK says.

Exit status: 0 done, 1 ran but failed, 2 usage, 3 the environment is not ready (try inlane doctor).";

/// Receives packets, runs a packet function on them, and sends them on.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Forward {
    /// The port to receive from
    #[arg(long, value_name = "PORT", required_unless_present_any = ["between", "list_functions"], conflicts_with = "between")]
    rx: Option<String>,
    /// The port to send to; give it again for further ports that verdicts can name
    #[arg(long, value_name = "PORT", requires = "rx")]
    tx: Vec<String>,
    /// Forward between two ports, both ways
    #[arg(long, num_args = 2, value_names = ["PORT", "PORT"])]
    between: Option<Vec<String>>,
    /// The packet function: a built-in one (see --list-functions) or your own FILE.cu:NAME
    #[arg(long, default_value = "io")]
    function: String,
    /// List the built-in packet functions and exit
    #[arg(long)]
    list_functions: bool,
    /// What runs the packet function: cpu, or gpu:0 for the first GPU
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    on: Device,
    #[command(flatten)]
    gpu: OnGpu,
    /// How control flows: single or split; on a GPU also persistent, stream or graph; or auto
    #[arg(long, default_value = "single", value_name = "METHOD|auto")]
    method: Choice,
    /// With --method auto, which chooses method, burst and flush time: throughput, or give --max-latency
    #[arg(long, value_enum, conflicts_with = "max_latency")]
    goal: Option<Aim>,
    /// With --method auto: 99 % of packets from received to sent within this time
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    max_latency: Option<Duration>,
    /// With split on the CPU: threads that process, beside the one that receives and sends; 0 for one
    #[arg(long, default_value_t = 0, value_name = "N")]
    workers: usize,
    /// Most packets of a burst
    #[arg(long, default_value_t = 64, value_name = "N")]
    burst: usize,
    /// How long a partial burst waits for more packets; --method auto keeps to one that is given
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = units::parse_time)]
    flush: Duration,
    /// Items of the burst ring, a power of two
    #[arg(long, default_value_t = 64, value_name = "N")]
    slots: usize,
    /// Queues with a pipeline each
    #[arg(long, default_value_t = 1, value_name = "N")]
    pipelines: u16,
    /// Offer packets at this rate (10G, 1.5Mpps); a generator that falls behind sends late, and the checker's latency shows it
    #[arg(long, value_parser = units::parse_rate)]
    rate: Option<units::Rate>,
    /// How fast a capture is played: as fast as it goes, or as its timestamps say
    #[arg(long, value_enum, default_value_t = PlayPace::Full)]
    pace: PlayPace,
    /// Play a capture again and again
    #[arg(long = "loop")]
    repeat: bool,
    /// Search for the highest rate without loss (RFC 2544), each trial as long as --duration
    #[arg(long, conflicts_with_all = ["rate", "load"])]
    zero_loss: bool,
    /// Latency at these shares of the highest rate without loss, in per cent
    #[arg(long, value_delimiter = ',', value_name = "PERCENT,...", num_args = 0.., value_parser = options::percent, default_missing_value = "10,30,50,70,80,90,95,100")]
    load: Option<Vec<f64>>,
    /// Time spent on each packet beside the function
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = units::parse_time)]
    work: Duration,
    /// End after this time [default: 5s, or when a capture ends, or with --between never]
    #[arg(long, value_name = "TIME", value_parser = units::parse_time)]
    duration: Option<Duration>,
    /// End after so many packets a pipeline; 'all' for a whole capture
    #[arg(long, value_name = "N|all")]
    packets: Option<String>,
    /// When what comes after is full
    #[arg(long, value_enum, default_value_t = OnOverload::Wait)]
    overload: OnOverload,
    /// Time every burst at every stage
    #[arg(long)]
    stages: bool,
    /// Cores to bind threads to, of each pipeline first those that receive and send, then those that process; 'none' binds none
    #[arg(long, value_name = "LIST|none")]
    cores: Option<String>,
    /// Buffers of each pipeline; 0 for as many as its ring holds and some in hand
    #[arg(long, default_value_t = 0, value_name = "N")]
    buffers: usize,
    /// Bytes that a buffer holds
    #[arg(long, default_value = "2K", value_name = "SIZE", value_parser = units::parse_size)]
    room: u64,
    /// Write what is sent to a capture too
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Disturb what is received: drop=P,duplicate=P,reorder=P,corrupt=P,delay=TIME,seed=N
    #[arg(long, value_name = "SPEC")]
    faults: Option<String>,
    /// Stay root once ports are open; otherwise a run whose ports needed root goes on as who called sudo, or nobody
    #[arg(long)]
    keep_privileges: bool,
    /// Do not run the baseline (the same ports, the work left out) first; sweeps and repeats never do
    #[arg(long)]
    no_baseline: bool,
    /// Bytes of the packets that --rx null, net_null or gen makes, in place of those in its name
    #[arg(long, value_name = "BYTES")]
    size: Option<u64>,
    /// Run once for each value of a flag (burst=16,32,64 or burst=16..64, each twice the one before, or method=all); given again,
    /// for every combination
    #[arg(long, value_name = "FLAG=VALUE,...")]
    sweep: Vec<sweep::Axis>,
    /// Run so many times, in turns, and give medians and spread
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Run a job beside that wants the same GPU or, with --on cpu, the same cores; says what each costs the other
    #[arg(long, value_enum, default_value_t = Compete::None, default_missing_value = "compute", num_args = 0..=1, require_equals = true, value_name = "JOB")]
    compete: Compete,
    /// Draw rate and latency against the sweep's first number, or with --load against the offered load, to an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

impl Forward {
    fn config(&self) -> anyhow::Result<Config> {
        let route = match (&self.between, &self.rx) {
            (Some(between), _) => Route::Between(between[0].clone(), between[1].clone()),
            (None, Some(rx)) => Route::OneWay { rx: rx.clone(), tx: self.tx.clone() },
            (None, None) => unreachable!("clap requires one of them"),
        };
        let mut config = Config::new(route);
        config.function = self.function.clone();
        if matches!(self.method, Choice::Method(_)) && (self.goal.is_some() || self.max_latency.is_some()) {
            return Err(inlane_forward::Error::config(
                "--goal and --max-latency",
                "are what --method auto aims at; add it or leave them out",
            )
            .into());
        }
        let method = match self.method {
            Choice::Method(method) => method,
            // The executor that --method auto varies: workers belong to split.
            Choice::Auto if self.workers > 0 => Method::Split,
            Choice::Auto => Method::Single,
        };
        config.executor = Executor::new(self.on, method, self.workers, self.gpu.settings()?)?;
        config.pipelines = self.pipelines;
        config.rate = self.rate;
        let pace = match self.pace {
            PlayPace::Full => Pace::Full,
            PlayPace::Original => Pace::Original,
        };
        let plays = matches!(&config.route, Route::OneWay { rx, .. } if rx.starts_with("pcap:"));
        if !plays && (self.repeat || pace != Pace::Full) {
            let why = "are of a capture that is received from: --rx pcap:FILE";
            return Err(inlane_forward::Error::config("--loop and --pace", why).into());
        }
        config.drop_privileges = !self.keep_privileges;
        config.playback = Playback { pace, repeat: self.repeat };
        config.buffers = self.buffers;
        config.room = self.room as usize;
        config.capture = self.capture.clone();
        config.faults = self.faults.clone();
        config.compete = match self.compete {
            Compete::None => config::Compete::None,
            Compete::Compute => config::Compete::Compute,
            Compete::Large => config::Compete::Large,
        };
        config.per_pipeline = PipelineSettings {
            burst: self.burst,
            flush: self.flush,
            slots: self.slots,
            overload: match self.overload {
                OnOverload::Wait => Overload::Wait,
                OnOverload::Drop => Overload::Drop,
                OnOverload::Shrink => Overload::Shrink,
            },
            work: self.work,
            stages: self.stages,
            packets: u64::MAX,
        };
        let mut everything = false;
        match self.packets.as_deref() {
            Some("all") => everything = true,
            Some(text) => {
                config.per_pipeline.packets =
                    text.replace('_', "").parse().ok().filter(|&n| n > 0).ok_or_else(|| {
                        inlane_core::Error::Quantity {
                            text: text.into(),
                            what: "a number of packets",
                            why: "neither a whole number above zero nor 'all'".into(),
                            example: "1000000 or all",
                        }
                    })?;
            }
            None => {}
        }
        config.cores = match self.cores.as_deref() {
            None => None,
            Some("none") => Some(Vec::new()),
            Some(list) => Some(cores(list)?),
        };
        // A source that never ends needs an end, unless somebody will press Ctrl-C.
        let endless =
            matches!(&config.route, Route::OneWay { rx, .. } if !rx.starts_with("pcap:") || self.repeat);
        config.duration = match self.duration {
            Some(duration) => Some(duration),
            None if endless && !everything && config.per_pipeline.packets == u64::MAX => {
                Some(Duration::from_secs(5))
            }
            None => None,
        };
        Ok(match self.size {
            Some(size) => config.with_size(size)?,
            None => config,
        })
    }

    /// Runs it; `arguments` are those it was parsed from, for a sweep to parse them again with others.
    pub fn run(&self, arguments: &[OsString]) -> anyhow::Result<()> {
        if self.list_functions {
            return crate::print(|out| {
                for function in inlane_forward::functions() {
                    writeln!(out, "{:<16} {}", function.name, function.about)?;
                    if !function.syntax.is_empty() {
                        writeln!(out, "{:<16} {}", "", function.syntax)?;
                    }
                }
                Ok(())
            });
        }
        let config = self.config()?;
        let series = sweep::Series::new(self, arguments)?;
        if self.svg.is_some() {
            series.axis().ok_or_else(nothing_to_draw)?;
        }
        let control = Arc::new(Control::default());
        crate::signal::stop_on_signal(&control).context("cannot watch for Ctrl-C")?;
        // A capture there is alone: the result goes where progress goes.
        let sends_to_stdout =
            matches!(&config.route, Route::OneWay { tx, .. } if tx.iter().any(|port| port == "pcap:-"));
        self.check_outputs(&config.route)?;
        let output = Output::open(self.json.as_deref(), self.svg.as_deref())?;
        let mut live = Live::new();
        let (mut document, failure) = if series.is_plain() {
            let mut watch = |elapsed: Duration, reading: ProgressSnapshot| live.show(elapsed, reading);
            let (document, failure) = self.measure(&control, &mut Ceilings::default(), &mut watch)?;
            (document, failure.map(anyhow::Error::from))
        } else {
            series.run(&control)?
        };
        live.end();
        let show = |out: &mut dyn Write, document: &Document<PacketResult>| {
            let text = inlane_report::text(document);
            if sends_to_stdout {
                crate::say(text.trim_end());
                return Ok(());
            }
            out.write_all(text.as_bytes())
        };
        let figure =
            |document: &Document<PacketResult>| figure::svg(document, series.axis()?, &series.line_keys());
        output.write(&mut document, show, figure)?;
        failure.map_or(Ok(()), Err)
    }

    /// Finds a file that two outputs are to go to.
    fn check_outputs(&self, route: &Route) -> Result<(), inlane_core::Error> {
        let sent: &[String] = if let Route::OneWay { tx, .. } = route { tx } else { &[] };
        let captures = sent.iter().filter_map(|port| port.strip_prefix("pcap:").map(Path::new));
        let result = self.json.as_deref().map(Path::new).into_iter().chain(self.svg.as_deref());
        let outputs: Vec<&Path> = captures.chain(self.capture.as_deref()).chain(result).collect();
        // A device takes what there is.
        let is_file = |path: &Path| path.is_file() || !path.exists();
        let twice = |&(index, path): &(usize, &&Path)| is_file(path) && outputs[..index].contains(path);
        match outputs.iter().enumerate().find(twice) {
            Some((_, path)) => {
                let why = "two outputs go there; give each a file of its own";
                Err(inlane_core::Error::invalid(path.display().to_string(), why))
            }
            None => Ok(()),
        }
    }

    /// Runs it as its flags say: once, or at several loads.
    fn measure(
        &self,
        control: &Arc<Control>,
        ceilings: &mut Ceilings,
        watch: &mut dyn FnMut(Duration, ProgressSnapshot),
    ) -> anyhow::Result<(Document<PacketResult>, Option<inlane_forward::Error>)> {
        let config = self.config()?;
        if self.zero_loss || self.load.is_some() {
            let loads = self.load.as_deref().unwrap_or(&[]);
            return Ok(experiment::against_load(&config, loads, control, ceilings, watch)?);
        }
        self.once(&config, control, ceilings, watch)
    }

    fn once(
        &self,
        config: &Config,
        control: &Control,
        ceilings: &mut Ceilings,
        watch: &mut dyn FnMut(Duration, ProgressSnapshot),
    ) -> anyhow::Result<(Document<PacketResult>, Option<inlane_forward::Error>)> {
        let (mut chosen, mut reason) = (config.clone(), None);
        if matches!(self.method, Choice::Auto) {
            let goal = self.max_latency.map_or(Goal::Throughput, Goal::Latency);
            let (taken, why) = experiment::choose(config, goal, control)?;
            (chosen, reason) = (taken, Some(why));
        }
        let config = &chosen;
        let baseline = if self.no_baseline { None } else { experiment::baseline(config, control) };
        let mut outcome = run::run(config, control, watch)?;
        if let Some(why) = reason {
            outcome.result.path.reason = why;
            if outcome.result.parameters.get("flush").is_none() {
                outcome.result.parameters.set("flush", Quantity::Time(0.0));
            }
        }
        outcome.result.ceiling = ceilings.of(config, outcome.link_bits_per_second, &outcome.result);
        outcome.result.limit = experiment::limit(config, &outcome);
        let mut document = Document::new("forward", inlane_core::result::Path::default());
        document.devices = outcome.devices;
        document.twin = outcome.twin;
        document.notes.extend(outcome.notes);
        document.notes.extend(ceilings.round_trip_note(config));
        outcome.result.baseline = baseline;
        if outcome.result.verification.is_none() && !control.stopping() {
            outcome.result.verification = verify::captures(config)?;
        }
        let mut failure = outcome.errors.into_iter().next();
        if let Some(verification) = outcome.result.verification.as_ref().filter(|found| found.failed()) {
            failure.get_or_insert(inlane_forward::Error::Verification(describe(verification)));
        }
        if outcome.result.leaked_buffers > 0 {
            let leaked = outcome.result.leaked_buffers;
            failure.get_or_insert(inlane_forward::Error::Leaked { buffers: leaked });
        }
        document.results.push(outcome.result);
        Ok((document, failure))
    }
}

fn nothing_to_draw() -> inlane_core::Error {
    inlane_core::Error::invalid(
        "--svg",
        "draws against a number, and none is swept; add --load, or --sweep with burst, size, rate or another number",
    )
}

fn describe(verification: &Verification) -> String {
    let Verification { checked, lost, duplicated, reordered, altered, method } = verification;
    format!(
        "of {checked} packets {lost} lost, {duplicated} duplicated, {reordered} reordered, {altered} altered ({method})"
    )
}
