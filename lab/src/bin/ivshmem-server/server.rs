//! Serves QEMU's ivshmem devices by the ivshmem server protocol.
//!
//! Every message is one little-endian `i64`, with or without a file descriptor. Source: QEMU, "Device
//! Specification for Inter-VM shared memory device", section *Protocol*. A new peer receives
//!
//! ```text
//! 0                   the version
//! its number          no descriptor
//! -1                  + the shared memory
//! n        V times    + eventfds that interrupt peer n, one per vector; for each connected peer n
//! its number V times  + eventfds of its own interrupts
//! ```
//!
//! The other peers receive the new peer's number V times, each with one of its eventfds. When a peer leaves,
//! the other peers receive its number without a descriptor. Peers send nothing.
//!
//! One thread serves all peers and never blocks on one of them. A peer is disconnected if its socket is full,
//! or if it sends anything. A new peer gets the lowest free number. So two machines have the numbers 0 and 1,
//! even after one restarts.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, read};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

const VERSION: i64 = 0;
const SHARED_MEMORY: i64 = -1;

/// What happened, for the server's log: a peer joined or left, or a connection was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer joined.
    Joined(u16),
    /// A peer left, or was disconnected for the given reason.
    Left(u16, String),
    /// A connection was refused for the given reason.
    Refused(String),
}

struct Peer {
    stream: UnixStream,
    interrupts: Vec<OwnedFd>,
}

/// The server: a listening socket, the shared memory and the connected peers.
pub struct Server {
    listener: UnixListener,
    memory: OwnedFd,
    vectors: u16,
    most: u16,
    peers: BTreeMap<u16, Peer>,
}

impl Server {
    /// Creates a server that shares `bytes` of memory between at most `most` peers, each with `vectors`
    /// interrupts.
    ///
    /// # Errors
    /// If the system refuses the memory, or the socket cannot be made non-blocking.
    pub fn new(listener: UnixListener, bytes: u64, vectors: u16, most: u16) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let memory = memfd_create("ivshmem", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, bytes)?;
        Ok(Self { listener, memory, vectors, most, peers: BTreeMap::new() })
    }

    /// Returns the number of connected peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Waits until a peer joins or leaves, or `wake` becomes readable. Waits for at most `limit`, or without
    /// limit if it is `None`. Returns the events.
    ///
    /// # Errors
    /// If waiting fails. An error of one peer only disconnects this peer.
    pub fn step(&mut self, limit: Option<Duration>, wake: Option<BorrowedFd<'_>>) -> io::Result<Vec<Event>> {
        let numbers: Vec<u16> = self.peers.keys().copied().collect();
        let mut watched: Vec<PollFd<'_>> =
            self.peers.values().map(|peer| PollFd::new(&peer.stream, PollFlags::IN)).collect();
        watched.push(PollFd::new(&self.listener, PollFlags::IN));
        watched.extend(wake.map(|wake| PollFd::from_borrowed_fd(wake, PollFlags::IN)));
        let limit = limit.and_then(|limit| limit.try_into().ok());
        match poll(&mut watched, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let active: Vec<u16> = numbers
            .into_iter()
            .zip(&watched)
            .filter(|(_, watched)| !watched.revents().is_empty())
            .map(|(n, _)| n)
            .collect();
        let connection_waits = !watched[self.peers.len()].revents().is_empty();

        let mut events = Vec::new();
        // Remove the peers that have left before adding a new peer. The new peer may get the number of a peer
        // that has left.
        for number in active {
            if let Some(why) = self.peers.get(&number).and_then(Peer::reason_gone) {
                self.remove(number, why, &mut events);
            }
        }
        if connection_waits {
            match self.listener.accept() {
                Ok((stream, _)) => self.join(stream, &mut events),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The process is out of descriptors or memory. Sleep before the next attempt, because the
                // connection stays pending and the loop would be busy.
                Err(error) => {
                    events.push(Event::Refused(error.to_string()));
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        Ok(events)
    }

    fn join(&mut self, stream: UnixStream, events: &mut Vec<Event>) {
        let Some(number) = (0..self.most).find(|n| !self.peers.contains_key(n)) else {
            events.push(Event::Refused(format!("{} peers are connected already", self.most)));
            return;
        };
        let peer = match Peer::new(stream, self.vectors) {
            Ok(peer) => peer,
            Err(error) => return events.push(Event::Refused(error.to_string())),
        };
        if let Err(error) = self.greet(number, &peer) {
            return events.push(Event::Refused(format!("cannot send the greeting: {error}")));
        }
        let mut lost = Vec::new();
        for (&other, their) in &self.peers {
            if let Err(error) = their.introduce(number, &peer.interrupts) {
                lost.push((other, error));
            }
        }
        self.peers.insert(number, peer);
        events.push(Event::Joined(number));
        for (other, error) in lost {
            self.remove(other, format!("it does not read its messages: {error}"), events);
        }
    }

    fn greet(&self, number: u16, peer: &Peer) -> io::Result<()> {
        peer.send(VERSION, None)?;
        peer.send(number.into(), None)?;
        peer.send(SHARED_MEMORY, Some(self.memory.as_fd()))?;
        for (&other, their) in &self.peers {
            peer.introduce(other, &their.interrupts)?;
        }
        peer.introduce(number, &peer.interrupts)
    }

    /// Removes a peer and notifies the other peers. A peer that cannot be notified is removed, too.
    fn remove(&mut self, number: u16, why: String, events: &mut Vec<Event>) {
        let mut leaving = vec![(number, why)];
        while let Some((number, why)) = leaving.pop() {
            if self.peers.remove(&number).is_none() {
                continue;
            }
            events.push(Event::Left(number, why));
            for (&other, peer) in &self.peers {
                if let Err(error) = peer.send(number.into(), None) {
                    leaving.push((other, format!("it does not read its messages: {error}")));
                }
            }
        }
    }
}

impl Peer {
    fn new(stream: UnixStream, vectors: u16) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let interrupts = (0..vectors).map(|_| Ok(eventfd(0, flags)?)).collect::<io::Result<_>>()?;
        Ok(Self { stream, interrupts })
    }

    /// Returns the reason for disconnecting the peer, or `None` if it stays connected.
    fn reason_gone(&self) -> Option<String> {
        match read(&self.stream, &mut [0u8; 8]) {
            Ok(0) => Some("it closed the connection".into()),
            Ok(_) => Some("it sent a message, which peers must not do".into()),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    fn introduce(&self, number: u16, interrupts: &[OwnedFd]) -> io::Result<()> {
        interrupts.iter().try_for_each(|interrupt| self.send(number.into(), Some(interrupt.as_fd())))
    }

    fn send(&self, value: i64, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("the control buffer has no room for a descriptor"));
        }
        let bytes = value.to_le_bytes();
        match sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)? {
            8 => Ok(()),
            // If sendmsg sent only a part of a message, the socket is almost full. The caller then
            // disconnects the peer.
            sent => Err(io::Error::other(format!("only {sent} of 8 bytes were sent"))),
        }
    }
}
