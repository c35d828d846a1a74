//! Tests the engine with hostile frames and with hostile requests of programs.

mod closing;
mod room;

use super::control::{Client, Request};
use super::{Engine, Threads};
use crate::host::pair;
use crate::settings::{Settings, Transport};
use inlane_offload_protocol::message::{Handle, Message, Operation};
use inlane_offload_protocol::name::{Asking, End};
use inlane_offload_protocol::rules::Prefix;
use inlane_tcp::Header;
use inlane_wire::ethernet::Mac;
use inlane_wire::{checksum, ethernet, ipv4, tcp};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

pub(super) const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(super) const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(super) const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// An engine on a port that discards everything, and the folder of the engine's control socket.
pub(super) struct Bench {
    pub engine: Engine,
    pub now: u64,
    /// The user of [`Bench::ask`]'s client.
    pub user: u32,
    _folder: tempfile::TempDir,
}

#[test]
fn only_sockets_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("precious");
    std::fs::write(&file, "contents").unwrap();
    let mut settings = settings(&folder, 8);
    settings.socket = file.clone();
    let refused = Engine::open_on(settings.clone(), 1024).err().expect("a file is not replaced").to_string();
    assert!(refused.contains("it is a file, not a socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "contents");
    settings.socket = folder.path().join("old");
    drop(std::os::unix::net::UnixListener::bind(&settings.socket).unwrap());
    Engine::open_on(settings, 1024).unwrap();
}

#[test]
fn folders_of_the_control_socket_go_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder, 8);
    settings.socket = folder.path().join("a/b/control");
    // Name a port that cannot be opened. The engine has created folders for its control socket, and must then
    // remove them.
    settings.port = "pcap:/no/such/file".parse().unwrap();
    assert!(Engine::open_on(settings.clone(), 1024).is_err());
    assert!(!folder.path().join("a").exists());
    settings.port = "null".parse().unwrap();
    let engine = Engine::open_on(settings.clone(), 1024).unwrap();
    assert!(settings.socket.exists());
    std::fs::write(folder.path().join("a/other"), "").unwrap();
    drop(engine);
    assert!(!folder.path().join("a/b").exists() && folder.path().join("a/other").exists());
}

#[test]
fn the_loopback_interface_is_refused_with_the_flag_to_use() {
    let folder = tempfile::tempdir().unwrap();
    for port in ["af_packet:lo", "af_xdp:lo"] {
        let settings = Settings { port: port.parse().unwrap(), ..settings(&folder, 8) };
        let error = Threads::open(settings).err().unwrap().to_string();
        assert!(error.contains("add loopback") && error.contains(port), "{error}");
    }
}

#[test]
fn texts_of_programs_are_escaped_in_the_status() {
    let mut bench = Bench::new(8);
    let mut message = Message::new(Operation::Bind);
    (message.local, message.program) = ("10.0.0.1:8080".parse().ok(), *b"\x1b[2Jred\n\r\x07\0\0\0\0\0\0");
    assert_eq!(bench.ask(message, None).0.status, 0);
    message.operation = Operation::Kernel;
    message.set_value("a reason\n\u{202e}ok\u{9b}31m".as_bytes());
    bench.ask(message, None);
    let mut file = std::fs::File::from(bench.ask(Message::new(Operation::Status), None).1.unwrap());
    std::io::Seek::rewind(&mut file).unwrap();
    let text = std::io::read_to_string(file).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let name = "\\u{1b}[2Jred\\u{a}\\u{d}\\u{7}";
    assert_eq!(status["sockets"][0]["program"], name, "{text}");
    assert_eq!(status["kernel"][0]["program"], name);
    assert_eq!(status["kernel"][0]["reason"], "a reason\\u{a}\\u{202e}ok\\u{9b}31m");
}

pub(super) fn settings(folder: &tempfile::TempDir, sockets: usize) -> Settings {
    Settings {
        port: "null".parse().unwrap(),
        threads: 1,
        cores: Vec::new(),
        addresses: vec![Prefix::parse("10.0.0.1/24").unwrap(), Prefix::parse("fd00::1/64").unwrap()],
        gateways: Vec::new(),
        loopback: true,
        socket: folder.path().join("control"),
        mode: 0o600,
        group: None,
        rules: String::new(),
        mtu: None,
        mac: Some(MAC),
        buffer: 65536,
        sockets_per_program: sockets,
        transport: Transport::Tcp,
        card: false,
        spin: Duration::ZERO,
        faults: Default::default(),
    }
}

impl Bench {
    pub fn new(sockets: usize) -> Self {
        Self::with_spin(sockets, Duration::ZERO)
    }

    /// Creates an engine that polls, so it shares memory with programs.
    pub fn polling(sockets: usize) -> Self {
        Self::with_spin(sockets, Duration::from_millis(1))
    }

    fn with_spin(sockets: usize, spin: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { spin, ..settings(&folder, sockets) };
        let engine = Engine::open_on(settings, 1024).unwrap();
        // The engine's timers start at the real time, which is late if the machine is busy.
        Self { now: engine.clock.now_ns(), engine, user: 1000, _folder: folder }
    }

    pub fn ask(&mut self, message: Message, attached: Option<OwnedFd>) -> (Message, Option<OwnedFd>) {
        self.ask_as(1, message, attached)
    }

    /// Processes a request of the process with the ID `process`.
    fn ask_as(
        &mut self,
        process: i32,
        message: Message,
        attached: Option<OwnedFd>,
    ) -> (Message, Option<OwnedFd>) {
        let client = self.client(process);
        let mut request = Request::new(message, [attached, None], &client);
        let (reply, descriptor) = self.engine.process(self.now, &mut request);
        (reply, descriptor.map(|descriptor| descriptor.try_clone().unwrap()))
    }

    /// Returns a client of the process with the ID `process`.
    pub fn client(&self, process: i32) -> Arc<Client> {
        let (fd, _) = std::os::unix::net::UnixStream::pair().unwrap();
        Client::new(fd.into(), process, self.engine.closer.of_user(self.user), None).into()
    }

    /// Processes a request of a client about the socket of `attached`.
    pub fn ask_over(&mut self, client: &Arc<Client>, message: Message, attached: OwnedFd) -> Message {
        self.engine.process(self.now, &mut Request::new(message, [Some(attached), None], client)).0
    }

    /// Runs 20 rounds of the engine's loop without sleeping. The engine's clock advances by 1 ms in each
    /// round. Receives only packets that the engine sent to itself.
    pub fn turn(&mut self) {
        for _ in 0..20 {
            self.now += 1_000_000;
            self.engine.receive_own(self.now);
            self.engine.wait(self.now, 0, &mut Vec::with_capacity(64)).unwrap();
            self.engine.expire(self.now);
            self.engine.serve_changed(self.now);
            self.engine.stack.network.flush();
        }
    }

    /// Waits until all descriptors are closed that the engine has passed to its closer.
    pub fn wait_until_closed(&self) {
        let start = std::time::Instant::now();
        while self.engine.closer.unclosed() > 0 {
            let held = self.engine.closer.unclosed();
            assert!(start.elapsed() < Duration::from_secs(20), "{held} descriptors are not closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn bound(&mut self, address: &str) -> (Message, Option<OwnedFd>) {
        let mut message = Message::new(Operation::Bind);
        message.local = Some(address.parse().unwrap());
        self.ask(message, None)
    }

    pub fn listening(&mut self, address: &str) -> OwnedFd {
        let (reply, fd) = self.bound(address);
        assert_eq!(reply.status, 0);
        let fd = fd.unwrap();
        let mut message = Message::new(Operation::Listen);
        message.number = 16;
        assert_eq!(self.ask(message, Some(fd.try_clone().unwrap())).0.status, 0);
        fd
    }

    pub fn connecting(&mut self, address: &str) -> (Message, Option<OwnedFd>) {
        let mut message = Message::new(Operation::Connect);
        message.remote = Some(address.parse().unwrap());
        let (reply, program) = self.ask(message, None);
        if let Some(handle) = reply.handle() {
            let mut start = Message::new(Operation::Start);
            start.set_handle(handle);
            self.ask(start, None);
        }
        (reply, program)
    }
}

pub(super) fn frame(header: &Header, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let len = header.wire_len() + payload.len();
    let mut bytes = vec![0; ethernet::HEADER + ipv4::HEADER + len];
    let mut frame = ethernet::Frame::new(&mut bytes[..]).unwrap();
    frame.set_destination(MAC);
    frame.set_ethertype(ethernet::IPV4);
    let mut packet = ipv4::Packet::init(frame.payload_mut()).unwrap();
    packet.set_protocol(ipv4::TCP);
    packet.set_source(PEER);
    packet.set_destination(OURS);
    packet.fill_checksum();
    let pseudo = packet.pseudo_sum();
    let buffer = packet.payload_mut();
    let at = header.write(ports.0, ports.1, buffer).unwrap();
    buffer[at..].copy_from_slice(payload);
    tcp::Segment::new(buffer).unwrap().fill_checksum(pseudo);
    bytes
}

/// Corrects the checksums of IP and TCP, if the frame has these headers. Without this, the checksum test
/// would drop every damaged frame, and no later code would process one.
pub(super) fn repair(bytes: &mut [u8]) {
    let Some(ip) = bytes.get_mut(ethernet::HEADER..) else { return };
    let Ok(mut packet) = ipv4::Packet::new(ip) else { return };
    packet.fill_checksum();
    let pseudo = packet.pseudo_sum();
    if packet.protocol() == ipv4::ICMP {
        let payload = packet.payload_mut();
        if payload.len() >= 4 {
            payload[2..4].fill(0);
            let sum = checksum::of(payload);
            payload[2..4].copy_from_slice(&sum.to_be_bytes());
        }
    } else if let Ok(mut segment) = tcp::Segment::new(packet.payload_mut()) {
        segment.fill_checksum(pseudo);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_frames_do_no_harm(frames in proptest::collection::vec(
        (proptest::collection::vec(any::<u8>(), 0..100), any::<u8>(), any::<[u32; 2]>(), proptest::collection::vec((14usize..90, any::<u8>()), 0..4), any::<bool>()), 1..20)) {
        let mut bench = Bench::new(100);
        let _listener = bench.listening("10.0.0.1:8080");
        for (payload, flags, [sequence, acknowledgment], damage, fix) in frames {
            bench.engine.on_frame(bench.now, &payload);
            let header = Header { sequence, acknowledgment, window: 1000, flags, ..Header::default() };
            let mut bytes = frame(&header, (4000, 8080), &payload);
            for (at, value) in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if fix {
                repair(&mut bytes);
            }
            bench.engine.on_frame(bench.now, &bytes);
            bench.turn();
        }
        prop_assert!(bench.engine.stack.sockets.len() <= 21);
    }

    /// Every request is answered. A request about a socket fails with EBADF if the descriptor in it is not
    /// from the engine.
    #[test]
    fn hostile_requests_do_no_harm(requests in proptest::collection::vec(
        (1u8..10, any::<bool>(), any::<[u8; 6]>(), any::<[i32; 3]>(), proptest::collection::vec(any::<u8>(), 0..100), any::<bool>()), 1..20)) {
        let mut bench = Bench::new(10);
        let _listener = bench.listening("10.0.0.1:8080");
        for (operation, v6, [a, b, c, d, high, low], [number, level, name], value, attach) in requests {
            let mut bytes = Message::new(Operation::Bind).encode();
            bytes[1] = operation;
            let mut message = Message::decode(&bytes).unwrap();
            let address = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into();
            (message.v6, message.number, message.level, message.name) = (v6, number, level, name);
            (message.local, message.remote) = (Some(address), Some(address));
            message.set_value(&value);
            let other = attach.then(|| OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
            let (reply, _) = bench.ask(message, other);
            prop_assert_eq!(reply.operation, message.operation);
            if attach && matches!(operation, 3..=6) {
                prop_assert_eq!(reply.status, libc::EBADF);
            }
            bench.turn();
        }
        prop_assert!(bench.engine.stack.sockets.len() <= 10);
    }
}

#[test]
fn a_program_has_a_limited_number_of_sockets() {
    let mut bench = Bench::new(3);
    let held: Vec<_> = (0..3).map(|_| bench.bound("10.0.0.1:0").1.unwrap()).collect();
    assert_eq!(bench.bound("10.0.0.1:0").0.status, libc::ENFILE);
    drop(held);
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 0);
    assert_eq!(bench.bound("10.0.0.1:0").0.status, 0);
}

#[test]
fn binds_follow_the_rules_of_linux() {
    let mut bench = Bench::new(100);
    let first = bench.listening("10.0.0.1:8080");
    assert_eq!(bench.bound("10.0.0.1:8080").0.status, libc::EADDRINUSE);
    assert_eq!(bench.bound("0.0.0.0:8080").0.status, libc::EADDRINUSE);
    assert_eq!(bench.bound("10.0.0.1:80").0.status, libc::EACCES, "a privileged port");
    assert!(bench.bound("10.0.0.9:9000").0.status < 0, "another host's address stays with the kernel");
    drop(first);
    assert_eq!(bench.bound("10.0.0.1:8080").0.status, 0, "a port is free as soon as it is closed");
}

#[test]
fn rules_of_the_engine_hold_for_all_programs() {
    let mut bench = Bench::new(100);
    bench.engine.settings.rules =
        "engine port=8080\nkernel address=127.0.0.0/8\nkernel protocol=udp port=53\nkernel use=listen".into();
    let listener = bench.listening("127.0.0.1:8080");
    assert_eq!(bench.bound("127.0.0.1:8081").0.status, inlane_offload_protocol::message::KERNEL);
    assert_eq!(bench.connecting("127.0.0.1:8080").0.status, 0);
    assert_eq!(bench.connecting("127.0.0.1:8081").0.status, inlane_offload_protocol::message::KERNEL);
    assert_eq!(bench.connecting("10.0.0.2:81").0.status, 0);
    // A socket that is on the engine already cannot leave it.
    let bound = bench.bound("127.0.0.1:8080");
    assert_eq!(bound.0.status, libc::EADDRINUSE);
    bench.engine.settings.rules = "kernel use=connect port=81\nkernel protocol=udp port=53".into();
    let bound = bench.bound("10.0.0.1:0").1.unwrap();
    let mut message = Message::new(Operation::Connect);
    message.remote = Some("10.0.0.2:81".parse().unwrap());
    assert_eq!(bench.ask(message, Some(bound)).0.status, libc::EACCES);
    drop(listener);
}

#[test]
fn the_control_socket_gets_its_group() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let group = rustix::process::getegid().as_raw();
    let settings = Settings { group: Some(group), mode: 0o660, ..settings(&folder, 8) };
    let _engine = Engine::open_on(settings.clone(), 1024).unwrap();
    let found = std::fs::metadata(&settings.socket).unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (group, 0o660));
}

#[test]
fn a_connect_to_many_hosts_fails_at_once() {
    let mut bench = Bench::new(100);
    for address in ["10.0.0.255:80", "255.255.255.255:80", "224.0.0.1:80", "[ff02::1]:80"] {
        assert_eq!(bench.connecting(address).0.status, libc::ENETUNREACH, "{address}");
    }
    let bound = bench.bound("10.0.0.1:0").1.unwrap();
    let mut message = Message::new(Operation::Connect);
    message.remote = Some("10.0.0.255:80".parse().unwrap());
    assert_eq!(bench.ask(message, Some(bound)).0.status, libc::ENETUNREACH);
}

#[test]
fn the_newest_socket_of_a_port_frees_the_port_when_it_is_closed() {
    let mut bench = Bench::new(100);
    let others: Vec<_> = (1..=64).map(|n| bench.bound(&format!("127.0.0.{n}:8080"))).collect();
    assert!(others.iter().all(|(reply, _)| reply.status == 0));
    drop(bench.bound("10.0.0.1:8080").1.unwrap());
    assert_eq!(bench.bound("10.0.0.1:8080").0.status, 0);
}

#[test]
fn a_connection_within_the_engine_carries_data_and_its_end() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("127.0.0.1:8080");
    let (reply, client) = bench.connecting("127.0.0.1:8080");
    assert_eq!(reply.status, 0);
    let client = client.unwrap();
    bench.turn();
    let mut record = [0; inlane_offload_protocol::name::SOCKET_LEN];
    let (_, server) = pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap();
    let server = server.unwrap();
    let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let (mut sent, mut received, mut buffer) = (0, Vec::new(), vec![0; 65536]);
    while received.len() < data.len() {
        sent += pair::send(client.as_raw_fd(), &data[sent..], &[]).unwrap_or(0);
        bench.turn();
        let len = pair::receive(server.as_raw_fd(), &mut buffer).unwrap_or(0);
        received.extend_from_slice(&buffer[..len]);
        assert!(bench.now < 60_000_000_000, "{sent} sent, {} received", received.len());
    }
    assert!(received == data);
    drop(client);
    bench.turn();
    assert_eq!(pair::receive(server.as_raw_fd(), &mut buffer).unwrap(), 0);
    drop((server, listener));
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 0, "sockets are left");
    assert_eq!(
        bench.engine.stack.flows.len() + bench.engine.by_cookie.len() + bench.engine.stack.ports.len(),
        0
    );
}

#[test]
fn only_the_process_that_opened_a_connection_lets_it_send_its_syn() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("10.0.0.1:8080");
    let held = |bench: &Bench| {
        let streams = bench.engine.stack.sockets.iter().filter_map(|(_, socket)| socket.stream());
        streams.filter(|stream| stream.held_until.is_some()).count()
    };
    let mut message = Message::new(Operation::Connect);
    message.remote = Some("10.0.0.1:8080".parse().unwrap());
    let (reply, first) = bench.ask(message, None);
    let handle = reply.handle().unwrap();
    assert_eq!(held(&bench), 1);
    let wrong = [
        (2, handle),
        (1, Handle { socket: handle.socket + 1, ..handle }),
        (1, Handle { key: handle.key + 1, ..handle }),
        (1, Handle { key: handle.key + (1 << 32), ..handle }),
    ];
    for (process, wrong) in wrong {
        let mut start = Message::new(Operation::Start);
        start.set_handle(wrong);
        assert_eq!(bench.ask_as(process, start, None).0.status, libc::EBADF);
    }
    assert_eq!(bench.ask(Message::new(Operation::Start), None).0.status, libc::EINVAL);
    assert_eq!(held(&bench), 1);
    let mut start = Message::new(Operation::Start);
    start.set_handle(handle);
    assert_eq!(bench.ask(start, None).0.status, 0);
    assert_eq!(held(&bench), 0);

    // `number` 1 asks the engine to send the SYN at once. The preloaded library sets it to 1 if the program has
    // one thread.
    message.number = 1;
    let (reply, second) = bench.ask(message, None);
    assert_eq!((reply.status, reply.handle(), held(&bench)), (0, None, 0));
    let blocks = |end: &Option<OwnedFd>| pair::send(end.as_ref().unwrap().as_raw_fd(), b"x", &[]).is_err();
    assert!(blocks(&first) && blocks(&second), "a connection that is being established is not writable");
    bench.turn();
    assert!(!blocks(&first) && !blocks(&second), "an established connection is writable");
    drop((listener, first, second));
}

/// A program closes its end of the socket pair right after its last write. The engine gets one epoll event
/// for the bytes and the close, and must still send all bytes.
#[test]
fn bytes_before_a_close_arrive_whatever_the_program_left_unread() {
    for unread in [false, true] {
        let mut bench = Bench::new(100);
        let listener = bench.listening("127.0.0.1:8080");
        let client = bench.connecting("127.0.0.1:8080").1.unwrap();
        bench.turn();
        let server = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
        if unread {
            pair::send(client.as_raw_fd(), b"unread", &[]).unwrap();
            bench.turn();
        }
        pair::send(server.as_raw_fd(), b"first", &[]).unwrap();
        pair::send(server.as_raw_fd(), b"second", &[]).unwrap();
        drop(server);
        bench.turn();
        let mut bytes = [0; 64];
        // If the program closes its socket with unread bytes, the peer must be reset, as by the kernel's TCP.
        match unread {
            true => {
                let name =
                    End::of(client.as_raw_fd(), Asking { own: libc::getsockname, peer: libc::getpeername });
                assert_eq!(name, End::Failed(libc::ECONNRESET));
            }
            false => {
                assert_eq!(pair::receive(client.as_raw_fd(), &mut bytes).unwrap(), 11);
                assert_eq!(bytes[..11], *b"firstsecond");
                assert_eq!(pair::receive(client.as_raw_fd(), &mut bytes).unwrap(), 0);
            }
        }
    }
}

#[test]
fn bytes_sent_with_more_wait_for_further_bytes_or_200_ms() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("127.0.0.1:8080");
    let client = bench.connecting("127.0.0.1:8080").1.unwrap();
    bench.turn();
    let server = pair::receive_descriptor(listener.as_raw_fd(), &mut [0; 64]).unwrap().1.unwrap();
    let send_more = |bench: &mut Bench, bytes: &[u8]| {
        let mut more = Message::new(Operation::More);
        more.number = bytes.len() as i32;
        assert_eq!(bench.ask(more, Some(client.try_clone().unwrap())).0.status, 0);
        pair::send(client.as_raw_fd(), bytes, &[]).unwrap();
        bench.turn();
    };
    let received = || {
        let mut bytes = [0; 64];
        let len = pair::receive(server.as_raw_fd(), &mut bytes).unwrap_or(0);
        bytes[..len].to_vec()
    };
    send_more(&mut bench, b"one, ");
    assert_eq!(received(), b"");
    send_more(&mut bench, b"two, ");
    assert_eq!(received(), b"");
    pair::send(client.as_raw_fd(), b"three", &[]).unwrap();
    bench.turn();
    assert_eq!(received(), b"one, two, three");
    // `More` (MSG_MORE) holds back only the bytes that it announced. If later bytes are sent without it, they
    // must go out at once.
    pair::send(client.as_raw_fd(), b"four", &[]).unwrap();
    bench.turn();
    assert_eq!(received(), b"four");
    send_more(&mut bench, b"five");
    assert_eq!(received(), b"");
    for _ in 0..10 {
        bench.turn();
    }
    assert_eq!(received(), b"five");
}

/// A flood of SYNs with forged sources: the listener's memory stays bounded, and a real client still gets in.
#[test]
fn a_listener_accepts_during_a_flood_of_syns() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("10.0.0.1:8080");
    for port in 0..5000u16 {
        let header = Header { sequence: port.into(), window: 1000, flags: tcp::SYN, ..Header::default() };
        bench.engine.on_frame(bench.now, &frame(&header, (port, 8080), &[]));
        if port % 64 == 0 {
            bench.engine.stack.network.flush();
        }
    }
    assert_eq!(bench.engine.stack.sockets.len(), 1);
    let (reply, client) = bench.connecting("10.0.0.1:8080");
    assert_eq!(reply.status, 0);
    bench.turn();
    let mut record = [0; inlane_offload_protocol::name::SOCKET_LEN];
    assert!(pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap().1.is_some());
    drop(client);
}

/// A program sends a descriptor of its end of a socket pair through that pair, and then closes the
/// descriptor. The message keeps the program's end open until the engine has read it. The engine must read
/// the message, so that the socket ends.
#[test]
fn a_descriptor_in_its_own_pair_keeps_no_socket_alive() {
    let mut bench = Bench::new(100);
    let bound = bench.bound("10.0.0.1:0").1.unwrap();
    let listening = bench.listening("10.0.0.1:8080");
    // The pair of a listener is full. A hostile program can change that.
    pair::set_option(&listening, libc::SO_SNDBUF, 200_000).unwrap();
    for end in [bound, listening] {
        bench.turn();
        pair::send_descriptor(end.as_raw_fd(), b"x", Some(end.as_raw_fd())).unwrap();
    }
    bench.turn();
    bench.wait_until_closed();
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 0);
}

/// The connections in the pair of a closed listener are gone, so its backlog seems to have room.
#[test]
fn a_listener_with_a_full_backlog_that_was_just_closed_refuses_connections() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("127.0.0.1:8080");
    let mut clients = Vec::new();
    // One more than the backlog.
    for _ in 0..17 {
        clients.push(bench.connecting("127.0.0.1:8080").1.unwrap());
        bench.turn();
    }
    let client = bench.connecting("127.0.0.1:8080").1.unwrap();
    bench.engine.serve_changed(bench.now); // sends the SYN
    drop(listener);
    bench.engine.receive_own(bench.now);
    bench.turn();
    let end = End::of(client.as_raw_fd(), Asking { own: libc::getsockname, peer: libc::getpeername });
    assert_eq!(end, End::Failed(libc::ECONNREFUSED));
}

/// A program closes a socket while its data fits neither into the send ring nor into the peer's window.
#[test]
fn a_peer_that_never_reads_keeps_no_closed_socket() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("10.0.0.1:8080");
    let client = bench.connecting("10.0.0.1:8080").1.unwrap();
    bench.turn();
    let mut record = [0; inlane_offload_protocol::name::SOCKET_LEN];
    let accepted = pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap().1;
    assert!(accepted.is_some());
    for _ in 0..50 {
        while pair::send(client.as_raw_fd(), &[7; 10_000], &[]).is_ok() {}
        bench.turn();
    }
    drop(client);
    bench.turn();
    let connected =
        |bench: &Bench| bench.engine.stack.sockets.iter().filter(|(_, one)| one.stream().is_some()).count();
    assert_eq!(connected(&bench), 2);
    for _ in 0..200 {
        bench.now += 10_000_000_000;
        bench.turn();
    }
    assert_eq!(connected(&bench), 0);
}

/// Both applications of a connection shut down sending while much data is unsent. The receiver starts to read
/// only 2000 s later, and must still get all data.
#[test]
fn a_socket_that_its_program_holds_sends_all_its_data_however_slowly_the_peer_reads() {
    let mut bench = Bench::new(100);
    let listener = bench.listening("10.0.0.1:8080");
    let client = bench.connecting("10.0.0.1:8080").1.unwrap();
    bench.turn();
    let mut record = [0; inlane_offload_protocol::name::SOCKET_LEN];
    let accepted = pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap().1.unwrap();
    let mut sent = 0;
    for _ in 0..50 {
        while let Ok(len) = pair::send(client.as_raw_fd(), &[7; 10_000], &[]) {
            sent += len;
        }
        bench.turn();
    }
    for end in [&accepted, &client] {
        // SAFETY: has no preconditions.
        assert_eq!(unsafe { libc::shutdown(end.as_raw_fd(), libc::SHUT_WR) }, 0);
        bench.turn();
    }
    for _ in 0..200 {
        bench.now += 10_000_000_000;
        bench.turn();
    }
    let (mut received, mut buffer) = (0, vec![0; 65536]);
    for _ in 0..1000 {
        while let Ok(len @ 1..) = pair::receive(accepted.as_raw_fd(), &mut buffer) {
            received += len;
        }
        bench.now += 1_000_000_000;
        bench.turn();
    }
    assert_eq!(received, sent);
    drop((accepted, client, listener));
    bench.turn();
    assert_eq!(bench.engine.stack.sockets.len(), 0);
}

/// Connects a client to the control socket.
pub(super) fn client(bench: &mut Bench) -> OwnedFd {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let path = bench._folder.path().join("control");
    net::connect(&client, &net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    bench.engine.round(bench.now).unwrap();
    client
}

/// An engine with one thread must send only one report in a round, after the replies to all other requests.
#[test]
fn requests_for_reports_wait_for_all_other_requests() {
    let mut bench = Bench::new(10);
    let clients: [_; 4] = std::array::from_fn(|_| client(&mut bench));
    for (index, client) in clients.iter().enumerate() {
        let operation = if index == 3 { Operation::Bind } else { Operation::Status };
        let mut message = Message::new(operation);
        message.local = Some("10.0.0.1:8080".parse().unwrap());
        pair::send(client.as_raw_fd(), &message.encode(), &[]).unwrap();
    }
    let mut bytes = [0; 600];
    let mut replied = |index: usize| pair::receive(clients[index].as_raw_fd(), &mut bytes).is_ok();
    assert!(bench.engine.round(bench.now).unwrap());
    assert_eq!([0, 1, 2, 3].map(&mut replied), [true, false, false, true]);
    assert!(bench.engine.round(bench.now).unwrap());
    assert_eq!([0, 1, 2].map(&mut replied), [false, true, false]);
    bench.engine.round(bench.now).unwrap();
    assert_eq!([0, 1, 2].map(&mut replied), [false, false, true]);
    assert!(!bench.engine.round(bench.now).unwrap(), "no request is left");
}

#[test]
fn a_client_of_another_version_is_told_this_version_and_is_listed() {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    let mut bench = Bench::new(10);
    let client =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let path = bench._folder.path().join("control");
    net::connect(&client, &net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    let mut request = Message::new(Operation::Bind).encode();
    request[0] = 1;
    pair::send(client.as_raw_fd(), &request, &[]).unwrap();
    bench.turn();
    let mut reply = [0; 600];
    let len = pair::receive(client.as_raw_fd(), &mut reply).unwrap();
    assert!(Message::decode(&reply[..len]).is_some());
    assert_eq!(pair::receive(client.as_raw_fd(), &mut reply).unwrap(), 0, "the client is disconnected");
    let (_, file) = bench.ask(Message::new(Operation::Status), None);
    let mut text = String::new();
    let mut file = std::fs::File::from(file.unwrap());
    std::io::Seek::rewind(&mut file).unwrap();
    std::io::Read::read_to_string(&mut file, &mut text).unwrap();
    assert!(text.contains("its preloaded library has protocol version 1, and the engine version"), "{text}");
}
