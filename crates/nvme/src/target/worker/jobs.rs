//! Runs the slow parts of authentications in a thread of their own. A worker thread would otherwise delay the
//! commands of all its other connections.

use super::Worker;
use crate::target::connection::AuthenticationJob;
use crate::target::controller::Reach;
use crate::target::inbox::Message;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Where worker threads put jobs. A connection has at most one job at a time.
pub type Jobs = Sender<(Reach, AuthenticationJob)>;

/// Starts the thread that runs jobs. It ends when the last [`Jobs`] is dropped.
///
/// # Errors
/// If the system has too few resources for a thread.
pub fn start_jobs() -> std::io::Result<(Jobs, JoinHandle<()>)> {
    let (jobs, queue) = channel::<(Reach, AuthenticationJob)>();
    let thread = std::thread::Builder::new().name("inlane-nvme-dh".into()).spawn(move || {
        for (Reach { inbox, connection }, job) in queue {
            inbox.send(Message::Authentication(connection, job.run()));
        }
    })?;
    Ok((jobs, thread))
}

impl Worker {
    /// Hands a job to the thread for jobs, or runs it here if there is no such thread.
    pub(super) fn start_job(&mut self, index: usize, job: AuthenticationJob) {
        let reach = Reach { inbox: self.inbox.clone(), connection: self.link(index).id };
        let refused = match &self.jobs {
            Some(jobs) => jobs.send((reach, job)).err().map(|error| error.0.1),
            None => Some(job),
        };
        if let Some(job) = refused {
            let now = self.now_ms;
            self.link(index).connection.authentication_computed(job.run(), now);
            self.mark(index);
        }
    }
}
