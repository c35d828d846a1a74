//! When packets are acknowledged, and by which packets.

use inlane_rdma::*;
use inlane_wire::roce::{BTH, RETH, opcode};

struct Nowhere;

impl Memory for Nowhere {
    fn write_ring(&mut self, _: u64, _: &[u8]) {}
}

const MICROSECOND: u64 = 1000;

struct Pair {
    ends: [Connection; 2],
    written: [u64; 2],
    now: u64,
}

impl Pair {
    /// Creates two connections that have exchanged their memory information.
    fn new(config: &Config) -> Self {
        let ends = [17, 18].map(|queue_pair| Endpoint { queue_pair, psn: 0xff_fff0, token: 3 });
        let ends = [0, 1].map(|n| Connection::new(config, ends[n], ends[1 - n], [7; 16]).unwrap());
        let mut pair = Self { ends, written: [0; 2], now: 1 };
        assert_eq!(pair.send(0), [CONTROL]);
        assert_eq!(pair.send(1), [CONTROL]);
        pair
    }

    fn write(&mut self, from: usize, bytes: u64) {
        self.written[from] += bytes;
        self.ends[from].set_written(self.now, self.written[from]).unwrap();
    }

    /// Returns the packets that an end has to send.
    fn packets(&mut self, from: usize) -> Vec<Vec<u8>> {
        let mut headers = [0; MAX_HEADERS];
        let packets = std::iter::from_fn(|| {
            let transmit = self.ends[from].poll_transmit(self.now, &mut headers)?;
            let data = (transmit.payload.end - transmit.payload.start) as usize;
            let mut packet = headers[..transmit.headers].to_vec();
            packet.resize(packet.len() + data + transmit.padding, 0);
            Some(packet)
        });
        packets.collect()
    }

    fn receive(&mut self, to: usize, packet: &[u8]) {
        let end = &mut self.ends[to];
        end.on_packet(self.now, packet, &mut Nowhere);
        end.set_consumed(end.received()).unwrap();
    }

    /// Lets all packets of an end arrive. Returns their opcodes.
    fn send(&mut self, from: usize) -> Vec<u8> {
        let packets = self.packets(from);
        packets.iter().for_each(|packet| self.receive(1 - from, packet));
        packets.iter().map(|packet| packet[0]).collect()
    }

    fn in_flight(&self, from: usize) -> u64 {
        self.written[from] - self.ends[from].acknowledged()
    }
}

#[test]
fn data_carries_the_acknowledgments_of_messages() {
    let mut pair = Pair::new(&Config::default());
    pair.write(0, 4);
    assert_eq!(pair.send(0), [opcode::WRITE_ONLY]);
    for _ in 0..1000 {
        for from in [1, 0] {
            pair.now += 500 * MICROSECOND;
            pair.ends.iter_mut().for_each(|end| end.on_timer(pair.now));
            pair.write(from, 4);
            assert_eq!(pair.send(from), [opcode::WRITE_ONLY_IMMEDIATE]);
            assert_eq!(pair.in_flight(1 - from), 0);
        }
    }
    pair.now += MILLISECOND;
    pair.ends[1].on_timer(pair.now);
    assert_eq!(pair.send(1), [CONTROL], "without data, a message acknowledges");
    assert_eq!(pair.in_flight(0), 0);
}

#[test]
fn a_run_of_packets_gets_one_acknowledgment() {
    let config = Config { ack_gap: 10 * MICROSECOND, ..Config::default() };
    let mut pair = Pair::new(&config);
    for packets in [2, 5, 9] {
        pair.write(0, packets * 1408);
        assert_eq!(pair.send(0).len(), packets as usize);
        assert!(pair.ends[1].holds_acknowledgment());
        assert_eq!(pair.send(1), []);
        assert_eq!(pair.ends[1].next_deadline(), Some(pair.now + 10 * MICROSECOND));
        pair.now += 10 * MICROSECOND;
        pair.ends[1].on_timer(pair.now);
        assert!(!pair.ends[1].holds_acknowledgment());
        assert_eq!(pair.send(1), [CONTROL]);
        assert_eq!(pair.in_flight(0), 0);
    }
    pair.write(0, 3 * 1408);
    pair.send(0);
    pair.ends[1].release_acknowledgment();
    assert_eq!(pair.send(1), [CONTROL]);
    // A long run does not wait for its end.
    pair.write(0, 16 * 1408);
    pair.send(0);
    assert_eq!(pair.send(1), [CONTROL]);
    assert_eq!((pair.in_flight(0), pair.ends[1].next_deadline()), (0, None));
}

#[test]
fn a_packet_that_is_sent_again_acknowledges_too() {
    let mut pair = Pair::new(&Config::default());
    pair.write(0, 100);
    pair.send(0);
    pair.write(1, 100);
    let lost = pair.packets(1);
    assert_eq!(lost.iter().map(|packet| packet[0]).collect::<Vec<_>>(), [opcode::WRITE_ONLY_IMMEDIATE]);
    pair.now = pair.ends[1].next_deadline().unwrap();
    pair.ends[1].on_timer(pair.now);
    assert_eq!(pair.in_flight(0), 100);
    assert_eq!(pair.send(1), [opcode::WRITE_ONLY_IMMEDIATE]);
    assert_eq!(pair.in_flight(0), 0);
    assert_eq!(pair.ends[1].counters().retransmitted, 1);
}

#[test]
fn an_acknowledgment_of_what_was_not_sent_is_refused() {
    let mut pair = Pair::new(&Config::default());
    pair.write(0, 100);
    pair.send(0);
    pair.write(1, 100);
    let mut forged = pair.packets(1).remove(0);
    forged[BTH + RETH + 3] ^= 2;
    pair.receive(0, &forged);
    assert_eq!((pair.in_flight(0), pair.ends[0].counters().refused_control), (100, 1));
    assert_eq!(pair.ends[0].received(), 100);
    for len in BTH + RETH..BTH + RETH + 4 {
        pair.receive(0, &forged[..len]);
    }
    assert_eq!(pair.ends[0].counters().malformed, 4);
}

#[test]
fn memory_information_waits_until_half_of_the_first_bytes_are_used() {
    let config = Config { first_grant: 2048, announce: false, ..Config::default() };
    let ends = [17, 18].map(|queue_pair| Endpoint { queue_pair, psn: 9, token: 3 });
    let ends = [0, 1].map(|n| Connection::new(&config, ends[n], ends[1 - n], [7; 16]).unwrap());
    let mut pair = Pair { ends, written: [0; 2], now: 1 };
    assert_eq!((pair.send(0), pair.send(1)), (vec![], vec![]));
    // A request and its response.
    pair.write(0, 500);
    assert_eq!(pair.send(0), [opcode::WRITE_ONLY]);
    assert_eq!(pair.send(1), []);
    pair.write(1, 500);
    assert_eq!(pair.send(1), [opcode::WRITE_ONLY_IMMEDIATE]);
    // More than the first bytes.
    pair.write(0, 5000);
    assert_eq!(pair.send(0).len(), 2);
    assert_eq!(pair.send(1), [CONTROL]);
    assert_eq!(pair.send(0).len(), 3);
    assert_eq!((pair.ends[1].received(), pair.ends[1].counters().refused_range), (5500, 0));
}
