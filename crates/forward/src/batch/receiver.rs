//! Receives frames in batches.

use super::{FrameBatch, Run, Shared};
use crate::config::{Config, Route};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::experiment::Measurement;
use crate::field;
use inlane_core::packet::PacketMeta;
use inlane_ports::own::FrameSink;
use inlane_ports::spec::{Kind, PortSpec};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How frames are put into batches.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveSettings {
    /// The most frames in a batch.
    pub frames: usize,
    /// The longest time that a received frame waits for others.
    pub wait: Duration,
}

impl Default for ReceiveSettings {
    fn default() -> Self {
        Self { frames: 4096, wait: Duration::from_millis(100) }
    }
}

/// Receives the frames of a port, after a packet function if there is one.
pub struct BatchReceiver {
    run: Run,
    settings: ReceiveSettings,
}

/// Returns the ports of a configuration whose packets the program itself takes: the one to receive from, and the empty list of those to send
/// to.
pub(super) fn ports(
    config: &mut Config,
    settings: ReceiveSettings,
) -> Result<(&PortSpec, &mut Vec<PortSpec>)> {
    let Route::OneWay { rx, tx } = &mut config.route else {
        let why = "a receiver takes the frames of one direction; name only the port to receive from";
        return Err(Error::config(field::BETWEEN, why));
    };
    if !tx.is_empty() {
        let why = "a receiver takes the frames itself; name no port to send to";
        return Err(Error::config(field::TX, why));
    }
    if settings.frames == 0 {
        return Err(Error::config("batch", "it would have no frames; give at least 1"));
    }
    Ok((rx, tx))
}

impl BatchReceiver {
    /// Starts to receive. `config` says from which port, and which packet function processes the frames. It names no port to
    /// send to, because the receiver takes the frames.
    ///
    /// # Errors
    /// [`Error::Config`] if `config` names ports to send to, or a batch would have no frames. Errors of the port come with the
    /// first batch.
    pub fn start(mut config: Config, settings: ReceiveSettings) -> Result<Self> {
        let (rx, tx) = ports(&mut config, settings)?;
        let shared = Arc::<Shared>::default();
        let sink = BatchSink {
            shared: Arc::clone(&shared),
            frames: settings.frames,
            has_times: rx.kind() == Kind::Capture,
        };
        tx.push(PortSpec::to_sink("batches", sink));
        Ok(Self { run: Run::start(config, shared)?, settings })
    }

    /// Returns the next batch. Waits at most `most` for its first frame, and returns an empty batch when that time is over. `None`
    /// after the last batch.
    ///
    /// # Errors
    /// Why the run could not start or failed, once, after the batches before the failure.
    pub fn next_within(&mut self, most: Duration) -> Result<Option<FrameBatch>> {
        let (first, ended) = self.run.wait(most, |state| (!state.batch.is_empty()).then_some(()));
        if first.is_some() {
            let frames = self.settings.frames;
            self.run.wait(self.settings.wait, |state| (state.batch.len() >= frames).then_some(()));
            let mut state = self.run.shared.lock();
            let next = state.batch.successor();
            return Ok(Some(std::mem::replace(&mut state.batch, next)));
        }
        if !ended {
            return Ok(Some(FrameBatch::default()));
        }
        self.run.conclude()?;
        Ok(None)
    }

    /// Stops receiving from the port. Batches with the frames that were received before still follow.
    pub fn stop(&self) {
        self.run.control.stop();
    }

    /// Returns the flags that end the run. Another thread can call [`Control::stop`] of them, as [`BatchReceiver::stop`] does.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.run.control)
    }

    /// Returns what the run has measured, once [`BatchReceiver::next_within`] has returned `None` or an error.
    pub fn measurement(&self) -> Option<&Measurement> {
        self.run.measurement.as_ref()
    }
}

/// The port to which the run sends the frames.
struct BatchSink {
    shared: Arc<Shared>,
    frames: usize,
    /// The source gives each frame the time of its capture.
    has_times: bool,
}

impl FrameSink for BatchSink {
    fn take(&mut self, frame: &[u8], meta: &PacketMeta) -> inlane_core::Result<bool> {
        let time_ns = match self.has_times {
            true => meta.time_ns,
            false => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
        };
        let mut state = self.shared.lock();
        if state.closed {
            // Nobody will read the frame. Refusing it would keep the run from ending.
            return Ok(true);
        }
        if state.batch.len() >= self.frames {
            return Ok(false);
        }
        state.batch.push(frame, time_ns);
        let frames = state.batch.len();
        drop(state);
        if frames == 1 || frames == self.frames {
            self.shared.changed.notify_one();
        }
        Ok(true)
    }
}
