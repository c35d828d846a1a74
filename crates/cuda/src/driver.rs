//! Loads and initializes the CUDA driver, once per process.

use crate::error::{Error, Result, check};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// CUDA 12.8, the oldest version with all functions used here. The newest of them is `cuEventElapsedTime_v2`.
const NEEDED: i32 = 12080;

/// Calls a driver function. An error names the function and the device.
macro_rules! call {
    ($device:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        $crate::error::check(
            cudarc::driver::sys::$function($($argument),*),
            stringify!($function),
            || $device.to_string(),
        )
    };
}
pub(crate) use call;

/// Loads and initializes the driver, unless this has already happened. Returns the CUDA version that the
/// driver supports, as 13000 for 13.0.
pub(crate) fn load() -> Result<i32> {
    // The version, or the driver's answer if it did not start. `None` if there is no driver.
    static STATE: OnceLock<Option<std::result::Result<i32, sys::CUresult>>> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        // SAFETY: the call loads the driver's library by its well-known names. The library's initializers
        // have no requirements.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        prepare_environment();
        let mut version = 0;
        // SAFETY: the library is loaded, and the pointer is valid.
        let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
        if answer == sys::CUresult::CUDA_SUCCESS && version < NEEDED {
            return Some(Ok(version));
        }
        // SAFETY: the library is loaded.
        match unsafe { sys::cuInit(0) } {
            sys::CUresult::CUDA_SUCCESS => Some(Ok(version)),
            answer => Some(Err(answer)),
        }
    });
    match *state {
        None => Err(Error::NoDriver),
        Some(Ok(found)) if found < NEEDED => Err(Error::DriverTooOld { found, needed: NEEDED }),
        Some(Ok(version)) => Ok(version),
        Some(Err(answer)) => check(answer, "cuInit", || "CUDA driver".into()).map(|()| 0),
    }
}

/// Sets environment variables for the driver, which reads them when it starts. Keeps variables that the user
/// has set.
fn prepare_environment() {
    // Load kernels eagerly. A kernel that is loaded at its first launch would wait for persistent kernels to
    // end. Use 32 hardware queues ("connections") for streams. A stream that waits for a value must not share
    // a queue with the stream that writes this value.
    for (name, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")] {
        if std::env::var_os(name).is_none() {
            // SAFETY: this code runs once, before the driver is initialized. `std::env` holds a lock against
            // other Rust code. C code in other threads takes no such lock, so it must not read the
            // environment now.
            unsafe { std::env::set_var(name, value) };
        }
    }
}
