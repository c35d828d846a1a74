//! Stores into the receive ring of a peer whose engine runs on the same host, in place of packets with data.
//!
//! The receiving engine shares the memory of the ring. The sending engine claims the ring by a word in the slot ([`Slot::stores`]),
//! copies the bytes, and commits them, as a program does with its send ring. The receiving engine can close the word. Commits then
//! fail, and the sending engine sends these bytes in packets. So each byte arrives once, and in order.

use super::{Carrier, QueuePairs, Transport};
use crate::stack::Stack;
use crate::stack::arena::Key;
use crate::stack::ring::ByteRing;
use crate::stack::socket::{Role, Socket};
use crate::stack::stream::Stream;
use inlane_offload_protocol::slots::{Area, Claim, POSITION, Slot};
use inlane_rdma::{Connection, MILLISECOND};
use inlane_tcp::Events;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most bytes of one store. The receiver can read them while the next store is copied.
const MOST: u64 = 32 << 10;
/// How long the sending engine waits before it looks again how far the peer has taken note of stores, in nanoseconds.
const CHECK_NS: u64 = MILLISECOND;

/// The memory of a connection's receive ring at the peer's engine.
pub struct PeerRing {
    /// The ring, which keeps the memory mapped.
    pub ring: ByteRing,
    /// The area in that memory.
    pub area: Area,
    /// The connection's slot.
    pub slot: Slot,
    /// The slot's index, and the thread of the peer's engine that runs the connection.
    pub index: usize,
    /// See `index`.
    pub thread: usize,
    /// The number of stored bytes, counted from a random number that the peer has chosen.
    pub stored: u64,
    /// When to look at [`inlane_offload_protocol::slots::PeerWords::noted`].
    pub check_at: Option<u64>,
    /// When the ring was first found claimed by the peer.
    pub busy_since: Option<u64>,
}

// SAFETY: the slot lies in memory that the ring keeps mapped. It is accessed only by atomics and copies, and any thread may do these.
unsafe impl Send for PeerRing {}

/// How long the peer may have the ring claimed before packets carry the data again, in nanoseconds. Usually that takes less than a
/// microsecond, unless the peer's engine is stopped.
const BUSY_NS: u64 = 100 * MILLISECOND;

/// The outcome of a store.
enum Stored {
    Done,
    /// The peer has the ring claimed. Try again in the next round.
    Busy,
    /// The peer has closed the ring for stores.
    Closed,
}

impl PeerRing {
    /// Stores the bytes of `range`, and shows them to the program if the peer allows that.
    fn store(&mut self, now: u64, from: &ByteRing, range: std::ops::Range<u64>) -> Stored {
        let (len, end) = (range.end - range.start, range.end);
        let stores = self.slot.stores();
        // After the peer has closed the ring, the slot may have another connection, whose word counts from another number.
        let Some(claim) = stores.ring.claim_at(self.stored) else {
            let since = *self.busy_since.get_or_insert(now);
            let busy = stores.ring.is_at(self.stored) && now < since + BUSY_NS;
            return if busy { Stored::Busy } else { Stored::Closed };
        };
        self.busy_since = None;
        self.ring.copy_from(from, range);
        let Some(published) = stores.commit(claim, len, end) else { return Stored::Closed };
        self.stored = self.stored.wrapping_add(len) & POSITION;
        if published {
            self.area.ready().fetch_or(1 << self.index, Ordering::Release);
        }
        Stored::Done
    }

    /// Returns the index up to which the peer has noted the stream. `None` if it has closed the ring for stores.
    fn noted(&self) -> Option<u64> {
        // The peer closes the word before the slot's words get another use, so check it last.
        let noted = self.slot.peer().noted.0.load(Ordering::Acquire);
        self.slot.stores().ring.is_at(self.stored).then_some(noted)
    }
}

/// The slot into whose receive ring the peer's engine may store.
pub struct OwnRing {
    slot: Slot,
    _area: Arc<dyn Any + Send + Sync>,
    /// The stored bytes that were processed, counted as [`PeerRing::stored`].
    counted: u64,
    /// The bytes that packets had placed when bytes were last stored.
    placed: u64,
}

// SAFETY: as for `PeerRing`; the area stays mapped.
unsafe impl Send for OwnRing {}

impl OwnRing {
    /// Opens the ring for stores. The stream was received up to `received`.
    fn open(&self, received: u64) {
        self.slot.peer().noted.0.store(received, Ordering::Release);
        self.slot.stores().set_base(None);
        self.slot.stores().ring.open(self.counted);
    }

    /// Returns the receive ring of a slot of `area`, whose stored bytes are counted from `start`.
    pub fn new(slot: Slot, area: Arc<dyn Any + Send + Sync>, start: u64) -> Self {
        Self { slot, _area: area, counted: start & POSITION, placed: u64::MAX }
    }

    /// Processes the stored bytes up to `committed`.
    fn process(&mut self, connection: &mut Connection, committed: u64) {
        let len = committed.wrapping_sub(self.counted) & POSITION;
        if len > 0 {
            self.counted = committed;
            self.placed = connection.counters().placed_ring;
            connection.on_peer_stored(len);
            self.slot.peer().noted.0.store(connection.received(), Ordering::Release);
        }
    }
}

impl Carrier {
    /// Processes the bytes that the peer has stored.
    #[inline]
    pub(super) fn process_stores(&mut self) {
        if let Some(own) = &mut self.own {
            own.process(&mut self.connection, own.slot.stores().ring.committed());
        }
    }

    /// Stores new data into the peer's memory, if it has shared that. Returns true if the next round must try again.
    #[inline]
    pub(super) fn store(&mut self, now: u64, send: &ByteRing) -> bool {
        let Self { connection, peer: Some(peer), .. } = self else { return false };
        let most = MOST.min(peer.ring.capacity() as u64);
        while let Some(range) = connection.storable(most) {
            let len = range.end - range.start;
            match peer.store(now, send, range) {
                Stored::Done => connection.on_stored(now, len),
                Stored::Busy => return true,
                Stored::Closed => {
                    connection.set_stores(now, false);
                    self.peer = None;
                    return false;
                }
            }
            if peer.area.doorbell(peer.thread).ring(1 << peer.index) == 0 {
                connection.wake_peer();
            }
        }
        self.look_at_noted(now);
        false
    }

    /// Returns true while the peer's engine may store into the receive ring.
    #[cfg(test)]
    pub fn is_open(&self) -> bool {
        self.own.is_some()
    }

    /// Returns true if the peer's engine has stored data into the receive ring, and may still do so.
    pub fn is_stored_into(&self) -> bool {
        self.own.is_some() && self.connection.counters().stored > 0
    }

    /// Returns the time of the next timer of the connection.
    pub fn next_deadline(&self) -> Option<u64> {
        let check = self.peer.as_ref().and_then(|peer| peer.check_at);
        match (self.connection.next_deadline(), check) {
            (Some(timer), Some(check)) => Some(timer.min(check)),
            (timer, check) => timer.or(check),
        }
    }

    /// Looks how far the peer has taken note of stores.
    pub(super) fn look_at_noted(&mut self, now: u64) {
        let Some(peer) = &mut self.peer else { return };
        if self.connection.has_unnoted() {
            let Some(noted) = peer.noted() else {
                self.connection.set_stores(now, false);
                self.peer = None;
                return;
            };
            self.connection.on_noted(now, noted);
        }
        peer.check_at = self.connection.has_unnoted().then_some(now + CHECK_NS);
    }
}

impl QueuePairs {
    /// Lists a connection whose peer has shared its receive ring, if the engine can store.
    #[cold]
    pub(super) fn note_shared(&mut self, key: Key, carrier: &mut Carrier) {
        if self.stores && !std::mem::replace(&mut carrier.listed, true) {
            self.shared.push(key);
        }
    }
}

impl Stream {
    /// Processes the bytes that the peer's engine has stored into the receive ring.
    pub fn process_stores(&mut self, now: u64) -> Events {
        let Transport::Rdma(carrier) = &mut self.transport else { return Events::NONE };
        if carrier.own.is_none() {
            return Events::NONE;
        }
        carrier.process_stores();
        self.connection.carry_received(now, carrier.connection.received(), carrier.connection.granted())
    }

    /// Lets the peer's engine store into the receive ring.
    pub fn open_stores(&mut self, own: OwnRing) {
        if let Transport::Rdma(carrier) = &mut self.transport {
            own.open(carrier.connection.received());
            carrier.own = Some(own);
            carrier.connection.announce_shared();
        }
    }

    /// Ends the right of the peer's engine to store. Call it before the ring is replaced. Returns false if a store is under way, so
    /// the peer may still write.
    #[must_use]
    pub fn close_stores(&mut self, now: u64) -> bool {
        let Transport::Rdma(carrier) = &mut self.transport else { return true };
        let Some(own) = &mut carrier.own else { return true };
        let Ok(committed) = own.slot.stores().ring.close() else { return false };
        own.process(&mut carrier.connection, committed);
        carrier.own = None;
        self.connection.carry_received(now, carrier.connection.received(), carrier.connection.granted());
        true
    }

    /// Claims the receive ring, so the peer's engine stores and publishes nothing until the claim is given to
    /// [`Stream::release_stores`]. Processes all stored bytes before that. `None` if a store is under way: try again in the next round.
    pub fn hold_stores(&mut self, now: u64) -> Option<Claim> {
        let Transport::Rdma(carrier) = &mut self.transport else { return None };
        let claim = carrier.own.as_ref()?.slot.stores().ring.claim()?;
        // The committed index is that of the claim.
        self.process_stores(now);
        Some(claim)
    }

    /// Returns true if the peer's engine may store into the receive ring.
    pub fn has_stores(&self) -> bool {
        self.carrier().is_some_and(|carrier| carrier.own.is_some())
    }

    /// Returns true if the last bytes have arrived by stores.
    #[inline]
    pub fn arrives_by_stores(&self) -> bool {
        self.carrier().is_some_and(|carrier| {
            let placed = carrier.connection.counters().placed_ring;
            carrier.own.as_ref().is_some_and(|own| own.placed == placed)
        })
    }

    /// Ends what [`Stream::hold_stores`] has begun. From then on, the peer's engine publishes stored bytes to the program if `base` is
    /// the index of the byte at position 0 of the receive ring.
    pub fn release_stores(&mut self, claim: Claim, base: Option<u64>) {
        if let Transport::Rdma(carrier) = &mut self.transport
            && let Some(own) = &carrier.own
        {
            own.slot.stores().set_base(base);
            // This fails only if a hostile program has changed the word. The next store then finds it.
            own.slot.stores().ring.commit(claim, 0);
        }
    }

    /// Stores new data into the peer's memory from now on.
    pub fn store_into(&mut self, now: u64, peer: PeerRing) {
        if let Transport::Rdma(carrier) = &mut self.transport {
            carrier.peer = Some(peer);
            carrier.connection.set_stores(now, true);
        }
    }
}

impl<A> Stack<A> {
    /// Processes the bytes that the peer's engine has stored into the receive ring of a connection.
    pub fn process_stores(&mut self, now: u64, key: Key) {
        if let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) {
            stream.process_stores(now);
        }
    }

    /// Takes the list of connections whose peers have shared their receive rings.
    pub fn take_shared(&mut self) -> Vec<Key> {
        let keys =
            self.queue_pairs.as_mut().map(|pairs| std::mem::take(&mut pairs.shared)).unwrap_or_default();
        for &key in &keys {
            if let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key)
                && let Transport::Rdma(carrier) = &mut stream.transport
            {
                carrier.listed = false;
            }
        }
        keys
    }
}
