//! What the ceiling of a transfer is made of.

use crate::endpoint::Endpoint;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The resource that limits a transfer, and how its rate was measured.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CeilingOf {
    /// Links, driven by copy engines in this run.
    CopyEngine {
        /// The links that the transfer crosses, or the slowest of them.
        links: Vec<Link>,
        /// True if both directions of all links were driven at once.
        both_directions: bool,
    },
    /// The link of a twin, by its model.
    Model {
        /// The twin.
        endpoint: Endpoint,
    },
    /// One thread that only loads from the source, measured in this run.
    Loads {
        /// The source.
        from: Endpoint,
    },
    /// One thread that only stores to the destination, measured in this run.
    Stores {
        /// The destination.
        to: Endpoint,
    },
}

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Link {
    /// The device at the link's end.
    pub endpoint: Endpoint,
    /// True for transfers out of this device, false for transfers into it.
    pub out: bool,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.out { "out of" } else { "into" }, self.endpoint)
    }
}

impl fmt::Display for CeilingOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CopyEngine { links, both_directions } => {
                let names: Vec<String> = links.iter().map(Link::to_string).collect();
                let both = if *both_directions { ", both directions of all links at once" } else { "" };
                write!(f, "{} by copy engine, measured in this run{both}", names.join(" and "))
            }
            Self::Model { endpoint } => write!(f, "the link of {endpoint} after encoding, by its model"),
            Self::Loads { from } => write!(f, "loads from {from} alone, by one thread, measured in this run"),
            Self::Stores { to } => write!(f, "stores to {to} alone, by one thread, measured in this run"),
        }
    }
}
