//! Channels. With them, threads of one PE can run collectives of different teams at the same time. Each
//! channel has its own notifications, its own part of the PE's workspace, and its own lock.
//!
//! ```text
//! a PE's workspace, at the start of its symmetric memory
//! basic part   128 bytes for each PE: at +0 a number that it sends, at +64 whether it leaves (module `wait`). Then a
//!              chunk for each PE. Collectives without a channel use it.
//! fixed place  the place of one channel, at the same offset on all PEs
//! arena        the places of all other channels
//!
//! a place      128 bytes for each PE of the channel: at +0 how many notifications the PE has sent, at +64 a
//!              number that it sends. Then come chunks, one for each level of a binomial tree.
//! ```
//!
//! To create a channel, each PE of the team allocates a place in its own arena, and sends the place's offset to the
//! other PEs of the team. If one of them has no room for a place, the channel is not created.

use super::{CHUNK, Heap, Set, WORD, World};
use crate::error::{Error, Result};
use crate::transport::Reuse::AtReturn;
use crate::transport::Transport;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of channels of all PEs for which the arena has room, within the limits of [`arena_bytes`].
const CHANNELS: usize = 64;
/// Size in bytes of a channel's chunk: the most that a reduction over a channel combines in one step.
const PLACE_CHUNK: usize = 8 << 10;
/// In a place of the workspace, each PE has 128 bytes. This is the offset in these bytes of the number that
/// the PE has sent. The PE's count of notifications is at offset 0.
const LENGTH: usize = 64;

/// Returns the size in bytes of the collectives' workspace in a job of `pes` PEs.
pub(super) fn workspace_bytes(pes: u32) -> usize {
    arena_offset(pes) + arena_bytes(pes)
}

/// Returns the size in bytes of the arena in a job of `pes` PEs: 1 to 8 MiB. Two PEs have room for 124 channels, 64 PEs
/// for 64 channels of all PEs, and 1,024 PEs for 39. Small jobs have a small arena, because a window to another machine
/// may have only a few MiB.
fn arena_bytes(pes: u32) -> usize {
    (CHANNELS * place_bytes(pes)).clamp(1 << 20, 8 << 20)
}

/// Returns the offset of the fixed place.
fn fixed_offset(pes: u32) -> usize {
    pes as usize * (WORD + CHUNK)
}

fn arena_offset(pes: u32) -> usize {
    fixed_offset(pes) + place_bytes(pes)
}

/// Returns the size in bytes of the place of a channel of `size` PEs.
fn place_bytes(size: u32) -> usize {
    let levels = size.next_power_of_two().trailing_zeros() as usize;
    size as usize * WORD + levels * PLACE_CHUNK
}

/// The places in this PE's workspace.
pub(super) struct Places(Arc<Mutex<Heap>>);

impl Places {
    pub(super) fn new(pes: u32) -> Self {
        Self(Arc::new(Mutex::new(Heap::new(arena_bytes(pes), 0))))
    }

    /// Allocates a place for a channel of `size` PEs. Returns `None` if there is no room.
    fn take(&self, size: u32) -> Option<Place> {
        let offset = lock(&self.0).allocate(place_bytes(size), WORD).ok()?;
        Some(Place { offset, arena: Some(self.0.clone()) })
    }
}

fn lock(arena: &Mutex<Heap>) -> MutexGuard<'_, Heap> {
    arena.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of the places in the workspace, used by one channel. Dropping this value frees the place, unless it is the
/// fixed place.
struct Place {
    /// The offset in the arena.
    offset: usize,
    /// The arena. `None` for the fixed place.
    arena: Option<Arc<Mutex<Heap>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(arena) = &self.arena {
            lock(arena).release(self.offset);
        }
    }
}

/// A team's channel at this PE. Pass it to the team's collectives. They may then run at the same time as
/// collectives of other teams. Dropping the channel frees its place in the workspace.
pub struct Channel {
    set: Set,
    /// The offset of this PE's place in the workspace.
    own: usize,
    /// This PE's position in the set.
    index: u32,
    collective: Mutex<()>,
    /// The links to the PEs of the set, in the set's order.
    links: Vec<Link>,
    _place: Place,
}

/// The notifications between this PE and another member of the team, in both directions. To notify the
/// member, this PE writes to one place in the member's workspace.
pub(super) struct Link {
    /// The offset of the place that this channel uses in the other member's workspace. The other member has
    /// allocated it.
    place: usize,
    sent: AtomicU64,
    pub(super) taken: AtomicU64,
}

impl Channel {
    pub(super) fn link(&self, pe: u32) -> Result<&Link> {
        Ok(&self.links[self.index(pe)? as usize])
    }

    /// Returns the position of `pe` in the set.
    fn index(&self, pe: u32) -> Result<u32> {
        let outside = || Error::invalid(format!("PE {pe}"), "it is not in the team");
        self.set.index(pe).ok_or_else(outside)
    }

    /// Returns the offset in `pe`'s workspace of the 128 bytes that this PE writes.
    fn theirs(&self, pe: u32) -> Result<usize> {
        Ok(self.link(pe)?.place + self.index as usize * WORD)
    }

    /// Returns the offset in this PE's workspace of the 128 bytes that `pe` writes.
    pub(super) fn ours(&self, pe: u32) -> Result<usize> {
        Ok(self.own + self.index(pe)? as usize * WORD)
    }
}

/// The PEs that take part in a collective, and the channel over which it runs. Some collectives use no
/// channel.
#[derive(Clone, Copy)]
pub struct Group<'a> {
    set: Set,
    channel: Option<&'a Channel>,
}

impl Group<'_> {
    /// Returns the PEs.
    pub fn set(&self) -> Set {
        self.set
    }
}

impl From<Set> for Group<'_> {
    fn from(set: Set) -> Self {
        Self { set, channel: None }
    }
}

impl<'a> From<&'a Channel> for Group<'a> {
    fn from(channel: &'a Channel) -> Self {
        Self { set: channel.set, channel: Some(channel) }
    }
}

/// A collective in progress at this PE. It holds its channel's lock. If the set has no channel, it holds the
/// lock that all such sets share.
pub(super) struct Entered<'a> {
    pub(super) set: Set,
    /// This PE's position in the set, counted from 0.
    pub(super) index: u32,
    pub(super) channel: Option<&'a Channel>,
    _one: MutexGuard<'a, ()>,
}

impl<T: Transport> World<T> {
    pub(super) fn enter<'a>(&'a self, group: impl Into<Group<'a>>) -> Result<Entered<'a>> {
        let Group { set, channel } = group.into();
        let index = set.index_of(self.me(), self.pes())?;
        let lock = channel.map_or(&self.collective, |channel| &channel.collective);
        let _one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Entered { set, index, channel, _one })
    }

    /// Opens a channel for `set`, a subset of `parent`. All PEs of `set` must call this function. If any of
    /// them has no room for the channel in its workspace, returns `None` at every PE.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn open_channel<'a>(&'a self, parent: impl Into<Group<'a>>, set: Set) -> Result<Option<Channel>> {
        let parent = self.enter(parent)?;
        let index = set.index_of(self.me(), self.pes())?;
        let within = Entered { set, index, ..parent };
        let arena = arena_offset(self.pes());
        let place = self.places.take(set.size);
        if let Some(place) = &place {
            // Clear the counts, because another channel may have used this memory before. All notifications
            // of that channel were received, so none can arrive later.
            let words = (0..set.size as usize).map(|other| self.word(arena + place.offset + other * WORD));
            words.for_each(|count| count.store(0, Ordering::Release));
        }
        // Send the offset of the place plus 1, or 0 if there is no room.
        let own = place.as_ref().map_or(0, |place| place.offset as u64 + 1);
        let numbers = self.tell_all(&within, own)?;
        let Some(place) = place.filter(|_| !numbers.contains(&0)) else { return Ok(None) };
        let most = (arena_bytes(self.pes()) - place_bytes(set.size)) as u64 + 1;
        if let Some(wrong) = numbers.iter().position(|number| *number > most || number % 8 != 1) {
            let what = format!("the place that PE {} chose for a team's collectives", set.pe(wrong as u32));
            return Err(Error::invalid(what, "it lies outside the workspace"));
        }
        let places = numbers.iter().map(|number| arena + *number as usize - 1);
        Ok(Some(self.channel(set, index, arena + place.offset, places, place)))
    }

    /// Creates the channel for the fixed place in the workspace. This place has the same offset on all PEs,
    /// so the PEs need not exchange it. Call this at most once on each PE.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this PE is not in the set.
    pub fn fixed_channel(&self, set: Set) -> Result<Channel> {
        let (index, fixed) = (set.index_of(self.me(), self.pes())?, fixed_offset(self.pes()));
        let places = (0..set.size).map(|_| fixed);
        Ok(self.channel(set, index, fixed, places, Place { offset: 0, arena: None }))
    }

    fn channel(
        &self,
        set: Set,
        index: u32,
        own: usize,
        places: impl Iterator<Item = usize>,
        place: Place,
    ) -> Channel {
        let link = |place| Link { place, sent: AtomicU64::new(0), taken: AtomicU64::new(0) };
        Channel {
            set,
            own,
            index,
            collective: Mutex::new(()),
            links: places.map(link).collect(),
            _place: place,
        }
    }

    /// Sends `own` to every PE of the set. Returns the numbers that all PEs sent, in the set's order.
    pub(super) fn tell_all(&self, entered: &Entered<'_>, own: u64) -> Result<Vec<u64>> {
        self.send_length(entered, own)?;
        self.exchange(entered)?;
        let numbers = (0..entered.set.size).map(|other| self.length(entered, entered.set.pe(other)));
        let numbers = numbers.collect::<Result<_>>()?;
        // Wait until all PEs have read the numbers, because the next collective may overwrite them.
        self.disseminate(entered)?;
        Ok(numbers)
    }

    /// Sends the number `length` to every PE of the set. A receiver reads the number by [`World::length`]
    /// after it has received a notification.
    pub(super) fn send_length(&self, entered: &Entered<'_>, length: u64) -> Result<()> {
        (0..entered.set.size).map(|other| entered.set.pe(other)).try_for_each(|pe| {
            let to = match entered.channel {
                None => self.me() as usize * WORD,
                Some(channel) => channel.theirs(pe)? + LENGTH,
            };
            // SAFETY: the source is a local variable, and the destination is a word of the workspace.
            unsafe { self.transport.put(pe, to, (&raw const length).cast(), 8, AtReturn) }
        })
    }

    /// Returns the number that PE `pe` sent by `send_length`. Call it after a notification from
    /// `pe`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the PE is not in the set.
    pub(super) fn length(&self, entered: &Entered<'_>, pe: u32) -> Result<u64> {
        let at = match entered.channel {
            None => pe as usize * WORD,
            Some(channel) => channel.ours(pe)? + LENGTH,
        };
        Ok(self.word(at).load(Ordering::Acquire))
    }

    /// Returns the size of a chunk in bytes. A reduction combines at most one chunk in one step.
    pub(super) fn chunk_bytes(&self, entered: &Entered<'_>) -> usize {
        if entered.channel.is_some() { PLACE_CHUNK } else { CHUNK }
    }

    /// Returns the offset of the chunk in which PE `parent` receives data from its child `child` in a
    /// binomial tree. The positions of the two PEs in the set differ by `distance`, a power of two.
    pub(super) fn chunk(
        &self,
        entered: &Entered<'_>,
        parent: u32,
        child: u32,
        distance: u32,
    ) -> Result<usize> {
        Ok(match entered.channel {
            // All sets without a channel use the same chunks. A child has different levels in different sets,
            // so chunks by level could collide between two sets. One chunk for each child avoids this.
            None => self.pes() as usize * WORD + child as usize * CHUNK,
            Some(channel) => {
                let level = distance.trailing_zeros() as usize;
                channel.link(parent)?.place + channel.set.size as usize * WORD + level * PLACE_CHUNK
            }
        })
    }

    /// Sends a notification to `pe`. It arrives after all earlier puts to `pe`.
    pub(super) fn notify(&self, entered: &Entered<'_>, pe: u32) -> Result<()> {
        let Some(channel) = entered.channel else { return self.transport.notify(pe) };
        let link = channel.link(pe)?;
        let count = link.sent.fetch_add(1, Ordering::Relaxed) + 1;
        self.transport.order()?;
        // SAFETY: the source is a local variable, and the destination is a word of the workspace.
        unsafe { self.transport.put(pe, channel.theirs(pe)?, (&raw const count).cast(), 8, AtReturn) }
    }

    /// Returns a word of this PE's workspace.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= workspace_bytes(self.pes()),
            "inside the workspace"
        );
        // SAFETY: the word is aligned and inside the workspace. The workspace lives as long as the transport.
        unsafe { AtomicU64::from_ptr(self.address_of(offset).cast()) }
    }
}
