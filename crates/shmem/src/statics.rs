//! Makes the program's static objects symmetric: its writable data segment becomes part of the inbound
//! memory, which peers access.
//!
//! The segment (`.data`, `.bss`) keeps its address. Its contents are copied to the inbound memory. The pages
//! of the inbound memory are then mapped a second time, over the segment. Pages that the loader made
//! read-only after relocation are left out.
//!
//! ```text
//! program   | .text | .data.rel.ro | .data .bss |          same pages
//! inbound   | inboxes | workspace  | statics    | heap |   <-- what the peers' windows show
//! ```

use inlane_ntb::device::Ntb;
use inlane_ntb::twin::Twin;
use inlane_pgas::error::Result;
use std::ffi::c_void;

/// Returns the address and length of the program's writable segments, in whole pages. `None` if there are
/// none.
pub fn find() -> Option<(usize, usize)> {
    let mut found: Option<(usize, usize)> = None;
    // SAFETY: the loader passes a valid description to `segments`. `found` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(segments), (&raw mut found).cast()) };
    found
}

/// A callback of `dl_iterate_phdr`. Looks only at the first loaded object, because that is the program
/// itself. Stores the span of the program's writable segments in `found`.
unsafe extern "C" fn segments(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> i32 {
    // SAFETY: `info` is the loader's description of the program, valid during the call.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize))
    };
    let page = 4096;
    let span = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        (start, start + header.p_memsz as usize)
    };
    let writable = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0)
        .map(span)
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let Some((mut start, end)) = writable else { return 1 };
    start = start / page * page;
    // After relocation, the loader makes the pages of the RELRO segment read-only, up to the last page
    // boundary in that segment. Start at that boundary.
    if let Some(relro) = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO) {
        start = start.max(span(relro).1 / page * page);
    }
    let end = end.next_multiple_of(page);
    if end > start {
        // SAFETY: `found` points to a local variable of `find`. `find` has not returned yet.
        unsafe { *found.cast::<Option<(usize, usize)>>() = Some((start, end - start)) };
    }
    1
}

/// Maps the inbound memory at `offset` in place of the program's static objects at `address`. Other PEs can
/// then access these objects. Moves `length` bytes, which are whole pages, and keeps their contents.
///
/// # Safety
/// `find` returned the address and length. Nothing else uses this part of the inbound memory. During the
/// call, no other thread writes the program's static objects.
///
/// # Errors
/// The system's error if the mapping fails.
pub unsafe fn move_to(twin: &Twin, offset: usize, address: usize, length: usize) -> Result<()> {
    let inbound = twin.inbound().slice(offset, length)?;
    let (from, to) = (address as *const u64, inbound.as_ptr().cast::<u64>());
    // Copy word by word, because the span contains red zones of AddressSanitizer between static objects.
    // AddressSanitizer would report a memcpy that reads these.
    for word in 0..length / 8 {
        // SAFETY: both spans are mapped. The caller guarantees that no thread writes to them during the call.
        unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
    }
    // SAFETY: the pages of the inbound memory hold the segment's contents now.
    Ok(unsafe { twin.map_inbound_at(offset, length, address as *mut u8) }?)
}
