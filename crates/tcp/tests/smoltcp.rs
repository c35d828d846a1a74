//! A connection with smoltcp, an independent implementation, as the peer: over a perfect and over a lossy
//! link, opened by either side.

mod network;

use inlane_tcp::*;
use inlane_wire::{ipv4, tcp as wire};
use network::{Random, Ring, byte};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;

const OURS: [u8; 4] = [10, 0, 0, 1];
const THEIRS: [u8; 4] = [10, 0, 0, 2];
const BYTES: u64 = 300_000;
const DELAY: u64 = 5 * MILLISECOND;

#[derive(Default)]
struct Frames(VecDeque<(u64, Vec<u8>)>);

struct Queues {
    now: u64,
    to_peer: Frames,
    from_peer: Frames,
    random: Random,
    loss: f64,
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut Queues);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        if !self.0.random.chance(self.0.loss) {
            self.0.from_peer.0.push_back((self.0.now + DELAY, frame));
        }
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        self.to_peer.0.front().filter(|frame| frame.0 <= self.now)?;
        let (_, frame) = self.to_peer.0.pop_front()?;
        Some((Rx(frame), Tx(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

fn packet(header: &Header, payload: std::ops::Range<u64>, ring: &Ring) -> Vec<u8> {
    let len = (payload.end - payload.start) as usize;
    let mut bytes = vec![0; 20 + header.wire_len() + len];
    let mut packet = ipv4::Packet::init(&mut bytes[..]).unwrap();
    packet.set_protocol(ipv4::TCP);
    packet.set_ttl(64);
    packet.set_source(OURS.into());
    packet.set_destination(THEIRS.into());
    packet.fill_checksum();
    let pseudo = packet.pseudo_sum();
    let at = header.write(1000, 80, packet.payload_mut()).unwrap();
    ring.read(payload.start, &mut packet.payload_mut()[at..]);
    wire::Segment::new(packet.payload_mut()).unwrap().fill_checksum(pseudo);
    bytes
}

fn transfer(seed: u64, loss: f64, active: bool) {
    let mut queues = Queues {
        now: 0,
        to_peer: Frames::default(),
        from_peer: Frames::default(),
        random: Random(seed),
        loss,
    };
    let mut interface = Interface::new(InterfaceConfig::new(HardwareAddress::Ip), &mut queues, Instant::ZERO);
    interface.update_ip_addrs(|list| {
        list.push(IpCidr::new(IpAddress::from(std::net::Ipv4Addr::from(THEIRS)), 8)).unwrap()
    });
    let buffer = || SocketBuffer::new(vec![0; 32_768]);
    let mut socket = Socket::new(buffer(), buffer());
    if active {
        socket.listen(80).unwrap();
    } else {
        socket
            .connect(interface.context(), (IpAddress::from(std::net::Ipv4Addr::from(OURS)), 1000), 80)
            .unwrap();
    }
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(socket);

    let config = Config { send_capacity: 1 << 16, receive_capacity: 1 << 16, ..Config::default() };
    let secrets = Secrets::new([1; 16]);
    let flow = Flow { local: (OURS, 1000).into(), remote: (THEIRS, 80).into() };
    let mut listener = Listener::new(&config, secrets.clone(), 2).unwrap();
    let mut connection = active.then(|| Connection::connect(0, &config, secrets.start(0, &flow)).unwrap());
    let (mut send, mut receive) = (Ring::new(1 << 16), Ring::new(1 << 16));
    let (mut written, mut consumed, mut peer_written, mut peer_read) = (0, 0, 0, 0);
    let mut peer_closed = false;
    while !(consumed == BYTES && peer_closed && connection.as_ref().is_some_and(Connection::peer_closed)) {
        queues.now += MILLISECOND;
        let now = queues.now;
        assert!(
            now < 600 * SECOND,
            "seed {seed}: stalled with {consumed} and {peer_read} bytes read: {connection:#?}"
        );
        let mut reply = vec![];
        while queues.from_peer.0.front().is_some_and(|frame| frame.0 <= now) {
            let (_, frame) = queues.from_peer.0.pop_front().unwrap();
            let packet = ipv4::Packet::new(&frame[..]).unwrap();
            let segment = Segment::parse(packet.payload(), Ecn::NotEct).unwrap();
            if let Some(connection) = &mut connection {
                connection.on_segment(now, &segment, &mut receive);
                continue;
            }
            match listener.on_segment(now, &flow, &segment, None) {
                Verdict::Reply(header) => reply.push(header),
                Verdict::Established(handshake) => {
                    let mut accepted = Connection::accept(now, &config, &handshake).unwrap();
                    accepted.on_segment(now, &segment, &mut receive);
                    connection = Some(accepted);
                }
                Verdict::Drop => {}
            }
        }
        listener.on_timer(now, |_, header| reply.push(header));
        let mut frames: Vec<_> = reply.iter().map(|header| packet(header, 0..0, &send)).collect();
        if let Some(connection) = &mut connection {
            connection.on_timer(now);
            if connection.state() != State::SynSent {
                let len = (connection.acknowledged() + (1 << 16)).min(BYTES) - written;
                let bytes: Vec<u8> = (written..written + len).map(|index| byte(1, index)).collect();
                send.write(written, &bytes);
                written += len;
                connection.set_written(written).unwrap();
                if written == BYTES {
                    connection.shutdown_write();
                }
                let mut bytes = vec![0; (connection.received() - consumed) as usize];
                receive.read(consumed, &mut bytes);
                assert!(bytes.iter().zip(consumed..).all(|(&found, index)| found == byte(2, index)));
                consumed = connection.received();
                connection.set_consumed(consumed).unwrap();
            }
            while let Some(transmit) = connection.poll_transmit(now) {
                frames.extend(transmit.segments().map(|(header, payload)| packet(&header, payload, &send)));
            }
        }
        for frame in frames {
            if !queues.random.chance(loss) {
                queues.to_peer.0.push_back((now + DELAY, frame));
            }
        }
        interface.poll(Instant::from_millis((now / MILLISECOND) as i64), &mut queues, &mut sockets);
        let socket = sockets.get_mut::<Socket>(handle);
        if socket.can_send() && peer_written < BYTES {
            let bytes: Vec<u8> =
                (peer_written..BYTES.min(peer_written + 8192)).map(|index| byte(2, index)).collect();
            peer_written += socket.send_slice(&bytes).unwrap() as u64;
        }
        while socket.can_recv() {
            peer_read += socket
                .recv(|bytes| {
                    assert!(bytes.iter().zip(peer_read..).all(|(&found, index)| found == byte(1, index)));
                    (bytes.len(), bytes.len() as u64)
                })
                .unwrap();
        }
        if peer_read == BYTES && peer_written == BYTES && !peer_closed {
            socket.close();
            peer_closed = true;
        }
    }
    assert_eq!(peer_read, BYTES);
    if loss == 0.0 {
        assert_eq!(connection.unwrap().counters().retransmitted_bytes, 0);
    }
}

#[test]
fn both_directions_without_loss() {
    transfer(1, 0.0, true);
    transfer(2, 0.0, false);
}

#[test]
fn both_directions_with_losses() {
    for seed in 0..6 {
        transfer(seed, 0.02, seed % 2 == 0);
    }
}
