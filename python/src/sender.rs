//! Sends frames.

use crate::{LOOK_EVERY, buffer, exception, row};
use inlane_forward::batch::{BatchSender, FrameBatch};
use inlane_forward::config::Config;
use inlane_ports::spec::PortSpec;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Sends frames to ports in batches.
#[pyclass]
pub struct Sender {
    sender: BatchSender,
    row: Option<String>,
}

#[pymethods]
impl Sender {
    #[new]
    #[pyo3(signature = (ports, function, cores, room))]
    fn new(ports: Vec<String>, function: &str, cores: Option<Vec<usize>>, room: usize) -> PyResult<Self> {
        let tx = ports.iter().map(|port| PortSpec::parse(port)).collect::<Result<_, _>>();
        let tx = tx.map_err(|error: inlane_ports::Error| exception(&error.into()))?;
        let sender = BatchSender::start(tx, |route| {
            let mut config = Config::new(route);
            config.function = function.into();
            config.cores = cores;
            config.room = room;
            config
        });
        Ok(Self { sender: sender.map_err(|error| exception(&error))?, row: None })
    }

    /// Gives a batch to the run: the bytes of all frames, and the offsets of their ends.
    fn send(&mut self, py: Python<'_>, bytes: &Bound<'_, PyAny>, ends: &Bound<'_, PyAny>) -> PyResult<()> {
        let (bytes, ends) = (buffer::bytes(bytes)?, buffer::numbers(ends)?);
        if ends.last().is_some_and(|&end| end != bytes.len() as u64) {
            let why = format!(
                "the last frame ends at {}, but there are {} bytes",
                ends[ends.len() - 1],
                bytes.len()
            );
            return Err(PyValueError::new_err(why));
        }
        let mut batch = Some(FrameBatch { times_ns: vec![0; ends.len()], bytes, ends });
        while let Some(unsent) = batch.take() {
            let sender = &mut self.sender;
            batch =
                py.detach(|| sender.send_within(unsent, LOOK_EVERY)).map_err(|error| exception(&error))?;
            py.check_signals()?;
        }
        Ok(())
    }

    /// Waits until all frames were sent.
    fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        let sender = &mut self.sender;
        let measurement = py.detach(|| sender.finish()).map_err(|error| exception(&error))?;
        self.row = row(&measurement)?;
        Ok(())
    }

    fn stop(&self) {
        self.sender.stop();
    }

    /// Returns the row of the run's result as JSON, after its end.
    fn row(&self) -> Option<String> {
        self.row.clone()
    }
}
