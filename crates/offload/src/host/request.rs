//! Processes requests that programs send on the control socket, for example a request to create a socket.

use super::closer::UserCloser;
use super::control::Request;
use super::pair;
use super::permits::{Kind, Permit};
use super::reply::Refusal;
use super::socket::{Attachment, Pair, Socket};
use super::{Engine, report};
use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use crate::stack::socket::Role;
use crate::status;
use inlane_offload_protocol::datagram::LEAST_BUFFER as LEAST_DATAGRAM_BUFFER;
use inlane_offload_protocol::message::{KERNEL, Message, Operation, read_options};
use inlane_offload_protocol::name::{SocketKind, SocketName};
use inlane_offload_protocol::rules::{Action, Use, decide};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Why a socket stays with the kernel if a rule of the engine says so.
pub(super) const KEPT: &str = "a rule of the engine keeps it there";

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
    pub permit: Arc<Permit>,
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
            Operation::Refuse => self.refuse(request),
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
        let key = self.by_cookie.get(&pair::checked_cookie(fd)?).copied().ok_or(libc::EBADF)?;
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
        let new = NewSocket { id, cookie, end, local, options, role, permit: Arc::new(permit) };
        Ok((self.add(owner, new, Some(&program))?, program, name))
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

    /// Adds a socket over an existing pair, whose program's end is `other`. `None` if the program has this end already, and the options
    /// contain nothing for it.
    pub(super) fn add(
        &mut self,
        owner: OwningProgram<'_>,
        new: NewSocket,
        other: Option<&OwnedFd>,
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
            permit: Some(permit),
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
                    pair::limit(options, attachment.end.as_ref());
                }
                _ => sizes[0] = sizes[0].map(|bytes| bytes.max(LEAST_DATAGRAM_BUFFER)),
            }
            for (name, size) in [libc::SO_SNDBUF, libc::SO_RCVBUF].into_iter().zip(sizes) {
                if let (Some(size), Some(other)) = (size, other) {
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
