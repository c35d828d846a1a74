//! A connection of a host, as a state machine without I/O.
//!
//! The driver of a [`TargetConnection`] moves bytes and makes system calls. A driver is a worker thread with an
//! io_uring, a test or a fuzzing target.
//!
//! ```text
//!   socket --> space(), received() --> [ Connection ] --> send() --> socket
//!                                        |       ^
//!                     next_operation(), call()   returned()
//!                                        v       |
//!                                     file or block device
//! ```
//!
//! A connection carries one queue. After the ICReq, the first command must be Connect. It makes the
//! connection's queue an admin queue or an I/O queue of a controller. If the host must authenticate
//! itself, all other commands are refused until it has done so. The driver carries out slow computations of
//! an authentication: see [`TargetConnection::take_job`]. It also carries out operations on files. The connection
//! carries out operations on memory at once.
//!
//! **Memory.** The connection owns all memory that the driver passes to the kernel. The driver must keep the
//! connection until the kernel has returned every operation.
//!
//! **Bounds.** The queue's number of entries limits the commands in progress. Data buffers come from a share
//! of the thread's pool. If the host does not read its responses, the connection stops taking input.

mod authenticate;
mod command;
mod file_operation;
mod output;
mod receive;
mod respond;
mod slot;
#[cfg(test)]
mod tests;

pub use authenticate::AuthenticationJob;

use super::buffer::Share;
use super::controller::{OpenQueue, Reach};
use super::fabrics::Queue;
use super::half_open::Step;
use super::io::Tally;
use super::network::network;
use super::storage::Call;
use super::subsystem::Subsystem;
use crate::input::Input;
use crate::namespace::Storage;
use crate::wire::command::Status;
use crate::wire::pdu::{Digests, Fault, Rules, Sender, encode_termination};
use output::Output;
use receive::Receiving;
use slot::{Slots, Stage, Turn};
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The limit on output that waits to be sent, in bytes. Above it, the connection accepts no further input.
/// Otherwise, a host that does not receive could use up the memory.
const MAX_BACKLOG: usize = 4 << 20;

/// The least number of missing bytes of a command's data that are received directly into the command's
/// buffer. Fewer bytes are received into the input buffer and copied from there.
const DIRECT_BYTES: usize = 16 << 10;

/// While the target waits for data of a command of at least this size, it receives headers into `HEADER_BYTES` of
/// the input buffer only. Data that arrives there must be copied, which costs more than a further receive.
const LARGE_BYTES: u32 = 64 << 10;
/// See `LARGE_BYTES`. Several commands, or a header and the first bytes of its data, fit into it.
const HEADER_BYTES: usize = 4 << 10;

/// What a connection is created from.
#[derive(Debug)]
pub struct Setup {
    /// The subsystem.
    pub subsystem: Arc<Subsystem>,
    /// The connection's data buffers.
    pub share: Share,
    /// The inbox of the connection's thread, and the connection's number. Other threads use them to send
    /// messages to the connection.
    pub reach: Reach,
    /// The host's address.
    pub peer: SocketAddr,
    /// The address at which the host reached the target.
    pub local: SocketAddr,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The host violated the protocol. A termination request is in the output.
    Violation(Fault),
    /// The host sent a termination request, for this reason.
    Terminated(String),
    /// The host may not use the queue. One reason is that the authentication failed and one side has sent a
    /// failure message. The other is that the authentication succeeded, but the controller was reset in the
    /// meantime or already has this queue on another connection.
    Unauthenticated,
}

/// The memory into which the next bytes of the socket are received, as [`TargetConnection::spaces`] last returned
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    Nothing,
    Input,
    /// The data of a command goes into the command's buffer, and the bytes behind it into the input buffer.
    BufferAndInput,
}

/// A connection of a host.
#[derive(Debug)]
pub struct TargetConnection {
    pub(in crate::target) setup: Setup,
    /// False until the ICReq is processed.
    initialized: bool,
    rules: Rules,
    /// The data alignment that the host asked for, in bytes. It applies to the PDUs that the target sends.
    alignment: u8,
    input: Input,
    /// The memory that the last call of [`TargetConnection::spaces`] returned. It stays lent until the next call of
    /// [`TargetConnection::received`].
    lent: Lent,
    receiving: Receiving,
    /// The number of commands whose data an R2T has asked for, and whose data is not complete.
    awaited: u32,
    /// How many of these have at least `LARGE_BYTES` of data.
    awaited_large: u32,
    /// The number of bytes that the host has sent because of R2Ts.
    delivered: u64,
    /// The queue that the connection carries. `None` until the host has connected one.
    queue: Option<Queue>,
    slots: Slots,
    output: Output,
    /// The slots of commands whose file operations the connection's driver has to start.
    ready: VecDeque<u16>,
    /// The slots of commands that wait for a buffer, in order.
    starved: VecDeque<u16>,
    /// The command identifiers in progress: bit n % 64 of word n / 64 stands for identifier n.
    identifiers: Vec<u64>,
    /// The number of flushes in progress for which a shutdown of the controller waits.
    shutdown_flushes: u32,
    /// True if another shutdown has begun meanwhile, so the flushes must be repeated.
    flush_again: bool,
    /// Counts of completed commands that are not yet added to the counters of their namespaces.
    tally: Tally,
    /// A computation of the authentication for another thread to run. `None` if nothing waits to be computed.
    job: Option<AuthenticationJob>,
    /// The slot of the command Authentication Send whose message another thread processes. `None` if there is
    /// no such command.
    computing: Option<u16>,
    /// True if a failed authentication was counted and logged.
    failure_reported: bool,
    /// When the current authentication began.
    authenticating_since_ms: Option<u64>,
    /// Counts this connection as an open queue of its controller, until nothing is in progress.
    open_queue: Option<OpenQueue>,
    end: Option<End>,
    draining: bool,
    now_ms: u64,
}

impl TargetConnection {
    /// Creates the state of a connection that was just accepted.
    pub fn new(setup: Setup) -> Self {
        let limits = &setup.subsystem.limits;
        let rules = Rules {
            sender: Sender::Host,
            digests: Digests::default(),
            alignment: 4,
            max_capsule_data: limits.capsule_data_bytes.max(8192),
            max_data: limits.transfer_bytes(),
        };
        Self {
            setup,
            initialized: false,
            rules,
            alignment: 4,
            input: Input::default(),
            lent: Lent::Nothing,
            receiving: Receiving::Header,
            awaited: 0,
            awaited_large: 0,
            delivered: 0,
            queue: None,
            slots: Slots::default(),
            output: Output::default(),
            ready: VecDeque::new(),
            starved: VecDeque::new(),
            identifiers: Vec::new(),
            shutdown_flushes: 0,
            flush_again: false,
            tally: Tally::default(),
            job: None,
            computing: None,
            failure_reported: false,
            authenticating_since_ms: None,
            open_queue: None,
            end: None,
            draining: false,
            now_ms: 0,
        }
    }

    /// Returns the first part of [`TargetConnection::spaces`].
    pub fn space(&mut self) -> Option<&mut [u8]> {
        self.spaces().map(|[first, _]| first)
    }

    /// Returns the memory for the next received bytes, or `None` if no input is wanted now. Bytes go to the second
    /// part, which may be empty, only when the first is full. The memory stays in place until
    /// [`TargetConnection::received`] is called.
    pub fn spaces(&mut self) -> Option<[&mut [u8]; 2]> {
        if self.end.is_some() || self.draining || self.output.pending_bytes() > MAX_BACKLOG {
            return None;
        }
        let most = if self.awaited_large > 0 { HEADER_BYTES } else { usize::MAX };
        match &self.receiving {
            Receiving::Starved => None,
            Receiving::Data { slot, at, left, .. }
                if *left >= DIRECT_BYTES && self.input.bytes().is_empty() =>
            {
                self.lent = Lent::BufferAndInput;
                let buffer = self.slots.get_mut(*slot).buffer.as_mut().expect("a buffer for the data");
                Some([&mut buffer[*at..*at + *left], self.input.lend(most)])
            }
            _ => {
                self.lent = Lent::Input;
                Some([self.input.lend(most), &mut []])
            }
        }
    }

    /// Processes the first `count` bytes of the memory that [`TargetConnection::spaces`] returned. `now_ms` is the
    /// time on the subsystem's clock.
    pub fn received(&mut self, count: usize, now_ms: u64) {
        self.now_ms = now_ms;
        match (std::mem::replace(&mut self.lent, Lent::Nothing), &mut self.receiving) {
            (Lent::Input, _) => self.input.received(count),
            (Lent::BufferAndInput, Receiving::Data { slot, at, left, digest }) => {
                let (count, further) = (count.min(*left), count.saturating_sub(*left));
                self.input.received(further);
                if let Some(digest) = digest {
                    let buffer = self.slots.get(*slot).buffer.as_ref().expect("a buffer for the data");
                    digest.update(&buffer[*at..*at + count]);
                }
                *at += count;
                *left -= count;
                self.delivered += count as u64;
            }
            (Lent::BufferAndInput | Lent::Nothing, _) => {
                panic!("bytes that were received without space for them")
            }
        }
        self.proceed();
    }

    /// Processes the received bytes as far as possible. Ends the connection if they violate the protocol.
    fn proceed(&mut self) {
        while self.end.is_none() && !self.draining && self.output.pending_bytes() <= MAX_BACKLOG {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => self.terminate(fault),
            }
        }
        self.tally.flush(&self.setup.subsystem);
    }

    /// Logs a warning about the host.
    fn warn(&self, text: fmt::Arguments<'_>) {
        self.setup.subsystem.warn(format_args!("{}: {text}", self.setup.peer));
    }

    /// Counts a refusal and logs it.
    fn refuse(&self, text: fmt::Arguments<'_>) {
        self.setup.subsystem.counters.refused.fetch_add(1, Relaxed);
        self.warn(text);
    }

    /// Ends the connection with a termination request.
    fn terminate(&mut self, fault: Fault) {
        self.setup.subsystem.counters.violations.fetch_add(1, Relaxed);
        self.warn(format_args!("{fault}; the connection is closed"));
        let (rules, input) = (&self.rules, self.input.bytes());
        self.output.append(152, |out| encode_termination(rules, &fault, input, out));
        self.input.clear();
        self.end = Some(End::Violation(fault));
    }

    /// Returns the number of bytes to send.
    pub fn pending_bytes(&self) -> usize {
        self.output.pending_bytes()
    }

    /// Passes the next bytes to `call`, which sends some of them and returns their number, or a negative number. Returns
    /// the result of `call`. `reader` is the number of the calling thread among those that pin memory of namespaces.
    /// `vectors` is space for the list of memory ranges. Call [`TargetConnection::resume`] after bytes were sent.
    pub fn send(
        &mut self,
        reader: usize,
        vectors: &mut Vec<libc::iovec>,
        call: impl FnOnce(&mut [libc::iovec]) -> isize,
    ) -> isize {
        self.output.send(&self.setup.subsystem, reader, vectors, call)
    }

    /// Moves all bytes to send to `to`. Used by tests that have no socket.
    pub fn take_output(&mut self, to: &mut Vec<u8>) {
        self.output.take(&self.setup.subsystem, to);
    }

    /// Returns why the connection ends, or `None` if it does not end. If it ends, send the remaining output
    /// and close the socket.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Returns true if the host has connected a queue, and has authenticated itself if it must.
    pub fn is_connected(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.usable)
    }

    /// Returns how far the connection has come if the host may not use its queue yet, else `None`.
    pub fn half_open_step(&self) -> Option<Step> {
        match &self.queue {
            Some(queue) if queue.usable => None,
            _ if self.end.is_some() => Some(Step::Silent),
            Some(_) => Some(Step::Connected),
            None if self.initialized => Some(Step::Initialized),
            None => Some(Step::Silent),
        }
    }

    /// Returns true if the connection carries an admin queue.
    pub fn is_admin(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.id == 0)
    }

    /// Returns true if the target waits for data that it has asked the host for.
    pub fn awaits_data(&self) -> bool {
        self.awaited > 0 && !matches!(self.receiving, Receiving::Starved)
    }

    /// Returns how many bytes of the data that the target asked for have arrived.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Stops taking input. Commands in progress whose data was received still complete.
    pub fn drain(&mut self) {
        self.draining = true;
        // Drop a job that no thread has taken yet. The target ends the thread for jobs before it drains
        // connections, so no thread would run the job.
        self.job = None;
        if let Some(slot) = self.computing.take() {
            self.finish(slot, Status::ABORT_REQUESTED, 0);
        }
    }

    /// Returns true if draining has finished, which means that no command is executing. An admin queue is
    /// drained last, when its controller has no I/O queues. Otherwise the end of the admin queue would close
    /// the connections of the I/O queues.
    pub fn is_drained(&self) -> bool {
        let has_io_queues = |queue: &Queue| queue.id == 0 && !queue.controller.io_queues().is_empty();
        self.draining
            && !self.slots.any(|slot| slot.stage == Stage::Executing)
            && !self.queue.as_ref().is_some_and(has_io_queues)
    }

    /// Returns the slot of a command whose file operation must be started. Then call [`TargetConnection::call`],
    /// which returns the operation's first system call.
    pub fn next_operation(&mut self) -> Option<u16> {
        self.ready.pop_front()
    }

    /// Returns the next system call of a command's file operation, and the file. Returns `None` if the command has to
    /// wait for a flush of another one: the message `Flush` says how to continue.
    ///
    /// # Panics
    /// If the command has no file operation.
    pub fn call(&mut self, slot: u16) -> Option<(RawFd, Call)> {
        let Setup { subsystem, reach, .. } = &self.setup;
        let entry = self.slots.get_mut(slot);
        let id = entry.namespace();
        let progress = entry.progress.as_mut().expect("a command with a file operation");
        let namespace = subsystem.namespace(id).expect("a validated namespace");
        let Storage::File(file) = &namespace.storage else { unreachable!("memory needs no calls") };
        let call = progress.call();
        if call == Call::Sync
            && entry.turn == Turn::None
            && !subsystem.flushes[id as usize - 1].begin(|| (reach.clone(), slot))
        {
            entry.turn = Turn::Waits;
            return None;
        }
        if call == Call::Sync {
            // A flush that waits is called again when it is its turn.
            entry.turn = Turn::Flushes;
        }
        let durable = matches!(call, Call::Write { durable: true, .. });
        Some((if durable { file.durable_descriptor() } else { file.descriptor() }, call))
    }

    /// Processes the result of a system call. Returns true if [`TargetConnection::call`] returns a further call.
    pub fn returned(&mut self, slot: u16, result: i32, now_ms: u64) -> bool {
        self.now_ms = now_ms;
        let subsystem = &self.setup.subsystem;
        let entry = self.slots.get_mut(slot);
        let id = entry.namespace();
        let namespace = subsystem.namespace(id).expect("a validated namespace");
        let progress = entry.progress.as_mut().expect("a command with a file operation");
        match progress.returned(result, namespace) {
            None => true,
            Some(status) => {
                entry.progress = None;
                if entry.turn == Turn::Flushes {
                    subsystem.flushes[id as usize - 1].end(result);
                }
                self.operation_done(slot, status);
                self.proceed();
                false
            }
        }
    }

    /// Returns true if commands wait for buffers, or if received data waits for a buffer.
    pub fn is_starved(&self) -> bool {
        !self.starved.is_empty() || matches!(self.receiving, Receiving::Starved)
    }

    /// Continues with commands and input that had to wait. Call this after output was sent. If
    /// [`TargetConnection::is_starved`] returns true, also call it when buffers became free.
    pub fn resume(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        while let Some(slot) = self.starved.front().copied() {
            if !self.start(slot) {
                break;
            }
            self.starved.pop_front();
        }
        self.proceed();
    }

    /// Completes the host's waiting Asynchronous Event Requests, one for each event that can be reported now.
    pub fn report_events(&mut self) {
        while let Some(queue) = self.queue.as_mut()
            && let Some(cid) = queue.held.first().copied()
            && let Some(event) = queue.controller.next_event()
        {
            queue.held.remove(0);
            self.complete(cid, Status::SUCCESS, event.into());
        }
    }

    /// Ends the controller of the connection's queue, because the host uses the queue too slowly. Other queues of the
    /// controller may wait for the memory that this queue holds, and would then hold it as long. A host that loses one
    /// queue connects all of them again. Does nothing if the queue came from another address than the admin queue, because
    /// a stranger who knows the host's name may have connected it.
    pub fn end_controller(&self) {
        let source = network(self.setup.peer.ip());
        let ends = |queue: &&Queue| queue.usable && queue.controller.source == source;
        if let Some(queue) = self.queue.as_ref().filter(ends) {
            self.setup.subsystem.end(&queue.controller);
        }
    }

    /// Removes the queue from its controller. Call this when the connection has ended, because other threads
    /// must not reach it any more. The end of the admin queue ends the controller.
    pub fn disconnected(&mut self) {
        // Stop taking input, because received bytes that are not processed yet must not take effect any more.
        self.draining = true;
        self.job = None;
        self.starved.clear();
        let Some(queue) = self.queue.take() else { return };
        if queue.id == 0 {
            self.setup.subsystem.end(&queue.controller);
        } else if queue.usable {
            queue.controller.remove_queue(queue.id, &self.setup.reach);
        }
    }
}
