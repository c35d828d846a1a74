//! What a user can ask of a run.

use crate::error::{Error, Result};
use crate::gpu::{self, Memory};
use crate::pipeline::PipelineSettings;
use inlane_core::ring::layout::{MAX_BURST, MAX_SLOTS};
use inlane_core::units::Rate;
use inlane_ports::pcap::Playback;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Where packets come from and go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// From one port to one or several others.
    OneWay {
        /// The port received from.
        rx: String,
        /// The ports sent to; a verdict that names port n means the nth.
        tx: Vec<String>,
    },
    /// Between two ports, both ways.
    Between(String, String),
}

/// How control flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// One thread receives, processes and sends.
    #[default]
    Single,
    /// One thread receives and sends, others process. On a GPU: the other launches a kernel a burst.
    Split,
    /// On a GPU: a kernel that runs for good takes items from the ring.
    Persistent,
    /// On a GPU: pre-posted wait-value and kernel in streams; one kernel for all items that came before they could be waited for.
    Stream,
    /// On a GPU: graphs of the same, a stretch of items each.
    Graph,
}

impl Method {
    /// All of them, as a GPU has them.
    pub const ALL: [Method; 5] =
        [Method::Single, Method::Split, Method::Persistent, Method::Stream, Method::Graph];

    /// The CPU has it, too.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Method::Single | Method::Split)
    }

    /// On a GPU a thread of its own gives it its work, beside the one that moves packets.
    pub(crate) fn has_feeder(&self) -> bool {
        matches!(self, Method::Split | Method::Stream | Method::Graph)
    }
}

/// A job beside the pipelines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compete {
    /// There is none.
    #[default]
    None,
    /// Arithmetic on every multiprocessor, or on the pipelines' cores.
    Compute,
    /// Arithmetic in blocks that take a multiprocessor each, as matrix products do.
    Large,
}

impl fmt::Display for Compete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compete::None => "none",
            Compete::Compute => "compute",
            Compete::Large => "large",
        })
    }
}

/// Which executor runs the packet function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// GPU n.
    Gpu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Gpu(n) => write!(f, "gpu:{n}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let gpu = text.strip_prefix("gpu:").and_then(|n| n.parse().ok());
        match text {
            "cpu" => Ok(Device::Cpu),
            "gpu" => Ok(Device::Gpu(0)),
            _ => gpu.map(Device::Gpu).ok_or_else(|| {
                Error::config(format!("--on {text}"), "write cpu, or gpu:0 for the first GPU")
            }),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Single => "single",
            Method::Split => "split",
            Method::Persistent => "persistent",
            Method::Stream => "stream",
            Method::Graph => "graph",
        })
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.to_string() == text).ok_or_else(|| {
            Error::config(
                format!("--method {text}"),
                "choose single or split, or on a GPU also persistent, stream or graph",
            )
        })
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct Config {
    /// From where to where.
    pub route: Route,
    /// The packet function, as on the command line.
    pub function: String,
    /// What runs the function.
    pub on: Device,
    /// How control flows.
    pub method: Method,
    /// How a GPU is used; its method is the one above.
    pub gpu: gpu::Settings,
    /// Threads that process beside the one that receives and sends (`split` on the CPU only); 0 for one.
    pub workers: usize,
    /// How many pipelines a direction has, each with its queue and threads.
    pub pipelines: u16,
    /// How each is driven.
    pub drive: PipelineSettings,
    /// Offer no more than this. A generator that is asked late sends late, with the due times that packets had; what another
    /// port misses meanwhile, it counts itself.
    pub rate: Option<Rate>,
    /// Make this process an ordinary user once ports that took privileges are open.
    pub drop_privileges: bool,
    /// How a capture is played.
    pub playback: Playback,
    /// End after this long.
    pub duration: Option<Duration>,
    /// Cores to bind threads to; `None` to choose among those allowed, empty to bind none.
    pub cores: Option<Vec<usize>>,
    /// Buffers of each pipeline's pool; 0 for as many as its ring can hold and some in hand.
    pub buffers: usize,
    /// Bytes that a buffer holds.
    pub room: usize,
    /// Write what is sent to this capture too.
    pub capture: Option<PathBuf>,
    /// Disturb what is received: see [`inlane_ports::wrap::fault`].
    pub faults: Option<String>,
    /// A job that runs beside, and wants the same GPU, or the pipelines' cores.
    pub compete: Compete,
    /// Read the GPU's own counter of what crosses its link, too.
    pub measure_pcie: bool,
}

impl Config {
    /// A run with every default.
    pub fn new(route: Route) -> Self {
        Self {
            route,
            function: "io".into(),
            on: Device::Cpu,
            method: Method::Single,
            gpu: gpu::Settings::default(),
            workers: 0,
            pipelines: 1,
            drive: PipelineSettings::default(),
            rate: None,
            drop_privileges: false,
            playback: Playback::default(),
            duration: None,
            cores: None,
            buffers: 0,
            room: 2048,
            capture: None,
            faults: None,
            compete: Compete::None,
            measure_pcie: false,
        }
    }

    /// Buffers of each pipeline's pool. When the ring, and not the pool, is what runs full, who receives waits by
    /// reading a word and leaves the pool's lists alone.
    pub fn buffers(&self) -> usize {
        if self.buffers != 0 {
            return self.buffers;
        }
        let slots = match (self.on, self.method) {
            (Device::Cpu, Method::Single) => 0,
            (Device::Cpu, _) => self.drive.slots,
            (Device::Gpu(_), method) => {
                gpu::Settings { method, ..self.gpu.clone() }.slots_for(self.drive.slots, self.drive.burst)
            }
        };
        (slots * self.drive.burst + 4 * self.drive.burst + 64).clamp(4096, 1 << 17)
    }

    /// The same with packets of `size` bytes from the port that makes them.
    ///
    /// # Errors
    /// When it makes no packets of a chosen size.
    pub fn with_size(mut self, size: u64) -> Result<Self> {
        let sized = |rx: &str| {
            let (port, options) = rx.split_at(rx.find(',').unwrap_or(rx.len()));
            let (kind, value) = port.split_once(':').unwrap_or((port, ""));
            let made = value == "imix" || value.parse::<u64>().is_ok() || (value.is_empty() && kind != "gen");
            (["null", "gen", "net_null"].contains(&kind) && made).then(|| format!("{kind}:{size}{options}"))
        };
        match &mut self.route {
            Route::OneWay { rx, .. } if sized(rx).is_some() => *rx = sized(rx).unwrap_or_default(),
            _ => {
                let why = "only --rx null, net_null and gen:SIZE make packets of a size that is asked for";
                return Err(Error::config(format!("--size {size}"), why));
            }
        }
        Ok(self)
    }

    /// Its ports take privileges, and the run would give them up once they are open.
    pub fn gives_privileges_up(&self) -> bool {
        let names: Vec<&String> = match &self.route {
            Route::OneWay { rx, tx } => std::iter::once(rx).chain(tx).collect(),
            Route::Between(a, b) => vec![a, b],
        };
        self.drop_privileges && names.into_iter().any(|name| crate::open::takes_privileges(name))
    }

    /// Threads of one pipeline.
    pub fn threads(&self) -> usize {
        match (self.on, self.method) {
            (Device::Cpu, Method::Split) => 1 + self.workers.max(1),
            (Device::Cpu, _) => 1,
            (Device::Gpu(_), method) => 1 + method.has_feeder() as usize,
        }
    }

    /// Ways that packets flow, each with pipelines of its own.
    pub(crate) fn directions(&self) -> usize {
        if matches!(self.route, Route::Between(..)) { 2 } else { 1 }
    }

    /// Finds what does not go together.
    ///
    /// # Errors
    /// [`Error::Config`] with the flag and the remedy.
    pub fn check(&self) -> Result<()> {
        let directions = self.directions();
        if self.pipelines == 0 || self.pipelines > 64 {
            return Err(Error::config(format!("--pipelines {}", self.pipelines), "give 1 to 64"));
        }
        if self.on == Device::Cpu && !self.method.is_cpu() {
            return Err(Error::config(
                format!("--method {}", self.method),
                "the CPU has single and split; add --on gpu:0 for the others",
            ));
        }
        if self.on == Device::Cpu && self.compete == Compete::Large {
            let why = "is of a GPU's multiprocessors; on the CPU there is --compete=compute";
            return Err(Error::config("--compete=large", why));
        }
        if let (Device::Cpu, Some(flag)) = (self.on, self.of_a_gpu()) {
            return Err(Error::config(
                flag,
                "is of a GPU, and this run is on the CPU; add --on gpu:0 or leave it out",
            ));
        }
        if self.workers > 0 && (self.method != Method::Split || self.on != Device::Cpu) {
            return Err(Error::config(
                "--workers",
                "only --method split on the CPU has workers; add it or leave them out",
            ));
        }
        if self.workers > 64 {
            return Err(Error::config(format!("--workers {}", self.workers), "give 0 to 64"));
        }
        if !(1..=MAX_BURST).contains(&self.drive.burst) {
            return Err(Error::config(
                format!("--burst {}", self.drive.burst),
                format!("give 1 to {MAX_BURST}"),
            ));
        }
        if !self.drive.slots.is_power_of_two() || !(2..=MAX_SLOTS).contains(&self.drive.slots) {
            let why = format!("give a power of two from 2 to {MAX_SLOTS}");
            return Err(Error::config(format!("--slots {}", self.drive.slots), why));
        }
        if !(64..=65536).contains(&self.room) {
            return Err(Error::config(format!("--room {}", self.room), "give 64 to 64K"));
        }
        // Each pipeline needs buffers for the bursts in hand and in the ring, and the device for its queues.
        let least = self.drive.burst * 4;
        if self.buffers != 0 && !(least..=1 << 22).contains(&self.buffers) {
            return Err(Error::config(
                format!("--buffers {}", self.buffers),
                format!("give {least} (four bursts) to 4M"),
            ));
        }
        if let Route::Between(a, b) = &self.route
            && a == b
        {
            let why = "is named twice; name two ports, or one behind --rx and --tx to send back what comes";
            return Err(Error::config(format!("--between {a}"), why));
        }
        if let Route::OneWay { tx, .. } = &self.route {
            if tx.is_empty() {
                return Err(Error::config("--tx", "name at least one port to send to"));
            }
            if tx.len() > 64 {
                return Err(Error::config("--tx", "64 ports at most"));
            }
        }
        if let Some(cores) = &self.cores
            && !cores.is_empty()
        {
            let threads = self.threads() * self.pipelines as usize * directions;
            if cores.len() < threads {
                return Err(Error::config(
                    "--cores",
                    format!("this run has {threads} threads; name as many cores, or 'none' to bind none"),
                ));
            }
            let allowed = allowed_cores();
            if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
                return Err(Error::config(
                    "--cores",
                    format!("core {core} is not one that this process may use ({allowed:?})"),
                ));
            }
        }
        Ok(())
    }

    /// The first flag set to something that only a GPU has.
    fn of_a_gpu(&self) -> Option<String> {
        let (set, usual) = (&self.gpu, gpu::Settings::default());
        let memory = match set.memory {
            Memory::Split(bytes) => format!("--split {bytes}"),
            memory => format!("--memory {memory}"),
        };
        let flags = [
            (memory.as_str(), set.memory != usual.memory),
            ("--blocks", set.blocks != usual.blocks),
            ("--threads", set.threads != usual.threads),
            ("--streams", set.streams != usual.streams),
            ("--graph-items", set.graph_items != usual.graph_items),
            ("--graph-branches", set.graph_branches != usual.graph_branches),
            ("--pause", set.pause != usual.pause),
            ("--watchdog", set.watchdog != usual.watchdog),
            ("--priority", set.urgent != usual.urgent),
            ("--measure-pcie", self.measure_pcie),
        ];
        flags.into_iter().find(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_string())
    }

    /// The cores for `threads` threads: those asked for, else the allowed ones from the highest down, so that the first, where
    /// the system's own work runs, is taken last; none when there are fewer cores than threads.
    pub fn cores_for(&self, threads: usize) -> Vec<usize> {
        match &self.cores {
            Some(cores) => cores.clone(),
            None => {
                let mut allowed = allowed_cores();
                allowed.reverse();
                allowed.truncate(threads);
                if allowed.len() < threads { Vec::new() } else { allowed }
            }
        }
    }
}

/// The cores that this process may run on.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most the size given; 0 is this process.
    let outcome = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if outcome != 0 {
        return Vec::new();
    }
    // SAFETY: the index is below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

#[cfg(test)]
mod tests;
