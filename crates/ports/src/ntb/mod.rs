//! A port of Ethernet frames over the memory windows of an NTB, between two processes (twin) or two virtual machines (ivshmem).
//!
//! Each end has a ring of frames in its own memory, into which the peer writes through its window. Nothing is read through a
//! window. If a window is coherent memory, frames are written in place ([`inlane_core::Tx::reserve`]); frames are always read in
//! place. The link comes up again if the peer restarts. Until then, sent frames are dropped.

mod connection;
mod link;
mod queue;
mod ring;
mod spec;

#[cfg(test)]
mod tests;

pub use spec::{BridgeSpec, NtbSpec};

use inlane_core::{Error, Pool, Port, PortInfo, Result, Rx, Tx};
use inlane_ntb::device::Ntb;
use inlane_ntb::fault::Faults;
use inlane_ntb::ivshmem::Ivshmem;
use inlane_ntb::twin::Server;
use link::{Shared, Source};
use queue::{NtbRx, NtbTx};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The number of machines that share an ivshmem device.
const MACHINES: u32 = 2;

/// An NTB port.
pub struct NtbPort {
    info: PortInfo,
    spec: NtbSpec,
    /// The running link, after the port was configured.
    link: Option<RunningLink>,
    rx: Option<NtbRx>,
    /// False if the transmit queue was taken.
    has_tx: bool,
}

/// The thread of the link. Ends it when dropped.
struct RunningLink {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The server of a twin that this end owns. It ends after the thread.
    _server: Option<Server>,
}

impl RunningLink {
    fn start(name: &str, source: Source, server: Option<Server>) -> Result<Self> {
        let shared = Arc::new(Shared::new(name).map_err(|why| Error::port_environment(name, why))?);
        let theirs = shared.clone();
        let thread =
            std::thread::Builder::new()
                .name("ntb-link".into())
                .spawn(move || theirs.run(&source))
                .map_err(|error| Error::port_environment(name, format!("starting its thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread), _server: server })
    }
}

impl Drop for RunningLink {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl NtbPort {
    /// Creates a port that is not connected yet.
    pub fn new(spec: NtbSpec) -> Self {
        let path = match &spec.bridge {
            BridgeSpec::Twin { socket, server } => {
                let role = if *server { "server" } else { "client" };
                format!("NTB twin at {}, {role}", socket.display())
            }
            BridgeSpec::Device(address) => format!("NTB by ivshmem {address}"),
        };
        let info = PortInfo {
            name: spec.text.clone(),
            path,
            touches_payload: true,
            max_queues: 1,
            spreads_flows: false,
            link_bits_per_second: None,
            // Host memory lies behind the windows of both bridges.
            twin: true,
        };
        Self { info, spec, link: None, rx: None, has_tx: false }
    }

    /// Opens the bridge. A client opens it later.
    fn source(&self) -> Result<(Source, Option<Server>)> {
        let refuse =
            |error: inlane_ntb::error::Error| Error::port_environment(&self.info.name, error.to_string());
        Ok(match &self.spec.bridge {
            BridgeSpec::Twin { socket, server: false } => (Source::Joined(socket.clone()), None),
            BridgeSpec::Twin { socket, server: true } => {
                let server = Server::listen(socket, connection::INBOUND_BYTES as u64).map_err(refuse)?;
                let twin = server.attach(&Faults::default()).map_err(refuse)?;
                (Source::Own(Arc::new(twin)), Some(server))
            }
            BridgeSpec::Device(address) => {
                let device: Arc<dyn Ntb> = Arc::new(Ivshmem::open(*address, MACHINES).map_err(refuse)?);
                connection::used(device.inbound())
                    .map_err(|why| Error::port_environment(&self.info.name, why))?;
                (Source::Own(device), None)
            }
        })
    }

    /// Creates the queues and starts the link.
    fn start_over(
        &mut self,
        (source, server): (Source, Option<Server>),
        pool: Option<&Arc<dyn Pool>>,
    ) -> Result<()> {
        let link = RunningLink::start(&self.info.name, source, server)?;
        self.rx = pool.map(|pool| NtbRx::new(link.shared.clone(), pool.clone()));
        self.has_tx = true;
        self.link = Some(link);
        Ok(())
    }

    fn taken(&self, direction: &str, queue: u16) -> Error {
        Error::port_usage(&self.info.name, format!("{direction} queue {queue} does not exist or was taken"))
    }
}

impl Port for NtbPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Connects to the peer. Blocks until there is one, at most for the time of the specification.
    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        if pools.len() > 1 || tx_queues > 1 {
            let why =
                format!("{} receive queues and {tx_queues} transmit queues; it has 1 of both", pools.len());
            return Err(Error::port_usage(&self.info.name, why));
        }
        if pools.iter().any(|pool| !pool.region().location().is_cpu_memory()) {
            return Err(Error::port_usage(
                &self.info.name,
                "it copies packets, and the CPU cannot access the pool's memory",
            ));
        }
        let source = self.source()?;
        self.start_over(source, pools.first())?;
        let Some(link) = &self.link else { return Ok(()) };
        link.shared.await_link(self.spec.wait).map_err(|why| {
            let other = match &self.spec.bridge {
                BridgeSpec::Twin { server: true, .. } => "start one with the same socket and role=client",
                BridgeSpec::Twin { server: false, .. } => "start one with the same socket and role=server",
                BridgeSpec::Device(_) => "start one on the other machine",
            };
            Error::port_environment(
                &self.info.name,
                format!(
                    "no peer connected within {} s ({why}); {other}, or give wait=SECONDS",
                    self.spec.wait.as_secs_f64()
                ),
            )
        })
    }

    /// Returns one descriptor, which remains the same when the port joins another bridge.
    fn wait_descriptors(&self) -> Vec<RawFd> {
        self.link.iter().map(|link| link.shared.doorbells().as_raw_fd()).collect()
    }

    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>> {
        match self.rx.take() {
            Some(rx) if queue == 0 => Ok(Box::new(rx)),
            rx => {
                self.rx = rx;
                Err(self.taken("receive", queue))
            }
        }
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        match &self.link {
            Some(link) if queue == 0 && self.has_tx => {
                self.has_tx = false;
                Ok(Box::new(NtbTx::new(link.shared.clone(), pool)))
            }
            _ => Err(self.taken("transmit", queue)),
        }
    }
}
