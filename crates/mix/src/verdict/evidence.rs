//! Pieces of evidence, with their numbers.

use crate::statistics::Estimate;
use inlane_core::load::Resource;
use schemars::JsonSchema;
use serde::Serialize;

/// A fact and what it says about a bottleneck.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Evidence {
    /// What was measured.
    pub fact: Fact,
    /// What it says.
    pub says: Says,
}

/// What a fact says about a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Says {
    /// This is the bottleneck.
    For,
    /// This is not the bottleneck.
    Against,
    /// The fact fits both.
    Neither,
}

/// The kinds of evidence. Two facts of one kind count once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The used share of a measured ceiling.
    Ceiling,
    /// The times of threads, and throttling by a quota.
    Threads,
    /// The pace that was asked for and reached.
    Pace,
    /// What the load gained when another one was slowed.
    Exchange,
    /// What changed when the load itself was slowed.
    Slowed,
    /// What the load lost beside an antagonist.
    Antagonist,
    /// Interventions that changed nothing.
    Unaffected,
}

impl Kind {
    /// Returns true if something was changed on purpose to see the effect.
    pub fn is_intervention(self) -> bool {
        matches!(self, Kind::Exchange | Kind::Slowed | Kind::Antagonist | Kind::Unaffected)
    }
}

/// Something that was measured. Loads have the numbers that observations use: first those of the user, then antagonists.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fact {
    /// The running loads use this much of the resource.
    Ceiling {
        /// Units per second that the running loads take.
        #[serde(rename = "used_per_second")]
        used: f64,
        /// The most units per second that were measured with another mixture of loads.
        #[serde(rename = "capacity_per_second")]
        capacity: f64,
    },
    /// How the threads of the load spent their time, as shares from 0 to 1.
    Threads {
        /// They had work.
        busy: Option<f64>,
        /// They waited for a full port or queue.
        blocked: Option<f64>,
        /// They ran on a processor.
        on_processor: Option<f64>,
        /// They were ready to run while other threads had the processor.
        queued: Option<f64>,
        /// The quota stopped the process, as a share of its periods.
        throttled: Option<f64>,
    },
    /// The pace of the load, in operations per second.
    Pace {
        /// What the user asked for.
        #[serde(rename = "asked_operations_per_second")]
        asked: f64,
        /// What the load reached.
        #[serde(rename = "reached_operations_per_second")]
        reached: f64,
    },
    /// Another load was slowed.
    Exchange {
        /// The load that was slowed.
        slowed: usize,
        /// What it lost, in its bytes or operations per second.
        #[serde(rename = "freed_per_second")]
        freed: f64,
        /// How much faster this load became, as a fraction of its rate.
        gain: Estimate,
        /// What this load gained for what the other one lost, in units of the resource if their uses are known, and in
        /// bytes or operations otherwise. `null` if the other one lost nothing.
        #[schemars(with = "Option<f64>")]
        per_unit: f64,
        /// True if `per_unit` counts units of the resource.
        in_units: bool,
    },
    /// The load itself was slowed.
    Slowed {
        /// Its rate then, as a fraction of the rate before.
        rate: f64,
        /// The share of the time in which its threads had work: before and then.
        busy: Option<(f64, f64)>,
        /// The share of the time in which they waited for a full port or queue.
        blocked: Option<(f64, f64)>,
        /// The share of the quota's periods in which it stopped the process.
        throttled: Option<(f64, f64)>,
    },
    /// An antagonist took part of a resource.
    Antagonist {
        /// The antagonist.
        antagonist: usize,
        /// The resource.
        resource: Resource,
        /// The share of the antagonist's rate alone that it reached.
        share: f64,
        /// How the rate of this load changed, as a fraction of its rate.
        change: Estimate,
    },
    /// Nothing happened to the load when other loads were slowed, or beside antagonists.
    Unaffected {
        /// The number of changes that were tried.
        tried: usize,
        /// The largest change of the load's rate among them, as a fraction.
        largest: f64,
    },
}

impl Fact {
    /// Returns the kind of the fact.
    pub fn kind(&self) -> Kind {
        match self {
            Fact::Ceiling { .. } => Kind::Ceiling,
            Fact::Threads { .. } => Kind::Threads,
            Fact::Pace { .. } => Kind::Pace,
            Fact::Exchange { .. } => Kind::Exchange,
            Fact::Slowed { .. } => Kind::Slowed,
            Fact::Antagonist { .. } => Kind::Antagonist,
            Fact::Unaffected { .. } => Kind::Unaffected,
        }
    }
}
