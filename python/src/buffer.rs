//! Memory that Python's buffer protocol gives to NumPy and others without a copy.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::ptr;

/// A piece of memory. It is writable, and Rust does not access it while Python has it.
#[pyclass(frozen)]
pub struct Buffer {
    /// The memory, from `Box::into_raw`.
    memory: *mut [u8],
}

// SAFETY: the buffer owns its memory, and only programs that got it by the buffer protocol access it. As with every writable buffer of
// Python, they must agree among themselves when several threads use it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        Self { memory: Box::into_raw(bytes.into_boxed_slice()) }
    }

    /// Creates a buffer of 64-bit numbers in the machine's byte order.
    pub fn of_numbers(numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let mut bytes = vec![0; numbers.len() * 8];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_ne_bytes();
        }
        Self::of_bytes(bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the memory is from `Box::into_raw`. Each view holds a reference to this object, so no view is left.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.memory.len()
    }

    /// Gives a view of the memory to Python.
    ///
    /// # Safety
    /// Python calls this with a view that it wants filled in.
    unsafe fn __getbuffer__(slf: PyRef<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let (start, length) = (slf.memory.cast(), slf.memory.len() as ffi::Py_ssize_t);
        // SAFETY: the memory lives as long as this object, and the view gets a reference to the object.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) };
        match filled {
            0 => Ok(()),
            _ => Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("the view was refused"))),
        }
    }
}

/// Copies 64-bit numbers out of an object with the buffer protocol.
pub fn numbers(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let bytes = bytes(object)?;
    let (numbers, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(PyBufferError::new_err(format!("{} bytes are no 64-bit numbers", bytes.len())));
    }
    Ok(numbers.iter().map(|number| u64::from_ne_bytes(*number)).collect())
}

/// Copies the bytes of an object with the buffer protocol.
pub fn bytes(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut view = ffi::Py_buffer::new();
    // SAFETY: the object and the place for the view live during this call.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut view, ffi::PyBUF_SIMPLE) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let length = view.len as usize;
    let mut copy = Vec::<u8>::with_capacity(length);
    // SAFETY: a simple view has `len` contiguous bytes at `buf` until its release. The copy has room for them.
    unsafe {
        ptr::copy_nonoverlapping(view.buf.cast::<u8>(), copy.as_mut_ptr(), length);
        copy.set_len(length);
        ffi::PyBuffer_Release(&raw mut view);
    }
    Ok(copy)
}
