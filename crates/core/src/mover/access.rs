//! Loads and stores of one fixed width, written out so that no compiler changes, splits or repeats them.
//!
//! A BAR answers to the accesses that its device expects and to no others: a `memcpy` may use another width or touch a
//! byte twice. Every access here is one instruction, naturally aligned at the device's side. Non-temporal and
//! 64-byte direct stores bypass the cache and drain in any order: [`Access::drain`] ends with `sfence`.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How the processor loads and stores when it copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// One 4-byte register at a time: what every BAR takes.
    Bytes4,
    /// One 8-byte register at a time.
    Bytes8,
    /// SSE registers.
    Bytes16,
    /// AVX registers.
    Bytes32,
    /// AVX-512 registers.
    Bytes64,
    /// The widest registers there are, stored past the cache (and loaded by streaming loads).
    NonTemporal,
    /// `movdir64b`: 64 bytes that arrive as one write.
    Direct64,
}

impl Access {
    /// Every access, narrowest first.
    pub const ALL: [Access; 7] = [
        Access::Bytes4,
        Access::Bytes8,
        Access::Bytes16,
        Access::Bytes32,
        Access::Bytes64,
        Access::NonTemporal,
        Access::Direct64,
    ];

    /// Bytes an access moves on this processor.
    pub fn width(self) -> usize {
        match self {
            Access::Bytes4 => 4,
            Access::Bytes8 => 8,
            Access::Bytes16 => 16,
            Access::Bytes32 => 32,
            Access::Bytes64 | Access::Direct64 => 64,
            Access::NonTemporal => {
                if Access::Bytes64.is_available() {
                    64
                } else if Access::Bytes32.is_available() {
                    32
                } else {
                    16
                }
            }
        }
    }

    /// This processor has it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Access::Bytes4 | Access::Bytes8 | Access::Bytes16 => true,
            // Streaming loads are SSE4.1's.
            Access::NonTemporal => is_x86_feature_detected!("sse4.1"),
            // Streaming loads of 32 bytes are AVX2's; asking for it here keeps one rule for both.
            Access::Bytes32 => is_x86_feature_detected!("avx2"),
            Access::Bytes64 => is_x86_feature_detected!("avx512f"),
            Access::Direct64 => x86::has_movdir64b(),
        }
    }

    /// This processor has it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        matches!(self, Access::Bytes4 | Access::Bytes8)
    }

    /// The widest ordinary access there is.
    pub fn widest() -> Access {
        [Access::Bytes64, Access::Bytes32, Access::Bytes16]
            .into_iter()
            .find(|access| access.is_available())
            .unwrap_or(Access::Bytes8)
    }

    /// Its stores may linger or pass each other until [`Access::drain`].
    pub fn is_weakly_ordered(self) -> bool {
        matches!(self, Access::NonTemporal | Access::Direct64)
    }

    /// Copies `count` times [`Access::width`] bytes, ascending, each by one load and one store.
    ///
    /// # Safety
    /// The access is available; both spans are valid for it, and do not overlap; `Direct64` needs a destination that
    /// is a multiple of 64, `NonTemporal` both sides a multiple of its width.
    pub unsafe fn copy(self, destination: *mut u8, source: *const u8, count: usize) {
        // SAFETY: the caller's promise is the callee's.
        unsafe {
            match self {
                Access::Bytes4 => words::<u32>(destination, source, count),
                Access::Bytes8 => words::<u64>(destination, source, count),
                #[cfg(target_arch = "x86_64")]
                Access::Bytes16 => x86::copy16(destination, source, count),
                #[cfg(target_arch = "x86_64")]
                Access::Bytes32 => x86::copy32(destination, source, count),
                #[cfg(target_arch = "x86_64")]
                Access::Bytes64 => x86::copy64(destination, source, count),
                #[cfg(target_arch = "x86_64")]
                Access::NonTemporal => match self.width() {
                    64 => x86::stream64(destination, source, count),
                    32 => x86::stream32(destination, source, count),
                    _ => x86::stream16(destination, source, count),
                },
                #[cfg(target_arch = "x86_64")]
                Access::Direct64 => x86::direct64(destination, source, count),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("not available on this processor"),
            }
        }
    }

    /// Makes all stores before it visible to devices before any after it. A Rust `fence(Release)` is no instruction on
    /// x86 and does not do this for stores past the cache or to write-combining memory.
    pub fn drain() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::NonTemporal => write!(f, "nt"),
            Access::Direct64 => write!(f, "movdir64b"),
            sized => write!(f, "{}", sized.width()),
        }
    }
}

impl FromStr for Access {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let access = Access::ALL.into_iter().find(|access| access.to_string() == text).ok_or_else(|| {
            Error::Invalid {
                what: format!("access width '{text}'"),
                why: "choose 4, 8, 16, 32, 64, nt or movdir64b".into(),
            }
        })?;
        access.require()
    }
}

impl Access {
    /// Itself, when this processor has it.
    ///
    /// # Errors
    /// [`Error::Device`] that names the widest there is.
    pub fn require(self) -> Result<Self> {
        if self.is_available() {
            return Ok(self);
        }
        Err(Error::device_environment(
            "cpu",
            format!(
                "has no accesses '{self}'; the widest ordinary ones here are {} bytes",
                Access::widest().width()
            ),
        ))
    }
}

/// Copies words by volatile accesses.
///
/// # Safety
/// As [`Access::copy`].
unsafe fn words<T: Copy>(destination: *mut u8, source: *const u8, count: usize) {
    let (destination, source) = (destination.cast::<T>(), source.cast::<T>());
    let aligned = |address: usize| address.is_multiple_of(size_of::<T>());
    if aligned(source as usize) && aligned(destination as usize) {
        for index in 0..count {
            // SAFETY: inside both spans, aligned, per the caller and the test above.
            unsafe { destination.add(index).write_volatile(source.add(index).read_volatile()) };
        }
        return;
    }
    for index in 0..count {
        // One side is ordinary memory at an odd address: its access may be split, the other's is aligned and whole.
        // SAFETY: inside both spans, per the caller.
        unsafe {
            if aligned(source as usize) {
                destination.add(index).write_unaligned(source.add(index).read_volatile());
            } else if aligned(destination as usize) {
                destination.add(index).write_volatile(source.add(index).read_unaligned());
            } else {
                destination.add(index).write_unaligned(source.add(index).read_unaligned());
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! One function a register width. Assembly, so that each access stays the one instruction it says.

    use std::arch::asm;

    /// The CPUID bit (leaf 7, ECX bit 28; Intel SDM volume 2, CPUID).
    pub fn has_movdir64b() -> bool {
        std::arch::x86_64::__cpuid_count(0, 0).eax >= 7
            && std::arch::x86_64::__cpuid_count(7, 0).ecx & (1 << 28) != 0
    }

    macro_rules! copy {
        ($name:ident, $feature:literal, $class:ident, $width:literal, $load:literal, $store:literal) => {
            /// Copies `count` registers, four loads ahead of their stores.
            ///
            /// # Safety
            /// As [`super::Access::copy`]; the processor has the feature named.
            #[target_feature(enable = $feature)]
            pub unsafe fn $name(destination: *mut u8, source: *const u8, count: usize) {
                let (mut d, mut s) = (destination, source);
                for _ in 0..count / 4 {
                    // SAFETY: four registers' worth from each pointer are inside the spans.
                    unsafe {
                        asm!(
                            concat!($load, " {a}, [{s}]"),
                            concat!($load, " {b}, [{s} + ", $width, "]"),
                            concat!($load, " {c}, [{s} + 2*", $width, "]"),
                            concat!($load, " {e}, [{s} + 3*", $width, "]"),
                            concat!($store, " [{d}], {a}"),
                            concat!($store, " [{d} + ", $width, "], {b}"),
                            concat!($store, " [{d} + 2*", $width, "], {c}"),
                            concat!($store, " [{d} + 3*", $width, "], {e}"),
                            a = out($class) _, b = out($class) _, c = out($class) _, e = out($class) _,
                            s = in(reg) s, d = in(reg) d,
                            options(nostack, preserves_flags),
                        );
                        d = d.add(4 * $width);
                        s = s.add(4 * $width);
                    }
                }
                for _ in 0..count % 4 {
                    // SAFETY: one register's worth from each pointer is inside the spans.
                    unsafe {
                        asm!(
                            concat!($load, " {a}, [{s}]"),
                            concat!($store, " [{d}], {a}"),
                            a = out($class) _, s = in(reg) s, d = in(reg) d,
                            options(nostack, preserves_flags),
                        );
                        d = d.add($width);
                        s = s.add($width);
                    }
                }
            }
        };
    }

    copy!(copy16, "sse2", xmm_reg, 16, "movdqu", "movdqu");
    copy!(copy32, "avx2", ymm_reg, 32, "vmovdqu", "vmovdqu");
    copy!(copy64, "avx512f", zmm_reg, 64, "vmovdqu64", "vmovdqu64");
    copy!(stream16, "sse4.1", xmm_reg, 16, "movntdqa", "movntdq");
    copy!(stream32, "avx2", ymm_reg, 32, "vmovntdqa", "vmovntdq");
    copy!(stream64, "avx512f", zmm_reg, 64, "vmovntdqa", "vmovntdq");

    /// Copies `count` times 64 bytes by `movdir64b`.
    ///
    /// # Safety
    /// As [`super::Access::copy`]; the processor has the instruction.
    pub unsafe fn direct64(destination: *mut u8, source: *const u8, count: usize) {
        for index in 0..count {
            // SAFETY: inside the spans; the destination is a multiple of 64, per the caller.
            unsafe {
                asm!(
                    "movdir64b {d}, [{s}]",
                    d = in(reg) destination.add(index * 64),
                    s = in(reg) source.add(index * 64),
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}
