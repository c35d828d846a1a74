//! The fabric of a twin: the memories and registers of all ports, and the hub that hands them to the ports' processes and
//! notices when one of them is gone.
//!
//! The hub plays the part of the bridge's hardware: it outlives the processes, so registers (stale scratchpads among them)
//! and memory survive a restart, and the end of a process takes its links down.

use super::pass;
use crate::error::{Error, Result};
use crate::registers::{MAX_PORTS, PortRegisters, VECTORS};
use inlane_core::region::{Location, Region};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// What a port's process is told when it attaches: magic, port, ports, bytes of each inbound memory.
pub(super) const HELLO_BYTES: usize = 24;
pub(super) const MAGIC: u64 = 0x3130_4254_4e4c_4e49;
/// Doorbell vectors and the link event.
pub(super) const EVENTS: usize = VECTORS as usize + 1;

/// The memories, registers and events of all ports.
pub(super) struct Parts {
    pub ports: u32,
    pub window_bytes: u64,
    pub registers: Region,
    pub registers_fd: OwnedFd,
    pub memories: Vec<OwnedFd>,
    /// [`EVENTS`] for each port: its vectors, then its link event.
    pub events: Vec<OwnedFd>,
}

impl Parts {
    pub(super) fn port(&self, port: u32) -> &PortRegisters {
        assert!(port < self.ports, "port checked by the caller");
        // SAFETY: the mapping holds `ports` of them, is aligned to a page, and everything in it is atomic.
        unsafe { &*self.registers.as_ptr().cast::<PortRegisters>().add(port as usize) }
    }

    pub(super) fn signal(&self, port: u32, event: usize) {
        // A full counter means that the other side has plenty to wake up for already.
        let _ = rustix::io::write(&self.events[port as usize * EVENTS + event], &1u64.to_ne_bytes());
    }

    /// Tells every port that some link changed.
    pub(super) fn signal_links(&self) {
        (0..self.ports).for_each(|port| self.signal(port, VECTORS as usize));
    }
}

/// What a port's process did, as the hub sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It mapped the fabric.
    Attached,
    /// It has finished with the fabric in good order.
    Finished,
    /// It gives up because the link to that port went down: what follows is not its own failure.
    Lost(u32),
    /// It asks for all processes to end with this status.
    ExitAll(i32),
    /// Its socket closed: it exited or was killed.
    Gone,
}

pub(super) const SAYS_ATTACHED: u32 = 1;
pub(super) const SAYS_FINISHED: u32 = 2;
pub(super) const SAYS_EXIT: u32 = 3;
pub(super) const SAYS_LOST: u32 = 4;
/// It is there, and wants the fabric.
pub(super) const SAYS_HELLO: u32 = 5;

/// Owner of a fabric; see the module.
pub struct Hub {
    parts: Arc<Parts>,
    seen: Sender<(u32, Seen)>,
    receiver: Mutex<Option<Receiver<(u32, Seen)>>>,
}

impl Hub {
    /// A fabric of `ports` ports with `window_bytes` of inbound memory each (rounded up to whole pages; only what is
    /// touched takes memory).
    ///
    /// # Errors
    /// [`Error::Invalid`] for fewer than 1 or more than 64 ports or no memory, [`Error::Os`].
    pub fn new(ports: u32, window_bytes: u64) -> Result<Self> {
        if !(1..=MAX_PORTS).contains(&ports) {
            return Err(Error::invalid(format!("a fabric of {ports} ports"), "give 1 to 64"));
        }
        if !(1..=1 << 40).contains(&window_bytes) {
            return Err(Error::invalid(
                format!("windows of {window_bytes} bytes"),
                "give between 1 byte and 1 TiB",
            ));
        }
        let window_bytes = window_bytes.next_multiple_of(4096);
        let register_bytes = ports as usize * size_of::<PortRegisters>();
        let registers_fd = pass::sealed_memory("inlane-ntb-registers", register_bytes as u64)?;
        let registers = pass::map(registers_fd.as_fd(), 0, register_bytes, Location::Host)?;
        let memories = (0..ports)
            .map(|_| pass::sealed_memory("inlane-ntb-memory", window_bytes))
            .collect::<Result<_>>()?;
        let events = (0..ports as usize * EVENTS)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .collect::<Result<_, _>>()
            .map_err(|error| Error::os("eventfd", error))?;
        let (seen, receiver) = channel();
        let parts = Parts { ports, window_bytes, registers, registers_fd, memories, events };
        Ok(Self { parts: Arc::new(parts), seen, receiver: Mutex::new(Some(receiver)) })
    }

    /// What the ports' processes do, from now on. To be taken once.
    pub fn watch(&self) -> Option<Receiver<(u32, Seen)>> {
        self.receiver.lock().unwrap_or_else(|poison| poison.into_inner()).take()
    }

    /// Admits a process to `port`: the socket returned is for [`super::Twin::attach`] there, inherited or passed on. When
    /// it closes, the port's link goes down. A port may be admitted again after its process is gone.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port that does not exist, [`Error::Os`].
    pub fn admit(&self, port: u32) -> Result<OwnedFd> {
        if port >= self.parts.ports {
            return Err(Error::invalid(
                format!("port {port}"),
                format!("the fabric has ports 0 to {}", self.parts.ports - 1),
            ));
        }
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| Error::os("socket towards a port's process", error))?;
        let (parts, seen) = (self.parts.clone(), self.seen.clone());
        std::thread::Builder::new()
            .name(format!("ntb-hub-{port}"))
            .spawn(move || serve(&parts, port, &ours, &seen))
            .map_err(|error| Error::os("hub thread", error))?;
        Ok(theirs)
    }
}

/// Tells a port's process what there is, and gives it the descriptors.
fn hand_over(parts: &Parts, port: u32, socket: &OwnedFd) -> Result<()> {
    let mut hello = [0u8; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    hello[8..12].copy_from_slice(&port.to_ne_bytes());
    hello[12..16].copy_from_slice(&parts.ports.to_ne_bytes());
    hello[16..].copy_from_slice(&parts.window_bytes.to_ne_bytes());
    let fds: Vec<_> = std::iter::once(&parts.registers_fd)
        .chain(&parts.memories)
        .chain(&parts.events)
        .map(AsFd::as_fd)
        .collect();
    rustix::net::send(socket, &hello, SendFlags::NOSIGNAL)
        .map_err(|error| Error::os("socket towards a port's process", error))?;
    pass::send_descriptors(socket.as_fd(), &fds)
}

/// Hands the fabric over when asked, and listens until the process is gone. Not before: the system limits what a user has under
/// way to processes that do not receive yet.
fn serve(parts: &Parts, port: u32, socket: &OwnedFd, seen: &Sender<(u32, Seen)>) {
    let mut life = None;
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
            SAYS_HELLO => match hand_over(parts, port, socket) {
                Ok(()) => continue,
                Err(_) => break,
            },
            SAYS_ATTACHED => {
                life = Some(word(4));
                Seen::Attached
            }
            SAYS_FINISHED => Seen::Finished,
            SAYS_EXIT => Seen::ExitAll(word(4) as i32),
            SAYS_LOST => Seen::Lost(word(4)),
            _ => continue,
        };
        let _ = seen.send((port, what));
    }
    let registers = parts.port(port);
    // A process that attached here since has its own socket; this end is not its end.
    if life.is_some_and(|life| registers.life.0.load(Ordering::Acquire) == life) && registers.set_link(false)
    {
        parts.signal_links();
    }
    let _ = seen.send((port, Seen::Gone));
}
