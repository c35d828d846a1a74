//! Requests and replies on the engine's control socket, a UNIX socket of type SOCK_SEQPACKET.
//!
//! A process opens a connection when it first needs the engine. Messages have one fixed size. A request may
//! carry the program's end of an offloaded socket, which proves that the sender has the socket.
//! [`Operation::Open`] carries both ends of a new socket pair. The reply to [`Operation::Bind`] or
//! [`Operation::Connect`] may carry the program's end of a new socket. Other replies may carry the descriptor
//! of a file.

use crate::address;
use std::net::SocketAddr;

/// The length of every message, in bytes.
pub const LEN: usize = 512;
/// The largest size of an option's value, in bytes.
pub const MAX_VALUE: usize = 384;
/// The version of the messages. In every version, it is the first byte of a message. A side that refuses a
/// message can therefore name the message's version.
pub const VERSION: u8 = 16;
/// The most requests of one client that the engine processes in one turn. A client sends [`Operation::Open`]
/// only if it has sent fewer requests since the engine's last reply. So an engine with one thread processes
/// all these requests before the first request of a client that connects later. This order matters because a
/// forked child may ask about its parent's sockets.
pub const MOST_AHEAD: u32 = 32;
/// Where the value begins.
const VALUE: usize = 96;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Creates a socket bound to [`Message::local`]. The value of the request holds the socket's options,
    /// written by [`write_options`]. The reply carries the program's end of the socket pair, and the local
    /// address. The reply's `name` is how long a thread polls for events of the socket before it sleeps, in
    /// microseconds.
    ///
    /// If the socket replaces a listener of an engine that has ended, the request carries the program's end of that
    /// listener, or its [`crate::name::StandIn`]. Sockets of one user that replace the same listener share its port.
    Bind = 1,
    /// Connects a socket to [`Message::remote`]. The request carries the program's end of a socket pair. If
    /// it carries no end, the engine creates a socket, and the reply carries the program's end. The program's
    /// end becomes writable when the connection is established or has failed. `name` of the reply is as for
    /// [`Operation::Bind`].
    ///
    /// If the engine creates the socket, it sends the SYN at once if `number` of the request is 1. Otherwise,
    /// the SYN waits for [`Operation::Start`], and the reply carries a [`Handle`]. `number` of the reply is 1
    /// if this client may send [`Operation::Open`] for the same remote IP address.
    Connect = 2,
    /// Makes a bound socket listen. The request carries the program's end. `number` is the backlog.
    Listen = 3,
    /// Sets option `name` of `level` to the value. There is no reply.
    SetOption = 4,
    /// Returns the value of option `name` of `level`.
    GetOption = 5,
    /// Returns a socket's local and remote address. The request carries the program's end of the socket pair.
    /// The reply's value holds the options of [`crate::name::KEPT_OPTIONS`] that the program has set, in the
    /// format of [`write_options`].
    Addresses = 6,
    /// Reports that the library has left a socket with the kernel. The value is the reason. There is no
    /// reply.
    Kernel = 7,
    /// Asks for the engine's state. The reply carries the descriptor of a file with the state as JSON.
    Status = 8,
    /// Tells the engine to send the SYN of a new connection. The program's end of the socket pair has
    /// replaced the kernel's socket in the program. The request carries the [`Handle`] from the reply to
    /// [`Operation::Connect`]. There is no reply.
    Start = 9,
    /// Like [`Operation::SetOption`], but with a reply: status 0 when the option is in effect, otherwise an
    /// errno. With SO_PRIORITY, the engine restores the program's end of a connection that is being opened over a kept pair once that is
    /// established. The library otherwise restores the end itself.
    SetOptionNow = 10,
    /// Removes the remote address of a connected UDP socket. The request carries the program's end.
    Disconnect = 11,
    /// Asks whether the engine has a route from a UDP socket to [`Message::remote`]. The request carries the
    /// program's end. The status of the reply is an errno if there is no route.
    Route = 12,
    /// Asks for a connection's slot in shared memory ([`crate::slots`]). The request carries the program's
    /// end of the socket pair. `number` is 1 if this client already has its shared memory, otherwise 0.
    ///
    /// In the reply, `number` is the index of the slot, and `level` the length of its rings in bytes. `name` is the time for
    /// which a receive polls before it sleeps, in microseconds. The first reply to a client carries the memfd of the shared memory.
    Adopt = 13,
    /// Connects a new TCP socket to [`Message::remote`] over a socket pair that the library has created. The
    /// request carries two descriptors: first the engine's end, then the program's end. The library has
    /// filled the program's end with `number` bytes. So the program's end is not writable until the
    /// connection is established. If `level` is not 0, the request carries no descriptors, and the connection gets the kept pair of the slot
    /// with the number `level` - 1 ([`crate::slots::Life`]).
    ///
    /// There is no reply. If the request fails, the engine stores the errno in the name of its end
    /// ([`crate::name`]). It does the same when a connection fails later. The engine accepts the request only
    /// from programs that connected to it as its own user or as root, because a program that keeps a
    /// descriptor of the engine's end could block the engine.
    Open = 14,
    /// Announces that the program is about to send `number` bytes with the flag MSG_MORE through the socket
    /// pair of a TCP socket. The request carries the program's end of the pair. If the last segment of these
    /// bytes is incomplete, it waits until the program has sent more bytes, as with TCP_CORK.
    More = 15,
    /// Resets a connection that waits to be accepted over a kept pair. The process that has received its record does not have the program's
    /// end. The request carries a [`Handle`] with the number of the socket in the record. There is no reply.
    Refuse = 16,
}

impl Operation {
    const ALL: [Self; 16] = [
        Self::Bind,
        Self::Connect,
        Self::Listen,
        Self::SetOption,
        Self::GetOption,
        Self::Addresses,
        Self::Kernel,
        Self::Status,
        Self::Start,
        Self::SetOptionNow,
        Self::Disconnect,
        Self::Route,
        Self::Adopt,
        Self::Open,
        Self::More,
        Self::Refuse,
    ];

    /// Returns true if the engine replies.
    pub fn has_reply(self) -> bool {
        !matches!(self, Self::SetOption | Self::Kernel | Self::Start | Self::Open | Self::Refuse)
    }
}

/// Identifies a socket in a request without a descriptor. The engine accepts a handle only from the process
/// that created the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// The socket's number in the engine.
    pub socket: u64,
    /// The key of the socket in the engine's table of sockets.
    pub key: u64,
}

/// The status of a reply that leaves the socket with the kernel. No other status is negative.
pub const KERNEL: i32 = -1;

/// A request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The requested operation. A reply repeats it.
    pub operation: Operation,
    /// True if the socket's family is AF_INET6.
    pub v6: bool,
    /// True for a UDP socket, false for a TCP socket.
    pub datagrams: bool,
    /// In a reply: 0, an errno, or [`KERNEL`].
    pub status: i32,
    /// A number whose meaning depends on the operation, such as the backlog of [`Operation::Listen`].
    pub number: i32,
    /// The option's level.
    pub level: i32,
    /// The option's name.
    pub name: i32,
    /// The local address.
    pub local: Option<SocketAddr>,
    /// The remote address.
    pub remote: Option<SocketAddr>,
    /// The program's name, cut to 16 bytes.
    pub program: [u8; 16],
    /// The number of valid bytes in `value`.
    pub value_len: usize,
    /// An option's value, or a text.
    pub value: [u8; MAX_VALUE],
}

impl Message {
    /// Creates a message with empty fields.
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            v6: false,
            datagrams: false,
            status: 0,
            number: 0,
            level: 0,
            name: 0,
            local: None,
            remote: None,
            program: [0; 16],
            value_len: 0,
            value: [0; MAX_VALUE],
        }
    }

    /// Sets the value, cut to [`MAX_VALUE`] bytes.
    pub fn set_value(&mut self, value: &[u8]) {
        self.value_len = value.len().min(MAX_VALUE);
        self.value[..self.value_len].copy_from_slice(&value[..self.value_len]);
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        &self.value[..self.value_len]
    }

    /// Sets the value to a socket's handle.
    pub fn set_handle(&mut self, handle: Handle) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&handle.socket.to_le_bytes());
        bytes[8..].copy_from_slice(&handle.key.to_le_bytes());
        self.set_value(&bytes);
    }

    /// Returns the [`Handle`] of a socket, which is this message's value. Returns `None` if the value does
    /// not have the length of a handle.
    pub fn handle(&self) -> Option<Handle> {
        let bytes: [u8; 16] = self.value().try_into().ok()?;
        let number = u128::from_le_bytes(bytes);
        Some(Handle { socket: number as u64, key: (number >> 64) as u64 })
    }

    /// Returns the program's name as text.
    pub fn program(&self) -> &str {
        let len = self.program.iter().position(|&byte| byte == 0).unwrap_or(self.program.len());
        std::str::from_utf8(&self.program[..len]).unwrap_or("?")
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = VERSION;
        bytes[1] = self.operation as u8;
        bytes[2] = self.v6 as u8;
        bytes[3] = self.datagrams as u8;
        bytes[4..8].copy_from_slice(&self.status.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.level.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.name.to_le_bytes());
        bytes[20..40].copy_from_slice(&address::encode(self.local));
        bytes[40..60].copy_from_slice(&address::encode(self.remote));
        bytes[60..76].copy_from_slice(&self.program);
        bytes[76..80].copy_from_slice(&(self.value_len as u32).to_le_bytes());
        bytes[VALUE..VALUE + MAX_VALUE].copy_from_slice(&self.value);
        bytes
    }

    /// Decodes a message. Returns `None` if it has another version, an unknown operation or impossible lengths.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let number = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != VERSION {
            return None;
        }
        let operation = Operation::ALL.into_iter().find(|&operation| operation as u8 == bytes[1])?;
        let mut message = Self::new(operation);
        message.v6 = bytes[2] != 0;
        message.datagrams = bytes[3] != 0;
        message.status = number(4);
        message.number = number(8);
        message.level = number(12);
        message.name = number(16);
        message.local = address::decode(&bytes[20..]);
        message.remote = address::decode(&bytes[40..]);
        message.program.copy_from_slice(&bytes[60..76]);
        message.value_len = usize::try_from(number(76)).ok().filter(|&len| len <= MAX_VALUE)?;
        message.value.copy_from_slice(&bytes[VALUE..VALUE + MAX_VALUE]);
        Some(message)
    }
}

/// If a message has another protocol version than this library, returns its version. Returns `None` for this
/// library's version, and if `bytes` are not a message.
pub fn other_version(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [version, ..] if bytes.len() == LEN && *version != VERSION => Some(*version),
        _ => None,
    }
}

/// One option in the value of [`Operation::Bind`] and [`Operation::Connect`]: level, name and a number, 12 bytes.
pub type NumberOption = (i32, i32, i32);

/// Writes socket options into the value of `message`. Options beyond [`MAX_VALUE`] bytes are left out.
pub fn write_options(message: &mut Message, options: &[NumberOption]) {
    let mut len = 0;
    for &(level, name, value) in options.iter().take(MAX_VALUE / 12) {
        for number in [level, name, value] {
            message.value[len..len + 4].copy_from_slice(&number.to_le_bytes());
            len += 4;
        }
    }
    message.value_len = len;
}

/// Returns the socket options that [`write_options`] has written into `value`.
pub fn read_options(value: &[u8]) -> impl Iterator<Item = NumberOption> + '_ {
    let number = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    value.chunks_exact(12).map(move |bytes| (number(bytes), number(&bytes[4..]), number(&bytes[8..])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_decode_and_what_decodes_reads_back(bytes in proptest::collection::vec(any::<u8>(), LEN), operation in 0u8..17, len in 0u8..=255) {
            let mut bytes = bytes;
            bytes[..2].copy_from_slice(&[VERSION, operation]);
            bytes[76..80].copy_from_slice(&[len, 0, 0, 0]);
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
                prop_assert!(message.value().len() <= MAX_VALUE);
                let _ = (message.program(), message.handle());
                prop_assert!(read_options(message.value()).count() <= MAX_VALUE / 12);
            }
        }
    }

    #[test]
    fn impossible_messages_are_refused() {
        let good = Message::new(Operation::Bind).encode();
        assert!(Message::decode(&good).is_some());
        assert!(Message::decode(&good[..LEN - 1]).is_none());
        for (at, value) in [(0, 99), (1, 0), (1, 99), (78, 1), (79, 0x80)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Message::decode(&bad).is_none(), "byte {at}");
        }
    }

    #[test]
    fn another_version_is_recognised_by_its_first_byte() {
        let mut bytes = Message::new(Operation::Bind).encode();
        assert_eq!(other_version(&bytes), None);
        bytes[0] = VERSION + 1;
        assert_eq!((Message::decode(&bytes), other_version(&bytes)), (None, Some(VERSION + 1)));
        assert_eq!(other_version(&bytes[1..]), None);
    }

    #[test]
    fn handles_read_back_as_written() {
        let mut message = Message::new(Operation::Start);
        assert_eq!(message.handle(), None);
        let handle = Handle { socket: 1 << 40 | 7, key: u64::MAX - 1 };
        message.set_handle(handle);
        assert_eq!(Message::decode(&message.encode()).and_then(|message| message.handle()), Some(handle));
    }

    #[test]
    fn options_read_back_as_written() {
        let mut message = Message::new(Operation::Bind);
        write_options(&mut message, &[(6, 1, 1), (1, 9, -5)]);
        assert_eq!(read_options(message.value()).collect::<Vec<_>>(), [(6, 1, 1), (1, 9, -5)]);
    }
}
