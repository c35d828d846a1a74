//! When received packets are acknowledged.

use crate::config::Config;

/// The most packets whose acknowledgment waits for further ones.
const MOST_HELD: u32 = 16;

/// The acknowledgment of the packets that were received since the last one. Data packets carry it. If there is no data to
/// send, a control message does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acknowledgment {
    /// The number of packets to acknowledge.
    pub packets: u32,
    /// Bytes of these packets.
    bytes: u64,
    /// True if a control message must carry the acknowledgment unless data does so at once.
    pub due: bool,
    /// True if the acknowledgment of several packets waits for further ones.
    pub held: bool,
    /// The time at which it becomes due.
    pub at: Option<u64>,
}

impl Acknowledgment {
    /// Adds a received packet with `len` bytes of data. The peer may fill `capacity` bytes of the receive ring.
    pub fn add(&mut self, now: u64, len: u64, capacity: u64, config: &Config) {
        self.packets += 1;
        self.bytes += len;
        let few = self.packets < MOST_HELD && self.bytes < capacity / 8;
        if self.packets == 1 {
            self.at = Some(now + config.ack_delay);
        } else if config.ack_gap > 0 && few && !self.due {
            (self.held, self.at) = (true, Some(now + config.ack_gap));
        } else {
            self.send_now();
        }
    }

    /// Stops waiting for further packets.
    pub fn send_now(&mut self) {
        (self.due, self.held, self.at) = (true, false, None);
    }
}
