//! The library that programs use. It provides symmetric memory, put and get, signals, waits and collectives
//! over a transport.
//!
//! ```text
//! symmetric memory of each PE, with the same offsets on all PEs
//! 0            workspace of the collectives
//! statics      the program's .data and .bss, if it has static symmetric objects (C)
//! heap         allocations
//! ```
//!
//! Any thread may use a [`World`]. Each [`Channel`] runs one collective at a time. All sets without a channel
//! together also run only one collective at a time.

#[cfg(test)]
pub(crate) mod broadcast_tests;
mod channel;
mod collective;
mod context;
mod heap;
mod set;
#[cfg(test)]
pub(crate) mod tests;
mod typed;
mod wait;

pub use channel::{Channel, Group};
pub use collective::Reduce;
pub use context::Context;
pub use heap::Heap;
pub use set::Set;
pub use typed::{Element, Symmetric};

use crate::error::{Error, Result};
use crate::field::HEAP;
use crate::transport::Transport;
use context::Spans;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a wait compares its word with a value: the wait ends when the comparison holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
}

impl Compare {
    /// Returns true if the comparison of `left` with `right` holds.
    #[inline]
    pub fn holds<T: PartialOrd>(self, left: T, right: T) -> bool {
        match self {
            Compare::Eq => left == right,
            Compare::Ne => left != right,
            Compare::Gt => left > right,
            Compare::Ge => left >= right,
            Compare::Lt => left < right,
            Compare::Le => left <= right,
        }
    }
}

/// The effect of a signal on its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Stores the value in the word.
    Set,
    /// Adds the value to the word, by an atomic at the word's owner.
    Add,
}

/// One PE and its access to all other PEs. Programs use this type to allocate, wait and synchronise, and to put and get
/// through the default context.
pub struct World<T: Transport> {
    default: Context<T>,
    heap: Arc<Mutex<Heap>>,
    collective: Mutex<()>,
    places: channel::Places,
    /// See [`World::fail_waits_if`].
    is_alone: Option<fn() -> bool>,
    /// The thresholds, size in bytes and number of PEs, from which a broadcast is cut into slices. Tests
    /// lower them.
    pub(crate) scattered_from: (usize, u32),
}

/// The value of each byte of freed memory, if accesses are checked.
const FREED: u8 = 0xF5;

/// A call of the heap, which all PEs must make alike.
#[derive(Clone, Copy)]
enum Call {
    /// The number of bytes.
    Allocate(usize),
    /// The offset in the heap plus 1. 0 if nothing is released.
    Release(usize),
    /// The new number of bytes.
    Shrink(usize),
}

impl Call {
    /// The position of the kind of call in an encoded call. The number lies below it.
    const KIND: u32 = 56;

    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Call::Allocate(bytes) => (1u64, bytes),
            Call::Release(offset) => (2, offset),
            Call::Shrink(bytes) => (3, bytes),
        };
        kind << Self::KIND | (number as u64).min((1 << Self::KIND) - 1)
    }

    /// Describes an encoded call in an error message.
    fn describe(call: u64) -> String {
        let number = call & ((1 << Self::KIND) - 1);
        match (call >> Self::KIND, number) {
            (1, bytes) => format!("an allocation of {bytes} bytes"),
            (2, 0) => "the release of a null pointer".into(),
            (2, offset) => format!("the release of the block at heap offset {}", offset - 1),
            (_, bytes) => format!("the reallocation of a block to {bytes} bytes"),
        }
    }
}

/// The most bytes that a reduction combines in one step (a chunk), for collectives without a channel.
const CHUNK: usize = 32 << 10;
/// Distance in bytes between two words of the workspace. Each word has a cache line of its own.
const WORD: usize = 128;

impl<T: Transport> std::ops::Deref for World<T> {
    type Target = Context<T>;

    #[inline(always)]
    fn deref(&self) -> &Context<T> {
        &self.default
    }
}

impl<T: Transport> World<T> {
    /// Returns the offset of the program's static objects in symmetric memory.
    pub fn statics_offset(pes: u32) -> usize {
        channel::workspace_bytes(pes).next_multiple_of(4096)
    }

    /// Returns the size in bytes of the symmetric memory for `pes` PEs, a heap of `heap_bytes`, and static
    /// objects of `statics_bytes`.
    pub fn symmetric_bytes(pes: u32, statics_bytes: usize, heap_bytes: usize) -> usize {
        Self::statics_offset(pes) + statics_bytes.next_multiple_of(4096) + heap_bytes.next_multiple_of(4096)
    }

    /// Makes a world over `transport`. The program's static objects are the `statics_bytes` at address
    /// `statics`. The transport must already have mapped them to offset [`World::statics_offset`]. Pass 0 for
    /// both if there are none. The heap takes the rest of symmetric memory. Call a collective before [`World::leave`], so
    /// that all PEs have made their world before one leaves.
    ///
    /// # Errors
    /// [`Error::Invalid`] if nothing remains for the heap.
    pub fn new(transport: T, statics: usize, statics_bytes: usize) -> Result<Self> {
        let (base, length) = transport.symmetric();
        let statics_offset = Self::statics_offset(transport.pes());
        let heap_offset = statics_offset + statics_bytes.next_multiple_of(4096);
        if heap_offset >= length {
            return Err(Error::invalid(
                format!("symmetric memory of {length} bytes"),
                format!("the library and static objects need {heap_offset} of them; give a larger {HEAP}"),
            ));
        }
        let heap_bytes = length - heap_offset;
        let shares_processors = transport.shares_processors();
        let places = channel::Places::new(transport.pes());
        let origin = (base as usize + heap_offset) % transport.alignment();
        let base = base as usize;
        let spans = Spans { base, statics, statics_bytes, statics_offset, heap_offset, heap_bytes };
        let world = Self {
            default: Context { transport, spans, shares_processors, checked: None },
            heap: Arc::new(Mutex::new(Heap::new(heap_bytes, origin))),
            collective: Mutex::new(()),
            places,
            is_alone: None,
            scattered_from: collective::SCATTERED_FROM,
        };
        world.clear_leaving();
        Ok(world)
    }

    /// Ends this world and returns the transport, to make another world over it.
    pub fn into_transport(self) -> T {
        self.default.transport
    }

    /// Makes another context, or returns `None` if it shall use the default one; see [`Transport::context`].
    pub fn context(&self) -> Option<Context<T>> {
        let transport = self.transport.context()?;
        let (spans, shares_processors) = (self.spans, self.shares_processors);
        Some(Context { transport, spans, shares_processors, checked: self.checked.clone() })
    }

    /// Checks from now on that all PEs make the same calls of the heap, and that accesses lie within one allocated block.
    /// Overwrites freed memory. All PEs must call it before they make contexts.
    pub fn check_heap(&mut self) {
        self.default.checked = Some(self.heap.clone());
        self.default.spans.heap_bytes = 0;
    }

    /// Blocks until all PEs make this call of the heap. If calls are checked, compares the calls of all PEs.
    fn all_call(&self, call: Call) -> Result<()> {
        if self.checked.is_some() {
            let calls = self.tell_all(&self.enter(self.all())?, call.encode())?;
            let other = (0..).zip(calls).find(|(_, other)| *other != call.encode());
            if let Some((peer, other)) = other {
                let own = Call::describe(call.encode());
                return Err(Error::Asymmetric { own, peer, other: Call::describe(other) });
            }
        }
        self.barrier_all()
    }

    /// Waits for all PEs like an allocation of 0 bytes, which allocates nothing.
    ///
    /// # Errors
    /// As for [`World::allocate`].
    pub fn allocate_nothing(&self) -> Result<()> {
        self.all_call(Call::Allocate(0))
    }

    /// Waits for all PEs like the release of a null pointer, which releases nothing.
    ///
    /// # Errors
    /// As for [`World::release`].
    pub fn release_nothing(&self) -> Result<()> {
        self.all_call(Call::Release(0))
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates symmetric memory, aligned to at most [`Transport::alignment`]. All PEs must call it with the
    /// same arguments.
    ///
    /// # Errors
    /// [`Error::Heap`] and [`Error::Invalid`], on all PEs alike; [`Error::LinkLost`].
    pub fn allocate(&self, bytes: usize, align: usize) -> Result<*mut u8> {
        self.allocate_behind(bytes, align, 0)
    }

    /// Allocates symmetric memory for data that is copied. An allocation of 4 KiB or more starts in the
    /// middle of a page.
    ///
    /// This avoids 4K aliasing. A copy between caches takes up to 1.7 times as long if its destination starts
    /// slightly after its source modulo 4096. Most buffers of programs start near the start of a page. This
    /// memory starts in the middle instead.
    ///
    /// # Errors
    /// As for [`World::allocate`].
    pub fn allocate_for_copies(&self, bytes: usize) -> Result<*mut u8> {
        match bytes {
            0..4096 => self.allocate(bytes, 64),
            _ => self.allocate_behind(bytes, 4096, 2048),
        }
    }

    fn allocate_behind(&self, bytes: usize, align: usize, behind: usize) -> Result<*mut u8> {
        // Refuse an alignment larger than the transport supports, because the offsets would differ between
        // PEs.
        let largest = self.transport.alignment();
        let offset = match align <= largest {
            true => self.heap().allocate_behind(bytes, align, behind),
            false => {
                let why = format!("this transport supports alignments up to {largest}; give a smaller one");
                Err(Error::invalid(format!("alignment {align}"), why))
            }
        };
        self.all_call(Call::Allocate(bytes))?;
        Ok(self.address_of(self.spans.heap_offset + offset?))
    }

    /// Frees symmetric memory. All PEs must call it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that was not allocated, [`Error::LinkLost`].
    pub fn release(&self, address: *mut u8) -> Result<()> {
        let offset = (address as usize).wrapping_sub(self.spans.base + self.spans.heap_offset);
        self.all_call(Call::Release(offset.wrapping_add(1)))?;
        let freed = self.heap().allocated(offset).filter(|_| self.checked.is_some());
        if let Some(size) = freed {
            let block = self.address_of(self.spans.heap_offset + offset);
            // SAFETY: the block is allocated, and all PEs have called this function, so nobody uses it.
            unsafe { std::ptr::write_bytes(block, FREED, size) };
        }
        match self.heap().release(offset) {
            true => Ok(()),
            false => {
                let why = "it is no block of shmem_malloc, or it was freed before; free each block once";
                Err(Error::invalid(format!("address {:#x}", address as usize), why))
            }
        }
    }

    /// Shrinks the allocation at `address` to `bytes` bytes. All PEs must call it with the same arguments.
    /// Returns false if there is no such allocation or if it is smaller than `bytes`. Does not wait for other
    /// PEs in these cases.
    ///
    /// # Errors
    /// As for [`Transport::quiet`] and [`World::sync`].
    pub fn shrink(&self, address: *mut u8, bytes: usize) -> Result<bool> {
        if self.allocated(address).is_none_or(|length| bytes > length) {
            return Ok(false);
        }
        // Wait for all PEs before freeing bytes, because a PE may store to these bytes until it calls this
        // function.
        self.all_call(Call::Shrink(bytes))?;
        let offset = (address as usize).wrapping_sub(self.spans.base + self.spans.heap_offset);
        let shrunk = self.heap().shrink(offset, bytes);
        self.barrier_all()?;
        Ok(shrunk)
    }

    /// Returns the size of the allocation at `address`, if there is one.
    pub fn allocated(&self, address: *mut u8) -> Option<usize> {
        self.heap().allocated((address as usize).wrapping_sub(self.spans.base + self.spans.heap_offset))
    }
}
