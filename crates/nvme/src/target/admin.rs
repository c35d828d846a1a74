//! Executes Admin commands, and Fabrics commands except for Connect (Base sections 5 and 6).

use super::controller::{Controller, Transition};
use super::subsystem::Subsystem;
use super::{fabrics as fabrics_commands, logs, pages};
use crate::wire::command::{Command, FABRICS, Status, admin, fabrics, feature};
use crate::wire::identify::cns;
use std::net::SocketAddr;

/// The state that an admin or Fabrics command reads and changes when the target executes it.
pub struct Context<'a> {
    /// The subsystem.
    pub subsystem: &'a Subsystem,
    /// The host's controller.
    pub controller: &'a Controller,
    /// The identifier of the queue on which the command arrived.
    pub queue: u16,
    /// The command identifiers of Asynchronous Event Requests that wait for an event.
    pub held: &'a mut Vec<u16>,
    /// The address at which the host reached the target.
    pub local: SocketAddr,
    /// The time in milliseconds, on the subsystem's clock.
    pub now_ms: u64,
}

/// What the caller of [`execute`] must do with the command.
#[derive(Debug)]
pub enum Reply {
    /// Complete the command with this status and this result.
    Done(Status, u64),
    /// Send this data and complete the command with success.
    Data(Vec<u8>),
    /// Do not complete the command yet: it is an Asynchronous Event Request, which waits for an event.
    Hold,
    /// The command is an Abort. Complete the Abort with success. Complete the Asynchronous Event Request that
    /// has this identifier as aborted.
    Abort(u16),
    /// The command has set the property CC. Complete the command with success.
    ///
    /// * After a reset, drop the waiting Asynchronous Event Requests without a completion.
    /// * For a shutdown, make the data of all namespaces durable.
    Configured(Transition),
}

/// Carries out an admin command. None of the supported admin commands takes data from the host.
pub fn execute(context: Context<'_>, command: &Command) -> Reply {
    run(context, command).unwrap_or_else(|status| Reply::Done(status, 0))
}

fn done(result: u64) -> Result<Reply, Status> {
    Ok(Reply::Done(Status::SUCCESS, result))
}

fn run(context: Context<'_>, command: &Command) -> Result<Reply, Status> {
    let controller = context.controller;
    match command.opcode {
        FABRICS => match command.nsid.get() as u8 {
            fabrics::PROPERTY_GET | fabrics::PROPERTY_SET if context.queue != 0 => {
                Err(Status::INVALID_FIELD.dnr())
            }
            fabrics::PROPERTY_GET => {
                done(fabrics_commands::property_get(context.subsystem, controller, command)?)
            }
            fabrics::PROPERTY_SET => {
                fabrics_commands::property_set(controller, command).map(Reply::Configured)
            }
            _ => Err(Status::INVALID_OPCODE.dnr()),
        },
        admin::IDENTIFY => identify(&context, command),
        admin::GET_LOG_PAGE => get_log_page(&context, command),
        admin::SET_FEATURES => set_features(&context, command),
        admin::GET_FEATURES => get_features(&context, command),
        admin::KEEP_ALIVE => done(0),
        admin::ASYNC_EVENT_REQUEST if context.held.len() >= pages::MAX_EVENT_REQUESTS => {
            Err(Status::ASYNC_EVENT_LIMIT.dnr())
        }
        admin::ASYNC_EVENT_REQUEST => Ok(Reply::Hold),
        admin::ABORT if !controller.discovery => {
            let (queue, cid) = (command.cdw10.get() as u16, (command.cdw10.get() >> 16) as u16);
            if queue > controller.granted_io_queues() {
                return Err(Status::INVALID_FIELD.dnr());
            }
            match context.held.iter().position(|held| queue == 0 && *held == cid) {
                Some(index) => Ok(Reply::Abort(context.held.remove(index))),
                // Abort only waiting event requests, because all other commands end soon by themselves. Bit 0
                // of the result says that nothing was aborted.
                None => done(1),
            }
        }
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

fn identify(context: &Context<'_>, command: &Command) -> Result<Reply, Status> {
    let Context { subsystem, controller, .. } = context;
    let id = command.nsid.get();
    let page = match command.cdw10.get() as u8 {
        cns::CONTROLLER => pages::controller(subsystem, controller),
        _ if controller.discovery => return Err(Status::INVALID_FIELD.dnr()),
        cns::COMMAND_SET_CONTROLLER if command.cdw11.get() >> 24 == 0 => pages::nvm_controller(),
        cns::NAMESPACE => pages::namespace(subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE.dnr())?),
        cns::ACTIVE_NAMESPACES if id >= u32::MAX - 1 => return Err(Status::INVALID_NAMESPACE.dnr()),
        cns::ACTIVE_NAMESPACES => pages::active_namespaces(subsystem, id),
        cns::NAMESPACE_DESCRIPTORS => {
            pages::descriptors(subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE.dnr())?)
        }
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    Ok(Reply::Data(page))
}

fn get_log_page(context: &Context<'_>, command: &Command) -> Result<Reply, Status> {
    let cdw10 = command.cdw10.get();
    let (id, retain_events) = (cdw10 as u8, cdw10 & 1 << 15 != 0);
    // NUMD is the number of dwords less one.
    let dwords = u64::from(cdw10 >> 16 | (command.cdw11.get() & 0xFFFF) << 16) + 1;
    let length = dwords * 4;
    let offset = u64::from(command.cdw12.get()) | u64::from(command.cdw13.get()) << 32;
    // Bit 23 of dword 14 is OT (offset type). If it is set, the offset is the index of a list entry instead
    // of a number of bytes. This target does not support that.
    if length > context.subsystem.limits.transfer_bytes().into()
        || !offset.is_multiple_of(4)
        || command.cdw14.get() & 1 << 23 != 0
    {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let page = logs::page(
        context.subsystem,
        context.controller,
        context.local,
        id,
        command.nsid.get(),
        retain_events,
    )?;
    let start = usize::try_from(offset).ok().filter(|start| *start <= page.len());
    let rest = &page[start.ok_or(Status::INVALID_FIELD.dnr())?..];
    let length = length as usize;
    // The host may read beyond the end of a log page, so fill the rest of the host's buffer with zeros.
    let mut bytes = rest[..length.min(rest.len())].to_vec();
    bytes.resize(length, 0);
    Ok(Reply::Data(bytes))
}

fn set_features(context: &Context<'_>, command: &Command) -> Result<Reply, Status> {
    let Context { subsystem, controller, .. } = context;
    let (id, save) = (command.cdw10.get() as u8, command.cdw10.get() & 1 << 31 != 0);
    let value = command.cdw11.get();
    if save {
        return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
    }
    let namespace = named_namespace(command);
    if namespace.is_some() && CONTROLLER_SCOPE.contains(&id) {
        return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr());
    }
    match id {
        feature::KEEP_ALIVE_TIMER => {
            controller.set_keep_alive_ms(value.into(), context.now_ms);
            done(0)
        }
        feature::ASYNC_EVENT_CONFIGURATION => {
            // The lowest byte selects health events. The host may set its bits, but this target reports no such event.
            let health = if controller.discovery { 0 } else { 0xFF };
            if value & !(controller.notices() | health) != 0 {
                return Err(Status::INVALID_FIELD.dnr());
            }
            controller.set_feature(id, None, value);
            done(0)
        }
        _ if controller.discovery => Err(Status::INVALID_FIELD.dnr()),
        feature::NUMBER_OF_QUEUES => {
            let (submission, completion) = (value as u16, (value >> 16) as u16);
            if submission == u16::MAX || completion == u16::MAX {
                return Err(Status::INVALID_FIELD.dnr());
            }
            if !controller.io_queues().is_empty() {
                return Err(Status::SEQUENCE_ERROR.dnr());
            }
            let granted = (submission.min(completion) + 1).min(subsystem.limits.io_queues);
            controller.grant_io_queues(granted);
            done(u64::from(granted - 1) * 0x1_0001)
        }
        // Accept a request that leaves the volatile write cache on. Refuse to turn it off: this target cannot
        // do that.
        feature::VOLATILE_WRITE_CACHE if pages::has_volatile_cache(subsystem) => match value & 1 {
            1 => done(0),
            _ => Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
        },
        feature::POWER_MANAGEMENT if value & 0x1F != 0 => Err(Status::INVALID_FIELD.dnr()),
        // DULBE, bit 16, asks for an error when deallocated blocks are read. They read as zero here.
        feature::ERROR_RECOVERY if value & 1 << 16 != 0 => Err(Status::INVALID_FIELD.dnr()),
        feature::HOST_IDENTIFIER => Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
        id if STORED.contains(&id) => {
            check_namespace(subsystem, namespace)?;
            controller.set_feature(id, namespace, value);
            done(0)
        }
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}

/// Returns the identifier of the namespace that a command names. Returns `None` for 0, which stands for no
/// namespace, and for FFFFFFFFh, which stands for all namespaces.
fn named_namespace(command: &Command) -> Option<u32> {
    Some(command.nsid.get()).filter(|id| !matches!(*id, 0 | u32::MAX))
}

fn check_namespace(subsystem: &Subsystem, namespace: Option<u32>) -> Result<(), Status> {
    match namespace {
        Some(id) if subsystem.namespace(id).is_none() => Err(Status::INVALID_NAMESPACE.dnr()),
        _ => Ok(()),
    }
}

/// Features that apply to the whole controller.
const CONTROLLER_SCOPE: [u8; 9] = [
    feature::ARBITRATION,
    feature::POWER_MANAGEMENT,
    feature::TEMPERATURE_THRESHOLD,
    feature::VOLATILE_WRITE_CACHE,
    feature::NUMBER_OF_QUEUES,
    feature::WRITE_ATOMICITY,
    feature::ASYNC_EVENT_CONFIGURATION,
    feature::KEEP_ALIVE_TIMER,
    feature::HOST_IDENTIFIER,
];

/// Mandatory features that have no effect on this target. Their values are stored.
const STORED: [u8; 5] = [
    feature::ARBITRATION,
    feature::POWER_MANAGEMENT,
    feature::TEMPERATURE_THRESHOLD,
    feature::ERROR_RECOVERY,
    feature::WRITE_ATOMICITY,
];

fn get_features(context: &Context<'_>, command: &Command) -> Result<Reply, Status> {
    let Context { subsystem, controller, .. } = context;
    let (id, select) = (command.cdw10.get() as u8, command.cdw10.get() >> 8 & 7);
    if select != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    match id {
        feature::KEEP_ALIVE_TIMER => done(controller.keep_alive_ms()),
        feature::ASYNC_EVENT_CONFIGURATION => done(controller.feature(id, None).into()),
        _ if controller.discovery => Err(Status::INVALID_FIELD.dnr()),
        feature::NUMBER_OF_QUEUES => done(u64::from(controller.granted_io_queues() - 1) * 0x1_0001),
        feature::VOLATILE_WRITE_CACHE if pages::has_volatile_cache(subsystem) => done(1),
        feature::HOST_IDENTIFIER if command.cdw11.get() & 1 == 1 => {
            Ok(Reply::Data(controller.host.id.to_vec()))
        }
        id if STORED.contains(&id) => {
            let namespace = named_namespace(command);
            check_namespace(subsystem, namespace)?;
            done(controller.feature(id, namespace).into())
        }
        _ => Err(Status::INVALID_FIELD.dnr()),
    }
}
