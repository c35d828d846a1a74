//! The floors of the stages in which engines and cards process a message: the least work of each, with frames in memory, on one thread.

use super::{FIRST, Floor, Measured, WARM_UP};
use crate::error::{Error, Result};
use crate::host::memory::allocate_ring;
use crate::stack::card::message::{HEADER, Kind, Message};
use crate::stack::packet::{Headers, MOST_HEAD};
use crate::stack::ring::ByteRing;
use crate::trace::{
    Hop, Observer, POINTS, Place, Point, Recorder, Stage, Stages, Step, Times, TracedRx, TracedTx, ticks,
};
use inlane_core::clock::Clock;
use inlane_core::packet::Packet;
use inlane_core::port::{Counters, Reservation, Rx, Tx};
use inlane_tcp::{
    Config, Connection, Ecn, Flow, Listener, ReceiveBuffer, Secrets, Segment, Transmit, Verdict,
};
use inlane_wire::{Mac, ethernet, ipv4};
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of a message.
const BYTES: usize = 4;
/// The length of the longest frame.
const LONGEST: usize = 128;
/// The size of the rings in bytes.
const RING: usize = 1 << 16;
/// The time between two messages, in nanoseconds of TCP's clock.
const BETWEEN_NS: u64 = 10_000;

/// Measures the six stages in which engines and cards process a message. Pins its thread to `core`.
///
/// # Errors
/// If the thread may not use the core, or the system has no memory left.
pub fn in_memory(clock: &Clock, core: Option<usize>, count: usize) -> Result<Vec<Floor>> {
    let run = || -> Result<Vec<Stages>> {
        core.map_or(Ok(()), |core| crate::host::pin(&[core], 0))?;
        let mut bench = Bench::new(clock, count)?;
        (0..WARM_UP + count).try_for_each(|_| bench.pass())?;
        Ok(bench.stages)
    };
    let ways = std::thread::scope(|scope| scope.spawn(run).join());
    let ways: Vec<_> = ways.map_err(|_| Error::Panicked { thread: 0 })??;
    let of = |hop, step| Point::At(hop, step).index();
    let measured = [
        (of(Hop::ToCard, Step::Begun), Measured::MessageHeader),
        (of(Hop::ToCard, Step::Processed), Measured::MessagePlacement),
        (of(Hop::Network, Step::Begun), Measured::TcpHeader),
        (of(Hop::Network, Step::Processed), Measured::TcpPlacement),
        (of(Hop::FromCard, Step::Begun), Measured::MessageHeader),
        (of(Hop::FromCard, Step::Processed), Measured::MessagePlacement),
    ];
    let floor = |(point, measured): (usize, Measured)| {
        // A stage ends at the point behind it.
        let ticks = ways.iter().filter_map(|stages| stages[point - 1]).collect();
        Some(Floor { stage: Stage::ALL[point - 1], measured, times: Times::of(clock, ticks)? })
    };
    Ok(measured.into_iter().filter_map(floor).collect())
}

/// A frame in memory. One thread writes it, then reads it.
struct Frame {
    bytes: UnsafeCell<[u8; LONGEST]>,
    len: AtomicUsize,
}

// SAFETY: all queues of a bench are on one thread.
unsafe impl Sync for Frame {}
// SAFETY: as above.
unsafe impl Send for Frame {}

impl Frame {
    fn address(&self) -> *mut u8 {
        self.bytes.get().cast()
    }
}

struct MemoryTx {
    frame: Arc<Frame>,
    reserved: usize,
}

// SAFETY: no packet is sent.
unsafe impl Tx for MemoryTx {
    unsafe fn send(&mut self, _: &[Packet]) -> inlane_core::Result<usize> {
        Ok(0)
    }

    fn reserve(&mut self, len: usize) -> Reservation {
        self.reserved = len;
        match NonNull::new(self.frame.address()).filter(|_| len <= LONGEST) {
            Some(memory) => Reservation::Memory(memory),
            None => Reservation::Unsupported,
        }
    }

    fn commit(&mut self) {
        self.frame.len.store(self.reserved, Ordering::Relaxed);
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

struct MemoryRx(Arc<Frame>);

// SAFETY: no packet is received.
unsafe impl Rx for MemoryRx {
    fn receive(&mut self, _: &mut [Packet]) -> inlane_core::Result<usize> {
        Ok(0)
    }

    fn receive_in_place(
        &mut self,
        _: usize,
        visit: &mut dyn FnMut(*const u8, usize) -> bool,
    ) -> inlane_core::Result<Option<usize>> {
        visit(self.0.address(), self.0.len.load(Ordering::Relaxed));
        Ok(Some(1))
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// A link in memory, with the wrappers of a traced port.
struct Link {
    tx: TracedTx,
    rx: TracedRx,
}

impl Link {
    fn new(sender: &Arc<Recorder>, receiver: &Arc<Recorder>) -> Self {
        let frame = Arc::new(Frame { bytes: UnsafeCell::new([0; LONGEST]), len: AtomicUsize::new(0) });
        let tx = MemoryTx { frame: frame.clone(), reserved: 0 };
        let tx = TracedTx::new(Box::new(tx), sender.clone());
        Self { tx, rx: TracedRx::new(Box::new(MemoryRx(frame)), receiver.clone()) }
    }

    fn send(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> Result<()> {
        if let Reservation::Memory(memory) = self.tx.reserve(len) {
            // SAFETY: the queue has reserved the memory, and nothing reads it before the frame is committed.
            write(unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), len) });
            self.tx.commit();
        }
        Ok(self.tx.flush()?)
    }

    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> Result<()> {
        self.rx.receive_in_place(1, &mut |address, len| {
            // SAFETY: the frame has as many bytes, and nothing writes it during this call.
            take(unsafe { std::slice::from_raw_parts(address, len) });
            true
        })?;
        Ok(())
    }
}

/// Passes messages through an engine, two cards and an engine that do only the least work of each stage.
struct Bench {
    clock: Clock,
    now: u64,
    /// Of the sending engine, the receiving engine, the sending engine's card, and the other card.
    recorders: [Arc<Recorder>; 4],
    to_card: Link,
    network: Link,
    from_card: Link,
    flow: Flow,
    /// TCP at the sending engine's card, and at the other card.
    sides: [Connection; 2],
    /// The rings into which the cards receive, and two into which messages are placed.
    rings: [ByteRing; 4],
    /// The number of messages that were passed.
    passed: usize,
    /// The stages of the measured messages.
    stages: Vec<Stages>,
}

impl Bench {
    fn new(clock: &Clock, count: usize) -> Result<Self> {
        let recorders = Place::WITH_CARDS.map(|place| Recorder::new(clock, place, FIRST, count));
        let [sender, receiver, card, other_card] = &recorders;
        let (to_card, network) = (Link::new(sender, card), Link::new(card, other_card));
        let from_card = Link::new(other_card, receiver);
        let ring = || allocate_ring(RING).map(ByteRing::new);
        let rings = [ring(), ring(), ring(), ring()].map(|ring| {
            ring.ok_or_else(|| Error::os("measuring floors")(std::io::ErrorKind::OutOfMemory.into()))
        });
        let [a, b, c, d] = rings;
        let mut rings = [a?, b?, c?, d?];
        let flow = Flow {
            local: (Ipv4Addr::new(10, 79, 0, 1), 40000).into(),
            remote: (Ipv4Addr::new(10, 79, 0, 2), 80).into(),
        };
        let sides = connected(&flow, &mut rings[0])?;
        let (clock, stages) = (clock.clone(), Vec::with_capacity(count));
        Ok(Self {
            clock,
            now: 0,
            recorders,
            to_card,
            network,
            from_card,
            flow,
            sides,
            rings,
            passed: 0,
            stages,
        })
    }

    /// Passes one message, and the answer.
    fn pass(&mut self) -> Result<()> {
        let Self { recorders, to_card, network, from_card, sides: [near, far], rings, now, .. } = self;
        let [sender, receiver, card, other_card] = recorders;
        let [near_ring, far_ring, first, last] = rings;
        let (position, number) = (
            (self.passed * BYTES) as u64,
            FIRST.wrapping_add(self.passed as u32).wrapping_sub(WARM_UP as u32),
        );
        let bytes = number.to_be_bytes();
        *now += BETWEEN_NS;
        let message = Message { length: BYTES as u32, position, ..Message::new(Kind::Stream, 1) };
        let called = self.clock.raw();
        sender.asked(true);
        let head = black_box(message).encode(Mac::default());
        to_card.send(HEADER + BYTES, |frame| fill(frame, &head, &bytes))?;
        to_card.receive(|frame| place(frame, first))?;
        card.processed();
        near.set_written(position + BYTES as u64)?;
        let transmit = near.poll_transmit(*now);
        let len = transmit.as_ref().map_or(0, |it| headers_len(it) + BYTES);
        network.send(len, |frame| write_segment(frame, transmit.as_ref(), &self.flow, &bytes))?;
        network.receive(|frame| {
            let mut head = [0; MOST_HEAD];
            let head = &mut head[..frame.len().min(MOST_HEAD)];
            head.copy_from_slice(&frame[..head.len()]);
            if let Some(Headers { segment, payload, .. }) = Headers::parse(head) {
                far.on_segment(*now, &Segment { payload: &frame[payload], ..segment }, far_ring);
            }
        })?;
        other_card.processed();
        let head = black_box(message).encode(Mac::default());
        from_card.send(HEADER + BYTES, |frame| fill(frame, &head, &bytes))?;
        from_card.receive(|frame| place(frame, last))?;
        receiver.processed();
        let read = self.clock.raw();
        // The answer, which acknowledges the message.
        far.set_consumed(position + BYTES as u64)?;
        far.set_written(position + BYTES as u64)?;
        if let Some(Transmit { header, .. }) = far.poll_transmit(*now) {
            near.on_segment(*now, &Segment { header, payload: &bytes, ecn: Ecn::NotEct }, near_ring);
            near.set_consumed(near.received())?;
        }
        if let Some(index) = self.passed.checked_sub(WARM_UP) {
            let mut way = [None; POINTS];
            recorders.iter().for_each(|recorder| recorder.add_to(&mut way, index));
            (way[Point::Called.index()], way[Point::Read.index()]) = (Some(called), Some(read));
            self.stages.extend(ticks(&way));
        }
        self.passed += 1;
        Ok(())
    }
}

fn fill(frame: &mut [u8], head: &[u8], bytes: &[u8]) {
    frame[..head.len()].copy_from_slice(head);
    frame[head.len()..].copy_from_slice(bytes);
}

/// Checks a message, and copies its bytes to a ring.
fn place(frame: &[u8], ring: &mut ByteRing) {
    let mut head = [0; HEADER];
    head.copy_from_slice(&frame[..HEADER]);
    if let Some(message) = Message::decode(black_box(&head), frame.len()) {
        ring.write(message.position, &frame[HEADER..][..message.length as usize]);
    }
}

fn headers_len(transmit: &Transmit) -> usize {
    ethernet::HEADER + ipv4::HEADER + transmit.header.wire_len()
}

/// Writes the frame of a segment.
fn write_segment(frame: &mut [u8], transmit: Option<&Transmit>, flow: &Flow, bytes: &[u8]) {
    let Some(transmit) = transmit else { return };
    let len = headers_len(transmit);
    frame[len..].copy_from_slice(bytes);
    frame[12..14].copy_from_slice(&[8, 0]); // IPv4
    // The frame has the length of its headers, so none of this can fail.
    if let Ok(mut packet) = ipv4::Packet::init(&mut frame[ethernet::HEADER..]) {
        packet.set_protocol(ipv4::TCP);
        packet.set_source(Ipv4Addr::new(10, 79, 0, 1));
        packet.set_destination(Ipv4Addr::new(10, 79, 0, 2));
        packet.set_total_length((len - ethernet::HEADER + bytes.len()) as u16);
        packet.fill_checksum();
        let ports = (flow.local.port(), flow.remote.port());
        let _ = transmit.header.write(ports.0, ports.1, packet.payload_mut());
    }
}

/// Returns the two ends of a connection: the one that opened it, and the one that accepted it.
fn connected(flow: &Flow, ring: &mut ByteRing) -> Result<[Connection; 2]> {
    let config = Config {
        send_capacity: RING as u32,
        receive_capacity: RING as u32,
        no_delay: true,
        ..Config::default()
    };
    let reverse = Flow { local: flow.remote, remote: flow.local };
    let secrets = Secrets::new([1; 16]);
    let mut listener = Listener::new(&config, Secrets::new([2; 16]), 1)?;
    let mut opening = Connection::connect(0, &config, secrets.start(0, flow))?;
    let mut handshake = None;
    while let Some(Transmit { header, .. }) = opening.poll_transmit(0) {
        match listener.on_segment(0, &reverse, &Segment { header, payload: &[], ecn: Ecn::NotEct }, None) {
            Verdict::Reply(header) => {
                opening.on_segment(0, &Segment { header, payload: &[], ecn: Ecn::NotEct }, ring);
            }
            Verdict::Established(established) => {
                handshake = Some(established);
                break;
            }
            _ => break,
        }
    }
    let handshake =
        handshake.ok_or_else(|| Error::os("measuring floors")(std::io::ErrorKind::NotConnected.into()))?;
    Ok([opening, Connection::accept(0, &config, &handshake)?])
}
