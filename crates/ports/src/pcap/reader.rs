//! Reads captures: classic pcap and pcapng (draft-ietf-opsawg-pcapng).
//!
//! Classic captures may have either byte order, and timestamps in micro- or nanoseconds. pcapng captures may
//! have either byte order, several sections and interfaces, and any timestamp resolution.
//!
//! [`CaptureReader`] limits the memory that a damaged file can make it use. It reports the offset of a fault.

mod pcapng;

use crate::field::PACKETS;
use inlane_core::{Error, Result};
use pcap_parser::nom;
use pcap_parser::{
    LegacyPcapBlock, PcapError, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified,
    parse_pcap_header,
};
use pcapng::Interface;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;

/// The link type of Ethernet.
pub const ETHERNET: i32 = 1;
/// The longest accepted record in bytes: four times libpcap's limit for a packet.
pub const MAX_RECORD: usize = 1 << 20;
/// Length of a classic capture's header, in bytes. The first block of a pcapng capture is longer.
pub const CLASSIC_HEADER: usize = 24;
const BUFFER: usize = 1 << 18;
const SECTION_HEADER: u32 = 0x0a0d_0d0a;

/// One packet of a capture. [`CaptureReader::data`] returns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Capture time, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Length on the wire in bytes if the packet was cut; otherwise 0.
    pub wire_length: u32,
    /// Number of the interface on which the packet was captured. Interfaces are counted over all sections of
    /// the capture.
    pub interface: u32,
    data: Range<usize>,
    /// The offset in the buffer at which this record ends.
    end: usize,
}

impl Record {
    /// Returns the number of captured bytes.
    pub fn length(&self) -> usize {
        self.data.len()
    }
}

/// The unit of the timestamps in a classic capture, or in the classic copy of a pcapng capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// 10^-6 s.
    Micro,
    /// 10^-9 s.
    Nano,
}

type ParseClassic = fn(&[u8]) -> nom::IResult<&[u8], LegacyPcapBlock<'_>, PcapError<&[u8]>>;

enum Format {
    /// The format is unknown, because the capture's header has not been read yet.
    Unknown,
    Classic {
        parse: ParseClassic,
        big_endian: bool,
        record_header: usize,
        ns_per_unit: u64,
    },
    Pcapng {
        big_endian: bool,
        /// Interfaces of the current section.
        interfaces: Vec<Interface>,
        /// Number of interfaces in earlier sections.
        earlier_interfaces: u32,
    },
}

/// Reads the packets of a capture in order.
pub struct CaptureReader {
    name: String,
    input: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The position of the next record in the input, in bytes.
    offset: u64,
    format: Format,
    resolution: Resolution,
    /// Packets consumed since the beginning of the input.
    packets: u64,
    current: Option<Record>,
    /// True if the last read found no bytes because the input's writer pauses.
    waiting: bool,
    /// True if the input has ended.
    ended: bool,
}

impl CaptureReader {
    /// Creates a reader of `input`. Reads nothing yet. Error messages call the capture `name`.
    pub fn new(name: &str, input: Box<dyn Read + Send>) -> Self {
        Self {
            name: name.into(),
            input,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            offset: 0,
            format: Format::Unknown,
            resolution: Resolution::Micro,
            packets: 0,
            current: None,
            waiting: false,
            ended: false,
        }
    }

    /// Begins again at the front of the capture. `file` must share its position with the reader's input. If
    /// the buffer holds the whole capture, reads nothing.
    ///
    /// # Errors
    /// If the file cannot be rewound.
    pub fn restart(&mut self, file: &mut File) -> Result<()> {
        let buffer_holds_all = self.ended && self.offset == self.start as u64;
        if !buffer_holds_all {
            file.seek(SeekFrom::Start(0))
                .map_err(|source| Error::Os { what: format!("cannot rewind {}", self.name), source })?;
            self.end = 0;
            self.ended = false;
        }
        self.start = 0;
        self.offset = 0;
        self.packets = 0;
        self.current = None;
        match &mut self.format {
            Format::Unknown => {}
            Format::Classic { .. } => {
                // Skip the header's bytes, because the header was read in the first lap.
                self.fill(CLASSIC_HEADER)?;
                self.skip(CLASSIC_HEADER.min(self.end));
            }
            Format::Pcapng { interfaces, earlier_interfaces, .. } => {
                interfaces.clear();
                *earlier_interfaces = 0;
            }
        }
        Ok(())
    }

    /// Returns the finest timestamp resolution read so far.
    pub fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// Returns the resolution of a classic capture. Returns `None` for pcapng, or before the header was read.
    pub fn classic_resolution(&self) -> Option<Resolution> {
        matches!(self.format, Format::Classic { .. }).then_some(self.resolution)
    }

    /// Returns the number of packets consumed since the beginning of the capture.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the position of the next record in the input, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns true if the last read found no bytes, but the input has not ended ([`ErrorKind::WouldBlock`]).
    pub fn waiting(&self) -> bool {
        self.waiting
    }

    /// Returns true once the capture's format is known.
    pub fn has_header(&self) -> bool {
        !matches!(self.format, Format::Unknown)
    }

    /// Reads the header if it was not read yet. Returns false if the rest of the header has not arrived, so
    /// that the reader is [waiting](Self::waiting) for it.
    ///
    /// # Errors
    /// If the input is not a capture, or a classic capture of a link other than Ethernet.
    pub fn read_header(&mut self) -> Result<bool> {
        if self.has_header() {
            return Ok(true);
        }
        let magic = self.fill(4)?.first_chunk::<4>().copied();
        match magic {
            None if self.waiting => Ok(false),
            None if self.start == self.end => Err(self.not_a_capture("it is empty")),
            None => Err(self.not_a_capture("it has fewer than four bytes")),
            Some(magic) if u32::from_le_bytes(magic) == SECTION_HEADER => {
                // `pcapng_block` reads the section header of a pcapng capture later, as a block.
                self.format =
                    Format::Pcapng { big_endian: false, interfaces: Vec::new(), earlier_interfaces: 0 };
                Ok(true)
            }
            Some(_) => self.classic_header(),
        }
    }

    /// Returns the next packet without consuming it. Returns `None` at the end of the capture. Also returns
    /// `None` while the input [waits](Self::waiting) for more bytes.
    ///
    /// # Errors
    /// If the file cannot be read, ends within a record, or is damaged.
    pub fn peek(&mut self) -> Result<Option<Record>> {
        if !self.read_header()? {
            return Ok(None);
        }
        while self.current.is_none() {
            if self.fill(1)?.is_empty() {
                return Ok(None);
            }
            match self.format {
                Format::Classic { .. } => self.classic_record()?,
                _ => self.pcapng_block()?,
            }
            if self.waiting {
                return Ok(None);
            }
        }
        Ok(self.current.clone())
    }

    /// Returns the bytes of the packet that [`CaptureReader::peek`] returned last.
    pub fn data(&self, record: &Record) -> &[u8] {
        &self.buffer[record.data.clone()]
    }

    /// Moves past the record that [`CaptureReader::peek`] returned last.
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

    /// Buffers at least `wanted` bytes of the next record. Buffers fewer if the input ends, or has not
    /// delivered more yet. Returns all buffered bytes.
    fn fill(&mut self, wanted: usize) -> Result<&[u8]> {
        self.waiting = false;
        if self.end - self.start < wanted && !self.ended {
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
                    Ok(0) => {
                        self.ended = true;
                        break;
                    }
                    Ok(count) => self.end += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.waiting = true;
                        break;
                    }
                    Err(source) => {
                        return Err(Error::Os { what: format!("cannot read {}", self.name), source });
                    }
                }
            }
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Buffers the `length` bytes of the next record. Returns false if the input has not delivered all of
    /// them yet.
    ///
    /// # Errors
    /// If `length` exceeds `max`, or if the input ends within the record.
    fn fill_record(&mut self, length: usize, max: usize) -> Result<bool> {
        if length > max {
            return Err(self.damaged(&format!("the record there claims {length} bytes")));
        }
        let available = self.fill(length)?.len();
        if available < length && !self.waiting {
            return Err(self.truncated(length, available));
        }
        Ok(available >= length)
    }

    fn classic_header(&mut self) -> Result<bool> {
        let available = self.fill(CLASSIC_HEADER)?.len();
        let header = match parse_pcap_header(&self.buffer[self.start..self.end]) {
            Ok((_, header)) => header,
            Err(nom::Err::Incomplete(_)) if self.waiting => return Ok(false),
            Err(nom::Err::Incomplete(_)) => return Err(self.truncated(CLASSIC_HEADER, available)),
            Err(_) => return Err(self.not_a_capture("its magic number is neither pcap's nor pcapng's")),
        };
        let big_endian = header.is_bigendian();
        let link = header.network.0 & 0xffff;
        if link != ETHERNET {
            return Err(self.not_ethernet(link));
        }
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
        self.skip(CLASSIC_HEADER);
        Ok(true)
    }

    fn classic_record(&mut self) -> Result<()> {
        let Format::Classic { parse, big_endian, record_header, ns_per_unit } = self.format else {
            return Ok(());
        };
        if !self.fill_record(record_header, MAX_RECORD)? {
            return Ok(());
        }
        let length = word(&self.buffer[self.start + 8..], big_endian) as usize;
        if !self.fill_record(record_header.saturating_add(length), MAX_RECORD)? {
            return Ok(());
        }
        let Ok((_, block)) = parse(&self.buffer[self.start..self.end]) else {
            return Err(self.damaged("the record there cannot be parsed"));
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

    fn not_a_capture(&self, why: &str) -> Error {
        let remedy = "give a pcap or pcapng file, as tcpdump -w and Wireshark write them";
        Error::port_usage(&self.name, format!("it is not a capture: {why}; {remedy}"))
    }

    fn not_ethernet(&self, link: i32) -> Error {
        let remedy = "give a capture of Ethernet interfaces (link type 1)";
        Error::port_usage(&self.name, format!("its packets have link type {link}; {remedy}"))
    }

    fn damaged(&self, why: &str) -> Error {
        self.failed(format!("it is damaged at offset {}: {why}", self.offset))
    }

    fn truncated(&self, needed: usize, available: usize) -> Error {
        self.failed(format!(
            "it is cut short: the record at offset {} needs {needed} bytes, and {available} are there",
            self.offset
        ))
    }

    fn failed(&self, why: String) -> Error {
        let before = match self.packets {
            0 => "no packet is before it; record the capture again".into(),
            1 => format!(
                "the packet before it is whole; give {}, or record the capture again",
                PACKETS.with(1)
            ),
            packets => format!(
                "the {packets} packets before it are whole; give {}, or record the capture again",
                PACKETS.with(packets)
            ),
        };
        let why = format!("{why}; {before}");
        Error::port_failed(&self.name, why)
    }
}

/// Returns the first four bytes of `bytes` as a number.
fn word(bytes: &[u8], big_endian: bool) -> u32 {
    let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}
