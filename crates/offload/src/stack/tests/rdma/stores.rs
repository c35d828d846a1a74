//! Stores into the memory of the peer's stack, in turns with packets, and with hostile words.

use super::*;
use crate::stack::rdma::{OwnRing, PeerRing};
use crate::stack::ring::ByteRing;
use inlane_offload_protocol::slots::Slot;
use std::sync::atomic::Ordering;

const BUFFER: usize = 16384;
const SETUP: Setup = Setup {
    segment_mtu: 1500,
    capacity: usize::MAX,
    in_place: true,
    rdma: true,
    accepts_partial: true,
    peer_accepts_partial: true,
    buffer: BUFFER,
};

/// A connection whose receive ring at machine 1 lies in a slot.
struct Stored {
    link: Link,
    area: Area,
    slot: Slot,
    /// Keeps the memory of the area, because a connection that ends drops its rings.
    _memory: Region,
    /// The number of times that the ring was shared.
    shared: u64,
}

impl Stored {
    fn new(len: u32) -> Self {
        let mut link = Link::of([SETUP; 2], [data(len), data(700)]);
        while link.server.is_none() {
            link.step(&mut |_| 1);
        }
        let (memory, area) = new_area(BUFFER);
        let slot = area.slot(3).unwrap();
        let offset = slot.rings() as usize - memory.as_ptr() as usize;
        let rings = [0, 1].map(|n| ByteRing::shared(memory.slice(offset + n * BUFFER, BUFFER).unwrap()));
        let mut stored = Self { link, area, slot, _memory: memory, shared: 0 };
        stored.stream(1).replace_rings(rings);
        stored
    }

    fn stream(&mut self, machine: usize) -> &mut crate::stack::stream::Stream {
        self.link.stream_mut(machine)
    }

    /// Shares the ring of machine 1 with machine 0.
    fn share(&mut self) {
        self.shared += 1;
        let (start, slot, area) = (self.shared << 40, self.slot, self.area);
        self.stream(1).open_stores(OwnRing::new(slot, Arc::new(()), start));
        // SAFETY: this value keeps the memory.
        let ring = unsafe {
            let address = slot.rings().add(BUFFER) as u64;
            Region::from_raw(address, BUFFER, inlane_core::region::Location::Host, Arc::new(()))
        };
        let (ring, now) = (ByteRing::shared(ring), self.link.world.now);
        let peer = PeerRing {
            ring,
            area,
            slot,
            index: 3,
            thread: 0,
            stored: start,
            check_at: None,
            busy_since: None,
        };
        self.stream(0).store_into(now, peer);
    }

    /// Processes stored bytes at machine 1, if its doorbell has rung.
    fn answer(&mut self) {
        if self.area.doorbell(0).answer() != 0 {
            let (now, key) = (self.link.world.now, self.link.server.unwrap());
            let stack = &mut self.link.world.machines[1].stack;
            stack.process_stores(now, key);
            stack.touch(key);
        }
    }

    fn is_complete(&self, len: usize) -> bool {
        self.link.received[1].len() == len && self.link.received[0].len() == 700
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The ring is shared and closed at any time, on a link that loses and doubles frames.
    #[test]
    fn each_byte_arrives_once_by_stores_or_packets(seed in any::<u64>(), len in 1000u32..200_000, lost in 0u64..5) {
        let mut stored = Stored::new(len);
        let expected = data(len);
        let mut random = seed | 1;
        let mut draw = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut fate = draw;
        for _ in 0..100_000 {
            if stored.is_complete(expected.len()) {
                break;
            }
            if draw() % 8 == 0 && stored.stream(1).carrier().is_some_and(|carrier| !carrier.is_open()) {
                stored.share();
            }
            if draw() % 32 == 0 {
                let now = stored.link.world.now;
                prop_assert!(stored.stream(1).close_stores(now));
            }
            stored.link.step(&mut |_| if fate() % 100 < lost { 0 } else { 1 + usize::from(fate() % 50 == 0) });
            stored.answer();
        }
        prop_assert!(stored.link.received[1] == expected && stored.link.received[0] == data(700));
        let [_, server] = counters(&stored.link.world);
        prop_assert_eq!(server.refused_range, 0);
        prop_assert!(server.stored_bytes + server.placed_bytes <= len.into());
    }

    /// Another process writes any words. The connection ends, or its bytes are wrong, and nothing else happens.
    #[test]
    fn hostile_words_harm_only_their_connection(words in proptest::collection::vec((0u8..4, any::<u64>(), 0u64..4), 1..30)) {
        let mut stored = Stored::new(1_000_000);
        stored.share();
        for (kind, word, steps) in words {
            let peer = stored.slot.peer();
            match kind {
                0 => peer.stores.ring.store(word, Ordering::Relaxed),
                1 => peer.stores.ring.store((word & 0xffff) + (1 << 40), Ordering::Relaxed),
                2 => peer.noted.0.store(word, Ordering::Relaxed),
                _ => peer.noted.0.store(word & 0xff_ffff, Ordering::Relaxed),
            }
            for _ in 0..steps {
                stored.link.step(&mut |_| 1);
                stored.answer();
            }
        }
        prop_assert!(stored.link.received[1].len() <= 1_000_000);
    }
}

#[test]
fn stores_carry_all_data_once_the_ring_is_shared() {
    let mut stored = Stored::new(300_000);
    stored.share();
    for _ in 0..10_000 {
        stored.link.step(&mut |_| 1);
        stored.answer();
    }
    assert!(stored.is_complete(300_000) && stored.link.received[1] == data(300_000));
    let [_, server] = counters(&stored.link.world);
    assert!(
        server.stored_bytes > 290_000 && server.stored_bytes + server.placed_bytes == 300_000,
        "{server:?}"
    );
}

#[test]
fn wrong_words_end_the_connection_and_are_counted() {
    for at in [0, 1] {
        let mut stored = Stored::new(1_000_000);
        stored.share();
        for step in 0..100 {
            stored.link.step(&mut |_| 1);
            stored.answer();
            let peer = stored.slot.peer();
            if step == 10 && at == 0 {
                peer.stores.ring.fetch_add(1 << 20, Ordering::Relaxed);
            } else if step == 10 {
                peer.noted.0.store(1 << 50, Ordering::Relaxed);
            }
        }
        assert!(stored.link.received[1].len() < 1_000_000 && stored.link.stream_is_gone(0));
        let all = counters(&stored.link.world);
        assert!(all.iter().any(|counters| counters.refused_range == 1), "{all:?}");
        assert!(all[1].stored_bytes > 0);
    }
}

/// The peer closes the ring and gives the slot to another connection, while the connection is idle.
#[test]
fn a_slot_that_another_connection_has_got_stays_its_own() {
    let mut stored = Stored::new(1000);
    stored.share();
    for _ in 0..100 {
        stored.link.step(&mut |_| 1);
        stored.answer();
    }
    assert!(
        stored.is_complete(1000) && stored.stream(0).next_deadline().is_none(),
        "nothing waits for a note"
    );
    let now = stored.link.world.now;
    assert!(stored.stream(1).close_stores(now));
    stored.slot.peer().noted.0.store(1 << 50, Ordering::Release);
    stored.slot.stores().ring.open(77);
    stored.link.to_send[0] = data(5000);
    for _ in 0..100 {
        stored.link.step(&mut |_| 1);
    }
    assert!(stored.link.received[1] == [data(1000), data(5000)].concat());
    assert!(stored.slot.stores().ring.is_at(77), "the other connection's word");
    let [client, server] = counters(&stored.link.world);
    assert_eq!((client.refused(), server.refused(), client.returned), (0, 0, 0));
}

#[test]
fn a_peer_that_shares_its_ring_again_and_again_is_listed_once() {
    for stores in [false, true] {
        let mut stored = Stored::new(1000);
        let stack = &mut stored.link.world.machines[0].stack;
        stack.queue_pairs.as_mut().unwrap().stores = stores;
        for round in 1..=3 {
            stored.share();
            stored.link.step(&mut |_| 1);
            stored.link.step(&mut |_| 1);
            if round != 2 {
                let listed = stored.link.world.machines[0].stack.take_shared();
                assert_eq!(listed.len(), usize::from(stores), "round {round}");
            }
        }
    }
}
