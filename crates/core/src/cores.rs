//! The cores that this process may use.

/// Returns the cores that the calling thread may run on, in ascending order. Empty if the kernel does not
/// report them.
pub fn allowed() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is valid for the given size and outlives the call. 0 is the calling thread.
    let outcome = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if outcome != 0 {
        return Vec::new();
    }
    // SAFETY: every index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Returns the first of `cores` that the calling thread may not run on, and a message that names the allowed
/// cores. Returns `None` if it may run on all of them, or if the kernel does not report the allowed cores.
pub fn refused(cores: &[usize]) -> Option<(usize, String)> {
    let allowed = allowed();
    let core = *cores.iter().find(|core| !allowed.is_empty() && !allowed.contains(core))?;
    let what = if allowed.len() == 1 { "core" } else { "cores" };
    let why = format!("this process may use only the {what} {}; choose among them", ranges(&allowed));
    Some((core, why))
}

/// Writes ascending numbers as a list with ranges, such as `0-3,8`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        only => only.iter().map(usize::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_allowed_is_found() {
        let allowed = allowed();
        assert!(!allowed.is_empty());
        assert_eq!(refused(&allowed), None);
        let (core, why) = refused(&[allowed[0], 1_000_000]).unwrap();
        assert_eq!(core, 1_000_000);
        assert!(why.contains(&ranges(&allowed)), "{why}");
    }

    #[test]
    fn neighbouring_numbers_become_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[3]), "3");
    }
}
