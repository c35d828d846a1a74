//! Movers: what copies bytes between two regions.
//!
//! A mover is driven by one thread. Copies complete in the order they were submitted.

use crate::completion::Completion;
use crate::error::Result;
use crate::region::Region;

/// A ticket for a submitted copy: the count of copies submitted to that mover up to and including it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What copies between regions: CPU stores, a DMA engine, a GPU's copy engine or SMs.
pub trait Mover: Send {
    /// As results name it (`cpu avx512 non-temporal`, `gpu:0 copy engine`).
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
    fn wait(&mut self, ticket: Ticket, completion: Completion) -> Result<()>;
}
