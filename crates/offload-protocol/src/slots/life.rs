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

/// The life of the connection that has a slot. Both sides change it by compare-and-exchange, so only one of them decides about a pair.
///
/// ```text
///             accept (program)          close (program)          keep (engine)
///        NEW -----------------> ACCEPTED --------------> CLOSED --------------> KEPT
///         ^                                                 |                    | |
///         |                                                 +--- end (program) --|-+--> ENDED
///         +------------------------- reuse (engine) ------------------------------+
/// ```
pub struct Life<'a, W>(pub &'a W);

impl<W: Word> Life<'_, W> {
    /// Begins the life of a connection with a new pair. The engine calls this for a slot that no connection uses.
    pub fn begin(&self) {
        self.0.store(NEW);
    }

    /// Records that the program has accepted the connection.
    pub fn accept(&self) {
        let _ = self.0.exchange(NEW, ACCEPTED);
    }

    /// Returns true if the program has accepted the connection.
    pub fn is_accepted(&self) -> bool {
        self.0.load() != NEW
    }

    /// Records that the program has closed the connection and keeps its end of the pair.
    /// Returns false if the program must close its end.
    #[must_use]
    pub fn close(&self) -> bool {
        self.0.exchange(ACCEPTED, CLOSED)
    }

    /// Returns true if the program has closed the connection and keeps its end of the pair.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.0.load() == CLOSED
    }

    /// Keeps the pair of a closed connection. Returns false if the program does not keep its end.
    #[must_use]
    pub fn keep(&self) -> bool {
        self.0.exchange(CLOSED, KEPT)
    }

    /// Begins the life of another connection with a kept pair. Returns false if the program has not kept its end.
    #[must_use]
    pub fn reuse(&self) -> bool {
        self.0.exchange(KEPT, NEW)
    }

    /// Ends the pair of a closed connection. Returns true if no other connection gets it, so that the program may close its end.
    /// Returns false if a connection has it.
    #[must_use]
    pub fn end(&self) -> bool {
        self.0.exchange(KEPT, ENDED) || self.0.exchange(CLOSED, ENDED)
    }
}
