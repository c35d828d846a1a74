//! Processes the requests of programs to create, connect and disconnect UDP sockets.

use super::Engine;
use super::control::Request;
use super::datagram::{apply_datagram_option, errno};
use super::reply::{Refusal, Reply};
use super::request::{KEPT, canonical, initial_options, owner, this_host};
use super::socket::{DatagramPair, Pair, Socket};
use crate::stack::arena::Key;
use crate::stack::datagram::local_for;
use crate::stack::socket::{Datagram, Role};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::rules::Use;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

impl Engine {
    /// Creates a bound UDP socket. If the request has a remote address, the program is about to send to that
    /// address. The socket then stays with the kernel if the engine has no route to the address.
    pub(super) fn bind_datagrams(&mut self, request: &Request) -> Reply {
        let message = &request.message;
        let wanted = canonical(message.local.ok_or(libc::EINVAL)?);
        let options = initial_options(message);
        if self.is_kept(message.program(), true, wanted, Use::Listen) {
            return Err(Refusal::Kernel(KEPT));
        }
        let ip = wanted.ip();
        if ip.is_loopback() && !self.settings.loopback {
            return Err(Refusal::Kernel("the address is a loopback address of the kernel"));
        }
        if self.stack.network.is_group(ip) {
            return Err(Refusal::Kernel("the engine receives no broadcasts and no multicast"));
        }
        if !ip.is_unspecified() && !self.stack.network.is_own(ip) {
            return Err(Refusal::Kernel("the address is not one of the engine's"));
        }
        if let Some(remote) = message.remote {
            self.check_rules(request, this_host(canonical(remote)), Use::Connect)?;
            self.route_or_kernel(remote)?;
        }
        let port = self.choose_port(request.user, wanted, true, &options)?;
        let datagram =
            Datagram { address_chosen: !ip.is_unspecified(), port_chosen: wanted.port() != 0, remote: None };
        let role = new_role(datagram);
        let local = SocketAddr::new(ip, port);
        let (key, program) = self.create(owner(request), local, None, options, role)?;
        self.stack.hold_port(key, port);
        self.apply_datagram_options(key);
        let mut reply = Message::new(Operation::Bind);
        reply.local = Some(local);
        Ok((reply, Some(Arc::new(program))))
    }

    /// Connects the UDP socket whose program's end came with the request. If no end came, creates a connected
    /// UDP socket.
    pub(super) fn connect_datagrams(&mut self, now: u64, request: &Request) -> Reply {
        let message = &request.message;
        let remote = this_host(canonical(message.remote.ok_or(libc::EINVAL)?));
        self.check_rules(request, remote, Use::Connect)?;
        if request.attached.is_some() {
            let key = self.attached(request)?;
            // First send the datagrams that the program has already written, because they go to the old
            // address.
            self.drain_datagrams(now, key);
            self.reconnect(key, remote)?;
            return Ok((Message::new(Operation::Connect), None));
        }
        self.route_or_kernel(remote)?;
        let options = initial_options(message);
        let (_, source) =
            self.stack.route_from(unspecified(remote.is_ipv6()), None, remote.ip()).map_err(errno)?;
        let port = self.choose_port(request.user, SocketAddr::new(source, 0), true, &options)?;
        let local = SocketAddr::new(source, port);
        let role = new_role(Datagram { remote: Some(remote), ..Datagram::default() });
        let (key, program) = self.create(owner(request), local, Some(remote), options, role)?;
        self.stack.hold_port(key, port);
        self.apply_datagram_options(key);
        let mut reply = Message::new(Operation::Connect);
        reply.local = Some(local);
        Ok((reply, Some(Arc::new(program))))
    }

    fn apply_datagram_options(&mut self, key: Key) {
        if let Some(socket) = self.stack.sockets.get_mut(key) {
            apply_datagram_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF);
            apply_datagram_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO);
        }
    }

    /// Returns an error if the engine has no route to `remote`. A new socket then stays with the kernel.
    fn route_or_kernel(&self, remote: SocketAddr) -> Result<(), Refusal> {
        let ip = this_host(canonical(remote)).ip();
        if self.stack.network.is_group(ip) {
            return Err(Refusal::Kernel("the engine sends no broadcasts and no multicast"));
        }
        match (self.stack.network.route(ip), ip.is_loopback()) {
            (Some(_), _) => Ok(()),
            (None, true) => Err(Refusal::Kernel("the address is a loopback address of the kernel")),
            (None, false) => Err(Refusal::Kernel("the engine has no route to the address")),
        }
    }

    fn reconnect(&mut self, key: Key, remote: SocketAddr) -> Result<(), Refusal> {
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        let Role::Datagram(datagram) = &socket.role else { return Err(Refusal::Errno(libc::EISCONN)) };
        if !socket.v6 && remote.is_ipv6() {
            return Err(Refusal::Errno(libc::EAFNOSUPPORT));
        }
        if socket.options.v6_only && remote.is_ipv4() {
            return Err(Refusal::Errno(libc::ENETUNREACH));
        }
        let bound = if datagram.address_chosen { socket.local.ip() } else { unspecified(socket.v6) };
        let (_, source) = self.stack.route_from(bound, None, remote.ip()).map_err(errno)?;
        if socket.local.port() == 0 {
            self.stack.hold_any_port(key).map_err(errno)?;
        }
        if let Some(socket) = self.stack.sockets.get_mut(key)
            && let Role::Datagram(datagram) = &mut socket.role
        {
            datagram.remote = Some(remote);
            socket.local.set_ip(source);
        }
        Ok(())
    }

    /// Disconnects a UDP socket from its remote address. Clears its local address and port, unless the
    /// program chose them.
    pub(super) fn disconnect_datagrams(&mut self, now: u64, request: &Request) -> Reply {
        let key = self.attached(request)?;
        self.drain_datagrams(now, key);
        let Some(socket) = self.stack.sockets.get_mut(key) else { return Err(Refusal::Errno(libc::EBADF)) };
        let Role::Datagram(datagram) = &mut socket.role else { return Err(Refusal::Errno(libc::EINVAL)) };
        datagram.remote = None;
        let port = socket.local.port();
        if !datagram.address_chosen {
            socket.local.set_ip(unspecified(socket.v6));
        }
        if !datagram.port_chosen && socket.holds_port {
            socket.holds_port = false;
            socket.local.set_port(0);
            self.stack.release_port(key, port, true);
        }
        Ok((Message::new(Operation::Disconnect), None))
    }

    /// Checks whether the engine has a route from a UDP socket to an address. Replies with an errno if there
    /// is none.
    pub(super) fn route_datagrams(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let remote = this_host(canonical(request.message.remote.ok_or(libc::EINVAL)?));
        let Some(socket @ Socket { role: Role::Datagram(_), .. }) = self.stack.sockets.get(key) else {
            return Err(Refusal::Errno(libc::EINVAL));
        };
        self.stack.route_from(local_for(socket, remote), None, remote.ip()).map_err(errno)?;
        Ok((Message::new(Operation::Route), None))
    }
}

/// Returns the role of a new UDP socket, and its pair.
fn new_role(datagram: Datagram) -> (Role, Pair) {
    let pair = DatagramPair { readable: true, ..DatagramPair::default() };
    (Role::Datagram(datagram), Pair::Datagram(Box::new(pair)))
}

/// Returns the address that stands for all addresses of a family.
fn unspecified(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() }
}
