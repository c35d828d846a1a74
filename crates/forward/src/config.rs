//! The configuration of a run: its ports, packet function, executor and pipelines. [`Config::check`]
//! validates it.

mod executor;

use crate::error::{Error, Result};
use crate::field;
use crate::pipeline::PipelineSettings;
use inlane_core::cores;
use inlane_core::ring::layout::{MAX_BURST, MAX_SLOTS};
use inlane_core::setting::{Choice, Field};
use inlane_core::units::{self, Rate};
use inlane_function::FunctionSpec;
use inlane_ports::pcap::Playback;
use inlane_ports::spec::{Kind, PortSpec};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::method::Method;
pub use executor::{CpuMethod, Device, Executor};

/// The largest data room in bytes. It is the smallest power of two that can hold an Ethernet frame with two
/// VLAN tags and 64 KiB of IP.
const MAX_ROOM: usize = 128 << 10;

/// The longest extra time to spend on each packet. It is limited because a run handles
/// a signal only after the current burst, which may have 1024 packets.
const MAX_WORK: Duration = Duration::from_millis(1);

/// The ports that packets come from and go to.
#[derive(Clone, Debug, PartialEq)]
pub enum Route {
    /// Packets flow in one direction, from one port to one or several other ports.
    OneWay {
        /// The port to receive from.
        rx: PortSpec,
        /// The ports to send to. A verdict for port n selects element n. All other forwarded packets go to
        /// element 0.
        tx: Vec<PortSpec>,
    },
    /// Packets flow between two ports, in both directions.
    Between(PortSpec, PortSpec),
}

impl Route {
    /// Creates a route from one port to others. Parses the specifications.
    ///
    /// # Errors
    /// As for [`PortSpec::parse`].
    pub fn one_way<'a>(rx: &str, tx: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let tx = tx.into_iter().map(PortSpec::parse).collect::<Result<_, _>>()?;
        Ok(Self::OneWay { rx: PortSpec::parse(rx)?, tx })
    }

    /// Returns the port to receive from, if packets flow in one direction.
    pub fn source(&self) -> Option<&PortSpec> {
        match self {
            Route::OneWay { rx, .. } => Some(rx),
            Route::Between(..) => None,
        }
    }

    /// Returns the ports as given. The port to receive from comes first.
    pub(crate) fn ports(&self) -> Vec<&PortSpec> {
        match self {
            Route::OneWay { rx, tx } => std::iter::once(rx).chain(tx).collect(),
            Route::Between(a, b) => vec![a, b],
        }
    }

    /// Returns the number of directions in which packets flow. Each direction has its own pipelines.
    pub(crate) fn directions(&self) -> usize {
        match self {
            Route::OneWay { .. } => 1,
            Route::Between(..) => 2,
        }
    }
}

/// The kind of job that runs beside the pipelines and competes with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compete {
    /// No job.
    #[default]
    None,
    /// GPU: arithmetic on every multiprocessor. CPU: a busy thread on each core of the pipelines.
    Compute,
    /// GPU only: arithmetic in blocks that each occupy a whole multiprocessor, as matrix products do.
    Large,
}

impl fmt::Display for Compete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Choice for Compete {
    const CHOICES: &[(Self, &str, &str)] = &[
        (Compete::None, "none", "No job"),
        (
            Compete::Compute,
            "compute",
            "Endless arithmetic on every multiprocessor of the GPU, or on every core of the pipelines",
        ),
        (
            Compete::Large,
            "large",
            "On a GPU: endless arithmetic in blocks that each fill a multiprocessor, as matrix products do",
        ),
    ];
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The ports that packets come from and go to.
    pub route: Route,
    /// The packet function.
    pub function: FunctionSpec,
    /// The packet function whose verdicts and bytes checkers expect: `None` for the reference of a built-in function.
    pub reference: Option<String>,
    /// The executor of the packet function.
    pub executor: Executor,
    /// Pipelines of each direction, 1 to 64. Each has a receive queue and threads of its own.
    pub pipelines: u16,
    /// The settings of each pipeline.
    pub per_pipeline: PipelineSettings,
    /// The rate at which packets are offered. `None` means as fast as possible. If the pipeline is too slow,
    /// a generator delivers packets late, and other sources lose packets.
    pub rate: Option<Rate>,
    /// True to drop privileges once the ports are open, if a port needed them or user code is to be loaded.
    pub drop_privileges: bool,
    /// How a capture file is played: the pace of its packets, and whether they repeat.
    pub playback: Playback,
    /// The time after which the run ends; `None` for no limit.
    pub duration: Option<Duration>,
    /// The cores that threads are bound to. `None`: inlane chooses. Empty: threads are not bound.
    pub cores: Option<Vec<usize>>,
    /// The number of buffers of each pipeline's pool. 0: enough for the burst ring and the port.
    pub buffers: usize,
    /// The data room: how many bytes a packet buffer can hold, from 64 B to 128 KiB.
    pub room: usize,
    /// A capture file. The sent packets are also written to this file.
    pub capture: Option<PathBuf>,
    /// Faults to inject into received packets: see [`inlane_ports::wrap::fault`].
    pub faults: Option<String>,
    /// The kind of job that competes with the pipelines for the GPU or the cores, or none.
    pub compete: Compete,
}

impl Config {
    /// Creates the default settings for `route`: packet function `io`, one CPU thread, buffers of 2 KiB.
    pub fn new(route: Route) -> Self {
        Self {
            route,
            function: "io".into(),
            reference: None,
            executor: Executor::default(),
            pipelines: 1,
            per_pipeline: PipelineSettings::default(),
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
        }
    }

    /// Creates the settings for sending generated packets to a port, without a packet function that changes them.
    /// `traffic` is what follows `gen:` in the specification of a generator: a size, or a mix and options.
    ///
    /// # Errors
    /// As for [`PortSpec::parse`].
    pub fn transmit(traffic: &str, port: &str) -> Result<Self> {
        let generator = Kind::Generator.properties().name;
        Ok(Self::new(Route::one_way(&format!("{generator}:{traffic}"), [port])?))
    }

    /// Returns the number of buffers in the pool of each pipeline. The default is the capacity of the burst
    /// ring and some more, but at most 131,072. Under load, the ring is then usually full before the pool is
    /// empty. This is better because a full ring is cheaper to detect.
    pub fn buffers(&self) -> usize {
        if self.buffers != 0 {
            return self.buffers;
        }
        let burst = self.per_pipeline.burst;
        let slots = self.executor.slots(self.per_pipeline.slots, burst);
        (slots * burst + 4 * burst + 64).clamp(4096, 1 << 17)
    }

    /// Returns a copy of these settings in which the source generates packets of `size` bytes.
    ///
    /// # Errors
    /// [`Error::Config`] if the source cannot generate packets of a chosen size.
    pub fn with_size(mut self, size: u64) -> Result<Self> {
        if let Route::OneWay { rx, .. } = &mut self.route
            && let Some(sized) = rx.with_size(size)
        {
            *rx = sized?;
            return Ok(self);
        }
        let why = format!(
            "the port of {} does not make packets of a chosen size, as {} do; leave {} out",
            field::RX,
            Kind::list(|row| row.is_sized),
            field::SIZE
        );
        Err(Error::config(field::SIZE.with(size), why))
    }

    /// Returns true if the run drops privileges that a port needs. Such a run cannot be repeated in one
    /// process.
    pub fn drops_needed_privileges(&self) -> bool {
        self.drop_privileges && self.route.ports().iter().any(|port| port.properties().needs_privileges)
    }

    /// Checks that this process can run the pipelines several times with these settings.
    ///
    /// # Errors
    /// [`Error::Config`] if the first run drops privileges that later runs need.
    pub fn check_repeatable(&self) -> Result<()> {
        match self.drops_needed_privileges() {
            false => Ok(()),
            true => {
                let why = "the first run drops the privileges that the ports of the next need";
                Err(Error::config("several runs", format!("{why}; add {}", field::KEEP_PRIVILEGES)))
            }
        }
    }

    /// Checks each setting and their combinations. Opens nothing.
    ///
    /// # Errors
    /// [`Error::Config`], which names the wrong setting and what to write instead.
    pub fn check(&self) -> Result<()> {
        let range = |field: Field, value: usize, why: String| Err(Error::config(field.with(value), why));
        let PipelineSettings { burst, slots, watchdog, .. } = self.per_pipeline;
        if !(1..=64).contains(&self.pipelines) {
            return range(field::PIPELINES, self.pipelines.into(), "give 1 to 64".into());
        }
        if self.executor.device() == Device::Cpu && self.compete == Compete::Large {
            let instead = field::COMPETE.with(Compete::Compute);
            let why = format!("it applies to GPUs only; use {instead} on the CPU");
            return Err(Error::config(field::COMPETE.with(Compete::Large), why));
        }
        if let (FunctionSpec::Own(own), Device::Gpu(_)) = (&self.function, self.executor.device()) {
            let why = format!(
                "{} is a function in Rust, which runs on the CPU only; write it in C++ for a GPU",
                own.name
            );
            return Err(Error::config(field::ON.with(self.executor.device()), why));
        }
        if !(1..=MAX_BURST).contains(&burst) {
            return range(field::BURST, burst, format!("give 1 to {MAX_BURST}"));
        }
        if !slots.is_power_of_two() || !(2..=MAX_SLOTS).contains(&slots) {
            return range(field::SLOTS, slots, format!("give a power of two from 2 to {MAX_SLOTS}"));
        }
        if self.per_pipeline.work > MAX_WORK {
            let given = field::WORK.with(format_args!("{:?}", self.per_pipeline.work));
            return Err(Error::config(given, "give at most 1ms; with more, Ctrl-C would end a run late"));
        }
        if watchdog.is_zero() {
            return Err(Error::config(field::WATCHDOG.with("0s"), "give a time above zero"));
        }
        if !(64..=MAX_ROOM).contains(&self.room) {
            return range(field::ROOM, self.room, "give 64 to 128K".into());
        }
        // Require buffers for four bursts, because four can be in use at once: one each in the pipeline, the
        // ring, the receive queue and the transmit queue.
        let least = burst * 4;
        if self.buffers != 0 && !(least..=1 << 22).contains(&self.buffers) {
            return range(field::BUFFERS, self.buffers, format!("give {least} (four bursts) to {}", 1 << 22));
        }
        self.check_route()?;
        self.check_cores()
    }

    fn check_route(&self) -> Result<()> {
        match &self.route {
            Route::Between(a, b) if a == b => Err(Error::config(
                field::BETWEEN.with(a),
                format!(
                    "it is named twice; name two ports, or reflect packets with {} and {}",
                    field::RX,
                    field::TX
                ),
            )),
            Route::OneWay { tx, .. } if tx.is_empty() => {
                Err(Error::config(field::TX, "name at least one port to send to"))
            }
            Route::OneWay { tx, .. } if tx.len() > 64 => {
                Err(Error::config(field::TX, format!("{} ports are named; 64 is the most", tx.len())))
            }
            _ => Ok(()),
        }
    }

    fn check_cores(&self) -> Result<()> {
        let Some(cores) = self.cores.as_ref().filter(|cores| !cores.is_empty()) else { return Ok(()) };
        let threads = self.executor.threads() * self.pipelines as usize * self.route.directions();
        if cores.len() < threads {
            let (cores, needed) =
                (units::counted(cores.len() as u64, "core"), units::counted(threads as u64, "thread"));
            let why = format!("{cores} for {needed}; name {threads}, or 'none'");
            return Err(Error::config(field::CORES, why));
        }
        if let Some(index) = (1..cores.len()).find(|&index| cores[..index].contains(&cores[index])) {
            let why = format!("core {} is named twice; name each core once", cores[index]);
            return Err(Error::config(field::CORES, why));
        }
        match cores::refused(cores) {
            Some((core, why)) => Err(Error::config(format!("{}: core {core}", field::CORES), why)),
            None => Ok(()),
        }
    }

    /// Returns the cores to bind `threads` threads to: the user's, or else the allowed cores from the highest
    /// down. Returns an empty list, for no binding, if fewer cores are allowed than there are threads.
    pub fn cores_for(&self, threads: usize) -> Vec<usize> {
        match &self.cores {
            Some(cores) => cores.clone(),
            None => {
                let mut allowed = cores::allowed();
                allowed.reverse();
                allowed.truncate(threads);
                if allowed.len() < threads { Vec::new() } else { allowed }
            }
        }
    }
}

#[cfg(test)]
mod tests;
