//! The meeting point of a job over windows: the hub of the twin bridge, which owns the memories and registers of the bridge. PEs
//! that the launcher starts inherit a socket to it. Other PEs connect to a socket with a random name.

use crate::error::{Error, Result};
use crate::transport::bootstrap::{MeetingPoint, Opening, PeEvent};
use crate::transport::machine::machine;
use inlane_ntb::twin::{Hub, MAX_PORTS, PortEvent};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::net::{RecvFlags, SendFlags, acceptfrom_with, recv, send};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of each window that are reserved for a program's static objects. Untouched pages take no memory.
const STATICS: u64 = 4 << 30;
/// How long a process that has connected may take to send its number.
const NUMBER_TIMEOUT: Duration = Duration::from_secs(10);

/// The hub of a job's twin bridge.
pub(super) struct JobHub {
    hub: Arc<Hub>,
    pes: u32,
}

impl JobHub {
    /// Makes a bridge with a port for each PE.
    pub fn new(opening: &Opening) -> Result<Self> {
        let window = opening.heap_bytes.saturating_add(STATICS);
        if window > 1 << 40 {
            let what = crate::field::HEAP.with(inlane_core::units::bytes(opening.heap_bytes));
            return Err(Error::invalid(
                what,
                "a window has at most 1 TiB, of which 4 GiB are for static objects; give 1020G or less",
            ));
        }
        Ok(Self { hub: Arc::new(Hub::new(opening.pes, window)?), pes: opening.pes })
    }
}

impl MeetingPoint for JobHub {
    fn events(&self) -> Option<Box<dyn Iterator<Item = (u32, PeEvent)> + Send>> {
        let event = |(pe, event)| {
            let event = match event {
                PortEvent::Attached => PeEvent::Attached,
                PortEvent::Finished => PeEvent::Finished,
                PortEvent::Lost(peer) => PeEvent::Lost(peer),
                PortEvent::ExitAll(status) => PeEvent::ExitAll(status),
                PortEvent::Gone => PeEvent::Gone,
            };
            (pe, event)
        };
        Some(Box::new(self.hub.events()?.into_iter().map(event)))
    }

    fn end_all(&self, status: i32) {
        self.hub.end_all(status);
    }

    fn invite(&self, pe: u32, command: &mut Command) -> Result<(String, Option<OwnedFd>)> {
        let socket = self.hub.admit(pe)?;
        // PEs cannot exchange bytes before they have connected, so the launcher tells them whether they share processors.
        let processors = inlane_core::cores::allowed().len();
        let crowded = self.pes as usize > processors && processors > 0;
        command.env(crate::variables::YIELD, if crowded { "1" } else { "0" });
        Ok((socket.as_raw_fd().to_string(), Some(socket)))
    }

    fn invitation(&self) -> Result<String> {
        let (listener, name) = listen_anywhere()?;
        let (hub, pes) = (self.hub.clone(), self.pes);
        std::thread::spawn(move || admit(&hub, &listener, pes));
        Ok(Card { machine: machine(), socket: name }.encode())
    }
}

/// What PEs need to connect to the hub if they did not inherit a socket.
#[derive(Clone, Debug, PartialEq)]
struct Card {
    /// A text that identifies the hub's machine, from [`machine`]. A process on another kernel cannot map the hub's memory.
    machine: String,
    /// Name of the socket at which the hub accepts PEs. It is in the abstract namespace.
    socket: String,
}

impl Card {
    fn encode(&self) -> String {
        format!("{}/{}", self.machine, self.socket)
    }

    fn decode(text: &str) -> Option<Self> {
        let (machine, socket) = text.split_once('/')?;
        // Refuse longer names, because they do not fit into the address of a UNIX socket.
        let valid = (1..100).contains(&socket.len()) && !socket.contains('/');
        valid.then(|| Self { machine: machine.into(), socket: socket.into() })
    }
}

/// Returns the socket to the hub of the job to which `invitation` invites PE `pe`.
pub(super) fn socket(invitation: &str, pe: u32) -> Result<OwnedFd> {
    if let Ok(fd) = invitation.parse::<RawFd>() {
        return inherited(fd);
    }
    let card = Card::decode(invitation).ok_or_else(|| {
        Error::invalid(
            format!("the invitation of PE 0, '{invitation}'"),
            "it is another release's; use one release for all PEs",
        )
    })?;
    if card.machine != machine() {
        return Err(Error::invalid(
            format!("PE {pe}"),
            "it runs on another machine than PE 0, and windows join the processes of one machine; start all PEs on one machine",
        ));
    }
    let socket = new_socket()?;
    let address = SocketAddrUnix::new_abstract_name(card.socket.as_bytes()).map_err(os("PE 0's socket"))?;
    connect(&socket, &address).map_err(|error| Error::Failed {
        what: format!("connecting PE {pe} to PE 0"),
        why: format!("{error}; start all PEs in one network namespace, and check that PE 0 runs"),
    })?;
    send(&socket, &pe.to_ne_bytes(), SendFlags::NOSIGNAL).map_err(os("the socket to PE 0"))?;
    Ok(socket)
}

fn inherited(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: the call takes numbers. It fails if the descriptor is not open. The program may have closed the
    // descriptor and reused its number; attaching then fails, because no hub answers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(Error::invalid(
            format!("the inherited descriptor {fd}"),
            "it is not open; start the program with `inlane ntb run`, not through a program that closes it",
        ));
    }
    // Programs that this process starts are not PEs, so they must not inherit the descriptor. SAFETY: the
    // descriptor is open. The launcher made it for this process, so nobody else owns it.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

fn os(what: &str) -> impl Fn(rustix::io::Errno) -> Error + '_ {
    move |error| Error::os(what, error)
}

fn new_socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(os("making a socket"))
}

/// Makes a listening socket with a random name in the abstract namespace, which leaves no file behind.
fn listen_anywhere() -> Result<(OwnedFd, String)> {
    let mut random = [0u8; 16];
    // SAFETY: the call writes at most the variable's 16 bytes.
    let got = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    if got != random.len() as isize {
        return Err(Error::os("random bytes for a socket's name", std::io::Error::last_os_error()));
    }
    let name = format!("inlane-{:032x}", u128::from_ne_bytes(random));
    let listener = new_socket()?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(os("the socket of PE 0"))?;
    bind(&listener, &address).map_err(os("the socket of PE 0"))?;
    listen(&listener, MAX_PORTS as i32).map_err(os("the socket of PE 0"))?;
    Ok((listener, name))
}

/// Accepts the connections of all `pes` PEs, and passes their sockets to the hub. Returns when all PEs have connected.
fn admit(hub: &Hub, listener: &OwnedFd, pes: u32) {
    let mut missing: Vec<u32> = (0..pes).collect();
    while !missing.is_empty() {
        let socket = match acceptfrom_with(listener, SocketFlags::CLOEXEC) {
            Ok((socket, _)) => socket,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
            Err(_) => return,
        };
        // Any process in this network namespace can connect. Accept only processes of the same user as this
        // process.
        let own = rustix::process::geteuid();
        let Some(number) =
            number(&socket).filter(|_| socket_peercred(&socket).is_ok_and(|peer| peer.uid == own))
        else {
            continue;
        };
        if missing.contains(&number) && hub.serve(number, socket).is_ok() {
            missing.retain(|one| *one != number);
        }
    }
}

/// Receives the number of the PE at the other end.
fn number(socket: &OwnedFd) -> Option<u32> {
    set_socket_timeout(socket, Timeout::Recv, Some(NUMBER_TIMEOUT)).ok()?;
    let mut bytes = [0u8; 4];
    // Stopping and continuing the process interrupts a receive with a timeout. The number may have arrived meanwhile.
    let (begun, mut late) = (Instant::now(), false);
    let (_, length) = loop {
        match recv(socket, &mut bytes, RecvFlags::empty()) {
            Err(Errno::INTR) if !late => late = begun.elapsed() >= NUMBER_TIMEOUT,
            received => break received.ok()?,
        }
    };
    set_socket_timeout(socket, Timeout::Recv, None).ok()?;
    (length == bytes.len()).then(|| u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cards_are_read_as_written() {
        let card = Card { machine: "1-2".into(), socket: "inlane-7".into() };
        assert_eq!(Card::decode(&card.encode()), Some(card));
        for bad in ["", "a", "a/", "a/b/c", "a//1"] {
            assert_eq!(Card::decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_card_or_refused(text in ".{0,200}") {
            let _ = Card::decode(&text);
        }
    }
}
