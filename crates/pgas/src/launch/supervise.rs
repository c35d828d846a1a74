//! Watches the processes of a job, and decides which failure the job reports.

use crate::transport::bootstrap::{MeetingPoint, PeEvent};
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time between asking processes to end and killing them.
const GRACE: Duration = Duration::from_secs(2);
/// How long the launcher waits, after a process has ended, for its last messages and for its connection to
/// close. A process may end because it lost the link to another PE. The launcher then waits equally long for
/// the end of that PE.
const SETTLE_TIME: Duration = Duration::from_secs(2);

pub(super) enum JobEvent {
    /// The meeting point has seen an event of a PE.
    Seen(u32, PeEvent),
    /// The process of a PE has ended.
    Ended(u32, ExitStatus),
    /// The launcher was asked to end the job and to return this status.
    Stopped(i32),
}

pub(super) struct Running {
    pub pidfd: OwnedFd,
    pub attached: bool,
    pub finished: bool,
    pub gone: bool,
    /// True if the transport may abort the PE (SIGABRT) because another PE has ended. If false, SIGABRT is the PE's own
    /// failure.
    pub may_abort: bool,
    /// The number of the PE to which this PE lost its link. `None` if this PE did not end for that reason.
    pub lost: Option<u32>,
    pub ended: Option<(ExitStatus, Instant)>,
}

impl Running {
    /// Returns true if the process may have ended because another PE has ended.
    fn is_consequence(&self) -> bool {
        let aborted = self.ended.is_some_and(|(status, _)| status.signal() == Some(libc::SIGABRT));
        self.lost.is_some() || (self.may_abort && aborted)
    }

    /// Returns true if the process has ended and its last event has arrived. The last event is the report of
    /// the job's meeting point that the process's socket is closed. A child process may keep that socket open,
    /// so this function also returns true [`SETTLE_TIME`] after the end.
    fn is_settled(&self) -> bool {
        self.ended.is_some_and(|(_, at)| self.gone || at.elapsed() > SETTLE_TIME)
    }
}

/// Records an event in `running`: a report of the job's meeting point, or the end of a process. If a PE has
/// asked to end all PEs, returns its number and the exit status that it asked for.
fn record(running: &mut [Running], events: JobEvent) -> Option<(u32, i32)> {
    match events {
        JobEvent::Ended(pe, status) => running[pe as usize].ended = Some((status, Instant::now())),
        JobEvent::Seen(pe, PeEvent::Attached) => running[pe as usize].attached = true,
        JobEvent::Seen(pe, PeEvent::Finished) => running[pe as usize].finished = true,
        JobEvent::Seen(pe, PeEvent::Gone) => running[pe as usize].gone = true,
        JobEvent::Seen(pe, PeEvent::Lost(peer)) => running[pe as usize].lost = Some(peer),
        JobEvent::Seen(pe, PeEvent::ExitAll(status)) => return Some((pe, status)),
        // The caller handles it.
        JobEvent::Stopped(_) => {}
    }
    None
}

/// Returns the job's exit status and the reason if PE `pe` has failed, or `None` if it has not.
fn failure(pe: usize, process: &Running) -> Option<(i32, String)> {
    let (status, _) = process.ended?;
    if let Some(signal) = status.signal() {
        return Some((128 + signal, format!("PE {pe} was killed by signal {signal}")));
    }
    match status.code() {
        Some(0) if process.attached && process.gone && !process.finished => {
            Some((1, format!("PE {pe} ended without calling shmem_finalize")))
        }
        Some(0) | None => None,
        Some(code) => Some((code, format!("PE {pe} ended with status {code}"))),
    }
}

/// Returns the peer that PE `pe` lost, then the peer that this peer lost, and so on. The chain may be a circle,
/// so it ends after as many steps as there are PEs.
fn lost_peers(running: &[Running], pe: usize) -> impl Iterator<Item = usize> {
    let next = |pe: &usize| running[*pe].lost.map(|peer| peer as usize).filter(|peer| *peer < running.len());
    std::iter::successors(Some(pe), next).skip(1).take(running.len())
}

/// Returns the PE whose failure is reported instead of that of PE `pe`. It is the last of [`lost_peers`] if this
/// PE was aborted and lost no peer itself: it may have called `abort()`. Otherwise returns `pe`.
fn reported_for(running: &[Running], pe: usize) -> usize {
    let aborted = |pe: &usize| running[*pe].lost.is_none() && running[*pe].is_consequence();
    lost_peers(running, pe).last().filter(aborted).unwrap_or(pe)
}

/// Returns the failure to report, or `None` if there is none yet. If a PE may have ended because another PE has
/// ended, it is reported only if no other PE has failed. The order of the events does not show which PE ended
/// first.
fn verdict(running: &[Running]) -> Option<(i32, String)> {
    let failed = |pe: usize| running[pe].is_settled().then(|| failure(pe, &running[pe])).flatten();
    let others_run = |pe: usize| (0..running.len()).any(|other| other != pe && !running[other].is_settled());
    let alone = |pe: usize| {
        if running[pe].ended.is_some_and(|(_, at)| at.elapsed() > SETTLE_TIME) {
            return true;
        }
        match running[pe].lost {
            None => !others_run(pe),
            Some(_) => lost_peers(running, pe).all(|peer| running[peer].is_settled()),
        }
    };
    let all = || 0..running.len();
    let causes = all().filter(|pe| !running[*pe].is_consequence()).find_map(failed);
    causes.or_else(|| all().map(|pe| reported_for(running, pe)).filter(|pe| alone(*pe)).find_map(failed))
}

/// Waits for all processes. Returns the job's exit status and, for a failure, the reason.
pub(super) fn supervise(
    events: &Receiver<JobEvent>,
    running: &mut [Running],
    meeting: &dyn MeetingPoint,
) -> (i32, Option<String>) {
    loop {
        // After a process has ended, check the verdict every 50 ms, because the verdict may become final
        // without another event.
        let some_ended = running.iter().any(|process| process.ended.is_some());
        let limit = Duration::from_millis(if some_ended { 50 } else { 3_600_000 });
        match events.recv_timeout(limit) {
            Ok(JobEvent::Stopped(status)) => {
                end_all(events, running);
                return (status, None);
            }
            Ok(event) => {
                if let Some((pe, status)) = record(running, event) {
                    // First ask the PEs to flush their output and to end. Later, kill those that have not
                    // ended.
                    meeting.end_all(status);
                    wait_for_ends(events, running, GRACE);
                    end_all(events, running);
                    return (
                        status,
                        (status != 0).then(|| format!("PE {pe} ended the job with status {status}")),
                    );
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return (0, None),
        }
        if let Some((status, why)) = verdict(running) {
            let others = running.iter().filter(|process| process.ended.is_none()).count();
            end_all(events, running);
            let why = match others {
                0 => why,
                1 => format!("{why}; the other PE was ended"),
                _ => format!("{why}; the other {others} PEs were ended"),
            };
            return (status, Some(why));
        }
        if running.iter().all(Running::is_settled) {
            return (0, None);
        }
    }
}

/// Ends all processes: asks them by a signal, and kills them after [`GRACE`].
pub(super) fn end_all(events: &Receiver<JobEvent>, running: &mut [Running]) {
    for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, Duration::from_secs(60))] {
        for process in running.iter().filter(|process| process.ended.is_none()) {
            let _ = pidfd_send_signal(&process.pidfd, signal);
        }
        wait_for_ends(events, running, limit);
    }
}

/// Waits until all processes have ended, or until `limit` has passed.
fn wait_for_ends(events: &Receiver<JobEvent>, running: &mut [Running], limit: Duration) {
    let until = Instant::now() + limit;
    while running.iter().any(|process| process.ended.is_none()) {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(event) => drop(record(running, event)),
            Err(_) => break,
        }
    }
}

#[cfg(test)]
mod tests;
