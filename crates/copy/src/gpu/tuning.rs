//! How transfers by SMs are cut into pieces, and what of it can be tuned.

/// What can be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tuning {
    /// Blocks each side, each with a ring of its own.
    pub lanes: u32,
    /// Threads a block.
    pub threads: u32,
    /// Bytes of the largest chunk.
    pub chunk: usize,
    /// Chunks in a lane's ring.
    pub slots: usize,
    /// Turns that a lane takes for a transfer of moderate size that is alone: with more, pushing and pulling overlap better;
    /// each costs a fence. Behind other transfers two are enough; large ones take as many as their chunks need.
    pub turns: usize,
    /// The largest transfer that goes in lines (data with laps, no fences); 0 for none.
    pub lines: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { lanes: 16, threads: 512, chunk: 64 << 10, slots: 8, turns: 4, lines: 256 << 10 }
    }
}

impl Tuning {
    /// Bytes of a lane's share of a transfer in lines: whole rows of 32 lines, 12 bytes of data each.
    fn share(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.lanes as usize).next_multiple_of(ROW)
    }

    /// Bytes of one place of a lane's ring of lines.
    pub(super) fn line_bytes(&self) -> usize {
        self.share(self.lines) / 12 * 16
    }
}

/// Bytes of data that a warp moves at once in lines.
const ROW: usize = 32 * 12;
/// Set in a command's chunk: the transfer goes in lines.
const LINES: u64 = 1 << 63;

/// How a transfer is cut: bytes of a piece, and whether it goes in lines.
pub(super) fn pieces(bytes: usize, tuning: &Tuning, alone: bool) -> u64 {
    if bytes <= tuning.lines {
        return tuning.share(bytes) as u64 | LINES;
    }
    chunk_for(bytes, tuning, alone) as u64
}

/// Chunks such that every lane has work, and transfers that are worth it several turns of it.
fn chunk_for(bytes: usize, tuning: &Tuning, alone: bool) -> usize {
    let lanes = tuning.lanes as usize;
    let turns = match bytes >= lanes * 8192 {
        true if alone => tuning.turns.max(1),
        true => tuning.turns.clamp(1, 2),
        false => 1,
    };
    bytes.div_ceil(lanes * turns).next_multiple_of(512).clamp(1024.min(tuning.chunk), tuning.chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fit_their_slots_and_cover_the_lanes() {
        let tuning = Tuning { lanes: 32, ..Tuning::default() };
        for bytes in [1, 4096, 64 << 10, 1 << 20, 16 << 20, 1 << 30] {
            let chunk = chunk_for(bytes, &tuning, false);
            assert!(chunk <= tuning.chunk && chunk.is_multiple_of(16), "{bytes}: {chunk}");
        }
        assert_eq!(chunk_for(64 << 10, &tuning, true), 2048, "each lane has a chunk");
        assert_eq!(chunk_for(1 << 20, &tuning, true), 8192, "each lane has four");
        assert_eq!(chunk_for(1 << 20, &tuning, false), 16384, "behind others two");
        assert_eq!(chunk_for(1 << 30, &tuning, true), tuning.chunk);
        assert_eq!(chunk_for(100, &Tuning { chunk: 512, ..tuning }, true), 512);
    }

    proptest::proptest! {
        #[test]
        fn transfers_in_lines_are_one_piece_a_lane_that_fits(bytes in 1usize..1 << 20, lanes in 1u32..133, alone: bool) {
            let tuning = Tuning { lanes, ..Tuning::default() };
            let pieces = pieces(bytes, &tuning, alone);
            let piece = (pieces & !LINES) as usize;
            proptest::prop_assert_eq!(pieces & LINES != 0, bytes <= tuning.lines);
            if pieces & LINES != 0 {
                proptest::prop_assert!(piece * lanes as usize >= bytes && piece.is_multiple_of(4));
                proptest::prop_assert!(piece.div_ceil(12) * 16 <= tuning.line_bytes());
            } else {
                proptest::prop_assert!(piece <= tuning.chunk);
            }
        }
    }
}
