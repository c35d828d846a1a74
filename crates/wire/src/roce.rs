//! RoCEv2 packets: the base transport header (BTH), the headers that follow it, and the invariant CRC (ICRC).
//!
//! A RoCEv2 packet is a UDP datagram to port [`PORT`]. Its payload is a BTH, the headers that the BTH's opcode
//! names, data, 0 to 3 bytes of padding, and the ICRC.

use crate::{Result, ipv4, ipv6, udp};
use crc_fast::{CrcAlgorithm::Crc32IsoHdlc, Digest};

/// The UDP port of RoCEv2.
pub const PORT: u16 = 4791;
/// Bytes of the ICRC.
pub const ICRC: usize = 4;
/// The default partition key.
pub const DEFAULT_PARTITION: u16 = 0xffff;
/// The mask of packet sequence numbers and queue pair numbers, which have 24 bits.
pub const MASK: u32 = 0xff_ffff;

/// Opcodes of the reliable connection (RC) service.
pub mod opcode {
    /// The first packet of an RDMA WRITE. A [`super::Reth`] follows the BTH.
    pub const WRITE_FIRST: u8 = 0x06;
    /// The only packet of an RDMA WRITE. A [`super::Reth`] follows the BTH.
    pub const WRITE_ONLY: u8 = 0x0a;
    /// The only packet of an RDMA WRITE with immediate data. A [`super::Reth`] and an [`super::ImmDt`] follow
    /// the BTH.
    pub const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
    /// An acknowledgment. An [`super::Aeth`] follows the BTH.
    pub const ACKNOWLEDGE: u8 = 0x11;
    /// The first of the opcodes that the standard leaves to manufacturers.
    pub const MANUFACTURER: u8 = 0xc0;
}

view! {
    /// A base transport header.
    Bth("RoCE BTH", 12) {
        /// The opcode: service, operation and the position of the packet in its message. See [`opcode`].
        opcode / set_opcode: u8 = 0,
        /// Solicited event, migration state, pad count and transport version.
        flags / set_flags: u8 = 1,
        /// Partition key.
        partition / set_partition: u16 = 2,
        /// Congestion notification and, in the lower 24 bits, the destination queue pair.
        word_1 / set_word_1: u32 = 4,
        /// Request for an acknowledgment and, in the lower 24 bits, the packet sequence number.
        word_2 / set_word_2: u32 = 8,
    }
}

/// Bytes of a [`Bth`].
pub const BTH: usize = 12;

impl<T: AsRef<[u8]>> Bth<T> {
    /// Returns the number of padding bytes between data and ICRC.
    pub fn padding(&self) -> usize {
        (self.flags() >> 4 & 3) as usize
    }

    /// Returns the transport header version. The only defined version is 0.
    pub fn version(&self) -> u8 {
        self.flags() & 0xf
    }

    /// Returns the destination queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.word_1() & MASK
    }

    /// Returns the packet sequence number (PSN).
    pub fn psn(&self) -> u32 {
        self.word_2() & MASK
    }

    /// Returns true if the sender requests an acknowledgment.
    pub fn acknowledge(&self) -> bool {
        self.word_2() >> 31 != 0
    }

    /// Returns the bytes after this header, up to the buffer's end.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[BTH..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Bth<T> {
    /// Sets all fields. `padding` is the number of padding bytes after the data, from 0 to 3.
    pub fn fill(&mut self, opcode: u8, queue_pair: u32, psn: u32, acknowledge: bool, padding: usize) {
        self.set_opcode(opcode);
        self.set_flags((padding as u8 & 3) << 4);
        self.set_partition(DEFAULT_PARTITION);
        self.set_word_1(queue_pair & MASK);
        self.set_word_2((acknowledge as u32) << 31 | psn & MASK);
    }
}

view! {
    /// An RDMA extended transport header: the memory that an RDMA WRITE changes.
    Reth("RoCE RETH", 16) {
        /// Virtual address of the first byte.
        address / set_address: u64 = 0,
        /// The key that authorises access to the memory.
        key / set_key: u32 = 8,
        /// Bytes of the whole operation.
        length / set_length: u32 = 12,
    }
}

/// Bytes of a [`Reth`].
pub const RETH: usize = 16;

view! {
    /// An acknowledgment extended transport header.
    Aeth("RoCE AETH", 4) {
        /// The syndrome: acknowledgment or negative acknowledgment, with credits or the reason.
        syndrome / set_syndrome: u8 = 0,
        /// The syndrome and, in the lower 24 bits, the message sequence number.
        word / set_word: u32 = 0,
    }
}

/// Bytes of an [`Aeth`].
pub const AETH: usize = 4;

impl<T: AsRef<[u8]>> Aeth<T> {
    /// Returns the message sequence number: the number of messages that the responder has completed.
    pub fn messages(&self) -> u32 {
        self.word() & MASK
    }
}

view! {
    /// Immediate data.
    ImmDt("RoCE ImmDt", 4) {
        /// The value.
        value / set_value: u32 = 0,
    }
}

/// Bytes of an [`ImmDt`].
pub const IMMDT: usize = 4;

/// Bytes before the BTH that the ICRC covers, at most: 8 bytes that stand for a local routing header, the
/// longest IP header without extensions, and the UDP header.
const MASKED: usize = 8 + 60 + udp::HEADER + BTH;

/// Returns the ICRC of an IP packet. `packet` begins with the IP header and ends before the ICRC. Put the
/// result into the packet with `to_le_bytes`.
///
/// Fields that routers change count as ones: TOS, TTL and checksum of IPv4; traffic class, flow label and hop
/// limit of IPv6; the UDP checksum; and the fifth byte of the BTH.
///
/// # Errors
/// [`crate::Error::Truncated`] if the packet ends within its BTH. [`crate::Error::Malformed`] if it is not an
/// IP packet. IPv6 extension headers are not supported, because RoCEv2 allows none.
pub fn icrc(packet: &[u8]) -> Result<u32> {
    let version = packet.first().map_or(0, |byte| byte >> 4);
    let header = match version {
        6 => ipv6::HEADER,
        _ => {
            let header = (packet.first().copied().unwrap_or(0) & 0xf) as usize * 4;
            if !packet.is_empty() && (version != 4 || header < ipv4::HEADER) {
                let value = packet[0] as u64;
                return Err(crate::Error::Malformed { header: "RoCE", field: "IP version", value });
            }
            header.max(ipv4::HEADER)
        }
    };
    let headers = header + udp::HEADER + BTH;
    crate::view::require("RoCE", packet, headers)?;
    let mut masked = [0xff; MASKED];
    let copy = &mut masked[8..8 + headers];
    copy.copy_from_slice(&packet[..headers]);
    if version == 6 {
        copy[0] |= 0xf;
        copy[1..4].fill(0xff);
        copy[7] = 0xff;
    } else {
        copy[1] = 0xff;
        copy[8] = 0xff;
        copy[10..12].fill(0xff);
    }
    copy[header + 6..header + 8].fill(0xff);
    copy[header + udp::HEADER + 4] = 0xff;
    let mut digest = Digest::new(Crc32IsoHdlc);
    digest.update(&masked[..8 + headers]);
    digest.update(&packet[headers..]);
    Ok(digest.finalize() as u32)
}

/// Computes the ICRC and writes it into the last 4 bytes of `packet`, which begins with the IP header.
///
/// # Errors
/// Those of [`icrc`].
pub fn fill_icrc(packet: &mut [u8]) -> Result<()> {
    let end = packet.len().saturating_sub(ICRC);
    let value = icrc(&packet[..end])?;
    packet[end..].copy_from_slice(&value.to_le_bytes());
    Ok(())
}

/// Returns true if `packet`, which begins with the IP header, ends with the right ICRC.
pub fn icrc_ok(packet: &[u8]) -> bool {
    let Some((covered, last)) = packet.split_last_chunk::<ICRC>() else { return false };
    icrc(covered).is_ok_and(|value| value.to_le_bytes() == *last)
}

#[cfg(test)]
mod tests;
