//! Writes a command's result: text to standard output; JSON, CSV and a figure to files.

use crate::fields::flag;
use inlane_core::units::counted;
use inlane_ports::pcap::same_file;
use inlane_report::OutputTarget;
use inlane_result::{Document, Start};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// Returns a note if repeats of a row lie far from the others.
fn outliers<T: Serialize>(document: &Document<T>) -> Option<String> {
    let rows: Vec<_> = document.results.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    let found = inlane_report::figures::outliers(&document.command.name, &rows);
    let first = found.first()?;
    let cells = first.identity.iter().map(|cell| format!("{} {}", cell.name, cell.value));
    let row: Vec<String> = cells.chain([first.figure.clone()]).collect();
    let (outlier, median) = (first.outlier, first.median);
    let others = match found.len() - 1 {
        0 => String::new(),
        others => format!(", and {}", counted(others as u64, "other figure")),
    };
    Some(format!(
        "repeats lie far from the others: {}: {outlier}, median {median}{others}; other programs or the start may have disturbed \
         them, so measure again or with more {}",
        row.join(", "),
        flag("repeats")
    ))
}

/// The outputs of a command. They are opened before the command runs, and written after it.
pub struct Output {
    json: Option<OutputTarget>,
    csv: Option<OutputTarget>,
    svg: Option<OutputTarget>,
    text: bool,
    start: Start,
}

impl Output {
    /// Opens the output files. Call this before the run: an output that cannot be written then fails before
    /// the measurement. Also starts the clock for the command's duration. If `json` or `csv` is `-`, that
    /// output goes to standard output and replaces the text.
    ///
    /// # Errors
    /// If a file cannot be opened for writing, or two outputs name the same file.
    pub fn open(json: Option<&str>, csv: Option<&Path>, svg: Option<&Path>) -> anyhow::Result<Self> {
        let is_stdout = |file: &Path| file.as_os_str() == "-";
        let (json_to_stdout, csv_to_stdout) = (json == Some("-"), csv.is_some_and(is_stdout));
        if json_to_stdout && csv_to_stdout {
            let why =
                format!("it is the output of both {} and {}; name two files", flag("json"), flag("csv"));
            return Err(inlane_core::Error::invalid("standard output", why).into());
        }
        let texts = json.map(Path::new).into_iter().chain(csv).filter(|file| !is_stdout(file));
        let files: Vec<&Path> = texts.chain(svg).collect();
        for (index, file) in files.iter().enumerate() {
            if files[..index].iter().any(|earlier| same_file(file, earlier)) {
                let why = "two outputs would go to this file; name two files";
                return Err(inlane_core::Error::invalid(file.display().to_string(), why).into());
            }
        }
        Ok(Self {
            json: json.map(OutputTarget::open).transpose()?,
            csv: csv
                .map(|file| if csv_to_stdout { OutputTarget::open("-") } else { OutputTarget::file(file) })
                .transpose()?,
            svg: svg.map(OutputTarget::file).transpose()?,
            text: !json_to_stdout && !csv_to_stdout,
            start: Start::now(),
        })
    }

    /// Stores the start and the duration of the command in `document`, then writes the outputs. Writes the
    /// text first, so the user sees it even if a file cannot be written.
    ///
    /// # Errors
    /// If an output cannot be written. If no row has a value that the figure shows.
    pub fn write<T: Serialize>(
        self,
        document: &mut Document<T>,
        text: impl FnOnce(&mut dyn Write, &Document<T>) -> io::Result<()>,
        figure: impl FnOnce(&Document<T>) -> Option<String>,
    ) -> anyhow::Result<()> {
        document.notes.extend(outliers(document));
        document.finish(self.start);
        if self.text {
            crate::print(|out| text(out, document))?;
        }
        if let Some(json) = self.json {
            json.json(document)?;
        }
        if let Some(csv) = self.csv {
            csv.text(&inlane_report::csv(&document.results)?)?;
        }
        if let Some(svg) = self.svg {
            match figure(document) {
                Some(figure) => svg.text(&figure)?,
                None => anyhow::bail!(
                    "{}: no file was written, because no row has a value that the figure shows",
                    flag("svg")
                ),
            }
        }
        Ok(())
    }
}
