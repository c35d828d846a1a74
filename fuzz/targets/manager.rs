//! Answers a client of PMI-1 with arbitrary bytes. The client must return a value or an error.

use inlane_pgas::launch::manager::{ProcessManager, pmi::Pmi};
use std::io::{Cursor, Read, Write};

/// A connection to a process manager. The manager answers with the fuzzer's bytes and ignores all requests.
struct Manager<'a>(Cursor<&'a [u8]>);

impl Read for Manager<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Manager<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub fn run(answers: &[u8]) {
    if let Ok(mut manager) = Pmi::over(Manager(Cursor::new(answers)), 0, 2) {
        let _ = (manager.put("key", "text"), manager.fence(), manager.get(1, "key"), manager.finish());
    }
}
