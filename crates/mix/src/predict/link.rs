//! How loads divide the link of a device, and what both directions take together.
//!
//! A direction is not divided into equal parts: the SMs of a GPU get more of it than a copy engine. And loads in opposite
//! directions slow each other down, because requests and completions share queues in the device. Ladders show both. For a
//! load i and a load j, the antagonist that crosses the link in the direction of j, moved by the same means, stands for j.

use crate::observation::Loaded;
use crate::solo::{Crossing, Fitted, SLOWED, Step, crossings};

/// The range of the ratio of two loads' shares. Beyond it, one load starves the other.
const RATIOS: std::ops::RangeInclusive<f64> = 0.02..=50.0;

/// The loads of a mix, and what is known of them.
pub(super) struct Links<'a> {
    pub loaded: &'a [Loaded],
    pub users: usize,
    pub fitted: &'a Fitted,
    /// The rate of each of the user's loads alone.
    pub alone: &'a [f64],
}

/// What a load gets for each byte of another one.
#[derive(Clone, Copy)]
struct Ratio {
    bytes: f64,
    /// True if the load was not slowed down, so it may get more.
    is_least: bool,
}

impl Links<'_> {
    fn crossings_of(&self, load: usize, device: &str) -> Vec<Crossing> {
        let mut found = crossings(&self.loaded[load]);
        found.retain(|of| of.device == device);
        found
    }

    /// Returns the devices whose links the loads cross.
    pub fn devices(&self, loads: &[usize]) -> Vec<String> {
        let mut devices: Vec<String> =
            loads.iter().flat_map(|load| crossings(&self.loaded[*load])).map(|of| of.device).collect();
        devices.sort();
        devices.dedup();
        devices
    }

    /// Returns the antagonists that cross the link as `load` does, and beside which `beside` ran. Those that are moved by the
    /// same means come first.
    fn stand_ins(&self, load: usize, beside: usize, device: &str) -> Vec<usize> {
        let ways = self.crossings_of(load, device);
        let ran = |antagonist: &usize| self.unpaced(beside, *antagonist).is_some();
        let same = |antagonist: &usize| {
            let crosses = self.crossings_of(*antagonist, device);
            (crosses.iter().any(|of| ways.iter().any(|way| way.to_device == of.to_device)), crosses)
        };
        let found = (self.users..self.loaded.len()).filter(ran).filter(|antagonist| same(antagonist).0);
        let mut found: Vec<usize> = found.collect();
        found.sort_by_key(|antagonist| !same(antagonist).1.iter().any(|of| ways.contains(of)));
        found
    }

    fn unpaced(&self, load: usize, antagonist: usize) -> Option<&Step> {
        self.fitted.steps[load][antagonist].iter().rev().find(|step| step.is_unpaced())
    }

    fn beside(&self, load: usize, antagonist: usize) -> Option<Ratio> {
        let step = self.unpaced(load, antagonist)?;
        let is_least = step.rate >= SLOWED * self.alone[load];
        let bytes = (step.rate / step.antagonist).clamp(*RATIOS.start(), *RATIOS.end());
        Some(Ratio { bytes: if is_least { bytes.max(1.0) } else { bytes }, is_least })
    }

    /// Returns what `one` gets for each byte of `other`, as the antagonist that stands for `other` shows it.
    fn seen_by(&self, one: usize, other: usize, device: &str) -> Option<Ratio> {
        let antagonist = *self.stand_ins(other, one, device).first()?;
        let ratio = self.beside(one, antagonist)?;
        // The other load may compete better or worse than the antagonist that stands for it.
        let of_other = self.beside(other, antagonist).filter(|of| !of.is_least);
        let same_way = self
            .crossings_of(other, device)
            .iter()
            .any(|way| self.crossings_of(antagonist, device).contains(way));
        let strength = of_other.filter(|_| same_way || self.same_direction(one, other, device));
        Some(Ratio { bytes: ratio.bytes / strength.map_or(1.0, |of| of.bytes), ..ratio })
    }

    fn same_direction(&self, one: usize, other: usize, device: &str) -> bool {
        let others = self.crossings_of(other, device);
        let ways = self.crossings_of(one, device);
        ways.iter().any(|way| others.iter().any(|other| way.to_device == other.to_device))
    }

    /// Returns what `one` gets for each byte of `other` when both compete for the link.
    fn ratio(&self, one: usize, other: usize, device: &str) -> f64 {
        let ratio = match (self.seen_by(one, other, device), self.seen_by(other, one, device)) {
            (Some(of), Some(back)) if of.is_least == back.is_least => (of.bytes / back.bytes).sqrt(),
            (Some(of), Some(back)) if back.is_least => of.bytes.min(1.0 / back.bytes),
            (Some(of), Some(back)) => of.bytes.max(1.0 / back.bytes),
            (Some(of), None) => of.bytes,
            (None, Some(back)) => 1.0 / back.bytes,
            (None, None) => 1.0,
        };
        ratio.clamp(*RATIOS.start(), *RATIOS.end())
    }

    /// Returns the weight of each of `loads` on the link: the bytes that it gets while all compete.
    pub fn weights(&self, loads: &[usize], device: &str) -> Vec<f64> {
        let crosses = |load: &&usize| !self.crossings_of(**load, device).is_empty();
        let mean = |one: &usize| {
            let others = loads.iter().filter(crosses).filter(|other| *other != one && crosses(&one));
            let logs: Vec<f64> = others.map(|other| self.ratio(*one, *other, device).ln()).collect();
            (logs.iter().sum::<f64>() / (logs.len() + 1) as f64).exp()
        };
        loads.iter().map(mean).collect()
    }

    /// Returns the share of what both directions carry together that each byte of each of `loads` takes, so that the sum over
    /// all rates is at most 1. `None` if the loads cross only one direction, or do not slow each other down.
    pub fn joint(&self, loads: &[usize], device: &str) -> Option<Vec<f64>> {
        let directions: Vec<Vec<bool>> = loads
            .iter()
            .map(|load| self.crossings_of(*load, device).iter().map(|of| of.to_device).collect())
            .collect();
        let mut views: Vec<Vec<f64>> = Vec::new();
        for (at, &one) in loads.iter().enumerate() {
            // A load that crosses both directions is slowed down by each of them.
            let [own] = directions[at][..] else { continue };
            let opposite = |of: &usize| directions[*of].contains(&!own);
            let fits: Vec<(usize, Joint)> = (0..loads.len())
                .filter(opposite)
                .filter_map(|of| Some((of, self.view(one, loads[of], device)?)))
                .collect();
            if fits.is_empty() {
                continue;
            }
            let mean =
                |of: fn(&Joint) -> f64| fits.iter().map(|(_, fit)| of(fit)).sum::<f64>() / fits.len() as f64;
            let takes = |of: usize| {
                let same = if directions[of].contains(&own) { mean(|fit| fit.own) } else { 0.0 };
                let fitted = fits.iter().find(|(other, _)| *other == of).map(|(_, fit)| fit.opposite);
                let other =
                    if opposite(&of) { fitted.unwrap_or_else(|| mean(|fit| fit.opposite)) } else { 0.0 };
                same + other
            };
            views.push((0..loads.len()).map(takes).collect());
        }
        let mean = |at: usize| {
            let mean = views.iter().map(|view| view[at]).sum::<f64>() / views.len() as f64;
            // The load alone does not exceed the ceiling.
            mean.min(1.0 / self.alone[loads[at]])
        };
        (!views.is_empty()).then(|| (0..loads.len()).map(mean).collect())
    }

    /// Fits what `one` and the antagonist that stands for `other`, in the opposite direction, take together.
    fn view(&self, one: usize, other: usize, device: &str) -> Option<Joint> {
        let antagonist = *self.stand_ins(other, one, device).first()?;
        let slowed = |step: &&Step| step.rate < SLOWED * self.alone[one] && step.antagonist > 0.0;
        let points: Vec<(f64, f64)> = self.fitted.steps[one][antagonist]
            .iter()
            .filter(slowed)
            .map(|step| (step.rate, step.antagonist))
            .collect();
        Joint::fit(&points, self.alone[one])
    }
}

/// What a byte of a load and one of an antagonist in the opposite direction take of both directions together, of which there
/// is 1 a second.
#[derive(Clone, Copy, Debug)]
struct Joint {
    own: f64,
    opposite: f64,
}

impl Joint {
    /// Fits `own * rate + opposite * antagonist = 1` to the steps at which the load was slowed down.
    fn fit(points: &[(f64, f64)], alone: f64) -> Option<Self> {
        let sum = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        if points.is_empty() {
            return None;
        }
        let (xx, xy, yy) = (sum(|(x, _)| x * x), sum(|(x, y)| x * y), sum(|(_, y)| y * y));
        let (x, y) = (sum(|(x, _)| *x), sum(|(_, y)| *y));
        let determinant = xx * yy - xy * xy;
        let most = 1.0 / alone;
        // Steps that lie close to each other do not tell the two figures apart. Both directions then count alike.
        let mut own = match determinant > 1e-3 * xx * yy {
            true => (x * yy - y * xy) / determinant,
            false => points.len() as f64 / (x + y),
        };
        own = own.clamp(0.1 * most, most);
        // The best second figure for this first one.
        let opposite = (y - own * xy) / yy;
        (opposite > 0.0).then_some(Self { own, opposite })
    }
}
