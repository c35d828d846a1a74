//! The errors of forwarding.

use inlane_core::error::Class;

/// What can go wrong in a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the ring, a pool, a port.
    #[error(transparent)]
    Core(#[from] inlane_core::Error),
    /// Settings that do not go together.
    #[error("{what}: {why}")]
    Config {
        /// The flag or key.
        what: String,
        /// What is wrong with it, and what to write instead.
        why: String,
    },
    /// A thread of a pipeline panicked; the others ended in order.
    #[error(
        "pipeline {pipeline}: its {thread} thread panicked: {message}; this is a defect, please report it"
    )]
    Panicked {
        /// Which pipeline.
        pipeline: usize,
        /// Which of its threads.
        thread: &'static str,
        /// What it said.
        message: String,
    },
    /// Verification found something.
    #[error("verification failed: {0}")]
    Verification(String),
    /// From the packet function's side.
    #[error(transparent)]
    Function(#[from] inlane_function::Error),
    /// From DPDK.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] inlane_dpdk::Error),
    /// From CUDA.
    #[cfg(feature = "cuda")]
    #[error("{0}{or}", or = instead(.0))]
    Cuda(#[from] inlane_cuda::Error),
    /// The GPU did not finish an item.
    #[error(
        "packet function {function} on the GPU is stuck: item {item} was not done within {seconds} s; the GPU was given up. \
         Does the function end for every packet? A longer limit is set with --watchdog"
    )]
    Stuck {
        /// The function.
        function: String,
        /// Which item of the run.
        item: u64,
        /// How long was waited.
        seconds: f64,
    },
    /// The job beside the packets was not seen to its end.
    #[error("the job of --compete: {0}")]
    Competitor(String),
    /// Somebody ended it before there was anything to report.
    #[error("interrupted while choosing: {0}; no run began, and nothing is reported")]
    Interrupted(String),
    /// Buffers did not come back to their pool.
    #[error("{buffers} packet buffers did not come back to their pool; this is a defect, please report it")]
    Leaked {
        /// How many.
        buffers: u64,
    },
}

#[cfg(feature = "cuda")]
/// What runs a packet function where there is no GPU.
fn instead(error: &inlane_cuda::Error) -> &'static str {
    match error {
        inlane_cuda::Error::NoDriver | inlane_cuda::Error::NoDevice { count: 0, .. } => ", or use --on cpu",
        _ => "",
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

/// The result of forwarding.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Who can do something about it.
    pub fn class(&self) -> Class {
        match self {
            Error::Core(error) => error.class(),
            Error::Config { .. } => Class::Usage,
            Error::Panicked { .. } | Error::Verification(_) | Error::Leaked { .. } => Class::Failed,
            Error::Stuck { .. } | Error::Competitor(_) | Error::Interrupted(_) => Class::Failed,
            Error::Function(error) => error.class(),
            #[cfg(feature = "dpdk")]
            Error::Dpdk(error) => error.class(),
            #[cfg(feature = "cuda")]
            Error::Cuda(error) => error.class(),
        }
    }

    /// A setting that is wrong.
    pub fn config(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Config { what: what.into(), why: why.into() }
    }
}
