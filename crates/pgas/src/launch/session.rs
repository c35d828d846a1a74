//! A process's place in a job.

use super::variables::{self, parsed};
use super::{HEAP, MoverChoice, STATICS};
use crate::error::{Error, Result};
use crate::transport::layout::Layout;
use crate::transport::windows::{Settings, Windows};
use crate::world::World;
use inlane_core::completion::CompletionMode;
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::twin::{Hub, Twin};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A process's place in a job: its port and its settings.
pub struct Session {
    /// This process's port of the twin bridge that joins the PEs.
    pub twin: Twin,
    /// Size in bytes of the memory that this PE offers to its peers: the protocol's parts, the symmetric heap,
    /// and what the caller needs beside it.
    pub bytes: usize,
    /// The settings of the transport.
    pub settings: Settings,
    /// The hub of this process's own fabric, if the process is a job of its own. `None` if the launcher
    /// started it.
    pub hub: Option<Hub>,
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
        let heap_bytes = match variable::<u64>("INLANE_NTB_HEAP")? {
            Some(bytes) => bytes,
            None => variables::heap_bytes()?.unwrap_or(HEAP),
        };
        let (connect_timeout, request_timeout) = variables::timeouts()?;
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
            connect_timeout: connect_timeout.unwrap_or(Duration::MAX),
            request_timeout,
            ..Settings::default()
        };
        let (socket, hub) = match variable::<RawFd>("INLANE_NTB_FD")? {
            Some(fd) => (inherited(fd)?, None),
            None => {
                let hub = Hub::new(1, heap_bytes + STATICS)?;
                (hub.admit(0)?, Some(hub))
            }
        };
        let needed = |pes| {
            Layout::overhead(pes) + World::<Windows>::symmetric_bytes(pes, additional, heap_bytes as usize)
        };
        let twin = Twin::attach_with(socket, &faults, needed)?;
        let bytes = needed(twin.ports());
        Ok(Self { twin, bytes, settings, hub })
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
