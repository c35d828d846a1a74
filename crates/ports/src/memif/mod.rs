//! A memif port without DPDK: shared memory with another process, in which frames are written and read in place.
//!
//! DPDK's port copies each frame between its packet buffers and the shared memory. A program that builds frames itself, such as
//! a network stack, can write them directly to shared memory here ([`Tx::reserve`]) and read them
//! there ([`Rx::receive_in_place`]). Packets of any pool work too, and are copied. The
//! peer may be any program that implements memif 2.0. A thread without work can sleep until the peer sends.

mod control;
mod doorbell;
mod memory;
mod queue;

#[cfg(test)]
mod tests;

use control::{Agreement, Channel, Offer, as_client, as_server, await_readable};
use doorbell::Doorbell;
pub(crate) use doorbell::clear_eventfd;
use inlane_core::port::PeerChannel;
use inlane_core::{Error, Pool, Port, PortInfo, Result, Rx, Tx};
use queue::{Buffers, End, MemifRx, MemifTx, Peer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The largest number of queues.
const MAX_QUEUES: u16 = 64;
/// The slots of a ring, as a power of two.
const SLOTS_LOG2: u8 = 10;
/// The memory in bytes for the shared buffers of a ring. More would leave the cache before the reader reads them.
const RING_BYTES: u32 = 1 << 20;
/// The least number of shared buffers of a ring.
const LEAST_BUFFERS: u32 = 64;
/// How long a server waits for each client to complete the handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// The time between two attempts of a client to connect.
const RETRY: Duration = Duration::from_millis(20);

/// The settings of a memif port.
#[derive(Clone, Debug)]
pub struct MemifSettings {
    /// The port's name in messages, as the user wrote it, without a secret.
    pub name: String,
    /// The socket's path. Its directory must exist.
    pub socket: PathBuf,
    /// True for the server, which listens at the socket. False for the client, which connects and creates the memory.
    pub server: bool,
    /// The number of the connection on the socket.
    pub id: u32,
    /// The secret that both ends must have.
    pub secret: Option<String>,
    /// How long to wait for the peer.
    pub wait: Duration,
    /// The size of each shared buffer in bytes. The client decides.
    pub buffer: u32,
    /// True to announce that this end accepts TCP segments with partial checksums. See
    /// [`Port::peer_accepts_partial_checksums`].
    pub partial_checksums: bool,
}

/// A memif port.
pub struct Memif {
    info: PortInfo,
    settings: MemifSettings,
    rx: Vec<Option<MemifRx>>,
    /// The parts of the transmit queues that were not taken.
    tx: Vec<Option<TxParts>>,
    /// The descriptors by which the peer wakes the receive queues, in their order.
    doorbells: Vec<Arc<Doorbell>>,
    peer_accepts_partial_checksums: bool,
    /// The peer, if it accepts messages of a [`PeerChannel`] and is trusted.
    peer: Option<Arc<Peer>>,
}

/// What a transmit queue is created from, apart from its pool.
type TxParts = Box<dyn FnOnce(Arc<dyn Pool>) -> MemifTx + Send>;

impl Memif {
    /// Creates a port that is not connected yet.
    pub fn new(settings: MemifSettings) -> Self {
        let role = if settings.server { "server" } else { "client" };
        let info = PortInfo {
            name: settings.name.clone(),
            path: format!("memif on {}, {role}", settings.socket.display()),
            touches_payload: true,
            max_queues: MAX_QUEUES,
            spreads_flows: false,
            link_bits_per_second: None,
            twin: false,
        };
        Self {
            info,
            settings,
            rx: Vec::new(),
            tx: Vec::new(),
            doorbells: Vec::new(),
            peer_accepts_partial_checksums: false,
            peer: None,
        }
    }

    fn refuse(&self, why: impl Into<String>) -> Error {
        Error::port_environment(&self.info.name, why)
    }

    /// Returns what this end offers its peer.
    fn offer(&self, queues: u16) -> Offer {
        let buffer = self.settings.buffer.next_multiple_of(64);
        let buffers = (RING_BYTES / buffer).clamp(LEAST_BUFFERS, 1 << SLOTS_LOG2) as u16;
        let MemifSettings { id, ref secret, partial_checksums, .. } = self.settings;
        let secret = secret.clone();
        Offer { id, secret, queues, slots_log2: SLOTS_LOG2, buffers, buffer, partial_checksums }
    }

    /// Connects to the peer, and returns the memory on which both ends have agreed.
    fn connect(&self, queues: u16) -> Result<(Channel, Agreement)> {
        let offer = self.offer(queues);
        let until = Instant::now() + self.settings.wait;
        let address = SocketAddrUnix::new(&self.settings.socket)
            .map_err(|error| self.refuse(format!("its socket cannot have this path: {error}")))?;
        let found = match self.settings.server {
            true => self.serve(&address, &offer, until)?,
            false => self.find_server(&address, &offer, until)?,
        };
        found.map_err(|last| {
            let other = if self.settings.server { "client" } else { "server" };
            let last = last.map(|why| format!(" (the last one: {why})")).unwrap_or_default();
            self.refuse(format!(
                "no peer connected within {} s{last}; start one with role={other} and the same socket, id, secret and number \
                 of queues ({queues}), or give wait=SECONDS",
                self.settings.wait.as_secs_f64(),
            ))
        })
    }

    fn socket(&self) -> Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| self.refuse(format!("cannot create a socket: {error}")))
    }

    /// Connects to a server. Returns why the last attempt failed if there is no server by `until`.
    fn find_server(
        &self,
        address: &SocketAddrUnix,
        offer: &Offer,
        until: Instant,
    ) -> Result<Result<(Channel, Agreement), Option<String>>> {
        let mut last = None;
        loop {
            let socket = self.socket()?;
            match rustix::net::connect(&socket, address) {
                Ok(()) => {
                    let channel = Channel::new(socket);
                    match as_client(&channel, offer, until) {
                        Ok(agreement) => return Ok(Ok((channel, agreement))),
                        // The last attempt may have had too little time.
                        Err(why) if last.is_none() || Instant::now() < until => last = Some(why),
                        Err(_) => {}
                    }
                }
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::INTR) => {}
                Err(error) => return Err(self.refuse(format!("cannot connect to its socket: {error}"))),
            }
            if Instant::now() >= until {
                return Ok(Err(last));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Accepts clients until one completes the handshake. Returns why the last one failed if none does by `until`.
    fn serve(
        &self,
        address: &SocketAddrUnix,
        offer: &Offer,
        until: Instant,
    ) -> Result<Result<(Channel, Agreement), Option<String>>> {
        let failed = |error| self.refuse(format!("cannot listen at its socket: {error}"));
        let listener = self.socket()?;
        rustix::net::bind(&listener, address).map_err(failed)?;
        let _file = RemovedFile(&self.settings.socket);
        rustix::net::listen(&listener, 16).map_err(failed)?;
        let mut last = None;
        while await_readable(listener.as_fd(), until).map_err(|why| self.refuse(why))? {
            let client = match rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(client) => Channel::new(client),
                Err(Errno::INTR | Errno::AGAIN | Errno::CONNABORTED) => continue,
                Err(error) => return Err(failed(error)),
            };
            match as_server(&client, offer, until.min(Instant::now() + HANDSHAKE)) {
                Ok(agreement) => return Ok(Ok((client, agreement))),
                Err(why) => last = Some(why),
            }
        }
        Ok(Err(last))
    }

    /// Creates the queues in the memory on which both ends have agreed.
    fn attach(&mut self, channel: Channel, agreement: Agreement, pools: &[Arc<dyn Pool>]) {
        let Agreement { memory, to_server, to_client, buffers_at, buffers, partial_checksums, messages } =
            agreement;
        self.peer_accepts_partial_checksums = partial_checksums;
        let peer = Arc::new(Peer { name: self.info.name.clone(), channel, ended: OnceLock::new() });
        self.peer = (messages && peer.channel.is_trusted()).then(|| peer.clone());
        let size = self.settings.buffer.next_multiple_of(64);
        let (server, client_queues) = (self.settings.server, pools.len() as u32);
        // Ring n of all rings, those to the server first.
        let end = |shared, ring: u32| {
            let first = buffers_at + ring * u32::from(buffers) * size;
            let offsets = (0..u32::from(buffers)).map(|n| first + n * size).collect();
            let buffers = (!server).then_some(Buffers { size, offsets });
            End::new(shared, memory.clone(), peer.clone(), buffers)
        };
        let (mut rx, mut tx, mut doorbells) = (Vec::new(), Vec::new(), Vec::new());
        for (queue, (to_server, to_client)) in (0..).zip(to_server.into_iter().zip(to_client)) {
            let (to_server, to_client) = ((to_server, queue), (to_client, client_queues + queue));
            let (received, sent) = if server { (to_server, to_client) } else { (to_client, to_server) };
            doorbells.push(received.0.doorbell.clone());
            let (received, sent) = (end(received.0, received.1), end(sent.0, sent.1));
            rx.push(Some(MemifRx::new(received, pools[queue as usize].clone())));
            tx.push(Some(Box::new(move |pool| MemifTx::new(sent, pool)) as TxParts));
        }
        (self.rx, self.tx, self.doorbells) = (rx, tx, doorbells);
    }

    /// Configures the port over a socket that is connected to a peer, as [`Port::configure`] does after it has connected.
    /// Gives up after `limit`. Returns the addresses of the shared memory. For tests of hostile peers.
    ///
    /// # Errors
    /// Why the handshake failed.
    pub fn configure_over(
        &mut self,
        socket: OwnedFd,
        pools: &[Arc<dyn Pool>],
        limit: Duration,
    ) -> Result<Vec<std::ops::Range<usize>>, String> {
        let (channel, until) = (Channel::new(socket), Instant::now() + limit);
        let offer = self.offer(pools.len() as u16);
        let agreement = match self.settings.server {
            true => as_server(&channel, &offer, until)?,
            false => as_client(&channel, &offer, until)?,
        };
        let regions = agreement.memory.0.iter();
        let addresses =
            regions.map(|region| region.address() as usize..region.address() as usize + region.len());
        let addresses = addresses.collect();
        self.attach(channel, agreement, pools);
        Ok(addresses)
    }

    fn taken(&self, direction: &str, queue: u16) -> Error {
        Error::port_usage(&self.info.name, format!("{direction} queue {queue} does not exist or was taken"))
    }
}

/// Removes the file of a listening socket when it is dropped. One client uses the port, so later ones must find no socket.
struct RemovedFile<'a>(&'a PathBuf);

impl Drop for RemovedFile<'_> {
    fn drop(&mut self) {
        // Another program may have removed it already.
        let _ = std::fs::remove_file(self.0);
    }
}

impl Port for Memif {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Connects to the peer. Blocks until there is one, at most for the time of the settings.
    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> Result<()> {
        let queues = tx_queues.max(pools.len() as u16);
        if !(1..=MAX_QUEUES).contains(&queues) || pools.len() != usize::from(queues) {
            let why = format!(
                "{} receive queues and {tx_queues} transmit queues; give as many of both, 1 to {MAX_QUEUES}",
                pools.len()
            );
            return Err(Error::port_usage(&self.info.name, why));
        }
        if pools.iter().any(|pool| !pool.region().location().is_cpu_memory()) {
            return Err(Error::port_usage(
                &self.info.name,
                "it copies packets, and the CPU cannot access the pool's memory",
            ));
        }
        let (channel, agreement) = self.connect(queues)?;
        self.attach(channel, agreement, pools);
        Ok(())
    }

    fn peer_accepts_partial_checksums(&self) -> bool {
        self.peer_accepts_partial_checksums
    }

    fn peer_channel(&self) -> Option<Arc<dyn PeerChannel>> {
        let peer = self.peer.clone()?;
        peer.channel.keep_messages();
        Some(peer)
    }

    fn wait_descriptors(&self) -> Vec<RawFd> {
        self.doorbells.iter().map(|doorbell| doorbell.as_raw_fd()).collect()
    }

    fn take_rx(&mut self, queue: u16) -> Result<Box<dyn Rx>> {
        match self.rx.get_mut(usize::from(queue)).and_then(Option::take) {
            Some(rx) => Ok(Box::new(rx)),
            None => Err(self.taken("receive", queue)),
        }
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> Result<Box<dyn Tx>> {
        match self.tx.get_mut(usize::from(queue)).and_then(Option::take) {
            Some(parts) => Ok(Box::new(parts(pool))),
            None => Err(self.taken("transmit", queue)),
        }
    }
}
