//! Executors, which run the packet function on threads of the CPU or on a GPU.

use crate::error::{Error, Result};
use crate::field;
use crate::gpu::{self, Memory};
use crate::method::Method;
use inlane_core::setting::Subject;
use std::fmt;
use std::str::FromStr;

/// A device that can run packet functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU with this CUDA index.
    Gpu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Gpu(index) => write!(f, "gpu:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let gpu = text.strip_prefix("gpu:").and_then(|index| index.parse().ok());
        match text {
            "cpu" => Ok(Device::Cpu),
            "gpu" => Ok(Device::Gpu(0)),
            _ => gpu.map(Device::Gpu).ok_or_else(|| {
                Error::config(field::ON.with(text), "choose one of cpu, gpu:N (gpu:0 is the first GPU)")
            }),
        }
    }
}

/// A method of the CPU with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMethod {
    /// One thread does everything.
    Single,
    /// One thread receives and sends. `workers` further threads run the packet function.
    Split {
        /// Worker threads, at least 1.
        workers: usize,
    },
}

/// The device that runs the packet function, and its settings.
#[derive(Clone, Debug)]
pub enum Executor {
    /// Threads of the CPU.
    Cpu(CpuMethod),
    /// A GPU.
    Gpu {
        /// The GPU's CUDA index.
        index: u32,
        /// The executor's method, and the settings that only a GPU has.
        settings: gpu::Settings,
    },
}

impl Default for Executor {
    fn default() -> Self {
        Executor::Cpu(CpuMethod::Single)
    }
}

impl Executor {
    /// Creates the executor that the settings describe. 0 `workers` stands for one. `method` replaces
    /// `gpu.method`.
    ///
    /// # Errors
    /// [`Error::Config`] if the device lacks the method or one of the settings.
    pub fn new(device: Device, method: Method, workers: usize, gpu: gpu::Settings) -> Result<Self> {
        if workers > 64 {
            return Err(Error::config(field::WORKERS.with(workers), "give 0 to 64"));
        }
        if workers > 0 && (device, method) != (Device::Cpu, Method::Split) {
            return Err(Error::config(
                field::WORKERS,
                format!(
                    "only {} on the CPU has workers; use that method or leave {} out",
                    field::METHOD.with(Method::Split),
                    field::WORKERS
                ),
            ));
        }
        if let Device::Gpu(index) = device {
            return Ok(Executor::Gpu { index, settings: gpu::Settings { method, ..gpu } });
        }
        let on_gpu = field::ON.with(Device::Gpu(0));
        if let Some(setting) = gpu_setting(&gpu) {
            return Err(Error::config(
                setting,
                format!("it applies to GPUs only; add {on_gpu} or leave it out"),
            ));
        }
        match method {
            Method::Single => Ok(Executor::Cpu(CpuMethod::Single)),
            Method::Split => Ok(Executor::Cpu(CpuMethod::Split { workers: workers.max(1) })),
            _ => Err(Error::config(
                field::METHOD.with(method),
                format!("the CPU supports single and split; add {on_gpu} for the others"),
            )),
        }
    }

    /// Returns the same executor with another method, or `None` if the device lacks it.
    pub fn with_method(&self, method: Method) -> Option<Self> {
        Some(match (self, method) {
            (Executor::Gpu { index, settings }, _) => {
                Executor::Gpu { index: *index, settings: gpu::Settings { method, ..settings.clone() } }
            }
            (Executor::Cpu(_), Method::Single) => Executor::Cpu(CpuMethod::Single),
            (Executor::Cpu(_), Method::Split) => Executor::Cpu(CpuMethod::Split { workers: self.workers() }),
            _ => return None,
        })
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        match self {
            Executor::Cpu(_) => Device::Cpu,
            Executor::Gpu { index, .. } => Device::Gpu(*index),
        }
    }

    /// Returns the method.
    pub fn method(&self) -> Method {
        match self {
            Executor::Cpu(CpuMethod::Single) => Method::Single,
            Executor::Cpu(CpuMethod::Split { .. }) => Method::Split,
            Executor::Gpu { settings, .. } => settings.method,
        }
    }

    /// Returns the memory that packets for the GPU lie in. `None` for the CPU.
    pub fn gpu_memory(&self) -> Option<Memory> {
        match self {
            Executor::Cpu(_) => None,
            Executor::Gpu { settings, .. } => Some(settings.memory),
        }
    }

    /// Returns the number of threads of one pipeline that run the packet function. Returns 1 for method
    /// `single` and for a GPU.
    pub fn workers(&self) -> usize {
        match self {
            Executor::Cpu(CpuMethod::Split { workers }) => *workers,
            _ => 1,
        }
    }

    /// Returns the number of all CPU threads of one pipeline.
    pub fn threads(&self) -> usize {
        match self {
            Executor::Cpu(CpuMethod::Single) => 1,
            Executor::Cpu(CpuMethod::Split { workers }) => 1 + workers,
            Executor::Gpu { settings, .. } => 1 + usize::from(settings.method.has_feeder()),
        }
    }

    /// Returns the number of slots in each pipeline's burst ring, or 0 if the method has no ring. `asked` is
    /// the number in the settings. A GPU executor may change it to a number that suits its blocks or streams.
    pub(crate) fn slots(&self, asked: usize, burst: usize) -> usize {
        match self {
            Executor::Cpu(CpuMethod::Single) => 0,
            Executor::Cpu(CpuMethod::Split { .. }) => asked,
            Executor::Gpu { settings, .. } => settings.slots_for(asked, burst),
        }
    }
}

/// Returns the first setting of a GPU whose value is not the default.
fn gpu_setting(set: &gpu::Settings) -> Option<Subject> {
    let default = gpu::Settings::default();
    let memory = match set.memory {
        Memory::Split(bytes) => field::HEADER_SPLIT.with(bytes),
        memory => field::MEMORY.with(memory),
    };
    let settings: [(Subject, bool); 9] = [
        (memory.into(), set.memory != default.memory),
        (field::BLOCKS.into(), set.blocks != default.blocks),
        (field::THREADS.into(), set.threads != default.threads),
        (field::STREAMS.into(), set.streams != default.streams),
        (field::GRAPH_ITEMS.into(), set.graph_items != default.graph_items),
        (field::GRAPH_BRANCHES.into(), set.graph_branches != default.graph_branches),
        (field::PAUSE.into(), set.pause != default.pause),
        (field::PRIORITY.into(), set.high_priority != default.high_priority),
        (field::MEASURE_PCIE.into(), set.measure_pcie != default.measure_pcie),
    ];
    settings.into_iter().find(|(_, is_set)| *is_set).map(|(setting, _)| setting)
}
