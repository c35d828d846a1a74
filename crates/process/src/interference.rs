//! Detects other work on this machine that delays a measurement.
//!
//! A measurement counts as disturbed only if threads of this process waited for a processor while other processes used
//! processors. Waiting alone proves nothing: on a machine with few cores, the threads of one transfer wait for each
//! other.

use crate::ticks::Ticks;
use inlane_core::clock::process_cpu_ns;
use inlane_core::cores;
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
    let used = Ticks::read(&cores::allowed()).map_or(Duration::ZERO, |ticks| ticks.used());
    used.saturating_sub(Duration::from_nanos(process_cpu_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
