//! Weighs the evidence: see [`super`].

use super::case::Case;
use super::{
    Bottleneck, Candidate, Evidence, Experiment, Fact, Finding, Kind, Named, NotDetermined, Reason, RunnerUp,
    Says,
};
use crate::observation::Phase;
use crate::statistics::Estimate;
use inlane_core::load::Resource;
use std::cmp::Reverse;

/// A larger change between equal phases makes a session useless.
const USELESS: f64 = 0.25;
/// What a load loses beside an antagonist of a full resource, at least, as a fraction of what the antagonist takes.
const LEANS: f64 = 0.85;
/// Two resources are equally full if the used shares of their ceilings differ by less.
const AS_FULL: f64 = 0.04;

pub(super) fn decide(case: &Case, rate: Estimate) -> Finding {
    let mut weighed: Vec<Weighed> =
        case.possible().into_iter().map(|bottleneck| Weighed::new(case, bottleneck)).collect();
    // The most likely first. Sorting keeps the order of equal ones.
    weighed.sort_by_key(|weighed| Reverse(weighed.score()));
    let open = |reason, weighed: Vec<Weighed>| {
        Finding::NotDetermined(NotDetermined {
            reason,
            experiment: experiment(case, reason, &weighed),
            candidates: weighed
                .into_iter()
                .filter(|weighed| {
                    weighed.against == 0 || reason == Reason::Contradiction && weighed.interventions > 0
                })
                .map(Weighed::candidate)
                .collect(),
        })
    };
    if rate.count < 2 {
        return open(Reason::TooFewRepeats, weighed);
    }
    if rate.median <= 0.0 {
        return open(Reason::NoProgress, weighed);
    }
    if let Some(unequal) = case.unequal.filter(|unequal| *unequal > USELESS) {
        return open(Reason::EqualPhasesDiffer(unequal), weighed);
    }
    let first = weighed.first().filter(|first| first.is_certain());
    let Some(first) = first else {
        let contradicts = weighed.iter().any(|weighed| weighed.interventions > 0 && weighed.against > 0);
        let affected = weighed.iter().all(|weighed| weighed.interventions == 0) && case.is_affected();
        let reason = match () {
            () if affected => Reason::Unexplained,
            () if contradicts
                && weighed.iter().all(|weighed| weighed.against > 0 || weighed.kinds.is_empty()) =>
            {
                Reason::Contradiction
            }
            () => Reason::TooLittleEvidence,
        };
        return open(reason, weighed);
    };
    let rivals = weighed[1..].iter().any(|rival| rival.rivals(case, first));
    if rivals {
        return open(Reason::SeveralCandidates, weighed);
    }
    let mut weighed = weighed.into_iter();
    let Some(first) = weighed.next() else { return open(Reason::TooLittleEvidence, Vec::new()) };
    let runner_up = weighed.find(|next| next.used().is_some_and(|used| used < 1.0) || next.against == 0);
    Finding::Named(Named {
        ceiling: first.used(),
        bottleneck: first.bottleneck,
        evidence: first.evidence,
        runner_up: runner_up.map(|next| RunnerUp {
            margin: next.used().map(|used| 1.0 / used - 1.0),
            bottleneck: next.bottleneck,
            evidence: next.evidence,
        }),
    })
}

/// A bottleneck with what was found about it.
struct Weighed {
    bottleneck: Bottleneck,
    evidence: Vec<Evidence>,
    /// The kinds of evidence for it.
    kinds: Vec<Kind>,
    /// The number of these kinds that are interventions.
    interventions: usize,
    /// The number of facts against it.
    against: usize,
    /// There were antagonists of it.
    tried: bool,
    /// The load lost as much beside all of them as if it were full, but the repeats differ too much to be sure.
    leans: bool,
}

impl Weighed {
    fn new(case: &Case, bottleneck: Bottleneck) -> Self {
        let mut evidence: Vec<Evidence> = Vec::new();
        evidence.extend(case.ceiling(&bottleneck));
        evidence.extend(case.exchange(&bottleneck));
        evidence.extend(case.antagonist(&bottleneck));
        evidence.extend(case.slowed(&bottleneck));
        evidence.extend(case.unaffected(&bottleneck));
        evidence.extend(case.threads(&bottleneck));
        evidence.extend(case.pace(&bottleneck));
        if bottleneck == Bottleneck::OwnCores && (case.polls() || case.lost_to_others()) {
            // Its threads look busy because they poll, or work takes them longer beside the other loads.
            let busy = evidence.iter_mut().filter(|evidence| evidence.fact.kind() == Kind::Threads);
            busy.filter(|evidence| evidence.says == Says::For)
                .for_each(|evidence| evidence.says = Says::Neither);
        }
        if let Some(alone) = case.alone() {
            let alone = Self::new(&alone, bottleneck.clone()).evidence;
            let counts = |of: &Evidence| {
                of.says == Says::Against || of.says == Says::For && bottleneck == Bottleneck::OwnCores
            };
            evidence.extend(alone.into_iter().filter(counts));
        }
        if case.is_throttled() && bottleneck != Bottleneck::Quota {
            // Whatever takes time of the processors has these effects under a quota.
            evidence.iter_mut().filter(|of| of.says == Says::For).for_each(|of| of.says = Says::Neither);
        }
        let mut kinds: Vec<Kind> = Vec::new();
        for of in evidence.iter().filter(|of| of.says == Says::For) {
            if !kinds.contains(&of.fact.kind()) {
                kinds.push(of.fact.kind());
            }
        }
        let against = evidence.iter().filter(|of| of.says == Says::Against).count();
        let interventions = kinds.iter().filter(|kind| kind.is_intervention()).count();
        let parts = case.parts(&bottleneck);
        let of_parts = |(phase, antagonist, share): (Phase, usize, f64)| {
            let resource = case.measured.loads[antagonist].antagonist_of.as_ref()?;
            parts.contains(&case.fitted.index(resource)?).then_some(())?;
            let lost = -case.change(phase, case.load)?.median / share;
            Some(case.lost_time(phase, antagonist, share).map_or(lost, |time| time.max(lost)))
        };
        let effects: Vec<f64> = case.antagonists().into_iter().filter_map(of_parts).collect();
        let (tried, leans) = (!effects.is_empty(), effects.iter().all(|effect| *effect > LEANS));
        Self { bottleneck, evidence, kinds, interventions, against, tried, leans }
    }

    /// Returns the order in which candidates are listed.
    fn score(&self) -> (bool, bool, usize, usize) {
        (self.is_certain(), self.against == 0, self.kinds.len(), self.interventions)
    }

    fn is_certain(&self) -> bool {
        // If there are antagonists of it, their effect is the most direct evidence.
        let lost = !self.tried || self.kinds.contains(&Kind::Antagonist) || self.leans;
        // Memory slows loads before it is full. Without an antagonist, the most that was ever taken of it need not be its ceiling.
        let is_host_memory = self.bottleneck == Bottleneck::Resource(Resource::HostMemory);
        let lost = lost && (self.tried || !is_host_memory);
        self.kinds.len() >= 2 && self.interventions > 0 && self.against == 0 && lost
    }

    /// Returns true if this may be the bottleneck instead of `named`.
    fn rivals(&self, case: &Case, named: &Self) -> bool {
        // The bytes that cross a device's link go to or come from its memory, which is faster than the link.
        let behind_link = match (&self.bottleneck, &named.bottleneck) {
            (
                Bottleneck::Resource(Resource::DeviceMemory(device)),
                Bottleneck::Resource(Resource::LinkToDevice(link) | Resource::LinkFromDevice(link)),
            ) => device == link,
            _ => false,
        };
        // It is as full, and nothing has shown that this does not matter.
        let full = |of: &Self| of.used().unwrap_or(0.0);
        let as_full = self.kinds.contains(&Kind::Ceiling) && full(self) > full(named) - AS_FULL;
        let mut against = self.evidence.iter().filter(|of| of.says == Says::Against);
        let disputed =
            as_full && self.interventions > 0 && against.all(|of| of.fact.kind() == Kind::Exchange);
        // Slower memory makes each answer take longer, so other loads change the rate of a load that waits for answers, too.
        let waits = named.is_memory()
            && self.bottleneck == Bottleneck::ClosedLoop
            && self.kinds.contains(&Kind::Threads);
        if waits {
            return true;
        }
        if self.against > 0 && !disputed || behind_link {
            return false;
        }
        // An exchange shows only that both loads share something. It could be this resource, if nothing excludes it.
        let by_exchange = |of: &Self| {
            // The kernel counts what a quota stops.
            of.bottleneck != Bottleneck::Quota
                && !(of.tried && of.leans)
                && !of
                    .kinds
                    .iter()
                    .any(|kind| matches!(kind, Kind::Antagonist | Kind::Slowed | Kind::Unaffected))
        };
        let shared = || {
            let parts = case.parts(&self.bottleneck);
            let uses = |load: usize| case.per_byte(load, &parts).is_none_or(|per_byte| per_byte > 0.0);
            !parts.is_empty() && uses(case.load) && case.others().any(uses)
        };
        // Memory slows loads that are limited by their cores, long before it is full.
        let busy = || {
            named.is_memory()
                && self.bottleneck == Bottleneck::OwnCores
                && self.kinds.contains(&Kind::Threads)
        };
        // The load may wait for a device of this machine, and not for an answer.
        let untested = || {
            let is_far =
                matches!(self.bottleneck, Bottleneck::Resource(Resource::Peer(_) | Resource::Port(_)));
            named.bottleneck == Bottleneck::ClosedLoop && !is_far && !case.parts(&self.bottleneck).is_empty()
        };
        self.interventions > 0 || by_exchange(named) && shared() || as_full || busy() || untested()
    }

    fn is_memory(&self) -> bool {
        matches!(self.bottleneck, Bottleneck::Resource(Resource::HostMemory | Resource::DeviceMemory(_)))
    }

    /// Returns the share of the measured ceiling that is used.
    fn used(&self) -> Option<f64> {
        self.evidence.iter().find_map(|evidence| match evidence.fact {
            Fact::Ceiling { used, capacity } => Some(used / capacity),
            _ => None,
        })
    }

    fn candidate(self) -> Candidate {
        Candidate { bottleneck: self.bottleneck, evidence: self.evidence }
    }
}

/// Chooses the experiment that would tell the candidates apart.
fn experiment(case: &Case, reason: Reason, weighed: &[Weighed]) -> Experiment {
    if matches!(reason, Reason::TooFewRepeats | Reason::EqualPhasesDiffer(_) | Reason::NoProgress) {
        return Experiment::Repeat;
    }
    let load = case.load;
    if reason == Reason::Unexplained {
        return Experiment::SeparateCores(load);
    }
    let likely = || weighed.iter().filter(|weighed| weighed.against == 0);
    for weighed in likely() {
        let has = |kind: Kind| weighed.evidence.iter().any(|evidence| evidence.fact.kind() == kind);
        match &weighed.bottleneck {
            Bottleneck::Resource(resource)
                if !has(Kind::Antagonist) && !matches!(resource, Resource::Port(_)) =>
            {
                return Experiment::LoadResource(resource.clone());
            }
            Bottleneck::BothDirections(device) if !has(Kind::Antagonist) => {
                return Experiment::LoadResource(Resource::LinkToDevice(device.clone()));
            }
            Bottleneck::OwnCores | Bottleneck::Quota if !has(Kind::Threads) => {
                return Experiment::WatchThreads(load);
            }
            Bottleneck::OwnCores | Bottleneck::Quota | Bottleneck::Source if !has(Kind::Slowed) => {
                return Experiment::Slow(load);
            }
            Bottleneck::ClosedLoop => return Experiment::RaiseInFlight(load),
            _ => {}
        }
    }
    Experiment::Repeat
}
