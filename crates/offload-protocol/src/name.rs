//! The names of the UNIX sockets that stand for offloaded sockets.
//!
//! The engine binds both ends of a socket pair to abstract names. Only the program's end of an accepted connection is bound
//! by the library, when the program accepts the connection. The kernel keeps the names with the
//! sockets. So the names survive dup, fork, exec and passing to another process. A program can ask for the
//! name of its own end even after the engine has died.
//!
//! ```text
//! program's end:  0 "inlane" 3 kind | engine (8) | socket (8) | local address (20) | remote address (20)
//! engine's end:   0 "inlane" 3 'E'  | engine (8) | socket (8) | errno (4) | local address (20)
//!                 | options (1 to 5 each)
//! of a listener:  0 "inlane" 3 'L'  | engine (8) | socket (8) | backlog (4) | local address (20)
//!                 | options (1 to 5 each)
//! stand-in:       0 "inlane" 3 kind | engine (8) | socket (8) | local address (20) | backlog (4)
//!                 | tag (4) | options (1 to 5 each)
//! ```
//!
//! If the library has created the pair, the library itself names the program's end before the engine has
//! chosen a local port. The port in the name is then 0, and the library asks the engine for the local
//! address. After the engine has died, this address is unknown.
//!
//! The engine binds its end when the connection ends: once the remote end has finished sending (errno 0), or
//! the connection has failed. If a program reads the end of the stream while the engine's end has no name,
//! the engine has died.
//!
//! The engine binds its end of a listener's pair when the socket begins to listen. After the engine has died, the
//! library replaces the program's end by a [`StandIn`], and creates the listener again from these facts once another
//! engine runs.

use crate::address;
use crate::message::NumberOption;
use crate::slots::SLOTS;
use std::net::SocketAddr;

/// The first bytes of a socket name: the zero byte of abstract names, the word "inlane", and the version of
/// the name's layout.
const PREFIX: [u8; 8] = *b"\0inlane\x03";
/// The kind byte in the name of the engine's end of a socket pair.
const END: u8 = b'E';
/// The length of the name of a program's end, in bytes.
///
/// The engine writes the name of each new connection into the pair of its listener. The record carries the descriptor of the
/// connection's program's end, and a tag ([`SocketName::to_record`]). The library binds the end to this name when the program accepts the connection, so an end
/// without a name was never accepted.
pub const SOCKET_LEN: usize = 9 + 16 + 2 * address::LEN;
/// The length in bytes of the name of the engine's end of a socket pair, without options. The name consists
/// of [`PREFIX`] and kind (9), the numbers of engine and socket (16), errno (4), and the local address.
const END_LEN: usize = 9 + 16 + 4 + address::LEN;
/// The length of the longest name of a UNIX socket, in bytes.
const MOST: usize = 108;
/// The kind byte in the name of the engine's end of a listener's socket pair.
const LISTENER: u8 = b'L';
/// The length of the name of a stand-in, in bytes, without options.
const STAND_IN_LEN: usize = 9 + 16 + address::LEN + 4 + 4;

/// Options as level and name, the more important ones first. If a connection fails, the name of the engine's end of its
/// socket pair holds those that the program has set. The library sets them again if the program connects the socket again.
///
/// An option takes 1 to 5 bytes: its index here with the length of its value, and the value unless it is 1. All options but the
/// last two fit into a name together; those that do not fit are left out.
pub const KEPT_OPTIONS: [(i32, i32); 24] = [
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
];

/// The kind of an offloaded socket when its name was created: its family, and whether it was bound or
/// connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SocketKind {
    /// A TCP socket of family AF_INET that was bound when it got its name. It may listen or be connected now,
    /// but only the engine knows this.
    BoundV4 = b'b',
    /// Like [`SocketKind::BoundV4`], of family AF_INET6.
    BoundV6 = b'B',
    /// A TCP socket of family AF_INET that connect(2) or accept(2) has connected.
    StreamV4 = b's',
    /// Like [`SocketKind::StreamV4`], of family AF_INET6.
    StreamV6 = b'S',
    /// A UDP socket of family AF_INET. Ask the engine for the socket's addresses, because they may change
    /// after the name was made.
    DatagramV4 = b'd',
    /// Like [`SocketKind::DatagramV4`], of family AF_INET6.
    DatagramV6 = b'D',
    /// A TCP listener of family AF_INET whose engine has ended. See [`StandIn`].
    StandInV4 = b'w',
    /// Like [`SocketKind::StandInV4`], of family AF_INET6.
    StandInV6 = b'W',
}

impl SocketKind {
    /// Returns true if the family is AF_INET6.
    pub fn is_v6(self) -> bool {
        matches!(self, Self::BoundV6 | Self::StreamV6 | Self::DatagramV6 | Self::StandInV6)
    }

    /// Returns true for a UDP socket.
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::DatagramV4 | Self::DatagramV6)
    }

    /// Returns true for a TCP socket that was bound before it was connected or began to listen. The name of
    /// such a socket was made at the bind, so it has no remote address.
    pub fn is_bound(self) -> bool {
        matches!(self, Self::BoundV4 | Self::BoundV6) || self.is_stand_in()
    }

    /// Returns true for a listener whose engine has ended.
    pub fn is_stand_in(self) -> bool {
        matches!(self, Self::StandInV4 | Self::StandInV6)
    }
}

/// The name of a program's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketName {
    /// The engine's random number.
    pub engine: u64,
    /// The socket's number in the engine.
    pub socket: u64,
    /// What the socket is.
    pub kind: SocketKind,
    /// The local address. Its port is 0 if the engine had not yet chosen a port when the socket got its name.
    pub local: SocketAddr,
    /// The remote address. `None` if the socket was not connected when it got its name.
    pub remote: Option<SocketAddr>,
}

/// The address of a UNIX socket. It contains a name of up to 108 bytes.
#[derive(Clone, Copy)]
pub struct UnixAddress {
    /// The structure for bind.
    pub raw: libc::sockaddr_un,
    /// The length of the address.
    pub len: libc::socklen_t,
}

impl UnixAddress {
    fn of(name: &[u8]) -> Self {
        // SAFETY: an all-zero sockaddr_un is valid.
        let mut raw: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in raw.sun_path.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
        Self { raw, len: len as libc::socklen_t }
    }

    /// Returns the bytes of the name of the UNIX socket. Returns an empty slice if the family of the address
    /// is not AF_UNIX.
    fn name(&self) -> &[u8] {
        let before = std::mem::offset_of!(libc::sockaddr_un, sun_path);
        if self.raw.sun_family != libc::AF_UNIX as libc::sa_family_t {
            return &[];
        }
        let len = (self.len as usize).saturating_sub(before).min(self.raw.sun_path.len());
        // SAFETY: c_char and u8 have one layout, and `len` is at most the array's length.
        unsafe { std::slice::from_raw_parts(self.raw.sun_path.as_ptr().cast(), len) }
    }

    /// Returns the address of `fd` itself, or the address of its peer: `get` is getsockname or getpeername.
    /// Returns `None` if the call fails.
    fn ask(
        fd: i32,
        get: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
    ) -> Option<Self> {
        let mut address = Self::of(&[]);
        address.raw.sun_family = 0;
        address.len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: structure and length live through the call.
        let code = unsafe { get(fd, (&raw mut address.raw).cast(), &mut address.len) };
        (code == 0).then_some(address)
    }
}

fn number(bytes: &[u8]) -> u64 {
    let mut array = [0; 8];
    array.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(array)
}

/// Appends the kept ones among `options` to `name`, which has `len` bytes, as far as they fit. Returns the new length.
fn add_options(name: &mut [u8; MOST], mut len: usize, options: &[NumberOption]) -> usize {
    for (index, &(level, option)) in KEPT_OPTIONS.iter().enumerate() {
        let Some(&(.., value)) = options.iter().find(|kept| (kept.0, kept.1) == (level, option)) else {
            continue;
        };
        let code = match value {
            1 => 0,
            0 | 2..=0xff => 1,
            0x100..=0xffff => 2,
            _ => 3,
        };
        if let Some([first, bytes @ ..]) = name.get_mut(len..=len + LENGTHS[code]) {
            *first = (code << 6 | index) as u8;
            bytes.copy_from_slice(&value.to_le_bytes()[..LENGTHS[code]]);
            len += 1 + LENGTHS[code];
        }
    }
    len
}

/// The length in bytes of an option's value, for each code in the upper two bits of the option's first byte.
const LENGTHS: [usize; 4] = [0, 1, 2, 4];

/// Returns the options that [`add_options`] has appended.
fn options_of(mut bytes: &[u8]) -> impl Iterator<Item = NumberOption> + '_ {
    std::iter::from_fn(move || {
        let (&first, rest) = bytes.split_first()?;
        let &(level, name) = KEPT_OPTIONS.get(usize::from(first & 0x3f))?;
        let (value, rest) = rest.split_at_checked(LENGTHS[usize::from(first >> 6)])?;
        bytes = rest;
        let mut number = [0; 4];
        number[..value.len()].copy_from_slice(value);
        Some((level, name, if value.is_empty() { 1 } else { i32::from_le_bytes(number) }))
    })
}

/// The functions that ask the kernel for the names of a socket and of its peer. The preloaded library passes
/// the C library's functions. If it called them by name, it would call its own replacements.
#[derive(Clone, Copy)]
pub struct Asking {
    /// The C library's getsockname.
    pub own: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
    /// The C library's getpeername.
    pub peer: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
}

impl SocketName {
    /// Returns the address to bind the program's end to.
    pub fn to_address(&self) -> UnixAddress {
        UnixAddress::of(&self.encode())
    }

    /// Returns the bytes of the name.
    pub fn encode(&self) -> [u8; SOCKET_LEN] {
        let mut name = [0; SOCKET_LEN];
        name[..8].copy_from_slice(&PREFIX);
        name[8] = self.kind as u8;
        name[9..17].copy_from_slice(&self.engine.to_le_bytes());
        name[17..25].copy_from_slice(&self.socket.to_le_bytes());
        name[25..45].copy_from_slice(&address::encode(Some(self.local)));
        name[45..].copy_from_slice(&address::encode(self.remote));
        name
    }

    /// Returns the record that the engine writes into the pair of a listener. `tag` is that of
    /// [`Records`](crate::slots::Records), or 0 if the record is not counted. `kept` is the number of the slot whose kept pair the connection
    /// gets. Such a record comes without a descriptor. Both take the place of bytes that are the same in all names.
    pub fn to_record(&self, tag: u8, kept: Option<u8>) -> [u8; SOCKET_LEN] {
        let mut record = self.encode();
        record[0] = tag;
        record[1] = kept.unwrap_or(record[1]);
        record
    }

    /// Parses a record. Returns the name, the tag and the number of the slot. Returns `None` for other bytes.
    pub fn from_record(mut record: [u8; SOCKET_LEN]) -> Option<(Self, u8, Option<u8>)> {
        let tag = std::mem::take(&mut record[0]);
        let kept = (usize::from(record[1]) < SLOTS).then_some(record[1]);
        record[1] = PREFIX[1];
        Self::decode(&record).map(|name| (name, tag, kept))
    }

    /// Parses the name of a program's end. Returns `None` for any other name.
    pub fn from_address(address: &UnixAddress) -> Option<Self> {
        Self::decode(address.name())
    }

    /// Parses the bytes of the name of a program's end. Returns `None` for other bytes.
    pub fn decode(name: &[u8]) -> Option<Self> {
        if name.len() >= STAND_IN_LEN && name[..8] == PREFIX && matches!(name[8], b'w' | b'W') {
            return Some(Self {
                engine: number(&name[9..]),
                socket: number(&name[17..]),
                kind: if name[8] == b'w' { SocketKind::StandInV4 } else { SocketKind::StandInV6 },
                local: address::decode(&name[25..])?,
                remote: None,
            });
        }
        if name.len() != SOCKET_LEN || name[..8] != PREFIX {
            return None;
        }
        let kind = match name[8] {
            b'b' => SocketKind::BoundV4,
            b'B' => SocketKind::BoundV6,
            b's' => SocketKind::StreamV4,
            b'S' => SocketKind::StreamV6,
            b'd' => SocketKind::DatagramV4,
            b'D' => SocketKind::DatagramV6,
            _ => return None,
        };
        Some(Self {
            engine: number(&name[9..]),
            socket: number(&name[17..]),
            kind,
            local: address::decode(&name[25..])?,
            remote: address::decode(&name[45..]),
        })
    }

    /// Returns the socket name of the program's end `fd`. Returns `None` if `fd` is not an offloaded socket.
    pub fn of(fd: i32, asking: Asking) -> Option<Self> {
        Self::from_address(&UnixAddress::ask(fd, asking.own)?)
    }

    /// Returns the name of the socket pair's program's end if `fd` is the engine's end of that pair. Returns
    /// `None` for other descriptors.
    pub fn of_peer(fd: i32, asking: Asking) -> Option<Self> {
        Self::from_address(&UnixAddress::ask(fd, asking.peer)?)
    }
}

/// A UNIX socket that listens in place of a TCP listener whose engine has ended. Nobody connects to it, so it reports
/// no events. Its name has what the library needs to create the listener again on another engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// The name of the listener's program's end.
    pub listener: SocketName,
    /// The backlog.
    pub backlog: i32,
    /// A number that makes the name unique, because processes may share a listener, and each has its own stand-in.
    pub tag: u32,
}

impl StandIn {
    /// Returns the address to bind the stand-in to. The name holds only the `options` that [`KEPT_OPTIONS`] lists.
    pub fn to_address(&self, options: &[NumberOption]) -> UnixAddress {
        let mut name = [0; MOST];
        name[..8].copy_from_slice(&PREFIX);
        name[8] =
            if self.listener.kind.is_v6() { SocketKind::StandInV6 } else { SocketKind::StandInV4 } as u8;
        name[9..17].copy_from_slice(&self.listener.engine.to_le_bytes());
        name[17..25].copy_from_slice(&self.listener.socket.to_le_bytes());
        name[25..45].copy_from_slice(&address::encode(Some(self.listener.local)));
        name[45..49].copy_from_slice(&self.backlog.to_le_bytes());
        name[49..STAND_IN_LEN].copy_from_slice(&self.tag.to_le_bytes());
        let len = add_options(&mut name, STAND_IN_LEN, options);
        UnixAddress::of(&name[..len])
    }

    /// Returns the bytes of `address` if it is the name of a stand-in.
    fn bytes(address: &UnixAddress) -> Option<&[u8]> {
        let stand_in = SocketName::from_address(address)?.kind.is_stand_in();
        stand_in.then(|| address.name())
    }
}

/// What the local address of a socket says about the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The socket is offloaded and has this name.
    Offloaded(SocketName),
    /// The socket is the kernel's, of family AF_INET or AF_INET6.
    Kernel {
        /// True for family AF_INET6.
        v6: bool,
        /// The local port, or 0 if the socket has none.
        port: u16,
    },
    /// The descriptor is neither an offloaded socket nor a kernel socket of family AF_INET or AF_INET6.
    Other,
}

impl Local {
    /// Returns the kind of the socket `fd`. Reads the socket's local address, which takes one system call.
    pub fn of(fd: i32, asking: Asking) -> Self {
        let Some(address) = UnixAddress::ask(fd, asking.own) else { return Self::Other };
        let kernel = |v6| {
            // For AF_INET and AF_INET6, the two bytes after the family are the port, in network byte order.
            let port = [address.raw.sun_path[0] as u8, address.raw.sun_path[1] as u8];
            Self::Kernel { v6, port: u16::from_be_bytes(port) }
        };
        match i32::from(address.raw.sun_family) {
            libc::AF_INET => kernel(false),
            libc::AF_INET6 => kernel(true),
            _ => SocketName::from_address(&address).map_or(Self::Other, Self::Offloaded),
        }
    }
}

/// How a connection ended. The name of the engine's end of the socket pair contains this, and the preloaded
/// library reads it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The remote end has finished sending.
    Finished,
    /// The connection failed with this errno.
    Failed(i32),
    /// The engine's end of the socket pair has no name, so the engine has not reported an end. Normally the
    /// connection is still open. If the program reads end-of-file without having shut down reading, the
    /// engine has died.
    Unnamed,
    /// The socket listens with this backlog, or has listened until its engine died.
    Listening(i32),
}

impl End {
    /// Returns the address to bind the engine's end to. `local` is the connection's local address. The name
    /// holds only the `options` that [`KEPT_OPTIONS`] lists.
    pub fn to_address(
        self,
        engine: u64,
        socket: u64,
        local: Option<SocketAddr>,
        options: &[NumberOption],
    ) -> UnixAddress {
        let mut name = [0; MOST];
        name[..8].copy_from_slice(&PREFIX);
        name[8] = if matches!(self, Self::Listening(_)) { LISTENER } else { END };
        name[9..17].copy_from_slice(&engine.to_le_bytes());
        name[17..25].copy_from_slice(&socket.to_le_bytes());
        let number = match self {
            Self::Finished | Self::Unnamed => 0,
            Self::Failed(errno) => errno,
            Self::Listening(backlog) => backlog,
        };
        name[25..29].copy_from_slice(&number.to_le_bytes());
        name[29..END_LEN].copy_from_slice(&address::encode(local));
        let len = add_options(&mut name, END_LEN, options);
        UnixAddress::of(&name[..len])
    }

    /// Returns the bytes of `address` if it is the name of the engine's end of a socket pair. Returns `None`
    /// for other addresses.
    fn bytes(address: &UnixAddress) -> Option<&[u8]> {
        let name = address.name();
        (name.len() >= END_LEN && name[..8] == PREFIX && matches!(name[8], END | LISTENER)).then_some(name)
    }

    fn from_address(address: &UnixAddress) -> Self {
        let Some(name) = Self::bytes(address) else { return Self::Unnamed };
        match i32::from_le_bytes([name[25], name[26], name[27], name[28]]) {
            backlog if name[8] == LISTENER => Self::Listening(backlog),
            0 => Self::Finished,
            errno => Self::Failed(errno),
        }
    }

    /// Reads how a connection ended, from the name of the engine's end of the socket pair. `fd` is the
    /// program's end, or a [`StandIn`]. `asking` asks the kernel for the names.
    pub fn of(fd: i32, asking: Asking) -> Self {
        if let Some(address) = UnixAddress::ask(fd, asking.peer) {
            return Self::from_address(&address);
        }
        let own = UnixAddress::ask(fd, asking.own);
        own.as_ref().and_then(StandIn::bytes).map_or(Self::Unnamed, |name| {
            Self::Listening(i32::from_le_bytes([name[45], name[46], name[47], name[48]]))
        })
    }

    /// Returns the local address of a connection that has ended. The engine no longer has this address, so it
    /// is read from the name of the engine's end of the socket pair. `fd` is the program's end. Returns
    /// `None` if the connection has not ended.
    pub fn local_address(fd: i32, asking: Asking) -> Option<SocketAddr> {
        address::decode(&Self::bytes(&UnixAddress::ask(fd, asking.peer)?)?[29..])
    }

    /// Calls `keep` with each option in the name of the engine's end. `fd` is the program's end of the socket
    /// pair, or a [`StandIn`].
    pub fn for_options(fd: i32, asking: Asking, keep: impl FnMut(NumberOption)) {
        if let Some(address) = UnixAddress::ask(fd, asking.peer) {
            let options = Self::bytes(&address).map_or(&[][..], |name| &name[END_LEN..]);
            return options_of(options).for_each(keep);
        }
        if let Some(name) = UnixAddress::ask(fd, asking.own).as_ref().and_then(StandIn::bytes) {
            options_of(&name[STAND_IN_LEN..]).for_each(keep);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    const ASKING: Asking = Asking { own: libc::getsockname, peer: libc::getpeername };

    fn bind(fd: i32, address: &UnixAddress) {
        // SAFETY: the structure lives through the call.
        let code = unsafe { libc::bind(fd, (&raw const address.raw).cast(), address.len) };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn the_kernel_keeps_names_beyond_the_life_of_the_engines_end() {
        let engine = std::process::id() as u64;
        let values = [0, 1, -1, 255, 256, 65_535, 65_536, i32::MIN, i32::MAX];
        let options: Vec<_> =
            values.into_iter().zip(KEPT_OPTIONS).map(|(value, (l, n))| (l, n, value)).collect();
        for (socket, end) in [(1, End::Finished), (2, End::Failed(libc::ETIMEDOUT)), (3, End::Unnamed)] {
            let (program, other) = UnixStream::pair().unwrap();
            let name = SocketName {
                engine,
                socket,
                kind: SocketKind::StreamV6,
                local: "10.0.0.1:80".parse().unwrap(),
                remote: Some("[fd00::1]:4000".parse().unwrap()),
            };
            bind(program.as_raw_fd(), &name.to_address());
            assert_eq!(End::of(program.as_raw_fd(), ASKING), End::Unnamed);
            assert_eq!(SocketName::of_peer(other.as_raw_fd(), ASKING), Some(name));
            assert_eq!(SocketName::of_peer(program.as_raw_fd(), ASKING), None);
            if end != End::Unnamed {
                bind(other.as_raw_fd(), &end.to_address(engine, socket, Some(name.local), &options));
            }
            drop(other);
            let duplicate = program.try_clone().unwrap();
            drop(program);
            assert_eq!(SocketName::of(duplicate.as_raw_fd(), ASKING), Some(name));
            assert_eq!(Local::of(duplicate.as_raw_fd(), ASKING), Local::Offloaded(name));
            assert_eq!(End::of(duplicate.as_raw_fd(), ASKING), end);
            let local = (end != End::Unnamed).then_some(name.local);
            assert_eq!(End::local_address(duplicate.as_raw_fd(), ASKING), local);
            let mut kept = Vec::new();
            End::for_options(duplicate.as_raw_fd(), ASKING, |option| kept.push(option));
            assert_eq!(kept, if local.is_some() { &options[..] } else { &[] });
        }
    }

    /// Returns a value of an option that takes as many bytes as any that a program can set.
    fn longest(level: i32, name: i32) -> i32 {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => i32::MAX,
            (
                libc::IPPROTO_TCP,
                libc::TCP_USER_TIMEOUT | libc::TCP_NOTSENT_LOWAT | libc::TCP_WINDOW_CLAMP,
            ) => i32::MAX,
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => -1,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG) => 32_767,
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => 30_007,
            (libc::SOL_SOCKET, _)
            | (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK)
            | (libc::IPPROTO_IP, libc::IP_RECVERR)
            | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY | libc::IPV6_RECVERR) => 1,
            _ => 255,
        }
    }

    #[test]
    fn listeners_keep_their_backlog_and_options_in_names() {
        let engine = std::process::id() as u64;
        let options = [(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1), (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)];
        let (program, other) = UnixStream::pair().unwrap();
        let listener = SocketName {
            engine,
            socket: 11,
            kind: SocketKind::BoundV6,
            local: "[fd00::1]:80".parse().unwrap(),
            remote: None,
        };
        bind(program.as_raw_fd(), &listener.to_address());
        let end = End::Listening(-5).to_address(engine, 11, Some(listener.local), &options);
        bind(other.as_raw_fd(), &end);
        drop(other);
        let all = KEPT_OPTIONS.map(|(level, name)| (level, name, longest(level, name)));
        let name = StandIn { listener, backlog: 128, tag: u32::MAX };
        let bytes = name.to_address(&all);
        let found: Vec<_> = options_of(&bytes.name()[STAND_IN_LEN..]).collect();
        assert_eq!(found, all[..all.len() - 2], "all but the last two always fit");
        // SAFETY: has no preconditions. The descriptor is new.
        let stand_in = unsafe {
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
        };
        bind(stand_in.as_raw_fd(), &name.to_address(&options));
        for (fd, backlog) in [(program.as_raw_fd(), -5), (stand_in.as_raw_fd(), 128)] {
            assert_eq!(End::of(fd, ASKING), End::Listening(backlog));
            let mut kept = Vec::new();
            End::for_options(fd, ASKING, |option| kept.push(option));
            kept.sort_unstable();
            assert_eq!(kept, options);
        }
        let found = SocketName::of(stand_in.as_raw_fd(), ASKING).unwrap();
        assert!(found.kind.is_stand_in() && found.kind.is_bound() && found.kind.is_v6());
        assert_eq!(SocketName { kind: SocketKind::BoundV6, ..found }, listener);
    }

    #[test]
    fn other_sockets_are_not_offloaded() {
        let (plain, _other) = UnixStream::pair().unwrap();
        assert_eq!(SocketName::of(plain.as_raw_fd(), ASKING), None);
        assert_eq!(SocketName::of(-1, ASKING), None);
        assert_eq!(Local::of(plain.as_raw_fd(), ASKING), Local::Other);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(SocketName::of(listener.as_raw_fd(), ASKING), None);
        let port = listener.local_addr().unwrap().port();
        assert_eq!(Local::of(listener.as_raw_fd(), ASKING), Local::Kernel { v6: false, port });
        for name in [&b"\0inlane\x03s"[..], &[0; 108], b"", b"\0inlane\x03Exxxxxxxxxxxxxxxxxx"] {
            let address = UnixAddress::of(name);
            assert_eq!(SocketName::from_address(&address), None);
            assert_eq!(End::from_address(&address), End::Unnamed);
        }
    }
}
