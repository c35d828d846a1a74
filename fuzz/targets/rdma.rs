//! Drives an RDMA connection with arbitrary packets, timers and application calls. Nothing may panic or loop.
//! Nothing may be written outside the receive ring.

use inlane_rdma::*;
use inlane_wire::roce::{self, Bth, ImmDt, Reth, opcode};

const CAPACITY: u32 = 4096;

/// Memory that stores nothing, and checks where data goes.
struct Checked {
    consumed: u64,
}

impl Memory for Checked {
    fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        assert!(!bytes.is_empty() && index >= self.consumed);
        assert!(index + bytes.len() as u64 <= self.consumed + CAPACITY as u64, "a write leaves the ring");
    }
}

/// The unread rest of the fuzzer's input. Once it is empty, all numbers are 0.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

/// Returns the keys and starts of the grants in a control message.
fn grants(message: &[u8]) -> Vec<(u32, u64)> {
    let body = &message[roce::BTH..];
    let (count, words) = (body[3] as usize, body[4] as usize);
    let grant = |bytes: &[u8]| {
        let key = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        (key, u64::from_be_bytes(bytes[8..16].try_into().unwrap()))
    };
    body[28 + words * 8..].chunks_exact(20).take(count).map(grant).collect()
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let config =
        Config { send_capacity: CAPACITY, receive_capacity: CAPACITY, payload: 256, ..Config::default() };
    let local = Endpoint { queue_pair: 17, psn: 0xff_fff0, token: 1 };
    let remote = Endpoint { queue_pair: 18, psn: 0xff_fff0, token: 2 };
    let mut connection = Connection::new(&config, local, remote, [7; 16]).unwrap();
    // The peer makes valid control messages for the connection, so its local endpoint is the remote one of the connection.
    let mut peer = Connection::new(&config, remote, local, [8; 16]).unwrap();
    let mut memory = Checked { consumed: 0 };
    let mut peer_memory = Checked { consumed: 0 };
    let (mut now, mut written, mut keys) = (0u64, 0u64, vec![(0u32, 0u64)]);
    while !input.0.is_empty() {
        match input.byte() {
            0 => {
                now += input.number() as u64;
                connection.on_timer(now);
            }
            1 => {
                if let Some(at) = connection.next_deadline() {
                    now = now.max(at);
                    connection.on_timer(now);
                }
            }
            2 => {
                let index = written + input.number() as u64 % 5000;
                if connection.set_written(now, index).is_ok() {
                    written = index;
                }
            }
            3 => {
                let index = memory.consumed + input.number() as u64 % 5000;
                if connection.set_consumed(index).is_ok() {
                    memory.consumed = index;
                }
            }
            6 => connection.shutdown_write(),
            7 if input.byte() == 77 => connection.abort(),
            8 => {
                let len = (input.byte() as usize * 4).min(input.0.len());
                let (packet, rest) = input.0.split_at(len);
                input.0 = rest;
                connection.on_packet(now, packet, &mut memory);
            }
            9 => {
                // An altered control message of the peer.
                let mut headers = [0; MAX_HEADERS];
                if let Some(transmit) = peer.poll_transmit(now, &mut headers) {
                    let at = roce::BTH + input.byte() as usize % (transmit.headers - roce::BTH);
                    headers[at] ^= input.byte();
                    connection.on_packet(now, &headers[..transmit.headers], &mut memory);
                }
            }
            kind => {
                let (key, start) = keys[input.byte() as usize % keys.len()];
                // Kind 10 ends the stream, and kind 12 has an acknowledgment beside the data.
                let len = if kind == 10 { 0 } else { input.byte() as usize };
                let padding = len.wrapping_neg() % 4;
                let acknowledges = matches!(kind, 10 | 12);
                let code = if acknowledges { opcode::WRITE_ONLY_IMMEDIATE } else { opcode::WRITE_ONLY };
                let mut packet = vec![0; data_headers(code).unwrap() + len + padding];
                let psn = remote.psn + input.byte() as u32;
                let mut bth = Bth::new(&mut packet[..]).unwrap();
                bth.fill(code, local.queue_pair, psn, false, padding);
                let mut reth = Reth::new(&mut packet[roce::BTH..]).unwrap();
                reth.set_address(start.wrapping_add(input.byte() as u64 * 8));
                reth.set_key(key ^ (kind == 11) as u32);
                reth.set_length(len as u32);
                if acknowledges {
                    let expected = local.psn.wrapping_add(input.byte() as u32);
                    ImmDt::new(&mut packet[roce::BTH + roce::RETH..]).unwrap().set_value(expected);
                }
                connection.on_packet(now, &packet, &mut memory);
            }
        }
        let (mut headers, mut count) = ([0; MAX_HEADERS], 0);
        while let Some(transmit) = connection.poll_transmit(now, &mut headers) {
            assert!(transmit.payload.end <= written);
            if headers[0] == CONTROL {
                keys.extend(grants(&headers[..transmit.headers]));
                peer.on_packet(now, &headers[..transmit.headers], &mut peer_memory);
            } else if transmit.payload.start % 512 == 0 {
                let mut packet = headers[..transmit.headers].to_vec();
                let data = (transmit.payload.end - transmit.payload.start) as usize + transmit.padding;
                packet.resize(packet.len() + data, 0);
                peer.on_packet(now, &packet, &mut peer_memory);
            }
            count += 1;
            assert!(count < 10_000, "poll_transmit does not end");
        }
        assert!(connection.acknowledged() <= written);
        assert!(connection.received() <= memory.consumed + CAPACITY as u64);
    }
}
