//! The source and destination memory of a measurement, and the check of the transferred bytes.
//!
//! ```text
//!  source slots         0  1  2  3      each filled with a pattern of its own
//!  lap 0 goes to        0  1  2  3      destination slots, poisoned before
//!  lap 1 goes to        3  0  1  2
//! ```
//!
//! In every lap, each destination slot receives the pattern of another source slot. If a transfer is dropped,
//! its destination slot keeps the previous lap's pattern, so the check finds the missing transfer.

use crate::device::Device;
use crate::stop::{PIECE, check_stop};
use inlane_core::{Error, Region, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The most slots into which a region is cut. Successive transfers use the slots in turn.
pub(crate) const MOST_SLOTS: usize = 64;
/// During a run, one transfer in this many is checked: its last bytes are compared. The number is odd, so the
/// checks reach all slots if the number of slots is a power of two.
const SAMPLE_INTERVAL: usize = 7;
/// Slots start at multiples of this many bytes, because DMA engines prefer whole pages.
const ALIGNMENT: usize = 4096;

/// A source and a destination region, cut into slots that transfers rotate over.
pub struct Buffers {
    from: Arc<Device>,
    to: Arc<Device>,
    source: Region,
    destination: Region,
    /// The part of the patterns' seeds that is the same for all slots. Each repeat increments it. If a
    /// pattern of the previous repeat is left in a slot, it then counts as wrong.
    seed: u64,
}

/// The assignment of the slots of [`Buffers`] to the transfers of one repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation {
    pub(crate) size: usize,
    pub(crate) slots: usize,
    /// If true, each destination slot receives another source slot's pattern in every lap. If false, it
    /// always receives the pattern of the source slot with its own number. Two transfers in flight may then
    /// share a destination slot, so they must write the same bytes.
    shifted: bool,
}

impl Rotation {
    /// Returns the numbers of a transfer's source slot and destination slot, counted from 0.
    fn slots_of(&self, transfer: usize) -> (usize, usize) {
        let (lap, slot) = (transfer / self.slots, transfer % self.slots);
        (if self.shifted { (slot + lap) % self.slots } else { slot }, slot)
    }

    /// Returns the offset and the length of a transfer's last word. The word has 8 bytes, or fewer if the
    /// size of the transfer is not a multiple of 8.
    fn tail(&self) -> (usize, usize) {
        let last_word = (self.size - 1) / 8 * 8;
        (last_word, self.size - last_word)
    }
}

impl Buffers {
    /// Allocates memory for transfers of up to `largest` bytes: two slots of this size, or `rotate` bytes if
    /// that is more. Uses at most a third of the smaller device's memory, but at least `largest` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Device`] if a device has no room for one slot.
    pub fn new(from: &Arc<Device>, to: &Arc<Device>, largest: usize, rotate: usize) -> Result<Self> {
        let wanted = (2 * stride(largest)).max(rotate);
        // Take at most a third, because the other direction and calibration need memory too.
        let spare = from.capacity().min(to.capacity()) / 3;
        let bytes = wanted.min(spare).max(largest);
        Ok(Self::over(from, to, &[from.allocate(bytes)?, to.allocate(bytes)?]))
    }

    /// Makes buffers of regions that exist already: a source and a destination of the same length.
    pub(crate) fn over(from: &Arc<Device>, to: &Arc<Device>, regions: &[Region; 2]) -> Self {
        let [source, destination] = regions.clone();
        Self { source, destination, from: from.clone(), to: to.clone(), seed: 1 }
    }

    /// Returns the devices of the source and of the destination.
    pub(crate) fn devices(&self) -> [&Arc<Device>; 2] {
        [&self.from, &self.to]
    }

    /// Describes how the bytes are checked, for results.
    pub(crate) fn method(&self) -> &'static str {
        if !self.to.is_verifiable() {
            "none: the destination must not be read"
        } else if self.to.is_cpu_memory() {
            "all bytes of the newest transfer into each buffer, and the last 8 bytes of one in 7 of the others; destinations \
             are overwritten before each repeat"
        } else {
            "all bytes of the newest transfer into each buffer; destinations are overwritten before each repeat"
        }
    }

    /// Returns how transfers of `size` bytes rotate over the slots, with up to `in_flight` transfers at once.
    pub(crate) fn rotation(&self, size: usize, in_flight: usize) -> Rotation {
        let fit = if size == self.source.len() { 1 } else { self.source.len() / stride(size) };
        let slots = fit.clamp(1, MOST_SLOTS);
        Rotation { size, slots, shifted: slots >= in_flight }
    }

    /// Returns the source and the destination of transfer number `transfer`, counted from 0.
    pub(crate) fn regions(&self, rotation: Rotation, transfer: usize) -> Result<(Region, Region)> {
        let (source, destination) = rotation.slots_of(transfer);
        let stride = stride(rotation.size);
        Ok((
            self.source.slice(source * stride, rotation.size)?,
            self.destination.slice(destination * stride, rotation.size)?,
        ))
    }

    /// Fills the source slots and poisons the destination slots.
    pub(crate) fn prepare(&mut self, rotation: Rotation, stop: &AtomicBool) -> Result<()> {
        self.seed += 1;
        for slot in 0..rotation.slots {
            let (source, destination) = self.regions(rotation, slot)?;
            let seed = self.seed_of(slot);
            in_pieces(&self.from, &source, stop, |piece, word| self.from.fill(piece, seed + word))?;
            in_pieces(&self.to, &destination, stop, |piece, _| self.to.poison(piece))?;
        }
        Ok(())
    }

    /// Returns the seed for the pattern of a source slot. At the same offset, the patterns of two slots never
    /// have the same word.
    fn seed_of(&self, source_slot: usize) -> u64 {
        self.seed << 40 | (source_slot as u64) << 32
    }

    /// Compares the last bytes (at most 8) of one transfer in seven, because comparing all bytes would slow
    /// the measurement. Does nothing if the CPU cannot access the destination as memory. Call it when the
    /// transfer has completed, and before its destination slot is used again.
    ///
    /// # Errors
    /// [`Error::Altered`] if a byte differs.
    #[inline]
    pub(super) fn sample(&self, rotation: Rotation, transfer: usize) -> Result<()> {
        if !transfer.is_multiple_of(SAMPLE_INTERVAL) || !self.is_sampled(rotation) {
            return Ok(());
        }
        let (source_slot, slot) = rotation.slots_of(transfer);
        let (last_word, bytes) = rotation.tail();
        let tail = self.destination.slice(slot * stride(rotation.size) + last_word, bytes)?;
        let wrong = self.to.count_wrong(&tail, self.seed_of(source_slot) + last_word as u64 / 8)?;
        if wrong > 0 {
            return Err(self.altered(transfer, wrong, bytes));
        }
        Ok(())
    }

    fn is_sampled(&self, rotation: Rotation) -> bool {
        rotation.shifted && self.to.is_cpu_memory()
    }

    /// Compares all bytes of the newest transfer into each slot. `transfers` is the number of transfers made.
    /// Returns the number of bytes that this function and [`Buffers::sample`] have compared, or 0 if the
    /// destination must not be read.
    ///
    /// # Errors
    /// [`Error::Altered`] if a byte differs.
    pub(crate) fn verify(&self, rotation: Rotation, transfers: usize, stop: &AtomicBool) -> Result<u64> {
        self.verify_but_broken(rotation, transfers, false, stop)
    }

    /// Does the same as [`Buffers::verify`] if `broken` is false. If it is true, one more transfer was begun but did not
    /// complete, so the bytes in its destination slot are not compared.
    ///
    /// # Errors
    /// As for [`Buffers::verify`].
    pub(crate) fn verify_but_broken(
        &self,
        rotation: Rotation,
        transfers: usize,
        broken: bool,
        stop: &AtomicBool,
    ) -> Result<u64> {
        if !self.to.is_verifiable() {
            return Ok(0);
        }
        let older = transfers.saturating_sub(rotation.slots);
        let mut compared = match self.is_sampled(rotation) {
            true => (older.div_ceil(SAMPLE_INTERVAL) * rotation.tail().1) as u64,
            false => 0,
        };
        // The broken transfer would have followed the newest one, so its slot is that of the oldest transfer compared.
        let shares_a_slot = broken && transfers >= rotation.slots;
        for transfer in older + usize::from(shares_a_slot)..transfers {
            let (_, destination) = self.regions(rotation, transfer)?;
            let (seed, mut wrong) = (self.seed_of(rotation.slots_of(transfer).0), 0);
            in_pieces(&self.to, &destination, stop, |piece, word| {
                wrong += self.to.count_wrong(piece, seed + word)?;
                Ok(())
            })?;
            if wrong > 0 {
                return Err(self.altered(transfer, wrong, rotation.size));
            }
            compared += rotation.size as u64;
        }
        Ok(compared)
    }

    fn altered(&self, transfer: usize, wrong: u64, bytes: usize) -> Error {
        let what = format!("{} to {}, transfer {transfer}", self.from.endpoint(), self.to.endpoint());
        Error::Altered { what, wrong, bytes: bytes as u64 }
    }
}

/// Calls `act` for each piece of a region. The second argument of `act` is the index of the piece's first
/// 8-byte word in the region. Ends early if `stop` is set. On a GPU, the whole region is one piece, because
/// its kernels are fast.
fn in_pieces(
    device: &Device,
    region: &Region,
    stop: &AtomicBool,
    mut act: impl FnMut(&Region, u64) -> Result<()>,
) -> Result<()> {
    let most = if device.is_gpu() { region.len() } else { PIECE };
    for offset in (0..region.len()).step_by(most) {
        check_stop(stop)?;
        act(&region.slice(offset, most.min(region.len() - offset))?, offset as u64 / 8)?;
    }
    Ok(())
}

/// Returns the distance in bytes between the starts of two adjacent slots, for transfers of `size` bytes.
fn stride(size: usize) -> usize {
    size.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lap_sends_a_slot_another_pattern_and_every_slot_is_sampled() {
        let rotation = Rotation { size: 1, slots: 64, shifted: true };
        for transfer in 0..1000 {
            let (source, destination) = rotation.slots_of(transfer);
            let (next_source, same) = rotation.slots_of(transfer + 64);
            assert_eq!(destination, same);
            assert_ne!(source, next_source, "transfer {transfer}");
        }
        let mut sampled: Vec<usize> =
            (0..64 * SAMPLE_INTERVAL).step_by(SAMPLE_INTERVAL).map(|n| rotation.slots_of(n).1).collect();
        sampled.sort_unstable();
        assert_eq!(sampled, (0..64).collect::<Vec<_>>());
    }
}
