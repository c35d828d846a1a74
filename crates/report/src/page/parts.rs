//! The parts of a result's section: path, figures, latencies, the parts of a session of `mix`, and what was run.

use super::chart::{self, Bar};
use super::{Stored, data_link, escaped, facts, table};
use crate::figures::Measured;
use inlane_core::units;
use inlane_result::{Cell, Document, Quantity};
use serde_json::Value;
use std::fmt::Write;

/// Returns the names of the parameters in which rows differ.
pub(super) fn differing(rows: &[&Measured<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for cell in rows.iter().flat_map(|row| &row.identity) {
        if !names.contains(&cell.name) {
            names.push(cell.name.clone());
        }
    }
    let value = |row: &Measured<'_>, name: &str| {
        row.identity.iter().find(|cell| cell.name == name).map(|cell| cell.value.to_string())
    };
    names.retain(|name| {
        let mut values = rows.iter().map(|row| value(row, name));
        let first = values.next();
        values.any(|other| Some(other) != first)
    });
    names
}

/// Draws the hops of each path of the document once.
pub(super) fn path(out: &mut String, document: &Document<Value>) {
    let mut seen: Vec<&Value> = Vec::new();
    for hops in document.results.iter().filter_map(|row| row.pointer("/path/hops")) {
        if !seen.contains(&hops) && seen.len() < 4 {
            seen.push(hops);
        }
    }
    for direction in seen.iter().filter_map(|hops| hops.as_array()).flatten() {
        let hops: Vec<&str> =
            direction.as_array().into_iter().flatten().filter_map(Value::as_str).take(20).collect();
        if hops.is_empty() {
            continue;
        }
        out.push_str("<div class=\"path\">");
        for (index, hop) in hops.iter().enumerate() {
            let arrow = if index > 0 { "<span aria-hidden=\"true\">\u{2192}</span>" } else { "" };
            let _ = write!(out, "{arrow}<span class=\"hop\">{}</span>", escaped(hop));
        }
        out.push_str("</div>\n");
    }
}

/// Returns the ceiling of a row's first figure.
pub(super) fn ceiling(row: &Measured<'_>) -> Option<f64> {
    let key = match row.figures.first()?.quantity {
        Quantity::ByteRate(_) => "bytes_per_second",
        Quantity::Rate(_) => "packets_per_second",
        _ => return None,
    };
    row.row.get("ceiling")?.get(key)?.as_f64()
}

/// Names a row by the parameters in which rows differ. The names of numbers without a unit are part of it.
pub(super) fn name(row: &Measured<'_>, differing: &[String]) -> String {
    let cells = row.identity.iter().filter(|cell| differing.contains(&cell.name));
    let shown = |cell: &Cell| match cell.value.quantity() {
        Some(Quantity::Number(_)) => format!("{} {}", cell.name, cell.value),
        _ => cell.value.to_string(),
    };
    cells.map(shown).collect::<Vec<_>>().join(", ")
}

/// Returns a bar for each repeat of a row's first figure.
pub(super) fn repeats(row: &Measured<'_>) -> Vec<Bar> {
    let Some(first) = row.figures.first() else { return Vec::new() };
    let bar = |(index, value): (usize, &f64)| {
        let (name, value) = (format!("repeat {}", index + 1), first.quantity.with_number(*value));
        Bar { name, value, range: None, ceiling: None, words: String::new() }
    };
    first.repeats.iter().take(super::MOST_BARS).enumerate().map(bar).collect()
}

/// Returns the bar of a row's first figure. `None` for a row without figures.
pub(super) fn bar(row: &Measured<'_>, differing: &[String]) -> Option<Bar> {
    let first = row.figures.first()?;
    let ceiling = ceiling(row);
    let share = ceiling.filter(|ceiling| *ceiling > 0.0).map(|ceiling| first.quantity.number() / ceiling);
    let words = share.map(|share| format!("({:.0} % of the ceiling)", share * 100.0)).unwrap_or_default();
    let name =
        Some(name(row, differing)).filter(|name| !name.is_empty()).unwrap_or_else(|| first.name.clone());
    Some(Bar { name, value: first.quantity, range: first.range, ceiling, words })
}

/// Returns the table of figures: a column for each differing parameter and each figure.
pub(super) fn figure_table(rows: &[Measured<'_>], differing: &[String]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut figures: Vec<&str> = Vec::new();
    for figure in rows.iter().flat_map(|row| &row.figures) {
        if !figures.contains(&figure.name.as_str()) {
            figures.push(&figure.name);
        }
    }
    let failed = rows.iter().any(|row| row.error.is_some());
    let wrong = rows.iter().any(|row| row.wrong > 0);
    let repeated = rows.iter().any(|row| row.figures.first().is_some_and(|figure| figure.range.is_some()));
    let mut header: Vec<String> = differing.to_vec();
    header.extend(figures.iter().map(|name| name.to_string()));
    for (shown, name) in
        [(repeated, "least"), (repeated, "greatest"), (wrong, "wrong or lost"), (failed, "error")]
    {
        if shown {
            header.push(name.into());
        }
    }
    let line = |row: &Measured<'_>| {
        let parameter = |name: &String| {
            row.identity.iter().find(|cell| cell.name == *name).map(|cell| cell.value.to_string())
        };
        let figure = |name: &&str| {
            row.figures.iter().find(|figure| figure.name == **name).map(|figure| figure.quantity.to_string())
        };
        let mut cells: Vec<String> =
            differing.iter().map(|name| parameter(name).unwrap_or_default()).collect();
        cells.extend(figures.iter().map(|name| figure(name).unwrap_or_default()));
        if repeated {
            let first = row.figures.first().and_then(|figure| Some((figure.quantity, figure.range?)));
            let ends =
                first.map(|(unit, (low, high))| [low, high].map(|end| unit.with_number(end).to_string()));
            cells.extend(ends.unwrap_or_default());
        }
        if wrong {
            cells.push(if row.wrong > 0 { row.wrong.to_string() } else { String::new() });
        }
        if failed {
            cells.push(row.error.unwrap_or_default().into());
        }
        cells
    };
    (header, rows.iter().map(line).collect())
}

/// Writes the table of figures.
pub(super) fn figures(
    out: &mut String,
    document: &Document<Value>,
    rows: &[Measured<'_>],
    differing: &[String],
) {
    let (header, lines) = figure_table(rows, differing);
    if !lines.is_empty() && !header.is_empty() {
        out.push_str("<h3>Figures</h3>\n");
        table(out, &header, &lines);
    }
    for note in &document.notes {
        let _ = writeln!(out, "<p class=\"soft\">{}</p>", escaped(note));
    }
}

/// The percentiles of a table of latencies.
const PERCENTILES: [(&str, &str); 7] = [
    ("min", "min_ns"),
    ("mean", "mean_ns"),
    ("p50", "p50_ns"),
    ("p90", "p90_ns"),
    ("p99", "p99_ns"),
    ("p99.9", "p999_ns"),
    ("max", "max_ns"),
];

/// Writes the percentiles of a row's latencies, of each stage too, and the histogram of all.
pub(super) fn latencies(out: &mut String, row: &Measured<'_>, name: &str) {
    let places = [
        ("latency", "/latency"),
        ("single operations", "/latency_percentiles"),
        ("stage queue", "/stages/queue"),
        ("stage process", "/stages/process"),
        ("stage send", "/stages/send"),
        ("all stages", "/stages/total"),
    ];
    let found: Vec<(&str, &Value)> = places
        .into_iter()
        .filter_map(|(name, place)| Some((name, row.row.pointer(place).filter(|found| found.is_object())?)))
        .collect();
    if found.is_empty() || row.error.is_some() {
        return;
    }
    let of = if name.is_empty() { String::new() } else { format!(": {name}") };
    let _ = writeln!(out, "<h3>Latency{}</h3>", escaped(&of));
    let time = |found: &Value, key: &str| found.get(key).and_then(Value::as_f64);
    let bins = found[0].1.get("histogram").and_then(Value::as_array).into_iter().flatten();
    let bins: Vec<(f64, u64)> = bins
        .filter_map(|bin| Some((bin.get("up_to_ns")?.as_f64()?, bin.get("count")?.as_u64()?)))
        .filter(|(time, _)| *time >= 1.0 && time.is_finite())
        .collect();
    let marks = [("p50", "p50_ns"), ("p99", "p99_ns"), ("p99.9", "p999_ns")];
    let marks: Vec<(&str, f64)> =
        marks.into_iter().filter_map(|(name, key)| Some((name, time(found[0].1, key)?))).collect();
    chart::histogram(out, &bins, &marks);
    let header: Vec<String> =
        [""].into_iter().chain(PERCENTILES.map(|(name, _)| name)).map(String::from).collect();
    let line = |(name, found): &(&str, &Value)| {
        let times = PERCENTILES.iter().map(|(_, key)| time(found, key));
        let times = times.map(|time| time.map(|time| Quantity::Time(time).to_string()).unwrap_or_default());
        [name.to_string()].into_iter().chain(times).collect()
    };
    table(out, &header, &found.iter().map(line).collect::<Vec<Vec<String>>>());
}

/// Writes the sentences, predictions and rates over time of a session of `mix`.
pub(super) fn mix(out: &mut String, session: &Value) {
    let list = |key: &str| session.get(key).and_then(Value::as_array).into_iter().flatten();
    let sentences: Vec<&str> =
        list("verdicts").filter_map(|verdict| verdict.get("sentence")?.as_str()).collect();
    if !sentences.is_empty() {
        out.push_str("<h3>What limits each load</h3>\n<ul>");
        sentences.iter().for_each(|sentence| {
            let _ = write!(out, "<li>{}</li>", escaped(sentence));
        });
        out.push_str("</ul>\n");
    }
    let mut bars = Vec::new();
    for prediction in list("predictions") {
        let unit = match prediction.get("operations").and_then(Value::as_bool) {
            Some(true) => Quantity::PerSecond,
            _ => Quantity::ByteRate,
        };
        let load = prediction.get("load").and_then(Value::as_str).unwrap_or_default();
        let number = |place: &str| prediction.pointer(place).and_then(Value::as_f64);
        let range = |low: &str, high: &str| number(low).zip(number(high));
        let residual = number("/residual").map(|share| format!("({:+.1} % off)", share * 100.0));
        for (what, value, range, words) in [
            (
                "predicted",
                number("/predicted_per_second"),
                range("/low_per_second", "/high_per_second"),
                residual,
            ),
            (
                "measured",
                number("/measured_per_second/median"),
                range("/measured_per_second/low", "/measured_per_second/high"),
                None,
            ),
        ] {
            let Some(value) = value else { continue };
            let name = format!("{load}, {what}");
            bars.push(Bar {
                name,
                value: unit(value),
                range,
                ceiling: None,
                words: words.unwrap_or_default(),
            });
        }
    }
    // Rates of loads that move no bytes have another unit and a chart of their own.
    for unit in ["_bytes_per_second", "_per_second"] {
        let (own, others): (Vec<Bar>, _) = bars.into_iter().partition(|bar| bar.value.key_suffix() == unit);
        bars = others;
        if !own.is_empty() {
            out.push_str("<h3>Predicted and measured together</h3>\n");
            chart::bars(out, &own);
        }
    }
    let names: Vec<&str> = list("loads").filter_map(|load| load.get("name")?.as_str()).collect();
    let mut series: Vec<(String, Vec<(f64, Quantity)>)> =
        names.iter().map(|name| (name.to_string(), Vec::new())).collect();
    for observation in list("observations").filter(|one| one.get("void").is_none_or(Value::is_null)) {
        let Some(at) = observation.get("at_ns").and_then(Value::as_f64) else { continue };
        let loads = observation.get("loads").and_then(Value::as_array).into_iter().flatten();
        for (load, (_, points)) in loads.zip(&mut series) {
            let rate = load.get("bytes_per_second").and_then(Value::as_f64).filter(|rate| *rate > 0.0);
            points.extend(rate.map(|rate| (at / 1e9, Quantity::ByteRate(rate))));
        }
    }
    series.retain(|(_, points)| points.len() > 1);
    if !series.is_empty() {
        out.push_str("<h3>Rates over time</h3>\n");
        chart::over_time(out, &series);
    }
}

/// The most rows and columns of the table of a result without figures.
const MOST_PLAIN: (usize, usize) = (500, 30);

/// Writes the rows of a result without figures, such as that of `topo`, as a table of all values.
pub(super) fn plain(out: &mut String, document: &Document<Value>) {
    // A single row that contains a list of objects is about this list.
    let lists = |row: &Value| {
        let fields: Vec<(String, Vec<Value>)> = row
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_array()?.clone())))
            .filter(|(_, list)| list.iter().any(Value::is_object))
            .collect();
        fields
    };
    let tables = match &document.results[..] {
        [one] if !lists(one).is_empty() => lists(one),
        rows => vec![("Rows".to_string(), rows.to_vec())],
    };
    for (name, rows) in tables.iter().filter(|(_, rows)| !rows.is_empty()) {
        let (header, mut lines) = crate::csv::columns(rows);
        lines.truncate(MOST_PLAIN.0);
        // Lists of objects are in the data only, and a column without values says nothing.
        let nested = |text: &String| text.starts_with('{');
        let shown = |column: &usize| {
            let texts = || lines.iter().map(|line| &line[*column]);
            texts().any(|text| !text.is_empty()) && !texts().any(nested)
        };
        let columns: Vec<usize> = (0..header.len()).filter(shown).take(MOST_PLAIN.1).collect();
        let cell = |key: &str, text: &str| match text.parse::<f64>() {
            Ok(number) => Quantity::of_key(key, number).1.to_string(),
            Err(_) => text.to_string(),
        };
        let title = |key: &str| Quantity::of_key(key, 0.0).0.replace(['_', '.'], " ");
        let titles: Vec<String> = columns.iter().map(|column| title(&header[*column])).collect();
        let lines = lines
            .iter()
            .map(|line| columns.iter().map(|column| cell(&header[*column], &line[*column])).collect());
        let _ = writeln!(out, "<h3>{}</h3>", escaped(&super::capital(name)));
        table(out, &titles, &lines.collect::<Vec<Vec<String>>>());
        if rows.len() > MOST_PLAIN.0 {
            let _ = writeln!(out, "<p class=\"soft\">{} of {} rows are shown.</p>", MOST_PLAIN.0, rows.len());
        }
    }
}

/// Returns the settings on which all rows agree, the machine, the command and the build.
pub(super) fn facts_of(
    result: &Stored,
    rows: &[Measured<'_>],
    differing: &[String],
) -> Vec<(String, String)> {
    let document = &result.document;
    let (host, command) = (&document.host, &document.command);
    let shared = rows.first().map(|row| row.identity.clone()).unwrap_or_default();
    let shared: Vec<&Cell> = shared.iter().filter(|cell| !differing.contains(&cell.name)).collect();
    let shared: Vec<String> = shared.iter().map(|cell| format!("{} {}", cell.name, cell.value)).collect();
    let memory = Some(host.memory_bytes).filter(|bytes| *bytes > 0).map(units::bytes);
    let machine = [host.cpu.clone(), units::counted(host.cores as u64, "core")].into_iter().chain(memory);
    let machine = machine.chain([format!("Linux {}", host.kernel)]).chain(document.devices.clone());
    let build = match (&command.build.id, command.build.optimised) {
        (Some(id), true) => format!(", build {id}"),
        (Some(id), false) => format!(", build {id}, without optimisation"),
        (None, _) => String::new(),
    };
    let checked = |key: &str| {
        rows.iter().filter_map(|row| row.row.pointer(&format!("/verification/{key}"))?.as_u64()).sum::<u64>()
    };
    let method =
        rows.iter().find_map(|row| row.row.pointer("/verification/method")?.as_str()).unwrap_or_default();
    let (packets, bytes) = (checked("verified_packets"), checked("verified_bytes"));
    let checked = match (packets, bytes) {
        (0, 0) => String::new(),
        (0, bytes) => format!("{} ({method})", units::bytes(bytes)),
        (packets, _) => format!("{packets} packets ({method})"),
    };
    vec![
        ("Settings".into(), shared.join(", ")),
        ("Verified".into(), checked),
        ("Command".into(), result.command.clone()),
        ("Machine".into(), machine.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")),
        ("Build".into(), format!("inlane {}{build}", command.version)),
        ("Measured".into(), document.started_at.clone()),
    ]
}

/// Writes the section about the run: settings, command, machine and build, and the data.
pub(super) fn about(out: &mut String, result: &Stored, rows: &[Measured<'_>], differing: &[String]) {
    out.push_str("<h3>What was run</h3>\n");
    facts(out, &facts_of(result, rows, differing));
    out.push_str(&data_link(&result.document));
}
