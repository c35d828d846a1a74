//! Receives frames.

use crate::buffer::Buffer;
use crate::{LOOK_EVERY, exception, row};
use inlane_forward::batch::{BatchReceiver, ReceiveSettings};
use inlane_forward::config::{Config, Route};
use inlane_ports::spec::PortSpec;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;

/// The end of the bytes, the offsets of the frames' ends, and the times of the frames.
type Parts = (Buffer, Buffer, Buffer);

/// Receives the frames of a port in batches.
#[pyclass]
pub struct Receiver {
    receiver: BatchReceiver,
}

#[pymethods]
impl Receiver {
    #[new]
    #[pyo3(signature = (port, function, frames, wait, duration, cores, room))]
    fn new(
        port: &str,
        function: &str,
        frames: usize,
        wait: f64,
        duration: Option<f64>,
        cores: Option<Vec<usize>>,
        room: usize,
    ) -> PyResult<Self> {
        let config = config(port, function, duration, cores, room)?;
        let settings = ReceiveSettings { frames, wait: time(wait, "wait")? };
        let receiver = BatchReceiver::start(config, settings).map_err(|error| exception(&error))?;
        Ok(Self { receiver })
    }

    /// Returns the parts of the next batch, or None after the last one.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Parts>> {
        loop {
            let receiver = &mut self.receiver;
            let batch = py.detach(|| receiver.next_within(LOOK_EVERY)).map_err(|error| exception(&error))?;
            let Some(batch) = batch else { return Ok(None) };
            if !batch.is_empty() {
                let ends = Buffer::of_numbers(batch.ends.iter().copied());
                let times = Buffer::of_numbers(batch.times_ns.iter().copied());
                return Ok(Some((Buffer::of_bytes(batch.bytes), ends, times)));
            }
            py.check_signals()?;
        }
    }

    fn stop(&self) {
        self.receiver.stop();
    }

    /// Returns the row of the run's result as JSON, after its end.
    fn row(&self) -> PyResult<Option<String>> {
        self.receiver.measurement().map_or(Ok(None), row)
    }
}

/// Returns the settings of a run that receives from `port`.
pub fn config(
    port: &str,
    function: &str,
    duration: Option<f64>,
    cores: Option<Vec<usize>>,
    room: usize,
) -> PyResult<Config> {
    let rx = PortSpec::parse(port).map_err(|error| exception(&error.into()))?;
    let duration = duration.map(|seconds| time(seconds, "duration")).transpose()?;
    let config = Config::new(Route::OneWay { rx, tx: Vec::new() });
    Ok(Config { function: function.into(), duration, cores, room, ..config })
}

/// Returns a time that Python gave in seconds.
pub fn time(seconds: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("{name}: {seconds} is no time in seconds: {error}")))
}
