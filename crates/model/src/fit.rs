//! Fits of a network's numbers to measurements, and predictions from them.
//!
//! | measurement | function | result |
//! | --- | --- | --- |
//! | a load beside an antagonist, whose rate rises step by step | [`Ladder::fit`] | use of a resource for each byte, capacity |
//! | the same, if only the antagonist slows down | [`use_below_share`] | use of a resource for each byte |
//! | a load alone, by cores | [`Solo`] | its highest rate |
//! | a load alone, by bytes in flight | [`Loop::fit`] | latency, plateau |
//! | memory alone, by the share of writes | [`WriteShare::fit`] | capacity for any share |
//!
//! The use of a resource cannot be seen in a run of the load alone, because the rate does not depend on a
//! resource that is not full. An antagonist fills it. From then on the load loses `1 / u` bytes for each unit
//! that the antagonist gains, so `u = -1 / (dx/da)`.

use crate::error::Result;
use crate::id::ResourceId;
use crate::network::{Flow, Network, Resource};
use crate::solve::Solution;

/// Why measurements allow no fit.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Too few measurements.
    #[error("{found} measurements are too few; give at least {least}")]
    TooFew {
        /// The number of measurements.
        found: usize,
        /// The least number.
        least: usize,
    },
    /// A measurement that is negative, not finite, or zero where it must not be.
    #[error("measurement {index} is {value}; give finite numbers above zero")]
    Value {
        /// The index of the measurement.
        index: usize,
        /// The number.
        value: f64,
    },
    /// The load's rate did not fall beside the antagonist. Either the resource was never full, or the load needs less
    /// than its fair share of it. In the second case, [`use_below_share`] gives the use.
    #[error(
        "the load kept its rate of {solo:.3e} beside an antagonist of up to {antagonist:.3e}; raise the antagonist, or use its rate beside the load if it cannot be raised"
    )]
    NotSaturated {
        /// The mean rate of the load.
        solo: f64,
        /// The highest rate of the antagonist.
        antagonist: f64,
    },
    /// Measurements that do not have the form of the curve.
    #[error("the measurements do not determine the curve; measure at more different points")]
    Undetermined,
}

/// A use of a resource that was fitted to a ladder of antagonists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ladder {
    /// Units of the resource for each byte of the load. The antagonist's rate counts the units.
    pub per_byte: f64,
    /// The interval that contains `per_byte` in about 95 of 100 cases: least and most.
    pub interval: (f64, f64),
    /// The units per second that load and antagonist take when the resource is full.
    pub capacity: f64,
    /// The mean rate of the load while the resource was not full. `None` if it was full at every step.
    pub solo: Option<f64>,
    /// The number of steps at which the resource was full.
    pub saturated: usize,
}

impl Ladder {
    /// Fits `(antagonist, rate)` pairs: the measured rate of the antagonist in units per second, and the
    /// rate of the load in bytes per second at the same time. Finds the step from which on the resource is
    /// full: the rate is constant before and falls along a line after it.
    ///
    /// # Errors
    /// [`FitError`] if there are less than four points, a number is invalid, or the rate does not fall.
    pub fn fit(points: &[(f64, f64)]) -> Result<Self, FitError> {
        /// The least number of points on the falling line. Fewer would not allow an estimate of the slope's error.
        const LEAST: usize = 3;
        /// The least ratio of the slope to its standard error. Smaller slopes are noise.
        const SIGNIFICANT: f64 = 6.0;
        check(points, LEAST + 1)?;
        let mut points = points.to_vec();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let split = |flat: usize| {
            let (head, tail) = points.split_at(flat);
            let mean = head.iter().map(|point| point.1).sum::<f64>() / head.len() as f64;
            let level: f64 = head.iter().map(|point| (point.1 - mean).powi(2)).sum();
            Some((flat, level, Line::through(tail)?))
        };
        let splits = (0..=points.len() - LEAST).filter_map(split);
        let best =
            splits.min_by(|one, other| (one.1 + one.2.squares).total_cmp(&(other.1 + other.2.squares)));
        let (flat, level, line) = best.ok_or(FitError::Undetermined)?;
        let freedom = points.len().saturating_sub(3).max(1) as f64;
        let error = ((level + line.squares) / freedom / line.spread).sqrt();
        if line.slope >= 0.0 || -line.slope < SIGNIFICANT * error {
            let solo = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
            return Err(FitError::NotSaturated { solo, antagonist: points[points.len() - 1].0 });
        }
        let per_byte = -1.0 / line.slope;
        let head = &points[..flat];
        Ok(Self {
            per_byte,
            interval: (-1.0 / (line.slope - 2.0 * error), -1.0 / (line.slope + 2.0 * error)),
            capacity: line.at_zero * per_byte,
            solo: (flat > 0).then(|| head.iter().map(|point| point.1).sum::<f64>() / flat as f64),
            saturated: points.len() - flat,
        })
    }
}

/// A line that was fitted by least squares.
struct Line {
    slope: f64,
    at_zero: f64,
    /// The sum of the squared residuals.
    squares: f64,
    /// The sum of the squared distances of the points from their mean on the axis of x.
    spread: f64,
}

impl Line {
    /// Returns `None` if all points have the same x.
    fn through(points: &[(f64, f64)]) -> Option<Self> {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
        let at_zero = y - slope * x;
        let squares = points.iter().map(|point| (point.1 - at_zero - slope * point.0).powi(2)).sum();
        (spread > 0.0 && slope.is_finite()).then_some(Self { slope, at_zero, squares, spread })
    }
}

/// The rate of a load alone by its number of cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Solo {
    points: Vec<(f64, f64)>,
}

impl Solo {
    /// Creates the curve from `(cores, rate)` pairs. Uses the median of several rates for the same cores.
    ///
    /// # Errors
    /// [`FitError`] if there are no points or a number is invalid.
    pub fn new(points: &[(f64, f64)]) -> Result<Self, FitError> {
        check(points, 1)?;
        let mut points = points.to_vec();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let same = points.chunk_by(|one, other| one.0 == other.0);
        Ok(Self {
            points: same.map(|group| (group[0].0, median(group.iter().map(|point| point.1)))).collect(),
        })
    }

    /// Returns the rate with `cores` cores. Interpolates between measurements, and below the first one in
    /// proportion. Above the last one, returns the last rate, because more cores may not help.
    pub fn rate(&self, cores: f64) -> f64 {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        let between = |pair: &[(f64, f64)]| {
            let ((from, low), (to, high)) = (pair[0], pair[1]);
            (cores <= to).then(|| low + (high - low) * (cores - from) / (to - from))
        };
        match cores {
            _ if cores <= first.0 => first.1 * cores / first.0,
            _ => self.points.windows(2).find_map(between).unwrap_or(last.1),
        }
    }
}

/// A closed loop that was fitted to a sweep over the bytes in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loop {
    /// The seconds of a round trip while nothing is full.
    pub latency: f64,
    /// The rate with many bytes in flight. `None` if the rate still grew at the last step.
    pub plateau: Option<f64>,
}

impl Loop {
    /// Fits `(bytes in flight, rate)` pairs to `rate = min(bytes / latency, plateau)`. The latency is the
    /// median of the steps that grow, and the plateau is the median of the others.
    ///
    /// # Errors
    /// [`FitError`] if there are less than three points or a number is invalid.
    pub fn fit(points: &[(f64, f64)]) -> Result<Self, FitError> {
        check(points, 3)?;
        let mut points = points.to_vec();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let with = |growing: usize| {
            let (head, tail) = points.split_at(growing);
            let latency = median(head.iter().map(|(bytes, rate)| bytes / rate));
            let plateau = (!tail.is_empty()).then(|| median(tail.iter().map(|point| point.1)));
            let model = |bytes: f64| plateau.unwrap_or(f64::INFINITY).min(bytes / latency);
            let error: f64 = points.iter().map(|(bytes, rate)| (model(*bytes) / rate).ln().abs()).sum();
            (Self { latency, plateau }, error)
        };
        // If two fits are equal, the one without a plateau is taken.
        let fits = (1..=points.len()).rev().map(with);
        let best = fits.min_by(|one, other| one.1.total_cmp(&other.1));
        Ok(best.ok_or(FitError::Undetermined)?.0)
    }
}

/// The capacity of memory by the share of writes. The time of a byte is a quadratic function of the share, because
/// writes take longer than reads, and switching between them takes time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteShare {
    read: f64,
    write: f64,
    turn: f64,
}

impl WriteShare {
    /// Fits the capacities in bytes per second of reads alone, of as many reads as writes, and of writes alone.
    ///
    /// # Errors
    /// [`FitError::Value`] if a number is invalid.
    pub fn fit(read: f64, half: f64, write: f64) -> Result<Self, FitError> {
        check(&[(0.0, read), (0.5, half), (1.0, write)], 3)?;
        Ok(Self { read: 1.0 / read, write: 1.0 / write, turn: 4.0 / half - 2.0 / read - 2.0 / write })
    }

    /// Returns the capacity for a share of writes from 0 to 1.
    pub fn capacity(&self, share: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        1.0 / (self.read * (1.0 - share) + self.write * share + self.turn * share * (1.0 - share))
    }
}

/// A load as measurements describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The rate of the load alone, in bytes per second.
    pub solo: f64,
    /// The units of each resource for each byte. Zero for resources that the load does not use.
    pub uses: Vec<f64>,
}

/// Resources and loads with fitted numbers. It predicts what loads reach together.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// The resources, with fitted or measured capacities.
    pub resources: Vec<Resource>,
    /// The loads.
    pub loads: Vec<Load>,
}

impl System {
    /// Creates a network of some of the loads. Its flow n is load `together[n]`.
    ///
    /// # Errors
    /// [`crate::Error::Value`] if a fitted number is out of range.
    ///
    /// # Panics
    /// If `together` contains an index that is not one of a load.
    pub fn network(&self, together: &[usize]) -> Result<Network> {
        let mut network = Network::new();
        let ids: Vec<ResourceId> =
            self.resources.iter().map(|resource| network.add_resource(*resource)).collect::<Result<_>>()?;
        for &load in together {
            let Load { solo, uses } = &self.loads[load];
            let uses = ids.iter().copied().zip(uses.iter().copied()).filter(|(_, per_byte)| *per_byte > 0.0);
            network.add_flow(Flow { uses: uses.collect(), demand: Some(*solo), ..Flow::default() })?;
        }
        Ok(network)
    }

    /// Predicts the rates of some of the loads together. Entry n of the solution's flows is load `together[n]`.
    ///
    /// # Errors
    /// As [`System::network`].
    ///
    /// # Panics
    /// If `together` contains an index that is not one of a load.
    pub fn predict(&self, together: &[usize]) -> Result<Solution> {
        self.network(together)?.solve()
    }

    /// Predicts every pair of loads, and all loads together if there are more than two. Returns the loads of
    /// each prediction with the solution.
    ///
    /// # Errors
    /// As [`System::network`].
    pub fn predict_mixes(&self) -> Result<Vec<(Vec<usize>, Solution)>> {
        let count = self.loads.len();
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| vec![one, other]));
        let all = (count > 2).then(|| (0..count).collect());
        pairs.chain(all).map(|loads| Ok((loads.clone(), self.predict(&loads)?))).collect()
    }
}

/// Returns the use of a load that an antagonist never slows down, because the load needs less than its fair share.
/// `capacity` is the rate of the antagonist alone, and `beside` is its rate while the load runs with rate `rate`.
/// The smaller the use, the larger is the influence of measurement errors. Returns zero if the load did not slow the
/// antagonist down.
///
/// # Errors
/// [`FitError::Value`] if a number is invalid.
pub fn use_below_share(capacity: f64, beside: f64, rate: f64) -> Result<f64, FitError> {
    check(&[(beside, capacity), (beside, rate)], 2)?;
    Ok((capacity - beside).max(0.0) / rate)
}

/// Returns the capacity of a resource from the ladders of several loads: the median of their capacities.
/// `None` without ladders.
pub fn capacity(ladders: &[Ladder]) -> Option<f64> {
    (!ladders.is_empty()).then(|| median(ladders.iter().map(|ladder| ladder.capacity)))
}

/// Checks that there are `least` points, all x are finite and not negative, and all y are finite and positive.
fn check(points: &[(f64, f64)], least: usize) -> Result<(), FitError> {
    if points.len() < least {
        return Err(FitError::TooFew { found: points.len(), least });
    }
    for (index, &(x, y)) in points.iter().enumerate() {
        for (value, valid) in [(x, x >= 0.0), (y, y > 0.0)] {
            if !value.is_finite() || !valid {
                return Err(FitError::Value { index, value });
            }
        }
    }
    Ok(())
}

/// Returns the median of at least one value.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests;
