//! How the PEs of a job find each other and connect. [`MeetingPoint`] is what all PEs of a job connect to first.
//! [`JobControl`] is a PE's connection to it. [`Exchange`] exchanges addresses and keys between PEs. [`Network`] joins these
//! for a transport, so the rest of the crate starts and joins jobs without knowing their transport.

use super::{Statics, Transport};
use crate::error::Result;
use inlane_core::completion::CompletionMode;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// An event of a PE, as the process that supervises the job sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeEvent {
    /// The PE has joined the job.
    Attached,
    /// The PE has finished. It needs the other PEs no more.
    Finished,
    /// The PE ends because it lost the PE with this number, which is the cause of the failure.
    Lost(u32),
    /// The PE asks to end all PEs, and the launcher to exit with this status.
    ExitAll(i32),
    /// The PE's connection closed, because its process exited or was killed.
    Gone,
}

/// The exchange of addresses and keys between the PEs of a job.
pub trait Exchange: JobControl {
    /// Exchanges data with all PEs. Blocks until every PE has called this method as often as this PE. Returns
    /// the `bytes` of each PE, in the order of the PEs.
    ///
    /// # Errors
    /// If a PE or the launcher has ended.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Returns a PE that ended without a call of [`JobControl::report_finished`]. Returns `None` if there is
    /// no such PE.
    fn lost(&self) -> Option<u32>;
}

/// A PE's connection to its job's [`MeetingPoint`]. The PE uses it to report how it ends.
pub trait JobControl: Send + Sync {
    /// Returns the number of this PE.
    fn me(&self) -> u32;
    /// Returns the number of PEs.
    fn pes(&self) -> u32;
    /// Reports to the launcher that this PE has finished. Without this report, the launcher treats the end of
    /// this process as a failure.
    fn report_finished(&self);
    /// Reports that this PE ends because `peer` was lost. The launcher then looks for the cause at `peer`.
    fn report_lost(&self, peer: u32);
    /// Asks the launcher to end all PEs, and to exit with `status`.
    fn request_exit_all(&self, status: i32);
    /// Blocks until the launcher asks this PE to end. Returns the exit status that the launcher requests, or
    /// `None` if the launcher has ended. Call it from one thread only.
    fn wait_for_end(&self) -> Option<i32>;
}

/// The part of a job to which all its PEs connect. It runs in the job's launcher, or in PE 0 if another launcher started the
/// job. Over windows, it is the hub of the twin bridge. Over UCX, it is a TCP server.
pub trait MeetingPoint: Send + Sync {
    /// Returns the PEs' events as they happen. Returns `None` after the first call.
    fn events(&self) -> Option<Box<dyn Iterator<Item = (u32, PeEvent)> + Send>>;
    /// Asks all PEs to end with `status`.
    fn end_all(&self, status: i32);
    /// Returns the invitation of PE `pe`, which `command` will start: the text that [`Network::join`] takes. Also returns
    /// the descriptor that the PE must inherit, if there is one. May set further environment variables of `command`.
    ///
    /// # Errors
    /// Errors of the system.
    fn invite(&self, pe: u32, command: &mut Command) -> Result<(String, Option<OwnedFd>)>;
    /// Returns an invitation for all PEs, which processes that this one did not start can use, too. It has at most
    /// [`LONGEST_INVITATION`] bytes and no blank.
    ///
    /// # Errors
    /// Errors of the system.
    fn invitation(&self) -> Result<String>;
}

/// The most bytes of [`MeetingPoint::invitation`]. Process managers store no longer texts, and the heap size precedes it.
pub const LONGEST_INVITATION: usize = 228;

/// What a [`MeetingPoint`] needs to know of its job.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The number of PEs.
    pub pes: u32,
    /// The size of each PE's symmetric heap in bytes.
    pub heap_bytes: u64,
    /// This machine's address at which PEs connect, if the transport uses the network.
    pub address: IpAddr,
}

/// The settings of a job that all transports have.
#[derive(Clone, Copy, Debug)]
pub struct JobSettings {
    /// The completion mode of waits.
    pub completion: CompletionMode,
    /// True if waiting PEs leave their processor to others.
    pub yields: bool,
    /// How long to wait for the other PEs to start. `None`: without limit.
    pub connect_timeout: Option<Duration>,
    /// How long an operation may take while its target PE is alive. `None`: without limit.
    pub request_timeout: Option<Duration>,
}

/// A transport over which jobs can be started and joined. To add one, implement this trait and add a line to the list in
/// [`select`](super::select).
pub trait Network: Transport + Sized {
    /// A PE's connection to its job's [`MeetingPoint`].
    type Link: JobControl + 'static;

    /// True if the transport may abort a PE (SIGABRT) because another PE has ended. If false, SIGABRT is the PE's own
    /// failure.
    const MAY_ABORT: bool = false;
    /// True if the transport has windows, so that a job can have faults and a mover. The PEs then run on one machine. Other
    /// transports connect the PEs through a network, at [`Opening::address`].
    const HAS_WINDOWS: bool = false;
    /// True if the transport uses UCX. `ntb bench` then starts ucx_perftest with the user's UCX variables, so both measure the
    /// same path. With other transports, ucx_perftest uses shared memory.
    const USES_UCX: bool = false;
    /// The environment variables by which users restrict what the transport chooses from.
    const RESTRICTED_BY: &[&str] = &[];
    /// Environment variables that the launcher sets in PEs, each with its value, unless the user has set them.
    const VARIABLES: &[(&str, &str)] = &[];

    /// Returns the version of the library that carries the transport: inlane's, if there is no other.
    ///
    /// # Errors
    /// If the library cannot be loaded.
    fn version() -> Result<String> {
        Ok(env!("CARGO_PKG_VERSION").into())
    }

    /// Opens the meeting point of a job.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a job that is too large; errors of the system.
    fn meeting_point(opening: &Opening) -> Result<Arc<dyn MeetingPoint>>;

    /// Joins a job as PE `pe`, by the invitation of its meeting point. `needed` returns how many bytes of symmetric memory
    /// this PE needs in a job of the given number of PEs.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for an invalid invitation. Also if the meeting point cannot be reached.
    fn join(invitation: &str, pe: u32, needed: &dyn Fn(u32) -> usize) -> Result<Arc<Self::Link>>;

    /// Returns what exchanges bytes between the PEs, if the connection to the meeting point can do so.
    fn exchange(_link: &Self::Link) -> Option<&dyn Exchange> {
        None
    }

    /// Connects to all PEs. Symmetric memory has `bytes` bytes. The program's static objects are a part of it.
    ///
    /// # Errors
    /// Errors of the transport.
    ///
    /// # Safety
    /// The memory of `statics` stays mapped and writable as long as the transport exists. During the call, no other thread
    /// accesses it.
    unsafe fn connect_job(
        link: Arc<Self::Link>,
        bytes: usize,
        statics: Option<Statics>,
        settings: &JobSettings,
    ) -> Result<Self>;

    /// Returns the name of what connects the PEs. It is short and used in results.
    fn name(&self) -> String {
        self.capabilities().name
    }

    /// Returns a text about the path of puts and gets, for the user.
    fn path(&self) -> String {
        let found = self.capabilities();
        format!("{} ({})", found.name, found.methods.join(", "))
    }

    /// Removes what killed PEs may have left on this machine. The launcher calls it after the end of a job. If `ends` is
    /// set, this process is a PE that ends without dropping its transport, so also removes what the transport would remove.
    fn clean_up(_ends: bool) {}
}
