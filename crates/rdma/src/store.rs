//! Data that a side stores directly into the peer's receive ring, because both are on one host and share that memory.
//!
//! How the memory is shared, and where the index of the stored bytes lies, is the callers' own protocol. The data must be within the
//! memory information, as that of packets. A side stores only while no packets of it are unacknowledged, and the peer processes
//! stored bytes before each packet. So bytes stay in order, and each arrives once.

use crate::connection::EndReason;
use crate::control::SHARED;
use crate::{Connection, Endpoint};
use std::ops::Range;

impl Connection {
    /// Returns what both sides have told each other: this side's numbers, and the peer's.
    pub fn endpoints(&self) -> [Endpoint; 2] {
        [self.local, self.remote]
    }

    /// Tells the peer that it may look for the memory of the receive ring, which this side has shared.
    pub fn announce_shared(&mut self) {
        self.flags |= SHARED;
        self.control = true;
    }

    /// Returns true if the peer has called [`Connection::announce_shared`] since the last call.
    #[inline]
    pub fn take_shared(&mut self) -> bool {
        std::mem::take(&mut self.shared)
    }

    /// Stores new data from now on, if `stores` is true, or sends it in packets. The peer must have taken note of all stored bytes
    /// before packets follow.
    pub fn set_stores(&mut self, now: u64, stores: bool) {
        self.sender.stores = stores;
        // An acknowledgment that the peer holds back would delay the first store.
        self.sender.ask |= stores && !self.sender.is_empty();
        if !stores && self.sender.is_empty() {
            self.on_noted(now, self.sender.next);
        }
    }

    /// Returns the next bytes of the send stream to store, at most `most`. `None` if none can be stored now.
    #[inline]
    pub fn storable(&self, most: u64) -> Option<Range<u64>> {
        self.sender.storable(most).filter(|_| self.ended.is_none())
    }

    /// Records that the next `len` bytes of the send stream are in the peer's receive ring.
    #[inline]
    pub fn on_stored(&mut self, now: u64, len: u64) {
        self.sender.on_stored(now, len, &self.config);
    }

    /// Returns true if the peer has not taken note of all stored bytes.
    #[inline]
    pub fn has_unnoted(&self) -> bool {
        self.sender.is_empty() && self.sender.acknowledged != self.sender.next
    }

    /// Records that the peer has taken note of the stored bytes before `index`. An impossible index ends the connection.
    pub fn on_noted(&mut self, now: u64, index: u64) {
        if self.ended.is_none() && !self.sender.on_noted(now, index, &self.config) {
            self.refuse_store();
        }
    }

    /// Records that the peer has stored the next `len` bytes into the receive ring. A length that it may not store ends the
    /// connection.
    pub fn on_peer_stored(&mut self, len: u64) {
        if !self.receiver.store(len) {
            return self.refuse_store();
        }
        self.counters.stored += len;
        self.control |= self.receiver.grant();
    }

    /// Ends the connection, because a shared word is wrong.
    pub fn refuse_store(&mut self) {
        self.counters.refused_range += 1;
        self.end(EndReason::Violation, true);
    }

    /// Sends a control message, which wakes the peer.
    pub fn wake_peer(&mut self) {
        self.control = true;
    }
}
