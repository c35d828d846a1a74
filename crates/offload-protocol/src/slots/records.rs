//! Counts the connections that wait in the pairs of a program's listeners.

use super::Word;

/// The numbers of records that the engine has sent to the listeners of a process, and that were received there. A record stands for a
/// connection that waits to be accepted. If both numbers are equal, no connection waits, and the library need not ask the kernel.
///
/// The engine counts a record before it sends it, so the program never finds fewer than it can receive.
pub struct Records<'a, W> {
    /// The number of records that were sent or are being sent. Only the engine writes it, and never reads what the program could change.
    pub sent: &'a W,
    /// The number of received records. Only the program writes it.
    pub received: &'a W,
    /// The number that the counted records contain. It is not 0. Records with another number, or 0, are not counted here.
    pub tag: u8,
}

impl<W: Word> Records<'_, W> {
    /// Counts a record. The engine calls this before it sends the record.
    pub fn note_sending(&self) {
        self.sent.add(1);
    }

    /// Takes back [`Records::note_sending`], because the record was not sent.
    pub fn note_unsent(&self) {
        self.sent.add(u64::MAX);
    }

    /// Counts a received record that contains `tag`. Returns false if it is not counted here.
    pub fn note_received(&self, tag: u8) -> bool {
        let counted = tag != 0 && tag == self.tag;
        if counted {
            self.received.add(1);
        }
        counted
    }

    /// Returns true if no counted record waits.
    pub fn is_empty(&self) -> bool {
        // Look at the received ones first: they then include no record that was sent later.
        let received = self.received.load();
        self.sent.load() == received
    }
}
