//! Runs `inlane copy`: opens the endpoints, measures the pairs, and writes the result.

use super::bench::{Bench, Failures, TransferReport};
use super::{Copy, Direction, Measured};
use crate::devices::gpu_count;
use crate::exit::NotReady;
use crate::output::Output;
use crate::settings::Origin;
use crate::signal;
use anyhow::Context;
use inlane_copy::measure::Plan;
use inlane_copy::result::{PublishedRates, TransferResult};
use inlane_copy::stop::check_stop;
use inlane_copy::{Because, Device, Endpoint, PathOptions, PathTaken, published};
use inlane_core::error::Class;
use inlane_core::{CompletionMode, Error, units};
use inlane_report::{Line, Plot, Point, Scale};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Copy {
    /// Runs the subcommand. `origins` lists the flags that a settings file or an environment variable set.
    ///
    /// # Errors
    /// If the flags are wrong, a device fails, bytes arrive altered, or the result cannot be written.
    pub fn run(&self, origins: &[Origin]) -> anyhow::Result<()> {
        if self.measure == Measured::Latency && matches!(self.direction, Direction::Both | Direction::All) {
            let why = "both directions at once are streamed; give --measure stream or all";
            return Err(Error::invalid("--measure latency", why).into());
        }
        let options = self.options()?;
        if let (Some(from), Some(to)) = (&self.from, &self.to) {
            self.check_effects(&[(from, to)], origins)?;
        }
        if let (true, Some(from), Some(to)) = (self.list, &self.from, &self.to) {
            return self.list_paths(from, to, &options);
        }
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), self.svg.as_deref())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stop_flag = stop.clone();
        signal::on_signal(move |signal, before| match before {
            0 => stop_flag.store(true, Ordering::Relaxed),
            _ => signal::end_by(signal),
        })
        .context("cannot handle SIGINT and SIGTERM")?;
        let plan = Plan {
            repeats: self.repeats,
            time: self.duration,
            warm_up: self.warm_up,
            in_flight: self.in_flight,
            completion: CompletionMode::Poll,
            stop,
        };
        let options = PathOptions { stop: plan.stop.clone(), ..options };
        let mut report = TransferReport::new("copy");
        let mut failures = Failures::default();
        if self.published {
            published_experiment(&plan, &mut report, &mut failures);
        } else if self.matrix {
            self.matrix(&plan, &options, origins, &mut report, &mut failures)?;
        } else {
            self.pair(&plan, &options, &mut report, &mut failures)?;
        }
        let measured = report.results.iter().filter(|result| result.error.is_none()).count();
        let failure = failure_of(&plan, measured, failures, &mut report)?;
        output.write(
            &mut report,
            |out, report| out.write_all(inlane_report::text(report).as_bytes()),
            |report| inlane_report::figure(&[plot(report)], &report.source()),
        )?;
        failure.map_or(Ok(()), |failure| Err(anyhow::anyhow!(failure)))
    }

    /// Opens endpoints. If the flags name a GPU and the machine has none, the error suggests the twin.
    pub(super) fn open(&self, endpoints: &[Endpoint]) -> Result<Vec<Arc<Device>>, Error> {
        inlane_copy::open(endpoints, &self.permission()).map_err(|error| {
            let no_gpu = error.class() == Class::Environment
                && endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Gpu(_)))
                && gpu_count().is_ok_and(|count| count == 0);
            match no_gpu {
                true => Error::other(
                    NotReady(format!("{error}; without a GPU, use twin:0, a model of an accelerator")),
                    Class::Environment,
                ),
                false => error,
            }
        })
    }

    fn pair(
        &self,
        plan: &Plan,
        options: &PathOptions,
        report: &mut TransferReport,
        failures: &mut Failures,
    ) -> Result<(), Error> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            let why = "give --from and --to, --matrix or --published; 'inlane copy --help' has examples";
            return Err(Error::invalid("no endpoint is named", why));
        };
        let devices = self.open(&[from.clone(), to.clone(), Endpoint::Host])?;
        let (from, to, host) = (&devices[0], &devices[1], &devices[2]);
        describe(report, &devices[..2]);
        report.notes.extend(unequal_links(from, to));
        let mut bench = Bench::new(self, plan, report, failures, host);
        for store_end in bench.store_ends(from, to) {
            for choice in self.choices() {
                if bench.compare(from, to, choice, options, store_end).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn matrix(
        &self,
        plan: &Plan,
        options: &PathOptions,
        origins: &[Origin],
        report: &mut TransferReport,
        failures: &mut Failures,
    ) -> Result<(), Error> {
        let mut endpoints = self.devices_of_matrix(report)?;
        let pairs = endpoints.iter().flat_map(|from| endpoints.iter().map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| is_pair(from, to)).collect::<Vec<_>>();
        self.check_effects(&pairs, origins)?;
        endpoints.push(Endpoint::Host);
        let mut devices = self.open(&endpoints)?;
        let host = devices.pop().expect("the host was opened last");
        describe(report, &devices);
        let mut bench = Bench::new(self, plan, report, failures, &host);
        let pairs = devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to)));
        let _ = pairs
            .filter(|(from, to)| is_pair(from.endpoint(), to.endpoint()))
            .flat_map(|pair| self.choices().into_iter().map(move |choice| (pair, choice)))
            .try_for_each(|((from, to), choice)| bench.compare(from, to, choice, options, None));
        Ok(())
    }

    /// Returns the devices in `--devices`. Without this flag, returns the host and all GPUs. If this machine
    /// has no GPU, returns the host and two twins instead.
    fn devices_of_matrix(&self, report: &mut TransferReport) -> Result<Vec<Endpoint>, Error> {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for endpoint in &self.devices {
            if !endpoints.contains(endpoint) {
                endpoints.push(endpoint.clone());
            }
        }
        if endpoints.is_empty() {
            endpoints.push(Endpoint::Host);
            match gpu_count()? {
                0 => {
                    let note = "there is no GPU; the matrix is of the host and two models, twin:0 and twin:1";
                    crate::print_to_stderr(format_args!("inlane: {note}"));
                    report.notes.push(note.into());
                    endpoints.extend([0, 1].map(Endpoint::Twin));
                }
                count => endpoints.extend((0..count).map(Endpoint::Gpu)),
            }
        }
        if let [only] = &endpoints[..]
            && !is_pair(only, only)
        {
            let why = "a matrix needs two devices; name another one, such as host";
            return Err(Error::invalid(format!("--devices {only}"), why));
        }
        Ok(endpoints)
    }
}

/// Returns true if a matrix measures this pair: two different devices, or host memory to host memory.
fn is_pair(from: &Endpoint, to: &Endpoint) -> bool {
    from != to || *from == Endpoint::Host
}

/// Repeats the experiment of the paper that `--published` names. Twins take the place of the accelerators.
/// The experiment ends at the first failed transfer.
fn published_experiment(plan: &Plan, report: &mut TransferReport, failures: &mut Failures) {
    report.twin = true;
    report.devices = [0, 1].map(|slot| inlane_twin::Costs::published(slot).name).into();
    report.notes.push("MiB/s is 2^20 bytes per second, as published".into());
    report.notes.push(
        "the published device-to-device rates do not follow from the published rates of their stages: 24.33 MiB/s exceeds the \
         rate of BAR writes, and 1988 MiB/s that of two DMA transfers and a copy in turn"
            .into(),
    );
    let ended = published::run(16 << 20, plan, |line| {
        let row = TransferResult::new(&line.from, &line.to, line.size, plan.completion);
        let mut row = row.with(&line.measured);
        row.path = Some(PathTaken {
            name: line.path,
            hops: vec![line.hops],
            reason: Because::Published,
            not_taken: Vec::new(),
        });
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
        report.results.push(row);
    });
    if let Err(error) = ended
        && !plan.stop.load(Ordering::Relaxed)
    {
        failures.count += 1;
        failures.first = Some(error);
    }
}

/// Adds notes on how the run ended. Returns a description of the failure if some measurements failed or were
/// interrupted, and others succeeded.
///
/// # Errors
/// The first failure, if no measurement succeeded. Also if the run was interrupted before any result.
fn failure_of(
    plan: &Plan,
    measured: usize,
    failures: Failures,
    report: &mut TransferReport,
) -> Result<Option<String>, Error> {
    let Failures { count, first } = failures;
    let stopped = plan.stop.load(Ordering::Relaxed);
    let failure = match first {
        Some(error) if measured == 0 => return Err(error),
        Some(error) => {
            Some(format!("{count} of {} measurements failed; the first: {error}", measured + count))
        }
        None if measured == 0 => {
            check_stop(&plan.stop)?;
            None
        }
        None if stopped => {
            Some(format!("interrupted after {}", units::counted(measured as u64, "measurement")))
        }
        None => None,
    };
    if stopped {
        report
            .notes
            .push("interrupted; the measurement under way and the remaining ones are left out".into());
    }
    let unverified =
        |result: &TransferResult| result.error.is_none() && result.verification.verified_bytes == 0;
    if report.results.iter().any(unverified) {
        let note = "rows with 0 verified bytes were not checked: the destination must not be read (--allow-bar-read)";
        report.notes.push(note.into());
    }
    Ok(failure)
}

/// Adds the run's devices to the report.
fn describe(report: &mut TransferReport, devices: &[Arc<Device>]) {
    report.devices = devices.iter().map(|device| device.describe()).collect();
    report.devices.dedup();
    report.twin = devices.iter().any(|device| device.endpoint().is_twin());
}

/// Returns a note if the PCIe links of two devices have different rates.
fn unequal_links(from: &Device, to: &Device) -> Option<String> {
    let (a, b) = (from.link()?, to.link()?);
    let (slower, faster) = if a.1 < b.1 { ((from, a), (to, b)) } else { ((to, b), (from, a)) };
    (slower.1.1 < faster.1.1).then(|| {
        format!(
            "links differ: {} of {}, {} of {}; the slower one bounds every path between them",
            slower.1.0,
            slower.0.endpoint(),
            faster.1.0,
            faster.0.endpoint()
        )
    })
}

fn plot(report: &TransferReport) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for result in &report.results {
        let Some(rate) = result.bytes_per_second else { continue };
        let direction = if result.both_directions { ", both at once" } else { "" };
        let stores = result.store_end.map(|end| format!(", {end}")).unwrap_or_default();
        let panel = format!("{} to {}, {}{direction}{stores}", result.from, result.to, result.completion);
        let (x, y) = (result.size_bytes as f64, rate.median / 1e9);
        let point = Point { x, y, spread: Some((rate.min / 1e9, rate.max / 1e9)) };
        let name = result.path_name();
        let index = lines.iter().position(|line| line.name == name && line.panel == panel);
        let index = index.unwrap_or_else(|| {
            lines.push(Line::new(&name, panel));
            lines.len() - 1
        });
        lines[index].points.push(point);
        let ceiling = result.ceiling.as_ref().and_then(|ceiling| ceiling.bytes_per_second);
        lines[index].ceiling.extend(ceiling.map(|rate| (x, rate / 1e9)));
    }
    Plot {
        title: if report.twin { "Bandwidth of a model".into() } else { "Bandwidth".into() },
        x: "transfer size, bytes".into(),
        y: "GB/s".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Linear,
        lines,
    }
}
