//! Processes the PDUs that the controller sends: completions, data of reads, and requests for data of writes.
//!
//! Checks every field before using it.

use super::inbox::{Payload, ReceivedBytes};
use super::{Failure, HostConnection, MAX_ENTRIES};
use crate::initiator::Buffer;
use crate::wire::command::{Completion, Status};
use crate::wire::pdu::{Data, Digests, FatalStatus, Fault, Header, Kind, R2t, data_flags};

impl HostConnection {
    pub(super) fn process(&mut self) -> Result<(), Failure> {
        loop {
            if self.inbox.payload.is_some() && !self.take_payload()? {
                return Ok(());
            }
            let Some((layout, length, header)) = self.inbox.next_header(&self.rules)? else { return Ok(()) };
            match header {
                Header::IcResp { digests, alignment, max_h2c_data } => {
                    self.inbox.input.consume(length);
                    self.negotiated(digests, alignment, max_h2c_data)?;
                }
                Header::TermReq(termination) => return Err(Failure::Terminated(termination)),
                _ if !self.ready => {
                    let why = "the first PDU of a controller must be an ICResp";
                    let (status, kind) = (FatalStatus::SequenceError, layout.kind);
                    return Err(fault(status, kind, "PDU-Type", 0, kind as u32, why).into());
                }
                Header::CapsuleResp(completion) => {
                    self.inbox.input.consume(length);
                    self.completed(completion)?;
                }
                Header::C2hData(data) => {
                    self.inbox.input.consume(length);
                    self.data(&data, layout.flags)?;
                }
                Header::R2t(r2t) => {
                    self.inbox.input.consume(length);
                    self.ready_to_transfer(&r2t)?;
                }
                Header::IcReq { .. } | Header::CapsuleCmd(_) | Header::H2cData(_) => {
                    unreachable!("the layout refuses PDUs of a host")
                }
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

    /// Returns the slot of the command that is in flight with identifier `cid`. If there is no such command,
    /// returns a fault. The fault names the identifier field, at `offset` in the received PDU of type `kind`.
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

    /// Copies received data from the input buffer to its command's buffer. Returns true if the data of the
    /// PDU is complete.
    fn take_payload(&mut self) -> Result<bool, Fault> {
        let ReceivedBytes { payload, input, .. } = &mut self.inbox;
        let Some(current) = payload else { return Ok(true) };
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
                return Ok(false);
            }
        }
        if current.digest.is_some() {
            let Some(received) = input.bytes().first_chunk::<4>() else { return Ok(false) };
            slot.corrupted |= current.digest_bytes().as_ref() != Some(received);
            input.consume(4);
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

    /// Completes a command. If some data of the command is still queued for sending, stores the completion
    /// until then. The queued data lies in the command's buffer, so the buffer is in use.
    fn finish(&mut self, index: u16, completion: Completion, kind: Kind) -> Result<(), Fault> {
        let slot = &mut self.slots[usize::from(index)];
        let mut completion = completion;
        if completion.status().is_success() {
            let command = slot.command.as_ref().expect("a command in flight");
            let len = slot.buffer.as_ref().map_or(0, Buffer::len);
            let all = (command.receives_data() && !command.may_receive_less()) || slot.by_r2t;
            if all && (slot.transferred as usize) < len {
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
