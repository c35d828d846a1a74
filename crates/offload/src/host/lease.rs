//! The list of connections whose programs may use shared memory now. Also processes the requests of programs
//! for a slot of shared memory.

use super::Engine;
use super::area::SharedArea;
use super::control::Request;
use super::direct::{Direct, Turn, Watch};
use super::memory::allocate_ring;
use super::open::is_trusted;
use super::request::{Refusal, Reply};
use super::socket::{Attachment, Pair, Socket, Stack};
use crate::lock;
use crate::stack::arena::Key;
use crate::stack::ring::ByteRing;
use crate::stack::socket::Role;
use inlane_offload_protocol::lease::Area;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_tcp::State;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

/// The most areas that the engine shares with all processes together. This limits the engine's memory.
const MOST_AREAS: usize = 256;
/// The most shared areas of one process.
const MOST_AREAS_OF_PROCESS: usize = 2;
/// The most leases at once. The limit is needed because the engine checks each lease in every round.
const MOST_LEASES: usize = 128;

/// How long a connection must leave its slot unused, in nanoseconds, before another one may get the slot.
const UNUSED_NS: u64 = 1_000_000_000;

/// The interval at which the engine checks all leases, in nanoseconds. Between these checks, it looks only at
/// leases that have bytes in the receive ring or a changed send word.
const CHECK_NS: u64 = 100_000;

/// With at most this many leases, the engine tells TCP at once of each byte that a program has taken. With more leases, it
/// saves work and does so later.
const FEW_LEASES: usize = 4;

/// A connection whose program may use shared memory now.
struct Listed {
    key: Key,
    watch: Watch,
    /// The user of the program.
    user: u32,
    /// True if the receive ring had bytes for the program when the engine last checked the connection. The
    /// program may have taken them since.
    untaken: bool,
}

/// The leases, and the existing areas of shared memory.
#[derive(Default)]
pub(super) struct Leases {
    listed: Vec<Listed>,
    /// When to check all leases next, in nanoseconds.
    check_at: u64,
    /// The shared areas of all threads.
    areas: Arc<Mutex<Vec<Weak<SharedArea>>>>,
}

impl Leases {
    /// Returns an empty list of leases for another thread of the engine. Both lists share the list of memory
    /// areas, because the limits count the areas of all threads.
    pub fn share(&self) -> Self {
        Self { listed: Vec::new(), check_at: 0, areas: self.areas.clone() }
    }
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
    /// before it sleeps. An engine that sleeps at once when it has no work would end each lease at once.
    fn leases(&self) -> bool {
        !self.settings.spin.is_zero() && self.settings.buffer <= Area::MOST_RING
    }

    /// Returns how long programs should poll before they sleep, in microseconds.
    pub(super) fn spin_us(&self) -> i32 {
        self.settings.spin.as_micros().min(1000) as i32
    }

    /// Processes a request for a slot: assigns a slot to the connection, in the memory that is shared with
    /// the client.
    pub(super) fn adopt(&mut self, now: u64, request: &Request) -> Reply {
        if !self.leases() {
            return Err(Refusal::Errno(libc::EOPNOTSUPP));
        }
        let key = self.attached(request)?;
        let fd = request.attached.as_ref().ok_or(libc::EBADF)?;
        let status = rustix::fs::fstat(fd).map_err(|error| error.raw_os_error())?;
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
        if !has_slot && area.is_full() {
            self.evict(now, &area);
        }
        let Some(Socket {
            role: Role::Stream(stream),
            options,
            attachment: Attachment { pair: Pair::Stream(pair), .. },
            ..
        }) = self.stack.sockets.get_mut(key)
        else {
            return Err(Refusal::Errno(libc::EBADF));
        };
        let mut unused = None;
        if pair.direct.is_none() {
            let mut direct = Direct::new(now, &area, status.st_ino, status.st_dev).ok_or(libc::ENOBUFS)?;
            let written = [stream.written, stream.connection.received()];
            unused = Some((stream.replace_rings(direct.rings()), written));
            let limit = options.send_limit(stream.send.capacity()) as u64;
            direct.publish(stream.written, stream.connection.acknowledged(), limit);
            pair.direct = Some(Box::new(direct));
        }
        let direct = pair.direct.as_ref().ok_or(libc::ENOBUFS)?;
        let (owner, index) = direct.location();
        if !Arc::ptr_eq(owner, &area) {
            return Err(Refusal::Errno(libc::EBUSY));
        }
        let mut reply = Message::new(Operation::Adopt);
        reply.number = index as i32;
        reply.name = self.spin_us();
        reply.level = self.settings.buffer as i32;
        if let Some((rings, written)) = unused {
            self.stack.put_rings(rings, written);
        }
        self.stack.touch(key);
        Ok((reply, file.map(Arc::new)))
    }

    /// Takes a slot of a full area from a connection that has not used it for [`UNUSED_NS`], so that a busier connection can
    /// get it. Its bytes go through the pair from then on. Takes none if every connection uses its slot.
    fn evict(&mut self, now: u64, area: &Arc<SharedArea>) {
        let unused = |(key, socket): (Key, &Socket)| {
            let Pair::Stream(pair) = &socket.attachment.pair else { return None };
            let direct = pair.direct.as_ref()?;
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
        let capacity = stream.send.capacity();
        if let (Some(direct), Some(send), Some(receive)) =
            (&mut pair.direct, allocate_ring(capacity), allocate_ring(capacity))
            && direct.end_lease(now) == Ok(Turn::Pair)
        {
            stream.replace_rings([send, receive].map(ByteRing::new));
            pair.direct_before += direct.moved();
            pair.direct = None;
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
        let mut areas = lock(&self.leases.areas);
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
        let (area, file) = SharedArea::new(request.process, request.user, self.settings.buffer)?;
        let area = Arc::new(area);
        areas.push(Arc::downgrade(&area));
        *own = Some(area.clone());
        Ok((area, Some(file)))
    }

    /// Returns true if the list of leases contains a connection. The program of such a connection may use
    /// shared memory now.
    pub(super) fn has_leases(&self) -> bool {
        !self.leases.listed.is_empty()
    }

    /// Adds a connection to the list of leases. If `grants` is true, also lets the program send through
    /// shared memory. If the list is full, adds the connection only if its receive ring has bytes for the program.
    pub(super) fn list_lease(&mut self, now: u64, key: Key, grants: bool) {
        let Some(direct) = direct_of(&mut self.stack, key) else { return };
        let (listed, untaken) = (&mut self.leases.listed, direct.has_untaken());
        match direct.listed {
            Some(index) => {
                if let Some(listed) = listed.get_mut(index) {
                    listed.untaken = untaken;
                }
            }
            None if !untaken
                && !has_share(
                    direct.user(),
                    listed.iter().filter(|one| one.user == direct.user()).count(),
                    listed.len(),
                    MOST_LEASES,
                ) =>
            {
                return;
            }
            None => {
                direct.listed = Some(listed.len());
                listed.push(Listed { key, watch: direct.watch(), user: direct.user(), untaken });
            }
        }
        if grants {
            direct.grant(now);
        }
    }

    /// Checks the shared memory of all leases for work. Returns true if there is work. Ends leases that were
    /// not used for 1 ms. If `sleeps` is true, the engine is about to sleep, so this ends all leases without
    /// work.
    pub(super) fn poll_leases(&mut self, now: u64, sleeps: bool) -> bool {
        let all = sleeps || now >= self.leases.check_at;
        if all {
            self.leases.check_at = now + CHECK_NS;
        }
        let few = self.leases.listed.len() <= FEW_LEASES;
        let mut worked = false;
        let mut index = 0;
        while let Some(listed) = self.leases.listed.get_mut(index) {
            let changed = listed.watch.has_changed();
            if !(changed || listed.untaken || all) {
                index += 1;
                continue;
            }
            let key = listed.key;
            let Some(direct) = direct_of(&mut self.stack, key) else {
                self.unlist(index);
                continue;
            };
            listed.untaken = direct.has_untaken();
            direct.refresh(now);
            let mut work = direct.has_work(now, all || few);
            if !work && !direct.has_untaken() && (sleeps || direct.is_idle(now)) {
                match direct.end_lease(now) {
                    Ok(Turn::Pair) => {
                        direct.listed = None;
                        self.unlist(index);
                        continue;
                    }
                    Ok(Turn::Claimed) => {}
                    Ok(_) | Err(_) => work = true,
                }
            }
            if work {
                worked = true;
                self.stack.touch(key);
            }
            index += 1;
        }
        worked
    }

    /// Removes the entry at `index` from the list of leases, and moves the last entry into the gap.
    fn unlist(&mut self, index: usize) {
        self.leases.listed.swap_remove(index);
        if let Some(moved) = self.leases.listed.get(index)
            && let Some(direct) = direct_of(&mut self.stack, moved.key)
        {
            direct.listed = Some(index);
        }
    }

    /// Ends all leases of shared memory before the engine sleeps. Returns false if the engine must not sleep
    /// yet. This is so if a program has committed bytes, holds a claim, or has not taken received bytes.
    pub(super) fn end_leases(&mut self, now: u64) -> bool {
        !self.poll_leases(now, true) && self.leases.listed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::super::tests::Bench;
    use super::*;
    use inlane_offload_protocol::lease::SLOTS;
    use inlane_offload_protocol::name::SOCKET_LEN;
    use std::os::fd::AsRawFd;

    #[test]
    fn each_user_gets_a_share() {
        let (first, second) = (70_001, 70_002);
        let most_of = |user, others| (0..).find(|&own| !has_share(user, own, own + others, 128)).unwrap();
        assert_eq!((most_of(first, 0), most_of(second, 64)), (64, 32));
        assert_eq!((most_of(0, 0), most_of(0, 100)), (128, 28));
    }

    /// A program has more connections than slots, and the first ones are idle.
    #[test]
    fn an_idle_connection_gives_its_slot_to_a_busy_one() {
        let mut bench = Bench::polling(400);
        bench.user = 0;
        let listener = bench.listening("127.0.0.1:8080");
        let program = bench.client(1);
        let mut ends = Vec::new();
        let mut adopt = |bench: &mut Bench, has_area| {
            let client = bench.connecting("127.0.0.1:8080").1.unwrap();
            bench.turn();
            let mut record = [0; SOCKET_LEN];
            let server = pair::receive_descriptor(listener.as_raw_fd(), &mut record).unwrap().1.unwrap();
            let mut message = Message::new(Operation::Adopt);
            message.number = i32::from(has_area);
            let reply = bench.ask_over(&program, message, client.try_clone().unwrap());
            // Each use of a connection prolongs the time for which it keeps its slot.
            ends.push((client, server));
            for (client, _) in &ends {
                pair::send(client.as_raw_fd(), b"x", &[]).unwrap();
            }
            bench.turn();
            reply.status
        };
        for index in 0..SLOTS {
            assert_eq!(adopt(&mut bench, index > 0), 0);
        }
        assert_eq!(adopt(&mut bench, true), libc::ENOBUFS, "all connections have just got their slots");
        bench.now += 2 * UNUSED_NS;
        assert_eq!(adopt(&mut bench, true), 0);
        let slots = |bench: &Bench| {
            let pairs = bench.engine.stack.sockets.iter().map(|(_, socket)| &socket.attachment.pair);
            pairs.filter(|pair| matches!(pair, Pair::Stream(pair) if pair.direct.is_some())).count()
        };
        assert_eq!(slots(&bench), SLOTS);
        // All connections still carry data.
        for (client, server) in &ends {
            pair::send(client.as_raw_fd(), b"there", &[]).unwrap();
            pair::send(server.as_raw_fd(), b"back", &[]).unwrap();
        }
        bench.turn();
        for (client, server) in &ends {
            let mut bytes = [0; 256];
            let len = pair::receive(server.as_raw_fd(), &mut bytes).unwrap();
            assert!(bytes[..len].ends_with(b"xthere"), "{:?}", &bytes[..len]);
            assert_eq!(pair::receive(client.as_raw_fd(), &mut bytes).unwrap(), 4);
        }
    }
}
