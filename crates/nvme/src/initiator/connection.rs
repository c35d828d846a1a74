//! The host's side of a connection as a state machine without I/O.
//!
//! ```text
//!   submit --> slot (command, buffer) --> outbox --> transmit_slices / transmitted --> socket
//!   next_done <-- done <-- slot <-- inbox <-- receive_slices / received <------------- socket
//! ```
//!
//! Everything that the controller sends is checked before it is used. Data goes only into the buffer of a
//! read in flight, in order. A violation is returned as a [`Fault`]; the connection must then be closed.

mod inbox;
mod outbox;
#[cfg(test)]
mod tests;

use super::Buffer;
use crate::command::{Command, Completion, Sgl, Status};
use crate::pdu::{
    CapsuleCmd, Data, Digests, FatalStatus, Fault, IcReq, Kind, R2t, Rules, Sender, Termination, data_flags,
};
use inbox::{Inbox, Payload};
use outbox::Outbox;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

/// The number of low bits of a command identifier that hold the slot's index. The others count its uses, to
/// detect late completions.
const INDEX_BITS: u32 = 12;
/// The most entries of a queue.
pub const MAX_ENTRIES: u32 = 1 << INDEX_BITS;

/// A command to send.
#[derive(Debug)]
pub struct Request {
    /// A number that the caller chooses. It is returned with the completion.
    pub token: u64,
    /// The command. The connection sets its identifier and, if there is a buffer, its SGL.
    pub command: Command,
    /// The memory to read into or write from. Its length is the length of the transfer.
    pub buffer: Option<Buffer>,
}

/// A command that has completed.
#[derive(Debug)]
pub struct Done {
    /// The token of the request: a number that the caller chose.
    pub token: u64,
    /// The command, for example to retry it.
    pub command: Command,
    /// The completion. If the connection failed before the command completed, its status is
    /// [`Status::HOST_PATH_ERROR`].
    pub completion: Completion,
    /// The buffer of the request, if it had one. After a successful read it holds the data.
    pub buffer: Option<Buffer>,
}

impl Done {
    /// Returns the status.
    pub fn status(&self) -> Status {
        self.completion.status()
    }
}

/// Why a connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The controller violated the protocol.
    Fault(Fault),
    /// The controller sent a termination request.
    Terminated(Termination),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Fault(fault)
    }
}

#[derive(Debug, Default)]
struct Slot {
    /// The number of commands that have used this slot. It becomes part of the next command's identifier.
    generation: u16,
    in_flight: bool,
    token: u64,
    command: Option<Command>,
    buffer: Option<Buffer>,
    /// For a read, the number of bytes received. For a write, the number of bytes sent in the capsule or
    /// requested by R2T.
    transferred: u32,
    /// The number of data segments of this slot that are still in the outbox.
    queued: u32,
    /// True if the controller requests the command's data by R2T. False if the data is in the capsule, or
    /// there is none.
    by_r2t: bool,
    /// True if a digest of data received for this command was wrong.
    corrupted: bool,
    /// The completion, if it arrived while data segments of this slot are still in the outbox.
    completion: Option<Completion>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    rules: Rules,
    ready: bool,
    closed: bool,
    max_capsule_data: u32,
    max_h2c_data: u32,
    /// The alignment, in bytes, of the data in sent PDUs. The controller requests it in its ICResp.
    alignment: u8,
    slots: Vec<Slot>,
    free: Vec<u16>,
    outbox: Outbox,
    inbox: Inbox,
    done: VecDeque<Done>,
}

impl Connection {
    /// Creates a connection and queues its ICReq. At most `entries` - 1 commands can be in flight. A write
    /// sends up to `max_capsule_data` bytes in its capsule.
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
        outbox.push(&IcReq::new(digests, 1), 0, digests, 4);
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
            inbox: Inbox::default(),
            done: VecDeque::new(),
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

    /// Returns the number of commands that can be submitted now.
    pub fn available(&self) -> usize {
        if self.is_ready() { self.free.len() } else { 0 }
    }

    /// Sets the most bytes of a write that travel with its command.
    pub fn set_max_capsule_data(&mut self, bytes: u32) {
        self.max_capsule_data = bytes;
    }

    /// Queues a command for sending.
    ///
    /// # Errors
    /// Returns the request if [`Connection::available`] is 0.
    ///
    /// # Panics
    /// If the buffer has 4 GiB or more.
    #[allow(clippy::result_large_err, reason = "the request is returned to its owner")]
    pub fn submit(&mut self, request: Request) -> Result<(), Request> {
        if !self.is_ready() {
            return Err(request);
        }
        let Some(index) = self.free.pop() else { return Err(request) };
        let Request { token, mut command, buffer } = request;
        let slot = &mut self.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        command.cid = (index | slot.generation << INDEX_BITS).into();
        let len = buffer.as_ref().map_or(0, Buffer::len);
        let len = u32::try_from(len).expect("a buffer below 4 GiB");
        let in_capsule = len > 0 && command.sends_data() && len <= self.max_capsule_data;
        command.sgl = if in_capsule { Sgl::in_capsule(len) } else { Sgl::transport(len) };
        let sent = if in_capsule { len } else { 0 };
        self.outbox.push(&CapsuleCmd::new(command), sent, self.rules.digests, self.alignment);
        if in_capsule {
            let bytes = buffer.as_ref().expect("a write has a buffer").bytes();
            self.outbox.push_data(index, 0, bytes, self.rules.digests.data);
        }
        *slot = Slot {
            generation: slot.generation,
            in_flight: true,
            token,
            command: Some(command),
            transferred: sent,
            queued: u32::from(in_capsule),
            by_r2t: len > 0 && command.sends_data() && !in_capsule,
            corrupted: false,
            completion: None,
            buffer,
        };
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
        while let Some(index) = self.outbox.sent(&mut bytes) {
            let slot = &mut self.slots[usize::from(index)];
            slot.queued -= 1;
            if slot.queued == 0
                && let Some(completion) = slot.completion.take()
            {
                self.release(index, completion);
            }
        }
    }

    /// Returns where the next received bytes go: the rest of a command's buffer, which may be empty, and
    /// scratch space. Fill the first slice before the second.
    pub fn receive_slices(&mut self) -> [IoSliceMut<'_>; 2] {
        let Inbox { payload, scratch, expect_large, .. } = &mut self.inbox;
        let (data, large): (&mut [u8], bool) = match payload {
            Some(payload) if payload.remaining > 0 => {
                let slot = &mut self.slots[usize::from(payload.slot)];
                let buffer = slot.buffer.as_mut().expect("a read has a buffer");
                let range = payload.at as usize..(payload.at + payload.remaining) as usize;
                (&mut buffer.bytes_mut()[range], payload.large)
            }
            _ => (&mut [], *expect_large),
        };
        [IoSliceMut::new(data), IoSliceMut::new(scratch.space(large))]
    }

    /// Processes the `bytes` bytes that were received into [`Connection::receive_slices`].
    ///
    /// # Errors
    /// A violation of the protocol or a termination. Then close the connection and call
    /// [`Connection::fail`].
    ///
    /// # Panics
    /// If `bytes` exceeds the slices.
    pub fn received(&mut self, bytes: usize) -> Result<(), Failure> {
        let mut rest = bytes;
        if let Some(payload) = &mut self.inbox.payload {
            let direct = rest.min(payload.remaining as usize);
            let slot = &self.slots[usize::from(payload.slot)];
            payload.advance(direct as u32, slot.buffer.as_ref().expect("a read has a buffer"));
            rest -= direct;
        }
        self.inbox.scratch.filled(rest);
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
            if self.slots[index].in_flight {
                let lost = Completion::new(0, Status::HOST_PATH_ERROR, 0, 0, 0);
                let completion = self.slots[index].completion.take().unwrap_or(lost);
                self.release(index as u16, completion);
            }
        }
    }

    /// Returns the header of the last received PDU, or its first 8 bytes if these are invalid. A termination
    /// request sends it back.
    pub fn faulty_pdu(&self) -> &[u8] {
        self.inbox.faulty_pdu()
    }

    fn process(&mut self) -> Result<(), Failure> {
        loop {
            if self.inbox.payload.is_some() && !self.take_payload()? {
                return Ok(());
            }
            let Some(header) = self.inbox.next_header(&self.rules)? else { return Ok(()) };
            match header {
                inbox::Received::IcResp { digests, alignment, max_h2c_data } => {
                    self.negotiated(digests, alignment, max_h2c_data)?;
                }
                inbox::Received::Termination(termination) => return Err(Failure::Terminated(termination)),
                _ if !self.ready => {
                    let why = "the first PDU of a controller must be an ICResp";
                    let status = FatalStatus::SequenceError;
                    return Err(fault(status, header.kind(), "PDU-Type", 0, header.kind() as u32, why).into());
                }
                inbox::Received::Completion(completion) => self.completed(completion)?,
                inbox::Received::Data(data, flags) => self.data(&data, flags)?,
                inbox::Received::R2t(r2t) => self.ready_to_transfer(&r2t)?,
            }
        }
    }

    fn negotiated(&mut self, digests: Digests, alignment: u8, max_h2c_data: u32) -> Result<(), Fault> {
        if self.ready {
            let why = "the connection is already initialized";
            return Err(fault(FatalStatus::SequenceError, Kind::IcResp, "PDU-Type", 0, 1, why));
        }
        if digests != self.rules.digests {
            let why = "the controller uses other digests than requested; choose other digests";
            let found = digests.bits().into();
            return Err(fault(FatalStatus::UnsupportedParameter, Kind::IcResp, "DGST", 11, found, why));
        }
        self.alignment = alignment;
        self.max_h2c_data = max_h2c_data;
        self.ready = true;
        Ok(())
    }

    /// Returns the slot of the command in flight with identifier `cid`. If there is none, returns a fault
    /// for the field at `offset` of a PDU of type `kind`.
    fn find(&mut self, cid: u16, kind: Kind, offset: u32) -> Result<u16, Fault> {
        let index = cid & (MAX_ENTRIES as u16 - 1);
        match self.slots.get(usize::from(index)) {
            Some(slot)
                if slot.in_flight
                    && slot.completion.is_none()
                    && slot.command.as_ref().is_some_and(|command| command.cid.get() == cid) =>
            {
                Ok(index)
            }
            _ => {
                let field = if kind == Kind::CapsuleResp { "CID" } else { "CCCID" };
                let why = "no command in flight has this identifier";
                Err(fault(FatalStatus::InvalidHeaderField, kind, field, offset, cid.into(), why))
            }
        }
    }

    fn completed(&mut self, completion: Completion) -> Result<(), Fault> {
        let index = self.find(completion.cid.get(), Kind::CapsuleResp, 20)?;
        self.finish(index, completion, Kind::CapsuleResp)
    }

    fn data(&mut self, header: &Data, flags: u8) -> Result<(), Fault> {
        let index = self.find(header.cccid.get(), Kind::C2hData, 8)?;
        let slot = &self.slots[usize::from(index)];
        let len = match (&slot.command, &slot.buffer) {
            (Some(command), Some(buffer)) if command.receives_data() => buffer.len() as u32,
            _ => {
                let why = "the command with this identifier receives no data";
                let found = header.cccid.get().into();
                return Err(fault(FatalStatus::InvalidHeaderField, Kind::C2hData, "CCCID", 8, found, why));
            }
        };
        let (offset, bytes) = (header.datao.get(), header.datal.get());
        let out_of_range = |field, at, found, why| {
            Err(fault(FatalStatus::DataOutOfRange, Kind::C2hData, field, at, found, why))
        };
        if offset != slot.transferred {
            return out_of_range("DATAO", 12, offset, "the data does not continue the data before it");
        }
        if bytes > len - offset {
            return out_of_range("DATAL", 16, bytes, "the data ends beyond the command's buffer");
        }
        let success = flags & data_flags::SUCCESS != 0;
        self.inbox.start_payload(Payload::new(
            index,
            offset,
            bytes,
            self.rules.digests.data,
            success.then_some(header.cccid.get()),
        ));
        Ok(())
    }

    /// Copies received data from the scratch space to its command's buffer. Returns true if the data of the
    /// PDU is complete.
    fn take_payload(&mut self) -> Result<bool, Fault> {
        let Inbox { payload, scratch, .. } = &mut self.inbox;
        let Some(current) = payload else { return Ok(true) };
        let slot = &mut self.slots[usize::from(current.slot)];
        if current.remaining > 0 {
            let buffer = slot.buffer.as_mut().expect("a read has a buffer");
            let bytes = scratch.take(current.remaining as usize);
            let at = current.at as usize;
            buffer.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            let taken = bytes.len() as u32;
            current.advance(taken, buffer);
            if current.remaining > 0 {
                return Ok(false);
            }
        }
        if current.digest.is_some() {
            let Some(received) = scratch.take_exact::<4>() else { return Ok(false) };
            slot.corrupted |= current.digest_bytes() != Some(received);
        }
        slot.transferred = current.at;
        let (index, success) = (current.slot, current.success);
        *payload = None;
        if let Some(cid) = success {
            self.finish(index, Completion::new(cid, Status::SUCCESS, 0, 0, 0), Kind::C2hData)?;
        }
        Ok(true)
    }

    fn ready_to_transfer(&mut self, r2t: &R2t) -> Result<(), Fault> {
        let index = self.find(r2t.cccid.get(), Kind::R2t, 8)?;
        let slot = &mut self.slots[usize::from(index)];
        let refuse =
            |status, field, at, found: u32, why| Err(fault(status, Kind::R2t, field, at, found, why));
        let Some(buffer) = slot.buffer.as_ref().filter(|_| slot.by_r2t) else {
            let why = "the command with this identifier sends no data after its capsule";
            return refuse(FatalStatus::InvalidHeaderField, "CCCID", 8, r2t.cccid.get().into(), why);
        };
        if slot.queued > 0 {
            let why = "the data of the previous R2T is still being sent; one R2T is allowed at a time";
            return refuse(FatalStatus::LimitExceeded, "CCCID", 8, r2t.cccid.get().into(), why);
        }
        let (start, bytes) = (r2t.r2to.get(), r2t.r2tl.get());
        if start < slot.transferred {
            let why = "this data was already requested";
            return refuse(FatalStatus::DataOutOfRange, "R2TO", 12, start, why);
        }
        let end = start.checked_add(bytes).filter(|end| *end as usize <= buffer.len());
        let Some(end) = end else {
            let why = "the requested data ends beyond the command's buffer";
            return refuse(FatalStatus::DataOutOfRange, "R2TL", 16, bytes, why);
        };
        slot.transferred = end;
        let mut at = start;
        while at < end {
            let bytes = (end - at).min(self.max_h2c_data);
            let flags = if at + bytes == end { data_flags::LAST } else { 0 };
            let header = Data::new(Kind::H2cData, flags, r2t.cccid.get(), r2t.ttag.get(), at, bytes);
            self.outbox.push(&header, bytes, self.rules.digests, self.alignment);
            let data = &buffer.bytes()[at as usize..(at + bytes) as usize];
            self.outbox.push_data(index, at, data, self.rules.digests.data);
            slot.queued += 1;
            at += bytes;
        }
        Ok(())
    }

    /// Completes a command. If its data is still in the outbox, delays the completion until the data was
    /// sent.
    fn finish(&mut self, index: u16, completion: Completion, kind: Kind) -> Result<(), Fault> {
        let slot = &mut self.slots[usize::from(index)];
        let mut completion = completion;
        if completion.status().is_success() {
            let command = slot.command.as_ref().expect("a command in flight");
            let len = slot.buffer.as_ref().map_or(0, Buffer::len);
            if (command.receives_data() || slot.by_r2t) && (slot.transferred as usize) < len {
                let why = "the command succeeded before all of its data was transferred";
                let (field, at) = if kind == Kind::C2hData { ("FLAGS", 1) } else { ("CID", 20) };
                let found = completion.cid.get().into();
                return Err(fault(FatalStatus::SequenceError, kind, field, at, found, why));
            }
            if slot.corrupted {
                let (cid, sqhd) = (completion.cid.get(), completion.sqhd.get());
                completion = Completion::new(cid, Status::TRANSIENT_TRANSPORT_ERROR, sqhd, 0, 0);
            }
        }
        if slot.queued > 0 {
            slot.completion = Some(completion);
        } else {
            self.release(index, completion);
        }
        Ok(())
    }

    fn release(&mut self, index: u16, completion: Completion) {
        let slot = &mut self.slots[usize::from(index)];
        slot.in_flight = false;
        slot.queued = 0;
        self.done.push_back(Done {
            token: slot.token,
            command: slot.command.take().expect("a command in flight"),
            completion,
            buffer: slot.buffer.take(),
        });
        self.free.push(index);
    }
}

fn fault(
    status: FatalStatus,
    kind: Kind,
    field: &'static str,
    offset: u32,
    found: u32,
    why: &'static str,
) -> Fault {
    Fault { status, kind: kind as u8, field, offset, found: found.into(), why }
}
