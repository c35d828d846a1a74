//! Statistics: the median and range of repeated measurements, and a histogram of latencies with its
//! percentiles.

use hdrhistogram::Histogram;

/// Median and range of repeated measurements, in the unit that the field's name says.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Summary {
    /// The median. For an even number of values, the mean of the two middle values.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The number of measurements.
    pub repeats: usize,
    /// The measurements in their order. Left out if there is a measurement for each of many operations.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"), schemars(default))]
    pub values: Vec<f64>,
}

impl Summary {
    /// Summarises `values` and keeps them. Returns `None` if there are no values, or if one of them is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        Some(Self { values: values.to_vec(), ..Self::of_operations(values)? })
    }

    /// Summarises the times of many operations, without keeping them. Returns `None` as [`Summary::of`] does.
    pub fn of_operations(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        let (min, max) = (sorted[0], sorted[sorted.len() - 1]);
        Some(Self { median, min, max, repeats: sorted.len(), values: Vec::new() })
    }

    /// Returns the distance from the median to the value farthest from it, as a fraction of the median.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            (self.max - self.median).max(self.median - self.min) / self.median
        }
    }
}

/// The fewest values among which outliers can be told.
const FEWEST_FOR_OUTLIERS: usize = 5;
/// A value is an outlier if its distance from the median exceeds the median distance by this factor.
const OUTLYING: f64 = 15.0;
/// Values within this fraction of the median are not outliers, however close the others are.
const NEAR: f64 = 0.05;

impl Summary {
    /// Returns the values that lie far from all others, such as those of repeats that another program disturbed.
    pub fn outliers(&self) -> Vec<f64> {
        let distance = |value: &f64| (value - self.median).abs();
        let distances: Vec<f64> = self.values.iter().map(distance).collect();
        let usual = Self::of_operations(&distances).map_or(0.0, |distances| distances.median);
        let far = (OUTLYING * usual).max(NEAR * self.median.abs());
        let few = self.values.len() < FEWEST_FOR_OUTLIERS;
        self.values.iter().copied().filter(|value| !few && distance(value) > far).collect()
    }
}

/// A histogram of latencies from 1 ns to about 18 minutes with two significant digits. Recording does not
/// allocate.
#[derive(Clone)]
pub struct LatencyHistogram(Histogram<u64>);

const LONGEST_NS: u64 = 1 << 40;

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("the bounds are valid"))
    }
}

impl LatencyHistogram {
    /// Records `count` packets with a latency of `nanoseconds` each.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64, count: u64) {
        self.0.saturating_record_n(nanoseconds.clamp(1, LONGEST_NS), count);
    }

    /// Adds the packets of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Returns the number of recorded packets.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns a quantile of the latency, in nanoseconds: `at(0.5)` is the median. `None` if nothing was
    /// recorded.
    pub fn at(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile) as f64)
    }

    /// Returns the minimum, mean, maximum and percentiles of the latencies. `None` if no packet was recorded.
    pub fn percentiles(&self) -> Option<Percentiles> {
        if self.0.is_empty() {
            return None;
        }
        let at = |quantile| self.0.value_at_quantile(quantile) as f64;
        let mut histogram: Vec<Bin> = Vec::new();
        for recorded in self.0.iter_recorded() {
            let bin = ((recorded.value_iterated_to() as f64).log2() * BINS_PER_DOUBLING).ceil();
            let up_to_ns = (bin / BINS_PER_DOUBLING).exp2();
            let count = recorded.count_at_value();
            match histogram.last_mut().filter(|last| last.up_to_ns == up_to_ns) {
                Some(last) => last.count += count,
                None => histogram.push(Bin { up_to_ns, count }),
            }
        }
        Some(Percentiles {
            count: self.0.len(),
            min_ns: self.0.min() as f64,
            mean_ns: self.0.mean(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.0.max() as f64,
            histogram,
        })
    }
}

/// The number of a histogram's bins for each doubling of the latency. A bin is 19 % wide.
const BINS_PER_DOUBLING: f64 = 4.0;

/// A bin of a histogram of latencies.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Bin {
    /// The largest latency of the bin.
    pub up_to_ns: f64,
    /// The number of latencies in the bin.
    pub count: u64,
}

/// Percentiles of the latencies of packets, transfers or operations.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Percentiles {
    /// The number of latencies that were measured.
    pub count: u64,
    /// The smallest latency.
    pub min_ns: f64,
    /// The mean latency.
    pub mean_ns: f64,
    /// The median latency.
    pub p50_ns: f64,
    /// The 90th percentile: 90 % of the latencies are at most this long.
    pub p90_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
    /// The 99.9th percentile.
    pub p999_ns: f64,
    /// The largest latency.
    pub max_ns: f64,
    /// The bins that have latencies, in rising order. A bin begins a factor of 0.84 below its end.
    pub histogram: Vec<Bin>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN]), None);
        assert_eq!(Summary::of(&[9.0, 10.0, 12.0]).unwrap().spread(), 0.2);
    }

    #[test]
    fn repeats_are_kept_in_their_order() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]).unwrap().values, [3.0, 1.0, 2.0]);
        let operations = Summary::of_operations(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((operations.median, operations.values.len()), (2.0, 0));
    }

    #[test]
    fn outliers_are_far_from_all_others() {
        let outliers = |values: &[f64]| Summary::of(values).unwrap().outliers();
        assert_eq!(outliers(&[100.0, 101.0, 99.0, 100.0, 60.0]), [60.0]);
        assert!(outliers(&[100.0, 110.0, 90.0, 95.0, 80.0]).is_empty(), "the spread is large");
        assert!(outliers(&[100.0, 100.0, 100.0, 100.0, 103.0]).is_empty(), "3 % are near");
        assert!(outliers(&[100.0, 100.0, 100.0, 50.0]).is_empty(), "four values do not tell");
    }

    #[test]
    fn percentiles_count_packets_not_bursts() {
        let mut histogram = LatencyHistogram::default();
        histogram.record(100, 99);
        histogram.record(1_000_000, 1);
        let percentiles = histogram.percentiles().unwrap();
        assert_eq!(percentiles.count, 100);
        assert!((99.0..102.0).contains(&percentiles.p50_ns));
        assert!(percentiles.max_ns >= 990_000.0);
        let counts: Vec<u64> = percentiles.histogram.iter().map(|bin| bin.count).collect();
        assert_eq!(counts, [99, 1]);
        assert!((100.0..120.0).contains(&percentiles.histogram[0].up_to_ns));
        assert_eq!(LatencyHistogram::default().percentiles(), None);
    }
}
