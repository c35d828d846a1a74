//! What the time that threads ran says about cores. The kernel counts it, so it varies much less than rates.

use super::case::Case;
use crate::observation::Phase;
use inlane_core::load::Resource;

/// A load whose threads wait for a processor for this much more of the time lost it to an antagonist of another resource.
const DISPLACED: f64 = 0.1;

impl Case<'_> {
    /// Returns the time of cores that the threads of `other` leave in `phase`, if `parts` is a core: a slowed load that polls
    /// leaves none. `None` for other resources, or if the kernel does not report it.
    pub fn freed_time(&self, parts: &[usize], phase: Phase, other: usize) -> Option<f64> {
        let [at] = parts else { return None };
        let cores = match self.fitted.resources[*at] {
            Resource::Core(_) => self.measured.loads[other].cores.len().max(1),
            Resource::Processors => 1,
            _ => return None,
        };
        let time = |phase| self.signal(phase, |observation| observation.loads[other].on_processor);
        let threads = self.measured.loads[other].threads.max(1);
        Some((time(self.base)? - time(phase)?) * threads as f64 / cores as f64)
    }

    /// Returns the share of its cores' time that an antagonist of cores takes in `phase`. `None` for other antagonists, or if the
    /// kernel does not report it.
    pub fn time_on_core(&self, phase: Phase, antagonist: usize) -> Option<f64> {
        let of = &self.measured.loads[antagonist];
        let is_core = matches!(of.antagonist_of, Some(Resource::Core(_)));
        self.signal(phase, |observation| observation.loads[antagonist].on_processor.filter(|_| is_core))
    }

    /// Returns true if the load's threads waited longer for a processor in `phase` because another load of the session had it.
    pub fn is_displaced(&self, phase: Phase) -> bool {
        let queued = |phase| self.of_load(phase, |rate| rate.queued);
        queued(phase).zip(queued(self.base)).is_some_and(|(then, before)| then > before + DISPLACED)
    }

    /// Returns what the threads of the load lost of their time beside an antagonist of its cores, as a fraction of what the
    /// antagonist takes of them. `None` for other antagonists, if the kernel does not report it, or if the rate did not follow:
    /// the threads of a load that waits may lose time that it does not need.
    pub fn lost_time(&self, phase: Phase, antagonist: usize, share: f64) -> Option<f64> {
        let is_core = matches!(self.measured.loads[antagonist].antagonist_of, Some(Resource::Core(_)));
        let lost = 1.0
            - self.of_load(phase, |rate| rate.on_processor)?
                / self.of_load(self.base, |rate| rate.on_processor)?;
        let slower = -self.change(phase, self.load)?.median;
        (is_core && slower > 0.5 * share).then_some(lost / share)
    }
}
