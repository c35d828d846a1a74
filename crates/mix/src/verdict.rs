//! Verdicts: what limits each load of the user, alone and together with the others.
//!
//! For every [`Bottleneck`] that is possible, evidence is collected: observations, such as the share of a ceiling that is
//! used, and interventions, such as what a load gained when another one was slowed. Each piece speaks for the
//! bottleneck, against it, or neither. A bottleneck is named only if
//!
//! * two kinds of evidence speak for it, and one of them is an intervention,
//! * nothing speaks against it, and
//! * no other possible bottleneck has an intervention for it and nothing against it.
//!
//! Otherwise the verdict is "not determined", with the experiment that would decide. This is deliberate: a wrong name costs
//! its reader more than none.

mod case;
mod decide;
mod evidence;
mod intervention;
mod reading;
mod times;

pub use evidence::{Evidence, Fact, Kind, Says};

use crate::observation::{Measured, Phase};
use crate::solo::SoloRuns;
use crate::statistics::{self, EqualPhases, Estimate};
use inlane_core::load::Resource;
use schemars::JsonSchema;
use serde::Serialize;

/// What limits the loads of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Phases that were measured twice in each block. Those that differ make changes of the same size doubtful.
    pub equal_phases: Vec<EqualPhases>,
    /// For each load of the user, first alone and then together. Leaves out what was not measured.
    pub verdicts: Vec<Verdict>,
}

/// What limits one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The load.
    pub load: usize,
    /// Whether it ran alone.
    pub when: When,
    /// Its rate, in bytes per second, or in operations per second if it moves no bytes.
    pub rate: Estimate,
    /// What limits it.
    pub finding: Finding,
}

/// The circumstances of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The load ran alone.
    Alone,
    /// All loads of the user ran.
    Together,
}

impl When {
    /// Returns the phase that shows `load` in these circumstances.
    pub fn phase(self, load: usize) -> Phase {
        match self {
            When::Alone => Phase::Alone { load },
            When::Together => Phase::Together,
        }
    }
}

/// Something that can limit a load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bottleneck {
    /// A resource that other loads may share. A port of only one load includes what lies behind the port.
    Resource(Resource),
    /// The link of this device, whose two directions together have a lower ceiling than twice that of one.
    BothDirections(String),
    /// The cores of the load's own threads, which work all the time.
    OwnCores,
    /// The processor quota of the control group.
    Quota,
    /// The pace that the user asked for. The load reaches it.
    Pace,
    /// The source of the load's operations, which delivers too few.
    Source,
    /// The answers to operations in flight: all that the load may have in flight wait for one. Only a change of their number
    /// would show whether each answer is delayed, or a peer that no other load uses gives too few of them.
    ClosedLoop,
}

/// The result of weighing the evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// The bottleneck is known.
    Named(Named),
    /// It is not.
    NotDetermined(NotDetermined),
}

impl Finding {
    /// Returns each bottleneck that evidence is about, with its margin: the named one and the next one, or all candidates.
    pub fn candidates(&self) -> Vec<(&Bottleneck, Option<f64>, &[Evidence])> {
        match self {
            Finding::Named(named) => {
                let next = named.runner_up.as_ref().map(|it| (&it.bottleneck, it.margin, &it.evidence[..]));
                [(&named.bottleneck, None, &named.evidence[..])].into_iter().chain(next).collect()
            }
            Finding::NotDetermined(open) => {
                open.candidates.iter().map(|it| (&it.bottleneck, None, &it.evidence[..])).collect()
            }
        }
    }
}

/// A bottleneck that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The bottleneck.
    pub bottleneck: Bottleneck,
    /// The share of the bottleneck's ceiling that all running loads use together. `None` if no ceiling was measured.
    pub ceiling: Option<f64>,
    /// What was found about it.
    pub evidence: Vec<Evidence>,
    /// The next possible bottleneck. `None` if there is no other one.
    pub runner_up: Option<RunnerUp>,
}

/// The bottleneck that is the most likely one after the named one.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerUp {
    /// The bottleneck.
    pub bottleneck: Bottleneck,
    /// How much more the running loads could take of it until it is full, as a fraction of what they take. `None` if no
    /// ceiling was measured.
    pub margin: Option<f64>,
    /// What was found about it.
    pub evidence: Vec<Evidence>,
}

/// A bottleneck that is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct NotDetermined {
    /// Why it was not named.
    pub reason: Reason,
    /// What it can be, the most likely one first, with what was found about each.
    pub candidates: Vec<Candidate>,
    /// The experiment that would decide.
    pub experiment: Experiment,
}

/// A possible bottleneck with what was found about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The bottleneck.
    pub bottleneck: Bottleneck,
    /// What was found about it.
    pub evidence: Vec<Evidence>,
}

/// Why a bottleneck was not named.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", content = "by", rename_all = "snake_case")]
pub enum Reason {
    /// There are less than two observations that count.
    TooFewRepeats,
    /// The load did not move anything.
    NoProgress,
    /// Phases that should be equal differ by this fraction.
    EqualPhasesDiffer(f64),
    /// The evidence for the most likely candidate is not enough, or is of one kind only.
    TooLittleEvidence,
    /// Evidence of the most likely candidate contradicts itself.
    Contradiction,
    /// Several candidates have an intervention for them and nothing against them.
    SeveralCandidates,
    /// Other loads change the rate of this one, but nothing that was measured explains it.
    Unexplained,
}

/// An experiment that would decide between candidates.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", content = "of", rename_all = "snake_case")]
pub enum Experiment {
    /// Measure more blocks on a quieter machine.
    Repeat,
    /// Measure beside an antagonist of this resource.
    LoadResource(Resource),
    /// Measure while this load is slowed.
    Slow(usize),
    /// Measure while the threads of this load have cores of their own, without hyperthread siblings in use.
    SeparateCores(usize),
    /// Measure where the kernel reports how long threads run and wait.
    WatchThreads(usize),
    /// Measure with more operations in flight.
    RaiseInFlight(usize),
}

/// Judges what limits each load of the user.
pub fn judge(measured: &Measured) -> Judgement {
    let fitted = SoloRuns::of(measured).fit();
    let equal_phases = statistics::equal_phases(measured);
    let mut verdicts = Vec::new();
    for load in 0..measured.users {
        for when in [When::Alone, When::Together] {
            if let Some(rate) = statistics::rate(&measured.observations, when.phase(load), load) {
                let case = case::Case::new(measured, &fitted, &equal_phases, load, when);
                verdicts.push(Verdict { load, when, rate, finding: decide::decide(&case, rate) });
            }
        }
    }
    Judgement { equal_phases, verdicts }
}

#[cfg(test)]
mod tests;
