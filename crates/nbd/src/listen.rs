//! The NBD server: listens on a TCP address or a UNIX socket, and starts a thread for each client.

use super::client;
use super::negotiation::{Export, negotiate};
use super::result::{Counters, ExportResult};
use crate::LISTEN;
use inlane_nvme::initiator::{NamespaceInfo, Session, SessionOptions, sleep};
use inlane_nvme::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the server waits for the next bytes of a client that negotiates.
const NEGOTIATION: Duration = Duration::from_secs(5);
/// The most clients at a time. Each has a thread, buffers and two connections to the target.
const MAX_CLIENTS: usize = 128;
/// How often the listener checks whether it must stop.
const TICK: Duration = Duration::from_millis(100);

/// Where the server listens: `unix:PATH` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            // The kernel allows 108 bytes for the path, including a terminating zero byte.
            return match path.len() {
                0 => Err("the path is missing; give unix:/run/disk.sock".into()),
                1..=107 => Ok(ListenAddress::Unix(path.into())),
                _ => Err("the path of a Unix socket has at most 107 bytes".into()),
            };
        }
        let addresses = text.to_socket_addrs();
        let address = addresses.ok().and_then(|mut addresses| addresses.next());
        address
            .map(ListenAddress::Tcp)
            .ok_or_else(|| "give unix:PATH or HOST:PORT, for example 127.0.0.1:10809".into())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Tcp(address) => write!(f, "{address}"),
        }
    }
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Listener::Unix(listener) => listener.accept()?.0.into(),
            Listener::Tcp(listener) => listener.accept()?.0.into(),
        })
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// An NBD server.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: ListenAddress,
    options: SessionOptions,
    /// The namespace as it was when the server started. All clients must get this one.
    namespace: NamespaceInfo,
    counters: Counters,
    gate: client::Gate,
}

impl Server {
    /// Opens the namespace and starts to listen. [`Server::run`] serves the clients. Removes a Unix socket that a
    /// former server left behind.
    ///
    /// # Errors
    /// If the namespace cannot be accessed, or the address is in use or cannot be used.
    pub fn bind(address: &ListenAddress, options: &SessionOptions) -> Result<Self> {
        // Open a session and close it again, because each client gets its own. This reports a namespace that cannot
        // be accessed before any client connects.
        let session = Session::open(options)?;
        let namespace = *session.namespace();
        let peer = session.path().to_string();
        session.close();
        // Each client is checked by the identity. Without one, a client could write to another drive.
        namespace.check_identity().map_err(|why| Error::invalid(peer, why))?;
        let options = SessionOptions { nsid: Some(namespace.nsid), ..options.clone() };
        let failed = |source: io::Error| {
            Error::cannot_listen(address, matches!(address, ListenAddress::Unix(_)), source)
        };
        let (listener, address) = match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), ListenAddress::Tcp(address))
            }
            ListenAddress::Unix(path) => {
                let found = std::fs::metadata(path);
                let is_socket = found.as_ref().is_ok_and(|file| file.file_type().is_socket());
                if found.is_ok() && !is_socket {
                    let why = "it exists and is not a socket; choose another path";
                    return Err(Error::invalid(LISTEN.with(address), why));
                }
                if is_socket && UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                (Listener::Unix(UnixListener::bind(path).map_err(failed)?), address.clone())
            }
        };
        ioctl_fionbio(listener.socket(), true).map_err(|error| failed(error.into()))?;
        let (counters, gate) = (Counters::default(), client::Gate::default());
        Ok(Self { listener, address, options, namespace, counters, gate })
    }

    /// Returns the address that the server listens on. A TCP port of 0 has been replaced by the chosen port.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns the exported namespace, as it was when the server started.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Returns the server's counters and address.
    pub fn result(&self) -> ExportResult {
        self.counters.result(self.address.to_string(), &self.options.connect.subsystem, &self.namespace)
    }

    /// Serves clients until `stop` is set. Calls `log` when a client ends with an error.
    pub fn run(&self, stop: &AtomicBool, log: &(dyn Fn(&str) + Sync)) {
        // The thread of each client holds a reference.
        let places = Arc::new(());
        std::thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                sleep(&mut [PollFd::from_borrowed_fd(self.listener.socket(), PollFlags::IN)], TICK);
                let stream = match self.listener.accept() {
                    Ok(stream) => stream,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => {
                        // The process may be out of file descriptors. Wait for clients to end and release
                        // some.
                        log(&format!("cannot accept an NBD client: {error}"));
                        std::thread::sleep(TICK);
                        continue;
                    }
                };
                if Arc::strong_count(&places) > MAX_CLIENTS {
                    self.counters.refused_clients.fetch_add(1, Ordering::Relaxed);
                    log(&format!("an NBD client was refused: {MAX_CLIENTS} are connected"));
                    continue;
                }
                self.counters.clients.fetch_add(1, Ordering::Relaxed);
                let place = places.clone();
                let serve = move || {
                    let _place = place;
                    if let Err(error) = self.serve(stream.into(), stop) {
                        log(&format!("an NBD client was disconnected: {error}"));
                    }
                };
                let thread = std::thread::Builder::new().name("inlane-nbd".into());
                if let Err(error) = thread.spawn_scoped(scope, serve) {
                    log(&format!("an NBD client was refused: cannot start a thread: {error}"));
                }
            }
        });
    }

    fn serve(&self, mut stream: File, stop: &AtomicBool) -> Result<()> {
        let failed = |error: Errno| client::lost(error.into());
        if matches!(self.address, ListenAddress::Tcp(_)) {
            set_tcp_nodelay(&stream, true).map_err(failed)?;
        }
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&stream, direction, Some(NEGOTIATION)).map_err(failed)?;
        }
        let session = Session::open(&self.options)?;
        // A client that reconnects repeats and continues its writes. Check the namespace, because the target may have
        // restarted with another drive.
        self.namespace.check_is_same(session.namespace()).map_err(|why| {
            let why = format!("{why}. Start the export again to serve it");
            Error::disconnected(session.path().to_string(), why)
        })?;
        let export = Export { namespace: session.namespace(), name: &self.options.connect.subsystem };
        let negotiated = negotiate(&mut stream, &export);
        if !negotiated.map_err(|source| Error::Os { what: "the negotiation failed".into(), source })? {
            session.close();
            return Ok(());
        }
        ioctl_fionbio(&stream, true).map_err(failed)?;
        client::Client::new(stream, session, &self.counters, &self.gate).serve(stop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let ListenAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}
