//! How much a connection may receive ahead of its program.
//!
//! The packets of all connections pass through one receive queue. If every connection announced its whole buffer, a few dozen
//! senders could overrun the queue. Their packets would be lost, and a sender that loses a whole flight waits for its
//! retransmission timer again and again while others continue. So a window begins small. It doubles with each window of data
//! that arrives without loss. After the first loss it grows slowly, and each further loss halves it.
//!
//! The least windows of up to 256 connections together fit into a receive queue. Otherwise the queue would stay full, because
//! each frame that is taken from it lets a sender send the next one. A sender that has waited for its retransmission timer
//! sends a single frame and would find the queue full again and again, with a longer wait each time.

/// The window of a new connection, in bytes.
const FIRST: u32 = 65536;
/// The least window after losses, in bytes, if few connections share the queue. A smaller one would slow down connections
/// whose losses have other causes.
const LEAST: u32 = 32768;
/// The bytes that the least windows of all connections share: those of half of a receive queue of 1024 frames.
const SHARED: usize = 768 << 10;
/// The least window has at least so many segments, because fewer in flight would leave losses to the retransmission timer.
const LEAST_SEGMENTS: u32 = 4;
/// After a loss, the window grows by this part of itself with each window of data.
const PART: u32 = 16;

/// The receive window of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveWindow {
    bytes: u32,
    most: u32,
    /// The least window after losses.
    least: u32,
    /// The payload of a full segment in bytes.
    mss: u16,
    /// True if the program has set the window, by SO_RCVBUF.
    fixed: bool,
    /// True if data was lost.
    lossy: bool,
    /// The index of received data at which the window may grow next: one window after the index of the last change.
    grow_at: u64,
    /// The index of received data at which a loss may halve the window next: one window after that of the last loss, because
    /// a flight that loses several packets counts once.
    halve_at: u64,
}

impl ReceiveWindow {
    /// Creates the window of a new connection, which grows to at most `most` bytes. `mss` is the payload of a full segment.
    pub fn new(most: u32, mss: u16) -> Self {
        let bytes = FIRST.min(most);
        Self {
            bytes,
            most,
            least: LEAST,
            mss,
            fixed: false,
            lossy: false,
            grow_at: bytes.into(),
            halve_at: 0,
        }
    }

    /// Sets the least window after losses to the connection's share of the queue. `connections` share it.
    #[inline]
    pub fn share(&mut self, connections: usize) {
        let segments = (LEAST_SEGMENTS * u32::from(self.mss)).min(LEAST);
        self.least = ((SHARED / connections.max(1)) as u32).clamp(segments, LEAST);
    }

    /// Returns the window in bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Sets the greatest window. If `fixed` is set, it is the window from now on.
    pub fn limit(&mut self, most: u32, fixed: bool) {
        (self.most, self.fixed) = (most, fixed);
        self.bytes = if fixed { most } else { self.bytes.min(most) };
    }

    /// Adapts the window after the program has taken all data up to index `delivered`. `has_gap` is true if data behind that is
    /// missing. Returns true if the window has changed.
    #[inline]
    pub fn adapt(&mut self, delivered: u64, has_gap: bool) -> bool {
        if self.fixed || delivered < if has_gap { self.halve_at } else { self.grow_at } {
            return false;
        }
        let before = self.bytes;
        self.bytes = match (has_gap, self.lossy) {
            (true, _) => (self.bytes / 2).max(self.least.min(self.most)),
            (false, false) => self.bytes.saturating_mul(2).min(self.most),
            (false, true) => (self.bytes + self.bytes / PART).min(self.most),
        };
        self.grow_at = delivered + u64::from(self.bytes);
        if has_gap {
            // The flight in which the packet was lost may have been as large as the window before.
            (self.lossy, self.halve_at) = (true, delivered + u64::from(before));
        }
        self.bytes != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1 << 20;

    #[test]
    fn a_window_doubles_until_the_first_loss() {
        let mut window = ReceiveWindow::new(MOST, 1460);
        assert!(!window.adapt(65_535, false) && window.adapt(65_536, false));
        assert_eq!(window.bytes(), 131_072);
        assert!(!window.adapt(196_607, false) && window.adapt(196_608, false));
        assert!(window.adapt(200_000, true), "the first loss counts at once");
        assert_eq!(window.bytes(), 131_072);
        assert!(!window.adapt(200_001, true), "the same flight");
        assert!(window.adapt(200_000 + 131_072, false));
        assert_eq!(window.bytes(), 131_072 + 8192);
        assert!(!window.adapt(200_000 + 262_143, true) && window.adapt(200_000 + 262_144, true));
        assert_eq!(window.bytes(), 69_632);
    }

    #[test]
    fn a_window_stays_within_its_limits() {
        let mut window = ReceiveWindow::new(MOST, 1460);
        let mut delivered = 0;
        for _ in 0..1000 {
            delivered += 2 * u64::from(MOST);
            window.adapt(delivered, false);
        }
        assert_eq!(window.bytes(), MOST);
        for _ in 0..1000 {
            delivered += 2 * u64::from(MOST);
            window.adapt(delivered, true);
        }
        assert_eq!(window.bytes(), LEAST);
        for (connections, least) in [(1, LEAST), (24, LEAST), (64, 12_288), (10_000, 5840)] {
            window.share(connections);
            for _ in 0..100 {
                delivered += 2 * u64::from(MOST);
                window.adapt(delivered, true);
            }
            assert_eq!(window.bytes(), least, "{connections} connections");
        }
        for connections in 1..=256 {
            window.share(connections);
            assert!(connections <= 24 || window.least as usize * connections <= 1024 * 1460, "{connections}");
        }
        window.limit(4096, true);
        assert!(!window.adapt(delivered + 10_000, false) && window.bytes() == 4096);
        let mut small = ReceiveWindow::new(4096, 1460);
        assert!(!small.adapt(1, true) && small.bytes() == 4096);
    }
}
