//! The segments in flight and their states: the SACK scoreboard (RFC 6675), with the transmission times for
//! RACK (RFC 8985).
//!
//! The scoreboard is a list of records in sequence order. A record covers one or more segments that were sent
//! at the same time. If a SACK block covers a part of a record, the record is split. Neighbouring records are
//! merged if they are all acknowledged selectively, or all lost.
//!
//! ```text
//!    SND.UNA                                                        SND.NXT
//!       |  lost   |  sacked      | retransmitted | sacked | in flight |
//! ```

use crate::sequence::Sequence;
use std::collections::VecDeque;

const SACKED: u8 = 1;
const LOST: u8 = 2;
const RETRANSMITTED: u8 = 4;

/// Limits the records of sent data, because SACK blocks can split records. There may be two records for each
/// full segment in flight, plus this number. The limit bounds the memory that a hostile peer can use.
const SPARE_RECORDS: usize = 64;
/// The most records. Beyond this number, segments that follow each other share a record.
const MAX_RECORDS: usize = 16_384;
/// A widened reordering window is kept for this number of loss recoveries (RFC 8985, section 6.2).
const REORDERING_PERSISTENCE: u8 = 16;

#[derive(Clone, Copy, Debug)]
struct Record {
    start: Sequence,
    /// When the record's bytes were last transmitted, in nanoseconds.
    sent: u64,
    len: u32,
    flags: u8,
}

impl Record {
    fn end(&self) -> Sequence {
        self.start + self.len as u64
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// What an acknowledgment delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivered {
    /// Bytes that are acknowledged for the first time, cumulatively or selectively.
    pub bytes: u64,
    /// The earliest transmission time among the newly acknowledged bytes that were sent only once, in
    /// nanoseconds. `None` if there are no such bytes.
    pub oldest: Option<u64>,
    /// The latest transmission time among the newly acknowledged bytes that were sent only once, in
    /// nanoseconds. `None` if there are no such bytes.
    pub newest: Option<u64>,
}

/// The facts that decide whether an acknowledgment answers a segment's retransmission or its original
/// transmission.
#[derive(Clone, Copy, Debug)]
pub struct AckContext {
    /// The time at which the acknowledgment arrived, in nanoseconds.
    pub now: u64,
    /// The least RTT, in nanoseconds.
    pub min_rtt: u64,
    /// The timestamp that the peer echoed, and the offset from times to this connection's timestamps. `None`
    /// if the connection uses no timestamps.
    pub echo: Option<(u32, u32)>,
}

/// The segments in flight of one connection.
#[derive(Clone, Debug, Default)]
pub struct Scoreboard {
    records: VecDeque<Record>,
    sacked: u64,
    lost: u64,
    /// No record below this sequence number is lost.
    lost_hint: Sequence,
    /// RACK.xmit_ts: the transmission time of the delivered segment that was sent last, in nanoseconds.
    rack_sent: u64,
    /// RACK.end_seq: the sequence number at the end of the delivered segment that was sent last.
    rack_end: Sequence,
    /// RACK.rtt: the RTT of the delivered segment that was sent last, in nanoseconds.
    rack_rtt: u64,
    /// RACK.fack: the highest sequence number delivered.
    forward_ack: Sequence,
    reordering_seen: bool,
    reordering_multiplier: u8,
    reordering_persistence: u8,
    dsack_round: Option<Sequence>,
}

impl Scoreboard {
    /// Returns true if nothing is in flight.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the number of bytes from SND.UNA to SND.NXT. The records cover all of these bytes.
    fn outstanding(&self) -> u64 {
        match (self.records.front(), self.records.back()) {
            (Some(first), Some(last)) => last.end() - first.start,
            _ => 0,
        }
    }

    /// Returns the number of bytes in flight: sent, and neither acknowledged nor lost (RFC 6675, pipe).
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.outstanding() - self.sacked - self.lost
    }

    /// Returns the number of bytes that were acknowledged selectively.
    #[inline]
    pub fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Returns the number of bytes that are lost and not retransmitted yet.
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of records. Tests check that this number stays bounded.
    #[cfg(test)]
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// Adds a segment that was sent for the first time. It must begin where the last one ended.
    #[inline]
    pub fn push(&mut self, start: Sequence, len: u32, now: u64) {
        let full = self.records.len() >= MAX_RECORDS;
        match self.records.back_mut() {
            Some(last)
                if last.flags == 0
                    && (last.sent == now || full)
                    && last.len as u64 + (len as u64) < 1 << 31 =>
            {
                debug_assert_eq!(last.end(), start);
                last.len += len;
                last.sent = now;
            }
            last => {
                debug_assert!(last.is_none_or(|last| last.end() == start));
                self.records.push_back(Record { start, sent: now, len, flags: 0 });
            }
        }
    }

    /// Processes a record, or a part of a record, that is acknowledged for the first time.
    fn deliver(&mut self, record: Record, context: &AckContext, delivered: &mut Delivered) {
        delivered.bytes += record.len as u64;
        let rtt = context.now.saturating_sub(record.sent);
        if record.has(RETRANSMITTED) {
            // Ignore the acknowledgment if it may answer an earlier transmission of the segment. RACK's
            // values must not change then (RFC 8985, section 6.2, step 2).
            let early = context.echo.is_some_and(|(echo, offset)| {
                crate::sequence::before(echo, crate::timestamp(record.sent, offset))
            });
            if early || rtt < context.min_rtt {
                return;
            }
        } else {
            delivered.oldest = Some(delivered.oldest.map_or(record.sent, |oldest| oldest.min(record.sent)));
            delivered.newest = Some(delivered.newest.map_or(record.sent, |newest| newest.max(record.sent)));
            if record.end() < self.forward_ack {
                self.reordering_seen = true;
            }
        }
        self.forward_ack = self.forward_ack.max(record.end());
        if (record.sent, record.end()) > (self.rack_sent, self.rack_end) {
            (self.rack_sent, self.rack_end) = (record.sent, record.end());
            self.rack_rtt = rtt;
        }
    }

    /// Removes everything below `ack`.
    #[inline]
    pub fn acknowledge(&mut self, ack: Sequence, context: &AckContext, delivered: &mut Delivered) {
        while let Some(first) = self.records.front_mut() {
            if first.start >= ack {
                break;
            }
            let len = first.len.min((ack - first.start) as u32);
            let part = Record { len, ..*first };
            if len == first.len {
                self.records.pop_front();
            } else {
                first.start += len as u64;
                first.len -= len;
            }
            if part.has(SACKED) {
                self.sacked -= len as u64;
            } else {
                if part.has(LOST) {
                    self.lost -= len as u64;
                }
                self.deliver(part, context, delivered);
            }
        }
    }

    /// Returns the index of the record that contains `sequence`. If there is none, returns the index of the
    /// first record after `sequence`.
    fn position(&self, sequence: Sequence) -> usize {
        self.records.partition_point(|record| record.end() <= sequence)
    }

    /// Splits record `at` behind its first `len` bytes.
    fn split(&mut self, at: usize, len: u32) {
        let record = &mut self.records[at];
        debug_assert!(0 < len && len < record.len);
        let rest = Record { start: record.start + len as u64, len: record.len - len, ..*record };
        record.len = len;
        self.records.insert(at + 1, rest);
    }

    /// Merges record `at` with the next record if both have the same state. Records in flight must also have
    /// the same transmission time. Returns true if the records were merged.
    fn merge(&mut self, at: usize) -> bool {
        let (Some(a), Some(b)) = (self.records.get(at), self.records.get(at + 1)) else { return false };
        let alike = a.flags == b.flags && (a.sent == b.sent || a.flags & (SACKED | LOST) != 0);
        if !alike || a.len as u64 + b.len as u64 >= 1 << 31 {
            return false;
        }
        let (sent, len) = (b.sent, b.len);
        let a = &mut self.records[at];
        a.sent = a.sent.max(sent);
        a.len += len;
        self.records.remove(at + 1);
        true
    }

    /// Marks `left..right`, a block of a SACK option, as delivered. The caller has checked that the block
    /// lies between SND.UNA and SND.NXT. Splits the records at the block's ends, up to about two records for
    /// each `mss` bytes in flight. Without this limit, a hostile peer could cause any number of records.
    pub fn sack(
        &mut self,
        left: Sequence,
        right: Sequence,
        mss: u32,
        context: &AckContext,
        delivered: &mut Delivered,
    ) {
        let bound = (SPARE_RECORDS + 2 * (self.outstanding() / mss as u64) as usize).min(MAX_RECORDS);
        let mut at = self.position(left);
        while let Some(&record) = self.records.get(at)
            && record.start < right
        {
            if record.has(SACKED) {
                at += 1;
                continue;
            }
            if (record.start < left || right < record.end()) && self.records.len() >= bound {
                at += 1;
                continue;
            }
            if record.start < left {
                self.split(at, (left - record.start) as u32);
                at += 1;
                continue;
            }
            if right < record.end() {
                self.split(at, (right - record.start) as u32);
            }
            let record = self.records[at];
            if record.has(LOST) {
                self.lost -= record.len as u64;
            }
            self.sacked += record.len as u64;
            self.deliver(record, context, delivered);
            self.records[at].flags = SACKED;
            self.merge(at);
            if at > 0 && self.merge(at - 1) {
                at -= 1;
            }
            at += 1;
        }
    }

    fn mark_lost(&mut self, at: usize) {
        let record = &mut self.records[at];
        debug_assert!(!record.has(SACKED | LOST));
        record.flags |= LOST;
        let (start, len) = (record.start, record.len);
        self.lost_hint = if self.lost == 0 { start } else { self.lost_hint.min(start) };
        self.lost += len as u64;
    }

    /// Returns the reordering window (RFC 8985, section 6.2, step 4).
    pub fn reordering_window(&self, srtt: u64, min_rtt: u64, in_recovery: bool, mss: u32) -> u64 {
        if !self.reordering_seen && (in_recovery || self.sacked >= 3 * mss as u64) {
            return 0;
        }
        (min_rtt / 4 * (self.reordering_multiplier as u64 + 1)).min(srtt)
    }

    /// Widens the reordering window, at most once a round trip, because a DSACK showed a spurious retransmission.
    pub fn on_dsack(&mut self, una: Sequence, next: Sequence) {
        if self.dsack_round.is_some_and(|round| una >= round) {
            self.dsack_round = None;
        }
        if self.dsack_round.is_none() {
            self.dsack_round = Some(next);
            self.reordering_multiplier = self.reordering_multiplier.saturating_add(1);
            self.reordering_persistence = REORDERING_PERSISTENCE;
        }
    }

    /// Counts the end of a loss recovery. Narrows a widened reordering window again after sixteen recoveries
    /// without a DSACK.
    pub fn on_recovery_end(&mut self) {
        self.reordering_persistence = self.reordering_persistence.saturating_sub(1);
        if self.reordering_persistence == 0 {
            self.reordering_multiplier = 0;
        }
    }

    /// Marks segments as lost if they were sent long enough before a delivered segment (RFC 8985, section
    /// 6.2, step 5). Returns the number of bytes marked. Also returns the time when the next segment will
    /// count as lost if no acknowledgment arrives before.
    pub fn detect_loss(&mut self, now: u64, window: u64) -> (u64, Option<u64>) {
        let (mut marked, mut deadline) = (0, None);
        if self.rack_end == 0 {
            return (0, None);
        }
        let mut at = 0;
        while let Some(&record) = self.records.get(at) {
            let delivered_later = (record.sent, record.end()) < (self.rack_sent, self.rack_end);
            if !delivered_later && record.flags == 0 {
                // Stop here. All later records are of segments that were sent later, so none of them counts
                // as lost.
                break;
            }
            if delivered_later && !record.has(SACKED | LOST) {
                let lost_at = record.sent + self.rack_rtt + window;
                if lost_at <= now {
                    self.mark_lost(at);
                    marked += record.len as u64;
                    if at > 0 && self.merge(at - 1) {
                        at -= 1;
                    }
                } else {
                    deadline = Some(deadline.map_or(lost_at, |deadline: u64| deadline.max(lost_at)));
                }
            }
            at += 1;
        }
        (marked, deadline)
    }

    /// Marks the first `len` bytes as lost, or the whole first record if it is shorter. Returns the number of
    /// bytes marked. It is 0 if the first record is already lost or acknowledged. Used for peers without
    /// SACK, and after an ICMP message about the path MTU.
    pub fn mark_first_lost(&mut self, len: u32) -> u64 {
        let Some(&first) = self.records.front() else { return 0 };
        if first.has(SACKED | LOST) {
            return 0;
        }
        if len < first.len {
            self.split(0, len);
        }
        self.mark_lost(0);
        self.records[0].len as u64
    }

    /// Marks segments as lost after a retransmission timeout (RFC 8985, section 6.3): the first segment in
    /// flight, and all segments that were sent at least `age` nanoseconds ago. If the first segment has a
    /// selective acknowledgment, the receiver has discarded it (RFC 2018, section 8). This then forgets all
    /// selective acknowledgments.
    pub fn mark_timed_out(&mut self, now: u64, age: u64) {
        if self.records.front().is_some_and(|first| first.has(SACKED)) {
            for record in &mut self.records {
                record.flags = if record.has(SACKED) { RETRANSMITTED } else { record.flags };
            }
            self.sacked = 0;
        }
        let mut at = 0;
        while let Some(&record) = self.records.get(at) {
            if !record.has(SACKED | LOST) && (at == 0 || record.sent + age <= now) {
                self.mark_lost(at);
                if at > 0 && self.merge(at - 1) {
                    at -= 1;
                }
            }
            at += 1;
        }
    }

    /// Removes the mark of loss from all segments. Segments that still wait for a retransmission are then not
    /// retransmitted. Call this when acknowledgments show that the recovery was spurious.
    pub fn clear_lost(&mut self) {
        for record in &mut self.records {
            record.flags &= !LOST;
        }
        self.lost = 0;
    }

    /// Returns the start and the length in bytes of the first lost range, or `None` if nothing is marked
    /// lost.
    pub fn next_lost(&mut self) -> Option<(Sequence, u32)> {
        if self.lost == 0 {
            return None;
        }
        let at = self.position(self.lost_hint);
        let record = self.records.iter().skip(at).find(|record| record.has(LOST))?;
        let found = (record.start, record.len);
        self.lost_hint = found.0;
        Some(found)
    }

    /// Records that `len` bytes from `start`, all within one record, were retransmitted.
    pub fn retransmitted(&mut self, start: Sequence, len: u32, now: u64) {
        let mut at = self.position(start);
        let Some(record) = self.records.get(at).copied() else { return };
        if record.start < start {
            self.split(at, (start - record.start) as u32);
            at += 1;
        }
        if len < self.records[at].len {
            self.split(at, len);
        }
        let record = &mut self.records[at];
        if record.has(LOST) {
            self.lost -= record.len as u64;
        }
        record.flags = RETRANSMITTED;
        record.sent = now;
        if at > 0 {
            self.merge(at - 1);
        }
    }

    /// Returns the range that a loss probe retransmits: the last `len` bytes in flight, or the last record if
    /// it is shorter. Returns `None` if nothing is in flight, or if the last record is already acknowledged
    /// selectively.
    pub fn last(&self, len: u32) -> Option<(Sequence, u32)> {
        let last = self.records.back().filter(|last| !last.has(SACKED))?;
        let len = last.len.min(len);
        Some((last.end() - len as u64, len))
    }

    /// Asserts that the records are contiguous and consistent, and that the byte counts equal the sums over
    /// the records.
    #[cfg(test)]
    pub fn check(&self) {
        let sum = |flag| {
            self.records.iter().filter(|record| record.has(flag)).map(|record| record.len as u64).sum::<u64>()
        };
        assert_eq!(self.sacked, sum(SACKED));
        assert_eq!(self.lost, sum(LOST));
        for (a, b) in self.records.iter().zip(self.records.iter().skip(1)) {
            assert_eq!(a.end(), b.start);
        }
        assert!(
            self.records.iter().all(|record| record.len > 0 && !(record.has(SACKED) && record.has(LOST)))
        );
        assert!(
            self.lost == 0
                || self.records.iter().all(|record| !record.has(LOST) || record.start >= self.lost_hint)
        );
    }
}

#[cfg(test)]
mod tests;
