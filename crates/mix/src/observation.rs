//! What a session has measured: phases, the rates of the loads in them, and signals of the machine.
//!
//! The loads of a session have indexes. The loads of the user come first. Antagonists follow: loads of the session's own that
//! take part of one resource, and are parked in all phases but their own.

use inlane_core::load::{Resource, Use};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a load does in a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// It is open but does nothing.
    Parked,
    /// It runs at the rate that its user asked for, or as fast as possible.
    Full,
    /// It runs at this fraction of a rate that it reached before: in [`Phase::Together`] for [`Phase::Throttled`], and
    /// alone for all other phases.
    Share(f64),
}

/// What a phase shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// One load of the user, or one antagonist, runs alone.
    Alone {
        /// The load.
        load: usize,
    },
    /// One load of the user runs alone, and is slowed to a fraction of its rate in [`Phase::Alone`].
    ThrottledAlone {
        /// The load.
        load: usize,
        /// The fraction, below 1.
        share: f64,
    },
    /// Two of the user's loads run. Only for sessions of more than two, because two are [`Phase::Together`].
    Pair {
        /// The load with the lower index.
        one: usize,
        /// The other load.
        other: usize,
    },
    /// All loads of the user run.
    Together,
    /// All loads of the user run, and one is slowed to a fraction of its rate in [`Phase::Together`].
    Throttled {
        /// The load that is slowed.
        load: usize,
        /// The fraction, below 1.
        share: f64,
    },
    /// One load of the user runs beside an antagonist.
    Beside {
        /// The load of the user.
        load: usize,
        /// The antagonist.
        antagonist: usize,
        /// The fraction of its own rate alone at which the antagonist runs.
        share: f64,
    },
    /// All loads of the user run beside an antagonist.
    TogetherBeside {
        /// The antagonist.
        antagonist: usize,
        /// The fraction of its own rate alone at which the antagonist runs.
        share: f64,
    },
}

impl Phase {
    /// Returns what `load` does in this phase. `users` is the number of the user's loads.
    pub fn level(&self, load: usize, users: usize) -> Level {
        let full = |runs: bool| if runs { Level::Full } else { Level::Parked };
        match *self {
            Phase::Alone { load: alone } => full(load == alone),
            Phase::Pair { one, other } => full(load == one || load == other),
            Phase::Together => full(load < users),
            Phase::Throttled { load: slowed, share } | Phase::ThrottledAlone { load: slowed, share }
                if load == slowed =>
            {
                Level::Share(share)
            }
            Phase::ThrottledAlone { .. } => Level::Parked,
            Phase::Throttled { .. } => full(load < users),
            Phase::Beside { antagonist, share, .. } | Phase::TogetherBeside { antagonist, share }
                if load == antagonist =>
            {
                Level::Share(share)
            }
            Phase::Beside { load: beside, .. } => full(load == beside),
            Phase::TogetherBeside { .. } => full(load < users),
        }
    }
}

/// What is known of a load before it runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// The name that results show, such as `dma` or `tx`.
    pub name: String,
    /// What it takes from resources, as far as the load itself can tell.
    pub uses: Vec<Use>,
    /// The rate that the user asked for, in operations per second. `None` to run as fast as possible.
    pub asked: Option<f64>,
    /// True if its operations come from outside this session, such as packets that another machine sends.
    pub fed: bool,
    /// The most operations that it has in flight, if that is limited.
    pub in_flight: Option<f64>,
    /// The resource of which the load takes part, if it is an antagonist. Its [`Loaded::uses`] contain this resource.
    pub antagonist_of: Option<Resource>,
    /// The cores that its threads are bound to. Empty if they may run on any.
    pub cores: Vec<usize>,
    /// The number of its threads.
    pub threads: usize,
}

/// What one load did during an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadRate {
    /// Completed operations per second.
    pub operations_per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Failed operations.
    pub errors: u64,
    /// The share of the time in which its threads had work, from 0 to 1. `None` if the load does not measure it.
    pub busy: Option<f64>,
    /// The share of the time in which its threads waited for a full port or queue, or for a device. `None` if the load does not measure it.
    pub blocked: Option<f64>,
    /// The share of the time in which its threads ran on a processor. `None` if the kernel does not report it.
    pub on_processor: Option<f64>,
    /// The share of the time in which its threads were ready to run while other threads had the processor. `None` if the
    /// kernel does not report it.
    pub queued: Option<f64>,
}

impl LoadRate {
    /// Returns bytes per second, or operations per second for a load that moves no bytes. Uses of resources count for
    /// each of these.
    pub fn amount(&self) -> f64 {
        if self.bytes_per_second > 0.0 { self.bytes_per_second } else { self.operations_per_second }
    }
}

/// What the machine did during an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Signals {
    /// The share of processor time that the hypervisor took away. `None` if the kernel does not report it.
    pub stolen: Option<f64>,
    /// The share of the periods of a control group's quota in which it stopped this process. `None` without a quota.
    pub throttled: Option<f64>,
    /// The share of processor time that other processes used. `None` if the kernel does not report it.
    pub others: Option<f64>,
}

/// Why an observation does not count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Void {
    /// The hypervisor took away more than the allowed share of processor time.
    Stolen(f64),
    /// Other processes used this share of processor time, and much less of it in another observation of the phase.
    Others(f64),
    /// The control group's quota of processor time changed.
    QuotaChanged,
    /// A load's rates in both halves of the observation differ by this fraction, and no half of it or more had steady rates.
    Drift(f64),
}

/// One measured phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Observation {
    /// What the loads did.
    pub phase: Phase,
    /// The block in which it was measured. Each block has every phase, in random order. Some phases are in it twice, which
    /// shows whether equal phases give equal rates.
    pub block: usize,
    /// When it began, in nanoseconds since the start of the loads. In a continued session, since the start of the first one, and
    /// the pauses between the sessions do not count.
    pub at_ns: u64,
    /// How long it lasted, without the time for the rates to settle. Shorter than the phase if a load paused: only the longest
    /// part with steady rates counts then.
    pub duration_ns: u64,
    /// The rates of all loads, in the order of [`Measured::loads`].
    pub loads: Vec<LoadRate>,
    /// What the machine did meanwhile.
    pub signals: Signals,
    /// Why the observation is void. `None` if it counts.
    pub void: Option<Void>,
}

/// Why a session measured less than it was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The user ended it.
    Interrupted,
    /// A load failed. The observations from before count.
    LoadFailed {
        /// The load.
        load: usize,
        /// Its error.
        error: String,
    },
    /// The time limit was reached before the intervals of the medians were narrow.
    TimeLimit,
}

/// Everything that a session has measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The loads of the user, and then the antagonists.
    pub loads: Vec<Loaded>,
    /// The number of the user's loads.
    pub users: usize,
    /// What the machine did before the loads started.
    pub idle: Signals,
    /// All observations, also void ones, in the order in which they were made.
    pub observations: Vec<Observation>,
    /// Why it is incomplete. `None` if it is complete.
    pub cut: Option<Cut>,
}

impl Measured {
    /// Returns the observations of a phase that count. If all are void, returns those: see
    /// [`is_disturbed`](Self::is_disturbed).
    pub fn counted(&self, phase: Phase) -> impl Iterator<Item = &Observation> {
        let disturbed = self.is_disturbed(phase);
        let of_phase = self.observations.iter().filter(move |observation| observation.phase == phase);
        of_phase.filter(move |observation| disturbed || observation.void.is_none())
    }

    /// Returns true if all observations of a phase are void.
    pub fn is_disturbed(&self, phase: Phase) -> bool {
        let mut of_phase = self.observations.iter().filter(|observation| observation.phase == phase);
        of_phase.all(|observation| observation.void.is_some())
    }

    /// Returns what a load did in the observations of a phase that count.
    pub fn rates(&self, phase: Phase, load: usize) -> Vec<LoadRate> {
        self.counted(phase).filter_map(|observation| observation.loads.get(load).copied()).collect()
    }

    /// Returns the operations per second of a load in the observations of a phase that count.
    pub fn operations(&self, phase: Phase, load: usize) -> Vec<f64> {
        self.rates(phase, load).iter().map(|rate| rate.operations_per_second).collect()
    }

    /// Returns true if a load has moved no bytes, so its rates count operations.
    pub fn counts_operations(&self, load: usize) -> bool {
        counts_operations(&self.observations, load)
    }
}

/// Returns true if a load has moved no bytes in any observation.
pub(crate) fn counts_operations(observations: &[Observation], load: usize) -> bool {
    observations.iter().all(|observation| observation.loads[load].bytes_per_second == 0.0)
}
