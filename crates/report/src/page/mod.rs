//! Renders stored results as one page: HTML without scripts, fonts or anything from the network. It can be read on a phone, in
//! print, and in dark mode, and contains the data.

mod chart;
mod html;
mod parts;

use crate::figures::{Figure, Measured, measured};
use base64::Engine;
pub use html::escaped;
use html::{facts, table};
use inlane_core::units::counted;
use inlane_result::Document;
use serde_json::Value;
use std::fmt::Write;

/// A stored result and what identifies it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The file.
    pub file: String,
    /// The command line, as a shell reads it.
    pub command: String,
    /// The result.
    pub document: Document<Value>,
}

/// The most rows that are drawn. The table has all rows.
const MOST_BARS: usize = 40;
/// The most rows whose latencies are drawn.
const MOST_HISTOGRAMS: usize = 4;
/// The head of the page. The policy forbids scripts and all access to the network, whatever the texts contain.
const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
    <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";

/// Renders results as an HTML page.
pub fn page(results: &[Stored]) -> String {
    let verdicts: Vec<String> = results.iter().map(|result| capital(&verdict(&result.document))).collect();
    let title = match &verdicts[..] {
        [one] => one.clone(),
        several => format!(
            "{}: {}",
            counted(several.len() as u64, "result"),
            several.first().map_or("", String::as_str)
        ),
    };
    let mut out = format!(
        "{HEAD}<title>{}</title>\n<style>{}</style></head><body>\n",
        escaped(&title),
        include_str!("style.css")
    );
    match results {
        [_] => {
            let _ = writeln!(out, "<h1>{}</h1>", escaped(&title));
        }
        _ => {
            let _ = writeln!(out, "<h1>{}</h1>", counted(results.len() as u64, "result"));
            overview(&mut out, results, &verdicts);
        }
    }
    for (index, (result, verdict)) in results.iter().zip(&verdicts).enumerate() {
        let _ = writeln!(out, "<section id=\"r{index}\">");
        if results.len() > 1 {
            let _ = writeln!(out, "<h2>{}</h2><p>{}</p>", escaped(&result.file), escaped(verdict));
        }
        section(&mut out, result);
        out.push_str("</section>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// Writes a line for each of several results, with a bar for the figure that each is about if all have the same unit.
fn overview(out: &mut String, results: &[Stored], verdicts: &[String]) {
    let _ = writeln!(out, "<ul>");
    for (index, (result, verdict)) in results.iter().zip(verdicts).enumerate() {
        let _ = writeln!(
            out,
            "<li><a href=\"#r{index}\">{}</a>: {}</li>",
            escaped(&result.file),
            escaped(verdict)
        );
    }
    let _ = writeln!(out, "</ul>");
    let best = |result: &Stored| {
        let rows = measured(&result.document);
        let all = rows.iter().filter_map(|row| row.figures.first());
        let best = all.max_by(|a, b| a.quantity.number().total_cmp(&b.quantity.number()))?.clone();
        Some(chart::Bar {
            name: result.file.clone(),
            value: best.quantity,
            range: best.range,
            ceiling: None,
            words: String::new(),
        })
    };
    let bars: Vec<chart::Bar> = results.iter().take(MOST_BARS).filter_map(best).collect();
    let units: Vec<&str> = bars.iter().map(|bar| bar.value.key_suffix()).collect();
    if bars.len() > 1 && units.windows(2).all(|pair| pair[0] == pair[1]) {
        let _ = writeln!(out, "<h3>Highest of each result</h3>");
        chart::bars(out, &bars);
    }
}

/// Returns one sentence that says what a result shows.
pub fn verdict(document: &Document<Value>) -> String {
    let rows = measured(document);
    let failed = rows.iter().filter(|row| row.error.is_some()).count();
    let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
    let command = &document.command.name;
    let loads =
        document.results.iter().flat_map(|row| row.get("verdicts").and_then(Value::as_array)).flatten();
    if let Some(sentence) = loads.filter_map(|verdict| verdict.get("sentence")?.as_str()).next() {
        return sentence.into();
    }
    let good: Vec<&Measured<'_>> = rows.iter().filter(|row| !row.figures.is_empty()).collect();
    let mut text = match &good[..] {
        [] if failed > 0 => format!("{command}: no row was measured"),
        [] => format!("{command}: {}", counted(document.results.len() as u64, "row")),
        [one] => {
            let figures: Vec<String> = one.figures.iter().map(shown).collect();
            format!("{command}{}: {}", ends(one), figures.join(", "))
        }
        several => {
            // Rows can be about different figures. The sentence is about that of the first.
            let first = &several[0].figures[0];
            let same: Vec<&&Measured<'_>> =
                several.iter().filter(|row| row.figures[0].name == first.name).collect();
            let of = |row: &Measured<'_>| row.figures[0].quantity.number();
            let (least, most) = same
                .iter()
                .fold((f64::INFINITY, 0f64), |(least, most), row| (least.min(of(row)), most.max(of(row))));
            let best = if first.higher_is_better { most } else { least };
            let at = same
                .iter()
                .find(|row| of(row) == best)
                .map(|row| parts::name(row, &parts::differing(several)));
            let [least, most] = [least, most].map(|end| first.quantity.with_number(end));
            let at = at.filter(|at| !at.is_empty()).map(|at| format!("; best: {at}")).unwrap_or_default();
            format!("{command}{}: {} from {least} to {most}{at}", ends(several[0]), first.name)
        }
    };
    if let [one] = &good[..]
        && let Some(limit) = one.row.pointer("/limit/resource").and_then(Value::as_str)
    {
        text.push_str(&format!("; limited by: {}", limit.replace('-', " ")));
    }
    if wrong > 0 {
        text.push_str(&format!("; {wrong} packets or bytes arrived wrong or not at all"));
    }
    if failed > 0 {
        text.push_str(&format!("; {failed} of {} failed", counted(rows.len() as u64, "row")));
    }
    if document.twin { format!("{text} (figures of a model)") } else { text }
}

fn ends(row: &Measured<'_>) -> String {
    if row.ends.is_empty() { String::new() } else { format!(", {}", row.ends.join(" to ")) }
}

fn shown(figure: &Figure) -> String {
    format!("{} {}", figure.name, figure.quantity)
}

fn section(out: &mut String, result: &Stored) {
    let document = &result.document;
    let rows = measured(document);
    parts::path(out, document);
    let differing = parts::differing(&rows.iter().collect::<Vec<_>>());
    charts(out, &rows, &differing);
    parts::figures(out, document, &rows, &differing);
    for row in rows.iter().take(MOST_HISTOGRAMS) {
        parts::latencies(out, row, &parts::name(row, &differing));
    }
    for session in &document.results {
        parts::mix(out, session);
    }
    if rows.is_empty() {
        parts::plain(out, document);
    }
    parts::about(out, result, &rows, &differing);
}

/// Draws the rows as bars: a chart for each figure that rows are about. A single row without a ceiling is drawn by its repeats.
fn charts(out: &mut String, rows: &[Measured<'_>], differing: &[String]) {
    let firsts = || rows.iter().filter_map(|row| row.figures.first());
    let mut names: Vec<&str> = Vec::new();
    for figure in firsts() {
        if !names.contains(&figure.name.as_str()) {
            names.push(&figure.name);
        }
    }
    for name in names {
        let about = |row: &&Measured<'_>| row.figures.first().is_some_and(|figure| figure.name == name);
        let own: Vec<&Measured<'_>> = rows.iter().filter(about).collect();
        let with_ceiling = own.iter().any(|row| parts::ceiling(row).is_some());
        let bars: Vec<chart::Bar> = match &own[..] {
            [one] if !with_ceiling => parts::repeats(one),
            own => own.iter().filter_map(|row| parts::bar(row, differing)).take(MOST_BARS).collect(),
        };
        // A bar alone shows nothing.
        if bars.is_empty() || bars.len() == 1 && !with_ceiling {
            continue;
        }
        let against = match own.len() {
            _ if with_ceiling => ", against the ceiling",
            1 => " of each repeat",
            _ => "",
        };
        let _ = writeln!(out, "<h3>{}{against}</h3>", escaped(&capital(name)));
        chart::bars(out, &bars);
        if own.len() > MOST_BARS {
            let _ = writeln!(out, "<p class=\"soft\">{MOST_BARS} of {} rows are drawn.</p>", own.len());
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Returns a link that stores the data, without a script.
fn data_link(document: &Document<Value>) -> String {
    let json = serde_json::to_string(document).unwrap_or_default();
    let data = base64::engine::general_purpose::STANDARD.encode(json);
    format!(
        "<p><a download=\"result.json\" href=\"data:application/json;base64,{data}\">The result as JSON</a></p>\n"
    )
}

/// Renders results as Markdown: for each its verdict, its figures and its command.
pub fn markdown(results: &[Stored]) -> String {
    let mut out = String::new();
    for result in results {
        let rows = measured(&result.document);
        let differing = parts::differing(&rows.iter().collect::<Vec<_>>());
        let (header, lines) = parts::figure_table(&rows, &differing);
        let plain = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;");
        let header: Vec<String> = header.iter().map(|name| plain(name)).collect();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let lines: Vec<Vec<String>> =
            lines.iter().map(|line| line.iter().map(|cell| plain(cell)).collect()).collect();
        let _ = writeln!(out, "## {}\n\n{}.\n", plain(&result.file), plain(&verdict(&result.document)));
        if !lines.is_empty() {
            let _ = writeln!(out, "{}", crate::grid(&header, &lines));
        }
        for (name, value) in parts::facts_of(result, &rows, &differing) {
            let _ = writeln!(out, "- {}: {}", plain(&name), plain(&value));
        }
        out.push('\n');
    }
    out
}

/// Renders the rows of results as CSV. The first column names the file.
///
/// # Errors
/// If a row cannot be expressed as JSON.
pub fn rows_as_csv(results: &[Stored]) -> Result<String, crate::Error> {
    let with_file = |file: &str, row: &Value| {
        let mut fields = serde_json::Map::new();
        fields.insert("parameters".into(), serde_json::json!({ "file": file }));
        for (key, value) in row.as_object().into_iter().flatten() {
            match (key.as_str(), value) {
                ("parameters", Value::Object(own)) => {
                    if let Some(Value::Object(all)) = fields.get_mut("parameters") {
                        all.extend(own.clone());
                    }
                }
                _ => {
                    fields.insert(key.clone(), value.clone());
                }
            }
        }
        Value::Object(fields)
    };
    let rows =
        results.iter().flat_map(|one| one.document.results.iter().map(|row| with_file(&one.file, row)));
    crate::csv(&rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
