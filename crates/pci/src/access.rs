//! Instructions of one width each, as a PCI device needs them.
//!
//! A compiler may merge, split or repeat ordinary accesses, and `memcpy` uses widths that a device may reject. Here every
//! access is one instruction of the width asked for, naturally aligned, in ascending order of addresses.
//!
//! | width | plain | streaming (non-temporal) |
//! | --- | --- | --- |
//! | 1, 2 | `mov` | as plain |
//! | 4, 8 | `mov` | `movnti`; loads as plain |
//! | 16 | `movdqa` | `movntdq`, `movntdqa` |
//! | 32 | `vmovdqa` (AVX) | `vmovntdq`, `vmovntdqa` (AVX2) |
//! | 64 | `vmovdqa64` (AVX-512) | `vmovntdq`, `vmovntdqa` |
//!
//! Streaming stores to a write-combining mapping gather in buffers of 64 bytes and leave in any order: [`issued`] before
//! anything that must come after them. On other processors than x86-64 there are the widths to 8 only, always plain.

use inlane_core::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The width of one access in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Width {
    /// 1 byte.
    B1 = 1,
    /// 2 bytes.
    B2 = 2,
    /// 4 bytes.
    B4 = 4,
    /// 8 bytes.
    B8 = 8,
    /// 16 bytes: SSE2.
    B16 = 16,
    /// 32 bytes: AVX.
    B32 = 32,
    /// 64 bytes: AVX-512.
    B64 = 64,
}

impl Width {
    /// All, the narrowest first.
    pub const ALL: [Width; 7] =
        [Width::B1, Width::B2, Width::B4, Width::B8, Width::B16, Width::B32, Width::B64];

    /// In bytes.
    pub fn bytes(self) -> usize {
        self as usize
    }

    /// This processor has it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Width::B32 => is_x86_feature_detected!("avx2"),
            Width::B64 => is_x86_feature_detected!("avx512f"),
            _ => true,
        };
        #[cfg(not(target_arch = "x86_64"))]
        return self <= Width::B8;
    }

    /// The widest that this processor has.
    pub fn widest() -> Self {
        *Self::ALL.iter().rfind(|width| width.is_available()).expect("a byte is always available")
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

impl FromStr for Width {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found =
            text.parse().ok().and_then(|bytes: usize| Self::ALL.into_iter().find(|w| w.bytes() == bytes));
        found.ok_or_else(|| Error::Invalid {
            what: format!("access width '{text}'"),
            why: "choose 1, 2, 4, 8, 16, 32 or 64 bytes".into(),
        })
    }
}

/// Whether the processor's caches and write-combining buffers are hinted to be passed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// Ordinary stores and loads.
    #[default]
    Plain,
    /// Non-temporal ones: what fills write-combining buffers whole.
    Streaming,
}

/// Stores `length` bytes from `source` to the device at `target`: accesses of `width` where the target's alignment and
/// what is left allow it, else the widest narrower ones.
///
/// # Safety
/// Both are valid for `length` bytes, they do not overlap, and `width` is available.
pub unsafe fn store(target: *mut u8, source: *const u8, length: usize, width: Width, hint: Hint) {
    for piece in Pieces::new(target as usize, length, width) {
        // SAFETY: pieces lie within the length, aligned at the target; the width is no wider than the one asked for.
        unsafe {
            blocks::store(target.add(piece.offset), source.add(piece.offset), piece.count, piece.width, hint)
        }
    }
}

/// Loads `length` bytes from the device at `source` to `target`, likewise.
///
/// # Safety
/// Both are valid for `length` bytes, they do not overlap, and `width` is available.
pub unsafe fn load(source: *const u8, target: *mut u8, length: usize, width: Width, hint: Hint) {
    for piece in Pieces::new(source as usize, length, width) {
        // SAFETY: as in `store`, with the alignment at the source.
        unsafe {
            blocks::load(source.add(piece.offset), target.add(piece.offset), piece.count, piece.width, hint)
        }
    }
}

/// Makes everything stored before leave this processor: it is issued, and comes before what is stored after.
pub fn issued() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an SSE instruction, which every x86-64 has. (A release fence emits nothing on x86.)
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags))
    };
}

/// `count` accesses of `width` from `offset`.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    offset: usize,
    count: usize,
    width: Width,
}

/// Cuts a span into runs of naturally aligned accesses: narrow ones up to the first aligned address, wide ones, narrow
/// ones at the end.
struct Pieces {
    address: usize,
    offset: usize,
    length: usize,
    width: Width,
}

impl Pieces {
    fn new(address: usize, length: usize, width: Width) -> Self {
        Self { address, offset: 0, length, width }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let left = self.length - self.offset;
        let fits = |width: &Width| {
            *width <= self.width
                && width.bytes() <= left
                && (self.address + self.offset).is_multiple_of(width.bytes())
        };
        let width = *Width::ALL.iter().rfind(|width| fits(width))?;
        // Narrow accesses only one by one: the next may be wider.
        let count = if width == self.width { left / width.bytes() } else { 1 };
        let piece = Piece { offset: self.offset, count, width };
        self.offset += count * width.bytes();
        Some(piece)
    }
}

/// Runs of accesses of one width. All functions: both pointers valid for `count` accesses, the device's aligned to the
/// width, the width available.
mod blocks {
    use super::{Hint, Width};

    macro_rules! scalar {
        ($from:expr, $to:expr, $count:expr, $type:ty, store) => {
            for n in 0..$count {
                // SAFETY: the caller's; the device's side is aligned.
                unsafe {
                    $to.cast::<$type>().add(n).write_volatile($from.cast::<$type>().add(n).read_unaligned())
                }
            }
        };
        ($from:expr, $to:expr, $count:expr, $type:ty, load) => {
            for n in 0..$count {
                // SAFETY: the caller's; the device's side is aligned.
                unsafe {
                    $to.cast::<$type>().add(n).write_unaligned($from.cast::<$type>().add(n).read_volatile())
                }
            }
        };
    }

    pub unsafe fn store(to: *mut u8, from: *const u8, count: usize, width: Width, hint: Hint) {
        match (width, hint) {
            (Width::B1, _) => scalar!(from, to, count, u8, store),
            (Width::B2, _) => scalar!(from, to, count, u16, store),
            (Width::B4, Hint::Plain) => scalar!(from, to, count, u32, store),
            (Width::B8, Hint::Plain) => scalar!(from, to, count, u64, store),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's.
            _ => unsafe { super::x86::store(to, from, count, width, hint) },
            #[cfg(not(target_arch = "x86_64"))]
            (Width::B4, _) => scalar!(from, to, count, u32, store),
            #[cfg(not(target_arch = "x86_64"))]
            _ => scalar!(from, to, count * (width.bytes() / 8), u64, store),
        }
    }

    pub unsafe fn load(from: *const u8, to: *mut u8, count: usize, width: Width, hint: Hint) {
        let _ = hint;
        match width {
            Width::B1 => scalar!(from, to, count, u8, load),
            Width::B2 => scalar!(from, to, count, u16, load),
            Width::B4 => scalar!(from, to, count, u32, load),
            Width::B8 => scalar!(from, to, count, u64, load),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's.
            _ => unsafe { super::x86::load(from, to, count, width, hint) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => scalar!(from, to, count * (width.bytes() / 8), u64, load),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Hint, Width};
    use std::arch::asm;

    /// A run of one load and one store instruction each, through a vector register.
    macro_rules! run {
        ($name:ident, $feature:literal, $class:ident, $bytes:literal, $load:literal, $store:literal) => {
            #[target_feature(enable = $feature)]
            unsafe fn $name(from: *const u8, to: *mut u8, count: usize) {
                for n in 0..count {
                    // SAFETY: valid for `count` accesses by the caller; the instructions touch nothing else.
                    unsafe {
                        asm!(
                            $load,
                            $store,
                            value = out($class) _,
                            from = in(reg) from.add(n * $bytes),
                            to = in(reg) to.add(n * $bytes),
                            options(nostack, preserves_flags)
                        )
                    }
                }
            }
        };
    }

    run!(store_4_streaming, "sse2", reg, 4, "mov {value:e}, [{from}]", "movnti [{to}], {value:e}");
    run!(store_8_streaming, "sse2", reg, 8, "mov {value}, [{from}]", "movnti [{to}], {value}");
    run!(store_16, "sse2", xmm_reg, 16, "movdqu {value}, [{from}]", "movdqa [{to}], {value}");
    run!(store_16_streaming, "sse2", xmm_reg, 16, "movdqu {value}, [{from}]", "movntdq [{to}], {value}");
    run!(store_32, "avx", ymm_reg, 32, "vmovdqu {value}, [{from}]", "vmovdqa [{to}], {value}");
    run!(store_32_streaming, "avx", ymm_reg, 32, "vmovdqu {value}, [{from}]", "vmovntdq [{to}], {value}");
    run!(store_64, "avx512f", zmm_reg, 64, "vmovdqu64 {value}, [{from}]", "vmovdqa64 [{to}], {value}");
    run!(
        store_64_streaming,
        "avx512f",
        zmm_reg,
        64,
        "vmovdqu64 {value}, [{from}]",
        "vmovntdq [{to}], {value}"
    );
    run!(load_16, "sse2", xmm_reg, 16, "movdqa {value}, [{from}]", "movdqu [{to}], {value}");
    run!(load_16_streaming, "sse4.1", xmm_reg, 16, "movntdqa {value}, [{from}]", "movdqu [{to}], {value}");
    run!(load_32, "avx", ymm_reg, 32, "vmovdqa {value}, [{from}]", "vmovdqu [{to}], {value}");
    run!(load_32_streaming, "avx2", ymm_reg, 32, "vmovntdqa {value}, [{from}]", "vmovdqu [{to}], {value}");
    run!(load_64, "avx512f", zmm_reg, 64, "vmovdqa64 {value}, [{from}]", "vmovdqu64 [{to}], {value}");
    run!(
        load_64_streaming,
        "avx512f",
        zmm_reg,
        64,
        "vmovntdqa {value}, [{from}]",
        "vmovdqu64 [{to}], {value}"
    );

    pub unsafe fn store(to: *mut u8, from: *const u8, count: usize, width: Width, hint: Hint) {
        // SAFETY: the caller's: valid, aligned, and the width is available, which implies the feature.
        unsafe {
            match (width, hint) {
                (Width::B4, _) => store_4_streaming(from, to, count),
                (Width::B8, _) => store_8_streaming(from, to, count),
                (Width::B16, Hint::Plain) => store_16(from, to, count),
                (Width::B16, Hint::Streaming) => store_16_streaming(from, to, count),
                (Width::B32, Hint::Plain) => store_32(from, to, count),
                (Width::B32, Hint::Streaming) => store_32_streaming(from, to, count),
                (Width::B64, Hint::Plain) => store_64(from, to, count),
                (Width::B64, Hint::Streaming) => store_64_streaming(from, to, count),
                (Width::B1 | Width::B2, _) => unreachable!("stored by scalars"),
            }
        }
    }

    pub unsafe fn load(from: *const u8, to: *mut u8, count: usize, width: Width, hint: Hint) {
        let streaming = hint == Hint::Streaming && is_x86_feature_detected!("sse4.1");
        // SAFETY: as in `store`.
        unsafe {
            match (width, streaming) {
                (Width::B16, false) => load_16(from, to, count),
                (Width::B16, true) => load_16_streaming(from, to, count),
                (Width::B32, false) => load_32(from, to, count),
                (Width::B32, true) => load_32_streaming(from, to, count),
                (Width::B64, false) => load_64(from, to, count),
                (Width::B64, true) => load_64_streaming(from, to, count),
                _ => unreachable!("loaded by scalars"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn narrow_wide_narrow() {
        let pieces: Vec<_> =
            Pieces::new(0x1006, 30, Width::B8).map(|p| (p.offset, p.count, p.width)).collect();
        assert_eq!(pieces, [(0, 1, Width::B2), (2, 3, Width::B8), (26, 1, Width::B4)]);
        assert_eq!(Pieces::new(0x1000, 4096, Width::B4).count(), 1);
        assert_eq!(Pieces::new(0x1001, 0, Width::B4).count(), 0);
    }

    proptest! {
        #[test]
        fn bytes_arrive_whatever_the_alignment(
            start in 0usize..64, length in 0usize..300, from in 0usize..8, width in 0usize..7, streaming: bool,
        ) {
            let width = Width::ALL[width];
            prop_assume!(width.is_available());
            let hint = if streaming { Hint::Streaming } else { Hint::Plain };
            let source: Vec<u8> = (0..400).map(|n| n as u8 ^ 0x5a).collect();
            let mut device = vec![0u64; 100];
            let device = device.as_mut_ptr().cast::<u8>();
            let mut back = vec![0u8; 400];
            // SAFETY: at most 64 + 300 of 800 bytes and 8 + 300 of 400.
            unsafe {
                store(device.add(start), source.as_ptr().add(from), length, width, hint);
                issued();
                load(device.add(start), back.as_mut_ptr().add(from), length, width, hint);
                prop_assert_eq!(device.add(start + length).read(), 0);
            }
            prop_assert_eq!(&back[from..from + length], &source[from..from + length]);
            prop_assert!(back[from + length..].iter().all(|&b| b == 0));
        }
    }
}
