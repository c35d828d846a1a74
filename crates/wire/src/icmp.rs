//! ICMP and ICMPv6 messages (RFC 792, RFC 4443): the common header, and identifier and sequence number of an
//! echo.

/// The length of the header of ICMP and ICMPv6 messages, in bytes.
pub const HEADER: usize = 8;
/// ICMP type: echo request.
pub const ECHO_REQUEST: u8 = 8;
/// ICMP type: echo reply.
pub const ECHO_REPLY: u8 = 0;
/// ICMP type: destination unreachable. Code 4: the packet was too large and must not be fragmented.
pub const UNREACHABLE: u8 = 3;
/// ICMP code of [`UNREACHABLE`]: the packet was too large.
pub const FRAGMENTATION_NEEDED: u8 = 4;
/// ICMP code of [`UNREACHABLE`]: the host does not run the protocol.
pub const PROTOCOL_UNREACHABLE: u8 = 2;
/// ICMP code of [`UNREACHABLE`]: the host has no such port.
pub const PORT_UNREACHABLE: u8 = 3;
/// ICMPv6 type: destination unreachable.
pub const UNREACHABLE_V6: u8 = 1;
/// ICMPv6 code of [`UNREACHABLE_V6`]: the host has no such port.
pub const PORT_UNREACHABLE_V6: u8 = 4;
/// ICMPv6 type: packet too big.
pub const TOO_BIG_V6: u8 = 2;
/// ICMPv6 type: echo request.
pub const ECHO_REQUEST_V6: u8 = 128;
/// ICMPv6 type: echo reply.
pub const ECHO_REPLY_V6: u8 = 129;

view! {
    /// An ICMP or ICMPv6 message.
    Message("ICMP", 8) {
        /// Type.
        kind / set_kind: u8 = 0,
        /// Code.
        code / set_code: u8 = 1,
        /// The checksum over the message; in ICMPv6 also over the pseudo header.
        checksum / set_checksum: u16 = 2,
        /// Identifier of an echo.
        echo_id / set_echo_id: u16 = 4,
        /// Sequence number of an echo.
        echo_sequence / set_echo_sequence: u16 = 6,
        /// The next hop's MTU, in an ICMP message of type `UNREACHABLE` and code `FRAGMENTATION_NEEDED`.
        next_hop_mtu / set_next_hop_mtu: u16 = 6,
        /// The next hop's MTU, in an ICMPv6 message of type `TOO_BIG_V6`.
        mtu_v6 / set_mtu_v6: u32 = 4,
    }
}

impl<T: AsRef<[u8]>> Message<T> {
    /// Returns the bytes after the header.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[HEADER..]
    }
}
