//! Writes HTML whose texts cannot act: every text and attribute is escaped.

use std::fmt::Write;

/// The longest text that a page shows in full. A longer one is cut; the embedded data has all of it.
const LONGEST: usize = 300;

/// Escapes a text for HTML, also within quoted attributes, and cuts a very long one.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == LONGEST {
            out.push('\u{2026}');
            break;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Writes a table that scrolls sideways within the page. Columns of numbers are aligned right.
pub(super) fn table(out: &mut String, header: &[String], rows: &[Vec<String>]) {
    let is_number = |text: &String| {
        text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+')
    };
    let right: Vec<bool> = (0..header.len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).all(is_number))
        .collect();
    let class = |column: usize| if right[column] { " class=\"n\"" } else { "" };
    out.push_str("<div class=\"wide\"><table><thead><tr>");
    for (column, name) in header.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(column), escaped(name));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate().take(header.len()) {
            let _ = write!(out, "<td{}>{}</td>", class(column), escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Writes names and values as a list.
pub(super) fn facts(out: &mut String, facts: &[(String, String)]) {
    out.push_str("<dl>");
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value));
    }
    out.push_str("</dl>\n");
}
