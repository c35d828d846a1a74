//! The ratio of two groups of repeats, with its 95 % interval.
//!
//! All ratios of a repeat of one group and a repeat of the other are sorted. The median of these ratios estimates the change
//! (Hodges and Lehmann). How many ratios lie outside the interval at each end follows from the exact distribution of the
//! statistic of Mann and Whitney. No distribution of the repeats is assumed, so outliers move the interval little.

use inlane_core::stats::Summary;

/// The probability that the true ratio lies beyond one given end of the interval.
const BEYOND: f64 = 0.025;
/// The largest number of ratios for which the distribution is computed exactly.
const EXACT: usize = 900;

/// A ratio, and the interval that contains the true one in 95 of 100 cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median of the ratios.
    pub ratio: f64,
    /// The interval. `None` if there are too few repeats for one.
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Returns the ratio of `after` to `before`. All values must be above zero.
    pub fn of(before: &[f64], after: &[f64]) -> Option<Self> {
        let pairs = after.iter().flat_map(|after| before.iter().map(move |before| after / before));
        let mut ratios: Vec<f64> = pairs.collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = Summary::of_operations(&ratios)?.median;
        let interval = outside(before.len(), after.len())
            .map(|outside| (ratios[outside], ratios[ratios.len() - 1 - outside]));
        Some(Self { ratio, interval })
    }
}

/// Returns how many of the sorted ratios lie outside the interval at each end. `None` if even the extremes enclose less than
/// 95 %, as with three repeats each.
fn outside(before: usize, after: usize) -> Option<usize> {
    let (one, other) = (before as f64, after as f64);
    if before * after > EXACT {
        let deviation = (one * other * (one + other + 1.0) / 12.0).sqrt();
        return Some((one * other / 2.0 - 1.96 * deviation).floor().max(1.0) as usize - 1);
    }
    // The number of orders in which the statistic has each value, by the repeats of either group: an order ends with a repeat
    // of one group, which exceeds all of the other group, or with one of the other group, which exceeds none.
    let mut orders = vec![vec![vec![1.0]; after + 1]];
    for one in 1..=before {
        let mut row = vec![vec![1.0]];
        for other in 1..=after {
            let mut counts = vec![0.0; one * other + 1];
            for (value, count) in orders[one - 1][other].iter().enumerate() {
                counts[value + other] += count;
            }
            for (value, count) in row[other - 1].iter().enumerate() {
                counts[value] += count;
            }
            row.push(counts);
        }
        orders.push(row);
    }
    let counts = &orders[before][after];
    let all: f64 = counts.iter().sum();
    let mut below = 0.0;
    let fits = counts.iter().take_while(|count| {
        below += **count / all;
        below <= BEYOND
    });
    fits.count().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_those_of_published_tables() {
        // Critical values of Mann and Whitney's U for two sides at 5 %.
        for (one, other, critical) in
            [(4, 4, 0), (5, 5, 2), (6, 6, 5), (8, 8, 13), (10, 10, 23), (20, 20, 127), (5, 8, 6)]
        {
            assert_eq!(outside(one, other), Some(critical), "{one} and {other}");
            assert_eq!(outside(other, one), Some(critical), "{other} and {one}");
        }
        for (one, other) in [(1, 1), (3, 3), (3, 4), (1, 30), (2, 7)] {
            assert_eq!(outside(one, other), None, "{one} and {other}");
        }
        // The approximation for many repeats joins the exact values.
        assert!(outside(30, 30).unwrap().abs_diff(317) <= 1 && outside(31, 31).unwrap().abs_diff(341) <= 2);
    }

    #[test]
    fn a_ratio_lies_in_its_interval() {
        let ratio = Ratio::of(&[9.0, 10.0, 11.0, 10.5], &[18.0, 20.0, 22.0, 19.0]).unwrap();
        let (low, high) = ratio.interval.unwrap();
        assert!((1.9..2.1).contains(&ratio.ratio) && low <= ratio.ratio && ratio.ratio <= high);
        assert_eq!((low, high), (18.0 / 11.0, 22.0 / 9.0));
        assert_eq!(Ratio::of(&[2.0], &[3.0]), Some(Ratio { ratio: 1.5, interval: None }));
        assert_eq!(Ratio::of(&[], &[3.0]), None);
    }

    #[test]
    fn equal_groups_differ_in_at_most_five_of_a_hundred_cases() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        // Repeats with rare slow outliers, as on a machine that other programs use.
        let mut repeat = || {
            let slow = if uniform() < 0.1 { 0.6 } else { 1.0 };
            slow * (1.0 + 0.05 * (uniform() + uniform() + uniform() - 1.5))
        };
        let mut group = || (0..5).map(|_| repeat()).collect::<Vec<_>>();
        let differs = (0..4000).filter(|_| {
            let (low, high) = Ratio::of(&group(), &group()).unwrap().interval.unwrap();
            low > 1.0 || high < 1.0
        });
        let share = differs.count() as f64 / 4000.0;
        assert!((0.01..0.05).contains(&share), "{share}");
    }
}
