//! The inbox of a worker thread. Other threads put messages into the inbox, which wakes the worker.

use crate::authentication::ControllerSide;
use crate::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

/// A message to a worker.
#[derive(Debug)]
pub enum Message {
    /// Serve this connection.
    Accept {
        /// The connected socket.
        socket: OwnedFd,
        /// The host's address.
        peer: SocketAddr,
        /// The address at which the host reached the target.
        local: SocketAddr,
        /// The connection's place among the half-open ones.
        ticket: Ticket,
    },
    /// A message to a connection. Ignore it if the connection has ended.
    To(ConnectionId, Note),
    /// Panic, to test what follows.
    #[cfg(test)]
    Panic,
    /// Complete the commands in flight, then close all connections and end the thread.
    Drain,
}

/// A message to a connection of a worker.
#[derive(Debug)]
pub enum Note {
    /// Close the connection, because its controller ended.
    Close,
    /// Close the connection to make room for others. Do nothing if its host may use its queue by now.
    Displace,
    /// Serve the connection, which carries an admin queue: an event may be ready, or the last I/O queue has ended.
    Event,
    /// Continue the authentication with the result of another thread.
    Authentication(Box<ControllerSide>),
    /// Continue the flush in a slot that has waited for another one, see the module `flush`: with the result of the
    /// `fdatasync` that has served it or, if it is `None`, by calling `fdatasync`.
    Flush(u16, Option<i32>),
}

/// The number of a connection of a worker. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The number of a half-open connection in the order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(pub(super) u64);

/// A queue of messages. Its event descriptor becomes readable when a message arrives.
#[derive(Debug)]
pub struct Inbox {
    messages: Mutex<Vec<Message>>,
    event: OwnedFd,
}

impl Inbox {
    /// Creates an empty inbox.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { messages: Mutex::default(), event })
    }

    /// Appends a message and wakes the worker.
    pub fn send(&self, message: Message) {
        lock(&self.messages).push(message);
        // This fails only after 2^64 unread messages.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Returns all messages in the order of their arrival.
    pub fn take(&self) -> Vec<Message> {
        // Clear the event before taking the messages. A message that arrives between the two then sets the
        // event again.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        std::mem::take(&mut lock(&self.messages))
    }

    /// Returns the event descriptor, to poll it for messages.
    pub fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}
