//! The host's side of a connection as a state machine without I/O.
//!
//! ```text
//!   submit --> slot (command, buffer) --> outbox --> transmit_slices / transmitted --> socket
//!   next_done <-- done <-- slot <-- inbox <-- receive_slices / received <------------- socket
//! ```
//!
//! The caller sends the bytes that [`HostConnection::transmit_slices`] returns. It receives into the memory that
//! [`HostConnection::receive_slices`] returns: the part of a command's buffer whose data is still missing, and the
//! input buffer for headers.
//!
//! Everything that the controller sends is checked before it is used. Data goes only into the buffer of a
//! read in flight, in order. A violation is returned as a [`Failure`]; the connection must then be closed.

mod command;
mod inbox;
mod outbox;
mod receive;
#[cfg(test)]
mod tests;

pub use command::{Done, Failure, Submission};

use super::Buffer;
use crate::wire::command::{Completion, Sgl, Status};
use crate::wire::pdu::{Digests, Fault, Kind, Pdu, Rules, Sender, encode_termination};
use command::Slot;
use inbox::{ReceivedBytes, SMALL_SPACE};
use outbox::Outbox;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// A command identifier holds the slot's index in this number of low bits. The other bits count the uses of
/// the slot, which reveals a late completion of an earlier command.
const INDEX_BITS: u32 = 12;
/// The most entries of a queue.
pub const MAX_ENTRIES: u32 = 1 << INDEX_BITS;

/// A connection.
#[derive(Debug)]
pub struct HostConnection {
    rules: Rules,
    ready: bool,
    closed: bool,
    /// The most bytes of a write's data that are sent within the command capsule.
    pub(in crate::initiator) max_capsule_data: u32,
    max_h2c_data: u32,
    /// The alignment of the data in sent PDUs, in bytes. The controller requests this alignment in its
    /// ICResp.
    alignment: u8,
    slots: Vec<Slot>,
    free: Vec<u16>,
    outbox: Outbox,
    inbox: ReceivedBytes,
    done: VecDeque<Done>,
    /// The number of held commands in flight.
    held: usize,
    /// The number of calls of [`HostConnection::tick`].
    ticks: u32,
    /// The number of commands that were submitted.
    submitted: u64,
    /// The lowest [`Slot::order`] of the commands that made progress since the last tick.
    progressed: u64,
}

impl HostConnection {
    /// Creates a connection and queues its ICReq. At most `entries` - 1 commands are in flight at a time. A
    /// write sends up to `max_capsule_data` bytes in its capsule.
    ///
    /// # Panics
    /// If `entries` is not 2 to [`MAX_ENTRIES`].
    pub fn new(digests: Digests, entries: u32, max_capsule_data: u32) -> Self {
        assert!((2..=MAX_ENTRIES).contains(&entries), "{entries} entries");
        let rules = Rules {
            sender: Sender::Controller,
            digests,
            alignment: 4,
            max_capsule_data: 0,
            max_data: u32::MAX,
        };
        let mut outbox = Outbox::default();
        outbox.push(&Pdu::initialization(Kind::IcReq, digests, 0), 0, digests, 4);
        Self {
            rules,
            ready: false,
            closed: false,
            max_capsule_data,
            max_h2c_data: 0,
            alignment: 4,
            slots: (0..entries - 1).map(|_| Slot::default()).collect(),
            free: (0..entries as u16 - 1).rev().collect(),
            outbox,
            inbox: ReceivedBytes::default(),
            done: VecDeque::new(),
            held: 0,
            ticks: 0,
            submitted: 0,
            progressed: u64::MAX,
        }
    }

    /// Returns true if the ICResp has arrived, so commands can be submitted.
    pub fn is_ready(&self) -> bool {
        self.ready && !self.closed
    }

    /// Returns the number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the number of commands in flight that the controller must answer soon.
    pub fn awaited(&self) -> usize {
        self.in_flight() - self.held
    }

    /// Counts a unit of time. Returns the largest number of units that a command has waited without progress. Held
    /// commands do not count.
    ///
    /// A command makes progress when data of it moves, or when a command that was submitted before it makes progress or
    /// completes: on a slow link, a command waits for the data of those before it. Later commands do not count, so
    /// they cannot hide a command that the controller has lost.
    pub fn tick(&mut self) -> u32 {
        self.ticks = self.ticks.wrapping_add(1);
        let (ticks, progressed) = (self.ticks, std::mem::replace(&mut self.progressed, u64::MAX));
        let awaited = self.slots.iter_mut().filter(|slot| slot.command.is_some() && !slot.held);
        let waited = awaited.map(|slot| {
            if slot.order >= progressed {
                slot.progress_tick = ticks;
            }
            ticks.wrapping_sub(slot.progress_tick)
        });
        waited.max().unwrap_or(0)
    }

    /// Returns the number of commands that can be submitted now.
    pub fn available(&self) -> usize {
        if self.is_ready() { self.free.len() } else { 0 }
    }

    /// Queues a command for sending.
    ///
    /// # Errors
    /// Returns the submission if [`HostConnection::available`] is 0.
    ///
    /// # Panics
    /// If the buffer has 4 GiB or more.
    pub fn submit(&mut self, submission: Submission) -> Result<(), Submission> {
        self.submit_as(submission, false)
    }

    /// Queues a command that the controller may leave unanswered for any time, such as an Asynchronous Event Request.
    ///
    /// # Errors
    /// As for [`HostConnection::submit`].
    pub fn submit_held(&mut self, submission: Submission) -> Result<(), Submission> {
        self.submit_as(submission, true)
    }

    fn submit_as(&mut self, submission: Submission, held: bool) -> Result<(), Submission> {
        if !self.is_ready() {
            return Err(submission);
        }
        let Some(index) = self.free.pop() else { return Err(submission) };
        let Submission { token, mut command, buffer } = submission;
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        command.cid = (index | slot.generation << INDEX_BITS).into();
        let len = buffer.as_ref().map_or(0, Buffer::len);
        let len = u32::try_from(len).expect("a buffer below 4 GiB");
        let in_capsule = len > 0 && command.sends_data() && len <= self.max_capsule_data;
        command.sgl = if in_capsule { Sgl::in_capsule(len) } else { Sgl::transport(len) };
        let sent = if in_capsule { len } else { 0 };
        self.outbox.push(&Pdu::new(Kind::CapsuleCmd, 0, command), sent, self.rules.digests, self.alignment);
        if in_capsule {
            let bytes = buffer.as_ref().expect("a write has a buffer").bytes();
            self.outbox.push_data(index, 0, bytes, self.rules.digests.data);
        }
        *slot = Slot {
            generation: slot.generation,
            held,
            order: self.submitted,
            progress_tick: self.ticks,
            token,
            command: Some(command),
            transferred: sent,
            queued: u32::from(in_capsule),
            by_r2t: len > 0 && command.sends_data() && !in_capsule,
            buffer,
            ..Slot::default()
        };
        self.submitted += 1;
        self.held += usize::from(held);
        Ok(())
    }

    /// Returns true if the connection has bytes to send.
    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Fills `slices` with the next bytes to send. Returns how many slices it filled.
    pub fn transmit_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let slots = &self.slots;
        self.outbox.slices(slices, |slot| {
            slots[usize::from(slot)].buffer.as_ref().expect("queued data has a buffer").bytes()
        })
    }

    /// Removes the first `bytes` bytes from the output, after they were sent.
    pub fn transmitted(&mut self, bytes: usize) {
        let mut bytes = bytes;
        while let Some(data) = self.outbox.sent(&mut bytes) {
            let slot = &mut self.slots[usize::from(data.slot)];
            slot.count_moved(data.bytes as u32, &mut self.progressed);
            slot.queued -= u32::from(data.ended);
            if slot.queued == 0
                && let Some(completion) = slot.completion.take()
            {
                self.release(data.slot, completion);
            }
        }
    }

    /// Returns the memory for the next received bytes. The first slice is the part of a command's buffer
    /// whose data is still missing. It may be empty. The second slice is space for headers. Fill the first slice
    /// before the second.
    pub fn receive_slices(&mut self) -> [IoSliceMut<'_>; 2] {
        let ReceivedBytes { payload, input, expect_large, .. } = &mut self.inbox;
        let (data, large): (&mut [u8], bool) = match payload {
            Some(payload) if payload.remaining > 0 => {
                let slot = &mut self.slots[usize::from(payload.slot)];
                let buffer = slot.buffer.as_mut().expect("a read has a buffer");
                let range = payload.at as usize..(payload.at + payload.remaining) as usize;
                (&mut buffer.bytes_mut()[range], payload.large)
            }
            _ => (&mut [], *expect_large),
        };
        let most = if large { SMALL_SPACE } else { usize::MAX };
        [IoSliceMut::new(data), IoSliceMut::new(input.lend(most))]
    }

    /// Processes the `bytes` bytes that were received into [`HostConnection::receive_slices`].
    ///
    /// # Errors
    /// A violation of the protocol or a termination. Then close the connection and call
    /// [`HostConnection::fail`].
    ///
    /// # Panics
    /// If `bytes` exceeds the slices.
    pub fn received(&mut self, bytes: usize) -> Result<(), Failure> {
        let mut rest = bytes;
        if let Some(payload) = &mut self.inbox.payload {
            let direct = rest.min(payload.remaining as usize);
            let slot = &mut self.slots[usize::from(payload.slot)];
            payload.advance(direct as u32, slot.buffer.as_ref().expect("a read has a buffer"));
            slot.count_moved(direct as u32, &mut self.progressed);
            rest -= direct;
        }
        self.inbox.input.received(rest);
        let result = self.process();
        self.closed |= result.is_err();
        result
    }

    /// Returns the next completed command, or `None` if no further command has completed.
    pub fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Closes the connection. Commands in flight complete with [`Status::HOST_PATH_ERROR`], unless their
    /// completion has already arrived.
    pub fn fail(&mut self) {
        self.closed = true;
        self.inbox.payload = None;
        self.outbox = Outbox::default();
        for index in 0..self.slots.len() {
            if self.slots[index].command.is_some() {
                let lost = Completion::new(0, Status::HOST_PATH_ERROR, 0, 0, 0);
                let completion = self.slots[index].completion.take().unwrap_or(lost);
                self.release(index as u16, completion);
            }
        }
    }

    /// Writes the termination request for `fault`, which the connection has just reported, into `out`. Returns the
    /// number of bytes written, at most 152.
    pub fn encode_termination(&self, fault: &Fault, out: &mut [u8]) -> usize {
        encode_termination(&self.rules, fault, self.inbox.input.bytes(), out)
    }

    fn release(&mut self, index: u16, completion: Completion) {
        let slot = &mut self.slots[usize::from(index)];
        slot.queued = 0;
        self.held -= usize::from(slot.held);
        if !slot.held {
            self.progressed = self.progressed.min(slot.order);
        }
        self.done.push_back(Done {
            token: slot.token,
            command: slot.command.take().expect("a command in flight"),
            completion,
            buffer: slot.buffer.take(),
        });
        self.free.push(index);
    }
}
