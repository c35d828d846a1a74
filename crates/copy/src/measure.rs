//! The explained measurement: chooses the path of each transfer, calibrates if necessary, measures, verifies, and
//! puts prediction and ceiling beside each result.
//!
//! [`measure`] does all of this in one call. A [`Session`] makes several measurements that share calibrations and
//! ceilings, and reports their progress.

mod contradiction;
mod note;
mod ways;

pub use contradiction::Contradiction;
pub use note::Note;

use crate::ceiling::LinkCeilings;
use crate::cost::Cache;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::explanation::{Because, PathTaken};
use crate::field::{DEVICES, MEASURE};
use crate::path::Path;
use crate::path_options::{PathChoice, PathOptions};
use crate::published;
use crate::result::{PublishedRates, TransferResult};
use crate::stop::check_stop;
use crate::timing::Plan;
use inlane_core::error::Class;
use inlane_core::setting::Choice;
use inlane_core::{CompletionMode, Error, Result, units};
use inlane_pci::Permission;
use inlane_result::RowError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ways::Measurer;

/// The transfers to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfers {
    /// Between two endpoints.
    Between {
        /// The source.
        from: Endpoint,
        /// The destination.
        to: Endpoint,
    },
    /// From every device to every other, and from host memory to host memory.
    Matrix(Vec<Endpoint>),
    /// Those of the published experiment. Only the plan of the configuration applies.
    Published,
}

impl Transfers {
    /// Returns the pairs of source and destination. Empty for the published experiment.
    pub fn pairs(&self) -> Vec<(&Endpoint, &Endpoint)> {
        match self {
            Transfers::Between { from, to } => vec![(from, to)],
            Transfers::Matrix(devices) => {
                let pairs = devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to)));
                pairs.filter(|(from, to)| from != to || **from == Endpoint::Host).collect()
            }
            Transfers::Published => Vec::new(),
        }
    }
}

/// The directions to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the source to the destination.
    #[default]
    Forward,
    /// From the destination to the source.
    Backward,
    /// Both directions at the same time.
    Both,
    /// Each direction alone, then both at the same time.
    All,
}

/// The figures to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Figures {
    /// The time of single transfers, one in flight.
    Latency,
    /// The rate of transfers that follow each other.
    Stream,
    /// Both.
    #[default]
    All,
}

impl Choice for Direction {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Direction::Forward, "forward", "From the source to the destination"),
        (Direction::Backward, "backward", "From the destination to the source"),
        (Direction::Both, "both", "Both directions at the same time"),
        (Direction::All, "all", "Each direction alone, then both at the same time"),
    ];
}

impl Choice for Figures {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Figures::Latency, "latency", "The time of single transfers, one in flight"),
        (Figures::Stream, "stream", "The rate of transfers that follow each other"),
        (Figures::All, "all", "Both"),
    ];
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The transfers to measure.
    pub transfers: Transfers,
    /// The permitted accesses to BARs.
    pub permission: Permission,
    /// The sizes of transfers, in bytes.
    pub sizes: Vec<usize>,
    /// The directions to measure.
    pub direction: Direction,
    /// The figures to measure.
    pub figures: Figures,
    /// The completion modes to compare.
    pub completion: Vec<CompletionMode>,
    /// The bytes of memory at each end that transfers rotate over.
    pub rotate: usize,
    /// True to measure the ceilings.
    pub ceilings: bool,
    /// The rules that choose paths. Each gets its own rows.
    pub choices: Vec<PathChoice>,
    /// True to calibrate the paths even if a calibration is stored.
    pub calibrate: bool,
    /// How paths are opened.
    pub options: PathOptions,
    /// How long to measure. Its stop flag ends the whole measurement. Its completion mode applies only to the
    /// published experiment.
    pub plan: Plan,
}

impl Config {
    /// Returns the configuration with defaults for transfers of `sizes` bytes.
    pub fn new(transfers: Transfers, sizes: Vec<usize>) -> Self {
        let options = PathOptions {
            largest: sizes.iter().copied().max().unwrap_or(1),
            resident: true,
            ..PathOptions::default()
        };
        Self {
            transfers,
            permission: Permission::default(),
            sizes,
            direction: Direction::default(),
            figures: Figures::default(),
            completion: vec![CompletionMode::Poll],
            rotate: 256 << 20,
            ceilings: true,
            choices: vec![PathChoice::Auto],
            calibrate: false,
            options,
            plan: Plan::default(),
        }
    }

    /// Checks that the settings fit each other.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the latency of both directions at once.
    pub fn check(&self) -> Result<()> {
        if self.figures == Figures::Latency && matches!(self.direction, Direction::Both | Direction::All) {
            let why = format!("both directions at once are streamed; give {} or all", MEASURE.with("stream"));
            return Err(Error::invalid(MEASURE.with("latency"), why));
        }
        Ok(())
    }
}

/// The results of a measurement, and what their reader must know.
#[derive(Debug, Default)]
pub struct Measurement {
    /// One row for each measured path, direction, size and completion mode.
    pub results: Vec<TransferResult>,
    /// The devices that took part.
    pub devices: Vec<String>,
    /// True if a software stand-in for a device took part.
    pub twin: bool,
    /// What a reader must know before comparing the figures with others.
    pub notes: Vec<Note>,
    /// Why the results are incomplete. `None` if they are complete.
    pub failure: Option<Failure>,
}

impl Measurement {
    /// Adds a note, unless there is an equal one.
    fn note(&mut self, note: Note) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a failed measurement.
    fn failed(&mut self, error: Arc<Error>) {
        match &mut self.failure {
            Some(Failure::Failed { count, .. }) => *count += 1,
            failure => *failure = Some(Failure::Failed { count: 1, measured: 0, first: error }),
        }
    }
}

/// Why the results of a measurement are incomplete.
#[derive(Debug)]
pub enum Failure {
    /// Some measurements failed.
    Failed {
        /// The number of failed measurements.
        count: usize,
        /// The number of measurements that did not fail.
        measured: usize,
        /// The first error.
        first: Arc<Error>,
    },
    /// The caller ended the run.
    Interrupted {
        /// The number of complete measurements.
        measured: usize,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed { count, measured, first } => {
                write!(f, "{count} of {} measurements failed; the first: {first}", count + measured)
            }
            Failure::Interrupted { measured } => {
                write!(f, "interrupted after {}", units::counted(*measured as u64, "measurement"))
            }
        }
    }
}

/// A direction between two endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The source.
    pub from: Endpoint,
    /// The destination.
    pub to: Endpoint,
    /// True if the opposite direction runs at the same time.
    pub both_directions: bool,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let both = if self.both_directions { ", both directions at once" } else { "" };
        write!(f, "{} to {}{both}", self.from, self.to)
    }
}

/// What a measurement is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It calibrates the paths.
    Calibration,
    /// It measures the ceilings of the links.
    Ceiling,
    /// It measures transfers.
    Transfers {
        /// The bytes of a transfer.
        size: usize,
        /// The requested completion mode.
        completion: CompletionMode,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Calibration => write!(f, "calibration"),
            Step::Ceiling => write!(f, "ceiling"),
            Step::Transfers { size, completion } => {
                write!(f, "{}, {completion}", units::bytes(*size as u64))
            }
        }
    }
}

/// What happens during a measurement.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step begins.
    Begins(&'a Route, Step),
    /// The steps of a route have ended.
    Ended,
    /// A path replaces the requested one.
    Replaced {
        /// The route.
        route: &'a Route,
        /// The requested path.
        requested: Path,
        /// Why it cannot be used.
        why: &'a str,
        /// The path of the largest transfer.
        taken: Path,
    },
    /// A size is left out because there is too little memory.
    LeftOut {
        /// The size in bytes.
        size: usize,
        /// The error of the allocation.
        error: &'a Error,
    },
}

/// Called for each event of a measurement.
pub type Watch<'a> = Box<dyn FnMut(Event<'_>) + 'a>;

/// Makes measurements one after another.
pub struct Session<'a> {
    /// The calibrations of this machine.
    pub cache: Cache,
    /// The ceilings of links that were measured.
    pub ceilings: LinkCeilings,
    /// Watches measurements.
    pub watch: Watch<'a>,
}

impl Default for Session<'_> {
    fn default() -> Self {
        Self { cache: Cache::load(), ceilings: LinkCeilings::default(), watch: Box::new(|_| ()) }
    }
}

/// Measures a configuration: see [`Session::measure`].
///
/// # Errors
/// As for [`Session::measure`].
pub fn measure(config: &Config) -> Result<Measurement> {
    Session::default().measure(config)
}

impl Session<'_> {
    /// Measures a configuration, and explains each result. A failed measurement is a row with its error, and the
    /// next one follows.
    ///
    /// # Errors
    /// If the configuration contradicts itself, a device cannot be opened, or no measurement succeeded.
    pub fn measure(&mut self, config: &Config) -> Result<Measurement> {
        config.check()?;
        let mut found = Measurement::default();
        match &config.transfers {
            Transfers::Between { from, to } => self.between(config, from, to, &mut found)?,
            Transfers::Matrix(devices) => self.matrix(config, devices, &mut found)?,
            Transfers::Published => publish(&config.plan, &mut found),
        }
        finish(config, found)
    }

    fn between(
        &mut self,
        config: &Config,
        from: &Endpoint,
        to: &Endpoint,
        found: &mut Measurement,
    ) -> Result<()> {
        let devices = open(&[from.clone(), to.clone(), Endpoint::Host], &config.permission)?;
        let (from, to, host) = (&devices[0], &devices[1], &devices[2]);
        describe(found, &devices[..2]);
        found.notes.extend(unequal_links(from, to));
        let mut measurer = Measurer { config, session: self, found, host };
        for store_end in ways::store_ends(from, to) {
            for choice in &config.choices {
                if measurer.compare(from, to, *choice, store_end).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn matrix(&mut self, config: &Config, endpoints: &[Endpoint], found: &mut Measurement) -> Result<()> {
        let pairs = config.transfers.pairs();
        if pairs.is_empty() {
            let only = endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let why = "a matrix needs two devices; name another one, such as host";
            return Err(Error::invalid(DEVICES.with(only), why));
        }
        let mut devices = open(&[endpoints, &[Endpoint::Host]].concat(), &config.permission)?;
        let host = devices.pop().expect("the host was opened last");
        describe(found, &devices);
        let device = |endpoint: &Endpoint| {
            devices.iter().find(|device| device.endpoint() == endpoint).expect("an opened endpoint")
        };
        let mut measurer = Measurer { config, session: self, found, host: &host };
        for (from, to) in pairs {
            for choice in &config.choices {
                if measurer.compare(device(from), device(to), *choice, None).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Opens endpoints as [`crate::open`]. If a GPU is missing because this machine has none, the error suggests the
/// twin.
///
/// # Errors
/// As for [`crate::open`].
pub fn open(endpoints: &[Endpoint], permission: &Permission) -> Result<Vec<Arc<Device>>> {
    crate::open(endpoints, permission).map_err(|error| {
        let asks_for_gpu = endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Gpu(_)));
        match asks_for_gpu && error.class() == Class::Environment && crate::gpu::none_found() {
            true => crate::Error::NoGpu(error).into(),
            false => error,
        }
    })
}

/// Repeats the published experiment. Twins take the place of the accelerators. The experiment ends at the first
/// failed transfer.
fn publish(plan: &Plan, found: &mut Measurement) {
    found.twin = true;
    found.devices = [0, 1].map(|slot| inlane_twin::Costs::published(slot).name).into();
    found.notes.extend([Note::PublishedUnit, Note::PublishedRates]);
    let ended = published::run(16 << 20, plan, |line| {
        let mut row =
            TransferResult::new(&line.from, &line.to, line.size, plan.completion).with(&line.measured);
        let hops = vec![line.hops];
        row.path =
            Some(PathTaken { name: line.path, hops, reason: Because::Published, not_taken: Vec::new() });
        row.published = Some(PublishedRates {
            published_bytes_per_second: line.published_mib.map(|rate| rate * 1_048_576.0),
            predicted_bytes_per_second: line.predicted,
            // Take the model's rate from the best repeat, because other load on this machine can only make a
            // repeat slower.
            model_bytes_per_second: line
                .measured
                .latency_ns
                .map(|latency| line.size as f64 / latency.min * 1e9),
        });
        found.results.push(row);
    });
    if let Err(error) = ended
        && !plan.stop.load(Ordering::Relaxed)
    {
        found.failed(error.into());
    }
}

/// Adds notes on how the measurement ended, and why its results are incomplete.
///
/// # Errors
/// The first failure, if no measurement succeeded. Also if the run was interrupted before any result.
fn finish(config: &Config, mut found: Measurement) -> Result<Measurement> {
    let succeeded = found.results.iter().filter(|row| row.error.is_none()).count();
    let stopped = config.plan.stop.load(Ordering::Relaxed);
    found.failure = match found.failure {
        Some(Failure::Failed { first, .. }) if succeeded == 0 => {
            // Drop the rows first, because they share the error.
            drop(found.results);
            return Err(Arc::try_unwrap(first).unwrap_or_else(|first| {
                let class = first.class();
                Error::other(RowError::from(first), class)
            }));
        }
        Some(Failure::Failed { count, first, .. }) => {
            Some(Failure::Failed { count, measured: succeeded, first })
        }
        None if succeeded == 0 => {
            check_stop(&config.plan.stop)?;
            None
        }
        _ if stopped => Some(Failure::Interrupted { measured: succeeded }),
        _ => None,
    };
    if stopped {
        found.note(Note::Interrupted);
    }
    let unverified = |row: &TransferResult| row.error.is_none() && row.verification.verified_bytes == 0;
    if found.results.iter().any(unverified) {
        found.note(Note::Unverified);
    }
    Ok(found)
}

/// Adds the devices of a measurement to its results.
fn describe(found: &mut Measurement, devices: &[Arc<Device>]) {
    found.devices = devices.iter().map(|device| device.describe()).collect();
    found.devices.dedup();
    found.twin = devices.iter().any(|device| device.endpoint().is_twin());
}

/// Returns a note if the PCIe links of two devices have different rates.
fn unequal_links(from: &Device, to: &Device) -> Option<Note> {
    let (a, b) = (from.link()?, to.link()?);
    let (slower, faster) = if a.1 < b.1 { ((from, a), (to, b)) } else { ((to, b), (from, a)) };
    let named = |(device, (link, _)): (&Device, (String, f64))| (device.endpoint().clone(), link);
    (slower.1.1 < faster.1.1)
        .then(|| Note::UnequalLinks { slower: named(slower.clone()), faster: named(faster.clone()) })
}
