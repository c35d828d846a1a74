//! A twin between two processes that were started independently: a server at a UNIX socket, and clients that join it.
//!
//! The server's process owns the bridge and has its port 0. One client at a time has port 1. The bridge ends with the server's
//! process.

use super::{Hub, PortEvent, Twin};
use crate::error::{Error, Result};
use crate::fault::Faults;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    shutdown, socket_with,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

/// The server's port.
const SERVER: u32 = 0;
/// The client's port.
const CLIENT: u32 = 1;

/// Owns a bridge of two ports, and lets other processes join it at a UNIX socket. When it is dropped, the link goes down, and
/// its clients see that the bridge has ended.
pub struct Server {
    hub: Arc<Hub>,
    listener: Arc<OwnedFd>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Creates a bridge whose ports have `window_bytes` bytes of inbound memory each, and listens at `path`. Replaces a socket
    /// file at which no process listens.
    ///
    /// # Errors
    /// [`Error::Invalid`] if another process listens at `path`, [`Error::Os`] if the system refuses.
    pub fn listen(path: &Path, window_bytes: u64) -> Result<Self> {
        let hub = Arc::new(Hub::new(2, window_bytes)?);
        let events = hub.events().ok_or_else(|| Error::invalid("the hub", "its events were taken"))?;
        let address = address(path)?;
        let listener = socket(SocketType::SEQPACKET)?;
        let mut bound = bind(&listener, &address);
        if bound == Err(Errno::ADDRINUSE) {
            if !is_abandoned(path, &address)? {
                let why = "it exists, and a process uses it; only one side has the role server";
                return Err(Error::invalid(path.display().to_string(), why));
            }
            std::fs::remove_file(path).map_err(failed(path))?;
            bound = bind(&listener, &address);
        }
        bound.map_err(|error| failed(path)(error.into()))?;
        listen(&listener, 16).map_err(|error| failed(path)(error.into()))?;
        let listener = Arc::new(listener);
        let (accepting, admitting) = (listener.clone(), hub.clone());
        let thread = std::thread::Builder::new()
            .name("ntb-server".into())
            .spawn(move || accept(&accepting, &admitting, &events))
            .map_err(|error| Error::os("starting the thread of the bridge's server", error))?;
        Ok(Self { hub, listener, path: path.to_owned(), thread: Some(thread) })
    }

    /// Attaches this process to the bridge.
    ///
    /// # Errors
    /// As for [`Twin::attach`].
    pub fn attach(&self, faults: &Faults) -> Result<Twin> {
        Twin::attach_beside(self.hub.admit(SERVER)?, faults, |_| usize::MAX, true)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The program that uses the path next may have replaced the file already.
        let _ = std::fs::remove_file(&self.path);
        // Wakes the thread that accepts.
        let _ = shutdown(&*self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.hub.end_all(0);
    }
}

/// Admits clients until the listener is shut down. Refuses a client while another one is there.
fn accept(listener: &OwnedFd, hub: &Hub, events: &Receiver<(u32, PortEvent)>) {
    let mut occupied = false;
    loop {
        let client = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => client,
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // Try again later, because other descriptors may be closed.
                std::thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
            Err(_) => return,
        };
        for event in events.try_iter() {
            occupied &= event != (CLIENT, PortEvent::Gone);
        }
        // A refused client sees that its socket closes. It tries again until the former client's end has been noticed.
        occupied = occupied || hub.serve(CLIENT, client).is_ok();
    }
}

impl Twin {
    /// Joins the bridge of the server at `path`. Returns `None` if there is no server.
    ///
    /// # Errors
    /// As for [`Twin::attach`]. Also if the server has another client.
    pub fn join(path: &Path, faults: &Faults) -> Result<Option<Self>> {
        let (address, client) = (address(path)?, socket(SocketType::SEQPACKET)?);
        match connect(&client, &address) {
            Ok(()) => match Self::attach_beside(client, faults, |_| usize::MAX, true) {
                Err(error) if is_refusal(&error) => Err(Error::invalid(
                    path.display().to_string(),
                    "its server has another client, or is no bridge of this release of inlane",
                )),
                attached => attached.map(Some),
            },
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::INTR) => Ok(None),
            Err(error) => Err(failed(path)(error.into())),
        }
    }
}

/// Returns true if a server has closed its socket or has answered otherwise than a bridge. The text of such an error is for
/// processes that a launcher has started.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Invalid { .. } => true,
        Error::Os { source, .. } => source.kind() == std::io::ErrorKind::ConnectionReset,
        _ => false,
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::os(format!("the socket {}", path.display()), error)
}

fn address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| failed(path)(error.into()))
}

fn socket(kind: SocketType) -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::os("creating a socket", error))
}

/// Returns true if the file at `path` is a socket that no process has open. A server does not notice the attempt, because it has
/// a socket of another type, for which the kernel has another error.
fn is_abandoned(path: &Path, address: &SocketAddrUnix) -> Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    Ok(is_socket && connect(socket(SocketType::DGRAM)?, address) == Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ntb;
    use std::time::{Duration, Instant};

    fn wait(what: &str, mut condition: impl FnMut() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn join(path: &Path) -> Twin {
        let start = Instant::now();
        loop {
            match Twin::join(path, &Faults::default()) {
                Ok(Some(twin)) => return twin,
                refused => assert!(start.elapsed() < Duration::from_secs(60), "{:?}", refused.err()),
            }
        }
    }

    #[test]
    fn clients_join_one_after_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bridge");
        assert!(Twin::join(&path, &Faults::default()).unwrap().is_none(), "there is no server");
        let server = Server::listen(&path, 4096).unwrap();
        let own = server.attach(&Faults::default()).unwrap();
        own.link_enable(true);
        for _ in 0..3 {
            let client = join(&path);
            assert_eq!((own.port(), client.port(), client.ports()), (0, 1, 2));
            client.link_enable(true);
            assert!(own.link(1).up && client.link(0).up);
            let refused = Twin::join(&path, &Faults::default()).err().unwrap().to_string();
            assert!(refused.contains("its server has another client"), "{refused}");
            drop(client);
            wait("the link stays up", || !own.link(1).up);
        }
        assert!(Server::listen(&path, 4096).is_err(), "the path is in use");
        let client = join(&path);
        drop((own, server));
        wait("the client sees no end", || client.has_ended());
        assert!(client.has_ended(), "it does not come back");
        assert!(!path.exists() && !client.link(0).up);
    }

    #[test]
    fn a_client_that_makes_doorbells_block_is_not_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::listen(&folder.path().join("bridge"), 4096).unwrap();
        let own = server.attach(&Faults::default()).unwrap();
        let client = join(&folder.path().join("bridge"));
        // Ports 0 and 1 have a descriptor for each event.
        for eventfd in &client.inner.fabric.eventfds {
            rustix::fs::fcntl_setfl(eventfd, rustix::fs::OFlags::empty()).unwrap();
            rustix::io::write(eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        }
        own.peer_doorbell_set(CLIENT, 1).unwrap();
        own.link_enable(true);
        drop((client, own));
    }

    #[test]
    fn an_abandoned_socket_is_replaced_and_another_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bridge");
        let left = socket(SocketType::SEQPACKET).unwrap();
        bind(&left, &address(&path).unwrap()).unwrap();
        drop(left);
        drop(Server::listen(&path, 4096).unwrap());
        std::fs::write(&path, "precious").unwrap();
        assert!(Server::listen(&path, 4096).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
