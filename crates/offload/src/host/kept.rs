//! Keeps the pair of a closed connection for a later connection of the same program, in the same slot of shared memory. A new
//! pair costs both sides several system calls. The pair of an accepted connection is for another accepted one, and that of a connection
//! that the program has opened for another one that it opens.

use super::Engine;
use super::area::SharedArea;
use super::control::Client;
use super::control::Request;
use super::pair::KeptPair;
use super::reply::{Refusal, Reply};
use super::request::{NewSocket, OwningProgram};
use super::socket::{Attachment, Pair, Pending, ProgramEnd, Socket, StreamPair};
use crate::lock;
use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use crate::stack::socket::Role;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{SocketKind, SocketName};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// A kept pair for a new connection, and its slot, which is reserved until this is dropped.
pub(super) struct Reused {
    area: Arc<SharedArea>,
    index: usize,
    /// The number of the connection.
    id: u64,
    pair: Option<KeptPair>,
    /// True once a connection has the slot.
    assigned: bool,
}

impl Reused {
    /// Returns the engine's end of the pair.
    pub(super) fn end(&self) -> Option<&OwnedFd> {
        self.pair.as_ref()?.end.as_ref()
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        if !self.assigned {
            // Close the pair first, because another connection may get the slot and keep its own pair there.
            self.pair = None;
            self.area.release(self.index, false);
        }
    }
}

impl Engine {
    /// Takes a kept pair of a client's process for a connection with these options. Returns `None` if there is none.
    pub(super) fn take_kept(
        &mut self,
        client: &Weak<Client>,
        v6: bool,
        options: &SocketOptions,
    ) -> Option<Reused> {
        let plain = options.send_buffer.is_none()
            && options.receive_buffer.is_none()
            && !options.keepalive
            && options.linger.is_none();
        let area = lock(&client.upgrade()?.area).clone().filter(|area| plain && area.keeps_pairs())?;
        let id = self.next_id();
        let (index, pair) = area
            .take_kept(id, |pair| !pair.opened && pair.v6 == v6 && Arc::ptr_eq(&pair.epoll, &self.epoll))?;
        Some(Reused { area, index, id, pair: Some(pair), assigned: false })
    }

    /// Takes the kept pair over which a program opens a connection with the request [`Operation::Open`]. Returns `None` if there is none.
    pub(super) fn take_asked(&mut self, request: &Request) -> Option<Reused> {
        let index = usize::try_from(request.message.level).ok()?.checked_sub(1)?;
        let area = lock(&request.client.area).clone()?;
        let (id, v6) = (self.next_id(), request.message.v6);
        let mut pair = area.take_asked(index, id, |pair| pair.opened && pair.v6 == v6)?;
        // The pair's last connection ended on another thread, whose epoll instance still watches the end.
        if !Arc::ptr_eq(&pair.epoll, &self.epoll) {
            pair.end.iter().for_each(|end| super::stop_watching(&pair.epoll, end));
            pair.epoll = self.epoll.clone();
        }
        Some(Reused { area, index, id, pair: Some(pair), assigned: false })
    }

    /// Returns true if the program has asked for a kept pair. Another thread may still hold its slot for a moment: the thread on which the last
    /// connection ended, or one that looked for a free slot.
    pub(super) fn awaits_kept(request: &Request) -> bool {
        let message = &request.message;
        let index = usize::try_from(message.level).ok().and_then(|level| level.checked_sub(1));
        message.operation == Operation::Open
            && index.is_some_and(|index| {
                lock(&request.client.area).as_ref().is_some_and(|area| area.is_asked(index))
            })
    }

    /// Creates the socket of a connection over a kept pair. Returns its key, the number of its slot and its name. Returns `None` if that
    /// was not possible.
    pub(super) fn create_over_kept(
        &mut self,
        now: u64,
        owner: OwningProgram<'_>,
        (local, remote): (SocketAddr, SocketAddr),
        options: SocketOptions,
        role: (Role, Pair),
        mut reused: Reused,
    ) -> Option<(Key, u8, SocketName)> {
        let id = reused.id;
        let kind = if owner.v6 { SocketKind::StreamV6 } else { SocketKind::StreamV4 };
        let name = SocketName { engine: self.number, socket: id, kind, local, remote: Some(remote) };
        let mut kept = reused.pair.take()?;
        let (end, permit) = (kept.end.take()?, kept.permit.clone());
        let new = NewSocket { id, cookie: kept.cookie, end, local, options, role, permit };
        let key = self.add(owner, new, None).ok()?;
        if self.assign(now, key, &reused.area, kept.inode, true, Some(reused.index)).is_none() {
            self.remove(key);
            return None;
        }
        reused.assigned = true;
        Some((key, reused.index as u8, name))
    }

    /// Takes the program's end of a connection that is being opened over a kept pair, and restores it once the connection is established, as
    /// the end of a new pair. The library asks for that if another process or descriptor may get the end before.
    pub(super) fn take_program_end(&mut self, key: Key, request: &Request) -> Reply {
        let program = request.attached.as_ref().ok_or(libc::EBADF)?;
        let duplicate = self.duplicate(program, request.process, request.user)?;
        let Some(Socket { attachment: Attachment { pair: Pair::Stream(pair), .. }, .. }) =
            self.stack.sockets.get_mut(key)
        else {
            return Err(Refusal::Errno(libc::EINVAL));
        };
        match &mut pair.filled {
            Some(filled) if filled.program().is_none() => filled.give_program(duplicate),
            _ => return Err(Refusal::Errno(libc::EINVAL)),
        }
        Ok((Message::new(Operation::SetOption), None))
    }

    /// Keeps the pair of a connection that has ended, if the program has closed it in its slot. Returns false if it must be closed.
    pub(super) fn keep_pair(&mut self, key: Key) -> bool {
        let epoll = self.epoll.clone();
        let Some(Socket { v6, attachment, .. }) = self.stack.sockets.get_mut(key) else { return false };
        let Attachment { cookie, pair: Pair::Stream(pair), end, closer, permit, .. } = attachment else {
            return false;
        };
        let (
            StreamPair { closed_in_slot: true, hung_up: false, resetting: false, end_passed: false, .. },
            true,
        ) = (&**pair, end.is_some())
        else {
            return false;
        };
        let Some(direct) = pair.direct.as_ref().filter(|direct| direct.may_keep_pair()) else { return false };
        let (area, index) = direct.location();
        if !area.keeps_pairs() {
            return false;
        }
        let (Some(end), Some(permit)) = (end.take(), permit.take()) else { return false };
        let kept = KeptPair {
            end: Some(end),
            cookie: *cookie,
            inode: direct.inode(),
            v6: *v6,
            opened: pair.opened,
            epoll,
            permit,
            closer: closer.clone(),
        };
        area.keep(index, kept);
        true
    }

    /// Resets the connections that a listener has handed over with kept pairs, and that the program has not accepted. The listener was
    /// closed. With new pairs, the kernel closes the program's ends, and the engine notices that.
    pub(super) fn refuse_handed_over(&mut self, listener: Key) {
        self.refuse_unaccepted(|_, pair| pair.reused == Some(listener));
    }

    /// Resets a connection that a process cannot accept, because another process has the program's end of its kept pair.
    pub(super) fn refuse(&mut self, request: &Request) -> Reply {
        let handle = request.message.handle().ok_or(libc::EINVAL)?;
        self.refuse_unaccepted(|attachment, _| {
            attachment.id == handle.socket && attachment.closer.user() == request.user
        });
        Ok((Message::new(Operation::Refuse), None))
    }

    fn refuse_unaccepted(&mut self, chooses: impl Fn(&Attachment, &StreamPair) -> bool) {
        let waits = |(key, socket): (Key, &Socket)| {
            let Pair::Stream(pair) = &socket.attachment.pair else { return None };
            let accepted = pair.direct.as_ref().is_none_or(|direct| direct.is_accepted());
            (pair.reused.is_some() && pair.unaccepted && !accepted && chooses(&socket.attachment, pair))
                .then_some(key)
        };
        let keys: Vec<Key> = self.stack.sockets.iter().filter_map(waits).collect();
        keys.into_iter().for_each(|key| self.reset_unaccepted(key));
    }

    fn reset_unaccepted(&mut self, key: Key) {
        if let Some(Socket { attachment: Attachment { pair: Pair::Stream(pair), .. }, .. }) =
            self.stack.sockets.get_mut(key)
        {
            pair.resetting = true;
        }
        self.stack.touch(key);
    }

    /// Lets go of a connection that the program has not accepted, and resets it.
    pub(super) fn drop_pending(&mut self, pending: Pending) {
        let Pending { key, program, .. } = pending;
        match program {
            // The engine resets the connection, because the program's end is closed.
            ProgramEnd::New(program) => drop(program),
            ProgramEnd::Kept(_) => self.reset_unaccepted(key),
        }
        self.stack.touch(key);
    }
}
