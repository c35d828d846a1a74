//! Batches of frames as C sees them.

use crate::status::Failure;
use inlane_forward::batch::FrameBatch;

/// `struct inlane_batch`.
#[repr(C)]
pub struct Batch {
    count: usize,
    bytes: *const u8,
    ends: *const u64,
    times_ns: *const u64,
}

impl Batch {
    /// Returns the addresses of a batch. They are valid as long as it does not change.
    pub fn of(batch: &FrameBatch) -> Self {
        Self {
            count: batch.len(),
            bytes: batch.bytes.as_ptr(),
            ends: batch.ends.as_ptr(),
            times_ns: batch.times_ns.as_ptr(),
        }
    }

    /// Copies the frames of a program. Senders do not use their times.
    ///
    /// # Safety
    /// `ends` points to `count` offsets, and `bytes` to as many bytes as the last of them says.
    pub unsafe fn copy(&self) -> Result<FrameBatch, Failure> {
        let wrong = |why: &str| Err(Failure::usage("batch", why));
        if self.count == 0 {
            return Ok(FrameBatch::default());
        }
        if self.ends.is_null() {
            return wrong("ends is NULL; give the end of each frame");
        }
        // SAFETY: the caller promises that many offsets.
        let ends = unsafe { std::slice::from_raw_parts(self.ends, self.count) }.to_vec();
        if !ends.is_sorted() {
            return wrong("a frame ends before it begins; ends must not decrease");
        }
        let length = ends.last().map_or(0, |end| *end as usize);
        if self.bytes.is_null() && length > 0 {
            return wrong("bytes is NULL; give the bytes of the frames");
        }
        let bytes = match length {
            0 => Vec::new(),
            // SAFETY: the caller promises that many bytes.
            length => unsafe { std::slice::from_raw_parts(self.bytes, length) }.to_vec(),
        };
        Ok(FrameBatch { bytes, times_ns: vec![0; ends.len()], ends })
    }
}
