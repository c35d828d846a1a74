//! The sending half: packets in flight, loss detection, the congestion window and timers.

use crate::config::{Config, INITIAL_SLOTS, MAX_SLOTS};
use crate::control::{Control, Grant, MAX_GRANTS};
use crate::{MILLISECOND, earlier, extend};
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    InFlight,
    Lost,
    Arrived,
}

/// A packet that is not acknowledged cumulatively.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub start: u64,
    pub len: u32,
    pub key: u32,
    first_sent_at: u64,
    sent_at: u64,
    progress: Progress,
    /// True if the packet was sent again.
    pub again: bool,
}

#[derive(Debug)]
pub struct Sender {
    first: u64,
    packets: VecDeque<Packet>,
    grants: VecDeque<Grant>,
    generation: u32,
    slots: u64,
    pub written: u64,
    pub next: u64,
    pub acknowledged: u64,
    pub shutdown: bool,
    end_sent: bool,
    pub end_acknowledged: bool,
    in_flight: u64,
    lost: usize,
    pub window: u64,
    threshold: u64,
    recovery: u64,
    pub srtt: u64,
    /// The least sample of the round-trip time, or 0 before the first one.
    least_rtt: u64,
    variation: u64,
    /// The time at which the latest sent packet that has arrived was sent.
    latest: u64,
    /// The PSN after the highest that has arrived.
    highest: u64,
    reordering: u64,
    duplicates: u32,
    pub backoff: u32,
    /// Timeouts in a row since the last control message.
    pub silent: u32,
    /// True once the peer has acknowledged something or sent a control message.
    pub answered: bool,
    timeout_at: Option<u64>,
    probe_at: Option<u64>,
    loss_at: Option<u64>,
    tail: bool,
    /// True if a probe for memory information is due.
    pub ask: bool,
    /// True while new data is stored into the peer's memory, and not sent in packets.
    pub stores: bool,
    pub retransmitted: u64,
    pub retransmitted_bytes: u64,
    pub timeouts: u64,
}

impl Sender {
    pub fn new(config: &Config, psn: u32, first_grant: Option<Grant>) -> Self {
        let first = (1 << 24) + psn as u64;
        let mut sender = Self {
            first,
            packets: VecDeque::with_capacity(INITIAL_SLOTS as usize),
            grants: VecDeque::with_capacity(MAX_GRANTS),
            generation: first_grant.is_some() as u32,
            slots: INITIAL_SLOTS,
            written: 0,
            next: 0,
            acknowledged: 0,
            shutdown: false,
            end_sent: false,
            end_acknowledged: false,
            in_flight: 0,
            lost: 0,
            window: (10 * config.payload as u64).min(config.max_window as u64),
            threshold: config.max_window as u64,
            recovery: first,
            srtt: 0,
            least_rtt: 0,
            variation: 0,
            latest: 0,
            highest: first,
            reordering: 1,
            duplicates: 0,
            backoff: 0,
            silent: 0,
            answered: false,
            timeout_at: None,
            probe_at: None,
            loss_at: None,
            tail: false,
            ask: false,
            stores: false,
            retransmitted: 0,
            retransmitted_bytes: 0,
            timeouts: 0,
        };
        sender.grants.extend(first_grant);
        if let Some(rtt) = config.rtt {
            sender.sample(rtt.max(1));
        }
        sender
    }

    pub fn deadline(&self) -> Option<u64> {
        earlier(earlier(self.timeout_at, self.probe_at), self.loss_at)
    }

    fn timeout(&self, config: &Config) -> u64 {
        let base = if self.srtt == 0 {
            config.initial_rto
        } else {
            (self.srtt + (4 * self.variation).max(MILLISECOND) + config.ack_delay).max(config.min_rto)
        };
        // The window is down to two packets after the first timeout, so the next two do not wait longer. The
        // timeout doubles from the fourth on. Probes for memory information are small, so they never become rare:
        // the message with that information may have been lost.
        let most = if self.blocked() { 3 } else { 16 };
        (base << self.backoff.saturating_sub(LINEAR_TIMEOUTS).min(most)).min(config.max_rto)
    }

    /// Returns true if no packet is unacknowledged.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns true if something waits that only the peer's memory information can release.
    fn blocked(&self) -> bool {
        self.packets.is_empty() && self.written > self.next && self.grants.is_empty()
    }

    /// Starts the timers if something is in flight or blocked, and stops them otherwise.
    pub fn arm(&mut self, now: u64, config: &Config, restart: bool) {
        if self.packets.is_empty() && !self.blocked() && self.acknowledged == self.next {
            (self.timeout_at, self.probe_at, self.loss_at) = (None, None, None);
            return;
        }
        if restart || self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.timeout(config));
            let wait = 2 * self.srtt + 2 * config.ack_delay + MILLISECOND;
            let useful =
                self.srtt > 0 && self.in_flight > 0 && self.backoff == 0 && wait < self.timeout(config);
            self.probe_at = useful.then_some(now + wait);
        }
    }

    /// Processes the timers that have expired. Returns true if a retransmission timeout was among them.
    pub fn on_timer(&mut self, now: u64, config: &Config) -> bool {
        if self.loss_at.is_some_and(|at| at <= now) {
            self.detect(now, config);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.tail = true;
        }
        if self.timeout_at.is_none_or(|at| at > now) {
            return false;
        }
        self.backoff += 1;
        self.silent += 1;
        self.timeouts += 1;
        if self.packets.is_empty() {
            self.ask = true;
        } else {
            self.threshold = (self.in_flight / 2).max(2 * config.payload as u64);
            for packet in &mut self.packets {
                if packet.progress == Progress::InFlight {
                    packet.progress = Progress::Lost;
                    self.lost += 1;
                }
            }
            self.in_flight = 0;
            self.window = 2 * config.payload as u64;
            self.recovery = self.first + self.packets.len() as u64;
            self.loss_at = None;
        }
        self.arm(now, config, true);
        true
    }

    /// Processes a control message whose token is right. Returns false if its contents are impossible.
    pub fn on_control(&mut self, now: u64, control: &Control<'_>, config: &Config) -> bool {
        let expected = extend(self.first, control.fixed.expected);
        let sent = self.first + self.packets.len() as u64;
        if expected > sent {
            return false;
        }
        self.slots = (control.fixed.slots as u64).clamp(INITIAL_SLOTS, MAX_SLOTS);
        for grant in control.grants() {
            let end = self.grants.back().map_or(self.next, |last| last.end);
            // Old messages repeat grants that were used up.
            if grant.generation == self.generation.wrapping_add(1) && grant.start == end && grant.end > end {
                if self.grants.len() == MAX_GRANTS {
                    return false;
                }
                self.generation = grant.generation;
                self.grants.push_back(grant);
            }
        }
        if (control.fixed.duplicates.wrapping_sub(self.duplicates) as i32) > 0 {
            // A packet was sent again without need, so the network reorders more than was assumed.
            self.duplicates = control.fixed.duplicates;
            self.reordering = (self.reordering * 2).min(16);
        }
        let covered = expected.saturating_add(control.covered()).min(sent);
        self.on_arrived(now, expected, covered, |offset| control.has(offset), config);
        true
    }

    /// Processes the acknowledgment of a data packet: the next PSN that the peer expects, 24 bits. Returns false if packets
    /// before it were not sent.
    pub fn on_acknowledgment(&mut self, now: u64, expected: u32, config: &Config) -> bool {
        let expected = extend(self.first, expected);
        if expected > self.first + self.packets.len() as u64 {
            return false;
        }
        self.on_arrived(now, expected, expected, |_| false, config);
        true
    }

    /// Records that the packets before PSN `expected` have arrived, and those up to `covered` for whose distance from `expected`
    /// `has` returns true.
    fn on_arrived(
        &mut self,
        now: u64,
        expected: u64,
        covered: u64,
        has: impl Fn(u64) -> bool,
        config: &Config,
    ) {
        (self.silent, self.answered) = (0, true);
        let (mut arrived, mut sample) = (0, None);
        for psn in self.first..covered {
            if psn >= expected && !has(psn - expected) {
                continue;
            }
            let packet = &mut self.packets[(psn - self.first) as usize];
            // An acknowledgment that comes after a timeout says little about the round-trip time.
            let sampled = packet.progress == Progress::InFlight && !packet.again;
            match packet.progress {
                Progress::Arrived => continue,
                Progress::InFlight => self.in_flight -= packet.len as u64,
                Progress::Lost => self.lost -= 1,
            }
            packet.progress = Progress::Arrived;
            arrived += packet.len as u64 + (packet.len == 0) as u64;
            self.highest = self.highest.max(psn + 1);
            // It is unknown which copy of a retransmitted packet has arrived. If the last copy was sent too
            // recently, only the first one is certain to be as late (RFC 8985, section 6.2). The smoothed time is no
            // measure of that: it stays high after a queue has drained, because retransmissions give no samples.
            let age = now.saturating_sub(packet.sent_at);
            let certain = !packet.again || age >= self.least_rtt;
            let sent_at = if certain { packet.sent_at } else { packet.first_sent_at };
            self.latest = self.latest.max(sent_at);
            if sampled {
                sample = Some(sample.map_or(age, |least: u64| least.min(age)));
            }
        }
        while self.packets.front().is_some_and(|packet| packet.progress == Progress::Arrived)
            && self.first < expected
        {
            let packet = self.packets.pop_front().expect("the front was looked at");
            self.first += 1;
            self.acknowledged += packet.len as u64;
            self.end_acknowledged |= packet.len == 0;
        }
        if let Some(sample) = sample {
            self.sample(sample.max(1));
        }
        if arrived > 0 || !self.blocked() && self.packets.is_empty() {
            self.backoff = 0;
        }
        if arrived > 0 {
            self.grow(arrived, config);
            self.detect(now, config);
        }
        self.arm(now, config, arrived > 0);
    }

    /// Moves the index of the next byte to send.
    fn advance(&mut self, len: u64) {
        self.next += len;
        if self.grants.front().is_some_and(|grant| grant.end == self.next) {
            self.grants.pop_front();
        }
    }

    /// Returns the next bytes to store, or `None` while there are none, or earlier ones are in packets.
    pub fn storable(&self, most: u64) -> Option<Range<u64>> {
        let grant = self.grants.front().filter(|_| self.stores && self.packets.is_empty())?;
        let end = self.written.min(grant.end).min(self.next + most);
        (end > self.next).then_some(self.next..end)
    }

    /// Records that the next `len` bytes are in the peer's memory.
    pub fn on_stored(&mut self, now: u64, len: u64, config: &Config) {
        self.advance(len);
        self.arm(now, config, false);
    }

    /// Records that the peer has taken note of the stored bytes before `index`. Returns false if bytes before it were not
    /// sent.
    pub fn on_noted(&mut self, now: u64, index: u64, config: &Config) -> bool {
        if index > self.next {
            return false;
        }
        // While packets are in flight, only their acknowledgments count.
        if index > self.acknowledged && self.packets.is_empty() {
            (self.acknowledged, self.silent, self.answered, self.backoff) = (index, 0, true, 0);
            self.arm(now, config, true);
        }
        true
    }

    pub fn acknowledge_all(&mut self, now: u64, config: &Config) {
        self.first += self.packets.len() as u64;
        self.packets.clear();
        (self.acknowledged, self.in_flight, self.lost, self.tail) = (self.next, 0, 0, false);
        self.arm(now, config, false);
    }

    fn sample(&mut self, rtt: u64) {
        self.least_rtt = if self.srtt == 0 { rtt } else { self.least_rtt.min(rtt) };
        if self.srtt == 0 {
            (self.srtt, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = self.variation - self.variation / 4 + self.srtt.abs_diff(rtt) / 4;
            self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
        }
    }

    /// Opens the congestion window by what `arrived`, in bytes.
    fn grow(&mut self, arrived: u64, config: &Config) {
        if self.first < self.recovery || self.in_flight + arrived < self.window / 2 {
            return;
        }
        let more = if self.window < self.threshold {
            arrived
        } else {
            (config.payload as u64 * arrived / self.window).max(1)
        };
        self.window = (self.window + more).min(config.max_window as u64);
    }

    /// Marks the packets that are lost because later sent packets have arrived (RFC 8985).
    fn detect(&mut self, now: u64, config: &Config) {
        self.loss_at = None;
        let margin = (self.srtt / 4 * self.reordering).min(self.srtt.max(MILLISECOND) * 2).max(100_000);
        let end = self.highest.saturating_sub(self.first) as usize;
        let mut newly_lost = None;
        for (at, packet) in self.packets.iter_mut().take(end).enumerate() {
            if packet.progress != Progress::InFlight || packet.sent_at > self.latest {
                continue;
            }
            let lost_at = packet.sent_at + self.srtt + margin;
            if lost_at <= now {
                packet.progress = Progress::Lost;
                self.in_flight -= packet.len as u64;
                self.lost += 1;
                newly_lost = newly_lost.or(Some(at));
            } else {
                self.loss_at = Some(self.loss_at.map_or(lost_at, |least| least.min(lost_at)));
            }
        }
        if newly_lost.is_some_and(|at| self.first + at as u64 >= self.recovery) {
            self.window = (self.window / 10 * 7).max(2 * config.payload as u64);
            self.threshold = self.window;
            self.recovery = self.first + self.packets.len() as u64;
        }
    }

    /// Returns the next packet to send, with its PSN, and records that it is sent now.
    pub fn next_packet(&mut self, now: u64, config: &Config) -> Option<(u64, Packet)> {
        let at = self.next_index(config)?;
        let packet = &mut self.packets[at];
        match packet.progress {
            Progress::Lost => {
                self.lost -= 1;
                self.in_flight += packet.len as u64;
                packet.again = true;
                self.retransmitted += 1;
                self.retransmitted_bytes += packet.len as u64;
            }
            Progress::InFlight if packet.sent_at != NEVER => {
                packet.again = true;
                self.retransmitted += 1;
                self.retransmitted_bytes += packet.len as u64;
            }
            _ => {
                self.in_flight += packet.len as u64;
                packet.first_sent_at = now;
            }
        }
        packet.progress = Progress::InFlight;
        packet.sent_at = now;
        let packet = *packet;
        self.arm(now, config, false);
        Some((self.first + at as u64, packet))
    }

    /// Returns the position of the packet to send: a lost one, the last one as a probe, or a new one.
    fn next_index(&mut self, config: &Config) -> Option<usize> {
        if std::mem::take(&mut self.tail) {
            let last = self.packets.iter().rposition(|packet| packet.progress == Progress::InFlight);
            if last.is_some() {
                return last;
            }
        }
        if self.in_flight > 0 && self.in_flight + config.payload as u64 > self.window {
            return None;
        }
        if self.lost > 0 {
            return self.packets.iter().position(|packet| packet.progress == Progress::Lost);
        }
        if self.stores || self.packets.len() as u64 >= self.slots {
            return None;
        }
        let (len, key) = match self.grants.front() {
            Some(grant) if self.written > self.next => {
                let len = (self.written - self.next).min(grant.end - self.next).min(config.payload as u64);
                (len as u32, grant.key)
            }
            _ if self.shutdown && !self.end_sent && self.written == self.next => (0, 0),
            _ => return None,
        };
        let packet = Packet {
            start: self.next,
            len,
            key,
            first_sent_at: NEVER,
            sent_at: NEVER,
            progress: Progress::InFlight,
            again: false,
        };
        self.end_sent |= len == 0;
        self.advance(len as u64);
        self.packets.push_back(packet);
        Some(self.packets.len() - 1)
    }
}

/// The number of timeouts in a row after which the timeout is not doubled yet.
const LINEAR_TIMEOUTS: u32 = 2;
/// The time of a packet that was not sent yet.
const NEVER: u64 = u64::MAX;
