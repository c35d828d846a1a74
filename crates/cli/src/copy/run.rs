//! Runs `inlane copy`: measures the transfers, and writes the result.

use super::Copy;
use crate::devices::gpu_count;
use crate::output::Output;
use crate::settings::Origin;
use crate::signal;
use anyhow::Context;
use inlane_copy::Endpoint;
use inlane_copy::measure::{Event, Session, Transfers};
use inlane_copy::result::TransferResult;
use inlane_core::{Error, units};
use inlane_report::{Line, Plot, Point, Scale};
use inlane_result::Document;
use std::sync::atomic::Ordering;

/// The result document of `inlane copy`: one row for each measurement.
type TransferReport = Document<TransferResult>;

impl Copy {
    /// Runs the subcommand. `origins` lists the flags that a settings file or an environment variable set.
    ///
    /// # Errors
    /// If the flags are wrong, a device fails, bytes arrive altered, or the result cannot be written.
    pub fn run(&self, origins: &[Origin]) -> anyhow::Result<()> {
        let mut notes = Vec::new();
        let config = self.config(self.transfers(&mut notes)?)?;
        config.check()?;
        self.check_effects(&config.transfers.pairs(), origins)?;
        if let (true, Transfers::Between { from, to }) = (self.list, &config.transfers) {
            return self.list_paths(from, to, &config.options);
        }
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), self.svg.as_deref())?;
        let stop = config.plan.stop.clone();
        signal::on_signal(move |signal, before| match before {
            0 => stop.store(true, Ordering::Relaxed),
            _ => signal::end_by(signal),
        })
        .context("cannot handle SIGINT and SIGTERM")?;
        let mut report = TransferReport::new("copy");
        let measured = Session { watch: Box::new(show), ..Session::default() }.measure(&config)?;
        (report.results, report.devices, report.twin) = (measured.results, measured.devices, measured.twin);
        report.notes = notes.into_iter().chain(measured.notes.iter().map(ToString::to_string)).collect();
        output.write(
            &mut report,
            |out, report| out.write_all(inlane_report::text(report).as_bytes()),
            |report| inlane_report::figure(&[plot(report)], &report.source()),
        )?;
        measured.failure.map_or(Ok(()), |failure| Err(anyhow::anyhow!(failure.to_string())))
    }

    /// Returns the transfers that the flags select. Adds a note if it replaces missing devices.
    fn transfers(&self, notes: &mut Vec<String>) -> Result<Transfers, Error> {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => Ok(Transfers::Between { from: from.clone(), to: to.clone() }),
            _ if self.published => Ok(Transfers::Published),
            _ if self.matrix => self.devices_of_matrix(notes).map(Transfers::Matrix),
            _ => {
                let why = "give --from and --to, --matrix or --published; 'inlane copy --help' has examples";
                Err(Error::invalid("no endpoint is named", why))
            }
        }
    }

    /// Returns the devices in `--devices`. Without this flag, returns the host and all GPUs. If this machine
    /// has no GPU, returns the host and two twins instead.
    fn devices_of_matrix(&self, notes: &mut Vec<String>) -> Result<Vec<Endpoint>, Error> {
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
                    notes.push(note.into());
                    endpoints.extend([0, 1].map(Endpoint::Twin));
                }
                count => endpoints.extend((0..count).map(Endpoint::Gpu)),
            }
        }
        Ok(endpoints)
    }
}

/// Prints the step that begins to standard error if it is a terminal, and warnings in any case.
fn show(event: Event<'_>) {
    match event {
        Event::Begins(route, step) => progress(&format!("{route}, {step}")),
        Event::Ended => progress(""),
        Event::Replaced { route, requested, why, taken } => crate::print_to_stderr(format_args!(
            "inlane: warning: {route}: {requested} was requested but cannot be used: {why}; inlane takes {taken} instead"
        )),
        Event::LeftOut { size, error } => {
            crate::print_to_stderr(format_args!("inlane: {}: {error}", units::bytes(size as u64)));
        }
        _ => {}
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

fn plot(report: &TransferReport) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for result in &report.results {
        let Some(rate) = &result.bytes_per_second else { continue };
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
