//! Reads the blocks of pcapng captures.

use super::{CaptureReader, ETHERNET, Format, MAX_RECORD, Record, Resolution, SECTION_HEADER, word};
use inlane_core::Result;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, parse_block_be, parse_block_le};

const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// The longest accepted block without packet, in bytes. Blocks of secrets and names may exceed
/// [`MAX_RECORD`].
const MAX_BLOCK: usize = 1 << 26;
/// The most interfaces that a section may describe.
const MAX_INTERFACES: usize = 1 << 16;

/// The properties of a network interface that are needed to read its packets. They are from the interface's
/// block in a pcapng section.
#[derive(Clone, Copy)]
pub(super) struct Interface {
    link: i32,
    units_per_second: u128,
    offset_seconds: i64,
    snap_length: usize,
}

impl CaptureReader {
    /// Reads one block. Sets `current` if the block is a packet, and moves past the block otherwise.
    pub(super) fn pcapng_block(&mut self) -> Result<()> {
        if !self.fill_record(12, MAX_BLOCK)? {
            return Ok(());
        }
        if word(&self.buffer[self.start..], false) == SECTION_HEADER {
            self.begin_section()?;
        }
        let Format::Pcapng { big_endian, earlier_interfaces, .. } = self.format else { return Ok(()) };
        let kind = word(&self.buffer[self.start..], big_endian);
        let length = word(&self.buffer[self.start + 4..], big_endian) as usize;
        let is_packet = matches!(kind, OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET);
        if length < 12 || !length.is_multiple_of(4) {
            return Err(self.damaged(&format!("a block claims {length} bytes, which no block has")));
        }
        if !self.fill_record(length, if is_packet { MAX_RECORD } else { MAX_BLOCK })? {
            return Ok(());
        }
        // A block stores its length at both ends. If the two lengths differ, the file is damaged.
        let trailer = word(&self.buffer[self.start + length - 4..], big_endian) as usize;
        if trailer != length {
            return Err(self.damaged(&format!("a block's two lengths differ: {length} and {trailer}")));
        }
        let bytes = &self.buffer[self.start..self.start + length];
        let parsed = if big_endian { parse_block_be(bytes) } else { parse_block_le(bytes) };
        let Ok((_, block)) = parsed else {
            return Err(self.damaged("a block cannot be parsed"));
        };
        let position = |data: &[u8]| data.as_ptr() as usize - self.buffer.as_ptr() as usize;
        let end = self.start + length;
        match block {
            Block::InterfaceDescription(description) => {
                let interface = Interface {
                    link: description.linktype.0,
                    units_per_second: units_per_second(description.if_tsresol),
                    // In a big-endian section, swap the bytes of `if_tsoffset`. pcap-parser always reads this
                    // field as little-endian.
                    offset_seconds: match big_endian {
                        true => description.if_tsoffset.swap_bytes(),
                        false => description.if_tsoffset,
                    },
                    snap_length: description.snaplen as usize,
                };
                self.add_interface(interface)?;
            }
            Block::EnhancedPacket(packet) => {
                let start = position(packet.packet_data());
                let data = start..start + packet.packet_data().len();
                let units = (packet.ts_high as u64) << 32 | packet.ts_low as u64;
                let (captured, original, index) = (packet.caplen, packet.origlen, packet.if_id);
                self.current = Some(Record {
                    time_ns: self.interface(index)?.time_ns(units),
                    wire_length: if original != captured { original } else { 0 },
                    interface: earlier_interfaces + index,
                    data,
                    end,
                });
                return Ok(());
            }
            Block::SimplePacket(packet) => {
                let (start, padded) = (position(packet.data), packet.data.len());
                let original = packet.origlen;
                let snap_length = match self.interface(0)?.snap_length {
                    0 => usize::MAX,
                    length => length,
                };
                let captured = (original as usize).min(snap_length);
                if captured > padded {
                    return Err(self.damaged("a packet is longer than its block"));
                }
                self.current = Some(Record {
                    time_ns: 0,
                    wire_length: if original as usize != captured { original } else { 0 },
                    interface: earlier_interfaces,
                    data: start..start + captured,
                    end,
                });
                return Ok(());
            }
            _ if kind == OBSOLETE_PACKET => {
                let why = "an obsolete packet block; convert the file: editcap OLD NEW";
                return Err(self.damaged(why));
            }
            _ => {}
        }
        self.skip(length);
        Ok(())
    }

    /// Reads the section's byte order, and forgets the interfaces of the previous section.
    ///
    /// A second call for the same header has no effect.
    fn begin_section(&mut self) -> Result<()> {
        let magic = word(&self.buffer[self.start + 8..], false);
        let swapped = magic == BYTE_ORDER.swap_bytes();
        if magic != BYTE_ORDER && !swapped {
            return Err(self.damaged("a section header has no byte order"));
        }
        if let Format::Pcapng { big_endian, interfaces, earlier_interfaces } = &mut self.format {
            *big_endian = swapped;
            *earlier_interfaces += interfaces.len() as u32;
            interfaces.clear();
        }
        Ok(())
    }

    fn add_interface(&mut self, interface: Interface) -> Result<()> {
        // If the timestamp unit is not a whole number of microseconds, a classic copy of the capture needs
        // nanoseconds. Otherwise, the copy would lose precision.
        if interface.link == ETHERNET && 1_000_000 % interface.units_per_second != 0 {
            self.resolution = Resolution::Nano;
        }
        let Format::Pcapng { interfaces, .. } = &mut self.format else { return Ok(()) };
        interfaces.push(interface);
        if interfaces.len() > MAX_INTERFACES {
            return Err(self.damaged(&format!("a section has more than {MAX_INTERFACES} interfaces")));
        }
        Ok(())
    }

    /// Returns the interface that a packet of the current section names.
    fn interface(&self, index: u32) -> Result<Interface> {
        let Format::Pcapng { interfaces, .. } = &self.format else {
            unreachable!("only pcapng captures have interfaces")
        };
        match interfaces.get(index as usize) {
            Some(interface) if interface.link == ETHERNET => Ok(*interface),
            Some(interface) => Err(self.not_ethernet(interface.link)),
            None => {
                let why = format!("a packet names interface {index}, which is not described");
                Err(self.damaged(&why))
            }
        }
    }
}

impl Interface {
    /// Converts a timestamp to nanoseconds since the epoch. Times before the epoch become 0.
    fn time_ns(&self, units: u64) -> u64 {
        let since_offset = units as u128 * 1_000_000_000 / self.units_per_second;
        let offset = self.offset_seconds as i128 * 1_000_000_000;
        (since_offset as i128 + offset).clamp(0, u64::MAX as i128) as u64
    }
}

/// Converts the option `if_tsresol` to timestamp units per second: a power of 10, or of 2 if the top bit is
/// set.
fn units_per_second(resolution: u8) -> u128 {
    let exponent = (resolution & 0x7f) as u32;
    let units =
        if resolution & 0x80 != 0 { 2u128.checked_pow(exponent) } else { 10u128.checked_pow(exponent) };
    // If the units per second do not fit into a u128, a unit is extremely short. Every 64-bit timestamp is
    // then 0 ns.
    units.unwrap_or(u128::MAX)
}
