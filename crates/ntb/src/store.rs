//! How bytes are stored through a window: which instructions, in which widths.
//!
//! * coherent windows take what a plain copy takes;
//! * write-combining and device memory takes aligned volatile stores of 8 bytes (1, 2, 4 at the edges), or whole
//!   64-byte lines by non-temporal stores; never `memcpy`, which may write bytes twice or in widths a device rejects;
//! * loads from device memory are aligned volatile loads.

/// Orders all earlier stores, non-temporal and write-combining ones too, before all later ones.
///
/// `fence(Release)` emits no instruction on x86 and does not order write-combining stores; this does.
#[inline(always)]
pub fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction exists on every x86-64 and touches nothing.
    unsafe {
        core::arch::x86_64::_mm_sfence()
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Copies as an ordinary copy does, with single stores for 1, 2, 4 and 8 bytes (which then do not tear where aligned).
///
/// # Safety
/// `source` is readable and `destination` writable for `length` bytes; they do not overlap.
#[inline(always)]
pub unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller's promise; the widths used never exceed `length`, and unaligned accesses are declared so.
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

/// The widest naturally aligned piece at `address` of at most `left` bytes and at most 8.
#[inline(always)]
fn width(address: usize, left: usize) -> usize {
    let aligned = 1usize << (address.trailing_zeros().min(3));
    let fits = 1usize << (usize::BITS - 1 - left.min(8).leading_zeros());
    aligned.min(fits)
}

/// Stores to device memory: aligned, fixed widths, each byte once, in ascending order of issue.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn store_device(destination: *mut u8, source: *const u8, length: usize) {
    let mut done = 0;
    while done < length {
        // SAFETY: `done + width <= length`; the destination is aligned to the width by its choice.
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

/// One 64-byte line by non-temporal stores: one full write-combining buffer, one packet on the link.
///
/// # Safety
/// `to` is aligned to 64 and writable for 64 bytes, `from` readable for 64.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(to: *mut u8, from: *const u8) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for piece in 0..4 {
        // SAFETY: four times 16 bytes of the 64 promised; the destination is aligned.
        unsafe {
            let value = _mm_loadu_si128(from.add(piece * 16).cast::<__m128i>());
            _mm_stream_si128(to.add(piece * 16).cast::<__m128i>(), value);
        }
    }
}

/// Loads from device memory: aligned volatile loads of at most 8 bytes.
///
/// # Safety
/// As for [`copy`], with device memory as the source.
pub unsafe fn load_device(destination: *mut u8, source: *const u8, length: usize) {
    let mut done = 0;
    while done < length {
        // SAFETY: as in `store_device`, with the source aligned.
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
            // SAFETY: all offsets and lengths stay below the vectors' lengths.
            unsafe {
                store_device(stored.as_mut_ptr().add(to), source.as_ptr().add(from), length);
                store_fence();
                load_device(loaded.as_mut_ptr().add(from), stored.as_ptr().add(to), length);
            }
            prop_assert_eq!(&stored[to..to + length], &source[from..from + length]);
            prop_assert_eq!(&loaded[from..from + length], &source[from..from + length]);
            prop_assert!(stored[..to].iter().chain(&stored[to + length..]).all(|byte| *byte == 0));
        }
    }
}
