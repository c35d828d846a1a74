//! Measuring pairs of devices into a report: what fails is noted in its row, and the next is measured.

use super::rows::{Report, row, with};
use super::{Copy, Direction, What};
use inlane_copy::cost::{Cache, Costs};
use inlane_copy::measure::{Buffers, Measurement, Plan, latency, stream, together};
use inlane_copy::stop::check_stop;
use inlane_copy::{Device, Endpoint, Path, PathChoice, PathOptions, PathSelector, ceiling};
use inlane_core::mover::Mover;
use inlane_core::result::{Ceiling, TransferResult};
use inlane_core::{CompletionMode, Error, Result, units};
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
    args: &'a Copy,
    plan: &'a Plan,
    report: &'a mut Report,
    failures: &'a mut Failures,
    host: &'a Arc<Device>,
    cache: Cache,
    ceilings: ceiling::Ceilings,
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
    choice: PathChoice,
    options: &'a PathOptions,
}

impl std::fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let both = if self.options.both_ways { ", both directions at once" } else { "" };
        write!(f, "{} to {}{both}", self.from.endpoint(), self.to.endpoint())
    }
}

impl Way<'_> {
    /// A row without figures.
    fn row(&self, size: usize, path: Option<Path>, completion: CompletionMode) -> TransferResult {
        let path = path.map_or_else(
            || match self.choice {
                PathChoice::Auto => "auto".into(),
                PathChoice::Prefer(path) | PathChoice::Require(path) => path.to_string(),
            },
            |path| path.to_string(),
        );
        row(self.from.endpoint(), self.to.endpoint(), size, &path, completion)
    }
}

impl<'a> Bench<'a> {
    /// Over no pair yet, with the costs that are kept of this machine.
    pub fn new(
        args: &'a Copy,
        plan: &'a Plan,
        report: &'a mut Report,
        failures: &'a mut Failures,
        host: &'a Arc<Device>,
    ) -> Self {
        let (cache, ceilings) = (Cache::load(), ceiling::Ceilings::default());
        Self { args, plan, report, failures, host, cache, ceilings }
    }

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
        choice: PathChoice,
        options: &PathOptions,
        delivered: Option<bool>,
    ) -> ControlFlow<()> {
        let direction = self.args.direction;
        let forth = Way { from, to, choice, options };
        if matches!(direction, Direction::Forward | Direction::All) {
            self.measure(&[forth], delivered)?;
        }
        if matches!(direction, Direction::Backward | Direction::All) {
            self.measure(&[Way { from: to, to: from, ..forth }], delivered)?;
        }
        if matches!(direction, Direction::Both | Direction::All) {
            let options = &PathOptions { both_ways: true, ..options.clone() };
            let (forth, back) = (Way { options, ..forth }, Way { from: to, to: from, options, ..forth });
            self.measure(&[forth, back], delivered)?;
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
            PathChoice::Auto => true,
            PathChoice::Prefer(path) => !Path::candidates(a, b).contains(&path),
            PathChoice::Require(_) => false,
        };
        if kept.is_some() || !chosen_by_cost {
            return Ok(kept);
        }
        progress(&format!("{way}, calibration"));
        let costs = Costs::calibrate(way.from, way.to, way.options)?;
        self.cache.put(way.from, way.to, way.options, costs.clone());
        Ok(Some(costs))
    }

    /// Opens a route. Its memory must be there already: kernels that stay on a GPU would hold allocation up.
    fn route(&mut self, way: Way, costs: Option<Costs>) -> Result<PathSelector> {
        let route = PathSelector::open(way.from, way.to, way.choice, way.options, costs)?;
        let largest = way.options.largest as u64;
        if let Some(fallback) = route.fallback() {
            let (a, b) = (way.from.endpoint(), way.to.endpoint());
            let path = route.path_for(largest);
            crate::say(format_args!("inlane: {a} to {b}: {fallback}; going on with {path}"));
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
            matches!(way.choice, PathChoice::Require(path) if ceiling::none_for(path, a, b).is_some());
        if self.args.no_ceiling || other_way {
            return Ok(None);
        }
        progress(&format!("{way}, ceiling"));
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
        index: usize,
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
                self.report.notes.push(format!(
                    "ceiling of {way}: {}{} ({})",
                    units::bytes_per_second(known.of[0].bytes_per_second),
                    match way.options.both_ways {
                        true =>
                            format!(" and {} back", units::bytes_per_second(known.of[1].bytes_per_second)),
                        false => String::new(),
                    },
                    known.of[0].what,
                ));
            }
        }
        Some(rate / known.of[index].bytes_per_second)
    }

    /// Says once that a path is not awaited as asked.
    fn note_completion(&mut self, path: Path, asked: CompletionMode, used: CompletionMode) {
        let note =
            format!("{path} is measured by {used}, not {asked}: the CPU copies, and is busy until the end");
        if asked != used && !self.report.notes.contains(&note) {
            self.report.notes.push(note);
        }
    }

    /// Measures one direction, or two at once, by size and completion.
    fn measure(&mut self, ways: &[Way], delivered: Option<bool>) -> ControlFlow<()> {
        let way = ways[0];
        let first = way.row(way.options.largest, None, self.args.completion[0]);
        let opened = (|| {
            let ceiling = self.ceiling(way)?;
            let costs = self.costs(way)?;
            let memory = self.memory(ways)?;
            Ok((ceiling, memory, self.routes(ways, costs.clone())?, costs))
        })();
        let (mut ceiling, Memory { mut buffers, sizes, refused }, mut routes, costs) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(first, error),
        };
        for (row, error) in refused {
            self.failed(row, error)?;
        }
        for size in sizes {
            let mut measured = Vec::new();
            for &asked in &self.args.completion {
                let mut rows = Vec::new();
                for (way, route) in ways.iter().zip(&mut routes) {
                    let path = route.path_for(size as u64);
                    let completion = route.set_completion_mode_for(size as u64, asked);
                    self.note_completion(path, asked, completion);
                    let mut row = way.row(size, Some(path), completion);
                    if way.options.both_ways {
                        row.parameters.insert("direction".into(), "both at once".into());
                    } else if let Some(delivered) = delivered {
                        let end = if delivered { "delivered" } else { "issued" };
                        row.parameters.insert("end".into(), end.into());
                    }
                    rows.push(row);
                }
                let used: Vec<_> = rows.iter().map(|row| row.completion).collect();
                if measured.contains(&used) {
                    continue;
                }
                measured.push(used);
                progress(&format!("{way}, {}, {asked}", units::bytes(size as u64)));
                match self.figures(&mut routes, &mut buffers, size, asked) {
                    Ok(figures) => {
                        for (index, (row, measured)) in rows.into_iter().zip(&figures).enumerate() {
                            let mut row = with(row, measured);
                            let (route, rate) = (&routes[index], measured.bytes_per_second.median);
                            let path = route.path_for(size as u64);
                            row.share_of_ceiling = self.share(way, path, &mut ceiling, index, rate);
                            let predicted = route.predicted_ns(size as u64);
                            if let Some(predicted) = predicted.filter(|_| !way.options.both_ways) {
                                let text = format!("{:.2}", predicted / 1e3);
                                row.parameters.insert("predicted us".into(), text);
                            }
                            self.report.results.push(row);
                        }
                    }
                    Err(error) => {
                        self.failed(rows.swap_remove(0), error)?;
                        // What is left of them may not work any more.
                        drop(routes);
                        routes = match self.routes(ways, costs.clone()) {
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

    /// Measures one size as asked, by each route.
    fn figures(
        &self,
        routes: &mut [PathSelector],
        buffers: &mut [Buffers],
        size: usize,
        completion: CompletionMode,
    ) -> Result<Vec<Measurement>> {
        let plan = Plan { completion, ..self.plan.clone() };
        let ([route], [buffers]) = (&mut *routes, &mut *buffers) else {
            let movers = routes.iter_mut().map(|route| route as &mut dyn Mover);
            return together(movers.zip(buffers).collect(), size, &plan);
        };
        let what = self.args.measure;
        let single = if what == What::Stream { None } else { Some(latency(route, buffers, size, &plan)?) };
        // With one in flight, which may be all that a path has, a stream is what the latency run measured.
        let alone =
            what == What::Latency || self.args.window == Some(1) || route.is_synchronous_for(size as u64);
        Ok(vec![match single {
            Some(single) if alone => single,
            single => {
                let latency_ns = single.and_then(|single| single.latency_ns);
                Measurement { latency_ns, ..stream(route, buffers, size, &plan)? }
            }
        }])
    }

    /// A route each way. The way back is opened while nothing runs: a resident route begins at its first transfer. By the same
    /// costs, which are those of both ways at once: two paths that differ would take from each other.
    fn routes(&mut self, ways: &[Way], costs: Option<Costs>) -> Result<Vec<PathSelector>> {
        let mut routes = vec![self.route(ways[0], costs)?];
        for back in &ways[1..] {
            let costs = routes[0].costs().cloned();
            routes.push(PathSelector::open(back.from, back.to, back.choice, back.options, costs)?);
        }
        Ok(routes)
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
