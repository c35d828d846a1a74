//! What `inlane copy` does: opens, has pairs measured, and writes what was found.

use super::bench::{Bench, Failures};
use super::rows::{Report, row, with};
use super::{Copy, Direction, What};
use crate::output::Output;
use crate::signal;
use anyhow::Context;
use inlane_copy::measure::Plan;
use inlane_copy::stop::check_stop;
use inlane_copy::{Device, Endpoint, PathOptions, published};
use inlane_core::error::Class;
use inlane_core::result::{Path as Explanation, Verification};
use inlane_core::{CompletionMode, Error};
use inlane_cuda::Error as CudaError;
use inlane_report::{Line, Plot, Scale};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Copy {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// What the devices, the verification or the output say.
    pub fn run(&self) -> anyhow::Result<()> {
        if self.measure == What::Latency && matches!(self.direction, Direction::Both | Direction::All) {
            let why = "both directions at once are measured streaming; give --measure stream or all";
            return Err(Error::invalid("--measure latency", why).into());
        }
        let options = self.options()?;
        let output = Output::open(self.json.as_deref(), None, self.svg.as_deref())?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        signal::on_signal(move |signal, before| match before {
            0 => told.store(true, Ordering::Relaxed),
            _ => signal::end_by(signal),
        })
        .context("cannot watch for Ctrl-C")?;
        let plan = Plan {
            repeats: self.repeats,
            time: self.time,
            warm_up: self.warm_up,
            window: self.window,
            completion: CompletionMode::Poll,
            stop,
        };
        let options = PathOptions { stop: plan.stop.clone(), ..options };
        let mut report = Report::new("copy", Explanation::default());
        let mut failures = Failures::default();
        if self.published {
            published_experiment(&plan, &mut report, &mut failures)?;
        } else if self.matrix {
            self.matrix(&plan, &options, &mut report, &mut failures)?;
        } else {
            self.pair(&plan, &options, &mut report, &mut failures)?;
        }
        let measured = report.results.iter().filter(|result| result.error.is_none()).count();
        let failure = outcome(&plan, measured, failures, &mut report)?;
        output.write(
            &mut report,
            |out, report| out.write_all(inlane_report::text(report).as_bytes()),
            |report| plot(report).svg(),
        )?;
        failure.map_or(Ok(()), |failure| Err(anyhow::anyhow!(failure)))
    }

    fn open(&self, endpoints: &[Endpoint]) -> Result<Vec<Arc<Device>>, Error> {
        inlane_copy::open(endpoints, &self.permission()).map_err(|error| match error {
            Error::Device { device, why, class: Class::Environment }
                if endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Gpu(_)))
                    && gpus().is_ok_and(|count| count == 0) =>
            {
                Error::device_environment(
                    device,
                    format!("{why}; without a GPU, twin:0 is a model of an accelerator"),
                )
            }
            other => other,
        })
    }

    fn pair(
        &self,
        plan: &Plan,
        options: &PathOptions,
        report: &mut Report,
        failures: &mut Failures,
    ) -> Result<(), Error> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            return Err(Error::invalid("--from and --to", "give both"));
        };
        let devices = self.open(&[from.clone(), to.clone(), Endpoint::Host])?;
        let (from, to, host) = (&devices[0], &devices[1], &devices[2]);
        describe(report, &devices[..2]);
        report.notes.extend(unequal_links(from, to));
        let mut bench = Bench::new(self, plan, report, failures, host);
        for delivered in bench.ends(from, to) {
            let options = PathOptions { delivered: delivered == Some(true), ..options.clone() };
            for choice in self.choices() {
                if bench.compare(from, to, choice, &options, delivered).is_break() {
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
        report: &mut Report,
        failures: &mut Failures,
    ) -> Result<(), Error> {
        let mut endpoints = self.devices_of_matrix(report)?;
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
        report.path = Explanation {
            hops: vec!["each pair by the path named in its line".into()],
            reason: "a matrix".into(),
            ..Explanation::default()
        };
        Ok(())
    }

    fn devices_of_matrix(&self, report: &mut Report) -> Result<Vec<Endpoint>, Error> {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for endpoint in &self.devices {
            if !endpoints.contains(endpoint) {
                endpoints.push(endpoint.clone());
            }
        }
        if endpoints.is_empty() {
            endpoints.push(Endpoint::Host);
            match gpus()? {
                0 => {
                    let note = "there is no GPU: the matrix is of the host and two models, twin:0 and twin:1";
                    crate::say(format_args!("inlane: {note}"));
                    report.notes.push(note.into());
                    endpoints.extend([0, 1].map(Endpoint::Twin));
                }
                count => endpoints.extend((0..count).map(Endpoint::Gpu)),
            }
        }
        if let [only] = &endpoints[..]
            && !is_pair(only, only)
        {
            let why = "is one device, and has no other to copy to; name two or more, host among them";
            return Err(Error::invalid(format!("--devices {only}"), why));
        }
        Ok(endpoints)
    }
}

/// How many GPUs there are; what is wrong with a driver that does not say.
fn gpus() -> Result<u32, Error> {
    // CUDA_ERROR_NO_DEVICE.
    const NO_DEVICE: u32 = 100;
    match inlane_cuda::device_count() {
        Ok(count) => Ok(count),
        Err(CudaError::NoDriver | CudaError::Call { code: NO_DEVICE, .. }) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// A matrix has this pair: from one device to another, and from host memory to host memory.
fn is_pair(from: &Endpoint, to: &Endpoint) -> bool {
    from != to || *from == Endpoint::Host
}

fn published_experiment(plan: &Plan, report: &mut Report, failures: &mut Failures) -> Result<(), Error> {
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
    let ended = published::run(16 << 20, plan, |line| {
        let blank = row(&line.from, &line.to, line.size, &line.path.to_string(), plan.completion);
        let mut result = with(blank, &line.measured);
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
    });
    if let Err(error) = ended
        && !plan.stop.load(Ordering::Relaxed)
    {
        failures.count += 1;
        failures.first = Some(error);
    }
    Ok(())
}

/// Notes what a run came to, and gives what it failed with beside the figures that it has.
///
/// # Errors
/// What it failed with when it has no figure.
fn outcome(
    plan: &Plan,
    measured: usize,
    failures: Failures,
    report: &mut Report,
) -> Result<Option<String>, Error> {
    let Failures { count, first, altered } = failures;
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
        None if stopped => Some(format!("interrupted after {measured} measurements")),
        None => None,
    };
    if stopped {
        report.notes.push(
            "interrupted: the measurement that was cut short, and those behind it, are left out".into(),
        );
    }
    let figures = || report.results.iter().filter(|result| result.error.is_none());
    let unverified = figures().any(|result| result.verified_bytes == 0);
    report.verification = Some(Verification {
        method: "every byte a run wrote, against the pattern sent; destinations poisoned before".into(),
        checked: figures().map(|result| result.verified_bytes).sum(),
        altered,
        ..Verification::default()
    });
    if unverified {
        let note = "not verified where 'verified' is 0: the destination may not be read (--allow-bar-read)";
        report.notes.push(note.into());
    }
    Ok(failure)
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
