//! Line plots as SVG.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// How an axis is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Even.
    Linear,
    /// By powers; for values above zero.
    Log,
}

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
    /// Points of a dashed line in the same colour, where there is one.
    pub dashed: Vec<(f64, f64)>,
}

/// A plot with named axes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below it, with the unit.
    pub x: String,
    /// Beside it, with the unit.
    pub y: String,
    /// Of the x axis.
    pub x_scale: Scale,
    /// Of the y axis.
    pub y_scale: Scale,
    /// What is drawn.
    pub lines: Vec<Line>,
}

/// Colours that differ for most kinds of colour vision (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(140, 140, 0),
];

/// An even axis with ticks where they are asked for.
struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// A plot's size, without the legend beside it.
const SIZE: (u32, u32) = (720, 420);
/// Where lines end and names begin in the legend.
const SAMPLE: i32 = 26;
/// Height of a line of the legend.
const ROW: i32 = 20;

impl Plot {
    /// The plot as an SVG document; `None` when it has no finite point to draw.
    pub fn svg(&self) -> Option<String> {
        figure(std::slice::from_ref(self))
    }

    /// The points that can be drawn, a log axis as its logarithm: one chart type serves all four combinations.
    fn drawable<'a>(&'a self, points: &'a [(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + 'a {
        let usable = |&&(x, y): &&(f64, f64)| {
            x.is_finite()
                && y.is_finite()
                && (self.x_scale == Scale::Linear || x > 0.0)
                && (self.y_scale == Scale::Linear || y > 0.0)
        };
        points.iter().filter(usable).map(|&(x, y)| (self.x_scale.place(x), self.y_scale.place(y)))
    }

    fn all(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.lines.iter().flat_map(|line| self.drawable(&line.points).chain(self.drawable(&line.dashed)))
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Option<()> {
        let (chart_area, legend) = area.split_horizontally(SIZE.0);
        let xs: Vec<f64> = self.all().map(|point| point.0).collect();
        let ys: Vec<f64> = self.all().map(|point| point.1).collect();
        let (x_range, y_range) = (range(&xs, false), range(&ys, self.y_scale == Scale::Linear));
        let x_ticks = self.x_scale.ticks(&x_range, &xs);
        let y_ticks = self.y_scale.ticks(&y_range, &[]);
        let mut chart = ChartBuilder::on(&chart_area)
            .caption(&self.title, ("sans-serif", title_size(&self.title)))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(
                Axis { range: x_range, ticks: x_ticks },
                Axis { range: y_range, ticks: y_ticks },
            )
            .ok()?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|value| short(self.x_scale.value(*value)))
            .y_label_formatter(&|value| short(self.y_scale.value(*value)))
            .axis_desc_style(("sans-serif", 15))
            .label_style(("sans-serif", 13))
            .light_line_style(WHITE)
            .draw()
            .ok()?;
        let mut named = 0;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let stroke = colour.stroke_width(2);
            let points: Vec<_> = self.drawable(&line.points).collect();
            let dashed: Vec<_> = self.drawable(&line.dashed).collect();
            if points.is_empty() && dashed.is_empty() {
                continue;
            }
            // After the colours are used up, points are hollow.
            let fill = if index < COLOURS.len() { colour.filled() } else { colour.stroke_width(2) };
            chart.draw_series(points.iter().chain(&dashed).map(|&point| Circle::new(point, 4, fill))).ok()?;
            chart.draw_series(LineSeries::new(points, stroke)).ok()?;
            chart.draw_series(DashedLineSeries::new(dashed, 6, 4, stroke)).ok()?;
            let y = 50 + ROW * named;
            named += 1;
            legend.draw(&PathElement::new([(0, y), (SAMPLE - 6, y)], stroke)).ok()?;
            legend.draw(&Circle::new(((SAMPLE - 6) / 2, y), 4, fill)).ok()?;
            legend.draw(&Text::new(line.name.clone(), (SAMPLE, y - 7), ("sans-serif", 14))).ok()?;
        }
        Some(())
    }
}

/// Plots one below the other as an SVG document, those without a finite point left out; `None` when none is left.
pub fn figure(plots: &[Plot]) -> Option<String> {
    let plots: Vec<&Plot> = plots.iter().filter(|plot| plot.all().next().is_some()).collect();
    let names = plots.iter().flat_map(|plot| &plot.lines).map(|line| line.name.chars().count());
    let lines = plots.iter().map(|plot| plot.lines.len()).max()?;
    let width = SIZE.0 + SAMPLE as u32 + 8 * names.max().unwrap_or(0) as u32 + 12;
    let height = SIZE.1.max((60 + ROW * lines as i32) as u32);
    let mut svg = String::new();
    {
        let root =
            SVGBackend::with_string(&mut svg, (width, height * plots.len() as u32)).into_drawing_area();
        root.fill(&WHITE).ok()?;
        for (area, plot) in root.split_evenly((plots.len(), 1)).iter().zip(plots) {
            plot.draw(area)?;
        }
        root.present().ok()?;
    }
    Some(svg)
}

/// The size of letters at which a title fits above its plot.
fn title_size(title: &str) -> u32 {
    (SIZE.0 * 2 / title.chars().count().max(1) as u32).clamp(8, 17)
}

/// From the least to the greatest with a margin, from zero where that is asked for.
fn range(values: &[f64], from_zero: bool) -> Range<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = if from_zero { low.min(0.0) } else { low };
    let margin = if high > low { (high - low) * 0.05 } else { 1.0 };
    if from_zero { low..high + margin } else { low - margin..high + margin }
}

/// Most values that get a tick each.
const FEW: usize = 12;

impl Scale {
    /// Where a value is drawn.
    fn place(self, value: f64) -> f64 {
        if self == Scale::Log { value.log2() } else { value }
    }

    /// The value that is drawn there.
    fn value(self, place: f64) -> f64 {
        if self == Scale::Log { place.exp2() } else { place }
    }

    /// Where ticks go: at the values themselves where they are few and apart; else at round numbers.
    fn ticks(self, range: &Range<f64>, values: &[f64]) -> Vec<f64> {
        let mut own = values.to_vec();
        own.sort_by(f64::total_cmp);
        own.dedup();
        let apart = (range.end - range.start) / 16.0;
        if (1..=FEW).contains(&own.len()) && own.windows(2).all(|pair| pair[1] - pair[0] > apart) {
            return own;
        }
        let (low, high) = (self.value(range.start), self.value(range.end));
        let whole = !values.is_empty() && own.iter().all(|&place| (self.value(place).fract()).abs() < 1e-6);
        match self {
            Scale::Linear => {
                let raw = (high - low) / 8.0;
                let power = 10f64.powf(raw.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|&step| step >= raw);
                let step = step.unwrap_or(raw);
                let first = (low / step).ceil();
                (0..=10).map(|n| (first + n as f64) * step).take_while(|&value| value <= high).collect()
            }
            // Powers of two where all values are whole, thinned out.
            Scale::Log if whole => {
                let (first, last) = (range.start.ceil() as i32, range.end.floor() as i32);
                let step = (last - first) / FEW as i32 + 1;
                let ticks = (first..=last).filter(|power| power % step == 0);
                ticks.map(f64::from).collect()
            }
            Scale::Log => {
                let decades = (high / low).log10();
                let steps: &[f64] = match decades {
                    d if d > 4.0 => &[1.0],
                    d if d > 1.0 => &[1.0, 2.0, 5.0],
                    _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
                };
                let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
                let values =
                    (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                values
                    .filter(|&value| (low * 0.999..=high * 1.001).contains(&value))
                    .map(|value| self.place(value))
                    .collect()
            }
        }
    }
}

/// A number in few characters: `1024`, `64Ki` (a power of two), `15k`, `1.5M`, `0.25`.
fn short(value: f64) -> String {
    let whole = value.round();
    if (value - whole).abs() < 1e-6 * value.abs().max(1.0) && whole.abs() < 1e15 {
        let whole = whole as i64;
        if whole.abs() < 10_000 {
            return whole.to_string();
        }
        for (shift, unit) in [(30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if whole.count_ones() == 1 && whole >> shift > 0 {
                return format!("{}{unit}", whole >> shift);
            }
        }
    }
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() >= 100.0 { 0 } else { 2 };
    let number = format!("{scaled:.digits$}");
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        let lines = vec![Line { name: "poll".into(), points, dashed: Vec::new() }];
        Plot {
            title: "bandwidth".into(),
            x: "bytes".into(),
            y: "GB/s".into(),
            x_scale: Scale::Log,
            y_scale: Scale::Linear,
            lines,
        }
    }

    #[test]
    fn draws_what_is_finite() {
        let svg = plot(vec![(4096.0, 1.0), (0.0, 2.0), (65536.0, f64::NAN), (1048576.0, 3.0)]).svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("poll") && !svg.contains("NaN"));
        assert_eq!(plot(vec![(0.0, 1.0)]).svg(), None);
        assert!(plot(vec![(1.0, 1.0)]).svg().is_some(), "a single point has no extent");
    }

    #[test]
    fn plots_stand_one_below_the_other_and_empty_ones_are_left_out() {
        let two = [plot(vec![(1.0, 1.0)]), plot(vec![]), plot(vec![(4.0, 1.0)])];
        let svg = figure(&two).unwrap();
        assert_eq!(svg.matches(">bandwidth<").count() + svg.matches("\nbandwidth\n").count(), 2, "{svg}");
        assert!(svg.contains(&format!("height=\"{}\"", 2 * SIZE.1)));
    }

    #[test]
    fn ticks_are_the_values_or_round_numbers() {
        let log = |values: &[f64]| -> Vec<f64> {
            let places: Vec<f64> = values.iter().map(|value| value.log2()).collect();
            let ticks = Scale::Log.ticks(&range(&places, false), &places);
            ticks.into_iter().map(|place| place.exp2().round()).collect()
        };
        assert_eq!(log(&[16.0, 32.0, 128.0]), [16.0, 32.0, 128.0]);
        let sizes: Vec<f64> = (0..27).map(|power| f64::from(1 << power)).collect();
        assert_eq!(log(&sizes)[..3], [1.0, 8.0, 64.0]);
        assert_eq!(Scale::Linear.ticks(&(0.0..100.0), &[]), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let micros = Scale::Log.ticks(&(1f64.log2()..50f64.log2()), &[]);
        assert_eq!(
            micros.iter().map(|place| place.exp2().round()).collect::<Vec<_>>(),
            [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
        );
    }

    #[test]
    fn long_titles_are_in_smaller_letters() {
        assert_eq!(title_size("Rate"), 17);
        // A letter is about half as wide as high.
        let long = "x".repeat(120);
        assert!(title_size(&long) * 120 / 2 <= SIZE.0);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (1024.0, "1024"),
            (65536.0, "64Ki"),
            (1048576.0, "1Mi"),
            (20000.0, "20k"),
            (1.5e6, "1.5M"),
            (0.25, "0.25"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
