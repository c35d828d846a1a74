//! The errors of this crate: each names the call, the device and the remedy.

use cudarc::driver::sys::{self, CUresult};
use inlane_core::error::Class;
use std::ffi::CStr;

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between here and a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `libcuda` could not be loaded.
    #[error("no CUDA driver: libcuda.so.1 cannot be loaded; install NVIDIA's driver (570 or newer)")]
    NoDriver,
    /// The driver is older than what is needed.
    #[error(
        "the CUDA driver is too old: it supports CUDA {}.{}, inlane needs {}.{}; install a newer NVIDIA driver",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    DriverTooOld {
        /// What `cuDriverGetVersion` said.
        found: i32,
        /// The least that works.
        needed: i32,
    },
    /// A device was asked for that is not there.
    #[error("gpu:{index} does not exist: {}; list them with 'inlane topo'", count_text(*count))]
    NoDevice {
        /// Its number.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A call of the driver failed.
    #[error("{device}: {call} failed: {name} ({meaning}); {remedy}")]
    Call {
        /// The function's name.
        call: &'static str,
        /// On which device.
        device: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's words for it.
        meaning: String,
        /// What to do.
        remedy: &'static str,
        /// The driver's number of it.
        code: u32,
    },
    /// The run-time compiler could not be loaded.
    #[error(
        "no NVRTC (the run-time compiler of CUDA): tried {tried}; install it with \
         'pip install nvidia-cuda-nvrtc==13.0.*', or set INLANE_NVRTC to a libnvrtc.so"
    )]
    NoCompiler {
        /// Where it was looked for.
        tried: String,
    },
    /// A call of the run-time compiler failed other than by the source's fault.
    #[error("NVRTC {version}: {call} failed: {meaning}; {remedy}")]
    Compiler {
        /// The compiler's version.
        version: String,
        /// The function's name.
        call: &'static str,
        /// Its words for it.
        meaning: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A source did not compile.
    #[error("{name} does not compile for {arch}:\n{log}")]
    DoesNotCompile {
        /// The source's name.
        name: String,
        /// The architecture.
        arch: String,
        /// The compiler's messages, with the source's own names and lines.
        log: String,
    },
    /// An argument that makes no sense, or that the device cannot do.
    #[error("{what}: {why}")]
    Invalid {
        /// The argument or object.
        what: String,
        /// What is wrong, and what to give instead.
        why: String,
    },
}

fn count_text(count: u32) -> String {
    match count {
        0 => "the driver sees no GPU".into(),
        1 => "there is one GPU, gpu:0".into(),
        n => format!("there are gpu:0 to gpu:{}", n - 1),
    }
}

impl Error {
    /// Makes an [`Error::Invalid`].
    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }

    /// What a caller can do about it.
    pub fn class(&self) -> Class {
        match self {
            Error::NoDriver
            | Error::DriverTooOld { .. }
            | Error::NoCompiler { .. }
            | Error::Compiler { .. } => Class::Environment,
            Error::NoDevice { count: 0, .. } => Class::Environment,
            Error::NoDevice { .. } | Error::DoesNotCompile { .. } | Error::Invalid { .. } => Class::Usage,
            Error::Call { code, .. } if is_environment(*code) => Class::Environment,
            Error::Call { .. } => Class::Failed,
        }
    }
}

fn is_environment(code: u32) -> bool {
    // Out of memory, stub library, unavailable, no device, not permitted, driver mismatch and its kin.
    matches!(code, 2 | 34 | 46 | 100 | 101 | 800 | 801 | 803 | 804)
}

impl From<Error> for inlane_core::Error {
    fn from(error: Error) -> Self {
        inlane_core::Error::Device { class: error.class(), why: error.to_string(), device: "CUDA".into() }
    }
}

/// Turns a driver's answer into a result. `device` is only called for an error.
pub(crate) fn check(answer: CUresult, call: &'static str, device: impl FnOnce() -> String) -> Result<()> {
    match answer {
        CUresult::CUDA_SUCCESS => Ok(()),
        answer => Err(describe(answer, call, device())),
    }
}

#[cold]
fn describe(answer: CUresult, call: &'static str, device: String) -> Error {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver answered, so it is loaded; it gives a static string or leaves null.
        unsafe {
            get(answer, &mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    Error::Call {
        call,
        device,
        name: text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", answer as u32)),
        meaning: text(sys::cuGetErrorString).unwrap_or_else(|| "unknown to this driver".into()),
        remedy: remedy(answer),
        code: answer as u32,
    }
}

fn remedy(answer: CUresult) -> &'static str {
    use CUresult::*;
    match answer {
        CUDA_ERROR_OUT_OF_MEMORY => "ask for less, or end what else holds memory (nvidia-smi lists it)",
        CUDA_ERROR_NO_DEVICE => {
            "look whether 'nvidia-smi -L' lists one, and whether CUDA_VISIBLE_DEVICES hides it"
        }
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the kernel's driver and libcuda differ in version: reload the module or reboot"
        }
        CUDA_ERROR_STUB_LIBRARY => {
            "a stub libcuda.so was found first: take CUDA's stubs folder off LD_LIBRARY_PATH"
        }
        CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process holds it exclusively (compute mode), or it waits for a reset: see nvidia-smi"
        }
        CUDA_ERROR_NO_BINARY_FOR_GPU => "it was compiled for another architecture: clear the kernel cache",
        CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_MISALIGNED_ADDRESS | CUDA_ERROR_INVALID_ADDRESS_SPACE => {
            "a kernel touched memory that is not its own; run under compute-sanitizer to see which line"
        }
        CUDA_ERROR_LAUNCH_FAILED | CUDA_ERROR_ILLEGAL_INSTRUCTION | CUDA_ERROR_ASSERT => {
            "a kernel failed; run under compute-sanitizer to see which line"
        }
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES | CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
            "ask for fewer blocks, or fewer threads a block"
        }
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => "register it once only",
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
            "these two devices cannot reach each other: use a path through the host"
        }
        CUDA_ERROR_NOT_PERMITTED | CUDA_ERROR_NOT_SUPPORTED => {
            "this device or driver cannot do it: choose another method"
        }
        CUDA_ERROR_ECC_UNCORRECTABLE => "the GPU's memory is damaged: see 'nvidia-smi -q -d ECC'",
        _ => "see the driver's log with 'dmesg | grep NVRM'",
    }
}
