//! The sockets that the engine runs for programs: their addresses, options, and state as a listener,
//! connection or UDP socket.

use crate::host::closer::UserCloser;
use crate::host::direct::Direct;
use crate::host::pair::{self, Filled};
use crate::host::{Duplicate, Permit};
use crate::stack::arena::Key;
use crate::stack::network::Route;
use crate::stack::ring::ByteRing;
use crate::status::DatagramCounters;
use inlane_offload_protocol::datagram::Header;
use inlane_offload_protocol::message::NumberOption;
use inlane_offload_protocol::name::{KEPT_OPTIONS, SocketName};
use inlane_tcp::{Config, Connection, Flow, Keepalive, Listener, SECOND};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// How long the engine delays the acknowledgment of a request on a new connection, in nanoseconds. The
/// acknowledgment can then be sent with the program's answer. If the program is not asleep, it answers within
/// microseconds.
const QUICK_ACK_NS: u64 = inlane_tcp::MILLISECOND / 5;

/// A socket of a program.
pub struct Socket {
    /// The socket's number, which is never used again.
    pub id: u64,
    /// The cookie (SO_COOKIE) of the program's end of the socket pair. It identifies this end on the machine.
    pub cookie: u64,
    /// The process that created the socket.
    pub process: i32,
    /// The program's name.
    pub program: String,
    /// True for family AF_INET6.
    pub v6: bool,
    /// The local address. An IPv4 address is never written as an IPv4-mapped IPv6 address.
    pub local: SocketAddr,
    /// True if the socket got its local port by a bind. The engine's table of local ports then lists the
    /// socket.
    pub holds_port: bool,
    /// The options.
    pub options: SocketOptions,
    /// The engine's end of the socket pair. `None` once the program has closed its end.
    pub end: Option<OwnedFd>,
    /// What the socket does.
    pub role: Role,
    /// The deadline of the socket's timer in the timer wheel. `u64::MAX` if the socket has no timer.
    pub armed: u64,
    /// True if the socket is this thread's copy of another thread's listener. Requests of programs go to that
    /// other thread.
    pub copy: bool,
    /// True if the socket is in the engine's list of changed sockets. The engine serves these sockets next.
    pub dirty: bool,
    /// Counts the socket, or the copy's duplicate of the end, also while the end is being closed.
    pub permit: Option<Arc<Permit>>,
    /// Closes descriptors of the program's user.
    pub closer: Arc<UserCloser>,
}

impl Socket {
    /// Returns the descriptor of the engine's end of the socket pair. Returns `None` if the program has
    /// closed its own end.
    pub fn fd(&self) -> Option<RawFd> {
        self.end.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Takes the engine's end out of the socket, and closes it. Returns it instead if descriptors that the program has
    /// sent may wait there, because the close could then block.
    pub fn take_blocking(&mut self) -> Option<OwnedFd> {
        let end = self.end.take()?;
        let harmless = match &self.role {
            Role::Stream(stream) => stream.closes_at_once(&end),
            Role::Datagram(_) => pair::has_no_messages(&end),
            // Other threads may still use the end of a listener. The program has usually closed it.
            Role::Listening(_) => pair::has_no_descriptors(&end, false),
            Role::Bound => pair::has_no_descriptors(&end, true),
        };
        (!harmless).then_some(end)
    }

    /// Returns the connection.
    pub fn stream(&self) -> Option<&Stream> {
        match &self.role {
            Role::Stream(stream) => Some(stream),
            _ => None,
        }
    }
}

/// What a socket does.
pub enum Role {
    /// The TCP socket is bound to a local address. It does not listen, and is not connected.
    Bound,
    /// The TCP socket listens for connections.
    Listening(Box<Listening>),
    /// The TCP socket is connected, or is connecting.
    Stream(Box<Stream>),
    /// The socket is a UDP socket.
    Datagram(Box<Datagram>),
}

/// A UDP socket.
#[derive(Debug, Default)]
pub struct Datagram {
    /// The address to which the socket is connected.
    pub remote: Option<SocketAddr>,
    /// True if the program chose the local address. Otherwise connect sets the address, and a disconnect
    /// resets it.
    pub address_chosen: bool,
    /// True if the program chose the local port. Otherwise the engine chose the port, and a disconnect frees
    /// it.
    pub port_chosen: bool,
    /// True if the socket pair may hold datagrams that the program has sent and the engine has not read.
    pub readable: bool,
    /// The ancillary data that the program has asked for: flags of [`inlane_offload_protocol::datagram::receive`].
    pub wanted: u8,
    /// The header and the data so far of a datagram that the program has not completed (MSG_MORE, UDP_CORK).
    pub unfinished: Option<(Header, Vec<u8>)>,
    /// How many datagrams and bytes the UDP socket has sent, received and dropped.
    pub counters: DatagramCounters,
}

/// A listening socket.
pub struct Listening {
    /// The listener: its half-open connections, and the established connections that wait to be accepted.
    pub listener: Listener<Pending>,
    /// The backlog that the program has set. It limits the accept queues of all threads together, and the SYN
    /// queue of each thread.
    pub backlog: usize,
    /// The number of connections that wait to be accepted, at the listener and at its copies on other
    /// threads.
    pub waiting: Arc<AtomicUsize>,
    /// Duplicates of the engine's end for the copies that are not announced yet.
    pub ends: Vec<Duplicate>,
    /// True while the socket pair accepts no further connection. Either it is full of connections that the
    /// program has not accepted, or a send failed for another reason.
    pub full: bool,
    /// The number of consecutive failed attempts to send a connection to the program.
    pub failures: u32,
    /// True if epoll has reported that the program closed its end of the socket pair.
    pub hung_up: bool,
    /// True if the engine must check whether the program has written to the pair: at the start, and after each event
    /// that bytes have arrived. The engine removes the listener if more than `filled` bytes wait.
    pub unread: bool,
    /// The number of bytes that fill the pair, so that the program's end is not writable.
    pub filled: u64,
}

/// A connection that waits to be accepted. The program has not received its end of the connection's socket
/// pair yet.
#[derive(Debug)]
pub struct Pending {
    /// The connection.
    pub key: Key,
    /// The program's end.
    pub program: OwnedFd,
    /// The name for the program's end.
    pub name: SocketName,
}

/// A connection.
pub struct Stream {
    /// The local and the remote address of the connection, with their ports.
    pub flow: Flow,
    /// Where the packets of the connection go: to the engine itself, or over the link.
    pub route: Route,
    /// The TCP state machine of the connection.
    pub connection: Connection,
    /// The program's data that the peer has not acknowledged yet.
    pub send: ByteRing,
    /// Received data that was not written to the socket pair yet.
    pub receive: ByteRing,
    /// The number of bytes of the program's data that were put into `send` so far, from the socket pair or
    /// from shared memory. The data ends at this index of `send`.
    pub written: u64,
    /// The number of received bytes that were handed to the socket pair or discarded so far.
    pub delivered: u64,
    /// True if a read from the pair may return data of the program. If false, the engine waits until epoll
    /// reports data.
    pub readable: bool,
    /// True if a write to the socket pair may succeed. If false, the engine waits until epoll reports room.
    pub writable: bool,
    /// The number of reads that still need a check: after each of the next `checked_reads` reads from the
    /// socket pair, the engine checks whether the program has finished sending.
    pub checked_reads: u32,
    /// True if the engine must read the socket pair again even after a short read. Epoll has then reported
    /// urgent data, where a read stops early, or the end of the program's data.
    pub more: bool,
    /// True if epoll has reported that the program closed its end of the socket pair or shut down both
    /// directions.
    pub hung_up: bool,
    /// True if the socket pair cannot get more data of the program, so that a short read has returned the
    /// last bytes. Set after the program has closed its end, if it left no received data unread and the pair
    /// has no urgent data.
    pub closed: bool,
    /// True if the program has closed its end of the socket pair, or has shut down its sending direction.
    pub program_finished: bool,
    /// True if the program does not read any more. Received data is then discarded.
    pub discards: bool,
    /// True if the connection was closed because the program has closed its end.
    pub closing: bool,
    /// True if the engine must reset the connection. Before the reset, it sends as much of the program's data
    /// as TCP's windows allow.
    pub resetting: bool,
    /// True if the program has been told that the peer's data has ended. The engine has then written all
    /// received data to the socket pair and shut down its own end of the pair for writing.
    pub end_passed: bool,
    /// Before this time, in nanoseconds, nothing is sent. Until then, the program may not have replaced its
    /// kernel socket by the program's end of the socket pair. `None` if there is no such limit.
    pub held_until: Option<u64>,
    /// True if it is unknown whether the program has accepted the connection. It has if the program's end has a name.
    pub unaccepted: bool,
    /// The program's end of the socket pair while the connection is being established. Its send buffer is
    /// full, so the end is not writable.
    pub filled: Option<Filled>,
    /// When the connection was established, in nanoseconds of the engine's clock.
    pub since: u64,
    /// The connection's slot of the memory that the engine shares with the program. `None` until the program
    /// requests a slot.
    pub direct: Option<Box<Direct>>,
    /// The position after the last byte that the program has sent with MSG_MORE. Counted from the same start
    /// as `written`. `None` if no such bytes wait for more bytes.
    pub more_end: Option<u64>,
}

impl Stream {
    /// Returns the number of payload bytes that went through shared memory.
    pub fn direct_bytes(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| direct.sent + direct.received)
    }
}

/// Options of a socket. Accepted connections inherit those of the listener.
#[derive(Clone, Debug, Default)]
pub struct SocketOptions {
    /// SO_REUSEADDR.
    pub reuse_address: bool,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// The time of SO_LINGER in seconds; `None` if the option is off.
    pub linger: Option<i32>,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// SO_SNDBUF, if set, as the kernel's getsockopt returns it: twice the number that the program set.
    pub send_buffer: Option<i32>,
    /// SO_RCVBUF, if set, as the kernel's getsockopt returns it: twice the number that the program set.
    pub receive_buffer: Option<i32>,
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// TCP_CORK.
    pub cork: bool,
    /// TCP_USER_TIMEOUT in milliseconds; 0 if off.
    pub user_timeout: u32,
    /// TCP_MAXSEG; 0 if not set.
    pub max_segment: u16,
    /// The options that have no field in this struct. The key is level and name, the value is as the program
    /// set it.
    pub others: BTreeMap<(i32, i32), Vec<u8>>,
    /// TCP_KEEPIDLE and TCP_KEEPINTVL in seconds, and TCP_KEEPCNT; `None` for an option that the program has
    /// not set.
    pub keepalive_times: [Option<u32>; 3],
    /// The listener of an earlier engine that the socket replaces. Sockets that replace the same listener share its port,
    /// because processes may have shared that listener.
    pub predecessor: Option<Predecessor>,
}

/// A listener of an engine that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The random number of its engine.
    pub engine: u64,
    /// Its number in that engine.
    pub socket: u64,
    /// The user of the socket that replaces it. Users do not share a port, because each could forge the other's names.
    pub user: u32,
}

impl SocketOptions {
    /// The most options without a field of their own that are kept. Programs can read kept options back.
    /// Further options are ignored.
    const MOST_OTHERS: usize = 32;
    /// The lowest limit for the bytes of a ring that a connection may use. It is half of the smallest
    /// SO_SNDBUF that Linux's getsockopt returns.
    const LEAST_BUFFER: usize = 2304;

    /// Sets an option. Also stores options without a field of their own, up to `MOST_OTHERS`, for later
    /// reads.
    pub fn set(&mut self, level: i32, name: i32, value: &[u8]) {
        let number = match value {
            [a, b, c, d, ..] => i32::from_ne_bytes([*a, *b, *c, *d]),
            [a, ..] => i32::from(*a),
            [] => return,
        };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address = number != 0,
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => self.reuse_port = number != 0,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keepalive = number != 0,
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = value
                    .get(4..8)
                    .map_or(0, |part| i32::from_ne_bytes([part[0], part[1], part[2], part[3]]));
                self.linger = (number != 0).then_some(seconds);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_buffer = Some(number),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_buffer = Some(number),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6_only = number != 0,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay = number != 0,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => self.cork = number != 0,
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => self.user_timeout = number.max(0) as u32,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.max_segment = number.clamp(0, 65535) as u16,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                self.keepalive_times[0] = Some(number.clamp(1, 32767) as u32)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                self.keepalive_times[1] = Some(number.clamp(1, 32767) as u32)
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                self.keepalive_times[2] = Some(number.clamp(1, 127) as u32)
            }
            // -1 is the default.
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
                if number == -1 =>
            {
                self.others.remove(&(level, name));
            }
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
                self.others.insert((level, name), number.clamp(-1, 120).to_ne_bytes().into());
            }
            _ if self.others.len() < Self::MOST_OTHERS || self.others.contains_key(&(level, name)) => {
                self.others.insert((level, name), value.to_vec());
            }
            _ => {}
        }
    }

    /// Returns an option's value, or `None` if it is unknown.
    pub fn get(&self, level: i32, name: i32) -> Option<Vec<u8>> {
        let usual = Keepalive::default();
        let times = [(usual.idle / SECOND) as u32, (usual.interval / SECOND) as u32, u32::from(usual.probes)];
        let time = |index: usize| self.keepalive_times[index].unwrap_or(times[index]) as i32;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => i32::from(self.reuse_port),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => i32::from(self.v6_only),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => i32::from(self.no_delay),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => i32::from(self.cork),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => self.user_timeout as i32,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => time(0),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => time(1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => time(2),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                return Some(b"cubic\0\0\0\0\0\0\0\0\0\0\0".to_vec());
            }
            (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => 1,
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) if !self.others.contains_key(&(level, name)) => 6,
            (libc::IPPROTO_TCP, libc::TCP_LINGER2)
                if self
                    .others
                    .get(&(level, name))
                    .is_none_or(|value| value.iter().all(|&byte| byte == 0)) =>
            {
                60
            }
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT | libc::TCP_FASTOPEN | libc::TCP_NOTSENT_LOWAT)
            | (libc::IPPROTO_IP, libc::IP_TOS)
            | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                if !self.others.contains_key(&(level, name)) =>
            {
                0
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
                if !self.others.contains_key(&(level, name)) =>
            {
                64
            }
            _ => return self.others.get(&(level, name)).cloned(),
        };
        Some(number.to_ne_bytes().to_vec())
    }

    /// Returns those options of [`KEPT_OPTIONS`] whose values differ from the values of a new socket.
    pub fn kept(&self) -> Vec<NumberOption> {
        let usual = Self::default();
        let number = |options: &Self, level, name| match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => options.send_buffer,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => options.receive_buffer,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Some(i32::from(options.max_segment)),
            _ => options.get(level, name).and_then(|value| Some(i32::from_ne_bytes(value.try_into().ok()?))),
        };
        let kept = |&(level, name): &(i32, i32)| {
            let value = number(self, level, name)?;
            (number(&usual, level, name) != Some(value)).then_some((level, name, value))
        };
        KEPT_OPTIONS.iter().filter_map(kept).collect()
    }

    /// Returns the times and the number of keepalive probes, or `None` if SO_KEEPALIVE is off.
    pub fn keepalive(&self) -> Option<Keepalive> {
        let [idle, interval, probes] = self.keepalive_times;
        let usual = Keepalive::default();
        self.keepalive.then(|| Keepalive {
            idle: idle.map_or(usual.idle, |seconds| u64::from(seconds) * SECOND),
            interval: interval.map_or(usual.interval, |seconds| u64::from(seconds) * SECOND),
            probes: probes.map_or(usual.probes, |probes| probes as u8),
        })
    }

    /// Returns the most bytes that a connection may use of a ring of `capacity` bytes. `option` is SO_SNDBUF
    /// or SO_RCVBUF as the kernel reports it, or `None` if the program has not set it. The ring gets half of
    /// the option's value. The socket pair gets the other half.
    fn share(option: Option<i32>, capacity: usize) -> usize {
        option.map_or(capacity, |bytes| (bytes.max(0) as usize / 2).clamp(Self::LEAST_BUFFER, capacity))
    }

    /// Returns the most bytes that the connection may use of a send ring of `capacity` bytes. This is the
    /// whole ring, unless the program has set SO_SNDBUF.
    pub fn send_limit(&self, capacity: usize) -> usize {
        Self::share(self.send_buffer, capacity)
    }

    /// Returns the most bytes of a receive ring of `capacity` bytes that the connection may use. This is
    /// `capacity`, unless the program has set SO_RCVBUF.
    pub fn receive_limit(&self, capacity: usize) -> usize {
        Self::share(self.receive_buffer, capacity)
    }

    /// Returns the user timeout in nanoseconds, if set.
    pub fn user_timeout(&self) -> Option<u64> {
        (self.user_timeout > 0).then(|| u64::from(self.user_timeout) * inlane_tcp::MILLISECOND)
    }

    /// Returns the settings of a connection with these options. `mss` is the largest payload of a segment on
    /// its route.
    pub fn config(&self, buffer: usize, mss: u16) -> Config {
        let mss = match self.max_segment {
            0 => mss,
            most => mss.min(most.max(Config::MIN_MSS)),
        };
        let usual = Config::default();
        Config {
            send_capacity: buffer as u32,
            // The window that the peer sees first must not be larger than the later ones.
            receive_capacity: self.receive_limit(buffer) as u32,
            mss,
            base_mss: usual.base_mss.min(mss),
            no_delay: self.no_delay,
            keepalive: self.keepalive(),
            user_timeout: self.user_timeout(),
            quick_ack: QUICK_ACK_NS,
            ..usual
        }
    }
}
