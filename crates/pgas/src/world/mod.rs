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

mod channel;
mod collective;
mod heap;
#[cfg(test)]
pub(crate) mod tests;
mod typed;

pub use channel::{Channel, Group};
pub use collective::{Reduce, Set};
pub use heap::Heap;
pub use typed::{Element, Symmetric};

use crate::error::{Error, Result};
use crate::field::HEAP;
use crate::transport::{Atomic, Operation, Transport};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// One PE and its access to all other PEs. Programs use this type to allocate, put, get, wait and
/// synchronise.
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
    places: channel::Places,
    /// True if there are more PEs on this machine than processors.
    shares_processors: bool,
    /// The thresholds, size in bytes and number of PEs, from which a broadcast is cut into slices. Tests
    /// lower them.
    pub(crate) scattered_from: (usize, u32),
}

/// The most bytes that a reduction combines in one step (a chunk), for collectives without a channel.
const CHUNK: usize = 32 << 10;
/// Distance in bytes between two words of the workspace. Each word has a cache line of its own.
const WORD: usize = 128;

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
    /// both if there are none. The heap takes the rest of symmetric memory.
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
        Ok(Self {
            transport,
            base: base as usize,
            statics,
            statics_bytes,
            statics_offset,
            heap_offset,
            heap_bytes,
            heap: Mutex::new(Heap::new(heap_bytes, origin)),
            collective: Mutex::new(()),
            places,
            shares_processors,
            scattered_from: collective::SCATTERED_FROM,
        })
    }

    /// Returns the number of this PE.
    pub fn me(&self) -> u32 {
        self.transport.me()
    }

    /// Returns the number of PEs.
    pub fn pes(&self) -> u32 {
        self.transport.pes()
    }

    /// Ends this world and returns the transport, to make another world over it.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// Returns the transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Returns the symmetric offset of `bytes` at `address`.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`] if they lie outside symmetric memory, [`Error::Invalid`] if they end outside.
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
            // An access to 0 bytes may have any address, so any valid offset serves.
            None if bytes == 0 => Ok(self.heap_offset),
            None => Err(self.outside(address, bytes)),
        }
    }

    /// Returns the error of an access that is not inside symmetric memory.
    #[cold]
    fn outside(&self, address: usize, bytes: usize) -> Error {
        let spans = [(self.base + self.heap_offset, self.heap_bytes), (self.statics, self.statics_bytes)];
        let rest = |(start, length): (usize, usize)| {
            let at = address.wrapping_sub(start);
            (at < length).then(|| length - at)
        };
        match spans.into_iter().find_map(rest) {
            Some(rest) => Error::invalid(
                format!("{bytes} bytes at {address:#x}"),
                format!(
                    "they begin in symmetric memory, but only {rest} bytes of it follow; give a smaller length"
                ),
            ),
            None => Error::NotSymmetric { address, bytes },
        }
    }

    /// Returns this PE's address of a symmetric offset.
    pub fn address_of(&self, offset: usize) -> *mut u8 {
        let statics = self.statics_offset..self.statics_offset + self.statics_bytes;
        match statics.contains(&offset) {
            true => (self.statics + offset - self.statics_offset) as *mut u8,
            false => (self.base + offset) as *mut u8,
        }
    }

    /// Returns the address in this process of `pe`'s copy of a symmetric object. Returns `None` if loads and
    /// stores cannot reach that copy. `address` is the address of this PE's copy.
    pub fn direct(&self, address: usize, pe: u32) -> Option<*mut u8> {
        let offset = self.offset_of(address, 1).ok()?;
        if pe == self.me() {
            return Some(address as *mut u8);
        }
        self.transport.direct(pe, offset)
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
        self.barrier_all()?;
        Ok(self.address_of(self.heap_offset + offset?))
    }

    /// Frees symmetric memory. All PEs must call it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that was not allocated, [`Error::LinkLost`].
    pub fn release(&self, address: *mut u8) -> Result<()> {
        self.barrier_all()?;
        let offset = (address as usize).wrapping_sub(self.base + self.heap_offset);
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
        self.barrier_all()?;
        let offset = (address as usize).wrapping_sub(self.base + self.heap_offset);
        let shrunk = self.heap().shrink(offset, bytes);
        self.barrier_all()?;
        Ok(shrunk)
    }

    /// Returns the size of the allocation at `address`, if there is one.
    pub fn allocated(&self, address: *mut u8) -> Option<usize> {
        self.heap().allocated((address as usize).wrapping_sub(self.base + self.heap_offset))
    }

    /// Copies to the object at symmetric address `destination` of `pe`. The stores are issued when this
    /// function returns.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::put`].
    ///
    /// # Safety
    /// `source` is readable for `bytes` and does not overlap the destination.
    #[inline]
    pub unsafe fn put_bytes(
        &self,
        destination: usize,
        source: *const u8,
        bytes: usize,
        pe: u32,
    ) -> Result<()> {
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.put(pe, offset, source, bytes) }
    }

    /// Starts a copy like [`World::put_bytes`], without waiting for it. The source stays in use until the
    /// next quiet.
    ///
    /// # Errors
    /// As for [`World::put_bytes`].
    ///
    /// # Safety
    /// The conditions of [`World::put_bytes`] hold until the next quiet.
    #[inline]
    pub unsafe fn put_bytes_nbi(
        &self,
        destination: usize,
        source: *const u8,
        bytes: usize,
        pe: u32,
    ) -> Result<()> {
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.put_nbi(pe, offset, source, bytes) }
    }

    /// Copies from the object at symmetric address `source` of `pe`.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::get`].
    ///
    /// # Safety
    /// `destination` is writable for `bytes` and does not overlap the source.
    #[inline]
    pub unsafe fn get_bytes(&self, destination: *mut u8, source: usize, bytes: usize, pe: u32) -> Result<()> {
        let offset = self.offset_of(source, bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.get(pe, offset, destination, bytes)? };
        if self.shares_processors && bytes <= 8 {
            let mut value = [0u8; 8];
            // SAFETY: the get has filled the destination, and the variable has room for 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(destination, value.as_mut_ptr(), bytes) };
            self.polled(pe, offset, u64::from_ne_bytes(value));
        }
        Ok(())
    }

    /// Starts a copy like [`World::get_bytes`]. The bytes have arrived after the next quiet.
    ///
    /// # Errors
    /// As for [`World::get_bytes`].
    ///
    /// # Safety
    /// As for [`World::get_bytes`], until the next quiet.
    #[inline]
    pub unsafe fn get_bytes_nbi(
        &self,
        destination: *mut u8,
        source: usize,
        bytes: usize,
        pe: u32,
    ) -> Result<()> {
        let offset = self.offset_of(source, bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.get_nbi(pe, offset, destination, bytes) }
    }

    /// Returns the symmetric offset of an atomic's word.
    fn atomic_offset(&self, address: usize, width: usize) -> Result<usize> {
        let offset = self.offset_of(address, width)?;
        if !matches!(width, 4 | 8) || !address.is_multiple_of(width) {
            return Err(Error::Misaligned { address, width });
        }
        Ok(offset)
    }

    /// Performs an atomic operation on the word of `width` bytes at the symmetric address `target` of PE
    /// `pe`. Returns the previous value.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], [`Error::Misaligned`], and those of [`Transport::atomic`].
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
        let before = self.transport.atomic(pe, Atomic { operation, offset, width, operand, comparand })?;
        if self.shares_processors {
            self.polled(pe, offset, before);
        }
        Ok(before)
    }

    /// Starts an atomic whose result is not needed. It is complete after the next quiet.
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

    /// Starts an atomic on the word of `width` bytes at symmetric address `target` of `pe`. Stores the word's
    /// previous value at `result` before the next quiet ends. `operand` and `comparand` have the same meaning
    /// as for [`World::atomic`].
    ///
    /// # Errors
    /// As for [`World::atomic`].
    ///
    /// # Safety
    /// `result` is writable for `width` bytes until the next quiet.
    pub unsafe fn atomic_fetch_nbi(
        &self,
        operation: Operation,
        (target, width): (usize, usize),
        (operand, comparand): (u64, u64),
        result: *mut u8,
        pe: u32,
    ) -> Result<()> {
        let offset = self.atomic_offset(target, width)?;
        let atomic = Atomic { operation, offset, width, operand, comparand };
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.atomic_fetch_nbi(pe, atomic, result) }
    }

    /// Puts bytes and then updates a signal at the same peer. If the peer sees the new signal, it also sees
    /// the bytes.
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
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.put_bytes(destination, source, bytes, pe)? };
        self.transport.order()?;
        match how {
            // SAFETY: the source is a local variable of 8 bytes.
            Signal::Set => unsafe { self.put_bytes(address, (&raw const value).cast(), 8, pe) },
            Signal::Add => self.atomic_nbi(Operation::Add, address, 8, value, pe),
        }
    }

    /// Call it after a load of this PE's word at `address` returned `value`. Yields if PEs share processors
    /// and the thread's last load, get or atomic found the same value in this word.
    #[inline]
    pub fn loaded(&self, address: usize, value: u64) {
        if self.shares_processors {
            self.polled(self.transport.me(), address.wrapping_sub(self.base), value);
        }
    }

    /// Lets other PEs run if PEs share processors and this thread polls: if its last load, get or atomic found
    /// the same value in the same word.
    fn polled(&self, pe: u32, offset: usize, value: u64) {
        thread_local! {
            static LAST: Cell<(u32, usize, u64)> = const { Cell::new((0, usize::MAX, 0)) };
        }
        if LAST.replace((pe, offset, value)) == (pe, offset, value) {
            self.found_nothing();
        }
    }

    /// Lets other PEs run if PEs share processors. Call it in a loop after a poll that found nothing.
    #[inline]
    pub fn found_nothing(&self) {
        if self.shares_processors {
            std::thread::yield_now();
        }
    }

    /// Orders puts and atomics: at each PE, those before this call arrive before all later ones. Lets other
    /// PEs run if PEs share processors and the program seems to poll.
    ///
    /// # Errors
    /// As for [`Transport::fence`].
    #[inline]
    pub fn fence(&self) -> Result<()> {
        if self.shares_processors {
            self.transport.yield_if_idle();
        }
        self.transport.fence()
    }

    /// Blocks until all earlier puts and atomics of this PE are delivered. Lets other PEs run if PEs share
    /// processors and the program seems to poll. Within an operation of the library, call
    /// [`Transport::quiet`] instead.
    ///
    /// # Errors
    /// As for [`Transport::quiet`].
    #[inline]
    pub fn quiet(&self) -> Result<()> {
        if self.shares_processors {
            self.transport.yield_if_idle();
        }
        self.transport.quiet()
    }

    /// Blocks until `done` returns true. `done` may read all of this PE's symmetric memory.
    ///
    /// # Errors
    /// As for [`Transport::wait`].
    pub fn wait(&self, mut done: impl FnMut() -> bool) -> Result<()> {
        self.transport.wait(None, &mut done)
    }

    /// Blocks until `done` returns true. `done` may read only the `bytes` (at most 8) at symmetric address
    /// `word`.
    ///
    /// # Errors
    /// As for [`Transport::wait`].
    pub fn wait_word(&self, word: usize, bytes: usize, mut done: impl FnMut() -> bool) -> Result<()> {
        // A word outside symmetric memory works too: the offset is then `None`, and every wake-up calls
        // `done`.
        let word = self.offset_of(word, bytes).ok().map(|offset| (offset, bytes));
        self.transport.wait(word, &mut done)
    }
}
