//! Authenticates this host on a queue (Base section 8.13.5).

use super::{ConnectOptions, call};
use crate::authentication::{HostSide, MAX_MESSAGE, Names, Refusal};
use crate::field::SECRETS_FILE;
use crate::initiator::{Buffer, Queue};
use crate::wire::command::{Command, Status, connect, fabrics};
use crate::wire::nqn;
use crate::{Error, Result};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Authenticates this host if the target requires it. `result` is dword 0 of the completion of Connect.
///
/// # Errors
/// If the target refuses this host, or requires a secret or a method that this host lacks. Also if this host
/// has the target's secret but the target does not prove that it knows the secret.
pub(super) fn authenticate(queue: &mut Queue, result: u32, options: &ConnectOptions) -> Result<()> {
    let ConnectOptions { subsystem, host, .. } = options;
    let (peer, name) = (queue.peer().to_string(), &host.nqn);
    let failed = |why: &str| Error::Unauthenticated { peer: peer.clone(), why: why.into() };
    if result & connect::SECURE_CHANNEL_REQUIRED != 0 {
        return Err(failed(
            "the target requires a secure channel after the authentication (TLS), which is unsupported; \
             turn secure channel concatenation off there",
        ));
    }
    let required = result & connect::AUTHENTICATION_REQUIRED != 0;
    let credentials = match &host.credentials {
        None if required => {
            return Err(failed(&format!(
                "the target requires authentication (DH-HMAC-CHAP) of {name}; give the secrets with {SECRETS_FILE}"
            )));
        }
        // If this host has a secret of the target, refuse a target that requires no authentication. Accept a
        // discovery service, because it never authenticates hosts. The secret is meant for the subsystem.
        Some(credentials) if !required && credentials.target.is_some() && subsystem != nqn::DISCOVERY => {
            return Err(failed(&format!(
                "the target does not prove its identity, because it requires no authentication of {name}; require it \
                 there, or remove the target's secret from the line of this host in {SECRETS_FILE}"
            )));
        }
        Some(credentials) if required => credentials,
        _ => return Ok(()),
    };
    static TRANSACTIONS: AtomicU16 = AtomicU16::new(1);
    let transaction = TRANSACTIONS.fetch_add(1, Relaxed);
    let names = Names { host: name.clone(), subsystem: subsystem.clone() };
    let mut side = HostSide::new(credentials, &names, transaction);
    let refused = |queue: &mut Queue, refusal: Refusal| {
        if let Some(message) = refusal.message(transaction) {
            // Ignore a failure to report the reason, because the queue is given up anyway.
            let _ = send(queue, &message);
        }
        failed(&format!("authentication of {name} at {subsystem}: {refusal}"))
    };
    send(queue, &side.begin())?;
    let challenge = receive(queue)?;
    let reply = side.challenged(challenge.bytes()).map_err(|refusal| refused(queue, refusal))?;
    send(queue, &reply)?;
    // Linux's target closes the connection after a wrong response. Often it does so before it has sent the
    // reason. Add the probable reason to the error.
    let success = receive(queue).map_err(|error| match error {
        Error::Disconnected { peer, why, source } => {
            let why = format!(
                "authentication of {name} at {subsystem}: {why}; the target probably refused this host's secret; \
                 compare the line of this host in the secrets of both sides"
            );
            Error::Disconnected { peer, why, source }
        }
        other => other,
    })?;
    match side.succeeded(success.bytes()).map_err(|refusal| refused(queue, refusal))? {
        Some(message) => send(queue, &message),
        None => Ok(()),
    }
}

/// Sends a message.
fn send(queue: &mut Queue, message: &[u8]) -> Result<()> {
    let mut buffer = Buffer::new(message.len())?;
    buffer.bytes_mut().copy_from_slice(message);
    exchange(queue, fabrics::AUTHENTICATION_SEND, buffer).map(|_| ())
}

/// Receives a message. Returns a buffer that holds the message, followed by zeros.
fn receive(queue: &mut Queue) -> Result<Buffer> {
    exchange(queue, fabrics::AUTHENTICATION_RECEIVE, Buffer::new(MAX_MESSAGE)?)
}

fn exchange(queue: &mut Queue, fctype: u8, buffer: Buffer) -> Result<Buffer> {
    let command = Command::authentication(fctype, buffer.len() as u32);
    let done = call(queue, command, buffer)?;
    let status: Status = done.status();
    match done.buffer {
        Some(buffer) if status.is_success() => Ok(buffer),
        _ => Err(Error::Status { what: format!("{}: authenticating this host", queue.peer()), status }),
    }
}
