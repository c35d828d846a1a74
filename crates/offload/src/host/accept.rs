//! Runs the listeners: answers SYNs, completes handshakes, and hands the new connections to the programs that
//! accept them.

use super::Engine;
use super::input::ReceivedPacket;
use super::request::OwningProgram;
use super::stream::CHECKED_READS;
use crate::host::pair;
use crate::host::socket::{Pending, Role, Socket};
use crate::stack::arena::Key;
use inlane_tcp::{Connection, Flow, Header, Segment, TimeWait, Verdict};
use inlane_wire::tcp::RST;
use std::io;
use std::os::fd::AsRawFd;

/// How long a thread waits before its first retry to send a connection to the program, in nanoseconds. Each
/// further wait is twice as long, until it has doubled `MOST_DOUBLINGS` times.
const RETRY_NS: u64 = 2_000_000;
const MOST_DOUBLINGS: u32 = 6;

impl Engine {
    /// Hands a segment to a listener. Returns true if the listener replied or completed a handshake. The
    /// caller then removes a TIME-WAIT entry of the same flow. Returns false if the listener dropped the
    /// segment.
    pub(super) fn on_listener_segment(
        &mut self,
        now: u64,
        key: Key,
        flow: &Flow,
        segment: &Segment<'_>,
        previous: Option<&TimeWait>,
        packet: &ReceivedPacket<'_>,
    ) -> bool {
        let Some(Socket { role: Role::Listening(listening), .. }) = self.sockets.get_mut(key) else {
            return false;
        };
        listening.note_elsewhere();
        let verdict = listening.listener.on_segment(now, flow, segment, previous);
        let deadline = listening.listener.next_deadline();
        if let Some(deadline) = deadline {
            self.arm(key, deadline);
        }
        match verdict {
            Verdict::Drop => false,
            // The listener on this thread has no handshake for the segment, so it replies with a reset. But
            // the SYN may have arrived on another queue. So pass the segment to the next thread instead of
            // sending the reset.
            Verdict::Reply(header)
                if header.has(RST) && self.shared.is_some() && self.pass_to_next(packet) =>
            {
                false
            }
            Verdict::Reply(header) => {
                self.send_header(now, flow, &header);
                true
            }
            Verdict::Established(handshake) => {
                self.establish(now, key, flow, segment, &handshake);
                true
            }
        }
    }

    /// Creates the connection of a completed handshake. Queues the connection for the program.
    fn establish(
        &mut self,
        now: u64,
        listener: Key,
        flow: &Flow,
        segment: &Segment<'_>,
        handshake: &inlane_tcp::Handshake,
    ) {
        let Some(socket) = self.sockets.get(listener) else { return };
        let (process, program, v6) = (socket.process, socket.program.clone(), socket.v6);
        let closer = socket.closer.clone();
        let mut options = socket.options.clone();
        (options.reuse_address, options.reuse_port) = (false, false);
        let (keepalive, linger) = (options.keepalive, options.linger);
        let Some(route) = self.network.route(flow.remote.ip()) else { return };
        let config = options.config(self.settings.buffer, self.network.mss(route, flow.remote.is_ipv6()));
        let Ok(mut connection) = Connection::accept(now, &config, handshake) else { return };
        connection.set_cork(options.cork);
        let mut stream = self.stream_of(now, *flow, route, connection);
        // The pair is empty, because the program has not received its end yet. Epoll will report the first
        // data.
        stream.readable = false;
        stream.checked_reads = CHECKED_READS;
        stream.unaccepted = true;
        let owner = OwningProgram { process, program: &program, v6, closer: &closer };
        let role = Role::Stream(Box::new(stream));
        let created = self.create_unnamed(owner, flow.local, Some(flow.remote), options, role);
        let Ok((key, program_end, name)) = created else {
            // The program has too many sockets, or the engine has too few free descriptors. Reset the
            // connection, because the peer already considers it established.
            if let Some(header) = inlane_tcp::reset_for(segment) {
                self.send_header(now, flow, &header);
            }
            return;
        };
        pair::keep_options(&program_end, keepalive, linger);
        if !self.claim_flow(*flow, key) {
            self.remove(key);
            return;
        }
        if let Some(Socket { role: Role::Listening(listening), .. }) = self.sockets.get_mut(listener) {
            listening.queue(Pending { key, program: program_end, name });
        }
        self.totals.accepted += 1;
        self.touch(listener);
        self.on_stream_segment(now, key, segment);
    }

    /// Sends the listener's queued connections to the program until the listener's socket pair is full.
    /// Removes the listener if the program has closed it. After another error, tries again later. Examples
    /// are too little memory and too many descriptors in flight.
    pub(super) fn serve_listener(&mut self, now: u64, key: Key) {
        let jitter = self.random() % RETRY_NS;
        let several = self.shared.is_some();
        let Some(socket) = self.sockets.get_mut(key) else { return };
        let fd = socket.fd();
        let Role::Listening(listening) = &mut socket.role else { return };
        let Some(fd) = fd.filter(|_| !listening.hung_up) else {
            self.remove(key);
            return;
        };
        // A program can send something only if it changes the pair's buffer by a raw system call. It may have sent a
        // descriptor of its own end, which would then never close.
        if std::mem::take(&mut listening.unread)
            && pair::unread(fd).is_none_or(|bytes| bytes > listening.filled)
        {
            self.remove(key);
            return;
        }
        let mut retry = None;
        while !listening.full
            && let Some(pending) = listening.take()
        {
            let record = pending.name.encode();
            match pair::send_descriptor(fd, &record, Some(pending.program.as_raw_fd())) {
                Ok(_) => listening.failures = 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || !pair::hung_up(fd) => {
                    listening.full = true;
                    listening.requeue(pending);
                    // Retry after a timer if epoll may stay silent. Epoll reports room only once most of the
                    // socket pair is empty. But if threads share the pair, other threads may keep it fuller
                    // than that. Errors other than a full pair cause no event at all.
                    if several || error.kind() != io::ErrorKind::WouldBlock {
                        let wait = RETRY_NS << listening.failures.min(MOST_DOUBLINGS);
                        listening.failures += 1;
                        retry = Some(now + wait + jitter);
                    }
                }
                Err(_) => {
                    // The program has closed the listener. Dropping `pending` closes the program's end of the
                    // new connection's socket pair, so the engine resets that connection.
                    let connection = pending.key;
                    drop(pending);
                    self.touch(connection);
                    self.remove(key);
                    return;
                }
            }
        }
        if let Some(retry) = retry {
            self.arm(key, retry);
        }
    }

    /// Sends a segment without payload on a flow that has no connection.
    pub(super) fn send_header(&mut self, now: u64, flow: &Flow, header: &Header) {
        let Some(route) = self.network.route(flow.remote.ip()) else { return };
        let segment = super::stream::Outgoing { flow, header: *header, ring: None, payload: 0..0 };
        self.network.send(now, route, flow.local.ip(), flow.remote.ip(), 0, &segment);
    }

    /// Retransmits unanswered SYN,ACKs of a listener. Tries again to send the queued connections to the program.
    pub(super) fn on_listener_timer(&mut self, now: u64, key: Key) {
        let Some(Socket { role: Role::Listening(listening), .. }) = self.sockets.get_mut(key) else { return };
        let mut replies: Vec<(Flow, Header)> = Vec::new();
        listening.listener.on_timer(now, |flow, header| replies.push((*flow, header)));
        let deadline = listening.listener.next_deadline();
        let waits = std::mem::take(&mut listening.full) && listening.listener.acceptable() > 0;
        for (flow, header) in replies {
            self.send_header(now, &flow, &header);
        }
        if waits {
            self.touch(key);
        }
        if let Some(deadline) = deadline {
            self.arm(key, deadline);
        }
    }
}
