//! Processes the commands Authentication Send and Authentication Receive (Base sections 6.1 and 6.2).

use super::{End, TargetConnection};
use crate::authentication::{AuthenticationFailure, ControllerSide, MAX_MESSAGE, Progress};
use crate::target::controller::OpenQueue;
use crate::target::subsystem::{Authentication, Subsystem};
use crate::wire::command::{Command, FABRICS, Sgl, Status, fabrics};
use std::sync::atomic::Ordering::Relaxed;

/// A host's authentication message that is not processed yet. Processing can take milliseconds, so a worker
/// thread hands the job to another thread.
#[derive(Debug)]
pub struct AuthenticationJob {
    side: Box<ControllerSide>,
    message: Vec<u8>,
}

impl AuthenticationJob {
    /// Creates the job that processes `message`.
    pub fn new(side: Box<ControllerSide>, message: Vec<u8>) -> Self {
        Self { side, message }
    }

    /// Processes the job's message from the host. Pass the result to [`TargetConnection::authentication_computed`].
    pub fn run(mut self) -> Box<ControllerSide> {
        self.side.receive(&self.message);
        self.side
    }
}

/// Updates `side` to the host's current secrets when an authentication begins. Returns false if the host is
/// no longer allowed to connect.
fn renew(side: &mut ControllerSide, subsystem: &Subsystem) -> bool {
    match subsystem.admission(side.host()) {
        Some(Some(Authentication { credentials, hash, group })) => side.renew(credentials, hash, group),
        // The host no longer has to authenticate itself. Keep its earlier secrets, because they still prove
        // its identity.
        Some(None) => {}
        None => return false,
    }
    true
}

/// Returns true for Authentication Send and Authentication Receive.
pub(super) fn is_authentication(command: &Command) -> bool {
    let fctype = command.nsid.get() as u8;
    command.opcode == FABRICS
        && matches!(fctype, fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE)
}

impl TargetConnection {
    /// Carries out an Authentication Send or an Authentication Receive.
    pub(super) fn authenticate(&mut self, slot: u16) {
        let entry = self.slots.get(slot);
        let command = entry.command;
        let Some(queue) = &mut self.queue else { return self.finish(slot, Status::SEQUENCE_ERROR.dnr(), 0) };
        let side = match &mut queue.authentication {
            Some(side) => side,
            // Refuse the command, because another thread still processes an earlier message of this
            // authentication.
            None if self.computing.is_some() => {
                return self.finish(slot, Status::SEQUENCE_ERROR.dnr(), 0);
            }
            None => return self.finish(slot, Status::INVALID_OPCODE.dnr(), 0),
        };
        let length = command.cdw11.get();
        if command.cdw10.get() & !0xFF != fabrics::DH_HMAC_CHAP
            || length == 0
            || command.sgl.length.get() != length
        {
            return self.finish(slot, Status::INVALID_FIELD.dnr(), 0);
        }
        if command.nsid.get() as u8 == fabrics::AUTHENTICATION_SEND {
            let message = entry.data();
            if side.is_idle() && !renew(side, &self.setup.subsystem) {
                side.refuse(message);
            } else if side.is_slow(message) {
                let message = message.to_vec();
                let side = queue.authentication.take().expect("it was present above");
                self.job = Some(AuthenticationJob::new(side, message));
                self.computing = Some(slot);
                return;
            } else {
                side.receive(message);
            }
            self.finish(slot, Status::SUCCESS, 0);
        } else {
            if command.sgl.identifier != Sgl::TRANSPORT {
                return self.finish(slot, Status::INVALID_SGL_TYPE.dnr(), 0);
            }
            let length = (length as usize).min(MAX_MESSAGE);
            let Some(mut message) = side.next_message(length) else {
                return self.finish(slot, Status::SEQUENCE_ERROR.dnr(), 0);
            };
            // Pad the message with zeros to the length that the host requested, as Linux's target does. Hosts
            // may expect all requested bytes.
            message.resize(length, 0);
            self.send_bytes(slot, &message);
        }
        self.authentication_progressed();
    }

    /// Returns true while another thread runs an [`AuthenticationJob`] of this connection.
    pub fn is_computing(&self) -> bool {
        self.computing.is_some()
    }

    /// Returns the work that [`AuthenticationJob::run`] does in another thread, if there is some.
    pub fn take_job(&mut self) -> Option<AuthenticationJob> {
        self.job.take()
    }

    /// Continues an authentication with the result of [`AuthenticationJob::run`].
    pub fn authentication_computed(&mut self, side: Box<ControllerSide>, now_ms: u64) {
        self.now_ms = now_ms;
        let Some(slot) = self.computing.take() else { return };
        let Some(queue) = self.queue.as_mut().filter(|_| self.end.is_none()) else { return };
        queue.authentication = Some(side);
        self.finish(slot, Status::SUCCESS, 0);
        self.authentication_progressed();
        self.proceed();
    }

    /// Lets the host use the queue, or ends the connection, if the authentication has ended.
    fn authentication_progressed(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let Some(side) = &queue.authentication else { return };
        match side.progress() {
            Progress::Idle => {}
            Progress::Busy => {
                self.authenticating_since_ms.get_or_insert(self.now_ms);
            }
            Progress::Authenticated => {
                self.authenticating_since_ms = None;
                if !queue.usable {
                    self.authenticated();
                }
            }
            Progress::Refused(failure) => {
                self.authenticating_since_ms.get_or_insert(self.now_ms);
                self.report_failure(failure);
            }
            Progress::Failed(failure) => {
                self.report_failure(failure);
                self.input.clear();
                self.end = Some(End::Unauthenticated);
            }
        }
    }

    /// Lets the host use the queue after its first authentication.
    fn authenticated(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let controller = &queue.controller;
        let added = queue.id == 0
            || controller.grants_queue(queue.id) && controller.add_queue(queue.id, self.setup.reach.clone());
        if !added {
            let (host, id) = (controller.host.nqn.clone(), queue.id);
            self.refuse(format_args!(
                "{host} already has queue {id}, or its controller was reset; the connection is closed"
            ));
            self.input.clear();
            self.end = Some(End::Unauthenticated);
            return;
        }
        controller.heard(self.now_ms);
        if queue.id == 0 {
            controller.trusted.store(true, Relaxed);
        }
        queue.usable = true;
        if queue.id != 0 {
            self.open_queue = Some(OpenQueue(queue.controller.clone()));
        }
        tracing::info!("{}: {} is authenticated on queue {}", self.setup.peer, controller.host.nqn, queue.id);
    }

    /// Counts and logs a failed authentication, once for each connection.
    fn report_failure(&mut self, failure: AuthenticationFailure) {
        let Some(queue) = &self.queue else { return };
        if !std::mem::replace(&mut self.failure_reported, true) {
            let host = &queue.controller.host.nqn;
            self.refuse(format_args!(
                "the authentication of {host} failed: {failure}; compare the secrets of both sides"
            ));
        }
    }

    /// Returns when the current authentication began, or `None` if none is in progress.
    pub fn authenticating_since_ms(&self) -> Option<u64> {
        self.authenticating_since_ms
    }
}
