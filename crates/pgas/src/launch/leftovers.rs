//! Ends the processes that a job leaves behind, such as children of PEs. Such processes may have other
//! parents and process groups by then. So they are found by an environment variable that they inherited.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The environment variable that holds the job's name. Every process of a job inherits it.
pub const JOB: &str = "INLANE_NTB_JOB";
/// The remaining processes of a job are asked to end. After this time, they are killed.
const GRACE: Duration = Duration::from_millis(500);
/// The longest time for which the search for the job's processes is repeated. Killed processes take time to
/// end, and may have started other processes before. So one search is not enough.
const LIMIT: Duration = Duration::from_secs(10);

/// Ends every process of this job, except the calling process, and waits until they have ended. Finds them by the job's
/// name in their environment. It therefore misses a process that removed the variable.
pub fn end(job: &str) {
    let begun = Instant::now();
    // Keep the processes that were found, because a process loses its environment before it releases its locks on files.
    let mut ending = BTreeMap::new();
    while begun.elapsed() < LIMIT {
        ending.extend(processes(job));
        ending.retain(|_, process| !has_ended(process));
        if ending.is_empty() {
            return;
        }
        let signal = if begun.elapsed() < GRACE { Signal::TERM } else { Signal::KILL };
        for process in ending.values() {
            let _ = pidfd_send_signal(process, signal);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns true if the process of this pidfd has ended.
fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Calls [`end`], unless another process of the job is calling it at this moment. PEs call this function when
/// their launcher has ended. If all PEs called `end`, they could end each other before they have asked their
/// children to end.
pub fn end_by_one(job: &str) {
    let address = SocketAddr::from_abstract_name(format!("inlane-leftovers-{job}"));
    if let Ok(_held) = address.and_then(|address| UnixDatagram::bind_addr(&address)) {
        end(job);
    }
}

/// Returns the IDs and the pidfds of the job's processes, except the calling one.
fn processes(job: &str) -> Vec<(i32, OwnedFd)> {
    let wanted = format!("{JOB}={job}");
    let own = std::process::id() as i32;
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let process = |number: i32| {
        // Open a descriptor of the process before reading its environment. The later signal then cannot hit
        // another process that has got the same number.
        let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let environment = std::fs::read(format!("/proc/{number}/environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()).then_some((number, process))
    };
    numbers.filter(|number| *number != own).filter_map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn only_processes_of_the_job_end() {
        let sleep = |job: &str| Command::new("sleep").arg("1000").env(JOB, job).spawn().unwrap();
        let (mut first, mut other) = (sleep("leftovers-test-1"), sleep("leftovers-test-11"));
        // Wait until the process is found: its environment shows the variable only after the exec.
        while processes("leftovers-test-1").len() != 1 {}
        end("leftovers-test-1");
        assert_eq!(first.wait().unwrap().signal(), Some(15));
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn one_process_ends_the_others() {
        let job = "leftovers-test-2";
        let address = SocketAddr::from_abstract_name(format!("inlane-leftovers-{job}")).unwrap();
        let held = UnixDatagram::bind_addr(&address).unwrap();
        let mut sleep = Command::new("sleep").arg("1000").env(JOB, job).spawn().unwrap();
        while processes(job).len() != 1 {}
        end_by_one(job);
        assert!(sleep.try_wait().unwrap().is_none(), "another process does it");
        drop(held);
        // Repeat the call, because the address may still be in use. While another test starts a process, that
        // process keeps a copy of `held` until its exec.
        let status = loop {
            end_by_one(job);
            if let Some(status) = sleep.try_wait().unwrap() {
                break status;
            }
            std::thread::yield_now();
        };
        assert_eq!(status.signal(), Some(15));
    }
}
