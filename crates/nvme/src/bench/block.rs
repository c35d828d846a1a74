//! The blocks that a bench with verification writes, and the check of these blocks when they are read.
//!
//! ```text
//!   0        8        16         24         28      32
//!   | magic  | offset | sequence | CRC-32C  | zero  | pseudo-random bytes |
//! ```

use crate::field::{RW, VERIFY};
use crate::wire::pdu::RunningDigest;
use std::fmt;

/// The length of a block's header in bytes. Pseudo-random bytes follow the header.
pub(super) const HEADER: usize = 32;
const MAGIC: u64 = u64::from_le_bytes(*b"inlane\x00\x01");

/// The ways in which the contents of a block can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The block was not written by a bench with verification.
    Foreign,
    /// The block was written for another offset, which is the value.
    Misplaced(u64),
    /// The checksum differs.
    Altered,
    /// The block holds the sequence number `found`. The block's last acknowledged write had the number
    /// `expected`.
    Stale {
        /// The number of the last acknowledged write.
        expected: u64,
        /// The number that the block holds.
        found: u64,
    },
}

/// A block with wrong contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("verification failed: the block at offset {offset} is wrong: {wrong}")]
pub struct WrongBlock {
    /// The block's offset in the namespace.
    pub offset: u64,
    /// What is wrong with it.
    pub wrong: Wrong,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Foreign => write!(
                f,
                "it was not written with {VERIFY}; write the range first, by {} {}",
                RW.with("write"),
                VERIFY.with("crc32c")
            ),
            Wrong::Misplaced(offset) => write!(f, "it contains the block of offset {offset}"),
            Wrong::Altered => write!(f, "its checksum is wrong"),
            Wrong::Stale { expected, found } => {
                write!(f, "it contains write {found} of this block, but write {expected} was acknowledged")
            }
        }
    }
}

fn word(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

fn checksum(block: &[u8]) -> u32 {
    let mut digest = RunningDigest::default();
    digest.update(&block[..24]);
    digest.update(&block[28..]);
    u32::from_le_bytes(digest.bytes())
}

/// Returns the next number of SplitMix64.
pub(super) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fills `block` with pseudo-random bytes.
pub(super) fn fill(block: &mut [u8], state: &mut u64) {
    for chunk in block.chunks_mut(8) {
        chunk.copy_from_slice(&random(state).to_le_bytes()[..chunk.len()]);
    }
}

/// Fills `block` with the contents for `offset`. `sequence` counts the writes to this offset.
pub(super) fn write(block: &mut [u8], offset: u64, sequence: u64) {
    fill(&mut block[HEADER..], &mut (offset ^ sequence.rotate_left(48)));
    block[..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&offset.to_le_bytes());
    block[16..24].copy_from_slice(&sequence.to_le_bytes());
    block[28..32].fill(0);
    let checksum = checksum(block);
    block[24..28].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks the block at `offset`. `sequence` is the number of this run's last write to it, if any.
pub(super) fn check(block: &[u8], offset: u64, sequence: Option<u64>) -> Result<(), Wrong> {
    if word(block, 0) != MAGIC {
        return Err(Wrong::Foreign);
    }
    if checksum(block).to_le_bytes() != block[24..28] {
        return Err(Wrong::Altered);
    }
    match (word(block, 8), word(block, 16)) {
        (found, _) if found != offset => Err(Wrong::Misplaced(found)),
        (_, found) if sequence.is_some_and(|expected| expected != found) => {
            Err(Wrong::Stale { expected: sequence.unwrap_or(0), found })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_wrong_block_is_found() {
        let mut block = [0; 512];
        assert_eq!(check(&block, 0, None), Err(Wrong::Foreign));
        write(&mut block, 4096, 7);
        assert_eq!(check(&block, 4096, None), Ok(()));
        assert_eq!(check(&block, 4096, Some(7)), Ok(()));
        assert_eq!(check(&block, 4096, Some(8)), Err(Wrong::Stale { expected: 8, found: 7 }));
        assert_eq!(check(&block, 8192, Some(7)), Err(Wrong::Misplaced(4096)));
        for at in 8..512 {
            block[at] ^= 0x10;
            assert_eq!(check(&block, 4096, Some(7)), Err(Wrong::Altered), "byte {at}");
            block[at] ^= 0x10;
        }
    }
}
