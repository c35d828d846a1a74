//! Regular sets of PEs.

use crate::error::{Error, Result};

/// A regular set of `size` PEs: `start`, `start + stride`, `start + 2 * stride`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The first PE.
    pub start: u32,
    /// The difference between the numbers of consecutive PEs of the set. It may be negative. It may be 0 if
    /// the set has only one PE.
    pub stride: i32,
    /// The number of PEs.
    pub size: u32,
}

impl Set {
    /// Returns the number of the PE at position `index` of the set.
    pub fn pe(&self, index: u32) -> u32 {
        self.start.wrapping_add(index.wrapping_mul(self.stride as u32))
    }

    /// Returns the position of PE `pe` in the set, if the set contains it.
    pub fn index(&self, pe: u32) -> Option<u32> {
        let distance = pe as i64 - self.start as i64;
        let index = match self.stride as i64 {
            0 => (distance == 0).then_some(0),
            stride => (distance % stride == 0).then_some(distance / stride),
        }?;
        (0..self.size as i64).contains(&index).then_some(index as u32)
    }

    /// Divides the ascending numbers `pes` into regular sets, and returns the set with `pe`. Returns the same sets for
    /// the same numbers, whatever `pe` is. Returns a set of `pe` alone if the numbers do not contain it.
    pub fn regular_part(pes: &[u32], pe: u32) -> Self {
        let mut rest = pes;
        while let [start, after @ ..] = rest {
            let stride = after.first().map_or(1, |next| next - start);
            let follows = |(pair, next): (&u32, &u32)| next - pair == stride;
            let size = 1 + rest.iter().zip(after).take_while(|(one, next)| follows((one, next))).count();
            let part = Self { start: *start, stride: stride as i32, size: size as u32 };
            if part.index(pe).is_some() {
                return part;
            }
            rest = &rest[size..];
        }
        Self { start: pe, stride: 1, size: 1 }
    }

    /// Returns true if the set is not empty, its PEs differ, and all lie within 0 to `pes - 1`.
    pub fn is_within(&self, pes: u32) -> bool {
        let last = (self.size as i64 - 1) * self.stride as i64 + self.start as i64;
        self.size > 0
            && (self.stride != 0 || self.size == 1)
            && self.start < pes
            && (0..pes as i64).contains(&last)
    }

    /// Returns all PEs except the one at `index`, starting with its successor. If all PEs iterate in step,
    /// each PE is addressed by one other PE in every step.
    pub(super) fn others(&self, index: u32) -> impl Iterator<Item = u32> {
        (1..self.size).map(move |distance| self.pe((index + distance) % self.size))
    }

    pub(super) fn index_of(&self, pe: u32, pes: u32) -> Result<u32> {
        match self.index(pe).filter(|_| self.is_within(pes)) {
            Some(index) => Ok(index),
            None => Err(Error::invalid(
                format!(
                    "the set of {} PEs that starts at PE {} with stride {}",
                    self.size, self.start, self.stride
                ),
                format!("it must lie within PEs 0 to {} and contain the calling PE {pe}", pes - 1),
            )),
        }
    }
}
