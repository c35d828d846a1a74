//! Feeds arbitrary bytes to the capture reader, split into pieces in different ways. For each split, the
//! reader must return the same packets and the same error. It must never return more bytes than the input
//! has.

use inlane_core::{Error, Result};
use inlane_ports::pcap::reader::CaptureReader;
use std::io::{ErrorKind, Read};

/// An input that returns a few bytes with each successful read. Every other read reports that no bytes are
/// ready.
struct Pieces {
    bytes: Vec<u8>,
    position: usize,
    max_piece: usize,
    ready: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.ready = !self.ready;
        if !self.ready {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.max_piece.min(buffer.len()).min(self.bytes.len() - self.position);
        buffer[..count].copy_from_slice(&self.bytes[self.position..self.position + count]);
        self.position += count;
        Ok(count)
    }
}

/// The time, length on the wire, interface and bytes of every packet, and the error that ended the reading.
type Content = (Vec<(u64, u32, u32, Vec<u8>)>, Option<String>);

fn read(bytes: &[u8], max_piece: usize) -> Content {
    let mut packets = Vec::new();
    let mut run = || -> Result<(), Error> {
        let input = Pieces { bytes: bytes.to_vec(), position: 0, max_piece, ready: false };
        let mut reader = CaptureReader::new("fuzz", Box::new(input));
        loop {
            let Some(record) = reader.peek()? else {
                if reader.waiting() {
                    continue;
                }
                break;
            };
            let data = reader.data(&record).to_vec();
            assert_eq!(data.len(), record.length());
            packets.push((record.time_ns, record.wire_length, record.interface, data));
            reader.consume();
            assert!(reader.offset() <= bytes.len() as u64, "the reader went beyond the end");
        }
        let _ = reader.resolution();
        Ok(())
    };
    let error = run().err().map(|error| error.to_string());
    (packets, error)
}

pub fn run(bytes: &[u8]) {
    let (packets, error) = read(bytes, usize::MAX);
    assert!(packets.iter().map(|packet| packet.3.len()).sum::<usize>() <= bytes.len());
    assert_eq!(read(bytes, 1 + bytes.len() % 13), (packets, error));
}
