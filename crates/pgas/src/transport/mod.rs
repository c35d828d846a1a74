//! What the library needs from whatever joins the processing elements (PEs): one-sided access to symmetric memory, atomics at
//! the owner, order, delivery, and a notification a pair.
//!
//! [`windows::Windows`] is the transport over NTB windows. UCX, for peers on a network, is the next one: not supported yet.

pub mod layout;
mod record;
mod requests;
mod service;
#[cfg(test)]
mod tests;
pub mod threshold;
pub mod wait;
pub mod wakeup;
pub mod windows;

use crate::error::Result;

/// What an atomic does to the word; all give the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Only read.
    Fetch,
    /// Replace it by the operand.
    Swap,
    /// Replace it by the operand where it equals the comparand.
    CompareSwap,
    /// Add the operand, wrapping.
    Add,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// An atomic on one word of a PE's symmetric memory, carried out by that PE's own processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// What to do.
    pub operation: Operation,
    /// Offset of the word in symmetric memory, a multiple of its width.
    pub offset: usize,
    /// 4 or 8 bytes.
    pub width: usize,
    /// The operand.
    pub operand: u64,
    /// What [`Operation::CompareSwap`] compares with.
    pub comparand: u64,
}

/// A set of PEs that reach each other's symmetric memory. Any thread may use it.
///
/// Offsets are from the start of symmetric memory, which every PE has of the same length.
pub trait Transport: Send + Sync + 'static {
    /// This PE.
    fn me(&self) -> u32;
    /// How many there are.
    fn pes(&self) -> u32;
    /// Symmetric memory of this PE: where it is mapped and how long it is.
    fn symmetric(&self) -> (*mut u8, usize);
    /// Where `pe`'s symmetric memory is mapped here, when plain loads and stores reach it.
    fn direct(&self, pe: u32) -> Option<*mut u8>;

    /// Copies to `pe`; issued when it returns, and the source may be reused.
    ///
    /// # Errors
    /// For bytes outside symmetric memory, a PE that does not exist, or a mover that failed.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes and is not the destination.
    unsafe fn put(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()>;

    /// As [`Transport::put`], but the source is in use until the next [`Transport::quiet`].
    ///
    /// # Errors
    /// As for [`Transport::put`].
    ///
    /// # Safety
    /// As for [`Transport::put`], until the next quiet.
    unsafe fn put_nbi(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()>;

    /// Copies from `pe`; the bytes are there when it returns.
    ///
    /// # Errors
    /// As for [`Transport::put`], and when the peer is lost or does not answer.
    ///
    /// # Safety
    /// `destination` is writable for `length` bytes and is not the source.
    unsafe fn get(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()>;

    /// Carries out an atomic at its owner and waits for the value before.
    ///
    /// # Errors
    /// For a word outside symmetric memory or misaligned, and when the owner is lost or does not answer.
    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64>;

    /// Starts an atomic whose result nobody wants; done after the next quiet.
    ///
    /// # Errors
    /// As for [`Transport::atomic`], later ones at the next quiet.
    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()>;

    /// Puts to a PE before it arrive there before puts and atomics after it.
    ///
    /// # Errors
    /// When a mover fails.
    fn order(&self) -> Result<()>;

    /// As [`Transport::order`], for atomics before it too: it waits for those that nobody awaited.
    ///
    /// # Errors
    /// As for [`Transport::order`] and [`Transport::atomic`].
    fn fence(&self) -> Result<()>;

    /// All puts and atomics before it are delivered when it returns.
    ///
    /// # Errors
    /// [`crate::error::Error::LinkLost`] with what is known to be delivered.
    fn quiet(&self) -> Result<()>;

    /// Adds one to the count that `pe` keeps of this PE's notifications, behind all that was put there; one thread at a time.
    ///
    /// # Errors
    /// For a PE that does not exist.
    fn notify(&self, pe: u32) -> Result<()>;

    /// Takes one of `pe`'s notifications, waiting for it.
    ///
    /// # Errors
    /// When the peer is lost.
    fn take_notification(&self, pe: u32) -> Result<()>;

    /// Waits until `done`, which looks at this PE's symmetric memory: at the word of `(offset, width)` alone, where that is
    /// given, so that what peers put elsewhere meanwhile does not disturb a sleeper.
    ///
    /// # Errors
    /// When a peer is lost meanwhile.
    fn wait(&self, word: Option<(usize, usize)>, done: &mut dyn FnMut() -> bool) -> Result<()>;

    /// Lets others' requests proceed.
    fn progress(&self);
}
