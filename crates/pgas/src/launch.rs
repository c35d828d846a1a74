//! A job: one process for each PE, joined by a twin, started and ended together.
//!
//! The launcher owns the twin's hub. Each process inherits a socket to the hub, and finds its settings in the
//! environment:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `INLANE_NTB_FD` | the descriptor of the socket |
//! | `INLANE_NTB_HEAP` | bytes of symmetric heap |
//! | `INLANE_NTB_COMPLETION` | the completion mode of waits: poll, interrupt or adaptive |
//! | `INLANE_NTB_FAULTS` | faults to inject, in the syntax of [`Faults`] |
//! | `INLANE_NTB_MOVER` | what copies bulk data: `twin` or `twin:RATE` (a DMA engine's twin) |
//! | `INLANE_NTB_MOVER_FROM` | size in bytes from which the mover copies |
//! | `INLANE_NTB_YIELD` | 1 if there are more PEs than processors, so that polling yields the processor |

use crate::error::{Error, Result};
use crate::transport::windows::Settings;
use inlane_core::completion::CompletionMode;
use inlane_core::mover::Mover;
use inlane_ntb::fault::Faults;
use inlane_ntb::twin::{Hub, PortEvent, Twin};
use inlane_twin::{DmaCosts, DmaEngine};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Default size of the symmetric heap in bytes. Untouched pages take no memory.
pub const HEAP: u64 = 1 << 30;
/// Space for a program's static objects. Untouched pages take no memory.
const STATICS: u64 = 4 << 30;
/// Time between asking processes to end and killing them.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait after a process has ended. During this time the hub's last events of that process arrive.
/// If the process ended because it lost a link, the PE at the other end of the link ends too.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// A process's membership in a job: its port of the twin NTB bridge that joins the PEs, the heap size, and
/// the settings of the transport.
pub struct Session {
    /// This process's port of the twin bridge that joins the PEs.
    pub twin: Twin,
    /// Size of the symmetric heap in bytes.
    pub heap_bytes: usize,
    /// The settings of the transport.
    pub settings: Settings,
    /// This process's own hub, if the process is a job of one PE. `None` if the launcher started the process.
    pub hub: Option<Hub>,
}

fn variable<T: std::str::FromStr>(name: &str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let Some(text) = std::env::var_os(name) else { return Ok(None) };
    let text = text.to_string_lossy();
    text.parse().map(Some).map_err(|error| {
        Error::invalid(
            format!("{name}={text}"),
            format!("{error}; unset it, or start the program with `inlane ntb run`"),
        )
    })
}

impl Session {
    /// Joins the job that the environment describes. Without a description, the process is a job of one PE.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid variable; errors of [`Twin::attach`].
    pub fn from_environment() -> Result<Self> {
        let faults = variable::<Faults>("INLANE_NTB_FAULTS")?.unwrap_or_default();
        let heap_bytes = variable::<u64>("INLANE_NTB_HEAP")?.unwrap_or(HEAP);
        let mover_from = variable::<u64>("INLANE_NTB_MOVER_FROM")?.map(|from| from as usize);
        let mover = match variable::<MoverChoice>("INLANE_NTB_MOVER")? {
            Some(choice) => Some((choice.start_twin()?, mover_from)),
            None => None,
        };
        let settings = Settings {
            completion: variable::<CompletionMode>("INLANE_NTB_COMPLETION")?
                .unwrap_or(CompletionMode::Adaptive),
            yields: variable::<u8>("INLANE_NTB_YIELD")?.unwrap_or(0) != 0,
            faults: faults.clone(),
            mover,
            ..Settings::default()
        };
        let (socket, hub) = match variable::<RawFd>("INLANE_NTB_FD")? {
            Some(fd) => (inherited(fd)?, None),
            None => {
                let hub = Hub::new(1, heap_bytes + STATICS)?;
                (hub.admit(0)?, Some(hub))
            }
        };
        let twin = Twin::attach(socket, &faults)?;
        Ok(Self { twin, heap_bytes: heap_bytes as usize, settings, hub })
    }
}

/// The mover for bulk data, as users name it: `twin`, `twin:RATE` or `gpu:N`.
///
/// The mover of a job must reach all memory of the job's programs, because programs put from any of their
/// memory. The twin of a DMA engine does. A GPU reaches only memory that was registered with it. So only the
/// bench can use a GPU, because the bench registers its memory.
#[derive(Clone, Debug, PartialEq)]
pub enum MoverChoice {
    /// A DMA engine's twin with this rate in bits a second. `None`: as fast as a core copies.
    Twin(Option<f64>),
    /// The copy engines of a GPU.
    Gpu(u32),
}

impl std::str::FromStr for MoverChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        use inlane_core::units::{Rate, parse_rate};
        let invalid = || {
            Error::invalid(
                format!("mover '{text}'"),
                "expected twin, twin:RATE (for example twin:30G) or gpu:N",
            )
        };
        match text.split_once(':').unwrap_or((text, "")) {
            ("twin", "") => Ok(Self::Twin(None)),
            ("twin", rate) => match parse_rate(rate)? {
                Rate::Bits(bits) => Ok(Self::Twin(Some(bits))),
                _ => Err(invalid()),
            },
            ("gpu", number) => number.parse().map(Self::Gpu).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

impl std::fmt::Display for MoverChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Twin(None) => f.write_str("twin"),
            Self::Twin(Some(bits)) => write!(f, "twin:{bits}"),
            Self::Gpu(number) => write!(f, "gpu:{number}"),
        }
    }
}

impl MoverChoice {
    /// Starts the DMA engine's twin.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a GPU, which does not reach all memory of a program.
    pub fn start_twin(&self) -> Result<Box<dyn Mover>> {
        let costs = match *self {
            Self::Twin(None) => DmaCosts::unlimited(),
            Self::Twin(Some(bits)) => DmaCosts { to_device: bits / 8.0, ..DmaCosts::unlimited() },
            Self::Gpu(_) => {
                return Err(Error::invalid(
                    format!("mover '{self}'"),
                    "a GPU reaches registered memory only; use twin, or measure with `inlane ntb bench --mover gpu:N`",
                ));
            }
        };
        Ok(Box::new(DmaEngine::new("dma twin", costs)?))
    }
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

/// The settings with which the launcher starts a job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Number of PEs.
    pub pes: u32,
    /// Size of each PE's symmetric heap in bytes.
    pub heap_bytes: u64,
    /// The completion mode of waits.
    pub completion: CompletionMode,
    /// Faults to inject, in the syntax of [`Faults`]; empty for none.
    pub faults: String,
    /// The PE at which faults are injected; all PEs if `None`.
    pub faulty: Option<u32>,
    /// The mover that copies large puts. If `None`, the processor stores all puts.
    pub mover: Option<MoverChoice>,
    /// Size in bytes from which the mover copies. If `None`, each PE measures the size while connecting.
    pub mover_from: Option<u64>,
    /// If set, binds each PE to its share of the processors. Ignored if there are more PEs than processors.
    pub bind: bool,
}

impl Default for Job {
    fn default() -> Self {
        Self {
            pes: 2,
            heap_bytes: HEAP,
            completion: CompletionMode::Adaptive,
            faults: String::new(),
            faulty: None,
            mover: None,
            mover_from: None,
            bind: true,
        }
    }
}

enum JobEvent {
    Hub(u32, PortEvent),
    Ended(u32, ExitStatus),
}

struct Running {
    pidfd: OwnedFd,
    attached: bool,
    finished: bool,
    gone: bool,
    /// The PE to which this PE lost its link, if this PE ended for that reason.
    lost: Option<u32>,
    ended: Option<(ExitStatus, Instant)>,
}

impl Running {
    /// Returns true if the process has ended and the hub has no more events of the process. A child process
    /// may keep the socket to the hub open. Therefore also returns true [`SETTLE_TIME`] after the end.
    fn is_settled(&self) -> bool {
        self.ended.is_some_and(|(_, at)| self.gone || at.elapsed() > SETTLE_TIME)
    }
}

impl Job {
    /// Runs `program` with `arguments` as every PE and waits for all. A PE fails by its status, by a signal
    /// or by ending without finalizing. If a PE fails, the others are ended. Returns the job's exit status
    /// and, for a failure, the reason.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid job; errors of the system if the hub or a process cannot be made.
    pub fn run(&self, program: &OsString, arguments: &[OsString]) -> Result<(i32, Option<String>)> {
        self.faults.parse::<Faults>()?;
        match (&self.mover, self.mover_from) {
            (Some(MoverChoice::Gpu(_)), _) => {
                drop(self.mover.as_ref().map(MoverChoice::start_twin).transpose()?)
            }
            (None, Some(_)) => {
                return Err(Error::invalid("--mover-from", "no mover was chosen; add --mover twin"));
            }
            _ => {}
        }
        match self.faulty {
            Some(_) if self.faults.is_empty() => {
                return Err(Error::invalid("--faulty", "there are no faults to inject; add --faults"));
            }
            Some(pe) if pe >= self.pes => {
                let why = format!("the job has PEs 0 to {}", self.pes.saturating_sub(1));
                return Err(Error::invalid(format!("--faulty {pe}"), why));
            }
            _ => {}
        }
        let window = self.heap_bytes.saturating_add(STATICS);
        if window > 1 << 40 {
            let what = format!("--heap {}", inlane_core::units::bytes(self.heap_bytes));
            return Err(Error::invalid(
                what,
                "a window has at most 1 TiB; give a smaller heap, such as 512G",
            ));
        }
        let hub = Hub::new(self.pes, window)?;
        let (sender, events) = channel();
        if let Some(seen) = hub.events() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                seen.iter().for_each(|(pe, seen)| drop(sender.send(JobEvent::Hub(pe, seen))));
            });
        }
        let mut running = Vec::new();
        let outcome = (0..self.pes).try_for_each(|pe| {
            running.push(self.start(&hub, pe, program, arguments, &sender)?);
            Ok(())
        });
        match outcome {
            Ok(()) => Ok(supervise(&events, &mut running)),
            Err(error) => {
                end_all(&events, &mut running);
                Err(error)
            }
        }
    }

    fn start(
        &self,
        hub: &Hub,
        pe: u32,
        program: &OsString,
        arguments: &[OsString],
        sender: &Sender<JobEvent>,
    ) -> Result<Running> {
        let socket = hub.admit(pe)?;
        let fd = socket.as_raw_fd();
        let processors = processors();
        let crowded = self.pes as usize > processors.len();
        // Give each PE an equal share of neighbouring processors. Its service thread then has room beside the
        // program.
        let share = processors.len() / self.pes as usize;
        let bound = self.bind && !crowded && self.pes > 1;
        let own = if bound { processors[pe as usize * share..][..share].to_vec() } else { Vec::new() };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("INLANE_NTB_FD", fd.to_string())
            .env("INLANE_NTB_HEAP", self.heap_bytes.to_string())
            .env("INLANE_NTB_COMPLETION", self.completion.to_string())
            .env("INLANE_NTB_YIELD", if crowded { "1" } else { "0" });
        match self.faulty.is_none_or(|faulty| faulty == pe) && !self.faults.is_empty() {
            true => command.env("INLANE_NTB_FAULTS", &self.faults),
            false => command.env_remove("INLANE_NTB_FAULTS"),
        };
        match &self.mover {
            Some(mover) => command.env("INLANE_NTB_MOVER", mover.to_string()),
            None => command.env_remove("INLANE_NTB_MOVER"),
        };
        match self.mover_from {
            Some(from) => command.env("INLANE_NTB_MOVER_FROM", from.to_string()),
            None => command.env_remove("INLANE_NTB_MOVER_FROM"),
        };
        // SAFETY: the closure only makes system calls that are allowed between fork and exec. The arguments of
        // these calls were moved into the closure before the fork.
        unsafe {
            command.pre_exec(move || {
                libc::fcntl(fd, libc::F_SETFD, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if !own.is_empty() {
                    bind(&own);
                }
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| Error::starting(program, error))?;
        let pid = Pid::from_child(&child);
        let pidfd =
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Error::os("pidfd of a PE", error))?;
        let sender = sender.clone();
        std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = sender.send(JobEvent::Ended(pe, status));
            }
        });
        Ok(Running { pidfd, attached: false, finished: false, gone: false, lost: None, ended: None })
    }
}

/// Binds the calling thread to `processors`, and with it the threads that it starts later. Does nothing if
/// the system refuses.
pub fn bind(processors: &[usize]) {
    // SAFETY: the set lies on the stack, and the system call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        processors.iter().for_each(|processor| libc::CPU_SET(*processor, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Returns the processors that this process may use.
pub fn processors() -> Vec<usize> {
    // SAFETY: the set lies on the stack, and the system call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    };
    // SAFETY: the indices are below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

fn record(running: &mut [Running], events: JobEvent) -> Option<i32> {
    match events {
        JobEvent::Ended(pe, status) => running[pe as usize].ended = Some((status, Instant::now())),
        JobEvent::Hub(pe, PortEvent::Attached) => running[pe as usize].attached = true,
        JobEvent::Hub(pe, PortEvent::Finished) => running[pe as usize].finished = true,
        JobEvent::Hub(pe, PortEvent::Gone) => running[pe as usize].gone = true,
        JobEvent::Hub(pe, PortEvent::Lost(peer)) => running[pe as usize].lost = Some(peer),
        JobEvent::Hub(_, PortEvent::ExitAll(status)) => return Some(status),
    }
    None
}

/// Returns why PE `pe` failed and the job's status for it, or `None` if it has not failed.
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

/// Returns the failure to report, or `None` if there is none yet. PEs that ended because they lost a peer are
/// reported only if no other PE has failed. The order of the events does not show which PE ended first.
fn verdict(running: &[Running]) -> Option<(i32, String)> {
    let failed = |pe: usize| running[pe].is_settled().then(|| failure(pe, &running[pe])).flatten();
    let alone = |pe: usize| {
        let next = |process: &&Running| process.lost.and_then(|peer| running.get(peer as usize));
        // PEs may have lost each other in a circle, so follow at most as many links as there are PEs.
        let mut lost = std::iter::successors(Some(&running[pe]), next).take(running.len() + 1).skip(1);
        lost.all(Running::is_settled) || running[pe].ended.is_some_and(|(_, at)| at.elapsed() > SETTLE_TIME)
    };
    let all = || 0..running.len();
    let causes = all().filter(|pe| running[*pe].lost.is_none()).find_map(failed);
    causes.or_else(|| all().filter(|pe| alone(*pe)).find_map(failed))
}

fn supervise(events: &Receiver<JobEvent>, running: &mut [Running]) -> (i32, Option<String>) {
    loop {
        // After a process has ended, the hub may still have events of that process, so look again soon.
        let some_ended = running.iter().any(|process| process.ended.is_some());
        let limit = Duration::from_millis(if some_ended { 50 } else { 3_600_000 });
        match events.recv_timeout(limit) {
            Ok(event) => {
                if let Some(status) = record(running, event) {
                    end_all(events, running);
                    return (status, (status != 0).then(|| format!("shmem_global_exit({status})")));
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

fn end_all(events: &Receiver<JobEvent>, running: &mut [Running]) {
    for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, Duration::from_secs(60))] {
        for process in running.iter().filter(|process| process.ended.is_none()) {
            let _ = pidfd_send_signal(&process.pidfd, signal);
        }
        let until = Instant::now() + limit;
        while running.iter().any(|process| process.ended.is_none()) {
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => drop(record(running, event)),
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests;
