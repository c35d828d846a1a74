//! The control channel of memif: fixed messages over a UNIX socket, by which both ends agree on the shared memory.
//!
//! ```text
//! client                     server
//!    | <------- HELLO ---------- |     what the server allows
//!    | INIT -------------------> |     which interface, the secret
//!    | ADD_REGION, with a memfd->|     memory
//!    | ADD_RING, with an eventfd>|     each ring
//!    | CONNECT ----------------> |
//!    | <----- CONNECTED -------- |     the server acknowledges each message before CONNECT
//! ```

use super::doorbell::Doorbell;
use super::memory::{MOST_SLOTS_LOG2, Memory, RING_HEADER, Ring, SLOT, create, map};
use inlane_core::port::PEER_MESSAGE;
#[cfg(doc)]
use inlane_core::port::PeerChannel;
use inlane_core::region::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The length of each message in bytes.
const MESSAGE: usize = 128;
/// The only version of the protocol, 2.0.
const VERSION: u16 = 0x200;
/// The length of names in messages.
const NAME: usize = 32;
/// The longest secret, in bytes.
const SECRET: usize = 24;
/// The most regions that a client may share. DPDK's clients share one or two.
const MOST_REGIONS: usize = 16;
/// The flag of ADD_RING for a ring whose packets go from the client to the server.
const TO_SERVER: u16 = 1;

const ACK: u16 = 1;
const HELLO: u16 = 2;
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;
/// A message of a [`PeerChannel`] between two ends that both announce it. The protocol does not have it.
const OWN: u16 = 0x494c;

/// What both ends must agree on.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// The number of the interface on the socket.
    pub id: u32,
    /// The secret, if there is one.
    pub secret: Option<String>,
    /// The number of queues in each direction.
    pub queues: u16,
    /// The size of a ring, as a power of two. The client decides.
    pub slots_log2: u8,
    /// The number of buffers of a ring. The client decides. At most as many as the ring has slots.
    pub buffers: u16,
    /// The size of a shared buffer in bytes. The client decides.
    pub buffer: u32,
    /// True if this end accepts TCP segments with partial checksums.
    pub partial_checksums: bool,
}

/// A ring, and the descriptor by which its reader is woken.
pub(super) struct SharedRing {
    pub ring: Ring,
    pub doorbell: Arc<Doorbell>,
}

/// The outcome of a handshake: the memory, and the rings of each queue.
pub(super) struct Agreement {
    pub memory: Arc<Memory>,
    pub to_server: Vec<SharedRing>,
    pub to_client: Vec<SharedRing>,
    /// Where the buffers of the client's rings begin in region 0, and how many each ring has. Unused by a server.
    pub buffers_at: u32,
    pub buffers: u16,
    /// True if the peer accepts TCP segments with partial checksums.
    pub partial_checksums: bool,
    /// True if the peer accepts messages of a [`PeerChannel`].
    pub messages: bool,
}

/// A message with a descriptor.
struct Message {
    bytes: [u8; MESSAGE],
    descriptor: Option<OwnedFd>,
}

impl Message {
    fn new(kind: u16) -> Self {
        Self { bytes: [0; MESSAGE], descriptor: None }.with(0, &kind.to_ne_bytes())
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn kind(&self) -> u16 {
        self.u16(0)
    }

    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("the part has N bytes")
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.part(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.part(at))
    }

    /// Returns why the peer has disconnected, as text without control characters.
    fn reason(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes[6..102]);
        text.chars().take_while(|&c| c != '\0').map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// The user that stands for all users whom a user namespace does not map.
const OVERFLOW_USER: u32 = 65534;

/// The most messages of a peer that wait until they are taken. A peer that sends more has its messages ignored.
const MOST_WAITING: usize = 256;

/// The socket to the peer.
pub(super) struct Channel {
    socket: OwnedFd,
    /// The messages of the [`PeerChannel`] that were not taken.
    waiting: Mutex<VecDeque<([u8; PEER_MESSAGE], OwnedFd)>>,
    /// True once the caller wants such messages. Others are dropped, with their descriptors.
    keeps_messages: AtomicBool,
    /// True once the peer has disconnected.
    closed: AtomicBool,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let (keeps_messages, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { socket, waiting: Mutex::default(), keeps_messages, closed }
    }

    fn send(&self, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), String> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if descriptor.is_some() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        // A peer that follows the protocol has at most one unread message.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.socket, &[IoSlice::new(&message.bytes)], &mut control, flags) {
            Ok(MESSAGE) => Ok(()),
            Ok(_) => Err("it accepts only part of a message".into()),
            Err(error) => Err(format!("it accepts no message: {error}")),
        }
    }

    fn receive(&self, until: Instant) -> Result<Message, String> {
        if !await_readable(self.socket.as_fd(), until)? {
            return Err("it does not answer".into());
        }
        self.take()?.ok_or_else(|| "it does not answer".into())
    }

    /// Takes a message if there is one.
    fn take(&self) -> Result<Option<Message>, String> {
        let mut message = Message::new(0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut message.bytes)];
        let received = match recvmsg(&self.socket, &mut parts, &mut control, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            received => received.map_err(|error| error.to_string())?,
        };
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = ancillary {
                message.descriptor = descriptors.next();
            }
        }
        match received.bytes {
            MESSAGE => Ok(Some(message)),
            0 => Err("it closed the connection".into()),
            bytes => Err(format!("it sent a message of {bytes} bytes instead of {MESSAGE}")),
        }
    }

    /// Receives a message of the given kind.
    fn expect(&self, kind: u16, until: Instant) -> Result<Message, String> {
        let message = self.receive(until)?;
        match message.kind() {
            found if found == kind => Ok(message),
            DISCONNECT => Err(format!("it refused: {}", message.reason())),
            found => Err(format!("it sent message {found} instead of {kind}")),
        }
    }

    fn request(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
        until: Instant,
    ) -> Result<(), String> {
        self.send(message, descriptor)?;
        self.expect(ACK, until).map(drop)
    }

    /// Tells the peer why the connection ends.
    pub(super) fn disconnect(&self, why: &str) {
        let text = &why.as_bytes()[..why.len().min(95)];
        // The peer may be gone already.
        let _ = self.send(&Message::new(DISCONNECT).with(6, text), None);
    }

    /// Returns true while the peer holds its end and has not disconnected.
    pub(super) fn is_open(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let keeps = self.keeps_messages.load(Ordering::Relaxed);
        // A peer that never stops sending must not keep this thread.
        for _ in 0..MOST_WAITING {
            if self.closed.load(Ordering::Relaxed) {
                return false;
            }
            match self.take() {
                Ok(None) => break,
                Ok(Some(message)) if message.kind() == DISCONNECT => {
                    self.closed.store(true, Ordering::Relaxed);
                }
                Ok(Some(Message { bytes, descriptor: Some(descriptor) }))
                    if keeps && bytes[..2] == OWN.to_ne_bytes() && waiting.len() < MOST_WAITING =>
                {
                    let mut message = [0; PEER_MESSAGE];
                    message.copy_from_slice(&bytes[2..2 + PEER_MESSAGE]);
                    waiting.push_back((message, descriptor));
                }
                Ok(Some(_)) => {}
                Err(_) => self.closed.store(true, Ordering::Relaxed),
            }
        }
        !self.closed.load(Ordering::Relaxed)
    }

    /// Keeps the messages of the [`PeerChannel`] that arrive from now on, until they are taken.
    pub(super) fn keep_messages(&self) {
        self.keeps_messages.store(true, Ordering::Relaxed);
    }

    /// Sends a message of the [`PeerChannel`]. Returns false if the peer has not taken earlier ones.
    pub(super) fn send_message(&self, message: &[u8; PEER_MESSAGE], descriptor: BorrowedFd<'_>) -> bool {
        self.send(&Message::new(OWN).with(2, message), Some(descriptor)).is_ok()
    }

    /// Returns the next message of the [`PeerChannel`].
    pub(super) fn take_message(&self) -> Option<([u8; PEER_MESSAGE], OwnedFd)> {
        self.is_open();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Returns true if the peer is trusted: it ran as this process's user or as root, when it connected as a client, or began to
    /// listen as a server.
    pub(super) fn is_trusted(&self) -> bool {
        let own = rustix::process::geteuid();
        rustix::net::sockopt::socket_peercred(&self.socket)
            .is_ok_and(|peer| peer.uid.is_root() || peer.uid == own && own.as_raw() != OVERFLOW_USER)
    }
}

/// Waits until a descriptor is readable. Returns false if it is not by `until`.
pub(super) fn await_readable(descriptor: BorrowedFd<'_>, until: Instant) -> Result<bool, String> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The name of an end that accepts partial checksums. The protocol has no field for that, and other programs only show the
/// name.
const NAME_OF_PARTIAL: &[u8] = b"inlane, partial checksums";

/// Returns the name of this end.
fn name(offer: &Offer) -> [u8; NAME] {
    let text = if offer.partial_checksums { NAME_OF_PARTIAL } else { b"inlane" };
    let mut bytes = [0; NAME];
    bytes[..text.len()].copy_from_slice(text);
    bytes[NAME - 1] = MESSAGES;
    bytes
}

/// The last byte of the name of an end that accepts messages of a [`PeerChannel`], behind the name's end.
const MESSAGES: u8 = 1;

/// Returns true if an end of this name accepts partial checksums.
fn accepts_partial(name: [u8; NAME]) -> bool {
    name.split(|&byte| byte == 0).next() == Some(NAME_OF_PARTIAL)
}

fn secret(offer: &Offer) -> [u8; SECRET] {
    let mut bytes = [0; SECRET];
    let text = offer.secret.as_deref().unwrap_or_default().as_bytes();
    let len = text.len().min(SECRET);
    bytes[..len].copy_from_slice(&text[..len]);
    bytes
}

/// Agrees with a server on memory that this end creates.
///
/// # Errors
/// Why the connection failed.
pub(super) fn as_client(channel: &Channel, offer: &Offer, until: Instant) -> Result<Agreement, String> {
    let hello = channel.expect(HELLO, until)?;
    if !(hello.u16(34)..=hello.u16(36)).contains(&VERSION) {
        return Err("it supports other versions of the protocol than 2.0".into());
    }
    let queues = hello.u16(40).min(hello.u16(42)).saturating_add(1);
    if queues < offer.queues {
        return Err(format!("it has {queues} queues, and this end needs {}", offer.queues));
    }
    let slots_log2 = offer.slots_log2.min(hello.bytes[44]);
    let buffers = offer.buffers.min(1 << slots_log2);
    let init = Message::new(INIT)
        .with(2, &VERSION.to_ne_bytes())
        .with(4, &offer.id.to_ne_bytes())
        .with(9, &secret(offer))
        .with(33, &name(offer));
    channel.request(&init, None, until)?;

    let ring_bytes = (RING_HEADER + (SLOT << slots_log2)) as u32;
    let rings = 2 * u32::from(offer.queues);
    let buffers_at = (rings * ring_bytes).next_multiple_of(4096);
    let bytes = u64::from(buffers_at) + u64::from(rings) * u64::from(buffers) * u64::from(offer.buffer);
    let (descriptor, region) = create(bytes)?;
    let add = Message::new(ADD_REGION).with(4, &bytes.to_ne_bytes());
    channel.request(&add, Some(descriptor.as_fd()), until)?;
    let add_ring = |flags: u16, index: u16, at: u32| {
        let doorbell = Doorbell::new()?;
        let ring = Ring::new(&region, at, slots_log2).ok_or("the ring exceeds the memory")?;
        ring.initialize();
        let message = Message::new(ADD_RING)
            .with(2, &flags.to_ne_bytes())
            .with(4, &index.to_ne_bytes())
            .with(8, &at.to_ne_bytes())
            .with(12, &[slots_log2]);
        channel.request(&message, Some(doorbell.as_fd()), until)?;
        Ok::<_, String>(SharedRing { ring, doorbell: Arc::new(doorbell) })
    };
    let count = u32::from(offer.queues);
    let to_server = (0..offer.queues).map(|index| add_ring(TO_SERVER, index, u32::from(index) * ring_bytes));
    let to_server = to_server.collect::<Result<Vec<_>, _>>()?;
    let to_client =
        (0..offer.queues).map(|index| add_ring(0, index, (count + u32::from(index)) * ring_bytes));
    let to_client = to_client.collect::<Result<Vec<_>, _>>()?;
    channel.send(&Message::new(CONNECT).with(2, &name(offer)), None)?;
    channel.expect(CONNECTED, until)?;
    let memory = Arc::new(Memory(vec![region]));
    let partial_checksums = accepts_partial(hello.part(2));
    let messages = hello.bytes[2 + NAME - 1] == MESSAGES;
    Ok(Agreement { memory, to_server, to_client, buffers_at, buffers, partial_checksums, messages })
}

/// Agrees with a client on memory that the client creates.
///
/// # Errors
/// Why the connection failed. The client was told.
pub(super) fn as_server(channel: &Channel, offer: &Offer, until: Instant) -> Result<Agreement, String> {
    let outcome = accept(channel, offer, until);
    if let Err(why) = &outcome {
        channel.disconnect(why);
    }
    outcome
}

fn accept(channel: &Channel, offer: &Offer, until: Instant) -> Result<Agreement, String> {
    let last = (offer.queues - 1).to_ne_bytes();
    let hello = Message::new(HELLO)
        .with(2, &name(offer))
        .with(34, &VERSION.to_ne_bytes())
        .with(36, &VERSION.to_ne_bytes())
        .with(38, &(MOST_REGIONS as u16 - 1).to_ne_bytes())
        .with(40, &last)
        .with(42, &last)
        .with(44, &[MOST_SLOTS_LOG2]);
    channel.send(&hello, None)?;
    let init = channel.expect(INIT, until)?;
    if init.u16(2) != VERSION {
        return Err("the versions of the protocol differ".into());
    }
    if init.u32(4) != offer.id {
        return Err(format!("the server has interface id={}, not id={}", offer.id, init.u32(4)));
    }
    if init.bytes[8] != 0 {
        return Err("the server carries Ethernet frames only".into());
    }
    if init.part::<SECRET>(9) != secret(offer) {
        return Err("the secrets differ".into());
    }
    let ack = Message::new(ACK);
    channel.send(&ack, None)?;
    let mut regions: Vec<Region> = Vec::new();
    let empty = || (0..offer.queues).map(|_| None).collect::<Vec<Option<SharedRing>>>();
    let (mut to_server, mut to_client) = (empty(), empty());
    loop {
        let mut message = channel.receive(until)?;
        // A peer that never stops sending would otherwise go on for ever.
        if Instant::now() >= until {
            return Err("it does not complete the handshake in time".into());
        }
        let descriptor = message.descriptor.take();
        match (message.kind(), descriptor) {
            (ADD_REGION, Some(descriptor)) => {
                if usize::from(message.u16(2)) != regions.len() || regions.len() == MOST_REGIONS {
                    return Err("the regions are not in sequence".into());
                }
                regions.push(map(descriptor.as_fd(), u64::from_ne_bytes(message.part(4)))?);
            }
            (ADD_RING, Some(doorbell)) => {
                let rings = if message.u16(2) & TO_SERVER != 0 { &mut to_server } else { &mut to_client };
                let place = rings.get_mut(usize::from(message.u16(4)));
                let region = regions.get(usize::from(message.u16(6)));
                let (Some(place), Some(region)) = (place, region) else {
                    return Err(format!(
                        "a ring has no region, or its index exceeds the {} queues",
                        offer.queues
                    ));
                };
                let ring = Ring::new(region, message.u32(8), message.bytes[12]);
                let ring = ring.ok_or("a ring exceeds its region, or is not aligned")?;
                let doorbell = Doorbell::received(doorbell).ok_or("a ring's descriptor is no eventfd")?;
                *place = Some(SharedRing { ring, doorbell: Arc::new(doorbell) });
            }
            (CONNECT, _) => break,
            (DISCONNECT, _) => return Err(format!("it disconnected: {}", message.reason())),
            (kind, _) => return Err(format!("message {kind} is out of sequence, or has no descriptor")),
        }
        channel.send(&ack, None)?;
    }
    let all = |rings: Vec<Option<SharedRing>>| rings.into_iter().collect::<Option<Vec<_>>>();
    let (Some(to_server), Some(to_client)) = (all(to_server), all(to_client)) else {
        return Err(format!("the client has fewer queues than the {} of the server", offer.queues));
    };
    if !to_server.iter().chain(&to_client).all(|shared| shared.ring.has_cookie()) {
        return Err("a ring does not begin with memif's cookie".into());
    }
    channel.send(&Message::new(CONNECTED).with(2, &name(offer)), None)?;
    let memory = Arc::new(Memory(regions));
    let partial_checksums = accepts_partial(init.part(33));
    let messages = init.bytes[33 + NAME - 1] == MESSAGES;
    Ok(Agreement { memory, to_server, to_client, buffers_at: 0, buffers: 0, partial_checksums, messages })
}
