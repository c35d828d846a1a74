//! Tests a connection with the Linux kernel's TCP as the peer, over a TUN device in a network namespace.
//! Needs root.

mod network;
mod tun;

use inlane_tcp::*;
use inlane_wire::{ipv4, tcp as wire};
use network::{Random, Ring, byte};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tun::{KERNEL, OURS, device, frame};

const BYTES: u64 = 2_000_000;
const BUFFER: usize = 1 << 18;

/// Acts as the application on the kernel's side: writes its own stream. Meanwhile reads the other side's
/// stream to its end and checks it.
fn kernel(mut stream: TcpStream) {
    let mut writer = stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        let bytes: Vec<u8> = (0..BYTES).map(|index| byte(2, index)).collect();
        writer.write_all(&bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let (mut read, mut bytes) = (0, vec![0; 65_536]);
    loop {
        let len = stream.read(&mut bytes).unwrap();
        if len == 0 {
            break;
        }
        assert!(bytes[..len].iter().zip(read..).all(|(&found, index)| found == byte(1, index)));
        read += len as u64;
    }
    assert_eq!(read, BYTES);
    sender.join().unwrap();
}

/// Transfers both streams and loses frames in both directions with probability `loss`. If `active` is set,
/// this side opens the connection, otherwise the kernel does.
fn transfer(mut tun: File, loss: f64, active: bool) {
    let config = Config {
        send_capacity: BUFFER as u32,
        receive_capacity: BUFFER as u32,
        ecn: EcnMode::Request,
        ..Config::default()
    };
    let mut random = Random(7);
    let secrets = Secrets::new([3; 16]);
    let mut listener = Listener::new(&config, secrets.clone(), 2).unwrap();
    let (peer, flow) = if active {
        let listening = TcpListener::bind((std::net::Ipv4Addr::from(KERNEL), 7000)).unwrap();
        let peer = thread::spawn(move || kernel(listening.accept().unwrap().0));
        (peer, Some(Flow { local: (OURS, 40_000).into(), remote: (KERNEL, 7000).into() }))
    } else {
        (thread::spawn(|| kernel(TcpStream::connect((std::net::Ipv4Addr::from(OURS), 80)).unwrap())), None)
    };
    let mut ports = flow.map_or((80, 0), |flow| (flow.local.port(), flow.remote.port()));
    let mut connection = flow.map(|flow| Connection::connect(0, &config, secrets.start(0, &flow)).unwrap());
    let (mut send, mut receive) = (Ring::new(BUFFER), Ring::new(BUFFER));
    let (mut written, mut consumed) = (0, 0);
    let start = Instant::now();
    let mut bytes = vec![0; 65_536];
    while !peer.is_finished() || connection.as_ref().is_none_or(|c| !c.peer_closed() || consumed < BYTES) {
        let now = start.elapsed().as_nanos() as u64;
        assert!(now < 60 * SECOND, "stalled: {connection:#?}");
        let mut replies = vec![];
        let len = match tun.read(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_micros(200));
                0
            }
            Err(error) => panic!("TUN: {error}"),
        };
        let packet = ipv4::Packet::new(&bytes[..len])
            .ok()
            .filter(|p| p.protocol() == ipv4::TCP && !random.chance(loss));
        if let Some(packet) = packet {
            let view = wire::Segment::new(packet.payload()).unwrap();
            assert!(view.checksum_ok(packet.pseudo_sum()));
            ports.1 = view.source_port();
            let segment = Segment::parse(packet.payload(), Ecn::of(packet.tos())).unwrap();
            if let Some(connection) = &mut connection {
                connection.on_segment(now, &segment, &mut receive);
            } else {
                let flow = Flow { local: (OURS, 80).into(), remote: (KERNEL, ports.1).into() };
                match listener.on_segment(now, &flow, &segment, None) {
                    Verdict::Reply(header) => replies.push(header),
                    Verdict::Established(handshake) => {
                        let accepted =
                            connection.insert(Connection::accept(now, &config, &handshake).unwrap());
                        accepted.on_segment(now, &segment, &mut receive);
                    }
                    Verdict::Drop => {}
                }
            }
        }
        listener.on_timer(now, |_, header| replies.push(header));
        let mut frames: Vec<_> =
            replies.iter().map(|header| frame(header, 0..0, &send, ports, Ecn::NotEct)).collect();
        if let Some(connection) = &mut connection {
            connection.on_timer(now);
            if !matches!(connection.state(), State::SynSent | State::Closed) {
                let len = (connection.acknowledged() + BUFFER as u64).min(BYTES) - written;
                let fresh: Vec<u8> = (written..written + len).map(|index| byte(1, index)).collect();
                send.write(written, &fresh);
                written += len;
                connection.set_written(written).unwrap();
                if written == BYTES {
                    connection.shutdown_write();
                }
                let mut fresh = vec![0; (connection.received() - consumed) as usize];
                receive.read(consumed, &mut fresh);
                assert!(fresh.iter().zip(consumed..).all(|(&found, index)| found == byte(2, index)));
                consumed = connection.received();
                connection.set_consumed(consumed).unwrap();
            }
            while let Some(transmit) = connection.poll_transmit(now) {
                frames.extend(
                    transmit
                        .segments()
                        .map(|(header, range)| frame(&header, range, &send, ports, transmit.ecn)),
                );
            }
        }
        for frame in frames {
            if !random.chance(loss) {
                let _ = tun.write(&frame); // a full queue is a loss
            }
        }
    }
    peer.join().unwrap();
    let connection = connection.unwrap();
    assert!(connection.sack());
}

#[test]
fn both_directions_with_the_kernel() {
    for (loss, active) in [(0.0, true), (0.0, false), (0.01, true), (0.01, false)] {
        // A thread enters its network namespace for good, so each case gets its own thread.
        let ran = thread::spawn(move || device().map(|tun| transfer(tun, loss, active))).join().unwrap();
        if let Err(why) = ran {
            eprintln!("SKIPPED both_directions_with_the_kernel: {why}; run as root");
            return;
        }
    }
}
