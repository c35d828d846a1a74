//! The stages of a message's way, and how long they take.

use super::{Hop, Point, Step};
use inlane_core::clock::Clock;
use schemars::JsonSchema;
use serde::Serialize;

/// The number of points.
pub const POINTS: usize = Point::Read.index() + 1;

/// A part of a message's way from the call of send() to the data in the receiver's buffer. Each ends at the [`Point`] after the
/// one at which the previous stage ends. Stages `to_card` and `from_card` exist only if cards run TCP for the engines. The cards then
/// have the stages in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// send() hands the bytes over: to the ring that the program shares with the engine, or to the socket pair.
    HandOver,
    /// The engine finds the bytes, or is woken.
    WakeUp,
    /// The sending engine, up to the first byte of the message to its card.
    ToCardProtocol,
    /// The message is written to the memory of the port between engine and card.
    ToCardDataMovement,
    /// This port is told to send the message.
    ToCardSendPort,
    /// The message waits until the card asks this port for messages. Includes waking the card if it sleeps.
    ToCardWire,
    /// The card gets the message from this port.
    ToCardReceivePort,
    /// The card checks the message, and copies its bytes to the send ring of the connection.
    ToCardPlacement,
    /// TCP or RDMA at the sender, up to the first byte of the frame. Includes reading the socket pair, if the bytes are there.
    SendProtocol,
    /// The headers and the data are written to the memory of the port.
    DataMovement,
    /// The port is told to send the frame.
    SendPort,
    /// The frame waits until the receiving engine asks its port for frames. Includes waking that engine if it sleeps.
    Wire,
    /// The receiving engine gets the frame from its port.
    ReceivePort,
    /// TCP or RDMA at the receiver, which places the data into the receive ring.
    ReceiveProtocol,
    /// The receiving engine's card, up to the first byte of the message to the engine.
    FromCardProtocol,
    /// The message is written to the memory of the port between card and engine.
    FromCardDataMovement,
    /// This port is told to send the message.
    FromCardSendPort,
    /// The message waits until the engine asks this port for messages. Includes waking the engine if it sleeps.
    FromCardWire,
    /// The engine gets the message from this port.
    FromCardReceivePort,
    /// The engine checks the message, and copies its bytes to the receive ring of the connection.
    FromCardPlacement,
    /// The engine shows the data to the program: by the index of the shared ring, or by writing to the socket pair.
    Placement,
    /// recv() finds the data or is woken, and copies it to the program's buffer.
    ReaderWakeUp,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Self; POINTS - 1] = [
        Self::HandOver,
        Self::WakeUp,
        Self::ToCardProtocol,
        Self::ToCardDataMovement,
        Self::ToCardSendPort,
        Self::ToCardWire,
        Self::ToCardReceivePort,
        Self::ToCardPlacement,
        Self::SendProtocol,
        Self::DataMovement,
        Self::SendPort,
        Self::Wire,
        Self::ReceivePort,
        Self::ReceiveProtocol,
        Self::FromCardProtocol,
        Self::FromCardDataMovement,
        Self::FromCardSendPort,
        Self::FromCardWire,
        Self::FromCardReceivePort,
        Self::FromCardPlacement,
        Self::Placement,
        Self::ReaderWakeUp,
    ];

    /// Returns true for the stages between an engine and its card.
    pub fn is_of_card(self) -> bool {
        let (stage, [to_card, from_card]) = (self as usize, [Self::ToCardProtocol, Self::FromCardProtocol]);
        let is_at = |first: usize| first <= stage && stage < first + 6;
        is_at(to_card as usize) || is_at(from_card as usize)
    }
}

/// When one message passed each [`Point`], as raw readings of the clock. `None` where that was not recorded.
pub type Way = [Option<u64>; POINTS];

/// The time of each stage of a way in ticks of the clock, in the order of [`Stage::ALL`]. `None` where the end was not recorded.
pub type Stages = [Option<u64>; POINTS - 1];

/// Returns the time of each stage of a way, in ticks of the clock. A stage whose end was not recorded is `None`, and its time
/// counts in the next stage. Returns `None` if the first or the last point is missing.
///
/// Each time is taken after the event, so another thread can react before it is taken. A point therefore counts as passed at the
/// latest when a later point was passed. So the stages add up to the time between the first and the last point.
pub fn ticks(way: &Way) -> Option<Stages> {
    let (first, last) = (way[0]?, way[Point::Read.index()]?);
    let mut way = *way;
    // An engine or a card that polls may ask for frames before the frame is sent.
    for hop in Hop::ALL {
        let at = |step: Step| Point::At(hop, step).index();
        if let (Some(flushed), Some(polled), Some(received)) =
            (way[at(Step::Flushed)], way[at(Step::Polled)], way[at(Step::Received)])
        {
            way[at(Step::Polled)] = Some(polled.max(flushed.min(received)));
        }
    }
    let mut latest = last;
    for time in way.iter_mut().rev().flatten() {
        *time = latest.min(*time);
        latest = *time;
    }
    let mut before = first;
    let mut stages = [None; POINTS - 1];
    for (stage, time) in stages.iter_mut().zip(&way[1..]) {
        *stage = time.map(|time| {
            let time = time.max(before);
            time - std::mem::replace(&mut before, time)
        });
    }
    Some(stages)
}

/// Returns how long a frame took from the end of its writing at one end of a link until the other end had it: the stages of both ports
/// and of the wire. `None` if one of their ends was not recorded.
pub fn passage(stages: &Stages, hop: Hop) -> Option<u64> {
    // A stage ends at the point behind it.
    let [written, received] = [Step::Written, Step::Received].map(|step| Point::At(hop, step).index() - 1);
    stages[written]?;
    stages[written + 1..=received].iter().copied().sum()
}

/// The distribution of a time over all messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Times {
    /// The median.
    pub median_ns: f64,
    /// The time that 99 % of the messages do not exceed.
    pub p99_ns: f64,
    /// The mean.
    pub mean_ns: f64,
}

impl Times {
    /// Returns the distribution of times in ticks of the clock. `None` if there are none.
    pub fn of(clock: &Clock, mut ticks: Vec<u64>) -> Option<Self> {
        let count = ticks.len().checked_sub(1)? + 1;
        ticks.sort_unstable();
        let ns = |ticks: u64| clock.between_ns(0, ticks) as f64;
        let sum: u64 = ticks.iter().sum();
        Some(Self {
            median_ns: ns(ticks[count / 2]),
            p99_ns: ns(ticks[(count - 1) * 99 / 100]),
            mean_ns: ns(sum) / count as f64,
        })
    }
}
