//! Registered memory in forked children. UCX uses libibverbs for RDMA. libibverbs removes the pages of
//! registered memory from children. These pages also contain variables of the program, so a child would
//! crash.

/// The oldest Linux that copies all pinned pages at a fork: major, minor. The child gets the copies, and the
/// parent keeps the pages that the device accesses. Before, the parent could lose these pages to the child.
const COPIES_PINNED_PAGES: (u32, u32) = (5, 12);

/// Lets forked children inherit the pages of registered memory. Does nothing if the kernel does not copy
/// pinned pages at a fork. If the memory is in huge pages, the range must consist of whole huge pages. Logs a
/// warning if the kernel refuses, because a child that accesses this memory would then crash.
pub(super) fn let_children_inherit(address: usize, length: usize) {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else { return };
    if version(&release).is_none_or(|version| version < COPIES_PINNED_PAGES) {
        return;
    }
    // SAFETY: the call has no preconditions.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return };
    let (start, end) = (address / page * page, (address + length).next_multiple_of(page));
    // SAFETY: the setting changes only which pages a later fork copies.
    if unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_DOFORK) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(
            "children of fork() may crash when they access symmetric memory: the kernel does not let them \
             inherit {} bytes at {start:#x}: {error}",
            end - start
        );
    }
}

/// Returns the major and the minor version at the start of a kernel release name such as `6.1.0-12-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn releases_have_a_major_and_a_minor_version() {
        for (release, expected) in [
            ("6.1.0-12-amd64\n", Some((6, 1))),
            ("5.12-rc1", Some((5, 12))),
            ("4.19.0+", Some((4, 19))),
            ("6", None),
            ("", None),
            ("next", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}
