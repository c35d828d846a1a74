//! Line plots as SVG.

use plotters::prelude::*;

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

impl Plot {
    /// The plot as an SVG document; `None` when it has no finite point to draw.
    pub fn svg(&self) -> Option<String> {
        let usable = |&(x, y): &(f64, f64)| {
            x.is_finite()
                && y.is_finite()
                && (self.x_scale == Scale::Linear || x > 0.0)
                && (self.y_scale == Scale::Linear || y > 0.0)
        };
        // A log axis is drawn as the logarithm, its labels as the value: one chart type serves all four combinations.
        let at = |scale: Scale, value: f64| if scale == Scale::Log { value.log2() } else { value };
        let lines: Vec<(String, Vec<(f64, f64)>)> = self
            .lines
            .iter()
            .map(|line| {
                let points = line.points.iter().filter(|point| usable(point));
                (
                    line.name.clone(),
                    points.map(|&(x, y)| (at(self.x_scale, x), at(self.y_scale, y))).collect(),
                )
            })
            .collect();
        let all: Vec<_> = lines.iter().flat_map(|(_, points)| points.iter().copied()).collect();
        if all.is_empty() {
            return None;
        }
        let range = |values: Vec<f64>, from_zero: bool| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let low = if from_zero { low.min(0.0) } else { low };
            let margin = if high > low { (high - low) * 0.05 } else { 1.0 };
            low..high + margin
        };
        let x_range = range(all.iter().map(|point| point.0).collect(), false);
        let y_range = range(all.iter().map(|point| point.1).collect(), self.y_scale == Scale::Linear);
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (860, 520)).into_drawing_area();
            root.fill(&WHITE).ok()?;
            let mut chart = ChartBuilder::on(&root)
                .caption(&self.title, ("sans-serif", 20))
                .margin(12)
                .x_label_area_size(44)
                .y_label_area_size(72)
                .build_cartesian_2d(x_range, y_range)
                .ok()?;
            let label = |scale: Scale, value: f64| {
                let value = if scale == Scale::Log { value.exp2() } else { value };
                short(value)
            };
            chart
                .configure_mesh()
                .x_desc(&self.x)
                .y_desc(&self.y)
                .x_label_formatter(&|value| label(self.x_scale, *value))
                .y_label_formatter(&|value| label(self.y_scale, *value))
                .light_line_style(WHITE)
                .draw()
                .ok()?;
            for (index, (name, points)) in lines.into_iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))
                    .ok()?
                    .label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.85))
                .border_style(BLACK.mix(0.3))
                .draw()
                .ok()?;
            root.present().ok()?;
        }
        Some(svg)
    }
}

/// A number in few characters: `4k`, `1.5M`, `0.25`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() >= 100.0 || scaled.fract() == 0.0 {
        0
    } else if scaled.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        let lines = vec![Line { name: "poll".into(), points }];
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
}
