//! A mover that copies with the CPU's loads and stores, between all memory that the CPU maps.

use super::{Mover, Ticket, TicketCounter, check_pair, out_of_reach};
use crate::access::{Access, store_fence};
use crate::completion::CompletionMode;
use crate::error::{Error, Result};
use crate::region::{Location, Region};

/// A mover that copies with loads and stores of one [`Access`].
///
/// It is synchronous: a copy is done when [`Mover::submit`] returns. If the destination is a BAR or a window,
/// the stores have then left the processor. They are in the destination's memory only after
/// [`CpuMover::flush`].
#[derive(Debug)]
pub struct CpuMover {
    access: Access,
    reads_bars: bool,
    /// A part of the mover's name. It says how the mover accesses device memory: `loads`, `stores` or `loads
    /// and stores`. [`CpuMover::named_after`] sets it.
    work: &'static str,
    tickets: TicketCounter,
}

impl CpuMover {
    /// Creates a mover that copies with `access`.
    ///
    /// # Errors
    /// [`Error::Device`] if the CPU does not support the access.
    pub fn new(access: Access) -> Result<Self> {
        Ok(Self { access: access.require()?, ..Self::widest() })
    }

    /// Creates a mover that copies with the widest ordinary access.
    pub fn widest() -> Self {
        let access = Access::widest();
        Self { access, reads_bars: false, work: "stores", tickets: TicketCounter::default() }
    }

    /// Sets whether the mover may load from BARs. By default it may not, because a device may act upon a
    /// read.
    #[must_use]
    pub fn reading_bars(mut self, allowed: bool) -> Self {
        self.reads_bars = allowed;
        self
    }

    /// Sets how the mover's name describes its accesses: `loads` if the mover reads a BAR, `stores` if it
    /// writes a BAR, or both. Without a BAR, the name contains `stores`.
    #[must_use]
    pub fn named_after(mut self, loads: bool, stores: bool) -> Self {
        self.work = match (loads, stores) {
            (true, true) => "loads and stores",
            (true, false) => "loads",
            (false, _) => "stores",
        };
        self
    }

    /// Returns the access that the mover copies with.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Blocks until earlier stores to the device behind `region` are delivered. Reads from the region,
    /// because on PCIe a read cannot pass earlier posted writes. For ordinary memory, only orders stores.
    ///
    /// # Errors
    /// [`Error::Device`] if the mover may not read BARs.
    pub fn flush(&self, region: &Region) -> Result<()> {
        store_fence();
        if region.location().is_cpu_memory() || region.is_empty() {
            return Ok(());
        }
        if !self.reads_bars {
            return Err(Error::device_usage(
                region.location().to_string(),
                "a flush reads from the BAR, and reads are not allowed; allow them if this device's reads are harmless",
            ));
        }
        let (start, end) = (region.address(), region.address() + region.len() as u64);
        let word = start.next_multiple_of(4);
        // SAFETY: the load reads an aligned word or the first byte. Both are inside `region`, which keeps its
        // memory mapped.
        unsafe {
            if word + 4 <= end {
                std::hint::black_box((word as *const u32).read_volatile());
            } else {
                std::hint::black_box((start as *const u8).read_volatile());
            }
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
                    "reading a BAR can make its device act; allow reads if they are harmless for this device",
                ));
            }
            return Err(out_of_reach(self, source, destination));
        }
        let device_side = if destination.location().is_cpu_memory() { source } else { destination };
        // A BAR may hold registers, so allow only aligned 4-byte accesses. A window accepts single bytes.
        let strict = matches!(device_side.location(), Location::Bar { .. });
        if strict && !(device_side.address().is_multiple_of(4) && device_side.len().is_multiple_of(4)) {
            return Err(Error::invalid(
                format!("copy of {source:?} to {destination:?}"),
                "a BAR is accessed in aligned words; give an offset and a length that are multiples of 4",
            ));
        }
        // SAFETY: the regions keep their memory mapped. `check_pair` refused overlaps and unequal lengths.
        unsafe {
            let device_address = device_side.address() as usize;
            self.access.copy_span(destination.as_ptr(), source.as_ptr(), source.len(), device_address);
        }
        let combining = matches!(
            destination.location(),
            Location::Bar { write_combining: true, .. } | Location::Window { .. }
        );
        if self.access.is_weakly_ordered() || combining {
            store_fence();
        }
        Ok(self.tickets.issue())
    }

    fn is_synchronous(&self) -> bool {
        true
    }

    fn set_completion_mode(&mut self, _: CompletionMode) -> CompletionMode {
        CompletionMode::Poll
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(self.tickets.newest())
    }

    fn wait(&mut self, ticket: Ticket, _: CompletionMode) -> Result<()> {
        self.tickets.check(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    #[allow(clippy::mut_from_ref, reason = "each test owns its regions")]
    fn bytes(region: &Region) -> &mut [u8] {
        // SAFETY: the region is host memory of this length, and only one thread uses it.
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
        // SAFETY: the region keeps `memory`, which owns these bytes.
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

    /// Returns one new page of memory as a BAR. The page becomes resident at the first access, so a test can
    /// detect whether it was accessed.
    #[cfg(not(miri))]
    fn untouched_bar() -> Region {
        struct Page(usize);
        impl Drop for Page {
            fn drop(&mut self) {
                // SAFETY: the page was mapped below, and is unmapped only here.
                unsafe { libc::munmap(self.0 as *mut _, 4096) };
            }
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: this creates a new mapping at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        let location = Location::Bar { device: "0000:00:04.0".into(), bar: 2, write_combining: false };
        // SAFETY: the region owns the `Page`, which unmaps the page only when it is dropped.
        unsafe { Region::from_raw(address as u64, 4096, location, Arc::new(Page(address as usize))) }
    }

    /// Returns true if the region's page was accessed.
    #[cfg(not(miri))]
    fn is_resident(page: &Region) -> bool {
        let mut resident = 0u8;
        // SAFETY: mincore writes one byte for each page.
        assert_eq!(unsafe { libc::mincore(page.as_ptr().cast(), 4096, &mut resident) }, 0);
        resident & 1 != 0
    }

    #[test]
    #[cfg(not(miri))]
    fn a_flush_reads_back_however_short_the_region() {
        for (offset, length) in [(0, 4), (4, 4), (8, 8), (2, 4), (3, 1), (6, 2), (0, 4096)] {
            let bar = untouched_bar();
            assert!(!is_resident(&bar));
            CpuMover::widest().reading_bars(true).flush(&bar.slice(offset, length).unwrap()).unwrap();
            assert!(is_resident(&bar), "{length} bytes at {offset} were not read");
        }
    }

    #[test]
    fn impossible_copies_are_refused() {
        let host = Region::host(8192).unwrap();
        let mut mover = CpuMover::widest();
        let (low, high) = (host.slice(0, 4096).unwrap(), host.slice(2048, 4096).unwrap());
        assert!(mover.submit(&low, &high).unwrap_err().to_string().contains("overlap"));
        assert!(mover.submit(&low, &host).unwrap_err().to_string().contains("lengths differ"));
        assert!(mover.wait(Ticket(9), CompletionMode::Poll).is_err());
        // SAFETY: the mover refuses the region, so nothing accesses its memory.
        let gpu = unsafe { Region::from_raw(1 << 40, 4096, Location::Gpu(0), Arc::new(())) };
        assert!(!mover.reaches(&gpu, &low));
        assert!(mover.submit(&gpu, &low).unwrap_err().to_string().contains("cannot copy from gpu:0 to host"));
    }

    #[test]
    fn the_name_says_which_accesses_reach_a_device() {
        let name = |loads, stores| CpuMover::new(Access::Bytes8).unwrap().named_after(loads, stores).name();
        assert_eq!(name(true, false), "cpu 8-byte loads");
        assert_eq!(name(false, true), "cpu 8-byte stores");
        assert_eq!(name(true, true), "cpu 8-byte loads and stores");
        assert_eq!(CpuMover::new(Access::Bytes4).unwrap().name(), "cpu 4-byte stores");
    }
}
