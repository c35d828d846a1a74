//! The life of a connection whose pair of UNIX sockets outlives it: the pair is kept for a later connection of the same slot.

use super::Word;

/// The engine has given the slot to a connection that the program has not accepted.
const NEW: u64 = 0;
/// The program has accepted the connection.
const ACCEPTED: u64 = 1;
/// The program has closed the connection, and keeps its end of the pair.
const CLOSED: u64 = 2;
/// The engine has ended the connection, and keeps the pair for a later one.
const KEPT: u64 = 3;
/// The program closes its end of the pair, or has closed it.
const ENDED: u64 = 4;
/// The program opens a connection over its end of the pair.
const ASKED: u64 = 5;
/// The engine establishes the connection that the program opens.
const CONNECTING: u64 = 6;
/// The bits of the state. The others have the number of the connection.
const STATES: u64 = 7;

/// The life of the connection that has a slot. Both sides change it by compare-and-exchange, so only one of them decides about a pair.
///
/// ```text
///             accept (program)          close (program)          keep (engine)
///        NEW -----------------> ACCEPTED --------------> CLOSED --------------> KEPT
///         ^                      ^                          |                   | | |
///         |                      |                          +--- end (program) -|-+-|--> ENDED
///         +----------------------|----- reuse (engine) -------------------------+   |
///                                |                                                  |
///               establish (engine)         connect (engine)        ask (program)    |
///                  CONNECTING <------------------- ASKED <--------------------------+
/// ```
///
/// A new pair of a connection that the program opens begins in state ACCEPTED.
pub struct Life<'a, W>(pub &'a W);

impl<W: Word> Life<'_, W> {
    /// Begins the life of connection `id` with a new pair. The engine calls this for a slot that no connection uses.
    pub fn begin(&self, id: u64) {
        self.0.store(word(id, NEW));
    }

    /// Records that the program has accepted connection `id`. Returns false if the slot does not belong to that connection any more.
    #[must_use]
    pub fn accept(&self, id: u64) -> bool {
        self.0.exchange(word(id, NEW), word(id, ACCEPTED))
    }

    /// Returns true if the program has accepted the connection.
    pub fn is_accepted(&self) -> bool {
        self.state() != NEW
    }

    /// Records that the program has closed the connection and keeps its end of the pair.
    /// Returns false if the program must close its end.
    #[must_use]
    pub fn close(&self) -> bool {
        self.change(ACCEPTED, CLOSED)
    }

    /// Returns true if the program has closed the connection in its slot. It may have closed its end of the pair since.
    #[inline]
    pub fn is_closed(&self) -> bool {
        matches!(self.state(), CLOSED | ENDED)
    }

    /// Keeps the pair of a closed connection. Returns false if the program does not keep its end.
    #[must_use]
    pub fn keep(&self) -> bool {
        self.change(CLOSED, KEPT)
    }

    /// Begins the life of connection `id` with a kept pair. Returns false if the program has not kept its end.
    #[must_use]
    pub fn reuse(&self, id: u64) -> bool {
        let now = self.0.load();
        now & STATES == KEPT && self.0.exchange(now, word(id, NEW))
    }

    /// Returns true if a program may open a connection over the pair.
    pub fn is_kept(&self) -> bool {
        self.state() == KEPT
    }

    /// Reserves a kept pair for a connection that the program opens. Returns false if another connection has it.
    #[must_use]
    pub fn ask(&self) -> bool {
        self.change(KEPT, ASKED)
    }

    /// Ends a pair that the program has reserved. Returns false if it does not belong to the program any more.
    pub fn withdraw(&self) -> bool {
        self.change(ASKED, ENDED)
    }

    /// Returns true if the program has reserved the pair.
    pub fn is_asked(&self) -> bool {
        self.state() == ASKED
    }

    /// Begins the life of connection `id`, which the program opens over its reserved pair. Returns false if it has none.
    #[must_use]
    pub fn connect(&self, id: u64) -> bool {
        let now = self.0.load();
        now & STATES == ASKED && self.0.exchange(now, word(id, CONNECTING))
    }

    /// Records that the connection is established, so that the program may use its slot. Does nothing if a hostile program has changed the
    /// state.
    pub fn establish(&self) {
        let _ = self.change(CONNECTING, ACCEPTED);
    }

    /// Returns true while the connection is being established over a kept pair.
    pub fn is_connecting(&self) -> bool {
        self.state() == CONNECTING
    }

    /// Ends the pair of a closed connection. Returns true if no other connection gets it, so that the program may close its end.
    /// Returns false if a connection has it.
    #[must_use]
    pub fn end(&self) -> bool {
        // The engine may keep the pair between the two.
        self.change(CLOSED, ENDED) || self.change(KEPT, ENDED)
    }

    fn state(&self) -> u64 {
        self.0.load() & STATES
    }

    fn change(&self, from: u64, to: u64) -> bool {
        let now = self.0.load();
        now & STATES == from && self.0.exchange(now, now & !STATES | to)
    }
}

/// Returns the word of connection `id`. With its number, the record of a connection that has ended cannot be taken for one of
/// the connection that has the slot now.
fn word(id: u64, state: u64) -> u64 {
    id << STATES.count_ones() | state
}
