//! The kinds of loads with their keys and settings. This table is the only definition: files, command line and help use it.

pub mod cpu;
pub(crate) mod dma;
pub mod memory;
mod packets;
mod remote;
mod workers;

use crate::settings::{Key, Settings, Wrong, key};
use cpu::CpuLoad;
use inlane_copy::CopyLoadConfig;
use inlane_core::Error;
use inlane_core::load::Load;
use memory::{MemoryLoad, MemoryOperation, MemorySettings, Stores, beyond_the_caches};
use packets::Packets;
use remote::Remote;

/// The keys that loads of all kinds have.
pub const OF_ALL: &[Key] = &[
    key("kind", "what the load does"),
    key("name", "its name in results; default: the kind"),
    key("cores", "the cores of its threads, such as 2 or 0,4-7; default: any"),
    key("rate", "the rate that it keeps: 20GB/s, 100Gb/s, 1.5Mpps, 2kop/s; default: as fast as possible"),
];

/// A kind of load.
pub struct KindInfo {
    /// The name.
    pub name: &'static str,
    /// What such a load does.
    pub about: &'static str,
    /// The keys that only this kind has.
    pub own_keys: &'static [Key],
    pub(crate) read: fn(&Settings<'_>) -> Result<Work, Wrong>,
}

impl KindInfo {
    /// Returns all keys that a load of this kind may have.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        OF_ALL.iter().chain(self.own_keys)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

/// The most threads of a load.
pub(crate) const MOST_THREADS: usize = 64;

const THREADS: Key = key("threads", "the number of threads; default: one for each core in cores");

/// The kinds of loads.
pub const KINDS: &[KindInfo] = &[
    KindInfo {
        name: "memory",
        about: "reads, writes or copies host memory",
        own_keys: &[
            key("operation", "read, write or copy; default: copy"),
            key("stores", "plain or nontemporal (past the caches); default: plain"),
            key("size", "the bytes of an operation; default: 64K"),
            key("buffer", "the bytes of all buffers; default: four times the last-level cache"),
            THREADS,
        ],
        read: |settings| {
            Ok(Work::Memory(MemorySettings {
                operation: settings.choice("operation", MemoryOperation::Copy)?,
                stores: settings.choice("stores", Stores::Plain)?,
                size: settings.size("size")?.unwrap_or(64 << 10),
                buffer: settings.size("buffer")?.unwrap_or_else(beyond_the_caches),
            }))
        },
    },
    KindInfo {
        name: "cpu",
        about: "computes; each operation is the same piece of work",
        own_keys: &[THREADS],
        read: |_| Ok(Work::Cpu),
    },
    dma::DMA,
    packets::FORWARD,
    packets::TX,
    remote::NVME,
];

/// Returns the names of all kinds.
pub(crate) fn kind_names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

/// What a load does, with the settings of its kind.
#[derive(Clone, Debug)]
pub enum Work {
    /// Reads, writes or copies host memory.
    Memory(MemorySettings),
    /// Computes.
    Cpu,
    /// Copies between memories.
    Dma(Box<CopyLoadConfig>),
    /// Forwards or sends packets.
    Packets(Box<Packets>),
    /// Reads and writes a namespace of an NVMe target.
    Remote(Box<Remote>),
}

impl Work {
    /// Opens a load that does this with `threads` threads on `cores`, or on any core if the list is empty. Without a number
    /// of threads, there is one for each core.
    ///
    /// # Errors
    /// If the settings do not fit each other, or a device, port, target or memory is missing.
    pub fn open(&self, name: &str, threads: Option<usize>, cores: &[usize]) -> Result<Box<dyn Load>, Error> {
        let number = threads.unwrap_or(cores.len().max(1));
        Ok(match self {
            Work::Memory(settings) => Box::new(MemoryLoad::open(name, settings.clone(), number, cores)?),
            Work::Cpu => Box::new(CpuLoad::new(name, number, cores)),
            Work::Dma(config) => dma::open(config, number, cores)?,
            Work::Packets(packets) => packets.open(cores)?,
            Work::Remote(remote) => remote.open(number, cores)?,
        })
    }

    /// Returns the bytes of an operation, if all have the same size.
    pub fn operation_bytes(&self) -> Option<f64> {
        match self {
            Work::Memory(settings) => Some(settings.size as f64),
            Work::Cpu => None,
            Work::Dma(config) => Some(config.size as f64),
            Work::Packets(packets) => packets.size.map(|bytes| bytes as f64),
            Work::Remote(remote) => Some(remote.size as f64),
        }
    }

    /// Returns the most operations that the load has in flight, if that is limited.
    pub fn in_flight(&self, threads: usize) -> Option<f64> {
        match self {
            Work::Dma(config) => config.in_flight.map(|depth| (depth * threads) as f64),
            Work::Remote(remote) => Some(remote.depth as f64 * threads as f64),
            Work::Memory(_) | Work::Cpu | Work::Packets(_) => None,
        }
    }

    /// Returns true if the load needs privileges to open.
    pub fn needs_privileges(&self) -> bool {
        matches!(self, Work::Packets(packets) if packets.needs_privileges())
    }

    /// Returns true if the operations come from outside this process.
    pub fn is_fed(&self) -> bool {
        matches!(self, Work::Packets(packets) if packets.is_fed())
    }

    /// Returns the host memory that the load takes for its buffers, as far as it is a setting.
    pub(crate) fn buffers(&self) -> usize {
        match self {
            Work::Memory(settings) => settings.buffer,
            Work::Cpu | Work::Dma(_) | Work::Packets(_) | Work::Remote(_) => 0,
        }
    }
}
