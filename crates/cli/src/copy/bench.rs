//! Measures pairs of devices, and adds rows to the result document. If a measurement fails, its row contains
//! the error, and the run continues with the next measurement.

use super::{Copy, Direction, Measured};
use inlane_copy::cost::{Cache, PathCosts};
use inlane_copy::measure::{Buffers, Measurement, Plan, latency, stream, together};
use inlane_copy::result::{StoreEnd, TransferResult};
use inlane_copy::stop::check_stop;
use inlane_copy::{Device, Endpoint, Path, PathChoice, PathOptions, PathSelector, ceiling};
use inlane_core::mover::Mover;
use inlane_core::result::{Ceiling, Document};
use inlane_core::{CompletionMode, Error, Result, units};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The result document of `inlane copy`: one row for each measurement.
pub type TransferReport = Document<TransferResult>;

/// The failed measurements of a run. They decide the exit status.
#[derive(Debug, Default)]
pub struct Failures {
    /// The number of failed measurements.
    pub count: usize,
    /// The first error.
    pub first: Option<Error>,
}

/// Measures pairs of devices as the command's flags ask. Adds rows and notes to the report, and failed
/// measurements to `failures`.
pub struct Bench<'a> {
    args: &'a Copy,
    plan: &'a Plan,
    report: &'a mut TransferReport,
    failures: &'a mut Failures,
    host: &'a Arc<Device>,
    cache: Cache,
    ceilings: ceiling::LinkCeilings,
}

/// The buffers of one measurement, and the transfer sizes for which the buffers are large enough.
struct Memory {
    /// The source and destination buffers, one entry for each direction that runs.
    buffers: Vec<Buffers>,
    sizes: Vec<usize>,
    /// A row with an error for each size for which the allocation failed.
    refused: Vec<(TransferResult, Error)>,
}

/// One measured direction between two devices. Includes the path to take and what counts as the end of a
/// transfer.
#[derive(Clone, Copy)]
struct Way<'a> {
    from: &'a Arc<Device>,
    to: &'a Arc<Device>,
    choice: PathChoice,
    options: &'a PathOptions,
    store_end: Option<StoreEnd>,
}

impl std::fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let both = if self.options.both_ways { ", both directions at once" } else { "" };
        write!(f, "{} to {}{both}", self.from.endpoint(), self.to.endpoint())
    }
}

impl Way<'_> {
    /// Creates a row for a size and a completion mode. It has no path and no measured values.
    fn row(&self, size: usize, completion: CompletionMode) -> TransferResult {
        let requested_path = match self.choice {
            PathChoice::Auto => None,
            PathChoice::Prefer(path) | PathChoice::Require(path) => Some(path),
        };
        TransferResult {
            both_directions: self.options.both_ways,
            store_end: self.store_end,
            requested_path,
            ..TransferResult::new(self.from.endpoint(), self.to.endpoint(), size, completion)
        }
    }
}

impl<'a> Bench<'a> {
    /// Creates a bench. Loads the calibration that earlier runs on this machine stored.
    pub fn new(
        args: &'a Copy,
        plan: &'a Plan,
        report: &'a mut TransferReport,
        failures: &'a mut Failures,
        host: &'a Arc<Device>,
    ) -> Self {
        let (cache, ceilings) = (Cache::load(), ceiling::LinkCeilings::default());
        Self { args, plan, report, failures, host, cache, ceilings }
    }

    /// Returns the times that are measured for a transfer; each gets its own rows. A store from the host to a
    /// BAR has the time of issue. If the BAR may be read, it also has the time of delivery. Other transfers
    /// have one unnamed time: `None`.
    pub fn store_ends(&self, from: &Device, to: &Device) -> Vec<Option<StoreEnd>> {
        match (from.endpoint(), to.endpoint()) {
            (Endpoint::Host, Endpoint::Bar(_)) if to.is_verifiable() => {
                vec![Some(StoreEnd::Issued), Some(StoreEnd::Delivered)]
            }
            (Endpoint::Host, Endpoint::Bar(_)) => vec![Some(StoreEnd::Issued)],
            _ => vec![None],
        }
    }

    /// Measures transfers between two devices, in the directions that `--direction` selects. Returns `Break`
    /// if the run was interrupted or a GPU was given up.
    pub fn compare(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: PathChoice,
        options: &PathOptions,
        store_end: Option<StoreEnd>,
    ) -> ControlFlow<()> {
        let options = &PathOptions { delivered: store_end == Some(StoreEnd::Delivered), ..options.clone() };
        let direction = self.args.direction;
        let forward = Way { from, to, choice, options, store_end };
        if matches!(direction, Direction::Forward | Direction::All) {
            self.measure(&[forward])?;
        }
        if matches!(direction, Direction::Backward | Direction::All) {
            self.measure(&[Way { from: to, to: from, store_end: None, ..forward }])?;
        }
        if matches!(direction, Direction::Both | Direction::All) {
            let options = &PathOptions { both_ways: true, ..options.clone() };
            let forward = Way { options, store_end: None, ..forward };
            self.measure(&[forward, Way { from: to, to: from, ..forward }])?;
        }
        ControlFlow::Continue(())
    }

    /// Adds a row with an error. If the run was interrupted, adds no row and returns `Break`. Also returns
    /// `Break` if a GPU was given up, because calls to that GPU may block.
    fn failed(&mut self, mut row: TransferResult, error: Error) -> ControlFlow<()> {
        progress("");
        if self.plan.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let Error::Altered { wrong, .. } = &error {
            row.verification.altered_bytes += wrong;
        }
        row.error = Some(error.to_string());
        self.report.results.push(row);
        self.failures.count += 1;
        self.failures.first.get_or_insert(error);
        if crate::devices::any_abandoned() {
            let note = "a GPU does not answer and was given up; the remaining measurements are left out";
            self.report.notes.push(note.into());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Returns the costs of the paths. Takes the first of these:
    ///
    /// 1. stored costs, if there are any and `--calibrate` is not set
    /// 2. newly calibrated costs, if the path is chosen by cost
    /// 3. `None` in all other cases
    ///
    /// Call this before allocating the buffers. On a BAR, calibration needs the memory that the buffers will
    /// occupy.
    fn costs(&mut self, way: Way) -> Result<Option<PathCosts>> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        let kept = self.cache.get(way.from, way.to, way.options).filter(|_| !self.args.calibrate).cloned();
        let chosen_by_cost = match way.choice {
            PathChoice::Auto => true,
            PathChoice::Prefer(path) => !Path::candidates(a, b).contains(&path),
            PathChoice::Require(_) => false,
        };
        if kept.is_some() || !chosen_by_cost {
            return Ok(kept);
        }
        progress(&format!("{way}, calibration"));
        let costs = PathCosts::calibrate(way.from, way.to, way.options)?;
        self.cache.put(way.from, way.to, way.options, costs.clone());
        Ok(Some(costs))
    }

    /// Opens the paths of one direction. Prints a warning if the requested path is not available and another
    /// path replaces it. Allocate all buffers before this call. Opening a path may start a resident kernel,
    /// and a later allocation would wait until that kernel ends.
    fn selector(&mut self, way: Way, costs: Option<PathCosts>) -> Result<PathSelector> {
        let selector = PathSelector::open(way.from, way.to, way.choice, way.options, costs)?;
        if let Some((requested, why)) = selector.fallback() {
            let path = selector.path_for(way.options.largest as u64);
            crate::print_to_stderr(format_args!(
                "inlane: warning: {way}: {requested} was requested but cannot be used: {why}; inlane takes {path} instead"
            ));
        }
        self.report.twin |= selector.is_twin();
        Ok(selector)
    }

    /// Allocates buffers for each direction. If the memory is too small, leaves out the largest size and
    /// tries again, until the buffers fit.
    fn memory(&self, ways: &[Way]) -> Result<Memory> {
        let (mut sizes, mut refused) = (self.args.sizes.0.clone(), Vec::new());
        loop {
            // Check before each attempt whether the run was interrupted, because an attempt zeroes hundreds
            // of megabytes and takes long.
            check_stop(&self.plan.stop)?;
            let largest = sizes.iter().copied().max().unwrap_or(1);
            let buffers = |way: &Way| Buffers::new(way.from, way.to, largest, self.args.rotate);
            match ways.iter().map(buffers).collect::<Result<_>>() {
                Err(error @ Error::Memory { .. }) if sizes.iter().any(|size| *size < largest) => {
                    sizes.retain(|size| *size < largest);
                    crate::print_to_stderr(format_args!("inlane: {}: {error}", units::bytes(largest as u64)));
                    refused.push((ways[0].row(largest, self.args.completion[0]), error));
                }
                outcome => return Ok(Memory { buffers: outcome?, sizes, refused }),
            }
        }
    }

    /// Measures the ceiling of each direction. Returns `None` with `--no-ceiling`, or if no ceiling applies.
    fn ceilings(&mut self, way: Way) -> Result<Option<[Ceiling; 2]>> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        let crosses_none =
            matches!(way.choice, PathChoice::Require(path) if ceiling::none_for(path, a, b).is_some());
        if self.args.no_ceiling || crosses_none {
            return Ok(None);
        }
        progress(&format!("{way}, ceiling"));
        self.ceilings.measure(way.from, way.to, self.host, way.options.both_ways, self.plan)
    }

    /// Returns `measured` as the ceiling of one path. If the path has none, adds a note and returns `None`.
    fn ceiling_of(&mut self, way: Way, path: Path, measured: Option<Ceiling>) -> Option<Ceiling> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        if let Some(why) = ceiling::none_for(path, a, b) {
            if !self.args.no_ceiling {
                self.note(format!("no ceiling for {path} from {a} to {b}: {why}"));
            }
            return None;
        }
        measured
    }

    /// Measures the ceiling of transfers between host memory and BARs. Returns `None` for other devices and with
    /// `--no-ceiling`.
    fn cpu_ceiling(&self, way: Way, buffers: &Buffers, size: usize) -> Result<Option<Ceiling>> {
        if self.args.no_ceiling || !ceiling::is_by_cpu(way.from.endpoint(), way.to.endpoint()) {
            return Ok(None);
        }
        ceiling::of_cpu(buffers, size, way.options.access, self.plan).map(Some)
    }

    /// Adds a note to the report, unless the report already contains it.
    fn note(&mut self, note: String) {
        if !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    /// Measures one direction, or two at once, with each size and each completion mode.
    fn measure(&mut self, ways: &[Way]) -> ControlFlow<()> {
        let way = ways[0];
        let first = way.row(way.options.largest, self.args.completion[0]);
        let opened = (|| {
            let ceilings = self.ceilings(way)?;
            let costs = self.costs(way)?;
            let memory = self.memory(ways)?;
            Ok((ceilings, memory, self.selectors(ways, costs.clone())?, costs))
        })();
        let (ceilings, Memory { mut buffers, sizes, refused }, mut selectors, costs) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(first, error),
        };
        for (row, error) in refused {
            self.failed(row, error)?;
        }
        for size in sizes {
            let mut measured_modes = Vec::new();
            for &asked in &self.args.completion {
                let mut rows = Vec::new();
                for (way, selector) in ways.iter().zip(&mut selectors) {
                    let path = selector.path_for(size as u64);
                    let mode = selector.set_completion_mode_for(size as u64, asked);
                    if mode != asked {
                        let why = "the CPU copies, and is busy until the end";
                        self.note(format!("{path} is measured by {mode} instead of {asked}: {why}"));
                    }
                    rows.push(TransferResult {
                        path: Some(selector.explain(size as u64)),
                        ..way.row(size, mode)
                    });
                }
                let modes: Vec<_> = rows.iter().map(|row| row.completion).collect();
                if measured_modes.contains(&modes) {
                    continue;
                }
                measured_modes.push(modes);
                progress(&format!("{way}, {}, {asked}", units::bytes(size as u64)));
                match self.figures(&mut selectors, &mut buffers, size, asked) {
                    Ok(figures) => {
                        for (index, (row, measured)) in rows.into_iter().zip(&figures).enumerate() {
                            let (mut row, way_of_row) = (row.with(measured), &ways[index]);
                            let path = selectors[index].path_for(size as u64);
                            let measured = match self.cpu_ceiling(*way_of_row, &buffers[index], size) {
                                Ok(by_cpu) => by_cpu.or_else(|| Some(ceilings.as_ref()?[index].clone())),
                                Err(error) => return self.failed(row, error),
                            };
                            if let Some(ceiling) = self.ceiling_of(*way_of_row, path, measured) {
                                row.set_ceiling(ceiling);
                            }
                            if !way.options.both_ways {
                                row.predicted_ns = selectors[index].predicted_ns(size as u64);
                            }
                            self.report.results.push(row);
                        }
                    }
                    Err(error) => {
                        self.failed(rows.swap_remove(0), error)?;
                        // After an error, the movers may be unusable. So drop them and open new ones.
                        drop(selectors);
                        selectors = match self.selectors(ways, costs.clone()) {
                            Ok(selectors) => selectors,
                            Err(error) => return self.failed(first, error),
                        };
                    }
                }
            }
        }
        progress("");
        ControlFlow::Continue(())
    }

    /// Measures transfers of one size in one completion mode. Returns one measurement for each direction of
    /// transfer.
    fn figures(
        &self,
        selectors: &mut [PathSelector],
        buffers: &mut [Buffers],
        size: usize,
        completion: CompletionMode,
    ) -> Result<Vec<Measurement>> {
        let plan = Plan { completion, ..self.plan.clone() };
        let ([selector], [buffers]) = (&mut *selectors, &mut *buffers) else {
            let movers = selectors.iter_mut().map(|selector| selector as &mut dyn Mover);
            return together(movers.zip(buffers).collect(), size, &plan);
        };
        let what = self.args.measure;
        let single =
            if what == Measured::Stream { None } else { Some(latency(selector, buffers, size, &plan)?) };
        // With `--measure latency`, do not measure the rate of successive transfers. With `--measure all`, do
        // not measure it if only one transfer can be in flight. It would be the latency measurement again.
        let one_in_flight = what == Measured::Latency
            || self.args.in_flight == Some(1)
            || selector.is_synchronous_for(size as u64);
        Ok(vec![match single {
            Some(single) if one_in_flight => single,
            single => {
                let mut streamed = stream(selector, buffers, size, &plan)?;
                if let Some(single) = single {
                    streamed.latency_ns = single.latency_ns;
                    streamed.latency_percentiles = single.latency_percentiles;
                    streamed.verification.transferred_bytes += single.verification.transferred_bytes;
                    streamed.verification.verified_bytes += single.verification.verified_bytes;
                }
                streamed
            }
        }])
    }

    /// Opens the path of each direction in `ways`. The second direction reuses the measured costs of the
    /// first, so both directions choose the same path. Call this before any kernel is resident.
    fn selectors(&mut self, ways: &[Way], costs: Option<PathCosts>) -> Result<Vec<PathSelector>> {
        let mut selectors = vec![self.selector(ways[0], costs)?];
        for back in &ways[1..] {
            let costs = selectors[0].costs().cloned();
            selectors.push(PathSelector::open(back.from, back.to, back.choice, back.options, costs)?);
        }
        Ok(selectors)
    }
}

/// Overwrites the progress line on standard error. Prints nothing if standard error is not a terminal.
fn progress(text: &str) {
    use std::io::{IsTerminal, Write};
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}
