//! What the host keeps with each socket of the stack: its descriptor, its program, and the state of its pair.

use super::closer::UserCloser;
use super::control::Client;
use super::direct::{Direct, DirectBytes};
use super::pair::{self, Filled};
use super::permits::{Duplicate, Permit};
use crate::stack::arena::Key;
use crate::status::DatagramCounters;
use inlane_offload_protocol::datagram::Header;
use inlane_offload_protocol::name::SocketName;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

/// A socket of a program: the stack's part, with the host's part attached.
pub type Socket = crate::stack::socket::Socket<Attachment>;
/// The network stack of one thread, with the host's parts of its sockets.
pub type Stack = crate::stack::Stack<Attachment>;

/// What the host keeps with a socket.
pub struct Attachment {
    /// The socket's number, which is never used again.
    pub id: u64,
    /// The cookie (SO_COOKIE) of the program's end of the socket pair. It identifies this end on the machine.
    pub cookie: u64,
    /// The process that created the socket.
    pub process: i32,
    /// The program's name.
    pub program: String,
    /// The engine's end of the socket pair. `None` once the program has closed its end.
    pub end: Option<OwnedFd>,
    /// The state of the pair. It fits the role of the stack's socket.
    pub pair: Pair,
    /// True if the socket is this thread's copy of another thread's listener. Requests of programs go to that
    /// other thread.
    pub copy: bool,
    /// Counts the socket, or the copy's duplicate of the end, also while the end is being closed.
    pub permit: Option<Arc<Permit>>,
    /// Closes descriptors of the program's user.
    pub closer: Arc<UserCloser>,
}

impl Attachment {
    /// Returns the descriptor of the engine's end of the socket pair. Returns `None` if the program has
    /// closed its own end.
    pub fn fd(&self) -> Option<RawFd> {
        self.end.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Takes the engine's end out of the socket, and closes it. Returns it instead if descriptors that the program has
    /// sent may wait there, because the close could then block.
    pub fn take_blocking(&mut self) -> Option<OwnedFd> {
        let end = self.end.take()?;
        let harmless = match &self.pair {
            Pair::Stream(pair) => pair.closes_at_once(&end),
            Pair::Datagram(_) => pair::has_no_messages(&end),
            // Other threads may still use the end of a listener. The program has usually closed it.
            Pair::Listening(_) => pair::has_no_descriptors(&end, false),
            Pair::Bound => pair::has_no_descriptors(&end, true),
        };
        (!harmless).then_some(end)
    }
}

/// The state of a socket's pair.
pub enum Pair {
    /// A bound TCP socket.
    Bound,
    /// A listener.
    Listening(ListenerPair),
    /// A connection.
    Stream(Box<StreamPair>),
    /// A UDP socket.
    Datagram(Box<DatagramPair>),
}

/// The pair of a UDP socket.
#[derive(Debug, Default)]
pub struct DatagramPair {
    /// True if the pair may hold datagrams that the program has sent and the engine has not read.
    pub readable: bool,
    /// The ancillary data that the program has asked for: flags of [`inlane_offload_protocol::datagram::receive`].
    pub wanted: u8,
    /// The header and the data so far of a datagram that the program has not completed (MSG_MORE, UDP_CORK).
    pub unfinished: Option<(Header, Vec<u8>)>,
    /// How many datagrams and bytes the UDP socket has sent, received and dropped.
    pub counters: DatagramCounters,
}

/// The pair of a listener.
#[derive(Default)]
pub struct ListenerPair {
    /// The connections that wait to be accepted, the oldest first.
    pub queue: VecDeque<Pending>,
    /// Duplicates of the engine's end for the copies that are not announced yet.
    pub ends: Vec<Duplicate>,
    /// True while the pair accepts no further connection. Either it is full of connections that the
    /// program has not accepted, or a send failed for another reason.
    pub full: bool,
    /// True if epoll reports room in the pair. See [`pair::watch_room`].
    pub awaits_room: bool,
    /// The number of consecutive failed attempts to send a connection to the program.
    pub failures: u32,
    /// True if epoll has reported that the program closed its end of the pair.
    pub hung_up: bool,
    /// True if the engine must check whether the program has written to the pair: at the start, and after each event
    /// that bytes have arrived. The engine removes the listener if more than `filled` bytes wait.
    pub unread: bool,
    /// The number of bytes that fill the pair, so that the program's end is not writable.
    pub filled: u64,
    /// The client that let the socket listen. Connections get slots of its shared memory.
    pub client: Weak<Client>,
}

impl ListenerPair {
    /// Creates the state of a new listener of `client`, whose pair is filled with `filled` bytes.
    pub fn new(filled: u64, ends: Vec<Duplicate>, client: &Arc<Client>) -> Self {
        Self { unread: true, filled, ends, client: Arc::downgrade(client), ..Self::default() }
    }
}

/// A connection that waits to be accepted. The program has not received its end of the connection's socket
/// pair yet.
#[derive(Debug)]
pub struct Pending {
    /// The connection.
    pub key: Key,
    /// How the program gets its end.
    pub program: ProgramEnd,
    /// The name for the program's end.
    pub name: SocketName,
}

/// How a program gets its end of the pair of a connection that it accepts.
#[derive(Debug)]
pub enum ProgramEnd {
    /// The end of a new pair, which the engine sends.
    New(OwnedFd),
    /// The program has the end, which it has kept with the slot of this number.
    Kept(u8),
}

/// The pair of a connection.
#[derive(Debug, Default)]
pub struct StreamPair {
    /// True if a read from the pair may return data of the program. If false, the engine waits until epoll
    /// reports data.
    pub readable: bool,
    /// True if a write to the pair may succeed. If false, the engine waits until epoll reports room.
    pub writable: bool,
    /// True if epoll reports room in the pair. See [`pair::watch_room`].
    pub awaits_room: bool,
    /// The number of reads that still need a check: after each of the next `checked_reads` reads from the
    /// pair, the engine checks whether the program has finished sending.
    pub checked_reads: u32,
    /// True if the engine must read the pair again even after a short read. Epoll has then reported
    /// urgent data, where a read stops early, or the end of the program's data.
    pub more: bool,
    /// True if epoll has reported that the program closed its end of the pair or shut down both
    /// directions.
    pub hung_up: bool,
    /// True if the pair cannot get more data of the program, so that a short read has returned the
    /// last bytes. Set after the program has closed its end, if it left no received data unread and the pair
    /// has no urgent data.
    pub closed: bool,
    /// True if the program has closed its end of the pair, or has shut down its sending direction.
    pub program_finished: bool,
    /// True if the program does not read any more. Received data is then discarded.
    pub discards: bool,
    /// True if the connection was closed because the program has closed its end.
    pub closing: bool,
    /// True if the engine must reset the connection. Before the reset, it sends as much of the program's data
    /// as TCP's windows allow.
    pub resetting: bool,
    /// True if the program has been told that the peer's data has ended. The engine has then written all
    /// received data to the pair and shut down its own end of the pair for writing.
    pub end_passed: bool,
    /// True if it is unknown whether the program has accepted the connection. It has if the program's end has a name.
    pub unaccepted: bool,
    /// The listener of a connection that has got a kept pair. `None` for a new pair.
    pub reused: Option<Key>,
    /// True if the program has opened the connection.
    pub opened: bool,
    /// True if the program has opened the connection over a kept pair.
    pub opened_over_kept: bool,
    /// True if the program has closed the connection and keeps its end of the pair.
    pub closed_in_slot: bool,
    /// The program's end of the pair while the connection is being established. Its send buffer is
    /// full, so the end is not writable.
    pub filled: Option<Filled>,
    /// The client that connects the socket. The connection gets a slot of its shared memory once it is established.
    pub client: Weak<Client>,
    /// The connection's slot of the memory that the engine shares with the program. `None` until the program
    /// requests a slot.
    pub direct: Option<Box<Direct>>,
    /// The payload bytes that went through slots which the connection had before.
    pub direct_before: DirectBytes,
}

impl StreamPair {
    /// Creates the state of an empty pair: epoll will report the program's first data.
    pub fn new() -> Self {
        Self { writable: true, ..Self::default() }
    }

    /// Returns the payload bytes that went through shared memory.
    pub fn direct_bytes(&self) -> DirectBytes {
        let mut bytes = self.direct_before;
        bytes += self.direct.as_ref().map(|direct| direct.bytes()).unwrap_or_default();
        bytes
    }

    /// Returns true if a close of the engine's end `end` does not block, because no descriptors wait there and the program
    /// cannot send any more.
    pub fn closes_at_once(&self, end: &OwnedFd) -> bool {
        // Without an error, the program has finished only once the engine has read everything.
        self.program_finished && !self.resetting || pair::has_no_descriptors(end, true)
    }
}
