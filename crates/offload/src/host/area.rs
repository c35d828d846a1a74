//! The memory that the engine shares with a process: creates it, and assigns its slots.

use super::pair::KeptPair;
use crate::lock;
use crate::stack::arena::Key;
use inlane_offload_protocol::slots::{Area, Life, SLOTS, Slot};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The number of connections in a row that leave their slots unused, before new ones get none.
const MOST_UNUSED: u32 = 8;

/// How long a thread that was woken may take to run, in nanoseconds. Longer only if the processors have much other work.
const WAKING_NS: u64 = 10_000_000;

/// The memory that the engine shares with one process. The memory is unmapped once the process has ended and
/// no connection uses the memory.
#[derive(Debug)]
pub struct SharedArea {
    start: NonNull<u8>,
    /// The length of each ring in bytes.
    ring: usize,
    /// The length of the mapping in bytes.
    len: usize,
    /// The user of the process.
    pub user: u32,
    /// The ID of the process that shares the memory.
    pub process: i32,
    /// Bit n is 1 while slot n is reserved. A slot is reserved while a connection uses it. The engine may
    /// take the send ring from a program's thread while the thread writes to it. The slot then stays
    /// reserved, because the thread may still write.
    used: AtomicU64,
    /// Bit n is 1 if the connection of slot n has ended while the peer's engine was storing into its receive ring. The slot stays reserved
    /// until that store has ended.
    stored: AtomicU64,
    /// The key of each slot's connection in the table of the thread that runs it.
    keys: [AtomicU64; SLOTS],
    /// The number of connections in a row that got a slot from the start and did not use it.
    unused_in_row: AtomicU32,
    /// Until when a thread that the engine has woken may not have run yet, in nanoseconds.
    waking_until: AtomicU64,
    /// Bit n is 1 if there is a pair for a later connection of slot n.
    keeps: AtomicU64,
    /// The pairs of the bits in `keeps`.
    kept: Mutex<[Option<KeptPair>; SLOTS]>,
    /// The memory's descriptor, if a peer's engine may get it.
    file: Option<OwnedFd>,
}

// SAFETY: this value owns the mapping. The memory is accessed only by atomics and by copies.
unsafe impl Send for SharedArea {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedArea {}

impl SharedArea {
    /// Creates an area for the process with the ID `process` of user `user`, with rings of `ring` bytes. Returns it and its
    /// memfd, which the process maps. Seals keep the process from resizing the area. The area itself does not need the
    /// memfd ([`SharedArea::keep_file`]). Pages that were not written take no memory.
    ///
    /// # Errors
    /// Errors of the system: too many descriptors, too little memory. `InvalidInput` for a wrong length.
    pub fn new(process: i32, user: u32, ring: usize) -> io::Result<(Self, OwnedFd)> {
        let len = Area::len(ring).ok_or(io::ErrorKind::InvalidInput)?;
        let file = rustix::fs::memfd_create("inlane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping touches no memory of this process.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let keys = [const { AtomicU64::new(0) }; SLOTS];
        let (used, stored, unused_in_row) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU32::new(0));
        let (keeps, kept) = (AtomicU64::new(0), Mutex::new([const { None }; SLOTS]));
        let area = Self {
            start,
            ring,
            len,
            process,
            user,
            used,
            stored,
            keys,
            unused_in_row,
            waking_until: AtomicU64::new(0),
            keeps,
            kept,
            file: None,
        };
        static AREAS: AtomicU32 = AtomicU32::new(0);
        // Two areas of one process have different tags.
        let tag = 1 + (AREAS.fetch_add(1, Ordering::Relaxed) % 255) as u8;
        area.area().initialise(tag);
        Ok((area, file))
    }

    /// Keeps a duplicate of the memory's descriptor.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn keep_file(&mut self, file: &OwnedFd) -> io::Result<()> {
        self.file = Some(file.try_clone()?);
        Ok(())
    }

    /// Returns the memory's descriptor, if it was kept.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// Returns the length of each ring in bytes.
    pub fn ring(&self) -> usize {
        self.ring
    }

    pub(super) fn area(&self) -> Area {
        // SAFETY: this value keeps the area mapped. Slots keep this value alive.
        unsafe { Area::new(self.start, self.ring) }
    }

    /// Reserves a slot of shared memory for the connection `key`. Returns the slot's index and the slot. Returns `None` if all
    /// slots are reserved.
    pub(super) fn reserve(&self, key: Key) -> Option<(usize, Slot)> {
        // Prefer a slot without a kept pair.
        let free = |used: u64| {
            let others = used | self.keeps.load(Ordering::Relaxed);
            (if others == u64::MAX { used } else { others }).trailing_ones() as usize
        };
        let mut index = SLOTS;
        // Several threads of the engine may reserve slots of one area. Acquire pairs with the release store
        // with which another thread gave back the slot.
        let reserved = self.used.fetch_update(Ordering::Acquire, Ordering::Relaxed, |used| {
            index = free(used);
            (index < SLOTS).then(|| used | 1 << index)
        });
        reserved.ok()?;
        if self.keeps.load(Ordering::Relaxed) & 1 << index != 0 {
            let slot = self.area().slot(index)?;
            if !slot.life().end() && slot.life().is_asked() {
                // The program opens a connection over the pair.
                self.release(index, false);
                return None;
            }
            drop(self.take_pair(index));
        }
        self.assume(index, key)
    }

    /// Makes slot `index`, which is reserved, that of the connection `key`. Returns the slot's index and the slot.
    pub(super) fn assume(&self, index: usize, key: Key) -> Option<(usize, Slot)> {
        let slot = self.area().slot(index)?;
        self.keys[index].store(key.to_u64(), Ordering::Relaxed);
        Some((index, slot))
    }

    /// Returns true if the program keeps its ends of pairs for later connections.
    pub(super) fn keeps_pairs(&self) -> bool {
        self.area().keeps().load(Ordering::Relaxed) != 0
    }

    /// Keeps the pair of slot `index`, which is reserved, for a later connection of the slot.
    pub(super) fn keep(&self, index: usize, pair: KeptPair) {
        lock(&self.kept)[index] = Some(pair);
        self.keeps.fetch_or(1 << index, Ordering::Relaxed);
    }

    /// Returns the kept pair of slot `index`, which is reserved.
    fn take_pair(&self, index: usize) -> Option<KeptPair> {
        self.keeps.fetch_and(!(1 << index), Ordering::Relaxed);
        lock(&self.kept)[index].take()
    }

    /// Takes a kept pair for which `fits` returns true for connection `id`, and reserves its slot. Returns the number of the slot and the pair.
    pub(super) fn take_kept(&self, id: u64, fits: impl Fn(&KeptPair) -> bool) -> Option<(usize, KeptPair)> {
        let mut rest = self.keeps.load(Ordering::Relaxed);
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if let Some(pair) = self.take_kept_of(index, &fits, |life| life.reuse(id)) {
                return Some((index, pair));
            }
        }
        None
    }

    /// Takes the kept pair of slot `index`, over which the program opens connection `id`, and reserves the slot. Returns `None` if there is
    /// no such pair for which `fits` returns true.
    pub(super) fn take_asked(
        &self,
        index: usize,
        id: u64,
        fits: impl Fn(&KeptPair) -> bool,
    ) -> Option<KeptPair> {
        self.take_kept_of(index, &fits, |life| life.connect(id))
    }

    /// Returns true if the program opens a connection over the kept pair of slot `index`.
    pub(super) fn is_asked(&self, index: usize) -> bool {
        self.area().slot(index).is_some_and(|slot| slot.life().is_asked())
    }

    /// Reserves slot `index`, as a thread does for a moment that looks for a free one.
    #[cfg(test)]
    pub(super) fn hold(&self, index: usize) {
        self.used.fetch_or(1 << index, Ordering::Acquire);
    }

    /// Takes the kept pair of slot `index` if `fits` and then `begins` return true, and reserves the slot.
    fn take_kept_of(
        &self,
        index: usize,
        fits: &impl Fn(&KeptPair) -> bool,
        begins: impl FnOnce(Life<'_, AtomicU64>) -> bool,
    ) -> Option<KeptPair> {
        let slot = self.area().slot(index)?;
        if self.used.load(Ordering::Relaxed) & 1 << index != 0
            || !lock(&self.kept)[index].as_ref().is_some_and(fits)
            || self.used.fetch_or(1 << index, Ordering::Acquire) & 1 << index != 0
        {
            return None;
        }
        if let Some(pair) = self.take_pair(index).filter(fits) {
            // The program closes kept ends whose slot has another inode.
            slot.header().inode.store(pair.inode(), Ordering::Release);
            if begins(slot.life()) {
                return Some(pair);
            }
            slot.header().inode.store(0, Ordering::Relaxed);
            if slot.life().is_asked() {
                self.keep(index, pair);
            }
        }
        self.release(index, false);
        None
    }

    /// Returns the key of the connection that uses slot `index`, or that has used it last.
    pub(super) fn key(&self, index: usize) -> Key {
        Key::from_u64(self.keys[index].load(Ordering::Relaxed))
    }

    /// Returns true if all slots are reserved.
    pub fn is_full(&self) -> bool {
        self.release_stored();
        self.used.load(Ordering::Relaxed) == u64::MAX
    }

    /// Returns true if new connections get a slot from the start: the program wants it, and a slot is free.
    pub fn gives_slots(&self) -> bool {
        self.area().from_start().load(Ordering::Relaxed) != 0 && !self.is_full()
    }

    /// Records whether a connection has used the slot that it got from the start. After [`MOST_UNUSED`] in a row that have not,
    /// new connections get none: the program waits in ways that do not look at slots.
    pub(super) fn note_use(&self, used: bool) {
        let unused = if used { 0 } else { self.unused_in_row.load(Ordering::Relaxed) + 1 };
        self.unused_in_row.store(unused % MOST_UNUSED, Ordering::Relaxed);
        if unused == MOST_UNUSED {
            self.area().from_start().store(0, Ordering::Relaxed);
        }
    }

    /// Sets the bit of slot `index` in the ready word of the shared memory. The bit tells the program that
    /// bytes are in this slot's receive ring.
    pub(super) fn announce(&self, index: usize) {
        self.area().ready().fetch_or(1 << index, Ordering::Release);
    }

    /// Records that the engine wakes a thread of the program.
    pub(super) fn note_wake(&self, now: u64) {
        self.waking_until.store(now + WAKING_NS, Ordering::Relaxed);
    }

    /// Returns true if the engine has woken a thread of the program less than [`WAKING_NS`] ago.
    pub(super) fn has_just_woken(&self, now: u64) -> bool {
        now < self.waking_until.load(Ordering::Relaxed)
    }

    /// Frees slot `index` once the store of the peer's engine into its receive ring has ended.
    pub(super) fn release_after_store(&self, index: usize) {
        self.stored.fetch_or(1 << index, Ordering::Release);
    }

    /// Frees the slots of ended connections whose stores have ended, too.
    pub(super) fn release_stored(&self) {
        if self.stored.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Each slot is taken out first, because another thread may do the same.
        let mut stored = self.stored.swap(0, Ordering::Acquire);
        while stored != 0 {
            let index = stored.trailing_zeros() as usize;
            stored &= stored - 1;
            match self.area().slot(index).map(|slot| slot.stores().ring.close()) {
                Some(Ok(_)) => self.release(index, true),
                _ => self.release_after_store(index),
            }
        }
    }

    /// Frees a slot for another connection. If `clears` is true, returns the memory of its rings to the system.
    pub(super) fn release(&self, index: usize, clears: bool) {
        if let Some(slot) = self.area().slot(index).filter(|_| clears) {
            let offset = (slot.rings() as usize - self.start.as_ptr() as usize).next_multiple_of(4096);
            // SAFETY: the pages lie within the slot's rings, which no connection uses any more. The program finds zeros there.
            unsafe {
                let pages = self.start.as_ptr().add(offset);
                let _ =
                    rustix::mm::madvise(pages.cast(), 2 * self.ring - 4096, rustix::mm::Advice::LinuxRemove);
            }
        }
        self.used.fetch_and(!(1 << index), Ordering::Release);
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// An area whose doorbell a thread of the engine polls. A copy of it is kept with each connection of this thread and area.
#[derive(Clone, Debug)]
pub(super) struct Polled(Arc<(Arc<SharedArea>, usize)>);

impl Polled {
    pub fn new(area: &Arc<SharedArea>, thread: usize) -> Self {
        Self(Arc::new((area.clone(), thread)))
    }

    pub fn area(&self) -> &Arc<SharedArea> {
        &self.0.0
    }

    pub fn thread(&self) -> usize {
        self.0.1
    }

    /// Returns true if a connection has a copy.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}
