//! RoCEv2 (InfiniBand transport over UDP port 4791): the base header and the extended headers of RC operations.
//!
//! ```text
//! UDP | BTH (12) | RETH (16), AETH (4) or immediate (4), as the opcode says | payload, pad | ICRC (4)
//! ```
//!
//! Field views only: the ICRC, packet sequence windows and retransmission belong to a transport.

/// The UDP port.
pub const PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BASE: usize = 12;
/// Bytes of the RDMA extended header.
pub const RDMA: usize = 16;
/// Bytes of the acknowledge extended header.
pub const ACKNOWLEDGE: usize = 4;
/// Bytes of the invariant CRC behind the payload.
pub const ICRC: usize = 4;

view! {
    /// The base transport header, BTH.
    Base("BTH", 12) {
        /// Transport and operation.
        opcode / set_opcode: u8 = 0,
        /// Partition key.
        partition_key / set_partition_key: u16 = 2,
    }
}

impl<T: AsRef<[u8]>> Base<T> {
    fn low24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.bytes()[at], self.bytes()[at + 1], self.bytes()[at + 2]])
    }

    /// The responder should raise an event.
    pub fn solicited(&self) -> bool {
        self.bytes()[1] & 0x80 != 0
    }

    /// Bytes of padding in front of the ICRC, 0 to 3.
    pub fn pad(&self) -> u8 {
        self.bytes()[1] >> 4 & 3
    }

    /// Destination queue pair, 24 bits.
    pub fn destination_qp(&self) -> u32 {
        self.low24(5)
    }

    /// An acknowledgment is asked for.
    pub fn ack_request(&self) -> bool {
        self.bytes()[8] & 0x80 != 0
    }

    /// Packet sequence number, 24 bits.
    pub fn psn(&self) -> u32 {
        self.low24(9)
    }

    /// What follows: extended headers, payload, pad and ICRC.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[BASE..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Base<T> {
    /// Writes [`Base::destination_qp`].
    pub fn set_destination_qp(&mut self, qp: u32) {
        self.0.as_mut()[5..8].copy_from_slice(&qp.to_be_bytes()[1..]);
    }

    /// Writes [`Base::psn`] and [`Base::ack_request`].
    pub fn set_psn(&mut self, psn: u32, ack_request: bool) {
        let bytes = self.0.as_mut();
        bytes[8] = (ack_request as u8) << 7;
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }
}

view! {
    /// The RDMA extended header, RETH: where in the peer's memory.
    Rdma("RETH", 16) {
        /// Virtual address at the peer.
        address / set_address: u64 = 0,
        /// Key of the peer's memory region.
        key / set_key: u32 = 8,
        /// Length of the whole operation.
        length / set_length: u32 = 12,
    }
}

view! {
    /// The acknowledge extended header, AETH.
    Acknowledge("AETH", 4) {
        /// Acknowledgment, receiver not ready, or negative, and its value.
        syndrome / set_syndrome: u8 = 0,
    }
}

impl<T: AsRef<[u8]>> Acknowledge<T> {
    /// Message sequence number, 24 bits.
    pub fn msn(&self) -> u32 {
        u32::from_be_bytes([0, self.bytes()[1], self.bytes()[2], self.bytes()[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_first_packet() {
        // RC RDMA WRITE First, QP 0x12, PSN 0xabcdef, ack asked for; address, key and length behind.
        let mut bytes = vec![0x06, 0x90, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0xab, 0xcd, 0xef];
        bytes.extend(0x1122_3344_5566_7788u64.to_be_bytes());
        bytes.extend([0, 0, 0, 9, 0, 0, 0x10, 0]);
        let base = Base::new(&bytes).unwrap();
        assert_eq!((base.opcode(), base.destination_qp(), base.psn()), (6, 0x12, 0xabcdef));
        assert!(base.ack_request() && base.solicited());
        assert_eq!(base.pad(), 1);
        let rdma = Rdma::new(base.payload()).unwrap();
        assert_eq!((rdma.address(), rdma.key(), rdma.length()), (0x1122_3344_5566_7788, 9, 4096));
        assert!(Base::new(&bytes[..11]).is_err() && Rdma::new(&bytes[..15]).is_err());
    }

    #[test]
    fn written_and_read() {
        let mut base = Base::new([0u8; 12]).unwrap();
        base.set_destination_qp(0xfedcba);
        base.set_psn(0x123456, true);
        assert_eq!((base.destination_qp(), base.psn(), base.ack_request()), (0xfedcba, 0x123456, true));
        assert_eq!(Acknowledge::new([0x1f, 0, 1, 2]).unwrap().msn(), 0x102);
    }
}
