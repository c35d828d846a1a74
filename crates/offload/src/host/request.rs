//! Processes requests that programs send on the control socket, for example a request to create a socket.

use super::closer::UserCloser;
use super::control::Request;
use super::pair::{self, Filled};
use super::permits::{Kind, Permit};
use super::socket::{Attachment, ListenerPair, Pair, Socket, StreamPair};
use super::stream::limit_pair;
use super::{Engine, report};
use crate::stack::arena::Key;
use crate::stack::network::Route;
use crate::stack::options::{Predecessor, SocketOptions};
use crate::stack::socket::Role;
use crate::stack::stream::{Stream, Unopened};
use crate::status;
use inlane_offload_protocol::datagram::LEAST_BUFFER as LEAST_DATAGRAM_BUFFER;
use inlane_offload_protocol::message::{Handle, KERNEL, Message, Operation, read_options, write_options};
use inlane_offload_protocol::name::{End, SocketKind, SocketName};
use inlane_offload_protocol::rules::{Action, Use, decide};
use inlane_tcp::Flow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// How long a new connection holds back its SYN while it waits for the program's request Start, in
/// nanoseconds. After this time it sends the SYN without the request, because the program may have been
/// killed.
const LONGEST_HOLD_NS: u64 = 20_000_000;

/// Why a socket stays with the kernel if a rule of the engine says so.
pub(super) const KEPT: &str = "a rule of the engine keeps it there";

/// Why a request fails: an errno, or the reason why the socket stays with the kernel.
pub(super) enum Refusal {
    Errno(i32),
    Kernel(&'static str),
}

impl From<i32> for Refusal {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<inlane_tcp::Error> for Refusal {
    fn from(_: inlane_tcp::Error) -> Self {
        Self::Errno(libc::EINVAL)
    }
}

impl From<Unopened> for Refusal {
    fn from(why: Unopened) -> Self {
        Self::Errno(match why {
            Unopened::Option => libc::EINVAL,
            Unopened::Memory => libc::ENOBUFS,
        })
    }
}

/// The program that a socket is created for.
#[derive(Clone, Copy)]
pub(super) struct OwningProgram<'a> {
    pub process: i32,
    pub program: &'a str,
    /// True for family AF_INET6.
    pub v6: bool,
    /// Closes descriptors of the program's user.
    pub closer: &'a Arc<UserCloser>,
}

/// A socket that is being created.
pub(super) struct NewSocket {
    /// See [`Attachment::id`].
    pub id: u64,
    /// The cookie of the program's end.
    pub cookie: u64,
    /// The engine's end.
    pub end: OwnedFd,
    /// The local address.
    pub local: SocketAddr,
    /// The options.
    pub options: SocketOptions,
    /// What the socket does, and the state of its pair.
    pub role: (Role, Pair),
    /// Counts the socket.
    pub permit: Permit,
}

/// Returns the program that sent a request.
pub(super) fn owner(request: &Request) -> OwningProgram<'_> {
    OwningProgram {
        process: request.process,
        program: request.message.program(),
        v6: request.message.v6,
        closer: &request.client.closer,
    }
}

/// The reply to a request and the descriptor to send with it, or why the request fails.
pub(super) type Reply = Result<(Message, Option<Arc<OwnedFd>>), Refusal>;

/// Converts an IPv4-mapped IPv6 address to the IPv4 address. Returns other addresses unchanged.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Replaces the unspecified address by the loopback address. Keeps all other addresses. Linux does the same:
/// a program that connects or sends to the unspecified address reaches its own host.
pub(super) fn this_host(mut remote: SocketAddr) -> SocketAddr {
    if remote.ip().is_unspecified() {
        let this_host: IpAddr = match remote.is_ipv4() {
            true => Ipv4Addr::LOCALHOST.into(),
            false => Ipv6Addr::LOCALHOST.into(),
        };
        remote.set_ip(this_host);
    }
    remote
}

impl Engine {
    /// Processes a request. Returns the reply and the descriptor to send with it.
    pub(super) fn process(&mut self, now: u64, request: &mut Request) -> (Message, Option<Arc<OwnedFd>>) {
        let operation = request.message.operation;
        let mut answer = match operation {
            Operation::Bind if request.message.datagrams => self.bind_datagrams(request),
            Operation::Connect if request.message.datagrams => self.connect_datagrams(now, request),
            Operation::Disconnect => self.disconnect_datagrams(now, request),
            Operation::Route => self.route_datagrams(request),
            Operation::Bind => self.bind(request),
            Operation::Connect => self.connect(now, request),
            Operation::Listen => self.listen(request),
            Operation::SetOption | Operation::SetOptionNow => self.set_option(now, request),
            Operation::GetOption => self.get_option(request),
            Operation::Addresses => self.socket_addresses(request),
            Operation::Kernel => {
                self.note_kernel(&request.message, request.process, None);
                Ok((Message::new(operation), None))
            }
            Operation::Status => self.status_file(now),
            Operation::Start => self.start(request),
            Operation::Adopt => self.adopt(now, request),
            Operation::Open => self.open(now, request),
            Operation::More => self.expect_more(request),
        };
        if let (Operation::Bind | Operation::Connect, Ok((reply, _))) = (operation, &mut answer) {
            reply.name = self.spin_us();
        }
        let (mut reply, descriptor) = answer.unwrap_or_else(|refusal| {
            let mut reply = Message::new(operation);
            match refusal {
                Refusal::Errno(errno) => reply.status = errno,
                Refusal::Kernel(reason) => {
                    self.note_kernel(&request.message, request.process, Some(reason));
                    reply.status = KERNEL;
                    reply.set_value(reason.as_bytes());
                }
            }
            (reply, None)
        });
        reply.operation = operation;
        (reply, descriptor)
    }

    /// Returns an error if a rule of the engine keeps a socket with the kernel. A socket that is on the engine already cannot use
    /// the address.
    pub(super) fn check_rules(
        &self,
        request: &Request,
        address: SocketAddr,
        usage: Use,
    ) -> Result<(), Refusal> {
        let message = &request.message;
        if !self.is_kept(message.program(), message.datagrams, address, usage) {
            return Ok(());
        }
        Err(match request.attached {
            Some(_) => Refusal::Errno(libc::EACCES),
            None => Refusal::Kernel(KEPT),
        })
    }

    /// Returns true if a rule of the engine keeps sockets with the kernel that use `address` in this way.
    pub(super) fn is_kept(&self, program: &str, datagrams: bool, address: SocketAddr, usage: Use) -> bool {
        let rules = &self.settings.rules;
        !rules.is_empty()
            && decide(rules, program, datagrams, address.ip(), address.port(), usage) == Some(Action::Kernel)
    }

    fn note_kernel(&mut self, message: &Message, process: i32, reason: Option<&str>) {
        let said = status::printable(&String::from_utf8_lossy(message.value()));
        self.totals.note_kernel(report::KernelSocket {
            protocol: status::protocol(message.datagrams),
            program: status::printable(message.program()),
            process,
            local: message.local.map(|address| address.to_string()),
            remote: message.remote.map(|address| address.to_string()),
            reason: reason.map_or(said, str::to_owned),
        });
    }

    /// Returns the socket to which a request refers. The request carries the program's end of the socket
    /// pair, which identifies the socket.
    pub(super) fn attached(&self, request: &Request) -> Result<Key, Refusal> {
        let fd = request.attached.as_ref().ok_or(libc::EBADF)?;
        let key = self.by_cookie.get(&pair::cookie(fd)?).copied().ok_or(libc::EBADF)?;
        request.known.set(true);
        Ok(key)
    }

    /// Creates a socket. Set `remote` if the program is connecting the socket. Returns the socket's key and
    /// the program's end.
    pub(super) fn create(
        &mut self,
        owner: OwningProgram<'_>,
        local: SocketAddr,
        remote: Option<SocketAddr>,
        options: SocketOptions,
        role: (Role, Pair),
    ) -> Result<(Key, OwnedFd), Refusal> {
        let (key, program, name) = self.create_unnamed(owner, local, remote, options, role)?;
        if let Err(error) = pair::set_name(&program, &name) {
            self.remove(key);
            return Err(error.into());
        }
        Ok((key, program))
    }

    /// Creates a socket as [`Self::create`] does, but without naming the program's end. Returns the socket's
    /// key, the program's end, and the name that the caller must give this end.
    pub(super) fn create_unnamed(
        &mut self,
        owner: OwningProgram<'_>,
        local: SocketAddr,
        remote: Option<SocketAddr>,
        options: SocketOptions,
        role: (Role, Pair),
    ) -> Result<(Key, OwnedFd, SocketName), Refusal> {
        let id = self.next_id();
        let kind = match (&role.0, owner.v6) {
            (Role::Datagram(_), false) => SocketKind::DatagramV4,
            (Role::Datagram(_), true) => SocketKind::DatagramV6,
            (_, false) if remote.is_some() => SocketKind::StreamV4,
            (_, true) if remote.is_some() => SocketKind::StreamV6,
            (_, false) => SocketKind::BoundV4,
            (_, true) => SocketKind::BoundV6,
        };
        let name = SocketName { engine: self.number, socket: id, kind, local, remote };
        let prepared = self.prepare_pair(owner, kind);
        let (end, program, cookie, permit) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                self.drop_role(role);
                return Err(refusal);
            }
        };
        let new = NewSocket { id, cookie, end, local, options, role, permit };
        Ok((self.add(owner, new, &program)?, program, name))
    }

    /// Creates the pair of a new socket, and counts the socket.
    fn prepare_pair(
        &self,
        owner: OwningProgram<'_>,
        kind: SocketKind,
    ) -> Result<(OwnedFd, OwnedFd, u64, Permit), Refusal> {
        let (end, program) = pair::create_unnamed(kind)?;
        let cookie = pair::cookie(&program)?;
        let permit = self.admit_socket(owner.process, owner.closer.user(), [&end, &program])?;
        Ok((end, program, cookie, permit))
    }

    /// Frees the memory of a socket that is not created.
    fn drop_role(&mut self, (role, _): (Role, Pair)) {
        if let Role::Stream(stream) = role {
            self.stack.drop_stream(*stream);
        }
    }

    /// Counts a new socket of a process, whose pair has the ends `ends`.
    ///
    /// # Errors
    /// `ENFILE` if the process or its user has as many sockets as allowed.
    pub(super) fn admit_socket(&self, process: i32, user: u32, ends: [&OwnedFd; 2]) -> Result<Permit, i32> {
        let free = ends.map(|end| self.closer.free_after(end)).into_iter().min().unwrap_or(0);
        self.control.permits.admit(Kind::Socket, process, user, free).ok_or(libc::ENFILE)
    }

    /// Returns the number of a new socket.
    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += self.threads() as u64;
        self.last_id + self.stack.thread as u64
    }

    /// Adds a socket over an existing pair, whose program's end is `other`.
    pub(super) fn add(
        &mut self,
        owner: OwningProgram<'_>,
        new: NewSocket,
        other: &OwnedFd,
    ) -> Result<Key, Refusal> {
        let OwningProgram { process, program, v6, closer } = owner;
        let NewSocket { id, cookie, end, local, options, role, permit } = new;
        let (role, pair) = role;
        let attachment = Attachment {
            id,
            cookie,
            process,
            program: status::printable(program),
            end: Some(end),
            pair,
            copy: false,
            permit: Some(Arc::new(permit)),
            closer: closer.clone(),
        };
        let key = self.stack.insert(Socket::new(local, v6, options, role, attachment));
        self.by_cookie.insert(cookie, key);
        if let Some(shared) = &self.shared {
            shared.by_cookie.part(&cookie).insert(cookie, self.stack.thread);
        }
        if let Some(Socket { role, options, attachment, .. }) = self.stack.sockets.get_mut(key)
            && !matches!(role, Role::Bound)
        {
            // Halve the sizes: the options hold twice the numbers that the program set, and setsockopt
            // doubles its argument.
            let mut sizes =
                [options.send_buffer, options.receive_buffer].map(|bytes| bytes.map(|bytes| bytes / 2));
            match role {
                Role::Stream(stream) => {
                    stream.limit_rings(options);
                    limit_pair(options, attachment.end.as_ref());
                }
                _ => sizes[0] = sizes[0].map(|bytes| bytes.max(LEAST_DATAGRAM_BUFFER)),
            }
            for (name, size) in [libc::SO_SNDBUF, libc::SO_RCVBUF].into_iter().zip(sizes) {
                if let Some(size) = size {
                    let _ = pair::set_option(other, name, size);
                }
            }
        }
        if self.watch_pair(key).is_err() {
            self.remove(key);
            return Err(Refusal::Errno(libc::ENOMEM));
        }
        self.totals.sockets += 1;
        Ok(key)
    }

    fn bind(&mut self, request: &Request) -> Reply {
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

    fn connect(&mut self, now: u64, request: &Request) -> Reply {
        let message = &request.message;
        let remote = this_host(canonical(message.remote.ok_or(libc::EINVAL)?));
        if remote.port() == 0 {
            return Err(Refusal::Errno(libc::ECONNREFUSED));
        }
        let existing = match request.attached {
            Some(_) => Some(self.attached(request)?),
            None => None,
        };
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
                self.connect_bound(now, key, remote, route, program)
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
                    self.create(owner(request), local, Some(remote), options, new_role(stream))?;
                if !self.claim_flow(flow, key) {
                    self.remove(key);
                    return Err(Refusal::Errno(libc::EADDRNOTAVAIL));
                }
                let program = Arc::new(program);
                self.fill(key, program.clone(), None)?;
                let mut reply = Message::new(Operation::Connect);
                reply.local = Some(local);
                // Let the client send [`Operation::Open`] only if the engine has one thread. With several
                // threads, another thread could process a later request about the socket before this thread
                // creates the socket.
                // With rules, a refusal must reach the program before it gives up the kernel's socket.
                let opens = self.shared.is_none()
                    && super::open::is_trusted(request.user)
                    && self.settings.rules.is_empty();
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
    fn start(&mut self, request: &Request) -> Reply {
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
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Refusal::Errno(libc::ENETUNREACH));
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
        limit_pair(&options, socket.attachment.end.as_ref());
        socket.local = local;
        // The program may have written to the pair before.
        (socket.role, socket.attachment.pair) = new_role(stream);
        if let Pair::Stream(pair) = &mut socket.attachment.pair {
            pair.readable = true;
        }
        self.fill(key, Arc::new(program.descriptor), Some(program.permit))?;
        self.stack.touch(key);
        Ok((Message::new(Operation::Connect), None))
    }

    fn listen(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        // As Linux's net.core.somaxconn.
        let backlog = request.message.number.clamp(1, 4096) as usize;
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
                let _ = pair::set_option(end, libc::SO_SNDBUF, backlog.min(200) as i32 * 1024);
                // The library creates the listener again from this name if the engine ends.
                let kept = socket.options.kept();
                let state = End::Listening(request.message.number);
                pair::set_end(end, state, self.number, attachment.id, Some(socket.local), &kept);
            }
            attachment.pair = Pair::Listening(ListenerPair::new(filled, ends));
            socket.role = Role::Listening(Box::new(listening));
            return Ok((Message::new(Operation::Listen), None));
        }
        match self.stack.sockets.get_mut(key) {
            Some(Socket { role: Role::Listening(listening), .. }) => listening.set_backlog(backlog),
            _ => return Err(Refusal::Errno(libc::EINVAL)),
        }
        Ok((Message::new(Operation::Listen), None))
    }

    fn set_option(&mut self, now: u64, request: &Request) -> Reply {
        let key = self.attached(request)?;
        self.drain_datagrams(now, key);
        let socket = self.stack.sockets.get_mut(key).ok_or(libc::EBADF)?;
        let message = &request.message;
        socket.options.set(message.level, message.name, message.value());
        let options = &socket.options;
        let attachment = &mut socket.attachment;
        if let (Role::Stream(stream), Pair::Stream(pair)) = (&mut socket.role, &mut attachment.pair) {
            stream.connection.set_keepalive(now, options.keepalive());
            stream.connection.set_user_timeout(options.user_timeout());
            match (message.level, message.name) {
                (libc::IPPROTO_TCP, libc::TCP_NODELAY) => stream.connection.set_no_delay(options.no_delay),
                (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                    stream.more_end = None;
                    stream.connection.set_cork(options.cork);
                }
                (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                    stream.limit_rings(options);
                    limit_pair(options, attachment.end.as_ref());
                }
                (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                    stream.limit_rings(options);
                    match (&mut pair.filled, options.send_buffer, &request.attached) {
                        (Some(filled), Some(bytes), _) => filled.set_capacity(bytes),
                        // Set the socket pair's send buffer here. The preloaded library does not set it while
                        // the socket is connecting. The connection may have been established before this
                        // request arrived. If the library has also set the buffer, the value is the same.
                        (None, Some(bytes), Some(program)) => {
                            let _ = pair::set_option(program, libc::SO_SNDBUF, bytes / 2);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
            self.stack.touch(key);
        } else if let Role::Datagram(_) = &socket.role {
            self.on_datagram_option(now, key, message.level, message.name);
        }
        Ok((Message::new(Operation::SetOption), None))
    }

    fn expect_more(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get_mut(key).ok_or(libc::EBADF)?;
        let fd = socket.attachment.fd();
        if let (Role::Stream(stream), Pair::Stream(pair), Some(fd), Ok(bytes)) =
            (&mut socket.role, &socket.attachment.pair, fd, u64::try_from(request.message.number))
        {
            pair.expect_more(stream, fd, bytes);
        }
        Ok((Message::new(Operation::More), None))
    }

    fn get_option(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        let message = &request.message;
        let mut reply = Message::new(Operation::GetOption);
        let filled = match &socket.attachment.pair {
            Pair::Stream(pair) => pair.filled.as_ref(),
            _ => None,
        };
        match (message.level, message.name, socket.stream()) {
            (libc::IPPROTO_TCP, libc::TCP_INFO, stream) => reply.set_value(&report::tcp_info(socket, stream)),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, Some(stream)) => {
                reply.set_value(&(stream.connection.segment_size() as i32).to_ne_bytes());
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF, Some(_)) if filled.is_some() => {
                let capacity = filled.map_or(0, Filled::capacity);
                reply.set_value(&capacity.to_ne_bytes());
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF, None) if matches!(socket.role, Role::Listening(_)) => {
                let capacity = socket.options.send_buffer.map_or_else(pair::usual_capacity, Ok)?;
                reply.set_value(&capacity.to_ne_bytes());
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, None) => reply.set_value(&536i32.to_ne_bytes()),
            (level, name, _) if matches!(socket.role, Role::Datagram(_)) => {
                reply.set_value(&socket.options.datagram_option(level, name).to_ne_bytes());
            }
            (level, name, _) => {
                let value = socket.options.get(level, name).ok_or(libc::ENOPROTOOPT)?;
                reply.set_value(&value);
            }
        }
        Ok((reply, None))
    }

    fn socket_addresses(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        let mut reply = Message::new(Operation::Addresses);
        reply.local = Some(socket.local);
        reply.remote = match &socket.role {
            Role::Datagram(datagram) => datagram.remote,
            _ => socket.stream().map(|stream| stream.flow.remote),
        };
        reply.number = i32::from(matches!(socket.role, Role::Listening(_)));
        write_options(&mut reply, &socket.options.kept());
        Ok((reply, None))
    }
}

/// Returns the role of a new connection, and the state of its pair. The pair is empty, so epoll will report the program's
/// first data.
fn new_role(stream: Stream) -> (Role, Pair) {
    (Role::Stream(Box::new(stream)), Pair::Stream(Box::new(StreamPair::new())))
}

/// Returns the options that a request carries.
pub(super) fn initial_options(message: &Message) -> SocketOptions {
    let mut options = SocketOptions::default();
    for (level, name, value) in read_options(message.value()) {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
            options.linger = Some(value);
        } else {
            options.set(level, name, &value.to_ne_bytes());
        }
    }
    options
}
