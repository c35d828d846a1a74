//! Collectives over regular subsets of the PEs. They consist of puts, and of notifications between pairs of
//! PEs.
//!
//! Two PEs count the notifications between them, separately for each [`Channel`](super::Channel). Every PE of
//! a set calls the same collectives in the same order. So the counts match, and no flags in symmetric memory
//! are needed. The `pSync` arrays of OpenSHMEM are accepted but not used.

use super::channel::{Entered, Group};
use super::{CHUNK, Set, World};
use crate::error::{Error, Result};
use crate::transport::Reuse::AtReturn;
use crate::transport::Transport;

/// The size in bytes and the number of PEs from which a broadcast is cut into slices. The root then sends
/// each slice to one PE, and that PE sends it to the others. So the root need not send all bytes several
/// times. Smaller broadcasts use a binomial tree, which needs fewer messages.
pub(super) const SCATTERED_FROM: (usize, u32) = (256 << 10, 8);

/// A function that combines arrays of elements: `(accumulator, other, count)`. For each index below `count`,
/// it combines the elements of `accumulator` and `other`, and stores the result in `accumulator`. The arrays
/// may be misaligned.
pub type Reduce<'a> = &'a dyn Fn(*mut u8, *const u8, usize);

impl<T: Transport> World<T> {
    /// Returns the set of all PEs.
    pub fn all(&self) -> Set {
        Set { start: 0, stride: 1, size: self.pes() }
    }

    /// Blocks until every PE of the set has called this function. Does not wait for puts.
    ///
    /// # Errors
    /// [`Error::LinkLost`]; [`Error::Invalid`] for a set that is malformed or lacks the caller.
    pub fn sync<'a>(&'a self, group: impl Into<Group<'a>>) -> Result<()> {
        self.disseminate(&self.enter(group)?)
    }

    pub(super) fn disseminate(&self, entered: &Entered<'_>) -> Result<()> {
        let Entered { set, index, .. } = entered;
        let mut distance = 1;
        while distance < set.size {
            self.notify(entered, set.pe((index + distance) % set.size))?;
            self.take_notification(entered, set.pe((index + set.size - distance) % set.size))?;
            distance *= 2;
        }
        Ok(())
    }

    /// Blocks until every PE of the set has called this function. Also waits until the earlier puts of all
    /// these PEs are delivered. This includes the puts of other contexts, although OpenSHMEM does not demand that, because
    /// programs rely on it.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn barrier<'a>(&'a self, group: impl Into<Group<'a>>) -> Result<()> {
        self.transport.quiet_all()?;
        self.sync(group)
    }

    /// Blocks until all PEs have called this function and the earlier puts of all PEs are delivered.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn barrier_all(&self) -> Result<()> {
        self.barrier(self.all())
    }

    /// Copies `bytes` bytes from the root's `source` to all other PEs of the set, at the symmetric address
    /// `destination`. The root is the PE at index `root`.
    ///
    /// # Errors
    /// As for [`World::sync`] and [`Context::put_bytes`](super::Context::put_bytes).
    ///
    /// # Safety
    /// At the root, `source` is readable for `bytes`.
    pub unsafe fn broadcast<'a>(
        &'a self,
        group: impl Into<Group<'a>>,
        root: u32,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let entered = self.enter(group)?;
        let set = entered.set;
        if root >= set.size {
            return Err(Error::invalid(
                format!("root {root}"),
                format!("the set has {} PEs; give an index below that", set.size),
            ));
        }
        let offset = self.offset_of(destination, bytes)?;
        // SAFETY: the caller keeps the promises that these calls need.
        unsafe {
            match bytes >= self.scattered_from.0 && set.size >= self.scattered_from.1 {
                true => self.scatter(&entered, root, offset, source, bytes),
                false => self.send_down_tree(&entered, root, offset, source, bytes),
            }
        }
    }

    /// Broadcasts by slices. The PE at distance i + 1 behind the root receives slice i from the root. It then
    /// sends the slice to all other PEs except the root.
    ///
    /// # Safety
    /// At the root, `source` is readable for `bytes` bytes.
    unsafe fn scatter(
        &self,
        entered: &Entered<'_>,
        root: u32,
        offset: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let Entered { set, index, .. } = entered;
        let receivers = set.size - 1;
        // Make slices of whole cache lines. If two PEs write one line at the same time, they delay each
        // other.
        let share = bytes.div_ceil(receivers as usize).next_multiple_of(64);
        let pe = |receiver: u32| set.pe((root + 1 + receiver) % set.size);
        let slice = |receiver: u32| {
            let first = bytes.min(share * receiver as usize);
            (first, share.min(bytes - first))
        };
        if *index == root {
            for receiver in 0..receivers {
                let (first, length) = slice(receiver);
                // SAFETY: the slice lies inside the source, and the destination was checked.
                unsafe { self.send(entered, pe(receiver), offset + first, source.add(first), length)? };
            }
            return Ok(());
        }
        let own = (index + set.size - root - 1) % set.size;
        self.take_notification(entered, set.pe(root))?;
        let (first, length) = slice(own);
        let others = || (1..receivers).map(|distance| pe((own + distance) % receivers));
        for other in others() {
            // SAFETY: the slice lies inside the destination, which was checked.
            unsafe { self.send(entered, other, offset + first, self.address_of(offset + first), length)? };
        }
        others().try_for_each(|other| self.take_notification(entered, other))
    }

    /// Broadcasts by a binomial tree: each PE receives all bytes from its parent, and sends them to its children.
    ///
    /// # Safety
    /// At the root, `source` is readable for `bytes`.
    unsafe fn send_down_tree(
        &self,
        entered: &Entered<'_>,
        root: u32,
        offset: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let Entered { set, index, .. } = entered;
        let relative = (index + set.size - root) % set.size;
        let pe = |relative: u32| set.pe((relative + root) % set.size);
        let mut from = source;
        // The lowest set bit of `relative` is the distance to the parent. The smaller powers of two are the
        // distances to the children. So the loop below starts from the parent's distance and halves it.
        let mut reach =
            if relative == 0 { set.size.next_power_of_two() } else { 1 << relative.trailing_zeros() };
        if relative != 0 {
            self.take_notification(entered, pe(relative - reach))?;
            from = self.address_of(offset);
        }
        while reach > 1 {
            reach /= 2;
            if relative + reach < set.size {
                // SAFETY: at the root, the caller promises the source. At other PEs, the source is their own
                // symmetric memory.
                unsafe { self.send(entered, pe(relative + reach), offset, from, bytes)? };
            }
        }
        Ok(())
    }

    /// Puts `bytes` bytes to `pe` at symmetric `offset`, and then notifies it.
    ///
    /// # Safety
    /// `source` is readable for `bytes`, and the destination lies in symmetric memory.
    unsafe fn send(
        &self,
        entered: &Entered<'_>,
        pe: u32,
        offset: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.transport.put(pe, offset, source, bytes, AtReturn)? };
        self.notify(entered, pe)
    }

    /// Concatenates the `bytes` bytes at `source` of all PEs of the set, in the set's order. Stores the
    /// result at `destination` of each of these PEs. `bytes` may differ between PEs.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `bytes`.
    pub unsafe fn collect<'a>(
        &'a self,
        group: impl Into<Group<'a>>,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let entered = self.enter(group)?;
        let (set, index) = (entered.set, entered.index);
        self.send_length(&entered, bytes as u64)?;
        self.exchange(&entered)?;
        let mut at = 0usize;
        for other in 0..index {
            at = at.saturating_add(self.length(&entered, set.pe(other))? as usize);
        }
        let offset = self.offset_of(destination.saturating_add(at), bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.put_to_all(&entered, offset, source, bytes) }
    }

    /// Concatenates the PEs' data like [`World::collect`], but `bytes` must be equal on all PEs of the set.
    /// This is faster, because the PEs exchange no lengths.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `bytes`.
    pub unsafe fn fcollect<'a>(
        &'a self,
        group: impl Into<Group<'a>>,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let entered = self.enter(group)?;
        let index = entered.index;
        let offset =
            self.offset_of(destination.saturating_add(bytes.saturating_mul(index as usize)), bytes)?;
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.put_to_all(&entered, offset, source, bytes) }
    }

    unsafe fn put_to_all(
        &self,
        entered: &Entered<'_>,
        offset: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        for pe in entered.set.others(entered.index) {
            // SAFETY: the caller keeps the promises that this call needs.
            unsafe { self.transport.put(pe, offset, source, bytes, AtReturn)? };
        }
        // Copy to this PE's own destination last, because source and destination may be the same memory.
        // SAFETY: `offset_of` checked the destination. `copy` allows source and destination to overlap.
        unsafe { std::ptr::copy(source, self.address_of(offset), bytes) };
        self.exchange(entered)
    }

    /// Notifies every other PE of the set, and waits for a notification from each.
    pub(super) fn exchange(&self, entered: &Entered<'_>) -> Result<()> {
        let others = || entered.set.others(entered.index);
        others().try_for_each(|pe| self.notify(entered, pe))?;
        others().try_for_each(|pe| self.take_notification(entered, pe))
    }

    /// Sends block i of `source` to PE i of the set, for each i. Each block has `bytes` bytes. The receiver
    /// stores the block as block j of its `destination`, where j is the sender's index in the set.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `bytes` times the size of the set.
    pub unsafe fn all_to_all<'a>(
        &'a self,
        group: impl Into<Group<'a>>,
        destination: usize,
        source: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let entered = self.enter(group)?;
        let (set, index) = (entered.set, entered.index);
        let offset =
            self.offset_of(destination.saturating_add(bytes.saturating_mul(index as usize)), bytes)?;
        for distance in 0..set.size {
            let other = (index + distance) % set.size;
            // SAFETY: the caller promises that the source contains block `other`.
            unsafe {
                self.transport.put(
                    set.pe(other),
                    offset,
                    source.add(other as usize * bytes),
                    bytes,
                    AtReturn,
                )?
            };
        }
        self.exchange(&entered)
    }

    /// Sends `count` elements of `width` bytes to each PE of the set, like [`World::all_to_all`], but the
    /// elements are not contiguous. `strides` are the distances between neighbouring elements, first in the
    /// destination and then in the source. Their unit is elements.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    ///
    /// # Safety
    /// All elements of `source` are readable: `count` for each PE, at the source's distance.
    pub unsafe fn all_to_all_strided<'a>(
        &'a self,
        group: impl Into<Group<'a>>,
        destination: usize,
        source: *const u8,
        strides: (isize, isize),
        (count, width): (usize, usize),
    ) -> Result<()> {
        let entered = self.enter(group)?;
        let (set, index) = (entered.set, entered.index);
        let at = |element: usize, stride: isize| {
            (element as isize).wrapping_mul(stride).wrapping_mul(width as isize)
        };
        for distance in 0..set.size {
            let other = (index + distance) % set.size;
            for element in 0..count {
                let to = at(index as usize * count + element, strides.0);
                let offset = self.offset_of(destination.wrapping_add_signed(to), width)?;
                let from = source.wrapping_offset(at(other as usize * count + element, strides.1));
                // SAFETY: the caller promises that the source contains this element.
                unsafe { self.transport.put(set.pe(other), offset, from, width, AtReturn)? };
            }
        }
        self.exchange(&entered)
    }

    /// Combines the arrays at `source` of all PEs of the group by `reduce`, element by element. An array has
    /// `count` elements of `width` bytes. Stores the result at `destination` of each PE. All PEs get the same
    /// bits, because one PE computes each result.
    ///
    /// # Errors
    /// The same as [`World::broadcast`].
    ///
    /// # Safety
    /// `source` is readable for `count * width` bytes. It may be the destination.
    pub unsafe fn reduce<'a>(
        &'a self,
        group: impl Into<Group<'a>>,
        destination: usize,
        source: *const u8,
        (count, width): (usize, usize),
        reduce: Reduce<'_>,
    ) -> Result<()> {
        let entered = self.enter(group)?;
        let (set, index) = (entered.set, entered.index);
        let bytes = count.saturating_mul(width);
        let offset = self.offset_of(destination, bytes)?;
        // If there are at least 256 bytes for each PE, let each PE reduce a slice of the elements. Slices are
        // whole cache lines, so with fewer bytes many PEs would get no slice.
        if bytes >= self.transport.slices_from().max(set.size as usize * 256)
            && set.size > 1
            && let Ok(from) = self.offset_of(source as usize, bytes)
        {
            // SAFETY: both spans lie in symmetric memory.
            return unsafe { self.reduce_slices(&entered, (offset, from), (count, width), reduce) };
        }
        let chunk = self.chunk_bytes(&entered) / width.max(1) * width;
        // Allocate 16-byte words, so that the buffer has a sufficient alignment for every element type.
        let mut sum = vec![0u128; chunk.min(bytes).div_ceil(16)];
        let mut done = 0;
        while done < bytes {
            let piece = chunk.min(bytes - done);
            // SAFETY: `done + piece` is at most the promised bytes, and `piece` at most the length of `sum`.
            unsafe { std::ptr::copy_nonoverlapping(source.add(done), sum.as_mut_ptr().cast(), piece) };
            // Combine up a binomial tree: each child puts its sum into the chunk that the parent reserves for
            // it.
            let mut distance = 1;
            while distance < set.size {
                if index & distance != 0 {
                    let parent = set.pe(index - distance);
                    let chunk = self.chunk(&entered, parent, self.me(), distance)?;
                    // SAFETY: `sum` has `piece` bytes.
                    unsafe { self.send(&entered, parent, chunk, sum.as_ptr().cast(), piece)? };
                    break;
                }
                if index + distance < set.size {
                    let child = set.pe(index + distance);
                    self.take_notification(&entered, child)?;
                    let chunk = self.chunk(&entered, self.me(), child, distance)?;
                    reduce(sum.as_mut_ptr().cast(), self.address_of(chunk), piece / width.max(1));
                }
                distance *= 2;
            }
            // Send the result down the tree. A child puts its next chunk only after it has received this
            // result. So the parent's memory for the chunk is free by then.
            // SAFETY: `sum` has `piece` bytes, and the destination was checked above.
            unsafe {
                if index == 0 {
                    std::ptr::copy_nonoverlapping(sum.as_ptr().cast(), self.address_of(offset + done), piece);
                }
                self.send_down_tree(&entered, 0, offset + done, sum.as_ptr().cast(), piece)?;
            }
            done += piece;
        }
        Ok(())
    }

    /// Reduces as [`World::reduce`] does. Each PE combines one slice of all PEs' sources, and then puts the
    /// result to every PE. `destination` and `source` are symmetric offsets.
    ///
    /// # Safety
    /// The spans at both offsets lie in symmetric memory.
    unsafe fn reduce_slices(
        &self,
        entered: &Entered<'_>,
        (destination, source): (usize, usize),
        (count, width): (usize, usize),
        reduce: Reduce<'_>,
    ) -> Result<()> {
        let Entered { set, index, .. } = entered;
        self.exchange(entered)?;
        // Make slices whole cache lines. If two PEs write to the same line at the same time, they delay each
        // other.
        let share = count.div_ceil(set.size as usize).next_multiple_of((64 / width.max(1)).max(1));
        let (first, last) = (count.min(share * *index as usize), count.min(share * (*index as usize + 1)));
        let elements = (CHUNK / width.max(1)).min(share).max(1);
        // Allocate 16-byte words. The buffers are then aligned for every element type.
        let mut buffers = [(); 2].map(|()| vec![0u128; (elements * width).div_ceil(16)]);
        let [sum, other] = buffers.each_mut().map(|buffer| buffer.as_mut_ptr().cast::<u8>());
        for begin in (first..last).step_by(elements) {
            let (at, number) = (begin * width, elements.min(last - begin));
            let piece = number * width;
            // SAFETY: the piece lies inside the source, the destination and both buffers.
            unsafe {
                // Combine in the order of the set. The rounding then does not depend on which PE combines an
                // element.
                for one in 0..set.size {
                    let pe = set.pe(one);
                    let mapped = match pe == self.me() {
                        true => Some(self.address_of(source + at)),
                        false => self.transport.direct(pe, source + at),
                    };
                    match (one, mapped) {
                        (0, Some(elements)) => std::ptr::copy_nonoverlapping(elements, sum, piece),
                        (0, None) => self.transport.get(pe, source + at, sum, piece, AtReturn)?,
                        (_, Some(elements)) => reduce(sum, elements, number),
                        (_, None) => {
                            self.transport.get(pe, source + at, other, piece, AtReturn)?;
                            reduce(sum, other, number);
                        }
                    }
                }
                // The source and the destination may be the same memory. Writing this slice is safe, because
                // no other PE reads this slice of any source.
                std::ptr::copy_nonoverlapping(sum, self.address_of(destination + at), piece);
                for pe in set.others(*index) {
                    self.transport.put(pe, destination + at, sum, piece, AtReturn)?;
                }
            }
        }
        self.exchange(entered)
    }
}
