//! Joins and connects the PEs of a job over UCX. They meet at a TCP server.

use super::{Settings, Ucx, files};
use crate::error::Result;
use crate::transport::bootstrap::{Exchange, JobSettings, MeetingPoint, Network, Opening};
use crate::transport::rendezvous::{self, Client, Server};
use crate::transport::{Statics, Transport};
use std::sync::Arc;

impl Network for Ucx {
    type Link = Client;

    const USES_UCX: bool = true;
    const RESTRICTED_BY: &[&str] = &["UCX_TLS", "UCX_NET_DEVICES"];
    const MAY_ABORT: bool = true;
    // UCX's messages go to standard output otherwise, but that belongs to the program.
    const VARIABLES: &[(&str, &str)] = &[("UCX_LOG_FILE", "stderr")];

    fn version() -> Result<String> {
        Self::version()
    }

    fn meeting_point(opening: &Opening) -> Result<Arc<dyn MeetingPoint>> {
        Server::open(opening)
    }

    fn join(invitation: &str, pe: u32, _needed: &dyn Fn(u32) -> usize) -> Result<Arc<Client>> {
        // Check for UCX first, because its absence is the most frequent error.
        Self::version()?;
        Ok(Arc::new(rendezvous::join(invitation, pe)?))
    }

    fn exchange(link: &Client) -> Option<&dyn Exchange> {
        Some(link)
    }

    unsafe fn connect_job(
        link: Arc<Client>,
        bytes: usize,
        statics: Option<Statics>,
        settings: &JobSettings,
    ) -> Result<Self> {
        let settings = Settings {
            completion: settings.completion,
            request_timeout: settings.request_timeout,
            yields: settings.yields,
            one_processor: inlane_core::cores::allowed().len() == 1,
        };
        // SAFETY: the caller keeps the promises about the static objects.
        unsafe { Self::connect(link, bytes, statics, settings) }
    }

    fn path(&self) -> String {
        let version = Self::version().unwrap_or_default();
        format!("UCX {version} ({})", self.capabilities().methods.join(", "))
    }

    fn clean_up(ends: bool) {
        if ends {
            files::remove_own();
        }
        files::sweep();
    }
}
