//! The queues of an NTB port.

use super::connection::{Connection, DOORBELL, Word};
use super::link::Shared;
use super::ring::{LONGEST_FRAME, Place, ReceivePosition, Record, SKIP, SendPosition};
use crate::memif::clear_eventfd;
use inlane_core::port::{Counters, Reservation};
use inlane_core::{Packet, Pool, Result, Rx, Tx};
use inlane_ntb::device::Event;
use std::ptr::NonNull;
use std::sync::Arc;

/// The bytes after which a call of [`NtbRx::receive`] gives memory back to the sender and ends. More would leave the cache
/// before they are processed.
const BURST_BYTES: usize = 128 << 10;
/// A sent frame of this length is shown to the reader at once. Shorter frames wait for more or for [`Tx::flush`], because
/// each change of the position costs a store through the window.
const LONG_FRAME: usize = 2048;

/// The connection of a queue, which changes whenever the link goes down or comes up.
struct Current {
    shared: Arc<Shared>,
    /// The number of the link's change after which `connection` was taken.
    change: u64,
    connection: Option<Arc<Connection>>,
}

impl Current {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, change: 0, connection: None }
    }

    /// Ends the connection because the peer broke the protocol.
    #[cold]
    fn break_off(&self, why: &'static str) {
        if self.connection.as_ref().is_some_and(|connection| connection.break_off(why)) {
            self.shared.wake_link();
        }
    }
}

/// A transmit queue.
pub(super) struct NtbTx {
    current: Current,
    position: SendPosition,
    pool: Arc<dyn Pool>,
    /// The place and the length of the reserved frame.
    reserved: Option<(Place, usize)>,
    counters: Counters,
}

impl NtbTx {
    pub(super) fn new(shared: Arc<Shared>, pool: Arc<dyn Pool>) -> Self {
        let position = SendPosition::new(1);
        Self { current: Current::new(shared), position, pool, reserved: None, counters: Counters::default() }
    }

    /// Takes the new connection if the link has changed.
    #[inline]
    fn follow(&mut self) {
        if self.current.shared.change() != self.current.change {
            (self.current.change, self.current.connection) = self.current.shared.current();
            if let Some(connection) = &self.current.connection {
                self.position = SendPosition::new(connection.units_out);
            }
        }
    }

    /// Finds a place for a frame in the peer's ring.
    #[inline]
    fn place(&mut self, length: usize) -> Option<Place> {
        let connection = self.current.connection.as_ref()?;
        match self.position.place(length, |former| connection.load(Word::Read, former)) {
            Ok(place) => place,
            Err(why) => {
                self.current.break_off(why);
                None
            }
        }
    }

    /// Adds the frame that was written at `place`.
    #[inline]
    fn add(&mut self, place: Place, length: usize) {
        if let Some(connection) = &self.current.connection {
            if let Some(skip) = place.skip {
                connection.store_header(skip, SKIP);
            }
            connection.store_header(place.at, length as u64);
            self.position.add(place);
            self.counters.packets += 1;
            self.counters.bytes += length as u64;
        }
    }

    /// Shows the peer all frames in the ring.
    #[inline]
    fn show(&mut self) {
        if let Some(connection) = &self.current.connection
            && let Some(position) = self.position.show()
        {
            connection.show(position);
        }
    }

    /// Copies a packet into the ring, or drops it if the link is down or it is too long. Returns false if the ring is full.
    ///
    /// # Safety
    /// The caller holds the packet, which is from this queue's pool.
    unsafe fn copy(&mut self, packet: &Packet) -> bool {
        // SAFETY: the caller promises what this call requires.
        let length = unsafe { self.pool.length(packet) };
        if self.current.connection.is_none() || !(1..=LONGEST_FRAME).contains(&length) {
            self.counters.errors += 1;
            return true;
        }
        let Some(place) = self.place(length) else { return false };
        if let Some(connection) = &self.current.connection {
            let mut done = 0;
            // SAFETY: the caller promises what this call requires.
            unsafe {
                self.pool.for_each_segment(packet, &mut |address, bytes| {
                    connection.store_frame(place.at, done, address as *const u8, bytes as usize);
                    done += bytes as usize;
                });
            }
        }
        self.add(place, length);
        true
    }
}

// SAFETY: `send` copies or drops packets, and frees exactly those that it returns.
unsafe impl Tx for NtbTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        self.reserved = None;
        self.follow();
        let mut sent = 0;
        // SAFETY: the caller holds these packets of the queue's pool.
        while sent < packets.len() && unsafe { self.copy(&packets[sent]) } {
            sent += 1;
        }
        self.show();
        // SAFETY: the packets were copied or dropped, and the caller does not use them any more.
        unsafe { self.pool.free(&packets[..sent]) };
        Ok(sent)
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Reservation {
        self.reserved = None;
        self.follow();
        if !(1..=LONGEST_FRAME).contains(&len) {
            return Reservation::Unsupported;
        }
        let Some(connection) = &self.current.connection else { return Reservation::Unsupported };
        if connection.frame_out(0).is_none() {
            return Reservation::Unsupported;
        }
        let Some(place) = self.place(len) else {
            self.show();
            return Reservation::Full;
        };
        let address = self.current.connection.as_ref().and_then(|connection| connection.frame_out(place.at));
        match address.and_then(NonNull::new) {
            Some(address) => {
                self.reserved = Some((place, len));
                Reservation::Memory(address)
            }
            None => Reservation::Unsupported,
        }
    }

    #[inline]
    fn commit(&mut self) {
        let (place, length) = self.reserved.take().expect("memory was reserved");
        self.add(place, length);
        if length >= LONG_FRAME {
            self.show();
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.show();
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// A receive queue.
pub(super) struct NtbRx {
    current: Current,
    position: ReceivePosition,
    pool: Arc<dyn Pool>,
    counters: Counters,
}

impl NtbRx {
    pub(super) fn new(shared: Arc<Shared>, pool: Arc<dyn Pool>) -> Self {
        let position = ReceivePosition::new(1);
        Self { current: Current::new(shared), position, pool, counters: Counters::default() }
    }

    /// Takes the new connection if the link has changed. If the link went down, reads the remaining frames first: they are in
    /// this end's own memory, and stay there until the next handshake.
    #[inline]
    fn follow(&mut self) {
        if self.current.shared.change() == self.current.change {
            return;
        }
        let (change, connection) = self.current.shared.current();
        if connection.is_none() && self.has_record() {
            return;
        }
        (self.current.change, self.current.connection) = (change, connection);
        if let Some(connection) = &self.current.connection {
            self.position = ReceivePosition::new(connection.units_in);
        }
    }

    /// Returns true if there is a record.
    #[inline]
    fn has_record(&mut self) -> bool {
        let Some(connection) = &self.current.connection else { return false };
        if connection.broken().is_some() || connection.is_closed() {
            return false;
        }
        match self.position.has_record(|former| connection.load(Word::Sent, former)) {
            Ok(has) => has,
            Err(why) => {
                self.current.break_off(why);
                false
            }
        }
    }

    /// Returns the address and the length of the next frame.
    #[inline]
    fn next_frame(&mut self) -> Option<(*const u8, usize)> {
        while self.has_record() {
            let connection = self.current.connection.as_ref()?;
            let header = connection.load_header(self.position.next());
            match self.position.record(header) {
                Ok(Record::Frame(length)) => {
                    return Some((connection.frame_in(self.position.next()), length));
                }
                Ok(Record::Skipped) => {}
                Err(why) => self.current.break_off(why),
            }
        }
        None
    }

    /// Calls `visit` for up to `most` frames, until it returns false. Returns the number of visited frames.
    #[inline]
    fn visit_frames(&mut self, most: usize, visit: &mut dyn FnMut(*const u8, usize) -> bool) -> usize {
        self.follow();
        let (mut frames, mut bytes) = (0, 0);
        while frames < most && bytes < BURST_BYTES {
            let Some((address, length)) = self.next_frame() else { break };
            if !visit(address, length) {
                break;
            }
            self.position.skip(length);
            frames += 1;
            bytes += length;
        }
        if let Some(connection) = &self.current.connection
            && let Some(position) = self.position.give_back()
        {
            connection.store(Word::Read, position);
        }
        self.counters.packets += frames as u64;
        self.counters.bytes += bytes as u64;
        frames
    }
}

// SAFETY: received packets are newly allocated from the queue's pool, and their lengths fit into its buffers.
unsafe impl Rx for NtbRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let (pool, mut received, mut refused) = (self.pool.clone(), 0, 0);
        let room = pool.room();
        self.visit_frames(packets.len(), &mut |address, len| {
            if len > room {
                refused += 1;
                return true;
            }
            let packet = &mut packets[received..=received];
            if pool.allocate(packet) == 0 {
                return false;
            }
            packet[0].length = len as u32;
            // SAFETY: the packet was just allocated and has room for the frame. Nothing refers to the ring's memory.
            unsafe { (packet[0].address as *mut u8).copy_from_nonoverlapping(address, len) };
            received += 1;
            true
        });
        if self.current.connection.as_ref().is_some_and(|connection| connection.is_closed()) {
            // A later peer may have changed the frames while they were copied.
            // SAFETY: the packets were allocated above, and nobody uses them.
            unsafe { self.pool.free(&packets[..received]) };
            refused += received as u64;
            received = 0;
        }
        self.counters.packets -= refused;
        self.counters.errors += refused;
        Ok(received)
    }

    #[inline]
    fn receive_in_place(
        &mut self,
        most: usize,
        visit: &mut dyn FnMut(*const u8, usize) -> bool,
    ) -> Result<Option<usize>> {
        Ok(Some(self.visit_frames(most, visit)))
    }

    fn begin_sleep(&mut self) -> bool {
        self.follow();
        if let Some(connection) = &self.current.connection {
            connection.announce_sleep();
        }
        // If the link is down, the thread is woken when it comes up.
        !self.has_record()
    }

    fn end_sleep(&mut self) {
        if let Some(connection) = &self.current.connection {
            connection.store(Word::Asleep, 0);
            // Clear the descriptor before the doorbell's bit. A ring in between would otherwise leave a bit without an event,
            // and later rings would cause none.
            if let Ok(event) = connection.ntb().event(Event::Doorbell(0)) {
                clear_eventfd(event);
            }
            connection.ntb().doorbell_clear(DOORBELL);
        }
        self.current.shared.clear_news();
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
