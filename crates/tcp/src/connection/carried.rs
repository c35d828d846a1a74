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

use super::*;

impl Connection {
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
