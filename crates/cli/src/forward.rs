//! `inlane forward`: runs pipelines and reports their results.

mod args;
mod configure;
mod figure;
mod live;
mod options;
mod outputs;
mod sweep;

use crate::fields;
use crate::output::Output;
use crate::settings::Settings;
use anyhow::Context;
use args::OutputArgs;
use inlane_forward::control::Control;
use inlane_forward::experiment::{Goal, Watch, sends_to_stdout};
use inlane_forward::result::PacketResult;
use inlane_forward::run::Reading;
use inlane_forward::{MeasureOptions, Session};
use inlane_result::Document;
use live::Live;
use options::MethodChoice;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use args::Forward;

impl Forward {
    /// Runs the subcommand. `settings` says which flags are set, and where.
    ///
    /// # Errors
    /// If the flags are wrong, the run fails, or the result cannot be written.
    pub fn run(&self, settings: &Settings) -> anyhow::Result<()> {
        if self.function.list_functions {
            return crate::print(|out| {
                for function in inlane_forward::functions() {
                    writeln!(out, "{:<16} {}", function.name, function.about)?;
                    if !function.syntax.is_empty() {
                        writeln!(out, "{:<16} {}", "", function.syntax)?;
                    }
                }
                Ok(())
            });
        }
        let config = self.config()?;
        let series = sweep::Sweep::new(self, &settings.given)?;
        if self.output.svg.is_some() {
            series.axis().ok_or_else(nothing_to_draw)?;
        }
        if self.output.interval.is_some() && !series.is_plain() {
            let why = "a series prints a line after each run instead; leave it out";
            return Err(inlane_core::Error::invalid(fields::flag("interval"), why).into());
        }
        if self.output.metrics.is_some() && !series.is_plain() {
            let why = "a series has several runs, whose counters begin again; leave it out";
            return Err(inlane_core::Error::invalid(fields::flag("metrics"), why).into());
        }
        let control = Arc::new(Control::default());
        control.set_on_stuck(end_stuck);
        crate::signal::stop_on_signal(&control).context("cannot watch for Ctrl-C")?;
        // A capture may be written to standard output. The result then goes to standard error instead.
        let sends_to_stdout = sends_to_stdout(&config);
        outputs::check(self, &config.route, settings.file.as_deref())?;
        let OutputArgs { json, csv, svg, interval, metrics } = &self.output;
        let output = Output::open(json.as_deref(), csv.as_deref(), svg.as_deref())?;
        let mut live = Live::new(*interval, json.is_some());
        let newest = Arc::new(Mutex::new(Reading::default()));
        if let Some(address) = *metrics {
            let shown = newest.clone();
            crate::metrics::serve(address, move || Ok(crate::metrics::forward_page(&locked(&shown))))?;
        }
        let (mut document, failure) = if series.is_plain() {
            let watch: Watch = Box::new(|elapsed, reading| {
                live.show(elapsed, reading);
                locked(&newest).clone_from(reading);
            });
            let mut session = Session { control: control.clone(), watch, ..Session::default() };
            let found = session.measure(&config, &self.measure_options())?;
            let mut document = Document::new("forward");
            document.devices = found.devices;
            document.twin = found.twin;
            document.notes = found.notes.iter().map(ToString::to_string).collect();
            document.results = found.results;
            (document, found.failure.map(anyhow::Error::from))
        } else {
            series.run(&control)?
        };
        live.end();
        let show = |out: &mut dyn Write, document: &Document<PacketResult>| {
            let text = inlane_report::text(document);
            if sends_to_stdout {
                crate::print_to_stderr(text.trim_end());
                return Ok(());
            }
            out.write_all(text.as_bytes())
        };
        let figure =
            |document: &Document<PacketResult>| figure::svg(document, series.axis()?, &series.line_keys());
        output.write(&mut document, show, figure)?;
        failure.map_or(Ok(()), Err)
    }

    /// Returns what to measure, besides one run: several runs at different offered rates for `--zero-loss` and `--load`.
    fn measure_options(&self) -> MeasureOptions {
        let searches = self.experiment.zero_loss || self.experiment.load.is_some();
        MeasureOptions {
            goal: matches!(self.function.method, MethodChoice::Auto)
                .then(|| self.function.max_latency.map_or(Goal::Throughput, Goal::Latency)),
            loads: searches.then(|| self.experiment.load.clone().unwrap_or_default()),
            baseline: !self.experiment.no_baseline,
        }
    }
}

/// Returns the newest reading. A thread that panicked while it held the lock left a whole one.
fn locked(reading: &Mutex<Reading>) -> MutexGuard<'_, Reading> {
    reading.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process, because a packet function that never returns keeps its thread for ever.
fn end_stuck(error: inlane_forward::Error) {
    inlane_report::remove_fresh();
    let status = crate::exit::report(&error.into(), &Settings::default());
    // SAFETY: the call only ends the process. Handlers of a normal exit could wait for the stuck thread.
    unsafe { libc::_exit(status.into()) }
}

fn nothing_to_draw() -> inlane_core::Error {
    inlane_core::Error::invalid(
        fields::flag("svg"),
        "it needs a number to draw against; add --load, or --sweep with burst, size, rate or another number",
    )
}
