//! `--sweep` and `--repeats`: runs the same settings with different values of some flags.
//!
//! A point of a sweep is a copy of the settings in which the point's flags are set. So a sweep works for every flag
//! with one value, except the few that [`axis`] refuses. A wrong value gets the flag's own error message
//! before the first run. The error of a failed point is recorded, and the sweep continues.

mod axis;

use super::Forward;
use super::options::MethodChoice;
use crate::fields::flag;
use anyhow::Context;
use axis::{combinations, name};
use inlane_core::stats::{Percentiles, Summary};
use inlane_core::{Error, units};
use inlane_forward::config::{Compete, Config, Device};
use inlane_forward::control::Control;
use inlane_forward::experiment::{Measurement, OFFERED};
use inlane_forward::result::{Note, PacketResult, Repeats};
use inlane_forward::{MeasureOptions, Session};
use inlane_result::{Document, RowError};
use std::sync::Arc;
use std::time::Duration;

/// A point of a sweep: one combination of the swept values, run once per repeat.
struct Point {
    /// The swept flags with this point's values.
    values: Vec<(String, String)>,
    config: Config,
    options: MeasureOptions,
}

impl Point {
    fn name(&self) -> String {
        name(&self.values)
    }
}

/// The points of a sweep and the number of repeats.
pub struct Sweep {
    /// The swept flags.
    keys: Vec<String>,
    /// The points of the sweep. Empty if nothing is swept or repeated.
    points: Vec<Point>,
    repeats: u32,
    warm_up: Duration,
    by_load: bool,
}

impl Sweep {
    /// Creates and checks all points of the sweep. `given` are the names of the flags from which
    /// `forward` was parsed.
    ///
    /// # Errors
    /// If a swept flag is unknown or takes several values, or if a value is not valid for its flag.
    pub fn new(forward: &Forward, given: &[String]) -> anyhow::Result<Self> {
        let keys: Vec<String> = forward.experiment.sweep.iter().map(|axis| axis.key.clone()).collect();
        let by_load = forward.experiment.load.is_some();
        let (repeats, warm_up) = (forward.experiment.repeats, forward.experiment.warm_up);
        let mut series = Self { keys, points: Vec::new(), repeats, warm_up, by_load };
        if series.keys.is_empty() && series.repeats == 1 {
            if !warm_up.is_zero() {
                let why = "it warms up before several runs; add --repeats or --sweep, or leave this flag out";
                return Err(Error::invalid(flag("warm-up"), why).into());
            }
            return Ok(series);
        }
        for (index, key) in series.keys.iter().enumerate() {
            if series.keys[..index].contains(key) {
                let why = "it is swept twice; put all its values in one list";
                return Err(Error::invalid(flag("sweep").with(key), why).into());
            }
        }
        let all =
            |key: &str| forward.experiment.sweep.iter().any(|axis| axis.key == key && axis.values == ["all"]);
        for values in combinations(&forward.experiment.sweep)? {
            let forward = &axis::with(forward, &values, given)?;
            // `all` means all values that the device supports. On the CPU, skip the values that need a GPU.
            let only_gpu = (all("method")
                && matches!(forward.function.method, MethodChoice::Method(m) if !m.is_cpu()))
                || (all("compete") && forward.experiment.compete == Compete::Large);
            if only_gpu && forward.function.on == Device::Cpu {
                continue;
            }
            let config = forward.config().with_context(|| name(&values))?;
            config.check().with_context(|| name(&values))?;
            config.check_repeatable()?;
            series.points.push(Point { values, config, options: forward.measure_options() });
        }
        Ok(series)
    }

    /// Returns true for a single run: nothing is swept or repeated.
    pub fn is_plain(&self) -> bool {
        self.points.is_empty()
    }

    /// Returns the parameter on the x axis of the figure: the offered rate, or the first swept parameter
    /// whose values are numbers.
    pub fn axis(&self) -> Option<&str> {
        if self.by_load {
            return Some(OFFERED);
        }
        let numeric = |key: &&String| {
            let mut values = self.points.iter().flat_map(|point| &point.values).filter(|(k, _)| k == *key);
            values.all(|(key, value)| axis::value(key, value).quantity().is_some())
        };
        self.keys.iter().find(numeric).map(String::as_str)
    }

    /// Returns the swept parameters that are not on the x axis. The figure has one line for each combination
    /// of their values.
    pub fn line_keys(&self) -> Vec<&str> {
        self.keys.iter().map(String::as_str).filter(|&key| Some(key) != self.axis()).collect()
    }

    /// Runs each point once, then each point again, until all repeats are done. Prints a line of progress for
    /// each run. Returns the results and the first failure.
    ///
    /// # Errors
    /// The first error, if no run of any point gave a result.
    pub fn run(
        &self,
        control: &Arc<Control>,
    ) -> anyhow::Result<(Document<PacketResult>, Option<anyhow::Error>)> {
        let mut runs: Vec<Vec<Measurement>> = self.points.iter().map(|_| Vec::new()).collect();
        let mut failed: Vec<Option<RowError>> = self.points.iter().map(|_| None).collect();
        let mut first: Option<RowError> = None;
        let mut session = Session::default();
        // Keep the GPU's context alive between points, because creating one takes long.
        let mut kept_gpus = Vec::new();
        let total = self.points.len() * self.repeats as usize;
        let mut done = 0;
        self.warm_up(&mut session, control);
        'all: for _ in 0..self.repeats {
            for (index, point) in self.points.iter().enumerate() {
                if let Device::Gpu(gpu) = point.config.executor.device()
                    && kept_gpus.is_empty()
                {
                    kept_gpus.extend(crate::devices::hold_gpu(gpu));
                }
                session.control = Arc::new(Control::child_of(control));
                let outcome = session.measure(&point.config, &point.options);
                if control.stopping() {
                    // A signal interrupted this run. Discard the run's result and end the sweep.
                    break 'all;
                }
                done += 1;
                let (found, failure) = match outcome {
                    Ok(mut found) => {
                        let failure = found.failure.take();
                        (Some(found), failure)
                    }
                    Err(error) => (None, Some(error)),
                };
                let failure = failure.map(RowError::new);
                let last = found.as_ref().and_then(|found| found.results.last());
                let summary = match &failure {
                    Some(failure) => failure.to_string(),
                    None => last.map(brief).unwrap_or_default(),
                };
                let name = point.name();
                let colon = if name.is_empty() { "" } else { ": " };
                crate::print_to_stderr(format_args!("[{done}/{total}] {name}{colon}{summary}"));
                if let Some(failure) = failure {
                    first.get_or_insert_with(|| failure.clone());
                    failed[index].get_or_insert(failure);
                }
                runs[index].extend(found);
            }
        }
        if runs.iter().all(Vec::is_empty)
            && let Some(error) = first
        {
            return Err(error.into());
        }
        let failure = first.map(|first| {
            let failures = failed.iter().flatten().count();
            let of = self.points.len();
            anyhow::anyhow!("{failures} of {of} points failed; the first error is: {first}")
        });
        let mut document = self.document(runs, failed);
        if done < total {
            document.notes.push(format!(
                "a signal ended the sweep after {done} of {total} runs; the interrupted run is left out"
            ));
        }
        Ok((document, failure))
    }

    /// Runs each point once, and discards the results. The measured runs report the errors of points that fail.
    fn warm_up(&self, session: &mut Session, control: &Arc<Control>) {
        for point in self.points.iter().filter(|_| !self.warm_up.is_zero()) {
            let mut config = point.config.clone();
            config.duration = Some(self.warm_up);
            session.control = Arc::new(Control::child_of(control));
            let options = MeasureOptions { baseline: false, loads: None, ..point.options.clone() };
            let _ = session.measure(&config, &options);
        }
    }

    fn document(&self, runs: Vec<Vec<Measurement>>, failed: Vec<Option<RowError>>) -> Document<PacketResult> {
        let mut document = Document::new("forward");
        for one in runs.iter().flatten() {
            document.twin |= one.twin;
            for device in &one.devices {
                if !document.devices.contains(device) {
                    document.devices.push(device.clone());
                }
            }
        }
        let mut notes: Vec<(Note, Vec<String>)> = Vec::new();
        for ((point, found), error) in self.points.iter().zip(runs).zip(failed) {
            let mut by_index: Vec<Vec<PacketResult>> = Vec::new();
            for one in found {
                for note in one.notes {
                    match notes.iter_mut().find(|(known, _)| *known == note) {
                        Some((_, of)) => of.push(point.name()),
                        None => notes.push((note, vec![point.name()])),
                    }
                }
                for (index, result) in one.results.into_iter().enumerate() {
                    by_index.resize_with(by_index.len().max(index + 1), Vec::new);
                    by_index[index].push(result);
                }
            }
            if by_index.is_empty() && error.is_some() {
                by_index.push(vec![PacketResult::default()]);
            }
            for runs in by_index {
                let mut result = merge(runs);
                for (key, value) in &point.values {
                    result.parameters.set(key, axis::value(key, value));
                }
                result.error = error.clone();
                document.results.push(result);
            }
        }
        document.notes.extend(notes.into_iter().map(|(note, mut of)| {
            of.dedup();
            // If a note applies to several points, show it once and without a name. If it applies to one
            // point, put the point's name before it, unless the sweep has only one point.
            if of.len() > 1 || self.points.len() == 1 {
                note.to_string()
            } else {
                format!("{}: {note}", of[0])
            }
        }));
        document
    }
}

/// Merges the repeats of a point. Returns the run with the median rate. Its field `repeats` has the medians
/// and the spread over all repeats. Its field `verification` is the sum over all repeats.
fn merge(mut runs: Vec<PacketResult>) -> PacketResult {
    let rate = |run: &PacketResult| run.tx.packets_per_second;
    let rates: Vec<f64> = runs.iter().map(rate).collect();
    let latency = |pick: fn(&Percentiles) -> f64| {
        let values: Option<Vec<f64>> = runs.iter().map(|run| run.total_latency().map(pick)).collect();
        Summary::of(&values?)
    };
    let (p50_ns, p99_ns) = (latency(|p| p.p50_ns), latency(|p| p.p99_ns));
    let repeats = Summary::of(&rates)
        .filter(|summary| summary.repeats > 1)
        .map(|packets_per_second| Repeats { packets_per_second, p50_ns, p99_ns });
    let verification = runs.iter().filter_map(|run| run.verification.clone()).reduce(|mut sum, one| {
        sum.add(&one);
        sum
    });
    runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let mut median = runs.swap_remove(runs.len() / 2);
    median.verification = verification;
    median.repeats = repeats;
    median
}

/// Summarises a result for a line of progress.
fn brief(result: &PacketResult) -> String {
    let mut words = vec![
        units::packets_per_second(result.tx.packets_per_second),
        units::bits_per_second(result.tx.bits_per_second),
    ];
    if let Some(latency) = result.total_latency() {
        words.push(format!("p50 {}", units::nanoseconds(latency.p50_ns)));
        words.push(format!("p99 {}", units::nanoseconds(latency.p99_ns)));
    }
    if let Some(competitor) = &result.competitor {
        words.push(format!("the competing job keeps {:.0} % of its speed", competitor.kept * 100.0));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_run_is_kept_with_the_spread_of_all() {
        let run = |rate: f64| {
            let mut result = PacketResult { duration_ns: rate as u64, ..PacketResult::default() };
            result.tx.packets_per_second = rate;
            result
        };
        let merged = merge(vec![run(9.0), run(1.0), run(4.0)]);
        assert_eq!(merged.duration_ns, 4);
        let rates = merged.repeats.unwrap().packets_per_second;
        assert_eq!((rates.median, rates.min, rates.max), (4.0, 1.0, 9.0));
        assert_eq!(rates.values, [9.0, 1.0, 4.0], "repeats keep their order");
        assert!(merge(vec![run(1.0)]).repeats.is_none());
    }
}
