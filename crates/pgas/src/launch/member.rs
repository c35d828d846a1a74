//! How a process joins and leaves a job that a process manager such as `mpirun` started.
//!
//! ```text
//! PE 0      opens the job's meeting point, and stores a text at the manager, its card: the heap size, and the invitation
//! all PEs   store which processors they may use; wait in the manager's fence; read the card of PE 0; join
//! ```

use super::Invitation;
use super::listening_address;
use super::manager::ProcessManager;
use super::processors;
use crate::error::{Error, Result};
use crate::transport::bootstrap::{MeetingPoint, Opening, PeEvent};
use crate::transport::select::TransportKind;
use crate::variables;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The key of PE 0's card.
const CARD: &str = "inlane-card";
/// The key of the PEs' announcements of their processors.
const PROCESSORS: &str = "inlane-processors";

/// The record of which PEs of a job have finished or ended.
#[derive(Default)]
struct Ends {
    ended: Mutex<Vec<bool>>,
    changed: Condvar,
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, Vec<bool>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This process's membership in a job that a process manager started.
pub(super) struct Member {
    manager: Mutex<Box<dyn ProcessManager>>,
    /// At PE 0: the job's meeting point, and the record of finished and ended PEs. `None` at other PEs.
    meeting: Option<(Arc<dyn MeetingPoint>, Arc<Ends>)>,
}

/// Meets the other PEs of the job that `manager` started, whose transport is `kind`. `heap_bytes` is the size of the
/// symmetric heap that this process asks for, but all PEs use PE 0's size. Returns the membership, the invitation of PE 0's
/// meeting point, and PE 0's heap size in bytes.
///
/// # Errors
/// If there are too many processes, or if the manager or the system refuses.
pub(super) fn meet(
    mut manager: Box<dyn ProcessManager>,
    kind: TransportKind,
    heap_bytes: u64,
) -> Result<(Member, Invitation, u64)> {
    let mut meeting = None;
    if manager.rank() == 0 {
        let pes = manager.size();
        let address = listening_address(variables::address()?, manager.local_size() == Some(pes));
        let opened = kind.meeting_point(&Opening { pes, heap_bytes, address })?;
        manager.put(CARD, &format!("{heap_bytes}/{}", opened.invitation()?))?;
        meeting = Some(watched(opened, pes));
    }
    manager.put(PROCESSORS, &processors::announcement())?;
    manager.fence()?;
    let card = manager.get(0, CARD)?;
    let (heap_bytes, text) = parse(&card).ok_or_else(|| {
        let what = format!("the card of PE 0, '{card}'");
        Error::invalid(what, "it is another release's; use one release for all PEs")
    })?;
    let member = Member { manager: Mutex::new(manager), meeting };
    Ok((member, Invitation { kind, text }, heap_bytes))
}

/// Returns the heap size and the invitation in a card.
fn parse(card: &str) -> Option<(u64, String)> {
    let (heap_bytes, invitation) = card.split_once('/')?;
    Some((heap_bytes.parse().ok()?, invitation.into()))
}

/// Starts a thread that handles the events of `meeting`. Returns `meeting`, and one flag for each of the `size` PEs.
/// The thread sets the flag of a PE when the PE has finished or ended.
fn watched(meeting: Arc<dyn MeetingPoint>, size: u32) -> (Arc<dyn MeetingPoint>, Arc<Ends>) {
    let ends = Arc::new(Ends::default());
    *ends.lock() = vec![false; size as usize];
    let theirs = (meeting.clone(), ends.clone());
    std::thread::spawn(move || watch(&*theirs.0, &theirs.1));
    (meeting, ends)
}

/// Handles the events of the meeting point until there are no more. Records in `ends` which PEs have finished or ended. If a
/// PE asks to end the job, asks all PEs to end.
fn watch(meeting: &dyn MeetingPoint, ends: &Ends) {
    let Some(events) = meeting.events() else { return };
    for (pe, event) in events {
        match event {
            PeEvent::ExitAll(status) => meeting.end_all(status),
            PeEvent::Finished | PeEvent::Gone => {
                ends.lock()[pe as usize] = true;
                ends.changed.notify_all();
            }
            PeEvent::Attached | PeEvent::Lost(_) => {}
        }
    }
}

impl Member {
    /// Returns true if the PEs of this machine are more than the processors that they may use. Reads the announcements of
    /// all PEs only if this PE alone may not use enough processors for all.
    pub fn share_processors(&self) -> Result<bool> {
        let mut manager = self.manager();
        if super::processors().len() >= manager.size() as usize {
            return Ok(false);
        }
        let all: Vec<String> =
            (0..manager.size()).map(|rank| manager.get(rank, PROCESSORS)).collect::<Result<_>>()?;
        Ok(processors::are_shared(&processors::announcement(), all.iter().map(String::as_str)))
    }

    fn manager(&self) -> MutexGuard<'_, Box<dyn ProcessManager>> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the job. PE 0 waits until every other PE has finished or ended, because it runs the job's meeting point.
    pub fn finish(&self) {
        if let Some((_, ends)) = &self.meeting {
            let mut ended = ends.lock();
            while !ended.iter().all(|ended| *ended) {
                ended = ends.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.leave();
    }

    /// Tells the process manager that this process ends normally, not by a failure.
    pub fn leave(&self) {
        // If the manager has ended, there is nothing left to tell it.
        let _ = self.manager().finish();
    }

    /// At PE 0, asks all PEs to end with `status`. At other PEs does nothing, because they send their request
    /// to PE 0's meeting point.
    pub fn end_all(&self, status: i32) {
        if let Some((meeting, _)) = &self.meeting {
            meeting.end_all(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::select::Joined;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_a_card_or_refused(text in ".{0,200}") {
            let _ = parse(&text);
            let _ = text.parse::<Invitation>();
        }
    }

    /// A process manager for a test. Threads of the test process stand for the processes of the job.
    struct Threads {
        rank: u32,
        shared: Arc<(std::sync::Barrier, Mutex<std::collections::HashMap<String, String>>)>,
    }

    impl ProcessManager for Threads {
        fn rank(&self) -> u32 {
            self.rank
        }
        fn size(&self) -> u32 {
            3
        }
        fn put(&mut self, key: &str, text: &str) -> Result<()> {
            self.shared.1.lock().unwrap().insert(format!("{key}-{}", self.rank), text.into());
            Ok(())
        }
        fn fence(&mut self) -> Result<()> {
            self.shared.0.wait();
            Ok(())
        }
        fn get(&mut self, rank: u32, key: &str) -> Result<String> {
            Ok(self.shared.1.lock().unwrap()[&format!("{key}-{rank}")].clone())
        }
        fn finish(&mut self) -> Result<()> {
            self.fence()
        }
    }

    /// Joins three threads of this process as the PEs of a job. Each calls `then` with its connection.
    fn meet_in_threads(kind: TransportKind, then: impl Fn(u32, &Joined) + Sync) {
        let shared = Arc::new((std::sync::Barrier::new(3), Mutex::default()));
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let (manager, then) = (Box::new(Threads { rank, shared: shared.clone() }), &then);
                scope.spawn(move || {
                    let heap = if rank == 0 { 8192 } else { 1 << 30 };
                    let (member, invitation, heap) = meet(manager, kind, heap).unwrap();
                    assert_eq!(heap, 8192, "PE 0's heap");
                    assert_eq!(invitation.to_string().parse::<Invitation>().unwrap(), invitation);
                    let joined = kind.join(&invitation.text, rank, &|_| 8192).unwrap();
                    assert_eq!(joined.control().pes(), 3);
                    then(rank, &joined);
                    joined.control().report_finished();
                    member.finish();
                });
            }
        });
    }

    #[test]
    fn the_processes_of_a_manager_become_one_job_over_windows() {
        meet_in_threads(TransportKind::Windows, |_, joined| assert!(joined.exchange().is_none()));
    }

    #[test]
    fn the_processes_of_a_manager_meet_at_the_server_of_pe_0() {
        if let Err(error) = crate::transport::ucx::Ucx::version() {
            eprintln!("SKIPPED the_processes_of_a_manager_meet_at_the_server_of_pe_0: {error}");
            return;
        }
        meet_in_threads(TransportKind::Ucx, |rank, joined| {
            let all = joined.exchange().unwrap().gather(&rank.to_le_bytes()).unwrap();
            assert_eq!(all, [0u32, 1, 2].map(|pe| pe.to_le_bytes().to_vec()));
        });
    }
}
