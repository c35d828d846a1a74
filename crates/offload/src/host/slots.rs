//! Assigns slots of shared memory to connections, and looks at the slots that need the engine: a program has rung the
//! doorbell after a send, or has taken received bytes.

use super::Engine;
use super::area::{Polled, SharedArea};
use super::control::{Client, Request};
use super::direct::Direct;
use super::memory::allocate_ring;
use super::peer::PeerMemory;
use super::permits::is_trusted;
use super::reply::{Refusal, Reply};
use super::socket::{Attachment, Pair, Socket, Stack};
use crate::lock;
use crate::stack::arena::Key;
use crate::stack::ring::ByteRing;
use crate::stack::socket::Role;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::slots::Area;
use inlane_tcp::State;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

/// The most areas that the engine shares with all processes together. This limits the engine's memory.
const MOST_AREAS: usize = 256;
/// The most shared areas of one process.
const MOST_AREAS_OF_PROCESS: usize = 2;
/// How long a connection must leave its slot unused, in nanoseconds, before another one may get the slot.
const UNUSED_NS: u64 = 1_000_000_000;

/// The interval at which the engine tells TCP of all bytes that programs have taken, in nanoseconds. Between these checks, it
/// looks for much data.
const CHECK_NS: u64 = 100_000;

/// If at most this many connections have received bytes in shared memory, the engine tells TCP at once of each byte that a
/// program has taken. With more, it saves work and does so later.
const FEW: usize = 4;

/// The interval at which the engine writes the time into shared memory, in nanoseconds.
const BEAT_NS: u64 = 1_000_000;

/// The slots of a thread's connections, and the existing areas of shared memory.
#[derive(Default)]
pub(super) struct Slots {
    /// The areas with slots of this thread's connections.
    polled: Vec<Polled>,
    /// The connections that had bytes in the receive ring when the engine last looked.
    receiving: Vec<Key>,
    /// When to check all of `receiving` next, in nanoseconds.
    check_at: u64,
    /// When to write the time into the areas next, in nanoseconds.
    beat_at: u64,
    /// The shared areas of all threads.
    areas: Arc<Mutex<Vec<Weak<SharedArea>>>>,
    /// The channel to the peer's engine, if data may be stored into its memory.
    pub peer: Option<Arc<PeerMemory>>,
    /// A connection whose receive ring can be shared with the peer's engine.
    unoffered: Option<Key>,
}

impl Slots {
    /// Returns the empty lists of another thread of the engine. The list of areas is shared, because the limits count the areas
    /// of all threads.
    pub fn share(&self) -> Self {
        Self { areas: self.areas.clone(), peer: self.peer.clone(), ..Self::default() }
    }

    /// Returns the area in the list of polled ones, after it was added if necessary.
    fn poll(&mut self, area: &Arc<SharedArea>, thread: usize) -> Polled {
        let known = self.polled.iter().find(|polled| Arc::ptr_eq(polled.area(), area));
        known.cloned().unwrap_or_else(|| {
            let polled = Polled::new(area, thread);
            area.area().doorbell(thread).beat(monotonic_ns());
            self.polled.push(polled.clone());
            polled
        })
    }

    /// Writes the time into all areas: this thread is awake.
    fn beat(&self) {
        let now = monotonic_ns();
        for polled in &self.polled {
            polled.area().area().doorbell(polled.thread()).beat(now);
        }
    }
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds. All processes share this clock.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns true if a user who has `own` of `all` things may have one more, of which there are at most `most`. A user may have at
/// most as many as are free, so each further user gets a share. Root and the engine's own user may have all.
fn has_share(user: u32, own: usize, all: usize, most: usize) -> bool {
    let free = most.saturating_sub(all);
    own < free || free > 0 && is_trusted(user)
}

/// Returns the slot of a connection.
fn direct_of(stack: &mut Stack, key: Key) -> Option<&mut Direct> {
    match stack.sockets.get_mut(key) {
        Some(Socket { attachment: Attachment { pair: Pair::Stream(pair), .. }, .. }) => {
            pair.direct.as_deref_mut()
        }
        _ => None,
    }
}

impl Engine {
    /// Returns true if programs may use shared memory. Shared memory needs an engine that polls for some time
    /// before it sleeps. Most sends find an engine asleep that sleeps as soon as it has no work.
    fn shares_memory(&self) -> bool {
        !self.settings.spin.is_zero() && self.settings.buffer <= Area::MOST_RING
    }

    /// Returns how long programs should poll before they sleep, in microseconds.
    pub(super) fn spin_us(&self) -> i32 {
        self.settings.spin.as_micros().min(1000) as i32
    }

    /// Processes a request for a slot: assigns a slot to the connection, in the memory that is shared with
    /// the client. A request without a connection asks only for the memory.
    pub(super) fn adopt(&mut self, now: u64, request: &Request) -> Reply {
        if !self.shares_memory() {
            return Err(Refusal::Errno(libc::EOPNOTSUPP));
        }
        let mut reply = Message::new(Operation::Adopt);
        (reply.name, reply.level) = (self.spin_us(), self.settings.buffer as i32);
        let Some(fd) = &request.attached else {
            return self.area(request).map(|(_, file)| (reply, file.map(Arc::new)));
        };
        let key = self.attached(request)?;
        // Check the connection first, because a refusal brings no descriptor of a new area.
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        let (Role::Stream(stream), Pair::Stream(pair)) = (&socket.role, &socket.attachment.pair) else {
            return Err(Refusal::Errno(libc::EINVAL));
        };
        let open = matches!(stream.connection.state(), State::Established | State::CloseWait);
        let moves = pair.direct.is_some() || !stream.is_reassembling();
        if !open || !moves || pair.program_finished || pair.filled.is_some() {
            return Err(Refusal::Errno(libc::EAGAIN));
        }
        let has_slot = pair.direct.is_some();
        let (area, file) = self.area(request)?;
        if !has_slot {
            if area.is_full() {
                self.evict(now, &area);
            }
            let status = rustix::fs::fstat(fd).map_err(std::io::Error::from)?;
            let inode = (status.st_ino, status.st_dev);
            self.assign(now, key, &area, inode, false, None).ok_or(libc::ENOBUFS)?;
        }
        let (owner, index) = direct_of(&mut self.stack, key).ok_or(libc::ENOBUFS)?.location();
        if !Arc::ptr_eq(owner, &area) {
            return Err(Refusal::Errno(libc::EBUSY));
        }
        reply.number = index as i32;
        self.stack.touch(key);
        Ok((reply, file.map(Arc::new)))
    }

    /// Gives a new connection a slot of a client's area from the start, if the client wants it. `program` is the program's end of
    /// the pair. The pair is empty.
    pub(super) fn give_slot(&mut self, now: u64, key: Key, client: &Weak<Client>, program: &OwnedFd) {
        let Some(client) = client.upgrade() else { return };
        let area = lock(&client.area).clone();
        if let Some(area) = area.filter(|area| area.gives_slots())
            && let Ok(status) = rustix::fs::fstat(program)
        {
            self.assign(now, key, &area, (status.st_ino, status.st_dev), true, None);
        }
    }

    /// Assigns a slot of an area to a connection without one, and makes the slot's rings those of the connection. `inode` are the inode
    /// and the device of the program's end of the pair. If `from_start` is true, this pair is empty. `reserved` is the slot of a kept
    /// pair. Returns `None` if no slot is free.
    pub(super) fn assign(
        &mut self,
        now: u64,
        key: Key,
        area: &Arc<SharedArea>,
        inode: (u64, u64),
        from_start: bool,
        reserved: Option<usize>,
    ) -> Option<()> {
        let polled = self.slots.poll(area, self.stack.thread);
        let Some(Socket {
            role: Role::Stream(stream),
            options,
            attachment: Attachment { id, pair: Pair::Stream(pair), .. },
            ..
        }) = self.stack.sockets.get_mut(key)
        else {
            return None;
        };
        if stream.is_reassembling() {
            return None;
        }
        let mut direct = Direct::new(now, polled, (key, *id), inode, stream.written, from_start, reserved)?;
        if !pair.unaccepted {
            direct.note_accepted(*id);
        }
        let written = [stream.written, stream.connection.received()];
        let unused = stream.replace_rings(direct.rings());
        let limit = options.send_limit(stream.send.capacity()) as u64;
        direct.publish(stream.connection.acknowledged(), limit);
        pair.direct = Some(Box::new(direct));
        self.stack.put_rings(unused, written);
        Some(())
    }

    /// Makes the slot of a connection, if it has one, that of this thread. The connection has moved here while it is being established.
    pub(super) fn move_slot(&mut self, key: Key) {
        let thread = self.stack.thread;
        if let Some(direct) = direct_of(&mut self.stack, key) {
            let polled = self.slots.poll(direct.location().0, thread);
            direct.move_to(polled, key);
        }
    }

    /// Takes a slot of a full area from a connection that has not used it for [`UNUSED_NS`], so that a busier connection can
    /// get it. Its bytes go through the pair from then on. Takes none if every connection uses its slot.
    fn evict(&mut self, now: u64, area: &Arc<SharedArea>) {
        let unused = |(key, socket): (Key, &Socket)| {
            let Pair::Stream(pair) = &socket.attachment.pair else { return None };
            // The record of a connection over a kept pair names the slot. A program that opens one learns by the slot that it is
            // established.
            let fixed = pair.filled.is_some() || pair.reused.is_some() && pair.unaccepted;
            let direct = pair.direct.as_ref().filter(|_| !fixed)?;
            let movable = socket.stream().is_some_and(|stream| !stream.is_reassembling());
            (Arc::ptr_eq(direct.location().0, area) && direct.is_unused(now, UNUSED_NS) && movable)
                .then_some(key)
        };
        let Some(key) = self.stack.sockets.iter().find_map(unused) else { return };
        let Some(Socket {
            role: Role::Stream(stream),
            attachment: Attachment { pair: Pair::Stream(pair), .. },
            ..
        }) = self.stack.sockets.get_mut(key)
        else {
            return;
        };
        if let Some(direct) = &mut pair.direct
            && direct.forbid_publishing(now, stream)
        {
            // The program may have taken bytes that this engine has not counted yet.
            return self.stack.touch(key);
        }
        let capacity = stream.send.capacity();
        if let (Some(direct), Some(send), Some(receive)) =
            (&mut pair.direct, allocate_ring(capacity), allocate_ring(capacity))
            && direct.uncollected() == 0
            && stream.close_stores(now)
            && direct.close()
        {
            stream.replace_rings([send, receive].map(ByteRing::new));
            pair.direct_before += direct.bytes();
            pair.direct = None;
            self.stack.touch(key);
        }
    }

    /// Returns the shared area of the client that sent `request`. Also returns the area's memfd if the area is
    /// new.
    fn area(&mut self, request: &Request) -> Result<(Arc<SharedArea>, Option<OwnedFd>), Refusal> {
        let mut own = lock(&request.client.area);
        match (&*own, request.message.number) {
            (Some(area), 1) => return Ok((area.clone(), None)),
            (None, 0) => {}
            _ => return Err(Refusal::Errno(libc::EINVAL)),
        }
        let mut areas = lock(&self.slots.areas);
        areas.retain(|area| area.strong_count() > 0);
        let of_process =
            areas.iter().filter_map(Weak::upgrade).filter(|area| area.process == request.process);
        if of_process.count() >= MOST_AREAS_OF_PROCESS {
            return Err(Refusal::Errno(libc::ENOBUFS));
        }
        let of_user = areas.iter().filter_map(Weak::upgrade).filter(|area| area.user == request.user);
        if !has_share(request.user, of_user.count(), areas.len(), MOST_AREAS) {
            return Err(Refusal::Errno(libc::ENOBUFS));
        }
        let (mut area, file) = SharedArea::new(request.process, request.user, self.settings.buffer)?;
        if self.slots.peer.is_some() {
            area.keep_file(&file)?;
        }
        let area = Arc::new(area);
        areas.push(Arc::downgrade(&area));
        *own = Some(area.clone());
        Ok((area, Some(file)))
    }

    /// Returns true if programs of this thread's connections may use shared memory now.
    pub(super) fn has_slots(&self) -> bool {
        !self.slots.polled.is_empty()
    }

    /// Adds a connection to the list of those with bytes in the receive ring, if it has some.
    pub(super) fn note_received(&mut self, now: u64, key: Key) {
        if let Some(direct) = direct_of(&mut self.stack, key)
            && direct.has_untaken()
        {
            if self.slots.unoffered.is_none() && direct.may_offer(now) {
                self.slots.unoffered = Some(key);
            }
            if !std::mem::replace(&mut direct.listed, true) {
                self.slots.receiving.push(key);
            }
        }
    }

    /// Marks the connections as changed whose programs have sent or received through shared memory. Returns true if there are
    /// any.
    pub(super) fn poll_slots(&mut self, now: u64) -> bool {
        let all = now >= self.slots.check_at;
        if all {
            self.slots.check_at = now + CHECK_NS;
            self.slots.polled.retain(Polled::is_used);
            if now >= self.slots.beat_at {
                self.slots.beat_at = now + BEAT_NS;
                self.slots.beat();
            }
        }
        let mut worked = false;
        let Slots { polled, receiving, peer, .. } = &mut self.slots;
        for polled in polled {
            let mut rung = polled.area().area().doorbell(polled.thread()).answer();
            worked |= rung != 0;
            while rung != 0 {
                let index = rung.trailing_zeros() as usize;
                rung &= rung - 1;
                let key = polled.area().key(index);
                let here = |direct: &mut Direct| direct.is_at(polled.area(), index);
                // A hostile program may set any bit.
                let Some(direct) = direct_of(&mut self.stack, key) else { continue };
                if here(direct) {
                    if direct.offered {
                        self.stack.process_stores(now, key);
                    }
                    self.stack.touch(key);
                }
            }
        }
        let shares = all && peer.is_some();
        let all = all || receiving.len() <= FEW;
        receiving.retain(|&key| {
            let Some(direct) = direct_of(&mut self.stack, key) else { return false };
            direct.listed = direct.has_untaken();
            let listed = direct.listed;
            if direct.has_receive_work(now, all) {
                worked = true;
                self.stack.touch(key);
            }
            listed
        });
        if shares {
            let unoffered = self.slots.unoffered.take();
            self.share_rings(now, unoffered);
        }
        worked
    }

    /// Tells programs that this thread falls asleep. Returns false if it must not sleep yet, because a program has sent bytes
    /// through shared memory, or has not taken received bytes. Then call [`Engine::leaves_sleep`].
    pub(super) fn falls_asleep_beside_programs(&self) -> bool {
        let falls_asleep = |polled: &Polled| polled.area().area().doorbell(polled.thread()).falls_asleep();
        self.slots.receiving.is_empty() && self.slots.polled.iter().all(falls_asleep)
    }

    /// Tells programs that this thread is awake.
    pub(super) fn leaves_sleep(&self) {
        self.slots.beat();
    }
}

#[cfg(test)]
mod tests;
