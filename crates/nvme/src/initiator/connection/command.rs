//! The commands of a connection: as they are submitted, in flight, and completed.

use crate::initiator::Buffer;
use crate::wire::command::{Command, Completion, Status};
use crate::wire::pdu::{Fault, Termination};

/// A command to send.
#[derive(Debug)]
pub struct Submission {
    /// A number that the caller chooses. It is returned with the completion.
    pub token: u64,
    /// The command. The connection sets its identifier. If there is a buffer, the connection also sets the
    /// SGL.
    pub command: Command,
    /// The memory that the command reads into or writes from. Its length is the length of the transfer.
    pub buffer: Option<Buffer>,
}

/// A command that has completed.
#[derive(Debug)]
pub struct Done {
    /// The token of the request: a number that the caller chose.
    pub token: u64,
    /// The command, for example to retry it.
    pub command: Command,
    /// The completion. If the connection failed before the command completed, its status is
    /// [`Status::HOST_PATH_ERROR`].
    pub completion: Completion,
    /// The buffer of the request, or `None` if it had none. After a successful read, the buffer holds the
    /// data.
    pub buffer: Option<Buffer>,
}

impl Done {
    /// Returns the status.
    pub fn status(&self) -> Status {
        self.completion.status()
    }
}

/// Why a connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The controller violated the protocol.
    Fault(Fault),
    /// The controller sent a termination request.
    Terminated(Termination),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Fault(fault)
    }
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The number of commands that have used this slot. The identifier of the next command contains it.
    pub(super) generation: u16,
    /// True if the controller may leave the command unanswered for any time.
    pub(super) held: bool,
    /// The number of commands that were submitted before this one.
    pub(super) order: u64,
    /// The value of [`HostConnection::tick`](super::Connection::tick)'s counter when the command was submitted or last made
    /// progress.
    pub(super) progress_tick: u32,
    /// The number of data bytes that have moved since the command last made progress.
    pub(super) moved: u32,
    pub(super) token: u64,
    pub(super) command: Option<Command>,
    pub(super) buffer: Option<Buffer>,
    /// For a read, the number of received bytes. For a write, the bytes sent in the capsule plus the bytes
    /// that R2Ts have requested.
    pub(super) transferred: u32,
    /// The number of data segments of this slot that are still queued in the outbox.
    pub(super) queued: u32,
    /// True if the controller requests the command's data by R2T. False if the data is in the capsule, or
    /// there is none.
    pub(super) by_r2t: bool,
    /// True if a digest of data received for this command was wrong.
    pub(super) corrupted: bool,
    /// A completion that arrived early. It is kept here until the slot's data segments have left the outbox.
    /// Until then, the slot's buffer is in use.
    pub(super) completion: Option<Completion>,
}

/// A command makes progress when at least this many of its data bytes have moved. So a target that moves only a few
/// bytes now and then does not extend the command's time.
const PROGRESS_BYTES: u32 = 4096;

impl Slot {
    /// Counts data bytes of the command that were sent or received. If the command made progress, lowers `progressed`
    /// to its order.
    pub(super) fn count_moved(&mut self, bytes: u32, progressed: &mut u64) {
        self.moved += bytes;
        if self.moved >= PROGRESS_BYTES {
            self.moved = 0;
            *progressed = self.order.min(*progressed);
        }
    }
}
