//! The processor as a mover: between all memory that it has mapped, BARs and windows included.

use super::{Access, Mover, Ticket, check_pair, check_ticket, out_of_reach};
use crate::completion::CompletionMode;
use crate::error::{Error, Result};
use crate::region::{Location, Region};

/// Copies with loads and stores of one [`Access`]. Synchronous: a copy is done when [`Mover::submit`] returns, which for
/// stores to a BAR or window means *issued*; *delivered* is known by a read-back (see [`CpuMover::flush`]).
#[derive(Debug)]
pub struct CpuMover {
    access: Access,
    reads_bars: bool,
    /// What of its work names it.
    work: &'static str,
    submitted: u64,
}

impl CpuMover {
    /// A mover with the access given.
    ///
    /// # Errors
    /// [`Error::Device`] when the processor does not have it.
    pub fn new(access: Access) -> Result<Self> {
        Ok(Self { access: access.require()?, ..Self::widest() })
    }

    /// A mover with the widest ordinary access there is.
    pub fn widest() -> Self {
        let access = Access::widest();
        Self { access, reads_bars: false, work: "stores", submitted: 0 }
    }

    /// Lets it load from BARs. Off at first: a device may act upon a read.
    #[must_use]
    pub fn reading_bars(mut self, allowed: bool) -> Self {
        self.reads_bars = allowed;
        self
    }

    /// Names it by what crosses to the device behind a BAR: loads where it is the source, stores where it is the destination.
    /// Elsewhere stores are what it is named by.
    #[must_use]
    pub fn named_by(mut self, loads: bool, stores: bool) -> Self {
        self.work = match (loads, stores) {
            (true, true) => "loads and stores",
            (true, false) => "loads",
            (false, _) => "stores",
        };
        self
    }

    /// The access it copies with.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Makes the stores so far to the device behind `region` *delivered*: a load that must come back through the same
    /// path pushes posted writes before it. Nothing to do for ordinary memory.
    ///
    /// # Errors
    /// [`Error::Device`] when it may not read BARs.
    pub fn flush(&self, region: &Region) -> Result<()> {
        Access::drain();
        if region.location().is_cpu_memory() {
            return Ok(());
        }
        if !self.reads_bars {
            return Err(Error::device_usage(
                region.location().to_string(),
                "delivery is known by a read, and reads of BARs are not allowed; allow them if this device's reads are harmless",
            ));
        }
        let word = region.address().next_multiple_of(4) as *const u32;
        if region.len() >= 8 {
            // SAFETY: an aligned word inside the region, which is mapped while the region lives.
            std::hint::black_box(unsafe { word.read_volatile() });
        }
        Ok(())
    }

    fn is_mapped(location: &Location) -> bool {
        !matches!(location, Location::Gpu(_))
    }
}

impl Mover for CpuMover {
    fn name(&self) -> String {
        match self.access {
            Access::NonTemporal => format!("cpu {}-byte non-temporal {}", self.access.width(), self.work),
            Access::Direct64 => "cpu movdir64b".into(),
            access => format!("cpu {}-byte {}", access.width(), self.work),
        }
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        Self::is_mapped(source.location())
            && Self::is_mapped(destination.location())
            && (self.reads_bars || !matches!(source.location(), Location::Bar { .. }))
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            if matches!(source.location(), Location::Bar { .. }) {
                return Err(Error::device_usage(
                    source.location().to_string(),
                    "reading a BAR can make its device act; allow reads explicitly if they are harmless here",
                ));
            }
            return Err(out_of_reach(self, source, destination));
        }
        let device_side = if destination.location().is_cpu_memory() { source } else { destination };
        // Behind a BAR are registers; behind a window is memory, which takes single bytes.
        let strict = matches!(device_side.location(), Location::Bar { .. });
        if strict && !(device_side.address().is_multiple_of(4) && device_side.len().is_multiple_of(4)) {
            return Err(Error::invalid(
                format!("copy of {source:?} to {destination:?}"),
                "a device is accessed in whole, aligned words; give an offset and a length that are multiples of 4",
            ));
        }
        // SAFETY: both regions are mapped while they live, have the same length and do not overlap.
        unsafe {
            span(
                self.access,
                destination.as_ptr(),
                source.as_ptr(),
                source.len(),
                device_side.address() as usize,
            )
        };
        let combining = matches!(
            destination.location(),
            Location::Bar { write_combining: true, .. } | Location::Window { .. }
        );
        if self.access.is_weakly_ordered() || combining {
            Access::drain();
        }
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn set_completion_mode(&mut self, _: CompletionMode) -> CompletionMode {
        CompletionMode::Poll
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket, _: CompletionMode) -> Result<()> {
        check_ticket(ticket, self.submitted)
    }
}

/// Copies a span: narrow accesses until `aligned_by` (the address that counts) is a multiple of the width, then the
/// access asked for, then narrow ones.
///
/// # Safety
/// As [`Access::copy`] for `length` bytes.
unsafe fn span(
    access: Access,
    mut destination: *mut u8,
    mut source: *const u8,
    mut length: usize,
    aligned_by: usize,
) {
    let mut access = access;
    let width = access.width();
    let both_aligned = (destination as usize ^ source as usize).is_multiple_of(width);
    // Streaming accesses fault on unaligned addresses, on either side.
    if access == Access::NonTemporal && !both_aligned {
        access = match width {
            64 => Access::Bytes64,
            32 => Access::Bytes32,
            _ => Access::Bytes16,
        };
    }
    let counts = if access == Access::Direct64 { destination as usize } else { aligned_by };
    let head = counts.next_multiple_of(width) - counts;
    // SAFETY: each step stays within `length`, and the body begins where `counts` is a multiple of the width.
    unsafe {
        let left = length;
        let mut step = |bytes: usize, access: Option<Access>| {
            match access {
                Some(access) => access.copy(destination, source, bytes / access.width()),
                None => edge(destination, source, bytes),
            }
            destination = destination.add(bytes);
            source = source.add(bytes);
            length -= bytes;
            length
        };
        let left = step(head.min(left), None);
        let left = step(left / width * width, Some(access));
        step(left, None);
    }
}

/// Copies the few bytes before or after the body: words of 4 where they fit, else single bytes.
///
/// # Safety
/// As [`Access::copy`].
unsafe fn edge(destination: *mut u8, source: *const u8, bytes: usize) {
    let words = if bytes.is_multiple_of(4) { bytes / 4 } else { 0 };
    // SAFETY: the caller's promise; words and bytes together are the span.
    unsafe {
        Access::Bytes4.copy(destination, source, words);
        for index in words * 4..bytes {
            destination.add(index).write_volatile(source.add(index).read_volatile());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[allow(clippy::mut_from_ref, reason = "tests own their regions")]
    fn bytes(region: &Region) -> &mut [u8] {
        // SAFETY: host memory of the region's length, used by one test thread.
        unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_access_copies_every_byte_and_no_other(
            source_offset in 0usize..130, destination_offset in 0usize..130, length in 1usize..3000, seed in any::<u8>(),
        ) {
            for access in Access::ALL.into_iter().filter(|access| access.is_available()) {
                let (source, destination) = (Region::host(4096).unwrap(), Region::host(4096).unwrap());
                for (index, byte) in bytes(&source).iter_mut().enumerate() {
                    *byte = (index as u8).wrapping_mul(31).wrapping_add(seed);
                }
                bytes(&destination).fill(0xEE);
                let from = source.slice(source_offset, length).unwrap();
                let to = destination.slice(destination_offset, length).unwrap();
                let mut mover = CpuMover::new(access).unwrap();
                let ticket = mover.submit(&from, &to).unwrap();
                mover.wait(ticket, CompletionMode::Poll).unwrap();
                prop_assert_eq!(bytes(&from), bytes(&to), "{}", access);
                prop_assert!(bytes(&destination)[..destination_offset].iter().all(|byte| *byte == 0xEE));
                prop_assert!(bytes(&destination)[destination_offset + length..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }

    fn bar(length: usize) -> Region {
        let memory = Region::host(length).unwrap();
        let location = Location::Bar { device: "0000:00:04.0".into(), bar: 2, write_combining: true };
        // SAFETY: the host region behind it is the keeper.
        unsafe { Region::from_raw(memory.address(), length, location, Arc::new(memory)) }
    }

    #[test]
    fn bars_are_read_only_when_allowed_and_in_whole_words() {
        let (host, device) = (Region::host(4096).unwrap(), bar(4096));
        let mut mover = CpuMover::widest();
        mover.submit(&host, &device).unwrap();
        assert!(mover.submit(&device, &host).unwrap_err().to_string().contains("allow reads"));
        assert!(mover.flush(&device).is_err());
        let mut mover = mover.reading_bars(true);
        mover.submit(&device, &host).unwrap();
        mover.flush(&device).unwrap();
        let odd = mover.submit(&host.slice(0, 6).unwrap(), &device.slice(0, 6).unwrap());
        assert!(odd.unwrap_err().to_string().contains("multiples of 4"));
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        let host = Region::host(8192).unwrap();
        let mut mover = CpuMover::widest();
        let (low, high) = (host.slice(0, 4096).unwrap(), host.slice(2048, 4096).unwrap());
        assert!(mover.submit(&low, &high).unwrap_err().to_string().contains("overlap"));
        assert!(mover.submit(&low, &host).unwrap_err().to_string().contains("lengths differ"));
        assert!(mover.wait(Ticket(9), CompletionMode::Poll).is_err());
        // SAFETY: never dereferenced: the mover refuses it.
        let gpu = unsafe { Region::from_raw(1 << 40, 4096, Location::Gpu(0), Arc::new(())) };
        assert!(!mover.reaches(&gpu, &low));
        assert!(mover.submit(&gpu, &low).unwrap_err().to_string().contains("cannot copy from gpu:0 to host"));
    }

    #[test]
    fn it_is_named_by_what_crosses_to_the_device() {
        let name = |loads, stores| CpuMover::new(Access::Bytes8).unwrap().named_by(loads, stores).name();
        assert_eq!(name(true, false), "cpu 8-byte loads");
        assert_eq!(name(false, true), "cpu 8-byte stores");
        assert_eq!(name(true, true), "cpu 8-byte loads and stores");
        assert_eq!(CpuMover::new(Access::Bytes4).unwrap().name(), "cpu 4-byte stores");
    }

    #[test]
    fn names_of_accesses_round_trip() {
        for access in Access::ALL.into_iter().filter(|access| access.is_available()) {
            assert_eq!(access.to_string().parse::<Access>().unwrap(), access);
        }
        assert!("12".parse::<Access>().unwrap_err().to_string().contains("choose 4, 8"));
    }
}
