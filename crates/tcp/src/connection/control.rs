//! The methods of a connection that the application calls: advance the indices into the send and receive
//! rings, close, abort, and set options.

use super::*;

impl Connection {
    /// Publishes that the application has written up to `index` into the send ring.
    ///
    /// # Errors
    /// [`Error::Index`] if the index decreases, exceeds the ring, or advances after the application closed.
    #[inline]
    pub fn set_written(&mut self, index: u64) -> Result<()> {
        let least = self.snd.limit - self.snd.start;
        let most = if self.snd.fin { least } else { self.acknowledged() + self.config.send_capacity as u64 };
        if !(least..=most).contains(&index) {
            return Err(Error::Index { index: "written", value: index, least, most });
        }
        self.snd.limit = self.snd.start + index;
        Ok(())
    }

    /// Sets the most bytes that the application keeps in the send ring. Segments have at most half of this size, so that two of
    /// them can be in flight. Without a call, it is [`crate::Config::send_capacity`].
    pub fn set_send_limit(&mut self, bytes: u32) {
        self.snd.capacity = bytes;
    }

    /// Publishes that the application has consumed the receive ring up to `index`. Afterwards poll for
    /// transmission, because the announced window may grow.
    ///
    /// # Errors
    /// [`Error::Index`] if the index decreases or exceeds [`Connection::received`].
    #[inline]
    pub fn set_consumed(&mut self, index: u64) -> Result<()> {
        let (least, most) = (self.rcv.consumed - self.rcv.start, self.received());
        if !(least..=most).contains(&index) {
            return Err(Error::Index { index: "consumed", value: index, least, most });
        }
        if index > least {
            self.rcv.consumed = self.rcv.start + index;
            self.update_window();
        }
        Ok(())
    }

    /// Returns the index up to which the peer has acknowledged data. The application may reuse the send ring
    /// below this index.
    #[inline]
    pub fn acknowledged(&self) -> u64 {
        self.snd.una.clamp(self.snd.start, self.snd.limit) - self.snd.start
    }

    /// Returns the index up to which data was received in order. The application may read the receive ring
    /// below this index.
    #[inline]
    pub fn received(&self) -> u64 {
        // Subtract 1 for the peer's FIN, which has a sequence number but no byte in the ring.
        self.rcv.next - self.rcv.start - self.peer_closed() as u64
    }

    /// Returns true if the peer has closed its direction and all its data was received.
    #[inline]
    pub fn peer_closed(&self) -> bool {
        self.rcv.fin.is_some_and(|fin| self.rcv.next > fin)
    }

    /// Closes the direction to the peer: a FIN follows the written data. Data can still be received.
    pub fn shutdown_write(&mut self) {
        if self.snd.fin || matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }
        self.snd.fin = true;
        match self.state {
            State::Established => self.state = State::FinWait1,
            State::CloseWait => self.state = State::LastAck,
            _ => {} // Before the handshake's end the FIN waits.
        }
    }

    /// Closes both directions: the application neither reads nor writes any more. Written data is still sent.
    /// If received data was not consumed, or more data arrives, this data is lost. The connection is then
    /// reset (RFC 9293, section 3.6.1; RFC 2525, section 2.17).
    pub fn close(&mut self, now: u64) {
        if self.state == State::SynSent {
            self.end(EndReason::Aborted);
            return;
        }
        if self.received() > self.rcv.consumed - self.rcv.start || !self.reassembly.is_empty() {
            self.abort();
            return;
        }
        self.flags.orphan = true;
        self.flags.cork = false;
        self.shutdown_write();
        if self.state == State::FinWait2 {
            self.timers.close_at = now.saturating_add(self.config.fin_timeout);
        }
    }

    /// Records that the application has closed both directions, but that some of its data was not written to
    /// the connection yet. If the peer then stops acknowledging or keeps its window closed, the connection
    /// ends as after [`Connection::close`].
    pub fn abandon(&mut self) {
        self.flags.orphan = true;
    }

    /// Aborts the connection. The peer gets a reset, which [`Connection::poll_transmit`] returns.
    pub fn abort(&mut self) {
        self.abort_for(EndReason::Aborted);
    }

    /// Ends the connection for `reason`, without a reset for the peer: it cannot be reached.
    pub fn fail(&mut self, reason: EndReason) {
        self.end(reason);
    }

    pub(super) fn abort_for(&mut self, reason: EndReason) {
        let reset = !matches!(self.state, State::SynSent | State::TimeWait | State::Closed);
        self.end(reason);
        self.flags.reset_pending |= reset;
    }

    /// Enters CLOSED and stops all timers.
    pub(super) fn end(&mut self, reason: EndReason) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.reason = Some(reason);
            self.stop_timers();
        }
    }

    pub(super) fn stop_timers(&mut self) {
        let timers = &mut self.timers;
        timers.loss_at = NEVER;
        timers.reordering_at = NEVER;
        timers.ack_at = NEVER;
        timers.keepalive_at = NEVER;
        timers.cork_at = NEVER;
        timers.close_at = NEVER;
    }

    pub(super) fn enter_time_wait(&mut self, now: u64) {
        self.state = State::TimeWait;
        self.stop_timers();
        self.timers.close_at = now.saturating_add(self.config.time_wait);
    }

    /// Returns the TIME-WAIT table entry for this connection, or `None` if the connection is in another
    /// state. Replace the connection by this entry once the application has closed it and nothing is left to
    /// send.
    pub fn time_wait(&self) -> Option<TimeWait> {
        (self.state == State::TimeWait).then(|| TimeWait {
            sequence: self.snd.next as u32,
            acknowledgment: self.rcv.next as u32,
            window: self.window_field(),
            timestamps: self.flags.timestamps.then_some((self.rcv.ts_recent, self.timestamp_offset)),
            until: self.timers.close_at,
        })
    }

    /// Limits the number of bytes in the receive ring that may hold data, from 1 byte up to the whole ring.
    /// If the limit is reduced, the right edge of the announced window does not move back: the window shrinks
    /// only as data arrives.
    pub fn set_receive_capacity(&mut self, capacity: u32) {
        let before = self.rcv.capacity;
        self.rcv.capacity = capacity.clamp(1, self.config.receive_capacity);
        // Announce the window only if the limit grows. A SYN can announce only 65535 bytes. So if this always
        // announced, a new connection with a larger window would send an extra ACK.
        if self.rcv.capacity > before {
            self.update_window();
        }
    }

    /// If `no_delay` is true, switches Nagle's algorithm off, else on. Switching it off also sends the data
    /// that a cork holds back, as in Linux.
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.config.no_delay = no_delay;
        self.flags.cork_expired |= no_delay && self.flags.cork && self.snd.next < self.snd.limit;
    }

    /// If `cork` is true, holds back segments that are smaller than the MSS, for at most 200 ms. If `cork` is
    /// false, no longer holds them back.
    pub fn set_cork(&mut self, cork: bool) {
        self.flags.cork = cork;
        self.flags.cork_expired = false;
        self.timers.cork_at = NEVER;
    }

    /// Sets how the idle connection is probed. `None` switches probing off.
    pub fn set_keepalive(&mut self, now: u64, keepalive: Option<crate::Keepalive>) {
        self.config.keepalive = keepalive;
        self.arm_keepalive(now);
    }

    /// Sets how long the connection waits in FIN-WAIT-2 after the application has closed it, in nanoseconds. A wait that has begun
    /// keeps its time.
    pub fn set_fin_timeout(&mut self, timeout: u64) {
        self.config.fin_timeout = timeout;
    }

    /// Sets how long data may stay unacknowledged, in nanoseconds, before the connection is aborted. `None`:
    /// no limit.
    pub fn set_user_timeout(&mut self, timeout: Option<u64>) {
        self.config.user_timeout = timeout;
    }
}
