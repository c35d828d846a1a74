//! Measures the directions between two devices, and adds a row for each size and completion mode. If a measurement
//! fails, its row contains the error, and the next measurement follows.

use super::contradiction::Contradiction;
use super::{Config, Direction, Event, Figures, Measurement, Note, Route, Session, Step};
use crate::ceiling::{self, Ceiling};
use crate::cost::PathCosts;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::path::Path;
use crate::path_options::{PathChoice, PathOptions};
use crate::path_selector::PathSelector;
use crate::result::{StoreEnd, TransferResult};
use crate::stop::check_stop;
use crate::timing::{Buffers, Plan, Timing, latency, stream, together};
use inlane_core::mover::Mover;
use inlane_core::{CompletionMode, Error, Result};
use inlane_process::interference::Interference;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Measures pairs of devices as the configuration asks. Adds rows, notes and failures to `found`.
pub(super) struct Measurer<'a, 'w> {
    pub config: &'a Config,
    pub session: &'a mut Session<'w>,
    pub found: &'a mut Measurement,
    pub host: &'a Arc<Device>,
}

/// The costs by which paths are chosen.
struct Calibration {
    costs: Option<PathCosts>,
    /// True if an earlier run made the calibration.
    is_stored: bool,
}

/// The buffers of one measurement.
struct Memory {
    /// The source and destination buffers, one entry for each direction that runs.
    buffers: Vec<Buffers>,
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

impl Way<'_> {
    fn is_chosen_by_cost(&self) -> bool {
        match self.choice {
            PathChoice::Auto => true,
            PathChoice::Prefer(path) => {
                !Path::candidates(self.from.endpoint(), self.to.endpoint()).contains(&path)
            }
            PathChoice::Require(_) => false,
        }
    }

    fn route(&self) -> Route {
        let (from, to) = (self.from.endpoint().clone(), self.to.endpoint().clone());
        Route { from, to, both_directions: self.options.both_ways }
    }

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

/// Returns the times that are measured for a transfer; each gets its own rows. A store from the host to a BAR has
/// the time of issue. If the BAR may be read, it also has the time of delivery. Other transfers have one unnamed
/// time: `None`.
pub(super) fn store_ends(from: &Device, to: &Device) -> Vec<Option<StoreEnd>> {
    match (from.endpoint(), to.endpoint()) {
        (Endpoint::Host, Endpoint::Bar(_)) if to.is_verifiable() => {
            vec![Some(StoreEnd::Issued), Some(StoreEnd::Delivered)]
        }
        (Endpoint::Host, Endpoint::Bar(_)) => vec![Some(StoreEnd::Issued)],
        _ => vec![None],
    }
}

impl Measurer<'_, '_> {
    fn watch(&mut self, event: Event<'_>) {
        (self.session.watch)(event);
    }

    /// Returns the completion mode of rows that fail before a path is open.
    fn completion(&self) -> CompletionMode {
        self.config.completion.first().copied().unwrap_or_default()
    }

    /// Measures transfers between two devices, in the configured directions. Returns `Break` if
    /// the run was interrupted or a GPU was given up.
    pub fn compare(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: PathChoice,
        store_end: Option<StoreEnd>,
    ) -> ControlFlow<()> {
        let options = &PathOptions {
            delivered: store_end == Some(StoreEnd::Delivered),
            stop: self.config.plan.stop.clone(),
            ..self.config.options.clone()
        };
        let direction = self.config.direction;
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
        self.watch(Event::Ended);
        if self.config.plan.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let Error::Altered { wrong, .. } = &error {
            row.verification.altered_bytes += wrong;
        }
        let error = Arc::new(error);
        row.error = Some(error.clone().into());
        self.found.results.push(row);
        self.found.failed(error);
        if crate::gpu::any_abandoned() {
            self.found.note(Note::GivenUp);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Returns the costs of the paths. Takes the first of these:
    ///
    /// 1. stored costs, if there are any and [`Config::calibrate`] is not set
    /// 2. newly calibrated costs, if the path is chosen by cost
    /// 3. `None` in all other cases
    ///
    /// If the path is chosen by cost and the stored costs were disturbed, calibrates again. Call this before
    /// allocating the buffers. On a BAR, calibration needs the memory that the buffers will occupy.
    fn costs(&mut self, way: Way) -> Result<Calibration> {
        let stored = self.session.cache.get(way.from, way.to, way.options).filter(|_| !self.config.calibrate);
        let stored = stored.cloned();
        match stored {
            Some(costs) if !(costs.disturbed && way.is_chosen_by_cost()) => {
                Ok(Calibration { costs: Some(costs), is_stored: true })
            }
            stored if way.is_chosen_by_cost() => self.calibrate(way, stored),
            _ => Ok(Calibration { costs: None, is_stored: false }),
        }
    }

    /// Calibrates the paths and stores the costs. `disturbed` are the costs of an earlier calibration that other
    /// processes disturbed.
    fn calibrate(&mut self, way: Way, disturbed: Option<PathCosts>) -> Result<Calibration> {
        self.watch(Event::Begins(&way.route(), Step::Calibration));
        let costs = self.session.cache.calibrate(way.from, way.to, way.options, disturbed.as_ref())?;
        if costs.disturbed {
            self.found.note(Note::Disturbed { route: way.route() });
        }
        Ok(Calibration { costs: Some(costs), is_stored: false })
    }

    /// Opens the paths of one direction. Reports if another path replaces the requested one. Allocate all buffers
    /// before this call, because opening a path may start a resident kernel. A later allocation would wait until
    /// that kernel ends.
    fn selector(&mut self, way: Way, costs: Option<PathCosts>) -> Result<PathSelector> {
        let selector = PathSelector::open(way.from, way.to, way.choice, way.options, costs)?;
        if let Some((requested, why)) = selector.fallback() {
            let taken = selector.path_for(way.options.largest as u64);
            self.watch(Event::Replaced { route: &way.route(), requested, why, taken });
        }
        self.found.twin |= selector.is_twin();
        Ok(selector)
    }

    /// Allocates buffers for each direction. If the memory is too small, removes the largest size from `sizes`, adds
    /// a failed row for it, and tries again, until the buffers fit.
    fn memory(&mut self, ways: &[Way], sizes: &mut Vec<usize>) -> Result<Memory> {
        let mut refused = Vec::new();
        loop {
            // Check before each attempt whether the run was interrupted, because an attempt zeroes hundreds
            // of megabytes and takes long.
            check_stop(&self.config.plan.stop)?;
            let largest = sizes.iter().copied().max().unwrap_or(1);
            let buffers = |way: &Way| Buffers::new(way.from, way.to, largest, self.config.rotate);
            match ways.iter().map(buffers).collect::<Result<_>>() {
                Err(error @ Error::Memory { .. }) if sizes.iter().any(|size| *size < largest) => {
                    sizes.retain(|size| *size < largest);
                    self.watch(Event::LeftOut { size: largest, error: &error });
                    refused.push((ways[0].row(largest, self.completion()), error));
                }
                outcome => return Ok(Memory { buffers: outcome?, refused }),
            }
        }
    }

    /// Measures the ceiling of each direction. Returns `None` if none is wanted or applies.
    fn ceilings(&mut self, way: Way) -> Result<Option<[Ceiling; 2]>> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        let crosses_none =
            matches!(way.choice, PathChoice::Require(path) if ceiling::none_for(path, a, b).is_some());
        if !self.config.ceilings || crosses_none {
            return Ok(None);
        }
        self.watch(Event::Begins(&way.route(), Step::Ceiling));
        self.session.ceilings.measure(way.from, way.to, self.host, way.options.both_ways, &self.config.plan)
    }

    /// Returns `measured` as the ceiling of one path. If the path has none, adds a note and returns `None`.
    fn ceiling_of(&mut self, way: Way, path: Path, measured: Option<Ceiling>) -> Option<Ceiling> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        if let Some(why) = ceiling::none_for(path, a, b) {
            if self.config.ceilings {
                self.found.note(Note::NoCeiling { path, from: a.clone(), to: b.clone(), why });
            }
            return None;
        }
        measured
    }

    /// Measures the ceiling of transfers between host memory and BARs. Returns `None` for other devices, or if no
    /// ceiling is wanted.
    fn cpu_ceiling(&self, way: Way, buffers: &Buffers, size: usize) -> Result<Option<Ceiling>> {
        if !self.config.ceilings || !ceiling::is_by_cpu(way.from.endpoint(), way.to.endpoint()) {
            return Ok(None);
        }
        ceiling::of_cpu(buffers, size, way.options.access, &self.config.plan).map(Some)
    }

    /// Measures one direction, or two at once, with each size and each completion mode. If a measured time
    /// contradicts a stored calibration, calibrates again and continues with the same size.
    fn measure(&mut self, ways: &[Way]) -> ControlFlow<()> {
        let way = ways[0];
        let first = way.row(way.options.largest, self.completion());
        let mut sizes = self.config.sizes.clone();
        let opened = self.ceilings(way).and_then(|ceilings| Ok((ceilings, self.costs(way)?)));
        let (ceilings, mut calibration) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(first, error),
        };
        while let Some(contradiction) =
            self.measure_sizes(ways, &mut sizes, ceilings.as_ref(), &calibration)?
        {
            self.found.note(Note::CalibratedAgain { route: way.route(), contradiction });
            calibration = match self.calibrate(way, None) {
                Ok(calibration) => calibration,
                Err(error) => return self.failed(first, error),
            };
        }
        self.watch(Event::Ended);
        ControlFlow::Continue(())
    }

    /// Measures each size and removes it from `sizes`. Returns early if the stored calibration is wrong and another
    /// path may be better.
    fn measure_sizes(
        &mut self,
        ways: &[Way],
        sizes: &mut Vec<usize>,
        ceilings: Option<&[Ceiling; 2]>,
        calibration: &Calibration,
    ) -> ControlFlow<(), Option<Contradiction>> {
        let way = ways[0];
        let first = way.row(way.options.largest, self.completion());
        let costs = &calibration.costs;
        let memory = self.memory(ways, sizes);
        let opened = memory.and_then(|memory| Ok((memory, self.selectors(ways, costs.clone())?)));
        let (Memory { mut buffers, refused }, mut selectors) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.given_up(first, error),
        };
        for (row, error) in refused {
            self.failed(row, error)?;
        }
        while let Some(&size) = sizes.first() {
            let mut measured_modes = Vec::new();
            for &asked in &self.config.completion {
                let mut rows = Vec::new();
                for (way, selector) in ways.iter().zip(&mut selectors) {
                    let path = selector.path_for(size as u64);
                    let mode = selector.set_completion_mode_for(size as u64, asked);
                    if mode != asked {
                        self.found.note(Note::NotInMode { path, mode, requested: asked });
                    }
                    let path = Some(selector.explain(size as u64));
                    rows.push(TransferResult { path, ..way.row(size, mode) });
                }
                let modes: Vec<_> = rows.iter().map(|row| row.completion).collect();
                if measured_modes.contains(&modes) {
                    continue;
                }
                measured_modes.push(modes);
                self.watch(Event::Begins(&way.route(), Step::Transfers { size, completion: asked }));
                let interference = Interference::start();
                let figures = match self.figures(&mut selectors, &mut buffers, size, asked) {
                    Ok(figures) => figures,
                    Err(error) => {
                        self.failed(rows.swap_remove(0), error)?;
                        // After an error, the movers may be unusable. So drop them and open new ones.
                        drop(selectors);
                        selectors = match self.selectors(ways, costs.clone()) {
                            Ok(selectors) => selectors,
                            Err(error) => return self.given_up(first, error),
                        };
                        continue;
                    }
                };
                // Calibration polls, so only polled transfers can contradict it.
                let is_first = measured_modes.len() == 1 && rows[0].completion == CompletionMode::Poll;
                let compared = is_first.then(|| {
                    Contradiction::find(&selectors[0], size, &figures, interference.others_are_busy())
                });
                if let Some(contradiction) = compared.flatten() {
                    if calibration.is_stored && way.is_chosen_by_cost() {
                        return ControlFlow::Continue(Some(contradiction));
                    }
                    self.contradicted(way, contradiction, calibration.is_stored);
                }
                for (index, (row, measured)) in rows.into_iter().zip(&figures).enumerate() {
                    let ceiling = ceilings.map(|ceilings| ceilings[index].clone());
                    self.complete(
                        row.with(measured),
                        ways[index],
                        &selectors[index],
                        &buffers[index],
                        ceiling,
                    )?;
                }
            }
            sizes.remove(0);
        }
        ControlFlow::Continue(None)
    }

    /// Adds a row with an error after which no further size can be measured.
    fn given_up(&mut self, row: TransferResult, error: Error) -> ControlFlow<(), Option<Contradiction>> {
        self.failed(row, error)?;
        ControlFlow::Continue(None)
    }

    /// Adds a note on the first contradiction of each path.
    fn contradicted(&mut self, way: Way, contradiction: Contradiction, is_stored: bool) {
        let route = way.route();
        let known = |note: &Note| {
            matches!(note, Note::Contradicted { route: of, contradiction: other, .. }
                if *of == route && other.path == contradiction.path)
        };
        if !self.found.notes.iter().any(known) {
            self.found.note(Note::Contradicted { route, contradiction, is_stored });
        }
    }

    /// Adds a measured row, with its ceiling and its predicted time. `ceiling` is that of the links.
    fn complete(
        &mut self,
        mut row: TransferResult,
        way: Way,
        selector: &PathSelector,
        buffers: &Buffers,
        ceiling: Option<Ceiling>,
    ) -> ControlFlow<()> {
        let size = row.size_bytes;
        let measured = match self.cpu_ceiling(way, buffers, size as usize) {
            Ok(by_cpu) => by_cpu.or(ceiling),
            Err(error) => return self.failed(row, error),
        };
        if let Some(ceiling) = self.ceiling_of(way, selector.path_for(size), measured) {
            row.set_ceiling(ceiling);
        }
        if !way.options.both_ways {
            row.predicted_ns = selector.predicted_ns(size);
        }
        self.found.results.push(row);
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
    ) -> Result<Vec<Timing>> {
        let plan = Plan { completion, ..self.config.plan.clone() };
        let ([selector], [buffers]) = (&mut *selectors, &mut *buffers) else {
            let movers = selectors.iter_mut().map(|selector| selector as &mut dyn Mover);
            return together(movers.zip(buffers).collect(), size, &plan);
        };
        let what = self.config.figures;
        let single =
            if what == Figures::Stream { None } else { Some(latency(selector, buffers, size, &plan)?) };
        // Skip the rate of successive transfers if only the latency is wanted. Also skip it if only one transfer can
        // be in flight, because it would repeat the latency measurement.
        let one_in_flight = what == Figures::Latency
            || self.config.plan.in_flight == Some(1)
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
