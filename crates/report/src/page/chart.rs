//! The charts of a page. Shapes are drawn with HTML and SVG that stretch to the width of the screen, and words beside them stay
//! in the size of the page's text, so a chart can be read on a phone.

use super::html::escaped;
use crate::plot::round_ticks;
use inlane_result::Quantity;
use std::fmt::Write;

/// A bar, with the ceiling and the range of repeats if they are known.
pub(super) struct Bar {
    pub name: String,
    pub value: Quantity,
    pub range: Option<(f64, f64)>,
    pub ceiling: Option<f64>,
    /// Words behind the value, such as the share of the ceiling.
    pub words: String,
}

/// A ceiling above the largest value times this factor is named in words only, because it would flatten the bars.
const HIGHEST_CEILING: f64 = 3.0;

/// Draws bars from zero, one below the other. All values have the same unit.
pub(super) fn bars(out: &mut String, bars: &[Bar]) {
    let reach = |bar: &Bar| bar.range.map_or(0.0, |(_, high)| high).max(bar.value.number());
    let values = bars.iter().map(reach).fold(0.0, f64::max);
    let near = |ceiling: &f64| *ceiling <= values * HIGHEST_CEILING;
    let most = bars.iter().filter_map(|bar| bar.ceiling.filter(near)).fold(values, f64::max);
    if most <= 0.0 {
        return;
    }
    let percent = |value: f64| (value / most * 100.0).clamp(0.0, 100.0);
    out.push_str("<div class=\"bars\">\n");
    for bar in bars {
        let _ = write!(
            out,
            "<span class=\"name\">{}</span><span class=\"track\"><span class=\"bar\" style=\"width:{:.2}%\"></span>",
            escaped(&bar.name),
            percent(bar.value.number())
        );
        if let Some((low, high)) = bar.range {
            let (left, width) = (percent(low), percent(high) - percent(low));
            let _ = write!(out, "<span class=\"range\" style=\"left:{left:.2}%;width:{width:.2}%\"></span>");
        }
        if let Some(ceiling) = bar.ceiling.filter(near) {
            let _ = write!(out, "<span class=\"ceiling\" style=\"left:{:.2}%\"></span>", percent(ceiling));
        }
        let words = if bar.words.is_empty() { String::new() } else { format!(" {}", escaped(&bar.words)) };
        let _ =
            writeln!(out, "</span><span class=\"value\">{}{words}</span>", escaped(&bar.value.to_string()));
    }
    out.push_str("</div>\n");
    let shown = |test: fn(&Bar) -> bool| bars.iter().any(test);
    let mut legend = Vec::new();
    if shown(|bar| bar.range.is_some()) {
        legend.push("thin line: spread of the repeats");
    }
    if bars.iter().filter_map(|bar| bar.ceiling).any(|ceiling| near(&ceiling)) {
        legend.push("mark: ceiling");
    }
    if !legend.is_empty() {
        let _ = writeln!(out, "<p class=\"legend\">{}</p>", legend.join("; "));
    }
}

/// Draws a histogram of times: for each bin its largest time and its number. The axis is logarithmic.
pub(super) fn histogram(out: &mut String, bins: &[(f64, u64)], marks: &[(&str, f64)]) {
    // A bin begins this factor below its end.
    let width = 0.25f64.exp2();
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return };
    let (from, to) = ((first.0 / width).log2() - 0.25, last.0.log2() + 0.25);
    let at = |time: f64| ((time.max(1e-9).log2() - from) / (to - from) * 1000.0).clamp(0.0, 1000.0);
    let most = bins.iter().map(|bin| bin.1).max().unwrap_or(0).max(1) as f64;
    out.push_str("<div class=\"plot\"><svg viewBox=\"0 0 1000 160\" preserveAspectRatio=\"none\" aria-hidden=\"true\">");
    for (end, count) in bins {
        // A square root keeps rare slow cases visible beside the many usual ones.
        let (x, height) = (at(end / width), (*count as f64 / most).sqrt() * 155.0);
        let _ = write!(
            out,
            "<rect class=\"column\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
            160.0 - height,
            (at(*end) - x - 1.0).max(1.0)
        );
    }
    for (_, time) in marks {
        let x = at(*time);
        let _ = write!(out, "<line class=\"mark\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"160\"/>");
    }
    out.push_str("</svg><div class=\"axis\">");
    for (place, name) in decades(from.exp2(), to.exp2()) {
        let _ = write!(out, "<span style=\"left:{:.1}%\">{}</span>", at(place) / 10.0, escaped(&name));
    }
    let marks: Vec<String> =
        marks.iter().map(|(name, time)| format!("{name} {}", Quantity::Time(*time))).collect();
    let _ = writeln!(
        out,
        "</div></div>\n<p class=\"legend\">heights are square roots of the counts; lines: {}</p>",
        escaped(&marks.join(", "))
    );
}

/// Returns the round times between two times, or the ends if there is none.
fn decades(from: f64, to: f64) -> Vec<(f64, String)> {
    let steps: &[f64] = if to / from > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (0..13).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    let round: Vec<f64> = powers.filter(|time| (from * 1.05..=to / 1.05).contains(time)).collect();
    let times = if round.is_empty() { vec![from * 1.02, to * 0.98] } else { round };
    let whole = |time: f64| match time {
        time if time < 1e3 => format!("{time:.0} ns"),
        time if time < 1e6 => format!("{:.0} us", time / 1e3),
        time if time < 1e9 => format!("{:.0} ms", time / 1e6),
        time => format!("{:.0} s", time / 1e9),
    };
    times.into_iter().map(|time| (time, whole(time))).collect()
}

/// Draws values over time as points, one colour for each series.
pub(super) fn over_time(out: &mut String, series: &[(String, Vec<(f64, Quantity)>)]) {
    let all = || series.iter().flat_map(|(_, points)| points);
    let most = all().map(|(_, value)| value.number()).fold(0.0, f64::max);
    let last = all().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    let Some((_, unit)) = all().next().filter(|_| most > 0.0 && last > 0.0) else { return };
    let ticks = round_ticks(0.0, most, 4.0);
    let top = ticks.last().copied().unwrap_or(most).max(most);
    let height = |value: f64| 198.0 - value / top * 190.0;
    out.push_str("<div class=\"plot time\"><svg viewBox=\"0 0 1000 200\" preserveAspectRatio=\"none\" aria-hidden=\"true\">");
    for tick in &ticks {
        let y = height(*tick);
        let _ = write!(out, "<line class=\"grid\" x1=\"0\" y1=\"{y:.1}\" x2=\"1000\" y2=\"{y:.1}\"/>");
    }
    for (index, (_, points)) in series.iter().enumerate() {
        for (seconds, value) in points {
            let (x, y) = (seconds / last * 990.0 + 5.0, height(value.number()));
            // A line without length and with round ends is a dot that the stretched picture does not distort.
            let _ = write!(out, "<path class=\"dot c{}\" d=\"M{x:.1} {y:.1}h0\"/>", index % 8);
        }
    }
    out.push_str("</svg><div class=\"up\">");
    for tick in &ticks {
        let _ = write!(
            out,
            "<span style=\"top:{:.1}%\">{}</span>",
            height(*tick) / 2.0,
            if *tick == 0.0 { "0".into() } else { escaped(&unit.with_number(*tick).to_string()) }
        );
    }
    out.push_str("</div><div class=\"axis\">");
    for tick in round_ticks(0.0, last, 4.0).iter().filter(|tick| **tick <= last) {
        let _ = write!(out, "<span style=\"left:{:.1}%\">{} s</span>", tick / last * 99.0 + 0.5, tick);
    }
    out.push_str("</div></div>\n<p class=\"legend\">");
    for (index, (name, _)) in series.iter().enumerate() {
        let _ = write!(out, "<span class=\"key k{}\"></span>{} ", index % 8, escaped(name));
    }
    out.push_str("</p>\n");
}
