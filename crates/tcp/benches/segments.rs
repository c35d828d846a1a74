//! Measures the CPU time of a data segment. Both ends of the connection run on one thread and exchange IPv4
//! frames through memory. The MTU is 1500, and there are no checksums. The time contains the work of both
//! ends: acknowledgments, headers, copies and the search for the flow.
//!
//! For comparison, `smoltcp` does the same work with a socket set for each flow.

#![allow(missing_docs, reason = "criterion's macros generate public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inlane_tcp::*;
use inlane_wire::{ipv4, tcp as wire};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

const BUFFER: usize = 16 << 10;
/// The number of data segments that each connection sends before the next connection sends.
const SEGMENTS: u64 = 8;
const PAYLOAD: u64 = 1448;
const COUNTS: [usize; 3] = [1, 1_000, 10_000];

struct Ring(Box<[u8]>);

impl Ring {
    fn read(&self, index: u64, bytes: &mut [u8]) {
        let at = (index % BUFFER as u64) as usize;
        let first = bytes.len().min(BUFFER - at);
        bytes[..first].copy_from_slice(&self.0[at..at + first]);
        let rest = bytes.len() - first;
        bytes[first..].copy_from_slice(&self.0[..rest]);
    }
}

impl ReceiveBuffer for Ring {
    fn write(&mut self, index: u64, bytes: &[u8]) {
        let at = (index % BUFFER as u64) as usize;
        let first = bytes.len().min(BUFFER - at);
        self.0[at..at + first].copy_from_slice(&bytes[..first]);
        let rest = bytes.len() - first;
        self.0[..rest].copy_from_slice(&bytes[first..]);
    }
}

type Key = (u32, u32, u16, u16);

struct Side {
    flows: HashMap<Key, usize>,
    connections: Vec<Connection>,
    rings: Vec<Ring>,
}

/// Buffers of 1536 bytes, one for each frame to send. They are reused, so that the benchmark measures no
/// allocations.
#[derive(Default)]
struct Frames {
    room: Vec<Vec<u8>>,
    lens: Vec<usize>,
}

impl Frames {
    fn next(&mut self) -> &mut [u8] {
        if self.room.len() == self.lens.len() {
            self.room.push(vec![0; 1536]);
        }
        self.lens.push(0);
        let at = self.lens.len() - 1;
        &mut self.room[at]
    }

    fn set_len(&mut self, len: usize) {
        *self.lens.last_mut().unwrap() = len;
    }
}

fn config() -> Config {
    Config {
        send_capacity: BUFFER as u32,
        receive_capacity: BUFFER as u32,
        no_delay: true,
        ..Config::default()
    }
}

fn flow(n: usize) -> Flow {
    Flow {
        local: (Ipv4Addr::from(0x0a00_0000 + (n >> 8) as u32), 1000 + (n & 255) as u16).into(),
        remote: (Ipv4Addr::new(10, 1, 0, 1), 80).into(),
    }
}

fn key(flow: &Flow) -> Key {
    let number = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => u32::from(address),
        std::net::IpAddr::V6(_) => unreachable!(),
    };
    (number(flow.remote.ip()), number(flow.local.ip()), flow.remote.port(), flow.local.port())
}

fn reverse(flow: &Flow) -> Flow {
    Flow { local: flow.remote, remote: flow.local }
}

/// Creates `count` connections between two sides. If `shared` is true, all connections of a side use the same
/// ring. The payload then stays in the cache, so the benchmark measures the time of TCP alone.
fn sides(count: usize, shared: bool) -> [Side; 2] {
    let secrets = Secrets::new([1; 16]);
    let mut listener = Listener::new(&config(), Secrets::new([2; 16]), 16).unwrap();
    let side = || Side { flows: HashMap::new(), connections: Vec::new(), rings: Vec::new() };
    let [mut a, mut b] = [side(), side()];
    let bare = |header| Segment { header, payload: &[], ecn: Ecn::NotEct };
    for n in 0..count {
        let flow = flow(n);
        let mut ring = Ring(vec![0; BUFFER].into());
        let mut connection = Connection::connect(0, &config(), secrets.start(0, &flow)).unwrap();
        let syn = connection.poll_transmit(0).unwrap().header;
        let Verdict::Reply(reply) = listener.on_segment(0, &reverse(&flow), &bare(syn), None) else {
            panic!()
        };
        connection.on_segment(0, &bare(reply), &mut ring);
        let ack = connection.poll_transmit(0).unwrap().header;
        let Verdict::Established(handshake) = listener.on_segment(0, &reverse(&flow), &bare(ack), None)
        else {
            panic!()
        };
        a.flows.insert(key(&flow), n);
        b.flows.insert(key(&reverse(&flow)), n);
        a.connections.push(connection);
        b.connections.push(Connection::accept(0, &config(), &handshake).unwrap());
        if n == 0 || !shared {
            a.rings.push(ring);
            b.rings.push(Ring(vec![0; BUFFER].into()));
        }
    }
    [a, b]
}

/// Builds the frames that connection `n` has to send.
fn transmit(now: u64, side: &mut Side, n: usize, flow: &Flow, frames: &mut Frames) {
    let (from, to) = key(&reverse(flow)).pair();
    while let Some(transmit) = side.connections[n].poll_transmit(now) {
        for (header, payload) in transmit.segments() {
            let frame = frames.next();
            let mut packet = ipv4::Packet::init(&mut frame[..]).unwrap();
            packet.set_protocol(ipv4::TCP);
            packet.set_source(from.0.into());
            packet.set_destination(to.0.into());
            let len = (payload.end - payload.start) as usize;
            let at = header.write(from.1, to.1, packet.payload_mut()).unwrap();
            packet.set_total_length((20 + at + len) as u16);
            side.rings[n % side.rings.len()].read(payload.start, &mut frame[20 + at..20 + at + len]);
            frames.set_len(20 + at + len);
        }
    }
}

trait Pair {
    fn pair(self) -> ((u32, u16), (u32, u16));
}

impl Pair for Key {
    fn pair(self) -> ((u32, u16), (u32, u16)) {
        ((self.0, self.2), (self.1, self.3))
    }
}

/// Parses the frames. For each frame, looks up the connection by its flow and passes it the segment.
fn receive(now: u64, side: &mut Side, frames: &mut Frames) {
    for (frame, &len) in frames.room.iter().zip(&frames.lens) {
        let packet = ipv4::Packet::new(&frame[..len]).unwrap();
        let view = wire::Segment::new(packet.payload()).unwrap();
        let key = (
            u32::from(packet.source()),
            u32::from(packet.destination()),
            view.source_port(),
            view.destination_port(),
        );
        let n = side.flows[&key];
        let segment = Segment::parse(packet.payload(), Ecn::NotEct).unwrap();
        let ring = n % side.rings.len();
        side.connections[n].on_segment(now, &segment, &mut side.rings[ring]);
    }
    frames.lens.clear();
}

/// Transfers [`SEGMENTS`] segments on connection `n`, until the last one is acknowledged. Returns the virtual
/// time at the end, in nanoseconds.
fn turn(mut now: u64, [a, b]: &mut [Side; 2], n: usize, frames: &mut [Frames; 2]) -> u64 {
    let flow = flow(n);
    let written = a.connections[n].acknowledged() + SEGMENTS * PAYLOAD;
    a.connections[n].set_written(written).unwrap();
    while a.connections[n].acknowledged() < written {
        now += 1000;
        transmit(now, a, n, &flow, &mut frames[0]);
        receive(now, b, &mut frames[0]);
        let received = b.connections[n].received();
        b.connections[n].set_consumed(received).unwrap();
        transmit(now, b, n, &reverse(&flow), &mut frames[1]);
        receive(now, a, &mut frames[1]);
        if b.connections[n].received() == written && a.connections[n].acknowledged() < written {
            now += 50_000_000; // the last acknowledgment is delayed
            b.connections[n].on_timer(now);
        }
    }
    now
}

mod peer {
    //! The same with smoltcp.
    use super::{BUFFER, PAYLOAD, SEGMENTS};
    use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
    use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
    use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
    use smoltcp::time::Instant;
    use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
    use std::collections::VecDeque;

    #[derive(Default)]
    pub struct Queue {
        inbound: VecDeque<Vec<u8>>,
        outbound: VecDeque<Vec<u8>>,
        free: Vec<Vec<u8>>,
    }

    pub struct Rx<'a>(Vec<u8>, &'a mut Vec<Vec<u8>>);
    pub struct Tx<'a>(&'a mut VecDeque<Vec<u8>>, Vec<u8>);

    impl RxToken for Rx<'_> {
        fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
            let result = f(&self.0);
            self.1.push(self.0);
            result
        }
    }

    impl TxToken for Tx<'_> {
        fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, len: usize, f: F) -> R {
            self.1.resize(len, 0);
            let result = f(&mut self.1);
            self.0.push_back(self.1);
            result
        }
    }

    impl Device for Queue {
        type RxToken<'a> = Rx<'a>;
        type TxToken<'a> = Tx<'a>;

        fn receive(&mut self, _: Instant) -> Option<(Rx<'_>, Tx<'_>)> {
            let frame = self.inbound.pop_front()?;
            let spare = Vec::with_capacity(1536);
            Some((Rx(frame, &mut self.free), Tx(&mut self.outbound, spare)))
        }

        fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
            let frame = self.free.pop().unwrap_or_else(|| Vec::with_capacity(1536));
            Some(Tx(&mut self.outbound, frame))
        }

        fn capabilities(&self) -> DeviceCapabilities {
            let mut capabilities = DeviceCapabilities::default();
            capabilities.medium = Medium::Ip;
            capabilities.max_transmission_unit = 1500;
            capabilities.checksum.ipv4 = Checksum::None;
            capabilities.checksum.tcp = Checksum::None;
            capabilities
        }
    }

    pub struct Side {
        pub queue: Queue,
        interface: Interface,
        sets: Vec<(SocketSet<'static>, SocketHandle)>,
    }

    impl Side {
        fn new(address: [u8; 4]) -> Self {
            let mut queue = Queue::default();
            let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut queue, Instant::ZERO);
            interface.update_ip_addrs(|list| {
                let address = IpAddress::v4(address[0], address[1], address[2], address[3]);
                list.push(IpCidr::new(address, 8)).unwrap();
            });
            Self { queue, interface, sets: Vec::new() }
        }

        fn poll(&mut self, now: Instant, n: usize) {
            self.interface.poll(now, &mut self.queue, &mut self.sets[n].0);
        }
    }

    pub fn sides(count: usize) -> [Side; 2] {
        let [mut a, mut b] = [Side::new([10, 0, 0, 1]), Side::new([10, 0, 0, 2])];
        for n in 0..count {
            let (local, remote) = (1000 + n as u16, 80);
            for (side, active) in [(&mut a, true), (&mut b, false)] {
                let buffer = || SocketBuffer::new(vec![0; BUFFER]);
                let mut socket = Socket::new(buffer(), buffer());
                socket.set_congestion_control(CongestionControl::Cubic);
                socket.set_nagle_enabled(false);
                let mut set = SocketSet::new(Vec::new());
                if active {
                    let to = (IpAddress::v4(10, 0, 0, 2), remote);
                    socket.connect(side.interface.context(), to, local).unwrap();
                } else {
                    socket.listen(remote).unwrap();
                }
                let handle = set.add(socket);
                side.sets.push((set, handle));
            }
            let mut sides = [a, b];
            for _ in 0..4 {
                exchange(Instant::ZERO, &mut sides, n);
            }
            [a, b] = sides;
        }
        [a, b]
    }

    fn exchange(now: Instant, [a, b]: &mut [Side; 2], n: usize) {
        a.poll(now, n);
        b.queue.inbound.append(&mut a.queue.outbound);
        b.poll(now, n);
        a.queue.inbound.append(&mut b.queue.outbound);
        a.poll(now, n);
    }

    pub fn turn(mut now: u64, sides: &mut [Side; 2], n: usize, data: &[u8]) -> u64 {
        let mut left = (SEGMENTS * PAYLOAD) as usize;
        let mut unread = left;
        while unread > 0 {
            now += 1;
            let (set, handle) = &mut sides[0].sets[n];
            left -= set.get_mut::<Socket>(*handle).send_slice(&data[..left]).unwrap();
            exchange(Instant::from_micros(now as i64), sides, n);
            let (set, handle) = &mut sides[1].sets[n];
            let socket = set.get_mut::<Socket>(*handle);
            while socket.can_recv() {
                unread -= socket.recv(|bytes| (bytes.len(), bytes.len())).unwrap();
            }
            if unread > 0 && left == 0 {
                now += 50_000; // a delayed acknowledgment
            }
        }
        now
    }
}

/// Returns the CPU time of `turns` calls of `turn`.
fn cpu_time(turns: u64, mut turn: impl FnMut()) -> Duration {
    let time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let start = time();
    for _ in 0..turns {
        turn();
    }
    time() - start
}

fn segments(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("segment");
    group.throughput(Throughput::Elements(SEGMENTS)).measurement_time(Duration::from_secs(3)).sample_size(20);
    for count in COUNTS {
        for (name, shared) in [("inlane, shared rings", true), ("inlane", false)] {
            let mut both = sides(count, shared);
            let mut frames = [Frames::default(), Frames::default()];
            let (mut now, mut n) = (1_000_000, 0);
            group.bench_function(format!("{name}/{count}"), |bencher| {
                bencher.iter_custom(|turns| {
                    cpu_time(turns, || {
                        now = turn(now, &mut both, n, &mut frames);
                        n = (n + 7919) % count;
                    })
                });
            });
        }
        let mut both = peer::sides(count);
        let data = vec![0; BUFFER];
        let (mut now, mut n) = (1_000, 0);
        group.bench_function(format!("smoltcp/{count}"), |bencher| {
            bencher.iter_custom(|turns| {
                cpu_time(turns, || {
                    now = peer::turn(now, &mut both, n, &data);
                    n = (n + 7919) % count;
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, segments);
criterion_main!(benches);
