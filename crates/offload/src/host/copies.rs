//! Copies of listeners. A program's listening socket is bound on one thread, which has the listener. Each
//! other thread has a copy of it, because SYNs arrive on every queue. The listener and its copies pass their
//! connections to the same socket pair.

use super::Engine;
use super::closer::UserCloser;
use super::control::{Client, Outstanding};
use super::permits::{Duplicate, Kind};
use super::shared::Task;
use super::socket::{Attachment, ListenerPair, Pair, Socket};
use crate::lock;
use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use crate::stack::socket::{Role, Waiting};
use inlane_offload_protocol::message::Message;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The announcement of a new or changed listener. It is for the threads that get copies of the listener.
pub(super) struct Announcement {
    id: u64,
    cookie: u64,
    process: i32,
    program: String,
    v6: bool,
    local: SocketAddr,
    options: SocketOptions,
    backlog: usize,
    filled: u64,
    waiting: Arc<Waiting>,
    /// Duplicates of the engine's end of the listener's socket pair. Each thread without a copy takes one.
    ends: Mutex<Vec<Duplicate>>,
    /// Closes descriptors of the listener's user.
    closer: Arc<UserCloser>,
    /// Counts the announcement as an outstanding request of its client, until all threads have processed it.
    client: Outstanding,
    reply: Message,
    /// The number of threads that have not processed the announcement. The last one sends the reply.
    remaining: AtomicUsize,
    /// The errno of a thread that could not create its copy of the listener. 0 if no thread has failed.
    errno: AtomicI32,
}

impl Engine {
    /// Announces a listener to the other threads. The last thread that handles the announcement sends `reply`
    /// to the client, because connections may arrive once the program has the reply. Returns false if the
    /// socket does not listen.
    pub(super) fn announce(&mut self, key: Key, client: &Arc<Client>, reply: &Message) -> bool {
        let Some(Socket {
            role: Role::Listening(listening),
            attachment: Attachment { pair: Pair::Listening(pair), end: Some(_), .. },
            ..
        }) = self.stack.sockets.get_mut(key)
        else {
            return false;
        };
        let mut reply = *reply;
        let mut ends = std::mem::take(&mut pair.ends);
        // The listener and each of its copies have a reference to this counter.
        let existing = Arc::strong_count(&listening.waiting);
        let missing = self.threads().saturating_sub(existing);
        if missing > ends.len() {
            match self.ends_for_copies(key, missing - ends.len()) {
                Ok(more) => ends.extend(more),
                Err(errno) => {
                    reply.status = errno;
                    client.reply(&reply, None);
                    return true;
                }
            }
        }
        let (Some(shared), Some(socket)) = (&self.shared, self.stack.sockets.get(key)) else { return false };
        let attachment = &socket.attachment;
        let (Role::Listening(listening), Pair::Listening(pair)) = (&socket.role, &attachment.pair) else {
            return false;
        };
        let announcement = Arc::new(Announcement {
            id: attachment.id,
            cookie: attachment.cookie,
            process: attachment.process,
            program: attachment.program.clone(),
            v6: socket.v6,
            local: socket.local,
            options: socket.options.clone(),
            backlog: listening.backlog,
            filled: pair.filled,
            waiting: listening.waiting.clone(),
            ends: Mutex::new(ends),
            closer: attachment.closer.clone(),
            client: Outstanding::new(client, 1),
            reply,
            remaining: AtomicUsize::new(shared.threads() - 1),
            errno: AtomicI32::new(0),
        });
        shared.give_others(self.stack.thread, || Task::Listen(announcement.clone()));
        true
    }

    /// Returns `count` duplicates of the engine's end of a socket, which count for the socket's process and user.
    ///
    /// # Errors
    /// As [`Engine::duplicate`].
    pub(super) fn ends_for_copies(&self, key: Key, count: usize) -> Result<Vec<Duplicate>, i32> {
        let socket = &self.stack.sockets.get(key).ok_or(libc::EBADF)?.attachment;
        let end = socket.end.as_ref().ok_or(libc::EBADF)?;
        (0..count).map(|_| self.duplicate(end, socket.process, socket.closer.user())).collect()
    }

    /// Duplicates a descriptor of a socket.
    ///
    /// # Errors
    /// `ENFILE` if the user has its share of the engine's descriptors. Errors of the system.
    pub(super) fn duplicate(&self, of: &OwnedFd, process: i32, user: u32) -> Result<Duplicate, i32> {
        let descriptor = of.try_clone().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        let free = self.closer.free_after(&descriptor);
        let permit = self.control.permits.admit(Kind::Duplicate, process, user, free).ok_or(libc::ENFILE)?;
        Ok(Duplicate { descriptor, permit })
    }

    /// Adds or changes this thread's copy of a listener. The last thread to do so replies to the program.
    pub(super) fn on_announcement(&mut self, announcement: &Announcement) {
        if let Err(errno) = self.copy_listener(announcement) {
            announcement.errno.store(errno, Ordering::Relaxed);
        }
        // Use release and acquire ordering, so that the last thread sees the errno that other threads have
        // stored.
        if announcement.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut reply = announcement.reply;
            reply.status = announcement.errno.load(Ordering::Relaxed);
            announcement.client.reply(&reply, None);
        }
    }

    fn copy_listener(&mut self, announcement: &Announcement) -> Result<(), i32> {
        // Free the port of earlier listeners that the program has closed. The engine may not yet have
        // processed epoll's events for them.
        self.remove_closed(announcement.local.port(), false);
        let holders = self.stack.ports.get(&announcement.local.port()).into_iter().flatten();
        let existing = holders.copied().find(|&key| {
            self.stack.sockets.get(key).is_some_and(|socket| {
                socket.attachment.id == announcement.id && matches!(socket.role, Role::Listening(_))
            })
        });
        if let Some(socket) = existing.and_then(|key| self.stack.sockets.get_mut(key)) {
            socket.options = announcement.options.clone();
            if let Role::Listening(listening) = &mut socket.role {
                listening.set_backlog(announcement.backlog);
            }
            return Ok(());
        }
        let end = lock(&announcement.ends).pop().ok_or(libc::ENFILE)?;
        let &Announcement { local, ref options, backlog, v6, .. } = announcement;
        let mut listening = self.stack.new_listening(local, options, backlog).map_err(|_| libc::EINVAL)?;
        listening.waiting = announcement.waiting.clone();
        let attachment = Attachment {
            id: announcement.id,
            cookie: announcement.cookie,
            process: announcement.process,
            program: announcement.program.clone(),
            end: Some(end.descriptor),
            pair: Pair::Listening(ListenerPair::new(
                announcement.filled,
                Vec::new(),
                announcement.client.client(),
            )),
            copy: true,
            permit: Some(Arc::new(end.permit)),
            closer: announcement.closer.clone(),
        };
        let role = Role::Listening(Box::new(listening));
        let key = self.stack.insert(Socket::new(local, v6, options.clone(), role, attachment));
        self.stack.hold_port(key, local.port());
        self.watch_pair(key).map_err(|error| {
            self.remove(key);
            error.raw_os_error()
        })
    }
}
