//! Completion modes: how the end of an asynchronous operation is detected.
//!
//! * `poll` checks again and again: the lowest latency, but one core is busy;
//! * `interrupt` sleeps until the device wakes the thread: the latency includes a wake-up;
//! * `adaptive` sleeps for most of the time that operations of this size took before, then polls.
//!
//! [`Wait`] is the loop of a wait. [`ExpectedDurations`] holds the durations that adaptive waits have measured.

mod expectation;
mod wait;

use crate::error::Error;
use std::fmt;
use std::str::FromStr;

pub use expectation::ExpectedDurations;
pub use wait::{Slept, Wait, WaitPlan, Waited, sleep_precisely};

/// How the end of an operation is detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum CompletionMode {
    /// Poll until the operation has completed.
    #[default]
    Poll,
    /// Sleep until an interrupt wakes the thread.
    Interrupt,
    /// Sleep for most of the expected time, then poll.
    Adaptive,
}

impl fmt::Display for CompletionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompletionMode::Poll => "poll",
            CompletionMode::Interrupt => "interrupt",
            CompletionMode::Adaptive => "adaptive",
        })
    }
}

impl FromStr for CompletionMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "poll" => Ok(CompletionMode::Poll),
            "interrupt" => Ok(CompletionMode::Interrupt),
            "adaptive" => Ok(CompletionMode::Adaptive),
            _ => Err(Error::Invalid {
                what: format!("completion '{text}'").into(),
                why: "choose one of poll, interrupt, adaptive".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for mode in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
            assert_eq!(mode.to_string().parse::<CompletionMode>().unwrap(), mode);
        }
        assert!("spin".parse::<CompletionMode>().is_err());
    }
}
