//! Channels. With them, threads of one PE can run collectives of different teams at the same time. Each
//! channel has its own notifications, its own part of the PE's workspace, and its own lock.
//!
//! ```text
//! a PE's workspace, at the start of its symmetric memory
//! basic part   a word for each PE, then a chunk for each PE. Collectives without a channel use it.
//! place 0..31  each place serves one channel. It has 128 bytes for each PE: at +0 how many notifications the
//!              PE has sent, at +64 a number that it sends. Then come chunks, one for each level of a
//!              binomial tree.
//! ```
//!
//! Each PE chooses a free place in its own workspace for a new channel, and sends the place's number to the
//! other members of the team. If one of them has no free place, the team uses the basic part.

use super::{CHUNK, Set, WORD, World};
use crate::error::{Error, Result};
use crate::transport::Transport;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of places in a PE's workspace. A place is the memory of one channel. A team runs its
/// collectives over a channel.
pub(super) const PLACES: usize = 32;
/// The place of [`World::fixed_channel`].
const FIXED: usize = 0;
/// Size in bytes of a channel's chunk: the most that a reduction over a channel combines in one step.
const PLACE_CHUNK: usize = 8 << 10;
/// In a place of the workspace, each PE has 128 bytes. This is the offset in these bytes of the number that
/// the PE has sent. The PE's count of notifications is at offset 0.
const LENGTH: usize = 64;

/// Returns the size in bytes of the collectives' workspace in a job of `pes` PEs.
pub(super) fn workspace_bytes(pes: u32) -> usize {
    place_offset(pes, PLACES)
}

fn place_offset(pes: u32, place: usize) -> usize {
    let levels = pes.next_power_of_two().trailing_zeros() as usize;
    pes as usize * (WORD + CHUNK) + place * (pes as usize * WORD + levels * PLACE_CHUNK)
}

/// The free places in this PE's workspace: bit n is set if place n is free.
pub(super) struct Places(Arc<Mutex<u32>>);

impl Places {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(!(1 << FIXED))))
    }

    fn take(&self) -> Option<Place> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = free.trailing_zeros();
        *free &= !1u32.checked_shl(number)?;
        Some(Place { number: number as usize, free: self.0.clone() })
    }
}

/// One of the places in the workspace, used by one channel. Dropping this value frees the place, unless the
/// place is reserved for [`World::fixed_channel`].
struct Place {
    number: usize,
    free: Arc<Mutex<u32>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.number != FIXED {
            *self.free.lock().unwrap_or_else(PoisonError::into_inner) |= 1 << self.number;
        }
    }
}

/// A team's channel at this PE. Pass it to the team's collectives. They may then run at the same time as
/// collectives of other teams. Dropping the channel frees its place in the workspace.
pub struct Channel {
    set: Set,
    place: Place,
    collective: Mutex<()>,
    /// The links to the PEs of the set, in the set's order.
    links: Vec<Link>,
}

/// The notifications between this PE and another member of the team, in both directions. To notify the
/// member, this PE writes to one place in the member's workspace.
struct Link {
    /// The number of the place that this channel uses in the other member's workspace. The other member has
    /// chosen this number.
    place: usize,
    sent: AtomicU64,
    taken: AtomicU64,
}

impl Channel {
    fn new(set: Set, place: Place, places: impl Iterator<Item = usize>) -> Self {
        let link = |place| Link { place, sent: AtomicU64::new(0), taken: AtomicU64::new(0) };
        Self { set, place, collective: Mutex::new(()), links: places.map(link).collect() }
    }

    fn link(&self, pe: u32) -> Result<&Link> {
        let link = self.set.index(pe).and_then(|index| self.links.get(index as usize));
        link.ok_or_else(|| Error::invalid(format!("PE {pe}"), "it is not in the team"))
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
    channel: Option<&'a Channel>,
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
    /// them has no free place for the channel in its workspace, returns `None` at every PE. In that case,
    /// pass `set` itself to collectives.
    ///
    /// # Errors
    /// As for [`World::sync`].
    pub fn open_channel<'a>(&'a self, parent: impl Into<Group<'a>>, set: Set) -> Result<Option<Channel>> {
        let parent = self.enter(parent)?;
        let index = set.index_of(self.me(), self.pes())?;
        let within = Entered { set, index, ..parent };
        let place = self.places.take();
        if let Some(place) = &place {
            // Clear the counts of the channel that used this place of the workspace before. All notifications
            // of that channel were received, so none can arrive later.
            (0..set.size)
                .for_each(|other| self.count(place.number, set.pe(other)).store(0, Ordering::Release));
        }
        // If a place of the workspace was chosen, send its number plus 1. Send 0 if no place is free.
        let own = place.as_ref().map_or(0, |place| place.number as u64 + 1);
        let numbers = self.tell_all(&within, own)?;
        let Some(place) = place.filter(|_| !numbers.contains(&0)) else { return Ok(None) };
        if let Some(index) = numbers.iter().position(|number| *number > PLACES as u64) {
            let what = format!("the place that PE {} chose for a team's collectives", set.pe(index as u32));
            return Err(Error::invalid(what, format!("it is above {PLACES}")));
        }
        Ok(Some(Channel::new(set, place, numbers.iter().map(|number| *number as usize - 1))))
    }

    /// Creates the channel for the fixed place in the workspace. This place has the same number on all PEs,
    /// so the PEs need not exchange the number. Call this at most once on each PE.
    pub fn fixed_channel(&self, set: Set) -> Channel {
        let place = Place { number: FIXED, free: self.places.0.clone() };
        Channel::new(set, place, (0..set.size).map(|_| FIXED))
    }

    /// Sends `own` to every PE of the set. Returns the numbers that all PEs sent, in the set's order.
    fn tell_all(&self, entered: &Entered<'_>, own: u64) -> Result<Vec<u64>> {
        self.send_length(entered, own)?;
        self.exchange(entered)?;
        let numbers = (0..entered.set.size).map(|other| self.length(entered, entered.set.pe(other)));
        let numbers = numbers.collect();
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
                Some(channel) => self.line(channel.link(pe)?.place, self.me()) + LENGTH,
            };
            // SAFETY: the source is a local variable, and the destination is a word of the workspace.
            unsafe { self.transport.put(pe, to, (&raw const length).cast(), 8) }
        })
    }

    /// Returns the number that PE `pe` sent by `send_length`. Call it after a notification from
    /// `pe`.
    pub(super) fn length(&self, entered: &Entered<'_>, pe: u32) -> u64 {
        let at = match entered.channel {
            None => pe as usize * WORD,
            Some(channel) => self.line(channel.place.number, pe) + LENGTH,
        };
        self.word(at).load(Ordering::Acquire)
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
        let pes = self.pes();
        Ok(match entered.channel {
            // All sets without a channel use the same chunks. A child has different levels in different sets,
            // so chunks by level could collide between two sets. One chunk for each child avoids this.
            None => pes as usize * WORD + child as usize * CHUNK,
            Some(channel) => {
                let level = distance.trailing_zeros() as usize;
                self.line(channel.link(parent)?.place, pes) + level * PLACE_CHUNK
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
        unsafe { self.transport.put(pe, self.line(link.place, self.me()), (&raw const count).cast(), 8) }
    }

    /// Blocks until a notification from `pe` has arrived, and consumes it.
    pub(super) fn take_notification(&self, entered: &Entered<'_>, pe: u32) -> Result<()> {
        let Some(channel) = entered.channel else { return self.transport.take_notification(pe) };
        let expected = channel.link(pe)?.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let count = self.count(channel.place.number, pe);
        let word = (self.line(channel.place.number, pe), 8);
        self.transport.wait(Some(word), &mut || count.load(Ordering::Acquire) >= expected)
    }

    /// Returns the offset of the 128 bytes of PE `pe` in place `place` of the workspace. The chunks of the
    /// place follow the last PE, so the number of PEs as `pe` gives the offset of the chunks.
    fn line(&self, place: usize, pe: u32) -> usize {
        place_offset(self.pes(), place) + pe as usize * WORD
    }

    /// Returns a counter: the notifications that `pe` has sent to this PE over the channel in place `place`
    /// of the workspace.
    fn count(&self, place: usize, pe: u32) -> &AtomicU64 {
        self.word(self.line(place, pe))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= workspace_bytes(self.pes()),
            "inside the workspace"
        );
        // SAFETY: the word is aligned and inside the workspace. The workspace lives as long as the transport.
        unsafe { AtomicU64::from_ptr(self.address_of(offset).cast()) }
    }
}
