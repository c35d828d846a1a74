//! What a connection counts.

/// Numbers of events, from 0 at the start of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data packets sent again.
    pub retransmitted: u64,
    /// Bytes in data packets sent again.
    pub retransmitted_bytes: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Received data packets that had arrived before.
    pub duplicates: u64,
    /// Bytes placed into the receive ring.
    pub placed_ring: u64,
    /// Bytes that the peer has stored into the receive ring without packets.
    pub stored: u64,
    /// Packets too short, with lengths that contradict each other, or of an unknown opcode.
    pub malformed: u64,
    /// Packets for another queue pair.
    pub refused_queue_pair: u64,
    /// Data packets whose PSN is not within the window.
    pub refused_psn: u64,
    /// Data packets whose key is not valid, or not any more.
    pub refused_key: u64,
    /// Data packets for bytes that their key does not cover, and wrong indices of stored bytes.
    pub refused_range: u64,
    /// Control messages with a wrong token or impossible contents.
    pub refused_control: u64,
}
