//! Forwards packets from a port of this program through a packet function of this program to another port of this program:
//!
//! ```text
//! cargo run --example library-forward
//! ```
//!
//! The function counts packets by protocol and drops what is neither IPv4 nor IPv6. In a real program, the source reads a
//! device or a queue that inlane does not have. For a capture, use `PortSpec::parse("pcap:FILE")` in its place.

use inlane_core::Result;
use inlane_core::packet::PacketMeta;
use inlane_forward::config::{Config, Route};
use inlane_function::report::Counter;
use inlane_function::{FunctionPacket, FunctionReport, OwnFunction, RustFunction, Verdict};
use inlane_ports::own::{FrameSink, FrameSource, NextFrame};
use inlane_ports::spec::PortSpec;
use std::sync::{Arc, Mutex};

// ANCHOR: port
/// Gives the frames of a list.
struct Frames(std::vec::IntoIter<Vec<u8>>);

impl FrameSource for Frames {
    fn next(&mut self, buffer: &mut [u8]) -> Result<NextFrame> {
        Ok(match self.0.next() {
            Some(frame) => {
                buffer[..frame.len()].copy_from_slice(&frame);
                NextFrame::Frame(frame.len())
            }
            None => NextFrame::End,
        })
    }
}

/// Adds up the bytes of the frames that arrive.
struct Bytes(Arc<Mutex<usize>>);

impl FrameSink for Bytes {
    fn take(&mut self, frame: &[u8], _: &PacketMeta) -> Result<bool> {
        *self.0.lock().expect("no thread panics here") += frame.len();
        Ok(true)
    }
}

// ANCHOR_END: port

// ANCHOR: function
/// Counts packets by protocol.
#[derive(Default)]
struct Protocols {
    ipv4: u64,
    ipv6: u64,
}

impl RustFunction for Protocols {
    fn process(&mut self, packet: &mut FunctionPacket<'_>) -> Verdict {
        match packet.bytes().get(12..14) {
            Some([0x08, 0x00]) => self.ipv4 += 1,
            Some([0x86, 0xdd]) => self.ipv6 += 1,
            _ => return Verdict::Drop,
        }
        Verdict::Forward
    }

    fn report(&self) -> FunctionReport {
        let counter = |name: &str, value| Counter { name: name.into(), value };
        let counters = vec![counter("ipv4_packets", self.ipv4), counter("ipv6_packets", self.ipv6)];
        FunctionReport { counters, tables: Vec::new() }
    }
}

// ANCHOR_END: function

/// Returns a frame of 64 bytes with this EtherType.
fn frame(ethertype: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let frames: Vec<_> = [0x0800, 0x86dd, 0x0806, 0x0800].repeat(250).into_iter().map(frame).collect();
    let bytes = Arc::default();
    // ANCHOR: run
    let mut config = Config::new(Route::OneWay {
        rx: PortSpec::from_source("my source", Frames(frames.into_iter())),
        tx: vec![PortSpec::to_sink("my sink", Bytes(Arc::clone(&bytes)))],
    });
    config.function = OwnFunction::new("protocols", Protocols::default).into();

    let measured = inlane_forward::measure(&config)?;
    if let Some(failure) = measured.failure {
        return Err(failure.into());
    }
    let result = &measured.results[0];
    println!("{} packets received, {} sent", result.rx.packets, result.tx.packets);
    println!("{} bytes arrived", *bytes.lock().expect("no thread panics here"));
    for counter in result.function.iter().flat_map(|report| &report.counters) {
        println!("the function counted {} {}", counter.value, counter.name);
    }
    // ANCHOR_END: run
    assert_eq!((result.rx.packets, result.tx.packets), (1000, 750));
    Ok(())
}

#[test]
fn the_example_runs() {
    main().expect("the example runs");
}
