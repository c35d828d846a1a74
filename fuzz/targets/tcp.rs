//! Drives a TCP connection and a listener with arbitrary segments, timers and application calls. Nothing may
//! panic or loop, the connection's indices into its streams must stay in order, and nothing may be written
//! outside the receive ring.

use inlane_tcp::*;

const CAPACITY: u32 = 4096;

/// A receive ring of [`CAPACITY`] bytes that stores nothing. It checks that each write starts after the bytes
/// that the application has consumed, and ends at most `CAPACITY` bytes after them.
struct Ring {
    consumed: u64,
}

impl ReceiveBuffer for Ring {
    fn write(&mut self, index: u64, bytes: &[u8]) {
        assert!(!bytes.is_empty() && index >= self.consumed);
        assert!(index + bytes.len() as u64 <= self.consumed + CAPACITY as u64, "a write leaves the ring");
    }
}

/// The unread rest of the fuzzer's input. Numbers are taken from it one after the other. Once the rest is
/// empty, all numbers are 0.
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

    /// Returns a number that is near `base` for most inputs, and arbitrary for others, so that both valid and
    /// invalid segments occur.
    fn near(&mut self, base: u32) -> u32 {
        match self.byte() {
            255 => self.number(),
            254 => base.wrapping_add(self.number() % 100_000),
            253 => base.wrapping_sub(self.number() % 100_000),
            small => base.wrapping_add(small as u32).wrapping_sub(64),
        }
    }
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choices = input.byte();
    let config = Config {
        send_capacity: CAPACITY,
        receive_capacity: CAPACITY,
        mss: 256,
        base_mss: 128,
        timestamps: choices & 1 != 0,
        sack: choices & 2 != 0,
        window_scaling: choices & 4 != 0,
        ecn: if choices & 8 != 0 { EcnMode::Request } else { EcnMode::Off },
        no_delay: choices & 16 != 0,
        gso_bytes: if choices & 32 != 0 { 2000 } else { 0 },
        keepalive: (choices & 64 != 0).then_some(Keepalive { idle: SECOND, interval: SECOND, probes: 3 }),
        user_timeout: (choices & 128 != 0).then_some(5 * SECOND),
        ..Config::default()
    };
    let flow = Flow { local: ([10, 0, 0, 1], 1).into(), remote: ([10, 0, 0, 2], 2).into() };
    let mut listener = Listener::new(&config, Secrets::new([1; 16]), 1).unwrap();
    let mut connection =
        Connection::connect(0, &config, InitialNumbers { sequence: 1000, timestamp_offset: 0 }).unwrap();
    let mut ring = Ring { consumed: 0 };
    let (mut now, mut written) = (0u64, 0u64);
    // The sequence number, acknowledgment number and timestamp of a plausible next segment.
    let (mut sequence, mut acknowledgment, mut clock) = (5000u32, 1001u32, 0u32);
    while !input.0.is_empty() {
        match input.byte() {
            0 => {
                now += input.number() as u64 * 64;
                connection.on_timer(now);
                listener.on_timer(now, |_, _| {});
            }
            1 => {
                if let Some(at) = connection.next_deadline() {
                    now = now.max(at);
                    connection.on_timer(now);
                }
            }
            2 => {
                written = connection.acknowledged().max(written).saturating_add(input.number() as u64 % 5000);
                if connection.set_written(written).is_err() {
                    written = written.min(connection.acknowledged() + CAPACITY as u64);
                }
            }
            3 => {
                let index = ring.consumed + input.number() as u64 % 5000;
                if connection.set_consumed(index).is_ok() {
                    ring.consumed = index;
                }
            }
            4 => connection.shutdown_write(),
            5 => connection.close(now),
            6 => connection.set_cork(input.byte() & 1 != 0),
            7 => connection.on_packet_too_big(now, input.near(acknowledgment), input.number() as u16),
            8 => drop(connection.on_unreachable(input.near(acknowledgment), input.byte() & 1 != 0)),
            9 if input.byte() == 77 => connection.abort(),
            10 => {
                let len = (input.byte() as usize).min(input.0.len());
                let (wire, rest) = input.0.split_at(len);
                input.0 = rest;
                if let Ok(segment) = Segment::parse(wire, Ecn::Ce) {
                    connection.on_segment(now, &segment, &mut ring);
                    let _ = reset_for(&segment);
                }
            }
            _ => {
                let mut options = Options::default();
                let kinds = input.byte();
                if kinds & 1 != 0 || config.timestamps {
                    clock = input.near(clock);
                    options.timestamps = Some(Timestamps { value: clock, echo: (now / MILLISECOND) as u32 });
                }
                for _ in 0..kinds >> 1 & 3 {
                    let left = input.near(acknowledgment);
                    options.sack.push(left, left.wrapping_add(input.byte() as u32 * 8));
                }
                let header = Header {
                    sequence: input.near(sequence),
                    acknowledgment: input.near(acknowledgment),
                    window: input.number() as u16,
                    flags: if kinds & 8 != 0 { input.byte() } else { inlane_wire::tcp::ACK },
                    options: Options {
                        mss: (kinds & 16 != 0).then(|| input.number() as u16),
                        window_scale: (kinds & 32 != 0).then_some(3),
                        sack_permitted: kinds & 64 != 0,
                        ..options
                    },
                };
                let payload = vec![0; input.byte() as usize * 4];
                let segment = Segment { header, payload: &payload, ecn: Ecn::of(kinds) };
                connection.on_segment(now, &segment, &mut ring);
                if let Verdict::Established(handshake) = listener.on_segment(now, &flow, &segment, None) {
                    Connection::accept(now, &config, &handshake).unwrap();
                }
                if let Some(mut entry) = connection.time_wait() {
                    entry.on_segment(now, SECOND, &segment);
                }
            }
        }
        let mut count = 0;
        while let Some(transmit) = connection.poll_transmit(now) {
            assert!(transmit.payload.end <= connection.acknowledged() + CAPACITY as u64);
            assert!(transmit.payload.start <= transmit.payload.end);
            assert!(transmit.header.options.wire_len() <= 40);
            acknowledgment = transmit.header.sequence.wrapping_add(transmit.len() as u32);
            sequence =
                if transmit.header.acknowledgment == 0 { sequence } else { transmit.header.acknowledgment };
            count += 1;
            assert!(count < 10_000, "poll_transmit does not end");
        }
        assert!(connection.received() <= ring.consumed + CAPACITY as u64);
        assert!(connection.in_flight() <= CAPACITY as u64 + 1);
    }
}
