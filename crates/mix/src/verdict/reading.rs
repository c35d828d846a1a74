//! What the times of threads and the quota say about a bottleneck.

use super::case::{Case, THROTTLED};
use super::{Bottleneck, Evidence, Fact, Says};
use inlane_core::load::Resource;

/// The times of a load's threads.
#[derive(Clone, Copy)]
struct Times {
    busy: Option<f64>,
    blocked: Option<f64>,
    on_processor: Option<f64>,
    queued: Option<f64>,
    throttled: Option<f64>,
}

impl Case<'_> {
    /// Reads the times of the load's threads. Returns `None` if none was measured.
    pub fn threads(&self, bottleneck: &Bottleneck) -> Option<Evidence> {
        let times = Times {
            busy: self.of_load(self.base, |rate| rate.busy),
            blocked: self.of_load(self.base, |rate| rate.blocked),
            on_processor: self.of_load(self.base, |rate| rate.on_processor),
            queued: self.of_load(self.base, |rate| rate.queued),
            throttled: self.signal(self.base, |observation| observation.signals.throttled),
        };
        let Times { busy, blocked, on_processor, queued, throttled } = times;
        if [busy, blocked, on_processor, queued, throttled].iter().all(Option::is_none) {
            return None;
        }
        let says = match bottleneck {
            Bottleneck::OwnCores => times.own_cores(),
            Bottleneck::Quota => times.quota(),
            Bottleneck::Source => times.source(),
            Bottleneck::ClosedLoop => times.closed_loop(),
            Bottleneck::Resource(Resource::Core(_) | Resource::Processors) => times.shared_cores(),
            Bottleneck::Resource(resource) => times.device(self.is_sender(resource)),
            Bottleneck::BothDirections(_) => times.device(false),
            // A load at its pace waits for the next operation to be due, and not only for ports and answers.
            Bottleneck::Pace if blocked > Some(0.9) => Says::Against,
            Bottleneck::Pace => Says::Neither,
        };
        Some(Evidence { fact: Fact::Threads { busy, blocked, on_processor, queued, throttled }, says })
    }

    /// Returns true if the quota keeps the threads of the load from running.
    pub fn is_throttled(&self) -> bool {
        self.threads(&Bottleneck::Quota).is_some_and(|evidence| evidence.says == Says::For)
    }

    /// Returns true if the threads of the load wait for this resource only: it is a port of its own, and nobody answers.
    pub fn is_sender(&self, resource: &Resource) -> bool {
        let answered = self.measured.loads[self.load].in_flight.is_some();
        matches!(resource, Resource::Port(_)) && !answered && self.is_exclusive(resource)
    }

    /// Returns true if no other running load states that it uses `resource`.
    pub fn is_exclusive(&self, resource: &Resource) -> bool {
        !self
            .others()
            .any(|other| self.measured.loads[other].uses.iter().any(|used| used.resource == *resource))
    }
}

impl Times {
    fn own_cores(&self) -> Says {
        let above = |value: Option<f64>, limit| value.is_some_and(|value| value > limit);
        let below = |value: Option<f64>, limit| value.is_some_and(|value| value < limit);
        if below(self.busy, 0.75)
            || above(self.blocked, 0.25)
            || above(self.queued, 0.15)
            || above(self.throttled, THROTTLED)
        {
            Says::Against
        } else if above(self.busy, 0.94)
            && !above(self.blocked, 0.1)
            && !below(self.on_processor, 0.85)
            && !above(self.queued, 0.08)
        {
            Says::For
        } else {
            Says::Neither
        }
    }

    fn quota(&self) -> Says {
        match (self.throttled, self.queued) {
            // Threads that the quota stops are ready to run. A load whose threads did not wait did not need the time. How long
            // they waited depends on the quota: one of 85 % stops a busy thread in each period, but only for 15 % of the time.
            (Some(throttled), Some(queued)) if throttled >= THROTTLED && queued < 0.05 => Says::Against,
            (Some(throttled), _)
                if throttled >= THROTTLED && self.blocked.is_some_and(|blocked| blocked > 0.2) =>
            {
                Says::Against
            }
            (Some(throttled), Some(queued)) if throttled >= THROTTLED && queued < 0.1 => Says::Neither,
            (Some(throttled), _) if throttled >= THROTTLED => Says::For,
            (Some(throttled), _) if throttled < 0.01 => Says::Against,
            _ => Says::Neither,
        }
    }

    fn source(&self) -> Says {
        match (self.busy, self.blocked) {
            (Some(busy), _) if busy > 0.85 => Says::Against,
            (_, Some(blocked)) if blocked > 0.15 => Says::Against,
            (Some(busy), blocked) if busy < 0.7 && blocked.is_none_or(|blocked| blocked < 0.05) => Says::For,
            _ => Says::Neither,
        }
    }

    fn closed_loop(&self) -> Says {
        match (self.busy, self.blocked) {
            (Some(busy), _) if busy > 0.85 => Says::Against,
            (_, Some(blocked)) if blocked < 0.1 => Says::Against,
            (_, Some(blocked)) if blocked > 0.5 => Says::For,
            _ => Says::Neither,
        }
    }

    fn shared_cores(&self) -> Says {
        match (self.throttled, self.queued) {
            // The quota makes threads wait, too.
            (Some(throttled), _) if throttled >= THROTTLED => Says::Neither,
            (_, Some(queued)) if queued >= 0.1 => Says::For,
            (_, Some(queued)) if queued < 0.03 => Says::Against,
            _ => Says::Neither,
        }
    }

    /// What the threads say about a resource outside the processors. `is_sender` for a port that only this load uses: its
    /// threads then wait for nothing else.
    fn device(&self, is_sender: bool) -> Says {
        match (self.busy, self.blocked) {
            (Some(busy), Some(blocked)) if busy < 0.4 && blocked < 0.03 => Says::Against,
            (_, Some(blocked)) if is_sender && blocked > 0.25 => Says::For,
            (_, Some(blocked)) if is_sender && blocked < 0.03 => Says::Against,
            _ => Says::Neither,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_quota_that_stops_busy_threads_in_each_period_speaks_for_itself() {
        let of = |queued| Times {
            busy: Some(1.0),
            blocked: Some(0.0),
            on_processor: Some(1.0 - queued),
            queued: Some(queued),
            throttled: Some(1.0),
        };
        assert_eq!(of(0.15).quota(), Says::For);
        assert_eq!(of(0.02).quota(), Says::Against, "a load whose threads did not need the time");
    }
}
