//! Runs the requests of a client as NVMe commands.

use super::receive::Reading;
use super::{Client, MAX_REQUESTS, Output};
use crate::protocol::{
    FUA, MAX_DATA, NO_HOLE, NbdRequest, RequestType, allocated_chunk, data_chunk, error, error_chunk, reply,
};
use inlane_nvme::Result;
use inlane_nvme::initiator::Buffer;
use inlane_nvme::initiator::connection::{Done, Submission};
use inlane_nvme::wire::command::{Command, Sgl, Status, dsm, io, io_flags};
use std::ops::Range;
use zerocopy::IntoBytes;

/// The most bytes that one NVMe command transfers. A longer request is divided into several commands.
const PART: u32 = 128 << 10;

/// A request whose commands are in progress.
pub(super) struct Active {
    cookie: u64,
    offset: u64,
    length: u32,
    kind: RequestType,
    /// The number of commands of this request that have not completed.
    left: usize,
    error: u32,
    /// True for a trim with FUA: a flush must follow it, because Dataset Management has no FUA.
    flush: bool,
    /// The bytes that were read, with one buffer for each command, in order of offsets. A buffer is `None` until
    /// its command completes.
    data: Vec<(Option<Buffer>, Range<usize>)>,
    /// The commands of a write that contains parts of blocks. They start when these blocks were read into `data`.
    then: Commands,
    /// True if the request contains parts of blocks, and writes.
    alone: bool,
}

/// Commands with their buffers, and the bytes of the buffers that belong to the request. A write's range is empty unless it
/// writes a part of a block.
type Commands = Vec<(Command, Option<Buffer>, Range<usize>)>;

/// A part of a request: the range of one command.
#[derive(Debug)]
pub(super) struct Part {
    /// The offset of the command's first block, in bytes.
    offset: u64,
    /// The length of the command's blocks, in bytes.
    length: u32,
    /// The bytes of these blocks that belong to the request. If these are not all, the command has one block.
    pub(super) data: Range<usize>,
}

/// The parts of a request that writes, with the data of each. A part without a buffer becomes zeros.
pub(super) type Parts = Vec<(Part, Option<Buffer>)>;

impl Part {
    fn is_partial(&self) -> bool {
        self.data.len() < self.length as usize
    }
}

impl Client<'_> {
    /// Checks a request. Returns the error number of the reply if the request must be refused.
    fn check(&mut self, request: &NbdRequest) -> Result<(), u32> {
        let namespace = *self.session.namespace();
        let writes =
            matches!(request.kind, RequestType::Write | RequestType::Trim | RequestType::WriteZeroes);
        match request.kind {
            RequestType::Other(_) => return Err(error::EINVAL),
            RequestType::BlockStatus if !self.features.allocation => return Err(error::EINVAL),
            RequestType::Flush | RequestType::Disconnect => return Ok(()),
            _ if writes && namespace.read_only => return Err(error::EPERM),
            RequestType::Trim if !namespace.deallocate => return Err(error::ENOTSUP),
            RequestType::WriteZeroes if !namespace.write_zeroes => return Err(error::ENOTSUP),
            RequestType::Read | RequestType::Write if request.length > MAX_DATA => return Err(error::EINVAL),
            _ => {}
        }
        if request.length == 0 {
            return Err(error::EINVAL);
        }
        match request.offset.checked_add(request.length.into()) {
            Some(end) if end <= namespace.bytes() => Ok(()),
            _ if writes => Err(error::ENOSPC),
            _ => Err(error::EINVAL),
        }
    }

    pub(super) fn begin(&mut self, request: NbdRequest) -> Result<()> {
        if let Err(refused) = self.check(&request) {
            self.counters.count(request.kind, 0, true);
            let header = self.status_reply(request.kind, request.cookie, refused);
            self.output.push_back(Output::Header(header));
            self.reading = Reading::Skip(request.payload() as usize);
            return Ok(());
        }
        let nsid = self.session.namespace().nsid;
        match request.kind {
            RequestType::Disconnect => self.closing = true,
            RequestType::BlockStatus => {
                self.counters.count(request.kind, 0, false);
                let header = allocated_chunk(request.cookie, request.length);
                self.output.push_back(Output::Header(header));
            }
            RequestType::Write => {
                let mut buffers = Vec::new();
                for part in self.parts(&request, PART.min(self.session.namespace().max_transfer)) {
                    let buffer = self.buffer(part.length)?;
                    buffers.push((part, Some(buffer)));
                }
                self.reading = Reading::Data { request, buffers, part: 0, at: 0 };
            }
            RequestType::Read => {
                let mut commands = Vec::new();
                for part in self.parts(&request, PART.min(self.session.namespace().max_transfer)) {
                    let command = self.command(io::READ, &part);
                    commands.push((command, Some(self.buffer(part.length)?), part.data));
                }
                self.start_request(&request, commands, Vec::new());
            }
            RequestType::Flush => {
                self.start_request(&request, vec![(Command::new(io::FLUSH, nsid), None, 0..0)], Vec::new())
            }
            RequestType::Trim => {
                let unit = u64::from(self.session.namespace().block_bytes);
                let (first, end) =
                    (request.offset.div_ceil(unit), (request.offset + u64::from(request.length)) / unit);
                // Parts of blocks keep their contents, because a trim is only a hint.
                if end <= first {
                    self.counters.count(request.kind, 0, false);
                    self.output.push_back(Output::Header(reply(request.cookie, 0).to_vec()));
                    return Ok(());
                }
                let range = dsm::Range {
                    attributes: 0.into(),
                    blocks: u32::try_from(end - first).unwrap_or(u32::MAX).into(),
                    lba: first.into(),
                };
                let mut buffer = Buffer::new(size_of::<dsm::Range>())?;
                buffer.bytes_mut().copy_from_slice(range.as_bytes());
                self.held += buffer.len();
                let mut command = Command::new(io::DATASET_MANAGEMENT, nsid);
                command.cdw11 = dsm::DEALLOCATE.into();
                self.start_request(&request, vec![(command, Some(buffer), 0..0)], Vec::new());
            }
            RequestType::WriteZeroes => {
                // A Write Zeroes command transfers no data, so it has a different size limit than reads and
                // writes.
                let most = self.session.namespace().max_write_zeroes.try_into().unwrap_or(u32::MAX);
                let mut parts = Vec::new();
                for part in self.parts(&request, most) {
                    let mut buffer = None;
                    if part.is_partial() {
                        buffer.insert(self.buffer(part.length)?).bytes_mut().fill(0);
                    }
                    parts.push((part, buffer));
                }
                self.start_write(request, parts)?;
            }
            RequestType::Other(_) => unreachable!("refused before"),
        }
        Ok(())
    }

    /// Returns a reply without data. If the client has negotiated structured replies, a read or a block
    /// status request gets a structured reply. All other requests get a simple reply.
    fn status_reply(&self, kind: RequestType, cookie: u64, error: u32) -> Vec<u8> {
        match kind {
            RequestType::Read | RequestType::BlockStatus if self.features.structured => {
                error_chunk(cookie, error)
            }
            _ => reply(cookie, error).to_vec(),
        }
    }

    /// Starts a request that writes `parts`. A part without a buffer becomes zeros. If other writes are in progress, and the
    /// request or one of these contains a part of a block, lets the request wait.
    pub(super) fn start_write(&mut self, request: NbdRequest, parts: Parts) -> Result<()> {
        let alone = parts.iter().any(|(part, _)| part.is_partial());
        if !self.pass.enter(alone) {
            self.blocked = Some((request, parts));
            return Ok(());
        }
        let (mut reads, mut writes) = (Vec::new(), Vec::with_capacity(parts.len()));
        for (part, buffer) in parts {
            let mut command =
                self.command(if buffer.is_some() { io::WRITE } else { io::WRITE_ZEROES }, &part);
            let mut flags = if request.flags & FUA != 0 { io_flags::FUA } else { 0 };
            if buffer.is_none() && request.flags & NO_HOLE == 0 {
                flags |= io_flags::DEALLOCATE;
            }
            command.cdw12.set(command.cdw12.get() | flags);
            let mut range = 0..0;
            if part.is_partial() {
                reads.push((self.command(io::READ, &part), Some(self.buffer(part.length)?), 0..0));
                range = part.data;
            }
            writes.push((command, buffer, range));
        }
        match alone {
            true => self.start_request(&request, reads, writes),
            false => self.start_request(&request, writes, Vec::new()),
        }
        Ok(())
    }

    /// Divides a request into parts, each small enough for one command of at most `most` bytes. Parts of blocks are parts of
    /// their own.
    fn parts(&self, request: &NbdRequest, most: u32) -> impl Iterator<Item = Part> + use<> {
        let unit = self.session.namespace().block_bytes;
        let most = (most / unit).max(1) * unit;
        let (mut at, end) = (request.offset, request.offset + u64::from(request.length));
        std::iter::from_fn(move || {
            let before = (at % u64::from(unit)) as u32;
            let left = (end - at) as u32;
            let (length, bytes) = match before > 0 || left < unit {
                true => (unit, left.min(unit - before)),
                false => ((left - left % unit).min(most), (left - left % unit).min(most)),
            };
            let data = before as usize..(before + bytes) as usize;
            let part = Part { offset: at - u64::from(before), length, data };
            at += u64::from(bytes);
            (bytes > 0).then_some(part)
        })
    }

    fn command(&self, opcode: u8, part: &Part) -> Command {
        let namespace = self.session.namespace();
        let unit = namespace.block_bytes;
        Command::blocks(opcode, namespace.nsid, part.offset / u64::from(unit), part.length / unit, Sgl::NONE)
    }

    fn buffer(&mut self, bytes: u32) -> Result<Buffer> {
        let bytes = bytes as usize;
        self.held += bytes;
        let size = bytes.max(PART as usize);
        let mut buffer = match self.spare.pop() {
            Some(buffer) => buffer,
            None => Buffer::new(size)?,
        };
        if buffer.capacity() < bytes {
            buffer = Buffer::new(size)?;
        }
        buffer.set_len(bytes);
        Ok(buffer)
    }

    fn start_request(&mut self, request: &NbdRequest, commands: Commands, then: Commands) {
        let id = self.next_id;
        self.next_id += 1;
        self.active.insert(
            id,
            Active {
                cookie: request.cookie,
                offset: request.offset,
                length: request.length,
                kind: request.kind,
                left: commands.len(),
                error: 0,
                flush: request.kind == RequestType::Trim && request.flags & FUA != 0,
                data: commands.iter().map(|(_, _, range)| (None, range.clone())).collect(),
                alone: !then.is_empty(),
                then,
            },
        );
        for ((command, buffer, _), part) in commands.into_iter().zip(0_u64..) {
            self.waiting.push_back(Submission { token: id << 20 | part, command, buffer });
        }
    }

    pub(super) fn completed(&mut self, done: Done) {
        let (id, part) = (done.token >> 20, (done.token & 0xF_FFFF) as usize);
        let active = self.active.get_mut(&id).expect("a request in flight");
        if !done.status().is_success() && active.error == 0 {
            active.error = error_of(done.status());
        }
        if active.kind == RequestType::Read || !active.then.is_empty() {
            active.data[part].0 = done.buffer;
        } else if let Some(buffer) = done.buffer {
            self.held -= buffer.len();
            release(&mut self.spare, buffer);
        }
        active.left -= 1;
        if active.left > 0 {
            return;
        }
        if active.error == 0 && std::mem::take(&mut active.flush) {
            active.left = 1;
            let command = Command::new(io::FLUSH, self.session.namespace().nsid);
            self.waiting.push_back(Submission { token: done.token, command, buffer: None });
            return;
        }
        if active.error == 0 && !active.then.is_empty() {
            let mut blocks = std::mem::take(&mut active.data).into_iter();
            active.left = active.then.len();
            for ((command, mut buffer, range), part) in std::mem::take(&mut active.then).into_iter().zip(0..)
            {
                if let Some(buffer) = buffer.as_mut().filter(|_| !range.is_empty()) {
                    let block = blocks.next().and_then(|(block, _)| block).expect("a block that was read");
                    let data = std::mem::replace(buffer, block);
                    buffer.bytes_mut()[range.clone()].copy_from_slice(&data.bytes()[range]);
                    self.held -= data.len();
                    release(&mut self.spare, data);
                }
                self.waiting.push_back(Submission { token: id << 20 | part, command, buffer });
            }
            return;
        }
        let active = self.active.remove(&id).expect("looked at before");
        if matches!(active.kind, RequestType::Write | RequestType::WriteZeroes) {
            self.pass.leave(active.alone);
        }
        self.counters.count(active.kind, active.length, active.error != 0);
        let header = match active.kind {
            RequestType::Read if self.features.structured && active.error == 0 => {
                data_chunk(active.cookie, active.offset, active.length)
            }
            kind => self.status_reply(kind, active.cookie, active.error),
        };
        self.output.push_back(Output::Header(header));
        let unused = active.then.into_iter().map(|(_, buffer, range)| (buffer, range));
        for (buffer, range) in active.data.into_iter().chain(unused) {
            match buffer {
                Some(buffer) if active.error == 0 => self.output.push_back(Output::Data(buffer, range)),
                Some(buffer) => {
                    self.held -= buffer.len();
                    release(&mut self.spare, buffer);
                }
                None => {}
            }
        }
    }
}

/// Returns the error number of the NBD reply for the status of an NVMe command.
fn error_of(status: Status) -> u32 {
    match Status(status.0 & 0x7FF) {
        Status::LBA_OUT_OF_RANGE | Status::CAPACITY_EXCEEDED => error::ENOSPC,
        Status::WRITE_PROTECTED | Status::ACCESS_DENIED => error::EPERM,
        Status::INVALID_FIELD => error::EINVAL,
        _ => error::EIO,
    }
}

/// Keeps an unused buffer for a later request.
pub(super) fn release(spare: &mut Vec<Buffer>, buffer: Buffer) {
    if spare.len() < MAX_REQUESTS && buffer.capacity() >= PART as usize {
        spare.push(buffer);
    }
}
