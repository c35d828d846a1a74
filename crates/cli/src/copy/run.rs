//! What `inlane copy` does: opens, calibrates, measures, reports.

use super::{Copy, Direction, What};
use inlane_copy::cost::{Cache, Costs};
use inlane_copy::measure::{Buffers, Measured, Plan, latency, stream, together};
use inlane_copy::stop::check_stop;
use inlane_copy::{Choice, Device, Endpoint, Options, Path, Route, ceiling, experiment};
use inlane_core::mover::Mover;
use inlane_core::result::{Ceiling, Document, Path as Explanation, TransferResult, Verification};
use inlane_core::{Completion, Error, units};
use inlane_report::{Line, Plot, Scale};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

type Report = Document<TransferResult>;

impl Copy {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// What the devices, the verification or the output say.
    pub fn run(&self) -> anyhow::Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The second ends the process at once.
            signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
            signal_hook::flag::register(signal, stop.clone())?;
        }
        let plan = Plan {
            repeats: self.repeats,
            time: self.time,
            warm_up: self.warm_up,
            window: self.window,
            completion: Completion::Poll,
            stop,
        };
        let mut report = if self.published {
            self.published(&plan)?
        } else if self.matrix {
            self.matrix(&plan)?
        } else {
            self.pair(&plan)?
        };
        let bytes = report.results.iter().map(|result| result.verified_bytes).sum();
        report.verification = Some(Verification {
            method: "every byte a run wrote, against the pattern sent; destinations poisoned before".into(),
            checked: bytes,
            ..Verification::default()
        });
        if report.results.iter().any(|result| result.verified_bytes == 0) {
            report.notes.push(
                "not verified where 'verified' is 0: the destination may not be read (--allow-bar-read)"
                    .into(),
            );
        }
        self.write(&report)
    }

    fn write(&self, report: &Report) -> anyhow::Result<()> {
        if let Some(target) = &self.json {
            inlane_report::json(target, report)?;
        }
        if self.json.as_deref() != Some("-") {
            let text = inlane_report::transfers(report);
            crate::print(|out| out.write_all(text.as_bytes()))?;
        }
        if let Some(path) = &self.svg {
            match plot(report).svg() {
                Some(svg) => std::fs::write(path, svg)
                    .map_err(|source| Error::Os { what: format!("writing {}", path.display()), source })?,
                None => eprintln!("inlane: nothing to draw: no bandwidth was measured"),
            }
        }
        Ok(())
    }

    fn pair(&self, plan: &Plan) -> anyhow::Result<Report> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            return Err(Error::invalid("--from and --to", "give both").into());
        };
        let devices = inlane_copy::open(&[from.clone(), to.clone(), Endpoint::Host], &self.permission())?;
        let (from, to, host) = (&devices[0], &devices[1], &devices[2]);
        let mut report = Report::new("copy", Explanation::default());
        describe(&mut report, &devices[..2]);
        report.notes.extend(unequal_links(from, to));
        let mut cache = Cache::load();
        let options = Options { stop: plan.stop.clone(), ..self.options()? };
        let mut bench = Bench { args: self, plan, report: &mut report, cache: &mut cache, host };
        for delivered in bench.ends(from, to) {
            let options = Options { delivered: delivered == Some(true), ..options.clone() };
            for choice in self.choices() {
                bench.compare(from, to, choice, &options, delivered)?;
            }
        }
        Ok(report)
    }

    fn matrix(&self, plan: &Plan) -> anyhow::Result<Report> {
        let mut endpoints = self.devices.clone();
        if endpoints.is_empty() {
            endpoints.push(Endpoint::Host);
            match inlane_cuda::device_count() {
                Ok(count) if count > 0 => endpoints.extend((0..count).map(Endpoint::Gpu)),
                _ => endpoints.extend([0, 1].map(Endpoint::Twin)),
            }
        }
        let mut all = endpoints.clone();
        all.push(Endpoint::Host);
        let mut devices = inlane_copy::open(&all, &self.permission())?;
        let host = devices.pop().expect("the host was opened last");
        let mut report = Report::new("copy", Explanation::default());
        describe(&mut report, &devices);
        let mut cache = Cache::load();
        let options = Options { stop: plan.stop.clone(), ..self.options()? };
        let mut bench = Bench { args: self, plan, report: &mut report, cache: &mut cache, host: &host };
        for from in &devices {
            for to in &devices {
                if from.endpoint() == to.endpoint() && *from.endpoint() != Endpoint::Host {
                    continue;
                }
                for choice in self.choices() {
                    bench.compare(from, to, choice, &options, None)?;
                }
            }
        }
        report.path = Explanation {
            hops: vec!["each pair by the path named in its line".into()],
            reason: "a matrix".into(),
            not_taken: Vec::new(),
        };
        Ok(report)
    }

    fn published(&self, plan: &Plan) -> anyhow::Result<Report> {
        let mut report = Report::new("copy", Explanation::default());
        report.twin = true;
        report.devices = [0, 1].map(|slot| inlane_twin::Costs::published(slot).name).into();
        report.path.hops = vec!["each line's own".into()];
        report.path.reason =
            "the published experiment, on models that have the published rates of single legs".into();
        report.notes.push(
            "published figures are in MiB/s (2^20); what the legs predict for device to device differs from what was published: \
             24.33 is more than the BAR write leg allows, 1988 more than two DMA legs and a copy in turn"
                .into(),
        );
        for line in experiment::run(16 << 20, plan)? {
            let mut result = transfer(
                &line.from,
                &line.to,
                line.size,
                &line.path.to_string(),
                plan.completion,
                &line.measured,
            );
            let mib = |rate: f64| format!("{:.2}", rate / 1048576.0);
            let mut note = |name: &str, value: Option<String>| {
                result.parameters.insert(name.into(), value.unwrap_or_else(|| "-".into()));
            };
            // The best repeat: a model has no noise of its own, and this machine's is not the model's.
            let best = line.measured.latency_ns.map(|latency| line.size as f64 / latency.min * 1e9);
            note("model MiB/s", best.map(mib));
            note("legs predict MiB/s", line.predicted.map(mib));
            note("published MiB/s", line.published_mib.map(|rate| format!("{rate:.2}")));
            report.results.push(result);
        }
        Ok(report)
    }
}

fn describe(report: &mut Report, devices: &[Arc<Device>]) {
    report.devices = devices.iter().map(|device| device.describe()).collect();
    report.devices.dedup();
    report.twin = devices.iter().any(|device| device.endpoint().is_twin());
}

/// What to know of two devices whose links differ.
fn unequal_links(from: &Device, to: &Device) -> Option<String> {
    let (a, b) = (from.link()?, to.link()?);
    let (slower, faster) = if a.1 < b.1 { ((from, a), (to, b)) } else { ((to, b), (from, a)) };
    (slower.1.1 < faster.1.1).then(|| {
        format!(
            "links differ: {} of {}, {} of {}; the slower bounds every path between them",
            slower.1.0,
            slower.0.endpoint(),
            faster.1.0,
            faster.0.endpoint()
        )
    })
}

/// Measures pairs into a report.
struct Bench<'a> {
    args: &'a Copy,
    plan: &'a Plan,
    report: &'a mut Report,
    cache: &'a mut Cache,
    host: &'a Arc<Device>,
}

impl Bench<'_> {
    /// For stores to a BAR, issued and delivered where it may be read; else the one end there is.
    fn ends(&self, from: &Device, to: &Device) -> Vec<Option<bool>> {
        match (from.endpoint(), to.endpoint()) {
            (Endpoint::Host, Endpoint::Bar(_)) if to.is_verifiable() => vec![Some(false), Some(true)],
            (Endpoint::Host, Endpoint::Bar(_)) => vec![Some(false)],
            _ => vec![None],
        }
    }

    fn compare(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
        delivered: Option<bool>,
    ) -> anyhow::Result<()> {
        let direction = self.args.direction;
        let forward = matches!(direction, Direction::Forward | Direction::All);
        let backward = matches!(direction, Direction::Backward | Direction::All);
        let both = matches!(direction, Direction::Both | Direction::All);
        if forward {
            self.one_way(from, to, choice, options, delivered)?;
        }
        if backward {
            self.one_way(to, from, choice, options, delivered)?;
        }
        if both {
            self.both_ways(from, to, choice, options)?;
        }
        Ok(())
    }

    /// What the paths cost, where that is known or `choice` needs it. Before the run's own memory is allocated: a BAR has no more.
    fn costs(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
    ) -> anyhow::Result<Option<Costs>> {
        let kept = self.cache.get(from, to, options).filter(|_| !self.args.calibrate).cloned();
        let chosen_by_cost = match choice {
            Choice::Auto => true,
            Choice::Prefer(path) => !Path::candidates(from.endpoint(), to.endpoint()).contains(&path),
            Choice::Require(_) => false,
        };
        if kept.is_some() || !chosen_by_cost {
            return Ok(kept);
        }
        progress(&format!("{} to {}, calibration", from.endpoint(), to.endpoint()));
        let costs = Costs::calibrate(from, to, options)?;
        self.cache.put(from, to, options, costs.clone());
        Ok(Some(costs))
    }

    /// Opens a route. Its memory must be there already: kernels that stay on a GPU would hold allocation up.
    fn route(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
        costs: Option<Costs>,
    ) -> anyhow::Result<Route> {
        let (a, b) = (from.endpoint(), to.endpoint());
        let route = Route::open(from, to, choice, options, costs)?;
        if let Some(fallback) = route.fallback() {
            eprintln!(
                "inlane: {a} to {b}: {fallback}; going on with {}",
                route.path_for(options.largest as u64)
            );
        }
        Ok(route)
    }

    fn buffers(&self, from: &Arc<Device>, to: &Arc<Device>, options: &Options) -> anyhow::Result<Buffers> {
        // Zeroing hundreds of megabytes takes its time.
        check_stop(&self.plan.stop)?;
        Ok(Buffers::new(from, to, options.largest, self.args.rotate)?)
    }

    fn ceiling(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        both: bool,
    ) -> anyhow::Result<Option<[f64; 2]>> {
        if self.args.no_ceiling {
            return Ok(None);
        }
        let Some(ceilings) = ceiling::measure(from, to, self.host, both, self.plan)? else { return Ok(None) };
        if self.report.ceiling.is_none() {
            self.report.ceiling = Some(Ceiling {
                what: ceilings[0].what.clone(),
                bytes_per_second: Some(ceilings[0].bytes_per_second),
                packets_per_second: None,
            });
        } else {
            self.report.notes.push(format!(
                "ceiling of {} to {}{}: {} and {} back ({})",
                from.endpoint(),
                to.endpoint(),
                if both { ", both directions at once" } else { "" },
                units::bytes_per_second(ceilings[0].bytes_per_second),
                units::bytes_per_second(ceilings[1].bytes_per_second),
                ceilings[0].what,
            ));
        }
        Ok(Some(ceilings.map(|ceiling| ceiling.bytes_per_second)))
    }

    fn one_way(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
        delivered: Option<bool>,
    ) -> anyhow::Result<()> {
        let ceiling = self.ceiling(from, to, false)?.map(|ceiling| ceiling[0]);
        let costs = self.costs(from, to, choice, options)?;
        let mut buffers = self.buffers(from, to, options)?;
        let mut route = self.route(from, to, choice, options, costs)?;
        self.report.path = route.explain(options.largest as u64);
        self.report.twin |= route.is_twin();
        for &size in &self.args.sizes.0 {
            for &completion in &self.args.completion {
                let plan = Plan { completion, ..self.plan.clone() };
                progress(&format!(
                    "{} to {}, {}, {completion}",
                    from.endpoint(),
                    to.endpoint(),
                    units::bytes(size as u64)
                ));
                let path = route.path_for(size as u64);
                let single = match self.args.measure {
                    What::Stream => None,
                    _ => Some(latency(&mut route, &mut buffers, size, &plan)?),
                };
                // A path that ends with the call has one transfer in flight however many are asked for; a window of one is
                // what the latency run measured.
                let streamed = match (self.args.measure, self.args.window, &single) {
                    (What::Latency, ..) | (What::All, Some(1), Some(_)) => single.clone(),
                    _ => Some(stream(&mut route, &mut buffers, size, &plan)?),
                };
                let Some(measured) = streamed.or(single.clone()) else { continue };
                let mut result =
                    transfer(from.endpoint(), to.endpoint(), size, &path.to_string(), completion, &measured);
                result.latency_ns = single.as_ref().and_then(|single| single.latency_ns);
                result.share_of_ceiling = ceiling.map(|ceiling| measured.bytes_per_second.median / ceiling);
                if let Some(predicted) = route.predicted_ns(size as u64) {
                    result.parameters.insert("predicted us".into(), format!("{:.2}", predicted / 1e3));
                }
                if let Some(delivered) = delivered {
                    let end = if delivered { "delivered" } else { "issued" };
                    result.parameters.insert("end".into(), end.into());
                }
                self.report.results.push(result);
            }
        }
        progress("");
        Ok(())
    }

    fn both_ways(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        choice: Choice,
        options: &Options,
    ) -> anyhow::Result<()> {
        let ceilings = self.ceiling(from, to, true)?;
        let options = &Options { both_ways: true, ..options.clone() };
        let costs = self.costs(from, to, choice, options)?;
        let mut forth_buffers = self.buffers(from, to, options)?;
        let mut back_buffers = self.buffers(to, from, options)?;
        // The way back is opened while nothing runs: a resident route begins at its first transfer.
        let mut forth = self.route(from, to, choice, options, costs)?;
        // By the same costs, which are those of both ways at once: two paths that differ would take from each other.
        let mut back = Route::open(to, from, choice, options, forth.costs().cloned())?;
        self.report.path = forth.explain(options.largest as u64);
        for &size in &self.args.sizes.0 {
            for &completion in &self.args.completion {
                let plan = Plan { completion, ..self.plan.clone() };
                progress(&format!("both ways, {}, {completion}", units::bytes(size as u64)));
                let paths = [forth.path_for(size as u64), back.path_for(size as u64)];
                let runs: Vec<(&mut dyn Mover, &mut Buffers)> =
                    vec![(&mut forth, &mut forth_buffers), (&mut back, &mut back_buffers)];
                let measured = together(runs, size, &plan)?;
                for (way, measured) in measured.iter().enumerate() {
                    let (a, b) = if way == 0 { (from, to) } else { (to, from) };
                    let path: Path = paths[way];
                    let mut result =
                        transfer(a.endpoint(), b.endpoint(), size, &path.to_string(), completion, measured);
                    result.parameters.insert("direction".into(), "both at once".into());
                    result.share_of_ceiling =
                        ceilings.map(|ceilings| measured.bytes_per_second.median / ceilings[way]);
                    self.report.results.push(result);
                }
            }
        }
        progress("");
        Ok(())
    }
}

fn transfer(
    from: &Endpoint,
    to: &Endpoint,
    size: usize,
    path: &str,
    completion: Completion,
    measured: &Measured,
) -> TransferResult {
    let parameters: BTreeMap<String, String> = [
        ("window".to_string(), measured.window.to_string()),
        ("CPU".to_string(), format!("{:.1}%", measured.cpu_share * 100.0)),
    ]
    .into();
    TransferResult {
        from: from.to_string(),
        to: to.to_string(),
        parameters,
        size_bytes: size as u64,
        path: path.into(),
        completion,
        latency_ns: measured.latency_ns,
        bytes_per_second: Some(measured.bytes_per_second),
        operations_per_second: None,
        share_of_ceiling: None,
        cpu_seconds_per_gigabyte: Some(measured.cpu_seconds_per_gigabyte),
        mover_cpu_seconds_per_gigabyte: None,
        verified_bytes: measured.verified_bytes,
    }
}

/// A line on stderr that is overwritten; on a terminal only.
fn progress(text: &str) {
    use std::io::IsTerminal;
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
    }
}

fn plot(report: &Report) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for result in &report.results {
        let Some(rate) = result.bytes_per_second else { continue };
        let direction =
            result.parameters.get("direction").map(|text| format!(", {text}")).unwrap_or_default();
        let name =
            format!("{} to {}, {}, {}{direction}", result.from, result.to, result.path, result.completion);
        let point = (result.size_bytes as f64, rate.median / 1e9);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point], dashed: Vec::new() }),
        }
    }
    Plot {
        title: if report.twin { "A model's bandwidth".into() } else { "Bandwidth".into() },
        x: "transfer, bytes".into(),
        y: "GB/s".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Linear,
        lines,
    }
}
