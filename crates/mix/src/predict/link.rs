//! How loads divide the link of a device, and what both directions take together.
//!
//! A direction is not divided into equal parts: the SMs of a GPU get more of it than a copy engine. And loads in opposite
//! directions slow each other down. Ladders show both. For a load i and a load j, the antagonist that crosses the link in the
//! direction of j, moved by the same means, stands for j.
//!
//! Only the top of a ladder counts here. A paced antagonist alternates between copies at full speed and pauses, so its lower
//! steps show a mean of both, and not what loads lose beside a steady stream of the same rate.

use crate::observation::Loaded;
use crate::solo::{Crossing, Fitted, SLOWED, Step, crossings};
use inlane_core::load::Resource;

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

/// What both directions of a link carry together.
pub(super) struct Joint {
    /// In full directions: at most 2.
    pub capacity: f64,
    /// The share of full directions that a byte of each load takes.
    pub uses: Vec<f64>,
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

    /// Returns what `one` beside the antagonist that stands for `other` shows, and the reverse. Copies by a copy engine are all
    /// alike, but those by SMs stand for any work of SMs. So only the former count if there are both and they tell something.
    fn views<T>(
        &self,
        one: usize,
        other: usize,
        device: &str,
        tells: impl Fn(&T) -> bool,
        view: impl Fn(usize, usize) -> Option<T>,
    ) -> (Option<T>, Option<T>) {
        let is_engine = |load: usize| self.crossings_of(load, device).iter().any(|way| way.by_engine);
        let (of, back) = (view(one, other), view(other, one));
        match (is_engine(one), is_engine(other)) {
            (true, false) if back.as_ref().is_some_and(&tells) => (None, back),
            (false, true) if of.as_ref().is_some_and(&tells) => (of, None),
            _ => (of, back),
        }
    }

    /// Returns what `one` gets for each byte of `other` when both compete for the link.
    fn ratio(&self, one: usize, other: usize, device: &str) -> f64 {
        let ratio = match self.views(
            one,
            other,
            device,
            |view: &Ratio| !view.is_least,
            |one, other| self.seen_by(one, other, device),
        ) {
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

    /// Returns what both directions of a link carry together. `None` if no ladder shows that loads in opposite directions slow
    /// each other down.
    ///
    /// A direction that is full counts as 1, and so does the other one. Together they carry less than 2: requests and
    /// completions share queues, and reads and writes of host memory take turns. How much less depends on what moves the bytes.
    /// The pair of loads with the lowest ceiling determines that of the mix.
    pub fn joint(&self, loads: &[usize], device: &str) -> Option<Joint> {
        let pairs = loads.iter().flat_map(|one| loads.iter().map(move |other| (*one, *other)));
        let ceilings = pairs.filter(|(one, other)| one < other).filter_map(|(one, other)| {
            let (of, back) =
                self.views(one, other, device, |_: &f64| true, |one, other| self.ceiling(one, other, device));
            match (of, back) {
                (Some(of), Some(back)) => Some((of + back) / 2.0),
                _ => of.or(back),
            }
        });
        let capacity = ceilings.reduce(f64::min)?;
        Some(Joint { capacity, uses: loads.iter().map(|load| self.share(*load, device)).collect() })
    }

    /// Returns what both directions carry together while `one` runs beside the antagonist that stands for `other`.
    fn ceiling(&self, one: usize, other: usize, device: &str) -> Option<f64> {
        // A load that crosses both directions is slowed down by each of them.
        let [own] = &self.crossings_of(one, device)[..] else { return None };
        let antagonist = *self.stand_ins(other, one, device).first()?;
        let opposite = |of: &Crossing| of.to_device != own.to_device;
        if !self.crossings_of(antagonist, device).iter().all(opposite) {
            return None;
        }
        let step = self.unpaced(one, antagonist).filter(|step| step.rate < SLOWED * self.alone[one])?;
        Some(step.rate * self.share(one, device) + step.antagonist * self.share(antagonist, device))
    }

    /// Returns the share of the link's directions that each byte of a load takes.
    fn share(&self, load: usize, device: &str) -> f64 {
        let of_direction = |way: &Crossing| {
            let resource = way.resource();
            let known = self.fitted.index(&resource).and_then(|at| self.fitted.capacities[at]);
            // Without an antagonist, the most that a load moved alone.
            let taken = (0..self.users).map(|load| self.per_byte(load, &resource) * self.alone[load]);
            let capacity = known.unwrap_or_else(|| taken.fold(0.0, f64::max));
            if capacity > 0.0 { self.per_byte(load, &resource) / capacity } else { 0.0 }
        };
        self.crossings_of(load, device).iter().map(of_direction).sum()
    }

    /// Returns the bytes that cross a direction for each byte of a load.
    fn per_byte(&self, load: usize, direction: &Resource) -> f64 {
        let crosses = crossings(&self.loaded[load]).iter().any(|of| of.resource() == *direction);
        let used = self.loaded[load].uses.iter().find(|of| of.resource == *direction);
        used.filter(|_| crosses).map_or(0.0, |of| of.per_byte.unwrap_or(1.0))
    }
}
