//! Movers, which copy bytes between two regions. Only one thread uses a mover. Copies complete in the order
//! of submission. [`CpuMover`] copies with the CPU. The movers for DMA engines and GPUs are in other crates.

mod cpu;
mod in_flight;

pub use crate::access::Access;
pub use cpu::CpuMover;
pub use in_flight::InFlight;

use crate::completion::CompletionMode;
use crate::error::{Error, Result};
use crate::region::Region;

/// The number of a submitted copy. Each mover numbers its copies 1, 2, 3, ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A counter that issues a mover's tickets, beginning with `Ticket(1)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TicketCounter(Ticket);

impl TicketCounter {
    /// Issues the next ticket.
    pub fn issue(&mut self) -> Ticket {
        self.0.0 += 1;
        self.0
    }

    /// Returns the newest ticket issued, or `Ticket(0)` if there is none.
    pub fn newest(&self) -> Ticket {
        self.0
    }

    /// Checks that `ticket` was issued.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was not.
    pub fn check(&self, ticket: Ticket) -> Result<()> {
        if ticket > self.0 {
            let newest = self.0.0;
            return Err(Error::invalid(
                format!("ticket {}", ticket.0),
                format!("this mover has issued {newest} tickets; wait for one of them"),
            ));
        }
        Ok(())
    }
}

/// A device that copies between regions: CPU stores, a DMA engine, a GPU's copy engine or SMs.
pub trait Mover: Send {
    /// Returns the name in results: `cpu 64-byte non-temporal stores`, `gpu:0 copy engine`.
    fn name(&self) -> String;

    /// Returns the hops from source to destination, each named as in results. A single mover is one hop.
    fn hops(&self) -> Vec<String> {
        vec![self.name()]
    }

    /// Returns true if the mover is a twin, a software stand-in for a device. Measurements are then those of
    /// a model.
    fn is_twin(&self) -> bool {
        false
    }

    /// Returns true if the mover can copy from `source` to `destination`.
    fn reaches(&self, source: &Region, destination: &Region) -> bool;

    /// Starts copying `source` to `destination`, which has the same length. The mover keeps both alive until
    /// the ticket is done. Until then, do not write to the source and do not access the destination.
    ///
    /// # Errors
    /// - The mover does not reach a region, or the device refuses.
    /// - The regions overlap, or their lengths differ.
    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket>;

    /// Returns the newest ticket that is done: its copy and all before it have completed.
    ///
    /// # Errors
    /// If the device is lost.
    fn done(&mut self) -> Result<Ticket>;

    /// Waits until `ticket` is done.
    ///
    /// # Errors
    /// If the ticket was not issued, or the device is lost or does not answer.
    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()>;

    /// Returns true if each copy is done when [`Mover::submit`] returns.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Sets the completion mode. It also applies to waits within [`Mover::submit`]. Returns the mode in
    /// effect, which differs from `completion` if the mover does not support `completion`. The mode is `Poll`
    /// if the CPU itself copies.
    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        completion
    }

    /// Waits for all copies, then releases what the mover keeps between copies, such as resident kernels.
    /// Call it before a pause. Also call it before other work on the device, because that work may wait until
    /// resident kernels end.
    ///
    /// # Errors
    /// As for [`Mover::wait`].
    fn quiesce(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Checks that two regions can be copied: their lengths are equal and not 0, and they do not overlap.
///
/// # Errors
/// [`Error::Invalid`] that names both regions.
pub fn check_pair(source: &Region, destination: &Region) -> Result<()> {
    let pair = || format!("copy of {source:?} to {destination:?}");
    if source.is_empty() {
        return Err(Error::invalid(pair(), "there is nothing to copy; give at least one byte"));
    }
    if source.len() != destination.len() {
        return Err(Error::invalid(pair(), "the lengths differ; give regions of the same length"));
    }
    if source.overlaps(destination) {
        return Err(Error::invalid(pair(), "they overlap; give regions that do not overlap"));
    }
    Ok(())
}

/// Returns the error of a mover that cannot copy between two locations.
pub fn out_of_reach(mover: &dyn Mover, source: &Region, destination: &Region) -> Error {
    Error::device_usage(
        mover.name(),
        format!(
            "cannot copy from {} to {}; choose a mover or path that can",
            source.location(),
            destination.location()
        ),
    )
}
