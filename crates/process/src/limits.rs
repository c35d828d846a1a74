//! Limits of this process's resources.

/// Raises the limit of open descriptors to `count`, or to the highest allowed value if that is lower. Never lowers it.
/// Returns the limit in effect: if the system refuses, opening a descriptor may fail later.
pub fn allow_descriptors(count: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the calls read and write the structure only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < count {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max.min(count), ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                limit = raised;
            }
        }
    }
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = allow_descriptors(0);
        assert!(before > 0);
        let raised = allow_descriptors(u64::MAX);
        assert!(raised >= before);
        assert_eq!(allow_descriptors(before), raised, "a lower count changes nothing");
    }
}
