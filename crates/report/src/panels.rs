//! Draws pictures of loads that run together, as SVG: bars of rates, a matrix of exchanges, and rates over time.

use crate::plot::{Scale, short};
use crate::style::{colours, hexadecimal, with_dark_mode};
use std::fmt::Write;

/// The height of a bar, and the ends of its interval.
pub type Bar = (f64, Option<(f64, f64)>);

/// Bars of one group, such as the predicted and the measured rate of a load.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// The name below the bars.
    pub name: String,
    /// The height of each bar with the ends of its interval. `None` leaves the bar out.
    pub bars: Vec<Option<Bar>>,
}

/// A panel of a picture.
#[derive(Clone, Debug)]
pub enum Panel {
    /// Groups of bars. All groups have the same series.
    Bars {
        /// The title.
        title: String,
        /// The label of the y axis, with the unit.
        y: String,
        /// The names of the bars of each group.
        series: Vec<String>,
        /// The groups.
        groups: Vec<BarGroup>,
    },
    /// Points over time.
    Points {
        /// The title.
        title: String,
        /// The label of the y axis, with the unit.
        y: String,
        /// For each series, its name, and its points: seconds and value.
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
    /// A matrix of shares. A cell has a colour by its share: blue above 0, orange below.
    Matrix {
        /// The title.
        title: String,
        /// The names of the rows.
        rows: Vec<String>,
        /// The names of the columns.
        columns: Vec<String>,
        /// For each row, the share and the text of each cell. `None` leaves the cell empty.
        cells: Vec<Vec<Option<(f64, String)>>>,
    },
}

/// The width of a picture in pixels.
const WIDTH: f64 = 720.0;
/// The height of a panel with bars.
const BARS: f64 = 300.0;
/// The height of a row of a matrix.
const CELL: f64 = 36.0;
/// The space left of the bars and of the matrix.
const LEFT: f64 = 110.0;

/// Draws panels one above the other. `source` is the last line, which names the machine. `None` if nothing can be drawn.
pub fn panels(panels: &[Panel], source: &str) -> Option<String> {
    let mut body = String::new();
    let mut top = 0.0;
    for panel in panels {
        let height = match panel {
            Panel::Bars { title, y, series, groups } => bars(&mut body, top, title, y, series, groups),
            Panel::Points { title, y, series } => points(&mut body, top, title, y, series),
            Panel::Matrix { title, rows, columns, cells } => {
                matrix(&mut body, top, title, rows, columns, cells)
            }
        };
        top += height.unwrap_or(0.0);
    }
    if body.is_empty() {
        return None;
    }
    let letters = (2.0 * (WIDTH - 32.0) / source.chars().count().max(1) as f64).clamp(7.0, 12.0);
    text(&mut body, (16.0, top + 16.0), "start", letters, source);
    let height = top + 26.0;
    let svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <rect x=\"0\" y=\"0\" width=\"{WIDTH}\" height=\"{height}\" opacity=\"1\" fill=\"#FFFFFF\" stroke=\"none\"/>\n{body}</svg>\n"
    );
    Some(with_dark_mode(&svg))
}

fn bars(
    out: &mut String,
    top: f64,
    title: &str,
    y: &str,
    series: &[String],
    groups: &[BarGroup],
) -> Option<f64> {
    let ends = |bar: &(f64, Option<(f64, f64)>)| bar.1.map_or(bar.0, |(_, high)| high.max(bar.0));
    let values = groups.iter().flat_map(|group| group.bars.iter().flatten()).map(ends);
    let frame = Frame::new(top, values)?;
    frame.draw(out, title, y);
    let (base, place) = (frame.base, |value: f64| frame.place(value));
    let names: Vec<&str> = series.iter().map(String::as_str).collect();
    let chosen = colours(&names);
    let width = (WIDTH - 16.0 - LEFT) / groups.len().max(1) as f64;
    let bar_width = (width * 0.8 / series.len().max(1) as f64).min(48.0);
    for (index, group) in groups.iter().enumerate() {
        let middle = LEFT + width * (index as f64 + 0.5);
        let first = middle - bar_width * group.bars.len() as f64 / 2.0;
        for (at, bar) in group.bars.iter().enumerate() {
            let Some((value, interval)) = bar else { continue };
            let (x, y) = (first + bar_width * at as f64, place(*value));
            let colour = hexadecimal(chosen[at]);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                x + 2.0,
                bar_width - 4.0,
                base - y
            );
            if let Some((low, high)) = interval {
                let x = x + bar_width / 2.0;
                line(out, (x, place(*low)), (x, place(*high)), "#000000");
            }
        }
        text(out, (middle, base + 16.0), "middle", 12.0, &group.name);
    }
    legend(out, base + 28.0, &names, &chosen);
    Some(BARS)
}

fn points(
    out: &mut String,
    top: f64,
    title: &str,
    y: &str,
    series: &[(String, Vec<(f64, f64)>)],
) -> Option<f64> {
    let all = || series.iter().flat_map(|(_, points)| points);
    let frame = Frame::new(top, all().map(|(_, value)| *value))?;
    let last = all().map(|(seconds, _)| *seconds).fold(0.0, f64::max).max(1e-9);
    frame.draw(out, title, y);
    let names: Vec<&str> = series.iter().map(|(name, _)| name.as_str()).collect();
    let chosen = colours(&names);
    for ((_, points), colour) in series.iter().zip(&chosen) {
        let colour = hexadecimal(*colour);
        for (seconds, value) in points {
            let (x, y) = (LEFT + seconds / last * (WIDTH - 24.0 - LEFT), frame.place(*value));
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
    text(out, (LEFT, frame.base + 16.0), "start", 12.0, "0 s");
    text(out, (WIDTH - 16.0, frame.base + 16.0), "end", 12.0, &format!("{last:.0} s"));
    legend(out, frame.base + 28.0, &names, &chosen);
    Some(BARS)
}

/// The part of a panel in which values are drawn.
struct Frame {
    top: f64,
    base: f64,
    most: f64,
}

impl Frame {
    /// Creates the frame of a panel at `top`. `None` if no value is above 0.
    fn new(top: f64, values: impl Iterator<Item = f64>) -> Option<Self> {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        (most > 0.0).then_some(Self { top, base: top + BARS - 60.0, most })
    }

    /// Returns the y coordinate of a value.
    fn place(&self, value: f64) -> f64 {
        self.base - (value / self.most).clamp(0.0, 1.0) * (BARS - 110.0)
    }

    fn draw(&self, out: &mut String, title: &str, y: &str) {
        text(out, (16.0, self.top + 22.0), "start", 17.0, title);
        text(out, (16.0, self.top + 42.0), "start", 12.0, y);
        for value in Scale::Linear.ticks(&(0.0..self.most), &[]) {
            let at = self.place(value);
            line(out, (LEFT, at), (WIDTH - 16.0, at), "#808080");
            text(out, (LEFT - 8.0, at + 4.0), "end", 12.0, &short(value));
        }
    }
}

fn legend(out: &mut String, y: f64, names: &[&str], chosen: &[usize]) {
    let mut x = LEFT;
    for (name, colour) in names.iter().zip(chosen) {
        let colour = hexadecimal(*colour);
        let _ =
            writeln!(out, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        text(out, (x + 17.0, y + 11.0), "start", 12.0, name);
        x += 40.0 + 7.0 * name.chars().count() as f64;
    }
}

fn matrix(
    out: &mut String,
    top: f64,
    title: &str,
    rows: &[String],
    columns: &[String],
    cells: &[Vec<Option<(f64, String)>>],
) -> Option<f64> {
    cells.iter().flatten().flatten().next()?;
    text(out, (16.0, top + 22.0), "start", 17.0, title);
    let left = LEFT + 50.0;
    let width = ((WIDTH - 16.0 - left) / columns.len() as f64).min(180.0);
    for (index, name) in columns.iter().enumerate() {
        text(out, (left + width * (index as f64 + 0.5), top + 46.0), "middle", 12.0, name);
    }
    for (row, (name, cells)) in rows.iter().zip(cells).enumerate() {
        let y = top + 54.0 + CELL * row as f64;
        text(out, (left - 8.0, y + CELL / 2.0 + 4.0), "end", 12.0, name);
        for (column, cell) in cells.iter().enumerate() {
            let Some((share, words)) = cell else { continue };
            let colour = hexadecimal(usize::from(*share < 0.0));
            let opacity = (share.abs() * 0.6).clamp(0.05, 0.6);
            let x = left + width * column as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"{opacity:.2}\"/>",
                width - 2.0,
                CELL - 2.0
            );
            text(out, (x + width / 2.0, y + CELL / 2.0 + 4.0), "middle", 12.0, words);
        }
    }
    Some(54.0 + CELL * rows.len() as f64 + 20.0)
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, size: f64, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-family=\"sans-serif\" font-size=\"{size:.1}\" opacity=\"1\" fill=\"#000000\">\n{words}\n</text>"
    );
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line opacity=\"1\" stroke=\"{colour}\" stroke-width=\"1\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bars(bars: Vec<Option<Bar>>) -> Panel {
        let groups = vec![BarGroup { name: "a < b".into(), bars }];
        let series = vec!["predicted".into(), "measured".into()];
        Panel::Bars { title: "Rates".into(), y: "GB/s".into(), series, groups }
    }

    #[test]
    fn bars_have_heights_and_intervals() {
        let panel = of_bars(vec![Some((10.0, Some((8.0, 20.0)))), Some((20.0, None))]);
        let drawn = panels(&[panel], "a machine").unwrap();
        assert!(drawn.contains("a machine") && drawn.contains("prefers-color-scheme: dark"));
        assert!(drawn.contains("a &lt; b"), "names are escaped");
        // The bars end at the base, 240, and have half and all of the 190 pixels above it.
        assert!(drawn.contains("height=\"95.0\"") && drawn.contains("height=\"190.0\""), "{drawn}");
        let missing = panels(&[of_bars(vec![None, Some((20.0, None))])], "").unwrap();
        assert!(missing.contains("height=\"190.0\"") && !missing.contains("height=\"95.0\""));
    }

    #[test]
    fn ticks_are_round_numbers() {
        let drawn = panels(&[of_bars(vec![Some((51.3, None)), Some((103.0, None))])], "").unwrap();
        let ticks = ["0", "20", "40", "60", "80", "100"];
        assert!(ticks.iter().all(|tick| drawn.contains(&format!(">\n{tick}\n"))), "{drawn}");
        assert!(!drawn.contains("51.3") && !drawn.contains(">\n103\n"), "{drawn}");
    }

    #[test]
    fn a_matrix_has_a_cell_for_each_value() {
        let cells = vec![vec![None, Some((0.9, "4 GB/s".into()))], vec![Some((-0.1, "0 B/s".into())), None]];
        let names = || vec!["dma".to_string(), "tx".to_string()];
        let panel = Panel::Matrix { title: "Gains".into(), rows: names(), columns: names(), cells };
        let drawn = panels(&[panel], "").unwrap();
        assert_eq!(drawn.matches("fill-opacity").count(), 2);
        assert!(drawn.contains("4 GB/s") && drawn.contains("0 B/s"));
    }

    #[test]
    fn points_lie_over_time() {
        let series = vec![("dma".to_string(), vec![(0.0, 5.0), (10.0, 10.0)])];
        let drawn = panels(&[Panel::Points { title: "Rates".into(), y: "GB/s".into(), series }], "").unwrap();
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(drawn.contains("cx=\"110.0\" cy=\"145.0\"") && drawn.contains(">\n10 s\n"), "{drawn}");
    }

    #[test]
    fn nothing_is_drawn_without_values() {
        assert_eq!(panels(&[of_bars(vec![None, Some((0.0, None))])], ""), None);
        assert_eq!(panels(&[], ""), None);
    }
}
