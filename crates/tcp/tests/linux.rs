//! Tests a connection with the Linux kernel's TCP as the peer, over a TUN device in a network namespace.
//! Needs root.

mod network;

use inlane_tcp::*;
use inlane_wire::{ipv4, tcp as wire};
use network::{Random, Ring, byte};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

const OURS: [u8; 4] = [10, 9, 0, 2];
const KERNEL: [u8; 4] = [10, 9, 0, 1];
const BYTES: u64 = 2_000_000;
const BUFFER: usize = 1 << 18;

/// Enters a new network namespace and creates a TUN device with the kernel's address. If this machine does
/// not allow that, returns the reason as the error.
fn device() -> Result<File, String> {
    let check = |what: &str, result: i32| {
        if result >= 0 { Ok(()) } else { Err(format!("{what}: {}", std::io::Error::last_os_error())) }
    };
    // SAFETY: affects this thread and the threads that it creates.
    check("unshare(CLONE_NEWNET)", unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    let tun = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map_err(|error| format!("/dev/net/tun: {error}"))?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tcp0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the request lives during the call and has the type that the ioctl expects.
    check("TUNSETIFF", unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &request) })?;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"));
    let socket = socket.map_err(|error| format!("socket: {error}"))?;
    let mut address = |what: &str, code: u64, value: [u8; 4]| {
        request.ifr_ifru.ifru_addr.sa_family = libc::AF_INET as _;
        request.ifr_ifru.ifru_addr.sa_data = [0; 14];
        // SAFETY: only the address member of the union is used.
        let data = unsafe { &mut request.ifr_ifru.ifru_addr.sa_data };
        for (to, from) in data[2..].iter_mut().zip(value) {
            *to = from as libc::c_char;
        }
        // SAFETY: as above.
        check(what, unsafe { libc::ioctl(socket.as_raw_fd(), code as _, &request) })
    };
    address("SIOCSIFADDR", libc::SIOCSIFADDR, KERNEL)?;
    address("SIOCSIFNETMASK", libc::SIOCSIFNETMASK, [255, 255, 255, 0])?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: as above.
    check("SIOCSIFFLAGS", unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request) })?;
    // SAFETY: sets a flag of a file descriptor that this function owns.
    check("O_NONBLOCK", unsafe { libc::fcntl(tun.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok(tun)
}

/// Plays the application on the kernel's side: writes its stream, and reads and checks the stream of the
/// other side until its end.
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

fn frame(
    header: &Header,
    payload: std::ops::Range<u64>,
    ring: &Ring,
    ports: (u16, u16),
    ecn: Ecn,
) -> Vec<u8> {
    let len = (payload.end - payload.start) as usize;
    let mut bytes = vec![0; 20 + header.wire_len() + len];
    let mut packet = ipv4::Packet::init(&mut bytes[..]).unwrap();
    packet.set_protocol(ipv4::TCP);
    packet.set_ttl(64);
    packet.set_source(OURS.into());
    packet.set_destination(KERNEL.into());
    packet.set_tos(ecn as u8);
    packet.fill_checksum();
    let pseudo = packet.pseudo_sum();
    let at = header.write(ports.0, ports.1, packet.payload_mut()).unwrap();
    ring.read(payload.start, &mut packet.payload_mut()[at..]);
    wire::Segment::new(packet.payload_mut()).unwrap().fill_checksum(pseudo);
    bytes
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
    let mut listener = Listener::<()>::new(&config, secrets.clone(), 2).unwrap();
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
