//! Experiments explain the result of a run. They use further runs or a competing job.
//!
//! | item | answers |
//! | --- | --- |
//! | [`measure()`] | the whole explained run in one call |
//! | [`choose`] | which method, burst size and flush time suit a goal best |
//! | [`baseline`] | how fast the same source and method are without the packet function |
//! | [`Ceilings`] | the most that the path's resources allow |
//! | [`limit`] | what limited a run |
//! | [`MeasureOptions::loads`] | the highest rate without loss, and the latency at shares of it |

mod auto;
mod baseline;
mod ceiling;
mod limit;
mod load;
mod measure;

pub use auto::{Goal, choose};
pub use baseline::baseline;
pub use ceiling::Ceilings;
pub use limit::limit;
pub use load::OFFERED;
pub use measure::{MeasureOptions, Session, Watch, measure, sends_to_stdout};

use crate::error::Error;
use crate::result::{Note, PacketResult};

/// The results of a measurement, and what their reader must know.
#[derive(Default)]
pub struct Measurement {
    /// One row for each measured load, or the row of the only run.
    pub results: Vec<PacketResult>,
    /// The devices that took part.
    pub devices: Vec<String>,
    /// True if a software stand-in for a device took part.
    pub twin: bool,
    /// What a reader must know before comparing the figures with others.
    pub notes: Vec<Note>,
    /// Why the run failed. The results then cover the time up to the failure.
    pub failure: Option<Error>,
}
