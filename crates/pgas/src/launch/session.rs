//! Joins the job that the environment describes. The result is this process's membership in the job.

use super::hub::{MEETING, PE};
use super::manager::ProcessManager;
use super::member::{self, Joined, Member};
use super::membership::{Membership, Owned};
use super::variables::{self, parsed};
use super::{HEAP, MoverChoice, STATICS, manager, network, processors};
use crate::error::{Error, Result};
use crate::field::TRANSPORT;
use crate::transport::Statics;
use crate::transport::bootstrap::Exchange;
use crate::transport::rendezvous::{Client, Meeting, Server};
use crate::transport::select::{AnyTransport, TransportKind};
use crate::transport::ucx;
use crate::transport::windows::layout::Layout;
use crate::transport::windows::{self, Windows};
use crate::world::World;
use inlane_core::completion::CompletionMode;
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::twin::{Hub, Twin};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A process that has joined a job, but has no transport yet.
pub struct Session {
    membership: Arc<Membership>,
    /// Size of the symmetric heap in bytes.
    heap_bytes: usize,
    /// Why the PEs communicate in this way, as text for the user.
    reason: String,
    network: Network,
}

/// What a transport needs to connect.
enum Network {
    Windows { twin: Arc<Twin>, settings: windows::Settings },
    Ucx { client: Arc<Client>, settings: ucx::Settings },
}

impl Session {
    /// Joins the job that environment variables describe. Without such variables, the process is a job of one
    /// PE. `additional` is the number of bytes of symmetric memory that the caller needs besides the heap, for example
    /// for the program's static objects.
    ///
    /// In a job of inlane's launcher, the launcher chooses the transport. Other jobs use the transport that
    /// [`variables::TRANSPORT`] names. Without this variable, they use UCX if the PEs run on several
    /// machines, and windows otherwise.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid variable; errors of [`Twin::attach`] and [`Client::join`].
    pub fn from_environment(additional: usize) -> Result<Self> {
        Self::over(None, additional)
    }

    /// Joins the job as [`Session::from_environment`] does. `asked` is the transport that the user has
    /// chosen for this program, or `None`. `asked` has priority over the environment variable
    /// [`variables::TRANSPORT`].
    ///
    /// # Errors
    /// The same as [`Session::from_environment`]. Also [`Error::Invalid`] if inlane's launcher has chosen
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
            return Self::over_ucx_of_launcher(&meeting);
        }
        if variable::<RawFd>("INLANE_NTB_FD")?.is_some() {
            refuse(TransportKind::Windows)?;
            return Self::over_windows(additional, None);
        }
        let manager = manager::connect()?;
        let spread = manager
            .as_ref()
            .is_some_and(|manager| manager.local_size().is_some_and(|here| here < manager.size()));
        let by_variable = variables::transport()?;
        match (asked.or(by_variable), spread) {
            (Some(TransportKind::Ucx), _) if asked.is_some() => {
                Self::over_ucx(manager, format!("{TRANSPORT} asks for it"))
            }
            (Some(TransportKind::Ucx), _) => Self::over_ucx(manager, ASKED.into()),
            (None, true) => Self::over_ucx(manager, SEVERAL.into()),
            (Some(TransportKind::Windows), _) | (None, false) => Self::over_windows(additional, manager),
        }
    }

    /// Returns the membership in the job. It ends with the job, not with the session.
    pub fn membership(&self) -> Arc<Membership> {
        self.membership.clone()
    }

    /// Returns the number of PEs.
    pub fn pes(&self) -> u32 {
        match &self.network {
            Network::Windows { twin, .. } => twin.ports(),
            Network::Ucx { client, .. } => client.pes(),
        }
    }

    /// Returns the size of the symmetric heap in bytes that the user asks for.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    /// Returns how the PEs communicate.
    pub fn kind(&self) -> TransportKind {
        match self.network {
            Network::Windows { .. } => TransportKind::Windows,
            Network::Ucx { .. } => TransportKind::Ucx,
        }
    }

    /// Returns why the PEs communicate in this way, as text for the user.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Sets the completion mode of waits.
    pub fn set_completion(&mut self, mode: CompletionMode) {
        match &mut self.network {
            Network::Windows { settings, .. } => settings.completion = mode,
            Network::Ucx { settings, .. } => settings.completion = mode,
        }
    }

    /// Returns true if waiting PEs leave their processor to others.
    pub fn yields(&self) -> bool {
        match &self.network {
            Network::Windows { settings, .. } => settings.yields,
            Network::Ucx { settings, .. } => settings.yields,
        }
    }

    /// Connects to all PEs of the job. All PEs call it with the same `heap_bytes`. `statics` are the address and the
    /// length of the program's static objects in whole pages, for which [`World::new`] expects symmetric offsets.
    ///
    /// # Errors
    /// Errors of the transport.
    ///
    /// # Safety
    /// The memory of `statics` stays mapped and writable until the process ends. No other thread accesses it during this
    /// call.
    pub unsafe fn connect(self, heap_bytes: usize, statics: Option<(usize, usize)>) -> Result<AnyTransport> {
        let (pes, of_statics) = (self.pes(), statics.map_or(0, |(_, bytes)| bytes));
        let bytes = World::<AnyTransport>::symmetric_bytes(pes, of_statics, heap_bytes);
        let offset = World::<AnyTransport>::statics_offset(pes);
        let statics = statics.map(|(address, bytes)| Statics { offset, address, bytes });
        // SAFETY: the caller keeps the promises about the static objects.
        unsafe {
            Ok(match self.network {
                Network::Windows { twin, settings } => {
                    AnyTransport::Windows(Windows::connect_twin(twin, bytes, statics, settings)?)
                }
                Network::Ucx { client, settings } => {
                    AnyTransport::Ucx(ucx::Ucx::connect(client, bytes, statics, settings)?)
                }
            })
        }
    }

    /// Joins the job over UCX that inlane's launcher started. `meeting` is the address of the launcher's
    /// server.
    fn over_ucx_of_launcher(meeting: &Meeting) -> Result<Self> {
        let Some(pe) = variable::<u32>(PE)? else {
            return Err(Error::invalid(MEETING, format!("{PE} is missing; pass both to each PE")));
        };
        // Check for UCX first, because its absence is the most frequent error.
        ucx::Ucx::version()?;
        let client = Client::join(meeting, pe)?;
        Self::with_client(client, heap_bytes()?, (None, None), "the launcher was asked for it".into())
    }

    /// Joins the job over UCX that `manager` started. If `manager` is `None`, the process is a job of one PE.
    /// `reason` says why the PEs communicate over UCX.
    fn over_ucx(manager: Option<Box<dyn ProcessManager>>, reason: String) -> Result<Self> {
        ucx::Ucx::version()?;
        let (heap_bytes, address) = (heap_bytes()?, variables::address()?);
        match manager {
            Some(manager) => {
                let (member, client, heap_bytes) = member::join_over_ucx(manager, heap_bytes, address)?;
                Self::with_client(client, heap_bytes, (Some(member), None), reason)
            }
            None => {
                let server = Server::new(1, network::listening_address(address, true))?;
                let client = Client::join(server.meeting(), 0)?;
                Self::with_client(client, heap_bytes, (None, Some(Box::new(server))), reason)
            }
        }
    }

    /// Makes the session of a PE that has joined over UCX. All PEs must call it, because it exchanges the PEs'
    /// processors. If the PEs of this machine are more than the processors that they may use, waiting PEs yield their
    /// processor, unless INLANE_NTB_YIELD is set to 0.
    fn with_client(
        client: Client,
        heap_bytes: u64,
        (member, owned): (Option<Member>, Option<Owned>),
        reason: String,
    ) -> Result<Self> {
        let own = processors::announcement();
        let all = client.gather(own.as_bytes())?;
        let texts = all.iter().map(|text| std::str::from_utf8(text).unwrap_or_default());
        let share_processors = processors::are_shared(&own, texts);
        let (_, request_timeout) = variables::timeouts()?;
        let settings = ucx::Settings {
            completion: completion()?,
            request_timeout,
            yields: yields(share_processors)?,
            one_processor: super::processors().len() == 1,
        };
        let client = Arc::new(client);
        let membership = Arc::new(Membership::new(client.me(), client.clone(), member, owned));
        let network = Network::Ucx { client, settings };
        Ok(Self { membership, heap_bytes: heap_bytes as usize, reason, network })
    }

    /// Joins the job over windows. The environment variables of inlane's launcher or `manager` describe the job.
    /// Without both, the process is a job of one PE.
    fn over_windows(additional: usize, manager: Option<Box<dyn ProcessManager>>) -> Result<Self> {
        let faults = variable::<Faults>("INLANE_NTB_FAULTS")?.unwrap_or_default();
        let heap_bytes = heap_bytes()?;
        let (connect_timeout, request_timeout) = variables::timeouts()?;
        let mover_from = variable::<u64>("INLANE_NTB_MOVER_FROM")?.map(|from| from as usize);
        let mover = match variable::<MoverChoice>("INLANE_NTB_MOVER")? {
            Some(choice) => Some((choice.start_twin()?, mover_from)),
            None => None,
        };
        let HubConnection { socket, heap_bytes, hub, member, share_processors } =
            HubConnection::find(heap_bytes, manager)?;
        let needed = |pes| {
            Layout::overhead(pes)
                + World::<AnyTransport>::symmetric_bytes(pes, additional, heap_bytes as usize)
        };
        let twin = Arc::new(Twin::attach_with(socket, &faults, needed)?);
        let settings = windows::Settings {
            completion: completion()?,
            yields: yields(share_processors)?,
            faults,
            mover,
            connect_timeout: connect_timeout.unwrap_or(Duration::MAX),
            request_timeout,
            ..windows::Settings::default()
        };
        let owned = hub.map(|hub| Box::new(hub) as Owned);
        let membership = Arc::new(Membership::new(twin.port(), twin.clone(), member, owned));
        let reason = "all PEs run on this machine".into();
        let network = Network::Windows { twin, settings };
        Ok(Self { membership, heap_bytes: heap_bytes as usize, reason, network })
    }
}

/// The value of [`Session::reason`] if the user chose UCX by the environment variable.
const ASKED: &str = "INLANE_NTB_TRANSPORT asks for it";
/// The value of [`Session::reason`] if the PEs run on several machines. Memory windows cannot connect
/// these PEs.
const SEVERAL: &str = "the PEs run on several machines";

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

/// Returns the completion mode that the launcher or the user asks for.
fn completion() -> Result<CompletionMode> {
    Ok(variable("INLANE_NTB_COMPLETION")?.unwrap_or(CompletionMode::Adaptive))
}

/// This process's socket to the job's hub (the owner of the twin bridge), and the job's heap size. `hub` and
/// `member` are kept here because they must live as long as the job.
struct HubConnection {
    socket: OwnedFd,
    heap_bytes: u64,
    hub: Option<Hub>,
    member: Option<Member>,
    /// True if the PEs are more than the processors that they may use. Without a process manager,
    /// INLANE_NTB_YIELD tells that.
    share_processors: bool,
}

impl HubConnection {
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
