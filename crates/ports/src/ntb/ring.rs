//! The positions of both ends in a ring of frames. These are numbers only, so a model checker can run them.
//!
//! A ring is a span of bytes in units of 64 bytes. A *record* is one frame: a word with its length, and its bytes, rounded up to
//! whole units. A record does not continue at the start of the ring. If it does not fit before the end, the sender writes
//! [`SKIP`] there and begins at the start. A *position* counts units without end, modulo 2^32, so a full ring differs from an
//! empty one.

#[cfg(test)]
mod tests;

/// The bytes of a unit.
pub(super) const UNIT: usize = 64;
/// The bytes of a record before its frame: the word with the frame's length.
pub(super) const HEADER: usize = 8;
/// The longest frame: the largest IP packet with an Ethernet header and two VLAN tags.
pub(super) const LONGEST_FRAME: usize = 65_535 + 14 + 8;
/// The word in place of a length if the next record is at the start of the ring.
pub(super) const SKIP: u64 = u64::MAX;

/// Returns the number of units of a frame's record.
pub(super) fn units(length: usize) -> u32 {
    (HEADER + length).div_ceil(UNIT) as u32
}

/// Returns the number of units from a position to the end of a ring of `units` units.
fn to_end(units: u32, position: u32) -> u32 {
    units - (position & (units - 1))
}

/// How the peer has broken the protocol.
pub(super) type Violation = &'static str;

/// The sender's position in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendPosition {
    /// The number of units of the ring, a power of two.
    units: u32,
    /// The position of the next record.
    next: u32,
    /// The position up to which the receiver sees records.
    shown: u32,
    /// The position up to which the receiver has read records.
    read: u32,
}

/// Where a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The position at which [`SKIP`] is written, if the record does not follow the last one.
    pub skip: Option<u32>,
    /// The position of the record.
    pub at: u32,
    /// The number of units of the record.
    units: u32,
}

impl SendPosition {
    pub(super) fn new(units: u32) -> Self {
        Self { units, next: 0, shown: 0, read: 0 }
    }

    /// Finds a place for a frame of at most [`LONGEST_FRAME`] bytes. Calls `load_read` for the receiver's position if the ring
    /// looks full. Returns `None` if it is.
    ///
    /// # Errors
    /// If the receiver's position is wrong.
    #[inline]
    pub(super) fn place(
        &mut self,
        length: usize,
        load_read: impl FnOnce(u32) -> u32,
    ) -> Result<Option<Place>, Violation> {
        let (record, end) = (units(length), to_end(self.units, self.next));
        let skipped = if record > end { end } else { 0 };
        let needed = skipped + record;
        if self.units - self.next.wrapping_sub(self.read) < needed {
            let read = load_read(self.read);
            if read.wrapping_sub(self.read) > self.shown.wrapping_sub(self.read) {
                return Err("it has read more than was sent");
            }
            self.read = read;
            if self.units - self.next.wrapping_sub(self.read) < needed {
                return Ok(None);
            }
        }
        let skip = (skipped > 0).then_some(self.next);
        Ok(Some(Place { skip, at: self.next.wrapping_add(skipped), units: record }))
    }

    /// Adds the record that was written at `place`.
    #[inline]
    pub(super) fn add(&mut self, place: Place) {
        self.next = place.at.wrapping_add(place.units);
    }

    /// Returns the position to store in the word that the receiver reads. Returns `None` if the word has this value already.
    #[inline]
    pub(super) fn show(&mut self) -> Option<u32> {
        let is_new = self.shown != self.next;
        self.shown = self.next;
        is_new.then_some(self.next)
    }
}

/// The receiver's position in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivePosition {
    /// The number of units of the ring, a power of two.
    units: u32,
    /// The position of the next record.
    next: u32,
    /// The position behind the last record that the sender has shown.
    sent: u32,
    /// The position up to which the sender sees that records were read.
    returned: u32,
}

/// The next record of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A frame of this many bytes.
    Frame(usize),
    /// None before the start of the ring. Look again.
    Skipped,
}

impl ReceivePosition {
    pub(super) fn new(units: u32) -> Self {
        Self { units, next: 0, sent: 0, returned: 0 }
    }

    /// Returns the position of the next record.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns true if there is a record. Calls `load_sent` for the sender's position if all known records were read.
    ///
    /// # Errors
    /// If the sender's position is wrong.
    #[inline]
    pub(super) fn has_record(&mut self, load_sent: impl FnOnce(u32) -> u32) -> Result<bool, Violation> {
        if self.sent == self.next {
            let sent = load_sent(self.sent);
            if sent.wrapping_sub(self.next) > self.units {
                return Err("it has sent more than the ring holds");
            }
            self.sent = sent;
        }
        Ok(self.sent != self.next)
    }

    /// Checks the first word of the next record, which exists. Moves to the start of the ring if the word says so.
    ///
    /// # Errors
    /// If the record exceeds the sent ones or the end of the ring.
    #[inline]
    pub(super) fn record(&mut self, header: u64) -> Result<Record, Violation> {
        let (left, end) = (self.sent.wrapping_sub(self.next), to_end(self.units, self.next));
        if header == SKIP {
            if end >= left {
                return Err("no frame follows at the start of the ring");
            }
            self.next = self.next.wrapping_add(end);
            return Ok(Record::Skipped);
        }
        if header == 0 || header > LONGEST_FRAME as u64 {
            return Err("the length of a frame is wrong");
        }
        let length = header as usize;
        if units(length) > left.min(end) {
            return Err("a frame exceeds what was sent");
        }
        Ok(Record::Frame(length))
    }

    /// Ends the next record, which is a frame of `length` bytes.
    #[inline]
    pub(super) fn skip(&mut self, length: usize) {
        self.next = self.next.wrapping_add(units(length));
    }

    /// Returns the position to store in the word that the sender reads. Returns `None` if the word has this value already.
    #[inline]
    pub(super) fn give_back(&mut self) -> Option<u32> {
        let is_new = self.returned != self.next;
        self.returned = self.next;
        is_new.then_some(self.next)
    }
}
