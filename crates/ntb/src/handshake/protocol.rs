//! The handshake as a state machine, apart from registers and time, so that a model checker can run it.
//!
//! Each side keeps a row of 8 scratchpads at the peer and writes there what it knows. Nothing is a command that must be
//! taken once: a row may be read twice, late, or while half of it is written, and may be left from a process that is long
//! gone. The last word written is a check over the others, so a torn row is no row.
//!
//! ```text
//! 0  magic << 16 | version         4  limit: pages of the largest window this side has onto the peer
//! 1  epoch of the writer           5  inbound: pages of memory the writer gives a window on
//! 2  epoch of the peer, as seen    6  flags: bit 0 = the translation is set
//! 3  reserved, 0                   7  check over 0..6, written last; then the doorbell
//! ```
//!
//! A side is connected when it reads a row that names its own epoch, says that the translation is set, and comes from the
//! epoch that it answered itself. Both sides then agree on both epochs; their mix tags everything written afterwards, so
//! stores of an older connection are never taken for this one's.

/// Version of everything that peers exchange: this row, the layout of inbound memory, requests.
pub const VERSION: u16 = 1;
/// Registers in a row.
pub const ROW: usize = 8;
const MAGIC: u32 = 0x4e54;

/// The meaning of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The writer's version.
    pub version: u16,
    /// The writer's epoch: not 0, another one for each life and each reconnection.
    pub epoch: u32,
    /// The epoch of the peer that the writer has seen; 0 for none.
    pub seen: u32,
    /// The largest window that the writer has onto the peer, in pages of 4 KiB.
    pub limit_pages: u32,
    /// The memory that the writer gives a window on, in pages.
    pub inbound_pages: u32,
    /// The writer's translation is set.
    pub ready: bool,
}

fn check(words: &[u32]) -> u32 {
    // FNV-1a: rows are torn or stale, not forged.
    words.iter().fold(0x811C_9DC5, |hash, word| (hash ^ word).wrapping_mul(0x0100_0193))
}

impl Row {
    /// The registers' values, to be written in ascending order.
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

    /// What registers say, or `None` for a row that is torn, empty, or no row at all.
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

/// Both sides' epochs: the identity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Our epoch.
    pub ours: u32,
    /// The peer's epoch.
    pub theirs: u32,
}

impl Connection {
    /// What tags words written over this connection: the same on both sides, never 0.
    pub fn tag(&self) -> u32 {
        let (low, high) = (self.ours.min(self.theirs), self.ours.max(self.theirs));
        check(&[low, high]) | 1
    }
}

/// What a look at the peer's row led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing new.
    Wait,
    /// The own row changed: write it and ring.
    Write,
    /// Connected; the own row may have changed too: write it and ring.
    Connected(Connection),
    /// The peer answers this side, in another version.
    OtherVersion(u16),
}

/// One side of the handshake with one peer.
#[derive(Clone, Debug)]
pub struct Handshake {
    own: Row,
    peer: Option<Row>,
}

impl Handshake {
    /// A side in a new epoch (not 0) with its sizes; `ready` when its translation is already set.
    pub fn new(epoch: u32, limit_pages: u32, inbound_pages: u32, ready: bool) -> Self {
        let own = Row { version: VERSION, epoch: epoch.max(1), seen: 0, limit_pages, inbound_pages, ready };
        Self { own, peer: None }
    }

    /// The row to write to the peer.
    pub fn row(&self) -> Row {
        self.own
    }

    /// The peer's row as last seen.
    pub fn peer(&self) -> Option<Row> {
        self.peer
    }

    /// The own translation is set: say so.
    pub fn set_ready(&mut self) {
        self.own.ready = true;
    }

    /// Takes a look at the peer's registers.
    pub fn look(&mut self, words: &[u32; ROW]) -> Progress {
        let Some(row) = Row::decode(words) else { return Progress::Wait };
        let fresh = self.own.seen != row.epoch;
        self.own.seen = row.epoch;
        self.peer = Some(row);
        if row.version != VERSION {
            // A stale row may be of any version; one that names our epoch was written for us.
            let ours = row.seen == self.own.epoch;
            return if ours { Progress::OtherVersion(row.version) } else { self.changed(fresh) };
        }
        if row.seen == self.own.epoch && row.ready && self.own.ready {
            return Progress::Connected(Connection { ours: self.own.epoch, theirs: row.epoch });
        }
        self.changed(fresh)
    }

    fn changed(&self, fresh: bool) -> Progress {
        if fresh { Progress::Write } else { Progress::Wait }
    }
}
