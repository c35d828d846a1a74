//! The library over a transport: symmetric memory with addresses, put and get, signals, waits, collectives.
//!
//! ```text
//! symmetric memory of each PE, the same offsets everywhere
//! 0            workspace of the collectives: a word and a chunk for each PE
//! statics      the program's .data and .bss, where it has static symmetric objects (C)
//! heap         what malloc gives
//! ```
//!
//! A [`World`] may be used by any number of threads; collectives of one PE go one at a time.

mod collective;
mod heap;
#[cfg(test)]
mod tests;
mod typed;

pub use collective::{Reduce, Set};
pub use heap::Heap;
pub use typed::{Element, Symmetric};

use crate::error::{Error, Result};
use crate::transport::{Atomic, Operation, Transport};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a waited-for word is compared.
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
    /// `left` against `right`.
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

/// What a signal does to its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Sets it.
    Set,
    /// Adds to it, at the owner.
    Add,
}

/// A PE among its peers.
pub struct World<T: Transport> {
    transport: T,
    base: usize,
    statics: usize,
    statics_bytes: usize,
    statics_offset: usize,
    heap_offset: usize,
    heap_bytes: usize,
    heap: Mutex<Heap>,
    collective: Mutex<()>,
}

/// A chunk of a reduction.
const CHUNK: usize = 32 << 10;
/// A word for each PE, on a line of its own.
const WORD: usize = 128;

impl<T: Transport> World<T> {
    /// Where the program's statics go in symmetric memory.
    pub fn statics_offset(pes: u32) -> usize {
        (pes as usize * (WORD + CHUNK)).next_multiple_of(4096)
    }

    /// Bytes of symmetric memory that a heap of `heap_bytes` and statics of `statics_bytes` need.
    pub fn symmetric_bytes(pes: u32, statics_bytes: usize, heap_bytes: usize) -> usize {
        Self::statics_offset(pes) + statics_bytes.next_multiple_of(4096) + heap_bytes.next_multiple_of(4096)
    }

    /// A world over `transport`. The `statics_bytes` at address `statics` have already been mapped to
    /// [`World::statics_offset`] of symmetric memory (0 bytes: there are none); the heap is what remains.
    ///
    /// # Errors
    /// [`Error::Invalid`] when nothing remains.
    pub fn new(transport: T, statics: usize, statics_bytes: usize) -> Result<Self> {
        let (base, length) = transport.symmetric();
        let statics_offset = Self::statics_offset(transport.pes());
        let heap_offset = statics_offset + statics_bytes.next_multiple_of(4096);
        if heap_offset >= length {
            return Err(Error::invalid(
                format!("symmetric memory of {length} bytes"),
                format!("the library and the program's statics take {heap_offset}; give a larger --heap"),
            ));
        }
        let heap_bytes = length - heap_offset;
        Ok(Self {
            transport,
            base: base as usize,
            statics,
            statics_bytes,
            statics_offset,
            heap_offset,
            heap_bytes,
            heap: Mutex::new(Heap::new(heap_bytes)),
            collective: Mutex::new(()),
        })
    }

    /// This PE.
    pub fn me(&self) -> u32 {
        self.transport.me()
    }

    /// How many PEs there are.
    pub fn pes(&self) -> u32 {
        self.transport.pes()
    }

    /// Gives the transport back, for another world over it.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// The transport below.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The offset in symmetric memory of `bytes` at `address`.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`].
    #[inline(always)]
    pub fn offset_of(&self, address: usize, bytes: usize) -> Result<usize> {
        let within = |start: usize, length: usize| {
            let at = address.wrapping_sub(start);
            (at < length && bytes <= length - at).then_some(at)
        };
        if let Some(at) = within(self.base + self.heap_offset, self.heap_bytes) {
            return Ok(self.heap_offset + at);
        }
        match within(self.statics, self.statics_bytes) {
            Some(at) => Ok(self.statics_offset + at),
            // Nothing at all may be anywhere.
            None if bytes == 0 => Ok(self.heap_offset),
            None => Err(Error::NotSymmetric { address, bytes }),
        }
    }

    /// The address of symmetric `offset` here.
    pub fn address_of(&self, offset: usize) -> *mut u8 {
        (self.base + offset) as *mut u8
    }

    /// Where `pe`'s object of `address` can be reached by loads and stores, if it can.
    pub fn direct(&self, address: usize, pe: u32) -> Option<*mut u8> {
        let offset = self.offset_of(address, 1).ok()?;
        if pe == self.me() {
            return Some(address as *mut u8);
        }
        Some(self.transport.direct(pe)?.wrapping_add(offset))
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates symmetric memory, aligned to at most 4096; a collective of all PEs, which all give the same arguments.
    ///
    /// # Errors
    /// [`Error::Heap`] and [`Error::Invalid`] (then on all PEs alike), [`Error::LinkLost`].
    pub fn allocate(&self, bytes: usize, align: usize) -> Result<*mut u8> {
        // Each PE's memory lies at a page of its own.
        let offset = match align <= 4096 {
            true => self.heap().allocate(bytes, align),
            false => Err(Error::invalid(format!("alignment {align}"), "give at most 4096")),
        };
        self.barrier_all()?;
        Ok(self.address_of(self.heap_offset + offset?))
    }

    /// Gives symmetric memory back; a collective of all PEs.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] for an address that was not allocated, [`Error::LinkLost`].
    pub fn release(&self, address: *mut u8) -> Result<()> {
        self.barrier_all()?;
        let offset = (address as usize).wrapping_sub(self.base + self.heap_offset);
        match self.heap().release(offset) {
            true => Ok(()),
            false => Err(Error::NotSymmetric { address: address as usize, bytes: 0 }),
        }
    }

    /// Bytes allocated at `address`, if it was.
    pub fn allocated(&self, address: *mut u8) -> Option<usize> {
        self.heap().allocated((address as usize).wrapping_sub(self.base + self.heap_offset))
    }

    /// Copies to the object at symmetric address `destination` of `pe`; issued when it returns.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::put`].
    ///
    /// # Safety
    /// `source` is readable for `bytes` and is not the destination.
    #[inline]
    pub unsafe fn put_bytes(
        &self,
        destination: usize,
        source: *const u8,
        bytes: usize,
        pe: u32,
    ) -> Result<()> {
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.transport.put(pe, offset, source, bytes) }
    }

    /// As [`World::put_bytes`]; the source is in use until the next quiet.
    ///
    /// # Errors
    /// As for [`World::put_bytes`].
    ///
    /// # Safety
    /// As for [`World::put_bytes`], until the next quiet.
    #[inline]
    pub unsafe fn put_bytes_nbi(
        &self,
        destination: usize,
        source: *const u8,
        bytes: usize,
        pe: u32,
    ) -> Result<()> {
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.transport.put_nbi(pe, offset, source, bytes) }
    }

    /// Copies from the object at symmetric address `source` of `pe`.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::get`].
    ///
    /// # Safety
    /// `destination` is writable for `bytes` and is not the source.
    #[inline]
    pub unsafe fn get_bytes(&self, destination: *mut u8, source: usize, bytes: usize, pe: u32) -> Result<()> {
        let offset = self.offset_of(source, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.transport.get(pe, offset, destination, bytes) }
    }

    /// Returns the symmetric offset of an atomic's word.
    fn atomic_offset(&self, address: usize, width: usize) -> Result<usize> {
        let offset = self.offset_of(address, width)?;
        if !matches!(width, 4 | 8) || !address.is_multiple_of(width) {
            return Err(Error::Misaligned { address, width });
        }
        Ok(offset)
    }

    /// An atomic on the word of `width` bytes at symmetric address `target` of `pe`, carried out there; gives the value
    /// before.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::atomic`].
    pub fn atomic(
        &self,
        operation: Operation,
        target: usize,
        width: usize,
        operand: u64,
        comparand: u64,
        pe: u32,
    ) -> Result<u64> {
        let offset = self.atomic_offset(target, width)?;
        self.transport.atomic(pe, Atomic { operation, offset, width, operand, comparand })
    }

    /// As [`World::atomic`], without a result; done after the next quiet.
    ///
    /// # Errors
    /// As for [`World::atomic`].
    pub fn atomic_nbi(
        &self,
        operation: Operation,
        target: usize,
        width: usize,
        operand: u64,
        pe: u32,
    ) -> Result<()> {
        let offset = self.atomic_offset(target, width)?;
        self.transport.atomic_nbi(pe, Atomic { operation, offset, width, operand, comparand: 0 })
    }

    /// Puts, then signals: who sees the signal sees the bytes.
    ///
    /// # Errors
    /// As for [`World::put_bytes`] and [`World::atomic`].
    ///
    /// # Safety
    /// As for [`World::put_bytes`].
    pub unsafe fn put_signal_bytes(
        &self,
        destination: usize,
        source: *const u8,
        bytes: usize,
        signal: (usize, Signal, u64),
        pe: u32,
    ) -> Result<()> {
        let (address, how, value) = signal;
        self.offset_of(address, 8)?;
        // SAFETY: the caller's promise.
        unsafe { self.put_bytes(destination, source, bytes, pe)? };
        self.transport.order()?;
        match how {
            // SAFETY: a local word.
            Signal::Set => unsafe { self.put_bytes(address, (&raw const value).cast(), 8, pe) },
            Signal::Add => self.atomic_nbi(Operation::Add, address, 8, value, pe),
        }
    }

    /// Orders puts and atomics to each PE.
    ///
    /// # Errors
    /// Those of [`Transport::fence`].
    #[inline]
    pub fn fence(&self) -> Result<()> {
        self.transport.fence()
    }

    /// Waits until all puts and atomics are delivered.
    ///
    /// # Errors
    /// Those of [`Transport::quiet`].
    #[inline]
    pub fn quiet(&self) -> Result<()> {
        self.transport.quiet()
    }

    /// Waits until `done`, which may look at anything in own symmetric memory.
    ///
    /// # Errors
    /// Those of [`Transport::wait`].
    pub fn wait(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        self.transport.wait(None, &mut done)
    }

    /// Waits until `done`, which looks at the `bytes` (at most 8) at symmetric address `word` alone.
    ///
    /// # Errors
    /// Those of [`Transport::wait`].
    pub fn wait_word(&self, word: usize, bytes: usize, mut done: impl FnMut() -> bool) -> Result<()> {
        // Words elsewhere are waited for too, if only by looking now and then.
        let word = self.offset_of(word, bytes).ok().map(|offset| (offset, bytes));
        self.transport.wait(word, &mut done)
    }
}
