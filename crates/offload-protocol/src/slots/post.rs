//! A buffer of the program into which the engine places received bytes, in place of the receive ring.
//!
//! A thread of the program that waits for bytes *posts* its buffer: it stores where the buffer lies in the arena of the area, and at which
//! position of the receive ring it found no further bytes. It takes the buffer back before its receive returns. The engine claims
//! the post while it writes. So it never writes after the buffer was taken back.
//!
//! ```text
//!        post               post           claim (engine)
//!   FREE ----> PREPARING ---------> POSTED <------------> WRITING
//!    ^ ^                              |    commit (engine)   |
//!    | +-------- take_back -----------+                      | seize (program)
//!    +-------------- commit (engine), which fails --------- LOST
//! ```
//!
//! A stopped engine may keep its claim for long. The program then seizes the post, and must not use that memory again. The engine's
//! commit fails, and the engine puts the bytes into the ring.

use super::{POSITION, Word};

/// The word has the state, a number that differs in each of many posts, and the number of bytes in the buffer:
///
/// ```text
///  63   61 60        32 31      0
/// | state | generation | placed  |
/// ```
const STATE_SHIFT: u32 = 61;
const GENERATION_SHIFT: u32 = 32;
const FREE: u64 = 0;
const PREPARING: u64 = 1;
const POSTED: u64 = 2;
const WRITING: u64 = 3;
const LOST: u64 = 4;
/// The bits of the generation and of the number of bytes.
const REST: u64 = (1 << STATE_SHIFT) - 1;
/// The bits of the number of bytes, which also limit the length of a buffer.
const PLACED: u64 = (1 << GENERATION_SHIFT) - 1;

fn with_state(word: u64, state: u64) -> u64 {
    state << STATE_SHIFT | word & REST
}

/// The words of a post in a slot.
pub struct Post<'a, W> {
    /// The state of the post.
    pub word: &'a W,
    /// The offset of the buffer in the arena, in bytes. Only the thread that posts writes this word and the next ones.
    pub offset: &'a W,
    /// The length of the buffer in bytes.
    pub len: &'a W,
    /// The position of the receive ring at which the thread found no further bytes.
    pub position: &'a W,
}

/// The buffer that a thread of the program has posted. It must be taken back.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Posted {
    generation: u64,
}

/// The engine's claim of a posted buffer. [`Post::commit`] ends it.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Placing {
    word: u64,
    /// The offset in the arena of the first byte to write. The engine must check it and `room`.
    pub offset: u64,
    /// The number of bytes that may be written.
    pub room: u64,
}

impl<W: Word> Post<'_, W> {
    /// Posts the `len` bytes at `offset` of the arena. `position` is the position of the receive ring up to which the program has
    /// taken all bytes. Returns `None` if a buffer is posted already.
    pub fn post(&self, offset: u64, len: u64, position: u64) -> Option<Posted> {
        let word = self.word.load();
        let generation = word.wrapping_add(1 << GENERATION_SHIFT) & REST & !PLACED;
        let free = word >> STATE_SHIFT == FREE && len <= PLACED;
        if !free || !self.word.exchange(word, with_state(generation, PREPARING)) {
            return None;
        }
        self.offset.store(offset);
        self.len.store(len);
        self.position.store(position & POSITION);
        self.word.store(with_state(generation, POSTED));
        Some(Posted { generation })
    }

    /// Returns the state, and the number of bytes in the buffer. Returns `None` if the word is not that of this post, which only a
    /// hostile process can cause.
    fn look(&self, posted: &Posted) -> Option<(u64, u64, u64)> {
        let word = self.word.load();
        (word & REST & !PLACED == posted.generation).then_some((word, word >> STATE_SHIFT, word & PLACED))
    }

    /// Returns the number of bytes in the buffer. Returns `None` while the engine writes further ones.
    #[inline]
    pub fn placed(&self, posted: &Posted) -> Option<u64> {
        self.look(posted).map_or(Some(0), |(_, state, placed)| (state == POSTED).then_some(placed))
    }

    /// Takes the buffer back. Returns the number of bytes in it. Returns `None` while the engine writes into it: try again.
    pub fn take_back(&self, posted: &Posted) -> Option<u64> {
        let Some((word, state, placed)) = self.look(posted) else { return Some(0) };
        match state {
            POSTED => self.word.exchange(word, with_state(posted.generation, FREE)).then_some(placed),
            WRITING | LOST => None,
            _ => Some(0),
        }
    }

    /// Takes the buffer from an engine that writes into it for too long. The engine may still write, so the caller must not use the
    /// memory any more. Returns the number of bytes that were placed before. Returns `None` if the engine does not write any more.
    pub fn seize(&self, posted: &Posted) -> Option<u64> {
        let (word, state, placed) = self.look(posted)?;
        (state == WRITING && self.word.exchange(word, with_state(word, LOST))).then_some(placed)
    }

    /// Claims the posted buffer, if there is one and its thread has taken all bytes up to `position`. The engine then writes from
    /// [`Placing::offset`] on.
    #[inline]
    pub fn claim(&self, position: u64) -> Option<Placing> {
        let word = self.word.load();
        if word >> STATE_SHIFT != POSTED || self.position.load() != position {
            return None;
        }
        let placed = word & PLACED;
        let (offset, len) = (self.offset.load(), self.len.load());
        let room = len.checked_sub(placed).filter(|&room| room > 0)?;
        // If this succeeds, the words above were those of this post: only a later post changes them.
        self.word.exchange(word, with_state(word, WRITING)).then_some(Placing {
            word,
            offset: offset.wrapping_add(placed),
            room,
        })
    }

    /// Ends a claim: `len` further bytes are in the buffer, at most [`Placing::room`]. Returns false if the program has seized the
    /// post meanwhile. The bytes must then go into the ring.
    #[inline]
    pub fn commit(&self, placing: &Placing, len: u64) -> bool {
        let committed = with_state(placing.word, POSTED) + len;
        self.word.exchange(with_state(placing.word, WRITING), committed) || {
            self.word.exchange(with_state(placing.word, LOST), with_state(placing.word & !PLACED, FREE));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    /// A connection whose engine receives the bytes 1 and 2, and a program with a buffer of two bytes.
    struct Model {
        words: [AtomicU64; 4],
        buffer: [UnsafeCell<u8>; 2],
    }

    impl Model {
        fn new() -> Arc<Self> {
            let words = std::array::from_fn(|_| AtomicU64::new(0));
            Arc::new(Self { words, buffer: [0; 2].map(UnsafeCell::new) })
        }

        fn post(&self) -> Post<'_, AtomicU64> {
            let [word, offset, len, position] = &self.words;
            Post { word, offset, len, position }
        }

        /// Places the byte with index `index` as the engine does. The index of the byte at position 0 is `base`. Returns false if the
        /// byte must go into the ring.
        fn place(&self, base: u64, index: u64) -> bool {
            let Some(placing) = self.post().claim(index.wrapping_sub(base) & POSITION) else { return false };
            assert!(placing.offset + placing.room <= 2);
            // SAFETY: loom fails the test if the program accesses the byte meanwhile.
            self.buffer[placing.offset as usize].with_mut(|to| unsafe { *to = index as u8 });
            self.post().commit(&placing, 1)
        }

        /// Takes the buffer back, and reuses it for something else. Returns the received bytes.
        fn reuse(&self, posted: &Posted) -> Vec<u8> {
            let placed = loop {
                match self.post().take_back(posted) {
                    Some(placed) => break placed as usize,
                    None => loom::thread::yield_now(),
                }
            };
            // SAFETY: loom fails the test if the engine writes meanwhile.
            let bytes = self.buffer[..placed].iter().map(|byte| byte.with(|byte| unsafe { *byte })).collect();
            for byte in &self.buffer {
                // SAFETY: as above.
                byte.with_mut(|byte| unsafe { *byte = 99 });
            }
            bytes
        }
    }

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(check);
    }

    #[test]
    fn model_a_buffer_is_never_written_after_it_was_taken_back() {
        model(|| {
            let model = Model::new();
            let engine = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    // The base moves with each placed byte, because the position does not.
                    let mut base = 1;
                    [1, 2].map(|index| {
                        let placed = model.place(base, index);
                        base += u64::from(placed);
                        placed
                    })
                })
            };
            let mut received = Vec::new();
            for _ in 0..2 {
                let posted = model.post().post(0, 2, 0).unwrap();
                received.extend(model.reuse(&posted));
            }
            let [first, second] = engine.join().unwrap();
            let expected: Vec<u8> =
                [(first, 1), (second, 2)].iter().filter(|it| it.0).map(|it| it.1).collect();
            assert_eq!(received, expected);
        });
    }

    /// A program that reuses the buffer without taking it back.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn model_finds_the_error_of_a_program_that_keeps_a_post() {
        model(|| {
            let model = Model::new();
            let engine = {
                let model = model.clone();
                loom::thread::spawn(move || model.place(1, 1))
            };
            let _posted = model.post().post(0, 2, 0);
            // SAFETY: loom fails the test, because the engine may write meanwhile.
            model.buffer[0].with_mut(|byte| unsafe { *byte = 99 });
            engine.join().unwrap();
        });
    }

    #[test]
    fn model_two_threads_never_share_a_post() {
        model(|| {
            let model = Model::new();
            let other = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    model.post().post(0, 1, 0).map_or(vec![], |posted| {
                        let bytes = loop {
                            match model.post().take_back(&posted) {
                                Some(bytes) => break bytes,
                                None => loom::thread::yield_now(),
                            }
                        };
                        vec![bytes]
                    })
                })
            };
            let posted = model.post().post(1, 1, 7);
            assert!(!model.place(0, 9), "no thread waits at this position");
            // SAFETY: loom fails the test if the engine writes into the wrong buffer.
            model.buffer[1].with_mut(|byte| unsafe { *byte = 5 });
            if let Some(posted) = posted {
                assert_eq!(model.post().take_back(&posted), Some(0));
            }
            assert!(other.join().unwrap().iter().all(|&bytes| bytes == 0));
        });
    }

    /// The program seizes the buffer while the engine writes. Each byte is then in the buffer and counted, or goes into the ring.
    #[test]
    fn model_bytes_of_a_seized_post_go_into_the_ring() {
        model(|| {
            let model = Model::new();
            let posted = model.post().post(0, 2, 0).unwrap();
            let engine = {
                let model = model.clone();
                loom::thread::spawn(move || model.place(1, 1))
            };
            let (placed, seized) = loop {
                if let Some(placed) = model.post().take_back(&posted) {
                    break (placed, false);
                }
                if let Some(placed) = model.post().seize(&posted) {
                    break (placed, true);
                }
                loom::thread::yield_now();
            };
            let counted = engine.join().unwrap();
            assert_eq!(placed, u64::from(counted));
            assert!(!seized || !counted);
            let next = model.post().post(0, 2, 1).expect("the post is free again");
            assert_eq!(model.post().take_back(&next), Some(0));
        });
    }

    #[test]
    fn a_claim_continues_where_the_last_one_ended_and_an_old_post_has_no_effect() {
        let words: [_; 4] = std::array::from_fn(|_| std::sync::atomic::AtomicU64::new(0));
        let [word, offset, len, position] = &words;
        let post = Post { word, offset, len, position };
        assert_eq!(post.claim(0), None);
        let posted = post.post(4096, 100, 7).unwrap();
        assert_eq!((post.post(0, 1, 0), post.claim(8)), (None, None));
        let placing = post.claim(7).unwrap();
        assert_eq!((placing.offset, placing.room), (4096, 100));
        assert_eq!((post.take_back(&posted), post.claim(7)), (None, None));
        assert!(post.placed(&posted).is_none() && post.commit(&placing, 60));
        assert_eq!(post.placed(&posted), Some(60));
        let placing = post.claim(7).unwrap();
        assert_eq!((placing.offset, placing.room), (4156, 40));
        assert!(post.commit(&placing, 40));
        assert_eq!((post.claim(7), post.take_back(&posted)), (None, Some(100)));
        assert_eq!((post.claim(7), post.seize(&posted)), (None, None));
        let next = post.post(0, 1, 9).unwrap();
        assert_eq!((post.take_back(&posted), post.seize(&posted)), (Some(0), None));
        assert_eq!((post.claim(7), post.take_back(&next)), (None, Some(0)));
    }
}
