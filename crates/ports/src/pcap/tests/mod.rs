//! Tests of captures, and their helpers.

mod playing;
mod reading;
mod writing;

use super::reader::{CaptureReader, Resolution};
use super::writer::CaptureWriter;
use super::*;
use inlane_core::packet::PacketMeta;
use inlane_core::{HeapPool, Packet, Pool, Port, Rx, Tx};
use proptest::prelude::*;
use reader::Record;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    time_ns: u64,
    wire_length: u32,
    interface: u32,
    bytes: Vec<u8>,
}

fn entry(time_ns: u64, bytes: &[u8]) -> Entry {
    Entry { time_ns, wire_length: 0, interface: 0, bytes: bytes.into() }
}

fn read(bytes: &[u8]) -> Result<(Vec<Entry>, Resolution), (Vec<Entry>, String)> {
    let mut entries = Vec::new();
    let mut run = || {
        let mut reader = CaptureReader::new("pcap:test", Box::new(std::io::Cursor::new(bytes.to_vec())));
        while let Some(record) = reader.peek()? {
            let bytes = reader.data(&record).to_vec();
            let Record { time_ns, wire_length, interface, .. } = record;
            entries.push(Entry { time_ns, wire_length, interface, bytes });
            reader.consume();
        }
        Ok::<_, Error>(reader.resolution())
    };
    match run() {
        Ok(resolution) => Ok((entries, resolution)),
        Err(error) => Err((entries, error.to_string())),
    }
}

/// Returns a classic capture, built without the writer under test.
fn classic(magic: u32, big: bool, link: u32, entries: &[Entry]) -> Vec<u8> {
    let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let nano = magic == 0xa1b2_3c4d;
    let mut bytes = word(magic).to_vec();
    bytes.extend(if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] });
    bytes.extend([0; 8]);
    bytes.extend(word(65535));
    bytes.extend(word(link));
    for entry in entries {
        let unit = if nano { 1 } else { 1000 };
        bytes.extend(word((entry.time_ns / 1_000_000_000) as u32));
        bytes.extend(word((entry.time_ns % 1_000_000_000 / unit) as u32));
        bytes.extend(word(entry.bytes.len() as u32));
        bytes.extend(word(if entry.wire_length > 0 { entry.wire_length } else { entry.bytes.len() as u32 }));
        if magic == 0xa1b2_cd34 {
            bytes.extend([0; 8]);
        }
        bytes.extend(&entry.bytes);
    }
    bytes
}

/// A pcapng capture. Each method adds a block to `bytes`.
struct Ng {
    big: bool,
    bytes: Vec<u8>,
}

impl Ng {
    fn new(big: bool) -> Self {
        let mut ng = Self { big, bytes: Vec::new() };
        ng.section(big);
        ng
    }

    fn section(&mut self, big: bool) {
        self.big = big;
        let body = [self.word(0x1a2b_3c4d).to_vec(), vec![0, 0, 0, 0], vec![0xff; 8]].concat();
        let version = if big { [0, 1, 0, 0] } else { [1, 0, 0, 0] };
        self.block(0x0a0d_0d0a, &[&body[..4], &version, &body[8..]].concat());
    }

    fn word(&self, value: u32) -> [u8; 4] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn half(&self, value: u16) -> [u8; 2] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let mut padded = body.to_vec();
        padded.resize(body.len().next_multiple_of(4), 0);
        let length = self.word(padded.len() as u32 + 12);
        let kind = self.word(kind);
        self.bytes.extend([&kind[..], &length, &padded, &length].concat());
    }

    fn interface(&mut self, link: u16, snap: u32, resolution: Option<u8>, offset: Option<i64>) {
        let mut body = [&self.half(link)[..], &[0, 0], &self.word(snap)].concat();
        if let Some(resolution) = resolution {
            body.extend([&self.half(9)[..], &self.half(1), &[resolution, 0, 0, 0]].concat());
        }
        if let Some(offset) = offset {
            let value = if self.big { offset.to_be_bytes() } else { offset.to_le_bytes() };
            body.extend([&self.half(14)[..], &self.half(8), &value].concat());
        }
        body.extend([0; 4]);
        self.block(1, &body);
    }

    fn packet(&mut self, interface: u32, units: u64, original: u32, bytes: &[u8]) {
        let words = [interface, (units >> 32) as u32, units as u32, bytes.len() as u32, original];
        let mut body: Vec<u8> = words.iter().flat_map(|&value| self.word(value)).collect();
        body.extend(bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        // The option opt_comment.
        body.extend([&self.half(1)[..], &self.half(2), b"hi\0\0", &[0; 4]].concat());
        self.block(6, &body);
    }
}

const SECOND: u64 = 1_700_000_000_000_000_000;

fn source(path: &Path, playback: Playback, room: usize) -> (CaptureSource, Arc<dyn Pool>, Box<dyn Rx>) {
    let mut source = CaptureSource::open(&format!("pcap:{}", path.display()), playback).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, room).unwrap());
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let rx = source.take_rx(0).unwrap();
    (source, pool, rx)
}

/// Copies a capture from a source to a sink. Returns the number of accepted packets, and the source's error
/// if any.
fn copy(from: &Path, to: &Path) -> (u64, Result<()>) {
    let (source, pool, mut rx) = source(from, Playback::default(), 9216);
    let mut sink = CaptureSink::open(&format!("pcap:{}", to.display()), Some(&source)).unwrap();
    sink.configure(&[], 1).unwrap();
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    let mut packets = [Packet::EMPTY; 32];
    let outcome = loop {
        match rx.receive(&mut packets) {
            Ok(0) if rx.exhausted() => break Ok(()),
            // SAFETY: the packets are from this queue's pool, and are not used again.
            Ok(count) => assert_eq!(unsafe { tx.send(&packets[..count]) }.unwrap(), count),
            Err(error) => break Err(error),
        }
    };
    tx.flush().unwrap();
    assert_eq!(pool.outstanding(), 0);
    assert_eq!(rx.counters(), tx.counters());
    (tx.counters().packets, outcome)
}

fn times(rx: &mut dyn Rx, pool: &dyn Pool, count: usize) -> Vec<u64> {
    let mut packets = vec![Packet::EMPTY; count];
    let count = rx.receive(&mut packets).unwrap();
    let packets = &packets[..count];
    // SAFETY: the packets are from this pool.
    let times = packets.iter().map(|packet| unsafe { pool.meta(packet) }.time_ns).collect();
    // SAFETY: the packets are from this pool, and are not used again.
    unsafe { pool.free(packets) };
    times
}

fn fifo(folder: &Path) -> (std::path::PathBuf, String) {
    let path = folder.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let name = format!("pcap:{}", path.display());
    (path, name)
}
