//! Binds sockets to local ports. Frees the ports of sockets that programs have closed before.

use super::Engine;
use super::pair;
use super::reply::Refusal;
use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use std::net::SocketAddr;

/// Only root may bind ports below this number.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// One check examines at most this many sockets of a port, to find sockets that the program has closed. A
/// program can bind very many sockets to one port, and each examination is a system call.
const MOST_CHECKED: usize = 64;

impl Engine {
    /// Returns the port for a bind: the wanted one, or a free one for port 0.
    pub(super) fn choose_port(
        &mut self,
        user: u32,
        wanted: SocketAddr,
        datagrams: bool,
        options: &SocketOptions,
    ) -> Result<u16, Refusal> {
        if (1..FIRST_UNPRIVILEGED).contains(&wanted.port()) && user != 0 {
            return Err(Refusal::Errno(libc::EACCES));
        }
        if wanted.port() != 0 {
            self.remove_closed(wanted.port(), datagrams);
        }
        let shares = options.reuse_address || options.reuse_port || options.predecessor.is_some();
        if wanted.port() != 0
            && !datagrams
            && !shares
            && self.stack.has_connection_at(wanted, options.v6_only)
        {
            return Err(Refusal::Errno(libc::EADDRINUSE));
        }
        self.stack.choose_port(wanted, datagrams, options).ok_or(Refusal::Errno(libc::EADDRINUSE))
    }

    /// Removes bound and listening sockets on `port` that their programs have closed. The port is then free
    /// at once, even if epoll has not reported the closing yet. If the port has very many sockets, checks
    /// only the newest ones. Epoll has probably reported the closing of the older ones.
    pub(super) fn remove_closed(&mut self, port: u16, datagrams: bool) {
        let Some(holders) = self.stack.ports_of(datagrams).get(&port) else { return };
        let closed = |&&key: &&Key| {
            let socket = self.stack.sockets.get(key);
            socket.is_some_and(|socket| {
                socket.stream().is_none() && socket.attachment.fd().is_none_or(pair::hung_up)
            })
        };
        let closed: Vec<Key> = holders.iter().rev().take(MOST_CHECKED).filter(closed).copied().collect();
        let now = self.clock.now_ns();
        for key in closed {
            match datagrams {
                // Send the datagrams that the program wrote before it closed the socket. Then remove the
                // socket.
                true => self.drain_datagrams(now, key),
                false => self.remove(key),
            }
        }
    }
}
