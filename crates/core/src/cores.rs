//! The cores that a thread may run on.

use std::io;

/// A set of cores. Bit i of the words stands for core i.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreSet(Vec<u64>);

/// The largest number of cores that [`CoreSet::current`] supports. Linux supports fewer.
pub const MOST_CORES: usize = 1 << 16;

impl CoreSet {
    /// Creates a set of `cores`.
    pub fn of(cores: &[usize]) -> Self {
        let mut words = vec![0; cores.iter().max().map_or(0, |last| last / 64 + 1)];
        cores.iter().for_each(|core| words[core / 64] |= 1 << (core % 64));
        Self(words)
    }

    /// Returns the cores that the calling thread may run on. Use it to save a binding, and [`bind`](Self::bind) to
    /// restore it.
    ///
    /// # Errors
    /// If the kernel does not report the cores.
    pub fn current() -> io::Result<Self> {
        let mut words = vec![0; libc::CPU_SETSIZE as usize / 64];
        loop {
            // SAFETY: the call writes only the bytes of `words`. 0 is the calling thread.
            match unsafe { libc::sched_getaffinity(0, size_of_val(&words[..]), words.as_mut_ptr().cast()) } {
                0 => return Ok(Self(words)),
                // The kernel refuses a set that is shorter than its own.
                _ if words.len() < MOST_CORES / 64 => words.resize(words.len() * 2, 0),
                _ => return Err(io::Error::last_os_error()),
            }
        }
    }

    /// Binds the calling thread to these cores. Threads that it starts later inherit the binding. Allocates nothing,
    /// so a child process may call it between fork and exec.
    ///
    /// # Errors
    /// If this process may use none of the cores.
    pub fn bind(&self) -> io::Result<()> {
        // SAFETY: the call only reads the bytes of the words. 0 is the calling thread.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&self.0[..]), self.0.as_ptr().cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Binds the calling thread to `cores`.
///
/// # Errors
/// As for [`CoreSet::bind`].
pub fn bind(cores: &[usize]) -> io::Result<()> {
    CoreSet::of(cores).bind()
}

/// Returns the cores that the calling thread may run on, in ascending order. Empty if the kernel does not
/// report them.
pub fn allowed() -> Vec<usize> {
    let words = CoreSet::current().map_or_else(|_| Vec::new(), |set| set.0);
    (0..words.len() * 64).filter(|core| words[core / 64] >> (core % 64) & 1 == 1).collect()
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
    fn a_thread_is_bound_and_its_cores_are_restored() {
        std::thread::spawn(|| {
            let before = CoreSet::current().unwrap();
            let last = *allowed().last().unwrap();
            bind(&[last]).unwrap();
            assert_eq!(allowed(), [last]);
            before.bind().unwrap();
            assert_eq!(CoreSet::current().unwrap(), before);
            assert!(bind(&[1_000_000]).is_err() && bind(&[]).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn neighbouring_numbers_become_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[3]), "3");
    }
}
