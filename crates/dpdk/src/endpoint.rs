//! The receive and transmit queues of a port. Each burst is one call of a function in `burst.c`, which calls
//! the driver.

use crate::error::Error;
use crate::gate::{Gate, Mark};
use crate::interface::Interface;
use crate::sys;
use inlane_core::error::Result;
use inlane_core::packet::Packet;
use inlane_core::port::{Counters, Rx, Tx};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The length of an Ethernet header in bytes.
const ETHERNET_HEADER: usize = 14;
/// The number of calls without a packet after which the clock is read. A thread without work makes millions of calls a second,
/// or pauses between them.
const LOOK_EVERY: u32 = 64;
/// The least time between two checks whether the device still exists.
const CHECK_EVERY: Duration = Duration::from_millis(200);

type Receive = unsafe extern "C" fn(u16, u16, *mut sys::inlane_packet, u16, *mut u64) -> u16;
type Send = unsafe extern "C" fn(u16, u16, *const sys::inlane_packet, u16, *mut u64, *mut u64) -> u16;

/// The functions of `burst.c` for one kind of driver. They receive and send bursts.
#[derive(Clone, Copy)]
pub(crate) struct BurstFunctions {
    receive: Receive,
    send: Send,
    send_as_received: Send,
}

impl BurstFunctions {
    /// The functions for most drivers, which write to an mbuf shortly before they return it to the program.
    /// These functions load each field by itself, because a wider load would stall on store forwarding.
    pub(crate) const PLAIN: Self = Self {
        receive: sys::inlane_rx_burst,
        send: sys::inlane_tx_burst,
        send_as_received: sys::inlane_tx_burst_as_received,
    };
    /// The functions for drivers that return mbufs without writing to them. These functions read several
    /// fields of an mbuf by one load. This does not stall on store forwarding, because no store to the mbuf
    /// precedes the load.
    pub(crate) const SETTLED: Self = Self { receive: sys::inlane_rx_burst_settled, ..Self::PLAIN };
    /// The functions for drivers that lose buffers when they close. The functions mark each mbuf: the mark
    /// shows whether a program or a device holds the mbuf.
    pub(crate) const MARKING: Self = Self {
        receive: sys::inlane_rx_burst_marking,
        send: sys::inlane_tx_burst_marking,
        send_as_received: sys::inlane_tx_burst_marking,
    };
}

/// The state that a port shares with its receive and transmit queues.
pub(crate) struct PortContext {
    /// The port's name, as the user wrote it.
    pub(crate) name: String,
    /// DPDK's port number.
    pub(crate) port: u16,
    /// The kernel interface of the port. `None` if the port has no kernel interface.
    pub(crate) interface: Option<Interface>,
    /// True if the port ends when its peer disconnects, as a memif port does.
    pub(crate) has_peer: bool,
    /// True if the driver loses buffers when it closes. [`crate::pool::reclaim`] finds the buffers by their
    /// marks.
    pub(crate) loses_buffers: bool,
    functions: BurstFunctions,
    gate: Arc<Gate>,
    /// True once the port was stopped. It cannot be started again.
    stopped: AtomicBool,
    /// The number of packets sent by transmit queues that have been dropped. An [`EthTx`] adds its count when
    /// it is dropped.
    sent: AtomicU64,
}

impl PortContext {
    pub(crate) fn new(
        name: String,
        port: u16,
        interface: Option<Interface>,
        has_peer: bool,
        loses_buffers: bool,
        functions: BurstFunctions,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            port,
            interface,
            has_peer,
            loses_buffers,
            functions,
            gate: Gate::new(),
            stopped: AtomicBool::new(false),
            sent: AtomicU64::new(0),
        })
    }

    /// Lets the port's queues call the driver. The device must have started.
    pub(crate) fn open_gate(&self) {
        self.gate.open();
    }

    /// Closes the port's gate for good. When this returns, no thread is inside the driver, and no queue can
    /// call it.
    pub(crate) fn close_gate(&self) {
        self.gate.close();
        self.stopped.store(true, Ordering::Release);
    }

    /// Returns the number of packets sent by the port's transmit queues that have been dropped.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Returns an error if the interface or the peer has disappeared.
    #[cold]
    fn check(&self) -> Result<()> {
        let gone = if self.interface.as_ref().is_some_and(|interface| !interface.exists()) {
            "its interface"
        } else if self.has_peer && !link_is_up(self.port) {
            "the peer"
        } else {
            return Ok(());
        };
        Err(Error::Gone { port: self.name.clone(), what: gone.into() }.into())
    }
}

/// Returns true if the link of an open device is up.
pub(crate) fn link_is_up(port: u16) -> bool {
    link_megabits(port).is_some()
}

/// Returns an open device's link rate in Mb/s. `None` while the link is down.
pub(crate) fn link_megabits(port: u16) -> Option<u32> {
    let mut link = sys::rte_eth_link::default();
    // C code reads the fields, because their offsets differ between DPDK releases.
    // SAFETY: the first call writes the structure, or refuses an invalid port; the second reads it.
    unsafe {
        match sys::rte_eth_link_get_nowait(port, &mut link) {
            0 => u32::try_from(sys::inlane_link_megabits(&link)).ok(),
            _ => None,
        }
    }
}

/// The state that [`EthRx`] and [`EthTx`] have in common. The fields that each burst uses are adjacent.
struct End {
    port: u16,
    queue: u16,
    /// The number of calls without a packet since the clock was read.
    idle: u32,
    /// The time of the last check whether the device still exists.
    checked: Instant,
    gate: Arc<Gate>,
    mark: Arc<Mark>,
    functions: BurstFunctions,
    counters: Counters,
    context: Arc<PortContext>,
}

impl End {
    fn new(context: Arc<PortContext>, queue: u16) -> Self {
        Self {
            port: context.port,
            queue,
            idle: 0,
            checked: Instant::now(),
            gate: context.gate.clone(),
            mark: context.gate.mark(),
            functions: context.functions,
            counters: Counters::default(),
            context,
        }
    }

    /// Counts a burst that moved no packet. Checks now and then that the device still exists.
    #[inline]
    fn count_idle(&mut self) -> Result<()> {
        self.idle += 1;
        if self.idle < LOOK_EVERY {
            return Ok(());
        }
        self.check_if_due()
    }

    #[cold]
    fn check_if_due(&mut self) -> Result<()> {
        self.idle = 0;
        if self.checked.elapsed() < CHECK_EVERY {
            return Ok(());
        }
        self.checked = Instant::now();
        self.context.check()
    }
}

/// Receives packets from one receive queue of a DPDK device.
pub(crate) struct EthRx(End);

impl EthRx {
    pub(crate) fn new(context: Arc<PortContext>, queue: u16) -> Self {
        Self(End::new(context, queue))
    }
}

// SAFETY: the driver returns mbufs of the queue's pool that nobody else holds. `burst.c` takes each packet's
// address and length from its mbuf.
unsafe impl Rx for EthRx {
    #[inline]
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let End { port, queue, gate, mark, functions, counters, .. } = &mut self.0;
        let count = packets.len().min(u16::MAX as usize) as u16;
        let received = gate.pass(mark, || {
            // SAFETY: `packets` has room for `count` packets, in C's layout (asserted in `sys`). The gate is
            // open, so the device is started with this queue. Only this value receives from the queue.
            unsafe {
                (functions.receive)(*port, *queue, packets.as_mut_ptr().cast(), count, &mut counters.bytes)
                    as usize
            }
        });
        let received = received.unwrap_or(0);
        counters.packets += received as u64;
        if received == 0 {
            self.0.count_idle()?;
        }
        Ok(received)
    }

    fn exhausted(&self) -> bool {
        self.0.context.stopped.load(Ordering::Acquire)
    }

    fn counters(&self) -> Counters {
        self.0.counters
    }
}

/// Sends packets to one transmit queue of a DPDK device.
pub(crate) struct EthTx(End);

impl EthTx {
    pub(crate) fn new(context: Arc<PortContext>, queue: u16) -> Self {
        Self(End::new(context, queue))
    }

    /// Sends packets with `send`, one of the functions of `burst.c`.
    ///
    /// # Safety
    /// The caller keeps the promises of [`Tx::send`]. If `send` is a function for [`Tx::send_as_received`],
    /// the caller also keeps the promises of that method.
    #[inline(always)]
    unsafe fn send_with(&mut self, send: Send, packets: &[Packet]) -> Result<usize> {
        let End { port, queue, gate, mark, counters, .. } = &mut self.0;
        let count = packets.len().min(u16::MAX as usize) as u16;
        let errors_before = counters.errors;
        let sent = gate.pass(mark, || {
            // SAFETY: the caller guarantees that it holds the packets, which are mbufs of the port's pools.
            // The gate is open, so the device is started with this queue. Only this value sends to the queue.
            unsafe {
                let packets = packets.as_ptr().cast();
                send(*port, *queue, packets, count, &mut counters.bytes, &mut counters.errors) as usize
            }
        });
        let Some(sent) = sent else {
            let why = "it is not started, or was stopped".to_owned();
            return Err(Error::Usage { port: self.0.context.name.clone(), why }.into());
        };
        // `sent` includes packets with a length or address outside their buffer. The call above dropped these
        // packets and counted them as errors, so subtract them.
        counters.packets += sent as u64 - (counters.errors - errors_before);
        if sent == 0 && count > 0 {
            // SAFETY: the caller promises what this call requires. The driver accepted no packet.
            return unsafe { self.nothing_sent(&packets[0]) };
        }
        Ok(sent)
    }

    /// Handles a burst of which the driver accepted no packet. `first` is the burst's first packet. On a
    /// kernel interface, drops `first` if it is shorter than an Ethernet header, because the interface would
    /// never accept it. Returns the number of dropped packets.
    ///
    /// # Safety
    /// The caller holds `first`, which is an mbuf. If this function returns 1, the caller does not use
    /// `first` again.
    #[cold]
    unsafe fn nothing_sent(&mut self, first: &Packet) -> Result<usize> {
        if self.0.context.interface.is_some() && (first.length as usize) < ETHERNET_HEADER {
            // SAFETY: the caller promises what this call requires.
            unsafe { crate::pool::free(std::slice::from_ref(first)) };
            self.0.counters.errors += 1;
            return Ok(1);
        }
        self.0.count_idle()?;
        Ok(0)
    }
}

// SAFETY: `burst.c` stops at the first packet that the driver does not accept, and returns the number of
// accepted packets. If the port's gate is closed, the driver gets no packet.
unsafe impl Tx for EthTx {
    #[inline]
    unsafe fn send(&mut self, packets: &[Packet]) -> Result<usize> {
        // SAFETY: the caller promises what this call requires.
        unsafe { self.send_with(self.0.functions.send, packets) }
    }

    #[inline]
    unsafe fn send_as_received(&mut self, packets: &[Packet]) -> Result<usize> {
        // SAFETY: the caller promises what this call requires.
        unsafe { self.send_with(self.0.functions.send_as_received, packets) }
    }

    fn counters(&self) -> Counters {
        self.0.counters
    }
}

impl Drop for EthTx {
    fn drop(&mut self) {
        self.0.context.sent.fetch_add(self.0.counters.packets, Ordering::Release);
    }
}
