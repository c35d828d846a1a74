//! Frames in batches, for programs that want the packets themselves. A run in a thread of its own moves the frames:
//!
//! ```text
//! port -> packet function -> BatchReceiver -> program
//! port -> packet function -> InPlaceReceiver -> program
//! program -> BatchSender -> packet function -> ports
//! ```
//!
//! The run and the program share one batch. While the program works on a batch, the run fills or empties another. A program
//! that is too slow makes a capture or a generator wait. A port that cannot wait loses packets, and its counters say so.
//!
//! Batches have copies of the frames. An [`InPlaceReceiver`] copies nothing: it says where the packets lie, which may be memory of a GPU.

mod in_place;
mod receiver;
mod sender;

pub use in_place::{InPlaceReceiver, NextPackets, PacketsInPlace};
pub use receiver::{BatchReceiver, ReceiveSettings};
pub use sender::BatchSender;

use crate::config::Config;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::experiment::{MeasureOptions, Measurement, Session};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Frames, one after the other in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameBatch {
    /// The bytes of all frames.
    pub bytes: Vec<u8>,
    /// For each frame, the offset of its end in `bytes`. The next frame begins there.
    pub ends: Vec<u64>,
    /// For each frame, the time at which it was captured or received, in nanoseconds since 1970.
    pub times_ns: Vec<u64>,
}

impl FrameBatch {
    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no frames.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Appends a frame.
    pub fn push(&mut self, frame: &[u8], time_ns: u64) {
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len() as u64);
        self.times_ns.push(time_ns);
    }

    /// Returns frame `index`, if there is one. Returns `None` too if `ends`, which anyone may change, does not fit `bytes`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_sub(1).map_or(Some(&0), |before| self.ends.get(before))?;
        self.bytes.get(*start as usize..*self.ends.get(index)? as usize)
    }

    /// Returns the frames in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map_while(|index| self.get(index))
    }

    /// Returns an empty batch with the room that this batch has used.
    fn successor(&self) -> Self {
        Self {
            bytes: Vec::with_capacity(self.bytes.len()),
            ends: Vec::with_capacity(self.len()),
            times_ns: Vec::with_capacity(self.len()),
        }
    }
}

/// What the run and the program share.
#[derive(Default)]
struct Shared<B = FrameBatch> {
    state: Mutex<State<B>>,
    /// Notified when a batch is full, empty or the last one.
    changed: Condvar,
}

#[derive(Default)]
struct State<B> {
    batch: B,
    /// The run has ended.
    ended: bool,
    /// The program gives or takes no further frame.
    closed: bool,
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().expect("nothing panics while it holds the lock")
    }
}

/// Tells the program that the run has ended, also if its thread panics.
struct EndOfRun<B>(Arc<Shared<B>>);

impl<B> Drop for EndOfRun<B> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// A run in a thread of its own.
struct Run<B = FrameBatch> {
    shared: Arc<Shared<B>>,
    control: Arc<Control>,
    thread: Option<JoinHandle<Result<Measurement>>>,
    /// What the run has measured, after [`Run::conclude`].
    measurement: Option<Measurement>,
}

impl<B: Send + 'static> Run<B> {
    fn start(config: Config, shared: Arc<Shared<B>>) -> Result<Self> {
        let control = Arc::new(Control::default());
        let (end, flags) = (EndOfRun(Arc::clone(&shared)), Arc::clone(&control));
        let run = move || {
            let _end = end;
            let options = MeasureOptions { baseline: false, ..MeasureOptions::default() };
            Session { control: flags, ..Session::default() }.measure(&config, &options)
        };
        let thread = std::thread::Builder::new()
            .name("inlane-batch".into())
            .spawn(run)
            .map_err(|error| Error::config("thread of the run", error.to_string()))?;
        Ok(Self { shared, control, thread: Some(thread), measurement: None })
    }

    /// Waits for the end of the run, and keeps its measurement. Returns the run's error once.
    fn conclude(&mut self) -> Result<()> {
        let Some(ended) = self.join() else { return Ok(()) };
        let mut measurement = ended?;
        let failure = measurement.failure.take();
        self.measurement = Some(measurement);
        failure.map_or(Ok(()), Err)
    }
}

impl<B> Run<B> {
    /// Waits for the end of the run, and returns its measurement. The second call has nothing to return.
    fn join(&mut self) -> Option<Result<Measurement>> {
        let ended = self.thread.take()?.join();
        Some(ended.unwrap_or_else(|_| {
            Err(Error::Panicked { pipeline: 0, thread: "batch", message: "see standard error".into() })
        }))
    }

    /// Waits until `ready` returns something, the run ends, or `most` is over.
    fn wait<T>(
        &self,
        most: Duration,
        mut ready: impl FnMut(&mut State<B>) -> Option<T>,
    ) -> (Option<T>, bool) {
        let mut found = None;
        let waits = |state: &mut State<B>| {
            found = ready(state);
            found.is_none() && !state.ended
        };
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), most, waits);
        let (state, _) = waited.expect("nothing panics while it holds the lock");
        (found, state.ended)
    }
}

impl<B> Drop for Run<B> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.control.stop();
        self.join();
    }
}

#[cfg(test)]
mod tests;
