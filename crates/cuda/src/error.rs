//! Errors. Each names the failed call, the device, and what to do.

use cudarc::driver::sys::{self, CUresult};
use inlane_core::error::Class;
use inlane_core::setting::Subject;
use std::ffi::CStr;
use std::fmt;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that the CUDA driver or NVRTC returned, or an invalid argument for one of them. The message is the
/// [cause](Error::cause) and, after a semicolon, the [remedy](Error::remedy).
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// `libcuda` could not be loaded.
    NoDriver,
    /// The installed CUDA driver is older than inlane needs.
    DriverTooOld {
        /// The CUDA version that the driver supports, as 13000 for 13.0.
        found: i32,
        /// The oldest CUDA version that inlane works with, as 12080 for 12.8.
        needed: i32,
    },
    /// The requested device does not exist.
    NoDevice {
        /// The requested number.
        index: u32,
        /// The number of devices.
        count: u32,
    },
    /// A call to the driver failed.
    Call {
        /// The function's name.
        call: &'static str,
        /// The device or object that the function was called for.
        device: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's description of the error.
        meaning: String,
        /// What the user can do.
        remedy: &'static str,
        /// The driver's number of the error.
        code: u32,
    },
    /// The run-time compiler could not be loaded.
    NoCompiler {
        /// The library files that inlane tried to load, and why each could not be loaded.
        tried: String,
    },
    /// A call to the run-time compiler failed, but not because of an error in the source.
    Compiler {
        /// The compiler's version.
        version: String,
        /// The function's name.
        call: &'static str,
        /// The compiler's description of the error.
        meaning: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The source does not compile.
    DoesNotCompile {
        /// The source's name.
        name: String,
        /// The architecture.
        arch: String,
        /// The compiler's messages, which name the source's files and lines.
        log: String,
    },
    /// An argument is invalid, or the device does not support it.
    Invalid {
        /// The argument or object.
        what: Subject,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause())?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

fn count_text(count: u32) -> String {
    match count {
        0 => "the driver sees no GPU".into(),
        1 => "there is one GPU, gpu:0".into(),
        n => format!("there are gpu:0 to gpu:{}", n - 1),
    }
}

impl Error {
    /// Returns an [`Error::Invalid`].
    pub(crate) fn invalid(what: impl Into<Subject>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }

    /// Returns the failed object and what was found.
    pub fn cause(&self) -> String {
        match self {
            Error::NoDriver => "no CUDA driver: cannot load libcuda.so.1".into(),
            Error::DriverTooOld { found, needed } => {
                let version = |number: &i32| format!("{}.{}", number / 1000, number % 1000 / 10);
                let (found, needed) = (version(found), version(needed));
                format!("the CUDA driver is too old: it supports CUDA {found}, and inlane needs {needed}")
            }
            Error::NoDevice { index, count } => format!("gpu:{index} does not exist: {}", count_text(*count)),
            Error::Call { call, device, name, meaning, .. } => {
                format!("{device}: {call} failed: {name} ({meaning})")
            }
            Error::NoCompiler { tried } => format!("no NVRTC, CUDA's run-time compiler: tried {tried}"),
            Error::Compiler { version, call, meaning, .. } => {
                format!("NVRTC {version}: {call} failed: {meaning}")
            }
            Error::DoesNotCompile { name, arch, log } => {
                format!("{name}: it does not compile for {arch}:\n{log}")
            }
            Error::Invalid { what, why } => format!("{what}: {why}"),
        }
    }

    /// Returns what to do. `None` if the cause already says it.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Error::NoDriver => Some("install NVIDIA's driver, version 570 or newer"),
            Error::DriverTooOld { .. } => Some("install a newer NVIDIA driver"),
            Error::NoDevice { .. } => Some("list them with 'inlane topo'"),
            Error::Call { remedy, .. } | Error::Compiler { remedy, .. } => Some(remedy),
            Error::NoCompiler { .. } => Some(
                "install it with 'pip install nvidia-cuda-nvrtc==13.0.*' (drivers before 580: \
                 nvidia-cuda-nvrtc-cu12==12.8.*), or set INLANE_NVRTC to a libnvrtc.so",
            ),
            Error::DoesNotCompile { .. } | Error::Invalid { .. } => None,
        }
    }

    /// Returns the class of this error. The class determines the exit status of the command.
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
    // These codes mean that the machine is not ready: out of memory, stub library, device unavailable, no
    // device, invalid device, not permitted, not supported, driver mismatch, compatibility mode unsupported.
    matches!(code, 2 | 34 | 46 | 100 | 101 | 800 | 801 | 803 | 804)
}

impl From<Error> for inlane_core::Error {
    fn from(error: Error) -> Self {
        let class = error.class();
        inlane_core::Error::other(error, class)
    }
}

/// Converts the return code of a driver call to a result. `device` returns the name of the device for the
/// error. It is called only after an error, because formatting costs time.
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
        // SAFETY: the driver is loaded. `get` sets the pointer to a static string, or leaves it null.
        unsafe {
            get(answer, &mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    Error::Call {
        call,
        device,
        name: text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", answer as u32)),
        meaning: text(sys::cuGetErrorString).unwrap_or_else(|| "this driver has no description".into()),
        remedy: remedy(answer),
        code: answer as u32,
    }
}

fn remedy(answer: CUresult) -> &'static str {
    use CUresult::*;
    match answer {
        CUDA_ERROR_OUT_OF_MEMORY => {
            "give less, or end other processes that use the GPU (nvidia-smi lists them)"
        }
        CUDA_ERROR_NO_DEVICE => {
            "check that 'nvidia-smi -L' lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it"
        }
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the kernel module and libcuda have different versions; reload the module or reboot"
        }
        CUDA_ERROR_STUB_LIBRARY => {
            "a stub libcuda.so was loaded; remove CUDA's stubs directory from LD_LIBRARY_PATH"
        }
        CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process uses it exclusively (compute mode), or it needs a reset; see nvidia-smi"
        }
        CUDA_ERROR_NO_BINARY_FOR_GPU => {
            "the code is for another architecture; delete the kernel cache (~/.cache/inlane/kernels)"
        }
        CUDA_ERROR_ILLEGAL_ADDRESS | CUDA_ERROR_MISALIGNED_ADDRESS | CUDA_ERROR_INVALID_ADDRESS_SPACE => {
            "a kernel accessed an invalid address; run under compute-sanitizer to find the line"
        }
        CUDA_ERROR_LAUNCH_FAILED | CUDA_ERROR_ILLEGAL_INSTRUCTION | CUDA_ERROR_ASSERT => {
            "a kernel failed; run under compute-sanitizer to find the line"
        }
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES | CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => {
            "use fewer blocks, or fewer threads per block"
        }
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => "register the memory only once",
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
            "these devices cannot access each other's memory; use a path through the host"
        }
        CUDA_ERROR_NOT_PERMITTED | CUDA_ERROR_NOT_SUPPORTED => {
            "this device or driver does not support it; choose another method"
        }
        CUDA_ERROR_ECC_UNCORRECTABLE => "the GPU's memory has errors; see 'nvidia-smi -q -d ECC'",
        _ => "look for the cause in the driver's log: dmesg | grep NVRM",
    }
}
