//! The rows of the result document: one for each case.

use crate::field::SET;
use crate::file::{Case, Quantity, Unit};
use crate::published::{Published, PublishedUnit, Status};
use crate::solve::{Limit, Margin};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// A case of a model file with its rates.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ModelResult {
    /// The file, or `testbed:NAME`.
    pub model: String,
    /// The name of the case. Empty if the file has no cases.
    pub case: String,
    /// What is assumed and no source gives.
    pub assumptions: Vec<String>,
    /// The resources.
    pub resources: Vec<ResourceResult>,
    /// The flows.
    pub flows: Vec<FlowResult>,
    /// The chains of stages: the one that the case predicts, or all.
    pub chains: Vec<ChainResult>,
    /// The published result beside the model's value.
    pub published: Option<PublishedResult>,
    /// False if the delays of queues still changed when the computation ended.
    pub settled: bool,
}

/// What a reader must know before comparing the values of a model with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A setting has replaced values of a published test bed.
    ValuesReplaced,
    /// The file has too many flows for margins.
    NoMargins {
        /// The number of flows.
        flows: usize,
        /// The most flows for which margins are computed.
        most: usize,
    },
    /// The delays of queues still changed when the computation ended.
    Unsettled,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::ValuesReplaced => write!(
                f,
                "{SET} has replaced values, so the values of the model are not those of the test bed"
            ),
            Note::NoMargins { flows, most } => {
                write!(f, "margins are computed for up to {most} flows; this file has {flows}")
            }
            Note::Unsettled => f.write_str(
                "the delays of queues still changed when the computation ended; closed loops may have another share",
            ),
        }
    }
}

/// A resource and its use.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ResourceResult {
    /// The name in the file. Directions of links have the link's name and the direction.
    pub name: String,
    /// What the resource counts.
    pub unit: ResourceUnit,
    /// The capacity, in units per second.
    pub capacity_units_per_second: f64,
    /// The use, in units per second.
    pub used_units_per_second: f64,
    /// The use divided by the capacity.
    pub used_share: f64,
    /// True if nothing is left.
    pub full: bool,
    /// The time that an operation waits in the queue of a full resource that serves first come, first served.
    pub delay_ns: f64,
}

/// What a resource counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResourceUnit {
    /// Bytes; on links, all bytes on the wire.
    Bytes,
    /// Seconds of cores or engines.
    Seconds,
}

/// What limits a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FlowLimit {
    /// A full resource.
    Resource {
        /// Its name.
        name: String,
    },
    /// The flow's own highest rate.
    Demand,
    /// The bytes in flight of a closed loop.
    Window,
}

/// A flow and its rate.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FlowResult {
    /// The name in the file.
    pub name: String,
    /// Payload bytes per second.
    pub bytes_per_second: f64,
    /// Packets per second. Null if the flow has no packet size.
    pub packets_per_second: Option<f64>,
    /// What limits the rate.
    pub limit: FlowLimit,
    /// What the flow would gain without this limit. Null if margins were not computed.
    pub margin: Option<FlowMargin>,
}

/// The rate of a flow without its limit.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FlowMargin {
    /// Bytes per second. Null if nothing else limits the flow.
    pub bytes_per_second: Option<f64>,
    /// The gain relative to the rate: 0.1 for 10 %. Null if nothing else limits the flow.
    pub gain: Option<f64>,
    /// What would limit the flow next. Null if nothing else does.
    pub next: Option<FlowLimit>,
}

/// A chain of stages.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ChainResult {
    /// The name in the file.
    pub name: String,
    /// The sum of the stages' times.
    pub time_ns: f64,
    /// The bytes per second if one pass follows the other. Null if the chain has no number of bytes.
    pub bytes_per_second: Option<f64>,
    /// The stages in order.
    pub stages: Vec<StageResult>,
}

/// A stage of a chain.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StageResult {
    /// The name in the file.
    pub name: String,
    /// The time.
    pub time_ns: f64,
}

/// A published result beside the model's value.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PublishedResult {
    /// What was measured.
    pub what: String,
    /// The unit of both values.
    pub unit: PublishedUnit,
    /// The published value. Null if the publication gives none.
    pub published: Option<f64>,
    /// The model's value. Null if the model has none.
    pub model: Option<f64>,
    /// model / published - 1.
    pub residual: Option<f64>,
    /// What the value is worth.
    pub status: Option<Status>,
}

impl ModelResult {
    /// Creates the row of a case. `margins` are those of [`Case::margins`], or none.
    pub fn new(model: &str, case: &Case, margins: Option<&[Margin]>, published: Option<&Published>) -> Self {
        let limit = |limit: Limit| match limit {
            Limit::Resource(resource) => {
                FlowLimit::Resource { name: case.resources[resource.index()].name.clone() }
            }
            Limit::Demand => FlowLimit::Demand,
            Limit::Window => FlowLimit::Window,
        };
        let resources =
            case.resources.iter().zip(&case.solution.resources).map(|(info, used)| ResourceResult {
                name: info.name.clone(),
                unit: match info.unit {
                    Unit::Bytes => ResourceUnit::Bytes,
                    Unit::Seconds => ResourceUnit::Seconds,
                },
                capacity_units_per_second: info.capacity,
                used_units_per_second: used.used,
                used_share: used.used / info.capacity,
                full: used.full,
                delay_ns: used.delay * 1e9,
            });
        let flows =
            case.flows.iter().zip(&case.solution.flows).enumerate().map(|(index, (info, flow))| FlowResult {
                name: info.name.clone(),
                bytes_per_second: flow.rate,
                packets_per_second: info.packet.map(|packet| flow.rate / packet),
                limit: limit(flow.limit),
                margin: margins.map(|margins| FlowMargin {
                    bytes_per_second: margins[index].rate,
                    gain: margins[index].rate.map(|rate| rate / flow.rate - 1.0),
                    next: margins[index].next.map(limit),
                }),
            });
        let shown = |index: &usize| !matches!(case.quantity, Some(Quantity::Chain(only)) if only != *index);
        let chains =
            (0..case.chains.len()).filter(shown).map(|index| &case.chains[index]).map(|chain| ChainResult {
                name: chain.name.clone(),
                time_ns: chain.time * 1e9,
                bytes_per_second: chain.rate(),
                stages: (chain.stages.iter())
                    .map(|stage| StageResult { name: stage.name.clone(), time_ns: stage.time * 1e9 })
                    .collect(),
            });
        let published = published.map(|published| {
            let value = case.value(published.unit);
            PublishedResult {
                what: published.what.clone(),
                unit: published.unit,
                published: published.value,
                model: value,
                residual: value.zip(published.value).map(|(model, published)| model / published - 1.0),
                status: case.status,
            }
        });
        Self {
            model: model.into(),
            case: case.name.clone(),
            assumptions: case.assumes.clone(),
            resources: resources.collect(),
            flows: flows.collect(),
            chains: chains.collect(),
            published,
            settled: case.solution.settled,
        }
    }
}
