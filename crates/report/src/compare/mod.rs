//! Compares results: the same rows of several documents side by side, the change of each figure with its interval, and a
//! verdict.
//!
//! A side is one document or several. The repeats of a side with one document are the repeats in its rows. The repeats of a
//! side with several documents are the medians of the documents, so that differences between starts count as well.

mod condition;
mod interval;
mod row;

use crate::figures::{Figure, Measured, measured};
use inlane_result::{Cell, Document};
use serde_json::Value;

pub use condition::{Condition, Difference};
pub use interval::Ratio;
pub use row::{Comparison, Verdict};

/// A change below this fraction does not matter, even if repeats show that it exists. Results of different starts of the
/// same program differ by more.
pub const SMALL: f64 = 0.01;

/// One side of a comparison.
#[derive(Clone, Debug)]
pub struct Side {
    /// The file or the folder.
    pub name: String,
    /// The documents: one, or repeats of one command.
    pub documents: Vec<Document<Value>>,
}

/// Compares the first side with each of the others. Differences in the conditions of `across` do not matter.
pub fn compare(sides: &[Side], across: &[Condition]) -> Vec<Comparison> {
    let Some((first, others)) = sides.split_first() else { return Vec::new() };
    let before = Rows::of(first);
    let mut found: Vec<Comparison> =
        others.iter().flat_map(|other| pairs(&before, &Rows::of(other), across)).collect();
    found.iter_mut().for_each(|row| row.one_of_several = others.len() > 1);
    found
}

/// The rows of a side. Rows of several documents with the same identity are one.
struct Rows<'a> {
    side: &'a Side,
    rows: Vec<Vec<Measured<'a>>>,
}

impl<'a> Rows<'a> {
    fn of(side: &'a Side) -> Self {
        let mut rows: Vec<Vec<Measured<'a>>> = Vec::new();
        for document in &side.documents {
            let mut taken = Vec::new();
            for row in measured(document) {
                // The same identity can be present twice in a document; the first then belongs to the first.
                let same = |(at, known): &(usize, &Vec<Measured<'_>>)| {
                    !taken.contains(at) && known[0].identity == row.identity
                };
                match rows.iter().enumerate().find(same).map(|(at, _)| at) {
                    Some(at) => {
                        taken.push(at);
                        rows[at].push(row);
                    }
                    None => {
                        taken.push(rows.len());
                        rows.push(vec![row]);
                    }
                }
            }
        }
        Self { side, rows }
    }
}

fn pairs(before: &Rows<'_>, after: &Rows<'_>, across: &[Condition]) -> Vec<Comparison> {
    let mut free: Vec<&Vec<Measured<'_>>> = after.rows.iter().collect();
    let settings = settings(before, after);
    let without = |cells: &[Cell], path: bool| -> Vec<Cell> {
        let counts = |cell: &&Cell| !settings.contains(&cell.name) && (path || cell.name != "path");
        cells.iter().filter(counts).cloned().collect()
    };
    let mut found = Vec::new();
    for rows in &before.rows {
        let identity = &rows[0].identity;
        let same =
            |other: &Vec<Measured<'_>>, path| without(&other[0].identity, path) == without(identity, path);
        // A path that inlane chose can differ.
        let same_but_path = |other: &&Vec<Measured<'_>>| {
            same(other, false) && !before.rows.iter().any(|rows| rows[0].identity == other[0].identity)
        };
        let at = free.iter().position(|other| same(other, true));
        match at.or_else(|| free.iter().position(same_but_path)).map(|at| free.remove(at)) {
            Some(other) => found.extend(pair(before.side, rows, after.side, other, across)),
            None => found.push(Comparison::without_figures(&after.side.name, identity, Verdict::Missing)),
        }
    }
    let extra = |rows: &Vec<Measured<'_>>| {
        Comparison::without_figures(&after.side.name, &rows[0].identity, Verdict::Added)
    };
    found.extend(free.into_iter().map(extra));
    found
}

/// Returns the names of parameters that are settings of the whole side: all rows of a side agree on the value, and the
/// sides differ. They do not tell rows apart.
fn settings(before: &Rows<'_>, after: &Rows<'_>) -> Vec<String> {
    let shared = |rows: &Rows<'_>, name: &str| {
        let value = |rows: &Vec<Measured<'_>>| {
            rows[0].identity.iter().find(|cell| cell.name == name).map(|cell| cell.value.to_string())
        };
        let mut values: Vec<Option<String>> = rows.rows.iter().map(value).collect();
        values.dedup();
        (values.len() == 1).then(|| values.remove(0))
    };
    let all = before.rows.iter().chain(&after.rows).flat_map(|rows| &rows[0].identity);
    let mut names: Vec<String> = all.map(|cell| cell.name.clone()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| match (shared(before, name), shared(after, name)) {
        (Some(before), Some(after)) => before != after,
        _ => false,
    });
    names
}

fn pair(
    first: &Side,
    before: &[Measured<'_>],
    second: &Side,
    after: &[Measured<'_>],
    across: &[Condition],
) -> Vec<Comparison> {
    let whole = |verdict| Comparison::without_figures(&second.name, &before[0].identity, verdict);
    if let Some(error) = after.iter().find_map(|row| row.error) {
        let why = Some(error.to_string());
        return vec![Comparison { why, ..whole(Verdict::Failed) }];
    }
    if before.iter().any(|row| row.error.is_some()) {
        return vec![whole(Verdict::Added)];
    }
    let mut differences = condition::differences(first, second);
    differences.extend(condition::of_rows(&before[0], &after[0]));
    let severe = |difference: &Difference| difference.condition.is_severe(across);
    let why = differences.iter().filter(|difference| severe(difference)).map(Difference::to_string);
    let why = Some(why.collect::<Vec<_>>().join("; ")).filter(|why| !why.is_empty());
    let wrong = |rows: &[Measured<'_>]| rows.iter().map(|row| row.wrong).sum::<u64>();
    let mut found = Vec::new();
    if let (0, wrong @ 1..) = (wrong(before), wrong(after)) {
        let why = Some(format!("{wrong} packets or bytes arrived wrong or not at all"));
        found.push(Comparison { why, ..whole(Verdict::Wrong) });
    }
    for figure in &before[0].figures {
        let (one, other) = (repeats(before, &figure.name), repeats(after, &figure.name));
        if other.is_empty() {
            continue;
        }
        let comparable = why.is_none();
        let mut row = Comparison::of(&second.name, &before[0].identity, figure, &one, &other, comparable);
        (row.why, row.differences) = (why.clone(), differences.clone());
        found.push(row);
    }
    if found.is_empty() {
        found.push(whole(Verdict::Missing));
    }
    found
}

/// Returns the repeats of a figure: those of a single document's row, or the figures of several documents.
fn repeats(rows: &[Measured<'_>], name: &str) -> Vec<f64> {
    let figures = rows.iter().filter_map(|row| row.figures.iter().find(|figure| figure.name == name));
    match &figures.collect::<Vec<&Figure>>()[..] {
        [one] if one.repeats.is_empty() => vec![one.quantity.number()],
        [one] => one.repeats.clone(),
        several => several.iter().map(|figure| figure.quantity.number()).collect(),
    }
}

/// Returns a sentence that sums up the comparisons.
pub fn summary(comparisons: &[Comparison]) -> String {
    let count = |verdict| comparisons.iter().filter(|row| row.verdict == verdict).count();
    let judged = comparisons.iter().filter(|row| row.verdict.is_judged()).count();
    let mut parts = Vec::new();
    for (verdict, words) in [
        (Verdict::Slower, "slower"),
        (Verdict::Faster, "faster"),
        (Verdict::NoDifference, "without a shown difference"),
    ] {
        if judged > 0 && (verdict != Verdict::NoDifference || count(verdict) > 0) {
            parts.push(format!("{} {words}", count(verdict)));
        }
    }
    let mut sentences = match judged {
        0 => Vec::new(),
        _ => vec![format!(
            "Of {}: {}.",
            inlane_core::units::counted(judged as u64, "figure"),
            parts.join(", ")
        )],
    };
    for (verdict, what) in [
        (Verdict::Wrong, "{} arrived wrong or incomplete."),
        (Verdict::Failed, "{} failed."),
        (Verdict::Missing, "{} missing."),
        (Verdict::Added, "{} without a counterpart."),
        (Verdict::NotComparable, "{} not comparable."),
        (Verdict::TooFew, "{} not judged: too few repeats."),
    ] {
        if count(verdict) > 0 {
            sentences.push(what.replace("{}", &count(verdict).to_string()));
        }
    }
    // An interval misses the truth in 5 of 100 cases.
    if judged >= 20 {
        sentences.push(format!("About {} of them differ by chance.", (judged as f64 * 0.05).round()));
    }
    if sentences.is_empty() { "There is nothing to compare.".into() } else { sentences.join(" ") }
}

/// Returns the comparisons for which a test of speed fails: figures that are slower by `share` or more, and rows that cannot
/// be judged, because a test that judges nothing must not pass.
pub fn failures(comparisons: &[Comparison], share: f64) -> Vec<&Comparison> {
    let same_row = |one: &Comparison, other: &Comparison| {
        one.result == other.result && one.parameters == other.parameters
    };
    let fails = |row: &&Comparison| match row.verdict {
        Verdict::Slower => row.loss() >= share,
        Verdict::Faster | Verdict::NoDifference | Verdict::Added => false,
        Verdict::TooFew => !comparisons.iter().any(|other| same_row(row, other) && other.verdict.is_judged()),
        Verdict::Wrong | Verdict::Failed | Verdict::Missing | Verdict::NotComparable => true,
    };
    comparisons.iter().filter(fails).collect()
}

#[cfg(test)]
mod tests;
