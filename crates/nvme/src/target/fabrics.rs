//! Executes the Fabrics commands Connect, Property Get and Property Set (Base section 6).

use super::controller::{Controller, Host, Reach, Transition};
use super::subsystem::{Authentication, Subsystem};
use crate::authentication::{ControllerSide, Names};
use crate::wire::command::{Cap, Command, ConnectData, Status, connect, connect_error, property};
use crate::wire::nqn;
use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::Arc;
use zerocopy::FromBytes;

/// The version of the specification that controllers report: 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// Dword 0 of the completion of a Connect whose field is wrong.
mod wrong {
    use super::*;

    pub const QUEUE: u32 = connect_error(false, 42);
    pub const ENTRIES: u32 = connect_error(false, 44);
    pub const CONTROLLER: u32 = connect_error(true, offset_of!(ConnectData, controller));
    pub const SUBSYSTEM: u32 = connect_error(true, offset_of!(ConnectData, subsystem_nqn));
    pub const HOST: u32 = connect_error(true, offset_of!(ConnectData, host_nqn));
}

/// The queue that a connection carries.
#[derive(Debug)]
pub struct Queue {
    /// The controller to which the queue belongs.
    pub controller: Arc<Controller>,
    /// The identifier of the queue; 0 for the admin queue.
    pub id: u16,
    /// The number of entries.
    pub entries: u16,
    /// SQHD: the number of received commands, modulo the number of entries.
    pub head: u16,
    /// False if the host disabled flow control. SQHD is then FFFFh, and successful reads need no completion.
    pub flow_control: bool,
    /// The identifiers of Asynchronous Event Requests that wait for an event.
    pub held: Vec<u16>,
    /// True if the host has authenticated itself or need not. If false, only authentication commands are
    /// accepted. An I/O queue belongs to the controller's queues only if this is true.
    pub usable: bool,
    /// The authentication of the host. `None` if the host need not authenticate itself, or while a job
    /// computes.
    pub authentication: Option<Box<ControllerSide>>,
}

/// Carries out a Connect from the host at `address`. For an admin queue, creates a controller. For an I/O
/// queue, adds the queue to an existing controller.
///
/// # Errors
/// The status of the completion, and its dword 0, which names the invalid parameter.
pub fn connect(
    subsystem: &Subsystem,
    reach: &Reach,
    address: IpAddr,
    command: &Command,
    data: &[u8],
) -> Result<Queue, (Status, u32)> {
    let invalid = |field: u32| (Status::CONNECT_INVALID_PARAMETERS.dnr(), field);
    let Ok(data) = ConnectData::ref_from_bytes(data) else {
        return Err((Status::INVALID_SGL_LENGTH.dnr(), 0));
    };
    let (format, queue) = (command.cdw10.get() as u16, (command.cdw10.get() >> 16) as u16);
    let (last_entry, attributes) = (command.cdw11.get() as u16, (command.cdw11.get() >> 16) as u8);
    let flow_control = attributes & connect::DISABLE_FLOW_CONTROL == 0;
    if format != 0 {
        return Err((Status::CONNECT_INCOMPATIBLE_FORMAT.dnr(), 0));
    }
    if last_entry == 0 || last_entry >= subsystem.limits.queue_entries {
        return Err(invalid(wrong::ENTRIES));
    }
    let entries = last_entry + 1;
    let host_nqn = nqn::in_field(&data.host_nqn).ok_or(invalid(wrong::HOST))?;
    let subsystem_nqn = nqn::in_field(&data.subsystem_nqn).ok_or(invalid(wrong::SUBSYSTEM))?;
    let discovery = subsystem_nqn == nqn::DISCOVERY;
    if !discovery && subsystem_nqn != subsystem.nqn {
        return Err(invalid(wrong::SUBSYSTEM));
    }
    // Refuse hosts that are not allowed to connect. Let every host use the discovery service, because it
    // lists only the addresses that the host may use.
    let admission = subsystem.admission(host_nqn);
    // Treat a host as a stranger at the discovery service, too, if it may use the subsystem only after an
    // authentication or not at all.
    let trusted = matches!(admission, Some(None));
    let admission = if discovery { Some(None) } else { admission };
    let authentication = admission.ok_or((Status::CONNECT_INVALID_HOST.dnr(), 0))?;
    let authentication = authentication.map(|Authentication { credentials, hash, group }| {
        let names = Names { host: host_nqn.into(), subsystem: subsystem_nqn.into() };
        Box::new(ControllerSide::new(credentials, hash, group, names))
    });
    let host = Host { nqn: host_nqn.into(), id: data.host_id };
    let id = data.controller.get();
    let controller = if queue == 0 {
        if id != connect::ANY_CONTROLLER {
            return Err(invalid(wrong::CONTROLLER));
        }
        let keep_alive_ms = command.cdw12.get().into();
        let created = subsystem.create_controller(host, address, discovery, trusted, keep_alive_ms);
        created.ok_or((Status::CONNECT_CONTROLLER_BUSY, 0))?
    } else {
        // Do not compare the host identifiers. Linux's target does not, and some hosts send a new one with each queue.
        let controller = subsystem.controller(id);
        let controller = controller.filter(|it| it.host.nqn == host.nqn && it.discovery == discovery);
        let controller = controller.ok_or(invalid(wrong::CONTROLLER))?;
        if queue > controller.granted_io_queues() {
            return Err(invalid(wrong::QUEUE));
        }
        if !controller.is_ready() {
            return Err((Status::SEQUENCE_ERROR.dnr(), 0));
        }
        controller
    };
    // Add an I/O queue only after its authentication. Otherwise a stranger could occupy queues of other hosts.
    let waits = queue != 0 && authentication.is_some();
    let free = if waits { !controller.has_queue(queue) } else { controller.add_queue(queue, reach.clone()) };
    if !free {
        return Err((Status::SEQUENCE_ERROR.dnr(), 0));
    }
    Ok(Queue {
        controller,
        id: queue,
        entries,
        // The head counts the Connect command, too.
        head: 1 % entries,
        flow_control,
        held: Vec::new(),
        usable: authentication.is_none(),
        authentication,
    })
}

/// Returns the name of the field that dword 0 of a refused Connect points at.
pub fn connect_field(dword: u32) -> Option<&'static str> {
    Some(match dword {
        wrong::QUEUE => "queue identifier (QID)",
        wrong::ENTRIES => "queue size (SQSIZE)",
        wrong::CONTROLLER => "controller identifier (CNTLID)",
        wrong::SUBSYSTEM => "subsystem NQN (SUBNQN)",
        wrong::HOST => "host NQN (HOSTNQN)",
        _ => return None,
    })
}

/// Returns the value of the property that `command` names.
///
/// # Errors
/// The status for the command, if the property does not exist or its size is wrong.
pub fn property_get(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
) -> Result<u64, Status> {
    let wide = match command.cdw10.get() & 7 {
        0 => false,
        1 => true,
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    match (command.cdw11.get(), wide) {
        (property::CAP, true) => {
            // Set TO, the longest time until a controller is ready, to 15 units of 500 ms. This target is
            // ready at once, so it needs only a part of that time.
            Ok(Cap::new(subsystem.limits.queue_entries.into(), 15).0)
        }
        (property::VS, false) => Ok(VERSION.into()),
        (property::CC, false) => Ok(controller.configuration().into()),
        (property::CSTS, false) => Ok(controller.status().into()),
        // Leave DNR out, because nvme-cli 2.3 compares the whole status. With DNR, `nvme show-regs` fails at
        // the first register that the target lacks.
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Sets a property. Returns what the caller must do because of the new value.
///
/// # Errors
/// The status of the command, if the property or its size is invalid.
pub fn property_set(controller: &Controller, command: &Command) -> Result<Transition, Status> {
    match (command.cdw11.get(), command.cdw10.get() & 7) {
        (property::CC, 0) => Ok(controller.configure(command.cdw12.get())),
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}
