//! Received bytes: the scratch space for headers, and the state of the data that is being received.

use super::super::Buffer;
use crate::wire::command::Completion;
use crate::wire::pdu::{
    Data, Digests, Fault, Header, Kind, Layout, MAX_HEADER, R2t, Rules, RunningDigest, Termination,
};

/// The size of the scratch space in bytes. One receive of small PDUs returns at most this many bytes. Of 32
/// reads of 4 KiB in flight, this is half. While this side processes that half and sends new commands, the
/// controller works on the other half. If one receive returned everything, the controller would have no
/// commands to work on.
const SCRATCH: usize = 64 << 10;
/// The least size of data that is received directly into its buffer, in bytes. Smaller data is received into
/// the scratch space and copied, because one system call can then receive many PDUs.
const LARGE: u32 = 32 << 10;
/// The number of bytes of scratch space to receive into when large data is expected. They hold a few headers,
/// so only little of the large data is received into the scratch space.
const SMALL_SPACE: usize = 512;

/// Bytes that were received and not yet consumed.
#[derive(Debug)]
pub(super) struct Scratch {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { bytes: vec![0; SCRATCH].into_boxed_slice(), start: 0, end: 0 }
    }
}

impl Scratch {
    /// Moves the received bytes to the start and returns the free space after them: all of it, or at most
    /// `SMALL_SPACE` bytes if `small` is true.
    pub(super) fn space(&mut self, small: bool) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let free = &mut self.bytes[self.end..];
        let len = if small { free.len().min(SMALL_SPACE) } else { free.len() };
        &mut free[..len]
    }

    pub(super) fn filled(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.end, "more bytes than space");
        self.end += bytes;
    }

    fn available(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Removes and returns up to `most` bytes.
    pub(super) fn take(&mut self, most: usize) -> &[u8] {
        let start = self.start;
        let len = most.min(self.end - start);
        self.consume(len);
        &self.bytes[start..start + len]
    }

    /// Removes and returns the next `N` bytes, or `None` if fewer have arrived.
    pub(super) fn take_exact<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.available().first_chunk()?;
        self.consume(N);
        Some(bytes)
    }
}

/// Data of a read that is being received into the buffer of a command slot.
#[derive(Debug)]
pub(super) struct Payload {
    pub(super) slot: u16,
    /// The offset in the slot's buffer for the next byte of the data.
    pub(super) at: u32,
    /// The number of data bytes that have not arrived yet.
    pub(super) remaining: u32,
    /// The digest of the bytes that have arrived, if data digests are in use.
    pub(super) digest: Option<RunningDigest>,
    /// The command's identifier if this data has the flag SUCCESS. With SUCCESS, the end of the data
    /// completes the command, and no CapsuleResp follows. `None` without the flag.
    pub(super) success: Option<u16>,
    /// True if the data has at least `LARGE` bytes. A receive then offers only `SMALL_SPACE` bytes of scratch
    /// space in addition to the buffer. Data of the next PDU must be copied out of scratch space, so little
    /// scratch space saves copies.
    pub(super) large: bool,
}

impl Payload {
    pub(super) fn new(slot: u16, at: u32, bytes: u32, digest: bool, success: Option<u16>) -> Self {
        Self {
            slot,
            at,
            remaining: bytes,
            digest: digest.then(RunningDigest::default),
            success,
            large: bytes >= LARGE,
        }
    }

    /// Counts `bytes` bytes as arrived in the buffer, and adds them to the digest.
    pub(super) fn advance(&mut self, bytes: u32, buffer: &Buffer) {
        if let Some(digest) = &mut self.digest {
            digest.update(&buffer.bytes()[self.at as usize..(self.at + bytes) as usize]);
        }
        self.at += bytes;
        self.remaining -= bytes;
    }

    pub(super) fn digest_bytes(&self) -> Option<[u8; 4]> {
        self.digest.map(RunningDigest::bytes)
    }
}

/// A received header.
pub(super) enum Received {
    IcResp { digests: Digests, alignment: u8, max_h2c_data: u32 },
    Termination(Termination),
    Completion(Completion),
    Data(Data, u8),
    R2t(R2t),
}

impl Received {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Received::IcResp { .. } => Kind::IcResp,
            Received::Termination(_) => Kind::C2hTermReq,
            Received::Completion(_) => Kind::CapsuleResp,
            Received::Data(..) => Kind::C2hData,
            Received::R2t(_) => Kind::R2t,
        }
    }
}

/// The received bytes of a connection that are not processed yet.
#[derive(Debug)]
pub(super) struct ReceivedBytes {
    pub(super) scratch: Scratch,
    pub(super) payload: Option<Payload>,
    /// True if the last data had at least `LARGE` bytes, so the next is expected to be large, too.
    pub(super) expect_large: bool,
    /// The header of the last received PDU, in the first `last_len` bytes. A termination request contains
    /// this header.
    last: [u8; MAX_HEADER],
    last_len: usize,
}

impl Default for ReceivedBytes {
    fn default() -> Self {
        Self {
            scratch: Scratch::default(),
            payload: None,
            expect_large: false,
            last: [0; MAX_HEADER],
            last_len: 0,
        }
    }
}

impl ReceivedBytes {
    pub(super) fn start_payload(&mut self, payload: Payload) {
        self.expect_large = payload.large;
        self.payload = Some(payload);
    }

    /// Decodes and removes the next header with its padding, if it has arrived.
    pub(super) fn next_header(&mut self, rules: &Rules) -> Result<Option<Received>, Fault> {
        let available = self.scratch.available();
        let Some(common) = available.first_chunk() else { return Ok(None) };
        let mut remember = |header: &[u8]| {
            self.last[..header.len()].copy_from_slice(header);
            self.last_len = header.len();
        };
        let layout = Layout::decode(common, rules).inspect_err(|_| remember(common))?;
        // Wait for the header and the data of a termination request, because both are skipped together. The
        // data has at most 128 bytes.
        let skipped = if layout.kind == Kind::C2hTermReq { layout.data_bytes as usize } else { 0 };
        let needed = layout.data_at() + skipped;
        if available.len() < needed {
            return Ok(None);
        }
        let header = &available[..usize::from(layout.header_bytes)];
        remember(&header[..layout.kind.header_len()]);
        layout.check_digest(header)?;
        let received = match Header::decode(&layout, header)? {
            Header::IcResp(response) => Received::IcResp {
                digests: Digests::from_bits(response.dgst),
                alignment: (response.cpda + 1) * 4,
                max_h2c_data: response.maxh2cdata.get(),
            },
            Header::TermReq(termination) => Received::Termination(termination),
            Header::CapsuleResp(completion) => Received::Completion(*completion),
            Header::C2hData(data) => Received::Data(*data, layout.flags),
            Header::R2t(r2t) => Received::R2t(*r2t),
            _ => unreachable!("the layout has only types that a controller sends"),
        };
        self.scratch.consume(needed);
        Ok(Some(received))
    }

    pub(super) fn faulty_pdu(&self) -> &[u8] {
        &self.last[..self.last_len]
    }
}
