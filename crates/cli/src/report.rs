//! `inlane report`: one page about several results, as HTML, Markdown or CSV.

use crate::fields::flag;
use crate::schema::{Schema, SchemaArgs};
use crate::stored;
use inlane_core::Error;
use inlane_ports::pcap::same_file;
use inlane_report::OutputTarget;
use inlane_report::page::{Stored, markdown, page, rows_as_csv};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  inlane report result.json -o report.html            a page to read, print or send
  inlane report runs/ other.json -o report.html       several results, also all of a folder
  inlane report result.json -o report.md              Markdown, for a page of documentation
  inlane report runs/ -o table.csv                    the rows of all results

The page is one file without scripts. It loads nothing from the network, and contains the results.

Exit status: 0 done; 1 the page cannot be written; 2 wrong usage or a file that is no result;
3 a file is missing.";

/// Writes a page about results: verdict, path, figures against ceilings, latencies, machine and command
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// The results: files that --json wrote, or folders of them
    #[arg(value_name = "RESULT", required_unless_present = "schema")]
    results: Vec<PathBuf>,
    /// The file to write. Its name ends in .html, .md or .csv
    #[arg(long, short, value_name = "FILE", required_unless_present = "schema")]
    output: Option<PathBuf>,
    /// The earlier way to print a schema; 'inlane schema' does it
    #[arg(long, value_enum, value_name = "DOCUMENT", hide = true, conflicts_with_all = ["results", "output"])]
    schema: Option<Schema>,
}

/// The format of a report.
#[derive(Clone, Copy)]
enum Format {
    Html,
    Markdown,
    Csv,
}

impl Format {
    /// Returns the format that the end of a file's name selects.
    fn of(file: &Path) -> Result<Self, Error> {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("html" | "htm") => Ok(Self::Html),
            Some("md") => Ok(Self::Markdown),
            Some("csv") => Ok(Self::Csv),
            _ => {
                let why = "its name selects the format; let it end in .html, .md or .csv";
                Err(Error::invalid(flag("output").with(file.display()), why))
            }
        }
    }
}

impl ReportArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If a file is no result, or the page cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        if let Some(schema) = self.schema {
            return SchemaArgs::from(schema).run();
        }
        let Some(file) = self.output else { return Ok(()) };
        let format = Format::of(&file)?;
        let mut results = Vec::new();
        for path in &self.results {
            results.extend(stored::named(path)?.into_iter().map(|(file, document)| {
                let command = stored::command(&document);
                Stored { file, command, document }
            }));
        }
        if self.results.iter().any(|input| same_file(input, &file)) {
            let why = "it is one of the results, which the report would overwrite; name another file";
            return Err(Error::invalid(flag("output").with(file.display()), why).into());
        }
        let target = OutputTarget::file(&file)?;
        target.text(&match format {
            Format::Html => page(&results),
            Format::Markdown => markdown(&results),
            Format::Csv => rows_as_csv(&results)?,
        })?;
        Ok(())
    }
}
