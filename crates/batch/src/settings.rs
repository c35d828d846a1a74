//! The settings that C programs give.

use crate::status::{Failure, text};
use inlane_forward::batch::ReceiveSettings;
use inlane_forward::config::Config;
use std::ffi::{c_char, c_uint};
use std::time::Duration;

/// `struct inlane_settings`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GivenSettings {
    size: usize,
    function: *const c_char,
    cores: *const c_uint,
    core_count: usize,
    room: usize,
    batch_frames: usize,
    batch_wait_ns: u64,
    duration_ns: u64,
}

/// A copy of a program's settings. `None` and 0 stand for defaults.
#[derive(Default)]
pub struct Settings {
    function: Option<String>,
    cores: Vec<usize>,
    room: usize,
    batch_frames: usize,
    batch_wait_ns: u64,
    duration_ns: u64,
}

impl Settings {
    /// Copies the settings of a program. A null pointer stands for the defaults.
    ///
    /// # Safety
    /// `given` is null or points to a structure whose size its first member tells. The pointers in it are null or valid, as the header
    /// says.
    pub unsafe fn copy(given: *const GivenSettings) -> Result<Self, Failure> {
        if given.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: every version of the structure begins with its size. A structure of another size is not read.
        let size = unsafe { (&raw const (*given).size).read() };
        if size != size_of::<GivenSettings>() {
            let expected = size_of::<GivenSettings>();
            let why = format!(
                "it is {size}, and this library expects {expected}; begin with INLANE_SETTINGS of this library's header"
            );
            return Err(Failure::usage("size of the settings", why));
        }
        // SAFETY: the structure has the size of this version.
        let given = unsafe { given.read() };
        let cores = match (given.cores.is_null(), given.core_count) {
            (_, 0) => &[][..],
            (true, _) => return Err(Failure::usage("cores", "they are NULL, but core_count is not 0")),
            // SAFETY: the caller promises that many numbers.
            (false, count) => unsafe { std::slice::from_raw_parts(given.cores, count) },
        };
        let function = match given.function.is_null() {
            true => None,
            // SAFETY: the caller promises a C string.
            false => Some(unsafe { text(given.function, "function") }?.to_owned()),
        };
        Ok(Self {
            function,
            cores: cores.iter().map(|core| *core as usize).collect(),
            room: given.room,
            batch_frames: given.batch_frames,
            batch_wait_ns: given.batch_wait_ns,
            duration_ns: given.duration_ns,
        })
    }

    /// Changes a configuration as set.
    pub fn apply(&self, config: &mut Config) {
        if let Some(function) = &self.function {
            config.function = function.as_str().into();
        }
        config.cores = Some(self.cores.clone());
        if self.room > 0 {
            config.room = self.room;
        }
        config.duration = (self.duration_ns > 0).then(|| Duration::from_nanos(self.duration_ns));
    }

    /// Returns how frames are put into batches.
    pub fn batches(&self) -> ReceiveSettings {
        let usual = ReceiveSettings::default();
        ReceiveSettings {
            frames: if self.batch_frames == 0 { usual.frames } else { self.batch_frames },
            wait: if self.batch_wait_ns == 0 { usual.wait } else { Duration::from_nanos(self.batch_wait_ns) },
        }
    }
}
