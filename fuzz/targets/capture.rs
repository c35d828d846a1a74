//! Any bytes as a capture: packets, an end, or an error, the same however the file comes in; never more bytes than there are.

#![no_main]

use inlane_core::{Error, Result};
use libfuzzer_sys::fuzz_target;
use std::io::Read;

// The reader alone, without what the rest of its crate needs to be built.
#[allow(dead_code)]
#[path = "../../crates/ports/src/pcap/reader.rs"]
mod reader;
use reader::Reader;

/// Gives a file in pieces.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    most: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.most.min(buffer.len()).min(self.bytes.len() - self.at);
        buffer[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Times, lengths, interfaces and bytes of every packet, and how it ended.
type Outcome = (Vec<(u64, u32, u32, Vec<u8>)>, Option<String>);

fn read(bytes: &[u8], most: usize) -> Outcome {
    let mut packets = Vec::new();
    let mut run = || -> Result<(), Error> {
        let mut reader = Reader::new("fuzz", Box::new(Pieces { bytes: bytes.to_vec(), at: 0, most }))?;
        while let Some(record) = reader.peek()? {
            let data = reader.data(&record).to_vec();
            assert_eq!(data.len(), record.length());
            packets.push((record.time_ns, record.wire_length, record.interface, data));
            reader.consume();
            assert!(reader.offset() <= bytes.len() as u64, "read beyond the end");
        }
        let _ = reader.resolution();
        Ok(())
    };
    let error = run().err().map(|error| error.to_string());
    (packets, error)
}

fuzz_target!(|bytes: &[u8]| {
    let (packets, error) = read(bytes, usize::MAX);
    assert!(packets.iter().map(|packet| packet.3.len()).sum::<usize>() <= bytes.len());
    assert_eq!(read(bytes, 1 + bytes.len() % 13), (packets, error));
});
