//! Ports on DPDK devices (ethdevs): opens, configures, starts and stops a device, and splits it into queues.
//! Stopping a port closes its device. Some drivers do not free all their packet buffers when they close. The
//! port then returns these buffers to their pools.

mod configure;
mod wait;
mod xdp_queues;

use crate::device::{self, Device};
use crate::dma;
use crate::endpoint::{BurstFunctions, EthRx, EthTx, PortContext};
use crate::error::{Error, Result};
use crate::field;
use crate::refused_frames::RefusedFrames;
use crate::spec::{EthSpec, PortKind};
use crate::{MbufPool, eal, kernel_counters, log, pool, sys, xdp};
use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Counters, Port, PortInfo, Rx, Tx};
use std::any::Any;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use xdp_queues::XdpQueues;

/// The longest wait for the kernel to release the queue of a closed AF_XDP socket.
const QUEUE_RELEASE: Duration = Duration::from_millis(1000);

/// The number of buffers in the pool of a port that only sends. The port may need receive buffers, because
/// some drivers create a receive queue with each transmit queue.
const BUFFERS_OF_SENDER: usize = 4096;

/// Opens the port that `spec` describes ([`crate::spec`]) for one queue in each direction. The first call
/// starts DPDK.
///
/// # Errors
/// If the specification is invalid, the device is missing, in use or forbidden, or DPDK does not start.
pub fn open(spec: &str) -> Result<Box<dyn Port>> {
    open_for(EthSpec::parse(spec)?, 1)
}

/// Opens a port for a run that will use `queues` of its queues. Some drivers need this number in advance.
///
/// # Errors
/// If the device is missing, in use or forbidden, or DPDK does not start.
pub fn open_for(mut spec: EthSpec, queues: u16) -> Result<Box<dyn Port>> {
    if let PortKind::AfPacket { queues: requested @ None, .. } = &mut spec.kind
        && queues > 1
    {
        *requested = Some(queues);
    }
    let port = EthPort::new(spec.clone())?;
    match port.queues_of_separate_devices() {
        Some(queues) => Ok(Box::new(XdpQueues::new(spec, port, queues))),
        None => Ok(Box::new(port)),
    }
}

/// A port on one DPDK device (ethdev).
pub struct EthPort {
    spec: EthSpec,
    info: PortInfo,
    device: Device,
    limits: sys::rte_eth_dev_info,
    context: Arc<PortContext>,
    /// The pools from which the receive queues allocate buffers. The device holds buffers of these pools
    /// until it is closed.
    filled: Vec<Arc<MbufPool>>,
    /// The pools of the sent packets. The device may hold buffers of these pools until it is closed.
    sent: Vec<Arc<dyn Pool>>,
    /// The pools whose memory is mapped for the port's network card.
    mapped: Vec<dma::DmaMapping>,
    /// For each configured receive queue: true if the caller has taken the queue ([`Port::take_rx`]).
    rx_taken: Vec<bool>,
    /// For each configured transmit queue: true if the caller has taken the queue ([`Port::take_tx`]).
    tx_taken: Vec<bool>,
    /// The sockets that the driver opened for an AF_XDP port. The port closes those that the driver leaves
    /// open.
    sockets: Vec<xdp::Socket>,
    state: State,
    /// How many packets the packet sockets have dropped. Summed here, because reading the kernel's counter
    /// clears it.
    dropped: AtomicU64,
    last_counters: Counters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Configured,
    Started,
    Closed,
}

// SAFETY: any thread may make DPDK's configuration calls, one at a time. They need `&mut self`.
unsafe impl Send for EthPort {}

impl EthPort {
    /// Opens the port that `spec` describes.
    ///
    /// # Errors
    /// As for [`open`].
    pub fn open(spec: &str) -> Result<Self> {
        Self::new(EthSpec::parse(spec)?)
    }

    pub(crate) fn new(spec: EthSpec) -> Result<Self> {
        eal::start()?;
        let mut device = device::attach(&spec)?;
        let mut limits = sys::rte_eth_dev_info::default();
        let mark = log::LogPosition::new();
        // SAFETY: the structure is written during the call. The port was just attached.
        let code = unsafe { sys::rte_eth_dev_info_get(device.port, &mut limits) };
        if code != 0 {
            let error = device::failed(&spec, "reading the device's limits", code, &mark);
            device.detach();
            return Err(error);
        }
        let info = Self::info_of(&spec, &device, &limits);
        let functions = match spec.kind {
            PortKind::AfXdp { .. } => BurstFunctions::MARKING,
            PortKind::Ring { .. } => BurstFunctions::SETTLED,
            _ => BurstFunctions::PLAIN,
        };
        let context = PortContext::new(
            spec.text.clone(),
            device.port,
            device.interface.take(),
            matches!(spec.kind, PortKind::Memif { .. }),
            matches!(spec.kind, PortKind::AfXdp { .. }),
            functions,
        );
        Ok(Self {
            spec,
            info,
            device,
            limits,
            context,
            filled: Vec::new(),
            sent: Vec::new(),
            mapped: Vec::new(),
            rx_taken: Vec::new(),
            tx_taken: Vec::new(),
            sockets: Vec::new(),
            state: State::Open,
            dropped: AtomicU64::new(0),
            last_counters: Counters::default(),
        })
    }

    fn info_of(spec: &EthSpec, device: &Device, limits: &sys::rte_eth_dev_info) -> PortInfo {
        // SAFETY: the name is null, or a string constant of the driver.
        let driver = (!limits.driver_name.is_null()).then(|| unsafe { CStr::from_ptr(limits.driver_name) });
        let path = match (&spec.kind, driver) {
            (PortKind::Pci { address }, Some(driver)) => {
                format!("DPDK {} on {address}", driver.to_string_lossy())
            }
            _ => device.path.clone(),
        };
        let copies_nothing = matches!(
            spec.kind,
            PortKind::Null { copy: false, .. } | PortKind::Ring { .. } | PortKind::Pci { .. }
        );
        let spreads = matches!(
            spec.kind,
            PortKind::AfXdp { .. } | PortKind::AfPacket { .. } | PortKind::Tap { .. } | PortKind::Pci { .. }
        );
        PortInfo {
            name: spec.text.clone(),
            path,
            touches_payload: !copies_nothing,
            max_queues: limits.max_rx_queues.min(limits.max_tx_queues).max(1),
            spreads_flows: limits.max_rx_queues > 1 && spreads,
            link_bits_per_second: device
                .interface
                .as_ref()
                .and_then(|interface| interface.link_bits_per_second()),
            twin: false,
        }
    }

    /// Returns the largest number of queues of the port, counted from its first queue, if each queue needs a
    /// DPDK device of its own. Returns `None` if one device serves all queues. Only AF_XDP ports can need
    /// separate devices: on interfaces that have more receive queues than pairs of a receive and a transmit
    /// queue.
    fn queues_of_separate_devices(&self) -> Option<u16> {
        let PortKind::AfXdp { queue, .. } = self.spec.kind else { return None };
        let existing = self.context.interface.as_ref()?.queues();
        (existing.receive > existing.pairs).then(|| existing.receive - queue.unwrap_or(0))
    }

    fn usage(&self, why: impl Into<String>) -> Error {
        Error::Usage { port: self.spec.text.clone(), why: why.into() }
    }

    /// Configures this port by a DPDK call, under the lock of [`device::control`]. The error contains DPDK's
    /// warnings, and names the step by `doing`.
    fn call(&self, doing: &str, call: impl FnOnce(u16) -> i32) -> Result<()> {
        let mark = log::LogPosition::new();
        let _lock = device::control();
        match call(self.device.port) {
            0 => Ok(()),
            code => Err(device::failed(&self.spec, doing, code, &mark)),
        }
    }

    /// Converts `pool` to a pool of mbufs. Returns an error if it is not such a pool, or if this port cannot
    /// use its memory.
    fn mbuf_pool(&self, pool: &Arc<dyn Pool>) -> Result<Arc<MbufPool>> {
        let any: Arc<dyn Any + Send + Sync> = pool.clone();
        let pool = any
            .downcast::<MbufPool>()
            .map_err(|_| self.usage("it needs packets of an mbuf pool (inlane_dpdk::MbufPool)"))?;
        if self.info.touches_payload && !pool.region().location().is_cpu_memory() {
            let why = format!("it copies packets with the CPU, which cannot access {:?}", pool.region());
            return Err(self.usage(why));
        }
        Ok(pool)
    }

    fn is_card(&self) -> bool {
        matches!(self.spec.kind, PortKind::Pci { .. })
    }

    fn receives(&self) -> bool {
        !self.rx_taken.is_empty()
    }

    /// Puts `count` packets of `size` bytes into a queue of a ring port. The packets then circulate in this
    /// queue.
    fn prime(&self, queue: u16, count: u32, size: u16) -> Result<()> {
        let pool = &self.filled[queue as usize % self.filled.len()];
        let mut packets = vec![Packet::EMPTY; count as usize];
        if size as usize > pool.room() {
            let room = pool.room();
            return Err(self.usage(format!("size={size} exceeds the pool's buffers of {room} bytes")));
        }
        let allocated = pool.allocate(&mut packets);
        for packet in &mut packets[..allocated] {
            packet.length = size.into();
            if pool.region().location().is_cpu_memory() {
                // SAFETY: the packet was just allocated, in memory of the CPU. The size is at most the data
                // room.
                write_frame(unsafe { packet.bytes_mut() });
            }
        }
        let mut tx = EthTx::new(self.context.clone(), queue);
        // SAFETY: the packets are from a pool of this port. Packets that are not sent are freed here, and
        // none is used afterwards.
        let sent = unsafe {
            let sent = tx.send(&packets[..allocated]).unwrap_or(0);
            pool.free(&packets[sent..allocated]);
            sent
        };
        if sent < count as usize {
            let why = format!(
                "prime={count}: only {sent} packets fit; give fewer, or a larger pool ({})",
                field::BUFFERS
            );
            return Err(self.usage(why));
        }
        Ok(())
    }

    fn read_counters(&self) -> Counters {
        let mut statistics = sys::rte_eth_stats::default();
        // SAFETY: the structure is written during the call. An invalid port is refused.
        if unsafe { sys::rte_eth_stats_get(self.device.port, &mut statistics) } != 0 {
            return self.last_counters;
        }
        // Count only the errors of cards. If a software driver does not accept a packet, it counts a send
        // error. The caller sends that packet again, so the packet is not lost.
        let unsent = if self.is_card() { statistics.oerrors } else { 0 };
        if !self.receives() {
            // Leave out the packets that receive queues dropped. Nobody reads the receive queues of a
            // send-only port.
            return Counters { errors: unsent, ..Counters::default() };
        }
        let dropped = match (&self.spec.kind, &self.context.interface) {
            (PortKind::AfPacket { .. }, _) => {
                let new = kernel_counters::dropped_by_packet_sockets(&self.device.packet_sockets);
                self.dropped.fetch_add(new, Ordering::Relaxed) + new
            }
            (PortKind::Tap { .. }, Some(interface)) => interface.dropped_on_sending(),
            (PortKind::AfXdp { .. }, _) => kernel_counters::dropped_by_full_xdp_rings(&self.sockets),
            _ => 0,
        };
        let refused = self.device.refused.as_ref().map_or(0, RefusedFrames::count);
        Counters {
            packets: 0,
            bytes: 0,
            missed: statistics.imissed + statistics.rx_nombuf + dropped,
            errors: statistics.ierrors + unsent + refused,
        }
    }

    fn close(&mut self) {
        if self.state == State::Closed {
            return;
        }
        self.context.close_gate();
        if self.state == State::Started && self.is_card() {
            self.wait_for_last_packets();
        }
        self.last_counters = self.read_counters();
        if let Some(refused) = self.device.refused.as_ref().filter(|_| self.receives()) {
            refused.warn(&self.spec.text);
        }
        let port = self.device.port;
        if self.state == State::Started && matches!(self.spec.kind, PortKind::Ring { .. }) {
            for queue in 0..self.rx_taken.len().max(self.tx_taken.len()) as u16 {
                // SAFETY: the gate is closed, so no thread calls the driver. The queue was configured.
                unsafe { pool::free_received(port, queue) };
            }
        }
        let mapped = std::mem::take(&mut self.mapped);
        self.device.close(self.state == State::Started, move || drop(mapped));
        self.state = State::Closed;
        if self.context.loses_buffers {
            let sockets = xdp::close_leftovers(&self.sockets);
            let buffers = pool::reclaim(port, &self.filled);
            tracing::debug!(port = self.spec.text, sockets, buffers, "freed what the driver lost");
        }
        self.device.release_interface();
        self.filled.clear();
        self.sent.clear();
    }

    /// Marks a queue as taken. Each queue can be taken only once. `direction` is the name of the queue's kind
    /// in errors.
    ///
    /// # Errors
    /// If the queue was already taken or was not configured.
    fn take(taken: &mut [bool], queue: u16, direction: &str) -> Result<(), String> {
        match taken.get_mut(queue as usize) {
            Some(taken @ false) => {
                *taken = true;
                Ok(())
            }
            Some(_) => Err(format!("{direction} queue {queue} was already taken")),
            None => Err(format!("{direction} queue {queue} was not configured")),
        }
    }
}

/// Writes a UDP packet between documentation addresses (RFC 5737), with a payload of zeros.
fn write_frame(frame: &mut [u8]) {
    frame.fill(0);
    let length = frame.len();
    let header: &mut [u8] = &mut frame[..length.min(42)];
    let ip = (length.max(34) as u16 - 14).to_be_bytes();
    let udp = (length.max(42) as u16 - 34).to_be_bytes();
    let model: [u8; 42] = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, ip[0], ip[1], 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2,
        1, 198, 51, 100, 1, 0, 9, 0, 9, udp[0], udp[1], 0, 0,
    ];
    header.copy_from_slice(&model[..header.len()]);
}

impl Port for EthPort {
    fn info(&self) -> &PortInfo {
        &self.info
    }

    fn wait_descriptors(&self) -> Vec<RawFd> {
        match self.spec.kind {
            PortKind::AfXdp { .. } => self.sockets.iter().map(|socket| socket.descriptor()).collect(),
            PortKind::AfPacket { .. } => self.device.packet_sockets.clone(),
            _ => Vec::new(),
        }
    }

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> inlane_core::Result<()> {
        if self.state != State::Open {
            return Err(self.usage("it was already configured").into());
        }
        let queues = pools.len().max(tx_queues as usize);
        if queues > self.info.max_queues as usize || queues == 0 {
            let why = format!("{queues} queues were requested; give 1 to {}", self.info.max_queues);
            return Err(self.usage(why).into());
        }
        if self.queues_of_separate_devices().is_none() {
            self.spec.check_all_are_read(pools.len(), self.info.max_queues)?;
        }
        let mut filled = pools.iter().map(|pool| self.mbuf_pool(pool)).collect::<Result<Vec<_>>>()?;
        if filled.is_empty() {
            let room = self.device.required_room.map_or(2048, |room| room.max(2048) as usize);
            filled.push(MbufPool::new(BUFFERS_OF_SENDER, room)?);
        }
        let receives = !pools.is_empty();
        let mut outcome = self.configure_device(filled.clone(), queues as u16, receives);
        // If a port was just closed, the kernel may not have released its queue yet. So try again.
        let start = Instant::now();
        while self.context.loses_buffers
            && matches!(outcome, Err(Error::Busy { .. }))
            && start.elapsed() < QUEUE_RELEASE
        {
            std::thread::sleep(Duration::from_millis(20));
            self.close();
            *self = Self::new(self.spec.clone())?;
            outcome = self.configure_device(filled.clone(), queues as u16, receives);
        }
        outcome?;
        self.rx_taken = vec![false; pools.len()];
        self.tx_taken = vec![false; tx_queues as usize];
        self.state = State::Configured;
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> inlane_core::Result<Box<dyn Rx>> {
        Self::take(&mut self.rx_taken, queue, "receive").map_err(|why| self.usage(why))?;
        Ok(Box::new(EthRx::new(self.context.clone(), queue)))
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> inlane_core::Result<Box<dyn Tx>> {
        let mbufs = self.mbuf_pool(&pool)?;
        Self::take(&mut self.tx_taken, queue, "transmit").map_err(|why| self.usage(why))?;
        let most = device::memif_buffer(&self.spec) as usize;
        if matches!(self.spec.kind, PortKind::Memif { .. }) && mbufs.room() > most {
            let why = format!(
                "frames may have up to {} bytes, and memif's buffers hold {most}; give mtu={} at both ends, or {}",
                mbufs.room(),
                mbufs.room() - device::LINK_HEADERS as usize,
                field::ROOM.with(most)
            );
            return Err(self.usage(why).into());
        }
        if !self.filled.iter().any(|filled| Arc::ptr_eq(filled, &mbufs)) {
            self.map(&mbufs)?;
        }
        self.sent.push(pool);
        Ok(Box::new(EthTx::new(self.context.clone(), queue)))
    }

    fn start(&mut self) -> inlane_core::Result<()> {
        if self.state != State::Configured {
            return Err(self.usage("it must be configured, once, before it starts").into());
        }
        self.start_device()?;
        self.state = State::Started;
        self.device.receive_every_address();
        if let PortKind::Memif { server, wait_s, .. } = self.spec.kind {
            self.wait_for_peer(wait_s, server)?;
        }
        if self.is_card() {
            self.wait_for_link();
        }
        self.context.open_gate();
        if let PortKind::Ring { prime, size, .. } = self.spec.kind {
            (0..self.tx_taken.len() as u16).try_for_each(|queue| self.prime(queue, prime, size))?;
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.close();
    }

    fn device_counters(&self) -> Counters {
        if self.state == State::Closed { self.last_counters } else { self.read_counters() }
    }
}

impl Drop for EthPort {
    fn drop(&mut self) {
        self.close();
    }
}
