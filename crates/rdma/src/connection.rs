//! The connection: both halves, the packets on the wire, and the application's indices.

use crate::acknowledgment::Acknowledgment;
use crate::config::{Config, Endpoint};
use crate::control::{self, CONTROL, Control, Fixed, Grant, MAX_HEADERS, PROBE, RESET, SHARED};
use crate::counters::Counters;
use crate::receiver::{Memory, Receiver, Refused};
use crate::sender::{Packet, Sender};
use crate::{Error, Result, earlier};
use inlane_wire::roce::{self, BTH, Bth, IMMDT, ImmDt, RETH, Reth, opcode};
use std::ops::Range;

/// Why a connection ended before both streams were complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The peer did not acknowledge for too long.
    TimedOut,
    /// The peer ended the connection.
    Reset,
    /// The application called [`Connection::abort`].
    Aborted,
    /// The peer's packets contradict each other.
    Violation,
}

/// A packet to send: its headers, followed by data from the send ring, zeros, and the ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes of the headers, from the BTH on.
    pub headers: usize,
    /// The indices of the data in the send stream. Empty for control messages.
    pub payload: Range<u64>,
    /// The number of zeros after the data, from 0 to 3.
    pub padding: usize,
}

/// Returns the number of bytes from the BTH to the data of a packet with this opcode. `None` if it is not that of a data
/// packet.
pub fn data_headers(opcode: u8) -> Option<usize> {
    match opcode {
        opcode::WRITE_ONLY => Some(BTH + RETH),
        opcode::WRITE_ONLY_IMMEDIATE => Some(BTH + RETH + IMMDT),
        _ => None,
    }
}

/// A reliable connection between two queue pairs.
#[derive(Debug)]
pub struct Connection {
    pub(crate) config: Config,
    pub(crate) local: Endpoint,
    pub(crate) remote: Endpoint,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) counters: Counters,
    pub(crate) ended: Option<EndReason>,
    /// True if a control message must be sent.
    pub(crate) control: bool,
    /// Flags of the next control message.
    pub(crate) flags: u8,
    acknowledgment: Acknowledgment,
    /// True if the peer has shared the memory of its receive ring, and the caller does not know yet.
    pub(crate) shared: bool,
}

impl Connection {
    /// Creates a connection. `secret` is random, and keys are derived from it. The first packet to send
    /// carries memory information, unless [`Config::announce`] is false.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting or an endpoint's number is out of range.
    pub fn new(config: &Config, local: Endpoint, remote: Endpoint, secret: [u8; 16]) -> Result<Self> {
        config.check()?;
        local.check()?;
        remote.check()?;
        let first_grant = Grant::first(local.token, config.first_grant);
        let receiver = Receiver::new(config, remote.psn, first_grant, secret);
        Ok(Self {
            sender: Sender::new(config, local.psn, Grant::first(remote.token, config.first_grant)),
            config: config.clone(),
            local,
            remote,
            counters: Counters::default(),
            ended: None,
            control: !receiver.quiet,
            receiver,
            flags: 0,
            acknowledgment: Acknowledgment::default(),
            shared: false,
        })
    }

    /// Processes a packet from its BTH to the byte before its ICRC. The caller has checked the ICRC.
    pub fn on_packet(&mut self, now: u64, packet: &[u8], memory: &mut impl Memory) {
        let headers = packet.first().and_then(|&opcode| data_headers(opcode));
        let (headers, data) = packet.split_at(headers.unwrap_or(packet.len()).min(packet.len()));
        self.on_split_packet(now, headers, data, memory);
    }

    /// Processes a packet as [`Connection::on_packet`] does, but takes the headers of a data packet apart from its data: `headers`
    /// has the bytes that [`data_headers`] names, and `data` the rest. The data can therefore lie in memory that the sender
    /// may change at any time, while the headers are a copy. All of a control message belongs to `headers`.
    pub fn on_split_packet(&mut self, now: u64, headers: &[u8], data: &[u8], memory: &mut impl Memory) {
        let Ok(bth) = Bth::new(headers) else {
            self.counters.malformed += 1;
            return;
        };
        if bth.queue_pair() != self.local.queue_pair || bth.partition() != roce::DEFAULT_PARTITION {
            self.counters.refused_queue_pair += 1;
            return;
        }
        if self.ended.is_some() {
            return;
        }
        match bth.opcode() {
            CONTROL => self.on_control(now, bth.payload()),
            opcode::WRITE_ONLY | opcode::WRITE_ONLY_IMMEDIATE if bth.version() == 0 => {
                self.on_write(now, &bth, data, memory);
            }
            _ => self.counters.malformed += 1,
        }
    }

    fn on_control(&mut self, now: u64, bytes: &[u8]) {
        let Some(control) = Control::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if control.fixed.token != self.local.token || !self.sender.on_control(now, &control, &self.config) {
            self.counters.refused_control += 1;
            return;
        }
        if control.fixed.flags & RESET != 0 {
            self.end(EndReason::Reset, false);
        }
        self.control |= control.fixed.flags & PROBE != 0;
        self.shared |= control.fixed.flags & SHARED != 0;
    }

    fn on_write(&mut self, now: u64, bth: &Bth<&[u8]>, data: &[u8], memory: &mut impl Memory) {
        let acknowledges = bth.opcode() == opcode::WRITE_ONLY_IMMEDIATE;
        let bytes = bth.payload();
        let data = data.len().checked_sub(bth.padding()).map(|len| &data[..len]);
        let (Ok(reth), Some(data)) = (Reth::new(bytes), data) else {
            self.counters.malformed += 1;
            return;
        };
        let immediate = bytes.get(RETH..).and_then(|bytes| ImmDt::new(bytes).ok()).map(|view| view.value());
        if immediate.is_none() && acknowledges {
            self.counters.malformed += 1;
            return;
        }
        if reth.length() as usize != data.len() {
            self.counters.refused_range += 1;
            return;
        }
        let last = acknowledges && data.is_empty();
        let Some(psn) = self.receiver.accept(bth.psn(), &mut self.counters) else {
            // A duplicate means that the acknowledgment was lost, so it is sent again.
            self.control = true;
            return;
        };
        let counters = &mut self.counters;
        let placed = if last {
            self.receiver.end(psn, reth.address(), counters)
        } else {
            self.receiver.place(psn, (reth.address(), reth.key()), data, memory, counters)
        };
        match placed {
            Err(Refused::Ignored) => {}
            Err(Refused::Violation) => self.end(EndReason::Violation, true),
            Ok(()) => {
                self.control |= self.receiver.grant() || self.receiver.has_gap() || last;
                self.acknowledgment.add(now, data.len() as u64, self.receiver.capacity, &self.config);
                // Only the peer knows a key, so an acknowledgment with data needs no token.
                if let Some(expected) = immediate.filter(|_| acknowledges)
                    && !self.sender.on_acknowledgment(now, expected & roce::MASK, &self.config)
                {
                    self.counters.refused_control += 1;
                }
            }
        }
    }

    pub(crate) fn end(&mut self, reason: EndReason, tell: bool) {
        if self.ended.is_none() {
            self.ended = Some(reason);
            self.control = tell;
            self.flags = RESET;
        }
    }

    /// Returns the time at which [`Connection::on_timer`] is due, or `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.ended.is_some() {
            return None;
        }
        earlier(self.acknowledgment.at, self.sender.deadline())
    }

    /// Processes the timers that have expired.
    pub fn on_timer(&mut self, now: u64) {
        if self.ended.is_some() {
            return;
        }
        if self.acknowledgment.at.is_some_and(|at| at <= now) {
            self.acknowledgment.send_now();
        }
        if self.sender.on_timer(now, &self.config) && self.sender.silent > self.config.retries {
            self.end(EndReason::TimedOut, true);
        }
    }

    /// Returns the next packet to send, and writes its headers to the beginning of `to`. Returns `None` if
    /// there is nothing to send now.
    pub fn poll_transmit(&mut self, now: u64, to: &mut [u8; MAX_HEADERS]) -> Option<Transmit> {
        if std::mem::take(&mut self.sender.ask) {
            self.flags |= PROBE;
            self.control = true;
        }
        if self.control {
            return Some(self.control(to));
        }
        if self.ended.is_some() {
            return None;
        }
        if let Some((psn, packet)) = self.sender.next_packet(now, &self.config) {
            return Some(self.write(psn, &packet, to));
        }
        // No data carries the acknowledgment.
        self.acknowledgment.due.then(|| self.control(to))
    }

    fn control(&mut self, to: &mut [u8; MAX_HEADERS]) -> Transmit {
        self.control = false;
        self.acknowledgment = Acknowledgment::default();
        self.receiver.quiet = false;
        self.receiver.grant();
        let fixed = Fixed {
            flags: std::mem::take(&mut self.flags),
            token: self.remote.token,
            expected: self.receiver.expected as u32 & roce::MASK,
            slots: self.receiver.slots() as u32,
            duplicates: self.receiver.duplicates,
        };
        let receiver = &self.receiver;
        let headers = control::write(to, self.remote.queue_pair, &fixed, receiver.words(), receiver.grants());
        Transmit { headers, payload: 0..0, padding: 0 }
    }

    fn write(&mut self, psn: u64, packet: &Packet, to: &mut [u8; MAX_HEADERS]) -> Transmit {
        // The lost original of a retransmission may have carried an acknowledgment.
        let acknowledges = self.acknowledgment.packets > 0 || packet.again || packet.len == 0;
        self.acknowledgment = Acknowledgment::default();
        let padding = packet.len.wrapping_neg() as usize % 4;
        let opcode = if acknowledges { opcode::WRITE_ONLY_IMMEDIATE } else { opcode::WRITE_ONLY };
        let length = "the array has room for all headers";
        let mut bth = Bth::new(&mut to[..]).expect(length);
        bth.fill(opcode, self.remote.queue_pair, psn as u32, false, padding);
        let mut reth = Reth::new(&mut to[BTH..]).expect(length);
        reth.set_address(packet.start);
        reth.set_key(packet.key);
        reth.set_length(packet.len);
        if acknowledges {
            let expected = self.receiver.expected as u32 & roce::MASK;
            ImmDt::new(&mut to[BTH + RETH..]).expect(length).set_value(expected);
        }
        let headers = BTH + RETH + if acknowledges { IMMDT } else { 0 };
        Transmit { headers, payload: packet.start..packet.start + packet.len as u64, padding }
    }

    /// Announces that the application has written the stream up to this index.
    ///
    /// # Errors
    /// [`Error::Index`] if the index decreases, exceeds the send ring, or follows [`Connection::shutdown_write`].
    pub fn set_written(&mut self, now: u64, index: u64) -> Result<()> {
        let least = self.sender.written;
        if index == least {
            return Ok(());
        }
        let most = if self.sender.shutdown {
            least
        } else {
            self.sender.acknowledged + self.config.send_capacity as u64
        };
        if !(least..=most).contains(&index) {
            return Err(Error::Index { index: "written", value: index, least, most });
        }
        self.sender.written = index;
        self.sender.arm(now, &self.config, false);
        Ok(())
    }

    /// Announces that the application has read the stream up to this index.
    ///
    /// # Errors
    /// [`Error::Index`] if the index decreases, exceeds the received data.
    pub fn set_consumed(&mut self, index: u64) -> Result<()> {
        let least = self.receiver.consumed;
        if index == least {
            return Ok(());
        }
        let most = self.receiver.published;
        if !(least..=most).contains(&index) {
            return Err(Error::Index { index: "consumed", value: index, least, most });
        }
        self.receiver.consumed = index;
        self.control |= self.receiver.grant();
        Ok(())
    }

    /// Ends the send stream after the written data.
    pub fn shutdown_write(&mut self) {
        self.sender.shutdown = true;
    }

    /// Ends the connection at once, and tells the peer.
    pub fn abort(&mut self) {
        self.end(EndReason::Aborted, true);
    }

    /// Returns the index up to which the peer has received the stream. The send ring's bytes before it are free.
    pub fn acknowledged(&self) -> u64 {
        self.sender.acknowledged
    }

    /// Records that the peer has received everything that was sent, because another protocol has said so.
    pub fn acknowledge_all(&mut self, now: u64) {
        self.sender.acknowledge_all(now, &self.config);
    }

    /// Returns the index up to which this side has sent the stream.
    pub fn sent(&self) -> u64 {
        self.sender.next
    }

    /// Returns the index up to which the peer may send the stream.
    pub fn granted(&self) -> u64 {
        self.receiver.granted
    }

    /// Limits the bytes of the receive ring that the peer may fill, up to [`Config::receive_capacity`]. Memory
    /// information that the peer already has stays valid.
    pub fn set_receive_capacity(&mut self, bytes: u32) {
        self.receiver.capacity = bytes.min(self.config.receive_capacity) as u64;
        self.control |= self.receiver.grant();
    }

    /// Returns true if the acknowledgment of several packets waits for further ones. [`Connection::next_deadline`] then is
    /// only [`Config::ack_gap`] away.
    pub fn holds_acknowledgment(&self) -> bool {
        self.acknowledgment.held
    }

    /// Sends the acknowledgment that is held back. Call [`Connection::poll_transmit`] afterwards.
    pub fn release_acknowledgment(&mut self) {
        if self.acknowledgment.held {
            self.acknowledgment.send_now();
        }
    }

    /// Returns true if packets have arrived behind a missing one, so the receive ring has bytes behind
    /// [`Connection::received`].
    pub fn is_reassembling(&self) -> bool {
        self.receiver.has_gap()
    }

    /// Returns true if the peer has sent a valid packet.
    pub fn is_answered(&self) -> bool {
        self.sender.answered || self.receiver.has_gap() || self.receiver.published > 0
    }

    /// Returns the number of timeouts in a row without progress of the send stream. The peer may have answered, but
    /// without memory information.
    pub fn timeouts_in_a_row(&self) -> u32 {
        self.sender.backoff
    }

    /// Returns the smoothed round-trip time in nanoseconds, or `None` before the first sample.
    pub fn smoothed_rtt(&self) -> Option<u64> {
        (self.sender.srtt > 0).then_some(self.sender.srtt)
    }

    /// Returns the congestion window in bytes.
    pub fn congestion_window(&self) -> u64 {
        self.sender.window
    }

    /// Returns the index up to which the stream has arrived without a gap.
    pub fn received(&self) -> u64 {
        self.receiver.published
    }

    /// Returns true if the peer's stream has arrived completely.
    pub fn peer_closed(&self) -> bool {
        self.receiver.finished
    }

    /// Returns true if the peer has acknowledged the end of the send stream.
    pub fn end_acknowledged(&self) -> bool {
        self.sender.end_acknowledged
    }

    /// Returns the reason why the connection ended, or `None` while it can be used.
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        let Sender { retransmitted, retransmitted_bytes, timeouts, .. } = self.sender;
        Counters { retransmitted, retransmitted_bytes, timeouts, ..self.counters }
    }
}
