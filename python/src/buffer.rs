//! Memory that Python's buffer protocol gives to NumPy and others without a copy.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, Mutex};

/// A piece of memory. It is writable, and Rust does not access it while Python has it.
#[pyclass(frozen)]
pub struct Buffer {
    /// The start, the length and the capacity of a vector.
    memory: (*mut u8, usize, usize),
    /// Where the memory goes when Python no longer has it. `None` frees it.
    spare: Option<Arc<Spare>>,
}

/// Memory of former buffers. New memory costs a page fault for every 4 KiB, which takes longer than to write numbers there.
#[derive(Default)]
pub struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// The most pieces that are kept.
    const MOST: usize = 8;

    fn take(&self) -> Vec<u8> {
        self.0.lock().ok().and_then(|mut pieces| pieces.pop()).unwrap_or_default()
    }

    fn put(&self, memory: Vec<u8>) {
        if let Ok(mut pieces) = self.0.lock()
            && pieces.len() < Self::MOST
        {
            pieces.push(memory);
        }
    }
}

// SAFETY: the buffer owns its memory, and only programs that got it by the buffer protocol access it. As with every writable buffer of
// Python, they must agree among themselves when several threads use it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        Self::new(bytes, None)
    }

    fn new(bytes: Vec<u8>, spare: Option<Arc<Spare>>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        Self { memory: (bytes.as_mut_ptr(), bytes.len(), bytes.capacity()), spare }
    }

    /// Creates a buffer of 64-bit numbers in the machine's byte order.
    pub fn of_numbers(numbers: impl ExactSizeIterator<Item = u64>) -> Self {
        let mut bytes = vec![0; numbers.len() * 8];
        for (place, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
            *place = number.to_ne_bytes();
        }
        Self::of_bytes(bytes)
    }

    /// Creates a buffer of 64-bit numbers: first those on the left of all pairs, then those on the right. Takes memory from `spare`, and
    /// gives it back there.
    pub fn of_pairs(pairs: impl ExactSizeIterator<Item = (u64, u64)>, spare: &Arc<Spare>) -> Self {
        let mut bytes = spare.take();
        let half = pairs.len() * 8;
        bytes.resize(2 * half, 0);
        let (left, right) = bytes.split_at_mut(half);
        let places = left.as_chunks_mut().0.iter_mut().zip(right.as_chunks_mut().0);
        for ((left, right), pair) in places.zip(pairs) {
            (*left, *right) = (pair.0.to_ne_bytes(), pair.1.to_ne_bytes());
        }
        Self::new(bytes, Some(Arc::clone(spare)))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (start, length, capacity) = self.memory;
        // SAFETY: the parts are those of a vector that `new` has not dropped. Each view holds a reference to this object, so no view is left.
        let memory = unsafe { Vec::from_raw_parts(start, length, capacity) };
        if let Some(spare) = &self.spare {
            spare.put(memory);
        }
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.memory.1
    }

    /// Gives a view of the memory to Python.
    ///
    /// # Safety
    /// Python calls this with a view that it wants filled in.
    unsafe fn __getbuffer__(slf: PyRef<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let (start, length) = (slf.memory.0.cast(), slf.memory.1 as ffi::Py_ssize_t);
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
