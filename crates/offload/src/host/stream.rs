//! Moves data of connections between the socket pair, shared memory and the stack.

use super::Engine;
use super::closer::UserCloser;
use super::direct::{Hostile, Turn};
use super::memory::allocate_ring;
use super::pair;
use super::socket::{Attachment, Pair, Socket, StreamPair};
use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use crate::stack::ring::ByteRing;
use crate::stack::socket::Role;
use crate::stack::stream::Stream;
use inlane_offload_protocol::name::End;
use inlane_offload_protocol::slots::Claim;
use inlane_tcp::{EndReason, State};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// The most bytes that one connection moves in each direction before it is the turn of other connections.
const TURN: u64 = 256 << 10;

/// After each of the first 4 reads from the socket pair of an accepted connection, the engine checks whether
/// the program has finished sending. If it has, the FIN is sent with the data. Later reads are not checked,
/// because a longer connection seldom ends right after a given read.
pub(super) const CHECKED_READS: u32 = 4;

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
    /// Moves data between the socket pair and the connection's rings, and sends the segments that TCP allows.
    /// Removes the socket if its connection has ended.
    pub(super) fn serve_stream(&mut self, now: u64, key: Key) {
        let crate::stack::Stack { sockets, network, .. } = &mut self.stack;
        let Some(Socket {
            role: Role::Stream(stream),
            options,
            local,
            attachment: Attachment { pair: Pair::Stream(pair), end, closer, id, permit, .. },
            ..
        }) = sockets.get_mut(key)
        else {
            return;
        };
        let fd = end.as_ref().map(std::os::fd::AsRawFd::as_raw_fd);
        if stream.connected && pair.filled.is_some() {
            self.complete_connect(now, key);
            return self.serve_stream(now, key);
        }
        if pair.filled.is_some() && pair.hung_up && stream.connection.state() == State::SynSent {
            // The program has given the connection up.
            return self.remove(key);
        }
        let mut again = false;
        if let Some(fd) = fd
            && pair.filled.is_none()
        {
            let moved = pair.deliver(now, stream, fd).and_then(|more| {
                again |= more;
                pair.collect(now, stream, fd, options, closer)
            });
            stream.end_more(options.cork);
            match moved {
                Ok(more) => again |= more,
                Err(Hostile) => return self.refuse_hostile(now, key),
            }
            if let Some(end) = &end {
                again |= !pair::watch_room(&self.epoll, end, key, &mut pair.awaits_room, !pair.writable);
            }
        } else if fd.is_none() {
            pair.discard(stream);
        }
        if stream.held_until.is_none() {
            again |= stream.transmit(now, network);
        }
        if pair.resetting {
            stream.connection.abort();
            again |= stream.transmit(now, network);
        }
        let state = stream.connection.state();
        let deadline = stream.next_deadline();
        let reason = stream.connection.reason();
        let peer_closed = stream.connection.peer_closed();
        if let Some(direct) = &mut pair.direct {
            let limit = options.send_limit(stream.send.capacity()) as u64;
            direct.publish(stream.connection.acknowledged(), limit);
            direct.expect_posts(stream);
        }
        let ends = peer_closed && !pair.end_passed && !pair.closed_in_slot;
        let passed = match pair.pass_end(now, stream, ends) {
            Ok(passed) => passed,
            Err(Hostile) => return self.refuse_hostile(now, key),
        };
        let undelivered = stream.undelivered();
        again |=
            pair.writable && undelivered > 0 && pair.direct.as_ref().is_some_and(|direct| direct.is_moving());
        if ends && !passed && undelivered == 0 {
            pair.end_passed = true;
            if !pair.hung_up
                && let (Some(end), Some(fd)) = (&end, fd)
            {
                // The program may read this option after the connection has ended.
                let kept = [(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)];
                let kept = if options.no_delay { &kept[..] } else { &[] };
                pair::set_end(end, End::Finished, self.number, *id, Some(*local), kept);
                // SAFETY: has no preconditions.
                unsafe { libc::shutdown(fd, libc::SHUT_WR) };
            }
            pair.direct.iter_mut().for_each(|direct| direct.note_end_in_pair());
        }
        let hung_up = fd.is_some() && pair.program_finished && pair.hung_up;
        if hung_up && let Some(end) = end.take_if(|end| !pair.closes_at_once(end)) {
            super::stop_watching(&self.epoll, &end);
            closer.close(vec![end], Some(Box::new(permit.clone())));
        }
        if hung_up {
            *end = None;
        }
        match (state, reason) {
            (State::Closed, Some(reason)) => {
                if let Some(fd) = fd
                    && end.is_some()
                {
                    pair.move_undelivered(stream, fd);
                }
                self.finish(key, End::Failed(errno(reason)));
            }
            (State::Closed | State::TimeWait, _) if undelivered == 0 || fd.is_none() || hung_up => {
                self.stack.enter_time_wait(key);
                self.finish(key, End::Finished);
            }
            _ => {
                if let Some(deadline) = deadline {
                    self.stack.arm(key, deadline);
                    self.stack.watch_acknowledgment(key);
                }
                if again {
                    self.stack.touch(key);
                }
                self.note_received(now, key);
            }
        }
    }

    /// Lets the program use a connection that has just been established: gives it a slot, and makes the program's end writable.
    fn complete_connect(&mut self, now: u64, key: Key) {
        let pair_of = |stack: &mut super::socket::Stack| {
            let attachment = &mut stack.sockets.get_mut(key)?.attachment;
            let Pair::Stream(pair) = &mut attachment.pair else { return None };
            Some((pair.filled.take()?, pair.client.clone(), pair.direct.is_none()))
        };
        let Some((filled, client, lacks_slot)) = pair_of(&mut self.stack) else { return };
        if let Some(program) = filled.program().filter(|_| lacks_slot) {
            self.give_slot(now, key, &client, program);
        }
        let attachment = self.stack.sockets.get(key).map(|socket| &socket.attachment);
        if let Some(Attachment { end: Some(end), closer, pair: Pair::Stream(pair), .. }) = attachment {
            if pair.opened_over_kept {
                pair.direct.iter().for_each(|direct| direct.note_established());
            }
            filled.release(end, closer);
        }
    }

    /// Resets a connection whose program broke the protocol of shared memory.
    fn refuse_hostile(&mut self, now: u64, key: Key) {
        self.totals.hostile += 1;
        let crate::stack::Stack { sockets, network, .. } = &mut self.stack;
        if let Some(Socket { role: Role::Stream(stream), .. }) = sockets.get_mut(key) {
            stream.connection.abort();
            stream.transmit(now, network);
        }
        self.finish(key, End::Failed(libc::ECONNRESET));
    }

    /// Tells the program how its connection has ended, and removes the socket.
    pub(super) fn finish(&mut self, key: Key, end: End) {
        let number = self.number;
        self.keep_pair(key);
        if let Some(socket) = self.stack.sockets.get_mut(key) {
            if let Some(fd) = &socket.attachment.end {
                let options = socket.options.kept();
                pair::set_end(fd, end, number, socket.attachment.id, Some(socket.local), &options);
            }
            self.totals.add(socket);
        }
        self.remove(key);
    }
}

impl StreamPair {
    /// Treats the next `bytes` bytes in the socket pair as sent with MSG_MORE. `fd` is the engine's end of the pair.
    pub(super) fn expect_more(&self, stream: &mut Stream, fd: RawFd, bytes: u64) {
        if self.filled.is_some() {
            return;
        }
        let in_slot = self.direct.as_ref().map_or(0, |direct| direct.uncollected());
        stream.expect_more(stream.written + in_slot + pair::unread(fd).unwrap_or(0) + bytes);
    }

    /// Delivers received data to the program, through shared memory or the pair. Returns true if the next
    /// round must continue without waiting for an event.
    ///
    /// # Errors
    /// If the program broke the protocol of shared memory.
    pub(super) fn deliver(&mut self, now: u64, stream: &mut Stream, fd: RawFd) -> Result<bool, Hostile> {
        let overdue = self.unaccepted && self.direct.as_ref().is_some_and(|direct| direct.is_overdue(now));
        if overdue {
            // Before the program has accepted the connection, it cannot take bytes.
            self.unaccepted = !self.is_accepted(fd);
        }
        if let Some(direct) = &mut self.direct {
            if overdue {
                direct.postpone(now);
            }
            stream.delivered += direct.settle(now)?;
            match stream.take_placed()? {
                0 => {}
                placed => direct.note_placed(now, placed),
            }
            match direct.end_publishing(now, stream) {
                Some(false) => {}
                Some(true) => stream.delivered += direct.settle(now)?,
                None => return Ok(true),
            }
        }
        if self.discards {
            self.discard(stream);
            return Ok(false);
        }
        if let Some(direct) = &mut self.direct
            && direct.fill(now, fd, stream.delivered, stream.undelivered())
        {
            if direct.may_publish()
                && stream.arrives_by_stores()
                && let Some(claim) = stream.hold_stores(now)
            {
                direct.fill(now, fd, stream.delivered, stream.undelivered());
                let base = (!direct.must_wake()).then(|| direct.begin_publishing());
                stream.release_stores(claim, base);
            }
            if !direct.must_wake() {
                stream.publish_delivered();
                return Ok(false);
            }
            let Some(taken) = direct.leave_to_wake()? else { return Ok(true) };
            stream.delivered += taken;
        }
        let received = stream.connection.received();
        let stop = received.min(stream.delivered + TURN);
        while self.writable && stream.delivered < stop {
            let wanted = (stop - stream.delivered) as usize;
            // SAFETY: the spans are those of the stream's ring.
            match unsafe { pair::send_spans(fd, stream.readable(wanted as u64)) } {
                Ok(sent) => {
                    stream.delivered += sent as u64;
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
                    self.discard(stream);
                    return Ok(true);
                }
            }
        }
        stream.publish_delivered();
        Ok(self.writable && stream.delivered < received)
    }

    /// Passes the end of the stream through shared memory if `ends` is true. Returns false if it must go through the pair.
    ///
    /// # Errors
    /// If the program broke the protocol of shared memory.
    fn pass_end(&mut self, now: u64, stream: &mut Stream, ends: bool) -> Result<bool, Hostile> {
        let Some(direct) = self.direct.as_mut().filter(|_| ends) else { return Ok(false) };
        if !direct.pass_end(now) {
            return Ok(false);
        }
        if direct.must_wake()
            && let Some(taken) = direct.leave_to_wake()?
        {
            stream.delivered += taken;
            return Ok(false);
        }
        Ok(true)
    }

    /// Writes all received bytes that the program has not read yet into the socket pair. This includes the
    /// bytes in the connection's slot of shared memory. Call this before the connection is removed because of
    /// an error: the program then reads the bytes before it gets the error. Bytes that do not fit into the
    /// pair are lost.
    fn move_undelivered(&mut self, stream: &mut Stream, fd: RawFd) {
        stream.delivered += self.direct.as_mut().map_or(0, |direct| direct.end_receiving());
        if self.discards || stream.undelivered() == 0 {
            return;
        }
        // SAFETY: the spans are those of the stream's ring.
        if let Ok(sent) = unsafe { pair::send_spans(fd, stream.readable(stream.undelivered())) } {
            stream.delivered += sent as u64;
        }
    }

    /// Drops all received data, because the program does not read any more.
    fn discard(&mut self, stream: &mut Stream) {
        if let Some(direct) = &mut self.direct {
            direct.discard();
        }
        stream.discard();
    }

    /// Takes note of the program's data that shared memory has in the send ring. Returns true while a thread of the program is
    /// still writing: the next round must then look again.
    fn collect_direct(&mut self, now: u64, stream: &mut Stream) -> Result<bool, Hostile> {
        let Some(direct) = &mut self.direct else { return Ok(false) };
        // Look at the claim first: bytes of a claim that has ended are then found.
        let (claimed, stuck) = (direct.is_claimed(now), direct.is_stuck(now));
        self.note_committed(now, stream)?;
        let Some(direct) = self.direct.as_mut().filter(|_| stuck) else { return Ok(claimed) };
        // Reset the connection if there is no memory.
        let ring = allocate_ring(stream.send.capacity()).ok_or(Hostile)?;
        let len = direct.abandon()?;
        if len > stream.room(stream.send.capacity() as u64) {
            return Err(Hostile);
        }
        stream.add_written(len);
        stream.replace_send_ring(ByteRing::new(ring));
        Ok(false)
    }

    /// Claims the send ring for bytes of the pair. Takes note of the data before them.
    fn claim(&mut self, now: u64, stream: &mut Stream) -> Result<Turn, Hostile> {
        if self.collect_direct(now, stream)? {
            return Ok(Turn::Busy);
        }
        let turn = self.direct.as_mut().map_or(Turn::Closed, |direct| direct.claim(now));
        self.note_committed(now, stream)?;
        Ok(turn)
    }

    /// Takes note of bytes in the send ring that the program has committed.
    fn note_committed(&mut self, now: u64, stream: &mut Stream) -> Result<(), Hostile> {
        let Some(direct) = &mut self.direct else { return Ok(()) };
        match direct.collect(now, stream.room(stream.send.capacity() as u64))? {
            0 => {}
            len => {
                self.unaccepted = false;
                stream.add_written(len);
            }
        }
        Ok(())
    }

    /// Ends a claim with `len` bytes of the pair in the ring, which may be 0.
    fn commit(&mut self, stream: &mut Stream, claim: Option<Claim>, len: u64) -> Result<(), Hostile> {
        if let (Some(direct), Some(claim)) = (&mut self.direct, claim) {
            direct.commit(claim, len)?;
        }
        if len > 0 {
            stream.add_written(len);
        }
        Ok(())
    }

    /// Moves the program's data from shared memory and the pair into the send ring. Returns true if the next
    /// round must continue without waiting for an event.
    ///
    /// # Errors
    /// If the program broke the protocol of shared memory.
    fn collect(
        &mut self,
        now: u64,
        stream: &mut Stream,
        fd: RawFd,
        options: &SocketOptions,
        closer: &Arc<UserCloser>,
    ) -> Result<bool, Hostile> {
        let share = options.send_limit(stream.send.capacity()) as u64;
        let mut moved = 0;
        if self.closes_in_slot(now, stream, fd, options)? {
            return Ok(true);
        }
        let writing = self.collect_direct(now, stream)?;
        while self.readable && !self.program_finished {
            let claim = match self.claim(now, stream)? {
                Turn::Claimed(claim) => Some(claim),
                Turn::Closed => None,
                Turn::Busy => return Ok(true),
            };
            let room = stream.room(share);
            if room == 0 || moved >= TURN {
                self.commit(stream, claim, 0)?;
                if room == 0 && self.hung_up && pair::is_closed(fd) {
                    // The program has closed the socket while the send ring is full. The remaining data in
                    // the socket pair fits into the ring only if the peer opens its window. End the
                    // connection if the window stays closed.
                    stream.connection.abandon();
                }
                return Ok(room > 0 || writing);
            }
            let wanted = room.min(TURN) as usize;
            // SAFETY: the spans are those of the stream's ring, and the engine has claimed it.
            let taken = unsafe { pair::take_spans(fd, stream.writable(wanted as u64), closer) };
            match (&taken, &mut self.direct, claim) {
                (Ok((0, _)), Some(direct), Some(claim)) => direct.end(claim)?,
                (Ok((len, _)), _, claim) => self.commit(stream, claim, *len as u64)?,
                (Err(_), _, claim) => self.commit(stream, claim, 0)?,
            }
            match taken {
                Ok((0, _)) => self.finish_sending(now, stream, fd, options)?,
                Ok((len, cut)) => {
                    self.unaccepted = false;
                    moved += len as u64;
                    // A read that returns fewer bytes than it asked for has emptied the socket pair. The
                    // exception is `cut`: the read stopped early because the program had sent file
                    // descriptors with the bytes.
                    let emptied = len < wanted && !cut;
                    if emptied && self.closed {
                        self.finish_sending(now, stream, fd, options)?;
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
            self.close_or_reset(now, stream, fd, options)?;
            return Ok(writing || self.readable);
        }
        Ok(writing)
    }

    /// Returns true if a close resets the connection: the program has set SO_LINGER to 0, has left bytes unread
    /// in shared memory, or has closed the listener without accepting the connection. `fd` is the engine's end.
    fn resets(&self, fd: RawFd, options: &SocketOptions) -> bool {
        options.linger == Some(0)
            || self.direct.as_ref().is_some_and(|direct| direct.has_unread())
            || self.unaccepted && !self.is_accepted(fd)
    }

    /// Returns true if the program has accepted the connection. `fd` is the engine's end.
    pub(super) fn is_accepted(&self, fd: RawFd) -> bool {
        match &self.direct {
            Some(direct) if self.reused.is_some() => direct.is_accepted(),
            _ => pair::is_named(fd),
        }
    }

    /// Ends the connection if the program has closed it in its slot. Returns true if the next round must look again.
    fn closes_in_slot(
        &mut self,
        now: u64,
        stream: &mut Stream,
        fd: RawFd,
        options: &SocketOptions,
    ) -> Result<bool, Hostile> {
        if self.closed_in_slot || !self.direct.as_ref().is_some_and(|direct| direct.is_closed_by_program()) {
            return Ok(false);
        }
        // The program has committed all bytes before it closed the connection.
        self.note_committed(now, stream)?;
        let Some(direct) = &mut self.direct else { return Ok(false) };
        let Some(taken) = direct.settle_last(now, stream)? else { return Ok(true) };
        direct.note_closed();
        stream.delivered += taken;
        stream.publish_delivered();
        (self.closed_in_slot, self.program_finished) = (true, true);
        if options.linger == Some(0) || direct.has_unread() || direct.has_unread_in_pair(fd) {
            self.resetting = true;
        } else {
            (self.discards, self.closing) = (true, true);
            stream.connection.close(now);
        }
        Ok(false)
    }

    /// Ends the connection's sending direction, because the engine has read all data of the program. Closes or
    /// resets the connection if the program has also closed the socket.
    fn finish_sending(
        &mut self,
        now: u64,
        stream: &mut Stream,
        fd: RawFd,
        options: &SocketOptions,
    ) -> Result<(), Hostile> {
        self.program_finished = true;
        if self.resetting || self.hung_up || pair::hung_up(fd) {
            return self.close_or_reset(now, stream, fd, options);
        }
        stream.connection.shutdown_write();
        Ok(())
    }

    /// Resets the connection if the program has closed its end of the socket pair and [`Stream::resets`]
    /// returns true. Otherwise, closes the connection. If the peer's engine is storing bytes, sets `readable`: call this again in
    /// the next round.
    fn close_or_reset(
        &mut self,
        now: u64,
        stream: &mut Stream,
        fd: RawFd,
        options: &SocketOptions,
    ) -> Result<(), Hostile> {
        if let Some(direct) = &mut self.direct {
            // TCP resets a connection that is closed with bytes that the program has not taken.
            let Some(taken) = direct.settle_last(now, stream)? else {
                self.readable = true;
                return Ok(());
            };
            stream.delivered += taken;
            stream.publish_delivered();
        }
        if self.resetting || self.resets(fd, options) && pair::is_closed(fd) {
            self.resetting = true;
        } else {
            (self.discards, self.closing) = (true, true);
            stream.connection.close(now);
        }
        Ok(())
    }
}

/// Returns true if the socket pair has data to read, or if the program has closed its end or shut down
/// sending. `fd` is the engine's end of the pair.
fn pair_may_have_ended(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}
