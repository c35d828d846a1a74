//! Records of several words. A reader takes a record as a whole or not at all. Only aligned accesses of up to
//! 8 bytes are atomic, so the head and the tail show whether a record is complete.
//!
//! ```text
//! word 0      1 .. 6      7
//! head        contents    tail        64 bytes, one cache line, one write-combining buffer
//! ```
//!
//! Head and tail hold the record's sequence number. A writer stores contents and tail, executes a fence, and
//! then stores the head. A reader takes a record only if head and tail hold the expected sequence. The reader
//! loads each word only once, because a hostile peer may change the record.

use super::wakeup::Word;

/// Number of content words.
pub const CONTENTS: usize = 6;
/// Size of a record in bytes.
pub const BYTES: usize = 64;

/// Access to the 8 words of a record. Each kind of memory that holds records implements it.
pub trait Words {
    /// The type of the words.
    type Word: Word;
    /// Returns word `index` of the record's 8 words.
    fn word(&self, index: usize) -> &Self::Word;
}

/// Reads the contents of the record with the sequence number `sequence`. Returns `None` if the number at the
/// record's head or tail is another one. The record is then an older one, or is not completely written yet.
#[inline]
pub fn take<W: Words>(words: &W, sequence: u64) -> Option<[u64; CONTENTS]> {
    if words.word(0).load() != sequence {
        return None;
    }
    let contents = std::array::from_fn(|index| words.word(index + 1).load());
    (words.word(CONTENTS + 1).load() == sequence).then_some(contents)
}

/// The destination of a record of 8 words, such as a memory window. Stores may arrive in any order, except
/// that all stores before a `fence` arrive before the later ones.
pub trait WordSink {
    /// Stores word `index` of the record's 8 words.
    fn store(&mut self, index: usize, value: u64);
    /// Makes all earlier stores to the destination arrive before all later ones.
    fn fence(&mut self);
}

/// Writes a record with this sequence.
#[inline]
pub fn write(sink: &mut impl WordSink, sequence: u64, contents: &[u64; CONTENTS]) {
    for (index, word) in contents.iter().enumerate() {
        sink.store(index + 1, *word);
    }
    sink.store(CONTENTS + 1, sequence);
    sink.fence();
    sink.store(0, sequence);
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use proptest::prelude::*;
    use std::cell::Cell;

    #[derive(Default)]
    struct PlainWord(Cell<u64>);
    struct Plain([PlainWord; 8]);

    impl Word for PlainWord {
        fn load(&self) -> u64 {
            self.0.get()
        }
        fn store(&self, value: u64) {
            self.0.set(value)
        }
    }

    impl Words for Plain {
        type Word = PlainWord;
        fn word(&self, index: usize) -> &PlainWord {
            &self.0[index]
        }
    }

    /// A sink for tests. It collects the stores in groups, and each fence begins a new group.
    #[derive(Default)]
    struct Posted(Vec<Vec<(usize, u64)>>);

    impl WordSink for Posted {
        fn store(&mut self, index: usize, value: u64) {
            if self.0.is_empty() {
                self.fence();
            }
            self.0.last_mut().unwrap().push((index, value));
        }
        fn fence(&mut self) {
            self.0.push(Vec::new());
        }
    }

    proptest! {
        // Stores between fences arrive in any order. After each store, the reader must get the whole record
        // or nothing.
        #[test]
        fn whole_or_nothing(old: [u64; CONTENTS], new: [u64; CONTENTS], shuffle: [u64; 8], sequence in 2u64..) {
            let record = Plain(Default::default());
            let mut posted = Posted::default();
            write(&mut posted, sequence - 1, &old);
            for (index, value) in posted.0.concat() {
                record.0[index].store(value);
            }
            prop_assert_eq!(take(&record, sequence - 1), Some(old));
            let mut posted = Posted::default();
            write(&mut posted, sequence, &new);
            for mut epoch in posted.0 {
                epoch.sort_by_key(|(index, _)| shuffle[*index]);
                for (index, value) in epoch {
                    record.0[index].store(value);
                    let seen = take(&record, sequence);
                    prop_assert!(seen.is_none() || seen == Some(new));
                }
            }
            prop_assert_eq!(take(&record, sequence), Some(new));
        }

        #[test]
        fn garbage_is_taken_only_with_both_ends(words: [u64; 8], sequence: u64) {
            let record = Plain(words.map(|word| PlainWord(Cell::new(word))));
            prop_assert_eq!(take(&record, sequence).is_some(), words[0] == sequence && words[7] == sequence);
        }
    }

    #[derive(Default)]
    struct LoomWord(AtomicU64);
    struct LoomRecord([LoomWord; 8]);

    impl Word for LoomWord {
        fn load(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }
        fn store(&self, value: u64) {
            self.0.store(value, Ordering::Release)
        }
    }

    impl Words for LoomRecord {
        type Word = LoomWord;
        fn word(&self, index: usize) -> &LoomWord {
            &self.0[index]
        }
    }

    struct Direct<'a>(&'a LoomRecord);

    impl WordSink for Direct<'_> {
        fn store(&mut self, index: usize, value: u64) {
            // Use a relaxed store, which is weaker than a store of an x86 processor. The model then passes
            // only if the fence orders the stores.
            self.0.0[index].0.store(value, Ordering::Relaxed);
        }
        fn fence(&mut self) {
            loom::sync::atomic::fence(Ordering::Release);
        }
    }

    #[test]
    fn loom_reader_against_writer() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = loom::sync::Arc::new(LoomRecord(Default::default()));
            let theirs = shared.clone();
            let writer =
                loom::thread::spawn(move || write(&mut Direct(&theirs), 1, &[11, 12, 13, 14, 15, 16]));
            if let Some(contents) = take(&*shared, 1) {
                assert_eq!(contents, [11, 12, 13, 14, 15, 16]);
            }
            writer.join().unwrap();
            assert_eq!(take(&*shared, 1), Some([11, 12, 13, 14, 15, 16]));
        });
    }
}
