//! A queue of a controller: its TCP socket and a protocol state machine. The received bytes of the socket
//! drive the state machine.

use super::connection::{Failure, HostConnection};
use crate::wire::pdu::Digests;
use crate::{Error, Result};
use inlane_core::units;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, SendFlags, recvmsg, sendmsg};
use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A blocking receive returns to its caller after at most this time.
const TICK: Duration = Duration::from_millis(50);
/// The number of units of time that a timeout consists of.
const TIMEOUT_TICKS: u32 = 8;
/// The most memory slices that one call of sendmsg sends.
const SLICES: usize = 64;

/// How a queue is connected.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// The digests to use.
    pub digests: Digests,
    /// The entries of the queue, 2 to 4096. One fewer command can be in flight.
    pub entries: u32,
    /// The time within which the target must accept the connection. Also the time within which it must answer each
    /// command, or move more data of it or of a command before it.
    pub timeout: Duration,
    /// How long [`Queue::progress`] polls the socket before it sleeps. Zero: it sleeps at once.
    pub spin: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            entries: 128,
            timeout: Duration::from_secs(15),
            spin: Duration::ZERO,
        }
    }
}

/// A queue of the host: the protocol state of its connection, and the TCP socket. Only one thread uses it.
#[derive(Debug)]
pub struct Queue {
    socket: TcpStream,
    pub(super) connection: HostConnection,
    peer: String,
    timeout: Duration,
    spin: Duration,
    /// When [`HostConnection::tick`] was last called.
    last_tick: Instant,
}

/// Sleeps until an event occurs on a socket, for at most `time`.
pub fn sleep(sockets: &mut [PollFd<'_>], time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ };
    // Ignore an error, because the caller uses all sockets without blocking afterwards.
    let _ = poll(sockets, Some(&time));
}

impl Queue {
    /// Connects to `address` and negotiates the connection. A write sends up to `max_capsule_data` bytes in
    /// its capsule.
    ///
    /// # Errors
    /// If the target cannot be reached, does not answer in time, or refuses the negotiation.
    pub fn connect(address: SocketAddr, options: &QueueOptions, max_capsule_data: u32) -> Result<Self> {
        let peer = address.to_string();
        let refused = |error: std::io::Error| {
            use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
            let remedy = match error.kind() {
                NetworkUnreachable | HostUnreachable => {
                    format!("; check this machine's route: ip route get {}", address.ip())
                }
                ConnectionRefused | TimedOut => {
                    "; check that the target listens there and that no firewall blocks the port".into()
                }
                _ => String::new(),
            };
            let why = format!("cannot connect: {error}{remedy}");
            Error::Unreachable { peer: peer.clone(), why, source: Some(error) }
        };
        let socket = TcpStream::connect_timeout(&address, options.timeout).map_err(refused)?;
        socket.set_nodelay(true).map_err(refused)?;
        socket.set_read_timeout(Some(TICK)).map_err(refused)?;
        let connection = HostConnection::new(options.digests, options.entries, max_capsule_data);
        let mut queue = Self {
            socket,
            connection,
            peer,
            timeout: options.timeout,
            spin: options.spin,
            last_tick: Instant::now(),
        };
        let start = Instant::now();
        while !queue.connection.is_ready() {
            queue.progress(true)?;
            if start.elapsed() > options.timeout {
                let why = queue.silence("to the connection request");
                return Err(Error::unreachable(queue.peer, why));
            }
        }
        Ok(queue)
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the queue's socket with the events for which a sleeping thread must wake up.
    pub fn interest(&self) -> PollFd<'_> {
        let output = if self.connection.has_output() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(&self.socket, PollFlags::IN | output)
    }

    /// Sends queued bytes and receives what has arrived. If `wait` is true, blocks for up to 50 ms until
    /// something arrives.
    ///
    /// # Errors
    /// If the connection ended, the target violated the protocol, or the target has not answered for too
    /// long. The queue cannot be used afterwards. [`Queue::fail`] returns the commands in flight.
    pub fn progress(&mut self, wait: bool) -> Result<()> {
        self.send()?;
        if wait && self.connection.has_output() {
            sleep(&mut [self.interest()], TICK);
            self.send()?;
        }
        use rustix::io::Errno;
        let received = match wait && !self.connection.has_output() {
            true => self.poll_then_sleep(),
            false => self.receive(RecvFlags::DONTWAIT),
        };
        match received {
            Ok(bytes) if bytes > 0 => {
                self.connection.received(bytes).map_err(|failure| self.failed(failure))?
            }
            Ok(_) => return Err(self.ended("it closed the connection", None)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(self.failed_by(error)),
        }
        self.check_time()
    }

    /// Returns an error if a command has made no progress for longer than the timeout: see [`HostConnection::tick`]. A call
    /// counts at most one unit, so time in which the caller does not receive does not count.
    fn check_time(&mut self) -> Result<()> {
        let now = Instant::now();
        if now - self.last_tick < self.timeout / TIMEOUT_TICKS {
            return Ok(());
        }
        self.last_tick = now;
        if self.connection.tick() > TIMEOUT_TICKS {
            return Err(Error::disconnected(&self.peer, self.silence("to a command")));
        }
        Ok(())
    }

    /// Receives bytes into the connection's memory. Returns their number, or 0 at the end of the stream.
    fn receive(&mut self, flags: RecvFlags) -> rustix::io::Result<usize> {
        let mut slices = self.connection.receive_slices();
        // Leave out an empty first slice: a system call with one slice is a little cheaper.
        let slices = if slices[0].is_empty() { &mut slices[1..] } else { &mut slices[..] };
        Ok(recvmsg(&self.socket, slices, &mut Default::default(), flags)?.bytes)
    }

    /// Polls the socket for up to `spin`, then sleeps for up to 50 ms. Returns when bytes arrive.
    fn poll_then_sleep(&mut self) -> rustix::io::Result<usize> {
        let start = (!self.spin.is_zero()).then(Instant::now);
        while start.is_some_and(|start| start.elapsed() < self.spin) {
            match self.receive(RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN) => std::hint::spin_loop(),
                received => return received,
            }
        }
        self.receive(RecvFlags::empty())
    }

    fn send(&mut self) -> Result<()> {
        while self.connection.has_output() {
            let sent = {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let filled = self.connection.transmit_slices(&mut slices);
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                sendmsg(&self.socket, &slices[..filled], &mut Default::default(), flags)
            };
            match sent {
                Ok(bytes) => self.connection.transmitted(bytes),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                Err(error) => return Err(self.failed_by(error)),
            }
        }
        Ok(())
    }

    /// Ends the queue. The commands in flight complete with [`crate::wire::command::Status::HOST_PATH_ERROR`].
    pub fn fail(&mut self) {
        self.connection.fail();
        // Let the kernel discard unsent bytes when the socket is closed. Otherwise a write that is sent again over another
        // path could also arrive over this path later, and overwrite newer data.
        let _ = set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// Reports a violation to the target and returns the error for the caller.
    fn failed(&mut self, failure: Failure) -> Error {
        let peer = self.peer.clone();
        match failure {
            Failure::Terminated(termination) => Error::Terminated { peer, termination },
            Failure::Fault(fault) => {
                let mut request = [0; 152];
                let len = self.connection.encode_termination(&fault, &mut request);
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // Ignore a failure to report the reason, because the connection ends anyway.
                let _ = rustix::net::send(&self.socket, &request[..len], flags);
                Error::Protocol { peer, fault }
            }
        }
    }

    fn failed_by(&self, error: rustix::io::Errno) -> Error {
        self.ended(&format!("the connection failed: {error}"), Some(error.into()))
    }

    fn ended(&self, why: &str, source: Option<std::io::Error>) -> Error {
        let lost = match self.connection.awaited() as u64 {
            0 => String::new(),
            count => format!(" with {} in flight", units::counted(count, "command")),
        };
        Error::Disconnected { peer: self.peer.clone(), why: format!("{why}{lost}"), source }
    }

    /// Says that the target has not answered in time.
    fn silence(&self, to: &str) -> String {
        let seconds = self.timeout.as_secs_f64();
        format!("no answer {to} for {seconds} s; check the target and the network")
    }
}

#[cfg(test)]
mod tests;
