//! Detects other work on this machine that delays a measurement.
//!
//! A measurement counts as disturbed only if threads of this process waited for a processor while other processes used
//! processors. Waiting alone proves nothing: on a machine with few cores, the threads of one transfer wait for each
//! other.

use inlane_core::cores;
use std::fs;
use std::time::{Duration, Instant};

/// Other processes are busy if they used more than this share of the elapsed time.
const OTHERS: f64 = 0.2;

/// Measures the processor time that other processes use, from the creation of this value on.
pub struct Interference {
    began: Instant,
    others: Duration,
}

impl Interference {
    /// Begins a measurement.
    pub fn start() -> Self {
        Self { began: Instant::now(), others: used_by_others() }
    }

    /// Returns true if other processes used processors so far. The kernel counts in steps of 10 ms, so the answer
    /// is meaningless for less than about 100 ms.
    pub fn others_are_busy(&self) -> bool {
        let used = used_by_others().saturating_sub(self.others);
        used.as_secs_f64() > OTHERS * self.began.elapsed().as_secs_f64()
    }
}

/// Returns the time that everything except this process has used the allowed processors. Includes the time that
/// the hypervisor took away.
fn used_by_others() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let names: Vec<String> = cores::allowed().iter().map(|core| format!("cpu{core}")).collect();
    let lines = text
        .lines()
        .filter(|line| line.split(' ').next().is_some_and(|name| names.iter().any(|of| of == name)));
    // SAFETY: the call only reads a constant of the system.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
    let busy: u64 = lines.map(busy_ticks).sum();
    Duration::from_secs_f64(busy as f64 / hertz).saturating_sub(used_by_this_process())
}

/// Returns the ticks in which a processor was not idle, from its line of /proc/stat: user, nice, system, idle,
/// iowait, irq, softirq and steal.
fn busy_ticks(line: &str) -> u64 {
    let ticks = line.split_whitespace().skip(1).take(8).enumerate();
    ticks.filter(|(index, _)| ![3, 4].contains(index)).filter_map(|(_, text)| text.parse::<u64>().ok()).sum()
}

fn used_by_this_process() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_idle_processors_do_not_count() {
        assert_eq!(busy_ticks("cpu0 1 2 4 1000 1000 8 16 32 64 128"), 63);
    }

    #[test]
    fn only_other_processes_interfere() {
        let busy = |interference: &Interference| {
            while interference.began.elapsed() < Duration::from_millis(400) {
                std::hint::spin_loop();
            }
            (used_by_others().saturating_sub(interference.others), interference.others_are_busy())
        };
        let alone = busy(&Interference::start()).0;
        let mut spinner =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let (used, is_busy) = busy(&Interference::start());
        spinner.kill().unwrap();
        spinner.wait().unwrap();
        assert!(is_busy, "{alone:?} without the spinner, {used:?} with it");
    }
}
