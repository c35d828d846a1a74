//! Receives packets in place: their memory as DLPack gives it to NumPy, PyTorch, JAX and others without a copy.

use crate::buffer::{Buffer, Spare};
use crate::receiver::{config, time};
use crate::{LOOK_EVERY, exception, row};
use inlane_core::Location;
use inlane_forward::batch::{InPlaceReceiver, NextPackets, PacketsInPlace, ReceiveSettings};
use inlane_forward::config::Executor;
use inlane_forward::gpu::Settings;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

/// The memory of the packets, and two numbers for each packet: first the offsets of all packets in the memory, then all lengths.
type Parts = (Memory, Buffer);

/// Receives the packets of a port in place.
#[pyclass]
pub struct PlaceReceiver {
    receiver: InPlaceReceiver,
    spare: Arc<Spare>,
}

#[pymethods]
impl PlaceReceiver {
    #[new]
    #[pyo3(signature = (port, function, on, memory, frames, wait, duration, cores, room))]
    #[expect(clippy::too_many_arguments, reason = "the Python class has keyword arguments with defaults")]
    fn new(
        port: &str,
        function: &str,
        on: &str,
        memory: Option<&str>,
        frames: usize,
        wait: f64,
        duration: Option<f64>,
        cores: Option<Vec<usize>>,
        room: usize,
    ) -> PyResult<Self> {
        let mut config = config(port, function, duration, cores, room)?;
        config.executor = executor(on, memory).map_err(|error| exception(&error))?;
        let settings = ReceiveSettings { frames, wait: time(wait, "wait")? };
        let receiver = InPlaceReceiver::start(config, settings).map_err(|error| exception(&error))?;
        Ok(Self { receiver, spare: Arc::default() })
    }

    /// Returns the parts of the next packets, or None after the last ones.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Parts>> {
        loop {
            let (receiver, spare) = (&mut self.receiver, &self.spare);
            let next = py.detach(|| match receiver.next_within(LOOK_EVERY)? {
                NextPackets::Packets(packets) => {
                    let places = packets.places().map(|(offset, length)| (offset, u64::from(length)));
                    let places = Buffer::of_pairs(places, spare);
                    Ok(Ok((Memory { packets: Arc::new(packets) }, places)))
                }
                none => Ok(Err(none)),
            });
            match next.map_err(|error| exception(&error))? {
                Ok(parts) => return Ok(Some(parts)),
                Err(NextPackets::End) => return Ok(None),
                Err(_) => py.check_signals()?,
            }
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

fn executor(on: &str, memory: Option<&str>) -> inlane_forward::Result<Executor> {
    let device = on.parse()?;
    let mut settings = Settings::default();
    if let Some(memory) = memory {
        settings.memory = memory.parse()?;
    }
    let method = match Executor::default().device() == device {
        true => Executor::default().method(),
        false => settings.method,
    };
    Executor::new(device, method, 0, settings)
}

/// The memory in which packets lie: an array of bytes by the protocol of DLPack. The packets are held as long as this object or an array
/// over it lives.
#[pyclass(frozen)]
pub struct Memory {
    packets: Arc<PacketsInPlace>,
}

/// `DLTensor` and `DLManagedTensor` of DLPack, with what the tensor refers to.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_kind: i32,
    device_index: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Tensor)>,
    // What follows is not part of DLPack's structure.
    length: [i64; 1],
    _packets: Arc<PacketsInPlace>,
}

/// The code of unsigned integers.
const UNSIGNED: u8 = 1;
/// The name of a capsule whose tensor nobody has taken.
const UNUSED: &CStr = c"dltensor";

/// Frees a tensor.
///
/// # Safety
/// `tensor` is from `Box::into_raw`, and nobody uses it any more.
unsafe extern "C" fn delete(tensor: *mut Tensor) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(tensor) });
}

/// Frees the tensor of a capsule, unless an array has taken it and so renamed the capsule.
///
/// # Safety
/// Python calls this with a capsule of [`Memory::__dlpack__`].
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is valid during this call. A capsule with this name has a tensor that nobody has taken.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.packets.memory().len()
    }

    /// Returns DLPack's number of the kind of device, and the device's number.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        match self.packets.memory().location() {
            Location::Host => Ok((1, 0)),
            Location::Gpu(index) => Ok((2, *index as i32)),
            Location::Pinned => Ok((3, 0)),
            other => Err(PyBufferError::new_err(format!("DLPack has no device for packets in {other}"))),
        }
    }

    /// Returns the memory as a capsule of DLPack. The packets are complete, so no stream must wait for them.
    #[pyo3(signature = (**settings))]
    fn __dlpack__(&self, py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let device = self.__dlpack_device__()?;
        let setting = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(settings.map(|it| it.get_item(name)).transpose()?.flatten().filter(|value| !value.is_none()))
        };
        if setting("copy")?.is_some_and(|copy| copy.is_truthy().unwrap_or(true)) {
            return Err(PyBufferError::new_err("packets in place are not copied; copy the array instead"));
        }
        if let Some(wanted) = setting("dl_device")?
            && wanted.extract::<(i32, i32)>()? != device
        {
            return Err(PyBufferError::new_err(
                "packets in place stay on their device; copy the array instead",
            ));
        }
        let memory = self.packets.memory();
        let mut tensor = Box::new(Tensor {
            data: memory.address() as *mut c_void,
            device_kind: device.0,
            device_index: device.1,
            dimensions: 1,
            type_code: UNSIGNED,
            type_bits: 8,
            type_lanes: 1,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
            context: ptr::null_mut(),
            deleter: Some(delete),
            length: [memory.len() as i64],
            _packets: Arc::clone(&self.packets),
        });
        tensor.shape = tensor.length.as_mut_ptr();
        let tensor = Box::into_raw(tensor);
        // SAFETY: the name lives forever, and the capsule owns the tensor until an array takes it.
        let capsule = unsafe { ffi::PyCapsule_New(tensor.cast(), UNUSED.as_ptr(), Some(forget)) };
        if capsule.is_null() {
            // SAFETY: no capsule owns the tensor.
            unsafe { delete(tensor) };
            return Err(PyErr::fetch(py));
        }
        // SAFETY: `PyCapsule_New` has returned a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
    }
}
