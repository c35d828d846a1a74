//! The cores that a thread may run on.

use crate::error::Error;
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

/// Parses a list of core numbers and ranges, such as `0,2,4-7`.
///
/// # Errors
/// If the text is no such list, or names a core twice.
pub fn parse_list(list: &str) -> Result<Vec<usize>, Error> {
    const EXAMPLE: &str = "give numbers and ranges of cores, for example 2,3 or 4-7";
    let bad = |why: String| Error::invalid(format!("'{list}'"), why);
    let number = |text: &str| text.parse().map_err(|_| bad(EXAMPLE.into()));
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (number(first)?, number(last)?);
        if last < first {
            return Err(bad(format!("the range {part} ends before it starts; give {last}-{first}")));
        }
        if last >= libc::CPU_SETSIZE as usize {
            let most = libc::CPU_SETSIZE - 1;
            return Err(bad(format!("core {last} does not exist; Linux numbers cores from 0 to {most}")));
        }
        for core in first..=last {
            if cores.contains(&core) {
                let why = format!("core {core} is named twice; name each core once");
                return Err(Error::invalid(format!("'{list}'"), why));
            }
            cores.push(core);
        }
    }
    Ok(cores)
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

    #[test]
    fn core_lists_are_numbers_and_ranges() {
        assert_eq!(parse_list("0,2,4-6").unwrap(), [0, 2, 4, 5, 6]);
        for (bad, why) in [
            ("", "give numbers and ranges"),
            ("a", "give numbers and ranges"),
            ("1,", "give numbers and ranges"),
            ("3-1", "the range 3-1 ends before it starts; give 1-3"),
            ("0-99999999", "core 99999999 does not exist; Linux numbers cores from 0 to 1023"),
            ("2,1-3", "core 2 is named twice"),
        ] {
            let error = parse_list(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
