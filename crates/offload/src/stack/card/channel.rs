//! One end of the link between an engine and its card: numbers the messages, and keeps those that find no room.

use super::message::{HEADER, Message};
use crate::stack::network::Network;
use crate::stack::ring::ByteRing;
use std::collections::VecDeque;
use std::ops::Range;

/// The most messages that wait for room on the link. With more, the session ends.
const MOST_WAITING: usize = 1 << 16;

/// One end of the link.
#[derive(Debug, Default)]
pub struct Channel {
    /// The number of the session.
    pub session: u64,
    /// True while the other side takes part in the session.
    pub is_up: bool,
    /// The length of the longest frame that both sides accept.
    longest: usize,
    /// The number of numbered messages that were sent.
    sent: u32,
    /// The number of numbered messages that were received.
    received: u32,
    /// The frames of messages that found no room, the oldest first.
    waiting: VecDeque<Vec<u8>>,
}

impl Channel {
    /// Begins a session.
    pub fn begin(&mut self, session: u64) {
        *self = Self { session, ..Self::default() };
    }

    /// Lets messages be sent. `longest` is the length of the longest frame that both sides accept.
    pub fn open(&mut self, longest: usize) {
        (self.is_up, self.longest) = (true, longest);
    }

    /// Returns the most payload bytes of a message.
    pub fn most_payload(&self) -> u64 {
        (self.longest - HEADER) as u64
    }

    /// Returns true if so many messages wait for room that the other side has probably stopped.
    pub fn is_overrun(&self) -> bool {
        self.waiting.len() >= MOST_WAITING
    }

    /// Returns true if messages wait for room.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    #[cfg(test)]
    pub fn received_count(&self) -> u32 {
        self.received
    }

    /// Counts a received message of the session. Returns false if a message before it was lost.
    #[inline]
    pub fn take(&mut self, message: &Message) -> bool {
        let expected = message.sequence == self.received;
        self.received = self.received.wrapping_add(1);
        expected
    }

    fn number(&mut self, message: Message, length: usize) -> Message {
        let sequence = self.sent;
        self.sent = self.sent.wrapping_add(1);
        Message { sequence, length: length as u32, session: self.session, ..message }
    }

    /// Sends a message with a payload, now or when there is room.
    pub fn post(&mut self, network: &mut Network, message: Message, payload: &[u8]) {
        if self.is_overrun() {
            return;
        }
        let mut frame = self.number(message, payload.len()).encode(network.mac()).to_vec();
        frame.extend_from_slice(payload);
        if !self.flush(network) || !network.send_raw(&frame, None) {
            self.waiting.push_back(frame);
        }
    }

    /// Sends a message of a session that is not numbered, because a lost one is sent again anyway.
    pub fn send_unnumbered(network: &mut Network, session: u64, message: Message, payload: &[u8]) {
        let message = Message { length: payload.len() as u32, session, ..message };
        let mut frame = message.encode(network.mac()).to_vec();
        frame.extend_from_slice(payload);
        network.send_raw(&frame, None);
    }

    /// Sends a message whose payload is `range` of `ring`. Returns false if there is no room now: nothing was sent.
    #[inline]
    pub fn send(
        &mut self,
        network: &mut Network,
        message: Message,
        ring: &ByteRing,
        range: Range<u64>,
    ) -> bool {
        if !self.waiting.is_empty() && !self.flush(network) || network.is_congested() {
            return false;
        }
        let length = (range.end - range.start) as usize;
        let numbered =
            Message { sequence: self.sent, length: length as u32, session: self.session, ..message };
        let sent = network.send_raw(&numbered.encode(network.mac()), Some((ring, range)));
        self.sent = self.sent.wrapping_add(sent.into());
        sent
    }

    /// Sends the messages that wait for room. Returns true if none is left.
    pub fn flush(&mut self, network: &mut Network) -> bool {
        while let Some(frame) = self.waiting.front() {
            if !network.send_raw(frame, None) {
                return false;
            }
            self.waiting.pop_front();
        }
        true
    }
}
