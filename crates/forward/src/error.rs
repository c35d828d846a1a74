//! The errors of a run.

use crate::field;
use crate::trial::FailedRate;
use inlane_core::error::Class;
use inlane_core::setting::{FieldValue, Subject};
use inlane_core::verification::Verification;

/// An error of a run, or of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a burst ring, a pool, or a port of inlane's own.
    #[error(transparent)]
    Core(#[from] inlane_core::Error),
    /// A setting that is wrong, or contradicts another setting.
    #[error("{what}: {why}")]
    Config {
        /// The setting, or another object of the configuration.
        what: Subject,
        /// What is wrong with the setting, and what to write instead.
        why: String,
    },
    /// No method keeps the latency limit on this machine.
    #[error("{setting}: no method is that fast on this machine; {found}; give a longer time")]
    TooSlow {
        /// The setting with the limit.
        setting: FieldValue,
        /// The lowest 99th percentile of all trials, as text. If no trial measured a latency, the text says so.
        found: String,
    },
    /// A thread panicked, so the run ended early.
    #[error(
        "the {thread} thread of pipeline {pipeline} panicked: {message}; this is a defect, please report it"
    )]
    Panicked {
        /// The pipeline's number.
        pipeline: usize,
        /// The thread's role.
        thread: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Packets were lost, duplicated, reordered or altered, or none arrived.
    #[error("verification failed: {}", describe(.0))]
    Verification(Box<Verification>),
    /// The search for the highest rate without loss found none.
    #[error(
        "verification failed: no rate passed: {}; give a longer {}, a larger {} or fewer other programs",
        why_not(.last),
        field::DURATION,
        field::BURST
    )]
    NoRate {
        /// The last rate. `None` if no packet was processed without a set rate.
        last: Option<FailedRate>,
    },
    /// An error of the packet function: its name, settings or compilation.
    #[error(transparent)]
    Function(#[from] inlane_function::Error),
    /// An error of a DPDK port or pool, or of dropping privileges.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] inlane_dpdk::Error),
    /// An error of the GPU, its driver or compiler.
    #[cfg(feature = "cuda")]
    #[error("{0}{or}", or = alternative(.0))]
    Cuda(#[from] inlane_cuda::Error),
    /// The GPU did not complete an item in time. The process no longer uses that GPU.
    #[error(
        "packet function {function} is stuck on the GPU: item {item} was not complete after {seconds} s; check that the \
         function ends for every packet, or raise {}",
        field::WATCHDOG
    )]
    Stuck {
        /// The packet function's name.
        function: String,
        /// The item's position in the run.
        item: u64,
        /// The watchdog's timeout, in seconds.
        seconds: f64,
    },
    /// The packet function did not return on the CPU.
    #[error(
        "packet function {function} is stuck on the CPU: it has not returned for {seconds:.1} s; check that it ends for every \
         packet, or raise {}",
        field::WATCHDOG
    )]
    NeverReturned {
        /// The packet function's name.
        function: String,
        /// How long it has not returned, in seconds.
        seconds: f64,
    },
    /// The competing job failed or did not end.
    #[error("competing job: {0}")]
    Competitor(String),
    /// The user stopped the choice of a method before one was chosen.
    #[error("interrupted while choosing a method: {0}; there is no result")]
    Interrupted(String),
    /// Packet buffers were not freed.
    #[error("{buffers} packet buffers were not freed; this is a defect, please report it")]
    Leaked {
        /// The number of buffers.
        buffers: u64,
    },
}

fn why_not(last: &Option<FailedRate>) -> String {
    last.as_ref().map_or_else(|| "no packet was processed".into(), FailedRate::to_string)
}

/// Returns what a check found, and what to do.
fn describe(verification: &Verification) -> String {
    if verification.received_nothing() && !verification.failed() {
        return format!(
            "no packet was received ({}); see whether the sender runs, is connected, and sends before the run ends",
            verification.method
        );
    }
    let Verification { checked, lost, duplicated, reordered, altered, method, .. } = verification;
    let counts = [(altered, "altered"), (lost, "lost"), (duplicated, "duplicated"), (reordered, "reordered")];
    let counts = counts.iter().filter(|(count, _)| **count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    let example = verification.altered_example.as_ref().map(|example| format!(": for example, {example}"));
    let remedy = match (*altered, *lost, verification.expected) {
        (1.., _, None) => {
            "give check the options of the other run's gen, and check the packet function".to_string()
        }
        (1.., ..) => {
            let capture = field::CAPTURE.with("FILE");
            format!("check the packet function, and look at the packets with {capture}")
        }
        (_, lost, _) if lost > duplicated + reordered => {
            format!("offer fewer packets with {}, or find the cause in the result's counters", field::RATE)
        }
        _ => "check the connection between the ports".into(),
    };
    format!(
        "{}, with {checked} packets checked ({method}){}; {remedy}",
        counts.join(", "),
        example.unwrap_or_default()
    )
}

/// Returns the text that a message about a missing GPU appends to suggest an alternative.
#[cfg(feature = "cuda")]
fn alternative(error: &inlane_cuda::Error) -> String {
    match error {
        inlane_cuda::Error::NoDriver | inlane_cuda::Error::NoDevice { count: 0, .. } => {
            format!(", or use {}", field::ON.with("cpu"))
        }
        _ => String::new(),
    }
}

impl From<inlane_ports::Error> for Error {
    fn from(error: inlane_ports::Error) -> Self {
        match error {
            inlane_ports::Error::Core(error) => Error::Core(error),
            #[cfg(feature = "dpdk")]
            inlane_ports::Error::Dpdk(error) => Error::Dpdk(error),
            error => Error::config("port", error.to_string()),
        }
    }
}

/// The result of fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class that decides the exit status.
    pub fn class(&self) -> Class {
        match self {
            Error::Core(error) => error.class(),
            Error::Config { .. } => Class::Usage,
            Error::TooSlow { .. } | Error::Panicked { .. } => Class::Failed,
            Error::Verification(_) | Error::NoRate { .. } | Error::Leaked { .. } => Class::Failed,
            Error::NeverReturned { .. }
            | Error::Stuck { .. }
            | Error::Competitor(_)
            | Error::Interrupted(_) => Class::Failed,
            Error::Function(error) => error.class(),
            #[cfg(feature = "dpdk")]
            Error::Dpdk(error) => error.class(),
            #[cfg(feature = "cuda")]
            Error::Cuda(error) => error.class(),
        }
    }

    /// Returns the name of the port, if the error is about one.
    pub fn port(&self) -> Option<&str> {
        match self {
            Error::Core(error) => error.port(),
            #[cfg(feature = "dpdk")]
            Error::Dpdk(error) => error.port(),
            _ => None,
        }
    }

    /// Creates an [`Error::Config`].
    pub fn config(what: impl Into<Subject>, why: impl Into<String>) -> Self {
        Error::Config { what: what.into(), why: why.into() }
    }
}
