//! How a PE's inbound memory is laid out. Who writes what:
//!
//! ```text
//! 0        header      owner, before the handshake: magic, PEs, symmetric bytes
//! 4096     inbox 0     PE 0 alone        +0     notifications: tag << 32 | count
//! 12288    inbox 1     PE 1 alone        +128   nap: PE p is about to sleep, ring once for each new number
//! ...                                    +512   replies[64] to this PE's requests, 32 bytes each
//!                                        +4096  requests[64] by PE p, 64 bytes each
//!          landing     whoever answers a get of this PE
//!          symmetric   everybody
//! ```
//!
//! Every word that is polled lies with its reader. Words carry the connection's tag, so what is left from an earlier
//! connection, or arrives late from it, is not taken.

use crate::error::{Error, Result};

/// Words of the header: magic, PEs, symmetric bytes, and 1 if the owner is registered for barriers.
pub const HEADER_WORDS: usize = 4;
/// The header's first word.
pub const MAGIC: u64 = 0x696e_6c61_6e65_6e74;
/// Requests that may be under way to one peer.
pub const SLOTS: u64 = 64;
/// Bytes of the landing, and of the largest piece of a get.
pub const LANDING: usize = 1 << 20;

const HEADER: usize = 4096;
const INBOX: usize = 8192;
const ANNOUNCEMENT: usize = 128;
const REPLIES: usize = 512;
const REQUESTS: usize = 4096;
/// Bytes of a reply: status, value, unused, sequence.
pub const REPLY: usize = 32;

/// Where things are, for a number of PEs and of symmetric bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pes: u32,
    symmetric: usize,
    bytes: usize,
}

impl Layout {
    /// The layout of `bytes` of inbound memory for `pes` PEs: symmetric memory is what remains.
    ///
    /// # Errors
    /// [`Error::Invalid`] when nothing remains.
    pub fn new(pes: u32, bytes: usize) -> Result<Self> {
        let symmetric = Self::overhead(pes);
        if bytes < symmetric + 4096 {
            return Err(Error::invalid(
                format!("inbound memory of {bytes} bytes for {pes} processing elements"),
                format!("too small: the protocol takes {symmetric}; give a larger window"),
            ));
        }
        Ok(Self { pes, symmetric, bytes })
    }

    /// Bytes in front of symmetric memory.
    pub fn overhead(pes: u32) -> usize {
        HEADER + pes as usize * INBOX + LANDING
    }

    /// Offset of symmetric memory.
    pub fn symmetric(&self) -> usize {
        self.symmetric
    }

    /// Bytes of symmetric memory.
    pub fn symmetric_bytes(&self) -> usize {
        self.bytes - self.symmetric
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn inbox(&self, from: u32) -> usize {
        assert!(from < self.pes, "checked by the caller");
        HEADER + from as usize * INBOX
    }

    /// Where `from` counts its notifications.
    pub fn notifications(&self, from: u32) -> usize {
        self.inbox(from)
    }

    /// Where `from` announces that it sleeps.
    pub fn announcement(&self, from: u32) -> usize {
        self.inbox(from) + ANNOUNCEMENT
    }

    /// Where `from` answers request `number`.
    pub fn reply(&self, from: u32, number: u64) -> usize {
        self.inbox(from) + REPLIES + (number % SLOTS) as usize * REPLY
    }

    /// Where `from` writes its request `number`.
    pub fn request(&self, from: u32, number: u64) -> usize {
        self.inbox(from) + REQUESTS + (number % SLOTS) as usize * super::record::BYTES
    }

    /// Where pushed gets land.
    pub fn landing(&self) -> usize {
        HEADER + self.pes as usize * INBOX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let layout = Layout::new(3, 4 << 20).unwrap();
        let mut spans =
            vec![(0, HEADER), (layout.landing(), LANDING), (layout.symmetric(), layout.symmetric_bytes())];
        for pe in 0..3 {
            spans.push((layout.notifications(pe), 8));
            spans.push((layout.announcement(pe), 8));
            for number in 0..SLOTS {
                spans.push((layout.reply(pe, number), REPLY));
                spans.push((layout.request(pe, number), crate::transport::record::BYTES));
            }
        }
        spans.sort();
        assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(spans.iter().all(|(start, _)| start % 8 == 0));
        assert_eq!(layout.symmetric() + layout.symmetric_bytes(), layout.bytes());
        assert_eq!(layout.symmetric() % 4096, 0);
        assert!(Layout::new(3, 1 << 20).is_err());
    }
}
