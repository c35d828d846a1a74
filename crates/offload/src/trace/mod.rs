//! Traces messages on their way through engines, for `inlane offload trace`.
//!
//! A program sends messages of 4 bytes one at a time. The bytes are the message's number, so an engine recognises the frame
//! that carries it. A [`Recorder`] keeps when each message passed each [`Point`] of an engine. Two things record: wrappers
//! around the queues of the port (`queues`), and the loop of the engine (`Observer`).
//!
//! An engine without a recorder has no wrappers, and the calls of its loop are empty and compiled away. So tracing costs
//! nothing unless it is on.

mod queues;
mod stages;
#[cfg(test)]
mod tests;

pub(crate) use queues::{TracedRx, TracedTx};
pub use stages::{POINTS, Stage, Times, Way, ticks};

use inlane_core::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A place on the way of a message, in the order of the way. Times at a place are raw readings of [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The program calls send().
    Called,
    /// send() has returned.
    Returned,
    /// The sending engine has found that its programs have work for it.
    Found,
    /// The sending engine begins to write the frame to the memory of the port.
    Begun,
    /// The frame is complete.
    Written,
    /// The port has been told to send the frame.
    Flushed,
    /// The receiving engine asks the port for frames, and gets the frame.
    Polled,
    /// The receiving engine has the frame.
    Received,
    /// The receiving engine has processed the frame: the data lies in the receive ring.
    Processed,
    /// The receiving engine has told the program.
    Published,
    /// recv() has returned with the data in the program's buffer.
    Read,
}

/// The points that an engine records.
const FIRST: usize = Point::Found as usize;
const RECORDED: usize = Point::Published as usize - FIRST + 1;

/// No message.
const NONE: usize = usize::MAX;

/// What the loop of an engine tells an observer. The methods do nothing unless the observer is a [`Recorder`].
pub(crate) trait Observer {
    /// The engine has asked its programs for work. `any` is true if there was some.
    #[inline(always)]
    fn asked(&self, any: bool) {
        let _ = any;
    }

    /// The engine has processed the frames that it had received.
    #[inline(always)]
    fn processed(&self) {}

    /// The engine has moved the data of all connections that had changed.
    #[inline(always)]
    fn served(&self) {}
}

/// The observer of an engine that is not traced.
pub(crate) struct Nobody;

impl Observer for Nobody {}

/// Records when messages pass the points of one engine with one thread. One thread writes; others read when it has ended.
pub struct Recorder {
    clock: Clock,
    /// The number of the first message that is recorded.
    first: u32,
    /// The times of each message. 0 if it has not passed the point.
    times: Box<[[AtomicU64; RECORDED]]>,
    /// When the engine last found work of programs.
    found: AtomicU64,
    /// The message whose frame was written and not flushed yet.
    written: AtomicUsize,
    /// The message whose frame was received and not processed or not published yet.
    received: AtomicUsize,
}

impl Recorder {
    /// Creates a recorder for the `count` messages with the numbers from `first` on. All recorders and programs of a
    /// measurement need clones of one clock, or clocks of the same machine.
    pub fn new(clock: &Clock, first: u32, count: usize) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            first,
            times: (0..count).map(|_| Default::default()).collect(),
            found: AtomicU64::new(0),
            written: AtomicUsize::new(NONE),
            received: AtomicUsize::new(NONE),
        })
    }

    /// Returns when the engine had message `index` at a point, as a raw reading of the clock. `None` if it was not
    /// recorded.
    pub fn time(&self, index: usize, point: Point) -> Option<u64> {
        let at = (point as usize).checked_sub(FIRST).filter(|&at| at < RECORDED)?;
        Some(self.times.get(index)?[at].load(Ordering::Relaxed)).filter(|&time| time > 0)
    }

    /// Returns the index of the message that a frame carries, if it is one that is recorded.
    fn message_of(&self, frame: &[u8]) -> Option<usize> {
        let index = queues::number(frame)?.wrapping_sub(self.first) as usize;
        (index < self.times.len()).then_some(index)
    }

    fn record(&self, index: usize, point: Point, time: u64) {
        if let Some(times) = self.times.get(index) {
            times[point as usize - FIRST].store(time, Ordering::Relaxed);
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
        self.record(self.received.load(Ordering::Relaxed), Point::Processed, self.clock.raw());
    }

    fn served(&self) {
        let received = self.received.swap(NONE, Ordering::Relaxed);
        self.record(received, Point::Published, self.clock.raw());
    }
}
