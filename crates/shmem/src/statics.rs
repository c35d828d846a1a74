//! The program's static objects as symmetric memory: its writable data segment, moved into the inbound memory.
//!
//! The segment (`.data`, `.bss`) keeps its address. Its contents are copied to the inbound memory and the pages there are then
//! mapped a second time, over the segment; what the linker made read-only after relocation stays out.
//!
//! ```text
//! program   | .text | .data.rel.ro | .data .bss |          same pages
//! inbound   | inboxes | workspace  | statics    | heap |   <-- what peers' windows show
//! ```

use std::ffi::c_void;

/// Address and length of the part of the program's writable segments that may be moved: whole pages.
pub fn find() -> Option<(usize, usize)> {
    let mut found: Option<(usize, usize)> = None;
    // SAFETY: the callback gets a valid pointer and our own `found`.
    unsafe { libc::dl_iterate_phdr(Some(segments), (&raw mut found).cast()) };
    found
}

/// Takes the first object alone: the program itself.
unsafe extern "C" fn segments(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> i32 {
    // SAFETY: the loader's description of the program, valid during the call.
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
    // The pages that are read-only by now (RELRO: rounded down, as the loader does).
    if let Some(relro) = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO) {
        start = start.max(span(relro).1 / page * page);
    }
    let end = end.next_multiple_of(page);
    if end > start {
        // SAFETY: `found` is the variable of `find`.
        unsafe { *found.cast::<Option<(usize, usize)>>() = Some((start, end - start)) };
    }
    1
}

/// Moves the `length` bytes at `address` to `inbound`, both whole pages: from now on they are the same memory.
///
/// # Safety
/// `find` gave the address and length; `inbound` is a shared mapping of that length that nothing else uses; no other
/// thread writes the program's statics meanwhile.
///
/// # Errors
/// The system's, when it does not map.
pub unsafe fn move_to(inbound: *mut u8, address: usize, length: usize) -> std::io::Result<()> {
    // SAFETY: both spans are mapped; the caller says that nobody writes them. With an old size of 0, mremap maps the same
    // shared pages a second time; over the segment, whose contents they hold already.
    let mapped = unsafe {
        std::ptr::copy_nonoverlapping(address as *const u8, inbound, length);
        libc::mremap(
            inbound.cast(),
            0,
            length,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            address as *mut c_void,
        )
    };
    if mapped == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
