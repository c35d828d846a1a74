//! The fabric of a twin: the memory and registers of all ports, and the hub that owns them.
//!
//! The hub stands in for the bridge's hardware. It outlives the ports' processes, so memory and registers
//! survive a restart of a process. This includes stale scratchpads. When a port's process ends, the hub takes
//! the port's links down.

use super::descriptors;
use crate::error::{Error, Result};
use crate::registers::{MAX_PORTS, PortRegisters, VECTORS};
use inlane_core::region::{Location, Region};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Length in bytes of the first message that the hub sends to a process after it attaches. The message holds
/// the magic number, the port, the number of ports and the size of each port's inbound memory.
pub(super) const HELLO_BYTES: usize = 24;
pub(super) const MAGIC: u64 = 0x3230_4254_4e4c_4e49;
/// Number of eventfds of a port: its doorbell vectors and the link event.
pub(super) const EVENTS: usize = VECTORS as usize + 1;
/// Number of descriptors of a port: its memory and its eventfds.
pub(super) const DESCRIPTORS: usize = 1 + EVENTS;

/// The memories, registers and events of all ports.
pub(super) struct Fabric {
    pub ports: u32,
    pub window_bytes: u64,
    pub registers: Region,
    pub registers_fd: OwnedFd,
    pub memories: Vec<OwnedFd>,
    /// [`EVENTS`] eventfds for each port: its doorbell vectors, then its link event.
    pub eventfds: Vec<OwnedFd>,
    /// True if the processes at other ports may be hostile. They share the eventfds, so they can make a write block.
    pub careful: bool,
}

impl Fabric {
    pub(super) fn port(&self, port: u32) -> &PortRegisters {
        assert!(port < self.ports, "port checked by the caller");
        // SAFETY: the page-aligned mapping holds the registers of `ports` ports. All registers are atomics.
        unsafe { &*self.registers.as_ptr().cast::<PortRegisters>().add(port as usize) }
    }

    pub(super) fn signal(&self, port: u32, event: usize) {
        let eventfd = &self.eventfds[port as usize * EVENTS + event];
        if self.careful
            && poll(&mut [PollFd::new(eventfd, PollFlags::OUT)], Some(&Timespec::default())) != Ok(1)
        {
            return;
        }
        // Ignore errors: if the eventfd's counter is full, a wake-up is already pending.
        let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
    }

    /// Raises the link event of every port.
    pub(super) fn signal_links(&self) {
        (0..self.ports).for_each(|port| self.signal(port, VECTORS as usize));
    }
}

/// An event of the process at a port. The [`Hub`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The process mapped the fabric.
    Attached,
    /// The process has finished and will not use the fabric any more.
    Finished,
    /// The process ends because its link to the port with this number went down. So the process at that other
    /// port is the cause.
    Lost(u32),
    /// The process asks the launcher to end all processes, and to exit with this status.
    ExitAll(i32),
    /// The process's socket closed, because the process exited or was killed.
    Gone,
}

pub(super) const MESSAGE_ATTACHED: u32 = 1;
pub(super) const MESSAGE_FINISHED: u32 = 2;
pub(super) const MESSAGE_EXIT: u32 = 3;
pub(super) const MESSAGE_LOST: u32 = 4;
/// The process has started and asks the hub for the descriptors of the fabric.
pub(super) const MESSAGE_HELLO: u32 = 5;

/// The hub of a twin bridge. It owns the fabric, which consists of the memories and registers of all ports.
/// It admits processes to the ports and reports events of these processes.
pub struct Hub {
    fabric: Arc<Fabric>,
    events: Sender<(u32, PortEvent)>,
    receiver: Mutex<Option<Receiver<(u32, PortEvent)>>>,
    /// One entry for each process that has not ended: the number of its port, and the socket between the hub
    /// and the process.
    sockets: Sockets,
}

type Sockets = Arc<Mutex<Vec<(u32, Arc<OwnedFd>)>>>;

fn lock(sockets: &Sockets) -> std::sync::MutexGuard<'_, Vec<(u32, Arc<OwnedFd>)>> {
    sockets.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Hub {
    /// Creates a fabric of `ports` ports. Each port has `window_bytes` bytes of inbound memory, rounded up to
    /// pages. Untouched pages use no memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 1 to [`MAX_PORTS`] ports with 1 byte to 1 TiB each. [`Error::Os`] if the
    /// system refuses memory or descriptors.
    pub fn new(ports: u32, window_bytes: u64) -> Result<Self> {
        if !(1..=MAX_PORTS).contains(&ports) {
            return Err(Error::invalid(
                format!("a fabric of {ports} ports"),
                format!("give 1 to {MAX_PORTS} ports"),
            ));
        }
        if !(1..=1 << 40).contains(&window_bytes) {
            return Err(Error::invalid(
                format!("windows of {window_bytes} bytes"),
                "give between 1 byte and 1 TiB",
            ));
        }
        // The hub also has a socket to each process, and its owner may have a descriptor of each process.
        descriptors::allow((DESCRIPTORS + 4) * ports as usize);
        let window_bytes = window_bytes.next_multiple_of(4096);
        let register_bytes = ports as usize * size_of::<PortRegisters>();
        let registers_fd = descriptors::sealed_memory("inlane-ntb-registers", register_bytes as u64)?;
        let registers = descriptors::map(registers_fd.as_fd(), 0, register_bytes, Location::Host)?;
        let memories = (0..ports)
            .map(|_| descriptors::sealed_memory("inlane-ntb-memory", window_bytes))
            .collect::<Result<_>>()?;
        let eventfds = (0..ports as usize * EVENTS)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .collect::<Result<_, _>>()
            .map_err(|error| Error::os("making an eventfd", error))?;
        let (events, receiver) = channel();
        let fabric =
            Fabric { ports, window_bytes, registers, registers_fd, memories, eventfds, careful: true };
        let receiver = Mutex::new(Some(receiver));
        Ok(Self { fabric: Arc::new(fabric), events, receiver, sockets: Sockets::default() })
    }

    /// Returns the receiver of the ports' events. Returns `None` after the first call.
    pub fn events(&self) -> Option<Receiver<(u32, PortEvent)>> {
        self.receiver.lock().unwrap_or_else(|poison| poison.into_inner()).take()
    }

    /// Admits a process to `port`. Pass the returned socket to that process. The process gives it to
    /// [`super::Twin::attach`]. When the socket closes, the port's link goes down, and another process can be
    /// admitted to the port.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the port does not exist, [`Error::Os`] if the system refuses a socket or a
    /// thread.
    pub fn admit(&self, port: u32) -> Result<OwnedFd> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| Error::os("the socket to a port's process", error))?;
        self.serve(port, ours)?;
        Ok(theirs)
    }

    /// Admits a process to `port` like [`Hub::admit`], but over an existing connection. `socket` is the hub's
    /// end of a UNIX socket pair of type SOCK_SEQPACKET. The process holds the other end.
    ///
    /// # Errors
    /// As for [`Hub::admit`].
    pub fn serve(&self, port: u32, socket: OwnedFd) -> Result<()> {
        if port >= self.fabric.ports {
            return Err(Error::invalid(
                format!("port {port}"),
                format!("the fabric has ports 0 to {}", self.fabric.ports - 1),
            ));
        }
        let (fabric, events, sockets) = (self.fabric.clone(), self.events.clone(), self.sockets.clone());
        let socket = Arc::new(socket);
        lock(&sockets).push((port, socket.clone()));
        std::thread::Builder::new()
            .name(format!("ntb-hub-{port}"))
            .spawn(move || {
                serve(&fabric, port, &socket, &events);
                lock(&sockets).retain(|(_, other)| !Arc::ptr_eq(other, &socket));
                let _ = events.send((port, PortEvent::Gone));
            })
            .map_err(|error| Error::os("starting the hub's thread", error))?;
        Ok(())
    }

    /// Asks all processes of the fabric to end with `status`. See [`super::Twin::wait_for_end`].
    pub fn end_all(&self, status: i32) {
        for (_, socket) in lock(&self.sockets).iter() {
            super::send_message(socket, MESSAGE_EXIT, status as u32);
        }
    }
}

/// Sends a process the fabric's sizes and descriptors.
fn send_fabric(fabric: &Fabric, port: u32, socket: &OwnedFd) -> Result<()> {
    let mut hello = [0u8; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    hello[8..12].copy_from_slice(&port.to_ne_bytes());
    hello[12..16].copy_from_slice(&fabric.ports.to_ne_bytes());
    hello[16..].copy_from_slice(&fabric.window_bytes.to_ne_bytes());
    let fds: Vec<_> = std::iter::once(&fabric.registers_fd)
        .chain(&fabric.memories)
        .chain(&fabric.eventfds)
        .map(AsFd::as_fd)
        .collect();
    rustix::net::send(socket, &hello, SendFlags::NOSIGNAL)
        .map_err(|error| Error::os("the socket to a port's process", error))?;
    descriptors::send_descriptors(socket.as_fd(), &fds)
}

/// Serves the process of one port until the process's socket closes. Sends the descriptors only when the
/// process requests them, because the system limits how many unreceived descriptors a user may have.
fn serve(fabric: &Fabric, port: u32, socket: &OwnedFd, events: &Sender<(u32, PortEvent)>) {
    let mut attachment = None;
    loop {
        let mut message = [0u8; 8];
        match rustix::io::read(socket, &mut message) {
            Ok(8) => {}
            Err(rustix::io::Errno::INTR) => continue,
            _ => break,
        }
        let word =
            |at: usize| u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        let what = match word(0) {
            MESSAGE_HELLO => match send_fabric(fabric, port, socket) {
                Ok(()) => continue,
                Err(_) => break,
            },
            MESSAGE_ATTACHED => {
                attachment = Some(word(4));
                PortEvent::Attached
            }
            MESSAGE_FINISHED => PortEvent::Finished,
            MESSAGE_EXIT => PortEvent::ExitAll(word(4) as i32),
            MESSAGE_LOST => PortEvent::Lost(word(4)),
            _ => continue,
        };
        let _ = events.send((port, what));
    }
    let registers = fabric.port(port);
    // Take the link down only if no later process has attached to this port. A later process has its own
    // socket.
    if attachment.is_some_and(|attachment| registers.attachments.0.load(Ordering::Acquire) == attachment)
        && registers.set_link(false)
    {
        fabric.signal_links();
    }
}
