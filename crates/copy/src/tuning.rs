//! Tuning of staging between GPUs, and how transfers are cut into chunks.

use serde::{Deserialize, Serialize};

/// Tuning of staging by copy engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineTuning {
    /// The size of the largest chunk, in bytes.
    pub chunk: usize,
    /// The number of chunks that the staging ring holds.
    pub slots: usize,
    /// CUDA streams on each GPU. With two, one copies while the other waits for its event.
    pub streams: usize,
}

impl EngineTuning {
    /// Returns the tuning for transfers in one direction only, or in both directions at once if `both_ways`
    /// is true.
    ///
    /// For both directions, 4 MiB chunks in a ring of 16 MiB did best on two H200: 45 GB/s each way, with a
    /// ceiling of 49. The tuning for one direction reached 37 there. We suspect the host's caches, but did
    /// not measure them.
    pub fn suited(both_ways: bool) -> Self {
        let (chunk, slots) = if both_ways { (4 << 20, 4) } else { (8 << 20, 8) };
        Self { chunk, slots, streams: 2 }
    }
}

/// The smallest chunk, in bytes. The events of a smaller chunk would take too long compared with its copy.
const SMALLEST: usize = 128 << 10;
/// The cost of a chunk's events, expressed as a number of bytes. The events take 3 us. A link of 55 GB/s
/// could move this many bytes in that time.
const CHUNK_COST: f64 = 165e3;

/// Returns the chunk sizes of a transfer by copy engines, at most `largest` bytes each.
///
/// Set `idle` if no other transfer is in flight. In this case, fewer chunks cost fewer events, but smaller
/// chunks let the second stage start earlier. The best size is the square root of `bytes` times `CHUNK_COST`.
/// The first and last chunks are smaller, because only one stage works on them. If `idle` is not set, other
/// transfers keep both stages busy, so the chunks are as large as allowed.
pub fn engine_chunks(bytes: usize, largest: usize, idle: bool) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut left = bytes;
    if !idle {
        while left > 0 {
            sizes.push(left.min(largest));
            left -= left.min(largest);
        }
        return sizes;
    }
    let smallest = SMALLEST.min(largest);
    let best = ((bytes as f64 * CHUNK_COST).sqrt() as usize).next_power_of_two().clamp(smallest, largest);
    let mut tail = Vec::new();
    let mut size = (best / 4).max(smallest);
    // From chunk to chunk, the first chunks double in size and the last chunks halve. Small chunks at both
    // ends save time. The second stage is idle during the first chunk, and the first stage during the last
    // chunk.
    while size < best && left >= 4 * size {
        sizes.push(size);
        tail.push(size);
        left -= 2 * size;
        size *= 2;
    }
    while left > 0 {
        sizes.push(left.min(best));
        left -= left.min(best);
    }
    sizes.extend(tail.into_iter().rev());
    sizes
}

/// The tuning of staged copies by SMs.
///
/// A *channel* (NCCL's word) is one thread block on each GPU and the staging ring that the two blocks share.
/// A *line* is 16 bytes that are stored at once: 12 bytes of data and a 4-byte lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmTuning {
    /// The number of channels. Each channel has one thread block on each of the two GPUs, and its own staging
    /// ring.
    pub channels: u32,
    /// Threads in a block, a multiple of 32.
    pub threads: u32,
    /// Bytes of the largest chunk, a multiple of 16.
    pub chunk: usize,
    /// Chunks in a channel's ring.
    pub slots: usize,
    /// The number of chunks into which each channel splits its part of a transfer, if possible. More chunks
    /// overlap better, but each chunk costs a fence. A part of less than 8 KiB is one chunk. While other
    /// transfers are in flight, a channel aims at no more than two chunks. No chunk exceeds `chunk` bytes, so
    /// a large part is split into more chunks.
    pub turns: usize,
    /// The largest transfer that is sent as lines instead of chunks, in bytes. A line contains its lap, which
    /// shows that the line has arrived. A chunk needs a fence instead. 0 turns lines off.
    pub lines: usize,
}

impl Default for SmTuning {
    fn default() -> Self {
        Self { channels: 16, threads: 512, chunk: 64 << 10, slots: 8, turns: 4, lines: 256 << 10 }
    }
}

impl SmTuning {
    /// Returns the number of data bytes of each channel if a transfer of `bytes` bytes is sent as lines (see
    /// [`SmTuning`]). The laps in the lines are not counted. The number is rounded up to a multiple of
    /// [`ROW`].
    fn share(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.channels as usize).next_multiple_of(ROW)
    }

    /// Returns the size in bytes of one slot in a channel's ring of lines (see [`SmTuning`]). A slot holds
    /// one channel's share of the largest transfer that is sent as lines.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs have rings of lines"))]
    pub(crate) fn line_bytes(&self) -> usize {
        self.share(self.lines) / 12 * 16
    }

    /// Returns the `chunk` field of a command. For a transfer that is sent as lines (see [`SmTuning`]), the
    /// field is each channel's share in bytes, plus the bit [`LINES`]. For other transfers, the field is the
    /// chunk size in bytes. `alone` is true if no other transfer is in flight.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only GPUs take commands"))]
    pub(crate) fn chunk_field(&self, bytes: usize, alone: bool) -> u64 {
        if bytes <= self.lines {
            return self.share(bytes) as u64 | LINES;
        }
        self.chunk_for(bytes, alone) as u64
    }

    /// Returns the chunk size in bytes for a transfer of `bytes` bytes, at most `self.chunk`. In a small
    /// transfer, each channel gets one chunk. In a larger one, each channel gets several chunks, but at most
    /// two unless `alone` is true. `alone` means that no other transfer is in flight.
    fn chunk_for(&self, bytes: usize, alone: bool) -> usize {
        let channels = self.channels as usize;
        let turns = match bytes >= channels * 8192 {
            true if alone => self.turns.max(1),
            true => self.turns.clamp(1, 2),
            false => 1,
        };
        bytes.div_ceil(channels * turns).next_multiple_of(512).clamp(1024.min(self.chunk), self.chunk)
    }
}

/// The bytes of data that a warp stores at once: 32 lines with 12 bytes each.
const ROW: usize = 32 * 12;
/// The bit in a command's `chunk` field that is set if the transfer is sent as lines. A line is 16 bytes: 12
/// of data and 4 of the command's number. `staging.h` defines the same bit.
pub(crate) const LINES: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_pipeline_starts_and_ends_with_small_chunks() {
        let sizes = engine_chunks(256 << 20, 8 << 20, true);
        assert_eq!(sizes[0], 2 << 20);
        assert_eq!(sizes.last(), Some(&(2 << 20)));
        assert_eq!(engine_chunks(64 << 10, 8 << 20, true), [64 << 10]);
        assert_eq!(engine_chunks(256 << 20, 8 << 20, false), vec![8 << 20; 32]);
    }

    #[test]
    fn sm_chunks_fit_their_slots_and_occupy_all_channels() {
        let tuning = SmTuning { channels: 32, ..SmTuning::default() };
        for bytes in [1, 4096, 64 << 10, 1 << 20, 16 << 20, 1 << 30] {
            let chunk = tuning.chunk_for(bytes, false);
            assert!(chunk <= tuning.chunk && chunk.is_multiple_of(16), "{bytes}: {chunk}");
        }
        assert_eq!(tuning.chunk_for(64 << 10, true), 2048, "one chunk for each channel");
        assert_eq!(tuning.chunk_for(1 << 20, true), 8192, "four chunks for each channel");
        assert_eq!(
            tuning.chunk_for(1 << 20, false),
            16384,
            "two chunks for each channel behind other transfers"
        );
        assert_eq!(tuning.chunk_for(1 << 30, true), tuning.chunk);
        assert_eq!(SmTuning { chunk: 512, ..tuning }.chunk_for(100, true), 512);
    }

    proptest! {
        #[test]
        fn engine_chunks_cover_the_transfer(bytes in 1usize..1 << 30, power in 12u32..24, idle: bool) {
            let sizes = engine_chunks(bytes, 1 << power, idle);
            prop_assert_eq!(sizes.iter().sum::<usize>(), bytes);
            prop_assert!(sizes.iter().all(|size| *size > 0 && *size <= 1 << power));
        }

        #[test]
        fn a_transfer_as_lines_is_one_chunk_per_channel_that_fits(bytes in 1usize..1 << 20, channels in 1u32..133, alone: bool) {
            let tuning = SmTuning { channels, ..SmTuning::default() };
            let field = tuning.chunk_field(bytes, alone);
            let chunk = (field & !LINES) as usize;
            prop_assert_eq!(field & LINES != 0, bytes <= tuning.lines);
            if field & LINES != 0 {
                prop_assert!(chunk * channels as usize >= bytes && chunk.is_multiple_of(4));
                prop_assert!(chunk.div_ceil(12) * 16 <= tuning.line_bytes());
            } else {
                prop_assert!(chunk <= tuning.chunk);
            }
        }
    }
}
