//! A load that reads, writes or copies host memory.

use super::workers::Workers;
use inlane_core::access::{Access, store_fence};
use inlane_core::load::{Load, LoadError, Meter, Pace, Resource, Running, Use, UseSource};
use inlane_core::setting::Choice;
use inlane_core::{Error, units};
use std::sync::Arc;

/// What a load does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOperation {
    /// Loads bytes.
    Read,
    /// Stores bytes.
    Write,
    /// Loads bytes and stores them elsewhere.
    Copy,
}

impl Choice for MemoryOperation {
    const CHOICES: &[(Self, &str, &str)] = &[
        (Self::Read, "read", "Loads bytes"),
        (Self::Write, "write", "Stores bytes"),
        (Self::Copy, "copy", "Loads bytes and stores them elsewhere"),
    ];
}

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Into the caches. The processor first reads each line from memory.
    Plain,
    /// Past the caches.
    NonTemporal,
}

impl Choice for Stores {
    const CHOICES: &[(Self, &str, &str)] = &[
        (Self::Plain, "plain", "Into the caches, which first read each line"),
        (Self::NonTemporal, "nontemporal", "Past the caches"),
    ];
}

/// The settings of a load on host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// What it does.
    pub operation: MemoryOperation,
    /// How it stores.
    pub stores: Stores,
    /// The bytes of an operation.
    pub size: usize,
    /// The bytes of all threads' buffers together.
    pub buffer: usize,
}

impl MemorySettings {
    /// Returns the bytes that cross the memory bus for each byte of the load.
    pub fn crossings(&self) -> f64 {
        match (self.operation, self.stores) {
            (MemoryOperation::Read, _) | (MemoryOperation::Write, Stores::NonTemporal) => 1.0,
            (MemoryOperation::Write, Stores::Plain) | (MemoryOperation::Copy, Stores::NonTemporal) => 2.0,
            (MemoryOperation::Copy, Stores::Plain) => 3.0,
        }
    }

    /// Returns the bytes of one buffer of one of `threads` threads. A copy has two buffers.
    fn of_thread(&self, threads: usize) -> usize {
        let buffers = if self.operation == MemoryOperation::Copy { 2 } else { 1 };
        self.buffer / threads / buffers
    }
}

/// The least size of all buffers together if the last-level cache is smaller or unknown.
const LEAST_BUFFER: usize = 64 << 20;

/// Returns a size of buffers that no cache holds: four times the last-level cache.
pub fn beyond_the_caches() -> usize {
    let last = (0..=4).rev().find_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        units::parse_size(std::fs::read_to_string(path).ok()?.trim()).ok()
    });
    (last.unwrap_or(0) as usize * 4).clamp(LEAST_BUFFER, 4 << 30)
}

/// A load on host memory.
pub struct MemoryLoad {
    settings: MemorySettings,
    access: Access,
    workers: Workers,
}

impl MemoryLoad {
    /// Opens the load with `threads` threads on `cores`, or on any core if the list is empty. Each thread allocates
    /// its buffers before the start.
    ///
    /// # Errors
    /// If the buffers of a thread cannot hold an operation, or the processor lacks non-temporal stores.
    pub fn open(
        name: &str,
        settings: MemorySettings,
        threads: usize,
        cores: &[usize],
    ) -> Result<Self, Error> {
        let access = match settings.stores {
            Stores::Plain => Access::widest(),
            Stores::NonTemporal => Access::NonTemporal.require()?,
        };
        let what = || format!("load {name}: size={}", settings.size);
        if settings.size == 0 || !settings.size.is_multiple_of(LINE) {
            return Err(Error::invalid(
                what(),
                "an operation is a multiple of 64 bytes; give for example 64K",
            ));
        }
        let of_thread = settings.of_thread(threads);
        if settings.size > of_thread {
            let why = format!(
                "each thread has a buffer of {}; give a smaller size or a larger buffer",
                units::bytes(of_thread as u64)
            );
            return Err(Error::invalid(what(), why));
        }
        let workers = Workers::new(name.into(), threads, cores);
        Ok(Self { settings, access, workers })
    }
}

/// A cache line. All copies are of whole lines, so every access is aligned.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u64; 8]);

const LINE: usize = size_of::<Line>();

/// A thread's buffers and its place in them.
struct Buffers {
    from: Vec<Line>,
    to: Vec<Line>,
    /// The first line of the next operation.
    at: usize,
    /// The lines of an operation.
    lines: usize,
}

impl Buffers {
    fn new(settings: &MemorySettings, threads: usize) -> Result<Self, LoadError> {
        let length = settings.of_thread(threads) / LINE;
        let allocate = |needed: bool| -> Result<Vec<Line>, LoadError> {
            let mut buffer = Vec::new();
            if needed {
                buffer.try_reserve_exact(length).map_err(|_| "there is not enough memory for its buffers")?;
                // Writing every line makes the kernel provide all pages now, on the memory node of this thread.
                buffer.resize(length, Line([1; 8]));
            }
            Ok(buffer)
        };
        let from = allocate(settings.operation != MemoryOperation::Write)?;
        let to = allocate(settings.operation != MemoryOperation::Read)?;
        Ok(Self { from, to, at: 0, lines: settings.size / LINE })
    }

    /// Returns the lines of the next operation.
    fn next(&mut self) -> std::ops::Range<usize> {
        if self.at + self.lines > self.from.len().max(self.to.len()) {
            self.at = 0;
        }
        let range = self.at..self.at + self.lines;
        self.at = range.end;
        range
    }
}

/// A source for stores that stays in the first-level cache.
static PATTERN: [Line; 64] = [Line([0x5a5a_5a5a_5a5a_5a5a; 8]); 64];

/// Loads every word.
fn read(lines: &[Line]) {
    let sum = lines.iter().flat_map(|line| &line.0).fold(0u64, |sum, word| sum.wrapping_add(*word));
    std::hint::black_box(sum);
}

/// Copies lines with accesses of one kind. Both slices have the same length.
fn copy(access: Access, to: &mut [Line], from: &[Line]) {
    let lines = to.len().min(from.len());
    let pieces = lines * LINE / access.width();
    // SAFETY: the load was opened with an access that this processor has. Both slices hold `lines` lines, which are
    // aligned to the widest access. A mutable slice overlaps no other.
    unsafe { access.copy(to.as_mut_ptr().cast(), from.as_ptr().cast(), pieces) };
    std::hint::black_box(to.as_mut_ptr());
}

impl Load for MemoryLoad {
    fn name(&self) -> String {
        let MemorySettings { operation, stores, .. } = self.settings;
        let stores = match (operation, stores) {
            (MemoryOperation::Read, _) | (_, Stores::Plain) => "",
            _ => ", non-temporal",
        };
        format!("host memory, {}{stores}", operation.name())
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        self.workers.meters.clone()
    }

    fn pace(&self) -> Arc<Pace> {
        self.workers.pace.clone()
    }

    fn uses(&self) -> Vec<Use> {
        let per_byte = Some(self.settings.crossings());
        vec![Use { resource: Resource::HostMemory, per_byte, source: UseSource::Computed }]
    }

    fn threads(&self) -> usize {
        self.workers.threads
    }

    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        let (operation, access, bytes) = (self.settings.operation, self.access, self.settings.size as u64);
        self.workers.run(run, |_| {
            let mut buffers = Buffers::new(&self.settings, self.workers.threads)?;
            Ok(move || {
                let range = buffers.next();
                match operation {
                    MemoryOperation::Read => read(&buffers.from[range]),
                    MemoryOperation::Write => {
                        for piece in buffers.to[range].chunks_mut(PATTERN.len()) {
                            copy(access, piece, &PATTERN[..piece.len()]);
                        }
                    }
                    MemoryOperation::Copy => {
                        copy(access, &mut buffers.to[range.clone()], &buffers.from[range])
                    }
                }
                store_fence();
                bytes
            })
        })
    }
}
