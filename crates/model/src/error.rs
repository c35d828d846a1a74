//! Errors of networks and of model files.

use crate::field::SET;
use crate::id::{FlowId, ResourceId};
use inlane_core::error::Class;
use inlane_core::names::did_you_mean;
use std::fmt;

/// A number of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The capacity of a resource.
    Capacity(ResourceId),
    /// The units of a resource for each byte of a flow.
    Use(FlowId, ResourceId),
    /// The highest rate of a flow.
    Demand(FlowId),
    /// The bytes in flight of a flow.
    Window(FlowId),
    /// The latency of a flow.
    Latency(FlowId),
    /// The number of requesters of a flow.
    Requesters(FlowId),
    /// The weight of a flow.
    Weight(FlowId),
    /// The bytes of a follower for each byte of the flow that it follows.
    Ratio(FlowId),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Capacity(resource) => write!(f, "resource {}: capacity", resource.0),
            Item::Use(flow, resource) => write!(f, "flow {}: use of resource {}", flow.0, resource.0),
            Item::Demand(flow) => write!(f, "flow {}: demand", flow.0),
            Item::Window(flow) => write!(f, "flow {}: window", flow.0),
            Item::Latency(flow) => write!(f, "flow {}: latency", flow.0),
            Item::Requesters(flow) => write!(f, "flow {}: requesters", flow.0),
            Item::Weight(flow) => write!(f, "flow {}: weight", flow.0),
            Item::Ratio(flow) => write!(f, "flow {}: ratio to the followed flow", flow.0),
        }
    }
}

/// The place of a value in a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the file.
    pub file: String,
    /// The number of the line, from 1. `None` if a setting gave the value.
    pub line: Option<usize>,
    /// The setting that gave the value, such as `link.gen=5`.
    pub setting: Option<String>,
    /// The key with the tables that contain it, such as `resource.link.gen`. Empty for the whole file.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.setting, self.line) {
            (Some(setting), _) => return write!(f, "{}", SET.with(setting)),
            (None, Some(line)) => write!(f, "model {}:{line}", self.file)?,
            (None, None) => write!(f, "model {}", self.file)?,
        }
        if self.key.is_empty() { Ok(()) } else { write!(f, ": {}", self.key) }
    }
}

/// What is wrong with a value of a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A key that the format does not have.
    #[error("there is no such key; {}the keys are {}", did_you_mean(nearest), known.join(", "))]
    UnknownKey {
        /// The keys with similar names.
        nearest: Vec<String>,
        /// All keys that may stand here.
        known: Vec<String>,
    },
    /// A reference to something that the file does not have.
    #[error("there is no {kind} '{name}'; {}{}", did_you_mean(nearest), have(kind, known))]
    UnknownName {
        /// The kind of the object that the key names: "resource" or "flow".
        kind: &'static str,
        /// The unknown name.
        name: String,
        /// Similar names.
        nearest: Vec<String>,
        /// The names that the file has.
        known: Vec<String>,
    },
    /// A key that is required.
    #[error("the key '{key}' is missing; {example}")]
    Missing {
        /// The key.
        key: &'static str,
        /// A sentence with an example.
        example: &'static str,
    },
    /// A value of the wrong type.
    #[error("the value must be {expected}")]
    Type {
        /// The expected value, with an example.
        expected: &'static str,
    },
    /// A number outside its range.
    #[error("{value} is out of range; give {least} to {most}")]
    Range {
        /// The number.
        value: f64,
        /// The least valid number.
        least: f64,
        /// The greatest valid number.
        most: f64,
    },
    /// A word that is not a choice.
    #[error("'{value}' is unknown; choose {}", choices.join(", "))]
    Choice {
        /// The word.
        value: String,
        /// The choices.
        choices: Vec<&'static str>,
    },
    /// A text that is not a quantity.
    #[error(transparent)]
    Quantity(#[from] inlane_core::units::ParseError),
    /// A definition that refers to itself, directly or through others.
    #[error("this is a cycle: {}; remove one of these references", path.join(" -> "))]
    Cycle {
        /// The names in the order in which they refer to each other.
        path: Vec<String>,
    },
    /// Two keys of which only one may be given.
    #[error("'{first}' and '{second}' exclude each other; give one of them")]
    Both {
        /// The first key.
        first: &'static str,
        /// The second key.
        second: &'static str,
    },
    /// A cost for each packet or operation, in a flow without the size of a packet or operation.
    #[error("the flow has no '{key}'; give the bytes of each, for example {key} = 1024")]
    NoSize {
        /// The key that is missing in the flow.
        key: &'static str,
    },
    /// A flow without anything that limits its rate.
    #[error("nothing limits the flow; give it a resource, a rate, or a window with a latency")]
    Unlimited,
    /// A flow without a window at a resource with a queue.
    #[error("the flow shares the queue of '{resource}'; give it a window, for example window = \"64K\"")]
    NoWindow {
        /// The resource.
        resource: String,
    },
    /// A setting without an equals sign.
    #[error("it has no value; give KEY=VALUE, for example link.gen=5")]
    NoValue,
    /// A setting of a published result.
    #[error("published results are not inputs of the model; change a resource, flow, stage or case")]
    Published,
    /// A number that was computed from the file's numbers, and that a network cannot have.
    #[error("the numbers of this flow or resource lead to an unusable network: {0}")]
    Network(#[source] Box<Error>),
}

fn have(kind: &str, known: &[String]) -> String {
    const MOST: usize = 20;
    match known {
        [] => format!("the file has no {kind}s"),
        known => {
            let more = if known.len() > MOST { " and others" } else { "" };
            format!("the file has {}{more}", known[..known.len().min(MOST)].join(", "))
        }
    }
}

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number outside its range.
    #[error("{item} {value} is out of range; give {least} to {most}")]
    Value {
        /// The number's place in the network.
        item: Item,
        /// The number.
        value: f64,
        /// The least valid number. Uses and latencies may also be zero.
        least: f64,
        /// The greatest valid number.
        most: f64,
    },
    /// A flow that uses or follows something of another network.
    #[error("flow {}: it uses a resource or follows a flow that the network does not have; add that first", flow.0)]
    Unknown {
        /// The flow.
        flow: FlowId,
    },
    /// A follower with a window. The window of the followed flow limits both.
    #[error("flow {}: it follows another flow, so it can have no window; give the followed flow a window", flow.0)]
    FollowerWindow {
        /// The follower.
        flow: FlowId,
    },
    /// A flow without anything that limits its rate.
    #[error("flow {}: nothing limits its rate; give it a resource, a demand or a window with a latency", flow.0)]
    Unlimited {
        /// The flow.
        flow: FlowId,
    },
    /// A flow without a window at a resource whose queue it shares.
    #[error("flow {}: it shares the queue of resource {}; give it a window", flow.0, resource.0)]
    NoWindow {
        /// The flow.
        flow: FlowId,
        /// The resource.
        resource: ResourceId,
    },
    /// A model file that is not TOML.
    #[error("model {file}: {}", source.message())]
    Toml {
        /// The name of the file.
        file: String,
        /// The parser's error.
        source: toml::de::Error,
    },
    /// A value of a model file, or of a setting, that cannot be used.
    #[error("{place}: {problem}")]
    File {
        /// The place of the value.
        place: Place,
        /// What is wrong with the value.
        #[source]
        problem: Box<Problem>,
    },
}

impl Error {
    /// Returns the class of this error. All errors come from what the user gave.
    pub fn class(&self) -> Class {
        Class::Usage
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
