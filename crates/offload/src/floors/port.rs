//! The floors of the stages of a port: a frame of the same length that crosses the same kind of port, between two threads that do nothing
//! else.

use super::{FIRST, Floor, Measured, WARM_UP, Wait, in_two_threads};
use crate::card::CardSettings;
use crate::error::Result;
use crate::host::link::Link;
use crate::stack::card::message::{Kind, Message};
use crate::stack::network::{BUFFERS, Network};
use crate::trace::{Hop, POINTS, Place, Point, Recorder, Stage, Step, Times, passage, ticks};
use inlane_core::clock::Clock;
use inlane_ports::spec::PortSpec;
use inlane_ports::wrap::fault::Faults;
use inlane_wire::{Mac, ethernet, ipv4, tcp};
use std::sync::Arc;
use std::time::Duration;

/// The bytes of a message.
const BYTES: usize = 4;

/// The floors of a link.
#[derive(Clone, Debug)]
pub struct FloorsOfPort {
    /// The floors of data movement, the sender's port, the wire, and the receiver's port.
    pub stages: Vec<Floor>,
    /// The times from the written frame to the received one: those of both ports and the wire together. `None` if the port has no
    /// memory of its own for frames.
    pub passage: Option<Times>,
}

/// Measures the four stages of a frame on a link. `ports` are the ends of the link: that of the sender, which runs on the first core,
/// and that of the receiver.
///
/// # Errors
/// If a port cannot be opened or fails, or a thread may not use its core or is not run.
pub fn of_port(
    clock: &Clock,
    hop: Hop,
    ports: &[PortSpec; 2],
    cores: Option<[usize; 2]>,
    count: usize,
) -> Result<FloorsOfPort> {
    let places = [Place { from: None, to: Some(hop) }, Place { from: Some(hop), to: None }];
    let recorders = places.map(|place| Recorder::new(clock, place, FIRST, count));
    let numbers = || (0..(WARM_UP + count) as u32).map(|index| (FIRST - WARM_UP as u32).wrapping_add(index));
    let send = || {
        let mut end = End::open(&ports[0], clock, &recorders[0], hop)?;
        for number in numbers() {
            end.send(number)?;
            end.receive(!number)?;
        }
        Ok(end)
    };
    let answer = || {
        let mut end = End::open(&ports[1], clock, &recorders[1], hop)?;
        for number in numbers() {
            end.receive(number)?;
            end.send(!number)?;
        }
        Ok(end)
    };
    let (sender, receiver) = in_two_threads(cores, send, answer)?;
    // Both ends are closed at the same time, so none warns that its peer is gone.
    std::thread::scope(|scope| {
        scope.spawn(|| sender.close());
        receiver.close();
    });
    let steps = [Step::Written, Step::Flushed, Step::Polled, Step::Received];
    let index = |step: Step| Point::At(hop, step).index();
    let ways = (0..count).filter_map(|message| {
        let mut way = [None; POINTS];
        recorders.iter().for_each(|recorder| recorder.add_to(&mut way, message));
        way[Point::Called.index()] = way[index(Step::Begun)];
        way[Point::Read.index()] = way[index(Step::Received)];
        ticks(&way)
    });
    let ways: Vec<_> = ways.collect();
    let floor = |step: Step| {
        // A stage ends at the point behind it.
        let stage = index(step) - 1;
        let ticks = ways.iter().filter_map(|stages| stages[stage]).collect();
        let times = Times::of(clock, ticks)?;
        Some(Floor { stage: Stage::ALL[stage], measured: Measured::PortAlone, times })
    };
    let passages = ways.iter().filter_map(|stages| passage(stages, hop)).collect();
    Ok(FloorsOfPort {
        stages: steps.into_iter().filter_map(floor).collect(),
        passage: Times::of(clock, passages),
    })
}

/// An end of the link.
struct End {
    link: Link,
    network: Network,
    /// The frame, whose last bytes are the number.
    frame: Vec<u8>,
    wait: Wait,
}

impl End {
    fn open(port: &PortSpec, clock: &Clock, recorder: &Arc<Recorder>, hop: Hop) -> Result<Self> {
        let settings = CardSettings {
            port: port.clone(),
            engine: port.clone(),
            mtu: None,
            mac: None,
            core: None,
            spin: Duration::MAX,
            faults: Faults::default(),
        };
        let settings = settings.of_port(port, None, Faults::default());
        let (link, network) = Link::open(&settings, clock, BUFFERS, Some(recorder))?.swap_remove(0);
        Ok(Self { link, network, frame: frame(hop), wait: Wait::new() })
    }

    fn send(&mut self, number: u32) -> Result<()> {
        let at = self.frame.len() - BYTES;
        self.frame[at..].copy_from_slice(&number.to_be_bytes());
        while !self.network.send_raw(&self.frame, None) {
            self.network.flush();
            self.wait.polled()?;
        }
        self.network.flush();
        Ok(())
    }

    fn receive(&mut self, number: u32) -> Result<()> {
        let mut is_found = false;
        loop {
            self.link.rx.receive_in_place(1, &mut |address, len| {
                if let Some(at) = len.checked_sub(BYTES) {
                    // SAFETY: the queue keeps the frame readable during this call. The bytes are only compared.
                    let bytes = unsafe { address.add(at).cast::<[u8; BYTES]>().read() };
                    is_found |= u32::from_be_bytes(bytes) == number;
                }
                true
            })?;
            if is_found {
                return Ok(());
            }
            self.wait.polled()?;
        }
    }

    fn close(mut self) {
        self.network.free_packets();
        self.link.stop_port();
    }
}

/// Returns a frame as a message has on this link, with an empty number.
fn frame(hop: Hop) -> Vec<u8> {
    match hop {
        Hop::Network => {
            /// The padded time stamps, which each segment of a connection has.
            const OPTIONS: usize = 12;
            let mut bytes = vec![0; ethernet::HEADER + ipv4::HEADER + tcp::HEADER + OPTIONS + BYTES];
            // The frame is longer than its headers, so none of this can fail.
            if let Ok(mut packet) = ipv4::Packet::init(&mut bytes[ethernet::HEADER..]) {
                packet.set_protocol(ipv4::TCP);
                let _ = tcp::Segment::init_with_options(packet.payload_mut(), &[1; OPTIONS]);
            }
            bytes
        }
        Hop::ToCard | Hop::FromCard => {
            let message = Message { length: BYTES as u32, ..Message::new(Kind::Stream, 1) };
            [&message.encode(Mac::default())[..], &[0; BYTES]].concat()
        }
    }
}
