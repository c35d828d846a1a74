//! Sends responses to the host: the data of reads, and completions.

use super::TargetConnection;
use crate::namespace::Memory;
use crate::target::fabrics::Queue;
use crate::target::io::IoRequest;
use crate::wire::command::{Command, Completion, Status, io};
use crate::wire::pdu::{Kind, MAX_HEADER, Pdu, RunningDigest, data_flags, digest, encode};

/// The longest data of a memory namespace that is copied to the output, in bytes. For data this short, sending it from
/// its place in memory would cost more than the copy.
const COPY_BYTES: usize = 1 << 10;
/// If data of a memory namespace needs a digest, data of up to this many bytes is copied to the output. Longer data is
/// copied to a separate buffer. For short data, the separate buffer would cost more.
const COPY_WITH_DIGEST_BYTES: usize = 16 << 10;
/// How much of a read's data is prefetched when the read is processed. The kernel copies the data later, together with that
/// of the other received reads. A longer prefetch would stall, because a core loads only a few cache lines at a time.
const PREFETCHED_BYTES: usize = 1 << 10;
/// Data is copied in blocks of this length. After each block, the digest is updated from the
/// first-level cache, while the next block is loaded from memory.
const DIGEST_BLOCK_BYTES: usize = 16 << 10;

impl Queue {
    /// Advances the head of the submission queue (SQHD) by one command, modulo the number of entries.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.head += 1;
        if self.head >= self.entries {
            self.head = 0;
        }
    }
}

impl TargetConnection {
    /// Sends the completion of a command.
    #[inline]
    pub(super) fn respond(&mut self, cid: u16, status: Status, result: u64) {
        let head = match &self.queue {
            Some(queue) if queue.flow_control => queue.head,
            Some(_) => 0xFFFF,
            None => 0,
        };
        let completion = Completion::new(cid, status, head, result as u32, (result >> 32) as u32);
        let digests = self.rules.digests;
        self.output.append(MAX_HEADER, |out| {
            encode(&Pdu::new(Kind::CapsuleResp, 0, completion), 0, digests, 4, out)
        });
    }

    /// Sends the completion of a command that has no slot. The host may then use the command's identifier
    /// again.
    pub(super) fn complete(&mut self, cid: u16, status: Status, result: u64) {
        self.forget_identifier(cid);
        self.respond(cid, status, result);
    }

    /// Sends the completion of a command and frees its slot.
    #[inline]
    pub(super) fn finish(&mut self, slot: u16, status: Status, result: u64) {
        if !status.is_success() {
            let command = self.slots.get(slot).command;
            self.log_error(&command, status);
        }
        let cid = self.release(slot, status);
        self.respond(cid, status, result);
    }

    /// Adds a command that fails to the controller's error log.
    #[cold]
    pub(super) fn log_error(&self, command: &Command, status: Status) {
        // A host that is not authenticated must not fill the log of another host.
        let Some(queue) = self.queue.as_ref().filter(|queue| queue.usable) else { return };
        let has_range =
            queue.id != 0 && matches!(command.opcode, io::READ | io::WRITE | io::COMPARE | io::WRITE_ZEROES);
        let lba = if has_range { command.lba() } else { 0 };
        queue.controller.errors().add(queue.id, command, status, lba);
    }

    /// Counts a command and frees its slot. Returns the command's identifier.
    #[inline]
    pub(super) fn release(&mut self, slot: u16, status: Status) -> u16 {
        let entry = self.slots.get(slot);
        let cid = entry.command.cid.get();
        if let Some(request) = &entry.request {
            self.tally.count(request, status, &self.setup.subsystem);
        }
        self.slots.remove(slot);
        self.forget_identifier(cid);
        cid
    }

    /// Sends the data and the completion of a read from a namespace in memory. `cid` identifies the command.
    /// Returns false, and sends nothing, if the read needs a buffer and none is available.
    #[inline]
    pub(super) fn send_memory(&mut self, cid: u16, request: IoRequest) -> bool {
        let IoRequest { namespace, offset, length, .. } = request;
        let (bytes, with_digest) = (length as usize, self.rules.digests.data);
        let memory = self.setup.subsystem.memory(namespace).expect("a namespace in memory");
        if with_digest && (bytes > COPY_WITH_DIGEST_BYTES || !self.output.keeps(bytes)) {
            let Some(mut buffer) = self.setup.share.allocate(bytes) else { return false };
            let digest = read_with_digest(memory, offset, &mut buffer[..bytes]);
            self.data_header(cid, length as u32);
            self.output.append_buffer(buffer, bytes);
            self.data_digest(Some(digest));
        } else if with_digest || bytes <= COPY_BYTES {
            self.data_header(cid, length as u32);
            let memory = self.setup.subsystem.memory(namespace).expect("a namespace in memory");
            self.output.append(bytes + 4, |out| {
                let (data, rest) = out.split_at_mut(bytes);
                if !with_digest {
                    memory.read(offset, data);
                    return bytes;
                }
                rest.copy_from_slice(&read_with_digest(memory, offset, data));
                bytes + 4
            });
        } else {
            memory.prefetch(offset, PREFETCHED_BYTES);
            self.data_header(cid, length as u32);
            self.output.append_memory(namespace, offset, bytes);
        }
        self.data_end(cid);
        true
    }

    /// Completes a read with the first `length` bytes of the command's buffer.
    pub(super) fn send_buffer(&mut self, slot: u16, length: usize) {
        let buffer = self.slots.get_mut(slot).buffer.take().expect("a buffer with the data");
        let cid = self.release(slot, Status::SUCCESS);
        self.data_header(cid, length as u32);
        let bytes = self.rules.digests.data.then(|| digest(&buffer[..length]));
        self.output.append_buffer(buffer, length);
        self.data_digest(bytes);
        self.data_end(cid);
    }

    /// Completes a command with `bytes`.
    pub(super) fn send_bytes(&mut self, slot: u16, bytes: &[u8]) {
        let cid = self.release(slot, Status::SUCCESS);
        self.data_header(cid, bytes.len() as u32);
        self.output.append(bytes.len(), |out| {
            out.copy_from_slice(bytes);
            bytes.len()
        });
        self.data_digest(self.rules.digests.data.then(|| digest(bytes)));
        self.data_end(cid);
    }

    fn data_digest(&mut self, bytes: Option<[u8; 4]>) {
        if let Some(bytes) = bytes {
            self.output.append(4, |out| {
                out.copy_from_slice(&bytes);
                4
            });
        }
    }

    /// Appends the header of a C2HData PDU with `length` bytes of data for the command `cid`.
    #[inline]
    fn data_header(&mut self, cid: u16, length: u32) {
        let flags =
            if self.omits_completion() { data_flags::LAST | data_flags::SUCCESS } else { data_flags::LAST };
        let header = Pdu::transfer(Kind::C2hData, flags, cid, 0, 0, length);
        let (digests, alignment) = (self.rules.digests, self.alignment);
        self.output.append(MAX_HEADER, |out| encode(&header, length, digests, alignment, out));
    }

    /// Appends the completion of a successful command, whose data is already in the output. Appends nothing
    /// if the flag SUCCESS of the data replaces the completion.
    #[inline]
    fn data_end(&mut self, cid: u16) {
        if !self.omits_completion() {
            self.respond(cid, Status::SUCCESS, 0);
        }
    }

    /// Returns true if successful commands with data have no completion, because the host does not need SQHD.
    fn omits_completion(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.flow_control)
    }

    /// Records that a command with the identifier `cid` is in progress. Returns false if such a command was
    /// already in progress.
    #[inline]
    pub(super) fn remember_identifier(&mut self, cid: u16) -> bool {
        let (word, bit) = (usize::from(cid / 64), 1 << (cid % 64));
        if self.identifiers.len() <= word {
            self.identifiers.resize(word + 1, 0);
        }
        let fresh = self.identifiers[word] & bit == 0;
        self.identifiers[word] |= bit;
        fresh
    }

    /// Records that no command with this identifier is in progress any more.
    #[inline]
    pub(super) fn forget_identifier(&mut self, cid: u16) {
        self.identifiers[usize::from(cid / 64)] &= !(1 << (cid % 64));
    }
}

/// Fills `data` with the bytes of the memory from `offset`, and returns their digest.
fn read_with_digest(memory: &Memory, offset: u64, data: &mut [u8]) -> [u8; 4] {
    let mut digest = RunningDigest::default();
    let (mut offset, end) = (offset, offset + data.len() as u64);
    for block in data.chunks_mut(DIGEST_BLOCK_BYTES) {
        memory.read(offset, block);
        offset += block.len() as u64;
        memory.prefetch(offset, DIGEST_BLOCK_BYTES.min((end - offset) as usize));
        digest.update(block);
    }
    digest.bytes()
}
