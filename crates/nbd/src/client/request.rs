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
    /// The data of a read, with one buffer for each command, in order of offsets. A buffer is `None` until
    /// its command completes.
    data: Vec<Option<Buffer>>,
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
        let unit = namespace.block_bytes;
        if !request.length.is_multiple_of(unit) || !request.offset.is_multiple_of(unit.into()) {
            if !std::mem::replace(&mut self.unaligned, true) {
                (self.log)(&format!(
                    "an NBD client ignores that requests must be aligned to {unit} bytes; put qemu-nbd between, which \
                     aligns them"
                ));
            }
            return Err(error::EINVAL);
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
                let buffers = self.parts(&request).map(|(_, bytes)| bytes).collect::<Vec<_>>();
                let buffers = buffers.into_iter().map(|bytes| self.buffer(bytes)).collect::<Result<_>>()?;
                self.reading = Reading::Data { request, buffers, part: 0, at: 0 };
            }
            RequestType::Read => {
                let parts: Vec<_> = self.parts(&request).collect();
                let mut commands = Vec::new();
                for (at, bytes) in parts {
                    commands.push((self.command(io::READ, at, bytes), Some(self.buffer(bytes)?)));
                }
                self.start_request(&request, commands);
            }
            RequestType::Flush => self.start_request(&request, vec![(Command::new(io::FLUSH, nsid), None)]),
            RequestType::Trim => {
                let unit = u64::from(self.session.namespace().block_bytes);
                let range = dsm::Range {
                    attributes: 0.into(),
                    blocks: (u64::from(request.length) / unit).try_into().unwrap_or(u32::MAX).into(),
                    lba: (request.offset / unit).into(),
                };
                let mut buffer = Buffer::new(size_of::<dsm::Range>())?;
                buffer.bytes_mut().copy_from_slice(range.as_bytes());
                self.held += buffer.len();
                let mut command = Command::new(io::DATASET_MANAGEMENT, nsid);
                command.cdw11 = dsm::DEALLOCATE.into();
                self.start_request(&request, vec![(command, Some(buffer))]);
            }
            RequestType::WriteZeroes => {
                // A Write Zeroes command transfers no data, so it has a different size limit than reads and
                // writes.
                let most = self.session.namespace().max_write_zeroes;
                let mut commands = Vec::new();
                let (mut at, end) = (request.offset, request.offset + u64::from(request.length));
                while at < end {
                    let bytes = (end - at).min(most);
                    let mut command = self.command(io::WRITE_ZEROES, at, bytes as u32);
                    if request.flags & NO_HOLE == 0 {
                        command.cdw12.set(command.cdw12.get() | io_flags::DEALLOCATE);
                    }
                    commands.push((command, None));
                    at += bytes;
                }
                self.start_request(&request, commands);
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

    pub(super) fn write(&mut self, request: &NbdRequest, buffers: Vec<Buffer>) {
        let parts = self.parts(request).collect::<Vec<_>>().into_iter().zip(buffers);
        let commands =
            parts.map(|((at, bytes), buffer)| (self.command(io::WRITE, at, bytes), Some(buffer))).collect();
        self.start_request(request, commands);
    }

    /// Divides a request into parts, each small enough for one command. Returns the offset and the length of
    /// each part, in bytes.
    fn parts(&self, request: &NbdRequest) -> impl Iterator<Item = (u64, u32)> + use<> {
        let namespace = self.session.namespace();
        let most = (PART.min(namespace.max_transfer) / namespace.block_bytes).max(1) * namespace.block_bytes;
        let (offset, length) = (request.offset, request.length);
        (0..length).step_by(most as usize).map(move |at| (offset + u64::from(at), most.min(length - at)))
    }

    fn command(&self, opcode: u8, at: u64, bytes: u32) -> Command {
        let namespace = self.session.namespace();
        let unit = u64::from(namespace.block_bytes);
        let blocks = (u64::from(bytes) / unit) as u32;
        Command::blocks(opcode, namespace.nsid, at / unit, blocks, Sgl::NONE)
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

    fn start_request(&mut self, request: &NbdRequest, commands: Vec<(Command, Option<Buffer>)>) {
        let id = self.next_id;
        self.next_id += 1;
        let count = commands.len();
        self.active.insert(
            id,
            Active {
                cookie: request.cookie,
                offset: request.offset,
                length: request.length,
                kind: request.kind,
                left: count,
                error: 0,
                flush: request.kind == RequestType::Trim && request.flags & FUA != 0,
                data: (0..count).map(|_| None).collect(),
            },
        );
        for ((mut command, buffer), part) in commands.into_iter().zip(0_u64..) {
            let unit_access = matches!(command.opcode, io::WRITE | io::WRITE_ZEROES);
            if request.flags & FUA != 0 && unit_access {
                command.cdw12.set(command.cdw12.get() | io_flags::FUA);
            }
            self.waiting.push_back(Submission { token: id << 20 | part, command, buffer });
        }
    }

    pub(super) fn completed(&mut self, done: Done) {
        let (id, part) = (done.token >> 20, (done.token & 0xF_FFFF) as usize);
        let active = self.active.get_mut(&id).expect("a request in flight");
        if !done.status().is_success() && active.error == 0 {
            active.error = error_of(done.status());
        }
        if active.kind == RequestType::Read {
            active.data[part] = done.buffer;
        } else if let Some(buffer) = done.buffer {
            self.held -= buffer.len();
            release(&mut self.spare, buffer);
        }
        active.left -= 1;
        if active.left == 0 && active.error == 0 && std::mem::take(&mut active.flush) {
            active.left = 1;
            let command = Command::new(io::FLUSH, self.session.namespace().nsid);
            self.waiting.push_back(Submission { token: done.token, command, buffer: None });
            return;
        }
        if active.left > 0 {
            return;
        }
        let active = self.active.remove(&id).expect("looked at before");
        self.counters.count(active.kind, active.length, active.error != 0);
        let header = match active.kind {
            RequestType::Read if self.features.structured && active.error == 0 => {
                data_chunk(active.cookie, active.offset, active.length)
            }
            kind => self.status_reply(kind, active.cookie, active.error),
        };
        self.output.push_back(Output::Header(header));
        for buffer in active.data.into_iter().flatten() {
            if active.error == 0 {
                self.output.push_back(Output::Data(buffer));
            } else {
                self.held -= buffer.len();
                release(&mut self.spare, buffer);
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
