//! DPDK's DMA devices as movers: the skeleton driver, which is DPDK's own software device of that class.
//!
//! Real devices (ioat, idxd, DPAA2, ...) hang on the same calls; they want memory registered for DMA, and are not
//! supported yet, for nothing here can exercise them.

use crate::error::{Error, Result};
use crate::{eal, log, sys};
use inlane_core::error::Class;
use inlane_core::mover::{InFlight, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Region};
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bytes of one of the device's copies; longer transfers are several.
const PIECE: usize = 1 << 20;
/// Copies that its queue holds.
const DESCRIPTORS: u16 = 1024;

static OPENED: AtomicU32 = AtomicU32::new(0);

/// A DMA device of DPDK with one channel, from memory to memory.
pub struct DmaDev {
    id: i16,
    name: CString,
    flight: InFlight,
    /// Of each transfer in flight: pieces to come, and the regions.
    entries: VecDeque<(usize, [Region; 2])>,
    queued: usize,
    lost: bool,
}

impl DmaDev {
    /// A new device of the skeleton driver: a thread of DPDK's that copies.
    ///
    /// # Errors
    /// When DPDK does not start, or the driver refuses.
    pub fn skeleton() -> Result<Self> {
        eal::start()?;
        let text = format!("dma_skeleton{}", OPENED.fetch_add(1, Ordering::Relaxed));
        let mark = log::Mark::new();
        let failed = |doing: &str, code: i32| Error::Device {
            port: text.clone(),
            doing: doing.into(),
            why: mark.explain(std::io::Error::from_raw_os_error(-code).to_string()),
        };
        let name = CString::new(text.clone()).expect("no zero byte in a made-up name");
        // SAFETY: strings that live until the call returns.
        let code = unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), name.as_ptr(), c"".as_ptr()) };
        if code != 0 {
            return Err(failed("attaching it", code));
        }
        // SAFETY: as above.
        let id = unsafe { sys::rte_dma_get_dev_id_by_name(name.as_ptr()) };
        // From here on drop closes and detaches it.
        let device = Self {
            id: id as i16,
            name,
            flight: InFlight::new(),
            entries: VecDeque::new(),
            queued: 0,
            lost: false,
        };
        if id < 0 {
            return Err(failed("finding it", id));
        }
        let configuration = sys::rte_dma_conf { nb_vchans: 1, ..Default::default() };
        let channel = sys::rte_dma_vchan_conf {
            direction: sys::RTE_DMA_DIR_MEM_TO_MEM,
            nb_desc: DESCRIPTORS,
            ..Default::default()
        };
        // SAFETY: the device exists and is stopped; the structs live until the calls return.
        unsafe {
            for (doing, code) in [
                ("configuring it", sys::rte_dma_configure(device.id, &configuration)),
                ("setting its channel up", sys::rte_dma_vchan_setup(device.id, 0, &channel)),
                ("starting it", sys::rte_dma_start(device.id)),
            ] {
                if code != 0 {
                    return Err(failed(doing, code));
                }
            }
        }
        Ok(device)
    }

    fn text(&self) -> String {
        format!("dpdk {}", self.name.to_string_lossy())
    }

    /// Takes in what ended, and gives the newest ticket that is done; the oldest entry is that after `first`.
    fn look(
        id: i16,
        queued: &mut usize,
        entries: &mut VecDeque<(usize, [Region; 2])>,
        first: Ticket,
        name: &dyn Fn() -> String,
    ) -> inlane_core::Result<Ticket> {
        let mut failed = 0;
        // SAFETY: the device is started; this thread alone drives its channel.
        let mut ended = usize::from(unsafe { sys::inlane_dma_completed(id, DESCRIPTORS, &mut failed) });
        *queued -= ended;
        if failed != 0 {
            return Err(inlane_core::Error::device_failed(
                name(),
                "a copy failed; transfers in flight count as not moved; open it again",
            ));
        }
        let mut done = first.0;
        for (left, _) in entries.iter_mut() {
            let taken = ended.min(*left);
            *left -= taken;
            ended -= taken;
            if *left > 0 {
                break;
            }
            done += 1;
        }
        Ok(Ticket(done))
    }

    fn advance(&mut self) -> inlane_core::Result<Ticket> {
        let first = self.flight.done();
        let text = self.text();
        let done = Self::look(self.id, &mut self.queued, &mut self.entries, first, &|| text.clone())
            .inspect_err(|_| self.lost = true)?;
        self.flight.complete(done, false);
        self.retire();
        Ok(done)
    }

    fn retire(&mut self) {
        while self.entries.len() > self.flight.in_flight() {
            self.entries.pop_front();
        }
    }
}

impl Mover for DmaDev {
    fn name(&self) -> String {
        self.text()
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
        if self.lost || pieces > usize::from(DESCRIPTORS) / 2 {
            return Err(inlane_core::Error::device_usage(
                self.text(),
                format!("is lost, or {source:?} is more than its queue holds at once; give at most 512 MiB"),
            ));
        }
        while self.queued + pieces > usize::from(DESCRIPTORS) - 2 {
            self.advance()?;
        }
        // Kept before the first piece is queued: a failure half-way leaves pieces that still run.
        self.entries.push_back((pieces, [source.clone(), destination.clone()]));
        let ticket = self.flight.submit(source.len());
        for index in 0..pieces {
            let offset = index * PIECE;
            let length = PIECE.min(source.len() - offset) as u32;
            let at = |region: &Region| region.address() + offset as u64;
            // SAFETY: both spans are mapped, and kept by the entry until the device has ended with them.
            let code = unsafe { sys::inlane_dma_copy(self.id, at(source), at(destination), length) };
            if code < 0 {
                self.lost = true;
                return Err(inlane_core::Error::device_failed(
                    self.text(),
                    format!("took no copy: {}", std::io::Error::from_raw_os_error(-code)),
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
        let text = self.text();
        let name = || text.clone();
        let Self { id, flight, entries, queued, .. } = self;
        // Entries stay until `retire`, so they are counted from where the flight stands now.
        let first = flight.done();
        let mut poll = || {
            // The device is a thread here: on a machine of few cores it needs the one that polls.
            std::thread::yield_now();
            DmaDev::look(*id, queued, entries, first, &name)
        };
        let outcome = match completion {
            CompletionMode::Interrupt => Err(inlane_core::Error::device_usage(
                &text,
                "DPDK's DMA devices raise no interrupts; choose poll or adaptive",
            )),
            CompletionMode::Poll => flight.wait_polling(&name, ticket, &mut poll),
            CompletionMode::Adaptive => flight.wait_adaptive(&name, ticket, &mut poll),
        };
        self.lost |= matches!(&outcome, Err(error) if error.class() == Class::Failed);
        self.retire();
        outcome
    }
}

impl Drop for DmaDev {
    fn drop(&mut self) {
        // What is queued still copies to and from the regions kept here: let it end, if it does.
        let began = Instant::now();
        while self.queued > 0 && !self.lost && began.elapsed() < Duration::from_secs(5) {
            if self.advance().is_err() {
                break;
            }
            std::thread::yield_now();
        }
        // SAFETY: stopped before it is closed, and detached once; nothing uses it after.
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
    fn copies_by_poll_and_adaptive_and_has_no_interrupt() {
        // With reserved hugepages and without an IOMMU, DPDK goes by physical addresses.
        if !crate::eal::start().unwrap().virtual_addresses {
            eprintln!(
                "SKIPPED copies_by_poll_and_adaptive_and_has_no_interrupt: DPDK's software DMA device takes virtual addresses"
            );
            return;
        }
        let mut device = DmaDev::skeleton().unwrap();
        for length in [1usize, 4096, (3 << 20) + 17] {
            for completion in [CompletionMode::Poll, CompletionMode::Adaptive] {
                let (source, destination) = (Region::host(length).unwrap(), Region::host(length).unwrap());
                // SAFETY: this test's own memory, touched by the device only between submit and wait.
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
