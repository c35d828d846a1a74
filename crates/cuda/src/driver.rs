//! Loading the driver, once a process.

use crate::error::{Error, Result, check};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// CUDA 12.8: the oldest driver with all the calls used (times between events of version 2 are the newest).
const NEEDED: i32 = 12080;

/// Calls a function of the driver, and names it and the device in the error.
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

/// Loads and initializes the driver; returns its version (13000 for CUDA 13.0).
pub(crate) fn load() -> Result<i32> {
    // The failure is kept as a function, for errors cannot be cloned.
    static STATE: OnceLock<std::result::Result<i32, fn() -> Error>> = OnceLock::new();
    static FAILED: OnceLock<(sys::CUresult, &'static str)> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        // SAFETY: loads a shared library by its well-known names; its initializers are the driver's.
        if !unsafe { sys::is_culib_present() } {
            return Err(|| Error::NoDriver);
        }
        prepare_environment();
        let mut version = 0;
        // SAFETY: plain calls with valid pointers; the library is there.
        let answer = unsafe { sys::cuDriverGetVersion(&mut version) };
        if answer == sys::CUresult::CUDA_SUCCESS && version < NEEDED {
            return Ok(version);
        }
        // SAFETY: as above.
        match unsafe { sys::cuInit(0) } {
            sys::CUresult::CUDA_SUCCESS => Ok(version),
            answer => {
                let _ = FAILED.set((answer, "cuInit"));
                Err(|| {
                    let (answer, call) = FAILED.get().expect("set before this was chosen");
                    check(*answer, call, || "CUDA driver".into()).expect_err("an error was kept")
                })
            }
        }
    });
    match state {
        Ok(version) if *version < NEEDED => Err(Error::DriverTooOld { found: *version, needed: NEEDED }),
        Ok(version) => Ok(*version),
        Err(make) => Err(make()),
    }
}

/// What the driver reads from the environment when it starts.
fn prepare_environment() {
    // Eager: a kernel loaded at its first launch would wait for a persistent one to end. 32 connections: streams that wait
    // for a value must not share a hardware queue with those that could give it.
    for (name, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")] {
        if std::env::var_os(name).is_none() {
            // SAFETY: runs once, at set-up before threads of inlane's read the environment; Rust's own readers take its lock.
            unsafe { std::env::set_var(name, value) };
        }
    }
}
