//! What a check says, and the names by which `--require` asks for one.

use schemars::JsonSchema;
use serde::Serialize;

/// The checks, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Packet drivers and buffers.
    Dpdk,
    /// Large pages for packet buffers.
    Hugepages,
    /// Capabilities of this process.
    Privileges,
    /// Limit of memory that may be pinned.
    MemoryLock,
    /// Sockets that share buffers with a network driver.
    AfXdp,
    /// Sockets that take whole frames.
    AfPacket,
    /// Virtual interfaces towards the kernel (`tap:`).
    Tun,
    /// Shared-memory ports towards other DPDK programs.
    Memif,
    /// NVIDIA GPU, kernel driver and libcuda.
    Gpu,
    /// CUDA's run-time compiler.
    Nvrtc,
    /// GPU memory mapped to the CPU.
    Gdrcopy,
    /// Address translation for devices.
    Iommu,
    /// Devices handed to user space.
    Vfio,
    /// Width and speed of PCIe links against what the devices can do.
    PcieLinks,
    /// Memory near to cores and devices.
    Numa,
    /// Clock frequency policy.
    CpuGovernor,
    /// Cores that the scheduler leaves alone.
    IsolatedCores,
    /// The clock behind timestamps.
    ClockSource,
    /// Virtual machines of the lab.
    Lab,
}

impl Name {
    /// As the user types it.
    pub fn text(self) -> String {
        use clap::ValueEnum;
        // Every name is a possible value: none is marked as skipped.
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}

/// How a part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing to do.
    Ok,
    /// It works, and slower or with less than it could.
    Degraded,
    /// What needs it cannot run.
    Missing,
}

impl State {
    /// As it is shown.
    pub fn text(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Missing => "missing",
        }
    }
}

/// One part of the machine, and how it stands.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// Which part.
    pub name: Name,
    /// How it stands.
    pub state: State,
    /// What was seen.
    pub evidence: String,
    /// What it is needed for, or what it costs.
    pub matters: &'static str,
    /// What mends it: commands to type, or what to change where no command does.
    pub remedy: Vec<String>,
}

impl Check {
    /// A part with nothing to mend.
    pub fn ok(name: Name, matters: &'static str, evidence: impl Into<String>) -> Self {
        Self { name, state: State::Ok, evidence: evidence.into(), matters, remedy: Vec::new() }
    }

    /// The same check, degraded, with what mends it.
    pub fn degraded(mut self, remedy: impl Into<String>) -> Self {
        self.state = State::Degraded;
        self.remedy.push(remedy.into());
        self
    }

    /// The same check, missing, with what mends it.
    pub fn missing(mut self, remedy: impl Into<String>) -> Self {
        self.state = State::Missing;
        self.remedy.push(remedy.into());
        self
    }
}
