//! A process's membership in a job: how it reports its end, and how it is asked to end.

use super::member::Member;
use crate::transport::bootstrap::JobControl;
use crate::transport::select::{Joined, TransportKind};
use std::any::Any;
use std::sync::Arc;

/// The meeting point of a job of one PE.
pub(super) type Owned = Box<dyn Any + Send + Sync>;

/// A process's membership in a job. It is known before the transport connects.
pub struct Membership {
    kind: TransportKind,
    control: Arc<dyn JobControl>,
    /// The membership in a job that a process manager such as `mpirun` started.
    manager: Option<Member>,
    /// The job's meeting point, if this process was started alone and is a job of one PE.
    owned: Option<Owned>,
}

/// Why a process must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The launcher or another PE asks it to end with this status.
    Asked(i32),
    /// inlane's launcher has ended.
    LauncherLost,
    /// PE 0 has ended, to which all PEs of a process manager's job are connected. If this process has finished, this is
    /// no failure.
    FirstPeLost,
}

impl Membership {
    pub(super) fn new(joined: &Joined, manager: Option<Member>, owned: Option<Owned>) -> Self {
        Self { kind: joined.kind(), control: joined.control(), manager, owned }
    }

    /// Returns the number of this PE.
    pub fn me(&self) -> u32 {
        self.control.me()
    }

    /// Returns true if this process was started alone and is a job of one PE. Nobody then asks it to end.
    pub fn is_alone(&self) -> bool {
        self.owned.is_some()
    }

    /// Lets this process outlive inlane's launcher, with which the system would otherwise kill it. Call it from the main
    /// thread, once another thread waits in [`Self::wait_for_end`] and ends this process in order.
    pub fn outlive_launcher(&self) {
        if self.manager.is_none() {
            // SAFETY: the call takes numbers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
        }
    }

    /// Blocks until this process must end. Call it from one thread only.
    pub fn wait_for_end(&self) -> End {
        match (self.control.wait_for_end(), &self.manager) {
            (Some(status), _) => End::Asked(status),
            (None, Some(_)) => End::FirstPeLost,
            (None, None) => End::LauncherLost,
        }
    }

    /// Reports that this process ends because `peer` was lost. The launcher then looks for the cause at `peer`.
    pub fn report_lost(&self, peer: u32) {
        self.control.report_lost(peer);
    }

    /// Asks all PEs to end with `status`.
    pub fn end_all(&self, status: i32) {
        self.control.request_exit_all(status);
        self.manager.iter().for_each(|manager| manager.end_all(status));
    }

    /// Removes what this process and ended PEs may have left on this machine, unless inlane's launcher will do so. Call it
    /// right before this process ends without having finished.
    pub fn clean_up(&self, end: Option<End>) {
        if self.manager.is_some() || end == Some(End::LauncherLost) {
            self.kind.clean_up(true);
        }
    }

    /// Tells a process manager that this process ends as it should.
    pub fn leave(&self) {
        self.manager.iter().for_each(Member::leave);
    }

    /// Reports that this process has finished, and leaves the job. Call it after the last communication.
    pub fn finish(&self) {
        self.control.report_finished();
        self.manager.iter().for_each(Member::finish);
    }
}
