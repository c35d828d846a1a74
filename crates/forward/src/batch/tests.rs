use super::*;
use crate::config::Route;
use inlane_ports::spec::PortSpec;

const SOON: Duration = Duration::from_secs(20);

fn receiver(rx: &str, function: &str, frames: usize) -> Result<BatchReceiver> {
    let mut config = Config::new(Route::OneWay { rx: PortSpec::parse(rx)?, tx: Vec::new() });
    config.cores = Some(Vec::new());
    config.function = function.into();
    BatchReceiver::start(config, ReceiveSettings { frames, wait: Duration::from_millis(1) })
}

fn sender(tx: &str) -> Result<BatchSender> {
    BatchSender::start(vec![PortSpec::parse(tx)?], |route| {
        let mut config = Config::new(route);
        config.cores = Some(Vec::new());
        config
    })
}

fn batch(frames: &[&[u8]]) -> FrameBatch {
    let mut batch = FrameBatch::default();
    frames.iter().for_each(|frame| batch.push(frame, 7));
    batch
}

#[test]
fn all_frames_of_a_port_arrive_and_the_port_waits() {
    let mut receiver = receiver("gen:64,packets=1000", "macswap", 64).unwrap();
    let (mut frames, mut largest) = (0, 0);
    while let Some(batch) = receiver.next_within(SOON).unwrap() {
        assert!(batch.iter().all(|frame| frame.len() == 64) && batch.times_ns.iter().all(|&time| time > 0));
        (frames, largest) = (frames + batch.iter().count(), largest.max(batch.len()));
    }
    assert_eq!((frames, largest), (1000, 64));
    let row = &receiver.measurement().unwrap().results[0];
    assert_eq!((row.rx.packets, row.tx.packets), (1000, 1000));
    assert!(receiver.next_within(SOON).unwrap().is_none(), "also when asked again");
}

#[test]
fn frames_that_are_sent_arrive_in_a_capture_with_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("pcap:{}", folder.path().join("out.pcap").display());
    let mut sender = sender(&file).unwrap();
    let frames: Vec<Vec<u8>> = (0..100).map(|index| vec![index; 60 + index as usize]).collect();
    for part in frames.chunks(7) {
        let mut left = Some(batch(&part.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        while let Some(batch) = left.take() {
            left = sender.send_within(batch, SOON).unwrap();
        }
    }
    assert_eq!(sender.finish().unwrap().results[0].tx.packets, 100);
    let mut receiver = receiver(&file, "io", 1000).unwrap();
    let mut arrived = Vec::new();
    while let Some(batch) = receiver.next_within(SOON).unwrap() {
        arrived.extend(batch.iter().map(<[u8]>::to_vec));
    }
    assert_eq!(arrived, frames);
}

#[test]
fn a_run_that_cannot_start_says_why_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("{}/missing/file.pcap", folder.path().display());
    let mut receiver = receiver(&format!("pcap:{file}"), "io", 8).unwrap();
    let error = receiver.next_within(SOON).unwrap_err().to_string();
    assert!(error.contains(&file), "{error}");
    assert!(receiver.next_within(SOON).unwrap().is_none());
    let mut sender = sender(&format!("pcap:{file}")).unwrap();
    let error = (0..1000)
        .find_map(|_| sender.send_within(batch(&[&[0; 60]]), SOON).err())
        .expect("it fails")
        .to_string();
    assert!(error.contains(&file), "{error}");
}

#[test]
fn a_receiver_can_be_stopped_and_dropped() {
    let mut stopped = receiver("gen:64", "io", 64).unwrap();
    assert!(!stopped.next_within(SOON).unwrap().unwrap().is_empty());
    stopped.stop();
    while stopped.next_within(SOON).unwrap().is_some() {}
    let mut dropped = receiver("gen:64", "io", 64).unwrap();
    dropped.next_within(SOON).unwrap();
    drop(dropped);
}

#[test]
fn wrong_settings_and_frames_are_refused() {
    assert!(receiver("gen:64", "io", 0).is_err());
    let config = Config::new(Route::one_way("gen:64", ["null"]).unwrap());
    assert!(BatchReceiver::start(config, ReceiveSettings::default()).is_err());
    assert!(BatchSender::start(Vec::new(), Config::new).is_err());
    for (broken, expected) in [
        (FrameBatch { ends: vec![9], ..FrameBatch::default() }, "after the last byte"),
        (batch(&[&[0; 5000]]), "5000 bytes"),
    ] {
        let mut sender = sender("null").unwrap();
        sender.send_within(broken, SOON).unwrap();
        let error = sender.finish().err().expect(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn in_place(rx: &str, frames: usize) -> InPlaceReceiver {
    let mut config = Config::new(Route::OneWay { rx: PortSpec::parse(rx).unwrap(), tx: Vec::new() });
    config.cores = Some(Vec::new());
    config.function = "macswap".into();
    InPlaceReceiver::start(config, ReceiveSettings { frames, wait: Duration::from_millis(1) }).unwrap()
}

/// Returns copies of packets, which lie in host memory.
fn copies(packets: &PacketsInPlace) -> Vec<Vec<u8>> {
    let memory = packets.memory();
    let copy = |(offset, length): (u64, u32)| {
        let part = memory.slice(offset as usize, length as usize).expect("packets lie in the memory");
        // SAFETY: the packets are held, so nobody writes to them.
        unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len()) }.to_vec()
    };
    packets.places().map(copy).collect()
}

#[test]
fn packets_in_place_have_the_bytes_of_copies_and_keep_them() {
    let file = concat!("pcap:", env!("CARGO_MANIFEST_DIR"), "/../../examples/capture/mixed.pcap");
    let mut copying = receiver(file, "macswap", 4096).unwrap();
    let mut expected = Vec::new();
    while let Some(batch) = copying.next_within(SOON).unwrap() {
        expected.extend(batch.iter().map(<[u8]>::to_vec));
    }
    let mut placed = in_place(file, 100);
    let mut kept = Vec::new();
    loop {
        match placed.next_within(SOON).unwrap() {
            NextPackets::Packets(packets) => kept.push((copies(&packets), packets)),
            NextPackets::None => {}
            NextPackets::End => break,
        }
    }
    let row = &placed.measurement().unwrap().results[0];
    assert_eq!(
        (row.tx.packets as usize, row.leaked_buffers),
        (expected.len(), 0),
        "held packets are no leak"
    );
    drop(placed);
    assert!(kept.iter().all(|(first, packets)| *first == copies(packets)), "nobody has written to them");
    let all: Vec<_> = kept.iter().flat_map(|(first, _)| first.clone()).collect();
    assert!(all == expected);
}

#[test]
fn a_program_that_holds_packets_makes_the_port_wait() {
    let mut placed = in_place("gen:64,packets=200000", 64);
    let (mut held, mut received) = (Vec::new(), 0);
    // Without a drop, the pool runs empty, and the generator waits.
    while let NextPackets::Packets(packets) = placed.next_within(Duration::from_millis(300)).unwrap() {
        received += packets.len();
        held.push(packets);
    }
    assert!((4 * 64..20_000).contains(&received), "{received}");
    held.clear();
    loop {
        match placed.next_within(SOON).unwrap() {
            NextPackets::Packets(packets) => received += packets.len(),
            NextPackets::None => panic!("nothing came although the buffers are free"),
            NextPackets::End => break,
        }
    }
    assert_eq!(received, 200_000);
    let row = &placed.measurement().unwrap().results[0];
    assert_eq!((row.rx.missed, row.leaked_buffers), (0, 0));
    let running = in_place("gen:64", 64);
    drop(running);
}

#[test]
fn packets_in_place_wait_for_others_only_for_the_given_time() {
    let start = |rx: &str, work: Duration, frames: usize, wait: Duration| {
        let mut config = Config::new(Route::OneWay { rx: PortSpec::parse(rx).unwrap(), tx: Vec::new() });
        (config.cores, config.per_pipeline.work) = (Some(Vec::new()), work);
        InPlaceReceiver::start(config, ReceiveSettings { frames, wait }).unwrap()
    };
    let next = |receiver: &mut InPlaceReceiver| loop {
        match receiver.next_within(SOON).unwrap() {
            NextPackets::Packets(packets) => return packets.len(),
            NextPackets::None => {}
            NextPackets::End => panic!("the port never ends"),
        }
    };
    // A run that mostly waits for packets, and one that always has some.
    for (rx, work) in [("gen:64,rate=1kpps", Duration::ZERO), ("gen:64", Duration::from_micros(200))] {
        let mut placed = start(rx, work, 1 << 16, Duration::from_millis(1));
        let sizes: Vec<_> = (0..3).map(|_| next(&mut placed)).collect();
        assert!(sizes.iter().all(|&size| size < 1 << 16), "{rx}: {sizes:?}");
    }
    let mut patient = start("gen:64,rate=10kpps", Duration::ZERO, 256, SOON);
    assert_eq!(next(&mut patient), 256, "the packets waited for others");
}
