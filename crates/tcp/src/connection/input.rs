//! Processes received segments (RFC 9293, section 3.10.7).

use super::*;
use crate::SECOND;
use crate::segment::{Ecn, Segment};
use crate::sequence::{before, extend};
use inlane_wire::tcp::{ACK, CWR, ECE, FIN, RST, SYN};

/// How long TS.Recent is valid (RFC 7323, section 5.5).
const PAWS_VALID: u64 = 24 * 24 * 3600 * SECOND;
/// The most challenge ACKs that one connection sends in a second (RFC 5961, section 7).
const CHALLENGES_PER_SECOND: u8 = 10;

impl Connection {
    /// Processes a received segment. New data is written to `buffer`. In state CLOSED, answer with [`crate::reset_for`] instead.
    pub fn on_segment(&mut self, now: u64, segment: &Segment<'_>, buffer: &mut impl ReceiveBuffer) -> Events {
        self.counters.segments_in += 1;
        match self.state {
            State::Closed => Events::NONE,
            State::SynSent => self.on_segment_in_syn_sent(now, segment, buffer),
            _ => self.on_segment_synchronized(now, segment, buffer),
        }
    }

    /// Processes a segment in state SYN-SENT (RFC 9293, section 3.10.7.3).
    fn on_segment_in_syn_sent(
        &mut self,
        now: u64,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
    ) -> Events {
        let header = &segment.header;
        let ack = extend(self.snd.una, header.acknowledgment);
        if header.has(ACK) && (ack <= self.snd.una || ack > self.snd.next) {
            self.reject(segment);
            return Events::NONE;
        }
        if header.has(RST) {
            if header.has(ACK) {
                self.end(EndReason::Refused);
                return Events::ENDED;
            }
            return Events::NONE;
        }
        if !header.has(SYN) {
            return Events::NONE;
        }
        let config = self.config.clone();
        self.set_peer(now, sequence::initial(header.sequence), &header.options, &config);
        self.snd.set_window(header.window as u32); // never scaled in a SYN
        self.snd.wl1 = self.rcv.next - 1;
        self.rcv.advertised = self.rcv.next + self.rcv.capacity.min(u16::MAX as u32) as u64;
        self.timers.last_received = now;
        let retransmissions = self.recovery.backoff;
        if !header.has(ACK) {
            // Simultaneous open.
            self.flags.ecn = config.ecn != EcnMode::Off && header.has(ECE | CWR);
            self.state = State::SynReceived;
            self.flags.syn_pending = true;
            return Events::NONE;
        }
        self.flags.ecn = self.requests_ecn() && header.flags & (ECE | CWR) == ECE;
        self.snd.una = ack;
        self.snd.wl2 = ack;
        self.flags.syn_pending = false;
        let rtt = (retransmissions == 0).then(|| now.saturating_sub(self.syn_sent_at));
        self.on_established(now, rtt, retransmissions);
        self.ack.now = true;
        let mut events = Events::CONNECTED;
        if !segment.payload.is_empty() || header.has(FIN) {
            events |= self.receive(now, self.rcv.next, segment.payload, header.has(FIN), buffer);
        }
        events
    }

    /// Processes a segment in every state but SYN-SENT and CLOSED (RFC 9293, section 3.10.7.4).
    fn on_segment_synchronized(
        &mut self,
        now: u64,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
    ) -> Events {
        let header = &segment.header;
        let mut flags = header.flags;
        let mut seq = extend(self.rcv.next, header.sequence);
        if flags & SYN != 0 && self.state == State::SynReceived && seq + 1 == self.rcv.next {
            if flags & ACK == 0 {
                self.flags.syn_pending = true; // the peer's SYN again
                return Events::NONE;
            }
            // Ignore the SYN, because the SYN,ACK of a simultaneous open repeats the SYN that was processed
            // before.
            flags &= !SYN;
            seq += 1;
        }
        let reset = flags & RST != 0;
        if self.flags.timestamps && !reset && !self.timestamps_acceptable(now, segment) {
            self.counters.bad_timestamps += 1;
            return Events::NONE;
        }

        let len = segment.payload.len() as u64 + (flags & FIN != 0) as u64;
        let end = seq + len;
        // A segment that ends below the last sent acknowledgment number is an old duplicate or forged. If it is at most a
        // window old, process its acknowledgment number, as BSD does. A side that has sent beyond the peer's window sends
        // acknowledgments with an old number (see `acceptable_sequence`). If both sides have done so, they would otherwise
        // ignore each other for ever. A connection to itself is both sides.
        let old = end < self.rcv.last_ack;
        let outside =
            seq > self.rcv.edge() || end + (self.config.receive_capacity as u64) < self.rcv.last_ack;
        if outside || old && len == 0 && flags & SYN == 0 {
            self.counters.unacceptable += 1;
            if reset {
            } else if len > 0 {
                self.ack.now = true;
            } else {
                self.challenge(now);
            }
        }
        if outside {
            return Events::NONE;
        }

        if reset {
            if self.state == State::TimeWait {
                return Events::NONE; // RFC 1337
            }
            // RFC 5961, section 3.2.
            if seq == self.rcv.next {
                self.end(if self.state == State::SynReceived {
                    EndReason::Refused
                } else {
                    EndReason::Reset
                });
                return Events::ENDED;
            }
            if seq > self.rcv.next {
                self.challenge(now);
            }
            return Events::NONE;
        }
        if flags & SYN != 0 {
            self.challenge(now); // RFC 5961, section 4.2
            return Events::NONE;
        }
        if flags & ACK == 0 {
            self.counters.unacceptable += 1;
            return Events::NONE;
        }

        let mut ack = extend(self.snd.una, header.acknowledgment);
        // RFC 5961, section 5.2.
        if ack > self.snd.next || ack + (self.snd.max_window as u64) < self.snd.una {
            self.counters.unacceptable += 1;
            self.challenge(now);
            return Events::NONE;
        }
        if self.flags.carried {
            if !segment.payload.is_empty() {
                return Events::RETURNED;
            }
            // The other transport acknowledges the data, and TCP only the FIN.
            if ack <= self.snd.limit {
                ack = self.snd.una;
            }
        }
        let mut events = Events::NONE;
        if self.state == State::SynReceived {
            if ack <= self.snd.una {
                self.reject(segment);
                return Events::NONE;
            }
            self.snd.una = ack;
            self.snd.wl2 = ack;
            let retransmissions = self.recovery.backoff;
            let rtt = (retransmissions == 0).then(|| now.saturating_sub(self.syn_sent_at));
            self.on_established(now, rtt, retransmissions);
            self.flags.syn_pending = false;
            events |= Events::CONNECTED;
        }

        self.timers.last_received = now;
        self.timers.keepalive_probes = 0;
        if let Some(timestamps) = header.options.timestamps
            && !old
            && seq <= self.rcv.last_ack
            && !before(timestamps.value, self.rcv.ts_recent)
        {
            self.rcv.ts_recent = timestamps.value;
            self.rcv.ts_recent_at = now;
        }
        events |= self.on_acknowledgment(now, segment, seq, ack);
        if self.state == State::Closed {
            return events;
        }
        if self.flags.ecn && !old {
            self.on_congestion_field(segment);
        }
        if len > 0 {
            events |= self.receive(now, seq, segment.payload, flags & FIN != 0, buffer);
        }
        events
    }

    /// Sends a reset in answer to an acknowledgment of data that this connection never sent. The segment
    /// belongs to a connection that existed before this side restarted (RFC 9293, section 3.5.1).
    fn reject(&mut self, segment: &Segment<'_>) {
        self.counters.unacceptable += 1;
        self.stray_reset = crate::reset_for(segment).map(|reset| reset.sequence);
    }

    /// Checks a segment's timestamp. Answers an old timestamp with an acknowledgment (RFC 7323, sections 3.2
    /// and 5.3).
    #[inline]
    fn timestamps_acceptable(&mut self, now: u64, segment: &Segment<'_>) -> bool {
        let Some(timestamps) = segment.header.options.timestamps else { return false };
        if before(timestamps.value, self.rcv.ts_recent)
            && now.saturating_sub(self.rcv.ts_recent_at) < PAWS_VALID
        {
            if segment.payload.is_empty() {
                self.challenge(now);
            } else {
                self.ack.now = true;
            }
            return false;
        }
        true
    }

    /// Starts to echo congestion if the IP header carries a congestion mark (CE). Stops when the peer reports
    /// that it has reduced its congestion window (CWR). See RFC 3168, section 6.1.3.
    fn on_congestion_field(&mut self, segment: &Segment<'_>) {
        if segment.header.has(CWR) {
            self.flags.ece = false;
        }
        if segment.ecn == Ecn::Ce && !self.flags.ece {
            self.flags.ece = true;
            self.ack.now = true;
        }
    }

    /// Acknowledges a suspicious segment at once (a challenge ACK). Does nothing if the limit for this second
    /// is reached.
    fn challenge(&mut self, now: u64) {
        let second = now / SECOND;
        if self.ack.challenge_second != second {
            self.ack.challenge_second = second;
            self.ack.challenges = 0;
        }
        if self.ack.challenges < CHALLENGES_PER_SECOND {
            self.ack.challenges += 1;
            self.counters.challenge_acks += 1;
            self.ack.now = true;
        } else {
            self.counters.challenge_acks_limited += 1;
        }
    }

    /// Counts a duplicate segment. If SACK was negotiated, also stores the range `start..end`. The next
    /// acknowledgment reports it as a DSACK (RFC 2883).
    fn note_duplicate(&mut self, start: Sequence, end: Sequence) {
        self.counters.duplicates += 1;
        if self.flags.sack {
            self.ack.dsack = Some((start as u32, end as u32));
        }
    }

    /// Processes a segment that overlaps the window. Writes its data to `buffer`, and processes its FIN.
    fn receive(
        &mut self,
        now: u64,
        seq: Sequence,
        payload: &[u8],
        fin: bool,
        buffer: &mut impl ReceiveBuffer,
    ) -> Events {
        if !matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            // The peer's FIN was received before, so this segment is a retransmission. Acknowledge it again. Only the FIN restarts TIME-WAIT
            // (RFC 9293, section 3.10.7.4).
            self.ack.now = true;
            if self.state == State::TimeWait && fin {
                self.timers.close_at = now.saturating_add(self.config.time_wait);
            }
            return Events::NONE;
        }
        let data_end = seq + payload.len() as u64;
        let limit = self.rcv.fin.map_or(self.rcv.edge(), |fin| fin.min(self.rcv.edge()));
        let (start, end) = (seq.max(self.rcv.next), data_end.min(limit));
        if fin && self.rcv.fin.is_none() && data_end <= self.rcv.edge() {
            // A stream cannot have data after its FIN. If data beyond this FIN was received earlier, ignore
            // the FIN and keep the data.
            let last = self.reassembly.end().unwrap_or(0).max(self.rcv.next);
            if last <= data_end {
                self.rcv.fin = Some(data_end);
            }
        }
        let before_next = self.rcv.next;
        if start < end {
            if self.flags.orphan {
                self.abort(); // RFC 9293, section 3.6.1: the data is lost
                return Events::ENDED;
            }
            let bytes = &payload[(start - seq) as usize..(end - seq) as usize];
            if payload.len() > self.rcv.mss as usize {
                self.rcv.mss = payload.len().min(self.config.mss as usize) as u16;
            }
            if start == self.rcv.next {
                buffer.write(start - self.rcv.start, bytes);
                if self.reassembly.is_empty() {
                    self.rcv.next = end;
                } else {
                    self.rcv.next = self.reassembly.advance(end);
                    // The segment fills a gap in the received data, so acknowledge it at once (RFC 5681,
                    // section 4.2).
                    self.ack.now = true;
                }
                self.schedule_ack(now, (self.rcv.next - before_next) as u32);
            } else {
                self.out_of_order(start, end, bytes, buffer);
            }
        } else if payload.is_empty() {
        } else if data_end <= self.rcv.next {
            self.note_duplicate(seq, data_end);
            self.ack.now = true;
        } else {
            self.ack.now = true; // beyond the window
        }
        let mut events = if self.rcv.next > before_next { Events::READABLE } else { Events::NONE };
        if fin || self.rcv.fin.is_some() {
            events |= self.receive_fin(now, fin);
        }
        events
    }

    /// Stores data that lies beyond a gap. Does not store data that was received before, or that would create
    /// too many gaps. Always acknowledges the data at once.
    fn out_of_order(
        &mut self,
        start: Sequence,
        end: Sequence,
        bytes: &[u8],
        buffer: &mut impl ReceiveBuffer,
    ) {
        self.counters.out_of_order += 1;
        if self.reassembly.containing(start, end).is_some() {
            self.note_duplicate(start, end);
        } else if self.reassembly.insert(start, end) {
            buffer.write(start - self.rcv.start, bytes);
        }
        if self.ack.now && !self.flags.sack {
            self.ack.duplicates = self.ack.duplicates.saturating_add(1);
        }
        self.ack.now = true;
    }

    /// Processes the peer's FIN once all data before the FIN has arrived. Set `again` if the current segment
    /// carries a FIN. The FIN is then acknowledged at once, even if it is a retransmission.
    pub(super) fn receive_fin(&mut self, now: u64, again: bool) -> Events {
        if again {
            self.ack.now = true;
        }
        if self.rcv.fin != Some(self.rcv.next) {
            return Events::NONE;
        }
        self.rcv.next += 1;
        self.ack.now = true;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {
                self.enter_time_wait(now);
                return Events::PEER_CLOSED | Events::ENDED;
            }
            _ => {}
        }
        Events::PEER_CLOSED
    }

    /// Decides when received data is acknowledged (RFC 9293, section 3.8.6.3; RFC 5681, section 4.2).
    #[inline]
    fn schedule_ack(&mut self, now: u64, len: u32) {
        self.ack.pending += len;
        let quick = self.ack.quick > 0;
        self.ack.quick = self.ack.quick.saturating_sub(1);
        let long = len > self.config.mss as u32 / 2;
        let several = self.ack.pending > self.rcv.mss as u32;
        if several && !quick && self.config.ack_gap > 0 && self.ack.pending < self.most_held() {
            (self.ack.held, self.timers.ack_at) = (true, now + self.config.ack_gap);
        } else if several || quick && (long || self.config.quick_ack == 0) {
            self.ack.now = true;
        } else if self.timers.ack_at == NEVER {
            let Config { delayed_ack, quick_ack, .. } = self.config;
            self.timers.ack_at = now + if quick { quick_ack.min(delayed_ack) } else { delayed_ack };
        }
    }

    /// Returns the number of received bytes that must be acknowledged at once.
    fn most_held(&self) -> u32 {
        (Self::MOST_HELD * u32::from(self.rcv.mss)).min(self.rcv.capacity / 8)
    }

    /// Announces a larger window at once if the peer may be waiting for it. The peer may wait if its
    /// remaining window is at most half of the greatest window and at most half of the free space. On a new
    /// connection, does nothing while the peer can still send an initial congestion window, because an
    /// acknowledgment is due soon.
    pub(super) fn update_window(&mut self) {
        let open = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        if !open || self.flags.carried {
            return;
        }
        let known = self.rcv.advertised.saturating_sub(self.rcv.next);
        let most = (self.rcv.capacity as u64).min((u16::MAX as u64) << self.rcv.scale);
        let free = self.rcv.edge().saturating_sub(self.rcv.next).min(most);
        let least = (most / 2).min(self.rcv.mss as u64).max(1);
        let initial = u64::from(self.config.initial_window) * u64::from(self.config.mss);
        if self.ack.quick > 0 && self.timers.ack_at != NEVER && known >= initial {
            return;
        }
        if known <= most / 2 && free >= 2 * known && free >= known + least {
            self.ack.now = true;
        }
    }
}
