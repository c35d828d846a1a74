//! Joins the job that the environment describes. The result is this process's membership in the job.

use super::hub::{MEETING, PE};
use super::manager::ProcessManager;
use super::member::{self, Joined, Member};
use super::variables::{self, parsed};
use super::{HEAP, MoverChoice, STATICS, manager, network, processors};
use crate::error::{Error, Result};
use crate::field::TRANSPORT;
use crate::transport::bootstrap::Exchange;
use crate::transport::layout::Layout;
use crate::transport::rendezvous::{Client, Meeting, Server};
use crate::transport::select::TransportKind;
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

/// A process's membership in a job over windows: its port of the twin NTB bridge, and the transport's
/// settings.
pub struct Session {
    /// This process's port of the twin bridge that joins the PEs.
    pub twin: Twin,
    /// The size in bytes of the memory that this PE offers to its peers. It contains the protocol's areas,
    /// the symmetric heap, and the additional memory of the caller.
    pub bytes: usize,
    /// The settings of the transport.
    pub settings: Settings,
    /// The job's hub (the owner of the twin bridge), if this process was started alone and is a job of one
    /// PE. Otherwise `None`, because the launcher or PE 0's [`Member`] has the hub.
    pub hub: Option<Hub>,
    /// The membership in a job that a process manager such as `mpirun` started, else `None`. Call
    /// [`Member::finish`] after the last communication.
    pub member: Option<Member>,
}

/// A process's membership in a job over UCX: its connection to the launcher or to PE 0, the heap size, and
/// the settings of the transport.
pub struct UcxSession {
    /// The connection to inlane's launcher or, if a process manager started the job, to PE 0.
    pub client: Arc<Client>,
    /// Size of the symmetric heap in bytes.
    pub heap_bytes: usize,
    /// The settings of the transport.
    pub settings: ucx::Settings,
    /// The job's TCP server, if this process was started alone and is a job of one PE. Otherwise `None`.
    pub server: Option<Server>,
    /// This process's membership in a job that a process manager such as `mpirun` started. `None` if there is
    /// no process manager. Call `finish` on it after the last communication.
    pub member: Option<Member>,
    /// Why the PEs communicate over UCX, as text for the user.
    pub reason: String,
}

/// This process's membership in a job. The job communicates over windows or over UCX.
// A process makes only one value, so it does not matter that one variant is larger than the other.
#[allow(clippy::large_enum_variant)]
pub enum AnySession {
    /// Over windows.
    Windows(Session),
    /// Over UCX.
    Ucx(UcxSession),
}

impl AnySession {
    /// Joins the job that environment variables describe. Without such variables, the process is a job of one
    /// PE. `additional` is the number of bytes of symmetric memory that the caller needs besides the heap.
    ///
    /// In a job of inlane's launcher, the launcher chooses the transport. Other jobs use the transport that
    /// [`variables::TRANSPORT`] names. Without this variable, they use UCX if the PEs run on several
    /// machines, and windows otherwise.
    ///
    /// # Errors
    /// As for [`Session::from_environment`] and [`Client::join`].
    pub fn from_environment(additional: usize) -> Result<Self> {
        Self::over(None, additional)
    }

    /// Joins the job as [`AnySession::from_environment`] does. `asked` is the transport that the user has
    /// chosen for this program, or `None`. `asked` has priority over the environment variable
    /// [`variables::TRANSPORT`].
    ///
    /// # Errors
    /// The same as [`AnySession::from_environment`]. Also [`Error::Invalid`] if inlane's launcher has chosen
    /// the other transport.
    pub fn over(asked: Option<TransportKind>, additional: usize) -> Result<Self> {
        let refuse = |launched: TransportKind| match asked {
            Some(asked) if asked != launched => Err(Error::invalid(
                TRANSPORT.with(asked),
                format!("the job is over {launched}; give the option to the launcher"),
            )),
            _ => Ok(()),
        };
        if let Some(meeting) = variable::<Meeting>(MEETING)? {
            refuse(TransportKind::Ucx)?;
            return UcxSession::of_launcher(&meeting).map(Self::Ucx);
        }
        if variable::<RawFd>("INLANE_NTB_FD")?.is_some() {
            refuse(TransportKind::Windows)?;
            return Session::join(additional, None).map(Self::Windows);
        }
        let manager = manager::connect()?;
        let spread = manager
            .as_ref()
            .is_some_and(|manager| manager.local_size().is_some_and(|here| here < manager.size()));
        let by_variable = variables::transport()?;
        match (asked.or(by_variable), spread) {
            (Some(TransportKind::Ucx), _) if asked.is_some() => {
                UcxSession::of_manager(manager, format!("{TRANSPORT} asks for it")).map(Self::Ucx)
            }
            (Some(TransportKind::Ucx), _) => UcxSession::of_manager(manager, ASKED.into()).map(Self::Ucx),
            (None, true) => UcxSession::of_manager(manager, SEVERAL.into()).map(Self::Ucx),
            (Some(TransportKind::Windows), _) | (None, false) => {
                Session::join(additional, manager).map(Self::Windows)
            }
        }
    }
}

/// The value of [`UcxSession::reason`] if the user chose UCX by the environment variable.
const ASKED: &str = "INLANE_NTB_TRANSPORT asks for it";
/// The value of [`UcxSession::reason`] if the PEs run on several machines. Memory windows cannot connect
/// these PEs.
const SEVERAL: &str = "the PEs run on several machines";

impl UcxSession {
    /// Joins the job over UCX that inlane's launcher started. `meeting` is the address of the launcher's
    /// server.
    fn of_launcher(meeting: &Meeting) -> Result<Self> {
        let Some(pe) = variable::<u32>(PE)? else {
            return Err(Error::invalid(MEETING, format!("{PE} is missing; pass both to each PE")));
        };
        // Check for UCX first, because its absence is the most frequent error.
        ucx::Ucx::version()?;
        let client = Client::join(meeting, pe)?;
        let settings = Self::settings(&client)?;
        Ok(Self {
            client: Arc::new(client),
            heap_bytes: heap_bytes()? as usize,
            settings,
            server: None,
            member: None,
            reason: "the launcher was asked for it".into(),
        })
    }

    /// Joins the job over UCX that `manager` started. If `manager` is `None`, the process is a job of one PE.
    /// `reason` says why the PEs communicate over UCX.
    fn of_manager(manager: Option<Box<dyn ProcessManager>>, reason: String) -> Result<Self> {
        ucx::Ucx::version()?;
        let (heap_bytes, address) = (heap_bytes()?, variables::address()?);
        let (client, heap_bytes, server, member) = match manager {
            Some(manager) => {
                let (member, client, heap_bytes) = member::join_over_ucx(manager, heap_bytes, address)?;
                (client, heap_bytes, None, Some(member))
            }
            None => {
                let server = Server::new(1, network::listening_address(address, true))?;
                (Client::join(server.meeting(), 0)?, heap_bytes, Some(server), None)
            }
        };
        let heap_bytes = heap_bytes as usize;
        let settings = Self::settings(&client)?;
        Ok(Self { client: Arc::new(client), heap_bytes, settings, server, member, reason })
    }

    /// Returns the transport's settings from environment variables. If the PEs of this machine are more than the
    /// processors that they may use, waiting PEs yield their processor, unless INLANE_NTB_YIELD is set to 0.
    /// All PEs must call it.
    fn settings(client: &Client) -> Result<ucx::Settings> {
        let own = processors::announcement();
        let all = client.gather(own.as_bytes())?;
        let texts = all.iter().map(|text| std::str::from_utf8(text).unwrap_or_default());
        let share_processors = processors::are_shared(&own, texts);
        let (_, request_timeout) = variables::timeouts()?;
        let settings = ucx::Settings {
            completion: variable::<CompletionMode>("INLANE_NTB_COMPLETION")?
                .unwrap_or(CompletionMode::Adaptive),
            request_timeout,
            yields: yields(share_processors)?,
            one_processor: super::processors().len() == 1,
        };
        Ok(settings)
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

/// Returns whether waiting PEs let other PEs run: as INLANE_NTB_YIELD says, or `usual` if it is not set.
fn yields(usual: bool) -> Result<bool> {
    const NAME: &str = "INLANE_NTB_YIELD";
    match std::env::var_os(NAME) {
        None => Ok(usual),
        Some(value) if value == "0" => Ok(false),
        Some(value) if value == "1" => Ok(true),
        Some(value) => Err(Error::invalid(format!("{NAME}={}", value.display()), "give 0 or 1, or unset it")),
    }
}

impl Session {
    /// Joins the job over windows. The environment variables of inlane's launcher or of a process manager
    /// describe the job. Without such variables, the process is a job of one PE. `additional` is the number
    /// of bytes of symmetric memory that the caller needs besides the heap, for example for the program's
    /// static objects.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid variable; errors of [`Twin::attach`].
    pub fn from_environment(additional: usize) -> Result<Self> {
        let launched = variable::<RawFd>("INLANE_NTB_FD")?.is_some();
        Self::join(additional, if launched { None } else { manager::connect()? })
    }

    fn join(additional: usize, manager: Option<Box<dyn ProcessManager>>) -> Result<Self> {
        let faults = variable::<Faults>("INLANE_NTB_FAULTS")?.unwrap_or_default();
        let heap_bytes = heap_bytes()?;
        let (connect_timeout, request_timeout) = variables::timeouts()?;
        let mover_from = variable::<u64>("INLANE_NTB_MOVER_FROM")?.map(|from| from as usize);
        let mover = match variable::<MoverChoice>("INLANE_NTB_MOVER")? {
            Some(choice) => Some((choice.start_twin()?, mover_from)),
            None => None,
        };
        let Place { socket, heap_bytes, hub, member, share_processors } = Place::find(heap_bytes, manager)?;
        let needed = |pes| {
            Layout::overhead(pes) + World::<Windows>::symmetric_bytes(pes, additional, heap_bytes as usize)
        };
        let twin = Twin::attach_with(socket, &faults, needed)?;
        let bytes = needed(twin.ports());
        let settings = Settings {
            completion: variable::<CompletionMode>("INLANE_NTB_COMPLETION")?
                .unwrap_or(CompletionMode::Adaptive),
            yields: yields(share_processors)?,
            faults,
            mover,
            connect_timeout: connect_timeout.unwrap_or(Duration::MAX),
            request_timeout,
            ..Settings::default()
        };
        Ok(Self { twin, bytes, settings, hub, member })
    }
}

/// This process's socket to the job's hub (the owner of the twin bridge), and the job's heap size. `hub` and
/// `member` are kept here because they must live as long as the job.
struct Place {
    socket: OwnedFd,
    heap_bytes: u64,
    hub: Option<Hub>,
    member: Option<Member>,
    /// True if the PEs are more than the processors that they may use. Without a process manager,
    /// INLANE_NTB_YIELD tells that.
    share_processors: bool,
}

impl Place {
    /// Connects to the hub (the owner of the twin bridge) of the job. Either inlane's launcher or `manager`
    /// started the job. If this process was started alone, creates a hub for a job of one PE. `heap_bytes` is
    /// the size of the symmetric heap that this process asks for.
    fn find(heap_bytes: u64, manager: Option<Box<dyn ProcessManager>>) -> Result<Self> {
        if let Some(fd) = variable::<RawFd>("INLANE_NTB_FD")? {
            let socket = inherited(fd)?;
            return Ok(Self { socket, heap_bytes, hub: None, member: None, share_processors: false });
        }
        if let Some(manager) = manager {
            let Joined { member, socket, heap_bytes, share_processors } = member::join(manager, heap_bytes)?;
            return Ok(Self { socket, heap_bytes, hub: None, member: Some(member), share_processors });
        }
        let hub = Hub::new(1, heap_bytes.saturating_add(STATICS))?;
        let socket = hub.admit(0)?;
        Ok(Self { socket, heap_bytes, hub: Some(hub), member: None, share_processors: false })
    }
}

fn inherited(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: the call takes numbers. It fails if the descriptor is not open. The program may have closed the
    // descriptor and reused its number; attaching then fails, because no hub answers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(Error::invalid(
            format!("INLANE_NTB_FD={fd}"),
            "that descriptor is not open; start the program with `inlane ntb run`, not through a program that closes it",
        ));
    }
    // Programs that this process starts are not PEs, so they must not inherit the descriptor. SAFETY: the
    // descriptor is open. The launcher made it for this process, so nobody else owns it.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
