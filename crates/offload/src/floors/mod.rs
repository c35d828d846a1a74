//! Floors of the stages of a message with cards, for `inlane offload trace`: what the least work of each stage takes alone. The threads
//! of a floor only poll and do this work, with the same time stamps as in the stage.

mod memory;
mod port;
mod shared;

pub use memory::in_memory;
pub use port::{FloorsOfPort, of_port};
pub use shared::of_shared_lines;

use crate::error::{Error, Result};
use crate::trace::{Stage, Times};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What was measured as the floor of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// A thread stores 4 bytes and an index to cache lines that another thread polls.
    StoreToPolledLines,
    /// The other thread, which only polls these lines, finds the index and loads the bytes.
    PassingOfLines,
    /// The header of a message between engine and card is built.
    MessageHeader,
    /// A message between engine and card in memory is checked, and its 4 bytes are copied to a ring.
    MessagePlacement,
    /// TCP's state machine makes the header of a segment with 4 bytes.
    TcpHeader,
    /// The headers of a segment in memory are checked, and TCP's state machine copies its 4 bytes to a ring.
    TcpPlacement,
    /// A frame of the same length passes this stage of the same kind of port, between two threads that do nothing else.
    PortAlone,
}

/// The floor of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    /// The stage.
    pub stage: Stage,
    /// What was measured.
    pub measured: Measured,
    /// The times of what was measured.
    pub times: Times,
}

/// The number of rounds before those that are measured.
const WARM_UP: usize = 2000;
/// The number of the first measured message. Answers have inverted numbers, so they are outside of the measured ones.
const FIRST: u32 = 0x6d65_0000;
/// The longest time for which a thread waits for the other one in all.
const LIMIT: Duration = Duration::from_secs(60);
/// The polls without success after which a thread lets others run, because the other thread may need its core.
const POLLS: u32 = 4096;

/// A wait for another thread.
struct Wait {
    until: Instant,
    polls: u32,
}

impl Wait {
    fn new() -> Self {
        Self { until: Instant::now() + LIMIT, polls: 0 }
    }

    /// Records a poll without success.
    ///
    /// # Errors
    /// If the time is over.
    #[inline]
    fn polled(&mut self) -> Result<()> {
        std::hint::spin_loop();
        self.polls += 1;
        if self.polls < POLLS {
            return Ok(());
        }
        self.polls = 0;
        std::thread::yield_now();
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(Error::os("measuring floors")(std::io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Runs `first` and `second` in two threads, each on its core.
///
/// # Errors
/// The first error of a thread.
fn in_two_threads<A: Send, B: Send>(
    cores: Option<[usize; 2]>,
    first: impl FnOnce() -> Result<A> + Send,
    second: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    let pin = |side: usize| cores.map_or(Ok(()), |cores| crate::host::pin(&cores, side));
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(move || pin(0).and_then(|()| first()));
        let second = scope.spawn(move || pin(1).and_then(|()| second()));
        (first.join(), second.join())
    });
    let first = first.map_err(|_| Error::Panicked { thread: 0 })?;
    let second = second.map_err(|_| Error::Panicked { thread: 1 })?;
    Ok((first?, second?))
}

#[cfg(test)]
mod tests;
