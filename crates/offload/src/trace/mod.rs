//! Traces messages on their way through engines and cards, for `inlane offload trace`.
//!
//! A program sends messages of 4 bytes one at a time. The bytes are the message's number, so an engine or a card recognises the frame
//! that carries it. A [`Recorder`] keeps when each message passed each [`Point`] of an engine or a card. Two things record: wrappers
//! around the queues of the ports (`queues`), and the loop (`Observer`).
//!
//! Without a recorder there are no wrappers, and the calls of the loop are empty and compiled away. So tracing costs
//! nothing unless it is on.

mod queues;
mod stages;
#[cfg(test)]
mod tests;

pub(crate) use queues::{TracedRx, TracedTx};
pub use stages::{POINTS, Stage, Stages, Times, Way, passage, ticks};

use inlane_core::clock::Clock;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A link that a message crosses, in the order of the way. Without cards, there is only the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hop {
    /// From the sending engine to its card.
    ToCard,
    /// Between the engines, or between their cards.
    Network,
    /// From the receiving engine's card to that engine.
    FromCard,
}

impl Hop {
    /// All links, in the order of the way.
    pub const ALL: [Self; 3] = [Self::ToCard, Self::Network, Self::FromCard];
}

/// What happens to a frame that crosses a link. The sender is the engine or card at the link's beginning, and the receiver the one
/// at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The sender begins to write the frame to the memory of the port.
    Begun,
    /// The frame is complete.
    Written,
    /// The port has been told to send the frame.
    Flushed,
    /// The receiver asks its port for frames, and gets the frame.
    Polled,
    /// The receiver has the frame.
    Received,
    /// The receiver has processed the frame: the data lies in its ring.
    Processed,
}

/// The number of steps.
const STEPS: usize = Step::Processed as usize + 1;

/// A place on the way of a message, in the order of the way. Times at a place are raw readings of [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The program calls send().
    Called,
    /// send() has returned.
    Returned,
    /// The sending engine has found that its programs have work for it.
    Found,
    /// A step of the frame that crosses a link.
    At(Hop, Step),
    /// The receiving engine has told the program.
    Published,
    /// recv() has returned with the data in the program's buffer.
    Read,
}

impl Point {
    /// Returns the place of the point in a [`Way`].
    pub const fn index(self) -> usize {
        const FIRST_STEP: usize = 3;
        const LAST_STEP: usize = FIRST_STEP + 3 * STEPS - 1;
        match self {
            Self::Called => 0,
            Self::Returned => 1,
            Self::Found => 2,
            Self::At(hop, step) => FIRST_STEP + hop as usize * STEPS + step as usize,
            Self::Published => LAST_STEP + 1,
            Self::Read => LAST_STEP + 2,
        }
    }
}

/// The links of an engine or a card on the way of the messages. `None` leads to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The link from which messages are received.
    pub from: Option<Hop>,
    /// The link to which messages are sent.
    pub to: Option<Hop>,
}

impl Place {
    /// The sending engine and the receiving one.
    pub const ENGINES: [Self; 2] =
        [Self { from: None, to: Some(Hop::Network) }, Self { from: Some(Hop::Network), to: None }];
    /// The sending engine, the receiving one, the sending engine's card, and the receiving engine's card.
    pub const WITH_CARDS: [Self; 4] = [
        Self { from: None, to: Some(Hop::ToCard) },
        Self { from: Some(Hop::FromCard), to: None },
        Self { from: Some(Hop::ToCard), to: Some(Hop::Network) },
        Self { from: Some(Hop::Network), to: Some(Hop::FromCard) },
    ];
}

/// The times that a recorder keeps of a message: those of the steps, and two more.
const FOUND: usize = STEPS;
const PUBLISHED: usize = STEPS + 1;
const RECORDED: usize = STEPS + 2;

/// No message.
const NONE: usize = usize::MAX;

/// What the loop of an engine or a card tells an observer. The methods do nothing unless the observer is a [`Recorder`].
pub(crate) trait Observer {
    /// The engine has asked its programs for work. `any` is true if there was some.
    #[inline(always)]
    fn asked(&self, any: bool) {
        let _ = any;
    }

    /// The frames that had been received were processed.
    #[inline(always)]
    fn processed(&self) {}

    /// The data of all connections that had changed was moved.
    #[inline(always)]
    fn served(&self) {}
}

/// The observer of an engine or a card that is not traced.
pub(crate) struct Nobody;

impl Observer for Nobody {}

/// Records when messages pass an engine with one thread, or a card. One thread writes; others read when it has ended.
pub struct Recorder {
    clock: Clock,
    place: Place,
    /// The number of the first message that is recorded.
    first: u32,
    /// The times of each message. 0 if it has not passed the point.
    times: Box<[[AtomicU64; RECORDED]]>,
    /// When the engine last found work of programs.
    found: AtomicU64,
    /// The message whose frame was received and not processed or not served yet.
    received: AtomicUsize,
}

impl Recorder {
    /// Creates a recorder of an engine or a card for the `count` messages with the numbers from `first` on. All recorders and
    /// programs of a measurement need clones of one clock, or clocks of the same machine.
    pub fn new(clock: &Clock, place: Place, first: u32, count: usize) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            place,
            first,
            times: (0..count).map(|_| Default::default()).collect(),
            found: AtomicU64::new(0),
            received: AtomicUsize::new(NONE),
        })
    }

    /// Adds to the way of message `index` when it passed the points that were recorded.
    pub fn add_to(&self, way: &mut Way, index: usize) {
        let Some(times) = self.times.get(index) else { return };
        let mut add = |point: Point, recorded: usize| {
            let time = times[recorded].load(Ordering::Relaxed);
            way[point.index()] = Some(time).filter(|&time| time > 0);
        };
        match self.place.from {
            Some(hop) => [Step::Polled, Step::Received, Step::Processed]
                .into_iter()
                .for_each(|step| add(Point::At(hop, step), step as usize)),
            None => add(Point::Found, FOUND),
        }
        match self.place.to {
            Some(hop) => [Step::Begun, Step::Written, Step::Flushed]
                .into_iter()
                .for_each(|step| add(Point::At(hop, step), step as usize)),
            None => add(Point::Published, PUBLISHED),
        }
    }

    /// Returns the index of the message that a frame carries, if it is one that is recorded.
    fn message_of(&self, frame: &[u8]) -> Option<usize> {
        let index = queues::number(frame)?.wrapping_sub(self.first) as usize;
        (index < self.times.len()).then_some(index)
    }

    /// Records that message `index` passed a step, [`FOUND`] or [`PUBLISHED`].
    fn record(&self, index: usize, recorded: usize, time: u64) {
        if let Some(times) = self.times.get(index) {
            times[recorded].store(time, Ordering::Relaxed);
        }
    }
}

impl Observer for Arc<Recorder> {
    fn asked(&self, any: bool) {
        if any {
            self.found.store(self.clock.raw(), Ordering::Relaxed);
        }
    }

    fn processed(&self) {
        self.record(self.received.load(Ordering::Relaxed), Step::Processed as usize, self.clock.raw());
    }

    fn served(&self) {
        let received = self.received.swap(NONE, Ordering::Relaxed);
        self.record(received, PUBLISHED, self.clock.raw());
    }
}
