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
