//! The offsets of a device's BARs in the VFIO device file, and the parts of the BARs that can be mapped.

#![allow(clippy::single_range_in_vec_init, reason = "a list with one range is intended")]

use super::sys;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// A BAR as a range of VFIO's device file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BarRegion {
    /// The offset of the BAR in the device's file, in bytes.
    pub offset: u64,
    /// The length in bytes; 0 if the BAR is not implemented.
    pub size_bytes: u64,
    /// The ranges of the BAR that the kernel allows to map. The kernel may exclude the MSI-X table.
    pub mappable: Vec<Range<u64>>,
}

impl BarRegion {
    /// Returns true if all of `range` can be mapped.
    pub fn mappable(&self, range: &Range<u64>) -> bool {
        self.mappable.iter().any(|part| part.start <= range.start && range.end <= part.end)
    }

    pub(crate) fn mappable_text(&self) -> String {
        let parts: Vec<String> =
            self.mappable.iter().map(|p| format!("{:#x}..{:#x}", p.start, p.end)).collect();
        if parts.is_empty() { "no part of it".into() } else { format!("only {}", parts.join(", ")) }
    }
}

/// Queries VFIO's region `index` of a device: 0 to 5 are the BARs, 7 is the configuration space.
pub(super) fn query(device: BorrowedFd<'_>, index: u32) -> io::Result<BarRegion> {
    // Allocate 8-byte words, because the kernel's structure must be aligned. The buffer also has room for the
    // capability chain.
    let mut words = vec![0u64; 512];
    let argsz = (words.len() * 8) as u32;
    let wanted = sys::RegionInfo { argsz, index, ..Default::default() };
    // SAFETY: the buffer is large enough for the structure and aligned for it.
    let info = unsafe {
        words.as_mut_ptr().cast::<sys::RegionInfo>().write(wanted);
        sys::ioctl(device, sys::DEVICE_GET_REGION_INFO, words.as_mut_ptr() as usize)?;
        words.as_ptr().cast::<sys::RegionInfo>().read()
    };
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(BarRegion { offset: info.offset, size_bytes: info.size, mappable: mappable(&info, &bytes) })
}

/// Returns the mappable parts: none, all, or those that the sparse-mmap capability lists. The capability
/// chain starts at `cap_offset`.
fn mappable(info: &sys::RegionInfo, bytes: &[u8]) -> Vec<Range<u64>> {
    if info.flags & sys::REGION_FLAG_MMAP == 0 || info.size == 0 {
        return Vec::new();
    }
    let number = |at: usize, size: usize| -> Option<u64> {
        let field = bytes.get(at..at.checked_add(size)?)?;
        let mut word = [0; 8];
        word[..size].copy_from_slice(field);
        Some(u64::from_ne_bytes(word))
    };
    let mut at = if info.flags & sys::REGION_FLAG_CAPS != 0 { info.cap_offset as usize } else { 0 };
    // The layout of a capability: struct vfio_info_cap_header { u16 id; u16 version; u32 next; }, then u32
    // nr_areas, u32 reserved, {offset, size}...
    while let (true, Some(id), Some(next)) =
        (at >= size_of::<sys::RegionInfo>(), number(at, 2), number(at + 4, 4))
    {
        if id == u64::from(sys::REGION_CAP_SPARSE_MMAP) {
            let areas = number(at + 8, 4).unwrap_or(0).min(64) as usize;
            let area = |n| Some((number(at + 16 + n * 16, 8)?, number(at + 24 + n * 16, 8)?));
            let inside = |(start, size): (u64, u64)| {
                Some(start..start.checked_add(size).filter(|&end| size > 0 && end <= info.size)?)
            };
            return (0..areas).filter_map(area).filter_map(inside).collect();
        }
        // Follow only increasing offsets, because a cyclic chain would never end.
        match next as usize {
            next if next > at => at = next,
            _ => break,
        }
    }
    vec![0..info.size]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(id: u16, next: u32, areas: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes.extend(id.to_ne_bytes());
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(next.to_ne_bytes());
        bytes.extend((areas.len() as u32).to_ne_bytes());
        bytes.extend([0; 4]);
        areas
            .iter()
            .for_each(|(start, size)| bytes.extend([start.to_ne_bytes(), size.to_ne_bytes()].concat()));
        bytes
    }

    fn info(flags: u32, cap_offset: u32) -> sys::RegionInfo {
        sys::RegionInfo { flags, cap_offset, size: 0x4000, ..Default::default() }
    }

    #[test]
    fn mappable_parts_are_parsed_from_the_capabilities() {
        let both = sys::REGION_FLAG_MMAP | sys::REGION_FLAG_CAPS;
        assert_eq!(mappable(&info(0, 0), &[]), []);
        assert_eq!(mappable(&info(sys::REGION_FLAG_MMAP, 0), &[]), [0..0x4000]);
        let sparse = chain(
            sys::REGION_CAP_SPARSE_MMAP,
            0,
            &[(0, 0x1000), (0x2000, 0x2000), (0x3000, u64::MAX), (0, 0)],
        );
        assert_eq!(mappable(&info(both, 32), &sparse), [0..0x1000, 0x2000..0x4000]);
        assert_eq!(mappable(&info(both, 32), &chain(3, 0, &[])), [0..0x4000], "another capability");
        // These capability chains are invalid: one points to itself, one leads outside the buffer, and one
        // begins outside the buffer. In these cases, the whole BAR is mappable.
        assert_eq!(mappable(&info(both, 32), &chain(3, 32, &[])), [0..0x4000]);
        assert_eq!(mappable(&info(both, 32), &chain(3, 4000, &[])), [0..0x4000]);
        assert_eq!(mappable(&info(both, u32::MAX), &sparse), [0..0x4000]);
    }
}
