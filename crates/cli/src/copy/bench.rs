//! Measuring pairs of devices into a report: what fails is noted in its row, and the next is measured.

use super::rows::{Report, row, with};
use super::{Copy, Direction, What};
use inlane_copy::cost::{Cache, Costs};
use inlane_copy::measure::{Buffers, Measured, Plan, latency, stream, together};
use inlane_copy::stop::check_stop;
use inlane_copy::{Choice, Device, Endpoint, Options, Path, Route, ceiling};
use inlane_core::mover::Mover;
use inlane_core::result::{Ceiling, TransferResult};
use inlane_core::{Completion, Error, Result, units};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What went wrong while other figures were had.
#[derive(Debug, Default)]
pub struct Failures {
    /// How often something did.
    pub count: usize,
    /// The first.
    pub first: Option<Error>,
    /// Bytes that did not arrive as they were sent.
    pub altered: u64,
}

/// Measures pairs into a report.
pub struct Bench<'a> {
    pub args: &'a Copy,
    pub plan: &'a Plan,
    pub report: &'a mut Report,
    pub failures: &'a mut Failures,
    pub cache: &'a mut Cache,
    pub ceilings: &'a mut ceiling::Ceilings,
    pub host: &'a Arc<Device>,
}

/// Ceilings of a pair, forth and back, and whether the report has them.
struct Known {
    of: [ceiling::Ceiling; 2],
    told: bool,
}

/// What a pair is measured with.
struct Memory {
    /// For each way.
    buffers: Vec<Buffers>,
    sizes: Vec<usize>,
    /// Sizes that there is no memory for.
    refused: Vec<(TransferResult, Error)>,
}

/// Two devices, and how to go from one to the other.
#[derive(Clone, Copy)]
struct Way<'a> {
    from: &'a Arc<Device>,
    to: &'a Arc<Device>,
    choice: Choice,
    options: &'a Options,
}

impl Way<'_> {
    /// A row without figures.
    fn row(&self, size: usize, path: Option<Path>, completion: Completion) -> TransferResult {
        let path = path.map_or_else(
            || match self.choice {
                Choice::Auto => "auto".into(),
                Choice::Prefer(path) | Choice::Require(path) => path.to_string(),
            },
            |path| path.to_string(),
        );
        row(self.from.endpoint(), self.to.endpoint(), size, &path, completion)
    }
}

impl Bench<'_> {
    /// For stores to a BAR, issued and delivered where it may be read; else the one end there is.
    pub fn ends(&self, from: &Device, to: &Device) -> Vec<Option<bool>> {
        match (from.endpoint(), to.endpoint()) {
            (Endpoint::Host, Endpoint::Bar(_)) if to.is_verifiable() => vec![Some(false), Some(true)],
            (Endpoint::Host, Endpoint::Bar(_)) => vec![Some(false)],
            _ => vec![None],
        }
    }

    /// Measures a pair in the directions asked for; breaks when the run was interrupted.
    pub fn compare(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
        delivered: Option<bool>,
    ) -> ControlFlow<()> {
        let direction = self.args.direction;
        let forth = Way { from, to, choice, options };
        if matches!(direction, Direction::Forward | Direction::All) {
            self.one_way(forth, delivered)?;
        }
        if matches!(direction, Direction::Backward | Direction::All) {
            self.one_way(Way { from: to, to: from, ..forth }, delivered)?;
        }
        if matches!(direction, Direction::Both | Direction::All) {
            self.both_ways(Way { options: &Options { both_ways: true, ..options.clone() }, ..forth })?;
        }
        ControlFlow::Continue(())
    }

    /// Notes a failure in its row, and goes on; or ends, when it is the interruption's, or when a GPU was given up, of which calls may
    /// not return.
    fn failed(&mut self, row: TransferResult, error: Error) -> ControlFlow<()> {
        progress("");
        if self.plan.stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let Error::Altered { wrong, .. } = &error {
            self.failures.altered += wrong;
        }
        self.report.results.push(TransferResult { error: Some(error.to_string()), ..row });
        self.failures.count += 1;
        self.failures.first.get_or_insert(error);
        if inlane_cuda::any_abandoned() {
            let note =
                "a GPU does not answer and was given up: measurements behind the failed one are left out";
            self.report.notes.push(note.into());
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// What the paths cost, where that is known or the choice needs it. Before the run's own memory is allocated: a BAR has no
    /// more.
    fn costs(&mut self, way: Way) -> Result<Option<Costs>> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        let kept = self.cache.get(way.from, way.to, way.options).filter(|_| !self.args.calibrate).cloned();
        let chosen_by_cost = match way.choice {
            Choice::Auto => true,
            Choice::Prefer(path) => !Path::candidates(a, b).contains(&path),
            Choice::Require(_) => false,
        };
        if kept.is_some() || !chosen_by_cost {
            return Ok(kept);
        }
        progress(&format!("{a} to {b}, calibration"));
        let costs = Costs::calibrate(way.from, way.to, way.options)?;
        self.cache.put(way.from, way.to, way.options, costs.clone());
        Ok(Some(costs))
    }

    /// Opens a route. Its memory must be there already: kernels that stay on a GPU would hold allocation up.
    fn route(&mut self, way: Way, costs: Option<Costs>) -> Result<Route> {
        let route = Route::open(way.from, way.to, way.choice, way.options, costs)?;
        let largest = way.options.largest as u64;
        if let Some(fallback) = route.fallback() {
            let (a, b) = (way.from.endpoint(), way.to.endpoint());
            eprintln!("inlane: {a} to {b}: {fallback}; going on with {}", route.path_for(largest));
        }
        self.report.path = route.explain(largest);
        self.report.twin |= route.is_twin();
        Ok(route)
    }

    /// Memory for each way, the sizes asked for that there is memory for, and why there is none for the others.
    fn memory(&self, ways: &[Way]) -> Result<Memory> {
        let (mut sizes, mut refused) = (self.args.sizes.0.clone(), Vec::new());
        loop {
            // Zeroing hundreds of megabytes takes its time.
            check_stop(&self.plan.stop)?;
            let largest = sizes.iter().copied().max().unwrap_or(1);
            let buffers = |way: &Way| Buffers::new(way.from, way.to, largest, self.args.rotate);
            match ways.iter().map(buffers).collect::<Result<_>>() {
                Err(error @ Error::Memory { .. }) if sizes.iter().any(|size| *size < largest) => {
                    sizes.retain(|size| *size < largest);
                    refused.push((ways[0].row(largest, None, self.args.completion[0]), error));
                }
                outcome => return Ok(Memory { buffers: outcome?, sizes, refused }),
            }
        }
    }

    fn ceiling(&mut self, way: Way) -> Result<Option<Known>> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        let other_way =
            matches!(way.choice, Choice::Require(path) if ceiling::none_for(path, a, b).is_some());
        if self.args.no_ceiling || other_way {
            return Ok(None);
        }
        progress(&format!("{a} to {b}, ceiling"));
        let both = way.options.both_ways;
        let measured = self.ceilings.measure(way.from, way.to, self.host, both, self.plan)?;
        Ok(measured.map(|of| Known { of, told: false }))
    }

    /// The share of its ceiling that a path reached; what the ceiling is is told with the first share of it.
    fn share(
        &mut self,
        way: Way,
        path: Path,
        known: &mut Option<Known>,
        back: bool,
        rate: f64,
    ) -> Option<f64> {
        let (a, b) = (way.from.endpoint(), way.to.endpoint());
        if let Some(why) = ceiling::none_for(path, a, b) {
            let note = format!("no ceiling for {path} from {a} to {b}: {why}");
            if !self.args.no_ceiling && !self.report.notes.contains(&note) {
                self.report.notes.push(note);
            }
            return None;
        }
        let known = known.as_mut()?;
        if !std::mem::replace(&mut known.told, true) {
            if self.report.ceiling.is_none() {
                self.report.ceiling = Some(Ceiling {
                    what: known.of[0].what.clone(),
                    bytes_per_second: Some(known.of[0].bytes_per_second),
                    packets_per_second: None,
                });
            } else {
                let both = way.options.both_ways;
                self.report.notes.push(format!(
                    "ceiling of {a} to {b}{}: {}{} ({})",
                    if both { ", both directions at once" } else { "" },
                    units::bytes_per_second(known.of[0].bytes_per_second),
                    match both {
                        true =>
                            format!(" and {} back", units::bytes_per_second(known.of[1].bytes_per_second)),
                        false => String::new(),
                    },
                    known.of[0].what,
                ));
            }
        }
        Some(rate / known.of[usize::from(back)].bytes_per_second)
    }

    /// Says once that a path is not awaited as asked.
    fn note_completion(&mut self, path: Path, asked: Completion, used: Completion) {
        let note =
            format!("{path} is measured by {used}, not {asked}: the CPU copies, and is busy until the end");
        if asked != used && !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    fn one_way(&mut self, way: Way, delivered: Option<bool>) -> ControlFlow<()> {
        let first = way.row(way.options.largest, None, self.args.completion[0]);
        let opened = (|| {
            let ceiling = self.ceiling(way)?;
            let costs = self.costs(way)?;
            let memory = self.memory(&[way])?;
            Ok((ceiling, memory, self.route(way, costs.clone())?, costs))
        })();
        let (mut ceiling, Memory { mut buffers, sizes, refused }, mut route, costs) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(first, error),
        };
        for (row, error) in refused {
            self.failed(row, error)?;
        }
        for size in sizes {
            let mut measured = Vec::new();
            for &asked in &self.args.completion {
                let path = route.path_for(size as u64);
                let completion = route.await_by_for(size as u64, asked);
                self.note_completion(path, asked, completion);
                if measured.contains(&completion) {
                    continue;
                }
                measured.push(completion);
                let (a, b) = (way.from.endpoint(), way.to.endpoint());
                progress(&format!("{a} to {b}, {}, {completion}", units::bytes(size as u64)));
                let mut row = way.row(size, Some(path), completion);
                if let Some(delivered) = delivered {
                    let end = if delivered { "delivered" } else { "issued" };
                    row.parameters.insert("end".into(), end.into());
                }
                match self.figures(&mut route, &mut buffers[0], size, completion) {
                    Ok((measured, single)) => {
                        let mut row = with(row, &measured);
                        row.latency_ns = single.and_then(|single| single.latency_ns);
                        let rate = measured.bytes_per_second.median;
                        row.share_of_ceiling = self.share(way, path, &mut ceiling, false, rate);
                        if let Some(predicted) = route.predicted_ns(size as u64) {
                            row.parameters.insert("predicted us".into(), format!("{:.2}", predicted / 1e3));
                        }
                        self.report.results.push(row);
                    }
                    Err(error) => {
                        self.failed(row, error)?;
                        // What is left of it may not work any more.
                        drop(route);
                        route = match self.route(way, costs.clone()) {
                            Ok(route) => route,
                            Err(error) => return self.failed(first, error),
                        };
                    }
                }
            }
        }
        progress("");
        ControlFlow::Continue(())
    }

    /// Measures one size as asked: the figures of its row, and those of one transfer at a time.
    fn figures(
        &self,
        route: &mut Route,
        buffers: &mut Buffers,
        size: usize,
        completion: Completion,
    ) -> Result<(Measured, Option<Measured>)> {
        let plan = Plan { completion, ..self.plan.clone() };
        let what = self.args.measure;
        let single = if what == What::Stream { None } else { Some(latency(route, buffers, size, &plan)?) };
        // With one in flight, which may be all that a path has, a stream is what the latency run measured.
        let alone =
            what == What::Latency || self.args.window == Some(1) || route.is_synchronous_for(size as u64);
        match single {
            Some(single) if alone => Ok((single.clone(), Some(single))),
            single => Ok((stream(route, buffers, size, &plan)?, single)),
        }
    }

    fn both_ways(&mut self, way: Way) -> ControlFlow<()> {
        let first = way.row(way.options.largest, None, self.args.completion[0]);
        let back = Way { from: way.to, to: way.from, ..way };
        let opened = (|| {
            let ceilings = self.ceiling(way)?;
            let costs = self.costs(way)?;
            let memory = self.memory(&[way, back])?;
            Ok((ceilings, memory, self.two_routes(way, back, costs.clone())?, costs))
        })();
        let (mut ceilings, Memory { mut buffers, sizes, refused }, mut routes, costs) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(first, error),
        };
        for (row, error) in refused {
            self.failed(row, error)?;
        }
        for size in sizes {
            let mut measured = Vec::new();
            for &asked in &self.args.completion {
                let (mut rows, mut paths) = (Vec::new(), Vec::new());
                for (way, route) in [way, back].iter().zip(&mut routes) {
                    let path = route.path_for(size as u64);
                    let completion = route.await_by_for(size as u64, asked);
                    self.note_completion(path, asked, completion);
                    let mut row = way.row(size, Some(path), completion);
                    row.parameters.insert("direction".into(), "both at once".into());
                    rows.push(row);
                    paths.push(path);
                }
                let used = [rows[0].completion, rows[1].completion];
                if measured.contains(&used) {
                    continue;
                }
                measured.push(used);
                progress(&format!("both ways, {}, {asked}", units::bytes(size as u64)));
                let plan = Plan { completion: asked, ..self.plan.clone() };
                let runs: Vec<(&mut dyn Mover, &mut Buffers)> =
                    routes.iter_mut().map(|route| route as &mut dyn Mover).zip(&mut buffers).collect();
                match together(runs, size, &plan) {
                    Ok(measured) => {
                        for (index, (row, measured)) in rows.into_iter().zip(&measured).enumerate() {
                            let mut row = with(row, measured);
                            let rate = measured.bytes_per_second.median;
                            row.share_of_ceiling =
                                self.share(way, paths[index], &mut ceilings, index == 1, rate);
                            self.report.results.push(row);
                        }
                    }
                    Err(error) => {
                        self.failed(rows.swap_remove(0), error)?;
                        drop(routes);
                        routes = match self.two_routes(way, back, costs.clone()) {
                            Ok(routes) => routes,
                            Err(error) => return self.failed(first, error),
                        };
                    }
                }
            }
        }
        progress("");
        ControlFlow::Continue(())
    }

    /// A route each way. The way back is opened while nothing runs: a resident route begins at its first transfer. By the same
    /// costs, which are those of both ways at once: two paths that differ would take from each other.
    fn two_routes(&mut self, way: Way, back: Way, costs: Option<Costs>) -> Result<[Route; 2]> {
        let forth = self.route(way, costs)?;
        let costs = forth.costs().cloned();
        let back = Route::open(back.from, back.to, back.choice, back.options, costs)?;
        Ok([forth, back])
    }
}

/// A line on stderr that is overwritten; on a terminal only.
fn progress(text: &str) {
    use std::io::{IsTerminal, Write};
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}
