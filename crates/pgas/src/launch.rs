//! A job: one process for each PE, started and ended together.
//!
//! All PEs connect to the job's meeting point, which the launcher runs
//! ([`MeetingPoint`]). Over windows, a twin NTB bridge joins the PEs. The meeting
//! point is the bridge's hub, which holds the memories and registers, and each process inherits a socket to it. Over UCX,
//! the meeting point is a TCP server. Each process finds its settings in the environment:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `INLANE_NTB_MEETING` | how this PE joins the job: `windows:` and the descriptor of the socket, or `ucx:` and the address and the token of the TCP server |
//! | `INLANE_NTB_PE` | the number of this PE |
//! | `INLANE_NTB_JOB` | a name of the job, which all processes of the job inherit |
//! | `INLANE_NTB_HEAP` | bytes of symmetric heap |
//! | `INLANE_NTB_COMPLETION` | the completion mode of waits: poll, interrupt or adaptive |
//! | `INLANE_NTB_FAULTS` | faults to inject, in the syntax of [`Faults`](inlane_ntb::fault::Faults) |
//! | `INLANE_NTB_MOVER` | what copies bulk data: `twin` or `twin:RATE` (a DMA engine's twin) |
//! | `INLANE_NTB_MOVER_FROM` | size in bytes from which the mover copies |
//! | `INLANE_NTB_YIELD` | over windows: 1 if there are more PEs than processors, so that polling yields the processor |
//!
//! [`crate::variables`] lists the variables that users set.

mod help;
mod invitation;
pub mod leftovers;
pub mod manager;
mod member;
mod membership;
mod processors;
mod session;
mod supervise;

pub use help::help;
pub use inlane_core::cores::allowed as processors;
pub use invitation::{Invitation, MEETING};
pub use manager::is_in_job;
pub use membership::{End, Membership};
pub use session::Session;

use crate::error::{Error, Result};
use crate::transport::bootstrap::{MeetingPoint, Opening};
use crate::transport::select::TransportKind;
use crate::transport::windows::options::Options;
use inlane_core::completion::CompletionMode;
use inlane_core::cores::CoreSet;
use invitation::PE;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use supervise::{JobEvent, Running, end_all, supervise};

/// Default size of the symmetric heap in bytes. Untouched pages take no memory.
pub const HEAP: u64 = 1 << 30;

/// Returns the address at which the meeting point of a job listens: `given` if it is set. Otherwise, the address is
/// 127.0.0.1 if all PEs run on one machine, else 0.0.0.0 (all addresses).
fn listening_address(given: Option<IpAddr>, on_one_machine: bool) -> IpAddr {
    let usual = if on_one_machine { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    given.unwrap_or(IpAddr::from(usual))
}

/// The settings with which the launcher starts a job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of PEs.
    pub pes: u32,
    /// Size of each PE's symmetric heap in bytes.
    pub heap_bytes: u64,
    /// How the PEs communicate.
    pub transport: TransportKind,
    /// This machine's address at which the job's meeting point listens for the PEs, if the transport has no windows.
    pub address: IpAddr,
    /// The completion mode of waits.
    pub completion: CompletionMode,
    /// Faults and the mover, which only jobs over windows can have.
    pub windows: Options,
    /// If set, binds each PE to its share of the processors. Ignored if there are more PEs than processors.
    pub bind: bool,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            pes: 2,
            heap_bytes: HEAP,
            transport: TransportKind::default(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            completion: CompletionMode::Adaptive,
            windows: Options::default(),
            bind: true,
        }
    }
}

/// Starts a thread of the launcher.
///
/// # Errors
/// If the system has no more threads for this user.
fn thread(run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().spawn(run);
    started.map(drop).map_err(|error| {
        Error::os("cannot start a thread of the launcher", inlane_core::error::NotStarted::of(error))
    })
}

impl Job {
    /// Runs `program` with `arguments` in every PE, and waits until all PEs end. If a PE fails, ends the
    /// others. A PE fails by a nonzero exit status, by a signal, or by ending without finalizing. Returns the
    /// exit status and, for a failure, the reason.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid job. Errors of the system if the twin bridge, the TCP server or a
    /// process cannot be created.
    pub fn run(&self, program: &OsString, arguments: &[OsString]) -> Result<(i32, Option<String>)> {
        self.run_until(channel().1, program, arguments)
    }

    /// Runs a job as [`Self::run`] does. Ends it if a status arrives through `stop`, and returns that status.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub fn run_until(
        &self,
        stop: Receiver<i32>,
        program: &OsString,
        arguments: &[OsString],
    ) -> Result<(i32, Option<String>)> {
        self.windows.check(self.pes)?;
        if !self.transport.has_windows() {
            self.windows.refuse(&self.transport.to_string())?;
        }
        let opening = Opening { pes: self.pes, heap_bytes: self.heap_bytes, address: self.address };
        let meeting = self.transport.meeting_point(&opening)?;
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        let (sender, events) = channel();
        if let Some(seen) = meeting.events() {
            let sender = sender.clone();
            thread(move || {
                seen.for_each(|(pe, seen)| drop(sender.send(JobEvent::Seen(pe, seen))));
            })?;
        }
        let stopped = sender.clone();
        thread(move || stop.iter().for_each(|status| drop(stopped.send(JobEvent::Stopped(status)))))?;
        let mut running = Vec::new();
        let outcome = (0..self.pes).try_for_each(|pe| {
            running.push(self.start(&*meeting, (pe, &name), program, arguments, &sender)?);
            Ok(())
        });
        let outcome = match outcome {
            Ok(()) => Ok(supervise(&events, &mut running, &*meeting)),
            Err(error) => {
                end_all(&events, &mut running);
                Err(error)
            }
        };
        leftovers::end(&name);
        self.transport.clean_up(false);
        outcome
    }

    fn start(
        &self,
        meeting: &dyn MeetingPoint,
        (pe, job): (u32, &str),
        program: &OsString,
        arguments: &[OsString],
        sender: &Sender<JobEvent>,
    ) -> Result<Running> {
        let mut command = Command::new(program);
        let (text, socket) = meeting.invite(pe, &mut command)?;
        let fd = socket.as_ref().map(AsRawFd::as_raw_fd);
        let processors = processors();
        // Give each PE an equal share of neighbouring processors. Its service thread then has room beside the
        // program.
        let share = processors.len() / self.pes as usize;
        let bound = self.bind && share > 0 && self.pes > 1;
        let own = bound.then(|| CoreSet::of(&processors[pe as usize * share..][..share]));
        command
            .args(arguments)
            .env(leftovers::JOB, job)
            .env(MEETING, Invitation { kind: self.transport, text }.to_string())
            .env(PE, pe.to_string())
            .env("INLANE_NTB_HEAP", self.heap_bytes.to_string())
            .env("INLANE_NTB_COMPLETION", self.completion.to_string());
        let unset = |(name, _): &&(&str, &str)| std::env::var_os(name).is_none();
        command.envs(self.transport.variables().iter().filter(unset).copied());
        self.windows.set(pe, &mut command);
        // SAFETY: the closure only makes system calls that are allowed between fork and exec. It allocates
        // nothing, because their arguments were made before the fork.
        unsafe {
            command.pre_exec(move || {
                if let Some(fd) = fd {
                    libc::fcntl(fd, libc::F_SETFD, 0);
                }
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let _ = own.as_ref().map(CoreSet::bind);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| Error::starting(program, error))?;
        let pid = Pid::from_child(&child);
        let pidfd =
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Error::os("pidfd of a PE", error))?;
        let sender = sender.clone();
        thread(move || {
            if let Ok(status) = child.wait() {
                let _ = sender.send(JobEvent::Ended(pe, status));
            }
        })?;
        Ok(Running {
            pidfd,
            attached: false,
            finished: false,
            gone: false,
            may_abort: self.transport.may_abort(),
            lost: None,
            ended: None,
        })
    }
}
