//! A mover that uses the DMA device of DPDK's skeleton driver. This is a software device that copies on a
//! thread. Hardware devices (ioat, idxd, DPAA2) are unsupported, because they need memory that is registered
//! for DMA.

use crate::error::{Error, Result};
use crate::{eal, log, sys};
use inlane_core::error::Class;
use inlane_core::mover::{InFlight, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Region};
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The largest copy in bytes that is queued on the device. A longer transfer is split into such pieces.
const PIECE: usize = 1 << 20;
/// Length of the device's queue in copies.
const DESCRIPTORS: u16 = 1024;
/// The most pieces of one transfer. Two transfers with this number of pieces fit into the queue.
const MOST_PIECES: usize = DESCRIPTORS as usize / 2 - 1;

/// The number of devices opened so far. Each device's name contains this number, so names are unique.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// A DMA device with one channel, which copies from memory to memory.
pub struct DmaDev {
    id: i16,
    name: CString,
    flight: InFlight,
    /// The transfers in flight, oldest first.
    entries: VecDeque<Entry>,
    /// The number of pieces of transfers in the device's queue. A long transfer is split into pieces.
    queued: usize,
    /// True if a copy failed. The device then accepts no more copies.
    lost: bool,
}

/// A transfer in flight: the number of its incomplete pieces, and its two memory regions. Holding the regions
/// keeps them allocated.
type Entry = (usize, [Region; 2]);

impl DmaDev {
    /// Opens a new device of the skeleton driver.
    ///
    /// # Errors
    /// If DPDK does not start, or the driver refuses.
    pub fn skeleton() -> Result<Self> {
        eal::start()?;
        let text = format!("dma_skeleton{}", OPENED.fetch_add(1, Ordering::Relaxed));
        let mark = log::LogPosition::new();
        let failed = |doing: &str, code: i32| Error::Device {
            port: text.clone(),
            doing: doing.into(),
            why: mark.explain(std::io::Error::from_raw_os_error(-code).to_string()),
        };
        let name = CString::new(text.clone()).expect("the name contains no zero byte");
        // SAFETY: the strings outlive the call.
        let code = unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), name.as_ptr(), c"".as_ptr()) };
        if code != 0 {
            return Err(failed("attaching the device", code));
        }
        // SAFETY: as above.
        let id = unsafe { sys::rte_dma_get_dev_id_by_name(name.as_ptr()) };
        // From here on, dropping `device` closes and detaches the device.
        let device = Self {
            id: id as i16,
            name,
            flight: InFlight::new(),
            entries: VecDeque::new(),
            queued: 0,
            lost: false,
        };
        if id < 0 {
            return Err(failed("finding the device", id));
        }
        let configuration = sys::rte_dma_conf { nb_vchans: 1, ..Default::default() };
        let channel = sys::rte_dma_vchan_conf {
            direction: sys::RTE_DMA_DIR_MEM_TO_MEM,
            nb_desc: DESCRIPTORS,
            ..Default::default()
        };
        // SAFETY: the device exists and is stopped. The structures outlive the calls.
        unsafe {
            for (doing, code) in [
                ("configuring the device", sys::rte_dma_configure(device.id, &configuration)),
                ("setting up its channel", sys::rte_dma_vchan_setup(device.id, 0, &channel)),
                ("starting the device", sys::rte_dma_start(device.id)),
            ] {
                if code != 0 {
                    return Err(failed(doing, code));
                }
            }
        }
        Ok(device)
    }

    /// Returns the device's name for results.
    fn text(name: &CString) -> String {
        format!("dpdk {}", name.to_string_lossy())
    }

    /// Polls the device, and subtracts the completed pieces from `entries`, the transfers in flight. Returns
    /// the newest ticket that is complete, or `first` if no entry is. `first` is the ticket before the first
    /// entry's.
    fn poll(
        id: i16,
        queued: &mut usize,
        entries: &mut VecDeque<Entry>,
        first: Ticket,
        name: &CString,
    ) -> inlane_core::Result<Ticket> {
        let mut failed = 0;
        // SAFETY: the device is started. `queued` and `entries` are borrowed exclusively from the `DmaDev`,
        // so no other thread polls the device.
        let mut completed = usize::from(unsafe { sys::inlane_dma_completed(id, DESCRIPTORS, &mut failed) });
        *queued -= completed;
        if failed != 0 {
            return Err(inlane_core::Error::device_failed(
                Self::text(name),
                "a copy failed; treat all transfers in flight as not done, and open the device again",
            ));
        }
        let mut done = first.0;
        for (left, _) in entries.iter_mut() {
            let pieces = completed.min(*left);
            *left -= pieces;
            completed -= pieces;
            if *left > 0 {
                break;
            }
            done += 1;
        }
        Ok(Ticket(done))
    }

    /// Polls the device and records what has completed. Returns the newest ticket that is done.
    fn advance(&mut self) -> inlane_core::Result<Ticket> {
        let first = self.flight.done();
        let done = Self::poll(self.id, &mut self.queued, &mut self.entries, first, &self.name)
            .inspect_err(|_| self.lost = true)?;
        self.flight.complete(done, false);
        self.drop_completed();
        Ok(done)
    }

    /// Drops the entries of completed transfers, and with the entries their regions.
    fn drop_completed(&mut self) {
        while self.entries.len() > self.flight.in_flight() {
            self.entries.pop_front();
        }
    }
}

impl Mover for DmaDev {
    fn name(&self) -> String {
        Self::text(&self.name)
    }

    fn is_twin(&self) -> bool {
        true
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        source.location().is_cpu_memory() && destination.location().is_cpu_memory()
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        let pieces = source.len().div_ceil(PIECE);
        if self.lost {
            let why = "an earlier copy failed; open the device again";
            return Err(inlane_core::Error::device_usage(self.name(), why));
        }
        if pieces > MOST_PIECES {
            let why = format!(
                "{source:?} is too long for its queue; give at most {} MiB",
                (MOST_PIECES * PIECE) >> 20
            );
            return Err(inlane_core::Error::device_usage(self.name(), why));
        }
        while self.queued + pieces > usize::from(DESCRIPTORS) - 2 {
            self.advance()?;
        }
        // Add the entry before queueing the first piece, because the entry keeps the memory alive. If the
        // device refuses a later piece, it still copies the earlier ones.
        self.entries.push_back((pieces, [source.clone(), destination.clone()]));
        let ticket = self.flight.submit(source.len());
        for index in 0..pieces {
            let offset = index * PIECE;
            let length = PIECE.min(source.len() - offset) as u32;
            let at = |region: &Region| region.address() + offset as u64;
            // SAFETY: both spans are mapped. The entry keeps them until the copy has completed.
            let code = unsafe { sys::inlane_dma_copy(self.id, at(source), at(destination), length) };
            if code < 0 {
                self.lost = true;
                return Err(inlane_core::Error::device_failed(
                    self.name(),
                    format!("cannot queue a copy: {}", std::io::Error::from_raw_os_error(-code)),
                ));
            }
            self.queued += 1;
        }
        Ok(ticket)
    }

    fn done(&mut self) -> inlane_core::Result<Ticket> {
        self.advance()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> inlane_core::Result<()> {
        let Self { id, flight, entries, queued, name, .. } = self;
        let text = || Self::text(name);
        // `first` is the last completed ticket; the entries follow it in order. No entry is dropped during
        // the wait, so `first` stays right for `poll`.
        let first = flight.done();
        let mut poll = || {
            // Yield the core, because the device's copying thread may need it.
            std::thread::yield_now();
            DmaDev::poll(*id, queued, entries, first, name)
        };
        let outcome = match completion {
            CompletionMode::Interrupt => Err(inlane_core::Error::device_usage(
                text(),
                "DPDK's DMA devices raise no interrupts; choose poll or adaptive",
            )),
            CompletionMode::Poll => flight.wait_polling(&text, ticket, &mut poll),
            CompletionMode::Adaptive => flight.wait_adaptive(&text, ticket, &mut poll),
        };
        self.lost |= matches!(&outcome, Err(error) if error.class() == Class::Failed);
        self.drop_completed();
        outcome
    }
}

impl Drop for DmaDev {
    fn drop(&mut self) {
        // Queued copies still access the regions, so wait up to 5 s.
        let began = Instant::now();
        while self.queued > 0 && !self.lost && began.elapsed() < Duration::from_secs(5) {
            if self.advance().is_err() {
                break;
            }
            std::thread::yield_now();
        }
        // SAFETY: stopping the device ends its thread. Nothing uses the device afterwards.
        unsafe {
            if self.id >= 0 {
                sys::rte_dma_stop(self.id);
                sys::rte_dma_close(self.id);
            }
            sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), self.name.as_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_every_mode_but_interrupt() {
        // Skip the test if the machine has given a card to user space without an IOMMU. DPDK then uses
        // physical addresses, and the skeleton driver cannot use them.
        if !crate::eal::start().unwrap().virtual_addresses {
            eprintln!(
                "SKIPPED copies_in_every_mode_but_interrupt: the skeleton driver takes virtual addresses only"
            );
            return;
        }
        let mut device = DmaDev::skeleton().unwrap();
        for length in [1usize, 4096, (3 << 20) + 17] {
            for completion in [CompletionMode::Poll, CompletionMode::Adaptive] {
                let (source, destination) = (Region::host(length).unwrap(), Region::host(length).unwrap());
                // SAFETY: the test's own memory. The device accesses it only between submit and wait.
                let (from, to) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(source.as_ptr(), length),
                        std::slice::from_raw_parts_mut(destination.as_ptr(), length),
                    )
                };
                from.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
                to.fill(0xEE);
                let first = device.submit(&source, &destination).unwrap();
                device.wait(first, completion).unwrap();
                assert_eq!(from, to, "{length} {completion}");
            }
        }
        let (source, destination) = (Region::host(64).unwrap(), Region::host(64).unwrap());
        let ticket = device.submit(&source, &destination).unwrap();
        assert!(
            device.wait(ticket, CompletionMode::Interrupt).unwrap_err().to_string().contains("no interrupts")
        );
        device.wait(ticket, CompletionMode::Poll).unwrap();
        assert_eq!(device.done().unwrap(), ticket);
    }
}
