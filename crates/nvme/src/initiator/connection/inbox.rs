//! Received bytes: those of headers, and the state of the data that is being received.

use crate::initiator::Buffer;
use crate::input::Input;
use crate::wire::pdu::{Fault, Header, Kind, Layout, Rules, RunningDigest};

/// The least size of data that is received directly into its buffer, in bytes. Smaller data is received into
/// the input buffer and copied, because one system call can then receive many PDUs.
const LARGE: u32 = 32 << 10;
/// The number of bytes that are received into the input buffer when large data is expected. They hold a few headers,
/// so only little of the large data is received there.
pub(super) const SMALL_SPACE: usize = 512;

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
    /// True if the data has at least `LARGE` bytes. A receive then offers only `SMALL_SPACE` bytes of the input
    /// buffer in addition to the command's buffer, because data of the next PDU must be copied out of the former.
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

/// The received bytes of a connection that are not processed yet.
#[derive(Debug, Default)]
pub(super) struct ReceivedBytes {
    pub(super) input: Input,
    pub(super) payload: Option<Payload>,
    /// True if the last data had at least `LARGE` bytes, so the next is expected to be large, too.
    pub(super) expect_large: bool,
}

impl ReceivedBytes {
    pub(super) fn start_payload(&mut self, payload: Payload) {
        self.expect_large = payload.large;
        self.payload = Some(payload);
    }

    /// Decodes the next header, if it has arrived. Returns also the number of bytes to remove from the input: the header
    /// and its padding.
    pub(super) fn next_header(&self, rules: &Rules) -> Result<Option<(Layout, usize, Header<'_>)>, Fault> {
        let available = self.input.bytes();
        let Some(common) = available.first_chunk() else { return Ok(None) };
        let layout = Layout::decode(common, rules)?;
        // Wait for the header and the data of a termination request, because both are skipped together. The
        // data has at most 128 bytes.
        let skipped = if layout.kind == Kind::C2hTermReq { layout.data_bytes as usize } else { 0 };
        let needed = layout.data_at() + skipped;
        if available.len() < needed {
            return Ok(None);
        }
        let header = &available[..usize::from(layout.header_bytes)];
        layout.check_digest(header)?;
        Ok(Some((layout, needed, Header::decode(&layout, header)?)))
    }
}
