//! The header in front of each datagram in the socket pair of a UDP socket.
//!
//! The pair is of type SOCK_SEQPACKET, so the kernel preserves the boundaries between datagrams. Functions
//! that the library does not replace, such as those of stdio, send datagrams without this header. The engine
//! sends such datagrams to the address to which the socket is connected.
//!
//! ```text
//! 0           8       9      10      11    12      16               36              56
//! | engine (8) | flags | hops | class | 0   | errno | remote address | local address  | payload ...
//! ```

use crate::address;
use std::net::SocketAddr;

/// The length of a header, in bytes.
pub const LEN: usize = 56;
/// The least SO_SNDBUF of the program's end of the socket pair, in bytes. A smaller buffer could not hold the
/// largest datagram with its header.
pub const LEAST_BUFFER: i32 = 72 << 10;
/// The most bytes of a datagram over IPv4: 65535 less the headers of IPv4 and UDP.
pub const MOST_V4: usize = 65507;
/// The most bytes of a datagram over IPv6: 65535 less the header of UDP.
pub const MOST_V6: usize = 65527;

/// Flags of datagrams that the program sends.
pub mod send {
    /// Flag: the header's field `hops` has a value.
    pub const HOPS: u8 = 1;
    /// The field `class` is set.
    pub const CLASS: u8 = 2;
    /// More data for the same datagram follows (MSG_MORE).
    pub const MORE: u8 = 4;
}

/// Flags of received datagrams: the ancillary data that the program has asked for by socket options.
pub mod receive {
    /// IP_PKTINFO.
    pub const INFO_V4: u8 = 1;
    /// IP_RECVTTL.
    pub const HOPS_V4: u8 = 2;
    /// IP_RECVTOS.
    pub const CLASS_V4: u8 = 4;
    /// IPV6_RECVPKTINFO.
    pub const INFO_V6: u8 = 8;
    /// IPV6_RECVHOPLIMIT.
    pub const HOPS_V6: u8 = 16;
    /// IPV6_RECVTCLASS.
    pub const CLASS_V6: u8 = 32;
}

/// The header of a datagram in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The engine's random number. A message in the socket pair has a header only if the message begins with
    /// this number.
    pub engine: u64,
    /// Flags of [`send`] or [`receive`].
    pub flags: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The traffic class. In IPv4, it is called type of service.
    pub class: u8,
    /// If not 0, this is no datagram: the next call on the socket fails with this errno.
    pub error: i32,
    /// For a received datagram: its sender. For a sent datagram: its destination. `None` stands for the
    /// connected address.
    pub remote: Option<SocketAddr>,
    /// The destination of a received datagram. For a sent datagram: its source, if the program has set one.
    pub local: Option<SocketAddr>,
}

impl Header {
    /// Creates a header for the engine with this number. The other fields are 0.
    pub fn new(engine: u64) -> Self {
        Self { engine, flags: 0, hops: 0, class: 0, error: 0, remote: None, local: None }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.engine.to_le_bytes());
        bytes[8..12].copy_from_slice(&[self.flags, self.hops, self.class, 0]);
        bytes[12..16].copy_from_slice(&self.error.to_le_bytes());
        bytes[16..36].copy_from_slice(&address::encode(self.remote));
        bytes[36..].copy_from_slice(&address::encode(self.local));
        bytes
    }

    /// Decodes the header at the beginning of `bytes`. Returns `None` if `bytes` does not begin with a header
    /// of the engine with the number `engine`.
    pub fn decode(engine: u64, bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.get(..LEN)?.try_into().ok()?;
        if bytes[..8] != engine.to_le_bytes() {
            return None;
        }
        Some(Self {
            engine,
            flags: bytes[8],
            hops: bytes[9],
            class: bytes[10],
            error: i32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            remote: address::decode(&bytes[16..]),
            local: address::decode(&bytes[36..]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode_and_what_decodes_reads_back(mut bytes in proptest::collection::vec(any::<u8>(), 0..70), engine: u64, ours: bool) {
            if ours && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&engine.to_le_bytes());
            }
            let header = Header::decode(engine, &bytes);
            prop_assert_eq!(header.is_some(), bytes.len() >= LEN && bytes[..8] == engine.to_le_bytes());
            if let Some(header) = header {
                prop_assert_eq!(Header::decode(engine, &header.encode()), Some(header));
                prop_assert_eq!(Header::decode(!engine, &bytes), None);
            }
        }
    }
}
