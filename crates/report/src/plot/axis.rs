//! The axes of a plot: scales, ranges, ticks and number formats.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use std::ops::Range;

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A linear scale: equal differences of values have equal distances on the axis.
    Linear,
    /// A logarithmic scale: equal ratios of values have equal distances on the axis. Only values above zero
    /// are drawn.
    Log,
}

/// An axis for the plotting library. Coordinates are linear on it, because [`Scale`] has already taken
/// logarithms.
pub(super) struct Axis {
    pub(super) range: Range<f64>,
    pub(super) ticks: Vec<f64>,
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

/// Returns the range of the values with a margin of 5 %. With `from_zero`, the range starts at zero or below.
pub(super) fn range(values: &[f64], from_zero: bool) -> Range<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = if from_zero { low.min(0.0) } else { low };
    let margin = if high > low { (high - low) * 0.05 } else { 1.0 };
    if from_zero { low..high + margin } else { low - margin..high + margin }
}

/// Up to this number of data values, each value gets its own tick. With more values, ticks are at round
/// numbers.
const FEW: usize = 12;

impl Scale {
    /// Returns the coordinate of a value: its logarithm on a log axis.
    pub(super) fn place(self, value: f64) -> f64 {
        if self == Scale::Log { value.log2() } else { value }
    }

    /// Returns the value at a coordinate.
    pub(super) fn value(self, place: f64) -> f64 {
        if self == Scale::Log { place.exp2() } else { place }
    }

    /// Returns the coordinates of the ticks. If the values are few and far enough apart, each value gets a
    /// tick. Otherwise the ticks are at round numbers.
    pub(crate) fn ticks(self, range: &Range<f64>, values: &[f64]) -> Vec<f64> {
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
            Scale::Linear => round_ticks(low, high, 8.0),
            // If all data values are whole numbers, set ticks at powers of two. Set at most about 12 ticks.
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

/// Returns round numbers from `low` to `high`, with equal distances. There are about `parts` of them, or a few less.
pub(crate) fn round_ticks(low: f64, high: f64, parts: f64) -> Vec<f64> {
    let raw = (high - low) / parts;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|&step| step >= raw);
    let step = step.unwrap_or(raw);
    let first = (low / step).ceil();
    (0..=10).map(|n| (first + n as f64) * step).take_while(|&value| value <= high).collect()
}

/// Formats a number in few characters: `1024`, `64Ki` (a power of two), `15k`, `1.5M`, `0.25`.
pub(crate) fn short(value: f64) -> String {
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
    // A small number keeps two significant digits, so 0.002 is not shown as 0.
    let digits = match scaled.abs() {
        s if s >= 100.0 => 0,
        s if s >= 0.1 || s == 0.0 => 2,
        s => (1.0 - s.log10().floor()) as usize,
    };
    let number = format!("{scaled:.digits$}");
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn numbers_are_short() {
        for (value, text) in [
            (1024.0, "1024"),
            (65536.0, "64Ki"),
            (1048576.0, "1Mi"),
            (20000.0, "20k"),
            (1.5e6, "1.5M"),
            (0.25, "0.25"),
            (0.0, "0"),
            (0.002, "0.002"),
            (0.00015, "0.00015"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
