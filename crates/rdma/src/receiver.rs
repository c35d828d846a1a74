//! The receiving half: grants, placement, and the bitmap of received PSNs.

use crate::config::Config;
use crate::control::{Grant, MAX_GRANTS};
use crate::counters::Counters;
use crate::extend;
use siphasher::sip::SipHasher13;
use std::collections::VecDeque;
use std::hash::Hasher;

/// The memory that received data is placed into.
pub trait Memory {
    /// Copies `bytes` into the receive ring, where the byte with this index of the stream belongs.
    fn write_ring(&mut self, index: u64, bytes: &[u8]);
}

/// A received packet that is not published yet.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    start: u64,
    len: u32,
    received: bool,
}

/// The reason why data was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The connection must end, because the peer's packets contradict each other.
    Violation,
    /// The packet is counted and ignored.
    Ignored,
}

#[derive(Debug)]
pub struct Receiver {
    pub capacity: u64,
    hasher: SipHasher13,
    grants: VecDeque<Grant>,
    generation: u32,
    /// True until the peer needs memory information beyond that of the handshake.
    pub quiet: bool,
    pub granted: u64,
    /// The first PSN that is missing.
    pub expected: u64,
    /// The PSN after the highest received one.
    highest: u64,
    slots: Box<[Slot]>,
    /// The stream's bytes before this index have arrived completely.
    pub published: u64,
    pub consumed: u64,
    /// The stream's length, once the packet that says so has arrived.
    end: Option<u64>,
    pub finished: bool,
    pub duplicates: u32,
}

impl Receiver {
    pub fn new(config: &Config, psn: u32, first_grant: Option<Grant>, secret: [u8; 16]) -> Self {
        let mut receiver = Self {
            capacity: config.receive_capacity as u64,
            hasher: SipHasher13::new_with_key(&secret),
            grants: VecDeque::with_capacity(MAX_GRANTS),
            generation: first_grant.is_some() as u32,
            quiet: !config.announce && first_grant.is_some(),
            granted: config.first_grant as u64,
            expected: (1 << 24) + psn as u64,
            highest: (1 << 24) + psn as u64,
            slots: vec![Slot::default(); config.slots() as usize].into(),
            published: 0,
            consumed: 0,
            end: None,
            finished: false,
            duplicates: 0,
        };
        receiver.grants.extend(first_grant);
        receiver
    }

    pub fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter()
    }

    /// Returns the words of the bitmap of received PSNs, from the expected one on.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        (self.expected..self.highest).step_by(64).map(|first| {
            let bits = first..self.highest.min(first + 64);
            bits.fold(0, |word, psn| word | (self.slot(psn).received as u64) << (psn - first))
        })
    }

    fn slot(&self, psn: u64) -> &Slot {
        &self.slots[psn as usize & (self.slots.len() - 1)]
    }

    fn slot_mut(&mut self, psn: u64) -> &mut Slot {
        let at = psn as usize & (self.slots.len() - 1);
        &mut self.slots[at]
    }

    /// Grants the room in the ring. Returns true if there is a new grant. Small grants are avoided, unless the
    /// peer has nothing else to write to.
    pub fn grant(&mut self) -> bool {
        let before = self.generation;
        self.quiet &= 2 * self.published < self.granted;
        if self.quiet {
            return false;
        }
        while self.grants.len() < MAX_GRANTS && self.end.is_none() {
            let chunk = self.capacity.div_ceil(4);
            let room = self.capacity.saturating_sub(self.granted - self.consumed);
            if room == 0 || (room < chunk && self.granted > self.published) {
                break;
            }
            let start = self.granted;
            self.granted += room.min(chunk);
            self.generation = self.generation.wrapping_add(1);
            let grant = Grant { generation: self.generation, key: self.key(), start, end: self.granted };
            self.grants.push_back(grant);
        }
        self.generation != before
    }

    /// Returns a key that no valid grant has.
    fn key(&self) -> u32 {
        let mut hasher = self.hasher;
        loop {
            hasher.write_u32(self.generation);
            let key = hasher.finish() as u32;
            if key != 0 && self.grants.iter().all(|grant| grant.key != key) {
                return key;
            }
        }
    }

    /// Returns the packet's full PSN if the packet is new and within the window. Counts it otherwise.
    pub fn accept(&mut self, number: u32, counters: &mut Counters) -> Option<u64> {
        let psn = extend(self.expected, number);
        if psn >= self.expected + self.slots() {
            counters.refused_psn += 1;
            return None;
        }
        if psn < self.expected || self.slot(psn).received {
            self.duplicates = self.duplicates.wrapping_add(1);
            counters.duplicates += 1;
            return None;
        }
        Some(psn)
    }

    /// Places the data of a new packet.
    pub fn place(
        &mut self,
        psn: u64,
        (start, key): (u64, u32),
        data: &[u8],
        memory: &mut impl Memory,
        counters: &mut Counters,
    ) -> Result<(), Refused> {
        let Some(grant) = self.grants.iter().find(|grant| grant.key == key) else {
            counters.refused_key += 1;
            return Err(Refused::Ignored);
        };
        let end = start.checked_add(data.len() as u64).filter(|&end| {
            start >= grant.start && end <= grant.end && self.end.is_none_or(|last| end <= last)
        });
        let Some(end) = end.filter(|_| start >= self.published && !data.is_empty()) else {
            counters.refused_range += 1;
            return Err(Refused::Ignored);
        };
        memory.write_ring(start, data);
        counters.placed_ring += end - start;
        self.receive(psn, Slot { start, len: data.len() as u32, received: true })
    }

    /// Publishes the next `len` bytes, which the peer has stored. Returns false if it may not, or if packets before them are missing.
    pub fn store(&mut self, len: u64) -> bool {
        let end = self.published.saturating_add(len);
        let allowed = end <= self.granted && !self.has_gap() && self.end.is_none();
        if allowed {
            self.published = end;
            self.drop_used_grants();
        }
        allowed
    }

    /// Records the end of the stream, at `index`.
    pub fn end(&mut self, psn: u64, index: u64, counters: &mut Counters) -> Result<(), Refused> {
        let beyond = (self.expected..self.highest)
            .any(|psn| self.slot(psn).received && self.slot(psn).start + self.slot(psn).len as u64 > index);
        if self.end.is_some() || index < self.published || index > self.granted || beyond {
            counters.refused_range += 1;
            return Err(Refused::Ignored);
        }
        self.end = Some(index);
        self.receive(psn, Slot { start: index, len: 0, received: true })
    }

    /// Marks a PSN as received, and publishes the data that is complete now.
    fn receive(&mut self, psn: u64, slot: Slot) -> Result<(), Refused> {
        *self.slot_mut(psn) = slot;
        self.highest = self.highest.max(psn + 1);
        while self.slot(self.expected).received {
            let slot = std::mem::take(self.slot_mut(self.expected));
            if slot.start != self.published {
                return Err(Refused::Violation);
            }
            self.expected += 1;
            self.published += slot.len as u64;
            self.finished |= slot.len == 0;
        }
        self.drop_used_grants();
        Ok(())
    }

    fn drop_used_grants(&mut self) {
        while self.grants.front().is_some_and(|grant| grant.end <= self.published) {
            self.grants.pop_front();
        }
    }

    /// Returns true if the last packet left a gap, or if a gap is open.
    pub fn has_gap(&self) -> bool {
        self.highest > self.expected
    }
}
