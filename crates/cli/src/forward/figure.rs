//! The figure of a sweep: rate and latency, and what another job kept of its speed, against one parameter, a line for each
//! combination of the others.

use inlane_core::result::Document;
use inlane_forward::experiment::OFFERED;
use inlane_forward::result::{PacketResult, Quantity};
use inlane_report::{Line, Plot, Scale};

/// The label of the axis: the parameter and its unit.
fn label(key: &str, results: &[PacketResult]) -> String {
    let value = results.iter().find_map(|result| result.parameters.get(key));
    let unit = value.map_or("", Quantity::drawn_unit);
    match (key, unit) {
        (OFFERED | "rate", unit) => format!("offered rate, {unit}"),
        ("size", _) => "packet size, bytes".into(),
        ("burst", _) => "burst size, packets".into(),
        (_, "") => key.into(),
        (_, unit) => format!("{key}, {unit}"),
    }
}

/// The figure against `axis`; `None` when nothing can be drawn.
pub fn svg(document: &Document<PacketResult>, axis: &str, line_keys: &[&str]) -> Option<String> {
    let results = &document.results;
    let by_size = axis == "size";
    let rate = |result: &PacketResult| {
        let packets = result.rate();
        Some(if by_size { packets * result.tx.bits_per_packet()? / 1e9 } else { packets / 1e6 })
    };
    let p50 = |result: &PacketResult| Some(result.p50_ns()? / 1e3);
    let p99 = |result: &PacketResult| Some(result.p99_ns()? / 1e3);
    let kept = |result: &PacketResult| Some(result.competitor.as_ref()?.kept * 100.0);
    let nothing = |_: &PacketResult| None;
    let x_label = label(axis, results);
    let what = fixed(results, axis, line_keys);
    let plot = |title: &str, y: &str, y_scale: Scale, lines: Vec<Line>| {
        let xs = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.0));
        let (least, most) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
        Plot {
            title: format!("{title}: {what}"),
            x: x_label.clone(),
            y: y.into(),
            x_scale: if least > 0.0 && most / least >= 6.0 { Scale::Log } else { Scale::Linear },
            y_scale,
            lines,
        }
    };
    // What was offered against what went through: both axes alike.
    let rate_scale = if ["rate", OFFERED].contains(&axis) { Scale::Log } else { Scale::Linear };
    let rate_unit = if by_size { "Gb/s of frames" } else { "Mpps" };
    inlane_report::figure(&[
        plot("Rate", rate_unit, rate_scale, lines(results, axis, line_keys, rate, nothing)),
        plot("Latency", "us: p50, and dashed p99", Scale::Log, lines(results, axis, line_keys, p50, p99)),
        plot(
            "Speed that the other job keeps",
            "% of it alone",
            Scale::Linear,
            lines(results, axis, line_keys, kept, nothing),
        ),
    ])
}

/// What all results have in common, for the title.
fn fixed(results: &[PacketResult], axis: &str, line_keys: &[&str]) -> String {
    let Some(first) = results.iter().find(|result| result.error.is_none()) else { return String::new() };
    let value = |key: &str| -> Option<String> {
        let drawn = key == axis || line_keys.contains(&key);
        first.parameters.get(key).filter(|_| !drawn).map(Quantity::to_string)
    };
    let mut words: Vec<String> = value("function").into_iter().collect();
    words.extend(value("on").map(|on| format!("on {on}")));
    words.extend(value("method"));
    words.extend(value("burst").map(|burst| format!("burst {burst}")));
    words.extend(value("memory").map(|memory| format!("memory {memory}")));
    if axis != "size" && !line_keys.contains(&"size") {
        words.push(first.ports.join(" to "));
    }
    words.join(", ")
}

/// A line for each combination of `keys`, in the order in which they come.
fn lines(
    results: &[PacketResult],
    axis: &str,
    keys: &[&str],
    solid: impl Fn(&PacketResult) -> Option<f64>,
    dashed: impl Fn(&PacketResult) -> Option<f64>,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for result in results.iter().filter(|result| result.error.is_none()) {
        let Some(x) = result.parameters.get(axis).and_then(Quantity::drawn) else { continue };
        let word = |&key: &&str| {
            let value = result.parameters.get(key)?;
            // Some tell by themselves what they are.
            let plain = ["method", "on", "function", "memory"].contains(&key);
            Some(if plain { value.to_string() } else { format!("{key} {value}") })
        };
        let words: Vec<_> = keys.iter().filter_map(word).collect();
        let name = words.join(", ");
        if !lines.iter().any(|line| line.name == name) {
            lines.push(Line { name: name.clone(), points: Vec::new(), dashed: Vec::new() });
        }
        let line = lines.iter_mut().find(|line| line.name == name).expect("just put there");
        line.points.extend(solid(result).map(|y| (x, y)));
        line.dashed.extend(dashed(result).map(|y| (x, y)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_combination() {
        let result = |burst: &str, method: &str, rate: f64| {
            let parameters = [("burst", burst), ("method", method)];
            let mut result = PacketResult {
                parameters: parameters
                    .into_iter()
                    .map(|(key, value)| (key, Quantity::of_flag("N", value)))
                    .collect(),
                ..PacketResult::default()
            };
            result.tx.packets_per_second = rate;
            result
        };
        let mut results =
            vec![result("16", "single", 1.0), result("16", "split", 2.0), result("32", "single", 3.0)];
        results.push(PacketResult { error: Some("failed".into()), ..result("32", "split", 0.0) });
        let found = lines(&results, "burst", &["method"], |r| Some(r.tx.packets_per_second), |_| None);
        let found: Vec<_> = found.into_iter().map(|line| (line.name, line.points)).collect();
        let single = vec![(16.0, 1.0), (32.0, 3.0)];
        assert_eq!(found, [("single".to_string(), single), ("split".to_string(), vec![(16.0, 2.0)])]);
    }
}
