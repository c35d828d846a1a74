//! Creates the connections that peers open, and hands them to the programs that accept them.

use super::Engine;
use super::pair;
use super::request::OwningProgram;
use super::socket::{Attachment, ListenerPair, Pair, Pending, ProgramEnd, Socket, Stack, StreamPair};
use super::stream::CHECKED_READS;
use crate::lock;
use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use crate::stack::outcome::Established;
use crate::stack::socket::Role;
use crate::stack::stream::Stream;
use inlane_offload_protocol::slots::{Area, Records};
use inlane_tcp::Flow;
use std::io;
use std::os::fd::AsRawFd;

/// How long a thread waits before its first retry to send a connection to the program, in nanoseconds. Each
/// further wait is twice as long, until it has doubled `MOST_DOUBLINGS` times.
const RETRY_NS: u64 = 2_000_000;
const MOST_DOUBLINGS: u32 = 6;

impl Engine {
    /// Creates the connection of a completed handshake. Queues the connection for the program.
    pub(super) fn establish(&mut self, now: u64, established: &Established<'_>) {
        let &Established { listener, flow, segment, handshake, .. } = established;
        let open = |stack: &mut Stack, options: &_| stack.accept_stream(now, flow, &handshake, options);
        match self.create_accepted(now, listener, flow, open) {
            Some(key) => self.stack.on_stream_segment(now, key, &segment),
            // The program has too many sockets, or the engine has too few free descriptors or too little memory. Reset the
            // connection, because the peer already considers it established.
            None => {
                if let Some(header) = inlane_tcp::reset_for(&segment) {
                    self.stack.send_header(now, &flow, &header);
                }
            }
        }
    }

    /// Creates the connection that the card has accepted, with its number and the size of its segments. Queues it for the
    /// program.
    pub(super) fn establish_on_card(
        &mut self,
        now: u64,
        listener: Key,
        flow: Flow,
        (id, segment_size): (u64, u16),
    ) {
        let open = |stack: &mut Stack, options: &_| {
            stack.accepted_card_stream(now, flow, (id, segment_size), options)
        };
        if self.create_accepted(now, listener, flow, open).is_none() {
            self.stack.refuse_card_stream(id);
        }
    }

    /// Creates the socket of a connection that `open` returns, and queues it for the program that listens. Returns its key, or
    /// `None` if that was not possible.
    /// The socket may be gone again at the return.
    fn create_accepted(
        &mut self,
        now: u64,
        listener: Key,
        flow: Flow,
        open: impl FnOnce(&mut Stack, &SocketOptions) -> Option<Stream>,
    ) -> Option<Key> {
        let socket = self.stack.sockets.get(listener)?;
        let Attachment { process, program, closer, pair: Pair::Listening(pair), .. } = &socket.attachment
        else {
            return None;
        };
        let (process, program, closer, v6) = (*process, program.clone(), closer.clone(), socket.v6);
        let client = pair.client.clone();
        let mut options = socket.options.clone();
        (options.reuse_address, options.reuse_port) = (false, false);
        let (keepalive, linger) = (options.keepalive, options.linger);
        let role = Role::Stream(Box::new(open(&mut self.stack, &options)?));
        let kept = self.take_kept(&client, v6, &options);
        let pair = StreamPair {
            checked_reads: CHECKED_READS,
            unaccepted: true,
            reused: kept.is_some().then_some(listener),
            ..StreamPair::new()
        };
        let pair = Pair::Stream(Box::new(pair));
        let owner = OwningProgram { process, program: &program, v6, closer: &closer };
        let (key, program_end, name) = match kept {
            Some(kept) => {
                let addresses = (flow.local, flow.remote);
                let created = self.create_over_kept(now, owner, addresses, options, (role, pair), kept);
                let (key, index, name) = created?;
                (key, ProgramEnd::Kept(index), name)
            }
            None => {
                let created =
                    self.create_unnamed(owner, flow.local, Some(flow.remote), options, (role, pair));
                let (key, program_end, name) = created.ok()?;
                pair::keep_options(&program_end, keepalive, linger);
                (key, ProgramEnd::New(program_end), name)
            }
        };
        if !self.claim_flow(flow, key) {
            // Another thread has a connection of this flow. Do not reset that one.
            self.remove(key);
            return Some(key);
        }
        if let ProgramEnd::New(program_end) = &program_end {
            self.give_slot(now, key, &client, program_end);
        }
        if let Some(Socket {
            role: Role::Listening(listening),
            attachment: Attachment { pair: Pair::Listening(pair), .. },
            ..
        }) = self.stack.sockets.get_mut(listener)
        {
            listening.waiting.queue();
            pair.queue.push_back(Pending { key, program: program_end, name });
        }
        self.totals.accepted += 1;
        self.stack.touch(listener);
        Some(key)
    }

    /// Sends the listener's queued connections to the program until the listener's socket pair is full.
    /// Removes the listener if the program has closed it. After another error, tries again later. Examples
    /// are too little memory and too many descriptors in flight.
    pub(super) fn serve_listener(&mut self, now: u64, key: Key) {
        let jitter = self.stack.random() % RETRY_NS;
        let several = self.shared.is_some();
        let Some(Socket {
            role: Role::Listening(listening),
            attachment: Attachment { pair: Pair::Listening(pair), end, .. },
            ..
        }) = self.stack.sockets.get_mut(key)
        else {
            return;
        };
        let Some(fd) = end.as_ref().map(AsRawFd::as_raw_fd).filter(|_| !pair.hung_up) else {
            self.remove(key);
            return;
        };
        // A program can send something only if it changes the pair's buffer by a raw system call. It may have sent a
        // descriptor of its own end, which would then never close.
        if std::mem::take(&mut pair.unread) && pair::unread(fd).is_none_or(|bytes| bytes > pair.filled) {
            self.remove(key);
            return;
        }
        let mut retry = None;
        let shared = match pair.queue.is_empty() {
            true => None,
            false => pair.client.upgrade().and_then(|client| lock(&client.area).clone()),
        };
        let area = shared.as_ref().map(|shared| shared.area());
        let records = area.as_ref().map(Area::records);
        while !pair.full
            && let Some(pending) = pair.queue.pop_front()
        {
            let (descriptor, kept) = match &pending.program {
                ProgramEnd::New(program) => (Some(program.as_raw_fd()), None),
                ProgramEnd::Kept(index) => (None, Some(*index)),
            };
            let record = pending.name.to_record(records.as_ref().map_or(0, |records| records.tag), kept);
            records.iter().for_each(Records::note_sending);
            let sent = pair::send_descriptor(fd, &record, descriptor);
            if sent.is_err() {
                records.iter().for_each(Records::note_unsent);
            }
            match sent {
                Ok(_) => {
                    pair.failures = 0;
                    listening.waiting.hand_over();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || !pair::hung_up(fd) => {
                    pair.full = true;
                    pair.queue.push_front(pending);
                    // Retry after a timer if epoll may stay silent. Epoll reports room only once most of the
                    // socket pair is empty. But if threads share the pair, other threads may keep it fuller
                    // than that. Errors other than a full pair cause no event at all.
                    if several || error.kind() != io::ErrorKind::WouldBlock {
                        let wait = RETRY_NS << pair.failures.min(MOST_DOUBLINGS);
                        pair.failures += 1;
                        retry = Some(now + wait + jitter);
                    }
                }
                Err(_) => {
                    // The program has closed the listener. Dropping `pending` closes the program's end of the
                    // new connection's socket pair, so the engine resets that connection.
                    self.drop_pending(pending);
                    self.remove(key);
                    return;
                }
            }
        }
        if let Some(end) = end
            && !pair::watch_room(&self.epoll, end, key, &mut pair.awaits_room, pair.full)
        {
            retry = retry.or(Some(now + RETRY_NS + jitter));
        }
        if let Some(retry) = retry {
            self.stack.arm(key, retry);
        }
    }

    /// Counts the connections that wait in a listener's pair, because the engine does not notice when the program takes one.
    /// If the kernel gives no answer, counts none, because a count that only grows would refuse all further connections.
    /// Removes the listener if the program has closed it, because its pair then seems to have room.
    pub(super) fn count_waiting(&mut self, key: Key) {
        if let Some(socket) = self.stack.sockets.get(key)
            && let Role::Listening(listening) = &socket.role
            && let Some(end) = &socket.attachment.end
        {
            listening.waiting.recount(pair::waiting_connections(end).unwrap_or(0));
            if pair::hung_up(end.as_raw_fd()) {
                self.remove(key);
            }
        }
    }

    /// Tries again to send the queued connections of a listener to the program, after its timer was due.
    pub(super) fn retry_listener(&mut self, key: Key) {
        let Some(Socket { attachment: Attachment { pair: Pair::Listening(pair), .. }, .. }) =
            self.stack.sockets.get_mut(key)
        else {
            return;
        };
        let ListenerPair { full, queue, .. } = pair;
        if std::mem::take(full) && !queue.is_empty() {
            self.stack.touch(key);
        }
    }
}
