//! One-sided access between processing elements (PEs): put and get on symmetric memory, atomics at the owner,
//! ordering, delivery, and notifications between pairs of PEs.
//!
//! [`Transport`] lists the operations. [`windows::Windows`] implements them over NTB windows. [`ucx::Ucx`]
//! implements them over UCX, for PEs on several machines. [`bootstrap`] defines what a PE needs before it can
//! communicate. [`select`] chooses the transport.

pub mod bootstrap;
pub(crate) mod machine;
mod poll_limit;
pub mod rendezvous;
pub mod select;
pub mod ucx;
pub mod windows;
mod word;

use crate::error::{Error, Result};
use inlane_core::completion::CompletionMode;
use std::time::Duration;

/// When the memory that the caller of a put or get passes is no longer in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// When the function returns. The stores of a put are then issued, and the bytes of a get have arrived.
    AtReturn,
    /// When the next [`Transport::quiet`] returns. The function only starts the copy.
    AtQuiet,
}

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

/// An atomic operation on one word in a PE's symmetric memory. [`Capabilities::atomics`] names the mechanism
/// that carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The operation.
    pub operation: Operation,
    /// The word's offset from the start of symmetric memory. A multiple of the word's width.
    pub offset: usize,
    /// Bytes of the word: 4 or 8.
    pub width: usize,
    /// The operand.
    pub operand: u64,
    /// The value that [`Operation::CompareSwap`] compares with.
    pub comparand: u64,
}

/// The program's static objects. They are a part of symmetric memory, so other PEs access them by symmetric
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
    /// The methods that transferred bytes to the PEs that were accessed so far, such as `twin`, `tcp` or
    /// `sysv`.
    pub methods: Vec<String>,
    /// The number of PEs whose memory this PE can access with plain loads and stores. Includes this PE.
    pub mapped_pes: u32,
    /// What executes atomic operations, such as the processor of the calling PE. If this differs between PEs
    /// or words, the text lists the cases.
    pub atomics: String,
    /// True if a started put, get or atomic may still be in flight when its function returns.
    pub nonblocking: bool,
}

/// What a wait waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Awaited {
    /// The offset and width of the word, if the wait's condition reads only one word. Puts to other words then do not wake
    /// the thread.
    pub word: Option<(usize, usize)>,
    /// The only PE that can end the wait, if there is such a PE. The loss of other PEs then need not end the wait.
    pub pe: Option<u32>,
    /// The completion mode of this wait. `None`: the mode of the job.
    pub mode: Option<CompletionMode>,
}

/// A check for reasons to end a wait with an error. Waits that last call it now and then, with the time that they have
/// lasted. It may call [`Transport::get`]. If it fails, the wait looks at its condition once more.
pub type Check<'a> = &'a mut dyn FnMut(Duration) -> Result<()>;

/// The [`Check`] of a wait that has none.
pub fn no_check(_: Duration) -> Result<()> {
    Ok(())
}

/// Access to the symmetric memory of all PEs of a job. Any thread may call any method. Offsets count from the
/// start of symmetric memory. All PEs have the same length of symmetric memory.
pub trait Transport: Send + Sync + 'static {
    /// Returns the number of this PE.
    fn me(&self) -> u32;
    /// Returns the number of PEs.
    fn pes(&self) -> u32;
    /// Returns the address and the length of this PE's symmetric memory.
    fn symmetric(&self) -> (*mut u8, usize);
    /// Returns the transport of another context. Its operations are ordered and completed for themselves, and threads that
    /// use different contexts do not wait for each other. Use it for puts, gets, atomics, fence and quiet only. Returns
    /// `None` if the other context shall use this transport, too.
    fn context(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
    /// Returns the largest supported alignment of an allocation in symmetric memory, in bytes. The start
    /// addresses of symmetric memory are equal modulo this number on all PEs. An offset therefore has the
    /// same alignment on all PEs.
    fn alignment(&self) -> usize {
        4096
    }
    /// Returns the least size in bytes of a reduction that is cut into slices. Each PE then combines one
    /// slice. All PEs of a job must return the same size, because they must cut a reduction alike.
    fn slices_from(&self) -> usize {
        64 << 10
    }
    /// Returns the address at which plain loads and stores reach the byte at `offset` of `pe`'s symmetric
    /// memory. Returns `None` if loads and stores cannot reach that byte.
    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8>;
    /// Returns the transport's name, how it reaches the PEs, and what carries out atomics.
    fn capabilities(&self) -> Capabilities;

    /// Copies to `pe`. `reuse` says until when the source stays in use.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a PE that does not exist; errors of the window for bytes outside
    /// symmetric memory, and of the mover.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes and does not overlap the destination, as long as it is in use.
    unsafe fn put(
        &self,
        pe: u32,
        offset: usize,
        source: *const u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()>;

    /// Copies from `pe`. `reuse` says until when the bytes have arrived.
    ///
    /// # Errors
    /// As for [`Transport::put`]; [`crate::error::Error::LinkLost`] and [`crate::error::Error::Timeout`].
    ///
    /// # Safety
    /// `destination` is writable for `length` bytes and does not overlap the source, as long as it is in use.
    unsafe fn get(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()>;

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

    /// Orders puts: at each PE, puts before this call arrive before all later puts and atomics.
    ///
    /// # Errors
    /// Errors of the mover.
    fn order(&self) -> Result<()>;

    /// Orders puts and atomics: at each PE, those before this call arrive before all later ones. Blocks until
    /// the atomics without a result are complete.
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

    /// Blocks until all earlier puts and atomics of all contexts of this PE are delivered.
    ///
    /// # Errors
    /// As for [`Transport::quiet`].
    fn quiet_all(&self) -> Result<()> {
        self.quiet()
    }

    /// Sends a notification to `pe`. Each PE counts the notifications from every other PE separately. The
    /// notification arrives after all earlier [`Transport::put`]s to `pe`. It may arrive before copies that
    /// a put with [`Reuse::AtQuiet`] started. Only one thread at a time may call it.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a PE that does not exist.
    fn notify(&self, pe: u32) -> Result<()>;

    /// Consumes one notification of `pe`. Blocks until one has arrived.
    ///
    /// # Errors
    /// [`crate::error::Error::LinkLost`] if the peer is lost; errors of `check`.
    fn take_notification(&self, pe: u32, check: Check<'_>) -> Result<()>;

    /// Blocks until `done` returns true. `done` reads this PE's symmetric memory.
    ///
    /// # Errors
    /// [`crate::error::Error::LinkLost`] if a peer is lost during the wait; errors of `check`.
    fn wait(&self, awaited: Awaited, done: &mut dyn FnMut() -> bool, check: Check<'_>) -> Result<()>;

    /// Carries out pending requests of other PEs. Call it in loops that do not call [`Transport::wait`].
    fn progress(&self);

    /// Returns true if there are more PEs on this machine than processors. A loop that polls then lets other
    /// PEs run.
    fn shares_processors(&self) -> bool;

    /// Lets other PEs run if PEs share processors, and if this PE has started no counted operation since its
    /// last call of this method. Call it when the program calls fence or quiet: the program then probably
    /// waits for something in a loop of these calls.
    ///
    /// Puts of at least one byte are counted. Over windows, atomics without a result are also counted if this
    /// PE's processor carries them out on another PE's memory. Over UCX, all operations that UCX carries out
    /// are also counted. Other gets and atomics are not counted, so a call after them may let other PEs run
    /// although the program does not poll.
    fn yield_if_idle(&self);

    /// Blocks until this PE may end: its puts are delivered, because those in flight would be lost when the process ends, and
    /// no other PE needs its service thread any more. All PEs call this last. A PE that has received all puts may have ended
    /// meanwhile.
    ///
    /// # Errors
    /// If another PE has ended without this call.
    fn leave(&self) -> Result<()>;
}

#[cold]
fn no_such_pe(pe: u32, pes: u32) -> Error {
    // If a C program passes a negative number, it arrives as a large number. Print it as a signed number.
    let why = format!("the job has PEs 0 to {}; give one of them", pes - 1);
    Error::invalid(format!("PE {} does not exist", pe as i32), why)
}
