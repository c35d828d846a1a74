//! A document as text for a terminal: the results first, then what to know about them.

use crate::table::{Lines, grid};
use inlane_core::result::{Baseline, Ceiling, Cell, Document, Row, Verification};
use inlane_core::units;

/// Renders a document. A single row that has lines of its own is shown as lines, everything else as a table.
///
/// `between` separates the hops of the document's path.
pub fn text<T: Row>(document: &Document<T>, between: &str) -> String {
    let rows = &document.results;
    let mut context = Lines::default();
    let mut out = String::new();
    let mut shown = Lines::default();
    let lines = match rows.as_slice() {
        [one] if one.error().is_none() => one.lines(),
        _ => Vec::new(),
    };
    if lines.is_empty() {
        out.push_str(&table(rows, &mut context));
    } else {
        shown.extend(lines);
        context.extend(rows[0].parameters());
    }
    if let Some(verification) = document.verification.as_ref().filter(|_| T::COUNTS_PACKETS) {
        shown.line("verified", verdict(verification));
    }
    if document.twin {
        shown.line("twin", "a software stand-in took part: these are figures of a model");
    }
    let facts = rows.iter().filter(|row| row.error().is_none()).flat_map(Row::context);
    let path = &document.path;
    context.line_if("path", Some(path.hops.join(between)).filter(|hops| !hops.is_empty()));
    context.line_if("because", Some(path.reason.clone()).filter(|reason| !reason.is_empty()));
    for other in &path.not_taken {
        context.line("not taken", format!("{}: {}", other.path, other.why));
    }
    context.extend_unique(facts);
    // The ceilings of several rows are in the table.
    let single = rows.len() < 2 || !T::COUNTS_PACKETS;
    if let Some(Ceiling { packets_per_second, bytes_per_second, what }) =
        document.ceiling.as_ref().filter(|_| single)
    {
        context.line("ceiling", rates(*packets_per_second, *bytes_per_second, what));
    }
    if let Some(Baseline { packets_per_second, bytes_per_second, what }) = &document.baseline {
        context.line("baseline", rates(*packets_per_second, *bytes_per_second, what));
    }
    for note in &document.notes {
        context.line("note", note.clone());
    }
    shown.append(context);
    out.push_str(&shown.render());
    out
}

/// The rows as a table. Parameters that all rows share go to `context` instead.
fn table<T: Row>(rows: &[T], context: &mut Lines) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let parameters: Vec<Vec<Cell>> = rows.iter().map(Row::parameters).collect();
    let mut names: Vec<String> = Vec::new();
    for cell in parameters.iter().flatten() {
        if !names.contains(&cell.name) {
            names.push(cell.name.clone());
        }
    }
    let value = |index: usize, name: &str| {
        let cell = parameters[index].iter().find(|cell| cell.name == *name);
        cell.map_or(String::new(), |cell| cell.text.clone())
    };
    names.retain(|name| {
        // A run that failed early has few parameters.
        let mut values: Vec<String> = (0..rows.len())
            .filter(|&index| {
                rows[index].error().is_none() || parameters[index].iter().any(|cell| cell.name == *name)
            })
            .map(|index| value(index, name))
            .collect();
        values.dedup();
        let shared = values.len() == 1 && rows.len() > 1;
        if shared {
            context.line(name, values.remove(0));
        }
        !shared
    });
    let mut figures: Vec<Vec<Cell>> = rows.iter().map(Row::figures).collect();
    for (row, cells) in rows.iter().zip(&mut figures) {
        cells.push(Cell::optional("error", row.error()));
    }
    let used: Vec<usize> = (0..figures[0].len())
        .filter(|&column| figures.iter().any(|cells| !cells[column].text.is_empty()))
        .collect();
    let header: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain(used.iter().map(|&column| figures[0][column].name.as_str()))
        .collect();
    let lines: Vec<Vec<String>> = (0..rows.len())
        .map(|index| {
            let own = names.iter().map(|name| value(index, name));
            own.chain(used.iter().map(|&column| figures[index][column].text.clone())).collect()
        })
        .collect();
    grid(&header, &lines)
}

fn verdict(verification: &Verification) -> String {
    let verdict = match (verification.passed(), verification.failed()) {
        (true, _) => "ok",
        (_, true) => "FAILED",
        _ => "nothing was received",
    };
    let Verification { checked, lost, duplicated, reordered, altered, method } = verification;
    format!(
        "{verdict}: {checked} packets, {lost} lost, {duplicated} duplicated, {reordered} reordered, {altered} altered ({method})"
    )
}

fn rates(packets: Option<f64>, bytes: Option<f64>, what: &str) -> String {
    let mut parts: Vec<String> = packets.map(units::packets_per_second).into_iter().collect();
    parts.extend(bytes.map(|bytes| match packets {
        Some(_) => units::bits_per_second(bytes * 8.0),
        None => units::bytes_per_second(bytes),
    }));
    if parts.is_empty() { what.into() } else { format!("{}: {what}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::result::Path;
    use serde::Serialize;

    #[derive(Serialize)]
    struct Fake {
        burst: &'static str,
        error: Option<&'static str>,
    }

    impl Row for Fake {
        const COUNTS_PACKETS: bool = true;

        fn parameters(&self) -> Vec<Cell> {
            vec![Cell::new("burst", self.burst), Cell::new("on", "cpu")]
        }

        fn figures(&self) -> Vec<Cell> {
            vec![Cell::new("Mpps", "1.0"), Cell::new("p50 us", "")]
        }

        fn context(&self) -> Vec<Cell> {
            vec![Cell::new("ports", "null -> null")]
        }

        fn error(&self) -> Option<&str> {
            self.error
        }
    }

    #[test]
    fn a_verification_is_ok_failed_or_of_nothing() {
        let verdict = |checked, lost| {
            let mut document = Document::<Fake>::new("forward", Path::default());
            document.verification = Some(Verification { checked, lost, ..Verification::default() });
            text(&document, "; ")
        };
        assert!(verdict(0, 0).contains("verified  nothing was received: 0 packets"), "{}", verdict(0, 0));
        assert!(verdict(1, 0).contains("verified  ok: 1 packets"));
        assert!(verdict(0, 1).contains("verified  FAILED: 0 packets, 1 lost"));
        assert!(!verdict(0, 0).contains('|'), "a document without results shows no table");
    }

    #[test]
    fn shared_parameters_leave_the_table_and_empty_columns_are_left_out() {
        let row = |burst, error| Fake { burst, error };
        let mut document = Document::new("forward", Path::default());
        document.results = vec![row("16", None), row("32", None), row("64", Some("no memory"))];
        let shown = text(&document, "; ");
        assert!(shown.starts_with("| burst"), "the result comes first: {shown}");
        assert!(shown.lines().any(|line| line.starts_with("on ") && line.ends_with("cpu")), "{shown}");
        assert_eq!(shown.matches("null -> null").count(), 1, "{shown}");
        let header = shown.lines().next().unwrap();
        assert!(!header.contains("p50") && !header.contains("| on "), "{header}");
        assert!(shown.lines().any(|line| line.starts_with("| 64") && line.contains("no memory")), "{shown}");
    }
}
