//! Keeps the last failed commands of a controller, for the log page Error Information.

use crate::wire::command::{Command, FABRICS, Status};
use std::collections::VecDeque;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// The most errors that are kept. The oldest one is dropped for a newer one.
pub const ENTRIES: usize = 64;

wire! {
    /// An entry of the log page Error Information (Base section 5.16.1.2), 64 bytes.
    pub struct ErrorEntry {
        /// The number of this error; the first error of a controller has number 1.
        pub count: U64,
        /// The queue on which the command arrived.
        pub queue: U16,
        /// The command's identifier.
        pub cid: U16,
        /// The status of the completion, in bits 15:1.
        pub status: U16,
        /// Where the error is in the command: bits 7:0 are the byte, bits 10:8 the bit. FFFFh: unknown.
        pub location: U16,
        /// The first block of the command's range.
        pub lba: U64,
        /// The command's namespace.
        pub nsid: U32,
        /// The fields from VSIA to the end of the entry. They are all 0.
        pub reserved: [u8; 36],
    }
}

/// The last errors of a controller.
#[derive(Debug, Default)]
pub struct ErrorLog {
    /// The entries, the newest first.
    entries: VecDeque<ErrorEntry>,
    /// The number of all errors since the controller was created.
    count: u64,
}

impl ErrorLog {
    /// Adds a command that completed with an error.
    pub fn add(&mut self, queue: u16, command: &Command, status: Status, lba: u64) {
        self.count += 1;
        // In a Fabrics command, the bytes of the namespace identifier have another meaning.
        let nsid = if command.opcode == FABRICS { 0.into() } else { command.nsid };
        self.entries.truncate(ENTRIES - 1);
        self.entries.push_front(ErrorEntry {
            count: self.count.into(),
            queue: queue.into(),
            cid: command.cid,
            status: (status.0 << 1).into(),
            location: u16::MAX.into(),
            lba: lba.into(),
            nsid,
            ..ErrorEntry::new_zeroed()
        });
    }

    /// Returns the number of all errors since the controller was created.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the log page. Entries without an error are zeros.
    pub fn page(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.entries.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        page.resize(ENTRIES * size_of::<ErrorEntry>(), 0);
        page
    }
}
