//! The byte pattern by which transfers are checked. Its 8-byte words differ from each other, so the check
//! finds missing, stale and misplaced bytes.

use inlane_core::Region;

/// Returns word `index` of the pattern of `seed`. `memory.cu` computes the same.
pub fn word(index: u64, seed: u64) -> u64 {
    let word = index.wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word ^ (word >> 29)
}

/// Fills `bytes` with the pattern of `seed`, starting with word 0.
pub fn fill(bytes: &mut [u8], seed: u64) {
    let (words, rest) = bytes.as_chunks_mut();
    let last = word(words.len() as u64, seed).to_le_bytes();
    // Without optimization, as in tests, iterators would take most of the time.
    let mut index = 0;
    while index < words.len() {
        words[index] = word(index as u64, seed).to_le_bytes();
        index += 1;
    }
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Counts the bytes that differ from the pattern of `seed`.
pub fn count_wrong(bytes: &[u8], seed: u64) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut wrong = differences(rest, word(words.len() as u64, seed));
    let mut index = 0;
    while index < words.len() {
        let expected = word(index as u64, seed);
        if u64::from_le_bytes(words[index]) != expected {
            wrong += differences(&words[index], expected);
        }
        index += 1;
    }
    wrong
}

fn differences(bytes: &[u8], expected: u64) -> u64 {
    bytes.iter().zip(expected.to_le_bytes()).filter(|(byte, expected)| **byte != *expected).count() as u64
}

/// Returns the bytes of a region that the CPU maps.
///
/// # Safety
/// Nothing else accesses the region while the slice lives.
#[allow(clippy::mut_from_ref, reason = "a region is a handle, and the caller promises exclusive access")]
pub(crate) unsafe fn bytes_of(region: &Region) -> &mut [u8] {
    debug_assert!(region.location().is_cpu_memory());
    // SAFETY: the region keeps these bytes mapped, and the caller has exclusive access.
    unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bytes_and_misplaced_words_are_counted() {
        let mut bytes = vec![0; 4099];
        fill(&mut bytes, 7);
        assert_eq!(count_wrong(&bytes, 7), 0);
        assert!(count_wrong(&bytes, 8) > 4000);
        bytes[4098] ^= 1;
        assert_eq!(count_wrong(&bytes, 7), 1);
        bytes[4098] ^= 1;
        let (low, high) = bytes.split_at_mut(8);
        low.swap_with_slice(&mut high[..8]);
        assert!(count_wrong(&bytes, 7) > 8);
    }
}
