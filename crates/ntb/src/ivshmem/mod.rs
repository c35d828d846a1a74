//! Two or more virtual machines joined by a PCI device: QEMU's ivshmem with doorbells, under vfio-pci.
//!
//! ```text
//! BAR 0   0x08  number of this machine   0x0c  doorbell: peer << 16 | vector -- MSI-X --> the peer's eventfd
//! BAR 2   0           a magic number, and the number of ports that share the memory
//!         4096        registers of port 0, of port 1, ...             (see crate::registers)
//!         ...         inbound memory of port 0, of port 1, ...        equal shares of the rest
//! ```
//!
//! The memory behind BAR 2 is ordinary coherent memory of the host, so stores are not posted or reordered.
//! Memory windows still declare their stores as posted ([`crate::device::Ordering::Posted`]). The layers
//! above then execute the steps that real hardware needs. Addresses are not translated, so a port can offer
//! only its share of the BAR.
//!
//! No event signals that a machine has ended. So each port advances a heartbeat counter. If the counter of a
//! port stops for [`HEARTBEAT_TIMEOUT`], the links of this port go down.

mod partition;

use crate::device::{Capabilities, Event, Link, Ntb, Ordering as Promise};
use crate::error::{Error, Result};
use crate::field::{IVSHMEM, MACHINES};
use crate::registers::{self, PortRegisters, SCRATCHPADS, VECTORS};
use crate::window::Window;
use inlane_core::region::Region;
use inlane_pci::vfio::{Device, InterruptKind, Interrupts};
use inlane_pci::{Address, Bar, BarSpec, Permission, Sysfs};
use partition::Partition;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Offset in BAR 0 of this machine's number (QEMU, "Device Specification for Inter-VM shared memory device",
/// section Registers).
const IV_POSITION: usize = 0x08;
/// Offset in BAR 0 of the register that sends an interrupt to a peer (same section of QEMU's specification).
const DOORBELL: usize = 0x0c;
/// The interrupt vector of link events. Lower vectors are the doorbell's.
const LINK_VECTOR: u32 = VECTORS;
/// Interval between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);
/// A port whose heartbeat stops for this long is considered lost. The limit is long, because an emulated
/// machine may pause for a second.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);

/// One port of a bridge made of an ivshmem device. The ivshmem server assigns the port number.
pub struct Ivshmem {
    inner: Arc<Inner>,
    heartbeat: Option<JoinHandle<()>>,
}

/// The state of a peer's heartbeat, as this port observes it.
#[derive(Default)]
struct PeerHeartbeat {
    /// The peer's heartbeat counter as last read.
    counter: AtomicU32,
    lost: AtomicBool,
    /// How often the peer's heartbeat stopped or started again.
    changes: AtomicU32,
}

impl PeerHeartbeat {
    /// Records whether the peer is lost. Returns true if that has changed.
    fn set_lost(&self, lost: bool) -> bool {
        let changed = self.lost.swap(lost, Ordering::AcqRel) != lost;
        if changed {
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        changed
    }
}

struct Inner {
    port: u32,
    capabilities: Capabilities,
    partition: Partition,
    control: Bar,
    shared: Region,
    inbound: Region,
    interrupts: Interrupts,
    peer_heartbeats: Vec<PeerHeartbeat>,
    stop: AtomicBool,
}

impl Ivshmem {
    /// Opens the device at `address` as one of `ports` ports. The link stays down until [`Ntb::link_enable`]
    /// is called.
    ///
    /// # Errors
    /// * Errors of VFIO.
    /// * [`Error::Invalid`] if the device is not an ivshmem device with doorbells, or has too few vectors or
    ///   too little memory.
    /// * [`Error::Invalid`] if another machine was started with a different number of ports, or if this
    ///   machine's port number is not below `ports`.
    pub fn open(address: Address, ports: u32) -> Result<Self> {
        let invalid = |why: String| Error::invalid(IVSHMEM.with(address), why);
        let sysfs = Sysfs::system();
        // Check that the device is an ivshmem device before opening it. If a device is in use, the error of
        // opening advises the user to unbind it. This advice would be wrong for other devices.
        let known = inlane_pci::Device::read(&sysfs, address).map_err(pci)?;
        if (known.vendor, known.device) != crate::discover::IVSHMEM {
            return Err(invalid(
                "it is not an ivshmem device, which has the ID 1af4:1110; /sys/bus/pci/devices lists the devices".into(),
            ));
        }
        let device = Device::open(&sysfs, address).map_err(pci)?;
        let vectors = device.interrupt_vectors(InterruptKind::MsiX).map_err(pci)?;
        if vectors <= LINK_VECTOR {
            let wanted = LINK_VECTOR + 1;
            return Err(invalid(format!(
                "it has {vectors} interrupt vectors but needs {wanted}; give the device and the server vectors={wanted}"
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
                "its server gave this machine port {port}, but the bridge has only ports 0 to {}; stop machines that still run, or \
                 raise {MACHINES}",
                ports.saturating_sub(1)
            )));
        }
        let bytes = device.bar(2).map_err(pci)?.size_bytes;
        let partition = Partition::new(ports, bytes).map_err(&invalid)?;
        let shared = bar(2, bytes)?.region();
        partition::claim(&shared, ports).map_err(&invalid)?;
        let interrupts = device.interrupts(InterruptKind::MsiX, LINK_VECTOR + 1).map_err(pci)?;
        let inbound = shared.slice(partition.memory(port) as usize, partition.window_bytes as usize)?;
        let peer_heartbeats = (0..ports).map(|_| PeerHeartbeat::default()).collect();
        let capabilities = capabilities(partition.window_bytes);
        let stop = AtomicBool::new(false);
        let inner = Inner {
            port,
            capabilities,
            partition,
            control,
            shared,
            inbound,
            interrupts,
            peer_heartbeats,
            stop,
        };
        let inner = Arc::new(inner);
        let own = inner.registers(port);
        own.set_link(false);
        own.mask.0.store(0, Ordering::Release);
        own.attachments.0.fetch_add(1, Ordering::AcqRel);
        let theirs = inner.clone();
        let heartbeat = std::thread::Builder::new()
            .name("ntb-heartbeat".into())
            .spawn(move || theirs.run_heartbeat())
            .map_err(|error| Error::os("starting the heartbeat thread", error))?;
        Ok(Self { inner, heartbeat: Some(heartbeat) })
    }
}

fn pci(error: inlane_pci::Error) -> Error {
    let (why, class) = (error.to_string(), error.class());
    Error::Core(inlane_core::Error::Device { device: IVSHMEM.into(), why, class, source: Some(error.into()) })
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
        is_memory_modelled: true,
        ordering: Promise::Posted,
    }
}

impl Inner {
    fn ports(&self) -> u32 {
        self.peer_heartbeats.len() as u32
    }

    /// Returns the registers of `port`.
    ///
    /// # Panics
    /// Panics for a port that does not exist.
    fn registers(&self, port: u32) -> &PortRegisters {
        assert!(port < self.ports(), "port checked by the caller");
        let at = self.partition.registers(port) as usize;
        // SAFETY: the registers are atomics inside the mapping, at a multiple of a page. RAM lies behind the
        // BAR, so atomics work.
        unsafe { &*self.shared.as_ptr().add(at).cast::<PortRegisters>() }
    }

    fn interrupt(&self, peer: u32, vector: u32) {
        if peer == self.port {
            // The device does not reliably interrupt its own machine, so write the eventfd directly. Ignore
            // errors: if the eventfd's counter is full, a wake-up is already pending.
            let _ = rustix::io::write(self.interrupts.event(vector as usize), &1u64.to_ne_bytes());
        } else {
            // The offset is inside the BAR and permitted, so this write cannot fail. If the peer's machine is
            // not running, the device drops the interrupt.
            let _ = self.control.write_u32(DOORBELL, peer << 16 | vector);
        }
    }

    fn notify_all_links(&self) {
        (0..self.ports()).for_each(|port| self.interrupt(port, LINK_VECTOR));
    }

    fn set_link(&self, up: bool) {
        if self.registers(self.port).set_link(up) {
            self.notify_all_links();
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

    /// Runs the heartbeat thread: advances this port's counter and checks the peers' counters.
    fn run_heartbeat(&self) {
        let mut since = vec![Instant::now(); self.peer_heartbeats.len()];
        while !self.stop.load(Ordering::Acquire) {
            self.registers(self.port).heartbeat.0.fetch_add(1, Ordering::Release);
            for (peer, since) in (0..self.ports()).zip(&mut since).filter(|(peer, _)| *peer != self.port) {
                let now = self.registers(peer).heartbeat.0.load(Ordering::Acquire);
                let heartbeat = &self.peer_heartbeats[peer as usize];
                let changed = if heartbeat.counter.swap(now, Ordering::AcqRel) != now {
                    *since = Instant::now();
                    heartbeat.set_lost(false)
                } else {
                    since.elapsed() > HEARTBEAT_TIMEOUT && heartbeat.set_lost(true)
                };
                if changed {
                    self.interrupt(self.port, LINK_VECTOR);
                }
            }
            std::thread::park_timeout(HEARTBEAT_INTERVAL);
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
        let heartbeat = &self.inner.peer_heartbeats[peer as usize];
        // A lost peer may come back and complete a handshake before the heartbeat thread checks again. So
        // compare the heartbeat counters here, too.
        if heartbeat.lost.load(Ordering::Acquire)
            && self.inner.registers(peer).heartbeat.0.load(Ordering::Acquire)
                != heartbeat.counter.load(Ordering::Acquire)
        {
            heartbeat.set_lost(false);
        }
        let changes = u64::from(heartbeat.changes.load(Ordering::Acquire));
        Link {
            up: ours & theirs & 1 == 1 && !heartbeat.lost.load(Ordering::Acquire),
            // The generation has room for only the low 20 bits of `ours` and the low 12 bits of `changes`. A
            // reader misses changes only if their number between two readings is a multiple of 2^20 or 2^12.
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
        let partition = &self.inner.partition;
        let leads = self.inner.registers(peer).window_span(self.inner.port, peer, partition.window_bytes)?;
        let start = partition.memory(peer) + leads.start;
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
            return Err(Error::invalid(
                format!("scratchpad {index}"),
                format!("there are scratchpads 0 to {}", SCRATCHPADS - 1),
            ));
        };
        pad.store(value, Ordering::Release);
        Ok(())
    }
}

impl Drop for Ivshmem {
    fn drop(&mut self) {
        self.inner.set_link(false);
        self.inner.stop.store(true, Ordering::Release);
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.thread().unpark();
            let _ = heartbeat.join();
        }
    }
}
