//! The twin: ports in processes of one machine, joined by shared memory and eventfds.
//!
//! A window is a mapping of the peer's memory. A doorbell is a bit in a shared register, with an eventfd for
//! each vector. The memory is coherent and ordered, but [`crate::fault`] can delay, tear and reorder stores.
//! Unlike in hardware, a mapped window keeps working after its translation was cleared.

mod descriptors;
mod fabric;
mod server;
#[cfg(test)]
mod tests;

pub use crate::registers::MAX_PORTS;
pub use fabric::{Hub, PortEvent};
pub use server::Server;

use crate::device::{Capabilities, Event, Link, Ntb, Ordering as Promise};
use crate::error::{Error, Result};
use crate::fault::{Faults, Random, Wire};
use crate::registers::{PortRegisters, SCRATCHPADS, VECTORS, limits, vector_bits};
use crate::window::Window;
use fabric::{DESCRIPTORS, EVENTS, Fabric, HELLO_BYTES, MAGIC};
use fabric::{MESSAGE_ATTACHED, MESSAGE_EXIT, MESSAGE_FINISHED, MESSAGE_HELLO, MESSAGE_LOST};
use inlane_core::region::{Location, Region};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One port of the fabric of a twin. Each process attaches to its own port, and reaches the other ports
/// through it.
pub struct Twin {
    inner: Arc<Inner>,
}

/// The largest alignment of the inbound memory's address, in bytes. A program cannot allocate symmetric
/// memory with a larger alignment, because symmetric memory is a part of the inbound memory.
const ALIGNMENT: usize = 1 << 30;

/// How long to wait for the [`Hub`]'s answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

struct Inner {
    port: u32,
    capabilities: Capabilities,
    fabric: Arc<Fabric>,
    inbound: Region,
    wires: Vec<Option<Arc<Wire>>>,
    socket: OwnedFd,
    /// True once [`Twin::has_ended`] has returned true.
    ended: AtomicBool,
}

impl Twin {
    /// Attaches to the fabric over `socket`, which [`Hub::admit`] has returned. The link stays down until
    /// [`Ntb::link_enable`] is called.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no hub of this version answers, [`Error::Os`] if the system refuses a mapping.
    pub fn attach(socket: OwnedFd, faults: &Faults) -> Result<Self> {
        Self::attach_with(socket, faults, |_| usize::MAX)
    }

    /// Attaches like [`Twin::attach`], but maps only the start of the inbound memory. `needed` receives the
    /// number of ports of the fabric, and returns the number of bytes to map.
    ///
    /// # Errors
    /// As for [`Twin::attach`].
    pub fn attach_with(socket: OwnedFd, faults: &Faults, needed: impl FnOnce(u32) -> usize) -> Result<Self> {
        Self::attach_beside(socket, faults, needed, false)
    }

    /// Attaches like [`Twin::attach_with`]. Set `careful` if the processes at other ports may be hostile.
    fn attach_beside(
        socket: OwnedFd,
        faults: &Faults,
        needed: impl FnOnce(u32) -> usize,
        careful: bool,
    ) -> Result<Self> {
        faults.step("attach");
        let foreign = || {
            Error::invalid(
                "the fabric's socket",
                "no hub of this release answers; start the program with `inlane ntb run` of the release it was linked with",
            )
        };
        let os = |error| Error::os("the fabric's socket", error);
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT)).map_err(os)?;
        send_message(&socket, MESSAGE_HELLO, 0);
        let mut hello = [0u8; HELLO_BYTES];
        let receive = || rustix::net::recv(&socket, &mut hello, RecvFlags::empty());
        let (_, length) = match descriptors::despite_signals(receive) {
            Err(Errno::AGAIN) => return Err(foreign()),
            received => received.map_err(os)?,
        };
        let u32_at = |at: usize| u32::from_ne_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
        let u64_at = |at: usize| (u32_at(at) as u64) | (u32_at(at + 4) as u64) << 32;
        let (port, ports, window_bytes) = (u32_at(8), u32_at(12), u64_at(16));
        if length != HELLO_BYTES
            || u64_at(0) != MAGIC
            || !(1..=MAX_PORTS).contains(&ports)
            || port >= ports
            || !(1..=1 << 40).contains(&window_bytes)
        {
            return Err(foreign());
        }
        let count = 1 + ports as usize * DESCRIPTORS;
        let mut fds = descriptors::receive_descriptors(socket.as_fd(), count)?.into_iter();
        let registers_fd = fds.next().ok_or_else(|| {
            Error::invalid(
                "the fabric's socket",
                "the hub sent no registers; start the program with `inlane ntb run`",
            )
        })?;
        let memories: Vec<_> = fds.by_ref().take(ports as usize).collect();
        let register_bytes = ports as usize * size_of::<PortRegisters>();
        // From now on, wait without a timeout. The hub's next message asks this process to end, and may come
        // at any time.
        set_socket_timeout(&socket, Timeout::Recv, None).map_err(os)?;
        descriptors::check_sealed(registers_fd.as_fd(), register_bytes as u64)?;
        for memory in &memories {
            descriptors::check_sealed(memory.as_fd(), window_bytes)?;
        }
        let registers = descriptors::map(registers_fd.as_fd(), 0, register_bytes, Location::Host)?;
        let memory = memories[port as usize].as_fd();
        let bytes = needed(ports).clamp(1, window_bytes as usize).next_multiple_of(4096);
        // Align to at most the size of the memory. `map_aligned` reserves `align` additional bytes of
        // addresses, which takes long under memory checkers such as AddressSanitizer.
        let align = bytes.next_power_of_two().clamp(4096, ALIGNMENT);
        let inbound = descriptors::map_aligned(memory, bytes, align, Location::Host)?;
        let fabric = Arc::new(Fabric {
            ports,
            window_bytes,
            registers,
            registers_fd,
            memories,
            eventfds: fds.collect(),
            careful,
        });
        let wires = (0..ports)
            .map(|peer| {
                (peer != port && !faults.wire_is_clean())
                    .then(|| Arc::new(Wire::new(faults.clone(), (port * MAX_PORTS + peer) as u64)))
            })
            .collect();
        let inner = Arc::new(Inner {
            port,
            capabilities: capabilities(window_bytes),
            fabric,
            inbound,
            wires,
            socket,
            ended: AtomicBool::new(false),
        });
        inner.registers().set_link(false);
        inner.registers().mask.0.store(0, Ordering::Release);
        let attachment = inner.registers().attachments.0.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        inner.send_message(MESSAGE_ATTACHED, attachment);
        if !faults.flap.is_zero() {
            flap(Arc::downgrade(&inner), faults.clone());
        }
        Ok(Self { inner })
    }

    /// Reports to the [`Hub`] that this process has finished without an error.
    pub fn report_finished(&self) {
        self.inner.send_message(MESSAGE_FINISHED, 0);
    }

    /// Reports to the [`Hub`] that this process ends because the link to `peer` went down. The launcher then
    /// looks for the cause at `peer`.
    pub fn report_lost(&self, peer: u32) {
        self.inner.send_message(MESSAGE_LOST, peer);
    }

    /// Asks the launcher to end all processes of the fabric with `status`.
    pub fn request_exit_all(&self, status: i32) {
        self.inner.send_message(MESSAGE_EXIT, status as u32);
    }

    /// Blocks until the [`Hub`] asks this process to end. Returns the exit status that the hub asks for, or
    /// `None` if the hub has ended. Only one thread may call this.
    pub fn wait_for_end(&self) -> Option<i32> {
        loop {
            let mut message = [0u8; 8];
            match rustix::net::recv(&self.inner.socket, &mut message, RecvFlags::empty()) {
                Ok((_, 8)) if message[..4] == MESSAGE_EXIT.to_ne_bytes() => {
                    return Some(i32::from_ne_bytes([message[4], message[5], message[6], message[7]]));
                }
                Ok((_, 1..)) | Err(Errno::INTR | Errno::AGAIN) => {}
                _ => return None,
            }
        }
    }

    /// Returns true if the [`Hub`] has ended or has asked this process to end. Does not block. Do not combine it with
    /// [`Twin::wait_for_end`].
    pub fn has_ended(&self) -> bool {
        let ended = &self.inner.ended;
        let mut message = [0u8; 8];
        if !ended.load(Ordering::Acquire) {
            let now = match rustix::net::recv(&self.inner.socket, &mut message, RecvFlags::DONTWAIT) {
                Ok((_, 8)) => message[..4] == MESSAGE_EXIT.to_ne_bytes(),
                Ok((_, 1..)) | Err(Errno::INTR | Errno::AGAIN) => false,
                _ => true,
            };
            // The message arrives only once.
            ended.fetch_or(now, Ordering::AcqRel);
        }
        ended.load(Ordering::Acquire)
    }

    /// Returns the socket to the hub. It becomes readable when [`Twin::has_ended`] may return true.
    pub fn hub_socket(&self) -> BorrowedFd<'_> {
        self.inner.socket.as_fd()
    }

    /// Maps `bytes` bytes of the inbound memory, from `offset` on, a second time at `address`. Replaces the
    /// former mapping there. Use this to let peers access static objects, because these have fixed addresses.
    /// All three numbers are multiples of the page size.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes outside the inbound memory; [`Error::Os`] if the system refuses.
    ///
    /// # Safety
    /// No thread accesses the memory at `address` during the call. Its old contents are lost.
    pub unsafe fn map_inbound_at(&self, offset: usize, bytes: usize, address: *mut u8) -> Result<()> {
        self.inner.inbound.slice(offset, bytes)?;
        let memory = &self.inner.fabric.memories[self.inner.port as usize];
        // SAFETY: the caller gives up what was mapped there.
        unsafe { descriptors::map_at(memory.as_fd(), offset as u64, bytes, address) }
    }
}

fn capabilities(window_bytes: u64) -> Capabilities {
    Capabilities {
        name: "twin",
        is_twin: true,
        windows: 1,
        window: limits(window_bytes),
        doorbells: u64::MAX,
        vectors: VECTORS,
        scratchpads: SCRATCHPADS,
        is_memory_modelled: true,
        ordering: Promise::Coherent,
    }
}

/// Takes the link down at random intervals, each time for 2 ms. An interval is 0.5 to 1.5 times
/// `faults.flap`. Ends when the port is dropped.
fn flap(port: Weak<Inner>, faults: Faults) {
    let mut random = Random::new(faults.seed ^ 0xF1A9);
    std::thread::spawn(move || {
        loop {
            let pause = faults.flap.as_nanos() as u64;
            std::thread::sleep(Duration::from_nanos(pause / 2 + random.next_u64() % pause));
            let Some(inner) = port.upgrade() else { return };
            if inner.registers().link.0.load(Ordering::Acquire) & 1 == 1 {
                inner.set_link(false);
                std::thread::sleep(Duration::from_millis(2));
                inner.set_link(true);
            }
        }
    });
}

/// Sends a message to the hub at the other end of `socket`.
fn send_message(socket: &OwnedFd, what: u32, value: u32) {
    let mut message = [0u8; 8];
    message[..4].copy_from_slice(&what.to_ne_bytes());
    message[4..].copy_from_slice(&value.to_ne_bytes());
    // Ignore errors, because a hub that has ended needs no message.
    let _ = rustix::net::send(socket, &message, SendFlags::NOSIGNAL);
}

impl Inner {
    fn registers(&self) -> &PortRegisters {
        self.fabric.port(self.port)
    }

    fn send_message(&self, what: u32, value: u32) {
        send_message(&self.socket, what, value);
    }

    fn set_link(&self, up: bool) {
        if self.registers().set_link(up) {
            if !up {
                self.wires.iter().flatten().for_each(|wire| wire.lose_all());
            }
            self.fabric.signal_links();
        }
    }

    fn check(&self, peer: u32) -> Result<()> {
        match peer < self.fabric.ports {
            true => Ok(()),
            false => Err(Error::invalid(
                format!("port {peer}"),
                format!("the fabric has ports 0 to {}", self.fabric.ports - 1),
            )),
        }
    }
}

fn no_window(peer: u32, window: u32) -> Error {
    Error::Window {
        peer,
        why: format!("window {window} does not exist; the twin has window 0 onto each port"),
    }
}

fn ring(fabric: &Fabric, peer: u32, bits: u64) {
    fabric.port(peer).ring(bits).for_each(|vector| fabric.signal(peer, vector as usize));
}

impl Ntb for Twin {
    fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    fn port(&self) -> u32 {
        self.inner.port
    }

    fn ports(&self) -> u32 {
        self.inner.fabric.ports
    }

    fn link_enable(&self, up: bool) {
        self.inner.set_link(up);
    }

    #[inline]
    fn link(&self, peer: u32) -> Link {
        if peer >= self.inner.fabric.ports {
            return Link { up: false, generation: 0 };
        }
        let ours = self.inner.registers().link.0.load(Ordering::Acquire);
        let theirs = self.inner.fabric.port(peer).link.0.load(Ordering::Acquire);
        Link { up: ours & theirs & 1 == 1, generation: (ours as u64) << 32 | theirs as u64 }
    }

    fn inbound(&self) -> &Region {
        &self.inner.inbound
    }

    fn set_translation(&self, peer: u32, window: u32, memory: &Region) -> Result<()> {
        if window != 0 || peer >= self.inner.fabric.ports {
            return Err(no_window(peer, window));
        }
        self.inner.registers().set_translation(peer, &self.inner.inbound, memory)
    }

    fn clear_translation(&self, peer: u32, _window: u32) {
        if peer < self.inner.fabric.ports {
            self.inner.registers().translations[peer as usize].bytes.store(0, Ordering::Release);
        }
    }

    fn peer_window(&self, peer: u32, window: u32) -> Result<Window> {
        if window != 0 || peer >= self.inner.fabric.ports {
            return Err(no_window(peer, window));
        }
        let leads = self.inner.fabric.port(peer).window_span(
            self.inner.port,
            peer,
            self.inner.fabric.window_bytes,
        )?;
        let length = (leads.end - leads.start) as usize;
        let memory = &self.inner.fabric.memories[peer as usize];
        let region = descriptors::map(memory.as_fd(), leads.start, length, Location::Window { peer })?;
        Ok(Window::new(peer, region, Promise::Coherent, self.inner.wires[peer as usize].clone()))
    }

    fn doorbell_read(&self) -> u64 {
        self.inner.registers().doorbell.0.load(Ordering::SeqCst)
    }

    fn doorbell_clear(&self, bits: u64) {
        self.inner.registers().doorbell.0.fetch_and(!bits, Ordering::SeqCst);
    }

    fn doorbell_mask(&self) -> u64 {
        self.inner.registers().mask.0.load(Ordering::SeqCst)
    }

    fn doorbell_mask_set(&self, bits: u64) {
        self.inner.registers().mask.0.fetch_or(bits, Ordering::SeqCst);
    }

    fn doorbell_mask_clear(&self, bits: u64) {
        self.inner.registers().mask.0.fetch_and(!bits, Ordering::SeqCst);
    }

    fn vector_bits(&self, vector: u32) -> u64 {
        vector_bits(vector)
    }

    fn peer_doorbell_set(&self, peer: u32, bits: u64) -> Result<()> {
        self.inner.check(peer)?;
        match &self.inner.wires[peer as usize] {
            None => ring(&self.inner.fabric, peer, bits),
            Some(wire) => {
                let fabric = self.inner.fabric.clone();
                wire.doorbell(move || ring(&fabric, peer, bits));
            }
        }
        Ok(())
    }

    fn event(&self, event: Event) -> Result<BorrowedFd<'_>> {
        let index = match event {
            Event::Doorbell(vector) if vector < VECTORS => vector as usize,
            Event::Link => VECTORS as usize,
            Event::Doorbell(vector) => {
                return Err(Error::invalid(
                    format!("doorbell vector {vector}"),
                    format!("the twin has vectors 0 to {}", VECTORS - 1),
                ));
            }
        };
        Ok(self.inner.fabric.eventfds[self.inner.port as usize * EVENTS + index].as_fd())
    }

    fn scratchpad_read(&self, index: u32) -> u32 {
        self.inner.registers().scratchpads.get(index as usize).map_or(0, |pad| pad.load(Ordering::Acquire))
    }

    fn scratchpad_write(&self, index: u32, value: u32) {
        if let Some(pad) = self.inner.registers().scratchpads.get(index as usize) {
            pad.store(value, Ordering::Release);
        }
    }

    fn peer_scratchpad_write(&self, peer: u32, index: u32, value: u32) -> Result<()> {
        self.inner.check(peer)?;
        if index >= SCRATCHPADS {
            return Err(Error::invalid(
                format!("scratchpad {index}"),
                format!("there are scratchpads 0 to {}", SCRATCHPADS - 1),
            ));
        }
        let write = move |fabric: &Fabric| {
            fabric.port(peer).scratchpads[index as usize].store(value, Ordering::Release);
        };
        match &self.inner.wires[peer as usize] {
            None => write(&self.inner.fabric),
            Some(wire) => {
                let fabric = self.inner.fabric.clone();
                wire.register(move || write(&fabric));
            }
        }
        Ok(())
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.inner.set_link(false);
    }
}
