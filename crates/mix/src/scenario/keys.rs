//! The kinds of loads and their keys. This table is the only definition: files, command line and help use it.

use super::settings::{Settings, Wrong};
use crate::memory::{MemoryOperation, MemorySettings, Stores, beyond_the_caches};

/// A key of a load.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// The name.
    pub name: &'static str,
    /// What it sets, with its default.
    pub help: &'static str,
}

const fn key(name: &'static str, help: &'static str) -> Key {
    Key { name, help }
}

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
    pub(super) read: fn(&Settings<'_>) -> Result<Work, Wrong>,
}

impl KindInfo {
    /// Returns all keys that a load of this kind may have.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        OF_ALL.iter().chain(self.own_keys)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

/// What a load does, with the settings of its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Reads, writes or copies host memory.
    Memory(MemorySettings),
    /// Computes.
    Cpu,
}

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
];

/// Returns the names of all kinds.
pub(super) fn kind_names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}
