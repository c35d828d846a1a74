//! Processes the requests of programs to bind, connect and listen on TCP sockets.

use super::Engine;
use super::control::Request;
use super::pair::{self, Filled};
use super::permits::Permit;
use super::reply::{Refusal, Reply};
use super::request::{KEPT, canonical, initial_options, owner, this_host};
use super::socket::{Attachment, ListenerPair, Pair, Socket, StreamPair};
use crate::stack::arena::Key;
use crate::stack::network::Route;
use crate::stack::options::Predecessor;
use crate::stack::socket::Role;
use crate::stack::stream::Stream;
use inlane_offload_protocol::message::{Handle, Message, Operation};
use inlane_offload_protocol::name::End;
use inlane_offload_protocol::rules::Use;
use inlane_tcp::Flow;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// How long a new connection holds back its SYN while it waits for the program's request Start, in
/// nanoseconds. After this time it sends the SYN without the request, because the program may have been
/// killed.
const LONGEST_HOLD_NS: u64 = 20_000_000;

impl Engine {
    pub(super) fn bind(&mut self, request: &Request) -> Reply {
        let message = &request.message;
        let wanted = canonical(message.local.ok_or(libc::EINVAL)?);
        let mut options = initial_options(message);
        options.predecessor = request
            .attached
            .as_ref()
            .and_then(pair::lost_listener)
            .filter(|listener| listener.engine != self.number)
            .map(|listener| Predecessor {
                engine: listener.engine,
                socket: listener.socket,
                user: request.user,
            });
        if self.is_kept(message.program(), false, wanted, Use::Listen) {
            return Err(Refusal::Kernel(KEPT));
        }
        let ip = wanted.ip();
        if ip.is_loopback() && !self.settings.loopback {
            return Err(Refusal::Kernel("the address is a loopback address of the kernel"));
        }
        if !ip.is_unspecified() && !self.stack.network.is_own(ip) {
            return Err(Refusal::Kernel("the address is not one of the engine's"));
        }
        let port = self.choose_port(request.user, wanted, false, &options)?;
        let local = SocketAddr::new(ip, port);
        let (key, program) = self.create(owner(request), local, None, options, (Role::Bound, Pair::Bound))?;
        self.stack.hold_port(key, port);
        let mut reply = Message::new(Operation::Bind);
        reply.local = Some(local);
        Ok((reply, Some(Arc::new(program))))
    }

    pub(super) fn connect(&mut self, now: u64, request: &Request) -> Reply {
        let message = &request.message;
        let remote = this_host(canonical(message.remote.ok_or(libc::EINVAL)?));
        let existing = match request.attached {
            Some(_) => Some(self.attached(request)?),
            None => None,
        };
        if let Some(socket) = existing.and_then(|key| self.stack.sockets.get(key)) {
            check_family(socket.local, remote)?;
        }
        if remote.port() == 0 {
            return Err(Refusal::Errno(libc::ECONNREFUSED));
        }
        self.check_rules(request, remote, Use::Connect)?;
        // As in Linux. No host answers for such an address, so a connect would wait in vain.
        if self.stack.network.is_group(remote.ip()) {
            return Err(Refusal::Errno(libc::ENETUNREACH));
        }
        let Some(route) = self.stack.network.route(remote.ip()) else {
            return Err(match (existing, remote.ip().is_loopback()) {
                (Some(_), _) => Refusal::Errno(libc::ENETUNREACH),
                (None, true) => Refusal::Kernel("the address is a loopback address of the kernel"),
                (None, false) => Refusal::Kernel("the engine has no route to the address"),
            });
        };
        match existing {
            Some(key) => {
                let program = request.attached.as_ref().ok_or(libc::EBADF)?;
                self.connect_bound(now, key, remote, route, program, request)
            }
            None => {
                let source = self.stack.network.source(remote.ip()).ok_or(libc::ENETUNREACH)?;
                let local = self.stack.ephemeral(source, remote).ok_or(libc::EADDRNOTAVAIL)?;
                let flow = Flow { local, remote };
                let options = initial_options(message);
                let mut stream = self.stack.open_stream(now, flow, route, &options)?;
                let holds = message.number != 1;
                stream.held_until = holds.then_some(now + LONGEST_HOLD_NS);
                let (key, program) =
                    self.create(owner(request), local, Some(remote), options, new_role(stream, request))?;
                if !self.claim_flow(flow, key) {
                    self.remove(key);
                    return Err(Refusal::Errno(libc::EADDRNOTAVAIL));
                }
                let program = Arc::new(program);
                self.fill(key, program.clone(), None)?;
                let mut reply = Message::new(Operation::Connect);
                reply.local = Some(local);
                // With rules, a refusal must reach the program before it gives up the kernel's socket.
                let opens = super::permits::is_trusted(request.user) && self.settings.rules.is_empty();
                reply.number = i32::from(opens);
                if holds {
                    self.stack.arm(key, now + LONGEST_HOLD_NS);
                    let socket = self.stack.sockets.get(key).map_or(0, |socket| socket.attachment.id);
                    reply.set_handle(Handle { socket, key: key.to_u64() });
                } else {
                    self.stack.touch(key);
                }
                Ok((reply, Some(program)))
            }
        }
    }

    /// Lets a new connection send its SYN. The program's end of the socket pair has now replaced the kernel's
    /// socket. With an earlier SYN, the peer might answer while other threads of the program still use the
    /// kernel's socket.
    pub(super) fn start(&mut self, request: &Request) -> Reply {
        let handle = request.message.handle().ok_or(libc::EINVAL)?;
        let key = Key::from_u64(handle.key);
        match self.stack.sockets.get_mut(key) {
            Some(Socket {
                attachment: Attachment { id, process, .. }, role: Role::Stream(stream), ..
            }) if *id == handle.socket && *process == request.process => {
                stream.held_until = None;
                self.stack.touch(key);
                Ok((Message::new(Operation::Start), None))
            }
            _ => Err(Refusal::Errno(libc::EBADF)),
        }
    }

    /// Fills the pair, because the program's end must not be writable during the handshake. Removes the
    /// socket on failure. `permit` counts `program` if it is a duplicate.
    fn fill(&mut self, key: Key, program: Arc<OwnedFd>, permit: Option<Permit>) -> Result<(), Refusal> {
        let size = self.stack.sockets.get(key).and_then(|socket| socket.options.send_buffer);
        let filled = Filled::new(program, permit, size.is_none());
        match (filled, self.stack.sockets.get_mut(key)) {
            (Ok(filled), Some(Socket { attachment: Attachment { pair: Pair::Stream(pair), .. }, .. })) => {
                pair.filled = Some(filled);
                Ok(())
            }
            (filled, _) => {
                self.remove(key);
                Err(filled.err().map_or(Refusal::Errno(libc::EIO), Refusal::from))
            }
        }
    }

    /// Connects a socket that was bound before. `program` is the program's end.
    fn connect_bound(
        &mut self,
        now: u64,
        key: Key,
        remote: SocketAddr,
        route: Route,
        program: &OwnedFd,
        request: &Request,
    ) -> Reply {
        let source = self.stack.network.source(remote.ip()).ok_or(libc::ENETUNREACH)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        match &socket.role {
            Role::Bound => {}
            Role::Listening(_) | Role::Stream(_) | Role::Datagram(_) => {
                return Err(Refusal::Errno(libc::EISCONN));
            }
        }
        let (mut local, options) = (socket.local, socket.options.clone());
        if local.ip().is_unspecified() {
            local.set_ip(source);
        }
        let flow = Flow { local, remote };
        if self.stack.is_connected(&flow) {
            return Err(Refusal::Errno(libc::EADDRNOTAVAIL));
        }
        let Attachment { process, closer, .. } = &socket.attachment;
        let program = self.duplicate(program, *process, closer.user())?;
        let mut stream = self.stack.open_stream(now, flow, route, &options)?;
        // Claim the flow before the socket changes. If another thread has claimed it, the socket stays bound
        // and unconnected.
        if !self.claim_flow(flow, key) {
            self.stack.drop_stream(stream);
            return Err(Refusal::Errno(libc::EADDRNOTAVAIL));
        }
        let socket = self.stack.sockets.get_mut(key).ok_or(libc::EBADF)?;
        stream.limit_rings(&options);
        pair::limit(&options, socket.attachment.end.as_ref());
        socket.local = local;
        // The program may have written to the pair before.
        (socket.role, socket.attachment.pair) = new_role(stream, request);
        if let Pair::Stream(pair) = &mut socket.attachment.pair {
            pair.readable = true;
        }
        self.stack.list_card_stream(key);
        self.fill(key, Arc::new(program.descriptor), Some(program.permit))?;
        self.stack.touch(key);
        Ok((Message::new(Operation::Connect), None))
    }

    pub(super) fn listen(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        // As Linux's net.core.somaxconn, which a negative backlog exceeds, too.
        let backlog = (request.message.number as u32).min(4096) as usize;
        if matches!(socket.role, Role::Bound) {
            if !self.stack.may_listen(key) {
                return Err(Refusal::Errno(libc::EADDRINUSE));
            }
            let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
            let listening = self.stack.new_listening(socket.local, &socket.options, backlog)?;
            // Duplicate the end before the socket changes, because this may fail.
            let ends = self.ends_for_copies(key, self.threads() - 1)?;
            let socket = self.stack.sockets.get_mut(key).ok_or(libc::EBADF)?;
            let attachment = &mut socket.attachment;
            let mut filled = 0;
            if let (Some(end), Some(program)) = (&attachment.end, &request.attached) {
                filled = pair::fill_listener(end.as_raw_fd(), program, &attachment.closer)?;
                // Set the size of the socket pair's send buffer according to the backlog. The buffer holds
                // the connections that wait to be accepted, and each connection takes about 1 KiB.
                let _ = pair::set_option(end, libc::SO_SNDBUF, (backlog + 1).min(200) as i32 * 1024);
                // The library creates the listener again from this name if the engine ends.
                let kept = socket.options.kept();
                let state = End::Listening(request.message.number);
                pair::set_end(end, state, self.number, attachment.id, Some(socket.local), &kept);
            }
            attachment.pair = Pair::Listening(ListenerPair::new(filled, ends, &request.client));
            socket.role = Role::Listening(Box::new(listening));
            self.stack.tell_listener(key);
            return Ok((Message::new(Operation::Listen), None));
        }
        match self.stack.sockets.get_mut(key) {
            Some(Socket { role: Role::Listening(listening), .. }) => listening.set_backlog(backlog),
            _ => return Err(Refusal::Errno(libc::EINVAL)),
        }
        self.stack.tell_listener(key);
        Ok((Message::new(Operation::Listen), None))
    }
}

/// Returns an error if a socket that is bound to `local` cannot reach `remote`, because their families differ.
fn check_family(local: SocketAddr, remote: SocketAddr) -> Result<(), Refusal> {
    match (local.is_ipv4(), remote.is_ipv4()) {
        _ if local.ip().is_unspecified() => Ok(()),
        (true, false) => Err(Refusal::Errno(libc::EAFNOSUPPORT)),
        (false, true) => Err(Refusal::Errno(libc::ENETUNREACH)),
        _ => Ok(()),
    }
}

/// Returns the role of a new connection, and the state of its pair. The pair is empty, so epoll will report the program's
/// first data.
fn new_role(stream: Stream, request: &Request) -> (Role, Pair) {
    let pair = StreamPair { client: Arc::downgrade(&request.client), opened: true, ..StreamPair::new() };
    (Role::Stream(Box::new(stream)), Pair::Stream(Box::new(pair)))
}
