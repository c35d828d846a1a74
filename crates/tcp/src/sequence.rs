//! Sequence numbers, extended to 64 bits.
//!
//! On the wire, a sequence number has 32 bits and wraps. Inside this crate, a sequence number has 64 bits and
//! never wraps. Its low half is the number on the wire. Comparisons are therefore plain integer comparisons.
//! [`extend`] converts a number from the wire.

/// A sequence number. The low 32 bits are the number on the wire.
pub type Sequence = u64;

/// The upper half of every initial sequence number. Old segments have sequence numbers below the initial one.
/// Because the upper half is not 0, these numbers do not wrap below 0.
const FIRST_EPOCH: u64 = 1 << 32;

/// Extends an initial sequence number from the wire to 64 bits.
#[inline]
pub fn initial(number: u32) -> Sequence {
    FIRST_EPOCH | number as u64
}

/// Returns the sequence number nearest to `near` whose low 32 bits are `number`.
#[inline]
pub fn extend(near: Sequence, number: u32) -> Sequence {
    near.wrapping_add_signed(number.wrapping_sub(near as u32) as i32 as i64)
}

/// Returns true if the 32-bit number `a` precedes `b` (RFC 9293, section 3.4; RFC 7323, section 5.2).
#[inline]
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rfc9293_numbers_extend_to_the_nearest(near in (1u64 << 32)..(1u64 << 60), distance in -0x8000_0000i64..0x8000_0000) {
            let sequence = near.wrapping_add_signed(distance);
            prop_assert_eq!(extend(near, sequence as u32), sequence);
            prop_assert_eq!(before(sequence as u32, near as u32), distance < 0);
        }
    }
}
