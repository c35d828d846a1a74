//! The protocol: who is told what, and when.
//!
//! Every message is one little-endian `i64`, with or without a file descriptor (QEMU, "Device Specification for
//! Inter-VM shared memory device", *Protocol*). A peer that connects gets
//!
//! ```text
//! 0                   the version
//! its number          no descriptor
//! -1                  + the shared memory
//! n        V times    + eventfds that interrupt peer n, one a vector; for each peer that is there
//! its number V times  + eventfds that are its own interrupts
//! ```
//!
//! and the others get the new peer's number V times with its eventfds. When a peer goes, the others get its number
//! without a descriptor. Peers send nothing.
//!
//! One thread serves all; no peer can hold it up: a peer whose socket is full, or that sends anything, is dropped as if
//! it had gone. Numbers are the lowest that is free, so that of two machines one is 0 and the other 1 whatever restarts.

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

/// What happened, for the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer came.
    Joined(u16),
    /// A peer went, or was dropped for the reason given.
    Left(u16, String),
    /// A connection was refused for the reason given.
    Refused(String),
}

struct Peer {
    stream: UnixStream,
    interrupts: Vec<OwnedFd>,
}

/// The server: a listening socket, the shared memory, the peers that are there.
pub struct Server {
    listener: UnixListener,
    memory: OwnedFd,
    vectors: u16,
    most: u16,
    peers: BTreeMap<u16, Peer>,
}

impl Server {
    /// Serves `bytes` of shared memory and `vectors` interrupts each to at most `most` peers.
    ///
    /// # Errors
    /// When the system gives no memory, or the socket cannot be made non-blocking.
    pub fn new(listener: UnixListener, bytes: u64, vectors: u16, most: u16) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let memory = memfd_create("ivshmem", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, bytes)?;
        Ok(Self { listener, memory, vectors, most, peers: BTreeMap::new() })
    }

    /// How many peers are there.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Waits at most `limit` (`None`: for ever) for a peer to come or go, or for `wake` to become readable; says what
    /// happened.
    ///
    /// # Errors
    /// Only when waiting itself fails; what a peer does wrong ends that peer.
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
        let stirred: Vec<u16> = numbers
            .into_iter()
            .zip(&watched)
            .filter(|(_, watched)| !watched.revents().is_empty())
            .map(|(n, _)| n)
            .collect();
        let knocked = !watched[self.peers.len()].revents().is_empty();

        let mut events = Vec::new();
        // Those who went come first: their numbers are free for those who come.
        for number in stirred {
            if let Some(why) = self.peers.get(&number).and_then(Peer::gone) {
                self.remove(number, why, &mut events);
            }
        }
        if knocked {
            match self.listener.accept() {
                Ok((stream, _)) => self.join(stream, &mut events),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Out of descriptors or memory: the knock stays; do not spin on it.
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
            events.push(Event::Refused(format!("{} peers are there already", self.most)));
            return;
        };
        let peer = match Peer::new(stream, self.vectors) {
            Ok(peer) => peer,
            Err(error) => return events.push(Event::Refused(error.to_string())),
        };
        if let Err(error) = self.greet(number, &peer) {
            return events.push(Event::Refused(format!("cannot greet it: {error}")));
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
            self.remove(other, format!("does not read: {error}"), events);
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

    /// Forgets a peer and tells the others; those that cannot be told go likewise.
    fn remove(&mut self, number: u16, why: String, events: &mut Vec<Event>) {
        let mut leaving = vec![(number, why)];
        while let Some((number, why)) = leaving.pop() {
            if self.peers.remove(&number).is_none() {
                continue;
            }
            events.push(Event::Left(number, why));
            for (&other, peer) in &self.peers {
                if let Err(error) = peer.send(number.into(), None) {
                    leaving.push((other, format!("does not read: {error}")));
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

    /// Why the peer is no longer one, if so.
    fn gone(&self) -> Option<String> {
        match read(&self.stream, &mut [0u8; 8]) {
            Ok(0) => Some("closed".into()),
            Ok(_) => Some("sent something, which no peer does".into()),
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
            return Err(io::Error::other("no space for a descriptor"));
        }
        let bytes = value.to_le_bytes();
        match sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)? {
            // A part of eight bytes goes only into a socket that is as good as full.
            8 => Ok(()),
            sent => Err(io::Error::other(format!("{sent} bytes of 8 went"))),
        }
    }
}
