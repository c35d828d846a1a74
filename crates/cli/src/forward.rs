//! `inlane forward`: runs pipelines and reports their results.

mod args;
mod configure;
mod figure;
mod live;
mod options;
mod outputs;
mod sweep;

use crate::output::Output;
use anyhow::Context;
use args::OutputArgs;
use inlane_core::result::{Document, Verification};
use inlane_forward::config::{Config, Route};
use inlane_forward::control::{Control, ProgressSnapshot};
use inlane_forward::experiment::{self, Ceilings, Goal};
use inlane_forward::result::{PacketResult, Quantity};
use inlane_forward::{run, verify};
use inlane_ports::spec::{Kind, PortSpec};
use live::Live;
use options::Choice;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use args::Forward;

impl Forward {
    /// Runs the subcommand. `arguments` is the command line. A sweep parses the command line again for each
    /// point.
    ///
    /// # Errors
    /// If the flags are wrong, the run fails, or the result cannot be written.
    pub fn run(&self, arguments: &[OsString]) -> anyhow::Result<()> {
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
        let series = sweep::Sweep::new(self, arguments)?;
        if self.output.svg.is_some() {
            series.axis().ok_or_else(nothing_to_draw)?;
        }
        if self.output.interval.is_some() && !series.is_plain() {
            let why = "a series prints a line after each run instead; leave it out";
            return Err(inlane_core::Error::invalid("--interval", why).into());
        }
        let control = Arc::new(Control::default());
        crate::signal::stop_on_signal(&control).context("cannot watch for Ctrl-C")?;
        // A capture may be written to standard output. The result then goes to standard error instead.
        let sends_to_stdout = sends_to_stdout(&config);
        outputs::check(self, &config.route, arguments)?;
        let OutputArgs { json, csv, svg, interval } = &self.output;
        let output = Output::open(json.as_deref(), csv.as_deref(), svg.as_deref())?;
        let mut live = Live::new(*interval);
        let (mut document, failure) = if series.is_plain() {
            let mut watch = |elapsed: Duration, reading: ProgressSnapshot| live.show(elapsed, reading);
            let (document, failure) = self.measure(&control, &mut Ceilings::default(), &mut watch)?;
            (document, failure.map(anyhow::Error::from))
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

    /// Measures with one set of flags. This takes one run, or several runs at different offered rates for
    /// `--zero-loss` and `--load`.
    fn measure(
        &self,
        control: &Arc<Control>,
        ceilings: &mut Ceilings,
        watch: &mut dyn FnMut(Duration, ProgressSnapshot),
    ) -> anyhow::Result<(Document<PacketResult>, Option<inlane_forward::Error>)> {
        let config = self.config()?;
        if self.experiment.zero_loss || self.experiment.load.is_some() {
            let loads = self.experiment.load.as_deref().unwrap_or(&[]);
            return Ok(experiment::against_load(&config, loads, control, ceilings, watch)?);
        }
        self.once(&config, control, ceilings, watch)
    }

    /// Runs once. Chooses the method for `auto`, measures the baseline, and explains the result.
    fn once(
        &self,
        config: &Config,
        control: &Control,
        ceilings: &mut Ceilings,
        watch: &mut dyn FnMut(Duration, ProgressSnapshot),
    ) -> anyhow::Result<(Document<PacketResult>, Option<inlane_forward::Error>)> {
        let (mut chosen, mut reason) = (config.clone(), None);
        if matches!(self.function.method, Choice::Auto) {
            let goal = self.function.max_latency.map_or(Goal::Throughput, Goal::Latency);
            let (taken, why) = experiment::choose(config, goal, control)?;
            (chosen, reason) = (taken, Some(why));
        }
        let config = &chosen;
        let baseline =
            || (!self.experiment.no_baseline).then(|| experiment::baseline(config, control)).flatten();
        // If the run's ports need privileges, measure the baseline after the run, because measuring the
        // baseline may make the process drop its privileges.
        let needs_privileges = config.drops_needed_privileges();
        let before = (!needs_privileges).then(baseline).flatten();
        let mut outcome = run::run(config, control, watch)?;
        let baseline = before.or_else(|| needs_privileges.then(baseline).flatten());
        if let Some(why) = reason {
            outcome.result.path.reason = why;
            if outcome.result.parameters.get("flush").is_none() {
                outcome.result.parameters.set("flush", Quantity::Time(0.0));
            }
        }
        outcome.result.ceiling = ceilings.of(config, outcome.link_bits_per_second, &outcome.result);
        outcome.result.limit = experiment::limit(config, &outcome);
        let mut document = Document::new("forward");
        document.devices = outcome.devices;
        document.twin = outcome.twin;
        document.notes.extend(outcome.notes);
        document.notes.extend(ceilings.round_trip_note(config));
        outcome.result.baseline = baseline;
        if outcome.result.verification.is_none() && !control.stopping() {
            outcome.result.verification = verify::captures(config)?;
        }
        let mut failure = outcome.errors.into_iter().next();
        // Do not count a closed pipe as a failure. Standard output is often a pipe to a program that reads
        // only the first packets.
        if sends_to_stdout(config) && failure.as_ref().is_some_and(closed_by_reader) {
            document.notes.push("the reader of standard output closed the pipe, which ended the run".into());
            failure = None;
        }
        document.notes.extend(experiment::missed_rate(config, &outcome.result));
        if outcome.result.rx.packets == 0 && config.faults.is_none() && failure.is_none() {
            document.notes.extend(why_no_packets(config));
        }
        let wrong = |found: &&Verification| found.failed() || found.received_nothing();
        if let Some(verification) = outcome.result.verification.as_ref().filter(wrong) {
            failure.get_or_insert(inlane_forward::Error::Verification(describe(verification)));
        }
        if outcome.result.leaked_buffers > 0 {
            let leaked = outcome.result.leaked_buffers;
            failure.get_or_insert(inlane_forward::Error::Leaked { buffers: leaked });
        }
        document.results.push(outcome.result);
        Ok((document, failure))
    }
}

/// Returns a note for a run that received no packets, if its source may have been empty. Only a capture, or a
/// ring without `prime=`, can be empty. Returns `None` for all other sources.
fn why_no_packets(config: &Config) -> Option<String> {
    let rx = config.route.source()?;
    match rx.kind() {
        Kind::Capture => Some(format!("no packet was received from {rx}")),
        Kind::Ring if !rx.starts_with_packets() => {
            Some(format!("no packet was received from {rx}; add prime=N to start with N packets in the ring"))
        }
        _ => None,
    }
}

/// Returns true if packets are written to standard output.
fn sends_to_stdout(config: &Config) -> bool {
    let sends =
        matches!(&config.route, Route::OneWay { tx, .. } if tx.iter().any(PortSpec::is_standard_stream));
    sends || config.capture.as_deref() == Some(Path::new("-"))
}

/// Returns true if the run ended because the reader of a capture closed the pipe.
fn closed_by_reader(error: &inlane_forward::Error) -> bool {
    matches!(error, inlane_forward::Error::Core(error) if inlane_ports::pcap::is_closed_by_reader(error))
}

fn nothing_to_draw() -> inlane_core::Error {
    inlane_core::Error::invalid(
        "--svg",
        "it needs a number to draw against; add --load, or --sweep with burst, size, rate or another number",
    )
}

fn describe(verification: &Verification) -> String {
    if verification.received_nothing() && !verification.failed() {
        return format!(
            "no packet was received ({}); see whether the sender runs, is connected, and sends before the run ends",
            verification.method
        );
    }
    let Verification { checked, lost, duplicated, reordered, altered, method, .. } = verification;
    let counts = [(altered, "altered"), (lost, "lost"), (duplicated, "duplicated"), (reordered, "reordered")];
    let counts = counts.iter().filter(|(count, _)| **count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    let example = verification.altered_example.as_ref().map(|example| format!(": for example, {example}"));
    let remedy = match (*altered, *lost, verification.expected) {
        (1.., _, None) => "give check the options of the other run's gen, and check the packet function",
        (1.., ..) => "check the packet function, and look at the packets with --capture FILE",
        (_, lost, _) if lost > duplicated + reordered => {
            "offer fewer packets with --rate, or find the cause in the result's counters"
        }
        _ => "check the connection between the ports",
    };
    format!(
        "{}, with {checked} packets checked ({method}){}; {remedy}",
        counts.join(", "),
        example.unwrap_or_default()
    )
}
