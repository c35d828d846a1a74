//! How loads divide the link of a device, and what both directions take together.
//!
//! A direction is not divided into equal parts: the SMs of a GPU get more of it than a copy engine. And loads in opposite
//! directions slow each other down, because requests and completions share queues in the device. Ladders show both. For a
//! load i and a load j, the antagonist that crosses the link in the direction of j, moved by the same means, stands for j.

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
        let is_engine = |load: usize| self.crossings_of(load, device).iter().any(|way| way.by_engine);
        let mut views = (self.seen_by(one, other, device), self.seen_by(other, one, device));
        // Copies by a copy engine are all alike, but those by SMs stand for any work of SMs. So only the former count if there
        // are both.
        match (is_engine(one), is_engine(other)) {
            (true, false) if views.1.is_some_and(|view| !view.is_least) => views.0 = None,
            (false, true) if views.0.is_some_and(|view| !view.is_least) => views.1 = None,
            _ => {}
        }
        let ratio = match views {
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

    /// Returns what both directions carry together, as each of `loads` shows it that loads in the opposite direction slow
    /// down: the share of it that a byte of each load takes. The sum over all rates is at most 1.
    pub fn joint(&self, loads: &[usize], device: &str) -> Vec<Vec<f64>> {
        loads.iter().filter_map(|one| self.view(*one, loads, device)).collect()
    }

    fn view(&self, one: usize, loads: &[usize], device: &str) -> Option<Vec<f64>> {
        // A load that crosses both directions is slowed down by each of them.
        let [own] = &self.crossings_of(one, device)[..] else { return None };
        let opposite = Crossing { to_device: !own.to_device, ..own.clone() }.resource();
        let own = own.resource();
        let mut is_slowed = false;
        let mut takes = |load: usize| {
            let same = self.per_byte(load, &own) / self.per_byte(one, &own) / self.alone[one];
            let crosses = self.per_byte(load, &opposite);
            let amount = crosses * self.alone[load];
            let slows = (amount > 0.0).then(|| self.slow_down(one, load, device, amount)).flatten();
            is_slowed |= slows.is_some();
            same + crosses * slows.unwrap_or(0.0)
        };
        let takes = loads.iter().map(|load| takes(*load)).collect();
        is_slowed.then_some(takes)
    }

    /// Returns the bytes that cross a direction for each byte of a load.
    fn per_byte(&self, load: usize, direction: &Resource) -> f64 {
        let crosses = crossings(&self.loaded[load]).iter().any(|of| of.resource() == *direction);
        let used = self.loaded[load].uses.iter().find(|of| of.resource == *direction);
        used.filter(|_| crosses).map_or(0.0, |of| of.per_byte.unwrap_or(1.0))
    }

    /// Returns the share of its rate that `one` loses for each byte that crosses the link in the opposite direction, while
    /// `amount` bytes a second cross, as far as an
    /// antagonist that stands for `other` has reached that. `None` if it loses nothing.
    fn slow_down(&self, one: usize, other: usize, device: &str, amount: f64) -> Option<f64> {
        let antagonist = *self.stand_ins(other, one, device).first()?;
        let steps = self.fitted.steps[one][antagonist].iter().filter(|step| step.antagonist > 0.0);
        // The step at which the antagonist took what the other load takes, or else the one with the most.
        let distance = |step: &&Step| (step.antagonist - amount).abs();
        let step = steps.min_by(|one, other| distance(one).total_cmp(&distance(other)))?;
        let lost = 1.0 - step.rate / self.alone[one];
        (lost > 1.0 - SLOWED).then_some(lost / step.antagonist)
    }
}
