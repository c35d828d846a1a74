//! Tables for a terminal: plain text without colour, with columns as wide as their content.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use inlane_result::{Cell, Value};

/// Lines of a name and a value, printed as two aligned columns.
#[derive(Default)]
pub struct Lines(Vec<Cell>);

impl Lines {
    /// Adds a line.
    pub fn line(&mut self, name: &str, value: impl Into<Value>) {
        self.0.push(Cell::new(name, value));
    }

    /// Adds lines.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = Cell>) {
        self.0.extend(lines);
    }

    /// Adds the lines. Skips a line if a line with the same name and value is already present.
    pub fn extend_unique(&mut self, lines: impl IntoIterator<Item = Cell>) {
        for line in lines {
            if !self.0.contains(&line) {
                self.0.push(line);
            }
        }
    }

    /// Adds all lines of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Returns the lines of the table. All texts start in the same column. A text is never wrapped, so that
    /// grep finds it as a whole.
    pub fn render(&self) -> String {
        let width = self.0.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        self.0.iter().map(|Cell { name, value }| format!("{name:<width$}  {value}\n")).collect()
    }
}

/// Renders a table with a header. Columns of numbers are aligned right, columns with text are aligned left.
pub fn grid(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row.clone());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let is_number = |text: &String| text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit());
        let numbers = rows.iter().filter_map(|row| row.get(index)).all(is_number);
        column.set_cell_alignment(if numbers { CellAlignment::Right } else { CellAlignment::Left });
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_to_one_width() {
        let mut lines = Lines::default();
        lines.line("rx", "1");
        lines.line("verified", "2");
        assert_eq!(lines.render(), "rx        1\nverified  2\n");
    }

    #[test]
    fn repeated_lines_are_shown_once() {
        let mut lines = Lines::default();
        lines.extend_unique([Cell::new("ports", "a"), Cell::new("ports", "a"), Cell::new("ports", "b")]);
        assert_eq!(lines.render(), "ports  a\nports  b\n");
    }

    #[test]
    fn tables_are_markdown_with_numbers_aligned_right() {
        let text = grid(&["size", "GB/s"], &[vec!["4 KiB".into(), "1.0".into()]]);
        assert!(text.lines().nth(1).unwrap().starts_with("|--"), "{text}");
        assert_eq!(text.lines().count(), 3);
        let rows = [vec!["a".into(), "1".into()], vec!["long".into(), "12345678".into()]];
        let text = grid(&["name", "number"], &rows);
        assert!(text.contains("| a    |        1 |"), "{text}");
    }
}
