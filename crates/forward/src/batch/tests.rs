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
    let mut receiver = receiver("pcap:/nonexistent/file.pcap", "io", 8).unwrap();
    let error = receiver.next_within(SOON).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/file.pcap"), "{error}");
    assert!(receiver.next_within(SOON).unwrap().is_none());
    let mut sender = sender("pcap:/nonexistent/out.pcap").unwrap();
    let error = (0..1000)
        .find_map(|_| sender.send_within(batch(&[&[0; 60]]), SOON).err())
        .expect("it fails")
        .to_string();
    assert!(error.contains("/nonexistent/out.pcap"), "{error}");
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
