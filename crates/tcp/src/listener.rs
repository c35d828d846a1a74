//! A listener. It has a SYN queue of half-open connections, and an accept queue of established ones. If the
//! SYN queue is full, the listener uses SYN cookies (RFC 4987).

use crate::config::{Config, EcnMode};
use crate::options::{Offer, Options, Timestamps};
use crate::secrets::{Flow, Secrets};
use crate::segment::{Header, Segment, reset_for};
use crate::sequence::before;
use crate::{Result, SECOND, TimeWait};
use inlane_wire::tcp::{ACK, CWR, ECE, FIN, RST, SYN};
use std::collections::{HashMap, VecDeque};

mod cookie;

/// Retransmissions of a SYN,ACK.
const RETRIES: usize = 5;
/// The number of the queue of deferred connections among the queues of deadlines.
const DEFERRED: usize = RETRIES + 1;
/// The timeout of the first SYN,ACK. It doubles with each retransmission.
const TIMEOUT: u64 = SECOND;

/// What both sides agreed on in a handshake. [`crate::Connection::accept`] makes it a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    pub(crate) sequence: u32,
    pub(crate) peer_sequence: u32,
    pub(crate) options: Options,
    pub(crate) timestamp_offset: u32,
    pub(crate) window: u16,
    pub(crate) ecn: bool,
    /// The window scale that this side announced.
    pub(crate) receive_scale: u8,
    pub(crate) rtt: Option<u64>,
    pub(crate) syn_retransmissions: u8,
    /// This side's offer of another transport, if the SYN,ACK has one.
    pub(crate) offer: Option<Offer>,
}

impl Handshake {
    /// Returns the offers of another transport, this side's first, if both sides have made one.
    pub fn offers(&self) -> Option<(Offer, Offer)> {
        self.offer.zip(self.options.offer)
    }
}

/// What to do after a segment was handed to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Drop,
    /// Send this header to the segment's sender.
    Reply(Header),
    /// The handshake is complete. Create the connection with [`crate::Connection::accept`], pass the segment
    /// to the connection, and count it in [`Listener::set_waiting`] until the application has accepted it.
    Established(Handshake),
}

/// Counters of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// SYNs received for new connections.
    pub syns: u64,
    /// Handshakes completed.
    pub established: u64,
    /// SYNs and final acknowledgments dropped because the accept queue was full.
    pub accept_queue_full: u64,
    /// SYNs answered with a cookie because the SYN queue was full.
    pub cookies_sent: u64,
    /// Handshakes completed by a valid cookie.
    pub cookies_valid: u64,
    /// Acknowledgments that belonged to no half-open connection and whose cookie was wrong.
    pub cookies_invalid: u64,
    /// Half-open connections given up because the peer did not answer.
    pub expired: u64,
}

#[derive(Clone, Copy, Debug)]
struct HalfOpen {
    handshake: Handshake,
    sent: u64,
    deadline: u64,
    /// When the handshake of a connection without data may complete, in nanoseconds. `None` until the peer has sent the last
    /// acknowledgment of a handshake that the listener defers.
    deferred_until: Option<u64>,
}

/// A listening socket. The caller keeps the accept queue.
#[derive(Debug)]
pub struct Listener {
    config: Config,
    secrets: Secrets,
    half_open: HashMap<Flow, HalfOpen>,
    /// The deadlines of half-open connections, sorted: one queue for each number of retransmissions. An entry is outdated if its half-open
    /// connection is gone or has another deadline. The last queue has the deferred connections.
    deadlines: [VecDeque<(u64, Flow)>; DEFERRED + 1],
    /// How long a connection waits for its first data before it is established, in nanoseconds.
    defer: u64,
    backlog: usize,
    /// The number of established connections that the application has not accepted yet.
    waiting: usize,
    /// When all sent cookies have expired, in nanoseconds. Until then, an acknowledgment from an unknown peer
    /// may hold a valid cookie.
    cookies_until: u64,
    counters: ListenerCounters,
}

impl Listener {
    /// Creates a listener whose connections get `config`. At most `backlog` connections are half-open, but at least one may be.
    /// The accept queue has room for one connection more than `backlog`, as on Linux.
    ///
    /// # Errors
    /// [`crate::Error::Config`] if a setting is out of range.
    pub fn new(config: &Config, secrets: Secrets, backlog: usize) -> Result<Self> {
        config.check()?;
        Ok(Self {
            config: config.clone(),
            secrets,
            half_open: HashMap::new(),
            deadlines: Default::default(),
            defer: 0,
            backlog,
            waiting: 0,
            cookies_until: 0,
            counters: ListenerCounters::default(),
        })
    }

    /// Returns the settings of new connections.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &ListenerCounters {
        &self.counters
    }

    /// Returns the number of half-open connections.
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// Changes the backlog. Connections that already wait in a queue stay there.
    pub fn set_backlog(&mut self, backlog: usize) {
        self.backlog = backlog;
    }

    /// Sets how long a new connection waits for its first data, in nanoseconds, before it is established without. 0 for no wait. This
    /// is TCP_DEFER_ACCEPT. The peer considers its connection established meanwhile. Connections of SYN cookies do not wait.
    pub fn set_defer(&mut self, defer: u64) {
        self.defer = defer;
    }

    /// Sets the number of established connections that the application has not accepted yet.
    pub fn set_waiting(&mut self, connections: usize) {
        self.waiting = connections;
    }

    /// Returns true if the accept queue is full. The listener then drops SYNs and final acknowledgments.
    pub fn is_full(&self) -> bool {
        self.waiting > self.backlog
    }

    /// Processes a segment that belongs to no connection. `previous` is the flow's TIME-WAIT entry, if it
    /// answered [`crate::TimeWaitAction::Reopen`].
    pub fn on_segment(
        &mut self,
        now: u64,
        flow: &Flow,
        segment: &Segment<'_>,
        previous: Option<&TimeWait>,
    ) -> Verdict {
        let header = &segment.header;
        match self.half_open.get(flow) {
            Some(&entry) => self.on_half_open(now, flow, segment, entry),
            None if header.has(RST) => Verdict::Drop,
            None if header.has(ACK) => self.on_cookie(now, flow, segment),
            None if header.has(SYN) => self.on_syn(now, flow, header, previous),
            None => Verdict::Drop,
        }
    }

    fn on_syn(&mut self, now: u64, flow: &Flow, header: &Header, previous: Option<&TimeWait>) -> Verdict {
        self.counters.syns += 1;
        if self.is_full() {
            self.counters.accept_queue_full += 1;
            return Verdict::Drop;
        }
        let start = self.secrets.start(now, flow);
        let mut handshake = Handshake {
            sequence: start.sequence,
            peer_sequence: header.sequence,
            options: header.options,
            timestamp_offset: start.timestamp_offset,
            window: header.window,
            ecn: self.config.ecn != EcnMode::Off && header.has(ECE | CWR),
            receive_scale: self.config.window_scale(),
            rtt: None,
            syn_retransmissions: 0,
            offer: None,
        };
        if self.half_open.len() >= self.backlog.max(1) {
            self.counters.cookies_sent += 1;
            self.cookies_until = now + cookie::VALID;
            return Verdict::Reply(self.cookie_reply(now, flow, &handshake));
        }
        if let Some(previous) = previous {
            handshake.sequence = previous.sequence_after(handshake.sequence);
        }
        if self.config.offer.is_some() && header.options.offer.is_some() {
            handshake.offer = Some(self.secrets.offer(flow, handshake.sequence));
        }
        let deadline = now + TIMEOUT;
        self.half_open.insert(*flow, HalfOpen { handshake, sent: now, deadline, deferred_until: None });
        self.push_deadline(0, deadline, flow);
        Verdict::Reply(self.syn_ack(now, &handshake))
    }

    fn push_deadline(&mut self, retransmissions: usize, deadline: u64, flow: &Flow) {
        let half_open = &self.half_open;
        let queue = &mut self.deadlines[retransmissions];
        if queue.len() > 2 * self.backlog + 64 {
            queue.retain(|(deadline, flow)| {
                half_open.get(flow).is_some_and(|entry| entry.deadline == *deadline)
            });
        }
        // After a change of the time, deferred connections can have earlier deadlines than those before them.
        let place = match queue.back() {
            Some(&(last, _)) if last > deadline => queue.partition_point(|entry| entry.0 <= deadline),
            _ => queue.len(),
        };
        queue.insert(place, (deadline, *flow));
    }

    fn on_half_open(&mut self, now: u64, flow: &Flow, segment: &Segment<'_>, entry: HalfOpen) -> Verdict {
        let header = &segment.header;
        let handshake = entry.handshake;
        let offset = header.sequence.wrapping_sub(handshake.peer_sequence.wrapping_add(1));
        let in_window = offset <= self.config.receive_capacity.min(u16::MAX as u32);
        if header.has(RST) {
            if offset == 0 {
                self.half_open.remove(flow);
            }
            return Verdict::Drop;
        }
        if header.has(SYN) {
            if header.sequence == handshake.peer_sequence && !header.has(ACK) {
                return Verdict::Reply(self.syn_ack(now, &handshake));
            }
            return Verdict::Reply(self.acknowledgment(now, &handshake)); // RFC 5961, section 4
        }
        if !header.has(ACK) {
            return Verdict::Drop;
        }
        if header.acknowledgment != handshake.sequence.wrapping_add(1) {
            return reset_for(segment).map_or(Verdict::Drop, Verdict::Reply);
        }
        let old = match (
            handshake.options.timestamps.filter(|_| self.config.timestamps),
            header.options.timestamps,
        ) {
            (Some(first), Some(this)) => before(this.value, first.value),
            (first, _) => first.is_some(),
        };
        if !in_window || old {
            return Verdict::Reply(self.acknowledgment(now, &handshake));
        }
        if segment.payload.is_empty() && !header.has(FIN) && self.defers(now, flow, entry) {
            return Verdict::Drop;
        }
        if self.is_full() {
            self.counters.accept_queue_full += 1;
            return Verdict::Drop; // the SYN,ACK is retransmitted, and its answer may find room
        }
        self.half_open.remove(flow);
        self.counters.established += 1;
        let rtt = (handshake.syn_retransmissions == 0).then(|| now.saturating_sub(entry.sent));
        let rtt = handshake.rtt.or(rtt);
        Verdict::Established(Handshake { window: header.window, rtt, ..handshake })
    }

    /// Returns true if the connection of `entry` must wait for its first data. Its peer has just sent an acknowledgment without data.
    /// If nothing else arrives until the deadline, the SYN,ACK is sent again, and the answer to it establishes the connection.
    fn defers(&mut self, now: u64, flow: &Flow, entry: HalfOpen) -> bool {
        if let Some(until) = entry.deferred_until {
            return now < until;
        }
        if self.defer == 0 {
            return false;
        }
        let until = now + self.defer;
        if let Some(entry) = self.half_open.get_mut(flow) {
            (entry.deferred_until, entry.deadline) = (Some(until), until);
            let answered = entry.handshake.syn_retransmissions == 0;
            entry.handshake.rtt = answered.then(|| now.saturating_sub(entry.sent));
        }
        self.push_deadline(DEFERRED, until, flow);
        true
    }

    /// Returns the timestamps option of a reply, or `None` if a side does not use timestamps.
    fn timestamps(&self, now: u64, handshake: &Handshake) -> Option<Timestamps> {
        let timestamps = handshake.options.timestamps.filter(|_| self.config.timestamps)?;
        Some(Timestamps { value: crate::timestamp(now, handshake.timestamp_offset), echo: timestamps.value })
    }

    fn syn_ack(&self, now: u64, handshake: &Handshake) -> Header {
        let offered = &handshake.options;
        Header {
            sequence: handshake.sequence,
            acknowledgment: handshake.peer_sequence.wrapping_add(1),
            window: self.config.receive_capacity.min(u16::MAX as u32) as u16,
            // RFC 3168, section 6.1.1.1: a retransmission does not use ECN, because a middlebox may have
            // dropped the first SYN,ACK for its ECN flag.
            flags: SYN | ACK | if handshake.ecn && handshake.syn_retransmissions == 0 { ECE } else { 0 },
            options: Options {
                mss: Some(self.config.mss),
                window_scale: offered
                    .window_scale
                    .filter(|_| self.config.window_scaling)
                    .map(|_| self.config.window_scale()),
                sack_permitted: offered.sack_permitted && self.config.sack,
                timestamps: self.timestamps(now, handshake),
                offer: handshake.offer,
                ..Options::default()
            },
        }
    }

    fn acknowledgment(&self, now: u64, handshake: &Handshake) -> Header {
        Header {
            sequence: handshake.sequence.wrapping_add(1),
            acknowledgment: handshake.peer_sequence.wrapping_add(1),
            window: self.config.receive_capacity.min(u16::MAX as u32) as u16,
            flags: ACK,
            options: Options { timestamps: self.timestamps(now, handshake), ..Options::default() },
        }
    }

    /// Returns the time at which [`Listener::on_timer`] must be called, or `None` if there is no deadline.
    /// The time may be too early: the deadline of a completed handshake is removed only when it passes.
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.iter().filter_map(|queue| queue.front()).map(|entry| entry.0).min()
    }

    /// Retransmits the SYN,ACKs that were not answered in time: calls `send` for each. Removes a half-open
    /// connection after five unanswered retransmissions.
    pub fn on_timer(&mut self, now: u64, mut send: impl FnMut(&Flow, Header)) {
        for queue in 0..=DEFERRED {
            // A deferred connection begins again with the retransmissions.
            let retransmissions = if queue == DEFERRED { 0 } else { queue };
            while let Some(&(deadline, flow)) = self.deadlines[queue].front()
                && deadline <= now
            {
                self.deadlines[queue].pop_front();
                let Some(entry) = self.half_open.get_mut(&flow).filter(|entry| entry.deadline == deadline)
                else {
                    continue;
                };
                if retransmissions == RETRIES {
                    self.half_open.remove(&flow);
                    self.counters.expired += 1;
                    continue;
                }
                entry.handshake.syn_retransmissions += 1;
                entry.deadline = now + (TIMEOUT << (retransmissions + 1));
                let (deadline, handshake) = (entry.deadline, entry.handshake);
                self.push_deadline(retransmissions + 1, deadline, &flow);
                send(&flow, self.syn_ack(now, &handshake));
            }
        }
    }
}

#[cfg(test)]
mod tests;
