//! A hostile peer: forged, contradicting and replayed packets are counted, and change nothing.

use inlane_rdma::*;
use inlane_wire::roce::{self, Bth, Reth, opcode};

const LOCAL: Endpoint = Endpoint { queue_pair: 17, psn: 100, token: 0x1111 };
const REMOTE: Endpoint = Endpoint { queue_pair: 18, psn: 0xff_ffff, token: 0x2222 };

/// Keeps the position and the bytes of each write.
#[derive(Default)]
struct Record {
    ring: Vec<(u64, Vec<u8>)>,
}

impl Memory for Record {
    fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        self.ring.push((index, bytes.to_vec()));
    }
}

struct Victim {
    connection: Connection,
    memory: Record,
    /// The valid keys, oldest first, each with the beginning of its range.
    keys: Vec<(u32, u64)>,
}

impl Victim {
    fn new() -> Self {
        let config = Config { receive_capacity: 4000, ..Config::default() };
        let connection = Connection::new(&config, LOCAL, REMOTE, [7; 16]).unwrap();
        let mut victim = Self { connection, memory: Record::default(), keys: Vec::new() };
        victim.poll();
        victim
    }

    /// Takes all packets to send, and reads the keys of the last control message. Returns their number.
    fn poll(&mut self) -> usize {
        let (mut headers, mut count) = ([0; MAX_HEADERS], 0);
        while let Some(transmit) = self.connection.poll_transmit(0, &mut headers) {
            count += 1;
            let body = &headers[roce::BTH..transmit.headers];
            if headers[0] == CONTROL {
                let grants = body[28 + body[4] as usize * 8..].chunks_exact(20);
                let key = |grant: &[u8]| u32::from_be_bytes(grant[4..8].try_into().unwrap());
                let start = |grant: &[u8]| u64::from_be_bytes(grant[8..16].try_into().unwrap());
                self.keys = grants.map(|grant| (key(grant), start(grant))).collect();
            }
        }
        count
    }

    fn give(&mut self, packet: &[u8]) {
        self.connection.on_packet(0, packet, &mut self.memory);
    }

    /// Hands over a packet that must change nothing but the counter.
    fn refuses(&mut self, what: &str, packet: &[u8], counter: impl Fn(&Counters) -> u64) {
        let (before, received) = (self.connection.counters(), self.connection.received());
        self.give(packet);
        let after = self.connection.counters();
        assert_eq!(counter(&after), counter(&before) + 1, "{what}");
        assert_eq!(after.placed_ring, before.placed_ring);
        assert_eq!((self.connection.received(), self.connection.ended()), (received, None), "{what}");
        assert!(self.memory.ring.is_empty(), "{what}");
    }
}

fn write(psn: u32, key: u32, address: u64, data: &[u8]) -> Vec<u8> {
    let padding = data.len().wrapping_neg() % 4;
    let mut packet = vec![0; roce::BTH + roce::RETH];
    let mut bth = Bth::new(&mut packet[..]).unwrap();
    bth.fill(opcode::WRITE_ONLY, LOCAL.queue_pair, REMOTE.psn.wrapping_add(psn), false, padding);
    let mut reth = Reth::new(&mut packet[roce::BTH..]).unwrap();
    reth.set_address(address);
    reth.set_key(key);
    reth.set_length(data.len() as u32);
    packet.extend_from_slice(data);
    packet.resize(packet.len() + padding, 0);
    packet
}

fn altered(mut packet: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut packet);
    packet
}

#[test]
fn forged_packets_are_counted_and_change_nothing() {
    let mut victim = Victim::new();
    let (key, second) = (victim.keys[0].0, victim.keys[1].0);
    assert_eq!(victim.keys.iter().map(|&(_, start)| start).collect::<Vec<_>>(), [0, 1000, 2000, 3000]);
    let good = write(0, key, 0, b"data");
    victim.refuses("another key", &write(0, key ^ 1, 0, b"data"), |it| it.refused_key);
    victim.refuses("key 0", &write(0, 0, 0, b"data"), |it| it.refused_key);
    victim.refuses("the key of another range", &write(0, second, 0, b"data"), |it| it.refused_range);
    victim.refuses("a range beyond its key", &write(0, key, 998, b"data"), |it| it.refused_range);
    victim.refuses("an address that wraps", &write(0, key, u64::MAX - 1, b"data"), |it| it.refused_range);
    victim.refuses("no data", &write(0, key, 0, b""), |it| it.refused_range);
    victim.refuses("a PSN beyond the window", &write(64, key, 0, b"data"), |it| it.refused_psn);
    victim.refuses("an old PSN", &write(u32::MAX, key, 0, b"data"), |it| it.duplicates);
    let long = altered(good.clone(), |bytes| bytes[roce::BTH + 15] = 5);
    victim.refuses("a length beyond the packet", &long, |it| it.refused_range);
    let other = altered(good.clone(), |bytes| bytes[7] = 18);
    victim.refuses("another queue pair", &other, |it| it.refused_queue_pair);
    let partition = altered(good.clone(), |bytes| bytes[2] = 0);
    victim.refuses("another partition", &partition, |it| it.refused_queue_pair);
    let first = altered(good.clone(), |bytes| bytes[0] = opcode::WRITE_FIRST);
    victim.refuses("RDMA WRITE FIRST", &first, |it| it.malformed);
    for len in 0..roce::BTH + roce::RETH {
        victim.refuses("a packet cut short", &good[..len], |it| it.malformed);
    }
    victim.give(&good);
    assert_eq!(victim.memory.ring, [(0, b"data".to_vec())]);
    assert_eq!(victim.connection.received(), 4);
}

#[test]
fn control_messages_need_the_token_and_cannot_acknowledge_what_was_not_sent() {
    let mut peer = Connection::new(&Config::default(), REMOTE, LOCAL, [9; 16]).unwrap();
    let mut headers = [0; MAX_HEADERS];
    let len = peer.poll_transmit(0, &mut headers).unwrap().headers;
    let mut victim = Victim::new();
    victim.connection.set_written(0, 10_000).unwrap();
    for byte in 8..16 {
        let forged = altered(headers[..len].to_vec(), |bytes| bytes[roce::BTH + byte] ^= 0x80);
        victim.refuses("a wrong token", &forged, |it| it.refused_control);
    }
    let ahead = altered(headers[..len].to_vec(), |bytes| bytes[roce::BTH + 19] += 1);
    victim.refuses("an acknowledgment of what was not sent", &ahead, |it| it.refused_control);
    assert_eq!(victim.poll(), 0, "without memory information, nothing is sent");
    victim.give(&headers[..len]);
    assert!(victim.poll() > 0);
}

#[test]
fn replays_are_acknowledged_again_but_not_placed_again() {
    let mut victim = Victim::new();
    let key = victim.keys[0].0;
    victim.give(&write(0, key, 0, &[1; 1000]));
    victim.connection.on_timer(MILLISECOND); // the delayed acknowledgment
    assert_eq!(victim.poll(), 1);
    assert_eq!(victim.connection.received(), 1000);
    assert!(victim.keys.iter().all(|&(valid, _)| valid != key), "the key is used up");
    victim.memory.ring.clear();
    victim.refuses("a replay", &write(0, key, 0, &[2; 1000]), |it| it.duplicates);
    assert_eq!(victim.poll(), 1, "the acknowledgment is sent again");
    victim.refuses("a used key with a new PSN", &write(1, key, 0, &[2; 1000]), |it| it.refused_key);
}

#[test]
fn packets_that_contradict_each_other_end_the_connection() {
    let mut victim = Victim::new();
    let key = victim.keys[0].0;
    victim.give(&write(0, key, 100, &[0; 100]));
    assert_eq!(victim.connection.ended(), Some(EndReason::Violation));
    assert_eq!(victim.poll(), 1, "the peer is told");
    assert_eq!(victim.poll(), 0);
}
