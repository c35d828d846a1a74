//! The figure of a sweep. It shows the rate, the latency, and the speed of a competing job against one
//! parameter.
//!
//! * Each line of a panel belongs to one method. If the method is not swept, each line belongs to one value
//!   of the first swept parameter that is not on the x axis.
//! * Each combination of values of the remaining swept parameters gets a panel of its own.
//! * If a panel would have more than six lines, each line gets a panel of its own.

use inlane_forward::experiment::OFFERED;
use inlane_forward::result::PacketResult;
use inlane_report::{Line, Plot, Point, Scale};
use inlane_result::{Document, Quantity, Value};
use std::collections::BTreeSet;

/// If the largest x value is at least this multiple of the smallest, the x axis is logarithmic.
const LOG_FROM: f64 = 6.0;
/// The most lines of a panel. More lines could not be told apart.
const MOST_LINES: usize = 6;

/// Draws the results against the parameter `axis`. `keys` are the other swept parameters. Returns `None` if
/// there is nothing to draw.
pub fn svg(document: &Document<PacketResult>, axis: &str, keys: &[&str]) -> Option<String> {
    let results = &document.results;
    let by_size = axis == "size";
    // Show bits per second in a sweep over packet sizes, and otherwise packets per second.
    let scale = |result: &PacketResult| match by_size {
        true => result.tx.bits_per_packet().map(|bits| bits / 1e9),
        false => Some(1e-6),
    };
    let rate = |result: &PacketResult| {
        let scale = scale(result)?;
        let spread = result.repeats.as_ref().map(|repeats| &repeats.packets_per_second);
        let spread = spread.map(|rate| (rate.min * scale, rate.max * scale));
        Some((result.rate() * scale, spread))
    };
    let ceiling = |result: &PacketResult| Some(result.ceiling.as_ref()?.packets_per_second? * scale(result)?);
    let p50 = |result: &PacketResult| {
        let spread = result.repeats.as_ref().and_then(|repeats| repeats.p50_ns.as_ref());
        Some((result.p50_ns()? / 1e3, spread.map(|p50| (p50.min / 1e3, p50.max / 1e3))))
    };
    let p99 = |result: &PacketResult| Some(result.p99_ns()? / 1e3);
    let kept = |result: &PacketResult| Some((result.competitor.as_ref()?.kept * 100.0, None));
    let none = |_: &PacketResult| None;

    let (x_label, common) = (label(axis, results), common(results, axis, keys));
    let plot = |title: &str, y: &str, y_scale: Scale, lines: Vec<Line>| {
        let xs = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.x));
        let (least, most) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
        Plot {
            title: format!("{title}: {common}"),
            x: x_label.clone(),
            y: y.into(),
            x_scale: if least > 0.0 && most / least >= LOG_FROM { Scale::Log } else { Scale::Linear },
            y_scale,
            lines,
        }
    };
    // If x is the offered rate, its axis is logarithmic. Make the y axis logarithmic, too. Runs without loss
    // then lie on a straight line.
    let rate_scale = if ["rate", OFFERED].contains(&axis) { Scale::Log } else { Scale::Linear };
    let rate_unit = if by_size { "Gb/s of frames" } else { "Mpps" };
    let plots = [
        plot("Rate", rate_unit, rate_scale, lines(results, axis, keys, rate, none, ceiling)),
        plot("Latency", "us (p50; dashed: p99)", Scale::Log, lines(results, axis, keys, p50, p99, none)),
        plot(
            "Speed of the competing job",
            "% of its speed alone",
            Scale::Linear,
            lines(results, axis, keys, kept, none, none),
        ),
    ];
    inlane_report::figure(&plots, &document.source())
}

/// Returns the label of the x axis: the parameter and its unit.
fn label(key: &str, results: &[PacketResult]) -> String {
    let value = results.iter().find_map(|result| result.parameters.get(key)?.quantity());
    let unit = value.map_or("", Quantity::drawn_unit);
    match (key, unit) {
        (OFFERED | "rate", unit) => format!("offered rate, {unit}"),
        ("size", _) => "packet size, bytes".into(),
        ("burst", _) => "burst size, packets".into(),
        (_, "") => key.into(),
        (_, unit) => format!("{key}, {unit}"),
    }
}

/// Returns the parameters that are the same in all results, for the figure's title.
fn common(results: &[PacketResult], axis: &str, keys: &[&str]) -> String {
    let Some(first) = results.iter().find(|result| result.error.is_none()) else { return String::new() };
    let value = |key: &str| -> Option<String> {
        let drawn = key == axis || keys.contains(&key);
        first.parameters.get(key).filter(|_| !drawn).map(Value::to_string)
    };
    let mut words: Vec<String> = value("function").into_iter().collect();
    words.extend(value("on").map(|on| format!("on {on}")));
    words.extend(value("method"));
    words.extend(value("burst").map(|burst| format!("burst {burst}")));
    words.extend(value("memory").map(|memory| format!("memory {memory}")));
    // The ports' names contain the packet size. If the size is swept, remove the size from the names, because
    // it differs between the points.
    let swept = axis == "size" || keys.contains(&"size");
    let port = |port: &String| match swept {
        true => port.split([':', ',']).next().unwrap_or_default().to_string(),
        false => port.clone(),
    };
    words.push(first.ports.iter().map(port).collect::<Vec<_>>().join(" to "));
    words.join(", ")
}

/// Splits `keys`, the swept parameters that are not on the x axis. Returns the parameter that distinguishes
/// the lines inside a panel, and the parameters that distinguish the panels. If a panel would have more than
/// [`MOST_LINES`] lines, returns `None` for the lines, and every parameter distinguishes panels.
fn split_keys<'a>(keys: &[&'a str], results: &[PacketResult]) -> (Option<&'a str>, Vec<&'a str>) {
    let name = keys.iter().find(|key| **key == "method").or(keys.first()).copied();
    let values = results.iter().filter_map(|result| result.parameters.get(name?)).map(Value::to_string);
    let name = name.filter(|_| values.collect::<BTreeSet<_>>().len() <= MOST_LINES);
    (name, keys.iter().copied().filter(|key| Some(*key) != name).collect())
}

/// Returns one line of the figure for each combination of the values of `keys`, in the order of the results.
/// The functions `solid`, `dashed` and `ceiling` return the y values of a result.
fn lines(
    results: &[PacketResult],
    axis: &str,
    keys: &[&str],
    solid: impl Fn(&PacketResult) -> Option<(f64, Option<(f64, f64)>)>,
    dashed: impl Fn(&PacketResult) -> Option<f64>,
    ceiling: impl Fn(&PacketResult) -> Option<f64>,
) -> Vec<Line> {
    let (name_key, panel_keys) = split_keys(keys, results);
    let mut lines: Vec<Line> = Vec::new();
    for result in results.iter().filter(|result| result.error.is_none()) {
        let Some(x) = result.parameters.get(axis).and_then(Value::quantity) else { continue };
        let x = x.drawn();
        let words = |keys: &[&str]| {
            let words: Vec<_> = keys
                .iter()
                .filter_map(|&key| {
                    let value = result.parameters.get(key)?;
                    // Leave out the names of these parameters, because their values are clear without them.
                    let plain = ["method", "on", "function", "memory"].contains(&key);
                    Some(if plain { value.to_string() } else { format!("{key} {value}") })
                })
                .collect();
            words.join(", ")
        };
        let (name, panel) = (words(&[name_key.unwrap_or("method")]), words(&panel_keys));
        let known = lines.iter().position(|line| line.name == name && line.panel == panel);
        let index = known.unwrap_or_else(|| {
            lines.push(Line::new(name, panel));
            lines.len() - 1
        });
        let line = &mut lines[index];
        line.points.extend(solid(result).map(|(y, spread)| Point { x, y, spread }));
        line.dashed.extend(dashed(result).map(|y| (x, y)));
        line.ceiling.extend(ceiling(result).map(|y| (x, y)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(burst: &str, method: &str, rate: f64) -> PacketResult {
        let parameters = [("burst", burst), ("method", method), ("size", "64")];
        let value =
            |text: &str| text.parse().map_or_else(|_| text.into(), |n| Value::from(Quantity::Number(n)));
        let parameters = parameters.into_iter().map(|(key, text)| (key, value(text)));
        let mut result = PacketResult { parameters: parameters.collect(), ..PacketResult::default() };
        result.tx.packets_per_second = rate;
        result
    }

    /// A line of the figure: its name, the name of its panel, and its points.
    type Drawn = (String, String, Vec<(f64, f64)>);

    fn drawn(results: &[PacketResult], keys: &[&str]) -> Vec<Drawn> {
        let rate = |result: &PacketResult| Some((result.tx.packets_per_second, None));
        let lines = lines(results, "burst", keys, rate, |_| None, |_| None);
        let points = |line: &Line| line.points.iter().map(|point| (point.x, point.y)).collect();
        lines.iter().map(|line| (line.name.clone(), line.panel.clone(), points(line))).collect()
    }

    #[test]
    fn each_combination_is_a_line_and_failed_points_are_left_out() {
        let mut results =
            vec![result("16", "single", 1.0), result("16", "split", 2.0), result("32", "single", 3.0)];
        results.push(PacketResult {
            error: Some(inlane_result::RowError::new(inlane_forward::Error::Leaked { buffers: 1 })),
            ..result("32", "split", 0.0)
        });
        let found = drawn(&results, &["method"]);
        let single = vec![(16.0, 1.0), (32.0, 3.0)];
        assert_eq!(found[0], ("single".into(), String::new(), single));
        assert_eq!(found[1], ("split".into(), String::new(), vec![(16.0, 2.0)]));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn titles_name_the_ports_without_a_swept_size() {
        let mut one = result("16", "single", 1.0);
        one.ports = vec!["null:64".into(), "null".into()];
        assert_eq!(common(std::slice::from_ref(&one), "burst", &[]), "single, null:64 to null");
        assert_eq!(common(&[one], "size", &[]), "single, burst 16, null to null");
    }

    #[test]
    fn the_method_names_lines_and_the_other_keys_name_panels() {
        let found = drawn(&[result("16", "single", 1.0)], &["size", "method"]);
        assert_eq!(found[0], ("single".into(), "size 64".into(), vec![(16.0, 1.0)]));
    }

    #[test]
    fn more_than_six_lines_get_a_panel_each() {
        let sizes = |count: u32| -> Vec<PacketResult> {
            let sized = |size: u32| {
                let mut one = result("16", "single", 1.0);
                one.parameters.set("size", Quantity::Number(size.into()));
                one
            };
            (64..64 + count).map(sized).collect()
        };
        let panels = |count: u32| -> BTreeSet<(String, String)> {
            drawn(&sizes(count), &["size"]).into_iter().map(|(name, panel, _)| (name, panel)).collect()
        };
        assert!(panels(6).iter().all(|(name, panel)| name.starts_with("size ") && panel.is_empty()));
        let seven = panels(7);
        assert_eq!(seven.len(), 7);
        assert!(seven.iter().all(|(name, panel)| name == "single" && panel.starts_with("size ")));
    }
}
