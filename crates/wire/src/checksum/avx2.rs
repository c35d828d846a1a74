//! Sums of whole blocks of bytes with the vector instructions of AVX2.
//!
//! The compiler's own vector code for these sums is slower, with AVX2 even slower than without.

use std::arch::x86_64::*;

/// The length of a block in bytes.
pub const BLOCK: usize = 64;

/// Returns true if the CPU has AVX2.
#[inline]
pub fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Returns the sum of the native 32-bit words of `blocks`. Can be called only if [`is_available`] returns true.
#[target_feature(enable = "avx2")]
pub fn sum(blocks: &[[u8; BLOCK]]) -> u64 {
    let mut sums = Sums::new();
    for block in blocks {
        // SAFETY: a block is readable.
        sums.add(unsafe { load(block.as_ptr()) });
    }
    sums.total()
}

/// Fills `to` with blocks from `from`, and returns the sum of the native 32-bit words of the copied blocks. Reads each byte
/// once. Can be called only if [`is_available`] returns true.
///
/// # Safety
/// `from` points to as many readable bytes as `to` has.
#[target_feature(enable = "avx2")]
pub unsafe fn copy_and_sum(from: *const u8, to: &mut [[u8; BLOCK]]) -> u64 {
    let mut sums = Sums::new();
    for (index, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller promises that many bytes.
        let halves = unsafe { load(from.add(index * BLOCK)) };
        store(halves, to);
        sums.add(halves);
    }
    sums.total()
}

/// # Safety
/// `from` points to a readable block.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(from: *const u8) -> [__m256i; 2] {
    let start = from.cast::<__m256i>();
    // SAFETY: a block has 64 bytes, which are two vectors of 32. These loads need no alignment.
    unsafe { [_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1))] }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(halves: [__m256i; 2], block: &mut [u8; BLOCK]) {
    let start = block.as_mut_ptr().cast::<__m256i>();
    // SAFETY: a block has 64 bytes, which are two vectors of 32. These stores need no alignment.
    unsafe {
        _mm256_storeu_si256(start, halves[0]);
        _mm256_storeu_si256(start.add(1), halves[1]);
    }
}

/// Sums of 32-bit words. Each sum has 64 bits, so it does not overflow. Each 64-bit lane holds two words, and
/// `lower` and `upper` add them separately. Index 0 adds the first half of each block and index 1 the second
/// half, because the CPU then executes both additions in parallel.
struct Sums {
    lower: [__m256i; 2],
    upper: [__m256i; 2],
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        let zero = [_mm256_setzero_si256(); 2];
        Self { lower: zero, upper: zero }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, halves: [__m256i; 2]) {
        let lower = _mm256_set1_epi64x(0xffff_ffff);
        for (index, half) in halves.into_iter().enumerate() {
            self.lower[index] = _mm256_add_epi64(self.lower[index], _mm256_and_si256(half, lower));
            self.upper[index] = _mm256_add_epi64(self.upper[index], _mm256_srli_epi64::<32>(half));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(self) -> u64 {
        let lower = _mm256_add_epi64(self.lower[0], self.lower[1]);
        let upper = _mm256_add_epi64(self.upper[0], self.upper[1]);
        let four = _mm256_add_epi64(lower, upper);
        let two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
        _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two))) as u64
    }
}
