//! The twin of an accelerator. It has memory, a DMA engine for each direction, and a BAR through which the
//! CPU reaches the memory.

use crate::costs::{BarCosts, Costs};
use crate::dma::DmaEngine;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::{Access, CpuMover, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{Error, Location, Region, Result, units};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A software accelerator, `twin:N`.
pub struct Accelerator {
    index: u32,
    costs: Costs,
    used: Arc<AtomicUsize>,
}

impl Accelerator {
    /// Creates `twin:index` with the given costs.
    pub fn new(index: u32, costs: Costs) -> Self {
        Self { index, costs, used: Arc::new(AtomicUsize::new(0)) }
    }

    /// Returns the number N in `twin:N`.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the costs of the accelerator's model.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Allocates zeroed memory of the accelerator.
    ///
    /// # Errors
    /// [`Error::Memory`] if the accelerator or this machine has too little.
    pub fn allocate(&self, bytes: usize) -> Result<Region> {
        let total = self.costs.memory;
        let reserved = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= total)
        });
        if let Err(used) = reserved {
            return Err(Error::Memory {
                bytes,
                what: format!("memory of twin:{}", self.index),
                why: format!(
                    "{} of its {} are free; give smaller sizes",
                    units::bytes((total - used) as u64),
                    units::bytes(total as u64)
                ),
            });
        }
        let mut allocation = Allocation { used: self.used.clone(), bytes, memory: None };
        let memory = Region::host(bytes)?;
        let address = memory.address();
        allocation.memory = Some(memory);
        // SAFETY: the allocation keeps the host region that holds these bytes.
        Ok(unsafe { Region::from_raw(address, bytes, Location::Twin(self.index), Arc::new(allocation)) })
    }

    /// Starts a DMA engine of the accelerator. It copies into the accelerator's memory if `to_device` is
    /// true, otherwise out of it. Each engine has its own thread.
    ///
    /// # Errors
    /// [`Error::Os`] if the system refuses a thread.
    pub fn dma(&self, to_device: bool) -> Result<DmaEngine> {
        let way = if to_device { "in" } else { "out" };
        DmaEngine::new(format!("twin:{} dma {way}", self.index), self.costs.dma.clone())
    }

    /// Returns the costs of the accelerator's BAR.
    pub fn bar(&self) -> BarCosts {
        self.costs.bar.clone()
    }
}

/// An allocation of the accelerator's memory. Dropping it frees the memory.
struct Allocation {
    used: Arc<AtomicUsize>,
    bytes: usize,
    memory: Option<Region>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A mover that copies from or to a twin's BAR with the CPU. It copies real bytes by 4-byte stores, and takes
/// the time that the twin's model gives. It spins during this time, because slow loads and stores occupy a
/// real CPU too.
pub struct BarMover {
    /// The costs of reading the source, if the source is a twin.
    read: Option<BarCosts>,
    /// The costs of writing the destination, if the destination is a twin.
    write: Option<BarCosts>,
    copier: CpuMover,
}

impl BarMover {
    /// Creates a mover from `source` to `destination`. `None` stands for host memory.
    ///
    /// # Errors
    /// [`Error::Device`] if the CPU has no 4-byte stores. Every supported CPU has them.
    pub fn new(source: Option<&Accelerator>, destination: Option<&Accelerator>) -> Result<Self> {
        Ok(Self {
            read: source.map(Accelerator::bar),
            write: destination.map(Accelerator::bar),
            copier: CpuMover::new(Access::Bytes4)?.named_after(source.is_some(), destination.is_some()),
        })
    }

    /// Returns the time of a copy in the model: each byte is read, then written.
    pub fn time(&self, bytes: usize) -> Duration {
        let time = |rate: Option<f64>| rate.map_or(0.0, |rate| bytes as f64 / rate);
        let read = time(self.read.as_ref().map(|costs| costs.read));
        Duration::from_secs_f64(read + time(self.write.as_ref().map(|costs| costs.write)))
    }
}

impl Mover for BarMover {
    fn name(&self) -> String {
        format!("{} through twin BARs", self.copier.name())
    }

    fn is_twin(&self) -> bool {
        true
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let reachable = |region: &Region, costs: &Option<BarCosts>| match region.location() {
            Location::Twin(_) => costs.is_some(),
            location => location.is_cpu_memory(),
        };
        reachable(source, &self.read) && reachable(destination, &self.write)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        let end = Instant::now() + self.time(source.len());
        let ticket = self.copier.submit(source, destination)?;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(ticket)
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn set_completion_mode(&mut self, _: CompletionMode) -> CompletionMode {
        CompletionMode::Poll
    }

    fn done(&mut self) -> Result<Ticket> {
        self.copier.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        self.copier.wait(ticket, completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twin() -> Accelerator {
        Accelerator::new(0, Costs { memory: 1 << 20, ..Costs::published(0) })
    }

    #[test]
    fn memory_is_limited_and_freed_on_drop() {
        let twin = twin();
        let first = twin.allocate(1 << 19).unwrap();
        assert_eq!(*first.location(), Location::Twin(0));
        let error = twin.allocate((1 << 19) + 1).unwrap_err().to_string();
        assert!(error.contains("twin:0") && error.contains("512 KiB of its 1 MiB are free"), "{error}");
        assert!(twin.allocate(usize::MAX).is_err());
        assert!(twin.allocate(0).is_err());
        drop(first);
        twin.allocate(1 << 20).unwrap();
    }

    #[test]
    fn a_copy_costs_its_reads_and_writes() {
        let (zero, one) = (twin(), Accelerator::new(1, Costs::published(1)));
        let mover = BarMover::new(Some(&zero), Some(&one)).unwrap();
        let mib_per_second = 1.0 / mover.time(1 << 20).as_secs_f64();
        assert!((mib_per_second - 1.0 / (1.0 / 28.11 + 1.0 / 3.22)).abs() < 0.01, "{mib_per_second}");
        let (source, destination) = (zero.allocate(4096).unwrap(), one.allocate(4096).unwrap());
        let mut mover = mover;
        let began = Instant::now();
        mover.submit(&source, &destination).unwrap();
        assert!(began.elapsed() >= mover.time(4096));
        let mut half = BarMover::new(Some(&zero), None).unwrap();
        assert!(
            half.submit(&source, &destination).is_err(),
            "the destination is a twin that this mover does not reach"
        );
    }
}
