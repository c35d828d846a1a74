//! Draws line plots as SVG, with the spread of each point, the ceilings, and a last line that names the
//! machine.

mod axis;

use crate::style::{self, COLOURS};
pub(crate) use axis::short;
use axis::{Axis, range};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

pub use axis::Scale;
pub(crate) use axis::round_ticks;

/// A point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The x value.
    pub x: f64,
    /// The y value: the median if the run was repeated.
    pub y: f64,
    /// The minimum and maximum over repeats, drawn as a bar.
    pub spread: Option<(f64, f64)>,
}

/// A line of a plot.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The name in the legend. All lines with the same name have the same colour.
    pub name: String,
    /// The title of the panel in which the line is drawn. Lines with the same title share one panel.
    pub panel: String,
    /// The points in order.
    pub points: Vec<Point>,
    /// The points of a second, dashed line in the same colour, for example the 99th percentile beside the
    /// median. May be empty.
    pub dashed: Vec<(f64, f64)>,
    /// The points of the line's ceiling, drawn in grey.
    pub ceiling: Vec<(f64, f64)>,
}

impl Line {
    /// Creates a line without points.
    pub fn new(name: impl Into<String>, panel: impl Into<String>) -> Self {
        Self { name: name.into(), panel: panel.into(), ..Self::default() }
    }
}

/// A plot with labelled axes. Each line has the title of a panel. All lines with the same title are drawn in
/// one panel.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// The label of the x axis, with the unit.
    pub x: String,
    /// The label of the y axis, with the unit.
    pub y: String,
    /// The scale of the x axis.
    pub x_scale: Scale,
    /// The scale of the y axis.
    pub y_scale: Scale,
    /// The lines.
    pub lines: Vec<Line>,
}

/// The width and height in pixels of a plot with one panel.
const ALONE: (u32, u32) = (720, 400);
/// The width and height in pixels of each panel of a plot with several panels.
const SMALL: (u32, u32) = (400, 290);
/// The number of panels side by side.
const COLUMNS: u32 = 2;
/// The height of a plot's title in pixels.
const TITLE: u32 = 34;
/// The height in pixels of the last line. This line names the machine.
const SOURCE: u32 = 26;
/// The length in pixels of a line's sample in the legend.
const SAMPLE: i32 = 26;
/// The height of a row of the legend in pixels.
const ROW: i32 = 20;
/// The colour of ceilings.
const GREY: RGBColor = RGBColor(128, 128, 128);
/// On a linear axis, a ceiling is not drawn if it is higher than the largest value times this factor. It
/// would flatten the lines.
const HIGHEST_CEILING: f64 = 3.0;

impl Plot {
    fn drawable(&self, (x, y): (f64, f64)) -> bool {
        let fits = |scale: Scale, value: f64| value.is_finite() && (scale == Scale::Linear || value > 0.0);
        fits(self.x_scale, x) && fits(self.y_scale, y)
    }

    /// Converts the values of points to coordinates on the two axes. Leaves out points that cannot be drawn,
    /// such as zero on a logarithmic axis.
    fn places(&self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let drawn = points.iter().filter(|point| self.drawable(**point));
        drawn.map(|&(x, y)| (self.x_scale.place(x), self.y_scale.place(y))).collect()
    }

    fn solid(&self, line: &Line) -> Vec<(f64, f64)> {
        self.places(&line.points.iter().map(|point| (point.x, point.y)).collect::<Vec<_>>())
    }

    /// Returns the spread bars of a line. Each has x, minimum, median and maximum.
    fn spreads(&self, line: &Line) -> Vec<[f64; 4]> {
        let bars = line.points.iter().filter_map(|&Point { x, y, spread }| {
            let (low, high) = spread?;
            let fits = [low, y, high].into_iter().all(|y| self.drawable((x, y)));
            fits.then(|| [self.x_scale.place(x), low, y, high])
        });
        bars.map(|[x, low, y, high]| {
            [x, self.y_scale.place(low), self.y_scale.place(y), self.y_scale.place(high)]
        })
        .collect()
    }

    /// Returns the points of a line's ceiling. On a linear axis, leaves out points far above all values.
    fn ceiling(&self, line: &Line) -> Vec<(f64, f64)> {
        let values = self.lines.iter().flat_map(|line| &line.points).map(|point| point.y);
        let highest = values.filter(|value| value.is_finite()).fold(0.0, f64::max) * HIGHEST_CEILING;
        let near = |y: f64| self.y_scale == Scale::Log || y <= highest;
        self.places(&line.ceiling).into_iter().filter(|&(_, y)| near(self.y_scale.value(y))).collect()
    }

    /// Returns the coordinates of everything that is drawn. The ranges of the axes follow from these
    /// coordinates. All panels share the axes.
    fn all(&self) -> Vec<(f64, f64)> {
        let line = |line: &Line| {
            let mut all = self.solid(line);
            all.extend(self.places(&line.dashed));
            all.extend(self.ceiling(line));
            all.extend(self.spreads(line).iter().flat_map(|&[x, low, _, high]| [(x, low), (x, high)]));
            all
        };
        self.lines.iter().flat_map(line).collect()
    }

    fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| self.solid(line).is_empty() && self.places(&line.dashed).is_empty())
    }

    /// Returns the titles of the panels, in the order of the lines.
    fn panels(&self) -> Vec<&str> {
        distinct(self.lines.iter().map(|line| line.panel.as_str()))
    }

    fn names(&self) -> Vec<&str> {
        let drawn = |line: &&Line| !self.solid(line).is_empty() || !self.places(&line.dashed).is_empty();
        distinct(self.lines.iter().filter(drawn).map(|line| line.name.as_str()))
    }

    /// Returns a panel's width and height in pixels, then the number of rows of panels, then the number of
    /// columns.
    fn layout(&self) -> ((u32, u32), u32, u32) {
        match self.panels().len() as u32 {
            0 | 1 => (ALONE, 1, 1),
            panels => (SMALL, panels.div_ceil(COLUMNS), COLUMNS),
        }
    }

    /// Returns the size of the plot without the legend.
    fn size(&self) -> (u32, u32) {
        let ((width, height), rows, columns) = self.layout();
        let legend = 10 + ROW * (self.names().len() as i32 + 1);
        (width * columns, TITLE + (height * rows).max(legend as u32))
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Option<()> {
        let (width, _) = self.size();
        let (title, rest) = area.split_vertically(TITLE);
        let letters = title_size(&self.title, width);
        title.draw(&Text::new(self.title.clone(), (16, 10), ("sans-serif", letters))).ok()?;
        let (charts, legend) = rest.split_horizontally(width);
        let names = self.names();
        let colours = style::colours(&names);
        let style_of = |name: &str| {
            let index = names.iter().position(|known| *known == name).unwrap_or(0);
            // Return the line's colour, and true if its points are filled. If there are more lines than
            // colours, the further lines have hollow points.
            (COLOURS[colours.get(index).copied().unwrap_or(0)], index < COLOURS.len())
        };
        let all = self.all();
        let xs: Vec<f64> = all.iter().map(|point| point.0).collect();
        let ys: Vec<f64> = all.iter().map(|point| point.1).collect();
        let (x_range, y_range) = (range(&xs, false), range(&ys, self.y_scale == Scale::Linear));
        let (_, rows, columns) = self.layout();
        let areas = charts.split_evenly((rows as usize, columns as usize));
        let mut ceilings = false;
        for (panel, area) in self.panels().iter().zip(&areas) {
            ceilings |= self.draw_panel(panel, area, &x_range, &y_range, &style_of)?;
        }
        for (row, name) in names.iter().enumerate() {
            let (colour, filled) = style_of(name);
            let y = 20 + ROW * row as i32;
            let fill = if filled { colour.filled() } else { colour.stroke_width(2) };
            legend.draw(&PathElement::new([(0, y), (SAMPLE - 6, y)], colour.stroke_width(2))).ok()?;
            legend.draw(&Circle::new(((SAMPLE - 6) / 2, y), 4, fill)).ok()?;
            legend.draw(&Text::new(name.to_string(), (SAMPLE, y - 7), ("sans-serif", 14))).ok()?;
        }
        if ceilings {
            let y = 20 + ROW * names.len() as i32;
            for x in [0, 8, 16] {
                legend.draw(&PathElement::new([(x, y), (x + 4, y)], GREY.stroke_width(2))).ok()?;
            }
            legend.draw(&Text::new("ceiling", (SAMPLE, y - 7), ("sans-serif", 14))).ok()?;
        }
        Some(())
    }

    /// Draws one panel. Returns true if a ceiling was drawn.
    fn draw_panel<B: DrawingBackend>(
        &self,
        panel: &str,
        area: &DrawingArea<B, Shift>,
        x_range: &Range<f64>,
        y_range: &Range<f64>,
        style_of: &dyn Fn(&str) -> (RGBColor, bool),
    ) -> Option<bool> {
        let xs: Vec<f64> = self.all().iter().map(|point| point.0).collect();
        let x_ticks = self.x_scale.ticks(x_range, &xs);
        let y_ticks = self.y_scale.ticks(y_range, &[]);
        let mut builder = ChartBuilder::on(area);
        if !panel.is_empty() {
            builder.caption(panel, ("sans-serif", 14));
        }
        let mut chart = builder
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(66)
            .build_cartesian_2d(
                Axis { range: x_range.clone(), ticks: x_ticks },
                Axis { range: y_range.clone(), ticks: y_ticks },
            )
            .ok()?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|place| short(self.x_scale.value(*place)))
            .y_label_formatter(&|place| short(self.y_scale.value(*place)))
            .axis_desc_style(("sans-serif", 14))
            .label_style(("sans-serif", 12))
            .light_line_style(WHITE)
            .draw()
            .ok()?;
        let mut drawn: Vec<Vec<(f64, f64)>> = Vec::new();
        for line in self.lines.iter().filter(|line| line.panel == panel) {
            let (colour, filled) = style_of(&line.name);
            let stroke = colour.stroke_width(2);
            let fill = if filled { colour.filled() } else { stroke };
            let (solid, dashed, ceiling) = (self.solid(line), self.places(&line.dashed), self.ceiling(line));
            if !ceiling.is_empty() && !drawn.contains(&ceiling) {
                chart.draw_series(DashedLineSeries::new(ceiling.clone(), 4, 4, GREY.stroke_width(2))).ok()?;
                drawn.push(ceiling);
            }
            for [x, low, y, high] in self.spreads(line) {
                chart.draw_series([ErrorBar::new_vertical(x, low, y, high, stroke, 9)]).ok()?;
            }
            chart.draw_series(solid.iter().chain(&dashed).map(|&point| Circle::new(point, 4, fill))).ok()?;
            chart.draw_series(LineSeries::new(solid, stroke)).ok()?;
            chart.draw_series(DashedLineSeries::new(dashed, 6, 4, stroke)).ok()?;
        }
        Some(!drawn.is_empty())
    }
}

/// Draws plots one below the other. The last line is `source` (machine, version, date). Leaves out plots
/// without a finite point. Returns `None` if no plot is left.
pub fn figure(plots: &[Plot], source: &str) -> Option<String> {
    let plots: Vec<&Plot> = plots.iter().filter(|plot| !plot.is_empty()).collect();
    let names =
        plots.iter().flat_map(|plot| plot.names()).chain(["ceiling"]).map(|name| name.chars().count());
    let legend = SAMPLE as u32 + 8 * names.max().unwrap_or(0) as u32 + 12;
    let width = plots.iter().map(|plot| plot.size().0).max()? + legend;
    let height: u32 = plots.iter().map(|plot| plot.size().1).sum::<u32>() + SOURCE;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        root.fill(&WHITE).ok()?;
        let mut rest = root.clone();
        for plot in plots {
            let (area, below) = rest.split_vertically(plot.size().1);
            plot.draw(&area)?;
            rest = below;
        }
        // Choose the size of the letters so that the whole text fits into the width. The width of a letter is
        // about half of its height.
        let letters = (2 * (width - 32) / source.chars().count().max(1) as u32).clamp(7, 12);
        rest.draw(&Text::new(source.to_string(), (16, 6), ("sans-serif", letters))).ok()?;
        root.present().ok()?;
    }
    Some(style::with_dark_mode(&svg))
}

fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

/// Returns the font size at which a title fits into the width.
fn title_size(title: &str, width: u32) -> u32 {
    (2 * (width - 32) / title.chars().count().max(1) as u32).clamp(8, 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, panel: &str, points: &[(f64, f64)]) -> Line {
        let points = points.iter().map(|&(x, y)| Point { x, y, spread: None }).collect();
        Line { points, ..Line::new(name, panel) }
    }

    fn plot(lines: Vec<Line>) -> Plot {
        Plot {
            title: "bandwidth".into(),
            x: "bytes".into(),
            y: "GB/s".into(),
            x_scale: Scale::Log,
            y_scale: Scale::Linear,
            lines,
        }
    }

    fn svg(lines: Vec<Line>) -> Option<String> {
        figure(&[plot(lines)], "a machine, inlane 0.1.0, 2026-01-01")
    }

    #[test]
    fn only_finite_points_are_drawn() {
        let points = [(4096.0, 1.0), (0.0, 2.0), (65536.0, f64::NAN), (1048576.0, 3.0)];
        let drawn = svg(vec![line("poll", "", &points)]).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("poll") && !drawn.contains("NaN"));
        assert_eq!(drawn.matches("<circle").count(), 3, "two points and the legend's");
        assert_eq!(svg(vec![line("poll", "", &[(0.0, 1.0)])]), None);
        assert!(svg(vec![line("poll", "", &[(1.0, 1.0)])]).is_some(), "a single point has no extent");
    }

    #[test]
    fn the_picture_names_the_machine_and_adapts_to_dark_mode() {
        let drawn = svg(vec![line("poll", "", &[(1.0, 1.0)])]).unwrap();
        assert!(drawn.contains("a machine, inlane 0.1.0, 2026-01-01"));
        assert!(drawn.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn plots_without_points_are_left_out() {
        let plots = [
            plot(vec![line("poll", "", &[(1.0, 1.0)])]),
            plot(vec![]),
            plot(vec![line("poll", "", &[(4.0, 1.0)])]),
        ];
        let drawn = figure(&plots, "").unwrap();
        assert_eq!(drawn.matches("\nbandwidth\n").count(), 2, "{drawn}");
    }

    #[test]
    fn each_panel_is_drawn_once_and_lines_keep_their_colour() {
        let points = [(1.0, 1.0), (2.0, 2.0)];
        let lines = ["burst 16", "burst 64", "burst 128"]
            .into_iter()
            .flat_map(|panel| [line("single", panel, &points), line("split", panel, &points)])
            .collect();
        let drawn = svg(lines).unwrap();
        assert_eq!(drawn.matches("\nburst 16\n").count(), 1);
        assert_eq!(drawn.matches("\nsplit\n").count(), 1, "the legend names a line once");
        // `single` is drawn four times: once in each of three panels, and once as a sample in the legend.
        assert_eq!(
            drawn.matches("<polyline fill=\"none\" opacity=\"1\" stroke=\"#D55E00\"").count(),
            4,
            "{drawn}"
        );
    }

    #[test]
    fn spreads_are_bars_and_a_near_ceiling_is_a_grey_line() {
        let with = |ceiling: f64| {
            let mut one = line("single", "", &[(1.0, 10.0), (2.0, 10.0)]);
            one.points[0].spread = Some((9.0, 12.0));
            one.ceiling = vec![(1.0, ceiling), (2.0, ceiling)];
            svg(vec![one]).unwrap()
        };
        assert!(with(20.0).contains("\nceiling\n"));
        assert!(!with(1000.0).contains("\nceiling\n"), "a far ceiling would flatten the line");
        let bare = svg(vec![line("single", "", &[(1.0, 10.0), (2.0, 10.0)])]).unwrap();
        assert!(
            with(1000.0).matches("stroke=\"#0072B2\"").count() > bare.matches("stroke=\"#0072B2\"").count()
        );
    }

    #[test]
    fn a_long_title_has_smaller_letters() {
        assert_eq!(title_size("Rate", 720), 17);
        // Check that 120 letters fit into 720 pixels. The width of a letter is about half its height.
        let long = "x".repeat(120);
        assert!(title_size(&long, 720) * 120 / 2 <= 720);
    }
}
