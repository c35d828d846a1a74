//! Receives PDUs: decodes headers, stores data in the buffers of commands, and checks digests.

use super::slot::Stage;
use super::{End, LARGE_BYTES, TargetConnection};
use crate::wire::pdu::field::{CCCID, DATAL, DATAO, FLAGS, TTAG};
use crate::wire::pdu::{
    Digests, FatalStatus, Fault, Header, Kind, Layout, Pdu, RunningDigest, Transfer, data_flags, encode,
};
use std::sync::atomic::Ordering::Relaxed;

/// The part of a PDU that the connection receives next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// A header.
    Header,
    /// Nothing. A capsule has arrived whose data needs a buffer, and the connection waits until one is available.
    Starved,
    /// Data that an R2T asked for.
    Data {
        /// The slot of the command that the data belongs to.
        slot: u16,
        /// The offset of the next byte in the command's buffer.
        at: usize,
        /// The number of bytes of the PDU's data that have not arrived yet.
        left: usize,
        /// The digest of the bytes that have arrived, if a digest follows the data.
        digest: Option<RunningDigest>,
    },
}

impl TargetConnection {
    /// Processes the next part of the input. Returns false if more input is needed.
    pub(super) fn step(&mut self) -> Result<bool, Fault> {
        match self.receiving {
            Receiving::Header | Receiving::Starved => self.receive_header(),
            Receiving::Data { slot, at, left, digest } => Ok(self.receive_data(slot, at, left, digest)),
        }
    }

    fn receive_header(&mut self) -> Result<bool, Fault> {
        let bytes = self.input.bytes();
        let Some(common) = bytes.first_chunk() else { return Ok(false) };
        let layout = Layout::decode(common, &self.rules)?;
        if bytes.len() < layout.data_at() {
            return Ok(false);
        }
        layout.check_digest(bytes)?;
        let header = Header::decode(&layout, bytes)?;
        let initializes = layout.kind == Kind::IcReq;
        if initializes == self.initialized && layout.kind != Kind::H2cTermReq {
            let why = if initializes {
                "the connection is initialized already"
            } else {
                "an ICReq must come first"
            };
            return Err(Fault::of_sequence(layout.kind, why));
        }
        match header {
            Header::IcReq { digests, alignment } => {
                self.input.consume(layout.data_at());
                self.initialize(digests, alignment);
            }
            // Data in a capsule gets a buffer only when it is complete, so a slow host holds none.
            Header::CapsuleCmd(_) if bytes.len() < layout.total_bytes() => return Ok(false),
            Header::CapsuleCmd(command) => {
                let command = *command;
                return self.receive_command(command, &layout);
            }
            Header::H2cData(data) => {
                let slot = self.check_data(&layout, &data)?;
                self.input.consume(layout.data_at());
                let (at, left) = (data.offset.get() as usize, data.length.get() as usize);
                let digest = layout.data_digest.then(RunningDigest::default);
                self.receiving = Receiving::Data { slot, at, left, digest };
            }
            Header::TermReq(termination) => {
                let reason = termination.to_string();
                self.warn(format_args!("the host ended the connection: {reason}"));
                self.input.clear();
                self.end = Some(End::Terminated(reason));
            }
            Header::IcResp { .. } | Header::CapsuleResp(_) | Header::C2hData(_) | Header::R2t(_) => {
                unreachable!("the layout refuses PDUs of a controller")
            }
        }
        Ok(true)
    }

    /// Answers an ICReq.
    fn initialize(&mut self, digests: Digests, alignment: u8) {
        let response = Pdu::initialization(Kind::IcResp, digests, self.rules.max_data);
        self.output.append(128, |out| encode(&response, 0, Digests::default(), 4, out));
        self.rules.digests = digests;
        self.alignment = alignment;
        self.initialized = true;
    }

    /// Checks that an H2CData matches the R2T that it answers. Returns the slot of the command.
    fn check_data(&mut self, layout: &Layout, data: &Transfer) -> Result<u16, Fault> {
        use FatalStatus::{DataOutOfRange, InvalidHeaderField, SequenceError};
        let check = |ok, status, field, found, why| Fault::check(ok, status, layout.kind, field, found, why);
        let (tag, cid) = (data.ttag.get(), data.cccid.get());
        let slot = self.slots.find(tag).filter(|slot| slot.stage == Stage::Receiving);
        let why = "no R2T with this tag is outstanding";
        let slot = slot.ok_or(Fault::new(InvalidHeaderField, layout.kind, TTAG, tag, why))?;
        let why = "the R2T was for another command";
        check(data.cccid == slot.command.cid, InvalidHeaderField, CCCID, cid.into(), why)?;
        let (offset, length) = (data.offset.get(), data.length.get());
        let why = "data must be sent in order and without gaps";
        check(offset == slot.received, DataOutOfRange, DATAO, offset, why)?;
        let left = slot.expected - slot.received;
        check(length <= left, DataOutOfRange, DATAL, length, "it is more data than the R2T asked for")?;
        let is_last = layout.flags & data_flags::LAST != 0;
        let why = "LAST_PDU is set, but data that the R2T asked for is missing";
        check(!is_last || length == left, SequenceError, FLAGS, layout.flags.into(), why)?;
        Ok(tag)
    }

    /// Copies received data to the buffer of the command in `slot`. Checks the data digest, if there is one,
    /// once all data has arrived. Returns false if more input is needed.
    fn receive_data(&mut self, slot: u16, at: usize, left: usize, mut digest: Option<RunningDigest>) -> bool {
        let entry = self.slots.get_mut(slot);
        let buffer = entry.buffer.as_mut().expect("a buffer for the data");
        let bytes = self.input.bytes();
        let count = left.min(bytes.len());
        buffer[at..at + count].copy_from_slice(&bytes[..count]);
        if let Some(digest) = &mut digest {
            digest.update(&buffer[at..at + count]);
        }
        self.delivered += count as u64;
        let rest = &bytes[count..];
        let (at, left) = (at + count, left - count);
        let expected = rest.first_chunk::<4>();
        if left > 0 || digest.is_some() && expected.is_none() {
            self.input.consume(count);
            self.receiving = Receiving::Data { slot, at, left, digest };
            return false;
        }
        let corrupted = digest.is_some_and(|digest| expected != Some(&digest.bytes()));
        entry.corrupted |= corrupted;
        entry.received = at as u32;
        let complete = entry.received == entry.expected;
        if complete {
            self.awaited -= 1;
            self.awaited_large -= u32::from(entry.expected >= LARGE_BYTES);
        }
        self.input.consume(count + if digest.is_some() { 4 } else { 0 });
        self.receiving = Receiving::Header;
        if corrupted {
            self.report_digest_error();
        }
        if complete {
            self.execute(slot);
        }
        true
    }

    #[cold]
    pub(super) fn report_digest_error(&self) {
        self.setup.subsystem.counters.digest_errors.fetch_add(1, Relaxed);
        self.warn(format_args!("a data digest is wrong; the command fails"));
    }
}
