//! Data that a side stores into its peer's receive ring, in place of packets.

use inlane_rdma::*;
use proptest::prelude::*;

const ENDS: [Endpoint; 2] =
    [Endpoint { queue_pair: 17, psn: 100, token: 1 }, Endpoint { queue_pair: 18, psn: 7, token: 2 }];

struct Nowhere;

impl Memory for Nowhere {
    fn write_ring(&mut self, _: u64, _: &[u8]) {}
}

/// Two connected sides with rings of 4000 bytes.
fn sides() -> [Connection; 2] {
    let config = Config { send_capacity: 4000, receive_capacity: 4000, ..Config::default() };
    let side = |n: usize| Connection::new(&config, ENDS[n], ENDS[1 - n], [n as u8; 16]).unwrap();
    let mut sides = [side(0), side(1)];
    exchange(&mut sides, 0);
    sides
}

/// Moves all packets until none are left. Returns the number of those with data.
fn exchange(sides: &mut [Connection; 2], now: u64) -> usize {
    let mut data = 0;
    loop {
        let mut moved = false;
        for from in 0..2 {
            let mut headers = [0; MAX_HEADERS];
            while let Some(transmit) = sides[from].poll_transmit(now, &mut headers) {
                let len = (transmit.payload.end - transmit.payload.start) as usize + transmit.padding;
                data += (len > 0) as usize;
                let packet = [&headers[..transmit.headers], &vec![0; len]].concat();
                sides[1 - from].on_packet(now, &packet, &mut Nowhere);
                moved = true;
            }
        }
        if !moved {
            return data;
        }
    }
}

#[test]
fn data_is_stored_within_grants_and_packets_follow() {
    let mut sides = sides();
    sides[0].set_written(1, 1000).unwrap();
    assert_eq!((sides[0].storable(4000), exchange(&mut sides, 1)), (None, 1), "packets carry data before");
    assert!(!sides[0].take_shared());
    sides[1].announce_shared();
    exchange(&mut sides, 2);
    assert!(sides[0].take_shared() && !sides[0].take_shared());
    // The acknowledgment of the packet is held back, until the side that will store asks for it.
    sides[0].set_stores(3, true);
    exchange(&mut sides, 3);
    sides[0].set_written(3, 3000).unwrap();
    assert_eq!(sides[0].storable(100), Some(1000..1100));
    while let Some(range) = sides[0].storable(4000) {
        sides[0].on_stored(3, range.end - range.start);
        sides[1].on_peer_stored(range.end - range.start);
    }
    assert_eq!(exchange(&mut sides, 4), 0, "all data was stored");
    assert_eq!((sides[1].received(), sides[0].sent(), sides[0].acknowledged()), (3000, 3000, 1000));
    assert!(sides[0].has_unnoted() && sides[0].next_deadline().is_some());
    sides[0].on_noted(5, 500);
    sides[0].on_noted(5, 3000);
    assert!(!sides[0].has_unnoted() && sides[0].next_deadline().is_none());
    sides[1].set_consumed(3000).unwrap();
    exchange(&mut sides, 5);
    sides[0].set_stores(6, false);
    sides[0].set_written(6, 3500).unwrap();
    assert_eq!((sides[0].storable(100), exchange(&mut sides, 6)), (None, 1));
    assert_eq!((sides[1].received(), sides[1].counters().stored), (3500, 2000));
    assert!(sides.iter().all(|side| side.ended().is_none()));
}

/// A peer that stays silent after stores is asked, and then given up, as after packets.
#[test]
fn stores_that_nobody_notes_end_the_connection() {
    let mut sides = sides();
    sides[0].set_stores(0, true);
    sides[0].set_written(0, 10).unwrap();
    sides[0].on_stored(0, 10);
    while let (Some(at), None) = (sides[0].next_deadline(), sides[0].ended()) {
        sides[0].on_timer(at);
        let mut headers = [0; MAX_HEADERS];
        assert!(sides[0].poll_transmit(at, &mut headers).is_some(), "a probe");
    }
    assert_eq!(sides[0].ended(), Some(EndReason::TimedOut));
}

proptest! {
    #[test]
    fn wrong_indices_end_the_connection(len in any::<u64>(), index in any::<u64>()) {
        let mut sides = sides();
        sides[1].on_peer_stored(len);
        prop_assert_eq!(sides[1].ended(), (len > sides[1].granted()).then_some(EndReason::Violation));
        sides[0].set_stores(0, true);
        sides[0].set_written(0, 100).unwrap();
        sides[0].on_stored(0, 100);
        sides[0].on_noted(1, index);
        prop_assert_eq!(sides[0].ended(), (index > 100).then_some(EndReason::Violation));
        prop_assert_eq!(sides[0].counters().refused_range, u64::from(index > 100));
    }
}
