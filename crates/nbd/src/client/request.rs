//! Runs the requests of a client as NVMe commands.

use super::{Client, MAX_REQUESTS, Output, Reading};
use crate::protocol::{FUA, MAX_DATA, NO_HOLE, NbdRequest, error, reply, request as kind};
use inlane_nvme::Result;
use inlane_nvme::initiator::Buffer;
use inlane_nvme::initiator::connection::{Done, Submission};
use inlane_nvme::wire::command::{Command, Status, dsm, io, io_flags};
use std::ops::Range;
use zerocopy::IntoBytes;

/// The most bytes that one NVMe command transfers. A longer request is divided into several commands.
const PART: u32 = 128 << 10;

/// A request whose commands are in progress.
pub(super) struct Active {
    request: NbdRequest,
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
pub(super) type Parts = Vec<(Option<Buffer>, Part)>;

impl Part {
    fn is_partial(&self) -> bool {
        self.data.len() < self.length as usize
    }
}

impl Client<'_> {
    /// Checks a request. Returns the error number of the reply if the request must be refused.
    fn check(&mut self, request: &NbdRequest) -> Result<(), u32> {
        let namespace = *self.session.namespace();
        let kind = request.kind.get();
        let writes = matches!(kind, kind::WRITE | kind::TRIM | kind::WRITE_ZEROES);
        match kind {
            kind::FLUSH | kind::DISCONNECT => return Ok(()),
            _ if writes && namespace.read_only => return Err(error::EPERM),
            kind::TRIM if !namespace.deallocate => return Err(error::ENOTSUP),
            kind::WRITE_ZEROES if !namespace.write_zeroes => return Err(error::ENOTSUP),
            kind::READ | kind::WRITE if request.length.get() > MAX_DATA => return Err(error::EINVAL),
            kind::READ | kind::WRITE | kind::TRIM | kind::WRITE_ZEROES if request.length != 0 => {}
            _ => return Err(error::EINVAL),
        }
        match request.offset.get().checked_add(request.length.get().into()) {
            Some(end) if end <= namespace.bytes() => Ok(()),
            _ if writes => Err(error::ENOSPC),
            _ => Err(error::EINVAL),
        }
    }

    pub(super) fn begin(&mut self, request: NbdRequest) -> Result<()> {
        if let Err(refused) = self.check(&request) {
            self.answer(&request, refused);
            let has_data = request.kind == kind::WRITE;
            self.reading = Reading::Skip(if has_data { request.length.get() as usize } else { 0 });
            return Ok(());
        }
        let namespace = *self.session.namespace();
        let parts = self.parts(&request, PART.min(namespace.max_transfer));
        match request.kind.get() {
            kind::DISCONNECT => self.closing = true,
            kind::WRITE => {
                let buffers = parts.map(|part| Ok((Some(self.buffer(part.length)?), part)));
                let buffers = buffers.collect::<Result<_>>()?;
                self.reading = Reading::Data { request, buffers, part: 0, at: 0 };
            }
            kind::READ => {
                let commands = parts.map(|part| {
                    let command = self.command(io::READ, &part);
                    Ok((command, Some(self.buffer(part.length)?), part.data))
                });
                let commands = commands.collect::<Result<_>>()?;
                self.start_request(request, commands, Vec::new());
            }
            kind::FLUSH => {
                let flush = Command::new(io::FLUSH, namespace.nsid);
                self.start_request(request, vec![(flush, None, 0..0)], Vec::new());
            }
            kind::TRIM => {
                let unit = u64::from(namespace.block_bytes);
                let end = (request.offset.get() + u64::from(request.length.get())) / unit;
                let first = request.offset.get().div_ceil(unit);
                // Parts of blocks keep their contents, because a trim is only a hint.
                if end <= first {
                    self.answer(&request, 0);
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
                let mut command = Command::new(io::DATASET_MANAGEMENT, namespace.nsid);
                command.cdw11 = dsm::DEALLOCATE.into();
                self.start_request(request, vec![(command, Some(buffer), 0..0)], Vec::new());
            }
            _ => {
                // A Write Zeroes command transfers no data, so it has a different size limit than reads and
                // writes.
                let most = namespace.max_write_zeroes.try_into().unwrap_or(u32::MAX);
                let mut parts = Vec::new();
                for part in self.parts(&request, most) {
                    let mut buffer = None;
                    if part.is_partial() {
                        buffer.insert(self.buffer(part.length)?).bytes_mut().fill(0);
                    }
                    parts.push((buffer, part));
                }
                self.start_write(request, parts)?;
            }
        }
        Ok(())
    }

    /// Counts a request and replies to it.
    fn answer(&mut self, request: &NbdRequest, error: u32) {
        self.counters.count(request, error);
        self.output.push_back(Output::Header(reply(request.cookie, error)));
    }

    /// Starts a request that writes `parts`. A part without a buffer becomes zeros. If other writes are in progress, and the
    /// request or one of these contains a part of a block, lets the request wait.
    pub(super) fn start_write(&mut self, request: NbdRequest, parts: Parts) -> Result<()> {
        let alone = parts.iter().any(|(_, part)| part.is_partial());
        if !self.pass.enter(alone) {
            self.blocked = Some((request, parts));
            return Ok(());
        }
        let (mut reads, mut writes) = (Vec::new(), Vec::with_capacity(parts.len()));
        for (buffer, part) in parts {
            let mut command =
                self.command(if buffer.is_some() { io::WRITE } else { io::WRITE_ZEROES }, &part);
            let mut flags = if request.flags.get() & FUA != 0 { io_flags::FUA } else { 0 };
            if buffer.is_none() && request.flags.get() & NO_HOLE == 0 {
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
            true => self.start_request(request, reads, writes),
            false => self.start_request(request, writes, Vec::new()),
        }
        Ok(())
    }

    /// Divides a request into parts, each small enough for one command of at most `most` bytes. Parts of blocks are parts of
    /// their own.
    fn parts(&self, request: &NbdRequest, most: u32) -> impl Iterator<Item = Part> + use<> {
        let unit = self.session.namespace().block_bytes;
        let most = (most / unit).max(1) * unit;
        let mut at = request.offset.get();
        let end = at.saturating_add(request.length.get().into());
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
        self.session.namespace().command(opcode, part.offset, part.length.into())
    }

    fn buffer(&mut self, bytes: u32) -> Result<Buffer> {
        let bytes = bytes as usize;
        self.held += bytes;
        let size = bytes.max(PART as usize);
        let mut buffer = match self.spare.pop() {
            Some(buffer) if buffer.capacity() >= bytes => buffer,
            _ => Buffer::new(size)?,
        };
        buffer.set_len(bytes);
        Ok(buffer)
    }

    fn start_request(&mut self, request: NbdRequest, commands: Commands, then: Commands) {
        let id = self.next_id;
        self.next_id += 1;
        let active = Active {
            request,
            left: commands.len(),
            error: 0,
            flush: request.kind == kind::TRIM && request.flags.get() & FUA != 0,
            data: commands.iter().map(|(_, _, range)| (None, range.clone())).collect(),
            alone: !then.is_empty(),
            then,
        };
        self.active.insert(id, active);
        for ((command, buffer, _), part) in commands.into_iter().zip(0..) {
            self.waiting.push_back(Submission { token: id << 20 | part, command, buffer });
        }
    }

    pub(super) fn completed(&mut self, done: Done) {
        let (id, part) = (done.token >> 20, (done.token & 0xF_FFFF) as usize);
        let mut active = self.active.remove(&id).expect("a request in flight");
        if !done.status().is_success() && active.error == 0 {
            active.error = error_of(done.status());
        }
        if active.request.kind == kind::READ || !active.then.is_empty() {
            active.data[part].0 = done.buffer;
        } else {
            self.release(done.buffer);
        }
        active.left -= 1;
        if active.left == 0 && active.error == 0 && std::mem::take(&mut active.flush) {
            active.left = 1;
            let command = Command::new(io::FLUSH, self.session.namespace().nsid);
            self.waiting.push_back(Submission { token: done.token, command, buffer: None });
        }
        if active.left == 0 && active.error == 0 && !active.then.is_empty() {
            let mut blocks = std::mem::take(&mut active.data).into_iter();
            active.left = active.then.len();
            for ((command, mut buffer, range), part) in std::mem::take(&mut active.then).into_iter().zip(0..)
            {
                if let Some(buffer) = buffer.as_mut().filter(|_| !range.is_empty()) {
                    let block = blocks.next().and_then(|(block, _)| block).expect("a block that was read");
                    let data = std::mem::replace(buffer, block);
                    buffer.bytes_mut()[range.clone()].copy_from_slice(&data.bytes()[range]);
                    self.release(Some(data));
                }
                self.waiting.push_back(Submission { token: id << 20 | part, command, buffer });
            }
        }
        if active.left > 0 {
            self.active.insert(id, active);
            return;
        }
        if matches!(active.request.kind.get(), kind::WRITE | kind::WRITE_ZEROES) {
            self.pass.leave(active.alone);
        }
        self.answer(&active.request, active.error);
        let unused = active.then.into_iter().map(|(_, buffer, range)| (buffer, range));
        for (buffer, range) in active.data.into_iter().chain(unused) {
            match buffer {
                Some(buffer) if active.error == 0 => self.output.push_back(Output::Data(buffer, range)),
                buffer => self.release(buffer),
            }
        }
    }

    /// Keeps an unused buffer for a later request.
    pub(super) fn release(&mut self, buffer: Option<Buffer>) {
        let Some(buffer) = buffer else { return };
        self.held -= buffer.len();
        if self.spare.len() < MAX_REQUESTS && buffer.capacity() >= PART as usize {
            self.spare.push(buffer);
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
