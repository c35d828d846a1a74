//! The CPU's loads and stores of device memory, in chosen instructions and widths.
//!
//! A BAR accepts only the accesses that its device expects. A `memcpy` may use another width or access a byte
//! twice. So each access here is one instruction with a naturally aligned address in the device's memory.
//!
//! * [`Access`] copies long spans in one chosen width;
//! * [`store_device`] and [`load_device`] copy short spans by aligned accesses;
//! * [`copy_coherent`] is for memory that accepts any access;
//! * [`store_fence`] orders non-temporal and write-combining stores.

mod device;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

pub use device::{copy_coherent, load_device, store_device};

/// Orders all earlier stores before all later ones, including non-temporal and write-combining stores. On x86
/// this is `sfence`, because a Rust `fence(Release)` emits no instruction there.
#[inline(always)]
pub fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it accesses no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The width and kind of the loads and stores of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Accesses by 4-byte CPU registers. Nearly all device registers accept this width.
    Bytes4,
    /// 8-byte registers.
    Bytes8,
    /// 16-byte SSE registers.
    Bytes16,
    /// 32-byte AVX registers.
    Bytes32,
    /// 64-byte AVX-512 registers.
    Bytes64,
    /// Streaming loads into the widest available registers, and non-temporal stores, which bypass the cache.
    NonTemporal,
    /// Stores by `movdir64b`. The device receives the 64 bytes as one write.
    Direct64,
}

impl Access {
    /// All accesses: ordinary ones from narrow to wide, then `NonTemporal` and `Direct64`.
    pub const ALL: [Access; 7] = [
        Access::Bytes4,
        Access::Bytes8,
        Access::Bytes16,
        Access::Bytes32,
        Access::Bytes64,
        Access::NonTemporal,
        Access::Direct64,
    ];

    /// Returns the number of bytes that one access of this kind moves on this CPU.
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

    /// Returns true if this CPU supports the access.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Access::Bytes4 | Access::Bytes8 | Access::Bytes16 => true,
            // The narrowest streaming load (16 bytes) needs SSE4.1.
            Access::NonTemporal => is_x86_feature_detected!("sse4.1"),
            // Ordinary 32-byte copies need only AVX. But wherever `Bytes32` is available, `NonTemporal` uses
            // 32-byte streaming loads, which need AVX2.
            Access::Bytes32 => is_x86_feature_detected!("avx2"),
            Access::Bytes64 => is_x86_feature_detected!("avx512f"),
            Access::Direct64 => x86::has_movdir64b(),
        }
    }

    /// Returns true if this CPU supports the access.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        matches!(self, Access::Bytes4 | Access::Bytes8)
    }

    /// Returns the widest available access whose stores are not weakly ordered.
    pub fn widest() -> Access {
        [Access::Bytes64, Access::Bytes32, Access::Bytes16]
            .into_iter()
            .find(|access| access.is_available())
            .unwrap_or(Access::Bytes8)
    }

    /// Returns this access if the CPU supports it.
    ///
    /// # Errors
    /// [`Error::Device`], with the widest available width, if the CPU does not support it.
    pub fn require(self) -> Result<Self> {
        if self.is_available() {
            return Ok(self);
        }
        let widest = Access::widest().width();
        let why = format!("this processor does not support such accesses; give at most {widest}, or nt");
        Err(Error::device_environment(format!("'{self}'"), why))
    }

    /// Returns true if the CPU may delay or reorder stores of this kind until [`store_fence`].
    pub fn is_weakly_ordered(self) -> bool {
        matches!(self, Access::NonTemporal | Access::Direct64)
    }

    /// Copies `count` pieces of [`Access::width`] bytes in ascending order, each by one load and one store.
    ///
    /// # Safety
    /// The access is available. Both spans are valid for `count` pieces and do not overlap. For `Direct64`,
    /// `destination` is a multiple of 64. For `NonTemporal`, both addresses are multiples of the width.
    pub unsafe fn copy(self, destination: *mut u8, source: *const u8, count: usize) {
        // SAFETY: the caller promises what each called function requires.
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

    /// Copies `length` bytes: the middle by this access, and both ends by narrow accesses. The middle begins
    /// at the first address from `aligned_by` on that is a multiple of this access's width. Pass `source` or
    /// `destination` as `aligned_by`, whichever is on the device's side.
    ///
    /// `NonTemporal` uses ordinary accesses unless source and destination are equally aligned. `Direct64`
    /// always aligns to the destination.
    ///
    /// # Safety
    /// The access is available. Both spans are valid for `length` bytes and do not overlap.
    pub unsafe fn copy_span(self, destination: *mut u8, source: *const u8, length: usize, aligned_by: usize) {
        let (mut destination, mut source, mut length) = (destination, source, length);
        let mut access = self;
        let width = access.width();
        let both_aligned = (destination as usize ^ source as usize).is_multiple_of(width);
        // If source and destination are not equally aligned, use ordinary accesses of the same width.
        // Streaming accesses fault on unaligned addresses.
        if access == Access::NonTemporal && !both_aligned {
            access = match width {
                64 => Access::Bytes64,
                32 => Access::Bytes32,
                _ => Access::Bytes16,
            };
        }
        let aligned_by = if access == Access::Direct64 { destination as usize } else { aligned_by };
        let head = aligned_by.next_multiple_of(width) - aligned_by;
        // SAFETY: each step stays within `length`. The middle part begins where `aligned_by` is a multiple of
        // the width.
        unsafe {
            let left = length;
            let mut step = |bytes: usize, access: Option<Access>| {
                match access {
                    Some(access) => access.copy(destination, source, bytes / access.width()),
                    None => narrow(destination, source, bytes),
                }
                destination = destination.add(bytes);
                source = source.add(bytes);
                length -= bytes;
                length
            };
            let left = step(head.min(left), None);
            let left = step(left / width * width, Some(access));
            step(left, None);
        }
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

    /// Parses the name of an access that this CPU supports.
    fn from_str(text: &str) -> Result<Self> {
        let access = Access::ALL.into_iter().find(|access| access.to_string() == text).ok_or_else(|| {
            Error::Invalid {
                what: format!("access width '{text}'").into(),
                why: "choose one of 4, 8, 16, 32, 64, nt, movdir64b".into(),
            }
        })?;
        access.require()
    }
}

/// Copies the few bytes before or after the body of a span: in 4-byte words if `bytes` is a multiple of 4,
/// else byte by byte.
///
/// # Safety
/// Both spans are valid for `bytes` bytes and do not overlap.
unsafe fn narrow(destination: *mut u8, source: *const u8, bytes: usize) {
    let words = if bytes.is_multiple_of(4) { bytes / 4 } else { 0 };
    // SAFETY: the words and the single bytes after them are the bytes that the caller promises.
    unsafe {
        Access::Bytes4.copy(destination, source, words);
        for index in words * 4..bytes {
            destination.add(index).write_volatile(source.add(index).read_volatile());
        }
    }
}

/// Copies `count` words. Accesses an aligned address by volatile accesses. An unaligned address must be in
/// ordinary memory, because the compiler may split accesses to it.
///
/// # Safety
/// Both spans are valid for `count` words and do not overlap.
unsafe fn words<T: Copy>(destination: *mut u8, source: *const u8, count: usize) {
    let (destination, source) = (destination.cast::<T>(), source.cast::<T>());
    let aligned = |address: usize| address.is_multiple_of(size_of::<T>());
    if aligned(source as usize) && aligned(destination as usize) {
        for index in 0..count {
            // SAFETY: word `index` is aligned and inside both spans, as the caller promises.
            unsafe { destination.add(index).write_volatile(source.add(index).read_volatile()) };
        }
        return;
    }
    for index in 0..count {
        // SAFETY: word `index` is inside both spans, as the caller promises.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for access in Access::ALL.into_iter().filter(|access| access.is_available()) {
            assert_eq!(access.to_string().parse::<Access>().unwrap(), access);
        }
        assert!("12".parse::<Access>().unwrap_err().to_string().contains("choose one of 4, 8"));
    }
}
