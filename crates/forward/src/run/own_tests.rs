//! Runs with packet functions and ports in Rust.

use super::*;
use crate::config::{CpuMethod, Device, Executor, Method, Route};
use inlane_core::packet::PacketMeta;
use inlane_function::{FunctionPacket, OwnFunction, RustFunction, Verdict};
use inlane_ports::own::{FrameSink, FrameSource, NextFrame};
use inlane_ports::spec::PortSpec;
use std::sync::{Arc, Mutex};

/// Gives 300 frames of 64 bytes, whose bytes are 0, 1 or 2.
struct Numbered(u8, u32);

impl FrameSource for Numbered {
    fn next(&mut self, buffer: &mut [u8]) -> inlane_core::Result<NextFrame> {
        if self.1 == 300 {
            return Ok(NextFrame::End);
        }
        buffer[..64].fill((self.1 % 3) as u8 + self.0);
        self.1 += 1;
        Ok(NextFrame::Frame(64))
    }
}

type Kept = Arc<Mutex<Vec<Vec<u8>>>>;

struct Keep(Kept);

impl FrameSink for Keep {
    fn take(&mut self, frame: &[u8], _: &PacketMeta) -> inlane_core::Result<bool> {
        self.0.lock().unwrap().push(frame.to_vec());
        Ok(true)
    }
}

/// Drops frames of 0, doubles the length of frames of 1, and sends frames of 2 to port 1. Panics on others.
struct Sort;

impl RustFunction for Sort {
    fn process(&mut self, packet: &mut FunctionPacket<'_>) -> Verdict {
        match packet.bytes()[0] {
            0 => Verdict::Drop,
            1 => {
                assert!(packet.set_length(128) && !packet.set_length(1 << 20));
                packet.bytes_mut()[64..].fill(9);
                Verdict::Forward
            }
            2 => Verdict::Port(1),
            _ => panic!("an unknown frame"),
        }
    }
}

fn config(first: u8) -> (Config, [Kept; 2]) {
    let kept = [Kept::default(), Kept::default()];
    let tx = kept.iter().map(|kept| PortSpec::to_sink("kept", Keep(kept.clone()))).collect();
    let mut config =
        Config::new(Route::OneWay { rx: PortSpec::from_source("numbered", Numbered(first, 0)), tx });
    config.function = OwnFunction::new("sort", || Sort).into();
    config.cores = Some(Vec::new());
    (config, kept)
}

fn run_it(config: &Config) -> Result<RunOutcome> {
    run(config, &Control::default(), &mut |_, _| ())
}

#[test]
fn a_function_in_rust_changes_drops_and_directs_packets() {
    for method in [CpuMethod::Single, CpuMethod::Split { workers: 2 }] {
        let (mut config, kept) = config(0);
        config.executor = Executor::Cpu(method);
        let outcome = run_it(&config).unwrap();
        assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
        let [grown, directed] = kept.map(|kept| std::mem::take(&mut *kept.lock().unwrap()));
        assert_eq!((grown.len(), directed.len()), (100, 100), "{method:?}");
        assert!(grown.iter().all(|frame| frame[..] == [[1; 64], [9; 64]].concat()));
        assert!(directed.iter().all(|frame| frame[..] == [2; 64]));
        assert_eq!((outcome.result.tx.packets, outcome.result.leaked_buffers), (200, 0));
    }
}

#[test]
fn a_panic_of_the_function_ends_the_run_with_an_error() {
    let (config, _) = config(3);
    let outcome = run_it(&config).unwrap();
    let errors: Vec<_> = outcome.errors.iter().map(ToString::to_string).collect();
    assert!(errors.iter().any(|error| error.contains("an unknown frame")), "{errors:?}");
    assert_eq!(outcome.result.leaked_buffers, 0);
}

#[test]
fn a_function_in_rust_is_refused_on_a_gpu() {
    let (mut config, _) = config(0);
    config.executor = Executor::new(Device::Gpu(0), Method::Single, 0, Default::default()).unwrap();
    let refused = run_it(&config).err().unwrap().to_string();
    assert!(refused.contains("sort is a function in Rust, which runs on the CPU only"), "{refused}");
}

/// Drops packets of flow 1 and pushes four bytes in front of the others.
struct PushOrDrop;

impl RustFunction for PushOrDrop {
    fn process(&mut self, packet: &mut FunctionPacket<'_>) -> Verdict {
        let length = packet.bytes().len();
        let flow = packet.bytes()[length - 15];
        if flow == 1 {
            return Verdict::Drop;
        }
        assert!(packet.set_length(length + 4));
        packet.bytes_mut().copy_within(..length, 4);
        Verdict::Forward
    }
}

#[test]
fn a_checker_counts_the_packets_of_a_function_without_a_reference() {
    let mut config = Config::new(Route::one_way("gen:64,flows=3,packets=600", ["check"]).unwrap());
    config.cores = Some(Vec::new());
    config.function = OwnFunction::new("push-or-drop", || PushOrDrop).into();
    let outcome = run_it(&config).unwrap();
    let found = outcome.result.verification.unwrap();
    assert_eq!(outcome.result.dropped_verdict, 200);
    assert!(found.passed(), "{found:?}");
    assert_eq!((found.expected, found.checked), (Some(400), 400));
    assert!(found.method.contains("the function has no reference"), "{}", found.method);
    assert!(outcome.result.latency.is_some());
    config.faults = Some("drop=10%:1,seed=3".into());
    let found = run_it(&config).unwrap().result.verification.unwrap();
    assert!(found.lost > 0 && found.altered == 0, "{found:?}");
    config.faults = None;
    config.route = Route::one_way("gen:64,packets=600", ["check", "null"]).unwrap();
    let refused = run_it(&config).err().unwrap().to_string();
    assert!(refused.contains("some of its packets go to null"), "{refused}");
}

#[test]
fn a_reference_of_the_users_finds_wrong_bytes_and_verdicts() {
    let mut config = Config::new(Route::one_way("gen:64,flows=3,packets=600", ["check"]).unwrap());
    config.cores = Some(Vec::new());
    config.function = OwnFunction::new("push-or-drop", || PushOrDrop).into();
    for (reference, altered, lost) in [("io", 400, 200), ("drop-rule:all", 400, 0)] {
        config.reference = Some(reference.into());
        let found = run_it(&config).unwrap().result.verification.unwrap();
        assert_eq!((found.altered, found.lost), (altered, lost), "{reference}: {found:?}");
    }
    config.reference = Some("nothing".into());
    assert!(run_it(&config).err().unwrap().to_string().contains("there is no such packet function"));
    config.route = Route::one_way("gen:64", ["null"]).unwrap();
    config.reference = Some("io".into());
    assert!(run_it(&config).err().unwrap().to_string().contains("nothing compares packets with it"));
}
