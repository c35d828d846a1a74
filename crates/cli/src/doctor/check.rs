//! The outcome of one check of `inlane doctor`: what was checked, the result, the findings, and how to fix a
//! problem.

use schemars::JsonSchema;
use serde::Serialize;

/// The checks, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// DPDK's packet drivers and buffers.
    Dpdk,
    /// Large pages for packet buffers.
    Hugepages,
    /// Capabilities of this process.
    Privileges,
    /// The limit of memory that may be pinned.
    MemoryLock,
    /// AF_XDP: sockets that share packet buffers with the driver of a network interface.
    AfXdp,
    /// AF_PACKET: sockets that receive and send whole Ethernet frames.
    AfPacket,
    /// Virtual network interfaces that connect a program with the kernel (`tap:`).
    Tun,
    /// Ports to other DPDK programs through shared memory.
    Memif,
    /// An NVIDIA GPU, its kernel driver and libcuda.
    Gpu,
    /// The run-time compiler of CUDA.
    Nvrtc,
    /// GDRCopy, which maps GPU memory for the CPU.
    Gdrcopy,
    /// The IOMMU, which translates the addresses that devices access.
    Iommu,
    /// VFIO, which gives PCI devices to user-space programs.
    Vfio,
    /// The width and speed of PCIe links.
    PcieLinks,
    /// The NUMA nodes of memory and cores.
    Numa,
    /// The kernel's policy for the clock frequency of cores (CPU governor).
    CpuGovernor,
    /// The quota of processor time that a control group sets.
    CpuQuota,
    /// Isolated cores: cores on which the scheduler starts no other programs.
    IsolatedCores,
    /// The clock source from which the kernel reads timestamps.
    ClockSource,
    /// Virtual machines for tests with PCI devices.
    Lab,
}

impl Name {
    /// Returns the name as the user types it.
    pub fn text(self) -> String {
        use clap::ValueEnum;
        // clap returns `None` only for hidden names, and no name is hidden.
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}

/// The state of one checked part of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The part works.
    Ok,
    /// The checked part of the machine works, but slower than it could or without some feature.
    Degraded,
    /// The checked part of the machine does not work, so features that need it cannot run.
    Missing,
}

impl State {
    /// Returns the word that the report shows for the state.
    pub fn text(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Missing => "missing",
        }
    }
}

/// The outcome of checking one part of the machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// The part that was checked.
    pub name: Name,
    /// Whether the part works.
    pub state: State,
    /// What was found.
    pub evidence: String,
    /// What the part is needed for, or what its absence costs.
    pub purpose: &'static str,
    /// What fixes the part: commands to type, or what to change if no command does it. Empty if the part is
    /// ok.
    pub fixes: Vec<String>,
}

impl Check {
    /// Creates the outcome of a part that works.
    pub fn ok(name: Name, purpose: &'static str, evidence: impl Into<String>) -> Self {
        Self { name, state: State::Ok, evidence: evidence.into(), purpose, fixes: Vec::new() }
    }

    /// Changes the outcome to degraded, and adds a fix.
    pub fn degraded(mut self, fix: impl Into<String>) -> Self {
        self.state = State::Degraded;
        self.fixes.push(fix.into());
        self
    }

    /// Changes the outcome to missing, and adds a fix.
    pub fn missing(mut self, fix: impl Into<String>) -> Self {
        self.state = State::Missing;
        self.fixes.push(fix.into());
        self
    }
}
