//! Compiles this crate's kernels for the installed GPU, and loads them. These are the kernels that fill,
//! check and copy memory, and the two kernels of staging by SMs.

use super::staging_words::layout_assertions;
use inlane_core::Result;
use inlane_cuda::{Gpu, Kernel, Module, Source, compile};
use std::sync::Arc;

const HEADERS: &[(&str, &str)] = &[
    inlane_cuda::SYSTEM_HEADER,
    ("copy.cuh", include_str!("copy.cuh")),
    ("staging.h", include_str!("staging.h")),
];

/// All kernels of this crate on one GPU. Load them before any kernel runs on the GPU, because loading waits
/// for running kernels.
#[derive(Clone)]
pub struct Kernels {
    /// Fills memory with the pattern of a seed.
    pub fill: Kernel,
    /// Counts the bytes that differ from the pattern.
    pub check: Kernel,
    /// Copies by the SMs.
    pub copy: Kernel,
    /// Runs on the source GPU of staging by SMs: pushes chunks into host memory.
    pub push: Kernel,
    /// Runs on the destination GPU of staging by SMs: pulls chunks out of host memory.
    pub pull: Kernel,
    /// True if `push` and `pull` record timestamps, which `INLANE_COPY_TRACE=1` requests.
    pub traced: bool,
}

impl Kernels {
    /// Compiles the kernels, or finds them in the cache, and loads them.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the run-time compiler is missing or the driver
    /// refuses.
    pub fn load(gpu: &Arc<Gpu>) -> Result<Self> {
        let module = |name, source, options| {
            let source = Source { name, source, headers: HEADERS, options };
            Module::load(gpu, &compile(&source, &gpu.info().arch())?)
        };
        let traced = std::env::var_os("INLANE_COPY_TRACE").is_some_and(|value| value != "0");
        let memory = module("memory.cu", include_str!("memory.cu"), &[])?;
        let staging = module("staging.cu", &staging(), if traced { &["-DTRACE"] } else { &[] })?;
        Ok(Self {
            fill: memory.kernel("fill")?,
            check: memory.kernel("check")?,
            copy: memory.kernel("copy")?,
            push: staging.kernel("push")?,
            pull: staging.kernel("pull")?,
            traced,
        })
    }
}

/// Returns the source of the staging kernels, with assertions about the words shared with the host.
fn staging() -> String {
    include_str!("staging.cu").to_owned() + &layout_assertions()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_compile_for_recent_architectures() {
        if let Err(missing) = inlane_cuda::compiler_version() {
            eprintln!("SKIPPED kernels_compile_for_recent_architectures: {missing}");
            return;
        }
        let staging = &staging();
        let sources: [(&str, &str, &[&str]); 3] = [
            ("memory.cu", include_str!("memory.cu"), &[]),
            ("staging.cu", staging, &[]),
            ("staging.cu", staging, &["-DTRACE"]),
        ];
        for (name, source, options) in sources {
            for arch in ["sm_80", "sm_90", "sm_100"] {
                let source = Source { name, source, headers: HEADERS, options };
                if let Err(error) = compile(&source, arch) {
                    panic!("{name} {arch}: {error}");
                }
            }
        }
    }
}
