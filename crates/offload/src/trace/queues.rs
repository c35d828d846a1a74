//! Wrappers around the queues of a port that record when frames with messages pass.

use super::{FOUND, Recorder, Step};
use crate::stack::card::message::{HEADER, Kind, Message};
use inlane_core::packet::Packet;
use inlane_core::port::{Counters, Reservation, Rx, Tx};
use inlane_wire::{ethernet, ipv4, roce, tcp, udp};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The longest frame that can carry a message.
const LONGEST: usize = 128;

/// Returns the number of the message that a frame carries: the payload of 4 bytes of a TCP segment, of an RDMA packet, or of a message
/// between an engine and its card.
pub(super) fn number(frame: &[u8]) -> Option<u32> {
    if let Some(message) = Message::decode(frame, frame.len()) {
        let payload = frame.get(HEADER..)?.get(..message.length as usize)?;
        let number = (message.kind == Kind::Stream).then_some(payload)?;
        return Some(u32::from_be_bytes(number.try_into().ok()?));
    }
    let packet = ipv4::Packet::new(frame.get(ethernet::HEADER..)?).ok()?;
    let payload = match packet.protocol() {
        ipv4::TCP => {
            let segment = tcp::Segment::new(packet.payload()).ok()?;
            <[u8; 4]>::try_from(segment.payload()).ok()?
        }
        ipv4::UDP => {
            let datagram = udp::Datagram::new(packet.payload()).ok()?;
            let bth = roce::Bth::new(datagram.payload()).ok()?;
            let data = datagram.payload().get(inlane_rdma::data_headers(bth.opcode())?..)?;
            <[u8; 4]>::try_from(data.strip_suffix(data.last_chunk::<{ roce::ICRC }>()?)?).ok()?
        }
        _ => return None,
    };
    Some(u32::from_be_bytes(payload))
}

/// Returns the message that a frame in shared memory carries.
///
/// # Safety
/// `len` bytes at `address` are readable.
unsafe fn message_at(recorder: &Recorder, address: *const u8, len: usize) -> Option<usize> {
    let mut copy = [0; LONGEST];
    let frame = copy.get_mut(..len)?;
    // SAFETY: the caller promises the bytes.
    unsafe { frame.as_mut_ptr().copy_from_nonoverlapping(address, len) };
    recorder.message_of(frame)
}

/// A transmit queue that records messages.
pub(crate) struct TracedTx {
    inner: Box<dyn Tx>,
    recorder: Arc<Recorder>,
    /// The reserved memory, its length, and when it was reserved.
    reserved: Option<(NonNull<u8>, usize, u64)>,
    /// The message whose frame was written and not flushed yet.
    written: Option<usize>,
}

impl TracedTx {
    /// Wraps a queue.
    pub fn new(inner: Box<dyn Tx>, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder, reserved: None, written: None }
    }

    fn on_written(&mut self, index: usize, begun: Option<u64>, written: u64) {
        let recorder = &self.recorder;
        recorder.record(index, FOUND, recorder.found.load(Ordering::Relaxed));
        if let Some(begun) = begun {
            recorder.record(index, Step::Begun as usize, begun);
        }
        recorder.record(index, Step::Written as usize, written);
        self.written = Some(index);
    }
}

// SAFETY: the reserved memory is only read, before the reservation ends. The inner queue is `Send`.
unsafe impl Send for TracedTx {}

// SAFETY: the inner queue keeps what this trait requires, and packets are passed on unchanged.
unsafe impl Tx for TracedTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> inlane_core::Result<usize> {
        let now = self.recorder.clock.raw();
        for packet in packets {
            // SAFETY: the caller holds the packet, and nothing writes it.
            if let Some(index) = self.recorder.message_of(unsafe { packet.bytes() }) {
                self.on_written(index, None, now);
            }
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { self.inner.send(packets) }
    }

    fn reserve(&mut self, len: usize) -> Reservation {
        let now = self.recorder.clock.raw();
        let reservation = self.inner.reserve(len);
        self.reserved = match reservation {
            Reservation::Memory(memory) => Some((memory, len, now)),
            _ => None,
        };
        reservation
    }

    fn commit(&mut self) {
        let now = self.recorder.clock.raw();
        if let Some((memory, len, begun)) = self.reserved.take() {
            // SAFETY: the memory is reserved until the frame is committed.
            if let Some(index) = unsafe { message_at(&self.recorder, memory.as_ptr(), len) } {
                self.on_written(index, Some(begun), now);
            }
        }
        self.inner.commit();
    }

    fn flush(&mut self) -> inlane_core::Result<()> {
        let outcome = self.inner.flush();
        if let Some(written) = self.written.take() {
            self.recorder.record(written, Step::Flushed as usize, self.recorder.clock.raw());
        }
        outcome
    }

    fn finish(&mut self, keep_waiting: &mut dyn FnMut() -> bool) -> inlane_core::Result<()> {
        self.inner.finish(keep_waiting)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// A receive queue that records messages.
pub(crate) struct TracedRx {
    inner: Box<dyn Rx>,
    recorder: Arc<Recorder>,
}

impl TracedRx {
    /// Wraps a queue.
    pub fn new(inner: Box<dyn Rx>, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder }
    }
}

impl Recorder {
    /// Records that the frame of message `index` was received. The engine or card asked for frames at the time `polled`.
    fn on_received(&self, index: usize, polled: u64, received: u64) {
        // A frame that the stack does not take in place is received a second time, as a packet.
        if self.received.swap(index, Ordering::Relaxed) != index {
            self.record(index, Step::Polled as usize, polled);
        }
        self.record(index, Step::Received as usize, received);
    }
}

// SAFETY: the inner queue keeps what this trait requires, and packets are passed on unchanged.
unsafe impl Rx for TracedRx {
    fn receive(&mut self, packets: &mut [Packet]) -> inlane_core::Result<usize> {
        let polled = self.recorder.clock.raw();
        let count = self.inner.receive(packets)?;
        if count > 0 {
            let received = self.recorder.clock.raw();
            for packet in &packets[..count] {
                // SAFETY: the packet was received, and nothing else uses it.
                if let Some(index) = self.recorder.message_of(unsafe { packet.bytes() }) {
                    self.recorder.on_received(index, polled, received);
                }
            }
        }
        Ok(count)
    }

    fn receive_in_place(
        &mut self,
        most: usize,
        visit: &mut dyn FnMut(*const u8, usize) -> bool,
    ) -> inlane_core::Result<Option<usize>> {
        let recorder = &self.recorder;
        let polled = recorder.clock.raw();
        self.inner.receive_in_place(most, &mut |address, len| {
            let received = recorder.clock.raw();
            // SAFETY: the queue keeps the frame readable during this call.
            if let Some(index) = unsafe { message_at(recorder, address, len) } {
                recorder.on_received(index, polled, received);
            }
            visit(address, len)
        })
    }

    fn begin_sleep(&mut self) -> bool {
        self.inner.begin_sleep()
    }

    fn end_sleep(&mut self) {
        self.inner.end_sleep();
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
