//! Sends the Connect command of a queue. Explains a refusal by the target, and authenticates this host.

use super::authenticate::authenticate;
use super::{ConnectOptions, call};
use crate::field::HOST_NQN;
use crate::initiator::{Buffer, Queue};
use crate::wire::command::{Command, ConnectData, Status};
use crate::{Error, Result};
use zerocopy::IntoBytes;

/// Sends a Connect, and authenticates this host if the target requires that. Returns the controller's
/// identifier.
pub(super) fn connect_queue(
    queue: &mut Queue,
    command: Command,
    controller: u16,
    options: &ConnectOptions,
) -> Result<u16> {
    let ConnectOptions { subsystem, host, .. } = options;
    let mut buffer = Buffer::new(size_of::<ConnectData>())?;
    let data = ConnectData::new(host.id, controller, subsystem, &host.nqn);
    buffer.bytes_mut().copy_from_slice(data.as_bytes());
    let done = call(queue, command, buffer)?;
    let (status, dw0) = (done.status(), done.completion.dw0.get());
    if status.is_success() {
        authenticate(queue, dw0, options)?;
        return Ok(dw0 as u16);
    }
    let peer = queue.peer();
    match (Status(status.0 & 0x7FF), dw0 >> 16 & 1, dw0 & 0xFFFF) {
        (Status::CONNECT_INVALID_PARAMETERS, 1, 256) => {
            let why = format!(
                "{peer} does not have it ({status}); 'inlane nvme discover {peer}' lists those that it has"
            );
            Err(Error::invalid(format!("subsystem {subsystem}"), why))
        }
        (Status::CONNECT_INVALID_HOST, ..) | (Status::CONNECT_INVALID_PARAMETERS, 1, 512) => {
            let why = format!(
                "connecting to {subsystem} as {}: {status}; the target does not allow this host: add its NQN there, or \
                 give another with {HOST_NQN}",
                host.nqn
            );
            Err(Error::disconnected(peer, why))
        }
        _ => Err(Error::Status { what: format!("{peer}: connecting to {subsystem}"), status }),
    }
}
