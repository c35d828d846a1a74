//! `inlane offload trace`: measures where the time of a short message goes.

mod ends;
mod engines;
mod hops;
mod kernel_times;
mod published;
mod result;
mod show;

use crate::exit::NotReady;
use crate::output::Output;
use crate::values::{core_list, count};
use anyhow::{Context, bail};
use clap::Args;
use ends::READY;
use engines::{ADDRESSES, Engines, Plan};
use inlane_core::clock::Clock;
use inlane_core::units;
use inlane_offload::Transport;
use inlane_offload::trace::{POINTS, Point, Recorder, Stage, Times, Way, ticks};
use inlane_result::Document;
use result::{Mode, ModeResult, Prediction, StageResult};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub use ends::MessageEnd;
pub use result::TraceResult;

/// The port at which the receiver listens.
const PORT: u16 = 7100;
/// The bytes of a message.
const MESSAGE: u64 = 4;
/// The fewest usable cores with which engines and programs are pinned by default: their own four, and one for the rest.
const ENOUGH: usize = 5;
/// The number of the first measured message. No other frame of the measurement ends in such bytes.
const FIRST: u32 = 0x6d65_0000;

/// Measures where the time of a short message goes
///
/// Sends messages of 4 bytes between two programs, one at a time, and splits the time from the call of send() to the data in
/// the receiver's buffer into stages. The programs use the kernel's TCP, or two engines with TCP or RDMA over memif. Each
/// mode is measured with and without time stamps on the way.
#[derive(Args)]
#[command(after_help = "\
Each run starts two engines as threads of this process, and two programs. Afterwards, engines that sleep as soon as
they have no work are predicted from the polling ones and from wake-ups measured alone, and measured. With fewer than
five cores, the threads share cores, so the polling engines show the scheduler's time.

Examples:
  inlane offload trace
  inlane offload trace --modes tcp,rdma --messages 100000 --cores 2,4,6,8
  inlane offload trace --json stages.json")]
pub struct Trace {
    /// What carries the messages, joined by commas: kernel, tcp, rdma
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "kernel,tcp,rdma",
        hide_possible_values = true
    )]
    modes: Vec<Mode>,
    /// Number of measured messages of each run, 100 to 1000000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count::<u32>(100, 1_000_000))]
    messages: u32,
    /// Cores of the sending program, its engine, the receiving engine and the receiving program, for example 1,2,3,4
    /// [default: four cores with five or more usable ones, else not pinned]
    #[arg(long, value_name = "LIST", value_parser = |text: &str| four_cores(text).map(Cores))]
    cores: Option<Cores>,
    /// How long engines poll after their last work before they sleep
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::parse_time)]
    spin: Duration,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

/// The cores of the sending program, its engine, the receiving engine and the receiving program.
#[derive(Clone, Copy)]
struct Cores([usize; 4]);

fn four_cores(text: &str) -> inlane_core::Result<[usize; 4]> {
    let cores = core_list(text)?;
    let found = cores.len();
    let why = format!("it names {found} cores; name four, for example 1,2,3,4");
    cores.try_into().map_err(|_| inlane_core::Error::invalid(format!("'{text}'"), why))
}

impl Trace {
    /// Measures, and writes the result.
    ///
    /// # Errors
    /// If an engine or a program cannot be started, a message is lost, or the result cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), None, None)?;
        let lab =
            Lab { clock: Clock::new(), messages: self.messages, cores: self.pins(), folder: Folder::new()? };
        let modes = self.modes.iter().map(|&mode| lab.measure(mode, self.spin));
        let modes = modes.collect::<anyhow::Result<Vec<_>>>()?;
        let polling = modes.iter().find(|it| it.mode == Mode::Tcp).filter(|_| !self.spin.is_zero());
        let wake_ups = polling.map(|_| hops::measure(lab.cores)).transpose()?;
        let prediction = match polling.zip(wake_ups.as_ref()) {
            Some((polling, wake_ups)) => {
                // These are known before the predicted run begins.
                let (kept_ns, wake_ups_ns) = (without_waits(polling), wake_ups.sum_ns());
                let predicted_ns = kept_ns + wake_ups_ns;
                let measured = lab.measure(Mode::Tcp, Duration::ZERO)?;
                let residual = measured.whole.median_ns / predicted_ns - 1.0;
                Some(Prediction { kept_ns, wake_ups_ns, predicted_ns, measured, residual })
            }
            None => None,
        };
        let mut document = Document::new("offload trace");
        document.notes.push(match lab.cores {
            Some(cores) => {
                format!("cores of sender, its engine, the receiving engine and receiver: {cores:?}")
            }
            None => "not pinned: programs and engines share cores, so the times contain the scheduler's"
                .to_owned(),
        });
        document.results =
            vec![TraceResult { modes, wake_ups, prediction, published: published::published()? }];
        output.write(&mut document, show::show, |_| None)
    }

    /// Returns the cores to which engines and programs are pinned.
    fn pins(&self) -> Option<[usize; 4]> {
        let allowed = inlane_core::cores::allowed();
        let chosen = || {
            let (first, others): (Vec<usize>, Vec<usize>) =
                allowed.iter().partition(|&&core| first_of_siblings(core));
            let cores: Vec<usize> = first.into_iter().chain(others).skip(1).take(4).collect();
            cores.try_into().ok()
        };
        let pinned = self.cores.map(|Cores(cores)| cores);
        pinned.or_else(|| (allowed.len() >= ENOUGH).then(chosen).flatten())
    }
}

/// Returns true if a core is the first of its physical core, or if the kernel does not say.
fn first_of_siblings(core: usize) -> bool {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let first = text.split(|c: char| !c.is_ascii_digit()).next().and_then(|text| text.parse().ok());
    first.is_none_or(|first: usize| first == core)
}

/// Returns the sum of the medians of the stages in which nothing waits for another thread.
fn without_waits(mode: &ModeResult) -> f64 {
    let waits = [Stage::HandOver, Stage::WakeUp, Stage::Wire, Stage::ReaderWakeUp];
    let kept = mode.stages.iter().filter(|stage| !waits.contains(&stage.stage));
    kept.map(|stage| stage.times.median_ns).sum()
}

/// A temporary folder, removed with its files when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("inlane-trace-{}", std::process::id()));
        let created = std::fs::DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program of a measurement. Ended if it is dropped before it has ended.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What all runs share.
struct Lab {
    clock: Clock,
    messages: u32,
    cores: Option<[usize; 4]>,
    folder: Folder,
}

impl Lab {
    fn measure(&self, mode: Mode, spin: Duration) -> anyhow::Result<ModeResult> {
        let [whole, traced] = [false, true].map(|traced| self.run(mode, spin, traced));
        let (whole, traced) = (whole?, traced?);
        let end = |way: &Way| Some(way[Point::Read as usize]? - way[0]?);
        let times = |ways: &[Way]| {
            Times::of(&self.clock, ways.iter().filter_map(end).collect()).context("no message was measured")
        };
        let split: Vec<_> = traced.iter().filter_map(ticks).collect();
        let stages: Vec<StageResult> = (0..)
            .zip(Stage::ALL)
            .filter_map(|(index, stage)| {
                // Where a message lacks the end of this stage, its time counts in the next one.
                split.iter().any(|stages| stages[index].is_some()).then_some(())?;
                let ticks = split.iter().map(|stages| stages[index].unwrap_or(0)).collect();
                Some(StageResult { stage, times: Times::of(&self.clock, ticks)? })
            })
            .collect();
        let (whole, traced_times) = (times(&whole)?, times(&traced)?);
        let sum_ns: f64 = stages.iter().map(|stage| stage.times.median_ns).sum();
        Ok(ModeResult {
            mode,
            path: match mode {
                Mode::Kernel => "the kernel's loopback interface",
                Mode::Tcp | Mode::Rdma => "memif between two engines of this machine",
            }
            .to_owned(),
            spin_ns: (mode != Mode::Kernel).then_some(spin.as_nanos() as u64),
            messages: traced.len() as u64,
            message_bytes: MESSAGE,
            residual: sum_ns / traced_times.median_ns - 1.0,
            overhead: traced_times.median_ns / whole.median_ns - 1.0,
            traced: traced_times,
            whole,
            stages,
            sum_ns,
        })
    }

    /// Sends the messages, with or without time stamps on their way. Returns when each passed the points that were recorded.
    fn run(&self, mode: Mode, spin: Duration, traced: bool) -> anyhow::Result<Vec<Way>> {
        let recorder = || Recorder::new(&self.clock, FIRST, self.messages as usize);
        let transport = match mode {
            Mode::Kernel => return self.exchange(Ipv4Addr::LOCALHOST, None, traced),
            Mode::Tcp => Transport::Tcp,
            Mode::Rdma => Transport::Rdma,
        };
        let recorders = traced.then(|| [recorder(), recorder()]);
        let engines = Engines::start(&Plan {
            transport,
            spin,
            cores: self.cores.map(|[_, sender, receiver, _]| [sender, receiver]),
            recorders: recorders.clone(),
            folder: &self.folder.0,
        })?;
        let ways = self.exchange(ADDRESSES[1].into(), Some(&self.folder.0), false);
        // An engine that has failed is the reason for failed programs.
        let (carried, ways) = engines.end().and_then(|carried| Ok((carried, ways?)))?;
        if mode == Mode::Rdma && !carried {
            bail!("RDMA has not carried the messages, although both engines offer it");
        }
        let Some([sender, receiver]) = recorders else { return Ok(ways) };
        let with_points = |(index, mut way): (usize, Way)| {
            for point in [Point::Found, Point::Begun, Point::Written, Point::Flushed] {
                way[point as usize] = sender.time(index, point);
            }
            for point in [Point::Polled, Point::Received, Point::Processed, Point::Published] {
                way[point as usize] = receiver.time(index, point);
            }
            way
        };
        Ok(ways.into_iter().enumerate().map(with_points).collect())
    }

    /// Runs the two programs, on engines or on the kernel. Returns when each message passed the points of the programs, and
    /// with `kernel_times` those of the kernel.
    fn exchange(
        &self,
        address: Ipv4Addr,
        engines: Option<&Path>,
        kernel_times: bool,
    ) -> anyhow::Result<Vec<Way>> {
        let start = |side: &str, engine: usize, core: Option<usize>| -> anyhow::Result<Program> {
            let this = std::env::current_exe().context("finding this program")?;
            let mut command = Command::new(&this);
            if let Some(folder) = engines {
                let socket = engines::socket(folder, engine);
                command.args(["offload", "run", "--require", "--socket"]).arg(socket).arg("--").arg(&this);
            }
            command.args(["offload", "message-end", side, "--at"]);
            command.arg(SocketAddr::from((address, PORT)).to_string());
            command.args(["--first", &FIRST.to_string(), "--messages", &self.messages.to_string()]);
            if let Some(core) = core {
                command.args(["--core", &core.to_string()]);
            }
            if kernel_times {
                command.arg("--kernel-times");
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
            Ok(Program(child.context("starting a program")?))
        };
        let mut receiver = start("receive", 1, self.cores.map(|cores| cores[3]))?;
        let mut received = BufReader::new(receiver.0.stdout.take().context("the receiver's output")?);
        let mut line = String::new();
        received.read_line(&mut line)?;
        if line.trim_end() != READY {
            return Err(
                NotReady("the receiving program did not start; its message is above".to_owned()).into()
            );
        }
        let mut sender = start("send", 0, self.cores.map(|cores| cores[0]))?;
        let (mut sent_text, mut received_text) = (String::new(), String::new());
        sender.0.stdout.take().context("the sender's output")?.read_to_string(&mut sent_text)?;
        received.read_to_string(&mut received_text)?;
        for (name, program) in [("sending", &mut sender), ("receiving", &mut receiver)] {
            let status = program.0.wait()?;
            if !status.success() {
                bail!("the {name} program failed ({status}); its message is above");
            }
        }
        let ways = sent_text.lines().zip(received_text.lines()).map(|(sent, received)| {
            let number = |text: &str| text.parse::<u64>().ok().filter(|&time| time > 0);
            let (sent, received): (Vec<_>, Vec<_>) =
                (sent.split(' ').map(number).collect(), received.split(' ').map(number).collect());
            let [called, returned, queued, driver] = sent[..] else { bail!("a malformed line: {sent:?}") };
            let [read, arrived] = received[..] else { bail!("a malformed line: {received:?}") };
            let mut way = [None; POINTS];
            way[Point::Called as usize] = called;
            way[Point::Read as usize] = read;
            if engines.is_some() {
                way[Point::Returned as usize] = returned;
            }
            // The kernel's stages: TCP up to the queue of the interface, its driver, and the wire.
            way[Point::Begun as usize] = queued;
            way[Point::Flushed as usize] = driver;
            way[Point::Polled as usize] = arrived;
            Ok(way)
        });
        let ways = ways.collect::<anyhow::Result<Vec<_>>>()?;
        if ways.len() != self.messages as usize {
            bail!("{} messages were sent, and {} were measured", self.messages, ways.len());
        }
        Ok(ways)
    }
}
