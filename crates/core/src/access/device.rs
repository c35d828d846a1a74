//! Short copies to and from device memory. The copies use aligned accesses of at most 8 bytes. On x86-64,
//! whole 64-byte lines are stored non-temporally. [`copy_coherent`] is for memory that accepts any access.

/// Copies `length` bytes to memory that accepts accesses of any width. A copy of 1, 2, 4 or 8 bytes is a
/// single store. If the destination is aligned, no reader of a single store sees a mix of old and new bytes.
///
/// # Safety
/// `source` must be readable and `destination` writable for `length` bytes. They must not overlap.
#[inline(always)]
pub unsafe fn copy_coherent(destination: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller promises `length` bytes. Each arm accesses that many and requires no alignment.
    unsafe {
        match length {
            8 => destination.cast::<u64>().write_unaligned(source.cast::<u64>().read_unaligned()),
            4 => destination.cast::<u32>().write_unaligned(source.cast::<u32>().read_unaligned()),
            2 => destination.cast::<u16>().write_unaligned(source.cast::<u16>().read_unaligned()),
            1 => *destination = *source,
            _ => std::ptr::copy_nonoverlapping(source, destination, length),
        }
    }
}

/// Returns the width in bytes of the next access at `address`. It is the largest of 1, 2, 4 and 8 with two
/// properties: `address` is aligned to it, and it does not exceed `left`.
#[inline(always)]
fn width(address: usize, left: usize) -> usize {
    let aligned = 1usize << (address.trailing_zeros().min(3));
    let fits = 1usize << (usize::BITS - 1 - left.min(8).leading_zeros());
    aligned.min(fits)
}

/// Copies `length` bytes to device memory in ascending order. Stores each byte once: whole 64-byte lines
/// non-temporally, the rest by aligned stores of at most 8 bytes. Call [`store_fence`](super::store_fence)
/// before a store that must arrive later.
///
/// # Safety
/// As for [`copy_coherent`].
pub unsafe fn store_device(destination: *mut u8, source: *const u8, length: usize) {
    let mut done = 0;
    while done < length {
        // SAFETY: `done + width <= length`, and the destination is aligned to `width`.
        unsafe {
            let (to, from) = (destination.add(done), source.add(done));
            let width = width(to as usize, length - done);
            match width {
                8 => {
                    #[cfg(target_arch = "x86_64")]
                    if length - done >= 64 && (to as usize).is_multiple_of(64) {
                        stream_line(to, from);
                        done += 64;
                        continue;
                    }
                    to.cast::<u64>().write_volatile(from.cast::<u64>().read_unaligned());
                }
                4 => to.cast::<u32>().write_volatile(from.cast::<u32>().read_unaligned()),
                2 => to.cast::<u16>().write_volatile(from.cast::<u16>().read_unaligned()),
                _ => to.write_volatile(*from),
            }
            done += width;
        }
    }
}

/// Stores one 64-byte line with non-temporal stores. Together they fill one write-combining buffer.
///
/// # Safety
/// `to` is aligned to 64 and writable for 64 bytes, `from` readable for 64.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(to: *mut u8, from: *const u8) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for piece in 0..4 {
        // SAFETY: four 16-byte stores cover the 64 bytes that the caller promised, and the destination is
        // aligned.
        unsafe {
            let value = _mm_loadu_si128(from.add(piece * 16).cast::<__m128i>());
            _mm_stream_si128(to.add(piece * 16).cast::<__m128i>(), value);
        }
    }
}

/// Copies `length` bytes from device memory in ascending order. Loads each byte once, by aligned loads of at
/// most 8 bytes.
///
/// # Safety
/// As for [`copy_coherent`].
pub unsafe fn load_device(destination: *mut u8, source: *const u8, length: usize) {
    let mut done = 0;
    while done < length {
        // SAFETY: `done + width <= length`, and the source is aligned to `width`.
        unsafe {
            let (to, from) = (destination.add(done), source.add(done));
            let width = width(from as usize, length - done);
            match width {
                8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_volatile()),
                4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_volatile()),
                2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_volatile()),
                _ => *to = from.read_volatile(),
            }
            done += width;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn device_copies_are_copies(from in 0usize..16, to in 0usize..80, length in 0usize..300) {
            let source: Vec<u8> = (0..400).map(|i| (i * 7 + 1) as u8).collect();
            let mut stored = vec![0u8; 500];
            let mut loaded = vec![0u8; 500];
            // SAFETY: offset plus length is less than the vectors' lengths.
            unsafe {
                store_device(stored.as_mut_ptr().add(to), source.as_ptr().add(from), length);
                super::super::store_fence();
                load_device(loaded.as_mut_ptr().add(from), stored.as_ptr().add(to), length);
            }
            prop_assert_eq!(&stored[to..to + length], &source[from..from + length]);
            prop_assert_eq!(&loaded[from..from + length], &source[from..from + length]);
            prop_assert!(stored[..to].iter().chain(&stored[to + length..]).all(|byte| *byte == 0));
        }
    }
}
