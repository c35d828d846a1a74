//! The connections between a job's PEs and the process that supervises the job. This process is inlane's
//! launcher, or PE 0 if another launcher started the job.
//!
//! If the PEs communicate over memory windows, they connect to the hub of a twin NTB bridge. The hub owns the
//! memories and registers of the bridge and reports the PEs' events. If the PEs communicate over UCX, a TCP
//! server takes the hub's place.

use super::{Job, STATICS};
use crate::error::{Error, Result};
use crate::field::{FAULTS, MOVER, TRANSPORT};
use crate::transport::bootstrap::PeEvent;
use crate::transport::rendezvous::Server;
use crate::transport::select::TransportKind;
use inlane_core::setting::Field;
use inlane_ntb::twin::{Hub, PortEvent};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;

/// The environment variable with the address and the token of the launcher's server, for jobs over UCX.
pub(super) const MEETING: &str = "INLANE_NTB_MEETING";
/// The environment variable with the number of this PE. Over windows, only scripts that start programs read it.
pub(super) const PE: &str = "INLANE_NTB_PE";
/// The environment variable that sets the destination of UCX's messages. The default destination is standard
/// output, but that belongs to the program.
const UCX_LOG: &str = "UCX_LOG_FILE";

/// The part of the launcher to which all PEs of a job connect. Over windows, it is the hub of the twin bridge
/// between the PEs. Over UCX, it is a TCP server.
pub(super) enum JobHub {
    Windows(Arc<Hub>),
    Ucx(Server),
}

impl JobHub {
    /// Creates the hub (the owner of the twin bridge) for a job over windows, or the TCP server for a job
    /// over UCX.
    pub fn new(job: &Job) -> Result<Self> {
        match job.transport {
            TransportKind::Windows => {
                Ok(Self::Windows(Arc::new(Hub::new(job.pes, job.heap_bytes + STATICS)?)))
            }
            TransportKind::Ucx => {
                let refuse = |what: Field| {
                    Err(Error::invalid(
                        what,
                        format!(
                            "UCX has no windows; leave {what} out, or choose {}",
                            TRANSPORT.with("windows")
                        ),
                    ))
                };
                if !job.faults.is_empty() {
                    return refuse(FAULTS);
                }
                if job.mover.is_some() {
                    return refuse(MOVER);
                }
                Ok(Self::Ucx(Server::new(job.pes, job.address)?))
            }
        }
    }

    /// Returns the PEs' events as they happen. Returns `None` after the first call.
    pub fn events(&self) -> Option<Box<dyn Iterator<Item = (u32, PeEvent)> + Send>> {
        Some(match self {
            Self::Windows(hub) => Box::new(hub.events()?.into_iter().map(|(pe, event)| (pe, event.into()))),
            Self::Ucx(server) => Box::new(server.events()?.into_iter()),
        })
    }

    /// Asks all PEs to end with `status`.
    pub fn end_all(&self, status: i32) {
        match self {
            Self::Windows(hub) => hub.end_all(status),
            Self::Ucx(server) => server.end_all(status),
        }
    }

    /// Sets the environment variables of `command` with which PE `pe` joins the job. Over windows, returns
    /// the socket to the hub, the owner of the twin bridge. The PE inherits this socket. Over UCX, returns
    /// `None`.
    pub fn admit(&self, pe: u32, command: &mut Command) -> Result<Option<OwnedFd>> {
        use std::os::fd::AsRawFd;
        match self {
            Self::Windows(hub) => {
                let socket = hub.admit(pe)?;
                command.env("INLANE_NTB_FD", socket.as_raw_fd().to_string());
                command.env_remove(MEETING).env(PE, pe.to_string());
                Ok(Some(socket))
            }
            Self::Ucx(server) => {
                command.env_remove("INLANE_NTB_FD");
                command.env(MEETING, server.meeting().to_string()).env(PE, pe.to_string());
                if std::env::var_os(UCX_LOG).is_none() {
                    command.env(UCX_LOG, "stderr");
                }
                Ok(None)
            }
        }
    }
}

impl From<PortEvent> for PeEvent {
    fn from(event: PortEvent) -> Self {
        match event {
            PortEvent::Attached => Self::Attached,
            PortEvent::Finished => Self::Finished,
            PortEvent::Lost(peer) => Self::Lost(peer),
            PortEvent::ExitAll(status) => Self::ExitAll(status),
            PortEvent::Gone => Self::Gone,
        }
    }
}
