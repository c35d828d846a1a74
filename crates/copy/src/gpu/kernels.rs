//! The kernels of this crate, compiled for the GPU that is there and loaded before anything runs on it.

use inlane_core::Result;
use inlane_cuda::{Gpu, Kernel, Module, Source, compile};
use std::sync::Arc;

const HEADERS: &[(&str, &str)] = &[inlane_cuda::SYSTEM_HEADER, ("copy.cuh", include_str!("copy.cuh"))];

/// All kernels on one GPU.
#[derive(Clone)]
pub struct Kernels {
    /// Fills memory with the pattern of a seed.
    pub fill: Kernel,
    /// Counts bytes that differ from it.
    pub check: Kernel,
    /// One copy by the SMs.
    pub copy: Kernel,
    /// The side of staging that writes to the host.
    pub push: Kernel,
    /// The side that reads from it.
    pub pull: Kernel,
    /// These two note times.
    pub traced: bool,
}

impl Kernels {
    /// Compiles (or finds in the cache) and loads them.
    ///
    /// # Errors
    /// When the run-time compiler is missing, or the driver refuses.
    pub fn load(gpu: &Arc<Gpu>) -> Result<Self> {
        let module = |name, source, options| {
            let program = Source { name, source, headers: HEADERS, options };
            Module::load(gpu, &compile(&program, &gpu.info().arch())?)
        };
        let traced = std::env::var_os("INLANE_COPY_TRACE").is_some_and(|value| value != "0");
        let memory = module("memory.cu", include_str!("memory.cu"), &[])?;
        let staging =
            module("staging.cu", include_str!("staging.cu"), if traced { &["-DTRACE"] } else { &[] })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_compile_for_every_recent_architecture() {
        if let Err(missing) = inlane_cuda::compiler_version() {
            eprintln!("SKIPPED they_compile_for_every_recent_architecture: {missing}");
            return;
        }
        let staging = include_str!("staging.cu");
        let sources: [(&str, &str, &[&str]); 3] = [
            ("memory.cu", include_str!("memory.cu"), &[]),
            ("staging.cu", staging, &[]),
            ("staging.cu", staging, &["-DTRACE"]),
        ];
        for (name, source, options) in sources {
            for arch in ["sm_80", "sm_90", "sm_100"] {
                let program = Source { name, source, headers: HEADERS, options };
                if let Err(error) = compile(&program, arch) {
                    panic!("{name} {arch}: {error}");
                }
            }
        }
    }
}
