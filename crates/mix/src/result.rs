//! The rows of the result document: one for each session.

mod exchange;
mod judged;

use crate::observation::{self, Cut, Loaded, Measured, Observation, Phase, Signals};
use crate::scenario::Scenario;
use crate::session::Plan;
use crate::statistics::{self, Estimate};
use crate::text;
pub use exchange::{ExchangeResult, GainResult};
use inlane_core::load::{Resource, Use, UseSource};
pub use judged::{
    AccuracyResult, BottleneckKind, BottleneckResult, CandidateResult, NotDeterminedResult, PredictionResult,
    VerdictResult, WhenResult,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A session: its loads alone and together.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MixResult {
    /// The title of the scenario's file. Empty without a file.
    pub title: String,
    /// The settings that a sweep has given this session. Empty without a sweep.
    pub swept: BTreeMap<String, String>,
    /// The settings of the loads.
    pub scenario: Vec<BTreeMap<String, String>>,
    /// How the session measured.
    pub plan: PlanResult,
    /// What limits each load, first in the mix and then alone.
    pub verdicts: Vec<VerdictResult>,
    /// The loads of the user.
    pub loads: Vec<LoadResult>,
    /// The session's own loads, which take part of one resource.
    pub antagonists: Vec<AntagonistResult>,
    /// Who gained when a load was slowed.
    pub exchange: Vec<ExchangeResult>,
    /// The rates of the mixes, predicted from the loads alone and beside antagonists.
    pub predictions: Vec<PredictionResult>,
    /// The errors of the predictions. `null` if no load lost at least 10 % of its rate in a mix.
    pub accuracy: Option<AccuracyResult>,
    /// The largest median difference between the equal phases of the blocks, as a fraction of their rates.
    pub equal_phases_differ: Option<f64>,
    /// What the machine did before the loads started.
    pub idle: Signals,
    /// Why the session is incomplete. `null` if it is complete.
    pub cut: Option<Cut>,
    /// What the user should know: shared cores, rates out of reach, disturbances.
    pub notes: Vec<String>,
    /// All observations, also void ones.
    pub observations: Vec<Observation>,
    /// Why the session could not begin. `null` if it ran.
    pub error: Option<String>,
}

/// How a session measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanResult {
    /// How long each phase was measured.
    pub duration_ns: u64,
    /// How long rates could settle before.
    pub settle_ns: u64,
    /// The width of the medians' 95 % intervals at which the session ends, as a fraction of the median.
    pub precision: f64,
    /// The time limit.
    pub limit_ns: u64,
    /// The seed of the phases' order.
    pub seed: u64,
    /// The fraction of its rate to which a load is slowed.
    pub throttled_share: f64,
    /// The fractions of their rates at which antagonists run.
    pub ladder: Vec<f64>,
}

/// A load of the user.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LoadResult {
    /// The name.
    pub name: String,
    /// What it takes from resources, as far as the load itself can tell.
    pub uses: Vec<UseResult>,
    /// The cores that its threads are bound to. Empty if they may run on any.
    pub cores: Vec<usize>,
    /// The number of its threads.
    pub threads: usize,
    /// The rate that the user asked for, in operations per second.
    pub asked_operations_per_second: Option<f64>,
    /// True if its operations come from outside the session, such as packets that another machine sends.
    pub fed: bool,
    /// The most operations that it has in flight. `null` if that is not limited.
    pub in_flight: Option<f64>,
    /// Its rate alone.
    pub alone: Option<RateResult>,
    /// Its rate together with all other loads.
    pub together: Option<RateResult>,
    /// The rate together divided by the rate alone.
    pub kept_share: Option<f64>,
}

/// A load of the session's own.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AntagonistResult {
    /// The name.
    pub name: String,
    /// The resource of which it takes part.
    pub resource: Option<Resource>,
    /// What it takes from resources.
    pub uses: Vec<UseResult>,
    /// The cores that its threads are bound to. Empty if they may run on any.
    pub cores: Vec<usize>,
    /// The number of its threads.
    pub threads: usize,
    /// Its rate alone.
    pub alone: Option<RateResult>,
    /// What the loads of the user reached beside it.
    pub beside: Vec<BesideResult>,
}

/// A load beside an antagonist.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BesideResult {
    /// The load of the user.
    pub load: String,
    /// The fraction of its own rate at which the antagonist should run.
    pub share: f64,
    /// The rate of the antagonist.
    pub antagonist: Option<RateResult>,
    /// The rate of the load.
    pub rate: Option<RateResult>,
    /// The rate of the load divided by its rate alone.
    pub kept_share: Option<f64>,
}

/// A use of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct UseResult {
    /// The resource.
    pub resource: Resource,
    /// The units of the resource for each byte of the load, or for each operation if it moves no bytes. `null` if only a
    /// measurement can tell.
    pub units_per_byte: Option<f64>,
    /// How the figure is known.
    pub source: UseSourceResult,
}

/// How a use is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UseSourceResult {
    /// It follows from what the load does.
    Computed,
    /// A counter or a clock showed it.
    Counted,
    /// A fit to measurements gave it.
    Fitted,
}

/// The rate of a load in the observations of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RateResult {
    /// Bytes per second. All zero for a load that moves no bytes.
    pub bytes_per_second: Estimate,
    /// Operations per second.
    pub operations_per_second: Estimate,
    /// The median share of the time in which its threads had work.
    pub busy: Option<f64>,
    /// The median share of the time in which its threads waited for a full port or queue.
    pub blocked: Option<f64>,
    /// The median share of the time in which its threads ran on a processor.
    pub on_processor: Option<f64>,
    /// The median share of the time in which its threads were ready to run but other threads had the processor.
    pub queued: Option<f64>,
    /// All failed operations.
    pub errors: u64,
    /// True if every observation of the phase was disturbed, so the figures are those of disturbed observations.
    pub disturbed: bool,
}

impl RateResult {
    /// Returns the rate of a load in a phase. `None` if the phase was not measured.
    pub fn of(measured: &Measured, phase: Phase, load: usize) -> Option<Self> {
        let rates = measured.rates(phase, load);
        let values =
            |value: fn(&crate::observation::LoadRate) -> f64| rates.iter().map(value).collect::<Vec<_>>();
        let median = |value: fn(&crate::observation::LoadRate) -> Option<f64>| {
            Estimate::of(&rates.iter().filter_map(value).collect::<Vec<_>>()).map(|estimate| estimate.median)
        };
        Some(Self {
            bytes_per_second: Estimate::of(&values(|rate| rate.bytes_per_second))?,
            operations_per_second: Estimate::of(&values(|rate| rate.operations_per_second))?,
            busy: median(|rate| rate.busy),
            blocked: median(|rate| rate.blocked),
            on_processor: median(|rate| rate.on_processor),
            queued: median(|rate| rate.queued),
            errors: rates.iter().map(|rate| rate.errors).sum(),
            disturbed: measured.is_disturbed(phase),
        })
    }

    /// Returns bytes per second, or operations per second for a load that moves no bytes.
    pub fn amount(&self) -> &Estimate {
        if self.bytes_per_second.median > 0.0 { &self.bytes_per_second } else { &self.operations_per_second }
    }

    fn kept(part: Option<&Self>, whole: Option<&Self>) -> Option<f64> {
        let share = part?.operations_per_second.median / whole?.operations_per_second.median;
        Some(share).filter(|share| share.is_finite())
    }
}

impl From<&Plan> for PlanResult {
    fn from(plan: &Plan) -> Self {
        Self {
            duration_ns: plan.duration.as_nanos() as u64,
            settle_ns: plan.settle.as_nanos() as u64,
            precision: plan.precision,
            limit_ns: plan.limit.as_nanos() as u64,
            seed: plan.seed,
            throttled_share: plan.shares.throttled,
            ladder: plan.shares.ladder.clone(),
        }
    }
}

impl text::Loads for MixResult {
    fn name(&self, load: usize) -> &str {
        let names = self.loads.iter().map(|load| &load.name);
        names.chain(self.antagonists.iter().map(|load| &load.name)).nth(load).map_or("", String::as_str)
    }

    fn counts_operations(&self, load: usize) -> bool {
        observation::counts_operations(&self.observations, load)
    }
}

/// The share of the asked rate below which a load counts as too slow.
const REACHED: f64 = 0.97;
/// The difference between equal phases above which the session says so.
const EQUAL: f64 = 0.03;
/// The share of processor time of other processes above which the machine counts as busy.
const BUSY: f64 = 0.05;

impl MixResult {
    /// Creates the row of a session.
    pub fn new(scenario: &Scenario, plan: &Plan, measured: Measured) -> Self {
        let loads: Vec<LoadResult> = (0..measured.users).map(|load| load_result(&measured, load)).collect();
        let antagonists =
            (measured.users..measured.loads.len()).map(|load| antagonist_result(&measured, load));
        let differences =
            statistics::equal_phases(&measured).into_iter().map(|phase| phase.change.median.abs());
        let equal_phases_differ = differences.max_by(f64::total_cmp);
        let mut notes = scenario.warnings.clone();
        let (predictions, accuracy) = judged::predictions(&measured).unwrap_or_else(|why| {
            notes.push(format!("the mix cannot be predicted: {why}"));
            (Vec::new(), None)
        });
        let mut result = Self {
            title: scenario.title.clone(),
            swept: BTreeMap::new(),
            scenario: scenario.loads.iter().map(|load| load.settings.clone()).collect(),
            plan: plan.into(),
            antagonists: antagonists.collect(),
            exchange: exchange::exchange(&measured),
            verdicts: judged::verdicts(&measured),
            predictions,
            accuracy,
            equal_phases_differ,
            idle: measured.idle,
            cut: None,
            notes,
            error: None,
            observations: Vec::new(),
            loads,
        };
        result.add_notes(&measured);
        (result.cut, result.observations) = (measured.cut, measured.observations);
        result
    }

    /// Creates the row of a session that could not begin.
    pub fn failed(scenario: &Scenario, plan: &Plan, error: String) -> Self {
        Self { error: Some(error), ..Self::new(scenario, plan, Measured::default()) }
    }

    fn add_notes(&mut self, measured: &Measured) {
        for load in &self.loads {
            let (Some(asked), Some(alone)) = (load.asked_operations_per_second, &load.alone) else {
                continue;
            };
            let reached = alone.operations_per_second.median / asked;
            if reached < REACHED {
                self.notes.push(format!(
                    "{} reaches {:.0} % of its rate, even alone",
                    load.name,
                    reached * 100.0
                ));
            }
        }
        if let Some(difference) = self.equal_phases_differ.filter(|difference| *difference > EQUAL) {
            self.notes.push(format!(
                "equal phases differ by {:.1} %, so smaller differences between phases mean nothing",
                difference * 100.0
            ));
        }
        if let Some(others) = measured.idle.others.filter(|others| *others > BUSY) {
            self.notes.push(format!(
                "other processes used {:.0} % of the processor time before the loads started; end them and measure again",
                others * 100.0
            ));
        }
        let void = measured.observations.iter().filter(|observation| observation.void.is_some()).count();
        if void > 0 {
            let all = measured.observations.len();
            self.notes.push(format!("{void} of {all} observations were disturbed and do not count"));
        }
    }
}

impl From<&Use> for UseResult {
    fn from(of: &Use) -> Self {
        Self {
            resource: of.resource.clone(),
            units_per_byte: of.per_byte,
            source: match of.source {
                UseSource::Computed => UseSourceResult::Computed,
                UseSource::Counted => UseSourceResult::Counted,
                UseSource::Fitted => UseSourceResult::Fitted,
            },
        }
    }
}

fn load_result(measured: &Measured, load: usize) -> LoadResult {
    let Loaded { name, uses, asked, fed, in_flight, cores, threads, .. } = &measured.loads[load];
    let alone = RateResult::of(measured, Phase::Alone { load }, load);
    let together = RateResult::of(measured, Phase::Together, load);
    LoadResult {
        name: name.clone(),
        uses: uses.iter().map(UseResult::from).collect(),
        cores: cores.clone(),
        threads: *threads,
        asked_operations_per_second: *asked,
        fed: *fed,
        in_flight: *in_flight,
        kept_share: RateResult::kept(together.as_ref(), alone.as_ref()),
        alone,
        together,
    }
}

fn antagonist_result(measured: &Measured, antagonist: usize) -> AntagonistResult {
    let loaded = &measured.loads[antagonist];
    let mut phases: Vec<(usize, f64)> = Vec::new();
    for observation in &measured.observations {
        if let Phase::Beside { load, antagonist: other, share } = observation.phase
            && other == antagonist
            && !phases.contains(&(load, share))
        {
            phases.push((load, share));
        }
    }
    phases.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let beside = phases.into_iter().map(|(load, share)| {
        let phase = Phase::Beside { load, antagonist, share };
        let rate = RateResult::of(measured, phase, load);
        let alone = RateResult::of(measured, Phase::Alone { load }, load);
        BesideResult {
            load: measured.loads[load].name.clone(),
            share,
            antagonist: RateResult::of(measured, phase, antagonist),
            kept_share: RateResult::kept(rate.as_ref(), alone.as_ref()),
            rate,
        }
    });
    AntagonistResult {
        name: loaded.name.clone(),
        resource: loaded.antagonist_of.clone(),
        uses: loaded.uses.iter().map(UseResult::from).collect(),
        cores: loaded.cores.clone(),
        threads: loaded.threads,
        alone: RateResult::of(measured, Phase::Alone { load: antagonist }, antagonist),
        beside: beside.collect(),
    }
}

#[cfg(test)]
mod tests;
