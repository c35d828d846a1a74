//! Every ethdev as a port: attach, configure, queues, start, stop.
//!
//! A stopped port is closed: the device gives back every buffer it held, those that its driver forgets included, so
//! that its pools count nothing out that the program does not hold.

mod configure;
mod wait;

use crate::device::{self, Device};
use crate::dma;
use crate::endpoint::{Calls, EthRx, EthTx, Shared};
use crate::error::{Error, Result};
use crate::joined::Joined;
use crate::oversize::Oversize;
use crate::spec::{Kind, Spec};
use crate::{MbufPool, drops, eal, log, pool, sys, xdp_sockets};
use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Counters, Port, PortInfo, Rx, Tx};
use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a queue may stay taken after its AF_XDP socket was closed.
const QUEUE_RELEASE: Duration = Duration::from_millis(1000);

/// Opens the port that `spec` describes ([`crate::spec`]). The first one starts DPDK.
///
/// # Errors
/// When the specification means nothing, the device is missing, taken or forbidden, or DPDK does not start.
pub fn open(spec: &str) -> Result<Box<dyn Port>> {
    open_for(spec, 1)
}

/// As [`open`], for a run that will drive `queues` queues of it: for ports that must know when they are opened.
///
/// # Errors
/// As for [`open`].
pub fn open_for(spec: &str, queues: u16) -> Result<Box<dyn Port>> {
    let mut spec = Spec::parse(spec)?;
    if let Kind::AfPacket { queues: asked @ None, .. } = &mut spec.kind
        && queues > 1
    {
        *asked = Some(queues);
    }
    let port = EthPort::of(spec.clone())?;
    match port.single_queues() {
        Some(queues) => Ok(Box::new(Joined::new(spec, port, queues))),
        None => Ok(Box::new(port)),
    }
}

/// One ethdev.
pub struct EthPort {
    spec: Spec,
    info: PortInfo,
    device: Device,
    limits: sys::rte_eth_dev_info,
    shared: Arc<Shared>,
    /// What receive queues fill from, and what was sent comes from: devices hold buffers of these until they close.
    filled: Vec<Arc<MbufPool>>,
    sent: Vec<Arc<dyn Pool>>,
    /// Those of a card, within its reach.
    mapped: Vec<dma::Mapping>,
    rx_taken: Vec<bool>,
    tx_taken: Vec<bool>,
    /// Those of an AF_XDP port.
    sockets: Vec<xdp_sockets::Socket>,
    state: State,
    /// What the kernel dropped so far, where it counts from one look to the next.
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

// SAFETY: DPDK's configuration calls may come from any thread, one at a time; the value is behind `&mut` for those.
unsafe impl Send for EthPort {}

impl EthPort {
    /// Opens the port that `spec` describes.
    ///
    /// # Errors
    /// As for [`open`].
    pub fn open(spec: &str) -> Result<Self> {
        Self::of(Spec::parse(spec)?)
    }

    pub(crate) fn of(spec: Spec) -> Result<Self> {
        eal::start()?;
        let mut device = device::attach(&spec)?;
        let mut limits = sys::rte_eth_dev_info::default();
        let mark = log::Mark::new();
        // SAFETY: fills the structure; the port was just attached.
        let code = unsafe { sys::rte_eth_dev_info_get(device.port, &mut limits) };
        if code != 0 {
            let error = device::failed(&spec, "asking the device for its limits", code, &mark);
            device::detach(device.bus, &device.name);
            return Err(error);
        }
        let link = device.interface.as_ref().and_then(|interface| interface.link_bits_per_second());
        let interface = device.interface.take();
        let has_peer = matches!(spec.kind, Kind::Memif { .. });
        let forgets = matches!(spec.kind, Kind::AfXdp { .. });
        let calls = match spec.kind {
            Kind::AfXdp { .. } => Calls::MARKED,
            Kind::Ring { .. } => Calls::PASSED_ON,
            _ => Calls::PLAIN,
        };
        let shared = Shared::new(spec.text.clone(), device.port, interface, has_peer, forgets, calls);
        // SAFETY: the driver's name is a constant of its, or null.
        let driver = (!limits.driver_name.is_null()).then(|| unsafe { CStr::from_ptr(limits.driver_name) });
        let card = match (&spec.kind, driver) {
            (Kind::Pci { address }, Some(driver)) => {
                Some(format!("DPDK {} on {address}", driver.to_string_lossy()))
            }
            _ => None,
        };
        let info = PortInfo {
            name: spec.text.clone(),
            path: card.unwrap_or_else(|| device.path.clone()),
            touches_payload: !matches!(
                spec.kind,
                Kind::Null { copy: false, .. } | Kind::Ring { .. } | Kind::Pci { .. }
            ),
            max_queues: limits.max_rx_queues.min(limits.max_tx_queues).max(1),
            spreads_flows: limits.max_rx_queues > 1
                && matches!(
                    spec.kind,
                    Kind::AfXdp { .. } | Kind::AfPacket { .. } | Kind::Tap { .. } | Kind::Pci { .. }
                ),
            link_bits_per_second: link,
            twin: false,
        };
        Ok(Self {
            spec,
            info,
            device,
            limits,
            shared,
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

    /// An AF_XDP interface whose queues are no pairs takes a device for each: how many there are, from this one's on.
    fn single_queues(&self) -> Option<u16> {
        let Kind::AfXdp { queue, .. } = self.spec.kind else { return None };
        let there = self.shared.interface.as_ref()?.queues();
        (there.receive > there.pairs).then(|| there.receive - queue.unwrap_or(0))
    }

    fn usage(&self, why: impl Into<String>) -> Error {
        Error::Usage { port: self.spec.text.clone(), why: why.into() }
    }

    /// Runs a call of DPDK on this port and puts its refusal into words.
    fn call(&self, doing: &str, call: impl FnOnce(u16) -> i32) -> Result<()> {
        let mark = log::Mark::new();
        let _alone = device::control();
        match call(self.device.port) {
            0 => Ok(()),
            code => Err(device::failed(&self.spec, doing, code, &mark)),
        }
    }

    /// The pool as this crate's, and fit for the port.
    fn own_pool(&self, pool: &Arc<dyn Pool>) -> Result<Arc<MbufPool>> {
        let any: Arc<dyn Any + Send + Sync> = pool.clone();
        let pool = any.downcast::<MbufPool>().map_err(|_| {
            self.usage("its packets must come from an mbuf pool (inlane_dpdk::MbufPool), not from a pool of another kind")
        })?;
        if self.info.touches_payload && !pool.region().location().is_cpu_memory() {
            let why = format!("it copies packets with the CPU, which cannot reach {:?}", pool.region());
            return Err(self.usage(why));
        }
        Ok(pool)
    }

    fn is_card(&self) -> bool {
        matches!(self.spec.kind, Kind::Pci { .. })
    }

    /// Puts packets into a queue of a ring port, so that something goes round.
    fn prime(&self, queue: u16, count: u32, size: u16) -> Result<()> {
        let pool = &self.filled[queue as usize % self.filled.len()];
        let mut packets = vec![Packet::EMPTY; count as usize];
        if size as usize > pool.room() {
            return Err(
                self.usage(format!("size={size} does not fit the pool's buffers of {} bytes", pool.room()))
            );
        }
        let taken = pool.allocate(&mut packets);
        for packet in &mut packets[..taken] {
            packet.length = size.into();
            if pool.region().location().is_cpu_memory() {
                // SAFETY: just taken, with room for the size; memory of the CPU.
                fill_frame(unsafe { packet.bytes_mut() });
            }
        }
        let mut tx = EthTx::new(self.shared.clone(), queue);
        // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
        let sent = unsafe { tx.send(&packets[..taken]) }.unwrap_or(0);
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { pool.free(&packets[sent..taken]) };
        if sent < count as usize {
            return Err(
                self.usage(format!("prime={count}: only {sent} packets fitted; give fewer or a larger pool"))
            );
        }
        Ok(())
    }

    fn read_counters(&self) -> Counters {
        let mut statistics = sys::rte_eth_stats::default();
        // SAFETY: fills the structure; a port that is not valid is refused.
        if unsafe { sys::rte_eth_stats_get(self.device.port, &mut statistics) } != 0 {
            return self.last_counters;
        }
        // Software drivers count as send errors what they left with the caller, who offers it again: nothing is lost by it.
        let unsent = if self.is_card() { statistics.oerrors } else { 0 };
        let dropped = match (&self.spec.kind, &self.shared.interface) {
            _ if self.rx_taken.is_empty() => 0,
            (Kind::AfPacket { .. }, _) => {
                let dropped = drops::of_packet_sockets(&self.device.rings);
                self.dropped.fetch_add(dropped, Ordering::Relaxed) + dropped
            }
            (Kind::Tap { .. }, Some(interface)) => interface.dropped_on_sending(),
            (Kind::AfXdp { .. }, _) => drops::of_full_rings(&self.sockets),
            _ => 0,
        };
        let oversize = self.device.oversize.as_ref().filter(|_| !self.rx_taken.is_empty());
        Counters {
            packets: 0,
            bytes: 0,
            missed: statistics.imissed + statistics.rx_nombuf + dropped,
            errors: statistics.ierrors + unsent + oversize.map_or(0, Oversize::count),
        }
    }

    fn close(&mut self) {
        if self.state == State::Closed {
            return;
        }
        self.shared.close_gate();
        if self.state == State::Started && self.is_card() {
            self.let_last_packets_out();
        }
        self.last_counters = self.read_counters();
        if let Some(oversize) = self.device.oversize.as_ref().filter(|_| !self.rx_taken.is_empty()) {
            oversize.warn(&self.spec.text);
        }
        let port = self.device.port;
        if self.state == State::Started && matches!(self.spec.kind, Kind::Ring { .. }) {
            for queue in 0..self.rx_taken.len().max(self.tx_taken.len()) as u16 {
                // SAFETY: no end is inside any more; the queue was configured.
                unsafe { sys::inlane_drain(port, queue) };
            }
        }
        let mapped = std::mem::take(&mut self.mapped);
        device::close(&self.device, self.state == State::Started, move || drop(mapped));
        self.state = State::Closed;
        if self.shared.forgets {
            let sockets = xdp_sockets::close_leftovers(&self.sockets);
            let buffers = pool::reclaim(port, &self.filled);
            tracing::debug!(port = self.spec.text, sockets, buffers, "took back what the driver still held");
        }
        self.filled.clear();
        self.sent.clear();
    }
}

/// A UDP packet from a documentation address to another (RFC 5737), zeros behind: something that looks like traffic.
fn fill_frame(frame: &mut [u8]) {
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

    fn configure(&mut self, pools: &[Arc<dyn Pool>], tx_queues: u16) -> inlane_core::Result<()> {
        if self.state != State::Open {
            return Err(self.usage("it is configured already").into());
        }
        let queues = pools.len().max(tx_queues as usize);
        if queues > self.info.max_queues as usize || queues == 0 {
            let why = format!("{queues} queues were asked for; it has 1 to {}", self.info.max_queues);
            return Err(self.usage(why).into());
        }
        if self.single_queues().is_none() {
            self.spec.check_all_are_read(pools.len(), self.info.max_queues)?;
        }
        let mut filled = pools.iter().map(|pool| self.own_pool(pool)).collect::<Result<Vec<_>>>()?;
        // Software drivers want queues in pairs; those that nobody drives get a pool just large enough.
        if filled.is_empty() {
            filled.push(MbufPool::new(4096, self.device.slot.map_or(2048, |slot| slot.max(2048) as usize))?);
        }
        let mut outcome = self.configure_and_watch(filled.clone(), queues as u16);
        // The kernel frees the queue of a closed AF_XDP socket some milliseconds later: a restart must not fail on that.
        let start = Instant::now();
        while self.shared.forgets
            && matches!(outcome, Err(Error::Busy { .. }))
            && start.elapsed() < QUEUE_RELEASE
        {
            std::thread::sleep(Duration::from_millis(20));
            self.close();
            *self = Self::of(self.spec.clone())?;
            outcome = self.configure_and_watch(filled.clone(), queues as u16);
        }
        outcome?;
        self.rx_taken = vec![false; pools.len()];
        self.tx_taken = vec![false; tx_queues as usize];
        self.state = State::Configured;
        Ok(())
    }

    fn take_rx(&mut self, queue: u16) -> inlane_core::Result<Box<dyn Rx>> {
        match self.rx_taken.get_mut(queue as usize) {
            Some(taken @ false) => *taken = true,
            Some(_) => return Err(self.usage(format!("receive queue {queue} was taken")).into()),
            None => return Err(self.usage(format!("no receive queue {queue} was configured")).into()),
        }
        Ok(Box::new(EthRx::new(self.shared.clone(), queue)))
    }

    fn take_tx(&mut self, queue: u16, pool: Arc<dyn Pool>) -> inlane_core::Result<Box<dyn Tx>> {
        let own = self.own_pool(&pool)?;
        match self.tx_taken.get_mut(queue as usize) {
            Some(taken @ false) => *taken = true,
            Some(_) => return Err(self.usage(format!("send queue {queue} was taken")).into()),
            None => return Err(self.usage(format!("no send queue {queue} was configured")).into()),
        }
        let most = device::memif_buffer(&self.spec) as usize;
        if matches!(self.spec.kind, Kind::Memif { .. }) && own.room() > most {
            let why = format!(
                "frames may have up to {} bytes, and memif's buffers hold {most}: give mtu={} at both ends, or --room {most}",
                own.room(),
                own.room() - device::LINK_HEADERS as usize
            );
            return Err(self.usage(why).into());
        }
        if !self.filled.iter().any(|filled| Arc::ptr_eq(filled, &own)) {
            self.map(&own)?;
        }
        self.sent.push(pool);
        Ok(Box::new(EthTx::new(self.shared.clone(), queue)))
    }

    fn start(&mut self) -> inlane_core::Result<()> {
        if self.state != State::Configured {
            return Err(self.usage("it must be configured, once, before it starts").into());
        }
        self.start_device()?;
        self.state = State::Started;
        // Everything on the wire is for us; drivers that cannot say so receive everything anyway.
        // SAFETY: a valid port.
        unsafe { sys::rte_eth_promiscuous_enable(self.device.port) };
        if let Kind::Memif { server, wait_s, .. } = self.spec.kind {
            self.wait_for_peer(wait_s, server)?;
        }
        if self.is_card() {
            self.wait_for_link();
        }
        self.shared.open_gate();
        if let Kind::Ring { prime, size, .. } = self.spec.kind {
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
