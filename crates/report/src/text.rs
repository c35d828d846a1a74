//! Renders documents as text for a terminal: first the results, then notes and settings.

use crate::table::{Lines, grid};
use inlane_result::{Cell, Document, Row, Value};

/// Renders a document. If the document has only one row, and the row provides lines of text, prints these
/// lines. Otherwise prints a table.
pub fn text<T: Row>(document: &Document<T>) -> String {
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
    if document.twin {
        shown.line("twin", "a software stand-in took part: these are figures of a model");
    }
    let facts = rows.iter().filter(|row| row.error().is_none()).flat_map(Row::context);
    context.extend_unique(facts);
    if let [one] = rows.as_slice() {
        context.extend(one.details());
    }
    for note in &document.notes {
        context.line("note", note.clone());
    }
    shown.append(context);
    out.push_str(&shown.render());
    out
}

/// Renders the rows as a Markdown table, which has all parameters as columns, also those that are the same in all rows.
pub fn markdown<T: Row>(document: &Document<T>) -> String {
    let (header, lines) = columns(&document.results, None);
    let escaped =
        |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('\n', " ");
    let header: Vec<String> = header.iter().map(|name| escaped(name)).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let lines: Vec<Vec<String>> =
        lines.iter().map(|line| line.iter().map(|text| escaped(text)).collect()).collect();
    grid(&header, &lines)
}

/// Renders the rows as a table. A parameter with the same value in all rows goes to `context` instead of a
/// column.
fn table<T: Row>(rows: &[T], context: &mut Lines) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let (header, lines) = columns(rows, Some(context));
    grid(&header.iter().map(String::as_str).collect::<Vec<_>>(), &lines)
}

/// Returns the header and the lines of a table. With a `context`, parameters on which all rows agree go there.
fn columns<T: Row>(rows: &[T], mut context: Option<&mut Lines>) -> (Vec<String>, Vec<Vec<String>>) {
    let parameters: Vec<Vec<Cell>> = rows.iter().map(Row::parameters).collect();
    let mut names: Vec<String> = Vec::new();
    for cell in parameters.iter().flatten() {
        if !names.contains(&cell.name) {
            names.push(cell.name.clone());
        }
    }
    let value = |index: usize, name: &str| {
        let cell = parameters[index].iter().find(|cell| cell.name == *name);
        cell.map_or(Value::Absent, |cell| cell.value.clone())
    };
    names.retain(|name| {
        // Do not compare failed rows that lack the parameter. Otherwise, one failed run would turn a
        // parameter on which all other rows agree into a column.
        let mut values: Vec<Value> = (0..rows.len())
            .filter(|&index| {
                rows[index].error().is_none() || parameters[index].iter().any(|cell| cell.name == *name)
            })
            .map(|index| value(index, name))
            .collect();
        values.dedup();
        match &mut context {
            Some(context) if values.len() == 1 && rows.len() > 1 => {
                context.line(name, values.remove(0));
                false
            }
            _ => true,
        }
    });
    let mut figures: Vec<Vec<Cell>> = rows.iter().map(Row::figures).collect();
    for (row, cells) in rows.iter().zip(&mut figures) {
        cells.push(Cell::new("error", row.error().map(ToString::to_string)));
    }
    let used: Vec<usize> = (0..figures.first().map_or(0, Vec::len))
        .filter(|&column| figures.iter().any(|cells| !cells[column].value.is_empty()))
        .collect();
    let header = names.iter().cloned().chain(used.iter().map(|&column| figures[0][column].name.clone()));
    let lines = (0..rows.len()).map(|index| {
        let own = names.iter().map(|name| value(index, name).to_string());
        own.chain(used.iter().map(|&column| figures[index][column].value.to_string())).collect()
    });
    (header.collect(), lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;
    use std::fmt::Display;

    #[derive(Serialize)]
    struct Fake {
        burst: &'static str,
        error: Option<&'static str>,
    }

    impl Row for Fake {
        fn parameters(&self) -> Vec<Cell> {
            vec![Cell::new("burst", self.burst), Cell::new("on", "cpu")]
        }

        fn figures(&self) -> Vec<Cell> {
            vec![Cell::new("Mpps", "1.0"), Cell::new("p50 us", Value::Absent)]
        }

        fn context(&self) -> Vec<Cell> {
            vec![Cell::new("ports", "null -> null")]
        }

        fn error(&self) -> Option<&dyn Display> {
            self.error.as_ref().map(|error| error as &dyn Display)
        }
    }

    #[test]
    fn shared_parameters_leave_the_table_and_empty_columns_are_left_out() {
        let row = |burst, error| Fake { burst, error };
        let mut document = Document::new("forward");
        document.results = vec![row("16", None), row("32", None), row("64", Some("no memory"))];
        let shown = text(&document);
        assert!(shown.starts_with("| burst"), "the result comes first: {shown}");
        assert!(shown.lines().any(|line| line.starts_with("on ") && line.ends_with("cpu")), "{shown}");
        assert_eq!(shown.matches("null -> null").count(), 1, "{shown}");
        let header = shown.lines().next().unwrap();
        assert!(!header.contains("p50") && !header.contains("| on "), "{header}");
        assert!(shown.lines().any(|line| line.contains(" 64 |") && line.contains("no memory")), "{shown}");
    }
}
