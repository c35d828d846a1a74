//! The internet checksum (RFC 1071): over one buffer, over several parts, and updated for a changed field
//! (RFC 1624).

use std::net::{Ipv4Addr, Ipv6Addr};

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vectors are loaded and stored through pointers")]
mod avx2;

/// The length in bytes from which vector instructions are used. Shorter buffers, such as headers, take less
/// time without them.
#[cfg(target_arch = "x86_64")]
const LEAST_VECTORS: usize = 128;

/// The sum for an internet checksum. Parts may be added in any order. Each part must start at an even offset of
/// the data, so only the part that ends the data may have an odd length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Creates the sum of no bytes.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds a word.
    #[inline(always)]
    pub const fn add(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds `bytes`, padded with a zero byte to an even number.
    #[inline]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code, reason = "the compiler cannot check that the CPU has AVX2")]
        if bytes.len() >= LEAST_VECTORS && avx2::is_available() {
            let (blocks, rest) = bytes.as_chunks();
            // SAFETY: the CPU has AVX2.
            let blocks = unsafe { avx2::sum(blocks) };
            return self.add_native(blocks + native_sum(rest));
        }
        self.add_native(native_sum(bytes))
    }

    /// Copies `from` to `to`, and adds these bytes, padded with a zero byte to an even number. Use this instead
    /// of a copy and [`Sum::add_bytes`], because one pass over the bytes takes less time than two.
    ///
    /// # Panics
    /// If the slices have different lengths.
    #[inline]
    #[allow(unsafe_code, reason = "a slice is passed by its pointer")]
    pub fn add_copied(self, from: &[u8], to: &mut [u8]) -> Self {
        assert_eq!(from.len(), to.len());
        // SAFETY: `from` has as many bytes as `to`.
        unsafe { self.add_copied_from(from.as_ptr(), to) }
    }

    /// Fills `to` with the bytes at `from`, and adds the copied bytes as [`Sum::add_copied`] does. Use this for memory that
    /// another process may write at the same time: the sum fits the copy, whichever bytes that has.
    ///
    /// # Safety
    /// `from` points to as many readable bytes as `to` has, outside `to`.
    #[inline]
    #[allow(unsafe_code, reason = "the memory at `from` may change, so it cannot be a slice")]
    pub unsafe fn add_copied_from(self, from: *const u8, to: &mut [u8]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if to.len() >= LEAST_VECTORS && avx2::is_available() {
            let (blocks, rest) = to.as_chunks_mut();
            // SAFETY: the CPU has AVX2. The caller promises the bytes, of which the rest follows the blocks.
            let sum = unsafe {
                let sum = avx2::copy_and_sum(from, blocks);
                let copied = blocks.len() * avx2::BLOCK;
                rest.as_mut_ptr().copy_from_nonoverlapping(from.add(copied), rest.len());
                sum
            };
            return self.add_native(sum + native_sum(rest));
        }
        // SAFETY: the caller promises the bytes.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len()) };
        self.add_bytes(to)
    }

    /// Adds a sum of native 32-bit words. It equals the sum of big-endian 16-bit words, except for a final byte
    /// swap (RFC 1071, section 2).
    #[inline(always)]
    fn add_native(self, sum: u64) -> Self {
        // 2^16 is 1 in this arithmetic, so a shift by 8 bits swaps the bytes. Here it loses no bit, because the
        // halves add up to at most 33 bits.
        let halves = (sum >> 32) + (sum & 0xffff_ffff);
        Self(self.0 + if cfg!(target_endian = "little") { halves << 8 } else { halves })
    }

    /// Adds the pseudo header of a TCP or UDP packet over IPv4.
    #[inline]
    pub fn add_pseudo_v4(self, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, length: u32) -> Self {
        // The upper half of a 32-bit word counts as much as the lower half, because 2^16 is 1 in the one's
        // complement arithmetic of 16 bits.
        let addresses = u64::from(source.to_bits()) + u64::from(destination.to_bits());
        Self(self.0 + addresses).add_tail(protocol, length)
    }

    /// Adds the pseudo header of an upper-layer packet over IPv6 (RFC 8200, section 8.1).
    pub fn add_pseudo_v6(self, source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, length: u32) -> Self {
        self.add_bytes(&source.octets()).add_bytes(&destination.octets()).add_tail(protocol, length)
    }

    fn add_tail(self, protocol: u8, length: u32) -> Self {
        self.add((length >> 16) as u16).add(length as u16).add(protocol as u16)
    }

    /// Returns the one's complement sum in 16 bits. A checksum is its inverse; see [`Sum::finish`].
    #[inline(always)]
    pub const fn folded(self) -> u16 {
        fold(self.0)
    }

    /// Returns the checksum as headers hold it: the inverted sum.
    #[inline(always)]
    pub const fn finish(self) -> u16 {
        !fold(self.0)
    }
}

/// Returns the sum of the native 32-bit words of `bytes`, padded with zero bytes to whole words.
#[inline]
fn native_sum(bytes: &[u8]) -> u64 {
    let word = |bytes: [u8; 4]| u64::from(u32::from_ne_bytes(bytes));
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut sum = 0;
    if !blocks.is_empty() {
        // Eight independent sums let the CPU add in parallel.
        let mut sums = [0; 8];
        for block in blocks {
            for (sum, bytes) in sums.iter_mut().zip(block.as_chunks().0) {
                *sum += word(*bytes);
            }
        }
        sum = sums.iter().sum();
    }
    let (words, rest) = rest.as_chunks();
    for bytes in words {
        sum += word(*bytes);
    }
    if rest.is_empty() {
        return sum;
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + word(last)
}

#[inline(always)]
const fn fold(mut sum: u64) -> u16 {
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// Returns the checksum of `bytes`. If `bytes` is a header that contains its correct checksum, the result is
/// 0.
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    Sum::new().add_bytes(bytes).finish()
}

/// Returns `checksum` updated for a word that changed from `old` to `new` (RFC 1624, equation 3).
#[inline(always)]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::new().add(!checksum).add(!old).add(new).finish()
}

/// Returns the UDP checksum to send: 0xffff instead of 0, because 0 means that the datagram has no checksum.
#[inline(always)]
pub const fn udp(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the checksum, computed word by word as in RFC 1071. Tests compare the fast computation with
    /// this one.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]) as u32;
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(!of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn equals_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            prop_assert_eq!(of(&bytes), plain(&bytes));
            // Long buffers take this path on a CPU without the vector instructions.
            prop_assert_eq!(Sum::new().add_native(native_sum(&bytes)).finish(), plain(&bytes));
        }

        #[test]
        fn a_copy_equals_its_source_and_its_sum(bytes in proptest::collection::vec(any::<u8>(), 0..1600), at in 0usize..8, before: u16) {
            // The slices begin at odd addresses, too, and the bytes around the copy stay.
            let mut room = vec![0xa5; bytes.len() + 16];
            let sum = Sum::new().add(before).add_copied(&bytes, &mut room[at..at + bytes.len()]);
            prop_assert_eq!(sum.finish(), Sum::new().add(before).add(!plain(&bytes)).finish());
            prop_assert_eq!(&room[at..at + bytes.len()], &bytes);
            let around = room[..at].iter().chain(&room[at + bytes.len()..]);
            prop_assert!(around.into_iter().all(|&byte| byte == 0xa5));
        }

        #[test]
        fn pseudo_headers_equal_their_bytes(source: [u8; 4], destination: [u8; 4], protocol: u8, length: u16) {
            let [high, low] = length.to_be_bytes();
            let bytes = [&source[..], &destination[..], &[0, protocol, high, low]].concat();
            let sum = Sum::new().add_pseudo_v4(source.into(), destination.into(), protocol, length.into());
            prop_assert_eq!(sum.finish(), plain(&bytes));
        }

        #[test]
        fn parts_equal_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let parts = Sum::new().add_bytes(&bytes[..cut]).add_bytes(&bytes[cut..]);
            prop_assert_eq!(parts.finish(), of(&bytes));
        }

        #[test]
        fn a_change_equals_a_new_sum(mut bytes in proptest::collection::vec(any::<u8>(), 20), new: u16, at in 0usize..10) {
            bytes[0] |= 1; // so that the sum is not zero, which has two representations
            let before = of(&bytes);
            let old = u16::from_be_bytes([bytes[2 * at], bytes[2 * at + 1]]);
            bytes[2 * at..2 * at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assume!(bytes.iter().any(|&byte| byte != 0));
            let (after, expected) = (update(before, old, new), of(&bytes));
            prop_assert!(after == expected || (after ^ expected) == 0xffff && (after == 0 || expected == 0));
        }
    }
}
