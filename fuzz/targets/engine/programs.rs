//! The two programs that use the engine under test: a hostile and an honest one. This module makes their
//! requests and uses their sockets.

use super::input::Input;
use super::world::World;
use super::{HONEST, MOST_ENDS};
use inlane_offload_protocol::message::{self, Message, Operation, write_options};
use inlane_offload_protocol::name::SOCKET_LEN;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// A simulated program: its connection to the engine's control socket, and its offloaded sockets.
pub(crate) struct Program {
    pub(crate) control: OwnedFd,
    pub(crate) ends: Vec<OwnedFd>,
}

impl Program {
    pub(crate) fn new(path: &std::path::Path) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let control =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::connect(&control, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { control, ends: Vec::new() }
    }
}

/// Sends bytes, with a descriptor if one is given. Returns true if they were sent, and false on any error.
pub(crate) fn send(to: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> bool {
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
pub(crate) fn receive(from: BorrowedFd<'_>, bytes: &mut [u8]) -> Option<(usize, Option<OwnedFd>)> {
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

impl World {
    /// Sends a request of the honest program, or of the hostile program if `honest` is false. Then runs the
    /// engine and returns the reply, if any. `attached` is the index of the socket that is sent with the
    /// request.
    pub(crate) fn ask(
        &mut self,
        honest: bool,
        message: &Message,
        attached: Option<usize>,
    ) -> Option<Message> {
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

    /// Sends a request of the hostile program with arbitrary fields.
    pub(crate) fn request(&mut self, input: &mut Input<'_>) {
        let mut bytes = Message::new(Operation::Bind).encode();
        bytes[1] = 1 + input.byte() % 16;
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

    /// Lets the hostile program use one of its sockets. Some of these uses never come from the preloaded
    /// library.
    pub(crate) fn use_end(&mut self, input: &mut Input<'_>) {
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
                let mut bytes = [0; SOCKET_LEN + 1];
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
            // Send a datagram with a random header. Copy the header's first 8 bytes from a received message.
            // They are the engine's random number, without which a message has no header.
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
    pub(crate) fn connect_honest(&mut self) -> [usize; 2] {
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
        let mut record = [0; SOCKET_LEN];
        let accepted =
            receive(self.honest.ends[listener].as_fd(), &mut record).and_then(|(_, descriptor)| descriptor);
        self.honest.ends.push(accepted.expect("an honest connection is accepted"));
        [client, self.honest.ends.len() - 1]
    }

    /// Sends data in both directions through an honest connection, whose ends have the indices `a` and `b`.
    /// The data must arrive unchanged.
    pub(crate) fn exchange(&mut self, [a, b]: [usize; 2]) {
        for (from, to) in [(a, b), (b, a)] {
            assert!(send(self.honest.ends[from].as_fd(), HONEST, None), "an honest program can send");
            self.settle();
            let mut bytes = [0; 64];
            let received = receive(self.honest.ends[to].as_fd(), &mut bytes);
            assert_eq!(received.map(|(len, _)| &bytes[..len]), Some(HONEST), "honest data arrives");
        }
    }
}

pub(crate) fn path() -> PathBuf {
    std::env::temp_dir().join(format!("inlane-fuzz-engine-{}", std::process::id()))
}

/// Returns an address that the input chooses. The engine treats each of the possible addresses differently.
pub(crate) fn address(input: &mut Input<'_>) -> IpAddr {
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

/// Returns the level and the name of a socket option: usually one that the engine implements, sometimes an
/// arbitrary one.
pub(crate) fn option(input: &mut Input<'_>) -> (i32, i32) {
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
