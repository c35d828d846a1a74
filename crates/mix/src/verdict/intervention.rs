//! What interventions show: other loads slowed, the load itself slowed, and antagonists.
//!
//! If a full resource limits loads, and somebody takes part of it or gives part of it back, their rates change in
//! proportion: by at least the amount divided by what all of them take. Effects far below that have other causes, such
//! as memory that slows loads before it is full.

use super::case::{Case, THROTTLED};
use super::{Bottleneck, Evidence, Fact, Says, When};
use crate::observation::Phase;
use crate::statistics::{self, Estimate};
use inlane_core::load::Resource;

/// A load counts as slowed if it lost at least this fraction of its rate.
const SLOWED: f64 = 0.04;
/// A load that gains more than this fraction without another one shares something with it.
const GAINED_ALONE: f64 = 0.3;
/// The most units that a load gains for each unit that another one gives up, with the errors of both uses.
const MOST_GAINED: f64 = 1.5;
/// The least time that a load under a quota gains for the time that another one gives up.
const LEAST_GAINED: f64 = 0.25;
/// An antagonist that takes a larger share than this slows loads also if the resource was not full before.
const LARGE: f64 = 0.62;

/// If the time of work falls by more than this for each part of a slow-down, the threads counted waiting as work. It falls by 1
/// if each operation takes as long as before.
const MOST_FALL: f64 = 1.2;
/// An antagonist explains the effect of another one if it has at least this share of it.
const EXPLAINED: f64 = 0.6;
/// The loads must give up at least this share of what an antagonist takes of a resource. Otherwise the antagonist itself filled
/// the resource: of one that was used to 94 % before, it finds 25 % of a quarter unused.
const LEAST_PAID: f64 = 0.7;
/// Threads that wait for a processor for at least this share of the time may be limited by it.
const WAITED: f64 = 0.25;

/// An intervention on something else than the load.
struct Change {
    /// The share of the changed load's or resource's rate.
    size: f64,
    /// The effect on the load, as a fraction of its rate.
    effect: Estimate,
}

impl Case<'_> {
    pub fn change(&self, to: Phase, load: usize) -> Option<Estimate> {
        statistics::change(&self.measured.observations, self.base, to, load)
    }

    /// Returns the phases in which another load is slowed, with that load and the fraction of its rate that it lost.
    fn slowed_others(&self) -> Vec<(Phase, usize, f64)> {
        let phases = statistics::phases(&self.measured.observations).into_iter();
        let slowed = |phase| match phase {
            Phase::Throttled { load, .. } if self.when == When::Together && load != self.load => {
                let lost = -self.change(phase, load)?.median;
                (lost >= SLOWED).then_some((phase, load, lost))
            }
            _ => None,
        };
        phases.filter_map(slowed).collect()
    }

    /// Returns the phases with an antagonist, that antagonist, and the share of its rate alone that it reached.
    pub fn antagonists(&self) -> Vec<(Phase, usize, f64)> {
        let phases = statistics::phases(&self.measured.observations).into_iter();
        let beside = |phase| {
            let antagonist = match phase {
                Phase::Beside { load, antagonist, .. } if self.when == When::Alone && load == self.load => {
                    antagonist
                }
                Phase::TogetherBeside { antagonist, .. } if self.when == When::Together => antagonist,
                _ => return None,
            };
            let observations = &self.measured.observations;
            let alone = statistics::rate(observations, Phase::Alone { load: antagonist }, antagonist)?.median;
            let beside = statistics::rate(observations, phase, antagonist)?.median;
            // Other processes may use a core too, so the antagonist alone does not show how much of it there is.
            let time = self.time_on_core(phase, antagonist);
            (alone > 0.0 && beside > 0.0).then_some((phase, antagonist, time.unwrap_or(beside / alone)))
        };
        phases.filter_map(beside).collect()
    }

    /// Judges by what the load gained when other loads were slowed: one piece of evidence for each of them.
    pub fn exchange(&self, bottleneck: &Bottleneck) -> Vec<Evidence> {
        let parts = self.parts(bottleneck);
        let per_byte = |of: usize| match bottleneck {
            Bottleneck::Quota => self.time_per_byte(of),
            _ => self.per_byte(of, &parts),
        };
        let used: f64 = (0..self.rates.len()).map(|of| per_byte(of).unwrap_or(0.0) * self.rates[of]).sum();
        let of_other = |(phase, other, lost): (Phase, usize, f64)| {
            let gain = self.change(phase, self.load)?;
            let freed = lost * self.rates[other];
            let gains = gain.low > 0.0 && gain.median >= self.noise;
            let own = per_byte(self.load).filter(|per_byte| *per_byte > 0.0);
            let others = per_byte(other);
            let is_own = parts.is_empty() && *bottleneck != Bottleneck::Quota;
            let says = if is_own || *bottleneck == Bottleneck::OwnCores {
                if gains { Says::Against } else { Says::Neither }
            } else if others == Some(0.0) || others.is_none() && !self.states_nothing(other) {
                // The other load does not take any of it.
                if gains && gain.median >= 0.15 * lost { Says::Against } else { Says::Neither }
            } else if let (Some(_), Some(others)) = (own, others) {
                let units = self.freed_time(&parts, phase, other).unwrap_or(others * freed);
                if units <= self.noise * used {
                    // Its threads poll, so they left the others no more time of their cores.
                    return Some(Evidence {
                        fact: self.exchanged(other, freed, gain, own, Some(others)),
                        says: Says::Neither,
                    });
                }
                // The load can at most become as fast as alone.
                let most = statistics::rate(
                    &self.measured.observations,
                    Phase::Alone { load: self.load },
                    self.load,
                )
                .map_or(f64::INFINITY, |alone| (alone.median / self.rates[self.load] - 1.0).max(0.0));
                let expected = (units / (used - units)).min(most);
                let gained = gain.median * self.rates[self.load] * own.unwrap_or(0.0);
                match self.compare(gain.median, gain.low, gain.high, expected, 0.5, 0.3) {
                    // It gained more than the other load gave up.
                    Says::For if gained > MOST_GAINED * units => Says::Neither,
                    // Loads that a quota stops share what another one leaves.
                    Says::For
                        if *bottleneck == Bottleneck::Quota && gained < LEAST_GAINED * others * freed =>
                    {
                        Says::Neither
                    }
                    says => says,
                }
            } else {
                Says::Neither
            };
            Some(Evidence { fact: self.exchanged(other, freed, gain, own, others), says })
        };
        let parked = self.parked_other(bottleneck);
        self.slowed_others().into_iter().filter_map(of_other).chain(parked).collect()
    }

    /// Judges by what the load gains without the only other one. That excludes what the other one does not use. It speaks for a
    /// core that both use and for a quota, because only time is shared there. Any other resource that both use may be the reason.
    fn parked_other(&self, bottleneck: &Bottleneck) -> Option<Evidence> {
        let mut others = self.others();
        let (Some(other), None, When::Together) = (others.next(), others.next(), self.when) else {
            return None;
        };
        let gain = self.change(Phase::Alone { load: self.load }, self.load)?;
        let gains = gain.low > 0.0 && gain.median > GAINED_ALONE;
        let uses = |load: usize, resource: &Resource| {
            self.measured.loads[load].uses.iter().any(|used| used.resource == *resource)
        };
        let says = match bottleneck {
            Bottleneck::Resource(resource @ Resource::Core(_)) if gains && uses(other, resource) => Says::For,
            // The quota holds for both.
            Bottleneck::Quota if gains && self.is_throttled() => Says::For,
            Bottleneck::ClosedLoop | Bottleneck::Resource(Resource::Peer(_)) if gains => Says::Against,
            _ => return None,
        };
        let freed = self.rates[other];
        Some(Evidence { fact: self.exchanged(other, freed, gain, None, None), says })
    }

    /// Returns the fact that this load gained something when `other` lost `freed`. `own` and `others` are what a byte of each
    /// takes of a resource.
    fn exchanged(
        &self,
        other: usize,
        freed: f64,
        gain: Estimate,
        own: Option<f64>,
        others: Option<f64>,
    ) -> Fact {
        let gained = gain.median * self.rates[self.load];
        let (per_unit, in_units) = match (own, others.filter(|per_byte| *per_byte > 0.0)) {
            (Some(own), Some(others)) => (gained * own / (freed * others), true),
            _ => (gained / freed, false),
        };
        Fact::Exchange { slowed: other, freed, gain, per_unit, in_units }
    }

    /// Compares an effect with the least one that is expected if the resource is full and limits the load.
    fn compare(&self, median: f64, low: f64, high: f64, expected: f64, least: f64, most: f64) -> Says {
        if expected < 1.5 * self.noise {
            return Says::Neither;
        }
        match () {
            () if low > 0.0 && median >= (least * expected).max(self.noise) => Says::For,
            () if high < most * expected => Says::Against,
            () => Says::Neither,
        }
    }

    /// Returns true if nothing is known about what `load` uses.
    fn states_nothing(&self, load: usize) -> bool {
        self.measured.loads[load].uses.is_empty()
    }

    /// Judges by what the load lost beside antagonists: one piece of evidence for each antagonist of the bottleneck and
    /// each of its shares. For bottlenecks of the load itself, by antagonists of anything.
    pub fn antagonist(&self, bottleneck: &Bottleneck) -> Vec<Evidence> {
        let parts = self.parts(bottleneck);
        let beside = |(phase, antagonist, share): (Phase, usize, f64)| {
            let resource = self.measured.loads[antagonist].antagonist_of.clone()?;
            let at = self.fitted.index(&resource)?;
            let change = self.change(phase, self.load)?;
            // The share of the bottleneck's capacity: an antagonist of one direction takes half of both.
            let capacity = |at: &usize| self.fitted.capacities[*at].unwrap_or(0.0);
            let whole: f64 = parts.iter().map(capacity).sum();
            let is_part = parts.contains(&at);
            let taken = if is_part && whole > 0.0 { share * capacity(&at) / whole } else { share };
            let is_core = matches!(resource, Resource::Core(_) | Resource::Processors);
            let says = match bottleneck {
                // The antagonist took a core, and not only the resource.
                _ if !is_core && self.is_displaced(phase) => Says::Neither,
                _ if is_part => match self.loss(change, taken) {
                    Says::For if self.is_explained(phase, antagonist, &parts, bottleneck) => Says::Neither,
                    Says::For if self.is_unpaid(phase, antagonist, &parts) => Says::Neither,
                    Says::Against if self.is_paid_by_others(phase, antagonist, &parts) => Says::Neither,
                    says => says,
                },
                // An antagonist that displaces the load in proportion has found a full resource.
                Bottleneck::OwnCores | Bottleneck::Source | Bottleneck::ClosedLoop
                    if self.loss(change, taken) == Says::For =>
                {
                    Says::Against
                }
                _ => return None,
            };
            Some(Evidence { fact: Fact::Antagonist { antagonist, resource, share, change }, says })
        };
        self.antagonists().into_iter().filter_map(beside).collect()
    }

    /// Returns true if other loads gave up most of what an antagonist takes of the resources `parts`. These are full then,
    /// and the load only competes better than the others.
    fn is_paid_by_others(&self, phase: Phase, antagonist: usize, parts: &[usize]) -> bool {
        self.paid(phase, antagonist, parts, self.others()).is_some_and(|paid| paid > 0.5)
    }

    /// Returns true if all loads together gave up so little that part of the resources `parts` was unused before. A load that
    /// competes worse than the others can lose as much as if they had been full. `false` if the use of a load that lost something is
    /// unknown.
    fn is_unpaid(&self, phase: Phase, antagonist: usize, parts: &[usize]) -> bool {
        let all = || self.others().chain([self.load]);
        let lost = |load: usize| self.change(phase, load).is_some_and(|change| -change.median > self.noise);
        let known = |load: usize| self.per_byte(load, parts).is_some() || !lost(load);
        all().count() > 1
            && all().all(known)
            && self.paid(phase, antagonist, parts, all()).is_some_and(|paid| paid < LEAST_PAID)
    }

    /// Returns what `loads` gave up of the resources `parts`, as a share of what an antagonist takes of them in `phase`.
    fn paid(
        &self,
        phase: Phase,
        antagonist: usize,
        parts: &[usize],
        loads: impl Iterator<Item = usize>,
    ) -> Option<f64> {
        let rate = |load: usize| Some(statistics::rate(&self.measured.observations, phase, load)?.median);
        let units = |load: usize| self.per_byte(load, parts).unwrap_or(0.0);
        let taken = rate(antagonist)? * units(antagonist);
        let lost = |load: usize| Some((self.rates[load] - rate(load)?) * units(load));
        (taken > 0.0).then(|| loads.filter_map(lost).sum::<f64>() / taken)
    }

    /// Returns true if the loss beside an antagonist may have another reason than the resources `parts`: the quota throttles
    /// the load then, or the antagonist takes another resource, and an antagonist of that alone has most of the effect.
    fn is_explained(
        &self,
        phase: Phase,
        antagonist: usize,
        parts: &[usize],
        bottleneck: &Bottleneck,
    ) -> bool {
        let queued = self.of_load(phase, |rate| rate.queued).unwrap_or(1.0);
        let throttled = self.signal(phase, |observation| observation.signals.throttled).unwrap_or(0.0);
        if *bottleneck != Bottleneck::Quota && throttled >= THROTTLED && queued >= THROTTLED {
            return true;
        }
        let takes =
            |load: usize, at: usize| self.fitted.per_byte(load, at).is_some_and(|per_byte| per_byte > 0.0);
        let unstated = parts.iter().all(|at| {
            let uses = &self.measured.loads[self.load].uses;
            !uses.is_empty() && !uses.iter().any(|used| used.resource == self.fitted.resources[*at])
        });
        let taken = |phase: Phase, antagonist: usize, at: usize| {
            let rate = statistics::rate(&self.measured.observations, phase, antagonist)?.median;
            Some(rate * self.fitted.per_byte(antagonist, at)?)
        };
        let loss = self.change(phase, self.load).map(|change| -change.median);
        self.antagonists().into_iter().any(|(of_other, other, share)| {
            let of = self.measured.loads[other].antagonist_of.as_ref();
            let Some(at) = of.and_then(|resource| self.fitted.index(resource)) else { return false };
            !parts.contains(&at)
                && takes(antagonist, at)
                && !parts.iter().any(|part| takes(other, *part))
                && self.change(of_other, self.load).is_some_and(|change| {
                    let loses = change.high < 0.0 && -change.median > self.noise;
                    let alike = || {
                        // What the load would lose if the other antagonist took as much of its resource as this one does.
                        let amounts = taken(phase, antagonist, at).zip(taken(of_other, other, at));
                        let expected = amounts.map(|(here, there)| -change.median * here / there);
                        expected.zip(loss).is_some_and(|(expected, loss)| expected > EXPLAINED * loss)
                    };
                    self.loss(change, share) == Says::For || loses && (unstated || alike())
                })
        })
    }

    /// Judges the loss beside an antagonist that takes the share `taken` of the capacity. A resource of which 94 % are used
    /// gives the smallest loss that speaks for it, one of which 75 % are used the largest that speaks against it.
    fn loss(&self, change: Estimate, taken: f64) -> Says {
        let of = |used: f64| ((taken - (1.0 - used)) / used / taken).max(0.0);
        if taken > LARGE {
            // Even an unpaced antagonist took nothing.
            return self.compare(-change.median, -change.high, -change.low, taken, f64::INFINITY, 0.3);
        }
        self.compare(-change.median, -change.high, -change.low, taken, of(0.94).max(0.5), of(0.75).max(0.35))
    }

    /// Judges by what changed when the load itself was slowed.
    pub fn slowed(&self, bottleneck: &Bottleneck) -> Option<Evidence> {
        let phase =
            statistics::phases(&self.measured.observations).into_iter().find(|phase| match phase {
                Phase::ThrottledAlone { load, .. } => self.when == When::Alone && *load == self.load,
                Phase::Throttled { load, .. } => self.when == When::Together && *load == self.load,
                _ => false,
            })?;
        let rate = 1.0 + self.change(phase, self.load)?.median;
        if !(0.5..1.0 - SLOWED).contains(&rate) {
            return None;
        }
        let both = |of: fn(&crate::observation::LoadRate) -> Option<f64>| {
            Some((self.of_load(self.base, of)?, self.of_load(phase, of)?))
        };
        let busy = both(|rate| rate.busy);
        let blocked = both(|rate| rate.blocked);
        let throttled = |phase| self.signal(phase, |observation| observation.signals.throttled);
        let throttled = throttled(self.base).zip(throttled(phase));
        // The part of the slow-down by which the time of work fell: 1 if each operation took as long as before.
        let fall =
            busy.filter(|busy| busy.0 > 0.3).map(|(before, then)| (1.0 - then / before) / (1.0 - rate));
        let others_gain = self.others().any(|other| {
            self.change(phase, other).is_some_and(|gain| gain.low > 0.0 && gain.median > 0.2 * (1.0 - rate))
                && !self.shared_is_excluded(other)
        });
        let queued = both(|rate| rate.queued);
        let says = match (bottleneck, fall, blocked, throttled) {
            (Bottleneck::Resource(Resource::Core(_) | Resource::Processors), ..)
                if queued.is_some_and(|(before, then)| before > WAITED && then < 0.75 * before) =>
            {
                Says::For
            }
            // Somebody takes what it leaves, so it shares a full resource. Its threads may wait for that all the time.
            (Bottleneck::OwnCores, ..) if others_gain => Says::Neither,
            (Bottleneck::OwnCores, Some(fall), ..) if (0.55..MOST_FALL).contains(&fall) => Says::For,
            (Bottleneck::OwnCores, Some(fall), ..) if fall > 2.0 => Says::Against,
            (Bottleneck::Quota, _, _, Some((before, then)))
                if before > 0.03 && before - then > 0.3 * (1.0 - rate) =>
            {
                Says::For
            }
            // It reached its pace, and the slower one exactly, too.
            (Bottleneck::Pace, ..) if self.follows_pace(phase, rate) => Says::For,
            (Bottleneck::Resource(resource), _, Some((before, then)), _)
                if self.is_sender(resource) && before > 0.25 && then < 0.4 * before =>
            {
                Says::For
            }
            _ => Says::Neither,
        };
        Some(Evidence { fact: Fact::Slowed { rate, busy, blocked, throttled }, says })
    }

    /// Returns true if the load reaches its pace, and `rate`, its share of that in `phase`, is the one that was set.
    fn follows_pace(&self, phase: Phase, rate: f64) -> bool {
        let reached = self.pace(&Bottleneck::Pace).is_some_and(|evidence| evidence.says == Says::For);
        let set = match phase {
            Phase::Throttled { share, .. } | Phase::ThrottledAlone { share, .. } => share,
            _ => return false,
        };
        reached && (rate - set).abs() < 0.02
    }

    /// Returns true if antagonists show that no resource that the load shares with `other` limits it.
    fn shared_is_excluded(&self, other: usize) -> bool {
        let takes =
            |load: usize, at: usize| self.fitted.per_byte(load, at).is_none_or(|per_byte| per_byte > 0.0);
        let mut shared = (0..self.fitted.resources.len()).filter(|at| {
            let is_core = matches!(self.fitted.resources[*at], Resource::Core(_));
            !is_core && takes(self.load, *at) && takes(other, *at)
        });
        shared.all(|at| {
            let evidence = self.antagonist(&Bottleneck::Resource(self.fitted.resources[at].clone()));
            evidence.iter().any(|of| of.says == Says::Against)
                && evidence.iter().all(|of| of.says != Says::For)
        })
    }

    /// Returns true if slowing the load did not make its threads less busy, so they also count waiting as work.
    pub fn polls(&self) -> bool {
        match self.slowed(&Bottleneck::OwnCores).map(|evidence| evidence.fact) {
            Some(super::Fact::Slowed { rate, busy: Some((before, then)), .. }) => {
                1.0 - then / before < 0.4 * (1.0 - rate)
            }
            _ => false,
        }
    }

    /// Returns true if another load's slow-down changed the rate of this one.
    pub fn is_affected(&self) -> bool {
        let gain = |(phase, ..): (Phase, usize, f64)| self.change(phase, self.load);
        self.slowed_others()
            .into_iter()
            .filter_map(gain)
            .any(|gain| gain.low > 0.0 && gain.median >= self.noise)
    }

    /// Summarises all interventions on something else than the load, for bottlenecks that only the load has. They speak for
    /// these if none of them changed the load's rate. Returns `None` if no intervention was precise enough to tell.
    pub fn unaffected(&self, bottleneck: &Bottleneck) -> Option<Evidence> {
        if !matches!(bottleneck, Bottleneck::Pace | Bottleneck::Source | Bottleneck::ClosedLoop) {
            return None;
        }
        let others = self.slowed_others().into_iter().map(|(phase, _, size)| (phase, size));
        let antagonists = self.antagonists().into_iter().map(|(phase, _, size)| (phase, size));
        let mut changes: Vec<Change> = others
            .chain(antagonists)
            .filter_map(|(phase, size)| Some(Change { size, effect: self.change(phase, self.load)? }))
            .collect();
        // All other loads were added, or taken away.
        let together = match self.when {
            When::Alone => self.change(Phase::Together, self.load),
            When::Together => self.change(Phase::Alone { load: self.load }, self.load),
        };
        changes
            .extend(together.filter(|_| self.measured.users > 1).map(|effect| Change { size: 0.3, effect }));
        let unaffected = |change: &&Change| {
            let most = 0.5 * change.size;
            change.effect.median.abs() < self.noise.max(0.2 * change.size)
                && change.effect.low > -most.max(2.0 * self.noise)
                && change.effect.high < most.max(2.0 * self.noise)
        };
        let tried = changes.iter().filter(unaffected).count();
        let affected = |change: &Change| {
            change.size <= LARGE
                && change.effect.is_significant()
                && change.effect.median.abs() > self.noise.max(0.2 * change.size)
        };
        let largest = changes.iter().map(|change| change.effect.median.abs()).fold(0.0, f64::max);
        let says = match () {
            // A load at its pace can still be slowed down.
            () if *bottleneck != Bottleneck::Pace && changes.iter().any(affected) => Says::Neither,
            () if tried > 0 => Says::For,
            () => return None,
        };
        Some(Evidence { fact: Fact::Unaffected { tried, largest }, says })
    }
}
