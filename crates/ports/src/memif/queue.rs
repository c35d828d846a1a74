//! The queues of a memif port.
//!
//! Each ring is used in the same way at both ends: its client gives descriptors to the server by moving the head, and the
//! server gives them back by moving the tail. From client to server, the given buffers hold packets; from server to client,
//! the returned ones do.
//!
//! The client reuses the buffer first that became free last, because it is probably still cached.

use super::control::{Channel, SharedRing};
use super::memory::{Descriptor, Memory};
use inlane_core::port::{Counters, PEER_MESSAGE, PeerChannel, Reservation};
use inlane_core::{Error, Packet, Pool, Result, Rx, Tx};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The number of calls without a packet after which the next check is due whether the peer still exists.
const CHECK_EVERY: u32 = 4096;
/// The bytes after which a call of [`MemifRx::receive`] returns the buffers to the sender and ends. More would
/// leave the cache before they are processed.
const BURST_BYTES: usize = 128 << 10;
/// A sent frame of this length is shown to the reader at once. Shorter frames wait for more or for [`Tx::flush`], because
/// each change of the ring's index costs a cache-line transfer.
const LONG_FRAME: usize = 2048;
/// The longest frame that may span several buffers.
const LONGEST_CHAIN: usize = 128 << 10;

/// The peer, as all queues of a port see it.
pub(super) struct Peer {
    /// The port's name, as the user wrote it.
    pub name: String,
    pub channel: Channel,
    /// Why the connection has ended, once it has.
    pub ended: OnceLock<String>,
}

impl Peer {
    /// Returns an error if the connection has ended.
    fn check(&self) -> Result<()> {
        if self.ended.get().is_none() && !self.channel.is_open() {
            self.end("the peer disappeared while in use; when it is back, start the command again");
        }
        match self.ended.get() {
            Some(why) => Err(Error::port_failed(&self.name, why.as_str())),
            None => Ok(()),
        }
    }

    #[cold]
    fn end(&self, why: &str) {
        let _ = self.ended.set(why.to_owned());
    }

    /// Ends the connection because the peer broke the protocol.
    #[cold]
    fn broke(&self, what: &str) {
        self.channel.disconnect(what);
        self.end(&format!("the peer broke the protocol of memif: {what}; update or replace it"));
    }
}

impl PeerChannel for Peer {
    fn send(&self, message: &[u8; PEER_MESSAGE], descriptor: BorrowedFd<'_>) -> bool {
        self.channel.send_message(message, descriptor)
    }

    fn receive(&self) -> Option<([u8; PEER_MESSAGE], OwnedFd)> {
        self.channel.take_message()
    }
}

/// The buffers of a client's ring: all of one size, in region 0.
pub(super) struct Buffers {
    /// The size of a buffer in bytes.
    pub size: u32,
    /// The offsets of all buffers.
    pub offsets: Vec<u32>,
}

/// The end of the connection that a queue belongs to, with what it must remember.
enum Side {
    Client {
        size: u32,
        /// The offsets of free buffers.
        free: Vec<u32>,
        /// The offset of the buffer that each slot holds.
        held: Vec<u32>,
        /// The position of the oldest descriptor that the server holds.
        oldest: u16,
    },
    Server,
}

impl Side {
    fn new(buffers: Option<Buffers>, slots: u16) -> Self {
        match buffers {
            None => Self::Server,
            Some(Buffers { size, offsets }) => {
                Self::Client { size, free: offsets, held: vec![0; slots.into()], oldest: 0 }
            }
        }
    }
}

/// What both directions have in common.
pub(super) struct End {
    shared: SharedRing,
    memory: Arc<Memory>,
    peer: Arc<Peer>,
    side: Side,
    /// The position of the next descriptor to fill or to read.
    next: u16,
    counters: Counters,
    idle: u32,
}

impl End {
    pub(super) fn new(
        shared: SharedRing,
        memory: Arc<Memory>,
        peer: Arc<Peer>,
        buffers: Option<Buffers>,
    ) -> Self {
        let side = Side::new(buffers, shared.ring.slots());
        Self { shared, memory, peer, side, next: 0, counters: Counters::default(), idle: 0 }
    }

    /// Wakes the reader if it sleeps.
    #[inline]
    fn ring_doorbell(&self) {
        if self.shared.ring.is_asleep() {
            self.shared.doorbell.ring();
        }
    }

    /// Counts a call that moved nothing, and checks now and then that the peer exists.
    #[inline]
    fn count_idle(&mut self) -> Result<()> {
        self.idle += 1;
        if self.idle < CHECK_EVERY && self.peer.ended.get().is_none() {
            return Ok(());
        }
        self.idle = 0;
        self.peer.check()
    }
}

/// A transmit queue.
pub(super) struct MemifTx {
    end: End,
    pool: Arc<dyn Pool>,
    /// The position up to which the reader sees packets.
    shown: u16,
    /// The descriptor of the reserved buffer.
    reserved: Option<Descriptor>,
}

impl MemifTx {
    pub(super) fn new(end: End, pool: Arc<dyn Pool>) -> Self {
        Self { end, pool, shown: 0, reserved: None }
    }

    /// Returns the next free buffer and its address, or `None` if there is none.
    fn free_buffer(&mut self) -> Option<(Descriptor, NonNull<u8>)> {
        let End { shared, memory, peer, side, next, .. } = &mut self.end;
        let ring = &shared.ring;
        let buffer = match side {
            Side::Client { size, free, held, oldest } => {
                if free.is_empty() {
                    let returned = ring.tail().load(Ordering::Acquire).wrapping_sub(*oldest);
                    if returned > self.shown.wrapping_sub(*oldest) {
                        peer.broke("it returned buffers that it does not hold");
                        return None;
                    }
                    for _ in 0..returned {
                        free.push(held[usize::from(*oldest & (ring.slots() - 1))]);
                        *oldest = oldest.wrapping_add(1);
                    }
                }
                Descriptor { continues: false, region: 0, offset: *free.last()?, length: *size }
            }
            Side::Server => {
                let given = ring.head().load(Ordering::Acquire).wrapping_sub(*next);
                if given == 0 {
                    return None;
                }
                if given > ring.slots() {
                    peer.broke("it gave more buffers than the ring has slots");
                    return None;
                }
                Descriptor { continues: false, ..ring.read(*next) }
            }
        };
        match memory.span(buffer.region, buffer.offset, buffer.length) {
            Some(address) if buffer.length > 0 => Some((buffer, address)),
            _ => {
                peer.broke("it gave a buffer outside its memory");
                None
            }
        }
    }

    /// Puts a filled buffer, which [`MemifTx::free_buffer`] has returned, into the ring.
    #[inline]
    fn add(&mut self, filled: Descriptor) {
        let End { shared, side, next, .. } = &mut self.end;
        if let Side::Client { free, held, .. } = side {
            free.pop();
            held[usize::from(*next & (shared.ring.slots() - 1))] = filled.offset;
        }
        shared.ring.write(*next, filled);
        *next = next.wrapping_add(1);
    }

    /// Shows the reader all packets in the ring.
    #[inline]
    fn show(&mut self) {
        let End { shared, side, next, .. } = &self.end;
        if self.shown == *next {
            return;
        }
        let index = match side {
            Side::Client { .. } => shared.ring.head(),
            Side::Server => shared.ring.tail(),
        };
        index.store(*next, Ordering::Release);
        self.shown = *next;
        self.end.ring_doorbell();
    }

    /// Copies a packet into the ring. Returns false if the ring is full.
    ///
    /// # Safety
    /// The caller holds the packet, which is from this queue's pool.
    unsafe fn copy(&mut self, packet: &Packet) -> bool {
        // Remember the state, so that a packet for which the ring has too few buffers leaves no trace.
        let (next, mut taken) = (self.end.next, 0);
        let mut open: Option<(Descriptor, NonNull<u8>, u32)> = None;
        let mut bytes = 0;
        let mut complete = true;
        let pool = self.pool.clone();
        let mut put = |address: u64, length: u32| {
            let mut done = 0;
            bytes += u64::from(length);
            while complete && done < length {
                let (descriptor, to, used) = match open.take() {
                    Some(open) if open.2 < open.0.length => open,
                    full => {
                        if let Some((descriptor, _, used)) = full {
                            self.add(Descriptor { continues: true, length: used, ..descriptor });
                            taken += 1;
                        }
                        match self.free_buffer() {
                            Some((descriptor, to)) => (descriptor, to, 0),
                            None => {
                                complete = false;
                                return;
                            }
                        }
                    }
                };
                let part = (length - done).min(descriptor.length - used);
                // SAFETY: the caller guarantees the packet's bytes. The buffer has `descriptor.length` bytes of shared
                // memory, and nothing refers to them.
                unsafe {
                    let from = (address + u64::from(done)) as *const u8;
                    to.as_ptr().add(used as usize).copy_from_nonoverlapping(from, part as usize);
                }
                done += part;
                open = Some((descriptor, to, used + part));
            }
        };
        // SAFETY: the caller promises what this call requires.
        unsafe { pool.for_each_segment(packet, &mut put) };
        if !complete {
            self.take_back(next, taken);
            return false;
        }
        if let Some((descriptor, _, used)) = open {
            self.add(Descriptor { length: used, ..descriptor });
        }
        self.end.counters.packets += 1;
        self.end.counters.bytes += bytes;
        true
    }

    /// Removes the last `count` buffers, from position `first` on. The reader has not seen them.
    fn take_back(&mut self, first: u16, count: u16) {
        let End { shared, side, next, .. } = &mut self.end;
        for position in (0..count).map(|n| first.wrapping_add(n)) {
            match side {
                Side::Client { free, held, .. } => {
                    free.push(held[usize::from(position & (shared.ring.slots() - 1))]);
                }
                // The buffer was filled completely, so its descriptor still has its size. Only the flag must go.
                Side::Server => {
                    let filled = shared.ring.read(position);
                    shared.ring.write(position, Descriptor { continues: false, ..filled });
                }
            }
        }
        *next = first;
    }
}

// SAFETY: `send` copies packets and frees exactly those that it returns.
unsafe impl Tx for MemifTx {
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        self.reserved = None;
        let mut sent = 0;
        // SAFETY: the caller holds these packets of the queue's pool.
        while sent < packets.len() && unsafe { self.copy(&packets[sent]) } {
            sent += 1;
        }
        self.show();
        if sent == 0 {
            self.end.count_idle()?;
        }
        // SAFETY: the packets were copied, and the caller does not use them any more.
        unsafe { self.pool.free(&packets[..sent]) };
        Ok(sent)
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Reservation {
        self.reserved = None;
        match self.free_buffer() {
            Some((buffer, address)) if len <= buffer.length as usize => {
                self.reserved = Some(Descriptor { length: len as u32, ..buffer });
                Reservation::Memory(address)
            }
            Some(_) => Reservation::Unsupported,
            None => {
                self.show();
                Reservation::Full
            }
        }
    }

    #[inline]
    fn commit(&mut self) {
        let filled = self.reserved.take().expect("memory was reserved");
        self.add(filled);
        self.end.counters.packets += 1;
        self.end.counters.bytes += u64::from(filled.length);
        if filled.length as usize >= LONG_FRAME {
            self.show();
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.show();
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.end.counters
    }
}

/// A receive queue.
pub(super) struct MemifRx {
    end: End,
    pool: Arc<dyn Pool>,
    /// A client's number of buffers that the server has or that hold packets.
    window: u16,
    /// Memory for a frame that spans several buffers.
    joined: Vec<u8>,
    /// The position up to which the sender has the buffers back.
    returned: u16,
}

impl MemifRx {
    pub(super) fn new(mut end: End, pool: Arc<dyn Pool>) -> Self {
        end.shared.ring.set_polled();
        let mut window = 0;
        if let Side::Client { size, free, held, .. } = &mut end.side {
            for offset in free.drain(..) {
                let empty = Descriptor { continues: false, region: 0, offset, length: *size };
                end.shared.ring.write(window, empty);
                held[usize::from(window)] = offset;
                window += 1;
            }
            end.shared.ring.head().store(window, Ordering::Release);
        }
        Self { end, pool, window, joined: Vec::new(), returned: 0 }
    }

    /// Returns the number of descriptors with packets.
    #[inline]
    fn available(&self) -> u16 {
        let End { shared, peer, side, next, .. } = &self.end;
        let (index, most) = match side {
            Side::Client { .. } => (shared.ring.tail(), self.window),
            Side::Server => (shared.ring.head(), shared.ring.slots()),
        };
        let available = index.load(Ordering::Acquire).wrapping_sub(*next);
        if available > most {
            peer.broke("its index is beyond the end of the ring");
            return 0;
        }
        available
    }

    /// Returns the bytes of the descriptor at a position, and whether the packet continues.
    #[inline]
    fn part(&self, position: u16) -> Option<(NonNull<u8>, usize, bool)> {
        let End { shared, memory, peer, side, .. } = &self.end;
        let mut descriptor = shared.ring.read(position);
        let mut fits = true;
        if let Side::Client { size, held, .. } = side {
            // The place of the buffer is this end's own, whatever the peer has written.
            descriptor.region = 0;
            descriptor.offset = held[usize::from(position & (shared.ring.slots() - 1))];
            fits = descriptor.length <= *size;
        }
        let address = memory.span(descriptor.region, descriptor.offset, descriptor.length).filter(|_| fits);
        if address.is_none() {
            peer.broke("a packet lies outside its buffer");
        }
        Some((address?, descriptor.length as usize, descriptor.continues))
    }

    /// Gives the buffers of the next `count` descriptors back.
    #[inline]
    fn skip(&mut self, count: u16) {
        let End { shared, side, next, .. } = &mut self.end;
        for _ in 0..count {
            if let Side::Client { size, held, .. } = side {
                let mask = shared.ring.slots() - 1;
                let offset = held[usize::from(*next & mask)];
                let place = next.wrapping_add(self.window);
                held[usize::from(place & mask)] = offset;
                let empty = Descriptor { continues: false, region: 0, offset, length: *size };
                shared.ring.write(place, empty);
            }
            *next = next.wrapping_add(1);
        }
    }

    /// Shows the sender the buffers that were given back.
    #[inline]
    fn show(&mut self) {
        let End { shared, side, next, .. } = &self.end;
        if self.returned == *next {
            return;
        }
        match side {
            Side::Client { .. } => {
                shared.ring.head().store(next.wrapping_add(self.window), Ordering::Release);
            }
            Side::Server => shared.ring.tail().store(*next, Ordering::Release),
        }
        self.returned = *next;
    }

    /// Calls `visit` for up to `most` frames, until it returns false. Returns the number of visited frames.
    #[inline]
    fn visit_frames(&mut self, most: usize, visit: &mut dyn FnMut(*const u8, usize) -> bool) -> usize {
        let (mut left, mut frames, mut bytes) = (self.available(), 0, 0);
        while left > 0 && frames < most && bytes < BURST_BYTES {
            let Some((start, mut len, mut continues)) = self.part(self.end.next) else { break };
            let mut parts = 1;
            let mut address = start.as_ptr().cast_const();
            if continues {
                self.joined.clear();
                let mut part = Some((start, len));
                while let Some((start, len)) = part.take() {
                    if self.joined.len() + len <= LONGEST_CHAIN {
                        let at = self.joined.len();
                        self.joined.resize(at + len, 0);
                        // SAFETY: the part lies in shared memory, to which nothing refers, and the copy has room.
                        unsafe {
                            let to = self.joined.as_mut_ptr().add(at);
                            to.copy_from_nonoverlapping(start.as_ptr(), len);
                        }
                    }
                    if continues && parts < left {
                        let Some(next) = self.part(self.end.next.wrapping_add(parts)) else { break };
                        part = Some((next.0, next.1));
                        continues = next.2;
                        parts += 1;
                    }
                }
                (address, len) = (self.joined.as_ptr(), self.joined.len());
            }
            if !visit(address, len) {
                break;
            }
            self.skip(parts);
            left -= parts;
            frames += 1;
            bytes += len;
        }
        self.show();
        self.end.counters.packets += frames as u64;
        self.end.counters.bytes += bytes as u64;
        frames
    }
}

// SAFETY: received packets are newly allocated from the queue's pool, and their lengths fit into its buffers.
unsafe impl Rx for MemifRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let (pool, mut received, mut refused) = (self.pool.clone(), 0, 0);
        let room = pool.room();
        let frames = self.visit_frames(packets.len(), &mut |address, len| {
            if len > room {
                refused += 1;
                return true;
            }
            let packet = &mut packets[received..=received];
            if pool.allocate(packet) == 0 {
                return false;
            }
            packet[0].length = len as u32;
            // SAFETY: the packet was just allocated and has room for the frame. Nothing refers to the shared memory.
            unsafe { (packet[0].address as *mut u8).copy_from_nonoverlapping(address, len) };
            received += 1;
            true
        });
        self.end.counters.packets -= refused;
        self.end.counters.errors += refused;
        if frames == 0 {
            self.end.count_idle()?;
        }
        Ok(received)
    }

    #[inline]
    fn receive_in_place(
        &mut self,
        most: usize,
        visit: &mut dyn FnMut(*const u8, usize) -> bool,
    ) -> Result<Option<usize>> {
        let frames = self.visit_frames(most, visit);
        if frames == 0 {
            self.end.count_idle()?;
        }
        Ok(Some(frames))
    }

    fn begin_sleep(&mut self) -> bool {
        self.end.shared.ring.set_asleep();
        self.available() == 0 && self.end.peer.ended.get().is_none()
    }

    fn end_sleep(&mut self) {
        self.end.shared.ring.set_polled();
        self.end.shared.doorbell.clear();
        // Sleeps are long, so look for the peer after each of them.
        self.end.idle = CHECK_EVERY;
    }

    fn counters(&self) -> Counters {
        self.end.counters
    }
}
