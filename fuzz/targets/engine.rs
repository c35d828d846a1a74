//! Drives a whole offload engine from both sides: hostile frames of every kind on its port, and a hostile
//! program on its control socket and its pairs.
//!
//! The engine must not panic or loop. An honest connection that was opened before must still carry data, and
//! an honest program must still be served afterwards. The engine must hold no state once every program has
//! closed its sockets.
//!
//! The input is a list of operations. Their frames go to existing flows of the engine, with valid checksums
//! and with numbers near those of the engine's last segments, because the engine drops other frames early.

#![no_main]

use inlane_offload::Settings;
use inlane_offload::stepped::{Held, Stepped};
use inlane_offload_protocol::message::{self, Message, Operation, accept, write_options};
use inlane_offload_protocol::rules::Prefix;
use inlane_wire::checksum::{self, Sum};
use inlane_wire::ethernet::{self, Frame, Mac};
use inlane_wire::{arp, icmp, ipv4, ipv6, ndp, tcp, udp};
use libfuzzer_sys::fuzz_target;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const OURS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))];
const PEER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))];
/// The most sockets that the engine allows a process. To the engine, the hostile and the honest program are
/// one process, because the fuzzer opens both control connections.
const SOCKETS: usize = 256;
/// The most sockets that the hostile program keeps open.
const MOST_ENDS: usize = 24;
/// The most operations that are carried out for one input. More would take too long on a loaded machine.
const MOST_OPERATIONS: usize = 200;
/// The most deadlines of the engine at which one step of the clock stops. Then the clock moves on to the
/// step's end.
const MOST_DEADLINES: usize = 200;
const MILLISECOND: u64 = 1_000_000;
const HONEST: &[u8] = b"data of an honest program";

/// The part of the fuzzer's input that was not used yet. Once it is empty, all further numbers are 0.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    /// Returns one of `choices`, selected by the next byte of the input. Returns the first one if the input
    /// has ended.
    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// Returns a number near `base` for most values of the next byte of the input, and an arbitrary number
    /// for one value.
    fn near(&mut self, base: u32) -> u32 {
        match self.byte() {
            255 => self.number(),
            254 => base.wrapping_add(self.number() % 200_000),
            253 => base.wrapping_sub(self.number() % 200_000),
            small @ 0..128 => base.wrapping_add(small.into()),
            small => base.wrapping_sub(u32::from(small) - 127),
        }
    }
}

/// A TCP flow between the engine and the simulated peer: the ports, and the numbers for the peer's next
/// segment.
#[derive(Clone, Copy, Default)]
struct Flow {
    v6: bool,
    local: u16,
    remote: u16,
    sequence: u32,
    acknowledgment: u32,
    timestamp: u32,
}

/// A simulated program: its connection to the engine's control socket, and its offloaded sockets.
struct Program {
    control: OwnedFd,
    ends: Vec<OwnedFd>,
}

impl Program {
    fn new(path: &std::path::Path) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let control =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&control, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { control, ends: Vec::new() }
    }
}

/// Sends bytes, with a descriptor if one is given. Returns true if they were sent, and false on any error.
fn send(to: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// Receives bytes, and the descriptor that came with them, if any. Returns `None` on an error, or if nothing
/// has arrived.
fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> Option<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, flags).ok()?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Some((received.bytes, descriptor))
}

/// The engine, its simulated peer on the link, and its two programs.
struct World {
    engine: Stepped,
    now: u64,
    flows: Vec<Flow>,
    /// The first bytes of the last IP packet that the engine sent. ICMP errors to the engine quote them.
    quoted: Vec<u8>,
    hostile: Program,
    honest: Program,
}

impl World {
    fn new(choices: u8) -> Self {
        let path = path();
        let settings = Settings {
            port: "null".into(),
            addresses: vec![Prefix::parse("10.0.0.1/24").unwrap(), Prefix::parse("fd00::1/64").unwrap()],
            gateways: vec![PEER[0]],
            loopback: true,
            socket: path.clone(),
            mode: 0o600,
            mtu: if choices & 1 == 0 { 1500 } else { 9000 },
            mac: Some(MAC),
            buffer: if choices & 2 == 0 { 4096 } else { 65536 },
            sockets_per_program: SOCKETS,
            threads: if choices & 8 == 0 { 1 } else { 3 },
            cores: Vec::new(),
            spin: Duration::ZERO,
            faults: Default::default(),
        };
        let engine = Stepped::open(settings).unwrap();
        let mut world = Self {
            engine,
            now: 0,
            flows: Vec::new(),
            quoted: Vec::new(),
            hostile: Program::new(&path),
            honest: Program::new(&path),
        };
        if choices & 4 == 0 {
            for address in PEER {
                world.engine.set_neighbour(0, address, PEER_MAC);
            }
        }
        world
    }

    /// Hands a frame to the engine, on a queue that follows from the frame's length and last byte.
    fn receive(&mut self, frame: &[u8]) {
        let queue = (frame.len() + usize::from(frame.last().copied().unwrap_or(0))) % self.engine.threads();
        self.engine.receive_on(queue, self.now, frame);
    }

    /// Runs the engine until it is idle, and reads the frames that it has sent.
    fn settle(&mut self) {
        assert!(
            self.engine.settle(self.now, 20_000).unwrap(),
            "the engine finds no rest at {} ms",
            self.now / MILLISECOND
        );
        while let Some(frame) = self.engine.sent() {
            self.learn(&frame);
        }
    }

    /// Moves the clock forward by `time` nanoseconds. On the way, stops at the engine's deadlines and runs
    /// the engine.
    fn advance(&mut self, time: u64) {
        let end = self.now + time;
        for _ in 0..MOST_DEADLINES {
            let next = self.engine.deadline().map_or(end, |deadline| deadline.max(self.now + MILLISECOND));
            self.now = next.min(end);
            self.settle();
            if self.now == end {
                return;
            }
        }
        self.now = end;
        self.settle();
    }

    /// Checks a frame that the engine has sent, and records the numbers of its TCP flow.
    fn learn(&mut self, frame: &[u8]) {
        let frame = Frame::new(frame).expect("the engine sends whole frames");
        let packet = frame.payload();
        let (v6, payload) = match frame.ethertype() {
            ethernet::IPV4 => {
                let packet = ipv4::Packet::new(packet).expect("a whole IPv4 packet");
                assert!(packet.checksum_ok());
                if packet.is_fragment() || packet.protocol() != ipv4::TCP {
                    self.quoted = frame.payload()[..frame.payload().len().min(128)].to_vec();
                    return;
                }
                (false, packet.payload().to_vec())
            }
            ethernet::IPV6 => {
                let view = ipv6::Packet::new(packet).expect("a whole IPv6 packet");
                if view.upper().map_or(0, |upper| upper.protocol) != ipv4::TCP {
                    return;
                }
                (true, view.payload().to_vec())
            }
            _ => return,
        };
        self.quoted = packet[..packet.len().min(128)].to_vec();
        let segment = tcp::Segment::new(&payload[..]).expect("a whole segment");
        let header = inlane_tcp::Segment::parse(&payload, inlane_tcp::Ecn::NotEct)
            .expect("options can be read")
            .header;
        let (local, remote) = (segment.source_port(), segment.destination_port());
        let len = segment.payload().len() as u32
            + u32::from(header.flags & tcp::SYN != 0)
            + u32::from(header.flags & tcp::FIN != 0);
        let known =
            self.flows.iter_mut().find(|flow| (flow.v6, flow.local, flow.remote) == (v6, local, remote));
        let flow = match known {
            Some(flow) => flow,
            None => {
                if self.flows.len() >= 16 {
                    self.flows.remove(0);
                }
                self.flows.push(Flow { v6, local, remote, ..Flow::default() });
                self.flows.last_mut().unwrap()
            }
        };
        flow.acknowledgment = header.sequence.wrapping_add(len);
        if header.flags & tcp::ACK != 0 {
            flow.sequence = header.acknowledgment;
        }
        if let Some(timestamps) = header.options.timestamps {
            flow.timestamp = timestamps.value;
        }
    }

    /// Sends a request of the honest program, or of the hostile one if `honest` is false. Runs the engine.
    /// Returns the reply, if any. `attached` is the index of the socket to send with the request.
    fn ask(&mut self, honest: bool, message: &Message, attached: Option<usize>) -> Option<Message> {
        let program = if honest { &self.honest } else { &self.hostile };
        let attached = attached.and_then(|index| program.ends.get(index)).map(AsFd::as_fd);
        send(program.control.as_fd(), &message.encode(), attached);
        self.settle();
        let program = if honest { &mut self.honest } else { &mut self.hostile };
        let mut bytes = [0; message::LEN];
        let (len, descriptor) = receive(program.control.as_fd(), &mut bytes)?;
        if len == 0 {
            // The engine has closed the program's control connection. Connect again, and keep the sockets.
            let ends = std::mem::take(&mut program.ends);
            *program = Program { ends, ..Program::new(&path()) };
            return None;
        }
        if let Some(descriptor) = descriptor {
            program.ends.push(descriptor);
            if !honest && program.ends.len() > MOST_ENDS {
                program.ends.remove(0);
            }
        }
        Message::decode(&bytes[..len])
    }

    /// Hands an IP packet with `payload` and correct checksums to the engine. The input may choose other
    /// addresses, change a byte, cut the packet short or fragment it.
    fn deliver(&mut self, input: &mut Input<'_>, v6: bool, protocol: u8, payload: Vec<u8>) {
        let source = if input.byte() == 1 { random_address(input, v6) } else { PEER[usize::from(v6)] };
        let destination = if input.byte() == 1 { random_address(input, v6) } else { OURS[usize::from(v6)] };
        let mut frame = ip(source, destination, protocol, payload);
        if let Some((at, value)) = (input.byte() == 1).then(|| (usize::from(input.byte()), input.byte()))
            && let Some(byte) = frame.get_mut(at)
        {
            *byte = value;
            repair(&mut frame);
        }
        match input.byte() {
            1 => self.fragments(input, v6, &frame),
            2 => self.receive(&frame[..usize::from(input.byte()).min(frame.len())]),
            _ => self.receive(&frame),
        }
    }

    /// Cuts an IP packet into fragments, and hands them to the engine. The input chooses their size and
    /// order, and may leave out, repeat or shift fragments.
    fn fragments(&mut self, input: &mut Input<'_>, v6: bool, frame: &[u8]) {
        let header = ethernet::HEADER + if v6 { ipv6::HEADER } else { ipv4::HEADER };
        if frame.len() <= header {
            return;
        }
        let data = &frame[header..];
        let size = (usize::from(input.byte()) & !7).max(8);
        let id = u16::from(input.byte());
        let (skip, repeat, odd) = (usize::from(input.byte()), usize::from(input.byte()), input.byte());
        let parts: Vec<(usize, &[u8])> =
            data.chunks(size).enumerate().map(|(index, part)| (index * size, part)).collect();
        for index in 0..parts.len() {
            let (offset, part) = parts[if odd & 1 == 1 { parts.len() - 1 - index } else { index }];
            if skip % 16 == 15 && skip / 16 == index {
                continue;
            }
            let more = offset + part.len() < data.len();
            let offset = if odd & 2 == 2 { offset + 8 * (odd as usize >> 4) } else { offset };
            let mut bytes = frame[..header].to_vec();
            if v6 {
                let next = bytes[ethernet::HEADER + 6];
                bytes[ethernet::HEADER + 6] = 44;
                let offset = (offset as u16) & !7 | u16::from(more);
                bytes.extend_from_slice(&[next, 0]);
                bytes.extend_from_slice(&offset.to_be_bytes());
                bytes.extend_from_slice(&[0, 0, 0, id as u8]);
            }
            bytes.extend_from_slice(part);
            let ip = &mut bytes[ethernet::HEADER..];
            let len = ip.len();
            if v6 {
                ipv6::Packet::new(ip).unwrap().set_payload_length((len - ipv6::HEADER) as u16);
            } else if let Ok(mut packet) = ipv4::Packet::new(ip) {
                packet.set_total_length(len as u16);
                packet.set_id(id);
                packet.set_flags_and_offset((offset / 8) as u16 & 0x1fff | if more { 0x2000 } else { 0 });
                packet.fill_checksum();
            }
            for _ in 0..1 + usize::from(repeat % 16 == 15) {
                self.receive(&bytes);
            }
        }
    }

    /// Hands the engine a TCP segment of a flow that exists, or from a new peer port to a port that may have
    /// a listener.
    fn segment(&mut self, input: &mut Input<'_>) {
        let choice = usize::from(input.byte());
        let mut flow = match self.flows.len() {
            0 => Flow { local: 8080, remote: 4000, ..Flow::default() },
            count if choice < 224 => self.flows[choice % count],
            _ => Flow {
                v6: choice & 1 == 1,
                local: 8080 + (choice as u16 >> 1 & 3),
                remote: 4000 + u16::from(input.byte()),
                sequence: input.number(),
                ..Flow::default()
            },
        };
        let kinds = input.byte();
        let new = flow.acknowledgment == 0;
        let mut options = inlane_tcp::Options::default();
        if kinds & 1 == 0 {
            flow.timestamp = flow.timestamp.wrapping_add(1);
            options.timestamps =
                Some(inlane_tcp::Timestamps { value: input.near(1000), echo: flow.timestamp });
        }
        if kinds & 2 != 0 {
            for _ in 0..input.byte() & 3 {
                let left = input.near(flow.acknowledgment);
                options.sack.push(left, left.wrapping_add(input.short().into()));
            }
        }
        if kinds & 4 != 0 || new {
            options.mss = Some(input.choose(&[1460, 536, 0, 1, 88, 65535]));
            options.window_scale = Some(input.choose(&[7, 0, 14, 15, 255]));
            options.sack_permitted = kinds & 8 == 0;
        }
        let flags = match input.byte() {
            0..=99 if new => tcp::SYN,
            0..=99 => tcp::ACK,
            100..=149 => tcp::ACK | tcp::FIN,
            150..=169 => tcp::SYN | tcp::ACK,
            170..=189 => tcp::SYN,
            190..=199 => tcp::RST,
            200..=209 => tcp::RST | tcp::ACK,
            flags => flags.wrapping_mul(31),
        };
        let payload = vec![b'x'; if kinds & 16 != 0 { usize::from(input.short()) % 1400 } else { 0 }];
        let header = inlane_tcp::Header {
            sequence: if kinds & 32 != 0 { input.near(flow.sequence) } else { flow.sequence },
            acknowledgment: if kinds & 64 != 0 {
                input.near(flow.acknowledgment)
            } else {
                flow.acknowledgment
            },
            window: if kinds & 128 != 0 { input.short() } else { 60_000 },
            flags,
            options,
        };
        let mut bytes = vec![0; header.wire_len() + payload.len()];
        let at = header.write(flow.remote, flow.local, &mut bytes).unwrap();
        bytes.truncate(at);
        bytes.extend_from_slice(&payload);
        self.deliver(input, flow.v6, ipv4::TCP, bytes);
    }

    fn datagram(&mut self, input: &mut Input<'_>) {
        let v6 = input.byte() & 1 == 1;
        let data = match input.byte() {
            0..=9 => vec![7; usize::from(input.short()) % 40_000],
            _ => input.bytes().to_vec(),
        };
        let mut bytes = vec![0; udp::HEADER + data.len()];
        bytes[udp::HEADER..].copy_from_slice(&data);
        let mut view = udp::Datagram::new(&mut bytes[..]).unwrap();
        view.set_source_port(5000 + u16::from(input.byte() & 3));
        view.set_destination_port(9000 + u16::from(input.byte() & 7));
        view.set_length(if input.byte() == 1 { input.short() } else { (udp::HEADER + data.len()) as u16 });
        self.deliver(input, v6, ipv4::UDP, bytes);
    }

    fn control_message(&mut self, input: &mut Input<'_>) {
        let v6 = input.byte() & 1 == 1;
        let kind = input.choose(&[
            icmp::UNREACHABLE,
            icmp::ECHO_REQUEST,
            icmp::UNREACHABLE_V6,
            icmp::TOO_BIG_V6,
            icmp::ECHO_REQUEST_V6,
            ndp::SOLICITATION,
            ndp::ADVERTISEMENT,
        ]);
        let code = input.choose(&[icmp::FRAGMENTATION_NEEDED, 0, 1, 2, 3, 255]);
        let mut bytes = vec![0; icmp::HEADER];
        let mut message = icmp::Message::new(&mut bytes[..]).unwrap();
        message.set_kind(kind);
        message.set_code(code);
        message.set_mtu_v6(input.choose(&[1400, 576, 68, 0, 1280, 65535, u32::MAX]));
        if kind == ndp::SOLICITATION || kind == ndp::ADVERTISEMENT {
            let IpAddr::V6(target) = (if input.byte() & 1 == 0 { OURS[1] } else { PEER[1] }) else { return };
            bytes.extend_from_slice(&target.octets());
            bytes.extend_from_slice(input.bytes());
        } else {
            bytes.extend_from_slice(&self.quoted);
            if input.byte() == 1 {
                let at = icmp::HEADER + usize::from(input.byte());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = input.byte();
                }
            }
        }
        let mut frame =
            ip(PEER[usize::from(v6)], OURS[usize::from(v6)], if v6 { ipv6::ICMP } else { ipv4::ICMP }, bytes);
        if v6 {
            ipv6::Packet::new(&mut frame[ethernet::HEADER..]).unwrap().set_hop_limit(ndp::HOP_LIMIT);
        }
        self.receive(&frame);
    }

    fn address_resolution(&mut self, input: &mut Input<'_>) {
        let mut frame = vec![0; ethernet::HEADER + arp::HEADER];
        let mut view = Frame::new(&mut frame[..]).unwrap();
        view.set_destination(Mac::BROADCAST);
        view.set_ethertype(ethernet::ARP);
        let mut message = arp::Packet::init(&mut frame[ethernet::HEADER..]).unwrap();
        message.set_operation(input.choose(&[arp::REQUEST, arp::REPLY, 3, 0]));
        message.set_sender_mac(input.choose(&[PEER_MAC, Mac::BROADCAST, MAC, Mac([0; 6])]));
        message.set_sender(Ipv4Addr::new(10, 0, 0, input.byte()));
        message.set_target(Ipv4Addr::new(10, 0, 0, input.choose(&[1, 2, 0, 255])));
        if input.byte() == 1 {
            let at = usize::from(input.byte()) % frame.len();
            frame[at] = input.byte();
        }
        self.receive(&frame);
    }

    /// Sends a request of the hostile program with arbitrary fields.
    fn request(&mut self, input: &mut Input<'_>) {
        let mut bytes = Message::new(Operation::Bind).encode();
        bytes[1] = 1 + input.byte() % 12;
        let Some(mut message) = Message::decode(&bytes) else { return };
        let choice = input.byte();
        message.v6 = choice & 1 != 0;
        message.datagrams = choice & 2 != 0;
        let ports = [8080, 9000, 0, 8081, 9001, 4000, 1, 65535];
        if choice & 4 == 0 {
            message.local = Some(SocketAddr::new(address(input), input.choose(&ports)));
        }
        if choice & 8 == 0 {
            message.remote = Some(SocketAddr::new(address(input), input.choose(&ports)));
        }
        message.number = input.choose(&[16, 0, 1, -1, i32::MAX, i32::MIN]);
        match choice & 16 {
            0 => {
                let (level, name) = option(input);
                (message.level, message.name) = (level, name);
                message.set_value(input.bytes());
            }
            _ => {
                let options: Vec<_> = (0..input.byte() & 7)
                    .map(|_| {
                        let (level, name) = option(input);
                        (level, name, input.choose(&[1, 0, -1, 100, 4096, i32::MAX, i32::MIN]))
                    })
                    .collect();
                write_options(&mut message, &options);
            }
        }
        let attached = (choice & 32 == 0 && !self.hostile.ends.is_empty())
            .then(|| usize::from(input.byte()) % self.hostile.ends.len());
        self.ask(false, &message, attached);
    }

    /// Lets the hostile program use one of its sockets, partly in ways that the preloaded library never does.
    fn use_end(&mut self, input: &mut Input<'_>) {
        if self.hostile.ends.is_empty() {
            return;
        }
        let index = usize::from(input.byte()) % self.hostile.ends.len();
        let end = self.hostile.ends[index].as_fd();
        match input.byte() % 10 {
            0 => {
                send(end, input.bytes(), None);
            }
            1 => {
                send(end, &vec![b'y'; usize::from(input.short())], None);
            }
            2 => drop(self.hostile.ends.remove(index)),
            3 => drop(rustix::net::shutdown(
                end,
                input.choose(&[Shutdown::Write, Shutdown::Read, Shutdown::Both]),
            )),
            4 => {
                let mut bytes = [0; accept::LEN + 1];
                if let Some((_, Some(descriptor))) = receive(end, &mut bytes) {
                    self.hostile.ends.push(descriptor);
                }
            }
            5 => drop(receive(end, &mut vec![0; usize::from(input.short())])),
            6 => drop(rustix::net::sockopt::set_socket_send_buffer_size(end, usize::from(input.short()))),
            7 => drop(rustix::net::sockopt::set_socket_recv_buffer_size(end, usize::from(input.short()))),
            8 => {
                let other = self.hostile.ends[usize::from(input.byte()) % self.hostile.ends.len()].as_fd();
                send(end, b"z", Some(other));
            }
            // Send a datagram with a made-up header. Take its first 8 bytes from a received message, because
            // they must be the engine's number.
            _ => {
                let mut bytes = vec![0; 2048];
                if let Some((len, _)) = receive(end, &mut bytes)
                    && len >= 16
                {
                    bytes.truncate(len.max(56));
                    for (at, byte) in input.bytes().iter().enumerate() {
                        bytes[8 + at % 48] = *byte;
                    }
                    send(end, &bytes, None);
                }
            }
        }
        self.settle();
    }

    /// Connects two sockets of the honest program. Returns their indices in the program's `ends`.
    fn connect_honest(&mut self) -> [usize; 2] {
        let mut message = Message::new(Operation::Bind);
        message.local = Some("127.0.0.1:0".parse().unwrap());
        let bound = self.ask(true, &message, None).expect("a reply to a bind");
        assert_eq!(bound.status, 0, "an honest bind");
        let listener = self.honest.ends.len() - 1;
        let mut message = Message::new(Operation::Listen);
        message.number = 5;
        assert_eq!(self.ask(true, &message, Some(listener)).expect("a reply to a listen").status, 0);
        let mut message = Message::new(Operation::Connect);
        message.remote = bound.local;
        let reply = self.ask(true, &message, None).expect("a reply to a connect");
        assert_eq!(reply.status, 0, "an honest connect");
        let client = self.honest.ends.len() - 1;
        let mut start = Message::new(Operation::Start);
        start.set_handle(reply.handle().expect("the handle of a new connection"));
        self.ask(true, &start, None);
        let mut record = [0; accept::LEN];
        let accepted =
            receive(self.honest.ends[listener].as_fd(), &mut record).and_then(|(_, descriptor)| descriptor);
        self.honest.ends.push(accepted.expect("an honest connection is accepted"));
        [client, self.honest.ends.len() - 1]
    }

    /// Sends data through an honest connection in both directions. It must arrive unchanged.
    fn exchange(&mut self, [a, b]: [usize; 2]) {
        for (from, to) in [(a, b), (b, a)] {
            assert!(send(self.honest.ends[from].as_fd(), HONEST, None), "an honest program can send");
            self.settle();
            let mut bytes = [0; 64];
            let received = receive(self.honest.ends[to].as_fd(), &mut bytes);
            assert_eq!(received.map(|(len, _)| &bytes[..len]), Some(HONEST), "honest data arrives");
        }
    }
}

fn path() -> PathBuf {
    std::env::temp_dir().join(format!("inlane-fuzz-engine-{}", std::process::id()))
}

/// Returns an address that the input chooses. Each of the possible addresses is of a kind that the engine
/// treats differently.
fn address(input: &mut Input<'_>) -> IpAddr {
    let texts = [
        "10.0.0.1",
        "127.0.0.1",
        "10.0.0.2",
        "0.0.0.0",
        "::",
        "fd00::1",
        "fd00::2",
        "::1",
        "10.0.0.255",
        "224.0.0.1",
        "::ffff:10.0.0.1",
        "8.8.8.8",
        "ff02::1",
    ];
    input.choose(&texts).parse().unwrap()
}

fn random_address(input: &mut Input<'_>, v6: bool) -> IpAddr {
    match v6 {
        false => Ipv4Addr::from(input.number()).into(),
        true => Ipv6Addr::from(u128::from(input.number()) << 96 | u128::from(input.byte())).into(),
    }
}

/// Returns the level and the name of a socket option: usually one that the engine implements, sometimes an
/// arbitrary one.
fn option(input: &mut Input<'_>) -> (i32, i32) {
    // First SO_REUSEADDR, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_LINGER and SO_REUSEPORT of SOL_SOCKET (1).
    // Then options of TCP (6), UDP (17), IPv4 (0) and IPv6 (41).
    let known = [
        (1, 2),
        (1, 7),
        (1, 8),
        (1, 9),
        (1, 13),
        (1, 15),
        (6, 1),
        (6, 2),
        (6, 3),
        (6, 4),
        (6, 5),
        (6, 6),
        (6, 11),
        (6, 18),
        (17, 1),
        (0, 1),
        (0, 2),
        (0, 8),
        (0, 10),
        (41, 16),
        (41, 26),
        (41, 49),
    ];
    match input.byte() {
        255 => (input.byte().into(), input.byte().into()),
        other => known[usize::from(other) % known.len()],
    }
}

/// Returns an Ethernet frame to the engine with an IP packet and correct checksums.
fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let header = if source.is_ipv4() { ipv4::HEADER } else { ipv6::HEADER };
    let mut bytes = vec![0; ethernet::HEADER + header + payload.len()];
    let mut frame = Frame::new(&mut bytes[..]).unwrap();
    frame.set_destination(MAC);
    frame.set_source(PEER_MAC);
    frame.set_ethertype(if source.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 });
    let packet = &mut bytes[ethernet::HEADER..];
    packet[header..].copy_from_slice(&payload);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut packet = ipv4::Packet::init(packet).unwrap();
            packet.set_protocol(protocol);
            packet.set_source(source);
            packet.set_destination(destination);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut packet = ipv6::Packet::init(packet).unwrap();
            packet.set_next_header(protocol);
            packet.set_source(source);
            packet.set_destination(destination);
        }
        _ => unreachable!("both addresses have one family"),
    }
    repair(&mut bytes);
    bytes
}

/// Corrects the IP checksum and the TCP, UDP or ICMP checksum of a frame.
fn repair(frame: &mut [u8]) {
    let Some(bytes) = frame.get_mut(ethernet::HEADER..) else { return };
    let (protocol, pseudo, range) = if bytes.first().map_or(0, |byte| byte >> 4) == 4 {
        let Ok(mut packet) = ipv4::Packet::new(&mut bytes[..]) else { return };
        packet.fill_checksum();
        (packet.protocol(), packet.pseudo_sum(), packet.header_len()..packet.end())
    } else {
        let Ok(packet) = ipv6::Packet::new(&mut bytes[..]) else { return };
        let Ok(upper) = packet.upper() else { return };
        let range = upper.offset.min(packet.end())..packet.end();
        (upper.protocol, packet.pseudo_sum(upper.protocol, range.len() as u32), range)
    };
    let payload = &mut bytes[range];
    match protocol {
        ipv4::TCP => drop(tcp::Segment::new(payload).map(|mut segment| segment.fill_checksum(pseudo))),
        ipv4::UDP => drop(udp::Datagram::new(payload).map(|mut datagram| datagram.fill_checksum(pseudo))),
        ipv4::ICMP | ipv6::ICMP if payload.len() >= icmp::HEADER => {
            payload[2..4].fill(0);
            let start = if protocol == ipv6::ICMP { pseudo } else { Sum::new() };
            let sum = start.add_bytes(payload).finish();
            payload[2..4].copy_from_slice(&sum.to_be_bytes());
            let _ = checksum::of(payload);
        }
        _ => {}
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let choices = input.byte();
    let mut world = World::new(choices);
    let connection = world.connect_honest();
    world.exchange(connection);
    for (text, datagrams) in
        [("0.0.0.0:8080", false), ("[fd00::1]:8080", false), ("0.0.0.0:9000", true), ("[fd00::1]:9000", true)]
    {
        let mut message = Message::new(Operation::Bind);
        message.local = Some(text.parse().unwrap());
        message.v6 = text.starts_with('[');
        message.datagrams = datagrams;
        let bound = world.ask(false, &message, None).expect("a reply to a bind");
        assert_eq!(bound.status, 0);
        if !datagrams {
            let mut message = Message::new(Operation::Listen);
            message.number = 4;
            let last = world.hostile.ends.len() - 1;
            world.ask(false, &message, Some(last));
        }
    }
    for _ in 0..MOST_OPERATIONS {
        if input.0.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..=4 => world.segment(&mut input),
            5 => world.datagram(&mut input),
            6 => world.control_message(&mut input),
            7 => world.address_resolution(&mut input),
            8..=9 => world.request(&mut input),
            10..=12 => world.use_end(&mut input),
            13 => world.advance(u64::from(input.short()) * MILLISECOND),
            14 => world.receive(input.bytes()),
            _ => {
                send(world.hostile.control.as_fd(), input.bytes(), None);
                world.settle();
                world.hostile =
                    Program { ends: std::mem::take(&mut world.hostile.ends), ..Program::new(&path()) };
            }
        }
        if input.0.len() % 4 == 0 {
            world.settle();
        }
        assert!(world.engine.held().sockets <= SOCKETS);
    }
    world.settle();
    world.exchange(connection);
    world.hostile.ends.clear();
    world.settle();
    let other = world.connect_honest();
    world.exchange(other);
    world.honest.ends.clear();
    // Move the clock forward by 40 minutes. Every connection ends within this time: it gives up its
    // retransmissions, and TIME-WAIT lasts a minute.
    for _ in 0..40 {
        world.advance(60_000 * MILLISECOND);
    }
    assert_eq!(world.engine.held(), Held::default(), "something is left");
});
