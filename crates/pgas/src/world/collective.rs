//! Collectives over any regular subset of the PEs, made of puts and of the pairwise notifications alone.
//!
//! Each pair of PEs counts notifications in order, and every PE of a set calls the same collectives in the same order, so
//! the counts match without flags of the program's (`pSync` arrays are taken and left alone).

use super::{CHUNK, WORD, World};
use crate::error::{Error, Result};
use crate::transport::Transport;
use std::sync::PoisonError;

/// PEs `start`, `start + stride`, ... (`size` of them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The first PE.
    pub start: u32,
    /// From one to the next, at least 1.
    pub stride: u32,
    /// How many.
    pub size: u32,
}

/// Combines elements: `(accumulator, other, count)`, where both lead to `count` elements, not necessarily aligned.
pub type Reduce<'a> = &'a dyn Fn(*mut u8, *const u8, usize);

impl Set {
    /// The PE at `index`.
    pub fn pe(&self, index: u32) -> u32 {
        self.start + index * self.stride
    }

    /// All PEs but that at `index`, from the one behind it on: at any time each then has another to deal with.
    fn others(&self, index: u32) -> impl Iterator<Item = u32> {
        (1..self.size).map(move |distance| self.pe((index + distance) % self.size))
    }

    fn index_of(&self, pe: u32, pes: u32) -> Result<u32> {
        let last = (self.size as u64).saturating_sub(1) * self.stride as u64 + self.start as u64;
        let distance = pe.wrapping_sub(self.start);
        let member = self.size > 0
            && self.stride > 0
            && last < pes as u64
            && pe >= self.start
            && distance.is_multiple_of(self.stride)
            && distance / self.stride < self.size;
        match member {
            true => Ok(distance / self.stride),
            false => Err(Error::invalid(
                format!("the set of {} PEs from {} by {}", self.size, self.start, self.stride),
                format!("it must be inside 0 to {} and contain the caller, {pe}", pes - 1),
            )),
        }
    }
}

impl<T: Transport> World<T> {
    /// All PEs.
    pub fn all(&self) -> Set {
        Set { start: 0, stride: 1, size: self.pes() }
    }

    fn enter(&self, set: &Set) -> Result<(u32, std::sync::MutexGuard<'_, ()>)> {
        let index = set.index_of(self.me(), self.pes())?;
        Ok((index, self.collective.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Waits until every PE of the set has come here; says nothing of puts.
    ///
    /// # Errors
    /// [`Error::LinkLost`], [`Error::Invalid`] for a set that is none or lacks the caller.
    pub fn sync(&self, set: Set) -> Result<()> {
        let (index, _one) = self.enter(&set)?;
        self.disseminate(&set, index)
    }

    fn disseminate(&self, set: &Set, index: u32) -> Result<()> {
        let mut distance = 1;
        while distance < set.size {
            self.transport.notify(set.pe((index + distance) % set.size))?;
            self.transport.take_notification(set.pe((index + set.size - distance) % set.size))?;
            distance *= 2;
        }
        Ok(())
    }

    /// Waits until every PE of the set has come here and its puts before are delivered.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn barrier(&self, set: Set) -> Result<()> {
        self.quiet()?;
        self.sync(set)
    }

    /// A barrier of all PEs.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn barrier_all(&self) -> Result<()> {
        self.barrier(self.all())
    }

    /// The last barrier of a PE's life: when it returns, this PE may go, because the others have its part of it.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn leave(&self) -> Result<()> {
        self.barrier_all()?;
        // A notification that is still under way would be lost with its sender.
        self.quiet()
    }

    /// Copies `bytes` at `source` of the PE at index `root` to symmetric address `destination` of all others of the set, by a
    /// binomial tree.
    ///
    /// # Errors
    /// As for [`World::sync`] and [`World::put_bytes`].
    ///
    /// # Safety
    /// At the root, `source` is readable for `bytes`.
    pub unsafe fn broadcast(
        &self,
        set: Set,
        root: u32,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let (index, _one) = self.enter(&set)?;
        if root >= set.size {
            return Err(Error::invalid(format!("root {root}"), format!("the set has {} PEs", set.size)));
        }
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.spread(&set, index, root, offset, source, bytes) }
    }

    unsafe fn spread(
        &self,
        set: &Set,
        index: u32,
        root: u32,
        offset: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let relative = (index + set.size - root) % set.size;
        let pe = |relative: u32| set.pe((relative + root) % set.size);
        let mut from = source;
        // The lowest bit set is the distance to the parent; bits below it lead to children.
        let mut reach =
            if relative == 0 { set.size.next_power_of_two() } else { 1 << relative.trailing_zeros() };
        if relative != 0 {
            self.transport.take_notification(pe(relative - reach))?;
            from = self.address_of(offset);
        }
        while reach > 1 {
            reach /= 2;
            if relative + reach < set.size {
                // SAFETY: the root's source by the caller's promise; elsewhere own symmetric memory.
                unsafe { self.transport.put(pe(relative + reach), offset, from, bytes)? };
                self.transport.notify(pe(relative + reach))?;
            }
        }
        Ok(())
    }

    /// Concatenates `bytes` at `source` of every PE, in order, at `destination` of every PE. PEs may bring different
    /// lengths.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `bytes`.
    pub unsafe fn collect(
        &self,
        set: Set,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let (index, _one) = self.enter(&set)?;
        let word = |pe: u32| pe as usize * WORD;
        for other in 0..set.size {
            // SAFETY: a local word, to this PE's own word in the workspace.
            unsafe { self.transport.put(set.pe(other), word(self.me()), (&raw const bytes).cast(), 8)? };
        }
        self.exchange(&set, index)?;
        let mut at = 0usize;
        for other in 0..index {
            // SAFETY: the workspace's word of that PE, aligned; it wrote it before it notified.
            let length = unsafe { self.address_of(word(set.pe(other))).cast::<usize>().read_volatile() };
            at = at.saturating_add(length);
        }
        let offset = self.offset_of(destination.saturating_add(at), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.give_to_all(&set, index, offset, source, bytes) }
    }

    /// As [`World::collect`], with the same length everywhere.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `bytes`.
    pub unsafe fn fcollect(
        &self,
        set: Set,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let (index, _one) = self.enter(&set)?;
        let offset =
            self.offset_of(destination.saturating_add(bytes.saturating_mul(index as usize)), bytes)?;
        // SAFETY: the caller's promise.
        unsafe { self.give_to_all(&set, index, offset, source, bytes) }
    }

    unsafe fn give_to_all(
        &self,
        set: &Set,
        index: u32,
        offset: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        for pe in set.others(index) {
            // SAFETY: the caller's promise.
            unsafe { self.transport.put(pe, offset, source, bytes)? };
        }
        // Last to oneself, where source and destination may be the same.
        // SAFETY: `offset_of` bounded the destination; copies that overlap are fine.
        unsafe { std::ptr::copy(source, self.address_of(offset), bytes) };
        self.exchange(set, index)
    }

    /// Everybody notifies everybody and takes everybody's notification.
    fn exchange(&self, set: &Set, index: u32) -> Result<()> {
        set.others(index).try_for_each(|pe| self.transport.notify(pe))?;
        set.others(index).try_for_each(|pe| self.transport.take_notification(pe))
    }

    /// Gives block i of `bytes` at `source` to PE i of the set, at block `own index` of its `destination`.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `bytes` times the size of the set.
    pub unsafe fn all_to_all(
        &self,
        set: Set,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let (index, _one) = self.enter(&set)?;
        let offset =
            self.offset_of(destination.saturating_add(bytes.saturating_mul(index as usize)), bytes)?;
        for distance in 0..set.size {
            let other = (index + distance) % set.size;
            // SAFETY: the caller's promise: block `other` is inside.
            unsafe { self.transport.put(set.pe(other), offset, source.add(other as usize * bytes), bytes)? };
        }
        self.exchange(&set, index)
    }

    /// Combines `count` elements of `width` bytes at `source` of every PE by `reduce`, into `destination` of every PE.
    /// Elements are combined in one order, so all PEs get the same bits.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `count * width` bytes; it may be the destination.
    pub unsafe fn reduce(
        &self,
        set: Set,
        destination: usize,
        source: *const u8,
        (count, width): (usize, usize),
        reduce: Reduce<'_>,
    ) -> Result<()> {
        let (index, _one) = self.enter(&set)?;
        let bytes = count.saturating_mul(width);
        let offset = self.offset_of(destination, bytes)?;
        let chunk = CHUNK / width.max(1) * width;
        // Of the widest words, so that it is aligned for every element.
        let mut sum = vec![0u128; chunk.min(bytes).div_ceil(16)];
        let scratch = |pe: u32| self.pes() as usize * WORD + pe as usize * CHUNK;
        let mut done = 0;
        while done < bytes {
            let piece = chunk.min(bytes - done);
            // SAFETY: `done + piece` is at most the bytes promised, and at most `sum`'s length.
            unsafe { std::ptr::copy_nonoverlapping(source.add(done), sum.as_mut_ptr().cast(), piece) };
            // Up a binomial tree: children put into the parent's chunk for them.
            let mut distance = 1;
            while distance < set.size {
                if index & distance != 0 {
                    let parent = set.pe(index - distance);
                    // SAFETY: `sum` has `piece` bytes.
                    unsafe { self.transport.put(parent, scratch(self.me()), sum.as_ptr().cast(), piece)? };
                    self.transport.notify(parent)?;
                    break;
                }
                if index + distance < set.size {
                    let child = set.pe(index + distance);
                    self.transport.take_notification(child)?;
                    reduce(sum.as_mut_ptr().cast(), self.address_of(scratch(child)), piece / width.max(1));
                }
                distance *= 2;
            }
            // Down again. A child puts its next chunk only after this one's sum has reached it: its scratch is free then.
            // SAFETY: `sum` has `piece` bytes; the destination was bounded above.
            unsafe {
                if index == 0 {
                    std::ptr::copy_nonoverlapping(sum.as_ptr().cast(), self.address_of(offset + done), piece);
                }
                self.spread(&set, index, 0, offset + done, sum.as_ptr().cast(), piece)?;
            }
            done += piece;
        }
        Ok(())
    }
}
