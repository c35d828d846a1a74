//! The NBD server: listens on a TCP address or a UNIX socket, and starts a thread for each client.

use super::client;
use super::result::{Counters, ExportResult};
use crate::LISTEN;
use inlane_nvme::initiator::{NamespaceInfo, Session, SessionOptions};
use inlane_nvme::{Error, Result};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// Accepts a client. Returns its socket.
    fn accept(&self) -> io::Result<File> {
        let socket: OwnedFd = match self {
            Listener::Unix(listener, _) => listener.accept()?.0.into(),
            Listener::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                // A client that has gone meanwhile is found when it is served.
                let _ = socket.set_nodelay(true);
                socket.into()
            }
        };
        Ok(socket.into())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A client's place among the clients that are counted. Ends when it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(clients: &'a AtomicUsize) -> Self {
        clients.fetch_add(1, Ordering::Relaxed);
        Self(clients)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An NBD server.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
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
        namespace.check_identity().map_err(|why| Error::Invalid { what: peer.into(), why })?;
        let options = SessionOptions { nsid: Some(namespace.nsid), ..options.clone() };
        let failed = |source: io::Error| {
            let remedy = match (source.kind(), address) {
                (io::ErrorKind::AddrInUse, ListenAddress::Tcp(_)) => {
                    "another program listens there; choose another port"
                }
                (io::ErrorKind::AddrInUse, ListenAddress::Unix(_)) => {
                    "another program listens there; choose another path"
                }
                (io::ErrorKind::AddrNotAvailable, _) => {
                    "no interface of this machine has this address; list them: ip address"
                }
                (io::ErrorKind::NotFound, _) => "its directory does not exist; create it",
                _ => "",
            };
            Error::with_remedy(format!("cannot listen on {address}"), source, remedy)
        };
        let listener = match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Listener::Tcp(listener)
            }
            ListenAddress::Unix(path) => {
                let found = std::fs::metadata(path);
                let is_socket = found.as_ref().is_ok_and(|file| file.file_type().is_socket());
                if found.is_ok() && !is_socket {
                    let why = "it exists and is not a socket; choose another path".into();
                    return Err(Error::Invalid { what: LISTEN.with(address).into(), why });
                }
                if is_socket && UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Listener::Unix(listener, path.clone())
            }
        };
        Ok(Self { listener, options, namespace, counters: Counters::default(), gate: Default::default() })
    }

    /// Returns the address that the server listens on. A TCP port of 0 has been replaced by the chosen port.
    ///
    /// # Errors
    /// If the socket has no address.
    pub fn address(&self) -> Result<ListenAddress> {
        let failed = |source| Error::Os { what: "cannot read the socket's address".into(), source };
        Ok(match &self.listener {
            Listener::Unix(_, path) => ListenAddress::Unix(path.clone()),
            Listener::Tcp(listener) => ListenAddress::Tcp(listener.local_addr().map_err(failed)?),
        })
    }

    /// Returns the exported namespace, as it was when the server started.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Returns the server's counters and address.
    ///
    /// # Errors
    /// If the socket has no address.
    pub fn result(&self) -> Result<ExportResult> {
        let address = self.address()?.to_string();
        Ok(self.counters.result(address, &self.options.connect.subsystem, &self.namespace))
    }

    /// Serves clients until `stop` is set. Calls `log` when a client ends with an error.
    ///
    /// # Errors
    /// If the listener fails.
    pub fn run(&self, stop: &AtomicBool, log: &(dyn Fn(&str) + Sync)) -> Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let clients = AtomicUsize::new(0);
        let clients = &clients;
        std::thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as _ };
                let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&tick));
                let stream = match self.listener.accept() {
                    Ok(stream) => stream,
                    Err(error) => {
                        // The process may be out of file descriptors. Wait for clients to end and release
                        // some.
                        if error.kind() != io::ErrorKind::WouldBlock {
                            log(&format!("cannot accept an NBD client: {error}"));
                            std::thread::sleep(TICK);
                        }
                        continue;
                    }
                };
                let place = Place::take(clients);
                if clients.load(Ordering::Relaxed) > MAX_CLIENTS {
                    self.counters.refused_clients.fetch_add(1, Ordering::Relaxed);
                    log(&format!("an NBD client was refused: {MAX_CLIENTS} are connected"));
                    continue;
                }
                self.counters.clients.fetch_add(1, Ordering::Relaxed);
                let serve = move || {
                    let _place = place;
                    if let Err(error) = self.serve(stream, stop) {
                        log(&format!("an NBD client was disconnected: {error}"));
                    }
                };
                if let Err(error) =
                    std::thread::Builder::new().name("inlane-nbd".into()).spawn_scoped(scope, serve)
                {
                    log(&format!("an NBD client was refused: cannot start a thread: {error}"));
                }
            }
        });
        Ok(())
    }

    fn serve(&self, mut stream: File, stop: &AtomicBool) -> Result<()> {
        let failed = |error: rustix::io::Errno| client::lost(error.into());
        ioctl_fionbio(&stream, false).map_err(failed)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&stream, direction, Some(NEGOTIATION)).map_err(failed)?;
        }
        let session = Session::open(&self.options)?;
        // A client that reconnects repeats and continues its writes. Check the namespace, because the target may have
        // restarted with another drive.
        self.namespace.check_is_same(session.namespace()).map_err(|why| {
            let why = format!("{why}. Start the export again to serve it");
            Error::Disconnected { peer: session.path().to_string(), why, source: None }
        })?;
        let export = super::negotiation::Export {
            namespace: session.namespace(),
            name: &self.options.connect.subsystem,
        };
        match super::negotiation::negotiate(&mut stream, &export) {
            Ok(Some(features)) => {
                ioctl_fionbio(&stream, true).map_err(failed)?;
                client::Client::new(stream, session, features, &self.counters, &self.gate).serve(stop)
            }
            Ok(None) => {
                session.close();
                Ok(())
            }
            Err(source) => Err(Error::Os { what: "the negotiation failed".into(), source }),
        }
    }
}
