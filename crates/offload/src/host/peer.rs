//! Shares memory with a peer's engine on the same host: the areas in which receive rings of connections lie. The peer's engine then
//! stores data there itself ([`crate::stack::rdma::PeerRing`]).
//!
//! The engine sends the area's descriptor and the connection's slot through the port's [`PeerChannel`], and then announces that by
//! RDMA. Only an engine that runs as the same user or as root has such a channel, because it sees the received bytes of all
//! programs that use the area.

use super::Engine;
use super::socket::{Attachment, Pair, Socket};
use crate::lock;
use crate::stack::arena::Key;
use crate::stack::rdma::{OwnRing, PeerRing};
use crate::stack::ring::ByteRing;
use crate::stack::socket::Role;
use crate::stack::stream::Stream;
use inlane_core::mapping::Mapping;
use inlane_core::port::{PEER_MESSAGE, PeerChannel};
use inlane_core::region::{Location, Region};
use inlane_offload_protocol::slots::{Area, POSITION, SLOTS};
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The most messages of a peer that wait for the announcement of their connections.
const MOST_OFFERS: usize = 64;
/// How long a message waits for the announcement, in nanoseconds.
const OFFER_NS: u64 = 1_000_000_000;

/// What an engine tells the peer's engine about the receive ring of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    /// The peer's queue pair and token, which identify the connection.
    queue_pair: u32,
    token: u64,
    /// The number from which stored bytes are counted.
    start: u64,
    /// The length of each ring of the area in bytes.
    ring: u32,
    /// The slot, and the engine's thread that runs the connection.
    slot: u32,
    thread: u32,
}

impl Offer {
    fn to_bytes(self) -> [u8; PEER_MESSAGE] {
        let mut bytes = [0; PEER_MESSAGE];
        bytes[..8].copy_from_slice(&self.token.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.start.to_ne_bytes());
        for (at, number) in [self.queue_pair, self.ring, self.slot, self.thread].into_iter().enumerate() {
            bytes[16 + 4 * at..20 + 4 * at].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    /// Returns `None` if a number is out of range.
    fn parse(bytes: &[u8; PEER_MESSAGE]) -> Option<Self> {
        let u64_at = |at| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (token, start) = (u64_at(0)?, u64_at(8)? & POSITION);
        let [queue_pair, ring, slot, thread] = [u32_at(16)?, u32_at(20)?, u32_at(24)?, u32_at(28)?];
        let valid = (slot as usize) < SLOTS && Area::len(ring as usize).is_some();
        valid.then_some(Self { queue_pair, token, start, ring, slot, thread })
    }
}

/// An area of the peer's engine.
struct PeerArea {
    mapping: Mapping,
    /// The memory's device and inode.
    file: (u64, u64),
    ring: usize,
}

impl PeerArea {
    /// Maps the memory of a peer. Refuses memory that can shrink, because an access beyond its end would kill this process.
    fn map(descriptor: &OwnedFd, file: (u64, u64), ring: usize) -> io::Result<Self> {
        let len = Area::len(ring).ok_or(io::ErrorKind::InvalidInput)?;
        let sealed = rustix::fs::fcntl_get_seals(descriptor)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(descriptor)?.st_size < len as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapping = Mapping::shared(descriptor.as_fd(), 0, len, true, true)?;
        Ok(Self { mapping, file, ring })
    }

    fn area(&self) -> Option<Area> {
        let start = NonNull::new(self.mapping.address() as *mut u8)?;
        // SAFETY: the mapping has the length of such an area, and what uses the result keeps the mapping.
        Some(unsafe { Area::new(start, self.ring) })
    }
}

/// The channel to the peer's engine, with what arrived there. All threads of the engine use it.
pub(super) struct PeerMemory {
    channel: Arc<dyn PeerChannel>,
    received: Mutex<Received>,
    /// A random number, from which the starts of counts follow.
    next_start: AtomicU64,
}

#[derive(Default)]
struct Received {
    areas: Vec<Weak<PeerArea>>,
    /// The offers that no connection has taken, with the time of their arrival.
    offers: Vec<(u64, Offer, Arc<PeerArea>)>,
}

impl PeerMemory {
    pub fn new(channel: Arc<dyn PeerChannel>, random: u64) -> Arc<Self> {
        Arc::new(Self { channel, received: Mutex::default(), next_start: AtomicU64::new(random) })
    }

    /// Takes the offer for the connection with this queue pair and token.
    fn take(&self, now: u64, queue_pair: u32, token: u64) -> Option<(Offer, Arc<PeerArea>)> {
        let mut received = lock(&self.received);
        // Further messages wait in the channel.
        let room = MOST_OFFERS - received.offers.len();
        for (message, descriptor) in std::iter::from_fn(|| self.channel.receive()).take(room) {
            received.add(now, &message, &descriptor);
        }
        let wanted = |(_, offer, _): &(u64, Offer, Arc<PeerArea>)| {
            (offer.queue_pair, offer.token) == (queue_pair, token)
        };
        let at = received.offers.iter().rposition(wanted)?;
        let (_, offer, area) = received.offers.swap_remove(at);
        Some((offer, area))
    }
}

impl Received {
    fn forget_old(&mut self, now: u64) {
        self.offers.retain(|&(at, ..)| now < at + OFFER_NS);
        self.areas.retain(|area| area.strong_count() > 0);
    }

    fn add(&mut self, now: u64, message: &[u8; PEER_MESSAGE], descriptor: &OwnedFd) {
        let Some(offer) = Offer::parse(message) else { return };
        let Ok(status) = rustix::fs::fstat(descriptor) else { return };
        let (file, ring) = ((status.st_dev, status.st_ino), offer.ring as usize);
        let known = self.areas.iter().filter_map(Weak::upgrade).find(|area| area.file == file);
        let area = match known {
            Some(area) if area.ring == ring => area,
            Some(_) => return,
            None => match PeerArea::map(descriptor, file, ring) {
                Ok(area) => {
                    let area = Arc::new(area);
                    self.areas.push(Arc::downgrade(&area));
                    area
                }
                Err(_) => return,
            },
        };
        self.offers.push((now, offer, area));
    }
}

/// Returns the connection of a socket.
fn stream_of(socket: &mut Socket) -> Option<&mut Stream> {
    match &mut socket.role {
        Role::Stream(stream) => Some(stream),
        _ => None,
    }
}

impl Engine {
    /// Accepts the rings that the peer's engine has shared, and shares that of the connection `unoffered`. One at a time, because each
    /// takes system calls.
    #[cold]
    pub(super) fn share_rings(&mut self, now: u64, unoffered: Option<Key>) {
        self.accept_stores(now);
        if let Some(key) = unoffered {
            self.offer_stores(key);
        }
    }

    /// Offers the peer's engine to store into the receive ring of a connection, if RDMA carries its data.
    fn offer_stores(&mut self, key: Key) {
        let Some(memory) = &self.slots.peer else { return };
        let Some(Socket {
            role: Role::Stream(stream),
            attachment: Attachment { pair: Pair::Stream(pair), .. },
            ..
        }) = self.stack.sockets.get_mut(key)
        else {
            return;
        };
        let Some(direct) = &mut pair.direct else { return };
        direct.offered = true;
        let (area, index) = (direct.location().0.clone(), direct.location().1);
        let (thread, slot) = (direct.thread(), direct.slot());
        let (Some(carrier), Some(file)) = (stream.carrier(), area.file()) else { return };
        let [_, peer] = carrier.connection.endpoints();
        let start = memory.next_start.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) & POSITION;
        let offer = Offer {
            queue_pair: peer.queue_pair,
            token: peer.token,
            start,
            ring: area.ring() as u32,
            slot: index as u32,
            thread: thread as u32,
        };
        if memory.channel.send(&offer.to_bytes(), file.as_fd()) {
            stream.open_stores(OwnRing::new(slot, area.clone(), start));
            self.stack.touch(key);
        }
    }

    /// Maps the receive rings that the peer's engine has shared, and lets the connections store there.
    fn accept_stores(&mut self, now: u64) {
        let Some(memory) = self.slots.peer.clone() else { return };
        lock(&memory.received).forget_old(now);
        for key in self.stack.take_shared() {
            let Some(stream) = self.stack.sockets.get_mut(key).and_then(stream_of) else { continue };
            let Some(carrier) = stream.carrier() else { continue };
            let [own, _] = carrier.connection.endpoints();
            let Some((offer, peer)) = memory.take(now, own.queue_pair, own.token) else { continue };
            let Some((area, slot)) =
                peer.area().and_then(|area| Some((area, area.slot(offer.slot as usize)?)))
            else {
                continue;
            };
            // SAFETY: the receive ring follows the send ring in the slot, and `peer` keeps both mapped.
            let ring = unsafe {
                let start = slot.rings().add(peer.ring) as u64;
                Region::from_raw(start, peer.ring, Location::Host, peer)
            };
            let (index, thread) = (offer.slot as usize, offer.thread as usize);
            let (ring, stored) = (ByteRing::shared(ring), offer.start);
            stream.store_into(
                now,
                PeerRing { ring, area, slot, index, thread, stored, check_at: None, busy_since: None },
            );
            self.stack.touch(key);
        }
    }
}
