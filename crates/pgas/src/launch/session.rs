//! Joins the job that the environment describes. The result is this process's membership in the job.

use super::hub::{MEETING, PE};
use super::member::{self, Member};
use super::variables::{self, parsed};
use super::{HEAP, MoverChoice, STATICS, manager};
use crate::error::{Error, Result};
use crate::transport::layout::Layout;
use crate::transport::rendezvous::{Client, Meeting};
use crate::transport::ucx;
use crate::transport::windows::{Settings, Windows};
use crate::world::World;
use inlane_core::completion::CompletionMode;
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::twin::{Hub, Twin};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A process's membership in a job: its port of the twin NTB bridge that joins the PEs, and the settings of the
/// transport.
pub struct Session {
    /// This process's port of the twin bridge that joins the PEs.
    pub twin: Twin,
    /// Size in bytes of the memory that this PE offers to its peers: the protocol's parts, the symmetric heap,
    /// and what the caller needs beside it.
    pub bytes: usize,
    /// The settings of the transport.
    pub settings: Settings,
    /// The hub, if this process was started alone and is a job of one PE.
    pub hub: Option<Hub>,
    /// The membership in a job that a process manager such as `mpirun` started. Finish it after the last
    /// communication.
    pub member: Option<Member>,
}

/// A process's membership in a job over UCX: its connection to the launcher, the heap size, and the settings
/// of the transport.
pub struct UcxSession {
    /// The connection to the launcher.
    pub client: Arc<Client>,
    /// Size of the symmetric heap in bytes.
    pub heap_bytes: usize,
    /// The settings of the transport.
    pub settings: ucx::Settings,
}

impl UcxSession {
    /// Joins the job over UCX that the environment describes. Returns `None` if it describes another kind of
    /// job.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid variable; errors of [`Client::join`].
    pub fn from_environment() -> Result<Option<Self>> {
        let Some(meeting) = variable::<Meeting>(MEETING)? else { return Ok(None) };
        let Some(pe) = variable::<u32>(PE)? else {
            return Err(Error::invalid(MEETING, format!("{PE} is missing; pass both to each PE")));
        };
        // Look for UCX first, because its absence is the most frequent error.
        ucx::Ucx::version()?;
        let (_, request_timeout) = variables::timeouts()?;
        let settings = ucx::Settings {
            completion: variable::<CompletionMode>("INLANE_NTB_COMPLETION")?
                .unwrap_or(CompletionMode::Adaptive),
            request_timeout,
            yields: variable::<u8>("INLANE_NTB_YIELD")?.unwrap_or(0) != 0,
        };
        let heap_bytes = heap_bytes()? as usize;
        Ok(Some(Self { client: Arc::new(Client::join(&meeting, pe)?), heap_bytes, settings }))
    }
}

/// Returns the size in bytes of the symmetric heap that the launcher or the user asks for.
fn heap_bytes() -> Result<u64> {
    match variable::<u64>("INLANE_NTB_HEAP")? {
        Some(bytes) => Ok(bytes),
        None => Ok(variables::heap_bytes()?.unwrap_or(HEAP)),
    }
}

/// Returns the value of a variable that the launcher has set.
fn variable<T: std::str::FromStr>(name: &str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    parsed(name, "; unset it, or start the program with `inlane ntb run`")
}

impl Session {
    /// Joins the job that the environment describes. Without a description, the process is a job of one PE.
    /// `additional` is the number of symmetric bytes that the caller needs beside the heap, such as the size of
    /// the program's static objects.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid variable; errors of [`Twin::attach`].
    pub fn from_environment(additional: usize) -> Result<Self> {
        let faults = variable::<Faults>("INLANE_NTB_FAULTS")?.unwrap_or_default();
        let heap_bytes = heap_bytes()?;
        let (connect_timeout, request_timeout) = variables::timeouts()?;
        let mover_from = variable::<u64>("INLANE_NTB_MOVER_FROM")?.map(|from| from as usize);
        let mover = match variable::<MoverChoice>("INLANE_NTB_MOVER")? {
            Some(choice) => Some((choice.start_twin()?, mover_from)),
            None => None,
        };
        let Place { socket, heap_bytes, hub, member } = Place::find(heap_bytes)?;
        let needed = |pes| {
            Layout::overhead(pes) + World::<Windows>::symmetric_bytes(pes, additional, heap_bytes as usize)
        };
        let twin = Twin::attach_with(socket, &faults, needed)?;
        let bytes = needed(twin.ports());
        // Without INLANE_NTB_YIELD, compare the number of PEs with that of processors, because a process
        // manager is assumed to have distributed the PEs over all processors.
        let crowded = member.is_some() && twin.ports() as usize > online_processors();
        let settings = Settings {
            completion: variable::<CompletionMode>("INLANE_NTB_COMPLETION")?
                .unwrap_or(CompletionMode::Adaptive),
            yields: variable::<u8>("INLANE_NTB_YIELD")?.map_or(crowded, |yields| yields != 0),
            faults,
            mover,
            connect_timeout: connect_timeout.unwrap_or(Duration::MAX),
            request_timeout,
            ..Settings::default()
        };
        Ok(Self { twin, bytes, settings, hub, member })
    }
}

/// This process's socket to the hub of its job, the job's heap size, and the values that must live as long as
/// the job.
struct Place {
    socket: OwnedFd,
    heap_bytes: u64,
    hub: Option<Hub>,
    member: Option<Member>,
}

impl Place {
    /// Connects to the hub of the job in which a launcher or process manager started this process. If neither
    /// started it, makes a hub for a job of one PE. `heap_bytes` is the size of the symmetric heap that this
    /// process requests.
    fn find(heap_bytes: u64) -> Result<Self> {
        if let Some(fd) = variable::<RawFd>("INLANE_NTB_FD")? {
            return Ok(Self { socket: inherited(fd)?, heap_bytes, hub: None, member: None });
        }
        if let Some(manager) = manager::connect()? {
            let (member, socket, heap_bytes) = member::join(manager, heap_bytes)?;
            return Ok(Self { socket, heap_bytes, hub: None, member: Some(member) });
        }
        let hub = Hub::new(1, heap_bytes.saturating_add(STATICS))?;
        Ok(Self { socket: hub.admit(0)?, heap_bytes, hub: Some(hub), member: None })
    }
}

/// Returns the number of processors of this machine that are online; 1 if the system does not tell.
fn online_processors() -> usize {
    // SAFETY: the call takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

fn inherited(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: the system call takes a number, and fails if the descriptor is not open. The program may have
    // closed the descriptor and reused its number. Attaching then fails, because no hub answers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(Error::invalid(
            format!("INLANE_NTB_FD={fd}"),
            "that descriptor is not open; start the program with `inlane ntb run`, not through a program that closes it",
        ));
    }
    // Close the descriptor in programs that this process starts, because they are not PEs.
    // SAFETY: the descriptor is open, and the launcher made it for this process, which owns it from here.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
