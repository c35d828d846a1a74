//! Serves one NBD client. Reads the client's requests, runs them as NVMe commands, and writes the replies.

mod gate;
mod receive;
mod request;

use super::protocol::NbdRequest;
use super::result::Counters;
use gate::Pass;
use inlane_nvme::initiator::{Buffer, Queue, Session, Submission, sleep};
use inlane_nvme::input::Input;
use inlane_nvme::{Error, Result};
use request::{Active, Parts};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendFlags, sendmsg};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest sleep while no socket is ready. It bounds how late a stop request is seen.
const TICK: Duration = Duration::from_millis(100);
/// The most bytes of requests and replies that are kept in memory for a client. Above it, reading from the
/// client pauses.
const MAX_HELD: usize = 64 << 20;
/// The most unanswered requests of a client. Above it, reading from the client pauses.
const MAX_REQUESTS: usize = 256;
/// A limit for two numbers: the parts of replies that wait to be sent, and the NVMe commands that wait for
/// the session. If either is above the limit, reading from the client pauses.
const MAX_PARTS: usize = 4096;
/// The longest sleep while the session reconnects, or a request waits for other clients. No socket shows the end of either.
const SHORT_TICK: Duration = Duration::from_millis(5);

/// A reply or a part of a reply.
enum Output {
    Header([u8; 16]),
    /// A range of a buffer.
    Data(Buffer, Range<usize>),
}

impl Output {
    fn bytes(&self) -> &[u8] {
        match self {
            Output::Header(bytes) => bytes,
            Output::Data(buffer, range) => &buffer.bytes()[range.clone()],
        }
    }
}

/// What the server reads next from the client: a request, the data of a write, or data to discard.
enum Reading {
    Request,
    /// The data of a write request. It is received into `buffers`, which all exist. `part` parts are complete, and `at` bytes
    /// of the next one.
    Data {
        request: NbdRequest,
        buffers: Parts,
        part: usize,
        at: usize,
    },
    /// A request with data was refused. This is the number of its data bytes that must still be read and
    /// discarded.
    Skip(usize),
}

pub(super) struct Client<'a> {
    /// The client's socket.
    stream: File,
    session: Session,
    counters: &'a Counters,
    pass: Pass<'a>,
    /// A request that writes, and cannot pass the gate yet. Further requests are read after it has passed.
    blocked: Option<(NbdRequest, Parts)>,
    input: Input,
    reading: Reading,
    /// True if no further requests are read: the client disconnects, or the server stops.
    closing: bool,
    /// True if the client has closed its connection. Replies are then discarded.
    gone: bool,
    active: HashMap<u64, Active>,
    next_id: u64,
    /// NVMe commands that wait until the session's queue has room for them.
    waiting: VecDeque<Submission>,
    output: VecDeque<Output>,
    /// The number of bytes of `output`'s first element that were already sent.
    sent: usize,
    spare: Vec<Buffer>,
    held: usize,
}

impl<'a> Client<'a> {
    pub(super) fn new(stream: File, session: Session, counters: &'a Counters, gate: &'a Gate) -> Self {
        Self {
            stream,
            session,
            counters,
            pass: Pass::new(gate),
            blocked: None,
            input: Input::default(),
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

    /// Serves requests until the client ends or `stop` is set. Before returning, completes the requests in
    /// flight and sends their replies.
    ///
    /// # Errors
    /// If the connection to the client or the session fails.
    pub(super) fn serve(mut self, stop: &AtomicBool) -> Result<()> {
        let mut result = Ok(());
        loop {
            self.closing |= stop.load(Ordering::Relaxed);
            let mut moved = self.exchange().unwrap_or_else(|error| {
                // Requests in flight still complete, because other clients must not pass the gate while they may write.
                (self.closing, self.gone, self.blocked) = (true, true, None);
                result = Err(error);
                true
            });
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
            if self.closing && self.blocked.is_none() && self.active.is_empty() && self.output.is_empty() {
                self.session.close();
                return result;
            }
            if !moved && !self.session.has_work() {
                self.wait();
            }
        }
    }

    /// Sends replies to the client and receives its requests. Returns true if anything was sent, received or started.
    fn exchange(&mut self) -> Result<bool> {
        let mut moved = self.send()?;
        if let Some((request, parts)) = self.blocked.take() {
            self.start_write(request, parts)?;
            moved |= self.blocked.is_none();
        }
        if !self.closing && !self.is_full() {
            moved |= self.parse_rest()? || self.receive()?;
        }
        Ok(moved)
    }

    fn is_full(&self) -> bool {
        self.blocked.is_some()
            || self.held >= MAX_HELD
            || self.active.len() >= MAX_REQUESTS
            || self.output.len().max(self.waiting.len()) >= MAX_PARTS
    }

    /// Returns the socket events for which the server waits on the client's socket.
    fn client_events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        if !self.closing && !self.is_full() {
            events |= PollFlags::IN;
        }
        if !self.output.is_empty() && !self.gone {
            events |= PollFlags::OUT;
        }
        events
    }

    /// Blocks until a socket is ready, for at most `TICK`.
    fn wait(&self) {
        let mut sockets: Vec<_> = self.session.queues().map(Queue::interest).collect();
        let tick = if sockets.is_empty() || self.blocked.is_some() { SHORT_TICK } else { TICK };
        let client = self.client_events();
        // Leave the client out if nothing is awaited from it, because a closed connection is always ready.
        if !client.is_empty() {
            sockets.push(PollFd::new(&self.stream, client));
        }
        sleep(&mut sockets, tick);
    }

    /// Sends queued replies to the client until its socket is full. Returns true if something was sent.
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
                        if let Some(Output::Data(buffer, _)) = self.output.pop_front() {
                            self.release(Some(buffer));
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

pub(super) use gate::Gate;

pub(super) fn lost(source: std::io::Error) -> Error {
    Error::Os { what: "the client's connection failed".into(), source }
}

#[cfg(test)]
mod tests;
