//! Loads: operations that run until somebody stops them, such as packet processing, transfers or storage commands.
//!
//! ```text
//!   open        opens and connects, with the privileges of the process; nothing moves yet
//!   prepare     all privileges are dropped; compiles user code, allocates and fills memory
//!   run         every thread of every load waits at the start line
//!   started     all begin at one instant; threads count in their meters and follow the load's pace
//!   stopped     each load ends what is in flight and keeps what it has
//! ```
//!
//! A load never decides how long it runs. Who runs it samples the [`Meter`]s, changes the [`Pace`], and stops it. Several
//! loads can share a [`StartLine`], so their measurements cover the same time. [`prepare`] and [`run_together`] do the
//! last steps for several loads.

mod meter;
mod pace;
mod schedule;
mod start;
mod together;

pub use meter::{Attached, Counts, Meter, Sample, Sampler};
pub use pace::{Pace, Pacer};
pub use schedule::Schedule;
pub use start::{Member, StartLine};
pub use together::{bind, prepare, run_together, spawn};

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// An opened load.
pub trait Load: Send {
    /// Names the operation and its ends for messages, such as "copy host to gpu:0".
    fn name(&self) -> String;

    /// The meters of the load's threads. Each thread writes its own.
    fn meters(&self) -> Vec<Arc<Meter>>;

    /// The pace that all threads of the load follow together.
    fn pace(&self) -> Arc<Pace>;

    /// What the load takes from the machine's resources. Empty if that is unknown.
    fn uses(&self) -> Vec<Use> {
        Vec::new()
    }

    /// The number of threads that wait at the start line.
    fn threads(&self) -> usize;

    /// Returns true if the process must drop its privileges before [`Load::prepare`].
    fn drops_privileges(&self) -> bool {
        false
    }

    /// Does what must happen before the start and needs no privileges: compiles user code, allocates memory. Starts
    /// nothing that runs until the load ends. Call it once, when all loads are open: see [`prepare`].
    ///
    /// # Errors
    /// If the load cannot run.
    fn prepare(&mut self) -> Result<(), LoadError> {
        Ok(())
    }

    /// Runs the load until `run` is stopped, its source ends, or it fails. Its threads wait at the start line first. Call
    /// it once, after [`Load::prepare`].
    ///
    /// The load frees its memory when it is dropped. Drop loads only when all have ended, because freeing memory of a GPU
    /// waits for the kernels of other loads.
    ///
    /// # Errors
    /// The error that ended the load. It ends only this load. The meters keep what was counted before.
    fn run(&mut self, run: &Running) -> Result<(), LoadError>;
}

/// The error that ended a load.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// What a load takes from one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// The resource, by the name that all loads use for it: see [`Resource`].
    pub resource: Resource,
    /// The units of the resource that one byte of the load takes. A resource of bytes counts each crossing, and one of time
    /// counts seconds. For a load that moves no bytes, the units of one operation. `None` if only a measurement can tell, such
    /// as for the time of cores.
    pub per_byte: Option<f64>,
    /// How the figure is known.
    pub source: UseSource,
}

/// How a use is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseSource {
    /// It follows from what the load does.
    Computed,
    /// A counter of the machine showed it.
    Counted,
    /// A fit to measurements gave it.
    Fitted,
}

/// Something that several loads may share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(tag = "kind", content = "name", rename_all = "snake_case")
)]
pub enum Resource {
    /// Time of one processor core.
    Core(usize),
    /// The time that all cores together give this process.
    Processors,
    /// Reads and writes of host memory.
    HostMemory,
    /// The direction of a device's PCIe link from host memory to the device.
    LinkToDevice(String),
    /// The direction of a device's PCIe link from the device to host memory.
    LinkFromDevice(String),
    /// Memory of a device.
    DeviceMemory(String),
    /// An engine of a device that copies, such as a GPU's.
    CopyEngine(String),
    /// A network interface or another port that carries packets.
    Port(String),
    /// A server that answers over a network, such as an NVMe target.
    Peer(String),
}

/// The state that all loads of a run share.
pub struct Running {
    /// Where the threads of the loads wait until all are ready.
    pub start: StartLine,
    stop: AtomicBool,
    at_stop: Mutex<Vec<AtStop>>,
}

type AtStop = Box<dyn Fn() + Send>;

impl Running {
    /// Creates the state of a run whose loads have `threads` threads together.
    pub fn new(threads: usize) -> Self {
        Self { start: StartLine::new(threads), stop: AtomicBool::new(false), at_stop: Mutex::default() }
    }

    /// Ends all loads. What is in flight completes.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
        self.start.cancel();
        let acts = std::mem::take(&mut *self.at_stop.lock().unwrap_or_else(PoisonError::into_inner));
        acts.iter().for_each(|act| act());
    }

    /// Calls `act` when the run is stopped, or now if it was stopped before. For loads whose threads check a flag of their
    /// own.
    pub fn at_stop(&self, act: impl Fn() + Send + 'static) {
        let mut acts = self.at_stop.lock().unwrap_or_else(PoisonError::into_inner);
        match self.stopping() {
            true => act(),
            false => acts.push(Box::new(act)),
        }
    }

    /// Returns true after [`Running::stop`].
    #[inline]
    pub fn stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("start", &self.start)
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
