//! `inlane compare`: the same rows of several results side by side, with the change of each figure and a verdict.

use crate::fields::flag;
use crate::output::Output;
use crate::stored;
use inlane_core::Error;
use inlane_core::setting::Choice;
use inlane_core::units;
use inlane_report::OutputTarget;
use inlane_report::compare::{Comparison, Condition, Side, Verdict, compare, failures, summary};
use inlane_result::{Cell, Document};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  inlane compare before.json after.json                   each figure before and after
  inlane compare before.json after.json --fail-on 5%      status 1 if a figure is slower by 5 % or more
  inlane compare old/ new/                                folders with several results of one command each
  inlane compare single.json split.json persistent.json   two results, each with the first

Verdicts:
  faster, slower        the 95 % interval of the change excludes 0, and the change is 1 % or more
  no difference shown   otherwise; a wide interval means that the repeats do not tell
  too few repeats       an interval needs about 4 repeats on each side: measure with --repeats 5
  not comparable        machine, ports or build differ; --across compares them all the same
  missing, failed, wrong  the other result lacks the row, its run failed, or it lost or altered data

The change is the median of the ratios of all pairs of repeats. If a side is one file, its repeats
are those of one start, and differences between starts are not in the interval. If a side is a
folder, the median of each file is a repeat.

Exit status: 0 done; 1 --fail-on found a slower figure, or a row that cannot be judged; 2 wrong
usage or a file that is no result; 3 a file is missing.";

/// Compares results of one command: the change of each figure, with its interval and a verdict
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// The results: files that --json wrote, or folders of them. The first is compared with each of the others
    #[arg(value_name = "RESULT", required = true, num_args = 2..)]
    results: Vec<PathBuf>,
    /// End with status 1 if a figure is slower by this share or more, or if a row cannot be judged
    #[arg(long, value_name = "PERCENT", value_parser = share, allow_negative_numbers = true)]
    fail_on: Option<f64>,
    /// Compare although these conditions differ
    #[arg(long, value_name = "CONDITION,...", value_delimiter = ',', value_parser = crate::values::choice::<Across>())]
    across: Vec<Across>,
    /// Write the comparison as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Write the comparison as CSV to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    csv: Option<PathBuf>,
    /// Write the comparison as Markdown to a file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// The values of `--across`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Across(Condition);

impl Choice for Across {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Across(Condition::Machine), "machine", "Processor, cores, memory, devices, twins"),
        (Across(Condition::Ports), "ports", "Ports or endpoints"),
        (Across(Condition::Build), "build", "A build with and one without optimisation"),
    ];
}

/// Parses a share: `5%` or `5`.
fn share(text: &str) -> Result<f64, Error> {
    let percent = text.trim_end_matches('%').trim().parse::<f64>().ok();
    percent
        .filter(|percent| (0.0..=1000.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| Error::invalid(format!("'{text}'"), "give a percentage from 0% to 1000%, such as 5%"))
}

impl CompareArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If a file is no result, the results are of different commands, or `--fail-on` found a failure.
    pub fn run(&self) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), None)?;
        let markdown = self.markdown.as_deref().map(OutputTarget::file).transpose()?;
        let sides = self.sides()?;
        let across: Vec<Condition> = self.across.iter().map(|across| across.0).collect();
        let mut document = Document::<Comparison>::new("compare");
        document.results = compare(&sides, &across);
        document.notes = notes(&sides);
        document.twin = sides.iter().flat_map(|side| &side.documents).any(|document| document.twin);
        let found = failed(&document.results, self.fail_on);
        let text = format!("{}\n\n{}", summary(&document.results), inlane_report::text(&document));
        output.write(&mut document, |out, _| out.write_all(text.as_bytes()), |_| None)?;
        if let Some(file) = markdown {
            file.text(&self.markdown(&document, &sides))?;
        }
        found.map_or(Ok(()), |message| Err(anyhow::anyhow!(message)))
    }

    fn sides(&self) -> anyhow::Result<Vec<Side>> {
        let read = |path: &PathBuf| {
            let documents = stored::documents(path)?;
            Ok(Side { name: path.display().to_string(), documents })
        };
        let sides = self.results.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        let all = sides.iter().flat_map(|side| side.documents.iter().map(|document| (&side.name, document)));
        let mut commands = all.map(|(name, document)| (name, &document.command.name));
        let Some((first, command)) = commands.next() else { return Ok(sides) };
        if let Some((other, another)) = commands.find(|(_, another)| *another != command) {
            let why = format!(
                "it is a result of 'inlane {another}', and {first} one of 'inlane {command}'; name results of one command"
            );
            return Err(Error::invalid(other, why).into());
        }
        if let Some(side) = sides
            .iter()
            .find(|side| side.documents.iter().all(|one| inlane_report::figures::measured(one).is_empty()))
        {
            let why = format!("a result of 'inlane {command}' has no measured figures; name another result");
            return Err(Error::invalid(&side.name, why).into());
        }
        Ok(sides)
    }

    fn markdown(&self, document: &Document<Comparison>, sides: &[Side]) -> String {
        let mut text = format!("{}\n\n{}\n", summary(&document.results), inlane_report::markdown(document));
        for Cell { name, value } in commands(sides) {
            text.push_str(&format!("- {name}: {value}\n"));
        }
        text
    }
}

/// Returns what a reader must know: the commands that repeat the results, and how far the intervals tell.
fn notes(sides: &[Side]) -> Vec<String> {
    let mut notes: Vec<String> =
        commands(sides).into_iter().map(|Cell { name, value }| format!("{name}: {value}")).collect();
    if sides.iter().any(|side| side.documents.len() == 1) {
        notes.push(
            "the repeats of one file are those of one start; differences between starts are not in the intervals"
                .into(),
        );
    }
    if sides.iter().flat_map(|side| &side.documents).all(|document| !document.command.build.optimised) {
        notes.push("the builds are not optimised, so the figures say little about speed".into());
    }
    notes
}

/// Returns for each side the command that repeats it, and its build.
fn commands(sides: &[Side]) -> Vec<Cell> {
    let described = |side: &Side| {
        let first = side.documents.first()?;
        let files = match side.documents.len() {
            1 => String::new(),
            several => format!("{several} results, "),
        };
        Some(Cell::new(&side.name, format!("{files}{}; {}", stored::command(first), stored::build(first))))
    };
    sides.iter().filter_map(described).collect()
}

/// Returns the message for what `--fail-on` found. `None` if it found nothing, or was not given.
fn failed(comparisons: &[Comparison], fail_on: Option<f64>) -> Option<String> {
    let share = fail_on?;
    let found = failures(comparisons, share);
    let (first, more) = found.split_first()?;
    let what = match first.change.filter(|_| first.verdict == Verdict::Slower) {
        Some(change) => format!("{}: {:+.1} %", first.name(), change * 100.0),
        None => format!("{}: {}", first.name(), first.verdict_text()),
    };
    let more = match more.len() {
        0 => String::new(),
        more => format!(", and {}", units::counted(more as u64, "other")),
    };
    Some(format!("{}: {what}{more}", flag("fail-on").with(format!("{}%", share * 100.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
        assert_eq!(share("5%").unwrap(), 0.05);
        assert_eq!(share("0.5").unwrap(), 0.005);
        for bad in ["", "%", "-1%", "five", "NaN", "5000%"] {
            assert!(share(bad).unwrap_err().to_string().contains("such as 5%"), "{bad}");
        }
    }
}
