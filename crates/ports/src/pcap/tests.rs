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

/// A packet of a capture.
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

/// Writes a classic capture byte by byte.
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

/// Writes a pcapng capture block by block.
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

#[test]
fn classic_captures_are_read_in_either_byte_order_and_unit() {
    let mut cut = entry(SECOND + 5000, &[7; 20]);
    cut.wire_length = 1500;
    let entries = vec![entry(SECOND, b"first"), cut, entry(SECOND + 7000, b"")];
    for big in [false, true] {
        let micro = classic(0xa1b2_c3d4, big, 1, &entries);
        assert_eq!(read(&micro), Ok((entries.clone(), Resolution::Micro)));
        let mut fine = entries.clone();
        fine[0].time_ns += 1;
        let nano = classic(0xa1b2_3c4d, big, 1, &fine);
        assert_eq!(read(&nano), Ok((fine, Resolution::Nano)));
    }
    assert_eq!(read(&classic(0xa1b2_cd34, false, 1, &entries)), Ok((entries, Resolution::Micro)));
    assert_eq!(read(&classic(0xa1b2_c3d4, false, 1, &[])), Ok((vec![], Resolution::Micro)));
}

#[test]
fn pcapng_captures_are_read_with_sections_interfaces_and_resolutions() {
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.interface(1, 0, Some(9), Some(10));
    ng.packet(0, SECOND / 1000, 5, b"micro");
    ng.packet(1, SECOND + 1, 100, b"nano!");
    ng.block(0x0bad, b"unknown blocks are skipped");
    ng.section(true);
    ng.interface(1, 3, Some(0x80 | 10), Some(-1));
    ng.packet(0, (SECOND / 1_000_000_000) << 10 | 512, 2, b"be");
    let simple = [&ng.word(4)[..], b"abc\0"].concat();
    ng.block(3, &simple);
    let expected = vec![
        entry(SECOND, b"micro"),
        Entry { time_ns: SECOND + 10_000_000_001, wire_length: 100, interface: 1, bytes: b"nano!".into() },
        Entry { interface: 2, ..entry(SECOND - 500_000_000, b"be") },
        Entry { time_ns: 0, wire_length: 4, interface: 2, bytes: b"abc".into() },
    ];
    assert_eq!(read(&ng.bytes), Ok((expected, Resolution::Nano)));
}

#[test]
fn a_resolution_is_micro_if_microseconds_represent_it() {
    for (resolution, expected) in [
        (None, Resolution::Micro),
        (Some(6), Resolution::Micro),
        (Some(3), Resolution::Micro),
        (Some(7), Resolution::Nano),
        (Some(0x80 | 20), Resolution::Nano),
        (Some(0xff), Resolution::Nano),
        (Some(0x7f), Resolution::Nano),
    ] {
        let mut ng = Ng::new(false);
        ng.interface(1, 0, resolution, None);
        ng.packet(0, u64::MAX, 1, b"x");
        assert_eq!(read(&ng.bytes).unwrap().1, expected, "{resolution:?}");
    }
}

#[test]
fn damaged_files_and_other_files_are_refused_with_a_reason() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().1;
    assert!(error(b"").contains("is empty"));
    assert!(error(b"GIF").contains("fewer than four"));
    assert!(error(b"GIF89a, certainly no capture").contains("not a capture"));
    assert!(error(&classic(0xa1b2_c3d4, false, 113, &[])).contains("link type 113"));
    let whole = classic(0xa1b2_c3d4, false, 1, &[entry(SECOND, &[1; 60]), entry(SECOND, &[2; 60])]);
    let (before, cut) = read(&whole[..whole.len() - 1]).unwrap_err();
    assert_eq!(before.len(), 1);
    assert!(cut.contains("cut short") && cut.contains("offset 100") && cut.contains("1 packets"), "{cut}");
    let mut huge = whole.clone();
    huge[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(error(&huge).contains("damaged at offset 24"));

    let mut ng = Ng::new(false);
    ng.packet(0, 0, 1, b"x");
    assert!(error(&ng.bytes).contains("names interface 0, which is not described"));
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.block(2, &[0; 40]);
    assert!(error(&ng.bytes).contains("editcap"));
    let mut ng = Ng::new(false);
    ng.interface(105, 0, None, None);
    ng.packet(0, 0, 1, b"x");
    assert!(error(&ng.bytes).contains("link type 105"));
    let mut ng = Ng::new(false);
    ng.bytes[8] = 0;
    assert!(error(&ng.bytes).contains("byte order"));
}

#[test]
fn a_block_with_a_wrong_length_is_damage() {
    for big in [false, true] {
        let mut ng = Ng::new(big);
        ng.interface(1, 0, None, None);
        ng.packet(0, 0, 60, &[1; 60]);
        let second = ng.bytes.len();
        ng.packet(0, 0, 60, &[2; 60]);
        let end = ng.bytes.len();
        // A packet that a wrong length could run into.
        ng.packet(0, 0, 60, &[3; 60]);
        let length = (end - second) as u32;
        for (first, last, said) in [
            (length, length - 4, "two lengths differ"),
            (length - 4, length, "two lengths differ"),
            (0, 0, "a block claims 0 bytes"),
            (8, 8, "a block claims 8 bytes"),
            (length + 1, length + 1, "which no block has"),
            (length + 4, length + 4, "two lengths differ"),
            (u32::MAX - 3, u32::MAX - 3, "claims"),
        ] {
            let mut bytes = ng.bytes.clone();
            bytes[second + 4..second + 8].copy_from_slice(&ng.word(first));
            bytes[end - 4..end].copy_from_slice(&ng.word(last));
            let (before, error) = read(&bytes).unwrap_err();
            assert_eq!(before.len(), 1, "{first} {last}: {error}");
            assert!(
                error.contains(said) && error.contains(&format!("offset {second}")),
                "{first} {last}: {error}"
            );
        }
        // The same for a section header.
        let mut bytes = ng.bytes.clone();
        bytes[24..28].copy_from_slice(&ng.word(32));
        assert!(read(&bytes).unwrap_err().1.contains("two lengths differ: 28 and 32"));
    }
}

fn source(path: &Path, playback: Playback, room: usize) -> (CaptureSource, Arc<dyn Pool>, Box<dyn Rx>) {
    let mut source = CaptureSource::open(&format!("pcap:{}", path.display()), playback).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, room).unwrap());
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let rx = source.take_rx(0).unwrap();
    (source, pool, rx)
}

/// Copies a capture from a source to a sink. Returns the packets sent, and the source's error.
fn copy(from: &Path, to: &Path) -> (u64, Result<()>) {
    let (source, pool, mut rx) = source(from, Playback::default(), 9216);
    let mut sink = CaptureSink::open(&format!("pcap:{}", to.display()), Some(&source)).unwrap();
    sink.configure(&[], 1).unwrap();
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    let mut packets = [Packet::EMPTY; 32];
    let outcome = loop {
        match rx.receive(&mut packets) {
            Ok(0) if rx.exhausted() => break Ok(()),
            // SAFETY: these packets come from this queue's pool, and are not used again.
            Ok(count) => assert_eq!(unsafe { tx.send(&packets[..count]) }.unwrap(), count),
            Err(error) => break Err(error),
        }
    };
    tx.flush().unwrap();
    assert_eq!(pool.outstanding(), 0);
    assert_eq!(rx.counters(), tx.counters());
    (tx.counters().packets, outcome)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_copy_equals_its_original(
        list in proptest::collection::vec((0..u32::MAX as u64, 0..1_000_000_000u64, proptest::collection::vec(any::<u8>(), 0..300), 0u32..3), 0..100),
        big: bool, nano: bool,
    ) {
        let unit = if nano { 1 } else { 1000 };
        let entries: Vec<Entry> = list.into_iter().map(|(seconds, fraction, bytes, cut)| Entry {
            time_ns: seconds * 1_000_000_000 + fraction / unit * unit,
            wire_length: if cut > 0 { bytes.len() as u32 + cut } else { 0 },
            interface: 0,
            bytes,
        }).collect();
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("in"), folder.path().join("out"));
        let magic = if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        std::fs::write(&from, classic(magic, big, 1, &entries)).unwrap();
        let (packets, outcome) = copy(&from, &to);
        outcome.unwrap();
        prop_assert_eq!(packets, entries.len() as u64);
        // All bytes are equal except the snap length in the header.
        let (mut expected, written) = (classic(magic, false, 1, &entries), std::fs::read(&to).unwrap());
        expected[16..20].copy_from_slice(&262_144u32.to_le_bytes());
        prop_assert_eq!(written, expected);
    }

    #[test]
    fn no_cut_and_no_flipped_byte_panics(cut in 0usize..600, at in 0usize..600, flip in 1u8.., ng: bool) {
        let entries = [entry(SECOND, &[1; 60]), entry(SECOND, &[2; 99]), entry(SECOND, b"")];
        let mut bytes = classic(0xa1b2_c3d4, false, 1, &entries);
        if ng {
            let mut made = Ng::new(true);
            made.interface(1, 0, Some(9), Some(3));
            entries.iter().for_each(|entry| made.packet(0, entry.time_ns, 200, &entry.bytes));
            bytes = made.bytes;
        }
        bytes.truncate(cut);
        let _ = read(&bytes);
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= flip;
        }
        let _ = read(&bytes);
    }
}

#[test]
fn a_capture_cut_short_returns_its_whole_packets_first() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("in"), folder.path().join("out"));
    let entries = vec![entry(SECOND, &[1; 60]); 40];
    let mut bytes = classic(0xa1b2_c3d4, false, 1, &entries);
    bytes.pop();
    std::fs::write(&from, bytes).unwrap();
    let (packets, outcome) = copy(&from, &to);
    assert_eq!(packets, 39);
    assert!(outcome.unwrap_err().to_string().contains("cut short"));
    assert_eq!(read(&std::fs::read(&to).unwrap()).unwrap().0.len(), 39);
}

#[test]
fn a_sink_has_the_finest_resolution_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("in"), folder.path().join("out"));
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.packet(0, SECOND / 1000, 5, b"micro");
    ng.interface(1, 0, Some(9), None);
    ng.packet(1, SECOND + 1, 4, b"nano");
    std::fs::write(&from, ng.bytes).unwrap();
    copy(&from, &to).1.unwrap();
    let expected = vec![entry(SECOND, b"micro"), entry(SECOND + 1, b"nano")];
    assert_eq!(read(&std::fs::read(&to).unwrap()), Ok((expected, Resolution::Nano)));
}

#[test]
fn a_full_disk_is_an_error_at_the_start() {
    let mut sink = CaptureSink::open("pcap:/dev/full", None).unwrap();
    let error = sink.start().unwrap_err().to_string();
    assert!(error.contains("after 0 packets") && error.contains("free some space"), "{error}");
}

#[test]
fn packets_that_a_full_disk_refuses_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let mut writer = CaptureWriter::create("pcap:out", path.to_str().unwrap(), Resolution::Nano).unwrap();
    let meta = PacketMeta { time_ns: SECOND, ..PacketMeta::default() };
    let (queue, lost) = writer.add_queue();
    for _ in 0..10 {
        writer.record(queue, meta, 100, |buffer| buffer.extend([5; 100])).unwrap();
    }
    writer.flush().unwrap();
    writer.fail_after(150);
    for _ in 0..4 {
        writer.record(queue, meta, 100, |buffer| buffer.extend([6; 100])).unwrap();
    }
    let error = writer.flush().unwrap_err().to_string();
    assert!(error.contains("after 11 packets"), "{error}");
    assert!(writer.reserve(1).unwrap_err().to_string().contains("free some space"), "every later call fails");
    assert_eq!((lost.packets(), lost.bytes()), (3, 300));
    drop(writer);
    assert_eq!(
        read(&std::fs::read(&path).unwrap()).unwrap().0.len(),
        11,
        "the file is cut behind the last whole packet"
    );
}

#[test]
fn unusable_files_and_buffers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in");
    std::fs::write(&path, classic(0xa1b2_c3d4, false, 1, &[entry(SECOND, &[1; 3000])])).unwrap();
    let text = format!("pcap:{}", path.display());
    let open = |text: &str| CaptureSource::open(text, Playback::default());
    assert!(open("pcap:").err().unwrap().to_string().contains("name the file"));
    assert!(open("pcap:/nowhere/x").err().unwrap().to_string().contains("cannot read"));
    assert!(open("pcap:/").err().unwrap().to_string().contains("directory"));
    let mut source = open(&text).unwrap();
    assert_eq!(
        source.summary(),
        Some(Summary { packets: 1, longest: 3000, latest_ns: SECOND, resolution: Resolution::Micro })
    );
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 2048).unwrap());
    let pools = std::slice::from_ref(&pool);
    assert!(source.configure(pools, 0).unwrap_err().to_string().contains("--room 3000"));
    assert!(source.configure(pools, 1).is_err() && source.configure(&[], 0).is_err());
    assert!(
        CaptureSink::open(&text, Some(&source)).err().unwrap().to_string().contains("reads the same file")
    );
    assert!(CaptureSink::open("pcap:/nowhere/x", None).err().unwrap().to_string().contains("cannot create"));
}

#[test]
fn the_original_pace_plays_no_packet_early_in_any_lap() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in");
    let entries: Vec<_> = (0..3).map(|i| entry(SECOND + i * 20_000_000, &[i as u8; 60])).collect();
    std::fs::write(&path, classic(0xa1b2_c3d4, false, 1, &entries)).unwrap();
    let (_, pool, mut rx) = source(&path, Playback { pace: Pace::Original, repeat: true }, 2048);
    let mut packets = [Packet::EMPTY; 8];
    let start = std::time::Instant::now();
    let (mut times, mut arrivals) = (Vec::new(), Vec::new());
    while times.len() < 7 {
        let count = rx.receive(&mut packets).unwrap();
        for packet in &packets[..count] {
            // SAFETY: the test holds the packet, and it is from this pool.
            times.push(unsafe { pool.meta(packet) }.time_ns - SECOND);
            arrivals.push(start.elapsed());
        }
        // SAFETY: these packets were received from this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
    }
    assert_eq!(times, [0, 20_000_000, 40_000_000, 40_001_000, 60_001_000, 80_001_000, 80_002_000]);
    for (time, arrival) in times.iter().zip(&arrivals) {
        assert!(arrival.as_nanos() as u64 >= *time, "the packet of {time} ns was played at {arrival:?}");
    }
    assert!(!rx.exhausted());
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn a_looped_capture_of_the_latest_time_repeats_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("last");
    let mut ng = Ng::new(false);
    ng.interface(1, 0, Some(9), None);
    ng.packet(0, u64::MAX, 60, &[0; 60]);
    std::fs::write(&path, &ng.bytes).unwrap();
    let (_source, pool, mut rx) = source(&path, Playback { repeat: true, ..Playback::default() }, 64);
    let mut packets = [Packet::EMPTY; 4];
    assert_eq!(rx.receive(&mut packets).unwrap(), 4);
    // SAFETY: the test holds the packet, and it is from this pool.
    assert!(packets.iter().all(|packet| unsafe { pool.meta(packet) }.time_ns == u64::MAX));
    // SAFETY: these packets were received from this pool, and are not used again.
    unsafe { pool.free(&packets) };
}

#[test]
fn packets_from_elsewhere_get_the_time_at_which_they_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let mut sink = CaptureSink::open(&format!("pcap:{}", path.display()), None).unwrap();
    sink.configure(&[], 1).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 2048).unwrap());
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    let mut packets = [Packet::EMPTY; 1];
    pool.allocate(&mut packets);
    packets[0].length = 60;
    // SAFETY: the test holds the packet, and it is from this pool.
    unsafe { pool.set_meta(&packets[0], PacketMeta { time_ns: 1, wire_length: 9, interface: 3 }) };
    // SAFETY: these packets come from this queue's pool, and are not used again.
    unsafe { tx.send(&packets) }.unwrap();
    drop(tx);
    let (entries, _) = read(&std::fs::read(&path).unwrap()).unwrap();
    assert!(entries[0].time_ns > SECOND && entries[0].wire_length == 0);
}

#[test]
fn a_copy_of_a_real_capture_is_byte_for_byte_the_same() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/capture/mixed.pcap");
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out");
    copy(&from, &to).1.unwrap();
    assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
    // Converted to another format or resolution, the packets stay the same.
    for (format, resolution) in [("pcapng", Resolution::Nano), ("pcap", Resolution::Micro)] {
        let other = folder.path().join(format);
        let converted =
            std::process::Command::new("editcap").args(["-F", format]).arg(&from).arg(&other).status();
        if !converted.is_ok_and(|status| status.success()) {
            eprintln!(
                "SKIPPED a_real_capture_comes_out_byte_for_byte: editcap is not installed (package tshark)"
            );
            return;
        }
        let (entries, found) = read(&std::fs::read(&other).unwrap()).unwrap();
        assert_eq!(found, resolution);
        let expected = read(&std::fs::read(&from).unwrap()).unwrap().0;
        let unit = if resolution == Resolution::Micro { 1000 } else { 1 };
        assert_eq!(entries.len(), expected.len());
        for (entry, expected) in entries.iter().zip(&expected) {
            assert_eq!((entry.time_ns, &entry.bytes), (expected.time_ns / unit * unit, &expected.bytes));
        }
    }
}

/// Returns its pieces, and [`std::io::ErrorKind::WouldBlock`] once after each.
struct TwoPieces {
    pieces: std::collections::VecDeque<Vec<u8>>,
}

impl std::io::Read for TwoPieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        if piece.is_empty() {
            self.pieces.pop_front();
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        piece.drain(..count);
        Ok(count)
    }
}

#[test]
fn an_input_in_two_pieces_is_read_like_a_whole_one() {
    let mut ng = Ng::new(false);
    ng.interface(1, 0, None, None);
    ng.packet(0, 7, 3, b"abc");
    ng.section(true);
    ng.interface(1, 0, None, None);
    ng.packet(0, 9, 3, b"def");
    for bytes in [classic(0xa1b2_c3d4, false, 1, &[entry(1000, b"abc"), entry(2000, b"defg")]), ng.bytes] {
        let whole = read(&bytes).unwrap().0;
        for cut in 0..bytes.len() {
            let pieces = [bytes[..cut].to_vec(), bytes[cut..].to_vec()].into();
            let mut reader = CaptureReader::new("pcap:test", Box::new(TwoPieces { pieces }));
            let mut entries = Vec::new();
            loop {
                let Some(record) = reader.peek().unwrap() else {
                    if reader.waiting() {
                        continue;
                    }
                    break;
                };
                let bytes = reader.data(&record).to_vec();
                let Record { time_ns, wire_length, interface, .. } = record;
                entries.push(Entry { time_ns, wire_length, interface, bytes });
                reader.consume();
            }
            assert_eq!(entries, whole, "cut at {cut}");
        }
    }
}

#[test]
fn a_pipe_returns_the_packets_that_have_arrived() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let name = format!("pcap:/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let two = classic(0xa1b2_c3d4, false, 1, &[entry(1000, b"abc"), entry(2000, b"defg")]);
    std::io::Write::write_all(&mut writer, &two).unwrap();
    let mut source = CaptureSource::open(&name, Playback::default()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = source.take_rx(0).unwrap();
    let mut packets = [Packet::EMPTY; 8];
    assert_eq!(rx.receive(&mut packets).unwrap(), 2, "a burst is returned before it is full");
    assert_eq!(rx.receive(&mut packets[2..]).unwrap(), 0);
    assert!(!rx.exhausted());
    drop(writer);
    assert_eq!(rx.receive(&mut packets[2..]).unwrap(), 0);
    assert!(rx.exhausted());
    // SAFETY: these packets were received from this pool, and are not used again.
    unsafe { pool.free(&packets[..2]) };
}

#[test]
fn packets_of_ethernet_are_read_whatever_other_interfaces_are_described() {
    let mut ng = Ng::new(false);
    ng.interface(105, 0, Some(9), None);
    ng.interface(1, 0, None, None);
    ng.packet(1, SECOND / 1000, 5, b"ether");
    let expected = Entry { interface: 1, ..entry(SECOND, b"ether") };
    assert_eq!(read(&ng.bytes), Ok((vec![expected], Resolution::Micro)));
    ng.packet(0, 0, 5, b"radio");
    let (before, error) = read(&ng.bytes).unwrap_err();
    assert!(before.len() == 1 && error.contains("link type 105"), "{error}");
}

/// Receives once, returns the packets' timestamps, and frees the packets.
fn times(rx: &mut dyn Rx, pool: &dyn Pool, count: usize) -> Vec<u64> {
    let mut packets = vec![Packet::EMPTY; count];
    let count = rx.receive(&mut packets).unwrap();
    let packets = &packets[..count];
    // SAFETY: these packets were just received and come from this pool.
    let times = packets.iter().map(|packet| unsafe { pool.meta(packet) }.time_ns).collect();
    // SAFETY: as above, and they are not used again.
    unsafe { pool.free(packets) };
    times
}

#[test]
fn a_looped_capture_starts_its_timestamps_again_before_the_format_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in");
    let first = writer::MAX_TIME_NS - 2_000_000_999;
    let entries = [entry(first, &[1; 60]), entry(first + 1_000_000_000, &[2; 60])];
    std::fs::write(&path, classic(0xa1b2_3c4d, false, 1, &entries)).unwrap();
    let (_source, pool, mut rx) = source(&path, Playback { repeat: true, ..Playback::default() }, 64);
    let found = times(&mut *rx, &*pool, 8);
    let second = first + 1_000_001_000;
    assert_eq!(found[..2], [first, first + 1_000_000_000]);
    assert!(second + 1_000_000_000 > writer::MAX_TIME_NS, "a second lap would exceed the format");
    assert_eq!(found[2..4], found[..2], "so the second lap repeats the timestamps");
    assert!(found.iter().all(|&time| time <= writer::MAX_TIME_NS));
}

#[test]
fn errors_of_a_sink_are_counted_once_whatever_its_queues() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let writer = CaptureWriter::create("pcap:out", path.to_str().unwrap(), Resolution::Nano).unwrap();
    let writer = Arc::new(std::sync::Mutex::new(writer));
    writer.lock().unwrap().begin().unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 2048).unwrap());
    let mut queues: Vec<_> = (0..3)
        .map(|_| {
            QueueWriter::new(writer.clone(), TimestampSource::SendTime, pool.clone())
                .map(|writer| sink::CaptureTx::new(writer, pool.clone()))
                .unwrap()
        })
        .collect();
    writer.lock().unwrap().fail_after(2 * (16 + 60) + 10);
    for queue in &mut queues {
        let mut packets = [Packet::EMPTY; 2];
        assert_eq!(pool.allocate(&mut packets), 2);
        packets.iter_mut().for_each(|packet| packet.length = 60);
        // SAFETY: these packets were just allocated from this pool, and are not used again.
        assert_eq!(unsafe { queue.send(&packets) }.unwrap(), 2);
    }
    assert!(queues[0].finish(&mut || true).unwrap_err().to_string().contains("after 2 packets"));
    let counters: Vec<_> = queues.iter().map(|queue| queue.counters()).collect();
    let of = |read: fn(&inlane_core::port::Counters) -> u64| counters.iter().map(read).collect::<Vec<_>>();
    assert_eq!(of(|counters| counters.packets), [2, 0, 0], "only what was written was sent");
    assert_eq!(of(|counters| counters.bytes), [120, 0, 0]);
    assert_eq!(of(|counters| counters.errors), [0, 2, 2]);
    drop(queues);
    drop(writer);
    assert_eq!(read(&std::fs::read(&path).unwrap()).unwrap().0.len(), 2);
}

fn fifo(folder: &Path) -> (std::path::PathBuf, String) {
    let path = folder.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let name = format!("pcap:{}", path.display());
    (path, name)
}

#[test]
fn a_named_pipe_without_a_writer_blocks_neither_opening_nor_receiving() {
    let folder = tempfile::tempdir().unwrap();
    let (path, name) = fifo(folder.path());
    let mut source = CaptureSource::open(&name, Playback::default()).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 64).unwrap());
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = source.take_rx(0).unwrap();
    assert!(times(&mut *rx, &*pool, 4).is_empty());
    assert!(!rx.exhausted(), "a writer may still come");
    let bytes = classic(0xa1b2_c3d4, false, 1, &[entry(SECOND, b"abc")]);
    let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for byte in &bytes[..bytes.len() - 1] {
        std::io::Write::write_all(&mut writer, &[*byte]).unwrap();
        assert!(times(&mut *rx, &*pool, 4).is_empty());
    }
    assert!(source.resolution().get() == Some(&Resolution::Micro), "known as soon as the header is");
    std::io::Write::write_all(&mut writer, &bytes[bytes.len() - 1..]).unwrap();
    assert_eq!(times(&mut *rx, &*pool, 4), [SECOND]);
    drop(writer);
    assert!(times(&mut *rx, &*pool, 4).is_empty());
    assert!(rx.exhausted());
}

#[test]
fn a_named_pipe_whose_reader_is_absent_or_pauses_blocks_no_sender() {
    let folder = tempfile::tempdir().unwrap();
    let (path, name) = fifo(folder.path());
    let mut sink = CaptureSink::open(&name, None).unwrap();
    sink.configure(&[], 1).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 4096).unwrap());
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    sink.start().unwrap();
    let mut packets = [Packet::EMPTY; 32];
    let mut send_until_full = |tx: &mut dyn Tx| {
        let mut total = 0;
        loop {
            let count = pool.allocate(&mut packets);
            packets[..count].iter_mut().for_each(|packet| packet.length = 4000);
            // SAFETY: these packets were just allocated from this pool.
            let sent = unsafe { tx.send(&packets[..count]) }.unwrap();
            // SAFETY: as above. Those that were not sent are freed here.
            unsafe { pool.free(&packets[sent..count]) };
            total += sent as u64;
            if sent < count {
                return total;
            }
        }
    };
    let unread = send_until_full(&mut *tx);
    assert!(unread > 0, "without a reader packets are buffered");
    tx.flush().unwrap();
    let reader = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(&path)
        .unwrap();
    tx.flush().unwrap();
    send_until_full(&mut *tx);
    let reading = std::thread::spawn(move || {
        let mut file = reader;
        let mut bytes = Vec::new();
        let mut part = [0; 65536];
        loop {
            match std::io::Read::read(&mut file, &mut part) {
                Ok(0) => return bytes,
                Ok(count) => bytes.extend(&part[..count]),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    });
    tx.finish(&mut || true).unwrap();
    let written = tx.counters();
    drop((tx, sink));
    let (entries, _) = read(&reading.join().unwrap()).unwrap();
    assert_eq!((written.packets, written.errors), (entries.len() as u64, 0));
    assert!(entries.iter().all(|entry| entry.bytes.len() == 4000));
}

#[test]
fn packets_that_no_reader_took_are_lost_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (_path, name) = fifo(folder.path());
    let mut sink = CaptureSink::open(&name, None).unwrap();
    sink.configure(&[], 1).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 64).unwrap());
    let mut tx = sink.take_tx(0, pool.clone()).unwrap();
    let mut packets = [Packet::EMPTY; 3];
    pool.allocate(&mut packets);
    packets.iter_mut().for_each(|packet| packet.length = 60);
    // SAFETY: these packets were just allocated from this pool, and are not used again.
    assert_eq!(unsafe { tx.send(&packets) }.unwrap(), 3);
    let mut asked = 0;
    let outcome = tx.finish(&mut || {
        asked += 1;
        asked < 3
    });
    assert!(outcome.unwrap_err().to_string().contains("its reader stopped reading"));
    assert_eq!(asked, 3);
    assert_eq!((tx.counters().packets, tx.counters().errors, pool.outstanding()), (0, 3, 0));
}

#[test]
fn an_output_is_emptied_when_the_run_begins_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let name = format!("pcap:{}", path.display());
    std::fs::write(&path, "precious, and longer than a header of a capture").unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 64).unwrap());
    let mut sink = CaptureSink::open(&name, None).unwrap();
    sink.configure(&[], 1).unwrap();
    drop(sink.take_tx(0, pool.clone()).unwrap());
    drop(sink);
    assert!(std::fs::read(&path).unwrap().starts_with(b"precious"));
    let mut sink = CaptureSink::open(&name, None).unwrap();
    sink.configure(&[], 1).unwrap();
    sink.start().unwrap();
    drop(sink);
    assert_eq!(read(&std::fs::read(&path).unwrap()), Ok((vec![], Resolution::Nano)));
}

#[test]
fn a_sink_that_would_overwrite_the_source_is_refused_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| format!("pcap:{}", at(name).display());
    let bytes = classic(0xa1b2_c3d4, false, 1, &[entry(SECOND, &[1; 60])]);
    std::fs::write(at("in"), &bytes).unwrap();
    std::fs::hard_link(at("in"), at("hard")).unwrap();
    std::os::unix::fs::symlink(at("in"), at("soft")).unwrap();
    let source = CaptureSource::open(&text("in"), Playback::default()).unwrap();
    for name in ["in", "hard", "soft"] {
        let error = CaptureSink::open(&text(name), Some(&source)).err().unwrap().to_string();
        assert!(error.contains("reads the same file"), "{error}");
    }
    assert_eq!(std::fs::read(at("in")).unwrap(), bytes);
}
