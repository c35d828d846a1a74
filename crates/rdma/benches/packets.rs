//! Measures the CPU time of a data packet: headers, the copy from the send ring, processing, placement into the
//! receive ring, and its share of the acknowledgments. Both ends run on one thread and exchange packets
//! through memory, without IP headers and checksums. For comparison, TCP does the same work with segments of
//! the same length.

#![allow(missing_docs, reason = "criterion's macros generate public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inlane_rdma::{Connection, Endpoint, MAX_HEADERS, Memory};
use std::hint::black_box;

const CAPACITY: usize = 64 << 10;
const PAYLOAD: u64 = 1408;
/// The number of packets that are sent before the receiver answers.
const PACKETS: u64 = 8;

struct Ring(Vec<u8>);

impl Ring {
    fn new() -> Self {
        Self(vec![0; CAPACITY])
    }

    fn read(&self, index: u64, bytes: &mut [u8]) {
        let at = (index % CAPACITY as u64) as usize;
        let first = bytes.len().min(CAPACITY - at);
        bytes[..first].copy_from_slice(&self.0[at..at + first]);
        let rest = bytes.len() - first;
        bytes[first..].copy_from_slice(&self.0[..rest]);
    }

    fn write(&mut self, index: u64, bytes: &[u8]) {
        let at = (index % CAPACITY as u64) as usize;
        let first = bytes.len().min(CAPACITY - at);
        self.0[at..at + first].copy_from_slice(&bytes[..first]);
        let rest = bytes.len() - first;
        self.0[..rest].copy_from_slice(&bytes[first..]);
    }
}

impl Memory for Ring {
    fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        self.write(index, bytes);
    }
}

impl inlane_tcp::ReceiveBuffer for Ring {
    fn write(&mut self, index: u64, bytes: &[u8]) {
        Ring::write(self, index, bytes);
    }
}

/// Buffers for the packets of a turn. They are reused, so the benchmark measures no allocations.
struct Packets {
    bytes: Vec<[u8; 2048]>,
    lens: Vec<usize>,
}

impl Packets {
    fn new() -> Self {
        Self { bytes: vec![[0; 2048]; 64], lens: Vec::with_capacity(64) }
    }

    fn next(&mut self) -> &mut [u8; 2048] {
        self.lens.push(0);
        &mut self.bytes[self.lens.len() - 1]
    }
}

fn rdma_send(now: u64, connection: &mut Connection, ring: &Ring, packets: &mut Packets) {
    let mut headers = [0; MAX_HEADERS];
    while let Some(transmit) = connection.poll_transmit(now, &mut headers) {
        let packet = packets.next();
        let len = (transmit.payload.end - transmit.payload.start) as usize;
        packet[..transmit.headers].copy_from_slice(&headers[..transmit.headers]);
        ring.read(transmit.payload.start, &mut packet[transmit.headers..transmit.headers + len]);
        *packets.lens.last_mut().unwrap() = transmit.headers + len + transmit.padding;
    }
}

fn rdma_receive(now: u64, connection: &mut Connection, ring: &mut Ring, packets: &mut Packets) {
    for (packet, &len) in packets.bytes.iter().zip(&packets.lens) {
        connection.on_packet(now, &packet[..len], ring);
    }
    packets.lens.clear();
}

fn tcp_send(now: u64, connection: &mut inlane_tcp::Connection, ring: &Ring, packets: &mut Packets) {
    while let Some(transmit) = connection.poll_transmit(now) {
        for (header, payload) in transmit.segments() {
            let packet = packets.next();
            let at = header.write(1, 2, &mut packet[..]).unwrap();
            let len = (payload.end - payload.start) as usize;
            ring.read(payload.start, &mut packet[at..at + len]);
            *packets.lens.last_mut().unwrap() = at + len;
        }
    }
}

fn tcp_receive(now: u64, connection: &mut inlane_tcp::Connection, ring: &mut Ring, packets: &mut Packets) {
    for (packet, &len) in packets.bytes.iter().zip(&packets.lens) {
        let segment = inlane_tcp::Segment::parse(&packet[..len], inlane_tcp::Ecn::NotEct).unwrap();
        connection.on_segment(now, &segment, ring);
    }
    packets.lens.clear();
}

fn rdma_pair() -> [Connection; 2] {
    let capacity = CAPACITY as u32;
    let config =
        inlane_rdma::Config { send_capacity: capacity, receive_capacity: capacity, ..Default::default() };
    let ends = [17, 18].map(|queue_pair| Endpoint { queue_pair, psn: 5, token: 3 });
    [0, 1].map(|n| Connection::new(&config, ends[n], ends[1 - n], [7; 16]).unwrap())
}

fn tcp_pair() -> [inlane_tcp::Connection; 2] {
    use inlane_tcp::*;
    let (capacity, mss) = (CAPACITY as u32, PAYLOAD as u16 + 12); // 12 bytes are TCP's timestamps
    let config = Config {
        send_capacity: capacity,
        receive_capacity: capacity,
        mss,
        no_delay: true,
        ..Config::default()
    };
    let flow = Flow { local: ([10, 0, 0, 1], 1).into(), remote: ([10, 0, 0, 2], 2).into() };
    let reverse = Flow { local: flow.remote, remote: flow.local };
    let mut listener = Listener::new(&config, Secrets::new([2; 16]), 16).unwrap();
    let bare = |header| Segment { header, payload: &[], ecn: Ecn::NotEct };
    let mut a = Connection::connect(0, &config, Secrets::new([1; 16]).start(0, &flow)).unwrap();
    let syn = a.poll_transmit(0).unwrap().header;
    let Verdict::Reply(reply) = listener.on_segment(0, &reverse, &bare(syn), None) else { panic!() };
    a.on_segment(0, &bare(reply), &mut Ring::new());
    let ack = a.poll_transmit(0).unwrap().header;
    let Verdict::Established(handshake) = listener.on_segment(0, &reverse, &bare(ack), None) else {
        panic!()
    };
    [a, Connection::accept(0, &config, &handshake).unwrap()]
}

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("packet");
    group.throughput(Throughput::Elements(PACKETS));
    let (send, mut receive, mut packets) = (Ring::new(), Ring::new(), Packets::new());
    macro_rules! turn {
        ($name:literal, $pair:expr, $send:ident, $receive:ident, $written:expr) => {
            let [mut a, mut b] = $pair;
            let mut now = 1_000_000;
            let mut turn = || {
                let end = a.acknowledged() + PACKETS * PAYLOAD;
                $written(&mut a, now, end);
                while a.acknowledged() < end {
                    now += 1000;
                    $send(now, &mut a, &send, &mut packets);
                    $receive(now, &mut b, &mut receive, &mut packets);
                    b.set_consumed(b.received()).unwrap();
                    $send(now, &mut b, &send, &mut packets);
                    $receive(now, &mut a, &mut receive, &mut packets);
                    if let Some(at) =
                        b.next_deadline().filter(|_| b.received() == end && a.acknowledged() < end)
                    {
                        now = now.max(at);
                        b.on_timer(now);
                    }
                }
            };
            (0..100).for_each(|_| turn());
            group.bench_function($name, |bencher| bencher.iter(|| turn()));
        };
    }
    turn!("RDMA", rdma_pair(), rdma_send, rdma_receive, |a: &mut Connection, now, end| {
        a.set_written(now, end).unwrap();
    });
    turn!("TCP", tcp_pair(), tcp_send, tcp_receive, |a: &mut inlane_tcp::Connection, _, end| {
        a.set_written(end).unwrap();
    });
    black_box(&receive.0);
    group.finish();
}

criterion_group!(benches, packets);
criterion_main!(benches);
