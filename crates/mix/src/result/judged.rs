//! Verdicts and predictions as parts of a result.

use crate::observation::{Measured, Phase};
use crate::predict::{self, Accuracy, Prediction};
use crate::solo::SoloRuns;
use crate::statistics::Estimate;
use crate::text;
use crate::verdict::{self, Bottleneck, Evidence, Experiment, Finding, NotDetermined, Reason, Verdict, When};
use inlane_core::load::Resource;
use schemars::JsonSchema;
use serde::Serialize;

/// What limits a load.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct VerdictResult {
    /// The load.
    pub load: String,
    /// Whether it ran alone or together with the others.
    pub when: WhenResult,
    /// What limits it, or what would decide that, in one sentence. Everything in it is in the other fields, too.
    pub sentence: String,
    /// What limits it. `null` if that is not determined.
    pub bottleneck: Option<BottleneckResult>,
    /// Why that is not determined. `null` if there is a bottleneck.
    pub not_determined: Option<NotDeterminedResult>,
    /// The share of the bottleneck's ceiling that all running loads use. `null` if none was measured.
    pub ceiling_share: Option<f64>,
    /// The bottleneck and the next possible one, or what it may be if that is not determined, the most likely one first.
    pub candidates: Vec<CandidateResult>,
}

/// Something that may limit a load.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CandidateResult {
    /// What may limit the load.
    pub bottleneck: BottleneckResult,
    /// How much more the running loads could take of it until it is full, as a fraction of what they take. `null` for the
    /// named bottleneck, and if no ceiling was measured.
    pub margin_share: Option<f64>,
    /// What was found about it.
    pub evidence: Vec<Evidence>,
}

/// Why the bottleneck of a load is not determined. Loads have the numbers that observations use.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct NotDeterminedResult {
    /// The reason.
    pub reason: Reason,
    /// The experiment that would decide.
    pub experiment: Experiment,
}

/// The circumstances of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenResult {
    /// The load ran alone.
    Alone,
    /// All loads ran.
    Together,
}

/// Something that limits a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BottleneckResult {
    /// The kind.
    pub kind: BottleneckKind,
    /// The resource, or both directions of the link. Empty for other kinds.
    pub resources: Vec<Resource>,
    /// Its name in sentences, such as "the link from host memory to gpu:0".
    pub name: String,
}

/// The kinds of bottlenecks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// A resource that other loads may share.
    Resource,
    /// A link whose two directions together have a lower ceiling than twice that of one.
    BothDirections,
    /// The cores of the load's own threads.
    OwnCores,
    /// The processor quota of the control group.
    Quota,
    /// The rate that the user asked for.
    Pace,
    /// The source of the load's operations.
    Source,
    /// The number of operations in flight.
    ClosedLoop,
}

impl From<&Bottleneck> for BottleneckResult {
    fn from(of: &Bottleneck) -> Self {
        let (kind, resources) = match of {
            Bottleneck::Resource(resource) => (BottleneckKind::Resource, vec![resource.clone()]),
            Bottleneck::BothDirections(device) => {
                let directions = [Resource::LinkToDevice, Resource::LinkFromDevice];
                (BottleneckKind::BothDirections, directions.map(|of| of(device.clone())).into())
            }
            Bottleneck::OwnCores => (BottleneckKind::OwnCores, Vec::new()),
            Bottleneck::Quota => (BottleneckKind::Quota, Vec::new()),
            Bottleneck::Pace => (BottleneckKind::Pace, Vec::new()),
            Bottleneck::Source => (BottleneckKind::Source, Vec::new()),
            Bottleneck::ClosedLoop => (BottleneckKind::ClosedLoop, Vec::new()),
        };
        Self { kind, resources, name: text::bottleneck(of) }
    }
}

/// Returns the verdicts of all loads: those of the mix first.
pub(super) fn verdicts(measured: &Measured) -> Vec<VerdictResult> {
    let mut verdicts: Vec<Verdict> = verdict::judge(measured).verdicts;
    verdicts.sort_by_key(|verdict| verdict.when == When::Alone);
    let result = |verdict: &Verdict| {
        let (bottleneck, ceiling_share, not_determined) = match &verdict.finding {
            Finding::Named(named) => (Some((&named.bottleneck).into()), named.ceiling, None),
            Finding::NotDetermined(NotDetermined { reason, experiment, .. }) => {
                (None, None, Some(NotDeterminedResult { reason: *reason, experiment: experiment.clone() }))
            }
        };
        let candidates =
            verdict.finding.candidates().into_iter().map(|(bottleneck, margin, evidence)| CandidateResult {
                bottleneck: bottleneck.into(),
                margin_share: margin.filter(|margin| margin.is_finite()),
                evidence: evidence.to_vec(),
            });
        VerdictResult {
            load: measured.loads[verdict.load].name.clone(),
            when: match verdict.when {
                When::Alone => WhenResult::Alone,
                When::Together => WhenResult::Together,
            },
            sentence: text::sentence(measured, verdict),
            bottleneck,
            not_determined,
            ceiling_share: ceiling_share.filter(|share| share.is_finite()),
            candidates: candidates.collect(),
        }
    };
    verdicts.iter().map(result).collect()
}

/// The predicted rate of a load in a mix beside the measured one. Rates are bytes per second, or operations per second if
/// the load moves no bytes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PredictionResult {
    /// The loads of the mix.
    pub mix: Vec<String>,
    /// The load.
    pub load: String,
    /// True if the rates count operations.
    pub operations: bool,
    /// The rate that follows from the load alone and beside antagonists.
    pub predicted_per_second: f64,
    /// The interval of the prediction from the spread of these measurements. `null` with a single block.
    pub low_per_second: Option<f64>,
    /// The upper end of the interval.
    pub high_per_second: Option<f64>,
    /// What should limit the load.
    pub limit: Option<BottleneckResult>,
    /// The rate without interference: that of the load alone.
    pub no_interference_per_second: f64,
    /// The rate if each resource were divided into equal parts.
    pub equal_split_per_second: f64,
    /// The measured rate. `null` if the mix was not measured.
    pub measured_per_second: Option<Estimate>,
    /// The prediction divided by the measured rate, minus 1.
    pub residual: Option<f64>,
    /// The same for the rate without interference.
    pub no_interference_residual: Option<f64>,
    /// The same for the equal split.
    pub equal_split_residual: Option<f64>,
}

/// The median errors of the predictions of mixes in which a load lost at least 10 % of its rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AccuracyResult {
    /// The number of such mixes.
    pub mixes: usize,
    /// The error of the prediction.
    pub predicted: f64,
    /// The error without interference.
    pub no_interference: f64,
    /// The error of the equal split.
    pub equal_split: f64,
}

/// Returns the predictions of all mixes beside the measurements, and their accuracy. `Err` tells why nothing can be
/// predicted.
pub(super) fn predictions(
    measured: &Measured,
) -> Result<(Vec<PredictionResult>, Option<AccuracyResult>), String> {
    let prediction = predict::predict(&SoloRuns::of(measured)).map_err(|error| error.to_string())?;
    let residuals = predict::residuals(&prediction, measured);
    let accuracy = predict::accuracy(&residuals).map(|of: Accuracy| AccuracyResult {
        mixes: of.mixes,
        predicted: of.predicted,
        no_interference: of.alone,
        equal_split: of.equal_split,
    });
    Ok((rows(measured, &prediction, &residuals), accuracy))
}

fn rows(
    measured: &Measured,
    prediction: &Prediction,
    residuals: &[predict::Residual],
) -> Vec<PredictionResult> {
    let name = |load: usize| measured.loads[load].name.clone();
    let of_mix = |mix: &predict::Mix| {
        let loads: Vec<String> = mix.rates.iter().map(|rate| name(rate.load)).collect();
        let phase: Phase = mix.phase;
        let row = move |of: &predict::Predicted| {
            let residual = residuals.iter().find(|it| it.phase == phase && it.load == of.load);
            let finite = |value: f64| Some(value).filter(|value| value.is_finite());
            PredictionResult {
                mix: loads.clone(),
                load: name(of.load),
                operations: measured.counts_operations(of.load),
                predicted_per_second: of.rate,
                low_per_second: finite(of.interval.1).map(|_| of.interval.0),
                high_per_second: finite(of.interval.1),
                limit: of.limit.as_ref().map(BottleneckResult::from),
                no_interference_per_second: of.alone,
                equal_split_per_second: of.equal_split,
                measured_per_second: residual.map(|residual| residual.measured),
                residual: residual.and_then(|residual| finite(residual.predicted)),
                no_interference_residual: residual.and_then(|residual| finite(residual.alone)),
                equal_split_residual: residual.and_then(|residual| finite(residual.equal_split)),
            }
        };
        mix.rates.iter().map(row).collect::<Vec<_>>()
    };
    prediction.mixes.iter().flat_map(of_mix).collect()
}
