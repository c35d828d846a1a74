//! An accelerator's twin: memory of its own, a DMA engine each way, and a BAR through which the CPU reaches its memory.

use crate::costs::{BarCosts, Costs};
use crate::dma::DmaEngine;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::{Access, CpuMover, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{Error, Location, Region, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An accelerator in software: `twin:N`.
pub struct Accelerator {
    index: u32,
    costs: Costs,
    used: Arc<AtomicUsize>,
}

impl Accelerator {
    /// `twin:index`, with these costs.
    pub fn new(index: u32, costs: Costs) -> Self {
        Self { index, costs, used: Arc::new(AtomicUsize::new(0)) }
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What it costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Zeroed memory of the accelerator.
    ///
    /// # Errors
    /// [`Error::Memory`] beyond what it has, or this machine has.
    pub fn allocate(&self, bytes: usize) -> Result<Region> {
        let total = self.costs.memory;
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= total)
        });
        if let Err(used) = taken {
            return Err(Error::Memory {
                bytes,
                what: format!("memory of twin:{}", self.index),
                why: format!("{} of its {total} bytes are free; ask for less", total - used),
            });
        }
        let mut share = Share { used: self.used.clone(), bytes, memory: None };
        let memory = Region::host(bytes)?;
        let address = memory.address();
        share.memory = Some(memory);
        // SAFETY: the host region behind it is kept by the share.
        Ok(unsafe { Region::from_raw(address, bytes, Location::Twin(self.index), Arc::new(share)) })
    }

    /// A DMA engine of it, towards its memory or out of it. Each has a thread of its own.
    ///
    /// # Errors
    /// [`Error::Os`] when the system has no thread left.
    pub fn dma(&self, to_device: bool) -> Result<DmaEngine> {
        let way = if to_device { "in" } else { "out" };
        DmaEngine::new(format!("twin:{} dma {way}", self.index), self.costs.dma.clone())
    }

    /// Its BAR's costs.
    pub fn bar(&self) -> BarCosts {
        self.costs.bar.clone()
    }
}

/// Part of the accelerator's memory, given back when dropped.
struct Share {
    used: Arc<AtomicUsize>,
    bytes: usize,
    memory: Option<Region>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The CPU, copying between mapped memories of which at least one is a twin's BAR: real bytes by the narrowest stores,
/// in the time that the costs say. It spins meanwhile, for so does a CPU whose loads and stores crawl.
pub struct BarMover {
    /// Costs of reading the source, when it is a twin, and of writing the destination.
    read: Option<BarCosts>,
    write: Option<BarCosts>,
    copier: CpuMover,
}

impl BarMover {
    /// A mover from `source` to `destination`; `None` is host memory.
    ///
    /// # Errors
    /// None in practice: every processor has 4-byte stores.
    pub fn new(source: Option<&Accelerator>, destination: Option<&Accelerator>) -> Result<Self> {
        Ok(Self {
            read: source.map(Accelerator::bar),
            write: destination.map(Accelerator::bar),
            copier: CpuMover::new(Access::Bytes4)?.named_after(source.is_some(), destination.is_some()),
        })
    }

    /// The time a copy takes in the model: each byte is read, then written.
    pub fn time(&self, bytes: usize) -> Duration {
        let leg = |rate: Option<f64>| rate.map_or(0.0, |rate| bytes as f64 / rate);
        let read = leg(self.read.as_ref().map(|costs| costs.read));
        Duration::from_secs_f64(read + leg(self.write.as_ref().map(|costs| costs.write)))
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
    fn memory_is_limited_and_given_back() {
        let twin = twin();
        let first = twin.allocate(1 << 19).unwrap();
        assert_eq!(*first.location(), Location::Twin(0));
        let error = twin.allocate((1 << 19) + 1).unwrap_err().to_string();
        assert!(
            error.contains("twin:0") && error.contains("524288 of its 1048576 bytes are free"),
            "{error}"
        );
        assert!(twin.allocate(usize::MAX).is_err());
        assert!(twin.allocate(0).is_err());
        drop(first);
        twin.allocate(1 << 20).unwrap();
    }

    #[test]
    fn bars_cost_what_both_legs_cost() {
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
        assert!(half.submit(&source, &destination).is_err(), "its destination's BAR is not mapped");
    }
}
