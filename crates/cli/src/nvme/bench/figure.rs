//! The figure of a bench: rates and latencies by block size, or by depth if there is only one block size.

use inlane_core::units::counted;
use inlane_nvme::bench::IoResult;
use inlane_report::{Line, Plot, Point, Scale};
use inlane_result::{Document, Quantity};

/// Draws the rows. Returns `None` if no row has a value.
pub fn svg(document: &Document<IoResult>) -> Option<String> {
    let rows: Vec<&IoResult> = document.results.iter().filter(|row| row.error.is_none()).collect();
    let first = rows.first()?;
    let by_size = rows.iter().any(|row| row.block_bytes != first.block_bytes);
    let x = |row: &IoResult| if by_size { row.block_bytes as f64 } else { f64::from(row.iodepth) };
    let plot = |title: &str, y: &str, y_scale: Scale, value: &dyn Fn(&IoResult) -> Option<Drawn>| {
        let mut lines: Vec<Line> = Vec::new();
        for &row in &rows {
            let Some(drawn) = value(row) else { continue };
            let name = match by_size {
                true => format!("iodepth {}", row.iodepth),
                false => format!("bs {}", Quantity::Bytes(row.block_bytes)),
            };
            let panel = if row.rw.reads() && row.rw.writes() { row.operation.as_str() } else { "" };
            let index = lines.iter().position(|line| line.name == name && line.panel == panel);
            let index = index.unwrap_or_else(|| {
                lines.push(Line::new(name, panel));
                lines.len() - 1
            });
            lines[index].points.push(Point { x: x(row), y: drawn.value, spread: drawn.spread });
            lines[index].dashed.extend(drawn.dashed.map(|y| (x(row), y)));
        }
        Plot {
            title: format!("{title}: {}, {}", row_words(first), counted(first.jobs.into(), "job")),
            x: if by_size {
                "bytes of an operation".into()
            } else {
                "operations in flight of each job".into()
            },
            y: y.into(),
            x_scale: Scale::Log,
            y_scale,
            lines,
        }
    };
    let rate = |row: &IoResult| {
        let scale = if by_size { row.block_bytes as f64 / 1e9 } else { 1e-3 };
        let spread = row.repeats.as_ref().map(|repeats| &repeats.operations_per_second);
        Some(Drawn {
            value: spread.map_or(row.operations_per_second, |spread| spread.median) * scale,
            spread: spread.map(|spread| (spread.min * scale, spread.max * scale)),
            dashed: None,
        })
    };
    let latency = |row: &IoResult| {
        let (found, repeats) = (row.latency.as_ref()?, row.repeats.as_ref());
        let p50 = repeats.and_then(|repeats| repeats.p50_ns.as_ref());
        let p99 = repeats.and_then(|repeats| repeats.p99_ns.as_ref());
        Some(Drawn {
            value: p50.map_or(found.p50_ns, |p50| p50.median) / 1e3,
            spread: p50.map(|p50| (p50.min / 1e3, p50.max / 1e3)),
            dashed: Some(p99.map_or(found.p99_ns, |p99| p99.median) / 1e3),
        })
    };
    let unit = if by_size { "GB/s" } else { "thousand operations per second" };
    let plots = [
        plot("Rate", unit, Scale::Linear, &rate),
        plot("Latency", "us (p50; dashed: p99)", Scale::Log, &latency),
    ];
    inlane_report::figure(&plots, &document.source())
}

/// What is drawn of a row.
struct Drawn {
    value: f64,
    spread: Option<(f64, f64)>,
    dashed: Option<f64>,
}

fn row_words(row: &IoResult) -> String {
    match row.read_percent {
        Some(percent) => format!("{}, {percent} % reads", row.rw),
        None => row.rw.to_string(),
    }
}
