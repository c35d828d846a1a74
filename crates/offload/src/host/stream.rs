//! The engine's side of connections: moves data between the socket pair, the rings and the TCP state machine.

use super::Engine;
use crate::host::closer::UserCloser;
use crate::host::direct::{Hostile, Turn};
use crate::host::pair;
use crate::host::socket::{Role, Socket, SocketOptions, Stream};
use crate::stack::arena::Key;
use crate::stack::network::{Network, Payload, Route};
use crate::stack::ring::ByteRing;
use inlane_offload_protocol::name::End;
use inlane_tcp::{EndReason, Events, Flow, Header, Segment, State};
use inlane_wire::checksum::Sum;
use inlane_wire::{ipv4, tcp};
use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// The most bytes that one connection moves in each direction before it is the turn of other connections.
const TURN: u64 = 256 << 10;

/// After each of the first 4 reads from the socket pair of an accepted connection, the engine checks whether
/// the program has finished sending. If it has, the FIN is sent with the data. Later reads are not checked,
/// because a longer connection seldom ends right after a given read.
pub(super) const CHECKED_READS: u32 = 4;

/// A TCP segment to send.
pub(super) struct Outgoing<'a> {
    pub flow: &'a Flow,
    pub header: Header,
    /// The ring with the payload. `None` for a segment without payload.
    pub ring: Option<&'a ByteRing>,
    pub payload: Range<u64>,
}

impl Payload for Outgoing<'_> {
    const PROTOCOL: u8 = ipv4::TCP;

    #[inline]
    fn len(&self) -> usize {
        self.header.wire_len() + (self.payload.end - self.payload.start) as usize
    }

    #[inline]
    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>) {
        let ports = (self.flow.local.port(), self.flow.remote.port());
        let header =
            self.header.write(ports.0, ports.1, buffer).expect("the buffer has the segment's length");
        let (front, payload) = buffer.split_at_mut(header);
        match (self.ring, pseudo) {
            (Some(ring), Some(pseudo)) => {
                // Add the header after the payload. The CPU would stall if it read the fields of the header
                // right after it has written them, because it reads several fields at once.
                let sum = ring.read_summed(self.payload.clone(), payload, pseudo);
                let checksum = sum.add_bytes(front).finish();
                tcp::Segment::new(buffer).expect("just written").set_checksum(checksum);
            }
            (Some(ring), None) => ring.read(self.payload.clone(), payload),
            (None, Some(pseudo)) => {
                tcp::Segment::new(buffer).expect("just written").fill_checksum(pseudo);
            }
            (None, None) => {}
        }
    }
}

/// Returns the errno of a failed connection.
fn errno(reason: EndReason) -> i32 {
    match reason {
        // The engine aborts connections when it ends, which docs/offload.md calls a reset.
        EndReason::Reset | EndReason::Aborted => libc::ECONNRESET,
        EndReason::Refused => libc::ECONNREFUSED,
        EndReason::TimedOut => libc::ETIMEDOUT,
        EndReason::Unreachable => libc::EHOSTUNREACH,
    }
}

impl Engine {
    /// Hands a segment to a connection.
    #[inline]
    pub(super) fn on_stream_segment(&mut self, now: u64, key: Key, segment: &Segment<'_>) {
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        let events = stream.connection.on_segment(now, segment, &mut stream.receive);
        self.after_events(key, events);
    }

    pub(super) fn after_events(&mut self, key: Key, events: Events) {
        if events.contains(Events::CONNECTED)
            && let Some(Socket { role: Role::Stream(stream), end: Some(end), closer, .. }) =
                self.sockets.get_mut(key)
        {
            stream.since = self.clock.now_ns();
            if let Some(filled) = stream.filled.take() {
                filled.release(end, closer);
            }
            self.totals.connected += 1;
        }
        self.touch(key);
    }

    /// Runs the timers of a socket whose timer in the wheel is due. If the connection's deadline has moved, sets
    /// the timer again instead.
    pub(super) fn on_timer(&mut self, now: u64, key: Key) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.armed = u64::MAX;
        let Role::Stream(stream) = &mut socket.role else {
            return self.on_listener_timer(now, key);
        };
        if stream.held_until.take_if(|until| *until <= now).is_some() {
            return self.touch(key);
        }
        match stream.connection.next_deadline() {
            Some(deadline) if deadline <= now => {
                let events = stream.connection.on_timer(now);
                self.after_events(key, events);
            }
            Some(deadline) => self.arm(key, deadline),
            None => {}
        }
    }

    /// Sets the timer of a socket to `deadline`. Does nothing if the socket's timer is due earlier. When that
    /// timer expires, `on_timer` sets the later deadline.
    #[inline]
    pub(super) fn arm(&mut self, key: Key, deadline: u64) {
        if let Some(socket) = self.sockets.get_mut(key)
            && deadline < socket.armed
        {
            socket.armed = deadline;
            self.wheel.set(deadline, key);
        }
    }

    /// Ends connections that are being established through neighbours that do not answer.
    pub(super) fn on_silent_neighbours(&mut self, silent: &[IpAddr]) {
        let silent: HashSet<_> = silent.iter().map(|&address| Route::Port(address)).collect();
        let affected = self.sockets.iter().filter(|(_, socket)| {
            socket.stream().is_some_and(|stream| {
                stream.connection.state() == State::SynSent && silent.contains(&stream.route)
            })
        });
        let keys: Vec<Key> = affected.map(|(key, _)| key).collect();
        for key in keys {
            self.finish(key, End::Failed(libc::EHOSTUNREACH));
        }
    }

    /// Moves data between the socket pair and the connection's rings, and sends the segments that TCP allows.
    /// Removes the socket if its connection has ended.
    pub(super) fn serve_stream(&mut self, now: u64, key: Key) {
        let Self { sockets, network, .. } = self;
        let Some(socket) = sockets.get_mut(key) else { return };
        let fd = socket.fd();
        let Role::Stream(stream) = &mut socket.role else { return };
        if stream.filled.is_some() && stream.hung_up && stream.connection.state() == State::SynSent {
            // The program has given the connection up.
            return self.remove(key);
        }
        let mut again = false;
        if let Some(fd) = fd
            && stream.filled.is_none()
        {
            let moved = stream.deliver(now, fd).and_then(|more| {
                again |= more;
                stream.collect(now, fd, &socket.options, &socket.closer)
            });
            if stream.more_end.take_if(|end| *end < stream.written).is_some() {
                stream.connection.set_cork(socket.options.cork);
            }
            match moved {
                Ok(more) => again |= more,
                Err(Hostile) => return self.refuse_hostile(now, key),
            }
        } else if fd.is_none() {
            stream.discard();
        }
        if stream.held_until.is_none() {
            again |= stream.transmit(now, network);
        }
        if stream.resetting {
            stream.connection.abort();
            again |= stream.transmit(now, network);
        }
        let lease = stream.lease();
        let state = stream.connection.state();
        let deadline = stream.connection.next_deadline();
        let (all_delivered, reason) =
            (stream.delivered == stream.connection.received(), stream.connection.reason());
        let peer_closed = stream.connection.peer_closed();
        let undelivered = stream.connection.received() - stream.delivered;
        if let Some(direct) = &mut stream.direct {
            direct.set_waits(peer_closed || undelivered > direct.offered());
        }
        if peer_closed && all_delivered && !stream.end_passed {
            stream.end_passed = true;
            if !stream.hung_up
                && let (Some(end), Some(fd)) = (&socket.end, fd)
            {
                pair::set_end(end, End::Finished, self.number, socket.id, Some(socket.local), &[]);
                // SAFETY: has no preconditions.
                unsafe { libc::shutdown(fd, libc::SHUT_WR) };
            }
        }
        let hung_up = fd.is_some() && stream.program_finished && stream.hung_up;
        if hung_up && let Some(end) = socket.end.take_if(|end| !stream.closes_at_once(end)) {
            super::stop_watching(&self.epoll, &end);
            socket.closer.close(vec![end], Some(Box::new(socket.permit.clone())));
        }
        if hung_up {
            socket.end = None;
        }
        match (state, reason) {
            (State::Closed, Some(reason)) => {
                if let Some(fd) = fd
                    && socket.end.is_some()
                {
                    stream.move_undelivered(fd);
                }
                self.finish(key, End::Failed(errno(reason)));
            }
            (State::Closed | State::TimeWait, _) if all_delivered || fd.is_none() || hung_up => {
                self.enter_time_wait(key);
                self.finish(key, End::Finished);
            }
            _ => {
                if let Some(deadline) = deadline {
                    self.arm(key, deadline);
                }
                if again {
                    self.touch(key);
                }
                if let Some(grants) = lease {
                    self.list_lease(now, key, grants);
                }
            }
        }
    }

    /// Resets a connection whose program broke the protocol of shared memory.
    fn refuse_hostile(&mut self, now: u64, key: Key) {
        self.totals.hostile += 1;
        let Self { sockets, network, .. } = self;
        if let Some(Socket { role: Role::Stream(stream), .. }) = sockets.get_mut(key) {
            stream.direct = None;
            stream.connection.abort();
            stream.transmit(now, network);
        }
        self.finish(key, End::Failed(libc::ECONNRESET));
    }

    fn enter_time_wait(&mut self, key: Key) {
        let Some(stream) = self.sockets.get(key).and_then(Socket::stream) else { return };
        if let Some(entry) = stream.connection.time_wait() {
            let flow = stream.flow;
            self.time_waits.insert(flow, entry);
            self.time_wait_order.push_back((entry.until(), flow));
            self.note_time_wait(flow);
        }
    }

    /// Tells the program how its connection has ended, and removes the socket.
    pub(super) fn finish(&mut self, key: Key, end: End) {
        let number = self.number;
        if let Some(socket) = self.sockets.get_mut(key) {
            if let Some(fd) = &socket.end {
                let options = socket.options.kept();
                pair::set_end(fd, end, number, socket.id, Some(socket.local), &options);
            }
            self.totals.add(socket);
        }
        self.remove(key);
    }
}

impl Stream {
    /// Returns true if a close of the engine's end `end` does not block, because no descriptors wait there and the program
    /// cannot send any more.
    pub fn closes_at_once(&self, end: &OwnedFd) -> bool {
        // Without an error, the program has finished only once the engine has read everything.
        self.program_finished && !self.resetting || pair::has_no_descriptors(end, true)
    }

    /// Limits the connection's rings to the bytes that the program has set by SO_SNDBUF and SO_RCVBUF. Sets the limit of
    /// SO_RCVBUF for the socket pair, too, through `end`, the engine's end of the pair.
    pub(super) fn limit_rings(&mut self, options: &SocketOptions, end: Option<&OwnedFd>) {
        self.connection.set_send_limit(options.send_limit(self.send.capacity()) as u32);
        self.connection.set_receive_capacity(options.receive_limit(self.receive.capacity()) as u32);
        if let (Some(bytes), Some(end)) = (options.receive_buffer, end) {
            // The ring gets half of `bytes`, and the socket pair the other half. Pass a quarter of `bytes`,
            // because setsockopt doubles the number. If the call fails, the pair keeps its size.
            let _ = pair::set_option(end, libc::SO_SNDBUF, bytes / 4);
        }
    }

    /// Treats the next `bytes` bytes in the socket pair as sent with MSG_MORE. Holds small segments back
    /// until more bytes follow, as TCP_CORK does. `fd` is the engine's end of the pair.
    pub(super) fn expect_more(&mut self, fd: RawFd, bytes: u64) {
        if self.filled.is_some() {
            return;
        }
        let in_slot = self.direct.as_ref().map_or(0, |direct| direct.uncopied());
        let end = self.written + in_slot + pair::unread(fd).unwrap_or(0) + bytes;
        if self.more_end.replace(end).is_none() {
            self.connection.set_cork(true);
        }
    }

    /// Delivers received data to the program, through shared memory or the pair. Returns true if the next
    /// round must continue without waiting for an event.
    ///
    /// # Errors
    /// If the program broke the protocol of shared memory.
    fn deliver(&mut self, now: u64, fd: RawFd) -> Result<bool, Hostile> {
        if let Some(direct) = &mut self.direct {
            match direct.settle(now)? {
                Some(taken) => self.delivered += taken,
                None if self.discards => {}
                None => return Ok(false),
            }
        }
        let received = self.connection.received();
        let stop = received.min(self.delivered + TURN);
        if self.discards {
            self.discard();
            return Ok(false);
        }
        if let Some(direct) = &mut self.direct {
            let (first, second) = self.receive.parts(self.delivered..received);
            if direct.offer(now, fd, first, second) {
                self.publish_consumed();
                return Ok(false);
            }
            if self.delivered < received && direct.expects_post(now) {
                self.publish_consumed();
                return Ok(true);
            }
        }
        while self.writable && self.delivered < stop {
            let (first, second) = self.receive.parts(self.delivered..stop);
            let wanted = first.len() + second.len();
            match pair::send(fd, first, second) {
                Ok(sent) => {
                    self.delivered += sent as u64;
                    if let Some(direct) = &mut self.direct {
                        direct.note_pair_written();
                    }
                    self.writable = sent == wanted;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The program has closed its end of the socket pair, or only the reading direction. The
                    // next read from the pair shows which of the two happened.
                    self.readable = true;
                    self.discards = true;
                    self.discard();
                    return Ok(true);
                }
            }
        }
        self.publish_consumed();
        Ok(self.writable && self.delivered < received)
    }

    /// Writes all received bytes that the program has not read yet into the socket pair. This includes the
    /// bytes in the connection's slot of shared memory. Call this before the connection is removed because of
    /// an error: the program then reads the bytes before it gets the error. Bytes that do not fit into the
    /// pair are lost.
    fn move_undelivered(&mut self, fd: RawFd) {
        self.delivered += self.direct.as_mut().and_then(|direct| direct.end_offer()).unwrap_or(0);
        if self.discards || self.delivered == self.connection.received() {
            return;
        }
        let (first, second) = self.receive.parts(self.delivered..self.connection.received());
        if let Ok(sent) = pair::send(fd, first, second) {
            self.delivered += sent as u64;
        }
    }

    /// Drops all received data, because the program does not read any more.
    fn discard(&mut self) {
        if let Some(direct) = &mut self.direct {
            direct.forget_offer();
        }
        self.delivered = self.connection.received();
        self.publish_consumed();
    }

    fn publish_consumed(&mut self) {
        let outcome = self.connection.set_consumed(self.delivered);
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }

    /// Decides whether the connection must be in the list of leases:
    ///
    /// | result | meaning |
    /// | --- | --- |
    /// | `Some(true)` | yes: the program may send through shared memory now |
    /// | `Some(false)` | yes: the program has an offer to answer, but may not send through shared memory |
    /// | `None` | no |
    fn lease(&self) -> Option<bool> {
        let direct = self.direct.as_ref()?;
        let grants = !self.readable && !self.program_finished && !direct.is_stalled();
        (grants || direct.has_offer()).then_some(grants)
    }

    /// Copies the program's data from shared memory into the send ring, up to `share` bytes in the ring.
    /// Returns true if the socket pair may be read now, or false if data in shared memory must be copied
    /// first. Sets `again` if a thread of the program is still writing: the next round must then try again.
    fn collect_direct(&mut self, now: u64, share: u64, again: &mut bool) -> Result<bool, Hostile> {
        let Some(direct) = &mut self.direct else { return Ok(true) };
        loop {
            let room = share.saturating_sub(self.written - self.connection.acknowledged());
            let len = direct.copy(now, &mut self.send, self.written, room)?;
            if len > 0 {
                self.written += len;
                let outcome = self.connection.set_written(self.written);
                debug_assert!(outcome.is_ok(), "{outcome:?}");
            }
            if !self.readable {
                return Ok(true);
            }
            match direct.end_lease(now)? {
                Turn::Pair => return Ok(true),
                Turn::Behind if direct.is_stalled() => return Ok(false),
                Turn::Behind => {}
                Turn::Claimed => {
                    *again = true;
                    return Ok(false);
                }
            }
        }
    }

    /// Moves the program's data from shared memory and the pair into the send ring. Returns true if the next
    /// round must continue without waiting for an event.
    ///
    /// # Errors
    /// If the program broke the protocol of shared memory.
    fn collect(
        &mut self,
        now: u64,
        fd: RawFd,
        options: &SocketOptions,
        closer: &Arc<UserCloser>,
    ) -> Result<bool, Hostile> {
        let share = options.send_limit(self.send.capacity()) as u64;
        let mut again = false;
        if !self.collect_direct(now, share, &mut again)? {
            return Ok(again);
        }
        let mut moved = 0;
        while self.readable && !self.program_finished {
            let used = self.written - self.connection.acknowledged();
            let room = share.saturating_sub(used);
            if room == 0 {
                if self.hung_up && pair::is_closed(fd) {
                    // The program has closed the socket while the send ring is full. The remaining data in
                    // the socket pair fits into the ring only if the peer opens its window. End the
                    // connection if the window stays closed.
                    self.connection.abandon();
                }
                return Ok(false);
            }
            if moved >= TURN {
                return Ok(true);
            }
            let (first, second) = self.send.parts_mut(self.written..self.written + room.min(TURN));
            let wanted = first.len() + second.len();
            match pair::take(fd, first, second, closer) {
                Ok((0, _)) => self.finish_sending(now, fd, options),
                Ok((len, cut)) => {
                    self.unaccepted = false;
                    moved += len as u64;
                    self.written += len as u64;
                    let outcome = self.connection.set_written(self.written);
                    debug_assert!(outcome.is_ok(), "{outcome:?}");
                    // A read that returns fewer bytes than it asked for has emptied the socket pair. The
                    // exception is `cut`: the read stopped early because the program had sent file
                    // descriptors with the bytes.
                    let emptied = len < wanted && !cut;
                    if emptied && self.closed {
                        self.finish_sending(now, fd, options);
                    } else {
                        // Read again at once if the pair may have more data or may have ended. Otherwise wait
                        // until epoll reports new data.
                        let checks = self.checked_reads > 0;
                        self.checked_reads -= u32::from(checks);
                        self.readable = !emptied || self.more || checks && pair_may_have_ended(fd);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The program has closed its end of the socket pair with unread data. The kernel first
                // reports one error. After that, the program's last data can be read. Read and send this data
                // first, and then reset the connection, as the kernel would do.
                // The same happens if the program has sent descriptors that the engine must not receive now.
                Err(_) if !self.resetting => self.resetting = true,
                Err(_) => self.program_finished = true,
            }
        }
        if self.program_finished && self.readable && !self.closing && (self.hung_up || pair::hung_up(fd)) {
            // The program shut down its sending direction earlier, and has now closed the socket. Clear
            // `readable`. Otherwise, a later round would close or abort the connection again.
            self.readable = false;
            self.close_or_reset(now, fd, options);
        }
        Ok(false)
    }

    /// Returns true if a close resets the connection: the program has set SO_LINGER to 0, has left bytes unread
    /// in shared memory, or has closed the listener without accepting the connection. `fd` is the engine's end.
    fn resets(&self, fd: RawFd, options: &SocketOptions) -> bool {
        options.linger == Some(0)
            || self.direct.as_ref().is_some_and(|direct| direct.has_unread())
            || self.unaccepted && !pair::is_named(fd)
    }

    /// Ends the connection's sending direction, because the engine has read all data of the program. Closes or
    /// resets the connection if the program has also closed the socket.
    fn finish_sending(&mut self, now: u64, fd: RawFd, options: &SocketOptions) {
        self.program_finished = true;
        match self.resetting || self.hung_up || pair::hung_up(fd) {
            true => self.close_or_reset(now, fd, options),
            false => self.connection.shutdown_write(),
        }
    }

    /// Resets the connection if the program has closed its end of the socket pair and [`Stream::resets`]
    /// returns true. Otherwise, closes the connection.
    fn close_or_reset(&mut self, now: u64, fd: RawFd, options: &SocketOptions) {
        if self.resetting || self.resets(fd, options) && pair::is_closed(fd) {
            self.resetting = true;
        } else {
            (self.discards, self.closing) = (true, true);
            self.connection.close(now);
        }
    }

    /// Sends segments until TCP has none or the link is congested. Returns true if the link was congested:
    /// the next round must then try again.
    fn transmit(&mut self, now: u64, network: &mut Network) -> bool {
        while !network.is_congested() {
            let Some(transmit) = self.connection.poll_transmit(now) else { return false };
            let (local, remote) = (self.flow.local.ip(), self.flow.remote.ip());
            for (header, payload) in transmit.segments() {
                let segment = Outgoing { flow: &self.flow, header, ring: Some(&self.send), payload };
                network.send(now, self.route, local, remote, transmit.ecn as u8, &segment);
            }
        }
        true
    }
}

/// Returns true if the socket pair has data to read, or if the program has closed its end or shut down
/// sending. `fd` is the engine's end of the pair.
fn pair_may_have_ended(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}
