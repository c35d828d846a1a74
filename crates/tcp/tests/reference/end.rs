//! The two ends of a connection, each on Linux's TCP or on inlane's, and the application at an end.

use crate::network::{Ring, byte};
use crate::tun::{KERNEL, OURS, frame};
use inlane_tcp::*;
use inlane_wire::{ipv4, tcp as wire};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The plan of an application: how many bytes it writes and reads. The application ends when it has written
/// and read all these bytes.
#[derive(Clone, Debug)]
pub struct Plan {
    pub write: u64,
    /// The number of bytes that the application must receive before it starts to write.
    pub write_after: u64,
    /// The number of bytes that the application reads before it ends the connection. If `abort` is set, it
    /// ends the connection with a reset, otherwise with `close`.
    pub read: u64,
    pub half_close: bool,
    pub abort: bool,
    /// The most bytes that the application reads or writes in one call.
    pub chunk: usize,
    /// The number of received bytes after which the application pauses. It then reads nothing for `pause`
    /// nanoseconds.
    pub pause_at: u64,
    pub pause: u64,
    pub no_delay: bool,
}

/// How a connection ended for an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both sides have closed, and the peer has acknowledged everything.
    Eof,
    /// The peer has reset the connection.
    Reset,
    /// This application has written and read all data of its plan. It has then closed or reset the
    /// connection.
    Left,
}

/// The result of a call that does not block.
pub enum Call {
    Done(usize),
    Later,
    Eof,
    Reset,
}

pub enum End {
    Linux(Linux),
    Inlane(Box<Inlane>),
}

impl End {
    fn write(&mut self, bytes: &[u8]) -> Call {
        match self {
            Self::Linux(end) => end.call(|mut stream| stream.write(bytes)),
            Self::Inlane(end) => end.write(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Call {
        match self {
            Self::Linux(end) => match end.call(|mut stream| stream.read(bytes)) {
                Call::Done(0) => Call::Eof,
                other => other,
            },
            Self::Inlane(end) => end.read(bytes),
        }
    }

    fn half_close(&mut self) {
        match self {
            Self::Linux(end) => drop(end.stream.as_ref().map(|stream| stream.shutdown(Shutdown::Write))),
            Self::Inlane(end) => drop(end.connection.as_mut().map(Connection::shutdown_write)),
        }
    }

    fn leave(&mut self, now: u64, abort: bool) {
        match self {
            Self::Linux(end) => end.leave(abort),
            Self::Inlane(end) => {
                let connection = end.connection.as_mut().expect("it has carried data");
                if abort { connection.abort() } else { connection.close(now) }
            }
        }
    }

    /// Returns true if the stack has no connection any more, or only its TIME-WAIT.
    fn closed(&self) -> bool {
        match self {
            Self::Linux(end) => end.stream.as_ref().is_none_or(|stream| tcp_state(stream) == TCP_CLOSE),
            Self::Inlane(end) => end
                .connection
                .as_ref()
                .is_some_and(|connection| matches!(connection.state(), State::Closed | State::TimeWait)),
        }
    }
}

/// The state CLOSED in Linux's `tcp_info`.
const TCP_CLOSE: u8 = 7;

fn tcp_state(stream: &TcpStream) -> u8 {
    let (mut info, mut len) = ([0u8; 256], 256);
    // SAFETY: the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    };
    assert_eq!(result, 0);
    info[0]
}

fn set_option<T>(fd: &impl AsRawFd, level: i32, name: i32, value: T) {
    // SAFETY: `value` outlives the call.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<T>() as _)
    };
    assert_eq!(result, 0);
}

/// An end on the kernel's TCP.
pub struct Linux {
    listener: Option<TcpListener>,
    stream: Option<TcpStream>,
    no_delay: bool,
}

impl Linux {
    pub fn new(buffer: usize, plan: &Plan, active: bool, (own, other): (u16, u16)) -> Self {
        // SAFETY: the call creates a new descriptor, and the returned value is its only owner.
        let socket = unsafe {
            OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0))
        };
        set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, buffer as i32);
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer as i32);
        let address = |address: [u8; 4], port: u16| libc::sockaddr_in {
            sin_family: libc::AF_INET as _,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
            sin_zero: [0; 8],
        };
        let (local, remote) = (address(KERNEL, own), address(OURS, other));
        let len = size_of_val(&local) as libc::socklen_t;
        // SAFETY: the addresses outlive the calls.
        let result = unsafe {
            match libc::bind(socket.as_raw_fd(), (&raw const local).cast(), len) {
                0 if active => libc::connect(socket.as_raw_fd(), (&raw const remote).cast(), len),
                0 => libc::listen(socket.as_raw_fd(), 1),
                error => panic!("bind: {error}"),
            }
        };
        let in_progress = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINPROGRESS);
        assert!(result == 0 || active && in_progress);
        let (listener, stream) = match active {
            true => (None, Some(TcpStream::from(socket))),
            false => (Some(TcpListener::from(socket)), None),
        };
        let mut end = Self { listener, stream: None, no_delay: plan.no_delay };
        if let Some(stream) = stream {
            end.opened(stream);
        }
        end
    }

    fn opened(&mut self, stream: TcpStream) {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(self.no_delay).unwrap();
        self.stream = Some(stream);
    }

    fn call(&mut self, call: impl FnOnce(&TcpStream) -> std::io::Result<usize>) -> Call {
        if let Some(listener) = &self.listener
            && let Ok((stream, _)) = listener.accept()
        {
            self.opened(stream);
            self.listener = None;
        }
        let Some(stream) = &self.stream else { return Call::Later };
        match call(stream).map_err(|error| error.kind()) {
            Ok(len) => Call::Done(len),
            Err(ErrorKind::WouldBlock | ErrorKind::NotConnected) => Call::Later,
            Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Call::Reset,
            Err(error) => panic!("{error}"),
        }
    }

    fn leave(&mut self, abort: bool) {
        let stream = self.stream.take().expect("it has carried data");
        if abort {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            set_option(&stream, libc::SOL_SOCKET, libc::SO_LINGER, linger);
        }
    }
}

/// A client or server on inlane's TCP state machine. Its [`Listener`] or [`Connection`] answers each packet,
/// as in the engine.
pub struct Inlane {
    config: Config,
    connection: Option<Connection>,
    listener: Listener,
    flow: Flow,
    send: Ring,
    receive: Ring,
    written: u64,
    consumed: u64,
    replies: Vec<Header>,
    /// How often timers have expired since `acknowledged` last changed. Each expiration doubles the timeout.
    expirations: u32,
    acknowledged: u64,
}

impl Inlane {
    pub fn new(config: &Config, plan: &Plan, active: bool, (own, other): (u16, u16)) -> Self {
        let config = Config { no_delay: plan.no_delay, ..config.clone() };
        let address = |octets, port| SocketAddrV4::new(Ipv4Addr::from(octets), port).into();
        let flow = Flow { local: address(OURS, own), remote: address(KERNEL, other) };
        let secrets = Secrets::new(own.to_be_bytes().repeat(8).try_into().expect("16 bytes"));
        let connection = active.then(|| Connection::connect(0, &config, secrets.start(0, &flow)).unwrap());
        Self {
            connection,
            listener: Listener::new(&config, secrets, 2).unwrap(),
            flow,
            send: Ring::new(config.send_capacity as usize),
            receive: Ring::new(config.receive_capacity as usize),
            config,
            written: 0,
            consumed: 0,
            replies: Vec::new(),
            expirations: 0,
            acknowledged: 0,
        }
    }

    /// Processes a packet. A corrupt one is dropped.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) {
        let Ok(packet) = ipv4::Packet::new(bytes) else { return };
        let whole = packet.checksum_ok() && packet.protocol() == ipv4::TCP;
        let view = wire::Segment::new(packet.payload()).ok();
        if !whole || !view.is_some_and(|view| view.checksum_ok(packet.pseudo_sum())) {
            return;
        }
        let segment = Segment::parse(packet.payload(), Ecn::of(packet.tos())).expect("the view was valid");
        match &mut self.connection {
            Some(connection) if connection.state() == State::Closed => {
                self.replies.extend(reset_for(&segment));
            }
            Some(connection) => drop(connection.on_segment(now, &segment, &mut self.receive)),
            None => match self.listener.on_segment(now, &self.flow, &segment, None) {
                Verdict::Reply(header) => self.replies.push(header),
                Verdict::Established(handshake) => {
                    let connection = Connection::accept(now, &self.config, &handshake).unwrap();
                    self.connection.insert(connection).on_segment(now, &segment, &mut self.receive);
                }
                Verdict::Drop => {}
            },
        }
    }

    /// Runs the timers. Returns the packets to send.
    pub fn transmit(&mut self, now: u64) -> Vec<Vec<u8>> {
        let ports = (self.flow.local.port(), self.flow.remote.port());
        if self.connection.is_none() {
            let replies = &mut self.replies;
            self.listener.on_timer(now, |_, header| replies.push(header));
        }
        let build = |header: &Header, range, ecn| frame(header, range, &self.send, ports, ecn);
        let mut frames: Vec<_> =
            self.replies.drain(..).map(|header| build(&header, 0..0, Ecn::NotEct)).collect();
        let Some(connection) = &mut self.connection else { return frames };
        if connection.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.expirations += 1;
            connection.on_timer(now);
        }
        while let Some(transmit) = connection.poll_transmit(now) {
            frames.extend(transmit.segments().map(|(header, range)| build(&header, range, transmit.ecn)));
        }
        if connection.acknowledged() > self.acknowledged {
            (self.expirations, self.acknowledged) = (0, connection.acknowledged());
        }
        let open = !matches!(connection.state(), State::Closed | State::TimeWait);
        if open && self.written > connection.acknowledged() {
            // Data is unacknowledged, so a timer must expire within the retransmission timeout and its
            // backoff. Otherwise lost data would never be retransmitted.
            let timeout = connection.retransmission_timeout() << self.expirations.min(10);
            let deadline = connection.next_deadline();
            assert!(deadline.is_some_and(|at| at <= now + timeout), "{now}, {timeout}: {connection:#?}");
        }
        frames
    }

    fn ended(&self) -> Option<Call> {
        let connection = self.connection.as_ref()?;
        match connection.reason() {
            Some(EndReason::Reset) => Some(Call::Reset),
            Some(reason) => panic!("{reason:?}: {connection:#?}"),
            None => None,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Call {
        if let Some(call) = self.ended() {
            return call;
        }
        let connected = |connection: &&mut Connection| connection.state() != State::SynSent;
        let Some(connection) = self.connection.as_mut().filter(connected) else { return Call::Later };
        let room = connection.acknowledged() + self.send.0.len() as u64 - self.written;
        let len = bytes.len().min(room as usize);
        if len == 0 {
            return Call::Later;
        }
        ReceiveBuffer::write(&mut self.send, self.written, &bytes[..len]);
        self.written += len as u64;
        connection.set_written(self.written).unwrap();
        Call::Done(len)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Call {
        if let Some(call) = self.ended() {
            return call;
        }
        let Some(connection) = &mut self.connection else { return Call::Later };
        let len = bytes.len().min((connection.received() - self.consumed) as usize);
        if len == 0 {
            return if connection.peer_closed() { Call::Eof } else { Call::Later };
        }
        self.receive.read(self.consumed, &mut bytes[..len]);
        self.consumed += len as u64;
        connection.set_consumed(self.consumed).unwrap();
        Call::Done(len)
    }
}

/// An application that carries out a plan. It checks every byte that it reads.
#[derive(Debug)]
pub struct App {
    plan: Plan,
    seeds: (u64, u64),
    written: u64,
    pub received: u64,
    paused_until: Option<u64>,
    half_closed: bool,
    eof: bool,
    pub ending: Option<Ending>,
    last_progress: u64,
    /// The longest time between two calls that moved bytes, in nanoseconds.
    pub longest_stall: u64,
}

impl App {
    /// Creates an application. It writes the byte stream of `seed`, and expects to read the byte stream of
    /// `peer_seed`.
    pub fn new(plan: Plan, seed: u64, peer_seed: u64) -> Self {
        let seeds = (seed, peer_seed);
        Self {
            plan,
            seeds,
            written: 0,
            received: 0,
            paused_until: None,
            half_closed: false,
            eof: false,
            ending: None,
            last_progress: 0,
            longest_stall: 0,
        }
    }

    /// Returns true if the application has ended and its TCP stack has closed the connection.
    pub fn finished(&self, end: &End) -> bool {
        self.ending.is_some() && end.closed()
    }

    /// Makes those socket calls of the application that are possible now. Returns true if a call moved bytes.
    pub fn step(&mut self, now: u64, end: &mut End) -> bool {
        if self.ending.is_some() {
            return false;
        }
        let before = (self.written, self.received);
        let outcome = self.write(end).or_else(|| self.read(now, end));
        let moved = before != (self.written, self.received);
        if moved {
            self.longest_stall = self.longest_stall.max(now - self.last_progress);
            self.last_progress = now;
        }
        self.ending = outcome.or_else(|| {
            if self.written == self.plan.write && self.received == self.plan.read {
                end.leave(now, self.plan.abort);
                return Some(Ending::Left);
            }
            if self.eof && self.half_closed && end.closed() { Some(Ending::Eof) } else { None }
        });
        moved
    }

    fn write(&mut self, end: &mut End) -> Option<Ending> {
        if self.received < self.plan.write_after {
            return None;
        }
        let len = (self.plan.write - self.written).min(self.plan.chunk as u64);
        if len > 0 {
            let bytes: Vec<u8> =
                (self.written..self.written + len).map(|index| byte(self.seeds.0, index)).collect();
            match end.write(&bytes) {
                Call::Done(len) => self.written += len as u64,
                Call::Later => {}
                Call::Reset => return Some(Ending::Reset),
                Call::Eof => unreachable!("a write has no end of data"),
            }
        }
        if self.written == self.plan.write && self.plan.half_close && !self.half_closed {
            end.half_close();
            self.half_closed = true;
        }
        None
    }

    fn read(&mut self, now: u64, end: &mut End) -> Option<Ending> {
        if self.received >= self.plan.pause_at
            && now < *self.paused_until.get_or_insert(now + self.plan.pause)
        {
            return None;
        }
        let most = (self.plan.read - self.received).min(self.plan.chunk as u64) as usize;
        if most == 0 {
            return None;
        }
        let mut bytes = vec![0; most];
        match end.read(&mut bytes) {
            Call::Done(len) => {
                let right = |(index, &found): (u64, &u8)| found == byte(self.seeds.1, index);
                assert!((self.received..).zip(&bytes[..len]).all(right), "a wrong byte: {self:?}");
                self.received += len as u64;
            }
            Call::Later => {}
            Call::Eof => self.eof = true,
            Call::Reset => return Some(Ending::Reset),
        }
        None
    }
}
