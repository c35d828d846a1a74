//! Two (or more) virtual machines joined by nothing but a PCI device: QEMU's ivshmem with doorbells, under vfio-pci.
//!
//! ```text
//! BAR 0   0x08  number of this machine      0x0c  doorbell: peer << 16 | vector  ---- MSI-X ---->  the peer's eventfd
//! BAR 2   0           the device's own page: who divides it how
//!         4096        registers of port 0, of port 1, ...             (see crate::registers)
//!         ...         inbound memory of port 0, of port 1, ...        equal shares of the rest
//! ```
//!
//! Real here: the BARs, the instructions that reach them, the MSI-X interrupts, the IOMMU that VFIO puts around the device.
//! Not real: the memory behind BAR 2 is the host's and coherent, so stores are neither posted nor reordered, nothing
//! translates addresses (a port cannot offer memory of its own, only its share of the BAR), and reads are no slower than
//! stores. Windows say [`Promise::Posted`] all the same, so that what runs over them does what hardware would need.
//!
//! Nobody tells a machine that another is gone: each port's beat grows while its process lives, and a beat that stands still
//! for [`SILENCE`] takes the link down.

mod divide;

use crate::device::{Capabilities, Event, Link, Ntb, Ordering as Promise};
use crate::error::{Error, Result};
use crate::registers::{self, PortRegisters, SCRATCHPADS, VECTORS};
use crate::window::Window;
use divide::Division;
use inlane_core::region::Region;
use inlane_pci::vfio::{Device, InterruptKind, Interrupts};
use inlane_pci::{Address, Bar, BarSpec, Permission, Sysfs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Registers of BAR 0 (QEMU, "Device Specification for Inter-VM shared memory device", *Registers*).
const IV_POSITION: usize = 0x08;
const DOORBELL: usize = 0x0c;
/// The interrupt vector that says that some link changed; those below are the doorbell's.
const LINK_VECTOR: u32 = VECTORS;
/// How often a port's beat grows.
const BEAT: Duration = Duration::from_millis(50);
/// A port whose beat stands still for this long is gone. A machine that is emulated may well be stopped for a second.
pub const SILENCE: Duration = Duration::from_secs(3);

/// This machine's port. Its number is the one that the ivshmem server gave the machine.
pub struct Ivshmem {
    inner: Arc<Inner>,
    heart: Option<JoinHandle<()>>,
}

/// What this side knows of a peer's life.
#[derive(Default)]
struct Life {
    /// The beat seen last.
    beat: AtomicU32,
    gone: AtomicBool,
    /// How often it was found gone, or back.
    changes: AtomicU32,
}

impl Life {
    /// True when that is news.
    fn set_gone(&self, gone: bool) -> bool {
        let news = self.gone.swap(gone, Ordering::AcqRel) != gone;
        if news {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        news
    }
}

struct Inner {
    port: u32,
    capabilities: Capabilities,
    division: Division,
    control: Bar,
    shared: Region,
    inbound: Region,
    interrupts: Interrupts,
    lives: Vec<Life>,
    stop: AtomicBool,
}

impl Ivshmem {
    /// Opens the device at `address` as one of `ports` ports. The link stays down until [`Ntb::link_enable`].
    ///
    /// # Errors
    /// What VFIO lacks; [`Error::Invalid`] for a device that is no ivshmem with doorbells, has too few vectors or too little
    /// memory, for a number of ports that is not what the other side has, and in a machine that is one too many.
    pub fn open(address: Address, ports: u32) -> Result<Self> {
        let invalid = |why: String| Error::invalid(format!("pci:{address}"), why);
        let sysfs = Sysfs::system();
        let device = Device::open(&sysfs, address).map_err(pci)?;
        let known = inlane_pci::Device::read(&sysfs, address).map_err(pci)?;
        if (known.vendor, known.device) != (0x1af4, 0x1110) {
            return Err(invalid(
                "is no ivshmem device (1af4:1110); 'inlane topo --all' lists what there is".into(),
            ));
        }
        let vectors = device.interrupt_vectors(InterruptKind::MsiX).map_err(pci)?;
        if vectors <= LINK_VECTOR {
            let wanted = LINK_VECTOR + 1;
            return Err(invalid(format!(
                "has {vectors} interrupt vectors, {wanted} are needed: give the device and the server vectors={wanted}"
            )));
        }
        let all = Permission::default().read().write();
        let bar = |index, bytes| {
            Bar::of_device(&device, &BarSpec::new(address, index, 0..bytes), &all).map_err(pci)
        };
        let control = bar(0, 0x100)?;
        let port = control.read_u32(IV_POSITION).map_err(pci)?;
        if port >= ports {
            return Err(invalid(format!(
                "gives this machine number {port}, and there are {ports} ports: is another machine still running?"
            )));
        }
        let bytes = device.bar(2).map_err(pci)?.size_bytes;
        let division = Division::new(ports, bytes).map_err(&invalid)?;
        let shared = bar(2, bytes)?.region();
        divide::claim(&shared, ports).map_err(&invalid)?;
        let interrupts = device.interrupts(InterruptKind::MsiX, LINK_VECTOR + 1).map_err(pci)?;
        let inbound = shared.slice(division.memory(port) as usize, division.window_bytes as usize)?;
        let lives = (0..ports).map(|_| Life::default()).collect();
        let capabilities = capabilities(division.window_bytes);
        let stop = AtomicBool::new(false);
        let inner = Inner { port, capabilities, division, control, shared, inbound, interrupts, lives, stop };
        let inner = Arc::new(inner);
        let own = inner.registers(port);
        own.set_link(false);
        own.mask.0.store(0, Ordering::Release);
        own.life.0.fetch_add(1, Ordering::AcqRel);
        let theirs = inner.clone();
        let heart = std::thread::Builder::new()
            .name("ntb-heart".into())
            .spawn(move || theirs.beat())
            .map_err(|error| Error::os("the heart's thread", error))?;
        Ok(Self { inner, heart: Some(heart) })
    }
}

fn pci(error: inlane_pci::Error) -> Error {
    Error::Core(error.into())
}

fn capabilities(window_bytes: u64) -> Capabilities {
    Capabilities {
        name: "ivshmem",
        is_twin: false,
        windows: 1,
        window: registers::limits(window_bytes),
        doorbells: u64::MAX,
        vectors: VECTORS,
        scratchpads: SCRATCHPADS,
        message_registers: 0,
        doorbells_unsafe: false,
        scratchpads_unsafe: true,
        ordering: Promise::Posted,
    }
}

impl Inner {
    fn ports(&self) -> u32 {
        self.lives.len() as u32
    }

    /// # Panics
    /// For a port that does not exist.
    fn registers(&self, port: u32) -> &PortRegisters {
        assert!(port < self.ports(), "port checked by the caller");
        let at = self.division.registers(port) as usize;
        // SAFETY: the division lies inside the mapping, at a multiple of the page; everything in it is atomic, and the
        // memory behind the BAR is memory, where the processor's atomics work.
        unsafe { &*self.shared.as_ptr().add(at).cast::<PortRegisters>() }
    }

    fn interrupt(&self, peer: u32, vector: u32) {
        if peer == self.port {
            // The device does not ring its own machine reliably; the eventfd is ours at any rate. A full counter means that
            // there is plenty to wake up for already.
            let _ = rustix::io::write(self.interrupts.event(vector as usize), &1u64.to_ne_bytes());
        } else {
            // Inside the BAR and permitted, so it cannot fail; a machine that is not there hears nothing.
            let _ = self.control.write_u32(DOORBELL, peer << 16 | vector);
        }
    }

    fn tell_all(&self) {
        (0..self.ports()).for_each(|port| self.interrupt(port, LINK_VECTOR));
    }

    fn set_link(&self, up: bool) {
        if self.registers(self.port).set_link(up) {
            self.tell_all();
        }
    }

    fn check(&self, peer: u32) -> Result<()> {
        match peer < self.ports() {
            true => Ok(()),
            false => Err(Error::invalid(
                format!("port {peer}"),
                format!("the device joins ports 0 to {}", self.ports() - 1),
            )),
        }
    }

    fn check_window(&self, peer: u32, window: u32) -> Result<()> {
        match window == 0 && peer < self.ports() {
            true => Ok(()),
            false => Err(Error::Window {
                peer,
                why: format!("window {window} does not exist; there is window 0 onto each port"),
            }),
        }
    }

    /// The heart's thread: shows that this port lives, and watches the others'.
    fn beat(&self) {
        let mut since = vec![Instant::now(); self.lives.len()];
        while !self.stop.load(Ordering::Acquire) {
            self.registers(self.port).beat.0.fetch_add(1, Ordering::Release);
            for (peer, since) in (0..self.ports()).zip(&mut since).filter(|(peer, _)| *peer != self.port) {
                let now = self.registers(peer).beat.0.load(Ordering::Acquire);
                let life = &self.lives[peer as usize];
                let news = if life.beat.swap(now, Ordering::AcqRel) != now {
                    *since = Instant::now();
                    life.set_gone(false)
                } else {
                    since.elapsed() > SILENCE && life.set_gone(true)
                };
                if news {
                    self.interrupt(self.port, LINK_VECTOR);
                }
            }
            std::thread::park_timeout(BEAT);
        }
    }
}

impl Ntb for Ivshmem {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn port(&self) -> u32 {
        self.inner.port
    }

    fn ports(&self) -> u32 {
        self.inner.ports()
    }

    fn link_enable(&self, up: bool) {
        self.inner.set_link(up);
    }

    fn link(&self, peer: u32) -> Link {
        if peer >= self.inner.ports() {
            return Link { up: false, generation: 0 };
        }
        let ours = self.inner.registers(self.inner.port).link.0.load(Ordering::Acquire);
        let theirs = self.inner.registers(peer).link.0.load(Ordering::Acquire);
        let life = &self.inner.lives[peer as usize];
        // A peer that is back may have shaken hands before the heart's next look at it.
        if life.gone.load(Ordering::Acquire)
            && self.inner.registers(peer).beat.0.load(Ordering::Acquire) != life.beat.load(Ordering::Acquire)
        {
            life.set_gone(false);
        }
        let changes = u64::from(life.changes.load(Ordering::Acquire));
        Link {
            up: ours & theirs & 1 == 1 && !life.gone.load(Ordering::Acquire),
            // The own word's upper bits would need a million flaps to matter.
            generation: u64::from(theirs) | u64::from(ours & 0xf_ffff) << 32 | changes << 52,
        }
    }

    fn inbound(&self) -> &Region {
        &self.inner.inbound
    }

    fn set_translation(&self, peer: u32, window: u32, memory: &Region) -> Result<()> {
        self.inner.check_window(peer, window)?;
        self.inner.registers(self.inner.port).set_translation(peer, &self.inner.inbound, memory)
    }

    fn clear_translation(&self, peer: u32, _window: u32) {
        if peer < self.inner.ports() {
            let own = self.inner.registers(self.inner.port);
            own.translations[peer as usize].bytes.store(0, Ordering::Release);
        }
    }

    fn peer_window(&self, peer: u32, window: u32) -> Result<Window> {
        self.inner.check_window(peer, window)?;
        let division = &self.inner.division;
        let leads = self.inner.registers(peer).translation(self.inner.port, peer, division.window_bytes)?;
        let start = division.memory(peer) + leads.start;
        let region = self.inner.shared.slice(start as usize, (leads.end - leads.start) as usize)?;
        Ok(Window::new(peer, region, Promise::Posted, None))
    }

    fn doorbell_read(&self) -> u64 {
        self.inner.registers(self.inner.port).doorbell.0.load(Ordering::SeqCst)
    }

    fn doorbell_clear(&self, bits: u64) {
        self.inner.registers(self.inner.port).doorbell.0.fetch_and(!bits, Ordering::SeqCst);
    }

    fn doorbell_mask(&self) -> u64 {
        self.inner.registers(self.inner.port).mask.0.load(Ordering::SeqCst)
    }

    fn doorbell_mask_set(&self, bits: u64) {
        self.inner.registers(self.inner.port).mask.0.fetch_or(bits, Ordering::SeqCst);
    }

    fn doorbell_mask_clear(&self, bits: u64) {
        self.inner.registers(self.inner.port).mask.0.fetch_and(!bits, Ordering::SeqCst);
    }

    fn vector_bits(&self, vector: u32) -> u64 {
        registers::vector_bits(vector)
    }

    fn peer_doorbell_set(&self, peer: u32, bits: u64) -> Result<()> {
        self.inner.check(peer)?;
        self.inner.registers(peer).ring(bits).for_each(|vector| self.inner.interrupt(peer, vector));
        Ok(())
    }

    fn event(&self, event: Event) -> Result<BorrowedFd<'_>> {
        let vector = match event {
            Event::Doorbell(vector) if vector < VECTORS => vector,
            Event::Link => LINK_VECTOR,
            Event::Doorbell(vector) => {
                return Err(Error::invalid(
                    format!("doorbell vector {vector}"),
                    format!("there are vectors 0 to {}", VECTORS - 1),
                ));
            }
        };
        Ok(self.inner.interrupts.event(vector as usize))
    }

    fn scratchpad_read(&self, index: u32) -> u32 {
        let pads = &self.inner.registers(self.inner.port).scratchpads;
        pads.get(index as usize).map_or(0, |pad| pad.load(Ordering::Acquire))
    }

    fn scratchpad_write(&self, index: u32, value: u32) {
        if let Some(pad) = self.inner.registers(self.inner.port).scratchpads.get(index as usize) {
            pad.store(value, Ordering::Release);
        }
    }

    fn peer_scratchpad_write(&self, peer: u32, index: u32, value: u32) -> Result<()> {
        self.inner.check(peer)?;
        let Some(pad) = self.inner.registers(peer).scratchpads.get(index as usize) else {
            return Err(Error::invalid(format!("scratchpad {index}"), format!("there are {SCRATCHPADS}")));
        };
        pad.store(value, Ordering::Release);
        Ok(())
    }
}

impl Drop for Ivshmem {
    fn drop(&mut self) {
        self.inner.set_link(false);
        self.inner.stop.store(true, Ordering::Release);
        if let Some(heart) = self.heart.take() {
            heart.thread().unpark();
            let _ = heart.join();
        }
    }
}
