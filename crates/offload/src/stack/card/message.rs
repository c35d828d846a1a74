//! The messages between an engine and its card: frames with an Ethernet type of their own, on the link that joins both.
//!
//! ```text
//!  0 destination (broadcast), source   14 kind     16 sequence number   20 length of the payload
//! 12 type 0x88B5                       15 version  24 session           32 connection or listener
//! 40 position                          48 progress 56 flags, state, reason, scale            60 number
//! 64 payload
//! ```
//!
//! All numbers are little-endian. A session begins when an engine starts, or when it starts again with its card. Frames of other
//! sessions are ignored. The sequence number counts the messages of a session in one direction, apart from heartbeats, so a lost
//! one is noticed.

use crate::stack::options::SocketOptions;
use inlane_offload_protocol::rules::Prefix;
use inlane_tcp::{EndReason, Flow, Report, State};
use inlane_wire::ethernet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The length of a message without its payload.
pub const HEADER: usize = 64;
/// The least length of the longest frame that a side accepts.
pub const LEAST_FRAME: usize = 1294;
/// The Ethernet type of messages: the first one that IEEE 802 leaves to local experiments.
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// The version of the protocol. Both sides must have the same.
pub const VERSION: u8 = 1;

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The engine begins a session, and then repeats this as its heartbeat. The payload is a [`Hello`]; `number` is the length of the
    /// longest frame that the engine accepts.
    Hello = 1,
    /// The engine opens a connection. The payload has the flow and the options.
    Connect,
    /// The engine opens a listener, or changes its backlog (`number`). The payload has the address and the options.
    Listen,
    /// The options of a connection have changed.
    Options,
    /// Bytes and state of a connection, in both directions. `position` is the index of the first byte. `progress` is the index up
    /// to which the sender of the message has consumed what the receiver has sent (engine), or has had it acknowledged by the peer
    /// (card).
    Stream,
    /// The engine has removed a connection or a listener.
    Forget,
    /// The engine says how many connections (`number`) of a listener wait to be accepted.
    Waiting,
    /// The card's answer to each [`Kind::Hello`]. The payload is the card's MAC address; `number` is the length of the longest
    /// frame that the card accepts.
    Welcome,
    /// The card has accepted a connection of the listener `position`. The payload has its flow.
    Accepted,
    /// The card asks how many connections of a listener wait to be accepted.
    Count,
    /// The card does not know the session, or has ended it.
    Lost,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Connect,
        Self::Listen,
        Self::Options,
        Self::Stream,
        Self::Forget,
        Self::Waiting,
        Self::Welcome,
        Self::Accepted,
        Self::Count,
        Self::Lost,
    ];
}

/// Flags of messages, most of them of the engine's [`Kind::Stream`].
pub mod flag {
    /// The program sends no more, and the card has all its data.
    pub const FINISHED: u8 = 1;
    /// The program has closed the connection, and the card has all its data.
    pub const CLOSED: u8 = 2;
    /// The connection is to be reset.
    pub const ABORTED: u8 = 4;
    /// Small segments are held back.
    pub const CORKED: u8 = 8;
    /// The program has closed the connection, and the engine still has data of it.
    pub const ABANDONED: u8 = 16;
    /// In the card's message: the peer has closed its direction, and all its data was received.
    pub const PEER_CLOSED: u8 = 32;
    /// In [`super::Kind::Welcome`]: packets of the network may have partial checksums.
    pub const PARTIAL_CHECKSUMS: u8 = 64;
    /// In [`super::Kind::Hello`]: the card has welcomed the engine to this session. A card that has started since then must not
    /// begin it again.
    pub const WELCOMED: u8 = 128;
}

/// The fields of a message before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: Kind,
    pub sequence: u32,
    /// The length of the payload in bytes.
    pub length: u32,
    pub session: u64,
    /// The connection or listener. The engine numbers those that it opens, and the card those that it accepts, with
    /// [`OF_CARD`] set.
    pub id: u64,
    pub position: u64,
    pub progress: u64,
    pub flags: u8,
    pub state: u8,
    pub reason: u8,
    /// The binary logarithm of the card's receive window. The engine reports consumed bytes when they are an eighth of this
    /// window, so the window does not close.
    pub scale: u8,
    pub number: u32,
}

/// The bit of the numbers that the card has chosen. Keys of sockets do not have it.
pub const OF_CARD: u64 = 1 << 63;

impl Message {
    /// Returns a message without payload.
    pub fn new(kind: Kind, id: u64) -> Self {
        let (position, progress, flags, state, reason, scale, number) = (0, 0, 0, 0, 0, 0, 0);
        let (sequence, length, session) = (0, 0, 0);
        Self { kind, sequence, length, session, id, position, progress, flags, state, reason, scale, number }
    }

    /// Returns the bytes of the message before its payload. `source` is the sender's MAC address.
    pub fn encode(&self, source: Mac) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..6].fill(0xff);
        bytes[6..12].copy_from_slice(&source.0);
        bytes[12..14].copy_from_slice(&ETHERTYPE);
        bytes[14] = self.kind as u8;
        bytes[15] = VERSION;
        bytes[16..20].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.session.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.id.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.position.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.progress.to_le_bytes());
        bytes[56..60].copy_from_slice(&[self.flags, self.state, self.reason, self.scale]);
        bytes[60..64].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Returns the message at the beginning of a frame of `frame` bytes. Returns `None` if it is malformed or of another
    /// version.
    pub fn decode(head: &[u8], frame: usize) -> Option<Self> {
        let bytes: &[u8; HEADER] = head.get(..HEADER)?.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let kind = *Kind::ALL.get(usize::from(bytes[14]).checked_sub(1)?)?;
        let message = Self {
            kind,
            sequence: u32_at(16),
            length: u32_at(20),
            session: u64_at(24),
            id: u64_at(32),
            position: u64_at(40),
            progress: u64_at(48),
            flags: bytes[56],
            state: bytes[57],
            reason: bytes[58],
            scale: bytes[59],
            number: u32_at(60),
        };
        // Short frames may have been padded.
        let fits = message.length as usize <= frame - HEADER;
        (fits && is_message(head) && bytes[15] == VERSION).then_some(message)
    }

    /// Stores what the card says about a connection.
    pub fn set_report(&mut self, report: &Report) {
        self.state = STATES.iter().position(|&state| state == report.state).map_or(0, |at| at as u8);
        self.reason = report
            .reason
            .and_then(|reason| REASONS.iter().position(|&other| other == reason))
            .map_or(0, |at| at as u8 + 1);
        self.flags = if report.peer_closed { flag::PEER_CLOSED } else { 0 };
        (self.progress, self.number) = (report.acknowledged, report.segment_size.into());
    }

    /// Returns what the card says about a connection, if it makes sense. The message's payload counts as received.
    pub fn report(&self) -> Option<Report> {
        Some(Report {
            state: *STATES.get(usize::from(self.state))?,
            reason: match self.reason {
                0 => None,
                number => Some(*REASONS.get(usize::from(number) - 1)?),
            },
            peer_closed: self.flags & flag::PEER_CLOSED != 0,
            acknowledged: self.progress,
            received: self.position.checked_add(self.length.into())?,
            segment_size: u16::try_from(self.number).ok()?,
        })
    }
}

/// Returns true if a frame, which begins with `head`, is a message.
#[inline]
pub fn is_message(head: &[u8]) -> bool {
    head.get(12..14) == Some(&ETHERTYPE)
}

/// Returns the version of a message that is not of this version.
pub fn other_version(head: &[u8]) -> Option<u8> {
    let version = *head.get(15)?;
    (is_message(head) && version != VERSION).then_some(version)
}

const STATES: [State; 10] = [
    State::SynSent,
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
    State::Closed,
];

const REASONS: [EndReason; 5] =
    [EndReason::Reset, EndReason::Refused, EndReason::TimedOut, EndReason::Unreachable, EndReason::Aborted];

/// Writes the parts of a payload.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    fn ip(&mut self, ip: IpAddr) {
        self.0.push(if ip.is_ipv4() { 4 } else { 6 });
        let bytes = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        self.0.extend_from_slice(&bytes);
    }

    pub fn address(&mut self, address: SocketAddr) {
        self.ip(address.ip());
        self.0.extend_from_slice(&address.port().to_le_bytes());
    }

    pub fn flow(&mut self, flow: &Flow) {
        self.address(flow.local);
        self.address(flow.remote);
    }

    /// Writes those options that TCP needs.
    pub fn options(&mut self, v6: bool, options: &SocketOptions) {
        let flags =
            [v6, options.no_delay, options.cork, options.keepalive, options.v6_only, options.reuse_port];
        let flags = flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u32::from(flag));
        let [idle, interval, probes] = options.keepalive_times.map(|time| time.unwrap_or(u32::MAX));
        let [send, receive] =
            [options.send_buffer, options.receive_buffer].map(|size| size.unwrap_or(-1) as u32);
        let maximum = options.max_segment.into();
        for number in [flags, send, receive, options.user_timeout, maximum, idle, interval, probes] {
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Reads the parts of a payload, from its beginning.
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn ip(&mut self) -> Option<IpAddr> {
        let [family] = self.take()?;
        let ip = Ipv6Addr::from(self.take::<16>()?);
        match family {
            4 => ip.to_ipv4_mapped().map(IpAddr::V4),
            6 => Some(ip.into()),
            _ => None,
        }
    }

    pub fn address(&mut self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, u16::from_le_bytes(self.take()?)))
    }

    pub fn flow(&mut self) -> Option<Flow> {
        let flow = Flow { local: self.address()?, remote: self.address()? };
        (flow.local.is_ipv4() == flow.remote.is_ipv4()).then_some(flow)
    }

    /// Returns the family of the socket (true for AF_INET6) and its options.
    pub fn options(&mut self) -> Option<(bool, SocketOptions)> {
        let flags = self.u32()?;
        let is_set = |bit: u32| flags & 1 << bit != 0;
        let [send, receive] = [self.u32()?, self.u32()?].map(u32::cast_signed);
        let (user_timeout, max_segment) = (self.u32()?, u16::try_from(self.u32()?).ok()?);
        let times = [self.u32()?, self.u32()?, self.u32()?];
        let options = SocketOptions {
            no_delay: is_set(1),
            cork: is_set(2),
            keepalive: is_set(3),
            v6_only: is_set(4),
            reuse_port: is_set(5),
            send_buffer: (send >= 0).then_some(send),
            receive_buffer: (receive >= 0).then_some(receive),
            user_timeout,
            max_segment,
            keepalive_times: times.map(|time| (time != u32::MAX).then_some(time)),
            ..SocketOptions::default()
        };
        Some((is_set(0), options))
    }
}

/// What an engine says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The engine's addresses.
    pub addresses: Vec<Prefix>,
    /// The routers for other destinations.
    pub gateways: Vec<IpAddr>,
    /// True if the engine also runs connections to loopback addresses.
    pub loopback: bool,
    /// The size in bytes of each ring of a connection.
    pub buffer: u32,
}

impl Hello {
    /// The most addresses, and the most gateways.
    pub const MOST: usize = 32;

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.0.extend_from_slice(&self.buffer.to_le_bytes());
        writer.0.push(self.loopback.into());
        writer.0.push(self.addresses.len().min(Self::MOST) as u8);
        writer.0.push(self.gateways.len().min(Self::MOST) as u8);
        for prefix in self.addresses.iter().take(Self::MOST) {
            writer.ip(prefix.address);
            writer.0.push(prefix.length);
        }
        self.gateways.iter().take(Self::MOST).for_each(|&gateway| writer.ip(gateway));
        writer.0
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let buffer = reader.u32().filter(|size| size.is_power_of_two() && (4096..=1 << 30).contains(size))?;
        let [loopback, addresses, gateways] = reader.take()?;
        let addresses = (0..addresses).map(|_| {
            let address = reader.ip()?;
            let [length] = reader.take()?;
            let most = if address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
            (u32::from(length) <= most).then_some(Prefix { address, length })
        });
        let addresses = addresses.collect::<Option<Vec<_>>>()?;
        let gateways = (0..gateways).map(|_| reader.ip()).collect::<Option<Vec<_>>>()?;
        Some(Self { addresses, gateways, loopback: loopback != 0, buffer })
    }
}
