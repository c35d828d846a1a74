//! Tests of capture sinks, and of copies from source to sink.

use super::*;

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
        // The sink writes its own snap length. All other bytes must be equal.
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
    assert!(error.contains("cannot be written") && error.contains("free some space"), "{error}");
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
    // SAFETY: the test holds the packet, which is from this pool.
    unsafe { pool.set_meta(&packets[0], PacketMeta { time_ns: 1, wire_length: 9, interface: 3 }) };
    // SAFETY: the packets are from this queue's pool, and are not used again.
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
    // Conversion to another format or resolution must keep the packets.
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
        // SAFETY: the packets are from this pool, and are not used again.
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
            // SAFETY: the packets are from this pool.
            let sent = unsafe { tx.send(&packets[..count]) }.unwrap();
            // SAFETY: the unsent packets still belong to the test, and are not used again.
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
    // SAFETY: the packets are from this pool, and are not used again.
    assert_eq!(unsafe { tx.send(&packets) }.unwrap(), 3);
    let mut asked = 0;
    let outcome = tx.finish(&mut || {
        asked += 1;
        asked < 3
    });
    assert!(outcome.unwrap_err().to_string().contains("no process opened it for reading"));
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
