//! Connects sockets over socket pairs that the preloaded library has created. The program's thread then need
//! not wait for the engine's reply.
//!
//! Only some programs may create pairs: they connected to the control socket as root (of any PID namespace)
//! or as the engine's own user. A program keeps this right if it drops root later. The engine must trust
//! these programs. A program that keeps a descriptor of the engine's end can make the kernel hold the lock of
//! that end. The engine would then wait for the lock.

use super::Engine;
use super::control::Request;
use super::pair::{self, Filled};
use super::permits::{Permit, is_trusted};
use super::reply::{Refusal, Reply};
use super::request::{NewSocket, canonical, owner, this_host};
use super::socket::{Pair, StreamPair};
use crate::stack::arena::Key;
use crate::stack::network::Route;
use crate::stack::options::SocketOptions;
use crate::stack::socket::Role;
use crate::stack::stream::Stream;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::End;
use inlane_offload_protocol::rules::Use;
use inlane_tcp::Flow;
use std::collections::hash_map::Entry;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

impl Engine {
    /// Connects a new socket over the socket pair that came with the request. If this fails, writes the errno
    /// into the name of the engine's end, as for a connection that fails later.
    pub(super) fn open(&mut self, now: u64, request: &mut Request) -> Reply {
        if !is_trusted(request.user) {
            return Err(Refusal::Errno(libc::EPERM));
        }
        if request.message.level != 0 {
            return self.open_over_kept(now, request);
        }
        let (Some(end), Some(program)) = (&request.attached, &request.second) else {
            return Err(Refusal::Errno(libc::EBADF));
        };
        if !pair::are_ends(end, program) {
            return Err(Refusal::Errno(libc::EPERM));
        }
        if self.closer.free_after(end).min(self.closer.free_after(program)) == 0 {
            pair::set_end(end, End::Failed(libc::ENFILE), self.number, self.next_id(), None, &[]);
            // The program must notice now, because the descriptor may wait for its close.
            let _ = rustix::net::shutdown(end, rustix::net::Shutdown::Both);
            return Err(Refusal::Errno(libc::ENFILE));
        }
        // The program has given the connection up before the engine has read the request.
        if pair::hung_up(end.as_raw_fd()) {
            return Err(Refusal::Errno(libc::ECONNABORTED));
        }
        let (Some(end), Some(program)) = (request.attached.take(), request.second.take()) else {
            return Err(Refusal::Errno(libc::EBADF));
        };
        let prepared = self.prepare(now, request, &end, Arc::new(program));
        let (stream, filled, cookie, program, permit) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                let Refusal::Errno(errno) = refusal else { return Err(refusal) };
                // Write the errno into the name of the engine's end of the socket pair. Each name has a new
                // id, because names must be unique. Do not write EEXIST: the pair then belongs to another
                // connection, which sets the name when it ends.
                if errno != libc::EEXIST {
                    let id = self.next_id();
                    pair::set_end(&end, End::Failed(errno), self.number, id, None, &[]);
                }
                return Err(refusal);
            }
        };
        let (flow, id) = (stream.flow, self.next_id());
        let client = Arc::downgrade(&request.client);
        let pair = StreamPair { filled: Some(filled), client, opened: true, ..StreamPair::new() };
        let role = (Role::Stream(Box::new(stream)), Pair::Stream(Box::new(pair)));
        let options = SocketOptions::default();
        let new = NewSocket { id, cookie, end, local: flow.local, options, role, permit: Arc::new(permit) };
        let key = self.add(owner(request), new, Some(&program))?;
        self.begin_opened(flow, key)
    }

    /// Creates the connection for a request, and counts its socket. Returns five values: the connection, what
    /// fills its pair, the cookie of the program's end of the socket pair, the program's end, and the socket's permit.
    fn prepare(
        &mut self,
        now: u64,
        request: &Request,
        end: &OwnedFd,
        program: Arc<OwnedFd>,
    ) -> Result<(Stream, Filled, u64, Arc<OwnedFd>, Permit), Refusal> {
        let message = &request.message;
        let cookie = pair::cookie(&program)?;
        if self.by_cookie.contains_key(&cookie) {
            return Err(Refusal::Errno(libc::EEXIST));
        }
        let filled = Filled::prepared(Some(program.clone()), message.number)?;
        let (flow, route) = self.choose_flow(request)?;
        let permit = self.admit_socket(request.process, request.user, [end, &program])?;
        let options = SocketOptions::default();
        let stream = self.stack.open_stream(now, flow, route, &options)?;
        // Two clients may ask for connections over the same pair, on two threads.
        if let Some(shared) = &self.shared {
            match shared.by_cookie.part(&cookie).entry(cookie) {
                Entry::Occupied(_) => return Err(Refusal::Errno(libc::EEXIST)),
                Entry::Vacant(free) => free.insert(self.stack.thread),
            };
        }
        Ok((stream, filled, cookie, program, permit))
    }

    /// Connects a new socket over a kept pair, whose slot the request names. If this fails, writes the errno as [`Engine::open`].
    fn open_over_kept(&mut self, now: u64, request: &Request) -> Reply {
        let reused = self.take_asked(request).ok_or(libc::EBADF)?;
        let end = reused.end().ok_or(libc::EBADF)?;
        // The program has given the connection up before the engine has read the request.
        if pair::hung_up(end.as_raw_fd()) {
            return Err(Refusal::Errno(libc::ECONNABORTED));
        }
        let options = SocketOptions::default();
        let prepared =
            Filled::prepared(None, request.message.number).map_err(Refusal::from).and_then(|filled| {
                let (flow, route) = self.choose_flow(request)?;
                Ok((self.stack.open_stream(now, flow, route, &options)?, filled))
            });
        let (stream, filled) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => {
                let Refusal::Errno(errno) = refusal else { return Err(refusal) };
                let id = self.next_id();
                pair::set_end(end, End::Failed(errno), self.number, id, None, &[]);
                return Err(refusal);
            }
        };
        let flow = stream.flow;
        let client = Arc::downgrade(&request.client);
        let pair = StreamPair {
            filled: Some(filled),
            client,
            opened: true,
            opened_over_kept: true,
            ..StreamPair::new()
        };
        let role = (Role::Stream(Box::new(stream)), Pair::Stream(Box::new(pair)));
        let addresses = (flow.local, flow.remote);
        let created = self.create_over_kept(now, owner(request), addresses, options, role, reused);
        let (key, ..) = created.ok_or(libc::ENOBUFS)?;
        self.begin_opened(flow, key)
    }

    /// Lets a new connection send its SYN, unless another thread has a connection with the same addresses.
    fn begin_opened(&mut self, flow: Flow, key: Key) -> Reply {
        if !self.claim_flow(flow, key) {
            self.finish(key, End::Failed(libc::EADDRNOTAVAIL));
            return Err(Refusal::Errno(libc::EADDRNOTAVAIL));
        }
        self.stack.touch(key);
        Ok((Message::new(Operation::Open), None))
    }

    /// Returns the flow and the route of the connection for a request.
    fn choose_flow(&mut self, request: &Request) -> Result<(Flow, Route), Refusal> {
        let message = &request.message;
        let remote = this_host(canonical(message.remote.ok_or(libc::EINVAL)?));
        if remote.port() == 0 {
            return Err(Refusal::Errno(libc::ECONNREFUSED));
        }
        if self.is_kept(message.program(), false, remote, Use::Connect) {
            return Err(Refusal::Errno(libc::EACCES));
        }
        if self.stack.network.is_group(remote.ip()) {
            return Err(Refusal::Errno(libc::ENETUNREACH));
        }
        let route = self.stack.network.route(remote.ip()).ok_or(libc::ENETUNREACH)?;
        let source = self.stack.network.source(remote.ip()).ok_or(libc::ENETUNREACH)?;
        let local = self.stack.ephemeral(source, remote).ok_or(libc::EADDRNOTAVAIL)?;
        Ok((Flow { local, remote }, route))
    }
}

#[cfg(test)]
pub(super) mod tests;
