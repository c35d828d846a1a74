//! Reads captures: classic (either byte order, micro- or nanoseconds) and pcapng (either byte order, several sections and
//! interfaces, any resolution).
//!
//! Records are parsed by pcap-parser where they lie in a buffer; this module feeds that buffer, bounds what a damaged
//! file can make it hold, turns every timestamp into nanoseconds, and says at which offset something is wrong.

use inlane_core::error::Class;
use inlane_core::{Error, Result};
use pcap_parser::nom;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{
    Block, LegacyPcapBlock, PcapError, parse_block_be, parse_block_le, parse_pcap_frame, parse_pcap_frame_be,
    parse_pcap_frame_modified, parse_pcap_header,
};
use std::io::{ErrorKind, Read};
use std::ops::Range;

/// Link type of Ethernet.
pub const ETHERNET: i32 = 1;
/// Longest record taken: four times what libpcap lets a packet be; a length beyond comes from a damaged file.
pub const LONGEST_RECORD: usize = 1 << 20;
/// pcapng blocks that carry no packet (secrets, names) may be longer.
const LONGEST_BLOCK: usize = 1 << 26;
/// Most interfaces of a pcapng section.
const MOST_INTERFACES: usize = 1 << 16;
/// Bytes of a classic capture's header; of pcapng, the first block has more.
pub const HEADER: usize = 24;
const BUFFER: usize = 1 << 18;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;

/// One packet of a capture; its bytes are [`Reader::data`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was captured, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Its length on the wire, where the capture kept less; else 0.
    pub wire_length: u32,
    /// Which interface, counted over all sections.
    pub interface: u32,
    data: Range<usize>,
    /// Where the record ends in the buffer.
    end: usize,
}

impl Record {
    /// Bytes that were kept.
    pub fn length(&self) -> usize {
        self.data.len()
    }
}

/// The finest unit of timestamps that a classic capture can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// 10^-6 s.
    Micro,
    /// 10^-9 s.
    Nano,
}

type ParseClassic = fn(&[u8]) -> nom::IResult<&[u8], LegacyPcapBlock<'_>, PcapError<&[u8]>>;

enum Format {
    Classic {
        parse: ParseClassic,
        big_endian: bool,
        record_header: usize,
        ns_per_unit: u64,
    },
    Ng {
        big_endian: bool,
        /// Of this section.
        interfaces: Vec<Interface>,
        /// Of sections before.
        interfaces_before: u32,
    },
}

#[derive(Clone, Copy)]
struct Interface {
    units_per_second: u128,
    offset_seconds: i64,
    snap_length: usize,
}

/// A capture that is read from its beginning.
pub struct Reader {
    name: String,
    input: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Of `start`, in the file.
    offset: u64,
    format: Format,
    resolution: Resolution,
    /// Packets consumed.
    packets: u64,
    current: Option<Record>,
    /// The input had no more when last asked, and has not ended.
    waits: bool,
}

impl Reader {
    /// Reads the beginning of `input`; `name` is what errors call it.
    ///
    /// # Errors
    /// When it is no capture, or one of a link that is not Ethernet.
    pub fn new(name: &str, input: Box<dyn Read + Send>) -> Result<Self> {
        let mut reader = Self {
            name: name.into(),
            input,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            offset: 0,
            format: Format::Ng { big_endian: false, interfaces: Vec::new(), interfaces_before: 0 },
            resolution: Resolution::Micro,
            packets: 0,
            current: None,
            waits: false,
        };
        let there = reader.fill(4)?;
        match there.first_chunk() {
            None if there.is_empty() => Err(reader.foreign("it is empty")),
            None => Err(reader.foreign("it has fewer than four bytes")),
            // Its section header is the first record.
            Some(magic) if u32::from_le_bytes(*magic) == SECTION_HEADER => Ok(reader),
            Some(_) => {
                reader.classic_header()?;
                Ok(reader)
            }
        }
    }

    /// The finest resolution of what was read so far: for pcapng, of the interfaces that it has described.
    pub fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// Packets consumed so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Where the next record begins in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The rest of the next record is still to come: the input said [`ErrorKind::WouldBlock`].
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// The next packet, not yet consumed; `None` at the end, or while it [waits](Self::waits).
    ///
    /// # Errors
    /// When the file cannot be read, ends within a record, or is damaged, with the offset.
    pub fn peek(&mut self) -> Result<Option<Record>> {
        while self.current.is_none() {
            if self.fill(1)?.is_empty() {
                return Ok(None);
            }
            match self.format {
                Format::Classic { .. } => self.classic_record()?,
                Format::Ng { .. } => self.ng_block()?,
            }
            if self.waits {
                return Ok(None);
            }
        }
        Ok(self.current.clone())
    }

    /// The bytes of the packet that [`Reader::peek`] gave.
    pub fn data(&self, record: &Record) -> &[u8] {
        &self.buffer[record.data.clone()]
    }

    /// Goes on to the record behind the one that [`Reader::peek`] gave.
    pub fn consume(&mut self) {
        if let Some(record) = self.current.take() {
            self.skip(record.end - self.start);
            self.packets += 1;
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Makes at least `wanted` bytes of the next record available, fewer only at the end of the file or while it waits.
    fn fill(&mut self, wanted: usize) -> Result<&[u8]> {
        self.waits = false;
        if self.end - self.start < wanted {
            if self.start + wanted > self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
                if wanted > self.buffer.len() {
                    self.buffer.resize(wanted, 0);
                }
            }
            while self.end - self.start < wanted {
                match self.input.read(&mut self.buffer[self.end..]) {
                    Ok(0) => break,
                    Ok(count) => self.end += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.waits = true;
                        break;
                    }
                    Err(source) => {
                        return Err(Error::Os { what: format!("reading {}", self.name), source });
                    }
                }
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Makes the record's `length` bytes available; false while it waits for them.
    fn fill_record(&mut self, length: usize, longest: usize) -> Result<bool> {
        if length > longest {
            let why = format!("the record there claims {length} bytes");
            return Err(self.damaged(&why));
        }
        let there = self.fill(length)?.len();
        if there < length && !self.waits { Err(self.cut(length, there)) } else { Ok(there >= length) }
    }

    fn classic_header(&mut self) -> Result<()> {
        let there = self.fill(HEADER)?;
        let (length, header) = (there.len(), parse_pcap_header(there).map(|(_, header)| header));
        let header = match header {
            Ok(header) => header,
            Err(nom::Err::Incomplete(_)) => return Err(self.cut(HEADER, length)),
            Err(_) => return Err(self.foreign("it begins with neither's magic number")),
        };
        let big_endian = header.is_bigendian();
        self.check_link(header.network.0 & 0xffff)?;
        let nanoseconds = header.is_nanosecond_precision();
        self.resolution = if nanoseconds { Resolution::Nano } else { Resolution::Micro };
        self.format = Format::Classic {
            parse: match (header.is_modified_format(), big_endian) {
                (true, _) => parse_pcap_frame_modified,
                (false, true) => parse_pcap_frame_be,
                (false, false) => parse_pcap_frame,
            },
            big_endian,
            record_header: if header.is_modified_format() { 24 } else { 16 },
            ns_per_unit: if nanoseconds { 1 } else { 1000 },
        };
        self.skip(header.size());
        Ok(())
    }

    fn check_link(&self, link: i32) -> Result<()> {
        if link == ETHERNET {
            return Ok(());
        }
        Err(Error::port_usage(
            &self.name,
            format!(
                "it holds packets of link type {link}, not Ethernet (1): capture on one Ethernet interface"
            ),
        ))
    }

    fn classic_record(&mut self) -> Result<()> {
        let Format::Classic { parse, big_endian, record_header, ns_per_unit } = self.format else {
            return Ok(());
        };
        if !self.fill_record(record_header, LONGEST_RECORD)? {
            return Ok(());
        }
        let length = word(&self.buffer[self.start + 8..], big_endian) as usize;
        if !self.fill_record(record_header.saturating_add(length), LONGEST_RECORD)? {
            return Ok(());
        }
        let Ok((_, block)) = parse(&self.buffer[self.start..self.end]) else {
            return Err(self.damaged("a record that cannot be read"));
        };
        let data = self.start + record_header;
        self.current = Some(Record {
            time_ns: block.ts_sec as u64 * 1_000_000_000 + block.ts_usec as u64 * ns_per_unit,
            wire_length: if block.origlen != block.caplen { block.origlen } else { 0 },
            interface: 0,
            data: data..data + length,
            end: data + length,
        });
        Ok(())
    }

    fn ng_block(&mut self) -> Result<()> {
        if !self.fill_record(12, LONGEST_BLOCK)? {
            return Ok(());
        }
        let kind = word(&self.buffer[self.start..], false);
        if kind == SECTION_HEADER {
            // Its byte order stands behind its length.
            let magic = word(&self.buffer[self.start + 8..], false);
            let swapped = magic == 0x1a2b_3c4du32.swap_bytes();
            if magic != 0x1a2b_3c4d && !swapped {
                return Err(self.damaged("a section header without byte order"));
            }
            // Once more, to no effect, where it waited for the rest of the header.
            if let Format::Ng { big_endian, interfaces, interfaces_before } = &mut self.format {
                *big_endian = swapped;
                *interfaces_before += interfaces.len() as u32;
                interfaces.clear();
            }
        }
        let Format::Ng { big_endian, interfaces_before, .. } = self.format else { return Ok(()) };
        let kind = if big_endian { kind.swap_bytes() } else { kind };
        let length = word(&self.buffer[self.start + 4..], big_endian) as usize;
        let longest = if matches!(kind, 2 | 3 | 6) { LONGEST_RECORD } else { LONGEST_BLOCK };
        if length < 12 || !length.is_multiple_of(4) {
            return Err(self.damaged(&format!("a block of {length} bytes, which no block has")));
        }
        if !self.fill_record(length, longest)? {
            return Ok(());
        }
        // Who reads a file from its end goes by the second length; where they differ, one of them is wrong.
        let again = word(&self.buffer[self.start + length - 4..], big_endian) as usize;
        if again != length {
            return Err(self.damaged(&format!("a block whose two lengths are {length} and {again}")));
        }
        let bytes = &self.buffer[self.start..self.start + length];
        let parsed = if big_endian { parse_block_be(bytes) } else { parse_block_le(bytes) };
        let Ok((_, block)) = parsed else {
            return Err(self.damaged("a block that cannot be read"));
        };
        let at = |data: &[u8]| data.as_ptr() as usize - self.buffer.as_ptr() as usize;
        let end = self.start + length;
        match block {
            Block::InterfaceDescription(description) => {
                let link = description.linktype.0;
                let interface = Interface {
                    units_per_second: units_per_second(description.if_tsresol),
                    // pcap-parser reads it little-endian, whatever the section is.
                    offset_seconds: match big_endian {
                        true => description.if_tsoffset.swap_bytes(),
                        false => description.if_tsoffset,
                    },
                    snap_length: description.snaplen as usize,
                };
                self.check_link(link)?;
                self.describe(interface)?;
            }
            Block::EnhancedPacket(packet) => {
                let data = at(packet.packet_data())..at(packet.packet_data()) + packet.packet_data().len();
                let units = (packet.ts_high as u64) << 32 | packet.ts_low as u64;
                let (captured, original) = (packet.caplen, packet.origlen);
                let interface = self.interface(packet.if_id)?;
                self.current = Some(Record {
                    time_ns: interface.time_ns(units),
                    wire_length: if original != captured { original } else { 0 },
                    interface: interfaces_before + packet.if_id,
                    data,
                    end,
                });
                return Ok(());
            }
            Block::SimplePacket(packet) => {
                let (start, padded) = (at(packet.data), packet.data.len());
                let original = packet.origlen;
                let snap = match self.interface(0)?.snap_length {
                    0 => usize::MAX,
                    snap => snap,
                };
                let kept = (original as usize).min(snap);
                if kept > padded {
                    return Err(self.damaged("a packet longer than its block"));
                }
                self.current = Some(Record {
                    time_ns: 0,
                    wire_length: if original as usize != kept { original } else { 0 },
                    interface: interfaces_before,
                    data: start..start + kept,
                    end,
                });
                return Ok(());
            }
            _ if kind == 2 => {
                return Err(self.damaged("an obsolete packet block (write it anew: editcap FILE NEW)"));
            }
            _ => {}
        }
        self.skip(length);
        Ok(())
    }

    fn describe(&mut self, interface: Interface) -> Result<()> {
        // What is coarser than a microsecond, or a whole part of it, a microsecond can say.
        if 1_000_000 % interface.units_per_second != 0 {
            self.resolution = Resolution::Nano;
        }
        let Format::Ng { interfaces, .. } = &mut self.format else { return Ok(()) };
        interfaces.push(interface);
        if interfaces.len() > MOST_INTERFACES {
            return Err(self.damaged("more interfaces than any machine has"));
        }
        Ok(())
    }

    fn interface(&self, index: u32) -> Result<Interface> {
        let Format::Ng { interfaces, .. } = &self.format else { unreachable!("asked of pcapng only") };
        interfaces
            .get(index as usize)
            .copied()
            .ok_or_else(|| self.damaged(&format!("a packet of interface {index}, which is not described")))
    }

    fn foreign(&self, why: &str) -> Error {
        Error::port_usage(
            &self.name,
            format!("it is no capture: {why}; give a pcap or pcapng file (tcpdump -w, Wireshark)"),
        )
    }

    fn damaged(&self, why: &str) -> Error {
        self.failed(format!("it is damaged at offset {}: {why}", self.offset))
    }

    fn cut(&self, needed: usize, there: usize) -> Error {
        self.failed(format!(
            "it is cut short: the record at offset {} needs {needed} bytes, there are {there}",
            self.offset
        ))
    }

    fn failed(&self, why: String) -> Error {
        let why = format!("{why}; the {} packets before it are whole", self.packets);
        Error::Port { port: self.name.clone(), why, class: Class::Failed }
    }
}

impl Interface {
    fn time_ns(&self, units: u64) -> u64 {
        let whole = units as u128 * 1_000_000_000 / self.units_per_second;
        let offset = self.offset_seconds as i128 * 1_000_000_000;
        (whole as i128 + offset).clamp(0, u64::MAX as i128) as u64
    }
}

/// The option `if_tsresol`: a power of ten, or with the top bit a power of two.
fn units_per_second(resolution: u8) -> u128 {
    let exponent = (resolution & 0x7f) as u32;
    let units =
        if resolution & 0x80 != 0 { 2u128.checked_pow(exponent) } else { 10u128.checked_pow(exponent) };
    // A finer one than 128 bits hold makes every time 0, which is what it can say.
    units.unwrap_or(u128::MAX)
}

fn word(bytes: &[u8], big_endian: bool) -> u32 {
    let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}
