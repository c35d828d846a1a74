//! The peer's engine publishes the bytes that it stores into the receive ring. The test code plays that engine and the program.

use super::*;
use crate::host::socket::StreamPair;
use crate::stack::rdma::OwnRing;
use crate::stack::tests::rdma::Link;
use inlane_tcp::EndReason;
use std::io::Read;
use std::os::unix::net::UnixStream;

/// Returns byte `index` of the stream.
fn byte(index: u64) -> u8 {
    (index % 251) as u8
}

/// A connection whose receive ring is shared with the peer's engine.
struct Connection {
    link: Link,
    pair: StreamPair,
    /// The engine's and the program's end of the socket pair.
    ends: [UnixStream; 2],
    slot: Slot,
    /// The number of stored bytes, counted as the peer's engine does.
    stored: u64,
    /// The index of the next byte to store.
    next: u64,
    /// The index of the next byte for the program.
    read: u64,
    /// Nanoseconds.
    now: u64,
}

impl Connection {
    /// Creates a connection on which each side has received one byte. The program has asked for the ring.
    fn new() -> Self {
        let mut link = Link::new([true; 2], [vec![byte(0)], vec![0]]);
        let now = link.run(|_| 1) * 1_000_000;
        let area = area();
        let stream = link.stream_mut(1);
        let (polled, key) = (Polled::new(&area, 0), Key::from_u64(3));
        let mut direct =
            Direct::new(now, polled, (key, 1), (7, DEVICE), stream.written, false, None).unwrap();
        direct.offered = true;
        stream.replace_rings(direct.rings());
        let (slot, stored) = (direct.slot(), 1 << 40);
        stream.open_stores(OwnRing::new(slot, Arc::new(()), stored));
        assert!(slot.receive().ask());
        let pair = StreamPair { direct: Some(Box::new(direct)), ..StreamPair::new() };
        let (engine, program) = UnixStream::pair().unwrap();
        for end in [&engine, &program] {
            end.set_nonblocking(true).unwrap();
        }
        Self { link, pair, ends: [engine, program], slot, stored, next: 1, read: 1, now }
    }

    /// Creates a connection whose peer's engine publishes. The program has read everything.
    fn publishing() -> Self {
        let mut connection = Self::new();
        assert_eq!(connection.store(10), Some(false));
        connection.serve();
        assert_eq!(connection.visible(), 10);
        connection.take(10);
        connection
    }

    fn direct(&mut self) -> &mut Direct {
        self.pair.direct.as_mut().unwrap()
    }

    /// Begins a store of the peer's engine.
    fn begin(&mut self) -> Option<Claim> {
        self.slot.stores().ring.claim_at(self.stored)
    }

    /// Ends a store of `len` bytes. Returns whether they were published, or `None` if the ring was closed for stores.
    fn end(&mut self, claim: Claim, len: u64) -> Option<bool> {
        for index in self.next..self.next + len {
            // SAFETY: the position is in the receive ring.
            unsafe { self.slot.rings().add(RING + index as usize % RING).write(byte(index)) };
        }
        let published = self.slot.stores().commit(claim, len, self.next + len)?;
        (self.stored, self.next) = (self.stored + len, self.next + len);
        Some(published)
    }

    fn store(&mut self, len: u64) -> Option<bool> {
        let claim = self.begin()?;
        self.end(claim, len)
    }

    /// Stores bytes, and does not publish them. To the engine, they are like bytes of packets.
    fn store_unpublished(&mut self, len: u64) {
        let base = self.slot.stores().base.load(Ordering::Relaxed);
        self.slot.stores().set_base(None);
        assert_eq!(self.store(len), Some(false));
        self.slot.stores().base.store(base, Ordering::Relaxed);
    }

    /// Does what the engine does after the peer's doorbell. Returns true if the next round must continue at once.
    fn serve(&mut self) -> bool {
        self.process();
        self.deliver()
    }

    fn process(&mut self) {
        self.link.stream_mut(1).process_stores(self.now);
    }

    fn deliver(&mut self) -> bool {
        self.pair.deliver(self.now, self.link.stream_mut(1), self.ends[0].as_raw_fd()).unwrap()
    }

    /// Returns the number of bytes that the program finds in the receive ring.
    fn visible(&self) -> u64 {
        self.slot.received().map_or(0, |received| received.len)
    }

    /// Takes bytes of the receive ring as the program does.
    fn take(&mut self, len: u64) {
        let bytes = take(self.pair.direct.as_ref().unwrap(), len as usize);
        self.check(&bytes);
    }

    /// Reads what the socket pair has as the program does. Returns the number of bytes.
    fn read_pair(&mut self) -> usize {
        let mut bytes = vec![0; RING];
        let len = self.ends[1].read(&mut bytes).unwrap_or(0);
        self.check(&bytes[..len]);
        len
    }

    fn check(&mut self, bytes: &[u8]) {
        for &found in bytes {
            assert_eq!(found, byte(self.read), "byte {}", self.read);
            self.read += 1;
        }
    }

    fn reason(&mut self) -> Option<EndReason> {
        self.link.stream_mut(1).connection.reason()
    }
}

#[test]
fn earlier_stores_are_visible_before_the_peers_engine_publishes() {
    let mut connection = Connection::new();
    assert_eq!(connection.store(100), Some(false));
    connection.process();
    // The engine finds these bytes only when it begins.
    assert_eq!(connection.store(50), Some(false));
    assert!(!connection.deliver());
    assert_eq!(connection.visible(), 150);
    assert_eq!((connection.store(25), connection.visible()), (Some(true), 175));
    connection.take(175);
    // The program is not hostile, although this engine has not processed the last bytes that the program has taken. The engine
    // counts these bytes once it has processed them.
    assert!(!connection.deliver() && !connection.serve() && !connection.deliver());
    let stream = connection.link.stream_mut(1);
    assert_eq!((stream.connection.received(), stream.delivered), (176, 176));
}

#[test]
fn a_claimed_ring_is_not_published() {
    let mut connection = Connection::new();
    assert_eq!(connection.store(10), Some(false));
    connection.process();
    let claim = connection.begin().unwrap();
    assert!(!connection.deliver());
    assert_eq!((connection.end(claim, 10), connection.visible()), (Some(false), 10));
    assert!(!connection.serve());
    assert_eq!((connection.store(10), connection.visible()), (Some(true), 30));
}

#[test]
fn publishing_ends_when_the_store_under_way_has_ended() {
    let mut connection = Connection::publishing();
    assert_eq!(connection.store(40), Some(true));
    // The program leaves 30 bytes in the ring, while the next store is under way.
    connection.take(10);
    assert!(connection.slot.receive().leave());
    let claim = connection.begin().unwrap();
    for _ in 0..3 {
        connection.now += 1_000_000_000;
        assert!(connection.serve(), "the engine waits for the store");
        assert_eq!(connection.read_pair(), 0);
    }
    assert_eq!(connection.end(claim, 5), Some(true));
    assert!(!connection.deliver());
    // The bytes of that store follow those before it, and later ones are not published.
    assert_eq!((connection.read_pair(), connection.store(7)), (35, Some(false)));
    assert!(!connection.serve());
    assert_eq!((connection.read_pair(), connection.read, connection.reason()), (7, connection.next, None));
}

#[test]
fn a_store_that_never_ends_ends_the_connection_after_the_limit() {
    let mut connection = Connection::publishing();
    // The first store takes almost as long as it may. The next one has the whole time again.
    for ends in [true, false] {
        assert_eq!(connection.store(20), Some(true));
        assert!(connection.slot.receive().leave());
        let claim = connection.begin().unwrap();
        let start = connection.now;
        for later in [0, 1, STORE_LIMIT_NS / 2, STORE_LIMIT_NS - 1] {
            connection.now = start + later;
            assert!(connection.serve(), "the limit has not passed at {later}");
            assert_eq!(connection.reason(), None);
        }
        connection.now = start + STORE_LIMIT_NS;
        if ends {
            assert_eq!(connection.end(claim, 1), Some(true));
            assert!(!connection.serve());
            assert_eq!((connection.reason(), connection.read_pair()), (None, 21));
            // Later, the program looks at its slot again.
            connection.now += SHUN_NS << MOST_DOUBLINGS;
            assert!(connection.slot.receive().ask());
            assert_eq!(connection.store(3), Some(false));
            assert!(!connection.serve());
            connection.take(3);
        } else {
            connection.serve();
            assert_eq!(connection.reason(), Some(EndReason::Aborted));
        }
    }
}

#[test]
fn a_close_counts_published_bytes_that_the_program_has_taken() {
    let mut connection = Connection::publishing();
    assert!(!connection.serve());
    assert_eq!(connection.store(40), Some(true));
    connection.take(40);
    let claim = connection.begin().unwrap();
    let now = connection.now;
    let Connection { link, pair, .. } = &mut connection;
    let (direct, stream) = (pair.direct.as_mut().unwrap(), link.stream_mut(1));
    assert_eq!(direct.settle_last(now, stream), Ok(None), "a store is under way");
    assert_eq!(connection.end(claim, 2), Some(true));
    let Connection { link, pair, .. } = &mut connection;
    let (direct, stream) = (pair.direct.as_mut().unwrap(), link.stream_mut(1));
    assert_eq!(direct.settle_last(now, stream), Ok(Some(40)));
    assert!(direct.has_unread(), "the last two bytes");
    assert_eq!(connection.store(1), Some(false));
}

#[test]
fn a_slot_is_taken_away_only_once_nobody_publishes() {
    let mut connection = Connection::publishing();
    let claim = connection.begin().unwrap();
    let forbid = |connection: &mut Connection| {
        let Connection { link, pair, now, .. } = connection;
        pair.direct.as_mut().unwrap().forbid_publishing(*now, link.stream_mut(1))
    };
    assert!(forbid(&mut connection));
    assert_eq!(connection.end(claim, 5), Some(true), "the store under way is not disturbed");
    connection.store_unpublished(3);
    assert!(!connection.serve());
    assert_eq!(connection.visible(), 5);
    assert!(forbid(&mut connection) && !forbid(&mut connection));
    assert!(connection.begin().is_none(), "the ring is closed for stores");
    assert_eq!((connection.reason(), connection.visible()), (None, 8), "all bytes are visible at the end");
    connection.take(8);
    assert!(!connection.deliver());
    let stream = connection.link.stream_mut(1);
    assert_eq!((stream.connection.received(), stream.delivered), (19, 19));
    assert!(!connection.direct().has_unread());
}

#[test]
fn published_bytes_wake_a_thread_that_sleeps() {
    let mut connection = Connection::publishing();
    connection.serve();
    sleep(connection.pair.direct.as_ref().unwrap(), 1);
    let store = connection.begin().unwrap();
    assert_eq!(connection.end(store, 20), Some(true));
    // The thread does not look, because it sleeps, and the peer's engine has begun another store.
    let store = connection.begin().unwrap();
    assert!(connection.serve() && connection.direct().must_wake() && connection.read_pair() == 0);
    assert_eq!(connection.end(store, 5), Some(true));
    while connection.serve() {}
    assert_eq!(connection.read_pair(), 25);
    assert!(!connection.direct().must_wake());
    assert_eq!(connection.store(3), Some(false), "the ring is closed");
    connection.serve();
    assert_eq!(connection.read_pair(), 3);
}
