//! A context: puts, gets, signals and atomics that are ordered and completed for themselves (OpenSHMEM 1.5, section 9.5).

use super::{Heap, Signal};
use crate::error::{Error, Result};
use crate::transport::{Atomic, Operation, Reuse, Transport};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

/// Where this PE's symmetric memory lies.
#[derive(Clone, Copy)]
pub(super) struct Spans {
    /// The address of symmetric offset 0, outside the static objects.
    pub base: usize,
    /// The address and the length of the program's static objects, and their symmetric offset.
    pub statics: usize,
    pub statics_bytes: usize,
    pub statics_offset: usize,
    /// The symmetric offset and the length of the heap.
    pub heap_offset: usize,
    pub heap_bytes: usize,
}

/// Access to the symmetric memory of all PEs. A fence or quiet orders or completes the operations of this context only,
/// if the transport has contexts ([`Transport::context`]). Any thread may use it.
pub struct Context<T: Transport> {
    pub(super) transport: T,
    pub(super) spans: Spans,
    /// True if there are more PEs on this machine than processors.
    pub(super) shares_processors: bool,
    /// The heap, if each access is checked against its blocks. [`Spans::heap_bytes`] is then 0, so accesses to the heap
    /// take the cold path, and the check costs other programs nothing.
    pub(super) checked: Option<Arc<Mutex<Heap>>>,
}

impl<T: Transport> Context<T> {
    /// Returns the number of this PE.
    pub fn me(&self) -> u32 {
        self.transport.me()
    }

    /// Returns the number of PEs.
    pub fn pes(&self) -> u32 {
        self.transport.pes()
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
        if let Some(at) = within(self.spans.base + self.spans.heap_offset, self.spans.heap_bytes) {
            return Ok(self.spans.heap_offset + at);
        }
        match within(self.spans.statics, self.spans.statics_bytes) {
            Some(at) => Ok(self.spans.statics_offset + at),
            // An access to 0 bytes may have any address, so any valid offset serves.
            None if bytes == 0 => Ok(self.spans.heap_offset),
            None => self.offset_in_block(address, bytes),
        }
    }

    /// Returns the symmetric offset of `bytes` at `address` if accesses are checked and the bytes lie in one block of the
    /// heap.
    #[cold]
    fn offset_in_block(&self, address: usize, bytes: usize) -> Result<usize> {
        let offset = address.wrapping_sub(self.spans.base + self.spans.heap_offset);
        let heap = self.checked.as_ref().map(|heap| heap.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(heap) = heap.filter(|heap| offset < heap.size()) else {
            return Err(self.outside(address, bytes));
        };
        let why = match heap.block_of(offset) {
            Some((start, size)) if bytes <= start + size - offset => {
                return Ok(self.spans.heap_offset + offset);
            }
            Some((start, size)) => {
                format!(
                    "only {} bytes of the allocated block follow; give a smaller length",
                    start + size - offset
                )
            }
            None => {
                "this part of the symmetric heap is not allocated; it was freed, or never allocated".into()
            }
        };
        Err(Error::invalid(format!("{bytes} bytes at {address:#x}"), why))
    }

    /// Returns the error of an access that is not inside symmetric memory.
    #[cold]
    fn outside(&self, address: usize, bytes: usize) -> Error {
        let spans = [
            (self.spans.base + self.spans.heap_offset, self.spans.heap_bytes),
            (self.spans.statics, self.spans.statics_bytes),
        ];
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
        let statics = self.spans.statics_offset..self.spans.statics_offset + self.spans.statics_bytes;
        match statics.contains(&offset) {
            true => (self.spans.statics + offset - self.spans.statics_offset) as *mut u8,
            false => (self.spans.base + offset) as *mut u8,
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

    /// Copies to the object at symmetric address `destination` of `pe`. `reuse` says until when the source stays in use.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::put`].
    ///
    /// # Safety
    /// `source` is readable for `bytes` and does not overlap the destination, as long as it is in use.
    #[inline]
    pub unsafe fn put_bytes(
        &self,
        destination: usize,
        source: *const u8,
        bytes: usize,
        pe: u32,
        reuse: Reuse,
    ) -> Result<()> {
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.put(pe, offset, source, bytes, reuse) }
    }

    /// Copies from the object at symmetric address `source` of `pe`. `reuse` says until when the bytes have arrived.
    ///
    /// # Errors
    /// [`Error::NotSymmetric`], and those of [`Transport::get`].
    ///
    /// # Safety
    /// `destination` is writable for `bytes` and does not overlap the source, as long as it is in use.
    #[inline]
    pub unsafe fn get_bytes(
        &self,
        destination: *mut u8,
        source: usize,
        bytes: usize,
        pe: u32,
        reuse: Reuse,
    ) -> Result<()> {
        let offset = self.offset_of(source, bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.get(pe, offset, destination, bytes, reuse)? };
        if self.shares_processors && bytes <= 8 && reuse == Reuse::AtReturn {
            let mut value = [0u8; 8];
            // SAFETY: the get has filled the destination, and the variable has room for 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(destination, value.as_mut_ptr(), bytes) };
            self.polled(pe, offset, u64::from_ne_bytes(value));
        }
        Ok(())
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
    /// As for [`Context::atomic`].
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
    /// as for [`Context::atomic`].
    ///
    /// # Errors
    /// As for [`Context::atomic`].
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
    /// As for [`Context::put_bytes`] and [`Context::atomic`].
    ///
    /// # Safety
    /// As for [`Context::put_bytes`].
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
        unsafe { self.put_bytes(destination, source, bytes, pe, Reuse::AtReturn)? };
        self.transport.order()?;
        match how {
            // SAFETY: the source is a local variable of 8 bytes.
            Signal::Set => unsafe {
                self.put_bytes(address, (&raw const value).cast(), 8, pe, Reuse::AtReturn)
            },
            Signal::Add => self.atomic_nbi(Operation::Add, address, 8, value, pe),
        }
    }

    /// Call it after a load of this PE's word at `address` returned `value`. Yields if PEs share processors
    /// and the thread's last load, get or atomic found the same value in this word.
    #[inline]
    pub fn loaded(&self, address: usize, value: u64) {
        if self.shares_processors {
            self.polled(self.transport.me(), address.wrapping_sub(self.spans.base), value);
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
}
