//! Copies memory in SSE, AVX and AVX-512 registers, and by `movdir64b`. Written in assembly because each
//! access must be exactly one instruction.

use std::arch::asm;

/// Returns true if the CPU has `movdir64b` (CPUID leaf 7, ECX bit 28; Intel SDM volume 2, CPUID).
pub(super) fn has_movdir64b() -> bool {
    std::arch::x86_64::__cpuid_count(0, 0).eax >= 7
        && std::arch::x86_64::__cpuid_count(7, 0).ecx & (1 << 28) != 0
}

macro_rules! copy {
    ($name:ident, $feature:literal, $class:ident, $width:literal, $load:literal, $store:literal) => {
        /// Copies `count` times the width of a register. Each round does four loads, then four stores.
        ///
        /// # Safety
        /// The conditions of [`super::Access::copy`] hold, and the CPU has the feature that the instructions
        /// need.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(destination: *mut u8, source: *const u8, count: usize) {
            let (mut d, mut s) = (destination, source);
            for _ in 0..count / 4 {
                // SAFETY: at least four register widths of both spans are left to copy.
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
                // SAFETY: at least one register width of both spans is left to copy.
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

/// Copies `count` pieces of 64 bytes by `movdir64b`.
///
/// # Safety
/// As for [`super::Access::copy`], and the CPU has the instruction.
pub(super) unsafe fn direct64(destination: *mut u8, source: *const u8, count: usize) {
    for index in 0..count {
        // SAFETY: all pieces are inside the spans. The caller promises a destination that is a multiple of
        // 64.
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
