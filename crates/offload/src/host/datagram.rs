//! Moves the datagrams of UDP sockets between socket pairs and the stack.
//!
//! The socket pair is the only queue of a UDP socket, so the size of the pair bounds the socket's memory. If
//! the pair is full, a received datagram is dropped and counted, as in a kernel.

use super::Engine;
use super::pair;
use super::socket::{Attachment, DatagramPair, Pair, Socket};
use crate::stack::arena::Key;
use crate::stack::datagram::{Outgoing, Unsendable};
use crate::stack::outcome::ReceivedDatagram;
use crate::stack::socket::Role;
use inlane_offload_protocol::datagram::{self, Header, send};
use inlane_offload_protocol::rules::Use;
use std::io;

/// The most datagrams that one socket sends in a turn. Then other sockets have their turn.
const TURN: usize = 64;
/// Limits the datagrams that the engine sends for a socket before the socket closes, or before its address or
/// options change. They wait in the socket pair. The engine sends at most this many times [`TURN`] of them.
const MOST_TURNS: usize = 16;
/// A limit for the packets that the engine has sent to itself and not processed yet. At this number, the
/// engine reads no more datagrams from the pairs.
const MOST_OWN: usize = 256;
/// Returns the errno of a datagram that cannot be sent.
pub(super) fn errno(error: Unsendable) -> i32 {
    match error {
        Unsendable::Group => libc::EACCES,
        Unsendable::Route | Unsendable::Family => libc::ENETUNREACH,
        Unsendable::SourceV4 => libc::EAFNOSUPPORT,
        Unsendable::Source | Unsendable::Destination => libc::EINVAL,
        Unsendable::Length => libc::EMSGSIZE,
        Unsendable::Port => libc::EAGAIN,
    }
}

/// Puts an option into effect that [`SocketOptions::set`](crate::stack::options::SocketOptions::set) has stored.
pub(super) fn apply_datagram_option(socket: &mut Socket, level: i32, name: i32) {
    let Attachment { pair: Pair::Datagram(pair), end, .. } = &mut socket.attachment else { return };
    let options = &socket.options;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            if let (Some(end), Some(bytes)) = (&*end, options.receive_buffer) {
                // Limit the send buffer of the engine's end of the socket pair, because the kernel counts
                // the datagrams that wait for the program in this buffer. Pass half of the value, because
                // the kernel doubles it.
                let _ = pair::set_option(end, libc::SO_SNDBUF, bytes / 2);
            }
        }
        _ => pair.wanted = options.wanted(),
    }
}

impl Engine {
    /// Sends the datagrams that the program has written to the pair. Removes the socket if the program has
    /// closed it.
    pub(super) fn serve_datagrams(&mut self, now: u64, key: Key) {
        let mut buffer = std::mem::take(&mut self.datagram_buffer);
        // Make room for one byte more than the largest datagram, to detect a longer datagram.
        buffer.resize(datagram::LEN + datagram::MOST_V6 + 1, 0);
        let mut errors = 0;
        for count in 0.. {
            let crate::stack::Stack { sockets, network, .. } = &mut self.stack;
            let Some(Attachment { pair: Pair::Datagram(pair), end: Some(end), closer, .. }) =
                sockets.get_mut(key).map(|socket| &mut socket.attachment)
            else {
                break;
            };
            if !pair.readable {
                break;
            }
            if count == TURN || network.is_congested() || network.own.len() >= MOST_OWN {
                self.stack.touch(key);
                break;
            }
            let fd = std::os::fd::AsRawFd::as_raw_fd(end);
            match pair::take(fd, &mut buffer, closer) {
                Ok((0, _)) => {
                    pair.readable = false;
                    if pair::hung_up(fd) {
                        self.remove(key);
                    }
                }
                Ok((len, _)) => self.on_program_datagram(now, key, &buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pair.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Continue after the first error. One read fails with ECONNRESET if the program has closed
                // its socket with unread datagrams. Later reads return the datagrams that the program had
                // sent.
                Err(_) => {
                    errors += 1;
                    if errors > 1 {
                        self.remove(key);
                    }
                }
            }
        }
        self.datagram_buffer = buffer;
    }

    /// Handles a message that the engine read from the engine's end of a socket pair. The message has data,
    /// and may begin with a header. Sends the data as a datagram, or keeps it until the program has sent the
    /// rest of the datagram. The program may be hostile, so `bytes` can be anything.
    fn on_program_datagram(&mut self, now: u64, key: Key, bytes: &[u8]) {
        let (header, data) = match Header::decode(self.number, bytes) {
            Some(header) => (header, &bytes[datagram::LEN..]),
            None => (Header::new(self.number), bytes),
        };
        let Some(Socket { attachment: Attachment { pair: Pair::Datagram(pair), .. }, options, .. }) =
            self.stack.sockets.get_mut(key)
        else {
            return;
        };
        let more =
            header.flags & send::MORE != 0 || options.datagram_option(libc::IPPROTO_UDP, libc::UDP_CORK) != 0;
        if !more && pair.unfinished.is_none() {
            return self.send_or_report(now, key, &header, data);
        }
        let (_, joined) = pair.unfinished.get_or_insert_with(|| (header, Vec::new()));
        if joined.len() + data.len() > datagram::MOST_V6 {
            pair.unfinished = None;
            return self.report_unsent(key, libc::EMSGSIZE);
        }
        joined.extend_from_slice(data);
        if !more {
            self.finish_datagram(now, key);
        }
    }

    /// If the engine has collected the parts of a datagram, sends this datagram.
    fn finish_datagram(&mut self, now: u64, key: Key) {
        if let Some(pair) = self.datagram_pair(key)
            && let Some((header, data)) = pair.unfinished.take()
        {
            self.send_or_report(now, key, &header, &data);
        }
    }

    fn send_or_report(&mut self, now: u64, key: Key, header: &Header, data: &[u8]) {
        let sent = self.send_program_datagram(now, key, header, data);
        match (sent, self.datagram_pair(key).map(|pair| &mut pair.counters)) {
            (Ok(true), Some(counters)) => {
                counters.sent += 1;
                counters.sent_bytes += data.len() as u64;
            }
            (Ok(false), Some(counters)) => counters.unsent += 1,
            (Ok(_), None) => {}
            (Err(error), _) => self.report_unsent(key, error),
        }
    }

    /// Sends a datagram of a program. Returns false if it was dropped.
    fn send_program_datagram(
        &mut self,
        now: u64,
        key: Key,
        header: &Header,
        data: &[u8],
    ) -> Result<bool, i32> {
        let Some(socket) = self.stack.sockets.get(key) else { return Ok(false) };
        let Role::Datagram(datagram) = socket.role else { return Ok(false) };
        let remote = header.remote.or(datagram.remote).ok_or(libc::EDESTADDRREQ)?;
        let remote = super::request::this_host(super::request::canonical(remote));
        if self.is_kept(&socket.attachment.program, true, remote, Use::Connect) {
            return Err(libc::EPERM);
        }
        let (class, hops) = socket.options.class_and_hops(header, remote.is_ipv6());
        let source = header.local.map(|source| source.ip().to_canonical());
        let outgoing = Outgoing { source, remote, class, hops, data };
        self.stack.send_datagram(now, key, &outgoing).map_err(errno)
    }

    /// Returns the pair of a UDP socket.
    fn datagram_pair(&mut self, key: Key) -> Option<&mut DatagramPair> {
        match &mut self.stack.sockets.get_mut(key)?.attachment.pair {
            Pair::Datagram(pair) => Some(pair),
            _ => None,
        }
    }

    fn report_unsent(&mut self, key: Key, error: i32) {
        if let Some(pair) = self.datagram_pair(key) {
            pair.counters.unsent += 1;
        }
        self.report_error(key, error);
    }

    /// Sends the datagrams that the program has written to the socket pair so far. Call this before the
    /// address or options of the socket change, because these datagrams must be sent with the old ones.
    pub(super) fn drain_datagrams(&mut self, now: u64, key: Key) {
        for _ in 0..MOST_TURNS {
            let Some(pair) = self.datagram_pair(key) else { return };
            pair.readable = true;
            self.serve_datagrams(now, key);
            match self.datagram_pair(key) {
                Some(pair) if pair.readable => {}
                _ => return,
            }
        }
    }

    /// Puts an option into effect that the program has just set.
    pub(super) fn on_datagram_option(&mut self, now: u64, key: Key, level: i32, name: i32) {
        if let Some(socket) = self.stack.sockets.get_mut(key) {
            apply_datagram_option(socket, level, name);
            if (level, name) == (libc::IPPROTO_UDP, libc::UDP_CORK)
                && socket.options.datagram_option(level, name) == 0
            {
                self.finish_datagram(now, key);
            }
        }
    }

    /// Makes the next call of the program on a connected socket fail with `error`.
    pub(super) fn report_error(&mut self, key: Key, error: i32) {
        let header = Header { error, ..Header::new(self.number) };
        let Some(socket) = self.stack.sockets.get(key) else { return };
        if let (Role::Datagram(datagram), Some(fd)) = (&socket.role, socket.attachment.fd())
            && datagram.remote.is_some()
        {
            // Ignore a full socket pair, because the program then already has datagrams or errors to read.
            let _ = pair::send(fd, &header.encode(), &[]);
        }
    }

    /// Processes a received datagram for a port of this thread.
    pub(super) fn on_datagram(&mut self, now: u64, received: &ReceivedDatagram<'_>) {
        // If the program has closed the socket that was found, `deliver` fails and removes the socket. Then
        // look for another match, at most 8 times for one datagram.
        for _ in 0..8 {
            let Some(key) = self.stack.datagram_socket(received.local, received.remote) else { break };
            if self.deliver(now, key, received) {
                return;
            }
        }
        self.totals.no_port += 1;
        self.stack.refuse(now, &received.packet);
    }

    /// Writes a received datagram to the socket pair of the socket `key`. If the pair is full, counts the
    /// datagram as dropped. Returns false if the socket no longer exists, because the program has closed it.
    fn deliver(&mut self, now: u64, key: Key, received: &ReceivedDatagram<'_>) -> bool {
        let engine = self.number;
        let Some(socket) = self.stack.sockets.get_mut(key).map(|socket| &mut socket.attachment) else {
            return false;
        };
        let fd = socket.fd();
        let (Pair::Datagram(pair), Some(fd)) = (&mut socket.pair, fd) else { return false };
        let header = Header {
            engine,
            flags: pair.wanted,
            hops: received.packet.hops,
            class: received.packet.class,
            error: 0,
            remote: Some(received.remote),
            local: Some(received.local),
        };
        match pair::send(fd, &header.encode(), received.data) {
            Ok(_) => {
                pair.counters.received += 1;
                pair.counters.received_bytes += received.data.len() as u64;
                true
            }
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) && pair::hung_up(fd) => {
                self.drain_datagrams(now, key);
                // Return true while the socket remains, because its last datagrams may still wait for room on
                // the link.
                self.stack.sockets.get(key).is_some()
            }
            Err(_) => {
                pair.counters.dropped += 1;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
