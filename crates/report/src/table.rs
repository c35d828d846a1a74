//! Tables for a terminal: plain text, no colour, widths from content.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use inlane_core::result::Document;

/// A two-column table of names and values, for one run.
#[derive(Default)]
pub struct Rows(Vec<(String, String)>);

impl Rows {
    /// How the bytes of a document went, which its rows begin with: hop by hop, or by ways that are whole each.
    pub fn of<T>(document: &Document<T>, between: &str) -> Self {
        let mut rows = Self::default();
        rows.row("path", document.path.hops.join(between));
        if !document.path.reason.is_empty() {
            rows.row("because", document.path.reason.clone());
        }
        for other in &document.path.not_taken {
            rows.row("not taken", format!("{}: {}", other.path, other.why));
        }
        if document.twin {
            rows.row("twin", "a software stand-in took part: these figures are a model's");
        }
        rows
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Adds a row where there is a value.
    pub fn row_if(&mut self, name: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.row(name, value);
        }
    }

    /// The table: names padded to one width, values as they are, so that long ones stay in one line for grep.
    pub fn render(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, value) in &self.0 {
            out.push_str(&format!("{name:<width$}  {value}\n"));
        }
        out
    }
}

/// A table with a header; the first column is text, the others numbers, set to the right.
pub fn grid(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row.clone());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_line_up() {
        let mut rows = Rows::default();
        rows.row("rx", "1");
        rows.row("verified", "2");
        rows.row_if("nothing", None::<String>);
        assert_eq!(rows.render(), "rx        1\nverified  2\n");
    }

    #[test]
    fn grids_are_markdown() {
        let text = grid(&["size", "GB/s"], &[vec!["4 KiB".into(), "1.0".into()]]);
        assert!(text.lines().nth(1).unwrap().starts_with("|--"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }
}
