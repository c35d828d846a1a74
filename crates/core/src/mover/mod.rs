//! Movers: what copies bytes between two regions, and how their copies in flight are kept and waited for.
//!
//! A mover is driven by one thread. Copies complete in the order they were submitted. [`CpuMover`] copies with the
//! processor's own loads and stores; DMA engines and GPUs are in their own crates and keep their copies in a
//! [`InFlight`].

mod cpu;
mod in_flight;

pub use crate::access::Access;
pub use cpu::CpuMover;
pub use in_flight::InFlight;

use crate::completion::CompletionMode;
use crate::error::{Error, Result};
use crate::region::Region;

/// A submitted copy's number: how many copies were submitted to its mover, up to and including it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Issues a mover's tickets.
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

/// What copies between regions: CPU stores, a DMA engine, a GPU's copy engine or SMs.
pub trait Mover: Send {
    /// As results name it (`cpu 64-byte non-temporal stores`, `gpu:0 copy engine`).
    fn name(&self) -> String;

    /// A software stand-in: its figures are a model's.
    fn is_twin(&self) -> bool {
        false
    }

    /// Can copy from `source` to `destination` at all.
    fn reaches(&self, source: &Region, destination: &Region) -> bool;

    /// Starts copying `source` to `destination`, which have the same length. Both stay alive and untouched until
    /// the ticket is done. A synchronous mover has copied when it returns.
    ///
    /// # Errors
    /// When it does not reach one of them, they overlap, their lengths differ, or the device refuses.
    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket>;

    /// The newest ticket that is done: its bytes and those of all before it are in place.
    ///
    /// # Errors
    /// When the device is lost.
    fn done(&mut self) -> Result<Ticket>;

    /// Waits until `ticket` is done.
    ///
    /// # Errors
    /// When the device is lost or does not answer.
    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()>;

    /// A copy is done when [`Mover::submit`] returns: one is in flight at a time, however many are asked for.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Says how ends will be awaited from now on, and gives how they really will be. A mover that waits within
    /// [`Mover::submit`] awaits its legs so; where the processor itself copies it is busy until the end, as one that polls.
    fn set_completion_mode(&mut self, completion: CompletionMode) -> CompletionMode {
        completion
    }

    /// Waits for all copies, and lets go of what it holds between them (kernels that stay on a GPU); the next copy takes it
    /// again. For before a pause, and before other work on the device that would wait for it.
    ///
    /// # Errors
    /// As [`Mover::wait`].
    fn quiesce(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What every mover checks before it copies: as many bytes on both sides, and none of them shared.
///
/// # Errors
/// [`Error::Invalid`] that names both regions.
pub fn check_pair(source: &Region, destination: &Region) -> Result<()> {
    let pair = || format!("copy of {source:?} to {destination:?}");
    if source.is_empty() {
        return Err(Error::invalid(pair(), "there is nothing to copy; give at least one byte"));
    }
    if source.len() != destination.len() {
        return Err(Error::invalid(pair(), "the lengths differ; slice one to the other's"));
    }
    if source.overlaps(destination) {
        return Err(Error::invalid(pair(), "they overlap; copy to memory of its own"));
    }
    Ok(())
}

/// What every mover answers when it cannot copy between two places.
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
