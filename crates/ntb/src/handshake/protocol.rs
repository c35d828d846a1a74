//! The handshake as a state machine. It accesses no registers and no clock, so a model checker can run it.
//!
//! Each side writes its epoch, its sizes and the peer's epoch as read into a row of 8 scratchpads at the
//! peer. A row may be read twice, late or half-written, and may remain from an earlier process. The last word
//! is a checksum of the other words, so a half-written row does not decode.
//!
//! ```text
//! 0  magic << 16 | version         4  limit: pages of the largest window this side has onto the peer
//! 1  epoch of the writer           5  inbound: pages of memory the writer offers
//! 2  epoch of the peer, as read    6  flags: bit 0 = the translation is set
//! 3  reserved, 0                   7  check over 0..6, written last; then the doorbell
//! ```
//!
//! A side is connected when the peer's row contains the side's own epoch and the flag for the translation.
//! Every later word carries a tag computed from both epochs, so stores of an older connection are ignored.

/// Version of everything that peers exchange: the handshake's row, the layout of inbound memory, and
/// requests.
pub const VERSION: u16 = 1;
/// The number of scratchpads that hold a [`ScratchpadRow`].
pub const ROW: usize = 8;
const MAGIC: u32 = 0x4e54;

/// The values of a row: what one side tells its peer through scratchpads during the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchpadRow {
    /// Protocol version of the writer.
    pub version: u16,
    /// Epoch of the writer: not 0, and a different one for each process and each reconnection.
    pub epoch: u32,
    /// The peer's epoch as the writer has last read it; 0 if the writer has read none.
    pub seen: u32,
    /// The size of the writer's largest window to the peer, in pages of 4 KiB.
    pub limit_pages: u32,
    /// Size of the memory that the writer offers to the peer, in pages of 4 KiB.
    pub inbound_pages: u32,
    /// True once the writer has set its translation.
    pub ready: bool,
}

fn check(words: &[u32]) -> u32 {
    // FNV-1a suffices, because the check guards against torn rows, not against forged rows.
    words.iter().fold(0x811C_9DC5, |hash, word| (hash ^ word).wrapping_mul(0x0100_0193))
}

impl ScratchpadRow {
    /// Returns the scratchpad values, to be written in ascending order.
    pub fn encode(&self) -> [u32; ROW] {
        let mut words = [
            MAGIC << 16 | self.version as u32,
            self.epoch,
            self.seen,
            0,
            self.limit_pages,
            self.inbound_pages,
            self.ready as u32,
            0,
        ];
        words[7] = check(&words[..7]);
        words
    }

    /// Decodes a row from scratchpad values. Returns `None` if the values are not a row, or are parts of
    /// different rows (torn).
    pub fn decode(words: &[u32; ROW]) -> Option<Self> {
        let good = words[0] >> 16 == MAGIC && words[7] == check(&words[..7]) && words[1] != 0;
        good.then(|| Self {
            version: words[0] as u16,
            epoch: words[1],
            seen: words[2],
            limit_pages: words[4],
            inbound_pages: words[5],
            ready: words[6] & 1 == 1,
        })
    }
}

/// The epochs of this side and the peer. Together they identify a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEpochs {
    /// This side's epoch.
    pub ours: u32,
    /// The peer's epoch.
    pub theirs: u32,
}

impl ConnectionEpochs {
    /// Returns the tag that marks words written over this connection. Both sides compute the same tag, which
    /// is never 0.
    pub fn tag(&self) -> u32 {
        let (low, high) = (self.ours.min(self.theirs), self.ours.max(self.theirs));
        check(&[low, high]) | 1
    }
}

/// The caller's next step after [`Handshake::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Wait: nothing has changed.
    Wait,
    /// This side's row has changed: write it and ring the doorbell.
    Write,
    /// The connection is established. Write this side's row again, because it may have changed, and ring the
    /// doorbell.
    Connected(ConnectionEpochs),
    /// The peer answers this side, but uses another protocol version.
    OtherVersion(u16),
}

/// One side of the handshake with one peer.
#[derive(Clone, Debug)]
pub struct Handshake {
    own: ScratchpadRow,
    peer: Option<ScratchpadRow>,
}

impl Handshake {
    /// Starts a handshake in a new `epoch` (not 0) with this side's sizes. Set `ready` if this side's
    /// translation is already set.
    pub fn new(epoch: u32, limit_pages: u32, inbound_pages: u32, ready: bool) -> Self {
        let own = ScratchpadRow {
            version: VERSION,
            epoch: epoch.max(1),
            seen: 0,
            limit_pages,
            inbound_pages,
            ready,
        };
        Self { own, peer: None }
    }

    /// Returns the row to write to the peer.
    pub fn row(&self) -> ScratchpadRow {
        self.own
    }

    /// Returns the peer's row as last read.
    pub fn peer(&self) -> Option<ScratchpadRow> {
        self.peer
    }

    /// Records that this side's translation is set.
    pub fn set_ready(&mut self) {
        self.own.ready = true;
    }

    /// Decodes `words`, the peer's handshake state in its row of scratchpads, and returns what to do next.
    pub fn read(&mut self, words: &[u32; ROW]) -> NextStep {
        let Some(row) = ScratchpadRow::decode(words) else { return NextStep::Wait };
        let fresh = self.own.seen != row.epoch;
        self.own.seen = row.epoch;
        self.peer = Some(row);
        if row.version != VERSION {
            // The scratchpads may still hold the peer's row of an earlier connection, with any version.
            // Report another version only if the row contains the epoch of this side. The epoch shows that
            // the peer answers this side.
            let ours = row.seen == self.own.epoch;
            return if ours { NextStep::OtherVersion(row.version) } else { self.changed(fresh) };
        }
        if row.seen == self.own.epoch && row.ready && self.own.ready {
            return NextStep::Connected(ConnectionEpochs { ours: self.own.epoch, theirs: row.epoch });
        }
        self.changed(fresh)
    }

    fn changed(&self, fresh: bool) -> NextStep {
        if fresh { NextStep::Write } else { NextStep::Wait }
    }
}
