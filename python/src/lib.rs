//! The compiled part of the Python package `inlane`. The package's Python files wrap it: see `inlane/__init__.py`.

mod buffer;
mod in_place;
mod receiver;
mod sender;

use inlane_core::error::Class;
use inlane_forward::Error;
use inlane_forward::experiment::Measurement;
use inlane_ports::spec::{Kind, PoolKind};
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;

create_exception!(
    _native,
    RunFailed,
    PyRuntimeError,
    "The run failed: packets were lost, a device broke, or a defect was found. `result` has what was measured, if anything."
);
create_exception!(
    _native,
    UsageError,
    PyValueError,
    "A setting is wrong. The message names it as a flag of the command: `--rx` is the setting `rx`."
);
create_exception!(
    _native,
    Unavailable,
    PyOSError,
    "A device, file, program, right or peer is missing or in use. `inlane doctor` checks devices and rights."
);

/// How often a call that waits looks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Returns the Python exception for an error, by its class.
fn exception(error: &Error) -> PyErr {
    let text = error.to_string();
    match error.class() {
        Class::Usage => UsageError::new_err(text),
        Class::Environment => Unavailable::new_err(text),
        Class::Failed => RunFailed::new_err(text),
    }
}

/// Returns true if only the command can open this port, because the port needs DPDK.
#[pyfunction]
fn needs_command(port: &str) -> bool {
    Kind::of(port).is_some_and(|kind| kind.properties().pool == PoolKind::Mbufs)
}

/// Returns the first row of a measurement as JSON, as `inlane forward --json` writes it.
fn row(measurement: &Measurement) -> PyResult<Option<String>> {
    let Some(row) = measurement.results.first() else { return Ok(None) };
    serde_json::to_string(row).map(Some).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<in_place::Memory>()?;
    module.add_class::<in_place::PlaceReceiver>()?;
    module.add_class::<receiver::Receiver>()?;
    module.add_class::<sender::Sender>()?;
    module.add_function(wrap_pyfunction!(needs_command, module)?)?;
    module.add("RunFailed", module.py().get_type::<RunFailed>())?;
    module.add("UsageError", module.py().get_type::<UsageError>())?;
    module.add("Unavailable", module.py().get_type::<Unavailable>())
}
