//! Stamps: the identity of a generated packet, in the last 18 bytes of its payload. All numbers are
//! big-endian.
//!
//! ```text
//! | body: the same in all packets | flow (4) | sequence number (4) | due time (6) | CRC-32C (4) |
//! ```
//!
//! The sequence number counts the packets of the flow, modulo 2^32. The due time is the planned time of
//! sending, in nanoseconds. Generator and checker use the same clock. The CRC covers all payload bytes before
//! the CRC.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};
use inlane_wire::checksum::Sum;

/// Length of a stamp, in bytes.
pub const BYTES: usize = 18;
const COVERED: usize = BYTES - 4;
const DUE_MASK: u64 = (1 << 48) - 1;

/// The content of a stamp, without its CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The number of the flow to which the packet belongs.
    pub flow: u32,
    /// The packet's sequence number in the flow, modulo 2^32.
    pub sequence: u32,
    /// When the packet was due, in nanoseconds, modulo 2^48.
    pub due_ns: u64,
}

impl Stamp {
    /// Returns the bytes of the stamp for a packet whose body has the CRC `body_crc`.
    #[inline(always)]
    pub fn to_bytes(self, body_crc: u32) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..4].copy_from_slice(&self.flow.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..14].copy_from_slice(&self.due_ns.to_be_bytes()[2..]);
        // The state of a CRC-32C is the complement of the CRC so far.
        let mut crc = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!body_crc));
        crc.update(&bytes[..COVERED]);
        bytes[COVERED..].copy_from_slice(&(crc.finalize() as u32).to_be_bytes());
        bytes
    }

    /// Reads a stamp from the last bytes of a payload. Does not check the CRC; see [`crc_ok`].
    #[inline(always)]
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let due = [0, 0, bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13]];
        Self { flow: word(0), sequence: word(4), due_ns: u64::from_be_bytes(due) }
    }

    /// Returns the nanoseconds from the due time to `now_ns`, or 0 before the due time.
    #[inline(always)]
    pub fn age_ns(self, now_ns: u64) -> u64 {
        let age = now_ns.wrapping_sub(self.due_ns) & DUE_MASK;
        if age > DUE_MASK / 2 { 0 } else { age }
    }
}

/// Returns true if the CRC in the stamp at the end of `payload` is right.
#[inline(always)]
pub fn crc_ok(payload: &[u8]) -> bool {
    let Some((covered, crc)) = payload.split_last_chunk::<4>() else { return false };
    crc32_iscsi(covered) == u32::from_be_bytes(*crc)
}

/// Returns what a stamp adds to an internet checksum. Set `odd` if the stamp begins at an odd offset of the
/// summed bytes.
#[inline(always)]
pub fn sum(bytes: &[u8; BYTES], odd: bool) -> u16 {
    let mut sum = Sum::new();
    for pair in bytes.chunks_exact(2) {
        sum = sum.add(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if odd { sum.folded().swap_bytes() } else { sum.folded() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stamp_is_read_as_written(flow: u32, sequence: u32, due_ns in 0u64..1 << 48, body: Vec<u8>) {
            let stamp = Stamp { flow, sequence, due_ns };
            let bytes = stamp.to_bytes(crc32_iscsi(&body));
            prop_assert_eq!(Stamp::from_bytes(&bytes), stamp);
            let mut payload = [&body[..], &bytes[..]].concat();
            prop_assert!(crc_ok(&payload));
            let at = flow as usize % payload.len();
            payload[at] ^= 1 << (sequence % 8);
            prop_assert!(!crc_ok(&payload));
        }

        #[test]
        fn the_sum_of_a_stamp_is_its_part_of_the_whole_sum(stamp: [u8; BYTES], odd: bool) {
            let whole = [&[0u8][..odd as usize], &stamp[..]].concat();
            prop_assert_eq!(Sum::new().add(sum(&stamp, odd)).folded() % 0xffff, Sum::new().add_bytes(&whole).folded() % 0xffff);
        }
    }

    #[test]
    fn ages_continue_when_due_times_wrap() {
        let stamp = Stamp { flow: 0, sequence: 0, due_ns: DUE_MASK };
        assert_eq!(stamp.age_ns(DUE_MASK + 11), 11);
        assert_eq!(stamp.age_ns(DUE_MASK - 5), 0, "due in the future");
    }
}
