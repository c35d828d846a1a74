//! Processes received commands: validates the capsule, waits for a buffer if needed, and starts the
//! operation.

use super::authenticate::is_authentication;
use super::receive::Receiving;
use super::slot::Stage;
use super::{LARGE_BYTES, Setup, TargetConnection};
use crate::namespace::Storage;
use crate::target::admin::{self, Reply};
use crate::target::buffer::Buffer;
use crate::target::controller::OpenQueue;
use crate::target::fabrics as fabrics_commands;
use crate::target::io::{self, IoRequest, Operation};
use crate::target::storage::OngoingOperation;
use crate::wire::command::io as io_opcode;
use crate::wire::command::{Command, FABRICS, Sgl, Status, connect, fabrics};
use crate::wire::pdu::{Fault, Kind, Layout, MAX_HEADER, Pdu, digest, encode};
use std::ops::Range;

/// The most data that an admin or Fabrics command receives.
const MAX_ADMIN_DATA: u32 = 8192;

/// A validated command: the I/O request if it is an I/O command, and the length of the host's data. Or the status with
/// which the command is refused.
type Plan = Result<(Option<IoRequest>, u32), Status>;

impl TargetConnection {
    /// Accepts a received command: moves the head of the queue and restarts the keep-alive timer. Returns a
    /// fault if the queue cannot take the command.
    pub(super) fn take_command(&mut self, layout: &Layout) -> Result<(), Fault> {
        let Some(queue) = &mut self.queue else {
            return match self.slots.in_use() {
                0 => Ok(()),
                _ => Err(Fault::of_sequence(layout.kind, "Connect is not completed yet")),
            };
        };
        if self.slots.in_use() - self.shutdown_flushes as usize >= usize::from(queue.entries) {
            let why = "the host has more commands in flight than its queue has entries";
            return Err(Fault::of_sequence(layout.kind, why));
        }
        queue.advance();
        // A host that is not authenticated must not keep the controller of another host alive.
        if queue.usable || queue.id == 0 {
            queue.controller.heard(self.now_ms);
        }
        Ok(())
    }

    /// Processes a command whose whole capsule was received. Returns false, and leaves the capsule in the input, if
    /// its data needs a buffer and none is available.
    #[inline]
    pub(super) fn receive_command(&mut self, command: Command, layout: &Layout) -> Result<bool, Fault> {
        let (at, length) = (layout.data_at(), layout.data_bytes as usize);
        let plan = self.plan(&command, layout.data_bytes);
        let mut buffer = None;
        if length > 0
            && plan.is_ok_and(|(request, _)| {
                request.is_none_or(|it| self.setup.subsystem.memory(it.namespace).is_none())
            })
        {
            buffer = self.buffer_for_capsule(&command, at, length);
            if buffer.is_none() {
                self.receiving = Receiving::Starved;
                return Ok(false);
            }
        }
        self.receiving = Receiving::Header;
        self.take_command(layout)?;
        let plan = match layout.data_digest && !self.has_right_digest(at, length) {
            true => plan.and(Err(Status::TRANSIENT_TRANSPORT_ERROR)),
            false => plan,
        };
        let fresh = self.remember_identifier(command.cid.get());
        let done = fresh && self.execute_at_once(&command, &plan, at..at + length);
        self.input.consume(layout.total_bytes());
        if !fresh {
            self.respond(command.cid.get(), Status::COMMAND_ID_CONFLICT.dnr(), 0);
        } else if !done {
            let slot = self.slots.insert(command);
            match plan {
                Ok((request, expected)) => {
                    let entry = self.slots.get_mut(slot);
                    (entry.request, entry.expected, entry.received) = (request, expected, layout.data_bytes);
                    entry.buffer = buffer;
                    self.execute(slot);
                }
                Err(status) => self.finish(slot, status, 0),
            }
        }
        Ok(true)
    }

    /// Returns true if the digest after a capsule's data is right. Otherwise reports it.
    fn has_right_digest(&self, at: usize, length: usize) -> bool {
        let (data, rest) = self.input.bytes()[at..].split_at(length);
        let right = rest.starts_with(&digest(data));
        if !right {
            self.report_digest_error();
        }
        right
    }

    /// Returns a buffer with the data of a capsule: `length` bytes from byte `at` of the input on. Returns `None` if
    /// no buffer is available.
    fn buffer_for_capsule(&self, command: &Command, at: usize, length: usize) -> Option<Buffer> {
        let share = &self.setup.share;
        let mut buffer = match &self.queue {
            Some(queue) if queue.id != 0 => {
                share.allocate_for_capsule(if command.opcode == io_opcode::COMPARE {
                    2 * length
                } else {
                    length
                })?
            }
            // One command at a time executes on an admin queue, so these buffers need no limit.
            _ => share.allocate_always(length),
        };
        buffer[..length].copy_from_slice(&self.input.bytes()[at..at + length]);
        Some(buffer)
    }

    /// Completes an I/O command at once if it concerns a namespace in memory, and its data is at `data` in the input.
    /// Such a command needs no slot. Returns false and does nothing for other commands, and for a read that must wait.
    #[inline]
    fn execute_at_once(&mut self, command: &Command, plan: &Plan, data: Range<usize>) -> bool {
        let Ok((Some(request), expected)) = *plan else { return false };
        let subsystem = &self.setup.subsystem;
        let Some(namespace) = subsystem.namespace(request.namespace) else { return false };
        let Storage::Memory(memory) = &namespace.storage else { return false };
        let cid = command.cid.get();
        if request.operation == Operation::Read {
            if !self.starved.is_empty() || !self.send_memory(cid, request) {
                return false;
            }
            self.tally.count(&request, Status::SUCCESS, &self.setup.subsystem);
            self.forget_identifier(cid);
            return true;
        }
        if data.len() < expected as usize {
            return false;
        }
        let result = io::execute_on_memory(memory, namespace, command, &request, &self.input.bytes()[data]);
        let status = result.err().unwrap_or(Status::SUCCESS);
        self.tally.count(&request, status, &self.setup.subsystem);
        if !status.is_success() {
            self.log_error(command, status);
        }
        self.complete(cid, status, 0);
        true
    }

    /// Validates a command and its SGL. `capsule_bytes` is the length of the data in the command's capsule.
    fn plan(&self, command: &Command, capsule_bytes: u32) -> Plan {
        // PSDT (bits 7:6) must say that an SGL describes the data: 01b or 10b. FUSE (bits 1:0) must be 0.
        if !matches!(command.flags >> 6, 1 | 2) || command.flags & 3 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let Some(queue) = &self.queue else {
            let is_connect = command.opcode == FABRICS && command.nsid.get() as u8 == fabrics::CONNECT;
            if !is_connect {
                return Err(Status::SEQUENCE_ERROR.dnr());
            }
            return Ok((None, received_bytes(&command.sgl, capsule_bytes)?));
        };
        if !queue.usable && !is_authentication(command) {
            return Err(Status::AUTHENTICATION_REQUIRED.dnr());
        }
        if command.opcode != FABRICS && !queue.controller.is_ready() {
            return Err(Status::SEQUENCE_ERROR.dnr());
        }
        if queue.id != 0 && command.opcode != FABRICS {
            let request = io::plan(command, &self.setup.subsystem)?;
            if request.operation.receives() {
                let bytes = received_bytes(&command.sgl, capsule_bytes)?;
                // For Dataset Management, accept 4096 bytes. Hosts such as Linux always send the longest
                // possible list of ranges.
                let longest = match request.operation {
                    Operation::Deallocate { .. } => 4096,
                    _ => request.data_bytes,
                };
                if bytes < request.data_bytes || bytes > longest {
                    return Err(Status::INVALID_SGL_LENGTH.dnr());
                }
                return Ok((Some(request), bytes));
            }
            sent_bytes(&command.sgl, capsule_bytes, request.data_bytes)?;
            return Ok((Some(request), 0));
        }
        if command.sends_data() && command.sgl.length.get() > 0 {
            let bytes = received_bytes(&command.sgl, capsule_bytes)?;
            return if bytes <= MAX_ADMIN_DATA {
                Ok((None, bytes))
            } else {
                Err(Status::INVALID_SGL_LENGTH.dnr())
            };
        }
        if capsule_bytes > 0 {
            return Err(Status::INVALID_SGL_LENGTH.dnr());
        }
        Ok((None, 0))
    }

    /// Carries a command out, or lets it wait for a buffer.
    pub(super) fn execute(&mut self, slot: u16) {
        // A command that needs a buffer joins the end of the queue of waiting commands. Otherwise, small
        // commands could overtake large ones, which would wait forever.
        if !self.starved.is_empty() && self.needs_buffer(slot) || !self.start(slot) {
            self.slots.get_mut(slot).stage = Stage::Starved;
            self.starved.push_back(slot);
        }
    }

    fn needs_buffer(&self, slot: u16) -> bool {
        let entry = self.slots.get(slot);
        let Some(request) = &entry.request else { return false };
        entry.received < entry.expected || request.operation == Operation::Read
    }

    /// Carries a command out, or asks the host for the command's data (R2T). Returns false if a buffer is
    /// needed but none is available. In this case, call the function again later.
    pub(super) fn start(&mut self, slot: u16) -> bool {
        let entry = self.slots.get_mut(slot);
        if entry.received < entry.expected {
            // A Compare on a file also reads the blocks into the buffer.
            let compares = entry.request.is_some_and(|request| request.operation == Operation::Compare);
            let bytes = entry.expected as usize * if compares { 2 } else { 1 };
            let Some(buffer) = self.setup.share.allocate(bytes) else { return false };
            entry.buffer = Some(buffer);
            entry.stage = Stage::Receiving;
            self.awaited += 1;
            self.awaited_large += u32::from(entry.expected >= LARGE_BYTES);
            let r2t = Pdu::transfer(Kind::R2t, 0, entry.command.cid.get(), slot, 0, entry.expected);
            let digests = self.rules.digests;
            self.output.append(MAX_HEADER, |out| encode(&r2t, 0, digests, 4, out));
            return true;
        }
        entry.stage = Stage::Executing;
        if entry.corrupted {
            self.finish(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
            return true;
        }
        match entry.request {
            None => {
                self.execute_admin(slot);
                true
            }
            Some(request) => self.execute_io(slot, request),
        }
    }

    /// Carries an I/O command out. Returns false if no buffer is available.
    fn execute_io(&mut self, slot: u16, request: IoRequest) -> bool {
        let namespace = self.setup.subsystem.namespace(request.namespace).expect("a validated namespace");
        let Storage::Memory(memory) = &namespace.storage else {
            return self.start_file_operation(slot, request);
        };
        if request.operation == Operation::Read {
            let sent = self.send_memory(self.slots.get(slot).command.cid.get(), request);
            if sent {
                self.release(slot, Status::SUCCESS);
            }
            return sent;
        }
        let entry = self.slots.get(slot);
        let data = entry.buffer.as_deref().unwrap_or_default();
        let result = io::execute_on_memory(memory, namespace, &entry.command, &request, data);
        self.finish(slot, result.err().unwrap_or(Status::SUCCESS), 0);
        true
    }

    fn execute_admin(&mut self, slot: u16) {
        let entry = self.slots.get(slot);
        let (command, cid) = (entry.command, entry.command.cid.get());
        let data = entry.data();
        if command.opcode == FABRICS && command.nsid.get() as u8 == fabrics::CONNECT {
            let result = match &self.queue {
                Some(_) => Err((Status::SEQUENCE_ERROR.dnr(), 0)),
                None => {
                    let Setup { subsystem, reach, peer, .. } = &self.setup;
                    fabrics_commands::connect(subsystem, reach, peer.ip(), &command, data)
                }
            };
            match result {
                Err((status, dword)) => {
                    let field = fabrics_commands::connect_field(dword);
                    let field = field.map_or_else(String::new, |field| format!("; its {field} is wrong"));
                    self.refuse(format_args!("Connect was refused: {status}{field}"));
                    self.finish(slot, status, dword.into());
                }
                Ok(queue) => {
                    let mut result = u32::from(queue.controller.id);
                    if !queue.usable {
                        result |= connect::AUTHENTICATION_REQUIRED;
                    }
                    self.setup.share.join(queue.controller.id);
                    let queue = self.queue.insert(queue);
                    if queue.usable && queue.id != 0 {
                        self.open_queue = Some(OpenQueue(queue.controller.clone()));
                    }
                    self.finish(slot, Status::SUCCESS, result.into());
                }
            }
            return;
        }
        if is_authentication(&command) {
            return self.authenticate(slot);
        }
        let Some(queue) = &mut self.queue else { return self.finish(slot, Status::SEQUENCE_ERROR.dnr(), 0) };
        let context = admin::Context {
            subsystem: &self.setup.subsystem,
            controller: &queue.controller,
            queue: queue.id,
            held: &mut queue.held,
            local: self.setup.local,
            now_ms: self.now_ms,
        };
        match admin::execute(context, &command) {
            Reply::Done(status, result) => self.finish(slot, status, result),
            Reply::Data(bytes) => {
                let bytes_wanted = command.sgl.length.get() as usize;
                if command.sgl.identifier != Sgl::TRANSPORT {
                    return self.finish(slot, Status::INVALID_SGL_TYPE.dnr(), 0);
                }
                if bytes.len() > bytes_wanted {
                    return self.finish(slot, Status::INVALID_SGL_LENGTH.dnr(), 0);
                }
                self.send_bytes(slot, &bytes);
            }
            Reply::Hold => {
                queue.held.push(cid);
                self.slots.remove(slot);
                self.report_events();
            }
            Reply::Abort(held) => {
                self.complete(held, Status::ABORT_REQUESTED, 0);
                self.finish(slot, Status::SUCCESS, 0);
            }
            Reply::Configured(transition) => {
                if transition.reset {
                    for held in std::mem::take(&mut queue.held) {
                        self.forget_identifier(held);
                    }
                }
                self.finish(slot, Status::SUCCESS, 0);
                if transition.shutdown {
                    self.flush_for_shutdown();
                }
            }
        }
        self.report_events();
    }

    /// Makes the data of all namespaces durable. Then reports to the host that the shutdown is complete. If flushes of
    /// an earlier shutdown are in progress, another round follows them: a host may begin any number of shutdowns.
    pub(super) fn flush_for_shutdown(&mut self) {
        self.flush_again = self.shutdown_flushes > 0;
        if self.flush_again || self.queue.as_ref().is_some_and(|queue| queue.controller.discovery) {
            return self.end_shutdown();
        }
        let subsystem = self.setup.subsystem.clone();
        for namespace in subsystem.namespaces.iter().filter(|it| it.has_volatile_cache() && !it.read_only) {
            let request = IoRequest {
                namespace: namespace.id,
                operation: Operation::Flush,
                offset: 0,
                length: 0,
                data_bytes: 0,
            };
            let slot = self.slots.insert(Command::new(crate::wire::command::io::FLUSH, namespace.id));
            let entry = self.slots.get_mut(slot);
            (entry.request, entry.internal) = (Some(request), true);
            entry.progress = Some(OngoingOperation::new(request, std::ptr::null_mut(), Vec::new(), false));
            self.shutdown_flushes += 1;
            self.ready.push_back(slot);
        }
        self.end_shutdown();
    }

    /// Reports that the shutdown is complete if no flush is left.
    pub(super) fn end_shutdown(&mut self) {
        if let (0, Some(queue)) = (self.shutdown_flushes, &self.queue) {
            queue.controller.shut_down();
        }
    }
}

/// Checks the SGL of a command whose data the host sends. Returns the length of the data. `capsule_bytes` is
/// the length of the data in the capsule.
fn received_bytes(sgl: &Sgl, capsule_bytes: u32) -> Result<u32, Status> {
    let length = sgl.length.get();
    match (sgl.identifier, capsule_bytes) {
        (Sgl::IN_CAPSULE, _) if sgl.address.get() != 0 => Err(Status::INVALID_SGL_OFFSET.dnr()),
        (Sgl::IN_CAPSULE, bytes) if bytes == length && length > 0 => Ok(length),
        (Sgl::TRANSPORT, 0) if length > 0 => Ok(length),
        (Sgl::IN_CAPSULE | Sgl::TRANSPORT, _) => Err(Status::INVALID_SGL_LENGTH.dnr()),
        _ => Err(Status::INVALID_SGL_TYPE.dnr()),
    }
}

/// Checks the SGL of a command that sends `bytes` bytes to the host.
fn sent_bytes(sgl: &Sgl, capsule_bytes: u32, bytes: u32) -> Result<(), Status> {
    if capsule_bytes != 0 {
        return Err(Status::INVALID_SGL_LENGTH.dnr());
    }
    match bytes {
        0 => Ok(()),
        _ if sgl.identifier != Sgl::TRANSPORT => Err(Status::INVALID_SGL_TYPE.dnr()),
        _ if sgl.length.get() != bytes => Err(Status::INVALID_SGL_LENGTH.dnr()),
        _ => Ok(()),
    }
}
