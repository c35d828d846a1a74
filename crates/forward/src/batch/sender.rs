//! Sends frames in batches.

use super::{FrameBatch, Run, Shared};
use crate::config::{Config, Route};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::experiment::Measurement;
use crate::field;
use inlane_ports::own::{FrameSource, NextFrame};
use inlane_ports::spec::PortSpec;
use std::sync::Arc;
use std::time::Duration;

/// Sends the frames of a program to ports, through a packet function if there is one.
pub struct BatchSender {
    run: Run,
}

impl BatchSender {
    /// Starts to send. `tx` are the ports to send to. `config` returns the other settings for a route.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no port. Errors of the ports come with the first batch that is sent.
    pub fn start(tx: Vec<PortSpec>, config: impl FnOnce(Route) -> Config) -> Result<Self> {
        if tx.is_empty() {
            return Err(Error::config(field::TX, "no port is named; name at least one port to send to"));
        }
        let shared = Arc::<Shared>::default();
        let source = BatchSource { shared: Arc::clone(&shared), batch: FrameBatch::default(), sent: 0 };
        let config = config(Route::OneWay { rx: PortSpec::from_source("batches", source), tx });
        Ok(Self { run: Run::start(config, shared)? })
    }

    /// Gives a batch to the run. Waits at most `most` until the run has begun to send the batch before it. Returns the batch if
    /// that time is over.
    ///
    /// # Errors
    /// Why the run could not start or failed.
    pub fn send_within(&mut self, batch: FrameBatch, most: Duration) -> Result<Option<FrameBatch>> {
        let mut batch = Some(batch);
        let (_, ended) = self.run.wait(most, |state| {
            (state.batch.is_empty() && !state.ended).then(|| state.batch = batch.take().unwrap_or_default())
        });
        match (batch, ended) {
            (Some(_), true) => {
                Err(self.finish().err().unwrap_or_else(|| Error::config(field::TX, "the run has ended")))
            }
            (batch, _) => Ok(batch),
        }
    }

    /// Waits until every frame was sent, and returns what the run has measured.
    ///
    /// # Errors
    /// Why the run could not start or failed.
    pub fn finish(&mut self) -> Result<Measurement> {
        self.run.shared.lock().closed = true;
        let ended = self.run.join();
        let mut measurement =
            ended.unwrap_or_else(|| Err(Error::config(field::TX, "the run has ended before")))?;
        measurement.failure.take().map_or(Ok(measurement), Err)
    }

    /// Returns the flags that end the run. Another thread can call [`Control::stop`] of them, as [`BatchSender::stop`] does.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.run.control)
    }

    /// Ends the run without the frames that it has not sent yet.
    pub fn stop(&self) {
        self.run.control.stop();
    }
}

/// The port from which the run receives the frames.
struct BatchSource {
    shared: Arc<Shared>,
    batch: FrameBatch,
    /// The frames of `batch` that the run has received.
    sent: usize,
}

impl BatchSource {
    /// Takes the next batch of the program. Returns false if the program will give no further batch.
    fn take(&mut self) -> bool {
        let mut state = self.shared.lock();
        self.batch = std::mem::take(&mut state.batch);
        self.sent = 0;
        let more = !self.batch.is_empty() || !state.closed;
        drop(state);
        if !self.batch.is_empty() {
            self.shared.changed.notify_one();
        }
        more
    }
}

impl FrameSource for BatchSource {
    fn next(&mut self, buffer: &mut [u8]) -> inlane_core::Result<NextFrame> {
        if self.sent == self.batch.len() && !self.take() {
            return Ok(NextFrame::End);
        }
        let Some(frame) = self.batch.get(self.sent) else {
            return match self.sent == self.batch.len() {
                true => Ok(NextFrame::None),
                false => Err(bad(self.sent, "its end lies before its start, or after the last byte")),
            };
        };
        let Some(place) = buffer.get_mut(..frame.len()) else {
            let why = format!(
                "it has {} bytes, and a packet buffer {}; make the buffers larger",
                frame.len(),
                buffer.len()
            );
            return Err(bad(self.sent, &why));
        };
        place.copy_from_slice(frame);
        self.sent += 1;
        Ok(NextFrame::Frame(frame.len()))
    }
}

fn bad(frame: usize, why: &str) -> inlane_core::Error {
    inlane_core::Error::port_failed("batches", format!("frame {frame} of a batch: {why}"))
}
