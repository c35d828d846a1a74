//! Control messages: acknowledgments, memory information, probes and resets between inlane's own peers.

use crate::config::MAX_SLOTS;
use inlane_wire::roce::{self, Bth};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// The opcode of control messages.
pub const CONTROL: u8 = roce::opcode::MANUFACTURER;
/// The most bytes of headers that [`crate::Connection::poll_transmit`] writes.
pub const MAX_HEADERS: usize = roce::BTH + FIXED + MAX_WORDS * 8 + MAX_GRANTS * GRANT;

/// The first two bytes of a control message: the letter I and the version. Version 2 has acknowledgments with data.
const MAGIC: u16 = 0x4902;
const FIXED: usize = 28;
const GRANT: usize = 20;
/// The most words of the bitmap.
pub const MAX_WORDS: usize = MAX_SLOTS as usize / 64;
/// The most ranges that can be granted at a time.
pub const MAX_GRANTS: usize = 8;

/// The sender asks for a control message.
pub const PROBE: u8 = 1;
/// The sender has ended the connection.
pub const RESET: u8 = 2;
/// The sender has shared the memory of its receive ring over a channel of the caller.
pub const SHARED: u8 = 4;

/// Memory information: a range of the stream that the peer may write, and the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of this grant. Grants count from 1.
    pub generation: u32,
    pub key: u32,
    pub start: u64,
    pub end: u64,
}

impl Grant {
    /// Returns the memory information that both peers know from a side's token: the first `bytes` of the stream to this
    /// side. `None` if there are none.
    pub fn first(token: u64, bytes: u32) -> Option<Self> {
        let mut hasher = SipHasher13::new();
        hasher.write_u64(token);
        (bytes > 0).then_some(Self {
            generation: 1,
            key: hasher.finish() as u32 | 1,
            start: 0,
            end: bytes as u64,
        })
    }
}

/// The fixed part of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    pub flags: u8,
    pub token: u64,
    /// The next expected PSN, 24 bits.
    pub expected: u32,
    /// The number of PSNs that the receiver accepts.
    pub slots: u32,
    /// The number of packets that arrived more than once, modulo 2^32.
    pub duplicates: u32,
}

/// A parsed control message.
pub struct Control<'a> {
    pub fixed: Fixed,
    words: &'a [u8],
    grants: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl<'a> Control<'a> {
    /// Parses the bytes after the BTH. Returns `None` if they are malformed.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED)?;
        let (grants, words) = (fixed[3] as usize, fixed[4] as usize);
        if fixed[..2] != MAGIC.to_be_bytes() || grants > MAX_GRANTS || words > MAX_WORDS {
            return None;
        }
        let (words, grants) = (words * 8, grants * GRANT);
        if rest.len() != words + grants {
            return None;
        }
        let (words, grants) = rest.split_at(words);
        let fixed = Fixed {
            flags: fixed[2],
            token: u64_at(fixed, 8),
            expected: u32_at(fixed, 16) & roce::MASK,
            slots: u32_at(fixed, 20),
            duplicates: u32_at(fixed, 24),
        };
        Some(Self { fixed, words, grants })
    }

    /// Returns the number of PSNs that the bitmap covers.
    pub fn covered(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Returns true if the bitmap says that the PSN `offset` after the expected one has arrived.
    pub fn has(&self, offset: u64) -> bool {
        offset < self.covered() && u64_at(self.words, offset as usize / 64 * 8) >> (offset % 64) & 1 != 0
    }

    /// Returns the granted ranges. A range whose end exceeds 64 bits is left out.
    pub fn grants(&self) -> impl Iterator<Item = Grant> {
        self.grants.chunks_exact(GRANT).filter_map(|bytes| {
            let start = u64_at(bytes, 8);
            let end = start.checked_add(u32_at(bytes, 16) as u64)?;
            Some(Grant { generation: u32_at(bytes, 0), key: u32_at(bytes, 4), start, end })
        })
    }
}

/// Writes a control message with its BTH. Returns its length.
pub fn write<'a>(
    to: &mut [u8],
    queue_pair: u32,
    fixed: &Fixed,
    words: impl Iterator<Item = u64>,
    grants: impl Iterator<Item = &'a Grant>,
) -> usize {
    let mut bth = Bth::new(&mut to[..roce::BTH]).expect("the slice has a BTH's length");
    bth.fill(CONTROL, queue_pair, fixed.expected, false, 0);
    let body = &mut to[roce::BTH..];
    let mut at = FIXED;
    let mut put = |bytes: &[u8]| {
        body[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let (mut word_count, mut grant_count) = (0, 0);
    for word in words.take(MAX_WORDS) {
        put(&word.to_be_bytes());
        word_count += 1;
    }
    for grant in grants.take(MAX_GRANTS) {
        put(&grant.generation.to_be_bytes());
        put(&grant.key.to_be_bytes());
        put(&grant.start.to_be_bytes());
        put(&((grant.end - grant.start) as u32).to_be_bytes());
        grant_count += 1;
    }
    body[..2].copy_from_slice(&MAGIC.to_be_bytes());
    body[2..8].copy_from_slice(&[fixed.flags, grant_count, word_count, 0, 0, 0]);
    body[8..16].copy_from_slice(&fixed.token.to_be_bytes());
    body[16..20].copy_from_slice(&(fixed.expected & roce::MASK).to_be_bytes());
    body[20..24].copy_from_slice(&fixed.slots.to_be_bytes());
    body[24..28].copy_from_slice(&fixed.duplicates.to_be_bytes());
    roce::BTH + at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_read_back_as_written(
            flags: u8, token: u64, expected in 0..=roce::MASK, slots: u32, duplicates: u32,
            words in proptest::collection::vec(any::<u64>(), 0..=MAX_WORDS),
            ranges in proptest::collection::vec((any::<u32>(), any::<u32>(), 0..1u64 << 60, any::<u32>()), 0..=MAX_GRANTS),
        ) {
            let fixed = Fixed { flags, token, expected, slots, duplicates };
            let grants: Vec<Grant> = ranges.iter().map(|&(generation, key, start, len)| Grant { generation, key, start, end: start + len as u64 }).collect();
            let mut bytes = [0; MAX_HEADERS];
            let len = write(&mut bytes, 5, &fixed, words.iter().copied(), grants.iter());
            let control = Control::parse(&bytes[roce::BTH..len]).unwrap();
            prop_assert_eq!(control.fixed, fixed);
            prop_assert_eq!(control.grants().collect::<Vec<_>>(), grants);
            for offset in 0..words.len() as u64 * 64 + 1 {
                let bit = words.get(offset as usize / 64).is_some_and(|word| word >> (offset % 64) & 1 != 0);
                prop_assert_eq!(control.has(offset), bit);
            }
            for cut in roce::BTH..len {
                prop_assert!(Control::parse(&bytes[roce::BTH..cut]).is_none());
            }
        }
    }
}
