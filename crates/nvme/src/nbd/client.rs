//! Serves one NBD client: reads its requests, runs them as NVMe commands, and writes the replies.

use super::listen::Stream;
use super::protocol::{
    FUA, Features, Kind, MAX_DATA, NO_HOLE, NbdRequest, REQUEST, allocated_chunk, data_chunk, error,
    error_chunk, parse_request, reply,
};
use super::result::Counters;
use crate::command::{Command, Sgl, Status, dsm, io, io_flags};
use crate::initiator::connection::{Done, Request};
use crate::initiator::{Buffer, Session};
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, sendmsg};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, IoSlice, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// The longest sleep while no socket is ready. It bounds how late a stop request is seen.
const TICK: Duration = Duration::from_millis(100);
/// The most bytes of requests and replies that are kept in memory for a client. Above it, reading from the
/// client pauses.
const MAX_HELD: usize = 64 << 20;
/// The most unanswered requests of a client. Above it, reading from the client pauses.
const MAX_REQUESTS: usize = 256;
/// The most bytes that one NVMe command transfers. A longer request is divided into several commands.
const PART: u32 = 128 << 10;

/// A request whose commands are in progress.
struct Active {
    cookie: u64,
    offset: u64,
    length: u32,
    kind: Kind,
    /// The number of commands of this request that have not completed.
    left: usize,
    error: u32,
    /// The data of a read: one buffer for each command, in order of offsets. `None` until the command
    /// completes.
    data: Vec<Option<Buffer>>,
}

/// What the server reads next from the client: a request, the data of a write, or data to discard.
enum Reading {
    Request,
    /// Data of a write. It is received into these buffers.
    Data {
        request: NbdRequest,
        buffers: Vec<Buffer>,
        part: usize,
        at: usize,
    },
    /// The number of bytes of a refused request's data that are still to be read and discarded.
    Skip(usize),
}

/// A reply or a part of it.
enum Output {
    Header(Vec<u8>),
    Data(Buffer),
}

impl Output {
    fn bytes(&self) -> &[u8] {
        match self {
            Output::Header(bytes) => bytes,
            Output::Data(buffer) => buffer.bytes(),
        }
    }
}

pub(super) struct Client<'a> {
    stream: Stream,
    session: Session,
    features: Features,
    counters: &'a Counters,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    reading: Reading,
    /// True if no further requests are read: the client disconnects, or the server stops.
    closing: bool,
    /// True if the client has closed its connection. Replies are then discarded.
    gone: bool,
    active: HashMap<u64, Active>,
    next_id: u64,
    /// NVMe commands that wait until the session can submit them, because its queue is full.
    waiting: VecDeque<Request>,
    output: VecDeque<Output>,
    /// The number of bytes of the first output that were already sent.
    sent: usize,
    spare: Vec<Buffer>,
    held: usize,
}

impl<'a> Client<'a> {
    pub(super) fn new(stream: Stream, session: Session, features: Features, counters: &'a Counters) -> Self {
        Self {
            stream,
            session,
            features,
            counters,
            input: vec![0; 64 << 10].into_boxed_slice(),
            start: 0,
            end: 0,
            reading: Reading::Request,
            closing: false,
            gone: false,
            active: HashMap::new(),
            next_id: 0,
            waiting: VecDeque::new(),
            output: VecDeque::new(),
            sent: 0,
            spare: Vec::new(),
            held: 0,
        }
    }

    /// Serves requests until the client ends or `stop` is set. Before it returns, it completes the requests
    /// in flight and sends their replies.
    pub(super) fn serve(mut self, stop: &AtomicBool) -> Result<()> {
        loop {
            self.closing |= stop.load(Ordering::Relaxed);
            let mut moved = false;
            if !self.closing && !self.is_full() {
                moved |= self.receive()?;
            }
            while let Some(request) = self.waiting.pop_front() {
                if let Err(request) = self.session.submit(request) {
                    self.waiting.push_front(request);
                    break;
                }
            }
            self.session.progress(false)?;
            while let Some(done) = self.session.next_done() {
                moved = true;
                self.completed(done);
            }
            moved |= self.send()?;
            if self.closing && self.active.is_empty() && self.output.is_empty() {
                self.session.close();
                return Ok(());
            }
            if !moved {
                self.wait();
            }
        }
    }

    fn is_full(&self) -> bool {
        self.held >= MAX_HELD || self.active.len() >= MAX_REQUESTS
    }

    /// Blocks until a socket is ready, for at most `TICK`.
    fn wait(&self) {
        let mut client = PollFlags::empty();
        if !self.closing && !self.is_full() {
            client |= PollFlags::IN;
        }
        if !self.output.is_empty() {
            client |= PollFlags::OUT;
        }
        let mut sockets = vec![PollFd::new(&self.stream, client)];
        let queues = self.session.queues();
        let fds = queues.map(|queues| queues.map(|queue| (queue.socket(), queue.has_output())));
        for (socket, has_output) in fds.iter().flatten() {
            let flags = if *has_output { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            sockets.push(PollFd::new(socket, flags));
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as _ };
        let _ = poll(&mut sockets, Some(&tick));
    }

    /// Reads from the client. Returns true if something arrived.
    fn receive(&mut self) -> Result<bool> {
        let received = match &mut self.reading {
            // Receive directly into the buffer of the write command, because no earlier bytes wait in the
            // input buffer.
            Reading::Data { buffers, part, at, .. } if self.start == self.end => {
                let result = self.stream.read(&mut buffers[*part].bytes_mut()[*at..]);
                if let Ok(bytes) = &result {
                    *at += bytes;
                }
                result
            }
            _ => {
                self.input.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                let result = self.stream.read(&mut self.input[self.end..]);
                if let Ok(bytes) = &result {
                    self.end += bytes;
                }
                result
            }
        };
        match received {
            Ok(0) => {
                (self.closing, self.gone) = (true, true);
                Ok(true)
            }
            Ok(_) => self.parse().map(|()| true),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(source) => Err(lost(source)),
        }
    }

    fn parse(&mut self) -> Result<()> {
        loop {
            match &mut self.reading {
                Reading::Request => {
                    let Some(bytes) = self.input[self.start..self.end].first_chunk::<REQUEST>() else {
                        return Ok(());
                    };
                    let Some(request) = parse_request(bytes) else {
                        let text = "a request without its magic number";
                        return Err(lost(std::io::Error::new(ErrorKind::InvalidData, text)));
                    };
                    self.start += REQUEST;
                    self.begin(request)?;
                    if self.closing {
                        return Ok(());
                    }
                }
                Reading::Skip(rest) => {
                    let skipped = (*rest).min(self.end - self.start);
                    self.start += skipped;
                    *rest -= skipped;
                    if *rest > 0 {
                        return Ok(());
                    }
                    self.reading = Reading::Request;
                }
                Reading::Data { buffers, part, at, .. } => {
                    let buffer = &mut buffers[*part];
                    let len = (buffer.len() - *at).min(self.end - self.start);
                    let bytes = &self.input[self.start..self.start + len];
                    buffer.bytes_mut()[*at..*at + len].copy_from_slice(bytes);
                    self.start += len;
                    *at += len;
                    if *at < buffer.len() {
                        return Ok(());
                    }
                    (*part, *at) = (*part + 1, 0);
                    if *part == buffers.len() {
                        let data = std::mem::replace(&mut self.reading, Reading::Request);
                        if let Reading::Data { request, buffers, .. } = data {
                            self.write(&request, buffers);
                        }
                    }
                }
            }
        }
    }

    /// Checks a request. Returns the error number of the reply if the request must be refused.
    fn check(&self, request: &NbdRequest) -> Result<(), u32> {
        let namespace = self.session.namespace();
        let writes = matches!(request.kind, Kind::Write | Kind::Trim | Kind::WriteZeroes);
        match request.kind {
            Kind::Other(_) => return Err(error::EINVAL),
            Kind::BlockStatus if !self.features.allocation => return Err(error::EINVAL),
            Kind::Flush | Kind::Disconnect => return Ok(()),
            _ if writes && namespace.read_only => return Err(error::EPERM),
            Kind::Trim if !namespace.deallocate => return Err(error::ENOTSUP),
            Kind::WriteZeroes if !namespace.write_zeroes => return Err(error::ENOTSUP),
            Kind::Read | Kind::Write if request.length > MAX_DATA => return Err(error::EINVAL),
            _ => {}
        }
        let unit = namespace.block_bytes;
        if request.length == 0
            || !request.length.is_multiple_of(unit)
            || !request.offset.is_multiple_of(unit.into())
        {
            return Err(error::EINVAL);
        }
        match request.offset.checked_add(request.length.into()) {
            Some(end) if end <= namespace.bytes() => Ok(()),
            _ if writes => Err(error::ENOSPC),
            _ => Err(error::EINVAL),
        }
    }

    fn begin(&mut self, request: NbdRequest) -> Result<()> {
        if let Err(refused) = self.check(&request) {
            self.counters.count(request.kind, 0, true);
            let header = self.status_reply(request.kind, request.cookie, refused);
            self.output.push_back(Output::Header(header));
            self.reading = Reading::Skip(request.payload() as usize);
            return Ok(());
        }
        let nsid = self.session.namespace().nsid;
        match request.kind {
            Kind::Disconnect => self.closing = true,
            Kind::BlockStatus => {
                self.counters.count(request.kind, 0, false);
                let header = allocated_chunk(request.cookie, request.length);
                self.output.push_back(Output::Header(header));
            }
            Kind::Write => {
                let buffers = self.parts(&request).map(|(_, bytes)| bytes).collect::<Vec<_>>();
                let buffers = buffers.into_iter().map(|bytes| self.buffer(bytes)).collect::<Result<_>>()?;
                self.reading = Reading::Data { request, buffers, part: 0, at: 0 };
            }
            Kind::Read => {
                let parts: Vec<_> = self.parts(&request).collect();
                let mut commands = Vec::new();
                for (at, bytes) in parts {
                    commands.push((self.command(io::READ, at, bytes), Some(self.buffer(bytes)?)));
                }
                self.start_request(&request, commands);
            }
            Kind::Flush => self.start_request(&request, vec![(Command::new(io::FLUSH, nsid), None)]),
            Kind::Trim => {
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
            Kind::WriteZeroes => {
                // Write Zeroes transfers no data, so each command may cover 65,536 blocks, the most that its
                // block count holds.
                let most = u64::from(self.session.namespace().block_bytes) << 16;
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
            Kind::Other(_) => unreachable!("refused before"),
        }
        Ok(())
    }

    /// Returns a reply without data. It is structured if the client has negotiated structured replies and the
    /// request is a read or block status. Other requests get simple replies.
    fn status_reply(&self, kind: Kind, cookie: u64, error: u32) -> Vec<u8> {
        match kind {
            Kind::Read | Kind::BlockStatus if self.features.structured => error_chunk(cookie, error),
            _ => reply(cookie, error).to_vec(),
        }
    }

    fn write(&mut self, request: &NbdRequest, buffers: Vec<Buffer>) {
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
                data: (0..count).map(|_| None).collect(),
            },
        );
        for ((mut command, buffer), part) in commands.into_iter().zip(0_u64..) {
            let unit_access = matches!(command.opcode, io::WRITE | io::WRITE_ZEROES);
            if request.flags & FUA != 0 && unit_access {
                command.cdw12.set(command.cdw12.get() | io_flags::FUA);
            }
            self.waiting.push_back(Request { token: id << 20 | part, command, buffer });
        }
    }

    fn completed(&mut self, done: Done) {
        let (id, part) = (done.token >> 20, (done.token & 0xF_FFFF) as usize);
        let active = self.active.get_mut(&id).expect("a request in flight");
        if !done.status().is_success() && active.error == 0 {
            active.error = error_of(done.status());
        }
        if active.kind == Kind::Read {
            active.data[part] = done.buffer;
        } else if let Some(buffer) = done.buffer {
            self.held -= buffer.len();
            release(&mut self.spare, buffer);
        }
        active.left -= 1;
        if active.left > 0 {
            return;
        }
        let active = self.active.remove(&id).expect("looked at before");
        self.counters.count(active.kind, active.length, active.error != 0);
        let header = match active.kind {
            Kind::Read if self.features.structured && active.error == 0 => {
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

    /// Writes to the client. Returns true if something was sent.
    fn send(&mut self) -> Result<bool> {
        let mut moved = false;
        if self.gone {
            self.output.clear();
        }
        while !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 32];
            let mut filled = 0;
            for (slice, output) in slices.iter_mut().zip(&self.output) {
                let skip = if filled == 0 { self.sent } else { 0 };
                *slice = IoSlice::new(&output.bytes()[skip..]);
                filled += 1;
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, &slices[..filled], &mut Default::default(), flags) {
                Ok(mut bytes) => {
                    moved = true;
                    while let Some(front) = self.output.front() {
                        let rest = front.bytes().len() - self.sent;
                        if bytes < rest {
                            self.sent += bytes;
                            break;
                        }
                        bytes -= rest;
                        self.sent = 0;
                        if let Some(Output::Data(buffer)) = self.output.pop_front() {
                            self.held -= buffer.len();
                            release(&mut self.spare, buffer);
                        }
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                Err(error) => return Err(lost(error.into())),
            }
        }
        Ok(moved)
    }
}

/// Keeps an unused buffer for a later request.
fn release(spare: &mut Vec<Buffer>, buffer: Buffer) {
    if spare.len() < MAX_REQUESTS && buffer.capacity() >= PART as usize {
        spare.push(buffer);
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

fn lost(source: std::io::Error) -> Error {
    Error::Os { what: "the client's connection failed".into(), source }
}
