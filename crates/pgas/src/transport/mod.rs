//! One-sided access between processing elements (PEs): put and get on symmetric memory, atomics at the owner,
//! ordering, delivery, and notifications between pairs.
//!
//! [`Transport`] lists the operations. [`windows::Windows`] implements them over NTB windows, and
//! [`ucx::Ucx`] over UCX, for PEs on several machines. [`bootstrap`] is what a PE needs before it can
//! communicate. [`select`] chooses the transport.

pub mod bootstrap;
pub mod layout;
mod poll_limit;
mod record;
pub mod rendezvous;
mod requests;
pub mod select;
mod service;
#[cfg(test)]
mod tests;
pub mod threshold;
pub mod ucx;
pub mod wait;
pub mod wakeup;
pub mod windows;
mod word;

use crate::error::{Error, Result};

/// An atomic operation. Every operation returns the previous value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the word.
    Fetch,
    /// Replaces the word by the operand.
    Swap,
    /// Replaces the word by the operand if it equals the comparand.
    CompareSwap,
    /// Adds the operand; wraps on overflow.
    Add,
    /// Replaces the word by its bitwise AND with the operand.
    And,
    /// Replaces the word by its bitwise OR with the operand.
    Or,
    /// Replaces the word by its bitwise XOR with the operand.
    Xor,
}

/// An atomic on one word of a PE's symmetric memory. [`Capabilities::atomics`] names what carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The operation.
    pub operation: Operation,
    /// Symmetric offset of the word, a multiple of its width.
    pub offset: usize,
    /// Bytes of the word: 4 or 8.
    pub width: usize,
    /// The operand.
    pub operand: u64,
    /// The value that [`Operation::CompareSwap`] compares with.
    pub comparand: u64,
}

/// The program's static objects, which are a part of symmetric memory: other PEs access them by symmetric
/// offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statics {
    /// Symmetric offset of the span.
    pub offset: usize,
    /// Address of the static objects in this process. It may differ between PEs.
    pub address: usize,
    /// Length of the span in bytes, equal on all PEs.
    pub bytes: usize,
}

/// What a connected transport can do.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Capabilities {
    /// The transport: `windows` or `ucx`.
    pub name: String,
    /// The methods by which bytes reach the PEs that were accessed so far, such as `twin`, `tcp` or `sysv`.
    pub methods: Vec<String>,
    /// Number of PEs, this PE included, whose memory plain loads and stores reach.
    pub mapped_pes: u32,
    /// What executes atomic operations, such as the processor of the calling PE. If it differs between PEs or
    /// words, the text names each case.
    pub atomics: String,
    /// True if a started put, get or atomic may still be in flight when its function returns.
    pub nonblocking: bool,
}

/// Access to the symmetric memory of all PEs of a job. Any thread may call any method. Offsets count from
/// the start of symmetric memory, whose length is equal on all PEs.
pub trait Transport: Send + Sync + 'static {
    /// Returns the number of this PE.
    fn me(&self) -> u32;
    /// Returns the number of PEs.
    fn pes(&self) -> u32;
    /// Returns the address and the length of this PE's symmetric memory.
    fn symmetric(&self) -> (*mut u8, usize);
    /// Returns the largest supported alignment of an allocation in symmetric memory, in bytes. The addresses
    /// at which symmetric memory starts are equal modulo this number on all PEs, so an offset has the same
    /// alignment on all PEs.
    fn alignment(&self) -> usize {
        4096
    }
    /// Returns the size in bytes from which a reduction is cut into slices, each of which one PE combines.
    /// All PEs of a job return the same size, because they must cut a reduction alike.
    fn slices_from(&self) -> usize {
        64 << 10
    }
    /// Returns the address at which plain loads and stores reach the byte at `offset` of `pe`'s symmetric
    /// memory. Returns `None` if they cannot reach it.
    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8>;
    /// Returns the transport's name, how it reaches the PEs, and what carries out atomics.
    fn capabilities(&self) -> Capabilities;

    /// Copies to `pe`. When this method returns, the stores are issued and the source may be reused.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a PE that does not exist; errors of the window for bytes outside
    /// symmetric memory, and of the mover.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes and does not overlap the destination.
    unsafe fn put(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()>;

    /// Starts a copy to `pe`. The source stays in use until the next [`Transport::quiet`].
    ///
    /// # Errors
    /// As for [`Transport::put`].
    ///
    /// # Safety
    /// As for [`Transport::put`], until the next quiet.
    unsafe fn put_nbi(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()>;

    /// Copies from `pe`. The bytes have arrived when this method returns.
    ///
    /// # Errors
    /// As for [`Transport::put`]; [`crate::error::Error::LinkLost`] and [`crate::error::Error::Timeout`].
    ///
    /// # Safety
    /// `destination` is writable for `length` bytes and does not overlap the source.
    unsafe fn get(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()>;

    /// Starts a copy from `pe`. The bytes have arrived after the next [`Transport::quiet`].
    ///
    /// # Errors
    /// As for [`Transport::get`].
    ///
    /// # Safety
    /// As for [`Transport::get`], until the next quiet.
    unsafe fn get_nbi(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()>;

    /// Carries out an atomic on `pe`'s memory. Returns the previous value.
    ///
    /// # Errors
    /// [`crate::error::Error::Refused`] for a word outside symmetric memory,
    /// [`crate::error::Error::LinkLost`], [`crate::error::Error::Timeout`].
    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64>;

    /// Starts an atomic whose result is not needed. It is complete after the next [`Transport::quiet`].
    ///
    /// # Errors
    /// As for [`Transport::atomic`]. A refusal is reported by the next quiet or fence.
    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()>;

    /// Starts an atomic. The previous value is stored at `result` before the next [`Transport::quiet`] ends.
    ///
    /// # Errors
    /// As for [`Transport::atomic`].
    ///
    /// # Safety
    /// `result` is writable for the width of the atomic until the next quiet.
    unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: Atomic, result: *mut u8) -> Result<()>;

    /// Orders puts: those before this call arrive at each PE before all later puts and atomics to that PE.
    ///
    /// # Errors
    /// Errors of the mover.
    fn order(&self) -> Result<()>;

    /// Orders puts and atomics: those before this call arrive at each PE before all later ones to that PE.
    /// Blocks until the atomics without a result are complete.
    ///
    /// # Errors
    /// As for [`Transport::order`] and [`Transport::atomic`].
    fn fence(&self) -> Result<()>;

    /// Blocks until all earlier puts and atomics of this PE are delivered.
    ///
    /// # Errors
    /// [`crate::error::Error::LinkLost`], which says how many bytes are known to be delivered. Also the
    /// errors of [`Transport::fence`].
    fn quiet(&self) -> Result<()>;

    /// Notifies `pe`, which counts the notifications of each PE. The notification arrives after all earlier
    /// [`Transport::put`]s to `pe`, but maybe before copies that [`Transport::put_nbi`] started. Only one
    /// thread at a time may call it.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a PE that does not exist.
    fn notify(&self, pe: u32) -> Result<()>;

    /// Consumes one notification of `pe`. Blocks until one has arrived.
    ///
    /// # Errors
    /// [`crate::error::Error::LinkLost`] if the peer is lost.
    fn take_notification(&self, pe: u32) -> Result<()>;

    /// Blocks until `done` returns true. `done` reads this PE's symmetric memory. If `done` reads only one
    /// word, pass the word's `(offset, width)`. Puts to other words then do not wake a sleeping thread.
    ///
    /// # Errors
    /// [`crate::error::Error::LinkLost`] if a peer is lost meanwhile.
    fn wait(&self, word: Option<(usize, usize)>, done: &mut dyn FnMut() -> bool) -> Result<()>;

    /// Carries out pending requests of other PEs. Call it in loops that do not wait in the transport.
    fn progress(&self);

    /// Returns true if there are more PEs on this machine than processors. A loop that polls then lets other
    /// PEs run.
    fn shares_processors(&self) -> bool;

    /// Blocks until no other PE needs this PE's service thread, so that this PE may end. All PEs call it
    /// last, after a [`Transport::quiet`].
    ///
    /// # Errors
    /// If another PE has ended without this call.
    fn leave(&self) -> Result<()>;
}

#[cold]
fn no_such_pe(pe: u32, pes: u32) -> Error {
    // A negative number of a C program arrives as a large one, so print it as a signed number.
    let why = format!("the job has PEs 0 to {}; give one of them", pes - 1);
    Error::invalid(format!("PE {} does not exist", pe as i32), why)
}
