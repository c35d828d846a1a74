//! `inlane offload trace`: measures where the time of a short message goes.

mod ends;
mod engines;
mod floors;
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
use inlane_offload::trace::{Hop, POINTS, Place, Point, Recorder, Stage, Step, Times, Way, passage, ticks};
use inlane_result::Document;
use result::{Mode, ModeResult, PassageResult, Prediction, StageResult};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub use ends::MessageEnd;
pub use result::TraceResult;

/// The port at which the receiver listens.
const PORT: u16 = 7100;
/// The bytes of a message.
const MESSAGE: u64 = 4;
/// The fewest usable cores with which engines and programs are pinned by default: their own four, and one for the rest.
const ENOUGH: usize = 5;
/// The same with cards, which need two more.
const ENOUGH_WITH_CARDS: usize = ENOUGH + 2;
/// The number of the first measured message. No other frame of the measurement ends in such bytes.
const FIRST: u32 = 0x6d65_0000;

/// Measures where the time of a short message goes
///
/// Sends messages of 4 bytes between two programs, one at a time, and splits the time from the call of send() to the data in
/// the receiver's buffer into stages. The programs use the kernel's TCP, two engines with TCP or RDMA over memif, or two engines
/// whose cards run TCP. Each mode is measured with and without time stamps on the way.
#[derive(Args)]
#[command(after_help = "\
Each run starts engines and cards as threads of this process, and two programs. Afterwards, engines that sleep as soon as
they have no work are predicted from the polling ones and from wake-ups measured alone, and measured. The least work
of each stage with cards is measured alone, too, as its floor. With fewer than
five cores (seven with cards), the threads share cores, so the polling engines show the scheduler's time.

Examples:
  inlane offload trace
  inlane offload trace --modes tcp,rdma --messages 100000 --cores 2,4,6,8
  inlane offload trace --modes tcp,card --cores 2,4,6,8,10,12
  inlane offload trace --json stages.json")]
pub struct Trace {
    /// What carries the messages, joined by commas: kernel, tcp, rdma, card
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "kernel,tcp,rdma,card",
        hide_possible_values = true
    )]
    modes: Vec<Mode>,
    /// Number of measured messages of each run, 100 to 1000000
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count::<u32>(100, 1_000_000))]
    messages: u32,
    /// Cores of the sending program, its engine, the receiving engine and the receiving program, for example 1,2,3,4. With two
    /// more, those of the sending engine's card and of the receiving engine's card [default: four cores with five or more usable
    /// ones, six with seven or more, else not pinned]
    #[arg(long, value_name = "LIST", value_parser = Cores::parse)]
    cores: Option<Cores>,
    /// How long engines poll after their last work before they sleep
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::parse_time)]
    spin: Duration,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

/// The cores of the programs, of their engines and of the engines' cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cores {
    /// Those of the sending program, its engine, the receiving engine and the receiving program.
    ends: [usize; 4],
    /// Those of the sending engine's card and of the receiving engine's. `None` if they are not pinned.
    cards: Option<[usize; 2]>,
}

impl Cores {
    fn parse(text: &str) -> inlane_core::Result<Self> {
        let cores = core_list(text)?;
        let found = cores.len();
        let why = format!("it names {found} cores; name four, for example 1,2,3,4, or six with cards");
        Self::of(&cores).ok_or_else(|| inlane_core::Error::invalid(format!("'{text}'"), why))
    }

    /// Returns `None` unless there are four or six cores.
    fn of(cores: &[usize]) -> Option<Self> {
        let (ends, cards) = cores.split_first_chunk()?;
        let cards = if cards.is_empty() { None } else { Some(cards.try_into().ok()?) };
        Some(Self { ends: *ends, cards })
    }
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
        let mut modes = modes.collect::<anyhow::Result<Vec<_>>>()?;
        // The floors are of threads that poll.
        for mode in modes.iter_mut().filter(|it| it.mode == Mode::Card && !self.spin.is_zero()) {
            floors::add_to(mode, &lab.clock, lab.cores, &lab.folder.0)?;
        }
        let polling = modes.iter().find(|it| it.mode == Mode::Tcp).filter(|_| !self.spin.is_zero());
        let wake_ups = polling.map(|_| hops::measure(lab.cores.map(|cores| cores.ends))).transpose()?;
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
            Some(Cores { ends, cards }) => {
                let cards = cards.map(|cards| format!("; of the cards: {cards:?}")).unwrap_or_default();
                format!("cores of sender, its engine, the receiving engine and receiver: {ends:?}{cards}")
            }
            None => "not pinned: programs and engines share cores, so the times contain the scheduler's"
                .to_owned(),
        });
        document.results =
            vec![TraceResult { modes, wake_ups, prediction, published: published::published()? }];
        output.write(&mut document, show::show, |_| None)
    }

    /// Returns the cores to which engines, cards and programs are pinned.
    fn pins(&self) -> Option<Cores> {
        let allowed = inlane_core::cores::allowed();
        let count = match allowed.len() {
            ..ENOUGH => 0,
            ENOUGH..ENOUGH_WITH_CARDS => 4,
            _ => 6,
        };
        let chosen = || {
            let (first, others): (Vec<usize>, Vec<usize>) =
                allowed.iter().partition(|&&core| first_of_siblings(core));
            let cores: Vec<usize> = first.into_iter().chain(others).skip(1).take(count).collect();
            Cores::of(&cores)
        };
        self.cores.or_else(chosen)
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
    cores: Option<Cores>,
    folder: Folder,
}

impl Lab {
    fn measure(&self, mode: Mode, spin: Duration) -> anyhow::Result<ModeResult> {
        let [whole, traced] = [false, true].map(|traced| self.run(mode, spin, traced));
        let (whole, traced) = (whole?, traced?);
        let end = |way: &Way| Some(way[Point::Read.index()]? - way[Point::Called.index()]?);
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
                Some(StageResult { stage, times: Times::of(&self.clock, ticks)?, floor: None })
            })
            .collect();
        let passages = Hop::ALL.into_iter().filter_map(|link| {
            let ticks = split.iter().filter_map(|stages| passage(stages, link)).collect();
            Some(PassageResult { link, times: Times::of(&self.clock, ticks)?, floor: None })
        });
        let passages = passages.collect();
        let (whole, traced_times) = (times(&whole)?, times(&traced)?);
        let sum_ns: f64 = stages.iter().map(|stage| stage.times.median_ns).sum();
        Ok(ModeResult {
            mode,
            path: match mode {
                Mode::Kernel => "the kernel's loopback interface",
                Mode::Tcp | Mode::Rdma => "memif between two engines of this machine",
                Mode::Card => {
                    "twins of an NTB between two engines and their cards, and memif between the cards"
                }
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
            passages,
            sum_ns,
        })
    }

    /// Sends the messages, with or without time stamps on their way. Returns when each passed the points that were recorded.
    fn run(&self, mode: Mode, spin: Duration, traced: bool) -> anyhow::Result<Vec<Way>> {
        let transport = match mode {
            Mode::Kernel => return self.exchange(Ipv4Addr::LOCALHOST, None, traced),
            Mode::Tcp | Mode::Card => Transport::Tcp,
            // The stages are those of a message in a packet.
            Mode::Rdma => Transport::RdmaPackets,
        };
        let cards = mode == Mode::Card;
        let places: &[Place] = if cards { &Place::WITH_CARDS } else { &Place::ENGINES };
        let recorders: Vec<Arc<Recorder>> = places
            .iter()
            .filter(|_| traced)
            .map(|&place| Recorder::new(&self.clock, place, FIRST, self.messages as usize))
            .collect();
        let engines = Engines::start(&Plan {
            transport,
            cards,
            spin,
            cores: self.cores.map(|cores| [cores.ends[1], cores.ends[2]]),
            card_cores: self.cores.and_then(|cores| cores.cards),
            recorders: &recorders,
            folder: &self.folder.0,
        })?;
        let ways = self.exchange(ADDRESSES[1].into(), Some(&self.folder.0), false);
        // An engine that has failed is the reason for failed programs.
        let (carried, mut ways) = engines.end().and_then(|carried| Ok((carried, ways?)))?;
        match mode {
            Mode::Rdma if !carried => {
                bail!("RDMA has not carried the messages, although both engines offer it")
            }
            Mode::Card if !carried => bail!("the cards have not carried the messages"),
            _ => {}
        }
        for (index, way) in ways.iter_mut().enumerate() {
            recorders.iter().for_each(|recorder| recorder.add_to(way, index));
        }
        Ok(ways)
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
        let mut receiver = start("receive", 1, self.cores.map(|cores| cores.ends[3]))?;
        let mut received = BufReader::new(receiver.0.stdout.take().context("the receiver's output")?);
        let mut line = String::new();
        received.read_line(&mut line)?;
        if line.trim_end() != READY {
            return Err(
                NotReady("the receiving program did not start; its message is above".to_owned()).into()
            );
        }
        let mut sender = start("send", 0, self.cores.map(|cores| cores.ends[0]))?;
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
            way[Point::Called.index()] = called;
            way[Point::Read.index()] = read;
            if engines.is_some() {
                way[Point::Returned.index()] = returned;
            }
            // The kernel's stages: TCP up to the queue of the interface, its driver, and the wire.
            for (step, time) in [(Step::Begun, queued), (Step::Flushed, driver), (Step::Polled, arrived)] {
                way[Point::At(Hop::Network, step).index()] = time;
            }
            Ok(way)
        });
        let ways = ways.collect::<anyhow::Result<Vec<_>>>()?;
        if ways.len() != self.messages as usize {
            bail!("{} messages were sent, and {} were measured", self.messages, ways.len());
        }
        Ok(ways)
    }
}
