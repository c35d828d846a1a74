//! Tests of capture sources.

use super::*;

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
        Some(CaptureSummary { packets: 1, longest: 3000, latest_ns: SECOND, resolution: Resolution::Micro })
    );
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(4, 2048).unwrap());
    let pools = std::slice::from_ref(&pool);
    assert!(source.configure(pools, 0).unwrap_err().to_string().contains("room=3000"));
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
    let mut packets = [Packet::EMPTY; 1];
    let start = std::time::Instant::now();
    let (mut times, mut arrivals) = (Vec::new(), Vec::new());
    while times.len() < 7 {
        let count = rx.receive(&mut packets).unwrap();
        for packet in &packets[..count] {
            // SAFETY: the test holds the packet, which is from this pool.
            times.push(unsafe { pool.meta(packet) }.time_ns - SECOND);
            arrivals.push(start.elapsed());
        }
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
    }
    assert_eq!(times, [0, 20_000_000, 40_000_000, 40_001_000, 60_001_000, 80_001_000, 80_002_000]);
    for (time, arrival) in times.iter().zip(&arrivals) {
        // The queue's clock counts CPU cycles and may differ from the system's clock, here by up to 5 %.
        let latest = arrival.as_nanos() as u64 * 105 / 100;
        assert!(latest >= *time, "the packet of {time} ns was played at {arrival:?}");
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
    // SAFETY: the test holds the packet, which is from this pool.
    assert!(packets.iter().all(|packet| unsafe { pool.meta(packet) }.time_ns == u64::MAX));
    // SAFETY: the packets are from this pool, and are not used again.
    unsafe { pool.free(&packets) };
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
    // SAFETY: the packets are from this pool, and are not used again.
    unsafe { pool.free(&packets[..2]) };
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
    assert_eq!(found[2..4], found[..2], "the second lap repeats the timestamps");
    assert!(found.iter().all(|&time| time <= writer::MAX_TIME_NS));
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
