//! The layout of a PE's inbound memory:
//!
//! ```text
//!  offset   part          written by          contents
//!  0        header        the owner, before   magic, number of PEs, symmetric bytes, alignment
//!                         the handshake
//!  4096     inbox 0       PE 0 only           the same for each inbox p:
//!  12288    inbox 1       PE 1 only           +0     notifications: tag << 32 | count
//!  ...                                        +128   announcement: PE p is about to sleep
//!                                             +512   replies[64] to this PE's requests, 32 bytes each
//!                                             +4096  requests[64] by PE p, 64 bytes each
//!           landing area  the owner that      bytes of a get
//!                         answers a get
//!           symmetric     all PEs             symmetric memory
//! ```
//!
//! Each polled word lies in its reader's memory. Words carry the connection's tag, so words of an earlier
//! connection are ignored, even if they arrive late.

use crate::error::{Error, Result};

/// Number of words in the header:
///
/// 1. the magic;
/// 2. the number of PEs;
/// 3. the number of symmetric bytes;
/// 4. 0: unused;
/// 5. the alignment of the memory's address.
pub const HEADER_WORDS: usize = 5;
/// The value of the header's first word. A PE refuses a peer whose memory lacks it.
pub const MAGIC: u64 = 0x696e_6c61_6e65_6e74;
/// Largest number of requests in flight to one peer.
pub const SLOTS: u64 = 64;
/// Size in bytes of the landing area, where the bytes of gets arrive. A larger get is done in pieces of this
/// size.
pub const LANDING: usize = 1 << 20;

const HEADER: usize = 4096;
const INBOX: usize = 8192;
const ANNOUNCEMENT: usize = 128;
const REPLIES: usize = 512;
const REQUESTS: usize = 4096;
/// Size in bytes of a reply: status, value, unused, sequence.
pub const REPLY: usize = 32;

/// The offsets within a PE's inbound memory, as the module's documentation shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pes: u32,
    symmetric: usize,
    bytes: usize,
}

impl Layout {
    /// Lays out `bytes` of inbound memory for `pes` PEs: first the protocol's parts, then symmetric memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if less than a page of symmetric memory would remain.
    pub fn new(pes: u32, bytes: usize) -> Result<Self> {
        let symmetric = Self::overhead(pes);
        if bytes < symmetric + 4096 {
            return Err(Error::invalid(
                format!("inbound memory of {bytes} bytes for {pes} processing elements"),
                format!("the protocol needs {symmetric} of them; give a larger window"),
            ));
        }
        Ok(Self { pes, symmetric, bytes })
    }

    /// Returns the total size, in bytes, of the protocol's data structures. They lie in front of symmetric
    /// memory.
    pub fn overhead(pes: u32) -> usize {
        HEADER + pes as usize * INBOX + LANDING
    }

    /// Returns the offset of symmetric memory.
    pub fn symmetric(&self) -> usize {
        self.symmetric
    }

    /// Returns the size of symmetric memory in bytes.
    pub fn symmetric_bytes(&self) -> usize {
        self.bytes - self.symmetric
    }

    /// Returns the size of inbound memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn inbox(&self, from: u32) -> usize {
        assert!(from < self.pes, "checked by the caller");
        HEADER + from as usize * INBOX
    }

    /// Returns the offset of the notification counter of PE `from`, a word in which `from` counts its
    /// notifications.
    pub fn notifications(&self, from: u32) -> usize {
        self.inbox(from)
    }

    /// Returns the offset of the word in which PE `from` announces a sleep. The word says which stores must
    /// wake `from`.
    pub fn announcement(&self, from: u32) -> usize {
        self.inbox(from) + ANNOUNCEMENT
    }

    /// Returns the offset of a reply. PE `from` writes it to answer this PE's request `number`.
    pub fn reply(&self, from: u32, number: u64) -> usize {
        self.inbox(from) + REPLIES + (number % SLOTS) as usize * REPLY
    }

    /// Returns the offset of a request to this PE. PE `from` writes its request `number` there.
    pub fn request(&self, from: u32, number: u64) -> usize {
        self.inbox(from) + REQUESTS + (number % SLOTS) as usize * super::record::BYTES
    }

    /// Returns the offset of the landing area. Other PEs store the data of this PE's gets there.
    pub fn landing(&self) -> usize {
        HEADER + self.pes as usize * INBOX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let layout = Layout::new(3, 4 << 20).unwrap();
        let mut spans =
            vec![(0, HEADER), (layout.landing(), LANDING), (layout.symmetric(), layout.symmetric_bytes())];
        for pe in 0..3 {
            spans.push((layout.notifications(pe), 8));
            spans.push((layout.announcement(pe), 8));
            for number in 0..SLOTS {
                spans.push((layout.reply(pe, number), REPLY));
                spans.push((layout.request(pe, number), crate::transport::windows::record::BYTES));
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
