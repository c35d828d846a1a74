//! Symmetric arrays of plain numbers, the Rust interface to symmetric memory.

use super::{Compare, Group, Signal, World};
use crate::error::{Error, Result};
use crate::transport::Reuse::AtReturn;
use crate::transport::{Operation, Transport};
use std::marker::PhantomData;

/// A plain number: every bit pattern is a value, and there is no padding.
///
/// # Safety
/// Implement it only for plain numbers.
pub unsafe trait Element: Copy + PartialOrd + Send + Sync + 'static {}

macro_rules! elements {
    ($($type:ty)*) => {
        $(
            // SAFETY: the type is a plain number.
            unsafe impl Element for $type {}
        )*
    };
}
elements!(u8 i8 u16 i16 u32 i32 u64 i64 usize isize f32 f64);

/// An array in the symmetric heap. Every PE has its own copy, at the same offset.
#[derive(Debug)]
pub struct Symmetric<E: Element> {
    address: usize,
    length: usize,
    element: PhantomData<E>,
}

impl<E: Element> Clone for Symmetric<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for Symmetric<E> {}

impl<E: Element> Symmetric<E> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true for an array without elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of this PE's copy of the array.
    pub fn as_ptr(&self) -> *mut E {
        self.address as *mut E
    }

    fn at(&self, index: usize, count: usize) -> Result<usize> {
        match index.checked_add(count) {
            Some(end) if end <= self.length => Ok(self.address + index * size_of::<E>()),
            _ => Err(Error::invalid(
                format!("{count} elements from {index}"),
                format!("the symmetric array has {}", self.length),
            )),
        }
    }
}

impl<T: Transport> World<T> {
    /// Returns the address of element `index` in this PE's copy of the array. Fails if the array has fewer
    /// than `count` elements from `index` on, or if it belongs to another world.
    fn own<E: Element>(&self, array: Symmetric<E>, index: usize, count: usize) -> Result<*const E> {
        let at = array.at(index, count)?;
        self.offset_of(at, count * size_of::<E>())?;
        Ok(at as *const E)
    }

    /// Allocates a symmetric array of zeros. All PEs must call it with the same length.
    ///
    /// # Errors
    /// As for [`World::allocate`].
    pub fn array<E: Element>(&self, length: usize) -> Result<Symmetric<E>> {
        let bytes = length.saturating_mul(size_of::<E>());
        let address = self.allocate(bytes, 128)?;
        // SAFETY: the array was just allocated with `bytes` bytes. Other PEs use it only after the barrier.
        unsafe { std::ptr::write_bytes(address, 0, bytes) };
        self.barrier_all()?;
        Ok(Symmetric { address: address as usize, length, element: PhantomData })
    }

    /// Puts elements into `pe`'s copy, starting at index `index`.
    ///
    /// # Errors
    /// As for [`Context::put_bytes`](super::Context::put_bytes).
    pub fn put<E: Element>(&self, array: Symmetric<E>, index: usize, source: &[E], pe: u32) -> Result<()> {
        let at = array.at(index, source.len())?;
        // SAFETY: the slice has plain elements, so its bytes are readable.
        unsafe { self.put_bytes(at, source.as_ptr().cast(), size_of_val(source), pe, AtReturn) }
    }

    /// Gets elements of `pe`'s copy, starting at index `index`.
    ///
    /// # Errors
    /// As for [`Context::get_bytes`](super::Context::get_bytes).
    pub fn get<E: Element>(&self, array: Symmetric<E>, index: usize, into: &mut [E], pe: u32) -> Result<()> {
        let at = array.at(index, into.len())?;
        // SAFETY: the slice has plain elements, so any bytes are valid values.
        unsafe { self.get_bytes(into.as_mut_ptr().cast(), at, size_of_val(into), pe, AtReturn) }
    }

    /// Puts elements and then updates a signal at the same PE. If that PE sees the new value of `signal`, it
    /// also sees the elements.
    ///
    /// # Errors
    /// As for [`Context::put_signal_bytes`](super::Context::put_signal_bytes).
    pub fn put_signal<E: Element>(
        &self,
        array: Symmetric<E>,
        index: usize,
        source: &[E],
        signal: (Symmetric<u64>, usize, Signal, u64),
        pe: u32,
    ) -> Result<()> {
        let at = array.at(index, source.len())?;
        let (words, word, how, value) = signal;
        let word = words.at(word, 1)?;
        // SAFETY: the slice has plain elements, so its bytes are readable.
        unsafe {
            self.put_signal_bytes(at, source.as_ptr().cast(), size_of_val(source), (word, how, value), pe)
        }
    }

    /// Loads element `index` of this PE's copy of the array.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an index outside the array.
    pub fn load<E: Element>(&self, array: Symmetric<E>, index: usize) -> Result<E> {
        let at = self.own(array, index, 1)?;
        // SAFETY: the element lies inside this world's memory, aligned by the array's allocation.
        Ok(unsafe { at.read_volatile() })
    }

    /// Blocks until the comparison `how` of an element with `value` is true. The element is the one at
    /// `index` in this PE's copy of the array. Returns the element.
    ///
    /// # Errors
    /// As for [`World::wait`].
    pub fn wait_until<E: Element>(
        &self,
        array: Symmetric<E>,
        index: usize,
        how: Compare,
        value: E,
    ) -> Result<E> {
        let at = self.own(array, index, 1)?;
        let mut seen = value;
        self.wait_word((at as usize, size_of::<E>()), None, || {
            // SAFETY: the element lies inside this world's memory, aligned by the array's allocation.
            seen = unsafe { at.read_volatile() };
            std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            how.holds(seen, value)
        })?;
        Ok(seen)
    }

    /// Carries out an atomic on element `index` of `pe`'s copy. Returns the previous value.
    ///
    /// # Errors
    /// As for [`Context::atomic`](super::Context::atomic).
    pub fn fetch(
        &self,
        operation: Operation,
        array: Symmetric<u64>,
        index: usize,
        operand: u64,
        comparand: u64,
        pe: u32,
    ) -> Result<u64> {
        self.atomic(operation, array.at(index, 1)?, 8, operand, comparand, pe)
    }

    /// Adds the arrays of all PEs of the set element by element. Stores the sums in every PE's `into`.
    ///
    /// # Errors
    /// As for [`World::reduce`].
    pub fn sum<'a, E: Element + std::ops::Add<Output = E>>(
        &'a self,
        group: impl Into<Group<'a>>,
        into: Symmetric<E>,
        from: Symmetric<E>,
    ) -> Result<()> {
        let count = into.len().min(from.len());
        let source = self.own(from, 0, count)?;
        let add = |sum: *mut u8, other: *const u8, count: usize| {
            let (sum, other) = (sum.cast::<E>(), other.cast::<E>());
            for index in 0..count {
                // SAFETY: `sum` and `other` point to `count` elements each.
                unsafe {
                    let value = sum.add(index).read_unaligned() + other.add(index).read_unaligned();
                    sum.add(index).write_unaligned(value);
                }
            }
        };
        // SAFETY: the source has `count` elements in this world's memory.
        unsafe { self.reduce(group, into.address, source.cast(), (count, size_of::<E>()), &add) }
    }
}
