//! Runs the slow parts of authentications on a separate thread. On a worker thread, they would delay the
//! commands of all other connections of the worker.
//!
//! A host that opens many connections must not delay the other hosts. So the thread serves the addresses of
//! the hosts in turn, and removes the jobs of ended connections. A connection has at most one job at a time,
//! so the limit of connections also bounds the jobs.

use super::Worker;
use crate::lock;
use crate::target::connection::{AuthenticationJob, Setup};
use crate::target::controller::Reach;
use crate::target::inbox::Note;
use crate::target::network::network;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The waiting authentication jobs. One thread runs them.
#[derive(Debug, Default)]
pub struct Jobs {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The waiting jobs, grouped by the host's address. The thread takes its next job from the first group.
    addresses: VecDeque<(IpAddr, VecDeque<(Reach, AuthenticationJob)>)>,
    ended: bool,
}

/// Starts the one thread that computes authentications for all connections. It ends after [`Jobs::end`].
///
/// # Errors
/// If the system has too few resources for a thread.
pub fn start_jobs() -> std::io::Result<(Arc<Jobs>, JoinHandle<()>)> {
    let jobs = Arc::new(Jobs::default());
    let its_jobs = jobs.clone();
    let thread = std::thread::Builder::new().name("inlane-nvme-dh".into()).spawn(move || {
        while let Some((reach, job)) = its_jobs.next() {
            reach.send(Note::Authentication(job.run()));
        }
    })?;
    Ok((jobs, thread))
}

impl Jobs {
    /// Appends the job of a connection from `address`. Drops it after [`Jobs::end`].
    pub fn add(&self, address: IpAddr, reach: Reach, job: AuthenticationJob) {
        let address = network(address);
        let mut waiting = lock(&self.waiting);
        if waiting.ended {
            return;
        }
        match waiting.addresses.iter_mut().find(|(other, _)| *other == address) {
            Some((_, jobs)) => jobs.push_back((reach, job)),
            None => waiting.addresses.push_back((address, [(reach, job)].into())),
        }
        self.changed.notify_one();
    }

    /// Removes a connection's job if the job has not started. `address` is the address of the connection's
    /// host.
    pub fn remove(&self, address: IpAddr, reach: &Reach) {
        let address = network(address);
        let mut waiting = lock(&self.waiting);
        let Some(index) = waiting.addresses.iter().position(|(other, _)| *other == address) else { return };
        let jobs = &mut waiting.addresses[index].1;
        jobs.retain(|(other, _)| !other.is_same(reach));
        if jobs.is_empty() {
            waiting.addresses.remove(index);
        }
    }

    /// Removes all waiting jobs. The thread ends after the job that it runs now.
    pub fn end(&self) {
        *lock(&self.waiting) = Waiting { ended: true, ..Waiting::default() };
        self.changed.notify_all();
    }

    /// Waits for a job. Returns `None` after [`Jobs::end`].
    fn next(&self) -> Option<(Reach, AuthenticationJob)> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.ended {
                return None;
            }
            if let Some((address, mut jobs)) = waiting.addresses.pop_front() {
                let job = jobs.pop_front();
                if !jobs.is_empty() {
                    waiting.addresses.push_back((address, jobs));
                }
                return job;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the number of jobs that wait.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.waiting).addresses.iter().map(|(_, jobs)| jobs.len()).sum()
    }
}

impl Worker {
    /// Hands a job to the thread that runs the authentication jobs. If there is no such thread, runs the job
    /// here.
    pub(super) fn start_job(&mut self, index: usize, job: AuthenticationJob) {
        let link = self.links[index].as_mut().expect("a link");
        let Setup { peer, reach, .. } = &link.connection.setup;
        match &self.jobs {
            Some(jobs) => jobs.add(peer.ip(), reach.clone(), job),
            None => link.connection.authentication_computed(job.run(), self.now_ms),
        }
        self.mark(index);
    }

    /// Removes the job of a connection that ends.
    pub(super) fn cancel_job(&mut self, index: usize) {
        let connection = &self.links[index].as_ref().expect("a link").connection;
        if let Some(jobs) = self.jobs.as_ref().filter(|_| connection.is_computing()) {
            jobs.remove(connection.setup.peer.ip(), &connection.setup.reach);
        }
    }
}

#[cfg(test)]
mod tests;
