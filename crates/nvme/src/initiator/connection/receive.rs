//! Processes the PDUs that the controller sends: completions, data of reads, and requests for data of writes.
//!
//! Checks every field before using it.

use super::command::Slot;
use super::inbox::{Payload, ReceivedBytes};
use super::{Failure, HostConnection, MAX_ENTRIES};
use crate::initiator::Buffer;
use crate::wire::command::{Completion, Status};
use crate::wire::pdu::FatalStatus::{
    DataOutOfRange, InvalidHeaderField, LimitExceeded, SequenceError, UnsupportedParameter,
};
use crate::wire::pdu::field::{CCCID, CID, DATAL, DATAO, FLAGS, R2TL};
use crate::wire::pdu::{Digests, Fault, Header, Kind, Pdu, Transfer, data_flags};

const MISSING_DATA: &str = "the command succeeded before all of its data was transferred";

impl HostConnection {
    pub(super) fn process(&mut self) -> Result<(), Failure> {
        loop {
            if self.inbox.payload.is_some() && !self.take_payload() {
                return Ok(());
            }
            let Some((layout, length, header)) = self.inbox.next_header(&self.rules)? else { return Ok(()) };
            match header {
                Header::IcResp { digests, alignment, max_h2c_data } => {
                    self.negotiated(digests, alignment, max_h2c_data)?
                }
                Header::TermReq(termination) => return Err(Failure::Terminated(termination)),
                _ if !self.ready => {
                    let why = "the first PDU of a controller must be an ICResp";
                    return Err(Fault::of_sequence(layout.kind, why).into());
                }
                Header::CapsuleResp(completion) => self.completed(completion)?,
                Header::C2hData(data) => self.data(&data, layout.flags)?,
                Header::R2t(r2t) => self.ready_to_transfer(&r2t)?,
                Header::IcReq { .. } | Header::CapsuleCmd(_) | Header::H2cData(_) => {
                    unreachable!("the layout refuses PDUs of a host")
                }
            }
            // A faulty PDU stays in the buffer, because a termination request repeats its header.
            self.inbox.input.consume(length);
        }
    }

    fn negotiated(&mut self, digests: Digests, alignment: u8, max_h2c_data: u32) -> Result<(), Fault> {
        if self.ready {
            return Err(Fault::of_sequence(Kind::IcResp, "the connection is already initialized"));
        }
        if digests != self.rules.digests {
            let why = "the controller uses other digests than requested; choose other digests";
            let (status, found) = (UnsupportedParameter, digests.bits());
            return Err(Fault::new(status, Kind::IcResp, ("DGST", 11), found, why));
        }
        self.alignment = alignment;
        self.max_h2c_data = max_h2c_data;
        self.ready = true;
        Ok(())
    }

    /// Returns the slot of the command that is in flight with identifier `cid`. If there is no such command,
    /// returns a fault. The fault names the identifier field in the received PDU of type `kind`.
    fn find(&mut self, cid: u16, kind: Kind) -> Result<u16, Fault> {
        let index = cid & (MAX_ENTRIES as u16 - 1);
        match self.slots.get(usize::from(index)) {
            Some(Slot { command: Some(command), completion: None, .. }) if command.cid.get() == cid => {
                Ok(index)
            }
            _ => {
                let field = if kind == Kind::CapsuleResp { CID } else { CCCID };
                let why = "no command in flight has this identifier";
                Err(Fault::new(InvalidHeaderField, kind, field, cid, why))
            }
        }
    }

    fn completed(&mut self, completion: Completion) -> Result<(), Fault> {
        let index = self.find(completion.cid.get(), Kind::CapsuleResp)?;
        let slot = &self.slots[usize::from(index)];
        let command = slot.command.as_ref().expect("a command in flight");
        let all = (command.receives_data() && !command.may_receive_less()) || slot.by_r2t;
        let len = slot.buffer.as_ref().map_or(0, Buffer::len);
        if completion.status().is_success() && all && (slot.transferred as usize) < len {
            let (kind, found) = (Kind::CapsuleResp, completion.cid.get());
            return Err(Fault::new(SequenceError, kind, CID, found, MISSING_DATA));
        }
        self.finish(index, completion);
        Ok(())
    }

    fn data(&mut self, header: &Transfer, flags: u8) -> Result<(), Fault> {
        let cid = header.cccid.get();
        let index = self.find(cid, Kind::C2hData)?;
        let slot = &self.slots[usize::from(index)];
        let check =
            |ok, status, field, found, why| Fault::check(ok, status, Kind::C2hData, field, found, why);
        let command = slot.command.as_ref().filter(|command| command.receives_data());
        let (Some(command), Some(buffer)) = (command, &slot.buffer) else {
            let why = "the command with this identifier receives no data";
            return Err(Fault::new(InvalidHeaderField, Kind::C2hData, CCCID, cid, why));
        };
        let (offset, bytes) = (header.offset.get(), header.length.get());
        let why = "the data does not continue the data before it";
        check(offset == slot.transferred, DataOutOfRange, DATAO, offset, why)?;
        let left = buffer.len() as u32 - offset;
        check(bytes <= left, DataOutOfRange, DATAL, bytes, "the data ends beyond the command's buffer")?;
        let success = flags & data_flags::SUCCESS != 0;
        let complete = !success || bytes == left || command.may_receive_less();
        check(complete, SequenceError, FLAGS, flags.into(), MISSING_DATA)?;
        let (digest, success) = (self.rules.digests.data, success.then_some(cid));
        self.inbox.start_payload(Payload::new(index, offset, bytes, digest, success));
        Ok(())
    }

    /// Copies received data from the input buffer to its command's buffer. Returns true if the data of the
    /// PDU is complete.
    fn take_payload(&mut self) -> bool {
        let ReceivedBytes { payload, input, .. } = &mut self.inbox;
        let Some(current) = payload else { return true };
        let slot = &mut self.slots[usize::from(current.slot)];
        if current.remaining > 0 {
            let buffer = slot.buffer.as_mut().expect("a read has a buffer");
            let (at, taken) = (current.at as usize, input.bytes().len().min(current.remaining as usize));
            buffer.bytes_mut()[at..at + taken].copy_from_slice(&input.bytes()[..taken]);
            input.consume(taken);
            let taken = taken as u32;
            current.advance(taken, buffer);
            slot.count_moved(taken, &mut self.progressed);
            if current.remaining > 0 {
                return false;
            }
        }
        if current.digest.is_some() {
            let Some(received) = input.bytes().first_chunk::<4>() else { return false };
            slot.corrupted |= current.digest_bytes().as_ref() != Some(received);
            input.consume(4);
        }
        slot.transferred = current.at;
        let (index, success) = (current.slot, current.success);
        *payload = None;
        if let Some(cid) = success {
            self.finish(index, Completion::new(cid, Status::SUCCESS, 0, 0, 0));
        }
        true
    }

    fn ready_to_transfer(&mut self, r2t: &Transfer) -> Result<(), Fault> {
        let index = self.find(r2t.cccid.get(), Kind::R2t)?;
        let slot = &mut self.slots[usize::from(index)];
        let check = |ok, status, field, found, why| Fault::check(ok, status, Kind::R2t, field, found, why);
        let cid = r2t.cccid.get();
        let Some(buffer) = slot.buffer.as_ref().filter(|_| slot.by_r2t) else {
            let why = "the command with this identifier sends no data after its capsule";
            return Err(Fault::new(InvalidHeaderField, Kind::R2t, CCCID, cid, why));
        };
        let why = "the data of the previous R2T is still being sent; one R2T is allowed at a time";
        check(slot.queued == 0, LimitExceeded, CCCID, cid.into(), why)?;
        let (start, bytes) = (r2t.offset.get(), r2t.length.get());
        let end = start.saturating_add(bytes);
        check(
            start >= slot.transferred,
            DataOutOfRange,
            ("R2TO", 12),
            start,
            "this data was already requested",
        )?;
        let why = "the requested data ends beyond the command's buffer";
        check(end as usize <= buffer.len(), DataOutOfRange, R2TL, bytes, why)?;
        slot.transferred = end;
        let mut at = start;
        while at < end {
            let bytes = (end - at).min(self.max_h2c_data);
            let flags = if at + bytes == end { data_flags::LAST } else { 0 };
            let header = Pdu::transfer(Kind::H2cData, flags, cid, r2t.ttag.get(), at, bytes);
            self.outbox.push(&header, bytes, self.rules.digests, self.alignment);
            let data = &buffer.bytes()[at as usize..(at + bytes) as usize];
            self.outbox.push_data(index, at, data, self.rules.digests.data);
            slot.queued += 1;
            at += bytes;
        }
        Ok(())
    }

    /// Completes a command. If some data of the command is still queued for sending, stores the completion
    /// until then. The queued data lies in the command's buffer, so the buffer is in use.
    fn finish(&mut self, index: u16, mut completion: Completion) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.corrupted && completion.status().is_success() {
            let (cid, sqhd) = (completion.cid.get(), completion.sqhd.get());
            completion = Completion::new(cid, Status::TRANSIENT_TRANSPORT_ERROR, sqhd, 0, 0);
        }
        if slot.queued > 0 {
            slot.completion = Some(completion);
        } else {
            self.release(index, completion);
        }
    }
}
