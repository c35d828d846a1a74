//! Separates writes of parts of blocks from all other writes of an export.
//!
//! A drive writes whole blocks. To write a part of a block, the server reads the block, changes the part and writes the
//! block back. Another write to the same block must not take place meanwhile, because it would be overwritten.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Set while a client writes a part of a block, or waits to do so.
const EXCLUSIVE: u32 = 1 << 31;

/// The gate of an export: its clients pass it with each request that writes. Holds the number of these requests in progress,
/// and [`EXCLUSIVE`].
#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU32);

/// The requests of one client that have passed the gate. Dropping it lets the requests of other clients pass.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    shared: u32,
    /// True if this client has set [`EXCLUSIVE`].
    reserved: bool,
    /// True while a request that writes a part of a block is in progress.
    alone: bool,
}

impl<'a> Pass<'a> {
    pub(super) fn new(gate: &'a Gate) -> Self {
        Self { gate, shared: 0, reserved: false, alone: false }
    }

    /// Lets a request pass. A request that is to be `alone` writes a part of a block: it waits until no other request writes,
    /// and keeps new ones from passing. Returns false if the request must wait; then call this again later.
    pub(super) fn enter(&mut self, alone: bool) -> bool {
        if !alone {
            let next = |value: u32| (value & EXCLUSIVE == 0).then_some(value + 1);
            let entered = self.gate.0.fetch_update(SeqCst, SeqCst, next).is_ok();
            self.shared += u32::from(entered);
            return entered;
        }
        if self.alone {
            return false;
        }
        self.reserved = self.reserved || self.gate.0.fetch_or(EXCLUSIVE, SeqCst) & EXCLUSIVE == 0;
        self.alone = self.reserved && self.gate.0.load(SeqCst) == EXCLUSIVE;
        self.alone
    }

    /// Ends a request that has passed.
    pub(super) fn leave(&mut self, alone: bool) {
        if alone {
            (self.alone, self.reserved) = (false, false);
            self.gate.0.fetch_and(!EXCLUSIVE, SeqCst);
        } else {
            self.shared -= 1;
            self.gate.0.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.0.fetch_sub(self.shared, SeqCst);
        if self.reserved {
            self.gate.0.fetch_and(!EXCLUSIVE, SeqCst);
        }
    }
}
