//! Connections whose data another transport carries.
//!
//! The handshake, the close, the reset and the keepalive probes stay with TCP. So do the sequence numbers: they count the
//! bytes that the other transport has carried. Either side can therefore return to TCP at any time, and no byte
//! is lost or delivered twice:
//!
//! * SND.NXT follows the bytes that the other transport has sent, and SND.UNA follows the acknowledged ones.
//! * RCV.NXT follows the bytes that the other transport has delivered in order.
//! * The FIN is sent when the other transport has sent all data. The peer acknowledges it when it has received all data.
//! * A segment with data shows that the peer has returned to TCP.
//!
//! A connection can also be the image of one that TCP on another machine runs: [`Connection::image`]. It has the
//! indices and the state, and sends and receives nothing itself.

use super::*;

/// What the machine that runs a connection says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The state.
    pub state: State,
    /// Why the connection ended, as [`Connection::reason`].
    pub reason: Option<EndReason>,
    /// True if the peer has closed its direction and all its data was received.
    pub peer_closed: bool,
    /// The index up to which the peer has acknowledged data.
    pub acknowledged: u64,
    /// The index up to which data was received in order.
    pub received: u64,
    /// The effective MSS in bytes.
    pub segment_size: u16,
}

impl Connection {
    /// Creates the image of a connection that TCP on another machine runs. [`Connection::follow`] updates it. The calls of
    /// the application change its indices and its state as usual, and the caller sends the changes to the other machine. Do
    /// not call the methods for segments and timers.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is out of range.
    pub fn image(now: u64, config: &Config, state: State) -> Result<Self> {
        config.check()?;
        let start = InitialNumbers { sequence: 0, timestamp_offset: 0 };
        let mut connection = Self::new(now, config, start, state);
        connection.flags.carried = true;
        connection.snd.una = connection.snd.start;
        Ok(connection)
    }

    /// Updates an image. Returns `None`, and changes nothing, if the report contradicts what was known. Does nothing once the
    /// connection has ended here.
    pub fn follow(&mut self, now: u64, report: &Report) -> Option<Events> {
        if self.state == State::Closed {
            return Some(Events::NONE);
        }
        let una = self.snd.start.checked_add(report.acknowledged)?;
        let next = self.rcv.start.checked_add(report.received)?;
        let is_known = self.rcv.fin.is_some();
        let grows = report.received > self.received();
        if !(self.snd.una..=self.snd.limit).contains(&una)
            || report.received < self.received()
            || is_known && (grows || !report.peer_closed)
        {
            return None;
        }
        let mut events = Events::NONE;
        if una > self.snd.una {
            self.snd.una = una;
            events |= Events::WRITABLE;
        }
        if grows {
            self.rcv.next = next;
            events |= Events::READABLE;
        }
        if report.peer_closed && !is_known {
            self.rcv.fin = Some(next);
            self.rcv.next = next + 1;
            events |= Events::PEER_CLOSED;
        }
        if self.state == State::SynSent && !matches!(report.state, State::SynSent | State::Closed) {
            events |= Events::CONNECTED;
        }
        if report.state == State::TimeWait && self.state != State::TimeWait {
            self.timers.close_at = now.saturating_add(self.config.time_wait);
        }
        // The other machine may not know yet that the application has closed.
        self.state = match (report.state, self.snd.fin) {
            (State::Established, true) => State::FinWait1,
            (State::CloseWait, true) => State::LastAck,
            (state, _) => state,
        };
        self.reason = report.reason;
        self.snd.mss = report.segment_size.max(1);
        if matches!(self.state, State::TimeWait | State::Closed) {
            events |= Events::ENDED;
        }
        Some(events)
    }

    /// Returns what the application's machine must be told about a connection that runs here.
    pub fn report(&self) -> Report {
        Report {
            state: self.state,
            reason: self.reason,
            peer_closed: self.peer_closed(),
            acknowledged: self.acknowledged(),
            received: self.received(),
            segment_size: self.effective_mss() as u16,
        }
    }

    /// Returns true while the cork is set.
    pub fn is_corked(&self) -> bool {
        self.flags.cork
    }

    /// Returns the offers of another transport, this side's first, if both sides have made one. Only for connections
    /// that this side has opened, in state ESTABLISHED.
    pub fn offers(&self) -> Option<(Offer, Offer)> {
        self.config.offer.zip(self.peer_offer)
    }

    /// Returns the largest payload of a segment without options in bytes, which both sides and the path accept.
    pub fn max_segment(&self) -> u16 {
        self.snd.mss
    }

    /// Stops sending and receiving data by TCP, because another transport carries it from now on. Call it before
    /// the first data.
    pub fn begin_carried(&mut self) {
        self.flags.carried = true;
    }

    /// Records that the other transport has sent the stream up to `sent`, and that the peer has acknowledged it up
    /// to `acknowledged`.
    pub fn carry_sent(&mut self, now: u64, sent: u64, acknowledged: u64) -> Events {
        let snd = &mut self.snd;
        if !self.flags.carried || snd.next > snd.limit {
            return Events::NONE; // The FIN was sent, so its acknowledgment covers the data.
        }
        snd.next = snd.next.max((snd.start + sent).min(snd.limit));
        let una = (snd.start + acknowledged).min(snd.next);
        if una <= snd.una {
            return Events::NONE;
        }
        snd.una = una;
        self.timers.last_progress = now;
        Events::WRITABLE
    }

    /// Records that the other transport has delivered the peer's stream up to `received`, and that it lets the peer
    /// send up to `granted`.
    pub fn carry_received(&mut self, now: u64, received: u64, granted: u64) -> Events {
        self.rcv.advertised = self.rcv.advertised.max(self.rcv.start + granted);
        // Data behind the FIN would contradict it.
        let next = (self.rcv.start + received).min(self.rcv.fin.unwrap_or(u64::MAX));
        let open = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !self.flags.carried || !open || next <= self.rcv.next {
            return Events::NONE;
        }
        if self.flags.orphan {
            self.abort(); // RFC 9293, section 3.6.1: the data is lost
            return Events::ENDED;
        }
        (self.rcv.next, self.rcv.last_ack) = (next, next);
        self.timers.last_received = now;
        let events = if self.rcv.fin.is_some() { self.receive_fin(now, false) } else { Events::NONE };
        Events::READABLE | events
    }

    /// Returns true if the peer has acknowledged the FIN.
    pub fn is_end_acknowledged(&self) -> bool {
        self.snd.una > self.snd.limit
    }

    /// Returns true if a FIN follows the data, or the connection has ended.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.snd.fin || self.state == State::Closed
    }

    /// Returns true if the application has closed the connection and waits for nothing.
    pub fn is_abandoned(&self) -> bool {
        self.flags.orphan
    }

    /// Acknowledges at once, because the peer may wait for the end of the handshake.
    pub fn acknowledge(&mut self) {
        self.ack.now = true;
    }

    /// Returns to TCP. All bytes that the other transport has sent, and that the peer has not acknowledged, are sent
    /// again.
    pub fn end_carried(&mut self, now: u64) {
        if !std::mem::take(&mut self.flags.carried) || self.state == State::Closed {
            return;
        }
        let unacknowledged = self.snd.next - self.snd.una;
        self.scoreboard = Scoreboard::default();
        if unacknowledged > 0 {
            self.scoreboard.push(self.snd.una, unacknowledged as u32, now);
            self.scoreboard.mark_timed_out(now, 0);
            self.flags.retransmission_forced = true;
            self.timers.rto_base = now;
        }
        self.arm_loss_timer(now);
        self.update_window();
    }
}
